//! Deadlines that move (S28): each race of a reset, with an executor on another thread.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use loom::thread;

use super::ends::{self, Keeper};
use crate::clock::tick::Moment;
use crate::clock::tick::Times;
use crate::engine::slots::deadline::{self, Reset};
use crate::engine::slots::{Running, magazines, task};
use crate::platform::sync::{Ordering, lock};
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};
use crate::{Cancellable, Driver, PendingTask, Scheduler};

/// Returns the first entry of a task that is due at 5.
fn entry_of(key: TaskKey) -> Entry {
    Entry::new(key.slot, key.birth(), Moment(5), false, Runner::Default, false)
}

/// Does what an executor does that runs a task at 5.
fn claim(entry: Entry, mut announce: impl FnMut(Entry) -> bool) -> Option<(Running, Moment)> {
    let put_off = |entry| deadline::put_off(entry, Moment(5), &mut announce).then_some(entry);
    Running::claim(entry, put_off)
}

const SECOND: Duration = Duration::from_secs(1);

impl Keeper {
    /// Runs all that it was handed.
    fn run_all(&self) {
        while let Some(task) = { lock(&self.0).pop_front() } {
            task.run();
        }
    }
}

/// A scheduler, and one task that counts its runs.
struct Model {
    scheduler: Scheduler,
    driver: Driver,
    keeper: Keeper,
    runs: Arc<AtomicUsize>,
    task: Cancellable,
}

impl Model {
    fn new(delay: Duration, is_series: bool) -> Model {
        let (scheduler, driver, keeper) = ends::scheduler();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let run = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let task = match is_series {
            false => scheduler.schedule_once(delay, run),
            true => scheduler.schedule_repeatedly(delay, 100 * SECOND, run),
        };
        Model { task: task.expect("open"), scheduler, driver, keeper, runs }
    }

    /// Starts a thread that moves the task to so many seconds from now.
    fn reset(&self, seconds: u32) -> thread::JoinHandle<bool> {
        let (task, at) = (self.task.clone(), self.scheduler.now() + seconds * SECOND);
        thread::spawn(move || {
            let is_moved = task.reset_at(at);
            magazines::flush();
            is_moved
        })
    }

    /// Starts a thread that runs what the executor was handed.
    fn run(&self) -> thread::JoinHandle<()> {
        let keeper = self.keeper.clone();
        thread::spawn(move || {
            keeper.run_all();
            magazines::flush();
        })
    }

