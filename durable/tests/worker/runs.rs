//! What ends a run but its success: retries of each kind, a failure that gives up, a snooze, a time limit, a cancel, and a stop.
//!
//! `TICKWHEEL_LONG_RUNS=1000` measures what it costs to ask about so many long runs.

use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::num::ParseIntError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::{Scheduler, future::block_on};
use tickwheel_durable::{
    Error, Failure, Filter, LONGEST_KEY, NewTimer, Retry, Run, State, Timer, Timers, Worker,
    WorkerBuilder,
};
use tokio::runtime::{Builder, Runtime};

use super::common::{self, PATIENCE, until};
use super::databases::{Database, say};
use super::{EFFECTS, HOUR, LEASE, Log, NOW, SOON, is_taught, mail, next, quick, teach};

/// Cancels or replaces what runs of a kind.
type Ends = fn(&Timers, &str);

fn start(worker: WorkerBuilder) -> Worker {
    worker.start(Scheduler::global()).expect("it starts")
}

fn get(timers: &Timers, kind: &str, key: &str) -> Timer {
    timers.get(kind, key).expect("no error").expect("there")
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

// ----- retries -------------------------------------------------------------------------------

pub(super) fn each_kind_has_its_own_retries(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let note = move |run: &Run<'_>| log.add(run);
    let (of_two, of_hours) = (note.clone(), note);
    let fails = |run: &Run<'_>| Err(Failure::new(format!("{} failed", run.attempt())));
    let hours = Retry::attempts(4).gaps(HOUR, 1.0, HOUR).jitter(0.0);
    let worker = timers.worker().retry(quick(3)).handle("three", fails);
    let worker = worker.handle("two", move |run| {
        of_two(run);
        fails(run)
    });
    let worker = worker.retry(quick(2)).handle("hours", move |run| {
        of_hours(run);
        // The gap of this one is its own as well.
        if run.attempt() < 3 { fails(run).map_err(|is| is.retry_after(SOON)) } else { fails(run) }
    });
    let worker = start(worker.retry(hours));
    let new = ["three", "two", "hours"].map(|kind| NewTimer::new(kind, "1", NOW));
    timers.schedule_all(&new).expect("scheduled");
    until("all have failed", || {
        let stats = worker.stats();
        (stats.failed, stats.dead, stats.running) == (8, 2, 0)
    });
    for (kind, state, attempts) in [("three", State::Dead, 3), ("two", State::Dead, 2)] {
        let timer = get(&timers, kind, "1");
        assert_eq!((timer.state, timer.attempts), (state, attempts), "{kind}");
        assert_eq!(timer.error, Some(format!("{attempts} failed")), "{kind}");
    }
    let waits = get(&timers, "hours", "1");
    assert_eq!((waits.state, waits.attempts), (State::Waiting, 3));
    let left = waits.wake.expect("a time").duration_since(timers.now().expect("a time"));
    // SQLite counts milliseconds, and rounds the next attempt up.
    assert!(left.is_ok_and(|left| left > HOUR / 2 && left <= HOUR + Duration::from_millis(2)));
    let of_hours: Vec<_> = seen.try_iter().filter(|seen| seen.fence > 0).collect();
    assert_eq!(of_hours.len(), 5, "{of_hours:?}");
}

pub(super) fn a_failure_may_be_given_up(database: &Database<'_>) {
    let timers = database.open();
    let parse = |run: &Run<'_>| {
        _ = run.key().parse::<u8>()?;
        Err(Failure::new("a number"))
    };
    let worker = timers.worker().retry(quick(3));
    let worker = worker.give_up_if(Failure::is::<ParseIntError>).on_error(|_| {});
    let worker = worker
        .handle("as all", parse)
        .handle("own", parse)
        .give_up_if(|failure| failure.reason() == "a number")
        .handle("panics", parse)
        .give_up_if(|failure| panic!("of {failure:?}"))
        .handle("hangs", |run| {
            block_on(run.cancelled());
            Ok(())
        })
        .give_up_if(|failure| failure.reason().contains("time limit"))
        .handle("later", |run| {
            Err(Failure::from(run.key().parse::<u8>().expect_err("no number")).retry_after(NOW))
        });
    let worker = start(worker);
    let new = [("as all", "x"), ("as all", "1"), ("own", "x"), ("own", "1"), ("panics", "x")];
    let new = new.into_iter().chain([("hangs", "x"), ("later", "x")]);
    let mut new: Vec<_> = new.map(|(kind, key)| NewTimer::new(kind, key, NOW)).collect();
    new[5].time_limit = Some(Duration::from_millis(40)); // of the one that hangs alone
    timers.schedule_all(&new).expect("scheduled");
    until("all are dead", || worker.stats().dead == 7 && worker.stats().stuck == 0);
    let attempts = |timer: &NewTimer| get(&timers, &timer.kind, &timer.key).attempts;
    assert_eq!(new.iter().map(attempts).collect::<Vec<_>>(), [1, 3, 3, 1, 3, 1, 1]);
    let of_all = get(&timers, "as all", "x");
    assert_eq!(of_all.error.as_deref(), Some("invalid digit found in string"));
}

