//! Storms of sleeps on real threads, with a ledger.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{Random, count, until};
use crate::{poll_with, waker};
use futures_util::future::join_all;
use tickwheel::Scheduler;
use tickwheel::future::block_on;
use tickwheel::time::Sleep;

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The outcomes of the sleeps of a storm.
#[derive(Default)]
struct Ledger {
    ready: AtomicUsize,
    dropped: AtomicUsize,
    early: AtomicUsize,
}

/// Waits for the sleep like a task that is also polled for other reasons, moves the sleep, and sometimes gives up.
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
        if Pin::new(&mut *sleep).poll(context).is_ready() {
            this.ledger.ready.fetch_add(1, Ordering::Relaxed);
            let is_early = Instant::now() < sleep.deadline().into_std();
            this.ledger.early.fetch_add(usize::from(is_early), Ordering::Relaxed);
            return Poll::Ready(());
        }
        match this.random.below(8) {
            0 => {
                this.sleep = None;
                this.ledger.dropped.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(());
            }
            // Sometimes far away and back, before the task waits for it.
            1 | 2 => {
                if this.random.one_in(4) {
                    Pin::new(&mut *sleep).reset(Instant::now() + HOUR);
                }
                let micros = this.random.below(3_000);
                Pin::new(sleep).reset(Instant::now() + Duration::from_micros(micros));
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
fn s01_s20_a_storm_of_fickle_sleepers_loses_none() {
    let rounds = count(20, 2_000);
    for round in 0..rounds as u64 {
        let scheduler = Scheduler::new();
        let (ledger, threads, each) = (Ledger::default(), 4, 200);
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
            // Every other round the scheduler closes in the midst of it, and the sleeps go on elsewhere.
            if round % 2 == 0 {
                thread::sleep(Duration::from_micros(500 + round * 97 % 3_000));
                scheduler.close().expect("in time").into_iter().for_each(drop);
            }
            sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("no panic"));
        });
        let [ready, dropped, early] = [&ledger.ready, &ledger.dropped, &ledger.early]
            .map(|count| count.load(Ordering::Relaxed));
        assert_eq!(ready + dropped, threads as usize * each, "round {round}");
        assert_eq!((early, scheduler.pending()), (0, 0), "round {round}");
    }
}

/// The sleep lies behind a lock, where one thread waits for it, and another one moves it. A wake-up that is lost shows as a
/// hang.
#[test]
fn s01_a_reset_by_another_thread_wakes_the_one_that_waits() {
    let (scheduler, mut random) = (Scheduler::new(), Random(7));
    for round in 0..count(400, 40_000) {
        let sleep = Mutex::new(scheduler.sleep(HOUR));
        let wait = poll_fn(|context| {
            let mut sleep = sleep.lock().expect("no panic");
            let polled = Pin::new(&mut *sleep).poll(context);
            assert!(polled.is_pending() || Instant::now() >= sleep.deadline().into_std());
            polled
        });
        let reset = |time: Duration| {
            Pin::new(&mut *sleep.lock().expect("no panic")).reset(Instant::now() + time);
        };
        thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(wait));
            for _ in 0..random.below(20) {
                let time = Duration::from_micros(random.below(200));
                reset(if random.one_in(2) { HOUR } else { time });
                (0..random.below(500)).for_each(|_| std::hint::spin_loop());
            }
            reset(Duration::ZERO);
            waits.join().unwrap_or_else(|_| panic!("round {round}"));
        });
    }
}

/// As of a flood of requests with the same timeout, made by several threads.
#[test]
fn s01_s19_a_million_sleeps_of_one_deadline_all_end_and_none_early() {
    let (scheduler, threads) = (Scheduler::new(), 4);
    let each = count(100_000, 1_000_000) / threads;
    let deadline = Instant::now() + MILLI * (each / 100) as u32;
    let sleeps = || {
        let sleeps = (0..each).map(|_| scheduler.sleep_until(deadline));
        block_on(join_all(sleeps.map(|sleep| async {
            sleep.await;
            assert!(Instant::now() >= deadline);
        })))
        .len()
    };
    let ended: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sleeps)).collect();
        threads.into_iter().map(|thread| thread.join().expect("none is early")).sum()
    });
    assert_eq!((ended, scheduler.pending()), (threads * each, 0));
}

/// The ring of an alarm against its drop. The waker is either woken, or dropped without a wake-up. It is gone in both cases.
#[test]
fn s08_a_ring_against_a_drop_leaves_nothing_behind() {
    let scheduler = Scheduler::new();
    let (mut rang, mut freed) = (0, 0);
    for n in 0..count(2_000, 1_000_000) as u64 {
        // The wake-up is counted before the waker goes, by which the test knows that it is over.
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let rings = waker(move || _ = count.fetch_add(1, Ordering::Relaxed));
        let mut sleep = scheduler.sleep(Duration::from_micros(n % 50));
        let polled = poll_with(&mut sleep, &rings);
        drop(rings);
        if polled.is_pending() {
            while n % 3 != 0 && !sleep.is_elapsed() {
                std::hint::spin_loop();
            }
            drop(sleep);
            until("the waker is gone", || Arc::strong_count(&woken) == 1);
            if woken.load(Ordering::Relaxed) == 1 { rang += 1 } else { freed += 1 }
        }
    }
    assert!(freed > 0, "{rang} rang, {freed} were freed");
    until("all is counted", || scheduler.pending() == 0);
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.cancelled()), (rang, freed));
}

/// A task that another thread wakes at the moment of a poll does not sleep on.
#[test]
fn a_ring_in_the_midst_of_a_poll_is_not_lost() {
    let scheduler = Scheduler::builder().tick(Duration::from_micros(10)).build().expect("built");
    for n in 0..count(2_000, 500_000) as u32 {
        block_on(scheduler.sleep(Duration::from_nanos(500) * (n % 200)));
    }
}
