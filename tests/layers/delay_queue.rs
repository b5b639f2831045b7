//! `delay::DelayQueue`: its promises one by one, in virtual time where they allow it.
//!
//! Random runs against a map are in `tests/soak/delay_queue_model.rs`, the storms in `delay_queue_storms.rs`.

use std::cell::Cell;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Debug;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::marker::PhantomPinned;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tickwheel::delay::{DelayQueue, Expirations, Expired, InsertError, NextExpired};
use tickwheel::future::block_on;
use tickwheel::{Driver, Inline, Precision, ScheduleError, Scheduler};

use crate::common::allocations::Measurement;
use crate::common::told::Poller;
use crate::common::{Grenade, OnDrop, Random, driven, driven_by, panic_on_purpose, silence, until};

const NANO: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn queue<K, V>() -> (Scheduler, Driver, DelayQueue<K, V>) {
    let (scheduler, driver) = driven();
    let queue = DelayQueue::new(&scheduler);
    (scheduler, driver, queue)
}

/// Takes all keys that are due.
fn due<K: Hash + Eq, V>(queue: &DelayQueue<K, V>) -> Vec<K> {
    std::iter::from_fn(|| queue.try_next()).map(|item| item.key).collect()
}

fn keys<K, V>(items: Vec<Expired<K, V>>) -> Vec<K> {
    items.into_iter().map(|item| item.key).collect()
}

fn joined<T>(thread: JoinHandle<T>) -> T {
    until("a thread's end", || thread.is_finished());
    thread.join().expect("no panic")
}

/// Runs something that may wait for ever on a thread of its own.
fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    joined(thread::spawn(what))
}

