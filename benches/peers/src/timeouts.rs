//! Timeouts around futures, as a server on tokio sets them: 64 tasks on a multi-thread runtime with two workers, each
//! of which gives one future after the other 30 s. The others are the same with 1,024 tasks, with one worker, and the
//! benchmark of tokio's pull request 6534: eight tasks on eight workers, and sleeps that are never polled.
//!
//! tokio's alternative timer is a column if the program is compiled with `RUSTFLAGS="--cfg tokio_unstable"`.
//!
//! Where the future is ready at once, no timer is set: the row shows what a timeout costs that is not needed. Where it
//! is pending once, its poll sets a timer, and the drop of the timeout cancels it.
//!
//! Two workers that share a count take longer together than one that runs alone, so a round counts only if both had a
//! processor. A process makes short rounds until [`ROUNDS`] of them count, and gives their median. On a machine that is
//! busy for [`PATIENCE`] it fails. The same loop without a timeout shows what the runtime takes.

use std::future::{Future, poll_fn, ready};
use std::hint::black_box;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::measure::Stretch;
use crate::workloads::{Figures, per};

/// A column that is no timer: the runtime alone.
pub(crate) const WITHOUT: &str = "no timeout";

pub(crate) const PEERS: &[&str] = &["tickwheel", "tokio", "tokio alternative", WITHOUT];

pub(crate) const ALL: &[(&str, &str)] = &[
    ("S4", "64 tasks on 2 worker threads of tokio: `timeout(30 s, ready future)`"),
    ("S4-pending", "the same, each future pending once: the timer is set, and cancelled by a drop"),
    ("S4-1024", "S4 with 1,024 tasks"),
    ("S4-1024-pending", "S4-pending with 1,024 tasks"),
    ("S4-1", "S4 on one worker"),
    ("S4-1-pending", "S4-pending on one worker"),
    (
        "S5-timeout",
        "8 tasks on 8 workers: `timeout(30 s, ready future)`, as in tokio's pull request 6534",
    ),
    ("S5-sleep", "the same: `sleep(30 s)` that is dropped and never polled"),
];

/// Workers, tasks, and how many futures each has in a round.
struct Shape {
    workers: usize,
    tasks: usize,
    times: usize,
    work: Work,
}

#[derive(Clone, Copy)]
enum Work {
    Ready,
    PendingOnce,
    Unpolled,
}

fn shape(workload: &str) -> Shape {
    let work = match workload {
        "S5-sleep" => Work::Unpolled,
        _ if workload.ends_with("-pending") => Work::PendingOnce,
        _ => Work::Ready,
    };
    let each = if matches!(work, Work::PendingOnce) { 64_000 } else { 256_000 };
    let (workers, tasks) = match workload {
        "S4" | "S4-pending" => (2, 64),
        "S4-1024" | "S4-1024-pending" => (2, 1024),
        "S4-1" | "S4-1-pending" => (1, 64),
        "S5-timeout" | "S5-sleep" => (8, 8),
        other => panic!("no such workload: {other}"),
    };
    Shape { workers, tasks, times: each / tasks, work }
}

const ROUNDS: usize = 25;
const PATIENCE: Duration = Duration::from_secs(10);
/// So many processors a round must have had at least, of each that it can use, to count.
const AT_WORK: f64 = 0.9;
/// The machine has at least as many.
const PROCESSORS: usize = 2;
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        "tickwheel" => run::<Ours>(workload, false),
        "tokio" => run::<Tokio>(workload, false),
        #[cfg(tokio_unstable)]
        "tokio alternative" => run::<Tokio>(workload, true),
        #[cfg(not(tokio_unstable))]
        "tokio alternative" => Figures::new(),
        WITHOUT => run::<Without>(workload, false),
        other => panic!("no such timer: {other}"),
    }
}

/// A kind of timeout.
trait Limit: Send + 'static {
    /// How much more a round does, so that it takes some 15 ms.
    const FASTER: usize = 1;

    fn limit<F>(limit: Duration, future: F) -> impl Future<Output = usize> + Send
    where
        F: Future<Output = usize> + Send;

    /// Makes a sleep, and drops it.
    fn sleep(time: Duration);
}

