//! Instructions of the processor that std has no portable name for. Elsewhere they do nothing.

/// Asks for a line of memory ahead of its use. Any pointer will do: nothing is read through it.
#[inline]
#[allow(unsafe_code, reason = "the intrinsic is marked so before Rust 1.86")]
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
