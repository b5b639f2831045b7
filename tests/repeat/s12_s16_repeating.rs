//! Repetition: the phase is kept, missed runs are treated as the period says, and nothing is allocated (S12 to S16).

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::allocations::Measurement;
use crate::common::until;
use tickwheel::{
    Cancellable, Inline, ManualClock, MissedTicks, Period, ScheduleError, Scheduler, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn allocations(work: impl FnOnce()) -> usize {
    let measurement = Measurement::start();
    work();
    measurement.allocations()
}

/// Returns when the first runs of a series begin, in milliseconds. `takes` says how long each run takes.
fn begins(
    period: Period,
    until: Duration,
    takes: impl Fn(u32) -> u32 + Send + 'static,
) -> Vec<u128> {
    let clock = ManualClock::new();
    let (scheduler, driver) =
        Scheduler::builder().clock(clock.clone()).build_driven().expect("good settings");
    let start = scheduler.now();
    let begins = Arc::new(Mutex::new(Vec::new()));
    let (log, inner) = (Arc::clone(&begins), scheduler.clone());
    let mut run = 0;
    scheduler
        .schedule_periodic(Duration::ZERO, period, move || {
            log.lock().expect("whole").push((inner.now() - start).as_millis());
            clock.advance(MILLI * takes(run));
            run += 1;
        })
        .expect("open");
    driver.advance(until);
    drop((scheduler, driver));
    Arc::into_inner(begins).expect("the series is gone").into_inner().expect("whole")
}

#[test]
fn s12_ten_thousand_runs_keep_their_phase() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let start = scheduler.now();
    let (period, initial) = (Duration::from_micros(33_333), Duration::from_micros(777));
    let (sender, runs) = mpsc::channel();
    let inner = scheduler.clone();
    scheduler
        .schedule_repeatedly(initial, period, move || {
            sender.send(inner.now() - start).expect("the receiver lives");
        })
        .expect("open");
    assert_eq!(driver.advance(period * 10_000), 10_000);
    for (run, at) in (0_u32..).zip(runs.try_iter()) {
        let due = initial + period * run;
        assert!(at >= due && at < due + MILLI, "run {run}, due at {due:?}, ran at {at:?}");
    }
}

#[test]
fn s12_runs_never_overlap_on_a_pool() {
    let scheduler =
        Scheduler::builder().executor(ThreadPool::new(4)).build().expect("a tick thread");
    let (running, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (flag, count) = (Arc::clone(&running), Arc::clone(&runs));
    let series = scheduler
        .schedule_repeatedly(Duration::ZERO, MILLI, move || {
            assert!(!flag.swap(true, Ordering::AcqRel), "overlap");
            std::thread::sleep(MILLI * 3); // real time: longer than the period
            count.fetch_add(1, Ordering::Relaxed);
            flag.store(false, Ordering::Release);
        })
        .expect("open");
    until("twenty runs", || series.is_done() || runs.load(Ordering::Relaxed) >= 20);
    assert!(series.cancel());
    assert_eq!(scheduler.stats().panicked(), 0);
}

#[test]
fn s13_what_was_missed_is_caught_up_skipped_or_starts_a_new_phase() {
    // Run 1, due at 10, takes 34 ms: what was due at 20, 30 and 40 is missed.
    let takes = |run| if run == 1 { 34 } else { 0 };
    let rate = Period::fixed_rate(MILLI * 10);
    let until = MILLI * 80;
    assert_eq!(begins(rate, until, takes), [0, 10, 44, 44, 44, 50, 60, 70, 80]);
    assert_eq!(begins(rate.missed(MissedTicks::Skip), until, takes), [0, 10, 50, 60, 70, 80]);
    assert_eq!(begins(rate.missed(MissedTicks::Delay), until, takes), [0, 10, 54, 64, 74]);
    let gap = Period::fixed_delay(MILLI * 10);
    assert_eq!(begins(gap, until, takes), [0, 10, 54, 64, 74]);
}

#[test]
fn s13_a_run_that_ends_on_the_next_due_time_has_missed_nothing() {
    let takes = |run| if run == 1 { 10 } else { 0 };
    for missed in [MissedTicks::Burst, MissedTicks::Skip, MissedTicks::Delay] {
        let rate = Period::fixed_rate(MILLI * 10).missed(missed);
        assert_eq!(begins(rate, MILLI * 40, takes), [0, 10, 20, 30, 40], "{missed:?}");
    }
}

#[test]
fn s13_a_fixed_delay_counts_from_the_end_of_each_run() {
    let gap = Period::fixed_delay(MILLI * 10);
    assert_eq!(begins(gap, MILLI * 40, |_| 3), [0, 13, 26, 39]);
    assert_eq!(gap.missed(MissedTicks::Skip), gap, "it misses nothing");
    assert_eq!(gap.duration(), MILLI * 10);
}

#[test]
fn s14_nothing_is_allocated_in_the_steady_state() {
    let (scheduler, driver) =
        Scheduler::builder().executor(Inline).build_driven().expect("good settings");
    let runs = Arc::new(AtomicUsize::new(0));
    let fire = |count: usize| {
        for n in 0..count {
            let (runs, weight) = (Arc::clone(&runs), [n, n, n]); // 32 bytes
            let task = move || {
                runs.fetch_add(weight.len(), Ordering::Relaxed);
            };
            let delay = MILLI * u32::try_from(n % 7).expect("small");
            scheduler.schedule_once(delay, task).expect("open");
            driver.advance(MILLI);
        }
        driver.advance(MILLI * 10);
    };
    let cancel = |count: usize| {
        for _ in 0..count {
            let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
            assert!(handle.cancel());
            driver.turn();
        }
    };
    // The first rounds allocate memory that the later ones use again.
    (0..2).for_each(|_| fire(10_000));
    assert_eq!(allocations(|| fire(10_000)), 0, "schedule and fire");
    (0..3).for_each(|_| cancel(10_000));
    assert_eq!(allocations(|| cancel(10_000)), 0, "schedule and cancel");

    // Sleeps too: one that fires, one that is moved to a later time, and one that is dropped.
    let mut context = Context::from_waker(Waker::noop());
    let mut sleep = |count: usize| {
        for _ in 0..count {
            let [mut fires, mut put_off, mut dropped] = [(); 3].map(|()| scheduler.sleep(MILLI));
            for sleep in [&mut fires, &mut put_off, &mut dropped] {
                assert!(Pin::new(sleep).poll(&mut context).is_pending());
            }
            Pin::new(&mut put_off).reset(scheduler.now() + HOUR);
            drop(dropped);
            driver.advance(MILLI);
            assert!(Pin::new(&mut fires).poll(&mut context).is_ready());
            assert!(Pin::new(&mut put_off).poll(&mut context).is_pending());
        }
    };
    sleep(10_000);
    // Three sleeps each time: a million with `TICKWHEEL_FULL`.
    let rounds = crate::common::count(20_000, 340_000);
    assert_eq!(allocations(|| sleep(rounds)), 0, "sleeps");

    let count = Arc::clone(&runs);
    scheduler
        .schedule_repeatedly(MILLI, MILLI, move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .expect("open");
    driver.advance(SECOND);
    assert_eq!(allocations(|| assert_eq!(driver.advance(SECOND * 10), 10_000)), 0, "repeat");

    let large = [0_u8; 33];
    let boxed = allocations(|| {
        scheduler.schedule_once(MILLI, move || assert_eq!(large.len(), 33)).expect("open");
    });
    assert_eq!(boxed, 1, "33 bytes lie in a box, so the counter counts");
}

#[test]
fn s15_a_panic_ends_the_series_and_is_reported() {
    let (report, reports) = mpsc::channel();
    let (scheduler, driver) = Scheduler::builder()
        .on_panic(move |panic| drop(report.send(panic.message().map(str::to_owned))))
        .build_driven()
        .expect("good settings");
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let mut run = 0;
    let series = scheduler
        .schedule_repeatedly(SECOND, SECOND, move || {
            let _hold = &hold;
            run += 1;
            assert!(run < 3, "run {run}");
        })
        .expect("open");
    assert_eq!(driver.advance(HOUR), 3);
    assert!(series.is_done() && !series.is_cancelled() && !series.cancel());
    assert_eq!(reports.try_iter().flatten().collect::<Vec<_>>(), ["run 3"]);
    assert_eq!(Arc::strong_count(&alive), 1, "the closure is gone");
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.panicked(), stats.pending()), (3, 1, 0));
}

