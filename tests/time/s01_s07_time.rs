//! Time: never early, at most a tick late, in order, any duration, and no cost when idle (S1 to S7).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{
    BootClock, Clock, Inline, ManualClock, Observer, Precision, Scheduler, Sleeper, SystemClock,
    TaskPanic,
};

use crate::common::told::Poller;
use crate::common::{PATIENCE, Random, count, driven, silence, spin_until, until};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Notes when each task ran, on the scheduler's clock, and under which name.
#[derive(Clone)]
struct Log {
    scheduler: Scheduler,
    runs: Arc<Mutex<Vec<(u64, Instant)>>>,
}

impl Log {
    fn new(scheduler: &Scheduler) -> Log {
        Log { scheduler: scheduler.clone(), runs: Arc::default() }
    }

    fn task(&self, name: u64) -> impl FnOnce() + Send + 'static {
        let log = self.clone();
        move || log.runs.lock().expect("whole").push((name, log.scheduler.now()))
    }

    fn names(&self) -> Vec<u64> {
        self.runs.lock().expect("whole").iter().map(|(name, _)| *name).collect()
    }
}

#[test]
fn s01_s02_never_early_and_at_most_a_tick_late_at_any_offset() {
    let ticks = [1, 1_000, 999_983, 1_000_000, 3_000_000_000].map(Duration::from_nanos);
    for (tick, precision) in
        ticks.into_iter().flat_map(|tick| [(tick, Precision::Tick), (tick, Precision::Exact)])
    {
        let clock = ManualClock::new();
        let (scheduler, driver) = Scheduler::builder()
            .tick(tick)
            .precision(precision)
            .wheel_size(64)
            .clock(clock.clone())
            .build_driven()
            .expect("good settings");
        let log = Log::new(&scheduler);
        let mut random = Random(tick.as_secs() + u64::from(tick.subsec_nanos()));
        let mut due = Vec::new();
        for name in 0..300 {
            // Scheduled at any offset within a tick, for any part of a tick.
            let delay = tick * u32::try_from(random.below(200_000)).expect("small") / 1_000;
            due.push(scheduler.now() + delay);
            scheduler.schedule_once(delay, log.task(name)).expect("open");
            driver.advance(tick * u32::try_from(random.below(1_100)).expect("small") / 1_000);
        }
        driver.advance(tick * 300);
        let runs = log.runs.lock().expect("whole");
        assert_eq!(runs.len(), 300);
        for (name, at) in runs.iter() {
            let due = due[usize::try_from(*name).expect("small")];
            let late = at.checked_duration_since(due);
            let late = late.unwrap_or_else(|| panic!("task {name} is early at a tick of {tick:?}"));
            let allowed = match precision {
                Precision::Tick => tick,
                Precision::Exact => Duration::ZERO,
                unknown => unreachable!("{unknown:?} has no rule here"),
            };
            assert!(late <= allowed, "task {name} is {late:?} late at a tick of {tick:?}");
        }
    }
}

#[test]
fn s01_nothing_is_early_on_the_system_clock() {
    for precision in [Precision::Tick, Precision::Exact] {
        let scheduler = Scheduler::builder()
            .executor(Inline)
            .precision(precision)
            .build()
            .expect("a tick thread");
        let (sender, receiver) = mpsc::channel();
        let mut random = Random(1);
        for _ in 0..2_000 {
            let delay = Duration::from_micros(random.below(150_000));
            let (sender, due) = (sender.clone(), Instant::now() + delay);
            let task = move || sender.send((due, Instant::now())).expect("the receiver lives");
            scheduler.schedule_once(delay, task).expect("open");
        }
        drop(sender);
        for _ in 0..2_000 {
            let (due, ran) = receiver.recv_timeout(PATIENCE).expect("all run");
            assert!(ran >= due, "{:?} early", due - ran);
        }
    }
}

