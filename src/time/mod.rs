//! Time: its units inside the crate, the clocks that tell it, the sleep of a thread, and the repetition of tasks.

pub(crate) mod clock;
pub(crate) mod parking;
pub(crate) mod repeat;
pub(crate) mod tick;

use std::time::{Duration, Instant};

/// When something is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    After(Duration),
    At(Instant),
}
