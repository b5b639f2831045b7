//! S30: a worker whose executor is gone for good disposes itself; one whose executor does not answer costs little.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::log::Log;
use common::{Random, count, panic_on_purpose, silence, until};
use tickwheel::message_loop::MessageLoop;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{
    Cancellable, Driver, DueTask, Executor, Inline, Rejected, Schedule, ScheduleError, Scheduler,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The answer of an executor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Runs,
    Refuses,
    Drops,
    Panics,
    IsGone,
}

/// An executor that answers as the test says, and counts how often it was asked.
struct Moody {
    mood: Mutex<Mood>,
    asked: AtomicUsize,
}

impl Moody {
    fn new(mood: Mood) -> Arc<Moody> {
        Arc::new(Moody { mood: Mutex::new(mood), asked: AtomicUsize::new(0) })
    }

    fn becomes(&self, mood: Mood) {
        *self.mood.lock().expect("no panic") = mood;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mood = *self.mood.lock().expect("no panic");
        match mood {
            Mood::Runs => Inline.execute(task),
            Mood::Refuses => Err(Rejected::new(task)),
            Mood::Drops => {
                drop(task);
                Ok(())
            }
            Mood::Panics => panic_on_purpose(),
            Mood::IsGone => Err(Rejected::for_good(task)),
        }
    }
}

fn on(executor: &Arc<Moody>) -> (Worker, Scheduler, Driver) {
    silence();
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    (ExecutorScheduler::new(Arc::clone(executor), &timers).worker(), timers, driver)
}

/// Schedules a queued task, a delayed task, and a series that waits, each with a clone of `held`.
fn one_of_each(worker: &Worker, held: &Arc<()>) -> Vec<Cancellable> {
    let keep = || Arc::clone(held);
    let (queued, delayed, series) = (keep(), keep(), keep());
    vec![
        worker.schedule(move || drop(queued)),
        worker.schedule_after(3600 * SECOND, move || drop(delayed)),
        worker.schedule_periodically(3600 * SECOND, SECOND, move || drop(Arc::clone(&series))),
    ]
}

#[track_caller]
fn assert_ended(worker: &Worker, handles: &[Cancellable], held: &Arc<()>) {
    assert!(worker.is_disposed(), "it has disposed itself");
    assert!(handles.iter().all(|handle| handle.is_cancelled() && handle.is_done()));
    assert!(handles.iter().all(|handle| !handle.cancel()), "they were cancelled before");
    assert_eq!((Arc::strong_count(held), worker.pending()), (1, 0), "all closures are dropped");
}

#[test]
fn s30_a_worker_whose_executor_is_gone_disposes_itself() {
    let executor = Moody::new(Mood::Refuses);
    let (worker, timers, driver) = on(&executor);
    let held = Arc::new(());
    let handles = one_of_each(&worker, &held);
    driver.advance(SECOND);
    assert!(!worker.is_disposed() && worker.pending() == 3, "it waits");
    executor.becomes(Mood::IsGone);
    driver.advance(100 * MS);
    assert_ended(&worker, &handles, &held);
    assert_eq!(timers.pending(), 0, "no timer is left, and no retry");
    assert_eq!(Arc::strong_count(&executor), 1, "the worker has let its executor go");
    let asked = executor.asked();
    assert!(worker.schedule(|| unreachable!("disposed")).is_cancelled());
    assert!(worker.schedule_after(SECOND, || unreachable!("disposed")).is_cancelled());
    assert!(worker.schedule_periodically(SECOND, SECOND, || ()).is_cancelled());
    driver.advance(60 * SECOND);
    assert_eq!(executor.asked(), asked, "it is not asked any more");
}

