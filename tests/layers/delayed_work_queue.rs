//! What `pool::DelayedWorkQueue` promises to waiting threads. The storms are in `delayed_work_queue_storms.rs`, and the model is
//! in `soak`.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tickwheel::pool::{DelayedWorkQueue, Key};
use tickwheel::{Clock, ManualClock, Sleeper};

use crate::common::{Random, until};

const SECOND: Duration = Duration::from_secs(1);

/// A manual clock that tells of the threads that sleep on it, and can be made to panic.
#[derive(Default)]
struct Watched {
    manual: ManualClock,
    /// The times until which threads sleep now.
    asleep: Mutex<Vec<Option<Instant>>>,
    /// The number of sleeps so far.
    sleeps: AtomicUsize,
    /// The number of sleeps so far that had an end.
    most_with_end: AtomicUsize,
    /// The next sleep panics at its end.
    panics: AtomicBool,
}

impl Watched {
    fn asleep(&self) -> Vec<Option<Instant>> {
        let mut asleep = self.asleep.lock().unwrap().clone();
        asleep.sort();
        asleep
    }
}

impl Clock for Watched {
    fn now(&self) -> Instant {
        self.manual.now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        let mut asleep = self.asleep.lock().unwrap();
        let with_end = asleep.iter().chain([&until]).flatten().count();
        self.most_with_end.fetch_max(with_end, Ordering::Relaxed);
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        asleep.push(until); // behind the counts: a test that sees it reads them
        drop(asleep);
        self.manual.sleep(sleeper, until);
        let mut asleep = self.asleep.lock().unwrap();
        let at = asleep.iter().position(|other| *other == until).expect("it is in there");
        asleep.swap_remove(at);
        drop(asleep);
        assert!(!self.panics.swap(false, Ordering::Relaxed), "a clock's panic, as ordered");
    }
}

type Queue = Arc<DelayedWorkQueue<u32>>;

fn watched() -> (Arc<Watched>, Queue) {
    let clock = Arc::new(Watched::default());
    let queue = Arc::new(DelayedWorkQueue::with_clock(Arc::clone(&clock)));
    (clock, queue)
}

fn joined<T>(thread: JoinHandle<T>) -> thread::Result<T> {
    until("a thread's end", || thread.is_finished());
    thread.join()
}

/// Starts a thread that waits in the queue. The thread is asleep when this returns.
fn asleep_in<T: Send + 'static>(
    clock: &Watched,
    queue: &Queue,
    wait: impl FnOnce(&DelayedWorkQueue<u32>) -> T + Send + 'static,
) -> JoinHandle<T> {
    let before = clock.asleep().len();
    let queue = Arc::clone(queue);
    let thread = thread::spawn(move || wait(&queue));
    until("a taker's sleep", || clock.asleep().len() == before + 1);
    thread
}

#[test]
fn s01_s03_items_come_by_deadline_and_equal_ones_as_they_were_offered() {
    let (clock, queue) = watched();
    let start = clock.now();
    let offer = |seconds: u32, item| queue.offer(start + SECOND * seconds, item).unwrap();
    offer(2, 20);
    offer(1, 10);
    offer(2, 21);
    queue.offer(start.checked_sub(SECOND).unwrap(), 0).unwrap();
    offer(1, 11);
    assert_eq!((queue.poll(), queue.poll()), (Some(0), None));
    clock.manual.advance(SECOND.checked_sub(Duration::from_nanos(1)).unwrap());
    assert_eq!(queue.poll(), None, "never early");
    clock.manual.advance(SECOND * 2);
    offer(1, 12);
    let given: Vec<_> = (0..5).map(|_| queue.take().unwrap()).collect();
    assert_eq!(given, [10, 11, 12, 20, 21]);
}

