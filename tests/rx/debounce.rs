//! What `rx::debounce` and `rx::throttle` promise, on virtual time, and in a storm.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::ledger::{Ledger, Page};
use crate::common::log::Log;
use crate::common::schedules::{ByHand, TasksOnly};
use crate::common::{Grenade, OnDrop, Random, driven, driven_by, panic_on_purpose, silence, until};
use tickwheel::message_loop::MessageLoop;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{self, Debounced, ExecutorScheduler, Throttled};
use tickwheel::{Clock, Inline, ManualClock, Schedule, ScheduleError, Scheduler, ThreadPool};

const NANO: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a closure that logs its values.
fn logging() -> (impl FnMut(u32) + Send + 'static, Log) {
    let log = Log::default();
    let writer = log.clone();
    (move |number| writer.say(number), log)
}

/// Returns a callable that logs its values, and waits for a quiet second.
fn debounce(schedule: impl Schedule + 'static) -> (Debounced<u32>, Log) {
    let (f, log) = logging();
    (rx::debounce(schedule, SECOND, f), log)
}

/// Returns a callable that logs its values, at most one a second.
fn throttle(schedule: impl Schedule + 'static) -> (Throttled<u32>, Log) {
    let (f, log) = logging();
    (rx::throttle(schedule, SECOND, f), log)
}

/// Either of the two callables.
trait Callable<V>: Send + Sync {
    fn call(&self, value: V) -> Result<(), (ScheduleError, V)>;
    fn flush(&self) -> bool;
    fn cancel(&self) -> bool;
    fn is_pending(&self) -> bool;
}

macro_rules! callable {
    ($($type:ident),*) => {$(
        impl<V: Send + 'static> Callable<V> for $type<V> {
            fn call(&self, value: V) -> Result<(), (ScheduleError, V)> {
                $type::call(self, value).map_err(|error| (error.reason(), error.into_task()))
            }
            fn flush(&self) -> bool {
                $type::flush(self)
            }
            fn cancel(&self) -> bool {
                $type::cancel(self)
            }
            fn is_pending(&self) -> bool {
                $type::is_pending(self)
            }
        }
    )*};
}

callable!(Debounced, Throttled);

/// A callable that its closure calls, by a handle that is set later.
fn calling_itself<C: Clone + Send + Sync + 'static>(make: impl FnOnce(Arc<OnceLock<C>>) -> C) -> C {
    let own = Arc::new(OnceLock::new());
    let callable = make(Arc::clone(&own));
    assert!(own.set(callable.clone()).is_ok());
    callable
}

// ----- when it runs ----------------------------------------------------------------------------

#[test]
fn s01_a_debounced_closure_runs_once_with_the_last_value_and_not_before_it_was_quiet() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler.clone());
    for number in 1..=5 {
        debounced.call(number).expect("open");
        driver.advance(SECOND.saturating_sub(NANO));
    }
    assert!(log.all().is_empty() && debounced.is_pending());
    driver.advance(MS);
    assert_eq!((log.all(), debounced.is_pending()), (vec![5], false));
    assert_eq!(driver.advance(60 * SECOND), 0);
    debounced.call(6).expect("open");
    driver.advance(SECOND + MS);
    assert_eq!((log.all(), scheduler.pending()), (vec![5, 6], 0));
}

#[test]
fn s01_a_throttled_closure_runs_at_once_and_then_once_a_period_with_the_last_value() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (clock, note) = (scheduler.clone(), Arc::clone(&runs));
    let throttled = rx::throttle(scheduler.clone(), SECOND, move |number: u32| {
        note.lock().expect("whole").push(((clock.now() - start).as_millis(), number));
    });
    throttled.call(0).expect("open");
    assert!(runs.lock().expect("whole").is_empty(), "never on the caller's stack (S5)");
    driver.turn();
    assert_eq!(*runs.lock().expect("whole"), [(0, 0)]);
    for number in 1..=25 {
        driver.advance(100 * MS);
        throttled.call(number).expect("open");
    }
    driver.advance(60 * SECOND);
    assert_eq!(*runs.lock().expect("whole"), [(0, 0), (1000, 9), (2000, 19), (3000, 25)]);
    throttled.call(26).expect("open");
    driver.turn();
    assert_eq!(runs.lock().expect("whole").last(), Some(&(62_500, 26)), "a period has passed");
    assert_eq!((driver.advance(60 * SECOND), scheduler.pending()), (0, 0));
}

#[test]
fn a_period_is_counted_from_the_start_of_a_run_however_late_it_was() {
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let (throttled, log) = throttle(scheduler);
    throttled.call(1).expect("open");
    clock.advance(700 * MS); // the thread was busy
    driver.turn();
    throttled.call(2).expect("open");
    clock.advance(999 * MS);
    driver.turn();
    assert_eq!(log.all(), [1]);
    clock.advance(MS);
    driver.turn();
    assert_eq!(log.all(), [1, 2]);
}

#[test]
fn a_stream_that_is_never_quiet_gets_through_after_the_longest_wait() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler);
    let debounced = debounced.max_wait(3 * SECOND);
    for number in 0..70 {
        debounced.call(number).expect("open");
        driver.advance(100 * MS);
    }
    assert_eq!(log.all(), [29, 59], "each 3 s after its first call");
    driver.advance(900 * MS);
    assert_eq!(log.all(), [29, 59, 69], "the last one when it was quiet");
}

