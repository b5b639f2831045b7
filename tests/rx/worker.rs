//! What a worker promises, on virtual time where time matters.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::{Grenade, Moody, PATIENCE, panic_on_purpose, proc, silence, until};
use tickwheel::rx::{self, ExecutorScheduler, Worker};
use tickwheel::{
    Cancellable, Clock, Driver, DueTask, Inline, ManualClock, MissedTicks, Period, Schedule,
    ScheduleError, ScheduleExt, Scheduler, Sleeper, ThreadPool,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A worker on virtual time with an inline executor.
fn driven() -> (Worker, Scheduler, Driver) {
    let (timers, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    (ExecutorScheduler::new(Inline, &timers).worker(), timers, driver)
}

/// An executor that keeps its tasks until the test runs them.
#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Vec<DueTask>>>);

impl ByHand {
    fn executor(&self) -> impl Fn(DueTask) + Send + Sync + 'static {
        let tasks = Arc::clone(&self.0);
        move |task| tasks.lock().expect("no panic").push(task)
    }

    fn waiting(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    /// Runs the tasks that wait. Returns their number.
    fn run(&self) -> usize {
        let tasks = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let count = tasks.len();
        tasks.into_iter().for_each(DueTask::run);
        count
    }
}

/// A worker whose tasks run when the test says so.
fn by_hand() -> (Worker, ByHand, Scheduler, Driver) {
    let (timers, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let hand = ByHand::default();
    (ExecutorScheduler::new(hand.executor(), &timers).worker(), hand, timers, driver)
}

/// Counts how often it was dropped.
struct Dropped(Arc<AtomicUsize>);

impl Dropped {
    fn counted() -> (Dropped, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        (Dropped(Arc::clone(&count)), count)
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call on an inline executor runs what the worker has. If others bring tasks without end, it returns all the same.
#[test]
fn a_call_on_an_inline_executor_returns_however_much_others_bring() {
    let timers = Scheduler::new();
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let [begins, ends] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let ran = Arc::new(AtomicUsize::new(0));
    let feeder = thread::spawn({
        let (worker, begins, ends) = (worker.clone(), Arc::clone(&begins), Arc::clone(&ends));
        let ran = Arc::clone(&ran);
        move || {
            until("the call runs", || begins.load(Ordering::Relaxed));
            let mut brought = 0;
            while !ends.load(Ordering::Relaxed) {
                if worker.pending() < 500 {
                    let ran = Arc::clone(&ran);
                    brought += 1;
                    worker.schedule(move || {
                        thread::sleep(Duration::from_micros(50)); // so that it cannot keep up
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                }
            }
            brought
        }
    });
    let (tell, told) = mpsc::channel();
    let caller = thread::spawn({
        let (own, begins) = (worker.clone(), Arc::clone(&begins));
        move || {
            let inner = own.clone();
            own.schedule(move || {
                begins.store(true, Ordering::Relaxed);
                until("there is more", || inner.pending() == 500);
            });
            tell.send(()).expect("awaited");
        }
    });
    let returned = told.recv_timeout(PATIENCE / 4);
    ends.store(true, Ordering::Relaxed);
    caller.join().expect("no panic");
    let brought = feeder.join().expect("no panic");
    assert!(returned.is_ok(), "it has not returned");
    until("the tick thread runs the rest", || ran.load(Ordering::Relaxed) == brought);
    assert_eq!(worker.pending(), 0);
}

// ----- order and turns -------------------------------------------------------------------------

#[test]
fn a_zero_delay_is_schedule_and_a_delayed_task_has_its_turn_when_it_comes() {
    let (worker, _timers, driver) = driven();
    let log = Log::default();
    worker.schedule_after(2 * SECOND, log.task(5));
    worker.schedule_after(SECOND, log.task(3));
    worker.schedule_after(SECOND, log.task(4));
    worker.schedule_after(Duration::ZERO, log.task(1));
    worker.schedule(log.task(2));
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 3));
    driver.advance(SECOND.saturating_sub(Duration::from_nanos(1)));
    assert_eq!(log.all(), [1, 2], "never early");
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending()), (vec![1, 2, 3, 4], 1));
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending()), (vec![1, 2, 3, 4, 5], 0));
}

#[test]
fn what_is_delayed_queues_behind_what_is_queued_when_its_time_comes() {
    let (worker, hand, _timers, driver) = by_hand();
    let log = Log::default();
    worker.schedule_after(SECOND, log.task(2));
    worker.schedule(log.task(1));
    driver.advance(SECOND);
    worker.schedule(log.task(3));
    assert_eq!((hand.waiting(), worker.pending()), (1, 3), "one drain for all");
    hand.run();
    assert_eq!(log.all(), [1, 2, 3]);
}

/// If delays went through the executor, equal delays could change places there, because it sees only drains.
#[test]
fn delays_do_not_go_through_the_executor() {
    // They do not go through the scheduler's own executor either.
    let builder = Scheduler::builder().executor_fn(|_| unreachable!("not the business of workers"));
    let (timers, driver) = builder.build_driven().expect("good");
    let hand = ByHand::default();
    let worker = ExecutorScheduler::new(hand.executor(), &timers).worker();
    let log = Log::default();
    (0..1000).for_each(|number| _ = worker.schedule_after(SECOND, log.task(number)));
    driver.advance(SECOND);
    assert_eq!(hand.waiting(), 1);
    let mut drains = 0;
    while hand.waiting() > 0 {
        drains += hand.run();
    }
    assert!(log.all().into_iter().eq(0..1000));
    assert!((10..100).contains(&drains), "in batches: {drains}");
}

#[test]
fn a_drain_gives_the_thread_back_after_a_batch() {
    fn again(worker: &Worker) {
        let next = worker.clone();
        worker.schedule(move || again(&next));
    }
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let hand = ByHand::default();
    let workers = ExecutorScheduler::new(hand.executor(), &timers);
    let (flood, other, log) = (workers.worker(), workers.worker(), Log::default());
    again(&flood);
    other.schedule(log.task(1));
    hand.run();
    assert_eq!(log.all(), [1]);
    assert_eq!((hand.waiting(), flood.pending()), (1, 1), "the flood goes on, in its turn");
    flood.dispose();
    assert_eq!((hand.run(), hand.waiting(), flood.pending()), (1, 0, 0));
}

#[test]
fn a_million_tasks_that_each_schedule_the_next_keep_a_flat_stack() {
    fn again(worker: &Worker, left: u32, done: mpsc::Sender<u32>) {
        let next = worker.clone();
        worker.schedule(move || match left {
            0 => done.send(0).expect("the receiver lives"),
            _ => again(&next, left - 1, done),
        });
    }
    let count = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
    let (inline, timers, _driver) = driven();
    let pool = ExecutorScheduler::new(ThreadPool::new(2), &timers).worker();
    for worker in [inline, pool] {
        let (sender, receiver) = mpsc::channel();
        again(&worker, count, sender);
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(0));
        until("the last one ends", || worker.pending() == 0);
    }
}

