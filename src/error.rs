//! The errors of the crate. Each message says what to do instead.

use std::io;
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;

/// The reason why a task was not accepted.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler};
///
/// let scheduler = Scheduler::new();
/// let refused = scheduler.schedule_repeatedly(Duration::ZERO, Duration::ZERO, || ());
/// assert_eq!(refused.unwrap_err(), ScheduleError::ZeroPeriod);
/// ```
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The scheduler, pool, loop or worker has been stopped, or is being stopped.
    #[error(
        "the scheduler, pool, loop or worker is closed: schedule before `close`, `stop`, `shutdown` or `dispose`, or build a new one"
    )]
    Closed,
    /// As many tasks are pending as the scheduler, pool, loop or worker may hold.
    #[error(
        "the scheduler, pool, loop or worker is full: wait until tasks have run, cancel some, or raise `max_pending` in its builder"
    )]
    Full,
    /// The period, or the gap, of a repeating task is zero.
    #[error(
        "the period is zero: give a period of at least one nanosecond, or schedule each run with `schedule_once`"
    )]
    ZeroPeriod,
    /// The calling thread has no message loop, which the reply of a task needs.
    #[error(
        "the calling thread has no message loop for the reply: call `MessageLoop::prepare` on it, or use `post`"
    )]
    NotBound,
    /// No thread could be started to run the task.
    #[error(
        "no thread could be started for the task: end some threads, or raise the system's limit of threads"
    )]
    NoThread,
}

/// The error of [`Driver::block_on`](crate::Driver::block_on): the future waits, and nothing on this thread will wake it. Perhaps its
/// sleeps are those of another scheduler, which a guard of [`enter`](crate::Scheduler::enter) has put in force.
///
/// ```
/// use tickwheel::Scheduler;
///
/// let (_scheduler, driver) = Scheduler::builder().build_driven()?;
/// let stalled = driver.block_on(std::future::pending::<()>()).unwrap_err();
/// assert_eq!(stalled.pending(), 0);
/// assert!(stalled.to_string().contains("no timer is pending"));
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}", self.text())]
pub struct Stalled {
    pub(crate) pending: usize,
    pub(crate) is_inside_a_task: bool,
}

impl Stalled {
    /// Returns how many tasks are pending that will never be due, or whose executor does not run them.
    pub fn pending(&self) -> usize {
        self.pending
    }

    fn text(&self) -> String {
        if self.is_inside_a_task {
            return "`block_on` was called inside of a task of the same driver, and would wait for itself: call it \
                    outside, or spawn the future on an executor of its own"
                .into();
        }
        let pending = match self.pending {
            0 => "no timer is pending".into(),
            n => format!("what is pending ({n}) is never due, or its executor does not run it"),
        };
        format!(
            "the future waits, and {pending}: look for a channel whose other end is kept but not used, a lock that \
             is held, or a sleep on another scheduler, as one made outside of the future or after the last handle of \
             this one has gone; if another thread is to wake it, call `block_on_patiently`"
        )
    }
}

/// Converts the error for a function that returns [`io::Result`]. The kinds are
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for [`ZeroPeriod`](ScheduleError::ZeroPeriod),
/// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) for [`Full`](ScheduleError::Full), and
/// [`Other`](io::ErrorKind::Other) for the rest. [`get_ref`](io::Error::get_ref) returns the `ScheduleError` itself.
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler};
///
/// fn beat(scheduler: &Scheduler, period: Duration) -> io::Result<()> {
///     scheduler.schedule_repeatedly(period, period, || ())?;
///     Ok(())
/// }
///
/// let error = beat(&Scheduler::new(), Duration::ZERO).unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
/// assert!(error.get_ref().is_some_and(|inner| inner.is::<ScheduleError>()));
/// ```
impl From<ScheduleError> for io::Error {
    fn from(error: ScheduleError) -> io::Error {
        let kind = match error {
            ScheduleError::ZeroPeriod => io::ErrorKind::InvalidInput,
            ScheduleError::Full => io::ErrorKind::QuotaExceeded,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// A task that was not accepted, and the reason.
///
/// [`Scheduler::try_schedule_once`](crate::Scheduler::try_schedule_once) and the `try_` methods of pools, loops and
/// workers return it. It never gives out a reference to the task. So it is `Sync` if the task is `Send`, and `?`
/// converts it into `Box<dyn Error + Send + Sync>`. The [`source`](std::error::Error::source) is the [`ScheduleError`], so
/// code that does not know the type of the task finds the reason there:
///
/// ```
/// use std::error::Error;
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler};
///
/// fn remind(scheduler: &Scheduler) -> Result<(), Box<dyn Error + Send + Sync>> {
///     scheduler.try_schedule_once(Duration::from_secs(1), || println!("still there?"))?;
///     Ok(())
/// }
///
/// let scheduler = Scheduler::new();
/// scheduler.close()?;
/// let error = remind(&scheduler).unwrap_err();
/// let reason = error.source().and_then(|reason| reason.downcast_ref());
/// assert_eq!(reason, Some(&ScheduleError::Closed));
/// # Ok::<(), tickwheel::CloseError>(())
/// ```
///
/// The task comes back:
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler};
///
/// let scheduler = Scheduler::new();
/// scheduler.close()?;
/// let refused = scheduler.try_schedule_once(Duration::ZERO, || println!("too late"));
/// let refused = refused.unwrap_err();
/// assert_eq!(refused.reason(), ScheduleError::Closed);
/// let task = refused.into_task();
/// task(); // still ours to run
/// # Ok::<(), tickwheel::CloseError>(())
/// ```
#[derive(Error)]
#[error("the task was not accepted: `reason` tells why, and `into_task` gives it back")]
pub struct TryScheduleError<F> {
    #[source]
    reason: ScheduleError,
    /// The mutex is never locked. It makes the error `Sync` for every task that is `Send`.
    task: Mutex<F>,
}

impl<F> TryScheduleError<F> {
    /// Makes an error from a reason and the task: for code that implements a scheduler.
    pub fn new(reason: ScheduleError, task: F) -> Self {
        TryScheduleError { reason, task: Mutex::new(task) }
    }

