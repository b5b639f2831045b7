//! The cost of an operation in instructions and allocations. These numbers do not depend on the load of the machine, and each
//! has a limit.
//!
//! `cargo bench --bench gate`. It fails when a limit is passed. Instructions are counted by valgrind's
//! callgrind; without valgrind only allocations are. After a change that is worth more instructions, raise
//! the limit in [`OPERATIONS`], and say in the commit what for. A limit of 0.002 allocations leaves room for
//! the few lists that double now and then.

#![expect(clippy::cast_precision_loss, reason = "counts of some thousands fit")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::env;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tickwheel::delay::DelayQueue;
use tickwheel::pool::{DelayedWorkQueue, Key, ScheduledThreadPool};
use tickwheel::rx::ExecutorScheduler;
use tickwheel::wheel::Wheel;
use tickwheel::{
    Cancellable, Clock, Driver, Inline, ManualClock, Scheduler, SystemClock, ThreadPool, time,
};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of operations that are measured, after as many that are not.
const TIMES: u32 = 4_096;

const SECOND: Duration = Duration::from_secs(1);

/// An operation, and the most that it may cost.
struct Operation {
    name: &'static str,
    instructions: f64,
    allocations: f64,
    /// Runs the operation [`TIMES`] times inside of [`measured`].
    run: fn(&mut Bench),
}

// Limits are 3 to 4 % above what was counted. A change elsewhere in the crate may move a count by 1 %, because it divides the
// crate into other codegen units.
const OPERATIONS: &[Operation] = &[
    Operation { name: "schedule", instructions: 304.0, allocations: 0.002, run: schedule },
    Operation { name: "cancel", instructions: 152.0, allocations: 0.002, run: cancel },
    Operation {
        name: "cancel-drop",
        instructions: 201.0,
        allocations: 0.002,
        run: cancel_and_drop,
    },
    Operation { name: "reset", instructions: 149.0, allocations: 0.0, run: reset },
    Operation { name: "churn", instructions: 508.0, allocations: 0.002, run: churn },
    Operation {
        name: "churn-sweep",
        instructions: 675.0,
        allocations: 0.002,
        run: churn_with_sweep,
    },
    Operation { name: "take-in", instructions: 96.0, allocations: 0.002, run: take_in },
    Operation {
        name: "take-in-dead",
        instructions: 46.0,
        allocations: 0.002,
        run: take_in_cancelled,
    },
    Operation { name: "fire-inline", instructions: 434.0, allocations: 0.002, run: fire },
    Operation { name: "hand-over", instructions: 32.0, allocations: 0.002, run: hand_over },
    Operation { name: "repetition", instructions: 688.0, allocations: 0.002, run: repetition },
    Operation { name: "timeout-ready", instructions: 154.0, allocations: 0.0, run: timeout_ready },
    Operation {
        name: "timeout-pending",
        instructions: 660.0,
        allocations: 0.002,
        run: timeout_pending,
    },
    Operation { name: "wheel-tick", instructions: 273.0, allocations: 0.002, run: wheel_tick },
    Operation { name: "delay-insert", instructions: 522.0, allocations: 0.002, run: delay_insert },
    Operation { name: "delay-reset", instructions: 316.0, allocations: 0.0, run: delay_reset },
    // 487 to 521, by whether the sweep of a chain becomes a call in this build.
    Operation { name: "delay-remove", instructions: 525.0, allocations: 0.003, run: delay_remove },
    Operation { name: "delay-take", instructions: 1450.0, allocations: 0.2, run: delay_take },
    Operation {
        name: "delay-take-equal",
        instructions: 1436.0,
        allocations: 0.2,
        run: delay_take_equal,
    },
    Operation { name: "queue-offer", instructions: 284.0, allocations: 0.02, run: queue_offer },
    Operation { name: "queue-reset", instructions: 145.0, allocations: 0.0, run: queue_reset },
    Operation { name: "queue-remove", instructions: 209.0, allocations: 0.0, run: queue_remove },
    Operation { name: "queue-poll", instructions: 657.0, allocations: 0.02, run: queue_poll },
    Operation { name: "pool-cancel", instructions: 1080.0, allocations: 1.002, run: pool_cancel },
    Operation { name: "rx-cancel", instructions: 2160.0, allocations: 1.002, run: rx_cancel },
];

