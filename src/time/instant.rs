//! A point in the time that is in force: [`Instant`].

use std::fmt;
use std::ops;
use std::time::{Duration, Instant as StdInstant};

use crate::scheduler::in_force::TimeSource;

/// A point in time, as [`std::time::Instant`], into which it converts both ways.
///
/// [`now`](Instant::now) reads the clock of the scheduler [in force](super#the-scheduler-in-force), which may be a virtual
/// one.
///
/// ```
/// use tickwheel::time::{self, Duration, Instant};
///
/// let start = Instant::now();
/// tickwheel::future::block_on(time::sleep(Duration::from_millis(2)));
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(StdInstant);

impl Instant {
    /// Returns the present, by the clock that is in force on the calling thread.
    pub fn now() -> Instant {
        Instant(TimeSource::in_force().now())
    }

    /// Converts an instant of std.
    pub fn from_std(std: StdInstant) -> Instant {
        Instant(std)
    }

    /// Converts into an instant of std.
    pub fn into_std(self) -> StdInstant {
        self.0
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time from `earlier` to this instant, or `None` if `earlier` is later.
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time since this instant, or zero if it lies ahead.
    pub fn elapsed(&self) -> Duration {
        Instant::now().duration_since(*self)
    }

    /// Returns this instant plus a duration, or `None` if that is beyond the range of the clock.
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    /// Returns this instant less a duration, or `None` if that is beyond the range of the clock.
    pub fn checked_sub(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_sub(duration).map(Instant)
    }
}

impl From<StdInstant> for Instant {
    fn from(std: StdInstant) -> Instant {
        Instant(std)
    }
}

impl From<Instant> for StdInstant {
    fn from(instant: Instant) -> StdInstant {
        instant.0
    }
}

/// Panics if the sum is beyond the range of the clock.
impl ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl ops::AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Zero if the right instant is the later one.
impl ops::Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

/// Panics if the difference is beyond the range of the clock.
impl ops::Sub<Duration> for Instant {
    type Output = Instant;

    #[expect(clippy::unchecked_time_subtraction, reason = "it panics, as std's and tokio's do")]
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0 - duration)
    }
}

impl ops::SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
