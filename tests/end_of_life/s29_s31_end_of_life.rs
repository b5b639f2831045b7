//! The end of life: every task that has not started comes back, wherever it is (S29), and a task tells where it was written
//! (S31).

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, until};
use tickwheel::{
    Cancellable, CloseError, Driver, DueTask, Executor, Leftovers, PendingTask, Rejected,
    ScheduleError, Scheduler, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// An executor that keeps its tasks until the test runs them. Clones are the same executor.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<VecDeque<DueTask>>>);

impl Executor for Keeper {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.lock().expect("whole").push_back(task);
        Ok(())
    }
}

impl Keeper {
    fn len(&self) -> usize {
        self.0.lock().expect("whole").len()
    }

    fn next(&self) -> DueTask {
        until("a task is handed over", || self.len() > 0);
        self.0.lock().expect("whole").pop_front().expect("there is one")
    }

    fn run_all(&self) {
        while self.len() > 0 {
            self.next().run();
        }
    }
}

fn over(executor: impl Executor) -> Scheduler {
    let builder = Scheduler::builder().executor(executor).shutdown_timeout(PATIENCE);
    builder.build().expect("the defaults are good")
}

fn driven_over(executor: impl Executor) -> (Scheduler, Driver) {
    Scheduler::builder().executor(executor).build_driven().expect("the defaults are good")
}

/// Counts how often it was called, and how often it was dropped.
#[derive(Default)]
struct Fate {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

struct Capture(Arc<Fate>);

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl Fate {
    fn task(self: &Arc<Self>) -> impl FnMut() + Send + 'static {
        let capture = Capture(Arc::clone(self));
        move || _ = capture.0.runs.fetch_add(1, Ordering::SeqCst)
    }

    fn told(&self) -> (usize, usize) {
        (self.runs.load(Ordering::SeqCst), self.drops.load(Ordering::SeqCst))
    }
}

// ----- what was handed over --------------------------------------------------------------------

#[test]
fn s29_a_close_over_the_default_executor_loses_nothing() {
    let scheduler = Scheduler::new();
    let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("whole");
    for _ in 0..1000 {
        let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
        let gate = Arc::clone(&gate);
        let task = move || {
            if started.fetch_add(1, Ordering::SeqCst) >= 10 {
                drop(gate.lock());
            }
            ended.fetch_add(1, Ordering::SeqCst);
        };
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
    }
    until("some have run", || ended.load(Ordering::SeqCst) > 5);
    let leftovers = scheduler.close().expect("no series, so nothing to wait for");
    assert_eq!(scheduler.pending(), 0);
    drop(closed);
    assert!(scheduler.await_termination(PATIENCE));
    let has_started = started.load(Ordering::SeqCst);
    assert_eq!(ended.load(Ordering::SeqCst), has_started, "those that had started have ended");
    assert_eq!(leftovers.len() + has_started, 1000, "each has run or come back");
    assert!(leftovers.len() > 900, "{} have come back", leftovers.len());
    assert_eq!(leftovers.into_iter().take(10).map(PendingTask::run).count(), 10);
    assert_eq!(ended.load(Ordering::SeqCst), has_started + 10);
}

#[test]
fn s29_close_and_run_runs_what_an_executor_has_not_started() {
    let keeper = Keeper::default();
    let (scheduler, fate) = (over(keeper.clone()), Arc::<Fate>::default());
    for delay in [Duration::ZERO, MILLI, HOUR] {
        scheduler.schedule_once(delay, fate.task()).expect("open");
    }
    until("two are handed over", || keeper.len() == 2);
    assert_eq!(scheduler.close_and_run(), Ok(3));
    assert_eq!(fate.told(), (3, 3));
    keeper.run_all();
    assert_eq!(fate.told(), (3, 3), "what the executor runs later is nothing");
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.dropped(), stats.pending()), (3, 0, 0));
}

/// Any executor's queue: closures, batches, with an executor of its own.
#[test]
fn s29_what_was_handed_over_comes_back_in_order_of_deadline() {
    for own in [false, true] {
        let keeper = Keeper::default();
        let (scheduler, driver) = driven_over(keeper.clone());
        let scheduler = if own { scheduler.with_executor(keeper.clone()) } else { scheduler };
        let log = crate::common::log::Log::default();
        for name in [5_u32, 3, 9, 1, 7, 60, 30] {
            scheduler.schedule_once(SECOND * name, log.task(name)).expect("open");
        }
        driver.advance(SECOND * 10);
        assert_eq!(keeper.len(), 5);
        keeper.next().run(); // 1
        let cancelled = scheduler.schedule_once(Duration::ZERO, log.task(0)).expect("open");
        driver.turn();
        assert!(keeper.len() == 5 && cancelled.cancel());
        let leftovers = driver.close();
        assert_eq!((leftovers.len(), scheduler.pending()), (6, 0), "own: {own}");
        assert_eq!(leftovers.run_all(), 6);
        assert_eq!(log.all(), [1, 3, 5, 7, 9, 30, 60]);
        keeper.run_all();
        assert_eq!(log.all().len(), 7);
        assert!(scheduler.await_termination(Duration::ZERO));
    }
}

