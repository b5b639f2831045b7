//! The example `delayed_messages`: its store, and the program itself, which the tests kill at any moment.
//! They always run with SQLite, and also with PostgreSQL if there is a server: the one that `DATABASE_URL` names, or a
//! private one, started from the installed programs.

#![allow(clippy::doc_markdown, reason = "SQLite and PostgreSQL are names")]

mod common;
#[path = "delayed_messages/program.rs"]
mod program;
#[path = "delayed_messages/server.rs"]
mod server;
#[path = "../examples/delayed_messages/store.rs"]
mod store;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::Random;
use program::Program;
use server::Server;
use store::{Delivery, Message, Postgres, Sqlite, Store};

/// A database without any tables.
pub(crate) enum Database<'a> {
    File(PathBuf),
    Schema { server: &'a Server, name: String },
}

/// The number of the next database of this process.
fn new_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("tickwheel_test_{}_{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Database<'_> {
    fn file() -> Database<'static> {
        Database::File(env::temp_dir().join(format!("{}.sqlite3", new_name())))
    }

    /// A schema of its own, so that no other tables are touched.
    fn schema(server: &Server) -> Database<'_> {
        let database = Database::Schema { server, name: new_name() };
        if let Database::Schema { server, name } = &database {
            execute_on(server.url(), &format!("CREATE SCHEMA {name}"));
        }
        database
    }

    fn open(&self) -> Box<dyn Store> {
        match self {
            Database::File(path) => Box::new(Sqlite::open(path).expect("it opens")),
            Database::Schema { server, name } => {
                Box::new(Postgres::connect(&server.url_of(name)).expect("it connects"))
            }
        }
    }

    /// Executes SQL directly, and not through the store.
    fn execute(&self, sql: &str) {
        match self {
            Database::File(path) => {
                let connection = rusqlite::Connection::open(path).expect("it opens");
                connection.busy_timeout(common::PATIENCE).expect("a timeout");
                connection.execute_batch(sql).expect("valid SQL");
            }
            Database::Schema { server, name } => execute_on(&server.url_of(name), sql),
        }
    }

    fn start(&self) -> Program {
        match self {
            Database::File(path) => Program::start(&[path.as_os_str()], None),
            Database::Schema { server, name } => Program::start(&[], Some(&server.url_of(name))),
        }
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        match self {
            Database::File(path) => _ = fs::remove_file(path),
            Database::Schema { server, name } => {
                execute_on(server.url(), &format!("DROP SCHEMA {name} CASCADE"));
            }
        }
    }
}

fn execute_on(url: &str, sql: &str) {
    let mut client = postgres::Client::connect(url, postgres::NoTls).expect("it connects");
    client.batch_execute(sql).expect("valid SQL");
}

// ----- the store ---------------------------------------------------------------------------

fn message(id: i64, send_at: i64) -> Message {
    Message { id, text: format!("message {id}"), send_at }
}

fn add(store: &mut dyn Store, messages: impl IntoIterator<Item = Message>) {
    for message in messages {
        assert!(store.add(&message).expect("it is added"), "{message:?} is new");
    }
}

fn deliver(store: &mut dyn Store, now: i64, at_most: u32) -> Vec<i64> {
    let sent = store.deliver_due(now, at_most, "me").expect("it delivers");
    sent.into_iter().map(|message| message.id).collect()
}

fn delivered(database: &Database<'_>) -> Vec<i64> {
    let deliveries = database.open().deliveries().expect("a list");
    deliveries.into_iter().map(|delivery| delivery.message).collect()
}

fn waiting(database: &Database<'_>) -> u64 {
    database.open().waiting().expect("a number")
}