// ----- snooze --------------------------------------------------------------------------------

/// Nobody knows the rule, so no attempt would be better: the timer dies at once, whatever its handler does.
pub(super) fn a_rule_that_nobody_knows_is_the_end_at_once(database: &Database<'_>) {
    let timers = database.open();
    let worker = timers.worker().retry(quick(5)).handle("plain", |_| Ok(()));
    let worker = if database.is_sqlite() {
        worker.handle_in_sqlite("tx", |_, _| panic!("it is not called"))
    } else {
        worker.handle_in_postgres("tx", |_, _| panic!("it is not called"))
    };
    let worker = start(worker);
    for kind in ["plain", "tx"] {
        timers.schedule(&NewTimer::new(kind, "1", NOW).rule("lunar")).expect("scheduled");
    }
    until("both are dead", || worker.stats().dead == 2);
    for kind in ["plain", "tx"] {
        let dead = get(&timers, kind, "1");
        assert_eq!((dead.state, dead.attempts), (State::Dead, 1), "{kind}");
        assert_eq!(dead.error.as_deref(), Some("no `rules` are set for \"lunar\""), "{kind}");
    }
    assert!(worker.stop(PATIENCE));
}

pub(super) fn a_snooze_uses_up_no_attempt(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let calls = AtomicU64::new(0);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().retry(quick(3)).handle("mail", move |run| {
        log.add(run);
        match (run.key(), calls.fetch_add(1, Ordering::Relaxed)) {
            ("last", 0..3) => Err(Failure::snooze(Duration::from_millis(5))),
            ("failed", _) if run.attempt() == 2 => Err(Failure::snooze(HOUR)),
            _ => Err(Failure::new("no luck")),
        }
    });
    let worker = start(worker.on_dead(move |timer, _| _ = tell.send(timer.attempts)));
    // By the few attempts, each start is written down before.
    timers.schedule(&mail("last", NOW).max_attempts(1)).expect("scheduled");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
    let seen: Vec<_> = seen.try_iter().map(|seen| seen.attempt).collect();
    assert_eq!(seen, [1; 4]);
    until("it is counted", || worker.stats().dead == 1);
    let stats = worker.stats();
    assert_eq!((stats.snoozed, stats.failed, stats.done, stats.lost), (3, 1, 0, 0));
    // The error of an earlier attempt stays, and the time at which it was due.
    let due = timers.schedule(&mail("failed", NOW)).expect("scheduled").due;
    until("it is put off", || worker.stats().snoozed == 4);
    let timer = get(&timers, "mail", "failed");
    assert_eq!((timer.state, timer.attempts, timer.due), (State::Waiting, 1, due));
    assert_eq!((timer.error.as_deref(), timer.owner), (Some("no luck"), None));
    assert!(timer.wake.expect("a time") > timers.now().expect("a time") + HOUR / 2);
    assert_eq!(worker.stats().failed, 2);
    assert!(timers.reset("mail", "failed", HOUR).expect("no error"), "it can be moved");
    assert!(told.try_recv().is_err());
}

