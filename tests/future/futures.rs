//! `future`: sleeps, timeouts, intervals and calls, on virtual time and polled by hand.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::future::{Future, pending, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{
    Grenade, Moody, OnDrop, PATIENCE, Random, Wall, count, driven, driven_by, panic_on_purpose,
    silence,
};
use tickwheel::future::{Elapsed, Interval, Sleep, Timeout, block_on};
use tickwheel::pool::{JoinError, ScheduledFuture, ScheduledThreadPool};
use tickwheel::{
    CloseError, Driver, Inline, ManualClock, MissedTicks, Observer, Precision, ScheduleError,
    Scheduler, ThreadPool, WheelView,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn exact() -> (Scheduler, Driver) {
    driven_by(Scheduler::builder().precision(Precision::Exact))
}

const OK: Poll<Result<(), ScheduleError>> = Poll::Ready(Ok(()));
const CLOSED: Poll<Result<(), ScheduleError>> = Poll::Ready(Err(ScheduleError::Closed));

// ----- Sleep -------------------------------------------------------------------------------

#[test]
fn s01_a_sleep_is_ready_at_its_deadline_and_never_before() {
    let ((scheduler, driver), task) = (exact(), Poller::new());
    let start = scheduler.now();
    let mut sleep = scheduler.sleep(SECOND);
    assert_eq!(sleep.deadline(), start + SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(SECOND - Duration::from_nanos(1));
    assert!(task.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
    assert_eq!(task.woken(), 0);
    driver.advance(Duration::from_nanos(1));
    assert_eq!(task.woken(), 1);
    assert!(sleep.is_elapsed());
    assert_eq!(task.poll(&mut sleep), OK);
    assert_eq!((task.woken(), task.wakers()), (1, 0));
}

#[test]
fn s02_a_sleep_is_at_most_a_tick_late() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(MILLI * 5 / 2);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(MILLI * 2);
    assert_eq!(task.woken(), 0);
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, OK));
}

#[test]
fn the_time_counts_from_the_call_and_nothing_is_scheduled_before_the_first_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert_eq!(scheduler.stats().scheduled(), 0);
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut sleep), OK);
    assert_eq!((scheduler.stats().scheduled(), task.woken()), (0, 0));
}

#[test]
fn what_is_over_is_ready_at_the_first_poll() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    assert_eq!(task.poll(&mut scheduler.sleep(Duration::ZERO)), OK);
    assert_eq!(task.poll(&mut scheduler.sleep_until(scheduler.now() - MILLI)), OK);
    assert_eq!(scheduler.stats().scheduled(), 0);
}

#[test]
fn a_sleep_that_was_ready_is_ready_again() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(MILLI);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(MILLI);
    assert_eq!([task.poll(&mut sleep), task.poll(&mut sleep)], [OK, OK]);
}

#[test]
fn s04_any_duration_is_taken() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    for duration in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)] {
        let mut sleep = scheduler.sleep(duration);
        assert!(task.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
        driver.advance(SECOND * 1_000_000);
        assert!(task.poll(&mut sleep).is_pending());
    }
    assert_eq!((task.woken(), task.wakers(), scheduler.pending()), (0, 0, 0));
}

#[test]
fn s09_dropping_a_sleep_frees_its_waker_and_its_place_at_once() {
    let ((scheduler, _driver), task) =
        (driven_by(Scheduler::builder().max_pending(1)), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    assert_eq!((task.wakers(), scheduler.pending()), (1, 1));
    drop(sleep);
    assert_eq!((task.wakers(), scheduler.pending(), task.woken()), (0, 0, 0));
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.cancelled(), stats.fired()), (1, 1, 0));
}

#[test]
fn a_waker_is_replaced_only_when_it_differs() {
    let ((scheduler, driver), one, other) = (driven(), Poller::new(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    for _ in 0..5 {
        assert!(one.poll(&mut sleep).is_pending());
    }
    assert_eq!((scheduler.stats().scheduled(), one.wakers()), (1, 1));
    assert!(other.poll(&mut sleep).is_pending());
    assert_eq!((one.wakers(), other.wakers(), scheduler.pending()), (0, 1, 1));
    driver.advance(SECOND);
    assert_eq!((one.woken(), other.woken()), (0, 1));
    assert_eq!(one.poll(&mut sleep), OK);
}

#[test]
fn a_sleep_that_is_put_off_schedules_nothing_and_wakes_at_the_new_deadline() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    for _ in 0..1_000 {
        driver.advance(MILLI / 2);
        sleep.reset(scheduler.now() + SECOND);
        assert!(task.poll(&mut sleep).is_pending());
    }
    assert_eq!((scheduler.stats().scheduled(), task.woken()), (1, 0));
    driver.advance(SECOND / 2);
    assert_eq!(task.woken(), 1, "at the old deadline");
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(SECOND / 2 - MILLI);
    assert_eq!(task.woken(), 1);
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (2, OK));
}

#[test]
fn a_sleep_that_is_brought_forward_wakes_without_another_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    sleep.reset(scheduler.now() + MILLI);
    assert_eq!((scheduler.pending(), task.wakers()), (1, 1));
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, OK));
    // To a time that has come: it is woken at once.
    sleep.reset(scheduler.now() + SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    sleep.reset(scheduler.now());
    assert_eq!((task.woken(), task.wakers(), scheduler.pending()), (2, 0, 0));
    assert_eq!(task.poll(&mut sleep), OK);
}

