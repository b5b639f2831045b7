//! The wheel against a sorted map: random runs that print their seed.
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use tickwheel::wheel::{Wheel, WheelKey};

use crate::common::{Random, for_each_seed};

/// A deadline, and the number of the insert or the reset that gave it.
type Place = (u64, u64);

/// A key that a wheel has given out.
struct Known {
    key: WheelKey,
    id: u64,
    /// Its place in the model, if it still has one.
    place: Option<Place>,
}

/// A wheel, and the map that says what it should hold: by deadline, and then in the order of inserts and resets.
struct Pair {
    wheel: Wheel<u64>,
    model: BTreeMap<Place, (WheelKey, u64)>,
    /// All keys that there ever were.
    keys: Vec<Known>,
    /// The number of inserts and resets.
    steps: u64,
}

impl Pair {
    fn new(random: &mut Random) -> Pair {
        let sizes = [1, 2, 4, 64, 1024, 4096];
        let size = sizes[random.below(sizes.len() as u64) as usize];
        let half = (size as u64 / 2).max(1);
        let starts = [0, half - 1, half * 3, 1 << 40, u64::MAX - half, u64::MAX - 5_000_000];
        let start = starts[random.below(starts.len() as u64) as usize];
        let granularity = [1, 1, 3, 1000, 1 << 20][random.below(5) as usize];
        let granularity = NonZeroU64::new(granularity).expect("above zero");
        let wheel = Wheel::with_granularity(size, granularity, start.wrapping_add(random.below(3)));
        Pair { wheel, model: BTreeMap::new(), keys: Vec::new(), steps: 0 }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(14) {
            0..5 => self.insert(random),
            5..7 => self.remove(random),
            7..10 => self.reset(random),
            10 => self.pop(random),
            _ => self.advance(random),
        }
        self.wheel.check_invariants();
        assert_eq!(self.wheel.len(), self.model.len());
        assert_eq!(self.wheel.is_empty(), self.model.is_empty());
        if random.below(3) == 0 {
            let first = self.model.keys().next().map(|(deadline, _)| *deadline);
            let budget = random.below(30) as usize;
            let within = self.wheel.next_expiry_within(budget);
            assert!(within <= first && within.is_some() == first.is_some(), "{within:?}");
            self.wheel.check_invariants();
            assert_eq!(self.wheel.next_expiry(), first, "the next expiry");
            self.wheel.check_invariants();
        }
    }

    fn deadline(&self, random: &mut Random) -> u64 {
        let (now, few) = (self.wheel.now(), random.below(8));
        match random.below(8) {
            0 => now.saturating_sub(few),
            1 => u64::MAX - few,
            2 => now.saturating_add(few),
            _ => now.saturating_add(random.of_any_size(63)),
        }
    }

    fn insert(&mut self, random: &mut Random) {
        let deadline = self.deadline(random);
        self.insert_at(deadline, if random.below(20) == 0 { 100 } else { 1 });
    }

    fn insert_at(&mut self, deadline: u64, count: u64) {
        for _ in 0..count {
            let id = self.steps;
            self.steps += 1;
            let key = self.wheel.insert(deadline, id);
            assert_eq!(self.wheel.get(key), Some(&id));
            assert_eq!(self.wheel.deadline(key), Some(deadline));
            self.model.insert((deadline, id), (key, id));
            self.keys.push(Known { key, id, place: Some((deadline, id)) });
        }
    }

    /// Takes any key that there ever was, also of values that are gone.
    fn any_key(&mut self, random: &mut Random) -> Option<&mut Known> {
        let at = random.below(self.keys.len().max(1) as u64) as usize;
        self.keys.get_mut(at)
    }

    fn remove(&mut self, random: &mut Random) {
        for _ in 0..if random.below(10) == 0 { 100 } else { 1 } {
            let Some(known) = self.any_key(random) else { return };
            let (key, id, place) = (known.key, known.id, known.place.take());
            let is_there = place.is_some_and(|place| self.model.remove(&place).is_some());
            assert_eq!(self.wheel.contains(key), is_there);
            assert_eq!(self.wheel.remove(key), is_there.then_some(id));
        }
    }