pub(super) fn a_snooze_undoes_the_transaction(database: &Database<'_>) {
    let timers = database.open();
    database.execute(EFFECTS);
    let calls = Arc::new(AtomicU64::new(0));
    let answer = {
        let calls = Arc::clone(&calls);
        move |run: &Run<'_>| {
            assert_eq!(run.attempt(), 1);
            let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first { Err(Failure::snooze(SOON)) } else { Ok(()) }
        }
    };
    let worker = timers.worker().retry(Retry::attempts(1));
    let worker = start(if database.is_sqlite() {
        worker.handle_in_sqlite("mail", move |run, transaction| {
            transaction.execute("INSERT INTO effects VALUES (?1)", [run.key()])?;
            answer(run)
        })
    } else {
        worker.handle_in_postgres("mail", move |run, transaction| {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()])?;
            answer(run)
        })
    });
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    assert_eq!((calls.load(Ordering::Relaxed), worker.stats().snoozed), (2, 1));
    assert_eq!((worker.stats().failed, worker.stats().lost), (0, 0));
    assert_eq!(database.number("SELECT count(*) FROM effects"), 1, "that of the first is undone");
}

/// Their keys begin with the same, and are as long as a key may be.
pub(super) fn series_with_long_keys_lose_no_run(database: &Database<'_>) {
    let timers = database.open();
    let worker = timers.worker().retry(quick(1)).handle("mail", |_| Err(Failure::new("no luck")));
    let worker = start(worker);
    let due = SystemTime::now();
    let series =
        ["a", "b"].map(|last| mail(&format!("{}-{last}", "é".repeat(499)), due).every(HOUR));
    assert_eq!(series[0].key.len(), LONGEST_KEY);
    timers.schedule_all(&series).expect("scheduled");
    until("both have failed", || worker.stats().dead == 2);
    let dead = timers.list(&Filter::new().state(State::Dead)).expect("a list");
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(dead.iter().all(|run| run.key.starts_with(&"é".repeat(450)) && run.due == dead[0].due));
    assert!(worker.stop(PATIENCE));
}

pub(super) fn a_snooze_stays_in_its_series(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let calls = AtomicU64::new(0);
    let worker = start(timers.worker().handle("mail", move |run| {
        log.add(run);
        match (run.key(), calls.fetch_add(1, Ordering::Relaxed)) {
            ("slow", 0) => Err(Failure::snooze(SOON)),
            ("quick", 2) => Err(Failure::snooze(HOUR)),
            _ => Ok(()),
        }
    }));
    // The next run is due after the snooze, so it is the same run that is called again.
    let due = timers.schedule(&mail("slow", NOW).every(HOUR)).expect("scheduled").due;
    for _ in 0..2 {
        let run = next(&seen);
        assert_eq!((run.key.as_str(), run.attempt, run.due), ("slow", 1, due));
    }
    until("it is done", || worker.stats().done == 1);
    let of_series = timers.list(&Filter::new()).expect("a list");
    assert_eq!((of_series.len(), of_series[0].due), (1, due + HOUR));
    // The next run is due before, so the run that is put off leaves the series.
    let due = timers.schedule(&mail("quick", NOW).every(SOON)).expect("scheduled").due;
    assert_eq!(next(&seen).due, due);
    let run = next(&seen);
    assert!(run.due > due && run.key == "quick" && run.attempt == 1, "the series goes on: {run:?}");
    until("it is written", || worker.stats().snoozed == 2);
    timers.cancel("mail", "quick").expect("no error");
    let left = timers.list(&Filter::new().kind("mail")).expect("a list");
    let own = left.iter().find(|timer| timer.key.starts_with("quick@")).expect("its own timer");
    assert_eq!((own.state, own.attempts, own.due), (State::Waiting, 0, due));
    assert_eq!((own.error.as_deref(), own.repetition.as_ref()), (None, None));
    assert!(own.wake.expect("a time") > timers.now().expect("a time") + HOUR / 2);
    let stats = worker.stats();
    assert_eq!((stats.failed, stats.dead), (0, 0), "{stats:?}");
}