fn what_is_due_comes_in_order_of_send_time(database: &Database<'_>) {
    let mut store = database.open();
    let times = [(1, 300), (2, 100), (3, 200), (4, 100), (5, 301)];
    add(&mut *store, times.map(|(id, send_at)| message(id, send_at)));
    assert_eq!(deliver(&mut *store, 99, 10), []);
    assert_eq!(deliver(&mut *store, 200, 10), [2, 4, 3]);
    assert_eq!(store.waiting().expect("a number"), 2);
    assert_eq!(store.deliver_due(300, 10, "me").expect("it delivers"), [message(1, 300)]);
}

fn it_sends_no_more_than_it_is_told_to_and_each_once(database: &Database<'_>) {
    let mut store = database.open();
    add(&mut *store, (1..=5).map(|id| message(id, -id)));
    assert_eq!(deliver(&mut *store, 0, 2), [5, 4]);
    assert_eq!(deliver(&mut *store, 0, 2), [3, 2]);
    assert_eq!(deliver(&mut *store, 0, 2), [1]);
    assert_eq!(deliver(&mut *store, 0, 2), []);
    assert_eq!((store.waiting().expect("a number"), delivered(database)), (0, vec![1, 2, 3, 4, 5]));
}

fn an_id_is_taken_once_sent_or_not(database: &Database<'_>) {
    let mut store = database.open();
    add(&mut *store, [message(1, 10)]);
    assert!(!store.add(&message(1, 20)).expect("no error"));
    assert_eq!(deliver(&mut *store, 10, 9), [1]);
    assert!(!store.add(&message(1, 30)).expect("no error"));
    assert_eq!(deliver(&mut *store, 40, 9), []);
    let sent = Delivery { message: 1, sent_at: 10, sent_by: "me".to_owned() };
    assert_eq!(store.deliveries().expect("a list"), [sent]);
}

fn clear_forgets_everything(database: &Database<'_>) {
    let mut store = database.open();
    add(&mut *store, [message(1, 10), message(2, 20)]);
    assert_eq!(deliver(&mut *store, 10, 9), [1]);
    store.clear().expect("it clears");
    assert_eq!((store.waiting().expect("a number"), delivered(database)), (0, vec![]));
    add(&mut *store, [message(1, 10)]);
}

fn the_database_has_a_clock(database: &Database<'_>) {
    let mut store = database.open();
    let here = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let there = u128::try_from(store.now().expect("a time")).expect("after 1970");
    // The clock of another machine need not be exact.
    assert!(here.abs_diff(there) < 60_000, "{here} here, {there} there");
    thread::sleep(Duration::from_millis(20));
    assert!(u128::try_from(store.now().expect("a time")).expect("after 1970") > there);
}

fn a_delivery_that_fails_leaves_nothing(database: &Database<'_>) {
    let mut store = database.open();
    add(&mut *store, [message(1, 10), message(2, 20), message(3, 30)]);
    // The second one cannot be sent: it has a delivery already.
    database.execute("INSERT INTO tickwheel_deliveries VALUES (2, 0, 'somebody')");
    assert!(store.deliver_due(99, 9, "me").is_err());
    assert_eq!((store.waiting().expect("a number"), delivered(database)), (3, vec![2]));
    // The connection can still be used.
    database.execute("DELETE FROM tickwheel_deliveries");
    assert_eq!(deliver(&mut *store, 99, 9), [1, 2, 3]);
}

fn connections_at_the_same_time_never_send_the_same(database: &Database<'_>) {
    add(&mut *database.open(), (1..=300).map(|id| message(id, id)));
    let work = || {
        let (mut store, mut mine) = (database.open(), Vec::new());
        while store.waiting().expect("a number") > 0 {
            mine.extend(deliver(&mut *store, 1000, 3));
        }
        mine
    };
    let mut all = thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(work));
        threads.map(|thread| thread.join().expect("no error")).concat()
    });
    all.sort_unstable();
    assert_eq!((&all, delivered(database)), (&(1..=300).collect(), all.clone()));
}

// ----- the program -------------------------------------------------------------------------

/// The first twelve messages are the program's own, unless they are there already.
const OWN: i64 = 12;

