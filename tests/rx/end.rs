//! S30: a worker whose executor is gone for good disposes itself; one whose executor does not answer costs little.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::{PATIENCE, Random, count, panic_on_purpose, silence, until};
use tickwheel::message_loop::{LoopThread, MessageLoop, TaskRunner};
use tickwheel::pool::{ScheduledThreadPool, ShutdownPolicy};
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{
    Cancellable, Driver, DueTask, Executor, Inline, ManualClock, Rejected, Schedule, ScheduleError,
    Scheduler,
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

/// A series that is due in the worker's queue has no timer left that could be moved.
#[test]
fn a_reset_over_a_closed_scheduler_tells_the_truth() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let keeps = move |task: DueTask| keep.lock().expect("no panic").push(task);
    let worker = ExecutorScheduler::new(keeps, &timers).worker();
    let runs = Arc::new(AtomicUsize::new(0));
    let ran = Arc::clone(&runs);
    let count = move || _ = ran.fetch_add(1, Ordering::Relaxed);
    let series = worker.schedule_periodically(Duration::ZERO, SECOND, count);
    drop(driver.close());
    assert!(!series.reset(60 * SECOND), "it could not be put off");
    let tasks = std::mem::take(&mut *kept.lock().expect("no panic"));
    tasks.into_iter().for_each(DueTask::run);
    assert_eq!(runs.load(Ordering::Relaxed), 1, "so it runs");
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

// ----- stops of what a worker runs on -----------------------------------------------------------

/// More than a drain runs in one go.
const MANY: usize = 1000;

/// Something that runs tasks and keeps time, with one way to stop it.
struct Host {
    worker: Worker,
    stop: Box<dyn FnOnce()>,
    /// Waits until it has ended.
    ends: Box<dyn FnOnce()>,
}

type Quit = fn(&TaskRunner);

/// The pools and loops of this crate, with each way to stop them that lets run what they have accepted. A worker's delays
/// are kept by the host itself, or by a scheduler.
fn hosts(timers: &Scheduler) -> Vec<(String, Host)> {
    fn workers<E: Executor + Schedule + Clone>(on: &E, timers: &Scheduler) -> [Worker; 4] {
        let below = Worker::new(on.clone());
        [
            Worker::new(on.clone()),
            ExecutorScheduler::over(on.clone(), on.clone()).worker(),
            ExecutorScheduler::new(on.clone(), timers).worker(),
            ExecutorScheduler::new(below, timers).worker(),
        ]
    }
    let mut all = Vec::new();
    for run_delayed in [true, false] {
        for number in 0..4 {
            let policy = ShutdownPolicy::default().run_delayed(run_delayed);
            let pool = ScheduledThreadPool::builder().threads(1).shutdown_policy(policy).build();
            let pool = pool.expect("one thread");
            let worker = workers(&pool, timers)[number].clone();
            let other = pool.clone();
            let host = Host {
                worker,
                stop: Box::new(move || pool.shutdown()),
                ends: Box::new(move || assert!(other.await_termination(PATIENCE))),
            };
            all.push((format!("shutdown, {run_delayed}, {number}"), host));
        }
    }
    let quits: [(&str, Quit); 3] = [
        ("quit", TaskRunner::quit),
        ("quit_safely", TaskRunner::quit_safely),
        ("quit_when_idle", TaskRunner::quit_when_idle),
    ];
    for (name, quit) in quits {
        for number in 0..4 {
            let thread = LoopThread::spawn("host").expect("a thread");
            let runner = thread.runner();
            let worker = workers(&runner, timers)[number].clone();
            let host = Host {
                worker,
                stop: Box::new(move || quit(&runner)),
                ends: Box::new(move || thread.join().expect("no panic")),
            };
            all.push((format!("{name}, {number}"), host));
        }
    }
    for number in 0..4 {
        let thread = LoopThread::spawn("host").expect("a thread");
        let runner = thread.runner();
        let worker = workers(&runner, timers)[number].clone();
        let ends = move || {
            until("it takes no posts", || runner.post(|| ()).is_err());
        };
        let host = Host { worker, stop: Box::new(move || drop(thread)), ends: Box::new(ends) };
        all.push((format!("a dropped thread, {number}"), host));
    }
    all
}

/// A worker on a pool. Its delays are kept by this scheduler, or by the pool.
fn worker_on(pool: &ScheduledThreadPool, timers: Option<&Scheduler>) -> Worker {
    let of_the_pool = || Worker::new(pool.clone());
    timers.map_or_else(of_the_pool, |timers| ExecutorScheduler::new(pool.clone(), timers).worker())
}

/// Schedules a task that runs until the sender is dropped, and waits until it does.
fn block(worker: &Worker) -> mpsc::Sender<()> {
    let ((release, wait), (tell, told)) = (mpsc::channel::<()>(), mpsc::channel());
    worker.schedule(move || {
        tell.send(()).expect("awaited");
        _ = wait.recv();
    });
    told.recv_timeout(PATIENCE).expect("it runs");
    release
}

/// Many tasks that count themselves, in order.
fn queue_many(worker: &Worker, ran: &Arc<AtomicUsize>) -> Vec<Cancellable> {
    let task = |number| {
        let ran = Arc::clone(ran);
        worker.schedule(move || assert_eq!(ran.fetch_add(1, Ordering::Relaxed), number))
    };
    (0..MANY).map(task).collect()
}

#[test]
fn s30_what_a_worker_has_accepted_runs_before_a_graceful_stop_ends() {
    let timers = Scheduler::new();
    for (name, Host { worker, stop, ends }) in hosts(&timers) {
        let ran = Arc::new(AtomicUsize::new(0));
        let gate = block(&worker);
        let handles = queue_many(&worker, &ran);
        stop();
        drop(gate);
        until(&name, || handles.iter().all(Cancellable::is_done));
        assert_eq!(ran.load(Ordering::Relaxed), MANY, "{name}");
        assert!(!handles.iter().any(Cancellable::is_cancelled), "{name}");
        ends();
        assert!(worker.schedule(|| unreachable!("it is over")).is_cancelled(), "{name}");
        assert!(worker.is_disposed() && worker.pending() == 0, "{name}");
    }
}

/// The tasks that the scheduler has handed over run. Those that come later stay with it.
#[test]
fn s30_what_a_scheduler_has_handed_to_a_worker_runs_before_a_graceful_stop_ends() {
    let timers = Scheduler::new();
    for (name, Host { worker, stop, ends }) in hosts(&timers) {
        let scheduler = Scheduler::builder().executor(worker.clone()).build().expect("a thread");
        let ran = Arc::new(AtomicUsize::new(0));
        let gate = block(&worker);
        for _ in 0..MANY {
            let ran = Arc::clone(&ran);
            let task = move || _ = ran.fetch_add(1, Ordering::Relaxed);
            scheduler.schedule_once(Duration::ZERO, task).expect("open");
        }
        until("all are handed over", || worker.pending() == MANY);
        stop();
        drop(gate);
        until(&name, || ran.load(Ordering::Relaxed) == MANY);
        ends();
        scheduler
            .schedule_once(Duration::ZERO, || unreachable!("its executor is gone"))
            .expect("open");
        until("it is refused", || scheduler.stats().rejected() > 0);
        assert_eq!(
            (scheduler.stats().fired(), scheduler.stats().dropped()),
            (MANY as u64, 0),
            "{name}"
        );
        assert_eq!(scheduler.close().expect("in time").len(), 1, "{name}");
    }
}

/// A stop at once may come while a drain runs: then the rest of its batch still runs.
#[test]
fn s30_a_hard_stop_cancels_what_a_worker_has_accepted() {
    let timers = Scheduler::new();
    for is_on_timers in [false, true] {
        let on = |pool: &ScheduledThreadPool| worker_on(pool, is_on_timers.then_some(&timers));
        // Also after a graceful one, in its midst.
        for is_graceful_before in [false, true] {
            let (pool, ran) = (ScheduledThreadPool::new(1), Arc::new(AtomicUsize::new(0)));
            let worker = on(&pool);
            let gate = block(&worker);
            let (now, at_once) = (pool.clone(), is_graceful_before.then_some(300));
            let mut handles = Vec::new();
            for number in 0..MANY {
                let (ran, now) = (Arc::clone(&ran), now.clone());
                handles.push(worker.schedule(move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                    if at_once == Some(number) {
                        drop(now.shutdown_now());
                    }
                }));
            }
            let delayed = worker.schedule_after(SECOND, || unreachable!("it is stopped"));
            if is_graceful_before {
                pool.shutdown();
            } else {
                drop(pool.shutdown_now());
            }
            drop((gate, now));
            let are_over = || handles.iter().chain([&delayed]).all(Cancellable::is_done);
            until("all are over", are_over);
            let (ran, first) = (ran.load(Ordering::Relaxed), at_once.unwrap_or(0));
            assert!((first..first + 100).contains(&ran), "{ran}");
            let cancelled = handles.iter().filter(|handle| handle.is_cancelled()).count();
            assert_eq!((ran + cancelled, worker.pending()), (MANY, 0));
            assert!(worker.is_disposed() && pool.await_termination(PATIENCE));
        }
    }
    let looper = MessageLoop::prepare().expect("the first one");
    let (worker, ran) = (Worker::new(looper.runner()), Arc::new(AtomicUsize::new(0)));
    worker.schedule(|| MessageLoop::current().expect("in a task").quit());
    let handles = queue_many(&worker, &ran);
    looper.run();
    let ran = ran.load(Ordering::Relaxed);
    let cancelled = handles.iter().filter(|handle| handle.is_cancelled()).count();
    assert!(worker.is_disposed() && ran < 100, "{ran}");
    assert_eq!(ran + cancelled, MANY);
}

