//! What the crate uses of the platform: threads, atomics, memory, instructions of the processor, timer slack, panics.
//! Only this module has `cfg` for systems and processors, beside the compile errors of `lib.rs`, and only this module
//! knows of loom.

pub(crate) mod cpu;
pub(crate) mod impls;
#[cfg(feature = "std")]
#[expect(unsafe_code, reason = "system calls for memory")]
pub(crate) mod pages;
#[cfg(feature = "std")]
pub(crate) mod panics;
#[cfg(feature = "std")]
pub(crate) mod sleep;
#[cfg(feature = "std")]
pub(crate) mod sync;
