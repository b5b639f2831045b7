//! The [`Cancellable`]: a handle to a task, which every `schedule_*` method returns.
//!
//! A handle of a scheduler's task has the slot and the birth of that task. It owns nothing, so dropping it costs
//! nothing. If the slot has been used again, the birth differs, and the handle leaves the new task alone (S10).
//!
//! The holder's word tells whether the task ended, but after the slot was used again, it does not tell *how*. So a
//! handle that wins the cancel notes this in itself. A handle and its clones share a [`SharedOutcome`] for the same
//! purpose, which is made by the first `clone`.
//!
//! To add a method to the handle: a handle is either a task of a scheduler or any [`Cancel`] (see `Inner`), so a method
//! says what it does for each of the two. For a task, it reads the holder's word, by `task::word`, which compares the birth.
//! For the other, it calls a method of `Cancel`, which needs a default there.
//!
//! - HANDLE-1 A cancel that wins stores `cancelled`, and then, if the handle is shared, sets the shared outcome. A
//!   `clone` makes the shared outcome, then stores `is_shared`, then looks at the word of the holder. The word's
//!   transition, that look, and both sides of `is_shared` are `SeqCst`. So either the cancel sees that the handle is
//!   shared, or the clone sees in the word that the task was cancelled, and sets the shared outcome itself.
//! - HANDLE-2 The holder forgets how a task ended when the slot is used again. A cancel that wins keeps the slot until it
//!   has stored `cancelled` and the shared outcome, so a look that finds a later task has acquired these stores, and looks
//!   at both once more. A cancel that dooms a series has no slot to keep. Its store to `cancelled` and the clone's load are
//!   `SeqCst`. Until that cancel returns, another handle may find the series done and not cancelled.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use crate::engine::handles;
use crate::engine::slots::state::NotEnded;
use crate::engine::slots::{Phase, task};
use crate::error::{ScheduleError, TryScheduleError};
use crate::platform::impls::impl_debug;
use crate::platform::sync::{AtomicBool, IS_MODEL, Ordering};
use crate::wheel::entry::{SchedulerId, TaskKey};

/// A handle to a scheduled task or series, which cancels it, or tells what has become of it.
///
/// Dropping the handle does not cancel the task. For a guard that does, see
/// [`cancel_on_drop`](Cancellable::cancel_on_drop). Clones stand for the same task. A handle may outlive its scheduler.
///
/// To move the deadline, [`reset`](Cancellable::reset) takes a delay from now, and [`reset_at`](Cancellable::reset_at) an
/// instant.
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
#[derive(Clone)]
pub struct Cancellable(Inner);

#[derive(Clone)]
enum Inner {
    Task(TaskHandle),
    Other(Arc<dyn Cancel>),
}

const _: () =
    assert!(IS_MODEL || size_of::<Cancellable>() <= 24, "handles are kept by the million");

/// What scheduling a task returns: a handle, or the reason why the task was refused.
pub(super) type Scheduled = Result<Cancellable, ScheduleError>;

/// Like [`Scheduled`], but the error holds the task too.
pub(super) type TryScheduled<T> = Result<Cancellable, TryScheduleError<T>>;

/// Anything that can be cancelled. An `Arc` of it can be converted into a [`Cancellable`].
///
/// # Contract
///
/// `cancel` returns true for exactly one caller, and only if this call has prevented a run. After that the task does
/// not start, and the values that it captured have been dropped, unless it is running.
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
#[expect(unused_variables, reason = "the defaults do nothing")]
pub trait Cancel: Send + Sync + 'static {
    /// Cancels the task. Returns true if this call has prevented a run: see the contract.
    fn cancel(&self) -> bool;
    /// Returns true if a cancel has ended the task.
    fn is_cancelled(&self) -> bool;
    /// Returns true if the task will never run again, for whatever reason.
    fn is_done(&self) -> bool;

    /// Moves the deadline to `delay` from now: see [`Cancellable::reset`]. By default it does nothing, and returns
    /// false.
    fn reset(&self, delay: Duration) -> bool {
        false
    }

    /// Moves the deadline: see [`Cancellable::reset_at`]. By default it does nothing, and returns false.
    fn reset_at(&self, deadline: Instant) -> bool {
        false
    }

    /// Returns the deadline: see [`Cancellable::deadline`]. By default it is not known.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl<C: Cancel> From<Arc<C>> for Cancellable {
    fn from(other: Arc<C>) -> Cancellable {
        Cancellable(Inner::Other(other))
    }
}

