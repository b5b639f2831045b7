//! `delay::DelayQueue` against a sorted map, in virtual time: random runs that print their seed.
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them. The promises one by one are
//! in `tests/layers/delay_queue.rs`, the storms in `delay_queue_storms.rs`.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tickwheel::delay::{DelayQueue, Expirations, Expired};
use tickwheel::{Driver, Precision, ScheduleError, Scheduler};

use crate::common::told::Poller;
use crate::common::{Random, count, driven_by, for_each_seed};

/// A key of the test, with a hash of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    number: u64,
    hashes: Hashes,
}

/// How many hashes the keys of a run have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hashes {
    Many,
    Two,
    One,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.hashes {
            Hashes::Many => self.number.hash(state),
            Hashes::Two => (self.number % 2).hash(state),
            Hashes::One => {}
        }
    }
}

/// A deadline, and the number of the insert, the replacement or the reset that gave it.
type Place = (Instant, u64);

/// No run lasts longer than this, so that all deadlines but those of `Duration::MAX` are on the queue's timeline.
const LONGEST: Duration = Duration::from_secs(200 * 365 * 24 * 3600);

/// A queue, and the map that says what it should hold.
struct Pair {
    scheduler: Scheduler,
    driver: Driver,
    queue: DelayQueue<Key, u64>,
    limit: usize,
    hashes: Hashes,
    /// So many keys are in use.
    keys: u64,
    start: Instant,
    tick: Duration,
    precision: Precision,
    /// What the queue calls the deadline of an item that never comes out.
    never: Instant,
    model: BTreeMap<Place, (Key, u64)>,
    places: HashMap<u64, Place>,
    /// The number of inserts, replacements and resets. A value is the number of its insert.
    steps: u64,
    /// The only taker that waits, and how often it had been woken when it was polled last.
    stream: Option<(Expirations<Key, u64>, usize)>,
    task: Poller,
    is_closed: bool,
}

impl Pair {
    fn new(random: &mut Random) -> Pair {
        let tick = Duration::from_nanos([1, 999, 1_000_000, 10_000_000][random.below(4) as usize]);
        let precision = if random.one_in(2) { Precision::Exact } else { Precision::Tick };
        let builder = Scheduler::builder().tick(tick).precision(precision);
        let (scheduler, driver) = driven_by(builder);
        let limit = if random.one_in(4) { random.below(20) as usize } else { usize::MAX };
        let never = DelayQueue::new(&scheduler);
        never.insert((), (), Duration::MAX).expect("open");
        Pair {
            queue: DelayQueue::with_capacity_limit(&scheduler, limit),
            limit,
            hashes: match random.below(8) {
                0 => Hashes::One,
                1 => Hashes::Two,
                _ => Hashes::Many,
            },
            keys: [1, 3, 20, 500][random.below(4) as usize],
            start: scheduler.now(),
            tick,
            precision,
            never: never.deadline(&()).expect("it is there"),
            model: BTreeMap::new(),
            places: HashMap::new(),
            steps: 0,
            stream: None,
            task: Poller::new(),
            is_closed: false,
            scheduler,
            driver,
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(64) {
            0..20 => self.insert(random),
            20..30 => self.reset(random),
            30..36 => self.remove(random),
            36..42 => self.look_at_one(random),
            42..50 => self.advance(random),
            50..56 => self.take_some(random),
            56..60 => self.wait_for_one(),
            60..62 => self.poll_stream(),
            62 => self.stream = None,
            _ if random.one_in(20) => self.close(),
            _ => {}
        }
        self.check();
    }

    fn check(&self) {
        self.queue.check_invariants();
        assert_eq!((self.queue.len(), self.places.len()), (self.model.len(), self.model.len()));
        assert_eq!(self.queue.is_empty(), self.model.is_empty());
        let first = self.model.keys().next().map(|place| place.0);
        assert_eq!(self.queue.next_deadline(), first, "the next deadline");
        assert_eq!(self.queue.is_closed(), self.is_closed);
        assert_eq!((self.scheduler.pending(), self.scheduler.stats().scheduled()), (0, 0));
        if let (Some((_, woken)), Some(first)) = (&self.stream, first) {
            let late = match self.precision {
                Precision::Exact => Duration::ZERO,
                _ => self.tick,
            };
            let is_overdue = first.checked_add(late).is_some_and(|end| end <= self.driver.now());
            // What is due at once is for the next turn.
            let has_turned = self.driver.next_deadline().is_none_or(|at| at > self.driver.now());
            let is_told = self.task.woken() > *woken;
            assert!(is_told || !is_overdue || !has_turned, "its taker sleeps on");
        }
    }

    // ----- choices -------------------------------------------------------------------------

    fn any_key(&self, random: &mut Random) -> Key {
        Key { number: random.below(self.keys), hashes: self.hashes }
    }

    fn delay(random: &mut Random) -> Duration {
        match random.below(8) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            _ => Duration::from_nanos(random.of_any_size(62)),
        }
    }

