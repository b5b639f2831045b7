//! Handles from outside whose drop panics, or calls the worker: they cost nobody a task, and meet no lock (S11, S17).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::log::Log;
use crate::common::schedules::TasksOnly;
use crate::common::{OnDrop, PATIENCE, panic_on_purpose, silence};
use tickwheel::rx::{CompositeCancellable, ExecutorScheduler, Worker};
use tickwheel::{
    Cancel, Cancellable, Clock, DueTask, Executor, Inline, ManualClock, Rejected, Schedule, Task,
};

const MS: Duration = Duration::from_millis(1);

/// A handle that cancels nothing, and calls a closure when it is dropped.
struct Handle<F: FnMut() + Send + 'static>(Mutex<OnDrop<F>>);

impl<F: FnMut() + Send + 'static> Cancel for Handle<F> {
    fn cancel(&self) -> bool {
        false
    }
    fn is_cancelled(&self) -> bool {
        false
    }
    fn is_done(&self) -> bool {
        false
    }
}

fn handle(at_drop: impl FnMut() + Send + 'static) -> Cancellable {
    Cancellable::from(Arc::new(Handle(Mutex::new(OnDrop(at_drop)))))
}

/// Returns a schedule on this clock, and its tasks. The handle of the first one panics when it is dropped.
fn with_a_bomb(clock: &ManualClock) -> (impl Schedule + Executor + 'static, Arc<Mutex<Vec<Task>>>) {
    let (tasks, reads) = (Arc::new(Mutex::new(Vec::new())), clock.clone());
    let (all, count) = (Arc::clone(&tasks), AtomicUsize::new(0));
    let schedule = TasksOnly::new(
        move || reads.now(),
        move |_, task| {
            all.lock().expect("whole").push(task);
            let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(handle(move || {
                if is_first {
                    panic_on_purpose();
                }
            }))
        },
    );
    (schedule, tasks)
}

fn run(tasks: &Mutex<Vec<Task>>, at: usize) {
    let task = tasks.lock().expect("whole").remove(at);
    task();
}

#[test]
fn s17_a_drain_that_was_refused_is_offered_again_whatever_the_handle_of_its_timer_does() {
    silence();
    let (timers, tasks) = with_a_bomb(&ManualClock::new());
    let tries = AtomicUsize::new(0);
    let refuses_once = move |task: DueTask| {
        let is_first = tries.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Err(Rejected::new(task)) } else { Inline.execute(task) }
    };
    let (worker, log) = (ExecutorScheduler::over(refuses_once, timers).worker(), Log::default());
    worker.schedule(log.task(1));
    run(&tasks, 0);
    assert_eq!((log.all(), worker.pending()), (vec![1], 0));
}

/// It may keep anything alive.
#[test]
fn the_handle_of_a_retry_is_dropped_when_all_drains_have_run() {
    let (tasks, held) = (Arc::new(Mutex::new(Vec::new())), Arc::new(()));
    let (all, holds) = (Arc::clone(&tasks), Arc::clone(&held));
    let clock = ManualClock::new();
    let timers = TasksOnly::new(
        move || clock.now(),
        move |_, task| {
            all.lock().expect("whole").push(task);
            let holds = Arc::clone(&holds);
            Ok(handle(move || _ = &holds))
        },
    );
    let tries = AtomicUsize::new(0);
    let refuses_twice = move |task: DueTask| {
        let refuses = tries.fetch_add(1, Ordering::Relaxed) < 2;
        if refuses { Err(Rejected::new(task)) } else { Inline.execute(task) }
    };
    let (worker, log) = (ExecutorScheduler::over(refuses_twice, timers).worker(), Log::default());
    worker.schedule(log.task(1));
    for left in [1, 0] {
        assert_eq!(Arc::strong_count(&held), 3, "that of the timer which waits");
        run(&tasks, 0);
        assert_eq!(worker.pending(), left);
    }
    assert_eq!((log.all(), Arc::strong_count(&held)), (vec![1], 2));
}

