//! Models of the hand-over from inserts to takers in a [`DelayQueue`]: LINE-1, and what `taker` says.
//!
//! A wake-up that is lost leaves a taker asleep for ever, which loom reports as a deadlock. There are two shards, and keys
//! go to the same ones in each run.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use loom::thread;

use super::threads;
use crate::delay::DelayQueue;
use crate::engine::slots::magazines;
use crate::{Driver, ManualClock, Scheduler};

const LATER: Duration = Duration::from_secs(1);
const MUCH_LATER: Duration = Duration::from_secs(9);

/// Returns an empty queue, its scheduler, and what turns that.
fn queue() -> (DelayQueue<u32, u32>, Scheduler, Driver) {
    let builder = Scheduler::builder().clock(ManualClock::new()).wheel_size(1);
    let (scheduler, driver) = builder.build_driven().expect("good");
    (DelayQueue::new(&scheduler), scheduler, driver)
}

/// Takes one item on a thread of its own, and returns its key.
fn taker(queue: &DelayQueue<u32, u32>) -> thread::JoinHandle<Option<u32>> {
    let queue = queue.clone();
    thread::spawn(move || {
        let key = queue.recv().map(|item| item.key);
        drop(queue);
        magazines::flush();
        key
    })
}

fn end(queue: DelayQueue<u32, u32>, driver: Driver) {
    queue.check_invariants();
    drop(queue);
    drop(driver);
    threads::end();
}

/// An item comes in that is due, while a taker lines up behind a later one.
#[test]
fn models_an_insert_against_a_taker_that_goes_to_sleep() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        queue.insert(1, 1, MUCH_LATER).expect("open");
        let taker = taker(&queue);
        queue.insert(2, 2, Duration::ZERO).expect("open");
        assert_eq!(taker.join().unwrap(), Some(2));
        assert_eq!(queue.len(), 1);
        drop(scheduler);
        end(queue, driver);
    });
}

/// The item that a taker waits for is moved to now.
#[test]
fn models_a_reset_against_a_taker_that_goes_to_sleep() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        queue.insert(1, 1, MUCH_LATER).expect("open");
        let taker = taker(&queue);
        assert!(queue.reset(&1, Duration::ZERO));
        assert_eq!(taker.join().unwrap(), Some(1));
        drop(scheduler);
        end(queue, driver);
    });
}

/// The time of an item comes, while a taker sets its alarm.
#[test]
fn models_the_alarm_against_a_taker_that_goes_to_sleep() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        queue.insert(1, 1, LATER).expect("open");
        let taker = taker(&queue);
        driver.advance(LATER);
        assert_eq!(taker.join().unwrap(), Some(1));
        assert_eq!(scheduler.pending(), 0);
        drop(scheduler);
        end(queue, driver);
    });
}

/// Two takers, two items: each gets one, whoever was woken first.
#[test]
fn models_two_takers_and_two_items() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        let takers = [taker(&queue), taker(&queue)];
        queue.insert(1, 1, Duration::ZERO).expect("open");
        queue.insert(2, 2, Duration::ZERO).expect("open");
        let keys = takers.map(|taker| taker.join().unwrap().expect("open"));
        assert_eq!(keys[0] + keys[1], 3, "{keys:?}");
        drop(scheduler);
        end(queue, driver);
    });
}

/// A taker knows the first item of a shard, while one comes into the other shard, and after that an earlier one into this shard.
/// What came second, and is due after the other, never comes out before it.
#[test]
fn models_a_taker_against_inserts_into_two_shards() {
    // Which keys share a shard is not known here, so some pairs are tried.
    for (first, second) in [(2, 3), (3, 2), (2, 4), (4, 2), (3, 4), (4, 3)] {
        loom::model(move || {
            let (queue, scheduler, driver) = queue();
            let start = scheduler.now();
            driver.advance(MUCH_LATER);
            queue.insert_at(1, 1, start + 5 * LATER).expect("open");
            let inserter = {
                let queue = queue.clone();
                thread::spawn(move || {
                    queue.insert_at(first, 1, start + LATER).expect("open");
                    queue.insert_at(second, 1, start + 2 * LATER).expect("open");
                    drop(queue);
                    magazines::flush();
                })
            };
            let taken = queue.try_next().expect("it was there before").key;
            assert_ne!(taken, second, "it has overtaken {first}");
            inserter.join().unwrap();
            drop(scheduler);
            end(queue, driver);
        });
    }
}

/// The leader is dropped, woken or not. The item that woke it goes to the other one.
#[test]
fn models_a_leader_that_is_dropped_passes_its_wake_up_on() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        let mut leader = queue.next();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut leader).poll(&mut context).is_pending());
        let follower = taker(&queue);
        let inserter = {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.insert(1, 1, Duration::ZERO).expect("open");
                drop(queue);
                magazines::flush();
            })
        };
        drop(leader);
        assert_eq!(follower.join().unwrap(), Some(1));
        inserter.join().unwrap();
        drop(scheduler);
        end(queue, driver);
    });
}

/// A close takes an item back, or the insert was refused, and the taker ends.
#[test]
fn models_a_close_against_an_insert_and_a_taker() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        let taker = taker(&queue);
        let inserter = {
            let queue = queue.clone();
            thread::spawn(move || {
                let is_in = queue.insert(1, 1, MUCH_LATER).is_ok();
                drop(queue);
                magazines::flush();
                is_in
            })
        };
        let returned = queue.close().len();
        assert_eq!(taker.join().unwrap(), None);
        assert_eq!(usize::from(inserter.join().unwrap()), returned);
        drop(scheduler);
        end(queue, driver);
    });
}

/// The scheduler is stopped while a taker lines up: the taker ends.
#[test]
fn models_a_stop_against_a_taker_that_goes_to_sleep() {
    loom::model(|| {
        let (queue, scheduler, driver) = queue();
        queue.insert(1, 1, MUCH_LATER).expect("open");
        let taker = taker(&queue);
        drop(scheduler.stop());
        assert_eq!(taker.join().unwrap(), None);
        assert_eq!(queue.close().len(), 1);
        drop(scheduler);
        end(queue, driver);
    });
}
