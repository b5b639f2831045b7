//! The end of a scheduler as a user meets it: [`Stopping`], [`Leftovers`], [`PendingTask`].
//!
//! ```text
//!   stop() ----> is_closing, bell            engine: closes all lanes, collects what is
//!     |                                              pending, marks each task as returned
//!     v                                         |
//!   Stopping <---------- Termination <----------' fulfil
//!     | wait, wait_timeout, .await      <---------- the runs of series end
//!     v
//!   Leftovers --> PendingTask: run, cancel, reschedule, or drop
//! ```
//!
//! A task that was returned is in the phase `Returned`. Its handles can still cancel it. A run and a cancel both claim the
//! task first, so only one of them gets it (S8).
//!
//! A series whose run is in progress when it is returned (`is_in_run`) belongs to the thread of that run. What the user
//! does with its `PendingTask` is done by this thread, after the run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::clock::tick::Moment;
use crate::engine::admit::Reservation;
use crate::engine::shared::Shared;
use crate::engine::slots::task::{self, Leftover};
use crate::engine::slots::{Running, deadline};
use crate::engine::termination::{Decision, Leaver};
use crate::error::TryScheduleError;
use crate::executor::numbered::NumberedExecutor;
use crate::platform::impls::impl_debug;
use crate::scheduler::Scheduler;
use crate::scheduler::handle::{Cancellable, Scheduled, TryScheduled};
use crate::wake::wait_list::Ticket;

/// A scheduler that is being stopped: what [`Scheduler::stop`](crate::Scheduler::stop) returns.
///
/// It can be waited for, or awaited under any runtime. The first caller that takes the leftovers gets them all, so a
/// poll after the end, or a second `Stopping`, gets none.
///
/// Dropping it before that gives the leftovers up, unless there is another `Stopping`, or another thread is in a
/// [`close`](crate::Scheduler::close): they are dropped on the tick thread, and a later close gets none.
/// `drop(scheduler.stop())` ends a scheduler like that, also one whose tasks hold it.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// scheduler.schedule_once(Duration::from_secs(3600), || println!("in an hour"))?;
/// let leftovers = scheduler.stop().wait();
/// assert_eq!(leftovers.len(), 1);
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[must_use = "dropping it does not undo the stop, and drops the leftovers: get them by `wait` or `.await`"]
pub struct Stopping {
    shared: Arc<Shared>,
    /// Names the waker of the last poll, which the end has.
    waiter: Option<Ticket>,
    /// It may still take the leftovers.
    is_taker: bool,
}

impl Stopping {
    /// Stops a scheduler if `stops`. Otherwise makes a `Stopping` that is ready without leftovers.
    pub(super) fn new(shared: &Arc<Shared>, stops: bool) -> Stopping {
        if stops {
            shared.termination.join(); // before the stop, so that the end finds a taker and keeps the leftovers
            shared.stop();
        }
        Stopping { shared: Arc::clone(shared), waiter: None, is_taker: stops }
    }

    /// Waits for the end without a timeout, and returns the leftovers.
    ///
    /// Inside a task on the tick thread, it would wait for itself. There it returns no leftovers, at once, and another
    /// thread can take them.
    pub fn wait(mut self) -> Leftovers {
        // The tick thread would wait for itself.
        let may_wait = self.is_taker && !self.shared.is_turned_here();
        let taken = if may_wait { self.shared.termination.wait(Duration::MAX) } else { None };
        self.leave_with(taken.unwrap_or_default())
    }

    /// Wraps leftovers that were taken, and notes that this no longer waits.
    pub(super) fn leave_with(&mut self, taken: Vec<Leftover>) -> Leftovers {
        self.leave(Leaver::Taker);
        Leftovers { shared: Arc::clone(&self.shared), tasks: taken.into_iter() }
    }

    /// Notes that it does not wait any more.
    pub(super) fn leave(&mut self, leaver: Leaver) {
        if std::mem::take(&mut self.is_taker) {
            self.shared.drop_leftovers(self.shared.termination.leave(leaver));
        }
    }

