//! Two faults at a time (S8, S9, S10, S17, S20, S26). Each pair meets in a process of its own, because at worst it ends the
//! process.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{
    Cancellable, DueBatch, DueTask, Executor, Inline, ManualClock, Precision, Rejected, Scheduler,
};

use super::service::{Figures, scenario, within};
use crate::common::ledger::{End, Ledger};
use crate::common::{Moody, OnDrop, count, length, panic_on_purpose, silence};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn child(pair: &str) -> Figures {
    silence();
    match pair {
        "cancel" | "leftover" | "series" => closure_and_executor(pair),
        "clock" => clock_between_claim_and_run(),
        "trim" => already_cancelled_after_a_trim(),
        "inside" => cancelled_from_inside_its_one_run(),
        "waker" => a_waker_that_panics(),
        "stranger" => a_stranger_without_a_place(),
        other => panic!("no such pair: {other}"),
    }
    let mut figures = Figures::default();
    figures.set("survived", 1.0);
    figures
}

/// Waits for something that other threads do soon, if they do it at all.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    assert!(within(SECOND * 20, is_so), "it did not come about: {what}");
}

/// Checks that the process of the pair survives and finds everything as it should be.
fn survives(pair: &str) {
    let told = scenario(&format!("fault {pair}"), SECOND * 60);
    let figures = told.unwrap_or_else(|why| panic!("{pair}: {why}"));
    assert!(figures.get("survived") > 0.0);
}

// ----- a closure and its executor, which both panic while they are dropped --------------------------

struct Bomb;

impl Executor for Bomb {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        task.run();
        Ok(())
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose: the executor");
    }
}

