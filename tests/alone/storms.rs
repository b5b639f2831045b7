//! Storms on real threads, each with a ledger: every task has one id, and every id has exactly one
//! end (S8, S10, S20, S25).
//!
//! `TICKWHEEL_STORM=20 cargo test --release --test storms` makes them twenty times as long, and `TICKWHEEL_FULL=1` as long as
//! in `scripts/storms`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use tickwheel::{
    DueTask, Executor, Inline, MissedTicks, Period, Precision, Rejected, ScheduleError, Scheduler,
    ThreadPool,
};

use crate::alone;
use crate::common::ledger::{End, Ledger, Tally};
use crate::common::{Random, count, digits, spin_until, until};

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

// ----- schedule against close --------------------------------------------------------------

const PRODUCERS: usize = 3;
const EACH: usize = 100;

/// Schedules on a scheduler that closes in the meantime.
fn schedule(scheduler: &Scheduler, ledger: &Arc<Ledger>, ids: Range<usize>, closer: ThreadId) {
    for id in ids {
        let delay = if id % 2 == 0 { Duration::ZERO } else { HOUR };
        let book = Arc::clone(ledger);
        // The thread that closes runs the leftovers.
        let task = move || {
            let is_returned = thread::current().id() == closer;
            book.book(id, if is_returned { End::Returned } else { End::Ran });
        };
        match scheduler.schedule_once(delay, task) {
            Ok(_) => {}
            Err(ScheduleError::Closed) => ledger.book(id, End::Refused),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Three producers against a close, which comes at another moment each time.
fn schedule_against_close(random: &mut Random) -> Tally {
    let ledger = Ledger::new(PRODUCERS * EACH);
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let (start, here) = (Barrier::new(PRODUCERS + 1), thread::current().id());
    let leftovers = thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (scheduler, ledger, start) = (&scheduler, &ledger, &start);
            scope.spawn(move || {
                start.wait();
                schedule(scheduler, ledger, producer * EACH..(producer + 1) * EACH, here);
            });
        }
        start.wait();
        spin_until(Instant::now() + Duration::from_nanos(random.below(40_000)));
        scheduler.close().expect("in time")
    });
    let returned = leftovers.len();
    assert_eq!(leftovers.run_all(), returned);
    let (tally, stats) = (ledger.tally(), scheduler.stats());
    tally.assert_balanced();
    assert_eq!(tally.of(End::Returned), returned);
    let accepted = tally.ids - tally.of(End::Refused);
    assert_eq!((stats.scheduled(), stats.pending()), (accepted as u64, 0));
    tally
}

#[test]
fn s20_schedule_against_close_loses_none_and_doubles_none() {
    let _alone = alone();
    let rounds = count(150_000, 10_000_000).div_ceil(PRODUCERS * EACH);
    let (mut all, mut amid, mut random) = (Tally::default(), 0, Random(20));
    for _ in 0..rounds {
        let tally = schedule_against_close(&mut random);
        amid += usize::from((1..tally.ids).contains(&tally.of(End::Refused)));
        all += tally;
    }
    let (races, rounds) = (digits(all.ids), digits(rounds));
    println!("{races} schedules against {rounds} closes, {} of them amid: {all}", digits(amid));
    assert!(amid > 0, "no close has met a schedule");
}

// ----- cancel against fire -----------------------------------------------------------------

/// As many tasks as this are due at one moment.
const TOGETHER: usize = 256;

/// Tasks that are due together. Each of them is cancelled once while they fire: in the order of the runs, or in the opposite
/// order.
fn cancel_amid_fires(scheduler: &Scheduler, random: &mut Random) -> Tally {
    let ledger = Ledger::new(TOGETHER);
    let due = scheduler.now() + Duration::from_micros(30);
    let first = random.below(TOGETHER as u64 * 3 / 4) as usize;
    let book = |id| {
        let ledger = Arc::clone(&ledger);
        let task = move || {
            ledger.book(id, End::Ran);
            if id == first {
                thread::yield_now(); // so that they also meet on a machine with one processor
            }
        };
        scheduler.schedule_at(due, task).expect("open")
    };
    let mut handles: Vec<_> = (0..TOGETHER).map(|id| (id, book(id))).collect();
    if random.one_in(2) {
        handles.reverse();
    }
    while !ledger.is_booked(first) {
        thread::yield_now();
    }
    for (id, handle) in &handles {
        if handle.cancel() {
            ledger.book(*id, End::Cancelled);
        }
    }
    while !ledger.is_closed() {
        thread::yield_now();
    }
    ledger.tally()
}

