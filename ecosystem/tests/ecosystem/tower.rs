//! tower's services on a scheduler: limits for requests, and retries with growing pauses.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::common::driven;
use tickwheel::future::{Elapsed, block_on};
use tickwheel::{ScheduleError, Scheduler};
use tickwheel_ecosystem::tower::{Backoff, LimitLayer};
use tower::retry::RetryLayer;
use tower::{BoxError, Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

/// Asks a service that takes so long, within a limit of two seconds.
async fn asks(scheduler: &Scheduler, takes: Duration) -> Result<u32, BoxError> {
    let answers = service_fn(|question: u32| async move {
        scheduler.delay(takes).await;
        if question == 0 { Err("no question") } else { Ok(question * 2) }
    });
    let layer = LimitLayer { scheduler: scheduler.clone(), limit: SECOND * 2 };
    layer.layer(answers).oneshot(21).await
}

#[test]
fn an_answer_in_time_is_passed_on() {
    let (scheduler, driver) = driven();
    assert_eq!(driver.block_on(asks(&scheduler, SECOND)).expect("it ends").expect("in time"), 42);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn a_late_answer_is_not_waited_for() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let error = driver.block_on(asks(&scheduler, SECOND * 60)).expect("it ends").expect_err("late");
    let elapsed = error.downcast_ref::<Elapsed>().expect("the limit's error");
    assert_eq!((elapsed.reason(), scheduler.now() - start), (None, SECOND * 2));
}

#[test]
fn an_error_of_the_service_is_passed_on() {
    let (scheduler, driver) = driven();
    let fails = service_fn(|(): ()| async { Err::<Infallible, _>("broken") });
    let layer = LimitLayer { scheduler, limit: SECOND };
    let error = driver.block_on(layer.layer(fails).oneshot(())).expect("it ends");
    assert_eq!(error.expect_err("broken").to_string(), "broken");
}

#[test]
fn a_closed_scheduler_is_an_error_that_says_so() {
    let (scheduler, _driver) = driven();
    drop(scheduler.close().expect("nobody turns it"));
    let error = block_on(asks(&scheduler, SECOND)).expect_err("nobody keeps the limit");
    let elapsed = error.downcast_ref::<Elapsed>().expect("the limit's error");
    assert_eq!(elapsed.reason(), Some(ScheduleError::Closed));
}

/// Asks a service that answers at the n-th attempt. Returns the answer and the number of attempts.
async fn retries(policy: Backoff, answers_at: usize) -> (Result<usize, &'static str>, usize) {
    let attempts = Cell::new(0);
    let service = service_fn(|(): ()| {
        attempts.set(attempts.get() + 1);
        let answer = if attempts.get() == answers_at { Ok(attempts.get()) } else { Err("busy") };
        async move { answer }
    });
    let answer = RetryLayer::new(policy).layer(service).oneshot(()).await;
    (answer, attempts.get())
}

#[test]
fn retries_come_after_pauses_that_grow() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let policy = Backoff { scheduler: scheduler.clone(), pause: SECOND, retries: 3 };
    assert_eq!(driver.block_on(retries(policy.clone(), 4)), Ok((Ok(4), 4)));
    assert_eq!(scheduler.now() - start, SECOND * 7);
    assert_eq!(driver.block_on(retries(policy, 5)), Ok((Err("busy"), 4)), "no more than three");
}

#[test]
fn a_closed_scheduler_makes_no_pause_shorter() {
    const PAUSE: Duration = Duration::from_millis(10);
    let scheduler = Scheduler::new();
    drop(scheduler.close().expect("in time"));
    let start = Instant::now();
    let policy = Backoff { scheduler, pause: PAUSE, retries: 2 };
    assert_eq!(block_on(retries(policy, 9)), (Err("busy"), 3));
    assert!(start.elapsed() >= PAUSE * 3, "in {:?}", start.elapsed());
}