struct Bench {
    scheduler: Scheduler,
    driver: Driver,
    handles: Vec<Cancellable>,
    delays: Vec<Duration>,
}

impl Bench {
    fn new() -> Bench {
        let (scheduler, driver) =
            Scheduler::builder().executor(Inline).build_driven().expect("good settings");
        let delays = (0..TIMES).map(|n| SECOND * (5 + n * 31 % 55)).collect();
        Bench { scheduler, driver, handles: Vec::with_capacity(TIMES as usize), delays }
    }

    fn schedule_all(&mut self) {
        for delay in &self.delays {
            let (scheduler, captured) = (&self.scheduler, *delay);
            let task = move || _ = black_box(captured);
            self.handles.push(scheduler.schedule_once(*delay, task).expect("open"));
        }
    }

    fn cancel_all(&mut self) {
        self.handles.iter().for_each(|handle| _ = handle.cancel());
    }
}

/// The code that is counted. callgrind gets the name of this function.
#[inline(never)]
fn measured(work: impl FnOnce()) {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    COUNTED.store(allocations, Ordering::Relaxed);
}

/// Returns the number of allocations in the last call of [`measured`].
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// Runs everything twice, so that the second time finds the memory that the first one has allocated.
fn schedule(bench: &mut Bench) {
    bench.schedule_all();
    bench.driver.advance(SECOND * 100);
    bench.handles.clear();
    measured(|| bench.schedule_all());
}

fn cancel(bench: &mut Bench) {
    bench.schedule_all();
    bench.driver.turn();
    measured(|| bench.cancel_all());
}

/// The closure owns something.
fn cancel_and_drop(bench: &mut Bench) {
    let owned = Arc::new(());
    for delay in &bench.delays {
        let captured = Arc::clone(&owned);
        let task = move || drop(black_box(captured));
        bench.handles.push(bench.scheduler.schedule_once(*delay, task).expect("open"));
    }
    bench.driver.turn();
    measured(|| bench.cancel_all());
    assert_eq!(Arc::strong_count(&owned), 1);
}

/// To later, on the system's clock, to an instant that is known.
fn reset(_: &mut Bench) {
    let builder = Scheduler::builder().executor(Inline).clock(SystemClock);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let later = scheduler.now() + SECOND * 3600;
    let task = |_| scheduler.schedule_at(later, || ()).expect("open");
    let handles: Vec<_> = (0..TIMES).map(task).collect();
    driver.turn();
    handles.iter().for_each(|handle| assert!(handle.reset_at(later + SECOND)));
    measured(|| handles.iter().for_each(|handle| assert!(handle.reset_at(later + SECOND * 2))));
}

/// The future is ready at the first poll.
fn timeout_ready(_: &mut Bench) {
    let mut context = Context::from_waker(Waker::noop());
    measured(|| {
        for _ in 0..TIMES {
            let limited = pin!(time::timeout(black_box(SECOND * 30), std::future::ready(())));
            assert_eq!(limited.poll(&mut context), Poll::Ready(Ok(())));
        }
    });
}

/// It is pending once, so its timer is set, and cancelled by the drop.
fn timeout_pending(_: &mut Bench) {
    let (scheduler, driver) =
        Scheduler::builder().clock(SystemClock).build_driven().expect("good settings");
    let mut context = Context::from_waker(Waker::noop());
    let mut round = || {
        for _ in 0..TIMES {
            let limited =
                pin!(scheduler.timeout(black_box(SECOND * 30), std::future::pending::<()>()));
            assert!(limited.poll(&mut context).is_pending());
        }
    };
    round();
    driver.turn();
    measured(round);
}

/// Every third round ends with a sweep. This one has none.
fn churn(bench: &mut Bench) {
    churn_after(9, bench);
}

fn churn_with_sweep(bench: &mut Bench) {
    churn_after(8, bench);
}

fn churn_after(rounds: usize, bench: &mut Bench) {
    bench.schedule_all();
    bench.driver.turn();
    let mut round = || {
        for handle in &mut bench.handles {
            handle.cancel();
            *handle = bench.scheduler.schedule_once(SECOND * 30, || ()).expect("open");
        }
        bench.driver.turn();
    };
    (0..rounds).for_each(|_| round());
    measured(round);
}

fn take_in(bench: &mut Bench) {
    bench.schedule_all();
    bench.driver.advance(SECOND * 100);
    bench.handles.clear();
    bench.schedule_all();
    measured(|| _ = bench.driver.turn());
}

