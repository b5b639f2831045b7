//! Instants as numbers, for the wheels of the layers: nanoseconds, and seconds where these would not fit.
//!
//! ```text
//!          nanoseconds               nanoseconds          seconds, rounded up
//!   0 ──────────────────── START ────────────────── FAR ─────────────────────── END
//!         146 years      the origin     146 years         292 billion years
//! ```
//!
//! The numbers begin long before the origin, because deadlines may. A number stands for an instant that is never earlier than
//! the one that it was made of. So nothing is early.

use std::time::{Duration, Instant};

use super::tick::nanos;
/// The instant from which a layer counts.
pub(crate) use super::timeline::Origin as Epoch;
use super::timeline::after;

impl Epoch {
    /// The number of the origin.
    pub(crate) const START: u64 = 1 << 62;

    /// Up to this number each one is a nanosecond, and from there on each one is a second. It is a whole number of seconds
    /// after the origin, so those that begin at the origin keep being whole.
    const FAR: u64 = Epoch::START + Epoch::FAR_SECONDS * 1_000_000_000;
    const FAR_SECONDS: u64 = 4_611_686_018;

    /// All numbers are below this one. The last one stands for 292 billion years.
    const END: u64 = Epoch::FAR + (1 << 63) - 2;

    /// Returns the number of a deadline. It has passed when the clock has come to that number.
    #[inline]
    pub(crate) fn number(self, instant: Instant) -> u64 {
        let nanos = self.nanos_to(instant).filter(|nanos| *nanos < Epoch::FAR - Epoch::START);
        nanos.map_or_else(|| self.number_by_arithmetic(instant), |nanos| Epoch::START + nanos)
    }

    #[cold]
    fn number_by_arithmetic(self, instant: Instant) -> u64 {
        let Some(ahead) = instant.checked_duration_since(self.at) else {
            let ago = nanos(self.at.saturating_duration_since(instant));
            return Epoch::START.saturating_sub(ago);
        };
        let beyond = ahead.saturating_sub(Duration::from_secs(Epoch::FAR_SECONDS));
        let number = Epoch::START + nanos(ahead.saturating_sub(beyond));
        let seconds = beyond.as_secs().saturating_add(u64::from(beyond.subsec_nanos() > 0));
        number.saturating_add(seconds).min(Epoch::END - 1)
    }

    /// Returns the last number that has passed at an instant.
    #[inline]
    pub(crate) fn passed_by(self, instant: Instant) -> u64 {
        let number = self.number(instant);
        number - u64::from(number > Epoch::FAR && self.instant(number) > instant)
    }

    /// Returns the instant of a number, or the latest possible one if the number stands for one beyond it.
    #[inline]
    pub(crate) fn instant(self, number: u64) -> Instant {
        let Some(ahead) = number.checked_sub(Epoch::START) else {
            return self.before(Duration::from_nanos(Epoch::START - number));
        };
        let exact = Duration::from_nanos(ahead.min(Epoch::FAR - Epoch::START));
        let seconds = Duration::from_secs(number.saturating_sub(Epoch::FAR));
        after(self.at, exact.saturating_add(seconds))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unchecked_time_subtraction, reason = "all of these times are ahead")]
mod tests {
    use super::super::timeline::farthest;
    use super::*;

    #[test]
    fn s01_a_number_is_never_earlier_than_its_instant_and_keeps_the_order() {
        let start = Instant::now() + Duration::from_secs(1);
        let epoch = Epoch::new(start);
        let far = Duration::from_secs(Epoch::FAR_SECONDS);
        let nano = Duration::from_nanos(1);
        let second = Duration::from_secs(1);
        let ahead = [Duration::ZERO, nano, second, far - nano, far, far + nano, far + second * 7];
        let mut instants = vec![start - second, start - nano];
        instants.extend(ahead.iter().filter_map(|ahead| start.checked_add(*ahead)));
        instants.push(farthest(start));
        let mut last = 0;
        for instant in instants {
            let (number, passed) = (epoch.number(instant), epoch.passed_by(instant));
            assert!(number > last && number < Epoch::END, "{number} after {last}");
            assert_eq!(number, epoch.number_by_arithmetic(instant));
            assert!(epoch.instant(number) >= instant, "{number}");
            assert!(passed <= number && epoch.instant(passed) <= instant, "{passed}");
            let is_exact = number <= Epoch::FAR;
            assert!(!is_exact || (epoch.instant(number), passed) == (instant, number));
            last = number;
        }
        assert_eq!(epoch.number(start), Epoch::START);
    }
}
