//! Windows: a waitable timer of high resolution, which does not wait for the next step of the system's clock. Windows 10
//! has it since version 1803. Before that, an older timer, and a faster step of the clock for the length of a sleep.

use std::ptr;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::Media::{timeBeginPeriod, timeEndPeriod};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer,
    TIMER_ALL_ACCESS, WaitForSingleObject,
};

pub(crate) const TAKES_KERNEL_TIMERS: bool = true;

/// std's clock has steps of 100 ns, and those of two processors may differ by one.
pub(crate) const CLOCK_TELLS_CALLS_APART: bool = false;

/// A relative timer stands still while the machine is suspended. So a sleep that counts suspensions takes several of
/// them, and looks at the clock in between.
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

    /// Makes it end after this time, and not before, whatever it was set to; or earlier, if it is to count suspensions.
    /// Returns false if the system refuses.
    pub(crate) fn set(&self, left: Duration, counts_suspension: bool) -> bool {
        let left = if counts_suspension { left.min(LOOK_AGAIN) } else { left };
        let units = i64::try_from(left.as_nanos().div_ceil(UNIT)).unwrap_or(i64::MAX);
        let due = -units.max(1); // negative: from now on
        // SAFETY: the handle is open, `due` is read during the call, and there is no routine to call.
        unsafe { SetWaitableTimer(self.handle, &raw const due, 0, None, ptr::null(), 0) != 0 }
    }

    /// Makes it end at once.
    pub(crate) fn end(&self) {
        self.set(Duration::ZERO, false);
    }

    /// Sleeps until it ends.
    pub(crate) fn wait(&self) {
        let _step = (!self.is_exact).then(FastSteps::begin);
        // SAFETY: the handle is open.
        unsafe { WaitForSingleObject(self.handle, INFINITE) };
    }
}

impl Drop for KernelTimer {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it any more.
        unsafe { CloseHandle(self.handle) };
    }
}

/// The system's clock makes small steps as long as this lives.
struct FastSteps;

impl FastSteps {
    fn begin() -> FastSteps {
        // SAFETY: the call takes a number only.
        unsafe { timeBeginPeriod(STEP) };
        FastSteps
    }
}

impl Drop for FastSteps {
    fn drop(&mut self) {
        // SAFETY: it goes with the call in `begin`.
        unsafe { timeEndPeriod(STEP) };
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
