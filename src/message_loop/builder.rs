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
}

impl Default for LoopBuilder {
    fn default() -> LoopBuilder {
        let (clock, on_panic) = (Arc::new(SystemClock), PanicHook::default());
        LoopBuilder { pump: None, clock, waker: None, on_panic }
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

    /// Binds the loop to this thread.
    ///
    /// # Errors
    ///
    /// When the thread has a loop already.
    pub fn prepare(self) -> Result<MessageLoop, AlreadyBound> {
        let LoopBuilder { pump, clock, waker, on_panic } = self;
        let pump = pump.unwrap_or_else(|| Box::new(DefaultPump::on(Arc::clone(&clock))));
        let wakers = std::iter::once(pump.waker()).chain(waker).collect();
        let turns = Turns::new(Shared::new(clock, wakers, on_panic), pump);
        if bound::bind(&turns) { Ok(MessageLoop { turns }) } else { Err(AlreadyBound) }
    }
}

impl fmt::Debug for LoopBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopBuilder")
            .field("has_pump", &self.pump.is_some())
            .field("has_waker", &self.waker.is_some())
            .field("on_panic", &self.on_panic)
            .finish_non_exhaustive()
    }
}
