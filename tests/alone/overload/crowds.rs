//! Thousands of threads that have scheduled once and have been idle since then. A wake-up costs as much as beside a few
//! threads (S2, S7, S26).

#![allow(clippy::cast_precision_loss, reason = "figures are for people")]

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Inline, Scheduler};

use super::service::{Complaints, Figures, Late, cpu_of, scenario};
use crate::common::{PATIENCE, in_full_form};

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const TICK_THREAD: &str = "crowded";
const STACK: usize = 64 * 1024;

/// Has this many threads schedule once, and then wait until the returned barrier is met. Returns their number too, because the
/// system may allow fewer.
fn crowd(scheduler: &Scheduler, threads: usize) -> usize {
    let (ready, are_ready) = mpsc::channel();
    let mut started = 0;
    for _ in 0..threads {
        let (scheduler, ready) = (scheduler.clone(), ready.clone());
        let idle = move || {
            scheduler.schedule_once(HOUR, || ()).expect("open").cancel();
            ready.send(()).expect("the receiver lives");
            loop {
                // Sleep until the process ends. If they were parked, the system would look through all of them at each wake-up of one.
                thread::sleep(HOUR);
            }
        };
        if thread::Builder::new().stack_size(STACK).spawn(idle).is_err() {
            break;
        }
        started += 1;
    }
    for _ in 0..started {
        are_ready.recv_timeout(PATIENCE).expect("it schedules");
    }
    started
}

pub(crate) fn child(threads: usize) -> Figures {
    const SINGLE: u32 = 200;
    let builder = Scheduler::builder().executor(Inline).thread_name(TICK_THREAD);
    let scheduler = builder.build().expect("a tick thread");
    let started = crowd(&scheduler, threads);
    thread::sleep(MILLI * 300); // until the entries of their cancelled tasks are swept
    let before = cpu_of(TICK_THREAD);
    let late = (0..SINGLE).map(|_| {
        let (due, done) = (Instant::now() + MILLI, Arc::new(Barrier::new(2)));
        let (run, at) = (Arc::clone(&done), Arc::new(std::sync::OnceLock::new()));
        let ran_at = Arc::clone(&at);
        let task = move || {
            let _ = ran_at.set(Instant::now());
            run.wait();
        };
        scheduler.schedule_once(MILLI, task).expect("open");
        done.wait();
        at.get().map_or(Duration::ZERO, |at| at.saturating_duration_since(due))
    });
    let late = Late::of(late.collect());
    thread::sleep(MILLI * 20);
    let cpu = cpu_of(TICK_THREAD).zip(before).map(|(after, before)| after.saturating_sub(before));
    let start = Instant::now();
    let stats = scheduler.stats();
    let stats_took = start.elapsed();
    assert_eq!(stats.fired(), u64::from(SINGLE));
    let mut figures = Figures::default();
    late.tell("single", &mut figures);
    figures.set("threads", started as f64);
    figures.set("cpu us", cpu.map_or(0.0, |cpu| cpu.as_secs_f64() * 1e6 / f64::from(SINGLE)));
    figures.set("stats us", stats_took.as_secs_f64() * 1e6);
    figures
}

#[test]
fn s07_s26_a_wake_up_costs_the_same_beside_thousands_of_idle_threads() {
    let mut cost = Vec::new();
    for threads in [64, if in_full_form() { 8_000 } else { 1_000 }] {
        let figures = scenario(&format!("crowd {threads}"), PATIENCE).expect("figures");
        let get = |figure: &str| figures.get(figure);
        println!(
            "{:5} idle threads: {:6.1} us of the tick thread for each of 200 single tasks, p50 {:.3}, p99 {:.3} ms late; stats() {:.0} us",
            get("threads"),
            get("cpu us"),
            get("single p50"),
            get("single p99"),
            get("stats us")
        );
        cost.push(get("cpu us"));
    }
    let mut complaints = Complaints::default();
    // The time that the system takes for a wake-up grows with the number of threads, too, and varies by the hour. A walk over
    // all that ever scheduled took 100 us beside 8,000; beside 1,000 it would not show.
    let (times, slack) = if in_full_form() { (1.25, 40.0) } else { (2.0, 100.0) };
    complaints.at_most(cost[0] * times + slack, cost[1], "us of the tick thread for a task");
    complaints.assert_none();
}