/// Puts those in, due in an hour: as long as they wait, the program goes on.
fn keep_going(store: &mut dyn Store) {
    let in_an_hour = store.now().expect("a time") + 3_600_000;
    add(store, (1..=OWN).map(|id| message(id, in_an_hour)));
}

/// Makes everything due, so that the program ends.
fn let_it_end(database: &Database<'_>) {
    database.execute("UPDATE tickwheel_messages SET send_at = 0 WHERE NOT sent");
}

fn killed_at_any_moment_it_sends_each_message_once(database: &Database<'_>) {
    let mut store = database.open();
    keep_going(&mut *store);
    let (mut all, mut told) = ((1..=OWN).collect::<Vec<_>>(), Vec::new());
    let mut random = Random(7);
    for round in 1..=8 {
        let (now, ids) = (store.now().expect("a time"), 100 * round..100 * (round + 1));
        all.extend(ids.clone());
        add(&mut *store, ids.zip(now..).map(|(id, send_at)| message(id, send_at)));
        let mut program = database.start();
        program.wait_for_a_delivery();
        thread::sleep(Duration::from_micros(random.below(40_000)));
        told.extend(program.kill());
    }
    let_it_end(database);
    told.extend(database.start().wait_for_the_end());
    assert_eq!((waiting(database), delivered(database)), (0, all.clone()));
    // After a kill some ids that were sent may be missing in the output. No id is printed twice.
    let different: BTreeSet<_> = told.iter().copied().collect();
    assert_eq!(different.len(), told.len(), "{told:?}");
    assert!(different.is_subset(&all.into_iter().collect()), "{told:?}");
}

fn two_processes_share_the_work(database: &Database<'_>) {
    let mut store = database.open();
    keep_going(&mut *store);
    let mut programs = [database.start(), database.start()];
    programs.iter_mut().for_each(Program::wait_until_it_looks);
    let now = store.now().expect("a time");
    for count in 0.. {
        add(&mut *store, (1..=10).map(|n| message(1000 + 10 * count + n, now)));
        let senders: BTreeSet<_> =
            store.deliveries().expect("a list").into_iter().map(|sent| sent.sent_by).collect();
        if senders.len() == 2 {
            break;
        }
        assert!(count < 2000, "one does it all: {senders:?}");
        thread::sleep(Duration::from_millis(5));
    }
    let_it_end(database);
    let mut told = programs.map(|mut program| program.wait_for_the_end()).concat();
    told.sort_unstable();
    assert_eq!((waiting(database), delivered(database)), (0, told));
}

fn the_first_run_brings_its_messages(database: &Database<'_>) {
    let mut first = database.start();
    first.wait_until_it_looks();
    first.kill();
    let sent = delivered(database).len() as u64;
    assert_eq!(waiting(database) + sent, OWN as u64);
    let_it_end(database);
    database.start().wait_for_the_end();
    assert_eq!((waiting(database), delivered(database)), (0, (1..=OWN).collect()));
    // Nothing is left to be sent.
    assert_eq!(database.start().wait_for_the_end(), []);
}

fn an_error_ends_it_with_advice(database: &Database<'_>) {
    keep_going(&mut *database.open());
    let mut program = database.start();
    program.wait_until_it_looks();
    database.execute("ALTER TABLE tickwheel_deliveries RENAME TO gone");
    let_it_end(database);
    let complaint = program.wait_for_failure();
    assert!(complaint.contains("tickwheel_deliveries"), "{complaint}");
    assert!(complaint.contains("run this again"), "{complaint}");
    // Nothing is lost, as the program says.
    database.execute("ALTER TABLE gone RENAME TO tickwheel_deliveries");
    assert_eq!(database.start().wait_for_the_end(), (1..=OWN).collect::<Vec<_>>());
}

// ----- with which database -----------------------------------------------------------------