    /// Like [`wait`](Stopping::wait), but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Returns itself if the end has not come in time. On the tick thread, it does so at once.
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Leftovers, Stopping> {
        if !self.is_taker {
            return Ok(self.wait());
        }
        // The tick thread would wait for itself, so it only looks.
        let timeout = if self.shared.is_turned_here() { Duration::ZERO } else { timeout };
        let taken = self.shared.termination.wait(timeout);
        taken.map(|leftovers| self.leave_with(leftovers)).ok_or(self)
    }
}

impl Future for Stopping {
    type Output = Leftovers;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Leftovers> {
        let this = self.get_mut();
        if !this.is_taker {
            return Poll::Ready(this.leave_with(Vec::new()));
        }
        let polled = this.shared.termination.poll(&mut this.waiter, context.waker());
        polled.map(|leftovers| this.leave_with(leftovers))
    }
}

impl Drop for Stopping {
    /// Takes its waker back, and gives the leftovers up.
    fn drop(&mut self) {
        // The end may be far, and the scheduler may live on. Neither must keep the waker of a task that waits no more.
        let waker = self.waiter.and_then(|waiter| self.shared.termination.forget(waiter));
        // A waker's `Drop` is user code, so its panic is reported (S9).
        self.shared.hooks.catch(|| drop(waker));
        self.leave(Leaver::TakerThatGivesUp);
    }
}

impl_debug!(Stopping, self, has_ended: self.shared.termination.has_come());

/// The tasks that were pending when a scheduler closed, in order of their deadlines.
///
/// Each can be run, cancelled, or moved to another scheduler. Their handles still work: a task that is cancelled in the
/// meantime does nothing when it is run. If leftovers are dropped, their tasks are dropped, and count so.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (first, second) = (Scheduler::new(), Scheduler::new());
/// first.schedule_once(Duration::from_millis(20), || println!("carried over"))?;
/// for task in first.close()? {
///     task.reschedule(&second)?;
/// }
/// assert_eq!(second.pending(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "leftovers that are dropped are tasks that never run"]
pub struct Leftovers {
    shared: Arc<Shared>,
    tasks: std::vec::IntoIter<Leftover>,
}

impl Leftovers {
    /// Returns how many tasks are left over.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns true if no task is left over.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all of them on the calling thread, in order. A repeating task runs once. If one panics, the panic is
    /// reported to the scheduler's `on_panic`, and the rest still run. Returns how many runs were started. A series whose run is
    /// still in progress does not count: it runs after that, as [`PendingTask::run`] says.
    pub fn run_all(self) -> usize {
        self.into_iter().map(PendingTask::start).filter(|was_started| *was_started).count()
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.shared.drop_leftovers(self.tasks.by_ref());
    }
}

impl IntoIterator for Leftovers {
    type Item = PendingTask;
    type IntoIter = LeftoversIter;

    fn into_iter(self) -> LeftoversIter {
        LeftoversIter(self)
    }
}

impl_debug!(Leftovers, self, len: self.len());

/// The iterator over [`Leftovers`].
#[derive(Debug)]
#[must_use = "leftovers that are dropped are tasks that never run"]
pub struct LeftoversIter(Leftovers);

impl Iterator for LeftoversIter {
    type Item = PendingTask;

