//! The [`Worker`] that users see, and the [`TaskQueue`] behind it.

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::context::{Capture, InContext, both};
use super::delayed::Entry;
use super::drain::with_a_drain;
use super::scheduler::ExecutorScheduler;
use crate::job::{Given, Job, Layer, Once, Owner, Scheduled, Taken, Work};
use crate::platform::impls::impl_debug;
use crate::scheduler::schedule_boxes_by_name;
use crate::{
    Cancellable, DueTask, Executor, Period, Rejected, Repeat, RepeatingTask, Request, Schedule,
    ScheduleError, Task,
};

/// Where a worker's tasks wait: a queue of its own, a part of a shared one, or one that the caller's thread drains.
pub(super) trait TaskQueue: Owner {
    /// Takes in a job that waits, until a deadline if that has not come, or refuses it and leaves it alone.
    /// If too many tasks are queued, holds the calling thread back for a while, so that they have time to run, unless
    /// another thread may wait for this one: it runs a task of a worker, or brings one of a scheduler.
    fn submit(&self, job: Entry, deadline: Option<Instant>) -> Result<(), ScheduleError>;

    /// Cancels the tasks that have not started, and takes in no more.
    fn dispose(&self);

    fn is_disposed(&self) -> bool;

    /// Returns `Some` if it runs what it has, also if it is closed: true if the calling thread runs it.
    fn finishes(&self) -> Option<bool> {
        None
    }

    /// Returns why the next job would be refused, if that is known before it is made.
    fn refusal(&self) -> Option<ScheduleError> {
        let is_full = || self.limit().is_reached().then_some(ScheduleError::Full);
        if self.is_disposed() { Some(ScheduleError::Closed) } else { is_full() }
    }

    /// Returns how many jobs wait, for their time or for their turn.
    fn pending(&self) -> usize;
}

/// Runs tasks one at a time and in order, on the threads of an executor.
///
/// - Tasks that are scheduled one after the other run in that order, on whatever executor. They never overlap, and each
///   sees what the one before has written.
/// - A delayed task is queued when it is due, in order of deadline, and runs after the tasks that are queued already. A
///   task that is scheduled for a time that has passed is queued at once, as if it had no delay.
/// - A panic ends its own task, and nothing else.
/// - [`dispose`](Worker::dispose) cancels all tasks that have not started.
/// - A thread that schedules much faster than the worker runs waits a little in some of its calls, at most 100 ms in
///   one, and never inside a task of a worker. [`ExecutorScheduler::max_pending`] sets a hard limit.
///
/// Clones are handles to the same worker. Dropping the last one disposes nothing: the scheduled tasks still run.
///
/// A worker and its delayed tasks keep its scheduler, or whatever else keeps its time, alive. When that scheduler is
/// closed, the delayed tasks are among the leftovers, each under its own name. To run such a leftover queues the task, and to
/// drop it drops the task. The leftover stands for the next run alone: that of a series has no period, and
/// [`reschedule`](crate::PendingTask::reschedule) moves that run, and returns a handle to its timer.
///
/// When an executor refuses work, drops it, or panics, the worker offers the work again: sixteen times after a
/// millisecond, then after two, and so on, up to 64. The workers of one [`ExecutorScheduler`] do so together, so a
/// thousand of them cost the executor no more than one. If the executor says that it is gone for good
/// ([`Rejected::for_good`]), the worker disposes itself. A worker without any handle also disposes itself if its
/// executor has run nothing for about a minute.
///
/// # When a pool or a loop stops under it
///
/// A worker runs up to 64 tasks, and then hands the rest to its executor again, so that others have their turn.
///
/// | stop | queued tasks | delayed tasks |
/// | --- | --- | --- |
/// | [`ScheduledThreadPool::shutdown`](crate::pool::ScheduledThreadPool::shutdown) | run, all of them | the pool's [policy](crate::pool::ShutdownPolicy) decides, if the pool keeps their time |
/// | [`ThreadPool::shutdown`](crate::ThreadPool::shutdown) | run, all of them | cancelled |
/// | [`TaskRunner::quit`](crate::message_loop::TaskRunner::quit) on another thread, a dropped [`LoopThread`](crate::message_loop::LoopThread) | run, all of them | dropped |
/// | [`quit_safely`](crate::message_loop::TaskRunner::quit_safely) | run, all of them | those run that are due at the call, if the loop keeps their time |
/// | [`quit_when_idle`](crate::message_loop::TaskRunner::quit_when_idle) | run, all of them | those run that are due by then |
/// | [`shutdown_now`](crate::pool::ScheduledThreadPool::shutdown_now), [`quit`](crate::message_loop::TaskRunner::quit) on the loop's own thread | those of the 64 run that the worker has in hand; the others are cancelled | dropped or cancelled |
///
/// From then on the worker takes no task, and series end. A graceful stop cancels queued tasks in one case only: the
/// executor does not have the worker's work when it stops, because it was full, has panicked, or another thread is just
/// about to bring it. Or its own thread brings it by a reset of a task, after the stop: that call runs none.
///
/// A pool or a loop keeps the time of a worker that [`Worker::new`] has made for it. If a [`Scheduler`](crate::Scheduler)
/// keeps the time, the pool does not know of the delayed tasks, and does not wait for them: a task that becomes due while
/// the worker still runs queued tasks joins them, and the others are cancelled.
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
    /// For the jobs. Cloning it costs less than a downgrade of `queue`.
    weak: Weak<dyn TaskQueue>,
    context: Option<Capture>,
}

