//! Where holders live, for all schedulers of the process.
//!
//! A handle is a slot number and a generation, nothing that is counted, so it may outlive its
//! task, its scheduler, and the slot's next thousand tasks. That needs memory in which a stale
//! handle can look without harm:
//!
//! ```text
//!   slot 0x000A_C0F3
//!        |-- block 0x15 ---> DIRECTORY[0x15] --> [ holder | holder | ... ]  32768 holders, 2 MiB
//!        '-- place 0x40F3 -----------------------------------^
//!
//!   free slots:   thread cache (two magazines of 128)  <-- magazines -->  depot
//! ```
//!
//! A thread takes and gives free slots from and to its own two magazines, without an atomic; a
//! whole magazine goes to or comes from the [`depot`](super::depot), under a lock that is held for
//! a microsecond. A magazine holds numbers, so neither way touches a holder that is not about to be
//! used.
//!
//! - M1 Every slot is in exactly one of: a holder that is in use, a thread's magazines, the depot,
//!   the hands of the [`trim`](super::trim)mer.
//! - M2 A block, once it is in the directory, stays for ever.
//! - M3 The trimmer gives back only pages of which it has all slots in hand. A stale handle that
//!   looks there finds the word of a holder that is free: as it was, or zero, which is no task's.
//! - M4 A holder whose word is zero goes on with a generation above all that its block had before.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::depot::{BLOCKS, MAGAZINE, Magazine, PAGE, block_of, depot, place_of};
use super::holder::{TaskHolder, Vacancy};
use super::pages;

/// How many tasks ahead of its use a holder is fetched. Slots come back in the order in which tasks
/// end, so the next one is most likely not in the cache.
const AHEAD: usize = 8;

/// All blocks there are.
static DIRECTORY: [AtomicPtr<TaskHolder>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// The highest generation that was given back with pages of each block; M4.
static GIVEN_BACK: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

/// Free slots at hand. `loaded` is used; `spare` is full or empty, and is changed for `loaded`
/// when that runs empty or full, so that taking and giving in turn never reaches the depot.
struct Magazines {
    loaded: Magazine,
    spare: Magazine,
}

struct Cache(RefCell<Magazines>);

thread_local! {
    static CACHE: Cache = const {
        Cache(RefCell::new(Magazines { loaded: Magazine::new(), spare: Magazine::new() }))
    };
}

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
        return; // A3: the generations of this slot are used up, and it rests for ever
    }
    let cached = CACHE.try_with(|cache| cache.0.borrow_mut().give(index));
    if cached.is_err() {
        depot().put(&[index]);
    }
}

/// Puts down what the calling thread has at hand.
pub(super) fn put_down() {
    let _ = CACHE.try_with(|cache| cache.0.borrow_mut().put_down());
}

/// The holder of a slot, which may be anybody's.
#[inline]
pub(super) fn holder(index: u32) -> Option<&'static TaskHolder> {
    let block = DIRECTORY[block_of(index)].load(Ordering::Acquire); // pairs with `add_block`
    // SAFETY: M2; the place is within the block, and zeros, or what was there before, are a holder.
    (!block.is_null()).then(|| unsafe { &*block.add(place_of(index)) })
}

/// The generation of the first task in a holder that was never used, or has gone back since; M4.
#[cold]
pub(super) fn first_generation(index: u32) -> u32 {
    // Relaxed: the slot came from the depot, whose lock was held after the last change.
    GIVEN_BACK[block_of(index)].load(Ordering::Relaxed) + 1
}

/// Asks for the holder of a slot ahead of its use.
#[inline]
pub(crate) fn prefetch(index: u32) {
    // Relaxed: nothing is read through the pointer.
    let block = DIRECTORY[block_of(index)].load(Ordering::Relaxed);
    crate::sync::prefetch(block.wrapping_add(place_of(index)));
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
        let mut depot = depot();
        depot.put(&self.loaded);
        depot.put(&self.spare);
        drop(depot);
        (self.loaded, self.spare) = (Magazine::new(), Magazine::new());
    }
}

/// Brings a block of holders that never held a task; false when the system has no memory.
pub(super) fn add_block(number: usize) -> bool {
    // A program with few timers has no use for a page of two megabytes. With a million of them, which
    // fire in no order of addresses, it saves a sixth of what a fire costs.
    let Some(block) = pages::block(number > 0) else { return false };
    // Release: the zeros are there before the block is.
    DIRECTORY[number].store(block.as_ptr().cast(), Ordering::Release);
    true
}

/// Gives the memory of these slots back to the system; the caller has all of them in hand. False
/// when it stays.
pub(super) fn discard(slots: Range<u32>) -> bool {
    let mut newest = 0;
    for slot in slots.clone() {
        let generation = holder(slot).map_or(u32::MAX, TaskHolder::next_generation);
        newest = newest.max(generation);
    }
    if newest > u32::MAX / 2 {
        return false; // one old slot must not make a whole block old
    }
    // Relaxed: see `first_generation`.
    GIVEN_BACK[block_of(slots.start)].fetch_max(newest, Ordering::Relaxed);
    let Some(first) = holder(slots.start) else { return false };
    let bytes = slots.len() * size_of::<TaskHolder>();
    debug_assert_eq!(slots.len() % PAGE, 0);
    // SAFETY: the slots are whole pages of one block. They are free, so nobody owns a body there
    // (H1), and who looks at a word copes with a zero (M3).
    unsafe { pages::discard(ptr::from_ref(first).cast_mut().cast(), bytes) }
}
