//! Executors and tasks that misbehave: they panic a million times, reject everything, or block for ever (S6, S8, S17, S18, S20,
//! S21).
//!
//! `TICKWHEEL_FULL=1` runs the full counts, as `scripts/storms` does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::ledger::{End, Ledger};
use crate::common::{PATIENCE, Wall, count, digits, panic_on_purpose, silence, until};
use tickwheel::{
    Cancellable, CloseError, DueBatch, DueTask, Executor, Inline, Rejected, ScheduleError,
    Scheduler, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The thread that runs the tasks of an inline scheduler.
fn tick_thread(scheduler: &Scheduler) -> ThreadId {
    let (sender, receiver) = mpsc::channel();
    let task = move || sender.send(thread::current().id()).expect("the receiver lives");
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    receiver.recv_timeout(PATIENCE).expect("the tick thread lives")
}

// ----- panics --------------------------------------------------------------------------------

#[test]
fn s17_a_million_panics_on_the_tick_thread() {
    silence();
    let tasks = count(100_000, 1_000_000);
    let reported = Arc::new(AtomicUsize::new(0));
    let hook = Arc::clone(&reported);
    let builder = Scheduler::builder().executor(Inline).on_panic(move |panic| {
        let is_ours = panic.message() == Some("on purpose");
        hook.fetch_add(usize::from(is_ours), Ordering::Relaxed);
    });
    let scheduler = builder.build().expect("a tick thread");
    let before = tick_thread(&scheduler);
    for number in 0..tasks {
        let delay = Duration::from_micros(number as u64 % 1_000);
        scheduler.schedule_once(delay, || panic_on_purpose()).expect("open");
    }
    until("all have panicked", || scheduler.pending() == 0);
    assert_eq!(tick_thread(&scheduler), before, "the tick thread lives");
    let (stats, reported) = (scheduler.stats(), reported.load(Ordering::Relaxed));
    let counted = usize::try_from(stats.panicked()).expect("it fits");
    println!(
        "{} tasks panicked: {} counted, {} reported",
        digits(tasks),
        digits(counted),
        digits(reported)
    );
    assert_eq!((counted, reported), (tasks, tasks));
    assert_eq!(stats.fired(), tasks as u64 + 2);
}

/// Panics at every call: before it has taken a task, with one in its hands, or after it has run one.
struct Rude(AtomicUsize);

impl Executor for Rude {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        Err(Rejected::new(task))
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        let mood = self.0.fetch_add(1, Ordering::Relaxed) % 3;
        let in_its_hands = if mood > 0 { batch.next() } else { None };
        if mood == 2 {
            in_its_hands.into_iter().for_each(DueTask::run);
        }
        panic_on_purpose();
    }
}

#[test]
fn s17_s20_an_executor_that_panics_at_every_call() {
    silence();
    let tasks = count(3_000, 30_000);
    let calls = Arc::new(Rude(AtomicUsize::new(0)));
    let builder = Scheduler::builder().executor(Arc::clone(&calls)).tick(MILLI / 10);
    let scheduler = builder.build().expect("a tick thread");
    let ledger = Ledger::new(tasks);
    for id in 0..tasks {
        let page = ledger.page(id);
        scheduler.schedule_once(Duration::ZERO, move || page.run()).expect("open");
    }
    until("every task has an end", || ledger.is_closed());
    let (tally, calls) = (ledger.tally(), calls.0.load(Ordering::Relaxed));
    println!("an executor that panicked {} times, {} tasks: {tally}", digits(calls), digits(tasks));
    tally.assert_balanced();
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.pending()), (tally.of(End::Ran) as u64, 0));
    assert_eq!(stats.dropped(), tally.of(End::Dropped) as u64);
    assert!(tally.of(End::Ran) > 0 && tally.of(End::Dropped) > 0);
}

// ----- rejections ----------------------------------------------------------------------------

#[test]
fn s18_s20_an_executor_that_rejects_everything() {
    let tasks = count(50_000, 1_000_000);
    let scheduler = Scheduler::builder().executor(Wall).build().expect("a tick thread");
    let ledger = Ledger::new(tasks);
    let schedule = |id| {
        let book = Arc::clone(&ledger);
        let task = move || book.book(id, End::Returned);
        scheduler.schedule_once(Duration::from_micros(id as u64 % 3_000), task).expect("open")
    };
    let handles: Vec<_> = (0..tasks).map(schedule).collect();
    // The tasks of the first batch are refused, and then one after the other (S30).
    until("it was asked again and again", || scheduler.stats().rejected() >= 8);
    assert_eq!(scheduler.pending(), tasks);
    for (id, handle) in handles.iter().enumerate().step_by(3) {
        assert!(handle.cancel());
        ledger.book(id, End::Cancelled);
    }
    let start = Instant::now();
    let leftovers = scheduler.close().expect("in time");
    let took = start.elapsed().as_millis();
    assert_eq!(leftovers.run_all(), tasks - tasks.div_ceil(3));
    let (tally, rejected) = (ledger.tally(), scheduler.stats().rejected() as usize);
    println!(
        "{} tasks rejected {} times, closed in {took} ms: {tally}",
        digits(tasks),
        digits(rejected)
    );
    tally.assert_balanced();
    assert_eq!(scheduler.stats().fired(), tally.of(End::Returned) as u64);
}

// ----- blocks --------------------------------------------------------------------------------

/// Never comes back.
fn block_for_ever() {
    loop {
        thread::park();
    }
}

