//! Repetition: when the next run is due.
//!
//! Akka keeps the planned time of each run beside the task, and subtracts the drift from the next delay. On an absolute
//! timeline that is one addition (S12). The rest of this file is about runs that were missed (S13).

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::clock::tick::{Moment, nanos};
use crate::clock::timeline::after;

/// How a task repeats.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{MissedTicks, Period, Scheduler};
///
/// let scheduler = Scheduler::new();
/// let every_second = Period::fixed_rate(Duration::from_secs(1)).missed(MissedTicks::Skip);
/// scheduler.schedule_periodic(Duration::ZERO, every_second, || println!("tick"))?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a period does nothing until a task is scheduled with it"]
pub struct Period {
    duration: Duration,
    pub(crate) kind: Kind,
}

/// What a fixed rate does about missed runs.
///
/// A run is missed if it was due, by a tick or more, before the run ahead of it ended. Either that run took long, or the
/// scheduler was held up.
///
/// With a period of 10 ms and a run that takes 34 ms:
///
/// ```text
///   due      0    10   20   30   40   50   60   70
///   Burst    [=================]= = = =    =    =      all runs, as fast as possible
///   Skip     [=================]     =    =    =       the phase stays, missed runs are left out
///   Delay    [=================]         =    =    =   a new phase: a period from the end
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissedTicks {
    /// Makes up for all missed runs, one by one and without a pause.
    #[default]
    Burst,
    /// Leaves out missed runs, and goes on at the next due time of the old phase.
    Skip,
    /// Starts a new phase: the next run is due a period after the end of the late one.
    Delay,
}

impl Period {
    /// Returns a period whose run `k` is due at `start + initial + k * period`, however long the runs take.
    /// [`missed`](Period::missed) chooses what happens if they take longer than the period.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{MissedTicks, Period};
    ///
    /// const BEAT: Period = Period::fixed_rate(Duration::from_secs(1)).missed(MissedTicks::Skip);
    /// assert_eq!(BEAT.duration(), Duration::from_secs(1));
    /// ```
    pub const fn fixed_rate(period: Duration) -> Period {
        Period { duration: period, kind: Kind::RateBurst }
    }

    /// Returns a period whose runs are each due `gap` after the end of the run before.
    pub const fn fixed_delay(gap: Duration) -> Period {
        Period { duration: gap, kind: Kind::Gap }
    }

    /// Chooses what to do about missed runs. It has no effect on a fixed delay, which misses none.
    pub const fn missed(self, missed: MissedTicks) -> Period {
        let kind = match (self.kind, missed) {
            (Kind::Gap, _) => Kind::Gap,
            (_, MissedTicks::Burst) => Kind::RateBurst,
            (_, MissedTicks::Skip) => Kind::RateSkip,
            (_, MissedTicks::Delay) => Kind::RateDelay,
        };
        Period { duration: self.duration, kind }
    }

    /// Of a series that chooses each of its delays. Without a choice it would be over: it is never due again.
    pub(crate) const CHOSEN: Period = Period::fixed_delay(Duration::MAX);

    /// Returns the period, or the gap.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// Returns when the next run is due, after a run that was planned for `planned` and ended at `ended`. It knows
    /// no tick: each run that was due before is missed. It is for a [`Schedule`](crate::Schedule) of your own that
    /// keeps time itself.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::{MissedTicks, Period};
    ///
    /// let (planned, ms) = (Instant::now(), Duration::from_millis(1));
    /// let rate = Period::fixed_rate(10 * ms);
    /// assert_eq!(rate.next_run(planned, planned + 34 * ms), planned + 10 * ms);
    /// assert_eq!(rate.missed(MissedTicks::Skip).next_run(planned, planned + 34 * ms), planned + 40 * ms);
    /// ```
    pub fn next_run(&self, planned: Instant, ended: Instant) -> Instant {
        let took = ended.saturating_duration_since(planned);
        let ahead = match self.kind {
            Kind::Gap => took.saturating_add(self.duration), // also beyond the nanoseconds of a `u64` (S4)
            kind => {
                // A period of zero, which no scheduler takes, is one of a nanosecond here.
                let period = self.nanos().max(1);
                Duration::from_nanos(next_run(kind, period, Moment(0), Moment(nanos(took)), 1).0)
            }
        };
        after(planned, ahead)
    }

    pub(crate) fn nanos(&self) -> u64 {
        nanos(self.duration)
    }
}

/// Converts a duration into a fixed rate of one run per `period`, as [`Period::fixed_rate`] does.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Period;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(Period::from(second), Period::fixed_rate(second));
/// ```
impl From<Duration> for Period {
    fn from(period: Duration) -> Period {
        Period::fixed_rate(period)
    }
}

