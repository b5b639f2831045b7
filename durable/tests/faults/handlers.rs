//! The handlers of all workers in these tests, and the book in which they write what they have done.
//!
//! The book is the table `effects` in the timers' own database, with the due time of a run and the database's time at
//! which it was booked. Timers of the kind `plain` have a plain handler, which books on a connection of its own. Those of
//! the kind `tx` have a handler in the timers' transaction, which books in that. Both do as the payload says.
//!
//! The ledger is a file outside of that database. If a place has one, handlers note each start in it before they do anything
//! else. What was written to a file outlasts the process that has written it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::sqlite::Sqlite;
use tickwheel_durable::{
    Failure, HandlerResult, NewTimer, Retry, Run, Store, Timers, When, WorkerBuilder,
};

use super::common::PATIENCE;
use super::databases::{Database, client};
use super::process::{Gate, Point};
use super::server::new_name;

/// A database, as another process may find it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// For [`Timers::open`].
    pub(crate) address: String,
    /// The path of the file, or what a client of PostgreSQL connects to.
    pub(crate) direct: String,
    /// The path of the ledger, or nothing.
    pub(crate) ledger: String,
}

impl Place {
    /// Takes a database, and puts an empty book in it.
    pub(crate) fn with_book(database: &Database<'_>) -> Place {
        database.execute(
            "CREATE TABLE effects (kind TEXT NOT NULL, key TEXT NOT NULL, due BIGINT NOT NULL, at BIGINT NOT NULL)",
        );
        let direct = match database {
            Database::File(path) => path.display().to_string(),
            Database::Schema { .. } => database.url(),
        };
        Place { address: database.address(), direct, ledger: String::new() }
    }

    fn is_sqlite(&self) -> bool {
        self.address.starts_with("sqlite:")
    }

    pub(crate) fn store(&self) -> Box<dyn Store> {
        if self.is_sqlite() {
            Box::new(Sqlite::new(&self.direct))
        } else {
            Box::new(Postgres::new(&self.direct).expect("an address"))
        }
    }
}

/// Whose handlers they are.
pub(crate) enum Role {
    /// Those of a process that may be killed, and holds or aborts where it is told to.
    Process(Arc<Gate>),
    /// Those of a worker in the test itself, which never holds.
    Survivor,
}

impl Role {
    fn gate(&self) -> Option<Arc<Gate>> {
        match self {
            Role::Process(gate) => Some(Arc::clone(gate)),
            Role::Survivor => None,
        }
    }
}

const INTO_FILE: &str = "INSERT INTO effects (kind, key, due, at) VALUES (?1, ?2, ?3, ?4)";
const INTO_TABLE: &str = "INSERT INTO effects (kind, key, due, at)
    VALUES ($1, $2, $3, (extract(epoch FROM tickwheel_now()) * 1000000)::bigint)";

/// The starts of all handlers. Its `Drop` removes the file.
pub(crate) struct Ledger(PathBuf);

/// A start: the kind, the key, and the number of the attempt that the handler was told.
pub(crate) type Start = (String, String, u32);

impl Ledger {
    pub(crate) fn of(place: &mut Place) -> Ledger {
        let path = std::env::temp_dir().join(new_name("ledger"));
        place.ledger = path.display().to_string();
        Ledger(path)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        let start = |line: &str| {
            let [kind, key, attempt] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line:?}")
            };
            (kind.to_owned(), key.to_owned(), attempt.parse().expect("a number"))
        };
        self.lines().iter().map(|line| start(line)).collect()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// Notes a start with one call of the system.
fn note(mut ledger: &File, run: &Run<'_>) {
    let line = format!("{}\t{}\t{}\n", run.kind(), run.key(), run.attempt());
    assert_eq!(ledger.write(line.as_bytes()).expect("it is written"), line.len());
}

/// Microseconds since 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_micros()).expect("a time of our age")
}

fn book_in_file(client: &rusqlite::Connection, run: &Run<'_>) -> Result<(), Failure> {
    let now = micros(SystemTime::now());
    client.execute(INTO_FILE, (run.kind(), run.key(), micros(run.due()), now))?;
    Ok(())
}

fn book_in_table(client: &mut impl postgres::GenericClient, run: &Run<'_>) -> Result<(), Failure> {
    client.execute(INTO_TABLE, &[&run.kind(), &run.key(), &micros(run.due())])?;
    Ok(())
}

/// A connection of the plain handlers' own. It is opened again after an error.
enum Client {
    File(rusqlite::Connection),
    Server(postgres::Client),
}

impl Client {
    fn open(place: &Place) -> Result<Client, Failure> {
        if !place.is_sqlite() {
            return Ok(Client::Server(postgres::Client::connect(&place.direct, postgres::NoTls)?));
        }
        let client = rusqlite::Connection::open(&place.direct)?;
        client.busy_timeout(PATIENCE)?;
        Ok(Client::File(client))
    }

    fn book(&mut self, run: &Run<'_>) -> Result<(), Failure> {
        match self {
            Client::File(client) => book_in_file(client, run),
            Client::Server(client) => book_in_table(client, run),
        }
    }
}

