//! Time: its units inside the crate, where it comes from, how a thread sleeps through it, and how tasks repeat in it.

pub(crate) mod clock;
pub(crate) mod parking;
pub(crate) mod repeat;
pub(crate) mod tick;
