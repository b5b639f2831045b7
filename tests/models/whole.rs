//! The whole scheduler with its tick thread, on a clock that stands still.
//!
//! A wake-up that is lost leaves a thread asleep for ever, which loom reports as a deadlock.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use loom::thread;

use super::threads;
use crate::engine::slots::magazines;
use crate::platform::sync::Ordering;
use crate::{Inline, ManualClock, ScheduleError, Scheduler, Sleeper};

const LATER: Duration = Duration::from_secs(1);

fn scheduler() -> Scheduler {
    let builder = Scheduler::builder().executor(Inline).clock(ManualClock::new()).wheel_size(1);
    builder.build().expect("a tick thread")
}

/// Schedules a task that counts its runs. Returns how many were accepted: one or none.
fn schedule(scheduler: &Scheduler, delay: Duration, runs: &Arc<AtomicUsize>) -> usize {
    let runs = Arc::clone(runs);
    let task = move || _ = runs.fetch_add(1, Ordering::Relaxed);
    match scheduler.schedule_once(delay, task) {
        Ok(_) => 1,
        Err(reason) => {
            assert_eq!(reason, ScheduleError::Closed);
            0
        }
    }
}

/// A schedule against a close. Accepted means run or returned, refused means an error (S20).
fn schedule_against_close(delay: Duration) {
    let runs = Arc::new(AtomicUsize::new(0));
    let scheduler = scheduler();
    let producer = {
        let (scheduler, runs) = (scheduler.clone(), Arc::clone(&runs));
        thread::spawn(move || {
            let accepted = schedule(&scheduler, delay, &runs);
            magazines::flush();
            accepted
        })
    };
    let leftovers = scheduler.close().expect("loom has time");
    let returned = leftovers.len();
    let accepted = producer.join().unwrap();
    let ran = runs.load(Ordering::Relaxed);
    assert_eq!(ran + returned, accepted);
    assert_eq!(leftovers.run_all(), returned);
    assert_eq!(runs.load(Ordering::Relaxed), accepted);
    assert_eq!(scheduler.pending(), 0);
    drop(scheduler);
    threads::end();
}

#[test]
fn models_schedule_against_close() {
    loom::model(|| schedule_against_close(LATER));
}

#[test]
fn models_schedule_at_once_against_close() {
    loom::model(|| schedule_against_close(Duration::ZERO));
}

/// A stop against a close. Whichever comes first, one of them gets the leftovers (S20).
#[test]
fn models_stop_against_close() {
    loom::model(|| {
        let scheduler = scheduler();
        assert_eq!(schedule(&scheduler, LATER, &Arc::default()), 1);
        let other = {
            let scheduler = scheduler.clone();
            thread::spawn(move || scheduler.stop())
        };
        let returned = scheduler.close().expect("loom has time").len();
        let stopping = other.join().unwrap();
        assert_eq!((returned, stopping.wait().len()), (1, 0), "the close does not come second");
        drop(scheduler);
        threads::end();
    });
}

/// A `Stopping` is dropped before the end, in it, or behind it: the leftover has one end, and the tick thread does not wait
/// for ever (S24).
#[test]
fn models_leftovers_that_are_given_up_are_dropped() {
    loom::model(|| {
        let (scheduler, alive) = (scheduler(), Arc::new(()));
        let hold = Arc::clone(&alive);
        scheduler.schedule_once(LATER, move || drop(hold)).expect("open");
        drop(scheduler.stop());
        drop(scheduler);
        threads::end();
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}

/// A task that is due now wakes the tick thread, and one that can wait does not hide it (S5, S7).
#[test]
fn models_what_is_due_runs() {
    loom::model(|| {
        let (scheduler, done) = (scheduler(), Sleeper::new());
        assert_eq!(schedule(&scheduler, LATER, &Arc::default()), 1);
        let waker = done.waker();
        scheduler.schedule_once(Duration::ZERO, move || waker.wake()).expect("open");
        done.sleep();
        assert_eq!(scheduler.close().expect("loom has time").len(), 1);
        drop(scheduler);
        threads::end();
    });
}

/// A cancel against the run: either of them ends the task, and counts it out (S8, S25).
#[test]
fn models_cancel_against_fire() {
    loom::model(|| {
        let runs = Arc::new(AtomicUsize::new(0));
        let scheduler = scheduler();
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let handle = scheduler.schedule_once(Duration::ZERO, task).expect("open");
        let won = handle.cancel();
        let returned = scheduler.close_and_run().expect("loom has time");
        assert_eq!(runs.load(Ordering::Relaxed), usize::from(!won));
        assert!(handle.is_done() && returned <= usize::from(!won));
        assert_eq!((handle.is_cancelled(), handle.cancel()), (won, false));
        assert_eq!(Arc::strong_count(&runs), 1, "the closure is gone");
        assert_eq!(scheduler.pending(), 0);
        drop(scheduler);
        threads::end();
    });
}
