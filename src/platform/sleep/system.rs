//! Systems of which nothing more is known than what std does. One of them is WebAssembly without threads, where nobody can
//! end a sleep early, and a condition variable would panic instead of waiting. Miri has none of the calls of the other
//! files, and a model must not sleep, so they take this one too.

#![cfg_attr(loom, allow(dead_code, reason = "models have a timer of their own"))]

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::platform::sync::lock_std;

pub(crate) const TAKES_KERNEL_TIMERS: bool =
    cfg!(all(target_family = "wasm", not(target_feature = "atomics")));

/// A sleep of the only thread. With several threads there is none.
#[derive(Debug)]
pub(crate) struct KernelTimer(Mutex<Duration>);

impl KernelTimer {
    pub(crate) fn new() -> Option<KernelTimer> {
        TAKES_KERNEL_TIMERS.then(|| KernelTimer(Mutex::default()))
    }

    pub(crate) fn set(&self, left: Duration, _counts_suspension: bool) -> bool {
        *lock_std(&self.0) = left;
        true
    }

    pub(crate) fn end(&self) {
        *lock_std(&self.0) = Duration::ZERO;
    }

    pub(crate) fn wait(&self) -> bool {
        let left = *lock_std(&self.0);
        thread::sleep(left);
        true
    }
}

pub(crate) fn boot_time() -> Option<Duration> {
    None
}

pub(crate) fn slack() -> u32 {
    0
}

pub(crate) fn set_slack(_nanos: u32) {}
