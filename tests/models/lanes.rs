//! The way in: lanes, the ready list, and the order of what comes from several threads.

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::engine::intake::lane::{Consumer, Producer, Record};
use crate::engine::intake::seat::Seat;
use crate::engine::intake::{Gate, Intake, IntakeReader};
use crate::platform::sync::Ordering;
use crate::time::parking::Doorbell;
use crate::time::tick::Moment;

fn record(name: u64) -> Record {
    Record { deadline: name, stamp: name * 10, name: name * 100 }
}

/// INTAKE-1, LANE-1, LANE-2, LANE-3: what is pushed while the lane is closed is either taken, whole and in order, or
/// refused.
#[test]
fn models_a_push_is_taken_or_refused() {
    loom::model(|| {
        let seat = Arc::new(Seat::new(0, None, Doorbell::new(None), &Arc::new(Gate::new())));
        let mut producer = Producer::new(Arc::clone(&seat));
        let mut consumer = Consumer::new(&seat);
        let writer = thread::spawn(move || {
            (1..=3_u64).take_while(|name| producer.push(record(*name)).is_ok()).count()
        });
        let mut taken = Vec::new();
        consumer.look();
        consumer.take_before(u64::MAX, 1, |record| taken.push(record));
        consumer.close();
        consumer.take_before(u64::MAX, usize::MAX, |record| taken.push(record));
        let accepted = writer.join().unwrap();
        let names: Vec<_> = taken.iter().map(|record| record.name).collect();
        assert_eq!(names, [100, 200, 300][..accepted], "taken is what was accepted");
        assert!(taken.iter().all(|record| record.stamp == record.deadline * 10), "and whole");
    });
}

/// INTAKE-2, INTAKE-5: two threads push, and a reader that may leave some of it looks in between. What it has not taken
/// then, it finds at its next look.
fn pushes_are_seen_or_signalled(most: usize) {
    let (intake, bell) = (Arc::new(Intake::new(false)), Doorbell::new(None));
    let mut producers = [(); 2].map(|()| intake.take_seat(None, &bell));
    let push = |producer: &mut Producer, intake: &Intake, bell: &Doorbell, name| {
        let record = Record { deadline: 0, stamp: intake.stamp(0), name };
        assert!(producer.push(record).is_ok());
        bell.ring_if_earlier(Moment(0), true); // as whoever schedules does
    };
    let [first, second] = &mut producers;
    push(first, &intake, &bell, 1); // so that one of them is there already
    let writer = {
        let (intake, bell) = (Arc::clone(&intake), Arc::clone(&bell));
        let mut second = std::mem::replace(second, Producer::new(Arc::clone(&second.seat)));
        thread::spawn(move || push(&mut second, &intake, &bell, 3))
    };
    let reader = {
        let intake = Arc::clone(&intake);
        thread::spawn(move || {
            let (mut inlet, mut taken) = (IntakeReader::new(), Vec::new());
            for _ in 0..2 {
                let cut = intake.cut(0);
                inlet.take(&intake, cut, most, |record| taken.push(record.name));
            }
            (inlet, taken)
        })
    };
    push(first, &intake, &bell, 2);
    writer.join().unwrap();
    let (mut inlet, mut taken) = reader.join().unwrap();
    for _ in 0..3 {
        if !inlet.has_more(&intake) {
            break;
        }
        let cut = intake.cut(0);
        inlet.take(&intake, cut, most, |record| taken.push(record.name));
    }
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3]);
}

#[test]
fn models_a_push_is_seen_or_signalled() {
    loom::model(|| pushes_are_seen_or_signalled(usize::MAX));
}

#[test]
fn models_what_a_look_leaves_is_seen_by_the_next() {
    loom::model(|| pushes_are_seen_or_signalled(1));
}

/// INTAKE-5: a lane stays open, because a look has left some of it, and its seat is pushed again and again in the meantime.
/// It is on the list once.
#[test]
fn models_a_seat_whose_lane_is_open_is_listed_once() {
    loom::model(|| {
        let (intake, bell) = (Arc::new(Intake::new(false)), Doorbell::new(None));
        let mut producer = intake.take_seat(None, &bell);
        let mut push = |name| {
            let record = Record { deadline: 0, stamp: intake.stamp(0), name };
            assert!(producer.push(record).is_ok());
        };
        push(1);
        push(2);
        let (mut inlet, mut taken) = (IntakeReader::new(), Vec::new());
        inlet.take(&intake, intake.cut(0), 1, |record| taken.push(record.name));
        let reader = {
            let intake = Arc::clone(&intake);
            thread::spawn(move || {
                inlet.take(&intake, intake.cut(0), 1, |record| taken.push(record.name));
                (inlet, taken)
            })
        };
        push(3);
        push(4);
        let (mut inlet, mut taken) = reader.join().unwrap();
        while inlet.has_more(&intake) {
            inlet.take(&intake, intake.cut(0), 1, |record| taken.push(record.name));
        }
        assert_eq!(taken, [1, 2, 3, 4]);
    });
}

/// INTAKE-3: what is taken in a turn takes along all that had been scheduled before it, on whatever thread.
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
        push(&mut second, &intake, 0); // so that it is on the ready list already
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
                let (mut inlet, mut names) = (IntakeReader::new(), Vec::new());
                let cut = intake.cut(0);
                inlet.take(&intake, cut, usize::MAX, |record| names.push(record.name));
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