/// Cancels against fires, a few hundred at a time.
fn cancel_meets_fire(place: &str, executor: impl Executor) {
    let builder = Scheduler::builder().executor(executor).precision(Precision::Exact);
    let scheduler = builder.build().expect("a thread");
    let (mut all, mut met, mut random) = (Tally::default(), 0, Random(8));
    let rounds = count(200_000, 10_000_000).div_ceil(TOGETHER);
    for _ in 0..rounds {
        let tally = cancel_amid_fires(&scheduler, &mut random);
        tally.assert_balanced();
        met += usize::from(tally.of(End::Cancelled) > 0);
        all += tally;
    }
    let (races, rounds) = (digits(all.ids), digits(rounds));
    println!(
        "{races} cancels against fires {place}, met in {} of {rounds} rounds: {all}",
        digits(met)
    );
    assert!(met > 0, "no cancel has met a fire");
    let stats = scheduler.stats();
    assert_eq!(stats.fired(), all.of(End::Ran) as u64);
    assert_eq!(stats.cancelled(), all.of(End::Cancelled) as u64);
}

#[test]
fn s08_one_winner_when_cancels_meet_fires_on_the_tick_thread() {
    let _alone = alone();
    cancel_meets_fire("on the tick thread", Inline);
}

#[test]
fn s08_one_winner_when_cancels_meet_fires_on_a_pool() {
    let _alone = alone();
    cancel_meets_fire("on a pool", ThreadPool::new(2));
}

/// Schedules tasks, and cancels most of them at random, early and late.
fn schedule_and_cancel(scheduler: &Scheduler, ledger: &Arc<Ledger>, ids: Range<usize>) {
    let mut random = Random(ids.start as u64);
    let (mut open, most) = (Vec::new(), (ids.len() / 8).min(4096));
    for id in ids {
        let due = scheduler.now() + Duration::from_micros(random.below(3_000));
        let book = Arc::clone(ledger);
        let task = move || {
            assert!(Instant::now() >= due, "task {id} is early");
            book.book(id, End::Ran);
        };
        open.push((id, scheduler.schedule_at(due, task).expect("open")));
        if open.len() > most {
            let at = random.below(open.len() as u64) as usize;
            let (id, handle) = open.swap_remove(at);
            if !random.one_in(3) && handle.cancel() {
                ledger.book(id, End::Cancelled);
            }
        }
    }
}

/// Schedules and cancels from several threads, and checks the sums.
fn cancel_against_fire(executor: impl Executor, producers: usize, each: usize) {
    let ledger = Ledger::new(producers * each);
    let scheduler = Scheduler::builder().executor(executor).build().expect("a thread");
    thread::scope(|scope| {
        for producer in 0..producers {
            let (scheduler, ledger) = (&scheduler, &ledger);
            let ids = producer * each..(producer + 1) * each;
            scope.spawn(move || schedule_and_cancel(scheduler, ledger, ids));
        }
    });
    until("the last task", || ledger.is_closed());
    until("the books", || scheduler.pending() == 0);
    let (tally, stats) = (ledger.tally(), scheduler.stats());
    tally.assert_balanced();
    println!("{} tasks of {producers} producers: {tally}", digits(tally.ids));
    assert_eq!(stats.panicked(), 0);
    assert_eq!(stats.fired(), tally.of(End::Ran) as u64);
    assert_eq!(stats.cancelled(), tally.of(End::Cancelled) as u64);
    assert_eq!(stats.scheduled(), tally.ids as u64);
}

#[test]
fn s08_cancel_against_fire_on_the_tick_thread() {
    let _alone = alone();
    cancel_against_fire(Inline, 3, count(60_000, 3_400_000));
}

#[test]
fn s08_cancel_against_fire_on_a_pool() {
    let _alone = alone();
    cancel_against_fire(ThreadPool::new(3), 3, count(60_000, 3_400_000));
}

#[test]
fn s18_cancel_against_an_executor_that_rejects_at_random() {
    let _alone = alone();
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
    cancel_against_fire(Moody(AtomicUsize::new(0)), 2, count(30_000, 2_000_000));
}

#[test]
fn s20_sixty_four_producers() {
    let _alone = alone();
    cancel_against_fire(Inline, 64, count(2_000, 160_000));
}

// ----- others ------------------------------------------------------------------------------

