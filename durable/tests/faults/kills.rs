//! Worker processes that die or hang at one point of their work.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::{Filter, HistoryFilter, Outcome, State, StopReason, Timer, Timers, Worker};

use super::common::{PATIENCE, until};
use super::databases::{Database, client};
use super::handlers::{
    Effects, KINDS, Place, Role, THREADS, effects, equipped, new, nothing_was_early,
};
use super::holding::Holding;
use super::process::{Gate, Point, Process};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

/// Long enough for a process that lives to extend it on a busy machine, short enough to wait for its end.
const LEASE: Duration = Duration::from_millis(300);

/// For those of which nobody waits for the end, or that a test ends itself.
const LONG_LEASE: Duration = Duration::from_secs(5);

fn survivor(timers: &Timers, place: &Place) -> Worker {
    equipped(timers, place, &Role::Survivor)
        .lease(LONG_LEASE)
        .start(Scheduler::global())
        .expect("it starts")
}

fn get(timers: &Timers, kind: &str, key: &str) -> Option<Timer> {
    timers.get(kind, key).expect("no error")
}

/// What has become of a timer's attempts, the last first.
fn past(timers: &Timers, kind: &str, key: &str) -> Vec<Outcome> {
    let past = timers.history(&HistoryFilter::new().kind(kind).key(key)).expect("a history");
    past.iter().map(|attempt| attempt.outcome).collect()
}

/// A point at which a process is killed, and how often its timer's effect exists in the end.
struct Case {
    point: Point,
    payload: &'static str,
    plain: i64,
    in_transaction: i64,
}

const CASES: [Case; 7] = [
    Case { point: Point::BeforeClaim, payload: "", plain: 1, in_transaction: 1 },
    Case { point: Point::AfterClaim, payload: "", plain: 1, in_transaction: 1 },
    Case { point: Point::AfterStart, payload: "", plain: 1, in_transaction: 1 },
    Case { point: Point::InHandler, payload: "hold", plain: 2, in_transaction: 1 },
    // The handler has failed, and that is not written.
    Case { point: Point::BeforeFinish, payload: "fail 1", plain: 1, in_transaction: 1 },
    Case { point: Point::BeforeFinish, payload: "", plain: 2, in_transaction: 1 },
    // The handler has failed, that is written, and the timer waits for the next attempt.
    Case { point: Point::AfterFinish, payload: "late 1", plain: 1, in_transaction: 1 },
];

pub(crate) fn a_killed_worker_loses_nothing(database: &Database<'_>) {
    let place = Place::with_book(database);
    let timers = database.open();
    for (number, case) in CASES.iter().enumerate() {
        for kind in KINDS {
            // The outcome of a handler in a transaction is in the transaction, and `finish` writes failures alone.
            let in_transaction = kind == "tx";
            if in_transaction && case.point == Point::AfterStart {
                continue;
            }
            let point = match case.point {
                Point::BeforeFinish if in_transaction && case.payload.is_empty() => {
                    Point::AfterCommit
                }
                point => point,
            };
            let key = format!("{number} {point:?}");
            kill_at(database, &place, point, kind, &key, case.payload);
            let expected = if in_transaction { case.in_transaction } else { case.plain };
            assert_eq!(effects(database, kind, &key), expected, "{kind} {key}");
        }
    }
    killed_while_idle(&timers, &place, database);
    nothing_was_early(database);
}

/// Makes the leases of a dead process end soon. While it lives they are long, because on a busy machine it may be held up before it is
/// killed, and would take over its own timer.
fn end_leases_soon(database: &Database<'_>) {
    database.execute(if database.is_sqlite() {
        "UPDATE tickwheel_timers SET held_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 300
        WHERE state = 'running'"
    } else {
        "UPDATE tickwheel_timers SET held_until = now() + interval '300 milliseconds' WHERE state = 'running'"
    });
}

