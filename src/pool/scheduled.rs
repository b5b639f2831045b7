//! The pool as its users see it.

use std::any::type_name;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::{PoolBuilder, ShutdownPolicy};
use super::future::ScheduledFuture;
use super::shared::{QueuedTask, Shared};
use crate::clock::timeline::after;
use crate::executor::deadlock::PoolThreads;
use crate::job::{Layer, Next, Once, Owner, Scheduled, Series, Taken, Work};
use crate::platform::impls::impl_debug;
use crate::scheduler::schedule_boxes_by_name;
use crate::{
    Cancellable, DueTask, Executor, Period, Rejected, Repeat, RepeatingTask, Request, Schedule,
    ScheduleError, Task, TryScheduleError,
};

/// Threads that run tasks at once, after a delay or repeatedly, each at its exact deadline, and give their results.
///
/// Tasks start in the order of their deadlines, and at equal deadlines in the order in which they came (S3). The next run
/// of a series comes when the run before has ended. A panic ends its own task and nothing else. A thread that brings
/// tasks much faster than the pool runs them waits a little in some of its calls, at most 100 ms in one. This never
/// happens on a thread of the pool itself. For a hard limit see [`PoolBuilder::max_pending`].
///
/// Clones are handles to the same pool, so a pool needs no `Arc` around it. On an `Arc<ScheduledThreadPool>`, with
/// [`ScheduleExt`](crate::ScheduleExt) in scope, Rust calls the trait's `schedule_with_fixed_delay`, which returns a
/// [`Cancellable`] and no future.
///
/// When the last handle is dropped, the pool shuts down as by [`shutdown_now`](ScheduledThreadPool::shutdown_now),
/// without waiting. So keep the pool in a variable. Here it ends with the statement, and the join fails:
///
/// ```
/// use std::time::Duration;
/// use tickwheel::pool::{JoinError, ScheduledThreadPool};
///
/// let lost = ScheduledThreadPool::new(2).schedule(Duration::from_secs(1), || "never")?; // wrong
/// assert!(matches!(lost.join(), Err(JoinError::Cancelled)));
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
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
#[doc(alias("ScheduledThreadPoolExecutor", "ScheduledExecutorService"))]
#[derive(Clone)]
pub struct ScheduledThreadPool {
    pub(super) inner: Arc<ShutdownOnDrop>,
}

/// Shuts the pool down when the last handle is dropped.
pub(super) struct ShutdownOnDrop(pub(super) Arc<Shared>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.shutdown_now().into_iter().for_each(|(_, task)| task.withdraw());
    }
}

/// The future of a task that was accepted.
type Accepted<T> = Result<ScheduledFuture<T>, ScheduleError>;

/// What a task that was accepted has, or the closure and why it was refused.
type Tried<T, F> = Result<T, TryScheduleError<F>>;

impl ScheduledThreadPool {
    /// Returns a pool of at most so many threads, which start when they are needed.
    ///
    /// # Panics
    ///
    /// If `threads` is zero. [`builder`](ScheduledThreadPool::builder) returns an error instead.
    pub fn new(threads: usize) -> ScheduledThreadPool {
        let pool = ScheduledThreadPool::builder().threads(threads).build();
        pool.expect("a pool has at least one thread")
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.0
    }

    /// Returns a builder, for other settings.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Runs a task as soon as a thread is free.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started.
    pub fn execute(&self, f: impl FnOnce() + Send + 'static) -> Result<(), ScheduleError> {
        Ok(self.try_execute(f)?)
    }

