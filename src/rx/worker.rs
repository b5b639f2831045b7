//! What users meet first: an [`ExecutorScheduler`], and the [`Worker`]s that it gives out.

use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::context::{Capture, Within};
use super::home::{Home, When};
use super::strand::Strand;
use crate::job::{Job, Once, Places, Series, Work};
use crate::{
    Cancellable, DueTask, Executor, Inline, PanicHook, Period, Rejected, Repeat, RepeatingTask,
    Schedule, ScheduleError, Scheduler, Task, TaskPanic, TryScheduleError,
};

/// What is not delayed at all.
const NOW: When = When::After(Duration::ZERO);

/// Gives out workers that run their tasks on an executor, each its own in order.
///
/// Workers of one scheduler share its executor and its clock, and nothing else: what one of them does, or
/// its disposal, touches no other. No worker ever shuts the executor down.
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::rx::ExecutorScheduler;
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let timers = Scheduler::new();
/// let workers = ExecutorScheduler::new(ThreadPool::new(4), &timers);
/// let account = workers.worker();
/// let (sender, ran) = mpsc::channel();
/// for number in 0..100 {
///     let sender = sender.clone();
///     account.schedule(move || sender.send(number).unwrap());
/// }
/// drop(sender);
/// assert!(ran.iter().eq(0..100), "four threads, and in order");
/// ```
#[doc(alias = "Schedulers.from")]
#[derive(Clone)]
pub struct ExecutorScheduler {
    executor: Arc<dyn Executor>,
    /// It runs what it has on its own thread: queueing.
    timers: Scheduler,
    hook: PanicHook,
    max_pending: Option<usize>,
}

impl ExecutorScheduler {
    /// Workers that run on this executor, and whose delays this scheduler keeps.
    ///
    /// The executor is called from whichever thread brings a task when its worker is at rest, and from the
    /// tick thread. The scheduler's own executor is not used.
    ///
    /// On [`Inline`] a task runs in the call that schedules it, unless its worker is at it already. So a chain
    /// of workers, each of whose tasks schedules on the next, nests as deep as it is long.
    pub fn new(executor: impl Executor, scheduler: &Scheduler) -> ExecutorScheduler {
        let (executor, timers) = (Arc::new(executor), scheduler.with_executor(Inline));
        ExecutorScheduler { executor, timers, hook: PanicHook::default(), max_pending: None }
    }

    /// Is told of each panic of a task, of a captured value's `Drop`, and of the executor, for the workers
    /// that are made from now on.
    #[must_use]
    pub fn on_panic(
        self,
        hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static,
    ) -> ExecutorScheduler {
        ExecutorScheduler { hook: PanicHook::new(hook), ..self }
    }

    /// Bounds each worker that is made from now on: it refuses a task when `tasks` of its own are pending.
    ///
    /// A task holds its place until its run starts, a series until it ends, and a cancel frees the place at
    /// once. On a full worker [`try_schedule`](Worker::try_schedule) gives the closure back with
    /// [`ScheduleError::Full`]. [`schedule`](Worker::schedule) and the other methods that have no error drop the
    /// closure and return a handle that says cancelled. A scheduler whose executor is the worker keeps the task
    /// that was refused and offers it again.
    ///
    /// By default there is no bound. Then a thread that schedules much faster than its worker runs waits a
    /// little in some of its calls, at most 100 ms in one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{ScheduleError, Scheduler, ThreadPool};
    ///
    /// let timers = Scheduler::new();
    /// let workers = ExecutorScheduler::new(ThreadPool::new(1), &timers).max_pending(1);
    /// let worker = workers.worker();
    /// let later = worker.schedule_after(Duration::from_secs(60), || println!("a minute"));
    /// let refused = worker.try_schedule(|| println!("now")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Full);
    /// assert!(worker.schedule(|| ()).is_cancelled());
    /// assert!(later.cancel());
    /// assert!(worker.try_schedule(refused.into_task()).is_ok());
    /// ```
    #[must_use]
    pub fn max_pending(self, tasks: usize) -> ExecutorScheduler {
        ExecutorScheduler { max_pending: Some(tasks), ..self }
    }

