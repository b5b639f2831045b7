//! Memory that is never taken away, and yet goes back to the system.
//!
//! Holders lie in **blocks** of two megabytes that stay in the address space for ever, so that a stale
//! handle can always look. What they do not need is the pages behind the addresses: [`discard`] gives
//! those back, and the addresses stay good. They read as zeros then, or as before, until they are
//! written again; the system decides.
//!
//! On a system without such a call the pages stay with the process, for the tasks that come.

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "models have no pages"))]

/// A block is aligned to its size, so that the system may use one large page for it.
pub(super) const BLOCK_BYTES: usize = 2 << 20;

/// What is counted as a page: the least that a system has.
pub(super) const PAGE_BYTES: usize = 4096;

#[cfg(all(unix, not(any(miri, loom))))]
pub(super) use self::system::{block, discard, page_bytes};

#[cfg(not(all(unix, not(any(miri, loom)))))]
pub(super) use self::plain::{block, discard, page_bytes};

#[cfg(all(unix, not(any(miri, loom))))]
mod system {
    use std::ptr::{self, NonNull};

    use super::BLOCK_BYTES;

    /// Zeroed memory that stays; `None` when there is none. `ready`: it is touched here and now, as one large page if
    /// there is one. Otherwise small pages come one by one, when they are touched.
    pub(in crate::task) fn block(ready: bool) -> Option<NonNull<u8>> {
        // Twice as much as needed, so that it holds an aligned block; the rest goes back.
        let mapped = map(2 * BLOCK_BYTES)?;
        let before = mapped.align_offset(BLOCK_BYTES);
        let block = mapped.wrapping_add(before);
        unmap(mapped, before);
        unmap(block.wrapping_add(BLOCK_BYTES), BLOCK_BYTES - before);
        prefer_large_pages(block, ready);
        if ready {
            touch(block);
        }
        NonNull::new(block)
    }

    /// Asks for a large page under a block, or for small ones. A wish: it may be refused.
    #[allow(unused_variables, reason = "only Linux can be asked")]
    fn prefer_large_pages(block: *mut u8, large: bool) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let advice = if large { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: it changes what the memory is made of, and not what it holds.
            unsafe { libc::madvise(block.cast(), BLOCK_BYTES, advice) };
        }
    }

    /// Has the system bring the memory of a block. A wish: an older system brings it page by page.
    #[allow(unused_variables, reason = "only Linux can be asked")]
    fn touch(block: *mut u8) {
        #[cfg(target_os = "linux")]
        // SAFETY: it does to a fresh mapping what a write to each page would do, and changes no byte.
        unsafe {
            libc::madvise(block.cast(), BLOCK_BYTES, libc::MADV_POPULATE_WRITE);
        }
    }

    fn map(bytes: usize) -> Option<*mut u8> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        (mapped != libc::MAP_FAILED).then_some(mapped.cast())
    }

    fn unmap(place: *mut u8, bytes: usize) {
        if bytes > 0 {
            // SAFETY: called only with the edges of a fresh mapping, which nobody knows of.
            unsafe { libc::munmap(place.cast(), bytes) };
        }
    }

    /// Gives the pages back; false when the system would not.
    ///
    /// # Safety
    ///
    /// `place` and `bytes` are whole pages of a [`block`]. Nobody relies on what they hold, but for
    /// loads that cope with zeros.
    pub(in crate::task) unsafe fn discard(place: *mut u8, bytes: usize) -> bool {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const ADVICE: libc::c_int = libc::MADV_DONTNEED;
        // Elsewhere `MADV_DONTNEED` is only a hint for swapping.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ADVICE: libc::c_int = libc::MADV_FREE;
        // Or the system would, by and by, make the block one large page again.
        let block = place.wrapping_sub(place.addr() % BLOCK_BYTES);
        prefer_large_pages(block, false);
        // SAFETY: the caller lets go of what these pages hold.
        unsafe { libc::madvise(place.cast(), bytes, ADVICE) == 0 }
    }

    pub(in crate::task) fn page_bytes() -> usize {
        // SAFETY: it only asks.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(BLOCK_BYTES)
    }
}

#[cfg(not(all(unix, not(any(miri, loom)))))]
mod plain {
    use std::alloc::{Layout, alloc_zeroed};
    use std::ptr::NonNull;

    use super::BLOCK_BYTES;

    pub(in crate::task) fn block(_ready: bool) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(BLOCK_BYTES, BLOCK_BYTES).ok()?;
        // SAFETY: the layout is not of size zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    ///
    /// It does nothing.
    pub(in crate::task) unsafe fn discard(_place: *mut u8, _bytes: usize) -> bool {
        false
    }

    pub(in crate::task) fn page_bytes() -> usize {
        BLOCK_BYTES
    }
}
