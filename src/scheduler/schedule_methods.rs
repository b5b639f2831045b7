//! The methods of [`Scheduler`] that schedule a task: once, and again and again.
//!
//! Each of them computes the deadline first, wraps the closure in a [`Content`] (with its name or its span, if it has
//! one), and passes it to `Shared::admit`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Scheduler;
use super::handle::{Scheduled, TryScheduled};
use crate::clock::repeat::{Period, Repeat};
use crate::clock::tick::Times;
use crate::engine::shared::Shared;
use crate::engine::slots::{Content, InSpan, Named, Series};
use crate::error::{ScheduleError, TryScheduleError};
use crate::executor::numbered::NumberedExecutor;
use crate::observe::trace;
use crate::scheduler::handle::Cancellable;
use crate::wheel::entry::TaskKey;

/// What the methods make of a refused task that give it back.
fn give_back<T>(_: &Shared, reason: ScheduleError, task: T) -> TryScheduleError<T> {
    TryScheduleError::new(reason, task)
}

/// What the other methods make of it.
fn drop_refused<T>(shared: &Shared, reason: ScheduleError, refused: T) -> ScheduleError {
    shared.hooks.catch(|| drop(refused)); // its panic must not cost the caller the reason
    reason
}

/// Admits a task. Not inlined, so that callers do not each get a copy of `Shared::admit`. With the scheduler in place of its
/// parts, a schedule takes 11 instructions more.
#[inline(never)]
fn admit_out_of_line<T: Content, E>(
    shared: &Shared,
    times: Times,
    task: T,
    period: Option<Period>,
    own: Option<&Arc<NumberedExecutor>>,
    refuse: impl FnOnce(&Shared, ScheduleError, T) -> E,
) -> Result<TaskKey, E> {
    let admitted = shared.admit(times, task, period, own);
    admitted.map_err(|(reason, task)| refuse(shared, reason, task))
}

impl Scheduler {
    // ----- one-shot ------------------------------------------------------------------------

    /// Runs a task once, when `delay` has passed since this call: never earlier, and at most a tick later, plus the
    /// delays of the system and the executor.
    ///
    /// A delay of zero does not wait for a tick. If the delay is beyond the range of the clock, the task never runs. It
    /// waits until it is cancelled or returned.
    ///
    /// A closure of up to 32 bytes is stored without an allocation.
    ///
    /// A thread that schedules much faster than its tasks are filed or run may sleep in this call, for at most 100 ms: see
    /// [Under overload](crate#under-overload). Async code must not put its runtime's thread to sleep, so it awaits
    /// [`time::sleep`](crate::time::sleep()) in a task in place of scheduling a closure.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`] and [`ScheduleError::Full`]. The task is dropped then. To get it back, call
    /// [`try_schedule_once`](Scheduler::try_schedule_once).
    #[inline]
    pub fn schedule_once<F>(&self, delay: Duration, task: F) -> Scheduled
    where
        F: FnOnce() + Send + 'static,
    {
        self.admit_or_drop(self.shared().watch.after(delay), task, None)
    }

    /// Runs a task once, at an instant. If the instant has passed, the task is due at once, and does not wait for a
    /// tick.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_once`](Scheduler::schedule_once).
    #[inline]
    pub fn schedule_at<F>(&self, instant: Instant, task: F) -> Scheduled
    where
        F: FnOnce() + Send + 'static,
    {
        self.admit_or_drop(self.shared().watch.at(instant), task, None)
    }

    /// Like [`schedule_once`](Scheduler::schedule_once), but returns the task if it is not accepted.
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    pub fn try_schedule_once<F>(&self, delay: Duration, task: F) -> TryScheduled<F>
    where
        F: FnOnce() + Send + 'static,
    {
        self.admit(self.shared().watch.after(delay), task, None, give_back)
    }

    /// Like [`schedule_at`](Scheduler::schedule_at), but returns the task if it is not accepted.
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    ///
    /// ```
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// scheduler.close()?;
    /// let refused = scheduler.try_schedule_at(scheduler.now(), || println!("now, then")).unwrap_err();
    /// refused.into_task()();
    /// # Ok::<(), tickwheel::CloseError>(())
    /// ```
    pub fn try_schedule_at<F>(&self, instant: Instant, task: F) -> TryScheduled<F>
    where
        F: FnOnce() + Send + 'static,
    {
        self.admit(self.shared().watch.at(instant), task, None, give_back)
    }

    /// Admits a task. If it is refused, it is dropped.
    #[inline]
    pub(super) fn admit_or_drop<T: Content>(
        &self,
        times: Times,
        task: T,
        period: Option<Period>,
    ) -> Scheduled {
        self.admit(times, task, period, drop_refused)
    }

