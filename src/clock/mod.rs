//! Time: its units inside the crate, the clocks that tell it, the sleep of a thread, and the repetition of tasks.

#[cfg(feature = "std")]
pub(crate) mod clocks;
#[cfg(feature = "std")]
pub(crate) mod epoch;
#[cfg(feature = "std")]
pub(crate) mod parking;
#[cfg(feature = "std")]
pub(crate) mod repeat;
pub(crate) mod tick;
#[cfg(feature = "std")]
pub(crate) mod timeline;
