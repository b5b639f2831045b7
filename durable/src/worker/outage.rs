//! Times in which the database cannot be used: when the parts of a worker try again, and who is told.
//!
//! - OUTAGE-1 A part whose last try has failed tries again when it gets a turn. Turns are for all parts together, with gaps
//!   between them that grow to five seconds. So neither a timer that is due nor a thread more makes for more tries. Runs that wait for
//!   the database may all give up, so a handler thread that has nothing to do tries in their place.
//! - The hooks are told once that the first part has failed, and once that none is left that has.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::error::Error;
use crate::failure::Retry;
use crate::store::Purpose;

/// A part of a worker that uses connections of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Dispatcher,
    Finisher,
    /// Those of the kinds whose connections are for this purpose. A pool for one purpose may be away while the others are not.
    Handlers(Purpose),
    Listener,
}

#[derive(Default)]
pub(super) struct Outage {
    tries: Mutex<Tries>,
    /// A part has a turn earlier than it was said, or a reason not to wait for one.
    has_changed: Condvar,
}

#[derive(Default)]
struct Tries {
    /// The parts whose last try has failed.
    failing: Vec<Part>,
    /// Since when there are any, or, if there are none, since when there are none again.
    since: Option<Instant>,
    /// The next turn, and how many there were since a try has worked.
    next: Option<Instant>,
    turns: u32,
}

impl Tries {
    /// How long a part has to wait for its turn. `None`: its last try has worked.
    fn left(&self, part: Part) -> Option<Duration> {
        let left = || self.next.map(|next| next.saturating_duration_since(Instant::now()));
        self.failing.contains(&part).then(|| left().unwrap_or_default())
    }

    /// The shortest gap between turns is half of 50 ms, and the longest 5 s.
    fn take_turn(&mut self, now: Instant) {
        self.turns = self.turns.saturating_add(1);
        self.next = Some(now + gap(self.turns));
    }
}

/// The gap behind so many tries, of which up to a half is left out at random.
pub(super) fn gap(tries: u32) -> Duration {
    let gaps = Retry::default().gaps(Duration::from_millis(50), 2.0, Duration::from_secs(5));
    gaps.jitter(0.5).gap(tries)
}

impl Outage {
    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the waits of those that have a reason to: the worker stops, or the time of a run is over.
    pub(super) fn wake(&self) {
        drop(self.tries()); // one that is about to wait has not seen the reason, and waits by now
        self.has_changed.notify_all();
    }
}

impl Shared {
    /// Returns how long a part has to wait before it may use the database. Zero: it may now, and says how it went.
    pub(super) fn time_to_turn(&self, part: Part) -> Duration {
        Self::turn_of(part, &mut self.outage.tries())
    }

    fn turn_of(part: Part, tries: &mut Tries) -> Duration {
        let Some(left) = tries.left(part) else { return Duration::ZERO };
        if left.is_zero() {
            tries.take_turn(Instant::now());
        }
        left
    }

    /// Returns how long a part has to wait that has failed, and takes no turn. `None`: it has not failed, or has worked since.
    pub(super) fn time_to_try_again(&self, part: Part) -> Option<Duration> {
        self.outage.tries().left(part)
    }

    /// Waits until a part may use the database. Returns false if the worker stops before.
    pub(super) fn await_turn(&self, part: Part) -> bool {
        self.await_turn_unless(part, || self.is_stopping())
    }

    /// Like `await_turn`, but with a reason of the caller's to return false.
    pub(super) fn await_turn_unless(&self, part: Part, is_over: impl Fn() -> bool) -> bool {
        let mut tries = self.outage.tries();
        loop {
            let left = Self::turn_of(part, &mut tries);
            if left.is_zero() {
                return true;
            }
            if is_over() {
                return false;
            }
            let waited = self.outage.has_changed.wait_timeout(tries, left);
            tries = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_over() {
                return false; // it would take a turn, and not use it
            }
        }
    }

    /// Returns true while a part has failed and not worked since, and for so long after that.
    pub(super) fn was_out(&self, within: Duration) -> bool {
        let tries = self.outage.tries();
        !tries.failing.is_empty() || tries.since.is_some_and(|since| since.elapsed() < within)
    }

    /// The try of a part has failed.
    pub(super) fn has_failed(&self, part: Part, error: &Error) {
        let mut tries = self.outage.tries();
        let is_new = tries.failing.is_empty();
        if is_new {
            let now = Instant::now();
            tries.since = Some(now);
            tries.turns = 0;
            tries.take_turn(now);
        }
        if !tries.failing.contains(&part) {
            tries.failing.push(part);
        }
        drop(tries);
        self.count_error();
        if is_new {
            self.tell(error);
        }
    }

    /// The try of a part has worked. The other parts have turns at once, because they may work too.
    pub(super) fn has_worked(&self, part: Part) {
        let mut tries = self.outage.tries();
        if !tries.failing.contains(&part) {
            return;
        }
        tries.failing.retain(|failing| *failing != part);
        tries.turns = 0;
        tries.next = None;
        let is_over = tries.failing.is_empty();
        let since = if is_over { tries.since.replace(Instant::now()) } else { None };
        drop(tries);
        self.outage.has_changed.notify_all();
        self.look_now();
        since.into_iter().for_each(|since| self.tell_of_recovery(since.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_to_the_longest() {
        for (tries, longest) in [(1, 50), (4, 400), (99, 5000)] {
            let longest = Duration::from_millis(longest);
            let gap = gap(tries);
            assert!(gap <= longest && gap >= longest / 2, "{tries}: {gap:?}");
        }
    }
}
