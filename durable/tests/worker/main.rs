//! What workers do with timers, whichever database keeps them.
//!
//! The time here is the database's, so these tests wait for real. What can be waited for is waited for, and not slept.

mod async_handlers;
mod calls;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod cron;
#[path = "../common/databases.rs"]
mod databases;
mod foreign;
mod history;
mod holds;
mod in_tokio_postgres;
mod runs;
#[path = "../common/server.rs"]
mod server;
mod sight;
mod tenants;
mod under_load;
mod virtual_time;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use async_handlers::{
    a_panic_of_an_async_handler_is_a_failure, a_thousand_async_handlers_run_at_the_same_time,
    async_handlers_run_at_the_same_time_up_to_a_bound,
    what_is_suspected_and_never_polled_stays_suspected,
};
use calls::{futures_do_what_the_calls_do, what_a_future_schedules_comes_on_time};
use common::{PATIENCE, until};
use cron::{
    a_cron_rule_needs_no_hook, a_rule_that_cannot_be_is_refused_or_ends_its_timer,
    a_run_that_fails_holds_up_no_missed_one, a_series_is_kept_unless_it_has_changed,
    the_first_time_is_by_the_clock_of_the_database,
    two_services_that_start_at_once_replace_a_series_once, what_was_missed_runs_as_the_policy_says,
};
use databases::{Database, client};
use history::{
    a_completion_writes_its_attempt, a_history_has_each_attempt, futures_see_the_history,
    what_is_too_old_goes_while_the_worker_runs, whoever_schedules_has_its_trace_in_the_run,
};
use holds::{
    a_run_whose_hold_has_ended_gets_no_transaction, a_run_whose_hold_has_ended_loses_its_lease,
    a_transaction_keeps_its_hold, what_completes_a_run_needs_and_keeps_its_hold,
};
use runs::{
    a_cancel_reaches_a_run_within_a_second, a_failure_may_be_given_up,
    a_handler_that_hangs_raises_an_alarm, a_rule_that_nobody_knows_is_the_end_at_once,
    a_run_that_has_completed_itself_is_not_cancelled,
    a_series_that_has_completed_its_run_goes_on_at_once, a_snooze_gives_its_place_to_others,
    a_snooze_stays_in_its_series, a_snooze_undoes_the_transaction, a_snooze_uses_up_no_attempt,
    each_kind_has_its_own_retries, series_with_long_keys_lose_no_run,
    the_end_of_a_lease_is_noticed, to_ask_about_long_runs_costs_little,
    what_a_stop_hands_back_starts_elsewhere_at_once,
};
use tenants::{
    a_claim_with_limits_is_a_claim, a_flood_leaves_the_others_on_time,
    a_group_that_floods_leaves_the_others_on_time, a_hold_does_not_end_before_its_lease,
    a_hold_lasts_as_long_as_its_lease, a_kind_has_a_bound_of_its_own_in_a_process,
    a_rate_holds_over_all_workers, a_rate_lets_no_starts_gather,
    a_run_whose_timer_is_gone_holds_its_group, another_process_schedules_beside_a_drain,
    groups_run_one_at_a_time_and_in_order, limits_hold_while_workers_are_killed,
    no_more_run_at_once_than_the_limit_of_all, outcomes_do_not_wait_for_holds_that_stay,
    weights_share_the_claims, what_is_suspected_and_cannot_start_stays_suspected,
    what_limits_cannot_be_is_said, what_limits_hold_back_calls_for_no_help,
    what_waits_for_its_group_is_not_checked,
};
use tickwheel::{Precision, Scheduler};
use tickwheel_durable::{
    Error, Existing, Failure, Filter, NewTimer, OpenOptions, Retry, Run, State, StopReason, Table,
    Timer, Timers, Worker, WorkerBuilder, WorkerStats, postgres, sqlite,
};
use under_load::{
    a_call_that_may_not_wait_is_made, a_group_that_is_held_holds_up_no_other,
    a_rate_is_made_use_of, a_stream_leaves_the_others_on_time, a_width_may_be_as_large_as_can_be,
    what_is_given_back_stays_first_in_its_group, what_is_halted_in_a_claim_is_ended,
    what_is_suspected_stays_so_if_its_worker_stops,
};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(20);

/// A lease that is extended in time. A worker extends it after a third, so it may be held up for more than a second.
const LEASE: Duration = Duration::from_secs(2);

/// A time limit in which a quick handler has returned, although its machine may stand still for a second.
const LIMIT: Duration = Duration::from_millis(1500);

fn mail(key: &str, when: impl Into<tickwheel_durable::When>) -> NewTimer {
    NewTimer::new("mail", key, when)
}

/// What handlers have seen.
#[derive(Clone)]
struct Log(mpsc::Sender<Seen>);

#[derive(Clone, Debug)]
struct Seen {
    key: String,
    attempt: u32,
    fence: i64,
    due: SystemTime,
    at: Instant,
}

impl Log {
    fn new() -> (Log, mpsc::Receiver<Seen>) {
        let (send, receive) = mpsc::channel();
        (Log(send), receive)
    }

    fn add(&self, run: &tickwheel_durable::Run<'_>) {
        let seen = Seen {
            key: run.key().to_owned(),
            attempt: run.attempt(),
            fence: run.fence(),
            due: run.due(),
            at: Instant::now(),
        };
        _ = self.0.send(seen);
    }
}

fn next(log: &mpsc::Receiver<Seen>) -> Seen {
    log.recv_timeout(PATIENCE).expect("the handler is called")
}

/// A worker whose handler notes what it sees, and succeeds.
fn noting(timers: &Timers) -> (WorkerBuilder, mpsc::Receiver<Seen>) {
    let (log, seen) = Log::new();
    let worker = timers.worker().handle("mail", move |run| {
        log.add(run);
        Ok(())
    });
    (worker, seen)
}

fn is_gone(timers: &Timers, key: &str) -> bool {
    timers.get("mail", key).expect("no error").is_none()
}

fn quick(attempts: u32) -> Retry {
    Retry::attempts(attempts).gaps(Duration::from_millis(5), 1.0, Duration::from_millis(5))
}

/// How many runs a worker learns from.
const TAUGHT: u64 = 20;

/// Lets a worker that has run nothing yet learn that a handler is quick, so that it claims ahead: with an average of up to 4 ms, five
/// for each thread. One run tells too little, because it may have been held up. In an average of many, that fades.
fn teach(timers: &Timers, worker: &Worker, kind: &str) {
    for n in 0..TAUGHT {
        timers.schedule(&NewTimer::new(kind, format!("quick {n}"), NOW)).expect("scheduled");
        until("it is done", || worker.stats().done == n + 1);
    }
}

fn is_taught(run: &Run<'_>) -> bool {
    run.key().starts_with("quick")
}

// ----- on time -------------------------------------------------------------------------------

fn what_is_due_runs_once_and_is_gone(database: &Database<'_>) {
    let timers = database.open();
    let scheduler = Scheduler::new();
    timers.schedule(&mail("before", NOW).payload("hello")).expect("scheduled");
    let (worker, seen) = noting(&timers);
    let worker = worker.start(&scheduler).expect("it starts");
    assert_eq!(next(&seen).key, "before");
    let before = Instant::now();
    let due = timers.schedule(&mail("after", SOON)).expect("scheduled").due;
    let run = next(&seen);
    assert_eq!((run.key.as_str(), run.attempt, run.due), ("after", 1, due));
    // The wall clock may be slewed against the one that is read here.
    assert!(
        run.at + Duration::from_micros(100) >= before + SOON,
        "{:?} early",
        before + SOON - run.at
    );
    until("both are written", || worker.stats().done == 2);
    assert!(is_gone(&timers, "before") && is_gone(&timers, "after"));
    let stats = worker.stats();
    assert_eq!((stats.claimed, stats.failed, stats.lost, stats.running), (2, 0, 0, 0));
    assert!(worker.stop(PATIENCE));
    timers.schedule(&mail("late", NOW)).expect("scheduled");
    assert!(seen.recv_timeout(SOON).is_err(), "nothing runs after the stop");
}

