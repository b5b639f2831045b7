//! Where holders lie, for all schedulers of the process.
//!
//! A handle is a slot number and a generation, nothing that is counted, so it may outlive its
//! task, its scheduler, and the slot's next thousand tasks. That needs memory in which a stale
//! handle can look without harm:
//!
//! ```text
//!   slot 0x000A_C0F3
//!        |-- block 0x15 ---> BLOCKS_THERE[0x15] --> [ holder | holder | ... ]  32768 holders, 2 MiB
//!        '-- place 0x40F3 --------------------------------------^
//! ```
//!
//! - M2 A block, once it is in the directory, stays for ever.
//! - M3 Pages are given back only by who has all their slots in hand. A stale handle that looks
//!   there finds the word of a holder that is free: as it was, or zero, which is no task's.
//! - M4 A holder whose word is zero goes on with a generation above all that its block had before.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::depot::block_of;
use super::holder::TaskHolder;

#[cfg(not(all(test, loom)))]
pub(crate) use self::blocks::prefetch;
#[cfg(not(all(test, loom)))]
pub(super) use self::blocks::{add_block, add_block_ahead, holder};
#[cfg(not(all(test, loom)))]
use self::blocks::{given_back, wipe};
#[cfg(all(test, loom))]
pub(crate) use crate::models::blocks::{add_block, add_block_ahead, holder, prefetch};
#[cfg(all(test, loom))]
use crate::models::blocks::{given_back, wipe};

/// The generation of the first task in a holder that was never used, or has gone back since; M4.
#[cold]
pub(super) fn first_generation(slot: u32) -> u32 {
    // Relaxed: the slot came from the depot, whose lock was held after the last change.
    given_back(block_of(slot)).load(Ordering::Relaxed) + 1
}

/// Gives the memory of these slots back to the system; the caller has all of them in hand. False
/// when it stays.
pub(crate) fn discard(slots: Range<u32>) -> bool {
    let mut newest = 0;
    for slot in slots.clone() {
        let generation = holder(slot).map_or(u32::MAX, TaskHolder::next_generation);
        newest = newest.max(generation);
    }
    if newest > u32::MAX / 2 {
        return false; // one old slot must not make a whole block old
    }
    // Relaxed: see `first_generation`.
    given_back(block_of(slots.start)).fetch_max(newest, Ordering::Relaxed);
    wipe(slots)
}

#[cfg(not(all(test, loom)))]
mod blocks {
    use std::ops::Range;
    use std::ptr::{self, NonNull};
    use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    use super::super::depot::{BLOCKS, PAGE, block_of, place_of};
    use super::super::holder::TaskHolder;
    use super::super::pages;

    /// All blocks there are.
    static BLOCKS_THERE: [AtomicPtr<TaskHolder>; BLOCKS] =
        [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

    /// The highest generation that was given back with pages of each block; M4.
    static GIVEN_BACK: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

    /// The holder of a slot, which may be anybody's.
    #[inline]
    pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
        // Relaxed: who has a number has it, by way of the depot's lock, from who added the block.
        let block = BLOCKS_THERE[block_of(slot)].load(Ordering::Relaxed);
        // SAFETY: M2; the place is within the block, and zeros, or what was there before, are a
        // holder.
        (!block.is_null()).then(|| unsafe { &*block.add(place_of(slot)) })
    }

    /// Asks for the holder of a slot ahead of its use.
    #[inline]
    pub(crate) fn prefetch(slot: u32) {
        // Relaxed: nothing is read through the pointer.
        let block = BLOCKS_THERE[block_of(slot)].load(Ordering::Relaxed);
        crate::sync::prefetch(block.wrapping_add(place_of(slot)));
    }

    /// Brings a block of holders that never held a task; false when the system has no memory. The
    /// depot's lock is held, so it touches nothing of it.
    pub(crate) fn add_block(number: usize) -> bool {
        install(number, pages::block(false))
    }

    /// Brings a block that nobody will use before the caller says so under the depot's lock, and touches it. It is one
    /// large page, if the system has one: with a million timers, which fire in no order of addresses, that saves a sixth
    /// of what a fire costs.
    pub(crate) fn add_block_ahead(number: usize) -> bool {
        install(number, pages::block(true))
    }

    fn install(number: usize, block: Option<NonNull<u8>>) -> bool {
        let Some(block) = block else { return false };
        BLOCKS_THERE[number].store(block.as_ptr().cast(), Ordering::Relaxed); // see `holder`
        true
    }

    pub(super) fn given_back(block: usize) -> &'static AtomicU32 {
        &GIVEN_BACK[block]
    }

    /// The caller has all of these slots in hand, which are whole pages of one block.
    pub(super) fn wipe(slots: Range<u32>) -> bool {
        let Some(first) = holder(slots.start) else { return false };
        let bytes = slots.len() * size_of::<TaskHolder>();
        debug_assert_eq!(slots.len() % PAGE, 0);
        // SAFETY: whole pages of one block. The slots are free, so nobody owns a body there (H1), and
        // who looks at a word copes with a zero (M3).
        unsafe { pages::discard(ptr::from_ref(first).cast_mut().cast(), bytes) }
    }
}