#[test]
fn with_a_longest_wait_of_the_quiet_time_it_samples() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler);
    let debounced = debounced.max_wait(SECOND);
    for number in 0..25 {
        debounced.call(number).expect("open");
        driver.advance(100 * MS);
    }
    driver.advance(10 * SECOND);
    assert_eq!(log.all(), [9, 19, 24]);
}

#[test]
fn s04_any_duration_is_accepted() {
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let (f, log) = logging();
    let never = rx::debounce(scheduler.clone(), Duration::MAX, f);
    let (f, sampled) = logging();
    let sampled_never = rx::debounce(scheduler.clone(), Duration::MAX, f).max_wait(Duration::MAX);
    let (f, drawn) = logging();
    let drawn_once = rx::throttle(scheduler.clone(), Duration::MAX, f);
    for number in 1..=2 {
        never.call(number).expect("open");
        sampled_never.call(number).expect("open");
        drawn_once.call(number).expect("open");
        driver.turn();
        driver.advance(Duration::from_secs(1000 * 365 * 24 * 3600));
    }
    assert_eq!((log.all(), sampled.all(), drawn.all()), (vec![], vec![], vec![1]));
    assert!(never.is_pending() && sampled_never.is_pending() && drawn_once.is_pending());
    assert!(never.flush() && sampled_never.cancel() && drawn_once.flush());
    assert_eq!((log.all(), sampled.all(), drawn.all()), (vec![2], vec![], vec![1, 2]));
    assert_eq!(scheduler.pending(), 0);
}

/// Near the end of the clock, a time that the clock cannot say counts as never, and no sooner time takes its place.
#[test]
fn s04_a_clock_near_its_end_makes_nothing_early() {
    let hand = ByHand::default();
    let mut step = Duration::MAX;
    while step > SECOND {
        match hand.now().checked_add(step) {
            Some(_) => hand.advance(step),
            None => step /= 2,
        }
    }
    let (f, log) = logging();
    let debounced = rx::debounce(hand.timers(), 10 * SECOND, f);
    debounced.call(1).expect("open");
    debounced.call(2).expect("open");
    hand.run_oldest(); // it comes too early, on a clock that has no later time
    assert_eq!((log.all(), hand.waiting()), (vec![], 1));
    assert!(debounced.flush());
    assert_eq!(log.all(), [2]);
}

#[test]
fn s05_zero_is_as_soon_as_possible_and_never_on_the_callers_stack() {
    let (scheduler, driver) = driven();
    let (f, log) = logging();
    let debounced = rx::debounce(scheduler.clone(), Duration::ZERO, f);
    let (f, drawn) = logging();
    let throttled = rx::throttle(scheduler, Duration::ZERO, f);
    for number in 1..=2 {
        debounced.call(number).expect("open");
        throttled.call(number).expect("open");
    }
    assert!(log.all().is_empty() && drawn.all().is_empty());
    driver.turn();
    assert_eq!((log.all(), drawn.all()), (vec![2], vec![2]));
    throttled.call(3).expect("open");
    driver.turn();
    assert_eq!(drawn.all(), [2, 3]);
}

#[test]
fn a_busy_callable_has_one_timer_and_schedules_one_each_quiet_time() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler.clone());
    for number in 0..100_000 {
        debounced.call(number).expect("open");
        assert_eq!(scheduler.pending(), 1);
        if number % 1000 == 999 {
            driver.advance(100 * MS);
        }
    }
    driver.advance(SECOND);
    assert_eq!(log.all(), [99_999]);
    let timers = scheduler.stats().scheduled();
    assert!((10..=13).contains(&timers), "in eleven seconds: {timers}");
}

// ----- where it runs ---------------------------------------------------------------------------

/// Calls on a schedule of any kind. `pass` lets time pass on its clock, and whatever is due.
fn check_on(name: &str, schedule: Arc<dyn Schedule>, pass: impl Fn(Duration)) {
    let (debounced, log) = debounce(Arc::clone(&schedule));
    let (throttled, drawn) = throttle(schedule);
    // The due time is exact, or rounded to a tick of a millisecond.
    let check = |expected: (Vec<u32>, Vec<u32>)| {
        until(name, || {
            pass(Duration::ZERO);
            (log.all(), drawn.all()) == expected
        });
    };
    throttled.call(0).expect("open");
    check((vec![], vec![0]));
    for number in 1..=9 {
        debounced.call(number).expect("open");
        throttled.call(number).expect("open");
        pass(100 * MS);
    }
    check((vec![], vec![0]));
    pass(101 * MS);
    check((vec![], vec![0, 9]));
    pass(800 * MS);
    check((vec![9], vec![0, 9]));
    debounced.call(10).expect("open");
    assert!(debounced.cancel());
    pass(2 * SECOND);
    check((vec![9], vec![0, 9]));
}

#[test]
fn it_runs_on_a_scheduler_and_on_pointers_to_one() {
    let (scheduler, driver) = driven();
    let pass = |time| _ = driver.advance(time);
    check_on("a scheduler", Arc::new(scheduler.clone()), pass);
    check_on("a box", Arc::new(Box::new(scheduler.clone()) as Box<dyn Schedule>), pass);
    let leaked: &'static dyn Schedule = Box::leak(Box::new(scheduler));
    check_on("a reference", Arc::new(leaked), pass);
}

#[test]
fn it_runs_on_a_worker() {
    let (timers, driver) = driven();
    let worker = ExecutorScheduler::new(ThreadPool::new(2), &timers).worker();
    let (f, log) = logging();
    rx::throttle(worker.clone(), SECOND, f).call(1).expect("open");
    until("a first value needs no turn of the timers", || log.all() == [1]);
    check_on("a worker", Arc::new(worker), |time| _ = driver.advance(time));
}

