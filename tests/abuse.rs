//! What no program should do, and what happens then. In real time and with processes of its own, because
//! that is what is tested.

use std::env;
use std::panic;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

mod common;

use common::Random;
use tickwheel::{Inline, Precision, Scheduler, ThreadPool};

const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it did not come about: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn s17_a_million_panics_on_the_tick_thread() {
    const TASKS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    panic::set_hook(Box::new(|_| ()));
    let reported = Arc::new(AtomicUsize::new(0));
    let hook = Arc::clone(&reported);
    let builder = Scheduler::builder().executor(Inline).on_panic(move |panic| {
        assert_eq!(panic.message(), Some("on purpose"));
        hook.fetch_add(1, Ordering::Relaxed);
    });
    let scheduler = builder.build().expect("a tick thread");
    for number in 0..TASKS {
        let delay = Duration::from_micros(number as u64 % 1_000);
        scheduler.schedule_once(delay, || panic!("on purpose")).expect("open");
    }
    until("all have panicked", || scheduler.pending() == 0);
    let ran = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    let last = move || flag.store(true, Ordering::Relaxed);
    scheduler.schedule_once(Duration::ZERO, last).expect("open");
    until("the tick thread lives", || ran.load(Ordering::Relaxed));
    let stats = scheduler.stats();
    assert_eq!((stats.panicked(), stats.fired()), (TASKS as u64, TASKS as u64 + 1));
    assert_eq!(reported.load(Ordering::Relaxed), TASKS);
}

/// Schedules timeouts over three seconds; how many ran early, and how many never.
fn timeouts_over_three_seconds(precision: Precision) -> (usize, usize) {
    const TASKS: usize = 20_000;
    let builder = Scheduler::builder().executor(ThreadPool::new(2)).precision(precision);
    let scheduler = builder.build().expect("a tick thread");
    let (early, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut random = Random(11);
    for _ in 0..TASKS {
        let delay = Duration::from_micros(random.below(3_000_000));
        let (called, early, ran) = (Instant::now(), Arc::clone(&early), Arc::clone(&ran));
        let task = move || {
            early.fetch_add(usize::from(called.elapsed() < delay), Ordering::Relaxed);
            ran.fetch_add(1, Ordering::Relaxed);
        };
        scheduler.schedule_once(delay, task).expect("open");
    }
    let start = Instant::now();
    while scheduler.pending() > 0 && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    drop(scheduler.close());
    until("the pool has run what it had", || {
        ran.load(Ordering::Relaxed) == TASKS || start.elapsed() > PATIENCE / 2
    });
    (early.load(Ordering::Relaxed), TASKS - ran.load(Ordering::Relaxed))
}

/// Not a test by itself: what the next one runs in a process of its own.
#[test]
fn child_with_timeouts() {
    if env::var_os("TICKWHEEL_CHILD").is_some() {
        let (early, lost) = timeouts_over_three_seconds(Precision::Tick);
        println!("early {early}, lost {lost};");
    }
}

#[test]
fn s01_s06_s20_stopped_for_two_seconds() {
    let signal = |name: &str, process: u32| {
        Command::new("kill")
            .args([name, &process.to_string()])
            .status()
            .is_ok_and(|done| done.success())
    };
    let myself = env::current_exe().expect("a program has a path");
    let child = Command::new(myself)
        .args(["--exact", "child_with_timeouts", "--nocapture"])
        .env("TICKWHEEL_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    thread::sleep(Duration::from_millis(700));
    if signal("-STOP", child.id()) {
        thread::sleep(Duration::from_secs(2));
        assert!(signal("-CONT", child.id()));
    } else {
        println!("skipped the stop: this system has no kill");
    }
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("early 0, lost 0;"), "{text}");
}

#[test]
fn s01_s20_on_a_processor_that_has_no_time() {
    let stop = Arc::new(AtomicBool::new(false));
    let greedy: Vec<_> = (0..8)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    let result = timeouts_over_three_seconds(Precision::Exact);
    stop.store(true, Ordering::Relaxed);
    greedy.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(result, (0, 0), "early, lost");
}
