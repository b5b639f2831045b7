//! A series of ticks to be awaited one by one: [`Interval`].

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::{Sleep, after};
use crate::{MissedTicks, Period, ScheduleError, Scheduler};

/// Ticks at a fixed rate, for one task that awaits them. Made by [`Scheduler::interval`].
///
/// Tick `k` is due at `start + k * period`, however late the ticks before were taken. [`missed`](Interval::missed) says
/// what happens to ticks that nobody took in time. With the feature `futures-core`, an interval is also a `Stream`.
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
    is_over: bool,
}

impl Scheduler {
    /// Returns an interval that ticks at once, and then every period.
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_at(self.now(), period)
    }

    /// Returns an interval that ticks at `start`, and then every period.
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        let (sleep, missed) = (self.sleep_until(start), MissedTicks::default());
        Interval { sleep, period, missed, is_over: false }
    }
}

impl Interval {
    /// Sets what happens to ticks that were already due when the tick before them was taken. By default, it is
    /// [`Burst`](MissedTicks::Burst).
    pub fn missed(mut self, missed: MissedTicks) -> Interval {
        self.missed = missed;
        self
    }

    /// Sets what happens to missed ticks, like [`missed`](Interval::missed), in place.
    pub fn set_missed(&mut self, missed: MissedTicks) {
        self.missed = missed;
    }

    /// Returns what happens to missed ticks.
    pub fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Waits for the next tick, and returns the instant at which it was due.
    ///
    /// The future may be dropped before it is ready. No tick is lost by that: the next call waits for the same one.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::ZeroPeriod`] if the period is zero, and the errors of a [`Sleep`].
    pub async fn tick(&mut self) -> Result<Instant, ScheduleError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick, like [`tick`](Interval::tick).
    ///
    /// # Errors
    ///
    /// The errors of [`tick`](Interval::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Instant, ScheduleError>> {
        let woken = if self.period.is_zero() {
            Err(ScheduleError::ZeroPeriod)
        } else {
            ready!(self.sleep.poll_with(context.waker()))
        };
        self.is_over = woken.is_err();
        Poll::Ready(woken.map(|()| {
            let due = self.sleep.deadline();
            let period = Period::fixed_rate(self.period).missed(self.missed);
            self.sleep.reset(period.next_run(due, self.sleep.scheduler().now()));
            due
        }))
    }

    /// Starts again: the next tick is one period from now.
    pub fn reset(&mut self) {
        self.reset_after(self.period);
    }

    /// Starts again: the next tick is now.
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// Starts again: the next tick is `duration` from now.
    pub fn reset_after(&mut self, duration: Duration) {
        self.reset_at(after(self.sleep.scheduler().now(), duration));
    }

    /// Starts again: the next tick is at `instant`.
    pub fn reset_at(&mut self, instant: Instant) {
        self.sleep.reset(instant);
    }
}

#[cfg(feature = "futures-core")]
impl Interval {
    /// Returns true if the last tick was an error.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
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

/// An interval as a stream of the instants at which ticks were due. An error is the last item.
///
/// ```
/// use futures_util::StreamExt;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// let beats = scheduler.interval(Duration::from_millis(1)).take(3);
/// assert_eq!(beats.count().await, 3);
/// # });
/// ```
#[cfg(feature = "futures-core")]
impl futures_core::Stream for Interval {
    type Item = Result<Instant, ScheduleError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        this.poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over { (0, Some(0)) } else { (1, None) }
    }
}