/// Returns true if this panics.
fn panics<R>(f: impl FnOnce() -> R) -> bool {
    silence();
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Polls the next item of a stream with the waker of a task.
fn poll<K, V>(task: &Poller, stream: &mut Expirations<K, V>) -> Poll<Option<Expired<K, V>>> {
    stream.poll_next(&mut Context::from_waker(&task.waker()))
}

// ----- time --------------------------------------------------------------------------------

/// Waits for an item that is due between two ticks, and returns how late it came.
fn lateness(precision: Precision, wait: impl Fn(&Driver, &DelayQueue<u32, ()>)) -> Vec<Duration> {
    let after = |nanos: u64| 20 * MS + Duration::from_nanos(nanos);
    [0, 1, 999, 1_000_000, 3_700_001, 9_999_999]
        .map(|nanos| {
            let builder = Scheduler::builder().tick(10 * MS).precision(precision);
            let (scheduler, driver) = driven_by(builder);
            let queue = DelayQueue::new(&scheduler);
            let start = scheduler.now();
            queue.insert(1, (), after(nanos)).expect("open");
            queue.insert(2, (), HOUR).expect("open");
            wait(&driver, &queue);
            driver.now().checked_duration_since(start + after(nanos)).expect("never early")
        })
        .to_vec()
}

fn waits_in_every_way(precision: Precision, check: impl Fn(Vec<Duration>)) {
    check(lateness(precision, |driver, queue| {
        let item = driver.block_on(queue.next()).expect("not stalled").expect("open");
        assert_eq!(item.key, 1);
    }));
    check(lateness(precision, |driver, queue| {
        let mut stream = queue.stream();
        let next = poll_fn(|cx| stream.poll_next(cx));
        assert_eq!(driver.block_on(next).expect("not stalled").expect("open").key, 1);
    }));
    check(lateness(precision, |driver, queue| {
        let (task, mut next) = (Poller::new(), queue.next());
        assert!(task.poll(&mut next).is_pending());
        while task.woken() == 0 {
            let at = driver.turn().expect("it waits");
            driver.advance(at - driver.now());
        }
        assert!(matches!(task.poll(&mut next), Poll::Ready(Some(item)) if item.key == 1));
    }));
}

#[test]
fn s01_s02_a_taker_is_woken_within_a_tick_of_the_deadline_and_never_before() {
    let expected = [0, 9_999_999, 9_999_001, 9_000_000, 6_299_999, 1].map(Duration::from_nanos);
    waits_in_every_way(Precision::Tick, |late| assert_eq!(late, expected));
}

#[test]
fn s01_s02_a_taker_is_woken_at_the_deadline_if_the_scheduler_is_exact() {
    waits_in_every_way(Precision::Exact, |late| assert_eq!(late, [Duration::ZERO; 6]));
}

#[test]
fn s01_try_next_gives_an_item_at_its_deadline_and_not_a_nanosecond_before() {
    for precision in [Precision::Tick, Precision::Exact] {
        let builder = Scheduler::builder().tick(10 * MS).precision(precision);
        let (scheduler, driver) = driven_by(builder);
        let queue = DelayQueue::new(&scheduler);
        queue.insert("a", 1, 13 * MS).expect("open");
        driver.advance((13 * MS).saturating_sub(NANO));
        assert!(queue.try_next().is_none() && queue.recv_timeout(Duration::ZERO).is_none());
        driver.advance(NANO);
        let expected = Expired { key: "a", value: 1, deadline: driver.now() };
        assert_eq!(queue.try_next(), Some(expected));
    }
}

/// In real time, on a tick thread.
#[test]
fn s01_takers_that_block_get_nothing_early() {
    for precision in [Precision::Tick, Precision::Exact] {
        let scheduler = Scheduler::builder().tick(3 * MS).precision(precision).build().expect("ok");
        let queue = DelayQueue::new(&scheduler);
        let mut random = Random(1);
        for key in 0..50 {
            queue.insert(key, (), Duration::from_micros(random.below(20_000))).expect("open");
        }
        let mut last = None;
        for round in 0..50 {
            let item = match round % 3 {
                0 => queue.recv(),
                1 => queue.recv_timeout(HOUR),
                _ => block_on(queue.next()),
            };
            let item = item.expect("open");
            assert!(item.deadline <= Instant::now() && last <= Some(item.deadline));
            last = Some(item.deadline);
        }
        assert!(queue.is_empty());
    }
}

#[test]
fn s03_items_come_by_deadline_and_equal_ones_as_they_were_inserted() {
    let (_scheduler, driver, queue) = queue();
    let at = driver.now() + SECOND;
    // Keys are spread over many places, so hundreds of them show that the order holds across all.
    for key in 0..600_u32 {
        match key % 3 {
            0 => queue.insert(key, (), SECOND).expect("open"),
            1 => queue.insert_at(key, (), at).expect("open"),
            _ => queue.insert(key, (), HOUR).expect("open"),
        };
        if key % 3 == 2 {
            assert!(queue.reset_at(&key, at));
        }
    }
    driver.advance(SECOND);
    assert_eq!(due(&queue), (0..600).collect::<Vec<_>>());
    queue.check_invariants();
}

#[test]
fn s03_a_replacement_and_a_reset_go_behind_their_equals() {
    let (_scheduler, driver, queue) = queue();
    let at = driver.now() + SECOND;
    let mut expected: Vec<u32> = (0..300).collect();
    expected.iter().for_each(|key| _ = queue.insert_at(*key, *key, at).expect("open"));
    let mut behind = |key: u32| {
        expected.retain(|other| *other != key);
        expected.push(key);
    };
    for key in (0..300).step_by(7) {
        match key % 4 {
            0 => assert_eq!(queue.insert_at(key, 1_000 + key, at).expect("open"), Some(key)),
            1 => assert_eq!(queue.insert(key, 1_000 + key, SECOND).expect("open"), Some(key)),
            2 => assert!(queue.reset_at(&key, at)), // to the deadline that it has
            _ => assert!(queue.reset(&key, HOUR) && queue.reset(&key, SECOND)),
        }
        behind(key);
    }
    driver.advance(SECOND);
    assert_eq!(due(&queue), expected);
}

#[test]
fn s03_items_come_in_order_after_any_moves_of_many_keys() {
    let (_scheduler, driver, queue) = queue();
    let mut random = Random(3);
    for key in 0..2_000_u64 {
        queue.insert(key, (), random.below(1_000) as u32 * MS).expect("open");
    }
    for _ in 0..5_000 {
        queue.reset(&random.below(2_000), random.below(1_000) as u32 * MS);
    }
    for step in 1..=10 {
        driver.advance(100 * MS);
        let mut last = None;
        while let Some(item) = queue.try_next() {
            assert!(item.deadline <= driver.now() && last <= Some(item.deadline), "step {step}");
            last = Some(item.deadline);
        }
        assert!(queue.next_deadline().is_none_or(|next| next > driver.now()));
    }
    assert!(queue.is_empty());
}

/// The threads come one after the other, so their order is known, and must count.
fn equal_deadlines_of_threads(scheduler: &Scheduler, wait: impl Fn(Instant)) {
    let queue = DelayQueue::new(scheduler);
    let at = scheduler.now() + 100 * MS;
    for thread in 0..20_u32 {
        let queue = queue.clone();
        let insert = move || {
            for key in thread * 20..(thread + 1) * 20 {
                queue.insert_at(key, (), if key % 2 == 0 { at } else { at + HOUR }).expect("open");
                assert!(key % 2 == 0 || queue.reset_at(&key, at));
            }
        };
        joined(thread::spawn(insert));
    }
    wait(at);
    assert_eq!(due(&queue), (0..400).collect::<Vec<_>>());
}

#[test]
fn s03_equal_deadlines_of_several_threads_come_in_the_order_of_the_calls() {
    let (scheduler, driver) = driven();
    equal_deadlines_of_threads(&scheduler, |_| _ = driver.advance(100 * MS));
    // On the system's clock, whose readings tell the order.
    let now = |at: Instant| thread::sleep(at.saturating_duration_since(Instant::now()));
    equal_deadlines_of_threads(&Scheduler::new(), now);
}

#[test]
fn s06_after_a_stall_all_that_is_due_comes_at_once_and_in_order() {
    let (_scheduler, driver, queue) = queue();
    for key in 0..500_u32 {
        queue.insert(key, (), (500 - key) * SECOND).expect("open");
    }
    driver.advance(HOUR);
    assert_eq!(due(&queue), (0..500).rev().collect::<Vec<_>>());
}

#[test]
fn a_past_deadline_stays_and_sorts() {
    let (_scheduler, driver, queue) = queue();
    let now = driver.now();
    let ago = |by: Duration| now.checked_sub(by).expect("the machine has been up that long");
    queue.insert("now", (), Duration::ZERO).expect("open");
    queue.insert_at("a second ago", (), ago(SECOND)).expect("open");
    queue.insert_at("two seconds ago", (), ago(2 * SECOND)).expect("open");
    queue.insert("later", (), SECOND).expect("open");
    assert_eq!(queue.deadline(&"a second ago"), Some(ago(SECOND)));
    assert_eq!(queue.next_deadline(), Some(ago(2 * SECOND)));
    let first = queue.try_next().expect("due");
    assert_eq!((first.key, first.deadline), ("two seconds ago", ago(2 * SECOND)));
    assert!(queue.reset_at(&"later", ago(3 * SECOND)));
    assert_eq!(due(&queue), ["later", "a second ago", "now"]);
}

#[test]
fn s04_any_duration_and_any_instant_is_a_deadline() {
    let (_scheduler, driver, queue) = queue();
    queue.insert(1, "never", Duration::MAX).expect("open");
    let never = queue.deadline(&1).expect("it is there");
    assert!(never > driver.now() + HOUR * 24 * 365 * 100 && never.checked_add(NANO).is_none());
    queue.insert_at(2, "never", never).expect("open");
    queue.insert(3, "in 292 years", Duration::from_nanos(1 << 63)).expect("open");
    queue.insert(4, "soon", SECOND).expect("open");
    assert!(queue.reset(&4, Duration::MAX) && queue.deadline(&4) == Some(never));
    assert_eq!(queue.deadline(&2), Some(never));
    assert_eq!(queue.next_deadline(), queue.deadline(&3));
    driver.advance(HOUR * 24 * 365 * 100);
    assert!(queue.try_next().is_none());
    driver.advance(HOUR * 24 * 365 * 200);
    assert_eq!((due(&queue), queue.len()), (vec![3], 3));
    assert!(queue.reset(&2, SECOND), "a deadline that never comes can be moved");
    driver.advance(SECOND);
    assert_eq!(due(&queue), [2]);
    assert_eq!(keys(queue.close()), [1, 4]);
}

#[test]
fn s04_a_clock_at_the_end_of_its_time_stops_nothing() {
    in_time(|| {
        let (scheduler, driver, queue) = queue();
        queue.insert("soon", (), SECOND).expect("open");
        driver.advance(Duration::MAX);
        assert_eq!(due(&queue), ["soon"]);
        assert!(queue.try_next().is_none() && queue.recv_timeout(MS).is_none());
        queue.insert("at once", (), Duration::ZERO).expect("open");
        queue.check_invariants();
        queue.insert_at("now", (), driver.now()).expect("open");
        queue
            .insert_at("before", (), driver.now().checked_sub(HOUR).expect("it is up"))
            .expect("open");
        queue.insert("never", (), MS).expect("open");
        assert_eq!(due(&queue).len(), 3, "an instant that has passed is due");
        assert!(queue.reset_at(&"never", driver.now()));
        assert_eq!(due(&queue), ["never"]);
        queue.insert("at once", (), Duration::ZERO).expect("open");
        let task = Poller::new();
        assert!(task.poll(&mut queue.next()).is_ready());
        assert!(task.poll(&mut queue.next()).is_pending());
        assert_eq!(scheduler.now(), driver.now());
        assert!(queue.close().is_empty());
    });
}

#[test]
fn s07_nothing_runs_for_far_deadlines_and_without_takers() {
    let scheduler = Scheduler::new();
    let queue = DelayQueue::new(&scheduler);
    for key in 0..100 {
        queue.insert(key, (), 20 * MS).expect("open"); // nobody waits for them
    }
    assert_eq!(scheduler.stats().wakeups(), 0);
    thread::sleep(60 * MS); // real time: the tick thread would wake up
    assert_eq!((scheduler.stats().wakeups(), due(&queue).len()), (0, 100));
    for key in 0..100_u32 {
        queue.insert(key, (), HOUR * (1 + key)).expect("open");
    }
    let (task, mut next) = (Poller::new(), queue.next());
    assert!(task.poll(&mut next).is_pending());
    thread::sleep(60 * MS); // real time: likewise
    assert_eq!(task.woken(), 0);
    assert!(scheduler.stats().wakeups() <= 2, "the alarm is filed, and that is all");
}

/// A taker polls a few times until a far item comes, however many are there.
#[test]
fn s07_a_taker_is_seldom_woken_in_vain() {
    let (_scheduler, driver, queue) = queue();
    let mut random = Random(7);
    for key in 0..20_000_u64 {
        queue.insert(key, (), HOUR + Duration::from_nanos(random.below(1 << 42))).expect("open");
    }
    let (task, mut next) = (Poller::new(), queue.next());
    let mut polls = 1;
    while task.poll(&mut next).is_pending() {
        let woken = task.woken();
        while task.woken() == woken {
            let at = driver.turn().expect("it waits");
            driver.advance(at - driver.now());
        }
        polls += 1;
    }
    assert!(polls <= 20, "{polls} polls");
}

// ----- what is in it -----------------------------------------------------------------------

#[test]
fn a_replacement_returns_the_old_value_and_only_the_new_one_comes_out() {
    let (_scheduler, driver, queue) = queue();
    assert_eq!(queue.insert("a", 1, SECOND).expect("open"), None);
    assert_eq!(queue.insert("a", 2, 2 * SECOND).expect("open"), Some(1));
    assert_eq!(queue.len(), 1);
    driver.advance(SECOND);
    assert!(queue.try_next().is_none());
    assert_eq!(queue.insert("a", 3, Duration::ZERO).expect("open"), Some(2));
    let item = queue.try_next().expect("due");
    assert_eq!((item.key, item.value, item.deadline), ("a", 3, driver.now()));
    driver.advance(HOUR);
    assert!(queue.try_next().is_none() && queue.is_empty());
}

/// `HashMap` keeps the first key too.
#[test]
fn a_replacement_keeps_the_key_that_is_there() {
    #[derive(Debug)]
    struct Named(u32, &'static str);
    impl PartialEq for Named {
        fn eq(&self, other: &Named) -> bool {
            self.0 == other.0
        }
    }
    impl Eq for Named {}
    impl Hash for Named {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    let (_scheduler, _driver, queue) = queue();
    queue.insert(Named(1, "first"), (), SECOND).expect("open");
    queue.insert(Named(1, "second"), (), Duration::ZERO).expect("open");
    assert_eq!(queue.try_next().expect("due").key.1, "first");
}

#[test]
fn a_reset_moves_earlier_and_later_and_what_is_due_too() {
    let (_scheduler, driver, queue) = queue();
    for key in ["a", "b", "c"] {
        queue.insert(key, (), 10 * SECOND).expect("open");
    }
    assert!(queue.reset(&"a", SECOND) && queue.reset(&"b", 20 * SECOND));
    assert!(!queue.reset(&"d", SECOND) && !queue.reset_at(&"d", driver.now()));
    driver.advance(SECOND);
    assert_eq!(due(&queue), ["a"]);
    assert!(!queue.reset(&"a", SECOND), "it has come out");
    driver.advance(10 * SECOND);
    assert_eq!(queue.next_deadline(), Some(driver.now().checked_sub(SECOND).expect("later")));
    assert!(queue.reset(&"c", 20 * SECOND), "due, and not taken");
    assert!(queue.try_next().is_none());
    driver.advance(9 * SECOND);
    assert_eq!(due(&queue), ["b"]);
    driver.advance(11 * SECOND);
    assert_eq!(due(&queue), ["c"]);
}

#[test]
fn what_is_due_is_counted_until_it_is_taken() {
    let (_scheduler, driver, queue) = queue();
    assert!(queue.is_empty() && queue.next_deadline().is_none());
    queue.insert("a", 1, SECOND).expect("open");
    queue.insert("b", 2, 2 * SECOND).expect("open");
    let start = driver.now();
    driver.advance(3 * SECOND);
    assert_eq!((queue.len(), queue.next_deadline()), (2, Some(start + SECOND)));
    assert!(queue.contains_key(&"a") && queue.deadline(&"b") == Some(start + 2 * SECOND));
    assert_eq!(queue.with(&"a", |value| std::mem::replace(value, 10)), Some(1));
    assert_eq!(queue.remove(&"b"), Some(2));
    assert_eq!(queue.try_next().map(|item| item.value), Some(10));
    assert!(!queue.contains_key(&"a") && queue.deadline(&"a").is_none());
    assert!(queue.remove(&"a").is_none() && queue.with(&"a", |_| ()).is_none());
}

#[test]
fn s25_a_limit_is_exact_and_a_replacement_takes_no_place() {
    let (scheduler, driver) = driven();
    let queue = DelayQueue::with_capacity_limit(&scheduler, 3);
    for key in 0..3 {
        queue.insert(key, key, SECOND).expect("there is room");
    }
    let refused = queue.insert(3, 30, SECOND).unwrap_err();
    assert_eq!((refused.reason(), refused.into_inner()), (ScheduleError::Full, (3, 30)));
    assert_eq!(queue.insert(2, 20, SECOND).expect("a replacement"), Some(2));
    assert!(queue.reset(&1, 2 * SECOND));
    driver.advance(SECOND);
    let refused = queue.insert_at(3, 30, driver.now()).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Full, "what is due holds its place");
    assert_eq!(queue.try_next().map(|item| item.key), Some(0));
    assert_eq!(queue.insert(3, 30, SECOND).expect("a place is free"), None);
    assert!(queue.insert(4, 40, SECOND).is_err());
    assert_eq!(queue.remove(&1), Some(1));
    assert_eq!(queue.insert(4, 40, SECOND).expect("a place is free"), None);
    let item = driver.block_on(queue.next()).expect("not stalled").expect("open");
    assert_eq!((item.key, item.value), (2, 20));
    queue.insert(5, 50, SECOND).expect("a place is free");
    assert_eq!(queue.len(), 3);
    queue.close();
    assert_eq!(queue.insert(6, 60, SECOND).unwrap_err().reason(), ScheduleError::Closed);
    let none = DelayQueue::with_capacity_limit(&scheduler, 0);
    assert_eq!(none.insert(1, 1, SECOND).unwrap_err().reason(), ScheduleError::Full);
    none.close();
    let refused = none.insert(1, 1, SECOND).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Closed, "closed wins over full");
}

#[test]
fn s25_threads_that_race_for_places_never_get_too_many() {
    let scheduler = Scheduler::new();
    let queue = DelayQueue::with_capacity_limit(&scheduler, 50);
    let inserted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (queue, inserted) = (&queue, &inserted);
            scope.spawn(move || {
                for key in 0..100 {
                    let is_in = queue.insert((thread, key), (), HOUR).is_ok();
                    inserted.fetch_add(usize::from(is_in), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((inserted.into_inner(), queue.len()), (50, 50));
}

// ----- takers ------------------------------------------------------------------------------

#[test]
fn an_item_goes_to_one_taker_and_the_next_one_leads() {
    let (_scheduler, driver, queue) = queue();
    let tasks: Vec<_> = (0..3).map(|_| Poller::new()).collect();
    let mut takers: Vec<_> = tasks.iter().map(|_| queue.next()).collect();
    for (task, taker) in tasks.iter().zip(&mut takers) {
        assert!(task.poll(taker).is_pending());
    }
    let woken = || tasks.iter().map(Poller::woken).collect::<Vec<_>>();
    for key in 0..3_u32 {
        queue.insert(key, (), SECOND * (1 + key)).expect("open");
    }
    queue.check_invariants();
    assert_eq!(woken(), [1, 0, 0], "the first item comes before the end of time");
    assert!(tasks[0].poll(&mut takers[0]).is_pending());
    for first in 0..3_usize {
        driver.advance(SECOND);
        let key = match tasks[first].poll(&mut takers[first]) {
            Poll::Ready(item) => item.expect("open").key,
            Poll::Pending => panic!("it is due"),
        };
        assert_eq!(key as usize, first);
        if let (Some(task), Some(taker)) = (tasks.get(first + 1), takers.get_mut(first + 1)) {
            assert_eq!(task.woken(), 1, "it leads now");
            assert!(task.poll(taker).is_pending());
        }
        queue.check_invariants();
    }
    assert_eq!(woken(), [2, 2, 2]);
}

#[test]
fn an_earlier_insert_or_reset_wakes_the_taker_and_a_later_one_does_not() {
    let (_scheduler, driver, queue) = queue();
    let (task, mut next) = (Poller::new(), queue.next());
    queue.insert("head", (), 10 * SECOND).expect("open");
    queue.insert("other", (), 20 * SECOND).expect("open");
    assert!(task.poll(&mut next).is_pending());
    queue.insert("later", (), 30 * SECOND).expect("open");
    queue.insert("equal", (), 10 * SECOND).expect("open");
    assert!(queue.reset(&"other", 11 * SECOND));
    assert_eq!(task.woken(), 0);
    queue.insert("earlier", (), 9 * SECOND).expect("open");
    queue.insert("earlier still", (), 8 * SECOND).expect("open");
    assert_eq!(task.woken(), 1, "once, until it looks");
    assert!(task.poll(&mut next).is_pending());
    assert!(queue.reset(&"other", 7 * SECOND));
    assert_eq!(task.woken(), 2);
    assert!(task.poll(&mut next).is_pending());
    assert_eq!(queue.insert("later", (), 6 * SECOND).expect("open"), Some(()));
    assert_eq!(task.woken(), 3, "a replacement as well");
    assert!(task.poll(&mut next).is_pending());
    queue.check_invariants();
    let start = driver.now();
    let item = driver.block_on(next).expect("not stalled").expect("open");
    assert_eq!((item.key, driver.now() - start), ("later", 6 * SECOND));
}

#[test]
fn a_head_that_moves_away_does_not_come_at_its_old_time() {
    let (_scheduler, driver, queue) = queue();
    let start = driver.now();
    queue.insert("head", (), SECOND).expect("open");
    let (task, mut next) = (Poller::new(), queue.next());
    assert!(task.poll(&mut next).is_pending());
    assert!(queue.reset(&"head", 5 * SECOND));
    driver.advance(2 * SECOND);
    assert!(task.poll(&mut next).is_pending(), "woken in vain at most");
    queue.check_invariants();
    let item = driver.block_on(next).expect("not stalled").expect("open");
    assert_eq!((item.deadline - start, driver.now() - start), (5 * SECOND, 5 * SECOND));
}

#[test]
fn a_head_that_is_removed_costs_one_poll_in_vain() {
    let (_scheduler, driver, queue) = queue();
    for key in 1..=9_u32 {
        queue.insert(key, (), SECOND * key).expect("open");
    }
    let (task, mut next) = (Poller::new(), queue.next());
    assert!(task.poll(&mut next).is_pending());
    (1..=8).for_each(|key| assert!(queue.remove(&key).is_some()));
    driver.advance(SECOND);
    assert_eq!(task.woken(), 1);
    assert!(task.poll(&mut next).is_pending());
    driver.advance(7 * SECOND);
    assert_eq!(task.woken(), 1);
    driver.advance(SECOND);
    assert!(task.poll(&mut next).is_ready());
}

/// Many items of one time were removed, and that time has passed, but not that of an item near it. Of the removed ones something
/// is left in the queue, and no taker may go by that.
#[test]
fn s07_a_taker_sleeps_past_the_time_of_many_items_that_were_removed() {
    for at in [10_000, 10_200, 10_400].map(|at| MS * at) {
        let (_scheduler, driver, queue) = queue::<u32, ()>();
        (0..100).for_each(|key| assert!(queue.insert(key, (), MS).is_ok())); // in each shard
        (100..20_000).for_each(|key| assert!(queue.insert(key, (), at).is_ok()));
        (0..20_000).for_each(|key| assert!(queue.remove(&key).is_some()));
        driver.advance(MS);
        assert!(queue.try_next().is_none());
        (0..2_000).for_each(|key| assert!(queue.insert(key, (), at + MS * 100).is_ok()));
        driver.advance(at + MS * 50);
        let task = Poller::new();
        let mut stream = queue.stream();
        assert!(in_time(move || poll(&task, &mut stream).is_pending()));
        driver.advance(MS * 50);
        assert_eq!(due(&queue).len(), 2_000);
    }
}

#[test]
fn a_taker_that_is_dropped_after_its_wake_passes_it_on() {
    let (_scheduler, driver, queue) = queue();
    let tasks: Vec<_> = (0..4).map(|_| Poller::new()).collect();
    let mut takers: Vec<_> = tasks.iter().map(|_| queue.next()).collect();
    queue.insert("item", 1, SECOND).expect("open");
    for (task, taker) in tasks.iter().zip(&mut takers) {
        assert!(task.poll(taker).is_pending());
    }
    driver.advance(SECOND);
    assert_eq!(tasks.iter().map(Poller::woken).collect::<Vec<_>>(), [1, 0, 0, 0]);
    let mut takers = takers.into_iter();
    drop(takers.next());
    assert_eq!(tasks[1].woken(), 1);
    drop(takers.next());
    assert_eq!(tasks[2].woken(), 1);
    let (mut third, last) = (takers.next().expect("a taker"), takers.next());
    drop(last);
    queue.check_invariants();
    assert!(matches!(tasks[2].poll(&mut third), Poll::Ready(Some(item)) if item.value == 1));
    assert_eq!(tasks.iter().map(Poller::wakers).sum::<usize>(), 0, "no waker is kept");
}

#[test]
fn a_leader_that_is_dropped_before_its_wake_is_followed() {
    let (_scheduler, driver, queue) = queue();
    let (first, second) = (Poller::new(), Poller::new());
    let (mut leader, mut follower) = (queue.next(), queue.stream());
    queue.insert("item", (), SECOND).expect("open");
    assert!(first.poll(&mut leader).is_pending() && poll(&second, &mut follower).is_pending());
    drop(leader);
    assert_eq!((first.woken(), second.woken()), (0, 1));
    assert!(poll(&second, &mut follower).is_pending());
    queue.check_invariants();
    driver.advance(SECOND);
    assert_eq!((first.woken(), second.woken()), (0, 2));
    assert!(poll(&second, &mut follower).is_ready());
    drop(follower);
    assert_eq!(first.wakers() + second.wakers(), 0);
    assert_eq!(driver.turn(), None, "no alarm is left");
}

#[test]
fn a_follower_that_is_dropped_wakes_nobody() {
    let (_scheduler, driver, queue) = queue();
    let (first, second) = (Poller::new(), Poller::new());
    let (mut leader, mut follower) = (queue.next(), queue.next());
    queue.insert("item", (), SECOND).expect("open");
    assert!(first.poll(&mut leader).is_pending() && second.poll(&mut follower).is_pending());
    drop(follower);
    driver.advance(SECOND.saturating_sub(MS));
    assert_eq!((first.woken(), second.woken(), second.wakers()), (0, 0, 0));
}

#[test]
fn a_taker_that_moves_to_another_task_wakes_that_one() {
    let (_scheduler, driver, queue) = queue();
    let (first, second) = (Poller::new(), Poller::new());
    let mut next = queue.next();
    queue.insert("item", (), SECOND).expect("open");
    assert!(first.poll(&mut next).is_pending() && second.poll(&mut next).is_pending());
    assert_eq!(first.wakers(), 0);
    driver.advance(SECOND);
    assert_eq!((first.woken(), second.woken()), (0, 1));
    assert!(second.poll(&mut next).is_ready());
    assert!(second.poll(&mut next).is_pending(), "a poll after the end waits for one more");
}

#[test]
fn an_item_that_is_due_goes_to_whoever_asks_first() {
    let (_scheduler, driver, queue) = queue();
    let (task, mut next) = (Poller::new(), queue.next());
    queue.insert("item", (), SECOND).expect("open");
    assert!(task.poll(&mut next).is_pending());
    driver.advance(SECOND);
    assert_eq!(due(&queue), ["item"], "by `try_next`");
    assert!(task.poll(&mut next).is_pending());
    queue.insert("more", (), Duration::ZERO).expect("open");
    assert_eq!(task.woken(), 2);
    assert!(task.poll(&mut next).is_ready());
}

/// Four takers block on threads, and items come one at a time, so each is given by a wake-up.
#[test]
fn takers_that_block_are_each_called() {
    let scheduler = Scheduler::new();
    let queue = DelayQueue::new(&scheduler);
    let (out, items) = mpsc::channel();
    let takers: Vec<_> = (0..4)
        .map(|number| {
            let (queue, out) = (queue.clone(), out.clone());
            let take = move || {
                let mut stream = queue.stream();
                let mut next = || match number {
                    0 => queue.recv(),
                    1 => queue.recv_timeout(HOUR),
                    2 => block_on(queue.next()),
                    _ => block_on(poll_fn(|cx| stream.poll_next(cx))),
                };
                while let Some(item) = next() {
                    out.send(item.key).expect("the test listens");
                }
            };
            thread::spawn(take)
        })
        .collect();
    for key in 0..200_u64 {
        queue.insert(key, (), Duration::from_micros(key % 5 * 300)).expect("open");
        assert_eq!(items.recv_timeout(crate::common::PATIENCE), Ok(key));
    }
    queue.close();
    takers.into_iter().for_each(joined);
}

#[test]
fn recv_timeout_counts_real_time_on_a_virtual_clock_too() {
    let (_scheduler, driver, queue) = queue();
    queue.insert("item", (), MS).expect("open");
    let start = Instant::now();
    assert!(queue.recv_timeout(20 * MS).is_none());
    assert!(start.elapsed() >= 20 * MS);
    let taker = {
        let queue = queue.clone();
        thread::spawn(move || queue.recv_timeout(Duration::MAX))
    };
    until("it waits", || driver.next_deadline().is_some());
    driver.advance(MS);
    assert_eq!(joined(taker).map(|item| item.key), Some("item"));
}

#[test]
fn block_on_and_advance_drive_a_queue() {
    let (scheduler, driver, queue) = queue();
    let start = driver.now();
    for key in 1..=3_u32 {
        queue.insert(key, (), HOUR * key).expect("open");
    }
    let all = async {
        let mut stream = queue.stream();
        for key in 1..=3 {
            let item = poll_fn(|cx| stream.poll_next(cx)).await.expect("open");
            assert_eq!((item.key, scheduler.now()), (key, start + HOUR * key));
        }
    };
    driver.block_on(all).expect("not stalled");
    assert!(driver.block_on(queue.next()).is_err(), "nothing will come");
    assert_eq!(driver.now(), start + 3 * HOUR);
    queue.insert(4, (), HOUR).expect("open");
    let timeout = driver.block_on(scheduler.timeout(SECOND, queue.next())).expect("not stalled");
    assert!(timeout.is_err() && queue.len() == 1);
    let (task, mut next) = (Poller::new(), queue.next());
    assert!(task.poll(&mut next).is_pending());
    assert_eq!((driver.advance(HOUR), task.woken()), (0, 1), "an alarm is no run");
    assert!(task.poll(&mut next).is_ready());
}

/// Two tasks of one `block_on`, one of which makes room for the other's items.
#[test]
fn a_task_that_inserts_and_one_that_takes_run_on_one_thread() {
    let (scheduler, driver, queue) = queue();
    let producer = async {
        for key in 0..50_u32 {
            queue.insert(key, (), SECOND).expect("open");
            scheduler.sleep(10 * MS).await;
        }
    };
    let taker = async {
        for key in 0..50_u32 {
            assert_eq!(queue.next().await.expect("open").key, key);
        }
    };
    let (mut producer, mut taker) = (pin!(producer), pin!(taker));
    let mut is_done = false;
    let both = poll_fn(|cx| {
        is_done = is_done || producer.as_mut().poll(cx).is_ready();
        taker.as_mut().poll(cx)
    });
    driver.block_on(both).expect("not stalled");
    assert!(is_done && queue.is_empty());
}

#[test]
fn s21_recv_panics_where_it_would_wait_for_itself() {
    silence();
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let queue = DelayQueue::new(&scheduler);
    let (out, results) = mpsc::channel();
    let inside = {
        let queue = queue.clone();
        move || {
            let early = queue.recv_timeout(MS);
            let text = catch_unwind(AssertUnwindSafe(|| queue.recv())).map_err(|panic| {
                panic.downcast_ref::<&str>().copied().unwrap_or_default().contains("for ever")
            });
            queue.insert("due", (), Duration::ZERO).expect("open");
            out.send((early, text, queue.recv())).expect("the test listens");
        }
    };
    queue.insert("later", (), HOUR).expect("open");
    scheduler.schedule_once(MS, inside.clone()).expect("open");
    let (early, panic, item) = results.recv_timeout(crate::common::PATIENCE).expect("in time");
    assert!(early.is_none() && panic == Err(true));
    assert_eq!(item.map(|item| item.key), Some("due"), "what is due needs no wait");
    queue.check_invariants();

    let (scheduler, driver) = driven_by(Scheduler::builder().executor(Inline));
    let queue = DelayQueue::new(&scheduler);
    let has_run = Arc::new(AtomicBool::new(false));
    let ran = Arc::clone(&has_run);
    let own = queue.clone();
    let inside = move || {
        assert!(own.recv_timeout(MS).is_none());
        assert!(panics(|| own.recv()));
        own.insert("due", (), Duration::ZERO).expect("open");
        assert_eq!(own.recv().map(|item| item.key), Some("due"));
        ran.store(true, Ordering::Relaxed);
    };
    queue.insert("later", (), HOUR).expect("open");
    scheduler.schedule_once(MS, inside).expect("open");
    driver.advance(MS);
    assert!(has_run.load(Ordering::Relaxed));
    queue.check_invariants();
}

// ----- the end -----------------------------------------------------------------------------

#[test]
fn s20_close_returns_all_in_order_with_deadlines() {
    let (_scheduler, driver, queue) = queue();
    let start = driver.now();
    for key in 0..500_u32 {
        queue.insert(key, key, SECOND * (key % 50)).expect("open");
    }
    driver.advance(10 * SECOND);
    assert_eq!(queue.try_next().map(|item| item.key), Some(0));
    let all = queue.close();
    let expected: Vec<_> = (0..50)
        .flat_map(|seconds| (0..10).map(move |row| (seconds, row * 50 + seconds)))
        .skip(1)
        .map(|(seconds, key)| Expired { key, value: key, deadline: start + SECOND * seconds })
        .collect();
    assert_eq!(all, expected);
    assert!(queue.close().is_empty() && queue.is_empty() && queue.is_closed());
    queue.check_invariants();
}

#[test]
fn s23_a_closed_queue_refuses_and_gives_nothing() {
    let (scheduler, driver, queue) = queue();
    queue.insert("a", 1, Duration::ZERO).expect("open");
    assert_eq!(queue.clone().close().len(), 1);
    let refused = queue.insert("b", 2, SECOND).unwrap_err();
    assert_eq!((refused.reason(), refused.into_inner()), (ScheduleError::Closed, ("b", 2)));
    assert!(queue.insert_at("b", 2, driver.now()).is_err());
    assert!(!queue.reset(&"a", SECOND) && queue.remove(&"a").is_none());
    assert!(!queue.contains_key(&"a") && queue.next_deadline().is_none());
    assert!(queue.try_next().is_none() && queue.recv().is_none());
    assert!(queue.recv_timeout(Duration::MAX).is_none());
    let task = Poller::new();
    assert_eq!(task.poll(&mut queue.next()), Poll::Ready(None));
    assert_eq!(poll(&task, &mut queue.stream()), Poll::Ready(None));
    assert!(!scheduler.is_closed());
    queue.check_invariants();
}

type Take = fn(&DelayQueue<u32, ()>) -> Option<Expired<u32, ()>>;

/// Takers of all kinds, which wait when this returns.
fn takers_that_wait(queue: &DelayQueue<u32, ()>, driver: &Driver) -> Vec<JoinHandle<bool>> {
    let spawn = |take: Take| {
        let queue = queue.clone();
        thread::spawn(move || take(&queue).is_none())
    };
    let takers = (0..12).map(|number| match number % 4 {
        0 => spawn(DelayQueue::recv),
        1 => spawn(|queue| queue.recv_timeout(Duration::MAX)),
        2 => spawn(|queue| block_on(queue.next())),
        _ => spawn(|queue| {
            let mut stream = queue.stream();
            block_on(poll_fn(|cx| stream.poll_next(cx)))
        }),
    });
    let takers: Vec<_> = takers.collect();
    until("one of them has an alarm", || driver.next_deadline().is_some());
    thread::sleep(20 * MS); // real time: most of the others wait, and the rest will look
    takers
}

#[test]
fn s20_close_wakes_all_takers() {
    let (scheduler, driver, queue) = queue();
    queue.insert(1, (), HOUR).expect("open");
    let waiting = takers_that_wait(&queue, &driver);
    assert_eq!(queue.close().len(), 1);
    assert!(waiting.into_iter().all(joined));
    let tasks: Vec<_> = (0..3).map(|_| Poller::new()).collect();
    let queue = DelayQueue::<u32, ()>::new(&scheduler);
    let mut streams: Vec<_> = tasks.iter().map(|_| queue.stream()).collect();
    for (task, stream) in tasks.iter().zip(&mut streams) {
        assert!(poll(task, stream).is_pending());
    }
    assert!(queue.close().is_empty());
    for (task, stream) in tasks.iter().zip(&mut streams) {
        assert_eq!((task.woken(), poll(task, stream)), (1, Poll::Ready(None)));
        assert_eq!(poll(task, stream), Poll::Ready(None), "and again");
    }
}

#[test]
fn s20_the_end_of_the_scheduler_wakes_all_takers() {
    // A driver that closes, an empty queue, and one whose item is far away.
    for is_empty in [true, false] {
        let (_scheduler, driver, queue) = queue();
        if !is_empty {
            queue.insert(1, (), HOUR).expect("open");
        }
        let waiting = if is_empty {
            let (first, second) = (Poller::new(), Poller::new());
            let (mut next, mut stream) = (queue.next(), queue.stream());
            assert!(first.poll(&mut next).is_pending());
            assert!(poll(&second, &mut stream).is_pending());
            assert!(driver.close().is_empty(), "an alarm is no leftover");
            assert_eq!((first.woken(), first.poll(&mut next)), (1, Poll::Ready(None)));
            assert_eq!((second.woken(), poll(&second, &mut stream)), (1, Poll::Ready(None)));
            Vec::new()
        } else {
            let waiting = takers_that_wait(&queue, &driver);
            assert!(driver.close().is_empty(), "an alarm is no leftover");
            waiting
        };
        assert!(waiting.into_iter().all(joined));
        queue.check_invariants();
    }
}

#[test]
fn s23_what_is_in_a_queue_stays_readable_after_the_end_of_its_scheduler() {
    let (_scheduler, driver, queue) = queue();
    for key in 0..4_u32 {
        queue.insert(key, key, SECOND * key).expect("open");
    }
    driver.advance(SECOND);
    let start = driver.now();
    assert!(driver.close().is_empty());
    assert!(queue.is_closed());
    let refused = queue.insert(9, 90, SECOND).unwrap_err();
    assert_eq!((refused.reason(), refused.into_inner()), (ScheduleError::Closed, (9, 90)));
    assert_eq!(queue.insert(3, 30, SECOND).unwrap_err().reason(), ScheduleError::Closed);
    let task = Poller::new();
    assert_eq!(queue.recv().map(|item| item.key), Some(0), "what is due comes");
    assert!(matches!(task.poll(&mut queue.next()), Poll::Ready(Some(item)) if item.key == 1));
    assert!(queue.recv().is_none() && queue.try_next().is_none());
    assert!(queue.recv_timeout(Duration::MAX).is_none());
    let mut stream = queue.stream();
    assert_eq!(poll(&task, &mut stream), Poll::Ready(None));
    assert_eq!((queue.len(), queue.next_deadline()), (2, Some(start + SECOND)));
    assert_eq!(queue.with(&2, |value| *value), Some(2));
    assert!(queue.contains_key(&3) && queue.remove(&3) == Some(3));
    queue.check_invariants();
    let rest = queue.close();
    assert_eq!(rest, [Expired { key: 2, value: 2, deadline: start + SECOND }]);
}

/// The tick thread wakes the takers before a close returns, or shortly after it.
#[test]
fn s20_closing_a_scheduler_with_a_thread_ends_its_takers() {
    for _ in 0..20 {
        let scheduler = Scheduler::new();
        let queue = DelayQueue::<u32, ()>::new(&scheduler);
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.recv().is_none())
            })
            .collect();
        thread::yield_now();
        assert!(scheduler.close().expect("in time").is_empty());
        assert!(takers.into_iter().all(joined));
    }
}

#[test]
fn s25_s26_waiting_takers_are_counted_nowhere_and_need_no_room() {
    let (scheduler, driver) = driven_by(Scheduler::builder().max_pending(0));
    let queue = DelayQueue::new(&scheduler);
    assert!(scheduler.schedule_once(SECOND, || ()).is_err(), "it is full");
    let tasks: Vec<_> = (0..3).map(|_| Poller::new()).collect();
    let mut takers: Vec<_> = tasks.iter().map(|_| queue.next()).collect();
    for (task, taker) in tasks.iter().zip(&mut takers) {
        assert!(task.poll(taker).is_pending());
    }
    assert!(tasks.iter().all(|task| task.woken() == 0), "none had to look again");
    for key in 0..3_usize {
        queue.insert(key, (), SECOND).expect("the limit is for tasks");
    }
    let counts = || {
        let stats = scheduler.stats();
        let ended = (stats.fired(), stats.cancelled(), stats.dropped(), stats.rejected());
        (scheduler.pending(), stats.pending(), stats.scheduled(), ended, stats.lateness().count())
    };
    assert_eq!(counts(), (0, 0, 0, (0, 0, 0, 0), 0));
    for (key, taker) in takers.iter_mut().enumerate() {
        let item = driver.block_on(taker).expect("not stalled").expect("open");
        assert_eq!(item.key, key);
        assert_eq!(counts(), (0, 0, 0, (0, 0, 0, 0), 0));
    }
    assert!(tasks[0].poll(&mut takers[0]).is_pending());
    drop(takers); // one of them has an alarm, which is cancelled
    assert_eq!(counts(), (0, 0, 0, (0, 0, 0, 0), 0));
    let task = Poller::new();
    let mut next = queue.next();
    assert!(task.poll(&mut next).is_pending());
    assert!(driver.close().is_empty());
    assert_eq!((counts(), task.woken()), ((0, 0, 0, (0, 0, 0, 0), 0), 1));
}

/// On a tick thread, and with an executor that would be counted.
#[test]
#[should_panic(expected = "would block the thread that serves its scheduler")]
fn recv_in_the_future_of_a_driver_is_told() {
    crate::common::silence();
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let queue = DelayQueue::new(&scheduler);
    queue.insert(1, 1, Duration::from_secs(1)).expect("open");
    drop(driver.block_on(async { queue.recv() }));
}

#[test]
fn s26_stats_of_a_scheduler_with_a_thread_show_no_taker() {
    let scheduler = Scheduler::new();
    let queue = DelayQueue::new(&scheduler);
    for key in 0..20 {
        queue.insert(key, (), MS).expect("open");
        assert_eq!(queue.recv().map(|item| item.key), Some(key));
        assert!(queue.recv_timeout(Duration::from_micros(50)).is_none());
    }
    let stats = scheduler.stats();
    assert_eq!(
        (stats.scheduled(), stats.fired(), stats.cancelled(), stats.pending()),
        (0, 0, 0, 0)
    );
    assert!(scheduler.close().expect("in time").is_empty());
}

#[test]
fn s24_a_queue_keeps_its_scheduler_alive_and_lets_it_go() {
    let scheduler = Scheduler::new();
    let weak = scheduler.downgrade();
    let queue = DelayQueue::new(&scheduler);
    drop(scheduler);
    queue.insert("item", (), MS).expect("open");
    assert_eq!(queue.recv().map(|item| item.key), Some("item"));
    assert!(weak.upgrade().is_some());
    let mut stream = queue.stream();
    let task = Poller::new();
    assert!(poll(&task, &mut stream).is_pending());
    drop(queue);
    assert!(weak.upgrade().is_some(), "a stream is a handle of the queue");
    drop(stream);
    assert!(weak.upgrade().is_none());
    assert_eq!((task.wakers(), task.woken()), (0, 0));
}

#[test]
fn the_last_handle_drops_items_and_alarm() {
    let (scheduler, driver, queue) = queue();
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = || {
        let dropped = Arc::clone(&dropped);
        OnDrop(move || _ = dropped.fetch_add(1, Ordering::Relaxed))
    };
    let mut stream = queue.stream();
    assert!(poll(&Poller::new(), &mut stream).is_pending());
    for key in 0..100_u32 {
        queue.insert(key, counted(), SECOND * key).expect("open");
    }
    let other = queue.clone();
    drop(queue);
    drop(other);
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "the stream is a handle");
    drop(stream);
    assert_eq!((dropped.load(Ordering::Relaxed), driver.turn()), (100, None));
    assert_eq!(scheduler.stats().cancelled(), 0);
}

#[test]
fn the_memory_of_a_peak_goes_back() {
    let (_scheduler, driver, queue) = queue();
    let memory = Measurement::start();
    let fill = |delay: Duration| {
        for key in 0..100_000_u64 {
            queue.insert(key, [0_u64; 4], delay + Duration::from_micros(key)).expect("open");
        }
        assert!(memory.bytes() > 100_000 * 40);
    };
    let is_small = |what: &str| {
        queue.check_invariants();
        let kept = memory.bytes();
        // A share of it stays for the next items: some tens of KB for each of at most 64 places.
        assert!(kept < 4_000_000, "{what}: {kept} bytes are kept of a peak of some 8,000,000");
    };
    fill(SECOND);
    driver.advance(HOUR);
    assert_eq!(due(&queue).len(), 100_000);
    is_small("taken");
    fill(HOUR);
    (0..100_000).for_each(|key| assert!(queue.remove(&key).is_some()));
    is_small("removed");
    fill(SECOND);
    drop(queue.close());
    is_small("closed");
    drop(queue);
    assert!(memory.bytes() <= 0);
}

/// Sessions are pushed further a thousand times for each that ends.
#[test]
fn s28_resets_without_end_take_no_memory() {
    let (_scheduler, driver, queue) = queue();
    let memory = Measurement::start();
    (0..1_000_u32).for_each(|key| _ = queue.insert(key, (), 30 * SECOND).expect("open"));
    let mut random = Random(28);
    let mut most = Vec::new();
    for _ in 0..6 {
        for _ in 0..50_000 {
            let later = random.below(60_000) as u32 * MS;
            assert!(queue.reset(&(random.below(1_000) as u32), HOUR + later));
        }
        driver.advance(SECOND);
        most.push(memory.bytes());
    }
    queue.check_invariants();
    assert!(most[5] <= most[1] + 100_000, "{most:?}");
}

// ----- user code ---------------------------------------------------------------------------

/// A key whose `Hash`, `Eq` and `Drop` do what a test has told its thread, and whose hash may be bad.
#[derive(Debug)]
struct Odd {
    number: u32,
    hashes: u32,
}

thread_local! {
    /// What panics: 'h' a hash, 'e' a comparison, 'd' the drop of a key, and after how many of them.
    static PANIC: Cell<Option<(char, usize)>> = const { Cell::new(None) };
}

/// Panics if it is the turn of this kind of call.
fn may_panic(kind: char) {
    match PANIC.get() {
        Some((other, 0)) if other == kind => {
            PANIC.set(None);
            panic_on_purpose()
        }
        Some((other, left)) if other == kind => PANIC.set(Some((kind, left - 1))),
        _ => {}
    }
}

impl Odd {
    fn new(number: u32, hashes: u32) -> Odd {
        Odd { number, hashes }
    }
}

impl PartialEq for Odd {
    fn eq(&self, other: &Odd) -> bool {
        may_panic('e');
        self.number == other.number
    }
}

impl Eq for Odd {}

impl Hash for Odd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        may_panic('h');
        (self.number % self.hashes).hash(state);
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        may_panic('d');
    }
}

