//! Timers that are overrun: floods of several producers, and for tickwheel alone stalls, a sick tenant and
//! thousands of idle threads. `tests/alone/overload.rs` has the same with bounds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{DueTask, Inline, Observer, Rejected, Scheduler};

use crate::measure::{Random, cpu_of, peak_resident, process_cpu, resident};
use crate::peers::{HashWheel, Held, Log, OnDefault, OnTickThread, Peer, Sleep, Tickwheel};
use crate::workloads::{Figures, MILLION, SETTLE, per};

pub(crate) const PEERS: &[&str] =
    &["tickwheel", "tickwheel, default executor", "tokio Sleep", "hierarchical_hash_wheel_timer"];

pub(crate) const ALL: &[(&str, &str)] = &[
    (
        "F1-churn-2",
        "5 s of 2 producers at full speed that keep 1,000 timeouts of 30 s: a task of 10 ms, memory",
    ),
    ("F1-churn-8", "8 producers"),
    ("F1-cancel-2", "2 producers that schedule 30 s and cancel at once"),
    ("F1-cancel-8", "8 producers"),
    ("F1-sleeps-2", "2 producers that poll a sleep of 30 s once and drop it"),
    ("F1-sleeps-8", "8 producers"),
    ("F1-zero-2", "2 producers of tasks that are due at once"),
    ("F1-zero-8", "8 producers"),
];

pub(crate) const OURS: &[&str] = &["tickwheel"];

pub(crate) const OURS_ALONE: &[(&str, &str)] = &[
    ("F2", "1M taken in after a stall"),
    ("F3", "1,000 tasks beside 100,000 of an executor that refuses: how late"),
    ("F4", "a wake-up beside idle threads that have scheduled once"),
];

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    let mut words = workload.split('-').skip(1);
    let kind = words.next().expect("a kind");
    let producers = words.next().and_then(|word| word.parse().ok()).expect("a number");
    match peer {
        "tickwheel" => flood::<Tickwheel<OnTickThread>>(kind, producers),
        "tickwheel, default executor" => flood::<Tickwheel<OnDefault>>(kind, producers),
        "tokio Sleep" => flood::<Sleep>(kind, producers),
        "hierarchical_hash_wheel_timer" => flood::<HashWheel>(kind, producers),
        other => panic!("no such timer: {other}"),
    }
}

