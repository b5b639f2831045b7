//! Faults around `time`: wakers that panic or drop what they are woken for, and threads that sleep as they end.

use std::cell::RefCell;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Poll, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::{Duration, Instant as StdInstant};

use crate::common::told::Poller;
use crate::common::{Grenade, Moody, PATIENCE, driven, driven_by, panic_on_purpose, silence};
use crate::{close, poll_with, waker};
use tickwheel::future::block_on;
use tickwheel::time::Sleep;
use tickwheel::{ManualClock, Scheduler, time};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

const READY: Poll<()> = Poll::Ready(());

// ----- wakers that panic -------------------------------------------------------------------

#[test]
fn s17_a_waker_that_panics_takes_nobody_along() {
    silence();
    let panics = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&panics);
    let builder = Scheduler::builder().on_panic(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let ((scheduler, driver), task) = (driven_by(builder), Poller::new());
    let mut sleeps: Vec<_> = (0..3).map(|_| scheduler.sleep(MILLI)).collect();
    assert!(task.poll(&mut sleeps[0]).is_pending());
    assert!(poll_with(&mut sleeps[1], &waker(|| panic_on_purpose())).is_pending());
    assert!(task.poll(&mut sleeps[2]).is_pending());
    driver.advance(MILLI);
    assert_eq!((task.woken(), panics.load(Ordering::Relaxed)), (2, 1));
    assert_eq!(scheduler.stats().panicked(), 1);
    // A waker panics when it is dropped, because of a drop of the sleep, and because of the end.
    let mut sleeps: Vec<_> = (0..2).map(|_| scheduler.sleep(SECOND)).collect();
    for sleep in &mut sleeps {
        let grenade = Mutex::new(Grenade);
        assert!(poll_with(sleep, &waker(move || drop(grenade.lock()))).is_pending());
    }
    drop(sleeps.pop());
    assert_eq!(panics.load(Ordering::Relaxed), 2);
    close(&scheduler);
    assert_eq!(panics.load(Ordering::Relaxed), 3);
    assert_eq!(scheduler.pending(), 0);
}

/// A waker without data whose clones panic.
const RUDE: RawWakerVTable = RawWakerVTable::new(|_| panic_on_purpose(), |_| (), |_| (), |_| ());

/// The panic is that of the poll. The sleep is as if it had not been polled.
#[test]
fn s17_a_waker_that_panics_as_it_is_cloned_leaves_the_sleep_whole() {
    silence();
    // SAFETY: no function of the table uses the data.
    let rude = unsafe { Waker::from_raw(RawWaker::new(ptr::null(), &RUDE)) };
    let panics = |sleep: &mut Sleep| {
        catch_unwind(AssertUnwindSafe(|| poll_with(sleep, &rude))).expect_err("it panics");
    };
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    for _ in 0..2 {
        panics(&mut sleep);
        assert_eq!((scheduler.pending(), task.wakers()), (0, 0));
        assert!(task.poll(&mut sleep).is_pending());
    }
    driver.advance(SECOND);
    assert_eq!((task.woken(), task.poll(&mut sleep)), (1, READY));
    // Elsewhere.
    close(&scheduler);
    let mut sleep = scheduler.sleep(MILLI);
    panics(&mut sleep);
    assert!(task.polls_until_ready(&mut sleep) <= 2);
}

/// A reset to a time that has come wakes on the thread of the caller.
#[test]
fn s17_a_waker_that_panics_in_a_reset_leaves_the_sleep_whole() {
    silence();
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let mut sleep = scheduler.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker(|| panic_on_purpose())).is_pending());
    let to_now = || Pin::new(&mut sleep).reset(scheduler.now());
    catch_unwind(AssertUnwindSafe(to_now)).expect_err("it is the waker's panic");
    assert_eq!((task.poll(&mut sleep), scheduler.pending()), (READY, 0));
}

/// The hook of a runtime calls `advance_when_idle`, and a panic in it would end the runtime.
#[test]
fn s17_a_waker_that_panics_on_a_paused_thread_does_not_end_its_runtime() {
    silence();
    time::pause();
    let (task, mut rude, mut other) = (Poller::new(), time::sleep(SECOND), time::sleep(SECOND * 2));
    assert!(task.poll(&mut other).is_pending());
    assert!(poll_with(&mut rude, &waker(|| panic_on_purpose())).is_pending());
    let idle = || catch_unwind(time::advance_when_idle).is_ok();
    assert!(idle() && idle());
    assert_eq!((task.poll(&mut rude), task.poll(&mut other)), (READY, READY));
    time::resume();
}

// ----- dropped while firing ----------------------------------------------------------------

type Held = Arc<Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>>;

