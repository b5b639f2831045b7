//! `future` under the runtimes that programs have: tokio's two, smol, a bare `block_on`; and storms of it
//! on real threads, with a ledger.

#![cfg(not(any(loom, tickwheel_bare)))]

mod common;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use common::told::Poller;
use common::{Random, count, until};
use futures_util::future::join_all;
use tickwheel::future::{Sleep, block_on};
use tickwheel::{MissedTicks, ScheduleError, Scheduler};

const MILLI: Duration = Duration::from_millis(1);

/// Every kind of future once, and a crowd of sleeps; what a runtime would get wrong shows as a hang, an early
/// end, or a lost one.
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
    // What a runtime drops is gone from the wheel.
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

// ----- storms ------------------------------------------------------------------------------

/// What became of the sleeps of a storm.
#[derive(Default)]
struct Ledger {
    ready: AtomicUsize,
    closed: AtomicUsize,
    dropped: AtomicUsize,
    early: AtomicUsize,
}

/// Waits for the sleep, as a task would that is polled for other reasons too, moves its mind, and sometimes
/// gives up.
struct Fickle<'a> {
    sleep: Option<Sleep>,
    random: Random,
    ledger: &'a Ledger,
}

impl Future for Fickle<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(sleep) = &mut this.sleep else { return Poll::Ready(()) };
        match Pin::new(&mut *sleep).poll(context) {
            Poll::Ready(Ok(())) => {
                this.ledger.ready.fetch_add(1, Ordering::Relaxed);
                let is_early = Instant::now() < sleep.deadline();
                this.ledger.early.fetch_add(usize::from(is_early), Ordering::Relaxed);
                return Poll::Ready(());
            }
            Poll::Ready(Err(reason)) => {
                assert_eq!(reason, ScheduleError::Closed);
                this.ledger.closed.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
        match this.random.below(8) {
            0 => {
                this.sleep = None;
                this.ledger.dropped.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(());
            }
            1 | 2 => {
                let micros = this.random.below(3_000);
                sleep.reset(Instant::now() + Duration::from_micros(micros));
            }
            // Polled by somebody else, and then by the task again.
            3 => {
                let _ = Poller::new().poll(sleep);
                context.waker().wake_by_ref();
            }
            _ => {}
        }
        Poll::Pending
    }
}

#[test]
fn s1_s20_a_storm_of_fickle_sleepers_loses_none() {
    let rounds = count(20, 2_000);
    for round in 0..rounds as u64 {
        let scheduler = Scheduler::new();
        let (ledger, threads, each) = (Ledger::default(), 4, 200);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sleepers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (scheduler, ledger) = (scheduler.clone(), &ledger);
                    scope.spawn(move || {
                        let mut random = Random(round * 64 + thread);
                        let fickle = (0..each).map(|_| {
                            let micros = Duration::from_micros(random.below(4_000));
                            let sleep = Some(scheduler.sleep(micros));
                            Fickle { sleep, random: Random(random.next()), ledger }
                        });
                        block_on(join_all(fickle));
                    })
                })
                .collect();
            // Every other round the scheduler closes in the midst of it.
            if round % 2 == 0 {
                thread::sleep(Duration::from_micros(500 + round * 97 % 3_000));
                scheduler.close().expect("in time").into_iter().for_each(drop);
            }
            sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("no panic"));
            is_over.store(true, Ordering::Relaxed);
        });
        let [ready, closed, dropped, early] =
            [&ledger.ready, &ledger.closed, &ledger.dropped, &ledger.early]
                .map(|count| count.load(Ordering::Relaxed));
        assert_eq!(ready + closed + dropped, threads as usize * each, "round {round}");
        assert_eq!((early, scheduler.pending()), (0, 0), "round {round}");
        assert!(round % 2 == 0 || closed == 0);
    }
}

/// The ring of an alarm against its drop: either the waker is woken, or it is dropped unwoken, and it is
/// gone in both cases.
#[test]
fn s8_a_ring_against_a_drop_leaves_nothing_behind() {
    let scheduler = Scheduler::new();
    let (mut rang, mut freed) = (0, 0);
    for n in 0..count(2_000, 1_000_000) as u64 {
        let task = Poller::new();
        let mut sleep = scheduler.sleep(Duration::from_micros(n % 50));
        if task.poll(&mut sleep).is_pending() {
            while n % 3 != 0 && !sleep.is_elapsed() {
                std::hint::spin_loop();
            }
            drop(sleep);
            until("the waker is gone", || task.wakers() == 0);
            if task.woken() == 1 { rang += 1 } else { freed += 1 }
        }
    }
    assert!(freed > 0, "{rang} rang, {freed} were freed");
    until("all is counted", || scheduler.pending() == 0);
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.cancelled()), (rang, freed));
}

/// Who is woken from another thread at the very moment of a poll does not sleep on.
#[test]
fn a_ring_in_the_midst_of_a_poll_is_not_lost() {
    let scheduler =
        Arc::new(Scheduler::builder().tick(Duration::from_micros(10)).build().expect("built"));
    for n in 0..count(2_000, 500_000) as u32 {
        block_on(scheduler.sleep(Duration::from_nanos(500) * (n % 200))).expect("open");
    }
}
