//! `pool::ScheduledThreadPool`, on a clock that is moved by hand, except for the tests of threads.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{Grenade, Moody, PATIENCE, panic_on_purpose, until};
use tickwheel::pool::{
    JoinError, PoolBuilder, ScheduledFuture, ScheduledThreadPool, ShutdownPolicy, Unstarted,
};
use tickwheel::{
    Clock, DueTask, Executor, ManualClock, MissedTicks, Period, Schedule, ScheduleError,
    ScheduleExt, Scheduler,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn pool_on(clock: &ManualClock, threads: usize) -> ScheduledThreadPool {
    ScheduledThreadPool::builder().threads(threads).clock(clock.clone()).build().expect("threads")
}

/// Waits for this many messages.
fn receive<T>(from: &Receiver<T>, count: usize) -> Vec<T> {
    (0..count).map(|_| from.recv_timeout(PATIENCE).expect("it comes")).collect()
}

/// Keeps the only thread of a pool busy until the returned sender is dropped.
fn block(pool: &ScheduledThreadPool) -> std::sync::mpsc::Sender<()> {
    let (release, wait) = channel::<()>();
    let (tell, told) = channel();
    let work = move || {
        tell.send(()).expect("told");
        _ = wait.recv();
    };
    pool.execute(work).expect("open");
    told.recv_timeout(PATIENCE).expect("it runs");
    release
}

fn is_cancelled<T>(future: ScheduledFuture<T>) -> bool {
    future.join().is_err_and(|error| error.is_cancelled() && !error.is_panic())
}

// ----- results -----------------------------------------------------------------------------

#[test]
fn the_four_ways_to_submit() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 2);
    let (send, receive_from) = channel();
    let say = |text: &'static str| {
        let send = send.clone();
        move || send.send(text).expect("the receiver lives")
    };
    pool.execute(say("executed")).expect("open");
    assert_eq!(pool.submit(|| 42).expect("open").join().expect("a result"), 42);
    let later = pool.schedule(HOUR, || "later").expect("open");
    let rate = pool.schedule_at_fixed_rate(HOUR, SECOND, say("rate")).expect("open");
    let delay = pool.schedule_with_fixed_delay(HOUR, SECOND, say("delay")).expect("open");
    assert!(rate.is_periodic() && delay.is_periodic() && !later.is_periodic());
    assert_eq!(receive(&receive_from, 1), ["executed"]);
    assert_eq!((pool.pending(), later.remaining()), (3, HOUR));
    clock.advance(HOUR);
    assert_eq!(later.join().expect("a result"), "later");
    let mut ran = receive(&receive_from, 2);
    ran.sort_unstable();
    assert_eq!(ran, ["delay", "rate"]);
}

#[test]
fn equal_deadlines_run_in_order_of_submission_and_earlier_ones_first() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let (send, receive_from) = channel();
    for number in 0..100_u64 {
        let send = send.clone();
        let delay = SECOND * u32::try_from(10 - number / 10).expect("small");
        pool.schedule(delay, move || send.send(number).expect("received")).expect("open").handle();
    }
    clock.advance(HOUR);
    let order = receive(&receive_from, 100);
    let expected: Vec<u64> = (0..10).rev().flat_map(|ten| ten * 10..ten * 10 + 10).collect();
    assert_eq!(order, expected);
}

#[test]
fn a_future_can_be_awaited_and_dropped_ones_cancel_nothing() {
    let clock = ManualClock::new();
    let (pool, poller) = (pool_on(&clock, 1), Poller::new());
    let mut future = pool.schedule(SECOND, || 7).expect("open");
    assert!(poller.poll(&mut future).is_pending());
    clock.advance(SECOND);
    until("it has woken", || poller.woken() == 1);
    assert!(matches!(poller.poll(&mut future), Poll::Ready(Ok(7))));

    let (send, receive_from) = channel();
    drop(pool.schedule(SECOND, move || send.send(()).expect("received")).expect("open"));
    clock.advance(SECOND);
    receive(&receive_from, 1);
}

#[test]
fn s17_a_waker_that_panics_when_it_is_dropped_costs_no_result() {
    /// It has no data, and each clone of it panics when it is dropped.
    const RUDE: RawWakerVTable = RawWakerVTable::new(
        |_| RawWaker::new(ptr::null(), &RUDE),
        |_| (),
        |_| (),
        |_| panic_on_purpose(),
    );
    crate::common::silence();
    // SAFETY: no function of the table uses the data.
    let waker = ManuallyDrop::new(unsafe { Waker::new(ptr::null(), &RUDE) });
    let mut context = Context::from_waker(&waker);
    let pool = ScheduledThreadPool::new(1);
    let mut future = pool.submit(|| 7).expect("open");
    until("it has run", || future.is_done());
    let polled = panic::catch_unwind(AssertUnwindSafe(|| Pin::new(&mut future).poll(&mut context)));
    assert!(matches!(polled, Ok(Poll::Ready(Ok(7)))));
}

#[test]
fn a_join_that_takes_too_long_gives_the_future_back() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let future = pool.schedule(SECOND, || 1).expect("open");
    let future = future.join_timeout(Duration::from_millis(20)).expect_err("an hour is not over");
    clock.advance(SECOND);
    let result = future.join_timeout(Duration::MAX).expect("in time");
    assert_eq!(result.expect("a result"), 1);
}

#[test]
fn a_panic_ends_its_own_task_and_is_told_of() {
    let (send, hook) = channel();
    let send = Mutex::new(send);
    let builder = ScheduledThreadPool::builder().threads(1).on_panic(move |panic| {
        let send = send.lock().expect("whole");
        send.send(panic.message().map(str::to_owned)).expect("received");
    });
    let pool = builder.build().expect("a thread");
    let failed =
        pool.submit(|| -> u8 { panic!("number {}", std::hint::black_box(5)) }).expect("open");
    let Err(error) = failed.join() else { panic!("it has panicked") };
    assert!(error.is_panic() && !error.is_cancelled() && !JoinError::Cancelled.is_panic());
    crate::common::silence();
    assert!(panic::catch_unwind(|| JoinError::Cancelled.into_panic()).is_err(), "no payload");
    assert!(error.is_panic() && !error.is_cancelled());
    let JoinError::Panicked(payload) = error else { panic!("it has panicked") };
    assert_eq!(payload.message(), Some("number 5"));
    assert_eq!(payload.into_inner().downcast_ref::<String>().map(String::as_str), Some("number 5"));

    let mut runs = 0;
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_millis(1), move || {
        runs += 1;
        assert!(runs < 3, "enough");
    });
    assert!(matches!(series.expect("open").join(), Err(JoinError::Panicked(_))));
    let told = receive(&hook, 2);
    assert_eq!(told, [Some("number 5".to_owned()), Some("enough".to_owned())]);
    assert_eq!(pool.submit(|| 1).expect("open").join().expect("the thread lives"), 1);
}

// ----- periodic ----------------------------------------------------------------------------

#[test]
fn a_fixed_rate_counts_from_the_plan_and_a_fixed_delay_from_the_end() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let start = Schedule::now(&pool);
    let (send, receive_from) = channel();
    let mut left = 4;
    let rate = pool.schedule_at_fixed_rate(SECOND, 2 * SECOND, {
        let (clock, send) = (clock.clone(), send.clone());
        move || {
            send.send(clock.now() - start).expect("received");
            left -= 1;
            if left == 3 {
                clock.advance(5 * SECOND); // two runs are missed: at 3 and at 5
            }
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    });
    clock.advance(SECOND);
    let rate = rate.expect("open");
    assert_eq!(receive(&receive_from, 3), [1, 6, 6].map(Duration::from_secs));
    assert!(!rate.is_done());
    clock.advance(SECOND);
    assert_eq!(receive(&receive_from, 1), [7 * SECOND]);
    assert!(rate.join().is_ok(), "a break is the good end");

    let delay = pool.schedule_with_fixed_delay(Duration::ZERO, 2 * SECOND, {
        let (clock, send) = (clock.clone(), send);
        move || {
            send.send(clock.now() - start).expect("received");
            clock.advance(SECOND);
        }
    });
    let delay = delay.expect("open");
    assert_eq!(receive(&receive_from, 1), [7 * SECOND]);
    until("it waits again", || pool.pending() == 1);
    assert_eq!(delay.remaining(), 2 * SECOND);
    assert!(delay.cancel() && !delay.cancel());
    assert!(is_cancelled(delay));
}

