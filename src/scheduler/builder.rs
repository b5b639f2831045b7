//! The [`Builder`], which makes a scheduler with a tick thread or with a [`Driver`].

use std::any::TypeId;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::{Life, Scheduler};
use crate::clock::clocks::{Clock, ManualClock, SystemClock, Watch};
use crate::clock::parking::Sleeper;
use crate::clock::tick::nanos;
use crate::clock::timeline::Timeline;
use crate::engine::shared::Shared;
use crate::engine::tick_thread;
use crate::engine::{Engine, Precision};
use crate::error::BuildError;
use crate::executor::{DueTask, ExecuteOutcome, Executor, Inline, ThreadPool};
use crate::observe::{Hooks, Observer, PanicHook, TaskPanic};
use crate::platform::impls::impl_debug;
use crate::platform::sync::Mutex;
use crate::scheduler::driver::{Driver, EngineCell};
use crate::wake::doorbell::Doorbell;

/// Sets the options of a scheduler, and makes it: see [`Scheduler::builder`].
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Inline, Precision, Scheduler};
///
/// let scheduler = Scheduler::builder()
///     .tick(Duration::from_millis(10))
///     .precision(Precision::Exact)
///     .executor(Inline)
///     .thread_name("timers")
///     .max_pending(100_000)
///     .on_panic(|panic| eprintln!("a timer panicked: {:?}", panic.message()))
///     .build()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[must_use = "nothing is built before `build`"]
pub struct Builder {
    tick: Duration,
    wheel_size: usize,
    precision: Precision,
    executor: Option<Box<dyn Executor>>,
    clock: Option<ChosenClock>,
    thread_name: Option<String>,
    max_pending: Option<usize>,
    shutdown_timeout: Duration,
    hooks: Hooks,
}

impl Builder {
    /// Sets how long a tick is. It must be above zero. A tick of more than 18 years is shortened to that. By default, a
    /// tick is 1 ms.
    pub fn tick(self, tick: Duration) -> Builder {
        Builder { tick, ..self }
    }

    /// Sets how many buckets the wheel has: a power of two, 4096 by default. With more buckets, fewer tasks have to be
    /// moved before they are due. A bucket takes 32 bytes. At most four million buckets are made.
    pub fn wheel_size(self, buckets: usize) -> Builder {
        Builder { wheel_size: buckets, ..self }
    }

    /// Sets whether tasks run at the tick after their deadline (the default), or exactly at their deadline.
    pub fn precision(self, precision: Precision) -> Builder {
        Builder { precision, ..self }
    }

    /// Sets the executor, which runs the tasks. By default, it is a [`ThreadPool`] of as many threads as the machine
    /// runs at once. [`Inline`] is faster, for tasks that are short. The default of
    /// [`build_driven`](Builder::build_driven) is [`Inline`].
    pub fn executor(self, executor: impl Executor) -> Builder {
        Builder { executor: Some(Box::new(executor)), ..self }
    }

