//! The [`Doorbell`]: whether the thread that turns an engine sleeps, and until when, in one word.
//!
//! A schedule must not take a lock, so the word is read without one. It is the **threshold**: what is due before it wakes
//! the thread, and nothing else does (S7).
//!
//! ```text
//!            arm(t): the sleeper      ring: the producer that exchanges it for AWAKE also wakes
//!   AWAKE ------------------> t > 0 ------------------------------------------> AWAKE
//!                               |                                                 ^
//!                               +------------- disarm: the sleeper ---------------+
//! ```
//!
//! In place of the lock there is an order of four accesses (WAKE-1).

use std::sync::Arc;
use std::task::Waker;

use super::{AWAKE, asleep};
use crate::clock::tick::Moment;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::platform::sync::{AtomicU64, Mutex, Ordering, lock};

/// Wakes the thread that turns an engine, if that is worth it.
pub(crate) struct Doorbell {
    /// What is due before this wakes the sleeper, as a [`Moment`]; [`AWAKE`] if nobody sleeps.
    threshold: AtomicU64,
    /// The waker of the sleeper. Behind an `Arc`, so that no user's `clone` runs under the lock (S11).
    wakes: Mutex<Option<Arc<Waker>>>,
}

impl Doorbell {
    pub(crate) fn new(wakes: Option<Waker>) -> Arc<Doorbell> {
        Arc::new(Doorbell {
            threshold: AtomicU64::new(AWAKE),
            wakes: Mutex::new(wakes.map(Arc::new)),
        })
    }

    /// Sets the waker that is woken from now on.
    pub(crate) fn wakes(&self, waker: Option<Waker>) {
        let before = std::mem::replace(&mut *lock(&self.wakes), waker.map(Arc::new));
        quietly(|| drop(before)); // it is user code, so it runs with the lock released (S11)
    }

    /// Lets everything ring from now on that is due before `threshold`. This is the sleeper's first step.
    pub(crate) fn arm(&self, threshold: Moment) {
        // The sleeper must look for tasks once more after this, and before it sleeps (WAKE-1).
        self.threshold.store(asleep(threshold), Ordering::SeqCst);
    }

    /// Lets nothing ring any more: the sleeper is awake.
    pub(crate) fn disarm(&self) {
        // Relaxed: a producer that still sees the old threshold rings for nothing.
        self.threshold.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the sleeper if it sleeps for too long. This is a producer's last step, after its task is published. A task
    /// that is `due_now` rings at any threshold.
    #[inline]
    pub(crate) fn ring_if_earlier(&self, deadline: Moment, due_now: bool) {
        // After the publication, and in one order with it, with the sleeper's store and with its look (WAKE-1).
        let threshold = self.threshold.load(Ordering::SeqCst);
        if threshold != AWAKE && (due_now || deadline.0 < threshold) {
            self.answer(threshold);
        }
    }

    /// Wakes the sleeper if it sleeps, whatever it waits for.
    #[inline]
    pub(crate) fn ring_if_asleep(&self) {
        self.ring_if_earlier(Moment::NEVER, true);
    }

    /// Rings if this caller turns the threshold to `AWAKE`.
    #[cold]
    fn answer(&self, threshold: u64) {
        // One producer wakes, so a burst of earlier deadlines costs one wake-up. If the exchange fails, another
        // producer has woken the sleeper, or the sleeper has armed the bell anew. Either way the sleeper arms the bell
        // after the caller's load, and its look behind that sees what the caller has published. Relaxed: the exchange
        // only decides which thread wakes, and the parker's lock orders what the sleeper must see.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let exchange = self.threshold.compare_exchange(threshold, AWAKE, success, failure);
        if exchange.is_ok() {
            self.ring();
        }
    }

    /// Wakes the sleeper, also if it seems to be awake: for a stop.
    pub(crate) fn ring(&self) {
        let waker = lock(&self.wakes).clone();
        if let Some(waker) = waker {
            // A user's waker may panic. A task that rings must not lose its handle by that (S17).
            quietly(|| waker.wake_by_ref());
            quietly(|| drop(waker)); // the last one, if the waker was exchanged in the meantime
        }
    }

    /// Returns the threshold; `None` if the sleeper is awake. Relaxed: it is only shown.
    pub(crate) fn threshold(&self) -> Option<Moment> {
        let threshold = self.threshold.load(Ordering::Relaxed);
        (threshold != AWAKE).then_some(Moment(threshold))
    }
}

impl_debug!(Doorbell, self, threshold: self.threshold());

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn s07_only_an_earlier_deadline_rings_and_only_once() {
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
}
