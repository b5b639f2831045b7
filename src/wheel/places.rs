//! Where the chains of a wheel are.
//!
//! ```text
//!   by index:   [ the ring: a bucket for each tick of two half-turns ][ soon: one for each half-turn of two groups ]
//!   beyond:     a sorted map of the groups after those ─────────────────> soon, as the present moves on
//! ```
//!
//! - CHAIN-1 A chain that is half swept has two parts: `kept`, and behind that the rest, which is in the chain's place and
//!   not empty. Whoever takes entries out puts the parts together first, by [`join`](Places::join), and the sweep begins
//!   the chain anew.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use super::chain::{Chain, Pool, Timed};
use super::occupancy::Occupancy;

/// The place of a chain: its index, or its group of half-turns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    At(usize),
    Beyond(u64),
}

use Place::{At, Beyond};

/// The chains of a wheel by place.
pub(super) struct Places<E> {
    /// The ring, and behind it the half-turns that come soon, once one of them has an entry.
    pub(super) chains: Vec<Chain<E>>,
    /// Which of those are not empty.
    pub(super) occupied: Occupancy,
    /// None of them is empty.
    pub(super) beyond: BTreeMap<u64, Chain<E>>,
    /// The chain that is swept, and the live entries of it that have been looked at.
    pub(super) swept: Place,
    kept: Chain<E>,
}

impl<E: Timed> Places<E> {
    /// Makes so many places that are found by index, of which the first `ring` are needed at once.
    pub(super) fn new(ring: usize, all: usize) -> Places<E> {
        // A great ring has room for all, or the first far entry would have it copied. This room is not touched before.
        let mut chains = Vec::with_capacity(if ring > all - ring { all } else { ring });
        chains.resize(ring, Chain::new());
        Places {
            chains,
            occupied: Occupancy::new(all),
            beyond: BTreeMap::new(),
            swept: At(0),
            kept: Chain::new(),
        }
    }

    /// Returns what is in a place.
    pub(super) fn get(&self, place: Place) -> Chain<E> {
        let chain = match place {
            At(index) => self.chains.get(index),
            Beyond(group) => self.beyond.get(&group),
        };
        chain.copied().unwrap_or(Chain::new())
    }

    /// Returns the chain in a place. The caller adds entries to it.
    pub(super) fn fill(&mut self, place: Place) -> &mut Chain<E> {
        match place {
            At(index) => {
                self.make_room(index);
                self.occupied.set(index);
                &mut self.chains[index]
            }
            Beyond(group) => self.beyond.entry(group).or_insert(Chain::new()),
        }
    }

    /// Makes sure that there is a chain with this index. A wheel for short timeouts never needs more than the ring.
    pub(super) fn make_room(&mut self, index: usize) {
        if index >= self.chains.len() {
            self.chains.resize(self.occupied.len(), Chain::new());
        }
    }

    /// Notes that the chain in a place has become empty.
    pub(super) fn emptied(&mut self, place: Place) {
        match place {
            At(index) => self.occupied.clear(index),
            Beyond(group) => _ = self.beyond.remove(&group),
        }
    }

    /// Puts into a place what its chain has become.
    pub(super) fn put(&mut self, place: Place, chain: Chain<E>) {
        *self.fill(place) = chain;
        if chain.is_empty() {
            self.emptied(place);
        }
    }

    // ----- a chain that is swept -----------------------------------------------------------

    /// Makes a chain whole that may be half swept (CHAIN-1).
    #[inline]
    pub(super) fn join(&mut self, place: Place, pool: &mut Pool<E>) {
        if place == self.swept && !self.kept.is_empty() {
            let kept = mem::replace(&mut self.kept, Chain::new());
            *self.fill(place) = pool.join(kept, self.get(place));
        }
    }

    /// Returns the number of entries of a chain.
    pub(super) fn len(&self, place: Place) -> usize {
        let kept = if self.swept == place { self.kept.len } else { 0 };
        self.get(place).len + kept
    }

    /// Drops the stale ones of the next `budget` entries, about, from where the last call stopped. Returns how many it has
    /// dropped, and true if this call has come to the end of a round.
    pub(super) fn sweep(
        &mut self,
        pool: &mut Pool<E>,
        mut budget: usize,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> (usize, bool) {
        let mut dropped = 0;
        while budget > 0 {
            let Some(place) = self.next_to_sweep() else {
                self.swept = At(0);
                return (dropped, true);
            };
            self.swept = place;
            let (before, mut rest) = (self.len(place), self.get(place));
            let looked_at = pool.sift(&mut rest, &mut self.kept, budget, &mut is_live);
            // Each chain counts one more than its entries, so a walk over short ones comes to its end too.
            budget = budget.saturating_sub(looked_at + 1);
            dropped += before - rest.len - self.kept.len;
            if rest.is_empty() {
                rest = mem::replace(&mut self.kept, Chain::new());
                self.swept = match place {
                    At(index) => At(index + 1),
                    Beyond(group) => Beyond(group - 1),
                };
            }
            self.put(place, rest);
        }
        (dropped, false)
    }

    /// Returns the place that is swept, or the next one if that has become empty: those with an index, and then the others
    /// from the last one on.
    fn next_to_sweep(&self) -> Option<Place> {
        let most = match self.swept {
            At(index) => match self.occupied.next(index..self.occupied.len()) {
                Some(index) => return Some(At(index)),
                None => u64::MAX,
            },
            Beyond(group) => group,
        };
        self.beyond.range(..=most).next_back().map(|(group, _)| Beyond(*group))
    }

    // ----- all of them ---------------------------------------------------------------------

    /// Returns all chains that have entries, each behind the part of it that a sweep has set aside.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Place, &Chain<E>)> {
        let here = self.chains.iter().enumerate().map(|(index, chain)| (At(index), chain));
        let beyond = self.beyond.iter().map(|(group, chain)| (Beyond(*group), chain));
        let kept = [(self.swept, &self.kept)].into_iter();
        kept.chain(here).chain(beyond).filter(|(_, chain)| !chain.is_empty())
    }

    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self) {
        let is_half_swept = !self.kept.is_empty();
        assert!(!is_half_swept || !self.get(self.swept).is_empty(), "CHAIN-1: the rest is empty");
        assert!(self.beyond.values().all(|chain| !chain.is_empty()), "an empty chain is beyond");
        for (index, chain) in self.chains.iter().enumerate() {
            assert_eq!(self.occupied.is_set(index), !chain.is_empty(), "the bit at {index}");
        }
    }
}