/// Millions of tasks come and go, and one stays. The memory for them stays small, and the one comes back.
#[test]
fn s29_a_task_that_waits_in_an_executor_behind_a_hundred_thousand_others_comes_back() {
    let keeper = Keeper::default();
    let (scheduler, driver) = driven_over(keeper.clone());
    let fate = Arc::<Fate>::default();
    let stays = scheduler.schedule_once(Duration::ZERO, fate.task()).expect("open");
    driver.turn();
    let first = keeper.next();
    for _ in 0..100 {
        (0..1000).for_each(|_| drop(scheduler.schedule_once(Duration::ZERO, || ()).expect("open")));
        driver.turn();
        keeper.run_all();
    }
    let leftovers = driver.close();
    assert_eq!(leftovers.len(), 1);
    first.run();
    assert_eq!(fate.told(), (0, 0), "it was claimed back");
    assert!(stays.cancel() && !stays.cancel());
    assert_eq!((fate.told(), leftovers.run_all()), ((0, 1), 0));
}

/// The tasks keep their executor, which keeps the tasks. A close breaks the cycle.
#[test]
fn s29_an_executor_that_keeps_its_own_tasks_goes_with_the_scheduler() {
    for closes in [false, true] {
        let keeper = Keeper::default();
        let (scheduler, fate) = (Scheduler::new(), Arc::<Fate>::default());
        let queue = Arc::downgrade(&keeper.0);
        let own = scheduler.with_executor(keeper.clone());
        own.schedule_once(Duration::ZERO, fate.task()).expect("open");
        own.schedule_repeatedly(Duration::ZERO, MILLI, fate.task()).expect("open");
        until("both are handed over", || keeper.len() == 2);
        drop((own, keeper));
        if closes {
            assert_eq!(scheduler.close().expect("idle").len(), 2);
        }
        drop(scheduler);
        until("nothing is kept", || fate.told() == (0, 2) && queue.strong_count() == 0);
    }
}

// ----- series in their runs --------------------------------------------------------------------