impl Worker {
    /// Returns a worker on something that both runs tasks and keeps time: a
    /// [`TaskRunner`](crate::message_loop::TaskRunner), a [`ScheduledThreadPool`](crate::pool::ScheduledThreadPool),
    /// another worker. Delays go by its clock.
    ///
    /// It is the same as a worker of [`ExecutorScheduler::over`] with this one as both arguments, which also takes a hook for
    /// panics: this worker tells of them on standard error. The worker keeps it alive.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    /// use tickwheel::rx::Worker;
    ///
    /// let account = Worker::new(ScheduledThreadPool::new(4));
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let later = sender.clone();
    /// account.schedule_after(Duration::from_millis(50), move || later.send("later").unwrap());
    /// account.schedule(move || sender.send("first").unwrap());
    /// assert!(receiver.iter().eq(["first", "later"]));
    /// ```
    pub fn new(schedule_and_executor: impl Schedule + Executor) -> Worker {
        let both = Arc::new(schedule_and_executor);
        ExecutorScheduler::over(Arc::clone(&both), both).worker()
    }

    pub(super) fn at(queue: Arc<dyn TaskQueue>) -> Worker {
        Worker { weak: Arc::downgrade(&queue), queue, context: None }
    }

    /// Returns this worker with one more context for its tasks, inside of the contexts that it has.
    pub(super) fn in_context(self, context: Capture) -> Worker {
        let context = match self.context {
            Some(outer) => both(outer, context),
            None => context,
        };
        Worker { context: Some(context), ..self }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Runs a task after all queued tasks. If the worker is disposed or [full](ExecutorScheduler::max_pending), the
    /// closure is dropped, and the handle says that the task was cancelled. [`try_schedule`](Worker::try_schedule)
    /// returns the closure and the reason.
    pub fn schedule(&self, f: impl FnOnce() + Send + 'static) -> Cancellable {
        self.schedule_after(Duration::ZERO, f)
    }

    /// Runs a task after `delay`, when the tasks that are queued by then have run. With a delay of zero it is the same
    /// as [`schedule`](Worker::schedule).
    ///
    /// If the worker is disposed or full, or if its scheduler takes no more tasks, the closure is dropped, and the
    /// handle says that the task was cancelled. [`try_schedule_after`](Worker::try_schedule_after) returns the closure
    /// and the reason.
    pub fn schedule_after(
        &self,
        delay: Duration,
        f: impl FnOnce() + Send + 'static,
    ) -> Cancellable {
        self.or_cancelled(self.try_schedule_after(delay, f))
    }

    /// Runs a task again and again. Run `k` is queued at `initial + k * period`, however long the runs take. Missed
    /// runs are made up for, one by one. A task that returns an `Option<Duration>` chooses its next delay: see
    /// [`Repeat`].
    ///
    /// If the period is zero, or if the task is refused for one of the reasons of
    /// [`schedule_after`](Worker::schedule_after), the closure is dropped, and the handle says that the task was cancelled.
    /// [`try_schedule_periodically`](Worker::try_schedule_periodically) returns the closure and the reason, and takes
    /// every [`Period`].
    #[doc(alias = "schedulePeriodically")]
    pub fn schedule_periodically<R: Repeat>(
        &self,
        initial: Duration,
        period: Duration,
        f: impl FnMut() -> R + Send + 'static,
    ) -> Cancellable {
        self.or_cancelled(self.try_schedule_periodically(initial, period, f))
    }

    /// Runs a task after all queued tasks, or gives it back in the error.
    ///
    /// # Errors
    ///
    /// `Closed` if the worker is disposed, and `Full` if as many of its tasks are pending as
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
    pub fn try_schedule<F: FnOnce() + Send + 'static>(&self, f: F) -> Given<F> {
        self.try_schedule_after(Duration::ZERO, f)
    }

