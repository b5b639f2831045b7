//! What a worker keeps of attempts, for how long, and the traces of those that schedule.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{
    Attempt, Error, Failure, Filter, HistoryFilter, NewTimer, OpenOptions, Outcome, State, Timers,
    WorkerBuilder,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client};
use super::{HOUR, NOW, mail, quick};

fn of(timers: &Timers, kind: &str, key: &str) -> Vec<Attempt> {
    timers.history(&HistoryFilter::new().kind(kind).key(key)).expect("a history")
}

/// A start is in the time of the database, which a worker knows as exactly as a question and its answer are near to each other.
const SLACK: Duration = Duration::from_millis(500);

fn outcomes(attempts: &[Attempt]) -> Vec<Outcome> {
    attempts.iter().map(|attempt| attempt.outcome).collect()
}

/// The first two attempts fail, and take some milliseconds.
fn third_time_lucky(run: &tickwheel_durable::Run<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(5)); // real time: it is what is measured
    match run.attempt() {
        1 | 2 => Err(Failure::new(format!("no luck {}", run.attempt()))),
        _ => Ok(()),
    }
}

fn in_transaction(worker: WorkerBuilder, database: &Database<'_>) -> WorkerBuilder {
    if database.is_sqlite() {
        worker.handle_in_sqlite("tx", |run, _| third_time_lucky(run))
    } else {
        worker.handle_in_postgres("tx", |run, _| third_time_lucky(run))
    }
}

pub(crate) fn a_history_has_each_attempt(database: &Database<'_>) {
    let timers = database.open();
    let before = timers.now().expect("a time");
    let worker = timers.worker().retry(quick(3)).history(HOUR).name("me");
    let worker = worker.handle("mail", third_time_lucky);
    let worker = worker.handle_async("async", |run| async move { third_time_lucky(&run) });
    let worker = worker.spawn_with(|run| {
        std::thread::spawn(|| tickwheel::future::block_on(run));
    });
    let worker = in_transaction(worker, database);
    let worker = worker.handle("hopeless", |_| Err(Failure::for_good("never")));
    let worker = worker.handle("slow", |_| {
        std::thread::sleep(Duration::from_millis(80)); // real time: it exceeds its limit
        Ok(())
    });
    let worker = worker.time_limit(Duration::from_millis(20)).retry(quick(1));
    let worker = worker.handle("silent", third_time_lucky).history(Duration::ZERO);
    let was_put_off = AtomicBool::new(false);
    let worker = worker.handle("puts off", move |_| {
        let is_second = was_put_off.swap(true, Ordering::Relaxed);
        is_second.then_some(()).ok_or_else(|| Failure::snooze(Duration::from_millis(5)))
    });
    let worker = worker.on_error(|_| {}).start(Scheduler::global()).expect("it starts");
    let kinds = ["mail", "async", "tx", "hopeless", "slow", "silent", "puts off"];
    for kind in kinds {
        timers.schedule(&NewTimer::new(kind, "1", NOW).trace("t")).expect("scheduled");
    }
    let series = mail("series", NOW).every(HOUR);
    timers.schedule(&series).expect("scheduled");
    until("all have ended", || worker.stats().done == 6 && worker.stats().dead == 2);
    until("all threads are free", || worker.stats().stuck == 0);
    let after = timers.now().expect("a time");
    for kind in ["mail", "async", "tx"] {
        let past = of(&timers, kind, "1");
        assert_eq!(outcomes(&past), [Outcome::Done, Outcome::Failed, Outcome::Failed], "{kind}");
        let errors: Vec<_> = past.iter().map(|of| of.error.as_deref()).collect();
        assert_eq!(errors, [None, Some("no luck 2"), Some("no luck 1")], "{kind}");
        let attempts: Vec<_> = past.iter().map(|of| of.attempt).collect();
        assert_eq!(attempts, [3, 2, 1], "{kind}");
        assert!(past.is_sorted_by(|later, earlier| later.fence > earlier.fence), "{past:?}");
        for attempt in &past {
            assert!(attempt.started + SLACK >= before && attempt.started <= after + SLACK);
            assert!(attempt.took >= Duration::from_millis(5) && attempt.took < PATIENCE);
            assert!(attempt.late < PATIENCE, "{attempt:?}");
            assert_eq!(attempt.due, past[0].due, "a later attempt was due then too");
            assert_eq!((attempt.worker.as_str(), attempt.trace.as_deref()), ("me", Some("t")));
        }
    }
    assert_eq!(outcomes(&of(&timers, "hopeless", "1")), [Outcome::Dead]);
    let slow = of(&timers, "slow", "1");
    assert_eq!(outcomes(&slow), [Outcome::Dead]);
    assert!(slow[0].error.as_deref().expect("why").contains("time limit"), "{slow:?}");
    assert!(slow[0].took >= Duration::from_millis(20), "{slow:?}");
    assert_eq!(of(&timers, "silent", "1"), []);
    let put_off = of(&timers, "puts off", "1");
    assert_eq!(outcomes(&put_off), [Outcome::Done, Outcome::Snoozed]);
    assert_eq!((put_off[0].attempt, put_off[1].attempt), (1, 1), "it has used up none");
    assert_eq!(outcomes(&of(&timers, "mail", "series")).last(), Some(&Outcome::Failed));
    // In the history of the timer that is dead are all its errors, and its state is the same.
    let dead = timers.list(&Filter::new().state(State::Dead)).expect("a list");
    assert_eq!(dead.len(), 2);
    for timer in dead {
        let last = of(&timers, &timer.kind, &timer.key).remove(0);
        assert_eq!((last.outcome, last.error), (Outcome::Dead, timer.error));
    }
    let paces = timers.pace(HOUR, HOUR).expect("a pace");
    let done: u64 = paces.iter().map(|of| of.done).sum();
    assert_eq!(done, 5, "{paces:?}");
    assert!(worker.stop(PATIENCE));
}

