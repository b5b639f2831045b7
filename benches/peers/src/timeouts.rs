//! Timeouts around futures, as a server on tokio sets them: 64 tasks on a multi-thread runtime with two workers, each
//! of which gives one future after the other 30 s.
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

use tickwheel::Scheduler;
use tokio::runtime::Runtime;

use crate::measure::Stretch;
use crate::workloads::{Figures, per};

/// A column that is no timer: the runtime alone.
pub(crate) const WITHOUT: &str = "no timeout";

pub(crate) const PEERS: &[&str] = &["tickwheel", "tokio", WITHOUT];

pub(crate) const ALL: &[(&str, &str)] = &[
    ("S4", "64 tasks on 2 worker threads of tokio: `timeout(30 s, ready future)`"),
    ("S4-pending", "the same, each future pending once: the timer is set, and cancelled by a drop"),
];

const WORKERS: usize = 2;
const TASKS: usize = 64;
const ROUNDS: usize = 25;
const PATIENCE: Duration = Duration::from_secs(10);
/// So many processors a round must have had at least, of the two, to count.
const AT_WORK: f64 = 1.8;
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        "tickwheel" => run::<Ours>(workload),
        "tokio" => run::<Tokio>(workload),
        WITHOUT => run::<Without>(workload),
        other => panic!("no such timer: {other}"),
    }
}

/// A kind of timeout.
trait Limit: Clone + Send + 'static {
    /// How much more a round does, so that it takes some 15 ms.
    const FASTER: usize = 1;

    fn new() -> Self;
    fn limit<F>(&self, future: F) -> impl Future<Output = usize> + Send
    where
        F: Future<Output = usize> + Send;
}

#[derive(Clone)]
struct Ours(Scheduler);

impl Limit for Ours {
    fn new() -> Self {
        Ours(Scheduler::new())
    }

    async fn limit<F: Future<Output = usize> + Send>(&self, future: F) -> usize {
        self.0.timeout(LIMIT, future).await.expect("in time")
    }
}

#[derive(Clone)]
struct Tokio;

impl Limit for Tokio {
    fn new() -> Self {
        Tokio
    }

    async fn limit<F: Future<Output = usize> + Send>(&self, future: F) -> usize {
        tokio::time::timeout(LIMIT, future).await.expect("in time")
    }
}

#[derive(Clone)]
struct Without;

impl Limit for Without {
    const FASTER: usize = 16;

    fn new() -> Self {
        Without
    }

    async fn limit<F: Future<Output = usize> + Send>(&self, future: F) -> usize {
        future.await
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

fn run<L: Limit>(workload: &str) -> Figures {
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(WORKERS).enable_time().build().expect("a runtime");
    let limit = L::new();
    let round = || match workload {
        "S4" => all_tasks(&runtime, &limit, 4_000 * L::FASTER, ready),
        "S4-pending" => all_tasks(&runtime, &limit, 1_000 * L::FASTER, pending_once),
        other => panic!("no such workload: {other}"),
    };
    let at_work = |[wall, process]: &[f64; 2]| process / wall;
    round(); // so that memory is what it is in a program that runs
    let start = Instant::now();
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS && start.elapsed() < PATIENCE {
        rounds.extend(Some(round()).filter(|round| at_work(round) >= AT_WORK));
    }
    assert!(!rounds.is_empty(), "a busy machine: in no round had both workers a processor");
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

/// Nanoseconds of the wall and of the process, for each future.
fn all_tasks<L: Limit, F: Future<Output = usize> + Send + 'static>(
    runtime: &Runtime,
    limit: &L,
    times: usize,
    future: fn(usize) -> F,
) -> [f64; 2] {
    let stretch = Stretch::begin();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limit = limit.clone();
            runtime.spawn(async move {
                let mut sum = 0;
                for number in 0..times {
                    sum += limit.limit(future(black_box(number))).await;
                }
                sum
            })
        })
        .collect();
    for task in tasks {
        let sum = runtime.block_on(task).expect("no panic");
        assert_eq!(sum, times * (times - 1) / 2, "each future was ready once");
    }
    [per(stretch.wall(), TASKS * times), per(stretch.process(), TASKS * times)]
}
