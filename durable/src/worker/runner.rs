//! The threads that run handlers, and the one that writes what became of them.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use super::futures;
use super::outage::{Part, gap};
use super::shared::{ALONE, Cause, Hold, Job, Shared, Stage, count};
use crate::error::{Error, Result};
use crate::failure::{Failure, HandlerResult};
use crate::handler::{Run, TIME_LIMIT, Work};
use crate::sight;
use crate::store::{Changed, Connection, Finish, Purpose, Then, Transacted};
use crate::timer::Timer;
use crate::timers::Opened;

/// Starts the finisher, and a handler thread for each kind. The others are started when they are needed.
pub(super) fn start(shared: &Arc<Shared>) -> Result<()> {
    (0..shared.kinds.len()).try_for_each(|kind| start_handler(shared, kind))?;
    shared.state().is_finishing = true;
    shared.spawn("finisher", |shared| {
        let end = End(shared);
        finisher(shared);
        drop(end);
    })
}

/// The end of the finisher, also by a panic.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end_of_finisher();
    }
}

/// Starts a further thread of a kind, or reports why not. The kind has others.
pub(super) fn start_another(shared: &Arc<Shared>, kind: usize) {
    start_handler(shared, kind).unwrap_or_else(|error| shared.report(&error));
}

/// Starts a thread that runs the handler of a kind, until the worker stops or there are too many of them.
fn start_handler(shared: &Arc<Shared>, kind: usize) -> Result<()> {
    shared.state().lines[kind].handlers += 1;
    let started = shared.spawn("handler", move |shared| {
        while let Some(jobs) = next_jobs(shared, kind) {
            run_all(shared, kind, jobs);
        }
    });
    if started.is_err() {
        shared.state().lines[kind].handlers -= 1;
    }
    started
}

/// Runs jobs, or launches them if their handler is async.
pub(super) fn run_all(shared: &Arc<Shared>, kind: usize, jobs: Vec<Job>) {
    let taken = jobs.len();
    let begun = begin(shared, kind, jobs);
    if shared.kinds[kind].handler.is_async() {
        (begun.len()..taken).for_each(|_| shared.has_landed(kind));
        begun.into_iter().for_each(|(job, _)| futures::launch(shared, job));
    } else {
        begun.iter().for_each(|(job, limit)| run(shared, job, *limit));
    }
}

/// So many async runs start together at most. Their starts are one commit: with a commit for each, a disk that takes 2 ms for one
/// would let no more than two thousand begin in a second, however many may run at the same time.
const MOST_STARTS: usize = 100;

/// Waits for a job, or for async handlers for some that start together (LEASE-5). `None`: this thread ends.
fn next_jobs(shared: &Shared, kind: usize) -> Option<Vec<Job>> {
    loop {
        // Before the lock: those that wait for a turn lock the other way round.
        let turn = shared.time_to_try_again(Part::Handlers(shared.kinds[kind].handler.purpose()));
        let mut state = shared.state();
        let line = &state.lines[kind];
        // A thread that was started in place of a stuck one ends when the stuck one comes back.
        let enough = shared.threads_of(kind) + line.stuck;
        if line.handlers > enough || state.is_stopping() {
            state.lines[kind].handlers -= 1;
            return None;
        }
        let can_start = shared.room_to_start(kind, line) > 0;
        let wait = match line.jobs.front().filter(|_| can_start) {
            None if turn.is_some_and(|left| left.is_zero()) => {
                drop(state);
                try_again(shared, kind);
                continue;
            }
            None => turn.unwrap_or(LONG),
            // It starts when the worker has nothing else, or has waited for that (ATTEMPT-3).
            Some(job) if job.tenure.is_suspected && state.runs.len() > 1 => {
                state.alone.map_or(Duration::ZERO, |alone| {
                    alone.until - shared.scheduler.now().min(alone.until)
                })
            }
            Some(_) => Duration::ZERO,
        };
        if wait.is_zero() {
            let most = shared.room_to_start(kind, &state.lines[kind]).min(MOST_STARTS);
            let line = &mut state.lines[kind];
            // One that is suspected starts by itself.
            let unsuspected =
                line.jobs.iter().take(most).take_while(|job| !job.tenure.is_suspected);
            let many = unsuspected.count().max(1).min(line.jobs.len());
            if many > 0 {
                line.in_flight += if shared.kinds[kind].handler.is_async() { many } else { 0 };
                return Some(line.jobs.drain(..many).collect());
            }
        }
        state.lines[kind].idle += 1;
        let waited = shared.has_jobs[kind].wait_timeout(state, wait);
        waited.unwrap_or_else(PoisonError::into_inner).0.lines[kind].idle -= 1;
    }
}

