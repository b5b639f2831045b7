//! The keys of a shard: numbers of slots by hash. An open table with linear probing.
//!
//! ```text
//!   hash & mask ──> [ hash, index ][ hash, index ][ empty ][ hash, index ] ...
//!                     look until it is found ────────^ or a place is empty
//! ```
//!
//! A place is eight bytes, and a look-up reads one cache line, where the map of std reads two: control bytes and places.
//! The table knows no keys. Its caller compares them, so nothing here is left half done by a panic of user code, and
//! several keys may have the same hash.
//!
//! - From the place that a hash asks for, up to the place where it is, no place is empty.
//! - At most three of four places are taken.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::platform::cpu::prefetch;

/// A table of indices by hash.
#[derive(Default)]
pub(super) struct Table {
    places: Box<[Place]>,
    len: usize,
}

#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    index: u32,
}

/// No slot has this number: the wheel would have to hold four thousand million values.
const NONE: u32 = u32::MAX;
const EMPTY: Place = Place { hash: 0, index: NONE };

/// The first size of a table, and one that is kept when it becomes empty.
const SMALL: usize = 16;
const KEPT: usize = 2048;

impl Table {
    /// Returns the position and the index of the first entry of this hash that is the one that is looked for.
    #[inline]
    pub(super) fn find<T>(
        &self,
        hash: u32,
        mut is_it: impl FnMut(u32) -> Option<T>,
    ) -> Option<(usize, T)> {
        let mut at = self.wanted(hash);
        loop {
            let place = self.places.get(at)?; // none at all in an empty table
            if place.index == NONE {
                return None;
            }
            if place.hash == hash {
                if let Some(found) = is_it(place.index) {
                    return Some((at, found));
                }
            }
            at = self.after(at);
        }
    }

    fn wanted(&self, hash: u32) -> usize {
        hash as usize & self.places.len().wrapping_sub(1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    pub(super) fn insert(&mut self, hash: u32, index: u32) {
        if (self.len + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        self.len += 1;
        self.put(Place { hash, index });
    }

    fn put(&mut self, place: Place) {
        let mut at = self.wanted(place.hash);
        while self.places[at].index != NONE {
            at = self.after(at);
        }
        self.places[at] = place;
    }

    #[cold]
    fn grow(&mut self) {
        let size = (self.places.len() * 2).max(SMALL);
        let before = std::mem::replace(&mut self.places, vec![EMPTY; size].into_boxed_slice());
        let taken = before.into_iter().filter(|place| place.index != NONE);
        taken.for_each(|place| self.put(place));
    }

    /// Removes the entry at a position, and moves those behind it up that would not be found any more.
    pub(super) fn remove(&mut self, position: usize) {
        let (mut free, mut at) = (position, self.after(position));
        while self.places[at].index != NONE {
            let wanted = self.wanted(self.places[at].hash);
            let mask = self.places.len() - 1;
            // How far the entry has been put behind the place that it wants, and how far it is behind the free one.
            if (at.wrapping_sub(wanted) & mask) >= (at.wrapping_sub(free) & mask) {
                self.places[free] = self.places[at];
                free = at;
            }
            at = self.after(at);
        }
        self.places[free] = EMPTY;
        self.len -= 1;
        if self.len == 0 && self.places.len() > KEPT {
            *self = Table::default(); // the memory of a peak
        }
    }

    /// Returns all hashes and indices, after checking the table, for tests.
    pub(super) fn checked(&self) -> impl Iterator<Item = (u32, u32)> {
        let taken = self.places.iter().enumerate().filter(|(_, place)| place.index != NONE);
        for (position, place) in taken.clone() {
            let found = self.find(place.hash, |index| (index == place.index).then_some(()));
            assert_eq!(found.map(|(at, ())| at), Some(position), "an entry is not found");
        }
        assert_eq!(taken.clone().count(), self.len, "the number of entries");
        assert!(self.len * 4 <= self.places.len() * 3, "the table is too full");
        taken.map(|(_, place)| (place.hash, place.index))
    }
}

/// Where the places of a table are, for threads that do not hold its lock: enough to fetch one into the cache ahead of
/// its use. What it says may be out of date. Then a call waits for its cache line, as it would without the hint. So all loads
/// and stores are Relaxed.
#[derive(Default)]
pub(super) struct Hint {
    address: AtomicUsize,
    mask: AtomicUsize,
}

impl Hint {
    /// Notes where the places are now.
    #[inline]
    pub(super) fn note(&self, table: &Table) {
        let (address, mask) = (table.places.as_ptr().addr(), table.places.len() - 1);
        let noted = (self.address.load(Ordering::Relaxed), self.mask.load(Ordering::Relaxed));
        if noted != (address, mask) {
            self.address.store(address, Ordering::Relaxed);
            self.mask.store(mask, Ordering::Relaxed);
        }
    }

    /// Fetches the place that a hash asks for.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let at = hash as usize & self.mask.load(Ordering::Relaxed);
        let places = ptr::without_provenance::<Place>(self.address.load(Ordering::Relaxed));
        prefetch(places.wrapping_add(at));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_does_what_a_list_does_whatever_the_hashes() {
        for seed in 1..200_u64 {
            let mut state = seed;
            let mut below = |end: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) % end
            };
            // Few hashes, also such as wrap around at the end.
            let hashes: Vec<_> =
                (0..=below(40)).map(|_| (below(64) as u32).wrapping_sub(20)).collect();
            let (mut table, mut list) = (Table::default(), Vec::new());
            for index in 0..300 {
                let hash = hashes[below(hashes.len() as u64) as usize];
                if below(5) < 3 {
                    table.insert(hash, index);
                    list.push((hash, index));
                } else if !list.is_empty() {
                    let (hash, index) = list.swap_remove(below(list.len() as u64) as usize);
                    let found = table.find(hash, |other| (other == index).then_some(()));
                    table.remove(found.expect("in it").0);
                    assert!(table.find(hash, |other| (other == index).then_some(())).is_none());
                }
                let mut all: Vec<_> = table.checked().collect();
                all.sort_unstable();
                list.sort_unstable();
                assert_eq!(all, list, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_memory_of_a_peak_goes_when_the_table_is_empty() {
        let mut table = Table::default();
        (0..10_000).for_each(|index| table.insert(index * 7, index));
        for index in 0..10_000 {
            let found = table.find(index * 7, |other| (other == index).then_some(()));
            table.remove(found.expect("in it").0);
        }
        assert!(table.places.is_empty() && table.find(7, Some).is_none());
    }
}
