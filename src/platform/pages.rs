//! Memory that is never unmapped, and whose pages can still go back to the system.
//!
//! Holders lie in **blocks** of two megabytes that stay in the address space for ever, so a stale
//! handle can always read there. Each block has an **annex** of half of that, for what few tasks need, whose pages
//! come when they are first touched. [`discard`] gives the pages behind the addresses back to the system. Until they are
//! written again, they read as zeros or as before, as the system decides.
//!
//! On a system without such a call the pages stay with the process, for later tasks.

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "models have no pages"))]

use std::ptr::NonNull;

/// The size of a block. It is also its alignment, so that the system may use one large page for it.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// The size of the annex of a block.
pub(crate) const ANNEX_BYTES: usize = BLOCK_BYTES / 2;

/// A block and its annex.
pub(crate) type Mapped = (NonNull<u8>, NonNull<u8>);

/// The unit in which pages are counted: the smallest page that a system has.
pub(crate) const PAGE_BYTES: usize = 4096;

#[cfg(all(unix, not(any(miri, loom))))]
pub(crate) use self::system::{block, discard, page_bytes};

#[cfg(not(all(unix, not(any(miri, loom)))))]
pub(crate) use self::plain::{block, discard, page_bytes};

#[cfg(all(unix, not(any(miri, loom))))]
mod system {
    use std::ptr::{self, NonNull};
    use std::sync::{Mutex, PoisonError};

    use super::{ANNEX_BYTES, BLOCK_BYTES, Mapped, PAGE_BYTES};

    /// How many blocks are reserved at a time. Addresses cost nothing, and a caller that adds a block itself then
    /// seldom waits for the system.
    const RESERVED: usize = 16;

    /// The blocks that are reserved and not used yet: the address of the first, that of its annex, and how many.
    struct Reserved {
        next: usize,
        annex: usize,
        left: usize,
    }

    static RESERVE: Mutex<Reserved> = Mutex::new(Reserved { next: 0, annex: 0, left: 0 });

    /// Returns a block of zeroed memory that stays mapped, and its annex, or `None` if the system has none. If
    /// `is_ahead`, all of the block is touched here, as one large page if the system has one. Otherwise the system maps
    /// small pages one by one, when they are first touched.
    pub(crate) fn block(is_ahead: bool) -> Option<Mapped> {
        let (block, annex) = take_reserved()?;
        if is_ahead {
            prefer_large_pages(block, BLOCK_BYTES, true);
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
        let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.left == 0 {
            // The annexes lie behind the blocks. One block more than is used, because the mapping may not be aligned.
            let bytes = RESERVED * (BLOCK_BYTES + ANNEX_BYTES);
            let mapped = map(bytes + BLOCK_BYTES)?;
            let first = mapped.wrapping_add(mapped.align_offset(BLOCK_BYTES));
            prefer_large_pages(first, bytes, false);
            let next = first.expose_provenance();
            *reserve = Reserved { next, annex: next + RESERVED * BLOCK_BYTES, left: RESERVED };
        }
        let Reserved { next, annex, left } = *reserve;
        let after = (next + BLOCK_BYTES, annex + ANNEX_BYTES);
        *reserve = Reserved { next: after.0, annex: after.1, left: left - 1 };
        let place = ptr::with_exposed_provenance_mut;
        Some((place(next), place(annex)))
    }

    /// Asks the system for large pages, or for small ones. It may refuse.
    #[allow(unused_variables, reason = "only Linux has the call")]
    fn prefer_large_pages(place: *mut u8, bytes: usize, large: bool) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let advice = if large { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: it changes the size of the pages, not their content.
            unsafe { libc::madvise(place.cast(), bytes, advice) };
        }
    }

    fn map(bytes: usize) -> Option<*mut u8> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        (mapped != libc::MAP_FAILED).then_some(mapped.cast())
    }

    /// Gives pages back to the system. Returns false if the system refuses.
    ///
    /// # Safety
    ///
    /// `place` and `bytes` are whole pages of a [`block`] or of its annex. No code relies on their content, except
    /// loads that cope with zeros.
    pub(crate) unsafe fn discard(place: *mut u8, bytes: usize) -> bool {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const ADVICE: libc::c_int = libc::MADV_DONTNEED;
        // On other systems `MADV_DONTNEED` is only a hint for swapping.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ADVICE: libc::c_int = libc::MADV_FREE;
        // Otherwise the system would in time make the block one large page again.
        let block = place.wrapping_sub(place.addr() % BLOCK_BYTES);
        prefer_large_pages(block, BLOCK_BYTES, false);
        // SAFETY: the caller gives up the content of these pages.
        unsafe { libc::madvise(place.cast(), bytes, ADVICE) == 0 }
    }

    /// Returns the size of the system's pages. If it is unknown, that of a block.
    pub(crate) fn page_bytes() -> usize {
        // SAFETY: the call only returns a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(BLOCK_BYTES)
    }
}

#[cfg(not(all(unix, not(any(miri, loom)))))]
mod plain {
    use std::alloc::{Layout, alloc_zeroed};
    use std::ptr::NonNull;

    use super::{ANNEX_BYTES, BLOCK_BYTES, Mapped, PAGE_BYTES};

    pub(crate) fn block(_is_ahead: bool) -> Option<Mapped> {
        Some((zeroed(BLOCK_BYTES, BLOCK_BYTES)?, zeroed(ANNEX_BYTES, PAGE_BYTES)?))
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
}
