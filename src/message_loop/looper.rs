//! A loop for its own thread: [`MessageLoop`], its [builder](LoopBuilder), and a [thread](LoopThread) that runs one.

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
use super::run_loop::Quit;
use super::runner::TaskRunner;
use super::turn::{self, IdleKey, LoopCore};
use crate::backpressure::PendingLimit;
use crate::platform::impls::impl_debug;
use crate::{Clock, PanicHook, Repeat, SystemClock, TaskPanic};

/// A queue of immediate and delayed tasks that belongs to one thread, which runs them.
///
/// A loop is bound to the thread that has prepared it, until it is dropped. Other threads post tasks through its
/// [`TaskRunner`]. All its methods may be called from inside its tasks, and then nest.
///
/// Dropping a loop drops all that is pending, at once and on this thread. If a destructor posts, its task is refused.
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
#[derive(Debug)]
pub struct MessageLoop {
    core: Rc<LoopCore>,
}

/// When to call [`MessageLoop::turn`] again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// At this instant of the loop's clock, or when the loop is woken.
    At(Instant),
    /// When the loop is woken.
    Idle,
    /// Never: the loop has ended. A nested call returns this also if the remaining tasks are for the runs around it.
    Quit,
}

impl MessageLoop {
    /// Binds a loop to this thread, with a [`DefaultPump`].
    ///
    /// # Errors
    ///
    /// [`AlreadyBound`] if the thread has a loop, or is about to end.
    pub fn prepare() -> Result<MessageLoop, AlreadyBound> {
        MessageLoop::builder().prepare()
    }

    /// Binds a loop to this thread, with a pump of your own.
    ///
    /// # Errors
    ///
    /// [`AlreadyBound`] if the thread has a loop, or is about to end.
    pub fn prepare_with(pump: impl MessagePump + 'static) -> Result<MessageLoop, AlreadyBound> {
        MessageLoop::builder().pump(pump).prepare()
    }

    /// Returns a builder, for a loop with another clock or pump, a hook for panics, or a limit.
    pub fn builder() -> LoopBuilder {
        LoopBuilder::default()
    }

    /// Returns the runner of the calling thread's loop.
    ///
    /// # Errors
    ///
    /// [`NotBound`] if the thread has no loop.
    #[doc(alias = "myLooper")]
    pub fn current() -> Result<TaskRunner, NotBound> {
        LocalTaskRunner::current().map(|local| local.runner())
    }

    /// Returns a runner that posts tasks from any thread.
    pub fn runner(&self) -> TaskRunner {
        TaskRunner { shared: Arc::clone(&self.core.shared) }
    }

    /// Returns a runner for this thread that posts tasks whose closures are not [`Send`].
    pub fn local_runner(&self) -> LocalTaskRunner {
        LocalTaskRunner { core: Rc::clone(&self.core) }
    }

    /// Runs tasks, and waits for them, until the loop is told to quit. After that it returns at once. If nothing is
    /// left that could tell the loop to quit, it never returns.
    ///
    /// Called from inside a task, it is a nested run, which ends with the loop. A [`RunLoop`](super::RunLoop) is a
    /// nested run that can end alone.
    #[doc(alias = "loop")]
    pub fn run(&self) {
        self.core.run(None);
    }

    /// Runs all tasks that are due, or become due in the meantime, without waiting, and so without idle handlers.
    /// Returns how many tasks ran.
    #[doc(alias = "RunUntilIdle")]
    pub fn run_until_idle(&self) -> usize {
        self.core.run_until_idle()
    }

    /// Runs at most one immediate task, and then at most one delayed task that is due. If nothing more is to be done then, it
    /// calls the idle handlers, because its caller is about to wait. It never waits itself. It is for programs that have an
    /// event loop already, and turn this one from there.
    ///
    /// A [wake](TaskRunner::wake) that comes during the call is taken by it: the idle handlers are called after the wake,
    /// before the call returns. So look at what others have changed in an idle handler, or before each call.
    ///
    /// Returns when to call `turn` again. The [waker](LoopBuilder::wake_with) is woken if that becomes earlier, and if
    /// something is posted to a loop that has not been turned yet, or that was run in another way since.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::mpsc::{self, RecvTimeoutError};
    /// use std::task::{Wake, Waker};
    /// use std::time::{Duration, Instant};
    /// use tickwheel::message_loop::{MessageLoop, Next};
    ///
    /// // An event loop of another library. One of its events says that the message loop wants a turn.
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
    ///     let timeout = match looper.turn() {
    ///         Next::Now => Duration::ZERO,
    ///         Next::At(at) => at.saturating_duration_since(Instant::now()),
    ///         Next::Idle => Duration::MAX,
    ///         Next::Quit => break,
    ///     };
    ///     match events.recv_timeout(timeout) {
    ///         Ok(_event) => {} // `turn`, or one of its own
    ///         Err(RecvTimeoutError::Timeout) => {}
    ///         Err(RecvTimeoutError::Disconnected) => unreachable!("the loop holds its waker"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn turn(&self) -> Next {
        self.core.turn()
    }

    /// Calls a closure once each time that the loop is about to wait: before its first wait, and then before a wait if
    /// since the last call a task has run, or somebody has [woken](TaskRunner::wake) the loop. A closure that returns
    /// `Break` or `None`, or panics, is removed. A returned delay is ignored.
    ///
    /// A closure that is added when the others have been called is called for the first time after the next task or wake.
    #[doc(alias = "addIdleHandler")]
    pub fn add_idle_handler<R: Repeat>(&self, f: impl FnMut() -> R + 'static) -> IdleKey {
        self.core.add_idle_handler(f)
    }

    /// Removes an idle handler. Returns false if it is not there any more.
    pub fn remove_idle_handler(&self, key: IdleKey) -> bool {
        self.core.remove_idle_handler(key)
    }
}

