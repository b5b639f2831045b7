//! A series of ticks to be awaited one by one: [`Interval`].

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant as StdInstant};

use super::sleep::soon_or_far;
use super::{Instant, Sleep};
use crate::Scheduler;
use crate::clock::tick::nanos;
use crate::platform::impls::impl_debug;
use crate::scheduler::in_force::TimeSource;

/// Ticks at a fixed rate, for one task that awaits them. Made by [`interval`](super::interval()) and
/// [`Scheduler::interval`].
///
/// Tick `k` is due at `start + k * period`, however late the ticks before were taken.
/// [`set_missed_tick_behavior`](Interval::set_missed_tick_behavior) says what happens to ticks that nobody took in time.
/// With the feature `futures-core`, an interval is also a `Stream`.
///
/// ```
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// let mut beat = time::interval(Duration::from_millis(2));
/// for _ in 0..3 {
///     beat.tick().await; // the first one comes at once
///     println!("beat");
/// }
/// # });
/// ```
#[must_use = "an interval does nothing unless `tick` is called and awaited"]
pub struct Interval {
    /// Until the next tick. In a box, because intervals are few, and move often.
    sleep: Box<Sleep>,
    period: Duration,
    behavior: MissedTickBehavior,
}

/// What an [`Interval`] does about missed ticks. A tick is missed if it is taken more than five milliseconds late.
///
/// ```text
///   due      0    10   20   30   40   50   60   70
///   Burst    [=================]= = = =    =    =      all ticks, as fast as they are taken
///   Delay    [=================]         =    =    =   a new phase: a period from the late one
///   Skip     [=================]     =    =    =       the phase stays, missed ticks are left out
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTickBehavior {
    /// Makes up for all missed ticks, one by one and without a pause.
    #[default]
    Burst,
    /// Starts a new phase: the next tick is due a period after the late one was taken.
    Delay,
    /// Leaves out missed ticks, and goes on in the old phase.
    Skip,
}

/// A tick that is taken later than this is missed.
const TOLERANCE: Duration = Duration::from_millis(5);

impl MissedTickBehavior {
    /// Returns the next tick after one that was due at `due`, and is taken now.
    fn next(
        self,
        due: StdInstant,
        now: impl FnOnce() -> StdInstant,
        period: Duration,
    ) -> StdInstant {
        if self == MissedTickBehavior::Burst {
            return soon_or_far(due, period); // without a reading of the clock
        }
        let now = now();
        let late = now.saturating_duration_since(due);
        if late <= TOLERANCE {
            return soon_or_far(due, period);
        }
        let skips = self == MissedTickBehavior::Skip;
        let into_period = if skips { nanos(late) % nanos(period) } else { 0 };
        soon_or_far(now, period.saturating_sub(Duration::from_nanos(into_period)))
    }
}

impl Scheduler {
    /// Returns an interval that ticks at once, and then every period: [`time::interval`](crate::time::interval()) on this
    /// scheduler.
    ///
    /// # Panics
    ///
    /// Panics if the period is zero.
    #[track_caller]
    pub fn interval(&self, period: Duration) -> Interval {
        Interval::new(TimeSource::of(self), None, period)
    }

    /// Returns an interval that ticks at `start`, and then every period: [`time::interval_at`](crate::time::interval_at)
    /// on this scheduler.
    ///
    /// # Panics
    ///
    /// Panics if the period is zero.
    #[track_caller]
    pub fn interval_at(&self, start: impl Into<Instant>, period: Duration) -> Interval {
        Interval::new(TimeSource::of(self), Some(start.into()), period)
    }
}

impl Interval {
    /// Returns an interval that begins at `start`, or now.
    #[track_caller]
    pub(super) fn new(source: TimeSource, start: Option<Instant>, period: Duration) -> Interval {
        assert!(!period.is_zero(), "the period is zero: give an interval a period above zero");
        let start = start.map_or_else(|| source.now(), Instant::into_std);
        let behavior = MissedTickBehavior::default();
        Interval { sleep: Box::new(Sleep::at(source, start)), period, behavior }
    }

    /// Waits for the next tick, and returns the instant at which it was due.
    ///
    /// The future may be dropped before it is ready. No tick is lost by that: the next call waits for the same one.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick, like [`tick`](Interval::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(self.sleep.poll_with(context.waker()));
        let due = self.sleep.deadline();
        let next = self.behavior.next(due.into_std(), || self.sleep.now(), self.period);
        self.sleep.move_to(next);
        Poll::Ready(due)
    }

    /// Starts again: the next tick is one period from now.
    pub fn reset(&mut self) {
        self.sleep.move_by(self.period);
    }

    /// Starts again: the next tick is now.
    pub fn reset_immediately(&mut self) {
        self.sleep.move_by(Duration::ZERO);
    }

    /// Starts again: the next tick is `duration` from now.
    pub fn reset_after(&mut self, duration: Duration) {
        self.sleep.move_by(duration);
    }

    /// Starts again: the next tick is at `deadline`.
    pub fn reset_at(&mut self, deadline: impl Into<Instant>) {
        self.sleep.move_to(deadline.into().into_std());
    }

    /// Returns what happens to missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.behavior
    }

    /// Sets what happens to missed ticks. By default, it is [`Burst`](MissedTickBehavior::Burst).
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.behavior = behavior;
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period
    }
}

impl_debug!(Interval, self,
    next: self.sleep.deadline(),
    period: self.period,
    missed_tick_behavior: self.behavior
);