/// Kills a process at a point, and has another worker take over.
fn kill_at(
    database: &Database<'_>,
    place: &Place,
    point: Point,
    kind: &str,
    key: &str,
    payload: &str,
) {
    let timers = &database.open();
    let mut process = Process::start(place, point, LONG_LEASE);
    process.await_line("ready");
    timers.schedule(&new(kind, key, NOW).payload(payload)).expect("scheduled");
    process.await_line("held");
    process.kill();
    end_leases_soon(database);
    let left = get(timers, kind, key);
    let ends = left.as_ref().and_then(|timer| timer.wake);
    let running = left.as_ref().is_some_and(|timer| timer.state == State::Running);
    assert_eq!(left.is_none(), point == Point::AfterCommit, "{kind} {key}");
    assert_eq!(
        running,
        matches!(
            point,
            Point::AfterClaim | Point::AfterStart | Point::InHandler | Point::BeforeFinish
        ),
        "{kind} {key}: {left:?}"
    );
    // An outcome and its attempt are both there, or neither is (STORE-10).
    let failed = [Outcome::Failed];
    let written = match point {
        Point::AfterCommit => &[Outcome::Done][..],
        Point::AfterFinish => &failed,
        _ => &[],
    };
    assert_eq!(past(timers, kind, key), written, "{kind} {key}");
    let worker = survivor(timers, place);
    until("another one has done it", || get(timers, kind, key).is_none());
    // It comes at the end of the lease or of the gap, and not before.
    assert!(timers.now().expect("a time") >= ends.unwrap_or(std::time::UNIX_EPOCH), "{kind} {key}");
    let past = past(timers, kind, key);
    assert_eq!(past.iter().filter(|of| **of == Outcome::Done).count(), 1, "{kind} {key}");
    assert_eq!(past.len(), 1 + usize::from(point == Point::AfterFinish), "{kind} {key}: {past:?}");
    until("it is counted", || worker.stats().running == 0);
    let stats = worker.stats();
    assert_eq!(stats.taken_over, u64::from(running), "{kind} {key}: {stats:?}");
    assert_eq!((stats.lost, stats.errors, stats.dead), (0, 0, 0), "{kind} {key}: {stats:?}");
    assert!(worker.stop(PATIENCE));
}

/// A process that waits for timers which are due later is killed, and another one waits for them from then on.
fn killed_while_idle(timers: &Timers, place: &Place, database: &Database<'_>) {
    let mut process = Process::start(place, Point::Nowhere, LEASE);
    process.await_line("ready");
    for kind in KINDS {
        timers.schedule(&new(kind, "idle", Duration::from_millis(400))).expect("scheduled");
    }
    process.kill();
    let _worker = survivor(timers, place);
    until("both are done", || timers.list(&Filter::new()).expect("a list").is_empty());
    for kind in KINDS {
        assert_eq!(effects(database, kind, "idle"), 1, "{kind}");
    }
}

/// The database's clock counts, and not that of a worker's machine, which is a day ahead from one moment to the next.
pub(crate) fn a_worker_whose_wall_clock_jumps_is_on_time(database: &Database<'_>) {
    if database.is_sqlite() || !super::wall_clock::can_be_set() {
        return; // the clock of a file is that of the processes that have opened it
    }
    let place = Place::with_book(database);
    let timers = database.open();
    let mut process = Process::start(&place, Point::Nowhere, LONG_LEASE);
    process.await_line("ready");
    let schedule = |from: usize, every: Option<Duration>| {
        for (n, kind) in (from..).zip(KINDS) {
            let timer = new(kind, &n.to_string(), Duration::from_millis(400));
            let timer = every.map_or(timer.clone(), |period| timer.every(period));
            timers.schedule(&timer).expect("scheduled");
        }
    };
    let seen = || database.number("SELECT count(DISTINCT key) FROM effects");
    schedule(0, Some(Duration::from_millis(100)));
    process.say("clock");
    schedule(2, None);
    let begin = Instant::now();
    until("all have run", || seen() == 4);
    let runs = || database.number("SELECT count(*) FROM effects");
    let before = runs();
    until("the series go on", || runs() > before + 4);
    assert!(begin.elapsed() < Duration::from_secs(30), "before a look without a reason");
    let doubles = "SELECT count(*) - count(DISTINCT (key, due)) FROM effects";
    assert_eq!(database.number(doubles), 0, "no lease has ended");
    nothing_was_early(database);
}

