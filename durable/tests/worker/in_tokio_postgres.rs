//! Async handlers in a transaction of tokio-postgres, on connections of our own and of a pool.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::{Failure, NewTimer, State, Timers};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::common::{PATIENCE, until};
use super::databases::{Database, on_a_server};
use super::{HOUR, LEASE, LIMIT, NOW, is_gone, mail, quick};

#[test]
fn in_a_transaction_of_tokio_postgres() {
    on_a_server(
        "in_tokio_postgres",
        &[
            ("its_work_and_its_timer_are_one", its_work_and_its_timer_are_one),
            ("a_future_that_never_ends_is_undone", a_future_that_never_ends_is_undone),
            ("it_needs_no_runtime_of_its_own", it_needs_no_runtime_of_its_own),
            ("a_pool_of_its_clients_lends_them", a_pool_of_its_clients_lends_them),
            (
                "a_completion_makes_any_client_exactly_once",
                a_completion_makes_any_client_exactly_once,
            ),
            ("a_completion_that_cannot_be_says_so", a_completion_that_cannot_be_says_so),
        ],
        &[],
    );
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn with_effects(database: &Database<'_>) -> Timers {
    database.execute("CREATE TABLE effects (key text NOT NULL UNIQUE)");
    database.open()
}

const EFFECT: &str = "INSERT INTO effects VALUES ($1)";

fn effects(database: &Database<'_>) -> u64 {
    database.number("SELECT count(*) FROM effects").unsigned_abs()
}

fn its_work_and_its_timer_are_one(database: &Database<'_>) {
    const COUNT: u64 = 30;
    let timers = with_effects(database);
    let runtime = runtime();
    let entered = runtime.enter();
    let worker =
        timers.worker().retry(quick(5)).handle_in_tokio_postgres("mail", async |run, tx| {
            tx.execute(EFFECT, &[&run.key()]).await?;
            tokio::time::sleep(Duration::from_millis(1)).await; // in the context of the runtime
            match run.attempt() {
                1 => return Err(Failure::new("undone")),
                2 => assert!(run.is_last_attempt(), "undone as well"),
                // The server undoes it, and the run fails, whatever is returned.
                3 => _ = tx.execute(EFFECT, &[&run.key()]).await,
                _ => {}
            }
            Ok(())
        });
    drop(entered);
    let all: Vec<_> = (0..COUNT).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&all).expect("scheduled");
    timers.schedule(&mail("series", NOW).every(HOUR)).expect("scheduled");
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("all are done", || worker.stats().done == COUNT + 1);
    assert_eq!(effects(database), COUNT + 1);
    assert_eq!((worker.stats().failed, worker.stats().lost), (3 * (COUNT + 1), 0));
    let series = timers.get("mail", "series").expect("no error").expect("it goes on");
    assert_eq!((series.state, series.attempts), (State::Waiting, 0));
    assert!(worker.stop(PATIENCE));
}

fn a_future_that_never_ends_is_undone(database: &Database<'_>) {
    let timers = with_effects(database);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle_in_tokio_postgres("mail", async move |run, tx| {
        tx.execute(EFFECT, &[&run.key()]).await?;
        _ = tell.send(run.attempt());
        if run.attempt() == 1 {
            pending::<()>().await;
        }
        Ok(())
    });
    let worker = worker.time_limit(LIMIT).lease(LEASE);
    let worker = worker.threads(1).poll_every(Duration::from_millis(20));
    let worker = worker.on_error(|_| {}).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    for attempt in [1, 2] {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(attempt));
    }
    until("it is done", || worker.stats().done == 1 && worker.stats().stuck == 0);
    assert!(is_gone(&timers, "1"));
    assert_eq!((effects(database), worker.stats().timed_out), (1, 1));
    assert!(worker.stop(PATIENCE));
}