#[test]
fn keys_with_bad_hashes_are_only_slow() {
    for hashes in [1, 2] {
        let (_scheduler, driver, queue) = queue();
        let key = |number| Odd::new(number, hashes);
        for number in 0..300 {
            queue.insert(key(number), number, SECOND * (1 + number % 7)).expect("open");
        }
        for number in (0..300).step_by(3) {
            assert_eq!(queue.remove(&key(number)), Some(number));
            assert!(queue.reset(&key(number + 1), SECOND));
        }
        queue.check_invariants();
        assert!(!queue.contains_key(&key(0)) && !queue.reset(&key(300), SECOND));
        driver.advance(SECOND);
        let first = due(&queue);
        assert!(first.iter().all(|key| key.number % 3 == 1 || key.number % 7 == 0));
        driver.advance(HOUR);
        assert_eq!(first.len() + due(&queue).len(), 200);
        queue.check_invariants();
    }
}

/// Calls every method that takes a key, with a panic in the n-th call of some user code.
fn with_panics(kind: char, hashes: u32) {
    silence();
    let (scheduler, driver) = driven();
    let queue = DelayQueue::with_capacity_limit(&scheduler, 8);
    let (task, mut stream) = (Poller::new(), queue.stream());
    let key = |number| Odd::new(number, hashes);
    for number in 0..6 {
        queue.insert(key(number), number, SECOND * (1 + number)).expect("open");
    }
    assert!(poll(&task, &mut stream).is_pending());
    let mut thrown = 0;
    for at in 0..8 {
        for method in 0..8 {
            let expected = keys_of(&queue, hashes);
            PANIC.set(Some((kind, at)));
            let known = key(3);
            let call = || match method {
                0 => drop(queue.insert(key(9), 9, 9 * SECOND)),
                1 => drop(queue.insert(key(3), 3, 4 * SECOND)),
                2 => _ = queue.reset(&known, 4 * SECOND),
                3 => _ = queue.remove(&known),
                4 => _ = queue.contains_key(&known),
                5 => _ = queue.deadline(&known),
                6 => _ = queue.with(&known, |value| *value),
                _ => drop(queue.insert_at(key(9), 9, driver.now() + 9 * SECOND)),
            };
            let has_panicked = panics(call);
            PANIC.set(None);
            queue.check_invariants();
            thrown += usize::from(has_panicked);
            if has_panicked && kind != 'd' {
                assert_eq!(keys_of(&queue, hashes), expected, "{kind} {at} of method {method}");
            }
            _ = queue.remove(&key(9));
            _ = queue.insert(key(3), 3, 4 * SECOND).expect("there is room");
        }
    }
    assert!(thrown > 0, "{kind} has panicked");
    // No place has been lost.
    queue.insert(key(6), 6, 7 * SECOND).expect("the seventh");
    queue.insert(key(7), 7, 8 * SECOND).expect("the last");
    assert_eq!(queue.insert(key(8), 8, SECOND).unwrap_err().reason(), ScheduleError::Full);
    for number in 0..8 {
        let next = poll_fn(|cx| stream.poll_next(cx));
        assert_eq!(driver.block_on(next).expect("woken").expect("open").value, number);
    }
    assert!(queue.is_empty());
}