#[test]
fn s10_a_key_never_hits_another_item() {
    let (clock, queue) = watched();
    let at = clock.now();
    let stale = queue.offer(at, 1).unwrap();
    assert_eq!(queue.remove(stale), Some(1));
    let taken = queue.offer(at, 2).unwrap();
    assert_eq!(queue.take(), Some(2));
    let drained = queue.offer(at, 3).unwrap();
    assert_eq!(queue.drain(), [3]);
    let here = queue.offer(at, 4).unwrap();
    let elsewhere = watched().1.offer(at, 5).unwrap();
    for key in [stale, taken, drained, elsewhere] {
        assert!(key != here && queue.remove(key).is_none());
    }
    assert_eq!(queue.remove(here), Some(4));
}

#[test]
fn a_closed_queue_gives_items_only_through_drain_and_remove() {
    let (clock, queue) = watched();
    let now = clock.now();
    let keys: Vec<_> = (0..4).map(|item| queue.offer(now, item).unwrap()).collect();
    queue.offer(now + SECOND, 5).unwrap();
    queue.close();
    queue.close();
    assert!(queue.is_closed());
    assert_eq!(queue.offer(now, 6), Err(6));
    assert_eq!((queue.poll(), queue.take(), queue.poll_timeout(Duration::MAX)), (None, None, None));
    assert_eq!((queue.len(), queue.next_deadline()), (5, Some(now)));
    assert_eq!(queue.remove(keys[2]), Some(2));
    assert!(queue.reset(keys[2], now).is_none() && queue.reset(keys[0], now + SECOND).is_some());
    assert_eq!(queue.drain(), [1, 3, 5, 0]);
    assert!(queue.is_empty() && queue.drain().is_empty() && queue.is_closed());
}

#[test]
fn close_wakes_all() {
    let (clock, queue) = watched();
    queue.offer(clock.now() + SECOND, 1).unwrap();
    let takers: Vec<_> = (0..4)
        .flat_map(|_| {
            let take = asleep_in(&clock, &queue, DelayedWorkQueue::take);
            let poll = asleep_in(&clock, &queue, |queue| queue.poll_timeout(SECOND * 9));
            [take, poll]
        })
        .collect();
    queue.close();
    for taker in takers {
        assert_eq!(joined(taker).unwrap(), None);
    }
    assert_eq!(queue.drain(), [1]);
}

#[test]
fn an_earlier_head_calls_the_leader_and_a_later_one_does_not() {
    let (clock, queue) = watched();
    let start = clock.now();
    let at = |seconds| start + SECOND * seconds;
    let taker = asleep_in(&clock, &queue, DelayedWorkQueue::take);
    assert_eq!(clock.asleep(), [None], "it waits for anything");
    queue.offer(at(10), 10).unwrap();
    until("a new moment", || clock.asleep() == [Some(at(10))]);
    queue.offer(at(10), 11).unwrap();
    queue.offer(at(20), 20).unwrap();
    queue.offer(at(5), 5).unwrap();
    until("a new moment", || clock.asleep() == [Some(at(5))]);
    assert_eq!(clock.sleeps.load(Ordering::Relaxed), 3);
    clock.manual.advance(SECOND * 5);
    assert_eq!(joined(taker).unwrap(), Some(5));
    assert_eq!(queue.len(), 3);
}

#[test]
fn a_head_that_goes_costs_one_sleep_in_vain() {
    let (clock, queue) = watched();
    let start = clock.now();
    let heads: Vec<_> = (1..=9).map(|at| queue.offer(start + SECOND * at, at).unwrap()).collect();
    let taker = asleep_in(&clock, &queue, DelayedWorkQueue::take);
    for key in &heads[..8] {
        assert!(queue.remove(*key).is_some());
    }
    assert_eq!(clock.asleep(), [Some(start + SECOND)], "it still waits for the first of them");
    clock.manual.advance(SECOND);
    until("the last one's moment", || clock.asleep() == [Some(start + SECOND * 9)]);
    assert_eq!(clock.sleeps.load(Ordering::Relaxed), 2);
    clock.manual.advance(SECOND * 8);
    assert_eq!(joined(taker).unwrap(), Some(9));
}