#[test]
fn a_reset_by_way_of_a_pin_is_the_same() {
    let (scheduler, driver) = driven();
    let mut sleep = pin!(scheduler.sleep(SECOND));
    sleep.as_mut().reset(scheduler.now() + MILLI);
    driver.advance(MILLI);
    assert_eq!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())), OK);
}

#[test]
fn a_reset_between_the_ring_and_the_poll_counts() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(MILLI);
    assert!(task.poll(&mut sleep).is_pending());
    driver.advance(MILLI);
    sleep.reset(scheduler.now() + SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    // Brought forward after the alarm has rung. The task that was woken polls.
    driver.advance(SECOND);
    assert_eq!(task.woken(), 2);
    sleep.reset(scheduler.now());
    assert_eq!((task.woken(), task.poll(&mut sleep)), (2, OK));
}

#[test]
fn a_reset_after_the_scheduler_was_closed_wakes_who_waits() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    let _stopping = scheduler.stop(); // the end itself comes with the next turn
    sleep.reset(scheduler.now() + MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, CLOSED));
    drop(driver);
}

#[test]
fn s20_a_close_wakes_sleepers_with_an_error_and_they_are_no_leftovers() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let (mut near, mut far) = (scheduler.sleep(MILLI), scheduler.sleep(SECOND));
    assert!(task.poll(&mut near).is_pending() && task.poll(&mut far).is_pending());
    scheduler.schedule_once(SECOND, || ()).expect("open");
    driver.advance(MILLI);
    let leftovers = scheduler.close().expect("nobody turns it");
    assert_eq!((leftovers.len(), task.woken()), (1, 2));
    assert_eq!(task.poll(&mut near), OK, "its time had come before");
    assert_eq!(task.poll(&mut far), CLOSED);
    assert_eq!(task.poll(&mut scheduler.sleep(Duration::ZERO)), CLOSED);
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.fired(), stats.dropped(), stats.pending()), (3, 1, 1, 0));
}

#[test]
fn a_driver_that_is_dropped_wakes_sleepers_with_an_error() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    drop(driver);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, CLOSED));
    assert_eq!((task.wakers(), scheduler.pending()), (0, 0));
}

#[test]
fn s24_a_sleep_keeps_its_scheduler_alive() {
    let scheduler = Scheduler::new();
    let sleep = scheduler.sleep(MILLI);
    drop(scheduler);
    assert_eq!(block_on(sleep), Ok(()));
}

/// All within one tick.
#[test]
fn s02_s19_a_thousand_sleeps_of_one_tick_are_woken_each_at_its_own_time() {
    let ((scheduler, driver), task) = (exact(), Poller::new());
    let step = Duration::from_nanos(500);
    let mut sleeps: Vec<_> = (1..=1_000).map(|n| scheduler.sleep(step * n)).collect();
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
    for woken in 1..=1_000 {
        driver.advance(step);
        assert_eq!(task.woken(), woken);
    }
    let mut sleeps: Vec<_> = (0..5_000).map(|_| scheduler.sleep(SECOND)).collect();
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
    assert_eq!(driver.advance(SECOND), 5_000);
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == OK));
}

/// The scheduler ends with its last handle, and must not wake an alarm that was called off.
#[test]
fn s09_the_last_handle_calls_its_alarm_off_before_the_scheduler_ends() {
    for _ in 0..500 {
        let task = Poller::new();
        let mut sleep = Scheduler::builder().build().expect("good settings").sleep(SECOND * 60);
        assert!(task.poll(&mut sleep).is_pending());
        drop(sleep);
        assert_eq!((task.woken(), task.wakers()), (0, 0));
    }
}

#[test]
fn s25_a_full_scheduler_is_an_error() {
    let ((scheduler, _driver), task) =
        (driven_by(Scheduler::builder().max_pending(1)), Poller::new());
    let (mut one, mut other) = (scheduler.sleep(SECOND), scheduler.sleep(SECOND));
    assert!(task.poll(&mut one).is_pending());
    assert_eq!(task.poll(&mut other), Poll::Ready(Err(ScheduleError::Full)));
    drop(one);
    assert!(task.poll(&mut other).is_pending());
}

/// Rows of wakers and of tasks. Some of them come after the wheel has given out their tick.
#[test]
fn s03_s19_wakers_and_tasks_keep_their_order_and_come_in_shares() {
    struct Note(Arc<Mutex<Vec<(u32, usize)>>>, (u32, usize));
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.0.lock().expect("no panic").push(self.1);
        }
    }
    /// Tasks handed over in this turn, the most of any turn, and the most at once.
    #[derive(Clone, Default)]
    struct Shares(Arc<[AtomicUsize; 3]>);
    impl Observer for Shares {
        fn handed_over(&self, tasks: usize) {
            let [turn, most, at_once] = &*self.0;
            most.fetch_max(turn.fetch_add(tasks, Ordering::Relaxed) + tasks, Ordering::Relaxed);
            at_once.fetch_max(tasks, Ordering::Relaxed);
        }
        fn turned(&self, _wheel: WheelView<'_>) {
            self.0[0].store(0, Ordering::Relaxed);
        }
    }
    let shares = Shares::default();
    let builder = Scheduler::builder().precision(Precision::Exact).observer(shares.clone());
    let (scheduler, driver) = driven_by(builder);
    let (start, notes) = (scheduler.now(), Arc::new(Mutex::new(Vec::new())));
    let (mut random, mut sleeps, mut is_waker) = (Random(7), Vec::new(), false);
    for number in 0..6_000 {
        if number == 4_000 {
            driver.advance(MILLI * 10);
        }
        if number % 2_000 == 0 || number > 5_000 {
            is_waker = !is_waker || random.below(3) == 0;
        }
        let tenths = 100 + 2 * random.below(4) as u32;
        let (at, note) = (start + MILLI / 10 * tenths, (tenths, number));
        let notes = Arc::clone(&notes);
        if is_waker {
            let (mut sleep, waker) =
                (scheduler.sleep_until(at), Waker::from(Arc::new(Note(notes, note))));
            if Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_ready() {
                waker.wake();
            }
            sleeps.push(sleep);
        } else {
            let task = move || notes.lock().expect("no panic").push(note);
            scheduler.schedule_at(at, task).expect("open");
        }
    }
    driver.advance(MILLI * 2);
    let notes = std::mem::take(&mut *notes.lock().expect("no panic"));
    assert_eq!(notes.len(), 6_000);
    let is_late = |(tenths, number): &(u32, usize)| *tenths == 100 && *number >= 4_000;
    let (late, rest): (Vec<_>, Vec<_>) = notes.into_iter().partition(is_late);
    assert!(rest.is_sorted() && late.len() > 200, "what was due when it came waits for nobody");
    let [_, most, at_once] = shares.0.each_ref().map(|number| number.load(Ordering::Relaxed));
    assert_eq!((most, at_once), (1024, 256));
}