fn keys_of(queue: &DelayQueue<Odd, u32>, hashes: u32) -> HashSet<u32> {
    (0..10).filter(|number| queue.contains_key(&Odd::new(*number, hashes))).collect()
}

#[test]
fn s17_a_panic_in_hash_leaves_the_queue_whole() {
    [u32::MAX, 2, 1].into_iter().for_each(|hashes| with_panics('h', hashes));
}

#[test]
fn s17_a_panic_in_eq_leaves_the_queue_whole() {
    [u32::MAX, 2, 1].into_iter().for_each(|hashes| with_panics('e', hashes));
}

#[test]
fn s17_a_panic_in_the_drop_of_a_key_leaves_the_queue_whole() {
    [u32::MAX, 2, 1].into_iter().for_each(|hashes| with_panics('d', hashes));
}

#[test]
fn s17_a_panic_in_the_closure_of_with_is_the_callers() {
    let (_scheduler, driver, queue) = queue();
    queue.insert("a", 1, SECOND).expect("open");
    let has_panicked = panics(|| {
        queue.with(&"a", |value| {
            *value = 2;
            panic_on_purpose()
        })
    });
    assert!(has_panicked);
    queue.check_invariants();
    assert_eq!(queue.with(&"a", |value| *value), Some(2), "what it has written stays");
    assert!(queue.reset(&"a", 2 * SECOND));
    driver.advance(2 * SECOND);
    assert_eq!(queue.try_next().map(|item| item.value), Some(2));
    queue.insert("b", 3, SECOND).expect("open");
    assert_eq!(queue.close().len(), 1);
}

