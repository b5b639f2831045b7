//! How a pool is to be.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::policy::ShutdownPolicy;
use super::scheduled::ScheduledThreadPool;
use super::shared::Shared;
use super::workers::{Staffing, ThreadFactory};
use crate::job::PendingLimit;
use crate::{BuildError, Clock, PanicHook, SystemClock, TaskPanic};

/// How long threads above the core stay idle, if nobody says.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How a [`ScheduledThreadPool`] is to be.
#[must_use = "a builder does nothing until `build`"]
pub struct PoolBuilder {
    threads: usize,
    core: Option<usize>,
    keep_alive: Option<Duration>,
    name: String,
    factory: ThreadFactory,
    policy: ShutdownPolicy,
    clock: Arc<dyn Clock>,
    on_panic: PanicHook,
    max_pending: Option<usize>,
}

impl Default for PoolBuilder {
    fn default() -> PoolBuilder {
        PoolBuilder {
            threads: thread::available_parallelism().map_or(1, usize::from),
            core: None,
            keep_alive: None,
            name: "tickwheel-pool".to_owned(),
            factory: Box::new(|builder, work| builder.spawn(work).map(drop)),
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

    /// Threads end after being idle for so long, by the pool's clock: all of them, or those above
    /// [`core_threads`](PoolBuilder::core_threads). They start again when they are needed.
    ///
    /// While a task waits for its time one idle thread stays, to wait for it. By default all threads stay until the
    /// pool is shut down.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// // A pool that costs nothing between two bursts.
    /// let pool = ScheduledThreadPool::builder().threads(8).keep_alive(Duration::from_secs(30)).build()?;
    /// assert_eq!(pool.submit(|| 6 * 7)?.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("setKeepAliveTime", "allowCoreThreadTimeOut"))]
    pub fn keep_alive(self, idle: Duration) -> PoolBuilder {
        PoolBuilder { keep_alive: Some(idle), ..self }
    }

    /// So many threads stay, however long they are idle. The others end after
    /// [`keep_alive`](PoolBuilder::keep_alive), or after a minute if that is not set.
    ///
    /// Default: none stay if `keep_alive` is set, otherwise all. More than [`threads`](PoolBuilder::threads) is as many
    /// as that. Core threads too start only when they are needed.
    #[doc(alias = "corePoolSize")]
    pub fn core_threads(self, threads: usize) -> PoolBuilder {
        PoolBuilder { core: Some(threads), ..self }
    }

    /// Starts the threads: with a larger stack, say, at another priority, or in a context of your own.
    ///
    /// The factory is given a [`thread::Builder`] that has the thread's name, and the work, which must run on a new
    /// thread and returns when the thread is to end. It is called on the thread that brings a task or takes one, with
    /// nothing locked. If it returns an error, panics, or drops the work, no thread was started: as long as there is no
    /// other one, tasks are refused with [`ScheduleError::NoThread`](crate::ScheduleError::NoThread).
    ///
    /// ```
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::builder()
    ///     .threads(2)
    ///     .thread_factory(|thread, work| {
    ///         thread.stack_size(256 * 1024).spawn(move || {
    ///             // Set its priority, or its core, here.
    ///             work();
    ///         })?;
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// assert_eq!(pool.submit(|| "small")?.join()?, "small");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread_factory(
        self,
        start: impl Fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<()>
        + Send
        + Sync
        + 'static,
    ) -> PoolBuilder {
        PoolBuilder { factory: Box::new(start), ..self }
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
        if self.threads == 0 {
            return Err(BuildError::NoThreads);
        }
        let all_stay = if self.keep_alive.is_some() { 0 } else { self.threads };
        let staffing = Staffing {
            limit: self.threads,
            core: self.core.unwrap_or(all_stay).min(self.threads),
            keep_alive: self.keep_alive.unwrap_or(KEEP_ALIVE),
            name: self.name.replace('\0', ""), // the system takes none, and std would panic
            factory: self.factory,
        };
        let limit = PendingLimit::new(self.max_pending);
        let shared = Shared::new(self.clock, self.policy, staffing, self.on_panic, limit);
        Ok(ScheduledThreadPool::with(shared))
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("threads", &self.threads)
            .field("core_threads", &self.core)
            .field("keep_alive", &self.keep_alive)
            .field("thread_name", &self.name)
            .field("shutdown_policy", &self.policy)
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
}
