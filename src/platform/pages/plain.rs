//! Memory from the allocator, for systems without such calls. It stays with the process, for later tasks.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

use super::{ANNEX_BYTES, BLOCK_BYTES, Mapped, PAGE_BYTES};

pub(crate) fn block(_is_ahead: bool) -> Option<Mapped> {
    Some((zeroed(BLOCK_BYTES, PAGE_BYTES)?, zeroed(ANNEX_BYTES, PAGE_BYTES)?))
}

fn zeroed(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, align).ok()?;
    // SAFETY: the layout is not of size zero.
    NonNull::new(unsafe { alloc_zeroed(layout) })
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