/// It would wait for itself. The queue is whole after it, and another queue may be called.
#[test]
fn a_call_of_the_queue_in_the_closure_of_with_panics_and_does_not_hang() {
    let (scheduler, _driver, queue) = queue::<&str, u32>();
    let other = DelayQueue::new(&scheduler);
    queue.insert("a", 1, SECOND).expect("open");
    other.insert("a", 1, SECOND).expect("open");
    let calls: [&dyn Fn(); 7] = [
        &|| _ = queue.contains_key(&"a"),
        &|| _ = queue.insert("a", 2, SECOND),
        &|| _ = queue.reset(&"a", SECOND),
        &|| _ = queue.remove(&"a"),
        &|| _ = queue.with(&"a", |value| *value),
        &|| _ = queue.len(),
        &|| _ = queue.close(),
    ];
    for call in calls {
        assert!(panics(|| queue.with(&"a", |_| call())));
        assert_eq!(queue.with(&"a", |value| *value), Some(1));
    }
    let both = queue.with(&"a", |value| other.remove(&"a").map(|other| other + *value));
    assert_eq!(both, Some(Some(2)));
    assert!(panics(|| queue.with(&"a", |_| {
        other.insert("b", 1, SECOND).expect("open");
        other.with(&"b", |_| ());
        queue.len()
    })));
    assert!(panics(|| queue.with(&"a", |_| other.with(&"b", |_| queue.len()))));
    assert_eq!((queue.len(), other.len()), (1, 1));
}

