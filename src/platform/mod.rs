//! What the crate stands on: threads, memory, the processor, and the sleeps of the operating system. The only place with
//! `cfg` for systems and processors, and the only one that knows of loom.

pub(crate) mod cpu;
#[expect(unsafe_code, reason = "the system's calls for memory")]
pub(crate) mod pages;
pub(crate) mod panics;
pub(crate) mod sleep;
pub(crate) mod sync;