fn closure_and_executor(way: &str) {
    let reported = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let hook = Arc::clone(&reported);
    let builder = Scheduler::builder().executor(Inline).on_panic(move |panic| {
        let whose = usize::from(panic.message() == Some("on purpose: the executor"));
        hook[whose].fetch_add(1, Ordering::Relaxed);
    });
    let scheduler = builder.build().expect("a tick thread");
    let grenade = OnDrop(|| panic_on_purpose());
    let own = scheduler.with_executor(Bomb);
    // From here on the task is the only one that holds the executor.
    if way == "series" {
        let mut runs = 0;
        let task = move || {
            let _held = &grenade;
            runs += 1;
            if runs == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let series = own.schedule_repeatedly(MILLI * 20, MILLI, task).expect("open");
        drop(own);
        soon("the series ends", || series.is_done());
    } else {
        let handle = own.schedule_once(HOUR, move || drop(grenade)).expect("open");
        drop(own);
        if way == "cancel" {
            assert!(handle.cancel(), "a panic in a drop does not change who has won");
        } else {
            let leftovers = scheduler.close().expect("in time");
            assert_eq!(leftovers.len(), 1);
            drop(leftovers);
        }
        assert!(handle.is_done());
    }
    soon("the closure's panic is reported", || reported[0].load(Ordering::Relaxed) == 1);
    soon("the executor's panic is reported", || reported[1].load(Ordering::Relaxed) == 1);
    assert_eq!(scheduler.pending(), 0);
    if way != "leftover" {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        soon("the tick thread lives", || ran.load(Ordering::Relaxed) == 1);
    }
}

#[test]
fn s09_s17_a_cancel_survives_a_closure_and_an_executor_that_panic_in_drop() {
    survives("cancel");
}

#[test]
fn s09_s17_a_leftover_survives_a_closure_and_an_executor_that_panic_in_drop() {
    survives("leftover");
}

#[test]
fn s15_s17_the_end_of_a_series_survives_a_closure_and_an_executor_that_panic_in_drop() {
    survives("series");
}

// ----- a clock that panics ----------------------------------------------------------------------

/// Breaks the clock at its n-th reading while a one-shot and a series are due.
fn break_the_clock(precision: Precision, breaks_at: usize) {
    let armed = Arc::new(AtomicUsize::new(0));
    let clock = Moody(ManualClock::new(), Arc::clone(&armed));
    let builder = Scheduler::builder().executor(Inline).clock(clock).precision(precision);
    let (scheduler, driver) = builder.build_driven().expect("the defaults are good");
    let (ledger, runs) = (Ledger::new(1), Arc::new(AtomicUsize::new(0)));
    let page = ledger.page(0);
    let once = scheduler.schedule_once(MILLI * 5, move || page.run()).expect("open");
    let beat = Arc::clone(&runs);
    let beat = move || _ = beat.fetch_add(1, Ordering::Relaxed);
    let series = scheduler.schedule_repeatedly(MILLI * 5, MILLI * 5, beat).expect("open");
    driver.turn();
    armed.store(breaks_at, Ordering::Relaxed);
    for _ in 0..4 {
        let _ = catch_unwind(AssertUnwindSafe(|| driver.advance(MILLI * 5)));
    }
    armed.store(0, Ordering::Relaxed);
    driver.advance(SECOND);

    let at = format!("{precision:?}, at reading {breaks_at}");
    assert!(ledger.is_closed(), "the one-shot has no end; {at}");
    ledger.tally().assert_balanced();
    assert!(once.is_done(), "{at}");
    let before = runs.load(Ordering::Relaxed);
    driver.advance(SECOND);
    let goes_on = runs.load(Ordering::Relaxed) > before;
    assert!(goes_on != series.is_done(), "the series neither goes on nor ends; {at}");
    assert_eq!(series.cancel(), goes_on, "{at}");
    assert_eq!(scheduler.pending(), 0, "{at}");
    let stats = scheduler.stats();
    let ended = u64::from(ledger.tally().of(End::Ran) == 1) + stats.dropped();
    assert!(ended >= 1, "{at}: {stats:?}");
    assert!(stats.dropped() <= stats.scheduled(), "{at}: {stats:?}");
    assert!(driver.close().is_empty(), "{at}");
}

fn clock_between_claim_and_run() {
    for precision in [Precision::Tick, Precision::Exact] {
        (1..60).for_each(|breaks_at| break_the_clock(precision, breaks_at));
    }
}

#[test]
fn s17_s20_a_clock_that_panics_between_claim_and_run_leaves_one_end() {
    survives("clock");
}

// ----- handles -----------------------------------------------------------------------------------

fn already_cancelled_after_a_trim() {
    let dead = Cancellable::already_cancelled();
    let clone = dead.clone();
    let is_dead = |handle: &Cancellable| {
        assert!(handle.is_done() && handle.is_cancelled() && !handle.cancel());
    };
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    for _ in 0..2 {
        let schedule = |_| scheduler.schedule_once(HOUR, || ()).expect("open");
        let handles: Vec<_> = (0..count(200_000, 2_000_000)).map(schedule).collect();
        assert!(handles.iter().all(Cancellable::cancel));
        thread::sleep(length(MILLI * 300, MILLI * 700, MILLI * 700)); // until the memory of the peak has gone back
        [&dead, &clone, &clone.clone(), &dead.clone()].into_iter().for_each(is_dead);
        is_dead(&Cancellable::already_cancelled().clone());
        is_dead(&handles[handles.len() / 2].clone());
    }
    drop(scheduler);
    is_dead(&clone.clone());
}

#[test]
fn s08_s10_an_already_cancelled_handle_stays_done_after_a_trim() {
    survives("trim");
}

fn cancelled_from_inside_its_one_run() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let own: Arc<Mutex<Option<Cancellable>>> = Arc::default();
    let told: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (handle, answers) = (Arc::clone(&own), Arc::clone(&told));
    let task = move || {
        let handle = handle.lock().expect("no panic").clone().expect("it is there");
        answers.lock().expect("no panic").push(handle.cancel());
    };
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, task).expect("open");
    *own.lock().expect("no panic") = Some(series.clone());
    let leftovers = driver.close();
    assert_eq!(leftovers.len(), 1);
    leftovers.into_iter().for_each(tickwheel::PendingTask::run);
    assert_eq!(
        *told.lock().expect("no panic"),
        [false],
        "its one run had started: nothing to prevent"
    );
    assert!(series.is_done());
    let stats = scheduler.stats();
    assert_eq!(
        (scheduler.pending(), stats.pending(), stats.cancelled(), stats.fired()),
        (0, 0, 0, 1)
    );
}