/// Tries the database in the place of runs that have given up (OUTAGE-1), as their kind uses it.
fn try_again(shared: &Shared, kind: usize) {
    let purpose = shared.kinds[kind].handler.purpose();
    if !shared.time_to_turn(Part::Handlers(purpose)).is_zero() {
        return; // it is the turn of somebody else
    }
    let tried = shared.timers.lend(purpose, |connection| {
        connection.now()?;
        connection.start_all(&[])
    });
    match tried {
        Err(error) if error.is_of_the_connection() || matches!(error, Error::Busy) => {
            shared.has_failed(Part::Handlers(purpose), &error);
        }
        _ => shared.has_worked(Part::Handlers(purpose)),
    }
}

/// Starts the runs of jobs, and returns those whose handlers are to be called, with their time limits.
pub(super) fn begin(shared: &Shared, kind: usize, jobs: Vec<Job>) -> Vec<(Job, Duration)> {
    // A transaction writes it itself, once it has the connection.
    let is_transactional = shared.kinds[kind].handler.is_transactional();
    let must_write = |job: &Job| !is_transactional && shared.writes_start(job);
    let (to_write, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(must_write);
    let written = write_starts(shared, to_write).into_iter().map(|job| (job, true));
    let all = written.chain(others.into_iter().map(|job| (job, false)));
    all.filter_map(|(job, is_written)| {
        begin_one(shared, &job, is_written).map(|limit| (job, limit))
    })
    .collect()
}

/// Starts the run of a job (LEASE-3), and returns its time limit. `None`: it is not started.
fn begin_one(shared: &Shared, job: &Job, is_written: bool) -> Option<Duration> {
    let fence = job.timer.fence;
    let kind = &shared.kinds[job.kind];
    let limit = shared.time_limit_of(job.kind, &job.timer);
    let mut state = shared.state();
    if !job.tenure.is_current() || is_written && state.is_stopping() {
        if is_written {
            // It was not started after all. If another worker has it by now, this changes nothing.
            drop(state);
            give_back_uncounted(shared, job);
        } else {
            // Another worker may have it by now. If none has, a look finds it.
            shared.forget(&mut state, fence);
            count(&shared.counters.lost, 1);
            shared.look_now();
        }
        return None;
    }
    if let Some(held) = state.runs.get_mut(&fence) {
        held.stage = Stage::Started;
        held.tenure.start(limit, kind.handler.is_transactional()); // a flight begins anew (FLIGHT-4)
    }
    if let Some(alone) = state.alone.as_mut().filter(|alone| alone.fence == fence) {
        alone.until = shared.scheduler.now() + ALONE;
        _ = shared.causes.insert(Cause::NotAlone, (), ALONE);
    }
    drop(state);
    _ = shared.causes.insert(Cause::Limit(fence), (), limit);
    Some(limit)
}

/// Writes down that handlers are about to be called (ATTEMPT-1). Returns the jobs whose handlers are.
fn write_starts(shared: &Shared, mut jobs: Vec<Job>) -> Vec<Job> {
    let lose = |job: &Job| {
        count(&shared.counters.lost, 1);
        shared.forget(&mut shared.state(), job.timer.fence);
    };
    let part = Part::Handlers(Purpose::Worker);
    while !jobs.is_empty() && shared.await_turn(part) && !shared.is_stopping() {
        let (current, late): (Vec<_>, _) =
            jobs.into_iter().partition(|job| job.tenure.is_current());
        jobs = current;
        late.iter().for_each(|job| give_back_uncounted(shared, job));
        if jobs.is_empty() {
            return jobs;
        }
        let starts: Vec<_> = jobs.iter().map(|job| (job.timer.run(), job.timer.attempts)).collect();
        let start = |connection: &mut dyn Connection| connection.start_all(&starts);
        match shared.timers.lend(Purpose::Worker, start) {
            Ok(started) => {
                shared.has_worked(part);
                jobs.retain(|job| {
                    let fence = job.timer.fence;
                    let is_started = started.changed.contains(&fence);
                    if started.busy.contains(&fence) {
                        // Somebody is about to change it. It is claimed again after that, and this thread is free for others.
                        give_back(shared, job);
                    } else if !is_started {
                        lose(job);
                    }
                    is_started
                });
                return jobs;
            }
            Err(Error::Busy) => break,
            Err(error) if error.is_of_the_connection() => shared.has_failed(part, &error),
            // A trigger of the user's may be against one of them.
            Err(_) if jobs.len() > 1 => {
                return jobs.into_iter().flat_map(|job| write_starts(shared, vec![job])).collect();
            }
            // Its lease is left to end, as that of an outcome which is refused.
            Err(error) => {
                shared.report(&error);
                jobs.iter().for_each(lose);
                return Vec::new();
            }
        }
    }
    jobs.iter().for_each(|job| give_back_uncounted(shared, job));
    Vec::new()
}

/// A start that was written and did not happen does not count. If that cannot be written, it does.
fn uncount(timers: &Arc<Opened>, timer: &Timer) {
    let uncounted = [(timer.run(), timer.attempts.saturating_sub(1))];
    _ = timers.lend(Purpose::Worker, |connection| connection.start_all(&uncounted));
}

/// The same for a thread that must not wait for the database. Another one does, and a stop waits for that.
pub(super) fn uncount_beside(shared: &Arc<Shared>, timer: &Arc<Timer>) {
    let timer = Arc::clone(timer);
    _ = shared.spawn("uncount", move |shared| uncount(&shared.timers, &timer));
}

/// Gives back a job whose start was written, or may have been by a connection that was lost, and did not happen. An outcome sets the number
/// back, and a suspected run has none.
fn give_back_uncounted(shared: &Shared, job: &Job) {
    if job.tenure.is_suspected {
        uncount(&shared.timers, &job.timer);
    }
    give_back(shared, job);
}

/// Gives back a job that is not started. A suspected one is forgotten, so the next worker suspects it too (ATTEMPT-4).
fn give_back(shared: &Shared, job: &Job) {
    if job.tenure.is_suspected {
        shared.leave_suspected(&mut shared.state(), job.kind, job.timer.fence);
    } else {
        settle(shared, job, Then::Release);
    }
}

/// Settles a run that has not started (LEASE-2).
fn settle(shared: &Shared, job: &Job, then: Then) {
    let mut state = shared.state();
    if let Some(held) = state.runs.get_mut(&job.timer.fence) {
        held.stage = Stage::Settled;
        let finish = shared.finish(held, then);
        shared.settle(&mut state, finish);
    }
}

/// What became of a handler.
pub(super) enum Ended {
    /// It has returned, and this is to be written.
    Returned(HandlerResult),
    /// What it has done is committed, and the timer is what this says.
    Committed(Then),
    /// It was not called, because the timer is another's.
    Lost,
    /// It was not called, because the database could not be reached, or the time limit was over before.
    NotCalled,
}

fn run(shared: &Arc<Shared>, job: &Job, limit: Duration) {
    let kind = &shared.kinds[job.kind];
    let started = if kind.handler.is_transactional() {
        shared.scheduler.now() // it is called later (ATTEMPT-7)
    } else {
        shared.has_started(&job.timer, &job.tenure)
    };
    let max_attempts = shared.max_attempts(job.kind, &job.timer);
    let run = Run::new(&job.timer, &job.tenure, max_attempts, Arc::clone(shared) as _);
    let ended = sight::span(&job.timer, shared.settings.continues.as_deref()).enter(|| {
        if kind.handler.is_transactional() {
            transact(shared, job, limit, run)
        } else {
            Ended::Returned(kind.handler.call(&run))
        }
    });
    if let Some((_, took)) = job.tenure.began() {
        sight::ran(&job.timer, took);
    }
    // With the wait for the transaction, because that takes a thread too.
    let took = shared.scheduler.now().saturating_duration_since(started);
    end(shared, job, ended, took);
}

/// Runs a handler in a transaction.
fn transact(shared: &Shared, job: &Job, limit: Duration, run: Run<'_>) -> Ended {
    let then = match shared.after_success(&job.timer) {
        Ok(then) => then,
        Err(failure) => return Ended::Returned(Err(failure)),
    };
    let record = shared.record(job.kind, &job.timer, &job.tenure, &then);
    let kind = &shared.kinds[job.kind];
    let (handler, has_limits) = (&kind.handler, kind.has_limits());
    let finish = Finish { has_limits, ..Finish::new(job.timer.run(), job.timer.attempts, then) };
    let start = shared.writes_start(job).then_some(job.timer.attempts);
    let part = Part::Handlers(handler.purpose());
    let mut work = Work { run, start, handler, result: None, record };
    let is_over = || shared.is_stopping() || !job.tenure.is_current();
    let mut has_tried = false;
    let transacted = loop {
        if !shared.await_turn_unless(part, is_over) || !job.tenure.is_current() {
            return if has_tried { has_no_transaction(shared, job) } else { Ended::NotCalled };
        }
        has_tried = true;
        let transacted = shared
            .timers
            .lend(handler.purpose(), |connection| connection.transact(&finish, limit, &mut work));
        match transacted {
            // A connection that was lost while nobody used it is no failure of the handler.
            Err(error)
                if work.result.is_none()
                    && (error.is_of_the_connection() || matches!(error, Error::Busy)) =>
            {
                shared.has_failed(part, &error);
            }
            other => break other,
        }
    };
    match &transacted {
        Ok(_) => shared.has_worked(part),
        Err(error) if error.is_of_the_connection() => shared.has_failed(part, error),
        Err(error) => shared.report(error),
    }
    match transacted {
        Ok(Transacted::Committed) => {
            if !shared.is_told() {
                // The handler may have scheduled others in its transaction.
                shared.timers.each_worker(Shared::look_now);
            }
            Ended::Committed(finish.then)
        }
        Ok(Transacted::Lost) => Ended::Lost,
        // ATTEMPT-7, and the database may refuse what has waited for so long.
        Ok(Transacted::Undone) | Err(_) if work.result.is_none() && !job.tenure.is_current() => {
            has_no_transaction(shared, job)
        }
        Ok(Transacted::Undone) => {
            let none = || Err(Failure::new("the handler was not called"));
            Ended::Returned(work.result.unwrap_or_else(none))
        }
        // If it was committed after all, the timer is not running any more, and this failure changes nothing (STORE-3).
        Err(error) => {
            shared.look_now(); // in case it was a series
            Ended::Returned(Err(error.into()))
        }
    }
}

/// Ends a run whose start may have been written, and whose handler was not called. What is given back sets the number back itself, and one
/// that is suspected is not given back (ATTEMPT-4). If the dispatcher has forgotten it before, the start may have been written after that.
fn has_no_transaction(shared: &Shared, job: &Job) -> Ended {
    if job.tenure.is_suspected {
        uncount(&shared.timers, &job.timer);
    }
    Ended::NotCalled
}

/// What a handler has returned does not count if its time was over, also if the dispatcher does not know that yet, or if it has
/// stopped because it was told that its run is not current.
fn heed(job: &Job, is_late: bool, result: HandlerResult) -> HandlerResult {
    if is_late {
        Err(Failure::new(TIME_LIMIT))
    } else if result.is_ok() && job.tenure.has_heard() {
        Err(Failure::new("it was told that its run was not current any more"))
    } else {
        result
    }
}

/// Settles a run whose handler has returned, unless its time was over before (LEASE-2).
pub(super) fn end(shared: &Shared, job: &Job, ended: Ended, took: Duration) {
    let fence = job.timer.fence;
    let was_ok = matches!(ended, Ended::Returned(Ok(())));
    // Read once: what is in time now stays so, however long the rule takes that is asked below.
    let is_late = job.tenure.is_late();
    let called = job.tenure.began();
    let ended = match ended {
        Ended::Returned(result) => Ended::Returned(heed(job, is_late, result)),
        other => other,
    };
    // A rule is the user's, so it is asked while nothing is locked.
    let then = match &ended {
        Ended::Returned(Ok(())) => match shared.after_success(&job.timer) {
            Ok(then) => then,
            // The work is done, so it is not tried again because the rule has failed.
            Err(failure) => Then::Dead(failure.reason().to_owned()),
        },
        Ended::Returned(Err(failure)) => shared.after_failure(job.kind, &job.timer, failure),
        Ended::Committed(then) => then.clone(),
        Ended::Lost | Ended::NotCalled => Then::Release,
    };
    shared.causes.remove(&Cause::Limit(fence));
    let mut state = shared.state();
    if !matches!(ended, Ended::Lost | Ended::NotCalled) {
        let line = &mut state.lines[job.kind];
        line.average = Some(line.average.map_or(took, |average| (average * 7 + took) / 8));
    }
    let is_settled_here = !matches!(ended, Ended::Committed(_) | Ended::Lost);
    let held = state.runs.get_mut(&fence).filter(|held| held.stage == Stage::Started);
    let is_mine = held.is_some();
    if let Some(held) = held.filter(|_| is_settled_here) {
        // Before the lock is free, or a time limit that ends just then would settle it too, and count it as stuck for ever.
        held.stage = Stage::Settled;
        drop(state);
        if matches!(ended, Ended::NotCalled) {
            give_back(shared, job);
            if is_late {
                shared.tell_of_no_call(job.kind, &job.timer, &job.tenure);
            }
            return;
        }
        // A handler that stops because its timer is gone has not failed, and nothing will be written of it.
        if !was_ok || !job.tenure.is_over() {
            shared.tell_of_failure(&job.timer, &then);
        }
        settle(shared, job, then);
        if is_late {
            sight::timed_out(&job.timer);
            sight::has_come_back(&job.timer);
            count(&shared.counters.timed_out, 1);
            shared.tell_of_time_limit(job.kind, &job.timer, None);
        }
        return;
    }
    if is_mine {
        shared.forget(&mut state, fence);
    } else {
        if matches!(ended, Ended::Committed(_)) {
            shared.remove(&mut state, fence); // the other outcome is void, and that is no loss
        }
        shared.has_outcomes.notify_one(); // its transaction, if it had one, holds the timer no more
        let line = &mut state.lines[job.kind];
        line.stuck -= 1;
        // There may be a thread too many, or the kind is served again.
        shared.has_jobs[job.kind].notify_all();
        _ = shared.causes.insert(Cause::Room, (), Duration::ZERO);
    }
    drop(state);
    match ended {
        Ended::Committed(then) => {
            count(&shared.counters.done, 1); // it was in time for the database
            expect_next(shared, job.kind, job.tenure.woke(), &then);
        }
        Ended::Lost if is_mine => count(&shared.counters.lost, 1),
        _ => {}
    }
    if let Some((_, took)) = called.filter(|_| !is_mine) {
        sight::has_come_back(&job.timer);
        let late = took.saturating_sub(shared.time_limit_of(job.kind, &job.timer));
        if late >= HUNG {
            shared.tell_of_time_limit(job.kind, &job.timer, Some(late));
        }
    }
}

/// This worker knows when the timer wakes next, before a look does, and nobody else is told (TURN-2).
fn expect_next(shared: &Shared, kind: usize, woke: SystemTime, then: &Then) {
    let (next, retry) = match then {
        Then::Next(next) => (Some(*next), None),
        Then::Retry(gap, _) | Then::Snooze(gap) => (None, Some(*gap)),
        Then::Split { next, retry, .. } => (Some(*next), *retry),
        Then::Release => (Some(woke), None), // it waits where it was, perhaps before what has been looked at
        Then::Done | Then::Dead(_) => (None, None),
    };
    let now = shared.clock().latest_time(shared.scheduler.now());
    let retry = retry.map(|gap| now.checked_add(gap).unwrap_or(SystemTime::UNIX_EPOCH));
    next.into_iter().chain(retry).for_each(|time| shared.expect_alone(kind, time));
}

/// Writes outcomes, all that have gathered at once.
fn finisher(shared: &Arc<Shared>) {
    let mut finisher = Finisher::new(shared);
    loop {
        let mut state = shared.state();
        while state.outcomes.is_empty() {
            let holds = std::mem::take(&mut state.to_let_go);
            if !holds.is_empty() {
                drop(state);
                finisher.let_go(holds);
                state = shared.state();
                continue;
            }
            if state.is_stopping() && !state.is_dispatching && state.runs.is_empty() {
                return;
            }
            let is_late = !finisher.later.is_empty();
            let waited = shared.has_outcomes.wait_timeout(state, if is_late { BUSY } else { LONG });
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_late {
                break;
            }
        }
        let outcomes = std::mem::take(&mut state.outcomes);
        drop(state);
        finisher.turn(outcomes);
    }
}

/// A handler that returns so long after its time limit has hung, which is told. What returns before, such as a future that is dropped,
/// is no news.
const HUNG: Duration = Duration::from_millis(100);

/// For how long a group is held of which a run was given back (LIMIT-1): workers that have passed over a later timer of the group look
/// at all of it once a second (GROUP-4), and others ask their file once a second.
pub(super) const GIVEN_BACK: Duration = Duration::from_millis(2500);

/// When a timer is tried again that another transaction holds.
const BUSY: Duration = Duration::from_millis(100);

/// The timeout of a wait that a notification ends.
const LONG: Duration = Duration::from_secs(3600);

/// If the database refuses an outcome, it is written again, up to this many times. After that the lease runs out.
const MOST_REFUSALS: u32 = 5;

pub(super) struct Finisher<'a> {
    shared: &'a Shared,
    /// Outcomes of timers that other transactions hold.
    later: Vec<Finish>,
    /// The database has refused to let holds go, which was said.
    cannot_let_go: bool,
}

