//! The lives of a bare wheel against a sorted map: of any granularity, with thousands of values that come and go. Beyond
//! `wheel_model.rs`: orders given by the caller, bounded looks at the next expiry, iterators that are dropped early, and
//! every call in each state of a long life.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use tickwheel::wheel::{Wheel, WheelKey};

use crate::common::Random;
use crate::lives;

/// A value's deadline and order.
type Place = (u64, u64);

struct Pair {
    wheel: Wheel<u64>,
    /// The number of each value, and its key.
    model: BTreeMap<Place, (u64, WheelKey)>,
    /// Keys of values, some of which are gone.
    keys: Vec<(WheelKey, u64, Place)>,
    /// Values and orders are given once.
    next: u64,
}

impl Pair {
    fn insert(&mut self, random: &mut Random, near: u64) {
        self.next += 1;
        let deadline = match random.below(32) {
            0 => u64::MAX - random.below(3),
            1 => self.wheel.now().saturating_sub(random.of_any_size(20)),
            2 => self.wheel.now().saturating_add(random.of_any_size(63)),
            _ => self.wheel.now().saturating_add(random.below(near)),
        };
        let place = (deadline, self.next);
        let key = self.wheel.insert_as(deadline, self.next, self.next);
        assert_eq!(self.wheel.key_at(key.index()), Some(key));
        assert!(self.model.insert(place, (self.next, key)).is_none());
        self.keys.push((key, self.next, place));
    }

    fn remove_or_move(&mut self, random: &mut Random, near: u64, moves: bool) {
        if self.keys.is_empty() {
            return;
        }
        let at = random.below(self.keys.len() as u64) as usize;
        let (key, value, place) = self.keys[at];
        let lives = self.model.get(&place).is_some_and(|(there, _)| *there == value);
        assert_eq!(self.wheel.get(key).copied(), lives.then_some(value));
        assert_eq!(self.wheel.deadline(key), lives.then_some(place.0));
        if moves {
            self.next += 1;
            let deadline = self.wheel.now().saturating_add(random.below(near));
            let moved = (deadline, self.next);
            assert_eq!(self.wheel.reset_as(key, moved.0, moved.1), lives);
            if lives {
                self.model.remove(&place);
                self.model.insert(moved, (value, key));
                self.keys[at].2 = moved;
            }
        } else {
            assert_eq!(self.wheel.remove(key), lives.then_some(value));
            self.model.remove(&place);
            self.keys.swap_remove(at);
        }
    }

    fn look(&mut self, random: &mut Random) {
        let first = self.model.keys().next().map(|place| place.0);
        let bounded = self.wheel.next_expiry_within(random.of_any_size(12) as usize);
        assert_eq!(bounded.is_some(), first.is_some(), "an expiry, if there is a value");
        assert!(bounded <= first, "{bounded:?} is later than {first:?}");
        if random.one_in(4) {
            assert_eq!(self.wheel.next_expiry(), first);
        }
    }

    fn advance(&mut self, random: &mut Random, near: u64) {
        let to = self.wheel.now().saturating_add(random.below(near));
        if random.one_in(2) {
            let peeked = self.wheel.peek(to);
            let first =
                self.model.first_key_value().map(|(place, (value, key))| (*place, *value, *key));
            let first = first.filter(|(place, ..)| place.0 <= self.wheel.now());
            assert_eq!(peeked, first.map(|(place, ..)| place));
            let popped = self.wheel.pop(to);
            assert_eq!(popped, first.map(|(place, value, key)| (key, place.0, value)));
            first.inspect(|(place, ..)| _ = self.model.remove(place));
            return;
        }
        let most = if random.one_in(2) { usize::MAX } else { random.below(500) as usize };
        let given: Vec<_> = self.wheel.advance(to).take(most).collect();
        let now = self.wheel.now();
        let due = self.model.range(..=(now, u64::MAX)).take(most);
        let due: Vec<_> = due.map(|(place, (value, _))| (*place, *value)).collect();
        assert!(
            given.iter().eq(due
                .iter()
                .map(|(place, value)| (place.0, *value))
                .collect::<Vec<_>>()
                .iter())
        );
        due.iter().for_each(|(place, _)| _ = self.model.remove(place));
    }

    fn check(&self) {
        self.wheel.check_invariants();
        assert_eq!(self.wheel.len(), self.model.len());
    }
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let granularity = NonZeroU64::new(1 + random.of_any_size(24)).expect("not zero");
    let start = random.of_any_size(63);
    let wheel = Wheel::new(1 << random.below(11)).with_granularity(granularity).starting_at(start);
    let mut pair = Pair { wheel, model: BTreeMap::new(), keys: Vec::new(), next: 0 };
    for _ in 0..2 + random.below(20) {
        let goal = [0, 0, 1, 70, 1_100, 2_500, 12_000][random.below(7) as usize];
        let near = 1 + random.of_any_size(44);
        while pair.model.len() < goal {
            pair.insert(&mut random, near);
            match random.below(16) {
                0..3 => pair.remove_or_move(&mut random, near, true),
                3 => pair.remove_or_move(&mut random, near, false),
                4 if random.one_in(30) => pair.look(&mut random),
                5 if random.one_in(30) => pair.advance(&mut random, near / 64 + 1),
                _ => {}
            }
        }
        pair.check();
        let (by_time, moves) = (random.one_in(2), random.one_in(3));
        while pair.model.len() > goal {
            match random.below(16) {
                0 if by_time => pair.advance(&mut random, near / 16 + 2),
                1..5 if moves => pair.remove_or_move(&mut random, near, true),
                5 if random.one_in(30) => pair.look(&mut random),
                6 if random.one_in(8) => pair.insert(&mut random, near),
                _ => pair.remove_or_move(&mut random, near, false),
            }
            if pair.keys.is_empty() {
                break;
            }
        }
        pair.check();
        pair.keys.retain(|(_, value, place)| {
            pair.model.get(place).is_some_and(|(there, _)| there == value) || random.one_in(9)
        });
    }
    let rest: Vec<_> = pair.wheel.advance(u64::MAX).collect();
    assert!(rest.iter().map(|(_, value)| value).eq(pair.model.values().map(|(value, _)| value)));
    pair.wheel.check_invariants();
    assert_eq!((pair.wheel.next_expiry(), pair.wheel.len()), (None, 0));
}

#[test]
fn wheel() {
    lives("wheel", live);
}