/// What is put off holds no place, on one database or on several, and an async handler may do the same.
pub(super) fn a_snooze_gives_its_place_to_others(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let calls = AtomicU64::new(0);
    let worker = timers.worker().handle("mail", move |run| {
        log.add(run);
        let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Err(Failure::snooze(Duration::from_millis(300))) } else { Ok(()) }
    });
    let worker = worker.at_most_in_all(1).serial_by('/').rate(100, Duration::from_secs(1));
    timers.schedule_all(&[mail("a/1", NOW), mail("a/2", NOW)]).expect("scheduled");
    let worker = start(worker);
    assert_eq!(next(&seen).key, "a/1");
    assert_eq!((next(&seen).key.as_str(), next(&seen).key.as_str()), ("a/2", "a/1"));
    until("both are done", || worker.stats().done == 2);
    assert_eq!((worker.stats().snoozed, worker.stats().failed), (1, 0));

    let (another, runtime) = (database.another(), runtime());
    let several = Timers::sharded([database.address(), another.address()]).expect("they open");
    let handle = runtime.handle().clone();
    let worker = several.worker().spawn_with(move |run| drop(handle.spawn(run)));
    let seen = Mutex::new(BTreeSet::new());
    let worker = worker.handle_async("pay", move |run| {
        let is_first = seen.lock().expect("no panic").insert(run.key().to_owned());
        async move {
            assert_eq!(run.attempt(), 1);
            if is_first { Err(Failure::snooze(SOON)) } else { Ok(()) }
        }
    });
    let worker = start(worker);
    let all: Vec<_> = (0..10).map(|n| NewTimer::new("pay", n.to_string(), NOW)).collect();
    several.schedule_all(&all).expect("scheduled");
    until("all are done", || worker.stats().done == 10);
    let stats = worker.stats();
    assert_eq!((stats.snoozed, stats.failed, stats.lost), (10, 0, 0));
}

// ----- time limits ---------------------------------------------------------------------------

pub(super) fn a_handler_that_hangs_raises_an_alarm(database: &Database<'_>) {
    const LIMIT: Duration = Duration::from_millis(60);
    let timers = database.open();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().threads(1).retry(quick(1)).handle("mail", move |run| {
        if run.key() == "hangs" {
            _ = gate.lock().expect("no panic").recv();
        } else {
            block_on(run.cancelled()); // which is ready at the time limit
        }
        Ok(())
    });
    let worker = worker.time_limit(HOUR).on_error(move |error| {
        // On a busy machine, one that heeds its time limit may return late.
        if !matches!(error, Error::TimeLimit { key, late: Some(_), .. } if key == "heeds") {
            let goes_on = matches!(error, Error::TimeLimit { late: None, .. });
            _ = tell.send((error.to_string(), goes_on));
        }
    });
    let worker = start(worker);
    timers.schedule(&mail("hangs", NOW).time_limit(LIMIT)).expect("scheduled");
    let alarm = told.recv_timeout(PATIENCE).expect("it is told");
    let said = "the handler of the kind \"mail\" has exceeded its time limit of 60ms with the timer \"hangs\": the run has failed";
    assert_eq!(alarm, (said.to_owned(), true));
    assert_eq!((worker.stats().stuck, worker.stats().timed_out, worker.stats().errors), (1, 1, 0));
    // Its only thread is replaced, and one that ends when it is told to is no further news.
    timers.schedule(&mail("heeds", NOW).time_limit(LIMIT)).expect("scheduled");
    let (alarm, goes_on) = told.recv_timeout(PATIENCE).expect("it is told");
    assert!(goes_on && alarm.contains("\"heeds\""), "{alarm}");
    until("it has come back", || worker.stats().stuck == 1);
    assert!(told.recv_timeout(LIMIT * 2).is_err(), "once for each run");
    open.send(()).expect("it waits");
    let (alarm, goes_on) = told.recv_timeout(PATIENCE).expect("it is told");
    assert!(!goes_on && alarm.contains("\"hangs\", and has returned "), "{alarm}");
    until("none is stuck", || worker.stats().stuck == 0);
    assert!(worker.stop(PATIENCE) && told.try_recv().is_err());
}

