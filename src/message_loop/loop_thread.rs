//! A thread with a loop.

use std::fmt;
use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use super::builder::LoopBuilder;
use super::error::WouldDeadlock;
use super::looper::MessageLoop;
use super::runner::TaskRunner;

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
#[must_use = "dropping it tells the loop to quit: keep it as long as tasks are posted, and `join` it"]
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

    /// The same, with a loop that is made on the new thread: for another clock or pump, or a hook.
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

    /// What brings tasks to its loop.
    #[doc(alias = "getLooper")]
    pub fn runner(&self) -> TaskRunner {
        self.runner.clone()
    }

    /// Waits for the thread's end. It does not tell the loop to quit: somebody has to.
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
