//! A scheduler that is closed or full is passed over for the global one: what waits ends on time, never early, and no loop
//! spins. In real time, which is what these tests are about.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::future::{pending, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant as StdInstant};

use crate::common::told::Poller;
use crate::common::{driven, driven_by, until};
use crate::{close, waiting};
use tickwheel::future::block_on;
use tickwheel::time::{Instant, MissedTickBehavior, Sleep};
use tickwheel::{CloseError, Driver, ManualClock, Scheduler};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// What is left of a sleep when its scheduler gives up.
const REST: Duration = Duration::from_millis(30);
const STEP: Duration = Duration::from_millis(5);

const READY: Poll<()> = Poll::Ready(());

/// A scheduler that takes no timers, and what it needs to stay as it is.
struct Unwilling(&'static str, Scheduler, Option<Driver>);

/// Each kind of scheduler that takes no timers: with a thread and without, on a clock that stands still.
fn unwilling() -> [Unwilling; 5] {
    let full = || Scheduler::builder().max_pending(0);
    let with_thread = full().build().expect("good settings");
    let (on_virtual_time, driver) = driven_by(full());
    let (closed, (its_scheduler, its_driver), (left, _)) = (Scheduler::new(), driven(), driven());
    drop(closed.close().expect("in time"));
    close(&its_scheduler);
    [
        Unwilling("full", with_thread, None),
        Unwilling("full, on virtual time", on_virtual_time, Some(driver)),
        Unwilling("closed", closed, None),
        Unwilling("closed, on virtual time", its_scheduler, Some(its_driver)),
        Unwilling("without its driver", left, None),
    ]
}

/// Closes a scheduler on virtual time, and returns a sleep of an hour that waits elsewhere for that reason.
#[track_caller]
fn waiting_elsewhere(task: &Poller) -> Sleep {
    let (scheduler, _driver) = driven();
    close(&scheduler);
    waiting(&scheduler, task, HOUR)
}

fn reset(sleep: &mut Sleep, time: Duration) {
    Pin::new(sleep).reset(Instant::now() + time);
}

// ----- sleeps ------------------------------------------------------------------------------

#[test]
fn s25_a_sleep_that_finds_no_scheduler_takes_its_time() {
    for Unwilling(kind, scheduler, _driver) in unwilling() {
        let (task, start) = (Poller::new(), StdInstant::now());
        let mut sleep = scheduler.sleep(REST);
        let polls = task.polls_until_ready(&mut sleep);
        assert!(start.elapsed() >= REST && polls <= 2, "{kind}: {polls} polls");
        assert!(sleep.is_elapsed() && task.poll(&mut sleep) == READY && task.wakers() == 0);
        // What is over is ready at once.
        assert_eq!(task.poll(&mut scheduler.sleep(Duration::ZERO)), READY, "{kind}");
        let past = scheduler.now().checked_sub(STEP).expect("the clock has run for a while");
        assert_eq!(task.poll(&mut scheduler.sleep_until(past)), READY, "{kind}");
        assert_eq!((scheduler.pending(), scheduler.stats().scheduled()), (0, 0), "{kind}");
    }
}

/// Each takes its time, and its task is polled when it begins and when it ends.
#[test]
fn a_loop_of_sleeps_or_of_resets_does_not_spin() {
    for Unwilling(kind, scheduler, _driver) in unwilling() {
        let (task, start) = (Poller::new(), StdInstant::now());
        let mut again = scheduler.sleep(Duration::ZERO);
        for round in 1..=5 {
            assert!(task.poll(&mut scheduler.sleep(HOUR)).is_pending(), "{kind}");
            assert!(task.polls_until_ready(&mut scheduler.sleep(STEP)) <= 2, "{kind}");
            reset(&mut again, STEP);
            assert!(task.polls_until_ready(&mut again) <= 2, "{kind}");
            assert!(start.elapsed() >= 2 * STEP * round, "{kind}: in {:?}", start.elapsed());
        }
    }
}

#[test]
fn s20_a_close_wakes_sleepers_which_wait_on_elsewhere_and_are_no_leftovers() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let (mut near, mut far, mut farthest) = (
        waiting(&scheduler, &task, STEP),
        waiting(&scheduler, &task, SECOND),
        waiting(&scheduler, &task, HOUR),
    );
    scheduler.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND - REST);
    let closed = StdInstant::now();
    let leftovers = scheduler.close().expect("nobody turns it");
    assert_eq!((leftovers.len(), task.woken()), (1, 3), "they look for another scheduler");
    assert_eq!(task.poll(&mut near), READY, "its time had come before");
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.fired(), stats.dropped(), stats.pending()), (4, 1, 2, 0));
    let polls = task.polls_until_ready(&mut far);
    assert!(closed.elapsed() >= REST && polls <= 2, "{polls} polls in {:?}", closed.elapsed());
    assert!(task.poll(&mut farthest).is_pending() && task.wakers() == 1);
}

