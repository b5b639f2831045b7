//! Storms on real threads, each with a ledger: every task has one id, and every id has exactly one
//! end (S8, S10, S20, S25).
//!
//! `TICKWHEEL_STORM=20 cargo test --release --test storms` makes them twenty times as long.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{
    DueTask, Executor, Inline, MissedTicks, Period, Rejected, ScheduleError, Scheduler, ThreadPool,
};

use common::Random;

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// How much of a storm to make.
fn times(count: usize) -> usize {
    let factor = std::env::var("TICKWHEEL_STORM").ok().and_then(|factor| factor.parse().ok());
    count * factor.unwrap_or(1)
}

/// What became of each id.
struct Ledger(Vec<AtomicU8>);

const RAN: u8 = 1;
const CANCELLED: u8 = 2;
const RETURNED: u8 = 4;
const REFUSED: u8 = 8;

impl Ledger {
    fn new(ids: usize) -> Arc<Ledger> {
        Arc::new(Ledger((0..ids).map(|_| AtomicU8::new(0)).collect()))
    }

    /// Each id may be booked once.
    fn book(&self, id: usize, end: u8) {
        let before = self.0[id].fetch_or(end, Ordering::AcqRel);
        assert_eq!(before, 0, "task {id} ended as {before} and as {end}");
    }

    fn count(&self, end: u8) -> usize {
        self.0.iter().filter(|booked| booked.load(Ordering::Acquire) == end).count()
    }

    fn is_closed(&self) -> bool {
        self.count(0) == 0
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(MILLI);
    }
}

