//! The trait [`Schedule`], for code that works with any scheduler, pool, loop or worker.
//!
//! [`Schedule`] is object safe, so its methods take boxes. [`ScheduleExt`] takes closures, and chooses for each call:
//!
//! ```text
//!   ScheduleExt::schedule_once(closure)
//!       |  Schedule::unboxed
//!       |-- it is a `Scheduler`, behind any number of pointers --> Scheduler::schedule_once(closure)
//!       '-- it is anything else ---------------------------------> schedule_task_named(type name, boxed closure)
//! ```
//!
//! So a call through the trait on a `Scheduler` allocates no more than the inherent method. Method resolution alone does
//! not ensure that: on an `Arc<Scheduler>`, Rust finds the trait's method before `Scheduler`'s own.

use std::any::type_name;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::repeat::{Period, Repeat};
use crate::engine::slots::Named;
use crate::error::ScheduleError;
use crate::observe::trace;
use crate::platform::impls::call_target;
use crate::scheduler::Scheduler;
use crate::scheduler::handle::Cancellable;

/// A boxed one-shot task, the argument of [`Schedule::schedule_task`].
pub type Task = Box<dyn FnOnce() + Send>;

/// A boxed repeating task, the argument of [`Schedule::schedule_series`]. `Break` ends the series.
pub type RepeatingTask = Box<dyn FnMut() -> ControlFlow<()> + Send>;

/// Anything that runs tasks at a given time: a [`Scheduler`], a pool, a message loop or a worker.
///
/// The trait is object safe, so code can be written over `Arc<dyn Schedule>`. Its methods take boxes. To pass closures,
/// use [`ScheduleExt`]. A `&S`, `Box<S>` and `Arc<S>` of every `S: Schedule + ?Sized` is a `Schedule` too.
///
/// # Contract
///
/// - No task starts early.
/// - A task with a delay of zero does not run on the caller's stack, unless the implementation documents that it does.
/// - A period of zero is refused with [`ScheduleError::ZeroPeriod`].
/// - After the schedule was stopped, every task is refused with [`ScheduleError::Closed`].
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
#[expect(unused_variables, reason = "the defaults ignore names")]
pub trait Schedule: Send + Sync {
    /// Returns the present time, on the clock that this schedule keeps.
    fn now(&self) -> Instant;

    /// Runs a task once, when `delay` has passed.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError>;

    /// Runs a task once, at an instant.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_task_at(&self, deadline: Instant, task: Task)
    -> Result<Cancellable, ScheduleError>;

    /// Runs a task repeatedly, until it returns `Break`.
    ///
    /// Everything in this crate that schedules also follows a task that [chooses its next delay](crate::Repeat). The box
    /// does not show such a choice to an implementation of your own, unless it hands the box on to one of this crate. So
    /// an implementation from scratch goes by the period.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError>;

    /// Like [`schedule_task`](Schedule::schedule_task), for a task with a name: usually the type name of the closure in
    /// the box.
    ///
    /// The default ignores the name. An implementation that uses names, for instance in a report of a panic, overrides
    /// this method.
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
    /// The errors of [`schedule_task`](Schedule::schedule_task).
    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_task(delay, task)
    }

    /// Like [`schedule_task_at`](Schedule::schedule_task_at), for a task with a name.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_task_at`](Schedule::schedule_task_at).
    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_task_at(deadline, task)
    }

    /// Like [`schedule_series`](Schedule::schedule_series), for a task with a name.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule_series`](Schedule::schedule_series).
    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_series(initial, period, task)
    }

    /// Returns the scheduler that takes closures without a box, if this is one. Only this crate can make an
    /// [`Unboxed`], so the wrapper type of another crate is never bypassed.
    #[doc(hidden)]
    fn unboxed(&self) -> Option<Unboxed<'_>> {
        None
    }
}

/// With this, a struct that holds an `Arc<dyn Schedule>` can derive `Debug`.
impl fmt::Debug for dyn Schedule + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").finish_non_exhaustive()
    }
}

/// A [`Scheduler`] that was found behind a [`Schedule`].
#[derive(Debug)]
pub struct Unboxed<'a>(&'a Scheduler);

type Scheduled = Result<Cancellable, ScheduleError>;

impl Schedule for Scheduler {
    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Scheduled {
        self.schedule_once(delay, task)
    }

    fn schedule_task_at(&self, deadline: Instant, task: Task) -> Scheduled {
        self.schedule_at(deadline, task)
    }

    fn schedule_series(&self, initial: Duration, period: Period, task: RepeatingTask) -> Scheduled {
        self.schedule_periodic(initial, period, task)
    }

