//! Windows: a waitable timer of high resolution, which does not wait for the next step of the system's clock. Windows 10
//! has it since version 1803. Before that, an older timer, and a faster step of the clock for the length of a sleep.

use std::ptr;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::Media::{timeBeginPeriod, timeEndPeriod};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer,
    TIMER_ALL_ACCESS, WaitForSingleObject,
};

pub(crate) const TAKES_KERNEL_TIMERS: bool = true;

/// std's clock counts the time in which the machine is suspended, and a timer that is set to a time from now on stands
/// still in it. So a sleep takes several timers, and its caller looks at the clock in between.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The unit of a timer, in nanoseconds.
const UNIT: u128 = 100;

/// The step of the system's clock during a sleep on an older timer, in milliseconds.
const STEP: u32 = 1;

/// A waitable timer. Each wait takes one end away.
#[derive(Debug)]
pub(crate) struct KernelTimer {
    handle: HANDLE,
    is_exact: bool,
}

// SAFETY: a handle is a number that all threads of the process may use at the same time.
unsafe impl Send for KernelTimer {}
// SAFETY: as above.
unsafe impl Sync for KernelTimer {}

impl KernelTimer {
    /// Returns `None` if the system has no more of them.
    pub(crate) fn new() -> Option<KernelTimer> {
        let timer = |flags, is_exact| {
            // SAFETY: both pointers may be null: no attributes, and no name.
            let handle = unsafe {
                CreateWaitableTimerExW(ptr::null(), ptr::null(), flags, TIMER_ALL_ACCESS)
            };
            (!handle.is_null()).then_some(KernelTimer { handle, is_exact })
        };
        timer(CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, true).or_else(|| timer(0, false))
    }

    /// Makes it end after this time, whatever it was set to; earlier if that is far away. Returns false if the system
    /// refuses. Otherwise a wait has to follow.
    pub(crate) fn set(&self, left: Duration, _counts_suspension: bool) -> bool {
        if !self.is_exact {
            // SAFETY: the call takes a number only.
            unsafe { timeBeginPeriod(STEP) }; // before the timer, which counts from the clock's last step
        }
        let units = left.min(LOOK_AGAIN).as_nanos().div_ceil(UNIT) as i64;
        let is_set = self.set_to(-units.max(1)); // negative: from now on
        if !is_set {
            self.end_fast_steps();
        }
        is_set
    }

    /// Makes it end at once.
    pub(crate) fn end(&self) {
        self.set_to(0); // a date in the past
    }

    /// Sleeps until it ends. Returns false if the system refuses.
    pub(crate) fn wait(&self) -> bool {
        // SAFETY: the handle is open.
        let ended = unsafe { WaitForSingleObject(self.handle, INFINITE) };
        self.end_fast_steps();
        ended == WAIT_OBJECT_0
    }

    fn set_to(&self, due: i64) -> bool {
        // SAFETY: the handle is open, `due` is read during the call, and there is no routine to call.
        unsafe { SetWaitableTimer(self.handle, &raw const due, 0, None, ptr::null(), 0) != 0 }
    }

    fn end_fast_steps(&self) {
        if !self.is_exact {
            // SAFETY: it goes with the call in `set`.
            unsafe { timeEndPeriod(STEP) };
        }
    }
}

impl Drop for KernelTimer {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it any more.
        unsafe { CloseHandle(self.handle) };
    }
}

/// std's clock counts suspensions here.
pub(crate) fn boot_time() -> Option<Duration> {
    None
}

pub(crate) fn slack() -> u32 {
    0
}

pub(crate) fn set_slack(_nanos: u32) {}
