//! The end of a scheduler as a user meets it: [`Stopping`], [`Leftovers`], [`PendingTask`].
//!
//! ```text
//!   stop() ----> wanted, closing, bell        engine: closes all lanes, collects what is
//!     |                                               pending, marks each as returned
//!     v                                          |
//!   Stopping <---------- Termination (oneshot) <---------' fulfil
//!     | wait, wait_timeout, .await      <---------- the runs of series end
//!     v
//!   Leftovers --> PendingTask: run, cancel, move elsewhere, or drop
//! ```
//!
//! - LEFTOVER-1 A task that was returned is in the phase `Leftover`: handles can still cancel it, and
//!   whoever claims it first, a run or a cancel, has it (S8).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::engine::shared::{Reservation, Shared};
use crate::engine::slots::{Phase, Running, holder};
use crate::engine::termination::{self, Decision, Leftover};
use crate::error::ScheduleError;
use crate::executor::own_executor::OwnExecutor;
use crate::platform::panics::caught;
use crate::scheduler::handle::Cancellable;
use crate::time::repeat::Kind;
use crate::time::tick::Moment;
use crate::wheel::entry::Entry;
use crate::wheel::entry::Runner;

/// A scheduler that is coming to its end: what [`Scheduler::stop`](crate::Scheduler::stop) returns.
///
/// It can be waited for, or awaited under any runtime. The first one that takes the leftovers gets
/// them; if nobody takes them, they are dropped with the last handle to the scheduler.
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
#[must_use = "the tasks that were left over come out of `wait` or `.await`; dropping this does not undo the stop, and drops them unless somebody else takes them"]
pub struct Stopping {
    shared: Arc<Shared>,
}

impl Stopping {
    pub(crate) fn new(shared: &Arc<Shared>) -> Stopping {
        Stopping { shared: Arc::clone(shared) }
    }

    /// Waits for the end, however long it takes.
    ///
    /// On the tick thread itself, inside a task, that would be for ever; there it returns at once
    /// and empty, and the leftovers stay for whoever waits elsewhere.
    pub fn wait(self) -> Leftovers {
        if self.shared.is_turned_here() {
            return Leftovers::new(self.shared, Vec::new());
        }
        let leftovers = self.shared.termination.wait(None).unwrap_or_default();
        Leftovers::new(self.shared, leftovers)
    }

    /// Waits for the end, but no longer than this.
    ///
    /// # Errors
    ///
    /// Gives itself back when the end has not come in time; at once, on the tick thread.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Leftovers, Stopping> {
        let timeout = if self.shared.is_turned_here() { Duration::ZERO } else { timeout };
        match self.shared.termination.wait(termination::after(timeout)) {
            Some(leftovers) => Ok(Leftovers::new(self.shared, leftovers)),
            None => Err(self),
        }
    }
}

impl Future for Stopping {
    type Output = Leftovers;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Leftovers> {
        let leftovers = self.shared.termination.poll(context.waker());
        leftovers.map(|leftovers| Leftovers::new(Arc::clone(&self.shared), leftovers))
    }
}

impl fmt::Debug for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ended = self.shared.termination.has_come();
        f.debug_struct("Stopping").field("has_ended", &has_ended).finish_non_exhaustive()
    }
}

/// The tasks that were pending when a scheduler closed, in order of their deadlines.
///
/// Each can be run, cancelled, or moved to another scheduler. Their handles still work: a task that
/// is cancelled meanwhile does nothing when it is run. Leftovers that are dropped are dropped
/// tasks.
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
    pub(crate) fn new(shared: Arc<Shared>, tasks: Vec<Leftover>) -> Leftovers {
        Leftovers { shared, tasks: tasks.into_iter() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing was pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs them all on the calling thread, in order; a repeating task runs once. A panic is
    /// reported to the scheduler's `on_panic`, and the rest still run. How many were started.
    pub fn run_all(self) -> usize {
        self.into_iter().filter_map(|task| task.start().then_some(())).count()
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for task in self.tasks.by_ref() {
            drop(PendingTask { shared: Arc::clone(&self.shared), task: Some(task) });
        }
    }
}

impl IntoIterator for Leftovers {
    type Item = PendingTask;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter(self)
    }
}

impl fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leftovers").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The iterator over [`Leftovers`].
#[derive(Debug)]
#[must_use = "leftovers that are dropped are tasks that never run"]
pub struct IntoIter(Leftovers);

impl Iterator for IntoIter {
    type Item = PendingTask;