/// The clock is read once more for the lateness, when the waker has left its queue.
#[test]
fn a_clock_that_panics_loses_no_waker() {
    silence();
    for breaks_at in 1..12 {
        let (armed, task) = (Arc::new(AtomicUsize::new(0)), Poller::new());
        let clock = Moody(ManualClock::new(), Arc::clone(&armed));
        let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock));
        let mut sleeps: Vec<_> = (0..10).map(|_| scheduler.sleep(SECOND)).collect();
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
        armed.store(breaks_at, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| driver.advance(SECOND)));
        armed.store(0, Ordering::Relaxed);
        driver.advance(SECOND);
        assert_eq!((task.woken(), scheduler.pending()), (10, 0), "at reading {breaks_at}");
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == OK));
    }
}

#[test]
fn the_tick_thread_wakes_whatever_the_executor_does() {
    let ((scheduler, driver), task) =
        (driven_by(Scheduler::builder().executor(Wall)), Poller::new());
    let walled = scheduler.with_executor(Wall);
    let (mut one, mut other) = (scheduler.sleep(MILLI), walled.sleep(MILLI));
    assert!(task.poll(&mut one).is_pending() && task.poll(&mut other).is_pending());
    assert_eq!(driver.advance(MILLI), 2);
    assert_eq!((task.poll(&mut one), task.poll(&mut other), task.woken()), (OK, OK, 2));
    assert_eq!(scheduler.stats().rejected(), 0);
}

/// A waker that calls a closure.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(does: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(does)))
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn s11_a_waker_may_use_the_scheduler() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let other = Arc::new(Mutex::new(Some(scheduler.sleep(SECOND))));
    let inner = Arc::clone(&other);
    let (again, told) = (scheduler.clone(), task.clone());
    let busy = waker(move || {
        drop(inner.lock().expect("no panic").take());
        again.schedule_once(MILLI, || ()).expect("open");
        let mut next = again.sleep(MILLI);
        assert!(told.poll(&mut next).is_pending());
        *inner.lock().expect("no panic") = Some(next);
        assert!(again.close().is_err(), "on the tick thread");
    });
    let mut sleep = scheduler.sleep(MILLI);
    assert!(poll_with(&mut sleep, &busy).is_pending());
    assert_eq!(driver.advance(MILLI), 1);
    assert_eq!((driver.advance(MILLI), task.woken()), (2, 1));
}

#[test]
fn s11_a_waker_may_close_or_drop_what_it_waits_for_as_it_is_dropped() {
    let (scheduler, _driver) = driven();
    let stopping = scheduler.clone();
    let guard = Arc::new(Mutex::new(OnDrop(move || drop(stopping.stop()))));
    let mut sleep = scheduler.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker(move || drop(guard.lock()))).is_pending());
    drop(sleep);
    assert!(scheduler.is_closed());
}

#[test]
fn s17_a_waker_that_panics_takes_nobody_along() {
    silence();
    let panics = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&panics);
    let builder = Scheduler::builder().on_panic(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let ((scheduler, driver), task) = (driven_by(builder), Poller::new());
    let mut sleeps: Vec<_> = (0..3).map(|_| scheduler.sleep(MILLI)).collect();
    assert!(task.poll(&mut sleeps[0]).is_pending());
    assert!(poll_with(&mut sleeps[1], &waker(|| panic_on_purpose())).is_pending());
    assert!(task.poll(&mut sleeps[2]).is_pending());
    driver.advance(MILLI);
    assert_eq!((task.woken(), panics.load(Ordering::Relaxed)), (2, 1));
    assert_eq!(scheduler.stats().panicked(), 1);
    // A waker panics when it is dropped, because of a drop of the sleep, and because of the end.
    let grenades = [(); 2].map(|()| {
        let grenade = Mutex::new(Grenade);
        waker(move || drop(grenade.lock()))
    });
    let mut sleeps: Vec<_> = (0..2).map(|_| scheduler.sleep(SECOND)).collect();
    for (sleep, grenade) in sleeps.iter_mut().zip(grenades) {
        assert!(poll_with(sleep, &grenade).is_pending());
    }
    drop(sleeps.pop());
    assert_eq!(panics.load(Ordering::Relaxed), 2);
    assert!(scheduler.close().expect("nobody turns it").is_empty());
    assert_eq!(panics.load(Ordering::Relaxed), 3);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn s26_a_million_sleeps_are_counted_like_tasks() {
    let half = count(500_000, 500_000);
    let all = 2 * half;
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleeps: Vec<_> =
        (0..all as u32).map(|n| scheduler.sleep(MILLI * (n % 1000 + 1))).collect();
    for sleep in &mut sleeps {
        assert!(task.poll(sleep).is_pending());
    }
    assert_eq!(scheduler.pending(), all);
    drop(sleeps.drain(..half));
    assert_eq!(scheduler.pending(), half);
    assert_eq!(driver.advance(SECOND), half);
    assert_eq!(task.woken(), half);
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == OK));
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled(), stats.fired(), stats.pending()), (half as u64, half as u64, 0));
}