#[test]
fn a_timeout_is_counted_on_the_clock_of_the_queue() {
    let (clock, queue) = watched();
    let start = clock.now();
    assert_eq!(queue.poll_timeout(Duration::ZERO), None);
    let short = asleep_in(&clock, &queue, |queue| queue.poll_timeout(SECOND));
    let exact = asleep_in(&clock, &queue, |queue| queue.poll_timeout(SECOND * 2));
    queue.offer(start + SECOND * 2, 2).unwrap();
    assert_eq!(clock.asleep(), [Some(start + SECOND), Some(start + SECOND * 2)]);
    clock.manual.advance(SECOND);
    assert_eq!(joined(short).unwrap(), None);
    queue.check_invariants();
    clock.manual.advance(SECOND);
    assert_eq!(joined(exact).unwrap(), Some(2), "due at the very end");
    let never = asleep_in(&clock, &queue, |queue| queue.poll_timeout(Duration::MAX));
    assert_eq!(clock.asleep(), [None]);
    queue.offer(start, 3).unwrap();
    assert_eq!(joined(never).unwrap(), Some(3));
}

#[test]
fn whoever_gives_up_leading_passes_it_on() {
    let (clock, queue) = watched();
    let start = clock.now();
    let leader = asleep_in(&clock, &queue, |queue| queue.poll_timeout(SECOND));
    let follower = asleep_in(&clock, &queue, |queue| queue.poll_timeout(SECOND * 3));
    let last = asleep_in(&clock, &queue, DelayedWorkQueue::take);
    queue.offer(start + SECOND * 9, 9).unwrap();
    clock.manual.advance(SECOND);
    assert_eq!(joined(leader).unwrap(), None);
    until("the next leads", || clock.asleep() == [None, Some(start + SECOND * 3)]);
    clock.manual.advance(SECOND * 2);
    assert_eq!(joined(follower).unwrap(), None);
    until("the last leads", || clock.asleep() == [Some(start + SECOND * 9)]);
    clock.manual.advance(SECOND * 6);
    assert_eq!(joined(last).unwrap(), Some(9));
}

#[test]
fn whoever_takes_the_head_calls_the_next() {
    let (clock, queue) = watched();
    let start = clock.now();
    let takers: Vec<_> =
        (0..5).map(|_| asleep_in(&clock, &queue, DelayedWorkQueue::take)).collect();
    for item in 0..5 {
        queue.offer(start, item).unwrap(); // no time passes, so only calls wake them
    }
    let mut given: Vec<_> = takers.into_iter().map(|taker| joined(taker).unwrap()).collect();
    given.sort();
    assert_eq!(given, [Some(0), Some(1), Some(2), Some(3), Some(4)]);
}

#[test]
fn at_most_one_waits_with_a_timeout() {
    const ITEMS: u32 = 500;
    const TAKERS: usize = 6;
    let (clock, queue) = watched();
    let takers: Vec<_> = (0..TAKERS)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || std::iter::from_fn(|| queue.take()).count())
        })
        .collect();
    let mut random = Random(1);
    for item in 0..ITEMS {
        let later = Duration::from_millis(random.below(1_000));
        queue.offer(clock.now() + later, item).unwrap();
        clock.manual.advance(Duration::from_millis(random.below(3)));
        queue.check_invariants();
        if item % 10 == 9 {
            let is_led = |asleep: &[Option<Instant>]| asleep.iter().flatten().count() == 1;
            until("everybody's sleep, and a leader", || {
                let asleep = clock.asleep();
                asleep.len() == TAKERS && is_led(&asleep)
            });
        }
    }
    clock.manual.advance(SECOND);
    until("an empty queue", || queue.is_empty());
    queue.close();
    let given: usize = takers.into_iter().map(|taker| joined(taker).unwrap()).sum();
    assert_eq!(given, ITEMS as usize);
    assert_eq!(clock.most_with_end.load(Ordering::Relaxed), 1);
}

