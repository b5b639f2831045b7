//! With the feature `futures-core`: the futures are `FusedFuture`s, and an interval is a `Stream`. In virtual time.

use std::future::{pending, ready};
use std::task::Poll;
use std::time::Duration;

use crate::common::driven;
use crate::common::told::Poller;
use futures_util::future::FusedFuture;
use futures_util::stream::FusedStream;
use futures_util::{FutureExt, Stream, StreamExt, select_biased};
use tickwheel::{ScheduleError, Scheduler};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn close(scheduler: &Scheduler) {
    assert!(scheduler.close().expect("nobody turns it").is_empty());
}

#[test]
fn an_interval_is_a_stream_that_an_error_ends() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut interval = scheduler.interval(SECOND);
    assert_eq!(interval.size_hint(), (1, None));
    assert!(matches!(task.poll(&mut interval.next()), Poll::Ready(Some(Ok(_)))));
    assert!(task.poll(&mut interval.next()).is_pending());
    driver.advance(SECOND);
    assert!(matches!(task.poll(&mut interval.next()), Poll::Ready(Some(Ok(_)))));
    drop(scheduler.close().expect("nobody turns it"));
    assert_eq!(task.poll(&mut interval.next()), Poll::Ready(Some(Err(ScheduleError::Closed))));
    assert_eq!(task.poll(&mut interval.next()), Poll::Ready(None));
    assert_eq!(interval.size_hint(), (0, Some(0)));
}

#[test]
fn a_delay_and_a_sleep_are_terminated_from_their_end_to_a_reset() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let (mut delay, mut sleep) = (scheduler.delay(MILLI), scheduler.sleep(MILLI));
    assert!(task.poll(&mut delay).is_pending() && task.poll(&mut sleep).is_pending());
    driver.advance(MILLI);
    assert!(!delay.is_terminated() && !sleep.is_terminated(), "nobody has seen the end yet");
    assert!(task.poll(&mut delay).is_ready() && task.poll(&mut sleep).is_ready());
    assert!(delay.is_terminated() && sleep.is_terminated());
    delay.reset_after(MILLI);
    sleep.reset_after(MILLI);
    assert!(!delay.is_terminated() && !sleep.is_terminated());
    assert!(task.poll(&mut delay).is_pending() && task.poll(&mut sleep).is_pending());
    delay.reset_after(Duration::MAX);
    assert!(task.poll(&mut delay).is_pending() && !delay.is_terminated());
}

#[test]
fn a_call_is_terminated_when_its_result_was_taken() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut call = scheduler.call_after(SECOND, || 7);
    assert!(task.poll(&mut call).is_pending());
    driver.advance(SECOND);
    assert!(call.is_done() && !call.is_terminated());
    assert!(task.poll(&mut call).is_ready() && call.is_terminated());
}

#[test]
fn a_timeout_is_terminated_by_its_output_and_by_its_error() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut in_time = scheduler.timeout(SECOND, ready(7));
    assert!(!in_time.is_terminated());
    assert!(task.poll(&mut in_time).is_ready() && in_time.is_terminated());
    let mut late = scheduler.timeout(SECOND, pending::<()>());
    assert!(task.poll(&mut late).is_pending());
    driver.advance(SECOND);
    assert!(!late.is_terminated());
    assert!(task.poll(&mut late).is_ready() && late.is_terminated());
}

#[test]
fn an_interval_is_terminated_by_an_error() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let mut interval = scheduler.interval(SECOND);
    assert!(task.poll(&mut interval.next()).is_ready() && !interval.is_terminated());
    close(&scheduler);
    assert!(matches!(task.poll(&mut interval.next()), Poll::Ready(Some(Err(_)))));
    assert!(interval.is_terminated());
    assert_eq!(task.poll(&mut interval.next()), Poll::Ready(None));
}

/// Without a `fuse()`, and with a sleep that is done and then used again.
#[test]
fn a_select_passes_over_what_is_done_and_comes_back_after_a_reset() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let rang = driver.block_on(async {
        let (mut flush, mut beat) = (scheduler.sleep(SECOND * 3), scheduler.interval(SECOND));
        let mut rang = Vec::new();
        for _ in 0..12 {
            select_biased! {
                woken = flush => rang.push((woken.is_ok(), scheduler.now() - start)),
                tick = beat.next() => {
                    let at = tick.expect("endless").expect("open") - start;
                    if at == SECOND * 6 {
                        flush.reset_after(SECOND * 2);
                    }
                }
            }
        }
        rang
    });
    assert_eq!(rang, Ok(vec![(true, SECOND * 3), (true, SECOND * 8)]));
    assert_eq!(driver.block_on(scheduler.delay(SECOND).map(|()| 7)), Ok(7));
}