#[test]
fn it_runs_on_a_pool() {
    let clock = ManualClock::new();
    let pool = ScheduledThreadPool::builder().threads(4).clock(clock.clone()).build();
    check_on("a pool", Arc::new(pool.expect("good")), |time| clock.advance(time));
}

#[test]
fn it_runs_on_a_message_loop() {
    let clock = ManualClock::new();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the first one");
    check_on("a loop", Arc::new(looper.runner()), |time| {
        clock.advance(time);
        looper.run_until_idle();
    });
}

// ----- flush and cancel ------------------------------------------------------------------------

#[test]
fn flush_runs_the_value_on_the_calling_thread_and_cancels_its_timer() {
    let (scheduler, driver) = driven();
    let (sender, runs) = mpsc::channel();
    let debounced = rx::debounce(scheduler.clone(), SECOND, move |number: u32| {
        sender.send((thread::current().id(), number)).expect("it is received");
    });
    assert!(!debounced.flush() && !debounced.cancel());
    debounced.call(1).expect("open");
    let flusher = debounced.clone();
    let there = thread::spawn(move || flusher.flush());
    let id = there.thread().id();
    assert!(there.join().expect("no panic"));
    assert_eq!((runs.try_recv(), scheduler.pending()), (Ok((id, 1)), 0));
    assert_eq!(driver.advance(10 * SECOND), 0);
}

#[test]
fn a_flush_begins_a_period_and_a_cancel_does_not_end_one() {
    let (scheduler, driver) = driven();
    let (throttled, log) = throttle(scheduler.clone());
    throttled.call(1).expect("open");
    driver.advance(500 * MS);
    throttled.call(2).expect("open");
    assert!(throttled.flush());
    throttled.call(3).expect("open");
    driver.advance(999 * MS);
    assert_eq!(log.all(), [1, 2]);
    driver.advance(MS);
    assert_eq!(log.all(), [1, 2, 3]);
    throttled.call(4).expect("open");
    assert!(throttled.cancel() && scheduler.pending() == 0);
    throttled.call(5).expect("open");
    driver.advance(999 * MS);
    assert_eq!(log.all(), [1, 2, 3]);
    driver.advance(MS);
    assert_eq!(log.all(), [1, 2, 3, 5]);
}

#[test]
fn a_value_that_replaces_one_which_was_flushed_in_a_run_waits_for_its_quiet_time() {
    let (scheduler, driver) = driven();
    let (own, log) = (Arc::new(OnceLock::<Debounced<u32>>::new()), Log::default());
    let (inside, writer) = (Arc::clone(&own), log.clone());
    let debounced = rx::debounce(scheduler, SECOND, move |number| {
        writer.say(number);
        if number == 0 {
            let own = inside.get().expect("known");
            own.call(1).expect("open");
            assert!(own.flush());
            own.call(2).expect("open");
        }
    });
    own.set(debounced.clone()).expect("once");
    debounced.call(0).expect("open");
    driver.advance(SECOND);
    driver.advance(999 * MS);
    assert_eq!(log.all(), [0]);
    driver.advance(MS);
    assert_eq!(log.all(), [0, 2]);
}

#[test]
fn after_a_cancel_the_quiet_time_and_the_longest_wait_begin_anew() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler);
    let debounced = debounced.max_wait(2 * SECOND);
    for number in 0..18 {
        debounced.call(number).expect("open");
        driver.advance(100 * MS);
    }
    assert!(debounced.cancel());
    for number in 100..119 {
        debounced.call(number).expect("open");
        driver.advance(100 * MS);
    }
    assert!(log.all().is_empty());
    driver.advance(100 * MS);
    assert_eq!(log.all(), [118]);
}

/// The handle of this schedule cancels nothing, so the timers of values that are gone come.
#[test]
fn a_timer_that_cannot_be_cancelled_finds_nothing_to_do() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    assert!(debounced.cancel());
    debounced.call(2).expect("open");
    assert!(debounced.flush());
    debounced.call(3).expect("open");
    hand.advance(SECOND);
    assert_eq!(hand.waiting(), 3);
    hand.run_oldest();
    hand.run_oldest();
    assert_eq!((log.all(), debounced.is_pending()), (vec![2], true));
    hand.run_oldest();
    assert_eq!((log.all(), debounced.is_pending()), (vec![2, 3], false));
}

// ----- runs do not overlap ---------------------------------------------------------------------

