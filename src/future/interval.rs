//! Ticks to be awaited, one after the other: [`Interval`].

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use super::{Sleep, after};
use crate::{MissedTicks, Period, ScheduleError, Scheduler};

/// A clock that ticks for one task: what [`Scheduler::interval`] gives.
///
/// A tick is due at `start + k * period`, however late the ones before were taken; what is done about those that
/// nobody took in time is said by [`missed`](Interval::missed). With the feature `futures-core` it is a
/// `Stream` too.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{MissedTicks, Scheduler};
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// let mut beat = scheduler.interval(Duration::from_millis(2)).missed(MissedTicks::Skip);
/// for _ in 0..3 {
///     beat.tick().await?;
///     println!("beat");
/// }
/// # Ok::<(), tickwheel::ScheduleError>(())
/// # })?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[must_use = "an interval does nothing unless `tick` is called and awaited"]
pub struct Interval {
    /// Until the next tick.
    sleep: Sleep,
    period: Duration,
    missed: MissedTicks,
    /// The last tick was an error.
    pub(super) is_over: bool,
}

impl Scheduler {
    /// Ticks at once, and then every period.
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_at(self.now(), period)
    }

    /// Ticks at `start`, and then every period.
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        let (sleep, missed) = (self.sleep_until(start), MissedTicks::default());
        Interval { sleep, period, missed, is_over: false }
    }
}

impl Interval {
    /// Chooses how ticks are dealt with that were due before the one ahead of them was taken; by default,
    /// [`Burst`](MissedTicks::Burst).
    pub fn missed(mut self, missed: MissedTicks) -> Interval {
        self.missed = missed;
        self
    }

    /// As [`missed`](Interval::missed), in place.
    pub fn set_missed(&mut self, missed: MissedTicks) {
        self.missed = missed;
    }

    /// Returns how missed ticks are dealt with.
    pub fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Waits for the next tick, and returns the instant at which it was due.
    ///
    /// It may be dropped and called again: a tick that nobody has got is not lost.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::ZeroPeriod`], and as [`Sleep`].
    pub async fn tick(&mut self) -> Result<Instant, ScheduleError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Like [`tick`](Interval::tick), for code that polls.
    ///
    /// # Errors
    ///
    /// As [`tick`](Interval::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Instant, ScheduleError>> {
        let tick = ready!(self.poll_due(context.waker())).map(|()| self.go_on());
        self.is_over = tick.is_err();
        Poll::Ready(tick)
    }

    fn poll_due(&mut self, waker: &Waker) -> Poll<Result<(), ScheduleError>> {
        if self.period.is_zero() {
            return Poll::Ready(Err(ScheduleError::ZeroPeriod));
        }
        self.sleep.poll_with(waker)
    }

    /// A tick has been taken: sets the next, and tells when the taken one was due.
    fn go_on(&mut self) -> Instant {
        let due = self.sleep.deadline();
        let period = Period::fixed_rate(self.period).missed(self.missed);
        self.sleep.reset(period.next_run(due, self.sleep.scheduler().now()));
        due
    }

    /// Starts anew: the next tick is a period from now.
    pub fn reset(&mut self) {
        self.reset_after(self.period);
    }

    /// The next tick is now.
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// The next tick is so long from now.
    pub fn reset_after(&mut self, duration: Duration) {
        self.reset_at(after(self.sleep.scheduler().now(), duration));
    }

    /// The next tick is at an instant.
    pub fn reset_at(&mut self, instant: Instant) {
        self.sleep.reset(instant);
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("next", &self.sleep.deadline())
            .field("period", &self.period)
            .field("missed", &self.missed)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}