#[test]
fn workers_that_wake_each_other_on_inline_do_not_recurse() {
    thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
    fn ping(from: &Worker, to: &Worker, left: u32, deepest: &Arc<AtomicUsize>) {
        let (this, other, most) = (from.clone(), to.clone(), Arc::clone(deepest));
        from.schedule(move || {
            DEPTH.set(DEPTH.get() + 1);
            most.fetch_max(DEPTH.get(), Ordering::Relaxed);
            if left > 0 {
                ping(&other, &this, left - 1, &most);
            }
            DEPTH.set(DEPTH.get() - 1);
        });
    }
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let workers = ExecutorScheduler::new(Inline, &timers);
    let deepest = Arc::new(AtomicUsize::new(0));
    ping(&workers.worker(), &workers.worker(), 100_000, &deepest);
    assert_eq!(deepest.load(Ordering::Relaxed), 1, "one at a time");
}

/// Each task schedules on the next worker. All of them run on the stack of the first one, after it has ended.
#[test]
fn a_chain_of_workers_on_inline_keeps_a_flat_stack() {
    fn link(workers: &Arc<Vec<Worker>>, at: usize, ends: &Arc<AtomicUsize>) {
        let (chain, count) = (Arc::clone(workers), Arc::clone(ends));
        workers[at].schedule(move || {
            if at + 1 < chain.len() {
                link(&chain, at + 1, &count);
            }
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let workers = ExecutorScheduler::new(Inline, &timers);
    let ends = Arc::new(AtomicUsize::new(0));
    let (count, own, clock) = (Arc::clone(&ends), workers.clone(), timers.clone());
    let small = thread::Builder::new().stack_size(256 << 10);
    let thread = small.spawn(move || {
        let chain = Arc::new((0..100_000).map(|_| own.worker()).collect::<Vec<_>>());
        link(&chain, 0, &count);
        assert_eq!(count.load(Ordering::Relaxed), 100_000, "before the first call returns");
        // Once more from a timer's thread, and once more from inside a task.
        chain[0].schedule_after(SECOND, || ());
        let (again, counted) = (Arc::clone(&chain), Arc::clone(&count));
        own.worker().schedule_after(SECOND, move || link(&again, 0, &counted));
        driver.advance(SECOND);
        assert_eq!((count.load(Ordering::Relaxed), clock.pending()), (200_000, 0));
    });
    thread.expect("a thread").join().expect("no panic");
}

/// The executor of each is an inline worker, so its drain is a task of that one.
#[test]
fn a_chain_of_workers_on_inline_workers_keeps_a_flat_stack() {
    fn link(rest: &Arc<Vec<Worker>>, at: usize) {
        let chain = Arc::clone(rest);
        if let Some(worker) = rest.get(at) {
            worker.schedule(move || link(&chain, at + 1));
        }
    }
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let inline = ExecutorScheduler::new(Inline, &timers);
    let small = thread::Builder::new().stack_size(256 << 10);
    let thread = small.spawn(move || {
        let pair = |_| ExecutorScheduler::new(inline.worker(), &timers).worker();
        let chain = Arc::new((0..20_000).map(pair).collect::<Vec<_>>());
        link(&chain, 0);
        assert!(chain.iter().all(|worker| worker.pending() == 0), "before the first call returns");
    });
    thread.expect("a thread").join().expect("no panic");
}

/// Two workers that never run empty on one thread leave turns to the others, and give the thread back to its owner.
#[test]
fn workers_on_inline_take_turns() {
    fn again(worker: &Worker, runs: &Arc<AtomicUsize>, limit: usize) {
        let (next, count) = (worker.clone(), Arc::clone(runs));
        worker.schedule(move || {
            if count.fetch_add(1, Ordering::Relaxed) < limit {
                again(&next, &count, limit);
            }
        });
    }
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let workers = ExecutorScheduler::new(Inline, &timers);
    let (first, busy, late) = (workers.worker(), workers.worker(), workers.worker());
    let (runs, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, when) = (Arc::clone(&runs), Arc::clone(&seen));
    first.schedule(move || {
        again(&busy, &count, 100_000);
        assert_eq!(count.load(Ordering::Relaxed), 0, "it runs when this one has ended");
        late.schedule(move || when.store(count.load(Ordering::Relaxed), Ordering::Relaxed));
    });
    assert_eq!(runs.load(Ordering::Relaxed), 100_001);
    assert!((1..=100).contains(&seen.load(Ordering::Relaxed)), "after one batch of the busy one");
}

/// A drain on a thread of an executor is no trampoline: a task that it brings to an inline worker runs in that very
/// call, as on any other thread. Tasks that a task runs by itself, in a nested loop, run there too.
#[test]
fn an_inline_worker_runs_in_the_call_of_a_pool_s_task() {
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let hand = ByHand::default();
    let pooled = ExecutorScheduler::new(hand.executor(), &timers);
    let (outer, nested) = (pooled.worker(), pooled.worker());
    let (inline, log) = (ExecutorScheduler::new(Inline, &timers).worker(), Log::default());
    let (said, own, runs) = (log.clone(), inline.clone(), hand.clone());
    nested.schedule(log.task(3));
    let other = pooled.worker();
    outer.schedule(move || {
        own.schedule(said.task(1));
        said.say(2);
        let (inner, spoken) = (own.clone(), said.clone());
        // A task that runs others inside its own run, as a nested loop does.
        other.schedule(move || {
            inner.schedule(spoken.task(4));
            spoken.say(5);
        });
        runs.run();
        said.say(6);
    });
    hand.run();
    assert_eq!(log.all(), [3, 1, 2, 4, 5, 6]);
    assert_eq!((inline.pending(), hand.waiting()), (0, 0));
}

// ----- cancel and dispose ----------------------------------------------------------------------

#[test]
fn s08_a_cancel_wins_once_and_drops_the_closure_at_once() {
    let (worker, hand, timers, driver) = by_hand();
    for delay in [Duration::ZERO, SECOND] {
        let (capture, dropped) = Dropped::counted();
        let handle = worker.schedule_after(delay, move || {
            let _ = &capture;
            unreachable!("it was cancelled")
        });
        assert!(!handle.is_done() && worker.pending() == 1);
        assert!(handle.cancel() && !handle.cancel());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert!(handle.is_cancelled() && handle.is_done());
        assert_eq!((worker.pending(), timers.pending()), (0, 0));
    }
    driver.advance(2 * SECOND);
    hand.run();
    let handle = worker.schedule(|| ());
    hand.run();
    assert!(!handle.cancel() && handle.is_done() && !handle.is_cancelled());
}

#[test]
fn s16_a_one_shot_that_runs_cannot_be_cancelled_and_a_series_can() {
    let (worker, _timers, driver) = driven();
    let own: Arc<Mutex<Option<Cancellable>>> = Arc::default();
    for (is_series, expected) in [(false, false), (true, true)] {
        let (slot, answer) = (Arc::clone(&own), Arc::new(Mutex::new(None)));
        let said = Arc::clone(&answer);
        let task = move || {
            let handle = slot.lock().expect("no panic").take().expect("it is there");
            *said.lock().expect("no panic") = Some((handle.cancel(), handle.is_done()));
        };
        let handle = if is_series {
            worker.schedule_periodically(SECOND, SECOND, task)
        } else {
            worker.schedule_after(SECOND, task)
        };
        *own.lock().expect("no panic") = Some(handle.clone());
        driver.advance(5 * SECOND);
        assert_eq!(*answer.lock().expect("no panic"), Some((expected, expected)));
        assert_eq!((handle.is_cancelled(), handle.is_done()), (expected, true));
        assert_eq!(worker.pending(), 0);
    }
}

/// `RxJava` scans its queue for each cancel.
#[test]
fn fifty_thousand_queued_tasks_are_cancelled_newest_first_in_no_time() {
    let (worker, hand, _timers, _driver) = by_hand();
    let mut handles: Vec<_> = (0..50_000).map(|_| worker.schedule(|| ())).collect();
    assert_eq!(worker.pending(), 50_000);
    let start = thread_time();
    while let Some(handle) = handles.pop() {
        assert!(handle.cancel());
    }
    let took = thread_time().saturating_sub(start);
    assert_eq!(worker.pending(), 0);
    // With scans this would be 1,250,000,000 steps. It takes 5 ms of this thread's time, or 40 ms without optimisation.
    assert!(took < SECOND, "{took:?}");
    assert_eq!(hand.run(), 1);
}

/// Returns the processor time of this thread, which does not depend on the load of the machine.
fn thread_time() -> Duration {
    let schedstat =
        proc("thread-self/schedstat").and_then(|file| std::fs::read_to_string(file).ok());
    let nanos = schedstat.and_then(|text| text.split(' ').next()?.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

#[test]
fn dispose_cancels_and_drops_all_that_has_not_started() {
    let (worker, hand, timers, driver) = by_hand();
    let (capture, dropped) = Dropped::counted();
    let capture = Arc::new(capture);
    let mut handles = Vec::new();
    for number in 0..100_000_u32 {
        let held = Arc::clone(&capture);
        handles.push(worker.schedule_after(DAY + SECOND * (number % 1000), move || drop(held)));
    }
    for _ in 0..100 {
        let held = Arc::clone(&capture);
        handles.push(worker.schedule(move || drop(held)));
    }
    let held = Arc::clone(&capture);
    handles.push(worker.schedule_periodically(SECOND, SECOND, move || drop(Arc::clone(&held))));
    drop(capture);
    assert_eq!((worker.pending(), timers.pending()), (100_101, 100_001));
    worker.dispose();
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "all of them, before it returned");
    assert!(handles.iter().all(|handle| handle.is_cancelled() && !handle.cancel()));
    assert_eq!((worker.pending(), timers.pending()), (0, 0));
    assert_eq!(driver.advance(2 * DAY), 0, "nothing is left in the wheel");
    assert_eq!(hand.run(), 1, "the drain finds nothing");
    worker.dispose();
}

#[test]
fn dispose_in_a_task_stops_the_rest_of_its_batch() {
    let (worker, hand, _timers, _driver) = by_hand();
    let (log, own) = (Log::default(), worker.clone());
    let (capture, dropped) = Dropped::counted();
    let counted = Arc::clone(&dropped);
    worker.schedule(move || {
        own.dispose();
        assert_eq!(counted.load(Ordering::Relaxed), 1, "dropped before `dispose` returned");
        assert_eq!(own.pending(), 0);
    });
    let task = log.task(1);
    worker.schedule(move || {
        let _held = capture;
        task();
    });
    worker.schedule(log.task(2));
    assert_eq!(worker.pending(), 3);
    hand.run();
    assert_eq!((log.all(), hand.waiting()), (vec![], 0));
}

#[test]
fn a_disposed_worker_says_so() {
    let (worker, _timers, _driver) = by_hand_and_disposed();
    assert!(worker.is_disposed());
    let (capture, dropped) = Dropped::counted();
    let handle = worker.schedule(move || drop(capture));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(handle.is_cancelled() && handle.is_done() && !handle.cancel());
    assert!(worker.schedule_after(SECOND, || ()).is_cancelled());
    assert!(worker.schedule_periodically(SECOND, SECOND, || ()).is_cancelled());
    let log = Log::default();
    let refused = worker.try_schedule(log.task(1)).expect_err("disposed");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    refused.into_task()();
    assert_eq!(log.all(), [1], "the closure came back");
    let any: Arc<dyn Schedule> = Arc::new(worker);
    let closed = Some(ScheduleError::Closed);
    assert_eq!(any.schedule_once(Duration::ZERO, || ()).err(), closed);
    assert_eq!(any.schedule_once(SECOND, || ()).err(), closed);
    assert_eq!(any.schedule_task_at(any.now(), Box::new(|| ())).err(), closed);
    let every = Period::fixed_rate(SECOND);
    assert_eq!(any.schedule_periodic(Duration::ZERO, every, || ()).err(), closed);
}

fn by_hand_and_disposed() -> (Worker, Scheduler, Driver) {
    let (worker, _hand, timers, driver) = by_hand();
    worker.dispose();
    (worker, timers, driver)
}

#[test]
fn destructors_may_schedule_cancel_and_dispose() {
    struct Does<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Does<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let (worker, hand, timers, _driver) = by_hand();
    let log = Log::default();
    // A cancel drops a value whose `Drop` schedules, and cancels another task.
    let other = worker.schedule_after(SECOND, || unreachable!("cancelled"));
    let (again, said, victim) = (worker.clone(), log.clone(), other.clone());
    let does = Does(move || {
        again.schedule(said.task(1));
        assert!(victim.cancel());
    });
    assert!(worker.schedule(move || drop(does)).cancel());
    assert!(other.is_cancelled());
    hand.run();
    assert_eq!(log.all(), [1]);
    // A dispose drops a value whose `Drop` disposes.
    let (again, said) = (worker.clone(), log.clone());
    let does = Does(move || {
        again.dispose();
        assert!(again.schedule(said.task(2)).is_cancelled());
    });
    worker.schedule(move || drop(does));
    worker.schedule(log.task(3));
    worker.dispose();
    hand.run();
    assert_eq!((log.all(), worker.pending(), timers.pending()), (vec![1], 0, 0));
}

#[test]
fn a_drop_that_panics_is_caught_and_reported() {
    silence();
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let (hand, panics) = (ByHand::default(), Arc::new(AtomicUsize::new(0)));
    let told = Arc::clone(&panics);
    let workers = ExecutorScheduler::new(hand.executor(), &timers)
        .on_panic(move |_| _ = told.fetch_add(1, Ordering::Relaxed));
    let (worker, log) = (workers.worker(), Log::default());
    let held = |grenade: Grenade| move || drop(grenade);
    assert!(worker.schedule(held(Grenade)).cancel());
    assert!(worker.schedule_after(SECOND, held(Grenade)).cancel());
    assert_eq!(panics.load(Ordering::Relaxed), 2);
    worker.schedule(held(Grenade));
    worker.schedule(log.task(1));
    hand.run();
    assert_eq!((panics.load(Ordering::Relaxed), log.all()), (3, vec![1]));
    let grenade = Grenade;
    let series = worker.schedule_periodically(SECOND, SECOND, move || {
        let _ = &grenade;
        ControlFlow::Break(())
    });
    driver.advance(SECOND);
    hand.run();
    assert!(series.is_done());
    assert_eq!(panics.load(Ordering::Relaxed), 4);
    worker.schedule(held(Grenade));
    worker.schedule_after(SECOND, held(Grenade));
    worker.dispose();
    assert_eq!(panics.load(Ordering::Relaxed), 6);
}

// ----- periodic --------------------------------------------------------------------------------

#[test]
fn s12_a_periodic_task_keeps_its_phase() {
    let (worker, timers, driver) = driven();
    let (start, runs) = (timers.now(), Arc::new(Mutex::new(Vec::new())));
    let (clock, said) = (timers.clone(), Arc::clone(&runs));
    let handle = worker.schedule_periodically(Duration::from_millis(500), SECOND, move || {
        said.lock().expect("no panic").push((clock.now() - start).as_millis());
    });
    assert_eq!(worker.pending(), 1);
    driver.advance(4 * SECOND);
    assert_eq!(*runs.lock().expect("no panic"), [500, 1500, 2500, 3500]);
    assert_eq!((worker.pending(), timers.pending()), (1, 1));
    assert!(handle.cancel() && !handle.cancel());
    assert_eq!((worker.pending(), timers.pending()), (0, 0));
    driver.advance(4 * SECOND);
    assert_eq!(runs.lock().expect("no panic").len(), 4);
}

#[test]
fn s13_missed_runs_are_caught_up_skipped_or_start_a_new_phase() {
    let cases = [
        (Period::fixed_rate(SECOND), vec![0, 1, 2, 3, 4, 5, 6]),
        (Period::fixed_rate(SECOND).missed(MissedTicks::Skip), vec![0, 4, 5, 6]),
        (Period::fixed_rate(SECOND).missed(MissedTicks::Delay), vec![0, 4, 5, 6]),
        (Period::fixed_delay(SECOND), vec![0, 4, 5, 6]),
    ];
    for (period, expected) in cases {
        let (worker, hand, timers, driver) = by_hand();
        let start = timers.now();
        let due = Arc::new(Mutex::new(Vec::new()));
        let (said, clock) = (Arc::clone(&due), timers.clone());
        let series = worker.schedule_periodic(Duration::ZERO, period, move || {
            said.lock().expect("no panic").push((clock.now() - start).as_secs());
        });
        series.expect("open");
        // The first run is held up for three seconds and a half.
        driver.advance(Duration::from_millis(3500));
        while hand.run() > 0 {
            driver.advance(Duration::ZERO);
        }
        let caught_up = due.lock().expect("no panic").len();
        for _ in 0..6 {
            driver.advance(Duration::from_millis(500));
            while hand.run() > 0 {}
        }
        let (all, runs) = (due.lock().expect("no panic").len(), expected.len());
        let is_burst = period == Period::fixed_rate(SECOND);
        assert_eq!((caught_up, all), (if is_burst { 4 } else { 1 }, runs), "{period:?}");
    }
}

#[test]
fn a_series_ends_by_break_by_panic_and_never_begins_with_a_zero_period() {
    silence();
    let (worker, timers, driver) = driven();
    let mut left = 3;
    let breaks = worker.schedule_periodically(SECOND, SECOND, move || {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let mut left = 2;
    let panics = worker.schedule_periodically(SECOND, SECOND, move || {
        left -= 1;
        if left == 0 {
            panic_on_purpose();
        }
    });
    driver.advance(2 * SECOND);
    assert!(!breaks.is_done() && panics.is_done() && !panics.is_cancelled());
    driver.advance(SECOND);
    assert!(breaks.is_done() && !breaks.is_cancelled() && !breaks.cancel());
    assert_eq!((worker.pending(), timers.pending()), (0, 0));
    let zero = worker.schedule_periodically(SECOND, Duration::ZERO, || ());
    assert!(zero.is_cancelled() && worker.pending() == 0);
    let refused = worker.schedule_periodic(SECOND, Period::fixed_delay(Duration::ZERO), || ());
    assert_eq!(refused.err(), Some(ScheduleError::ZeroPeriod));
}

#[test]
fn a_series_takes_turns_with_other_tasks() {
    let (worker, hand, _timers, driver) = by_hand();
    let log = Log::default();
    let series = log.clone();
    worker.schedule_periodically(Duration::ZERO, SECOND, move || series.say(0));
    driver.advance(3 * SECOND);
    worker.schedule(log.task(1));
    hand.run();
    assert_eq!(log.all(), [0, 1, 0, 0, 0], "what it missed comes one by one, behind the others");
    // The task that runs is not pending.
    let (own, said) = (worker.clone(), log.clone());
    worker.schedule(move || said.say(u32::try_from(own.pending()).expect("few")));
    hand.run();
    assert_eq!(log.all().last(), Some(&1));
}

#[test]
fn s04_a_delay_beyond_the_clock_is_never() {
    let (worker, timers, driver) = driven();
    let never = worker.schedule_after(Duration::MAX, || ());
    let nor = worker.schedule_periodically(Duration::MAX, Duration::MAX, || ());
    let once = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&once);
    worker.schedule_periodically(Duration::ZERO, Duration::MAX, move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    driver.advance(100 * DAY);
    assert_eq!((once.load(Ordering::Relaxed), worker.pending()), (1, 3));
    assert!(never.cancel() && nor.cancel());
    worker.dispose();
    assert_eq!(timers.pending(), 0);
}

// ----- schedulers that end, threads, executors --------------------------------------------------

#[test]
fn s20_what_a_closed_scheduler_returns_is_queued_or_dropped() {
    let (worker, _timers, driver) = driven();
    let log = Log::default();
    let run = worker.schedule_after(SECOND, log.task(1));
    let (capture, dropped) = Dropped::counted();
    let lost = worker.schedule_after(2 * SECOND, move || drop(capture));
    let mut leftovers = driver.close().into_iter();
    leftovers.next().expect("the first").run();
    assert!(log.all() == [1] && run.is_done());
    assert_eq!(worker.pending(), 1);
    drop(leftovers);
    assert_eq!((dropped.load(Ordering::Relaxed), worker.pending()), (1, 0));
    assert!(lost.is_done() && !lost.is_cancelled(), "dropped, as by an executor that took it");
    worker.schedule(log.task(2));
    assert_eq!(log.all(), [1, 2], "a worker needs no clock for what is not delayed");
}

#[test]
fn a_full_scheduler_refuses_delays_and_nothing_else() {
    let builder = Scheduler::builder().max_pending(1);
    let (timers, driver) = builder.build_driven().expect("good");
    let (worker, log) = (ExecutorScheduler::new(Inline, &timers).worker(), Log::default());
    worker.schedule_after(SECOND, log.task(2));
    assert!(worker.schedule_after(SECOND, log.task(3)).is_done());
    assert_eq!(worker.schedule_once(SECOND, log.task(3)).err(), Some(ScheduleError::Full));
    worker.schedule(log.task(1));
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 0));
}

/// A worker that is disposed, one whose scheduler is closed or full, and a period of zero are told apart, and each gives
/// the closure back.
#[test]
fn what_is_refused_comes_back_with_the_reason() {
    let (timers, driver) = Scheduler::builder().max_pending(1).build_driven().expect("good");
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let (ran, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let task = || {
        let ran = Arc::clone(&ran);
        move || _ = ran.fetch_add(1, Ordering::Relaxed)
    };
    let once = worker.try_schedule_after(SECOND, task()).expect("there is room");
    let full = worker.try_schedule_after(SECOND, task()).expect_err("full");
    assert_eq!(full.reason(), ScheduleError::Full);
    let series = || {
        let count = Arc::clone(&count);
        move || _ = count.fetch_add(1, Ordering::Relaxed)
    };
    let refused = worker.try_schedule_periodically(SECOND, SECOND, series()).expect_err("full");
    assert_eq!(refused.reason(), ScheduleError::Full);
    driver.advance(SECOND);
    assert!(once.is_done() && ran.load(Ordering::Relaxed) == 1);

    full.into_task()();
    assert_eq!(ran.load(Ordering::Relaxed), 2, "the same closure");
    let zero = worker.try_schedule_periodically(SECOND, Duration::ZERO, refused.into_task());
    let zero = zero.expect_err("a period of zero");
    assert_eq!(zero.reason(), ScheduleError::ZeroPeriod);
    let gap = Period::fixed_delay(2 * SECOND);
    let beat = worker.try_schedule_periodically(SECOND, gap, zero.into_task()).expect("good");
    driver.advance(6 * SECOND);
    assert_eq!(count.load(Ordering::Relaxed), 3, "at 1, 3 and 5 s");
    assert!(beat.cancel());

    drop(driver.close());
    let closed = worker.try_schedule_after(SECOND, task()).expect_err("nobody keeps the time");
    assert_eq!((closed.reason(), worker.is_disposed()), (ScheduleError::Closed, false));
    worker.try_schedule_after(Duration::ZERO, closed.into_task()).expect("it needs no time");
    assert_eq!((ran.load(Ordering::Relaxed), worker.pending()), (3, 0));
    worker.dispose();
    let disposed = worker.try_schedule_after(SECOND, task()).expect_err("disposed");
    assert_eq!(disposed.reason(), ScheduleError::Closed);
    drop(disposed);
    assert_eq!(Arc::strong_count(&ran), 1, "nothing has kept a closure");
}

#[test]
fn dropping_a_worker_disposes_nothing() {
    let (worker, hand, timers, driver) = by_hand();
    let log = Log::default();
    worker.schedule(log.task(1));
    worker.schedule_after(SECOND, log.task(2));
    drop(worker);
    hand.run();
    driver.advance(SECOND);
    hand.run();
    assert_eq!((log.all(), timers.pending()), (vec![1, 2], 0));
}

#[test]
fn a_worker_orders_what_a_scheduler_hands_it() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(ThreadPool::new(4), &timers).worker();
    let (in_order, log) = (timers.with_executor(worker.clone()), Log::default());
    for number in 0..1000 {
        in_order.schedule_once(SECOND, log.task(number)).expect("open");
    }
    driver.advance(SECOND);
    until("all have run", || log.all().len() == 1000);
    assert!(log.all().into_iter().eq(0..1000));
    worker.dispose();
    let late = in_order.schedule_once(Duration::ZERO, log.task(0)).expect("the wheel is open");
    driver.advance(SECOND);
    assert_eq!((timers.stats().rejected(), timers.pending()), (1, 1), "refused for good, once");
    assert!(!late.is_done() && late.cancel());
}

#[test]
fn single_workers_share_a_thread_and_new_ones_have_their_own() {
    let name_of = |worker: &Worker| {
        let (sender, receiver) = mpsc::channel();
        worker.schedule(move || {
            let thread = thread::current();
            sender.send((thread.id(), thread.name().map(str::to_owned))).expect("it waits");
        });
        receiver.recv_timeout(PATIENCE).expect("it runs")
    };
    let (one, two) = (name_of(&rx::single()), name_of(&rx::single()));
    assert_eq!(one, two);
    assert_eq!(one.1.as_deref(), Some("tickwheel-single-1"));
    let worker = rx::new_thread();
    let (mine, again, other) = (name_of(&worker), name_of(&worker), name_of(&rx::new_thread()));
    assert!(mine == again && mine != other && mine != one);
    assert!(mine.1.expect("a name").starts_with("tickwheel-worker"));
    let (sender, receiver) = mpsc::channel();
    let start = Instant::now();
    worker.schedule_after(Duration::from_millis(5), move || sender.send(Instant::now()).unwrap());
    let ran = receiver.recv_timeout(PATIENCE).expect("it runs");
    assert!(ran - start >= Duration::from_millis(5));
}

/// All workers of the one thread share its order.
#[test]
fn single_workers_run_in_the_order_of_submission() {
    let busy = Hold::the_single_thread();
    let (workers, log) = ([(); 3].map(|()| rx::single()), Log::default());
    for number in 0..300 {
        // Two tasks of one worker, and then one of each.
        workers[[0, 0, 1, 2, 1, 2, 0][number as usize % 7]].schedule(log.task(number));
    }
    assert_eq!(workers.each_ref().map(Worker::pending).iter().sum::<usize>(), 300);
    busy.release();
    until("all have run", || log.all().len() == 300);
    assert!(log.all().into_iter().eq(0..300));
    assert!(workers.iter().all(|worker| worker.pending() == 0));
}

#[test]
fn a_single_worker_s_disposal_is_its_own() {
    let busy = Hold::the_single_thread();
    let (one, other, log) = (rx::single(), rx::single(), Log::default());
    let (capture, dropped) = Dropped::counted();
    let capture = Arc::new(capture);
    let mut handles = Vec::new();
    for number in 0..50 {
        let (held, task) = (Arc::clone(&capture), log.task(number));
        handles.push(one.schedule(move || {
            task();
            drop(held);
        }));
        other.schedule(log.task(100 + number));
    }
    let held = Arc::clone(&capture);
    handles.push(one.schedule_after(DAY, move || drop(held)));
    let held = Arc::clone(&capture);
    handles.push(one.schedule_periodically(Duration::ZERO, DAY, move || drop(Arc::clone(&held))));
    let cancelled = one.schedule(|| unreachable!("cancelled"));
    assert!(cancelled.cancel());
    drop(capture);
    assert_eq!((one.pending(), other.pending()), (52, 50));
    one.dispose();
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "all of them, before it returned");
    assert!(handles.iter().all(|handle| handle.is_cancelled() && !handle.cancel()));
    assert!(one.is_disposed() && one.schedule(|| ()).is_cancelled());
    assert!(!other.is_disposed() && one.pending() == 0);
    busy.release();
    until("the other's have run", || log.all().len() == 50);
    assert!(log.all().into_iter().eq(100..150));
}

#[test]
fn a_series_of_a_single_worker_waits_runs_and_ends() {
    let (worker, runs) = (rx::single(), Arc::new(AtomicUsize::new(0)));
    let (own, count) = (worker.clone(), Arc::clone(&runs));
    let series =
        worker.schedule_periodically(Duration::ZERO, Duration::from_millis(1), move || {
            assert_eq!(own.pending(), 0, "the one that runs is not pending");
            if count.fetch_add(1, Ordering::Relaxed) == 4 {
                own.dispose(); // the run in progress is the last one of its series
            }
        });
    until("it disposes", || worker.is_disposed());
    until("it ends", || series.is_done());
    assert!(series.is_cancelled() && runs.load(Ordering::Relaxed) == 5);
    // The task runs although its worker is gone before its deadline.
    let (sender, receiver) = mpsc::channel();
    let handle = rx::single()
        .schedule_after(Duration::from_millis(1), move || sender.send(()).expect("it waits"));
    receiver.recv_timeout(PATIENCE).expect("it runs");
    until("it ends", || handle.is_done());
}

/// Keeps the thread of `single()` busy until it is released. One test at a time.
struct Hold(
    mpsc::Sender<()>,
    #[expect(dead_code, reason = "a lock")] std::sync::MutexGuard<'static, ()>,
);

impl Hold {
    fn the_single_thread() -> Hold {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ((release, released), (sender, busy)) = (mpsc::channel(), mpsc::channel());
        rx::single().schedule(move || {
            sender.send(()).expect("it waits");
            _ = released.recv();
        });
        busy.recv_timeout(PATIENCE).expect("it runs");
        Hold(release, guard)
    }

    fn release(self) {
        self.0.send(()).expect("it waits");
    }
}

/// Returns the number of threads of this process whose name begins so.
#[cfg(target_os = "linux")]
fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}

#[test]
#[cfg(target_os = "linux")]
fn the_thread_of_a_disposed_worker_ends() {
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let pool = ThreadPool::named(1, "short-lived");
    let worker = ExecutorScheduler::new(pool, &timers).worker();
    let (sender, receiver) = mpsc::channel();
    worker.schedule(move || sender.send(()).expect("it waits"));
    receiver.recv_timeout(PATIENCE).expect("it runs");
    assert_eq!(threads_called("short-lived"), 1);
    worker.dispose();
    until("its thread ends", || threads_called("short-lived") == 0);
    assert!(worker.is_disposed(), "although the worker is still here");
}

// ----- at the edges -------------------------------------------------------------------------------

/// While a thread ends, the destructor of a thread-local may schedule when others are gone already.
#[test]
fn a_thread_local_that_schedules_as_its_thread_ends_wedges_nothing() {
    struct AtTheEnd(Worker, Log);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            self.0.schedule(self.1.task(1));
        }
    }
    thread_local!(static LAST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) });
    let (worker, _timers, _driver) = driven();
    let log = Log::default();
    let at_the_end = AtTheEnd(worker.clone(), log.clone());
    let first = worker.clone();
    let thread = thread::spawn(move || {
        LAST.set(Some(at_the_end)); // set before the thread's first drain, so it is dropped after the drain's own
        first.schedule(|| ());
    });
    thread.join().expect("no panic");
    worker.schedule(log.task(2));
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 0));
}

