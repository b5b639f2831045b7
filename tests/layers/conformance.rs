//! One suite for everything that implements `Schedule`, run through `dyn Schedule` alone.
//!
//! A row of the suite is a test in this file, and a column is one of the [`subjects`]. If a row cannot hold for a subject,
//! the list of that subject names the row and the reason, and the run prints both.

mod deadlines;
mod subjects;
mod trampoline;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::allocations::Measurement;
use crate::common::ledger::{End, Ledger};
use crate::common::log::Log;
use crate::common::{Grenade, OnDrop, Random, count, panic_on_purpose};
use subjects::{
    LOOPS, Make, POOLS, SCHEDULERS, WORKERS, WORKERS_ON_INLINE, every, makers, on_each,
};
use tickwheel::{Cancellable, Clock, MissedTicks, Period, Schedule, ScheduleError, ScheduleExt};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);

// ----- time --------------------------------------------------------------------------------------------------

#[test]
fn s01_never_early() {
    every("s01", |subject| {
        let (log, start) = (Log::default(), subject.schedule.now());
        subject.schedule.schedule_once(2 * SECOND, log.task(4)).expect("open");
        subject.schedule.schedule_at(start + SECOND, log.task(2)).expect("open");
        subject.schedule.schedule_task_at(start + SECOND, Box::new(log.task(3))).expect("open");
        subject.schedule.schedule_once(Duration::ZERO, log.task(1)).expect("open");
        subject.advance(Duration::ZERO);
        subject.says(&log, &[1]);
        subject.advance(SECOND.saturating_sub(10 * NANO));
        subject.says(&log, &[1]);
        subject.advance(10 * MILLI);
        subject.says(&log, &[1, 2, 3]);
        subject.advance(SECOND);
        subject.says(&log, &[1, 2, 3, 4]);
        assert!(subject.schedule.now() >= start + 2 * SECOND, "{}: its clock", subject.name);
    });
}

#[test]
fn s03_in_order_of_deadline_and_then_of_scheduling() {
    every("s03", |subject| {
        let (log, start) = (Log::default(), subject.schedule.now());
        for (millis, number) in [(30, 5), (10, 1), (20, 3), (10, 2), (20, 4)] {
            subject.schedule.schedule_at(start + millis * MILLI, log.task(number)).expect("open");
        }
        let every = Period::fixed_rate(SECOND);
        let said = log.clone();
        let series = subject.schedule.schedule_periodic(30 * MILLI, every, move || said.say(6));
        // All are overdue at once. They keep their order.
        subject.step(50 * MILLI);
        subject.says(&log, &[1, 2, 3, 4, 5, 6]);
        assert!(series.expect("open").cancel(), "{}", subject.name);
    });
}

/// The next run of a series counts as scheduled when the run before has ended. In Java it keeps its first number.
#[test]
fn s03_at_equal_deadlines_a_series_comes_behind_what_was_scheduled_before() {
    every("s03 series", |subject| {
        let (log, every) = (Log::default(), Period::fixed_rate(SECOND));
        let said = log.clone();
        let series = subject.schedule.schedule_periodic(SECOND, every, move || said.say(1));
        subject.schedule.schedule_once(2 * SECOND, log.task(2)).expect("open");
        subject.step(SECOND);
        subject.says(&log, &[1]);
        subject.step(SECOND);
        subject.says(&log, &[1, 2, 1]);
        assert!(series.expect("open").cancel(), "{}", subject.name);
    });
}

#[test]
fn s04_any_instant_and_any_duration() {
    every("s04", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let never = schedule.schedule_once(Duration::MAX, log.task(9)).expect("open");
        let nor = schedule.schedule_repeatedly(Duration::MAX, Duration::MAX, || ()).expect("open");
        let past = Instant::now().checked_sub(SECOND).unwrap_or_else(|| schedule.now());
        schedule.schedule_at(past, log.task(1)).expect("open");
        subject.advance(1000 * SECOND);
        subject.says(&log, &[1]);
        assert!(never.cancel() && nor.cancel(), "{}", subject.name);
    });
}

