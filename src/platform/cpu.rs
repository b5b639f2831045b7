//! Processor instructions for which std has no portable function. On other processors they do nothing.

/// Fetches a cache line ahead of its use. The pointer may be anything: nothing is read through it.
#[inline]
#[allow(unsafe_code, reason = "instructions")]
#[allow(unused_variables, reason = "used only where there is the instruction")]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: every x86-64 has SSE, and a prefetch of a bad address does nothing.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    // SAFETY: a prefetch of a bad address does nothing.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) place.addr() as u64, options(nostack, preserves_flags, readonly));
    }
}

/// Returns the processor's counter of time, if reading it is cheap. It is not a clock: it only serves to tell whether
/// hardly any time has passed.
#[inline]
#[allow(clippy::unnecessary_wraps, reason = "`None` on other processors")]
#[allow(unsafe_code, reason = "instructions")]
pub(crate) fn cycles() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: every x86-64 has the instruction, which only reads a counter.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(all(target_arch = "aarch64", unix, not(any(miri, loom))))]
    {
        let count: u64;
        // SAFETY: Unix systems let programs read the counter, on which their own clocks are built.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags));
        }
        return Some(count);
    }
    #[allow(unreachable_code, reason = "reached on other processors")]
    None
}

/// Returns how far [`cycles`] counts in about a microsecond.
#[inline]
#[allow(unsafe_code, reason = "an instruction")]
pub(crate) fn cycles_of_a_microsecond() -> u64 {
    #[cfg(all(target_arch = "aarch64", unix, not(any(miri, loom))))]
    {
        let a_second: u64;
        // SAFETY: as in `cycles`.
        unsafe {
            core::arch::asm!("mrs {}, cntfrq_el0", out(reg) a_second, options(nomem, nostack, preserves_flags));
        }
        return a_second / 1_000_000;
    }
    // On a slow x86-64 it is two microseconds.
    #[allow(unreachable_code, reason = "reached on other processors")]
    3_000
}