#[test]
fn s12_series_against_cancels_and_a_close() {
    let _alone = alone();
    let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build().expect("a thread");
    let runs = Arc::new(AtomicUsize::new(0));
    let running = Arc::new(AtomicBool::new(false));
    // This series is watched for overlapping runs.
    let flag = Arc::clone(&running);
    let watched = scheduler
        .schedule_periodic(MILLI, Period::fixed_rate(MILLI / 10), move || {
            assert!(!flag.swap(true, Ordering::AcqRel), "a run overlaps the one before");
            thread::yield_now();
            flag.store(false, Ordering::Release);
        })
        .expect("open");
    let rounds = count(5_000, 1_000_000);
    for round in 0..rounds {
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
    assert!(
        scheduler.await_termination(Duration::MAX),
        "its last run may have begun before its cancel"
    );
    let after = runs.load(Ordering::Relaxed);
    thread::sleep(MILLI * 5); // real time: nothing may run any more
    assert_eq!(runs.load(Ordering::Relaxed), after);
    assert_eq!(scheduler.stats().panicked(), 0);
    println!("{} series cancelled after {} runs: none ran on", digits(rounds), digits(after));
}

/// Schedules as much as it is allowed to. Returns how many tasks were accepted, and how many were refused.
fn push_to_the_bound(scheduler: &Scheduler, open: &Arc<AtomicUsize>, bound: usize) -> [usize; 2] {
    let mut told = [0, 0];
    for n in 0..count(40_000, 2_000_000) {
        let count = Arc::clone(open);
        // `held` counts from before the call to the end of the run, so it may be above what is
        // pending by the three that are under way; never by more.
        let held = open.fetch_add(1, Ordering::AcqRel);
        let task = move || {
            count.fetch_sub(1, Ordering::AcqRel);
        };
        let accepted = scheduler.schedule_once(Duration::from_micros(n as u64 % 60), task);
        match accepted {
            Ok(_) => assert!(held <= bound + 3, "{held} were held"),
            Err(ScheduleError::Full) => {
                open.fetch_sub(1, Ordering::AcqRel);
                thread::yield_now();
            }
            Err(other) => panic!("{other}"),
        }
        told[usize::from(accepted.is_err())] += 1;
    }
    told
}

#[test]
fn s25_a_bounded_scheduler_never_holds_more() {
    let _alone = alone();
    const BOUND: usize = 50;
    let builder = Scheduler::builder().executor(Inline).max_pending(BOUND).tick(MILLI / 20);
    let scheduler = builder.build().expect("a thread");
    let open = Arc::new(AtomicUsize::new(0));
    let push = || push_to_the_bound(&scheduler, &open, BOUND);
    let told: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(push)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let [accepted, refused] = [0, 1].map(|at| told.iter().map(|told| told[at]).sum::<usize>());
    assert!(refused > 0, "the bound was never met");
    until("the last run", || scheduler.pending() == 0);
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.fired()), (accepted as u64, accepted as u64));
    let (accepted, refused) = (digits(accepted), digits(refused));
    println!("{accepted} accepted, {refused} refused: the bound of {BOUND} held");
}

#[test]
fn s17_the_idle_threads_of_a_pool_call_each_other() {
    let _alone = alone();
    const THREADS: usize = 3;
    let scheduler =
        Scheduler::builder().executor(ThreadPool::new(THREADS)).build().expect("a thread");
    let met = Arc::new(AtomicUsize::new(0));
    let rounds = count(500, 50_000);
    for round in 1..=rounds {
        // Tasks of one deadline that wait for each other, so each needs a thread of its own.
        let (together, due) = (Arc::new(Barrier::new(THREADS)), scheduler.now());
        for _ in 0..THREADS {
            let (together, met) = (Arc::clone(&together), Arc::clone(&met));
            let task = move || {
                together.wait();
                met.fetch_add(1, Ordering::Relaxed);
            };
            scheduler.schedule_at(due, task).expect("open");
        }
        until("all have met", || met.load(Ordering::Relaxed) == round * THREADS);
    }
    println!("{} times {THREADS} tasks that wait for each other: all met", digits(rounds));
}