#[test]
fn s03_by_deadline_and_at_equal_deadlines_in_the_order_of_scheduling() {
    for precision in [Precision::Tick, Precision::Exact] {
        let (scheduler, driver) =
            Scheduler::builder().precision(precision).build_driven().expect("good settings");
        let log = Log::new(&scheduler);
        let start = scheduler.now();
        let mut random = Random(3);
        let mut expected = Vec::new();
        for name in 0..5_000 {
            // Few different deadlines, near and far; half of them as instants; now and then a turn.
            let delay = Duration::from_micros(random.below(40) * 250 + random.below(2) * 9_000_000);
            let delay = delay + (driver.now() - start);
            let accepted = if name % 2 == 0 {
                scheduler.schedule_at(start + delay, log.task(name))
            } else {
                scheduler.schedule_once(start + delay - driver.now(), log.task(name))
            };
            accepted.expect("open");
            expected.push((delay, name));
            if name % 97 == 0 {
                driver.turn();
            }
        }
        driver.advance(SECOND * 20);
        expected.sort();
        let expected: Vec<_> = expected.into_iter().map(|(_, name)| name).collect();
        assert_eq!(log.names(), expected, "{precision:?}");
    }
}

#[test]
fn s03_the_order_of_scheduling_holds_across_threads() {
    let (scheduler, driver) = driven();
    let log = Log::new(&scheduler);
    let due = scheduler.now() + SECOND;
    for name in 0..200 {
        let task = log.task(name);
        if name % 3 == 0 {
            scheduler.schedule_at(due, task).expect("open");
        } else {
            let scheduler = scheduler.clone();
            let other = thread::spawn(move || scheduler.schedule_at(due, task).map(drop));
            other.join().expect("no panic").expect("open");
        }
    }
    driver.advance(SECOND);
    assert_eq!(log.names(), (0..200).collect::<Vec<_>>());
}

#[test]
fn s04_any_duration_and_any_instant() {
    let (scheduler, driver) = driven();
    let log = Log::new(&scheduler);
    let start = scheduler.now();
    let never: Vec<_> =
        [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)]
            .into_iter()
            .map(|delay| scheduler.schedule_once(delay, log.task(99)).expect("open"))
            .collect();
    let mut late = start;
    for bit in (0..64).rev() {
        late = late.checked_add(Duration::from_secs(1 << bit)).unwrap_or(late);
    }
    scheduler.schedule_at(late, log.task(98)).expect("open");
    scheduler.schedule_repeatedly(Duration::MAX, Duration::MAX, || ()).expect("open");
    scheduler.schedule_once(Duration::from_nanos(1), log.task(2)).expect("open");
    scheduler.schedule_once(Duration::ZERO, log.task(1)).expect("open");
    if let Some(past) = start.checked_sub(MILLI) {
        scheduler.schedule_at(past, log.task(0)).expect("open");
        assert_eq!(driver.advance(Duration::ZERO), 2, "what is past is due now");
        assert_eq!(log.names(), [0, 1]);
    }
    driver.advance(YEAR * 100);
    assert_eq!(log.names().last(), Some(&2));
    assert_eq!(scheduler.pending(), 5, "never is pending");
    assert!(never[0].cancel());
    assert_eq!(driver.close().len(), 4);
}

