//! What a worker stands on changes while it works: the tables, the clock, the room on the disk.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{Error, Filter, State, Timers, sqlite::Sqlite};

use super::common::{PATIENCE, until};
use super::databases::{Database, say};
use super::handlers::{Effects, KINDS, Place, Role, equipped, micros, new};
use super::process::Process;

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_millis(300);

/// Before this has passed, no look without a reason has helped.
const BEFORE_A_LOOK: Duration = Duration::from_secs(30);

// ----- the tables ----------------------------------------------------------------------------

pub(crate) fn a_worker_stops_when_the_tables_become_too_new(database: &Database<'_>) {
    const QUICK: usize = 100;
    const LATER: usize = 8;
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let (started, may_end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let worker = {
        let (started, may_end) = (Arc::clone(&started), Arc::clone(&may_end));
        timers
            .worker()
            .threads(1)
            .handle("plain", move |run| {
                if run.payload() == b"hold" {
                    started.fetch_add(1, Ordering::Relaxed);
                    until("it may end", || may_end.load(Ordering::Relaxed));
                }
                Ok(())
            })
            .lease(HOUR)
            .poll_every(Duration::from_millis(20))
            .on_error(move |error| _ = tell.send(matches!(error, Error::Schema(99))))
            .start(Scheduler::global())
            .expect("it starts")
    };
    // After many quick runs it claims more than it has threads for.
    let all: Vec<_> = (0..QUICK).map(|n| new("plain", &n.to_string(), NOW)).collect();
    timers.schedule_all(&all).expect("scheduled");
    until("the quick ones are done", || worker.stats().done == QUICK as u64);
    let all: Vec<_> =
        (0..LATER).map(|n| new("plain", &n.to_string(), NOW).payload("hold")).collect();
    timers.schedule_all(&all).expect("scheduled");
    until("one has started, and others are claimed", || {
        started.load(Ordering::Relaxed) == 1 && worker.stats().running > 1
    });
    database.execute("UPDATE tickwheel_schema SET version = 99, oldest = 99");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "it says why it stops");
    let of = |state| timers.list(&Filter::new().state(state)).expect("a list");
    until("it has given back what it has not started", || of(State::Waiting).len() == LATER - 1);
    assert!(of(State::Waiting).iter().all(|timer| timer.attempts == 0));
    assert_eq!(of(State::Running).len(), 1);
    may_end.store(true, Ordering::Relaxed);
    assert!(worker.stop(PATIENCE), "it has stopped by itself");
    assert!(of(State::Running).is_empty(), "the outcome of what had started is written");
    assert_eq!(started.load(Ordering::Relaxed), 1);
    let refused = Timers::open(&database.address()).expect_err("it is too new");
    assert!(matches!(refused, Error::Schema(99)), "{refused:?}");
}

// ----- the clock -----------------------------------------------------------------------------

/// The database's clock, which a test sets.
#[derive(Clone)]
struct Jumps {
    hours: Arc<AtomicU64>,
    /// The most hours that were ever set, or are about to be.
    most: Arc<AtomicU64>,
}

fn hours(count: &AtomicU64) -> Duration {
    Duration::from_secs(3600 * count.load(Ordering::Relaxed))
}

impl Jumps {
    fn new() -> Jumps {
        Jumps { hours: Arc::default(), most: Arc::default() }
    }

    fn open(&self, database: &Database<'_>) -> Timers {
        let Database::File(path) = database else { return database.open() };
        let offset = Arc::clone(&self.hours);
        let clock = move || SystemTime::now() + hours(&offset);
        Timers::with_store(Sqlite::with_wall_clock(path, clock)).expect("it opens")
    }

    fn set(&self, database: &Database<'_>, hours: u64) {
        self.most.fetch_max(hours, Ordering::Relaxed);
        self.hours.store(hours, Ordering::Relaxed);
        if let Database::Schema { .. } = database {
            database.execute(&format!(
                "CREATE OR REPLACE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS $$ SELECT clock_timestamp() + interval '{hours} hours' $$"
            ));
        }
    }