    fn ran(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    /// Lets the time pass, and runs what is due.
    fn advance(&self, by: Duration) {
        self.driver.advance(by);
        self.keeper.run_all();
    }

    /// Checks that the task is pending, and runs once, when it is due.
    fn runs_when_due(self) {
        let before = self.ran();
        let due = self.task.deadline().expect("it is pending");
        let left = due.saturating_duration_since(self.scheduler.now());
        if !left.is_zero() {
            self.advance(left - Duration::from_nanos(1));
            assert_eq!(self.ran(), before, "early");
        }
        self.advance(Duration::from_nanos(1));
        assert_eq!(self.ran(), before + 1, "it was lost, or ran twice");
        self.end();
    }

    fn end(self) {
        let Model { scheduler, driver, keeper, task, .. } = self;
        drop((driver, scheduler, keeper, task));
        magazines::flush();
    }
}

/// A task that was handed over is moved away while its executor runs it: one of both wins (RESET-3).
#[test]
fn models_reset_against_run() {
    loom::model(|| {
        let model = Model::new(SECOND, false);
        model.driver.advance(SECOND);
        let (resetter, runner) = (model.reset(2), model.run());
        runner.join().unwrap();
        let is_moved = resetter.join().unwrap();
        assert_eq!((model.ran(), model.task.is_done()), (usize::from(!is_moved), !is_moved));
        if is_moved { model.runs_when_due() } else { model.end() }
    });
}

/// The same while the engine hands it over, earlier and later.
#[test]
fn models_reset_against_hand_over() {
    loom::model(|| {
        let model = Model::new(2 * SECOND, false);
        assert!(model.task.reset_at(model.scheduler.now() + 4 * SECOND), "it was moved before");
        let resetter = model.reset(3);
        model.driver.advance(2 * SECOND); // its entry comes out, and is filed again
        assert!(resetter.join().unwrap());
        model.runs_when_due();
    });
}

/// Two resets, one of which needs a new entry: the last one counts, and the task has one live entry.
#[test]
fn models_reset_against_reset() {
    loom::model(|| {
        let model = Model::new(3 * SECOND, false);
        let (sooner, later) = (model.reset(2), model.reset(4));
        assert!(sooner.join().unwrap() && later.join().unwrap());
        model.runs_when_due();
    });
}

/// An executor has the task too early and files it again, while it is moved to an earlier time (RESET-2).
#[test]
fn models_reset_against_filing_again() {
    loom::model(|| {
        let model = Model::new(SECOND, false);
        model.driver.advance(SECOND);
        assert!(model.task.reset(5 * SECOND), "it waits in the executor's queue");
        let (resetter, runner) = (model.reset(2), model.run());
        runner.join().unwrap();
        assert!(resetter.join().unwrap());
        model.runs_when_due();
    });
}

/// A cancel against a reset: the task does not run, and a reset that comes second finds it cancelled.
#[test]
fn models_reset_against_cancel() {
    loom::model(|| {
        let model = Model::new(3 * SECOND, false);
        let resetter = model.reset(2);
        assert!(model.task.cancel());
        resetter.join().unwrap();
        assert!(!model.task.reset(SECOND) && model.task.is_cancelled());
        model.advance(5 * SECOND);
        assert_eq!(model.ran(), 0);
        model.end();
    });
}

/// The task of a scheduler that closes is moved to an earlier time: it comes back once, with its deadline (RESET-4).
#[test]
fn models_reset_against_close() {
    loom::model(|| {
        let model = Model::new(3 * SECOND, false);
        let start = model.scheduler.now();
        let resetter = model.reset(2);
        let leftovers: Vec<_> = model.scheduler.close().expect("at once").into_iter().collect();
        assert!(resetter.join().unwrap(), "a leftover can be moved too");
        let deadlines: Vec<_> = leftovers.iter().map(|task| task.deadline() - start).collect();
        assert_eq!(deadlines, [2 * SECOND]);
        drop(leftovers);
        model.end();
    });
}

/// The old entry is with an executor when the engine takes no new one: it stays live, so the executor runs the task, and at
/// the deadline of a reset that came before (RESET-4).
#[test]
fn models_a_reset_that_the_engine_refuses_against_claim() {
    loom::model(|| {
        let filled = task::fill(|| (), None, None, Moment(5), SchedulerId::FIRST);
        let key = filled.unwrap_or_else(|_| panic!("a page of them"));
        let entry = entry_of(key);
        let times = Times { now: Moment(0), deadline: Moment(3) };
        let resetter = thread::spawn(move || {
            deadline::reset(key, times, Moment(0), false, SchedulerId::FIRST, |_| false)
        });
        let claimed = claim(entry, |_| unreachable!("it is due"));
        let is_moved = resetter.join().unwrap() == Reset::Done;
        let (task, due) = claimed.expect("its entry is live");
        assert_eq!(due, Moment(if is_moved { 3 } else { 5 }));
        task.into_ending().discard().1.end();
        magazines::flush();
    });
}

/// A series that was filed again behind the back of the executor's list is moved while the scheduler closes. The close
/// takes it for a leftover, not for a series in its run, for which it would wait for ever (END-3).
#[test]
fn models_reset_of_a_series_against_close() {
    loom::model(|| {
        let model = Model::new(SECOND, true);
        model.driver.advance(SECOND);
        assert!(model.task.reset(5 * SECOND), "it waits in the executor's queue");
        model.keeper.run_all(); // it is due later
        assert_eq!(model.ran(), 0);
        let resetter = model.reset(9);
        let leftovers = model.scheduler.close().expect("at once");
        assert_eq!(leftovers.len(), 1);
        assert!(resetter.join().unwrap());
        drop(leftovers);
        model.end();
    });
}

/// A series is moved while a run ends: the next run, or the one after it, is where the reset has put it (RESET-3).
#[test]
fn models_reset_against_rearm() {
    loom::model(|| {
        let model = Model::new(SECOND, true);
        let start = model.scheduler.now();
        model.driver.advance(SECOND);
        let (resetter, runner) = (model.reset(7), model.run());
        assert!(resetter.join().unwrap());
        runner.join().unwrap();
        let due = model.task.deadline().expect("pending") - start;
        assert!(
            due == 8 * SECOND && model.ran() <= 1,
            "this run, if it came before it, else the next one"
        );
        model.runs_when_due();
    });
}

/// A series that was moved before, and is moved again in its run.
#[test]
fn models_reset_against_the_second_rearm() {
    loom::model(|| {
        let model = Model::new(SECOND, true);
        assert!(model.task.reset(2 * SECOND) && model.task.reset(SECOND));
        model.driver.advance(SECOND);
        let (resetter, runner) = (model.reset(7), model.run());
        assert!(resetter.join().unwrap());
        runner.join().unwrap();
        model.runs_when_due();
    });
}

/// A leftover moves to another scheduler while its deadline is moved. A reset that returns true counts, whichever of both
/// has the task then (RESET-3).
#[test]
fn models_reset_against_move() {
    loom::model(|| {
        let model = Model::new(3 * SECOND, false);
        let (second, other, there) = ends::scheduler();
        let leftover = model.scheduler.close().expect("at once").into_iter().next().expect("one");
        let task = model.task.clone();
        let resetter = thread::spawn(move || {
            let is_moved = task.reset(2 * SECOND);
            magazines::flush();
            is_moved
        });
        let moved = leftover.reschedule(&second).expect("open");
        assert!(resetter.join().unwrap(), "it waits, here or there");
        assert_eq!(moved.deadline().expect("pending") - second.now(), 2 * SECOND);
        other.advance(2 * SECOND);
        there.run_all();
        assert_eq!((model.ran(), second.pending()), (1, 0));
        drop((other, second, there));
        model.end();
    });
}

/// The same, and then the other scheduler closes. It returns the task, or has refused it, and the deadline is that of the
/// reset (RESET-4).
#[test]
fn models_reset_and_close_against_move() {
    loom::model(|| {
        let model = Model::new(3 * SECOND, false);
        let (second, other, there) = ends::scheduler();
        other.advance(9 * SECOND); // a deadline there is another moment
        let leftover = model.scheduler.close().expect("at once").into_iter().next().expect("one");
        let task = model.task.clone();
        let closer = thread::spawn(move || {
            assert!(task.reset(2 * SECOND), "it waits, here or there");
            let leftovers: Vec<_> = other.close().into_iter().collect();
            magazines::flush();
            leftovers
        });
        let moved = leftover.try_reschedule(&second);
        let mut left = closer.join().unwrap();
        match moved {
            Ok(handle) => assert!(!handle.is_cancelled(), "nobody has cancelled it"),
            Err(refused) => left.push(refused.into_task()),
        }
        let remaining: Vec<_> = left.iter().map(PendingTask::remaining).collect();
        assert_eq!(remaining, [2 * SECOND], "it comes back once");
        drop(left);
        assert_eq!((model.task.is_done(), second.pending()), (true, 0));
        drop((second, there));
        model.end();
    });
}

/// While a run ends, the next one is moved to now, starts, and closes the scheduler. What that run decides about its own
/// leftover is carried out once (END-3).
#[test]
fn models_rearm_against_the_next_run_that_closes() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3); // into the run, out of its end, and back while the next run lasts
    builder.check(|| {
        let (scheduler, driver, keeper) = ends::scheduler();
        let (runs, closes) = (Arc::new(AtomicUsize::new(0)), scheduler.clone());
        let count = Arc::clone(&runs);
        let run = move || {
            if count.fetch_add(1, Ordering::Relaxed) == 1 {
                let leftovers = closes.close().expect("its own run holds nobody up");
                leftovers.into_iter().for_each(PendingTask::run);
            }
        };
        let task = scheduler.schedule_repeatedly(SECOND, 100 * SECOND, run).expect("open");
        driver.advance(SECOND);
        let first = lock(&keeper.0).pop_front().expect("it was handed over");
        let runner = thread::spawn(move || {
            first.run();
            magazines::flush();
        });
        assert!(task.reset(Duration::ZERO));
        driver.turn();
        keeper.run_all();
        runner.join().unwrap();
        driver.advance(100 * SECOND); // if the reset came before the first run, or the turn before the reset's entry
        keeper.run_all();
        assert_eq!((runs.load(Ordering::Relaxed), task.is_done()), (3, true));
        assert!(scheduler.await_termination(Duration::ZERO));
        drop((driver, scheduler, keeper, task));
        magazines::flush();
    });
}

