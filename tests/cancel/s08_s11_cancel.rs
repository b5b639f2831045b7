//! Cancel: exactly one caller wins, the closure is dropped at once, no other task is ever hit, and user code
//! runs with nothing locked (S8 to S11).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::driven;
use tickwheel::{Cancellable, DueTask, Scheduler};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A task that counts its runs, and a count of how many of its closures are alive.
fn counted(runs: &Arc<AtomicUsize>, alive: &Arc<()>) -> impl FnOnce() + Send + 'static {
    let (runs, alive) = (Arc::clone(runs), Arc::clone(alive));
    move || {
        let _hold = alive;
        runs.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn s08_a_cancel_wins_once_and_prevents_the_run() {
    let (scheduler, driver) = driven();
    let runs = Arc::new(AtomicUsize::new(0));
    let handle = scheduler.schedule_once(SECOND, counted(&runs, &Arc::default())).expect("open");
    let clone = handle.clone();
    assert!(!handle.is_done() && !handle.is_cancelled());

    assert!(clone.cancel());
    assert!(!handle.cancel() && !clone.cancel(), "it was cancelled before");
    for handle in [&handle, &clone] {
        assert!(handle.is_cancelled() && handle.is_done());
    }
    assert_eq!(driver.advance(HOUR), 0);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[test]
fn s08_a_task_that_has_run_cannot_be_cancelled() {
    let (scheduler, driver) = driven();
    let handle = scheduler.schedule_once(SECOND, || ()).expect("open");
    assert_eq!(driver.advance(SECOND), 1);
    assert!(handle.is_done() && !handle.is_cancelled());
    assert!(!handle.cancel() && !handle.is_cancelled());
}

#[test]
fn s08_a_one_shot_that_runs_is_neither_done_nor_to_be_cancelled() {
    let (scheduler, driver) = driven();
    let own = Arc::new(Mutex::new(None::<Cancellable>));
    let seen = Arc::clone(&own);
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let handle = scheduler.schedule_once(SECOND, move || {
        let own = seen.lock().expect("whole");
        let own = own.as_ref().expect("put there before the run");
        assert!(!own.is_done());
        assert!(!own.cancel(), "too late");
        tell.store(true, Ordering::Relaxed);
    });
    *own.lock().expect("whole") = Some(handle.expect("open"));
    driver.advance(SECOND);
    assert!(told.load(Ordering::Relaxed));
}

#[test]
fn s08_what_waits_in_an_executors_queue_can_still_be_cancelled() {
    let (queue, tasks) = mpsc::channel::<DueTask>();
    let (scheduler, driver) = Scheduler::builder()
        .executor_fn(move |task| queue.send(task).expect("the receiver lives"))
        .build_driven()
        .expect("the defaults are good");
    let (runs, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let first = scheduler.schedule_once(SECOND, counted(&runs, &alive)).expect("open");
    let _second = scheduler.schedule_once(SECOND, counted(&runs, &alive)).expect("open");
    driver.advance(SECOND);
    assert_eq!(scheduler.pending(), 2, "handed over is not yet run");

    assert!(first.cancel());
    assert_eq!(Arc::strong_count(&alive), 2, "the cancelled closure is gone");
    assert_eq!(tasks.try_iter().map(DueTask::run).count(), 2);
    assert_eq!((runs.load(Ordering::Relaxed), scheduler.pending()), (1, 0));
}

#[test]
fn s08_a_cancelled_task_is_not_handed_to_an_executor() {
    let handed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handed);
    let (scheduler, driver) = Scheduler::builder()
        .executor_fn(move |task| {
            count.fetch_add(1, Ordering::Relaxed);
            task.run();
        })
        .build_driven()
        .expect("the defaults are good");
    let handles: Vec<_> =
        (0..10).map(|_| scheduler.schedule_once(SECOND, || ()).expect("open")).collect();
    assert_eq!(handles.iter().skip(1).filter(|handle| handle.cancel()).count(), 9);
    assert_eq!(driver.advance(SECOND), 1);
    assert_eq!(handed.load(Ordering::Relaxed), 1);
}

#[test]
fn s08_a_cancel_during_a_series_run_prevents_all_further_runs() {
    let (scheduler, driver) = driven();
    let own = Arc::new(Mutex::new(None::<Cancellable>));
    let seen = Arc::clone(&own);
    let mut run = 0;
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, move || {
        run += 1;
        let own = seen.lock().expect("whole");
        let own = own.as_ref().expect("put there before the run");
        if run == 3 {
            assert!(own.cancel());
            assert!(!own.cancel(), "once");
            assert!(own.is_cancelled() && own.is_done());
        }
    });
    let series = series.expect("open");
    *own.lock().expect("whole") = Some(series.clone());
    assert_eq!(driver.advance(HOUR), 3);
    assert!(series.is_cancelled() && series.is_done() && !series.cancel());
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled(), stats.pending()), (1, 0));
}