// ----- cancels -------------------------------------------------------------------------------

/// Measures how long after a cancel a handler knows it: one with a thread of its own, and one that is a future.
fn reach(timers: &Timers, other: &Timers, ends: Ends) -> Vec<Duration> {
    let runtime = runtime();
    let ((begun, has_begun), (tell, told)) = (mpsc::channel(), mpsc::channel());
    let (begun_too, tell_too) = (begun.clone(), tell.clone());
    let handle = runtime.handle().clone();
    let worker = timers.worker().spawn_with(move |run| drop(handle.spawn(run)));
    let worker = worker.handle("mail", move |run| {
        _ = begun.send(());
        while run.is_current() {
            thread::sleep(Duration::from_millis(1)); // it works
        }
        tell.send(Instant::now())?;
        Ok(())
    });
    let worker = start(worker.handle_async("pay", move |run| {
        let (begun, tell) = (begun_too.clone(), tell_too.clone());
        async move {
            _ = begun.send(());
            tokio::select! {
                () = pending() => {}
                () = run.cancelled() => tell.send(Instant::now())?,
            }
            assert!(!run.is_current());
            Ok(())
        }
    }));
    let mut took = Vec::new();
    for (n, kind) in ["mail", "pay", "mail"].into_iter().enumerate() {
        let timer = NewTimer::new(kind, n.to_string(), NOW);
        timers.schedule(&timer).expect("scheduled");
        has_begun.recv_timeout(PATIENCE).expect("it begins");
        // At another phase of the worker's questions each time.
        thread::sleep(Duration::from_millis(170) * n as u32);
        ends(other, kind);
        let cancelled = Instant::now();
        let known = told.recv_timeout(PATIENCE).expect("it is told");
        took.push(known.saturating_duration_since(cancelled));
    }
    until("it is counted", || worker.stats().lost == 3);
    assert_eq!((worker.stats().running, worker.stats().failed), (0, 0), "{:?}", worker.stats());
    assert!(worker.stop(PATIENCE));
    took
}

fn cancel(timers: &Timers, kind: &str) {
    let running = Filter::new().kind(kind).state(State::Running);
    for timer in timers.list(&running).expect("a list") {
        assert_eq!(timers.cancel(kind, &timer.key).expect("no error"), Some(State::Running));
    }
}

fn replace(timers: &Timers, kind: &str) {
    let running = Filter::new().kind(kind).state(State::Running);
    for timer in timers.list(&running).expect("a list") {
        let new = NewTimer::new(kind, timer.key, HOUR);
        assert!(timers.schedule(&new).expect("scheduled").replaced);
    }
}

/// A busy machine may make some samples slow. A fault makes all of them slow.
fn is_within(limit: Duration, what: &str, sample: impl Fn() -> Vec<Duration>) {
    const SAMPLES: u32 = 5;
    for n in 1..=SAMPLES {
        let mut took = sample();
        took.sort();
        say(&format!("  {what}: known after {took:.0?}"));
        // One may be late for want of a processor, but not by the time after which the lease is extended.
        let slowest = took[took.len() - 1];
        if took[took.len() / 2] < limit && slowest < limit * 5 {
            return;
        }
        assert!(n < SAMPLES, "{what}: {took:?}");
    }
}

pub(super) fn a_cancel_reaches_a_run_within_a_second(database: &Database<'_>) {
    const SECOND: Duration = Duration::from_secs(1);
    let timers = database.open();
    let other = database.open(); // as from another process
    is_within(SECOND, "cancelled elsewhere", || reach(&timers, &other, cancel));
    is_within(SECOND, "replaced elsewhere", || reach(&timers, &other, replace));
    is_within(SECOND, "replaced here", || reach(&timers, &timers, replace));
    is_within(Duration::from_millis(200), "cancelled here", || reach(&timers, &timers, cancel));
    if !database.is_sqlite() {
        for notices in ["debounced", "never"] {
            database.execute(&format!("SELECT tickwheel_set_notices('{notices}')"));
            is_within(SECOND, notices, || reach(&timers, &other, cancel));
        }
    }
}