/// A clock that stands at the end of its range goes no further. What it has passed is due, and all else is never.
#[test]
fn s04_s05_at_the_end_of_the_range_what_has_passed_is_due_and_the_rest_is_never() {
    for (precision, tick) in [
        (Precision::Tick, MILLI),
        (Precision::Exact, MILLI),
        (Precision::Tick, HOUR),
        (Precision::Tick, Duration::from_nanos(1)),
    ] {
        let builder = Scheduler::builder().precision(precision).tick(tick);
        let (scheduler, driver) = builder.build_driven().expect("good settings");
        let log = Log::new(&scheduler);
        let start = scheduler.now();
        let never = scheduler.schedule_once(Duration::MAX, log.task(99)).expect("open");
        // The last nanoseconds of the range: 2^64 less 2^59, rounded up to a tick, from the start.
        let bias = (1_u64 << 59).div_ceil(tick.as_nanos() as u64) * tick.as_nanos() as u64;
        let last = start + Duration::from_nanos(u64::MAX - 1 - bias);
        let edge: Vec<_> = (0..4)
            .map(|ahead| last.checked_sub(Duration::from_nanos(ahead)).expect("in the range"))
            .map(|at| scheduler.schedule_at(at, log.task(1)).expect("open"))
            .collect();
        driver.advance((last - start).saturating_sub(HOUR * 2));
        assert!(log.names().is_empty(), "{precision:?}, {tick:?}: too early");
        driver.advance(Duration::MAX);
        assert_eq!(log.names(), [1; 4], "{precision:?}, {tick:?}: the edge of the range");
        assert!(edge.iter().all(tickwheel::Cancellable::is_done));

        let now = scheduler.now();
        assert!(now.checked_add(SECOND).is_none(), "the clock has gone all the way");
        for past in [now, now.checked_sub(YEAR).expect("far ahead"), start, last] {
            scheduler.schedule_at(past, log.task(2)).expect("open");
        }
        scheduler.schedule_once(Duration::ZERO, log.task(2)).expect("open");
        let moved = scheduler.schedule_once(SECOND, log.task(2)).expect("open");
        let far = scheduler.schedule_once(SECOND, log.task(99)).expect("open");
        assert!(moved.reset_at(now));
        let woken = Poller::new();
        let before = now.checked_sub(SECOND).expect("far ahead");
        for mut sleep in [scheduler.sleep(Duration::ZERO), scheduler.sleep_until(before)] {
            assert!(woken.poll(&mut sleep).is_ready(), "{precision:?}, {tick:?}");
        }
        let mut timer = scheduler.sleep(SECOND);
        assert!(woken.poll(&mut timer).is_pending(), "it lies ahead");
        drop(timer);
        driver.advance(Duration::ZERO);
        assert_eq!(log.names(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2], "{precision:?}, {tick:?}");
        assert_eq!((scheduler.pending(), driver.turn()), (2, None), "never does not come");
        assert!(never.cancel() && far.cancel());
    }
}

/// A clock that a test sets, whose readings are the stamps. It panics while it has nothing to tell.
#[derive(Clone)]
struct Told(Arc<Mutex<Option<Instant>>>);

impl Clock for Told {
    fn now(&self) -> Instant {
        let told = *self.0.lock().expect("no panic with the lock held");
        told.expect("on purpose")
    }

    fn sleep(&self, _sleeper: &Sleeper, _until: Option<Instant>) {}

    fn tells_calls_apart(&self) -> bool {
        true
    }
}

#[test]
fn s04_s05_what_is_due_at_the_end_of_the_range_runs_also_if_readings_are_stamps() {
    let clock = Told(Arc::new(Mutex::new(Some(Instant::now()))));
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    *clock.0.lock().expect("whole") = scheduler.now().checked_add(YEAR * 600);
    let log = Log::new(&scheduler);
    scheduler.schedule_once(Duration::ZERO, log.task(1)).expect("open");
    assert_eq!((driver.turn(), log.names()), (None, vec![1]));
}

#[test]
fn s17_a_clock_that_panics_leaves_the_next_deadline_unknown() {
    silence();
    let start = Instant::now();
    let clock = Told(Arc::new(Mutex::new(Some(start))));
    // It has an answer again when the panic is reported. Without one the driver would panic too.
    let told = clock.clone();
    let tells = move |_: TaskPanic<'_>| *told.0.lock().expect("whole") = Some(start + SECOND);
    let (scheduler, driver) =
        Scheduler::builder().clock(clock.clone()).on_panic(tells).build_driven().expect("good");
    scheduler.schedule_once(HOUR, || ()).expect("open");
    *clock.0.lock().expect("whole") = None;
    assert_eq!(driver.next_deadline(), Some(start + SECOND), "the caller looks again at once");
    assert_eq!(driver.next_deadline(), Some(start + HOUR));
}

