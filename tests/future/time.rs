//! Sleeps, timeouts and intervals on a scheduler that keeps their time: virtual, and polled by hand.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::mem::ManuallyDrop;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant as StdInstant};

use crate::common::told::Poller;
use crate::common::{Moody, Random, driven, driven_by, for_each_seed, until};
use crate::{close, waiting};
use futures_util::future::join;
use tickwheel::future::block_on;
use tickwheel::time::error::Elapsed;
use tickwheel::time::{Instant, Interval, MissedTickBehavior, Sleep, Timeout};
use tickwheel::{Driver, ManualClock, Precision, Scheduler};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

const READY: Poll<()> = Poll::Ready(());

fn exact() -> (Scheduler, Driver) {
    driven_by(Scheduler::builder().precision(Precision::Exact))
}

/// Moves the deadline to `time` from now.
fn reset(sleep: &mut Sleep, scheduler: &Scheduler, time: Duration) {
    Pin::new(sleep).reset(scheduler.now() + time);
}

// ----- Sleep -------------------------------------------------------------------------------

#[test]
fn s01_a_sleep_is_ready_at_its_deadline_and_never_before() {
    let ((scheduler, driver), task) = (exact(), Poller::new());
    let start = scheduler.now();
    let mut sleeps = [
        scheduler.sleep(SECOND),
        scheduler.sleep_until(start + SECOND),
        scheduler.sleep_until(Instant::from_std(start) + SECOND),
    ];
    for sleep in &mut sleeps {
        assert_eq!(sleep.deadline().into_std(), start + SECOND);
        assert!(task.poll(sleep).is_pending());
    }
    driver.advance(SECOND - Duration::from_nanos(1));
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending() && !sleep.is_elapsed()));
    assert_eq!(task.woken(), 0);
    driver.advance(Duration::from_nanos(1));
    assert_eq!(task.woken(), 3);
    assert!(sleeps.iter_mut().all(|sleep| sleep.is_elapsed() && task.poll(sleep) == READY));
    assert_eq!((task.woken(), task.wakers(), scheduler.stats().scheduled()), (3, 0, 3));
}

#[test]
fn s02_a_sleep_is_at_most_a_tick_late() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, MILLI * 5 / 2);
    driver.advance(MILLI * 2);
    assert_eq!(task.woken(), 0);
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, READY));
}

#[test]
fn the_time_counts_from_the_call_and_nothing_is_scheduled_before_the_first_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert_eq!(scheduler.stats().scheduled(), 0);
    driver.advance(SECOND);
    assert!(!sleep.is_elapsed(), "nobody has polled it");
    assert_eq!(task.poll(&mut sleep), READY);
    assert_eq!((scheduler.stats().scheduled(), task.woken()), (0, 0));
}

#[test]
fn what_is_over_is_ready_at_the_first_poll() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    assert_eq!(task.poll(&mut scheduler.sleep(Duration::ZERO)), READY);
    assert_eq!(task.poll(&mut scheduler.sleep_until(scheduler.now() - MILLI)), READY);
    assert_eq!(scheduler.stats().scheduled(), 0);
}

#[test]
fn a_sleep_that_was_ready_is_ready_until_it_is_reset() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, MILLI);
    driver.advance(MILLI);
    assert_eq!([task.poll(&mut sleep), task.poll(&mut sleep)], [READY; 2]);
    assert_eq!((scheduler.stats().scheduled(), task.wakers()), (1, 0), "without a new timer");
    reset(&mut sleep, &scheduler, SECOND);
    assert!(task.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut sleep), READY);
    close(&scheduler);
    assert_eq!(task.poll(&mut sleep), READY, "a close does not undo it");
}

/// As in tokio, whose reset registers a timer by itself.
#[test]
fn a_sleep_that_was_reset_knows_that_its_deadline_has_come() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut new = scheduler.sleep(SECOND);
    let mut over = waiting(&scheduler, &task, MILLI);
    driver.advance(MILLI);
    assert_eq!(task.poll(&mut over), READY);
    for sleep in [&mut new, &mut over] {
        reset(sleep, &scheduler, MILLI * 5);
        assert!(!sleep.is_elapsed());
    }
    driver.advance(MILLI * 5);
    assert!(new.is_elapsed() && over.is_elapsed(), "without a poll");
    reset(&mut new, &scheduler, SECOND);
    assert!(!new.is_elapsed());
    reset(&mut new, &scheduler, Duration::ZERO);
    assert!(new.is_elapsed() && task.poll(&mut new) == READY);
}