#[test]
fn s29_a_series_is_never_missing_from_the_leftovers() {
    for round in 0..200_u32 {
        let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build().expect("good");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let work = move || {
            let until = Instant::now() + Duration::from_micros(300);
            while Instant::now() < until {}
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let beat = scheduler.schedule_repeatedly(Duration::ZERO, MILLI, work).expect("open");
        until("it beats", || runs.load(Ordering::SeqCst) > 0);
        thread::sleep(Duration::from_micros(u64::from(round) * 17 % 1500));
        let leftovers: Vec<_> = scheduler.close().expect("short runs").into_iter().collect();
        assert_eq!((leftovers.len(), scheduler.pending()), (1, 0), "round {round}");
        let before = runs.load(Ordering::SeqCst) as u32;
        assert!(!beat.is_done() && leftovers[0].period() == Some(MILLI));
        leftovers.into_iter().for_each(PendingTask::run);
        assert_eq!(runs.load(Ordering::SeqCst) as u32, before + 1, "the run had ended");
        assert!(beat.is_done() && !beat.is_cancelled());
    }
}

/// An event during the run of a series that a close waits for.
#[test]
fn s29_a_close_waits_for_the_run_of_a_series_and_finds_what_it_came_to() {
    for way in 0..4 {
        let scheduler = Arc::new(over(ThreadPool::new(2)));
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let work = move || {
            enter.send(()).expect("the test waits");
            left.recv().expect("the test says how to go on")
        };
        let series = scheduler.schedule_repeatedly(Duration::ZERO, HOUR, work).expect("open");
        entered.recv().expect("it runs");
        let closer = Arc::clone(&scheduler);
        let closer = thread::spawn(move || closer.close().map(Leftovers::into_iter));
        until("the scheduler is closed", || scheduler.is_closed());
        let flow = match way {
            0 => ControlFlow::Continue(()),
            1 => ControlFlow::Break(()),
            2 => {
                assert!(series.cancel());
                ControlFlow::Continue(())
            }
            _ => {
                drop(leave);
                let leftovers = closer.join().expect("no panic").expect("the run has ended");
                assert_eq!((leftovers.count(), series.is_done()), (0, true), "it has panicked");
                continue;
            }
        };
        assert!(!closer.is_finished(), "it waits for the run");
        leave.send(flow).expect("it runs");
        let leftovers: Vec<_> =
            closer.join().expect("no panic").expect("the run has ended").collect();
        assert_eq!(leftovers.len(), usize::from(way == 0), "way {way}");
        assert_eq!((series.is_done(), series.is_cancelled()), (way > 0, way == 2));
        if let Some(leftover) = leftovers.first() {
            let remaining = leftover.remaining();
            assert!(
                remaining + PATIENCE > HOUR && remaining <= HOUR,
                "{remaining:?}: the next run"
            );
        }
        assert!(scheduler.await_termination(PATIENCE));
    }
}

#[test]
fn s29_a_run_that_does_not_end_is_a_timeout_and_the_next_close_collects() {
    let builder = Scheduler::builder().executor(ThreadPool::new(1));
    let scheduler = builder.shutdown_timeout(10 * MILLI).build().expect("good");
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let work = move || {
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_with_fixed_delay(Duration::ZERO, HOUR, work).expect("open");
    scheduler.schedule_once(HOUR, || ()).expect("open");
    entered.recv().expect("it runs");
    assert_eq!(scheduler.close().map(|left| left.len()), Err(CloseError::Timeout));
    assert!(!scheduler.await_termination(MILLI), "it runs");
    let _stopping = scheduler.stop().wait_timeout(MILLI).expect_err("it runs");
    until("it is a leftover already", || scheduler.pending() == 0);
    leave.send(()).expect("it runs");
    assert_eq!(scheduler.stop().wait().len(), 2);
    assert!(scheduler.await_termination(PATIENCE));
}

/// An action on a leftover series inside of its own run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Run,
    Move,
    MoveToAClosed,
    Drop,
    Cancel,
    Keep,
}

#[test]
fn s29_a_series_returned_inside_its_own_run_starts_after_that_run() {
    use Inside::*;
    for what in [Run, Move, MoveToAClosed, Drop, Cancel, Keep] {
        let (scheduler, other) = (over(ThreadPool::new(2)), Scheduler::new());
        if what == MoveToAClosed {
            drop(other.close());
        }
        let (runs, depth) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (tell, told) = mpsc::channel();
        let capture = Capture(Arc::default());
        let fate = Arc::clone(&capture.0);
        let (closes, target, count) = (scheduler.clone(), other.clone(), Arc::clone(&runs));
        let work = move || {
            let _ = &capture;
            assert_eq!(depth.fetch_add(1, Ordering::SeqCst), 0, "a run inside of a run");
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                let leftovers: Vec<_> =
                    closes.close().expect("it does not wait for itself").into_iter().collect();
                assert_eq!((leftovers.len(), closes.pending()), (1, 0));
                assert!(!closes.await_termination(HOUR), "at once");
                let task = leftovers.into_iter().next().expect("one");
                assert!(task.period() == Some(2 * HOUR) && !task.name().is_empty());
                let kept = match what {
                    Run => {
                        task.run();
                        None
                    }
                    Move => {
                        task.reschedule(&target).expect("open");
                        assert_eq!(target.pending(), 0, "not before the run has ended");
                        None
                    }
                    MoveToAClosed => {
                        let refused = task.try_reschedule(&target).expect_err("closed");
                        assert_eq!(refused.reason(), ScheduleError::Closed);
                        refused.into_task().run();
                        None
                    }
                    Drop => {
                        drop(task);
                        None
                    }
                    Cancel => {
                        assert!(task.cancel());
                        None
                    }
                    Keep => Some(task),
                };
                tell.send(kept).expect("the test waits");
            }
            depth.fetch_sub(1, Ordering::SeqCst);
        };
        let handle = scheduler.schedule_repeatedly(Duration::ZERO, 2 * HOUR, work).expect("open");
        let kept = told.recv_timeout(PATIENCE).expect("the close does not wait for its own run");
        until("the runs have ended", || scheduler.await_termination(MILLI));
        match what {
            Run | MoveToAClosed => {
                assert_eq!(
                    (runs.load(Ordering::SeqCst), fate.drops.load(Ordering::SeqCst)),
                    (2, 1)
                );
                assert!(handle.is_done() && !handle.is_cancelled());
            }
            Move => {
                assert_eq!((runs.load(Ordering::SeqCst), other.pending()), (1, 1));
                let left: Vec<_> = other.close().expect("idle").into_iter().collect();
                assert!(left[0].remaining() > HOUR && handle.cancel());
            }
            Drop | Cancel => {
                until("its closure is dropped", || fate.drops.load(Ordering::SeqCst) == 1);
                assert!(handle.is_done() && handle.is_cancelled() == (what == Cancel));
                assert_eq!(runs.load(Ordering::SeqCst), 1);
            }
            Keep => {
                let task = kept.expect("it was kept");
                assert!(task.remaining() > HOUR && !handle.is_done());
                task.run();
                assert_eq!((runs.load(Ordering::SeqCst), handle.is_done()), (2, true));
            }
        }
        assert_eq!(scheduler.stats().pending(), 0, "{what:?}");
    }
}

