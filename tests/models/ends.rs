//! The end of a scheduler whose executor runs tasks on another thread: what a close claims back, and what is in a run.
//!
//! A close that is not told of the end of a run waits for ever, which loom reports as a deadlock.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Waker};
use std::time::Duration;

use loom::thread;

use crate::engine::slots::magazines;
use crate::platform::sync::{Mutex, Ordering, lock};
use crate::{Cancellable, Driver, DueTask, Executor, PendingTask, Rejected, Scheduler};

const SECOND: Duration = Duration::from_secs(1);

/// Keeps what it is handed.
#[derive(Clone)]
pub(super) struct Keeper(pub(super) Arc<Mutex<VecDeque<DueTask>>>);

impl Executor for Keeper {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        lock(&self.0).push_back(task);
        Ok(())
    }
}

pub(super) fn scheduler() -> (Scheduler, Driver, Keeper) {
    let keeper = Keeper(Arc::new(Mutex::new(VecDeque::new())));
    let builder = Scheduler::builder().executor(keeper.clone()).wheel_size(1);
    let (scheduler, driver) = builder.build_driven().expect("good");
    (scheduler, driver, keeper)
}

/// Starts a thread that runs this task.
fn run(task: DueTask) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        task.run();
        magazines::flush();
    })
}

fn next(keeper: &Keeper) -> DueTask {
    lock(&keeper.0).pop_front().expect("it was handed over")
}

fn end(scheduler: Scheduler, driver: Driver, keeper: Keeper) {
    drop((driver, scheduler, keeper));
    magazines::flush();
}

/// A close on another thread finds the engine out, because its driver is turned or looks for the next deadline. Unless the
/// turn says that it has to be turned again at once, the close comes to its end without another turn (S21).
#[test]
fn models_close_against_a_turn_and_a_look_for_the_next_deadline() {
    for turns in [true, false] {
        loom::model(move || {
            let (scheduler, driver, keeper) = scheduler();
            scheduler.schedule_once(SECOND, || ()).expect("open");
            let closer = {
                let scheduler = scheduler.clone();
                thread::spawn(move || {
                    let leftovers = scheduler.close().expect("loom has time");
                    let returned = leftovers.len();
                    drop(leftovers);
                    magazines::flush();
                    returned
                })
            };
            if turns {
                while driver.turn() == Some(driver.now()) {
                    thread::yield_now(); // the close may turn it
                }
            } else {
                driver.next_deadline();
            }
            assert_eq!((closer.join().unwrap(), scheduler.pending()), (1, 0));
            end(scheduler, driver, keeper);
        });
    }
}

/// Each task that was handed over has run, or comes back (S29).
#[test]
fn models_close_against_the_run_of_what_was_handed_over() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let handle = scheduler.schedule_once(Duration::ZERO, task).expect("open");
        driver.turn();
        let runner = run(next(&keeper));
        let leftovers = scheduler.close().expect("nobody waits for a one-shot");
        let returned = leftovers.len();
        drop(leftovers);
        runner.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed) + returned, 1);
        assert!(handle.is_done() && Arc::strong_count(&runs) == 1);
        assert_eq!(scheduler.pending(), 0);
        end(scheduler, driver, keeper);
    });
}

/// A series in its run comes back with the deadline of its next run, and one that is in the executor's queue with that
/// of its first (S29, END-3).
#[test]
fn models_close_against_the_run_of_a_series() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let handle = scheduler.schedule_repeatedly(SECOND, SECOND, task).expect("open");
        driver.advance(SECOND);
        let runner = run(next(&keeper));
        let leftovers: Vec<_> = scheduler.close().expect("loom has time").into_iter().collect();
        assert_eq!((leftovers.len(), scheduler.pending()), (1, 0));
        let ran = runs.load(Ordering::Relaxed);
        assert_eq!(leftovers[0].remaining(), SECOND * u32::try_from(ran).expect("one"));
        assert!(!handle.is_done());
        runner.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), ran, "one that was claimed back does not run");
        drop(leftovers);
        assert!(handle.is_done() && Arc::strong_count(&runs) == 1);
        end(scheduler, driver, keeper);
    });
}

