//! tower's services on a scheduler: limits for requests, and retries with growing pauses.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::common::driven;
use tickwheel::Scheduler;
use tickwheel::future::block_on;
use tickwheel::time::error::Elapsed;
use tickwheel_ecosystem::tower::{Backoff, LimitLayer};
use tower::retry::RetryLayer;
use tower::{BoxError, Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

/// Asks a service that takes so long, within a limit.
async fn asks(scheduler: &Scheduler, takes: Duration, limit: Duration) -> Result<u32, BoxError> {
    let answers = service_fn(|question: u32| async move {
        scheduler.sleep(takes).await;
        if question == 0 { Err("no question") } else { Ok(question * 2) }
    });
    let layer = LimitLayer { scheduler: scheduler.clone(), limit };
    layer.layer(answers).oneshot(21).await
}

#[test]
fn an_answer_in_time_is_passed_on() {
    let (scheduler, driver) = driven();
    let answer = driver.block_on(asks(&scheduler, SECOND, SECOND * 2)).expect("it ends");
    assert_eq!(answer.expect("in time"), 42);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn a_late_answer_is_not_waited_for() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let error = driver.block_on(asks(&scheduler, SECOND * 60, SECOND * 2)).expect("it ends");
    let error = error.expect_err("late");
    assert!(error.is::<Elapsed>(), "{error}");
    assert_eq!(scheduler.now() - start, SECOND * 2);
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
fn a_closed_scheduler_makes_no_limit_shorter() {
    const LIMIT: Duration = Duration::from_millis(10);
    let (scheduler, _driver) = driven();
    drop(scheduler.close().expect("nobody turns it"));
    let start = Instant::now();
    let answer = block_on(asks(&scheduler, LIMIT, SECOND * 60));
    assert!(answer.is_ok_and(|answer| answer == 42) && start.elapsed() >= LIMIT);
    let start = Instant::now();
    let error = block_on(asks(&scheduler, SECOND * 60, LIMIT)).expect_err("late");
    assert!(error.is::<Elapsed>() && start.elapsed() >= LIMIT);
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
