//! Tests that need the whole process, or the whole machine: storms on all processors, floods, and memory and threads as the
//! system counts them. They run one at a time, because each holds [`alone`], except in plain `cargo test`. What is killed,
//! stopped, or floods for seconds runs in a child process of its own.

#![allow(clippy::items_after_statements, reason = "each test begins with `alone`")]
#![allow(clippy::option_option, reason = "the guard of a test that may need none, or no test")]
#![allow(clippy::cast_possible_wrap, reason = "sizes of memory fit")]

#[path = "../common/mod.rs"]
mod common;

mod abuse;
mod last_resort;
mod layers_under_load;
mod memory;
mod overload;
mod storms;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::is_brief;

/// Held by each test, except in plain `cargo test`, whose storms are short and whose bounds are wide.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    (!is_brief()).then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs the calling test in a process of its own, whose memory nobody has used before. Returns `None` when that is done, and
/// in that process the guard of [`alone`].
fn in_own_process(test: impl Fn()) -> Option<Option<MutexGuard<'static, ()>>> {
    let alone = alone();
    common::is_own_process(test).then_some(alone)
}

/// The system's allocator, and how many bytes are out in the whole process.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Returns how many bytes are out.
fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}