#[test]
fn s20_schedule_against_close_loses_none_and_doubles_none() {
    const PRODUCERS: usize = 3;
    const EACH: usize = 300;
    for round in 0..times(300) {
        let ledger = Ledger::new(PRODUCERS * EACH);
        let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
        let start = Arc::new(Barrier::new(PRODUCERS + 1));
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let (scheduler, ledger) = (scheduler.clone(), Arc::clone(&ledger));
                let start = Arc::clone(&start);
                thread::spawn(move || {
                    start.wait();
                    for id in producer * EACH..(producer + 1) * EACH {
                        let delay = if id % 2 == 0 { Duration::ZERO } else { HOUR };
                        let book = Arc::clone(&ledger);
                        // What is returned is run below, on the main thread.
                        let task = move || {
                            let here = thread::current();
                            let is_ticker = here.name() == Some("tickwheel");
                            book.book(id, if is_ticker { RAN } else { RETURNED });
                        };
                        match scheduler.schedule_once(delay, task) {
                            Ok(_) => {}
                            Err(ScheduleError::Closed) => ledger.book(id, REFUSED),
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        start.wait();
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        let leftovers = scheduler.close().expect("in time");
        let returned = leftovers.len();
        producers.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(leftovers.run_all(), returned);
        assert!(ledger.is_closed(), "round {round}: {} were lost", ledger.count(0));
        assert_eq!(ledger.count(RETURNED), returned);
        let accepted = ledger.0.len() - ledger.count(REFUSED);
        let stats = scheduler.stats();
        assert_eq!((stats.scheduled(), stats.pending()), (accepted as u64, 0), "round {round}");
    }
}

/// Schedules and cancels from several threads, and balances the books.
fn cancel_against_fire(executor: impl Executor, producers: usize, each: usize) {
    let ledger = Ledger::new(producers * each);
    let scheduler = Scheduler::builder().executor(executor).build().expect("a thread");
    let threads: Vec<_> = (0..producers)
        .map(|producer| {
            let (scheduler, ledger) = (scheduler.clone(), Arc::clone(&ledger));
            thread::spawn(move || {
                let mut random = Random(producer as u64);
                let mut open = Vec::new();
                for id in producer * each..(producer + 1) * each {
                    let due = scheduler.now() + Duration::from_micros(random.below(3_000));
                    let book = Arc::clone(&ledger);
                    let task = move || {
                        assert!(Instant::now() >= due, "task {id} is early");
                        book.book(id, RAN);
                    };
                    open.push((id, scheduler.schedule_at(due, task).expect("open")));
                    if random.below(3) > 0 {
                        let at = random.below(open.len() as u64) as usize;
                        let (id, handle) = open.swap_remove(at);
                        if handle.cancel() {
                            ledger.book(id, CANCELLED);
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    until("the last task", || ledger.is_closed());
    until("the books", || scheduler.pending() == 0);
    let stats = scheduler.stats();
    assert_eq!(stats.panicked(), 0);
    assert_eq!(stats.fired(), ledger.count(RAN) as u64);
    assert_eq!(stats.cancelled(), ledger.count(CANCELLED) as u64);
    assert_eq!(stats.scheduled(), (producers * each) as u64);
}

#[test]
fn s08_cancel_against_fire_on_the_tick_thread() {
    cancel_against_fire(Inline, 3, times(60_000));
}

#[test]
fn s08_cancel_against_fire_on_a_pool() {
    cancel_against_fire(ThreadPool::new(3), 3, times(60_000));
}

#[test]
fn s18_cancel_against_an_executor_that_rejects_at_random() {
    struct Moody(AtomicUsize);
    impl Executor for Moody {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            if self.0.fetch_add(1, Ordering::Relaxed) % 3 == 0 {
                return Err(Rejected::new(task));
            }
            task.run();
            Ok(())
        }
    }
    cancel_against_fire(Moody(AtomicUsize::new(0)), 2, times(30_000));
}

#[test]
fn s20_sixty_four_producers() {
    cancel_against_fire(Inline, 64, times(1_000));
}

#[test]
fn s12_series_against_cancels_and_a_close() {
    let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build().expect("a thread");
    let runs = Arc::new(AtomicUsize::new(0));
    let running = Arc::new(AtomicBool::new(false));
    // One that is watched for overlaps.
    let flag = Arc::clone(&running);
    let watched = scheduler
        .schedule_periodic(MILLI, Period::fixed_rate(MILLI / 10), move || {
            assert!(!flag.swap(true, Ordering::AcqRel), "a run overlaps the one before");
            thread::yield_now();
            flag.store(false, Ordering::Release);
        })
        .expect("open");
    for round in 0..times(2_000) {
        let count = Arc::clone(&runs);
        let period = Period::fixed_rate(Duration::from_micros(50)).missed(MissedTicks::Skip);
        let series = scheduler
            .schedule_periodic(Duration::ZERO, period, move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .expect("open");
        if round % 2 == 0 {
            thread::yield_now();
        }
        assert!(series.cancel(), "nobody else cancels it");
        assert!(series.is_done() && series.is_cancelled());
    }
    assert!(watched.cancel());
    until("the last run", || !running.load(Ordering::Acquire));
    assert_eq!(scheduler.pending(), 0);
    let leftovers = scheduler.close().expect("in time");
    assert!(leftovers.is_empty());
    let after = runs.load(Ordering::Relaxed);
    thread::sleep(MILLI * 5); // real time: nothing may run any more
    assert_eq!(runs.load(Ordering::Relaxed), after);
    assert_eq!(scheduler.stats().panicked(), 0);
}

#[test]
fn s25_a_bounded_scheduler_never_holds_more() {
    const BOUND: usize = 50;
    let scheduler =
        Scheduler::builder().executor(Inline).max_pending(BOUND).build().expect("a thread");
    let open = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (scheduler, open) = (scheduler.clone(), Arc::clone(&open));
            thread::spawn(move || {
                let (mut accepted, mut refused) = (0_u64, 0_u64);
                for n in 0..times(40_000) {
                    let count = Arc::clone(&open);
                    let held = open.fetch_add(1, Ordering::AcqRel);
                    // `held` counts from before the call to the end of the run, so it may be
                    // above what is pending by the three that are under way; never by more.
                    let task = move || {
                        count.fetch_sub(1, Ordering::AcqRel);
                    };
                    match scheduler.schedule_once(Duration::from_micros(n as u64 % 300), task) {
                        Ok(_) => {
                            accepted += 1;
                            assert!(held <= BOUND + 3, "{held} were held");
                        }
                        Err(ScheduleError::Full) => {
                            open.fetch_sub(1, Ordering::AcqRel);
                            refused += 1;
                            thread::yield_now();
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                (accepted, refused)
            })
        })
        .collect();
    let told: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let accepted: u64 = told.iter().map(|(accepted, _)| accepted).sum();
    assert!(told.iter().any(|(_, refused)| *refused > 0), "the bound was never met");
    until("the last run", || scheduler.pending() == 0);
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.fired()), (accepted, accepted));
}

#[test]
fn s24_schedulers_come_and_go() {
    let alive = Arc::new(());
    for round in 0..times(300) {
        let scheduler = Scheduler::builder()
            .executor(ThreadPool::new(1))
            .build()
            .expect("threads of earlier rounds have ended");
        for n in 0..10 {
            let hold = Arc::clone(&alive);
            let task = move || drop(hold);
            scheduler.schedule_once(Duration::from_micros(n * 100), task).expect("open");
        }
        match round % 3 {
            0 => drop(scheduler),
            1 => drop(scheduler.close().expect("in time")),
            _ => drop((scheduler.stop(), scheduler)),
        }
    }
    until("the end of all captures", || Arc::strong_count(&alive) == 1);
}
