//! The traits between a loop and its pump, and the [`DefaultPump`].
//!
//! The default pump waits in two steps, because a wake-up takes the system some ten microseconds. If a wake has ended
//! its last wait, so that another one may come soon, it spins for some three microseconds, and only then sleeps. That
//! makes a round trip between two loops take 2 to 3 us instead of some 36 (`benches/loops.rs`). A wake leaves a token with
//! its [`Sleeper`], so one that comes before the sleep is not lost (WAKE-3).

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::platform::impls::impl_debug;
use crate::platform::panics::rest_blind;
use crate::platform::sync::LOOKS;
use crate::{Clock, PanicHook, Sleeper, SystemClock};

/// The loop, as its [`MessagePump`] sees it.
///
/// The methods that run something return true if they did. They may be called from inside each other's tasks, because a
/// nested run does that.
pub trait Delegate {
    /// Runs one immediate task.
    fn do_work(&self) -> bool;

    /// Runs one delayed task that is due.
    fn do_delayed_work(&self) -> bool;

    /// Returns when the next delayed task is due, on the loop's clock. After a `do_idle_work` that did nothing, the
    /// pump may wait until then.
    fn next_delayed_work(&self) -> Option<Instant>;

    /// Does what is to be done before the pump waits. The pump may wait only if this returns false.
    fn do_idle_work(&self) -> bool;
}

/// Runs a loop on its thread. Implement it for programs that wait for something else too, such as the events of a
/// window system or of a reactor. Other programs use the [`DefaultPump`].
///
/// # Contract
///
/// `run` takes turns until [`quit`](MessagePump::quit) is called. In each turn it calls `do_work` and then
/// `do_delayed_work`. If neither did anything, it calls `do_idle_work`. If that did nothing either, it waits until
/// `next_delayed_work`, or until it is woken. After each call it returns if that call has led to `quit`.
///
/// `run` is re-entrant: a task may run the loop again, on top of the stack. `quit` ends the innermost run. It is called
/// on the loop's thread only, from inside one of the delegate's methods.
///
/// The [`waker`](MessagePump::waker) may be used from any thread. A wake that comes before the wait is not lost: it
/// ends the wait at once.
///
/// This pump waits on a channel, to which others could send messages of their own:
///
/// ```
/// use std::cell::Cell;
/// use std::sync::Arc;
/// use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
/// use std::task::{Wake, Waker};
/// use std::time::Instant;
/// use tickwheel::message_loop::{Delegate, MessageLoop, MessagePump};
///
/// struct Doorbell(SyncSender<()>);
/// impl Wake for Doorbell {
///     fn wake(self: Arc<Self>) {
///         drop(self.0.try_send(())); // if the channel is full, the message there wakes the pump
///     }
/// }
///
/// struct ChannelPump {
///     bell: Arc<Doorbell>,
///     rings: Receiver<()>,
///     quits: Cell<bool>,
/// }
///
/// impl MessagePump for ChannelPump {
///     fn run(&self, delegate: &dyn Delegate) {
///         let steps = [Delegate::do_work, Delegate::do_delayed_work];
///         loop {
///             let mut did = false;
///             for step in steps {
///                 did |= step(delegate);
///                 if self.quits.replace(false) {
///                     return;
///                 }
///             }
///             did = did || delegate.do_idle_work();
///             if self.quits.replace(false) {
///                 return;
///             }
///             if did {
///                 continue;
///             }
///             match delegate.next_delayed_work() {
///                 Some(at) => drop(self.rings.recv_timeout(at.saturating_duration_since(Instant::now()))),
///                 None => drop(self.rings.recv()),
///             }
///         }
///     }
///     fn quit(&self) {
///         self.quits.set(true);
///     }
///     fn waker(&self) -> Waker {
///         Waker::from(Arc::clone(&self.bell))
///     }
/// }
///
/// let (send, rings) = sync_channel(1);
/// let pump = ChannelPump { bell: Arc::new(Doorbell(send)), rings, quits: Cell::new(false) };
/// let looper = MessageLoop::prepare_with(pump)?;
/// let runner = looper.runner();
/// std::thread::spawn(move || runner.post(move || MessageLoop::current().unwrap().quit()).map(drop));
/// looper.run();
/// # Ok::<(), tickwheel::message_loop::AlreadyBound>(())
/// ```
pub trait MessagePump {
    /// Takes turns until it is told to quit, as the contract says.
    fn run(&self, delegate: &dyn Delegate);

    /// Ends the innermost run, after the present call.
    fn quit(&self);

    /// Returns a waker that ends the pump's wait, from any thread. The loop asks for it once.
    fn waker(&self) -> Waker;
}

/// A pump that sleeps when there is nothing to do.
pub struct DefaultPump {
    clock: Arc<dyn Clock>,
    sleeper: Sleeper,
    /// A wake has ended the last wait.
    was_woken: Cell<bool>,
    /// The innermost run was told to quit.
    quits: Cell<bool>,
}

impl DefaultPump {
    /// Makes a pump that waits by the system's clock.
    pub fn new() -> DefaultPump {
        DefaultPump::on(Arc::new(SystemClock))
    }

    pub(super) fn on(clock: Arc<dyn Clock>) -> DefaultPump {
        let (was_woken, quits) = (Cell::new(false), Cell::new(false));
        DefaultPump { clock, sleeper: Sleeper::new(), was_woken, quits }
    }

    /// Takes a turn. Returns whether it did anything, or `None` if a call has told the run to quit.
    fn turn(&self, delegate: &dyn Delegate) -> Option<bool> {
        let goes_on = |did| (!self.quits.get()).then_some(did);
        let did = goes_on(delegate.do_work())?;
        let did = goes_on(delegate.do_delayed_work() || did)?;
        goes_on(did || delegate.do_idle_work())
    }

    /// Waits until this instant of the clock, or until it is woken.
    fn wait(&self, until: Option<Instant>) {
        let waited = PanicHook::default().catch(None, || {
            let is_due = until.is_some_and(|until| until <= self.clock.now());
            let spins = self.was_woken.get();
            let is_over = is_due || self.sleeper.is_woken() || spins && self.is_woken_soon();
            if !is_over {
                self.clock.sleep(&self.sleeper, until);
            }
        });
        if waited.is_none() {
            rest_blind();
        }
        self.was_woken.set(self.sleeper.take_woken());
    }

    /// Spins for a moment. Returns true as soon as a wake has come.
    fn is_woken_soon(&self) -> bool {
        let is_woken = |pause: fn()| {
            pause();
            self.sleeper.is_woken()
        };
        (0..LOOKS).any(|_| is_woken(std::hint::spin_loop))
            || (0..LOOKS / 50).any(|_| is_woken(std::thread::yield_now))
    }
}

impl MessagePump for DefaultPump {
    fn run(&self, delegate: &dyn Delegate) {
        while let Some(did) = self.turn(delegate) {
            if !did {
                self.wait(delegate.next_delayed_work());
            }
        }
        self.quits.set(false); // the run around this one goes on
    }

    fn quit(&self) {
        self.quits.set(true);
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }
}

impl Default for DefaultPump {
    fn default() -> DefaultPump {
        DefaultPump::new()
    }
}

impl_debug!(DefaultPump, self);
