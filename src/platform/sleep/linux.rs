//! Linux and Android: the timer slack of a thread, and a timerfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

pub(crate) const TAKES_KERNEL_TIMERS: bool = false;
pub(crate) const CLOCK_TELLS_CALLS_APART: bool = true;

/// Miri has none of these calls, and a model must not sleep.
const HAS_CALLS: bool = !cfg!(any(miri, loom));

/// A timer that also runs while the machine is suspended: what was due meanwhile ends the sleep after the resume.
#[derive(Debug)]
pub(crate) struct KernelTimer(OwnedFd);

#[cfg_attr(loom, allow(dead_code, reason = "models have their own"))]
impl KernelTimer {
    /// Returns `None` if the process may not open another file.
    pub(crate) fn new() -> Option<KernelTimer> {
        if !HAS_CALLS {
            return None;
        }
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, flags) };
        // SAFETY: if it is not negative it is a new descriptor, which nobody else has.
        (fd >= 0).then(|| KernelTimer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it end after this time, and not before, whatever it was set to. Returns false if the system refuses. It
    /// always counts suspensions.
    #[allow(
        clippy::cast_lossless,
        clippy::cast_possible_wrap,
        reason = "`c_long` may have 32 bits"
    )]
    pub(crate) fn set(&self, left: Duration, _counts_suspension: bool) -> bool {
        let left = left.max(Duration::from_nanos(1)); // zero would mean never
        let seconds = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let left = libc::timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos() as libc::c_long };
        let times = libc::itimerspec { it_interval: zero, it_value: left };
        // SAFETY: the descriptor is a timer of ours, `times` is read during the call, and a null pointer is allowed.
        unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const times, ptr::null_mut()) == 0
        }
    }

    /// Makes it end at once.
    pub(crate) fn end(&self) {
        self.set(Duration::ZERO, true);
    }

    /// Sleeps until it ends. It may return early.
    pub(crate) fn wait(&self) {
        let mut wait = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `wait` is one record, which the call reads and writes.
        unsafe { libc::poll(&raw mut wait, 1, -1) };
    }
}

pub(crate) fn boot_time() -> Option<Duration> {
    if !HAS_CALLS {
        return None;
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `now`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    (result == 0).then_some(Duration::new(seconds.ok()?, nanos.ok()?))
}

/// Returns the timer slack of the calling thread in nanoseconds, or zero if it is unknown.
pub(crate) fn slack() -> u32 {
    if !HAS_CALLS {
        return 0;
    }
    // SAFETY: the call reads a number of the calling thread, and touches no memory of ours.
    u32::try_from(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }).unwrap_or(0)
}

pub(crate) fn set_slack(nanos: u32) {
    if HAS_CALLS {
        // SAFETY: the call sets a number of the calling thread, and touches no memory of ours.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(nanos)) };
    }
}
