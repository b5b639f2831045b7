//! The one place that knows whether the crate runs for real or inside a loom model.
//!
//! Everything that takes part in a race that a model explores comes from here. What no model
//! explores (counters, process-wide tables) uses std directly: a model runs all its threads on one, and
//! changes between them only where one of these is used.
//!
//! **Orders that all threads agree on.** Where one thread writes `a` and then reads `b`, and another
//! writes `b` and then reads `a`, and at least one of them has to see the other, `Acquire` and
//! `Release` do not do: it takes `SeqCst`. loom takes `SeqCst` accesses for `AcqRel` ones, and knows
//! only fences to be more. So such accesses go through [`InOrder`], which in a model puts a fence between
//! the write and the look, if both of them are made so: whoever weakens one takes the model's fence away.

#[cfg(all(test, loom))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(not(all(test, loom)))]
pub(crate) use self::real::UnsafeCell;
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

use std::io;
use std::sync::PoisonError;

/// Keeps an item only in a loom model, or only outside of one.
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

/// Whether this is a build for loom, in which atomics and cells are larger.
pub(crate) const IS_MODEL: bool = cfg!(loom);

/// How many free slots a thread has at hand at most, twice; few in a model, so that they come and go.
pub(crate) const MAGAZINE: usize = if cfg!(loom) { 2 } else { 128 };

/// How many records a block of a lane holds; few in a model, so that it goes from block to block.
pub(crate) const LANE_BLOCK: usize = if cfg!(loom) { 2 } else { 128 };

/// How often a pump that is about to sleep looks out for a ring first; not in a model, which tries all
/// that could happen anyway.
pub(crate) const LOOKS: usize = if cfg!(loom) { 0 } else { 200 };

/// Whether memory goes back when the last engine of the process ends. Not in a model: several run at a time in one
/// process, and each has to do the same in all of its runs.
pub(crate) const TRIMS_AT_THE_END: bool = !cfg!(loom);

/// Locks, whether or not a thread panicked while it held the lock: user code never runs under a
/// lock of ours, so what a lock guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for another thread that is about to be done.
#[cold]
pub(crate) fn spin() {
    #[cfg(not(all(test, loom)))]
    std::thread::yield_now();
    #[cfg(all(test, loom))]
    loom::thread::yield_now();
}

/// Starts a thread that nobody waits for, except at the end of a model.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(not(all(test, loom)))]
    return std::thread::Builder::new().name(name).spawn(work).map(drop);
    #[cfg(all(test, loom))]
    return crate::models::threads::start(name, work);
}

/// A static that each run of a model has anew.
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

/// A static of each thread's own, of a model's threads too.
macro_rules! local {
    ($(#[$meta:meta])* $name:ident: $kind:ty = $value:expr) => {
        #[cfg(not(all(test, loom)))]
        std::thread_local! {
            $(#[$meta])*
            static $name: $kind = const { $value };
        }
        #[cfg(all(test, loom))]
        loom::thread_local! {
            static $name: $kind = $value;
        }
    };
}
pub(crate) use local;

/// Accesses in one order that all threads agree on: a write, and after it a look at something else.
pub(crate) trait InOrder {
    type Value;
    /// A look that comes after the caller's own write.
    fn load_in_order(&self) -> Self::Value;
    /// A write that comes before the caller's own look.
    fn store_in_order(&self, value: Self::Value);
}

impl InOrder for AtomicU64 {
    type Value = u64;

    #[inline]
    fn load_in_order(&self) -> u64 {
        look_in_models();
        self.load(Ordering::SeqCst)
    }

    #[inline]
    fn store_in_order(&self, value: u64) {
        write_in_models();
        self.store(value, Ordering::SeqCst);
    }
}

impl InOrder for AtomicBool {
    type Value = bool;

    #[inline]
    fn load_in_order(&self) -> bool {
        look_in_models();
        self.load(Ordering::SeqCst)
    }

    #[inline]
    fn store_in_order(&self, value: bool) {
        write_in_models();
        self.store(value, Ordering::SeqCst);
    }
}

/// Writes that also read.
pub(crate) trait ExchangeInOrder {
    fn swap_in_order(&self, value: u64) -> u64;
    /// `Err` is a Relaxed look.
    fn exchange_in_order(&self, from: u64, to: u64) -> Result<u64, u64>;
}

impl ExchangeInOrder for AtomicU64 {
    #[inline]
    fn swap_in_order(&self, value: u64) -> u64 {
        write_in_models();
        self.swap(value, Ordering::SeqCst)
    }

    #[inline]
    fn exchange_in_order(&self, from: u64, to: u64) -> Result<u64, u64> {
        write_in_models();
        self.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
loom::thread_local! {
    /// This thread has made a write in order, and no look since.
    static HAS_WRITTEN: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

#[inline]
fn write_in_models() {
    #[cfg(all(test, loom))]
    let _ = HAS_WRITTEN.try_with(|written| written.set(true));
}

/// A fence, where both the write and the look ask for their order.
#[inline]
fn look_in_models() {
    #[cfg(all(test, loom))]
    if HAS_WRITTEN.try_with(|written| written.replace(false)).unwrap_or(true) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(not(all(test, loom)))]
mod real {
    /// std's cell with loom's face: a pointer that is lent to a closure.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