/// Another transaction keeps the worker from extending the lease, which ends then. Nobody else takes the timer, so what the handler
/// has not done is done by its next attempt.
pub(super) fn the_end_of_a_lease_is_noticed(database: &Database<'_>) {
    let timers = database.open();
    let ((begun, has_begun), (tell, told)) = (mpsc::channel(), mpsc::channel());
    let worker = timers.worker().lease(LEASE).handle("mail", move |run| {
        _ = begun.send(());
        if run.attempt() > 1 {
            return Ok(());
        }
        let ended = run.cancelled();
        // The future is another task's.
        thread::scope(|scope| scope.spawn(|| block_on(ended)).join()).expect("no panic");
        assert!(!run.is_current());
        _ = tell.send(());
        Ok(())
    });
    let worker = start(worker.retry(quick(9)).on_error(|_| {}));
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    has_begun.recv_timeout(PATIENCE).expect("it begins");
    // It is extended as long as nobody is in the way.
    assert!(told.recv_timeout(LEASE * 5 / 4).is_err());
    let commit = database.begin(if database.is_sqlite() {
        "BEGIN IMMEDIATE"
    } else {
        "BEGIN; SELECT 1 FROM tickwheel_timers FOR UPDATE"
    });
    told.recv_timeout(PATIENCE).expect("it is told");
    commit();
    has_begun.recv_timeout(PATIENCE).expect("it begins again");
    until("it is done", || worker.stats().done == 1);
    assert!(super::is_gone(&timers, "1"));
}

/// A run that ends its timer itself is not told that it is gone.
pub(super) fn a_run_that_has_completed_itself_is_not_cancelled(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // it has no completions
    }
    let (timers, url) = (database.open(), database.url());
    let worker = start(timers.worker().handle("mail", move |run| {
        let mut client = super::client(&url);
        client.batch_execute(&run.completion()?)?;
        let gone = Scheduler::global().timeout(Duration::from_millis(1200), run.cancelled());
        assert!(block_on(gone).is_err() && run.is_current());
        Ok(())
    }));
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    assert_eq!((worker.stats().failed, worker.stats().lost), (0, 0));
}

/// The statement says when the next run is due, and its handler returns when that time has passed.
pub(super) fn a_series_that_has_completed_its_run_goes_on_at_once(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // it has no completions
    }
    let (timers, url) = (database.open(), database.url());
    let (log, seen) = Log::new();
    let asked = AtomicU64::new(0);
    let worker = timers.worker().handle("mail", move |run| {
        log.add(run);
        // A second after a claim the worker claims again, and would see when the series goes on.
        thread::sleep(Duration::from_millis(1500));
        super::client(&url).batch_execute(&run.completion()?)?;
        thread::sleep(SOON * 4);
        Ok(())
    });
    let worker = start(worker.rules(move |_, after| {
        let is_first = asked.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(Some(after + if is_first { SOON } else { HOUR }))
    }));
    until("it has looked", || worker.stats().looks > 0);
    timers.schedule(&mail("1", NOW).rule("soon, and then in an hour")).expect("scheduled");
    let waited = next(&seen).at;
    let waited = next(&seen).at - waited;
    assert!(waited < Duration::from_secs(20), "it has waited for a look: {waited:?}");
    assert!(worker.stop(PATIENCE));
}