impl Cancellable {
    #[inline]
    pub(crate) fn new(key: TaskKey, scheduler: SchedulerId) -> Cancellable {
        Cancellable(Inner::Task(TaskHandle::new(key, scheduler, false)))
    }

    /// Makes a handle to a task that is known to have been cancelled.
    pub(super) fn cancelled(key: TaskKey, scheduler: SchedulerId) -> Cancellable {
        Cancellable(Inner::Task(TaskHandle::new(key, scheduler, true)))
    }

    /// Makes a handle to no task. It tells that it was cancelled.
    pub fn already_cancelled() -> Cancellable {
        Cancellable::cancelled(TaskKey::NONE, SchedulerId::FIRST)
    }

    /// Cancels the task. Returns true for exactly one caller, and only if this call has prevented the run (of a series:
    /// all further runs).
    ///
    /// When it returns, the values that the task captured have been dropped, unless the task is running. A task that
    /// waits in an executor's queue, or among the leftovers of a close, can be cancelled too.
    ///
    /// The drops run in this call, so hold no lock that they take. A task may own the last handle of a pool or a worker, which
    /// ends with it.
    pub fn cancel(&self) -> bool {
        self.either(TaskHandle::cancel, Cancel::cancel)
    }

    /// Returns true if a cancel has ended the task.
    ///
    /// Rely on the answer of the handle that has cancelled the task, or of a clone of that handle. Other handles of the
    /// task, such as those of a leftover that its [`PendingTask`](crate::PendingTask) has cancelled, may say only that it
    /// [is done](Cancellable::is_done).
    pub fn is_cancelled(&self) -> bool {
        self.either(TaskHandle::is_cancelled, Cancel::is_cancelled)
    }

    /// Returns true if the task will never run again, for whatever reason. Returns false while a one-shot runs.
    pub fn is_done(&self) -> bool {
        self.either(TaskHandle::is_done, Cancel::is_done)
    }

    /// Moves the deadline to `delay` from now, earlier or later: the task stays the same, under the same handle.
    ///
    /// Returns true if the task will run once, not before the new deadline, and not at the old one. Returns false if it
    /// has started, is over, or was cancelled. Then nothing has changed. If several threads do this at the same time,
    /// the last one that returns true counts. The task has no promised position among others of the same deadline.
    ///
    /// - Of a series the next run moves, to now at the earliest, and a fixed rate goes on from there. While a run is in
    ///   progress, the run after it moves.
    /// - A task that waits in an executor's queue can still be moved. It does not run at its old time then. When the executor
    ///   comes to it, it runs if the new time has come, and otherwise waits for that in the scheduler. An executor that keeps it
    ///   keeps it beyond that time too.
    /// - Of a task that a close has returned, [`PendingTask::deadline`](crate::PendingTask::deadline) moves.
    ///
    /// A deadline that moves further away costs little: no memory and no wake-up, and the tick thread looks at the task
    /// once, at the time at which it would have run. So this is the way to a timeout that each packet pushes further:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let idle = Duration::from_secs(30);
    /// let timeout = scheduler.schedule_once(idle, || println!("closed: idle for 30 s"))?;
    /// for _packet in 0..100 {
    ///     driver.advance(Duration::from_secs(20));
    ///     assert!(timeout.reset(idle));
    /// }
    /// assert_eq!(timeout.deadline(), Some(scheduler.now() + idle));
    /// assert_eq!(driver.advance(idle), 1);
    /// assert!(!timeout.reset(idle), "it has run");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// This works for the tasks of a [`Scheduler`](crate::Scheduler), and for those of workers, pools and message loops.
    /// The layers take locks for it, and a pool takes O(log n). A layer that has ended moves nothing: a loop that takes no
    /// more posts, a pool of whose tasks [`shutdown_now`](crate::pool::ScheduledThreadPool::shutdown_now) has returned
    /// this one. A task that was posted to a loop without a delay counts as a delayed one after a reset. A handle to
    /// another type returns false, unless that type's [`Cancel`] implements `reset`.
    pub fn reset(&self, delay: Duration) -> bool {
        self.either(|it| handles::reset(it.key, it.scheduler, delay), |it| it.reset(delay))
    }

