//! The pauses between the attempts of backon 1, kept by a scheduler.

use std::time::Duration;

use backon::Sleeper;
use tickwheel::Scheduler;
use tickwheel::time::Sleep;

/// `ask.retry(ExponentialBuilder::default()).sleep(WheelSleeper(scheduler)).await`
#[derive(Clone, Debug)]
pub struct WheelSleeper(pub Scheduler);

impl Sleeper for WheelSleeper {
    type Sleep = Sleep;

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}