fn timers_of_other_processes_come_on_time(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    // The server tells of new timers. A file has to be asked.
    let poll = if database.is_sqlite() { Duration::from_millis(5) } else { HOUR };
    let worker = worker.poll_every(poll).start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    let other = database.open(); // has no worker, and does not know of this one
    let begin = Instant::now();
    other.schedule(&mail("new", SOON)).expect("scheduled");
    assert_eq!(next(&seen).key, "new");
    other.schedule(&mail("moved", HOUR)).expect("scheduled");
    assert!(other.reset("mail", "moved", SOON).expect("no error"));
    assert_eq!(next(&seen).key, "moved");
    other.schedule(&mail("replaced", HOUR)).expect("scheduled");
    assert!(other.schedule(&mail("replaced", NOW)).expect("scheduled").replaced);
    assert_eq!(next(&seen).key, "replaced");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "before a look without a reason: {:?}",
        begin.elapsed()
    );
}

fn each_timer_of_a_batch_comes_on_time(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let worker = worker.start(&Scheduler::new()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    // In one call of this process, and in one of another program, which only PostgreSQL tells of.
    let batch: Vec<_> = (0..20).map(|n: u32| mail(&n.to_string(), SOON * (20 - n))).collect();
    timers.schedule_all(&batch).expect("scheduled");
    (0..20).for_each(|_| drop(next(&seen)));
    if !database.is_sqlite() {
        database.execute(
            "INSERT INTO tickwheel_timers (kind, key, due)
            SELECT 'mail', 'other ' || n, now() + n * interval '10 milliseconds' FROM generate_series(1, 20) n",
        );
        (0..20).for_each(|_| drop(next(&seen)));
    }
    // What waits for a look comes within a minute. A look may come earlier, if the machine's clock was set.
    assert!(worker.stats().max_lateness < Duration::from_secs(5), "{:?}", worker.stats());
}

fn a_cancelled_timer_never_runs(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    for n in 0..20 {
        timers.schedule(&mail(&n.to_string(), Duration::from_millis(30))).expect("scheduled");
    }
    let (mut cancelled, mut claimed) = (BTreeSet::new(), BTreeSet::new());
    for key in (0..20).filter(|n| n % 2 == 0).map(|n| n.to_string()) {
        match timers.cancel("mail", &key).expect("no error") {
            Some(State::Waiting) => _ = cancelled.insert(key),
            // Its handler is being called, has been called, or will not be.
            Some(State::Running) => _ = claimed.insert(key),
            _ => {}
        }
    }
    // One that was cancelled as it ran is not in the list any more, and its handler may not have been called yet.
    until("the others ran", || {
        timers.list(&Filter::new()).expect("a list").is_empty() && worker.stats().running == 0
    });
    let ran: BTreeSet<_> = seen.try_iter().map(|seen| seen.key).collect();
    let missing = (0..20).map(|n| n.to_string());
    let missing: Vec<_> =
        missing.filter(|key| !ran.contains(key) && !cancelled.contains(key)).collect();
    assert!(missing.iter().all(|key| claimed.contains(key)), "{missing:?} {claimed:?}");
    assert!(ran.is_disjoint(&cancelled), "{ran:?} {cancelled:?}");
}

fn idle_costs_one_look_a_minute(database: &Database<'_>) {
    let timers = database.open();
    timers.schedule(&mail("far", HOUR)).expect("scheduled");
    let (worker, _seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    // A wait is the subject: nothing happens in it.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(worker.stats().looks, 1);
}

fn what_is_behind_a_backlog_comes_on_time(database: &Database<'_>) {
    let timers = database.open();
    // As many as one look takes in, and one more, before there is a worker.
    let new: Vec<_> = (0..1000).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    timers.schedule(&mail("behind", Duration::from_millis(400))).expect("scheduled");
    let (worker, seen) = noting(&timers);
    let begin = Instant::now();
    let worker = worker.start(Scheduler::global()).expect("it starts");
    while next(&seen).key != "behind" {}
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "before the next look: {:?}",
        begin.elapsed()
    );
    until("all are done", || worker.stats().done == 1001);
}

fn a_backlog_is_worked_off(database: &Database<'_>) {
    let timers = database.open();
    let new: Vec<_> = (0..3000).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    let (worker, seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("all are done", || worker.stats().done == 3000);
    let keys: BTreeSet<_> = seen.try_iter().map(|seen| seen.key).collect();
    assert_eq!((keys.len(), worker.stats().claimed), (3000, 3000));
}

// ----- failures ------------------------------------------------------------------------------

fn failures_are_tried_again_and_dead_in_the_end(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            log.add(run);
            assert_eq!(run.is_last_attempt(), run.attempt() == 3);
            match run.key() {
                "panic" => panic!("oh"),
                "once" if run.attempt() > 1 => Ok(()),
                "for good" => Err(Failure::for_good("never")),
                _ => Err(Failure::new("no luck")),
            }
        })
        .retry(quick(3))
        .start(Scheduler::global())
        .expect("it starts");
    let keys = ["panic", "once", "for good", "error"];
    timers.schedule_all(&keys.map(|key| mail(key, NOW))).expect("scheduled");
    until("three are dead", || worker.stats().dead == 3 && is_gone(&timers, "once"));
    let attempts = |key: &str, seen: &[Seen]| seen.iter().filter(|seen| seen.key == key).count();
    let seen: Vec<_> = seen.try_iter().collect();
    assert_eq!(keys.map(|key| attempts(key, &seen)), [3, 2, 1, 3]);
    until("it is written", || worker.stats().running == 0);
    let reason = |key| timers.get("mail", key).expect("no error").expect("there").error;
    assert_eq!(reason("panic").as_deref(), Some("panicked: oh"));
    assert_eq!(reason("for good").as_deref(), Some("never"));
    assert_eq!(timers.requeue_all("mail", NOW).expect("no error"), 3);
    until("they are dead again", || worker.stats().dead == 6);
    let stats = worker.stats();
    assert_eq!((stats.failed, stats.done, stats.lost), (15, 1, 0));
}

fn a_handler_that_never_returns_holds_up_nobody(database: &Database<'_>) {
    let timers = database.open();
    let end = Arc::new(AtomicBool::new(false));
    let (log, seen) = Log::new();
    let worker = {
        let end = Arc::clone(&end);
        timers
            .worker()
            .threads(1)
            .handle("mail", move |run| {
                log.add(run);
                if run.key() == "stuck" {
                    assert!(run.is_current());
                    until("the end", || end.load(Ordering::Relaxed));
                    assert!(!run.is_current(), "it is told so");
                }
                Ok(())
            })
            .retry(quick(2))
            .start(Scheduler::global())
            .expect("it starts")
    };
    // In its time it can look whether it is current.
    timers.schedule(&mail("stuck", NOW).time_limit(LIMIT)).expect("scheduled");
    assert_eq!(next(&seen).key, "stuck");
    timers.schedule(&mail("other", NOW)).expect("scheduled");
    // Another thread stands in, and tries it again, until it is dead.
    let (mut stuck, mut others) = (1, 0);
    while stuck < 2 || others < 1 {
        match next(&seen).key.as_str() {
            "stuck" => stuck += 1,
            _ => others += 1,
        }
    }
    until("it is dead", || {
        timers.get("mail", "stuck").expect("no error").expect("there").state == State::Dead
    });
    assert_eq!((worker.stats().stuck, worker.stats().timed_out), (2, 2));
    timers.schedule(&mail("more", NOW)).expect("scheduled");
    assert_eq!(next(&seen).key, "more");
    end.store(true, Ordering::Relaxed);
    until("they come back", || worker.stats().stuck == 0);
    timers.schedule(&mail("last", NOW)).expect("scheduled");
    assert_eq!(next(&seen).key, "last");
    assert!(worker.stop(PATIENCE));
    assert_eq!(timers.get("mail", "stuck").expect("no error").expect("there").state, State::Dead);
}

/// They were claimed with it, because handlers are quick as a rule.
fn what_waits_behind_a_handler_that_never_returns_runs(database: &Database<'_>) {
    const OTHERS: u64 = 4; // as many as it claims ahead in any case
    let timers = database.open();
    let end = Arc::new(AtomicBool::new(false));
    let worker = {
        let end = Arc::clone(&end);
        timers
            .worker()
            .threads(1)
            .handle("mail", move |run| {
                if run.key() == "stuck" {
                    until("the end", || end.load(Ordering::Relaxed));
                }
                Ok(())
            })
            .retry(quick(1))
            .start(Scheduler::global())
            .expect("it starts")
    };
    teach(&timers, &worker, "mail");
    let mut new = vec![mail("stuck", NOW).time_limit(Duration::from_millis(40))];
    new.extend((0..OTHERS).map(|n| mail(&n.to_string(), NOW)));
    timers.schedule_all(&new).expect("scheduled");
    // No claim comes any more, which would start a thread.
    until("the others are done", || worker.stats().done == TAUGHT + OTHERS);
    until("its time is up", || (worker.stats().stuck, worker.stats().dead) == (1, 1));
    end.store(true, Ordering::Relaxed);
    assert!(worker.stop(PATIENCE));
}

