//! With the feature `futures-core`: the futures are `FusedFuture`s, and an interval is a `Stream`. In virtual time.

use std::future::{pending, ready};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::common::driven;
use crate::common::told::Poller;
use futures_util::future::FusedFuture;
use futures_util::stream::FusedStream;
use futures_util::{FutureExt, Stream, StreamExt, select_biased};
use tickwheel::time::Instant;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_interval_is_a_stream_without_an_end() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = Instant::from_std(scheduler.now());
    let mut interval = scheduler.interval(SECOND);
    assert_eq!(interval.size_hint(), (usize::MAX, None));
    assert_eq!(task.poll(&mut interval.next()), Poll::Ready(Some(start)));
    assert!(task.poll(&mut interval.next()).is_pending());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut interval.next()), Poll::Ready(Some(start + SECOND)));
    // Also on a scheduler that is closed: it goes on, and does not spin.
    drop(scheduler.close().expect("nobody turns it"));
    assert!(task.poll(&mut interval.next()).is_pending() && !interval.is_terminated());
    interval.reset_after(MILLI);
    assert!(task.polls_until_ready(&mut interval.next()) <= 2);
    assert_eq!((interval.size_hint(), interval.is_terminated()), ((usize::MAX, None), false));
}

#[test]
fn a_sleep_is_terminated_from_its_end_to_a_reset() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(MILLI);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(MILLI);
    assert!(!sleep.is_terminated(), "nobody has seen the end yet");
    assert!(task.poll(&mut sleep).is_ready() && sleep.is_terminated());
    Pin::new(&mut sleep).reset(scheduler.now() + MILLI);
    assert!(!sleep.is_terminated() && task.poll(&mut sleep).is_pending());
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
                () = flush => rang.push(scheduler.now() - start),
                tick = beat.next() => {
                    let at = tick.expect("endless").into_std() - start;
                    if at == SECOND * 6 {
                        Pin::new(&mut flush).reset(scheduler.now() + SECOND * 2);
                    }
                }
            }
        }
        rang
    });
    assert_eq!(rang, Ok(vec![SECOND * 3, SECOND * 8]));
    assert_eq!(driver.block_on(scheduler.sleep(SECOND).map(|()| 7)), Ok(7));
}