#[test]
fn s04_ten_years_of_uptime_change_nothing() {
    let (scheduler, driver) = driven();
    let mut runs = 0;
    for _ in 0..10 {
        runs += driver.advance(YEAR);
        let log = Log::new(&scheduler);
        let start = scheduler.now();
        for name in 0..5 {
            let delay = MILLI * u32::try_from(7 * name + 3).expect("small");
            scheduler.schedule_once(delay, log.task(name)).expect("open");
        }
        assert_eq!(driver.advance(SECOND), 5);
        let runs = log.runs.lock().expect("whole");
        assert!(runs.iter().all(|(name, at)| *at - start == MILLI * (7 * *name as u32 + 3)));
    }
    assert_eq!(runs, 0);
}

#[test]
fn s05_a_zero_delay_needs_no_tick_and_never_runs_on_the_callers_stack() {
    let (scheduler, driver) =
        Scheduler::builder().tick(HOUR).build_driven().expect("good settings");
    let log = Log::new(&scheduler);
    scheduler.schedule_once(Duration::ZERO, log.task(1)).expect("open");
    assert!(log.names().is_empty(), "not on the caller's stack");
    driver.turn();
    assert_eq!(log.names(), [1], "without moving the time");

    // On real threads, with a tick so long that it never ends.
    let scheduler =
        Scheduler::builder().tick(HOUR).executor(Inline).build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    for n in 0..100 {
        let sender = sender.clone();
        let task = move || sender.send(n).expect("the receiver lives");
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n));
    }
}

#[test]
fn s05_a_zero_delay_wakes_a_thread_that_sleeps_to_the_end_of_this_very_tick() {
    let scheduler = Scheduler::builder().tick(HOUR).build().expect("good settings");
    let (sender, receiver) = mpsc::channel();
    for n in 0..20 {
        scheduler.schedule_once(Duration::from_nanos(1), || ()).expect("open");
        thread::sleep(MILLI); // so that the thread is asleep, which is what this tests
        let sender = sender.clone();
        let task = move || sender.send(n).expect("the receiver lives");
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n), "it waits for the hour");
    }
}

/// The system's clock in steps of five milliseconds, which claims to tell two calls apart.
struct Coarse(Instant);

impl Clock for Coarse {
    fn now(&self) -> Instant {
        let steps = self.0.elapsed().as_millis() / 5;
        self.0 + Duration::from_millis(5) * u32::try_from(steps).expect("a short while")
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        SystemClock.sleep(sleeper, until);
    }

    fn tells_calls_apart(&self) -> bool {
        true
    }
}

#[test]
fn s05_a_clock_that_repeats_itself_loses_no_wake_up() {
    let builder = Scheduler::builder().clock(Coarse(Instant::now())).executor(Inline);
    let scheduler = builder.build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    for n in 0..count(400, 4_000) {
        let sender = sender.clone();
        let task = move || sender.send(n).expect("the receiver lives");
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n), "it slept through");
    }
}

#[test]
fn s05_a_task_that_schedules_itself_again_and_again_keeps_a_flat_stack() {
    fn again(scheduler: &Scheduler, left: u32, done: mpsc::Sender<()>) {
        let inner = scheduler.clone();
        let task = move || match left {
            0 => done.send(()).expect("the receiver lives"),
            _ => again(&inner, left - 1, done),
        };
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
    }
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    again(&scheduler, count(200_000, 1_000_000) as u32, sender);
    receiver.recv_timeout(PATIENCE * 3).expect("the last one");
}