/// Both as its time comes and as the scheduler ends.
#[test]
fn s11_a_waker_drops_the_very_future_that_it_is_woken_for() {
    for is_end in [false, true] {
        let (scheduler, driver) = driven();
        let mut ticks = scheduler.interval_at(scheduler.now() + SECOND, SECOND);
        let timeout = scheduler.timeout(SECOND, pending::<()>());
        let held: [Held; 3] = [
            Arc::new(Mutex::new(Some(Box::pin(scheduler.sleep(SECOND))))),
            Arc::new(Mutex::new(Some(Box::pin(async { _ = timeout.await })))),
            Arc::new(Mutex::new(Some(Box::pin(async move { _ = ticks.tick().await })))),
        ];
        let dropped = Arc::new(AtomicUsize::new(0));
        for held in &held {
            let (inside, dropped) = (Arc::clone(held), Arc::clone(&dropped));
            let drops = waker(move || {
                drop(inside.lock().expect("no panic").take());
                dropped.fetch_add(1, Ordering::Relaxed);
            });
            let mut future = held.lock().expect("no panic");
            assert!(poll_with(future.as_mut().expect("not yet"), &drops).is_pending());
        }
        if is_end {
            close(&scheduler);
        } else {
            assert_eq!(driver.advance(SECOND), 3);
        }
        assert_eq!((dropped.load(Ordering::Relaxed), scheduler.pending()), (3, 0));
        assert!(held.iter().all(|held| held.lock().expect("no panic").is_none()));
    }
}

// ----- at the end of a thread --------------------------------------------------------------

/// Sleeps in the destructor of a thread-local, in all ways.
struct SleepsAtTheEnd(Sender<Duration>);

impl Drop for SleepsAtTheEnd {
    fn drop(&mut self) {
        let start = StdInstant::now();
        block_on(time::sleep(MILLI * 5));
        assert!(block_on(time::timeout(MILLI, pending::<()>())).is_err());
        assert_eq!(block_on(time::timeout(HOUR, async { 7 })), Ok(7));
        let mut ticks = time::interval(MILLI);
        (0..3).for_each(|_| _ = block_on(ticks.tick()));
        time::advance_when_idle();
        let took = start.elapsed();
        let (scheduler, driver) = driven();
        let _in_force = scheduler.enter();
        driver.block_on(scheduler.sleep(HOUR)).expect("it is woken");
        self.0.send(took).expect("awaited");
    }
}

thread_local! {
    static FIRST: RefCell<Option<SleepsAtTheEnd>> = const { RefCell::new(None) };
    static LAST: RefCell<Option<SleepsAtTheEnd>> = const { RefCell::new(None) };
}

/// Leaves a waker that sleeps, too, when it is woken: by the end of the virtual clock, which is the end of the thread.
fn leaves_a_sleeper() {
    time::pause();
    let mut sleep = time::sleep(HOUR);
    let sleeps = waker(|| assert!(Poller::new().poll(&mut time::sleep(HOUR)).is_pending()));
    assert!(poll_with(&mut sleep, &sleeps).is_pending());
    std::mem::forget(sleep);
}

/// One of the two is dropped before what `time` keeps for the thread, and one after that.
#[test]
fn a_thread_sleeps_as_its_thread_locals_are_dropped() {
    let uses: [(fn(), bool); 6] = [
        (|| (), true),
        (|| block_on(time::sleep(MILLI)), true),
        (|| drop(Scheduler::new().enter()), true),
        (|| std::mem::forget(Box::leak(Box::new(Scheduler::new())).enter()), true),
        (time::pause, false),
        (leaves_a_sleeper, false),
    ];
    for (uses, is_real) in uses {
        let (tell, told) = mpsc::channel();
        let tells = tell.clone();
        let thread = thread::spawn(move || {
            FIRST.set(Some(SleepsAtTheEnd(tell)));
            uses();
            LAST.set(Some(SleepsAtTheEnd(tells)));
        });
        for _ in 0..2 {
            let took = told.recv_timeout(PATIENCE).expect("it does not hang");
            assert!(!is_real || took >= MILLI * 8, "{took:?}");
        }
        thread.join().expect("no panic");
    }
}

/// A reset takes the waker out of the alarm, to set another one.
#[test]
fn s17_a_clock_that_panics_in_a_reset_loses_no_waker() {
    silence();
    let readings = Arc::new(AtomicUsize::new(0));
    let clock = Moody(ManualClock::new(), Arc::clone(&readings));
    let (scheduler, _driver) = driven_by(Scheduler::builder().clock(clock));
    let poller = Poller::new();
    let mut sleep = Box::pin(scheduler.sleep(Duration::from_secs(60)));
    assert!(poller.poll(&mut sleep).is_pending());
    readings.store(1, Ordering::Relaxed);
    let earlier = StdInstant::now();
    let reset = catch_unwind(AssertUnwindSafe(|| sleep.as_mut().reset(earlier)));
    assert!(reset.is_err() && poller.woken() == 1, "the task polls it again");
}

/// The panic is that of the poll. The next one finds the scheduler that is closed once more, and what is left by its clock.
#[test]
fn s17_a_clock_that_panics_as_a_sleep_goes_over_leaves_its_deadline() {
    silence();
    let (clock, readings) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    clock.advance(HOUR);
    let clock = Moody(clock, Arc::clone(&readings));
    let (scheduler, _driver) = driven_by(Scheduler::builder().clock(clock));
    let (poller, mut sleep) = (Poller::new(), Box::pin(scheduler.sleep(SECOND * 60)));
    close(&scheduler);
    readings.store(2, Ordering::Relaxed); // the second one is of what is left
    catch_unwind(AssertUnwindSafe(|| poller.poll(&mut sleep))).expect_err("it panics");
    assert!(poller.poll(&mut sleep).is_pending());
    assert!(sleep.deadline().into_std() < StdInstant::now() + SECOND * 70, "by the global clock");
}
