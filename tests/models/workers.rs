//! The drain of a worker: [`crate::rx`].
//!
//! The executor starts a thread for each drain that it is given, so that everything happens as late as it
//! can. A drain that is lost leaves a task behind, and two drains at once, or tasks that do not see each
//! other, lose what they write: the last check of each model sees both.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use loom::thread;

use super::threads;
use crate::platform::sync::{AtomicU64, Ordering};
use crate::rx::{ExecutorScheduler, Worker};
use crate::{DueTask, Executor, ManualClock, Rejected, Scheduler};

/// Runs each drain on a thread of its own. Refuses the first ones, or is gone after some.
struct Threads {
    refusals: AtomicUsize,
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

/// What the tasks write, without an order of their own: one that does not see the one before, or runs
/// beside it, loses its digit.
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

    /// When all threads have ended.
    fn all(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// WORKER-1: two producers and the drains. Each task runs once, in its producer's order, and sees the one before.
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
        assert!([123, 213, 231].contains(&log.all()), "{}", log.all());
        assert_eq!(worker.pending(), 0);
    });
}

/// JOB-1: a cancel against the run. It ran, or the cancel won, and either way its end is known.
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
        assert!(dropped || !won, "S9");
        threads::end();
        assert_eq!(log.all(), u64::from(!won));
        assert!(handle.is_done() && handle.is_cancelled() == won && worker.pending() == 0);
    });
}

/// Who finds that a task is done sees what it has done.
#[test]
fn models_done_shows_what_a_worker_s_task_did() {
    loom::model(|| {
        let (worker, log) = (worker(0).0, Log::new());
        let handle = worker.schedule(log.task(1));
        if handle.is_done() {
            assert_eq!(log.all(), 1);
        }
        threads::end();
    });
}

/// WORKER-2: a dispose against a schedule and the drain. Afterwards nothing starts, and nothing is held.
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

/// WORKER-2: a dispose against a task that is delayed. Taken in before it or after, it is cancelled.
#[test]
fn models_dispose_against_a_delay() {
    loom::model(|| {
        let (worker, _timers, driver) = worker(0);
        let other = {
            let worker = worker.clone();
            thread::spawn(move || {
                worker.dispose();
                crate::engine::slots::magazines::flush();
            })
        };
        let late = worker.schedule_after(Duration::from_secs(1), || unreachable!());
        other.join().unwrap();
        drop(driver);
        threads::end();
        assert!(late.is_cancelled());
    });
}

/// DRAIN-1: a drain that is refused, against a further task. It is handed over by whoever comes, once.
#[test]
fn models_a_refused_drain_is_not_lost() {
    loom::model(|| {
        let ((worker, _timers, driver), log) = (worker(1), Log::new());
        let other = {
            let (worker, log) = (worker.clone(), log.clone());
            thread::spawn(move || {
                worker.schedule(log.task(1));
                crate::engine::slots::magazines::flush();
            })
        };
        worker.schedule(log.task(2));
        other.join().unwrap();
        driver.advance(Duration::from_millis(1));
        drop(driver);
        threads::end();
        assert!([12, 21].contains(&log.all()) && worker.pending() == 0, "{}", log.all());
    });
}

/// JOB-1, WORKER-5: a cancel of a series that runs, and goes on. It wins, and there is no further run.
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

/// WORKER-7: an executor that is gone, at once or after one drain, against a further task. Each task runs or is
/// cancelled, and nothing is held.
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
                    crate::engine::slots::magazines::flush();
                    handle
                })
            };
            let first = worker.schedule(task(&runs));
            let second = other.join().unwrap();
            let last = worker.schedule(task(&runs));
            drop(driver);
            threads::end();
            // With one drain to take, all three may have come before it rested.
            assert!(worker.is_disposed() || takes == 1);
            let cancelled =
                [first, second, last].iter().filter(|handle| handle.is_cancelled()).count();
            assert_eq!(runs.load(Ordering::Relaxed) + cancelled, 3);
            let held = (Arc::strong_count(&runs), worker.pending(), timers.pending());
            assert_eq!(held, (1, 0, 0), "all have run or are dropped");
        });
    }
}
