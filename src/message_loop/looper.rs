//! The loop as its own thread has it: [`MessageLoop`], how it is made, and a [thread](LoopThread) that runs one.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use thiserror::Error;

use super::inbox::Shared;
use super::local::LocalTaskRunner;
use super::pump::{DefaultPump, MessagePump};
use super::runner::TaskRunner;
use super::turns::{self, IdleKey, Turns};
use crate::job::PendingLimit;
use crate::{Clock, PanicHook, Repeat, SystemClock, TaskPanic};

/// A thread's queue of tasks, immediate and delayed, and what runs them.
///
/// It belongs to the thread that has prepared it, which it leaves when it is dropped. Other threads bring
/// tasks through its [`TaskRunner`]. All its methods may be called from inside its tasks, and then nest.
///
/// Dropping it drops all that is pending, at once and on this thread. What a destructor posts is refused.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::message_loop::MessageLoop;
///
/// let looper = MessageLoop::prepare()?;
/// let runner = looper.runner();
/// runner.post_delayed(Duration::from_millis(1), || {
///     println!("on the thread of the loop");
///     MessageLoop::current().unwrap().quit();
/// })?;
/// looper.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "Looper")]
#[must_use = "dropping it unbinds the thread and drops what was posted: `run` it"]
pub struct MessageLoop {
    pub(super) turns: Rc<Turns>,
}

/// When to call [`MessageLoop::turn`] again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// At this instant of the loop's clock, or when it is woken.
    At(Instant),
    /// When it is woken.
    Idle,
    /// Never: the loop has ended. A nested call returns this also if what is left is for the runs around it.
    Quit,
}

impl MessageLoop {
    /// Binds a loop to this thread, with the ready-made pump.
    ///
    /// # Errors
    ///
    /// When the thread has a loop already.
    pub fn prepare() -> Result<MessageLoop, AlreadyBound> {
        MessageLoop::builder().prepare()
    }

    /// Binds a loop to this thread that somebody else's pump turns.
    ///
    /// # Errors
    ///
    /// When the thread has a loop already.
    pub fn prepare_with(pump: impl MessagePump + 'static) -> Result<MessageLoop, AlreadyBound> {
        MessageLoop::builder().pump(pump).prepare()
    }

    /// Returns a builder, for a loop with another clock, a pump, a hook for panics, or a bound.
    pub fn builder() -> LoopBuilder {
        LoopBuilder::default()
    }

    /// Returns the runner of the calling thread's loop.
    ///
    /// # Errors
    ///
    /// When the thread has no loop.
    #[doc(alias = "myLooper")]
    pub fn current() -> Result<TaskRunner, NotBound> {
        turns::current().map(|turns| TaskRunner::of(Arc::clone(&turns.shared))).ok_or(NotBound)
    }

    /// Returns a runner, which posts tasks from any thread.
    pub fn runner(&self) -> TaskRunner {
        TaskRunner::of(Arc::clone(&self.turns.shared))
    }

    /// Returns a runner for this thread, which posts tasks whose closures are not [`Send`].
    pub fn local_runner(&self) -> LocalTaskRunner {
        LocalTaskRunner::of(&self.turns)
    }

    /// Runs tasks, and waits for them, until the loop is told to quit. After that it returns at once. If nothing is left
    /// that could tell the loop to quit, it never returns.
    ///
    /// Called from inside a task it is a nested run, which ends with the loop; for one that ends by itself
    /// see [`RunLoop`](super::RunLoop).
    #[doc(alias = "loop")]
    pub fn run(&self) {
        self.turns.run(None);
    }

    /// Runs all that is due, and what becomes due meanwhile, without waiting, and so without idle handlers. Returns how
    /// many tasks ran.
    #[doc(alias = "RunUntilIdle")]
    pub fn run_until_idle(&self) -> usize {
        self.turns.run_until_idle()
    }