/// A look at the deadline of a task that ends, and whose slot the next task gets, sees no other task's deadline.
#[test]
fn models_a_look_at_the_deadline_against_reuse() {
    loom::model(|| {
        let model = Model::new(SECOND, false);
        let (task, due) = (model.task.clone(), model.scheduler.now() + SECOND);
        let looker = thread::spawn(move || {
            let seen = task.deadline();
            magazines::flush();
            seen
        });
        assert!(model.task.cancel());
        let next = model.scheduler.schedule_once(9 * SECOND, || ()).expect("open");
        let seen = looker.join().unwrap();
        assert!(seen.is_none_or(|seen| seen == due), "{seen:?}");
        assert!(next.cancel());
        model.end();
    });
}

/// A deadline that moves further away without the scheduler, against a claim: one of both wins (RESET-3).
#[test]
fn models_postpone_against_claim() {
    loom::model(|| {
        let filled = task::fill(|| (), None, None, Moment(5), SchedulerId::FIRST);
        let key = filled.unwrap_or_else(|_| panic!("a page of them"));
        let entry = entry_of(key);
        let claim = |filed: &mut Option<Entry>| {
            let announce = |again| filed.replace(again).is_none();
            super::deadlines::claim(entry, announce)
        };
        let resetter =
            thread::spawn(move || deadline::postpone(key, SchedulerId::FIRST, Moment(9)));
        let mut filed = None;
        let claimed = claim(&mut filed);
        let postponed = resetter.join().unwrap();
        match claimed {
            Some((task, due)) => {
                assert_ne!(postponed, Some(Reset::Done), "it has started");
                assert_eq!((due, filed), (Moment(5), None));
                task.into_ending().discard().1.end();
            }
            None => {
                assert_eq!(postponed, Some(Reset::Done));
                assert_eq!(filed, Some(entry.filed_again(Moment(9), entry.number() + 1)));
                assert_eq!(deadline::of(key), Some((Moment(9), SchedulerId::FIRST)));
                let task = task::cancel(key).0.ok().expect("it is pending");
                task.discard().1.end();
            }
        }
        magazines::flush();
    });
}