/// Exactly-once with another client: the statement that ends the run writes its row too, in the same transaction.
pub(crate) fn a_completion_writes_its_attempt(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // it has no completions
    }
    let timers = database.open();
    let url = database.url();
    let worker = timers.worker().history(HOUR).retry(quick(2)).handle("mail", move |run| {
        let mut mine = client(&url);
        let mut transaction = mine.transaction()?;
        transaction.batch_execute(&run.completion()?)?;
        if run.key() == "undone" && run.attempt() == 1 {
            return Err(Failure::new("after the completion, which is undone"));
        }
        transaction.commit()?;
        if run.key() == "late" {
            return Err(Failure::new("it was done all the same"));
        }
        Ok(())
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let quoted = "it's \\ \"1\"";
    for new in [mail(quoted, NOW).trace(quoted), mail("undone", NOW), mail("late", NOW)] {
        timers.schedule(&new).expect("scheduled");
    }
    timers.schedule(&mail("series", NOW).every(HOUR)).expect("scheduled");
    until("all are over", || {
        let stats = worker.stats();
        stats.done == 3 && stats.lost == 1 && stats.running == 0
    });
    for key in [quoted, "late", "series"] {
        let past = of(&timers, "mail", key);
        assert_eq!(outcomes(&past), [Outcome::Done], "{key}: {past:?}");
        assert_eq!((past[0].attempt, past[0].worker.as_str()), (1, worker.name()));
        assert!(past[0].due <= past[0].started + SLACK);
        assert!(past[0].took > Duration::ZERO && past[0].took < PATIENCE, "{past:?}");
    }
    assert_eq!(of(&timers, "mail", quoted)[0].trace.as_deref(), Some(quoted));
    assert_eq!(outcomes(&of(&timers, "mail", "undone")), [Outcome::Done, Outcome::Failed]);
    assert!(worker.stop(PATIENCE));
}

/// The passes are a second apart here, because that is how long things are kept.
pub(crate) fn what_is_too_old_goes_while_the_worker_runs(database: &Database<'_>) {
    let timers = database.open();
    let short = Duration::from_millis(300);
    let worker = timers.worker().history(short).keep_dead(short).retry(quick(1));
    let worker = worker.handle("mail", |run| match run.key() {
        "dead" => Err(Failure::new("no")),
        _ => Ok(()),
    });
    let worker = worker.handle("kept", |_| Err(Failure::new("no"))).history(HOUR).keep_dead(HOUR);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    for new in [mail("dead", NOW), mail("done", NOW), NewTimer::new("kept", "dead", NOW)] {
        timers.schedule(&new).expect("scheduled");
    }
    until("all are over", || worker.stats().done == 1 && worker.stats().dead == 2);
    until("the dead one is gone", || super::is_gone(&timers, "dead"));
    until("so are the attempts", || {
        timers.history(&HistoryFilter::new().kind("mail")).expect("a history").is_empty()
    });
    assert!(timers.get("kept", "dead").expect("no error").is_some());
    assert_eq!(of(&timers, "kept", "dead").len(), 1);
    // It begins again, and again.
    timers.schedule(&mail("dead", NOW)).expect("scheduled");
    until("it is dead", || worker.stats().dead == 3);
    until("the dead one is gone again", || super::is_gone(&timers, "dead"));
    assert!(worker.stop(PATIENCE));
}

thread_local!(static CONTEXT: RefCell<Option<String>> = const { RefCell::new(None) });

fn with_context<T>(context: &str, call: impl FnOnce() -> T) -> T {
    CONTEXT.set(Some(context.to_owned()));
    let result = call();
    CONTEXT.set(None);
    result
}

/// The function is asked where the call is made, also for futures, whose calls are made on other threads.
pub(crate) fn whoever_schedules_has_its_trace_in_the_run(database: &Database<'_>) {
    let options = OpenOptions::new().trace_with(|| {
        CONTEXT.with_borrow(|context| {
            assert!(context.as_deref() != Some("panic"), "as it was told");
            context.clone()
        })
    });
    let timers = options.open(&database.address()).expect("it opens");
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().history(HOUR).handle("mail", move |run| {
        Ok(tell.send((run.key().to_owned(), run.trace().map(str::to_owned)))?)
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let futures = timers.asynchronous();
    with_context("sync", || timers.schedule(&mail("1", NOW))).expect("scheduled");
    with_context("of the caller", || timers.schedule(&mail("2", NOW).trace("its own")))
        .expect("scheduled");
    with_context("async", || {
        tickwheel::future::block_on(futures.schedule_all(&[mail("3", NOW), mail("4", NOW)]))
    })
    .expect("scheduled");
    timers.schedule(&mail("5", NOW)).expect("scheduled");
    with_context("panic", || timers.schedule(&mail("6", NOW))).expect("scheduled all the same");
    with_context(&"x".repeat(2000), || timers.schedule(&mail("7", NOW))).expect("scheduled");
    let mut seen: Vec<_> = (0..7).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    seen.sort();
    let traces: Vec<_> = seen.iter().map(|(_, trace)| trace.as_deref()).collect();
    let (here, own, there) = (Some("sync"), Some("its own"), Some("async"));
    assert_eq!(traces, [here, own, there, there, None, None, None]);
    until("it is written", || of(&timers, "mail", "1").len() == 1);
    assert_eq!(of(&timers, "mail", "1")[0].trace.as_deref(), Some("sync"));
    assert!(worker.stop(PATIENCE));
}

pub(crate) fn futures_see_the_history(database: &Database<'_>) {
    let timers = database.open();
    let futures = timers.asynchronous();
    let worker = timers.worker().history(HOUR).handle("mail", |_| Ok(()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    tickwheel::future::block_on(async {
        let new = [mail("1", NOW), mail("a/2", HOUR), mail("a/3", HOUR)];
        futures.schedule_all(&new).await?;
        until("it is done", || worker.stats().done == 1);
        assert_eq!(futures.history(&HistoryFilter::new()).await?.len(), 1);
        assert_eq!(futures.pace(HOUR, HOUR).await?[0].done, 1);
        assert!(futures.set_payload("mail", "a/2", "new").await?);
        assert_eq!(futures.cancel_all(&Filter::new().key_prefix("a/")).await?, 2);
        assert_eq!(futures.purge_history(SystemTime::now() + HOUR).await?, 1);
        Ok::<(), Error>(())
    })
    .expect("no error");
    assert!(worker.stop(PATIENCE));
}

/// SQLite may undo a transaction by itself, in which case each further statement is committed at once.
#[test]
fn what_the_database_has_undone_is_no_success_in_the_history() {
    let timers = Timers::open("sqlite::memory:").expect("it opens");
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().retry(quick(1)).history(HOUR);
    let worker = worker.handle_in_sqlite("tx", |_, transaction| {
        transaction.execute_batch("CREATE TABLE effects (key TEXT PRIMARY KEY)")?;
        for _ in 0..2 {
            _ = transaction.execute("INSERT OR ROLLBACK INTO effects VALUES ('a')", []);
        }
        Ok(())
    });
    let worker = worker.on_dead(move |_, reason| _ = tell.send(reason.to_owned()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&NewTimer::new("tx", "1", NOW)).expect("scheduled");
    let reason = told.recv_timeout(PATIENCE).expect("it dies");
    assert_eq!(outcomes(&of(&timers, "tx", "1")), [Outcome::Dead], "{reason}");
    assert!(reason.contains("has undone its transaction"), "{reason}");
    assert!(worker.stop(PATIENCE));
}
