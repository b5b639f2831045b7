//! What exact deadlines cost a service: a million timeouts are pending, and 64 tasks on a tokio runtime of two workers sleep
//! again and again, 10,000 times a second together, for 1 us to 13 ms.
//!
//! It decides which precision the global scheduler has.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tickwheel::{Builder, Precision, Scheduler, time};

use crate::measure::{Random, Stretch};
use crate::workloads::Figures;

const OUR_MILLISECOND: &str = "tickwheel, ticks of 1 ms";
const HALF: &str = "tickwheel, 500 us";
const EXACT: &str = "tickwheel Exact";

pub(crate) const PEERS: &[&str] = &[OUR_MILLISECOND, HALF, EXACT, "tokio"];

pub(crate) const ALL: &[(&str, &str)] =
    &[("P1", "1M timeouts pending, 10,000 sleeps a second of 64 tasks")];

const PENDING: usize = 1_000_000;
const TASKS: u64 = 64;
/// Twice the mean sleep of a task, in microseconds.
const LONGEST: u64 = 2 * TASKS * 1_000_000 / 10_000;
const TIME: Duration = Duration::from_secs(5);

pub(crate) fn run_one(peer: &str, _workload: &str) -> Figures {
    let builder: fn() -> Builder = match peer {
        OUR_MILLISECOND => Scheduler::builder,
        HALF => || Scheduler::builder().tick(Duration::from_micros(500)),
        EXACT => || Scheduler::builder().precision(Precision::Exact),
        "tokio" => return service(|_| (), |at| tokio::time::sleep_until(at.into()), || 0),
        other => panic!("no such timer: {other}"),
    };
    Scheduler::set_global(builder()).expect("the first use");
    let pend = |context: &mut Context<'_>| {
        let mut random = Random(1);
        let mut sleeps: Vec<_> =
            (0..PENDING).map(|_| time::sleep(random.micros(20_000_000, 80_000_000))).collect();
        assert!(sleeps.iter_mut().all(|sleep| pin!(sleep).poll(context).is_pending()));
        std::mem::forget(sleeps); // they pend until the process ends
    };
    service(pend, time::sleep_until, || Scheduler::global().stats().wakeups())
}

/// `pend` makes the pending timeouts, where the timer is in the process and not in the runtime.
fn service<S: Future<Output = ()> + Send + 'static>(
    pend: impl FnOnce(&mut Context<'_>),
    sleep_until: fn(Instant) -> S,
    wakeups: impl Fn() -> u64,
) -> Figures {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    pend(&mut Context::from_waker(Waker::noop()));
    std::thread::sleep(Duration::from_secs(1)); // until they are filed
    let (stretch, woken) = (Stretch::begin(), wakeups());
    let sleeper = |number: u64| async move {
        let (mut random, start, mut late) = (Random(number), Instant::now(), Vec::new());
        while start.elapsed() < TIME {
            let deadline = Instant::now() + random.micros(1, LONGEST);
            sleep_until(deadline).await;
            late.push(Instant::now().duration_since(deadline));
        }
        late
    };
    let tasks: Vec<_> = (0..TASKS).map(|number| runtime.spawn(sleeper(number))).collect();
    let late = tasks.into_iter().flat_map(|task| runtime.block_on(task).expect("no panic"));
    let mut late: Vec<_> = late.collect();
    let (wall, process) = (stretch.wall() as f64 / 1e9, stretch.process() as f64 / 1e6);
    late.sort();
    let micros = |share: usize| late[late.len() * share / 100].as_nanos() as f64 / 1e3;
    vec![
        ("CPU ms/s", process / wall),
        ("wake-ups/s of the tick thread", (wakeups() - woken) as f64 / wall),
        ("late p50 us", micros(50)),
        ("late p99 us", micros(99)),
        ("sleeps/s", late.len() as f64 / wall),
    ]
}