/// A leftover series is dropped or cancelled, and it leaves the pending tasks once, which the close has counted.
#[test]
fn models_drop_of_a_leftover_series_against_a_cancel() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let handle = scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
        let leftovers = scheduler.close().expect("nothing runs");
        let canceller = thread::spawn(move || {
            let is_won = handle.cancel();
            magazines::flush();
            is_won
        });
        drop(leftovers);
        let is_won = canceller.join().unwrap();
        let stats = scheduler.stats();
        assert_eq!((stats.cancelled(), stats.dropped()), (u64::from(is_won), u64::from(!is_won)));
        let mut left = 0;
        scheduler.shared().intake.each_lane(|lane| left += lane.counts.left.get());
        assert_eq!(left, 1);
        end(scheduler, driver, keeper);
    });
}

/// A series that ends of itself during the close is no leftover, and the close does not wait for it for ever (END-5).
#[test]
fn models_close_against_a_series_that_breaks() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let handle =
            scheduler.schedule_repeatedly(SECOND, SECOND, || ControlFlow::Break(())).expect("open");
        driver.advance(SECOND);
        let runner = run(next(&keeper));
        let leftovers = scheduler.close().expect("loom has time");
        let returned = leftovers.len();
        drop(leftovers);
        runner.join().unwrap();
        assert!(handle.is_done() && returned <= 1);
        assert_eq!(scheduler.pending(), 0);
        end(scheduler, driver, keeper);
    });
}

/// A series that is cancelled in its run during the close does not keep the close for ever either (END-5).
#[test]
fn models_close_against_a_series_that_is_cancelled() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let handle = scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
        driver.advance(SECOND);
        let runner = run(next(&keeper));
        let canceller = {
            let handle = handle.clone();
            thread::spawn(move || {
                let won = handle.cancel();
                magazines::flush();
                won
            })
        };
        let leftovers = scheduler.close().expect("loom has time");
        let returned = leftovers.len();
        assert!(canceller.join().unwrap() && handle.is_done());
        runner.join().unwrap();
        assert!(returned <= 1 && leftovers.run_all() == 0);
        assert_eq!(scheduler.pending(), 0);
        end(scheduler, driver, keeper);
    });
}

/// A leftover that was returned inside of its own run, and is run elsewhere while that run ends, runs once, behind that
/// run. The end of the first run does not hide the second one (S29).
#[test]
fn models_a_leftover_that_is_run_while_its_run_ends() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let given: Arc<Mutex<Option<PendingTask>>> = Arc::new(Mutex::new(None));
        let runs = Arc::new(AtomicUsize::new(0));
        let is_hidden = Arc::new(AtomicBool::new(false));
        let (closes, gives, count) = (scheduler.clone(), Arc::clone(&given), Arc::clone(&runs));
        let hides = Arc::clone(&is_hidden);
        let task = move || {
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                let leftover = closes.close().expect("its own run").into_iter().next();
                *lock(&gives) = leftover;
            } else {
                // As another thread looks, by `await_termination`.
                let is_over = closes.shared().termination.wait_for_runs(Duration::ZERO);
                hides.store(is_over, Ordering::Relaxed);
            }
        };
        scheduler.schedule_repeatedly(SECOND, SECOND, task).expect("open");
        driver.advance(SECOND);
        let runner = run(next(&keeper));
        loop {
            let leftover = lock(&given).take();
            if let Some(leftover) = leftover {
                leftover.run();
                break;
            }
            thread::yield_now();
        }
        runner.join().unwrap();
        assert_eq!((runs.load(Ordering::Relaxed), Arc::strong_count(&runs)), (2, 1));
        assert!(!is_hidden.load(Ordering::Relaxed), "a look did not see the second run");
        assert!(scheduler.await_termination(Duration::ZERO) && scheduler.pending() == 0);
        drop(given);
        end(scheduler, driver, keeper);
    });
}

