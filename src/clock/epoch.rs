//! Instants as the numbers by which a layer's wheel sorts its deadlines.

use std::time::{Duration, Instant};

use crate::clock::timeline::farthest;

/// Counts nanoseconds around an origin, and more than 146 years after it whole seconds, rounded up. So an instant that was a
/// number is never earlier than before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    /// The number of the origin. The numbers begin 146 years before it, because deadlines may.
    pub(crate) const ORIGIN: u64 = 1 << 62;

    /// So many numbers after the origin each one is a second. It is a whole number of seconds itself, so those that begin at
    /// the origin keep being whole.
    const NANOS: u64 = 4_611_686_018_000_000_000;

    /// All numbers are below this one. The last one stands for 292 billion years.
    const END: u64 = Epoch::ORIGIN + Epoch::NANOS + (1 << 63) - 2;

    pub(crate) fn new(origin: Instant) -> Epoch {
        Epoch(origin)
    }

    /// Returns the number of a deadline.
    pub(crate) fn number(self, instant: Instant) -> u64 {
        let Some(ahead) = instant.checked_duration_since(self.0) else {
            let before = (self.0 - instant).as_nanos();
            return Epoch::ORIGIN.saturating_sub(before.try_into().unwrap_or(u64::MAX));
        };
        let Some(beyond) = ahead.checked_sub(Duration::from_nanos(Epoch::NANOS)) else {
            return Epoch::ORIGIN + ahead.as_nanos() as u64;
        };
        let seconds = beyond.as_secs().saturating_add(u64::from(beyond.subsec_nanos() > 0));
        (Epoch::ORIGIN + Epoch::NANOS).saturating_add(seconds).min(Epoch::END - 1)
    }

    /// Returns the greatest number whose instant is not after this one, which is a reading of the clock.
    pub(crate) fn number_by(self, now: Instant) -> u64 {
        let number = self.number(now);
        let is_whole = number > Epoch::ORIGIN + Epoch::NANOS;
        number - u64::from(is_whole && self.instant(number) > now)
    }

    /// Returns the instant of a number, or the latest possible one if the number stands for one beyond it.
    pub(crate) fn instant(self, number: u64) -> Instant {
        let Some(ahead) = number.checked_sub(Epoch::ORIGIN) else {
            let before = Duration::from_nanos(Epoch::ORIGIN - number);
            return self.0.checked_sub(before).unwrap_or(self.0);
        };
        let exact = Duration::from_nanos(ahead.min(Epoch::NANOS));
        let seconds = Duration::from_secs(ahead.saturating_sub(Epoch::NANOS));
        self.0.checked_add(exact.saturating_add(seconds)).unwrap_or_else(|| farthest(self.0))
    }
}