/// Nobody can tell in a run whether there is another one after it.
#[test]
fn s22_a_series_that_runs_the_leftovers_in_its_own_run_does_not_count() {
    for goes_on in [false, true] {
        let keeper = Keeper::default();
        let scheduler = over(keeper.clone());
        scheduler.schedule_once(HOUR, || ()).expect("open");
        let (inside, mut is_first) = (scheduler.clone(), true);
        let (tell, told) = mpsc::channel();
        let work = move || {
            if std::mem::take(&mut is_first) {
                let started = inside.close_and_run().expect("it does not wait for itself");
                tell.send((started, inside.stats().fired())).expect("the test waits");
            }
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        scheduler.schedule_repeatedly(Duration::ZERO, HOUR, work).expect("open");
        keeper.next().run();
        assert_eq!(
            told.recv(),
            Ok((1, 2)),
            "of the two that are fired, one is the series' own run"
        );
        assert_eq!(scheduler.stats().fired(), if goes_on { 3 } else { 2 });
    }
}

/// Its deadline is no estimate any more, so the leftovers are in order by it.
#[test]
fn s29_a_series_that_is_reset_in_its_run_is_returned_where_it_is_due() {
    let keeper = Keeper::default();
    let scheduler = over(keeper.clone());
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let handle = Arc::new(OnceLock::<Cancellable>::new());
    let (inside, own) = (scheduler.clone(), Arc::clone(&handle));
    let (tell, told) = mpsc::channel();
    let work = move || {
        assert!(own.get().expect("known").reset(SECOND));
        let leftovers = inside.close().expect("it does not wait for itself");
        let when = |task: PendingTask| (task.period().is_some(), task.deadline());
        tell.send(leftovers.into_iter().map(when).collect::<Vec<_>>()).expect("the test waits");
    };
    let series = scheduler.schedule_repeatedly(Duration::ZERO, 2 * HOUR, work).expect("open");
    handle.set(series).expect("once");
    keeper.next().run();
    let returned = told.recv().expect("it has run");
    assert_eq!(returned.iter().map(|(is_series, _)| *is_series).collect::<Vec<_>>(), [true, false]);
    assert!(returned.is_sorted_by_key(|(_, deadline)| *deadline));
}

#[test]
fn s29_two_series_that_close_in_their_runs_do_not_wait_for_each_other() {
    let scheduler = over(ThreadPool::new(2));
    let (tell, told) = mpsc::channel();
    let meet = Arc::new(std::sync::Barrier::new(2));
    for _ in 0..2 {
        let (scheduler, tell, meet) = (scheduler.clone(), tell.clone(), Arc::clone(&meet));
        let mut first = true;
        let task = scheduler.clone().schedule_repeatedly(Duration::ZERO, MILLI, move || {
            if std::mem::take(&mut first) {
                meet.wait();
                tell.send(scheduler.close().map(|left| left.len())).expect("the test waits");
            }
        });
        task.expect("open");
    }
    let ends: Vec<_> =
        (0..2).map(|_| told.recv_timeout(PATIENCE / 2).expect("no deadlock")).collect();
    let returned: usize = ends.into_iter().map(|end| end.expect("no timeout")).sum();
    assert_eq!(returned, 2);
}

#[test]
fn s29_a_stop_that_is_awaited_waits_for_the_runs_of_series_too() {
    let scheduler = over(ThreadPool::new(1));
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let work = move || {
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_repeatedly(Duration::ZERO, HOUR, work).expect("open");
    entered.recv().expect("it runs");
    let mut stopping = pin!(scheduler.stop());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    assert!(stopping.as_mut().poll(&mut context).is_pending());
    leave.send(()).expect("it runs");
    let leftovers = loop {
        match stopping.as_mut().poll(&mut context) {
            Poll::Ready(leftovers) => break leftovers,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    };
    assert_eq!(leftovers.len(), 1);
}

struct Unpark(thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

// ----- leftovers that move ---------------------------------------------------------------------

#[test]
fn s29_all_handles_of_a_leftover_that_moves_go_on_working() {
    let (first, second) = (driven_over(tickwheel::Inline), driven_over(tickwheel::Inline));
    let own = second.0.with_executor(tickwheel::Inline);
    let fate = Arc::<Fate>::default();
    let handles: Vec<_> = (1..=4)
        .map(|at| first.0.schedule_once(SECOND * at, fate.task()).expect("open"))
        .chain([first.0.schedule_repeatedly(SECOND * 5, SECOND, fate.task()).expect("open")])
        .collect();
    let clones = handles.clone();
    let to = [&second.0, &own, &second.0, &own, &own];
    for ((task, to), handle) in first.1.close().into_iter().zip(to).zip(&handles) {
        let moved = task.reschedule(to).expect("open");
        assert_eq!(&moved, handle);
        assert!(!moved.is_done() && !handle.is_done());
    }
    drop(first.0);
    assert_eq!(second.0.pending(), 5);
    assert!(clones[0].cancel() && handles[0].is_cancelled() && !handles[0].cancel());
    assert_eq!((second.0.pending(), second.0.stats().cancelled()), (4, 1));
    assert_eq!(second.1.advance(SECOND * 4), 3);
    assert!(handles[1..4].iter().all(|handle| handle.is_done() && !handle.is_cancelled()));
    assert_eq!(second.1.advance(SECOND * 3), 3, "at 5, 6 and 7 s");
    assert!(!handles[4].is_done() && clones[4].cancel() && handles[4].is_done());
    assert_eq!((fate.told(), second.0.pending()), ((6, 5), 0));
    let stats = second.0.stats();
    assert_eq!((stats.scheduled(), stats.fired(), stats.cancelled()), (5, 6, 2));
}

#[test]
fn s29_a_series_that_has_moved_is_cancelled_in_its_run_there() {
    let (first, second) = (driven_over(tickwheel::Inline), driven_over(tickwheel::Inline));
    let handle = Arc::new(OnceLock::<Cancellable>::new());
    let mine = Arc::clone(&handle);
    let task = move || assert!(mine.get().is_none_or(Cancellable::cancel));
    let series = first.0.schedule_repeatedly(SECOND, SECOND, task).expect("open");
    for task in first.1.close() {
        task.reschedule(&second.0).expect("open");
    }
    assert!(handle.set(series.clone()).is_ok());
    assert_eq!(second.1.advance(SECOND * 10), 1);
    assert!(series.is_cancelled());
    assert_eq!((second.0.pending(), second.0.stats().cancelled()), (0, 1));
    assert_eq!((first.0.pending(), first.0.stats().cancelled()), (0, 0));
}

#[test]
fn s29_a_leftover_that_is_refused_comes_back_and_can_go_elsewhere() {
    let (first, full) = (driven_over(tickwheel::Inline), Scheduler::builder().max_pending(1));
    let full = full.build_driven().expect("good");
    let closed = Scheduler::new();
    drop(closed.close());
    let fate = Arc::<Fate>::default();
    let handles: Vec<_> =
        (0..2).map(|_| first.0.schedule_once(SECOND, fate.task()).expect("open")).collect();
    let mut tasks = first.1.close().into_iter();
    tasks.next().expect("two").reschedule(&full.0).expect("it has room for one");
    let refused = tasks.next().expect("two").try_reschedule(&full.0).expect_err("full");
    assert_eq!(refused.reason(), ScheduleError::Full);
    let refused = refused.into_task().try_reschedule(&closed).expect_err("closed");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    assert!(!handles[1].is_done());
    assert_eq!(full.1.advance(SECOND), 1);
    assert_eq!(refused.into_task().try_reschedule(&full.0).expect("room"), handles[1]);
    assert!(handles[1].cancel() && full.0.pending() == 0);
    assert_eq!(fate.told(), (1, 2));
}

/// Moves against cancels, each with one winner, and both schedulers' ledgers whole.
#[test]
fn s29_a_move_against_a_cancel_has_one_winner() {
    let rounds = crate::common::count(2_000, 200_000);
    let second = driven_over(tickwheel::Inline);
    let (mut won, fate) = (0, Arc::<Fate>::default());
    for _ in 0..rounds {
        let first = driven_over(tickwheel::Inline);
        let handle = first.0.schedule_once(Duration::ZERO, fate.task()).expect("open");
        let task = first.1.close().into_iter().next().expect("one");
        let clone = handle.clone();
        let canceller = thread::spawn(move || handle.cancel());
        let moved = task.reschedule(&second.0).expect("open");
        let is_won = canceller.join().expect("no panic");
        // The handle that `reschedule` has returned is no clone of the one that has cancelled, and may say only that the
        // task is done, once a task of another test has its place.
        assert!(clone.is_cancelled() == is_won && moved == clone);
        assert!(is_won || !moved.is_cancelled());
        second.1.turn();
        assert!(moved.is_done());
        won += usize::from(is_won);
    }
    assert_eq!(fate.told(), (rounds - won, rounds));
    let stats = second.0.stats();
    assert_eq!((stats.fired() as usize, second.0.pending()), (rounds - won, 0));
    assert_eq!(stats.scheduled(), stats.fired() + stats.cancelled());
}

// ----- await_termination -----------------------------------------------------------------------

#[test]
fn s29_termination_is_the_close_and_the_end_of_all_runs() {
    let scheduler = over(ThreadPool::new(2));
    assert!(!scheduler.await_termination(MILLI), "it is open");
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let inside = scheduler.clone();
    let task = move || {
        assert!(!inside.await_termination(HOUR), "its own run would have to end first");
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    entered.recv().expect("it runs");
    assert!(scheduler.close().expect("one-shots are not waited for").is_empty());
    assert!(!scheduler.await_termination(MILLI), "one runs");
    let waiter = scheduler.clone();
    let waiter = thread::spawn(move || waiter.await_termination(PATIENCE));
    leave.send(()).expect("it runs");
    assert!(waiter.join().expect("no panic"));
    assert!(scheduler.await_termination(Duration::ZERO), "and from now on");
}

#[test]
fn s29_on_the_tick_thread_nobody_waits_for_termination() {
    let scheduler = over(tickwheel::Inline);
    let (inside, (tell, told)) = (scheduler.clone(), mpsc::channel());
    let task = move || {
        drop(inside.stop());
        tell.send(inside.await_termination(HOUR)).expect("the test waits");
    };
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(false));
    assert!(scheduler.await_termination(PATIENCE));
}

// ----- the table of the page `shutdown` --------------------------------------------------------

/// Where a task is when the end comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Intake,
    Wheel,
    Refused,
    HandedOver,
    Running,
    SeriesInItsRun,
}

/// How the end comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Close,
    CloseAndRun,
    Stop,
    Drop,
    DriverClose,
    DriverDrop,
}

/// What becomes of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Returned,
    /// Returned to the thread that closes.
    Run,
    Dropped,
    /// Its run goes on, and nobody waits for it.
    RunsOn,
}

fn expected(place: Place, end: End) -> Becomes {
    match (place, end) {
        (Place::Running, _) => Becomes::RunsOn,
        (_, End::CloseAndRun) => Becomes::Run,
        (_, End::Drop | End::DriverDrop) => Becomes::Dropped,
        (_, End::Close | End::Stop | End::DriverClose) => Becomes::Returned,
    }
}

/// Each cell of the table in `tickwheel::shutdown`.
#[test]
fn s29_each_end_does_with_each_task_what_the_table_says() {
    use End::*;
    use Place::*;
    for place in [Intake, Wheel, Refused, HandedOver, Running, SeriesInItsRun] {
        for end in [Close, CloseAndRun, Stop, Drop, DriverClose, DriverDrop] {
            let what = format!("{place:?}, {end:?}");
            let becomes = end_it(place, end, &what);
            assert_eq!(becomes, expected(place, end), "{what}");
        }
    }
}

fn end_it(place: Place, end: End, what: &str) -> Becomes {
    let keeper = Keeper::default();
    let (queue, is_refused) = (keeper.clone(), place == Place::Refused);
    let execute = move |task: DueTask| {
        if is_refused { Err(Rejected::new(task)) } else { queue.execute(task) }
    };
    let builder = Scheduler::builder().executor(Refusing(execute)).shutdown_timeout(PATIENCE);
    let (scheduler, driver) = builder.build_driven().expect("good");
    let fate = Arc::<Fate>::default();
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let mut counted = fate.task();
    let task = move || {
        counted();
        if enter.send(()).is_ok() {
            let _ = left.recv(); // the second run is not held up
        }
    };
    let delay = if matches!(place, Place::Intake | Place::Wheel) { HOUR } else { Duration::ZERO };
    let handle = match place {
        Place::SeriesInItsRun => scheduler.schedule_repeatedly(delay, HOUR, task),
        _ => scheduler.schedule_once(delay, task),
    };
    let handle = handle.expect("open");
    if place != Place::Intake {
        driver.turn();
    }
    let is_in_a_run = matches!(place, Place::Running | Place::SeriesInItsRun);
    let runner = is_in_a_run.then(|| {
        let task = keeper.next();
        let runner = thread::spawn(move || task.run());
        entered.recv().expect("it runs");
        runner
    });
    drop(entered);
    // Only the end may wait for the run of a series.
    let is_dropped = Arc::new(AtomicBool::new(false));
    let release = is_in_a_run.then(|| {
        let (here, is_dropped) = (scheduler.downgrade(), Arc::clone(&is_dropped));
        // The handle of a look must not be the last one.
        let is_closed = move || match end {
            End::Drop => is_dropped.load(Ordering::Relaxed),
            _ => here.upgrade().is_none_or(|here| here.is_closed()),
        };
        thread::spawn(move || {
            if place == Place::SeriesInItsRun {
                until("the end begins", is_closed);
            }
            (place == Place::SeriesInItsRun).then(|| drop(leave)).is_none()
        })
    });
    let (mut returned, mut ran) = (0, 0);
    let mut count = |leftovers: Leftovers| returned += leftovers.len();
    let stats = match end {
        End::Close => {
            count(scheduler.close().expect("in time"));
            Some(scheduler)
        }
        End::CloseAndRun => {
            ran = scheduler.close_and_run().expect("in time");
            Some(scheduler)
        }
        End::Stop => {
            let stopping = scheduler.stop();
            driver.turn();
            count(stopping.wait());
            Some(scheduler)
        }
        End::Drop => {
            drop(scheduler);
            is_dropped.store(true, Ordering::Relaxed);
            driver.turn();
            None
        }
        End::DriverClose => {
            count(driver.close());
            Some(scheduler)
        }
        End::DriverDrop => {
            drop(driver);
            Some(scheduler)
        }
    };
    release.into_iter().for_each(|release| _ = release.join().expect("no panic"));
    runner.into_iter().for_each(|runner| runner.join().expect("no panic"));
    let before = fate.told();
    keeper.run_all(); // the executor runs nothing any more
    assert_eq!(fate.told(), before, "{what}");
    assert_eq!(fate.told().1, 1, "{what}: its closure is gone");
    assert!(handle.is_done() && !handle.is_cancelled(), "{what}");
    if let Some(scheduler) = stats {
        assert_eq!(scheduler.pending(), 0, "{what}");
        assert!(scheduler.await_termination(PATIENCE), "{what}");
        assert_eq!(scheduler.close().expect("closed before").len(), 0, "{what}");
    }
    let first_runs = usize::from(is_in_a_run);
    match (returned, ran, fate.told().0 - first_runs) {
        (1, 0, 0) => Becomes::Returned,
        (0, 1, 1) => Becomes::Run,
        (0, 0, 0) if place == Place::Running => Becomes::RunsOn,
        (0, 0, 0) => Becomes::Dropped,
        other => panic!("{what}: {other:?}"),
    }
}

/// An executor of a closure that may refuse.
struct Refusing<F>(F);

impl<F: Fn(DueTask) -> Result<(), Rejected> + Send + Sync + 'static> Executor for Refusing<F> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        (self.0)(task)
    }
}

