//! Storms around a `delay::DelayQueue`, in real time: threads that insert, replace, move and remove, takers of all kinds,
//! and a ledger in which every item has exactly one end.
//!
//! `TICKWHEEL_STORM=20 cargo test --release --test delay_queue_storms` makes them twenty times as long, and
//! `TICKWHEEL_FULL=1` as long as `scripts/storms` does.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tickwheel::delay::{DelayQueue, Expired};
use tickwheel::future::block_on;
use tickwheel::{Precision, ScheduleError, Scheduler};

use crate::common::ledger::{End, Ledger};
use crate::common::told::Poller;
use crate::common::{Random, count, until};

const PRODUCERS: usize = 3;
const MOVERS: usize = 2;
const TAKERS: usize = 6;

/// So few keys that the threads meet at them.
const KEYS: u64 = 400;

struct Item {
    id: usize,
    /// Its deadline. Items of even keys keep it, and those of odd keys are moved.
    not_before: Instant,
}

struct Storm {
    scheduler: Scheduler,
    queue: DelayQueue<u64, Item>,
    limit: usize,
    ledger: Arc<Ledger>,
}

/// What ends a storm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    /// The queue, after the last item.
    Last,
    /// The queue, some time after the start.
    Queue(Duration),
    /// The scheduler, some time after the start.
    Scheduler(Duration),
}

impl Storm {
    fn new(items: usize, limit: usize, precision: Precision) -> Arc<Storm> {
        let scheduler = Scheduler::builder().precision(precision).build().expect("a thread");
        let queue = DelayQueue::with_capacity_limit(&scheduler, limit);
        Arc::new(Storm { scheduler, queue, limit, ledger: Ledger::new(items) })
    }

    // ----- in ------------------------------------------------------------------------------

    fn produce(&self, ids: impl Iterator<Item = usize>, seed: usize) {
        let mut random = Random(seed as u64);
        for id in ids {
            let key = random.below(KEYS);
            let later = Duration::from_micros(random.below(4_000));
            let later = if random.one_in(8) { Duration::ZERO } else { later };
            let not_before = Instant::now() + later;
            let item = Item { id, not_before };
            let inserted = if random.one_in(2) {
                self.queue.insert(key, item, later)
            } else {
                self.queue.insert_at(key, item, not_before)
            };
            match inserted {
                Ok(before) => {
                    before.into_iter().for_each(|item| self.ledger.book(item.id, End::Dropped));
                }
                Err(refused) => {
                    let is_full = refused.reason() == ScheduleError::Full;
                    assert!(if is_full { self.limit < usize::MAX } else { self.queue.is_closed() });
                    assert_eq!(refused.into_inner().1.id, id);
                    self.ledger.book(id, End::Refused);
                }
            }
            if random.one_in(100) {
                thread::sleep(later / 4); // so that takers go to sleep as well
            }
        }
    }

    /// Moves and removes items, and looks at them.
    fn move_some(&self, seed: usize) {
        let mut random = Random(1_000 + seed as u64);
        while !self.ledger.is_closed() && !self.queue.is_closed() {
            let key = random.below(KEYS);
            let now = Instant::now();
            match random.below(8) {
                0 => {
                    let removed = self.queue.remove(&key);
                    removed.into_iter().for_each(|item| self.ledger.book(item.id, End::Cancelled));
                }
                1 => {
                    let deadline = self.queue.deadline(&key);
                    assert!(deadline.is_none_or(|at| at < now + Duration::from_secs(60)));
                }
                2 => _ = self.queue.with(&key, |item| assert!(!self.ledger.is_booked(item.id))),
                3 => {
                    let first = self.queue.next_deadline();
                    assert!(first.is_none_or(|at| at < now + Duration::from_secs(60)));
                    assert!(self.queue.len() <= self.limit.min(KEYS as usize));
                }
                4 | 5 if key % 2 == 1 => {
                    _ = self.queue.reset(&key, Duration::from_micros(random.below(4_000)));
                }
                6 if key % 2 == 1 => _ = self.queue.reset_at(&key, now),
                _ => thread::yield_now(),
            }
        }
    }

    // ----- out -----------------------------------------------------------------------------