/// Makes a test of each function for SQLite, and a list of all of them for PostgreSQL, which share one server.
macro_rules! checks {
    ($($name:ident,)*) => {
        mod with_sqlite {
            $(#[test] fn $name() { super::$name(&super::Database::file()) })*
        }
        const CHECKS: &[(&str, fn(&Database<'_>))] = &[$((stringify!($name), $name),)*];
    };
}

checks! {
    what_is_due_comes_in_order_of_send_time,
    it_sends_no_more_than_it_is_told_to_and_each_once,
    an_id_is_taken_once_sent_or_not,
    clear_forgets_everything,
    the_database_has_a_clock,
    a_delivery_that_fails_leaves_nothing,
    connections_at_the_same_time_never_send_the_same,
    killed_at_any_moment_it_sends_each_message_once,
    two_processes_share_the_work,
    the_first_run_brings_its_messages,
    an_error_ends_it_with_advice,
}

#[test]
fn with_postgresql() {
    let server = match Server::find() {
        Ok(server) => server,
        Err(reason) => return say(&format!("skipped: {reason}")),
    };
    println!("with {}", version(&server));
    for (name, check) in CHECKS {
        println!("{name}");
        check(&Database::schema(&server));
    }
    println!("what_another_has_locked_is_passed_over");
    what_another_has_locked_is_passed_over(&server);
}

fn version(server: &Server) -> String {
    let connected = postgres::Client::connect(server.url(), postgres::NoTls);
    let row = connected.expect("it connects").query_one("SELECT version()", &[]);
    row.expect("it has a version").get(0)
}

/// Prints to the terminal directly, because the test harness hides the output of a test that passes.
fn say(line: &str) {
    _ = writeln!(io::stderr(), "delayed_messages, with PostgreSQL: {line}");
}

/// A process neither waits for another one, nor takes the messages that the other one is sending.
fn what_another_has_locked_is_passed_over(server: &Server) {
    let database = Database::schema(server);
    let Database::Schema { name, .. } = &database else { unreachable!("it is one") };
    let mut store = database.open();
    add(&mut *store, (1..=4).map(|id| message(id, id)));
    let mut other =
        postgres::Client::connect(&server.url_of(name), postgres::NoTls).expect("it connects");
    other
        .batch_execute("BEGIN; SELECT * FROM tickwheel_messages WHERE id IN (1, 3) FOR UPDATE")
        .expect("it locks");
    assert_eq!(deliver(&mut *store, 9, 9), [2, 4]);
    assert_eq!(store.waiting().expect("a number"), 2);
    drop(other); // like a kill
    common::until("the server lets go of what the other had", || {
        database.open().deliver_due(9, 9, "me").expect("it delivers");
        waiting(&database) == 0
    });
    assert_eq!(delivered(&database), [1, 2, 3, 4]);
}

// ----- SQLite only -------------------------------------------------------------------------

#[test]
fn fresh_begins_anew() {
    let Database::File(path) = &Database::file() else { unreachable!("it is one") };
    let mut store = Sqlite::open(path).expect("it opens");
    add(&mut store, [message(100, 0), message(101, 0)]);
    assert_eq!(deliver(&mut store, 0, 1), [100]);
    let mut program = Program::start(&["--fresh".as_ref(), path.as_os_str()], None);
    program.wait_until_it_looks();
    program.kill();
    let sent = store.deliveries().expect("a list");
    assert!(sent.iter().all(|delivery| delivery.message <= OWN), "{sent:?}");
    assert_eq!(store.waiting().expect("a number") + sent.len() as u64, OWN as u64);
}

#[test]
fn what_is_no_database_is_said_to_be_none() {
    let folder = env::temp_dir();
    let complaint = Program::start(&[folder.as_os_str()], None).wait_for_failure();
    assert!(complaint.contains("Give the path of another file"), "{complaint}");
    let complaint = Program::start(&["--evry".as_ref()], None).wait_for_failure();
    assert!(complaint.contains("unknown: --evry\nusage:"), "{complaint}");
}
