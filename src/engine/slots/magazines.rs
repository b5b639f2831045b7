//! The free slots that each thread has at hand.
//!
//! ```text
//!   thread:  [ 7 6 5 4 ], room for two magazines   <-- magazines -->   depot: all other free slots
//! ```
//!
//! A thread takes free slots from a list of its own and gives them back there, without an atomic. Whole magazines
//! go to the [`depot`](super::depot) and come from there, under a lock that is held for a microsecond. A list holds
//! numbers, so neither way touches a holder that is not about to be used.
//!
//! - SLOT-1 Every slot is in exactly one of these places: a holder that is in use, a thread's magazines, the depot,
//!   the hands of the [`trim`](super::trim)mer.

use std::cell::RefCell;

use super::blocks;
use super::depot::depot;
use crate::platform::sync::{MAGAZINE, thread_local};

/// How many tasks ahead of its use a holder is fetched into the cache.
const AHEAD: usize = 8;

/// With room for two magazines, a thread that takes and gives in turn never needs the depot.
const ROOM: usize = 2 * MAGAZINE;

/// The free slots of this thread. The one that was given back last is taken first.
struct Free(Vec<u32>);

thread_local!(static CACHE: RefCell<Free> = const { RefCell::new(Free(Vec::new())) });

impl Drop for Free {
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

impl Free {
    #[inline]
    fn take(&mut self) -> Option<u32> {
        if self.0.is_empty() {
            self.load();
        }
        let slot = self.0.pop()?;
        // Slots come back in the order in which tasks end, so the next one is most likely not in the cache.
        if let Some(soon) = self.0.iter().nth_back(AHEAD) {
            blocks::prefetch(*soon);
        }
        Some(slot)
    }

    #[inline]
    fn give(&mut self, slot: u32) {
        if self.0.len() == self.0.capacity() {
            return self.give_when_full(slot);
        }
        // A look at a few: the depot looks at each slot that reaches it.
        debug_assert!(!self.0.iter().rev().take(AHEAD).any(|free| *free == slot), "SLOT-1");
        self.0.push(slot);
    }

    #[cold]
    fn give_when_full(&mut self, slot: u32) {
        if self.0.len() >= ROOM {
            depot().put(&self.0[..MAGAZINE]);
            self.0.drain(..MAGAZINE);
        }
        if self.has_room() {
            self.0.push(slot);
        } else {
            depot().put(&[slot]);
        }
    }

    #[cold]
    fn load(&mut self) {
        // Without memory for the list there is no slot, and the caller is refused.
        if self.has_room() {
            depot().take(&mut self.0);
        }
    }

    /// Makes room for two magazines. Returns false if there is no memory for it.
    fn has_room(&mut self) -> bool {
        self.0.try_reserve_exact(ROOM.saturating_sub(self.0.len())).is_ok()
    }

    fn flush(&mut self) {
        if !self.0.is_empty() {
            depot().put(&std::mem::take(&mut self.0));
        }
    }
}