    fn schedule_task_named(&self, name: &'static str, delay: Duration, task: Task) -> Scheduled {
        self.admit_once(self.shared().watch.after(delay), Named { name, task })
    }

    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Scheduled {
        self.schedule_at_named(name, deadline, task)
    }

    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        mut task: RepeatingTask,
    ) -> Scheduled {
        let task = move || trace::in_a_root_span(&mut task);
        self.admit_series(initial, period, Named { name, task })
    }

    fn unboxed(&self) -> Option<Unboxed<'_>> {
        Some(Unboxed(self))
    }
}

/// Makes a pointer to a schedule a schedule.
macro_rules! schedule_behind {
    ($($pointer:ty),*) => {$(
        impl<S: Schedule + ?Sized> Schedule for $pointer {
            call_target! {
                fn now(&self) -> Instant;
                fn schedule_task(&self, delay: Duration, task: Task) -> Scheduled;
                fn schedule_task_at(&self, deadline: Instant, task: Task) -> Scheduled;
                fn schedule_series(
                    &self, initial: Duration, period: Period, task: RepeatingTask
                ) -> Scheduled;
                fn schedule_task_named(
                    &self, name: &'static str, delay: Duration, task: Task
                ) -> Scheduled;
                fn schedule_task_at_named(
                    &self, name: &'static str, deadline: Instant, task: Task
                ) -> Scheduled;
                fn schedule_series_named(
                    &self, name: &'static str, initial: Duration, period: Period, task: RepeatingTask
                ) -> Scheduled;
                fn unboxed(&self) -> Option<Unboxed<'_>>;
            }
        }
    )*};
}

schedule_behind!(&S, Box<S>, Arc<S>);

/// The methods of [`Schedule`] with closures instead of boxes, for every `S: Schedule + ?Sized`.
///
/// # Which method is called, and what it allocates
///
/// On a `Scheduler` or a `&Scheduler`, Rust calls the inherent methods of the same names. On an `Arc<Scheduler>`, a
/// `Box<Scheduler>` or a `&&Scheduler`, it calls the methods of this trait, if the trait is in scope. Both do the same:
/// if there is a [`Scheduler`] behind the pointers, also behind a `dyn Schedule`, it gets the closure without a box.
/// Every other schedule gets a box and the type name of the closure.
///
/// A `Scheduler` is a handle and cheap to clone, so it needs no `Arc` around it. Nor does a
/// [`ScheduledThreadPool`](crate::pool::ScheduledThreadPool), whose own `schedule_with_fixed_delay` returns a future. On an
/// `Arc` of it, Rust calls the method of this trait, which returns a [`Cancellable`]: clone the pool instead.
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
    /// The errors of [`Schedule::schedule_task`].
    fn schedule_once<F>(&self, delay: Duration, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.unboxed() {
            // A scheduler takes the closure as it is, without a box.
            Some(Unboxed(scheduler)) => scheduler.schedule_once(delay, task),
            // The name goes along, because the type name of a box tells nothing (S31).
            None => self.schedule_task_named(type_name::<F>(), delay, Box::new(task)),
        }
    }

    /// Runs a task once, at an instant. If the instant has passed, the task is due at once.
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_task_at`].
    fn schedule_at<F>(&self, instant: Instant, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.unboxed() {
            Some(Unboxed(scheduler)) => scheduler.schedule_at(instant, task),
            None => self.schedule_task_at_named(type_name::<F>(), instant, Box::new(task)),
        }
    }

    /// Runs a task at a fixed rate, the first time when `initial` has passed. Missed runs are caught up, one by one. A
    /// task that returns an `Option<Duration>` chooses its next delay: see [`Repeat`]. This is
    /// [`schedule_periodic`](ScheduleExt::schedule_periodic) with [`Period::fixed_rate`].
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
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

    /// Runs a task repeatedly, each time `delay` after the end of the run before. This is
    /// [`schedule_periodic`](ScheduleExt::schedule_periodic) with [`Period::fixed_delay`].
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
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

    /// Runs a task again and again at its own pace: see [`Scheduler::schedule_self_paced`]. This is
    /// [`schedule_periodic`](ScheduleExt::schedule_periodic) with a period that is never used, unless the schedule is one of
    /// your own that goes by the period alone: then the task runs once.
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
    fn schedule_self_paced<F>(
        &self,
        initial: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        F: FnMut() -> Option<Duration> + Send + 'static,
    {
        ScheduleExt::schedule_periodic(self, initial, Period::CHOSEN, task)
    }

    /// Runs a task repeatedly, with a [`Period`] that says when the next run is due and what happens to missed runs.
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
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
        // A delay that the closure chooses goes around the box, in a thread-local: see `Repeat`.
        let series = Box::new(move || task().flow());
        self.schedule_series_named(type_name::<F>(), initial, period, series)
    }
}

impl<S: Schedule + ?Sized> ScheduleExt for S {}
