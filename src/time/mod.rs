//! Time: its units inside the crate, the clocks that tell it, the sleep of a thread, and the repetition of tasks.

pub(crate) mod clock;
pub(crate) mod parking;
pub(crate) mod repeat;
pub(crate) mod tick;
