//! Extreme conditions: a process that is stopped, a million tasks of one tick, delays of zero and of ever, ten years of uptime
//! (S1 to S6, S19, S20).
//!
//! Some tests need real time, and processes of their own. `TICKWHEEL_FULL=1` runs the full counts, as `scripts/storms` does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fmt, thread};

use crate::alone;
use crate::common::ledger::{End, Ledger};
use crate::common::{Random, count, digits, length, process_of, until};
use tickwheel::{Driver, Inline, ManualClock, Precision, Scheduler, ThreadPool};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

// ----- a process that stands still -----------------------------------------------------------

/// The outcomes of timeouts in real time.
struct Told {
    tasks: usize,
    early: usize,
    lost: usize,
    latest: Duration,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { tasks, early, lost, latest } = self;
        let latest = latest.as_millis();
        write!(
            f,
            "{} timeouts: {early} early, {lost} lost, the latest {latest} ms late",
            digits(*tasks)
        )
    }
}

/// Schedules timeouts of up to `span` on a pool. Calls `ready` when all are scheduled.
fn timeouts(precision: Precision, span: Duration, ready: impl FnOnce()) -> Told {
    let tasks = count(20_000, 1_000_000);
    let builder = Scheduler::builder().executor(ThreadPool::new(2)).precision(precision);
    let scheduler = builder.build().expect("a tick thread");
    let (early, ledger, mut random) =
        (Arc::new(AtomicUsize::new(0)), Ledger::new(tasks), Random(11));
    for id in 0..tasks {
        let delay = Duration::from_nanos(random.below(span.as_nanos() as u64));
        let (early, page, called) = (Arc::clone(&early), ledger.page(id), Instant::now());
        let task = move || {
            early.fetch_add(usize::from(called.elapsed() < delay), Ordering::Relaxed);
            page.run();
        };
        scheduler.schedule_once(delay, task).expect("open");
    }
    ready();
    until("all have run", || ledger.is_closed());
    let tally = ledger.tally();
    tally.assert_balanced();
    let (early, lost) = (early.load(Ordering::Relaxed), tasks - tally.of(End::Ran));
    Told { tasks, early, lost, latest: scheduler.stats().lateness().max() }
}

/// Not a test by itself. The next test runs it in processes of its own.
#[test]
fn child_with_timeouts() {
    let precision = match env::var("TICKWHEEL_CHILD").as_deref() {
        Ok("tick") => Precision::Tick,
        Ok("exact") => Precision::Exact,
        _ => return,
    };
    let told = timeouts(precision, length(SECOND, SECOND * 2, SECOND * 2), || println!("\nready"));
    println!("{told}");
}

/// Starts a child, and waits until it has scheduled its timeouts.
fn child(precision: &str) -> (Child, impl BufRead) {
    let mut child = process_of(child_with_timeouts)
        .env("TICKWHEEL_CHILD", precision)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while line.trim() != "ready" {
        line.clear();
        assert!(output.read_line(&mut line).expect("text") > 0, "it ended early");
    }
    (child, output)
}

/// Stops or continues a process, if the system has a command for that.
fn signal(name: &str, child: &Child) -> bool {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn s01_s06_s20_stopped_for_seconds() {
    let _alone = alone();
    let mut stopped = 0;
    let children = ["tick", "exact"].map(|precision| {
        let (child, output) = child(precision);
        // At once, because its timeouts are over in a second.
        stopped += usize::from(signal("-STOP", &child));
        (precision, (child, output))
    });
    if stopped == 0 {
        println!("skipped the stop: this system has no kill");
    }
    thread::sleep(length(SECOND, SECOND * 2, SECOND * 2)); // real time, because the process really stops
    for (precision, (mut child, mut output)) in children {
        assert!(signal("-CONT", &child) || stopped == 0);
        let mut text = String::new();
        output.read_to_string(&mut text).expect("text");
        assert!(child.wait().expect("it ends").success(), "{text}");
        let told = text.lines().find(|line| line.contains("timeouts")).expect("it tells");
        println!("stopped ({precision}), {told}");
        assert!(told.contains(": 0 early, 0 lost,"), "{told}");
        let late = told.rsplit(' ').nth(2).and_then(|late| late.parse::<u64>().ok());
        assert!(stopped == 0 || late.is_some_and(|late| late > 500), "it was not stopped");
    }
}

#[test]
fn s01_s20_on_a_processor_that_has_no_time() {
    let _alone = alone();
    let (stop, threads) = (AtomicBool::new(false), count(8, 64));
    let told = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let told = timeouts(Precision::Exact, length(SECOND / 3, SECOND, SECOND), || ());
        stop.store(true, Ordering::Relaxed);
        told
    });
    println!("beside {threads} greedy threads, {told}");
    assert_eq!((told.early, told.lost), (0, 0), "early, lost");
}

// ----- a million of one tick -----------------------------------------------------------------