fn take_in_cancelled(bench: &mut Bench) {
    bench.schedule_all();
    bench.handles.drain(..).for_each(|handle| _ = handle.cancel());
    bench.driver.turn(); // it finds that most are cancelled
    bench.schedule_all();
    bench.handles.drain(..).for_each(|handle| _ = handle.cancel());
    measured(|| _ = bench.driver.turn());
}

fn fire(bench: &mut Bench) {
    bench.schedule_all();
    bench.driver.advance(SECOND * 100);
    bench.handles.clear();
    bench.schedule_all();
    bench.driver.turn();
    measured(|| _ = bench.driver.advance(SECOND * 100));
}

fn hand_over(bench: &mut Bench) {
    let builder = Scheduler::builder().executor(ThreadPool::new(1));
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let give = || {
        (0..TIMES).for_each(|_| drop(scheduler.schedule_once(SECOND, || ()).expect("open")));
        driver.turn();
    };
    for _ in 0..3 {
        give();
        driver.advance(SECOND);
        while scheduler.pending() > 0 {
            std::thread::yield_now();
        }
    }
    give();
    measured(|| _ = driver.advance(SECOND));
    bench.driver.turn();
}

fn repetition(bench: &mut Bench) {
    for _ in 0..64 {
        bench.scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    }
    bench.driver.advance(SECOND * 64);
    measured(|| _ = bench.driver.advance(SECOND * (TIMES / 64)));
}

fn wheel_tick(_: &mut Bench) {
    let mut wheel = Wheel::new(4096);
    for id in 0..100_000_u64 {
        wheel.insert(1 + id * 36, id);
    }
    wheel.advance(10_000).count();
    measured(|| {
        for _ in 0..TIMES {
            let now = wheel.now() + 1;
            wheel.advance(now).for_each(|due| _ = black_box(due));
        }
    });
}

// ----- the layers that keep time -----------------------------------------------------------

/// Returns a delay queue that has had all values once, and the delays and keys of them, in no order.
fn delay_queue(bench: &Bench) -> (DelayQueue<u64, u64>, Vec<(u64, Duration)>) {
    let queue = DelayQueue::new(&bench.scheduler);
    let keys = (0..u64::from(TIMES)).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let items: Vec<_> = keys.zip(bench.delays.iter().copied()).collect();
    put_all(&queue, &items);
    items.iter().for_each(|(key, _)| assert!(queue.remove(key).is_some()));
    (queue, items)
}

fn put_all(queue: &DelayQueue<u64, u64>, items: &[(u64, Duration)]) {
    for (key, delay) in items {
        assert!(queue.insert(*key, *key, *delay).expect("open").is_none());
    }
}

fn delay_insert(bench: &mut Bench) {
    let (queue, items) = delay_queue(bench);
    measured(|| put_all(&queue, &items));
}

fn delay_reset(bench: &mut Bench) {
    let (queue, items) = delay_queue(bench);
    put_all(&queue, &items);
    measured(|| items.iter().for_each(|(key, _)| assert!(queue.reset(key, SECOND * 90))));
}

fn delay_remove(bench: &mut Bench) {
    let (queue, items) = delay_queue(bench);
    put_all(&queue, &items);
    measured(|| items.iter().for_each(|(key, _)| assert!(queue.remove(key).is_some())));
}

/// In all shards of the queue the first value is due at the same time, again and again.
fn delay_take_equal(bench: &mut Bench) {
    let (queue, items) = delay_queue(bench);
    put_all(&queue, &items);
    bench.driver.advance(SECOND * 100);
    measured(|| (0..TIMES).for_each(|_| assert!(queue.try_next().is_some())));
}

fn delay_take(bench: &mut Bench) {
    let (queue, mut items) = delay_queue(bench);
    (1..).zip(&mut items).for_each(|(nth, (_, delay))| *delay += Duration::from_micros(nth));
    put_all(&queue, &items);
    bench.driver.advance(SECOND * 100);
    measured(|| (0..TIMES).for_each(|_| assert!(queue.try_next().is_some())));
}

/// Returns a queue that has had all items once.
fn work_queue(bench: &Bench) -> (DelayedWorkQueue<u64>, ManualClock, Vec<Key>) {
    let clock = ManualClock::new();
    let (queue, mut keys) = (DelayedWorkQueue::with_clock(clock.clone()), Vec::new());
    offer_all(bench, &queue, &clock, &mut keys);
    keys.drain(..).for_each(|key| assert!(queue.remove(key).is_some()));
    (queue, clock, keys)
}