#[test]
fn s05_a_zero_delay_never_runs_on_the_callers_stack() {
    thread_local! {
        static IN_THE_CALL: Cell<bool> = const { Cell::new(false) };
    }
    every("s05", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let task = || {
            let log = log.clone();
            move || log.say(u32::from(IN_THE_CALL.get()))
        };
        IN_THE_CALL.set(true);
        schedule.schedule_once(Duration::ZERO, task()).expect("open");
        schedule.schedule_at(schedule.now(), task()).expect("open");
        let said = task();
        let series = schedule.schedule_repeatedly(Duration::ZERO, SECOND, said).expect("open");
        IN_THE_CALL.set(false);
        subject.step(MILLI);
        subject.says(&log, &[0, 0, 0]);
        assert!(series.cancel(), "{}", subject.name);
    });
}

// ----- cancel ------------------------------------------------------------------------------------------------

/// Returns what a handle says: `is_cancelled`, `is_done`, and then the answer of `cancel`.
fn said_by(handle: &Cancellable) -> [bool; 3] {
    [handle.is_cancelled(), handle.is_done(), handle.cancel()]
}

#[test]
fn s08_s09_one_cancel_wins_and_drops_the_closure() {
    every("s08", |subject| {
        let held = Arc::new(());
        let captured = Arc::clone(&held);
        let once = subject.schedule.schedule_once(SECOND, move || drop(captured)).expect("open");
        let captured = Arc::clone(&held);
        let series = move || _ = Arc::strong_count(&captured);
        let series = subject.schedule.schedule_repeatedly(SECOND, SECOND, series).expect("open");
        for handle in [once, series] {
            let same = handle.clone();
            assert!(!handle.is_done() && !handle.is_cancelled(), "{}", subject.name);
            assert!(handle.cancel() && !same.cancel(), "{}", subject.name);
            assert!(same.is_cancelled() && same.is_done(), "{}", subject.name);
            assert!(handle.clone().is_cancelled(), "{}: a later clone", subject.name);
        }
        assert_eq!(Arc::strong_count(&held), 1, "{}: it is still held", subject.name);
        subject.advance(3 * SECOND);
    });
}

#[test]
fn s08_a_handle_means_the_same_everywhere() {
    every("s08", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let ran = schedule.schedule_once(SECOND, log.task(1)).expect("open");
        drop(schedule.schedule_once(SECOND, log.task(2)).expect("open"));
        let broke = schedule.schedule_repeatedly(SECOND, SECOND, || ControlFlow::Break(()));
        let (broke, seen) = (broke.expect("open"), Arc::new(Mutex::new(Vec::new())));
        let own: Arc<OnceLock<Cancellable>> = Arc::default();
        let (own_handle, notes) = (Arc::clone(&own), Arc::clone(&seen));
        let looks = move || {
            let handle = own_handle.get().expect("set before it is due");
            notes.lock().expect("no panic").push(said_by(handle));
        };
        let looks = schedule.schedule_once(SECOND, looks).expect("open");
        own.set(looks.clone()).expect("once");
        let gone = schedule.schedule_once(SECOND, log.task(9)).expect("open").cancel_on_drop();
        drop(gone);
        subject.advance(2 * SECOND);
        subject.says(&log, &[1, 2]);
        let all_done = || [&ran, &broke, &looks].iter().all(|handle| handle.is_done());
        subject.until("all are done", all_done);
        for handle in [ran, broke, looks] {
            assert_eq!(said_by(&handle), [false, true, false], "{}: it is over", subject.name);
        }
        let seen = seen.lock().expect("no panic").clone();
        assert_eq!(seen, [[false, false, false]], "{}: while it runs", subject.name);
        let never = Cancellable::already_cancelled();
        assert_eq!(said_by(&never), [true, true, false]);
    });
}

