//! `Delay`: a sleep without errors, on virtual time; and in real time where its scheduler does not keep the time.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{driven, driven_by, until};
use tickwheel::future::{Delay, block_on};
use tickwheel::{CloseError, ManualClock, Precision, ScheduleError, Scheduler};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// What is left of a delay when its scheduler gives up. It passes in real time, which is what these tests are about.
const REST: Duration = Duration::from_millis(30);

fn close(scheduler: &Scheduler) {
    assert!(scheduler.close().expect("nobody turns it").is_empty());
}

/// Returns a delay that the task has polled, and that is not ready.
#[track_caller]
fn waiting(scheduler: &Scheduler, task: &Poller, time: Duration) -> Delay {
    let mut delay = scheduler.delay(time);
    assert!(task.poll(&mut delay).is_pending());
    delay
}

/// Closes the scheduler, and returns a delay of an hour that waits elsewhere for that reason.
#[track_caller]
fn waiting_elsewhere(scheduler: &Scheduler, task: &Poller) -> Delay {
    close(scheduler);
    waiting(scheduler, task, HOUR)
}

// ----- its own scheduler -------------------------------------------------------------------

#[test]
fn s01_a_delay_is_ready_at_its_deadline_and_never_before() {
    let (scheduler, driver) = driven_by(Scheduler::builder().precision(Precision::Exact));
    let (task, start) = (Poller::new(), scheduler.now());
    let mut delay = scheduler.delay(SECOND);
    let mut until = scheduler.delay_until(start + SECOND);
    assert_eq!((delay.deadline(), until.deadline()), (start + SECOND, start + SECOND));
    assert_eq!(scheduler.pending(), 0, "nothing is scheduled before the first poll");
    assert!(task.poll(&mut delay).is_pending() && task.poll(&mut until).is_pending());
    driver.advance(SECOND - Duration::from_nanos(1));
    assert!(task.poll(&mut delay).is_pending() && !delay.is_elapsed());
    driver.advance(Duration::from_nanos(1));
    assert_eq!((task.woken(), delay.is_elapsed()), (2, true));
    assert_eq!((task.poll(&mut delay), task.poll(&mut until)), (Poll::Ready(()), Poll::Ready(())));
    assert_eq!((task.wakers(), scheduler.stats().scheduled()), (0, 2));
}

#[test]
fn a_delay_that_was_ready_is_ready_again_until_it_is_reset() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut delay = waiting(&scheduler, &task, MILLI);
    driver.advance(MILLI);
    assert_eq!([task.poll(&mut delay), task.poll(&mut delay)], [Poll::Ready(()); 2]);
    delay.reset_after(SECOND);
    assert_eq!(delay.deadline(), scheduler.now() + SECOND);
    assert!(task.poll(&mut delay).is_pending() && !delay.is_elapsed());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut delay), Poll::Ready(()));
    close(&scheduler);
    assert_eq!(task.poll(&mut delay), Poll::Ready(()), "a close does not undo it");
}

#[test]
fn a_delay_is_put_off_without_a_new_timer_and_brought_forward_without_a_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut delay = waiting(&scheduler, &task, SECOND);
    for _ in 0..100 {
        delay.reset_after(SECOND * 2);
        assert!(task.poll(&mut delay).is_pending());
    }
    assert_eq!(scheduler.stats().scheduled(), 1);
    delay.reset_after(MILLI);
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut delay)), (1, Poll::Ready(())));
}

#[test]
fn s09_a_delay_that_is_dropped_frees_its_waker_and_its_place() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let delay = waiting(&scheduler, &task, SECOND);
    assert_eq!((task.wakers(), scheduler.pending()), (1, 1));
    drop(delay);
    assert_eq!((task.wakers(), scheduler.pending(), task.woken()), (0, 0, 0));
}

// ----- never -------------------------------------------------------------------------------

#[test]
fn a_delay_that_is_never_ready_holds_no_timer() {
    let ((scheduler, driver), task) =
        (driven_by(Scheduler::builder().max_pending(1)), Poller::new());
    for mut never in [Delay::never(&scheduler), scheduler.delay(Duration::MAX)] {
        assert!(task.poll(&mut never).is_pending() && task.poll(&mut never).is_pending());
        assert_eq!((task.wakers(), scheduler.stats().scheduled()), (1, 0));
        driver.advance(SECOND * 1_000_000);
        assert!(!never.is_elapsed() && never.deadline() > scheduler.now() + SECOND * 1_000_000);
        assert!(format!("{never:?}").contains("is_never: true"));
    }
    let mut never = Delay::never(&scheduler);
    assert!(task.poll(&mut never).is_pending());
    close(&scheduler);
    assert_eq!(task.woken(), 0, "a close does not matter to it");
}

