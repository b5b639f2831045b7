//! The suite on a trampoline, which runs a task in the call that schedules it, and waits for a delay there.
//!
//! It keeps the system's time, so these tests wait for real milliseconds. What cannot hold, and why:
//!
//! - S5 (a zero delay never runs on the caller's stack): running there is what a trampoline is for.
//! - The cancel of a task that waits, from the thread that scheduled it: that thread gets the handle when the task is
//!   over. A cancel from inside a task of the same worker is possible, and is tested here.
//! - S25: it has no bound, because a caller brings one task and runs it.
//! - The overload: a one-shot beside a lagging series needs a second thread that schedules it. That thread waits for the series of
//!   the first one, so the trait has no part in it.
//! - S20 for what is pending at a stop: outside of a task nothing is pending.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickwheel::rx::{TrampolineScheduler, Worker};
use tickwheel::{Schedule, ScheduleError, ScheduleExt};

use super::{MILLI, SECOND, all_refused, said_by};
use crate::common::ledger::{End, Ledger};
use crate::common::log::Log;
use crate::common::{panic_on_purpose, silence};

/// Runs a row on a trampoline behind each pointer.
fn behind_each(test: impl Fn(&dyn Schedule, &Worker)) {
    silence();
    let worker = || TrampolineScheduler::new().worker();
    let first = worker();
    test(&first.clone(), &first);
    let second = worker();
    test(&&second, &second);
    let third = worker();
    test(&Box::new(third.clone()), &third);
    let fourth = worker();
    test(&(Arc::new(fourth.clone()) as Arc<dyn Schedule>), &fourth);
}

#[test]
fn s01_s03_in_order_and_never_early() {
    behind_each(|schedule, _| {
        let (log, start) = (Log::default(), Instant::now());
        schedule.schedule_once(2 * MILLI, log.task(1)).expect("open");
        assert!(start.elapsed() >= 2 * MILLI, "it has waited for the task");
        schedule.schedule_at(Instant::now() + 2 * MILLI, log.task(2)).expect("open");
        assert!(start.elapsed() >= 4 * MILLI, "it has waited for the task");
        schedule.schedule_once(Duration::ZERO, log.task(3)).expect("open");
        assert_eq!(log.all(), [1, 2, 3]);
    });
}

#[test]
fn s08_s16_inside_a_task_what_waits_can_be_cancelled() {
    behind_each(|schedule, worker| {
        let (log, ledger, inner) = (Log::default(), Ledger::new(1), worker.clone());
        let (said, page) = (log.clone(), ledger.page(0));
        let outer = schedule.schedule_once(Duration::ZERO, move || {
            let waits = inner.schedule_once(MILLI, move || page.run()).expect("open");
            inner.schedule_once(Duration::ZERO, said.task(2)).expect("open");
            said.say(1);
            assert!(waits.cancel() && !waits.cancel() && waits.is_cancelled());
        });
        assert_eq!(said_by(&outer.expect("open")), [false, true, false]);
        assert_eq!(log.all(), [1, 2]);
        assert_eq!(ledger.tally().of(End::Dropped), 1);
    });
}

#[test]
fn s12_s15_a_series_runs_until_it_breaks_or_panics() {
    behind_each(|schedule, _| {
        let (log, start) = (Log::default(), Instant::now());
        let said = log.clone();
        let mut left = 3;
        let breaks = schedule.schedule_repeatedly(MILLI, MILLI, move || {
            said.say(left);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(start.elapsed() >= 3 * MILLI, "the call lasts as long as the series");
        assert_eq!(log.all(), [3, 2, 1]);
        let panics =
            schedule.schedule_with_fixed_delay(MILLI, MILLI, || -> () { panic_on_purpose() });
        for handle in [breaks, panics] {
            assert_eq!(said_by(&handle.expect("open")), [false, true, false]);
        }
        let zero = schedule.schedule_repeatedly(MILLI, Duration::ZERO, || ()).err();
        assert_eq!(zero, Some(ScheduleError::ZeroPeriod));
    });
}

#[test]
fn s17_a_panic_ends_its_task_alone() {
    behind_each(|schedule, worker| {
        let (log, inner) = (Log::default(), worker.clone());
        let said = log.clone();
        let outer = schedule.schedule_once(Duration::ZERO, move || {
            inner.schedule_once(Duration::ZERO, said.task(1)).expect("open");
            panic_on_purpose()
        });
        assert_eq!(said_by(&outer.expect("open")), [false, true, false]);
        assert_eq!(log.all(), [1]);
    });
}

#[test]
fn s20_s23_a_disposed_one_drops_what_waits_and_says_closed() {
    behind_each(|schedule, worker| {
        let (ledger, inner, kept) = (Ledger::new(2), worker.clone(), Arc::new(Mutex::new(None)));
        let (once, series) = (ledger.page(0), ledger.page(1));
        let keeps = Arc::clone(&kept);
        let outer = schedule.schedule_once(Duration::ZERO, move || {
            let waits = [
                inner.schedule_once(SECOND, move || once.run()).expect("open"),
                inner.schedule_repeatedly(SECOND, SECOND, move || _ = &series).expect("open"),
            ];
            *keeps.lock().expect("no panic") = Some(waits);
            inner.dispose();
        });
        outer.expect("open");
        let waits = kept.lock().expect("no panic").take().expect("it has run");
        assert!(waits.iter().all(tickwheel::Cancellable::is_done), "the handles resolve");
        let tally = ledger.tally();
        tally.assert_balanced();
        assert_eq!(tally.of(End::Dropped), 2);
        all_refused(schedule, "trampoline", ScheduleError::Closed);
    });
}
