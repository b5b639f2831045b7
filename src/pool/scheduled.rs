//! The pool itself.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::PoolBuilder;
use super::future::ScheduledFuture;
use super::policy::ShutdownPolicy;
use super::shared::Shared;
use super::task::{Call, Due, PoolTask, Run};
use crate::executor::deadlock::PoolThreads;
use crate::job::{NamedOnce, Once, Series};
use crate::{
    Cancellable, DueTask, Executor, Period, Rejected, Repeat, RepeatingTask, Schedule,
    ScheduleError, Task, TryScheduleError,
};

/// Threads that run tasks after a delay or again and again, each at its exact deadline, and give their
/// results.
///
/// Tasks run in order of deadline, and at equal deadlines in the order in which they came. A panic ends
/// its own task and nothing else. A thread that brings tasks much faster than the pool runs them waits a little
/// in some of its calls, at most 100 ms in one, and never on a thread of the pool itself; for a hard bound see
/// [`PoolBuilder::max_pending`]. Clones are the same pool; dropping the last is
/// [`shutdown_now`](ScheduledThreadPool::shutdown_now), without waiting.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::pool::ScheduledThreadPool;
///
/// let pool = ScheduledThreadPool::new(2);
/// let beat = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_millis(2), || ())?;
/// let answer = pool.schedule(Duration::from_millis(10), || "ten milliseconds later")?;
/// assert_eq!(answer.join()?, "ten milliseconds later");
/// assert!(beat.cancel());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ScheduledThreadPoolExecutor")]
#[doc(alias = "ScheduledExecutorService")]
#[derive(Clone)]
pub struct ScheduledThreadPool {
    face: Arc<Face>,
}

/// A job that was accepted, and when the head of the queue is due, if that is long; or the work that comes back.
type Given<W> = Result<(Arc<PoolTask<W>>, Option<Instant>), (ScheduleError, W)>;

/// What all clones hold: when it goes, nobody can bring tasks any more.
struct Face {
    shared: Arc<Shared>,
}

impl Drop for Face {
    fn drop(&mut self) {
        let unstarted = self.shared.shutdown_now();
        unstarted.into_iter().for_each(|(_, job)| job.withdraw());
    }
}

impl ScheduledThreadPool {
    /// A pool of at most so many threads, which start when they are needed.
    ///
    /// # Panics
    ///
    /// When `threads` is zero; [`builder`](ScheduledThreadPool::builder) gives an error instead.
    pub fn new(threads: usize) -> ScheduledThreadPool {
        let pool = ScheduledThreadPool::builder().threads(threads).build();
        pool.expect("a pool has at least one thread")
    }

    pub(super) fn with(shared: Arc<Shared>) -> ScheduledThreadPool {
        ScheduledThreadPool { face: Arc::new(Face { shared }) }
    }

    /// Names, policies, hooks.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Runs a task as soon as a thread is free.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started.
    pub fn execute(&self, f: impl FnOnce() + Send + 'static) -> Result<(), ScheduleError> {
        Ok(self.try_execute(f)?)
    }

    /// Runs a task as soon as a thread is free, or gives it back.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started. [`TryScheduleError::into_task`] has the closure.
    ///
    /// ```
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::new(1);
    /// pool.shutdown();
    /// let refused = pool.try_execute(|| println!("on this thread then")).unwrap_err();
    /// refused.into_task()();
    /// ```
    #[doc(alias("RejectedExecutionHandler", "CallerRunsPolicy"))]
    pub fn try_execute<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<(), TryScheduleError<F>> {
        let now = self.now();
        self.give(now, now, Once(f)).map(drop).map_err(refused)
    }

    /// Runs a task as soon as a thread is free, for its result.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started.
    pub fn submit<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<ScheduledFuture<T>, ScheduleError> {
        Ok(self.try_submit(f)?)
    }