/// Two series await the end of each other's scheduler in their runs. At least one of them finds that the other one waits, and does
/// not wait for it (S29). Each counts as waiting before it looks.
#[test]
fn models_two_runs_that_await_each_others_end() {
    loom::model(|| {
        let all = [scheduler(), scheduler()];
        let ready = Arc::new(AtomicUsize::new(0));
        for (number, (scheduler, driver, _)) in all.iter().enumerate() {
            let (other, ready) = (all[1 - number].0.downgrade(), Arc::clone(&ready));
            let await_the_end = move || {
                let mut stopping = other.upgrade().expect("it is used below").stop();
                let context = &mut Context::from_waker(Waker::noop());
                let polled = Pin::new(&mut stopping).poll(context);
                ready.fetch_add(usize::from(polled.is_ready()), Ordering::Relaxed);
            };
            scheduler.schedule_repeatedly(SECOND, SECOND, await_the_end).expect("open");
            driver.advance(SECOND);
        }
        let [one, other] = [0, 1].map(|number: usize| next(&all[number].2));
        let runner = run(one);
        other.run();
        runner.join().unwrap();
        assert!(ready.load(Ordering::Relaxed) > 0, "they wait for each other");
        all.into_iter().for_each(|(scheduler, driver, keeper)| end(scheduler, driver, keeper));
    });
}

/// A series that its executor drops is over, and a close that has found it on its way to that is told so (END-5).
#[test]
fn models_close_against_the_drop_of_what_was_handed_over() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let handle = scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
        driver.advance(SECOND);
        let given = next(&keeper);
        let dropper = thread::spawn(move || {
            drop(given);
            magazines::flush();
        });
        drop(scheduler.close().expect("it is told"));
        dropper.join().unwrap();
        assert!(handle.is_done() && scheduler.pending() == 0);
        end(scheduler, driver, keeper);
    });
}

/// A leftover counts as a run before a cancel finds that it has started (S29).
#[test]
fn models_a_leftover_that_starts_against_a_look_for_runs() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&has_ended);
        let task = move || ends.store(true, Ordering::Release);
        let handle = scheduler.schedule_once(SECOND, task).expect("open");
        let leftover = scheduler.close().expect("nothing runs").into_iter().next();
        let leftover = leftover.expect("one");
        let runner = thread::spawn(move || {
            leftover.run();
            magazines::flush();
        });
        if !handle.cancel() && scheduler.await_termination(Duration::ZERO) {
            assert!(has_ended.load(Ordering::Acquire), "it runs");
        }
        runner.join().unwrap();
        end(scheduler, driver, keeper);
    });
}

/// A move against a cancel: one wins, and both schedulers count right (S29, WORD-5).
#[test]
fn models_move_against_cancel() {
    loom::model(|| {
        let ((first, driver, keeper), (second, other, there)) = (scheduler(), scheduler());
        let handle = first.schedule_once(SECOND, || ()).expect("open");
        let leftover = driver.close().into_iter().next().expect("one");
        let canceller = {
            let handle = handle.clone();
            thread::spawn(move || {
                let won = handle.cancel();
                magazines::flush();
                won
            })
        };
        let moved: Cancellable = leftover.reschedule(&second).expect("open");
        let won = canceller.join().unwrap();
        assert!(won && moved == handle && moved.is_cancelled());
        assert_eq!((first.pending(), second.pending()), (0, 0));
        let cancels = first.stats().cancelled() + second.stats().cancelled();
        assert_eq!((cancels, second.stats().cancelled()), (1, second.stats().scheduled()));
        drop((first, keeper));
        end(second, other, there);
    });
}