    fn next(&mut self) -> Option<PendingTask> {
        let task = self.0.tasks.next()?;
        Some(PendingTask { shared: Arc::clone(&self.0.shared), task: Some(task) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.tasks.size_hint()
    }
}

impl ExactSizeIterator for LeftoversIter {}

/// A task that was pending when its scheduler closed. Dropping it drops the task.
#[must_use = "a task that is dropped never runs: `run`, `cancel` or `reschedule` it"]
pub struct PendingTask {
    shared: Arc<Shared>,
    /// `None` once it was run, cancelled or moved.
    task: Option<Leftover>,
}

impl PendingTask {
    /// Returns how long it is until the task is due, on its old scheduler's clock. Returns zero if it is overdue, and
    /// [`Duration::MAX`] if it is never due.
    pub fn remaining(&self) -> Duration {
        remaining(self.due(), self.shared.watch.now())
    }

    /// Returns when the task is due. For a task that is never due, returns the latest instant of the clock. If the task
    /// is a series whose run is still in progress, the deadline is an estimate, because it may depend on the end of
    /// that run.
    pub fn deadline(&self) -> Instant {
        self.shared.watch.timeline.instant(self.due())
    }

    fn due(&self) -> Moment {
        // It may have moved since the close.
        self.task.map_or(Moment(0), |task| deadline::of_leftover(task.key, task.deadline))
    }

    /// Returns the period or the gap of a repeating task, and `None` for a one-shot.
    pub fn period(&self) -> Option<Duration> {
        let period = self.task?.period;
        (period > 0).then(|| Duration::from_nanos(period))
    }

    /// Returns the type name of the task's closure, which tells where it was written. If the task was cancelled, or its
    /// run is still in progress, the name is not known, and the text says why.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// scheduler.schedule_once(Duration::from_secs(60), || println!("a minute later"))?;
    /// let leftovers: Vec<_> = scheduler.close()?.into_iter().collect();
    /// assert!(leftovers[0].name().ends_with("main::{{closure}}"), "{}", leftovers[0].name());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(&self) -> &'static str {
        let Some(task) = self.task else { return "a task that is over" };
        task::name(task.key).unwrap_or_else(|| {
            if task::goes_on(task.key) { "a series in its run" } else { "a cancelled task" }
        })
    }

    /// Runs the task on the calling thread, unless it was cancelled. A repeating task runs once. A panic is reported to
    /// the scheduler's `on_panic`.
    ///
    /// If the task is a series whose run is still in progress (because the close was called inside that run, or has
    /// waited for [`Builder::shutdown_timeout`](crate::Builder::shutdown_timeout)), it runs once more after that run,
    /// on the thread of that run.
    pub fn run(self) {
        self.start();
    }

    /// Like [`run`](PendingTask::run). Returns false if the task was cancelled before, or if it has to wait for the end of its run.
    fn start(mut self) -> bool {
        if self.defer_while_in_run(|task| _ = task.start()) {
            return false; // that run may be the last one: it may break, panic, or be cancelled
        }
        let due = self.due();
        let Some(task) = self.task.take() else { return false };
        // So that `await_termination` waits for it: no queue has it any more. Before the claim, or it could look in between.
        self.shared.termination.will_run(task.key);
        // A handle may cancel the task until it is claimed.
        let running = Running::claim_leftover(task.key);
        let has_run = running.map(|running| self.shared.run_claimed(running, due, false));
        self.shared.termination.run_is_over(task.key);
        has_run.is_some()
    }

    /// Cancels the task. Returns false if one of its handles has cancelled it before.
    pub fn cancel(self) -> bool {
        // The drop of `self` then finds it cancelled.
        self.task.is_some_and(|task| Cancellable::new(task.key, self.shared.id).cancel())
    }

    /// Moves the task to another scheduler, and onto the executor of that handle. The remaining delay and the
    /// repetition continue there. It stays the same task: all of its handles keep working, and are equal to the one
    /// that this returns.
    ///
    /// Of a task that was cancelled only the handle comes back.
    ///
    /// If the task is a series whose run is still in progress, it is moved after that run. If the other scheduler has
    /// been closed by then, the series is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (first, second) = (Scheduler::new(), Scheduler::new());
    /// let reminder = first.schedule_once(Duration::from_secs(60), || println!("a minute"))?;
    /// for task in first.close()? {
    ///     assert_eq!(task.reschedule(&second)?, reminder);
    /// }
    /// assert!(!reminder.is_done() && second.pending() == 1);
    /// assert!(reminder.cancel() && second.pending() == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Scheduler::schedule_once`]. The task is dropped then. To get it back, call
    /// [`try_reschedule`](PendingTask::try_reschedule).
    pub fn reschedule(self, scheduler: &Scheduler) -> Scheduled {
        Ok(self.try_reschedule(scheduler)?)
    }

    /// Like [`reschedule`](PendingTask::reschedule), but returns the task if the other scheduler refuses it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{ScheduleError, Scheduler};
    ///
    /// let (first, second) = (Scheduler::new(), Scheduler::new());
    /// first.schedule_once(Duration::from_secs(60), || println!("a minute later"))?;
    /// second.close()?;
    /// for task in first.close()? {
    ///     let refused = task.try_reschedule(&second).expect_err("it is closed");
    ///     assert_eq!(refused.reason(), ScheduleError::Closed);
    ///     refused.into_task().run();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    pub fn try_reschedule(mut self, to: &Scheduler) -> TryScheduled<PendingTask> {
        self.move_or_defer(to).map_err(|reason| TryScheduleError::new(reason, self))
    }

