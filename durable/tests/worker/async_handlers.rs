//! Handlers that are futures on a runtime: how many run at once, and what becomes of those that panic, never end, block their
//! thread, or lose their runtime.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{Failure, Filter, NewTimer, State, StopReason, Timers, WorkerBuilder};
use tokio::runtime::{Builder, Runtime};

use super::common::{PATIENCE, until};
use super::databases::Database;
use super::{HOUR, LEASE, LIMIT, NOW, TAUGHT, is_gone, mail, noting, quick, teach};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

/// A worker whose futures run on this runtime.
fn on(runtime: &Runtime, timers: &Timers) -> WorkerBuilder {
    let handle = runtime.handle().clone();
    timers.worker().spawn_with(move |run| drop(handle.spawn(run)))
}

pub(super) fn async_handlers_run_at_the_same_time_up_to_a_bound(database: &Database<'_>) {
    const BOUND: usize = 7;
    const COUNT: u64 = 60;
    let (timers, runtime) = (database.open(), runtime());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        on(&runtime, &timers).handle_async("mail", move |run| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                assert!(tokio::runtime::Handle::try_current().is_ok() && run.is_current());
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        })
    };
    let all: Vec<_> = (0..COUNT).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&all).expect("scheduled");
    let worker = worker.async_runs(BOUND).threads(2).start(Scheduler::global());
    let worker = worker.expect("it starts");
    until("all are done", || worker.stats().done == COUNT);
    assert_eq!(most.load(Ordering::Relaxed), BOUND);
    let stats = worker.stats();
    assert_eq!((stats.claimed, stats.failed, stats.lost), (COUNT, 0, 0));
    assert!(worker.stop(PATIENCE));
}

/// Each of them waits until all are under way. Nothing is known of how long they take, so their starts are written first, and a
/// commit for each would take a disk seconds.
pub(super) fn a_thousand_async_handlers_run_at_the_same_time(database: &Database<'_>) {
    const COUNT: u64 = 1000;
    let (timers, runtime) = (database.open(), runtime());
    let all_are_here = Arc::new(tokio::sync::Barrier::new(COUNT as usize));
    let worker = on(&runtime, &timers).handle_async("mail", move |_| {
        let all_are_here = Arc::clone(&all_are_here);
        async move {
            all_are_here.wait().await;
            Ok(())
        }
    });
    let all: Vec<_> = (0..COUNT).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&all).expect("scheduled");
    let commits =
        || if database.is_sqlite() { 0 } else { database.number("SELECT txid_current()") };
    let (before, begin) = (commits(), Instant::now());
    let worker = worker.async_runs(COUNT as usize).start(Scheduler::global()).expect("it starts");
    until("all are done", || worker.stats().done == COUNT);
    let commits = commits() - before;
    println!("  {COUNT} at once: {:?}, {commits} commits", begin.elapsed());
    assert!(commits.unsigned_abs() < COUNT / 2, "{commits} commits");
    assert_eq!((worker.stats().failed, worker.stats().lost), (0, 0));
    assert!(worker.stop(PATIENCE));
}

