//! The trait [`Schedule`], for code that works with any scheduler, pool, loop or worker.
//!
//! [`Schedule`] is object safe, so its methods take boxes. [`ScheduleExt`] takes closures, and chooses for each call:
//!
//! ```text
//!   ScheduleExt::schedule_once(closure)
//!       |  Schedule::as_scheduler
//!       |-- it is a `Scheduler`, behind any number of pointers --> Scheduler::schedule_once(closure)
//!       '-- it is anything else ---------------------------------> schedule_named(type name, a request with a box)
//! ```
//!
//! So a call through the trait on a `Scheduler` allocates no more than the inherent method. Method resolution alone does
//! not ensure that: on an `Arc<Scheduler>`, Rust finds the trait's method before `Scheduler`'s own.

use std::any::type_name;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::repeat::{Period, Repeat, unboxed};
use crate::engine::slots::{Named, Series};
use crate::error::ScheduleError;
use crate::platform::impls::impl_behind;
use crate::scheduler::Scheduler;
use crate::scheduler::handle::{Cancellable, Scheduled};

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
///
/// # A schedule of your own
///
/// Most own schedules add something to one of this crate. Such a one implements [`schedule_named`] as well, so that no name
/// is lost, and hands the boxes on, so that a series may [choose its delays](crate::Repeat):
///
/// ```
/// use std::any::type_name;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::{Duration, Instant};
/// use tickwheel::{Cancellable, Period, RepeatingTask, Request, Schedule, ScheduleError, ScheduleExt, Scheduler, Task};
///
/// /// Counts what it schedules.
/// struct Counted<S>(S, AtomicUsize);
///
/// impl<S: Schedule> Schedule for Counted<S> {
///     fn now(&self) -> Instant {
///         self.0.now()
///     }
///
///     fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
///         self.schedule_named(type_name::<Task>(), Request::After(delay, task))
///     }
///
///     fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
///         self.schedule_named(type_name::<Task>(), Request::At(at, task))
///     }
///
///     fn schedule_series(
///         &self, initial: Duration, period: Period, task: RepeatingTask,
///     ) -> Result<Cancellable, ScheduleError> {
///         self.schedule_named(type_name::<RepeatingTask>(), Request::Series(initial, period, task))
///     }
///
///     fn schedule_named(&self, name: &'static str, request: Request) -> Result<Cancellable, ScheduleError> {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.schedule_named(name, request)
///     }
/// }
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let timers = Counted(scheduler, AtomicUsize::new(0));
/// let (second, mut left) = (Duration::from_secs(1), 3);
/// timers.schedule_self_paced(second, move || {
///     left -= 1;
///     (left > 0).then_some(2 * second) // at 1, 3 and 5 seconds
/// })?;
/// assert_eq!((driver.advance(5 * second), timers.1.into_inner()), (3, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// One from scratch calls each box of a series through [`Repeat::choose`](crate::Repeat::choose), and asks
/// [`Period::next_run`] if the run has chosen no delay.
///
/// [`schedule_named`]: Schedule::schedule_named
pub trait Schedule: Send + Sync {
    /// Returns the present time, on the clock that this schedule keeps.
    fn now(&self) -> Instant;

    /// Runs a task once, when `delay` has passed.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_task(&self, delay: Duration, task: Task) -> Scheduled;

    /// Runs a task once, at an instant.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_task_at(&self, deadline: Instant, task: Task) -> Scheduled;

    /// Runs a task repeatedly, until it returns `Break`.
    ///
    /// A task may [choose its next delay](crate::Repeat). The box shows such a choice only to
    /// [`Repeat::choose`](crate::Repeat::choose). An implementation that calls the box directly goes by the period.
    ///
    /// # Errors
    ///
    /// Returns the reason if the task is not accepted. The task is dropped then.
    fn schedule_series(&self, initial: Duration, period: Period, task: RepeatingTask) -> Scheduled;

    /// Schedules a task with a name: usually the type name of the closure in the box.
    ///
    /// The default calls the method for the box, and ignores the name. An implementation that uses names, for instance in a
    /// report of a panic, or that passes them on, overrides this method.
    ///
    /// ```
    /// use std::any::type_name_of_val;
    /// use std::time::Duration;
    /// use tickwheel::{Cancellable, Request, Schedule, ScheduleError};
    ///
    /// /// Boxes the closure itself, and keeps its name.
    /// fn remind(timers: &dyn Schedule) -> Result<Cancellable, ScheduleError> {
    ///     let task = || println!("still there?");
    ///     let name = type_name_of_val(&task);
    ///     timers.schedule_named(name, Request::After(Duration::from_secs(60), Box::new(task)))
    /// }
    /// # remind(&tickwheel::Scheduler::new())?;
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the method for the box.
    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled {
        let _ = name;
        match request {
            Request::After(delay, task) => self.schedule_task(delay, task),
            Request::At(deadline, task) => self.schedule_task_at(deadline, task),
            Request::Series(initial, period, task) => self.schedule_series(initial, period, task),
        }
    }

    /// Returns the [`Scheduler`] that this is, also behind pointers. It takes closures without a box, so [`ScheduleExt`] gives
    /// them to it directly, past the other methods.
    ///
    /// By default there is none. An implementation of your own that returns one is passed by.
    fn as_scheduler(&self) -> Option<&Scheduler> {
        None
    }
}