#[test]
fn a_closure_may_call_its_own_callable() {
    let (scheduler, driver) = driven();
    let (mut say, log) = logging();
    let debounced = calling_itself(|own: Arc<OnceLock<Debounced<u32>>>| {
        rx::debounce(scheduler.clone(), SECOND, move |number| {
            say(number);
            let own = own.get().expect("set");
            assert!(!own.is_pending(), "the value of the run has gone");
            if number < 5 {
                own.call(number + 1).expect("open");
                assert!(own.is_pending());
            }
        })
    });
    debounced.call(1).expect("open");
    driver.advance(3 * SECOND);
    assert_eq!(log.all(), [1, 2, 3]);
    driver.advance(60 * SECOND);
    assert_eq!(log.all(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_flush_inside_of_a_run_comes_after_it() {
    let (scheduler, driver) = driven();
    let (mut say, log) = logging();
    let throttled = calling_itself(|own: Arc<OnceLock<Throttled<u32>>>| {
        rx::throttle(scheduler.clone(), SECOND, move |number| {
            say(number);
            if number < 3 {
                let own = own.get().expect("set");
                own.call(number + 1).expect("open");
                assert!(own.flush() && own.is_pending());
            }
            say(10 * number);
        })
    });
    throttled.call(1).expect("open");
    driver.advance(Duration::ZERO);
    driver.advance(Duration::ZERO);
    assert_eq!(log.all(), [1, 10, 2, 20, 3, 30], "without a period in between");
}

/// The timer of the next value comes while `f` runs, as it may on a pool of several threads.
#[test]
fn a_value_that_is_due_during_a_run_waits_for_its_end() {
    for refuses in [false, true] {
        let hand = ByHand::default();
        let ((mut say, log), inner) = (logging(), hand.clone());
        let debounced = calling_itself(|own: Arc<OnceLock<Debounced<u32>>>| {
            rx::debounce(hand.timers(), SECOND, move |number| {
                say(number);
                let own = own.get().expect("set");
                if number == 1 {
                    own.call(2).expect("open");
                    inner.run_oldest_after(SECOND);
                    assert!(own.is_pending());
                    own.call(3).expect("open");
                    if refuses {
                        inner.refuse_next(ScheduleError::Full);
                    }
                }
                say(10 * number);
            })
        });
        debounced.call(1).expect("open");
        hand.run_oldest_after(SECOND);
        if !refuses {
            assert_eq!((log.all(), hand.waiting()), (vec![1, 10], 1));
            hand.run_oldest();
            assert_eq!(log.all(), [1, 10], "the value of 3 has pushed the time");
            hand.run_oldest_after(SECOND);
        }
        assert_eq!((log.all(), hand.waiting()), (vec![1, 10, 3, 30], 0));
        assert!(!debounced.is_pending());
    }
}

#[test]
fn a_value_that_is_cancelled_during_a_run_leaves_nothing_behind() {
    let hand = ByHand::default();
    let ((mut say, log), inner) = (logging(), hand.clone());
    let throttled = calling_itself(|own: Arc<OnceLock<Throttled<u32>>>| {
        rx::throttle(hand.timers(), SECOND, move |number| {
            say(number);
            let own = own.get().expect("set");
            if number == 1 {
                own.call(2).expect("open");
                inner.run_oldest_after(SECOND);
                assert!(own.cancel());
            }
        })
    });
    throttled.call(1).expect("open");
    hand.run_oldest();
    assert_eq!((log.all(), hand.waiting(), throttled.is_pending()), (vec![1], 0, false));
    throttled.call(3).expect("open");
    hand.run_oldest();
    assert_eq!(log.all(), [1, 3]);
}

// ----- panics and drops ------------------------------------------------------------------------

#[test]
fn s17_a_panic_is_that_of_a_task_and_the_callable_works_on() {
    silence();
    let (reports, told) = mpsc::channel();
    let builder = Scheduler::builder().on_panic(move |panic| {
        reports.send((panic.name(), panic.message().map(str::to_owned))).expect("received");
    });
    let (scheduler, driver) = driven_by(builder);
    let (mut say, log) = logging();
    let debounced = calling_itself(|own: Arc<OnceLock<Debounced<u32>>>| {
        rx::debounce(scheduler.clone(), SECOND, move |number| {
            if number == 1 {
                own.get().expect("set").call(2).expect("open");
                panic_on_purpose();
            }
            say(number);
        })
    });
    debounced.call(1).expect("open");
    driver.advance(SECOND);
    let (name, message) = told.try_recv().expect("one report");
    assert!(name.contains("s17_a_panic_is_that_of_a_task"), "{name}");
    assert_eq!((message.as_deref(), told.try_recv().is_err()), (Some("on purpose"), true));
    assert_eq!((log.all(), debounced.is_pending()), (vec![], true), "the value of the run stays");
    driver.advance(SECOND);
    debounced.call(3).expect("open");
    driver.advance(SECOND);
    assert_eq!((log.all(), told.try_recv().is_err()), (vec![2, 3], true));
}

#[test]
fn s17_two_panics_in_one_task_are_one_and_lose_no_value() {
    silence();
    let hand = ByHand::default();
    let ((mut say, log), inner) = (logging(), hand.clone());
    let throttled = calling_itself(|own: Arc<OnceLock<Throttled<u32>>>| {
        rx::throttle(hand.timers(), SECOND, move |number| {
            say(number);
            if number < 3 {
                own.get().expect("set").call(number + 1).expect("open");
                inner.run_oldest_after(SECOND); // the timer of the next value
                inner.refuse_next(ScheduleError::Full); // so it is run by the thread of this run
                std::panic::panic_any(Grenade); // its payload panics too
            }
        })
    });
    throttled.call(1).expect("open");
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hand.run_oldest()));
    std::mem::forget(run.expect_err("the first panic"));
    assert_eq!(log.all(), [1, 2, 3]);
}

#[test]
fn a_panic_in_a_flush_is_the_callers() {
    silence();
    let (scheduler, driver) = driven();
    let (mut say, log) = logging();
    let debounced = rx::debounce(scheduler, SECOND, move |number: u32| {
        say(number);
        if number == 1 {
            panic_on_purpose();
        }
    });
    debounced.call(1).expect("open");
    let flusher = debounced.clone();
    assert!(thread::spawn(move || flusher.flush()).join().is_err());
    debounced.call(2).expect("open");
    driver.advance(SECOND);
    assert_eq!(log.all(), [1, 2]);
}

type AnyValue = Box<dyn Send>;

/// With a lock held, these drops would wait for it for ever.
#[test]
fn s11_a_value_that_is_dropped_may_use_the_callable() {
    let (scheduler, driver) = driven();
    let drops = Arc::new(AtomicUsize::new(0));
    let own = Arc::new(OnceLock::<Debounced<AnyValue>>::new());
    let value = || -> AnyValue {
        let (own, drops) = (Arc::clone(&own), Arc::clone(&drops));
        Box::new(OnDrop(move || {
            own.get().expect("set").is_pending();
            own.get().expect("set").cancel();
            drops.fetch_add(1, Ordering::Relaxed);
        }))
    };
    let debounced = rx::debounce(scheduler.clone(), SECOND, |value: AnyValue| drop(value));
    assert!(own.set(debounced.clone()).is_ok());
    let dropped = || drops.load(Ordering::Relaxed);
    debounced.call(value()).expect("open");
    assert_eq!(dropped(), 0);
    debounced.call(value()).expect("open");
    assert_eq!((dropped(), debounced.is_pending()), (2, false), "one has cancelled the other");
    debounced.call(value()).expect("open");
    assert!(debounced.cancel() && dropped() == 3);
    debounced.call(value()).expect("open");
    driver.advance(SECOND);
    assert_eq!(dropped(), 4);
    drop(driver.close());
    drop(debounced.call(value()).expect_err("closed"));
    assert_eq!(dropped(), 5);
}

#[test]
fn s09_a_panic_in_the_drop_of_a_value_stops_neither_a_call_nor_a_cancel() {
    silence();
    let (scheduler, driver) = driven();
    let (sender, runs) = mpsc::channel();
    let debounced = rx::debounce(scheduler.clone(), SECOND, move |value: Option<Grenade>| {
        sender.send(value.is_none()).expect("received");
    });
    debounced.call(Some(Grenade)).expect("open");
    debounced.call(Some(Grenade)).expect("open");
    assert!(debounced.cancel() && scheduler.pending() == 0);
    debounced.call(Some(Grenade)).expect("open");
    debounced.call(None).expect("open");
    driver.advance(SECOND);
    assert_eq!((runs.try_recv(), scheduler.stats().panicked()), (Ok(true), 0));
}

#[test]
fn the_pending_value_still_runs_when_the_last_handle_is_dropped_and_then_all_is_freed() {
    let (scheduler, driver) = driven();
    let weak = scheduler.downgrade();
    let freed = Arc::new(());
    let (kept, (mut f, log)) = (Arc::clone(&freed), logging());
    let debounced = rx::debounce(scheduler, SECOND, move |number| {
        let _kept = &kept;
        f(number);
    });
    debounced.call(1).expect("open");
    debounced.call(2).expect("open");
    drop(debounced);
    assert!(weak.upgrade().is_some(), "the timer keeps the schedule");
    assert_eq!(Arc::strong_count(&freed), 2);
    driver.advance(SECOND);
    assert_eq!((log.all(), Arc::strong_count(&freed)), (vec![2], 1));
    assert!(weak.upgrade().is_none());
}

// ----- the end of the schedule, and its limit --------------------------------------------------

#[test]
fn s20_a_refused_value_comes_back_and_an_accepted_one_stays() {
    let hand = ByHand::default();
    let (f, log) = logging();
    let debounced: Box<dyn Callable<u32>> = Box::new(rx::debounce(hand.timers(), SECOND, f));
    hand.refuse_next(ScheduleError::Full);
    assert_eq!(debounced.call(1), Err((ScheduleError::Full, 1)));
    assert!(!debounced.is_pending());
    hand.answer_next(|dropped| {
        drop(dropped); // accepted, and lost
        Ok(None)
    });
    assert_eq!((debounced.call(2), debounced.is_pending()), (Ok(()), true));
    hand.refuse_next(ScheduleError::Closed);
    assert_eq!(debounced.call(3), Err((ScheduleError::Closed, 3)));
    assert!(debounced.is_pending(), "the value of 2");
    assert!(debounced.flush());
    assert_eq!((log.all(), debounced.is_pending()), (vec![2], false));
}

#[test]
fn s20_a_timer_that_was_lost_is_set_again_by_the_next_call() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    drop(hand.take());
    assert!(debounced.is_pending());
    debounced.call(2).expect("open");
    hand.run_oldest_after(SECOND);
    assert_eq!(log.all(), [2]);
}

