//! Alarms: a ring against a look and a drop, and one that is set against the end.
//!
//! A ring that is lost leaves a thread asleep for ever, which loom reports as a deadlock.

use std::time::Duration;

use loom::thread;

use super::threads;
use crate::engine::slots::magazines;
use crate::{Clock, Inline, ManualClock, ScheduleError, Scheduler, Sleeper};

const LATER: Duration = Duration::from_secs(1);

/// A scheduler, and the clock that it goes by.
fn scheduler() -> (Scheduler, ManualClock) {
    let clock = ManualClock::new();
    let builder = Scheduler::builder().executor(Inline).clock(clock.clone()).wheel_size(1);
    (builder.build().expect("a tick thread"), clock)
}

fn end(scheduler: Scheduler) {
    drop(scheduler);
    threads::end();
}

/// ALARM-1: who finds an alarm pending will be woken after that look.
#[test]
fn models_a_ring_against_a_look() {
    loom::model(|| {
        let ((scheduler, clock), sleeper) = (scheduler(), Sleeper::new());
        let at = clock.now() + LATER;
        let alarm = scheduler.wake_at(at, &sleeper.waker()).expect("open").expect("later");
        let time = thread::spawn(move || clock.advance(LATER));
        while alarm.is_pending() {
            sleeper.sleep();
        }
        time.join().unwrap();
        assert!(alarm.into_waker().is_none(), "it has rung");
        end(scheduler);
    });
}

/// S20: an alarm that is set against a stop. Accepted means woken, refused means an error.
#[test]
fn models_an_alarm_against_a_stop() {
    loom::model(|| {
        let ((scheduler, clock), sleeper) = (scheduler(), Sleeper::new());
        let other = {
            let scheduler = scheduler.clone();
            thread::spawn(move || {
                drop(scheduler.stop());
                magazines::flush();
            })
        };
        match scheduler.wake_at(clock.now() + LATER, &sleeper.waker()) {
            Ok(alarm) => {
                let alarm = alarm.expect("later");
                while alarm.is_pending() {
                    sleeper.sleep();
                }
            }
            Err(reason) => assert_eq!(reason, ScheduleError::Closed),
        }
        other.join().unwrap();
        assert_eq!(scheduler.close().expect("loom has time").len(), 0);
        end(scheduler);
    });
}

/// S8, S9: a ring against a drop. The waker is woken or not, and gone in both cases.
#[test]
fn models_a_ring_against_a_drop() {
    loom::model(|| {
        let ((scheduler, clock), sleeper) = (scheduler(), Sleeper::new());
        let at = clock.now() + LATER;
        let alarm = scheduler.wake_at(at, &sleeper.waker()).expect("open").expect("later");
        let time = thread::spawn(move || clock.advance(LATER));
        let unwoken = alarm.into_waker();
        if unwoken.is_none() {
            sleeper.sleep();
        }
        drop(unwoken);
        time.join().unwrap();
        assert_eq!(scheduler.close().expect("loom has time").len(), 0);
        assert_eq!(scheduler.pending(), 0);
        end(scheduler);
    });
}