#[test]
fn s26_a_close_that_has_returned_has_counted_the_sleepers() {
    for _ in 0..20 {
        let (scheduler, task) = (Scheduler::new(), Poller::new());
        let mut sleeps: Vec<_> = (0..500).map(|_| scheduler.sleep(SECOND * 60)).collect();
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
        assert!(scheduler.close().expect("in time").is_empty());
        assert_eq!((scheduler.pending(), scheduler.stats().dropped()), (0, 500));
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == CLOSED));
        crate::common::until("all are woken", || task.woken() == 500);
    }
}

/// On a real clock, because any other clock is read again.
#[test]
fn a_reading_that_lies_ahead_holds_nobody_up() {
    let (scheduler, task) = (Scheduler::new(), Poller::new());
    let ahead = scheduler.now() + SECOND * 3600;
    let alarm = scheduler.wake_at_since(ahead, ahead + SECOND, &task.waker()).expect("open");
    let (mut sleep, other) = (scheduler.sleep(MILLI), Poller::new());
    assert!(other.poll(&mut sleep).is_pending());
    crate::common::until("it rings", || other.woken() == 1);
    assert!(alarm.is_some_and(|alarm| alarm.is_pending()));
}

// ----- alarms ------------------------------------------------------------------------------

#[test]
fn an_alarm_tells_where_it_stands_and_gives_its_waker_back() {
    let ((scheduler, driver), one, other) = (driven(), Poller::new(), Poller::new());
    let set = |at| scheduler.wake_at(at, &one.waker()).expect("open");
    assert!(set(scheduler.now()).is_none(), "its instant has come");
    let alarm = set(scheduler.now() + SECOND).expect("later");
    assert!(
        alarm.is_pending() && alarm.will_wake(&one.waker()) && !alarm.will_wake(&other.waker())
    );
    alarm.into_waker().expect("pending").wake();
    assert_eq!((one.woken(), one.wakers(), scheduler.pending()), (1, 0, 0));
    let alarm = set(scheduler.now() + SECOND).expect("later");
    driver.advance(SECOND);
    assert!(!alarm.is_pending() && one.woken() == 2);
    assert!(alarm.into_waker().is_none());
}

#[test]
fn an_alarm_that_is_just_ringing_is_not_pending() {
    let (scheduler, driver) = driven();
    let place = Arc::new(Mutex::new(None::<tickwheel::Alarm>));
    let (seen, inner) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&place));
    let count = Arc::clone(&seen);
    let looks = waker(move || {
        let is_pending =
            inner.lock().expect("no panic").as_ref().expect("it is there").is_pending();
        count.fetch_add(if is_pending { 100 } else { 1 }, Ordering::Relaxed);
    });
    *place.lock().expect("no panic") =
        scheduler.wake_at(scheduler.now() + MILLI, &looks).expect("open");
    driver.advance(MILLI);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    drop(place.lock().expect("no panic").take());
}

// ----- Timeout -----------------------------------------------------------------------------

#[test]
fn a_timeout_gives_the_value_or_the_end_of_the_time() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    assert_eq!(task.poll(&mut scheduler.timeout(Duration::ZERO, ready(7))), Poll::Ready(Ok(7)));
    assert_eq!(scheduler.stats().scheduled(), 0, "it needed no timer");

    let mut never = scheduler.timeout(SECOND, pending::<()>());
    assert!(task.poll(&mut never).is_pending());
    driver.advance(SECOND - MILLI);
    assert!(task.poll(&mut never).is_pending());
    driver.advance(MILLI);
    let Poll::Ready(Err(elapsed)) = task.poll(&mut never) else { panic!("its time is over") };
    assert_eq!((task.woken(), elapsed.reason()), (1, None));
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
}

#[test]
fn a_future_that_is_done_at_the_deadline_has_made_it() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let same_time = scheduler.sleep(SECOND);
    let mut timeout = scheduler.timeout(SECOND, same_time);
    assert!(task.poll(&mut timeout).is_pending());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(Ok(()))));
}

#[test]
fn a_timeout_of_a_closed_scheduler_says_so_but_asks_the_future_first() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let mut pending_one = scheduler.timeout_at(scheduler.now() + SECOND, pending::<()>());
    assert!(task.poll(&mut pending_one).is_pending());
    drop(scheduler.close().expect("nobody turns it"));
    assert_eq!(task.woken(), 1);
    let Poll::Ready(Err(elapsed)) = task.poll(&mut pending_one) else { panic!("it is closed") };
    assert_eq!(elapsed.reason(), Some(ScheduleError::Closed));
    assert!(elapsed.to_string().contains("closed"), "{elapsed}");
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::Other);
    assert_eq!(task.poll(&mut scheduler.timeout(SECOND, ready(1))), Poll::Ready(Ok(1)));
}