pub(super) fn a_panic_of_an_async_handler_is_a_failure(database: &Database<'_>) {
    let (timers, runtime) = (database.open(), runtime());
    let worker = on(&runtime, &timers).retry(quick(3)).handle_async("mail", |run| {
        assert!(run.key() != "at once" || run.attempt() > 1, "before there is a future");
        async move {
            tokio::task::yield_now().await;
            match run.attempt() {
                1 => panic!("in the middle"),
                2 => Err(Failure::new("an error")),
                _ => Ok(()),
            }
        }
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    timers.schedule(&mail("at once", NOW)).expect("scheduled");
    until("both are done", || worker.stats().done == 2);
    assert_eq!((worker.stats().failed, worker.stats().dead), (4, 0));
    timers.schedule(&mail("dead", NOW).max_attempts(1)).expect("scheduled");
    until("it is dead", || worker.stats().dead == 1);
    let dead = timers.get("mail", "dead").expect("no error").expect("there");
    assert_eq!(dead.error.as_deref(), Some("panicked: in the middle"));
    assert!(worker.stop(PATIENCE));
}

/// Says that it is dropped.
struct Tell(mpsc::Sender<u32>, u32);

impl Drop for Tell {
    fn drop(&mut self) {
        _ = self.0.send(self.1);
    }
}

#[test]
fn a_future_that_never_ends_is_dropped_at_its_time_limit() {
    let database = Database::file();
    let (timers, runtime) = (database.open(), runtime());
    let (tell, told) = mpsc::channel();
    let worker = on(&runtime, &timers).handle_async("mail", move |run| {
        let tell = Tell(tell.clone(), run.attempt());
        async move {
            if run.attempt() == 1 {
                pending::<()>().await;
            }
            drop(tell);
            Ok(())
        }
    });
    let worker = worker.retry(quick(5)).time_limit(LIMIT);
    let worker = worker.async_runs(1).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(1), "it is dropped");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(2), "there is room for the next attempt");
    until("it is done", || worker.stats().done == 1 && worker.stats().stuck == 0);
    assert_eq!((worker.stats().timed_out, worker.stats().failed), (1, 1));
    assert!(worker.stop(PATIENCE));
}

/// A runtime that is held up has not started the handlers that wait for it: they lose no attempt, and their time begins with theirs.
#[test]
fn what_waits_for_its_runtime_uses_up_no_time() {
    let database = Database::file();
    let timers = database.open();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let waiting = Arc::clone(&runs);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().spawn_with(move |run| waiting.lock().expect("no panic").push(run));
    let worker = worker.handle_async("mail", move |run| {
        let tell = tell.clone();
        async move { Ok(tell.send((run.attempt(), run.is_current()))?) }
    });
    let worker = worker.retry(quick(1)).time_limit(LIMIT).start(Scheduler::global());
    let worker = worker.expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it waits", || runs.lock().expect("no panic").len() == 1);
    thread::sleep(LIMIT * 3 / 2); // real time: longer than the limit is the subject
    // One that has waited for too long comes again.
    until("it is done", || {
        let runs = std::mem::take(&mut *runs.lock().expect("no panic"));
        runs.into_iter().for_each(tickwheel::future::block_on);
        worker.stats().done == 1
    });
    let stats = worker.stats();
    assert_eq!((stats.failed, stats.timed_out, stats.dead), (0, 0, 0));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [(1, true)]);
    assert!(worker.stop(PATIENCE));
}

/// The time limit counts from the first poll, however long that was awaited.
#[test]
fn the_time_of_a_future_begins_with_its_first_poll() {
    let database = Database::file();
    let timers = database.open();
    let (launch, launched) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().spawn_with(move |run| _ = launch.send(run));
    let worker = worker.handle_async("mail", move |run| {
        let tell = tell.clone();
        async move {
            thread::sleep(LIMIT / 2); // the work
            Ok(tell.send(run.is_current())?)
        }
    });
    let worker = worker.retry(quick(5)).time_limit(LIMIT).start(Scheduler::global());
    let worker = worker.expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let (mut was_current, mut late) = (false, 0);
    while !was_current {
        let run = launched.recv_timeout(PATIENCE).expect("it comes");
        thread::sleep(LIMIT * 3 / 4); // real time: the wait is the subject
        tickwheel::future::block_on(run);
        // One that has waited for too long, on a busy machine, comes again. One that was held up in its work is tried again.
        if let Ok(is_current) = told.try_recv() {
            was_current = is_current;
            late += u32::from(!is_current);
            assert!(late < 5, "each time");
        }
    }
    until("it is done", || worker.stats().done == 1);
    assert!(worker.stop(PATIENCE));
}

