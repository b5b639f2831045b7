//! The ways in: once, and again and again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Scheduler;
use crate::engine::shared::{Shared, Times};
use crate::engine::slots::holder::Repetition;
use crate::engine::slots::{Content, Named, NamedAfter, OneShot, Series};
use crate::error::{ScheduleError, TryScheduleError};
use crate::executor::own_executor::OwnExecutor;
use crate::observe::trace::{self, InSpan, RunOnce};
use crate::scheduler::handle::Cancellable;
use crate::scheduler::leftovers::PendingTask;
use crate::time::repeat::{Period, Repeat};
use crate::wheel::entry::TaskKey;

/// Takes a task in; what is refused is dropped.
#[inline(never)]
fn admit_or_drop<T: Content>(
    shared: &Shared,
    times: Times,
    task: T,
    repetition: Repetition,
    own: Option<&Arc<OwnExecutor>>,
) -> Result<TaskKey, ScheduleError> {
    shared.admit(times, task, repetition, own).map_err(|(reason, _)| reason)
}

impl Scheduler {
    // ----- one-shot ------------------------------------------------------------------------

    /// Runs a task once, when `delay` has passed since this call: never before, and at most a tick
    /// after, plus what the system and the executor add.
    ///
    /// A delay of zero does not wait for a tick. A delay beyond the range of the clock is never:
    /// the task waits until it is cancelled or returned.
    ///
    /// A closure of up to 32 bytes is not allocated. A thread that schedules much faster than its tasks are filed or run
    /// may be held back in this call, for 100 ms at most: see [Under overload](crate#under-overload).
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`] and [`ScheduleError::Full`]; the task is dropped then. To get it
    /// back: [`try_schedule_once`](Scheduler::try_schedule_once).
    #[inline]
    pub fn schedule_once<F>(&self, delay: Duration, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.shared().after(delay);
        self.admit_once(times, task)
    }

    /// Runs a task once, at an instant; one that has passed is due now, without waiting for a tick.
    ///
    /// # Errors
    ///
    /// As [`schedule_once`](Scheduler::schedule_once).
    #[inline]
    pub fn schedule_at<F>(&self, instant: Instant, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.shared().at(instant);
        self.admit_once(times, task)
    }

    /// As [`schedule_once`](Scheduler::schedule_once), but gives the task back when it is not
    /// accepted.
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    pub fn try_schedule_once<F>(
        &self,
        delay: Duration,
        task: F,
    ) -> Result<Cancellable, TryScheduleError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.shared().after(delay);
        match trace::current_span() {
            None => self.try_admit(times, task),
            Some(span) => {
                let refused = self.try_admit(times, span.within(task));
                refused.map_err(|error| error.map(InSpan::into_task))
            }
        }
    }

    fn try_admit<S: RunOnce>(
        &self,
        times: Times,
        task: S,
    ) -> Result<Cancellable, TryScheduleError<S>> {
        let shared = self.shared();
        match shared.admit(times, OneShot(task), Repetition::NONE, self.own.as_ref()) {
            Ok(key) => Ok(Cancellable::new(key, shared.id())),
            Err((reason, OneShot(task))) => Err(TryScheduleError::new(reason, task)),
        }
    }

    /// Takes a one-shot in, within the span of the calling thread.
    #[inline]
    fn admit_once<S: RunOnce>(&self, times: Times, task: S) -> Result<Cancellable, ScheduleError> {
        match trace::current_span() {
            None => self.admit_or_drop(times, OneShot(task), Repetition::NONE),
            Some(span) => self.admit_or_drop(times, OneShot(span.within(task)), Repetition::NONE),
        }
    }

    /// Takes a task in. The handle is made here and not further in, so that it is built where it
    /// will lie.
    #[inline]
    fn admit_or_drop<T: Content>(
        &self,
        times: Times,
        task: T,
        repetition: Repetition,
    ) -> Result<Cancellable, ScheduleError> {
        let key = admit_or_drop(self.shared(), times, task, repetition, self.own.as_ref())?;
        Ok(Cancellable::new(key, self.shared().id()))
    }

    // ----- repeating -----------------------------------------------------------------------

    /// Runs a task at a fixed rate: run `k` is due at `initial + k * period` after this call,
    /// however late the runs before it were. Missed runs are caught up with, one by one.
    ///
    /// The task is an `FnMut`, so it keeps its state from run to run; runs never overlap. It
    /// returns `()`, or a [`ControlFlow`](std::ops::ControlFlow) of which `Break` ends the series. A
    /// panic ends it too.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::ZeroPeriod`], and as [`schedule_once`](Scheduler::schedule_once).
    pub fn schedule_repeatedly<R, F>(
        &self,
        initial: Duration,
        period: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_rate(period), task)
    }

    /// Runs a task again and again, each time `delay` after the end of the run before.
    ///
    /// # Errors
    ///
    /// As [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_with_fixed_delay<R, F>(
        &self,
        initial: Duration,
        delay: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_delay(delay), task)
    }

    /// Runs a task again and again, as the [`Period`] says.
    ///
    /// A period of more than 584 years is taken for that.
    ///
    /// # Errors
    ///
    /// As [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_periodic<R, F>(
        &self,
        initial: Duration,
        period: Period,
        mut task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        if period.duration().is_zero() {
            return Err(ScheduleError::ZeroPeriod);
        }
        let repetition = Repetition { kind: period.kind(), period: period.nanos() };
        let series = NamedAfter::<F, _>::new(move || trace::in_a_root_span(|| task().flow()));
        self.admit_or_drop(self.shared().after(initial), Series(series), repetition)
    }

    // ----- boxes that know what they were made of (S31) ------------------------------------

    pub(crate) fn schedule_box(
        &self,
        name: &'static str,
        delay: Duration,
        task: Box<dyn FnOnce() + Send>,
    ) -> Result<Cancellable, ScheduleError> {
        let times = self.shared().after(delay);
        self.admit_once(times, Named { name, task })
    }

    /// Like [`schedule_at`](Scheduler::schedule_at), for a closure that was made of another one: it goes by the name of
    /// that, so that a panic, or a leftover, tells where the user wrote it.
    ///
    /// ```
    /// use std::any::type_name_of_val;
    /// use tickwheel::Scheduler;
    ///
    /// fn report() {}
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let name = type_name_of_val(&report);
    /// let counted = move || { /* ... count it ... */ report() };
    /// scheduler.schedule_at_named(name, scheduler.now(), counted)?;
    /// let leftovers: Vec<_> = driver.close().into_iter().collect();
    /// assert_eq!(leftovers[0].name(), name);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`schedule_once`](Scheduler::schedule_once).
    pub fn schedule_at_named<F>(
        &self,
        name: &'static str,
        instant: Instant,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.shared().at(instant);
        self.admit_once(times, Named { name, task })
    }

    pub(crate) fn schedule_boxed_series(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        mut task: Box<dyn FnMut() -> ControlFlow<()> + Send>,
    ) -> Result<Cancellable, ScheduleError> {
        if period.duration().is_zero() {
            return Err(ScheduleError::ZeroPeriod);
        }
        let repetition = Repetition { kind: period.kind(), period: period.nanos() };
        let task = move || trace::in_a_root_span(&mut task);
        let series = Series(Named { name, task });
        self.admit_or_drop(self.shared().after(initial), series, repetition)
    }
}