// ----- names and equality ----------------------------------------------------------------------

fn a_named_task() {}

#[test]
fn s31_a_task_tells_where_it_was_written() {
    let name = std::any::type_name_of_val(&a_named_task);
    assert_eq!(DueTask::new(Instant::now(), a_named_task).name(), name);
    let keeper = Keeper::default();
    let (scheduler, driver) = driven_over(keeper.clone());
    scheduler.schedule_once(SECOND, a_named_task).expect("open");
    scheduler.schedule_repeatedly(SECOND, SECOND, a_named_task).expect("open");
    let weight = [7_u8; 100];
    scheduler.schedule_once(SECOND, move || assert!(weight.len() == 100)).expect("open");
    let cancelled = scheduler.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND);
    let tasks: Vec<_> = (0..4).map(|_| keeper.next()).collect();
    assert!(cancelled.cancel());
    let names: Vec<_> = tasks.iter().map(DueTask::name).collect();
    assert_eq!(names[..2], [name, name]);
    assert!(names[2].contains("s31_a_task_tells_where_it_was_written::{{closure}}"), "{names:?}");
    assert_eq!(names[3], "a task that is over");
    assert!(format!("{:?}", tasks[0]).contains(name));
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    let names = leftovers.iter().map(PendingTask::name);
    assert_eq!((leftovers.len(), names.filter(|other| *other == name).count()), (3, 2));
}