    /// Moves the task, or leaves that to the thread of its run. A task that is refused stays here.
    fn move_or_defer(&mut self, to: &Scheduler) -> Scheduled {
        let Some(task) = self.task else { return Ok(Cancellable::already_cancelled()) };
        if !task.is_in_run && !task::goes_on(task.key) {
            // A task that was cancelled needs no room, so it cannot be refused.
            return Ok(Cancellable::cancelled(task.key, self.shared.id));
        }
        // Room is reserved before the task leaves this scheduler, so a scheduler that is full leaves it where it is.
        let mut reservation = to.shared().reserve()?;
        if task.is_in_run {
            // The move has to wait for the end of the run, and keeps the room that was reserved.
            let own = to.own.clone();
            let move_later = move |mut task: PendingTask| {
                _ = task.move_to(reservation, own.as_ref(), true);
            };
            if self.defer_while_in_run(move_later) {
                return Ok(Cancellable::new(task.key, self.shared.id));
            }
            // The run has ended in the meantime, and the reservation was dropped with `move_later`.
            reservation = to.shared().reserve()?;
        }
        self.move_to(reservation, to.own.as_ref(), task.is_in_run)
    }

    /// Moves a task that is not in a run to the scheduler where room is reserved, onto this executor there. The task stays in
    /// its holder and keeps its key, so its handles keep working.
    fn move_to(
        &mut self,
        reservation: Reservation,
        executor: Option<&Arc<NumberedExecutor>>,
        was_in_run: bool,
    ) -> Scheduled {
        let Some(task) = self.task else { return Ok(Cancellable::already_cancelled()) };
        let shared = Arc::clone(&reservation.shared);
        let (here, there, from) = (self.shared.watch.now(), shared.watch.now(), &self.shared);
        // A reset may move the deadline until the task is held, so the translation is called then.
        let deadline = move |deadline| there.after(remaining(deadline, here));
        let is_moved =
            shared.admit_leftover(task.key, from, there, deadline, executor, reservation)?;
        self.task = None;
        // A series that was in a run may be over because it has ended itself. Its holder knows.
        let is_cancelled = !is_moved && !was_in_run;
        let handle = if is_cancelled { Cancellable::cancelled } else { Cancellable::new };
        Ok(handle(task.key, shared.id))
    }

    /// If this is a series whose run is still in progress, leaves it to the thread of that run, which calls `action`
    /// with it after the run. Then returns true, and `self` is empty. Otherwise returns false and drops `action`.
    fn defer_while_in_run(&mut self, action: impl FnOnce(PendingTask) + Send + 'static) -> bool {
        let Some(task) = self.task.filter(|task| task.is_in_run) else { return false };
        let shared = Arc::clone(&self.shared);
        let decision: Decision =
            Box::new(move |task| action(PendingTask { shared, task: Some(task) }));
        let is_deferred = self.shared.termination.decide(task.key, decision).is_ok();
        // If it is not, the run has ended in the meantime.
        self.task = (!is_deferred).then_some(Leftover { is_in_run: false, ..task });
        is_deferred
    }
}

/// Returns how long it is from `now` until this deadline, or zero if it has passed.
fn remaining(deadline: Moment, now: Moment) -> Duration {
    if deadline == Moment::NEVER { Duration::MAX } else { deadline.since(now) }
}

impl Drop for PendingTask {
    fn drop(&mut self) {
        self.shared.drop_leftovers(self.task.take());
    }
}

impl_debug!(PendingTask, self,
    name: self.name(),
    remaining: self.remaining(),
    period: self.period()
);
