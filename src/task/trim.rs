//! How memory goes back to the allocator after a peak.
//!
//! Free slots lie in the depot in the order in which tasks ended, so the slots of one chunk are
//! scattered. The trimmer takes magazines out of the depot and sorts their slots by chunk; a chunk
//! whose slots have all turned up is taken away. In the end what is left goes back to the depot.
//!
//! Who pays: the tick thread of any scheduler, in slices of [`SLICE`] magazines, and only when it
//! has nothing else to do. The depot says when it is worth it: when more slots are free than in
//! use, and have been for the [`GRACE`] period. One trim goes on at a time.
//!
//! A chunk with a single slot in use, or in some thread's magazine, stays.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::depot::{CHUNK, FreeSlot, depot};
use super::memory;

/// How many magazines one slice of work sorts: about 50 microseconds.
const SLICE: usize = 32;

/// How long memory must have stayed free before it goes back. A program whose tasks come in waves
/// would otherwise give it back and fetch it again with each wave.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A trim under way.
struct Trimmer {
    chunks: Option<HashMap<usize, Vec<FreeSlot>>>,
}

static TRIMMER: Mutex<Trimmer> = Mutex::new(Trimmer { chunks: None });

/// Whether it is worth coming back after the grace period, and begins to watch what stays free.
pub(crate) fn watch() -> bool {
    let mut free = depot();
    let bloated = free.is_bloated();
    if bloated {
        free.mark();
    }
    bloated
}

/// Begins a trim, if as much has stayed free since `watch`.
pub(crate) fn begin() -> bool {
    if !depot().stayed_bloated() {
        return false;
    }
    if let Some(mut trimmer) = trimmer() {
        trimmer.chunks.get_or_insert_default();
    }
    true
}

/// Does a slice of the trim that is under way. True when there is more to do.
pub(crate) fn slice() -> bool {
    trimmer().is_some_and(|mut trimmer| trimmer.chunks.is_some() && trimmer.sort_some())
}

/// `None` when another tick thread is at it.
fn trimmer() -> Option<MutexGuard<'static, Trimmer>> {
    match TRIMMER.try_lock() {
        Ok(trimmer) => Some(trimmer),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Trimmer {
    fn sort_some(&mut self) -> bool {
        let chunks = self.chunks.get_or_insert_default();
        for _ in 0..SLICE {
            let magazine = depot().give_up();
            let Some(magazine) = magazine else {
                self.finish();
                return false;
            };
            for slot in magazine {
                sort(chunks, slot);
            }
        }
        true
    }

    /// Gives back what could not be taken away.
    fn finish(&mut self) {
        let chunks = self.chunks.take().unwrap_or_default();
        let mut free = depot();
        for slots in chunks.into_values() {
            free.put(slots);
        }
        free.stuck = free.free();
    }
}

/// Puts a slot to those of its chunk, and takes the chunk away when it was the last.
fn sort(chunks: &mut HashMap<usize, Vec<FreeSlot>>, slot: FreeSlot) {
    let chunk = slot.chunk();
    let slots = chunks.entry(chunk).or_default();
    slots.push(slot);
    if slots.len() == CHUNK && memory::remove_chunk(chunk) {
        let newest = slots.iter().map(|slot| slot.generation).max().unwrap_or(1);
        chunks.remove(&chunk);
        depot().lost(chunk, newest);
    }
}