/// A look at the name holds the task for a moment. In this time no cancel and no run may miss the task.
#[test]
fn s31_a_look_at_the_name_hides_the_task_from_nobody() {
    let rounds = crate::common::count(500, 100_000);
    let keeper = Keeper::default();
    let (scheduler, driver) = driven_over(keeper.clone());
    let fate = Arc::<Fate>::default();
    for round in 0..rounds {
        let handle = scheduler.schedule_once(Duration::ZERO, fate.task()).expect("open");
        driver.turn();
        let task = keeper.next();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!handle.is_done() && handle.cancel(), "round {round}");
                assert!(handle.is_done() && handle.is_cancelled());
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                assert!(!task.name().is_empty());
            }
        });
    }
    assert_eq!(fate.told(), (0, rounds));
}

#[test]
#[expect(clippy::mutable_key_type, reason = "what changes in a handle is not what it is equal by")]
fn s31_handles_are_equal_if_they_stand_for_the_same_task() {
    let scheduler = Scheduler::new();
    let handles: Vec<_> =
        (0..3).map(|_| scheduler.schedule_once(HOUR, || ()).expect("open")).collect();
    let set: HashSet<_> = handles.iter().chain(&handles).map(Cancellable::clone).collect();
    assert_eq!(set.len(), 3);
    assert!(handles[0] == handles[0].clone() && handles[0] != handles[1]);
    assert!(handles.iter().all(|handle| set.contains(handle)));
    handles[0].cancel();
    assert!(set.contains(&handles[0]), "whatever becomes of the task");
    let again = scheduler.schedule_once(HOUR, || ()).expect("open");
    assert!(handles.iter().all(|handle| *handle != again), "in the same slot, perhaps");
}

