//! The entries that are due after the two half-turns of the ring, filed by half-turn.
//!
//! The number of a half-turn (`half` in the code) is what Akka calls the rounds of a task, counted from the beginning of
//! time instead of down from now. So it does not have to be touched while the wheel turns.
//!
//! ```text
//!   half-turn:   base ............. base + 2047     later than that
//!                [ soon: one each, by index   ]     [ a sorted map ] --> soon, as the base moves on
//! ```
//!
//! With the defaults a half-turn takes two seconds, and `soon` covers an hour and ten minutes. A search in the
//! map alone cost the tick thread 25 ns a task, most of it for mispredicted branches.

use std::collections::BTreeMap;

use super::chain::{Chain, Timed};
use super::occupancy::Occupancy;

/// The number of half-turns that are found by index.
const SOON: u64 = 2048;

/// The entries of one half-turn.
#[derive(Clone)]
pub(super) struct HalfTurn<E> {
    pub(super) chain: Chain<E>,
    pub(super) len: usize,
}

impl<E: Timed> HalfTurn<E> {
    const EMPTY: HalfTurn<E> = HalfTurn { chain: Chain::new(), len: 0 };
}

/// All half-turns that have entries, by number.
pub(super) struct Far<E> {
    /// The present half-turn. No half-turn before it has entries.
    base: u64,
    /// Half-turn `n` is at `n % SOON`. The vector is empty until the first one is needed.
    soon: Vec<HalfTurn<E>>,
    /// The indices in `soon` that have entries.
    occupied: Occupancy,
    beyond: BTreeMap<u64, HalfTurn<E>>,
}

impl<E: Timed> Far<E> {
    pub(super) fn new(base: u64) -> Far<E> {
        let occupied = Occupancy::new(SOON as usize);
        Far { base, soon: Vec::new(), occupied, beyond: BTreeMap::new() }
    }

    /// Makes this half-turn the present one. Returns false if it is already.
    #[inline]
    pub(super) fn turn_to(&mut self, base: u64) -> bool {
        let is_new = base != self.base;
        if is_new {
            self.begin(base);
        }
        is_new
    }

    fn begin(&mut self, base: u64) {
        self.base = base;
        while let Some(first) = self.beyond.first_entry() {
            let half = *first.key();
            if !is_soon(base, half) {
                break;
            }
            let half_turn = first.remove();
            *self.get_or_insert(half) = half_turn;
        }
    }

    /// Returns the half-turn of this number, to add entries to it.
    #[inline]
    pub(super) fn get_or_insert(&mut self, half: u64) -> &mut HalfTurn<E> {
        if !is_soon(self.base, half) {
            return self.beyond.entry(half).or_insert(HalfTurn::EMPTY);
        }
        if self.soon.is_empty() {
            self.soon.resize(SOON as usize, HalfTurn::EMPTY);
        }
        self.occupied.set(index_of(half));
        &mut self.soon[index_of(half)]
    }

    /// Returns the half-turn of this number, if it has entries.
    pub(super) fn get(&self, half: u64) -> Option<&HalfTurn<E>> {
        if is_soon(self.base, half) {
            let is_there = self.occupied.is_set(index_of(half));
            is_there.then(|| &self.soon[index_of(half)])
        } else {
            self.beyond.get(&half)
        }
    }

    /// Returns the half-turn of this number, if it has entries.
    pub(super) fn get_mut(&mut self, half: u64) -> Option<&mut HalfTurn<E>> {
        if is_soon(self.base, half) {
            let is_there = self.occupied.is_set(index_of(half));
            is_there.then(|| &mut self.soon[index_of(half)])
        } else {
            self.beyond.get_mut(&half)
        }
    }

    /// Forgets a half-turn, whose chain is empty.
    pub(super) fn remove(&mut self, half: u64) {
        debug_assert!(self.get(half).is_none_or(|half_turn| half_turn.len == 0), "lost entries");
        if is_soon(self.base, half) {
            self.occupied.clear(index_of(half));
        } else {
            self.beyond.remove(&half);
        }
    }

    /// Returns the number of the first half-turn from `from` on that has entries.
    pub(super) fn first_from(&self, from: u64) -> Option<u64> {
        let from = from.max(self.base);
        self.first_soon(from).or_else(|| self.beyond.range(from..).next().map(|(half, _)| *half))
    }

    /// `soon` begins at the index of the base, and goes on at index 0 after its end.
    fn first_soon(&self, from: u64) -> Option<u64> {
        if !is_soon(self.base, from) {
            return None;
        }
        let (start, first, end) = (index_of(self.base), index_of(from), SOON as usize);
        let find = |first: usize, end: usize| {
            let found = end.checked_sub(1).and_then(|last| self.occupied.next(first, last));
            found.map(|index| self.base + (index + SOON as usize - start) as u64 % SOON)
        };
        if first >= start {
            find(first, end).or_else(|| find(0, start))
        } else {
            find(first, start)
        }
    }

    /// Returns the half-turns that have entries, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &HalfTurn<E>)> {
        let first = self.first_from(0);
        let numbers = std::iter::successors(first, |half| self.first_from(half.checked_add(1)?));
        numbers.filter_map(|half| Some((half, self.get(half)?)))
    }
}

fn is_soon(base: u64, half: u64) -> bool {
    half.checked_sub(base).is_some_and(|ahead| ahead < SOON)
}

fn index_of(half: u64) -> usize {
    (half % SOON) as usize
}