pub(crate) fn run_ours(_: &str, workload: &str) -> Figures {
    match workload {
        "F2" => stalls(),
        "F3" => sick_tenant(),
        "F4" => many_threads(),
        other => panic!("no such workload: {other}"),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The element at a share of a sorted list, in milliseconds.
fn at(sorted: &[Duration], share: f64) -> f64 {
    millis(sorted[((sorted.len() - 1) as f64 * share) as usize])
}

// ----- F1: floods --------------------------------------------------------------------------

const FLOOD: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
/// A timer without a bound may not take the machine along.
const GUARD: u64 = 6_000_000_000;

/// Schedules at full speed; how much. None: this timer has no such thing.
fn produce<P: Peer>(peer: &mut P, kind: &str, stop: &AtomicBool) -> Option<u64> {
    let held: Held = Arc::new(AtomicU64::new(0));
    let (log, mut ring, mut done) = (Log::new(1, 0), VecDeque::with_capacity(1_001), 0);
    while !stop.load(Ordering::Relaxed) {
        match kind {
            "churn" => {
                ring.push_back(peer.schedule(TIMEOUT, done, &held));
                if ring.len() > 1_000 {
                    ring.pop_front().into_iter().for_each(|oldest| peer.cancel(oldest));
                }
            }
            "cancel" => {
                let handle = peer.schedule(TIMEOUT, done, &held);
                peer.cancel(handle);
            }
            "sleeps" if !peer.sleep(TIMEOUT) => return None,
            "sleeps" => {}
            _ => peer.start_all(&[Instant::now()], &log),
        }
        done += 1;
    }
    ring.into_iter().for_each(|handle| peer.cancel(handle));
    Some(done)
}

/// A task of 10 ms every 100 ms.
fn victims<P: Peer>(peer: &mut P, stop: &AtomicBool) -> Vec<(Instant, Arc<Log>)> {
    let mut logs = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (due, log) = (Instant::now() + Duration::from_millis(10), Log::new(1, 1));
        peer.start_all(&[due], &log);
        logs.push((due, log));
        thread::sleep(Duration::from_millis(100));
    }
    logs
}

fn flood<P: Peer>(kind: &str, producers: usize) -> Figures {
    let (peer, stop, start) = (P::new(), Arc::new(AtomicBool::new(false)), Instant::now());
    let kind: Arc<str> = Arc::from(kind);
    let producers: Vec<_> = (0..producers)
        .map(|_| {
            let (mut peer, place, stop) =
                (peer.for_another_thread(), peer.for_another_thread(), Arc::clone(&stop));
            let kind = Arc::clone(&kind);
            thread::spawn(move || place.enter(|| produce(&mut peer, &kind, &stop)))
        })
        .collect();
    let (mut other, place) = (peer.for_another_thread(), peer.for_another_thread());
    let until = Arc::clone(&stop);
    let victims = thread::spawn(move || place.enter(|| victims(&mut other, &until)));
    while start.elapsed() < FLOOD && resident() < GUARD {
        thread::sleep(Duration::from_millis(20));
        if producers.iter().all(std::thread::JoinHandle::is_finished) {
            stop.store(true, Ordering::Relaxed);
            return Figures::new();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let lasted = start.elapsed();
    let done: Option<u64> =
        producers.into_iter().map(|producer| producer.join().expect("no panic")).sum();
    let Some(done) = done else { return Figures::new() };
    let victims = victims.join().expect("no panic");
    // Those that have not run in so long count as this late.
    let patience = Instant::now() + Duration::from_secs(10);
    while victims.iter().any(|(_, log)| log.count() == 0) && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    let late = |(due, log): &(Instant, Arc<Log>)| {
        let ran = log.lateness().next().map(|late| Duration::from_nanos(late.max(0) as u64));
        ran.unwrap_or_else(|| due.elapsed())
    };
    let mut late: Vec<_> = victims.iter().map(late).collect();
    late.sort_unstable();
    vec![
        ("victim p50 ms", at(&late, 0.5)),
        ("worst ms", at(&late, 1.0)),
        ("peak MB", peak_resident() as f64 / 1e6),
        ("M/s", done as f64 / lasted.as_secs_f64() / 1e6),
    ]
}

// ----- F2: after a stall -------------------------------------------------------------------

/// What the tick thread has taken in, and when that was all.
struct Taken {
    start: Instant,
    tasks: AtomicUsize,
    all_in_at: AtomicU64,
    first_run_at: AtomicU64,
}

impl Taken {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

struct Watch(Arc<Taken>);

impl Observer for Watch {
    fn took_in(&self, tasks: usize) {
        if self.0.tasks.fetch_add(tasks, Ordering::Relaxed) + tasks > MILLION {
            let now = self.0.now();
            let _ = self.0.all_in_at.compare_exchange(0, now, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Nanoseconds from the release until all is in, and until the first due task runs.
fn stall(lanes: usize) -> [u64; 2] {
    let taken = Arc::new(Taken {
        start: Instant::now(),
        tasks: AtomicUsize::new(0),
        all_in_at: AtomicU64::new(0),
        first_run_at: AtomicU64::new(0),
    });
    let builder = Scheduler::builder().executor(Inline).observer(Watch(Arc::clone(&taken)));
    let scheduler = builder.build().expect("a tick thread");
    let ((blocks, is_blocked), (release, wait)) = (mpsc::channel(), mpsc::channel::<()>());
    let block = move || _ = (blocks.send(()), wait.recv());
    scheduler.schedule_once(Duration::ZERO, block).expect("open");
    is_blocked.recv().expect("it runs");
    thread::scope(|scope| {
        for lane in 0..lanes {
            let (scheduler, taken) = (&scheduler, &taken);
            scope.spawn(move || {
                let mut random = Random(lane as u64);
                for task in 0..MILLION / lanes {
                    let later = random.micros(60_000_000, 120_000_000);
                    let delay = if task % 1_000 == 500 { Duration::ZERO } else { later };
                    let taken = Arc::clone(taken);
                    let task = move || {
                        let now = taken.now();
                        let first = &taken.first_run_at;
                        let _ =
                            first.compare_exchange(0, now, Ordering::Release, Ordering::Relaxed);
                    };
                    scheduler.schedule_once(delay, task).expect("open");
                }
            });
        }
    });
    let released = taken.now();
    drop(release);
    let patience = Instant::now() + Duration::from_secs(60);
    let is_over = || {
        [&taken.all_in_at, &taken.first_run_at].iter().all(|at| at.load(Ordering::Acquire) > 0)
            || Instant::now() > patience
    };
    while !is_over() {
        thread::sleep(Duration::from_millis(1));
    }
    [&taken.all_in_at, &taken.first_run_at].map(|at| match at.load(Ordering::Acquire) {
        0 => taken.now() - released,
        at => at.saturating_sub(released),
    })
}

fn stalls() -> Figures {
    let [one, two, many] = [1, 2, 16].map(stall);
    vec![
        ("1 lane, ns a task", per(one[0], MILLION)),
        ("2 lanes", per(two[0], MILLION)),
        ("16 lanes", per(many[0], MILLION)),
        ("first run after 1 lane, ms", one[1] as f64 / 1e6),
        ("2", two[1] as f64 / 1e6),
        ("16", many[1] as f64 / 1e6),
    ]
}

// ----- F3: a sick tenant -------------------------------------------------------------------

/// How late a thousand tasks within two seconds are. Those that have not run 10 s later count as that late.
fn healthy(scheduler: &Scheduler) -> Vec<Duration> {
    const TASKS: u32 = 1_000;
    let (ran, runs) = mpsc::channel();
    let start = Instant::now() + Duration::from_millis(20);
    let due = move |task: u32| start + Duration::from_secs(2) * task / TASKS;
    for task in 0..TASKS {
        let ran = ran.clone();
        let note = move || _ = ran.send(due(task).elapsed());
        scheduler.schedule_at(due(task), note).expect("open");
    }
    let patience = due(TASKS) + Duration::from_secs(10);
    let left = || patience.saturating_duration_since(Instant::now());
    let mut late: Vec<Duration> =
        (0..TASKS).map_while(|_| runs.recv_timeout(left()).ok()).collect();
    late.resize(TASKS as usize, Duration::from_secs(10));
    late.sort_unstable();
    late
}

fn sick_tenant() -> Figures {
    const TASKS: u32 = 100_000;
    const WATCHED: Duration = Duration::from_secs(2);
    struct Sick;
    impl tickwheel::Executor for Sick {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::new(task))
        }
    }
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let alone = healthy(&scheduler);
    let sick = scheduler.with_executor(Sick);
    for task in 0..TASKS {
        let delay = Duration::from_millis(200) + Duration::from_secs(1) * task / TASKS;
        sick.schedule_once(delay, || ()).expect("open");
    }
    thread::sleep(SETTLE);
    let beside = healthy(&scheduler);
    let (wakeups, cpu) = (scheduler.stats().wakeups(), process_cpu());
    thread::sleep(WATCHED);
    let seconds = WATCHED.as_secs_f64();
    vec![
        ("alone, p50 ms", at(&alone, 0.5)),
        ("alone, p99 ms", at(&alone, 0.99)),
        ("beside it, p50 ms", at(&beside, 0.5)),
        ("beside it, p99 ms", at(&beside, 0.99)),
        ("CPU ms/s", (process_cpu() - cpu) as f64 / 1e6 / seconds),
        ("wake-ups/s", (scheduler.stats().wakeups() - wakeups) as f64 / seconds),
    ]
}

// ----- F4: many threads --------------------------------------------------------------------

/// Microseconds of the tick thread for a single task, and of `stats()`.
fn beside(scheduler: &Scheduler, name: &str) -> [f64; 2] {
    const TASKS: u32 = 500;
    thread::sleep(SETTLE);
    let before = cpu_of(name);
    for _ in 0..TASKS {
        let (ran, runs) = mpsc::channel();
        let task = move || _ = ran.send(());
        scheduler.schedule_once(Duration::from_millis(1), task).expect("open");
        runs.recv().expect("it runs");
    }
    thread::sleep(Duration::from_millis(20));
    let each = (cpu_of(name) - before) as f64 / 1e3 / f64::from(TASKS);
    let start = Instant::now();
    let _ = scheduler.stats();
    [each, start.elapsed().as_secs_f64() * 1e6]
}

fn many_threads() -> Figures {
    const NAME: &str = "crowded";
    let builder = Scheduler::builder().executor(Inline).thread_name(NAME);
    let scheduler = builder.build().expect("a tick thread");
    let (ready, are_ready) = mpsc::channel();
    let add = |threads: usize| {
        for _ in 0..threads {
            let (scheduler, ready) = (scheduler.clone(), ready.clone());
            let idle = move || {
                scheduler.schedule_once(Duration::from_secs(3_600), || ()).expect("open").cancel();
                let _ = ready.send(());
                loop {
                    // Until the process ends. Not parked: the system looks through all that are, at each wake-up of one.
                    thread::sleep(Duration::from_secs(3_600));
                }
            };
            thread::Builder::new().stack_size(64 * 1024).spawn(idle).expect("a thread");
        }
        (0..threads).for_each(|_| are_ready.recv().expect("it schedules"));
    };
    add(64);
    let few = beside(&scheduler, NAME);
    add(8_000 - 64);
    let many = beside(&scheduler, NAME);
    vec![
        ("64 threads, us a wake-up", few[0]),
        ("8000 threads", many[0]),
        ("stats() beside 64, us", few[1]),
        ("beside 8000", many[1]),
    ]
}
