//! The settings of a pool.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::scheduled::{ScheduledThreadPool, ShutdownOnDrop};
use super::shared::Shared;
use crate::platform::impls::impl_debug;
use crate::platform::sync::lock_std;
use crate::{BuildError, Clock, PanicHook, SystemClock, TaskPanic};

/// The settings of a [`ScheduledThreadPool`], from [`ScheduledThreadPool::builder`]. The pool keeps them.
#[must_use = "a builder does nothing until `build`"]
pub struct PoolBuilder {
    pub(super) threads: usize,
    pub(super) core: Option<usize>,
    pub(super) keep_alive: Option<Duration>,
    pub(super) name: Option<String>,
    pub(super) factory: ThreadFactory,
    /// The pool keeps it here, and changes it.
    pub(super) policy: Mutex<ShutdownPolicy>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) on_panic: PanicHook,
    pub(super) max_pending: Option<usize>,
    pub(super) before: Option<RunHook>,
    pub(super) after: Option<RunHook>,
}

/// What a thread of the pool does until it ends.
pub(super) type ThreadWork = Box<dyn FnOnce() + Send>;

/// Starts a thread that does some work.
type ThreadFactory = Box<dyn Fn(thread::Builder, ThreadWork) -> io::Result<()> + Send + Sync>;