#[test]
fn a_driver_that_is_dropped_leaves_a_sleep_the_rest_of_its_time() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, SECOND);
    driver.advance(SECOND - REST);
    let start = StdInstant::now();
    drop(driver);
    assert_eq!((task.woken(), task.wakers(), scheduler.pending()), (1, 0, 0));
    assert!(task.polls_until_ready(&mut sleep) <= 2 && start.elapsed() >= REST);
}

/// The instants are those of the global scheduler's clock from then on.
#[test]
fn what_is_left_passes_in_real_time_whatever_the_clock_does() {
    let (clock, task) = (ManualClock::new(), Poller::new());
    let (scheduler, _driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    clock.advance(HOUR);
    close(&scheduler);
    let before = Instant::now();
    let mut sleep = waiting(&scheduler, &task, HOUR);
    assert!((before + HOUR..=Instant::now() + HOUR).contains(&sleep.deadline()));
    clock.advance(HOUR * 2);
    assert!(task.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
}

#[test]
fn a_reset_moves_a_sleep_that_waits_elsewhere() {
    let task = Poller::new();
    let mut sleep = waiting_elsewhere(&task);
    assert!(!sleep.is_elapsed());
    assert_eq!((task.woken(), task.wakers()), (0, 1));
    // Brought forward, without another poll.
    let start = StdInstant::now();
    reset(&mut sleep, REST);
    until("it is woken", || task.woken() == 1);
    assert!(start.elapsed() >= REST);
    assert_eq!(task.poll(&mut sleep), READY);
    // Put off, again and again.
    reset(&mut sleep, HOUR);
    for _ in 0..1_000 {
        assert!(task.poll(&mut sleep).is_pending());
        reset(&mut sleep, HOUR * 2);
    }
    assert!(task.poll(&mut sleep).is_pending());
    // To a time that has come.
    let before = task.woken();
    reset(&mut sleep, Duration::ZERO);
    assert_eq!((task.woken() - before, task.poll(&mut sleep)), (1, READY));
}

/// The scheduler takes no timers any more, and has not ended yet.
#[test]
fn a_reset_while_the_scheduler_stops_takes_the_waker_elsewhere() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let sleep = Arc::new(Mutex::new(waiting(&scheduler, &task, HOUR)));
    let (moved, stops) = (Arc::clone(&sleep), scheduler.clone());
    let stop = move || {
        drop(stops.stop()); // the end comes after this run
        Pin::new(&mut *moved.lock().expect("no panic")).reset(stops.now() + REST);
    };
    scheduler.schedule_once(SECOND, stop).expect("open");
    let start = StdInstant::now();
    assert_eq!(driver.advance(SECOND), 1);
    until("it is woken", || task.woken() == 1);
    assert!(start.elapsed() >= REST);
    assert_eq!(task.poll(&mut *sleep.lock().expect("no panic")), READY);
}

#[test]
fn s09_a_sleep_that_waits_elsewhere_frees_its_waker_when_it_is_dropped() {
    let task = Poller::new();
    let sleep = waiting_elsewhere(&task);
    assert_eq!(task.wakers(), 1);
    drop(sleep);
    assert_eq!((task.wakers(), task.woken()), (0, 0));
}

/// It waits on the global scheduler, which nobody can close under it.
#[test]
fn a_sleep_outlives_its_scheduler_and_whoever_closes_the_global_one() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    close(&scheduler);
    let start = StdInstant::now();
    let (mut sleep, mut far) =
        (waiting(&scheduler, &task, REST), waiting(Scheduler::global(), &task, HOUR));
    assert_eq!(Scheduler::global().close().unwrap_err(), CloseError::Global);
    assert!(Scheduler::global().stop().wait().is_empty());
    assert!(task.poll(&mut far).is_pending());
    let polls = task.polls_until_ready(&mut sleep);
    assert!(start.elapsed() >= REST && polls <= 3, "{polls} polls in {:?}", start.elapsed());
    assert!(task.poll(&mut far).is_pending(), "nothing has ended it");
}

