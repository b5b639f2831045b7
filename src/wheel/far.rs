//! What is due after the two half-turns that the ring shows: filed by half-turn.
//!
//! A half-turn's number is what Akka calls the rounds of a task, counted from the beginning of time
//! instead of down from now: so it need not be touched while the wheel turns.
//!
//! ```text
//!   half-turn:   base ............. base + 2047     later than that
//!                [ soon: one place for each ]       [ a sorted map ] --> soon, as the base moves on
//! ```
//!
//! With the defaults a half-turn is two seconds and `soon` is an hour and ten minutes. A search in the
//! map alone cost the tick thread 25 ns a task, most of it branches that nobody can foresee.

use std::collections::BTreeMap;

use super::chain::{Chain, Timed};
use super::occupancy::Occupancy;

/// How many half-turns have a place of their own.
const SOON: u64 = 2048;

/// A half-turn's entries.
#[derive(Clone)]
pub(super) struct Later<E> {
    pub(super) chain: Chain<E>,
    pub(super) len: usize,
}

impl<E: Timed> Later<E> {
    const NONE: Later<E> = Later { chain: Chain::new(), len: 0 };
}

/// All half-turns that have entries, by number.
pub(super) struct Far<E> {
    /// The present half-turn. None before it has entries.
    base: u64,
    /// Half-turn `n` is at `n % SOON`; there is no room before the first is needed.
    soon: Vec<Later<E>>,
    /// Which of them have entries.
    occupied: Occupancy,
    beyond: BTreeMap<u64, Later<E>>,
}

impl<E: Timed> Far<E> {
    pub(super) fn new(base: u64) -> Far<E> {
        let occupied = Occupancy::new(SOON as usize);
        Far { base, soon: Vec::new(), occupied, beyond: BTreeMap::new() }
    }

    /// The present half-turn is this one now.
    pub(super) fn turn_to(&mut self, base: u64) {
        if base == self.base {
            return;
        }
        self.base = base;
        while let Some(first) = self.beyond.first_entry() {
            let half = *first.key();
            if !is_soon(base, half) {
                break;
            }
            let later = first.remove();
            *self.entry(half) = later;
        }
    }

    pub(super) fn has(&self, half: u64) -> bool {
        if is_soon(self.base, half) {
            self.occupied.is_set(place(half))
        } else {
            self.beyond.contains_key(&half)
        }
    }

    /// The entries of a half-turn, to be added to.
    #[inline]
    pub(super) fn entry(&mut self, half: u64) -> &mut Later<E> {
        if !is_soon(self.base, half) {
            return self.beyond.entry(half).or_insert(Later::NONE);
        }
        if self.soon.is_empty() {
            self.soon.resize(SOON as usize, Later::NONE);
        }
        self.occupied.set(place(half));
        &mut self.soon[place(half)]
    }

    /// How many entries a half-turn has.
    pub(super) fn len(&self, half: u64) -> usize {
        if !self.has(half) {
            return 0;
        }
        let beyond = || self.beyond.get(&half);
        let later = if is_soon(self.base, half) { self.soon.get(place(half)) } else { beyond() };
        later.map_or(0, |later| later.len)
    }

    /// The entries of a half-turn, if it has any.
    pub(super) fn get_mut(&mut self, half: u64) -> Option<&mut Later<E>> {
        if is_soon(self.base, half) {
            let is_there = self.occupied.is_set(place(half));
            is_there.then(|| &mut self.soon[place(half)])
        } else {
            self.beyond.get_mut(&half)
        }
    }

    /// Forgets a half-turn that is empty.
    pub(super) fn remove(&mut self, half: u64) {
        if is_soon(self.base, half) {
            self.occupied.clear(place(half));
        } else {
            self.beyond.remove(&half);
        }
    }

    /// The first half-turn from `from` on that has entries.
    pub(super) fn first_from(&self, from: u64) -> Option<u64> {
        let from = from.max(self.base);
        self.first_soon(from).or_else(|| self.beyond.range(from..).next().map(|(half, _)| *half))
    }

    fn first_soon(&self, from: u64) -> Option<u64> {
        if !is_soon(self.base, from) {
            return None;
        }
        let (start, first, end) = (place(self.base), place(from), SOON as usize);
        let up_to = |first: usize, end: usize| {
            let found = end.checked_sub(1).and_then(|last| self.occupied.next(first, last));
            found.map(|place| self.base + (place + SOON as usize - start) as u64 % SOON)
        };
        if first >= start {
            up_to(first, end).or_else(|| up_to(0, start))
        } else {
            up_to(first, start)
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Later<E>)> {
        let mut next = self.first_from(0);
        std::iter::from_fn(move || {
            let half = next?;
            next = half.checked_add(1).and_then(|from| self.first_from(from));
            let beyond = || self.beyond.get(&half);
            let later =
                if is_soon(self.base, half) { self.soon.get(place(half)) } else { beyond() };
            later.map(|later| (half, later))
        })
    }
}

fn is_soon(base: u64, half: u64) -> bool {
    half.checked_sub(base).is_some_and(|ahead| ahead < SOON)
}

fn place(half: u64) -> usize {
    (half % SOON) as usize
}