/// A sleep has an error to tell, so it needs a timer to be told of a close.
#[test]
fn s04_a_sleep_that_is_never_ready_takes_a_place_and_is_woken_by_a_close_alone() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(Duration::MAX);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(SECOND * 1_000_000);
    assert_eq!((scheduler.pending(), task.woken(), driver.next_deadline()), (1, 0, None));
    close(&scheduler);
    assert_eq!((task.woken(), scheduler.pending()), (1, 0));
    assert_eq!(task.poll(&mut sleep), Poll::Ready(Err(ScheduleError::Closed)));
}

#[test]
fn a_reset_of_a_delay_that_is_never_ready_wakes_the_task_that_waits() {
    let ((scheduler, driver), task, other) = (driven(), Poller::new(), Poller::new());
    let mut delay = Delay::never(&scheduler);
    assert!(task.poll(&mut delay).is_pending() && other.poll(&mut delay).is_pending());
    delay.reset_after(SECOND);
    assert_eq!((scheduler.pending(), task.wakers(), other.wakers()), (1, 0, 1));
    driver.advance(SECOND);
    assert_eq!((task.woken(), other.woken()), (0, 1));
    assert_eq!(other.poll(&mut delay), Poll::Ready(()));

    delay.reset_after(Duration::MAX);
    assert!(other.poll(&mut delay).is_pending());
    delay.reset(scheduler.now()); // it has come already
    assert_eq!((other.woken(), other.wakers()), (2, 0));
    assert_eq!(other.poll(&mut delay), Poll::Ready(()));

    let mut delay = waiting(&scheduler, &task, SECOND);
    delay.reset_after(Duration::MAX);
    assert_eq!((scheduler.pending(), task.wakers()), (0, 1), "it gives its timer up");
    delay.reset_after(MILLI);
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut delay)), (1, Poll::Ready(())));
}

// ----- a scheduler that is closed or full ----------------------------------------------------

#[test]
fn a_close_leaves_a_delay_the_rest_of_its_time() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut delay = waiting(&scheduler, &task, SECOND);
    driver.advance(SECOND - REST);
    let closed = Instant::now();
    close(&scheduler);
    assert_eq!(task.woken(), 1, "it has to look for another scheduler");
    let polls = task.polls_until_ready(&mut delay);
    assert!(closed.elapsed() >= REST && polls <= 3, "{polls} polls in {:?}", closed.elapsed());
    assert!(delay.is_elapsed());
    assert_eq!((task.poll(&mut delay), task.wakers()), (Poll::Ready(()), 0));
}

#[test]
fn a_delay_of_a_scheduler_that_was_closed_before_takes_its_time() {
    for is_driven in [true, false] {
        let scheduler = if is_driven { driven().0 } else { Scheduler::new() };
        drop(scheduler.close().expect("in time"));
        let (task, start) = (Poller::new(), Instant::now());
        let mut delay = scheduler.delay(REST);
        let polls = task.polls_until_ready(&mut delay);
        assert!(start.elapsed() >= REST && polls <= 2, "{polls} polls in {:?}", start.elapsed());
        // What is over is ready at once.
        assert_eq!(task.poll(&mut scheduler.delay(Duration::ZERO)), Poll::Ready(()));
    }
}

#[test]
fn s25_a_delay_that_finds_no_room_takes_its_time_elsewhere() {
    let ((scheduler, driver), task) =
        (driven_by(Scheduler::builder().max_pending(1)), Poller::new());
    let held = scheduler.schedule_once(SECOND * 60, || ()).expect("the first");
    let start = Instant::now();
    let mut delay = scheduler.delay(REST);
    let polls = task.polls_until_ready(&mut delay);
    assert!(start.elapsed() >= REST && polls <= 2, "{polls} polls in {:?}", start.elapsed());
    // A reset asks its own scheduler first again, even while the delay waits elsewhere.
    delay.reset_after(SECOND * 30);
    assert!(task.poll(&mut delay).is_pending());
    assert!(held.cancel() && scheduler.pending() == 0);
    delay.reset_after(SECOND);
    assert_eq!((scheduler.pending(), task.wakers()), (1, 1));
    let woken = task.woken();
    driver.advance(SECOND);
    assert_eq!((task.woken() - woken, task.poll(&mut delay)), (1, Poll::Ready(())));
}

