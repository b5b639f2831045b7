//! Tasks on a rayon pool: feature `rayon`.

use rayon_core::ThreadPool;

use super::{DueTask, Executor, Rejected};

/// Each task is spawned on the pool. Several schedulers share one in an `Arc`; the pool of the whole process
/// is `|task: DueTask| rayon::spawn(move || task.run())`.
///
/// ```
/// use tickwheel::Scheduler;
///
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let scheduler = Scheduler::builder().executor(pool).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Executor for ThreadPool {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.spawn(move || task.run());
        Ok(())
    }
}
