//! The trait over everything that decides *when*, for code that works with any of them.
//!
//! [`Schedule`] is object safe, so its methods take boxes. [`ScheduleExt`] takes closures, and decides for each call:
//!
//! ```text
//!   ScheduleExt::schedule_once(closure)
//!       |  Schedule::unboxed
//!       |-- it is a `Scheduler`, behind any number of pointers --> Scheduler::schedule_once(closure)
//!       '-- it is anything else ---------------------------------> schedule_task_named(type name, boxed closure)
//! ```
//!
//! - TRAIT-1 A call through the trait costs a `Scheduler` no more allocations than the inherent method. Method resolution
//!   alone cannot see to that: on an `Arc<Scheduler>` the trait's method is found before `Scheduler`'s own.
//! - TRAIT-2 A box carries the type name of the closure that was boxed, because a box has no telling name of its own (S31).

use std::any::type_name;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use crate::scheduler::handle::Cancellable;
use crate::time::repeat::{Period, Repeat};

/// A boxed one-shot task: what [`Schedule::schedule_task`] takes.
pub type Task = Box<dyn FnOnce() + Send>;

/// A boxed repeating task: what [`Schedule::schedule_series`] takes. `Break` ends the series.
pub type RepeatingTask = Box<dyn FnMut() -> ControlFlow<()> + Send>;

/// Anything that keeps time and runs tasks.
///
/// The trait is object safe, so code can be written over `Arc<dyn Schedule>`. Its methods take boxes; call them
/// through [`ScheduleExt`], which takes closures. A `&S`, `Box<S>` and `Arc<S>` of every `S: Schedule + ?Sized` is a
/// `Schedule` too.
///
/// # Contract
///
/// No task starts early; a delay of zero does not run on the caller's stack unless the scheduler
/// says so; a zero period is [`ScheduleError::ZeroPeriod`]; a scheduler that was stopped says
/// [`ScheduleError::Closed`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tickwheel::{Cancellable, Schedule, ScheduleError, ScheduleExt, Scheduler};
///
/// struct Session {
///     timers: Arc<dyn Schedule>,
/// }
///
/// impl Session {
///     fn remind(&self) -> Result<Cancellable, ScheduleError> {
///         self.timers.schedule_once(Duration::from_secs(60), || println!("still there?"))
///     }
/// }
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let session = Session { timers: Arc::new(scheduler) };
/// session.remind()?;
/// assert_eq!(driver.advance(Duration::from_secs(60)), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Schedule: Send + Sync {
    /// Returns the present time, on the clock that this schedule keeps.
    fn now(&self) -> Instant;

    /// Runs a task once, when `delay` has passed.
    ///
    /// # Errors
    ///
    /// When it is not accepted; the task is dropped then.
    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError>;

    /// Runs a task once, at an instant.
    ///
    /// # Errors
    ///
    /// When it is not accepted; the task is dropped then.
    fn schedule_task_at(&self, deadline: Instant, task: Task)
    -> Result<Cancellable, ScheduleError>;

    /// Runs a task again and again, until it breaks.
    ///
    /// # Errors
    ///
    /// When it is not accepted; the task is dropped then.
    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError>;

    /// Like [`schedule_task`](Schedule::schedule_task), for a task that is known by a name: most often the type name
    /// of the closure in the box.
    ///
    /// The provided method ignores the name. A schedule that tells names, for instance in a report of a panic,
    /// overrides it.
    ///
    /// ```
    /// use std::any::type_name_of_val;
    /// use std::time::Duration;
    /// use tickwheel::{Cancellable, Schedule, ScheduleError};
    ///
    /// /// Boxes the closure itself, and keeps its name.
    /// fn remind(timers: &dyn Schedule) -> Result<Cancellable, ScheduleError> {
    ///     let task = || println!("still there?");
    ///     timers.schedule_task_named(type_name_of_val(&task), Duration::from_secs(60), Box::new(task))
    /// }
    /// # remind(&tickwheel::Scheduler::new())?;
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`schedule_task`](Schedule::schedule_task).
    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        let _ = name;
        self.schedule_task(delay, task)
    }

    /// Like [`schedule_task_at`](Schedule::schedule_task_at), for a task that is known by a name.
    ///
    /// # Errors
    ///
    /// As [`schedule_task_at`](Schedule::schedule_task_at).
    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        let _ = name;
        self.schedule_task_at(deadline, task)
    }

    /// Like [`schedule_series`](Schedule::schedule_series), for a task that is known by a name.
    ///
    /// # Errors
    ///
    /// As [`schedule_series`](Schedule::schedule_series).
    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        let _ = name;
        self.schedule_series(initial, period, task)
    }

    /// The scheduler that takes closures as they are, if this is one; TRAIT-1. Only this crate can make an [`Unboxed`], so a
    /// wrapper from outside is never passed by.
    #[doc(hidden)]
    fn unboxed(&self) -> Option<Unboxed<'_>> {
        None
    }
}

/// So that a struct that holds an `Arc<dyn Schedule>` can derive `Debug`.
impl fmt::Debug for dyn Schedule + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").finish_non_exhaustive()
    }
}

/// A [`Scheduler`] that was found behind a [`Schedule`].
#[derive(Debug)]
pub struct Unboxed<'a>(&'a Scheduler);

