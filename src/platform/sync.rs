//! The switch between std and loom: the only file that knows whether the crate runs inside a loom model.
//!
//! Everything that takes part in a race that a model explores comes from here. Counters and process-wide tables that no
//! model explores use std directly: a model runs all its threads on one thread of the system, and
//! switches between them only where one of these types is used.
//!
//! **Orders that all threads agree on.** One thread writes `a` and then reads `b`, another
//! writes `b` and then reads `a`, and at least one of them has to see the write of the other. `Acquire` and
//! `Release` do not suffice for that; it takes `SeqCst`. loom treats `SeqCst` accesses as `AcqRel` ones, and supports
//! `SeqCst` only in fences. So the atomics of a model put a fence between the write and the load, but only if both are
//! `SeqCst`. So a model fails if one of them is weakened.

#[cfg(all(test, loom))]
pub(crate) use self::model::{AtomicBool, AtomicU64, thread_local};
#[cfg(all(test, loom))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::Ordering,
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(not(all(test, loom)))]
pub(crate) use self::real::UnsafeCell;
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread_local,
};

use std::io;
use std::sync::PoisonError;

/// `in_models!` keeps an item only in a loom model, `outside_models!` only outside of one.
macro_rules! in_models {
    ($($item:tt)*) => {
        #[cfg(all(test, loom))]
        $($item)*
    };
}
macro_rules! outside_models {
    ($($item:tt)*) => {
        #[cfg(not(all(test, loom)))]
        $($item)*
    };
}
pub(crate) use {in_models, outside_models};

/// True in a build for loom, in which atomics and cells are larger.
pub(crate) const IS_MODEL: bool = cfg!(loom);

/// The size of a magazine, of which each thread has at most two. It is small in a model, so that slots come and go.
pub(crate) const MAGAZINE: usize = if cfg!(loom) { 2 } else { 128 };

/// The number of records in a block of a lane. It is small in a model, so that a lane has several blocks.
pub(crate) const LANE_BLOCK: usize = if cfg!(loom) { 2 } else { 128 };

/// How often a pump that is about to sleep looks for a wake first. Not in a model, which tries all interleavings anyway.
pub(crate) const LOOKS: usize = if cfg!(loom) { 0 } else { 200 };

/// Locks a mutex, poisoned or not. User code never runs under a lock of ours, so the data under it is always consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], for a mutex that stays std's in a model.
pub(crate) fn lock_std<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The patience of a thread that waits for another one, which will be done in some instructions.
///
/// It yields, and after a while it sleeps: if the other thread has a lower priority and no processor, a yield does not
/// let it run.
#[derive(Default)]
pub(crate) struct Patience {
    yields: u32,
}

impl Patience {
    #[cold]
    pub(crate) fn spin(&mut self) {
        self.yields = self.yields.saturating_add(1);
        #[cfg(all(test, loom))]
        loom::thread::yield_now();
        #[cfg(not(all(test, loom)))]
        match self.yields {
            ..100 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
}

/// Starts a thread that is never joined, except at the end of a model.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(not(all(test, loom)))]
    return std::thread::Builder::new().name(name).spawn(work).map(drop);
    #[cfg(all(test, loom))]
    return crate::models::threads::start(name, work);
}

/// Defines a static. In a model, each run has it anew.
macro_rules! global {
    ($name:ident: $kind:ty = $value:expr) => {
        #[cfg(not(all(test, loom)))]
        static $name: $kind = $value;
        #[cfg(all(test, loom))]
        loom::lazy_static! {
            static ref $name: $kind = $value;
        }
    };
}
pub(crate) use global;

#[cfg(not(all(test, loom)))]
mod real {
    /// std's cell with the interface of loom's, which lends a pointer to a closure.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// loom's atomics, with a fence before each `SeqCst` load that follows a `SeqCst` write of the same thread. A
/// read-modify-write counts as a write.
#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;
    use std::ops::Deref;

    use loom::sync::atomic::{self, Ordering, fence};

    loom::thread_local! {
        /// True if this thread has made a `SeqCst` write, and no `SeqCst` load since.
        static HAS_WRITTEN: Cell<bool> = Cell::new(false);
    }

    fn write(order: Ordering) {
        if order == Ordering::SeqCst {
            let _ = HAS_WRITTEN.try_with(|written| written.set(true));
        }
    }

    fn load(order: Ordering) {
        let has_written = || HAS_WRITTEN.try_with(|written| written.replace(false)).unwrap_or(true);
        if order == Ordering::SeqCst && has_written() {
            fence(Ordering::SeqCst);
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code, reason = "some accesses are made to one of them only")]
            impl $name {
                pub(crate) fn new(value: $value) -> $name {
                    $name(atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    load(order);
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    write(order);
                    self.0.store(value, order);
                }

                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    write(order);
                    self.0.swap(value, order)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    write(success);
                    self.0.compare_exchange(from, to, success, failure)
                }
            }

            /// To the other accesses, which are in no such order.
            impl Deref for $name {
                type Target = atomic::$name;

                fn deref(&self) -> &atomic::$name {
                    &self.0
                }
            }
        };
    }
    atomic!(AtomicU64, u64);
    atomic!(AtomicBool, bool);

    /// loom's thread-locals, in the words of std's. Each thread of a model has its own.
    macro_rules! of_each_thread {
        ($($(#[$meta:meta])* static $name:ident: $kind:ty = const $value:block);* $(;)?) => {
            loom::thread_local! {
                $(static $name: $kind = $value;)*
            }
        };
    }
    pub(crate) use of_each_thread as thread_local;
}