#[test]
fn s22_the_timer_is_among_the_leftovers_and_runs_the_last_value() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler.clone());
    let (throttled, drawn) = throttle(scheduler);
    (0..3).for_each(|number| debounced.call(number).expect("open"));
    throttled.call(0).expect("open");
    driver.turn();
    (1..3).for_each(|number| throttled.call(number).expect("open"));
    let leftovers = driver.close();
    assert_eq!(leftovers.len(), 2);
    debounced.call(3).expect("it joins the value that is pending");
    assert_eq!(leftovers.run_all(), 2);
    assert_eq!((log.all(), drawn.all()), (vec![3], vec![0, 2]));
    for callable in [&debounced as &dyn Callable<u32>, &throttled] {
        assert_eq!(callable.call(4), Err((ScheduleError::Closed, 4)));
        assert!(!callable.is_pending() && !callable.flush());
    }
}

/// The timer is overdue on its own account, but the value is not. There is nothing to wait with any more.
#[test]
fn s22_a_leftover_that_would_wait_for_the_rest_runs_at_once() {
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let (debounced, log) = debounce(scheduler);
    debounced.call(1).expect("open");
    clock.advance(900 * MS);
    debounced.call(2).expect("open");
    clock.advance(500 * MS);
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    assert!(leftovers[0].name().contains("logging"), "{}", leftovers[0].name());
    leftovers.into_iter().for_each(tickwheel::PendingTask::run);
    assert_eq!((log.all(), debounced.is_pending()), (vec![2], false));
}