/// A run that lags has the earliest planned time of all. In that order it would always go first.
#[test]
fn s03_an_overloaded_series_does_not_starve_a_one_shot() {
    let ms = Duration::from_millis(1);
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let (start, gate) = (clock.now(), block(&pool));
    let mut runs = 0;
    let series = pool.schedule_at_fixed_rate(ms, ms, {
        let clock = clock.clone();
        move || {
            clock.advance(3 * ms);
            runs += 1;
            if runs == 1_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    });
    let at = {
        let clock = clock.clone();
        move || clock.now() - start
    };
    let equal = pool.schedule(4 * ms, at.clone()).expect("open");
    let later = pool.schedule(300 * ms, at).expect("open");
    clock.advance(ms);
    drop(gate);
    let ran = [equal, later].map(|future| future.join().expect("it runs"));
    assert_eq!(ran[0], 4 * ms, "it came before the second run of the series became possible");
    assert!(ran[1] <= 306 * ms, "within two runs, not at {:?}", ran[1]);
    assert!(series.expect("open").join().is_ok(), "it has made all of its runs");
}

#[test]
fn every_kind_of_period_by_the_trait() {
    let clock = ManualClock::new();
    let pool: Arc<dyn Schedule> = Arc::new(pool_on(&clock, 1));
    let start = clock.now();
    let (send, receive_from) = channel();
    let skip = Period::fixed_rate(10 * SECOND).missed(MissedTicks::Skip);
    let handle = pool.schedule_periodic(SECOND, skip, {
        let (clock, mut first) = (clock.clone(), true);
        move || {
            send.send((clock.now() - start).as_secs()).expect("received");
            if std::mem::take(&mut first) {
                clock.advance(34 * SECOND);
            }
        }
    });
    let handle = handle.expect("open");
    clock.advance(SECOND);
    assert_eq!(receive(&receive_from, 1), [1]);
    until("it has ended its run", || clock.now() - start == 35 * SECOND);
    clock.advance(6 * SECOND);
    assert_eq!(receive(&receive_from, 1), [41]);
    assert!(handle.cancel() && handle.is_cancelled() && handle.is_done());
    let zero = Period::fixed_delay(Duration::ZERO);
    assert_eq!(pool.schedule_periodic(SECOND, zero, || ()).err(), Some(ScheduleError::ZeroPeriod));
    let past = start.checked_sub(SECOND).unwrap_or(start);
    let (send, receive_from) = channel();
    let task = Box::new(move || send.send(()).expect("received"));
    pool.schedule_task_at(past, task).expect("open");
    receive(&receive_from, 1);
}

#[test]
fn a_period_that_skips_or_delays_has_a_future() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    for (missed, second_run) in [(MissedTicks::Skip, 7), (MissedTicks::Delay, 8)] {
        let (start, (send, receive_from)) = (clock.now(), channel());
        let period = Period::fixed_rate(2 * SECOND).missed(missed);
        let mut is_first = true;
        let series = pool.schedule_with_period(SECOND, period, {
            let clock = clock.clone();
            move || {
                send.send((clock.now() - start).as_secs()).expect("awaited");
                if std::mem::take(&mut is_first) {
                    clock.advance(5 * SECOND); // the runs of 3 and of 5 are missed
                    return ControlFlow::Continue(());
                }
                ControlFlow::Break(())
            }
        });
        let series = series.expect("open");
        assert!(series.is_periodic() && series.remaining() == SECOND);
        clock.advance(SECOND);
        let left = (second_run - 6) * SECOND;
        until("it waits for its second run", || series.remaining() == left);
        clock.advance(2 * SECOND);
        assert!(series.join().is_ok());
        assert_eq!(receive(&receive_from, 2)[0], 1);
    }
    let zero = Period::fixed_rate(Duration::ZERO);
    let refused = pool.try_schedule_with_period(SECOND, zero, || ()).expect_err("a zero period");
    assert_eq!(refused.reason(), ScheduleError::ZeroPeriod);
}

#[test]
fn s20_what_is_refused_comes_back() {
    let pool = ScheduledThreadPool::builder().threads(1).max_pending(1).build().expect("threads");
    let later = pool.schedule(HOUR, || ()).expect("open");
    let token = Arc::new(());
    let task = || {
        let token = Arc::clone(&token);
        move || Arc::strong_count(&token)
    };
    let full = pool.try_submit(task()).expect_err("full");
    assert_eq!((full.reason(), (full.into_task())()), (ScheduleError::Full, 2));
    let full = pool.try_schedule(SECOND, task()).expect_err("full");
    assert_eq!((full.reason(), (full.into_task())()), (ScheduleError::Full, 2));
    assert!(later.cancel());
    pool.shutdown();
    let held = Arc::clone(&token);
    let shut = pool.try_execute(move || drop(held)).expect_err("shut");
    assert_eq!((shut.reason(), Arc::strong_count(&token)), (ScheduleError::Closed, 2));
    drop(shut);
    let mut runs = 0;
    let series = move || {
        runs += 1;
        assert!(runs < 2);
    };
    let second = Period::fixed_delay(SECOND);
    let shut = pool.try_schedule_with_period(SECOND, second, series).expect_err("shut");
    assert_eq!(shut.reason(), ScheduleError::Closed);
    let mut series = shut.into_task();
    series();
    assert_eq!(Arc::strong_count(&token), 1);
}

// ----- cancel ------------------------------------------------------------------------------

#[test]
fn a_cancel_removes_at_once_and_drops_the_closure() {
    let pool = ScheduledThreadPool::new(1);
    let alive = Arc::new(());
    let futures: Vec<_> = (0..1_000)
        .map(|_| {
            let alive = Arc::clone(&alive);
            pool.schedule(HOUR, move || drop(alive)).expect("open")
        })
        .collect();
    assert_eq!((pool.pending(), Arc::strong_count(&alive)), (1_000, 1_001));
    for (number, future) in futures.into_iter().enumerate() {
        let handle = future.handle();
        assert!(if number % 2 == 0 { future.cancel() } else { handle.cancel() });
        assert!(!future.cancel() && !handle.cancel());
        assert!(future.is_done() && handle.is_done() && handle.is_cancelled());
        assert_eq!(future.remaining(), Duration::ZERO);
        assert!(is_cancelled(future));
    }
    assert_eq!((pool.pending(), Arc::strong_count(&alive)), (0, 1));
}

#[test]
fn a_one_shot_that_runs_is_not_cancelled_and_a_series_is() {
    let pool = ScheduledThreadPool::new(1);
    let (started, at_work) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let meet = [Arc::clone(&started), Arc::clone(&at_work)];
    let one = pool.submit(move || meet.iter().for_each(|barrier| _ = barrier.wait()));
    let one = one.expect("open");
    started.wait();
    assert!(!one.cancel() && !one.is_done());
    at_work.wait();
    assert!(one.join().is_ok());

    let meet = [Arc::clone(&started), Arc::clone(&at_work)];
    let task = move || meet.iter().for_each(|barrier| _ = barrier.wait());
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_nanos(1), task);
    let series = series.expect("open");
    started.wait();
    assert!(series.cancel() && !series.cancel() && series.is_done());
    let told = series.join_timeout(Duration::ZERO);
    assert!(matches!(told, Ok(Err(JoinError::Cancelled))), "while it runs: {told:?}");
    at_work.wait(); // it does not start again, otherwise the next barrier would hang
    assert_eq!(pool.submit(|| 1).expect("open").join().expect("the thread is free"), 1);
}

#[test]
fn a_series_that_is_cancelled_in_its_last_run_was_cancelled() {
    let pool = ScheduledThreadPool::new(1);
    let (started, at_work) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let meet = [Arc::clone(&started), Arc::clone(&at_work)];
    let task = move || {
        meet.iter().for_each(|barrier| _ = barrier.wait());
        ControlFlow::<()>::Break(())
    };
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, SECOND, task).expect("open");
    started.wait();
    let handle = series.handle();
    assert!(handle.cancel());
    at_work.wait();
    assert_eq!(pool.submit(|| 1).expect("open").join().expect("the thread is free"), 1);
    assert!(handle.is_cancelled() && is_cancelled(series), "the cancel has won");
}