#[test]
fn a_reset_moves_a_delay_that_waits_elsewhere() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let mut delay = waiting_elsewhere(&scheduler, &task);
    assert!(!delay.is_elapsed());
    assert_eq!((task.woken(), task.wakers()), (0, 1));
    // Brought forward, without another poll.
    let start = Instant::now();
    delay.reset_after(REST);
    until("it is woken", || task.woken() == 1);
    assert!(start.elapsed() >= REST);
    assert_eq!(task.poll(&mut delay), Poll::Ready(()));
    // Put off, again and again.
    delay.reset_after(REST);
    for _ in 0..1_000 {
        assert!(task.poll(&mut delay).is_pending());
        delay.reset_after(HOUR);
    }
    assert!(task.poll(&mut delay).is_pending());
    // To never, and back.
    delay.reset_after(Duration::MAX);
    assert!(task.poll(&mut delay).is_pending());
    let (start, before) = (Instant::now(), task.woken());
    delay.reset_after(REST);
    until("it is woken", || task.woken() > before);
    assert!(start.elapsed() >= REST && task.poll(&mut delay) == Poll::Ready(()));
    // To a time that has come.
    delay.reset_after(HOUR);
    assert!(task.poll(&mut delay).is_pending());
    let before = task.woken();
    delay.reset(scheduler.now());
    assert_eq!((task.woken() - before, task.poll(&mut delay)), (1, Poll::Ready(())));
}

/// It waits on the global scheduler, which nobody can close under it.
#[test]
fn a_delay_outlives_its_scheduler_and_whoever_closes_the_global_one() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    close(&scheduler);
    let start = Instant::now();
    let (mut delay, mut far) =
        (waiting(&scheduler, &task, REST), waiting(Scheduler::global(), &task, HOUR));
    assert_eq!(Scheduler::global().close().unwrap_err(), CloseError::Global);
    assert!(Scheduler::global().stop().wait().is_empty());
    assert!(task.poll(&mut far).is_pending());
    let polls = task.polls_until_ready(&mut delay);
    assert!(start.elapsed() >= REST && polls <= 3, "{polls} polls in {:?}", start.elapsed());
    assert!(task.poll(&mut far).is_pending(), "nothing has ended it");
}

/// It is another thread that wakes it then.
#[test]
fn a_driver_that_is_patient_waits_for_a_delay_that_waits_elsewhere() {
    let (scheduler, driver) = driven();
    close(&scheduler);
    let start = Instant::now();
    let patience = Duration::from_secs(60);
    driver.block_on_patiently(patience, scheduler.delay(REST)).expect("it is woken");
    assert!(start.elapsed() >= REST);
    assert!(driver.block_on(scheduler.delay(HOUR)).is_err(), "it does not hang either");
}

#[test]
fn a_clock_that_is_moved_by_hand_still_counts_for_a_delay_that_waits_elsewhere() {
    let (clock, task) = (ManualClock::new(), Poller::new());
    let (scheduler, _driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let mut delay = waiting_elsewhere(&scheduler, &task);
    clock.advance(HOUR);
    assert!(delay.is_elapsed());
    assert_eq!(task.poll(&mut delay), Poll::Ready(()));
}

#[test]
fn s09_a_delay_that_waits_elsewhere_frees_its_waker_when_it_is_dropped() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let delay = waiting_elsewhere(&scheduler, &task);
    assert_eq!(task.wakers(), 1);
    drop(delay);
    assert_eq!((task.wakers(), task.woken()), (0, 0));
}

/// The same task, on another thread, resets what a first one waits for.
#[test]
fn a_reset_by_another_thread_wakes_a_thread_that_waits() {
    let scheduler = Scheduler::new();
    let delay = Arc::new(Mutex::new(Delay::never(&scheduler)));
    let shared = Arc::clone(&delay);
    let waits = std::thread::spawn(move || {
        block_on(std::future::poll_fn(|context| {
            std::pin::Pin::new(&mut *shared.lock().expect("no panic")).poll(context)
        }));
    });
    std::thread::sleep(MILLI * 5); // most of the time it waits by then; it passes in any case
    delay.lock().expect("no panic").reset_after(MILLI);
    waits.join().expect("it is woken");
}

#[test]
fn s24_a_delay_keeps_its_scheduler_alive() {
    let delay = Scheduler::new().delay(MILLI);
    block_on(delay);
}

#[test]
fn s27_a_delay_is_what_traits_of_other_crates_ask_for() {
    fn is<T: Future<Output = ()> + Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    is::<Delay>();
    let (scheduler, _driver) = driven();
    assert!(format!("{:?}", scheduler.delay(SECOND)).contains("is_elapsed: false"));
}
