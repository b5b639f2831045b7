//! Sleep and wake, without a lost wake-up.
//!
//! The tick thread (or whoever turns a [`Driver`](crate::Driver)) sleeps towards a moment. A
//! producer that schedules something earlier has to wake it, every other producer must leave it
//! alone (S7), and between "nothing to do" and "asleep" no task may slip through.
//!
//! The [`Doorbell`] holds one word, the **threshold**:
//!
//! ```text
//!            arm(t): sleeper            ring: whoever swaps it back also wakes
//!   AWAKE ------------------> t > 0 ------------------------------------------> AWAKE
//!                               |                                                 ^
//!                               +------------- disarm: sleeper -------------------+
//! ```
//!
//! - WAKE-1 A producer first publishes its task, then loads the threshold. A sleeper first stores the
//!   threshold, then looks for published tasks. All four are `SeqCst`, so in their single order
//!   either the producer's load comes after the sleeper's store, and it rings, or the sleeper's
//!   look comes after the producer's publication, and it stays up, unless all it sees can wait.
//! - WAKE-2 Only who turns the threshold from `t` to `AWAKE` wakes, so a burst of earlier deadlines
//!   costs one wake-up.
//! - WAKE-3 The [`Parker`] keeps a token: a wake that comes before the sleep ends it at once.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::platform::panics::quietly;
use crate::platform::sync::{AtomicU64, Condvar, InOrder, Mutex, Ordering, lock};
use crate::time::tick::Moment;

/// One thread's bed: a token and a condition variable.
#[derive(Debug)]
pub(crate) struct Parker {
    token: Mutex<bool>,
    bell: Condvar,
}

impl Parker {
    pub(crate) fn new() -> Parker {
        Parker { token: Mutex::new(false), bell: Condvar::new() }
    }

    /// Sleeps until there is a token, and takes it. May return early, as every sleep may.
    pub(crate) fn park(&self) {
        let mut token = lock(&self.token);
        if !*token {
            token = self.bell.wait(token).unwrap_or_else(PoisonError::into_inner);
        }
        *token = false;
    }

    /// The same, for this long at most.
    pub(crate) fn park_timeout(&self, timeout: Duration) {
        let mut token = lock(&self.token);
        if !*token {
            let woken = self.bell.wait_timeout(token, timeout);
            token = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *token = false;
    }

    /// Leaves a token, and wakes whoever sleeps; WAKE-3.
    pub(crate) fn unpark(&self) {
        *lock(&self.token) = true;
        self.bell.notify_one();
    }
}

/// What a [`Clock`](crate::Clock) puts the tick thread to sleep with.
///
/// A sleeper keeps a token: a wake that comes before the sleep ends it at once, so a clock that
/// hands out [`waker`](Sleeper::waker) first and sleeps afterwards loses no wake-up.
#[derive(Debug)]
pub struct Sleeper {
    parker: Arc<ParkerWaker>,
}

impl Sleeper {
    /// A sleeper for the calling thread.
    pub fn new() -> Sleeper {
        Sleeper { parker: Arc::new(ParkerWaker(Parker::new())) }
    }

    /// Sleeps until woken. May return early.
    pub fn sleep(&self) {
        self.parker.0.park();
    }

    /// Sleeps until woken, for this long at most. May return early.
    pub fn sleep_for(&self, timeout: Duration) {
        self.parker.0.park_timeout(timeout);
    }

    /// What ends the sleep, from any thread.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.parker))
    }
}

impl Default for Sleeper {
    fn default() -> Sleeper {
        Sleeper::new()
    }
}

/// A [`Parker`] as a [`Waker`].
#[derive(Debug)]
struct ParkerWaker(Parker);

impl Wake for ParkerWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The threshold of somebody who is up and will look for tasks before going to sleep.
const AWAKE: u64 = 0;