fn a_long_handler_keeps_its_lease(database: &Database<'_>) {
    let timers = database.open();
    let runs = Arc::new(AtomicU32::new(0));
    let long = |timers: &Timers| {
        let runs = Arc::clone(&runs);
        timers
            .worker()
            .handle("mail", move |run| {
                runs.fetch_add(1, Ordering::Relaxed);
                thread::sleep(LEASE * 3 / 2); // longer than its lease is the subject
                assert!(run.is_current());
                Ok(())
            })
            .lease(LEASE)
            .poll_every(Duration::from_millis(10))
            .start(Scheduler::global())
            .expect("it starts")
    };
    let workers = [long(&timers), long(&database.open())];
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is done", || is_gone(&timers, "1"));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    until("it is counted", || workers.iter().map(|worker| worker.stats().done).sum::<u64>() == 1);
    assert_eq!(workers.map(|worker| worker.stats().lost), [0, 0]);
}

fn a_run_learns_that_its_timer_is_gone(database: &Database<'_>) {
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            _ = tell.send(());
            until("it is told", || !run.is_current());
            Ok(())
        })
        .lease(LEASE) // which does not end before the cancel
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule(&mail("1", NOW).every(HOUR)).expect("scheduled");
    told.recv_timeout(PATIENCE).expect("it runs");
    assert_eq!(timers.cancel("mail", "1").expect("no error"), Some(State::Running));
    until("it has ended", || worker.stats().lost == 1);
    assert!(is_gone(&timers, "1"), "nothing follows it");
}

fn a_death_is_told_with_its_reason(database: &Database<'_>) {
    let timers = database.open();
    // A worker had this one, in its last attempt, and died.
    timers.schedule(&mail("taken along", NOW).max_attempts(1)).expect("scheduled");
    database.execute(
        "UPDATE tickwheel_timers SET state = 'running', attempts = 1, owner = 'old', fence = 0, held_until = due",
    );
    let (tell, told) = mpsc::channel();
    let requeue = timers.clone();
    let worker = timers
        .worker()
        .handle("mail", |run| match run.key() {
            "for good" => Err(Failure::for_good("never")),
            _ if run.payload() == b"again" => Ok(()),
            _ => Err(Failure::new("no luck")),
        })
        .retry(quick(2))
        .on_dead(move |timer, reason| {
            assert_eq!((timer.state, timer.error.as_deref()), (State::Dead, Some(reason)));
            // It is written, so it can be requeued here.
            let stands = requeue.get("mail", &timer.key).expect("no error").expect("there");
            assert_eq!((stands.state, stands.attempts), (State::Dead, timer.attempts));
            _ = tell.send((timer.key.clone(), timer.attempts, reason.to_owned()));
            panic!("a hook may panic");
        })
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule_all(&[mail("for good", NOW), mail("fails", NOW)]).expect("scheduled");
    let mut deaths: Vec<_> =
        (0..3).map(|_| told.recv_timeout(PATIENCE).expect("it is told")).collect();
    deaths.sort();
    let lease = "the lease of worker old ended: it died, hung, or lost the database";
    let expected = [("fails", 2, "no luck"), ("for good", 1, "never"), ("taken along", 1, lease)];
    assert_eq!(
        deaths,
        expected.map(|(key, attempts, why)| (key.to_owned(), attempts, why.to_owned()))
    );
    until("it is counted", || worker.stats().dead == 3);
    assert_eq!(worker.stats().failed, 3, "an attempt of another worker is not counted here");
    assert!(worker.stop(PATIENCE) && told.try_recv().is_err());
}

// ----- series --------------------------------------------------------------------------------

fn a_series_keeps_its_phase(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let period = Duration::from_millis(20);
    let first = timers.schedule(&mail("1", NOW).every(period)).expect("scheduled").due;
    let mut last = first - period;
    for _ in 0..5 {
        let due = next(&seen).due;
        let periods = due.duration_since(first).expect("later").as_millis();
        assert!(periods % period.as_millis() == 0 && due > last, "{periods} ms");
        last = due;
    }
    assert!(timers.cancel("mail", "1").expect("no error").is_some());
    assert!(worker.stop(PATIENCE));
}

fn a_run_that_fails_does_not_end_its_series(database: &Database<'_>) {
    let timers = database.open();
    let period = Duration::from_secs(2); // by then a run has failed twice, also on a busy machine
    let (log, seen) = Log::new();
    let (tell, told) = mpsc::channel();
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            log.add(run);
            Err(Failure::new("no luck"))
        })
        .retry(quick(2))
        .rules(move |_, after| Ok(Some(after + period)))
        .on_dead(move |timer, _| _ = tell.send(timer.clone()))
        .start(Scheduler::global())
        .expect("it starts");
    let both = [mail("1", NOW).every(period), mail("2", NOW).rule("each period")];
    let firsts = both.each_ref().map(|series| timers.schedule(series).expect("scheduled").due);
    let mut runs = [Vec::new(), Vec::new()];
    while runs.iter().any(|runs| runs.len() < 4) {
        let run = next(&seen);
        runs[both.iter().position(|series| series.key == run.key).expect("a series")].push(run);
    }
    let mut dead = [None, None];
    while dead.contains(&None) {
        let one: Timer = told.recv_timeout(PATIENCE).expect("it is told");
        let of = |series: &NewTimer| one.key.starts_with(&format!("{}@", series.key));
        let place = both.iter().position(of).expect("of a series");
        dead[place].get_or_insert(one);
    }
    for (((series, first), runs), dead) in both.iter().zip(firsts).zip(runs).zip(dead) {
        // Each of its runs is tried twice, and then dead on its own.
        let attempts: Vec<_> = runs[..4].iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 2, 1, 2], "{runs:?}");
        assert_eq!((runs[0].due, runs[1].due), (first, first));
        assert!(runs[2].due >= first + period && runs[3].due == runs[2].due, "{runs:?}");
        let dead = dead.expect("it is told");
        let millis = first.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_millis();
        assert_eq!(dead.key, format!("{}@{millis}", series.key));
        assert_eq!((dead.due, dead.attempts, dead.repetition.clone()), (first, 2, None));
        let stands = timers.get("mail", &dead.key).expect("no error").expect("there");
        assert_eq!((stands.state, stands.due), (State::Dead, first));
        // A service that starts again finds its series alive.
        assert_eq!(timers.schedule_if_absent(series).expect("no error"), None);
        let state = timers.cancel("mail", &series.key).expect("no error");
        assert!(matches!(state, Some(State::Waiting | State::Running)), "{state:?}");
    }
    until("it is over", || worker.stats().running == 0);
    assert!(timers.counts().expect("counts")[0].dead > 1);
}

fn gaps_of_retries_do_not_replace_the_period(database: &Database<'_>) {
    let timers = database.open();
    let period = Duration::from_millis(100);
    let (log, seen) = Log::new();
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            log.add(run);
            if run.payload() == b"fails" { Err(Failure::new("no luck")) } else { Ok(()) }
        })
        .retry(Retry::attempts(3).gaps(HOUR, 1.0, HOUR))
        .start(Scheduler::global())
        .expect("it starts");
    let series = mail("1", NOW).every(period).payload("fails");
    let first = timers.schedule(&series).expect("scheduled").due;
    let runs: Vec<_> = (0..3).map(|_| next(&seen)).collect();
    assert!(runs.iter().all(|run| run.attempt == 1 && run.key == "1"), "{runs:?}");
    assert!(runs[0].due == first && runs.is_sorted_by(|one, other| one.due + period <= other.due));
    timers.cancel("mail", "1").expect("no error");
    until("it is over", || worker.stats().running == 0);
    seen.try_iter().for_each(drop); // there may have been another run before the cancel
    // Each run keeps its attempts, and waits for the next one on its own.
    let left = timers.list(&Filter::new()).expect("a list");
    assert!(left.len() >= 2, "{left:?}");
    for run in &left {
        assert_eq!((run.state, run.attempts, run.repetition.clone()), (State::Waiting, 1, None));
        assert!(run.wake > Some(run.due + HOUR / 2), "{run:?}");
    }
    assert!(timers.reset("mail", &left[0].key, NOW).expect("no error"));
    assert_eq!(next(&seen).key, left[0].key);
}