/// A move against an old executor that runs what it was handed. It runs nothing, before, during and after the move
/// (S29).
#[test]
fn models_move_against_an_old_run() {
    loom::model(|| {
        let ((first, driver, keeper), (second, other, there)) = (scheduler(), scheduler());
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        first.schedule_once(Duration::ZERO, task).expect("open");
        driver.turn();
        let old = next(&keeper);
        let leftover = driver.close().into_iter().next().expect("one");
        let runner = run(old);
        leftover.reschedule(&second).expect("open");
        runner.join().unwrap();
        assert_eq!((runs.load(Ordering::Relaxed), second.pending()), (0, 1));
        other.turn();
        next(&there).run();
        assert_eq!((runs.load(Ordering::Relaxed), second.pending(), first.pending()), (1, 0, 0));
        drop((first, keeper));
        end(second, other, there);
    });
}

/// A leftover moves onto an executor of another scheduler while the engine there turns. That executor gets it, once
/// (RESET-4).
#[test]
fn models_move_against_a_turn_there() {
    loom::model(|| {
        let ((first, driver, keeper), (second, other, there)) = (scheduler(), scheduler());
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        first.schedule_once(Duration::ZERO, task).expect("open");
        let leftover = driver.close().into_iter().next().expect("one");
        let own = Keeper(Arc::new(Mutex::new(VecDeque::new())));
        let onto = second.with_executor(own.clone());
        let turner = thread::spawn(move || {
            other.turn();
            magazines::flush();
            other
        });
        leftover.reschedule(&onto).expect("open");
        let other = turner.join().unwrap();
        other.turn();
        next(&own).run();
        assert!(lock(&own.0).is_empty() && lock(&there.0).is_empty());
        assert_eq!((runs.load(Ordering::Relaxed), second.pending()), (1, 0));
        drop((first, keeper, onto, own));
        end(second, other, there);
    });
}

/// A leftover moves to a scheduler that closes. It is a leftover of one of the two, and counts as a run of neither (S29).
#[test]
fn models_move_against_a_close_there() {
    loom::model(|| {
        let ((first, driver, keeper), (second, other, there)) = (scheduler(), scheduler());
        first.schedule_once(Duration::ZERO, || ()).expect("open");
        let leftover = driver.close().into_iter().next().expect("one");
        let onto = second.clone();
        let mover = thread::spawn(move || {
            let moved = leftover.try_reschedule(&onto);
            drop(onto);
            magazines::flush();
            moved
        });
        let returned = other.close();
        assert!(second.await_termination(SECOND), "nothing runs");
        let moved = mover.join().unwrap();
        assert_eq!(returned.len(), usize::from(moved.is_ok()));
        drop((moved, returned, first, keeper, second, there));
        magazines::flush();
    });
}

/// A schedule against the last turn, which may find the task in its holder before its record is refused. It is accepted and
/// a leftover, or refused and none (S20).
#[test]
fn models_schedule_against_the_last_turn() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let producer = {
            let scheduler = scheduler.clone();
            thread::spawn(move || {
                let is_accepted = scheduler.schedule_once(SECOND, || ()).is_ok();
                drop(scheduler);
                magazines::flush();
                is_accepted
            })
        };
        let leftovers = driver.close();
        let accepted = usize::from(producer.join().unwrap());
        assert_eq!(leftovers.len(), accepted);
        drop(leftovers);
        assert_eq!((scheduler.pending(), scheduler.stats().scheduled()), (0, accepted as u64));
        drop((scheduler, keeper));
        magazines::flush();
    });
}

/// A look at the name, which holds the task for a moment, hides it from nobody (WORD-5).
#[test]
fn models_a_look_at_the_name_against_a_cancel() {
    loom::model(|| {
        let (scheduler, driver, keeper) = scheduler();
        let handle = scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
        driver.turn();
        let task = next(&keeper);
        let looker = thread::spawn(move || {
            let is_named = task.name().contains("closure");
            drop(task);
            magazines::flush();
            is_named
        });
        let won = handle.cancel();
        let is_named = looker.join().unwrap();
        assert!(won || is_named, "if the cancel loses it is because the task was dropped");
        assert!(handle.is_done() && handle.is_cancelled() == won);
        end(scheduler, driver, keeper);
    });
}
