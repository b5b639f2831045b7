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
//! Behind each block lies its annex, with 24 bytes more for each holder that few tasks need: see [`Annex`].
//!
//! - SLOT-2 A block that is in the directory stays there, mapped, for ever. All zeros are a free holder.
//! - SLOT-3 Pages go back to the system only by a caller that has all their slots in hand. A stale handle that looks
//!   there finds the word of a free holder, as it was or zero. Zero is the word of no task.
//! - SLOT-4 The first task in a holder whose word is zero gets a number above all that went back with pages of its
//!   block. So no stale entry of before is taken for its own.
//!
//! In a loom model, `tests/models/blocks.rs` stands in for this file.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::holder::{Annex, BLOCK_BITS, BLOCKS, PAGE, TaskHolder, index_of};
use crate::platform::{cpu, pages};

/// A block of holders, and its annex.
#[repr(C)]
struct Memory {
    holders: [TaskHolder; 1 << BLOCK_BITS],
    annexes: [Annex; 1 << BLOCK_BITS],
}

static DIRECTORY: [AtomicPtr<Memory>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

const _: () = assert!(size_of::<Memory>() == pages::BLOCK_BYTES + pages::ANNEX_BYTES);

/// The highest number that went back to the system with pages of each block (SLOT-4).
static GIVEN_BACK: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

#[inline]
fn memory(slot: u32) -> Option<&'static Memory> {
    // Relaxed: a slot number reaches this thread through the depot's lock, so the block is visible here.
    let memory = DIRECTORY[block_of(slot)].load(Ordering::Relaxed);
    // SAFETY: a block stays, and its zeros are free holders and annexes (SLOT-2).
    unsafe { memory.as_ref() }
}

/// Returns the holder of a slot, whichever task lives there. `None` if there is no such slot yet.
#[inline]
pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
    memory(slot).map(|memory| &memory.holders[index_of(slot)])
}

/// Returns what belongs to the holder of a slot and seldom is needed. `None` if there is no such slot yet.
#[inline]
pub(crate) fn annex(slot: u32) -> Option<&'static Annex> {
    memory(slot).map(|memory| &memory.annexes[index_of(slot)])
}

/// Fetches the holder of a slot into the cache ahead of its use.
#[inline]
pub(crate) fn prefetch(slot: u32) {
    // Relaxed: nothing is read through the pointer.
    // A wrong address would do no harm, so nothing is checked: the processor ignores a fetch of what is not mapped.
    let holders = DIRECTORY[block_of(slot)].load(Ordering::Relaxed).cast::<TaskHolder>();
    cpu::prefetch(holders.wrapping_add(index_of(slot)));
}

/// Memory for holders that never held a task, with their annex behind it. [`map`] gets it from the system.
pub(crate) type Block = NonNull<u8>;

pub(crate) use pages::block as map;

/// Puts a block into the directory, where it stays (SLOT-2).
pub(crate) fn publish(number: usize, block: Block) {
    let before = DIRECTORY[number].swap(block.as_ptr().cast(), Ordering::Relaxed); // as in `memory`
    debug_assert!(before.is_null(), "a block stays (SLOT-2)");
}

/// Returns the highest number that went back with pages of the block of a slot (SLOT-4).
pub(crate) fn given_back(slot: u32) -> &'static AtomicU32 {
    &GIVEN_BACK[block_of(slot)]
}

/// Gives the pages of these slots back to the system. Returns false if they stay. The caller has all of the slots in
/// hand, and they are whole pages of one block.
pub(crate) fn discard(slots: Range<u32>) -> bool {
    let (Some(memory), first) = (memory(slots.start), index_of(slots.start)) else { return false };
    debug_assert_eq!((first % PAGE, slots.len() % PAGE), (0, 0), "whole pages");
    let holders = &memory.holders[first..first + slots.len()];
    // SAFETY: whole pages of one block. The slots are free, so there is no body (HOLDER-1), and a thread that loads a
    // word there copes with a zero (SLOT-3).
    let is_given =
        unsafe { pages::discard(ptr::from_ref(holders).cast_mut().cast(), size_of_val(holders)) };
    // Those pages of the annex too that belong to these slots alone.
    let (page, size) = (pages::page_bytes(), size_of::<Annex>());
    let from = (first * size).next_multiple_of(page);
    let to = (first + slots.len()) * size / page * page;
    if is_given && from < to {
        let annexes = ptr::from_ref(&memory.annexes).cast_mut().cast::<u8>();
        // SAFETY: whole pages of one annex. The slots are free, so there are no executors in it, and zeros are an
        // annex: the next task in each slot writes there before it reads.
        unsafe { pages::discard(annexes.wrapping_add(from), to - from) };
    }
    is_given
}

/// Returns the number of the block of a slot.
pub(super) fn block_of(slot: u32) -> usize {
    (slot >> BLOCK_BITS) as usize & (BLOCKS - 1)
}