impl Schedule for Scheduler {
    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.schedule_once(delay, task)
    }

    fn schedule_task_at(
        &self,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_at(deadline, task)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_periodic(initial, period, task)
    }

    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_box(name, delay, task)
    }

    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_at_named(name, deadline, task)
    }

    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_boxed_series(name, initial, period, task)
    }

    fn unboxed(&self) -> Option<Unboxed<'_>> {
        Some(Unboxed(self))
    }
}

/// A pointer to a schedule is one: every method of the target, and none of the provided ones.
macro_rules! schedule_behind {
    ($($pointer:ty),*) => {$(
        impl<S: Schedule + ?Sized> Schedule for $pointer {
            fn now(&self) -> Instant {
                (**self).now()
            }

            fn schedule_task(
                &self,
                delay: Duration,
                task: Task,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_task(delay, task)
            }

            fn schedule_task_at(
                &self,
                deadline: Instant,
                task: Task,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_task_at(deadline, task)
            }

            fn schedule_series(
                &self,
                initial: Duration,
                period: Period,
                task: RepeatingTask,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_series(initial, period, task)
            }

            fn schedule_task_named(
                &self,
                name: &'static str,
                delay: Duration,
                task: Task,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_task_named(name, delay, task)
            }

            fn schedule_task_at_named(
                &self,
                name: &'static str,
                deadline: Instant,
                task: Task,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_task_at_named(name, deadline, task)
            }

            fn schedule_series_named(
                &self,
                name: &'static str,
                initial: Duration,
                period: Period,
                task: RepeatingTask,
            ) -> Result<Cancellable, ScheduleError> {
                (**self).schedule_series_named(name, initial, period, task)
            }

            fn unboxed(&self) -> Option<Unboxed<'_>> {
                (**self).unboxed()
            }
        }
    )*};
}

schedule_behind!(&S, Box<S>, Arc<S>);

/// [`Schedule`] with closures in place of boxes, for every `S: Schedule + ?Sized`.
///
/// # Which method a call means, and what it allocates
///
/// On a `Scheduler` or a `&Scheduler`, the inherent methods of the same names win over these. On an `Arc<Scheduler>`,
/// a `Box<Scheduler>` or a `&&Scheduler`, Rust finds the methods of this trait first, if the trait is in scope. Both do
/// the same: wherever a [`Scheduler`] is behind the pointers, also behind a `dyn Schedule`, the closure goes to it
/// as it is, and nothing is boxed. Every other schedule gets a box, which carries the type name of the closure.
///
/// A `Scheduler` is a handle and cheap to clone, so it needs no `Arc` around it.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tickwheel::{Period, Schedule, ScheduleExt, Scheduler};
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let timers: Arc<dyn Schedule> = Arc::new(scheduler);
/// let second = Duration::from_secs(1);
/// timers.schedule_once(second, || println!("once"))?;
/// timers.schedule_at(timers.now() + second, || println!("at"))?;
/// timers.schedule_repeatedly(second, second, || println!("every second"))?;
/// timers.schedule_with_fixed_delay(second, second, || println!("a second after the last"))?;
/// timers.schedule_periodic(second, Period::fixed_rate(second), || println!("as it says"))?;
/// assert_eq!(driver.advance(second), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ScheduleExt: Schedule {
    /// Runs a task once, when `delay` has passed.
    ///
    /// # Errors
    ///
    /// As [`Schedule::schedule_task`].
    fn schedule_once<F>(&self, delay: Duration, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.unboxed() {
            Some(Unboxed(scheduler)) => scheduler.schedule_once(delay, task),
            None => self.schedule_task_named(type_name::<F>(), delay, Box::new(task)),
        }
    }

    /// Runs a task once, at an instant; one that has passed is due now.
    ///
    /// # Errors
    ///
    /// As [`Schedule::schedule_task_at`].
    fn schedule_at<F>(&self, instant: Instant, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.unboxed() {
            Some(Unboxed(scheduler)) => scheduler.schedule_at(instant, task),
            None => self.schedule_task_at_named(type_name::<F>(), instant, Box::new(task)),
        }
    }

    /// Runs a task at a fixed rate, the first time when `initial` has passed; missed runs are caught up with, one by
    /// one. The same as [`schedule_periodic`](ScheduleExt::schedule_periodic) with [`Period::fixed_rate`].
    ///
    /// # Errors
    ///
    /// As [`Schedule::schedule_series`].
    fn schedule_repeatedly<R, F>(
        &self,
        initial: Duration,
        period: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        ScheduleExt::schedule_periodic(self, initial, Period::fixed_rate(period), task)
    }

    /// Runs a task again and again, each time `delay` after the end of the run before. The same as
    /// [`schedule_periodic`](ScheduleExt::schedule_periodic) with [`Period::fixed_delay`].
    ///
    /// # Errors
    ///
    /// As [`Schedule::schedule_series`].
    fn schedule_with_fixed_delay<R, F>(
        &self,
        initial: Duration,
        delay: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        ScheduleExt::schedule_periodic(self, initial, Period::fixed_delay(delay), task)
    }

    /// Runs a task again and again, as the [`Period`] says.
    ///
    /// # Errors
    ///
    /// As [`Schedule::schedule_series`].
    fn schedule_periodic<R, F>(
        &self,
        initial: Duration,
        period: Period,
        mut task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        if let Some(Unboxed(scheduler)) = self.unboxed() {
            return scheduler.schedule_periodic(initial, period, task);
        }
        let series = Box::new(move || task().flow());
        self.schedule_series_named(type_name::<F>(), initial, period, series)
    }
}

impl<S: Schedule + ?Sized> ScheduleExt for S {}