#[test]
fn s08_many_threads_cancel_and_one_wins() {
    const THREADS: usize = 4;
    let (scheduler, _driver) = driven();
    let handles: Arc<Vec<_>> =
        Arc::new((0..2_000).map(|_| scheduler.schedule_once(HOUR, || ()).expect("open")).collect());
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (handles, start) = (Arc::clone(&handles), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                handles.iter().filter(|handle| handle.cancel()).count()
            })
        })
        .collect();
    let won: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert_eq!(won, handles.len());
    assert_eq!(scheduler.stats().cancelled(), won as u64);
}

#[test]
fn s09_the_closure_is_dropped_before_cancel_returns() {
    let (scheduler, _driver) = driven();
    let (runs, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let small = scheduler.schedule_once(HOUR, counted(&runs, &alive)).expect("open");
    let weight = [0_u64; 64];
    let hold = Arc::clone(&alive);
    let large = scheduler.schedule_once(HOUR, move || drop((hold, weight))).expect("open");
    let hold = Arc::clone(&alive);
    let series = scheduler.schedule_repeatedly(HOUR, HOUR, move || drop(hold.clone()));
    assert_eq!(Arc::strong_count(&alive), 4);
    for (left, handle) in (1..4).rev().zip([small, large, series.expect("open")]) {
        assert!(handle.cancel());
        assert_eq!(Arc::strong_count(&alive), left);
    }
}

#[test]
fn s09_a_panic_in_a_captured_drop_is_reported_and_the_cancel_stands() {
    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("boom");
        }
    }
    let (report, reports) = mpsc::channel();
    let (scheduler, _driver) = Scheduler::builder()
        .on_panic(move |panic| drop(report.send(panic.message().map(str::to_owned))))
        .build_driven()
        .expect("the defaults are good");
    let grenade = Grenade;
    let handle = scheduler.schedule_once(HOUR, move || drop(grenade)).expect("open");
    let won = catch_unwind(AssertUnwindSafe(|| handle.cancel()));
    assert_eq!(won.ok(), Some(true));
    assert_eq!(reports.try_recv().ok().flatten().as_deref(), Some("boom"));
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn s09_a_place_of_a_cancelled_task_is_used_again() {
    let (scheduler, driver) =
        Scheduler::builder().max_pending(1).build_driven().expect("the defaults are good");
    for _ in 0..100_000 {
        let handle = scheduler.schedule_once(HOUR, || ()).expect("the one before was cancelled");
        assert!(handle.cancel());
    }
    assert_eq!(driver.turn(), None, "nothing is left to come back for");
}

#[test]
fn s10_a_stale_handle_hits_nobody_however_often_its_slot_was_used_again() {
    let (scheduler, driver) = driven();
    let cancelled = scheduler.schedule_once(HOUR, || ()).expect("open");
    let its_clone = cancelled.clone();
    assert!(cancelled.cancel());
    let ran = scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    assert_eq!(driver.turn().map(|_| ()), None);

    let mut runs = 0;
    for round in 0..10_000 {
        let next = scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
        assert!(!cancelled.cancel() && !its_clone.cancel() && !ran.cancel(), "round {round}");
        assert!(!next.is_done() && !next.is_cancelled());
        if round % 2 == 0 {
            runs += driver.advance(Duration::ZERO);
            assert!(next.is_done() && !next.is_cancelled());
        } else {
            assert!(next.cancel());
        }
        // Each handle knows for ever how its task ended, and not only for as long as the slot remembers it.
        assert!(cancelled.is_cancelled() && its_clone.is_cancelled() && cancelled.is_done());
        assert!(ran.is_done() && !ran.is_cancelled());
    }
    assert_eq!(runs, 5_000);
}

