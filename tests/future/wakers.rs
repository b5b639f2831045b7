//! What becomes of the waker of a task that waits no more, and of a result: calls, tasks of pools, the end of a
//! scheduler.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::told::Poller;
use crate::common::{Grenade, PATIENCE, driven, silence, until};
use tickwheel::pool::{JoinError, ScheduledFuture, ScheduledThreadPool};
use tickwheel::{Inline, ScheduleError, Scheduler};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A scheduler whose tick thread is busy until the sender is dropped. So a stop does not come to its end.
fn held_up() -> (Scheduler, Sender<()>) {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("good settings");
    let ((release, wait), (tell, told)) = (channel(), channel());
    let task = move || {
        tell.send(()).expect("awaited");
        _ = wait.recv();
    };
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    told.recv_timeout(PATIENCE).expect("it runs");
    (scheduler, release)
}

// ----- wakers ------------------------------------------------------------------------------

#[test]
fn s09_a_call_whose_future_is_dropped_lets_the_waker_go_and_wakes_nobody() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let mut call = scheduler.call_after(HOUR, move || runs.store(true, Ordering::Relaxed));
    assert!(task.poll(&mut call).is_pending());
    assert_eq!(task.wakers(), 1);
    drop(call);
    assert_eq!((task.wakers(), scheduler.pending()), (0, 1), "the call is still to be made");
    driver.advance(HOUR);
    assert!(ran.load(Ordering::Relaxed) && task.woken() == 0);
}

#[test]
fn s09_a_task_of_a_pool_whose_future_is_dropped_lets_the_waker_go() {
    let (pool, task) = (ScheduledThreadPool::new(1), Poller::new());
    let mut once = pool.schedule(HOUR, || ()).expect("open");
    let mut series = pool.schedule_at_fixed_rate(HOUR, HOUR, || ()).expect("open");
    assert!(task.poll(&mut once).is_pending() && task.poll(&mut series).is_pending());
    assert_eq!(task.wakers(), 2);
    drop(once);
    assert_eq!(task.wakers(), 1);
    drop(series);
    assert_eq!((task.wakers(), task.woken()), (0, 0));
}

/// The wait leaves a waker of the thread, and returns the future.
#[test]
fn a_wait_that_was_given_up_leaves_the_future_as_it_was() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let call = scheduler.call_after(SECOND, || 5);
    let mut call = call.join_timeout(Duration::ZERO).expect_err("it is too early");
    assert!(task.poll(&mut call).is_pending());
    driver.advance(SECOND);
    assert_eq!((task.woken(), task.wakers()), (1, 0));
    assert!(matches!(task.poll(&mut call), Poll::Ready(Ok(5))));
}

/// A waker that panics when it is dropped, on a thread that may be unwinding.
#[test]
fn s17_a_waker_that_panics_as_it_is_dropped_takes_nobody_along() {
    struct Held(#[allow(dead_code, reason = "it is dropped")] Mutex<Grenade>);
    impl Wake for Held {
        fn wake(self: Arc<Self>) {}
    }
    silence();
    let (scheduler, release) = held_up();
    let mut call = scheduler.call_after(HOUR, || ());
    let mut stopping = scheduler.stop();
    for future in [&mut call as &mut dyn PollsOnce, &mut stopping] {
        let waker = Waker::from(Arc::new(Held(Mutex::new(Grenade))));
        assert!(future.is_pending(&waker));
    }
    let other = scheduler.stop();
    drop(call);
    drop(stopping);
    drop(release);
    assert_eq!(other.wait().len(), 1);
}

trait PollsOnce {
    fn is_pending(&mut self, waker: &Waker) -> bool;
}

impl<F: Future + Unpin> PollsOnce for F {
    fn is_pending(&mut self, waker: &Waker) -> bool {
        Pin::new(self).poll(&mut Context::from_waker(waker)).is_pending()
    }
}

#[test]
fn s09_an_end_that_nobody_awaits_any_more_lets_the_waker_go() {
    let ((scheduler, release), task) = (held_up(), Poller::new());
    let (mut one, mut other) = (scheduler.stop(), scheduler.stop());
    for _ in 0..3 {
        assert!(task.poll(&mut one).is_pending() && task.poll(&mut other).is_pending());
    }
    assert_eq!(task.wakers(), 2, "each has one, however often it is polled");
    drop(one);
    assert_eq!(task.wakers(), 1, "the other one still waits");
    let late = Poller::new();
    assert!(late.poll(&mut other).is_pending());
    assert_eq!((task.wakers(), late.wakers()), (0, 1), "the last poll counts");
    drop(release);
    until("the end has come", || late.woken() == 1);
    assert_eq!(task.woken(), 0);
    assert!(matches!(late.poll(&mut other), Poll::Ready(leftovers) if leftovers.is_empty()));
    assert!(matches!(late.poll(&mut other), Poll::Ready(leftovers) if leftovers.is_empty()));
    assert_eq!(late.wakers(), 0);
}

// ----- results -----------------------------------------------------------------------------

#[test]
fn a_result_is_taken_once() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let pool = ScheduledThreadPool::new(1);
    let ready = |mut future: ScheduledFuture<i32>| {
        until("it is done", || future.is_done());
        assert!(matches!(task.poll(&mut future), Poll::Ready(Ok(7))));
        assert!(task.poll(&mut future).is_pending(), "it has nothing more to say");
        assert_eq!(task.wakers(), 0);
        future
    };
    let make = || {
        let call = scheduler.call_after(SECOND, || 7);
        driver.advance(SECOND);
        [call, pool.submit(|| 7).expect("open")].map(ready)
    };
    for taken in make() {
        assert!(matches!(taken.join(), Err(JoinError::Taken)), "it would wait for ever");
    }
    for taken in make() {
        assert!(matches!(taken.join_timeout(PATIENCE), Ok(Err(JoinError::Taken))));
    }
}

#[test]
fn s20_a_call_that_is_refused_says_why() {
    let (scheduler, _driver) =
        Scheduler::builder().max_pending(1).build_driven().expect("good settings");
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let pending = scheduler.call_after(SECOND, || ());
    let full = scheduler.call_after(SECOND, move || drop(inside));
    assert_eq!(
        (Arc::strong_count(&held), full.is_done(), full.remaining()),
        (1, true, Duration::ZERO)
    );
    let error = full.join().expect_err("it was refused");
    assert!(matches!(error, JoinError::Refused(ScheduleError::Full)), "{error:?}");
    let source = error.source().expect("the reason").to_string();
    assert!(source.contains("max_pending"), "it says what to do: {source}");
    drop(scheduler.close().expect("nobody turns it"));
    let error = scheduler.call_after(SECOND, || ()).join().expect_err("it was refused");
    assert!(matches!(error, JoinError::Refused(ScheduleError::Closed)), "{error:?}");
    let error = pending.join().expect_err("it was dropped as a leftover");
    assert!(matches!(error, JoinError::Cancelled), "{error:?}");
}

#[test]
fn s28_what_remains_of_a_call_follows_its_handle() {
    let (scheduler, driver) = driven();
    let call = scheduler.call_after(SECOND, || 7);
    assert!(call.handle().reset(HOUR));
    assert_eq!(call.remaining(), HOUR);
    driver.advance(SECOND);
    assert_eq!((call.remaining(), call.is_done()), (HOUR - SECOND, false));
    assert!(call.handle().reset(SECOND));
    assert_eq!(call.remaining(), SECOND);
    driver.advance(SECOND);
    assert_eq!(call.remaining(), Duration::ZERO);
    assert_eq!(call.join().expect("it has run"), 7);
}
