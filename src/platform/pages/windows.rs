//! Windows: memory is committed block by block.
//!
//! Pages that go back stay committed, because a stale handle may still read there, and to read a page that is not
//! committed ends the process. So they leave the working set, and still count as memory that the system has promised.
//!
//! `DiscardVirtualMemory` would do both steps of [`discard`] in one, but Wine ends a process that calls it.

use std::ptr;

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RESERVE, MEM_RESET, PAGE_READWRITE, VirtualAlloc, VirtualUnlock,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

use super::BLOCK_BYTES;

/// Maps so much memory, zeroed.
pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    let kind = MEM_RESERVE | MEM_COMMIT;
    // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
    let place = unsafe { VirtualAlloc(ptr::null(), bytes, kind, PAGE_READWRITE) };
    (!place.is_null()).then_some(place.cast())
}

/// Gives pages back to the system. Returns false if the system refuses.
///
/// # Safety
///
/// `place` and `bytes` are whole pages of a block or of its annex. No code relies on their content: loads cope with
/// zeros, and with what was there before and turns to zeros later.
pub(crate) unsafe fn discard(place: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller gives up the content of these pages, which stay committed.
    let is_given =
        unsafe { !VirtualAlloc(place.cast(), bytes, MEM_RESET, PAGE_READWRITE).is_null() };
    if is_given {
        // Pages that are not locked leave the working set, and the call reports that they were not locked.
        // SAFETY: the call leaves the content of pages as it is.
        unsafe { VirtualUnlock(place.cast(), bytes) };
    }
    is_given
}

/// Returns the size of the system's pages. If it is unknown, that of a block.
pub(crate) fn page_bytes() -> usize {
    let mut info = SYSTEM_INFO::default();
    // SAFETY: the call writes `info`.
    unsafe { GetSystemInfo(&raw mut info) };
    Some(info.dwPageSize as usize).filter(|bytes| bytes.is_power_of_two()).unwrap_or(BLOCK_BYTES)
}
