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
//! - SLOT-2 A block, once it is in the directory, stays for ever.
//! - SLOT-3 Pages are given back only by who has all their slots in hand. A stale handle that looks
//!   there finds the word of a holder that is free: as it was, or zero, which is no task's.
//! - SLOT-4 A holder whose word is zero goes on with a generation above all that its block had before.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::depot::block_of;
use super::holder::TaskHolder;

pub(crate) use super::blocks::prefetch;
pub(super) use super::blocks::{add_block, add_block_ahead, holder};
use super::blocks::{given_back, wipe};

/// The generation of the first task in a holder that was never used, or has gone back since; SLOT-4.
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
