//! Back-pressure: a thread that brings work much faster than it is done waits a little.
//!
//! A queue without a bound turns a flood into memory, and into delay for everybody. A queue with a hard bound turns it
//! into errors, or into deadlocks, because the thread that waits for room may be the one that would make it. So the
//! queues here have a soft bound. A producer that is beyond it sleeps in short steps, and in this time the consumer has
//! the processor.
//!
//! A wait ends by itself, after [`LONGEST`] at the latest. So it is never a deadlock, whatever locks the caller holds.
//!
//! - PRESSURE-3 A task of a runtime is not put to sleep, because its thread would sleep too. The task polls again until it
//!   is let in, and the same rules end that wait: see [`Wait`].
//!
//! All accesses are Relaxed: the numbers only decide whether a producer sleeps, and nothing is published by them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// No call is held back for longer. A consumer that has passed nothing in that time stands still.
const LONGEST: Duration = Duration::from_millis(100);

/// How far a queue may run ahead of its consumer before producers are held back.
pub(crate) struct Backpressure {
    limit: u64,
    /// `limit`, or more after a consumer has stood still.
    allowed: AtomicU64,
}

/// What a producer sees of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// How much is in the queue.
    pub(crate) ahead: u64,
    /// How much has passed through it so far, or any other number that changes with progress.
    pub(crate) passed: u64,
}

impl Flow {
    /// The flow of a queue that holds no producer back.
    pub(crate) const NONE: Flow = Flow { ahead: 0, passed: 0 };
}

impl Backpressure {
    pub(crate) const fn new(limit: u64) -> Backpressure {
        Backpressure { limit, allowed: AtomicU64::new(limit) }
    }

    /// Returns true if a queue that is `ahead` long should hold its producers back.
    #[inline]
    pub(crate) fn is_over(&self, ahead: u64) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        debug_assert!(allowed >= self.limit, "the bound only rises above the limit");
        if allowed != self.limit && ahead < self.limit / 2 {
            // The queue is short again, so the bound falls back.
            self.allowed.store(self.limit, Ordering::Relaxed);
        }
        ahead > allowed
    }

    /// Holds the calling thread back until the queue is short enough, or the wait has lasted long enough.
    /// `look` returns the state of the queue. Must not be called with a lock held that the consumer may need.
    pub(crate) fn hold_back(&self, mut look: impl FnMut() -> Flow) {
        let Some(wait) = self.wait(look()) else { return };
        // Short at first, because mostly the queue is a little too long. Each further sleep is twice as long, up to 2 ms, to
        // leave the consumer the processor.
        let mut step = Duration::from_micros(250);
        loop {
            thread::sleep(step);
            step = (2 * step).min(Duration::from_millis(2));
            if !wait.goes_on(self, look()) {
                return;
            }
        }
    }

    /// Begins to hold a producer back, if the queue is too long.
    pub(crate) fn wait(&self, flow: Flow) -> Option<Wait> {
        // The progress is counted from here, so a consumer that stands still is found out within this wait.
        let now = Instant::now();
        self.is_over(flow.ahead).then_some(Wait { began: now, passed: flow.passed })
    }
}

/// A producer that is held back, and what it has seen.
pub(crate) struct Wait {
    began: Instant,
    /// What had passed then.
    passed: u64,
}

impl Wait {
    /// Returns true if the producer has to wait on.
    pub(crate) fn goes_on(&self, pressure: &Backpressure, flow: Flow) -> bool {
        if flow.passed != self.passed {
            // Something passes, so the bound falls back.
            pressure.allowed.store(pressure.limit, Ordering::Relaxed);
        } else if self.is_over() {
            // Nothing has passed, so the bound doubles. So a consumer that stands still (because it was stopped, or is
            // blocked by the very thread that waits) costs its producers a few waits, and not one wait for each call.
            pressure.allowed.fetch_max(2 * flow.ahead, Ordering::Relaxed);
        }
        pressure.is_over(flow.ahead) && !self.is_over()
    }

    /// Returns true if it has lasted as long as it may.
    pub(crate) fn is_over(&self) -> bool {
        self.began.elapsed() >= LONGEST
    }
}

/// How far an executor is behind, for producers on other threads: what is due and it has not done.
pub(crate) struct Backlog {
    /// How many tasks it was handed and has not refused.
    handed: AtomicU64,
    /// How many tasks wait that it has refused.
    refused: AtomicU64,
    /// How many tasks it has done, those that were cancelled in the meantime included.
    done: AtomicU64,
    /// How many tasks were done elsewhere, by the last look.
    elsewhere: AtomicU64,
    pressure: Backpressure,
}

impl Backlog {
    pub(crate) const fn new(limit: u64) -> Backlog {
        let [handed, refused, done, elsewhere] = [const { AtomicU64::new(0) }; 4];
        Backlog { handed, refused, done, elsewhere, pressure: Backpressure::new(limit) }
    }