#[test]
fn a_task_cancels_itself_and_others() {
    let pool = ScheduledThreadPool::new(1);
    let slot = Arc::new(Mutex::new(None::<tickwheel::Cancellable>));
    let (own, gate) = (Arc::clone(&slot), block(&pool));
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_nanos(1), move || {
        assert!(own.lock().expect("whole").take().expect("set").cancel());
    });
    let series = series.expect("open");
    *slot.lock().expect("whole") = Some(series.handle());
    drop(gate);
    assert!(is_cancelled(series));
}

// ----- shutdown ----------------------------------------------------------------------------

#[test]
fn a_shutdown_runs_what_is_delayed_and_stops_what_is_periodic() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 2);
    let delayed = pool.schedule(HOUR, || 5).expect("open");
    let periodic = pool.schedule_at_fixed_rate(HOUR, SECOND, || ()).expect("open");
    assert!(!pool.is_shutdown());
    pool.shutdown();
    assert!(pool.is_shutdown() && !pool.is_terminated());
    assert!(is_cancelled(periodic));
    assert_eq!(pool.submit(|| ()).err(), Some(ScheduleError::Closed));
    assert_eq!(pool.pending(), 1);
    clock.advance(HOUR);
    assert_eq!(delayed.join().expect("a result"), 5);
    assert!(pool.await_termination(PATIENCE) && pool.is_terminated());
}

/// The search of the shutdown does not find a series that runs. A delayed task keeps the queue open.
#[test]
fn a_series_whose_pool_is_shut_down_while_it_runs_does_not_run_again() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let delayed = pool.schedule(HOUR, || ()).expect("open");
    let (inner, mut runs) = (pool.clone(), 0);
    let series = pool.schedule_with_fixed_delay(Duration::ZERO, SECOND, move || {
        inner.shutdown();
        runs += 1;
        if runs == 1 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let series = series.expect("open");
    until("it has run", || pool.is_shutdown() && (series.is_done() || pool.pending() == 2));
    clock.advance(SECOND);
    let ended = series.join_timeout(PATIENCE).expect("it resolves");
    assert!(matches!(ended, Err(JoinError::Cancelled)), "{ended:?}");
    clock.advance(HOUR);
    delayed.join().expect("it runs");
    assert!(pool.await_termination(PATIENCE));
}

#[test]
fn a_policy_can_be_changed_after_the_shutdown() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let keep = ShutdownPolicy::default().continue_periodic(true);
    pool.set_shutdown_policy(keep);
    let delayed = pool.schedule(HOUR, || ()).expect("open");
    let (send, receive_from) = channel();
    let task = move || _ = send.send(());
    let periodic = pool.schedule_at_fixed_rate(SECOND, SECOND, task).expect("open");
    pool.shutdown();
    clock.advance(SECOND);
    receive(&receive_from, 1);
    until("it waits for its next run", || pool.pending() == 2);
    assert_eq!(pool.shutdown_policy(), keep);
    pool.set_shutdown_policy(keep.run_delayed(false));
    assert!(is_cancelled(delayed));
    clock.advance(SECOND);
    receive(&receive_from, 1);
    assert!(!pool.await_termination(Duration::from_millis(20)));
    pool.set_shutdown_policy(ShutdownPolicy::default());
    assert!(is_cancelled(periodic));
    assert!(pool.await_termination(PATIENCE));
}

/// What is due is not delayed any more: a thread that is busy takes nothing away from it.
#[test]
fn a_policy_without_delayed_tasks_runs_what_is_due() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    pool.set_shutdown_policy(ShutdownPolicy::default().run_delayed(false));
    let gate = block(&pool);
    let at_once = pool.submit(|| 1).expect("open");
    let due = pool.schedule(SECOND, || 2).expect("open");
    let later = pool.schedule(2 * SECOND, || 3).expect("open");
    clock.advance(SECOND);
    pool.shutdown();
    assert!(is_cancelled(later));
    pool.set_shutdown_policy(ShutdownPolicy::default().run_delayed(false)); // asks again
    assert!(!due.handle().reset(HOUR), "it would be delayed again, and keep the pool alive");
    drop(gate);
    assert_eq!((at_once.join().ok(), due.join().ok()), (Some(1), Some(2)));
    assert!(pool.await_termination(PATIENCE));
}

#[test]
fn shutdown_now_gives_back_what_waits() {
    let clock = ManualClock::new();
    let pool = pool_on(&clock, 1);
    let gate = block(&pool);
    let futures: Vec<_> =
        [3, 1, 2, 4].map(|secs| pool.schedule(secs * SECOND, move || secs).expect("open")).into();
    let series = pool.schedule_with_fixed_delay(5 * SECOND, SECOND, || ()).expect("open");
    let start = clock.now();
    let unstarted = pool.shutdown_now();
    let deadlines: Vec<_> = unstarted.iter().map(|task| task.deadline() - start).collect();
    assert_eq!(deadlines, [1, 2, 3, 4, 5].map(Duration::from_secs));
    assert!(!pool.is_terminated(), "one runs");
    assert!(futures[3].cancel(), "what came back can still be cancelled");
    let mut unstarted = unstarted.into_iter();
    unstarted.next().expect("five").run();
    drop(unstarted.next());
    unstarted.for_each(tickwheel::pool::Unstarted::run);
    let results: Vec<_> = futures.into_iter().map(|future| future.join().ok()).collect();
    assert_eq!(results, [Some(3), Some(1), None, None]);
    assert!(is_cancelled(series), "it ran once, and will not again");
    drop(gate);
    assert!(pool.await_termination(PATIENCE));
    assert_eq!(pool.shutdown_now().len(), 0);
}

/// A shutdown lets a series go on if the policy says so. This one does not ask it.
#[test]
fn shutdown_now_ends_a_series_that_is_running_whatever_the_policy() {
    let policy = ShutdownPolicy::default().continue_periodic(true);
    let pool = ScheduledThreadPool::builder().threads(1).shutdown_policy(policy).build();
    let pool = pool.expect("threads");
    let (started, at_work) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let meet = [Arc::clone(&started), Arc::clone(&at_work)];
    let task = move || meet.iter().for_each(|barrier| _ = barrier.wait());
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_nanos(1), task);
    started.wait();
    assert_eq!(pool.shutdown_now().len(), 0, "it runs");
    at_work.wait();
    assert!(pool.await_termination(PATIENCE));
    assert!(is_cancelled(series.expect("open")));
}

#[test]
fn dropping_the_last_handle_cancels_what_waits_and_waits_for_nobody() {
    let pool = ScheduledThreadPool::new(1);
    let gate = block(&pool);
    let (other, future) = (pool.clone(), pool.schedule(HOUR, || ()).expect("open"));
    drop(pool);
    assert!(!future.is_done());
    drop(other);
    assert!(is_cancelled(future));
    drop(gate);
}

#[test]
fn an_idle_pool_terminates_at_once() {
    let pool = ScheduledThreadPool::new(3);
    assert!(!pool.await_termination(Duration::ZERO));
    pool.shutdown();
    assert!(pool.await_termination(Duration::ZERO) && pool.is_terminated());
}

