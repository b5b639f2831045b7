//! The blocks in which holders lie, and the system's memory under them. In a loom model, `tests/models/blocks.rs` stands in
//! for this file. The invariants are in [`directory`](super::directory).

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::depot::{BLOCKS, PAGE, block_of, place_of};
use super::holder::TaskHolder;
use crate::platform::pages;

/// All blocks there are.
static BLOCKS_THERE: [AtomicPtr<TaskHolder>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// The highest generation that was given back with pages of each block; SLOT-4.
static GIVEN_BACK: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

/// The holder of a slot, which may be anybody's.
#[inline]
pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
    // Relaxed: who has a number has it, by way of the depot's lock, from who added the block.
    let block = BLOCKS_THERE[block_of(slot)].load(Ordering::Relaxed);
    // SAFETY: SLOT-2; the place is within the block, and zeros, or what was there before, are a
    // holder.
    (!block.is_null()).then(|| unsafe { &*block.add(place_of(slot)) })
}

/// Asks for the holder of a slot ahead of its use.
#[inline]
pub(crate) fn prefetch(slot: u32) {
    // Relaxed: nothing is read through the pointer.
    let block = BLOCKS_THERE[block_of(slot)].load(Ordering::Relaxed);
    crate::platform::cpu::prefetch(block.wrapping_add(place_of(slot)));
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

pub(crate) fn given_back(block: usize) -> &'static AtomicU32 {
    &GIVEN_BACK[block]
}

/// The caller has all of these slots in hand, which are whole pages of one block.
pub(crate) fn wipe(slots: Range<u32>) -> bool {
    let Some(first) = holder(slots.start) else { return false };
    let bytes = slots.len() * size_of::<TaskHolder>();
    debug_assert_eq!(slots.len() % PAGE, 0);
    // SAFETY: whole pages of one block. The slots are free, so nobody owns a body there (HOLDER-1), and
    // who looks at a word copes with a zero (SLOT-3).
    unsafe { pages::discard(ptr::from_ref(first).cast_mut().cast(), bytes) }
}
