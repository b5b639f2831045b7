//! Sleeps that end on time, and sleeps that count the time in which the machine was suspended. Each system has a file
//! with the same items, and all others share `system.rs`.
//!
//! | system | a timed wait of std | here |
//! | --- | --- | --- |
//! | Linux, Android | up to 50 us late: the timer slack of the thread | the slack is turned off |
//! | Windows | whole milliseconds, up to the next step of the system's clock, which comes every 15.6 ms | a [`KernelTimer`] |
//! | macOS, iOS | late by an eighth of its length, at most 1 ms; more on a thread of low quality of service | a [`KernelTimer`] |
//! | WebAssembly without threads | a panic | a sleep of the thread, which nothing can end early |
//! | others | as the system does it | the same |
//!
//! Linux has a [`KernelTimer`] too, for sleeps that count the time in which the machine was suspended. A sleeper makes its
//! timer for the first sleep that takes one.

use std::cell::Cell;
use std::time::Duration;

#[cfg_attr(
    all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))),
    path = "linux.rs"
)]
#[cfg_attr(all(windows, not(any(miri, loom))), path = "windows.rs")]
#[cfg_attr(all(target_vendor = "apple", not(any(miri, loom))), path = "apple.rs")]
#[allow(unsafe_code, reason = "system calls")]
mod system;

/// True if the timed waits of std are not exact on this system, so that a [`KernelTimer`] has to do.
pub(crate) const TAKES_KERNEL_TIMERS: bool = system::TAKES_KERNEL_TIMERS;

/// True if readings of std's clock on two processors may differ by a step, in either direction.
pub(crate) const PROCESSORS_MAY_DIFFER: bool = cfg!(windows);

#[cfg(all(test, loom))]
pub(crate) use model::KernelTimer;
#[cfg(not(all(test, loom)))]
pub(crate) use system::KernelTimer;

/// Returns a reading of the clock that counts the time in which the machine was suspended, from any beginning. `None`
/// where std's clock does that too, or where there is no such clock.
pub(crate) fn boot_time() -> Option<Duration> {
    let now = system::boot_time();
    #[cfg(all(test, not(loom)))]
    let now = now.map(|now| now + tests::suspended());
    now
}

thread_local! {
    /// The thread has called [`wake_on_time`].
    static IS_ON_TIME: Cell<bool> = const { Cell::new(false) };
}

/// Makes all sleeps of the calling thread end on time.
pub(crate) fn wake_on_time() {
    system::set_slack(1);
    IS_ON_TIME.set(true);
}

/// Sets Linux's usual timer slack. A thread that was started by one which is woken on time has inherited that.
pub(crate) fn wake_as_usual() {
    system::set_slack(50_000);
}

/// Makes one sleep, which does not unwind, end on time, and then restores the timer slack of the thread. That takes up to
/// three system calls, and none on a thread that has called [`wake_on_time`].
pub(crate) fn on_time<T>(sleep: impl FnOnce() -> T) -> T {
    let usual = if IS_ON_TIME.get() { 0 } else { system::slack() };
    if usual <= 1 {
        return sleep();
    }
    system::set_slack(1);
    let slept = sleep();
    system::set_slack(usual);
    slept
}

/// What [`KernelTimer`] is in a model: it never ends by itself, so that a lost wake-up is a deadlock.
#[cfg(all(test, loom))]
mod model {
    use std::time::Duration;

    use crate::platform::sync::{Condvar, Mutex, lock};

    #[derive(Debug)]
    pub(crate) struct KernelTimer {
        has_ended: Mutex<bool>,
        ended: Condvar,
    }

    impl KernelTimer {
        pub(crate) fn new() -> Option<KernelTimer> {
            Some(KernelTimer { has_ended: Mutex::new(false), ended: Condvar::new() })
        }

        pub(crate) fn set(&self, _left: Duration, _counts_suspension: bool) -> bool {
            *lock(&self.has_ended) = false;
            true
        }

        pub(crate) fn end(&self) {
            *lock(&self.has_ended) = true;
            self.ended.notify_one();
        }

        pub(crate) fn wait(&self) -> bool {
            let mut has_ended = lock(&self.has_ended);
            while !*has_ended {
                has_ended = self.ended.wait(has_ended).unwrap();
            }
            true
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use super::*;

    /// How long the machine has been suspended in this test, in nanoseconds.
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn suspended() -> Duration {
        Duration::from_nanos(SUSPENDED.load(Ordering::Relaxed))
    }

    /// Makes [`boot_time`] read as after a suspension.
    pub(crate) fn suspend(length: Duration) {
        SUSPENDED.fetch_add(length.as_nanos() as u64, Ordering::Relaxed);
    }

    #[test]
    fn a_sleep_on_time_leaves_the_thread_as_it_was() {
        system::set_slack(70_000);
        let before = system::slack();
        assert!(before == 70_000 || before == 0, "{before}");
        on_time(|| assert!(system::slack() <= 1));
        assert_eq!(system::slack(), before);
    }

    #[test]
    fn a_kernel_timer_is_not_early_and_can_be_ended_early() {
        let Some(timer) = KernelTimer::new() else { return };
        for counts_suspension in [false, true] {
            for micros in [0, 1, 150, 2_000, 20_000] {
                let (start, left) = (Instant::now(), Duration::from_micros(micros));
                assert!(timer.set(left, counts_suspension));
                assert!(timer.wait());
                let took = start.elapsed();
                // Clocks of different kinds may differ in speed by some millionths.
                assert!(took + Duration::from_micros(20) >= left, "{took:?} of {left:?}");
            }
            assert!(timer.set(Duration::MAX, counts_suspension));
            timer.end();
            assert!(timer.wait());
        }
    }
}
