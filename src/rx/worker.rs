//! The [`Worker`], as users meet it, and the [`TaskQueue`] behind it.

use std::any::{type_name, type_name_of_val};
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::context::{Capture, Within};
use super::delayed::{Entry, Slot};
use super::scheduler::ExecutorScheduler;
use super::serial::Timers;
use crate::job::{Job, Named, NamedOnce, Once, Owner, Series, Work};
use crate::{
    Cancellable, DueTask, Executor, PanicHook, Period, Rejected, Repeat, RepeatingTask, Schedule,
    ScheduleError, Task, TryScheduleError,
};

/// What is not delayed at all.
const NOW: When = When::After(Duration::ZERO);

/// When a task is to be queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

/// Where a worker's tasks wait, and how they come to run: on an executor, among those of other workers, or on the
/// caller's thread.
pub(super) trait TaskQueue: Owner<Position = Slot> {
    /// Takes a job in, which waits. When it is refused nothing has become of it, unless it is the clock of a
    /// delay that refuses: then it is dropped.
    ///
    /// `Ok(true)` says that too much is queued: the caller should [`hold_back`](TaskQueue::hold_back) the thread
    /// that brings it.
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError>;

    /// Holds the calling thread back for a while, so that what is queued has time to run.
    fn hold_back(&self) {}

    /// Cancels what has not started, and takes nothing more.
    fn dispose(&self);

    fn is_disposed(&self) -> bool;

    /// How many jobs wait, for their time or for their turn.
    fn pending(&self) -> usize;
}

/// Runs tasks one at a time and in order, wherever its scheduler runs them.
///
/// - Tasks that are scheduled one after the other run in that order, on whatever executor. They never
///   overlap, and each sees what the one before has written.
/// - A delayed task is queued when its time has come, in order of deadline, and then has its turn behind
///   what is queued already.
/// - A panic ends its own task, and nothing else.
/// - [`dispose`](Worker::dispose) cancels all that has not started.
/// - A thread that schedules much faster than the worker runs waits a little in some of its calls, at most
///   100 ms in one, and never inside a task of a worker. [`ExecutorScheduler::max_pending`] is a hard bound.
///
/// Clones are the same worker. Dropping the last one disposes nothing: what was scheduled still runs.
///
/// A worker, and what is delayed on it, keeps its scheduler alive, or what else keeps its time. When the scheduler is
/// closed, what was delayed is among the leftovers: run, it is queued, and dropped, it is dropped. Leftovers that nobody takes, of a `stop`
/// whose [`Stopping`](crate::Stopping) was thrown away, keep the worker, and the worker keeps them: dispose it.
///
/// When an executor refuses work, drops it, or panics, the worker offers it again by itself: sixteen times
/// after a millisecond, then after two, and so on, up to 64. The workers of one [`ExecutorScheduler`] do so together, so
/// a thousand of them cost the executor no more than one. When it says that it is gone for good
/// ([`Rejected::for_good`]), the worker disposes itself. A worker that nobody holds any more does so too, when its
/// executor has run nothing for about a minute.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::rx::ExecutorScheduler;
/// use tickwheel::{Inline, Scheduler};
///
/// let (timers, driver) = Scheduler::builder().build_driven()?;
/// let worker = ExecutorScheduler::new(Inline, &timers).worker();
/// let reminder = worker.schedule_after(Duration::from_secs(60), || println!("a minute"));
/// worker.schedule_after(Duration::from_secs(90), || println!("a minute and a half"));
/// assert!(reminder.cancel());
/// assert_eq!(worker.pending(), 1);
/// driver.advance(Duration::from_secs(90));
/// assert_eq!(worker.pending(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "Scheduler.Worker")]
#[derive(Clone)]
pub struct Worker {
    queue: Arc<dyn TaskQueue>,
    /// The same. A job needs one, and a clone of it costs less than a downgrade.
    weak: Weak<dyn TaskQueue>,
    context: Option<Arc<dyn Capture>>,
}

