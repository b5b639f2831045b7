//! backon waits by `time::sleep` between its attempts.

use std::cell::Cell;
use std::time::{Duration, Instant};

use backon::{ConstantBuilder, ExponentialBuilder, Retryable};
use tickwheel::future::block_on;
use tickwheel::{Scheduler, time};

const SECOND: Duration = Duration::from_secs(1);

/// Asks until the n-th attempt succeeds. Returns the answer, or the error of the last attempt.
async fn asks(succeeds_at: usize, attempts: &Cell<usize>) -> Result<usize, &'static str> {
    let ask = || async {
        attempts.set(attempts.get() + 1);
        if attempts.get() == succeeds_at { Ok(attempts.get()) } else { Err("no answer") }
    };
    let pauses = ExponentialBuilder::default().with_min_delay(SECOND).with_max_times(3);
    ask.retry(pauses).sleep(time::sleep).await
}

#[test]
fn pauses_grow_until_there_is_an_answer() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let (start, attempts) = (scheduler.now(), Cell::new(0));
    assert_eq!(driver.block_on(asks(4, &attempts)), Ok(Ok(4)));
    assert_eq!(scheduler.now() - start, SECOND * 7);
}

#[test]
fn the_last_error_is_returned_after_the_last_pause() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let (start, attempts) = (scheduler.now(), Cell::new(0));
    assert_eq!(driver.block_on(asks(9, &attempts)), Ok(Err("no answer")));
    assert_eq!((scheduler.now() - start, attempts.get()), (SECOND * 7, 4));
}

#[test]
fn a_closed_scheduler_makes_no_pause_shorter() {
    const PAUSE: Duration = Duration::from_millis(10);
    let scheduler = Scheduler::new();
    drop(scheduler.close().expect("in time"));
    let (start, attempts) = (Instant::now(), Cell::new(0));
    let ask = || async {
        attempts.set(attempts.get() + 1);
        Err::<(), _>("no answer")
    };
    let pauses = ConstantBuilder::default().with_delay(PAUSE).with_max_times(3);
    let _in_force = scheduler.enter();
    let answer = block_on(ask.retry(pauses).sleep(time::sleep));
    assert_eq!((answer, attempts.get()), (Err("no answer"), 4));
    assert!(start.elapsed() >= PAUSE * 3, "in {:?}", start.elapsed());
}
