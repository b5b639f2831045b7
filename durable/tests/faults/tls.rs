//! Connections with TLS, to a server whose certificate nobody knows.

use std::time::Duration;

use tickwheel::Scheduler;
use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::{Error, Timers, Worker};

use super::common::{PATIENCE, until};
use super::databases::{client, say};
use super::handlers::new;
use super::server::Server;

pub(crate) fn connections_have_tls_as_the_address_says() {
    let server = match Server::private() {
        Ok(server) => server,
        Err(reason) => return say(&format!("TLS: skipped: {reason}")),
    };
    let (port, certificate) = match server.with_tls() {
        Ok(with_tls) => with_tls,
        Err(reason) => return say(&format!("TLS: skipped: {reason}")),
    };
    let folder = server.socket_folder().to_string_lossy().replace('/', "%2F");
    let direct = format!("postgres://postgres@{folder}:{port}/postgres");
    let at = |host: &str, mode: &str| {
        format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}")
    };
    let root = format!("&sslrootcert={}", certificate.display().to_string().replace('/', "%2F"));
    // How many connections of this name there are, and how many of them have TLS.
    let connections = |name: &str| -> (i64, i64) {
        let row = client(&direct)
            .query_one(
                "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
                 WHERE application_name = $1",
                &[&name],
            )
            .expect("a row");
        (row.get(0), row.get(1))
    };
    // All of a worker: those that claim, listen, write, run handlers and make calls.
    let timers = Timers::open(&at("localhost", "require")).expect("it encrypts, and believes");
    works_with(&timers, |_| {
        let (all, with_tls) = connections("tickwheel");
        assert!(all >= 5 && with_tls == all, "{with_tls} of {all}");
    });
    drop(timers);
    for (host, mode, root, problem) in [
        ("localhost", "disable", "", None),
        ("localhost", "prefer", "", None),
        ("127.0.0.1", "require", "", None),
        ("localhost", "verify-full", root.as_str(), None),
        ("127.0.0.1", "verify-ca", &root, None),
        ("localhost", "verify-ca", "", Some("certificate")),
        ("localhost", "verify-full", "", Some("certificate")),
        ("127.0.0.1", "verify-full", &root, Some("mismatch")),
    ] {
        let name = format!("{host} {mode}").replace([' ', '.'], "_");
        let address = format!("{}{root}&application_name={name}", at(host, mode));
        let Some(problem) = problem else {
            let timers = Timers::open(&address).expect(&address);
            timers.now().expect("a time");
            // The server forgets one that was closed a moment later.
            until(&address, || connections(&name) == (1, i64::from(mode != "disable")));
            continue;
        };
        let error = Timers::open(&address).expect_err(&address);
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        assert!(error.to_string().contains(problem), "{address}: {error}");
    }
    // A connector of the user's, with what the address says of all else.
    let connector = native_tls::TlsConnector::builder()
        .danger_accept_invalid_certs(true)
        .build()
        .expect("a connector");
    let connector = postgres_native_tls::MakeTlsConnector::new(connector);
    let store = Postgres::with_tls(&at("localhost", "require"), connector).expect("an address");
    let timers = Timers::with_store(store).expect("it opens");
    works_with(&timers, |_| assert!(connections("tickwheel").1 >= 5));
    let missing = at("localhost", "verify-full") + "&sslrootcert=%2Fmissing";
    let error = Postgres::new(&missing).expect_err("there is no such file");
    assert!(error.to_string().contains("/missing"), "{error}");
}

/// Runs a timer of each type, and looks in between.
fn works_with(timers: &Timers, look: impl Fn(&Worker)) {
    let worker = timers.worker().handle("plain", |_| Ok(()));
    let worker = worker.handle_in_postgres("tx", |_, transaction| {
        let with_tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert!(transaction.query_one(with_tls, &[])?.get::<_, bool>(0));
        Ok(())
    });
    let worker = worker.handle_in_tokio_postgres("tokio", async |_, transaction| {
        let with_tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert!(transaction.query_one(with_tls, &[]).await?.get::<_, bool>(0));
        Ok(())
    });
    let worker = worker.poll_every(Duration::from_secs(3600)).start(Scheduler::global());
    let worker = worker.expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    for kind in ["plain", "tx", "tokio"] {
        timers.schedule(&new(kind, "1", Duration::ZERO)).expect("scheduled");
    }
    until("all are done", || worker.stats().done == 3);
    look(&worker);
    assert!(worker.stop(PATIENCE));
}
