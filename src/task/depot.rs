//! The free slots that no thread has at hand, in whole magazines, and the places of the chunks.
//!
//! Everything here is behind one lock, which is taken once for 128 tasks and held for a few
//! instructions. What a chunk is made of, and who looks into one, is the business of
//! [`memory`](super::memory); its invariants are the ones that are cited here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::memory;
use super::state::FreedWord;

/// How many holders a chunk has.
pub(super) const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;

/// How many slots there can be in all: 268 million, so that an index leaves four bits free.
const SLOT_BITS: u32 = 28;
pub(super) const CHUNKS: usize = 1 << (SLOT_BITS - CHUNK_BITS);

/// How many free slots a magazine holds.
pub(super) const MAGAZINE: usize = 128;

pub(super) type Magazine = Vec<FreeSlot>;

/// A slot that nobody uses: its number, its next generation, and its past outcomes.
#[derive(Clone, Copy)]
pub(crate) struct FreeSlot {
    /// The number in the low 28 bits, the outcomes in the high four.
    index_and_past: u32,
    pub(crate) generation: u32,
}

impl FreeSlot {
    pub(super) fn new(index: u32, freed: FreedWord) -> FreeSlot {
        let past = u32::from(freed.past) << SLOT_BITS;
        FreeSlot { index_and_past: index | past, generation: freed.generation }
    }

    pub(crate) fn index(self) -> u32 {
        self.index_and_past & ((1 << SLOT_BITS) - 1)
    }

    pub(crate) fn past(self) -> u8 {
        (self.index_and_past >> SLOT_BITS) as u8
    }

    pub(super) fn chunk(self) -> usize {
        chunk_of(self.index())
    }
}

pub(super) fn chunk_of(index: u32) -> usize {
    (index >> CHUNK_BITS) as usize
}

pub(super) fn place_of(index: u32) -> usize {
    index as usize & (CHUNK - 1)
}

/// What all threads share: full magazines, and the chunks that are still to be cut up.
pub(super) struct Depot {
    full: Vec<Magazine>,
    empty: Vec<Magazine>,
    /// Free slots in `full`.
    free: usize,
    /// Slots of all chunks that there are.
    made: usize,
    /// Places in the directory whose chunk was taken away, with the first generation that may be
    /// used there; M4.
    vacant: Vec<(usize, u32)>,
    /// The first place in the directory that never had a chunk.
    untouched: usize,
    /// A chunk that is being cut up: the next slot, how many are left, and their generation.
    uncut: (u32, usize, u32),
    /// The least that `free` was since [`Depot::mark`]: what nobody has needed for that long.
    low: usize,
    /// How many free slots the last trim could not get rid of.
    pub(super) stuck: usize,
}

static DEPOT: Mutex<Depot> = Mutex::new(Depot {
    full: Vec::new(),
    empty: Vec::new(),
    free: 0,
    made: 0,
    vacant: Vec::new(),
    untouched: 0,
    uncut: (0, 0, 0),
    low: 0,
    stuck: 0,
});

pub(super) fn depot() -> MutexGuard<'static, Depot> {
    DEPOT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Below this many free slots (4 MiB) nothing is worth trimming.
const WORTH_TRIMMING: usize = 64 * 1024;

impl Depot {
    /// A full magazine for an empty one, or an empty one still when no slot is left.
    pub(super) fn full_for(&mut self, empty: Magazine) -> Magazine {
        if let Some(full) = self.full.pop() {
            self.took(full.len());
            if empty.capacity() != 0 {
                self.empty.push(empty);
            }
            return full;
        }
        let mut fresh = empty;
        fresh.reserve_exact(MAGAZINE);
        while fresh.len() < MAGAZINE {
            match self.cut() {
                Some(slot) => fresh.push(slot),
                None => break,
            }
        }
        fresh.reverse(); // so that they are used in the order of their addresses
        fresh
    }

    /// An empty magazine for a full one.
    pub(super) fn empty_for(&mut self, full: Magazine) -> Magazine {
        self.put(full);
        self.empty.pop().unwrap_or_else(|| Magazine::with_capacity(MAGAZINE))
    }

    /// Takes in free slots, however many.
    pub(super) fn put(&mut self, slots: Magazine) {
        if !slots.is_empty() {
            self.free += slots.len();
            self.full.push(slots);
        }
    }

    /// One slot, for a thread without a cache.
    pub(super) fn take_one(&mut self) -> Option<FreeSlot> {
        while let Some(last) = self.full.last_mut() {
            if let Some(slot) = last.pop() {
                self.took(1);
                return Some(slot);
            }
            self.full.pop();
        }
        self.cut()
    }

    /// Some of the free slots, for the trimmer.
    pub(super) fn give_up(&mut self) -> Option<Magazine> {
        let magazine = self.full.pop()?;
        self.took(magazine.len());
        Some(magazine)
    }

    fn took(&mut self, slots: usize) {
        self.free -= slots;
        self.low = self.low.min(self.free);
    }

    /// Begins to watch how much stays free.
    pub(super) fn mark(&mut self) {
        self.low = self.free;
    }

    /// Whether so much is free that it may be worth giving back.
    pub(super) fn is_bloated(&self) -> bool {
        self.is_too_much(self.free)
    }

    /// Whether so much has stayed free since [`Depot::mark`].
    pub(super) fn stayed_bloated(&self) -> bool {
        self.is_too_much(self.low)
    }

    /// More than is in use, and twice what the last trim could not get rid of.
    fn is_too_much(&self, free: usize) -> bool {
        let in_use = self.made - self.free;
        free > in_use.max(WORTH_TRIMMING) && free > 2 * self.stuck
    }

    /// Free slots at present.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// A slot that has never been used since its chunk came.
    fn cut(&mut self) -> Option<FreeSlot> {
        if self.uncut.1 == 0 {
            self.uncut = self.carve()?;
        }
        let (index, left, generation) = self.uncut;
        self.uncut = (index + 1, left - 1, generation);
        Some(FreeSlot::new(index, FreedWord { generation, past: 0 }))
    }

    /// Brings a new chunk; `None` when the directory is full.
    fn carve(&mut self) -> Option<(u32, usize, u32)> {
        let (chunk, generation) = match self.vacant.pop() {
            Some(vacant) => vacant,
            None if self.untouched < CHUNKS => {
                self.untouched += 1;
                (self.untouched - 1, 1)
            }
            None => return None,
        };
        memory::place_chunk(chunk);
        self.made += CHUNK;
        Some((u32::try_from(chunk).ok()? << CHUNK_BITS, CHUNK, generation))
    }

    /// The trimmer has taken this chunk away.
    pub(super) fn lost(&mut self, chunk: usize, next_generation: u32) {
        self.made -= CHUNK;
        if next_generation != u32::MAX {
            self.vacant.push((chunk, next_generation));
        }
    }
}
