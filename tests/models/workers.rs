//! Models of the drain of a worker ([`crate::rx`]).
//!
//! The executor starts a thread for each drain, so that a drain may run as late as possible. A lost drain leaves a task
//! behind. Two drains at once, or tasks that do not see each other, lose writes. The last check of each model finds
//! both.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use loom::thread;

use super::threads;
use crate::engine::slots::magazines;
use crate::platform::sync::{AtomicU64, Ordering};
use crate::rx::{ExecutorScheduler, Worker};
use crate::{DueTask, Executor, ManualClock, Rejected, Scheduler};

/// Runs each drain on a thread of its own. All accesses are Relaxed, because the numbers only choose the scenario.
struct Threads {
    /// How many drains it still refuses for now.
    refusals: AtomicUsize,
    /// How many drains it still takes before it is gone for good.
    takes: AtomicUsize,
}

impl Executor for Threads {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let left = self.refusals.load(Ordering::Relaxed);
        if left > 0 {
            self.refusals.store(left - 1, Ordering::Relaxed);
            return Err(Rejected::new(task));
        }
        let takes = self.takes.load(Ordering::Relaxed);
        if takes == 0 {
            return Err(Rejected::for_good(task));
        }
        self.takes.store(takes - 1, Ordering::Relaxed);
        threads::start("drain".to_owned(), move || task.run()).expect("a thread");
        Ok(())
    }
}

fn worker(refusals: usize) -> (Worker, Scheduler, crate::Driver) {
    worker_on(Threads { refusals: AtomicUsize::new(refusals), takes: AtomicUsize::new(usize::MAX) })
}

fn worker_on(threads: Threads) -> (Worker, Scheduler, crate::Driver) {
    let builder = Scheduler::builder().clock(ManualClock::new()).wheel_size(1);
    let (timers, driver) = builder.build_driven().expect("good");
    (ExecutorScheduler::new(threads, &timers).worker(), timers, driver)
}

/// The digits that the tasks write. The accesses are Relaxed, so they order nothing: a task that does not see the task
/// before it, or overlaps with it, loses a digit.
#[derive(Clone)]
struct Log(Arc<AtomicU64>);

impl Log {
    fn new() -> Log {
        Log(Arc::new(AtomicU64::new(0)))
    }

    fn task(&self, digit: u64) -> impl FnOnce() + Send + 'static {
        let Log(log) = self.clone();
        move || {
            let before = log.load(Ordering::Relaxed);
            log.store(before * 10 + digit, Ordering::Relaxed);
        }
    }

    /// Returns all digits. All threads must have ended.
    fn digits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Two producers against the drains. Each task runs once, in its producer's order, and sees the one before (WORKER-1).
#[test]
fn models_no_task_is_left_without_a_drain() {
    loom::model(|| {
        let (worker, log) = (worker(0).0, Log::new());
        let other = {
            let (worker, log) = (worker.clone(), log.clone());
            thread::spawn(move || {
                worker.schedule(log.task(1));
            })
        };
        worker.schedule(log.task(2));
        worker.schedule(log.task(3));
        other.join().unwrap();
        threads::end();
        assert!([123, 213, 231].contains(&log.digits()), "{}", log.digits());
        assert_eq!(worker.pending(), 0);
    });
}

/// A cancel against the run. Either the task ran or the cancel won (JOB-1), and the handle says that it is over.
#[test]
fn models_a_worker_s_cancel_against_its_run() {
    loom::model(|| {
        let (worker, log) = (worker(0).0, Log::new());
        let held = Arc::new(());
        let (task, captured) = (log.task(1), Arc::clone(&held));
        let handle = worker.schedule(move || {
            let _captured = captured;
            task();
        });
        let won = handle.cancel();
        let dropped = Arc::strong_count(&held) == 1;
        assert!(dropped || !won, "a cancel that wins drops the closure (S9)");
        threads::end();
        assert_eq!(log.digits(), u64::from(!won));
        assert!(handle.is_done() && handle.is_cancelled() == won && worker.pending() == 0);
    });
}

/// A thread that finds a task done sees what the task has written.
#[test]
fn models_done_shows_the_writes_of_a_worker_s_task() {
    loom::model(|| {
        let (worker, log) = (worker(0).0, Log::new());
        let handle = worker.schedule(log.task(1));
        if handle.is_done() {
            assert_eq!(log.digits(), 1);
        }
        threads::end();
    });
}

