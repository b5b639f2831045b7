//! The threads that run handlers, and the one that writes what became of them.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use super::outage::{Part, gap};
use super::shared::{Cause, Job, Shared, Stage, count};
use crate::durable::error::{Error, Result};
use crate::durable::failure::{Failure, HandlerResult};
use crate::durable::handler::{Run, Work};
use crate::durable::sight;
use crate::durable::store::{Changed, Connection, Finish, Then, Transacted};
use crate::durable::timers::Purpose;

pub(super) fn start(shared: &Arc<Shared>) -> Result<()> {
    (0..shared.settings.threads).try_for_each(|_| start_handler(shared))?;
    shared.spawn("finisher", finisher)
}

/// Starts a thread that runs handlers, until the worker stops or there are too many of them.
pub(super) fn start_handler(shared: &Arc<Shared>) -> Result<()> {
    shared.state().handlers += 1;
    let started = shared.spawn("handler", |shared| {
        while let Some((job, limit)) = next_job(shared) {
            run(shared, &job, limit);
        }
    });
    if started.is_err() {
        shared.state().handlers -= 1;
    }
    started
}

/// Waits for a job, and starts its run (LEASE-3, LEASE-5). `None`: this thread ends.
fn next_job(shared: &Shared) -> Option<(Job, Duration)> {
    let mut state = shared.state();
    loop {
        // What stands in for a stuck thread is not needed any more when that one comes back.
        let enough = shared.settings.threads + state.stuck;
        if state.handlers > enough || state.is_stopping {
            state.handlers -= 1;
            return None;
        }
        let Some(job) = state.jobs.pop_front() else {
            state = shared.has_jobs.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let fence = job.timer.fence;
        if !job.tenure.is_current() {
            // Another worker may have it by now. If none has, a look finds it.
            shared.forget(&mut state, fence);
            count(&shared.counters.lost, 1);
            shared.look_now();
            continue;
        }
        let kind = &shared.kinds[job.kind];
        let limit = job.timer.time_limit.or(kind.time_limit).unwrap_or(shared.settings.time_limit);
        if let Some(held) = state.runs.get_mut(&fence) {
            held.stage = Stage::Started;
            held.tenure.start(limit, kind.handler.is_transactional());
        }
        drop(state);
        _ = shared.causes.insert(Cause::Limit(fence), (), limit);
        return Some((job, limit));
    }
}

/// What became of a handler.
enum Ended {
    /// It has returned, and this is to be written.
    Returned(HandlerResult),
    /// What it has done is committed, and the timer is what this says.
    Committed(Then),
    /// It was not called, because the timer is another's.
    Lost,
    /// It was not called, because the database could not be reached.
    NotCalled,
}

fn run(shared: &Shared, job: &Job, limit: Duration) {
    let started = shared.scheduler.now();
    let late = shared.clock().time(started).duration_since(job.woke).unwrap_or_default();
    let late_micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
    shared.counters.max_lateness.fetch_max(late_micros, std::sync::atomic::Ordering::Relaxed);
    let kind = &shared.kinds[job.kind];
    let max_attempts = shared.max_attempts(job.kind, &job.timer);
    let run = Run { timer: &job.timer, max_attempts, tenure: &job.tenure };
    let ended = sight::in_span(&job.timer, || {
        if kind.handler.is_transactional() {
            transact(shared, job, limit, run)
        } else {
            Ended::Returned(kind.handler.call(&run))
        }
    });
    let took = shared.scheduler.now().saturating_duration_since(started);
    sight::ran(&job.timer, late, took);
    end(shared, job, ended, took);
}

/// Runs a handler in a transaction.
fn transact(shared: &Shared, job: &Job, limit: Duration, run: Run<'_>) -> Ended {
    let then = match shared.after_success(&job.timer) {
        Ok(then) => then,
        Err(failure) => return Ended::Returned(Err(failure)),
    };
    let finish = Finish { run: job.timer.run(), then };
    let mut work = Work { run, handler: &shared.kinds[job.kind].handler, result: None };
    let transacted = loop {
        if !shared.await_turn(Part::Handlers) || !job.tenure.is_current() {
            return Ended::NotCalled;
        }
        let transacted = shared
            .timers
            .lend(Purpose::Handler, |connection| connection.transact(&finish, limit, &mut work));
        match transacted {
            // A connection that was lost while nobody used it is no failure of the handler.
            Err(error @ (Error::Unreachable(_) | Error::Busy)) if work.result.is_none() => {
                shared.has_failed(Part::Handlers, &error);
            }
            other => break other,
        }
    };
    match &transacted {
        Ok(_) => shared.has_worked(Part::Handlers),
        Err(error @ Error::Unreachable(_)) => shared.has_failed(Part::Handlers, error),
        Err(error) => shared.report(error),
    }
    match transacted {
        Ok(Transacted::Committed) => {
            if !shared.settings.is_told {
                // The handler may have scheduled others in its transaction.
                shared.timers.each_worker(Shared::look_now);
            }
            Ended::Committed(finish.then)
        }
        Ok(Transacted::Lost) => Ended::Lost,
        Ok(Transacted::Undone) => Ended::Returned(
            work.result.unwrap_or_else(|| Err(Failure::new("the handler was not called"))),
        ),
        // If it was committed after all, the timer is not running any more, and this failure changes nothing (STORE-3).
        Err(error) => {
            shared.look_now(); // in case it was a series
            Ended::Returned(Err(error.into()))
        }
    }
}

/// Settles a run whose handler has returned, unless its time was over before (LEASE-2).
fn end(shared: &Shared, job: &Job, ended: Ended, took: Duration) {
    let fence = job.timer.fence;
    // A rule is the user's, so it is asked while nothing is locked.
    let next = match &ended {
        Ended::Returned(Ok(())) => Some(shared.after_success(&job.timer)),
        _ => None,
    };
    shared.causes.remove(&Cause::Limit(fence));
    let mut state = shared.state();
    let average = state.averages.entry(job.kind).or_insert(took);
    *average = (*average * 7 + took) / 8;
    let is_mine = state.runs.get(&fence).is_some_and(|held| held.stage == Stage::Started);
    if !is_mine {
        state.stuck -= 1;
        drop(state);
        shared.has_jobs.notify_all(); // there may be a thread too many
        if let Ended::Committed(then) = ended {
            count(&shared.counters.done, 1); // it was in time for the database
            expect_next(shared, job.kind, &then);
        }
        return;
    }
    let then = match ended {
        Ended::Committed(then) => {
            count(&shared.counters.done, 1);
            shared.forget(&mut state, fence);
            drop(state);
            return expect_next(shared, job.kind, &then);
        }
        Ended::Lost => {
            count(&shared.counters.lost, 1);
            return shared.forget(&mut state, fence);
        }
        Ended::NotCalled => Then::Release,
        Ended::Returned(Ok(())) => match next {
            // The work is done, so it is not tried again because the rule has failed.
            Some(Err(failure)) => Then::Dead(failure.reason().to_owned()),
            Some(Ok(then)) => then,
            None => Then::Done,
        },
        Ended::Returned(Err(failure)) => shared.after_failure(job.kind, &job.timer, &failure),
    };
    if let Some(held) = state.runs.get_mut(&fence) {
        held.stage = Stage::Settled;
    }
    shared.settle(&mut state, Finish { run: job.timer.run(), then: then.clone() });
    drop(state);
    shared.tell_of_failure(&job.timer, &then);
}

/// This worker knows when the timer wakes next, before a look does.
fn expect_next(shared: &Shared, kind: usize, then: &Then) {
    let next = match then {
        Then::Next(due) => *due,
        Then::Retry(gap, _) => {
            let now = shared.clock().latest_time(shared.scheduler.now());
            now.checked_add(*gap).unwrap_or(SystemTime::UNIX_EPOCH)
        }
        Then::Release => shared.clock().time(shared.scheduler.now()),
        _ => return,
    };
    shared.expect(kind, next);
}

/// Writes outcomes, all that have gathered at once.
fn finisher(shared: &Arc<Shared>) {
    let mut finisher = Finisher { shared, connection: None, later: Vec::new() };
    loop {
        let mut state = shared.state();
        while state.outcomes.is_empty() {
            if state.is_stopping && !state.is_dispatching && state.runs.is_empty() {
                return;
            }
            let is_late = !finisher.later.is_empty();
            let waited = shared.has_outcomes.wait_timeout(state, if is_late { BUSY } else { LONG });
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_late {
                break;
            }
        }
        let mut outcomes = std::mem::take(&mut state.outcomes);
        drop(state);
        outcomes.append(&mut finisher.later);
        finisher.write(outcomes);
    }
}

/// When a timer is tried again that another transaction holds.
const BUSY: Duration = Duration::from_millis(100);

/// A wait that something else ends.
const LONG: Duration = Duration::from_secs(3600);

/// How often an outcome is written that the database refuses, before its lease is left to end.
const MOST_REFUSALS: u32 = 5;

struct Finisher<'a> {
    shared: &'a Shared,
    connection: Option<Box<dyn Connection>>,
    /// Outcomes of timers that other transactions hold.
    later: Vec<Finish>,
}