/// It is another thread that wakes it then.
#[test]
fn a_driver_that_is_patient_waits_for_a_sleep_that_waits_elsewhere() {
    let (scheduler, driver) = driven();
    close(&scheduler);
    let start = StdInstant::now();
    let patience = Duration::from_secs(60);
    driver.block_on_patiently(patience, scheduler.sleep(REST)).expect("it is woken");
    assert!(start.elapsed() >= REST);
    assert!(driver.block_on(scheduler.sleep(HOUR)).is_err(), "it does not hang either");
}

// ----- timeouts ----------------------------------------------------------------------------

/// `Elapsed` means elapsed: otherwise each request of a service whose scheduler is full would fail at once, and be made
/// again at once.
#[test]
fn s25_a_timeout_that_finds_no_scheduler_ends_when_its_time_is_up() {
    for Unwilling(kind, scheduler, _driver) in unwilling() {
        let (task, start) = (Poller::new(), StdInstant::now());
        let mut long = scheduler.timeout(SECOND * 30, pending::<()>());
        let mut short = scheduler.timeout(REST, pending::<()>());
        assert!(task.poll(&mut long).is_pending(), "{kind}");
        let (ended, polls) = task.until_ready(&mut short);
        assert!(ended.is_err() && start.elapsed() >= REST && polls <= 2, "{kind}: {polls} polls");
        assert!(task.poll(&mut long).is_pending() && task.woken() <= 1, "{kind}");
        assert_eq!(task.poll(&mut scheduler.timeout(REST, ready(1))), Poll::Ready(Ok(1)));
        let in_time = block_on(scheduler.timeout(SECOND * 30, scheduler.sleep(STEP)));
        assert_eq!(in_time, Ok(()), "{kind}");
    }
}

#[test]
fn a_close_leaves_a_timeout_the_rest_of_its_time() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut timeout = scheduler.timeout_at(scheduler.now() + SECOND, pending::<()>());
    let mut never = scheduler.timeout(Duration::MAX, pending::<()>());
    assert!(task.poll(&mut timeout).is_pending() && task.poll(&mut never).is_pending());
    driver.advance(SECOND - REST);
    let closed = StdInstant::now();
    close(&scheduler);
    let (ended, polls) = task.until_ready(&mut timeout);
    assert!(ended.is_err() && polls <= 2 && closed.elapsed() >= REST, "{polls} polls");
    assert!(task.poll(&mut never).is_pending());
}

// ----- intervals ---------------------------------------------------------------------------

/// Each takes its period, and its task is polled when it begins and when it ends.
#[test]
fn a_loop_of_ticks_does_not_spin() {
    for Unwilling(kind, scheduler, _driver) in unwilling() {
        for missed in
            [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip]
        {
            let (task, start) = (Poller::new(), StdInstant::now());
            let mut interval = scheduler.interval(STEP);
            interval.set_missed_tick_behavior(missed);
            assert_eq!(
                task.until_ready(&mut pin!(interval.tick())).1,
                1,
                "{kind}: the first one comes at once"
            );
            let (first, polls) = task.until_ready(&mut pin!(interval.tick()));
            assert!(polls <= 2 && start.elapsed() >= STEP, "{kind}: {polls} polls");
            for k in 1..=5 {
                let (due, polls) = task.until_ready(&mut pin!(interval.tick()));
                let now = StdInstant::now();
                assert!(due >= first + STEP * k && now >= due.into_std(), "{kind}: {missed:?}");
                assert!(now - start >= STEP * (k + 1) && polls <= 2, "{kind}: {polls} polls");
                assert!(missed != MissedTickBehavior::Burst || due == first + STEP * k);
            }
            interval.reset_after(HOUR);
            assert!(task.poll(&mut pin!(interval.tick())).is_pending(), "{kind}");
        }
    }
}

#[test]
fn a_close_in_the_midst_of_a_loop_of_ticks_leaves_them_their_period() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut interval = scheduler.interval(REST);
    for _ in 0..3 {
        assert!(task.poll(&mut pin!(interval.tick())).is_ready());
        assert!(task.poll(&mut pin!(interval.tick())).is_pending());
        driver.advance(REST);
    }
    let start = StdInstant::now();
    close(&scheduler);
    assert!(task.poll(&mut pin!(interval.tick())).is_ready(), "its time had come before");
    let (first, polls) = task.until_ready(&mut pin!(interval.tick()));
    assert!(polls <= 2 && start.elapsed() >= REST, "{polls} polls in {:?}", start.elapsed());
    let (second, _) = task.until_ready(&mut pin!(interval.tick()));
    assert!(second == first + REST && start.elapsed() >= REST * 2);
}
