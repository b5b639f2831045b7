//! Races for a task's holder: the real [`holder`] with the real magazines and the real depot.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::Cancellable;
use crate::clock::repeat::Period;
use crate::clock::tick::Moment;
use crate::engine::slots::depot::depot;
use crate::engine::slots::state::NotEnded;
use crate::engine::slots::{Content, Running, Series, magazines, task, trim};
use crate::platform::sync::Ordering;
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};

/// Counts what has become of tasks. These are std's atomics, so they add no interleavings to a model.
#[derive(Default)]
struct Ledger {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

/// The capture of a task.
struct Capture(Arc<Ledger>);

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Ordering::Relaxed);
    }
}

impl Ledger {
    fn told(&self) -> (usize, usize) {
        (self.runs.load(Ordering::Relaxed), self.drops.load(Ordering::Relaxed))
    }
}

fn fill(task: impl Content, period: Option<Period>) -> TaskKey {
    let filled = task::fill(task, period, None, Moment(1), SchedulerId::FIRST);
    filled.unwrap_or_else(|_| panic!("a page of them"))
}

fn schedule(ledger: &Arc<Ledger>) -> TaskKey {
    let capture = Capture(Arc::clone(ledger));
    let task = move || _ = capture.0.runs.fetch_add(1, Ordering::Relaxed);
    fill(task, None)
}

/// Returns the first entry of a task.
fn entry_of(key: TaskKey) -> Entry {
    Entry::new(key.slot, key.birth(), Moment(1), false, Runner::Default, false)
}

fn claim(entry: Entry) -> Option<Running> {
    Running::claim(entry, |_| unreachable!("it is not put off")).map(|(task, _)| task)
}

fn run(key: TaskKey) -> bool {
    let Some(task) = claim(entry_of(key)) else { return false };
    let (ran, over) = task.into_ending().run_once();
    over.end();
    ran.is_ok()
}

fn cancel(key: TaskKey) -> bool {
    match task::cancel(key).0 {
        Ok(task) => _ = task.discard().1.end(),
        Err(NotEnded::Doomed) => {}
        Err(_) => return false,
    }
    true
}

/// A run that uses the holder for the next task at once, against a cancel of each task: one of them wins (WORD-1), and
/// alone has the body (WORD-1).
#[test]
fn models_cancel_against_run_and_reuse() {
    loom::model(|| {
        let (first, second) = (Arc::<Ledger>::default(), Arc::<Ledger>::default());
        let key = schedule(&first);
        let runner = {
            let second = Arc::clone(&second);
            thread::spawn(move || {
                let ran = run(key);
                let next = schedule(&second);
                let cancelled = cancel(next);
                magazines::flush();
                (ran, cancelled)
            })
        };
        let stale = thread::spawn(move || {
            let won = cancel(key);
            magazines::flush();
            won
        });
        let here = cancel(key);
        let ((ran, next_cancelled), there) = (runner.join().unwrap(), stale.join().unwrap());
        assert_eq!([ran, here, there].into_iter().filter(|won| *won).count(), 1, "one has won");
        assert_eq!(first.told(), (usize::from(ran), 1));
        assert!(next_cancelled, "a handle hits only its own task");
        assert_eq!(second.told(), (0, 1));
        magazines::flush();
    });
}

/// A thread that cancels a series between two runs sees what the last run wrote, and so does the next run (WORD-4).
#[test]
fn models_rearm_against_cancel() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let capture = Capture(Arc::clone(&ledger));
        let task = Series(move || {
            capture.0.runs.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        let rate = Period::fixed_rate(Duration::from_nanos(1));
        let key = fill(task, Some(rate));
        let runner = thread::spawn(move || {
            let mut entry = entry_of(key);
            for _ in 0..2 {
                let Some(mut task) = claim(entry) else { return };
                assert_eq!(task::period(key.slot), 1);
                assert!(task.run_in_place().is_continue());
                let announce = |next| {
                    entry = next;
                    true
                };
                let is_pending = task.rearm(Moment(1), Moment(0), announce);
                if !is_pending {
                    task.into_ending().discard().1.end();
                    break;
                }
            }
            magazines::flush();
        });
        let other = thread::spawn(move || {
            let won = cancel(key);
            magazines::flush();
            won
        });
        let here = cancel(key);
        let there = other.join().unwrap();
        runner.join().unwrap();
        assert!(here != there, "one cancel wins");
        assert_eq!(ledger.told().1, 1, "and the body is dropped once");
        magazines::flush();
    });
}

