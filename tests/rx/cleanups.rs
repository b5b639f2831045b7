//! Clean-ups of a task: each runs once, when the task ends, in whatever way it does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::log::Log;
use crate::common::{OnDrop, driven, driven_by, panic_on_purpose, silence, until};
use tickwheel::message_loop::MessageLoop;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{Cleanups, CompositeCancellable, ExecutorScheduler};
use tickwheel::{Inline, ManualClock, Schedule, ScheduleExt, Scheduler};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a task that says 1, whose captured value says 2 when it is dropped, and whose clean-ups say 3 and 4.
fn task(log: &Log) -> (impl FnOnce() + Send + 'static, Cleanups) {
    let (said, dropped) = (log.task(1), log.clone());
    let captured = OnDrop(move || dropped.say(2));
    let (task, cleanups) = Cleanups::of(move || {
        let _captured = captured;
        said();
    });
    cleanups.add(log.task(3));
    cleanups.add(log.task(4));
    (task, cleanups)
}

#[test]
fn they_run_once_after_a_run_or_a_cancel_or_a_drop() {
    let (scheduler, driver) = driven();
    let log = Log::default();
    let (ran, cleanups) = task(&log);
    scheduler.schedule_once(SECOND, ran).expect("open");
    assert!(!cleanups.has_ended() && log.all().is_empty());
    driver.advance(SECOND);
    assert!(cleanups.has_ended());
    assert_eq!(log.all(), [1, 2, 3, 4]);
    cleanups.add(log.task(5));
    assert_eq!(log.all(), [1, 2, 3, 4, 5], "at once, because the task has ended");

    let log = Log::default();
    let (cancelled, cleanups) = task(&log);
    let handle = scheduler.schedule_once(SECOND, cancelled).expect("open");
    drop(cleanups.clone());
    assert!(handle.cancel() && !handle.cancel() && cleanups.has_ended());
    assert_eq!(log.all(), [2, 3, 4]);

    let log = Log::default();
    let (returned, cleanups) = task(&log);
    scheduler.schedule_once(SECOND, returned).expect("open");
    let left = driver.close();
    assert!(!cleanups.has_ended(), "a leftover may still run");
    drop(left);
    assert_eq!(log.all(), [2, 3, 4]);

    let log = Log::default();
    let (refused, cleanups) = task(&log);
    let refused = scheduler.try_schedule_once(SECOND, refused).expect_err("closed").into_task();
    assert!(!cleanups.has_ended(), "it came back");
    refused();
    assert_eq!(log.all(), [1, 2, 3, 4]);
}

/// The closure owns them, so every layer runs them.
#[test]
fn each_layer_runs_them() {
    let (clock, (timers, driver)) = (ManualClock::new(), driven());
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
    let pool = ScheduledThreadPool::builder().threads(1).clock(clock.clone()).build();
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let layers: [&dyn Schedule; 3] = [&looper.runner(), &pool.expect("good"), &worker];
    for layer in layers {
        let (ran, cancelled, ends) = (Log::default(), Log::default(), Log::default());
        let (first, cleanups) = task(&ran);
        layer.schedule_once(SECOND, first).expect("open");
        let (second, _) = task(&cancelled);
        assert!(layer.schedule_once(SECOND, second).expect("open").cancel());
        assert_eq!(cancelled.all(), [2, 3, 4]);
        let (series, of_series) = Cleanups::of_series({
            let mut left = 2;
            let said = ends.clone();
            move || {
                said.say(left);
                left -= 1;
                (left > 0).then_some(SECOND)
            }
        });
        of_series.add(ends.task(10));
        layer.schedule_periodic(SECOND, SECOND.into(), series).expect("open");
        // The pool has a thread of its own, which may be late.
        until("both have ended", || {
            clock.advance(SECOND);
            driver.advance(SECOND);
            looper.run_until_idle();
            ran.all().len() == 4 && ends.all().len() == 3
        });
        assert!(cleanups.has_ended() && of_series.has_ended());
        assert_eq!((ran.all(), ends.all()), (vec![1, 2, 3, 4], vec![2, 1, 10]));
    }
}

