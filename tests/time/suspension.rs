//! A machine that was suspended: the clock jumps by an hour and more, and what became due meanwhile comes soon after, in order,
//! through every layer that takes a clock.
//!
//! The clock of these tests does what `BootClock` does on a system whose timers stand still during a suspension: it looks
//! at the time again and again. `BootClock` itself cannot be made to jump from outside; `scheduler/mod.rs` has its test.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, until};
use tickwheel::delay::DelayQueue;
use tickwheel::future::block_on;
use tickwheel::message_loop::MessageLoop;
use tickwheel::pool::{DelayedWorkQueue, ScheduledThreadPool};
use tickwheel::rx::ExecutorScheduler;
use tickwheel::{
    BootClock, Clock, Inline, MissedTicks, Period, Schedule, ScheduleExt, Scheduler, Sleeper,
    SystemClock,
};

const MINUTE: Duration = Duration::from_secs(60);
/// How long the machine is suspended.
const LENGTH: Duration = Duration::from_secs(65 * 60);

/// The system's clock, plus the time for which the machine was suspended.
#[derive(Clone, Default)]
struct Suspended(Arc<AtomicU64>);

impl Suspended {
    fn by(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn suspend(&self) {
        self.0.fetch_add(LENGTH.as_secs(), Ordering::Relaxed);
    }
}

impl Clock for Suspended {
    fn now(&self) -> Instant {
        SystemClock.now() + self.by()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        let again = SystemClock.now() + Duration::from_millis(5);
        let until =
            until.map(|until| until.checked_sub(self.by()).map_or(again, |until| again.min(until)));
        SystemClock.sleep(sleeper, until);
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

fn scheduler_on(clock: impl Clock) -> Scheduler {
    Scheduler::builder().clock(clock).executor(Inline).build().expect("a thread")
}

/// Receives what was due, of which there are three in order, and nothing else.
fn three_in_order(came: &Receiver<u32>) {
    let came: Vec<_> = (0..3).map_while(|_| came.recv_timeout(PATIENCE).ok()).collect();
    assert_eq!(came, [10, 20, 50]);
}

/// Schedules four tasks, of which three become due while the machine is suspended.
fn through(schedule: &dyn Schedule, clock: &Suspended) {
    let (send, came) = channel();
    for minutes in [50, 10, 90, 20] {
        let send = send.clone();
        let run = move || _ = send.send(minutes);
        schedule.schedule_once(MINUTE * minutes, run).expect("open");
    }
    clock.suspend();
    three_in_order(&came);
    assert!(came.try_recv().is_err(), "what is due later waits");
}

#[test]
fn a_scheduler() {
    let clock = Suspended::default();
    let scheduler = scheduler_on(clock.clone());
    through(&scheduler, &clock);
    assert_eq!(scheduler.pending(), 1);
}

#[test]
fn a_pool() {
    let clock = Suspended::default();
    through(
        &ScheduledThreadPool::builder().threads(1).clock(clock.clone()).build().unwrap(),
        &clock,
    );
}

#[test]
fn a_worker() {
    let clock = Suspended::default();
    let scheduler = scheduler_on(clock.clone());
    through(&ExecutorScheduler::new(Inline, &scheduler).worker(), &clock);
}

#[test]
fn a_message_loop() {
    let clock = Suspended::default();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one here");
    let (tasks, came) = (looper.runner(), Rc::new(RefCell::new(Vec::new())));
    for minutes in [50, 10, 90, 20] {
        let (came, tasks) = (Rc::clone(&came), tasks.clone());
        let run = move || {
            came.borrow_mut().push(minutes);
            if minutes == 50 {
                tasks.quit();
            }
        };
        looper.local_runner().post_delayed(MINUTE * minutes, run).expect("open");
    }
    tasks.post(move || clock.suspend()).expect("open");
    looper.run();
    assert_eq!(*came.borrow(), [10, 20, 50]);
}

#[test]
fn queues_and_futures() {
    let clock = Suspended::default();
    let scheduler = scheduler_on(clock.clone());
    let (sessions, work) =
        (DelayQueue::new(&scheduler), DelayedWorkQueue::with_clock(clock.clone()));
    for minutes in [50, 10, 90, 20] {
        sessions.insert(minutes, (), MINUTE * minutes).expect("open");
        work.offer(clock.now() + MINUTE * minutes, minutes).expect("open");
    }
    let sleep = scheduler.sleep(MINUTE * 30);
    clock.suspend();
    block_on(sleep);
    let taken: Vec<_> = (0..3).map_while(|_| Some(sessions.recv()?.key)).collect();
    assert_eq!((taken, sessions.try_next()), (vec![10, 20, 50], None));
    let taken: Vec<_> = (0..3).map_while(|_| work.take()).collect();
    assert_eq!((taken, work.poll()), (vec![10, 20, 50], None));
}

/// What a series missed during the suspension is caught up, skipped, or begins anew, as it says.
#[test]
fn s13_a_series() {
    for (missed, runs) in [(MissedTicks::Burst, 6), (MissedTicks::Skip, 1), (MissedTicks::Delay, 1)]
    {
        let clock = Suspended::default();
        let scheduler = scheduler_on(clock.clone());
        let (send, came) = channel();
        let period = Period::fixed_rate(MINUTE * 10).missed(missed);
        let run = move || _ = send.send(());
        let series = scheduler.schedule_periodic(MINUTE * 10, period, run).expect("open");
        clock.suspend();
        until("the run after the suspension", || series.deadline() > Some(clock.now()));
        assert_eq!(came.try_iter().count(), runs, "{missed:?}");
    }
}

/// The clock itself, through the layers: on time, and not early.
#[test]
fn s01_the_boot_clock() {
    let delay = Duration::from_millis(15);
    let start = BootClock.now();
    let scheduler = scheduler_on(BootClock);
    let (send, ran) = channel();
    let run = move || _ = send.send(BootClock.now());
    scheduler.schedule_once(delay, run).expect("open");
    assert!(ran.recv_timeout(PATIENCE).expect("it runs") >= start + delay);

    let pool =
        ScheduledThreadPool::builder().threads(1).clock(BootClock).build().expect("a thread");
    let ran = pool.schedule(delay, || BootClock.now()).expect("open").join().expect("no panic");
    assert!(ran >= start + delay);

    let queue = DelayQueue::new(&scheduler);
    queue.insert((), (), delay).expect("open");
    let item = queue.recv().expect("open");
    assert!(item.deadline >= start + delay && BootClock.now() >= item.deadline);

    block_on(scheduler.sleep(delay));
    assert!(BootClock.now() >= item.deadline + delay);
}