    /// A new worker. It costs an allocation, and no thread.
    #[doc(alias = "createWorker")]
    pub fn worker(&self) -> Worker {
        let (executor, timers) = (Arc::clone(&self.executor), self.timers.clone());
        let places = Places::new(self.max_pending);
        Worker::at(Strand::new(executor, timers, self.hook.clone(), places))
    }
}

impl fmt::Debug for ExecutorScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorScheduler")
            .field("timers", &self.timers)
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
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
/// A worker, and what is delayed on it, keeps its scheduler alive. When that is closed, what was delayed is
/// among the leftovers: run, it is queued, and dropped, it is dropped. Leftovers that nobody takes, of a `stop`
/// whose [`Stopping`](crate::Stopping) was thrown away, keep the worker, and the worker keeps them: dispose it.
///
/// When an executor refuses work, drops it, or panics, the worker offers it again by itself: sixteen times
/// after a millisecond, then after two, and so on, up to 64.
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
    home: Arc<dyn Home>,
    /// The same. A job needs one, and a clone of it costs less than a downgrade.
    weak: Weak<dyn Home>,
    context: Option<Arc<dyn Capture>>,
}

impl Worker {
    pub(super) fn at(home: Arc<dyn Home>) -> Worker {
        Worker { weak: Arc::downgrade(&home), home, context: None }
    }

    /// The same worker, whose tasks run in the context of who schedules them.
    pub(super) fn with_context(self, context: Arc<dyn Capture>) -> Worker {
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
        match self.series(initial, Period::fixed_rate(period), f) {
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
        f: F,
    ) -> Result<(When, Series<F>), ScheduleError> {
        if period.duration().is_zero() {
            return Err(ScheduleError::ZeroPeriod);
        }
        let now = self.home.now();
        // As far as the clock goes, beyond that.
        let due = Period::fixed_delay(initial).next_run(now, now);
        let when = if initial.is_zero() { NOW } else { When::At(due) };
        Ok((when, Series { due, period, f }))
    }

    /// The one way in. What is not taken in comes back, unless its delay was refused.
    fn give<W: Work>(
        &self,
        when: When,
        work: W,
    ) -> Result<Cancellable, (ScheduleError, Option<W>)> {
        let (given, is_over) = self.give_at_once(when, work)?;
        if is_over {
            self.home.hold_back();
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
                self.home.hook().catch(|| drop(work)); // first, lest two panic at once
                resume_unwind(panic)
            }
        };
        let given = self.put(when, Within { scope, work });
        given.map_err(|(reason, back)| (reason, back.map(|within| within.work)))
    }

    fn or_cancelled<W>(&self, given: Result<Cancellable, (ScheduleError, W)>) -> Cancellable {
        given.unwrap_or_else(|(_, refused)| {
            self.home.hook().catch(|| drop(refused));
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
        match self.home.take_in(given, when) {
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
        self.home.dispose();
    }

    /// Whether it takes tasks no more.
    #[doc(alias = "isDisposed")]
    pub fn is_disposed(&self) -> bool {
        self.home.is_disposed()
    }

    /// How many tasks wait, for their time or for their turn; a series counts as one. The one that runs is
    /// not among them.
    pub fn pending(&self) -> usize {
        self.home.pending()
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
        self.home.now()
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
        let (when, series) = self.series(initial, period, task)?;
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
    /// A disposed worker drops what it is handed: it will not take it later either. A full one refuses it, and
    /// the scheduler offers it again. The calling thread is never held back: most often it is a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        match self.give_at_once(NOW, Due(task)) {
            Err((ScheduleError::Full, Some(Due(task)))) => Err(Rejected::new(task)),
            given => {
                self.or_cancelled(given.map(|(handle, _)| handle));
                Ok(())
            }
        }
    }
}

/// A task of a scheduler.
struct Due(DueTask);

impl Work for Due {
    fn run(work: &mut Option<Due>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Due(task)) = work.take() {
            task.run();
        }
        ControlFlow::Break(())
    }
}