/// Nothing is lost, because the caller gets the refusal at once.
#[test]
fn s30_a_task_that_finds_the_executor_gone_comes_back() {
    let log = Log::default();
    let (worker, timers, _driver) = on(&Moody::new(Mood::IsGone));
    let refused = worker.try_schedule(log.task(1)).expect_err("its executor is gone");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    refused.into_task()();
    assert!(worker.is_disposed());
    let (worker, _timers, _driver) = on(&Moody::new(Mood::IsGone));
    assert!(worker.schedule(|| unreachable!("gone")).is_cancelled());
    let (worker, _timers, _driver) = on(&Moody::new(Mood::IsGone));
    let task = Box::new(|| unreachable!("gone"));
    assert_eq!(worker.schedule_task(Duration::ZERO, task).err(), Some(ScheduleError::Closed));
    // The same is true for a scheduler.
    let (worker, _timers, _driver) = on(&Moody::new(Mood::IsGone));
    let said = log.task(2);
    let rejected = worker.execute(DueTask::new(Instant::now(), said)).expect_err("gone");
    assert!(rejected.is_for_good());
    rejected.into_task().run();
    assert_eq!((log.all(), timers.pending()), (vec![1, 2], 0));
}

#[test]
fn s30_a_delayed_task_that_finds_the_executor_gone_ends_the_worker() {
    let executor = Moody::new(Mood::IsGone);
    let (worker, timers, driver) = on(&executor);
    let held = Arc::new(());
    let late = Arc::clone(&held);
    let mut handles = vec![worker.schedule_after(SECOND, move || drop(late))];
    let more = Arc::clone(&held);
    handles.push(worker.schedule_after(3600 * SECOND, move || drop(more)));
    let series = Arc::clone(&held);
    let series = worker.schedule_periodically(SECOND, SECOND, move || drop(Arc::clone(&series)));
    handles.push(series);
    driver.advance(SECOND.saturating_sub(MS));
    assert_eq!((executor.asked(), worker.pending()), (0, 3), "nobody has asked it yet");
    driver.advance(MS);
    assert_ended(&worker, &handles, &held);
    assert_eq!((executor.asked(), timers.pending()), (1, 0));
}

/// The executor ends while the worker runs a batch. The rest of the batch is cancelled.
#[test]
fn s30_an_executor_that_goes_between_two_batches_ends_the_worker() {
    let executor = Moody::new(Mood::Runs);
    let (worker, _timers, _driver) = on(&executor);
    let (held, ran) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
    let handles = Arc::new(Mutex::new(Vec::new()));
    let (own, goes, keep, runs) =
        (worker.clone(), Arc::clone(&executor), Arc::clone(&held), Arc::clone(&ran));
    let all = Arc::clone(&handles);
    worker.schedule(move || {
        for _ in 0..1000 {
            let (keep, runs) = (Arc::clone(&keep), Arc::clone(&runs));
            let handle = own.schedule(move || {
                runs.fetch_add(1, Ordering::Relaxed);
                drop(keep);
            });
            all.lock().expect("no panic").push(handle);
        }
        goes.becomes(Mood::IsGone);
    });
    let ran = ran.load(Ordering::Relaxed);
    let cancelled =
        handles.lock().expect("no panic").iter().filter(|one| one.is_cancelled()).count();
    assert!(worker.is_disposed() && (1..100).contains(&ran), "one batch: {ran}");
    assert_eq!((ran + cancelled, Arc::strong_count(&held)), (1000, 1));
}

#[test]
fn s30_a_disposed_worker_refuses_a_scheduler_s_task_for_good_and_a_full_one_for_now() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let executor = Moody::new(Mood::Refuses);
    let worker = ExecutorScheduler::new(Arc::clone(&executor), &timers).max_pending(1).worker();
    worker.schedule(|| ());
    let full = worker.execute(DueTask::new(timers.now(), || ())).expect_err("full");
    assert!(!full.is_for_good());
    worker.dispose();
    let gone = worker.execute(DueTask::new(timers.now(), || ())).expect_err("disposed");
    assert!(gone.is_for_good());
    let log = Log::default();
    let on_worker = timers.with_executor(worker);
    (0..3).for_each(|number| {
        on_worker.schedule_once(SECOND, log.task(number)).expect("the wheel is open");
    });
    driver.advance(60 * SECOND);
    assert_eq!((timers.pending(), timers.stats().dropped()), (3, 0), "nothing is lost");
    assert_eq!((driver.close().run_all(), log.all()), (3, vec![0, 1, 2]));
}