/// A value that the closure of a repeating task may return: `()` to go on for ever, a [`ControlFlow`], whose `Break`
/// ends the series, or an `Option<Duration>`, which chooses the next delay.
///
/// After `Some(delay)` the next run is due `delay` after the end of this one. `None` ends the series. A period that was
/// passed is not used, and must only not be zero. [`schedule_self_paced`](crate::Scheduler::schedule_self_paced) takes
/// none. If the next run was [reset](crate::Cancellable::reset) during this one, the reset counts. Retries with growing
/// gaps:
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let (second, start) = (Duration::from_secs(1), scheduler.now());
/// let (mut gap, clock) = (second, scheduler.clone());
/// let request = move || (clock.now() - start >= 60 * second).then_some("an answer");
/// let retries = scheduler.schedule_self_paced(Duration::ZERO, move || {
///     if request().is_some() {
///         return None;
///     }
///     let next = gap;
///     gap = (2 * gap).min(30 * second);
///     Some(next)
/// })?;
/// // At 0, 1, 3, 7, 15, 31 and 61 seconds:
/// assert_eq!(driver.advance(120 * second), 7);
/// assert!(retries.is_done());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The trait is sealed. It is not implemented for `bool`, which does not say which of its values would end the series:
///
/// ```compile_fail,E0277
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// tickwheel::Scheduler::new().schedule_repeatedly(second, second, || true)?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let second = Duration::from_secs(1);
/// let mut left = 3;
/// let countdown = scheduler.schedule_repeatedly(second, second, move || {
///     left -= 1;
///     if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
/// })?;
/// assert_eq!(driver.advance(Duration::from_secs(60)), 3);
/// assert!(countdown.is_done());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// `compile_fail` cannot check the message, which is: "a repeating task cannot return `bool`".
#[diagnostic::on_unimplemented(
    message = "a repeating task cannot return `{Self}`",
    label = "its closure must return `()`, `ControlFlow<()>` or `Option<Duration>`",
    note = "return `()` to go on for ever; to end the series, return `std::ops::ControlFlow::Break(())`, and \
            `ControlFlow::Continue(())` until then; to choose the next delay, return `Some(delay)`, and `None` to end",
    note = "a closure that ends in an expression returns its value: a `;` behind it makes that `()`"
)]
pub trait Repeat: sealed::Sealed {
    /// Returns `Continue` to go on, and `Break` to end the series. It is for a closure that goes into the box of a
    /// [`RepeatingTask`](crate::RepeatingTask): a delay that was chosen waits in the thread for [`choose`](Repeat::choose).
    /// What a box has chosen that the closure has called itself is not the closure's own, and is dropped.
    fn flow(self) -> ControlFlow<()>
    where
        Self: Sized,
    {
        let choice = self.choice();
        CHOSEN.set(choice.continue_value().flatten());
        choice.map_continue(|_| ())
    }

    /// Runs a closure once, and returns the delay that it has chosen, if it goes on and has chosen one. It is for a
    /// [`Schedule`](crate::Schedule) of your own that calls the boxes of series itself.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::{Duration, Instant};
    /// use tickwheel::{Period, Repeat, RepeatingTask};
    ///
    /// /// Runs a task that was due at `due`, and returns when it is due again.
    /// fn run(task: &mut RepeatingTask, period: Period, due: Instant) -> Option<Instant> {
    ///     let flow = Repeat::choose(task);
    ///     let ended = Instant::now();
    ///     match flow {
    ///         ControlFlow::Continue(None) => Some(period.next_run(due, ended)),
    ///         ControlFlow::Continue(Some(delay)) => Some(ended + delay),
    ///         ControlFlow::Break(()) => None,
    ///     }
    /// }
    /// # let second = Duration::from_secs(1);
    /// # let (period, due) = (Period::fixed_rate(second), Instant::now());
    /// # assert_eq!(run(&mut (Box::new(|| ().flow()) as RepeatingTask), period, due), Some(due + second));
    /// # assert!(run(&mut (Box::new(move || Some(2 * second).flow()) as RepeatingTask), period, due) >= Some(due + 2 * second));
    /// # assert_eq!(run(&mut (Box::new(|| None.flow()) as RepeatingTask), period, due), None);
    /// ```
    fn choose(run: impl FnOnce() -> Self) -> ControlFlow<(), Option<Duration>>
    where
        Self: Sized,
    {
        run().choice()
    }
}

thread_local! {
    /// The delay that a closure has chosen on this thread, on its way to the caller. A boxed series returns
    /// only a [`ControlFlow`], so the delay takes this way around it.
    static CHOSEN: Cell<Option<Duration>> = const { Cell::new(None) };
}

impl Repeat for () {}

impl Repeat for Option<Duration> {}

impl Repeat for ControlFlow<()> {
    #[inline]
    fn choose(run: impl FnOnce() -> Self) -> ControlFlow<(), Option<Duration>> {
        CHOSEN.set(None); // a delay that a run outside of a series has left
        run().map_continue(|()| CHOSEN.take())
    }
}

/// What the closure of a boxed series has returned, with the delay that it has chosen. If a closure that is in no box calls
/// one, the delay of the box is not its own.
pub(crate) struct Choice(ControlFlow<(), Option<Duration>>);