#[test]
fn s11_a_destructor_may_schedule_and_cancel() {
    every("s11", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let victim = schedule.schedule_once(SECOND, log.task(2)).expect("open");
        let (again, said) = (Arc::clone(schedule), log.clone());
        let on_drop = OnDrop(move || {
            again.schedule_once(Duration::ZERO, said.task(1)).expect("open");
            assert!(victim.cancel());
        });
        let handle = schedule.schedule_once(SECOND, move || drop(on_drop)).expect("open");
        assert!(handle.cancel(), "{}", subject.name);
        subject.advance(2 * SECOND);
        subject.says(&log, &[1]);
    });
}

// ----- series ------------------------------------------------------------------------------------------------

#[test]
fn s12_s15_series_keep_their_phase_and_end() {
    every("s12", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let every = Period::fixed_rate(SECOND).missed(MissedTicks::Skip);
        let said = log.clone();
        let series = schedule.schedule_periodic(SECOND, every, move || said.say(1)).expect("open");
        let mut left = 2;
        let breaks = schedule.schedule_with_fixed_delay(SECOND, SECOND, move || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let breaks = breaks.expect("open");
        for run in 1..=4 {
            subject.advance(SECOND);
            subject.advance(MILLI);
            subject.says(&log, &vec![1; run]);
        }
        subject.until("it breaks", || breaks.is_done());
        assert_eq!(said_by(&breaks), [false, true, false], "{}", subject.name);
        assert!(series.cancel() && !series.cancel() && series.is_done(), "{}", subject.name);
        subject.advance(3 * SECOND);
        subject.says(&log, &[1; 4]);
    });
}

#[test]
fn s13_missed_runs_are_caught_up_skipped_or_start_a_new_phase() {
    let rate = Period::fixed_rate(10 * MILLI);
    let plans: [(Period, &[u64]); 4] = [
        (rate, &[10, 44, 44, 44, 50, 60]),
        (rate.missed(MissedTicks::Skip), &[10, 50, 60, 70]),
        (rate.missed(MissedTicks::Delay), &[10, 54, 64, 74]),
        (Period::fixed_delay(10 * MILLI), &[10, 54, 64, 74]),
    ];
    every("s13", |subject| {
        for (period, expected) in plans {
            let (start, runs) = (subject.schedule.now(), Arc::new(Mutex::new(Vec::new())));
            let (clock, noted) = (subject.clock.clone(), Arc::clone(&runs));
            let task = move || {
                let at = clock.now().duration_since(start);
                let mut runs = noted.lock().expect("no panic");
                runs.push(at);
                if runs.len() == 1 {
                    clock.advance(34 * MILLI); // the first run takes long
                }
            };
            let series = subject.schedule.schedule_periodic(10 * MILLI, period, task);
            subject.step(10 * MILLI);
            // In each of these steps the thread catches up with one run.
            (0..5).for_each(|_| subject.step(Duration::ZERO));
            while subject.clock.now() < start + 80 * MILLI {
                subject.step(MILLI);
            }
            assert!(series.expect("open").cancel(), "{}", subject.name);
            let runs = runs.lock().expect("no panic").clone();
            assert!(runs.len() >= expected.len(), "{}: {period:?}: {runs:?}", subject.name);
            for (run, millis) in runs.iter().zip(expected) {
                let due = Duration::from_millis(*millis);
                let is_on_time = *run >= due && *run <= due + MILLI; // S2: a tick
                assert!(is_on_time, "{}: {period:?}: {runs:?}", subject.name);
            }
        }
    });
}