/// Is called before or after each run of a task, with its name, and whether the run has panicked.
pub(super) type RunHook = Box<dyn Fn(&'static str, bool) + Send + Sync>;

impl Default for PoolBuilder {
    fn default() -> PoolBuilder {
        PoolBuilder {
            threads: thread::available_parallelism().map_or(1, usize::from),
            core: None,
            keep_alive: None,
            name: None,
            factory: Box::new(|builder, work| builder.spawn(work).map(drop)),
            policy: Mutex::default(),
            clock: Arc::new(SystemClock),
            on_panic: PanicHook::default(),
            max_pending: None,
            before: None,
            after: None,
        }
    }
}

impl PoolBuilder {
    /// Sets the maximum number of threads that run tasks. By default, it is the number that the machine runs at once.
    ///
    /// If several threads bring the first tasks at the same time, more may be started for a moment. Those end without having
    /// run anything.
    pub fn threads(self, threads: usize) -> PoolBuilder {
        PoolBuilder { threads, ..self }
    }

    /// Sets how long a thread may be idle, by the pool's clock, before it ends. By default, all threads stay until the
    /// pool is shut down.
    ///
    /// This applies to all threads, or to those above [`core_threads`](PoolBuilder::core_threads) if that is set.
    /// Threads start again when they are needed. While a task waits for its time, one idle thread stays to wait for it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// // A pool that costs nothing between two bursts:
    /// let pool = ScheduledThreadPool::builder().threads(8).keep_alive(Duration::from_secs(30)).build()?;
    /// assert_eq!(pool.submit(|| 6 * 7)?.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("setKeepAliveTime", "allowCoreThreadTimeOut"))]
    pub fn keep_alive(self, idle: Duration) -> PoolBuilder {
        PoolBuilder { keep_alive: Some(idle), ..self }
    }

    /// Sets how many threads stay, however long they are idle. The others end after
    /// [`keep_alive`](PoolBuilder::keep_alive), or after a minute if that is not set.
    ///
    /// By default, no thread stays if `keep_alive` is set, and otherwise all do. A value above
    /// [`threads`](PoolBuilder::threads) counts as that number. Core threads, too, start only when they are needed.
    #[doc(alias = "corePoolSize")]
    pub fn core_threads(self, threads: usize) -> PoolBuilder {
        PoolBuilder { core: Some(threads), ..self }
    }

    /// Sets a function that starts the threads, for example with a larger stack, at another priority, or in a context
    /// of your own.
    ///
    /// The function gets a [`thread::Builder`] that has the thread's name, and the work. The work must run on a new
    /// thread, and returns when the thread is to end. The function is called with nothing locked, on a thread that
    /// brings a task or takes one, or that ends and leaves work behind. If it returns an error, panics, or drops the
    /// work, no thread was started. Then tasks are refused with
    /// [`ScheduleError::NoThread`](crate::ScheduleError::NoThread) as long as there is no other thread. It may be called more
    /// often than the pool has threads: see [`threads`](PoolBuilder::threads). A task that it brings itself is refused like
    /// this if no thread runs, and those that are being started are as many as there may be.
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
        start: impl Fn(thread::Builder, ThreadWork) -> io::Result<()> + Send + Sync + 'static,
    ) -> PoolBuilder {
        PoolBuilder { factory: Box::new(start), ..self }
    }

    /// Sets the name of the threads, which are called `name-1`, `name-2` and so on. By default, they are called
    /// `pool-N-thread-1`, `pool-N-thread-2` and so on, with another `N` for each pool of the process.
    #[doc(alias = "defaultThreadFactory")]
    pub fn thread_name(self, name: impl Into<String>) -> PoolBuilder {
        PoolBuilder { name: Some(name.into()), ..self }
    }

    /// Sets what happens to waiting tasks at a shutdown.
    pub fn shutdown_policy(self, policy: ShutdownPolicy) -> PoolBuilder {
        PoolBuilder { policy: Mutex::new(policy), ..self }
    }

    /// Sets the clock of all deadlines. By default, it is the system's clock.
    pub fn clock(self, clock: impl Clock) -> PoolBuilder {
        PoolBuilder { clock: Arc::new(clock), ..self }
    }

    /// Sets a hook for each panic of a task, which its future reports too, and of the `Drop` of a captured value.
    pub fn on_panic(self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> PoolBuilder {
        PoolBuilder { on_panic: PanicHook::new(hook), ..self }
    }

    /// Sets a hook that is called before each run of a task, on its thread, with the type name of its closure. If it panics,
    /// that is reported, and the task runs.
    ///
    /// What others give to the pool as their [`Executor`](crate::Executor) is a task of it too: a task of a
    /// [`Scheduler`](crate::Scheduler), or up to 64 tasks of an `rx` [`Worker`](crate::rx::Worker), under a name of this crate.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// static STARTED: AtomicUsize = AtomicUsize::new(0);
    /// static PANICKED: AtomicUsize = AtomicUsize::new(0);
    ///
    /// let pool = ScheduledThreadPool::builder()
    ///     .before_execute(|_name| _ = STARTED.fetch_add(1, Ordering::Relaxed))
    ///     .after_execute(|_name, panicked| _ = PANICKED.fetch_add(panicked.into(), Ordering::Relaxed))
    ///     .build()?;
    /// pool.submit(|| 3)?.join()?;
    /// assert!(pool.submit(|| -> u8 { panic!("no paper") })?.join().is_err());
    /// assert_eq!((STARTED.load(Ordering::Relaxed), PANICKED.load(Ordering::Relaxed)), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "beforeExecute")]
    pub fn before_execute(
        self,
        hook: impl Fn(&'static str) + Send + Sync + 'static,
    ) -> PoolBuilder {
        PoolBuilder { before: Some(Box::new(move |name, _| hook(name))), ..self }
    }

    /// Sets a hook that is called after each run of a task, on its thread and before its future resolves, with the type name
    /// of its closure, and true if the run has panicked. A panic of a task that others have given to the pool as their
    /// executor is theirs, and is told to their hooks.
    #[doc(alias = "afterExecute")]
    pub fn after_execute(
        self,
        hook: impl Fn(&'static str, bool) + Send + Sync + 'static,
    ) -> PoolBuilder {
        PoolBuilder { after: Some(Box::new(hook)), ..self }
    }

    /// Sets how many tasks may be pending. Further tasks are refused with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full).
    ///
    /// A one-shot is pending until its run starts, a series until it ends, and either until it is cancelled. A
    /// scheduler whose executor is the pool keeps a task that was refused, and offers it again, after up to 25 ms if the pool takes
    /// a few each time. So with a limit below some tens the scheduler's tasks run slowly.
    ///
    /// By default, there is no limit. Then a thread that brings tasks much faster than the pool runs them waits a
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

    /// Returns the pool. Its threads start when they are needed.
    ///
    /// # Errors
    ///
    /// [`BuildError::NoThreads`], if the number of threads is zero.
    pub fn build(self) -> Result<ScheduledThreadPool, BuildError> {
        if self.threads == 0 {
            return Err(BuildError::NoThreads);
        }
        Ok(ScheduledThreadPool { inner: Arc::new(ShutdownOnDrop(Shared::new(self))) })
    }
}

impl_debug!(PoolBuilder, self,
    threads: self.threads,
    core_threads: self.core,
    keep_alive: self.keep_alive,
    thread_name: self.name,
    shutdown_policy: { *lock_std(&self.policy) }, // in a block, so that the lock is free when the formatter runs
    max_pending: self.max_pending
);

/// What happens to waiting tasks at a [`shutdown`](super::ScheduledThreadPool::shutdown).
///
/// By default, one-shots still run, and series end. The policy can be changed at any time, even after the shutdown. It
/// does not concern a one-shot that is due already.
///
/// ```
/// use tickwheel::pool::{ScheduledThreadPool, ShutdownPolicy};
///
/// let pool = ScheduledThreadPool::new(1);
/// pool.set_shutdown_policy(ShutdownPolicy::default().run_delayed(false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShutdownPolicy {
    pub(super) run_delayed: bool,
    pub(super) continue_periodic: bool,
}

impl ShutdownPolicy {
    /// Sets if one-shots that wait for their time still run. By default, they do. One-shots that are due by then, and wait for a
    /// thread, run in any case. Without this policy a pool that is shut down moves no deadline: a
    /// [`reset`](crate::Cancellable::reset) returns false.
    #[doc(alias = "setExecuteExistingDelayedTasksAfterShutdownPolicy")]
    #[must_use]
    pub fn run_delayed(self, yes: bool) -> Self {
        ShutdownPolicy { run_delayed: yes, ..self }
    }

    /// Sets if series go on until they are cancelled or break. By default, they do not.
    #[doc(alias = "setContinueExistingPeriodicTasksAfterShutdownPolicy")]
    #[must_use]
    pub fn continue_periodic(self, yes: bool) -> Self {
        ShutdownPolicy { continue_periodic: yes, ..self }
    }
}

impl Default for ShutdownPolicy {
    fn default() -> ShutdownPolicy {
        ShutdownPolicy { run_delayed: true, continue_periodic: false }
    }
}
