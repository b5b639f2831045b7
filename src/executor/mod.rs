//! What decides *where* a task runs: the [`Executor`], and the [`DueTask`] that it is handed.
//!
//! The tick thread decides *when*. It hands what is due to an executor, in batches, and goes on; a
//! task that waits in an executor's queue can still be cancelled, because it is claimed only when
//! it [`run`](DueTask::run)s.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`due`] | [`DueTask`], [`Rejected`]: one task that is due |
//! | [`batch`] | [`DueBatch`]: many at once |
//! | [`own`] | executors of single tasks, and how the tick thread finds them |
//! | [`thread_pool`] | [`ThreadPool`], the default |

pub(crate) mod backpressure;
pub(crate) mod batch;
pub(crate) mod deadlock;
pub(crate) mod due;
pub(crate) mod own;
#[cfg(feature = "rayon")]
mod rayon;
pub(crate) mod thread_pool;
#[cfg(feature = "tokio")]
mod tokio;

use std::sync::Arc;

use crate::executor::deadlock::PoolThreads;

pub use batch::DueBatch;
pub use due::{DueTask, Rejected};
pub use thread_pool::ThreadPool;
#[cfg(feature = "tokio")]
pub use tokio::TokioBlocking;

/// Takes tasks that are due and runs them somewhere.
///
/// An executor is called on the tick thread, with nothing locked. It may run the task at once
/// ([`Inline`]), pass it on, or refuse it with [`Rejected`]. A task that it drops without running counts as dropped.
///
/// A task that is refused is not lost (S18). From then on the executor's tasks wait in a line of their own, in order of
/// deadline, and delay nobody else's (S30). After a tick the executor is asked again, with one task: if it takes that
/// it is offered more, until the line is empty. Otherwise the pause grows, to 100 ms at most, or to 25 ms while the
/// executor takes a few tasks each time; an executor that takes many is asked more often. One that will never run
/// anything again says so by [`Rejected::for_good`].
///
/// Every `Fn(DueTask) + Send + Sync + 'static` is an executor:
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{DueTask, Scheduler};
///
/// let (queue, tasks) = mpsc::channel();
/// let scheduler = Scheduler::builder()
///     .executor_fn(move |task: DueTask| drop(queue.send(task)))
///     .build()?;
/// scheduler.schedule_once(Duration::from_millis(1), || println!("on the main thread"))?;
/// tasks.recv()?.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Takes one task.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the task back; it is not lost.
    fn execute(&self, task: DueTask) -> Result<(), Rejected>;

    /// Takes many tasks, in order of their deadlines. What it leaves in the batch, or puts back by
    /// [`DueBatch::reject`], counts as refused.
    ///
    /// An executor that can take a batch at the price of one task should say so here: it is what
    /// the tick thread calls.
    fn execute_batch(&self, batch: &mut DueBatch) {
        while let Some(task) = batch.next() {
            if let Err(rejected) = self.execute(task) {
                batch.reject(rejected);
            }
        }
    }

    /// The pool whose threads run the tasks, if it is one of this crate's: a join on one of them is told of a deadlock.
    #[doc(hidden)]
    fn threads(&self) -> Option<PoolThreads> {
        None
    }
}

impl<F: Fn(DueTask) + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self(task);
        Ok(())
    }
}

impl<E: Executor + ?Sized> Executor for Arc<E> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        (**self).execute(task)
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        (**self).execute_batch(batch);
    }

    fn threads(&self) -> Option<PoolThreads> {
        (**self).threads()
    }
}

/// Runs tasks on the tick thread itself: the fastest way, for tasks that are short and never block.
///
/// While a task runs the wheel stands still, so whatever is due meanwhile is late by that much.
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