    /// Admits a task. If it is refused, `refuse` makes the error. The handle is made here, inlined into the caller, so that it
    /// is built in its final place.
    #[inline]
    fn admit<T: Content, E>(
        &self,
        times: Times,
        task: T,
        period: Option<Period>,
        refuse: impl FnOnce(&Shared, ScheduleError, T) -> E,
    ) -> Result<Cancellable, E> {
        let (shared, own) = (self.shared(), self.own.as_ref());
        if period.is_some_and(|period| period.duration().is_zero()) {
            return Err(refuse(shared, ScheduleError::ZeroPeriod, task));
        }
        // Only a one-shot that is scheduled inside a span runs in that span, which costs room in its holder.
        let span = if T::IS_SERIES { None } else { trace::current_span() };
        let key = match span {
            None => admit_out_of_line(shared, times, task, period, own, refuse)?,
            Some(span) => {
                let refuse = |shared: &Shared, reason, refused: InSpan<T>| {
                    // It is dropped in there, because that calls a subscriber, which is user code.
                    shared.hooks.catch(|| {
                        let _span = refused.span;
                    });
                    refuse(shared, reason, refused.task)
                };
                admit_out_of_line(shared, times, InSpan { span, task }, period, own, refuse)?
            }
        };
        Ok(Cancellable::new(key, shared.id))
    }

    // ----- repeating -----------------------------------------------------------------------

    /// Runs a task at a fixed rate: run `k`, counted from 0, is due at `initial + k * period` after this call, however
    /// late the runs before it were. Missed runs are caught up, one by one.
    ///
    /// The task is an `FnMut`, so it keeps its state from run to run. Runs never overlap. The task returns `()`, or a
    /// [`ControlFlow`](std::ops::ControlFlow), whose `Break` ends the series, or an `Option<Duration>`: then `Some(delay)`
    /// makes the next run due `delay` after the end of this one, and `None` ends the series: see [`Repeat`], and
    /// [`schedule_self_paced`](Scheduler::schedule_self_paced), which needs no period for that. A panic ends the series
    /// too.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::ZeroPeriod`], and the errors of [`schedule_once`](Scheduler::schedule_once).
    pub fn schedule_repeatedly<R, F>(
        &self,
        initial: Duration,
        period: Duration,
        task: F,
    ) -> Scheduled
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_rate(period), task)
    }

    /// Runs a task repeatedly, each time `delay` after the end of the run before.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_with_fixed_delay<R, F>(
        &self,
        initial: Duration,
        delay: Duration,
        task: F,
    ) -> Scheduled
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_delay(delay), task)
    }

    /// Runs a task when `initial` has passed, and then again and again at its own pace: `Some(delay)` makes the next run due
    /// `delay` after the end of this one, and `None` ends the series. With `Some(Duration::ZERO)` it runs again at once,
    /// after whatever else is due.
    ///
    /// The [`period`](crate::PendingTask::period) of such a leftover is the longest that there is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let mut gap = Duration::from_secs(1);
    /// let retries = scheduler.schedule_self_paced(Duration::ZERO, move || {
    ///     println!("try again");
    ///     gap *= 2;
    ///     (gap < Duration::from_secs(60)).then_some(gap)
    /// })?;
    /// assert_eq!(driver.advance(Duration::from_secs(100)), 6); // at 0, 2, 6, 14, 30 and 62 seconds
    /// assert!(retries.is_done());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_once`](Scheduler::schedule_once).
    pub fn schedule_self_paced<F>(&self, initial: Duration, task: F) -> Scheduled
    where
        F: FnMut() -> Option<Duration> + Send + 'static,
    {
        self.schedule_periodic(initial, Period::CHOSEN, task)
    }

    /// Runs a task repeatedly, with a [`Period`] that says when the next run is due and what happens to missed runs.
    ///
    /// A period of more than 584 years is shortened to that.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_periodic<R, F>(&self, initial: Duration, period: Period, task: F) -> Scheduled
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.admit_or_drop(self.shared().watch.after(initial), Series(task), Some(period))
    }

    /// Like [`schedule_periodic`](Scheduler::schedule_periodic), but returns the task if it is not accepted.
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Period, ScheduleError, Scheduler};
    ///
    /// let scheduler = Scheduler::new();
    /// let never = Period::fixed_rate(Duration::ZERO);
    /// let refused = scheduler.try_schedule_periodic(Duration::ZERO, never, || println!("beat")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::ZeroPeriod);
    /// let second = Period::fixed_rate(Duration::from_secs(1));
    /// scheduler.try_schedule_periodic(Duration::ZERO, second, refused.into_task())?;
    /// # Ok::<(), ScheduleError>(())
    /// ```
    pub fn try_schedule_periodic<R, F>(
        &self,
        initial: Duration,
        period: Period,
        task: F,
    ) -> TryScheduled<F>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        let times = self.shared().watch.after(initial);
        let back = |shared: &_, reason, Series(task)| give_back(shared, reason, task);
        self.admit(times, Series(task), Some(period), back)
    }

    // ----- with a name (S31) ---------------------------------------------------------------

    /// Like [`schedule_at`](Scheduler::schedule_at), for a closure that wraps a user's closure. The task has the name
    /// of the user's closure, so a panic report and a leftover tell where the user wrote it.
    pub(crate) fn schedule_at_named(
        &self,
        name: &'static str,
        instant: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Scheduled {
        self.admit_or_drop(self.shared().watch.at(instant), Named { name, task }, None)
    }
}