/// Otherwise a worker whose runtime is stuck, or that stops, would hold for ever what nobody polls.
#[test]
fn what_nobody_polls_is_given_back() {
    let database = Database::file();
    let timers = database.open();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let waiting = Arc::clone(&runs);
    let worker = timers.worker().spawn_with(move |run| waiting.lock().expect("no panic").push(run));
    let worker = worker.handle_async("mail", async |_| Ok(())).retry(quick(1));
    let worker = worker.time_limit(Duration::from_millis(50)).start(Scheduler::global());
    let worker = worker.expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it was given back, and came again", || runs.lock().expect("no panic").len() > 1);
    assert!(worker.stop(PATIENCE));
    let left = timers.get("mail", "1").expect("no error").expect("there");
    assert_eq!((left.state, left.attempts), (State::Waiting, 0));
    let runs = std::mem::take(&mut *runs.lock().expect("no panic"));
    runs.into_iter().for_each(tickwheel::future::block_on);
    assert_eq!(
        (worker.stats().done, worker.stats().timed_out),
        (0, 0),
        "its handler is not called"
    );
}

#[test]
fn a_long_future_keeps_its_lease() {
    let database = Database::file();
    let (timers, runtime) = (database.open(), runtime());
    let sleeping = |timers: &Timers| {
        let worker = on(&runtime, timers).handle_async("mail", async |run| {
            tokio::time::sleep(LEASE * 3 / 2).await; // longer than a lease is the subject
            assert!(run.is_current());
            Ok(())
        });
        worker.lease(LEASE).poll_every(LEASE / 10).start(Scheduler::global()).expect("it starts")
    };
    let workers = [sleeping(&timers), sleeping(&database.open())];
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is done", || is_gone(&timers, "1"));
    let sum = |of: fn(&tickwheel_durable::WorkerStats) -> u64| {
        workers.iter().map(|worker| of(&worker.stats())).sum::<u64>()
    };
    until("it is counted", || sum(|stats| stats.done) == 1);
    assert_eq!((sum(|stats| stats.taken_over), sum(|stats| stats.lost)), (0, 0));
}

/// A future that waits without `await` holds up its runtime, and its kind no longer than it takes.
#[test]
fn a_future_that_blocks_its_thread_is_stuck_until_it_returns() {
    let database = Database::file();
    let (timers, runtime) = (database.open(), runtime());
    let (let_go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let gate = Arc::new(gate);
    let worker = on(&runtime, &timers).handle_async("mail", move |run| {
        let gate = Arc::clone(&gate);
        async move {
            if run.key() == "blocks" && run.attempt() == 1 {
                _ = gate.lock().expect("no panic").recv();
            }
            Ok(())
        }
    });
    let worker = worker.retry(quick(5)).time_limit(LIMIT);
    let worker = worker.async_runs(1).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("blocks", NOW)).expect("scheduled");
    until("it is stuck", || worker.stats().stuck == 1);
    timers.schedule(&mail("other", NOW)).expect("scheduled");
    until("another one and its next attempt run", || worker.stats().done == 2);
    let_go.send(()).expect("it waits");
    until("it has come back", || worker.stats().stuck == 0);
    assert_eq!(worker.stats().timed_out, 1);
    assert!(worker.stop(PATIENCE));
}

