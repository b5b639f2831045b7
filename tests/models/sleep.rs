//! Sleep and wake: [`Doorbell`] and [`Sleeper`].

use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::platform::sync::InOrder;
use crate::time::parking::{Doorbell, Sleeper};
use crate::time::tick::Moment;

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
                published.store_in_order(1);
                bell.ring_if_earlier(Moment(5), false);
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load_in_order() == 1 {
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
                    published.store_in_order(count);
                    bell.ring_if_earlier(Moment(deadline), false);
                }
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load_in_order() == 2 {
                break;
            }
            sleeper.sleep();
            bell.disarm();
        }
        producer.join().unwrap();
    });
}
