//! The pauses between the attempts of backon 1, kept by a scheduler.

use std::time::Duration;

use backon::Sleeper;
use tickwheel::Scheduler;
use tickwheel::future::Delay;

/// `ask.retry(ExponentialBuilder::default()).sleep(WheelSleeper(scheduler)).await`
#[derive(Clone, Debug)]
pub struct WheelSleeper(pub Scheduler);

impl Sleeper for WheelSleeper {
    type Sleep = Delay;

    fn sleep(&self, duration: Duration) -> Delay {
        self.0.delay(duration)
    }
}
