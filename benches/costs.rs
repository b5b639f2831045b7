//! The cost of a task in processor time: of the calling thread, of the tick thread, and of the whole process, beside the wall
//! time. Each row is compared with its goal.
//!
//! `cargo bench --bench costs`. With `-- churn` it runs only the rows whose name contains that. With `-- --test` it runs each row
//! once with few tasks, and compares nothing.
//!
//! Times do not hold from one machine to the next, and not from one minute to the next on a machine that
//! is shared. So each row is measured in rounds, the median is shown, and the floor is measured again
//! before each: `F` is a `malloc` and `free` of 48 bytes and an uncontended swap, `S` is the swap. The
//! columns in `F` (or `S`) are what compares.

#![expect(clippy::cast_precision_loss, reason = "times in nanoseconds fit")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::Random;
use tickwheel::wheel::Wheel;
use tickwheel::{
    Cancellable, DueTask, Executor, Inline, Precision, Rejected, Scheduler, ThreadPool,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// The time that the tick thread gets to finish its work.
const SETTLE: Duration = Duration::from_millis(150);

// ----- measuring ---------------------------------------------------------------------------

/// Returns the processor time of all threads of this name, in nanoseconds.
fn cpu_of(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let named = tasks.filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    named.filter_map(|task| first_number(&task.path().join("schedstat"))).sum()
}

fn first_number(file: &std::path::Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.split(' ').next()?.parse().ok()
}

/// Returns processor time in exact nanoseconds, also of a thread that is running now.
fn cpu(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into `time`.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn cpu_of_thread() -> u64 {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn cpu_of_process() -> u64 {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Times for one operation, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    wall: f64,
    thread: f64,
    tick: f64,
    process: f64,
}

/// Measures work of the calling thread and what the tick thread does for it.
fn measure(operations: usize, work: impl FnOnce()) -> Times {
    let (tick, process) = (cpu_of("ticks"), cpu_of_process());
    let (wall, thread) = (Instant::now(), cpu_of_thread());
    work();
    let (wall, thread) = (wall.elapsed().as_nanos() as u64, cpu_of_thread() - thread);
    thread::sleep(SETTLE);
    let (tick, process) = (cpu_of("ticks") - tick, cpu_of_process() - process);
    let each = |nanos: u64| nanos as f64 / operations as f64;
    Times { wall: each(wall), thread: each(thread), tick: each(tick), process: each(process) }
}

/// `F` and `S` in nanoseconds.
#[derive(Clone, Copy)]
struct Floor {
    f: f64,
    s: f64,
}

fn floor() -> Floor {
    const TIMES: u32 = 1_000_000;
    let word = AtomicU64::new(0);
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..TIMES).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    let malloc = timed(&mut || drop(black_box(Box::new(black_box([0_u8; 48])))));
    let s = timed(&mut || {
        black_box(&word).swap(1, Ordering::SeqCst);
    });
    Floor { f: malloc + s, s }
}

// ----- rows --------------------------------------------------------------------------------

/// The goal of a row.
#[derive(Clone, Copy)]
enum Goal {
    /// A multiple of `F`, for the calling thread's time.
    ThreadF(f64),
    /// A multiple of `F`, for all threads' time.
    ProcessF(f64),
    /// A multiple of `S`, for the calling thread's time.
    ThreadS(f64),
    /// Nanoseconds of wall time.
    Wall(f64),
    /// Nanoseconds of the tick thread.
    Tick(f64),
    None,
}

struct Row {
    name: &'static str,
    goal: Goal,
    run: fn(&Size) -> Times,
}

/// The number of operations in each row.
struct Size {
    tasks: usize,
    most_pending: u64,
}

const ROWS: &[Row] = &[
    Row {
        name: "schedule, after fires",
        goal: Goal::ThreadF(4.0),
        run: |size| after_fires(size, Precision::Tick),
    },
    Row {
        name: "schedule, after fires, Exact",
        goal: Goal::ThreadF(4.0),
        run: |size| after_fires(size, Precision::Exact),
    },
    Row { name: "schedule, after cancels", goal: Goal::ThreadF(4.0), run: after_cancels },
    Row { name: "schedule, 2 producers at once", goal: Goal::None, run: two_producers },
    Row { name: "cancel", goal: Goal::ThreadS(3.0), run: cancel },
    Row {
        name: "churn: cancel and schedule",
        goal: Goal::ProcessF(6.0),
        run: |size| churn(size, Precision::Tick),
    },
    Row {
        name: "churn, Exact",
        goal: Goal::ProcessF(6.0),
        run: |size| churn(size, Precision::Exact),
    },
    Row {
        name: "fire inline, spread over 100 ms",
        goal: Goal::Wall(125.0),
        run: |size| fire(size, 100_000),
    },
    Row {
        name: "fire inline, all at one instant",
        goal: Goal::Wall(60.0),
        run: |size| fire(size, 1),
    },
    Row {
        name: "hand over to a pool, in batches",
        goal: Goal::Tick(10.0),
        run: |size| hand_over(size, false),
    },
    Row {
        name: "hand over to a pool, one by one",
        goal: Goal::None,
        run: |size| hand_over(size, true),
    },
    Row { name: "a repetition", goal: Goal::None, run: repetition },
    Row {
        name: "a tick, 1k pending over an hour",
        goal: Goal::Wall(300.0),
        run: |size| tick(size, 1_000),
    },
    Row { name: "a tick, 100k pending", goal: Goal::Wall(300.0), run: |size| tick(size, 100_000) },
    Row { name: "a tick, 1M pending", goal: Goal::Wall(300.0), run: |size| tick(size, 1_000_000) },
    Row {
        name: "a tick, 10M pending",
        goal: Goal::Wall(300.0),
        run: |size| tick(size, 10_000_000),
    },
];

fn scheduler(precision: Precision) -> Scheduler {
    let builder = Scheduler::builder().executor(Inline).precision(precision).thread_name("ticks");
    builder.build().expect("a tick thread")
}

/// Schedules `count` tasks, and lets them fire in random order, so that their memory comes back as in a running program.
fn fire_all(scheduler: &Scheduler, count: usize) {
    let (mut random, soon) = (Random(7), Instant::now() + SECOND / 2);
    for _ in 0..count {
        let due = soon + Duration::from_micros(random.below(100_000));
        scheduler.schedule_at(due, || ()).expect("open");
    }
    while scheduler.pending() > 0 {
        thread::sleep(MILLI);
    }
}

/// Schedules a timeout for each delay, into a vector that has room.
fn schedule_all(scheduler: &Scheduler, delays: &[Duration], handles: &mut [Option<Cancellable>]) {
    let counter = Arc::new(AtomicU64::new(0));
    for (number, (delay, handle)) in delays.iter().zip(handles).enumerate() {
        let counter = Arc::clone(&counter);
        let task = move || counter.store(number as u64, Ordering::Relaxed);
        *handle = Some(scheduler.schedule_once(*delay, task).expect("open"));
    }
}

fn delays(count: usize) -> Vec<Duration> {
    let mut random = Random(3);
    (0..count).map(|_| random.timeout()).collect()
}

fn room(count: usize) -> Vec<Option<Cancellable>> {
    let mut handles = Vec::new();
    handles.resize_with(count, || None);
    handles
}

fn cancel_all(handles: &[Option<Cancellable>]) {
    handles.iter().flatten().for_each(|handle| _ = handle.cancel());
}

fn after_fires(size: &Size, precision: Precision) -> Times {
    let scheduler = scheduler(precision);
    fire_all(&scheduler, size.tasks);
    let (delays, mut handles) = (delays(size.tasks), room(size.tasks));
    let times = measure(size.tasks, || schedule_all(&scheduler, &delays, &mut handles));
    cancel_all(&handles);
    times
}

fn after_cancels(size: &Size) -> Times {
    let scheduler = scheduler(Precision::Tick);
    let (delays, mut handles) = (delays(size.tasks), room(size.tasks));
    schedule_all(&scheduler, &delays, &mut handles);
    cancel_all(&handles);
    thread::sleep(SETTLE);
    let times = measure(size.tasks, || schedule_all(&scheduler, &delays, &mut handles));
    cancel_all(&handles);
    times
}

fn two_producers(size: &Size) -> Times {
    let scheduler = scheduler(Precision::Tick);
    fire_all(&scheduler, 2 * size.tasks);
    let start = Arc::new(Barrier::new(2));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (scheduler, start, tasks) = (scheduler.clone(), Arc::clone(&start), size.tasks);
            thread::spawn(move || {
                let (delays, mut handles) = (delays(tasks), room(tasks));
                start.wait();
                let times = measure(tasks, || schedule_all(&scheduler, &delays, &mut handles));
                cancel_all(&handles);
                times
            })
        })
        .collect();
    let times: Vec<_> =
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let wall = times[0].wall.max(times[1].wall);
    let thread = times[0].thread.midpoint(times[1].thread);
    // The times of the tick thread and of the process are for the tasks of both threads.
    Times { wall, thread, tick: times[0].tick / 2.0, process: times[0].process / 2.0 }
}

