//! A [`Scheduler`] as the timer of hyper 1, with the feature `hyper`.

use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::rt::{Sleep as HyperSleep, Timer};

use super::Delay;
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
/// hyper's sleeps have no errors, so each is a [`Delay`]. If the scheduler is closed or full, hyper's timeouts and the
/// task that looks for idle connections keep their time all the same: see [`Delay`].
impl Timer for Scheduler {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(self.delay(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(self.delay_until(deadline))
    }

    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    /// Moves the deadline in place, without a new box.
    fn reset(&self, sleep: &mut Pin<Box<dyn HyperSleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Delay>() {
            Some(mut delay) => delay.reset(new_deadline),
            None => *sleep = Timer::sleep_until(self, new_deadline),
        }
    }
}

impl HyperSleep for Delay {}
