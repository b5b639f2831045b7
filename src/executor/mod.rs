//! What decides *where* a task runs: the [`Executor`], and the [`DueTask`] that it is handed.
//!
//! The tick thread decides *when*. It hands the tasks that are due to an executor, in batches, and goes on. A task that
//! waits in an executor's queue can still be cancelled, because it is claimed only when it [`run`](DueTask::run)s.
//!
//! | file | subject |
//! | --- | --- |
//! | [`due`] | [`DueTask`], [`DueBatch`], [`Rejected`]: what an executor is handed, and what it gives back |
//! | [`numbered`] | executors of single tasks, and how the tick thread finds them |
//! | [`thread_pool`] | [`ThreadPool`], the default |
//! | `runtimes` | tokio and rayon |
//! | [`deadlock`] | refuses a wait that would never end |

pub(crate) mod deadlock;
pub(crate) mod due;
pub(crate) mod numbered;
#[cfg(any(feature = "tokio", feature = "rayon"))]
mod runtimes;
pub(crate) mod thread_pool;

use std::sync::Arc;
use std::sync::mpsc::{self, SendError, TrySendError};

use crate::executor::deadlock::PoolThreads;
use crate::platform::impls::impl_behind;

pub use due::{DueBatch, DueTask, Rejected};
#[cfg(feature = "tokio")]
pub use runtimes::TokioBlocking;
pub use thread_pool::ThreadPool;

/// Takes tasks that are due and runs them somewhere.
///
/// An executor is called on the tick thread, with nothing locked. It may run the task at once ([`Inline`]), pass it on,
/// or refuse it with [`Rejected`]. A task that it drops without running counts as dropped.
///
/// A task that is refused is not lost (S18). From then on the executor's tasks wait in a queue of their own, in order
/// of deadline, and delay no other executor's tasks (S30). After a tick the executor is asked again, with one task. If
/// it takes that task it is offered more, until the queue is empty. Otherwise the pause grows, to 100 ms at most, or to
/// 25 ms while the executor takes a few tasks each time. An executor that takes many is asked more often. So a queue with
/// room for fewer than eight tasks may get no more than forty times that a second, however fast they run: give a bounded
/// queue room for what its threads run in 25 ms. An executor that will never run anything again says so by
/// [`Rejected::for_good`].
///
/// A channel is an executor: `mpsc::Sender<DueTask>`, or `mpsc::SyncSender<DueTask>`, which refuses while it is full. When
/// its receiver is gone it refuses for good, so a close returns the tasks.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (queue, tasks) = mpsc::channel();
/// let scheduler = Scheduler::builder().executor(queue).build()?;
/// scheduler.schedule_once(Duration::from_millis(1), || println!("on the main thread"))?;
/// tasks.recv()?.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An executor that adds something to each task and passes it on to another one does so by [`DueTask::wrap`].
///
/// Every `Fn(DueTask) + Send + Sync + 'static` is an executor too. It returns `()`, or `Result<(), Rejected>` if it may
/// refuse a task (see [`ExecuteOutcome`]). A task that it drops is lost, so do not write `drop(queue.send(task))`:
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::{Rejected, Scheduler};
///
/// # #[derive(Debug)]
/// # struct Job(tickwheel::DueTask);
/// let (queue, jobs) = mpsc::channel();
/// let scheduler = Scheduler::builder()
///     .executor_fn(move |task| queue.send(Job(task)).map_err(|back| Rejected::for_good(back.0.0)))
///     .build()?;
/// # drop(jobs);
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Takes one task.
    ///
    /// # Errors
    ///
    /// Returns the task in a [`Rejected`] if the executor refuses it. The task is not lost.
    fn execute(&self, task: DueTask) -> Result<(), Rejected>;

    /// Takes many tasks, in order of their deadlines. Tasks that are left in the batch, or put back by
    /// [`DueBatch::reject`], count as refused.
    ///
    /// The tick thread calls this method. The default calls [`execute`](Executor::execute) for each task. An executor
    /// that can take a batch at the price of one task should override it.
    fn execute_batch(&self, batch: &mut DueBatch) {
        // Each task is offered, also behind one that was refused: an executor may refuse one and take another.
        while let Some(task) = batch.next() {
            if let Err(rejected) = self.execute(task) {
                batch.reject(rejected);
            }
        }
    }

    /// Returns the pool whose threads run the tasks, if it is one of this crate's. A join on one of its tasks then
    /// detects a deadlock.
    #[doc(hidden)]
    fn threads(&self) -> Option<PoolThreads> {
        None
    }
}

/// A value that a closure may return which is an [`Executor`]: `()` if it takes every task, or `Result<(), Rejected>` if it
/// may refuse some. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "a closure that is an executor cannot return `{Self}`",
    label = "it must return `()` or `Result<(), Rejected>`",
    note = "an error of a channel holds the task: `queue.send(task).map_err(|back| Rejected::for_good(back.0))`"
)]
pub trait ExecuteOutcome: sealed::Sealed {
    #[doc(hidden)]
    fn outcome(self) -> Result<(), Rejected>;
}

impl ExecuteOutcome for () {
    fn outcome(self) -> Result<(), Rejected> {
        Ok(())
    }
}

impl ExecuteOutcome for Result<(), Rejected> {
    fn outcome(self) -> Result<(), Rejected> {
        self
    }
}

/// For a closure that never returns, such as `|_| unreachable!()`.
impl ExecuteOutcome for sealed::Never {
    fn outcome(self) -> Result<(), Rejected> {
        self
    }
}

mod sealed {
    use super::Rejected;

    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for Result<(), Rejected> {}
    impl Sealed for Never {}

    /// What a function returns.
    pub trait Returns {
        type Type;
    }

    impl<R> Returns for fn() -> R {
        type Type = R;
    }

    /// The type `!`, which has no name of its own outside of a signature.
    pub(super) type Never = <fn() -> ! as Returns>::Type;
}

impl<R: ExecuteOutcome, F: Fn(DueTask) -> R + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self(task).outcome()
    }
}

/// Sends each task to the receiver. If the receiver is gone, it refuses for good.
impl Executor for mpsc::Sender<DueTask> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.send(task).map_err(|SendError(task)| Rejected::for_good(task))
    }
}

/// Sends each task to the receiver. It refuses while the channel is full, and for good if the receiver is gone. It never
/// waits, so a channel without room takes a task only while a thread waits to receive one.
impl Executor for mpsc::SyncSender<DueTask> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.try_send(task).map_err(|refused| match refused {
            // The receiver goes on, and makes room.
            TrySendError::Full(task) => Rejected::new(task),
            TrySendError::Disconnected(task) => Rejected::for_good(task),
        })
    }
}

impl_behind!(E: Executor for Arc<E>; {
    fn execute(&self, task: DueTask) -> Result<(), Rejected>;
    fn execute_batch(&self, batch: &mut DueBatch);
    fn threads(&self) -> Option<PoolThreads>;
});

/// Runs tasks on the tick thread itself: the fastest executor, for tasks that are short and never block.
///
/// While a task runs, the tick thread does nothing else. So tasks that become due in this time start late. What it means
/// for a [worker](crate::rx::Worker) is said at [`ExecutorScheduler::new`](crate::rx::ExecutorScheduler::new).
///
/// ```
/// use tickwheel::{Inline, Scheduler};
///
/// let scheduler = Scheduler::builder().executor(Inline).build()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Executor for Inline {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        task.run();
        Ok(())
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        batch.run_all();
    }
}