/// The processor time of all threads of a process. Linux alone tells it.
fn processor_time(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let spent = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

/// That of this process, and that of the processes of a private server.
fn processor_times(database: &Database<'_>) -> [Duration; 2] {
    let of_server = match database {
        Database::Schema { server, .. } if server.is_private() => {
            let first = server.process();
            let all = fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
            let all = all.unwrap_or_default();
            all.split(' ').filter_map(|child| child.parse().ok()).map(processor_time).sum()
        }
        _ => Duration::ZERO,
    };
    [processor_time(std::process::id()), of_server]
}

/// With `TICKWHEEL_LONG_RUNS=1000` it prints what it costs to ask about so many each half second.
pub(super) fn to_ask_about_long_runs_costs_little(database: &Database<'_>) {
    let count = common::env("TICKWHEEL_LONG_RUNS").unwrap_or(100);
    let (timers, runtime) = (database.open(), runtime());
    let handle = runtime.handle().clone();
    let end = Arc::new(tokio::sync::Notify::new());
    let begun = Arc::new(AtomicU64::new(0));
    let worker = timers.worker().spawn_with(move |run| drop(handle.spawn(run)));
    let worker = {
        let (end, begun) = (Arc::clone(&end), Arc::clone(&begun));
        worker.poll_every(HOUR).async_runs(count as usize).handle_async("mail", move |run| {
            let (end, begun) = (Arc::clone(&end), Arc::clone(&begun));
            async move {
                let ended = end.notified();
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::select! {
                    () = ended => Ok(()),
                    () = run.cancelled() => Err(Failure::new("nobody has cancelled it")),
                }
            }
        })
    };
    let all: Vec<_> = (0..count).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&all).expect("scheduled");
    let worker = start(worker);
    until("all have begun", || begun.load(Ordering::Relaxed) == count);
    let span = Duration::from_secs(if count < 1000 { 2 } else { 20 });
    let before = (processor_times(database), worker.stats());
    thread::sleep(span); // what it costs in real time is the subject
    let after = (processor_times(database), worker.stats());
    let spent = [0, 1].map(|n| after.0[n].saturating_sub(before.0[n]));
    say(&format!("  {count} runs for {span:?}: processor time of process and server {spent:.1?}"));
    assert_eq!(after.1.claims, before.1.claims);
    end.notify_waiters();
    until("all are done", || worker.stats().done == count);
    assert_eq!((worker.stats().failed, worker.stats().lost), (0, 0));
}

// ----- stop ----------------------------------------------------------------------------------

/// Another worker starts what a stopped one had not, while a handler of that one still runs.
pub(super) fn what_a_stop_hands_back_starts_elsewhere_at_once(database: &Database<'_>) {
    const BEHIND: u64 = 4; // as many as it claims ahead in any case
    let timers = database.open();
    for (other, whose) in [(timers.clone(), "of this process"), (database.open(), "elsewhere")] {
        let (may_end, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let (begun, has_begun) = mpsc::channel();
        let slow = timers.worker().threads(1).handle("mail", move |run| {
            if !is_taught(run) {
                _ = begun.send(());
                _ = gate.lock().expect("no panic").recv();
            }
            Ok(())
        });
        let slow = start(slow);
        teach(&timers, &slow, "mail");
        let new: Vec<_> = (0..=BEHIND).map(|n| mail(&n.to_string(), NOW)).collect();
        timers.schedule_all(&new).expect("scheduled");
        has_begun.recv_timeout(PATIENCE).expect("it runs");
        let waiting = Filter::new().state(State::Waiting);
        until("all are claimed", || timers.list(&waiting).expect("a list").is_empty());
        let (worker, seen) = super::noting(&other);
        let worker = start(worker);
        until("it has looked", || worker.stats().looks > 0);
        let stopped = Instant::now();
        assert!(!slow.stop(NOW), "a handler runs");
        let first = next(&seen).at.saturating_duration_since(stopped);
        until("all but one are done", || worker.stats().done == BEHIND);
        let all = stopped.elapsed();
        say(&format!(
            "  {whose}: the first of {BEHIND} started after {first:.1?}, all done: {all:.1?}"
        ));
        assert!(all < Duration::from_secs(10), "without the end of a lease: {all:?}");
        assert_eq!((worker.stats().taken_over, slow.stats().released), (0, BEHIND));
        drop(may_end);
        assert!(slow.stop(PATIENCE) && worker.stop(PATIENCE));
        assert!(timers.list(&Filter::new()).expect("a list").is_empty());
    }
}