impl<'a> Finisher<'a> {
    pub(super) fn new(shared: &'a Shared) -> Finisher<'a> {
        Finisher { shared, later: Vec::new(), cannot_let_go: false }
    }

    /// Writes outcomes, with those that were left for later, and lets go what their runs have held.
    pub(super) fn turn(&mut self, outcomes: Vec<Finish>) {
        // By themselves: an error that has held them up does not come again beside others that are committed.
        for outcomes in [std::mem::take(&mut self.later), outcomes] {
            if !outcomes.is_empty() {
                self.write(outcomes, false);
            }
        }
        let holds = std::mem::take(&mut self.shared.state().to_let_go);
        self.let_go(holds);
    }

    /// Writes outcomes. If the database cannot be reached, it waits, and the dispatcher extends the leases, if it can. If
    /// the database refuses them together, because a constraint or a trigger of the user's is against one of them, each is
    /// written by itself. If they were sent before, and the connection was lost, they may be written already.
    fn write(&mut self, outcomes: Vec<Finish>, mut was_sent: bool) {
        let mut refusals = 0;
        loop {
            self.shared.await_turn_unless(Part::Finisher, || false);
            match self.try_write(&outcomes, &mut was_sent) {
                Ok(finished) => {
                    self.shared.has_worked(Part::Finisher);
                    return self.are_written(outcomes, &finished, was_sent);
                }
                Err(error) if error.is_of_the_connection() || matches!(error, Error::Busy) => {
                    self.shared.has_failed(Part::Finisher, &error);
                }
                Err(_) if outcomes.len() > 1 => {
                    outcomes.into_iter().for_each(|outcome| self.write(vec![outcome], was_sent));
                    return;
                }
                Err(error) => {
                    self.shared.has_worked(Part::Finisher); // it was reached, and has answered
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

    /// Lets go what runs have held that are gone (LIMIT-1). If the database cannot be reached, it tries again, but for a worker that
    /// stops. If the database refuses, outcomes do not wait for that. The holds end with their leases then.
    fn let_go(&mut self, holds: Vec<Hold>) {
        if holds.is_empty() {
            return;
        }
        let shared = self.shared;
        let fences_of = |holds: &[Hold]| holds.iter().map(|hold| hold.fence).collect::<Vec<_>>();
        let (given_back, holds): (Vec<_>, Vec<_>) =
            holds.into_iter().partition(|hold| hold.is_given_back);
        let (given_back, fences) = (fences_of(&given_back), fences_of(&holds));
        loop {
            let done = shared.timers.lend(Purpose::Worker, |connection| {
                if !given_back.is_empty() {
                    connection.hold(&given_back, GIVEN_BACK)?;
                }
                if fences.is_empty() { Ok(()) } else { connection.let_go(&fences) }
            });
            match done {
                Ok(()) => break,
                Err(error) if error.is_of_the_connection() || matches!(error, Error::Busy) => {
                    shared.has_failed(Part::Finisher, &error);
                    if !shared.await_turn(Part::Finisher) {
                        return;
                    }
                }
                Err(error) => {
                    shared.has_worked(Part::Finisher); // it was reached, and has answered
                    // Once, and not for each batch.
                    if !std::mem::replace(&mut self.cannot_let_go, true) {
                        shared.report(&error);
                    }
                    return;
                }
            }
        }
        self.cannot_let_go = false;
        shared.has_worked(Part::Finisher);
        shared.state().freed.extend(holds.into_iter().map(|hold| (hold.kind, hold.group)));
        _ = shared.causes.insert(Cause::Freed, (), Duration::ZERO);
    }

    /// Sets `was_sent` if the connection is lost after it has sent the outcomes.
    fn try_write(&self, outcomes: &[Finish], was_sent: &mut bool) -> Result<Changed> {
        self.shared.timers.lend(Purpose::Worker, |connection| {
            let finished = connection.finish(outcomes);
            *was_sent |= finished.as_ref().is_err_and(Error::is_of_the_connection);
            finished
        })
    }

    /// Forgets runs of which the outcome was written, or that were another's. If the outcomes were sent before, an outcome
    /// may have been written then, and not now.
    fn are_written(&mut self, outcomes: Vec<Finish>, finished: &Changed, was_sent: bool) {
        let written: HashSet<i64> = finished.changed.iter().copied().collect();
        let shared = self.shared;
        let is_given_back = outcomes.iter().any(|outcome| outcome.then == Then::Release);
        for outcome in outcomes {
            let fence = outcome.run.fence;
            if finished.busy.contains(&fence) {
                let mut state = shared.state();
                state.runs.get_mut(&fence).into_iter().for_each(|held| held.stage = Stage::Blocked);
                self.later.push(outcome);
                continue;
            }
            let mut state = shared.state();
            let held = shared.remove(&mut state, fence);
            if outcome.then == Then::Release {
                // The hold of this run is the last one, if it has any.
                let last = state.to_let_go.last_mut().filter(|hold| hold.fence == fence);
                last.into_iter().for_each(|hold| hold.is_given_back = hold.group.is_some());
            }
            drop(state);
            // A handler that has asked for its completion has ended its timer itself.
            let is_complete = held.as_ref().is_some_and(|held| held.tenure.has_completion())
                && matches!(outcome.then, Then::Done | Then::Next(_));
            if written.contains(&fence) || was_sent || is_complete {
                match outcome.then {
                    // It was left out (ATTEMPT-6).
                    Then::Done | Then::Next(_) if outcome.attempts == 0 => {
                        count(&shared.counters.skipped, 1);
                        held.iter().for_each(|held| sight::skipped(&held.timer));
                    }
                    Then::Done | Then::Next(_) => count(&shared.counters.done, 1),
                    Then::Release => count(&shared.counters.released, 1),
                    _ if outcome.then.is_snooze() => {
                        count(&shared.counters.snoozed, 1);
                        held.iter().for_each(|held| sight::snoozed(&held.timer));
                    }
                    _ => {}
                }
                if let Some(held) = held {
                    shared.tell_of_death(&held.timer, &outcome.then);
                    // The handler may have written an earlier time than the one that follows its return.
                    let next = held.tenure.next().filter(|_| !written.contains(&fence));
                    let then = next.map_or(outcome.then, Then::Next);
                    expect_next(shared, held.kind, held.tenure.woke(), &then);
                }
            } else if held.is_some() {
                count(&shared.counters.lost, 1);
            }
        }
        if is_given_back && !shared.is_told() {
            // Other workers of this process. Those of other processes ask.
            shared.timers.each_worker(Shared::look_now);
        }
        _ = shared.causes.insert(Cause::Room, (), Duration::ZERO);
    }
}