/// A sleep whose end is beyond the range of the clock takes 30 years, and a timeout has no end.
#[test]
fn s04_any_duration_is_taken() {
    for duration in [Duration::MAX, Duration::from_secs(u64::MAX), YEAR * 20_000] {
        let ((scheduler, driver), task) = (driven(), Poller::new());
        let mut sleep = waiting(&scheduler, &task, duration);
        let mut timeout = scheduler.timeout(duration, pending::<()>());
        assert!(task.poll(&mut timeout).is_pending());
        driver.advance(YEAR * 30 - SECOND);
        assert!(task.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
        driver.advance(SECOND);
        let is_beyond = duration > YEAR * 20_000;
        assert_eq!(task.poll(&mut sleep).is_ready(), is_beyond, "{duration:?}");
        driver.advance(YEAR * 100);
        assert!(task.poll(&mut timeout).is_pending());
        assert_eq!((task.woken(), driver.next_deadline()), (usize::from(is_beyond), None));
        drop((sleep, timeout));
        assert_eq!((task.wakers(), scheduler.pending()), (0, 0));
    }
}

#[test]
fn s09_dropping_a_sleep_frees_its_waker_and_its_place_at_once() {
    let ((scheduler, _driver), task) =
        (driven_by(Scheduler::builder().max_pending(1)), Poller::new());
    let sleep = waiting(&scheduler, &task, SECOND);
    assert_eq!((task.wakers(), scheduler.pending()), (1, 1));
    drop(sleep);
    assert_eq!((task.wakers(), scheduler.pending(), task.woken()), (0, 0, 0));
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.cancelled(), stats.fired()), (1, 1, 0));
    drop(waiting(&scheduler, &task, SECOND));
    assert_eq!(scheduler.stats().scheduled(), 2, "there is room");
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
    assert_eq!(one.poll(&mut sleep), READY);
}

/// Its data lies on the stack of the caller, and that of a clone does not. So two tasks have a waker at one address.
#[test]
#[expect(unsafe_code, reason = "such a waker is made by hand")]
fn a_waker_whose_clone_has_other_data_is_told_from_that_of_another_task() {
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            // SAFETY: it is the mutex below, which outlives the waker.
            let task = unsafe { &*data.cast::<Mutex<Poller>>() };
            let clone = ManuallyDrop::new(task.lock().expect("whole").waker());
            RawWaker::new(clone.data(), clone.vtable())
        },
        |_| unreachable!("it is borrowed"),
        |_| unreachable!("it is cloned, and not woken"),
        |_| {},
    );
    let ((scheduler, driver), one, other) = (driven(), Poller::new(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    let task = Mutex::new(one.clone());
    // SAFETY: the functions of the table do what they should, as long as `task` is there.
    let waker = unsafe { Waker::new((&raw const task).cast(), &TABLE) };
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut sleep).poll(&mut context).is_pending());
    *task.lock().expect("whole") = other.clone();
    assert!(Pin::new(&mut sleep).poll(&mut context).is_pending());
    driver.advance(SECOND);
    assert_eq!((one.woken(), other.woken()), (0, 1));
}