#[test]
fn schedules_against_shutdowns_lose_nothing() {
    for round in 0..200 {
        let pool = ScheduledThreadPool::new(2);
        let ran = Arc::new(AtomicUsize::new(0));
        let start = Barrier::new(3);
        let futures: Vec<_> = thread::scope(|scope| {
            let producer = || {
                start.wait();
                let task = || {
                    let ran = Arc::clone(&ran);
                    move || ran.fetch_add(1, Ordering::Relaxed)
                };
                let each = |number: u64| pool.schedule(Duration::from_micros(number % 3), task());
                (0..50).map_while(|number| each(number).ok()).collect::<Vec<_>>()
            };
            let producers = [scope.spawn(producer), scope.spawn(producer)];
            start.wait();
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            if round % 2 == 0 {
                pool.shutdown();
            } else {
                drop(pool.shutdown_now());
            }
            producers.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let accepted = futures.len();
        let results = futures.into_iter().map(ScheduledFuture::join);
        let done = results.flatten().count();
        assert!(pool.await_termination(PATIENCE));
        assert_eq!(done, ran.load(Ordering::Relaxed));
        assert!(round % 2 == 1 || done == accepted, "round {round}: delayed tasks run");
    }
}

#[test]
fn s20_schedules_against_shutdown_now_are_refused_or_returned() {
    for round in 0..1000 {
        let pool = ScheduledThreadPool::new(1);
        let (futures, unstarted) = thread::scope(|scope| {
            let one = || {
                if round % 2 == 0 {
                    pool.schedule(HOUR, || ())
                } else {
                    pool.schedule_at_fixed_rate(HOUR, HOUR, || ())
                }
            };
            let (begun, begins) = channel();
            let producer = scope.spawn(move || {
                let first = one().expect("open");
                begun.send(()).expect("awaited");
                let more = (0..100).map_while(|_| one().ok());
                std::iter::once(first).chain(more).collect::<Vec<_>>()
            });
            begins.recv().expect("it begins");
            (0..round / 2).for_each(|_| std::hint::spin_loop());
            let unstarted = pool.shutdown_now();
            (producer.join().expect("no panic"), unstarted)
        });
        assert_eq!(unstarted.len(), futures.len(), "round {round}");
        assert!(!futures.iter().any(ScheduledFuture::is_done), "round {round}");
        drop(unstarted);
        assert!(futures.iter().all(ScheduledFuture::is_done));
    }
}

#[test]
fn s11_what_a_builder_is_written_to_may_look_at_it() {
    struct Curious(Arc<PoolBuilder>);
    impl fmt::Write for Curious {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            _ = format!("{:?}", self.0);
            Ok(())
        }
    }
    let (send, written) = channel();
    thread::spawn(move || {
        let builder = Arc::new(ScheduledThreadPool::builder());
        let mut to = Curious(Arc::clone(&builder));
        send.send(fmt::write(&mut to, format_args!("{builder:?}"))).expect("awaited");
    });
    assert_eq!(written.recv_timeout(PATIENCE), Ok(Ok(())));
}

// ----- threads -----------------------------------------------------------------------------

#[test]
fn threads_have_names_and_start_when_they_are_needed() {
    let meet = Arc::new(Barrier::new(3));
    let names = || {
        let meet = Arc::clone(&meet);
        move || {
            meet.wait(); // so that it takes all three
            thread::current().name().map(str::to_owned).expect("a name")
        }
    };
    let pool = ScheduledThreadPool::builder().threads(3).thread_name("mill").build();
    let pool = pool.expect("threads");
    let futures: Vec<_> = (0..9).map(|_| pool.submit(names()).expect("open")).collect();
    let name = |future: ScheduledFuture<String>| {
        future.join_timeout(PATIENCE).expect("they meet").expect("a name")
    };
    let mut seen: Vec<_> = futures.into_iter().map(name).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["mill-1", "mill-2", "mill-3"]);
    assert!(ScheduledThreadPool::builder().threads(0).build().is_err());
}

/// Builds a pool on this clock. Returns it with the number of its live threads.
fn counted(builder: PoolBuilder) -> (ScheduledThreadPool, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (alive, started) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = [Arc::clone(&alive), Arc::clone(&started)];
    let pool = builder.thread_factory(move |thread, work| {
        counts.iter().for_each(|count| _ = count.fetch_add(1, Ordering::SeqCst));
        let alive = Arc::clone(&counts[0]);
        let ended = WhenDropped(move || _ = alive.fetch_sub(1, Ordering::SeqCst));
        let started = thread.spawn(move || {
            let _ended = ended;
            work();
        });
        started.map(drop)
    });
    (pool.build().expect("threads"), alive, started)
}

/// Keeps all threads of a pool busy at once, so that all start, and waits until they are idle again.
fn start_all(pool: &ScheduledThreadPool, threads: usize) {
    let meet = Arc::new(Barrier::new(threads));
    let each = |_| {
        let meet = Arc::clone(&meet);
        pool.submit(move || _ = meet.wait()).expect("open")
    };
    let all: Vec<_> = (0..threads).map(each).collect();
    all.into_iter().for_each(|future| future.join().expect("they meet"));
}

#[test]
fn threads_above_the_core_end_after_being_idle_and_start_again() {
    for core in [0, 1, 2, 9] {
        let clock = ManualClock::new();
        let builder = ScheduledThreadPool::builder().threads(3).clock(clock.clone());
        let builder = builder.keep_alive(10 * SECOND);
        let builder = if core == 0 { builder } else { builder.core_threads(core) };
        let (pool, alive, started) = counted(builder);
        let core = core.min(3);
        for round in 1..=3 {
            start_all(&pool, 3);
            assert_eq!(alive.load(Ordering::SeqCst), 3);
            assert_eq!(started.load(Ordering::SeqCst), 3 + (round - 1) * (3 - core));
            until("all that are idle for too long have ended", || {
                clock.advance(SECOND);
                alive.load(Ordering::SeqCst) == core
            });
            for _ in 0..100 {
                clock.advance(SECOND);
            }
            thread::sleep(Duration::from_millis(5)); // real time: so that one too many could end
            assert_eq!(alive.load(Ordering::SeqCst), core, "the core stays");
        }
        pool.shutdown();
        assert!(pool.await_termination(PATIENCE));
        until("all have ended", || alive.load(Ordering::SeqCst) == 0);
    }
}

#[test]
fn a_pool_without_a_core_keeps_one_thread_for_what_waits_and_only_so_long() {
    /// Counts how often somebody goes to sleep.
    struct Counting(ManualClock, Arc<AtomicUsize>);
    impl Clock for Counting {
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn sleep(&self, sleeper: &tickwheel::Sleeper, until: Option<Instant>) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.sleep(sleeper, until);
        }
    }
    let (clock, sleeps) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let counting = Counting(clock.clone(), Arc::clone(&sleeps));
    let builder = ScheduledThreadPool::builder().threads(3).clock(counting);
    let (pool, alive, _) = counted(builder.keep_alive(SECOND));
    // Further away than the seconds below can take the clock, however long they go on.
    let later = pool.schedule(1000 * HOUR, || "much later").expect("open");
    start_all(&pool, 3);
    until("one waits for the task", || {
        clock.advance(SECOND);
        alive.load(Ordering::SeqCst) == 1
    });
    clock.advance(1000 * HOUR);
    assert_eq!(later.join_timeout(PATIENCE).expect("in time").expect("no panic"), "much later");
    until("none is left", || {
        clock.advance(SECOND);
        alive.load(Ordering::SeqCst) == 0
    });

    let before = sleeps.load(Ordering::SeqCst);
    let later = pool.schedule(HOUR, || ()).expect("open");
    until("a thread waits again", || sleeps.load(Ordering::SeqCst) > before);
    assert!(later.cancel());
    let begin = clock.now();
    until("none is left, though nobody has told it of the cancel", || {
        clock.advance(SECOND / 10);
        alive.load(Ordering::SeqCst) == 0
    });
    assert!(clock.now() - begin < HOUR / 2, "it looks long before the deadline");
    assert_eq!(pool.submit(|| 1).expect("open").join().expect("a thread is started"), 1);
}

