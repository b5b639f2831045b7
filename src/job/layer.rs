//! How a layer takes in what it is given: closures and series, after a delay or at an instant, by a trait or by its own methods.

use std::time::{Duration, Instant};

use super::work::{Series, Work, named};
use crate::clock::repeat::unboxed;
use crate::clock::timeline::after;
use crate::{Cancellable, Period, Repeat, Request, ScheduleError, TryScheduleError};

/// What becomes of work: a handle, or the reason why it comes back.
pub(crate) type Taken<W> = Result<Cancellable, (ScheduleError, W)>;

/// The same of a task that is dropped if it is refused.
pub(crate) type Scheduled = Result<Cancellable, ScheduleError>;

/// The same of a closure that comes back if it is refused.
pub(crate) type Given<F> = Result<Cancellable, TryScheduleError<F>>;

/// A worker, a loop or a pool.
pub(crate) trait Layer {
    /// Returns the present on its clock.
    fn present(&self) -> Instant;

    /// Takes work in that is to run at this time, or at once.
    fn take_in<W: Work<Output = ()>>(&self, deadline: Option<Instant>, work: W) -> Taken<W>;

    /// Returns the deadline of a task that is to run after `delay`, or `None` if that is zero. It is at most the last instant of
    /// the clock.
    fn after(&self, delay: Duration) -> Option<Instant> {
        (!delay.is_zero()).then(|| after(self.present(), delay))
    }

    /// Takes in a series, under this name.
    fn take_series<R: Repeat, F: FnMut() -> R + Send + 'static>(
        &self,
        initial: Duration,
        period: Period,
        name: &'static str,
        f: F,
    ) -> Given<F> {
        let deadline = self.after(initial);
        let due = deadline.unwrap_or_else(|| self.present());
        self.take_in(deadline, Series::new(name, due, period, f)?).map_err(Series::refused)
    }

    /// Takes in a closure that stands for one of this name.
    fn take_named<F: FnOnce() + Send + 'static>(
        &self,
        deadline: Option<Instant>,
        name: &'static str,
        f: F,
    ) -> Given<F> {
        let taken = self.take_in(deadline, named(name, f));
        taken.map_err(|(reason, named)| TryScheduleError::new(reason, named.input))
    }

    /// Takes in what came through [`Schedule`](crate::Schedule).
    fn take_request(&self, name: &'static str, request: Request) -> Scheduled {
        let (deadline, task) = match request {
            Request::After(delay, task) => (self.after(delay), task),
            Request::At(deadline, task) => (Some(deadline), task),
            Request::Series(initial, period, task) => {
                let taken = self.take_series(initial, period, name, unboxed(task));
                return taken.map_err(|refused| self.drop_refused(refused));
            }
        };
        self.take_named(deadline, name, task).map_err(|refused| self.drop_refused(refused))
    }

    /// Drops a refused closure, which may panic. Returns the reason.
    fn drop_refused<F>(&self, refused: TryScheduleError<F>) -> ScheduleError {
        refused.into()
    }
}
