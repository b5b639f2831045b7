//! Systems of which nothing more is known than what std does.

use std::time::Duration;

pub(crate) const TAKES_KERNEL_TIMERS: bool = false;

/// There is none.
#[derive(Debug)]
pub(crate) enum KernelTimer {}

impl KernelTimer {
    pub(crate) fn new() -> Option<KernelTimer> {
        None
    }

    pub(crate) fn set(&self, _left: Duration, _counts_suspension: bool) -> bool {
        match *self {}
    }

    pub(crate) fn end(&self) {
        match *self {}
    }

    pub(crate) fn wait(&self) -> bool {
        match *self {}
    }
}

pub(crate) fn boot_time() -> Option<Duration> {
    None
}

pub(crate) fn slack() -> u32 {
    0
}

pub(crate) fn set_slack(_nanos: u32) {}
