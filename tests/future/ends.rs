//! Futures that are polled after they were ready, and what a `select!` learns of that.

use std::future::{pending, ready};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::common::driven;
use crate::common::told::Poller;
use tickwheel::future::{Elapsed, FutureTimeExt};
use tickwheel::{ScheduleError, Scheduler};

const SECOND: Duration = Duration::from_secs(1);
const OK: Poll<Result<(), ScheduleError>> = Poll::Ready(Ok(()));

fn close(scheduler: &Scheduler) {
    assert!(scheduler.close().expect("nobody turns it").is_empty());
}

fn reason(polled: Poll<Result<(), Elapsed>>) -> Option<ScheduleError> {
    let Poll::Ready(Err(elapsed)) = polled else { panic!("{polled:?}") };
    elapsed.reason()
}

#[test]
fn a_sleep_compares_its_deadline_with_the_clock_again() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(SECOND);
    assert_eq!([task.poll(&mut sleep), task.poll(&mut sleep)], [OK, OK]);
    assert_eq!((scheduler.stats().scheduled(), task.wakers()), (1, 0), "without a new timer");
    sleep.reset_after(SECOND);
    assert_eq!(sleep.deadline(), scheduler.now() + SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut sleep), OK);
    close(&scheduler);
    assert_eq!(task.poll(&mut sleep), Poll::Ready(Err(ScheduleError::Closed)));
}

#[test]
fn a_timeout_returns_its_error_again_and_does_not_poll_its_future() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut polls = 0;
    let future = std::future::poll_fn(|_| {
        polls += 1;
        if polls > 2 { Poll::Ready(()) } else { Poll::Pending }
    });
    let mut timeout = pin!(scheduler.timeout(SECOND, future));
    assert!(task.poll(&mut timeout).is_pending());
    driver.advance(SECOND);
    for _ in 0..3 {
        assert_eq!(reason(task.poll(&mut timeout)), None);
    }
    close(&scheduler);
    assert_eq!(reason(task.poll(&mut timeout)), None, "the same error");
    let mut closed = scheduler.timeout(SECOND, pending::<()>());
    for _ in 0..2 {
        assert_eq!(reason(task.poll(&mut closed)), Some(ScheduleError::Closed));
    }
}

#[test]
fn a_timeout_that_had_an_output_polls_its_future_again() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut polls = 0;
    let mut timeout = scheduler.timeout(
        SECOND,
        std::future::poll_fn(move |_| {
            polls += 1;
            Poll::Ready(polls)
        }),
    );
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(1)));
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(2)));
}

#[test]
fn an_interval_goes_on_after_an_error_when_there_is_room() {
    let (scheduler, driver) =
        Scheduler::builder().max_pending(1).build_driven().expect("good settings");
    let task = Poller::new();
    let mut interval = scheduler.interval_at(scheduler.now() + SECOND, SECOND);
    let held = scheduler.schedule_once(SECOND * 60, || ()).expect("the first");
    for _ in 0..2 {
        let tick = task.poll(&mut pin!(interval.tick()));
        assert_eq!(tick, Poll::Ready(Err(ScheduleError::Full)));
    }
    assert!(held.cancel());
    assert!(task.poll(&mut pin!(interval.tick())).is_pending());
    driver.advance(SECOND);
    assert!(matches!(task.poll(&mut pin!(interval.tick())), Poll::Ready(Ok(_))));
}

#[test]
fn a_limit_is_a_method_of_every_future() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let in_time = driver.block_on(scheduler.sleep(SECOND).timeout(&scheduler, SECOND * 2));
    assert_eq!(in_time, Ok(Ok(Ok(()))));
    assert_eq!(scheduler.now(), start + SECOND);
    let late = driver.block_on(pending::<()>().timeout_at(&scheduler, start + SECOND * 5));
    assert!(matches!(late, Ok(Err(elapsed)) if elapsed.reason().is_none()));
    assert_eq!(scheduler.now(), start + SECOND * 5);
    close(&scheduler);
    let closed = driver.block_on(pending::<()>().timeout(&scheduler, SECOND)).expect("it ends");
    assert_eq!(closed.expect_err("closed").reason(), Some(ScheduleError::Closed));
    assert_eq!(driver.block_on(ready(7).timeout(&scheduler, SECOND)), Ok(Ok(7)));
}
