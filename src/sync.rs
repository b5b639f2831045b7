//! The one place that knows whether the crate runs for real or inside a loom model.
//!
//! Everything that takes part in a race that a model explores comes from here. What no model
//! explores (process-wide tables, thread-locals) uses std directly.

#[cfg(all(test, loom))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(not(all(test, loom)))]
pub(crate) use self::real::UnsafeCell;
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

use std::sync::PoisonError;

/// How many records a block of a lane holds; few in a model, so that it goes from block to block.
pub(crate) const LANE_BLOCK: usize = if cfg!(loom) { 2 } else { 128 };

/// Locks, whether or not a thread panicked while it held the lock: user code never runs under a
/// lock of ours, so what a lock guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// loom takes `SeqCst` loads and stores for Acquire and Release, and knows only fences to be more. So
/// where the code relies on one order of `SeqCst` accesses, a model needs a fence between them. For
/// real this is nothing.
#[inline]
pub(crate) fn fence_in_models() {
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Asks for a line of memory ahead of its use. Any pointer will do: nothing is read through it.
#[inline]
#[expect(unsafe_code, reason = "the intrinsic is marked so before Rust 1.86")]
#[allow(unused_variables, reason = "a machine without the intrinsic does without")]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: every x86-64 has SSE, and a prefetch of a bad address does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
}

/// The processor's own count of time, if it has one that costs little: only to tell whether next to
/// no time has passed. It is nobody's clock.
#[inline]
#[allow(clippy::unnecessary_wraps, reason = "other processors have none")]
pub(crate) fn cycles() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    #[expect(unsafe_code, reason = "the intrinsic is marked so")]
    // SAFETY: every x86-64 has it, and it only reads a counter.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    None
}

#[cfg(not(all(test, loom)))]
mod real {
    /// std's cell with loom's face: a pointer that is lent to a closure.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