/// The name of a task is told with its panic, and a box keeps the name of its closure.
#[test]
fn s31_a_panic_tells_whose_it_is_and_a_box_keeps_the_name() {
    use tickwheel::{Period, Request, Schedule, ScheduleExt};
    fn fails() {
        crate::common::panic_on_purpose();
    }
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            crate::common::panic_on_purpose();
        }
    }
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let builder = Scheduler::builder().on_panic(move |panic| {
        tell.lock().expect("whole").send(panic.name()).expect("the test listens");
    });
    let (scheduler, driver) = builder.build_driven().expect("good");
    let name = std::any::type_name_of_val(&fails);
    let boxed: std::sync::Arc<dyn Schedule> = std::sync::Arc::new(scheduler.clone());
    boxed.schedule_once(SECOND, fails).expect("open");
    boxed.schedule_repeatedly(SECOND, SECOND, fails).expect("open");
    scheduler.schedule_once(SECOND, fails).expect("open");
    scheduler.schedule_with_fixed_delay(SECOND, SECOND, fails).expect("open");
    scheduler.schedule_named("a box", Request::After(SECOND, Box::new(fails))).expect("open");
    let period = Period::fixed_rate(SECOND);
    let series = Box::new(|| {
        fails();
        ControlFlow::Continue(())
    });
    scheduler.schedule_named("a series", Request::Series(SECOND, period, series)).expect("open");
    driver.advance(SECOND);
    let names: Vec<_> = told.try_iter().collect();
    assert_eq!(names, [name, name, name, name, "a box", "a series"]);
    let fragile = Fragile;
    let task = move || drop(fragile);
    let name = std::any::type_name_of_val(&task);
    assert!(scheduler.schedule_once(SECOND, task).expect("open").cancel());
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [name]);
}