#[test]
fn s06_a_jump_of_any_length_runs_what_is_due_at_once_and_in_order() {
    #[derive(Clone, Default)]
    struct HandOvers(Arc<AtomicUsize>);
    impl Observer for HandOvers {
        fn handed_over(&self, _: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (clock, hand_overs) = (ManualClock::new(), HandOvers::default());
    let (scheduler, driver) = Scheduler::builder()
        .clock(clock.clone())
        .observer(hand_overs.clone())
        .build_driven()
        .expect("good settings");
    let log = Log::new(&scheduler);
    for name in (0..100).rev() {
        let delay = HOUR * u32::try_from(name).expect("small") + MILLI;
        scheduler.schedule_once(delay, log.task(name)).expect("open");
    }
    clock.advance(YEAR * 30); // 950 thousand million ticks of which 100 have tasks
    assert_eq!(driver.turn(), None);
    assert_eq!(log.names(), (0..100).collect::<Vec<_>>());
    assert_eq!(hand_overs.0.load(Ordering::Relaxed), 1, "at once");
}

/// Schedules tasks on one thread from the latest to the earliest. Returns the tasks that have run, in order.
fn schedule_backwards(scheduler: &Scheduler, tasks: u64) -> Arc<Mutex<Vec<u64>>> {
    let ran = Arc::new(Mutex::new(Vec::new()));
    for number in (0..tasks).rev() {
        let ran = Arc::clone(&ran);
        let task = move || ran.lock().expect("no panic").push(number);
        scheduler.schedule_once(Duration::from_micros(number), task).expect("open");
    }
    ran
}

#[test]
fn s03_s06_after_a_jump_all_that_was_scheduled_before_runs_in_order() {
    const TASKS: u64 = 20_000; // many times what a turn takes in at once
    let clock = ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let ran = schedule_backwards(&scheduler, TASKS);
    clock.advance(SECOND);
    while driver.turn().is_some() {}
    assert!(ran.lock().expect("no panic").iter().copied().eq(0..TASKS));
}

#[test]
fn s03_s06_after_a_task_that_took_long_all_that_was_scheduled_meanwhile_runs_in_order() {
    const TASKS: u64 = 20_000;
    let clock = ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let scheduler = builder.build().expect("a tick thread");
    let (release, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let hold_up = move || {
        tell.send(()).expect("told");
        _ = wait.recv();
    };
    scheduler.schedule_once(Duration::ZERO, hold_up).expect("open");
    told.recv_timeout(PATIENCE).expect("it runs");
    let ran = schedule_backwards(&scheduler, TASKS);
    clock.advance(SECOND);
    drop(release);
    until("all of them ran", || scheduler.pending() == 0);
    drop(scheduler.close());
    let ran = ran.lock().expect("no panic");
    assert!(ran.iter().copied().eq(0..TASKS), "not in order: {:?}", &ran[..5]);
}

#[test]
fn s07_a_turn_says_exactly_when_to_come_back() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    assert_eq!(driver.turn(), None);
    let far = scheduler.schedule_once(HOUR * 10, || ()).expect("open");
    assert_eq!(driver.turn(), Some(start + HOUR * 10));
    let near = scheduler.schedule_once(MILLI * 5, || ()).expect("open");
    let middle = scheduler.schedule_once(MILLI * 2_500, || ()).expect("open");
    assert_eq!(driver.turn(), Some(start + MILLI * 5));
    assert!(near.cancel());
    assert_eq!(driver.turn(), Some(start + MILLI * 2_500), "not for one that was cancelled");
    assert!(middle.cancel());
    assert_eq!(driver.turn(), Some(start + HOUR * 10));
    assert!(far.cancel());
    assert_eq!(driver.turn(), None, "nothing is pending");
    scheduler.schedule_once(Duration::MAX, || ()).expect("open");
    assert_eq!(driver.turn(), None, "never is no time to come back");
}

/// The time until which the tick thread sleeps, as it tells the observer.
#[derive(Clone, Default)]
struct Sleeps(Arc<Mutex<Option<Instant>>>);

impl Sleeps {
    fn until(&self) -> Option<Instant> {
        *self.0.lock().expect("no panic")
    }
}

impl Observer for Sleeps {
    fn will_sleep(&self, until: Option<Instant>) {
        *self.0.lock().expect("no panic") = until;
    }
}

#[test]
fn s07_idle_costs_nothing_and_a_later_deadline_wakes_nobody() {
    let (sleeps, start) = (Sleeps::default(), Instant::now());
    let builder = Scheduler::builder().observer(sleeps.clone()).executor(Inline);
    let scheduler = builder.build().expect("a tick thread");
    let settled = |at_least: Duration| {
        let until_then = |at: Instant| at >= start + at_least && at < start + at_least * 3 / 2;
        until("its sleep", || sleeps.until().is_some_and(until_then));
        scheduler.stats().wakeups()
    };
    let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
    let asleep = settled(HOUR);
    for n in 0..100 {
        scheduler.schedule_once(HOUR * (n + 2), || ()).expect("open");
    }
    thread::sleep(MILLI * 300); // real time, because the test counts wake-ups of an idle thread
    assert_eq!(scheduler.stats().wakeups(), asleep, "they are all later");
    scheduler.schedule_once(HOUR / 2, || ()).expect("open");
    assert_eq!(settled(HOUR / 2), asleep + 1, "this one is earlier");
    assert!(handle.cancel());
    thread::sleep(MILLI * 100);
    assert_eq!(scheduler.stats().wakeups(), asleep + 1, "a cancel wakes nobody");
}

/// A new task wakes one of two sleepers, and leaves the waker of the other one in place.
#[test]
fn s01_two_schedulers_sleep_on_one_manual_clock() {
    let (clock, sleeps) = (ManualClock::new(), Sleeps::default());
    let builder = || Scheduler::builder().clock(clock.clone()).executor(Inline);
    let sleeper = builder().observer(sleeps.clone()).build().expect("a tick thread");
    let busy = builder().build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    let say = |n: u32| {
        let sender = sender.clone();
        move || sender.send(n).expect("the receiver lives")
    };
    sleeper.schedule_once(MILLI, say(1)).expect("open");
    until("its sleep", || sleeps.until() == Some(clock.now() + MILLI));
    for _ in 0..100 {
        busy.schedule_once(Duration::ZERO, say(0)).expect("open");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(0));
    }
    clock.advance(MILLI);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(1));
}

