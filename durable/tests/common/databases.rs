//! Stores for tests: a SQLite file, and a schema of a PostgreSQL server.

#![allow(dead_code, reason = "each of them uses a part of it")]

use std::env;
use std::fs;
use std::io::{self, Write};
use std::panic;
use std::path::PathBuf;
use std::slice;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel_durable::Timers;

use super::common;
use super::server::{Server, new_name};

/// A database without any tables of ours.
pub(crate) enum Database<'a> {
    File(PathBuf),
    Schema { server: &'a Server, name: String },
}

impl Database<'_> {
    pub(crate) fn file() -> Database<'static> {
        Database::File(env::temp_dir().join(new_name("test") + ".sqlite3"))
    }

    /// A schema of its own, so that no other tables are touched.
    pub(crate) fn schema(server: &Server) -> Database<'_> {
        let name = new_name("test");
        execute_on(server.url(), &format!("CREATE SCHEMA {name}"));
        Database::Schema { server, name }
    }

    /// Returns another one beside it.
    pub(crate) fn another(&self) -> Database<'_> {
        match self {
            Database::File(_) => Database::file(),
            Database::Schema { server, .. } => Database::schema(server),
        }
    }

    /// The address for [`Timers::open`].
    pub(crate) fn address(&self) -> String {
        match self {
            Database::File(path) => format!("sqlite:{}", path.display()),
            Database::Schema { .. } => self.url(),
        }
    }

    /// The address for a client of PostgreSQL.
    pub(crate) fn url(&self) -> String {
        match self {
            Database::File(path) => panic!("{} is a file", path.display()),
            Database::Schema { server, name } => server.url_of(name),
        }
    }

    pub(crate) fn open(&self) -> Timers {
        Timers::open(&self.address()).expect("it opens")
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self, Database::File(_))
    }

    /// Executes SQL directly, and not through the store.
    pub(crate) fn execute(&self, sql: &str) {
        self.attempt(sql).expect("valid SQL");
    }

    /// Executes SQL directly, and returns what the database says of it if it is refused.
    pub(crate) fn attempt(&self, sql: &str) -> Result<(), String> {
        match self {
            Database::File(path) => {
                let connection = rusqlite::Connection::open(path).expect("it opens");
                connection.busy_timeout(common::PATIENCE).expect("a timeout");
                connection.execute_batch(sql).map_err(|error| error.to_string())
            }
            Database::Schema { .. } => {
                client(&self.url()).batch_execute(sql).map_err(|error| refusal(&error))
            }
        }
    }

    /// Executes SQL that begins a transaction. What is returned commits it.
    pub(crate) fn begin(&self, sql: &str) -> Box<dyn FnOnce()> {
        match self {
            Database::File(path) => {
                let connection = rusqlite::Connection::open(path).expect("it opens");
                connection.busy_timeout(common::PATIENCE).expect("a timeout");
                connection.execute_batch(sql).expect("valid SQL");
                Box::new(move || connection.execute_batch("COMMIT").expect("it commits"))
            }
            Database::Schema { .. } => {
                let mut client = client(&self.url());
                client.batch_execute(sql).expect("valid SQL");
                Box::new(move || client.batch_execute("COMMIT").expect("it commits"))
            }
        }
    }

    /// Returns false if somebody is in a transaction that writes in the file.
    pub(crate) fn is_free(&self) -> bool {
        let Database::File(path) = self else { return true };
        let connection = rusqlite::Connection::open(path).expect("it opens");
        connection.busy_timeout(Duration::from_millis(50)).expect("a timeout");
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }

    /// Returns the number that SQL selects.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        match self {
            Database::File(path) => {
                let connection = rusqlite::Connection::open(path).expect("it opens");
                connection.busy_timeout(common::PATIENCE).expect("a timeout");
                connection.query_row(sql, [], |row| row.get(0)).expect("valid SQL")
            }
            Database::Schema { .. } => {
                client(&self.url()).query_one(sql, &[]).expect("valid SQL").get(0)
            }
        }
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        match self {
            Database::File(path) => {
                for suffix in ["", "-wal", "-shm"] {
                    let mut name = path.clone().into_os_string();
                    name.push(suffix);
                    _ = fs::remove_file(name);
                }
            }
            Database::Schema { server, name } => {
                execute_on(server.url(), &format!("DROP SCHEMA {name} CASCADE"));
            }
        }
    }
}