fn a_rule_says_when_the_next_run_is(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let worker = worker
        .rules(|rule, after| match rule {
            "past" => Ok(Some(after)),
            "bad" => Err(Failure::new("no rule")),
            "panic" => panic!("no rule"),
            rule => {
                let (count, gap) = rule.split_once(' ').ok_or_else(|| Failure::new("no rule"))?;
                assert_eq!(count, "then");
                Ok((gap != "never").then_some(after + HOUR))
            }
        })
        .start(Scheduler::global())
        .expect("it starts");
    let rules = ["past", "bad", "panic", "then never", "then later"];
    for rule in rules {
        timers.schedule(&mail(rule, NOW).rule(rule)).expect("scheduled");
    }
    let runs: BTreeSet<_> = (0..5).map(|_| next(&seen).key).collect();
    assert_eq!(runs, rules.map(ToOwned::to_owned).into());
    until("all is written", || worker.stats().running == 0 && worker.stats().done == 2);
    let state = |rule| timers.get("mail", rule).expect("no error").map(|timer| timer.state);
    let states = rules.map(state);
    let dead = Some(State::Dead);
    assert_eq!(states, [dead, dead, dead, None, Some(State::Waiting)]);
    let later = timers.get("mail", "then later").expect("no error").expect("there").due;
    assert!(later > timers.now().expect("a time") + HOUR / 2);
}

// ----- several workers -----------------------------------------------------------------------

fn workers_share_the_work(database: &Database<'_>) {
    let timers = database.open();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let ran = Arc::clone(&ran);
            let note = move |run: &tickwheel_durable::Run<'_>| {
                ran.lock().expect("no panic").push((run.key().to_owned(), n));
                thread::sleep(Duration::from_millis(4)); // so that one cannot do it all
                Ok(())
            };
            let worker = database.open().worker().threads(2).handle("mail", note);
            worker
                .poll_every(Duration::from_millis(20))
                .start(Scheduler::global())
                .expect("it starts")
        })
        .collect();
    let new: Vec<_> =
        (0..400).map(|n| mail(&n.to_string(), Duration::from_millis(n % 100))).collect();
    timers.schedule_all(&new).expect("scheduled");
    until("all are done", || workers.iter().map(|worker| worker.stats().done).sum::<u64>() == 400);
    let ran = ran.lock().expect("no panic");
    let keys: BTreeSet<_> = ran.iter().map(|(key, _)| key).collect();
    let who: BTreeSet<_> = ran.iter().map(|(_, worker)| worker).collect();
    assert_eq!((ran.len(), keys.len()), (400, 400), "each once");
    assert!(who.len() > 1, "{who:?}");
}

fn a_slow_handler_keeps_no_quick_timers_behind_it(database: &Database<'_>) {
    let timers = database.open();
    let may_end = Arc::new(AtomicBool::new(false));
    let worker = {
        let may_end = Arc::clone(&may_end);
        timers.worker().threads(1).handle("mail", |_| Ok(())).handle("slow", move |_| {
            until("it may end", || may_end.load(Ordering::Relaxed));
            Ok(())
        })
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let mails = |count: u64| {
        let all: Vec<_> = (0..count).map(|n| mail(&n.to_string(), NOW)).collect();
        timers.schedule_all(&all).expect("scheduled");
    };
    mails(50);
    until("they are done", || worker.stats().done == 50);
    // One fills the thread of its kind, and the others wait for it.
    for n in 0..5 {
        timers.schedule(&NewTimer::new("slow", n.to_string(), NOW)).expect("scheduled");
    }
    until("it runs", || worker.stats().running == 1);
    mails(20);
    until("the mails are done beside it", || worker.stats().done == 70);
    assert_eq!(worker.stats().claimed, 71, "of the slow kind as many as it has threads");
    may_end.store(true, Ordering::Relaxed);
    until("all are done", || worker.stats().done == 75);
    assert!(worker.stop(PATIENCE));
}

fn a_kind_that_hangs_costs_itself_alone_and_says_so(database: &Database<'_>) {
    const THREADS: usize = 2;
    let timers = database.open();
    let may_end = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = {
        let may_end = Arc::clone(&may_end);
        timers.worker().threads(THREADS).handle("mail", |_| Ok(())).handle("hangs", move |_| {
            until("the end", || may_end.load(Ordering::Relaxed));
            Ok(())
        })
    };
    let worker = worker
        .time_limit(Duration::from_millis(20))
        .on_error(move |error| {
            if matches!(error, Error::Stuck(_)) {
                _ = tell.send(error.to_string());
            }
        })
        .start(Scheduler::global())
        .expect("it starts");
    // Each fills a thread. Those that replace them, sixteen, hang too.
    let hanging = (0..30).map(|n| NewTimer::new("hangs", n.to_string(), NOW));
    timers.schedule_all(&hanging.collect::<Vec<_>>()).expect("scheduled");
    let alarm = told.recv_timeout(PATIENCE).expect("it says so");
    assert!(alarm.contains("\"hangs\"") && alarm.contains("hang"), "{alarm}");
    assert_eq!(worker.stats().stuck, THREADS as u64 + 16);
    // It holds none of them back from other workers, and serves its other kind.
    let left = || timers.list(&Filter::new().kind("hangs").state(State::Running)).expect("a list");
    until("it has given back the others", || left().is_empty());
    let mails: Vec<_> = (0..294).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&mails).expect("scheduled");
    until("the mails are done", || worker.stats().done == 294);
    // When its handlers return, the kind is served again.
    may_end.store(true, Ordering::Relaxed);
    until("none is stuck", || worker.stats().stuck == 0);
    timers.schedule(&NewTimer::new("hangs", "new", NOW)).expect("scheduled");
    until("it is done", || timers.get("hangs", "new").expect("no error").is_none());
    assert!(told.try_recv().is_err(), "it is said once");
    assert!(worker.stop(PATIENCE));
}

fn a_worker_that_stops_gives_back_what_it_has_not_started(database: &Database<'_>) {
    const COUNT: u64 = 50;
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let (may_end, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let slow = timers
        .worker()
        .threads(2)
        .handle("mail", move |run| {
            if !is_taught(run) {
                _ = tell.send(());
                _ = gate.lock().expect("no panic").recv(); // until the sender is gone
                thread::sleep(Duration::from_millis(30)); // a slow handler is the subject
            }
            Ok(())
        })
        .start(Scheduler::global())
        .expect("it starts");
    teach(&timers, &slow, "mail");
    let new: Vec<_> = (0..COUNT).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    told.recv_timeout(PATIENCE).expect("it runs");
    // No handler ends before, or it would have learned that they are slow.
    assert!(!slow.stop(NOW), "a handler runs");
    drop(may_end);
    assert!(slow.stop(PATIENCE));
    let stats = slow.stats();
    assert_eq!((stats.running, stats.done + stats.released), (0, stats.claimed));
    assert!(stats.released > 0, "{stats:?}");
    let left = timers.list(&Filter::new().state(State::Waiting)).expect("a list");
    assert_eq!(left.len() as u64, TAUGHT + COUNT - stats.done);
    assert!(left.iter().all(|timer| timer.attempts == 0), "the attempt does not count");
}

fn others_take_over_at_once_what_a_stopped_worker_waited_for(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // nobody tells another process
    }
    let timers = database.open();
    let failing = timers
        .worker()
        .handle("mail", |_| Err(Failure::new("not here").retry_after(Duration::from_secs(1))))
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it has failed", || failing.stats().failed == 1 && failing.stats().running == 0);
    let (worker, seen) = noting(&database.open());
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    assert!(failing.stop(PATIENCE));
    // On a busy machine the first one may have tried it again by now.
    assert_eq!(u64::from(next(&seen).attempt), failing.stats().failed + 1);
}

// ----- transactions --------------------------------------------------------------------------

/// A table of what handlers have done, in the same database.
const EFFECTS: &str = "CREATE TABLE effects (key TEXT NOT NULL)";

/// A worker that writes its effect in the transaction of the timer.
fn in_transaction(
    timers: &Timers,
    database: &Database<'_>,
    fail: impl Fn(u32) -> bool + Send + Sync + Copy + 'static,
) -> WorkerBuilder {
    let worker = timers.worker().retry(quick(9));
    if database.is_sqlite() {
        worker.handle_in_sqlite("mail", move |run, transaction| {
            transaction.execute("INSERT INTO effects VALUES (?1)", [run.key()])?;
            let next = NewTimer::new("after", run.key(), HOUR);
            sqlite::within(transaction).schedule(&[next], Existing::Keep)?;
            if fail(run.attempt()) { Err(Failure::new("undone")) } else { Ok(()) }
        })
    } else {
        worker.handle_in_postgres("mail", move |run, transaction| {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()])?;
            let next = NewTimer::new("after", run.key(), HOUR);
            postgres::within(transaction).schedule(&[next], Existing::Keep)?;
            if fail(run.attempt()) { Err(Failure::new("undone")) } else { Ok(()) }
        })
    }
}