/// A dispose against a schedule and the drain. Afterwards no task starts, and no closure is kept (WORKER-2).
#[test]
fn models_dispose_against_schedule_and_drain() {
    loom::model(|| {
        let (worker, runs) = (worker(0).0, Arc::new(AtomicUsize::new(0)));
        let task = |runs: &Arc<AtomicUsize>| {
            let runs = Arc::clone(runs);
            move || _ = runs.fetch_add(1, Ordering::Relaxed)
        };
        let first = worker.schedule(task(&runs));
        let other = {
            let (worker, runs) = (worker.clone(), Arc::clone(&runs));
            thread::spawn(move || worker.schedule(task(&runs)))
        };
        worker.dispose();
        assert!(worker.schedule(|| unreachable!("disposed")).is_cancelled());
        let second = other.join().unwrap();
        threads::end();
        let cancelled = [first, second].iter().filter(|handle| handle.is_cancelled()).count();
        assert_eq!(runs.load(Ordering::Relaxed) + cancelled, 2);
        assert_eq!((Arc::strong_count(&runs), worker.pending()), (1, 0), "all are dropped");
    });
}

/// A dispose against a delayed task. Whether it comes before or after the dispose, it is cancelled (WORKER-2).
#[test]
fn models_dispose_against_a_delay() {
    loom::model(|| {
        let (worker, _timers, driver) = worker(0);
        let other = {
            let worker = worker.clone();
            thread::spawn(move || {
                worker.dispose();
                magazines::flush();
            })
        };
        let late = worker.schedule_after(Duration::from_secs(1), || unreachable!());
        other.join().unwrap();
        drop(driver);
        threads::end();
        assert!(late.is_cancelled());
    });
}

/// A refused drain against a further task. A timer or the task hands the drain over again, once (DRAIN-1).
#[test]
fn models_a_refused_drain_is_not_lost() {
    loom::model(|| {
        let ((worker, _timers, driver), log) = (worker(1), Log::new());
        let other = {
            let (worker, log) = (worker.clone(), log.clone());
            thread::spawn(move || {
                worker.schedule(log.task(1));
                magazines::flush();
            })
        };
        worker.schedule(log.task(2));
        other.join().unwrap();
        driver.advance(Duration::from_millis(1));
        drop(driver);
        threads::end();
        assert!([12, 21].contains(&log.digits()) && worker.pending() == 0, "{}", log.digits());
    });
}