    /// Returns how many tasks it was handed and has not done, by what is counted here.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn ahead(&self) -> u64 {
        self.handed.load(Ordering::Relaxed) - self.done.load(Ordering::Relaxed)
    }

    /// Counts tasks that are handed over.
    pub(crate) fn hand(&self, tasks: usize) {
        self.handed.fetch_add(tasks as u64, Ordering::Relaxed);
    }

    /// Takes back what was counted for tasks that have come back.
    pub(crate) fn take_back(&self, tasks: usize) {
        self.handed.fetch_sub(tasks as u64, Ordering::Relaxed);
    }

    /// States how many refused tasks wait.
    pub(crate) fn set_refused(&self, tasks: usize) {
        self.refused.store(tasks as u64, Ordering::Relaxed);
    }

    /// Counts tasks that are done.
    pub(crate) fn count_done(&self, tasks: usize) {
        self.done.fetch_add(tasks as u64, Ordering::Relaxed);
    }

    /// Holds the calling thread back while the executor is too far behind and `goes_on` returns true. `goes_on` is called
    /// before each further look. `done_elsewhere` returns how many tasks are done beside those that are counted here.
    pub(crate) fn hold_back(
        &self,
        done_elsewhere: impl Fn() -> u64,
        mut goes_on: impl FnMut() -> bool,
    ) {
        let by = |elsewhere: u64| {
            let passed = self.done.load(Ordering::Relaxed) + elsewhere;
            let handed = self.handed.load(Ordering::Relaxed).saturating_sub(passed);
            Flow { ahead: handed + self.refused.load(Ordering::Relaxed), passed }
        };
        let flow = || {
            let elsewhere = done_elsewhere();
            self.elsewhere.store(elsewhere, Ordering::Relaxed);
            by(elsewhere)
        };
        // What is done only grows, so the number of the last look makes the backlog too long, and never too short. Most calls
        // end with that number, which spares them a walk over the lanes of all threads. `goes_on` comes last, because it may
        // wake a thread.
        let is_over = |flow: Flow| self.pressure.is_over(flow.ahead);
        if is_over(by(self.elsewhere.load(Ordering::Relaxed))) && is_over(flow()) {
            self.pressure.hold_back(|| if goes_on() { flow() } else { Flow::NONE });
        }
    }
}

// ----- a hard limit ----------------------------------------------------------------------

/// A hard limit, for programs that want errors in place of waits: how many tasks may be pending (S25), and how many are.
/// Without a limit nothing is counted.
///
/// All accesses are Relaxed: each step on the count is atomic, and the count publishes nothing.
pub(crate) struct PendingLimit {
    limit: Option<usize>,
    pending: AtomicUsize,
}

impl PendingLimit {
    pub(crate) fn new(limit: Option<usize>) -> PendingLimit {
        PendingLimit { limit, pending: AtomicUsize::new(0) }
    }

    /// Counts one more pending task. Returns false if the limit is reached.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let Some(limit) = self.limit else { return true };
        // Never above the limit, not even for a moment: another thread may read it (S25).
        let next = |pending: usize| (pending < limit).then(|| pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Returns true if [`enter`](PendingLimit::enter) would refuse a task at this moment.
    pub(crate) fn is_reached(&self) -> bool {
        self.limit.is_some_and(|limit| self.pending.load(Ordering::Relaxed) >= limit)
    }

    /// Counts one more pending task, beyond the limit if need be. It is for a task that cannot be refused.
    pub(crate) fn enter_anyway(&self) {
        if self.limit.is_some() {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many tasks are pending, or `None` if nothing is counted.
    pub(crate) fn pending(&self) -> Option<usize> {
        self.limit.map(|_| self.pending.load(Ordering::Relaxed))
    }

    /// Counts one pending task less.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.limit.is_some() {
            let before = self.pending.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a task leaves once");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn s25_a_full_limit_refuses_all_but_the_tasks_that_must_enter() {
        let limit = PendingLimit::new(Some(2));
        assert_eq!([limit.enter(), limit.enter(), limit.enter()], [true, true, false]);
        limit.leave();
        assert!(limit.enter());
        limit.enter_anyway();
        limit.leave();
        assert!(!limit.enter(), "there are still two");
        limit.leave();
        assert!(limit.enter() && !limit.enter());
        assert!(!PendingLimit::new(Some(0)).enter());
        let unbounded = PendingLimit::new(None);
        assert!((0..100).all(|_| unbounded.enter()));
        assert_eq!(unbounded.pending.load(Ordering::Relaxed), 0, "nothing is counted");
    }

    /// A queue through which `step` passes at each look.
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
        let (mut looked, began) = (0, Instant::now());
        let mut look = looks(14, 1);
        pressure.hold_back(|| {
            looked += 1;
            look()
        });
        let was_long_enough = looked < 4 && began.elapsed() >= LONGEST; // on a busy machine
        assert!(looked == 4 || was_long_enough, "13, 12, 11, 10, and not {looked}");
        assert!(pressure.is_over(11));
    }

    #[test]
    fn a_consumer_that_stands_still_doubles_the_bound() {
        let pressure = Backpressure::new(10);
        let began = Instant::now();
        pressure.hold_back(looks(1000, 0));
        assert!(began.elapsed() >= LONGEST);
        assert!(!pressure.is_over(2000) && pressure.is_over(2001), "the bound has doubled");
        assert!(
            !pressure.is_over(4) && pressure.is_over(11),
            "it falls back when the queue is short"
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