fn a_handler_in_the_transaction_runs_exactly_once(database: &Database<'_>) {
    let timers = database.open();
    database.execute(EFFECTS);
    let worker = in_transaction(&timers, database, |attempt| attempt < 3);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let new: Vec<_> = (0..20).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    until("all are done", || worker.stats().done == 20);
    let stats = worker.stats();
    assert_eq!((stats.failed, stats.claimed, stats.lost, stats.dead), (40, 60, 0, 0));
    assert_eq!(database.number("SELECT count(*) FROM effects"), 20);
    assert_eq!(database.number("SELECT count(DISTINCT key) FROM effects"), 20);
    let after = timers.list(&Filter::new()).expect("a list");
    assert!(after.len() == 20 && after.iter().all(|timer| timer.kind == "after"));
}

fn what_a_handler_schedules_in_its_transaction_comes_on_time(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let after = |key: &str| [NewTimer::new("after", key, SOON)];
    let worker = timers.worker().handle("after", move |run| {
        log.add(run);
        Ok(())
    });
    let worker = if database.is_sqlite() {
        worker.handle_in_sqlite("mail", move |run, transaction| {
            sqlite::within(transaction).schedule(&after(run.key()), Existing::Keep)?;
            Ok(())
        })
    } else {
        worker.handle_in_postgres("mail", move |run, transaction| {
            postgres::within(transaction).schedule(&after(run.key()), Existing::Keep)?;
            Ok(())
        })
    };
    let worker = worker.poll_every(HOUR).start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    let begin = Instant::now();
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    assert_eq!(next(&seen).key, "1");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "before the next look: {:?}",
        begin.elapsed()
    );
}

fn a_series_in_transactions_goes_on(database: &Database<'_>) {
    let timers = database.open();
    database.execute(EFFECTS);
    let worker =
        in_transaction(&timers, database, |_| false).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW).every(Duration::from_millis(10))).expect("scheduled");
    until("five runs", || worker.stats().done >= 5);
    assert!(worker.stop(PATIENCE));
    assert_eq!(database.number("SELECT count(*) FROM effects").unsigned_abs(), worker.stats().done);
}

fn the_order_and_its_timer_are_written_together_or_not_at_all(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let _worker = worker.start(Scheduler::global()).expect("it starts");
    let new = |key| [mail(key, NOW)];
    match database {
        Database::File(path) => {
            let mut mine = rusqlite::Connection::open(path).expect("it opens");
            for (key, commits) in [("undone", false), ("kept", true)] {
                let transaction = mine.transaction().expect("begins");
                sqlite::within(&transaction)
                    .schedule(&new(key), Existing::Replace)
                    .expect("scheduled");
                if commits { transaction.commit() } else { transaction.rollback() }.expect("ends");
            }
            timers.tell("mail");
        }
        Database::Schema { .. } => {
            let mut mine = client(&database.url());
            for (key, commits) in [("undone", false), ("kept", true)] {
                let mut transaction = mine.transaction().expect("begins");
                postgres::within(&mut transaction)
                    .schedule(&new(key), Existing::Replace)
                    .expect("scheduled");
                if commits { transaction.commit() } else { transaction.rollback() }.expect("ends");
            }
        }
    }
    assert_eq!(next(&seen).key, "kept");
    assert!(is_gone(&timers, "undone"));
}

/// By the rule for attempts, and not when its lease ends.
fn a_transaction_that_takes_too_long_is_tried_again(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let (go_on, is_over) = mpsc::channel();
    let is_over = Mutex::new(is_over);
    // The worker may wait for the file that this handler has, and so see its time limit later than the handler.
    let patience = if database.is_sqlite() { Duration::from_millis(300) } else { PATIENCE };
    let handle = move |run: &Run<'_>| {
        log.add(run);
        if run.attempt() == 1 {
            until("it is told", || !run.is_current());
            _ = is_over.lock().expect("no panic").recv_timeout(patience);
        } else {
            assert_eq!(run.timer().error.as_deref(), Some("it took longer than its time limit"));
        }
        Ok(())
    };
    let worker = timers.worker().retry(quick(3));
    let worker = if database.is_sqlite() {
        worker.handle_in_sqlite("mail", move |run, _| handle(run))
    } else {
        worker.handle_in_postgres("mail", move |run, _| handle(run))
    };
    let worker = worker.time_limit(Duration::from_millis(100)).lease(HOUR).poll_every(HOUR);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    assert_eq!(next(&seen).attempt, 1);
    let is_late = || worker.stats().timed_out == 1;
    until("its time is over", || is_late() || database.is_sqlite() && worker.stats().done == 1);
    _ = go_on.send(());
    assert_eq!(next(&seen).attempt, 2);
    until("it is done", || worker.stats().done == 1 && worker.stats().stuck == 0);
    assert!(is_gone(&timers, "1"));
    let stats = worker.stats();
    assert_eq!((stats.taken_over, stats.lost), (0, 0));
    assert!(worker.stop(PATIENCE));
}

/// Somebody locks a timer between its claim and its transaction. Its handler is not called before the lock is free, so no attempt is
/// spent. Returns what the worker has done.
fn run_while_somebody_holds_the_timer(
    database: &Database<'_>,
    timers: &Timers,
    time_limit: Duration,
    is_held_for_long: impl Fn(&Worker) -> bool,
) -> WorkerStats {
    const QUICK: u64 = 50;
    let (log, seen) = Log::new();
    let (give, holders) = mpsc::channel();
    let (url, is_held) = (database.url(), AtomicBool::new(false));
    let worker = timers.worker().threads(1).retry(quick(1)).handle_in_postgres("mail", {
        move |run, _| {
            log.add(run);
            Ok(())
        }
    });
    // It is asked before the transaction begins.
    let worker = worker.rules(move |_, after| {
        if !is_held.swap(true, Ordering::Relaxed) {
            let mut client = client(&url);
            let lock = "BEGIN; SELECT FROM tickwheel_timers WHERE key = 'held' FOR UPDATE";
            client.batch_execute(lock).expect("it is held");
            _ = give.send(client);
        }
        Ok(Some(after + HOUR))
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    // It learns that mails are quick, so it need not write that the next one starts, which would wait for the lock too.
    let quick: Vec<_> = (0..QUICK).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&quick).expect("scheduled");
    until("they are done", || worker.stats().done == QUICK);
    seen.try_iter().for_each(drop);
    let new = mail("held", NOW).max_attempts(50).time_limit(time_limit).rule("each hour");
    timers.schedule(&new).expect("scheduled");
    let mut holder = holders.recv_timeout(PATIENCE).expect("it is held");
    until("it was held for long", || is_held_for_long(&worker) || worker.stats().failed > 0);
    holder.batch_execute("COMMIT").expect("it ends");
    until("all are done", || worker.stats().done + worker.stats().failed > QUICK);
    let seen: Vec<_> = seen.try_iter().map(|seen| (seen.key, seen.attempt)).collect();
    assert_eq!(seen, [("held".to_owned(), 1)]);
    assert!(worker.stop(PATIENCE));
    worker.stats()
}

fn a_timer_that_somebody_holds_longer_than_its_time_limit_uses_up_no_attempt(
    database: &Database<'_>,
) {
    if database.is_sqlite() {
        return; // nothing there holds one timer
    }
    let is_over = |worker: &Worker| worker.stats().stuck == 1;
    let stats = run_while_somebody_holds_the_timer(database, &database.open(), LIMIT, is_over);
    assert_eq!((stats.failed, stats.timed_out), (0, 0), "{stats:?}");
    assert!(stats.released > 0, "{stats:?}");
}

/// The time of a statement, which many roles have bounded, is no bound for the wait for a timer.
fn a_timer_that_somebody_holds_longer_than_a_statement_may_take_uses_up_no_attempt(
    database: &Database<'_>,
) {
    if database.is_sqlite() {
        return; // it has no such bound
    }
    let address = format!("{}%20-c%20statement_timeout%3D100", database.url());
    let timers = Timers::open(&address).expect("it opens");
    let has_waited = |_: &Worker| {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND query_start < now() - interval '300 milliseconds'";
        database.number(waits) > 0
    };
    let stats = run_while_somebody_holds_the_timer(database, &timers, HOUR, has_waited);
    assert_eq!((stats.failed, stats.released), (0, 0), "{stats:?}");
}

fn a_transaction_that_never_ends_is_ended(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // a file has no server that could end it
    }
    let timers = database.open();
    database.execute(EFFECTS);
    let (log, seen) = Log::new();
    let worker = timers
        .worker()
        .retry(quick(9))
        .handle_in_postgres("mail", move |run, transaction| {
            log.add(run);
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()])?;
            if run.attempt() == 1 {
                until("it is told", || !run.is_current());
                // A hung process sends nothing. Each statement would begin the server's time limit anew.
                thread::sleep(Duration::from_millis(300));
                assert!(transaction.execute("SELECT 1", &[]).is_err(), "the server has ended it");
            }
            Ok(())
        })
        .time_limit(Duration::from_millis(100))
        .lease(Duration::from_millis(200))
        .poll_every(Duration::from_millis(20))
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let (first, second) = (next(&seen), next(&seen));
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert!(second.fence > first.fence);
    until("it is done", || worker.stats().done == 1);
    assert_eq!(database.number("SELECT count(*) FROM effects"), 1);
}