struct Ours;

impl Limit for Ours {
    async fn limit<F: Future<Output = usize> + Send>(limit: Duration, future: F) -> usize {
        tickwheel::time::timeout(limit, future).await.expect("in time")
    }

    fn sleep(time: Duration) {
        drop(black_box(tickwheel::time::sleep(time)));
    }
}

struct Tokio;

impl Limit for Tokio {
    async fn limit<F: Future<Output = usize> + Send>(limit: Duration, future: F) -> usize {
        tokio::time::timeout(limit, future).await.expect("in time")
    }

    fn sleep(time: Duration) {
        drop(black_box(tokio::time::sleep(time)));
    }
}

struct Without;

impl Limit for Without {
    const FASTER: usize = 16;

    async fn limit<F: Future<Output = usize> + Send>(_: Duration, future: F) -> usize {
        future.await
    }

    fn sleep(time: Duration) {
        black_box(time);
    }
}

/// A future that is pending once, and ready when it is polled again, which it asks for at once.
fn pending_once(number: usize) -> impl Future<Output = usize> + Send {
    let mut was_pending = false;
    poll_fn(move |context| {
        if was_pending {
            return Poll::Ready(number);
        }
        was_pending = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

fn run<L: Limit>(workload: &str, is_alternative: bool) -> Figures {
    let shape = shape(workload);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(shape.workers).enable_time();
    #[cfg(tokio_unstable)]
    if is_alternative {
        runtime.enable_alt_timer();
    }
    let runtime = runtime.build().expect("a runtime");
    let _ = is_alternative;
    let round = || match shape.work {
        Work::Ready => all_tasks::<L, _>(&runtime, &shape, ready),
        Work::PendingOnce => all_tasks::<L, _>(&runtime, &shape, pending_once),
        Work::Unpolled => all_tasks::<L, _>(&runtime, &shape, unpolled::<L>),
    };
    let at_work = |[wall, process]: &[f64; 2]| process / wall;
    let least = AT_WORK * shape.workers.min(PROCESSORS) as f64;
    round(); // so that memory is what it is in a program that runs
    let start = Instant::now();
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS && start.elapsed() < PATIENCE {
        rounds.extend(Some(round()).filter(|round| at_work(round) >= least));
    }
    assert!(!rounds.is_empty(), "a busy machine: in no round had all workers a processor");
    let median = |of: &dyn Fn(&[f64; 2]) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    vec![
        ("M timeouts/s", 1e3 / median(&|[wall, _]| *wall)),
        ("process ns", median(&|[_, process]| *process)),
        ("processors at work", median(&at_work)),
        ("rounds that count", rounds.len() as f64),
    ]
}

/// Not limited by itself: the sleep is what is measured.
async fn unpolled<L: Limit>(number: usize) -> usize {
    L::sleep(LIMIT);
    number
}

/// Nanoseconds of the wall and of the process, for each future.
fn all_tasks<L: Limit, F: Future<Output = usize> + Send + 'static>(
    runtime: &Runtime,
    shape: &Shape,
    future: fn(usize) -> F,
) -> [f64; 2] {
    let (times, is_limited) = (shape.times * L::FASTER, !matches!(shape.work, Work::Unpolled));
    let stretch = Stretch::begin();
    let tasks: Vec<_> = (0..shape.tasks)
        .map(|_| {
            runtime.spawn(async move {
                let mut sum = 0;
                for number in 0..times {
                    let future = future(black_box(number));
                    sum += if is_limited { L::limit(LIMIT, future).await } else { future.await };
                }
                sum
            })
        })
        .collect();
    for task in tasks {
        let sum = runtime.block_on(task).expect("no panic");
        assert_eq!(sum, times * (times - 1) / 2, "each future was ready once");
    }
    let all = shape.tasks * times;
    [per(stretch.wall(), all), per(stretch.process(), all)]
}