#[test]
fn no_cancel_wins_once_a_series_has_run_for_the_last_time() {
    struct Cancels(Arc<Mutex<Option<Cancellable>>>, Arc<Mutex<Option<bool>>>);
    impl Drop for Cancels {
        fn drop(&mut self) {
            let handle = self.0.lock().expect("no panic").take();
            *self.1.lock().expect("no panic") = handle.map(|handle| handle.cancel());
        }
    }
    let (worker, _timers, driver) = driven();
    let (handle, won) = (Arc::default(), Arc::default());
    let cancels = Cancels(Arc::clone(&handle), Arc::clone(&won));
    let series = worker.schedule_periodically(SECOND, SECOND, move || {
        let _ = &cancels;
        ControlFlow::Break(())
    });
    *handle.lock().expect("no panic") = Some(series.clone());
    driver.advance(SECOND);
    assert_eq!(*won.lock().expect("no panic"), Some(false), "it prevented nothing");
    assert!(series.is_done() && !series.is_cancelled());
}

#[test]
fn s09_the_closures_that_a_disposed_worker_refuses_panic_into_the_hook() {
    silence();
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let panics = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&panics);
    let worker = ExecutorScheduler::new(Inline, &timers)
        .on_panic(move |_| _ = told.fetch_add(1, Ordering::Relaxed))
        .worker();
    worker.dispose();
    let (one, two, three) = (Grenade, Grenade, Grenade);
    assert!(worker.schedule(move || drop(one)).is_cancelled());
    assert!(worker.schedule_after(SECOND, move || drop(two)).is_cancelled());
    assert!(worker.schedule_periodically(SECOND, SECOND, move || _ = &three).is_cancelled());
    assert_eq!(panics.load(Ordering::Relaxed), 3);
}

