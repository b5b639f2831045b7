//! A task's holder, from hand to hand: the real [`holder`] over the real magazines and depot.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::Cancellable;
use crate::engine::slots::depot::depot;
use crate::engine::slots::holder::Repetition;
use crate::engine::slots::{
    Cancelled, NamedAfter, OneShot, Phase, Running, Series, directory, holder, memory,
};
use crate::platform::sync::Ordering;
use crate::time::repeat::Kind;
use crate::time::tick::Moment;
use crate::wheel::entry::{SchedulerId, TaskKey};

/// What has become of tasks. What loom does not know of costs it no interleavings.
#[derive(Default)]
struct Ledger {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

/// What a task captures.
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

fn schedule(ledger: &Arc<Ledger>) -> TaskKey {
    let capture = Capture(Arc::clone(ledger));
    let task = OneShot(move || _ = capture.0.runs.fetch_add(1, Ordering::Relaxed));
    memory::vacancy().expect("a page of them").fill(task, Repetition::NONE, None)
}

fn run(key: TaskKey) -> bool {
    let Some(task) = Running::claim(key, Phase::Pending) else { return false };
    let (body, claimed) = task.into_body();
    body.closure.run_once();
    claimed.end();
    true
}

fn cancel(key: TaskKey) -> bool {
    !matches!(holder::cancel(key), Cancelled::Lost)
}

/// WORD-1, WORD-2: a run that uses the holder for the next task at once, against a cancel of each.
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
                memory::put_down();
                (ran, cancelled)
            })
        };
        let stale = thread::spawn(move || {
            let won = cancel(key);
            memory::put_down();
            won
        });
        let here = cancel(key);
        let ((ran, next_cancelled), there) = (runner.join().unwrap(), stale.join().unwrap());
        assert_eq!([ran, here, there].into_iter().filter(|won| *won).count(), 1, "one has won");
        assert_eq!(first.told(), (usize::from(ran), 1));
        assert!(next_cancelled, "a handle hits only its own task");
        assert_eq!(second.told(), (0, 1));
        memory::put_down();
    });
}

/// WORD-4: who cancels a series between two runs sees what the last one wrote, and so does the next run.
#[test]
fn models_rearm_against_cancel() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let capture = Capture(Arc::clone(&ledger));
        let task = Series(NamedAfter::<(), _>::new(move || {
            capture.0.runs.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        }));
        let rate = Repetition { kind: Kind::RateBurst, period: 1 };
        let key = memory::vacancy().expect("a page of them").fill(task, rate, None);
        let runner = thread::spawn(move || {
            for _ in 0..2 {
                let Some(mut task) = Running::claim(key, Phase::Pending) else { return };
                assert_eq!(task.period(), 1);
                assert!(task.run_in_place().is_continue());
                if let Err(task) = task.rearm(Moment(1), false) {
                    let (body, claimed) = task.into_body();
                    drop(body);
                    claimed.end();
                    break;
                }
            }
            memory::put_down();
        });
        let other = thread::spawn(move || {
            let won = cancel(key);
            memory::put_down();
            won
        });
        let here = cancel(key);
        let there = other.join().unwrap();
        runner.join().unwrap();
        assert!(here != there, "one cancel wins");
        assert_eq!(ledger.told().1, 1, "and the body is dropped once");
        memory::put_down();
    });
}

/// WORD-4: who finds a task done sees what it did.
#[test]
fn models_done_shows_what_was_done() {
    loom::model(|| {
        let result = Arc::new(AtomicU64::new(0));
        let write = Arc::clone(&result);
        let task = OneShot(move || write.store(7, Ordering::Relaxed));
        let key = memory::vacancy().expect("a page of them").fill(task, Repetition::NONE, None);
        let handle = Cancellable::new(key, SchedulerId::FIRST);
        let reader = thread::spawn(move || {
            if handle.is_done() {
                assert_eq!(result.load(Ordering::Relaxed), 7);
            }
        });
        assert!(run(key));
        memory::put_down();
        reader.join().unwrap();
    });
}

/// SLOT-1: slots pass through magazines and the depot, from thread to thread, each in one hand.
#[test]
fn models_a_slot_is_in_one_hand() {
    loom::model(|| {
        let ledger = Arc::<Ledger>::default();
        let work = |ledger: &Arc<Ledger>| {
            let keys = [schedule(ledger), schedule(ledger), schedule(ledger)];
            let [first, second, third] = keys.map(cancel);
            memory::put_down();
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

/// SLOT-3, SLOT-4: a page goes back while a stale handle looks at it, and is used again.
#[test]
fn models_a_trim_against_a_stale_handle() {
    loom::model(|| {
        let (first, second) = (Arc::<Ledger>::default(), Arc::<Ledger>::default());
        let stale = schedule(&first);
        assert!(cancel(stale));
        memory::put_down();
        let trimmer = thread::spawn(|| {
            let taken = depot().take_group(0..1);
            if let Some(slots) = taken {
                let is_bare = directory::discard(slots.clone());
                depot().put_group(slots, is_bare);
            }
        });
        let user = {
            let second = Arc::clone(&second);
            thread::spawn(move || {
                let key = schedule(&second);
                assert!(run(key));
                memory::put_down();
            })
        };
        assert!(!cancel(stale), "it has cancelled another task");
        trimmer.join().unwrap();
        user.join().unwrap();
        assert!(!cancel(stale));
        assert_eq!((first.told(), second.told()), ((0, 1), (1, 1)));
    });
}

/// HANDLE-1: a clone knows of a cancel, whichever of the two was first, and whatever lives there since.
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
        // Six tasks later the word has forgotten.
        (0..6).for_each(|_| assert!(cancel(schedule(&ledger))));
        assert!(handle.is_cancelled() && clone.is_cancelled());
        memory::put_down();
    });
}
