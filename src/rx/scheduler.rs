//! The [`ExecutorScheduler`], which gives out workers on an executor.

use std::sync::Arc;

use super::retries::RetryQueue;
use super::serial::SerialQueue;
use super::worker::Worker;
use crate::backpressure::PendingLimit;
use crate::platform::impls::impl_debug;
use crate::{Executor, PanicHook, Schedule, Scheduler, TaskPanic};

/// Gives out workers that run their tasks on an executor. Each worker runs its own tasks in order.
///
/// Workers of one scheduler share its executor and its clock, and nothing else. No task and no disposal of one worker
/// affects another. No worker ever shuts the executor down.
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
    /// It has the timers too.
    retries: Arc<RetryQueue>,
    hook: PanicHook,
    max_pending: Option<usize>,
}

impl ExecutorScheduler {
    /// Returns workers that run on this executor, and whose delays this scheduler keeps.
    ///
    /// A thread that schedules a task on an idle worker calls the executor, and so does the tick thread for a delayed
    /// task. The scheduler's own executor is not used.
    ///
    /// On [`Inline`](crate::Inline), a task without a delay runs in the call that schedules it. There is one exception: if a task
    /// that runs inline schedules another one, the call returns at once, and the new task runs on the same stack after that task's
    /// batch. So any number of workers that schedule on each other keep the stack flat. But such a task must not *wait*
    /// for a task of another inline worker, because that one cannot start on this thread before the first has ended.
    /// A call that resets a task, or schedules one for later, runs none. The worker's timers run what such a call has queued, and
    /// then also the tasks without a delay that have come meanwhile.
    ///
    /// A call that runs its task also runs what other threads and other inline workers bring in the meantime. If they never stop, it
    /// returns after about 100 ms (by the clock of each worker, 200 ms if they have several, and at the end of a batch of 64 tasks),
    /// and the scheduler's tick thread goes on.
    pub fn new(executor: impl Executor, scheduler: &Scheduler) -> ExecutorScheduler {
        ExecutorScheduler::over(executor, scheduler.clone())
    }

    /// Returns workers that run on this executor, and whose delays are kept by anything that keeps time: a loop, a
    /// pool, another worker. Delays go by its clock, virtual or not. With a [`Scheduler`] it is the same as
    /// [`new`](ExecutorScheduler::new). If `executor` and `schedule` are one, use [`Worker::new`].
    ///
    /// `schedule` runs a timer for each delayed task, and the task runs on the executor. Delayed tasks keep their order
    /// (by deadline, and by age if deadlines are equal) even if `schedule` has several threads.
    ///
    /// The workers keep `schedule` alive. If it ends before a delayed task is due, that task is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::message_loop::MessageLoop;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{ManualClock, ThreadPool};
    ///
    /// let clock = ManualClock::new();
    /// let looper = MessageLoop::builder().clock(clock.clone()).prepare()?;
    /// // Delays on the loop's virtual clock, tasks on a pool.
    /// let workers = ExecutorScheduler::over(ThreadPool::new(2), looper.runner());
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// workers.worker().schedule_after(Duration::from_secs(3600), move || sender.send(1).unwrap());
    /// clock.advance(Duration::from_secs(3600));
    /// looper.run_until_idle();
    /// assert_eq!(receiver.recv()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(executor: impl Executor, schedule: impl Schedule + 'static) -> ExecutorScheduler {
        let executor = Arc::new(executor);
        let (retries, hook) = (RetryQueue::new(schedule), PanicHook::default());
        ExecutorScheduler { executor, retries, hook, max_pending: None }
    }

    /// Sets a hook for the workers that are made from now on. It is called with each panic of a task, of the `Drop` of
    /// a captured value, and of the executor.
    #[must_use]
    pub fn on_panic(
        self,
        hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static,
    ) -> ExecutorScheduler {
        ExecutorScheduler { hook: PanicHook::new(hook), ..self }
    }

    /// Limits each worker that is made from now on: it refuses a task if `tasks` of its own are pending.
    ///
    /// A task is pending until its run starts, a series until it ends, and both until they are cancelled. On a full
    /// worker, [`try_schedule`](Worker::try_schedule) gives the closure back with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full). [`schedule`](Worker::schedule) and the other methods
    /// without an error drop the closure and return a handle that says that the task was cancelled. A scheduler whose
    /// executor is the worker keeps a refused task and offers it again.
    ///
    /// By default there is no limit. Then a thread that schedules much faster than its worker runs waits a little in
    /// some of its calls, at most 100 ms in one.
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

    /// Returns a new worker. It costs an allocation, and no thread.
    #[doc(alias = "createWorker")]
    pub fn worker(&self) -> Worker {
        let (executor, retries) = (Arc::clone(&self.executor), Arc::clone(&self.retries));
        let limit = PendingLimit::new(self.max_pending);
        Worker::at(SerialQueue::new(executor, self.hook.clone(), limit, retries))
    }
}

impl_debug!(ExecutorScheduler, self, max_pending: self.max_pending);
