//! What everything that decides *when* has in common, tried through `dyn Schedule` alone.

mod common;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::log::Log;
use common::{panic_on_purpose, silence, until};
use tickwheel::message_loop::MessageLoop;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::ExecutorScheduler;
use tickwheel::{
    Inline, ManualClock, MissedTicks, Period, Schedule, ScheduleError, ScheduleExt, Scheduler,
    ThreadPool,
};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Something under test, its time, and its end.
struct Subject {
    name: &'static str,
    schedule: Arc<dyn Schedule>,
    /// Lets time pass, and everything run that is due then.
    advance: Box<dyn Fn(Duration)>,
    stop: Box<dyn Fn()>,
}

fn subjects() -> Vec<Subject> {
    silence();
    vec![scheduler(), worker_on_inline(), worker_on_a_pool(), pool(), message_loop()]
}

fn scheduler() -> Subject {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let driver = Arc::new(driver);
    let (stopped, ends) = (scheduler.clone(), Arc::clone(&driver));
    Subject {
        name: "scheduler",
        schedule: Arc::new(scheduler),
        advance: Box::new(move |time| _ = driver.advance(time)),
        stop: Box::new(move || {
            let stopping = stopped.stop();
            ends.turn();
            drop(stopping.wait());
        }),
    }
}

fn worker_on_inline() -> Subject {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let disposed = worker.clone();
    Subject {
        name: "worker on inline",
        schedule: Arc::new(worker),
        advance: Box::new(move |time| _ = driver.advance(time)),
        stop: Box::new(move || disposed.dispose()),
    }
}

/// Waits until what is due by now has run: tasks of one line, so the last of them tells.
fn settle(schedule: &Arc<dyn Schedule>) {
    let ran = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&ran);
    let last = move || done.store(true, Ordering::Release);
    if schedule.schedule_once(Duration::ZERO, last).is_ok() {
        until("the last one runs", || ran.load(Ordering::Acquire));
    }
}

/// Lets time pass by steps, so that a series can wait for its next run in between.
fn by_steps(line: &Arc<dyn Schedule>, step: impl Fn(Duration) + 'static) -> Box<dyn Fn(Duration)> {
    let line = Arc::clone(line);
    Box::new(move |time| {
        for _ in 0..10 {
            step(time / 10);
            settle(&line);
        }
    })
}

fn worker_on_a_pool() -> Subject {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(ThreadPool::new(3), &timers).worker();
    let (disposed, schedule) = (worker.clone(), Arc::new(worker) as Arc<dyn Schedule>);
    Subject {
        name: "worker on a pool",
        advance: by_steps(&schedule, move |step| _ = driver.advance(step)),
        schedule,
        stop: Box::new(move || disposed.dispose()),
    }
}

fn pool() -> Subject {
    let clock = ManualClock::new();
    let pool = ScheduledThreadPool::builder().threads(1).clock(clock.clone()).build();
    let pool = pool.expect("good");
    let (stopped, schedule) = (pool.clone(), Arc::new(pool) as Arc<dyn Schedule>);
    Subject {
        name: "pool",
        advance: by_steps(&schedule, move |step| clock.advance(step)),
        schedule,
        stop: Box::new(move || drop(stopped.shutdown_now())),
    }
}

fn message_loop() -> Subject {
    let clock = ManualClock::new();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
    let schedule = Arc::new(looper.runner());
    let looper = Rc::new(Cell::new(Some(looper)));
    let ends = Rc::clone(&looper);
    Subject {
        name: "message loop",
        schedule,
        advance: Box::new(move |time| {
            let Some(turned) = looper.take() else { return };
            for _ in 0..10 {
                clock.advance(time / 10);
                turned.run_until_idle();
            }
            looper.set(Some(turned));
        }),
        stop: Box::new(move || drop(ends.take())),
    }
}

#[test]
fn s01_s03_in_order_of_deadline_and_never_early() {
    for Subject { name, schedule, advance, .. } in subjects() {
        let (log, start) = (Log::default(), schedule.now());
        schedule.schedule_once(2 * SECOND, log.task(4)).expect("open");
        schedule.schedule_task_at(start + SECOND, Box::new(log.task(2))).expect("open");
        schedule.schedule_task_at(start + SECOND, Box::new(log.task(3))).expect("open");
        schedule.schedule_once(Duration::ZERO, log.task(1)).expect("open");
        advance(Duration::ZERO);
        assert_eq!(log.all(), [1], "{name}");
        advance(SECOND.saturating_sub(10 * NANO));
        assert_eq!(log.all(), [1], "{name}: early");
        advance(Duration::from_millis(10));
        assert_eq!(log.all(), [1, 2, 3], "{name}");
        advance(SECOND);
        assert_eq!(log.all(), [1, 2, 3, 4], "{name}");
        assert!(schedule.now() >= start + 2 * SECOND, "{name}: it is its clock");
    }
}

