//! How a pool is to be.

use std::fmt;
use std::sync::Arc;
use std::thread;

use super::policy::ShutdownPolicy;
use super::scheduled::ScheduledThreadPool;
use super::shared::Shared;
use crate::job::Places;
use crate::{BuildError, Clock, PanicHook, SystemClock, TaskPanic};

/// How a [`ScheduledThreadPool`] is to be.
#[must_use = "a builder does nothing until `build`"]
pub struct PoolBuilder {
    threads: usize,
    name: String,
    policy: ShutdownPolicy,
    clock: Arc<dyn Clock>,
    on_panic: PanicHook,
    max_pending: Option<usize>,
}

impl Default for PoolBuilder {
    fn default() -> PoolBuilder {
        PoolBuilder {
            threads: thread::available_parallelism().map_or(1, usize::from),
            name: "tickwheel-pool".to_owned(),
            policy: ShutdownPolicy::default(),
            clock: Arc::new(SystemClock),
            on_panic: PanicHook::default(),
            max_pending: None,
        }
    }
}

impl PoolBuilder {
    /// At most so many threads. Default: as many as the machine runs at once.
    pub fn threads(self, threads: usize) -> PoolBuilder {
        PoolBuilder { threads, ..self }
    }

    /// What its threads are called: `name-1`, `name-2` and so on.
    pub fn thread_name(self, name: impl Into<String>) -> PoolBuilder {
        PoolBuilder { name: name.into(), ..self }
    }

    /// What becomes of waiting tasks at a shutdown.
    pub fn shutdown_policy(self, policy: ShutdownPolicy) -> PoolBuilder {
        PoolBuilder { policy, ..self }
    }

    /// The clock that deadlines are met on. Default: the system's.
    pub fn clock(self, clock: impl Clock) -> PoolBuilder {
        PoolBuilder { clock: Arc::new(clock), ..self }
    }

    /// Is told of each panic of a task, beside its future, and of a captured value's `Drop`.
    pub fn on_panic(self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> PoolBuilder {
        PoolBuilder { on_panic: PanicHook::new(hook), ..self }
    }

    /// Refuses a task with [`ScheduleError::Full`](crate::ScheduleError::Full) when so many are pending.
    ///
    /// A task holds its place until its run starts, a series until it ends, and a cancel frees the place at
    /// once. A scheduler whose executor is the pool keeps the task that was refused and offers it again.
    ///
    /// By default there is no bound. Then a thread that brings tasks much faster than the pool runs them waits a
    /// little in some of its calls.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::ScheduleError;
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::builder().threads(1).max_pending(1).build()?;
    /// let later = pool.schedule(Duration::from_secs(60), || "a minute")?;
    /// assert_eq!(pool.submit(|| "now").unwrap_err(), ScheduleError::Full);
    /// assert!(later.cancel());
    /// assert_eq!(pool.submit(|| "now")?.join()?, "now");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_pending(self, tasks: usize) -> PoolBuilder {
        PoolBuilder { max_pending: Some(tasks), ..self }
    }

    /// Makes the pool. Threads start when they are needed.
    ///
    /// # Errors
    ///
    /// When it would have no threads.
    pub fn build(self) -> Result<ScheduledThreadPool, BuildError> {
        let PoolBuilder { threads, name, policy, clock, on_panic, max_pending } = self;
        if threads == 0 {
            return Err(BuildError::NoThreads);
        }
        let name = name.replace('\0', ""); // the system takes none, and std would panic
        let places = Places::new(max_pending);
        let shared = Shared::new(clock, policy, threads, name, on_panic, places);
        Ok(ScheduledThreadPool::with(shared))
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("threads", &self.threads)
            .field("thread_name", &self.name)
            .field("shutdown_policy", &self.policy)
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
}