/// Halts a process. One that is halted in a transaction holds up everybody else who writes in its file, until it goes on.
/// That is no subject here, so it is halted again when it has no transaction.
fn halt(process: &Process, database: &Database<'_>) {
    until("it is halted between two transactions", || {
        process.halt();
        let is_free = database.is_free();
        if !is_free {
            process.go_on();
        }
        is_free
    });
}

pub(crate) fn a_halted_process_changes_nothing_when_it_comes_back(database: &Database<'_>) {
    let place = Place::with_book(database);
    let timers = database.open();
    let lease = Duration::from_secs(2); // it does not end before the process is halted
    let mut process = Process::start(&place, Point::InHandler, lease);
    process.await_line("ready");
    // It stays after its run, so an outcome that came too late would be seen in it.
    timers.schedule(&new("plain", "1", NOW).payload("hold").every(HOUR)).expect("scheduled");
    process.await_line("held");
    halt(&process, database);
    let worker = survivor(&timers, &place);
    until("another one has done it", || worker.stats().done == 1);
    assert_eq!(worker.stats().taken_over, 1);
    let before = get(&timers, "plain", "1").expect("there");
    assert_eq!(before.state, State::Waiting);
    process.say("go");
    process.go_on();
    until("its outcome is void", || process.lost() == 1);
    assert_eq!(get(&timers, "plain", "1").expect("there"), before);
    assert_eq!(effects(database, "plain", "1"), 2);
    // It is a worker like any other again.
    timers.schedule(&new("plain", "2", NOW)).expect("scheduled");
    until("it is done", || get(&timers, "plain", "2").is_none());
    assert_eq!(effects(database, "plain", "2"), 1);
    nothing_was_early(database);
}

/// Nobody else is there, so the process that was halted comes back to what it had, although its leases have ended.
pub(crate) fn a_process_that_was_halted_goes_on(database: &Database<'_>) {
    const QUICK: usize = 100;
    const QUIET: usize = 12;
    let place = Place::with_book(database);
    let timers = database.open();
    let process = Process::start(&place, Point::Nowhere, LEASE);
    process.await_line("ready");
    let left = || timers.list(&Filter::new()).expect("a list").len();
    let schedule = |count: usize, payload: &str| {
        let all = (0..count).map(|n| new("plain", &n.to_string(), NOW).payload(payload));
        timers.schedule_all(&all.collect::<Vec<_>>()).expect("scheduled");
    };
    // After many quick runs it claims more than it has threads for. The others write nothing of their own in the
    // database, so nothing but the outcomes tells the process that something has changed.
    schedule(QUICK, "");
    until("the quick ones are done", || left() == 0);
    schedule(QUIET, "quiet");
    until("it is in the middle of it", || left() < QUIET);
    halt(&process, database);
    thread::sleep(LEASE * 2); // longer than a lease is the subject
    process.go_on();
    let begin = Instant::now();
    until("all are done", || left() == 0);
    assert!(begin.elapsed() < Duration::from_secs(30), "before a look without a reason");
    nothing_was_early(database);
}

/// A worker is stopped while a claim is on its way. What that brings is given back, and the worker ends.
pub(crate) fn a_claim_that_comes_after_the_stop_is_given_back(database: &Database<'_>) {
    let place = Place::with_book(database);
    let timers = database.open();
    let gate = Gate::new(Point::AfterClaim);
    let held = Holding::new(place.store(), Arc::clone(&gate));
    let worker = survivor(&Timers::with_store(held).expect("it opens"), &place);
    timers.schedule(&new("plain", "1", NOW)).expect("scheduled");
    let state = || get(&timers, "plain", "1").map(|timer| timer.state);
    until("it is claimed", || state() == Some(State::Running));
    // All of its threads that can end do so.
    assert!(!worker.stop(Duration::from_millis(50)));
    gate.open();
    assert!(worker.stop(PATIENCE), "it ends");
    let timer = get(&timers, "plain", "1").expect("there");
    assert_eq!((timer.state, timer.attempts), (State::Waiting, 0));
    assert_eq!((worker.stats().released, worker.stats().running), (1, 0));
    assert_eq!(effects(database, "plain", "1"), 0);
}

