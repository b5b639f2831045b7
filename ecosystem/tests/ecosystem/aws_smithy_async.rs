//! The AWS SDK's sleeps on a scheduler: as they are, and as its timeout uses them.

use std::time::{Duration, Instant};

use aws_smithy_async::future::timeout::Timeout;
use aws_smithy_async::rt::sleep::{AsyncSleep, SharedAsyncSleep};
use tickwheel::Scheduler;
use tickwheel::future::block_on;
use tickwheel_ecosystem::aws_smithy_async::WheelSleep;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_sleep_takes_its_time() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let (start, sleeps) = (scheduler.now(), SharedAsyncSleep::new(WheelSleep(scheduler.clone())));
    driver.block_on(sleeps.sleep(SECOND)).expect("it ends");
    assert_eq!(scheduler.now() - start, SECOND);
}

#[test]
fn a_timeout_of_the_sdk_ends_what_is_late_and_nothing_else() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let sleeps = WheelSleep(scheduler.clone());
    let slow = Box::pin(scheduler.sleep(SECOND * 2));
    assert!(driver.block_on(Timeout::new(slow, sleeps.sleep(SECOND))).expect("it ends").is_err());
    let fast = Box::pin(scheduler.sleep(SECOND));
    assert!(
        driver.block_on(Timeout::new(fast, sleeps.sleep(SECOND * 2))).expect("it ends").is_ok()
    );
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn a_closed_scheduler_makes_no_sleep_shorter() {
    const TIME: Duration = Duration::from_millis(20);
    let scheduler = Scheduler::new();
    drop(scheduler.close().expect("in time"));
    let start = Instant::now();
    block_on(WheelSleep(scheduler).sleep(TIME));
    assert!(start.elapsed() >= TIME, "in {:?}", start.elapsed());
}