#[test]
fn s04_any_instant_and_any_duration() {
    for Subject { name, schedule, advance, .. } in subjects() {
        let log = Log::default();
        let never = schedule.schedule_once(Duration::MAX, log.task(9)).expect("open");
        let nor = Period::fixed_rate(Duration::MAX);
        let nor = schedule.schedule_periodic(Duration::MAX, nor, || ()).expect("open");
        let past = Instant::now().checked_sub(SECOND).unwrap_or_else(|| schedule.now());
        schedule.schedule_task_at(past, Box::new(log.task(1))).expect("open");
        advance(1000 * SECOND);
        assert_eq!(log.all(), [1], "{name}");
        assert!(never.cancel() && nor.cancel(), "{name}");
    }
}

#[test]
fn s08_s09_one_cancel_wins_and_drops_the_closure() {
    for Subject { name, schedule, advance, .. } in subjects() {
        let held = Arc::new(());
        let captured = Arc::clone(&held);
        let handle = schedule.schedule_once(SECOND, move || drop(captured)).expect("open");
        let same = handle.clone();
        assert!(!handle.is_done() && !handle.is_cancelled(), "{name}");
        assert!(handle.cancel() && !same.cancel(), "{name}");
        assert_eq!(Arc::strong_count(&held), 1, "{name}: it is still held");
        assert!(same.is_cancelled() && same.is_done(), "{name}");
        let log = Log::default();
        let ran = schedule.schedule_once(SECOND, log.task(1)).expect("open");
        advance(2 * SECOND);
        assert_eq!(log.all(), [1], "{name}");
        assert!(ran.is_done() && !ran.is_cancelled() && !ran.cancel(), "{name}");
    }
}

#[test]
fn s12_s16_series_keep_their_phase_and_end() {
    for Subject { name, schedule, advance, .. } in subjects() {
        let log = Log::default();
        let every = Period::fixed_rate(SECOND).missed(MissedTicks::Skip);
        let said = log.clone();
        let series = schedule.schedule_periodic(SECOND, every, move || said.say(1)).expect("open");
        let mut left = 2;
        let breaks = schedule.schedule_periodic(SECOND, Period::fixed_delay(SECOND), move || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let breaks = breaks.expect("open");
        let panics = schedule.schedule_periodic(SECOND, every, || -> () { panic_on_purpose() });
        let panics = panics.expect("open");
        for run in 1..=4 {
            advance(SECOND);
            advance(Duration::from_millis(1));
            assert_eq!(log.all().len(), run, "{name}");
        }
        assert!(breaks.is_done() && !breaks.is_cancelled() && !breaks.cancel(), "{name}");
        assert!(panics.is_done() && !panics.is_cancelled(), "{name}: S15");
        assert!(series.cancel() && !series.cancel() && series.is_done(), "{name}");
        advance(3 * SECOND);
        assert_eq!(log.all().len(), 4, "{name}");
        let zero = schedule.schedule_periodic(SECOND, Period::fixed_rate(Duration::ZERO), || ());
        assert_eq!(zero.err(), Some(ScheduleError::ZeroPeriod), "{name}");
        let zero = schedule.schedule_periodic(SECOND, Period::fixed_delay(Duration::ZERO), || ());
        assert_eq!(zero.err(), Some(ScheduleError::ZeroPeriod), "{name}");
    }
}

#[test]
fn s17_a_panic_costs_nobody_else_a_run() {
    for Subject { name, schedule, advance, .. } in subjects() {
        let log = Log::default();
        let handle = schedule.schedule_once(SECOND, || panic_on_purpose()).expect("open");
        schedule.schedule_once(SECOND, log.task(1)).expect("open");
        advance(2 * SECOND);
        assert_eq!(log.all(), [1], "{name}");
        assert!(handle.is_done() && !handle.is_cancelled(), "{name}");
    }
}

#[test]
fn s11_a_destructor_may_schedule_and_cancel() {
    struct OnDrop(Arc<dyn Schedule>, Log, tickwheel::Cancellable);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.schedule_once(Duration::ZERO, self.1.task(1)).expect("open");
            assert!(self.2.cancel());
        }
    }
    for Subject { name, schedule, advance, .. } in subjects() {
        let log = Log::default();
        let victim = schedule.schedule_once(SECOND, log.task(2)).expect("open");
        let on_drop = OnDrop(Arc::clone(&schedule), log.clone(), victim);
        let handle = schedule.schedule_once(SECOND, move || drop(on_drop)).expect("open");
        assert!(handle.cancel(), "{name}");
        advance(2 * SECOND);
        assert_eq!(log.all(), [1], "{name}");
    }
}

#[test]
fn s23_what_is_stopped_says_closed() {
    for Subject { name, schedule, advance, stop } in subjects() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let pending = Arc::clone(&dropped);
        schedule.schedule_once(SECOND, move || drop(pending)).expect("open");
        stop();
        let closed = Some(ScheduleError::Closed);
        assert_eq!(schedule.schedule_once(Duration::ZERO, || ()).err(), closed, "{name}");
        assert_eq!(schedule.schedule_once(SECOND, || ()).err(), closed, "{name}");
        let now = schedule.now();
        assert_eq!(schedule.schedule_task_at(now, Box::new(|| ())).err(), closed, "{name}");
        let every = Period::fixed_rate(SECOND);
        assert_eq!(schedule.schedule_periodic(SECOND, every, || ()).err(), closed, "{name}");
        advance(2 * SECOND);
        assert_eq!(Arc::strong_count(&dropped), 1, "{name}: what was pending is dropped");
    }
}
