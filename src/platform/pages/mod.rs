//! Memory that is never unmapped, and whose pages can still go back to the system.
//!
//! Holders lie in **blocks** of two megabytes that stay in the address space for ever, so a stale
//! handle can always read there. Each block has an **annex** of half of that, for what few tasks need, whose pages
//! come when they are first touched. [`discard`] gives the pages behind the addresses back to the system. Until they are
//! written again, they read as zeros or as before, as the system decides. Each kind of system has a file with the same
//! functions.

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "models have no pages"))]

use std::ptr::NonNull;

/// The size of a block.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// The size of the annex of a block.
pub(crate) const ANNEX_BYTES: usize = BLOCK_BYTES / 64 * 24;

/// A block and its annex.
pub(crate) type Mapped = (NonNull<u8>, NonNull<u8>);

/// The unit in which pages are counted: the smallest page that a system has.
pub(crate) const PAGE_BYTES: usize = 4096;

#[cfg(not(any(miri, loom)))]
#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(not(any(unix, windows)), path = "plain.rs")]
mod system;
#[cfg(any(miri, loom))]
#[path = "plain.rs"]
mod system;

#[cfg(all(any(unix, windows), not(any(miri, loom))))]
mod reserved;

#[cfg(all(any(unix, windows), not(any(miri, loom))))]
pub(crate) use reserved::block;
#[cfg(not(all(any(unix, windows), not(any(miri, loom)))))]
pub(crate) use system::block;
pub(crate) use system::{discard, page_bytes};
