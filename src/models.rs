//! loom models: small programs of which every interleaving is tried.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release --lib models`

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;

use crate::intake::Signals;
use crate::intake::lane::{Consumer, Producer, Record};
use crate::intake::seat::Seat;
use crate::parking::{Doorbell, Sleeper};
use crate::sync::Ordering;
use crate::task::state::{AtomicRef, CancelOutcome, Kind, Phase, Word};
use crate::tick::Moment;

/// A holder as far as a model needs it: the word, and a body that belongs to one at a time. loom
/// reports two who touch it at once, or one who does not see what was written.
struct Holder {
    word: AtomicRef,
    body: UnsafeCell<u64>,
    ends: AtomicUsize,
}

impl Holder {
    fn filled(kind: Kind) -> Arc<Holder> {
        let holder =
            Holder { word: AtomicRef::new(), body: UnsafeCell::new(0), ends: AtomicUsize::new(0) };
        holder.fill(1, kind);
        Arc::new(holder)
    }

    fn fill(&self, generation: u32, kind: Kind) {
        // SAFETY: the caller owns the free slot; loom checks it.
        self.body.with_mut(|body| unsafe { *body = u64::from(generation) });
        self.word.fill(Word::pending(generation, 0, kind, 0));
    }

    /// The task of this generation comes to its end in the hands of the caller.
    fn take(&self, generation: u32) {
        // SAFETY: the caller has won the word; loom checks it.
        let body = self.body.with_mut(|body| unsafe { std::mem::take(&mut *body) });
        assert_eq!(body, u64::from(generation), "the body of another task");
        self.ends.fetch_add(1, Ordering::Relaxed);
    }

    fn cancel(&self, generation: u32) -> bool {
        match self.word.cancel(generation) {
            CancelOutcome::Won { .. } => self.take(generation),
            CancelOutcome::Doomed => {}
            CancelOutcome::Lost => return false,
        }
        true
    }
}

/// A1, A2, A4: a cancel, a run that reuses the holder for the next task, and a cancel of that.
#[test]
fn models_cancel_against_run_and_reuse() {
    loom::model(|| {
        let holder = Holder::filled(Kind::Once);
        let runner = {
            let holder = Arc::clone(&holder);
            thread::spawn(move || {
                let word = holder.word.claim(1, Phase::Pending)?;
                holder.take(1);
                let freed = holder.word.end(word, false);
                holder.fill(freed, Kind::Once);
                Some(freed)
            })
        };
        let stale = {
            let holder = Arc::clone(&holder);
            thread::spawn(move || holder.cancel(1))
        };
        let second = holder.cancel(2);
        let (reused, first) = (runner.join().unwrap(), stale.join().unwrap());
        assert_ne!(reused.is_some(), first, "run or cancelled, and not both");
        assert!(!second || reused == Some(2), "a handle hits only its own task");
        let ends = holder.ends.load(Ordering::Relaxed);
        assert_eq!(ends, 1 + usize::from(second));
    });
}

/// The swap of a series' reference from run to run, against a cancel, against a second runner.
#[test]
fn models_rearm_against_cancel() {
    loom::model(|| {
        let holder = Holder::filled(Kind::RateBurst);
        let runner = {
            let holder = Arc::clone(&holder);
            thread::spawn(move || {
                for _ in 0..2 {
                    let Some(word) = holder.word.claim(1, Phase::Pending) else { return };
                    // SAFETY: claimed; loom checks it.
                    holder.body.with_mut(|body| assert_eq!(unsafe { *body }, 1));
                    if !holder.word.rearm(1) {
                        holder.take(1);
                        holder.word.end(word, true);
                        return;
                    }
                }
            })
        };
        let other = {
            let holder = Arc::clone(&holder);
            thread::spawn(move || holder.cancel(1))
        };
        let here = holder.cancel(1);
        let there = other.join().unwrap();
        runner.join().unwrap();
        assert!(here != there, "one cancel wins");
        assert_eq!(holder.ends.load(Ordering::Relaxed), 1, "and the body is dropped once");
    });
}

/// P1: a producer publishes and rings; the sleeper arms, looks, and sleeps. A lost wake-up is a
/// deadlock, which loom reports.
#[test]
fn models_no_wake_up_is_lost() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let bell = Doorbell::new(Some(sleeper.waker()));
        let published = Arc::new(AtomicU64::new(0));
        let producer = {
            let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
            thread::spawn(move || {
                published.store(1, Ordering::SeqCst);
                bell.ring_if_earlier(Moment(5), false);
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load(Ordering::SeqCst) == 1 {
                break;
            }
            sleeper.sleep();
            bell.disarm();
        }
        producer.join().unwrap();
    });
}

/// P1: the sleeper sleeps although something has come in, if that can wait. What comes next and cannot
/// wakes it.
#[test]
fn models_what_can_wait_hides_nothing() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let bell = Doorbell::new(Some(sleeper.waker()));
        let published = Arc::new(AtomicU64::new(0));
        let producer = {
            let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
            thread::spawn(move || {
                for (count, deadline) in [(1, 20), (2, 5)] {
                    published.store(count, Ordering::SeqCst);
                    bell.ring_if_earlier(Moment(deadline), false);
                }
            })
        };
        loop {
            bell.arm(Moment(10));
            if published.load(Ordering::SeqCst) == 2 {
                break;
            }
            sleeper.sleep();
            bell.disarm();
        }
        producer.join().unwrap();
    });
}

/// G1, L1, L2, L3: what is pushed while the lane is closed is either taken, whole and in order, or
/// refused.
#[test]
fn models_a_push_is_taken_or_refused() {
    loom::model(|| {
        let bell = Doorbell::new(None);
        let seat = Arc::new(Seat::new(0, None, bell, &Arc::new(Signals::new())));
        let mut producer = Producer::new(Arc::clone(&seat));
        let mut consumer = Consumer::new(&seat);
        let writer = thread::spawn(move || {
            let accepted = (1..=3_u64).take_while(|n| {
                producer.push(Record { deadline: *n, stamp: n * 10, name: n * 100 }).is_ok()
            });
            accepted.count()
        });
        let mut taken = Vec::new();
        consumer.take(1, &mut taken);
        consumer.close(&mut taken);
        let accepted = writer.join().unwrap();
        let names: Vec<_> = taken.iter().map(|record| record.name).collect();
        assert_eq!(names, [100, 200, 300][..accepted], "taken is what was accepted");
        assert!(taken.iter().all(|record| record.stamp == record.deadline * 10), "and whole");
    });
}

/// G2: after a push either the signal is up, or the reader's present visit sees the record.
#[test]
fn models_a_push_is_seen_or_signalled() {
    loom::model(|| {
        let bell = Doorbell::new(None);
        let signals = Arc::new(Signals::new());
        let seat = Arc::new(Seat::new(0, None, bell, &signals));
        let mut producer = Producer::new(Arc::clone(&seat));
        let mut consumer = Consumer::new(&seat);
        let writer = thread::spawn(move || {
            for name in 1..=2 {
                let record = Record { deadline: 0, stamp: 0, name };
                assert!(producer.push(record).is_ok());
            }
        });
        let mut taken = Vec::new();
        let mut visit = |taken: &mut Vec<_>| {
            let mut seats = 0;
            signals.lower(1, |_| seats += 1);
            if seats > 0 {
                consumer.unlist();
                consumer.take(usize::MAX, taken);
            }
        };
        visit(&mut taken);
        writer.join().unwrap();
        visit(&mut taken); // if no signal is up, all was seen before
        assert_eq!(taken.len(), 2);
    });
}