/// A call that takes panics in any case, and before it has changed anything.
#[test]
fn s20_a_taker_in_the_closure_of_with_panics_and_costs_no_item() {
    let calls: [fn(&DelayQueue<u32, ()>); 3] = [
        |queue| _ = queue.try_next(),
        |queue| _ = queue.recv_timeout(Duration::ZERO),
        |queue| _ = pin!(queue.next()).poll(&mut Context::from_waker(Waker::noop())),
    ];
    for call in calls {
        let (_scheduler, driver, queue) = queue::<u32, ()>();
        (0..200).for_each(|key| drop(queue.insert(key, (), SECOND)));
        for key in 0..200 {
            assert!(panics(|| queue.with(&key, |()| call(&queue))));
        }
        queue.check_invariants();
        driver.advance(SECOND);
        assert_eq!(std::iter::from_fn(|| queue.try_next()).count(), 200);
    }
}

#[test]
fn s17_values_that_panic_when_they_are_dropped_are_the_business_of_who_drops_them() {
    let (_scheduler, driver, queue) = queue();
    for key in 0..5_u32 {
        queue.insert(key, Grenade, SECOND * key).expect("open");
    }
    assert!(panics(|| drop(queue.insert(1, Grenade, SECOND))), "the old value");
    assert!(panics(|| drop(queue.remove(&2))));
    assert!(panics(|| drop(queue.try_next())));
    queue.check_invariants();
    assert_eq!(queue.len(), 3);
    driver.advance(SECOND);
    let item = driver.block_on(queue.next()).expect("not stalled").expect("open");
    assert_eq!(item.key, 1);
    std::mem::forget(item.value);
    queue.close().into_iter().for_each(|item| std::mem::forget(item.value));
    assert!(panics(|| drop(queue.insert(1, Grenade, SECOND))), "refused");
    queue.check_invariants();
}