#[test]
fn s16_a_task_may_cancel_itself() {
    every("s16", |subject| {
        let (log, own) = (Log::default(), Arc::new(OnceLock::<Cancellable>::new()));
        let (said, own_handle) = (log.clone(), Arc::clone(&own));
        let mut run = 0;
        let series = subject.schedule.schedule_repeatedly(SECOND, SECOND, move || {
            run += 1;
            if run == 2 {
                let handle = own_handle.get().expect("set before it is due");
                said.say(u32::from(handle.cancel()));
                said.say(u32::from(handle.cancel()));
            }
            said.say(10 + run);
        });
        let series = series.expect("open");
        own.set(series.clone()).expect("once");
        for _ in 0..4 {
            subject.advance(SECOND);
            subject.advance(MILLI);
        }
        subject.says(&log, &[11, 1, 0, 12]);
        subject.until("it is over", || series.is_done());
        assert_eq!(said_by(&series), [true, true, false], "{}", subject.name);
    });
}

#[test]
fn s15_s17_a_panic_ends_its_task_alone() {
    every("s17", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let ledger = Ledger::new(2);
        let (first, second) = (ledger.page(0), ledger.page(1));
        let once = schedule.schedule_once(SECOND, move || {
            let _held = first;
            panic_on_purpose()
        });
        let said = log.clone();
        let series = schedule.schedule_repeatedly(SECOND, SECOND, move || -> () {
            let _held = &second;
            said.say(2);
            panic_on_purpose()
        });
        schedule.schedule_once(SECOND, log.task(1)).expect("open");
        for _ in 0..3 {
            subject.advance(SECOND);
        }
        subject.says(&log, &[2, 1]);
        let (once, series) = (once.expect("open"), series.expect("open"));
        subject.until("both are over", || once.is_done() && series.is_done());
        for handle in [once, series] {
            assert_eq!(said_by(&handle), [false, true, false], "{}", subject.name);
        }
        subject.until("both closures are dropped", || ledger.is_closed());
        ledger.tally().assert_balanced();
    });
}

/// A destructor that panics, wherever the closure is dropped: after its run, at the end of a series, by a cancel.
#[test]
fn s11_s17_a_destructor_that_panics_ends_nothing_else() {
    every("s17 destructor", |subject| {
        let (log, schedule, name) = (Log::default(), &subject.schedule, &subject.name);
        let once = |number| {
            let (said, grenade) = (log.clone(), Grenade);
            move || {
                let _held = grenade;
                said.say(number);
            }
        };
        let series = |number| {
            let (said, grenade) = (log.clone(), Grenade);
            move || {
                let _held = &grenade;
                said.say(number);
                ControlFlow::Break(())
            }
        };
        let ran = [
            schedule.schedule_once(SECOND, once(1)).expect("open"),
            schedule.schedule_repeatedly(SECOND, SECOND, series(2)).expect("open"),
            schedule.schedule_once(SECOND, log.task(3)).expect("open"),
        ];
        let cancelled = [
            schedule.schedule_once(SECOND, once(9)).expect("open"),
            schedule.schedule_repeatedly(SECOND, SECOND, series(9)).expect("open"),
        ];
        for handle in cancelled {
            assert!(handle.cancel() && handle.is_cancelled(), "{name}");
        }
        subject.advance(2 * SECOND);
        subject.says(&log, &[1, 2, 3]);
        subject.until("all are over", || ran.iter().all(Cancellable::is_done));
        assert!(ran.iter().all(|handle| !handle.is_cancelled()), "{name}");
        schedule.schedule_once(SECOND, log.task(4)).expect("open");
        subject.advance(2 * SECOND);
        subject.says(&log, &[1, 2, 3, 4]);
    });
}

// ----- memory ------------------------------------------------------------------------------------------------