impl Worker {
    /// Returns a worker on something that both runs tasks and keeps time, on that one's clock: a
    /// [`TaskRunner`](crate::message_loop::TaskRunner), a [`ScheduledThreadPool`](crate::pool::ScheduledThreadPool),
    /// another worker.
    ///
    /// It is [`ExecutorScheduler::over`] with one thing for both. The worker keeps it alive.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    /// use tickwheel::rx::Worker;
    ///
    /// let account = Worker::new(ScheduledThreadPool::new(4));
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let later = sender.clone();
    /// account.schedule_after(Duration::from_millis(1), move || later.send("later").unwrap());
    /// account.schedule(move || sender.send("first").unwrap());
    /// assert!(receiver.iter().eq(["first", "later"]));
    /// ```
    pub fn new(schedule_and_executor: impl Schedule + Executor) -> Worker {
        let both = Arc::new(schedule_and_executor);
        let timers = Timers::Any(Arc::clone(&both) as Arc<dyn Schedule>);
        ExecutorScheduler::with(both, timers).worker()
    }

    pub(super) fn at(queue: Arc<dyn TaskQueue>) -> Worker {
        Worker { weak: Arc::downgrade(&queue), queue, context: None }
    }

    /// Returns the same worker, whose tasks run in this context too, inside of the one that it has.
    pub(super) fn within(self, context: Arc<dyn Capture>) -> Worker {
        let context = match self.context {
            Some(outer) => Arc::new((outer, context)),
            None => context,
        };
        Worker { context: Some(context), ..self }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Runs a task after all that is queued. On a disposed worker, or on one that is
    /// [full](ExecutorScheduler::max_pending), the closure is dropped, and the handle says that it was cancelled.
    pub fn schedule(&self, f: impl FnOnce() + Send + 'static) -> Cancellable {
        self.schedule_after(Duration::ZERO, f)
    }

    /// Runs a task once `delay` has passed, and what is queued then has run. A delay of zero is
    /// [`schedule`](Worker::schedule).
    ///
    /// The handle says that the task was cancelled, and the closure is dropped, if the worker is
    /// disposed or full, or if its scheduler takes no more tasks; `schedule_task` of [`Schedule`] tells which.
    pub fn schedule_after(
        &self,
        delay: Duration,
        f: impl FnOnce() + Send + 'static,
    ) -> Cancellable {
        self.or_cancelled(self.give(When::After(delay), Once(f)))
    }

    /// Runs a task again and again: run `k` is due at `initial + k * period`, however long the runs take,
    /// and then has its turn. Runs that were missed are caught up, one by one.
    ///
    /// A zero period is a handle that says cancelled; [`Schedule::schedule_series`] tells of it, and
    /// takes every [`Period`].
    #[doc(alias = "schedulePeriodically")]
    pub fn schedule_periodically<R: Repeat>(
        &self,
        initial: Duration,
        period: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Cancellable {
        match self.series(initial, Period::fixed_rate(period), type_name_of_val(&f), f) {
            Ok((when, series)) => self.or_cancelled(self.give(when, series)),
            Err(_) => Cancellable::already_cancelled(),
        }
    }

    /// Runs a task after all that is queued, or gives it back.
    ///
    /// # Errors
    ///
    /// `Closed` when the worker is disposed, and `Full` when as many of its tasks are pending as
    /// [`max_pending`](ExecutorScheduler::max_pending) allows.
    ///
    /// ```
    /// # use tickwheel::rx::TrampolineScheduler;
    /// use tickwheel::ScheduleError;
    ///
    /// # let worker = TrampolineScheduler::new().worker();
    /// worker.dispose();
    /// let refused = worker.try_schedule(|| println!("too late")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Closed);
    /// refused.into_task()();
    /// ```
    #[expect(
        clippy::missing_panics_doc,
        reason = "what is not delayed comes back if it is refused"
    )]
    pub fn try_schedule<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(NOW, Once(f)).map_err(|(reason, work)| {
            let Once(f) = work.expect("what was not taken in comes back");
            TryScheduleError::new(reason, f)
        })
    }

    fn series<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: Period,
        name: &'static str,
        f: F,
    ) -> Result<(When, Series<F>), ScheduleError> {
        if period.duration().is_zero() {
            return Err(ScheduleError::ZeroPeriod);
        }
        let now = self.queue.now();
        // As far as the clock goes, beyond that.
        let due = Period::fixed_delay(initial).next_run(now, now);
        let when = if initial.is_zero() { NOW } else { When::At(due) };
        Ok((when, Series { name, due, period, f }))
    }

    /// The one way in. What is not taken in comes back, unless its delay was refused.
    fn give<W: Work>(
        &self,
        when: When,
        work: W,
    ) -> Result<Cancellable, (ScheduleError, Option<W>)> {
        let (given, is_over) = self.give_at_once(when, work)?;
        if is_over {
            self.queue.hold_back();
        }
        Ok(given)
    }

    /// The same, for those who must not be held back. The second says whether they should be.
    fn give_at_once<W: Work>(
        &self,
        when: When,
        work: W,
    ) -> Result<(Cancellable, bool), (ScheduleError, Option<W>)> {
        let Some(context) = &self.context else { return self.put(when, work) };
        let scope = match catch_unwind(AssertUnwindSafe(|| context.capture())) {
            Ok(scope) => scope,
            Err(panic) => {
                self.queue.hook().catch(|| drop(work)); // first, lest two panic at once
                resume_unwind(panic)
            }
        };
        let given = self.put(when, Within { scope, work });
        given.map_err(|(reason, back)| (reason, back.map(|within| within.work)))
    }

    fn or_cancelled<W>(&self, given: Result<Cancellable, (ScheduleError, W)>) -> Cancellable {
        given.unwrap_or_else(|(_, refused)| {
            self.queue.hook().catch(|| drop(refused));
            Cancellable::already_cancelled()
        })
    }

    fn put<W: Work>(
        &self,
        when: When,
        work: W,
    ) -> Result<(Cancellable, bool), (ScheduleError, Option<W>)> {
        let job = Job::new(Weak::clone(&self.weak), work);
        let given = Arc::clone(&job);
        match self.queue.take_in(given, when) {
            Ok(is_over) => Ok((Cancellable::from(job), is_over)),
            Err(reason) => Err((reason, job.take_back())),
        }
    }

    // ----- the end, and the state ----------------------------------------------------------

    /// Cancels all tasks that have not started, and takes no more. When it returns they are dropped; what
    /// runs, runs to its end, and a series that runs does not run again.
    ///
    /// It may be called from anywhere, also from a task of this worker, or from a destructor. A second call has
    /// nothing to do; while the first is still at it, it does not wait.
    pub fn dispose(&self) {
        self.queue.dispose();
    }

    /// Returns true if the worker takes no more tasks: it was disposed, or its executor is gone for good.
    #[doc(alias = "isDisposed")]
    pub fn is_disposed(&self) -> bool {
        self.queue.is_disposed()
    }

    /// How many tasks wait, for their time or for their turn; a series counts as one. The one that runs is
    /// not among them.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("pending", &self.pending())
            .field("is_disposed", &self.is_disposed())
            .finish_non_exhaustive()
    }
}

