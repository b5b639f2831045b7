//! The sleeps of the AWS SDK, which are those of its retries and timeouts, kept by a scheduler.

use std::time::Duration;

use aws_smithy_async::rt::sleep::{AsyncSleep, Sleep};
use tickwheel::Scheduler;

/// `config.sleep_impl(WheelSleep(scheduler))`
#[derive(Clone, Debug)]
pub struct WheelSleep(pub Scheduler);

impl AsyncSleep for WheelSleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.0.sleep(duration))
    }
}
