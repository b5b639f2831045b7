//! Exit codes, and what is said then: a wrong call, a database that is away or refuses, and a password that nobody sees.

use std::io::Read;
use std::process::Stdio;

use postgres::{Client, NoTls};
use tickwheel_durable::{NewTimer, SCHEMA_VERSION};

use super::program::{HOUR, Shop};
use super::server::Server;

#[test]
fn a_wrong_call_says_what_to_change() {
    let shop = Shop::new();
    let wrong = |arguments: &[&str], advice: &str| {
        let ran = shop.run(arguments).ended(2);
        assert!(ran.err.contains(advice) && ran.out.is_empty(), "{advice}: {ran:?}");
    };
    wrong(&[], "Usage: tickwheel-durable");
    wrong(&["lsit"], "similar subcommand exists: 'list'");
    wrong(&["schedule", "mail"], "<KEY>");
    wrong(&["schedule", "mail", "1", "--after", "30"], "give a number with a unit, such as 90s");
    wrong(&["schedule", "mail", "1", "--at", "tomorrow"], "2030-01-31T09:00:00Z");
    wrong(
        &["schedule", "mail", "1", "--after", "1h", "--at", "2030-01-01T00:00Z"],
        "cannot be used",
    );
    wrong(&["schedule", "mail", "1", "--every", "0s"], "the period is shorter than a millisecond");
    wrong(&["schedule", "mail", "1", "--max-attempts", "0"], "give 1 or more");
    wrong(&["schedule", &"k".repeat(201), "1"], "a kind has 1 to 200 bytes");
    wrong(&["schedule", "mail", "1", "--at", "1900-01-01T00:00Z"], "it is before 1970");
    wrong(&["bench", "--payload", "100000000000"], "is not in 0..=100000");
    wrong(&["list", "--database", "postgres:///shop"], "Complete the address");
    wrong(&["list", "--until", "soon"], "give a time with its offset");
    wrong(&["cancel", "--all"], "--kind");
    wrong(&["migrate", "--print", "--from", "99"], "there is no version 99");
    wrong(&["list", "--database", "mysql://me@host/shop"], "names no store");
    let mut command = shop.command(&["list"]);
    let output = command.env_remove("DATABASE_URL").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("set DATABASE_URL"));
    for help in [&["--help"][..], &["help", "list"], &["bench", "--help"], &["--version"]] {
        assert!(shop.run(help).ended(0).err.is_empty());
    }
    assert!(shop.run(&["completions", "bash"]).ended(0).out.contains("tickwheel-durable"));
}

#[test]
fn a_file_that_is_none_is_4() {
    let shop = Shop::empty();
    let ran = shop.run(&["list"]).ended(4);
    assert!(ran.err.contains("there is no file \"shop.db\""), "{}", ran.err);
    shop.run(&["migrate", "--check"]).ended(4);
    assert!(!shop.folder.join("shop.db").exists(), "to look makes no file");
    std::fs::create_dir(shop.folder.join("folder")).expect("a folder");
    std::fs::write(shop.folder.join("text"), "no database, but a text").expect("a file");
    for wrong in ["sqlite:folder", "sqlite:text"] {
        for command in ["list", "migrate"] {
            let ran = shop.run(&[command, "--database", wrong]).ended(4);
            assert!(ran.err.contains("Check the address"), "{}", ran.err);
        }
    }
}

#[test]
fn a_database_that_is_away_is_3() {
    let shop = Shop::empty();
    let ran = shop.run(&["list", "--database", "postgres://me@127.0.0.1:1/shop"]).ended(3);
    assert!(ran.err.contains("Check the address"), "{}", ran.err);
    let two = [
        "list",
        "--database",
        "postgres://me@127.0.0.1:1/a",
        "--database",
        "postgres://me@127.0.0.1:1/b",
    ];
    let ran = shop.run(&two).ended(3);
    assert!(
        ran.err.contains("shard 0 (127.0.0.1:1/a)") && ran.err.contains("shard 1"),
        "{}",
        ran.err
    );
}