/// PostgreSQL keeps the plans of prepared statements. With those that a worker made while the table was empty it would read the
/// whole table for each timer, once that has grown.
fn a_table_that_grows_is_not_read_for_each_timer(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // it looks at the tables anew for each statement
    }
    let address = format!("{}&application_name=grows", database.url());
    let timers = Timers::open(&address).expect("it opens");
    let (worker, seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let run_some = |from: u64, count: u64| {
        for key in from..from + count {
            timers.schedule(&mail(&key.to_string(), NOW)).expect("scheduled");
            assert_eq!(next(&seen).key, key.to_string());
        }
        until("they are written", || worker.stats().done == from + count);
    };
    run_some(0, 10);
    database.execute("VACUUM ANALYZE tickwheel_timers"); // the server knows that there is nothing
    run_some(10, 20);
    let (many, count) = (100_000, 200);
    let later: Vec<_> = (0..many).map(|key| mail(&format!("later {key}"), HOUR)).collect();
    timers.schedule_all(&later).expect("scheduled");
    run_some(30, count);
    assert!(worker.stop(PATIENCE));
    drop((worker, timers));
    // A connection counts what it has read when it ends.
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'grows'";
    until("they have ended", || database.number(connections) == 0);
    let counted = |what: &str| {
        let of = "FROM pg_stat_user_tables WHERE relid = 'tickwheel_timers'::regclass";
        database.number(&format!("SELECT coalesce({what}, 0) {of}"))
    };
    until("it is counted", || counted("idx_scan") > 0);
    let read = counted("seq_tup_read");
    assert!(read < many * 20, "{read} rows were read to run {count} timers");
}

fn a_statement_that_fails_in_its_transaction_fails_the_run(database: &Database<'_>) {
    let timers = database.open();
    database.execute("CREATE TABLE effects (key TEXT PRIMARY KEY)");
    let worker = timers.worker().retry(quick(2));
    // The handler ignores the error of the second statement. PostgreSQL would undo the first one too, and call that a
    // success. SQLite keeps the first.
    let worker = if database.is_sqlite() {
        worker.handle_in_sqlite("mail", |run, transaction| {
            for _ in 0..2 {
                _ = transaction.execute("INSERT INTO effects VALUES (?1)", [run.key()]);
            }
            Ok(())
        })
    } else {
        worker.handle_in_postgres("mail", |run, transaction| {
            for _ in 0..2 {
                _ = transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()]);
            }
            Ok(())
        })
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is over", || {
        worker.stats().done + worker.stats().dead == 1 && worker.stats().running == 0
    });
    let is_done = is_gone(&timers, "1");
    assert_eq!(is_done, database.is_sqlite());
    assert_eq!(database.number("SELECT count(*) FROM effects"), i64::from(is_done));
    if !is_done {
        let error = timers.get("mail", "1").expect("no error").expect("there").error;
        assert!(
            error.as_deref().is_some_and(|error| error.contains("a statement has failed")),
            "{error:?}"
        );
    }
}

// ----- others that hold or refuse --------------------------------------------------------------

fn a_timer_that_somebody_holds_holds_up_no_other(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // a transaction holds the whole file
    }
    let timers = database.open();
    let may_end = Arc::new(AtomicBool::new(false));
    let (log, seen) = Log::new();
    let (tell, told) = mpsc::channel();
    let worker = {
        let may_end = Arc::clone(&may_end);
        timers.worker().handle("mail", move |run| {
            log.add(run);
            if run.key().starts_with("held") {
                until("it may end", || may_end.load(Ordering::Relaxed));
            }
            if run.key() == "held 2" {
                _ = tell.send(run.is_current());
            }
            Ok(())
        })
    };
    let worker = worker.lease(LEASE).start(Scheduler::global()).expect("it starts");
    timers.schedule_all(&[mail("held 1", NOW), mail("held 2", NOW)]).expect("scheduled");
    _ = (next(&seen), next(&seen));
    let mut mine = client(&database.url());
    let mut transaction = mine.transaction().expect("begins");
    let state = postgres::within(&mut transaction).cancel("mail", "held 1").expect("no error");
    assert_eq!(state, Some(State::Running));
    thread::sleep(LEASE * 3 / 2); // more than one extension, of which one timer is held
    timers.schedule(&mail("other", NOW)).expect("scheduled");
    assert_eq!(next(&seen).key, "other");
    may_end.store(true, Ordering::Relaxed);
    let is_current = told.recv_timeout(PATIENCE);
    assert_eq!(is_current, Ok(true), "its lease was extended while the other was held");
    until("the others are done", || worker.stats().done == 2);
    transaction.rollback().expect("ends");
    until("it is done too", || is_gone(&timers, "held 1"));
}

fn an_outcome_that_is_refused_holds_up_no_other(database: &Database<'_>) {
    let timers = database.open();
    // A rule of the user's, against which one outcome is.
    database.execute(if database.is_sqlite() {
        "CREATE TRIGGER mine BEFORE DELETE ON tickwheel_timers WHEN OLD.key = 'kept'
         BEGIN SELECT RAISE(ABORT, 'no'); END"
    } else {
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD.key = 'kept' THEN RAISE 'no'; END IF; RETURN OLD; END $$;
         CREATE TRIGGER mine BEFORE DELETE ON tickwheel_timers FOR EACH ROW EXECUTE FUNCTION refuse()"
    });
    let (worker, _seen) = noting(&timers);
    let worker = worker.on_error(|_| {}).start(Scheduler::global()).expect("it starts");
    let keys = (0..20).map(|n| n.to_string()).chain(["kept".to_owned()]);
    timers.schedule_all(&keys.map(|key| mail(&key, NOW)).collect::<Vec<_>>()).expect("scheduled");
    until("the others are done", || worker.stats().done == 20);
    until("it is given up", || worker.stats().lost == 1);
    assert!(worker.stop(PATIENCE));
}

fn batches_and_workers_do_not_deadlock(database: &Database<'_>) {
    let timers = database.open();
    let worker = timers
        .worker()
        .handle("mail", |run| if run.key().len() == 1 { Ok(()) } else { Err(Failure::new("no")) })
        .retry(quick(3))
        .start(Scheduler::global())
        .expect("it starts");
    thread::scope(|scope| {
        for reverse in [false, true] {
            let timers = &timers;
            scope.spawn(move || {
                for round in 0..30 {
                    let mut keys: Vec<_> = (0..40).map(|n| n.to_string()).collect();
                    if reverse {
                        keys.reverse();
                    }
                    let batch: Vec<_> = keys.iter().map(|key| mail(key, NOW)).collect();
                    timers.schedule_all(&batch).expect("no deadlock");
                    timers.requeue_all("mail", NOW).expect("no deadlock");
                    for key in keys.iter().skip(round).take(3) {
                        timers.cancel("mail", key).expect("no deadlock");
                    }
                }
            });
        }
    });
    until("it has come to rest", || {
        let counts = timers.counts().expect("counts");
        counts.iter().all(|of| of.waiting + of.retrying + of.running == 0)
    });
    assert_eq!(worker.stats().errors, 0);
}

// ----- clocks --------------------------------------------------------------------------------