/// Compilers copy such tables, so a clone may have another one.
#[test]
#[expect(unsafe_code, reason = "such a waker is made by hand")]
fn a_waker_whose_clone_has_another_vtable_is_the_same_one() {
    const CLONE: fn(*const ()) -> RawWaker = |data| RawWaker::new(data, &OTHER);
    static ONE: RawWakerVTable = RawWakerVTable::new(CLONE, |_| {}, |_| {}, |_| {});
    static OTHER: RawWakerVTable = RawWakerVTable::new(CLONE, |_| (), |_| {}, |_| {});
    let (scheduler, _driver) = driven();
    let mut sleep = scheduler.sleep(SECOND);
    // SAFETY: no function of the tables uses the data.
    let waker = unsafe { Waker::new(std::ptr::null(), &ONE) };
    for _ in 0..5 {
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(scheduler.stats().scheduled(), 1);
}

/// With each message of a connection, for example. It is polled once in vain, at the old deadline. In real time, because a
/// virtual clock spares tests that poll.
#[test]
fn a_sleep_that_is_put_off_schedules_nothing() {
    let (scheduler, task) = (Scheduler::new(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, HOUR);
    for _ in 0..1_000 {
        reset(&mut sleep, &scheduler, HOUR);
        assert!(task.poll(&mut sleep).is_pending());
    }
    assert_eq!((scheduler.stats().scheduled(), task.woken(), task.wakers()), (1, 0, 1));
    let mut sleep = waiting(&scheduler, &task, MILLI * 20);
    reset(&mut sleep, &scheduler, HOUR);
    until("it is woken", || task.woken() == 1);
    assert!(!sleep.is_elapsed() && task.poll(&mut sleep).is_pending());
    assert_eq!(scheduler.stats().scheduled(), 3);
}

#[test]
fn a_sleep_that_is_put_off_wakes_at_the_new_deadline() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, SECOND);
    for _ in 0..1_000 {
        driver.advance(MILLI / 2);
        reset(&mut sleep, &scheduler, SECOND);
        assert!(task.poll(&mut sleep).is_pending());
    }
    driver.advance(SECOND - MILLI);
    assert_eq!((task.woken(), scheduler.pending()), (0, 1));
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, READY));
}

#[test]
fn a_sleep_that_is_brought_forward_wakes_without_another_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, SECOND);
    reset(&mut sleep, &scheduler, MILLI);
    assert_eq!((scheduler.pending(), task.wakers()), (1, 1));
    driver.advance(MILLI);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, READY));
    // To a time that has come: it is woken at once.
    reset(&mut sleep, &scheduler, SECOND);
    assert!(task.poll(&mut sleep).is_pending());
    reset(&mut sleep, &scheduler, Duration::ZERO);
    assert_eq!((task.woken(), task.wakers(), scheduler.pending()), (2, 0, 0));
    assert_eq!(task.poll(&mut sleep), READY);
}

#[test]
fn a_reset_between_the_ring_and_the_poll_counts() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = waiting(&scheduler, &task, MILLI);
    driver.advance(MILLI);
    reset(&mut sleep, &scheduler, SECOND);
    assert!(!sleep.is_elapsed() && task.poll(&mut sleep).is_pending());
    // Brought forward after the alarm has rung. The task that was woken polls.
    driver.advance(SECOND);
    assert_eq!(task.woken(), 2);
    reset(&mut sleep, &scheduler, Duration::ZERO);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (2, READY));
}

/// One task waits for a sleep behind a lock, and another one moves it.
#[test]
fn a_reset_by_another_task_wakes_the_one_that_waits_at_the_new_deadline() {
    for (first, then) in [(HOUR, SECOND), (SECOND * 2, HOUR)] {
        let (scheduler, driver) = exact();
        let sleep = Mutex::new(scheduler.sleep(first));
        let mut polls = 0;
        let waits = poll_fn(|context| {
            polls += 1;
            Pin::new(&mut *sleep.lock().expect("no panic")).poll(context)
        });
        let moves = async {
            scheduler.sleep(SECOND).await;
            reset(&mut sleep.lock().expect("no panic"), &scheduler, then);
        };
        let start = scheduler.now();
        // Each in a task of its own, as far as wake-ups go.
        let both = join(tasks(waits), tasks(moves));
        driver.block_on(both).expect("it is woken");
        assert_eq!((scheduler.now() - start, polls), (SECOND + then, 2));
    }
}

/// Polls a future only if it was woken, also if the task around it is polled for other reasons.
fn tasks<F: Future>(future: F) -> impl Future<Output = F::Output> {
    use futures_util::stream::{FuturesUnordered, StreamExt};
    let alone: FuturesUnordered<F> = std::iter::once(future).collect();
    async move { pin!(alone).next().await.expect("there is one") }
}

#[test]
fn s24_a_sleep_keeps_its_scheduler_alive() {
    let sleep = Scheduler::new().sleep(MILLI);
    block_on(sleep);
}

/// The scheduler ends with its last handle, and must not wake an alarm that was called off.
#[test]
fn s09_the_last_handle_calls_its_alarm_off_before_the_scheduler_ends() {
    for _ in 0..500 {
        let task = Poller::new();
        let sleep = waiting(&Scheduler::builder().build().expect("a thread"), &task, SECOND * 60);
        drop(sleep);
        assert_eq!((task.woken(), task.wakers()), (0, 0));
    }
}