#[test]
fn a_scheduler_on_a_manual_clock_moves_only_when_told() {
    let clock = ManualClock::new();
    let scheduler =
        Scheduler::builder().clock(clock.clone()).executor(Inline).build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    for n in 1..=3_u32 {
        let sender = sender.clone();
        let task = move || sender.send(n).expect("the receiver lives");
        scheduler.schedule_once(HOUR * n, task).expect("open");
    }
    for n in 1..=3 {
        assert!(receiver.try_recv().is_err());
        clock.advance(HOUR);
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n));
    }
}

#[test]
fn a_driver_on_the_system_clock_waits_for_it() {
    let (scheduler, driver) =
        Scheduler::builder().clock(tickwheel::SystemClock).build_driven().expect("good settings");
    let start = Instant::now();
    scheduler.schedule_once(MILLI * 10, || ()).expect("open");
    assert_eq!(driver.advance(MILLI * 20), 1);
    assert!(start.elapsed() >= MILLI * 20);
}

#[test]
fn s05_a_zero_delay_from_another_thread_does_not_wait_for_the_tick_of_a_driver() {
    /// The system's clock, which tells of each sleep.
    struct Tells(mpsc::Sender<()>);
    impl Clock for Tells {
        fn now(&self) -> Instant {
            SystemClock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            _ = self.0.send(());
            SystemClock.sleep(sleeper, until);
        }
    }
    let (sleeps, is_asleep) = mpsc::channel();
    let builder = Scheduler::builder().clock(Tells(sleeps)).executor(Inline).tick(HOUR);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let (sender, receiver) = mpsc::channel();
    let other = scheduler.clone();
    thread::spawn(move || {
        is_asleep.recv().expect("the driver lives");
        let began = Instant::now();
        let task = move || sender.send(began.elapsed()).expect("the receiver lives");
        other.schedule_once(Duration::ZERO, task).expect("open");
    });
    // Longer than a busy machine holds the other thread up. A driver that is not woken goes on at the end of its time.
    while driver.advance(SECOND * 60) == 0 {}
    assert!(receiver.try_recv().expect("it has run") < SECOND * 30);
}