    /// Moves the deadline to an instant, like [`reset`](Cancellable::reset). If the instant has passed, the task is due
    /// now, and its [`deadline`](Cancellable::deadline) is that instant (of a series, it is the present).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let minute = Duration::from_secs(60);
    /// let task = scheduler.schedule_once(60 * minute, || println!("sooner"))?;
    /// assert!(task.reset_at(scheduler.now() + minute));
    /// assert_eq!(driver.advance(minute), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_at(&self, deadline: Instant) -> bool {
        let reset = |task: &TaskHandle| handles::reset_at(task.key, task.scheduler, deadline);
        self.either(reset, |other| other.reset_at(deadline))
    }

    /// Returns when the next run is due. Returns `None` while the task runs, when it is over, and if the handle cannot
    /// tell. For a task that is never due, returns the latest instant of the clock. For a task of a worker or a loop that
    /// waits for nothing but its turn, returns the present.
    pub fn deadline(&self) -> Option<Instant> {
        self.either(|task| handles::deadline(task.key), Cancel::deadline)
    }

    /// Returns a guard that cancels the task when it is dropped.
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
        CancelOnDrop { handle: self }
    }

    /// Returns what tells the task from others.
    fn identity(&self) -> Result<TaskKey, *const ()> {
        // Without the vtable, of which there may be several for one type.
        self.either(|task| Ok(task.key), |other| Err(std::ptr::from_ref(other).cast()))
    }

    /// Calls `of_task` or `of_other`, with what the handle stands for.
    #[inline]
    fn either<R>(
        &self,
        of_task: impl FnOnce(&TaskHandle) -> R,
        of_other: impl FnOnce(&dyn Cancel) -> R,
    ) -> R {
        match &self.0 {
            Inner::Task(task) => of_task(task),
            Inner::Other(other) => of_other(&**other),
        }
    }
}

/// Two handles are equal if they stand for the same task. Handles to [no task](Cancellable::already_cancelled) are
/// equal to each other.
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
        self.identity() == other.identity()
    }
}

impl Eq for Cancellable {}

impl Hash for Cancellable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl_debug!(Cancellable, self, is_cancelled: self.is_cancelled(), is_done: self.is_done());

/// A guard that cancels its task when it is dropped: see [`Cancellable::cancel_on_drop`].
///
/// Bind it to a name. `let _guard = ..` keeps it to the end of the block, but `let _ = ..` drops it at once, and cancels
/// the task.
#[derive(Debug)]
#[must_use = "dropping the guard cancels the task"]
pub struct CancelOnDrop {
    handle: Cancellable,
}

impl CancelOnDrop {
    /// Returns the handle, and does not cancel the task.
    pub fn into_handle(mut self) -> Cancellable {
        std::mem::replace(&mut self.handle, Cancellable::already_cancelled())
    }
}

impl std::ops::Deref for CancelOnDrop {
    type Target = Cancellable;

    fn deref(&self) -> &Cancellable {
        &self.handle
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.handle.cancel(); // a guard that was let go has a handle to nothing
    }
}

/// True if the task was cancelled by a handle or one of its clones, which share this. Relaxed: it tells only this, and
/// publishes nothing.
type SharedOutcome = Arc<AtomicBool>;

/// The handle of a task of a scheduler.
struct TaskHandle {
    key: TaskKey,
    /// The one that gave out the handle. The task may have moved to another one since.
    scheduler: SchedulerId,
    /// True if this very handle has won the cancel.
    cancelled: AtomicBool,
    /// True if there is a shared outcome, which a cancel must set (HANDLE-1).
    is_shared: AtomicBool,
    shared_outcome: OnceBox<SharedOutcome>,
}

