//! Tasks on a tokio runtime: feature `tokio`.

use tokio::runtime::Handle;

use super::{DueTask, Executor, Rejected};

/// Each task is spawned on the runtime, on one of its worker threads: for tasks that do not block.
///
/// What comes to a runtime that has been shut down is dropped by it, and so counts as dropped.
///
/// ```
/// use tickwheel::Scheduler;
///
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let scheduler = Scheduler::builder().executor(runtime.handle().clone()).build()?;
/// # drop(scheduler);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Executor for Handle {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        drop(self.spawn(async move { task.run() }));
        Ok(())
    }
}

/// Each task is spawned on the runtime's threads for what blocks.
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
#[derive(Clone, Debug)]
pub struct TokioBlocking {
    handle: Handle,
}

impl TokioBlocking {
    /// On the blocking threads of this runtime.
    pub fn new(handle: Handle) -> TokioBlocking {
        TokioBlocking { handle }
    }
}

impl Executor for TokioBlocking {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        drop(self.handle.spawn_blocking(move || task.run()));
        Ok(())
    }
}
