//! Processor instructions for which std has no portable function. On other processors they do nothing.

/// Fetches a cache line ahead of its use. The pointer may be anything: nothing is read through it.
#[inline]
#[allow(unsafe_code, reason = "the intrinsic is marked so before Rust 1.86")]
#[allow(unused_variables, reason = "used only where there is the intrinsic")]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: every x86-64 has SSE, and a prefetch of a bad address does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
}

/// Returns the processor's cycle counter, if reading it is cheap. It is not a clock: it only serves to tell whether
/// hardly any time has passed.
#[inline]
#[allow(clippy::unnecessary_wraps, reason = "`None` on other processors")]
pub(crate) fn cycles() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    #[expect(unsafe_code, reason = "the intrinsic is marked so")]
    // SAFETY: every x86-64 has the instruction, which only reads a counter.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    None
}
