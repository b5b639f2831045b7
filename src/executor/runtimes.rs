//! Executors of other crates: a tokio runtime (feature `tokio`) and a rayon pool (feature `rayon`).

use super::{DueTask, Executor, Rejected};

/// Spawns each task on the runtime, on one of its worker threads: for tasks that do not block.
///
/// A runtime that has been shut down drops the tasks that it is given, and they count as dropped.
///
/// ```
/// use tickwheel::Scheduler;
///
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let scheduler = Scheduler::builder().executor(runtime.handle().clone()).build()?;
/// # drop(scheduler);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tokio")]
impl Executor for tokio::runtime::Handle {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        // To drop the join handle detaches the task, and does not cancel it.
        drop(self.spawn(async move { task.run() }));
        Ok(())
    }
}

/// An executor that spawns each task on a tokio runtime's threads for blocking work.
///
/// ```
/// use tickwheel::{Scheduler, TokioBlocking};
///
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let blocking = TokioBlocking::new(runtime.handle().clone());
/// let scheduler = Scheduler::builder().executor(blocking).build()?;
/// # drop(scheduler);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tokio")]
#[derive(Clone, Debug)]
pub struct TokioBlocking {
    handle: tokio::runtime::Handle,
}

#[cfg(feature = "tokio")]
impl TokioBlocking {
    /// Makes an executor of this runtime's blocking threads.
    pub fn new(handle: tokio::runtime::Handle) -> TokioBlocking {
        TokioBlocking { handle }
    }
}

#[cfg(feature = "tokio")]
impl Executor for TokioBlocking {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        drop(self.handle.spawn_blocking(move || task.run()));
        Ok(())
    }
}

/// Spawns each task on the pool. Several schedulers can share one pool in an `Arc`. To use the global rayon pool, give
/// the scheduler the closure `|task: DueTask| rayon::spawn(move || task.run())`.
///
/// ```
/// use tickwheel::Scheduler;
///
/// # use rayon_core as rayon;
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let scheduler = Scheduler::builder().executor(pool).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "rayon")]
impl Executor for rayon_core::ThreadPool {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.spawn(move || task.run());
        Ok(())
    }
}