    /// Returns why the task was not accepted.
    pub fn reason(&self) -> ScheduleError {
        self.reason
    }

    /// Returns the task, as it was given.
    pub fn into_task(self) -> F {
        self.task.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl_debug!(TryScheduleError<F>, self, reason: self.reason);

/// Drops the task. A panic of its destructor is caught.
impl<F> From<TryScheduleError<F>> for ScheduleError {
    fn from(error: TryScheduleError<F>) -> ScheduleError {
        let reason = error.reason;
        quietly(|| drop(error)); // its panic must not cost the caller the reason
        reason
    }
}

/// The reason why [`Scheduler::close`](crate::Scheduler::close) could not wait for the end of the scheduler.
///
/// ```
/// use tickwheel::{CloseError, Inline, Scheduler};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let scheduler = Scheduler::builder().executor(Inline).build()?;
/// let (clone, (tell, told)) = (scheduler.clone(), mpsc::channel());
/// scheduler.schedule_once(Duration::ZERO, move || tell.send(clone.close().unwrap_err()).unwrap())?;
/// assert_eq!(told.recv()?, CloseError::OnTickThread); // it would wait for itself
/// assert!(scheduler.close()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseError {
    /// The tick thread, or the run of a series, did not end within the shutdown timeout. The scheduler is closed all
    /// the same, and a later `close` returns the leftovers.
    #[error(
        "a task or an executor is still busy after the shutdown timeout: call `close` again to get the leftovers, or raise `Builder::shutdown_timeout`"
    )]
    Timeout,
    /// `close` was called from a task on the tick thread, which would wait for itself. Nothing was closed.
    #[error(
        "`close` was called on the tick thread, which would wait for itself: call `stop` there, or `close` from another thread"
    )]
    OnTickThread,
    /// `close` was called on the [global](crate::Scheduler::global) scheduler, which other parts of the program use.
    /// Nothing was closed.
    #[error(
        "the global scheduler is not closed, because other parts of the program use it: cancel your own tasks, or build a scheduler of your own"
    )]
    Global,
}

/// Converts the error for a function that returns [`io::Result`]. The kinds are [`TimedOut`](io::ErrorKind::TimedOut)
/// for [`Timeout`](CloseError::Timeout), [`Deadlock`](io::ErrorKind::Deadlock) for
/// [`OnTickThread`](CloseError::OnTickThread), and [`Unsupported`](io::ErrorKind::Unsupported) for
/// [`Global`](CloseError::Global).
impl From<CloseError> for io::Error {
    fn from(error: CloseError) -> io::Error {
        let kind = match error {
            CloseError::Timeout => io::ErrorKind::TimedOut,
            CloseError::OnTickThread => io::ErrorKind::Deadlock,
            CloseError::Global => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

/// The reason why a scheduler, or a pool, could not be built.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{BuildError, Scheduler};
///
/// let error = Scheduler::builder().tick(Duration::ZERO).build().unwrap_err();
/// assert!(matches!(error, BuildError::ZeroTick));
/// assert!(error.to_string().contains("1 ms"));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is zero.
    #[error("the tick is zero: set a tick above zero, such as the default of 1 ms")]
    ZeroTick,
    /// The wheel size is not a power of two.
    #[error("the wheel size is {0}: set a power of two, such as {near}", near = nearest_power(*.0))]
    WheelSize(usize),
    /// The number of threads of a pool is zero.
    #[error("the pool has no threads: set at least one")]
    NoThreads,
    /// The operating system did not start the tick thread.
    #[error("the tick thread could not be started: end some threads, or use `build_driven`")]
    Thread(#[source] io::Error),
    /// The global scheduler is in use, so it cannot be set any more.
    #[error("the global scheduler is in use already: set it once, at the beginning of `main`")]
    GlobalInUse,
}

/// Converts the error for a function that returns [`io::Result`]. The kind is that of the system's error if a thread
/// could not be started, and otherwise [`InvalidInput`](io::ErrorKind::InvalidInput).
impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> io::Error {
        let kind = match &error {
            BuildError::Thread(system) => system.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// Returns the power of two that a user probably meant.
fn nearest_power(size: usize) -> usize {
    size.clamp(1, 1 << 20).next_power_of_two()
}

/// The engine is closed, and has taken nothing.
pub(crate) struct Refused;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s27_errors_can_be_sent_and_shared() {
        fn check<E: std::error::Error + Send + Sync + 'static>() {}
        check::<ScheduleError>();
        check::<CloseError>();
        check::<BuildError>();
        // A task that is `Send` but not `Sync` still gives an error that is both.
        check::<TryScheduleError<std::cell::Cell<u8>>>();
    }

    #[test]
    fn a_wheel_size_error_names_a_size_that_works() {
        assert_eq!(BuildError::WheelSize(1000).to_string().matches("1024").count(), 1);
        assert!(BuildError::WheelSize(0).to_string().contains("such as 1"));
        assert!(nearest_power(usize::MAX).is_power_of_two());
    }
}