#[test]
fn s03_s19_a_million_tasks_in_one_tick_of_a_tick_thread() {
    let _alone = alone();
    let tasks = count(300_000, 1_000_000);
    let clock = ManualClock::new(); // it stands still until all are scheduled
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let scheduler = builder.build().expect("a tick thread");
    let (ledger, next) = (Ledger::new(tasks), Arc::new(AtomicUsize::new(0)));
    let disorder = Arc::new(AtomicUsize::new(0));
    for id in 0..tasks {
        let (page, next, disorder) = (ledger.page(id), Arc::clone(&next), Arc::clone(&disorder));
        let task = move || {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            disorder.fetch_add(usize::from(turn != id), Ordering::Relaxed);
            page.run();
        };
        scheduler.schedule_once(MILLI, task).expect("open");
    }
    let start = Instant::now();
    clock.advance(MILLI);
    until("all have run", || ledger.is_closed());
    let (took, tally) = (start.elapsed().as_millis(), ledger.tally());
    let disorder = disorder.load(Ordering::Relaxed);
    println!("{} tasks in one tick, in {took} ms: {disorder} out of order, {tally}", digits(tasks));
    tally.assert_balanced();
    assert_eq!((tally.of(End::Ran), disorder), (tasks, 0));
}

// ----- any delay -----------------------------------------------------------------------------

#[test]
fn s01_s04_s20_delays_of_nothing_a_nanosecond_and_for_ever() {
    let _alone = alone();
    const PRODUCERS: usize = 3;
    let delays = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    let each = count(30_000, 1_000_000);
    let scheduler = Scheduler::new();
    let (ledger, early) = (Ledger::new(each * PRODUCERS), Arc::new(AtomicUsize::new(0)));
    let schedule = |id: usize| {
        let delay = delays[id % delays.len()];
        let (page, early, called) = (ledger.page(id), Arc::clone(&early), Instant::now());
        let task = move || {
            early.fetch_add(usize::from(called.elapsed() < delay), Ordering::Relaxed);
            page.run();
        };
        scheduler.schedule_once(delay, task).expect("open");
    };
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            scope.spawn(move || (producer * each..(producer + 1) * each).for_each(schedule));
        }
    });
    until("what is due has run", || scheduler.pending() == each);
    let leftovers = scheduler.close().expect("in time");
    let for_ever = leftovers.into_iter().filter(|task| task.remaining() == Duration::MAX).count();
    until("the pool is done", || ledger.is_closed());
    let (tally, early) = (ledger.tally(), early.load(Ordering::Relaxed));
    println!("{} delays of 0, 1 ns and for ever: {early} early, {tally}", digits(tally.ids));
    tally.assert_balanced();
    assert_eq!((early, for_ever, tally.of(End::Ran)), (0, each, each * 2));
}

// ----- ten years -----------------------------------------------------------------------------

/// Runs a series for ten years. Each run schedules a timeout that runs, and one that is cancelled. Returns the greatest
/// lateness of the series and of the timeouts.
fn ten_years(scheduler: &Scheduler, driver: &Driver, beats: usize) -> Duration {
    let beats = u32::try_from(beats).expect("a moderate count");
    let period = YEAR * 10 / beats + Duration::from_nanos(333); // never at the border of a tick
    let latest = Arc::new(Mutex::new(Duration::ZERO));
    let ran_at = |due: Instant, now: Instant, latest: &Mutex<Duration>| {
        let late = now.checked_duration_since(due).expect("never early");
        let mut latest = latest.lock().expect("no panic");
        *latest = late.max(*latest);
    };
    let (inner, seen, mut due) = (scheduler.clone(), Arc::clone(&latest), scheduler.now());
    let beat = move || {
        due += period;
        ran_at(due, inner.now(), &seen);
        let (clock, seen, due) = (inner.clone(), Arc::clone(&seen), inner.now() + SECOND * 30);
        let timeout = move || ran_at(due, clock.now(), &seen);
        inner.schedule_at(due, timeout).expect("open");
        assert!(inner.schedule_once(HOUR, || ()).expect("open").cancel());
    };
    scheduler.schedule_repeatedly(period, period, beat).expect("open");
    let runs = driver.advance(period * beats + SECOND * 30 + MILLI);
    assert_eq!((runs, scheduler.pending()), (beats as usize * 2, 1), "the beat goes on");
    drop(scheduler.close());
    *latest.lock().expect("no panic")
}

#[test]
fn s02_s04_s12_ten_years_of_uptime() {
    let _alone = alone();
    let beats = count(20_000, 525_600);
    for (precision, allowed) in [(Precision::Tick, MILLI), (Precision::Exact, Duration::ZERO)] {
        let builder = Scheduler::builder().precision(precision);
        let (scheduler, driver) = builder.build_driven().expect("good settings");
        let latest = ten_years(&scheduler, &driver, beats);
        let stats = scheduler.stats();
        assert_eq!((stats.panicked(), stats.cancelled()), (0, beats as u64));
        assert!(latest <= allowed, "{latest:?} late");
        let beats = digits(beats);
        println!(
            "ten years, {beats} beats and timeouts, {precision:?}: none early, at most {latest:?} late"
        );
    }
}