#[test]
fn they_may_come_from_the_task_itself_from_a_destructor_and_from_each_other() {
    let (scheduler, driver) = driven();
    let (log, own) = (Log::default(), Arc::new(Mutex::new(None::<Cleanups>)));
    let (said, inside) = (log.clone(), Arc::clone(&own));
    let add = move |number: u32, more: Option<u32>| {
        let cleanups = inside.lock().expect("whole").clone().expect("it is there");
        let (said, again) = (said.clone(), cleanups.clone());
        cleanups.add(move || {
            said.say(number);
            more.into_iter().for_each(|more| again.add(said.task(more)));
        });
    };
    let (from_drop, from_task) = (add.clone(), add);
    let captured = OnDrop(move || from_drop(2, None));
    let (task, cleanups) = Cleanups::of(move || {
        let _captured = &captured;
        from_task(1, Some(3));
    });
    *own.lock().expect("whole") = Some(cleanups);
    scheduler.schedule_once(SECOND, task).expect("open");
    driver.advance(SECOND);
    assert_eq!(log.all(), [1, 3, 2], "one that is added by another one runs at once");
}

#[test]
fn a_series_ends_after_its_run_also_if_that_cancels_it() {
    let (scheduler, driver) = driven();
    let (log, own) = (Log::default(), CompositeCancellable::new());
    let (said, ends) = (log.clone(), own.clone());
    let (series, cleanups) = Cleanups::of_series(move || {
        said.say(1);
        ends.cancel();
        said.say(2);
    });
    cleanups.add(log.task(3));
    own.add(scheduler.schedule_repeatedly(SECOND, SECOND, series).expect("open"));
    driver.advance(3 * SECOND);
    assert_eq!(log.all(), [1, 2, 3]);
}

#[test]
fn a_panic_stops_neither_the_others_nor_the_thread() {
    silence();
    let (told, panics) = (Arc::new(AtomicUsize::new(0)), Log::default());
    let count = Arc::clone(&told);
    let builder = Scheduler::builder().on_panic(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
    let (scheduler, driver) = driven_by(builder);
    let with_two = |task: Box<dyn FnOnce() + Send>| {
        let (task, cleanups) = Cleanups::of(task);
        for number in [1, 2] {
            let said = panics.clone();
            cleanups.add(move || {
                said.say(number);
                panic_on_purpose();
            });
        }
        cleanups.add(panics.task(3));
        scheduler.schedule_once(SECOND, task).expect("open")
    };
    with_two(Box::new(|| ()));
    driver.advance(SECOND);
    assert_eq!((panics.all(), told.load(Ordering::Relaxed)), (vec![1, 2, 3], 1));
    with_two(Box::new(|| panic_on_purpose()));
    driver.advance(SECOND);
    assert_eq!((panics.all().len(), told.load(Ordering::Relaxed)), (6, 2), "the task's own");
    assert!(with_two(Box::new(|| ())).cancel());
    assert_eq!((panics.all().len(), told.load(Ordering::Relaxed)), (9, 3));
    // On a thread that unwinds already, and on one that drops a closure that was never scheduled.
    let (never, cleanups) = Cleanups::of(|| ());
    cleanups.add(|| panic_on_purpose());
    let unwinds = catch_unwind(AssertUnwindSafe(move || {
        let _never = never;
        panic_on_purpose();
    }));
    assert!(unwinds.is_err() && cleanups.has_ended());
    let (never, cleanups) = Cleanups::of(|| ());
    cleanups.add(|| panic_on_purpose());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(never))).is_err());
    // One that comes too late panics in the call.
    assert!(catch_unwind(AssertUnwindSafe(|| cleanups.add(|| panic_on_purpose()))).is_err());
}

/// Clean-ups that are added while the task ends run there or here, once each.
#[test]
fn none_is_lost_between_the_end_and_the_call() {
    let (scheduler, driver) = driven();
    for round in 0..500 {
        let (runs, begin) = (Arc::new(AtomicUsize::new(0)), Barrier::new(3));
        let (task, cleanups) = Cleanups::of(|| ());
        let handle = scheduler.schedule_once(SECOND, task).expect("open");
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    begin.wait();
                    for _ in 0..20 {
                        let runs = Arc::clone(&runs);
                        cleanups.add(move || _ = runs.fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
            begin.wait();
            if round % 2 == 0 {
                assert!(handle.cancel());
            } else {
                driver.advance(SECOND);
            }
        });
        assert_eq!(runs.load(Ordering::Relaxed), 40);
    }
}

/// S31: the task is still known by the name of its closure.
#[test]
fn s31_the_name_of_the_task_is_in_its_name() {
    let (scheduler, driver) = driven();
    let (task, _) = Cleanups::of(|| ());
    scheduler.schedule_once(SECOND, task).expect("open");
    let names: Vec<_> = driver.close().into_iter().map(|left| left.name()).collect();
    assert!(names[0].contains("s31_the_name_of_the_task_is_in_its_name"), "{names:?}");
}