#[test]
fn s08_s22_a_leftover_series_that_cancels_itself_in_its_one_run_prevents_nothing() {
    survives("inside");
}

// ----- a waker that panics -----------------------------------------------------------------------

struct Rude(AtomicUsize);

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic_on_purpose();
    }
}

fn a_waker_that_panics() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let (rude, ran) = (Arc::new(Rude(AtomicUsize::new(0))), Arc::new(AtomicUsize::new(0)));
    driver.wake_with(Some(Waker::from(Arc::clone(&rude))));
    let schedule = |delay| {
        let count = Arc::clone(&ran);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        scheduler.schedule_once(delay, task).expect("open")
    };
    let told = catch_unwind(AssertUnwindSafe(|| {
        for millis in (0..5).rev() {
            driver.turn();
            schedule(MILLI * millis);
            thread::scope(|scope| scope.spawn(|| _ = schedule(MILLI * millis)).join())
                .expect("no panic");
        }
        schedule(Duration::ZERO).cancel();
        drop(scheduler.stats());
    }));
    assert!(told.is_ok(), "a waker's panic is not the caller's");
    assert!(rude.0.load(Ordering::Relaxed) > 0, "it is called");
    driver.advance(SECOND);
    assert_eq!((ran.load(Ordering::Relaxed), scheduler.pending()), (10, 0));
    let told = catch_unwind(AssertUnwindSafe(|| scheduler.stop()));
    assert!(told.is_ok(), "nor when it stops");
}

#[test]
fn s17_a_waker_that_panics_does_not_unwind_out_of_a_schedule() {
    survives("waker");
}

// ----- a foreign task, and no room for it --------------------------------------------------------

/// Gives a foreign task back with its first batch, and refuses its own tasks.
struct Host(Mutex<Vec<DueTask>>);

impl Executor for Host {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        Err(Rejected::new(task))
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        let strangers = std::mem::take(&mut *self.0.lock().expect("no panic"));
        strangers.into_iter().for_each(|stranger| batch.reject(Rejected::new(stranger)));
        while let Some(task) = batch.next() {
            batch.reject(Rejected::new(task));
        }
    }
}

fn a_stranger_without_a_place() {
    const STRANGERS: usize = 5;
    let ledger = Ledger::new(STRANGERS);
    let strangers = (0..STRANGERS).map(|id| {
        let page = ledger.page(id);
        DueTask::new(Instant::now(), move || page.run())
    });
    let host = Host(Mutex::new(strangers.collect()));
    let builder = Scheduler::builder().executor(host).max_pending(2);
    let (scheduler, driver) = builder.build_driven().expect("the defaults are good");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    let far = scheduler.schedule_once(HOUR, || ()).expect("open");
    driver.advance(SECOND * 2);
    let consistent = |pending: u64| {
        let stats = scheduler.stats();
        assert!(stats.dropped() <= stats.scheduled(), "{stats:?}");
        let ended = stats.fired() + stats.cancelled() + stats.dropped();
        assert_eq!((stats.scheduled(), stats.pending()), (ended + pending, pending), "{stats:?}");
        assert_eq!(scheduler.pending() as u64, pending);
    };
    let pending = scheduler.pending() as u64;
    assert!(pending >= 2, "its own tasks are refused, not lost");
    consistent(pending);
    assert!(far.cancel());
    consistent(pending - 1);
    driver.advance(SECOND * 2);
    drop(driver.close());
    soon("every stranger has an end", || ledger.is_closed());
    ledger.tally().assert_balanced();
}

#[test]
fn s20_s25_s26_a_stranger_that_finds_no_place_leaves_the_books_balanced() {
    survives("stranger");
}
