//! The takers of a [`DelayedWorkQueue`], a leader and its followers: WAKE-2, WAKE-3, WAKE-6.
//!
//! A wake-up that is lost leaves a taker asleep for ever, which loom reports as a deadlock. The delay queue and the message
//! loop stand on the same states: see [`delays`](super::delays) and [`loops`](super::loops).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;
use std::time::{Duration, Instant};

use loom::thread;

use crate::platform::sync::{Ordering, lock_std};
use crate::pool::DelayedWorkQueue;
use crate::{Clock, Sleeper};

const LATER: Duration = Duration::from_secs(1);

/// A clock that wakes those alone whose time has come, so that a wake-up which the queue forgets is missed. A
/// [`ManualClock`](crate::ManualClock) wakes all.
#[derive(Clone)]
struct Alarms {
    start: Instant,
    state: Arc<std::sync::Mutex<State>>,
    /// How often a sleep has ended. Relaxed, because it is read when all threads have ended.
    sleeps: Arc<AtomicUsize>,
}

struct State {
    now: Instant,
    alarms: Vec<(Instant, Waker)>,
}

impl Alarms {
    fn new() -> Alarms {
        let start = Instant::now();
        let state = State { now: start, alarms: Vec::new() };
        Alarms { start, state: Arc::new(std::sync::Mutex::new(state)), sleeps: Arc::default() }
    }

    fn at(&self, times: u32) -> Instant {
        self.start + times * LATER
    }

    fn advance(&self) {
        let mut state = lock_std(&self.state);
        state.now += LATER;
        let now = state.now;
        let alarms = std::mem::take(&mut state.alarms);
        let (due, later): (Vec<_>, _) = alarms.into_iter().partition(|(at, _)| *at <= now);
        state.alarms = later;
        drop(state);
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Clock for Alarms {
    fn now(&self) -> Instant {
        lock_std(&self.state).now
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        let mut state = lock_std(&self.state);
        if until.is_some_and(|until| until <= state.now) {
            return;
        }
        state.alarms.extend(until.map(|until| (until, sleeper.waker())));
        drop(state);
        sleeper.sleep();
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }
}

type Queue = Arc<DelayedWorkQueue<u32>>;

fn queue() -> (Queue, Alarms) {
    let clock = Alarms::new();
    (Arc::new(DelayedWorkQueue::with_clock(clock.clone())), clock)
}

fn taker(queue: &Queue) -> thread::JoinHandle<Option<u32>> {
    let queue = Arc::clone(queue);
    thread::spawn(move || queue.take())
}

/// An earlier head, by an offer and by a reset, meets a taker that goes to sleep. One of the two sees the other.
#[test]
fn models_an_earlier_head_against_a_taker_that_goes_to_sleep() {
    for resets in [false, true] {
        loom::model(move || {
            let (queue, clock) = queue();
            let key = queue.offer(clock.at(9), 9).expect("open");
            let taker = taker(&queue);
            if resets {
                assert_eq!(queue.reset(key, clock.start), Some(key));
            } else {
                queue.offer(clock.start, 0).expect("open");
            }
            assert_eq!(taker.join().unwrap(), Some(if resets { 9 } else { 0 }));
            queue.check_invariants();
        });
    }
}

/// Each of two takers gets an item. The one that is woken leaves, and hands the duty on.
#[test]
fn models_a_leader_that_leaves_with_an_item_hands_the_duty_on() {
    loom::model(|| {
        let (queue, clock) = queue();
        let takers = [taker(&queue), taker(&queue)];
        queue.offer(clock.start, 1).expect("open");
        queue.offer(clock.start, 2).expect("open");
        let items = takers.map(|taker| taker.join().unwrap().expect("open"));
        assert_eq!(items[0] + items[1], 3, "{items:?}");
    });
}

/// The leader gives up in the middle, and may have been woken for an item by then. The follower gets it.
#[test]
fn models_a_leader_that_gives_up_hands_the_duty_on() {
    loom::model(|| {
        let (queue, clock) = queue();
        let other = taker(&queue);
        let offers = {
            let (queue, clock) = (Arc::clone(&queue), clock.clone());
            thread::spawn(move || {
                clock.advance();
                queue.offer(clock.start, 1).expect("open");
                queue.offer(clock.start, 2).expect("open");
            })
        };
        let mine = queue.poll_timeout(LATER);
        offers.join().unwrap();
        assert!(other.join().unwrap().is_some());
        assert_eq!(queue.len(), usize::from(mine.is_none()));
    });
}

/// Of a burst of offers before the head that the leader sleeps towards, one wakes it. What is due after the new head wakes
/// nobody.
#[test]
fn models_a_burst_of_offers_is_one_wake_up() {
    loom::model(|| {
        let (queue, clock) = queue();
        queue.offer(clock.at(9), 9).expect("open");
        let taker = taker(&queue);
        let burst = {
            let (queue, clock) = (Arc::clone(&queue), clock.clone());
            thread::spawn(move || {
                queue.offer(clock.at(5), 5).expect("open");
                queue.offer(clock.at(7), 7).expect("open");
            })
        };
        burst.join().unwrap();
        queue.offer(clock.start, 0).expect("open");
        assert_eq!(taker.join().unwrap(), Some(0));
        assert!(
            clock.sleeps.load(Ordering::Relaxed) <= 2,
            "woken for an item that is not the head"
        );
    });
}

/// A close meets takers that go to sleep: both end.
#[test]
fn models_a_close_against_takers_that_go_to_sleep() {
    loom::model(|| {
        let (queue, _) = queue();
        let takers = [taker(&queue), taker(&queue)];
        queue.close();
        assert_eq!(takers.map(|taker| taker.join().unwrap()), [None, None]);
    });
}