fn a_machine_whose_clock_is_off_sends_nothing_early(database: &Database<'_>) {
    // The database's clock is an hour behind, or ahead of, this machine's: the same as the other way round.
    let off = match database {
        Database::File(path) => {
            let store = sqlite::Sqlite::with_wall_clock(path, || SystemTime::now() - HOUR);
            Timers::with_store(store).expect("it opens")
        }
        Database::Schema { .. } => {
            let timers = database.open();
            database.execute(
                "CREATE OR REPLACE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS $$ SELECT clock_timestamp() - interval '1 hour' $$",
            );
            timers
        }
    };
    let (worker, seen) = noting(&off);
    let _worker = worker.start(Scheduler::global()).expect("it starts");
    let begin = Instant::now();
    let now = off.now().expect("a time");
    assert!(SystemTime::now() > now + HOUR / 2, "it is off");
    // Due by this machine's clock for a long time, but not by the database's.
    off.schedule(&mail("early", now + HOUR / 2)).expect("scheduled");
    off.schedule(&mail("on time", now + Duration::from_millis(60))).expect("scheduled");
    let run = next(&seen);
    assert_eq!(run.key, "on time");
    assert!(run.at.duration_since(begin) > Duration::from_millis(55), "{:?}", run.at - begin);
    assert!(seen.recv_timeout(SOON).is_err());
}

/// Opens a database whose clock a test sets ahead by hours.
fn jumping<'a>(database: &'a Database<'_>) -> (Timers, impl Fn(u32) + 'a) {
    // The clock is moved by a function of the tests.
    let offset = Arc::new(AtomicU32::new(100));
    let timers = match database {
        Database::File(path) => {
            let offset = Arc::clone(&offset);
            let clock =
                move || SystemTime::now() + HOUR * offset.load(Ordering::Relaxed) - HOUR * 100;
            Timers::with_store(sqlite::Sqlite::with_wall_clock(path, clock)).expect("it opens")
        }
        Database::Schema { .. } => database.open(),
    };
    let jump = move |hours: u32| match database {
        Database::File(_) => offset.store(100 + hours, Ordering::Relaxed),
        Database::Schema { .. } => database.execute(&format!(
            "CREATE OR REPLACE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE
             AS $$ SELECT clock_timestamp() + interval '{hours} hours' $$"
        )),
    };
    (timers, jump)
}

/// Nobody asks for the time meanwhile, and by the time that the worker knows, the new timer comes in an hour.
fn a_jump_of_the_clock_is_noticed_with_the_next_timer(database: &Database<'_>) {
    let (timers, jump) = jumping(database);
    timers.schedule(&mail("in an hour", HOUR)).expect("scheduled");
    let (worker, seen) = noting(&timers);
    let worker = worker.poll_every(HOUR).start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    jump(1);
    let begin = Instant::now();
    match database {
        Database::File(_) => _ = timers.schedule(&mail("new", NOW)).expect("scheduled"),
        Database::Schema { .. } => database.execute("SELECT tickwheel_schedule('mail', 'new')"),
    }
    let keys = BTreeSet::from([next(&seen).key, next(&seen).key]);
    assert_eq!(keys, BTreeSet::from(["in an hour".to_owned(), "new".to_owned()]));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "before a look without a reason: {took:?}");
}

fn jumps_of_the_clock_lose_nothing(database: &Database<'_>) {
    let (timers, jump) = jumping(database);
    let (worker, seen) = noting(&timers);
    let worker =
        worker.poll_every(Duration::from_millis(20)).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("in two hours", HOUR * 2)).expect("scheduled");
    timers.schedule(&mail("soon", SOON)).expect("scheduled");
    assert_eq!(next(&seen).key, "soon");
    // Otherwise its lease would end with the jump.
    until("it is written", || worker.stats().done == 1);
    jump(3);
    timers.tell("mail");
    assert_eq!(next(&seen).key, "in two hours");
    jump(0); // back again: what is due by that clock has not come
    let begin = Instant::now();
    timers.schedule(&mail("back", Duration::from_millis(50))).expect("scheduled");
    assert_eq!(next(&seen).key, "back");
    assert!(begin.elapsed() > Duration::from_millis(45), "{:?}", begin.elapsed());
}

// ----- the rest ------------------------------------------------------------------------------

fn json_goes_in_and_comes_out(database: &Database<'_>) {
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            let (name, count): (String, u32) = run.json()?;
            _ = tell.send((name, count));
            Ok(())
        })
        .retry(quick(2))
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule(&mail("good", NOW).json(&("ann", 7)).expect("JSON")).expect("scheduled");
    timers.schedule(&mail("poison", NOW).payload("{")).expect("scheduled");
    assert_eq!(told.recv_timeout(PATIENCE).expect("it comes"), ("ann".to_owned(), 7));
    until("the other is dead", || worker.stats().dead == 1 && worker.stats().running == 0);
    let poison = timers.get("mail", "poison").expect("no error").expect("there");
    assert_eq!(poison.attempts, 2);
    assert!(
        poison.error.as_deref().is_some_and(|error| error.contains("do not fit")),
        "{poison:?}"
    );
}

fn the_longest_times_are_long_and_do_no_harm(database: &Database<'_>) {
    let timers = database.open();
    let (worker, seen) = noting(&timers);
    let worker = worker.time_limit(Duration::MAX).lease(Duration::MAX).poll_every(Duration::MAX);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW).time_limit(Duration::MAX)).expect("scheduled");
    timers.schedule(&mail("2", NOW).every(Duration::MAX)).expect("scheduled");
    assert_eq!([next(&seen), next(&seen)].map(|seen| seen.attempt), [1, 1]);
    until("both are written", || worker.stats().done == 2);
    assert!(worker.stop(PATIENCE));
}

fn async_code_may_call_it(database: &Database<'_>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
    runtime.expect("a runtime").block_on(async {
        let timers = database.open();
        let (worker, seen) = noting(&timers);
        let worker = worker.start(Scheduler::global()).expect("it starts");
        timers.schedule(&mail("1", NOW)).expect("scheduled");
        assert_eq!(next(&seen).key, "1");
        assert!(worker.stop(PATIENCE));
        drop((worker, timers)); // with their connections
    });
}

fn what_a_worker_cannot_be_is_said(database: &Database<'_>) {
    let timers = database.open();
    let scheduler = Scheduler::new();
    let invalid = |worker: WorkerBuilder| {
        let error = worker.start(&scheduler).expect_err("it cannot start");
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    };
    invalid(timers.worker());
    for kind in ["", "ma\0il", &"x".repeat(201)] {
        invalid(timers.worker().handle("mail", |_| Ok(())).handle(kind, |_| Ok(())));
    }
    invalid(timers.worker().handle("mail", |_| Ok(())).lease(Duration::from_millis(1)));
    invalid(timers.worker().handle_in_transaction("mail", |_, _| Ok(())));
    invalid(timers.worker().handle("mail", |_| Ok(())).handle("mail", |_| Ok(())));
    invalid(timers.worker().handle("mail", |_| Ok(())).name("a\0b"));
    invalid(timers.worker().handle_async("mail", async |_| Ok(())));
    // Numbers with which nothing would run, or without an end: of all kinds, and of one.
    let plain = |worker: WorkerBuilder| worker.handle("mail", |_| Ok(()));
    let instant = Duration::from_micros(999);
    invalid(plain(timers.worker()).threads(0));
    invalid(plain(timers.worker()).async_runs(0));
    invalid(plain(timers.worker().async_runs(0)));
    invalid(plain(timers.worker()).retry(Retry::attempts(0)));
    invalid(plain(timers.worker().retry(Retry::attempts(0))));
    invalid(plain(timers.worker()).time_limit(NOW));
    invalid(plain(timers.worker().time_limit(instant)));
    invalid(plain(timers.worker()).poll_every(NOW));
    invalid(plain(timers.worker()).poll_every(instant));
    invalid(plain(timers.worker()).lease(NOW));
    let none = OpenOptions::new().max_connections(0).open(&database.address());
    assert!(matches!(none, Err(Error::Invalid(_))), "{none:?}");
    assert_eq!(timers.list(&Filter::new().limit(0)).expect("a list"), []);
    // The smallest of each works.
    let smallest = |worker: WorkerBuilder| {
        let least = Duration::from_millis(1);
        worker.threads(1).async_runs(1).retry(Retry::attempts(1)).poll_every(least)
    };
    let worker = smallest(plain(timers.worker())).lease(Duration::from_millis(100));
    let worker = worker.start(&scheduler).expect("it starts");
    assert!(worker.stop(PATIENCE));
    let no_wait = OpenOptions::new().max_connections(1).acquire_timeout(NOW);
    no_wait.open(&database.address()).expect("it opens").now().expect("one is free");
    invalid(if database.is_sqlite() {
        timers.worker().handle_in_postgres("mail", |_, _| Ok(()))
    } else {
        timers.worker().handle_in_sqlite("mail", |_, _| Ok(()))
    });
}

