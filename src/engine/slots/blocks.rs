//! The memory of the holders, for all schedulers of the process: a directory of blocks, which are never unmapped.
//!
//! A handle is a slot number and the birth of a task. Nothing counts handles, so a handle may outlive its task, its
//! scheduler, and the next thousand tasks of the slot. Therefore a stale handle must always find memory where it looks:
//!
//! ```text
//!   slot 0x000A_C0F3
//!        |-- block 0x15 ---> DIRECTORY[0x15] --> [ holder | holder | ... ]  32768 holders, 2 MiB
//!        '-- index 0x40F3 ------------------------------------^
//! ```
//!
//! Each block has an annex, with 24 bytes more for each holder that few tasks need: see [`Annex`].
//!
//! - SLOT-2 A block that is in the directory stays there, mapped, for ever. All zeros are a free holder.
//! - SLOT-3 Pages go back to the system only by a caller that has all their slots in hand. A stale handle that looks
//!   there finds the word of a free holder, as it was or zero. Zero is the word of no task.
//! - SLOT-4 The first task in a holder whose word is zero gets a number above all that went back with pages of its
//!   block. So no stale entry of before is taken for its own.
//!
//! In a loom model, `tests/models/blocks.rs` stands in for this file.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::holder::{Annex, BLOCK_BITS, BLOCKS, PAGE, TaskHolder, index_of};
use crate::platform::{cpu, pages};

static DIRECTORY: [AtomicPtr<TaskHolder>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

static ANNEXES: [AtomicPtr<Annex>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

const _: () = assert!(pages::ANNEX_BYTES == size_of::<Annex>() << BLOCK_BITS);

/// The highest number that went back to the system with pages of each block (SLOT-4).
static GIVEN_BACK: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

/// Returns the holder of a slot, whichever task lives there. `None` if there is no such slot yet.
#[inline]
pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
    // Relaxed: a slot number reaches this thread through the depot's lock, so the block is visible here.
    let block = DIRECTORY[block_of(slot)].load(Ordering::Relaxed);
    // SAFETY: the index is within the block, which stays, and zeros are a free holder (SLOT-2).
    (!block.is_null()).then(|| unsafe { &*block.add(index_of(slot)) })
}

/// Returns what belongs to the holder of a slot and seldom is needed. `None` if there is no such slot yet.
#[inline]
pub(crate) fn annex(slot: u32) -> Option<&'static Annex> {
    // Relaxed: as in `holder`.
    let annexes = ANNEXES[block_of(slot)].load(Ordering::Relaxed);
    // SAFETY: the index is within the annex, which stays like its block (SLOT-2). Zeros are an annex.
    (!annexes.is_null()).then(|| unsafe { &*annexes.add(index_of(slot)) })
}

/// Fetches the holder of a slot into the cache ahead of its use.
#[inline]
pub(crate) fn prefetch(slot: u32) {
    // Relaxed: nothing is read through the pointer.
    // A wrong address would do no harm, so nothing is checked: the processor ignores a fetch of what is not mapped.
    let block = DIRECTORY[block_of(slot)].load(Ordering::Relaxed);
    cpu::prefetch(block.wrapping_add(index_of(slot)));
}

/// A `Block` is memory for holders that never held a task, and for their annex. `map` gets one from the system.
pub(crate) use crate::platform::pages::{Mapped as Block, block as map};

/// Puts a block into the directory, where it stays (SLOT-2).
pub(crate) fn publish(number: usize, (block, annex): Block) {
    ANNEXES[number].store(annex.as_ptr().cast(), Ordering::Relaxed); // as in `holder`
    let before = DIRECTORY[number].swap(block.as_ptr().cast(), Ordering::Relaxed); // as in `holder`
    debug_assert!(before.is_null(), "a block stays (SLOT-2)");
}

/// Returns the highest number that went back with pages of the block of a slot (SLOT-4).
pub(crate) fn given_back(slot: u32) -> &'static AtomicU32 {
    &GIVEN_BACK[block_of(slot)]
}

/// Gives the pages of these slots back to the system. Returns false if they stay. The caller has all of the slots in
/// hand, and they are whole pages of one block.
pub(crate) fn discard(slots: Range<u32>) -> bool {
    let Some(first) = holder(slots.start) else { return false };
    let bytes = slots.len() * size_of::<TaskHolder>();
    debug_assert_eq!((slots.start as usize % PAGE, slots.len() % PAGE), (0, 0), "whole pages");
    debug_assert_eq!(block_of(slots.start), block_of(slots.end - 1), "of one block");
    // SAFETY: whole pages of one block. The slots are free, so there is no body (HOLDER-1), and a thread that loads a
    // word there copes with a zero (SLOT-3).
    let is_given = unsafe { pages::discard(ptr::from_ref(first).cast_mut().cast(), bytes) };
    if is_given {
        discard_annex(slots);
    }
    is_given
}

/// Gives those pages of the annex back that belong to these slots alone.
fn discard_annex(slots: Range<u32>) {
    let (page, size) = (pages::page_bytes(), size_of::<Annex>());
    let first = index_of(slots.start) * size;
    let (from, to) = (first.next_multiple_of(page), (first + slots.len() * size) / page * page);
    let annexes = ANNEXES[block_of(slots.start)].load(Ordering::Relaxed); // as in `holder`
    if from < to {
        // SAFETY: whole pages of one annex. The slots are free, so there are no executors in it, and zeros are an
        // annex: the next task in each slot writes there before it reads.
        unsafe { pages::discard(annexes.cast::<u8>().wrapping_add(from), to - from) };
    }
}

/// Returns the number of the block of a slot.
pub(super) fn block_of(slot: u32) -> usize {
    (slot >> BLOCK_BITS) as usize & (BLOCKS - 1)
}
