//! The trait over everything that decides *when*: for code that should not care which it is.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ScheduleError;
use crate::handle::Cancellable;
use crate::repeat::{Period, Repeat};

/// A boxed one-shot task.
pub type Task = Box<dyn FnOnce() + Send>;

/// A boxed repeating task.
pub type RepeatingTask = Box<dyn FnMut() -> ControlFlow<()> + Send>;

/// Anything that keeps time and runs tasks: object safe, so that code can be written over
/// `Arc<dyn Schedule>`. Call it through [`ScheduleExt`], which takes closures.
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
    /// The present, on its clock.
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
}

impl<S: Schedule + ?Sized> Schedule for Arc<S> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
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
}

/// [`Schedule`] with closures in place of boxes, for every `S: Schedule + ?Sized`.
///
/// The methods of [`Scheduler`](crate::Scheduler) of the same names win over these, and box
/// nothing.
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
        self.schedule_task(delay, Box::new(task))
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
        self.schedule_series(initial, period, Box::new(move || task().flow()))
    }
}

impl<S: Schedule + ?Sized> ScheduleExt for S {}