#[test]
fn a_timeout_takes_futures_that_may_not_move_and_gives_others_back() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let inner = scheduler.sleep(MILLI);
    let mut block = Box::pin(scheduler.timeout(SECOND, async move { inner.await.map(|()| 5) }));
    assert!(task.poll(&mut block).is_pending());
    driver.advance(MILLI);
    assert_eq!(task.poll(&mut block), Poll::Ready(Ok(Ok(5))));

    let mut timeout: Timeout<std::future::Ready<u8>> = scheduler.timeout(SECOND, ready(3));
    assert_eq!(timeout.deadline(), scheduler.now() + SECOND);
    *timeout.get_mut() = ready(4);
    assert!(format!("{:?}", timeout.get_ref()).contains('4'));
    assert_eq!(task.poll(&mut timeout.into_inner()), Poll::Ready(4));
}

#[test]
fn s09_a_timeout_that_is_dropped_drops_its_future_and_its_place() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let mut timeout = Box::pin(scheduler.timeout(SECOND, async move {
        pending::<()>().await;
        drop(inside);
    }));
    assert!(task.poll(&mut timeout).is_pending());
    drop(timeout);
    assert_eq!((Arc::strong_count(&held), task.wakers(), scheduler.pending()), (1, 0, 0));
}

// ----- Interval ----------------------------------------------------------------------------

/// The ticks that are there to be taken, in milliseconds after `start`.
fn take(task: &Poller, interval: &mut Interval, start: Instant) -> Vec<u128> {
    let mut ticks = Vec::new();
    while let Poll::Ready(tick) = task.poll(&mut pin!(interval.tick())) {
        ticks.push((tick.expect("open") - start).as_millis());
    }
    ticks
}

#[test]
fn s12_an_interval_keeps_its_phase_and_its_first_tick_is_at_once() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    let mut interval = scheduler.interval(MILLI * 10);
    assert_eq!(take(&task, &mut interval, start), [0]);
    for k in 1..50 {
        driver.advance(MILLI * 10 - MILLI);
        assert_eq!(take(&task, &mut interval, start), []);
        driver.advance(MILLI);
        assert_eq!(take(&task, &mut interval, start), [k * 10]);
    }
    assert_eq!(task.woken(), 49);
    let mut later = scheduler.interval_at(start + SECOND, MILLI);
    assert!(task.poll(&mut pin!(later.tick())).is_pending());
    driver.advance(SECOND);
    assert!(take(&task, &mut later, start).starts_with(&[1000, 1001]));
}

#[test]
fn s13_missed_ticks_are_caught_up_skipped_or_start_a_new_phase() {
    for (missed, at_34, at_40, at_44) in [
        (MissedTicks::Burst, vec![0, 10, 20, 30], vec![40], vec![]),
        (MissedTicks::Skip, vec![0], vec![40], vec![]),
        (MissedTicks::Delay, vec![0], vec![], vec![44]),
    ] {
        let ((scheduler, driver), task) = (driven(), Poller::new());
        let start = scheduler.now();
        let mut interval = scheduler.interval(MILLI * 10).missed(missed);
        assert_eq!((interval.missed_ticks(), interval.period()), (missed, MILLI * 10));
        driver.advance(MILLI * 34);
        assert_eq!(take(&task, &mut interval, start), at_34, "{missed:?}");
        driver.advance(MILLI * 6);
        assert_eq!(take(&task, &mut interval, start), at_40, "{missed:?}");
        driver.advance(MILLI * 4);
        assert_eq!(take(&task, &mut interval, start), at_44, "{missed:?}");
    }
}

#[test]
fn an_interval_is_set_anew() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    let mut interval = scheduler.interval(SECOND);
    assert_eq!(take(&task, &mut interval, start), [0]);
    driver.advance(MILLI * 300);
    interval.reset();
    driver.advance(MILLI * 700);
    assert_eq!(take(&task, &mut interval, start), []);
    driver.advance(MILLI * 300);
    assert_eq!(take(&task, &mut interval, start), [1300]);
    interval.reset_after(MILLI * 5);
    driver.advance(MILLI * 5);
    assert_eq!(take(&task, &mut interval, start), [1305]);
    interval.reset_immediately();
    assert_eq!(take(&task, &mut interval, start), [1305]);
    interval.reset_at(start + MILLI * 1400);
    interval.set_missed(MissedTicks::Skip);
    driver.advance(MILLI * 2500);
    assert_eq!(take(&task, &mut interval, start), [1400]);
    driver.advance(MILLI * 600);
    assert_eq!(take(&task, &mut interval, start), [4400]);
}

#[test]
fn a_tick_that_nobody_has_got_is_not_lost() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    let mut interval = scheduler.interval_at(start + MILLI, SECOND);
    assert!(task.poll(&mut pin!(interval.tick())).is_pending()); // and dropped
    driver.advance(MILLI);
    assert_eq!(task.woken(), 1, "its alarm stays with the interval");
    assert_eq!(take(&task, &mut interval, start), [1]);
}

#[test]
fn s15_a_zero_period_and_a_closed_scheduler_are_errors() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let mut zero = scheduler.interval(Duration::ZERO);
    let tick = task.poll(&mut pin!(zero.tick()));
    assert_eq!(tick, Poll::Ready(Err(ScheduleError::ZeroPeriod)));
    let mut interval = scheduler.interval_at(scheduler.now() + SECOND, SECOND);
    assert!(task.poll(&mut pin!(interval.tick())).is_pending());
    drop(scheduler.close().expect("nobody turns it"));
    assert_eq!(task.woken(), 1);
    for _ in 0..2 {
        let tick = task.poll(&mut pin!(interval.tick()));
        assert_eq!(tick, Poll::Ready(Err(ScheduleError::Closed)));
    }
}

