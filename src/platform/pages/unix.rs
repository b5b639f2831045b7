//! Linux, macOS and other Unix systems: mappings, and advice about their pages.

use std::ptr;

use super::BLOCK_BYTES;

/// Maps so much memory, zeroed, in small pages. A system that gave it a large page without being asked would clear two
/// megabytes for the first task, which takes twice as long as to clear the same in small pages, because it does not fit into
/// the cache.
pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: it changes the size of the pages, not their content. The system may refuse.
    unsafe {
        libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE);
    }
    Some(mapped.cast())
}

/// Gives pages back to the system. Returns false if the system refuses.
///
/// # Safety
///
/// `place` and `bytes` are whole pages of a block or of its annex. No code relies on their content: loads cope with
/// zeros, and with what was there before and turns to zeros later.
pub(crate) unsafe fn discard(place: *mut u8, bytes: usize) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const ADVICE: libc::c_int = libc::MADV_DONTNEED;
    // On other systems `MADV_DONTNEED` is only a hint for swapping.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const ADVICE: libc::c_int = libc::MADV_FREE;
    // SAFETY: the caller gives up the content of these pages.
    unsafe { libc::madvise(place.cast(), bytes, ADVICE) == 0 }
}

/// Returns the size of the system's pages. If it is unknown, that of a block.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: the call only returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(BLOCK_BYTES)
}