/// Runs tasks inside of the call, and when it is told to finish goes on with what it has begun.
struct Finishing {
    is_told: AtomicBool,
    is_running: AtomicBool,
}

impl Executor for Finishing {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if self.is_told.load(Ordering::Relaxed) {
            return Err(Rejected::finishing(task, self.is_running.load(Ordering::Relaxed)));
        }
        self.is_running.store(true, Ordering::Relaxed);
        task.run();
        self.is_running.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Such a call is bounded by 100 ms otherwise, and the rest goes to the timers.
#[test]
fn s30_an_inline_executor_that_finishes_runs_all_in_one_call() {
    let clock = ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone());
    let (timers, driver) = builder.build_driven().expect("good");
    let (is_told, is_running) = (AtomicBool::new(false), AtomicBool::new(false));
    let executor = Arc::new(Finishing { is_told, is_running });
    let worker = ExecutorScheduler::new(Arc::clone(&executor), &timers).worker();
    let (inner, ran) = (worker.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&ran);
    worker.schedule(move || {
        for _ in 0..500 {
            let (count, clock) = (Arc::clone(&count), clock.clone());
            inner.schedule(move || {
                clock.advance(MS);
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        executor.is_told.store(true, Ordering::Relaxed);
    });
    driver.advance(SECOND);
    assert_eq!(ran.load(Ordering::Relaxed), 500);
    assert!(worker.is_disposed() && worker.pending() == 0);
}

/// The pool keeps the time of such a worker, so its policy decides.
#[test]
fn s30_the_policy_of_a_pool_holds_for_the_delayed_tasks_of_a_worker() {
    type Make = fn(&ScheduledThreadPool) -> Worker;
    let makes: [Make; 2] = [
        |pool| Worker::new(pool.clone()),
        |pool| ExecutorScheduler::over(pool.clone(), pool.clone()).worker(),
    ];
    for make in makes {
        for run_delayed in [true, false] {
            let (clock, log) = (ManualClock::new(), Log::default());
            let policy = ShutdownPolicy::default().run_delayed(run_delayed);
            let builder = ScheduledThreadPool::builder().threads(2).clock(clock.clone());
            let pool = builder.shutdown_policy(policy).build().expect("threads");
            let worker = make(&pool);
            let series = worker.schedule_periodically(SECOND, SECOND, || ());
            let delayed = [3, 1, 2].map(|n| worker.schedule_after(SECOND * n, log.task(n)));
            pool.shutdown();
            // A new task is refused, and harms nobody.
            assert!(worker.schedule(|| unreachable!("it is shut down")).is_cancelled());
            assert!(worker.is_disposed());
            assert!(delayed.iter().all(|handle| handle.is_done() != run_delayed));
            assert_eq!(delayed[0].reset(4 * SECOND), run_delayed, "it still waits");
            clock.advance(4 * SECOND);
            assert!(pool.await_termination(PATIENCE));
            assert!(delayed.iter().all(Cancellable::is_done) && series.is_done());
            assert_eq!(log.all(), if run_delayed { vec![1, 2, 3] } else { Vec::new() });
            assert_eq!(worker.pending(), 0);
        }
    }
}

#[test]
fn s30_quit_safely_runs_the_delayed_tasks_of_a_worker_that_are_due() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the first one");
    let worker = Worker::new(looper.runner());
    worker.schedule_after(SECOND, log.task(2));
    let later = worker.schedule_after(2 * SECOND, || unreachable!("it is not due"));
    worker.schedule(log.task(1));
    clock.advance(SECOND);
    looper.runner().quit_safely();
    looper.run();
    assert_eq!(log.all(), [1, 2]);
    drop(looper);
    assert!(later.is_done() && worker.pending() == 0);
}

/// A task that schedules the next one, and a series that lags, end with their pool.
#[test]
fn s30_a_worker_that_is_never_done_does_not_keep_its_pool_from_its_end() {
    fn again(worker: &Worker, cancelled: &Arc<AtomicBool>) {
        let (own, told) = (worker.clone(), Arc::clone(cancelled));
        if worker.schedule(move || again(&own, &told)).is_cancelled() {
            cancelled.store(true, Ordering::Relaxed);
        }
    }
    let timers = Scheduler::new();
    for is_on_timers in [false, true] {
        let pool = ScheduledThreadPool::new(2);
        let new = || worker_on(&pool, is_on_timers.then_some(&timers));
        let (chain, lags, cancelled) = (new(), new(), Arc::new(AtomicBool::new(false)));
        again(&chain, &cancelled);
        let nano = Duration::from_nanos(1);
        let series = lags.schedule_periodically(Duration::ZERO, nano, || ());
        pool.shutdown();
        assert!(pool.await_termination(PATIENCE));
        until("both are over", || cancelled.load(Ordering::Relaxed) && series.is_done());
    }
}

/// Others go on scheduling while a pool is shut down. What came before the call runs, and each closure has one end.
#[test]
fn s30_a_ledger_balances_while_a_pool_is_shut_down() {
    let timers = Scheduler::new();
    for seed in 0..count(150, 10_000) as u64 {
        let pool = ScheduledThreadPool::new(2);
        let worker = worker_on(&pool, (seed % 2 == 0).then_some(&timers));
        let (held, ran) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let task = || {
            let (held, ran) = (Arc::clone(&held), Arc::clone(&ran));
            move || {
                ran.fetch_add(1, Ordering::Relaxed);
                drop(held);
            }
        };
        let (before, others) = thread::scope(|scope| {
            let producer = |number| {
                let (worker, task) = (&worker, &task);
                scope.spawn(move || {
                    let mut random = Random(2 * seed + number);
                    let delay = |random: &mut Random| MS * u32::from(random.one_in(4));
                    (0..300).map(|_| worker.schedule_after(delay(&mut random), task())).collect()
                })
            };
            let producers = [producer(0), producer(1)];
            // The pool has the worker's drain, or it could refuse the one that another thread is about to bring.
            let gate = block(&worker);
            let before: Vec<_> = (0..200).map(|_| worker.schedule(task())).collect();
            pool.shutdown();
            drop(gate);
            let others = producers
                .into_iter()
                .flat_map(|one| -> Vec<Cancellable> { one.join().expect("no panic") });
            (before, others.collect::<Vec<_>>())
        });
        assert!(pool.await_termination(PATIENCE), "seed {seed}");
        let all = || before.iter().chain(&others);
        until("all are over", || all().all(Cancellable::is_done) && Arc::strong_count(&held) == 1);
        assert!(!before.iter().any(Cancellable::is_cancelled), "seed {seed}");
        let cancelled = all().filter(|handle| handle.is_cancelled()).count();
        // A delayed task whose timer was dropped is done, and neither has run nor was cancelled.
        let sum = ran.load(Ordering::Relaxed) + cancelled;
        assert!(sum <= 800 && ran.load(Ordering::Relaxed) >= 200, "seed {seed}: {sum}");
        assert_eq!(worker.pending(), 0, "seed {seed}");
    }
}
