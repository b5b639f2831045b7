//! The wheel against a sorted map: random runs that print their seed.
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tickwheel::wheel::{Key, Wheel};

use common::{Random, env};

/// A wheel, and the map that says what it should hold.
struct Pair {
    wheel: Wheel<u64>,
    model: BTreeMap<(u64, u64), Key>,
    keys: Vec<(Key, (u64, u64))>,
    inserted: u64,
}

impl Pair {
    fn new(random: &mut Random) -> Pair {
        let sizes = [1, 2, 4, 64, 1024, 4096];
        let size = sizes[random.below(sizes.len() as u64) as usize];
        let half = (size as u64 / 2).max(1);
        let starts = [0, half - 1, half * 3, 1 << 40, u64::MAX - half, u64::MAX - 5_000_000];
        let start = starts[random.below(starts.len() as u64) as usize];
        let wheel = Wheel::new(size).starting_at(start.wrapping_add(random.below(3)));
        Pair { wheel, model: BTreeMap::new(), keys: Vec::new(), inserted: 0 }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(10) {
            0..5 => self.insert(random),
            5..7 => self.remove(random),
            _ => self.advance(random),
        }
        self.wheel.check_invariants();
        assert_eq!(self.wheel.len(), self.model.len());
        assert_eq!(self.wheel.is_empty(), self.model.is_empty());
        if random.below(3) == 0 {
            let first = self.model.keys().next().map(|(deadline, _)| *deadline);
            assert_eq!(self.wheel.next_expiry(), first, "the next expiry");
            self.wheel.check_invariants();
        }
    }

    fn insert(&mut self, random: &mut Random) {
        let now = self.wheel.now();
        let few = random.below(8);
        let deadline = match random.below(8) {
            0 => now.saturating_sub(few),
            1 => u64::MAX - few,
            2 => now.saturating_add(few),
            _ => now.saturating_add(random.of_any_size(63)),
        };
        for _ in 0..if random.below(20) == 0 { 100 } else { 1 } {
            let id = self.inserted;
            self.inserted += 1;
            let key = self.wheel.insert(deadline, id);
            assert_eq!(self.wheel.get(key), Some(&id));
            assert_eq!(self.wheel.deadline(key), Some(deadline));
            self.model.insert((deadline, id), key);
            self.keys.push((key, (deadline, id)));
        }
    }

    /// Returns any key that there ever was, also of values that are gone.
    fn remove(&mut self, random: &mut Random) {
        for _ in 0..if random.below(10) == 0 { 100 } else { 1 } {
            if self.keys.is_empty() {
                return;
            }
            let at = random.below(self.keys.len() as u64) as usize;
            let (key, name) = self.keys[at];
            let expected = self.model.remove(&name).map(|_| name.1);
            assert_eq!(self.wheel.contains(key), expected.is_some());
            assert_eq!(self.wheel.remove(key), expected, "of {name:?}");
        }
    }

