//! A [`Scheduler`] as the timer of hyper 1: feature `hyper`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep as HyperSleep, Timer};

use super::Sleep;
use crate::Scheduler;

/// hyper's header-read timeout, keep-alives and the like, on the wheel:
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
/// hyper's sleeps know no errors. One on a scheduler that is closed, or full, is over at once: what hyper waits
/// for has then timed out, and no connection waits for ever.
impl Timer for Scheduler {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Wait(Scheduler::sleep(self, duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Wait(Scheduler::sleep_until(self, deadline)))
    }

    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    /// Moves it in place, without a new box.
    fn reset(&self, sleep: &mut Pin<Box<dyn HyperSleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Wait>() {
            Some(mut wait) => wait.0.reset(new_deadline),
            None => *sleep = Timer::sleep_until(self, new_deadline),
        }
    }
}

/// A sleep that keeps its errors to itself.
struct Wait(Sleep);

impl HyperSleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_with(context.waker()).map(drop)
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
