//! The entries that are due after the two half-turns of the ring, filed by half-turn.
//!
//! The number of a half-turn (`half` in the code) is what Akka calls the rounds of a task, counted from the beginning of
//! time instead of down from the present. So it does not have to be touched while the wheel turns.
//!
//! ```text
//!   half-turn:   base ............. base + 2047     later than that      (fewer in a small wheel)
//!                [ soon: one each, by index   ]     [ a sorted map ] --> soon, as the base moves on
//! ```
//!
//! With the defaults a half-turn takes two seconds, and `soon` covers an hour and ten minutes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::chain::{Chain, Pool, Timed};
use super::occupancy::Occupancy;

/// The most half-turns that are found by index. They take 40 bytes each.
const MOST_SOON: usize = 2048;
/// A wheel of few buckets has so many of them for each bucket.
const SOON_EACH: usize = 4;

/// The entries of one half-turn.
#[derive(Clone)]
pub(super) struct HalfTurn<E> {
    pub(super) chain: Chain<E>,
    pub(super) len: usize,
}

impl<E: Timed> HalfTurn<E> {
    fn empty() -> HalfTurn<E> {
        HalfTurn { chain: Chain::new(), len: 0 }
    }

    /// Appends an entry, if there is a block with room for it. Otherwise the caller has to do more.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut Pool<E>, entry: E) -> bool {
        let is_in = pool.push(&mut self.chain, entry);
        self.len += usize::from(is_in);
        is_in
    }
}

/// All half-turns that have entries, by number.
pub(super) struct Far<E> {
    /// The present half-turn. No half-turn before it has entries.
    base: u64,
    /// Half-turn `n` is at `n & mask`. The vector is empty until the first one is needed.
    soon: Vec<HalfTurn<E>>,
    mask: u64,
    /// The indices in `soon` that have entries.
    occupied: Occupancy,
    beyond: BTreeMap<u64, HalfTurn<E>>,
}

impl<E: Timed> Far<E> {
    /// `buckets`: the size of the wheel, a power of two.
    pub(super) fn new(base: u64, buckets: usize) -> Far<E> {
        let soon = buckets.saturating_mul(SOON_EACH).min(MOST_SOON);
        let (occupied, mask) = (Occupancy::new(soon), soon as u64 - 1);
        Far { base, soon: Vec::new(), mask, occupied, beyond: BTreeMap::new() }
    }

    /// Returns the present half-turn.
    #[inline]
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    fn is_soon(&self, half: u64) -> bool {
        // One comparison for both ends: a half-turn that has passed is far ahead by this.
        half.wrapping_sub(self.base) <= self.mask
    }

    fn index_of(&self, half: u64) -> usize {
        (half & self.mask) as usize
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
        // The window has moved on, so what it covers now comes out of the map.
        while let Some(half) = self.beyond.first_key_value().map(|(half, _)| *half) {
            if !self.is_soon(half) {
                break;
            }
            if let Some(half_turn) = self.beyond.remove(&half) {
                *self.get_or_insert(half) = half_turn;
            }
        }
    }

    /// Returns the half-turn of this number, if it is found by index. It may have no entries.
    #[inline]
    pub(super) fn get_soon(&mut self, half: u64) -> Option<&mut HalfTurn<E>> {
        // A search in the map alone cost the tick thread 25 ns a task, most of it for mispredicted branches.
        let index = self.index_of(half);
        self.is_soon(half).then(|| self.soon.get_mut(index))?
    }

    /// Returns the half-turn of this number, to add entries to it.
    #[inline]
    pub(super) fn get_or_insert(&mut self, half: u64) -> &mut HalfTurn<E> {
        if !self.is_soon(half) {
            return self.beyond.entry(half).or_insert(HalfTurn::empty());
        }
        // It takes 80 KiB, which a wheel for short timeouts never needs.
        if self.soon.is_empty() {
            self.soon.resize(self.mask as usize + 1, HalfTurn::empty());
        }
        let index = self.index_of(half);
        self.occupied.set(index);
        &mut self.soon[index]
    }

    /// Returns the half-turn of this number, if it has entries.
    pub(super) fn get(&self, half: u64) -> Option<&HalfTurn<E>> {
        if self.is_soon(half) {
            let index = self.index_of(half);
            self.occupied.is_set(index).then(|| &self.soon[index])
        } else {
            self.beyond.get(&half)
        }
    }

    /// Returns the half-turn of this number, if it has entries.
    pub(super) fn get_mut(&mut self, half: u64) -> Option<&mut HalfTurn<E>> {
        if self.is_soon(half) {
            let index = self.index_of(half);
            self.occupied.is_set(index).then(|| &mut self.soon[index])
        } else {
            self.beyond.get_mut(&half)
        }
    }

    /// Forgets a half-turn, whose chain is empty.
    pub(super) fn remove(&mut self, half: u64) {
        debug_assert!(self.get(half).is_none_or(|half_turn| half_turn.len == 0), "lost entries");
        if self.is_soon(half) {
            // Only the bit goes: the chain is empty, and stays for a later half-turn.
            self.occupied.clear(self.index_of(half));
        } else {
            self.beyond.remove(&half);
        }
    }

    /// Returns the number of the first half-turn from `from` on that has entries.
    pub(super) fn first_from(&self, from: u64) -> Option<u64> {
        let from = from.max(self.base);
        self.first_soon(from).or_else(|| self.beyond.range(from..).next().map(|(half, _)| *half))
    }

    /// Returns the first half-turn in `soon` from `from` on that has entries.
    fn first_soon(&self, from: u64) -> Option<u64> {
        if !self.is_soon(from) {
            return None;
        }
        let (start, first) = (self.index_of(self.base), self.index_of(from));
        let len = self.mask as usize + 1;
        let find = |first: usize, end: usize| {
            let found = end.checked_sub(1).and_then(|last| self.occupied.next(first, last));
            found.map(|index| self.base + ((index + len - start) as u64 & self.mask))
        };
        // `soon` begins at the index of the base, and goes on at index 0 after its end.
        if first >= start {
            find(first, len).or_else(|| find(0, start))
        } else {
            find(first, start)
        }
    }

    /// Returns the half-turns that have entries, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &HalfTurn<E>)> {
        let first = self.first_from(0);
        let numbers = core::iter::successors(first, |half| self.first_from(half.checked_add(1)?));
        numbers.filter_map(|half| Some((half, self.get(half)?)))
    }
}
