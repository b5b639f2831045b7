//! Sleep and wake: [`Doorbell`] and [`Sleeper`].

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::clock::parking::Sleeper;
use crate::clock::tick::Moment;
use crate::platform::sync::{AtomicU64, Ordering};
use crate::wake::doorbell::Doorbell;

/// A producer publishes and rings, and the sleeper arms, looks, and sleeps (WAKE-1). A lost wake-up is a deadlock,
/// which loom reports.
#[test]
fn models_no_wake_up_is_lost() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let bell = Doorbell::new(Some(sleeper.waker()));
        let published = Arc::new(AtomicU64::new(0));
        let producer = {
            let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
            thread::spawn(move || {
                published.store(1, Ordering::SeqCst);
                bell.ring_if_earlier(Moment(5), false);
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load(Ordering::SeqCst) == 1 {
                break;
            }
            sleeper.sleep();
            bell.disarm();
        }
        producer.join().unwrap();
    });
}

/// The sleeper sleeps although something has come in, if that can wait. What comes next and cannot wait wakes it
/// (WAKE-5).
#[test]
fn models_what_can_wait_hides_nothing() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let bell = Doorbell::new(Some(sleeper.waker()));
        let published = Arc::new(AtomicU64::new(0));
        let producer = {
            let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
            thread::spawn(move || {
                for (count, deadline) in [(1, 20), (2, 5)] {
                    published.store(count, Ordering::SeqCst);
                    bell.ring_if_earlier(Moment(deadline), false);
                }
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load(Ordering::SeqCst) == 2 {
                break;
            }
            sleeper.sleep();
            bell.disarm();
        }
        producer.join().unwrap();
    });
}

/// A sleeper that sleeps on a timer of the system is woken too, whether the wake comes before the timer is set, before
/// the wait, or during it (WAKE-3). The timer of a model never ends by itself.
#[test]
fn models_a_sleep_on_a_timer_loses_no_wake_up() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let published = Arc::new(AtomicU64::new(0));
        let producer = {
            let (waker, published) = (sleeper.waker(), Arc::clone(&published));
            thread::spawn(move || {
                for count in 1..=2 {
                    published.store(count, Ordering::Release);
                    waker.wake_by_ref();
                }
            })
        };
        let timeout = Duration::from_secs(1);
        while published.load(Ordering::Acquire) < 2 {
            sleeper.sleep_through_suspension(timeout);
        }
        producer.join().unwrap();
    });
}
