//! The scheduler in force: guards, drivers, virtual clocks of threads, and the global scheduler.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::cell::Cell;
use std::future::{pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant as StdInstant};

use crate::common::told::Poller;
use crate::common::{
    PATIENCE, driven, driven_by, is_own_process, panic_on_purpose, silence, until,
};
use crate::{close, poll_with, waker};
use futures_util::future::{join, join_all};
use tickwheel::future::block_on;
use tickwheel::time::{self, Instant, Sleep};
use tickwheel::{
    BuildError, Clock, CloseError, DueTask, Entered, Inline, ManualClock, Rejected, Scheduler,
    SystemClock, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// What is left of a sleep when its clock goes away.
const REST: Duration = Duration::from_millis(30);

const READY: Poll<()> = Poll::Ready(());

/// Returns true if what this thread makes goes to this scheduler, which nobody else uses.
fn is_in_force(scheduler: &Scheduler) -> bool {
    let (before, task) = (scheduler.stats().scheduled(), Poller::new());
    let mut timeout = time::timeout(HOUR, pending::<()>());
    let mut interval = time::interval_at(Instant::now() + HOUR, HOUR);
    assert!(task.poll(&mut time::sleep(HOUR)).is_pending());
    assert!(task.poll(&mut time::sleep_until(Instant::now() + HOUR)).is_pending());
    assert!(task.poll(&mut timeout).is_pending());
    assert!(task.poll(&mut pin!(interval.tick())).is_pending());
    let made = scheduler.stats().scheduled() - before;
    assert!(made == 0 || made == 4, "{made} of four");
    assert!(made == 0 || Instant::now().into_std() == scheduler.now());
    made == 4
}

/// Returns true if the global scheduler is in force. It belongs to other tests too.
fn is_global() -> bool {
    let (global, before) = (Scheduler::global(), StdInstant::now());
    let (scheduled, now) = (global.stats().scheduled(), Instant::now().into_std());
    assert!(Poller::new().poll(&mut time::sleep(HOUR)).is_pending());
    (before..=StdInstant::now()).contains(&now) && global.stats().scheduled() > scheduled
}

/// Time is paused on this thread until it is dropped.
struct Paused;

fn paused() -> Paused {
    time::pause();
    Paused
}

impl Drop for Paused {
    fn drop(&mut self) {
        time::resume();
    }
}

// ----- enter -------------------------------------------------------------------------------

#[test]
fn guards_nest_and_may_be_dropped_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let schedulers = [(); 3].map(|()| driven());
        let mut guards = [const { None::<Entered<'_>> }; 3];
        for (at, (scheduler, _)) in schedulers.iter().enumerate() {
            guards[at] = Some(scheduler.enter());
            assert!(is_in_force(scheduler));
        }
        for at in order {
            guards[at] = None;
            let innermost = guards.iter().rposition(Option::is_some);
            for (other, (scheduler, _)) in schedulers.iter().enumerate() {
                assert_eq!(is_in_force(scheduler), innermost == Some(other), "{order:?} at {at}");
            }
        }
        assert!(is_global());
    }
}

/// In force for whatever else the thread polls in the meantime.
#[test]
fn a_guard_stays_across_an_await() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let enters = async {
        let _in_force = scheduler.enter();
        time::sleep(SECOND).await;
        is_in_force(&scheduler)
    };
    let other = async {
        let is_seen = is_in_force(&scheduler);
        scheduler.sleep(HOUR).await;
        (is_seen, is_global())
    };
    let mut both = pin!(join(enters, other));
    assert!(task.poll(&mut both).is_pending() && is_in_force(&scheduler));
    driver.advance(SECOND);
    assert!(task.poll(&mut both).is_pending() && is_global());
    driver.advance(HOUR);
    assert_eq!(task.poll(&mut both), Poll::Ready((true, (true, true))));
}