#[test]
fn s17_a_timer_queues_its_own_task_whatever_the_handle_of_an_earlier_one_does() {
    silence();
    let clock = ManualClock::new();
    let (timers, tasks) = with_a_bomb(&clock);
    let (worker, log) = (ExecutorScheduler::over(Inline, timers).worker(), Log::default());
    worker.schedule_after(100 * MS, log.task(1));
    worker.schedule_after(110 * MS, log.task(2));
    clock.advance(110 * MS);
    run(&tasks, 1); // its timer also queues the task that is due earlier, and drops its handle
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 0));
    run(&tasks, 0); // it finds nothing, and lets go of the queue
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 0));
}

/// The timer of an attempt fires before its handle is stored. The next attempt finds the handle, and drops it.
#[test]
fn s11_the_handle_of_an_attempt_is_dropped_with_nothing_locked() {
    let second = Arc::new(OnceLock::<Worker>::new());
    let ((is_in, comes_in), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let (comes_in, goes_on) = (Mutex::new(comes_in), Mutex::new(goes_on));
    let (freed, is_freed) = mpsc::channel();
    let (clock, count, other) = (ManualClock::new(), AtomicUsize::new(0), Arc::downgrade(&second));
    // Not held by the schedule, which the worker holds.
    let worker = |of: &Weak<OnceLock<Worker>>| of.upgrade().and_then(|it| it.get().cloned());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&kept);
    let timers = TasksOnly::new(
        move || clock.now(),
        move |_, task| {
            if count.fetch_add(1, Ordering::SeqCst) > 0 {
                keeps.lock().expect("whole").push(task);
                return Ok(handle(|| ()));
            }
            worker(&other).expect("set").schedule(|| ()); // it waits for the attempt too
            thread::spawn(task);
            comes_in.lock().expect("whole").recv().expect("the attempt offers a drain");
            let (other, freed) = (Weak::clone(&other), freed.clone());
            Ok(handle(move || {
                worker(&other).expect("set").dispose();
                _ = freed.send(());
            }))
        },
    );
    let tries = AtomicUsize::new(0);
    let refuses = move |task: DueTask| {
        if tries.fetch_add(1, Ordering::SeqCst) == 2 {
            is_in.send(()).expect("awaited");
            goes_on.lock().expect("whole").recv().expect("the handle is stored");
        }
        Err::<(), _>(Rejected::new(task))
    };
    let workers = ExecutorScheduler::over(refuses, timers);
    assert!(second.set(workers.worker()).is_ok());
    let first = workers.worker();
    first.schedule(|| ());
    go_on.send(()).expect("awaited");
    is_freed.recv_timeout(PATIENCE).expect("the drop does not wait for a lock of its own thread");
    first.dispose();
    let rest = std::mem::take(&mut *kept.lock().expect("whole"));
    drop::<Vec<Task>>(rest); // it owns the schedule
}

/// The set has lost the handle while it asks it. So the set's copy is the last one.
#[test]
fn s17_a_set_is_pruned_again_after_a_handle_that_panics_when_it_is_dropped() {
    struct Leaves(Mutex<Option<(CompositeCancellable, tickwheel::rx::CompositeKey)>>);
    impl Cancel for Leaves {
        fn cancel(&self) -> bool {
            false
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            let mine = self.0.lock().expect("whole").take();
            mine.into_iter().for_each(|(set, key)| drop(set.remove(key)));
            false
        }
    }
    impl Drop for Leaves {
        fn drop(&mut self) {
            panic_on_purpose();
        }
    }
    silence();
    let (set, leaves) = (CompositeCancellable::new(), Arc::new(Leaves(Mutex::default())));
    let key = set.add(Cancellable::from(Arc::clone(&leaves)));
    *leaves.0.lock().expect("whole") = Some((set.clone(), key));
    drop(leaves);
    (0..1_000).for_each(|_| _ = set.add(Cancellable::already_cancelled()));
    let shown = format!("{set:?}");
    let kept = shown.split(|letter: char| !letter.is_ascii_digit()).find(|part| !part.is_empty());
    assert!(kept.is_some_and(|kept| kept.parse::<usize>().expect("digits") < 200), "{shown}");
}