    /// As [`submit`](ScheduledThreadPool::submit), but gives the closure back if it is not accepted.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started.
    pub fn try_submit<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        f: F,
    ) -> Result<ScheduledFuture<T>, TryScheduleError<F>> {
        self.try_schedule(Duration::ZERO, f)
    }

    /// Runs a task once `delay` has passed, for its result.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started.
    pub fn schedule<T: Send + 'static>(
        &self,
        delay: Duration,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<ScheduledFuture<T>, ScheduleError> {
        Ok(self.try_schedule(delay, f)?)
    }

    /// As [`schedule`](ScheduledThreadPool::schedule), but gives the closure back if it is not accepted.
    ///
    /// # Errors
    ///
    /// When the pool is shut down or full, or no thread can be started.
    pub fn try_schedule<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Result<ScheduledFuture<T>, TryScheduleError<F>> {
        let now = self.now();
        let job = self.give(now, after(now, delay), Once(f)).map_err(refused)?;
        Ok(ScheduledFuture::new(job))
    }

    /// Runs a task again and again: run `k` is due at `initial + k * period`, however long the runs
    /// take. A run never overlaps the one before. Runs that were missed follow without a pause, but each of them
    /// queues behind the tasks that were due when the run before it ended: a series whose runs take longer than its
    /// period delays other tasks by one run, and starves none.
    ///
    /// # Errors
    ///
    /// When the period is zero, the pool is shut down or full, or no thread can be started.
    #[doc(alias = "scheduleAtFixedRate")]
    pub fn schedule_at_fixed_rate<R: Repeat>(
        &self,
        initial: Duration,
        period: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Result<ScheduledFuture<()>, ScheduleError> {
        self.schedule_with_period(initial, Period::fixed_rate(period), f)
    }

    /// Runs a task again and again, each run `delay` after the end of the one before.
    ///
    /// # Errors
    ///
    /// When the delay is zero, the pool is shut down or full, or no thread can be started.
    #[doc(alias = "scheduleWithFixedDelay")]
    pub fn schedule_with_fixed_delay<R: Repeat>(
        &self,
        initial: Duration,
        delay: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Result<ScheduledFuture<()>, ScheduleError> {
        self.schedule_with_period(initial, Period::fixed_delay(delay), f)
    }

    /// Runs a task again and again, as the [`Period`] says: for rates that leave out what was missed, or start a new
    /// phase. Its future resolves when the series ends.
    ///
    /// # Errors
    ///
    /// When the period is zero, the pool is shut down or full, or no thread can be started.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    /// use tickwheel::{MissedTicks, Period};
    ///
    /// let pool = ScheduledThreadPool::new(1);
    /// let every_milli = Period::fixed_rate(Duration::from_millis(1)).missed(MissedTicks::Skip);
    /// let mut left = 3;
    /// let done = pool.schedule_with_period(Duration::ZERO, every_milli, move || {
    ///     left -= 1;
    ///     if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// })?;
    /// done.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_with_period<R: Repeat>(
        &self,
        initial: Duration,
        period: Period,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Result<ScheduledFuture<()>, ScheduleError> {
        Ok(self.try_schedule_with_period(initial, period, f)?)
    }

    /// As [`schedule_with_period`](ScheduledThreadPool::schedule_with_period), but gives the closure back if it is not
    /// accepted.
    ///
    /// # Errors
    ///
    /// When the period is zero, the pool is shut down or full, or no thread can be started.
    pub fn try_schedule_with_period<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: Period,
        f: F,
    ) -> Result<ScheduledFuture<()>, TryScheduleError<F>> {
        self.repeat(initial, period, type_name::<F>(), f).map(|job| ScheduledFuture::new(job))
    }

    fn repeat<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: Period,
        name: &'static str,
        f: F,
    ) -> Result<Arc<PoolTask<Series<F>>>, TryScheduleError<F>> {
        if period.duration().is_zero() {
            return Err(TryScheduleError::new(ScheduleError::ZeroPeriod, f));
        }
        let now = self.now();
        let due = after(now, initial);
        let given = self.give(now, due, Series { name, due, period, f });
        given.map_err(|(reason, series)| TryScheduleError::new(reason, series.f))
    }

    /// The one way in, for those who can wait a little: they are held back when the pool is behind. What is not
    /// accepted comes back.
    fn give<W: Call>(
        &self,
        now: Instant,
        deadline: Instant,
        work: W,
    ) -> Result<Arc<PoolTask<W>>, (ScheduleError, W)> {
        let (job, head) = self.give_at_once(deadline, work)?;
        head.into_iter().for_each(|head| self.face.shared.hold_back(head, now));
        Ok(job)
    }

    /// The same without a wait.
    fn give_at_once<W: Call>(&self, deadline: Instant, work: W) -> Given<W> {
        let shared = &self.face.shared;
        if !shared.enter() {
            return Err((ScheduleError::Closed, work));
        }
        if !shared.limit.enter() {
            shared.leave();
            return Err((ScheduleError::Full, work));
        }
        let job = PoolTask::new(shared, work);
        // A shutdown may have come between; then it has looked through the queue perhaps too early.
        let offered = job.offer(deadline);
        let is_in = offered.is_some();
        let head = offered.and_then(|offered| offered.head);
        let may_run = shared.may_run(W::IS_PERIODIC);
        let reason = if is_in && !may_run && W::IS_PERIODIC {
            job.withdraw(); // not refused: it may have run
            return Ok((job, None));
        } else if !is_in || !may_run {
            ScheduleError::Closed
        } else if shared.call().is_err() {
            ScheduleError::NoThread
        } else {
            return Ok((job, head));
        };
        // If it does not come back, it has run, or its future tells what became of it.
        match job.take_back() {
            Some(work) => Err((reason, work)),
            None => Ok((job, None)),
        }
    }

    fn now(&self) -> Instant {
        self.face.shared.now()
    }

    /// How many tasks wait in the queue; those that run are not among them.
    pub fn pending(&self) -> usize {
        self.face.shared.pending()
    }

    // ----- the end -------------------------------------------------------------------------

    /// What a shutdown does, or has done, with tasks that wait.
    pub fn shutdown_policy(&self) -> ShutdownPolicy {
        self.face.shared.policy()
    }

    /// Changes that. After a shutdown it withdraws what now may not run.
    pub fn set_shutdown_policy(&self, policy: ShutdownPolicy) {
        self.face.shared.set_policy(policy);
    }

    /// Takes no more tasks. By default delayed tasks still run, and periodic ones stop: see
    /// [`ShutdownPolicy`]. It waits for nothing: see
    /// [`await_termination`](ScheduledThreadPool::await_termination).
    pub fn shutdown(&self) {
        self.face.shared.shutdown();
    }

    /// Takes no more tasks, and starts none. What waited comes back, in order of deadline; what runs,
    /// runs to its end.
    #[doc(alias = "shutdownNow")]
    pub fn shutdown_now(&self) -> Vec<Unstarted> {
        let jobs = self.face.shared.shutdown_now();
        jobs.into_iter().map(|(deadline, job)| Unstarted { deadline, job }).collect()
    }

    /// Whether it takes tasks no more.
    pub fn is_shutdown(&self) -> bool {
        self.face.shared.is_shut()
    }

    /// Whether it is shut down, and all of its threads have ended.
    pub fn is_terminated(&self) -> bool {
        self.face.shared.is_terminated()
    }

    /// Waits until it has terminated, but no longer than this, by the system's clock. Returns true if it has.
    ///
    /// Inside a task of the same pool it returns false at once: the pool terminates after that task.
    #[doc(alias = "awaitTermination")]
    pub fn await_termination(&self, timeout: Duration) -> bool {
        self.face.shared.wait_for_the_end(timeout)
    }
}