#[test]
fn a_guard_belongs_to_its_thread() {
    /// One of the two holds for each type, and both for one that is `Send`. Then the compiler cannot choose.
    trait IsNotSend<Which> {
        fn is_so() {}
    }
    impl<T: ?Sized> IsNotSend<()> for T {}
    impl<T: ?Sized + Send> IsNotSend<u8> for T {}
    let () = <Entered<'_> as IsNotSend<_>>::is_so();
}

/// What is made here keeps the scheduler, and other threads do not see the guard.
#[test]
fn a_future_that_moves_to_another_thread_keeps_its_scheduler() {
    let (scheduler, driver) = driven();
    let in_force = scheduler.enter();
    let (sleep, timeout) = (time::sleep(HOUR), time::timeout(HOUR, pending::<()>()));
    let mut ticks = time::interval(HOUR);
    drop(in_force);
    let both = thread::scope(|scope| {
        let polls = scope.spawn(|| {
            assert!(is_global());
            let task = Poller::new();
            let (mut sleep, mut timeout) = (sleep, timeout);
            assert!(task.poll(&mut sleep).is_pending() && task.poll(&mut timeout).is_pending());
            assert!(task.poll(&mut pin!(ticks.tick())).is_ready());
            assert!(task.poll(&mut pin!(ticks.tick())).is_pending());
            (task, sleep, timeout)
        });
        polls.join().expect("no panic")
    });
    let (task, mut sleep, mut timeout) = both;
    assert_eq!(scheduler.pending(), 3);
    driver.advance(HOUR);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (3, READY));
    assert!(matches!(task.poll(&mut timeout), Poll::Ready(Err(_))));
    assert!(task.poll(&mut pin!(ticks.tick())).is_ready());
}

/// A thread that runs tasks for others has its own scheduler in force, not the one that schedules them.
#[test]
fn a_task_of_a_pool_sees_the_global_scheduler_or_what_it_enters_itself() {
    let builder = Scheduler::builder().executor(ThreadPool::new(1));
    let scheduler = builder.build().expect("good settings");
    let (entered, _driver) = driven();
    let _in_force = entered.enter();
    let inside = entered.clone();
    let call = scheduler.call_after(Duration::ZERO, move || {
        let is_global = is_global();
        let _in_force = inside.enter();
        (is_global, is_in_force(&inside))
    });
    let seen = call.join_timeout(PATIENCE).expect("it runs").expect("no panic");
    assert_eq!(seen, (true, true));
    let seen = scheduler.call_after(Duration::ZERO, is_global).join_timeout(PATIENCE);
    assert!(seen.expect("it runs").expect("no panic"), "the guard has gone");
    assert!(is_in_force(&entered));
}

#[test]
fn a_virtual_clock_comes_before_guards_and_guards_before_drivers() {
    let ((outer, outer_driver), (inner, inner_driver)) = (driven(), driven());
    let (entered, _driver) = driven();
    let all = || [&outer, &inner, &entered].map(is_in_force);
    assert!(is_global());
    outer_driver
        .block_on(async {
            assert_eq!(all(), [true, false, false]);
            inner_driver
                .block_on(async { assert_eq!(all(), [false, true, false]) })
                .expect("ready");
            assert_eq!(all(), [true, false, false]);
            let in_force = entered.enter();
            assert_eq!(all(), [false, false, true]);
            inner_driver
                .block_on(async { assert_eq!(all(), [false, false, true]) })
                .expect("ready");
            {
                let _paused = paused();
                assert!(all() == [false; 3] && !is_global());
                let _in_force = inner.enter();
                assert!(all() == [false; 3] && !is_global());
                inner_driver.block_on(async { assert_eq!(all(), [false; 3]) }).expect("ready");
            }
            assert_eq!(all(), [false, false, true]);
            drop(in_force);
            assert_eq!(all(), [true, false, false]);
        })
        .expect("ready");
    assert_eq!(all(), [false; 3], "the time that was resumed runs on");
}