/// Somebody locks a timer between its claim and its start. That costs no handler thread.
pub(crate) fn a_timer_that_is_held_before_its_start_holds_up_no_other(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // a transaction holds the whole file
    }
    let place = Place::with_book(database);
    let gate = Gate::new(Point::AfterClaim);
    let held = Holding::new(place.store(), Arc::clone(&gate));
    let timers = Timers::with_store(held).expect("it opens");
    let worker = survivor(&timers, &place);
    let all: Vec<_> = (0..4).map(|n| new("plain", &n.to_string(), NOW).max_attempts(1)).collect();
    timers.schedule_all(&all).expect("scheduled");
    let claimed = || timers.list(&Filter::new().state(State::Running)).expect("a list");
    until("as many are claimed as there are threads", || claimed().len() == THREADS);
    let mut mine = client(&database.url());
    let mut transaction = mine.transaction().expect("begins");
    for timer in claimed() {
        let lock = "SELECT 1 FROM tickwheel_timers WHERE id = $1 FOR UPDATE";
        transaction.execute(lock, &[&timer.id]).expect("it is locked");
    }
    gate.open();
    until("the others are done", || timers.list(&Filter::new()).expect("a list").len() == THREADS);
    transaction.rollback().expect("ends");
    until("all are done", || timers.list(&Filter::new()).expect("a list").is_empty());
    assert_eq!((worker.stats().dead, worker.stats().errors), (0, 0));
}

/// A thread of the worker's own panics. The worker says that it does not run any more, and others take over.
pub(crate) fn a_worker_whose_thread_panics_says_so(database: &Database<'_>) {
    let place = Place::with_book(database);
    let held = Holding::new(place.store(), Gate::new(Point::Panic));
    let (tell, told) = mpsc::channel();
    let worker = equipped(&Timers::with_store(held).expect("it opens"), &place, &Role::Survivor);
    let worker = worker.on_error(move |error| _ = tell.send(error.to_string()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    assert!(worker.is_running());
    let timers = database.open();
    timers.schedule(&new("plain", "1", NOW)).expect("scheduled");
    let said = told.recv_timeout(PATIENCE).expect("it says so");
    assert_eq!(said, "a worker has stopped: one of its own threads has panicked");
    until("it knows that", || worker.stop_reason() == Some(StopReason::Panicked));
    let other = survivor(&timers, &place);
    until("another one has done it", || get(&timers, "plain", "1").is_none());
    assert!(other.is_running() && !worker.is_running());
}

pub(crate) fn a_payload_that_kills_its_process_is_dead_in_the_end(database: &Database<'_>) {
    const OTHERS: usize = 20;
    let place = Place::with_book(database);
    let timers = database.open();
    let poison = new("plain", "poison", NOW).payload("abort").max_attempts(3);
    let mut all = vec![poison];
    for kind in KINDS {
        all.extend((0..OTHERS).map(|n| {
            let delay = Duration::from_millis(40 * n as u64);
            new(kind, &n.to_string(), delay)
        }));
    }
    timers.schedule_all(&all).expect("scheduled");
    let mut deaths = 0;
    let mut process = Process::start(&place, Point::Nowhere, LEASE);
    until("the poison is all that is left, and is dead", || {
        if process.has_ended() {
            deaths += 1;
            process = Process::start(&place, Point::Nowhere, LEASE);
        }
        let left = timers.list(&Filter::new()).expect("a list");
        left.len() == 1 && left[0].state == State::Dead
    });
    let poison = get(&timers, "plain", "poison").expect("there");
    assert!((1..=3).contains(&deaths), "{deaths}");
    assert_eq!(poison.attempts, 3);
    assert!(poison.error.expect("a reason").contains("died"));
    // Nobody knows how the attempts have ended in which the processes died, and the death is known.
    assert_eq!(past(&timers, "plain", "poison"), [Outcome::Dead]);
    let effects = Effects::in_book(database);
    for n in 0..OTHERS {
        assert_eq!(effects.of("tx", &n.to_string()), 1);
        let count = effects.of("plain", &n.to_string());
        assert!((1..=1 + deaths).contains(&count), "{n}: {count}");
    }
    assert_eq!(effects.of("plain", "poison"), 0);
    nothing_was_early(database);
}