    /// Removes a value that is there.
    fn remove_live(&mut self, random: &mut Random) {
        let at = self.keys.len() as u64 - 1 - random.below(self.keys.len().min(64) as u64);
        let known = self.keys.swap_remove(at as usize);
        let place = known.place.filter(|place| self.model.remove(place).is_some());
        assert_eq!(self.wheel.remove(known.key), place.map(|_| known.id));
    }

    fn reset(&mut self, random: &mut Random) {
        let deadline = self.deadline(random);
        for _ in 0..if random.below(10) == 0 { 100 } else { 1 } {
            let step = self.steps;
            self.steps += 1;
            let Some(known) = self.any_key(random) else { return };
            let (key, before) = (known.key, known.place.replace((deadline, step)));
            let value = before.and_then(|before| self.model.remove(&before));
            assert_eq!(self.wheel.reset(key, deadline), value.is_some());
            assert_eq!(self.wheel.deadline(key), value.is_some().then_some(deadline));
            value.into_iter().for_each(|value| _ = self.model.insert((deadline, step), value));
        }
    }

    fn to(&self, random: &mut Random) -> u64 {
        let now = self.wheel.now();
        match random.below(4) {
            0 => now.saturating_add(1),
            1 => self.model.keys().next().map_or(now, |(deadline, _)| *deadline),
            _ => now.saturating_add(random.of_any_size(63)),
        }
    }

    fn pop(&mut self, random: &mut Random) {
        let to = self.to(random);
        let popped = self.wheel.pop(to);
        let first = self.model.first_key_value().map(|(place, value)| (*place, *value));
        let due = first.filter(|((deadline, _), _)| *deadline <= self.wheel.now());
        assert_eq!(popped, due.map(|((deadline, _), (key, id))| (key, deadline, id)));
        due.into_iter().for_each(|(place, _)| _ = self.model.remove(&place));
    }

    fn advance(&mut self, random: &mut Random) {
        let (now, to) = (self.wheel.now(), self.to(random));
        let take = if random.below(8) == 0 { random.below(5) as usize } else { usize::MAX };
        let given: Vec<_> = self.wheel.advance(to).take(take).collect();
        let passed = now.max(to);
        assert_eq!(self.wheel.now(), passed);
        let due = self.model.range(..=(passed, u64::MAX)).take(take);
        let due: Vec<_> = due.map(|(place, (_, id))| (*place, *id)).collect();
        assert!(given.iter().copied().eq(due.iter().map(|((deadline, _), id)| (*deadline, *id))));
        due.iter().for_each(|(place, _)| _ = self.model.remove(place));
    }