fn cancel(size: &Size) -> Times {
    let scheduler = scheduler(Precision::Tick);
    fire_all(&scheduler, size.tasks);
    let (delays, mut handles) = (delays(size.tasks), room(size.tasks));
    schedule_all(&scheduler, &delays, &mut handles);
    thread::sleep(SETTLE);
    measure(size.tasks, || cancel_all(&handles))
}

fn churn(size: &Size, precision: Precision) -> Times {
    let scheduler = scheduler(precision);
    let outstanding = (size.tasks / 10).max(1);
    let schedule = || scheduler.schedule_once(30 * SECOND, || ()).expect("open");
    let mut ring: VecDeque<_> = (0..outstanding).map(|_| schedule()).collect();
    let mut round = |pairs: usize| {
        for _ in 0..pairs {
            if let Some(oldest) = ring.pop_front() {
                oldest.cancel();
            }
            ring.push_back(schedule());
        }
    };
    round(size.tasks / 2);
    measure(size.tasks, || round(size.tasks))
}

/// Schedules tasks that are due within this many microseconds. Returns the time from the first deadline to the end of the last
/// run.
fn fire(size: &Size, window: u64) -> Times {
    let scheduler = scheduler(Precision::Tick);
    fire_all(&scheduler, size.tasks);
    let ran = Arc::new(AtomicU64::new(0));
    let (mut random, due) = (Random(5), Instant::now() + SECOND);
    for _ in 0..size.tasks {
        let (ran, due) = (Arc::clone(&ran), due + Duration::from_micros(random.below(window)));
        let task = move || {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        scheduler.schedule_at(due, task).expect("open");
    }
    thread::sleep(due.saturating_duration_since(Instant::now()));
    measure(size.tasks, || {
        while ran.load(Ordering::Relaxed) < size.tasks as u64 {
            thread::sleep(MILLI / 4);
        }
    })
}

/// A pool that takes its tasks one by one, like an executor without `execute_batch`.
struct OneByOne(ThreadPool);

impl Executor for OneByOne {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.execute(task)
    }
}

