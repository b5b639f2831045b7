//! Memory that is never unmapped, and whose pages can still go back to the system.
//!
//! Holders lie in **blocks** of two megabytes that stay in the address space for ever, so a stale
//! handle can always read there. Each block has an **annex** of three eighths of that behind it, for what few tasks need, whose pages
//! come when they are first touched. [`discard`] gives the pages behind the addresses back to the system. Until they are
//! written again, they read as zeros or as before, as the system decides. Each kind of system has a file with the same
//! functions.

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "models have no pages"))]

use std::ptr::NonNull;

/// The size of a block.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// The size of the annex of a block.
pub(crate) const ANNEX_BYTES: usize = BLOCK_BYTES / 64 * 24;

/// The unit in which pages are counted: the smallest page that a system has.
pub(crate) const PAGE_BYTES: usize = 4096;

#[cfg_attr(all(windows, not(any(miri, loom))), path = "windows.rs")]
#[cfg_attr(all(unix, not(any(miri, loom))), path = "unix.rs")]
#[cfg_attr(any(miri, loom, not(any(unix, windows))), path = "plain.rs")]
mod system;

pub(crate) use system::{discard, page_bytes};

/// Returns a block of zeroed memory that stays mapped, with its annex behind it, or `None` if the system has none. The system gives
/// each page when it is first touched. If `is_ahead`, all of the block is touched here.
pub(crate) fn block(is_ahead: bool) -> Option<NonNull<u8>> {
    let block = NonNull::new(system::map(BLOCK_BYTES + ANNEX_BYTES)?)?;
    if is_ahead {
        // A write to each page. A system call that does the same would hold a lock of the system all the time, for
        // which other threads wait that only want a little memory.
        for page in (0..BLOCK_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: a fresh mapping of more than that size, zeroed, which no other code knows of yet.
            unsafe { block.add(page).write_volatile(0) };
        }
    }
    Some(block)
}