#[test]
fn s30_what_nobody_holds_ends_with_its_executor() {
    let executor = Moody::new(Mood::Refuses);
    let (worker, timers, driver) = on(&executor);
    let held = Arc::new(());
    let handles = one_of_each(&worker, &held);
    drop(worker);
    driver.advance(10 * SECOND);
    executor.becomes(Mood::IsGone);
    driver.advance(100 * MS);
    assert!(handles.iter().all(Cancellable::is_cancelled));
    let counts = (Arc::strong_count(&held), Arc::strong_count(&executor), timers.pending());
    assert_eq!(counts, (1, 1, 0));
}

/// Nobody can dispose a worker without handles, so it gives up by itself, after a while.
#[test]
fn s30_what_nobody_holds_is_not_offered_for_ever() {
    for mood in [Mood::Refuses, Mood::Drops, Mood::Panics] {
        let executor = Moody::new(mood);
        let (worker, timers, driver) = on(&executor);
        let (held, log) = (Arc::new(()), Log::default());
        worker.schedule(log.task(1));
        drop(worker);
        driver.advance(30 * SECOND);
        executor.becomes(Mood::Runs);
        driver.advance(100 * MS);
        assert_eq!(log.all(), [1], "{mood:?}: it was still offered");
        executor.becomes(mood);
        let (worker, kept) =
            (ExecutorScheduler::new(Arc::clone(&executor), &timers).worker(), Arc::clone(&held));
        let handle = worker.schedule(move || drop(kept));
        driver.advance(600 * SECOND);
        assert!(!handle.is_done(), "{mood:?}: somebody holds the worker, and may dispose it");
        drop(worker);
        driver.advance(100 * MS);
        assert!(handle.is_cancelled(), "{mood:?}");
        let counts = (Arc::strong_count(&held), Arc::strong_count(&executor), timers.pending());
        assert_eq!(counts, (1, 1, 0), "{mood:?}");
    }
}

/// An executor that does not run its drain is asked less and less often, but at least every 100 ms.
#[test]
fn s30_an_executor_that_never_answers_costs_little() {
    for mood in [Mood::Refuses, Mood::Drops, Mood::Panics] {
        let executor = Moody::new(mood);
        let (worker, _timers, driver) = on(&executor);
        let handle = worker.schedule(|| ());
        driver.advance(3 * SECOND);
        let mut asked = executor.asked();
        for _ in 0..600 {
            driver.advance(100 * MS);
            let now = executor.asked();
            assert!((1..=2).contains(&(now - asked)), "{mood:?}: {} in 100 ms", now - asked);
            asked = now;
        }
        assert!(handle.cancel());
        driver.advance(SECOND);
        assert!(executor.asked() <= asked + 1, "{mood:?}: there is nothing to offer");
    }
}

/// An executor for which many workers wait is asked as often as for one worker. When it takes one drain it gets all of them.
#[test]
fn s30_many_workers_on_an_executor_that_refuses_cost_as_little_as_one() {
    for mood in [Mood::Refuses, Mood::Drops, Mood::Panics] {
        let executor = Moody::new(mood);
        let (_, timers, driver) = on(&executor);
        let workers = ExecutorScheduler::new(Arc::clone(&executor), &timers);
        let (workers, ran) = ([(); 1000].map(|()| workers.worker()), Arc::new(AtomicUsize::new(0)));
        for worker in &workers {
            let ran = Arc::clone(&ran);
            worker.schedule(move || _ = ran.fetch_add(1, Ordering::Relaxed));
        }
        driver.advance(3 * SECOND);
        let (asked, woken) = (executor.asked(), timers.stats().fired());
        driver.advance(10 * SECOND);
        assert!(executor.asked() - asked <= 200, "{mood:?}: {}", executor.asked() - asked);
        assert!(timers.stats().fired() - woken <= 200 && timers.pending() == 1, "{mood:?}");
        // Workers that are disposed wait no more, and hold nobody up.
        workers[..500].iter().for_each(Worker::dispose);
        executor.becomes(Mood::Runs);
        driver.advance(100 * MS);
        assert_eq!((ran.load(Ordering::Relaxed), timers.pending()), (500, 0), "{mood:?}");
        executor.becomes(mood);
        workers[500..].iter().for_each(|worker| _ = worker.schedule(|| ()));
        assert_eq!(timers.pending(), 1);
        workers.iter().for_each(Worker::dispose);
        assert_eq!(timers.pending(), 0, "{mood:?}: nobody waits");
    }
}

