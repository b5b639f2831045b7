//! A [`Scheduler`] as the timer of hyper 1, with the feature `hyper`.

use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::rt::{Sleep as HyperSleep, Timer};

use crate::Scheduler;
use crate::time::Sleep;

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
/// Each of hyper's sleeps is a [`Sleep`].
impl Timer for Scheduler {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Scheduler::sleep(self, duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Scheduler::sleep_until(self, deadline))
    }

    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    /// Moves the deadline in place, without a new box.
    fn reset(&self, sleep: &mut Pin<Box<dyn HyperSleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(own) if own.is_on(self) => own.reset(new_deadline),
            // It has gone over to another scheduler, whose clock may be another one.
            Some(own) => {
                let left = new_deadline.saturating_duration_since(Scheduler::now(self));
                own.get_mut().move_by(left);
            }
            None => *sleep = Timer::sleep_until(self, new_deadline),
        }
    }
}

impl HyperSleep for Sleep {}