/// Closes a scheduler that cannot end. Returns how long that took.
fn close_in_vain(scheduler: &Scheduler, its_time: Duration) -> Duration {
    let start = Instant::now();
    assert_eq!(scheduler.close().unwrap_err(), CloseError::Timeout);
    let took = start.elapsed();
    assert!(took >= its_time, "it gave up after {took:?}");
    assert!(took < its_time + SECOND * 10, "it took {took:?}");
    took
}

#[test]
fn s08_s21_s23_an_executor_that_blocks_for_ever() {
    let (its_time, tasks) = (MILLI * 300, count(50_000, 1_000_000));
    let (blocks, is_blocked) = mpsc::channel();
    let builder = Scheduler::builder().shutdown_timeout(its_time).executor_fn(move |_task| {
        blocks.send(()).expect("the receiver lives");
        block_for_ever();
    });
    let scheduler = builder.build().expect("a tick thread");
    scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    is_blocked.recv_timeout(PATIENCE).expect("it is called");

    let ledger = Ledger::new(tasks);
    let schedule = |id| {
        let page = ledger.page(id);
        scheduler.schedule_once(Duration::ZERO, move || page.run()).expect("open")
    };
    let handles: Vec<_> = (0..tasks).map(schedule).collect();
    let took = [0; 2].map(|_| close_in_vain(&scheduler, its_time).as_millis());
    assert_eq!(scheduler.schedule_once(HOUR, || ()).unwrap_err(), ScheduleError::Closed);
    let cancelled = handles.iter().filter(|handle| handle.cancel()).count();
    let (first, second) = (took[0], took[1]);
    println!(
        "an executor blocks for ever: closes of {its_time:?} came back after {first} and {second} ms"
    );
    println!(
        "{} tasks behind it, {} of them cancelled: {}",
        digits(tasks),
        digits(cancelled),
        ledger.tally()
    );
    ledger.tally().assert_balanced();
    assert_eq!(cancelled, tasks);
    let start = Instant::now();
    drop((scheduler, handles));
    assert!(start.elapsed() < SECOND * 10, "the last drop waits for nobody (S24)");
}

#[test]
fn s08_s20_s21_a_pool_whose_threads_all_block_for_ever() {
    let tasks = count(50_000, 1_000_000);
    let scheduler =
        Scheduler::builder().executor(ThreadPool::new(2)).build().expect("a tick thread");
    let (blocks, is_blocked) = mpsc::channel();
    for _ in 0..2 {
        let blocks = blocks.clone();
        let task = move || {
            blocks.send(()).expect("the receiver lives");
            block_for_ever();
        };
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        is_blocked.recv_timeout(PATIENCE).expect("it runs");
    }
    let ledger = Ledger::new(tasks);
    let schedule = |id| {
        let page = ledger.page(id);
        let delay = if id % 2 == 0 { Duration::ZERO } else { HOUR };
        scheduler.schedule_once(delay, move || page.run()).expect("open")
    };
    let handles: Vec<_> = (0..tasks).map(schedule).collect();
    let start = Instant::now();
    let leftovers = scheduler.close().expect("the tick thread is not blocked");
    let (took, returned) = (start.elapsed().as_millis(), leftovers.len());
    assert!(returned >= tasks / 2, "half of them are due in an hour");
    assert_eq!(leftovers.run_all(), returned);
    let cancelled = handles.iter().filter(|handle| handle.cancel()).count();
    let tally = ledger.tally();
    println!(
        "{} tasks, a pool blocks for ever: closed in {took} ms, {} returned",
        digits(tasks),
        digits(returned)
    );
    println!("{} cancelled in the pool's queue: {tally}", digits(cancelled));
    tally.assert_balanced();
    assert_eq!((cancelled, tally.of(End::Ran)), (tasks - returned, returned));
}

/// Schedules while the tick thread stands still, and cancels every third task, until the thread goes on.
fn go_on_beside(
    scheduler: &Scheduler,
    ledger: &Arc<Ledger>,
    early: &Arc<AtomicUsize>,
    tasks: usize,
) -> usize {
    let mut open: Vec<(usize, Cancellable)> = Vec::new();
    for id in 0..tasks {
        let delay = Duration::from_micros(id as u64 % 1_500_000);
        let (book, early, called) = (Arc::clone(ledger), Arc::clone(early), Instant::now());
        let task = move || {
            early.fetch_add(usize::from(called.elapsed() < delay), Ordering::Relaxed);
            book.book(id, End::Ran);
        };
        open.push((id, scheduler.schedule_once(delay, task).expect("open")));
    }
    let mut cancelled = 0;
    for (id, handle) in open.iter().step_by(3) {
        if handle.cancel() {
            ledger.book(*id, End::Cancelled);
            cancelled += 1;
        }
    }
    cancelled
}

#[test]
fn s01_s06_s08_a_tick_thread_that_is_held_up_for_two_seconds() {
    let (hold, tasks) = (MILLI * count(1_000, 2_000) as u32, count(100_000, 3_000_000));
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let (ledger, early) = (Ledger::new(tasks), Arc::new(AtomicUsize::new(0)));
    // Real time, because the test is about a thread that is held up.
    scheduler.schedule_once(Duration::ZERO, move || thread::sleep(hold)).expect("open");
    let cancelled = go_on_beside(&scheduler, &ledger, &early, tasks);
    until("every task has an end", || ledger.is_closed());
    let (tally, early) = (ledger.tally(), early.load(Ordering::Relaxed));
    println!("held up for {hold:?}, {} tasks: {early} early, {tally}", digits(tasks));
    tally.assert_balanced();
    assert_eq!((early, tally.of(End::Cancelled)), (0, cancelled));
}