#[test]
fn a_driver_inside_its_own_task_does_nothing() {
    let (scheduler, driver) = driven();
    let driver = Arc::new(driver);
    let inner = Arc::clone(&driver);
    let (sender, receiver) = mpsc::channel();
    let weak = scheduler.downgrade();
    scheduler
        .schedule_once(MILLI, move || {
            let told = (inner.advance(HOUR), inner.turn() == Some(inner.now()));
            let here = weak.upgrade().is_some_and(|scheduler| scheduler.is_turned_here());
            sender.send((told, here)).expect("the receiver lives");
        })
        .expect("open");
    assert_eq!(driver.advance(MILLI), 1);
    assert_eq!(receiver.try_recv(), Ok(((0, true), true)));
    assert!(!scheduler.is_turned_here(), "the turn is over");
}

#[test]
fn a_driver_wakes_whom_it_was_told_to() {
    let (scheduler, driver) = driven();
    let told = Poller::new();
    driver.wake_with(Some(told.waker()));
    scheduler.schedule_once(HOUR, || ()).expect("open");
    driver.turn();
    scheduler.schedule_once(HOUR * 2, || ()).expect("open");
    assert_eq!(told.woken(), 0, "later");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    assert_eq!(told.woken(), 1, "earlier, and once");
    driver.turn();
    drop(scheduler.stop());
    assert!(told.woken() >= 2, "a stop wakes too");
}

/// A task that is due in the tick at whose end the thread wakes anyway does not wake it.
#[test]
fn s02_a_driver_of_ticks_is_woken_for_the_tick_before_and_not_for_this_one() {
    let tick = MILLI * 10;
    let builder = Scheduler::builder().tick(tick).precision(Precision::Tick);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let told = Poller::new();
    driver.wake_with(Some(told.waker()));
    let start = scheduler.now();
    let due = |after: Duration| {
        scheduler.schedule_at(start + after, || ()).expect("open");
        told.woken()
    };
    due(tick * 10);
    let before = (driver.turn(), told.woken());
    assert_eq!(before.0, Some(start + tick * 10));
    assert_eq!(due(tick * 9 + Duration::from_nanos(1)), before.1);
    assert_eq!(due(tick * 9), before.1 + 1, "the end of the tick before");
    assert_eq!(driver.turn(), Some(start + tick * 9));
}

/// The scheduler asks the clock what it can do, also behind an `Arc`.
#[test]
fn a_clock_behind_an_arc_is_the_clock_itself() {
    struct Says(Instant, bool);
    impl Clock for Says {
        fn now(&self) -> Instant {
            self.0
        }
        fn sleep(&self, _sleeper: &Sleeper, _until: Option<Instant>) {}
        fn advance_to(&self, _instant: Instant) -> bool {
            self.1
        }
        fn tells_calls_apart(&self) -> bool {
            self.1
        }
        fn runs_in_real_time(&self) -> bool {
            self.1
        }
    }
    /// A clock with the provided methods.
    struct Plain(Instant);
    impl Clock for Plain {
        fn now(&self) -> Instant {
            self.0
        }
        fn sleep(&self, _sleeper: &Sleeper, _until: Option<Instant>) {}
    }
    fn said(clock: &impl Clock) -> [bool; 3] {
        let now = clock.now();
        [clock.advance_to(now), clock.tells_calls_apart(), clock.runs_in_real_time()]
    }
    let now = Instant::now();
    for says in [true, false] {
        assert_eq!(said(&Arc::new(Says(now, says))), [says; 3]);
    }
    assert_eq!(said(&Plain(now)), [false; 3], "the defaults promise nothing");
    assert_eq!(said(&Arc::new(Plain(now))), [false; 3]);
    let apart = SystemClock.tells_calls_apart();
    assert!(!(apart && cfg!(windows)), "its steps are 100 ns there");
    assert_eq!(said(&SystemClock), [false, apart, true]);
    assert_eq!(said(&BootClock), [false, apart, true]);
}