#[test]
fn s17_a_clock_that_panics_takes_nobody_else_down() {
    let (clock, queue) = watched();
    let start = clock.now();
    let leader = asleep_in(&clock, &queue, DelayedWorkQueue::take);
    clock.panics.store(true, Ordering::Relaxed);
    let follower = asleep_in(&clock, &queue, DelayedWorkQueue::take);
    queue.offer(start, 1).unwrap(); // calls the leader, whose clock panics
    assert!(joined(leader).is_err());
    assert_eq!(joined(follower).unwrap(), Some(1));
    queue.check_invariants();
}

/// A clock that looks at the queue whenever it is called. Its sleeps return at once.
#[derive(Default)]
struct Curious {
    manual: ManualClock,
    queue: OnceLock<Weak<DelayedWorkQueue<Talkative>>>,
}

impl Curious {
    fn look(&self) {
        if let Some(queue) = self.queue.get().and_then(Weak::upgrade) {
            queue.check_invariants();
        }
    }
}

impl Clock for Curious {
    fn now(&self) -> Instant {
        self.look();
        self.manual.now()
    }

    fn sleep(&self, _: &Sleeper, until: Option<Instant>) {
        self.look();
        self.manual.advance_to(until.expect("a timeout"));
    }
}

/// It looks at the queue when it is dropped.
struct Talkative(Weak<DelayedWorkQueue<Talkative>>);

impl Drop for Talkative {
    fn drop(&mut self) {
        if let Some(queue) = self.0.upgrade() {
            queue.check_invariants();
        }
    }
}

#[test]
fn s11_no_user_code_runs_under_the_lock() {
    let clock = Arc::new(Curious::default());
    let queue = Arc::new(DelayedWorkQueue::with_clock(Arc::clone(&clock)));
    clock.queue.set(Arc::downgrade(&queue)).expect("once");
    let all = thread::spawn(move || {
        let now = clock.manual.now();
        let offer = || queue.offer(now, Talkative(Arc::downgrade(&queue)));
        drop(offer().map(|key| queue.remove(key)));
        (0..3).for_each(|_| drop(offer()));
        drop((queue.poll(), queue.take(), queue.poll_timeout(SECOND)));
        assert!(queue.poll_timeout(SECOND).is_none());
        drop(offer());
        drop(queue.drain());
        queue.close();
        assert!(offer().is_err(), "and the item is dropped here");
    });
    joined(all).expect("no deadlock, and no lock under a lock");
}

#[test]
fn what_it_is_and_can_be_shared() {
    fn shareable<T: Send + Sync + 'static>() {}
    fn key<T: Copy + Eq + Hash + Debug + Send + Sync>() {}
    shareable::<DelayedWorkQueue<std::cell::Cell<u8>>>();
    key::<Key>();
    let queue = DelayedWorkQueue::<fn(*mut u8)>::default();
    assert!(format!("{queue:?}").starts_with("DelayedWorkQueue { len: 0, next_deadline: None"));
}

#[test]
fn what_is_due_is_drained_in_order_and_no_more() {
    let clock = ManualClock::new();
    let queue = DelayedWorkQueue::with_clock(clock.clone());
    let start = clock.now();
    assert!(queue.drain_due().is_empty());
    // Far more than one portion, offered in another order. Equal deadlines come in the order of the offers.
    for number in 0..10_000_u32 {
        let second = number * 7 % 100;
        queue.offer(start + Duration::from_secs(second.into()), (second, number)).expect("open");
    }
    for limit in [50, 60] {
        clock.advance(start + Duration::from_secs(limit) - clock.now());
        let due = queue.drain_due();
        assert!(due.is_sorted() && due.last().is_some_and(|last| u64::from(last.0) == limit));
        queue.check_invariants();
    }
    assert_eq!((queue.len(), queue.drain_due().len()), (3_900, 0));
    clock.advance(Duration::from_secs(1));
    queue.close();
    assert_eq!((queue.drain_due().len(), queue.drain().len()), (0, 3_900));
}
