//! Pages without code: how the crate works, how it sleeps and wakes, what its end does, how to test with it, what users
//! of other timers look for, how to take it into a program, and on which systems it runs.

#[cfg(any(doc, doctest))]
pub mod adopting;
#[cfg(doc)]
pub mod coming_from;
#[cfg(doc)]
pub mod design;
#[cfg(doc)]
pub mod platforms;
#[cfg(any(doc, doctest))]
pub mod shutdown;
#[cfg(any(doc, doctest))]
pub mod testing;
#[cfg(doc)]
pub mod waking;
