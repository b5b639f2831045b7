//! Memory from the allocator, for systems without such calls. It stays with the process, for later tasks.

use std::alloc::{Layout, alloc_zeroed};

use super::{BLOCK_BYTES, PAGE_BYTES};

pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).ok()?;
    // SAFETY: the layout is not of size zero.
    Some(unsafe { alloc_zeroed(layout) })
}

/// # Safety
///
/// There is no condition: it does nothing.
pub(crate) unsafe fn discard(_place: *mut u8, _bytes: usize) -> bool {
    false
}

pub(crate) fn page_bytes() -> usize {
    BLOCK_BYTES
}