// ----- Timeout -----------------------------------------------------------------------------

#[test]
fn a_timeout_gives_the_value_or_the_end_of_the_time() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    assert_eq!(task.poll(&mut scheduler.timeout(Duration::ZERO, ready(7))), Poll::Ready(Ok(7)));

    let mut never = scheduler.timeout(SECOND, pending::<()>());
    assert!(task.poll(&mut never).is_pending());
    driver.advance(SECOND - MILLI);
    assert!(task.poll(&mut never).is_pending());
    driver.advance(MILLI);
    let Poll::Ready(Err(elapsed)) = task.poll(&mut never) else { panic!("its time is over") };
    assert_eq!(task.woken(), 1);
    let error = io::Error::from(elapsed);
    assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::TimedOut, "timed out".into()));

    let mut past = scheduler.timeout_at(scheduler.now() - MILLI, pending::<()>());
    assert_eq!(task.poll(&mut past), Poll::Ready(Err(elapsed)));
}

/// What a timeout costs: one reading of the clock, and no timer, if its future is ready at the first poll.
#[test]
fn a_timeout_whose_future_is_ready_reads_the_clock_once_and_schedules_nothing() {
    const MANY: usize = 1_000;
    let (left, task) = (Arc::new(AtomicUsize::new(MANY)), Poller::new());
    let clock = Moody(ManualClock::new(), Arc::clone(&left));
    let (scheduler, _driver) = driven_by(Scheduler::builder().clock(clock));
    let readings = || MANY - left.swap(MANY, Ordering::Relaxed);
    readings();
    let timeout = scheduler.timeout(SECOND * 30, ready(7));
    let at = scheduler.timeout_at(StdInstant::now(), ready(7));
    let (sleep, until) = (scheduler.sleep(SECOND), scheduler.sleep_until(StdInstant::now()));
    assert_eq!(readings(), 2, "one for each duration");
    for mut timeout in [timeout, at] {
        assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(7)));
    }
    drop((sleep, until));
    assert_eq!((readings(), scheduler.stats().scheduled()), (0, 0));
    // One that is pending once is one timer, which is cancelled.
    let mut is_second = false;
    let twice =
        poll_fn(|_| if std::mem::replace(&mut is_second, true) { READY } else { Poll::Pending });
    let mut timeout = scheduler.timeout(SECOND * 30, twice);
    assert!(task.poll(&mut timeout).is_pending());
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(())));
    drop(timeout);
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.cancelled(), scheduler.pending()), (1, 1, 0));
}

#[test]
fn a_future_that_is_done_at_the_deadline_has_made_it() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let same_time = scheduler.sleep(SECOND);
    let mut timeout = scheduler.timeout(SECOND, same_time);
    assert!(task.poll(&mut timeout).is_pending());
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(())));
}

#[test]
fn a_timeout_returns_its_error_again_and_does_not_poll_its_future() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut polls = 0;
    let future = poll_fn(|_| {
        polls += 1;
        if polls > 2 { READY } else { Poll::Pending }
    });
    let mut timeout = pin!(scheduler.timeout(SECOND, future));
    assert!(task.poll(&mut timeout).is_pending());
    driver.advance(SECOND);
    let elapsed = task.poll(&mut timeout);
    assert!(matches!(elapsed, Poll::Ready(Err(_))));
    close(&scheduler);
    assert_eq!([task.poll(&mut timeout), task.poll(&mut timeout)], [elapsed; 2]);
}

#[test]
fn a_timeout_that_had_an_output_polls_its_future_again() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut polls = 0;
    let counts = poll_fn(move |_| {
        polls += 1;
        Poll::Ready(polls)
    });
    let mut timeout = scheduler.timeout(SECOND, counts);
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(1)));
    driver.advance(SECOND);
    assert_eq!(task.poll(&mut timeout), Poll::Ready(Ok(2)));
}