#[test]
fn no_tables_and_tables_of_another_version_are_4() {
    let shop = Shop::empty();
    rusqlite::Connection::open(shop.folder.join("shop.db")).expect("a file");
    let ran = shop.run(&["list"]).ended(4);
    assert!(
        ran.err.contains("no tables") && ran.err.contains("tickwheel-durable migrate"),
        "{}",
        ran.err
    );
    let ran = shop.run(&["migrate", "--check"]).ended(4);
    assert_eq!(ran.out, "sqlite:shop.db has no tables\n");
    assert!(ran.err.contains("needs the migrations 0001 to "), "{}", ran.err);
    let made = &shop.run(&["migrate", "--json"]).ended(0).json()[0];
    assert_eq!((&made["before"], &made["version"]), (&0.into(), &SCHEMA_VERSION.into()));
    assert!(shop.run(&["migrate"]).ended(0).out.contains("is up to date"));
    shop.run(&["migrate", "--check"]).ended(0);

    let set = |version: i32, oldest: i32| {
        let file = rusqlite::Connection::open(shop.folder.join("shop.db")).expect("a file");
        let sql = "UPDATE tickwheel_schema SET version = ?1, oldest = ?2";
        file.execute(sql, [version, oldest]).expect("it is changed");
    };
    set(SCHEMA_VERSION - 1, 1);
    let ran = shop.run(&["list"]).ended(4);
    assert!(ran.err.contains("run `tickwheel-durable migrate`"), "{}", ran.err);
    let ran = shop.run(&["migrate", "--check"]).ended(4);
    assert!(ran.err.contains(&format!("0{SCHEMA_VERSION:03} to ")), "{}", ran.err);
    set(99, 99);
    for command in ["list", "migrate", "counts"] {
        let ran = shop.run(&[command]).ended(4);
        assert!(ran.err.contains("update tickwheel-durable"), "{command}: {}", ran.err);
    }
    // A newer version that this program may still work with.
    set(99, 1);
    shop.run(&["list"]).ended(1);
    let told = format!("sqlite:shop.db is up to date: version {SCHEMA_VERSION} or newer\n");
    assert_eq!(shop.run(&["migrate"]).ended(0).out, told);
}

#[test]
fn sql_is_printed_for_a_tool_of_ones_own() {
    let shop = Shop::empty();
    let all = shop.run(&["migrate", "--print"]).ended(0).out;
    let file = rusqlite::Connection::open(shop.folder.join("shop.db")).expect("a file");
    file.execute_batch(&all).expect("it is valid");
    shop.run(&["migrate", "--check"]).ended(0);
    let from = (SCHEMA_VERSION - 1).to_string();
    let last = shop.run(&["migrate", "--print", "--from", &from]).ended(0).out;
    assert!(last.len() < all.len() && all.ends_with(&last));
    let of = ["migrate", "--print", "--database", "postgres://me:s3cret@127.0.0.1:1/shop"];
    assert!(shop.run(&of).ended(0).out.contains("CREATE FUNCTION"), "no server is asked");
}

