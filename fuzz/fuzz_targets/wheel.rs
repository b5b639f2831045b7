//! The wheel against a sorted map: the values that come out, their order, and the next deadline.

#![no_main]

mod bytes;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tickwheel::wheel::{Wheel, WheelKey};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let Some(mut pair) = Pair::new(&mut bytes) else { return };
    while pair.work < MOST_WORK && pair.step(&mut bytes).is_some() {
        assert_eq!(pair.wheel.len(), pair.model.len());
        assert_eq!(pair.wheel.is_empty(), pair.model.is_empty());
        pair.wheel.check_invariants();
    }
});

/// So many values at once are more than a block of the wheel holds.
const CROWD: usize = 40;
/// So many are a peak, after which an empty wheel gives its memory back.
const PEAK: usize = 1500;
/// The most values that the steps of a run touch or check. More of them would find nothing more, and take long.
const MOST_WORK: usize = 40_000;

/// A value's deadline and order, which are its position. The value is its order.
type Place = (u64, u64);

struct Pair {
    wheel: Wheel<u64>,
    model: BTreeMap<Place, WheelKey>,
    /// All keys that there ever were, because a key whose value is gone must match nothing.
    keys: Vec<(WheelKey, Place)>,
    /// How many orders were given out.
    orders: u64,
    work: usize,
}

/// What a step does, and with how many values.
#[derive(Clone, Copy)]
struct Step {
    choice: u8,
    times: usize,
}

impl Step {
    fn new(choice: u8) -> Step {
        let times = match choice {
            0..0xE0 => 1,
            0xE0..0xF8 => CROWD,
            _ => PEAK,
        };
        Step { choice, times }
    }

    /// Every second step goes the other way round.
    fn is_turned(self) -> bool {
        self.choice & 8 != 0
    }
}

impl Pair {
    fn new(bytes: &mut Bytes<'_>) -> Option<Pair> {
        let choice = bytes.byte()?;
        let size = 1 << (choice % 9);
        let granularity = [1, 1, 3, 1000][usize::from(choice / 9 % 4)];
        let start = bytes.number()?;
        // Either end of the range of ticks.
        let start = if choice < 128 { start } else { u64::MAX - start };
        let granularity = NonZeroU64::new(granularity).expect("above zero");
        let wheel = Wheel::with_granularity(size, granularity, start);
        Some(Pair { wheel, model: BTreeMap::new(), keys: Vec::new(), orders: 0, work: 0 })
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let step = Step::new(bytes.byte()?);
        match step.choice % 8 {
            0..=2 => self.insert(step, bytes)?,
            3 => self.remove(step, bytes)?,
            4 => self.reset(step, bytes)?,
            5 => self.look(step, bytes)?,
            6 => self.pop(step, bytes)?,
            _ => self.advance(bytes)?,
        }
        self.work += step.times + self.wheel.len();
        Some(())
    }

    fn deadline(&self, bytes: &mut Bytes<'_>) -> Option<u64> {
        let now = self.wheel.now();
        Some(match bytes.byte()? {
            few @ 0..32 => now.saturating_sub(u64::from(few)),
            few @ 32..64 => u64::MAX - u64::from(few - 32),
            few @ 64..160 => now.saturating_add(u64::from(few - 64)),
            _ => now.saturating_add(bytes.number()?),
        })
    }

    /// Returns over how many ticks the values of a step are spread. A peak is spread over the buckets, so that a sweep
    /// has a round to go.
    fn spread(step: Step, bytes: &mut Bytes<'_>) -> Option<u64> {
        if step.times == PEAK { Some(1 + u64::from(bytes.byte()?)) } else { Some(1) }
    }

    /// Returns an order that comes after all others, or before them.
    fn order(&mut self, step: Step) -> u64 {
        self.orders += 1;
        if step.is_turned() { (1 << 63) - self.orders } else { (1 << 63) + self.orders }
    }

    /// Returns the indices of neighbouring keys, counted from the first one or from the last one. Of a peak it is a part,
    /// so that a sweep stops anywhere.
    fn some(
        &self,
        step: Step,
        bytes: &mut Bytes<'_>,
    ) -> Option<impl Iterator<Item = usize> + use<>> {
        let (len, first) = (self.keys.len(), usize::from(bytes.byte()?) << 8);
        let first = first | usize::from(bytes.byte()?);
        let part = |byte: u8| len * (1 + usize::from(byte)) / 256;
        let times = if step.times == PEAK { part(bytes.byte()?) } else { step.times };
        let times = if len == 0 { 0 } else { times };
        let indices = (first..first + times).map(move |at| at % len);
        Some(indices.map(move |at| if step.is_turned() { len - 1 - at } else { at }))
    }