/// A thread that finds a task done sees what the task did (WORD-4).
#[test]
fn models_done_shows_what_was_done() {
    loom::model(|| {
        let result = Arc::new(AtomicU64::new(0));
        let write = Arc::clone(&result);
        let task = move || write.store(7, Ordering::Relaxed);
        let key = fill(task, None);
        let handle = Cancellable::new(key, SchedulerId::FIRST);
        let reader = thread::spawn(move || {
            if handle.is_done() {
                assert_eq!(result.load(Ordering::Relaxed), 7);
            }
        });
        assert!(run(key));
        magazines::flush();
        reader.join().unwrap();
    });
}

/// Slots pass from thread to thread through magazines and the depot, and each is in one place (SLOT-1).
#[test]
fn models_a_slot_is_in_one_hand() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let work = |ledger: &Arc<Ledger>| {
            let keys = [schedule(ledger), schedule(ledger), schedule(ledger)];
            let [first, second, third] = keys.map(cancel);
            magazines::flush();
            assert!(first && second && third, "nobody else has these");
            keys
        };
        let other = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || work(&ledger))
        };
        let here = work(&ledger);
        let there = other.join().unwrap();
        assert!(here.iter().all(|key| !there.contains(key)), "a name is given once");
        assert_eq!(ledger.told(), (0, 6));
    });
}

/// A page goes back to the system while a stale handle looks at it (SLOT-3), and is used again with other numbers
/// (SLOT-4).
#[test]
fn models_a_trim_against_a_stale_handle() {
    loom::model(|| {
        let (first, second) = (Arc::<Ledger>::default(), Arc::<Ledger>::default());
        let stale = schedule(&first);
        assert!(cancel(stale));
        magazines::flush();
        let trimmer = thread::spawn(|| {
            let taken = depot().take_group(0..1);
            if let Some(slots) = taken {
                let is_absent = trim::give_back(slots.clone());
                depot().put_group(slots, is_absent);
            }
        });
        let user = {
            let second = Arc::clone(&second);
            thread::spawn(move || {
                let key = schedule(&second);
                assert!(run(key));
                magazines::flush();
            })
        };
        assert!(!cancel(stale), "it has cancelled another task");
        trimmer.join().unwrap();
        user.join().unwrap();
        assert!(!cancel(stale));
        assert_eq!((first.told(), second.told()), ((0, 1), (1, 1)));
    });
}

/// A clone knows of a cancel, whether it was made before or after it, and whichever task has the slot since (HANDLE-1).
#[test]
fn models_a_clone_knows_of_the_cancel() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let key = schedule(&ledger);
        let handle = Arc::new(Cancellable::new(key, SchedulerId::FIRST));
        let cloner = {
            let handle = Arc::clone(&handle);
            thread::spawn(move || (*handle).clone())
        };
        assert!(handle.cancel());
        let clone = cloner.join().unwrap();
        assert!(cancel(schedule(&ledger)), "the next task there: the word has forgotten");
        assert!(handle.is_cancelled() && clone.is_cancelled());
        magazines::flush();
    });
}

/// A clone that finds its task done says whether it was cancelled, also if the next task has the slot by then (HANDLE-2).
#[test]
fn models_a_clone_looks_while_the_slot_is_used_again() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let handle = Cancellable::new(schedule(&ledger), SchedulerId::FIRST);
        let clone = handle.clone();
        // The looker is the other thread, because two preemptions have to do.
        let looker = thread::spawn(move || {
            assert!(!clone.is_done() || clone.is_cancelled(), "nothing else has ended it");
        });
        assert!(handle.cancel());
        assert!(cancel(schedule(&ledger)));
        looker.join().unwrap();
        magazines::flush();
    });
}
