//! The wall clock of this process, which a test may set: the program has a `clock_gettime` of its own, and what it adds to
//! the time of day is what the test says. The clock of other processes, and the monotonic one, are left alone.

use std::time::Duration;

pub(crate) const fn can_be_set() -> bool {
    cfg!(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))
}

/// Sets the wall clock so many seconds off. Returns false where that cannot be done.
pub(crate) fn set_off(seconds: i64) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    {
        // It orders nothing, so the accesses are Relaxed.
        jump::SECONDS.store(seconds, std::sync::atomic::Ordering::Relaxed);
        true
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    {
        _ = seconds;
        false
    }
}

/// Returns the time of the clock that all processes of this machine share, and that nobody sets.
pub(crate) fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into the place that it is given.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(code, 0);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).expect("less than a second"),
    )
}

#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod jump {
    use std::sync::atomic::{AtomicI64, Ordering};

    pub(super) static SECONDS: AtomicI64 = AtomicI64::new(0);

    /// The linker finds this one before the system's, for Rust's standard library too.
    // SAFETY: it has the name, the type and the meaning of the system's function.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clock_gettime(
        clock: libc::clockid_t,
        time: *mut libc::timespec,
    ) -> libc::c_int {
        // SAFETY: the arguments are those of the caller, and the call of the system checks them.
        let code = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
        if code == 0 && clock == libc::CLOCK_REALTIME {
            // SAFETY: the system has just written there.
            unsafe { (*time).tv_sec += SECONDS.load(Ordering::Relaxed) };
        }
        if code == 0 { 0 } else { -1 }
    }
}