/// Asks a handle when it is dropped, and keeps a clone of it.
struct Asks(Arc<Mutex<Vec<Cancellable>>>);

impl Drop for Asks {
    fn drop(&mut self) {
        let handles = &mut *self.0.lock().expect("no panic");
        let handle = handles.first().expect("one was put there").clone();
        assert!(handle.is_done() && !handle.is_cancelled() && !handle.cancel());
        handles.push(handle);
    }
}

#[test]
fn s15_a_series_that_ends_of_itself_never_says_that_it_was_cancelled() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let handles = Arc::new(Mutex::new(Vec::new()));
    let asks = Asks(Arc::clone(&handles));
    let task = move || {
        let _asks = &asks;
        ControlFlow::Break(())
    };
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, task).expect("open");
    handles.lock().expect("no panic").push(series);
    assert_eq!(driver.advance(HOUR), 1);
    assert_eq!(scheduler.stats().panicked(), 0, "the captured value has found something");
    let handles = handles.lock().expect("no panic");
    assert_eq!(handles.len(), 2);
    assert!(handles.iter().all(|handle| handle.is_done() && !handle.is_cancelled()));
}

#[test]
fn s15_a_zero_period_is_an_error_and_never_runs() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let alive = Arc::new(());
    let task = || {
        let hold = Arc::clone(&alive);
        move || drop(hold.clone())
    };
    let zero = Duration::ZERO;
    for refused in [
        scheduler.schedule_repeatedly(zero, zero, task()),
        scheduler.schedule_with_fixed_delay(zero, zero, task()),
        scheduler.schedule_periodic(zero, Period::fixed_rate(zero), task()),
    ] {
        assert_eq!(refused.unwrap_err(), ScheduleError::ZeroPeriod);
    }
    assert_eq!(Arc::strong_count(&alive), 1);
    assert_eq!((driver.advance(SECOND), scheduler.stats().scheduled()), (0, 0));
}

#[test]
fn a_break_ends_the_series() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let mut left = 4;
    let series = scheduler
        .schedule_with_fixed_delay(SECOND, SECOND, move || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("open");
    assert_eq!(driver.advance(HOUR), 4);
    assert!(series.is_done() && !series.is_cancelled());
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn s16_a_task_cancels_itself() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let own = Arc::new(Mutex::new(None::<Cancellable>));
    let inner = Arc::clone(&own);
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let mut runs = 0;
    let series = scheduler
        .schedule_repeatedly(SECOND, SECOND, move || {
            let _hold = &hold;
            runs += 1;
            if runs == 2 {
                // Taken out of the mutex, so that the handle is dropped with the closure.
                let own = inner.lock().expect("whole").take();
                assert!(own.expect("put there before the run").cancel());
            }
        })
        .expect("open");
    *own.lock().expect("whole") = Some(series.clone());
    assert_eq!(driver.advance(HOUR), 2);
    assert!(series.is_cancelled() && series.is_done());
    assert_eq!(Arc::strong_count(&alive), 1);
}