#[test]
fn s09_what_was_cancelled_gives_its_memory_back() {
    let tasks = count(20_000, 100_000);
    every("s09 memory", |subject| {
        let (schedule, mut handles) = (&subject.schedule, Vec::with_capacity(tasks));
        let mut fill = |random: &mut Random| {
            let delay = |random: &mut Random| 3_600 * SECOND + random.below(60_000) as u32 * MILLI;
            let ballast = [0_u64; 8];
            let task = || move || _ = std::hint::black_box(ballast);
            let handle = |_| schedule.schedule_once(delay(random), task()).expect("open");
            handles.extend((0..tasks).map(handle));
        };
        let counted = Measurement::start();
        fill(&mut Random(9));
        subject.step(Duration::ZERO);
        let at_peak = counted.bytes();
        assert!(handles.drain(..).all(|handle| handle.cancel()), "{}", subject.name);
        // A scheduler keeps free memory for some seconds, for the next peak.
        [MILLI, 5 * SECOND, 5 * SECOND].into_iter().for_each(|step| subject.step(step));
        let left = counted.bytes();
        // It also keeps a free block of the wheel for each bucket, and some blocks of its lanes: half a megabyte here.
        let most = at_peak / 4 + 500_000;
        assert!(left <= most, "{}: {left} bytes are left of {at_peak}", subject.name);
    });
}

// ----- refusal -----------------------------------------------------------------------------------------------

/// Tries every scheduling method with a task of its own. All are refused for this reason, and each task is dropped once, with a
/// destructor that panics (S17).
#[track_caller]
fn all_refused(schedule: &dyn Schedule, name: &str, reason: ScheduleError) {
    let ledger = Ledger::new(7);
    let once = |id| {
        let (page, grenade) = (ledger.page(id), Grenade);
        move || {
            let _held = grenade;
            page.run();
        }
    };
    let series = |id| {
        let held = (ledger.page(id), Grenade);
        move || _ = &held
    };
    let every = Period::fixed_rate(SECOND);
    let refusals = [
        schedule.schedule_once(Duration::ZERO, once(0)).err(),
        schedule.schedule_once(SECOND, once(1)).err(),
        schedule.schedule_at(schedule.now(), once(2)).err(),
        schedule.schedule_at(schedule.now() + SECOND, once(3)).err(),
        schedule.schedule_repeatedly(Duration::ZERO, SECOND, series(4)).err(),
        schedule.schedule_with_fixed_delay(SECOND, SECOND, series(5)).err(),
        schedule.schedule_periodic(SECOND, every, series(6)).err(),
    ];
    assert_eq!(refusals, [Some(reason); 7], "{name}");
    let tally = ledger.tally();
    tally.assert_balanced();
    assert_eq!(tally.of(End::Dropped), 7, "{name}: a refused task is dropped once: {tally}");
}

#[test]
fn s15_a_zero_period_is_refused() {
    every("s15", |subject| {
        let ledger = Ledger::new(3);
        let page = |id| {
            let page = ledger.page(id);
            move || _ = &page
        };
        let schedule = &subject.schedule;
        let refusals = [
            schedule.schedule_repeatedly(SECOND, Duration::ZERO, page(0)).err(),
            schedule.schedule_with_fixed_delay(SECOND, Duration::ZERO, page(1)).err(),
            schedule.schedule_repeatedly(Duration::ZERO, Duration::ZERO, page(2)).err(),
        ];
        assert_eq!(refusals, [Some(ScheduleError::ZeroPeriod); 3], "{}", subject.name);
        let tally = ledger.tally();
        tally.assert_balanced();
        assert_eq!(tally.of(End::Dropped), 3, "{}: {tally}", subject.name);
    });
}

