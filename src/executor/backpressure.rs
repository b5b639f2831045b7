//! Back-pressure: a thread that brings work much faster than it is done waits a little.
//!
//! A queue without a bound turns a flood into memory and delay for everybody. A queue with a hard bound turns
//! it into errors, or into deadlocks: the thread that waits for room may be the one that would make it. So
//! the queues here have a soft bound. A producer that finds itself beyond it sleeps in short steps, and in
//! this time the thread that works for it has the processor.
//!
//! - PRESSURE-1 A wait ends by itself: after [`LONGEST`] at the latest, and after [`STUCK`] if nothing has
//!   passed in that time. So it is never a deadlock, whatever locks the caller holds.
//! - PRESSURE-2 If nothing passes, the bound doubles. So a consumer that stands still (it is stopped, or
//!   blocked by the very thread that waits) costs its producers a few waits, and not one for each step. The
//!   bound falls back when the queue is short again, and when somebody who waits sees that something passes.
//!
//! All accesses are Relaxed: the numbers only decide whether somebody sleeps, and nothing is published by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a producer sleeps between two looks: this at first, and twice as long each time.
const FIRST_STEP: Duration = Duration::from_micros(250);
const LAST_STEP: Duration = Duration::from_millis(2);

/// When nothing has passed for so long, the consumer stands still.
const STUCK: Duration = LONGEST;

/// Nobody is held back for longer at a time.
const LONGEST: Duration = Duration::from_millis(100);

/// How far a queue may run ahead of its consumer before producers are held back.
#[derive(Debug)]
pub(crate) struct Backpressure {
    limit: u64,
    /// `limit`, or more after a consumer stood still; PRESSURE-2.
    allowed: AtomicU64,
}

/// What a producer sees of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// How much is in the queue.
    pub(crate) ahead: u64,
    /// How much has passed through it so far, or anything else that changes with progress.
    pub(crate) passed: u64,
}

impl Flow {
    /// Of a queue that nobody need wait for.
    pub(crate) const NONE: Flow = Flow { ahead: 0, passed: 0 };
}

impl Backpressure {
    pub(crate) const fn new(limit: u64) -> Backpressure {
        Backpressure { limit, allowed: AtomicU64::new(limit) }
    }

    /// Returns true if a queue that is so long should hold its producers back.
    #[inline]
    pub(crate) fn is_over(&self, ahead: u64) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        if allowed != self.limit && ahead < self.limit / 2 {
            self.allowed.store(self.limit, Ordering::Relaxed); // PRESSURE-2
        }
        ahead > allowed
    }

    /// Holds the calling thread back until the queue is short enough; PRESSURE-1. `look` tells how the queue
    /// stands. It must not be called with a lock held that the consumer may need.
    #[cold]
    pub(crate) fn hold_back(&self, mut look: impl FnMut() -> Flow) {
        let mut flow = look();
        let began = Instant::now();
        let (mut moved_at, mut step) = (began, FIRST_STEP);
        while self.is_over(flow.ahead) {
            thread::sleep(step);
            step = (2 * step).min(LAST_STEP);
            let (now, seen) = (Instant::now(), look());
            if seen.passed != flow.passed {
                moved_at = now;
                self.allowed.store(self.limit, Ordering::Relaxed); // PRESSURE-2
            } else if now - moved_at >= STUCK {
                self.allowed.fetch_max(2 * seen.ahead, Ordering::Relaxed); // PRESSURE-2
            }
            flow = seen;
            if now - began >= LONGEST {
                break;
            }
        }
    }
}

/// A queue whose consumer tells how it stands, for producers on other threads.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Written by the consumer alone, both.
    ahead: AtomicU64,
    passed: AtomicU64,
    pressure: Backpressure,
}

impl Backlog {
    pub(crate) const fn new(limit: u64) -> Backlog {
        let (ahead, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        Backlog { ahead, passed, pressure: Backpressure::new(limit) }
    }

    /// The consumer tells how its queue stands.
    pub(crate) fn tell(&self, flow: Flow) {
        self.ahead.store(flow.ahead, Ordering::Relaxed);
        self.passed.store(flow.passed, Ordering::Relaxed);
    }

    fn flow(&self) -> Flow {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
    }

    /// Holds the calling thread back while the queue is too long, and `goes_on` says that this is worth it. That is
    /// asked before each look: it may wake the consumer, so that it tells anew.
    pub(crate) fn hold_back(&self, mut goes_on: impl FnMut() -> bool) {
        if self.pressure.is_over(self.flow().ahead) {
            self.pressure.hold_back(|| if goes_on() { self.flow() } else { Flow::NONE });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A queue that passes so much at each look.
    fn looks(mut ahead: u64, step: u64) -> impl FnMut() -> Flow {
        let mut passed = 0;
        move || {
            ahead -= step.min(ahead);
            passed += step;
            Flow { ahead, passed }
        }
    }

    #[test]
    fn a_producer_is_held_back_until_the_queue_is_short_enough() {
        let pressure = Backpressure::new(10);
        assert!(!pressure.is_over(10) && pressure.is_over(11));
        let mut looked = 0;
        let mut look = looks(14, 1);
        pressure.hold_back(|| {
            looked += 1;
            look()
        });
        assert_eq!(looked, 4, "13, 12, 11, 10");
        assert!(pressure.is_over(11));
    }

    #[test]
    fn a_consumer_that_stands_still_lets_its_producers_go_and_costs_them_less_each_time() {
        let pressure = Backpressure::new(10);
        let began = Instant::now();
        pressure.hold_back(looks(1000, 0));
        assert!(began.elapsed() >= STUCK);
        assert!(!pressure.is_over(2000) && pressure.is_over(2001), "the bound has doubled");
        assert!(
            !pressure.is_over(4) && pressure.is_over(11),
            "and falls back when the queue is short"
        );
    }

    #[test]
    fn no_call_is_held_back_for_long_by_a_consumer_that_is_slow() {
        let pressure = Backpressure::new(10);
        let began = Instant::now();
        pressure.hold_back(looks(1_000_000, 1));
        assert!(began.elapsed() >= LONGEST && !pressure.is_over(10) && pressure.is_over(11));
    }
}