    /// Like [`executor`](Builder::executor), for a closure, whose argument then needs no type annotation. It returns
    /// `()`, or `Result<(), Rejected>` if it may refuse a task. A task that the closure drops is lost.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use tickwheel::{Rejected, Scheduler};
    ///
    /// let (queue, tasks) = mpsc::channel();
    /// let scheduler = Scheduler::builder()
    ///     .executor_fn(move |task| queue.send(task).map_err(|back| Rejected::for_good(back.0)))
    ///     .build()?;
    /// # drop(tasks);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn executor_fn<R: ExecuteOutcome>(
        self,
        executor: impl Fn(DueTask) -> R + Send + Sync + 'static,
    ) -> Builder {
        self.executor(executor)
    }

    /// Sets the clock. By default, it is the system's clock. The default of [`build_driven`](Builder::build_driven) is
    /// a virtual clock, which the driver moves.
    pub fn clock(self, clock: impl Clock) -> Builder {
        Builder { clock: Some(chosen(clock)), ..self }
    }

    /// Sets the name of the tick thread. By default, it is `tickwheel`.
    ///
    /// The threads of the default executor then have names of their own too: `name-pool-1`, `name-pool-2` and so on.
    pub fn thread_name(self, name: impl Into<String>) -> Builder {
        Builder { thread_name: Some(name.into()), ..self }
    }

    /// Sets how many tasks may be pending at once. A further task is refused with [`Full`](crate::ScheduleError::Full).
    /// By default, there is no limit.
    ///
    /// A one-shot counts until its run starts, a series until it ends. Without a limit, threads that schedule much
    /// faster than tasks are run are held back for moments: see [Under overload](crate#under-overload).
    pub fn max_pending(self, tasks: usize) -> Builder {
        Builder { max_pending: Some(tasks), ..self }
    }

    /// Sets how long [`Scheduler::close`] waits for the tick thread. By default, it waits for 5 s.
    pub fn shutdown_timeout(self, timeout: Duration) -> Builder {
        Builder { shutdown_timeout: timeout, ..self }
    }

    /// Sets a hook that is called for every panic of a task, of a captured value's `Drop`, of an executor, and of a
    /// clock, on the thread where it happened.
    ///
    /// Should the tick thread ever end because of a fault in this crate, the hook is told that too, once. The scheduler is
    /// closed then, and [`Scheduler::close`] returns what was pending.
    ///
    /// Without a hook, a line on standard error tells of the panic of a task, and a [`Driver`] resumes it out of
    /// [`advance`](Driver::advance), [`turn`](Driver::turn) or [`block_on`](Driver::block_on). The panic of an executor is
    /// not resumed. Panics of observers and of the hook itself are caught, and told only by the panic hook of the process.
    pub fn on_panic(mut self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> Builder {
        self.hooks.on_panic = PanicHook::new(hook);
        self
    }

    /// Sets an observer, which is called for each turn of the tick thread.
    pub fn observer(mut self, observer: impl Observer) -> Builder {
        self.hooks.observer = Some(Box::new(observer));
        self
    }

    /// Makes a scheduler, and starts its tick thread.
    ///
    /// # Errors
    ///
    /// [`BuildError::ZeroTick`] if the tick is zero, [`BuildError::WheelSize`] if the wheel size is not a power of two,
    /// and [`BuildError::Thread`] if the thread could not be started.
    pub fn build(mut self) -> Result<Scheduler, BuildError> {
        let clock = self.clock.take().unwrap_or_else(|| chosen(SystemClock));
        let pool_name = self.thread_name.as_ref().map(|name| format!("{name}-pool"));
        let default = || -> Box<dyn Executor> { Box::new(ThreadPool::of_the_machine(pool_name)) };
        let executor = self.executor.take().unwrap_or_else(default);
        let sleeper = Sleeper::new();
        let name = self.thread_name.take().unwrap_or_else(|| String::from("tickwheel"));
        let bell = Doorbell::new(Some(sleeper.waker()));
        let (engine, life) = self.build_engine(clock, executor, bell, true)?;
        tick_thread::spawn(engine, sleeper, &name).map_err(BuildError::Thread)?;
        Ok(Scheduler::of_life(life))
    }

    /// Makes a scheduler without a thread, and the [`Driver`] that turns it.
    ///
    /// # Errors
    ///
    /// [`BuildError::ZeroTick`] if the tick is zero, and [`BuildError::WheelSize`] if the wheel size is not a power of
    /// two.
    pub fn build_driven(mut self) -> Result<(Scheduler, Driver), BuildError> {
        let clock = self.clock.take().unwrap_or_else(|| chosen(ManualClock::new()));
        let executor = self.executor.take().unwrap_or_else(|| Box::new(Inline));
        // A test whose task panics would pass otherwise.
        self.hooks.are_driven();
        let (engine, mut life) = self.build_engine(clock, executor, Doorbell::new(None), false)?;
        let shared = Arc::clone(&engine.shared);
        let cell = Arc::new(EngineCell(Mutex::new(Some(Box::new(engine)))));
        life.driven = Arc::downgrade(&cell);
        let scheduler = Scheduler::of_life(life);
        let driver = Driver { shared, cell, scheduler: scheduler.downgrade() };
        Ok((scheduler, driver))
    }

    fn build_engine(
        self,
        (clock, has_system_clock): ChosenClock,
        executor: Box<dyn Executor>,
        bell: Arc<Doorbell>,
        has_a_thread: bool,
    ) -> Result<(Engine, Life), BuildError> {
        if !self.wheel_size.is_power_of_two() {
            return Err(BuildError::WheelSize(self.wheel_size));
        }
        let bucket = match self.precision {
            Precision::Tick => self.tick,
            // The entries of the next bucket are sorted one by one, which would cost too much for a bucket that is longer
            // than this.
            Precision::Exact => self.tick.min(Duration::from_millis(1)),
        };
        let timeline = Timeline::new(clock.now(), bucket).ok_or(BuildError::ZeroTick)?;
        let (is_in_real_time, tick) = (clock.runs_in_real_time(), nanos(self.tick));
        let watch = Watch { clock, timeline, is_in_real_time, has_system_clock, tick };
        let (limit, timeout) = (self.max_pending, self.shutdown_timeout);
        let shared = Shared::new(watch, self.hooks, bell, limit, timeout, has_a_thread);
        let (threads, successor) = (executor.threads(), OnceLock::new());
        let life = Life { shared: Arc::clone(&shared), driven: Weak::new(), threads, successor };
        Ok((Engine::new(shared, executor, self.precision, self.wheel_size), life))
    }
}

/// A clock, and whether it is the system's, which any thread can read without the scheduler.
type ChosenClock = (Box<dyn Clock>, bool);

fn chosen<C: Clock>(clock: C) -> ChosenClock {
    // By its type, because a clock of the user may run as the system's does and still show other instants.
    (Box::new(clock), TypeId::of::<C>() == TypeId::of::<SystemClock>())
}

/// Returns the same as [`Scheduler::builder`].
impl Default for Builder {
    fn default() -> Builder {
        Builder {
            tick: Duration::from_millis(1),
            // At the default tick, one rotation of the wheel takes four seconds: most timeouts are shorter than that, or are
            // cancelled before it has passed.
            wheel_size: 4096,
            precision: Precision::default(),
            executor: None,
            clock: None,
            thread_name: None,
            max_pending: None,
            shutdown_timeout: Duration::from_secs(5),
            hooks: Hooks::default(),
        }
    }
}

impl_debug!(Builder, self,
    tick: self.tick,
    wheel_size: self.wheel_size,
    precision: self.precision,
    thread_name: self.thread_name,
    max_pending: self.max_pending,
    shutdown_timeout: self.shutdown_timeout
);