#[test]
fn s25_what_is_full_refuses_until_there_is_a_place() {
    on_each(makers(), Some(2), "s25", |subject| {
        let (log, schedule) = (Log::default(), &subject.schedule);
        let said = log.clone();
        let series = schedule.schedule_repeatedly(SECOND, SECOND, move || said.say(2));
        let once = schedule.schedule_once(SECOND, log.task(1)).expect("there is a place");
        all_refused(&**schedule, &subject.name, ScheduleError::Full);
        assert!(once.cancel(), "{}", subject.name);
        let again = schedule.schedule_once(SECOND, log.task(1));
        assert!(again.is_ok(), "{}: a cancel frees the place at once", subject.name);
        all_refused(&**schedule, &subject.name, ScheduleError::Full);
        subject.step(SECOND);
        subject.says(&log, &[2, 1]);
        let third = schedule.schedule_once(SECOND, log.task(3));
        assert!(third.is_ok(), "{}: a run frees the place", subject.name);
        all_refused(&**schedule, &subject.name, ScheduleError::Full); // a series holds its place
        assert!(series.expect("there is a place").cancel(), "{}", subject.name);
        let fourth = schedule.schedule_once(SECOND, log.task(4));
        assert!(fourth.is_ok(), "{}: the end of a series frees the place", subject.name);
        subject.step(SECOND);
        subject.says(&log, &[2, 1, 3, 4]);
    });
}

// ----- shutdown ----------------------------------------------------------------------------------------------

/// Runs a row on every subject, once for each way to stop it.
fn every_end(row: &str, test: impl Fn(&subjects::Subject, &dyn Fn(), &str)) {
    let most = AtomicUsize::new(1);
    let mut nth = 0;
    while nth < most.load(Ordering::Relaxed) {
        every(row, |subject| {
            most.fetch_max(subject.ends.len(), Ordering::Relaxed);
            let end = subject.ends.get(nth);
            let end = end.filter(|(end, _)| !subject.cannot(&format!("{row}, {end}")));
            if let Some((end, stop)) = end {
                test(subject, stop, &format!("{}, {end}", subject.name));
            }
        });
        nth += 1;
    }
}

#[test]
fn s23_what_is_stopped_says_closed() {
    every_end("s23", |subject, stop, name| {
        subject.schedule.schedule_once(SECOND, || ()).expect("open");
        stop();
        all_refused(&*subject.schedule, name, ScheduleError::Closed);
        stop(); // the second call changes nothing
        all_refused(&*subject.schedule, name, ScheduleError::Closed);
        subject.advance(2 * SECOND);
        all_refused(&*subject.schedule, name, ScheduleError::Closed);
    });
}

/// A task stops what runs it, while others are due at the same time, and a series is.
#[test]
fn s20_s24_a_task_may_stop_what_runs_it() {
    for nth in 0..3 {
        every("s20 inside", |subject| {
            let Some((how, quit)) = subject.quits.get(nth).cloned() else { return };
            let (ledger, schedule) = (Ledger::new(6), &subject.schedule);
            let name = format!("{}, {how} in a task", subject.name);
            let once = |id| {
                let page = ledger.page(id);
                move || page.run()
            };
            let series = |id| {
                let page = ledger.page(id);
                move || _ = &page
            };
            let first = once(0);
            let stops = move || {
                first();
                quit();
            };
            let handles = [
                schedule.schedule_once(SECOND, stops),
                schedule.schedule_once(SECOND, once(1)),
                schedule.schedule_repeatedly(SECOND, SECOND, series(2)),
                schedule.schedule_once(2 * SECOND, once(3)),
                schedule.schedule_with_fixed_delay(2 * SECOND, SECOND, series(4)),
                schedule.schedule_once(60 * SECOND, once(5)),
            ];
            let handles = handles.map(|handle| handle.expect("open"));
            subject.clock.advance(SECOND);
            subject.until("it has run", || ledger.has_run(0));
            // What lets delayed tasks run, or keeps them, is brought to its end from outside.
            subject.until("it is closed", || schedule.schedule_once(SECOND, || ()).is_err());
            all_refused(&**schedule, &name, ScheduleError::Closed);
            subject.ends.iter().for_each(|(_, end)| end());
            subject.clock.advance(60 * SECOND);
            let is_over = || handles.iter().all(Cancellable::is_done) && ledger.is_closed();
            subject.until(&format!("{name}: all are done and dropped"), is_over);
            ledger.tally().assert_balanced();
            assert!(!handles.iter().any(Cancellable::cancel), "{name}: nothing is left to cancel");
        });
    }
}