    /// Like [`execute`](ScheduledThreadPool::execute), but a closure that is refused comes back.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started. [`TryScheduleError::into_task`] returns the
    /// closure.
    ///
    /// ```
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::new(1);
    /// pool.shutdown();
    /// let refused = pool.try_execute(|| println!("then on this thread")).unwrap_err();
    /// refused.into_task()();
    /// ```
    #[doc(alias("RejectedExecutionHandler", "CallerRunsPolicy"))]
    pub fn try_execute<F: FnOnce() + Send + 'static>(&self, f: F) -> Tried<(), F> {
        self.try_submit(f).map(drop)
    }

    /// Runs a task as soon as a thread is free, and returns a future of its result.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started.
    pub fn submit<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Accepted<T> {
        Ok(self.try_submit(f)?)
    }

    /// Like [`submit`](ScheduledThreadPool::submit), but a closure that is refused comes back.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started.
    pub fn try_submit<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        f: F,
    ) -> Tried<ScheduledFuture<T>, F> {
        self.try_schedule(Duration::ZERO, f)
    }

    /// Runs a task once `delay` has passed, and returns a future of its result.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started.
    pub fn schedule<T: Send + 'static>(
        &self,
        delay: Duration,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Accepted<T> {
        Ok(self.try_schedule(delay, f)?)
    }

    /// Like [`schedule`](ScheduledThreadPool::schedule), but a closure that is refused comes back.
    ///
    /// # Errors
    ///
    /// If the pool is shut down or full, or no thread can be started.
    pub fn try_schedule<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Tried<ScheduledFuture<T>, F> {
        let now = self.now();
        let enqueued = self.shared().enqueue(now, after(now, delay), true, Once::in_span(f));
        Ok(ScheduledFuture::new(enqueued.map_err(Once::refused)?))
    }

    /// Runs a task repeatedly: run `k` is due at `initial + k * period`, however long the runs take.
    ///
    /// A run never overlaps the one before. Runs that were missed follow without a pause, but each of them queues
    /// behind the tasks that were due when the run before it ended. So a series whose runs take longer than its period
    /// delays other tasks by one run, and starves none.
    ///
    /// # Errors
    ///
    /// If the period is zero, the pool is shut down or full, or no thread can be started.
    #[doc(alias = "scheduleAtFixedRate")]
    pub fn schedule_at_fixed_rate<R: Repeat>(
        &self,
        initial: Duration,
        period: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Accepted<()> {
        self.schedule_with_period(initial, Period::fixed_rate(period), f)
    }

    /// Runs a task repeatedly, each run `delay` after the end of the one before.
    ///
    /// # Errors
    ///
    /// If the delay is zero, the pool is shut down or full, or no thread can be started.
    #[doc(alias = "scheduleWithFixedDelay")]
    pub fn schedule_with_fixed_delay<R: Repeat>(
        &self,
        initial: Duration,
        delay: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Accepted<()> {
        self.schedule_with_period(initial, Period::fixed_delay(delay), f)
    }

    /// Runs a task repeatedly, as the [`Period`] says. The future resolves when the series ends.
    ///
    /// A `Period` may leave out runs that were missed, or start a new phase after them.
    ///
    /// # Errors
    ///
    /// If the period is zero, the pool is shut down or full, or no thread can be started.
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
    ) -> Accepted<()> {
        Ok(self.try_schedule_with_period(initial, period, f)?)
    }

    /// Like [`schedule_with_period`](ScheduledThreadPool::schedule_with_period), but a closure that is refused comes
    /// back.
    ///
    /// # Errors
    ///
    /// If the period is zero, the pool is shut down or full, or no thread can be started.
    pub fn try_schedule_with_period<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: Period,
        f: F,
    ) -> Tried<ScheduledFuture<()>, F> {
        let now = self.now();
        let due = after(now, initial);
        let series = Series::new(type_name::<F>(), due, period, f)?;
        let enqueued = self.shared().enqueue(now, due, true, series);
        Ok(ScheduledFuture::new(enqueued.map_err(Series::refused)?))
    }

    /// Returns how many tasks wait in the queue. Tasks that run are not counted.
    pub fn pending(&self) -> usize {
        self.shared().queue.len()
    }

    /// Returns what happens to waiting tasks at a shutdown.
    pub fn shutdown_policy(&self) -> ShutdownPolicy {
        self.shared().policy()
    }

    /// Sets what happens to waiting tasks at a shutdown. After a shutdown, tasks that may no longer run are withdrawn.
    pub fn set_shutdown_policy(&self, policy: ShutdownPolicy) {
        self.shared().set_policy(policy);
    }

    /// Refuses further tasks. By default, waiting one-shots still run, and series end: see [`ShutdownPolicy`]. A one-shot
    /// that is due, and waits for a thread, runs in any case.
    ///
    /// It does not wait for the tasks: see [`await_termination`](ScheduledThreadPool::await_termination).
    pub fn shutdown(&self) {
        self.shared().shutdown();
    }

    /// Refuses further tasks, and starts none. Returns the tasks that waited, in the order of their deadlines.
    ///
    /// A task that runs continues to its end.
    #[doc(alias = "shutdownNow")]
    pub fn shutdown_now(&self) -> Vec<Unstarted> {
        let shared = self.shared();
        let unstarted = |(deadline, task)| Unstarted { deadline, task, shared: Arc::clone(shared) };
        shared.shutdown_now().into_iter().map(unstarted).collect()
    }

    /// Returns true if the pool refuses tasks because it is shut down.
    pub fn is_shutdown(&self) -> bool {
        self.shared().queue.is_ending()
    }

    /// Returns true if the pool is shut down and all of its threads have ended.
    pub fn is_terminated(&self) -> bool {
        self.shared().is_terminated()
    }

    /// Waits until the pool has terminated, at most for the given time by the system's clock. Returns true if it has.
    ///
    /// Inside a task of the same pool it returns false at once, because the pool terminates after that task.
    #[doc(alias = "awaitTermination")]
    pub fn await_termination(&self, timeout: Duration) -> bool {
        self.shared().await_termination(timeout)
    }
}

