//! How a loop is to be.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::bound;
use super::error::AlreadyBound;
use super::inbox::Shared;
use super::looper::MessageLoop;
use super::pump::{DefaultPump, MessagePump};
use super::turns::Turns;
use crate::job::Places;
use crate::{Clock, PanicHook, SystemClock, TaskPanic};

/// How a [`MessageLoop`] is to be: see [`MessageLoop::builder`].
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
    /// What turns it. Default: a [`DefaultPump`].
    pub fn pump(self, pump: impl MessagePump + 'static) -> LoopBuilder {
        LoopBuilder { pump: Some(Box::new(pump)), ..self }
    }

    /// The clock of its delays. Default: the system's.
    ///
    /// The default pump waits by it; a pump of your own has to do so by itself.
    pub fn clock(self, clock: impl Clock) -> LoopBuilder {
        LoopBuilder { clock: Arc::new(clock), ..self }
    }

    /// Is woken together with the pump: for whoever calls [`turn`](MessageLoop::turn), and waits in between. Whatever
    /// is posted while nobody turns the loop wakes it, from its own thread too.
    pub fn wake_with(self, waker: Waker) -> LoopBuilder {
        LoopBuilder { waker: Some(waker), ..self }
    }

    /// Is told of each panic of a task, of an idle handler, and of a captured value's `Drop`.
    pub fn on_panic(self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> LoopBuilder {
        LoopBuilder { on_panic: PanicHook::new(hook), ..self }
    }

    /// Refuses a task with [`ScheduleError::Full`](crate::ScheduleError::Full) when so many are pending.
    ///
    /// A task holds its place until its run starts, a series until it ends, and a cancel frees the place at
    /// once. Whoever posts gets the closure back in the error; a scheduler whose executor is the loop keeps the
    /// task that was refused and offers it again. A reply of
    /// [`post_and_reply`](super::TaskRunner::post_and_reply) holds a place too, but is always taken, beyond the
    /// bound if need be: nobody could take it back.
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
        let shared = Shared::new(clock, wakers, on_panic, Places::new(max_pending));
        let turns = Turns::new(shared, pump);
        if bound::bind(&turns) { Ok(MessageLoop { turns }) } else { Err(AlreadyBound) }
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