#[test]
fn a_timeout_takes_futures_that_may_not_move_and_gives_others_back() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let inner = scheduler.sleep(MILLI);
    let block = async move {
        inner.await;
        5
    };
    let mut block = Box::pin(scheduler.timeout(SECOND, block));
    assert!(task.poll(&mut block).is_pending());
    driver.advance(MILLI);
    assert_eq!(task.poll(&mut block), Poll::Ready(Ok(5)));

    let mut timeout: Timeout<std::future::Ready<u8>> = scheduler.timeout(SECOND, ready(3));
    assert_eq!(timeout.deadline().into_std(), scheduler.now() + SECOND);
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
fn take(task: &Poller, interval: &mut Interval, start: StdInstant) -> Vec<u128> {
    let mut ticks = Vec::new();
    while let Poll::Ready(tick) = task.poll(&mut pin!(interval.tick())) {
        ticks.push((tick.into_std() - start).as_millis());
    }
    ticks
}

/// The loop waits for what another task of its thread does.
#[test]
fn a_loop_of_what_is_due_gives_its_thread_to_others() {
    let scheduler = Scheduler::new();
    let past = scheduler.now();
    let due: [fn(&Scheduler) -> Sleep; 2] =
        [|s| s.sleep(Duration::ZERO), |s| s.sleep_until(s.now())];
    for due in due {
        let mut looped = pin!(async {
            for _ in 0..10_000 {
                due(&scheduler).await;
            }
        });
        let task = Poller::new();
        assert!(task.poll(&mut looped.as_mut()).is_pending(), "it gives way");
        assert_eq!(task.woken(), 1, "and goes on");
    }
    // Two tasks do not add up.
    let two = [Poller::new(), Poller::new()];
    for task in two.iter().cycle().take(1_000) {
        assert!(task.poll(&mut due[0](&scheduler)).is_ready());
    }
    let mut ticks = scheduler.interval_at(past, Duration::from_nanos(1));
    let mut looped = pin!(async {
        for _ in 0..1_000 {
            ticks.tick().await;
        }
    });
    assert!(Poller::new().poll(&mut looped.as_mut()).is_pending());
    let mut by_hand = scheduler.interval_at(past, Duration::from_nanos(1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        (0..1_000).all(|_| by_hand.poll_tick(&mut context).is_ready()),
        "nobody would be woken"
    );
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
        (MissedTickBehavior::Burst, vec![0, 10, 20, 30], vec![40], vec![]),
        (MissedTickBehavior::Skip, vec![0], vec![40], vec![]),
        (MissedTickBehavior::Delay, vec![0], vec![], vec![44]),
    ] {
        let ((scheduler, driver), task) = (driven(), Poller::new());
        let start = scheduler.now();
        let mut interval = scheduler.interval(MILLI * 10);
        assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
        interval.set_missed_tick_behavior(missed);
        assert_eq!((interval.missed_tick_behavior(), interval.period()), (missed, MILLI * 10));
        for (step, ticks) in [(34, at_34), (6, at_40), (4, at_44)] {
            driver.advance(MILLI * step);
            assert_eq!(take(&task, &mut interval, start), ticks, "{missed:?}");
        }
    }
}

/// Against the rules as numbers, in microseconds. A tick that is taken up to five milliseconds late is not missed.
/// `ecosystem` compares the same with tokio itself.
#[test]
fn s13_the_next_tick_is_the_one_that_the_rule_names() {
    const MICRO: Duration = Duration::from_micros(1);
    for_each_seed(200, 1, |seed| {
        let mut random = Random(seed);
        let period = 1 + random.below(20_000);
        let (scheduler, driver) = exact();
        let start = scheduler.now();
        let micros = |instant: StdInstant| (instant - start).as_micros() as u64;
        for missed in
            [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip]
        {
            let mut interval = scheduler.interval(MICRO * period as u32);
            interval.set_missed_tick_behavior(missed);
            let mut due = micros(scheduler.now());
            for _ in 0..20 {
                driver.advance(MICRO * random.below(3 * period) as u32);
                let tick = driver.block_on(interval.tick()).expect("it is woken");
                assert_eq!(micros(tick.into_std()), due, "{missed:?} of {period} us");
                let now = micros(scheduler.now());
                assert!(now >= due);
                due = match missed {
                    MissedTickBehavior::Delay if now - due > 5_000 => now + period,
                    MissedTickBehavior::Skip if now - due > 5_000 => {
                        due + ((now - due) / period + 1) * period
                    }
                    _ => due + period,
                };
            }
        }
    });
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
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    driver.advance(MILLI * 2500);
    assert_eq!(take(&task, &mut interval, start), [1400]);
    driver.advance(MILLI * 600);
    assert_eq!(take(&task, &mut interval, start), [4400]);
}

