//! Deadlines that move (S28), on every subject.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use tickwheel::{Cancellable, Clock, ManualClock, ScheduleExt};

use super::subjects::every;
use super::{MILLI, NANO, SECOND};
use crate::common::Random;
use crate::common::log::Log;

#[test]
fn s28_a_deadline_moves_earlier_and_later() {
    every("s28", |subject| {
        let (log, start, name) = (Log::default(), subject.schedule.now(), &subject.name);
        let later = subject.schedule.schedule_once(SECOND, log.task(2)).expect("open");
        let sooner = subject.schedule.schedule_at(start + 60 * SECOND, log.task(1)).expect("open");
        assert_eq!(later.deadline(), Some(start + SECOND), "{name}");
        assert!(later.reset(2 * SECOND) && later.reset_at(start + 3 * SECOND), "{name}");
        assert!(sooner.reset_at(start + 2 * SECOND), "{name}");
        let deadlines = [&later, &sooner].map(Cancellable::deadline);
        assert_eq!(deadlines, [3, 2].map(|n| Some(start + n * SECOND)), "{name}");
        subject.advance((2 * SECOND).saturating_sub(10 * NANO));
        subject.says(&log, &[]);
        subject.advance(10 * MILLI);
        subject.says(&log, &[1]);
        assert!(!sooner.reset(SECOND) && sooner.deadline().is_none(), "{name}: it has run");
        subject.advance(SECOND);
        subject.says(&log, &[1, 2]);
        subject.advance(100 * SECOND);
        subject.says(&log, &[1, 2]);
        assert!(!later.reset_at(start) && later.is_done() && !later.is_cancelled(), "{name}");
    });
}

#[test]
fn s28_a_deadline_that_has_passed_is_due_now_and_a_cancelled_task_does_not_move() {
    every("s28", |subject| {
        let (log, start, name) = (Log::default(), subject.schedule.now(), &subject.name);
        let tasks = [1, 2, 3].map(|number| {
            subject.schedule.schedule_once(60 * SECOND, log.task(number)).expect("open")
        });
        subject.advance(SECOND);
        assert!(tasks[0].reset_at(start) && tasks[1].reset(SECOND), "{name}");
        assert!(tasks[2].cancel() && !tasks[2].reset(SECOND), "{name}");
        assert!(!tasks[2].reset_at(start) && tasks[2].deadline().is_none(), "{name}");
        subject.advance(MILLI);
        subject.says(&log, &[1]);
        assert!(tasks[1].cancel() && !tasks[1].reset(SECOND), "{name}: cancelled where it is now");
        subject.advance(100 * SECOND);
        subject.says(&log, &[1]);
    });
}

/// A task and its last deadline, and when it has run.
#[derive(Default)]
struct Moved {
    handle: OnceLock<Cancellable>,
    runs: Mutex<Vec<Instant>>,
}

#[test]
fn s28_whatever_the_history_a_task_runs_once_at_its_last_deadline() {
    every("s28", |subject| {
        let (mut random, name, start) = (Random(28), &subject.name, subject.schedule.now());
        let mut tasks = Vec::new();
        for _ in 0..60 {
            let moved = Arc::new(Moved::default());
            let (ran, clock) = (Arc::clone(&moved), subject.clock.clone());
            let task = move || ran.runs.lock().expect("whole").push(clock.now());
            let deadline = start + random.below(300) as u32 * MILLI;
            let handle = subject.schedule.schedule_at(deadline, task).expect("open");
            moved.handle.set(handle).expect("once");
            tasks.push((moved, deadline));
        }
        while subject.schedule.now() < start + 1_000 * MILLI {
            for (moved, deadline) in &mut tasks {
                if random.below(8) != 0 {
                    continue;
                }
                let handle = moved.handle.get().expect("set");
                let to = start + random.below(900) as u32 * MILLI;
                let has_run = !moved.runs.lock().expect("whole").is_empty();
                if handle.reset_at(to) {
                    assert!(!has_run, "{name}: a task that has run does not move");
                    *deadline = to.max(subject.schedule.now());
                } else {
                    assert!(has_run, "{name}: a task that waits moves");
                }
            }
            subject.step(10 * MILLI);
        }
        for (moved, deadline) in &tasks {
            subject.until("it has run", || !moved.runs.lock().expect("whole").is_empty());
            let runs = moved.runs.lock().expect("whole");
            assert_eq!(runs.len(), 1, "{name}");
            assert!(runs[0] >= *deadline && runs[0] <= *deadline + 11 * MILLI, "{name}");
        }
    });
}