/// Producers, cancels and a disposal race with an executor that ends. Each closure has one end, and each handle tells which.
#[test]
fn s30_a_ledger_balances_while_the_executor_goes() {
    for seed in 0..count(300, 20_000) as u64 {
        let executor = Moody::new(Mood::Runs);
        let (worker, timers, driver) = on(&executor);
        let (held, ran) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let handles: Vec<_> = thread::scope(|scope| {
            let producers: Vec<_> = (0..2)
                .map(|producer| {
                    let (worker, held, ran) = (&worker, &held, &ran);
                    scope.spawn(move || {
                        let (mut random, mut handles) = (Random(2 * seed + producer), Vec::new());
                        for _ in 0..50 {
                            let (held, ran) = (Arc::clone(held), Arc::clone(ran));
                            let delay = SECOND * u32::from(random.one_in(4));
                            let handle = worker.schedule_after(delay, move || {
                                ran.fetch_add(1, Ordering::Relaxed);
                                drop(held);
                            });
                            if random.one_in(5) {
                                handle.cancel();
                            }
                            handles.push(handle);
                        }
                        handles
                    })
                })
                .collect();
            scope.spawn(|| {
                (0..seed % 7).for_each(|_| thread::yield_now());
                executor.becomes(Mood::IsGone);
            });
            if seed % 3 == 0 {
                scope.spawn(|| worker.dispose());
            }
            producers.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
        });
        executor.becomes(Mood::IsGone);
        driver.advance(SECOND);
        worker.schedule(|| unreachable!("gone"));
        let cancelled = handles.iter().filter(|handle| handle.is_cancelled()).count();
        assert!(worker.is_disposed() && handles.iter().all(Cancellable::is_done), "seed {seed}");
        assert_eq!(ran.load(Ordering::Relaxed) + cancelled, handles.len(), "seed {seed}");
        let left = (Arc::strong_count(&held), worker.pending(), timers.pending());
        assert_eq!(left, (1, 0, 0), "seed {seed}");
    }
}

/// A destructor schedules on the worker that disposes itself, which also drops the executor.
#[test]
fn s30_user_code_runs_with_nothing_locked_while_a_worker_ends_itself() {
    struct Schedules(Worker, Arc<AtomicBool>);
    impl Drop for Schedules {
        fn drop(&mut self) {
            let refused = self.0.try_schedule(|| ()).expect_err("it is disposed");
            assert_eq!((refused.reason(), self.0.pending()), (ScheduleError::Closed, 0));
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let executor = Moody::new(Mood::Refuses);
    let (worker, _timers, driver) = on(&executor);
    let dropped = Arc::new(AtomicBool::new(false));
    let schedules = Schedules(worker.clone(), Arc::clone(&dropped));
    worker.schedule(move || drop(schedules));
    executor.becomes(Mood::IsGone);
    driver.advance(SECOND);
    assert!(dropped.load(Ordering::Relaxed) && worker.is_disposed());
}

#[test]
fn s30_a_worker_on_a_loop_that_quit_disposes_itself() {
    let timers = Scheduler::new();
    let looper = MessageLoop::prepare().expect("the first one");
    let worker = ExecutorScheduler::new(looper.runner(), &timers).worker();
    let held = Arc::new(());
    let handles = one_of_each(&worker, &held);
    looper.runner().quit();
    drop(looper);
    // The tick thread disposes of it: first the worker says so, then its tasks go, one by one.
    until("it finds out", || worker.is_disposed());
    until("the tick thread is through", || Arc::strong_count(&held) == 1 && timers.pending() == 0);
    assert_ended(&worker, &handles, &held);
}

#[test]
fn s30_a_worker_on_a_pool_that_was_shut_down_disposes_itself() {
    let (timers, pool) = (Scheduler::new(), ScheduledThreadPool::new(1));
    let worker = ExecutorScheduler::new(pool.clone(), &timers).worker();
    drop(pool.shutdown_now());
    assert!(worker.schedule(|| unreachable!("it is shut down")).is_cancelled());
    assert!(worker.is_disposed() && timers.pending() == 0);
}
