//! After a stall: an intake of many lanes that has not been read for a while, and a part of the wheel that fills up long
//! before its turn (S2, S6, S19, S20).

#![allow(clippy::cast_precision_loss, reason = "figures are for people")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Inline, Observer, Scheduler};

use super::service::{
    Complaints, Figures, Lateness, cpu_of, judged, millis, plain_sleeper, scenario, within,
};
use crate::common::{PATIENCE, Random, at_least, count, in_full_form, length};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ----- an intake that was not looked at ----------------------------------------------------------

/// One of this many tasks is due at once.
const ONE_IS_DUE_IN: usize = 1_000;

const TICK_THREAD: &str = "stalled";

/// Counts the tasks that the tick thread takes in, and notes when it has all of them.
struct Watch {
    start: Instant,
    taken: AtomicUsize,
    all: usize,
    all_in_at: AtomicU64,
    first_run_at: AtomicU64,
    taken_at_first_run: AtomicUsize,
    ran: AtomicUsize,
}

const NOT_YET: u64 = u64::MAX;

impl Watch {
    fn new(all: usize) -> Arc<Watch> {
        Arc::new(Watch {
            start: Instant::now(),
            taken: AtomicUsize::new(0),
            all,
            all_in_at: AtomicU64::new(NOT_YET),
            first_run_at: AtomicU64::new(NOT_YET),
            taken_at_first_run: AtomicUsize::new(usize::MAX),
            ran: AtomicUsize::new(0),
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(&self) {
        if self.ran.fetch_add(1, Ordering::AcqRel) == 0 {
            self.first_run_at.store(self.now(), Ordering::Release);
            self.taken_at_first_run.store(self.taken.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

struct Counts(Arc<Watch>);

impl Observer for Counts {
    fn took_in(&self, tasks: usize) {
        let before = self.0.taken.fetch_add(tasks, Ordering::AcqRel);
        if before < self.0.all && before + tasks >= self.0.all {
            self.0.all_in_at.store(self.0.now(), Ordering::Release);
        }
    }
}

/// Schedules one lane's share while the tick thread stands still.
fn fill(scheduler: &Scheduler, watch: &Arc<Watch>, tasks: usize, seed: u64) {
    let mut random = Random(seed);
    for id in 0..tasks {
        let is_due = id % ONE_IS_DUE_IN == ONE_IS_DUE_IN / 2;
        let spread = Duration::from_micros(60_000_000 + random.below(60_000_000));
        let delay = if is_due { Duration::ZERO } else { spread };
        let watch = Arc::clone(watch);
        scheduler.schedule_once(delay, move || watch.run()).expect("open");
    }
}

pub(crate) fn child_stall(lanes: usize) -> Figures {
    let each = at_least(200_000, 10_000_000) / lanes;
    let tasks = each * lanes;
    let due = lanes * (0..each).filter(|id| id % ONE_IS_DUE_IN == ONE_IS_DUE_IN / 2).count();
    let watch = Watch::new(tasks + 1);
    let builder = Scheduler::builder().executor(Inline).observer(Counts(Arc::clone(&watch)));
    let scheduler = builder.thread_name(TICK_THREAD).build().expect("a tick thread");
    let ((blocks, is_blocked), (release, wait)) = (mpsc::channel(), mpsc::channel::<()>());
    let block = move || _ = (blocks.send(()), wait.recv());
    scheduler.schedule_once(Duration::ZERO, block).expect("open");
    is_blocked.recv_timeout(PATIENCE).expect("it runs");

    let start = Instant::now();
    thread::scope(|scope| {
        for lane in 0..lanes {
            let (scheduler, watch) = (&scheduler, &watch);
            scope.spawn(move || fill(scheduler, watch, each, lane as u64));
        }
    });
    let (filled, released, before) = (start.elapsed(), watch.now(), cpu_of(TICK_THREAD));
    drop(release);
    let limit = SECOND * 60;
    within(limit, || watch.all_in_at.load(Ordering::Acquire) != NOT_YET);
    let worked =
        cpu_of(TICK_THREAD).zip(before).map(|(after, before)| after.saturating_sub(before));
    let since = |at: &AtomicU64| {
        Duration::from_nanos(
            at.load(Ordering::Acquire).saturating_sub(released).min(limit.as_nanos() as u64),
        )
    };
    within(SECOND * 20, || watch.ran.load(Ordering::Acquire) == due);
    let (taken, first) = (since(&watch.all_in_at), since(&watch.first_run_at));
    let left = scheduler.close().expect("in time");
    let lost = tasks.abs_diff(left.len() + watch.ran.load(Ordering::Acquire));
    drop(left);

    let mut figures = Figures::default();
    figures.set("tasks", tasks as f64);
    figures.set("schedule", filled.as_secs_f64() * 1e9 / tasks as f64);
    figures.set("schedule s", filled.as_secs_f64());
    // By its processor time, which others on the machine do not change much.
    figures.set("taken in", worked.unwrap_or(taken).as_secs_f64() * 1e9 / tasks as f64);
    figures.set("all in", millis(taken));
    figures.set("first run", millis(first));
    figures.set("taken at first run", watch.taken_at_first_run.load(Ordering::Acquire) as f64);
    figures.set("lost", lost as f64);
    figures
}

/// 16 lanes may cost three times as much as one lane, plus this many nanoseconds a task.
fn slack() -> f64 {
    if in_full_form() { 20.0 } else { 500.0 }
}

#[test]
fn s06_s19_after_a_stall_many_lanes_are_taken_in_as_fast_as_one() {
    let (mut complaints, mut one_lane) = (Complaints::default(), f64::INFINITY);
    for lanes in [1, 2, 16] {
        let name = format!("stall {lanes}");
        let figures = match scenario(&name, SECOND * 180) {
            Ok(figures) => figures,
            Err(why) => {
                complaints.add(format!("{name}: {why}"));
                continue;
            }
        };
        let get = |figure: &str| figures.get(figure);
        println!(
            "{name:<9} {:8} tasks: schedule {:6.0} ns each; taken in {:7.0} ns each, {:7.0} ms; first run {:7.1} ms, with {:8} taken in; {} lost",
            get("tasks"),
            get("schedule"),
            get("taken in"),
            get("all in"),
            get("first run"),
            get("taken at first run"),
            get("lost")
        );
        if lanes == 1 {
            one_lane = get("taken in");
        }
        complaints.at_most(
            one_lane * 3.0 + slack(),
            get("taken in"),
            &format!("{name}, ns a task"),
        );
        complaints.at_most(
            get("tasks") - 1.0,
            get("taken at first run"),
            &format!("{name}, taken in at the first run"),
        );
        // While the tick thread stands still producers may be held back, but not for long.
        let sane = if in_full_form() { 60.0 } else { 20.0 };
        complaints.at_most(sane, get("schedule s"), &format!("{name}, s of scheduling"));
        complaints.at_most(0.0, get("lost"), &format!("{name}, lost"));
    }
    complaints.assert_none();
}

// ----- a part of the wheel that fills up far ahead -------------------------------------------------

pub(crate) fn child_far() -> Figures {
    let tasks = count(100_000, 1_000_000);
    let ahead = length(SECOND, SECOND * 3, SECOND * 8);
    let spread = 1_900_000;
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let base = Instant::now() + ahead;
    let first: Vec<u64> = (0..tasks as u64).map(|id| id * spread / tasks as u64).collect();
    // The deadlines of the first tenth of a second are watched, each at its own place.
    let watched = first.iter().filter(|micros| **micros < 100_000).count();
    let (lateness, ran) = (Lateness::new(tasks), Arc::new(AtomicUsize::new(0)));
    let mut order: Vec<usize> = (0..tasks).collect();
    let mut random = Random(5);
    (1..tasks).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
    for id in order {
        let due = base + Duration::from_micros(first[id]);
        let (lateness, ran) = (Arc::clone(&lateness), Arc::clone(&ran));
        let task = move || {
            lateness.note(id, due);
            ran.fetch_add(1, Ordering::Relaxed);
        };
        scheduler.schedule_at(due, task).expect("open");
    }
    let done_at = Instant::now();
    let stop = AtomicBool::new(false);
    let sleeper = thread::scope(|scope| {
        thread::sleep(base.saturating_duration_since(Instant::now() + MILLI * 500));
        let sleeper = scope.spawn(|| plain_sleeper(&stop));
        within(ahead + SECOND * 10, || ran.load(Ordering::Relaxed) == tasks);
        stop.store(true, Ordering::Relaxed);
        sleeper.join().expect("no panic")
    });
    let mut figures = Figures::default();
    figures.set("tasks", tasks as f64);
    figures.set("scheduled in time", f64::from(u8::from(done_at < base)));
    lateness.of_first(watched).tell("first", &mut figures);
    lateness.of_first(tasks).tell("all", &mut figures);
    sleeper.tell("sleeper", &mut figures);
    figures
}

#[test]
fn s02_the_first_of_many_that_wait_half_a_turn_ahead_are_on_time() {
    judged("far", SECOND * 120, judge_far).assert_none();
}

fn judge_far(figures: &Figures, late: &mut Complaints, complaints: &mut Complaints) {
    let get = |figure: &str| figures.get(figure);
    println!(
        "{} tasks within 1.9 s, far ahead: the first p50 {:.2}, p99 {:.2}, worst {:.2} ms late; all p50 {:.2}, worst {:.2}; sleeper {:.2}",
        get("tasks"),
        get("first p50"),
        get("first p99"),
        get("first worst"),
        get("all p50"),
        get("all worst"),
        get("sleeper worst")
    );
    if get("scheduled in time") == 0.0 {
        late.add("the machine is too slow for this".to_owned());
    }
    let bound = if in_full_form() { 5.0 } else { 500.0 };
    late.at_most(bound + get("sleeper worst"), get("first worst"), "the first ones, ms late");
    for nothing in ["all missing", "all wrong"] {
        complaints.at_most(0.0, get(nothing), nothing);
    }
}
