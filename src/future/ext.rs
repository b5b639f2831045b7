//! Time as methods of every future: [`FutureTimeExt`].

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use super::Timeout;
use crate::Scheduler;

/// A time limit as a method of every future.
///
/// It is the same as [`Scheduler::timeout`], with the future in front, for code that is written as a chain. If the
/// scheduler is closed or full, the [`Timeout`] ends with an error that says so: see
/// [`Elapsed::reason`](super::Elapsed::reason).
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::future::FutureTimeExt;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let answer = async { 6 * 7 }.timeout(&scheduler, Duration::from_secs(5));
/// assert_eq!(driver.block_on(answer)?, Ok(42));
///
/// let never = std::future::pending::<()>().timeout(&scheduler, Duration::from_secs(5));
/// assert!(driver.block_on(never)?.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FutureTimeExt: IntoFuture + Sized {
    /// Limits the time of this future to `duration` from now: see [`Scheduler::timeout`].
    fn timeout(self, scheduler: &Scheduler, duration: Duration) -> Timeout<Self::IntoFuture> {
        scheduler.timeout(duration, self)
    }

    /// Limits the time of this future to the time until `deadline`: see [`Scheduler::timeout_at`].
    fn timeout_at(self, scheduler: &Scheduler, deadline: Instant) -> Timeout<Self::IntoFuture> {
        scheduler.timeout_at(deadline, self)
    }
}

impl<F: IntoFuture> FutureTimeExt for F {}
