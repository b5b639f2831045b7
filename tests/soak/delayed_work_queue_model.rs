//! `pool::DelayedWorkQueue` against a sorted map.
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tickwheel::pool::{DelayedWorkQueue, Key};
use tickwheel::{Clock, ManualClock};

use crate::common::{Random, for_each_seed};

/// A deadline, and a number in the order of all offers and resets.
type Name = (Instant, u64);

/// A queue, and the map that says what it should hold.
struct Pair {
    clock: ManualClock,
    /// When the queue was made.
    start: Instant,
    queue: DelayedWorkQueue<u64>,
    /// The items by name.
    model: BTreeMap<Name, u64>,
    /// All keys that there ever were.
    keys: Vec<(Key, Name)>,
    /// How many names there were.
    named: u64,
}

impl Pair {
    fn new() -> Pair {
        let clock = ManualClock::new();
        let queue = DelayedWorkQueue::with_clock(clock.clone());
        Pair {
            start: clock.now(),
            clock,
            queue,
            model: BTreeMap::new(),
            keys: Vec::new(),
            named: 0,
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(40) {
            0..16 => self.offer(random),
            16..21 => self.remove(random),
            21..29 => self.reset(random),
            29..39 => self.advance(random),
            _ => self.drain(),
        }
        self.queue.check_invariants();
        assert_eq!(self.queue.len(), self.model.len());
        assert_eq!(self.queue.is_empty(), self.model.is_empty());
        assert_eq!(self.queue.next_deadline(), self.model.keys().next().map(|name| name.0));
    }

    fn deadline(&self, random: &mut Random) -> Instant {
        let now = self.clock.now();
        let later = Duration::from_nanos(random.of_any_size(61));
        let deadline = match random.below(6) {
            0 => now.checked_sub(Duration::from_nanos(random.below(100))),
            // Centuries and more: kept to the second, counted from when the queue was made.
            1 => self.start.checked_add(later * 1_000_000_000),
            _ => now.checked_add(later),
        };
        deadline.unwrap_or(now)
    }

    fn note(&mut self, key: Key, deadline: Instant, item: u64) {
        let name = (deadline, self.named);
        self.named += 1;
        self.model.insert(name, item);
        self.keys.push((key, name));
    }

    fn offer(&mut self, random: &mut Random) {
        let deadline = self.deadline(random);
        for _ in 0..if random.one_in(20) { 300 } else { 1 } {
            let item = self.named;
            let key = self.queue.offer(deadline, item).expect("it is open");
            self.note(key, deadline, item);
        }
    }

    /// Returns any key that there ever was, also of items that are gone or were moved.
    fn any_key(&self, random: &mut Random) -> Option<(Key, Name)> {
        let at = random.below(self.keys.len().max(1) as u64);
        self.keys.get(at as usize).copied()
    }

    fn remove(&mut self, random: &mut Random) {
        for _ in 0..if random.one_in(10) { 300 } else { 1 } {
            let Some((key, name)) = self.any_key(random) else { return };
            assert_eq!(self.queue.remove(key), self.model.remove(&name), "of {name:?}");
        }
    }

    /// Moves items to a deadline of their own, to the same one, or to where another item is.
    fn reset(&mut self, random: &mut Random) {
        let mut deadline = self.deadline(random);
        for _ in 0..if random.one_in(10) { 300 } else { 1 } {
            let Some((key, name)) = self.any_key(random) else { return };
            match random.below(4) {
                0 => deadline = self.deadline(random),
                1 => deadline = self.any_key(random).map_or(deadline, |(_, other)| other.0),
                _ => {}
            }
            let item = self.model.remove(&name);
            let moved = self.queue.reset(key, deadline);
            assert_eq!(moved.is_some(), item.is_some(), "of {name:?}");
            if let (Some(moved), Some(item)) = (moved, item) {
                assert_eq!(moved, key);
                self.keys.retain(|(other, _)| *other != key);
                self.note(key, deadline, item);
            }
        }
    }

    fn advance(&mut self, random: &mut Random) {
        self.clock.advance(Duration::from_nanos(random.of_any_size(55)));
        let most = random.below(300);
        self.take_due(most, random);
    }

    fn take_due(&mut self, most: u64, random: &mut Random) {
        for _ in 0..most {
            let first = self.model.first_key_value().map(|(name, item)| (*name, *item));
            let due = first.filter(|(name, _)| name.0 <= self.clock.now());
            let given = match random.below(3) {
                0 => self.queue.poll_timeout(Duration::ZERO),
                1 if due.is_some() => self.queue.take(),
                _ => self.queue.poll(),
            };
            assert_eq!(given, due.map(|(_, item)| item));
            let Some((name, _)) = due else { return };
            self.model.remove(&name);
        }
    }

    /// Goes on to a whole second, because deadlines of centuries are kept to the second.
    fn let_centuries_pass(&mut self, random: &mut Random) {
        let passed = self.clock.now() - self.start;
        let to = Duration::from_secs(passed.as_secs() + 1 + random.of_any_size(61));
        self.clock.advance(to.saturating_sub(passed));
        self.take_due(u64::MAX, random);
        self.queue.check_invariants();
        self.drain();
    }

    fn drain(&mut self) {
        let all: Vec<_> = std::mem::take(&mut self.model).into_values().collect();
        assert_eq!(self.queue.drain(), all);
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new();
    let steps = 20 + random.below(200);
    (0..steps).for_each(|_| pair.step(&mut random));
    pair.let_centuries_pass(&mut random);
}

#[test]
fn the_queue_does_what_a_sorted_map_does() {
    for_each_seed(200, 1, run);
}
