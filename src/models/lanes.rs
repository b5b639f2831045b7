//! The way in: lanes, signals, and the order of what comes from several threads.

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::intake::lane::{Consumer, Producer, Record};
use crate::intake::seat::Seat;
use crate::intake::{Inlet, Intake, Signals};
use crate::parking::Doorbell;
use crate::sync::Ordering;
use crate::tick::Moment;

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
        let seat = Arc::new(Seat::new(0, None, Arc::clone(&bell), &signals));
        let mut producer = Producer::new(Arc::clone(&seat));
        let visit = move |consumer: &mut Consumer, taken: &mut Vec<_>| {
            let mut seats = 0;
            signals.lower(1, |_| seats += 1);
            if seats > 0 {
                consumer.unlist();
                consumer.take(usize::MAX, taken);
            }
        };
        let mut consumer = Consumer::new(&seat);
        let reader = thread::spawn(move || {
            let mut taken = Vec::new();
            visit(&mut consumer, &mut taken);
            (consumer, taken, visit)
        });
        for name in 1..=2 {
            let record = Record { deadline: 0, stamp: 0, name };
            assert!(producer.push(record).is_ok());
            bell.ring_if_earlier(Moment(0), true); // as whoever schedules does
        }
        let (mut consumer, mut taken, visit) = reader.join().unwrap();
        visit(&mut consumer, &mut taken); // if no signal is up, all was seen before
        assert_eq!(taken.len(), 2);
    });
}

/// G3: what is taken in a turn takes along all that had been scheduled before it, on whatever thread.
///
/// That the count is Release and the cut Acquire cannot be seen here: in loom a swap finds the newest
/// value, ordered or not.
#[test]
fn models_no_record_comes_before_what_was_scheduled_before_it() {
    loom::model(|| {
        let bell = Doorbell::new(None);
        let intake = Arc::new(Intake::new(false));
        let told = Arc::new(AtomicBool::new(false));
        let push = |producer: &mut Producer, intake: &Intake, name: u64| {
            let record = Record { deadline: 0, stamp: intake.stamp(0), name };
            assert!(producer.push(record).is_ok());
        };
        let mut first = intake.take_seat(None, &bell);
        let mut second = intake.take_seat(None, &bell);
        push(&mut second, &intake, 0); // so that its signal is up already
        let later = {
            let (intake, told) = (Arc::clone(&intake), Arc::clone(&told));
            thread::spawn(move || {
                if told.load(Ordering::Acquire) {
                    push(&mut second, &intake, 2);
                }
            })
        };
        let reader = {
            let intake = Arc::clone(&intake);
            thread::spawn(move || {
                let mut inlet = Inlet::new();
                let cut = intake.cut(0);
                let names: Vec<_> = inlet.gather(&intake, cut).map(|record| record.name).collect();
                let is_alone = names.contains(&2) && !names.contains(&1);
                assert!(!is_alone, "the later one has come without the earlier one");
            })
        };
        push(&mut first, &intake, 1);
        told.store(true, Ordering::Release);
        later.join().unwrap();
        reader.join().unwrap();
    });
}