impl Schedule for Worker {
    fn now(&self) -> Instant {
        self.queue.now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.give(When::After(delay), Once(task)).map_err(|(reason, _)| reason)
    }

    fn schedule_task_at(
        &self,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.give(When::At(deadline), Once(task)).map_err(|(reason, _)| reason)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_series_named(type_name::<RepeatingTask>(), initial, period, task)
    }

    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.give(When::After(delay), NamedOnce { name, task }).map_err(|(reason, _)| reason)
    }

    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.give(When::At(deadline), NamedOnce { name, task }).map_err(|(reason, _)| reason)
    }

    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        let (when, series) = self.series(initial, period, name, task)?;
        self.give(when, series).map_err(|(reason, _)| reason)
    }
}

/// A worker is an executor too: what a scheduler hands it runs in order, among its other tasks.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Scheduler, ThreadPool};
/// use tickwheel::rx::ExecutorScheduler;
///
/// let timers = Scheduler::new();
/// let workers = ExecutorScheduler::new(ThreadPool::new(4), &timers);
/// let in_order = timers.with_executor(workers.worker());
/// in_order.schedule_once(Duration::from_millis(1), || println!("after what the worker has"))?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
impl Executor for Worker {
    /// A disposed worker refuses for good: the scheduler keeps the task, and returns it when it is closed. A full
    /// one refuses for now, and the scheduler offers the task again. The calling thread is never held back: most
    /// often it is a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        match self.give_at_once(NOW, Due(task)) {
            Err((ScheduleError::Full, Some(Due(task)))) => Err(Rejected::new(task)),
            Err((_, Some(Due(task)))) => Err(Rejected::for_good(task)),
            Ok(_) | Err((_, None)) => Ok(()),
        }
    }
}

/// A task of a scheduler.
struct Due(DueTask);

impl Named for Due {
    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl Work for Due {
    fn run(work: &mut Option<Due>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Due(task)) = work.take() {
            task.run();
        }
        ControlFlow::Break(())
    }
}
