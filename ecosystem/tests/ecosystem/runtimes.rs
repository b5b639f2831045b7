//! `future` under the runtimes that programs have: tokio's two, smol, a bare `block_on`.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{Random, until};
use futures_util::future::join_all;
use tickwheel::future::block_on;
use tickwheel::{MissedTicks, Scheduler};

const MILLI: Duration = Duration::from_millis(1);

/// Awaits every kind of future once, and many sleeps. A fault shows as a hang, an early end, or a lost wake-up.
async fn everything(scheduler: Scheduler) {
    let start = Instant::now();
    scheduler.sleep(MILLI * 20).await.expect("open");
    assert!(start.elapsed() >= MILLI * 20);

    let never = std::future::pending::<()>();
    assert_eq!(scheduler.timeout(MILLI * 5, never).await.expect_err("never").reason(), None);
    assert_eq!(scheduler.timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));

    let mut interval = scheduler.interval(MILLI * 2).missed(MissedTicks::Burst);
    let first = interval.tick().await.expect("open");
    for k in 1..=10 {
        let due = interval.tick().await.expect("open");
        assert!(due == first + MILLI * 2 * k && Instant::now() >= due);
    }

    assert_eq!(scheduler.call_after(MILLI, || 6 * 7).await.expect("it runs"), 42);

    let mut random = Random(7);
    let sleeps = (0..2_000).map(|_| scheduler.sleep(MILLI / 10 * random.below(300) as u32));
    let late = sleeps.map(|sleep| async {
        let deadline = sleep.deadline();
        sleep.await.expect("open");
        assert!(Instant::now() >= deadline);
    });
    assert_eq!(join_all(late).await.len(), 2_000);

    let mut sleep = pin!(scheduler.sleep(Duration::from_secs(60)));
    assert!(poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context).is_pending())).await);
    sleep.as_mut().reset(scheduler.now() + MILLI);
    sleep.await.expect("open");
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn without_a_runtime() {
    block_on(everything(Scheduler::new()));
}

#[test]
fn on_a_tokio_runtime_of_the_current_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(everything(Scheduler::new()));
}

#[test]
fn on_a_tokio_runtime_of_several_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.expect("a runtime");
    let scheduler = Scheduler::new();
    let tasks: Vec<_> = (0..4).map(|_| runtime.spawn(everything(Scheduler::new()))).collect();
    let many = (0..5_000).map(|n| {
        let scheduler = scheduler.clone();
        runtime.spawn(async move { scheduler.sleep(MILLI * (n % 50)).await })
    });
    let many: Vec<_> = many.collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("it ends");
        }
        for task in many {
            assert_eq!(task.await.expect("it ends"), Ok(()));
        }
    });
    // Futures that a runtime drops are gone from the wheel.
    let task = runtime.spawn({
        let scheduler = scheduler.clone();
        async move { scheduler.sleep(Duration::from_secs(3600)).await }
    });
    until("it sleeps", || scheduler.pending() == 1);
    task.abort();
    until("it is dropped", || scheduler.pending() == 0);
}

#[test]
fn on_smol() {
    smol::block_on(everything(Scheduler::new()));
    let scheduler = Scheduler::new();
    let tasks = (0..1_000).map(|n| {
        let scheduler = scheduler.clone();
        smol::spawn(async move { scheduler.sleep(MILLI * (n % 50)).await })
    });
    let tasks: Vec<_> = tasks.collect();
    for ended in smol::block_on(join_all(tasks)) {
        assert_eq!(ended, Ok(()));
    }
}