    /// Books an item that has come out. Returns false if there will be none any more.
    fn took(&self, taken: Option<Expired<u64, Item>>) -> bool {
        let Some(Expired { key, value, deadline }) = taken else { return !self.queue.is_closed() };
        let now = Instant::now();
        assert!(deadline <= now, "early");
        assert!(key % 2 == 1 || value.not_before <= deadline, "at another deadline");
        self.ledger.book(value.id, End::Ran);
        true
    }

    fn take_all(&self, number: usize) {
        let mut random = Random(2_000 + number as u64);
        let mut stream = self.queue.stream();
        loop {
            let short = Duration::from_micros(random.below(2_000));
            let taken = match number % TAKERS {
                0 => self.queue.recv(),
                1 => self.queue.recv_timeout(short),
                2 => block_on(self.queue.next()),
                3 => block_on(poll_fn(|cx| stream.poll_next(cx))),
                4 => block_on(self.scheduler.timeout(short, self.queue.next())).ok().flatten(),
                _ => self.give_up_half_way(short, &mut random),
            };
            if !self.took(taken) {
                return;
            }
        }
    }

    /// Polls some takers at the same time by hand, and drops them in any order, woken or not.
    fn give_up_half_way(&self, after: Duration, random: &mut Random) -> Option<Expired<u64, Item>> {
        let task = Poller::new();
        let mut takers: Vec<_> =
            (0..=random.below(3)).map(|_| Box::pin(self.queue.next())).collect();
        for taker in &mut takers {
            let polled = taker.as_mut().poll(&mut Context::from_waker(&task.waker()));
            if let Poll::Ready(item) = polled {
                return item;
            }
        }
        let end = Instant::now() + after;
        while task.woken() == 0 && Instant::now() < end {
            thread::yield_now();
        }
        while !takers.is_empty() {
            let at = random.below(takers.len() as u64) as usize;
            drop(takers.swap_remove(at));
        }
        random.one_in(4).then(|| self.queue.try_next())?
    }
}

fn spawn(storm: &Arc<Storm>, work: impl FnOnce(&Storm) + Send + 'static) -> JoinHandle<()> {
    let storm = Arc::clone(storm);
    thread::spawn(move || work(&storm))
}