    fn insert(&mut self, step: Step, bytes: &mut Bytes<'_>) -> Option<()> {
        let (deadline, spread) = (self.deadline(bytes)?, Pair::spread(step, bytes)?);
        for at in 0..step.times as u64 {
            let place = (deadline.saturating_add(at % spread), self.order(step));
            let key = self.wheel.insert_as(place.0, place.1, place.1);
            self.model.insert(place, key);
            self.keys.push((key, place));
        }
        Some(())
    }

    fn remove(&mut self, step: Step, bytes: &mut Bytes<'_>) -> Option<()> {
        for at in self.some(step, bytes)? {
            let (key, place) = self.keys[at];
            let expected = self.model.remove(&place).map(|_| place.1);
            assert_eq!(self.wheel.remove(key), expected, "of {place:?}");
            assert_eq!(self.wheel.remove(key), None, "of {place:?}");
        }
        Some(())
    }

    fn reset(&mut self, step: Step, bytes: &mut Bytes<'_>) -> Option<()> {
        let some = self.some(step, bytes)?;
        let (deadline, spread) = (self.deadline(bytes)?, Pair::spread(step, bytes)?);
        for at in some {
            let to = (deadline.saturating_add(at as u64 % spread), self.order(step));
            let (key, place) = self.keys[at];
            let is_there = self.model.remove(&place).is_some();
            assert_eq!(self.wheel.reset_as(key, to.0, to.1), is_there, "of {place:?}");
            let value = self.wheel.get_mut(key);
            assert_eq!(value.is_some(), is_there, "of {place:?}");
            if let Some(value) = value {
                *value = to.1;
                self.model.insert(to, key);
                self.keys[at].1 = to;
            }
        }
        Some(())
    }

    fn look(&mut self, step: Step, bytes: &mut Bytes<'_>) -> Option<()> {
        let first = self.model.keys().next().map(|(deadline, _)| *deadline);
        let within = self.wheel.next_expiry_within(usize::from(bytes.byte()?));
        assert!(within <= first && within.is_some() == first.is_some(), "{within:?} {first:?}");
        if !step.is_turned() {
            assert_eq!(self.wheel.next_expiry(), first);
        }
        for at in self.some(step, bytes)? {
            let (key, place) = self.keys[at];
            let is_there = self.model.contains_key(&place);
            assert_eq!(self.wheel.contains(key), is_there, "of {place:?}");
            let at = self.wheel.at(key.index()).map(|(at, _)| at);
            assert_eq!(at == Some(key), is_there, "of {place:?}");
            assert_eq!(self.wheel.get(key), is_there.then_some(&place.1));
            assert_eq!(self.wheel.deadline(key), is_there.then_some(place.0));
        }
        Some(())
    }

    fn to(&self, choice: u8, bytes: &mut Bytes<'_>) -> Option<u64> {
        let now = self.wheel.now();
        Some(match choice % 4 {
            0 => now.saturating_add(1),
            1 => self.model.keys().next().map_or(now, |(deadline, _)| *deadline),
            2 => now.saturating_sub(u64::from(choice)),
            _ => now.saturating_add(bytes.number()?),
        })
    }

    fn pop(&mut self, step: Step, bytes: &mut Bytes<'_>) -> Option<()> {
        let to = self.to(bytes.byte()?, bytes)?;
        let passed = self.wheel.now().max(to);
        for _ in 0..step.times {
            let first = self.model.first_key_value().map(|(place, key)| (*place, *key));
            let due = first.filter(|((deadline, _), _)| *deadline <= passed);
            if !step.is_turned() {
                assert_eq!(self.wheel.peek(to), due.map(|(place, _)| place));
            }
            let popped = self.wheel.pop(to);
            assert_eq!(popped, due.map(|((deadline, order), key)| (key, deadline, order)));
            let Some((place, _)) = due else { break };
            self.model.remove(&place);
        }
        assert_eq!(self.wheel.now(), passed);
        Some(())
    }

    fn advance(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let now = self.wheel.now();
        let choice = bytes.byte()?;
        let to = self.to(choice, bytes)?;
        // An iterator that is dropped early leaves the rest to the next call.
        let most = if choice < 0xC0 { usize::MAX } else { usize::from(choice & 15) };
        let given: Vec<_> = self.wheel.advance(to).take(most).collect();
        let passed = now.max(to);
        let due = self.model.range(..=(passed, u64::MAX)).map(|(place, _)| *place);
        let due: Vec<_> = due.take(most).collect();
        assert_eq!(given, due, "advanced from {now} to {to}");
        assert_eq!(self.wheel.now(), passed);
        for place in &due {
            self.model.remove(place);
        }
        Some(())
    }
}