    /// Runs at most one immediate task, and then at most one delayed one that is due; never waits. It is for programs
    /// that have an event loop already, and turn this one from there.
    ///
    /// It returns when to call it again. The [`waker`](LoopBuilder::wake_with) is woken if that becomes earlier, and if
    /// something is posted to a loop that has not been turned yet, or that was run in another way since.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::mpsc::{self, RecvTimeoutError};
    /// use std::task::{Wake, Waker};
    /// use std::time::{Duration, Instant};
    /// use tickwheel::message_loop::{MessageLoop, Next};
    ///
    /// // Somebody's event loop: it waits for events, of which one says that the message loop wants a turn.
    /// struct WantsTurn(mpsc::Sender<&'static str>);
    /// impl Wake for WantsTurn {
    ///     fn wake(self: Arc<Self>) {
    ///         drop(self.0.send("turn"));
    ///     }
    /// }
    /// let (send, events) = mpsc::channel();
    /// let waker = Waker::from(Arc::new(WantsTurn(send)));
    ///
    /// let looper = MessageLoop::builder().wake_with(waker).prepare()?;
    /// let runner = looper.runner();
    /// runner.post_delayed(Duration::from_millis(2), || MessageLoop::current().unwrap().quit())?;
    /// loop {
    ///     let sweep_above = match looper.turn() {
    ///         Next::Now => Duration::ZERO,
    ///         Next::At(at) => at.saturating_duration_since(Instant::now()),
    ///         Next::Idle => Duration::MAX,
    ///         Next::Quit => break,
    ///     };
    ///     match events.recv_timeout(sweep_above) {
    ///         Ok(_event) => {} // `turn`, or one of its own
    ///         Err(RecvTimeoutError::Timeout) => {}
    ///         Err(RecvTimeoutError::Disconnected) => unreachable!("the loop holds its waker"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn turn(&self) -> Next {
        self.turns.turn()
    }

    /// Calls a closure once each time that the loop is about to wait: before its first wait, and after that
    /// when a task has run since. A `Break`, or a panic, removes it.
    ///
    /// One that is added when the others have been called has its first turn after the next task.
    #[doc(alias = "addIdleHandler")]
    pub fn add_idle_handler<R: Repeat>(&self, f: impl FnMut() -> R + 'static) -> IdleKey {
        self.turns.add_idle_handler(f)
    }

    /// Removes an idle handler, if it is still there.
    pub fn remove_idle_handler(&self, key: IdleKey) -> bool {
        self.turns.remove_idle_handler(key)
    }
}

impl Drop for MessageLoop {
    fn drop(&mut self) {
        self.turns.close();
        turns::unbind(&self.turns.shared);
    }
}

impl fmt::Debug for MessageLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLoop").field("runner", &self.runner()).finish_non_exhaustive()
    }
}

// ----- how it is made -----------------------------------------------------------------------

