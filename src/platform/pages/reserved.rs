//! Blocks out of mappings that are reserved many at a time, for systems whose pages can go back.

use std::ptr::{self, NonNull};
use std::sync::Mutex;

use super::{ANNEX_BYTES, BLOCK_BYTES, Mapped, PAGE_BYTES, system};
use crate::platform::sync::lock_std;

/// How many blocks are reserved at a time. Addresses cost little, and a caller that adds a block itself then
/// seldom waits for the system.
const RESERVED: usize = 16;

/// The blocks that are reserved and not used yet: the address of the first, that of its annex, and how many.
struct Reserved {
    next: usize,
    annex: usize,
    left: usize,
}

static RESERVE: Mutex<Reserved> = Mutex::new(Reserved { next: 0, annex: 0, left: 0 });

/// Returns a block of zeroed memory that stays mapped, and its annex, or `None` if the system has none. The system gives
/// each page when it is first touched. If `is_ahead`, all of the block is touched here.
pub(crate) fn block(is_ahead: bool) -> Option<Mapped> {
    let (block, annex) = take_reserved()?;
    if is_ahead {
        // A write to each page. A system call that does the same would hold a lock of the system all the time, for
        // which other threads wait that only want a little memory.
        for page in (0..BLOCK_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: a fresh mapping of that size, zeroed, which no other code knows of yet.
            unsafe { block.add(page).write_volatile(0) };
        }
    }
    Some((NonNull::new(block)?, NonNull::new(annex)?))
}

fn take_reserved() -> Option<(*mut u8, *mut u8)> {
    let mut reserve = lock_std(&RESERVE);
    if reserve.left == 0 {
        // A process with few addresses left may still have room for one block.
        *reserve = [RESERVED, 1].into_iter().find_map(reserve_blocks)?;
    }
    let Reserved { next, annex, left } = *reserve;
    let place = ptr::with_exposed_provenance_mut;
    // SAFETY: both are reserved, of these sizes, and no other code knows of them yet.
    let is_there = unsafe {
        system::commit(place(next), BLOCK_BYTES) && system::commit(place(annex), ANNEX_BYTES)
    };
    if !is_there {
        return None; // they stay reserved, for the next attempt
    }
    let after = (next + BLOCK_BYTES, annex + ANNEX_BYTES);
    *reserve = Reserved { next: after.0, annex: after.1, left: left - 1 };
    Some((place(next), place(annex)))
}

fn reserve_blocks(count: usize) -> Option<Reserved> {
    let next = system::map(count * (BLOCK_BYTES + ANNEX_BYTES))?.expose_provenance();
    Some(Reserved { next, annex: next + count * BLOCK_BYTES, left: count }) // the annexes lie behind the blocks
}