#[test]
fn s04_an_interval_of_any_period_is_taken() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    let mut interval = scheduler.interval(Duration::MAX);
    assert_eq!(take(&task, &mut interval, start), [0]);
    driver.advance(SECOND * 1_000_000);
    assert_eq!(take(&task, &mut interval, start), []);
}

// ----- call_after --------------------------------------------------------------------------

/// Returns the outcome of a call, and does not wait for ever.
fn ended<T>(call: ScheduledFuture<T>) -> Result<T, JoinError> {
    call.join_timeout(crate::common::PATIENCE).expect("it resolves")
}

#[test]
fn a_call_is_made_at_its_time_and_gives_its_value() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut call = scheduler.call_after(SECOND, || String::from("done"));
    assert_eq!((call.remaining(), call.is_done(), call.is_periodic()), (SECOND, false, false));
    assert!(task.poll(&mut call).is_pending());
    driver.advance(SECOND);
    assert_eq!((call.remaining(), call.is_done(), task.woken()), (Duration::ZERO, true, 1));
    assert_eq!(ended(call).expect("it has run"), "done");
    assert_eq!(task.wakers(), 0);
}

#[test]
fn a_call_whose_future_is_dropped_is_made_all_the_same() {
    let (scheduler, driver) = driven();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    drop(scheduler.call_after(SECOND, move || count.fetch_add(1, Ordering::Relaxed)));
    driver.advance(SECOND);
    assert_eq!((runs.load(Ordering::Relaxed), Arc::strong_count(&runs)), (1, 1));
}

#[test]
fn s08_s09_a_call_that_is_cancelled_drops_its_closure_and_tells() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let mut call = scheduler.call_after(SECOND, move || drop(inside));
    let handle = call.handle();
    assert!(task.poll(&mut call).is_pending());
    assert!(handle.cancel() && !call.cancel() && handle.is_cancelled());
    assert_eq!((Arc::strong_count(&held), task.woken()), (1, 1));
    assert!(matches!(task.poll(&mut call), Poll::Ready(Err(JoinError::Cancelled))));
    assert_eq!(driver.advance(SECOND), 0);
}

#[test]
fn s15_a_call_that_panics_tells_its_future_and_its_scheduler() {
    silence();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let builder = Scheduler::builder().on_panic(move |panic| {
        tell.lock().expect("no panic").push(panic.message().map(str::to_owned));
    });
    let (scheduler, driver) = driven_by(builder);
    let call = scheduler.call_after(MILLI, || panic_on_purpose());
    let other = scheduler.call_after(MILLI, || std::panic::resume_unwind(Box::new(42_u8)));
    driver.advance(MILLI);
    let Err(JoinError::Panicked(payload)) = ended(call) else { panic!("it panicked") };
    assert_eq!(payload.message(), Some("on purpose"));
    let Err(JoinError::Panicked(payload)) = ended(other) else { panic!("it panicked") };
    assert_eq!(payload.into_inner().downcast_ref::<u8>(), Some(&42));
    assert_eq!(scheduler.stats().panicked(), 2);
    let told: Vec<_> = told.lock().expect("no panic").clone();
    assert_eq!(told[0].as_deref(), Some("on purpose"));
    assert!(told[1].is_some());
}

/// Each of these schedulers is gone for its user, and the call is a leftover that nobody takes.
#[test]
fn s24_a_call_whose_scheduler_was_stopped_and_left_resolves() {
    let threaded = || Scheduler::builder().shutdown_timeout(MILLI).build().expect("a thread");
    let call = {
        let scheduler = threaded();
        let call = scheduler.call_after(HOUR, || 1);
        drop(scheduler.stop());
        assert!(matches!(ended(call), Err(JoinError::Cancelled)), "its handle is still here");
        let (scheduler, _driver) = driven();
        let call = scheduler.call_after(HOUR, || 1);
        drop(scheduler.stop());
        call
    };
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));

    // The close gives up waiting for a run, and its user gives up too: the future is all that is left.
    let scheduler = threaded();
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let series = move || {
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_repeatedly(Duration::ZERO, HOUR, series).expect("open");
    let call = scheduler.call_after(HOUR, || 1);
    entered.recv().expect("it runs");
    assert_eq!(scheduler.close().map(drop), Err(CloseError::Timeout));
    assert!(!call.is_done(), "a later close may collect it");
    drop(scheduler);
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
    leave.send(()).expect("it runs");
}

/// A task asks for the leftovers and cannot wait for them. After that nobody is left who could close.
#[test]
fn s24_a_call_resolves_whoever_of_handle_driver_and_stopping_goes_last() {
    let asks = |scheduler: &Scheduler| {
        let inner = scheduler.clone();
        let ask = move || assert!(inner.stop().wait().is_empty(), "it is on the tick thread");
        scheduler.schedule_once(Duration::ZERO, ask).expect("open");
    };
    for driver_goes_first in [true, false] {
        let (scheduler, driver) = driven();
        let call = scheduler.call_after(HOUR, || 1);
        asks(&scheduler);
        driver.turn();
        assert!(scheduler.is_closed() && !call.is_done(), "a later close may collect it");
        if driver_goes_first {
            drop(driver);
            drop(scheduler);
        } else {
            drop(scheduler);
            assert!(!call.is_done(), "the driver may collect it");
            drop(driver);
        }
        assert!(matches!(ended(call), Err(JoinError::Cancelled)));
    }

    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let call = scheduler.call_after(HOUR, || 1);
    let (sender, receiver) = mpsc::channel::<Scheduler>();
    let ask = move || {
        let last = receiver.recv().expect("the test gives it");
        let stopping = last.stop();
        drop(last);
        assert!(stopping.wait().is_empty(), "it is on the tick thread");
    };
    scheduler.schedule_once(Duration::ZERO, ask).expect("open");
    sender.send(scheduler).expect("it waits");
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
}