fn offer_all(
    bench: &Bench,
    queue: &DelayedWorkQueue<u64>,
    clock: &ManualClock,
    keys: &mut Vec<Key>,
) {
    let now = clock.now();
    keys.extend(bench.delays.iter().map(|delay| queue.offer(now + *delay, 7).expect("open")));
}

fn queue_offer(bench: &mut Bench) {
    let (queue, clock, mut keys) = work_queue(bench);
    measured(|| offer_all(bench, &queue, &clock, &mut keys));
}

fn queue_reset(bench: &mut Bench) {
    let (queue, clock, mut keys) = work_queue(bench);
    offer_all(bench, &queue, &clock, &mut keys);
    let later = clock.now() + SECOND * 90;
    measured(|| keys.iter().for_each(|key| assert!(queue.reset(*key, later).is_some())));
}

fn queue_remove(bench: &mut Bench) {
    let (queue, clock, mut keys) = work_queue(bench);
    offer_all(bench, &queue, &clock, &mut keys);
    measured(|| keys.iter().for_each(|key| assert!(queue.remove(*key).is_some())));
}

fn queue_poll(bench: &mut Bench) {
    let (queue, clock, mut keys) = work_queue(bench);
    offer_all(bench, &queue, &clock, &mut keys);
    clock.advance(SECOND * 100);
    measured(|| (0..TIMES).for_each(|_| assert!(queue.poll().is_some())));
}

/// A timeout of a pool that is not needed in the end.
fn pool_cancel(_: &mut Bench) {
    let pool = ScheduledThreadPool::builder().threads(1).build().expect("good settings");
    let round = || {
        for _ in 0..TIMES {
            assert!(pool.schedule(black_box(SECOND * 30), || ()).expect("open").cancel());
        }
    };
    round();
    measured(round);
}

/// The same of a worker.
fn rx_cancel(_: &mut Bench) {
    let (scheduler, driver) =
        Scheduler::builder().clock(SystemClock).build_driven().expect("good settings");
    let worker = ExecutorScheduler::new(Inline, &scheduler).worker();
    let round = || {
        for _ in 0..TIMES {
            assert!(worker.schedule_after(black_box(SECOND * 30), || ()).cancel());
        }
    };
    round();
    driver.turn();
    measured(round);
}

// ----- counting ----------------------------------------------------------------------------

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [flag, name] = &arguments[..] {
        if flag == "--one" {
            let operation = OPERATIONS.iter().find(|operation| operation.name == name);
            (operation.expect("one of the list").run)(&mut Bench::new());
            println!("{}", COUNTED.load(Ordering::Relaxed));
            return ExitCode::SUCCESS;
        }
    }
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !has_valgrind {
        println!("skipped: instructions, because valgrind is not installed");
    }
    println!(
        "{:18}{:>14}{:>8}{:>14}{:>8}",
        "each", "instructions", "limit", "allocations", "limit"
    );
    let mut passed = true;
    for operation in OPERATIONS {
        let allocations = allocations_of(operation.name);
        let instructions = if has_valgrind { instructions_of(operation.name) } else { 0.0 };
        let within = instructions <= operation.instructions && allocations <= operation.allocations;
        passed &= within;
        println!(
            "{:18}{instructions:>14.1}{:>8.0}{allocations:>14.4}{:>8.3}{}",
            operation.name,
            operation.instructions,
            operation.allocations,
            if within { "" } else { "   above its limit" }
        );
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn each(total: u64) -> f64 {
    total as f64 / f64::from(TIMES)
}

fn allocations_of(name: &str) -> f64 {
    let myself = env::current_exe().expect("a program has a path");
    let output = Command::new(myself).args(["--one", name]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    each(text.trim().parse().expect("a number"))
}

fn instructions_of(name: &str) -> f64 {
    let myself = env::current_exe().expect("a program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*gate*measured*")
        .arg(myself)
        .args(["--one", name])
        .output()
        .expect("valgrind starts");
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report.lines().find_map(|line| line.split("Collected : ").nth(1));
    let total = collected.and_then(|total| total.trim().parse().ok());
    each(total.unwrap_or_else(|| panic!("valgrind says:\n{report}")))
}