impl Repeat for Choice {}

/// Returns a closure that calls a boxed one.
pub(crate) fn unboxed(
    mut boxed: impl FnMut() -> ControlFlow<()> + Send + 'static,
) -> impl FnMut() -> Choice + Send + 'static {
    move || Choice(ControlFlow::choose(&mut boxed))
}

mod sealed {
    use std::ops::ControlFlow;
    use std::time::Duration;

    pub trait Sealed {
        /// Returns what a closure has said by its own value, whatever closures it has called.
        fn choice(self) -> ControlFlow<(), Option<Duration>>;
    }

    impl Sealed for () {
        fn choice(self) -> ControlFlow<(), Option<Duration>> {
            ControlFlow::Continue(None)
        }
    }

    impl Sealed for ControlFlow<()> {
        fn choice(self) -> ControlFlow<(), Option<Duration>> {
            self.map_continue(|()| None)
        }
    }

    impl Sealed for Option<Duration> {
        fn choice(self) -> ControlFlow<(), Option<Duration>> {
            self.map_or(ControlFlow::Break(()), |delay| ControlFlow::Continue(Some(delay)))
        }
    }

    impl Sealed for super::Choice {
        fn choice(self) -> ControlFlow<(), Option<Duration>> {
            self.0
        }
    }
}

/// How a task repeats, as it is stored in the word of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// It does not repeat.
    Once,
    /// At a fixed rate, with [`MissedTicks::Burst`].
    RateBurst,
    /// At a fixed rate, with [`MissedTicks::Skip`].
    RateSkip,
    /// At a fixed rate, with [`MissedTicks::Delay`].
    RateDelay,
    /// With a fixed gap from the end of a run to the next.
    Gap,
}

/// Returns when the next run is due, after a run that was planned for `planned` and ended at `ended`. `period` and `tick`
/// are in nanoseconds.
pub(crate) fn next_run(
    kind: Kind,
    period: u64,
    planned: Moment,
    ended: Moment,
    tick: u64,
) -> Moment {
    // From the planned time and not from the end of the run, so a rate does not drift.
    let next = planned.after_nanos(period);
    // A run that is late by less than a tick could not have been earlier.
    let missed = ended.0.saturating_sub(next.0) >= tick && ended > next;
    match kind {
        Kind::Gap => ended.after_nanos(period),
        Kind::RateSkip if missed => {
            // The first due time that is less than a tick ago (S13).
            let overdue = ended.0 - tick - planned.0;
            planned.after_nanos((overdue / period + 1).saturating_mul(period))
        }
        Kind::RateDelay if missed => ended.after_nanos(period),
        Kind::Once | Kind::RateBurst | Kind::RateSkip | Kind::RateDelay => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 1;

    fn next(kind: Kind, planned: u64, ended: u64) -> u64 {
        next_run(kind, 10, Moment(planned), Moment(ended), TICK).0
    }

    #[test]
    fn s15_a_period_of_zero_is_one_of_a_nanosecond() {
        let (planned, missed) = (Instant::now(), Duration::from_millis(1));
        for rule in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let next =
                Period::fixed_rate(Duration::ZERO).missed(rule).next_run(planned, planned + missed);
            let nano = Duration::from_nanos(1);
            let expected = if rule == MissedTicks::Burst { nano } else { missed };
            assert!((expected..=expected + nano).contains(&(next - planned)), "{rule:?}");
        }
    }

    #[test]
    fn s12_a_fixed_rate_counts_from_the_plan() {
        for kind in [Kind::RateBurst, Kind::RateSkip, Kind::RateDelay] {
            assert_eq!(next(kind, 100, 100), 110);
            assert_eq!(next(kind, 100, 107), 110, "late, but nothing was missed");
            assert_eq!(next(kind, 100, 110), 110, "due this moment is not missed");
        }
    }

    #[test]
    fn s13_missed_runs_are_caught_up_skipped_or_start_a_new_phase() {
        assert_eq!(next(Kind::RateBurst, 100, 134), 110);
        assert_eq!(next(Kind::RateSkip, 100, 134), 140);
        assert_eq!(next(Kind::RateSkip, 100, 130), 130, "130 itself is not missed by a tick");
        assert_eq!(next(Kind::RateSkip, 100, 131), 140);
        assert_eq!(next(Kind::RateDelay, 100, 134), 144);
        assert_eq!(next(Kind::RateDelay, 100, 111), 121);
    }

    #[test]
    fn a_gap_counts_from_the_end() {
        assert_eq!(next(Kind::Gap, 100, 134), 144);
        assert_eq!(next(Kind::Gap, 100, 100), 110);
    }

    #[test]
    fn s04_the_end_of_time_is_never() {
        for kind in [Kind::RateBurst, Kind::RateSkip, Kind::RateDelay, Kind::Gap] {
            let next = next_run(kind, u64::MAX, Moment(5), Moment(5), TICK);
            assert_eq!(next, Moment::NEVER);
        }
    }
}
