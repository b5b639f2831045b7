//! Pages without code: how the crate works, how it sleeps and wakes, what its end does, how to test with it, and what
//! users of other timers look for.

#[cfg(doc)]
pub mod coming_from;
#[cfg(doc)]
pub mod design;
#[cfg(any(doc, doctest))]
pub mod shutdown;
#[cfg(any(doc, doctest))]
pub mod testing;
#[cfg(doc)]
pub mod waking;