fn it_needs_no_runtime_of_its_own(database: &Database<'_>) {
    let timers = with_effects(database);
    let worker = timers.worker().handle_in_tokio_postgres("mail", async |run, tx| {
        tx.execute(EFFECT, &[&run.key()]).await?;
        Ok(())
    });
    // Beside a handler with the other client.
    let worker = worker.handle_in_postgres("report", |run, tx| {
        tx.execute(EFFECT, &[&run.key()])?;
        Ok(())
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let report = tickwheel_durable::NewTimer::new("report", "2", NOW);
    timers.schedule(&report).expect("scheduled");
    until("both are done", || worker.stats().done == 2);
    assert_eq!(effects(database), 2);
    assert!(worker.stop(PATIENCE));
    drop((worker, timers)); // with the runtime of its connections
}

/// A pool such as a service has. What it gives out is not a client, but has one.
#[derive(Clone)]
struct Pool {
    url: String,
    free: Arc<Mutex<Vec<Client>>>,
    opened: Arc<AtomicU32>,
}

struct Object {
    client: Option<Client>,
    pool: Pool,
}

impl Pool {
    async fn get(&self) -> Result<Object, tokio_postgres::Error> {
        let free = self.free.lock().expect("no panic").pop();
        if free.is_some() {
            return Ok(Object { client: free, pool: self.clone() });
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Object { client: Some(client), pool: self.clone() })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.pool.free.lock().expect("no panic").extend(self.client.take());
    }
}

fn a_pool_of_its_clients_lends_them(database: &Database<'_>) {
    const COUNT: u64 = 20;
    drop(with_effects(database));
    let runtime = runtime();
    let url = format!("{}&application_name=service", database.url());
    let pool = Pool { url, free: Arc::default(), opened: Arc::default() };
    let (lend, handle) = (pool.clone(), runtime.handle().clone());
    let store = Postgres::new(&database.url()).expect("an address").with_tokio_pool(
        move || handle.block_on(lend.get()),
        |object| object.client.as_mut().expect("it has one"),
    );
    runtime.block_on(async {
        let timers = Timers::with_store(store).expect("it opens").asynchronous();
        let worker = timers.worker().threads(2);
        let worker = worker.handle_in_tokio_postgres("mail", async |run, tx| {
            let name = tx.query_one("SELECT current_setting('application_name')", &[]).await?;
            assert_eq!(name.get::<_, &str>(0), "service");
            tx.execute(EFFECT, &[&run.key()]).await?;
            Ok(())
        });
        let worker = worker.start(Scheduler::global()).expect("it starts");
        let begin = Instant::now();
        for n in 0..COUNT {
            timers.schedule(&mail(&n.to_string(), NOW)).await.expect("scheduled");
        }
        assert_eq!(timers.cancel("mail", "none").await.expect("no error"), None);
        let all_done = async {
            while worker.stats().done < COUNT {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all_done).await.expect("all are done");
        assert!(begin.elapsed() < Duration::from_secs(30), "it was told, and did not look");
        let opened = pool.opened.load(Ordering::Relaxed) as usize;
        assert_eq!(pool.free.lock().expect("no panic").len(), opened, "they are all back");
        worker.stop(Duration::ZERO);
        worker.stopped().await;
    });
    assert_eq!(effects(database), COUNT);
    let opened = pool.opened.load(Ordering::Relaxed);
    assert!((1..=3).contains(&opened), "{opened}: one for calls, two for handlers");
}

/// Any client will do: this one is not the timers' own.
fn a_completion_makes_any_client_exactly_once(database: &Database<'_>) {
    let timers = with_effects(database);
    let runtime = runtime();
    let (url, handle) = (database.url(), runtime.handle().clone());
    let cancels = timers.clone();
    let worker = timers.worker().spawn_with(move |run| drop(handle.spawn(run)));
    let worker = worker.retry(quick(4)).handle_async("mail", move |run| {
        let (url, timers) = (url.clone(), cancels.clone());
        async move {
            let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            let order = client.transaction().await?;
            order.execute(EFFECT, &[&run.key()]).await?;
            if run.key() == "cancelled" {
                timers.asynchronous().cancel("mail", run.key()).await?;
            }
            order.batch_execute(&run.completion()?).await?;
            if run.attempt() == 1 && run.key() != "cancelled" {
                return Err(Failure::new("undone, with the end of the timer"));
            }
            order.commit().await?;
            Ok(())
        }
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    timers.schedule(&mail("series", NOW).every(HOUR)).expect("scheduled");
    until("both are done", || worker.stats().done == 2);
    assert_eq!((effects(database), worker.stats().failed, worker.stats().lost), (2, 2, 0));
    assert!(is_gone(&timers, "1"));
    let series = timers.get("mail", "series").expect("no error").expect("it goes on");
    assert_eq!((series.state, series.attempts), (State::Waiting, 0));
    assert!(series.due > timers.now().expect("a time") + HOUR / 2);
    // The statement fails where the run is void, and undoes the work.
    timers.schedule(&mail("cancelled", NOW)).expect("scheduled");
    until("its outcome is void", || worker.stats().lost == 1);
    assert_eq!((effects(database), worker.stats().failed), (2, 3));
    assert!(worker.stop(PATIENCE));
}

fn a_completion_that_cannot_be_says_so(database: &Database<'_>) {
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let (url, tell_too) = (database.url(), tell.clone());
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            let mut client = postgres::Client::connect(&url, postgres::NoTls)?;
            let statement = run.completion()?;
            client.batch_execute(&statement)?;
            let again = client.batch_execute(&statement).expect_err("it is complete");
            let said = again.as_db_error().expect("the server's answer");
            Ok(tell.send(format!("{} {}", said.code().code(), said.message()))?)
        })
        .handle_in_postgres("in a transaction", move |run, _| {
            let refused = run.completion().expect_err("the transaction ends the timer");
            Ok(tell_too.send(refused.reason().to_owned())?)
        })
        .start(Scheduler::global())
        .expect("it starts");
    for (kind, text) in [
        ("mail", "TW001 this run is complete already, or it is not this worker's any more"),
        ("in a transaction", "the transaction of this handler ends the timer already"),
    ] {
        timers.schedule(&NewTimer::new(kind, "1", NOW)).expect("scheduled");
        let said = told.recv_timeout(PATIENCE).expect("it runs");
        assert!(said.starts_with(text), "{said}");
        until("it is done", || timers.get(kind, "1").expect("no error").is_none());
    }
    assert!(worker.stop(PATIENCE));
}
