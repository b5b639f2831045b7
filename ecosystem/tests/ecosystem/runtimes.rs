//! `time` under the runtimes that programs have: tokio's two, smol, async-std's executor, `futures::executor`, a bare
//! `block_on`; and beside `tokio::time`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, TryRecvError};
use std::task::Poll;
use std::time::{Duration, Instant as StdInstant};

use crate::common::told::Poller;
use crate::common::{Random, until};
use futures_util::future::{join, join_all};
use futures_util::task::SpawnExt;
use tickwheel::future::block_on;
use tickwheel::time::{self, Instant};
use tickwheel::{Precision, Scheduler};
use tokio::runtime::Builder;

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Awaits every kind of future once, and many sleeps. A fault shows as a hang, an early end, or a lost wake-up.
async fn everything() {
    let start = StdInstant::now();
    time::sleep(MILLI * 20).await;
    assert!(start.elapsed() >= MILLI * 20);

    let start = StdInstant::now();
    let never = std::future::pending::<()>();
    assert!(time::timeout(MILLI * 5, never).await.is_err() && start.elapsed() >= MILLI * 5);
    assert_eq!(time::timeout(HOUR, async { 7 }).await, Ok(7));
    assert_eq!(time::timeout(HOUR, time::sleep(MILLI)).await, Ok(()));

    let mut interval = time::interval(MILLI * 2);
    let first = interval.tick().await;
    for k in 1..=10 {
        let due = interval.tick().await;
        assert!(due == first + MILLI * 2 * k && Instant::now() >= due);
    }

    let mut random = Random(7);
    let sleeps = (0..2_000).map(|_| time::sleep(MILLI / 10 * random.below(300) as u32));
    let late = sleeps.map(|sleep| async {
        let deadline = sleep.deadline();
        sleep.await;
        assert!(Instant::now() >= deadline);
    });
    assert_eq!(join_all(late).await.len(), 2_000);

    let mut sleep = pin!(time::sleep(HOUR));
    assert!(poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context).is_pending())).await);
    sleep.as_mut().reset(Instant::now() + MILLI);
    sleep.await;

    assert_eq!(Scheduler::global().call_after(MILLI, || 6 * 7).await.expect("it runs"), 42);
}

/// The same in many tasks of a runtime.
async fn in_tasks<T: Future>(spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) -> T) {
    let sleeps = (0..1_000).map(|n| spawn(Box::pin(time::sleep(MILLI * (n % 50)))));
    let tasks = (0..4).map(|_| spawn(Box::pin(everything())));
    join_all(tasks.chain(sleeps).collect::<Vec<_>>()).await;
}

#[test]
fn without_a_runtime() {
    let scheduler = Scheduler::new();
    let _in_force = scheduler.enter();
    block_on(everything());
    // On a busy machine many of the sleeps are over at their first poll.
    assert!(scheduler.stats().scheduled() > 10 && scheduler.pending() == 0);
}

#[test]
fn on_a_tokio_runtime_of_the_current_thread() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(join(everything(), in_tasks(|task| runtime.spawn(task))));
}

#[test]
fn on_a_tokio_runtime_of_several_threads() {
    let runtime = Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(join(everything(), in_tasks(|task| runtime.spawn(task))));
    // Futures that a runtime drops are gone from the wheel.
    let scheduler = Scheduler::new();
    let task = runtime.spawn(scheduler.sleep(HOUR));
    until("it sleeps", || scheduler.pending() == 1);
    task.abort();
    until("it is dropped", || scheduler.pending() == 0);
}

#[test]
fn on_smol() {
    smol::block_on(join(everything(), in_tasks(smol::spawn)));
}

#[test]
fn on_the_executor_of_async_std() {
    async_global_executor::block_on(join(everything(), in_tasks(async_global_executor::spawn)));
}

#[test]
fn on_the_executor_of_futures() {
    let pool = futures_executor::ThreadPool::builder().pool_size(2).create().expect("threads");
    let spawn = |task| pool.spawn_with_handle(task).expect("open");
    futures_executor::block_on(join(everything(), in_tasks(spawn)));
}