/// What the payload says.
///
/// - `fail 2`: the first two attempts fail before they book.
/// - `late 1`: so does the first, and the gap behind it is long enough to kill the process in it.
/// - `slow`: takes a few milliseconds more at the end of the handler, so that a kill is likely to come there.
/// - `quiet`: takes as long, and a plain handler books nothing.
/// - `hold`: waits at the end of the handler, in a worker process.
/// - `abort`: takes the whole process down, if it is a worker process.
fn begin(run: &Run<'_>, gate: Option<&Gate>, ledger: Option<&File>) -> HandlerResult {
    ledger.into_iter().for_each(|ledger| note(ledger, run));
    let payload = std::str::from_utf8(run.payload())?;
    if payload == "abort" && gate.is_some() {
        std::process::abort();
    }
    let count = |name| payload.strip_prefix(name).and_then(|count| count.parse().ok()).unwrap_or(0);
    let failure = Failure::new("as it was told");
    match run.attempt() {
        attempt if attempt <= count("fail ") => Err(failure),
        attempt if attempt <= count("late ") => Err(failure.retry_after(LATER)),
        _ => Ok(()),
    }
}

fn end(run: &Run<'_>, gate: Option<&Gate>) {
    match run.payload() {
        b"slow" | b"quiet" => thread::sleep(Duration::from_millis(8)),
        b"hold" => gate.into_iter().for_each(|gate| gate.pass(Point::InHandler)),
        _ => {}
    }
}

/// A worker with both handlers, which looks often, so that nobody waits for the minute's look.
pub(crate) fn equipped(timers: &Timers, place: &Place, role: &Role) -> WorkerBuilder {
    let retry = Retry::attempts(10_000).gaps(SHORT, 1.0, SHORT);
    let worker = timers.worker().retry(retry).threads(THREADS).poll_every(POLL).history(PATIENCE);
    let open = || OpenOptions::new().append(true).create(true).open(&place.ledger);
    let ledger = (!place.ledger.is_empty()).then(|| Arc::new(open().expect("it opens")));
    let worker = {
        let (place, gate, ledger) = (place.clone(), role.gate(), ledger.clone());
        let client = Mutex::new(None);
        worker.handle("plain", move |run| {
            begin(run, gate.as_deref(), ledger.as_deref())?;
            if run.payload() != b"quiet" {
                let mut slot = client.lock().expect("no panic");
                let mut open = slot.take().map_or_else(|| Client::open(&place), Ok)?;
                open.book(run)?;
                *slot = Some(open);
            }
            end(run, gate.as_deref());
            Ok(())
        })
    };
    let gate = role.gate();
    if place.is_sqlite() {
        worker.handle_in_sqlite("tx", move |run, transaction| {
            begin(run, gate.as_deref(), ledger.as_deref())?;
            book_in_file(transaction, run)?;
            end(run, gate.as_deref());
            Ok(())
        })
    } else {
        worker.handle_in_postgres("tx", move |run, transaction| {
            begin(run, gate.as_deref(), ledger.as_deref())?;
            book_in_table(transaction, run)?;
            end(run, gate.as_deref());
            Ok(())
        })
    }
}

/// The kinds, and how handlers of each book: in a transaction exactly once.
pub(crate) const KINDS: [&str; 2] = ["plain", "tx"];

pub(crate) const THREADS: usize = 2;

const LATER: Duration = Duration::from_secs(1);

/// The gap behind a failed attempt.
const SHORT: Duration = Duration::from_millis(5);

const POLL: Duration = Duration::from_millis(20);

pub(crate) fn new(kind: &str, key: &str, when: impl Into<When>) -> NewTimer {
    NewTimer::new(kind, key, when)
}

/// How often each timer is in the book, by its kind and key.
pub(crate) struct Effects(BTreeMap<(String, String), i64>);

impl Effects {
    pub(crate) fn in_book(database: &Database<'_>) -> Effects {
        let sql = "SELECT kind, key, count(*) FROM effects GROUP BY kind, key";
        Effects(match database {
            Database::File(path) => {
                let connection = rusqlite::Connection::open(path).expect("it opens");
                connection.busy_timeout(PATIENCE).expect("a timeout");
                let mut rows = connection.prepare(sql).expect("valid SQL");
                let row = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?), row.get(2)?));
                rows.query_map([], row).expect("rows").map(|row| row.expect("a row")).collect()
            }
            Database::Schema { .. } => {
                let rows = client(&database.url()).query(sql, &[]).expect("valid SQL");
                rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
            }
        })
    }

    pub(crate) fn of(&self, kind: &str, key: &str) -> i64 {
        self.0.get(&(kind.to_owned(), key.to_owned())).copied().unwrap_or(0)
    }
}

/// Counts the effects of one timer.
pub(crate) fn effects(database: &Database<'_>, kind: &str, key: &str) -> i64 {
    Effects::in_book(database).of(kind, key)
}

/// No effect was booked before its time.
pub(crate) fn nothing_was_early(database: &Database<'_>) {
    assert_eq!(database.number("SELECT count(*) FROM effects WHERE at < due"), 0, "early");
}