/// A cancel against a run of a series that is due again. The cancel wins, and the series does not run again (JOB-1,
/// WORKER-2).
#[test]
fn models_a_series_does_not_escape_its_cancel() {
    loom::model(|| {
        let ((worker, timers, driver), runs) = (worker(0), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&runs);
        let later = Duration::from_secs(1);
        let series = worker.schedule_periodically(Duration::ZERO, later, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(series.cancel());
        threads::end();
        assert!(series.is_cancelled() && runs.load(Ordering::Relaxed) <= 1);
        assert_eq!((Arc::strong_count(&runs), worker.pending(), timers.pending()), (1, 0, 0));
        drop(driver);
    });
}

/// An executor that is gone, at once or after one drain, against a further task. Each task runs or is cancelled, and no
/// closure is kept (WORKER-4).
#[test]
fn models_a_gone_executor_ends_the_worker() {
    for takes in [0, 1] {
        loom::model(move || {
            let threads = Threads { refusals: AtomicUsize::new(0), takes: AtomicUsize::new(takes) };
            let (worker, timers, driver) = worker_on(threads);
            let runs = Arc::new(AtomicUsize::new(0));
            let task = |runs: &Arc<AtomicUsize>| {
                let runs = Arc::clone(runs);
                move || _ = runs.fetch_add(1, Ordering::Relaxed)
            };
            let other = {
                let (worker, runs) = (worker.clone(), Arc::clone(&runs));
                thread::spawn(move || {
                    let handle = worker.schedule(task(&runs));
                    magazines::flush();
                    handle
                })
            };
            let first = worker.schedule(task(&runs));
            let second = other.join().unwrap();
            let last = worker.schedule(task(&runs));
            drop(driver);
            threads::end();
            // If the executor takes one drain, that drain may run all three tasks.
            assert!(worker.is_disposed() || takes == 1);
            let cancelled =
                [first, second, last].iter().filter(|handle| handle.is_cancelled()).count();
            assert_eq!(runs.load(Ordering::Relaxed) + cancelled, 3);
            let held = (Arc::strong_count(&runs), worker.pending(), timers.pending());
            assert_eq!(held, (1, 0, 0), "all have run or are dropped");
        });
    }
}

/// A reset of a queued task against the drain. If the reset wins, the task waits for its new time (DELAY-2).
#[test]
fn models_a_reset_of_a_queued_task_against_the_drain() {
    loom::model(|| {
        let ((worker, timers, driver), log) = (worker(0), Log::new());
        let task = worker.schedule(log.task(1));
        let won = task.reset(Duration::from_secs(1));
        threads::end();
        assert_eq!((log.digits(), worker.pending()), if won { (0, 1) } else { (1, 0) });
        assert_eq!((task.is_done(), timers.pending()), (!won, usize::from(won)));
        driver.advance(Duration::from_secs(1));
        threads::end();
        assert_eq!((log.digits(), worker.pending(), timers.pending()), (1, 0, 0), "once");
        drop(driver);
        threads::end();
    });
}

/// A reset against the timer of a delayed task that is due. If the reset wins, the task runs at its new time (DELAY-2).
#[test]
fn models_a_reset_of_a_delayed_task_against_its_timer() {
    loom::model(|| {
        let ((worker, timers, driver), log) = (worker(0), Log::new());
        let second = Duration::from_secs(1);
        let task = worker.schedule_after(second, log.task(1));
        let other = thread::spawn(move || {
            let won = task.reset_at(timers.now() + 10 * second);
            magazines::flush();
            (won, timers)
        });
        driver.advance(second);
        let (won, timers) = other.join().unwrap();
        threads::end();
        // If the reset has read the clock before it moved, the new time is that much closer.
        driver.advance(8 * second);
        threads::end();
        assert_eq!((log.digits(), worker.pending()), if won { (0, 1) } else { (1, 0) });
        driver.advance(2 * second);
        threads::end();
        assert_eq!((log.digits(), worker.pending(), timers.pending()), (1, 0, 0), "once");
        drop(driver);
        threads::end();
    });
}

/// Two resets of a delayed task. The last one counts, and the timer follows it (DELAY-2).
#[test]
fn models_a_reset_of_a_delayed_task_against_another() {
    loom::model(|| {
        let ((worker, _timers, driver), log) = (worker(0), Log::new());
        let second = Duration::from_secs(1);
        let task = worker.schedule_after(20 * second, log.task(1));
        let handle = task.clone();
        let other = thread::spawn(move || {
            assert!(handle.reset(10 * second), "it waits");
            magazines::flush();
        });
        assert!(task.reset(5 * second), "it waits");
        other.join().unwrap();
        let left = task.deadline().expect("it waits").duration_since(driver.now());
        assert!(left == 5 * second || left == 10 * second);
        driver.advance(left - second);
        threads::end();
        assert_eq!((log.digits(), worker.pending()), (0, 1), "early");
        driver.advance(second);
        threads::end();
        assert_eq!((log.digits(), worker.pending()), (1, 0), "late");
        drop(driver);
        threads::end();
    });
}

/// A reset against the end of a run of a series. Wherever it comes, the next run is where it has moved it (JOB-5).
#[test]
fn models_a_reset_of_a_series_against_its_run() {
    loom::model(|| {
        let ((worker, _timers, driver), runs) = (worker(0), Arc::new(AtomicUsize::new(0)));
        let (count, second) = (Arc::clone(&runs), Duration::from_secs(1));
        let series = worker.schedule_periodically(Duration::ZERO, 10 * second, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(series.reset(second), "a series moves, whether it waits or runs");
        threads::end();
        let before = runs.load(Ordering::Relaxed);
        assert!(before <= 1);
        driver.advance(second);
        threads::end();
        assert_eq!((runs.load(Ordering::Relaxed), worker.pending()), (before + 1, 1));
        assert!(series.cancel());
        drop(driver);
        threads::end();
    });
}
