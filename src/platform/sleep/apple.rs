//! macOS, iOS and the other systems of Apple: a kqueue with a timer that is marked as critical, which the system does not
//! put off to wake several threads at once.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use std::{io, ptr};

pub(crate) const TAKES_KERNEL_TIMERS: bool = true;

/// From `sys/event.h`; old versions of the crate libc lack it.
const NOTE_MACH_CONTINUOUS_TIME: u32 = 0x80;

/// What is in the queue. Each kind of event has numbers of its own.
const TIMER: usize = 1;
const END: usize = 1;

/// A queue with a timer, and an event that ends the wait early.
#[derive(Debug)]
pub(crate) struct KernelTimer(OwnedFd);

impl KernelTimer {
    /// Returns `None` if the process may not open another file.
    pub(crate) fn new() -> Option<KernelTimer> {
        // SAFETY: the call takes nothing.
        let fd = unsafe { libc::kqueue() };
        // SAFETY: if it is not negative it is a new descriptor, which nobody else has.
        let timer = (fd >= 0).then(|| KernelTimer(unsafe { OwnedFd::from_raw_fd(fd) }))?;
        let end = event(END, libc::EVFILT_USER, libc::EV_ADD | libc::EV_CLEAR, 0, 0);
        timer.change(end).then_some(timer)
    }

    /// Makes it end after this time, whatever it was set to; where a number of nanoseconds has 32 bits, after two seconds
    /// at most. Returns false if the system refuses.
    ///
    /// An [`end`](KernelTimer::end) from before may still end the next wait.
    pub(crate) fn set(&self, left: Duration, counts_suspension: bool) -> bool {
        let continuous = if counts_suspension { NOTE_MACH_CONTINUOUS_TIME } else { 0 };
        let kind = libc::NOTE_NSECONDS | libc::NOTE_CRITICAL | continuous;
        let nanos = isize::try_from(left.as_nanos()).unwrap_or(isize::MAX).max(1);
        let flags = libc::EV_ADD | libc::EV_ONESHOT;
        self.change(event(TIMER, libc::EVFILT_TIMER, flags, kind, nanos))
    }

    /// Makes it end at once.
    pub(crate) fn end(&self) {
        self.change(event(END, libc::EVFILT_USER, 0, libc::NOTE_TRIGGER, 0));
    }

    /// Sleeps until it ends, or for a shorter time. Returns false if the system refuses.
    pub(crate) fn wait(&self) -> bool {
        let mut happened = event(0, 0, 0, 0, 0);
        let queue = self.0.as_raw_fd();
        // SAFETY: no changes are made, and one event is written.
        let events =
            unsafe { libc::kevent(queue, ptr::null(), 0, &raw mut happened, 1, ptr::null()) };
        events >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    }

    fn change(&self, change: libc::kevent) -> bool {
        let queue = self.0.as_raw_fd();
        // SAFETY: one change is read, and no event is written.
        unsafe { libc::kevent(queue, &raw const change, 1, ptr::null_mut(), 0, ptr::null()) == 0 }
    }
}

fn event(ident: usize, filter: i16, flags: u16, fflags: u32, data: isize) -> libc::kevent {
    libc::kevent { ident, filter, flags, fflags, data, udata: ptr::null_mut() }
}

/// std's clock stands still while the machine is suspended, and this one does not.
pub(crate) fn boot_time() -> Option<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `now`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    (result == 0).then_some(Duration::new(seconds.ok()?, nanos.ok()?))
}

pub(crate) fn slack() -> u32 {
    0
}

pub(crate) fn set_slack(_nanos: u32) {}