#[test]
fn s20_every_task_has_one_end_and_every_handle_resolves() {
    every_end("s20", |subject, stop, name| {
        let (ledger, schedule) = (Ledger::new(6), &subject.schedule);
        let once = |id| {
            let page = ledger.page(id);
            move || page.run()
        };
        let series = |id| {
            let page = ledger.page(id);
            move || _ = &page
        };
        let handles = [
            schedule.schedule_once(SECOND / 2, once(0)),
            schedule.schedule_repeatedly(SECOND / 2, SECOND, series(1)),
            schedule.schedule_once(2 * SECOND, once(2)),
            schedule.schedule_at(schedule.now() + 2 * SECOND, once(3)),
            schedule.schedule_with_fixed_delay(2 * SECOND, SECOND, series(4)),
            schedule.schedule_once(Duration::MAX, once(5)),
        ];
        let handles = handles.map(|handle| handle.expect("open"));
        subject.advance(SECOND);
        subject.until("one has run", || ledger.has_run(0));
        // A task that never comes due would outlast a shutdown that lets delayed tasks run.
        assert!(handles[5].cancel(), "{name}");
        stop();
        subject.advance(3 * SECOND);
        let resolved = || handles.iter().all(Cancellable::is_done) && ledger.is_closed();
        subject.until(&format!("{name}: all are done and dropped"), resolved);
        let tally = ledger.tally();
        tally.assert_balanced();
        assert!(
            tally.of(End::Dropped) >= 3,
            "{name}: both series, and what was cancelled: {tally}"
        );
        assert!(!handles.iter().any(Cancellable::cancel), "{name}: nothing is left to cancel");
    });
}

// ----- overload ----------------------------------------------------------------------------------------------

/// A series whose runs take three times its period, so that it never catches up, beside a one-shot that is due at 300 ms.
fn a_lagging_series_delays_nobody(makers: &[Make]) {
    on_each(makers.iter().copied(), None, "overload", |subject| {
        let (start, late) = (subject.schedule.now(), Arc::new(OnceLock::new()));
        let (clock, noted) = (subject.clock.clone(), Arc::clone(&late));
        let once = subject.schedule.schedule_once(300 * MILLI, move || {
            noted.set(clock.now().duration_since(start + 300 * MILLI)).expect("it runs once");
        });
        let (takes, done) = (subject.takes(3 * MILLI), Arc::clone(&late));
        let (mut runs, threads) = (0, subject.threads);
        let series = subject.schedule.schedule_repeatedly(MILLI, MILLI, move || {
            takes();
            runs += 1;
            if threads > 1 && runs > 100 {
                thread::sleep(5 * MILLI); // real time: for the other thread
            }
            if done.get().is_some() || runs > 1_000 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        subject.clock.advance(MILLI);
        subject.until("the one-shot runs", || late.get().is_some());
        let late = *late.get().expect("it has run");
        // The bound is the length of some runs, and a tick. With several threads, another thread takes the one-shot in time and runs it when
        // the system lets it, while the series moves the clock, slowly now: there a starved one would be late by seconds.
        let most = if subject.threads > 1 { 300 * MILLI } else { 13 * MILLI };
        assert!(late <= most, "{}: {late:?} late", subject.name);
        subject.until("both are over", || {
            [&series, &once].iter().all(|handle| handle.as_ref().expect("open").is_done())
        });
    });
}

#[test]
fn overload_of_schedulers() {
    a_lagging_series_delays_nobody(SCHEDULERS);
}

#[test]
fn overload_of_workers() {
    a_lagging_series_delays_nobody(WORKERS);
}

#[test]
fn overload_of_workers_on_inline() {
    a_lagging_series_delays_nobody(WORKERS_ON_INLINE);
}

#[test]
fn overload_of_pools() {
    a_lagging_series_delays_nobody(POOLS);
}

#[test]
fn overload_of_loops() {
    a_lagging_series_delays_nobody(LOOPS);
}