    fn after(&self, delay: Duration) -> Instant {
        if delay == Duration::MAX { self.never } else { self.driver.now() + delay }
    }

    fn instant(&self, random: &mut Random) -> Instant {
        let (now, few) = (self.driver.now(), Duration::from_nanos(random.below(1 << 30)));
        match random.below(5) {
            0 => now.checked_sub(few).unwrap_or(now),
            1 => self.never,
            2 => {
                let at = random.below(self.model.len().max(1) as u64) as usize;
                self.model.keys().nth(at).map_or(now, |place| place.0)
            }
            _ => self.after(Self::delay(random)),
        }
    }

    /// Notes that a key has a new deadline.
    fn note(&mut self, key: Key, deadline: Instant, value: u64) {
        self.steps += 1;
        let place = (deadline, self.steps);
        self.model.insert(place, (key, value));
        self.places.insert(key.number, place);
    }

    /// Takes a key out of the model.
    fn forget(&mut self, key: Key) -> Option<u64> {
        let place = self.places.remove(&key.number)?;
        self.model.remove(&place).map(|(_, value)| value)
    }

    /// Takes the first item that is due out of the model.
    fn first_due(&mut self) -> Option<Expired<Key, u64>> {
        let (place, (key, value)) = self.model.first_key_value().map(|(at, item)| (*at, *item))?;
        (place.0 <= self.driver.now()).then(|| self.forget(key));
        (place.0 <= self.driver.now()).then_some(Expired { key, value, deadline: place.0 })
    }

    // ----- steps ---------------------------------------------------------------------------

    fn insert(&mut self, random: &mut Random) {
        let mut instant = self.instant(random);
        for _ in 0..if random.one_in(20) { 200 } else { 1 } {
            let (key, value) = (self.any_key(random), self.steps);
            let inserted = if random.one_in(2) {
                let delay = Self::delay(random);
                instant = self.after(delay);
                self.queue.insert(key, value, delay)
            } else {
                self.queue.insert_at(key, value, instant)
            };
            let is_new = !self.places.contains_key(&key.number);
            let is_full = is_new && self.model.len() >= self.limit;
            if self.is_closed || is_full {
                let refused = inserted.expect_err("no room");
                let closed = self.is_closed.then_some(ScheduleError::Closed);
                assert_eq!(refused.reason(), closed.unwrap_or(ScheduleError::Full));
                assert_eq!(refused.into_inner(), (key, value));
            } else {
                assert_eq!(inserted.expect("there is room"), self.forget(key));
                self.note(key, instant, value);
            }
        }
    }

    fn reset(&mut self, random: &mut Random) {
        let mut instant = self.instant(random);
        for _ in 0..if random.one_in(10) { 200 } else { 1 } {
            let key = self.any_key(random);
            let has_moved = if random.one_in(2) {
                let delay = Self::delay(random);
                instant = self.after(delay);
                self.queue.reset(&key, delay)
            } else {
                self.queue.reset_at(&key, instant)
            };
            let value = self.forget(key);
            assert_eq!(has_moved, value.is_some(), "of {key:?}");
            value.into_iter().for_each(|value| self.note(key, instant, value));
        }
    }

    fn remove(&mut self, random: &mut Random) {
        for _ in 0..if random.one_in(10) { 200 } else { 1 } {
            let key = self.any_key(random);
            assert_eq!(self.queue.remove(&key), self.forget(key), "of {key:?}");
        }
    }

    fn look_at_one(&mut self, random: &mut Random) {
        let key = self.any_key(random);
        let place = self.places.get(&key.number).copied();
        assert_eq!(self.queue.contains_key(&key), place.is_some());
        assert_eq!(self.queue.deadline(&key), place.map(|place| place.0));
        let new = self.steps + 1_000_000;
        let before = self.queue.with(&key, |value| std::mem::replace(value, new));
        let known = place.and_then(|place| self.model.get_mut(&place));
        assert_eq!(before, known.map(|(_, value)| std::mem::replace(value, new)));
    }

    fn advance(&mut self, random: &mut Random) {
        let first = self.model.keys().next().map(|place| place.0);
        let to_first = first.map(|first| first.saturating_duration_since(self.driver.now()));
        let by = match (random.below(4), to_first) {
            (0, Some(by)) => by,
            (1, Some(by)) => by.saturating_sub(Duration::from_nanos(1)),
            _ => Duration::from_nanos(random.of_any_size(62)),
        };
        let left = LONGEST.saturating_sub(self.driver.now() - self.start);
        assert_eq!(self.driver.advance(by.min(left)), 0, "no task has run");
    }