/// Calls every method of the queue when it is dropped. It would wait for ever, or panic, if something were locked.
struct Talkative(Arc<OnceLock<DelayQueue<Curious, Talkative>>>);

/// A key that does the same. Its comparisons may panic.
struct Curious(Odd, Option<Arc<OnceLock<DelayQueue<Curious, Talkative>>>>);

impl PartialEq for Curious {
    fn eq(&self, other: &Curious) -> bool {
        self.0 == other.0
    }
}

impl Eq for Curious {}

impl Hash for Curious {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

fn look_around(queue: &OnceLock<DelayQueue<Curious, Talkative>>) {
    let Some(queue) = queue.get() else { return };
    queue.check_invariants();
    let key = |number| Curious(Odd::new(number, u32::MAX), None);
    for number in 0..10 {
        queue.reset(&key(number), HOUR);
        assert!(queue.with(&key(number), |_| ()).is_some() == queue.contains_key(&key(number)));
    }
    assert!(queue.next_deadline().is_some() || queue.is_empty());
    _ = format!("{queue:?}");
}

impl Drop for Talkative {
    fn drop(&mut self) {
        look_around(&self.0);
    }
}

impl Drop for Curious {
    fn drop(&mut self) {
        self.1.iter().for_each(|queue| look_around(queue));
    }
}

#[test]
fn s11_keys_and_values_are_dropped_with_nothing_locked() {
    silence();
    in_time(|| {
        let (scheduler, driver) = driven();
        let own = Arc::new(OnceLock::new());
        let made = own.get_or_init(|| DelayQueue::with_capacity_limit(&scheduler, 4)).clone();
        let key = |number| Curious(Odd::new(number, u32::MAX), Some(Arc::clone(&own)));
        let put = |number| made.insert(key(number), Talkative(Arc::clone(&own)), SECOND);
        (0..4).for_each(|number| drop(put(number).expect("there is room")));
        drop(put(4).map_err(InsertError::into_inner)); // refused
        drop(put(1)); // replaced
        drop(made.remove(&key(2)));
        assert!(made.reset_at(&key(3), driver.now()));
        drop(made.try_next());
        drop(put(3));
        PANIC.set(Some(('e', 0)));
        assert!(panics(|| drop(put(1))), "a panic of `Eq` drops key and value");
        PANIC.set(None);
        made.check_invariants();
        drop(driver.block_on(made.next()));
        drop(made.close());
        drop(put(1)); // closed
        made.check_invariants();
    });
}

/// The calls of a waker that may panic: 'c' a clone, 'w' a wake, 'k' a drop. It has no data.
const RUDE: RawWakerVTable = RawWakerVTable::new(
    |_| {
        may_panic('c');
        RawWaker::new(ptr::null(), &RUDE)
    },
    |_| may_panic('w'),
    |_| may_panic('w'),
    |_| may_panic('k'),
);

fn rude() -> ManuallyDrop<Waker> {
    // SAFETY: no function of the table uses the data.
    ManuallyDrop::new(unsafe { Waker::new(ptr::null(), &RUDE) })
}

/// A rude taker leads, and another one follows. Both items reach somebody, and nobody but the rude taker's own polls
/// panics.
fn rude_wakers(kind: char, at: usize) -> usize {
    silence();
    let (_scheduler, driver, queue) = queue();
    let (waker, task) = (rude(), Poller::new());
    let mut context = Context::from_waker(&waker);
    let (mut first, mut second) = (Box::pin(queue.next()), queue.next());
    let (mut taken, mut thrown) = (0, 0);
    let mut poll_first = || {
        let polled = catch_unwind(AssertUnwindSafe(|| first.as_mut().poll(&mut context)));
        match polled {
            Ok(Poll::Ready(item)) => taken += usize::from(item.is_some()),
            Ok(Poll::Pending) => {}
            Err(_) => thrown += 1,
        }
        queue.check_invariants();
    };
    queue.insert(1, (), 2 * SECOND).expect("open");
    PANIC.set(Some((kind, at)));
    poll_first();
    assert!(task.poll(&mut second).is_pending());
    queue.insert(2, (), SECOND).expect("open");
    poll_first();
    poll_first();
    driver.advance(SECOND);
    poll_first();
    poll_first();
    drop(first);
    thrown += usize::from(PANIC.take().is_none());
    let is_taken = task.poll(&mut second).is_ready();
    queue.check_invariants();
    if !is_taken {
        let woken = task.woken();
        driver.advance(SECOND);
        assert!(task.woken() > woken, "the other taker leads");
        assert!(task.poll(&mut second).is_ready());
    }
    assert_eq!(taken + 1 + due(&queue).len(), 2, "{kind} {at}: no item is lost");
    queue.check_invariants();
    thrown
}

#[test]
fn s17_wakers_that_panic_lose_no_item_and_stop_nobody_else() {
    for kind in ['c', 'w', 'k'] {
        let thrown: usize = (0..12).map(|at| rude_wakers(kind, at)).sum();
        assert!(thrown > 0, "{kind} has panicked");
    }
}

#[test]
fn s17_a_taker_whose_waker_panics_is_dropped_for_the_next_one_to_lead() {
    silence();
    for at in 0..4 {
        for kind in ['c', 'k'] {
            let (_scheduler, driver, queue) = queue();
            let (waker, task) = (rude(), Poller::new());
            let mut second = queue.next();
            queue.insert(1, (), SECOND).expect("open");
            PANIC.set(Some((kind, at)));
            _ = panics(|| {
                let mut first = pin!(queue.next());
                let polled = first.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(task.poll(&mut second).is_pending());
                _ = first.as_mut().poll(&mut Context::from_waker(&waker));
                polled
            });
            PANIC.set(None);
            if task.wakers() == 0 || task.woken() > 0 {
                assert!(task.poll(&mut second).is_pending());
            }
            queue.check_invariants();
            let woken = task.woken();
            driver.advance(SECOND);
            assert_eq!(task.woken(), woken + 1, "{kind} {at}");
            assert!(task.poll(&mut second).is_ready());
        }
    }
}

#[test]
fn s17_a_close_wakes_the_others_although_a_waker_panics() {
    silence();
    for of_scheduler in [false, true] {
        let (_scheduler, driver, queue) = queue::<u32, ()>();
        let (waker, task) = (rude(), Poller::new());
        let (mut first, mut second) = (Box::pin(queue.next()), queue.next());
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(task.poll(&mut second).is_pending());
        PANIC.set(Some(('w', 0)));
        if of_scheduler {
            assert!(driver.close().is_empty());
            drop(first); // nobody will poll it, because its waker has failed
        } else {
            assert!(queue.close().is_empty());
        }
        assert!(PANIC.take().is_none(), "it has panicked");
        assert_eq!((task.woken(), task.poll(&mut second)), (1, Poll::Ready(None)));
    }
}

/// A waker that calls the queue.
struct Calls(DelayQueue<u32, ()>, AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.check_invariants();
        self.0.reset(&0, HOUR);
        self.0.with(&0, |()| ());
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.0.check_invariants();
    }
}

