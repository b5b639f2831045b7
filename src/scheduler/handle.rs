//! What a schedule gives back: the [`Cancellable`].
//!
//! A handle names a task by slot and generation. It owns nothing, so dropping it costs nothing, and
//! a stale one finds another generation and leaves it alone (S10).
//!
//! One thing a name cannot tell for ever: *how* the task ended, once its slot has been used again.
//! So whoever wins the cancel notes it in its own handle, and a handle that is cloned shares that
//! note with its clones, through a `Family` that is made by the first `clone`.
//!
//! - HANDLE-1 A cancel that wins stores `cancelled`, and then, if the handle is shared, tells the family.
//!   A `clone` makes the family, then stores `shared`, then looks at the word of the holder. The
//!   word's transition, that look, and both sides of `shared` are `SeqCst`: either the cancel sees
//!   that the handle is shared, or the clone sees in the word that the task was cancelled, and
//!   tells the family itself.
//! - HANDLE-2 The word forgets, when the slot has been used five times more. A cancel that wins keeps the slot until it has
//!   stored `cancelled`, so a look that finds a later generation has acquired that store, and looks at `cancelled` once
//!   more. A cancel that dooms a series has no slot to keep: it stores `cancelled` in order, and the clone loads it so.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::{Arc, LazyLock};

use once_cell::race::OnceBox;

use crate::engine::registry;
use crate::engine::slots::{Cancelled, Phase, holder};
use crate::platform::sync::{AtomicBool, IS_MODEL, InOrder, Ordering};
use crate::wheel::entry::{SchedulerId, TaskKey};

/// A handle to a scheduled task or series: asks about it, and cancels it.
///
/// Dropping the handle does nothing to the task; for the opposite see
/// [`cancel_on_drop`](Cancellable::cancel_on_drop). Clones stand for the same task. A handle may
/// outlive its scheduler.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// let timeout = scheduler.schedule_once(Duration::from_secs(30), || println!("no answer"))?;
/// // The answer is here:
/// assert!(timeout.cancel());
/// assert!(timeout.is_cancelled() && timeout.is_done());
/// assert!(!timeout.cancel(), "only one cancel wins");
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
pub struct Cancellable(Inner);

enum Inner {
    Task(TaskHandle),
    Other(Arc<dyn Cancel>),
}

const _: () =
    assert!(IS_MODEL || size_of::<Cancellable>() <= 24, "handles are kept by the million");

/// Anything that can be cancelled: behind an `Arc` it becomes a [`Cancellable`].
///
/// # Contract
///
/// `cancel` returns true for exactly one caller, and only if it thereby prevented a run. After
/// that the task does not start, and what it captured has been dropped, unless it is running.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tickwheel::{Cancel, Cancellable};
///
/// #[derive(Default)]
/// struct Request {
///     cancelled: AtomicBool,
/// }
///
/// impl Cancel for Request {
///     fn cancel(&self) -> bool {
///         !self.cancelled.swap(true, Ordering::AcqRel)
///     }
///     fn is_cancelled(&self) -> bool {
///         self.cancelled.load(Ordering::Acquire)
///     }
///     fn is_done(&self) -> bool {
///         self.is_cancelled()
///     }
/// }
///
/// let handle = Cancellable::from(Arc::new(Request::default()));
/// assert!(handle.cancel() && !handle.cancel());
/// ```
pub trait Cancel: Send + Sync + 'static {
    /// Prevents what has not started; see the contract.
    fn cancel(&self) -> bool;
    /// Whether it was ended by a cancel that won.
    fn is_cancelled(&self) -> bool;
    /// Whether it will never run again, for whatever reason.
    fn is_done(&self) -> bool;
}

impl<C: Cancel> From<Arc<C>> for Cancellable {
    fn from(other: Arc<C>) -> Cancellable {
        Cancellable(Inner::Other(other))
    }
}

impl Cancellable {
    #[inline]
    pub(crate) fn new(key: TaskKey, scheduler: SchedulerId) -> Cancellable {
        Cancellable(Inner::Task(TaskHandle::new(key, scheduler)))
    }