    fn drain(mut self) {
        let drained: Vec<_> = self.wheel.advance(u64::MAX).collect();
        let all = self.model.iter().map(|((deadline, _), (_, id))| (*deadline, *id));
        assert!(drained.into_iter().eq(all), "in order");
        self.wheel.check_invariants();
        assert!(self.wheel.is_empty() && self.wheel.next_expiry().is_none());
        assert!(self.keys.iter().all(|known| !self.wheel.contains(known.key)));
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    let steps = 20 + random.below(100);
    (0..steps).for_each(|_| pair.step(&mut random));
    pair.drain();
}

#[test]
fn the_wheel_does_what_a_sorted_map_does() {
    for_each_seed(300, 1, run);
}

/// One long life: the size goes up and down between nothing and thousands, so that memory is given back while a sweep
/// stands anywhere in its round.
fn live_long(seed: u64, phases: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(&mut random);
    for _ in 0..phases {
        let goal = [0, 0, 3, 60, 1_100, 3_000][random.below(6) as usize];
        let near = 1 + random.of_any_size(40);
        while pair.model.len() < goal {
            let deadline = pair.wheel.now().saturating_add(random.below(near));
            pair.insert_at(deadline, 1);
            match random.below(8) {
                0 => pair.reset(&mut random),
                1 => pair.remove(&mut random),
                _ => {}
            }
        }
        let by_time = random.below(3) == 0;
        while pair.model.len() > goal {
            if by_time && random.below(4) == 0 {
                pair.pop(&mut random);
            } else {
                pair.remove_live(&mut random);
            }
        }
        pair.keys.retain(|known| known.place.is_some() || random.below(20) == 0);
        pair.wheel.check_invariants();
        let first = pair.model.keys().next().map(|(deadline, _)| *deadline);
        assert_eq!(pair.wheel.next_expiry(), first, "the next expiry");
        pair.wheel.check_invariants();
    }
    pair.drain();
}

#[test]
fn s09_a_size_that_goes_up_and_down_leaves_the_wheel_whole() {
    for_each_seed(6, 50, |seed| live_long(seed, 40));
}

/// The sweep stands in the middle of its round when the last value goes.
#[test]
fn s09_memory_that_is_given_back_in_the_middle_of_a_sweep_leaves_no_entry_behind() {
    let mut wheel = Wheel::new(64);
    for round in 0..50 {
        // Those that the sweep comes to first are removed last.
        let keys: Vec<_> = (0..3_000).map(|at| wheel.insert(round + 1 + at, at)).collect();
        assert!(keys.into_iter().rev().all(|key| wheel.remove(key).is_some()));
        wheel.check_invariants();
        wheel.insert(round, 0);
        assert_eq!(wheel.next_expiry(), Some(round));
        assert_eq!(wheel.advance(round).count(), 1);
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

/// Idle timeouts: each message pushes one further. Of an entry that is moved again and again only one is left.
#[test]
fn s28_what_is_pushed_further_for_ever_leaves_nothing_that_grows() {
    let mut wheel = Wheel::new(64);
    let keys: Vec<_> = (0..100).map(|value| wheel.insert(1_000, value)).collect();
    for now in 0..20_000_u64 {
        let key = keys[now as usize * 31 % 100];
        assert!(wheel.reset(key, now + 1), "to earlier");
        assert!(wheel.reset(key, now + 2_000), "and to later");
        assert_eq!(wheel.advance(now).count(), 0);
    }
    wheel.check_invariants(); // looks at every entry, so it would take long if all were still there
    assert_eq!((wheel.len(), wheel.next_expiry().is_some()), (100, true));
}

#[test]
fn s01_a_value_that_was_reset_under_the_same_order_waits_for_its_new_time() {
    let mut wheel = Wheel::new(64);
    let key = wheel.insert_as(3, 7, "now");
    assert_eq!(wheel.peek(5), Some((3, 7)));
    assert!(wheel.reset_as(key, 1_000, 7));
    assert_eq!((wheel.pop(5), wheel.pop(1_000)), (None, Some((key, 1_000, "now"))));
}

#[test]
fn s03_a_value_that_was_reset_to_a_smaller_order_goes_before_its_equals() {
    let mut wheel = Wheel::new(64);
    let late = wheel.insert_as(90, 5, "late");
    wheel.insert_as(90, 3, "middle");
    assert!(wheel.reset_as(late, 90, 1));
    wheel.check_invariants();
    assert_eq!(wheel.advance(90).collect::<Vec<_>>(), [(90, "late"), (90, "middle")]);
}

#[test]
fn s10_keys_from_before_a_peak_match_nothing_after_it() {
    let mut wheel = Wheel::new(64);
    let keys: Vec<_> = (0..5_000).map(|value| wheel.insert(value, value)).collect();
    assert_eq!(wheel.advance(5_000).count(), 5_000, "the wheel is empty, and gives its slots back");
    let fresh: Vec<_> = (0..5_000).map(|value| wheel.insert(9_000, value)).collect();
    assert!(keys.iter().all(|key| !wheel.contains(*key) && !wheel.reset(*key, 0)));
    assert!(fresh.iter().all(|key| wheel.contains(*key)));
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