impl Drop for MessageLoop {
    fn drop(&mut self) {
        turn::unbind(&self.core);
    }
}

// ----- the builder --------------------------------------------------------------------------

/// Makes a [`MessageLoop`]. [`MessageLoop::builder`] returns one.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::ManualClock;
/// use tickwheel::message_loop::MessageLoop;
///
/// // A loop in virtual time, which moves only when told.
/// let clock = ManualClock::new();
/// let looper = MessageLoop::builder().clock(clock.clone()).prepare()?;
/// looper.runner().post_delayed(Duration::from_secs(3600), || println!("an hour"))?;
/// assert_eq!(looper.run_until_idle(), 0);
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(looper.run_until_idle(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until `prepare`"]
pub struct LoopBuilder {
    pump: Option<Box<dyn MessagePump>>,
    clock: Option<Arc<dyn Clock>>,
    waker: Option<Waker>,
    on_panic: PanicHook,
    max_pending: Option<usize>,
}

impl LoopBuilder {
    /// Sets the pump that runs the loop. By default it is a [`DefaultPump`].
    pub fn pump(self, pump: impl MessagePump + 'static) -> LoopBuilder {
        LoopBuilder { pump: Some(Box::new(pump)), ..self }
    }

    /// Sets the clock of the delays. By default it is the system's.
    ///
    /// The default pump waits by this clock. A pump of your own must do so by itself.
    pub fn clock(self, clock: impl Clock) -> LoopBuilder {
        LoopBuilder { clock: Some(Arc::new(clock)), ..self }
    }

    /// Sets a waker that is woken together with the pump, for programs that call [`turn`](MessageLoop::turn) and wait
    /// in between. A post from the loop's own thread wakes it too if the loop is not in a turn.
    pub fn wake_with(self, waker: Waker) -> LoopBuilder {
        LoopBuilder { waker: Some(waker), ..self }
    }

    /// Sets a hook that is told of each panic of a task, of an idle handler, and of the `Drop` of a captured value.
    pub fn on_panic(self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> LoopBuilder {
        LoopBuilder { on_panic: PanicHook::new(hook), ..self }
    }

    /// Sets a limit: a task is refused with [`ScheduleError::Full`](crate::ScheduleError::Full) while so many are
    /// pending.
    ///
    /// A task counts until its run starts, a series and a future until they end. A cancelled task does not count any
    /// more. The error gives the closure back. A scheduler whose executor is the loop keeps the task that was refused
    /// and offers it again. A reply of [`post_and_reply`](TaskRunner::post_and_reply) counts too, but is taken even
    /// beyond the limit, because nobody could take it back.
    ///
    /// By default there is no limit. Then a thread that posts much faster than the loop runs waits a little in some of
    /// its calls.
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

    /// Makes the loop, and binds it to this thread.
    ///
    /// # Errors
    ///
    /// [`AlreadyBound`] if the thread has a loop, or is about to end.
    pub fn prepare(self) -> Result<MessageLoop, AlreadyBound> {
        let LoopBuilder { pump, clock, waker, on_panic, max_pending } = self;
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
        let pump = pump.unwrap_or_else(|| Box::new(DefaultPump::on(Arc::clone(&clock))));
        let wakers = std::iter::once(pump.waker()).chain(waker).collect();
        let shared = Shared::new(clock, wakers, on_panic, PendingLimit::new(max_pending));
        let core = LoopCore::new(shared, pump);
        if turn::bind(&core) { Ok(MessageLoop { core }) } else { Err(AlreadyBound) }
    }
}

impl_debug!(LoopBuilder, self, max_pending: self.max_pending);

// ----- a thread with a loop -----------------------------------------------------------------

/// A thread that runs a loop until the loop is told to quit.
///
/// Dropping a `LoopThread` tells the loop to quit, and does not wait. The immediate tasks that were posted before still
/// run, also if one of them drops the `LoopThread`. Delayed tasks are dropped. [`quit_and_join`](LoopThread::quit_and_join)
/// does the same, and waits.
///
/// ```
/// use tickwheel::message_loop::LoopThread;
///
/// let worker = LoopThread::spawn("worker")?;
/// worker.runner().post(|| println!("on {:?}", std::thread::current().name()))?;
/// worker.quit_and_join().expect("the panics of tasks are caught");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// So keep the `LoopThread` in a variable for as long as the loop is needed. Here it is dropped with the statement, and
/// the loop takes nothing:
///
/// ```
/// use tickwheel::message_loop::LoopThread;
///
/// let runner = LoopThread::spawn("worker")?.runner(); // wrong
/// assert!(runner.post(|| println!("never")).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "HandlerThread")]
#[must_use = "dropping it tells its loop to quit"]
#[derive(Debug)]
pub struct LoopThread {
    runner: TaskRunner,
    /// `None` once it is joined.
    thread: Option<JoinHandle<()>>,
}

impl LoopThread {
    /// Starts a thread of this name, with a loop. When this returns, the loop takes tasks.
    ///
    /// # Errors
    ///
    /// The error of the system if it does not start the thread.
    pub fn spawn(name: impl Into<String>) -> io::Result<LoopThread> {
        LoopThread::spawn_with(name, MessageLoop::builder)
    }

    /// Starts a thread as [`spawn`](LoopThread::spawn) does, with a loop that `setup` configures on the new thread:
    /// with another clock or pump, or a hook.
    ///
    /// This waits until `setup` has returned, so `setup` must not wait for the calling thread.
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
    /// The error of the system if it does not start the thread. An error of the kind `Other` if `setup` panics, or
    /// leaves a loop behind that is bound to the thread.
    pub fn spawn_with(
        name: impl Into<String>,
        setup: impl FnOnce() -> LoopBuilder + Send + 'static,
    ) -> io::Result<LoopThread> {
        let (tell, told) = sync_channel(1);
        let name = name.into().replace('\0', ""); // std panics if a name contains a NUL
        let thread = thread::Builder::new().name(name).spawn(move || {
            // A return, or a panic, drops `tell`, and so tells the caller.
            let Ok(looper) = setup().prepare() else { return };
            _ = tell.send(looper.runner());
            looper.run();
        })?;
        let no_loop = "the new thread has made no loop: `setup` panicked, or bound another one";
        let runner = told.recv().map_err(|_| io::Error::other(no_loop))?;
        Ok(LoopThread { runner, thread: Some(thread) })
    }

    /// Returns a runner that posts tasks to the loop.
    #[doc(alias = "getLooper")]
    pub fn runner(&self) -> TaskRunner {
        self.runner.clone()
    }

    /// Waits for the thread to end. This does not tell the loop to quit. If nothing else does, it never returns:
    /// [`quit_and_join`](LoopThread::quit_and_join) does both.
    ///
    /// Two loops whose tasks join each other's threads wait for ever. Only a thread that would wait for itself gets an
    /// error.
    ///
    /// # Errors
    ///
    /// The payload of a panic that ended the thread. A panic of a task is caught, and does not end the thread. On the
    /// loop's own thread a [`WouldDeadlock`], at once, and the loop goes on.
    pub fn join(mut self) -> thread::Result<()> {
        // Taken out, so the drop of `self` does not tell the loop to quit.
        let Some(thread) = self.thread.take() else { return Ok(()) };
        if thread.thread().id() == thread::current().id() {
            return Err(Box::new(WouldDeadlock));
        }
        thread.join()
    }

    /// Tells the loop to quit, as dropping the `LoopThread` does, and waits for the thread to end. The immediate tasks
    /// that were posted before run. Delayed tasks are dropped. For another end, call one of the `quit` methods of the
    /// [`runner`](LoopThread::runner), and then [`join`](LoopThread::join).
    ///
    /// # Errors
    ///
    /// The errors of [`join`](LoopThread::join). On the loop's own thread, the loop ends after the running task.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::message_loop::LoopThread;
    ///
    /// let disk = LoopThread::spawn("disk")?;
    /// let runner = disk.runner();
    /// runner.post(|| println!("written"))?;
    /// let flush = runner.post_delayed(Duration::from_secs(60), || println!("never"))?;
    /// disk.quit_and_join().expect("the panics of tasks are caught");
    /// assert!(flush.is_done() && !flush.is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quit_and_join(self) -> thread::Result<()> {
        self.quit();
        self.join()
    }

    fn quit(&self) {
        self.runner.shared.quit(Quit::ImmediateOnly);
    }
}

impl Drop for LoopThread {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.quit();
        }
    }
}

// ----- errors -------------------------------------------------------------------------------

/// The error of a thread that is to get a loop, but has one already or is about to end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has a message loop already, or is about to end: use `MessageLoop::current`, or drop the other one first"
)]
pub struct AlreadyBound;

/// The error of a call that needs the loop of the calling thread, if the thread has none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "this thread has no message loop: call `MessageLoop::prepare` on it, or use a `LoopThread`"
)]
pub struct NotBound;

/// The error of a loop's thread that would wait for itself.
///
/// [`LoopThread::join`] returns it, boxed, if it is called on the very thread that it has to wait for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[error(
    "a loop's thread cannot wait for its own end: call `join` on another thread, or just `quit`"
)]
pub struct WouldDeadlock;