impl_debug!(ScheduledThreadPool, self, pending: self.pending(), is_shutdown: self.is_shutdown());

impl Executor for ScheduledThreadPool {
    /// Refuses a task for now if the pool is [full](PoolBuilder::max_pending) or no thread can be started, and [for
    /// good](Rejected::for_good) if the pool is shut down.
    ///
    /// The calling thread, which is often a tick thread, is never held back.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let (shared, now) = (self.shared(), self.now());
        let enqueued = shared.enqueue(now, now, false, task);
        enqueued.map(drop).map_err(|(reason, task)| match reason {
            // For good, because nothing reopens a pool (S30).
            ScheduleError::Closed if shared.queue.is_closed() => Rejected::for_good(task),
            ScheduleError::Closed => {
                Rejected::finishing(task, shared.threads.pool.has_this_thread())
            }
            _ => Rejected::new(task),
        })
    }

    fn threads(&self) -> Option<PoolThreads> {
        Some(self.shared().threads.pool.clone())
    }
}

impl Schedule for ScheduledThreadPool {
    schedule_boxes_by_name!();

    fn now(&self) -> Instant {
        self.shared().now()
    }

    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled {
        self.take_request(name, request)
    }
}

impl Layer for ScheduledThreadPool {
    fn present(&self) -> Instant {
        self.shared().now()
    }

    fn take_in<W: Work<Output = ()>>(&self, deadline: Option<Instant>, work: W) -> Taken<W> {
        let now = self.present();
        self.shared().enqueue(now, deadline.unwrap_or(now), true, work).map(Cancellable::from)
    }
}

/// A task that waited when [`shutdown_now`](ScheduledThreadPool::shutdown_now) was called.
///
/// Dropping it cancels the task.
#[must_use = "an unstarted task that is dropped is cancelled"]
pub struct Unstarted {
    deadline: Instant,
    task: QueuedTask,
    shared: Arc<Shared>,
}

impl Unstarted {
    /// Returns when the task was due. For a series that lags behind its plan, this is when its last run ended.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Runs the task on the calling thread, unless it was cancelled. Its future gets the result.
    ///
    /// A series runs once. Its future gets [`JoinError::Cancelled`](super::JoinError::Cancelled), unless this run
    /// breaks.
    pub fn run(self) {
        _ = self.task.run(&self.shared, &mut |_: Next| false);
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        self.task.withdraw();
    }
}

impl_debug!(Unstarted, self, deadline: self.deadline, is_periodic: self.task.is_periodic());