/// A task that was moved has no promised place among those of the same deadline. All others keep their order.
#[test]
fn s28_tasks_that_stay_keep_their_order_beside_those_that_move() {
    every("s28", |subject| {
        let (log, start) = (Log::default(), subject.schedule.now());
        let numbers = [3, 1, 4, 2];
        let tasks = numbers.map(|n| {
            let delay = if n == 4 { 9 * SECOND } else { SECOND };
            subject.schedule.schedule_once(delay, log.task(n)).expect("open")
        });
        assert!(tasks[0].reset_at(start + SECOND) && tasks[2].reset_at(start + SECOND));
        subject.step(SECOND + MILLI);
        subject.until("all four have run", || log.all().len() == 4);
        let ran = log.all();
        let mut stayed = ran.clone();
        stayed.retain(|n| [1, 2].contains(n));
        assert!(subject.threads > 1 || stayed == [1, 2], "{}: {ran:?}", subject.name);
        assert!(numbers.iter().all(|n| ran.contains(n)), "{}: {ran:?}", subject.name);
    });
}

#[test]
fn s28_a_due_task_that_waits_for_its_turn_moves_too() {
    every("s28", |subject| {
        let (log, name) = (Log::default(), &subject.name);
        let other = Arc::new(OnceLock::<Cancellable>::new());
        let has_moved = Arc::new(AtomicBool::new(false));
        let (moved, says) = (Arc::clone(&other), Arc::clone(&has_moved));
        let moving = move || {
            let is_moved = moved.get().expect("set").reset(SECOND);
            says.store(is_moved, Ordering::Release);
        };
        subject.schedule.schedule_once(SECOND, moving).expect("open");
        let second = subject.schedule.schedule_once(SECOND, log.task(1)).expect("open");
        other.set(second).expect("once");
        subject.step(SECOND + 2 * MILLI);
        // On several threads both may have started at the same time.
        let has_moved = has_moved.load(Ordering::Acquire);
        assert!(has_moved || subject.threads > 1, "{name}");
        subject.says(&log, if has_moved { &[] } else { &[1] });
        subject.step(990 * MILLI);
        subject.says(&log, if has_moved { &[] } else { &[1] });
        subject.step(20 * MILLI);
        subject.says(&log, &[1]);
        subject.advance(10 * SECOND);
        subject.says(&log, &[1]);
    });
}

/// Notes the seconds at which a series runs.
fn noting(clock: &ManualClock, start: Instant) -> (Arc<Mutex<Vec<u64>>>, impl Fn() + Send + use<>) {
    let (runs, clock) = (Arc::<Mutex<Vec<u64>>>::default(), clock.clone());
    let note = Arc::clone(&runs);
    (runs, move || note.lock().expect("whole").push((clock.now() - start).as_secs()))
}

#[test]
fn s28_of_a_series_the_next_run_moves_and_the_phase_goes_on_from_there() {
    every("s28", |subject| {
        let (start, name) = (subject.schedule.now(), &subject.name);
        let (runs, note) = noting(&subject.clock, start);
        let series =
            (subject.schedule).schedule_repeatedly(10 * SECOND, 10 * SECOND, note).expect("open");
        let said = || runs.lock().expect("whole").clone();
        let to = |seconds: u32| {
            while subject.schedule.now() < start + seconds * SECOND {
                subject.step(SECOND);
            }
        };
        to(11);
        subject.until("its first run", || said() == [10]);
        assert_eq!(series.deadline(), Some(start + 20 * SECOND), "{name}");
        assert!(series.reset_at(start + 14 * SECOND), "{name}: earlier");
        assert_eq!(series.deadline(), Some(start + 14 * SECOND), "{name}");
        to(25);
        subject.until("the phase has moved", || said() == [10, 14, 24]);
        assert!(series.reset(20 * SECOND), "{name}: later");
        to(56);
        subject.until("and again", || said() == [10, 14, 24, 45, 55]);
        assert!(series.reset_at(start), "{name}: a time that has passed is now");
        subject.step(SECOND);
        subject.until("at once, and no run is made up for", || said().len() == 6);
        subject.step(8 * SECOND);
        assert_eq!(said().len(), 6, "{name}");
        assert!(series.cancel() && !series.reset(SECOND), "{name}");
        assert!(series.deadline().is_none(), "{name}");
    });
}

#[test]
fn s28_while_a_series_runs_the_run_after_moves() {
    every("s28", |subject| {
        let (start, name) = (subject.schedule.now(), &subject.name);
        let (runs, note) = noting(&subject.clock, start);
        let handle = Arc::new(OnceLock::<Cancellable>::new());
        let (own, count) = (Arc::clone(&handle), AtomicUsize::new(0));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let task = move || {
            note();
            let own = own.get().expect("set");
            if count.fetch_add(1, Ordering::Relaxed) == 1 {
                let said = (own.deadline(), own.reset(5 * SECOND), own.reset(3 * SECOND));
                tells.lock().expect("whole").push(said);
            }
        };
        let series =
            subject.schedule.schedule_repeatedly(10 * SECOND, 10 * SECOND, task).expect("open");
        handle.set(series).expect("once");
        for _ in 0..35 {
            subject.advance(SECOND);
        }
        subject.advance(MILLI);
        subject.until("it runs", || runs.lock().expect("whole").len() >= 4);
        assert_eq!(*runs.lock().expect("whole"), [10, 20, 23, 33], "{name}");
        assert_eq!(*told.lock().expect("whole"), [(None, true, true)], "{name}");
        handle.get().expect("set").cancel();
    });
}