/// A reset reaches the task that waits for the tick.
#[test]
fn an_interval_that_is_brought_forward_wakes_without_another_poll() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    let mut interval = scheduler.interval_at(start + HOUR, SECOND);
    assert_eq!(take(&task, &mut interval, start), []);
    interval.reset_after(MILLI);
    driver.advance(MILLI);
    assert_eq!((task.woken(), take(&task, &mut interval, start)), (1, vec![1]));
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
#[should_panic(expected = "the period is zero")]
fn s15_a_period_of_zero_is_a_mistake_that_is_told() {
    drop(driven().0.interval(Duration::ZERO));
}

#[test]
#[should_panic(expected = "the period is zero")]
fn s15_also_with_a_start() {
    drop(tickwheel::time::interval_at(StdInstant::now(), Duration::ZERO));
}

#[test]
fn s04_an_interval_of_any_period_is_taken() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let start = scheduler.now();
    for missed in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
        let mut interval = scheduler.interval_at(start, Duration::MAX);
        interval.set_missed_tick_behavior(missed);
        assert_eq!(take(&task, &mut interval, start), [0]);
        driver.advance(SECOND * 1_000_000);
        assert_eq!(take(&task, &mut interval, start), []);
        interval.reset();
        interval.reset_after(Duration::MAX);
        assert_eq!(take(&task, &mut interval, start), []);
    }
}

// ----- Instant -----------------------------------------------------------------------------

#[test]
fn instants_are_those_of_std_and_differences_stop_at_zero() {
    let std = StdInstant::now();
    let (early, late) = (Instant::from_std(std), Instant::from(std) + SECOND);
    assert_eq!((late.into_std(), StdInstant::from(late)), (std + SECOND, std + SECOND));
    assert_eq!((late - early, early - late), (SECOND, Duration::ZERO));
    assert_eq!((late.duration_since(early), early.duration_since(late)), (SECOND, Duration::ZERO));
    assert_eq!(late.saturating_duration_since(early), SECOND);
    assert_eq!(early.saturating_duration_since(late), Duration::ZERO);
    assert_eq!(late.checked_duration_since(early), Some(SECOND));
    assert_eq!(early.checked_duration_since(late), None);
    assert_eq!((late.checked_sub(SECOND), early.checked_add(SECOND)), (Some(early), Some(late)));
    assert_eq!(early.checked_add(Duration::MAX), None);
    let mut moved = early;
    moved += HOUR;
    moved -= HOUR - SECOND;
    assert!(moved == late && early < late && late - SECOND == early && early + SECOND == late);
    assert_eq!(format!("{early:?}"), format!("{std:?}"));
    assert!(Instant::now() >= early && early.elapsed() < HOUR);
    assert_eq!((Instant::now() + HOUR).elapsed(), Duration::ZERO);
}

// ----- all of them -------------------------------------------------------------------------

#[test]
fn a_clock_that_is_moved_by_hand_wakes_them() {
    let clock = ManualClock::new();
    let scheduler = Scheduler::builder().clock(clock.clone()).build().expect("good settings");
    let task = Poller::new();
    let mut sleep = waiting(&scheduler, &task, HOUR);
    clock.advance(HOUR);
    until("it is woken", || task.woken() == 1);
    assert_eq!(task.poll(&mut sleep), READY);
}

#[test]
fn s27_they_are_what_a_user_of_futures_expects() {
    fn is<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    fn is_error<T: std::error::Error + Send + Sync + Copy + Eq + 'static>() {}
    fn is_sleep<T: Future<Output = ()>>() {}
    is::<Sleep>();
    is_sleep::<Sleep>();
    is::<Interval>();
    is::<Timeout<Sleep>>();
    is::<Instant>();
    is::<tickwheel::Alarm>();
    is_error::<Elapsed>();
    let (scheduler, _driver) = driven();
    let sleep = scheduler.sleep(SECOND);
    assert!(format!("{sleep:?}").contains("is_elapsed: false"));
    assert!(format!("{:?}", scheduler.interval(SECOND)).contains("period: 1s"));
    assert!(format!("{:?}", scheduler.timeout(SECOND, sleep)).contains("deadline"));
}
