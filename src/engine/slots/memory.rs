//! The free slots that a thread has at hand.
//!
//! ```text
//!   thread:  loaded [ 7 6 5 4 ]  spare [ ]   <-- magazines -->   depot: all the others
//! ```
//!
//! A thread takes and gives free slots from and to its own two magazines, without an atomic; a
//! whole magazine goes to or comes from the [`depot`](super::depot), under a lock that is held for
//! a microsecond. A magazine holds numbers, so neither way touches a holder that is not about to be
//! used.
//!
//! - SLOT-1 Every slot is in exactly one of: a holder that is in use, a thread's magazines, the depot,
//!   the hands of the [`trim`](super::trim)mer.

use std::cell::RefCell;

use super::depot::{Magazine, PAGE, depot};
use super::directory::{holder, prefetch};
use super::holder::{TaskHolder, Vacancy};
use crate::platform::sync::{MAGAZINE, local};

/// How many tasks ahead of its use a holder is fetched. Slots come back in the order in which tasks
/// end, so the next one is most likely not in the cache.
const AHEAD: usize = 8;

/// Free slots at hand. `loaded` is used; `spare` is full or empty, and is changed for `loaded`
/// when that runs empty or full, so that taking and giving in turn never reaches the depot.
struct Magazines {
    loaded: Magazine,
    spare: Magazine,
}

struct Cache(RefCell<Magazines>);

local!(
    CACHE: Cache =
        Cache(RefCell::new(Magazines { loaded: Magazine::new(), spare: Magazine::new() }))
);

impl Drop for Cache {
    fn drop(&mut self) {
        self.0.get_mut().put_down();
    }
}

/// Takes a free slot; `None` when there is no memory, or 268 million tasks are pending.
#[inline]
pub(crate) fn vacancy() -> Option<Vacancy> {
    let cached = CACHE.try_with(|cache| cache.0.borrow_mut().take());
    let index = cached.unwrap_or_else(|_| depot().take_one())?;
    holder(index).map(|holder| Vacancy::new(index, holder))
}

/// Gives a slot back whose task is over; the next one there will have this generation.
#[inline]
pub(super) fn free(index: u32, generation: u32) {
    if generation == u32::MAX {
        return; // WORD-3: the generations of this slot are used up, and it rests for ever
    }
    let cached = CACHE.try_with(|cache| cache.0.borrow_mut().give(index));
    if cached.is_err() {
        depot().put(&[index]);
    }
}

/// Puts down what the calling thread has at hand.
pub(crate) fn put_down() {
    let _ = CACHE.try_with(|cache| cache.0.borrow_mut().put_down());
}

/// Writes to each page that may come into use with these slots, before anybody reads there. The system shows a page that
/// is read first as zeros that all share; with the first write it has to take that back from all processors, which costs
/// the caller some 20 us.
fn touch_pages(slots: &[u32]) {
    for first in slots.iter().filter(|slot| **slot as usize % PAGE == 0) {
        holder(*first).into_iter().for_each(TaskHolder::touch);
    }
}

impl Magazines {
    #[inline]
    fn take(&mut self) -> Option<u32> {
        if self.loaded.is_empty() {
            self.load();
        }
        let slot = self.loaded.pop()?;
        if let Some(soon) = self.loaded.iter().nth_back(AHEAD) {
            prefetch(*soon);
        }
        Some(slot)
    }

    #[inline]
    fn give(&mut self, slot: u32) {
        if self.loaded.len() == self.loaded.capacity() {
            self.unload();
        }
        self.loaded.push(slot);
    }

    #[cold]
    fn load(&mut self) {
        std::mem::swap(&mut self.loaded, &mut self.spare);
        if self.loaded.is_empty() {
            self.loaded.reserve_exact(MAGAZINE);
            depot().take(&mut self.loaded);
            touch_pages(&self.loaded);
        }
    }

    #[cold]
    fn unload(&mut self) {
        std::mem::swap(&mut self.loaded, &mut self.spare);
        self.loaded.reserve_exact(MAGAZINE - self.loaded.len().min(MAGAZINE));
        if self.loaded.len() >= MAGAZINE {
            depot().put(&self.loaded);
            self.loaded.clear();
        }
    }

    fn put_down(&mut self) {
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
