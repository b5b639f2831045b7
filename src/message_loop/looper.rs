//! The loop as its own thread has it: [`MessageLoop`].

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::bound;
use super::builder::LoopBuilder;
use super::error::{AlreadyBound, NotBound};
use super::idle::IdleKey;
use super::local::LocalTaskRunner;
use super::pump::MessagePump;
use super::runner::TaskRunner;
use super::turns::Turns;
use crate::Repeat;

/// A thread's queue of tasks, immediate and delayed, and what runs them.
///
/// It belongs to the thread that has prepared it, which it leaves when it is dropped. Other threads bring
/// tasks through its [`TaskRunner`]. All its methods may be called from inside its tasks, and then nest.
///
/// Dropping it drops all that is pending, here and now, and refuses what is posted by that.
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
    /// Never: the loop has ended. To a nested call it says so when what is left is for the runs around it.
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

    /// A loop on another clock, with a hook for panics, or woken otherwise.
    pub fn builder() -> LoopBuilder {
        LoopBuilder::default()
    }

    /// What brings tasks to the loop of the calling thread.
    ///
    /// # Errors
    ///
    /// When the thread has no loop.
    #[doc(alias = "myLooper")]
    pub fn current() -> Result<TaskRunner, NotBound> {
        bound::current().map(|turns| TaskRunner::of(Arc::clone(&turns.shared))).ok_or(NotBound)
    }

    /// What brings tasks to it, from any thread.
    pub fn runner(&self) -> TaskRunner {
        TaskRunner::of(Arc::clone(&self.turns.shared))
    }

    /// What brings tasks to it whose closures are not [`Send`], from this thread.
    pub fn local_runner(&self) -> LocalTaskRunner {
        LocalTaskRunner::of(&self.turns)
    }

    /// Runs tasks, and waits for them, until the loop is told to quit. After that it returns at once.
    ///
    /// Called from inside a task it is a nested run, which ends with the loop; for one that ends by itself
    /// see [`RunLoop`](super::RunLoop).
    #[doc(alias = "loop")]
    pub fn run(&self) {
        self.turns.run(None);
    }

    /// Runs all that is due, and what comes due on the way, without waiting, and so without idle handlers. How many
    /// tasks ran.
    #[doc(alias = "RunUntilIdle")]
    pub fn run_until_idle(&self) -> usize {
        self.turns.run_until_idle()
    }

    /// Runs at most one immediate task, and then at most one delayed one that is due; never waits. For
    /// whoever has an event loop already, and turns this one from there.
    ///
    /// It says when to come back. Before that the [`waker`](LoopBuilder::wake_with) may say to come earlier; it also
    /// says to come when something is posted to a loop that nobody has turned yet, or that was run otherwise since.
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
    ///     let patience = match looper.turn() {
    ///         Next::Now => Duration::ZERO,
    ///         Next::At(at) => at.saturating_duration_since(Instant::now()),
    ///         Next::Idle => Duration::MAX,
    ///         Next::Quit => break,
    ///     };
    ///     match events.recv_timeout(patience) {
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
        bound::unbind(&self.turns.shared);
    }
}

impl fmt::Debug for MessageLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLoop").field("runner", &self.runner()).finish_non_exhaustive()
    }
}