#[test]
fn s22_the_value_of_a_dropped_leftover_stays_until_it_is_flushed_or_dropped() {
    let (scheduler, driver) = driven();
    let (debounced, log) = debounce(scheduler);
    debounced.call(1).expect("open");
    drop(driver.close());
    assert!(debounced.is_pending() && log.all().is_empty());
    assert_eq!(Callable::call(&debounced, 2), Err((ScheduleError::Closed, 2)));
    assert!(debounced.flush());
    assert_eq!(log.all(), [1]);
}

#[test]
fn a_leftover_that_moves_runs_there() {
    let (first, driver) = driven();
    let (second, second_driver) = driven();
    let (debounced, log) = debounce(first);
    debounced.call(1).expect("open");
    for task in driver.close() {
        task.reschedule(&second).expect("open");
    }
    second_driver.advance(999 * MS);
    assert!(log.all().is_empty());
    second_driver.advance(MS);
    assert_eq!((log.all(), debounced.is_pending()), (vec![1], false));
}

/// By default, a pool that shuts down still runs its delayed tasks. The one of the value comes before the value is due.
#[test]
fn a_pool_that_shuts_down_runs_the_last_value() {
    let clock = ManualClock::new();
    let pool = ScheduledThreadPool::builder().threads(2).clock(clock.clone()).build();
    let pool = Arc::new(pool.expect("good"));
    let (debounced, log) = debounce(Arc::clone(&pool));
    debounced.call(1).expect("open");
    clock.advance(500 * MS);
    debounced.call(2).expect("open");
    pool.shutdown();
    clock.advance(500 * MS);
    assert!(pool.await_termination(crate::common::PATIENCE));
    assert_eq!((log.all(), debounced.is_pending()), (vec![2], false));
}

#[test]
fn a_disposed_worker_leaves_the_value_to_a_flush() {
    let (timers, driver) = driven();
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let (debounced, log) = debounce(worker.clone());
    debounced.call(1).expect("open");
    worker.dispose();
    driver.advance(SECOND);
    assert_eq!(Callable::call(&debounced, 2), Err((ScheduleError::Closed, 2)));
    assert!(log.all().is_empty() && debounced.is_pending() && debounced.flush());
    assert_eq!(log.all(), [1]);
}

#[test]
fn s25_a_full_scheduler_refuses_a_first_value_and_takes_those_that_replace_it() {
    let (scheduler, driver) = driven_by(Scheduler::builder().max_pending(1));
    let (debounced, log) = debounce(scheduler.clone());
    let other = scheduler.schedule_once(SECOND, || ()).expect("room for one");
    assert_eq!(Callable::call(&debounced, 1), Err((ScheduleError::Full, 1)));
    assert!(!debounced.is_pending() && other.cancel());
    (2..5).for_each(|number| debounced.call(number).expect("room for one"));
    driver.advance(SECOND);
    assert_eq!(log.all(), [4]);
}

/// A task gives its place up when it starts. If another one takes it, the value cannot wait for the rest.
#[test]
fn s25_a_value_that_finds_no_place_to_wait_for_the_rest_runs_early() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    hand.advance(SECOND);
    debounced.call(2).expect("open");
    hand.refuse_next(ScheduleError::Full);
    hand.run_oldest();
    assert_eq!((log.all(), hand.waiting(), debounced.is_pending()), (vec![2], 0, false));
    debounced.call(3).expect("open");
    hand.run_oldest_after(SECOND);
    assert_eq!(log.all(), [2, 3]);
}

// ----- a call that is just scheduling its timer ------------------------------------------------

/// A value that comes while the timer of another one is being scheduled replaces that one, however long that takes. Its call
/// relies on that timer, and loses nothing if the timer is refused.
#[test]
fn s20_a_value_that_comes_while_a_timer_is_scheduled_counts_and_is_not_lost() {
    for (is_taken, is_taken_again) in [(true, true), (false, true), (false, false)] {
        let hand = ByHand::default();
        let (debounced, log) = debounce(hand.timers());
        let (inner, inner_hand) = (debounced.clone(), hand.clone());
        hand.answer_next(move |task| {
            assert_eq!(Callable::call(&inner, 2), Ok(()));
            if !is_taken_again {
                inner_hand.refuse_next(ScheduleError::Full);
            }
            if is_taken { Ok(Some(task)) } else { Err(ScheduleError::Full) }
        });
        assert_eq!(Callable::call(&debounced, 1), Ok(()), "its value was replaced");
        // If nobody takes a timer, it runs at once.
        assert_eq!(debounced.is_pending(), is_taken_again);
        assert_eq!(hand.waiting(), usize::from(is_taken_again));
        hand.advance(SECOND);
        if is_taken_again {
            hand.run_oldest();
        }
        assert_eq!((log.all(), debounced.is_pending(), hand.cancels()), (vec![2], false, 0));
    }
}