impl Finisher<'_> {
    /// Writes outcomes. If the database cannot be reached, it waits, and the dispatcher extends the leases, if it can. If
    /// the database refuses them together, because a constraint or a trigger of the user's is against one of them, each is
    /// written by itself.
    fn write(&mut self, outcomes: Vec<Finish>) {
        let (mut refusals, mut was_sent) = (0, false);
        loop {
            self.shared.await_turn_unless(Part::Finisher, || false);
            match self.try_write(&outcomes, &mut was_sent) {
                Ok(finished) => {
                    self.shared.has_worked(Part::Finisher);
                    return self.are_written(outcomes, &finished, was_sent);
                }
                Err(error @ (Error::Unreachable(_) | Error::Busy)) => {
                    self.shared.has_failed(Part::Finisher, &error);
                }
                Err(_) if outcomes.len() > 1 => {
                    outcomes.into_iter().for_each(|outcome| self.write(vec![outcome]));
                    return;
                }
                Err(error) => {
                    if refusals == 0 {
                        self.shared.report(&error);
                    }
                    if refusals >= MOST_REFUSALS {
                        return self.are_written(outcomes, &Changed::default(), false);
                    }
                    refusals += 1;
                    std::thread::sleep(gap(refusals));
                }
            }
        }
    }

    /// Sets `was_sent` if it fails after it has sent the outcomes.
    fn try_write(&mut self, outcomes: &[Finish], was_sent: &mut bool) -> Result<Changed> {
        let mut connected = self.shared.timers.connected(self.connection.take())?;
        let finished = connected.finish(outcomes);
        *was_sent |= finished.is_err();
        self.connection = Some(connected).filter(|_| finished.is_ok());
        finished
    }

    /// Forgets runs of which the outcome was written, or that were another's. If the outcomes were sent before, an outcome
    /// may have been written then, and not now.
    fn are_written(&mut self, outcomes: Vec<Finish>, finished: &Changed, was_sent: bool) {
        let written: HashSet<i64> = finished.changed.iter().copied().collect();
        let shared = self.shared;
        for outcome in outcomes {
            let fence = outcome.run.fence;
            if finished.busy.contains(&fence) {
                self.later.push(outcome);
                continue;
            }
            let held = shared.state().runs.remove(&fence);
            if written.contains(&fence) || was_sent {
                match outcome.then {
                    Then::Done | Then::Next(_) => count(&shared.counters.done, 1),
                    Then::Release => count(&shared.counters.released, 1),
                    Then::Retry(..) | Then::Dead(_) => {}
                }
                held.into_iter().for_each(|held| expect_next(shared, held.kind, &outcome.then));
            } else {
                count(&shared.counters.lost, 1);
            }
        }
        _ = shared.causes.insert(Cause::Room, (), Duration::ZERO);
    }
}
