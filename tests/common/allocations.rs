//! An allocator that counts what one thread takes from it.
//!
//! It finds the thread without a `thread_local!` on Windows. With the GNU toolchain, the first use of one allocates
//! there, so an allocator that uses one would call itself without end.

#![allow(clippy::cast_possible_wrap, reason = "sizes of memory fit")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The system's allocator. A test program that measures makes it the global one.
pub(crate) struct Counting;

/// The number of the thread that is counted. All numbers are relaxed, because only this thread writes them and uses them.
static COUNTED: AtomicUsize = AtomicUsize::new(NOBODY);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const NOBODY: usize = 0;

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.load(Ordering::Relaxed) == this_thread() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if COUNTED.load(Ordering::Relaxed) == this_thread() {
            BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Returns a number that no other living thread has, and allocates nothing.
#[cfg(not(windows))]
fn this_thread() -> usize {
    thread_local!(static HERE: std::cell::Cell<u8> = const { std::cell::Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Returns a number that no other living thread has, and allocates nothing.
#[cfg(windows)]
fn this_thread() -> usize {
    // SAFETY: the call takes nothing.
    unsafe { windows_sys::Win32::System::Threading::GetCurrentThreadId() as usize }
}

/// Counts what the thread that has made it takes. Measurements of several threads wait for each other.
pub(crate) struct Measurement {
    allocations_before: usize,
    bytes_before: isize,
    _alone: MutexGuard<'static, ()>,
}

impl Measurement {
    pub(crate) fn start() -> Measurement {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        COUNTED.store(this_thread(), Ordering::Relaxed);
        Measurement {
            allocations_before: ALLOCATIONS.load(Ordering::Relaxed),
            bytes_before: BYTES.load(Ordering::Relaxed),
            _alone: alone,
        }
    }

    /// Returns how often the thread has asked for memory.
    pub(crate) fn allocations(&self) -> usize {
        ALLOCATIONS.load(Ordering::Relaxed) - self.allocations_before
    }

    /// Returns how many bytes the thread has taken more than it has given back.
    pub(crate) fn bytes(&self) -> isize {
        Measurement::bytes_out() - self.bytes_before
    }

    /// Returns the same since the first measurement of all, for differences.
    pub(crate) fn bytes_out() -> isize {
        BYTES.load(Ordering::Relaxed)
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        COUNTED.store(NOBODY, Ordering::Relaxed);
    }
}