#[test]
fn a_call_that_was_overtaken_does_not_make_the_value_due_sooner() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    let (inner, inner_hand) = (debounced.clone(), hand.clone());
    hand.after_next_reading(move || {
        inner_hand.advance(500 * MS);
        inner.call(2).expect("open");
    });
    debounced.call(3).expect("open");
    hand.run_oldest_after(500 * MS);
    assert!(log.all().is_empty(), "it is quiet for half of the time");
    hand.run_oldest_after(500 * MS);
    assert_eq!(log.all(), [3]);
}

#[test]
fn a_value_that_is_cancelled_while_its_timer_is_set_again_leaves_no_timer() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    hand.advance(500 * MS);
    debounced.call(2).expect("open");
    let inner = debounced.clone();
    hand.answer_next(move |task| {
        assert!(inner.cancel());
        Ok(Some(task))
    });
    hand.run_oldest_after(500 * MS);
    assert_eq!((log.all(), hand.waiting(), hand.cancels()), (vec![], 1, 1));
}

/// The timer of 2 is refused when it schedules itself again. Before it can say so, a call has set another one.
#[test]
fn s25_a_refused_timer_leaves_the_value_to_the_timer_of_another_call() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    debounced.call(1).expect("open");
    hand.advance(500 * MS);
    debounced.call(2).expect("open");
    let inner = debounced.clone();
    hand.answer_next(move |task| {
        drop(task);
        inner.call(3).expect("open");
        Err(ScheduleError::Full)
    });
    hand.run_oldest_after(500 * MS);
    assert_eq!((log.all(), hand.waiting(), debounced.is_pending()), (vec![], 1, true));
    hand.run_oldest_after(SECOND);
    assert_eq!((log.all(), debounced.is_pending()), (vec![3], false));
}

/// The same, but the other timer is lost, and another thread runs `f`. That thread sees to the value.
#[test]
fn s25_a_refused_timer_leaves_the_value_to_the_thread_that_runs() {
    let hand = ByHand::default();
    let (mut say, log) = logging();
    let (started, has_started) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let debounced = rx::debounce(hand.timers(), SECOND, move |number: u32| {
        say(number);
        if number == 2 {
            started.send(()).expect("received");
            may_go_on.recv().expect("sent");
        }
    });
    debounced.call(1).expect("open");
    hand.advance(500 * MS);
    debounced.call(2).expect("open");
    let (inner, flusher, inner_hand) = (debounced.clone(), debounced.clone(), hand.clone());
    let (give_thread, flush_thread) = mpsc::channel();
    hand.answer_next(move |_refused| {
        give_thread.send(thread::spawn(move || flusher.flush())).expect("received");
        has_started.recv().expect("sent");
        inner.call(3).expect("open");
        drop(inner_hand.take());
        inner_hand.refuse_next(ScheduleError::Full);
        Err(ScheduleError::Full)
    });
    hand.run_oldest_after(500 * MS);
    assert_eq!((log.all(), hand.waiting(), debounced.is_pending()), (vec![2], 0, true));
    go_on.send(()).expect("received");
    assert!(flush_thread.recv().expect("sent").join().expect("no panic"));
    assert_eq!(hand.waiting(), 1, "the run has set a timer at its end");
    hand.run_oldest_after(SECOND);
    assert_eq!((log.all(), debounced.is_pending()), (vec![2, 3], false));
}

/// A timer that was accepted may be lost before its call has the handle. A call that comes in between sets another one.
#[test]
fn a_timer_that_is_lost_before_its_call_returns_leaves_the_value_to_that_of_another_call() {
    let hand = ByHand::default();
    let (debounced, log) = debounce(hand.timers());
    let inner = debounced.clone();
    hand.answer_next(move |task| {
        drop(task);
        inner.call(2).expect("open");
        Ok(None)
    });
    debounced.call(1).expect("open");
    assert_eq!((hand.waiting(), hand.cancels()), (1, 1), "the one that was lost is cancelled");
    hand.run_oldest_after(SECOND);
    assert_eq!((log.all(), debounced.is_pending()), (vec![2], false));
}

/// A schedule with other threads may run the timer before the call has its handle.
#[test]
fn a_timer_that_comes_before_its_call_returns_runs_the_value() {
    let hand = ByHand::default();
    let (throttled, log) = throttle(hand.timers());
    hand.answer_next(|task| {
        task();
        Ok(None)
    });
    throttled.call(1).expect("open");
    assert_eq!((log.all(), throttled.is_pending()), (vec![1], false));
    throttled.call(2).expect("open");
    hand.run_oldest_after(SECOND);
    assert_eq!(log.all(), [1, 2]);
}

#[test]
fn a_schedule_that_panics_drops_the_value_and_no_other() {
    silence();
    let hand = ByHand::default();
    let (sender, runs) = mpsc::channel();
    let debounced = rx::debounce(hand.timers(), SECOND, move |value: Arc<u32>| {
        sender.send(*value).expect("received");
    });
    let value = Arc::new(1);
    hand.answer_next(|_| panic_on_purpose());
    let (caller, given) = (debounced.clone(), Arc::clone(&value));
    assert!(thread::spawn(move || caller.call(given).is_ok()).join().is_err());
    assert_eq!((Arc::strong_count(&value), debounced.is_pending()), (1, false));
    debounced.call(Arc::new(2)).expect("open");
    hand.run_oldest_after(SECOND);
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [2]);
}

// ----- a storm ---------------------------------------------------------------------------------

const PRODUCERS: usize = 3;