/// A task, and when it is to run: the argument of [`Schedule::schedule_named`].
pub enum Request {
    /// The arguments of [`Schedule::schedule_task`].
    After(Duration, Task),
    /// The arguments of [`Schedule::schedule_task_at`].
    At(Instant, Task),
    /// The arguments of [`Schedule::schedule_series`].
    Series(Duration, Period, RepeatingTask),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, when): (_, &dyn fmt::Debug) = match self {
            Request::After(delay, _) => ("After", delay),
            Request::At(deadline, _) => ("At", deadline),
            Request::Series(_, period, _) => ("Series", period),
        };
        f.debug_tuple(name).field(when).finish_non_exhaustive()
    }
}

/// Writes the methods of [`Schedule`] that take a box without a name, in terms of `schedule_named`.
macro_rules! schedule_boxes_by_name {
    () => {
        fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
            self.schedule_named(std::any::type_name::<Task>(), Request::After(delay, task))
        }

        fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
            self.schedule_named(std::any::type_name::<Task>(), Request::At(at, task))
        }

        fn schedule_series(
            &self,
            initial: Duration,
            period: Period,
            task: RepeatingTask,
        ) -> Result<Cancellable, ScheduleError> {
            let name = std::any::type_name::<RepeatingTask>();
            self.schedule_named(name, Request::Series(initial, period, task))
        }
    };
}
pub(crate) use schedule_boxes_by_name;

/// With this, a struct that holds an `Arc<dyn Schedule>` can derive `Debug`.
impl fmt::Debug for dyn Schedule + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").finish_non_exhaustive()
    }
}

impl Schedule for Scheduler {
    schedule_boxes_by_name!();

    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled {
        match request {
            Request::After(delay, task) => {
                let times = self.shared().watch.after(delay);
                self.admit_or_drop(times, Named { name, task }, None)
            }
            Request::At(deadline, task) => self.schedule_at_named(name, deadline, task),
            Request::Series(initial, period, task) => {
                let times = self.shared().watch.after(initial);
                let task = Named { name, task: Series(unboxed(task)) };
                self.admit_or_drop(times, task, Some(period))
            }
        }
    }

    fn as_scheduler(&self) -> Option<&Scheduler> {
        Some(self)
    }
}

impl_behind!(S: Schedule for &S, Box<S>, Arc<S>; {
    fn now(&self) -> Instant;
    fn schedule_task(&self, delay: Duration, task: Task) -> Scheduled;
    fn schedule_task_at(&self, deadline: Instant, task: Task) -> Scheduled;
    fn schedule_series(&self, initial: Duration, period: Period, task: RepeatingTask) -> Scheduled;
    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled;
    fn as_scheduler(&self) -> Option<&Scheduler>;
});

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
    fn schedule_once<F>(&self, delay: Duration, task: F) -> Scheduled
    where
        F: FnOnce() + Send + 'static,
    {
        match self.as_scheduler() {
            // A scheduler takes the closure as it is, without a box.
            Some(scheduler) => scheduler.schedule_once(delay, task),
            // The name goes along, because the type name of a box tells nothing (S31).
            None => self.schedule_named(type_name::<F>(), Request::After(delay, Box::new(task))),
        }
    }

    /// Runs a task once, at an instant. If the instant has passed, the task is due at once.
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_task_at`].
    fn schedule_at<F>(&self, instant: Instant, task: F) -> Scheduled
    where
        F: FnOnce() + Send + 'static,
    {
        match self.as_scheduler() {
            Some(scheduler) => scheduler.schedule_at(instant, task),
            None => self.schedule_named(type_name::<F>(), Request::At(instant, Box::new(task))),
        }
    }

    /// Runs a task at a fixed rate, the first time when `initial` has passed. Missed runs are caught up, one by one. A
    /// task that returns an `Option<Duration>` chooses its next delay: see [`Repeat`]. This is
    /// [`schedule_periodic`](ScheduleExt::schedule_periodic) with [`Period::fixed_rate`].
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
    fn schedule_repeatedly<R, F>(&self, initial: Duration, period: Duration, task: F) -> Scheduled
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
    ) -> Scheduled
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        ScheduleExt::schedule_periodic(self, initial, Period::fixed_delay(delay), task)
    }

    /// Runs a task at its own pace, as [`Scheduler::schedule_self_paced`] does. On a schedule of your own that goes by the
    /// period alone, it runs once.
    ///
    /// # Errors
    ///
    /// The errors of [`Schedule::schedule_series`].
    fn schedule_self_paced<F>(&self, initial: Duration, task: F) -> Scheduled
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
    fn schedule_periodic<R, F>(&self, initial: Duration, period: Period, mut task: F) -> Scheduled
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        if let Some(scheduler) = self.as_scheduler() {
            return scheduler.schedule_periodic(initial, period, task);
        }
        // A delay that the closure chooses goes around the box, in a thread-local: see `Repeat`.
        let series = Box::new(move || task().flow());
        self.schedule_named(type_name::<F>(), Request::Series(initial, period, series))
    }
}

impl<S: Schedule + ?Sized> ScheduleExt for S {}