    /// Runs a task after `delay`, like [`schedule_after`](Worker::schedule_after), or gives it back in the error.
    ///
    /// # Errors
    ///
    /// The errors of [`try_schedule`](Worker::try_schedule), and those of the scheduler, or of whatever else keeps the
    /// worker's time. `Closed` from a scheduler does not mean that the worker is disposed: it still takes tasks without
    /// a delay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{Inline, ScheduleError, Scheduler};
    ///
    /// let timers = Scheduler::new();
    /// let worker = ExecutorScheduler::new(Inline, &timers).worker();
    /// timers.close()?;
    /// let refused = worker.try_schedule_after(Duration::from_secs(1), || println!("now, then")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Closed);
    /// worker.try_schedule(refused.into_task())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_schedule_after<F: FnOnce() + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Given<F> {
        self.take_in(self.after(delay), Once::new(f)).map_err(Once::refused)
    }

    /// Runs a task again and again, as the [`Period`] says, or gives it back in the error. A `Duration` is a period of a
    /// fixed rate, as in [`schedule_periodically`](Worker::schedule_periodically).
    ///
    /// # Errors
    ///
    /// `ZeroPeriod`, and the errors of [`try_schedule_after`](Worker::try_schedule_after).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{Inline, Period, Scheduler};
    ///
    /// let (timers, driver) = Scheduler::builder().build_driven()?;
    /// let worker = ExecutorScheduler::new(Inline, &timers).worker();
    /// let gap = Period::fixed_delay(Duration::from_secs(1));
    /// let poll = worker.try_schedule_periodically(Duration::ZERO, gap, || println!("poll"))?;
    /// driver.advance(Duration::from_secs(10));
    /// assert!(poll.cancel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_schedule_periodically<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: impl Into<Period>,
        f: F,
    ) -> Given<F> {
        self.take_series(initial, period.into(), type_name::<F>(), f)
    }

    fn submit<W: Work<Output = ()>>(&self, deadline: Option<Instant>, work: W) -> Taken<W> {
        let job = Job::new(Weak::clone(&self.weak), work);
        if let Err(reason) = self.queue.submit(Arc::clone(&job) as Entry, deadline) {
            if let Some(work) = job.take_back() {
                return Err((reason, work));
            }
            // A disposal has cancelled it, or the executor has run the drain that it refused.
        }
        Ok(Cancellable::from(job))
    }

    /// Drops a closure that was refused.
    fn or_cancelled<F>(&self, given: Given<F>) -> Cancellable {
        given.unwrap_or_else(|refused| {
            self.queue.hook().catch(None, || drop(refused));
            Cancellable::already_cancelled()
        })
    }

    // ----- the end, and the state ----------------------------------------------------------

    /// Cancels all tasks that have not started, and takes no more. When it returns, their closures are dropped. A task
    /// that runs is not interrupted, and a series that runs does not run again.
    ///
    /// It may be called from anywhere, also from a task of this worker or from a destructor. A second call does
    /// nothing, and does not wait for the first.
    pub fn dispose(&self) {
        self.queue.dispose();
    }

    /// Returns true if the worker takes no more tasks: it was disposed, or its executor is gone for good or about to end.
    /// In the last case, tasks that it has accepted may still run.
    ///
    /// The worker learns of its executor's end when it next gives it something to do. So a worker that has nothing to do
    /// may still say false, and takes no task all the same.
    #[doc(alias = "isDisposed")]
    pub fn is_disposed(&self) -> bool {
        self.queue.is_disposed()
    }

    /// Returns how many tasks wait for their time or for their turn. A series counts as one. The task that runs does
    /// not count.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }
}

impl Layer for Worker {
    fn present(&self) -> Instant {
        self.queue.now()
    }

    /// Schedules work, in the contexts of the worker.
    fn take_in<W: Work<Output = ()>>(&self, deadline: Option<Instant>, work: W) -> Taken<W> {
        let Some(context) = &self.context else { return self.submit(deadline, work) };
        if let Some(reason) = self.queue.refusal() {
            return Err((reason, work)); // before a user's code runs in vain
        }
        let scope = match catch_unwind(AssertUnwindSafe(|| context())) {
            Ok(scope) => scope,
            Err(panic) => {
                self.queue.hook().catch(None, || drop(work)); // a second panic while unwinding would abort
                resume_unwind(panic)
            }
        };
        let given = self.submit(deadline, InContext { scope, work: Some(work) });
        given.map_err(|(reason, InContext { scope, work })| {
            self.queue.hook().catch(None, || drop(scope));
            (reason, work.expect("it has not run"))
        })
    }
}

impl_debug!(Worker, self, pending: self.pending(), is_disposed: self.is_disposed());

impl Schedule for Worker {
    schedule_boxes_by_name!();

    fn now(&self) -> Instant {
        self.queue.now()
    }

    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled {
        let request = match request {
            Request::At(at, task) if at <= self.now() => Request::After(Duration::ZERO, task),
            other => other,
        };
        self.take_request(name, request)
    }
}

/// Runs the tasks of a scheduler in order, among the worker's own tasks.
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
    /// Queues a task of a scheduler. A disposed worker refuses it for good, and the scheduler keeps the task and
    /// returns it when it is closed. A full worker refuses it for now, and the scheduler offers the task again. The
    /// calling thread is never held back, because most often it is a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        match with_a_drain(|| self.take_in(None, task)) {
            Err((ScheduleError::Full, task)) => Err(Rejected::new(task)),
            Err((_, task)) => Err(match self.queue.finishes() {
                Some(is_here) => Rejected::finishing(task, is_here),
                None => Rejected::for_good(task),
            }),
            Ok(_) => Ok(()),
        }
    }
}