    fn advance(&mut self, random: &mut Random) {
        let now = self.wheel.now();
        let to = match random.below(4) {
            0 => now.saturating_add(1),
            1 => self.model.keys().next().map_or(now, |(deadline, _)| *deadline),
            _ => now.saturating_add(random.of_any_size(63)),
        };
        let take = if random.below(8) == 0 { random.below(5) as usize } else { usize::MAX };
        let given: Vec<_> = self.wheel.advance(to).take(take).collect();
        assert_eq!(self.wheel.now(), now.max(to));
        let passed = now.max(to);
        let due = self.model.range(..=(passed, u64::MAX)).map(|(name, _)| *name);
        let due: Vec<_> = due.take(take).collect();
        assert_eq!(given, due, "advanced from {now} to {to}");
        for name in due {
            self.model.remove(&name);
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    let steps = 20 + random.below(100);
    (0..steps).for_each(|_| pair.step(&mut random));
}

#[test]
fn the_wheel_does_what_a_sorted_map_does() {
    let seeds = match env("TICKWHEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("TICKWHEEL_RUNS").unwrap_or(300),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("repeat with TICKWHEEL_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn s01_nothing_comes_out_before_its_tick() {
    let mut wheel = Wheel::new(8);
    for tick in 1..=100 {
        wheel.insert(tick, tick);
    }
    for tick in 1..=100 {
        assert_eq!(wheel.advance(tick).collect::<Vec<_>>(), [(tick, tick)]);
    }
}

#[test]
fn s03_equal_deadlines_stay_in_order_on_their_way_from_far_to_near() {
    let mut wheel = Wheel::new(8);
    // The first one is far, the second one is far while the half-turn before it passes, and the third one is near.
    let mut expected = Vec::new();
    for id in 0..400_u64 {
        wheel.insert(40, id);
        expected.push((40, id));
        if id % 10 == 0 {
            assert_eq!(wheel.advance(id / 10).count(), 0);
            wheel.check_invariants();
        }
    }
    assert_eq!(wheel.advance(40).collect::<Vec<_>>(), expected);
}

#[test]
fn s04_the_last_tick_of_all_can_be_reached() {
    for size in [1, 2, 4096] {
        let mut wheel = Wheel::new(size);
        wheel.insert(u64::MAX, "the end");
        wheel.insert(u64::MAX - 1, "almost");
        assert_eq!(wheel.next_expiry(), Some(u64::MAX - 1));
        assert_eq!(wheel.advance(u64::MAX - 1).count(), 1);
        assert_eq!(wheel.next_expiry(), Some(u64::MAX));
        assert_eq!(wheel.advance(u64::MAX).collect::<Vec<_>>(), [(u64::MAX, "the end")]);
        wheel.check_invariants();
        wheel.insert(3, "long ago");
        assert_eq!(wheel.advance(0).collect::<Vec<_>>(), [(3, "long ago")]);
    }
}

#[test]
fn s06_a_jump_of_any_length_does_not_walk() {
    let mut wheel = Wheel::new(4096);
    for jump in 0..10_000_u64 {
        // Ten thousand jumps of 58,000,000,000 ticks each. Tick by tick they would take centuries.
        let to = (jump + 1) << 49;
        wheel.insert(to, jump);
        assert_eq!(wheel.advance(to).collect::<Vec<_>>(), [(to, jump)]);
    }
}

#[test]
fn s09_what_was_removed_leaves_nothing_that_grows() {
    let mut wheel = Wheel::new(64);
    for round in 0..200_000_u64 {
        let key = wheel.insert(1_000_000 + round, round);
        assert_eq!(wheel.remove(key), Some(round));
    }
    wheel.check_invariants(); // looks at every entry, so it would take long if all were still there
    assert_eq!(wheel.next_expiry(), None);
}

#[test]
fn s09_what_was_to_come_at_the_end_of_time_can_be_removed() {
    for size in [1, 2, 4096] {
        let mut wheel = Wheel::new(size);
        let keys: Vec<_> = (0..1_000).map(|value| wheel.insert(u64::MAX, value)).collect();
        let removed = keys.into_iter().filter_map(|key| wheel.remove(key));
        assert!(removed.eq(0..1_000));
        wheel.check_invariants();
        assert_eq!((wheel.len(), wheel.next_expiry()), (0, None));
    }
}

#[test]
fn a_wheel_must_be_a_power_of_two() {
    assert!(Wheel::<()>::try_new(0).is_none() && Wheel::<()>::try_new(12).is_none());
    assert_eq!(Wheel::<()>::try_new(16).map(|wheel| wheel.buckets()), Some(16));
}

#[test]
#[should_panic(expected = "a power of two, such as 256")]
fn a_wheel_that_is_none_says_what_to_do() {
    let _ = Wheel::<()>::new(100);
}

#[test]
fn values_can_be_looked_at_and_changed() {
    let mut wheel = Wheel::new(4);
    let key = wheel.insert(9, String::from("a"));
    wheel.get_mut(key).expect("there").push('b');
    assert_eq!(wheel.get(key).map(String::as_str), Some("ab"));
    assert!(format!("{wheel:?}").contains("len: 1"));
    assert!(!format!("{:?} {key:?}", wheel.advance(9)).is_empty());
    assert_eq!(wheel.len(), 1, "an iterator that is dropped loses nothing");
    assert_eq!(wheel.advance(9).count(), 1);
}
