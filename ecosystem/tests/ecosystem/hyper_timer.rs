//! hyper's timer on a scheduler that is closed or full: it keeps its time, and keeps no thread busy. In real time,
//! which is what these tests are about.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use hyper::rt::Timer;
use tickwheel::Scheduler;
use tickwheel::future::block_on;

const STEP: Duration = Duration::from_millis(10);
const ROUNDS: u32 = 5;

/// Counts the polls of a future.
struct Counted<'a, F>(F, &'a AtomicUsize);

impl<F: Future + Unpin> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll(context)
    }
}

/// What the task of hyper-util does that looks for idle connections: it sleeps, looks, moves the sleep, and so on.
/// Returns the number of polls of its sleep.
fn idle_task(timer: &impl Timer) -> usize {
    let polls = AtomicUsize::new(0);
    block_on(async {
        let mut sleep = timer.sleep_until(timer.now() + STEP);
        for round in 1..=ROUNDS {
            Counted(&mut sleep, &polls).await;
            if round < ROUNDS {
                timer.reset(&mut sleep, timer.now() + STEP);
            }
        }
    });
    polls.into_inner()
}

fn keeps_its_time(scheduler: &Scheduler) {
    let start = Instant::now();
    let polls = idle_task(scheduler);
    assert!(start.elapsed() >= STEP * ROUNDS, "in {:?}", start.elapsed());
    // Two in each round, and one more if a reset has not reached the timer in time.
    assert!(polls <= 3 * ROUNDS as usize, "{polls} polls");
}

#[test]
fn a_loop_of_sleeps_on_an_open_scheduler_is_polled_twice_in_each_round() {
    keeps_its_time(&Scheduler::new());
}

#[test]
fn a_loop_of_sleeps_on_a_closed_scheduler_does_not_spin() {
    let scheduler = Scheduler::new();
    drop(scheduler.close().expect("in time"));
    keeps_its_time(&scheduler);
    // One whose clock stands still.
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    drop(driver);
    keeps_its_time(&scheduler);
}

#[test]
fn a_loop_of_sleeps_on_a_full_scheduler_does_not_spin() {
    let scheduler = Scheduler::builder().max_pending(1).build().expect("good settings");
    let _held = scheduler.schedule_once(Duration::from_secs(3600), || ()).expect("the first");
    keeps_its_time(&scheduler);
    // One whose clock stands still.
    let full = Scheduler::builder().max_pending(0).build_driven();
    let (scheduler, _driver) = full.expect("good settings");
    keeps_its_time(&scheduler);
}

#[test]
fn a_close_in_the_midst_of_a_loop_of_sleeps_does_not_end_it_early() {
    let scheduler = Scheduler::new();
    let closing = scheduler.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| keeps_its_time(&scheduler));
        // In any round, or before the first one: it has to keep its time in each case.
        std::thread::sleep(STEP * 2);
        drop(closing.close().expect("in time"));
    });
}

#[test]
fn a_sleep_of_hyper_that_waits_elsewhere_is_moved_in_place() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    drop(driver);
    let (timer, task): (&dyn Timer, _) = (&scheduler, Poller::new());
    let mut sleep = timer.sleep(Duration::from_secs(3600));
    let place = std::ptr::from_ref(&*sleep).cast::<()>();
    assert!(task.poll(&mut sleep).is_pending());
    timer.reset(&mut sleep, scheduler.now() + STEP);
    assert_eq!(std::ptr::from_ref(&*sleep).cast::<()>(), place, "the same box");
    block_on(sleep);
}