    /// A handle to a task that is known to have been cancelled.
    pub(crate) fn cancelled(key: TaskKey, scheduler: SchedulerId) -> Cancellable {
        let mut handle = TaskHandle::new(key, scheduler);
        handle.cancelled = AtomicBool::new(true);
        Cancellable(Inner::Task(handle))
    }

    /// A handle to nothing: it says that it was cancelled.
    pub fn already_cancelled() -> Cancellable {
        Cancellable(Inner::Task(TaskHandle::of_nothing()))
    }

    /// Cancels the task. True for exactly one caller, and only if that prevented its run (for a
    /// series: all further runs).
    ///
    /// What the task captured has been dropped when this returns, unless the task is running. Tasks
    /// that wait in an executor's queue, or among the leftovers of a close, are cancelled too.
    pub fn cancel(&self) -> bool {
        match &self.0 {
            Inner::Task(task) => task.cancel(),
            Inner::Other(other) => other.cancel(),
        }
    }

    /// Whether it was ended by a cancel that won.
    ///
    /// Handles and their clones know of each other's cancels for ever. Of a leftover that was cancelled by its
    /// [`PendingTask`](crate::PendingTask), or by the handle that a [move](crate::PendingTask::reschedule) gave, an
    /// earlier handle knows it for a while: later it only says that the task [is done](Cancellable::is_done).
    pub fn is_cancelled(&self) -> bool {
        match &self.0 {
            Inner::Task(task) => task.is_cancelled(),
            Inner::Other(other) => other.is_cancelled(),
        }
    }

    /// Whether it will never run again, for whatever reason. While a one-shot runs this is still
    /// false.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Task(task) => task.is_done(),
            Inner::Other(other) => other.is_done(),
        }
    }

    /// Ties the task to a scope: it is cancelled when the guard is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// {
    ///     let _alarm = scheduler
    ///         .schedule_once(Duration::from_secs(5), || eprintln!("still busy after 5 s"))?
    ///         .cancel_on_drop();
    ///     // ... work ...
    /// }
    /// assert_eq!(scheduler.pending(), 0);
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop { handle: Some(self) }
    }
}

impl Clone for Cancellable {
    fn clone(&self) -> Cancellable {
        Cancellable(match &self.0 {
            Inner::Task(task) => Inner::Task(task.clone()),
            Inner::Other(other) => Inner::Other(Arc::clone(other)),
        })
    }
}

/// Two handles are equal if they stand for the same task. Those to [nothing](Cancellable::already_cancelled) are equal to
/// each other.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// let minute = Duration::from_secs(60);
/// let (one, other) = (scheduler.schedule_once(minute, || ())?, scheduler.schedule_once(minute, || ())?);
/// assert!(one == one.clone() && one != other);
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
impl PartialEq for Cancellable {
    fn eq(&self, other: &Cancellable) -> bool {
        match (&self.0, &other.0) {
            (Inner::Task(one), Inner::Task(other)) => one.key == other.key,
            (Inner::Other(one), Inner::Other(other)) => {
                ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
            }
            _ => false,
        }
    }
}

impl Eq for Cancellable {}

impl Hash for Cancellable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Inner::Task(task) => task.key.hash(state),
            Inner::Other(other) => Arc::as_ptr(other).cast::<()>().hash(state),
        }
    }
}

impl fmt::Debug for Cancellable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellable")
            .field("is_cancelled", &self.is_cancelled())
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// Cancels its task when it is dropped: see [`Cancellable::cancel_on_drop`].
#[derive(Debug)]
#[must_use = "dropping the guard cancels the task"]
pub struct CancelOnDrop {
    /// `None` once it was let go.
    handle: Option<Cancellable>,
}

impl CancelOnDrop {
    /// Lets the task go its own way again.
    pub fn into_handle(mut self) -> Cancellable {
        self.handle.take().unwrap_or_else(Cancellable::already_cancelled)
    }
}

/// What a guard that was let go looks at.
static NOTHING: LazyLock<Cancellable> = LazyLock::new(Cancellable::already_cancelled);

impl std::ops::Deref for CancelOnDrop {
    type Target = Cancellable;

    fn deref(&self) -> &Cancellable {
        self.handle.as_ref().unwrap_or(&NOTHING)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.cancel();
        }
    }
}

