//! The database's clock, seen from this process: a [`DatabaseClock`] tells at which [`Instant`] a time of the database
//! comes.
//!
//! Each answer of the database that has its time says something about how far the two clocks are apart: the time was
//! read between the moment at which the question left and the moment at which the answer was here. The distance lies in
//! an interval that is as wide as the round trip. Several answers narrow it down, and it widens as time goes by, because
//! clocks drift. An answer that does not fit means that one of the clocks was set. Then only this answer counts.
//!
//! - DB-CLOCK-1 This process never reads a wall clock of its own. So it does not matter what time it is here.
//! - DB-CLOCK-2 The instant that is returned is the latest that is possible. So a worker that waits for it and then asks
//!   the database finds that the time has come, unless a clock was set, or drifts more than [`DRIFT`].
//! - DB-CLOCK-3 When an answer shows that a clock was set, a look follows that begins after [`learn`](DatabaseClock::learn), also if the
//!   answer was that of a look. Whoever expects a timer has the clock locked from where it reads an instant until the dispatcher has that.
//!   So what was expected at a wrong instant was in the database before that look, which finds it and expects it anew.
//! - DB-CLOCK-4 A timer that somebody else tells of may be the first sign that a clock was set forward: by the old time it comes later. So
//!   the database is asked for its time within [`FRESH`]. Without such a sign, the next answer shows it, at the latest that of the look
//!   which is made once a minute.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How fast two clocks may drift apart, in microseconds for each second.
const DRIFT: i64 = 200;

/// The resolution of a database's times, in microseconds. SQLite counts milliseconds.
const RESOLUTION: i64 = 1000;

/// How long the last answer counts for timers that others tell of (DB-CLOCK-4).
const FRESH: Duration = Duration::from_secs(1);

pub(crate) struct DatabaseClock {
    /// Instants are counted from here.
    base: Instant,
    /// The lowest and the highest value that the difference between the database's time and ours may have, in microseconds.
    apart: Option<(i64, i64)>,
    /// When that was measured last, in microseconds since `base`.
    measured: i64,
}

impl DatabaseClock {
    pub(crate) fn new(base: Instant) -> DatabaseClock {
        DatabaseClock { base, apart: None, measured: 0 }
    }

    /// Takes in an answer: the database's time was `read` between `sent` and `received`. Returns true if a clock was set.
    pub(crate) fn learn(&mut self, sent: Instant, received: Instant, read: SystemTime) -> bool {
        let (sent, received, read) = (self.here(sent), self.here(received), micros(read));
        let (low, high) = (read - received, read + RESOLUTION - sent);
        let drift = (received - self.measured).max(0) * DRIFT / 1_000_000 + 1;
        let known = self.apart.map(|(least, most)| (least - drift, most + drift));
        let both = known.map(|(least, most)| (least.max(low), most.min(high)));
        let was_set = both.is_some_and(|(least, most)| least > most);
        self.apart = both.filter(|_| !was_set).or(Some((low, high)));
        self.measured = received;
        was_set
    }

    /// Returns the latest instant at which the database's clock shows a time (DB-CLOCK-2).
    pub(crate) fn instant(&self, time: SystemTime) -> Instant {
        let (least, _) = self.apart.unwrap_or_default();
        let here = u64::try_from(micros(time).saturating_sub(least)).unwrap_or(0);
        self.base.checked_add(Duration::from_micros(here)).unwrap_or(self.base)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.apart.is_some()
    }

    /// Returns when the last answer counts no longer (DB-CLOCK-4).
    pub(crate) fn fresh_until(&self) -> Instant {
        self.base + Duration::from_micros(self.measured.unsigned_abs()) + FRESH
    }

    /// Returns the latest time that the database's clock may show at an instant.
    pub(crate) fn latest_time(&self, instant: Instant) -> SystemTime {
        let (_, most) = self.apart.unwrap_or_default();
        from_micros(self.here(instant).saturating_add(most))
    }

    /// Returns the earliest time that the database's clock may show at an instant.
    pub(crate) fn time(&self, instant: Instant) -> SystemTime {
        let (least, _) = self.apart.unwrap_or_default();
        from_micros(self.here(instant).saturating_add(least))
    }

    fn here(&self, instant: Instant) -> i64 {
        i64::try_from(instant.saturating_duration_since(self.base).as_micros()).unwrap_or(i64::MAX)
    }
}

/// Microseconds since 1970. Earlier times count as 1970, and times after [`LATEST`] as that.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos().div_ceil(1000)).unwrap_or(LATEST).min(LATEST)
}

pub(crate) fn from_micros(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The last moment of the year 9998. A timer that is due later is stored with this time.
pub(crate) const LATEST: i64 = 253_370_764_799_999_999;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(base: Instant, micros: u64) -> Instant {
        base + Duration::from_micros(micros)
    }

    #[test]
    fn several_answers_narrow_it_down() {
        let base = Instant::now();
        let mut clock = DatabaseClock::new(base);
        // The database's clock is 1,000,000 ahead. The first round trip takes 10 ms, the time is read at its end.
        assert!(!clock.learn(at(base, 0), at(base, 10_000), from_micros(1_010_000)));
        assert_eq!(clock.instant(from_micros(1_500_000)), at(base, 500_000));
        // In the second it is read at the beginning, which says less.
        assert!(!clock.learn(at(base, 20_000), at(base, 30_000), from_micros(1_020_000)));
        assert!(clock.instant(from_micros(1_500_000)) <= at(base, 500_000 + 2 * DRIFT as u64));
        assert!(clock.instant(from_micros(1_500_000)) >= at(base, 500_000));
    }

    #[test]
    fn a_clock_that_was_set_is_noticed() {
        let base = Instant::now();
        let mut clock = DatabaseClock::new(base);
        assert!(!clock.learn(at(base, 0), at(base, 100), from_micros(1_000_100)));
        assert!(clock.learn(at(base, 1000), at(base, 1100), from_micros(9_001_100)));
        assert_eq!(clock.instant(from_micros(9_001_100)), at(base, 1100));
        assert!(clock.learn(at(base, 2000), at(base, 2100), from_micros(500_000)));
        assert_eq!(clock.time(at(base, 2100)), from_micros(500_000));
    }

    #[test]
    fn times_are_rounded_up_and_kept_in_range() {
        assert_eq!(micros(UNIX_EPOCH + Duration::from_nanos(1)), 1);
        assert_eq!(micros(UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(micros(from_micros(LATEST)), LATEST);
    }
}