/// So the next timeout, which is likely to be cancelled as soon and is due no earlier, need not wake the thread.
#[test]
fn s07_a_thread_that_finds_a_timeout_cancelled_sleeps_as_if_it_were_not() {
    /// A clock that tells of each sleep, and ends it when the test says so.
    struct Gated {
        clock: ManualClock,
        sleeps: mpsc::Sender<Option<Instant>>,
        go: Mutex<mpsc::Receiver<()>>,
    }
    impl Clock for Gated {
        fn now(&self) -> Instant {
            self.clock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            self.sleeps.send(until).expect("the receiver lives");
            self.clock.sleep(sleeper, until);
            _ = self.go.lock().expect("no panic").recv();
        }
    }
    let clock = ManualClock::new();
    let ((sleeps, slept), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let gated = Gated { clock: clock.clone(), sleeps, go: Mutex::new(may_go) };
    let scheduler = Scheduler::builder().clock(gated).executor(Inline).build();
    let scheduler = scheduler.expect("a tick thread");
    let asleep = || slept.recv_timeout(PATIENCE).expect("it sleeps");
    let cancelled_at = |instant| {
        assert!(scheduler.schedule_at(instant, || ()).expect("open").cancel());
    };
    let turn = || {
        go.send(()).expect("it waits for this");
        asleep()
    };
    let (start, first) = (clock.now(), asleep());
    let (soon, sooner) = (start + MILLI * 10, start + MILLI * 5);
    assert!(first.is_none_or(|until| until > soon));
    cancelled_at(soon);
    assert_eq!(turn(), Some(soon));
    cancelled_at(soon + MILLI * 10);
    scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    assert_eq!(turn(), Some(soon), "what came after it does not count");
    cancelled_at(start);
    cancelled_at(soon + MILLI * 10);
    assert_eq!(turn(), Some(soon), "nor does one that was due, and was cancelled in time");
    cancelled_at(sooner);
    cancelled_at(soon + MILLI * 10);
    assert_eq!(turn(), Some(sooner), "also if a later filing of its slot came right behind it");
    clock.advance(MILLI * 5);
    assert!(turn().is_none_or(|until| until > sooner), "once is enough");
    let many = clock.now() + MILLI * 20;
    for first in [many, clock.now()] {
        let task = |n| scheduler.schedule_at(first + MILLI * n, || ()).expect("open");
        let handles: Vec<_> = (0..32).map(|n| task(if first == many { n } else { 0 })).collect();
        assert!(handles.iter().all(tickwheel::Cancellable::cancel));
        assert_eq!(turn(), Some(many), "also if most of a batch were cancelled");
    }
    drop(go);
}

/// Of a flow with different delays, only those wake the thread that are due before all others.
#[test]
fn s07_timeouts_of_any_delays_wake_a_thread_that_has_known_an_earlier_one_not_again() {
    let scheduler = Scheduler::new();
    let mut seed = 9_u64;
    let delays = (0..4_000).map(|_| {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        Duration::from_secs(3600) + MILLI * (seed >> 44) as u32
    });
    let (mut first, mut lower) = (Duration::MAX, 0);
    for delay in delays {
        lower += u64::from(delay < first);
        first = first.min(delay);
        let handle = scheduler.schedule_once(delay, || ()).expect("open");
        handle.cancel();
        spin_until(Instant::now() + Duration::from_micros(20));
    }
    let wakeups = scheduler.stats().wakeups();
    // Some more, because tests beside this one may run short of slots. If it forgets, it wakes some hundred times.
    assert!(wakeups <= lower + 10, "{wakeups} wake-ups, and {lower} that were the first ones");
}

/// Each timeout is cancelled before the tick thread has looked at it, and nothing else is pending. If the thread slept without a
/// deadline then, each next timeout would wake it.
#[test]
fn s07_timeouts_that_are_cancelled_at_once_wake_the_thread_once_and_not_each() {
    const TIMEOUTS: u64 = 2_000;
    let scheduler = Scheduler::new();
    for _ in 0..TIMEOUTS {
        scheduler.schedule_once(Duration::from_secs(30), || ()).expect("open").cancel();
        spin_until(Instant::now() + Duration::from_micros(20));
    }
    let wakeups = scheduler.stats().wakeups();
    assert!(wakeups < TIMEOUTS / 10, "{wakeups} wake-ups");
}