fn refused<F>((reason, Once(f)): (ScheduleError, Once<F>)) -> TryScheduleError<F> {
    TryScheduleError::new(reason, f)
}

fn after(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or_else(|| never(now))
}

/// As far away as the clock can say.
fn never(now: Instant) -> Instant {
    let mut far = Duration::MAX;
    loop {
        far /= 2;
        if let Some(instant) = now.checked_add(far) {
            return instant;
        }
    }
}

impl fmt::Debug for ScheduledThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.face.shared.fmt(f)
    }
}

impl Executor for ScheduledThreadPool {
    /// Refuses a task for now when the pool is [full](PoolBuilder::max_pending) or no thread can be started, and
    /// [for good](Rejected::for_good) when it is shut down. The calling thread is never held back: most often it is
    /// a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let given = self.give_at_once(self.now(), Due(task));
        given.map(drop).map_err(|(reason, Due(task))| match reason {
            ScheduleError::Closed => Rejected::for_good(task), // S30: nothing reopens a pool
            _ => Rejected::new(task),
        })
    }

    fn threads(&self) -> Option<PoolThreads> {
        Some(self.face.shared.threads())
    }
}

impl Schedule for ScheduledThreadPool {
    fn now(&self) -> Instant {
        self.now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        let now = self.now();
        let given = self.give(now, after(now, delay), Once(task));
        given.map(Cancellable::from).map_err(|(reason, _)| reason)
    }

    fn schedule_task_at(
        &self,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        let given = self.give(self.now(), deadline, Once(task));
        given.map(Cancellable::from).map_err(|(reason, _)| reason)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        let name = type_name::<RepeatingTask>();
        Ok(Cancellable::from(self.repeat(initial, period, name, task)?))
    }

    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        let now = self.now();
        let given = self.give(now, after(now, delay), NamedOnce { name, task });
        given.map(Cancellable::from).map_err(|(reason, _)| reason)
    }

    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        let given = self.give(self.now(), deadline, NamedOnce { name, task });
        given.map(Cancellable::from).map_err(|(reason, _)| reason)
    }

    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        Ok(Cancellable::from(self.repeat(initial, period, name, task)?))
    }
}

/// A task that waited when its pool was shut down at once.
///
/// Dropping it cancels the task.
#[must_use = "an unstarted task that is dropped is cancelled"]
pub struct Unstarted {
    deadline: Instant,
    job: Arc<dyn Run>,
}

impl Unstarted {
    /// When it was due. For a series that lags behind its plan: when its last run ended.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Runs it here and now, unless it was cancelled: its future gets the value. A periodic one runs
    /// once, and its future says `Cancelled`, unless it breaks.
    pub fn run(self) {
        self.job.run_for_the_last_time();
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        self.job.withdraw();
    }
}

impl fmt::Debug for Unstarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unstarted")
            .field("deadline", &self.deadline)
            .field("is_periodic", &self.job.is_periodic())
            .finish_non_exhaustive()
    }
}