#[test]
fn s01_a_clock_that_panics_ends_a_series_and_makes_nothing_early() {
    silence();
    for breaks_at in 1..3 {
        let armed = Arc::new(AtomicUsize::new(0));
        let clock = Moody(ManualClock::new(), Arc::clone(&armed));
        let (timers, driver) = Scheduler::builder().clock(clock).build_driven().expect("good");
        let worker = ExecutorScheduler::new(Inline, &timers).worker();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        worker.schedule_periodically(Duration::ZERO, 1000 * SECOND, move || {
            count.fetch_add(1, Ordering::Relaxed);
            // The first reading after a run tells when the next run is due, and the second one is that of its timer.
            armed.store(breaks_at, Ordering::Relaxed);
        });
        driver.advance(SECOND);
        assert_eq!(runs.load(Ordering::Relaxed), 1, "early");
        worker.schedule(|| ());
        worker.dispose();
        assert_eq!((worker.pending(), timers.pending()), (0, 0));
    }
}

/// The user's clock cancels a series between its run and its next wait.
#[test]
fn pending_is_right_when_a_series_is_cancelled_as_it_goes_on() {
    #[derive(Default)]
    struct Cancels(Mutex<Option<Cancellable>>, AtomicUsize);
    struct Clocked(ManualClock, Arc<Cancels>);
    impl Clock for Clocked {
        fn now(&self) -> Instant {
            let Cancels(handle, readings_left) = &*self.1;
            let left = readings_left.load(Ordering::Relaxed);
            readings_left.store(left.saturating_sub(1), Ordering::Relaxed);
            if left == 1 {
                let handle = handle.lock().expect("no panic").take();
                assert!(handle.expect("there").cancel());
            }
            self.0.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            self.0.sleep(sleeper, until);
        }
    }
    // The first reading after a run decides when the next run is due, and the second one is that of its timer.
    for reading in [1, 2] {
        let cancels = Arc::<Cancels>::default();
        let clock = Clocked(ManualClock::new(), Arc::clone(&cancels));
        let (timers, _driver) = Scheduler::builder().clock(clock).build_driven().expect("good");
        let (hand, log) = (ByHand::default(), Log::default());
        let worker = ExecutorScheduler::new(hand.executor(), &timers).worker();
        let armed = Arc::clone(&cancels);
        let series = worker.schedule_periodically(Duration::ZERO, SECOND, move || {
            armed.1.store(reading, Ordering::Relaxed);
        });
        *cancels.0.lock().expect("no panic") = Some(series.clone());
        for _ in 0..3 {
            let (own, said) = (worker.clone(), log.clone());
            worker.schedule(move || said.say(u32::try_from(own.pending()).expect("few")));
        }
        hand.run();
        assert!(series.is_cancelled());
        assert_eq!((log.all(), worker.pending()), (vec![2, 1, 0], 0), "reading {reading}");
    }
}

/// A series that cannot keep up runs on `Inline` inside a call of the user's thread. The call returns, and the series goes
/// on where the timers run.
#[test]
fn a_series_that_lags_on_inline_lets_its_caller_go() {
    let timers = Scheduler::new();
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let series =
        worker.schedule_periodically(Duration::ZERO, Duration::from_millis(1), move || {
            thread::sleep(Duration::from_millis(3));
            count.fetch_add(1, Ordering::SeqCst);
        });
    until("it goes on", || runs.load(Ordering::SeqCst) > 5);
    assert!(series.cancel());
}