/// A value of a storm. Its page books whether it ran or was dropped, once.
struct Value {
    producer: usize,
    number: usize,
    page: Page,
}

/// A closure that checks that it does not overlap with itself, and that the values of each producer come in order.
fn checking(faults: &Arc<AtomicUsize>) -> impl FnMut(Value) + Send + 'static {
    let (is_running, faults) = (AtomicBool::new(false), Arc::clone(faults));
    let mut last = [0; PRODUCERS + 1];
    move |value| {
        let overlaps = is_running.swap(true, Ordering::AcqRel);
        let is_late = value.number <= last[value.producer];
        last[value.producer] = value.number;
        thread::yield_now();
        is_running.store(false, Ordering::Release);
        faults.fetch_add(usize::from(overlaps || is_late), Ordering::Relaxed);
        value.page.run();
    }
}

/// Calls from several threads, with flushes and cancels in between. In the end, one more value must run.
fn storm(name: &str, seed: u64, callable: &dyn Callable<Value>) {
    let calls = crate::common::count(3_000, 100_000);
    let ledger = Ledger::new(PRODUCERS * calls + 1);
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let ledger = &ledger;
            scope.spawn(move || {
                let mut random = Random(seed + producer as u64);
                for number in 1..=calls {
                    let page = ledger.page(producer * calls + number - 1);
                    drop(callable.call(Value { producer, number, page }));
                    match random.below(50) {
                        0..2 => _ = callable.flush(),
                        2 => _ = callable.cancel(),
                        3 => thread::sleep(Duration::from_micros(random.below(300))),
                        _ => thread::yield_now(),
                    }
                }
            });
        }
    });
    let id = PRODUCERS * calls;
    let mut last = Value { producer: PRODUCERS, number: 1, page: ledger.page(id) };
    while let Err((_, refused)) = callable.call(last) {
        last = refused; // full
        thread::yield_now();
    }
    until(name, || ledger.has_run(id) && ledger.is_closed());
    ledger.tally().assert_balanced();
}

fn storm_on(name: &str, schedule: impl Schedule + 'static) {
    let schedule: Arc<dyn Schedule> = Arc::new(schedule);
    let faults = Arc::new(AtomicUsize::new(0));
    for (round, time) in [Duration::ZERO, Duration::from_micros(50), MS].into_iter().enumerate() {
        let seed = 10 * round as u64;
        let debounced = rx::debounce(Arc::clone(&schedule), time, checking(&faults));
        let debounced = debounced.max_wait(2 * MS);
        storm(name, seed, &debounced);
        let throttled = rx::throttle(Arc::clone(&schedule), time, checking(&faults));
        storm(name, seed + 5, &throttled);
        assert!(!debounced.is_pending() && !throttled.is_pending());
    }
    assert_eq!(faults.load(Ordering::Relaxed), 0, "{name}: overlaps, or values out of order");
}

#[test]
fn a_storm_on_a_scheduler_with_a_pool() {
    let scheduler = Scheduler::builder().executor(ThreadPool::new(3)).build().expect("good");
    storm_on("a scheduler", scheduler);
}

#[test]
fn a_storm_on_a_full_scheduler() {
    let builder = Scheduler::builder().executor(ThreadPool::new(3)).max_pending(1);
    let scheduler = builder.build().expect("good");
    let stop = Arc::new(AtomicBool::new(false));
    let (other, until_then) = (scheduler.clone(), Arc::clone(&stop));
    // It takes the one place as often as it can.
    let rival = thread::spawn(move || {
        while !until_then.load(Ordering::Relaxed) {
            drop(other.schedule_once(Duration::from_micros(20), || ()));
            thread::sleep(Duration::from_micros(100));
        }
    });
    storm_on("a full scheduler", scheduler);
    stop.store(true, Ordering::Relaxed);
    rival.join().expect("no panic");
}

#[test]
fn a_storm_on_a_pool() {
    storm_on("a pool", ScheduledThreadPool::new(3));
}

#[test]
fn a_storm_on_a_worker() {
    let timers = Scheduler::new();
    storm_on("a worker", ExecutorScheduler::new(ThreadPool::new(2), &timers).worker());
}

/// The thread that finds a value due may have to wait for a lock before it runs it. The period counts from the run.
#[test]
fn a_throttle_counts_its_period_from_the_run_itself() {
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let (timers, readings, hand) = (scheduler.clone(), AtomicUsize::new(0), clock.clone());
    // Time passes after a reading of the clock: the second one from now, which is the timer's.
    let slow_now = move || {
        let now = timers.now();
        if readings.fetch_add(1, Ordering::Relaxed) == 1 {
            hand.advance(70 * MS);
        }
        now
    };
    let slow = TasksOnly::new(slow_now, move |due, task| due.on(&scheduler, task));
    let starts = Arc::<Mutex<Vec<Instant>>>::default();
    let (notes, reads) = (Arc::clone(&starts), clock.clone());
    let throttled =
        rx::throttle(slow, 100 * MS, move |_: u32| notes.lock().expect("whole").push(reads.now()));
    throttled.call(1).expect("open");
    driver.turn(); // and 70 ms pass before the run
    throttled.call(2).expect("open");
    for _ in 0..300 {
        driver.advance(MS);
    }
    let starts = starts.lock().expect("whole");
    assert_eq!(starts.len(), 2);
    let gap = starts[1].duration_since(starts[0]);
    assert!(gap >= 100 * MS && gap <= 102 * MS, "{gap:?}");
}
