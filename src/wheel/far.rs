//! What is due after the two half-turns that the ring shows: filed by half-turn.
//!
//! A half-turn's number is what Akka calls the rounds of a task, counted from the beginning of time
//! instead of down from now: so it need not be touched while the wheel turns.

use std::collections::BTreeMap;

use super::chain::{Chain, Timed};

/// A half-turn's entries.
pub(super) struct Later<E> {
    pub(super) chain: Chain<E>,
    pub(super) len: usize,
}

/// All half-turns that have entries, by number.
pub(super) struct Far<E> {
    halves: BTreeMap<u64, Later<E>>,
}

impl<E: Timed> Far<E> {
    pub(super) fn new() -> Far<E> {
        Far { halves: BTreeMap::new() }
    }

    pub(super) fn has(&self, half: u64) -> bool {
        self.halves.contains_key(&half)
    }

    /// The entries of a half-turn, to be added to.
    pub(super) fn entry(&mut self, half: u64) -> &mut Later<E> {
        self.halves.entry(half).or_insert(Later { chain: Chain::new(), len: 0 })
    }

    /// The first half-turn from `from` on, and its entries.
    pub(super) fn first_from(&mut self, from: u64) -> Option<(u64, &mut Later<E>)> {
        self.halves.range_mut(from..).next().map(|(half, later)| (*half, later))
    }

    /// The entries of a half-turn, if it has any.
    pub(super) fn get_mut(&mut self, half: u64) -> Option<&mut Later<E>> {
        self.halves.get_mut(&half)
    }

    /// Forgets a half-turn that is empty.
    pub(super) fn remove(&mut self, half: u64) {
        self.halves.remove(&half);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Later<E>)> {
        self.halves.iter().map(|(half, later)| (*half, later))
    }
}