    fn take_some(&mut self, random: &mut Random) {
        for _ in 0..random.below(300) {
            let given = match random.below(4) {
                0 => self.queue.recv_timeout(Duration::ZERO),
                _ => self.queue.try_next(),
            };
            assert_eq!(given, self.first_due());
            if given.is_none() {
                return;
            }
        }
    }

    /// Waits for the first item in virtual time. The taker is the stream, if there is one.
    fn wait_for_one(&mut self) {
        let (before, first) = (self.driver.now(), self.model.keys().next().map(|place| place.0));
        let to_first = first.map(|first| first.saturating_duration_since(self.start));
        if !self.is_closed && to_first.is_some_and(|after| after >= LONGEST) {
            return;
        }
        let given = match &mut self.stream {
            Some((stream, _)) => self.driver.block_on(poll_fn(|cx| stream.poll_next(cx))),
            None => self.driver.block_on(self.queue.next()),
        };
        self.note_poll();
        let now = self.driver.now();
        match first {
            _ if self.is_closed => assert_eq!(given.expect("at once"), self.first_due()),
            None => assert!(given.is_err(), "it would wait for ever"),
            Some(first) => {
                let due = first.max(before);
                let late = if first <= before { Duration::ZERO } else { self.tick };
                let exact = self.precision == Precision::Exact;
                let latest = if exact { due } else { due + late };
                assert!(now >= due && now <= latest, "{:?} after {due:?}", now - due);
                assert_eq!(given.expect("it is woken"), self.first_due());
            }
        }
    }

    fn poll_stream(&mut self) {
        let stream = self.queue.stream();
        let (stream, _) = self.stream.get_or_insert((stream, 0));
        let given = stream.poll_next(&mut Context::from_waker(&self.task.waker()));
        self.note_poll();
        match self.first_due() {
            None if !self.is_closed => assert!(given.is_pending()),
            due => assert_eq!(given, Poll::Ready(due)),
        }
    }

    /// Forgets the stream, unless it waits with the waker of the task.
    fn note_poll(&mut self) {
        let Some((mut stream, _)) = self.stream.take() else { return };
        let woken = self.task.woken();
        // It may have taken an item, or waits with the waker of `block_on`.
        let is_due = self.model.keys().next().is_some_and(|place| place.0 <= self.driver.now());
        if !is_due && stream.poll_next(&mut Context::from_waker(&self.task.waker())).is_pending() {
            self.stream = Some((stream, woken));
        }
    }

    fn close(&mut self) {
        let all: Vec<_> = std::mem::take(&mut self.model)
            .into_iter()
            .map(|((deadline, _), (key, value))| Expired { key, value, deadline })
            .collect();
        self.places.clear();
        assert_eq!(self.queue.close(), all);
        let is_told = |(_, woken): &(_, usize)| self.task.woken() > *woken;
        assert!(self.stream.as_ref().is_none_or(is_told), "a close wakes the taker");
        self.is_closed = true;
    }

    /// Closes the scheduler under the queue.
    fn close_scheduler(&mut self) {
        let closed = self.scheduler.stop();
        drop(closed);
        self.driver.turn();
        self.is_closed = true;
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    let steps = 20 + random.below(150);
    (0..steps).for_each(|_| pair.step(&mut random));
    if random.one_in(4) {
        pair.close_scheduler();
        (0..20).for_each(|_| pair.step(&mut random));
    }
    pair.close();
    pair.check();
}

/// One long life: the size goes up and down between nothing and so much that each shard has a peak.
fn live_long(seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    (pair.keys, pair.limit, pair.hashes) = (200_000, usize::MAX, Hashes::Many);
    pair.queue = DelayQueue::new(&pair.scheduler);
    let goals = [40_000, 3, 40_000, 0, 60, 40_000, 0];
    for goal in goals.into_iter().take(count(16, 16)) {
        while pair.model.len() < goal {
            pair.insert(&mut random);
            if random.one_in(8) {
                pair.reset(&mut random);
            }
        }
        pair.check();
        // Each shard sweeps from one end of time to the other, so what goes in this order is before or behind its hand.
        let last_first = random.one_in(2);
        while pair.model.len() > goal {
            let end =
                if last_first { pair.model.last_key_value() } else { pair.model.first_key_value() };
            let (key, value) = *end.expect("more than the goal").1;
            assert_eq!(pair.queue.remove(&key), Some(value));
            pair.forget(key);
            if random.one_in(1_000) {
                pair.advance(&mut random);
                pair.take_some(&mut random);
            }
        }
        pair.check();
    }
    pair.close();
    pair.check();
}

#[test]
fn a_size_that_goes_up_and_down_leaves_the_queue_whole() {
    for_each_seed(1, 100, live_long);
}

#[test]
fn the_queue_does_what_a_sorted_map_does() {
    for_each_seed(100, 1, run);
}