/// Nobody takes the result, and the payload of the panic panics when it is dropped.
#[test]
fn s17_a_call_whose_panic_panics_takes_nobody_along() {
    silence();
    let (scheduler, driver) = driven();
    drop(scheduler.call_after(MILLI, || std::panic::panic_any(Grenade)));
    let other = scheduler.call_after(MILLI, || 5);
    driver.advance(MILLI);
    assert_eq!(ended(other).expect("it has run"), 5);
    assert_eq!(scheduler.stats().panicked(), 1);
}

#[test]
fn s20_a_call_that_will_not_be_made_resolves() {
    let (scheduler, _driver) = driven();
    let (returned, run) = (scheduler.call_after(SECOND, || 1), scheduler.call_after(SECOND, || 2));
    let mut leftovers = scheduler.close().expect("nobody turns it").into_iter();
    drop(leftovers.next());
    leftovers.next().expect("two were pending").run();
    assert!(matches!(ended(returned), Err(JoinError::Cancelled)));
    assert_eq!(ended(run).expect("it has run"), 2);
    let refused = scheduler.call_after(SECOND, || 3);
    assert!(refused.is_done() && !refused.cancel());
    assert!(matches!(ended(refused), Err(JoinError::Refused(ScheduleError::Closed))));
}

#[test]
fn s09_a_captured_value_that_panics_as_it_is_dropped_leaves_no_future_waiting() {
    silence();
    let (scheduler, _driver) = driven();
    let grenade = Grenade;
    let call = scheduler.call_after(SECOND, move || drop(grenade));
    assert!(call.cancel());
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
}

#[test]
fn a_call_that_is_joined_on_the_tick_thread_is_an_error() {
    let (scheduler, driver) = driven();
    let inner = scheduler.clone();
    let outcome = scheduler.call_after(MILLI, move || inner.call_after(MILLI, || ()).join());
    driver.advance(SECOND);
    let joined = ended(outcome).expect("it has run");
    assert!(matches!(joined, Err(JoinError::WouldDeadlock)), "{joined:?}");
}

/// Makes a call on a scheduler, and waits for its value, but not for ever.
fn outcome<T: Send + 'static>(
    scheduler: &Scheduler,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    scheduler.call_after(Duration::ZERO, f).join_timeout(PATIENCE).expect("it does not hang")
}

#[test]
fn a_call_that_only_threads_that_wait_could_make_is_an_error() {
    let executor = Arc::new(ThreadPool::new(1));
    let scheduler = Scheduler::builder().executor(executor).build().expect("threads");
    let inner = scheduler.clone();
    let joined = outcome(&scheduler, move || inner.call_after(MILLI, || 1).join());
    assert!(matches!(joined, Ok(Err(JoinError::WouldDeadlock))), "{joined:?}");

    // On another executor, or on a free thread, the call is made.
    let inner = scheduler.with_executor(Inline);
    let joined = outcome(&scheduler, move || inner.call_after(MILLI, || 1).join());
    assert!(matches!(joined, Ok(Ok(1))), "{joined:?}");
    let two = scheduler.with_executor(ThreadPool::new(2));
    for _ in 0..3 {
        let inner = two.clone();
        let joined = outcome(&two, move || inner.call_after(MILLI, || 1).join());
        assert!(matches!(joined, Ok(Ok(1))), "{joined:?}");
    }

    // Both wait. The second one gets the error, and then makes the call that the first one waits for.
    let meet = Arc::new(Barrier::new(2));
    let outer = [(); 2].map(|()| {
        let (inner, meet) = (two.clone(), Arc::clone(&meet));
        two.call_after(Duration::ZERO, move || {
            meet.wait();
            inner.call_after(MILLI, || 1).join().is_ok()
        })
    });
    let joined = outer.map(|call| call.join_timeout(PATIENCE).expect("no hang").expect("no panic"));
    assert_ne!(joined[0], joined[1], "one of them is told");
}

#[test]
fn a_call_that_joins_itself_is_an_error() {
    let scheduler = Scheduler::builder().executor(ThreadPool::new(3)).build().expect("threads");
    let (give, own) = channel::<ScheduledFuture<()>>();
    let (tell, told) = channel();
    let call = scheduler.call_after(MILLI, move || {
        let joined = own.recv_timeout(PATIENCE).expect("given").join();
        tell.send(matches!(joined, Err(JoinError::WouldDeadlock))).expect("awaited");
    });
    give.send(call).expect("it waits");
    assert!(told.recv_timeout(PATIENCE).expect("no hang"));
}