#[test]
fn a_panic_takes_a_guard_and_a_driver_out_of_force() {
    silence();
    let ((scheduler, driver), (entered, _driver)) = (driven(), driven());
    let panics = || {
        driver.block_on(async {
            let _in_force = entered.enter();
            assert!(is_in_force(&entered));
            panic_on_purpose()
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(is_global() && !is_in_force(&scheduler));
}

/// Not for the one that was entered before.
#[test]
fn a_closed_scheduler_in_force_is_passed_over_for_the_global_one() {
    let ((outer, _outer_driver), (inner, inner_driver)) = (driven(), driven());
    let (_outer, _inner) = (outer.enter(), inner.enter());
    assert!(is_in_force(&inner));
    close(&inner);
    assert!(is_global() && !is_in_force(&outer));
    let start = StdInstant::now();
    block_on(time::sleep(MILLI));
    assert!(start.elapsed() >= MILLI);
    inner_driver.block_on(async { assert!(is_global()) }).expect("ready");
}

/// Its own guards and futures do not count, so it is the only one that can close.
#[test]
fn s20_a_handle_of_the_scheduler_in_force_is_one_like_all_others() {
    let scheduler = Scheduler::new();
    let (mine, weak) = {
        let _in_force = scheduler.enter();
        (Scheduler::in_force(), Scheduler::in_force().downgrade())
    };
    drop(scheduler);
    assert!(weak.upgrade().is_some(), "it stands for all handles");
    mine.schedule_once(HOUR, || ()).expect("open");
    assert_eq!(mine.close().expect("nobody turns it").len(), 1);
    time::pause();
    time::resume();
    let (first, second) = (Scheduler::in_force(), Scheduler::in_force());
    first.schedule_once(HOUR, || ()).expect("open");
    drop(first);
    assert_eq!(second.close().expect("nobody turns it").len(), 1);
    assert!(is_global(), "a closed one is passed over");
}

// ----- Driver::block_on --------------------------------------------------------------------

/// Its time is virtual already, so a test that pauses runs there too.
#[test]
fn in_a_driver_pause_does_nothing_and_advance_moves_its_clock() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let moved = driver.block_on(async {
        let began = Instant::now();
        assert_eq!(began.into_std(), start);
        for _ in 0..2 {
            time::pause();
            assert!(is_in_force(&scheduler));
        }
        time::advance(HOUR).await;
        assert_eq!(began.elapsed(), HOUR);
        time::advance_when_idle();
        time::resume();
        assert!(is_in_force(&scheduler));
        time::sleep(HOUR).await;
        let late = time::timeout(HOUR, pending::<()>()).await;
        assert!(late.is_err());
        let mut ticks = time::interval(HOUR);
        ticks.tick().await;
        ticks.tick().await - began
    });
    assert_eq!((moved, scheduler.now() - start), (Ok(HOUR * 4), HOUR * 4));
}

/// As on a clock of `pause`.
#[test]
fn in_a_driver_advance_moves_the_clock_all_the_way_and_then_yields() {
    let (_scheduler, driver) = driven(); // with ticks of a millisecond
    let done = driver.block_on(async {
        let start = Instant::now();
        time::advance(Duration::from_micros(1_500)).await;
        assert_eq!(start.elapsed(), Duration::from_micros(1_500));
        let has_run = Cell::new(false);
        let moved = async {
            time::advance(Duration::ZERO).await;
            assert!(has_run.get(), "others get a turn");
        };
        join(moved, async { has_run.set(true) }).await;
        let start = Instant::now();
        let nap = async {
            time::sleep(SECOND).await;
            start.elapsed()
        };
        assert_eq!(join(nap, time::advance(SECOND * 5)).await.0, SECOND * 5);
        time::advance(Duration::MAX).await; // as far as it goes
    });
    assert_eq!(done, Ok(()));
}

// ----- pause -------------------------------------------------------------------------------

#[test]
fn a_paused_clock_stands_still_until_it_is_moved() {
    let _paused = paused();
    let (task, start) = (Poller::new(), Instant::now());
    let (mut one, mut two) = (time::sleep(SECOND), time::sleep(SECOND * 2));
    assert!(task.poll(&mut one).is_pending() && task.poll(&mut two).is_pending());
    thread::sleep(MILLI); // real time, which must not count
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(task.poll(&mut pin!(time::advance(SECOND - MILLI))).is_pending(), "others get a turn");
    assert_eq!((start.elapsed(), task.woken()), (SECOND - MILLI, 1), "of the yield");
    assert!(task.poll(&mut one).is_pending());
    time::advance_when_idle();
    assert_eq!((start.elapsed(), task.poll(&mut one)), (SECOND, READY), "to the next deadline");
    assert!(task.woken() > 1);
    assert!(task.poll(&mut two).is_pending());
    time::advance_when_idle();
    assert_eq!((start.elapsed(), task.poll(&mut two)), (SECOND * 2, READY));
}

#[test]
fn s09_a_paused_thread_keeps_the_waker_of_a_sleep_until_the_time_moves() {
    let _paused = paused();
    let (task, [mut sleep, mut other]) = (Poller::new(), [(); 2].map(|()| time::sleep(HOUR)));
    assert!(Poller::new().poll(&mut other).is_pending() && task.poll(&mut sleep).is_pending());
    drop(sleep);
    assert_eq!(task.wakers(), 1);
    time::advance_when_idle();
    assert_eq!(task.wakers(), 0);
}

#[test]
fn an_idle_clock_with_nothing_pending_stays_where_it_is() {
    time::advance_when_idle(); // without a virtual clock
    let _paused = paused();
    let start = Instant::now();
    (0..1_000).for_each(|_| time::advance_when_idle());
    drop(time::sleep(HOUR)); // never polled
    let mut never = time::timeout(Duration::MAX, pending::<()>());
    assert!(Poller::new().poll(&mut never).is_pending());
    time::advance_when_idle();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// `advance` lets them run when it has moved the clock all the way, in the order of their deadlines.
#[test]
fn tasks_that_an_advance_wakes_find_the_clock_at_its_new_time() {
    let _paused = paused();
    let start = Instant::now();
    let naps = [3, 1, 2].map(|seconds| async move {
        time::sleep(SECOND * seconds).await;
        start.elapsed()
    });
    let (naps, ()) = block_on(join(join_all(naps), time::advance(SECOND * 5)));
    assert_eq!(naps, [SECOND * 5; 3]);
}

/// They stay due, and are not the next thing that happens.
#[test]
fn tasks_that_are_refused_do_not_stop_a_paused_clock() {
    let _paused = paused();
    for is_for_good in [false, true] {
        let (start, offers) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let offered = Arc::clone(&offers);
        let refusing = Scheduler::in_force().with_executor(move |task: DueTask| {
            offered.fetch_add(1, Ordering::Relaxed);
            Err(if is_for_good { Rejected::for_good(task) } else { Rejected::new(task) })
        });
        refusing.schedule_once(Duration::ZERO, || ()).expect("open");
        block_on(time::sleep(SECOND));
        assert_eq!(start.elapsed(), SECOND);
        assert_eq!(offers.load(Ordering::Relaxed) > 1, !is_for_good);
    }
}

#[test]
fn an_hour_on_a_paused_thread_takes_no_time() {
    let _paused = paused();
    let (real, start) = (StdInstant::now(), Instant::now());
    block_on(async {
        let beats = async {
            let mut ticks = time::interval(SECOND);
            for n in 0..=3600 {
                assert_eq!(ticks.tick().await - start, SECOND * n);
            }
        };
        let late = time::timeout(HOUR, pending::<()>());
        let ((), late) = join(beats, late).await;
        assert!(late.is_err());
        assert_eq!(time::timeout(HOUR, ready(7)).await, Ok(7));
    });
    assert_eq!(start.elapsed(), HOUR);
    // Also inside of a driver, whose own clock stays where it is.
    let (scheduler, driver) = driven();
    let driven_start = scheduler.now();
    driver.block_on(time::sleep(HOUR)).expect("it is woken");
    assert_eq!((start.elapsed(), scheduler.now()), (HOUR * 2, driven_start));
    assert!(real.elapsed() < HOUR / 60);
}

#[test]
fn two_threads_with_paused_clocks_do_not_see_each_other() {
    let (tell, told) = mpsc::sync_channel(0);
    let other = thread::spawn(move || {
        let _paused = paused();
        let start = Instant::now();
        block_on(async {
            time::sleep(HOUR).await;
            tell.send(()).expect("awaited");
            tell.send(()).expect("awaited"); // when the other clock has moved
            assert_eq!(start.elapsed(), HOUR);
            time::advance(HOUR).await;
        });
        start.elapsed()
    });
    let _paused = paused();
    let start = Instant::now();
    told.recv_timeout(PATIENCE).expect("it sleeps");
    assert_eq!(start.elapsed(), Duration::ZERO);
    block_on(time::advance(SECOND));
    told.recv_timeout(PATIENCE).expect("it sleeps");
    assert_eq!(other.join().expect("no panic"), HOUR * 2);
    assert_eq!(start.elapsed(), SECOND);
}

#[test]
fn what_was_made_before_a_pause_stays_real() {
    let (start, task) = (StdInstant::now(), Poller::new());
    let (mut far, near) = (time::sleep(HOUR), time::sleep(REST));
    let _paused = paused();
    block_on(time::advance(HOUR * 2));
    assert!(task.poll(&mut far).is_pending());
    time::advance_when_idle();
    assert!(task.poll(&mut far).is_pending());
    block_on(near);
    assert!(start.elapsed() >= REST);
}

// ----- the end of a virtual clock ------------------------------------------------------------

/// Also what was never polled in virtual time.
#[test]
fn after_a_resume_the_rest_passes_in_real_time() {
    let paused = paused();
    let task = Poller::new();
    let (mut polled, mut fresh) = (time::sleep(HOUR), time::sleep(HOUR));
    let (mut ready, mut far) = (time::sleep(SECOND), time::sleep(HOUR * 2));
    for sleep in [&mut polled, &mut ready, &mut far] {
        assert!(task.poll(sleep).is_pending());
    }
    let mut ticks = time::interval_at(Instant::now() + HOUR, REST);
    assert!(task.poll(&mut pin!(ticks.tick())).is_pending());
    block_on(time::advance(HOUR - REST));
    let (start, stood, woken) = (StdInstant::now(), Instant::now(), task.woken());
    drop(paused);
    let now = Instant::now();
    assert!(now >= stood && now <= stood + start.elapsed(), "it runs on from there");
    assert_eq!(task.woken() - woken, 3, "they look for another scheduler");
    assert_eq!(task.poll(&mut ready), READY, "its time had come");
    assert!(task.polls_until_ready(&mut polled) <= 2 && start.elapsed() >= REST);
    assert!(task.polls_until_ready(&mut fresh) <= 2 && start.elapsed() >= REST);
    let first = block_on(ticks.tick());
    assert!(start.elapsed() >= REST);
    assert_eq!(block_on(ticks.tick()), first + REST);
    assert!(start.elapsed() >= REST * 2);
    assert!(task.poll(&mut far).is_pending());
}

/// The thread's time is ahead of the real one then.
#[test]
fn after_a_resume_new_sleeps_and_resets_take_real_time_from_now() {
    let paused = paused();
    let (task, mut sleeps) = (Poller::new(), [(); 2].map(|()| time::sleep(HOUR * 24)));
    assert!(task.poll(&mut sleeps[0]).is_pending());
    block_on(time::advance(HOUR));
    drop(paused);
    let start = StdInstant::now();
    let now = Instant::now();
    block_on(time::sleep(MILLI));
    assert!(start.elapsed() >= MILLI && now.elapsed() >= MILLI && now.elapsed() < HOUR);
    for sleep in &mut sleeps {
        assert!(task.poll(sleep).is_pending());
        let start = StdInstant::now();
        Pin::new(&mut *sleep).reset(Instant::now() + REST);
        assert!(task.polls_until_ready(sleep) <= 3 && start.elapsed() >= REST);
    }
}

/// It was made by a handle, and not by a function of `time`.
#[test]
fn after_a_resume_a_sleep_of_the_scheduler_in_force_keeps_its_time() {
    let paused = paused();
    let task = Poller::new();
    let mut sleep = Scheduler::in_force().sleep(HOUR * 2);
    assert!(task.poll(&mut sleep).is_pending());
    block_on(time::advance(HOUR));
    drop(paused);
    let start = StdInstant::now();
    assert!(task.poll(&mut sleep).is_pending());
    Pin::new(&mut sleep).reset(Instant::now() + REST);
    assert!(task.polls_until_ready(&mut sleep) <= 3 && start.elapsed() >= REST);
    assert!(start.elapsed() < HOUR);
}

#[test]
fn instants_never_go_back_on_a_thread_that_pauses_again_and_again() {
    let start = Instant::now();
    let mut last = start;
    let mut later = || {
        let now = Instant::now();
        assert!(now >= last, "back by {:?}", last - now);
        last = now;
        now
    };
    for round in 1..=3 {
        let paused = paused();
        let stands = later();
        block_on(time::sleep(HOUR));
        assert_eq!(later() - stands, HOUR);
        let mut left = time::sleep(REST);
        assert!(Poller::new().poll(&mut left).is_pending());
        let real = StdInstant::now(); // before the resume, from which on the rest passes
        drop(paused);
        later();
        block_on(left);
        block_on(time::sleep(MILLI));
        assert!(real.elapsed() >= REST + MILLI && later() - stands >= HOUR + REST + MILLI);
        assert!(later() - start >= HOUR * round);
    }
}

/// Whether it was polled before or not, and also if the clock has not moved.
#[test]
fn after_a_resume_time_runs_on_from_where_it_stood() {
    for ahead in [Duration::ZERO, HOUR] {
        time::pause();
        let start = Instant::now();
        thread::sleep(REST * 8);
        block_on(time::advance(ahead));
        let (task, mut sleeps) = (Poller::new(), [(); 2].map(|()| time::sleep(REST)));
        assert!(task.poll(&mut sleeps[0]).is_pending());
        let deadlines = sleeps.each_ref().map(Sleep::deadline);
        let real = std::time::Instant::now();
        time::resume();
        let passed = start.elapsed();
        assert!(passed >= ahead && passed <= ahead + real.elapsed(), "it does not jump");
        thread::sleep(REST);
        for (mut sleep, deadline) in sleeps.into_iter().zip(deadlines) {
            task.polls_until_ready(&mut sleep);
            assert_eq!(sleep.deadline(), deadline, "it is one time");
            assert!(start.elapsed() >= ahead + REST);
        }
    }
}

#[test]
fn a_clock_at_the_end_of_its_range_is_resumed_without_a_panic() {
    time::pause();
    block_on(time::advance(Duration::MAX));
    time::resume();
    assert_eq!(Instant::now().elapsed(), Duration::ZERO);
}

/// A sleep of another scheduler is none of this thread's business.
#[test]
fn a_closed_scheduler_s_sleep_keeps_its_deadline_on_a_thread_that_has_resumed() {
    time::pause();
    block_on(time::advance(HOUR));
    time::resume();
    let scheduler = Scheduler::new();
    let (task, mut sleep) = (Poller::new(), scheduler.sleep(HOUR));
    let deadline = sleep.deadline();
    drop(scheduler.close());
    assert!(task.poll(&mut sleep).is_pending());
    assert_eq!(sleep.deadline(), deadline);
    let now = Instant::now();
    let in_force = scheduler.enter();
    assert!(Instant::now() >= now, "a closed guard gives way to the time of the thread");
    drop(in_force);
}

/// The series of the driver would be due for ever.
#[test]
fn a_series_on_a_paused_clock_does_not_hold_a_driver_s_clock_up() {
    let _paused = paused();
    let beat = Scheduler::in_force().schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    driver.block_on(scheduler.sleep(HOUR)).expect("its time comes");
    assert_eq!(scheduler.now() - start, HOUR);
    assert!(beat.cancel());
}

#[test]
fn a_paused_clock_goes_on_inside_of_any_driver() {
    let real = Scheduler::builder().clock(SystemClock);
    for (scheduler, driver) in [driven(), driven_by(real)] {
        scheduler.schedule_repeatedly(HOUR, HOUR, || ()).expect("open");
        let paused = paused();
        let start = Instant::now();
        driver.block_on(time::sleep(SECOND * 5)).expect("it moves");
        assert_eq!(start.elapsed(), SECOND * 5);
        drop(paused);
    }
}

#[test]
fn pause_inside_of_a_driver_in_real_time_makes_time_virtual() {
    let (_scheduler, driver) = driven_by(Scheduler::builder().clock(SystemClock));
    let hour = async {
        let _paused = paused();
        let start = Instant::now();
        time::sleep(HOUR).await;
        assert_eq!(start.elapsed(), HOUR);
    };
    driver.block_on(hour).expect("it moves");
}

#[test]
fn s11_a_waker_ends_the_virtual_clock_that_wakes_it() {
    time::pause();
    let (task, mut sleep) = (Poller::new(), time::sleep(SECOND));
    let mut far = time::sleep(SECOND + REST);
    assert!(poll_with(&mut sleep, &waker(time::resume)).is_pending());
    assert!(task.poll(&mut far).is_pending());
    let start = StdInstant::now();
    time::advance_when_idle();
    assert_eq!(task.poll(&mut sleep), READY);
    assert!(task.polls_until_ready(&mut far) <= 3 && start.elapsed() >= REST);
    assert!(catch_unwind(time::resume).is_err(), "its clock has gone");
}

/// One that this thread waits for, and one that nobody has polled.
#[test]
fn when_the_thread_that_paused_ends_the_rest_passes_in_real_time() {
    let (give, given) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let pauses = thread::spawn(move || {
        time::pause();
        block_on(time::sleep(HOUR));
        give.send((time::sleep(REST), time::sleep(REST))).expect("awaited");
        ends.recv_timeout(PATIENCE).expect("sent");
    });
    let (mut polled, fresh) = given.recv_timeout(PATIENCE).expect("it sleeps");
    let (task, start) = (Poller::new(), StdInstant::now());
    assert!(task.poll(&mut polled).is_pending());
    end.send(()).expect("it waits");
    pauses.join().expect("no panic");
    until("it looks for another scheduler", || task.woken() == 1);
    assert!(task.polls_until_ready(&mut polled) <= 2 && start.elapsed() >= REST);
    let start = StdInstant::now();
    block_on(fresh);
    assert!(start.elapsed() >= REST);
}

#[test]
#[should_panic(expected = "time is paused on this thread already")]
fn a_second_pause_is_a_mistake_that_is_told() {
    let _paused = paused();
    time::pause();
}

#[test]
#[should_panic(expected = "call `tickwheel::time::pause` first")]
fn a_resume_without_a_pause_is_a_mistake_that_is_told() {
    time::resume();
}

#[test]
#[should_panic(expected = "call `tickwheel::time::pause` first")]
fn an_advance_without_a_pause_is_a_mistake_that_is_told() {
    block_on(time::advance(SECOND));
}

// ----- the global scheduler ------------------------------------------------------------------

/// To make futures, and to poll timeouts that need no timer, is no use of it.
#[test]
fn the_global_scheduler_is_set_before_its_first_use() {
    if !is_own_process(the_global_scheduler_is_set_before_its_first_use) {
        return;
    }
    let (early, task) = (time::sleep(Duration::ZERO), Poller::new());
    assert_eq!(block_on(time::timeout(HOUR, ready(7))), Ok(7));
    drop(time::interval(HOUR));
    let wrong = Scheduler::set_global(Scheduler::builder().tick(Duration::ZERO));
    assert!(matches!(wrong, Err(BuildError::ZeroTick)), "{wrong:?}");
    let clock = ManualClock::new();
    clock.advance(HOUR);
    let own = || Scheduler::builder().executor(Inline).clock(clock.clone());
    Scheduler::set_global(own()).expect("nobody has used it");
    assert!(matches!(Scheduler::set_global(own()), Err(BuildError::GlobalInUse)));
    assert_eq!(Scheduler::global().now(), clock.now());
    assert_eq!(Instant::now().into_std(), clock.now());
    let mut sleep = time::sleep(HOUR);
    assert!(task.poll(&mut sleep).is_pending());
    clock.advance(HOUR);
    until("it is woken", || task.woken() == 1);
    assert_eq!(task.poll(&mut sleep), READY);
    block_on(early);
    assert_eq!(Scheduler::global().close().unwrap_err(), CloseError::Global);
}

/// What is left of a sleep passes by the clock of the global scheduler, whichever that is.
#[test]
fn a_sleep_that_goes_over_to_a_global_scheduler_of_another_clock_takes_its_time() {
    if !is_own_process(a_sleep_that_goes_over_to_a_global_scheduler_of_another_clock_takes_its_time)
    {
        return;
    }
    let (clock, task) = (ManualClock::new(), Poller::new());
    clock.advance(HOUR * 2);
    Scheduler::set_global(Scheduler::builder().clock(clock.clone())).expect("nobody has used it");
    let scheduler = Scheduler::new();
    let mut early = scheduler.sleep(HOUR);
    assert!(task.poll(&mut early).is_pending());
    drop(scheduler.close().expect("in time"));
    for mut sleep in [early, scheduler.sleep(HOUR)] {
        assert!(task.poll(&mut sleep).is_pending(), "it has an hour left");
        clock.advance(HOUR);
        let polls = task.polls_until_ready(&mut sleep); // one may be for the wake of the close
        assert!(polls <= 3, "{polls} polls");
    }
}

/// It keeps its time, although no scheduler takes its timer.
#[test]
fn s25_a_global_scheduler_that_is_full_lets_nothing_end_early() {
    if !is_own_process(s25_a_global_scheduler_that_is_full_lets_nothing_end_early) {
        return;
    }
    Scheduler::set_global(Scheduler::builder().max_pending(0)).expect("nobody has used it");
    let start = StdInstant::now();
    block_on(time::sleep(REST));
    assert!(start.elapsed() >= REST);
    assert!(block_on(time::timeout(REST, pending::<()>())).is_err());
    assert!(start.elapsed() >= REST * 2);
    block_on(async {
        let mut ticks = time::interval(REST);
        ticks.tick().await;
        ticks.tick().await;
    });
    assert!(start.elapsed() >= REST * 3);
}

#[test]
fn the_global_scheduler_is_not_set_after_its_first_use() {
    if !is_own_process(the_global_scheduler_is_not_set_after_its_first_use) {
        return;
    }
    block_on(time::sleep(MILLI));
    let late = Scheduler::set_global(Scheduler::builder().clock(ManualClock::new()));
    assert!(matches!(late, Err(BuildError::GlobalInUse)), "{late:?}");
    assert!(is_global(), "it is as it was");
}
