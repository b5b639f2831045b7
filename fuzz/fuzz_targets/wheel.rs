//! The wheel against a sorted map: the values that come out, their order, and the next deadline.

#![no_main]

mod bytes;

use std::collections::BTreeMap;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tickwheel::wheel::{Key, Wheel};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let Some(mut pair) = Pair::new(&mut bytes) else { return };
    while pair.step(&mut bytes).is_some() {
        assert_eq!(pair.wheel.len(), pair.model.len());
        assert_eq!(pair.wheel.is_empty(), pair.model.is_empty());
        pair.wheel.check_invariants();
    }
});

/// So many values at once are more than a block of the wheel holds.
const CROWD: usize = 40;
/// So many are a peak, after which an empty wheel gives its memory back.
const PEAK: usize = 1500;

/// A value's deadline and number, which are its position in the order.
type Place = (u64, u64);

struct Pair {
    wheel: Wheel<u64>,
    model: BTreeMap<Place, Key>,
    /// All keys that there ever were, because a key whose value is gone must match nothing.
    keys: Vec<(Key, Place)>,
}

impl Pair {
    fn new(bytes: &mut Bytes<'_>) -> Option<Pair> {
        let choice = bytes.byte()?;
        let size = 1 << (choice % 9);
        let start = bytes.number()?;
        // Either end of the range of ticks.
        let start = if choice < 128 { start } else { u64::MAX - start };
        let wheel = Wheel::new(size).starting_at(start);
        Some(Pair { wheel, model: BTreeMap::new(), keys: Vec::new() })
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let choice = bytes.byte()?;
        let times = match choice {
            0..0xE0 => 1,
            0xE0..0xF8 => CROWD,
            _ => PEAK,
        };
        match choice % 8 {
            0..=2 => self.insert(bytes, times)?,
            3 | 4 => self.remove(bytes, times)?,
            5 => self.look(bytes)?,
            _ => self.advance(bytes)?,
        }
        Some(())
    }

    fn insert(&mut self, bytes: &mut Bytes<'_>, times: usize) -> Option<()> {
        let now = self.wheel.now();
        let deadline = match bytes.byte()? {
            few @ 0..32 => now.saturating_sub(u64::from(few)),
            few @ 32..64 => u64::MAX - u64::from(few - 32),
            few @ 64..160 => now.saturating_add(u64::from(few - 64)),
            _ => now.saturating_add(bytes.number()?),
        };
        // A peak is spread over the buckets, so that a sweep has a round to go.
        let spread = if times == PEAK { 1 + u64::from(bytes.byte()?) } else { 1 };
        for at in 0..times as u64 {
            let deadline = deadline.saturating_add(at % spread);
            let number = self.keys.len() as u64;
            let key = self.wheel.insert(deadline, number);
            self.model.insert((deadline, number), key);
            self.keys.push((key, (deadline, number)));
        }
        Some(())
    }

    fn remove(&mut self, bytes: &mut Bytes<'_>, times: usize) -> Option<()> {
        let first = usize::from(bytes.byte()?) << 8 | usize::from(bytes.byte()?);
        let times = if times == PEAK { self.keys.len() } else { times };
        for at in first..first + times {
            let Some((key, place)) = self.keys.get(at % self.keys.len().max(1)) else { break };
            let expected = self.model.remove(place).map(|_| place.1);
            assert_eq!(self.wheel.remove(*key), expected, "of {place:?}");
            assert_eq!(self.wheel.remove(*key), None, "of {place:?}");
        }
        Some(())
    }

    fn look(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let first = self.model.keys().next().map(|(deadline, _)| *deadline);
        assert_eq!(self.wheel.next_expiry(), first);
        let at = usize::from(bytes.byte()?);
        if let Some((key, place)) = self.keys.get(at) {
            let is_there = self.model.contains_key(place);
            assert_eq!(self.wheel.contains(*key), is_there, "of {place:?}");
            assert_eq!(self.wheel.get(*key), is_there.then_some(&place.1));
            assert_eq!(self.wheel.deadline(*key), is_there.then_some(place.0));
        }
        Some(())
    }

    fn advance(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let now = self.wheel.now();
        let choice = bytes.byte()?;
        let to = match choice % 4 {
            0 => now.saturating_add(1),
            1 => self.model.keys().next().map_or(now, |(deadline, _)| *deadline),
            2 => now.saturating_sub(u64::from(choice)),
            _ => now.saturating_add(bytes.number()?),
        };
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