    fn next(&mut self) -> Option<PendingTask> {
        let task = self.0.tasks.next()?;
        Some(PendingTask { shared: Arc::clone(&self.0.shared), task: Some(task) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.tasks.size_hint()
    }
}

impl ExactSizeIterator for IntoIter {}

/// A task that was pending when its scheduler closed.
///
/// Dropping it drops the task.
#[must_use = "a task that is dropped never runs: `run`, `cancel` or `reschedule` it"]
pub struct PendingTask {
    shared: Arc<Shared>,
    /// `None` once it was run, cancelled or moved.
    task: Option<Leftover>,
}

impl PendingTask {
    /// How long until it is due, on its old scheduler's clock; zero when it is overdue.
    pub fn remaining(&self) -> Duration {
        match self.due() {
            Moment::NEVER => Duration::MAX,
            deadline => deadline.since(self.shared.now()),
        }
    }

    /// When it is due; for never, the farthest that the clock can say. Of a series that is still in a run: when it is due
    /// after that run, as far as can be said now.
    pub fn deadline(&self) -> Instant {
        self.shared.timeline.instant(self.due())
    }

    fn due(&self) -> Moment {
        let Some(task) = self.task else { return Moment(0) };
        let is_in_run = task.is_in_run;
        let known = is_in_run.then(|| self.shared.termination.deadline_of(task.key)).flatten();
        known.unwrap_or(task.deadline)
    }

    /// The period or the gap of a repeating task.
    pub fn period(&self) -> Option<Duration> {
        let task = self.task.filter(|task| task.kind != Kind::Once)?;
        Some(Duration::from_nanos(task.period))
    }

    /// The type name of its closure, which tells where it was written. Of a task that was cancelled, or is still in a run,
    /// it says only that.
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
        holder::name(task.key, Phase::Returned).unwrap_or_else(|| {
            let is_in_run = holder::live_word(task.key).is_some();
            if is_in_run { "a series in its run" } else { "a cancelled task" }
        })
    }

    /// Runs it here and now, unless it was cancelled; a repeating one runs once. A panic is
    /// reported to the scheduler's `on_panic`.
    ///
    /// A series that is still in a run (it was returned from inside that run, or after
    /// [`Builder::shutdown_timeout`](crate::Builder::shutdown_timeout)) runs once more when that run has ended, on the
    /// thread of that run.
    pub fn run(self) {
        self.start();
    }

    /// Cancels it. False when a handle has done so before.
    pub fn cancel(self) -> bool {
        let handle = self.task.map(|task| Cancellable::new(task.key, self.shared.id()));
        handle.is_some_and(|handle| handle.cancel()) // and then it is dropped, which does nothing
    }

    /// Moves it to another scheduler, onto this executor there. If it is refused it comes back.
    ///
    /// It stays in its holder and keeps its key: so all of its handles go on working.
    pub(crate) fn move_to(
        mut self,
        shared: &Arc<Shared>,
        executor: Option<&Arc<OwnExecutor>>,
    ) -> Result<Cancellable, (ScheduleError, PendingTask)> {
        let Some(task) = self.task else { return Ok(Cancellable::already_cancelled()) };
        let (handle, was_in_run) = (Cancellable::new(task.key, self.shared.id()), task.is_in_run);
        if holder::live_word(task.key).is_none() && !task.is_in_run {
            return Ok(Cancellable::cancelled(task.key, self.shared.id())); // there is nothing to be refused
        }
        if was_in_run {
            let place = match shared.reserve() {
                Ok(place) => place,
                Err(reason) => return Err((reason, self)),
            };
            let (there, own) = (Arc::clone(shared), executor.cloned());
            let later = move |leftover: PendingTask| {
                drop(leftover.move_into(place, &there, own.as_ref(), true));
            };
            if self.is_decided_later(later) {
                self.task = None;
                return Ok(handle);
            }
        }
        match shared.reserve() {
            Ok(place) => self.move_into(place, shared, executor, was_in_run),
            Err(reason) => Err((reason, self)),
        }
    }

    /// Moves it into a place of another scheduler.
    fn move_into(
        mut self,
        place: Reservation,
        shared: &Arc<Shared>,
        executor: Option<&Arc<OwnExecutor>>,
        was_in_run: bool,
    ) -> Result<Cancellable, (ScheduleError, PendingTask)> {
        let Some(task) = self.task else { return Ok(Cancellable::already_cancelled()) };
        let handle = Cancellable::new(task.key, self.shared.id());
        let times = shared.after(self.remaining());
        match shared.admit_leftover(task, times, executor, self.shared.id(), place) {
            Ok(moved) => {
                let dropped = caught(|| drop(moved.old_executor));
                dropped.err().into_iter().for_each(|panic| self.shared.hooks.report(panic));
                self.task = None;
                // A series that was in a run may be over because it broke: its holder knows.
                let is_cancelled = moved.was_cancelled && !was_in_run;
                let cancelled = || Cancellable::cancelled(task.key, self.shared.id());
                Ok(if is_cancelled { cancelled() } else { handle })
            }
            Err(reason) => Err((reason, self)),
        }
    }

    /// Runs it; false when it was cancelled before.
    fn start(mut self) -> bool {
        let is_still_to_run = self.task.is_some_and(|task| holder::live_word(task.key).is_some());
        if self.is_decided_later(|leftover| _ = leftover.start()) {
            self.task = None;
            return is_still_to_run;
        }
        let Some(task) = self.task.take() else { return false };
        let Some(running) = Running::claim_last(task.key) else { return false };
        let due = Entry::new(task.key, task.deadline, true, Runner::Default, None);
        self.shared.termination.runs_leftover(true);
        self.shared.run_claimed(running, due, false, false);
        self.shared.termination.runs_leftover(false);
        true
    }

    /// Leaves it to the runner, if it is a series that is still in a run: then this is done with it behind that run.
    /// Otherwise false, and the deadline is that of its next run.
    fn is_decided_later(&mut self, decision: impl FnOnce(PendingTask) + Send + 'static) -> bool {
        let Some(task) = self.task.filter(|task| task.is_in_run) else { return false };
        let shared = Arc::clone(&self.shared);
        let decision: Decision =
            Box::new(move |task| decision(PendingTask { shared, task: Some(task) }));
        match self.shared.termination.decide(task.key, decision) {
            Ok(()) => true,
            Err((now, unused)) => {
                drop(unused);
                self.task = Some(Leftover { is_in_run: false, ..now.unwrap_or(task) });
                false
            }
        }
    }
}

impl Drop for PendingTask {
    fn drop(&mut self) {
        if self.is_decided_later(drop) {
            self.task = None;
        }
        if let Some(task) = self.task.take() {
            self.shared.drop_task(task.key, Phase::Returned);
        }
    }
}

impl fmt::Debug for PendingTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingTask")
            .field("name", &self.name())
            .field("remaining", &self.remaining())
            .field("period", &self.period())
            .finish_non_exhaustive()
    }
}
