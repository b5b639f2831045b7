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
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// What is counted as a page: the least that a system has.
pub(crate) const PAGE_BYTES: usize = 4096;

#[cfg(all(unix, not(any(miri, loom))))]
pub(crate) use self::system::{block, discard, page_bytes};

#[cfg(not(all(unix, not(any(miri, loom)))))]
pub(crate) use self::plain::{block, discard, page_bytes};

#[cfg(all(unix, not(any(miri, loom))))]
mod system {
    use std::ptr::{self, NonNull};
    use std::sync::{Mutex, PoisonError};

    use super::{BLOCK_BYTES, PAGE_BYTES};

    /// How many blocks are reserved at a time. Addresses cost nothing, and a caller that brings a block by itself then
    /// seldom waits for the system.
    const RESERVED: usize = 16;

    /// Blocks that are reserved and not used.
    struct Reserved {
        next: usize,
        left: usize,
    }

    static RESERVE: Mutex<Reserved> = Mutex::new(Reserved { next: 0, left: 0 });

    /// Zeroed memory that stays; `None` when there is none. `ready`: it is touched here and now, as one large page if
    /// there is one. Otherwise small pages come one by one, when they are touched.
    pub(crate) fn block(ready: bool) -> Option<NonNull<u8>> {
        let block = take_reserved()?;
        if ready {
            prefer_large_pages(block, BLOCK_BYTES, true);
            touch(block);
        }
        NonNull::new(block)
    }

    fn take_reserved() -> Option<*mut u8> {
        let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.left == 0 {
            // One more than is used, so that the others can be aligned.
            let mapped = map((RESERVED + 1) * BLOCK_BYTES)?;
            let first = mapped.wrapping_add(mapped.align_offset(BLOCK_BYTES));
            prefer_large_pages(first, RESERVED * BLOCK_BYTES, false);
            *reserve = Reserved { next: first.expose_provenance(), left: RESERVED };
        }
        let block = reserve.next;
        *reserve = Reserved { next: block + BLOCK_BYTES, left: reserve.left - 1 };
        Some(ptr::with_exposed_provenance_mut(block))
    }

    /// Asks for large pages, or for small ones. A wish: it may be refused.
    #[allow(unused_variables, reason = "only Linux can be asked")]
    fn prefer_large_pages(place: *mut u8, bytes: usize, large: bool) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let advice = if large { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: it changes what the memory is made of, and not what it holds.
            unsafe { libc::madvise(place.cast(), bytes, advice) };
        }
    }

    /// Has the system bring the memory of a block, by a write to each of its pages. A call that does the same would hold a
    /// lock of the system meanwhile, for which other threads wait that only want a little memory.
    fn touch(block: *mut u8) {
        for page in (0..BLOCK_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: a fresh mapping of that size, zeroed, which nobody knows of yet.
            unsafe { block.add(page).write_volatile(0) };
        }
    }

    fn map(bytes: usize) -> Option<*mut u8> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        (mapped != libc::MAP_FAILED).then_some(mapped.cast())
    }

    /// Gives the pages back; false when the system would not.
    ///
    /// # Safety
    ///
    /// `place` and `bytes` are whole pages of a [`block`]. Nobody relies on what they hold, but for
    /// loads that cope with zeros.
    pub(crate) unsafe fn discard(place: *mut u8, bytes: usize) -> bool {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const ADVICE: libc::c_int = libc::MADV_DONTNEED;
        // Elsewhere `MADV_DONTNEED` is only a hint for swapping.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ADVICE: libc::c_int = libc::MADV_FREE;
        // Or the system would, by and by, make the block one large page again.
        let block = place.wrapping_sub(place.addr() % BLOCK_BYTES);
        prefer_large_pages(block, BLOCK_BYTES, false);
        // SAFETY: the caller lets go of what these pages hold.
        unsafe { libc::madvise(place.cast(), bytes, ADVICE) == 0 }
    }

    pub(crate) fn page_bytes() -> usize {
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

    pub(crate) fn block(_ready: bool) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(BLOCK_BYTES, BLOCK_BYTES).ok()?;
        // SAFETY: the layout is not of size zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    ///
    /// It does nothing.
    pub(crate) unsafe fn discard(_place: *mut u8, _bytes: usize) -> bool {
        false
    }

    pub(crate) fn page_bytes() -> usize {
        BLOCK_BYTES
    }
}