    /// Returns the latest time that the clock has ever shown.
    fn latest(&self) -> SystemTime {
        SystemTime::now() + hours(&self.most)
    }
}

pub(crate) fn jumps_of_the_clock_under_load_lose_nothing(database: &Database<'_>) {
    let place = Place::with_book(database);
    let jumps = Jumps::new();
    let timers = jumps.open(database);
    let early = Arc::new(AtomicU32::new(0));
    let workers = [(); 2].map(|()| {
        let (jumps, early) = (jumps.clone(), Arc::clone(&early));
        let worker = equipped(&jumps.open(database), &place, &Role::Survivor);
        let worker = worker.handle("clock", move |run| {
            early.fetch_add(u32::from(run.due() > jumps.latest()), Ordering::Relaxed);
            Ok(())
        });
        worker.lease(LEASE).start(Scheduler::global()).expect("it starts")
    });
    let mut count = 0;
    for offset in [1, 0, 3, 2, 2, 0, 4] {
        let next = Instant::now() + Duration::from_millis(120);
        while Instant::now() < next {
            for kind in ["plain", "tx", "clock"] {
                let delay = Duration::from_millis(count % 70);
                timers.schedule(&new(kind, &count.to_string(), delay)).expect("scheduled");
            }
            count += 1;
            thread::sleep(Duration::from_millis(3)); // the load
        }
        jumps.set(database, offset);
    }
    // What was scheduled while the clock was ahead is due by now. Workers see the clock when something else is due.
    let is_empty = || {
        timers.schedule(&new("plain", "look", NOW)).expect("scheduled");
        thread::sleep(Duration::from_millis(20)); // the load goes on
        timers.list(&Filter::new()).expect("a list").iter().all(|timer| timer.key == "look")
    };
    until("all are done", is_empty);
    assert_eq!(early.load(Ordering::Relaxed), 0, "early");
    let effects = Effects::in_book(database);
    for n in 0..count {
        assert_eq!(effects.of("tx", &n.to_string()), 1, "{n}");
        assert!(effects.of("plain", &n.to_string()) >= 1, "{n}");
    }
    assert!(workers.iter().all(|worker| worker.stop(PATIENCE)));
}

/// The statement is too early to say whether a timer comes before the workers look next. The end of its transaction is not.
pub(crate) fn what_a_long_transaction_has_put_in_is_on_time(database: &Database<'_>) {
    let jumps = Jumps::new();
    let timers = jumps.open(database);
    let (tell, told) = mpsc::channel();
    let worker = jumps.open(database).worker().handle("mail", move |run| {
        _ = tell.send(run.key().to_owned());
        Ok(())
    });
    let worker = if database.is_sqlite() { worker } else { worker.poll_every(HOUR) };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&new("mail", "moved", HOUR * 5)).expect("scheduled");
    until("it has looked", || worker.stats().looks > 0);
    let soon = micros(timers.now().expect("a time") + HOUR + Duration::from_secs(2));
    let soon = match database {
        Database::File(_) => format!("{}", soon / 1000),
        Database::Schema { .. } => format!("to_timestamp({soon} / 1000000.0)"),
    };
    let statements = format!(
        "BEGIN; INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', 'new', {soon});
         UPDATE tickwheel_timers SET due = {soon} WHERE kind = 'mail' AND key = 'moved' AND state = 'waiting'"
    );
    let commit = database.begin(&statements);
    thread::sleep(Duration::from_millis(1500)); // a transaction that takes long is the subject
    jumps.set(database, 1);
    let begin = Instant::now();
    commit();
    let mut keys = [(); 2].map(|()| told.recv_timeout(PATIENCE).expect("it runs"));
    keys.sort();
    assert_eq!(keys, ["moved", "new"]);
    assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    assert!(worker.stop(PATIENCE));
}

// ----- the disk ------------------------------------------------------------------------------