#[test]
fn an_output_that_nobody_reads_is_silent() {
    let shop = Shop::new();
    let new = |number: u32| NewTimer::new("mail", format!("{number:0900}"), HOUR);
    shop.timers()
        .schedule_all(&(0..1000).map(new).collect::<Vec<_>>())
        .expect("they are scheduled");
    let mut command = shop.command(&["list", "--all", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut begin = [0; 10];
    child.stdout.take().expect("a pipe").read_exact(&mut begin).expect("it prints");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = shop.command(&["list"]).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(5));
        assert!(String::from_utf8_lossy(&output.stderr).contains("could not be written"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
        let output = shop.command(&["cancel", "mail", "x"]).stderr(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "nobody has to be told");
    }
}

#[test]
fn no_password_is_printed() {
    let shop = Shop::empty();
    for url in [
        "postgres://me:s3cret@127.0.0.1:1/shop",
        "postgres://me:s3cret@127.0.0.1:1/shop?sslmode=perhaps",
        "postgres://me:s3cret?x@127.0.0.1:1/shop",
        "postgres://me:s3cret/x@127.0.0.1:1/shop",
        "postgres://me:x#s3cret@127.0.0.1:port/shop",
        "postgres://me:x&s3cret=1@127.0.0.1:1/shop",
        "postgres://me:x@y?s3cret=1@127.0.0.1:1/shop",
        "postgres://me:x?schema=s3cret@127.0.0.1:1/shop",
        "postgres://me:my s3cret@127.0.0.1:1/shop",
        "postgres://me:my@s3cret@127.0.0.1:1/shop",
        "postgres://me:my\ns3cret@127.0.0.1:1/shop",
        "host=127.0.0.1 port=1 password='my s3cret'",
        "host=127.0.0.1 port=1 password = 'top s3cret' user=me",
        "postgres://127.0.0.1:1/shop?password=s3cret&port=x",
        "mysql://me:s3cret@127.0.0.1/shop",
    ] {
        for arguments in
            [&["list"][..], &["--help"], &["migrate"], &["list", url], &["bench"], &[url]]
        {
            let mut command = shop.command(arguments);
            let output = command.env("DATABASE_URL", url).output().expect("it runs");
            for text in [&output.stdout, &output.stderr] {
                let text = String::from_utf8_lossy(text);
                assert!(!text.contains("s3cret"), "{arguments:?} of {url}: {text}");
            }
        }
    }
}

/// Returns a shop in a schema of its own.
pub(crate) fn in_schema(server: &Server, schema: &str) -> Shop {
    let mut client = Client::connect(server.url(), NoTls).expect("it connects");
    client.batch_execute(&format!("CREATE SCHEMA {schema}")).expect("a schema");
    let join = if server.url().contains('?') { '&' } else { '?' };
    Shop::at(format!("{}{join}schema={schema}", server.url()))
}

#[test]
fn on_postgresql_too() {
    let server = match Server::private() {
        Ok(server) => server,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let shop = in_schema(&server, "timers");
    let mut client = Client::connect(server.url(), NoTls).expect("it connects");
    shop.run(&["schedule", "mail", "4711"]).ended(0);
    shop.run(&["schedule", "note", "x", "--after", "1h", "--payload", "pears"]).ended(0);
    shop.work("it is away");
    let ran = shop.run(&["list"]).ended(0);
    assert!(ran.out.contains("it is away") && ran.out.contains("in 60 min"), "{}", ran.out);
    assert!(shop.run(&["show", "mail", "4711"]).ended(0).out.contains("OUTCOME"));
    let counts = shop.run(&["counts", "--json"]).ended(0).json();
    assert_eq!((&counts[0]["dead"], &counts[0]["last_hour"]["failed"]), (&1.into(), &1.into()));
    shop.run(&["set-payload", "note", "x", "--payload", "plums"]).ended(0);
    assert_eq!(shop.run(&["show", "note", "x", "--payload"]).ended(0).out, "plums");
    shop.run(&["reset", "note", "x", "--after", "2h"]).ended(0);
    shop.run(&["requeue", "mail", "4711", "--after", "2h"]).ended(0);
    shop.run(&["cancel", "--kind", "note", "--prefix", "x", "--all", "--yes"]).ended(0);
    shop.run(&["top"]).ended(0);
    let bench = ["bench", "--timers", "200", "--over", "100ms", "--yes", "--json"];
    assert_eq!(shop.run(&bench).ended(0).json()[0]["run"], 200);

    // Two shards, each with a part.
    client.batch_execute("CREATE SCHEMA more").expect("a schema");
    let more = shop.url.replace("schema=timers", "schema=more");
    let shards = ["--database", &*shop.url, "--database", &*more];
    let on_both = |arguments: &[&str]| shop.run(&[arguments, &shards].concat());
    on_both(&["migrate"]).ended(0);
    for key in 0..20 {
        on_both(&["schedule", "note", &key.to_string(), "--after", "1h"]).ended(0);
    }
    let notes = on_both(&["list", "--kind", "note", "--json"]).ended(0).json();
    assert!(notes.len() == 20 && notes.iter().any(|of| of["shard"] == 1), "{notes:?}");
    assert_eq!(
        on_both(&["cancel", "--kind", "note", "--all", "--yes"]).ended(0).out,
        "cancelled 20\n"
    );

    // A role without rights.
    client
        .batch_execute(
            "CREATE ROLE guest LOGIN PASSWORD 's3cret'; GRANT USAGE ON SCHEMA timers TO guest",
        )
        .expect("a role");
    let guest = shop.url.replace("postgres://postgres@", "postgres://guest:s3cret@");
    let ran = shop.run(&["list", "--database", &guest]).ended(4);
    assert!(ran.err.contains("permission denied") && ran.err.contains("grants"), "{}", ran.err);
    assert!(!ran.err.contains("s3cret"));
    let ran = shop.run(&["migrate", "--database", &guest.replace("=timers", "=other")]).ended(4);
    assert!(ran.err.contains("this role may not make the tables"), "{}", ran.err);
    let nobody = shop.url.replace("postgres://postgres@", "postgres://nobody@");
    let nowhere = shop.url.replace("/postgres?", "/nowhere?");
    for lasting in [nobody, nowhere] {
        let ran = shop.run(&["list", "--database", &lasting]).ended(4);
        assert!(ran.err.contains("does not exist\nCheck the address"), "{}", ran.err);
    }
    let empty = shop.url.replace("schema=timers", "schema=public");
    let ran = shop.run(&["list", "--database", &empty]).ended(4);
    assert!(ran.err.contains("no tables"), "{}", ran.err);

    match server.with_tls() {
        Ok((port, root)) => {
            let url = format!(
                "postgres://postgres@localhost:{port}/postgres?schema=timers&sslmode=verify-full"
            );
            let trusted = format!("{url}&sslrootcert={}", root.display());
            assert!(shop.run(&["list", "--database", &trusted]).ended(0).out.contains("4711"));
            let ran = shop.run(&["list", "--database", &url]).ended(3);
            assert!(ran.err.contains("certificate"), "{}", ran.err);
        }
        Err(reason) => eprintln!("TLS: skipped: {reason}"),
    }

    server.end();
    shop.run(&["list"]).ended(3);
}