fn join_all(what: &str, threads: Vec<JoinHandle<()>>) {
    until(what, || threads.iter().all(JoinHandle::is_finished));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn storm(items: usize, limit: usize, precision: Precision, close: Close) -> Arc<Storm> {
    let storm = Storm::new(items, limit, precision);
    let takers: Vec<_> =
        (0..TAKERS).map(|number| spawn(&storm, move |storm| storm.take_all(number))).collect();
    let producers = (0..PRODUCERS).map(|first| {
        spawn(&storm, move |storm| storm.produce((first..items).step_by(PRODUCERS), first))
    });
    let others: Vec<_> = producers
        .chain((0..MOVERS).map(|seed| spawn(&storm, move |storm| storm.move_some(seed))))
        .collect();
    let book = |all: Vec<Expired<u64, Item>>| {
        assert!(all.is_sorted_by_key(|item| item.deadline), "in order");
        all.iter().for_each(|item| storm.ledger.book(item.value.id, End::Returned));
    };
    match close {
        Close::Last => {
            let what = "the end of each item, by takers that nobody but the queue wakes";
            until(what, || storm.ledger.is_closed());
            assert!(storm.queue.is_empty());
            has_room_for_its_limit(&storm);
            assert!(storm.queue.close().len() <= storm.limit);
        }
        Close::Queue(after) => {
            thread::sleep(after);
            book(storm.queue.close());
        }
        Close::Scheduler(after) => {
            thread::sleep(after);
            assert!(storm.scheduler.close().expect("in time").is_empty(), "no alarm is left over");
        }
    }
    join_all("the takers' way home", takers);
    join_all("the others' end", others);
    storm.queue.check_invariants();
    if close != Close::Last {
        book(storm.queue.close()); // after the end of the scheduler; nothing, if it was closed before
    }
    storm.ledger.tally().assert_balanced();
    assert!(storm.queue.is_empty());
    let stats = storm.scheduler.stats();
    // Only the timeouts of one taker are tasks.
    assert_eq!(storm.scheduler.pending(), 0);
    assert_eq!(stats.scheduled(), stats.fired() + stats.cancelled() + stats.dropped());
    storm
}

/// No place was lost, and none was won. The items are far away, so no taker is in the way.
fn has_room_for_its_limit(storm: &Storm) {
    if storm.limit < usize::MAX {
        // Within the minute that the movers, who are still there, expect of each deadline.
        let far = Instant::now() + Duration::from_secs(30);
        let item = || Item { id: 0, not_before: far };
        let put = |key| storm.queue.insert_at(key, item(), far).is_ok();
        let taken = (0..2 * storm.limit as u64).filter(|key| put(1_000 + key)).count();
        assert_eq!(taken, storm.limit);
    }
}

#[test]
fn s20_each_item_has_one_end_and_no_taker_hangs() {
    let (items, precisions) = (count(40_000, 1_000_000), [Precision::Exact, Precision::Tick]);
    for (round, precision) in precisions.into_iter().cycle().take(count(2, 4)).enumerate() {
        let storm = storm(items, usize::MAX, precision, Close::Last);
        let ends = [End::Ran, End::Cancelled, End::Dropped].map(|end| storm.ledger.tally().of(end));
        assert_eq!(ends.iter().sum::<usize>(), items, "round {round}");
        assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
    }
}

#[test]
fn s25_a_limit_that_is_met_all_the_time_loses_no_place() {
    let storm = storm(count(30_000, 1_000_000), 20, Precision::Exact, Close::Last);
    assert!(storm.ledger.tally().of(End::Refused) > 0 && storm.ledger.tally().of(End::Ran) > 0);
}

#[test]
fn s20_a_close_in_between_returns_what_nobody_has_taken() {
    let rounds = (0..count(15, 500)).map(|round| {
        let after = Duration::from_millis(round as u64 % 15);
        let storm = storm(10_000, usize::MAX, Precision::Tick, Close::Queue(after));
        storm.ledger.tally().of(End::Returned)
    });
    assert!(rounds.sum::<usize>() > 0, "some were closed in between");
}

#[test]
fn s20_the_end_of_the_scheduler_in_between_wakes_all_and_loses_nothing() {
    let rounds = (0..count(15, 500)).map(|round| {
        let after = Duration::from_millis(round as u64 % 15);
        let precision = if round % 2 == 0 { Precision::Tick } else { Precision::Exact };
        let storm = storm(10_000, usize::MAX, precision, Close::Scheduler(after));
        storm.ledger.tally().of(End::Returned) + storm.ledger.tally().of(End::Refused)
    });
    assert!(rounds.sum::<usize>() > 0, "some were closed in between");
}

/// Many takers wait for few items, some of them for a short time, so each item depends on one wake-up.
#[test]
fn no_item_is_left_while_takers_wait() {
    let scheduler = Scheduler::builder().precision(Precision::Exact).build().expect("a thread");
    let queue = DelayQueue::new(&scheduler);
    let taken = Arc::new(AtomicUsize::new(0));
    let takers: Vec<_> = (0..8)
        .map(|number| {
            let (scheduler, queue) = (scheduler.clone(), queue.clone());
            let taken = Arc::clone(&taken);
            let short = Duration::from_micros(100 * number);
            thread::spawn(move || {
                while !queue.is_closed() {
                    let item: Option<Expired<u64, ()>> = match number % 4 {
                        0 => queue.recv(),
                        1 => queue.recv_timeout(short),
                        2 => block_on(queue.next()),
                        _ => block_on(scheduler.timeout(short, queue.next())).ok().flatten(),
                    };
                    taken.fetch_add(usize::from(item.is_some()), Ordering::Release);
                }
            })
        })
        .collect();
    let mut random = Random(7);
    for round in 1..=count(500, 20_000) {
        for key in 0..3 {
            let later = Duration::from_micros(random.below(300));
            // One of them is far away at first, and moved near.
            let first = if key == 0 { Duration::from_secs(3600) } else { later };
            queue.insert(key, (), first).expect("it is open");
            assert!(key > 0 || queue.reset(&key, later));
        }
        until("its taker", || taken.load(Ordering::Acquire) == 3 * round);
        queue.check_invariants();
    }
    queue.close();
    join_all("the takers' way home", takers);
}