#[test]
fn s10_a_handle_outlives_its_scheduler() {
    let (scheduler, driver) = driven();
    let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
    let cancelled = scheduler.schedule_once(HOUR, || ()).expect("open");
    assert!(cancelled.cancel());
    drop((scheduler, driver));
    assert!(handle.is_done() && !handle.is_cancelled() && !handle.cancel());
    assert!(cancelled.is_cancelled());
    assert!(!format!("{handle:?}").is_empty());
}

#[test]
fn s11_tasks_and_destructors_may_schedule_cancel_close_and_drop() {
    /// Calls the scheduler when it is dropped.
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let (scheduler, driver) = driven();
    let done = Arc::new(AtomicUsize::new(0));

    // A cancel drops a value whose destructor schedules.
    let (inner, count) = (scheduler.clone(), Arc::clone(&done));
    let guard = OnDrop(move || {
        let count = Arc::clone(&count);
        let task = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        inner.schedule_once(SECOND, task).expect("open");
    });
    let handle = scheduler.schedule_once(HOUR, move || drop(guard)).expect("open");
    assert!(handle.cancel());
    assert_eq!(scheduler.pending(), 1);

    // A run drops a value whose destructor cancels another task.
    let victim = scheduler.schedule_once(HOUR, || ()).expect("open");
    let (other, count) = (victim.clone(), Arc::clone(&done));
    let guard = OnDrop(move || {
        count.fetch_add(usize::from(other.cancel()), Ordering::Relaxed);
    });
    scheduler.schedule_once(SECOND, move || drop(guard)).expect("open");
    driver.advance(SECOND);
    assert!(victim.is_cancelled());
    assert_eq!(done.load(Ordering::Relaxed), 2);

    // A task that drops a handle to its scheduler and a destructor that stops it.
    let (last, inner) = (scheduler.clone(), scheduler.clone());
    let guard = OnDrop(move || drop(inner.stop()));
    scheduler.schedule_once(SECOND, move || drop((last, guard))).expect("open");
    driver.advance(SECOND);
    assert!(scheduler.is_closed());
}

#[test]
fn a_guard_cancels_when_its_scope_ends() {
    let (scheduler, driver) = driven();
    let guard = scheduler.schedule_once(SECOND, || ()).expect("open").cancel_on_drop();
    assert!(!guard.is_done());
    drop(guard);
    assert_eq!(scheduler.pending(), 0);

    let guard = scheduler.schedule_once(SECOND, || ()).expect("open").cancel_on_drop();
    let handle = guard.into_handle();
    assert_eq!(driver.advance(SECOND), 1);
    assert!(handle.is_done() && !handle.is_cancelled());
}

#[test]
fn a_handle_to_nothing_says_that_it_was_cancelled() {
    let handle = Cancellable::already_cancelled();
    assert!(handle.is_cancelled() && handle.is_done() && !handle.cancel());
    assert!(handle.clone().is_cancelled());
}

/// A waker that schedules, as user code may.
struct Schedules(Scheduler, AtomicUsize);

impl Wake for Schedules {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.schedule_once(HOUR, || ()).expect("open");
    }
}

#[test]
fn s11_a_waker_that_schedules_finds_nothing_borrowed() {
    let (scheduler, driver) = driven();
    let waker = Arc::new(Schedules(Scheduler::new(), AtomicUsize::new(0)));
    driver.wake_with(Some(Waker::from(Arc::clone(&waker))));
    // Now and then, a cancel wakes the thread that turns the driver, so that it may sweep.
    for _ in 0..40_000 {
        let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
        driver.turn();
        assert!(handle.cancel());
    }
    assert!(waker.1.load(Ordering::Relaxed) > 0, "none of them did");
}