#[test]
fn a_call_that_a_pool_would_have_to_make_crosswise_is_an_error() {
    let pool = ScheduledThreadPool::new(1);
    let on_pool = Scheduler::builder().executor(pool.clone()).build().expect("threads");
    let on_thread = on_pool.with_executor(ThreadPool::new(1));
    let started = Arc::new(Barrier::new(2));
    let (inner, meet) = (pool.clone(), Arc::clone(&started));
    let one = on_thread.call_after(Duration::ZERO, move || {
        meet.wait();
        inner.submit(|| 1).expect("open").join().is_ok()
    });
    let (inner, meet) = (on_thread.clone(), Arc::clone(&started));
    let other = on_pool.call_after(Duration::ZERO, move || {
        meet.wait();
        inner.call_after(Duration::ZERO, || 1).join().is_ok()
    });
    let joined =
        [one, other].map(|call| call.join_timeout(PATIENCE).expect("no hang").expect("no panic"));
    assert_ne!(joined[0], joined[1], "one of them is told");
}

/// Runs a closure in a task on the tick thread of a scheduler, with a handle to the scheduler.
fn on_tick_thread<T: Send + 'static>(
    f: impl FnOnce(&Scheduler) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let inner = scheduler.clone();
    outcome(&scheduler, move || f(&inner))
}

#[test]
fn to_block_on_a_timer_that_only_this_thread_serves_is_a_panic() {
    silence();
    let one = on_tick_thread(|scheduler| block_on(scheduler.sleep(MILLI)).is_ok());
    let message = |ended: Result<bool, JoinError>| match ended {
        Err(JoinError::Panicked(payload)) => payload.message().map(str::to_owned),
        other => panic!("{other:?}"),
    };
    assert!(message(one).expect("words").contains("ThreadPool"), "it says what to do");
    let two = on_tick_thread(|scheduler| {
        block_on(async {
            let (mut one, mut other) = (scheduler.sleep(SECOND), scheduler.sleep(MILLI));
            std::future::poll_fn(|context| {
                let ready = [Pin::new(&mut one).poll(context), Pin::new(&mut other).poll(context)];
                if ready.iter().all(Poll::is_ready) { Poll::Ready(true) } else { Poll::Pending }
            })
            .await
        })
    });
    assert!(message(two).is_some());
    let timeout =
        on_tick_thread(|scheduler| block_on(scheduler.timeout(MILLI, pending::<()>())).is_ok());
    assert!(message(timeout).is_some());

    // A turn of a driver behaves like a tick thread.
    let (scheduler, driver) = driven();
    let inner = scheduler.clone();
    let call = scheduler.call_after(MILLI, move || block_on(inner.sleep(MILLI)).is_ok());
    driver.advance(SECOND);
    assert!(message(ended(call)).is_some());
}

#[test]
fn to_block_on_what_is_ready_or_woken_by_others_works_on_a_tick_thread_too() {
    assert!(matches!(on_tick_thread(|_| block_on(ready(1))), Ok(1)));
    let past = on_tick_thread(|scheduler| block_on(scheduler.sleep(Duration::ZERO)));
    assert!(matches!(past, Ok(Ok(()))));
    // The timer of another scheduler.
    let other = Scheduler::new();
    let slept = on_tick_thread(move |_| block_on(other.sleep(MILLI)));
    assert!(matches!(slept, Ok(Ok(()))));
    // A value from another thread, with a timeout of this scheduler.
    let pool = ScheduledThreadPool::new(1);
    let value = on_tick_thread(move |scheduler| {
        let value = pool.schedule(20 * MILLI, || 1).expect("open");
        block_on(scheduler.timeout(SECOND, value))
    });
    assert!(matches!(value, Ok(Ok(Ok(1)))), "{value:?}");
    // A timer that was dropped before others are waited for.
    let pool = ScheduledThreadPool::new(1);
    let value = on_tick_thread(move |scheduler| {
        block_on(async {
            let mut sleep = scheduler.sleep(SECOND);
            std::future::poll_fn(|context| {
                assert!(Pin::new(&mut sleep).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(sleep);
            pool.schedule(20 * MILLI, || 1).expect("open").await
        })
    });
    assert!(matches!(value, Ok(Ok(1))), "{value:?}");
}

#[test]
fn a_pending_call_does_not_keep_its_scheduler_alive_but_its_future_does() {
    let scheduler = Scheduler::new();
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    drop(scheduler.call_after(SECOND * 3600, move || drop(inside)));
    drop(scheduler);
    crate::common::until("the call is dropped with its scheduler", || {
        Arc::strong_count(&held) == 1
    });
    let future = Scheduler::new().call_after(MILLI, || 5);
    assert_eq!(block_on(future).expect("it runs"), 5);
}

// ----- all of them -------------------------------------------------------------------------

#[test]
fn a_clock_that_is_moved_by_hand_wakes_them() {
    let clock = ManualClock::new();
    let scheduler = Scheduler::builder().clock(clock.clone()).build().expect("good settings");
    let task = Poller::new();
    let mut sleep = scheduler.sleep(SECOND * 3600);
    assert!(task.poll(&mut sleep).is_pending());
    clock.advance(SECOND * 3600);
    crate::common::until("it is woken", || task.woken() == 1);
    assert_eq!(task.poll(&mut sleep), OK);
}

#[test]
fn s27_they_are_what_a_user_of_futures_expects() {
    fn is<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    fn is_error<T: std::error::Error + Send + Sync + Copy + Eq + 'static>() {}
    is::<Sleep>();
    is::<Interval>();
    is::<Timeout<Sleep>>();
    is::<tickwheel::Alarm>();
    is_error::<Elapsed>();
    let (scheduler, _driver) = driven();
    let sleep = scheduler.sleep(SECOND);
    assert!(format!("{sleep:?}").contains("is_elapsed: false"));
    assert!(format!("{:?}", scheduler.interval(SECOND)).contains("period: 1s"));
    assert!(format!("{:?}", scheduler.timeout(SECOND, sleep)).contains("deadline"));
}
