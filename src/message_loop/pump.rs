//! What turns a loop: the traits between a loop and its pump, and the ready-made pump.
//!
//! The ready-made one waits in two steps, because to be woken takes the system some ten microseconds: if its
//! last wait has ended by a ring, so that there may soon be another, it looks out for that for some three
//! microseconds, and only then sleeps. A round trip between two loops takes 2 to 3 us so, and else some 36
//! (`benches/loops.rs`). Its [`Bell`] says where it is:
//!
//! ```text
//!             wake                        sleep                       wake: the sleeper too
//!   Silent ---------> Rung      Silent ---------> Asleep      Asleep ---------------------> Rung
//!     ^                 |                           |
//!     '---- the wait ends, and takes the ring ------'
//! ```
//!
//! - PUMP-1 A wake that finds it asleep wakes the sleeper, whose token lasts until it sleeps; any other wake is seen
//!   before it sleeps, because it can only fall asleep from `Silent`.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::platform::sync::{AtomicU64, LOOKS, Ordering};
use crate::{Clock, Sleeper, SystemClock};

/// The loop, as its [`MessagePump`] sees it.
///
/// The methods that do something return true if they did. They may be called from inside each other's tasks: that is
/// what a nested run does.
pub trait Delegate {
    /// Runs one immediate task.
    fn do_work(&self) -> bool;

    /// Runs one delayed task that is due.
    fn do_delayed_work(&self) -> bool;

    /// When the next delayed task is due, on the loop's clock. After a `do_idle_work` that did nothing, it is how
    /// long the pump may wait.
    fn next_delayed_work(&self) -> Option<Instant>;

    /// Called when there is nothing else to do, before the pump waits. It waits only if this says false.
    fn do_idle_work(&self) -> bool;
}

/// Turns a loop on its thread: for programs in which somebody else waits, such as a window system or a
/// reactor. [`DefaultPump`] waits by itself.
///
/// # Contract
///
/// `run` goes round until [`quit`](MessagePump::quit) is called. In each turn it calls `do_work` and then
/// `do_delayed_work`; if neither did anything, `do_idle_work`; if that did nothing either, it waits until
/// `next_delayed_work`, or until it is woken. After each call it returns if that call has led to `quit`.
///
/// `run` is re-entrant: a task may run the loop again, on top of the stack. `quit` ends the innermost
/// run, and is called on the loop's thread only, from inside one of the delegate's methods.
///
/// The [`waker`](MessagePump::waker) may be used from any thread. A wake that comes before the wait ends it
/// at once: it is not lost.
///
/// A pump that waits on a channel, where others could send it messages of their own:
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
///         drop(self.0.try_send(())); // one that is there already does for both
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
    /// Goes round until it is told to quit; see the contract.
    fn run(&self, delegate: &dyn Delegate);

    /// Ends the innermost run, after the present call.
    fn quit(&self);

    /// Ends the pump's wait, from any thread. It is asked for once.
    fn waker(&self) -> Waker;
}

/// The ready-made pump: it sleeps when there is nothing to do.
pub struct DefaultPump {
    clock: Arc<dyn Clock>,
    sleeper: Sleeper,
    bell: Arc<Bell>,
    /// The last wait has ended by a ring.
    was_rung: Cell<bool>,
    /// The innermost run is to end.
    quits: Cell<bool>,
}

impl DefaultPump {
    /// A pump on the system's clock.
    pub fn new() -> DefaultPump {
        DefaultPump::on(Arc::new(SystemClock))
    }

    pub(super) fn on(clock: Arc<dyn Clock>) -> DefaultPump {
        let sleeper = Sleeper::new();
        let bell = Arc::new(Bell { state: AtomicU64::new(SILENT), sleeper: sleeper.waker() });
        let (was_rung, quits) = (Cell::new(false), Cell::new(false));
        DefaultPump { clock, sleeper, bell, was_rung, quits }
    }

    /// One turn. False: it has led to `quit`.
    fn turn(&self, delegate: &dyn Delegate) -> bool {
        let did = delegate.do_work();
        if self.quits.get() {
            return false;
        }
        let did = delegate.do_delayed_work() || did;
        if self.quits.get() {
            return false;
        }
        let did = did || delegate.do_idle_work();
        if self.quits.get() {
            return false;
        }
        if !did {
            self.wait(delegate.next_delayed_work());
        }
        true
    }

    /// Until it is woken, or until then.
    fn wait(&self, until: Option<Instant>) {
        let is_due = until.is_some_and(|until| until <= self.clock.now());
        let is_rung = is_due || (self.was_rung.get() && self.bell.rings_soon());
        if !is_rung && self.bell.falls_asleep() {
            self.clock.sleep(&self.sleeper, until);
        }
        self.was_rung.set(self.bell.silence());
    }
}

impl MessagePump for DefaultPump {
    fn run(&self, delegate: &dyn Delegate) {
        while self.turn(delegate) {}
        self.quits.set(false); // for the run around it
    }

    fn quit(&self) {
        self.quits.set(true);
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }
}

/// Nobody has rung since the last wait, or there was none yet.
const SILENT: u64 = 0;
const RUNG: u64 = 1;
const ASLEEP: u64 = 2;

/// Where a pump is that waits; PUMP-1. All is Relaxed, because a bell publishes nothing: what there is to see,
/// and whether somebody waits for it, is under the lock of the inbox.
struct Bell {
    state: AtomicU64,
    sleeper: Waker,
}

impl Bell {
    /// Looks out for a ring for a moment.
    fn rings_soon(&self) -> bool {
        let has_rung = |pause: fn()| {
            pause();
            self.state.load(Ordering::Relaxed) != SILENT
        };
        let (spins, yields) = (LOOKS, LOOKS / 50);
        (0..spins).any(|_| has_rung(std::hint::spin_loop))
            || (0..yields).any(|_| has_rung(std::thread::yield_now))
    }

    /// False: it has rung.
    fn falls_asleep(&self) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.state.compare_exchange(SILENT, ASLEEP, success, failure).is_ok()
    }

    /// Whether it has rung.
    fn silence(&self) -> bool {
        self.state.swap(SILENT, Ordering::Relaxed) == RUNG
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, Ordering::Relaxed) == ASLEEP {
            self.sleeper.wake_by_ref();
        }
    }
}

impl Default for DefaultPump {
    fn default() -> DefaultPump {
        DefaultPump::new()
    }
}

impl fmt::Debug for DefaultPump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DefaultPump").finish_non_exhaustive()
    }
}