/// Measures the hand-over of tasks that are due at one instant, on the thread that turns the driver.
fn hand_over(size: &Size, one_by_one: bool) -> Times {
    let pool = ThreadPool::new(1);
    let builder = Scheduler::builder();
    let builder =
        if one_by_one { builder.executor(OneByOne(pool)) } else { builder.executor(pool) };
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let tasks = size.tasks / 4;
    let mut times = Times::default();
    for _ in 0..2 {
        (0..tasks).for_each(|_| drop(scheduler.schedule_once(SECOND, || ()).expect("open")));
        driver.turn(); // takes them in
        times = measure(tasks, || _ = driver.advance(SECOND));
        while scheduler.pending() > 0 {
            thread::sleep(MILLI);
        }
    }
    Times { tick: times.thread, thread: 0.0, ..times }
}

fn repetition(size: &Size) -> Times {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    for _ in 0..1_000 {
        scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    }
    let rounds = u32::try_from(size.tasks / 1_000).expect("few").max(1);
    driver.advance(SECOND * rounds);
    measure(rounds as usize * 1_000, || _ = driver.advance(SECOND * rounds))
}

/// Measures a tick of the bare wheel with this many entries, due over an hour. Each due entry goes back in.
fn tick(size: &Size, pending: u64) -> Times {
    const HOUR: u64 = 3_600_000;
    let mut random = Random(1);
    let mut wheel = Wheel::new(4096);
    (0..pending.min(size.most_pending)).for_each(|id| _ = wheel.insert(1 + random.below(HOUR), id));
    let mut due = Vec::new();
    let mut turn = |ticks: usize| {
        for _ in 0..ticks {
            let now = wheel.now() + 1;
            due.extend(wheel.advance(now));
            for (_, id) in due.drain(..) {
                wheel.insert(now + HOUR, id);
            }
        }
    };
    turn(5_000);
    let ticks = size.tasks / 20;
    measure(ticks, || turn(ticks))
}

// ----- the table ---------------------------------------------------------------------------

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let is_test = arguments.iter().any(|argument| argument == "--test");
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let size = if is_test {
        Size { tasks: 10_000, most_pending: 10_000 }
    } else {
        Size { tasks: 1_000_000, most_pending: u64::MAX }
    };
    let rounds = if is_test { 1 } else { 3 };
    println!(
        "{:38}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}   goal",
        "ns, and in F", "wall", "thread", "tick", "all", "thr/F", "all/F"
    );
    for row in
        ROWS.iter().filter(|row| wanted.is_none_or(|wanted| row.name.contains(wanted.as_str())))
    {
        let mut all: Vec<_> = (0..rounds).map(|_| (floor(), (row.run)(&size))).collect();
        all.sort_by(|(_, one), (_, other)| one.process.total_cmp(&other.process));
        let (floor, times) = all[all.len() / 2];
        let Times { wall, thread, tick, process } = times;
        println!(
            "{:38}{wall:8.0}{thread:8.0}{tick:8.0}{process:8.0}{:8.1}{:8.1}   {}",
            row.name,
            thread / floor.f,
            process / floor.f,
            if is_test { String::new() } else { judge(row.goal, times, floor) },
        );
    }
    let Floor { f, s } = floor();
    println!("\nF = {f:.1} ns, S = {s:.1} ns; times of the last row's minute");
}

fn judge(goal: Goal, times: Times, floor: Floor) -> String {
    let (value, most, unit) = match goal {
        Goal::ThreadF(most) => (times.thread / floor.f, most, "F of the thread"),
        Goal::ProcessF(most) => (times.process / floor.f, most, "F of all threads"),
        Goal::ThreadS(most) => (times.thread / floor.s, most, "S of the thread"),
        Goal::Wall(most) => (times.wall, most, "ns"),
        Goal::Tick(most) => (times.tick, most, "ns of the tick thread"),
        Goal::None => return "-".into(),
    };
    let met = if value <= most { "met" } else { "missed" };
    format!("{met}: {value:.1} of {most} {unit}")
}
