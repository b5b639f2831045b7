//! Pages without code: how the crate works, how it sleeps and wakes, what its end does, and what users of other timers
//! look for.

#[cfg(doc)]
pub mod coming_from;
#[cfg(doc)]
pub mod design;
#[cfg(any(doc, doctest))]
pub mod shutdown;
#[cfg(doc)]
pub mod waking;