fn a_closed_scheduler_stops_the_worker(database: &Database<'_>) {
    let timers = database.open();
    let scheduler = Scheduler::builder().precision(Precision::Exact).build().expect("it starts");
    let (worker, seen) = noting(&timers);
    let worker = worker.start(&scheduler).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    next(&seen);
    drop(scheduler.close().expect("it closes"));
    until("it has ended", || worker.stop(Duration::from_millis(1)));
    assert!(is_gone(&timers, "1"), "the outcome is written all the same");
    let refused = noting(&timers).0.start(&scheduler).expect_err("it is closed");
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
}

fn a_worker_says_whether_it_runs_and_why_not(database: &Database<'_>) {
    let timers = database.open();
    let start = |scheduler: &Scheduler| {
        let (tell, told) = mpsc::channel();
        let (worker, _) = noting(&timers);
        let worker =
            worker.poll_every(HOUR).on_error(move |error| _ = tell.send(error.to_string()));
        let worker = worker.start(scheduler).expect("it starts");
        assert!(worker.is_running() && worker.stop_reason().is_none());
        until("it has looked", || worker.stats().looks > 0);
        (worker, told)
    };
    let begin = Instant::now();
    // By its user.
    let (worker, told) = start(Scheduler::global());
    assert_eq!(worker.wait(Duration::from_millis(5)), None);
    thread::scope(|scope| {
        let waits = scope.spawn(|| worker.wait(PATIENCE));
        assert!(worker.stop(PATIENCE));
        assert_eq!(waits.join().expect("no panic"), Some(StopReason::Stopped));
    });
    assert!(!worker.is_running() && told.try_recv().is_err(), "that is no error");
    // With its scheduler.
    let scheduler = Scheduler::new();
    let (worker, told) = start(&scheduler);
    drop(scheduler.close().expect("it closes"));
    assert_eq!(worker.wait(PATIENCE), Some(StopReason::SchedulerClosed));
    assert!(!worker.is_running());
    assert_eq!(told.try_recv().as_deref(), Ok("a worker has stopped: its scheduler was closed"));
    // When it claims from tables that have become too new, and not at its next look.
    let (worker, told) = start(Scheduler::global());
    database.execute("UPDATE tickwheel_schema SET version = 99, oldest = 99");
    timers.schedule(&mail("new", NOW)).expect("scheduled");
    assert_eq!(worker.wait(PATIENCE), Some(StopReason::Schema(99)));
    assert!(told.try_recv().is_ok_and(|error| error.contains("version 99")));
    let timer = timers.get("mail", "new").expect("no error").expect("there");
    assert_eq!((timer.state, timer.attempts), (State::Waiting, 0));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

on_both! {
    "worker":
    limits_hold_while_workers_are_killed,
    a_cancel_reaches_a_run_within_a_second,
    a_history_has_each_attempt,
    a_completion_writes_its_attempt,
    what_is_too_old_goes_while_the_worker_runs,
    whoever_schedules_has_its_trace_in_the_run,
    futures_see_the_history,
    what_is_due_runs_once_and_is_gone,
    timers_of_other_processes_come_on_time,
    each_timer_of_a_batch_comes_on_time,
    a_cancelled_timer_never_runs,
    idle_costs_one_look_a_minute,
    a_backlog_is_worked_off,
    what_is_behind_a_backlog_comes_on_time,
    a_table_that_grows_is_not_read_for_each_timer,
    a_statement_that_fails_in_its_transaction_fails_the_run,
    a_timer_that_somebody_holds_holds_up_no_other,
    an_outcome_that_is_refused_holds_up_no_other,
    batches_and_workers_do_not_deadlock,
    the_longest_times_are_long_and_do_no_harm,
    async_code_may_call_it,
    futures_do_what_the_calls_do,
    what_a_future_schedules_comes_on_time,
    async_handlers_run_at_the_same_time_up_to_a_bound,
    a_panic_of_an_async_handler_is_a_failure,
    what_is_suspected_and_never_polled_stays_suspected,
    failures_are_tried_again_and_dead_in_the_end,
    a_handler_that_never_returns_holds_up_nobody,
    what_waits_behind_a_handler_that_never_returns_runs,
    a_long_handler_keeps_its_lease,
    a_run_learns_that_its_timer_is_gone,
    a_series_keeps_its_phase,
    a_rule_says_when_the_next_run_is,
    workers_share_the_work,
    a_slow_handler_keeps_no_quick_timers_behind_it,
    a_worker_that_stops_gives_back_what_it_has_not_started,
    others_take_over_at_once_what_a_stopped_worker_waited_for,
    a_handler_in_the_transaction_runs_exactly_once,
    what_a_handler_schedules_in_its_transaction_comes_on_time,
    a_series_in_transactions_goes_on,
    the_order_and_its_timer_are_written_together_or_not_at_all,
    a_transaction_that_takes_too_long_is_tried_again,
    a_timer_that_somebody_holds_longer_than_its_time_limit_uses_up_no_attempt,
    a_timer_that_somebody_holds_longer_than_a_statement_may_take_uses_up_no_attempt,
    a_transaction_that_never_ends_is_ended,
    a_machine_whose_clock_is_off_sends_nothing_early,
    jumps_of_the_clock_lose_nothing,
    a_jump_of_the_clock_is_noticed_with_the_next_timer,
    json_goes_in_and_comes_out,
    what_a_worker_cannot_be_is_said,
    a_closed_scheduler_stops_the_worker,
    a_worker_says_whether_it_runs_and_why_not,
    a_kind_that_hangs_costs_itself_alone_and_says_so,
    a_death_is_told_with_its_reason,
    a_run_that_fails_does_not_end_its_series,
    gaps_of_retries_do_not_replace_the_period,
    a_cron_rule_needs_no_hook,
    what_was_missed_runs_as_the_policy_says,
    a_run_that_fails_holds_up_no_missed_one,
    a_rule_that_cannot_be_is_refused_or_ends_its_timer,
    a_series_is_kept_unless_it_has_changed,
    two_services_that_start_at_once_replace_a_series_once,
    the_first_time_is_by_the_clock_of_the_database,
    a_flood_leaves_the_others_on_time,
    weights_share_the_claims,
    a_kind_has_a_bound_of_its_own_in_a_process,
    no_more_run_at_once_than_the_limit_of_all,
    a_rate_holds_over_all_workers,
    groups_run_one_at_a_time_and_in_order,
    a_group_that_floods_leaves_the_others_on_time,
    a_run_whose_timer_is_gone_holds_its_group,
    what_limits_cannot_be_is_said,
    a_claim_with_limits_is_a_claim,
    a_rate_lets_no_starts_gather,
    a_hold_lasts_as_long_as_its_lease,
    outcomes_do_not_wait_for_holds_that_stay,
    a_run_whose_hold_has_ended_gets_no_transaction,
    a_transaction_keeps_its_hold,
    what_completes_a_run_needs_and_keeps_its_hold,
    a_run_whose_hold_has_ended_loses_its_lease,
    what_limits_hold_back_calls_for_no_help,
    what_waits_for_its_group_is_not_checked,
    a_hold_does_not_end_before_its_lease,
    what_is_suspected_and_cannot_start_stays_suspected,
    another_process_schedules_beside_a_drain,
    a_group_that_is_held_holds_up_no_other,
    what_is_given_back_stays_first_in_its_group,
    a_stream_leaves_the_others_on_time,
    what_is_suspected_stays_so_if_its_worker_stops,
    what_is_halted_in_a_claim_is_ended,
    a_width_may_be_as_large_as_can_be,
    a_call_that_may_not_wait_is_made,
    a_rate_is_made_use_of,
    each_kind_has_its_own_retries,
    a_failure_may_be_given_up,
    a_rule_that_nobody_knows_is_the_end_at_once,
    a_snooze_uses_up_no_attempt,
    a_snooze_undoes_the_transaction,
    a_snooze_stays_in_its_series,
    series_with_long_keys_lose_no_run,
    a_snooze_gives_its_place_to_others,
    a_handler_that_hangs_raises_an_alarm,
    the_end_of_a_lease_is_noticed,
    a_run_that_has_completed_itself_is_not_cancelled,
    a_series_that_has_completed_its_run_goes_on_at_once,
    what_a_stop_hands_back_starts_elsewhere_at_once,
    ; // these count what the server does
    a_thousand_async_handlers_run_at_the_same_time,
    to_ask_about_long_runs_costs_little,
}