/// A runtime may end while its tasks sleep. What others hold goes on, and the tick thread wakes tasks that are no more.
#[test]
fn a_sleep_outlives_the_runtime_that_polled_it() {
    const DELAY: Duration = Duration::from_millis(150); // not over at the first poll, also on a busy machine
    for threads in [1, 2] {
        let mut builder =
            if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = builder.worker_threads(threads).build().expect("a runtime");
        let (give, given) = mpsc::channel();
        let start = StdInstant::now();
        let task = runtime.spawn(async move {
            let mut futures = (
                time::sleep(DELAY),
                time::timeout(DELAY, std::future::pending::<()>()),
                time::interval_at(StdInstant::now() + DELAY, MILLI),
            );
            poll_fn(|context| {
                assert!(Pin::new(&mut futures.0).poll(context).is_pending());
                assert!(Pin::new(&mut futures.1).poll(context).is_pending());
                assert!(futures.2.poll_tick(context).is_pending());
                Poll::Ready(())
            })
            .await;
            give.send(futures).expect("awaited");
            time::sleep(HOUR).await;
        });
        let (mut sleep, timeout, mut ticks) = loop {
            runtime.block_on(time::sleep(MILLI));
            match given.try_recv() {
                Err(TryRecvError::Empty) => {} // a thread of the runtime has yet to come to it
                polled => break polled.expect("no panic"),
            }
        };
        drop(runtime);
        assert!(futures_executor::block_on(task).expect_err("dropped").is_cancelled());
        let waker = Poller::new();
        assert!(waker.polls_until_ready(&mut sleep) <= 2 && start.elapsed() >= DELAY);
        assert!(block_on(timeout).is_err());
        block_on(ticks.tick());
        assert!(start.elapsed() >= DELAY);
    }
}

/// The hook moves the time when the runtime has nothing to do.
#[test]
fn virtual_time_on_a_tokio_runtime_of_one_thread() {
    let runtime =
        Builder::new_current_thread().on_thread_park(time::advance_when_idle).build().expect("one");
    let real = StdInstant::now();
    runtime.block_on(async {
        time::pause();
        let start = Instant::now();
        let beats = tokio::spawn(async move {
            let mut ticks = time::interval(HOUR);
            for n in 0..24 {
                assert_eq!(ticks.tick().await - start, HOUR * n);
            }
        });
        assert!(time::timeout(HOUR / 2, std::future::pending::<()>()).await.is_err());
        assert_eq!(start.elapsed(), HOUR / 2);
        beats.await.expect("no panic");
        assert_eq!(start.elapsed(), HOUR * 23);
        time::resume();
    });
    assert!(real.elapsed() < HOUR / 60);
}

/// Takes ticks late by what the seed says, and returns what each tick and the clock said, in milliseconds.
macro_rules! late_ticks {
    ($time:path, $missed:ident, $seed:expr) => {{
        use $time::{Instant, MissedTickBehavior, advance, interval, sleep};
        async {
            let (mut random, start) = (Random($seed), Instant::now());
            let mut ticks = interval(MILLI * (1 + random.below(20) as u32));
            ticks.set_missed_tick_behavior(MissedTickBehavior::$missed);
            let mut seen = Vec::new();
            for _ in 0..50 {
                let late = MILLI * random.below(30) as u32;
                if random.one_in(2) {
                    sleep(late).await
                } else {
                    advance(late).await
                }
                match random.below(20) {
                    0 => ticks.reset(),
                    1 => ticks.reset_after(late),
                    2 => ticks.reset_immediately(),
                    3 => ticks.reset_at(start + late),
                    _ => {}
                }
                let due = ticks.tick().await - start;
                seen.push((due.as_millis(), start.elapsed().as_millis()));
            }
            seen
        }
    }};
}

/// The same source beside `tokio::time`, in the virtual time of each.
#[test]
fn s13_missed_ticks_are_those_of_tokio() {
    macro_rules! compare {
        ($missed:ident, $seed:expr) => {
            let tokio = Builder::new_current_thread().enable_time().start_paused(true).build();
            let theirs = tokio.expect("one").block_on(late_ticks!(tokio::time, $missed, $seed));
            let builder = Scheduler::builder().precision(Precision::Exact);
            let (_scheduler, driver) = builder.build_driven().expect("good settings");
            let ours = driver.block_on(late_ticks!(tickwheel::time, $missed, $seed));
            assert_eq!(ours, Ok(theirs), "seed {}", $seed);
        };
    }
    for seed in 0..50 {
        compare!(Burst, seed);
        compare!(Delay, seed);
        compare!(Skip, seed);
    }
}

#[test]
fn futures_are_no_larger_than_those_of_tokio() {
    let ours =
        [size_of::<time::Sleep>(), size_of::<time::Timeout<()>>(), size_of::<time::Interval>()];
    let theirs = [
        size_of::<tokio::time::Sleep>(),
        size_of::<tokio::time::Timeout<()>>(),
        size_of::<tokio::time::Interval>(),
    ];
    println!("Sleep, Timeout<()>, Interval: {ours:?} bytes, and tokio's {theirs:?}");
    assert!(ours.iter().zip(theirs).all(|(ours, theirs)| *ours <= theirs), "{ours:?} {theirs:?}");
}
