//! The way in: lanes, the ready list, and the order of what comes from several threads.

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::clock::tick::Moment;
use crate::engine::intake::Intake;
use crate::engine::intake::lane::{LaneReader, LaneWriter, Record};
use crate::engine::intake::reader::IntakeReader;
use crate::platform::sync::Ordering;
use crate::wake::doorbell::Doorbell;
use crate::wheel::entry::Entry;

fn record(name: u64) -> Record {
    Record { entry: Entry { deadline: name, name: name * 100 }, stamp: name * 10 }
}

/// What is pushed while the lane is closed is either taken, whole and in order, or refused (INTAKE-1, LANE-1,
/// LANE-3).
#[test]
fn models_a_push_is_taken_or_refused() {
    loom::model(|| {
        let mut writer = Intake::new(false, None).take_lane();
        let mut reader = LaneReader::new(&writer);
        let writing = thread::spawn(move || {
            (1..=3_u64).take_while(|name| writer.push(record(*name)).is_ok()).count()
        });
        let mut taken = Vec::new();
        reader.look();
        reader.take_before(u64::MAX, 1, |record, _| taken.push(record));
        reader.close();
        reader.take_before(u64::MAX, usize::MAX, |record, _| taken.push(record));
        let accepted = writing.join().unwrap();
        let names: Vec<_> = taken.iter().map(|record| record.entry.name).collect();
        assert_eq!(names, [100, 200, 300][..accepted], "taken is what was accepted");
        assert!(taken.iter().all(|record| record.stamp == record.entry.deadline * 10), "and whole");
    });
}

/// Two threads push, and a reader that may leave some of it looks in between. What it has not taken then, it finds at
/// its next look (WAKE-4, INTAKE-2).
fn pushes_are_seen_or_signalled(most: usize) {
    let (intake, bell) = (Arc::new(Intake::new(false, None)), Doorbell::new(None));
    let mut writers = [(); 2].map(|()| intake.take_lane());
    let push = |writer: &mut LaneWriter, intake: &Intake, bell: &Doorbell, name| {
        let record = Record { entry: Entry { deadline: 0, name }, stamp: intake.stamp(0) };
        assert!(writer.push(record).is_ok());
        bell.ring_if_earlier(Moment(0), true); // as a schedule does
    };
    let [first, second] = &mut writers;
    push(first, &intake, &bell, 1); // so that one of them is there already
    let writing = {
        let (intake, bell) = (Arc::clone(&intake), Arc::clone(&bell));
        let mut second = std::mem::replace(second, LaneWriter::new(Arc::clone(&second.lane)));
        thread::spawn(move || push(&mut second, &intake, &bell, 3))
    };
    let reading = {
        let intake = Arc::clone(&intake);
        thread::spawn(move || {
            let (mut reader, mut taken) = (IntakeReader::default(), Vec::new());
            for _ in 0..2 {
                let cut = intake.count().expect("it counts");
                reader.take(&intake, cut, most, |record, _| taken.push(record.entry.name));
            }
            (reader, taken)
        })
    };
    push(first, &intake, &bell, 2);
    writing.join().unwrap();
    let (mut reader, mut taken) = reading.join().unwrap();
    for _ in 0..3 {
        if !reader.has_more(&intake) {
            break;
        }
        let cut = intake.count().expect("it counts");
        reader.take(&intake, cut, most, |record, _| taken.push(record.entry.name));
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

/// A lane stays open, because a look has left some of it, and it is pushed on the ready list again and again in the
/// meantime. It is on the list once (INTAKE-2).
#[test]
fn models_a_lane_that_is_open_is_listed_once() {
    loom::model(|| {
        let intake = Arc::new(Intake::new(false, None));
        let mut writer = intake.take_lane();
        let mut push = |name| {
            let record = Record { entry: Entry { deadline: 0, name }, stamp: intake.stamp(0) };
            assert!(writer.push(record).is_ok());
        };
        push(1);
        push(2);
        let (mut reader, mut taken) = (IntakeReader::default(), Vec::new());
        reader.take(&intake, intake.count().expect("it counts"), 1, |record, _| {
            taken.push(record.entry.name)
        });
        let reading = {
            let intake = Arc::clone(&intake);
            thread::spawn(move || {
                reader.take(&intake, intake.count().expect("it counts"), 1, |record, _| {
                    taken.push(record.entry.name)
                });
                (reader, taken)
            })
        };
        push(3);
        push(4);
        let (mut reader, mut taken) = reading.join().unwrap();
        while reader.has_more(&intake) {
            reader.take(&intake, intake.count().expect("it counts"), 1, |record, _| {
                taken.push(record.entry.name)
            });
        }
        assert_eq!(taken, [1, 2, 3, 4]);
    });
}

/// What is taken in a turn takes along all that had been scheduled before it, on whatever thread (INTAKE-3).
///
/// That the count is Release and the cut Acquire cannot be seen here: in loom a swap finds the newest
/// value, ordered or not.
#[test]
fn models_no_record_comes_before_what_was_scheduled_before_it() {
    loom::model(|| {
        let intake = Arc::new(Intake::new(false, None));
        let told = Arc::new(AtomicBool::new(false));
        let push = |writer: &mut LaneWriter, intake: &Intake, name: u64| {
            let record = Record { entry: Entry { deadline: 0, name }, stamp: intake.stamp(0) };
            assert!(writer.push(record).is_ok());
        };
        let mut first = intake.take_lane();
        let mut second = intake.take_lane();
        push(&mut second, &intake, 0); // so that it is on the ready list already
        let later = {
            let (intake, told) = (Arc::clone(&intake), Arc::clone(&told));
            thread::spawn(move || {
                if told.load(Ordering::Acquire) {
                    push(&mut second, &intake, 2);
                }
            })
        };
        let reading = {
            let intake = Arc::clone(&intake);
            thread::spawn(move || {
                let (mut reader, mut names) = (IntakeReader::default(), Vec::new());
                let cut = intake.count().expect("it counts");
                reader.take(&intake, cut, usize::MAX, |record, _| names.push(record.entry.name));
                let is_alone = names.contains(&2) && !names.contains(&1);
                assert!(!is_alone, "the later one has come without the earlier one");
            })
        };
        push(&mut first, &intake, 1);
        told.store(true, Ordering::Release);
        later.join().unwrap();
        reading.join().unwrap();
    });
}