pub(crate) fn client(url: &str) -> postgres::Client {
    postgres::Client::connect(url, postgres::NoTls).expect("it connects")
}

/// What a server says of a statement that it refuses, with its advice.
pub(crate) fn refusal(error: &postgres::Error) -> String {
    let Some(said) = error.as_db_error() else { return error.to_string() };
    format!("{}: {}", said.message(), said.hint().unwrap_or_default())
}

fn execute_on(url: &str, sql: &str) {
    client(url).batch_execute(sql).expect("valid SQL");
}

/// A check and its name.
pub(crate) type Check = (&'static str, fn(&Database<'_>));

/// So many checks run at the same time on a server. They wait for most of their time.
const SIDE_BY_SIDE: usize = 4;

/// Runs checks on a PostgreSQL server side by side, and then others one after another, which count on the time of the machine. Or
/// says why not.
pub(crate) fn on_a_server(of: &str, checks: &[Check], alone: &[Check]) {
    let server = match Server::find() {
        Ok(server) => server,
        Err(reason) => return say(&format!("{of}, with PostgreSQL: skipped: {reason}")),
    };
    let version: String =
        client(server.url()).query_one("SELECT version()", &[]).expect("a version").get(0);
    println!("with {version}");
    let run = |server: &Server, check: fn(&Database<'_>)| check(&Database::schema(server));
    side_by_side(&server, checks, run);
    one_by_one(&server, alone, run);
}

/// Runs checks that have names, several at a time. Each has a database of a private server to itself, so that it shares no more
/// than the machine. On a server of somebody else's they run one after another.
pub(crate) fn side_by_side<C: Copy + Sync>(
    server: &Server,
    checks: &[(&'static str, C)],
    run: impl Fn(&Server, C) + Sync,
) {
    let only = env::var("TICKWHEEL_ONLY").unwrap_or_default();
    let checks: Vec<_> = checks.iter().filter(|(name, _)| name.contains(&only)).collect();
    let own = |_| {
        let name = new_name("own");
        execute_on(server.url(), &format!("CREATE DATABASE {name}"));
        server.by_way_of(&name)
    };
    let servers: Vec<_> = if server.is_private() {
        (0..SIDE_BY_SIDE.min(checks.len())).map(own).collect()
    } else {
        vec![server.clone()]
    };
    let left = Mutex::new(checks.into_iter());
    thread::scope(|scope| {
        for server in &servers {
            let (left, run) = (&left, &run);
            scope.spawn(move || {
                while let Some((name, check)) = left.lock().ok().and_then(|mut left| left.next()) {
                    let begin = Instant::now();
                    // A panic says the name of its thread.
                    let thread = thread::Builder::new().name((*name).to_owned());
                    let check = thread.spawn_scoped(scope, || run(server, *check));
                    if let Err(panic) = check.expect("a thread").join() {
                        let _left = left.lock(); // which is poisoned, so that nobody begins another one
                        panic::resume_unwind(panic);
                    }
                    println!("{name}: {:?}", begin.elapsed());
                }
            });
        }
    });
}

/// Like `side_by_side`, one after another.
pub(crate) fn one_by_one<C: Copy + Sync>(
    server: &Server,
    checks: &[(&'static str, C)],
    run: impl Fn(&Server, C) + Sync,
) {
    checks.iter().for_each(|check| side_by_side(server, slice::from_ref(check), &run));
}

/// Prints to the terminal directly, because the test harness hides the output of a test that passes.
pub(crate) fn say(line: &str) {
    _ = writeln!(io::stderr(), "{line}");
}

/// How far two times are apart.
pub(crate) fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// Makes a test of each function for SQLite, and one of all of them for PostgreSQL, which share one server. Those behind the
/// semicolon have the server to themselves.
#[macro_export]
macro_rules! on_both {
    ($of:literal: $($name:ident,)* $(; $($one:ident,)*)?) => {
        mod with_sqlite {
            $(#[test] fn $name() { super::$name(&super::databases::Database::file()) })*
            $($(#[test] fn $one() { super::$one(&super::databases::Database::file()) })*)?
        }
        #[test]
        fn with_postgresql() {
            databases::on_a_server(
                $of,
                &[$((stringify!($name), $name),)*],
                &[$($((stringify!($one), $one),)*)?],
            );
        }
    };
}