impl TaskHandle {
    #[inline]
    fn new(key: TaskKey, scheduler: SchedulerId, is_cancelled: bool) -> TaskHandle {
        let (cancelled, is_shared) = (AtomicBool::new(is_cancelled), AtomicBool::new(false));
        TaskHandle { key, scheduler, cancelled, is_shared, shared_outcome: OnceBox::new() }
    }

    fn cancel(&self) -> bool {
        let (task, scheduler) = match task::cancel(self.key) {
            (Ok(task), scheduler) => (task, scheduler),
            (Err(NotEnded::Doomed), scheduler) => {
                // A series, in its run. Pairs with the load in `is_cancelled` (HANDLE-2).
                self.cancelled.store(true, Ordering::SeqCst);
                self.tell_clones();
                // It counts as pending in its runs too. The runner drops the closure.
                handles::count_cancel::<true>(scheduler, true);
                return true;
            }
            (Err(NotEnded::Lost), _) => return false,
        };
        // Relaxed: the slot is not given back yet, so the word still tells how the task ended (HANDLE-2).
        self.cancelled.store(true, Ordering::Relaxed);
        self.tell_clones();
        // Counted before the closure is dropped, which may take long, and may schedule another task.
        handles::count_cancel::<true>(scheduler, task.was_pending());
        let (thrown, over) = task.discard();
        over.end();
        if let Some(thrown) = thrown {
            handles::report(scheduler, *thrown); // the drop of a captured value has panicked (S9)
        }
        true
    }

    /// Sets the shared outcome, if a clone has been made.
    fn tell_clones(&self) {
        // Pairs with the store in `clone` (HANDLE-1).
        if self.is_shared.load(Ordering::SeqCst) {
            if let Some(outcome) = self.shared_outcome.get() {
                outcome.store(true, Ordering::Relaxed);
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        // The cheap looks first. `SeqCst`, for the cancel of a series in its run, which keeps no slot (HANDLE-2).
        let is_noted = || {
            let shared = || self.shared_outcome.get().is_some_and(|it| it.load(Ordering::Relaxed));
            self.cancelled.load(Ordering::SeqCst) || shared()
        };
        is_noted()
            || task::is_known_as_cancelled(self.key) // in order with every cancel (HANDLE-1)
            || is_noted() // once more, after the look at the word (HANDLE-2)
    }

    fn is_done(&self) -> bool {
        // Relaxed: if it is not seen yet, the word tells the same.
        self.cancelled.load(Ordering::Relaxed)
            || task::word(self.key).is_none_or(|word| {
                matches!(word.phase(), Phase::Free | Phase::Doomed | Phase::Ending)
            })
    }
}

impl Clone for TaskHandle {
    /// Returns a handle to the same task, which shares its outcome with this one.
    fn clone(&self) -> TaskHandle {
        // Made by the first clone, because most handles are never cloned.
        let outcome = self.shared_outcome.get_or_init(Box::default);
        // The outcome first, then the flag, then the look: a cancel that has not seen the flag is seen by the look
        // (HANDLE-1).
        self.is_shared.store(true, Ordering::SeqCst);
        if self.is_cancelled() {
            outcome.store(true, Ordering::Relaxed);
        }
        let mut clone = TaskHandle::new(self.key, self.scheduler, false);
        clone.is_shared = AtomicBool::new(true);
        let _ = clone.shared_outcome.set(Box::new(Arc::clone(outcome))); // it is new, so it is empty
        clone
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::tick::Moment;

    /// The word of a holder that was never used, or whose page has gone back, is zero.
    #[test]
    fn s08_a_handle_to_nothing_is_done_where_a_holder_was_never_used() {
        let filled = task::fill(|| (), None, None, Moment(1), SchedulerId::FIRST);
        assert!(filled.is_ok(), "the first block is there");
        let key = TaskKey::new((1 << 15) - 1, 1); // the last one of the first block
        let handle = TaskHandle::new(key, SchedulerId::FIRST, false);
        assert!(handle.is_done() && !handle.cancel());
        let clone = Cancellable::already_cancelled().clone();
        assert!(clone.is_done() && clone.is_cancelled() && !clone.cancel());
    }
}
