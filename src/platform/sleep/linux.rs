//! Linux and Android: the timer slack of a thread, and a timerfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use std::{io, mem, ptr};

pub(crate) const TAKES_KERNEL_TIMERS: bool = false;

/// From `linux/prctl.h`; old versions of the crate libc lack them for Android.
const PR_SET_TIMERSLACK: libc::c_int = 29;
const PR_GET_TIMERSLACK: libc::c_int = 30;

/// A timer that also runs while the machine is suspended: what was due meanwhile ends the sleep after the resume.
#[derive(Debug)]
pub(crate) struct KernelTimer(OwnedFd);

impl KernelTimer {
    /// Returns `None` if the process may not open another file.
    pub(crate) fn new() -> Option<KernelTimer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, flags) };
        // SAFETY: if it is not negative it is a new descriptor, which nobody else has.
        (fd >= 0).then(|| KernelTimer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it end after this time, and not before, whatever it was set to. Returns false if the system refuses. It
    /// always counts suspensions.
    #[allow(clippy::cast_lossless, reason = "the field has 32 bits on some systems")]
    pub(crate) fn set(&self, left: Duration, _counts_suspension: bool) -> bool {
        let left = left.max(Duration::from_nanos(1)); // zero would mean never
        // SAFETY: zeros are a valid value. The struct has fields that only some systems know of.
        let mut times: libc::itimerspec = unsafe { mem::zeroed() };
        times.it_value.tv_sec = left.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        times.it_value.tv_nsec = left.subsec_nanos() as _;
        // SAFETY: the descriptor is a timer of ours, `times` is read during the call, and a null pointer is allowed.
        unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const times, ptr::null_mut()) == 0
        }
    }

    /// Makes it end at once.
    pub(crate) fn end(&self) {
        self.set(Duration::ZERO, true);
    }

    /// Sleeps until it ends, or for a shorter time. Returns false if the system refuses.
    pub(crate) fn wait(&self) -> bool {
        let mut wait = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `wait` is one record, which the call reads and writes.
        let ready = unsafe { libc::poll(&raw mut wait, 1, -1) };
        ready >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    }
}

pub(crate) fn boot_time() -> Option<Duration> {
    // SAFETY: zeros are a valid value.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the call writes `now`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    (result == 0).then_some(Duration::new(seconds.ok()?, nanos.ok()?))
}

/// Returns the timer slack of the calling thread in nanoseconds, or zero if it is unknown.
pub(crate) fn slack() -> u32 {
    // SAFETY: the call reads a number of the calling thread, and touches no memory of ours.
    u32::try_from(unsafe { libc::prctl(PR_GET_TIMERSLACK) }).unwrap_or(0)
}

pub(crate) fn set_slack(nanos: u32) {
    // SAFETY: the call sets a number of the calling thread, and touches no memory of ours.
    unsafe { libc::prctl(PR_SET_TIMERSLACK, libc::c_ulong::from(nanos)) };
}
