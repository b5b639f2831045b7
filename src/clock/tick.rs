//! Units of time inside the crate, and the one place where they are rounded.
//!
//! A user works with instants and [`Duration`]s. Inside, a point in time is a [`Moment`]: nanoseconds on the scheduler's
//! own 64-bit timeline. Its zero lies years before the scheduler was built, so an instant from before the build has a
//! moment too. A [`Tick`] counts whole ticks on the timeline.
//!
//! ```text
//!   0 .............. start ........................................... u64::MAX
//!   the timeline begins |  the scheduler was built; a tick border   [`Moment::NEVER`]
//! ```
//!
//! Rounding goes up, never down: a deadline's tick ends at or after the deadline (S1). Arithmetic saturates.
//!
//! - TIME-3 A clock that is moved to the end of the timeline, or beyond it, shows [`Moment::LAST`] from then on. There the
//!   last tick ends, and an instant that the clock has passed is due. All that lies further ahead is never. The farthest
//!   [`Instant`](std::time::Instant) stands for never, so no clock of this crate is moved there.

use core::num::NonZeroU64;
use core::time::Duration;

/// A tick of the wheel. Tick `n` covers the deadlines after the end of tick `n - 1`, up to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Tick(pub(crate) u64);

/// A point on a scheduler's timeline, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// The moment that is later than all others. No clock reaches it.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    /// The latest moment that a clock shows (TIME-3).
    pub(crate) const LAST: Moment = Moment(u64::MAX - 1);

    /// Returns the moment that is this long after, at most [`Moment::NEVER`].
    pub(crate) fn after(self, delay: Duration) -> Moment {
        self.after_nanos(nanos(delay))
    }

    /// Like [`after`](Moment::after), in nanoseconds.
    pub(crate) fn after_nanos(self, delay: u64) -> Moment {
        // A moment after the end of the timeline is never (S4).
        Moment(self.0.saturating_add(delay))
    }

    /// Returns how long after `earlier` this is, or zero if it is not after it.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// When a task was scheduled, and when it is to run.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) now: Moment,
    pub(crate) deadline: Moment,
}

/// Returns a duration in nanoseconds, at most as many as 64 bits hold (584 years).
pub(crate) fn nanos(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(duration.subsec_nanos()))
}

/// A divisor, which is the length of a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granularity {
    /// 2^(63 + shift) / units, rounded up or one more.
    magic: u64,
    shift: u32,
    less_one: u64,
    /// From here on the processor divides. That is 292 years away, if values are nanoseconds.
    limit: u64,
}

impl Granularity {
    pub(crate) fn new(units: NonZeroU64) -> Granularity {
        // Granlund's and Montgomery's method, for dividends of 63 bits: the reciprocal, scaled by a power of two that
        // is large enough for the rounding error to stay below one.
        let (units, less_one) = (units.get(), units.get() - 1);
        let shift = u64::BITS - less_one.leading_zeros();
        let magic = ((1_u128 << (63 + shift)) / u128::from(units) + 1) as u64;
        Granularity { magic, shift, less_one, limit: (1_u64 << 63).saturating_sub(less_one) }
    }

    /// Returns `value / units`, rounded up.
    #[inline]
    pub(crate) fn div_ceil(self, value: u64) -> u64 {
        // The wheel divides once for each task. The processor's division takes 20 to 40 cycles, so this is a
        // multiplication.
        if value >= self.limit {
            return self.div_ceil_far(value);
        }
        let twice = (value + self.less_one) << 1;
        let high = (u128::from(self.magic) * u128::from(twice)) >> 64;
        high as u64 >> self.shift
    }

    #[cold]
    fn div_ceil_far(self, value: u64) -> u64 {
        value.div_ceil(self.less_one + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granularity_divides_as_the_processor_does() {
        let edges = |around: u64| [around.wrapping_sub(1), around, around.wrapping_add(1)];
        let powers = (0..64).flat_map(|bit| edges(1 << bit));
        let values: Vec<u64> =
            powers.chain(edges(1_000_000)).chain(edges(u64::MAX)).chain([3, 7, 12_345]).collect();
        for units in values.iter().filter_map(|units| NonZeroU64::new(*units)) {
            let granularity = Granularity::new(units);
            let multiples = values.iter().flat_map(|value| edges(value.wrapping_mul(units.get())));
            for value in values.iter().copied().chain(multiples) {
                let expected = value.div_ceil(units.get());
                assert_eq!(granularity.div_ceil(value), expected, "{value} / {units}");
            }
        }
    }
}