/// It was claimed ahead, and no other timer comes that would have a thread look.
#[test]
fn what_waits_behind_a_future_that_blocks_starts_when_that_is_stuck() {
    let database = Database::file();
    let (timers, runtime) = (database.open(), runtime());
    let (let_go, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let worker = on(&runtime, &timers).handle_async("mail", move |run| {
        let gate = Arc::clone(&gate);
        async move {
            if run.key() == "blocks" {
                _ = gate.lock().expect("no panic").recv();
            }
            Ok(())
        }
    });
    let worker = worker.retry(quick(1)).time_limit(LIMIT);
    let worker = worker.async_runs(1).start(Scheduler::global()).expect("it starts");
    teach(&timers, &worker, "mail");
    let blocks = NewTimer::new("mail", "blocks", SystemTime::now() - HOUR);
    timers.schedule_all(&[blocks, mail("other", NOW)]).expect("scheduled");
    until("the other one runs", || worker.stats().done == TAUGHT + 1);
    assert_eq!((worker.stats().stuck, worker.stats().dead), (1, 1));
    let_go.send(()).expect("it waits");
    until("it has come back", || worker.stats().stuck == 0);
    assert!(worker.stop(PATIENCE));
}

#[test]
fn a_runtime_that_shuts_down_gives_its_timers_to_others() {
    let database = Database::file();
    let (timers, runtime) = (database.open(), runtime());
    let started = Arc::new(AtomicU32::new(0));
    let (tell, errors) = mpsc::channel();
    let worker = {
        let started = Arc::clone(&started);
        let worker = on(&runtime, &timers).handle_async("mail", move |_| {
            let started = Arc::clone(&started);
            async move {
                started.fetch_add(1, Ordering::Relaxed);
                pending().await
            }
        });
        worker.retry(quick(5)).on_error(move |error| _ = tell.send(error.to_string()))
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("begun", NOW)).expect("scheduled");
    until("it has begun", || started.load(Ordering::Relaxed) == 1);
    drop(runtime);
    // The one that had begun has lost an attempt, and the other was never started.
    until("the next attempt finds no runtime", || worker.stop_reason().is_some());
    timers.schedule(&mail("other", NOW)).expect("scheduled");
    assert_eq!(worker.wait(PATIENCE), Some(StopReason::RuntimeGone));
    let error = errors.recv_timeout(PATIENCE).expect("it is told");
    assert!(error.contains("the runtime of its async handlers is gone"), "{error}");
    let left = timers.list(&Filter::new()).expect("a list");
    let left: Vec<_> =
        left.iter().map(|timer| (timer.key.as_str(), timer.state, timer.attempts)).collect();
    assert_eq!(left.len(), 2);
    for one in [("begun", State::Waiting, 1), ("other", State::Waiting, 0)] {
        assert!(left.contains(&one), "{left:?}");
    }
    assert_eq!(started.load(Ordering::Relaxed), 1);
    let (other, seen) = noting(&timers);
    let other = other.start(Scheduler::global()).expect("it starts");
    let mut attempts: Vec<_> = (0..2).map(|_| super::next(&seen).attempt).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2]);
    assert!(other.stop(PATIENCE));
}

/// The runtime drops the run of a timer that may have killed a process, before its handler was called.
pub(super) fn what_is_suspected_and_never_polled_stays_suspected(database: &Database<'_>) {
    let timers = database.open();
    let due = if database.is_sqlite() { "1" } else { "to_timestamp(1)" };
    // The lease of a dead worker has ended.
    database.execute(&format!(
        "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', 'suspected', {due});
        UPDATE tickwheel_timers SET state = 'running', fence = 1, attempts = 1, owner = 'dead', held_until = {due}"
    ));
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().spawn_with(drop).handle_async("mail", async |_| Ok(()));
    let worker = worker
        .lease(Duration::from_secs(1))
        .on_error(move |error| _ = tell.send(error.to_string()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    assert_eq!(worker.wait(PATIENCE), Some(StopReason::RuntimeGone));
    assert!(told.recv_timeout(PATIENCE).expect("it says so").contains("runtime"));
    assert_eq!((worker.stats().taken_over, worker.stats().released), (1, 0));
    let get = || timers.get("mail", "suspected").expect("no error").expect("there");
    assert_eq!(get().attempts, 1, "the attempt that was none is not counted");
    assert_eq!(get().state, State::Running);
    let (other, seen) = noting(&timers);
    let other = other.poll_every(Duration::from_millis(50)).start(Scheduler::global());
    let other = other.expect("it starts");
    assert_eq!((super::next(&seen).attempt, other.stats().taken_over), (2, 1));
    assert!(other.stop(PATIENCE));
}

/// Runs that were cancelled before they were polled tell nothing of how long their handler takes. It is as slow as before, so its
/// starts are written before it is called.
#[test]
fn what_was_not_called_makes_no_handler_quick() {
    let database = Database::file();
    let timers = database.open();
    let (launch, launched) = mpsc::channel();
    let launched = || launched.recv_timeout(PATIENCE).expect("it comes");
    let worker = timers.worker().spawn_with(move |run| _ = launch.send(run));
    let worker = worker.handle_async("mail", async |run| {
        if run.key() == "probe" {
            until("it is cancelled", || !run.is_current());
        }
        thread::sleep(Duration::from_millis(20)); // the work
        Ok(())
    });
    let worker = worker.retry(quick(100)).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("first", NOW)).expect("scheduled");
    tickwheel::future::block_on(launched());
    timers.schedule(&mail("probe", NOW)).expect("scheduled");
    let probe = launched();
    let many: Vec<_> = (0..40).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&many).expect("scheduled");
    let many: Vec<_> = many.iter().map(|_| launched()).collect();
    assert_eq!(timers.cancel_all(&Filter::new()).expect("no error"), 41);
    tickwheel::future::block_on(probe);
    many.into_iter().for_each(tickwheel::future::block_on);
    until("they are over", || worker.stats().running == 0);
    assert_eq!(worker.stats().done, 1);
    timers.schedule(&mail("last", NOW)).expect("scheduled");
    let last = launched();
    let written = timers.get("mail", "last").expect("no error").expect("there").attempts;
    assert_eq!(written, 1, "its start is written");
    tickwheel::future::block_on(last);
    assert!(worker.stop(PATIENCE));
}

