//! How a scheduler is made.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Scheduler;
use crate::engine::shared::{Settings, Shared};
use crate::engine::tick_thread;
use crate::engine::{Engine, Precision};
use crate::error::BuildError;
use crate::executor::{DueTask, Executor, Inline, ThreadPool};
use crate::observe::{Hooks, Observer, PanicHook, TaskPanic};
use crate::scheduler::driver::{Driver, EngineCell};
use crate::time::clock::{Clock, ManualClock, SystemClock};
use crate::time::parking::{Doorbell, Sleeper};
use crate::time::tick::Timeline;

/// Chooses what a scheduler is made of: see [`Scheduler::builder`].
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
    clock: Option<Box<dyn Clock>>,
    thread_name: String,
    max_pending: Option<usize>,
    shutdown_timeout: Duration,
    hooks: Hooks,
}

/// One turn of the wheel is four seconds at the default tick: most timeouts are shorter than that,
/// or are cancelled before it has passed.
const WHEEL_SIZE: usize = 4096;

/// With exact deadlines a bucket of the wheel is no longer than that, whatever the tick is.
const MOST_EXACT: Duration = Duration::from_millis(1);

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            tick: Duration::from_millis(1),
            wheel_size: WHEEL_SIZE,
            precision: Precision::default(),
            executor: None,
            clock: None,
            thread_name: String::from("tickwheel"),
            max_pending: None,
            shutdown_timeout: Duration::from_secs(5),
            hooks: Hooks::default(),
        }
    }

    /// How long a tick is; 1 ms by default. Anything above zero will do; a tick of more than 18
    /// years is taken for that.
    pub fn tick(mut self, tick: Duration) -> Builder {
        self.tick = tick;
        self
    }

    /// How many buckets the wheel has: a power of two, 4096 by default. More buckets mean less
    /// shuffling of far tasks, and 32 bytes each; no more than four million are made.
    pub fn wheel_size(mut self, buckets: usize) -> Builder {
        self.wheel_size = buckets;
        self
    }

    /// Whether deadlines are met to the tick (the default) or exactly.
    pub fn precision(mut self, precision: Precision) -> Builder {
        self.precision = precision;
        self
    }

    /// Where tasks run. By default on a [`ThreadPool`] of as many threads as the machine runs at
    /// once; [`Inline`] is faster, for tasks that are short. The default of
    /// [`build_driven`](Builder::build_driven) is [`Inline`].
    pub fn executor(mut self, executor: impl Executor) -> Builder {
        self.executor = Some(Box::new(executor));
        self
    }

    /// The same for a closure, whose argument's type need not be written then.
    pub fn executor_fn(self, executor: impl Fn(DueTask) + Send + Sync + 'static) -> Builder {
        self.executor(executor)
    }

    /// Where the time comes from. By default the system; for [`build_driven`](Builder::build_driven)
    /// a virtual clock of the driver's own.
    pub fn clock(mut self, clock: impl Clock) -> Builder {
        self.clock = Some(Box::new(clock));
        self
    }

    /// The name of the tick thread; `tickwheel` by default.
    pub fn thread_name(mut self, name: impl Into<String>) -> Builder {
        self.thread_name = name.into();
        self
    }

    /// How many tasks may be pending at once; a schedule beyond that is
    /// [`Full`](crate::ScheduleError::Full). Without a limit by default.
    ///
    /// A task holds its place until its run starts, a series until it ends. Without a limit, producers that are far
    /// ahead are held back for moments: see [Under overload](crate#under-overload).
    pub fn max_pending(mut self, tasks: usize) -> Builder {
        self.max_pending = Some(tasks);
        self
    }

    /// How long [`Scheduler::close`] waits for the tick thread; 5 s by default.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Builder {
        self.shutdown_timeout = timeout;
        self
    }

    /// Is told of every panic of a task, of a captured value's `Drop`, and of an executor, on the
    /// thread where it happened.
    pub fn on_panic(mut self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> Builder {
        self.hooks.on_panic = PanicHook::new(hook);
        self
    }

    /// Watches the turns of the tick thread.
    pub fn observer(mut self, observer: impl Observer) -> Builder {
        self.hooks.observer = Some(Box::new(observer));
        self
    }

    /// Starts the tick thread.
    ///
    /// # Errors
    ///
    /// A tick of zero, a wheel size that is not a power of two, a thread that could not be started.
    pub fn build(mut self) -> Result<Scheduler, BuildError> {
        self.clock.get_or_insert_with(|| Box::new(SystemClock));
        let executor = self.executor.get_or_insert_with(|| Box::new(ThreadPool::default()));
        let threads = executor.threads();
        let sleeper = Sleeper::new();
        let name = self.thread_name.clone();
        let engine = self.engine(Doorbell::new(Some(sleeper.waker())), true)?;
        let shared = Arc::clone(engine.shared());
        tick_thread::spawn(engine, sleeper, &name).map_err(BuildError::Thread)?;
        Ok(Scheduler::from_hub(shared, Weak::new(), threads))
    }

    /// Builds a scheduler without a thread, and the [`Driver`] that turns it.
    ///
    /// # Errors
    ///
    /// A tick of zero, or a wheel size that is not a power of two.
    pub fn build_driven(mut self) -> Result<(Scheduler, Driver), BuildError> {
        self.clock.get_or_insert_with(|| Box::new(ManualClock::new()));
        let executor = self.executor.get_or_insert_with(|| Box::new(Inline));
        let threads = executor.threads();
        let engine = self.engine(Doorbell::new(None), false)?;
        let shared = Arc::clone(engine.shared());
        let cell = EngineCell::new(engine);
        let scheduler = Scheduler::from_hub(Arc::clone(&shared), Arc::downgrade(&cell), threads);
        Ok((scheduler, Driver::new(shared, cell)))
    }

    fn engine(self, bell: Arc<Doorbell>, has_a_thread: bool) -> Result<Engine, BuildError> {
        if !self.wheel_size.is_power_of_two() {
            return Err(BuildError::WheelSize(self.wheel_size));
        }
        let clock = self.clock.unwrap_or_else(|| Box::new(SystemClock));
        let bucket = match self.precision {
            Precision::Tick => self.tick,
            // The bucket that comes next is kept in order, entry by entry: a great one would cost too much.
            Precision::Exact => self.tick.min(MOST_EXACT),
        };
        let timeline = Timeline::new(clock.now(), bucket).ok_or(BuildError::ZeroTick)?;
        let settings = Settings {
            timeline,
            clock,
            hooks: self.hooks,
            max_pending: self.max_pending,
            shutdown_timeout: self.shutdown_timeout,
            has_a_thread,
            tick: u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX),
        };
        let executor = self.executor.unwrap_or_else(|| Box::new(Inline));
        Ok(Engine::new(Shared::new(settings, bell), executor, self.precision, self.wheel_size))
    }
}

/// The same as [`Scheduler::builder`].
impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("tick", &self.tick)
            .field("wheel_size", &self.wheel_size)
            .field("precision", &self.precision)
            .field("thread_name", &self.thread_name)
            .field("max_pending", &self.max_pending)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .finish_non_exhaustive()
    }
}
