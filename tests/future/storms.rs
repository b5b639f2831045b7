//! Storms of sleeps on real threads, with a ledger.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{Random, count, until};
use futures_util::future::join_all;
use tickwheel::future::{Delay, Sleep, block_on};
use tickwheel::{ScheduleError, Scheduler};

/// The outcomes of the sleeps of a storm.
#[derive(Default)]
struct Ledger {
    ready: AtomicUsize,
    closed: AtomicUsize,
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
            // Every other round the scheduler closes in the midst of it.
            if round % 2 == 0 {
                thread::sleep(Duration::from_micros(500 + round * 97 % 3_000));
                scheduler.close().expect("in time").into_iter().for_each(drop);
            }
            sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("no panic"));
        });
        let [ready, closed, dropped, early] =
            [&ledger.ready, &ledger.closed, &ledger.dropped, &ledger.early]
                .map(|count| count.load(Ordering::Relaxed));
        assert_eq!(ready + closed + dropped, threads as usize * each, "round {round}");
        assert_eq!((early, scheduler.pending()), (0, 0), "round {round}");
        assert!(round % 2 == 0 || closed == 0);
    }
}

/// A task that has a delay moved while it waits, on a scheduler that closes in the midst of it.
struct Moved {
    delay: Delay,
    random: Random,
    moves: usize,
}

impl Future for Moved {
    /// Returns true if it was ready too early.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let this = &mut *self;
        if Pin::new(&mut this.delay).poll(context).is_ready() {
            return Poll::Ready(Instant::now() < this.delay.deadline());
        }
        // A move to never, and back, before the task waits for it.
        if this.moves > 0 && this.random.one_in(2) {
            this.moves -= 1;
            if this.random.one_in(4) {
                this.delay.reset_after(Duration::MAX);
            }
            this.delay.reset_after(Duration::from_micros(this.random.below(3_000)));
        }
        Poll::Pending
    }
}

/// A wake-up that is lost shows as a hang.
#[test]
fn s01_a_storm_of_delays_outlives_its_scheduler_and_none_is_early() {
    for round in 0..count(20, 2_000) as u64 {
        let scheduler = Scheduler::new();
        thread::scope(|scope| {
            for thread in 0..4 {
                let scheduler = scheduler.clone();
                scope.spawn(move || {
                    let mut random = Random(round * 64 + thread);
                    let moved = (0..100).map(|_| {
                        let delay = scheduler.delay(Duration::from_micros(random.below(4_000)));
                        Moved { delay, random: Random(random.next()), moves: 3 }
                    });
                    let early = block_on(join_all(moved));
                    assert!(!early.contains(&true), "round {round}");
                });
            }
            thread::sleep(Duration::from_micros(500 + round * 97 % 3_000));
            drop(scheduler.close().expect("in time"));
        });
        assert_eq!(scheduler.pending(), 0, "round {round}");
    }
}

/// The ring of an alarm against its drop. The waker is either woken, or dropped without a wake-up. It is gone in both cases.
#[test]
fn s08_a_ring_against_a_drop_leaves_nothing_behind() {
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

/// A task that another thread wakes at the moment of a poll does not sleep on.
#[test]
fn a_ring_in_the_midst_of_a_poll_is_not_lost() {
    let scheduler = Scheduler::builder().tick(Duration::from_micros(10)).build().expect("built");
    for n in 0..count(2_000, 500_000) as u32 {
        block_on(scheduler.sleep(Duration::from_nanos(500) * (n % 200))).expect("open");
    }
}