/// Makes a [`MessageLoop`]: see [`MessageLoop::builder`].
///
/// ```
/// use std::time::Duration;
/// use tickwheel::ManualClock;
/// use tickwheel::message_loop::MessageLoop;
///
/// // A loop in virtual time: it moves only when told.
/// let clock = ManualClock::new();
/// let looper = MessageLoop::builder().clock(clock.clone()).prepare()?;
/// looper.runner().post_delayed(Duration::from_secs(3600), || println!("an hour"))?;
/// assert_eq!(looper.run_until_idle(), 0);
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(looper.run_until_idle(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `prepare`"]
pub struct LoopBuilder {
    pump: Option<Box<dyn MessagePump>>,
    clock: Arc<dyn Clock>,
    waker: Option<Waker>,
    on_panic: PanicHook,
    max_pending: Option<usize>,
}

impl Default for LoopBuilder {
    fn default() -> LoopBuilder {
        let (clock, on_panic) = (Arc::new(SystemClock), PanicHook::default());
        LoopBuilder { pump: None, clock, waker: None, on_panic, max_pending: None }
    }
}

impl LoopBuilder {
    /// Sets the pump that runs the loop. By default it is a [`DefaultPump`].
    pub fn pump(self, pump: impl MessagePump + 'static) -> LoopBuilder {
        LoopBuilder { pump: Some(Box::new(pump)), ..self }
    }

    /// Sets the clock of the delays. By default it is the system's.
    ///
    /// The default pump waits by this clock. A pump of your own has to do so by itself.
    pub fn clock(self, clock: impl Clock) -> LoopBuilder {
        LoopBuilder { clock: Arc::new(clock), ..self }
    }

    /// Sets a waker that is woken together with the pump, for programs that call [`turn`](MessageLoop::turn) and wait in
    /// between. A post from the loop's own thread wakes it too, if the loop is not in a turn.
    pub fn wake_with(self, waker: Waker) -> LoopBuilder {
        LoopBuilder { waker: Some(waker), ..self }
    }

    /// Sets a hook that is told of each panic of a task, of an idle handler, and of a captured value's `Drop`.
    pub fn on_panic(self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> LoopBuilder {
        LoopBuilder { on_panic: PanicHook::new(hook), ..self }
    }

    /// Refuses a task with [`ScheduleError::Full`](crate::ScheduleError::Full) when so many are pending.
    ///
    /// A task holds its place until its run starts, a series and a future until they end, and a cancel frees the place
    /// at once. The error gives the closure back; a scheduler whose executor is the loop keeps the task that was
    /// refused and offers it again. A reply of [`post_and_reply`](TaskRunner::post_and_reply) holds a place too, but is
    /// always taken, beyond the bound if need be: nobody could take it back.
    ///
    /// By default there is no bound. Then a thread that posts much faster than the loop runs waits a little in
    /// some of its calls.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::ScheduleError;
    /// use tickwheel::message_loop::MessageLoop;
    ///
    /// let looper = MessageLoop::builder().max_pending(1).prepare()?;
    /// let runner = looper.runner();
    /// let later = runner.post_delayed(Duration::from_secs(60), || println!("a minute"))?;
    /// let refused = runner.post(|| println!("now")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Full);
    /// assert!(later.cancel());
    /// runner.post(refused.into_task())?;
    /// assert_eq!(looper.run_until_idle(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_pending(self, tasks: usize) -> LoopBuilder {
        LoopBuilder { max_pending: Some(tasks), ..self }
    }

    /// Binds the loop to this thread.
    ///
    /// # Errors
    ///
    /// When the thread has a loop already.
    pub fn prepare(self) -> Result<MessageLoop, AlreadyBound> {
        let LoopBuilder { pump, clock, waker, on_panic, max_pending } = self;
        let pump = pump.unwrap_or_else(|| Box::new(DefaultPump::on(Arc::clone(&clock))));
        let wakers = std::iter::once(pump.waker()).chain(waker).collect();
        let shared = Shared::new(clock, wakers, on_panic, PendingLimit::new(max_pending));
        let turns = Turns::new(shared, pump);
        if turns::bind(&turns) { Ok(MessageLoop { turns }) } else { Err(AlreadyBound) }
    }
}

impl fmt::Debug for LoopBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopBuilder")
            .field("has_pump", &self.pump.is_some())
            .field("has_waker", &self.waker.is_some())
            .field("on_panic", &self.on_panic)
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
}

// ----- a thread with a loop -----------------------------------------------------------------

/// A thread that runs a loop, until that is told to quit.
///
/// Dropping it tells it to quit, without waiting: the immediate tasks that were posted before still run, also if
/// it is one of them that drops it. Delayed ones are dropped.
///
/// ```
/// use tickwheel::message_loop::LoopThread;
///
/// let worker = LoopThread::spawn("worker")?;
/// worker.runner().post(|| println!("on {:?}", std::thread::current().name()))?;
/// worker.runner().quit_safely();
/// worker.join().expect("no panic: those of tasks are caught");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "HandlerThread")]
#[must_use = "dropping it tells its loop to quit"]
pub struct LoopThread {
    runner: TaskRunner,
    /// `None` once somebody waits for it.
    thread: Option<JoinHandle<()>>,
}

impl LoopThread {
    /// Starts a thread of this name, with a loop. When this returns, the loop takes tasks.
    ///
    /// # Errors
    ///
    /// When the system does not start the thread.
    pub fn spawn(name: impl Into<String>) -> io::Result<LoopThread> {
        LoopThread::spawn_with(name, MessageLoop::builder)
    }

    /// As [`spawn`](LoopThread::spawn), with a loop that is made on the new thread: for another clock or pump, or a hook.
    ///
    /// It waits until `setup` has returned, so `setup` must not wait for the calling thread.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use tickwheel::ManualClock;
    /// use tickwheel::message_loop::{LoopThread, MessageLoop};
    ///
    /// let clock = ManualClock::new();
    /// let own = clock.clone();
    /// let thread = LoopThread::spawn_with("virtual", || MessageLoop::builder().clock(own))?;
    /// let (tell, told) = mpsc::channel();
    /// thread.runner().post_delayed(Duration::from_secs(60), move || tell.send("a minute").unwrap())?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(told.recv()?, "a minute");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the system does not start the thread, or `setup` panics, or leaves a loop behind that is bound to it.
    pub fn spawn_with(
        name: impl Into<String>,
        setup: impl FnOnce() -> LoopBuilder + Send + 'static,
    ) -> io::Result<LoopThread> {
        let (tell, told) = sync_channel(1);
        let name = name.into().replace('\0', ""); // the system takes none, and std would panic
        let thread = thread::Builder::new().name(name).spawn(move || {
            let Ok(looper) = setup().prepare() else { return };
            _ = tell.send(looper.runner());
            looper.run();
        })?;
        let no_loop = |_| {
            io::Error::other(
                "the new thread has made no loop: `setup` panicked, or bound another one",
            )
        };
        let runner = told.recv().map_err(no_loop)?;
        Ok(LoopThread { runner, thread: Some(thread) })
    }

    /// Returns a runner, which posts tasks to the loop.
    #[doc(alias = "getLooper")]
    pub fn runner(&self) -> TaskRunner {
        self.runner.clone()
    }

    /// Waits for the thread's end. It does not tell the loop to quit: somebody has to, or this never returns.
    ///
    /// Two loops whose tasks join each other's threads wait for ever: only a thread that would wait for itself is told.
    ///
    /// # Errors
    ///
    /// What the thread panicked with; the panics of tasks are not among that. On the loop's own thread
    /// a [`WouldDeadlock`], at once; the loop goes on then.
    pub fn join(mut self) -> thread::Result<()> {
        let thread = self.thread.take();
        match thread {
            Some(thread) if thread.thread().id() == thread::current().id() => {
                Err(Box::new(WouldDeadlock))
            }
            Some(thread) => thread.join(),
            None => Ok(()),
        }
    }
}

impl Drop for LoopThread {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.runner.quit_after_posts();
        }
    }
}

impl fmt::Debug for LoopThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopThread").field("runner", &self.runner).finish_non_exhaustive()
    }
}

// ----- what can be wrong --------------------------------------------------------------------

/// The thread has a loop already, or is about to end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has a message loop already, or is about to end: use `MessageLoop::current`, or drop the other one first"
)]
pub struct AlreadyBound;

/// The thread has no loop.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has no message loop: call `MessageLoop::prepare` on it, or use a `LoopThread`"
)]
pub struct NotBound;

/// A loop's thread would wait for itself.
///
/// What [`LoopThread::join`](LoopThread::join) carries when it is called on the very thread that it
/// is to wait for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "a loop's thread cannot wait for its own end: call `join` on another thread, or just `quit`"
)]
pub struct WouldDeadlock;
