//! The free slots that each thread has at hand.
//!
//! ```text
//!   thread:  loaded [ 7 6 5 4 ]  spare [ ]   <-- magazines -->   depot: all other free slots
//! ```
//!
//! A thread takes free slots from its own two magazines and gives them back there, without an atomic. Whole magazines
//! go to the [`depot`](super::depot) and come from there, under a lock that is held for a microsecond. A magazine holds
//! numbers, so neither way touches a holder that is not about to be used.
//!
//! - SLOT-1 Every slot is in exactly one of these places: a holder that is in use, a thread's magazines, the depot,
//!   the hands of the [`trim`](super::trim)mer.

use std::cell::RefCell;
use std::mem::swap;

use super::blocks;
use super::depot::{Magazine, depot};
use super::holder::PAGE;
use crate::platform::sync::{MAGAZINE, local};

/// How many tasks ahead of its use a holder is fetched into the cache.
const AHEAD: usize = 8;

struct Magazines {
    loaded: Magazine,
    /// Full or empty. It is swapped with `loaded` when that runs empty or full.
    spare: Magazine,
}

local!(
    CACHE: RefCell<Magazines> =
        RefCell::new(Magazines { loaded: Magazine::new(), spare: Magazine::new() })
);

impl Drop for Magazines {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Takes a free slot. `None` if there is no memory, or if 268 million tasks are pending.
#[inline]
pub(super) fn take() -> Option<u32> {
    let cached = CACHE.try_with(|cache| cache.borrow_mut().take());
    cached.unwrap_or_else(|_| depot().take_one())
}

/// Gives back the slot of a task that is over.
#[inline(always)]
#[expect(clippy::inline_always, reason = "saves 12 instructions of a cancel and of a run")]
pub(super) fn give(slot: u32) {
    let cached = CACHE.try_with(|cache| cache.borrow_mut().give(slot));
    if cached.is_err() {
        depot().put(&[slot]);
    }
}

/// Gives the free slots that the calling thread has at hand to the depot.
pub(crate) fn flush() {
    let _ = CACHE.try_with(|cache| cache.borrow_mut().flush());
}

impl Magazines {
    #[inline]
    fn take(&mut self) -> Option<u32> {
        if self.loaded.is_empty() {
            self.load();
        }
        let slot = self.loaded.pop()?;
        // Slots come back in the order in which tasks end, so the next one is most likely not in the cache.
        if let Some(soon) = self.loaded.iter().nth_back(AHEAD) {
            blocks::prefetch(*soon);
        }
        Some(slot)
    }

    #[inline]
    fn give(&mut self, slot: u32) {
        if self.loaded.len() == self.loaded.capacity() {
            return self.give_when_full(slot);
        }
        // A look at a few: the depot looks at each slot that reaches it.
        debug_assert!(!self.loaded.iter().rev().take(AHEAD).any(|free| *free == slot), "SLOT-1");
        self.loaded.push(slot);
    }

    #[cold]
    fn give_when_full(&mut self, slot: u32) {
        if self.unload() {
            self.loaded.push(slot);
        } else {
            depot().put(&[slot]);
        }
    }

    #[cold]
    fn load(&mut self) {
        // With two magazines, a thread that takes and gives in turn never needs the depot.
        swap(&mut self.loaded, &mut self.spare);
        // Without memory for a magazine there is no slot, and the caller is refused.
        if self.loaded.is_empty() && self.loaded.try_reserve_exact(MAGAZINE).is_ok() {
            depot().take(&mut self.loaded);
            touch_pages(&self.loaded);
        }
    }

    /// Makes room for a slot. Returns false if there is no memory for it.
    fn unload(&mut self) -> bool {
        swap(&mut self.loaded, &mut self.spare);
        if self.loaded.len() >= MAGAZINE {
            depot().put(&self.loaded);
            self.loaded.clear();
        }
        self.loaded.try_reserve_exact(MAGAZINE - self.loaded.len()).is_ok()
    }

    fn flush(&mut self) {
        if self.loaded.is_empty() && self.spare.is_empty() {
            return;
        }
        let mut depot = depot();
        depot.put(&self.loaded);
        depot.put(&self.spare);
        drop(depot);
        (self.loaded, self.spare) = (Magazine::new(), Magazine::new());
    }
}

/// Writes to each page that may come into use with these slots, before anybody reads there.
fn touch_pages(slots: &[u32]) {
    // The system maps a page that is read first to zeros that all processes share. At the first write it has to take
    // that mapping back from all processors, which costs the caller some 20 us.
    for first in slots.iter().filter(|slot| **slot as usize % PAGE == 0) {
        blocks::holder(*first).into_iter().for_each(|holder| holder.word.touch());
    }
}