/// With one thread for all, a stop that waited would wait for ever.
#[test]
fn a_worker_ends_on_the_thread_that_runs_its_futures() {
    let database = Database::file();
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let timers = database.open();
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let worker = on_this(&timers).handle_async("mail", move |_| {
            begun.send(()).expect("it is awaited");
            async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok(())
            }
        });
        let worker = worker.start(Scheduler::global()).expect("it starts");
        timers.asynchronous().schedule(&mail("1", NOW)).await.expect("scheduled");
        has_begun.recv().await.expect("it begins");
        assert!(!worker.stop(Duration::ZERO), "a handler runs");
        let stopped = Scheduler::global().timeout(PATIENCE, worker.stopped()).await;
        assert_eq!(stopped.ok(), Some(StopReason::Stopped));
        assert_eq!(worker.stats().done, 1);
        assert_eq!(worker.stopped().await, StopReason::Stopped, "again, at once");
    });
}

/// Whoever waits for the end beside other work is polled whenever there is some of that, for as long as the service lives.
#[test]
fn a_task_that_waits_for_the_end_is_kept_once() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let timers = Timers::open("sqlite::memory:").expect("it opens");
    let worker = noting(&timers).0.start(Scheduler::global()).expect("it starts");
    let task = Arc::new(Task);
    let waker = Waker::from(Arc::clone(&task));
    for _ in 0..100 {
        // A `select!` in a loop makes a new future each time.
        let mut end = pin!(worker.stopped());
        for _ in 0..10 {
            assert!(end.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    let kept = Arc::strong_count(&task);
    assert!(kept <= 3, "{kept} of the test, its waker and the worker");
    assert!(worker.stop(PATIENCE));
    until("it was woken", || Arc::strong_count(&task) == 2);
}

fn on_this(timers: &Timers) -> WorkerBuilder {
    let handle = tokio::runtime::Handle::current();
    timers.worker().spawn_with(move |run| drop(handle.spawn(run)))
}

/// Futures are for any runtime, and for none.
#[test]
fn a_thread_may_be_the_runtime() {
    let database = Database::file();
    let timers = database.open();
    let worker = timers.worker().spawn_with(|run| {
        thread::spawn(move || tickwheel::future::block_on(run));
    });
    let worker = worker.handle_async("mail", async |_| Ok(()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW).every(HOUR)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    let next = timers.get("mail", "1").expect("no error").expect("it goes on");
    assert_eq!((next.state, next.attempts), (State::Waiting, 0));
    assert!(worker.stop(PATIENCE));
}
