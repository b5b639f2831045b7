//! Storms around a `pool::DelayedWorkQueue`, in real time: producers, takers and removers, which also move items, and
//! a ledger in which every item has exactly one end.
//!
//! `TICKWHEEL_STORM=20 cargo test --release --test delayed_work_queue_storms` makes them twenty times
//! as long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tickwheel::pool::{DelayedWorkQueue, Key};
use tickwheel::{Clock, Sleeper, SystemClock};

use crate::common::ledger::{End, Ledger};
use crate::common::{Random, env, until};

const PRODUCERS: usize = 4;
const TAKERS: usize = 4;
const REMOVERS: usize = 2;

struct Item {
    id: usize,
    deadline: Instant,
}

struct Storm {
    queue: DelayedWorkQueue<Item>,
    ledger: Arc<Ledger>,
    /// Keys of items that may be gone.
    keys: Mutex<Vec<(Key, usize)>>,
}

impl Storm {
    fn new(items: usize) -> Arc<Storm> {
        let (queue, ledger) = (DelayedWorkQueue::new(), Ledger::new(items));
        Arc::new(Storm { queue, ledger, keys: Mutex::default() })
    }

    fn produce(&self, ids: impl Iterator<Item = usize>, seed: usize) {
        let mut random = Random(seed as u64);
        for id in ids {
            let now = Instant::now();
            let later = Duration::from_micros(random.below(5_000));
            let deadline = if random.one_in(8) { now } else { now + later };
            match self.queue.offer(deadline, Item { id, deadline }) {
                Ok(key) if random.one_in(3) => self.keys.lock().unwrap().push((key, id)),
                Ok(_) => {}
                Err(item) => self.ledger.book(item.id, End::Refused),
            }
            if random.one_in(500) {
                thread::sleep(later); // so that takers go to sleep as well
            }
        }
    }

    /// Some threads only take, and others call every method that takes.
    fn take_all(&self, number: usize) {
        let mut random = Random(number as u64);
        while !self.queue.is_closed() {
            let timeout = Duration::from_micros(random.below(2_000));
            let item = match number % 2 * random.below(3) as usize {
                0 => self.queue.take(),
                1 => self.queue.poll(),
                _ => self.queue.poll_timeout(timeout),
            };
            if let Some(item) = item {
                assert!(item.deadline <= Instant::now(), "early");
                self.ledger.book(item.id, End::Ran);
            }
        }
    }

    fn remove_some(&self, seed: usize) {
        let mut random = Random(seed as u64);
        while !self.ledger.is_closed() && !self.queue.is_closed() {
            let mut keys = self.keys.lock().unwrap();
            let at = random.below(keys.len().max(1) as u64) as usize;
            let key = (!keys.is_empty()).then(|| keys.swap_remove(at));
            drop(keys);
            let Some((key, id)) = key else {
                thread::yield_now();
                continue;
            };
            if random.one_in(2) {
                // Later than its first deadline, so that the takers know an item that comes early.
                let later = Duration::from_micros(5_000 + random.below(1_000));
                let moved = self.queue.reset(key, Instant::now() + later);
                self.keys.lock().unwrap().extend(moved.map(|key| (key, id)));
                continue;
            }
            if let Some(item) = self.queue.remove(key) {
                assert_eq!(item.id, id, "the item of another key");
                self.ledger.book(item.id, End::Cancelled);
            }
        }
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

/// Runs a storm until it is closed, either when everything has been taken or at a random moment.
fn storm(items: usize, close_after: Option<Duration>) -> Arc<Storm> {
    let storm = Storm::new(items);
    let takers: Vec<_> =
        (0..TAKERS).map(|number| spawn(&storm, move |storm| storm.take_all(number))).collect();
    let producers = (0..PRODUCERS).map(|first| {
        spawn(&storm, move |storm| storm.produce((first..items).step_by(PRODUCERS), first))
    });
    let others: Vec<_> = producers
        .chain((0..REMOVERS).map(|seed| spawn(&storm, move |storm| storm.remove_some(seed))))
        .collect();
    if let Some(after) = close_after {
        thread::sleep(after);
    } else {
        until("the end of each item, by takers that nobody but the queue wakes", || {
            storm.queue.check_invariants();
            storm.ledger.is_closed()
        });
    }
    storm.queue.close();
    join_all("the takers' way home", takers);
    join_all("the others' end", others);
    storm.queue.drain().iter().for_each(|item| storm.ledger.book(item.id, End::Returned));
    storm.queue.check_invariants();
    storm.ledger.tally().assert_balanced();
    assert!(storm.queue.is_empty());
    storm
}

fn times(count: usize) -> usize {
    count * env("TICKWHEEL_STORM").unwrap_or(1) as usize
}

#[test]
fn s20_each_item_comes_out_once_and_no_taker_hangs() {
    for _ in 0..times(3) {
        let storm = storm(20_000, None);
        assert_eq!(
            storm.ledger.tally().of(End::Ran) + storm.ledger.tally().of(End::Cancelled),
            20_000
        );
        assert!(storm.ledger.tally().of(End::Cancelled) > 0);
    }
}

#[test]
fn s20_a_close_in_between_loses_nothing() {
    let rounds = (0..times(20)).map(|round| {
        let storm = storm(20_000, Some(Duration::from_millis(round as u64 % 20)));
        storm.ledger.tally().of(End::Returned) + storm.ledger.tally().of(End::Refused)
    });
    assert!(rounds.sum::<usize>() > 0, "some were closed in between");
}

/// Many takers wait for few items, for a short time each. Each of them has to be called.
#[test]
fn no_item_is_left_while_takers_wait() {
    let queue = Arc::new(DelayedWorkQueue::new());
    let taken = Arc::new(AtomicUsize::new(0));
    let takers = (0..8).map(|number| {
        let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
        thread::spawn(move || {
            while !queue.is_closed() {
                let timeout = Duration::from_micros(100 * number);
                let item = if number % 2 == 0 { queue.take() } else { queue.poll_timeout(timeout) };
                taken.fetch_add(item.map_or(0, |()| 1), Ordering::Relaxed);
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    let mut random = Random(7);
    for round in 1..=times(1_000) {
        for _ in 0..3 {
            let later = Duration::from_micros(random.below(300));
            queue.offer(Instant::now() + later, ()).expect("it is open");
        }
        until("its taker", || taken.load(Ordering::Relaxed) == 3 * round);
    }
    queue.close();
    join_all("the takers' way home", takers);
}

/// The system's clock, with a count of the sleeps on it.
struct Counting(AtomicUsize);

impl Clock for Counting {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        SystemClock.sleep(sleeper, until);
    }
}

#[test]
fn s07_waiting_does_not_spin() {
    let clock = Arc::new(Counting(AtomicUsize::new(0)));
    let queue = Arc::new(DelayedWorkQueue::with_clock(Arc::clone(&clock)));
    let start = Instant::now();
    for later in [40, 80, 120] {
        queue.offer(start + Duration::from_millis(later), later).expect("it is open");
    }
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || assert!(queue.take().is_some()))
        })
        .collect();
    join_all("an item for each", takers);
    assert!(start.elapsed() >= Duration::from_millis(120), "never early");
    let sleeps = clock.0.load(Ordering::Relaxed);
    assert!(sleeps <= 12, "three leaders and their followers lay down {sleeps} times");
}