/// Lets the files of a process grow to so many bytes and no further, as a full disk does.
fn limit_files(process: &Process, bytes: &str) -> bool {
    let (process, limit) = (process.id().to_string(), format!("--fsize={bytes}:unlimited"));
    let status = Command::new("prlimit").args(["--pid", &process, &limit]).status();
    status.is_ok_and(|status| status.success())
}

pub(crate) fn a_full_disk_loses_nothing(database: &Database<'_>) {
    const COUNT: usize = 60;
    let place = Place::with_book(database);
    let timers = database.open();
    let mut process = Process::start_with_small_files(&place, LEASE);
    process.await_line("ready");
    if !limit_files(&process, "unlimited") {
        return say("faults, on a full disk: skipped: there is no program `prlimit`");
    }
    for round in 0..2 {
        let all: Vec<_> = (0..COUNT)
            .map(|n| new(KINDS[n % 2], &format!("{round} {n}"), NOW).payload("slow"))
            .collect();
        timers.schedule_all(&all).expect("scheduled");
        let left = || timers.list(&Filter::new()).expect("a list").len();
        until("it is in the middle of it", || left() < COUNT - 10);
        let before = process.errors();
        assert!(limit_files(&process, "1024"));
        until("it says so", || process.errors() > before + 2);
        assert!(left() > 0);
        assert!(limit_files(&process, "unlimited"));
        until("all are done", || left() == 0);
        let effects = Effects::in_book(database);
        for n in 0..COUNT {
            let runs = effects.of(KINDS[n % 2], &format!("{round} {n}"));
            assert!(runs == 1 || runs > 1 && KINDS[n % 2] == "plain", "{n}: {runs}");
        }
    }
}

/// A log that cannot grow, and that a reader keeps from being emptied, is emptied when the reader has gone.
#[cfg(target_os = "linux")]
pub(crate) fn a_full_disk_is_forgotten_when_a_reader_goes(database: &Database<'_>) {
    const COUNT: usize = 40;
    let Database::File(path) = database else { panic!("a file") };
    let timers = database.open();
    // Room in the file itself, so that the log can be emptied into it.
    database.execute(
        "CREATE TABLE slack (bytes BLOB); INSERT INTO slack VALUES (zeroblob(1000000)); DROP TABLE slack;
         PRAGMA wal_checkpoint(TRUNCATE)",
    );
    // The last one that closes the file would empty the log. Here another one stays.
    let [reader, _other] = [(); 2].map(|()| {
        let connection = rusqlite::Connection::open(path).expect("it opens");
        connection.execute_batch("SELECT * FROM tickwheel_schema").expect("it reads");
        connection
    });
    reader.execute_batch("BEGIN; SELECT * FROM tickwheel_schema").expect("it reads");
    for n in 0..COUNT {
        timers.schedule(&new("plain", &n.to_string(), NOW)).expect("scheduled");
    }
    let log = path.with_extension("sqlite3-wal");
    super::full_disk::fill(&[path.as_path(), &log]);
    let refused = timers.schedule(&new("plain", "refused", NOW)).expect_err("the disk is full");
    assert!(matches!(refused, Error::Unreachable(_)), "{refused:?}");
    assert!(refused.to_string().contains("full"), "{refused}");
    let told = Arc::new(AtomicU32::new(0));
    let worker = timers.worker().handle("plain", |_| Ok(()));
    let worker = {
        let told = Arc::clone(&told);
        worker.on_error(move |_| _ = told.fetch_add(1, Ordering::Relaxed))
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("it says so", || told.load(Ordering::Relaxed) > 0);
    thread::sleep(Duration::from_secs(1)); // the disk stays full for a while
    assert_eq!(worker.stats().done, 0);
    assert!(worker.stats().errors < 20, "{:?}", worker.stats());
    drop(reader);
    until("all are done", || timers.list(&Filter::new()).is_ok_and(|left| left.is_empty()));
    until("they are counted", || worker.stats().done == COUNT as u64);
    super::full_disk::fill(&[]);
    assert!(worker.stop(PATIENCE));
}