/// The layers tell the names too, also through the trait, where the closure is in a box.
#[test]
fn s31_the_layers_tell_whose_panic_it_is() {
    use tickwheel::message_loop::MessageLoop;
    use tickwheel::pool::ScheduledThreadPool;
    use tickwheel::rx::ExecutorScheduler;
    use tickwheel::{Inline, ManualClock, Schedule, ScheduleExt};
    fn fails() {
        crate::common::panic_on_purpose();
    }
    let name = std::any::type_name_of_val(&fails);
    let (tell, told) = mpsc::channel();
    let tell = Arc::new(Mutex::new(tell));
    let hook = || {
        let tell = Arc::clone(&tell);
        move |panic: tickwheel::TaskPanic<'_>| {
            tell.lock().expect("whole").send(panic.name()).expect("the test listens");
        }
    };
    let next = || told.recv_timeout(PATIENCE).expect("a panic");
    let twice = |schedule: &dyn Schedule| {
        schedule.schedule_once(Duration::ZERO, fails).expect("open");
        schedule.schedule_repeatedly(Duration::ZERO, SECOND, fails).expect("open");
    };

    let (timers, driver) = driven_over(Inline);
    let worker = ExecutorScheduler::new(Inline, &timers).on_panic(hook()).worker();
    twice(&worker);
    worker.schedule(fails);
    worker.schedule_periodically(Duration::ZERO, SECOND, fails);
    driver.turn();
    assert_eq!([next(), next(), next(), next()], [name; 4], "worker");

    let pool = ScheduledThreadPool::builder().threads(1).on_panic(hook()).build().expect("good");
    twice(&pool);
    pool.execute(fails).expect("open");
    drop(pool.schedule_at_fixed_rate(Duration::ZERO, SECOND, fails).expect("open"));
    assert_eq!([next(), next(), next(), next()], [name; 4], "pool");

    let builder = MessageLoop::builder().clock(ManualClock::new()).on_panic(hook());
    let looper = builder.prepare().expect("the first one here");
    let (runner, local) = (looper.runner(), looper.local_runner());
    twice(&runner);
    runner.post(fails).expect("open");
    runner.run_or_post(fails).expect("open");
    local.post(fails).expect("open");
    local.schedule_periodic(Duration::ZERO, SECOND.into(), fails).expect("open");
    drop(local.spawn_local(async { crate::common::panic_on_purpose() }).expect("open"));
    looper.run_until_idle();
    let names: Vec<_> = (0..7).map(|_| next()).collect();
    assert_eq!(names.iter().filter(|other| **other == name).count(), 6, "loop: {names:?}");
    assert!(names.iter().any(|other| other.ends_with("{{closure}}") || other.contains("async")));

    let call = timers.call_after(SECOND, fails);
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    assert!(leftovers.iter().any(|leftover| leftover.name() == name), "{leftovers:?}");
    drop((leftovers, call));
}

/// A run that has polled the end of a scheduler waits for it, and no close in another run waits for that run. The next run of
/// the series waits for nothing.
#[test]
fn s29_a_close_in_a_run_waits_for_a_series_that_has_polled_another_end_before() {
    let other = Scheduler::builder().executor(tickwheel::Inline).build().expect("good");
    let ((busy, is_busy), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let keeps_its_thread = move || {
        busy.send(()).expect("awaited");
        _ = released.recv();
    };
    other.schedule_once(Duration::ZERO, keeps_its_thread).expect("open");
    is_busy.recv().expect("it runs");
    let builder = Scheduler::builder().executor(ThreadPool::new(2)).shutdown_timeout(PATIENCE);
    let scheduler = builder.build().expect("good");
    let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel::<()>());
    let (has_ended, mut run) = (Arc::new(AtomicBool::new(false)), 0);
    let (stopping, ended) = (other.stop(), Arc::clone(&has_ended));
    let mut stopping = Some(stopping);
    let series = move || {
        run += 1;
        if let Some(stopping) = stopping.take() {
            assert!(pin!(stopping).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        if run == 2 {
            begun.send(()).expect("awaited");
            _ = may_end.recv();
            ended.store(true, Ordering::SeqCst);
        }
    };
    let millisecond = Duration::from_millis(1);
    scheduler.schedule_with_fixed_delay(Duration::ZERO, millisecond, series).expect("open");
    has_begun.recv().expect("the second run");
    let (sender, closed) = mpsc::channel();
    let (inner, ended) = (scheduler.clone(), Arc::clone(&has_ended));
    let close = move || {
        let left = inner.close().map(|left| left.len());
        sender.send((left, ended.load(Ordering::SeqCst))).expect("awaited");
    };
    scheduler.schedule_once(Duration::ZERO, close).expect("open");
    assert!(closed.recv_timeout(Duration::from_millis(50)).is_err(), "the run goes on");
    drop(end);
    assert_eq!(closed.recv_timeout(PATIENCE), Ok((Ok(1), true)));
    drop(release);
}

/// A run that waits for the termination of a scheduler waits, too, and no close in another run waits for it.
#[test]
fn s29_a_close_in_a_run_does_not_wait_for_a_series_that_awaits_another_termination() {
    let other = over(ThreadPool::new(1));
    let builder = Scheduler::builder().executor(ThreadPool::new(2)).shutdown_timeout(PATIENCE);
    let scheduler = builder.build().expect("good");
    let ((begun, has_begun), (sender, closed)) = (mpsc::channel(), mpsc::channel());
    let (awaited, told) = (other.clone(), begun.clone());
    let series = move || {
        told.send(None).expect("awaited");
        told.send(Some(awaited.await_termination(PATIENCE))).expect("awaited");
    };
    scheduler.schedule_repeatedly(Duration::ZERO, HOUR, series).expect("open");
    assert_eq!(has_begun.recv_timeout(PATIENCE), Ok(None));
    let inner = scheduler.clone();
    let close = move || sender.send(inner.close().map(|left| left.len())).expect("awaited");
    scheduler.schedule_once(Duration::ZERO, close).expect("open");
    assert_eq!(closed.recv_timeout(PATIENCE / 2), Ok(Ok(1)));
    assert!(other.close().expect("nothing runs").is_empty());
    assert_eq!(has_begun.recv_timeout(PATIENCE), Ok(Some(true)));
}