#[test]
fn s24_schedulers_come_and_go() {
    let _alone = alone();
    let alive = Arc::new(());
    let rounds = count(900, 30_000);
    for round in 0..rounds {
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
    println!("{} schedulers ended in three ways: 0 captures left", digits(rounds));
}

// ----- resets against fires, cancels and a close -------------------------------------------

const MOVED: usize = 64;

/// One thread moves the deadlines of its tasks earlier and later while they fire, and cancels some of them. No task runs
/// before the last deadline that it was given.
fn reset_amid_fires(scheduler: &Scheduler, ledger: &Arc<Ledger>, ids: Range<usize>, seed: u64) {
    let (start, mut random) = (scheduler.now(), Random(seed));
    let nanos = move |instant: Instant| u64::try_from((instant - start).as_nanos()).expect("short");
    let ran: Vec<_> = ids.clone().map(|_| Arc::new(AtomicU64::new(0))).collect();
    let schedule = |(id, ran): (usize, &Arc<AtomicU64>)| {
        let (book, ran, clock) = (Arc::clone(ledger), Arc::clone(ran), scheduler.clone());
        let task = move || {
            ran.store(nanos(clock.now()), Ordering::Relaxed);
            book.book(id, End::Ran);
        };
        scheduler.schedule_once(MILLI, task).expect("open")
    };
    let tasks: Vec<_> = ids.clone().zip(&ran).map(schedule).collect();
    let mut not_before = vec![0; tasks.len()];
    let mut reset = |at: usize, delay: u64| {
        let due = scheduler.now() + Duration::from_nanos(delay);
        if tasks[at].reset_at(due) {
            not_before[at] = nanos(due);
        }
    };
    for _ in 0..40 * MOVED {
        reset(random.below(MOVED as u64) as usize, random.below(3_000_000));
        if random.one_in(40) {
            thread::yield_now();
        }
    }
    for (at, id) in ids.enumerate() {
        if id % 8 == 0 && tasks[at].cancel() {
            ledger.book(id, End::Cancelled);
        } else {
            reset(at, 0);
        }
    }
    until("all have ended", || tasks.iter().all(tickwheel::Cancellable::is_done));
    for (ran, not_before) in ran.iter().map(|ran| ran.load(Ordering::Relaxed)).zip(not_before) {
        assert!(ran == 0 || ran >= not_before, "ran at {ran}, due at {not_before}");
    }
}

#[test]
fn s28_resets_amid_fires_lose_none_and_make_none_early() {
    let _alone = alone();
    let rounds = count(60, 4_000);
    let mut all = Tally::default();
    for round in 0..rounds {
        let builder = match round % 3 {
            0 => Scheduler::builder().executor(Inline),
            1 => Scheduler::builder().precision(Precision::Exact),
            _ => Scheduler::builder().executor(ThreadPool::new(2)).tick(MILLI / 4),
        };
        let scheduler = builder.build().expect("a thread");
        let ledger = Ledger::new(3 * MOVED);
        thread::scope(|scope| {
            for number in 0..3 {
                let (scheduler, ledger) = (&scheduler, &ledger);
                let ids = number * MOVED..(number + 1) * MOVED;
                let seed = (round * 3 + number) as u64;
                scope.spawn(move || reset_amid_fires(scheduler, ledger, ids, seed));
            }
        });
        let tally = ledger.tally();
        tally.assert_balanced();
        assert_eq!(scheduler.pending(), 0);
        all += tally;
    }
    println!("{} tasks that were moved while they fired: {all}", digits(all.ids));
}

/// Threads move tasks while the scheduler closes: each task comes back, runs, or is refused, and is due when it was told.
#[test]
fn s28_resets_against_a_close_lose_none() {
    let _alone = alone();
    let rounds = count(200, 10_000);
    let (mut all, mut random) = (Tally::default(), Random(28));
    for _ in 0..rounds {
        let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
        let ledger = Ledger::new(MOVED);
        let page = |id| (id, scheduler.schedule_once(HOUR, book(&ledger, id)).expect("open"));
        let tasks: Vec<_> = (0..MOVED).map(page).collect();
        let start = Barrier::new(3);
        let leftovers = thread::scope(|scope| {
            for tasks in tasks.chunks(MOVED / 2) {
                let (start, scheduler) = (&start, &scheduler);
                let mut random = Random(random.next());
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..200 {
                        let (_, task) = &tasks[random.below(tasks.len() as u64) as usize];
                        let sooner = random.below(3600) as u32 * Duration::from_secs(1);
                        task.reset_at(scheduler.now() + sooner + 10 * MILLI);
                    }
                });
            }
            start.wait();
            spin_until(Instant::now() + Duration::from_nanos(random.below(60_000)));
            scheduler.close().expect("in time")
        });
        for task in leftovers {
            task.run();
        }
        let tally = ledger.tally();
        tally.assert_balanced();
        assert!(tasks.iter().all(|(_, task)| task.is_done()));
        all += tally;
    }
    println!("{} tasks that were moved while their scheduler closed: {all}", digits(all.ids));
}

fn book(ledger: &Arc<Ledger>, id: usize) -> impl FnOnce() + Send + 'static {
    let ledger = Arc::clone(ledger);
    move || ledger.book(id, End::Ran)
}