#[test]
fn an_idle_thread_that_has_stayed_for_a_task_ends_some_time_after_its_cancel() {
    let clock = ManualClock::new();
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let (pool, alive, _) = counted(builder.keep_alive(SECOND));
    let later = pool.schedule(1000 * HOUR, || ()).expect("open");
    for _ in 0..20 {
        clock.advance(SECOND);
        thread::sleep(Duration::from_millis(1)); // real time: so that the thread can look
    }
    assert_eq!(alive.load(Ordering::SeqCst), 1, "the task waits");
    assert!(later.cancel());
    until("none is left", || {
        clock.advance(SECOND);
        alive.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn no_task_is_lost_to_a_thread_that_ends_just_then() {
    let builder = ScheduledThreadPool::builder().threads(2);
    let (pool, alive, started) = counted(builder.keep_alive(Duration::ZERO));
    for round in 0..2_000_u32 {
        let delay = Duration::from_micros(u64::from(round % 4) * 20);
        let future = pool.schedule(delay, move || round).expect("open");
        assert_eq!(future.join_timeout(PATIENCE).expect("a thread runs it").expect("well"), round);
        (0..round % 500).for_each(|_| std::hint::spin_loop());
    }
    until("none is left", || alive.load(Ordering::SeqCst) == 0);
    assert!(started.load(Ordering::SeqCst) > 1, "some have ended in between");
}

#[test]
fn a_thread_factory_that_starts_no_thread_gets_tasks_refused() {
    crate::common::silence();
    let mode = Arc::new(AtomicUsize::new(0));
    let answer = Arc::clone(&mode);
    let builder = ScheduledThreadPool::builder().threads(2).thread_name("mill");
    let pool = builder.thread_factory(move |thread, work| match answer.load(Ordering::SeqCst) {
        0 => Err(std::io::Error::other("no")),
        1 => panic::panic_any(Grenade),
        2 => {
            drop(work);
            Ok(())
        }
        _ => thread.spawn(work).map(drop),
    });
    let pool = pool.build().expect("threads");
    for bad in 0..3 {
        mode.store(bad, Ordering::SeqCst);
        let refused = pool.try_submit(move || bad).expect_err("there is no thread");
        assert_eq!(refused.reason(), ScheduleError::NoThread);
        assert_eq!((refused.into_task())(), bad, "it came back");
        assert_eq!(pool.pending(), 0);
        let due = DueTask::new(Instant::now(), || ());
        assert!(!Executor::execute(&pool, due).expect_err("no thread").is_for_good());
    }
    mode.store(3, Ordering::SeqCst);
    let name = pool.submit(|| thread::current().name().map(str::to_owned)).expect("a thread");
    assert!(name.join().expect("it runs").expect("a name").starts_with("mill-"));
    mode.store(0, Ordering::SeqCst);
    let gate = block(&pool);
    let future = pool.submit(|| 1).expect("there is a thread, and it will come to this");
    drop(gate);
    assert_eq!(future.join().expect("it runs"), 1);
    pool.shutdown();
    assert!(pool.await_termination(PATIENCE));
}

#[test]
fn a_thread_that_ended_before_its_factory_returned_was_started() {
    let (slot, leftovers) = (Arc::new(OnceLock::<ScheduledThreadPool>::new()), channel());
    let (inner, left) = (Arc::downgrade(&slot), leftovers.0);
    let pool = ScheduledThreadPool::builder().threads(1).thread_factory(move |thread, work| {
        let started = thread.spawn(work)?;
        let pool = inner.upgrade().expect("alive");
        left.send(pool.get().expect("set").shutdown_now()).expect("awaited");
        started.join().map_err(|_| std::io::Error::other("it panicked"))
    });
    let pool = slot.get_or_init(|| pool.build().expect("threads"));
    let future = pool.schedule(HOUR, || 7).expect("a thread was started for it");
    leftovers.1.recv().expect("shut down").into_iter().for_each(Unstarted::run);
    assert_eq!(future.join().expect("run as a leftover"), 7);
}

/// A pool that ends while its factory is called, which starts no thread.
fn ends_before_it_fails(
    end: impl Fn(&ScheduledThreadPool) + Send + Sync + 'static,
) -> Arc<OnceLock<ScheduledThreadPool>> {
    let slot = Arc::new(OnceLock::<ScheduledThreadPool>::new());
    let inner = Arc::downgrade(&slot);
    let pool = ScheduledThreadPool::builder().threads(1).thread_factory(move |_, _| {
        end(inner.upgrade().expect("alive").get().expect("set"));
        Err(std::io::Error::other("no"))
    });
    assert!(slot.set(pool.build().expect("threads")).is_ok());
    slot
}

#[test]
fn s20_what_a_shutdown_has_returned_is_not_refused() {
    let (leftovers, left) = channel();
    let ends = move |pool: &_| leftovers.send(ScheduledThreadPool::shutdown_now(pool)).expect("ok");
    let pool = ends_before_it_fails(ends.clone());
    let pool = pool.get().expect("set");
    let future = pool.schedule(HOUR, || 7).expect("the shutdown has it");
    let unstarted = left.recv().expect("shut down");
    assert_eq!(unstarted.len(), 1);
    assert!(!future.is_done() && pool.await_termination(PATIENCE));
    unstarted.into_iter().for_each(Unstarted::run);
    assert_eq!(future.join().expect("run as a leftover"), 7);

    let pool = ends_before_it_fails(ends);
    let pool = pool.get().expect("set");
    let (runs, series) = channel();
    let every_hour = pool.schedule_at_fixed_rate(HOUR, HOUR, move || runs.send(()).expect("ok"));
    let every_hour = every_hour.expect("the shutdown has it");
    assert!(!every_hour.is_done());
    left.recv().expect("shut down").into_iter().for_each(Unstarted::run);
    assert_eq!(receive(&series, 1), [()]);
    assert!(is_cancelled(every_hour));
}

#[test]
fn s20_what_a_shutdown_has_left_in_the_queue_is_refused_if_no_thread_starts() {
    let pool = ends_before_it_fails(ScheduledThreadPool::shutdown);
    let pool = pool.get().expect("set");
    let refused = pool.try_schedule(HOUR, || 7).expect_err("no thread");
    assert_eq!((refused.reason(), (refused.into_task())()), (ScheduleError::NoThread, 7));
    assert!(pool.pending() == 0 && pool.await_termination(PATIENCE));

    // The shutdown withdraws a series, so it was accepted.
    let pool = ends_before_it_fails(ScheduledThreadPool::shutdown);
    let pool = pool.get().expect("set");
    let series = pool.schedule_at_fixed_rate(HOUR, HOUR, || ()).expect("the shutdown has met it");
    assert!(is_cancelled(series) && pool.await_termination(PATIENCE));
}

#[test]
fn s11_a_thread_factory_may_use_its_pool() {
    let slot = Arc::new(Mutex::new(None::<ScheduledThreadPool>));
    let (inner, (send, told)) = (Arc::clone(&slot), channel());
    let send = Mutex::new(Some(send));
    let builder = ScheduledThreadPool::builder().threads(2);
    let pool = builder.thread_factory(move |thread, work| {
        let first = send.lock().expect("whole").take();
        let pool = inner.lock().expect("whole").clone();
        if let (Some(pool), Some(send)) = (pool, first) {
            assert_eq!(pool.pending(), 1);
            pool.execute(move || send.send(1).expect("awaited")).expect("it starts another one");
        }
        thread.spawn(work).map(drop)
    });
    let pool = pool.build().expect("threads");
    *slot.lock().expect("whole") = Some(pool.clone());
    assert_eq!(pool.submit(|| 2).expect("open").join().expect("it runs"), 2);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
    *slot.lock().expect("whole") = None;
}

/// When the join begins, another thread is just being started. Then that fails.
#[test]
fn a_join_that_counts_on_a_start_which_fails_says_so() {
    let ((in_factory, is_in), (fail, fails)) = (channel(), channel::<()>());
    let (fails, started) = (Mutex::new(fails), AtomicUsize::new(0));
    let pool = ScheduledThreadPool::builder().threads(2).thread_factory(move |thread, work| {
        if started.fetch_add(1, Ordering::SeqCst) == 0 {
            return thread.spawn(work).map(drop);
        }
        _ = in_factory.send(());
        _ = fails.lock().expect("whole").recv();
        Err(std::io::Error::other("no more"))
    });
    let pool = pool.build().expect("threads");
    let (inner, (go_on, goes_on), (begin, begins)) = (pool.clone(), channel::<()>(), channel());
    let outer = pool.submit(move || {
        _ = begin.send(());
        goes_on.recv().expect("the other one is being started");
        let part = inner.submit(|| 1).expect("it waits for a thread");
        matches!(part.join(), Err(JoinError::WouldDeadlock))
    });
    let outer = outer.expect("open");
    begins.recv().expect("it begins"); // or its thread might be the one that starts the other
    let other = pool.clone();
    let starts = thread::spawn(move || other.submit(|| 2).map(drop));
    is_in.recv().expect("it calls the factory");
    go_on.send(()).expect("awaited");
    until("the task is in", || pool.pending() == 2);
    drop(fail);
    starts.join().expect("no panic").expect("there is a thread");
    assert!(outer.join().expect("no panic"));
}

/// It would call itself without an end, or two of them each other.
#[test]
fn s11_a_thread_factory_may_bring_a_task_each_time() {
    for threads in [1, 3] {
        let pools: [Arc<OnceLock<ScheduledThreadPool>>; 2] = Default::default();
        let (ran, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for (own, other) in [(0, 1), (1, 0)] {
            let others = [own, other].map(|at| Arc::downgrade(&pools[at]));
            let (ran, refused) = (Arc::clone(&ran), Arc::clone(&refused));
            let builder = ScheduledThreadPool::builder().threads(threads);
            let pool = builder.thread_factory(move |thread, work| {
                for pool in others.iter().filter_map(std::sync::Weak::upgrade) {
                    let ran = Arc::clone(&ran);
                    let count = move || _ = ran.fetch_add(1, Ordering::SeqCst);
                    if pool.get().expect("set").execute(count) == Err(ScheduleError::NoThread) {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                }
                thread.spawn(work).map(drop)
            });
            assert!(pools[own].set(pool.build().expect("threads")).is_ok());
        }
        let pool = pools[0].get().expect("set");
        assert_eq!(pool.submit(|| 2).expect("open").join().expect("it runs"), 2);
        let brought = 2 * 2 * threads; // each thread's start has brought one to each pool
        let is_done = || ran.load(Ordering::SeqCst) + refused.load(Ordering::SeqCst) == brought;
        until("all have run or were refused", is_done);
        assert!(refused.load(Ordering::SeqCst) > 0);
        pools
            .iter()
            .for_each(|pool| assert_eq!(pool.get().map(ScheduledThreadPool::pending), Some(0)));
    }
}

#[test]
fn a_blocked_thread_holds_up_nothing_that_is_due() {
    let pool = ScheduledThreadPool::new(2);
    let gate = block(&pool);
    let soon = pool.schedule(Duration::from_millis(5), || ()).expect("open");
    let at_once = pool.submit(|| ()).expect("open");
    assert!(at_once.join().is_ok() && soon.join().is_ok());
    drop(gate);
}

#[test]
fn a_join_that_needs_a_thread_which_cannot_be_started_says_so() {
    let left = Arc::new(AtomicUsize::new(1));
    let room = Arc::clone(&left);
    let pool = ScheduledThreadPool::builder().threads(2).thread_factory(move |thread, work| {
        let take = |room: usize| room.checked_sub(1);
        match room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => thread.spawn(work).map(drop),
            Err(_) => Err(std::io::Error::other("no more")),
        }
    });
    let pool = pool.build().expect("threads");
    let inner = pool.clone();
    let outer = pool.submit(move || {
        let refused = inner.submit(|| 1).expect("it waits for a thread").join();
        left.store(1, Ordering::SeqCst);
        (matches!(refused, Err(JoinError::WouldDeadlock)), inner.submit(|| 2).expect("open").join())
    });
    let (was_refused, second) = outer.expect("open").join().expect("no panic");
    assert!(was_refused);
    assert_eq!(second.expect("another thread could be started"), 2);
}

#[test]
fn a_join_that_would_hang_says_so() {
    let pool = ScheduledThreadPool::new(1);
    let inner = pool.clone();
    let outer = pool.submit(move || inner.submit(|| 1).expect("open").join());
    let result = outer.expect("open").join().expect("it returns");
    assert!(matches!(result, Err(JoinError::WouldDeadlock)), "{result:?}");
    // The future is kept, and joined when that thread is free.
    let inner = pool.clone();
    let outer = pool.submit(move || inner.submit(|| 2).expect("open").try_join());
    let kept = outer.expect("open").join().expect("it returns").expect_err("it would hang");
    assert_eq!(kept.try_join().expect("on another thread").expect("it ran"), 2);

    // Two threads. Each of them waits for a task that only the other one could run.
    let pool = ScheduledThreadPool::new(2);
    let meet = Arc::new(Barrier::new(2));
    let outer = [(); 2].map(|()| {
        let (inner, meet) = (pool.clone(), Arc::clone(&meet));
        let wait_for_another = move || {
            meet.wait();
            inner.submit(|| 1).expect("open").join().is_ok()
        };
        pool.submit(wait_for_another).expect("open")
    });
    let results = outer.map(|future| future.join().expect("it returns"));
    assert_ne!(results, [false, false], "one of them has got its result");

    // One thread waits for a task that the other one runs. That is no deadlock, however often it happens.
    for round in 0..3 {
        let inner = pool.clone();
        let outer = pool.submit(move || inner.submit(move || round).expect("open").join());
        let result = outer.expect("open").join().expect("it returns");
        assert!(matches!(result, Ok(number) if number == round), "{result:?}");
    }
}

#[test]
fn joins_of_several_pools_in_a_circle_are_told() {
    for count in [2, 3] {
        let pools: Vec<_> = (0..count).map(|_| ScheduledThreadPool::new(1)).collect();
        let meet = Arc::new(Barrier::new(count));
        let outer: Vec<_> = (0..count)
            .map(|at| {
                let (next, meet) = (pools[(at + 1) % count].clone(), Arc::clone(&meet));
                let task = move || {
                    meet.wait();
                    next.submit(|| 1).expect("open").join().is_ok()
                };
                pools[at].submit(task).expect("open")
            })
            .collect();
        let join = |future: ScheduledFuture<bool>| {
            future.join_timeout(PATIENCE).expect("no hang").expect("no panic")
        };
        let told = outer.into_iter().map(join).filter(|is_ok| !is_ok).count();
        assert_eq!(told, 1, "the one that would have closed the circle");
    }
}

#[test]
fn a_join_of_a_pool_that_has_a_free_thread_is_no_deadlock() {
    let (one, two) = (ScheduledThreadPool::new(1), ScheduledThreadPool::new(2));
    for round in 0..3 {
        let (back, there) = (one.clone(), two.clone());
        let outer = one.submit(move || {
            let inner = there.submit(move || back.pending() + round).expect("open");
            inner.join()
        });
        let result = outer.expect("open").join_timeout(PATIENCE).expect("no hang");
        assert!(matches!(result, Ok(Ok(_))), "{result:?}");
    }
    // The other pool's task waits for the very task that joins it, though a thread is free there. The one that comes last is
    // told.
    let is_told = |millis| {
        let (give, own) = channel::<ScheduledFuture<bool>>();
        let (tell, told) = channel();
        let there = two.clone();
        let outer = one.submit(move || {
            let ready = own.recv_timeout(PATIENCE).expect("given");
            let waits_for_me = there.submit(move || ready.join().is_ok()).expect("open");
            thread::sleep(Duration::from_millis(millis)); // real time: so that it waits already
            let joined = waits_for_me.join();
            tell.send(matches!(joined, Err(JoinError::WouldDeadlock))).expect("awaited");
            true
        });
        give.send(outer.expect("open")).expect("it waits");
        told.recv_timeout(PATIENCE).expect("no hang")
    };
    assert!([20, 200, 2_000].into_iter().any(is_told));
}

#[test]
fn a_task_does_not_wait_for_the_end_of_its_own_pool() {
    let pool = ScheduledThreadPool::new(1);
    let inner = pool.clone();
    let ended = pool.submit(move || {
        inner.shutdown();
        inner.await_termination(Duration::MAX)
    });
    let ended = ended.expect("open").join_timeout(PATIENCE).expect("no hang");
    assert!(matches!(ended, Ok(false)), "{ended:?}");
    assert!(pool.await_termination(PATIENCE));
}

#[test]
fn a_scheduler_runs_its_tasks_on_a_pool() {
    let pool = ScheduledThreadPool::builder().threads(1).thread_name("mill").build();
    let pool = pool.expect("threads");
    let scheduler = Scheduler::builder().executor(Arc::new(pool.clone())).build();
    let scheduler = scheduler.expect("a tick thread");
    let (send, receive_from) = channel();
    let task = move || send.send(thread::current().name().map(str::to_owned)).expect("received");
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    assert_eq!(receive(&receive_from, 1), [Some("mill-1".to_owned())]);
    pool.shutdown();
    let due = DueTask::new(Instant::now(), || ());
    assert!(Executor::execute(&pool, due).is_err(), "it comes back");
}

#[test]
fn s30_a_pool_that_was_shut_down_refuses_for_good() {
    let pool = ScheduledThreadPool::new(1);
    let builder = Scheduler::builder().executor(pool.clone());
    let (scheduler, driver) = builder.build_driven().expect("a scheduler");
    pool.shutdown();
    let tasks: Vec<_> =
        (0..100).map(|_| scheduler.schedule_once(SECOND, || ()).expect("open")).collect();
    driver.advance(HOUR);
    assert_eq!((scheduler.stats().rejected(), scheduler.pending()), (100, 100), "one batch");
    let late = scheduler.schedule_once(SECOND, || ()).expect("open");
    driver.advance(HOUR);
    assert_eq!(driver.turn(), None, "it is never asked again");
    assert!(scheduler.stats().rejected() <= 101 && late.cancel());
    assert!(tasks[0].cancel());
    assert_eq!(driver.close().len(), 99);
    drop(pool.shutdown_now());
    let due = DueTask::new(Instant::now(), || ());
    assert!(Executor::execute(&pool, due).expect_err("shut").is_for_good(), "also after this");
}

#[test]
fn s30_a_pool_that_is_full_refuses_for_now() {
    let pool = ScheduledThreadPool::builder().threads(1).max_pending(1).build().expect("threads");
    let gate = block(&pool);
    let later = pool.schedule(HOUR, || ()).expect("open");
    let refused = Executor::execute(&pool, DueTask::new(Instant::now(), || ())).expect_err("full");
    assert!(!refused.is_for_good());
    assert!(later.cancel());
    drop(gate);
    pool.shutdown();
    assert!(Executor::execute(&pool, refused.into_task()).expect_err("shut").is_for_good());
}

#[test]
fn no_delay_is_too_long() {
    let pool = ScheduledThreadPool::new(1);
    let never = pool.schedule(Duration::MAX, || ()).expect("open");
    let rarely = pool.schedule_at_fixed_rate(Duration::ZERO, Duration::MAX, || ()).expect("open");
    assert!(never.remaining() > HOUR * 1_000_000);
    until("it waits again", || rarely.remaining() > HOUR * 1_000_000);
    assert!(never.cancel() && rarely.cancel());
}

/// Calls a closure when it is dropped, and then tells that it was dropped.
struct WhenDropped<F: FnMut()>(F);

impl<F: FnMut()> Drop for WhenDropped<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn s08_a_series_that_goes_on_just_then_does_not_escape_its_cancel() {
    let pool = ScheduledThreadPool::new(1);
    for round in 0..1_000 {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let nano = Duration::from_nanos(1);
        let series = pool.schedule_with_fixed_delay(Duration::ZERO, nano, task).expect("open");
        while runs.load(Ordering::Relaxed) <= round % 3 {
            thread::yield_now();
        }
        assert!(series.cancel() && series.is_done(), "round {round}");
    }
}

#[test]
fn what_a_result_does_when_it_is_dropped_is_not_taken_for_its_task() {
    let pool = ScheduledThreadPool::new(2);
    let (tell, told) = channel();
    let inner = pool.clone();
    // The future is dropped, so the thread drops the result; the next task may get the memory of this.
    let task = move || {
        WhenDropped(move || {
            let tell = tell.clone();
            let other = inner.submit(move || WhenDropped(move || _ = tell.send(()))).expect("open");
            drop(other.join().expect("another thread runs it"));
        })
    };
    drop(pool.schedule(Duration::from_millis(1), task).expect("open"));
    told.recv_timeout(PATIENCE).expect("no deadlock");
    pool.shutdown();
}

#[test]
fn s17_a_result_that_panics_when_it_is_dropped_stops_no_shutdown() {
    let clock = ManualClock::new();
    let policy = ShutdownPolicy::default().run_delayed(false);
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = builder.shutdown_policy(policy).build().expect("threads");
    let ((open, wait), (tell, told)) = (channel::<()>(), channel());
    // While the shutdown drops the closure of the first, the second runs, and leaves its result to the
    // shutdown.
    let gate = WhenDropped(move || {
        tell.send(()).expect("told");
        wait.recv_timeout(PATIENCE).expect("the second runs");
        thread::sleep(Duration::from_millis(20)); // real time: so that the thread has let go of it
    });
    drop(pool.schedule(HOUR, move || drop(gate)).expect("open"));
    let second = move || {
        open.send(()).expect("the gate waits");
        WhenDropped(|| panic!("on purpose"))
    };
    drop(pool.schedule(SECOND, second).expect("open"));
    let last = pool.schedule(HOUR * 2, || ()).expect("open");
    crate::common::silence();
    let shutdown = thread::spawn({
        let pool = pool.clone();
        move || pool.shutdown()
    });
    told.recv_timeout(PATIENCE).expect("it is being shut down");
    clock.advance(SECOND);
    shutdown.join().expect("no panic gets out");
    assert!(last.is_done() && pool.pending() == 0);
}

#[test]
fn s17_a_clock_that_panics_costs_no_task() {
    #[derive(Clone)]
    struct Moody(ManualClock, Arc<AtomicUsize>);
    impl Clock for Moody {
        fn now(&self) -> Instant {
            let calls_left = self.1.load(Ordering::Relaxed);
            if calls_left > 0 && thread::current().name().is_some_and(|name| name.contains("moody"))
            {
                self.1.store(calls_left - 1, Ordering::Relaxed);
                panic!("on purpose");
            }
            self.0.now()
        }
        fn sleep(&self, sleeper: &tickwheel::Sleeper, until: Option<Instant>) {
            self.0.sleep(sleeper, until);
        }
    }
    crate::common::silence();
    let clock = Moody(ManualClock::new(), Arc::default());
    let builder = ScheduledThreadPool::builder().threads(1).thread_name("moody");
    let pool = builder.clock(clock.clone()).build().expect("threads");
    for _ in 0..200 {
        let left = Arc::clone(&clock.1);
        let task = move || left.store(1, Ordering::Relaxed);
        let again = pool.schedule_with_fixed_delay(Duration::ZERO, SECOND, task).expect("open");
        let ended = again.join_timeout(PATIENCE).expect("it ends");
        assert!(matches!(ended, Err(JoinError::Panicked(_))), "it says why it ended");
        let left = Arc::clone(&clock.1);
        pool.submit(move || left.store(1, Ordering::Relaxed))
            .expect("open")
            .join()
            .expect("it runs");
        until("the panic", || clock.1.load(Ordering::Relaxed) == 0);
    }
    pool.shutdown();
    assert!(pool.await_termination(PATIENCE));
}

/// A task that was taken in before the clock panicked stays in, and nobody is told of an error.
#[test]
fn s17_a_clock_that_panics_while_it_holds_a_producer_back_ends_the_wait() {
    crate::common::silence();
    let panics = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&panics);
    let (clock, countdown) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let moody = Moody(clock.clone(), Arc::clone(&countdown));
    let builder = ScheduledThreadPool::builder().threads(1).clock(moody);
    let pool = builder.on_panic(move |_| _ = told.fetch_add(1, Ordering::Relaxed));
    let pool = pool.build().expect("threads");
    let gate = block(&pool);
    // The first of so many is late, so the next thread that brings one is held back.
    let many: Vec<_> = (0..4200).map(|_| pool.submit(|| ()).expect("open")).collect();
    clock.advance(SECOND);
    countdown.store(2, Ordering::Relaxed); // the first reading is for the task, and the second for the wait
    let last = pool.submit(|| 7).expect("it was taken in");
    assert_eq!(panics.load(Ordering::Relaxed), 1, "the hook is told");
    drop(gate);
    assert!(many.into_iter().all(|future| future.join().is_ok()));
    assert_eq!(last.join().expect("it runs"), 7);
}

/// Its thread asks it ten times a second, and no thread takes its place again and again.
#[test]
fn s17_a_clock_that_goes_on_panicking_costs_little() {
    struct Blind(Arc<AtomicBool>, Arc<AtomicUsize>);
    impl Clock for Blind {
        fn now(&self) -> Instant {
            let is_the_pools = thread::current().name() == Some("blind-1");
            if is_the_pools && self.0.load(Ordering::Relaxed) {
                self.1.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            }
            tickwheel::SystemClock.now()
        }
        fn sleep(&self, sleeper: &tickwheel::Sleeper, until: Option<Instant>) {
            tickwheel::SystemClock.sleep(sleeper, until);
        }
    }
    crate::common::silence();
    let (is_blind, asked, threads) = (Arc::default(), Arc::default(), Arc::default());
    let (blind, started) = (Arc::clone(&is_blind), Arc::<AtomicUsize>::clone(&threads));
    let pool = ScheduledThreadPool::builder()
        .threads(1)
        .thread_name("blind")
        .clock(Blind(blind, Arc::clone(&asked)))
        .thread_factory(move |builder, work| {
            started.fetch_add(1, Ordering::Relaxed);
            builder.spawn(work).map(drop)
        })
        .build()
        .expect("threads");
    let _far = pool.schedule(HOUR, || ()).expect("open");
    is_blind.store(true, Ordering::Relaxed); // before, so that the task cannot run
    let soon = pool.schedule(Duration::from_millis(20), || ()).expect("open");
    until("it is asked", || asked.load(Ordering::Relaxed) >= 3);
    let (start, before) = (Instant::now(), asked.load(Ordering::Relaxed));
    until("it is asked again", || asked.load(Ordering::Relaxed) >= before + 2);
    assert!(start.elapsed() >= Duration::from_millis(100), "a pause each time");
    is_blind.store(false, Ordering::Relaxed);
    soon.join_timeout(PATIENCE).expect("it sees again").expect("no panic");
    assert_eq!(threads.load(Ordering::Relaxed), 1);
}

/// The thread that waits for the first deadline takes that task, and must leave another thread to wait for the second one.
#[test]
fn two_that_are_due_at_once_run_at_once() {
    let pool = ScheduledThreadPool::new(2);
    let meet = Arc::new(Barrier::new(2));
    let futures = [(); 2].map(|()| {
        let meet = Arc::clone(&meet);
        pool.schedule(Duration::from_millis(20), move || _ = meet.wait()).expect("open")
    });
    for future in futures {
        future.join_timeout(PATIENCE).expect("they meet").expect("no panic");
    }
}

#[test]
fn a_task_that_joins_itself_is_told() {
    let pool = ScheduledThreadPool::new(3);
    let (give, take) = channel::<ScheduledFuture<bool>>();
    let task = move || {
        let own = take.recv_timeout(PATIENCE).expect("it is given");
        matches!(own.join(), Err(JoinError::WouldDeadlock))
    };
    let (tell, told) = channel();
    let own = pool.submit(task).expect("open");
    let done = own.handle();
    give.send(own).expect("it waits");
    pool.execute(move || tell.send(()).expect("told")).expect("open");
    told.recv_timeout(PATIENCE).expect("another thread is free");
    until("it ends", || done.is_done());
}

/// The task of the first pool waits in a task of a driver that it turns.
#[test]
fn crosswise_joins_are_told_also_in_a_run_inside_of_a_run() {
    type Join = ScheduledFuture<()>;
    let (first_pool, second_pool) = (ScheduledThreadPool::new(2), ScheduledThreadPool::new(1));
    let told = Arc::new(AtomicUsize::new(0));
    let join = |take: Receiver<Join>| {
        let told = Arc::clone(&told);
        move || {
            let result = take.recv_timeout(PATIENCE).expect("it is given").join();
            let is_told = matches!(result, Err(JoinError::WouldDeadlock));
            told.fetch_add(usize::from(is_told), Ordering::Relaxed);
        }
    };
    let ((give_first, first), (give_second, second)) = (channel::<Join>(), channel::<Join>());
    let (join_first, join_second) = (join(first), join(second));
    let first = first_pool.submit(move || {
        let (scheduler, driver) = crate::common::driven();
        let call = scheduler.call_after(Duration::ZERO, join_second);
        driver.turn();
        call.join().expect("that turn has made it");
    });
    let second = second_pool.submit(join_first);
    give_first.send(first.expect("open")).expect("it waits");
    give_second.send(second.expect("open")).expect("it waits");
    for pool in [first_pool, second_pool] {
        pool.shutdown();
        assert!(pool.await_termination(PATIENCE), "a join hangs");
    }
    assert_eq!(told.load(Ordering::Relaxed), 1, "the one that has closed the circle");
}

#[test]
fn s09_a_panic_of_a_cancelled_closure_s_drop_is_reported_and_goes_no_further() {
    crate::common::silence();
    let (clock, panics) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let told = Arc::clone(&panics);
    let pool = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = pool.on_panic(move |_| _ = told.fetch_add(1, Ordering::Relaxed));
    let pool = pool.build().expect("threads");
    let grenade = Grenade;
    let future = pool.schedule(HOUR, move || drop(grenade)).expect("open");
    assert!(future.cancel());
    assert_eq!(panics.load(Ordering::Relaxed), 1);
    let grenade = Grenade;
    let series = pool.schedule_at_fixed_rate(Duration::ZERO, SECOND, move || {
        let _ = &grenade;
        ControlFlow::Break(())
    });
    assert!(series.expect("open").join().is_ok());
    until("its closure's drop is reported", || panics.load(Ordering::Relaxed) == 2);
}

#[test]
fn s17_hooks_around_runs_see_each_run_and_may_panic() {
    crate::common::silence();
    let (clock, seen) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
    let note = |text: &'static str| {
        let seen = Arc::clone(&seen);
        move || seen.lock().expect("no panic").push(text)
    };
    let (before, after, panicked) = (note("before"), note("after"), note("after a panic"));
    let pool = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = pool.on_panic(|_| ()).before_execute(move |name| {
        before();
        assert!(name.contains("hooks_around_runs"), "{name}");
    });
    let pool = pool.after_execute(move |_, is_panic| if is_panic { panicked() } else { after() });
    let pool = pool.build().expect("threads");

    pool.submit(note("one-shot")).expect("open").join().expect("it runs");
    let broken = pool.submit(|| -> u8 { panic!("no paper") });
    assert!(matches!(broken.expect("open").join(), Err(JoinError::Panicked(_))));
    let (run, mut left) = (note("run"), 2);
    let series = pool.schedule_with_fixed_delay(Duration::ZERO, SECOND, move || {
        run();
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    until("the first run has ended", || seen.lock().expect("no panic").len() == 8);
    until("the next one waits", || pool.pending() == 1); // and so goes by the clock from before the advance
    clock.advance(SECOND);
    series.expect("open").join().expect("it ends");
    pool.schedule(HOUR, note("unstarted")).expect("open").is_done();
    pool.shutdown_now().into_iter().for_each(tickwheel::pool::Unstarted::run);
    let expected = ["before", "one-shot", "after", "before", "after a panic"];
    let runs = ["before", "run", "after"];
    let unstarted = ["before", "unstarted", "after"];
    let expected = [&expected[..], &runs, &runs, &unstarted].concat();
    assert_eq!(*seen.lock().expect("no panic"), expected);

    let (clock, named) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&named);
    let pool = ScheduledThreadPool::builder().threads(1).clock(clock).on_panic(|_| ());
    let pool = pool.before_execute(|_| panic!("a hook's panic, as ordered"));
    let pool = pool.after_execute(move |name, _| {
        count.fetch_add(usize::from(name.contains("hooks_around_runs")), Ordering::Relaxed);
        panic!("a hook's panic, as ordered");
    });
    let pool = pool.build().expect("threads");
    assert_eq!(pool.submit(|| 7).expect("open").join().expect("it runs"), 7);
    assert_eq!(named.load(Ordering::Relaxed), 1);
}

/// What is due a moment late is no reason to hold a thread back, however late the one before it was.
#[test]
fn s19_a_thread_is_held_back_while_the_first_task_is_late_and_no_longer() {
    let at = |millis| Duration::from_millis(millis);
    let held_back = || {
        let clock = ManualClock::new();
        let pool = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
        let pool = pool.build().expect("threads");
        let ((tell, told), (end, ended)) = (channel::<()>(), channel::<()>());
        pool.execute(move || _ = told.recv()).expect("open");
        until("its thread is busy", || pool.pending() == 0);
        drop(pool.schedule(at(100), || ()).expect("open"));
        drop(pool.schedule(at(148), move || _ = ended.recv()).expect("open"));
        for _ in 0..20_000 {
            drop(pool.schedule(at(149), || ()).expect("open"));
        }
        clock.advance(at(150)); // the first one is 50 ms late, and the others 2 ms at most
        let release = thread::spawn(move || {
            thread::sleep(at(5));
            drop(tell);
        });
        let begin = Instant::now();
        pool.execute(|| ()).expect("open");
        let took = begin.elapsed();
        release.join().expect("it ends");
        drop(end);
        took
    };
    // A machine that is busy may take longer, but not each time. Without an end it takes 100 ms.
    assert!((0..20).any(|_| held_back() < at(50)));
}