#[test]
fn s11_wakers_are_called_and_dropped_with_nothing_locked() {
    in_time(|| {
        let (_scheduler, driver, queue) = queue();
        queue.insert(0, (), HOUR).expect("open");
        let mut takers: Vec<_> = (0..3).map(|_| queue.stream()).collect();
        let mut woken = 0;
        for round in 0..4 {
            let calls = Arc::new(Calls(queue.clone(), AtomicUsize::new(0)));
            let waker = Waker::from(Arc::clone(&calls));
            for taker in &mut takers {
                assert!(taker.poll_next(&mut Context::from_waker(&waker)).is_pending());
            }
            drop(waker);
            match round {
                0 => _ = queue.insert(1, (), MS).expect("open"),
                1 => _ = driver.advance(MS),
                2 => takers.truncate(1),
                _ => drop(queue.close()),
            }
            woken += calls.1.load(Ordering::Relaxed);
            due(&queue);
        }
        assert!(woken >= 3, "{woken}");
    });
}

// ----- types -------------------------------------------------------------------------------

/// Sent to other threads and shared by them.
fn is_send_and_sync<T: Send + Sync>() {}

fn is_unpin<T: Unpin>() {}

fn is_debug<T: Debug>() {}

#[test]
fn its_types_can_be_sent_shared_and_moved() {
    type Value = Cell<u8>; // it can be sent, and not shared
    type Silent = fn(*mut u8); // it has no `Debug` for lack of a bound
    is_send_and_sync::<DelayQueue<Value, Value>>();
    is_send_and_sync::<NextExpired<'static, Value, Value>>();
    is_send_and_sync::<Expirations<Value, Value>>();
    is_send_and_sync::<InsertError<Value, Value>>();
    is_send_and_sync::<Expired<String, u32>>();
    is_unpin::<NextExpired<'static, PhantomPinned, PhantomPinned>>();
    is_unpin::<Expirations<PhantomPinned, PhantomPinned>>();
    is_unpin::<DelayQueue<PhantomPinned, PhantomPinned>>();
    is_debug::<DelayQueue<Silent, PhantomPinned>>();
    is_debug::<NextExpired<'static, PhantomPinned, PhantomPinned>>();
    is_debug::<Expirations<PhantomPinned, PhantomPinned>>();
    is_debug::<InsertError<PhantomPinned, PhantomPinned>>();
}

#[test]
fn its_types_show_what_they_are() {
    let (_scheduler, _driver, queue) = queue();
    assert_eq!(
        format!("{queue:?}"),
        "DelayQueue { len: 0, next_deadline: None, is_closed: false, .. }"
    );
    queue.insert("a", 1, SECOND).expect("open");
    assert!(format!("{queue:?}").starts_with("DelayQueue { len: 1, next_deadline: Some("));
    let mut stream = queue.stream();
    assert!(format!("{stream:?}").ends_with("is_over: false, .. }"));
    assert_eq!(format!("{:?}", queue.next()), "NextExpired { is_over: false, .. }");
    queue.close();
    assert_eq!(poll(&Poller::new(), &mut stream), Poll::Ready(None));
    assert!(format!("{stream:?}").ends_with("is_over: true, .. }"));
    let refused = queue.insert("b", 2, SECOND).unwrap_err();
    assert_eq!(format!("{refused:?}"), "InsertError { reason: Closed, .. }");
}

#[test]
fn an_expired_item_is_cloned_and_compared() {
    let (_scheduler, driver, queue) = queue();
    queue.insert("a", 1, Duration::ZERO).expect("open");
    let item = queue.try_next().expect("due");
    let same = item.clone();
    assert_eq!(item, same);
    assert_eq!((item.key, item.value, item.deadline), ("a", 1, driver.now()));
    for other in [
        Expired { key: "b", ..same.clone() },
        Expired { value: 2, ..same.clone() },
        Expired { deadline: same.deadline + NANO, ..same.clone() },
    ] {
        assert_ne!(other, same);
    }
    assert_eq!(HashSet::from([item, same.clone()]), HashSet::from([same.clone()]));
    let shown = format!("{same:?}");
    assert!(shown.starts_with("Expired { key: \"a\", value: 1, deadline: Instant"), "{shown}");
}

#[test]
fn s27_errors_say_what_to_do_and_can_be_passed_on() {
    fn fills(queue: &DelayQueue<u32, Cell<u8>>) -> Result<(), Box<dyn Error + Send + Sync>> {
        for key in 0..3 {
            queue.insert(key, Cell::new(0), SECOND)?;
        }
        Ok(())
    }
    let (scheduler, _driver) = driven();
    let queue = DelayQueue::with_capacity_limit(&scheduler, 2);
    let full = fills(&queue).unwrap_err();
    assert!(full.to_string().contains("full") && full.to_string().contains("limit"), "{full}");
    assert!(full.is::<InsertError<u32, Cell<u8>>>());
    queue.close();
    let closed = fills(&queue).unwrap_err();
    assert!(closed.to_string().contains("closed"), "{closed}");
    assert!(closed.to_string().contains("into_inner"), "{closed}");
    for (error, reason) in [(full, ScheduleError::Full), (closed, ScheduleError::Closed)] {
        assert_eq!(error.source().and_then(|source| source.downcast_ref()), Some(&reason));
    }
}