impl PendingTask {
    /// Moves it to another scheduler: the remaining delay and the repetition carry on there, on the
    /// executor of that handle. It stays the same task, so all of its handles go on working, and are equal to the one that
    /// this returns.
    ///
    /// A series that is still in a run moves when that run has ended. If the other scheduler has been closed by then, the
    /// series is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (first, second) = (Scheduler::new(), Scheduler::new());
    /// let reminder = first.schedule_once(Duration::from_secs(60), || println!("a minute"))?;
    /// for task in first.close()? {
    ///     assert_eq!(task.reschedule(&second)?, reminder);
    /// }
    /// assert!(!reminder.is_done() && second.pending() == 1);
    /// assert!(reminder.cancel() && second.pending() == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Scheduler::schedule_once`]. The task is dropped then; to get it back:
    /// [`try_reschedule`](PendingTask::try_reschedule).
    pub fn reschedule(self, scheduler: &Scheduler) -> Result<Cancellable, ScheduleError> {
        Ok(self.try_reschedule(scheduler)?)
    }

    /// Like [`reschedule`](PendingTask::reschedule), but gives the task back if the other scheduler refuses it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{ScheduleError, Scheduler};
    ///
    /// let (first, second) = (Scheduler::new(), Scheduler::new());
    /// first.schedule_once(Duration::from_secs(60), || println!("a minute later"))?;
    /// second.close()?;
    /// for task in first.close()? {
    ///     let refused = task.try_reschedule(&second).expect_err("it is closed");
    ///     assert_eq!(refused.reason(), ScheduleError::Closed);
    ///     refused.into_task().run();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    pub fn try_reschedule(
        self,
        to: &Scheduler,
    ) -> Result<Cancellable, TryScheduleError<PendingTask>> {
        let moved = self.move_to(to.shared(), to.own.as_ref());
        moved.map_err(|(reason, task)| TryScheduleError::new(reason, task))
    }
}