/// Wakes the one who turns the engine, when it is worth it.
pub(crate) struct Doorbell {
    threshold: AtomicU64,
    /// Behind an `Arc`, so that no user's `clone` runs under the lock (S11).
    wakes: Mutex<Option<Arc<Waker>>>,
}

impl Doorbell {
    pub(crate) fn new(wakes: Option<Waker>) -> Arc<Doorbell> {
        Arc::new(Doorbell {
            threshold: AtomicU64::new(AWAKE),
            wakes: Mutex::new(wakes.map(Arc::new)),
        })
    }

    /// Names who is woken from now on.
    pub(crate) fn wakes(&self, waker: Option<Waker>) {
        let before = std::mem::replace(&mut *lock(&self.wakes), waker.map(Arc::new));
        drop(before); // a waker's `Drop` is user code, so it runs with the lock released (S11)
    }

    /// The sleeper's first step: from now on whatever is due before `threshold` rings. It must
    /// look for tasks once more before it sleeps; WAKE-1.
    pub(crate) fn arm(&self, threshold: Moment) {
        self.threshold.store_in_order(threshold.0.max(AWAKE + 1));
    }

    /// The sleeper is up. Relaxed: a producer that still sees the old threshold rings for nothing.
    pub(crate) fn disarm(&self) {
        self.threshold.store(AWAKE, Ordering::Relaxed);
    }

    /// A producer's last step, after its task is published; WAKE-1. What is `due_now` rings at any
    /// threshold.
    #[inline]
    pub(crate) fn ring_if_earlier(&self, deadline: Moment, due_now: bool) {
        let threshold = self.threshold.load_in_order();
        if threshold != AWAKE && (due_now || deadline.0 < threshold) {
            self.answer(threshold);
        }
    }

    /// Rings whoever sleeps, whatever it waits for.
    pub(crate) fn ring_if_asleep(&self) {
        let threshold = self.threshold.load_in_order();
        if threshold != AWAKE {
            self.answer(threshold);
        }
    }

    /// WAKE-2. When the exchange fails, another producer woke the sleeper, or the sleeper went round
    /// and armed the bell anew: then it has seen what was published before the load above.
    ///
    /// Relaxed: it only decides who wakes; what the sleeper must see is ordered by the parker's lock.
    #[cold]
    fn answer(&self, threshold: u64) {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let exchange = self.threshold.compare_exchange(threshold, AWAKE, success, failure);
        if exchange.is_ok() {
            self.ring();
        }
    }

    /// Wakes, asleep or not: for a stop, which must not wait.
    pub(crate) fn ring(&self) {
        let waker = lock(&self.wakes).clone();
        if let Some(waker) = waker {
            quietly(|| waker.wake_by_ref()); // perhaps a user's: whoever rings has been served already
        }
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threshold = self.threshold.load(Ordering::Relaxed); // only shown
        f.debug_struct("Doorbell").field("threshold", &threshold).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn s7_only_an_earlier_deadline_rings_and_only_once() {
        let count = Arc::new(Count::default());
        let bell = Doorbell::new(Some(Waker::from(Arc::clone(&count))));
        let rung = || count.0.load(Ordering::Relaxed);

        bell.ring_if_earlier(Moment(1), true);
        assert_eq!(rung(), 0, "awake");
        bell.arm(Moment(100));
        bell.ring_if_earlier(Moment(100), false);
        assert_eq!(rung(), 0, "not earlier");
        bell.ring_if_earlier(Moment(99), false);
        bell.ring_if_earlier(Moment(98), false);
        assert_eq!(rung(), 1, "the first one rings, the second finds it awake");
        bell.arm(Moment(100));
        bell.ring_if_earlier(Moment(200), true);
        assert_eq!(rung(), 2, "due now");
    }

    #[test]
    fn a_token_ends_the_next_sleep_at_once() {
        let sleeper = Sleeper::new();
        sleeper.waker().wake();
        sleeper.sleep(); // would hang without WAKE-3
    }
}