/// The handle of a task of a scheduler.
struct TaskHandle {
    key: TaskKey,
    scheduler: SchedulerId,
    /// This very handle won the cancel.
    cancelled: AtomicBool,
    /// There is a family; HANDLE-1.
    shared: AtomicBool,
    family: OnceBox<Family>,
}

/// What a handle and its clones know together: whether one of them has cancelled.
#[derive(Clone, Default)]
struct Family(Arc<AtomicBool>);

impl Family {
    // Relaxed: it tells what happened, and publishes nothing.
    fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn knows(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl TaskHandle {
    #[inline]
    fn new(key: TaskKey, scheduler: SchedulerId) -> TaskHandle {
        let (cancelled, shared) = (AtomicBool::new(false), AtomicBool::new(false));
        TaskHandle { key, scheduler, cancelled, shared, family: OnceBox::new() }
    }

    /// No task has the generation 0, so this one can neither cancel nor be cancelled.
    fn of_nothing() -> TaskHandle {
        let mut handle = TaskHandle::new(TaskKey { slot: 0, generation: 0 }, SchedulerId::FIRST);
        handle.cancelled = AtomicBool::new(true);
        handle
    }

    fn cancel(&self) -> bool {
        match holder::cancel(self.key) {
            Cancelled::Lost => return false,
            Cancelled::Doomed { moved_to } => {
                self.cancelled.store_in_order(true);
                self.tell_family();
                registry::count_cancel(moved_to.unwrap_or(self.scheduler), true);
            }
            Cancelled::Won { was, body, slot, moved_to } => {
                let scheduler = moved_to.unwrap_or(self.scheduler);
                // Relaxed: the slot has not been used again; HANDLE-2.
                self.cancelled.store(true, Ordering::Relaxed);
                self.tell_family();
                drop(slot);
                registry::count_cancel(scheduler, was == Phase::Pending);
                if let Some(thrown) = body.discard() {
                    registry::report(scheduler, thrown); // S9
                }
            }
        }
        true
    }

    /// HANDLE-1.
    fn tell_family(&self) {
        if self.shared.load_in_order() {
            self.family.get().into_iter().for_each(Family::tell);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load_in_order()
            || self.family.get().is_some_and(Family::knows)
            || self.was_cancelled_by_word()
            || self.cancelled.load(Ordering::Relaxed) // HANDLE-2
    }

    /// What the holder's word remembers; HANDLE-1.
    fn was_cancelled_by_word(&self) -> bool {
        holder::word_in_order(self.key).is_some_and(|word| {
            let doomed = word.generation() == self.key.generation && word.phase() == Phase::Doomed;
            doomed || word.ended_by_cancel(self.key.generation) == Some(true)
        })
    }

    fn is_done(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.key.generation == 0 // a clone of a handle to nothing
            || holder::word(self.key).is_none_or(|word| {
                let is_over = matches!(word.phase(), Phase::Doomed | Phase::Ending);
                word.generation() != self.key.generation || is_over
            })
    }
}

impl Clone for TaskHandle {
    /// HANDLE-1.
    fn clone(&self) -> TaskHandle {
        let family = self.family.get_or_init(Box::default);
        self.shared.store_in_order(true);
        if self.is_cancelled() {
            family.tell();
        }
        let clone = OnceBox::new();
        let _ = clone.set(Box::new(family.clone())); // it is new, so it is empty
        TaskHandle {
            key: self.key,
            scheduler: self.scheduler,
            cancelled: AtomicBool::new(false),
            shared: AtomicBool::new(true),
            family: clone,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::slots::holder::Vacancy;

    /// The word of a holder that was never used, or whose page has gone back, is zero. No task has that generation.
    #[test]
    fn s08_a_handle_to_nothing_is_done_where_a_holder_was_never_used() {
        assert!(Vacancy::take().is_some(), "the first block is there");
        let key = TaskKey { slot: (1 << 15) - 1, generation: 0 }; // the last one of the first block
        let handle = TaskHandle::new(key, SchedulerId::FIRST);
        assert!(handle.is_done() && !handle.cancel());
        let clone = Cancellable::already_cancelled().clone();
        assert!(clone.is_done() && clone.is_cancelled() && !clone.cancel());
    }
}
