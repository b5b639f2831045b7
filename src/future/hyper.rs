//! A [`Scheduler`] as the timer of hyper 1, with the feature `hyper`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep as HyperSleep, Timer};

use super::Sleep;
use crate::Scheduler;

/// The timer for hyper's timeouts, such as the header-read timeout and keep-alives:
///
/// ```
/// use hyper::server::conn::http1;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let mut server = http1::Builder::new();
/// server.timer(Scheduler::new()).header_read_timeout(Duration::from_secs(10));
/// ```
///
/// hyper's sleeps have no errors. A sleep on a scheduler that is closed or full is over at once. Then hyper's timeout
/// has passed, and no connection waits for ever.
impl Timer for Scheduler {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(SleepWithoutError(Scheduler::sleep(self, duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(SleepWithoutError(Scheduler::sleep_until(self, deadline)))
    }

    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    /// Moves the deadline in place, without a new box.
    fn reset(&self, sleep: &mut Pin<Box<dyn HyperSleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<SleepWithoutError>() {
            Some(mut sleep) => sleep.0.reset(new_deadline),
            None => *sleep = Timer::sleep_until(self, new_deadline),
        }
    }
}

/// A sleep that is over when it fails.
struct SleepWithoutError(Sleep);

impl HyperSleep for SleepWithoutError {}

impl Future for SleepWithoutError {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_with(context.waker()).map(drop)
    }
}

impl fmt::Debug for SleepWithoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
