//! What follows an attempt, as the settings of its kind and its timer say.

use std::time::{Duration, SystemTime};

use super::shared::{FEW, Held, Job, Kind, QUICK, Shared, count};
use crate::clock::{LATEST, from_micros, micros};
use crate::error::Error;
use crate::failure::{Failure, Follow, Retry};
use crate::handler::{Completes, Tenure};
use crate::history::{Attempt, Outcome};
use crate::panics::{caught, quietly};
use crate::rules;
use crate::sight;
use crate::store::{Finish, Then};
use crate::timer::{LONGEST_KEY, Repetition, State, Timer};

impl Completes for Shared {
    fn begins(&self, timer: &Timer, tenure: &Tenure) -> bool {
        let kind = self.kind_named(&timer.kind);
        kind.and_then(|kind| self.has_started_late(kind, timer, tenure)).is_some()
    }

    fn completion(&self, timer: &Timer, tenure: &Tenure) -> Result<String, Failure> {
        let kind = self.kind_named(&timer.kind);
        let of = kind.map(|kind| &self.kinds[kind]);
        if of.is_some_and(|of| of.handler.is_transactional()) {
            return Err(Failure::for_good(
                "the transaction of this handler ends the timer already: return `Ok`, and leave `completion` to `handle`",
            ));
        }
        let then = self.after_success(timer)?;
        let next = if let Then::Next(next) = then { Some(next) } else { None };
        let record = kind.and_then(|kind| self.record(kind, timer, tenure, &then));
        let has_limits = of.is_some_and(Kind::has_limits);
        let finish =
            Finish { record, has_limits, ..Finish::new(timer.run(), timer.attempts, then) };
        let none = || Failure::for_good("this store has no statement that completes a run");
        let statement = self.timers.store().completion(&finish).ok_or_else(none)?;
        tenure.completes(next);
        Ok(statement)
    }
}

impl Shared {
    /// What is to be written of a run.
    pub(super) fn finish(&self, held: &Held, then: Then) -> Finish {
        let timer = &held.timer;
        let uncounted = u32::from(!then.counts());
        let record = self.record(held.kind, timer, &held.tenure, &then);
        let woke = Some(held.tenure.woke()).filter(|woke| *woke > timer.due);
        Finish { record, woke, ..Finish::new(timer.run(), timer.attempts - uncounted, then) }
    }

    /// The row of an attempt, if its kind has a history.
    pub(super) fn record(
        &self,
        kind: usize,
        timer: &Timer,
        tenure: &Tenure,
        then: &Then,
    ) -> Option<Box<Attempt>> {
        self.history_of(kind)?;
        self.attempt(timer, tenure, then).map(Box::new)
    }

    /// What an attempt has come to. Of one that was never called, because the lease of the last one has ended, it tells of now.
    /// `None`: it was no attempt.
    pub(super) fn attempt(&self, timer: &Timer, tenure: &Tenure, then: &Then) -> Option<Attempt> {
        if timer.attempts == 0 {
            return None; // a run that was skipped (ATTEMPT-6)
        }
        let (outcome, error) = Outcome::before(then)?;
        let (started, took) = tenure
            .began()
            .unwrap_or_else(|| (self.clock().time(self.scheduler.now()), Duration::ZERO));
        let key = match then {
            Then::Split { key, .. } => key, // HISTORY-3
            _ => &timer.key,
        };
        let new = Attempt::new(&*timer.kind, &**key, started, timer.fence, outcome);
        Some(Attempt {
            due: timer.due,
            late: started.duration_since(tenure.woke()).unwrap_or_default(),
            took,
            attempt: timer.attempts,
            worker: self.name.clone(),
            trace: timer.trace.clone(),
            shard: timer.shard,
            ..new.error(error)
        })
    }

    /// For how long attempts of a kind are kept. `None`: it has no history.
    pub(super) fn history_of(&self, kind: usize) -> Option<Duration> {
        self.kinds[kind].history.or(self.settings.history).filter(|keep| !keep.is_zero())
    }

    /// For how long dead timers of a kind are kept. `None`: for ever.
    pub(super) fn keeps_dead(&self, kind: usize) -> Option<Duration> {
        self.kinds[kind].keep_dead.or(self.settings.keep_dead)
    }

    pub(super) fn retry_of(&self, kind: usize) -> &Retry {
        self.kinds[kind].retry.as_ref().unwrap_or(&self.settings.retry)
    }

    /// How long a run of a timer may take.
    pub(super) fn time_limit_of(&self, kind: usize, timer: &Timer) -> Duration {
        timer.time_limit.or(self.kinds[kind].time_limit).unwrap_or(self.settings.time_limit)
    }

    /// How often a timer of a kind is tried.
    pub(super) fn max_attempts(&self, kind: usize, timer: &Timer) -> u32 {
        timer.max_attempts.unwrap_or(self.retry_of(kind).max_attempts())
    }

    /// Returns true if the start of a job's handler is to be written down before it (ATTEMPT-1).
    pub(super) fn writes_start(&self, job: &Job) -> bool {
        let average = self.state().lines[job.kind].average;
        let before = job.timer.attempts.saturating_sub(1);
        job.tenure.is_suspected
            || self.max_attempts(job.kind, &job.timer).saturating_sub(before) <= FEW
            || average.is_none_or(|average| average >= QUICK)
    }

    /// What follows a failed attempt, or one that is put off. A run of a series that is dead, or that would be tried again when the
    /// next run is due already, leaves its series, so that the series goes on.
    pub(super) fn after_failure(&self, kind: usize, timer: &Timer, failure: &Failure) -> Then {
        let is_last = timer.attempts >= self.max_attempts(kind, timer);
        let retry = match failure.follow {
            Follow::Snooze(delay) => return self.after_end(timer, Some(delay), None),
            Follow::Never => None,
            _ if is_last || self.gives_up(kind, failure) => None,
            Follow::After(gap) => Some(gap),
            Follow::Policy => Some(self.retry_of(kind).gap(timer.attempts)),
        };
        self.after_end(timer, retry, Some(failure.reason()))
    }

    /// Returns true if no further attempt is to follow this failure. That is for the user to say, so nothing is locked (LEASE-4).
    fn gives_up(&self, kind: usize, failure: &Failure) -> bool {
        let gives_up = self.kinds[kind].give_up_if.as_ref().or(self.settings.give_up_if.as_ref());
        gives_up.is_some_and(|gives_up| caught(|| Ok(gives_up(failure))).unwrap_or(false))
    }

    /// What becomes of a claimed timer whose handler is not called, because the lease of its last attempt has ended (ATTEMPT-5), or
    /// because the rule of its series leaves out a run that is so late (ATTEMPT-6). `None`: the handler is called. A run whose
    /// handler may have been called before is not left out.
    pub(super) fn instead(
        &self,
        kind: usize,
        timer: &Timer,
        woke: SystemTime,
        was_running: bool,
    ) -> Option<Then> {
        if was_running {
            let is_over = timer.attempts >= self.max_attempts(kind, timer);
            return is_over.then(|| self.after_last_lease(timer));
        }
        let is_first = timer.attempts == 0 && woke <= timer.due; // it was not put off either
        let now = || self.clock().time(self.scheduler.now());
        let is_skipped = is_first && rules::is_skipped(timer.repetition.as_ref(), timer.due, now);
        is_skipped.then(|| self.after_success(timer).ok()).flatten()
    }

    /// What follows the end of the lease of the last attempt (ATTEMPT-5).
    fn after_last_lease(&self, timer: &Timer) -> Then {
        self.after_end(timer, None, Some(timer.error.as_deref().unwrap_or("its lease ended")))
    }

    /// Without a reason, and with a gap, the run is put off.
    fn after_end(&self, timer: &Timer, retry: Option<Duration>, reason: Option<&str>) -> Then {
        let error = reason.map(str::to_owned);
        let again = retry.map(|gap| {
            let now = self.clock().latest_time(self.scheduler.now());
            now.checked_add(gap).unwrap_or_else(|| from_micros(LATEST))
        });
        match (self.after_success(timer), retry) {
            (Ok(Then::Next(next)), _) if again.is_none_or(|again| again >= next) => {
                Then::Split { next, key: key_of_run(timer), retry, error }
            }
            (_, Some(gap)) => error.map_or(Then::Snooze(gap), |error| Then::Retry(gap, error)),
            (_, None) => Then::Dead(error.unwrap_or_default()),
        }
    }

    /// Tells that a handler has exceeded its time limit, or, after that, by how much, with nothing locked (LEASE-4).
    pub(super) fn tell_of_time_limit(&self, kind: usize, timer: &Timer, late: Option<Duration>) {
        let (of, key) = (timer.kind.clone(), timer.key.clone());
        let limit = self.time_limit_of(kind, timer);
        self.tell(&Error::TimeLimit { kind: of, key, limit, late });
    }

    /// Tells that a handler was not called within its time limit, with nothing locked (LEASE-4). An outage is told of by itself,
    /// and a run that has waited in one may find its end just as its own time ends.
    pub(super) fn tell_of_no_call(&self, kind: usize, timer: &Timer, tenure: &Tenure) {
        if !self.was_out(tenure.age()) {
            let limit = self.time_limit_of(kind, timer);
            let (kind, key) = (timer.kind.clone(), timer.key.clone());
            self.tell(&Error::NotCalled { kind, key, limit });
        }
    }

    /// Counts a failure and tells of it, with nothing locked (LEASE-4). A death is told of once it is written.
    pub(super) fn tell_of_failure(&self, timer: &Timer, then: &Then) {
        let (reason, is_dead) = match then {
            Then::Retry(_, reason) => (reason, false),
            Then::Dead(reason) => (reason, true),
            Then::Split { retry, error: Some(error), .. } => (error, retry.is_none()),
            _ => return,
        };
        count(&self.counters.failed, 1);
        sight::failed(timer, reason, is_dead);
    }

    /// Counts a death that was written and tells of it, with nothing locked (LEASE-4).
    pub(super) fn tell_of_death(&self, timer: &Timer, then: &Then) {
        let (key, reason) = match then {
            Then::Dead(reason) => (None, reason),
            Then::Split { retry: None, key, error: Some(error), .. } => (Some(key), error),
            _ => return,
        };
        let mut dead = timer.clone();
        dead.state = State::Dead;
        (dead.owner, dead.wake, dead.error) = (None, None, Some(reason.clone()));
        if let Some(key) = key {
            (dead.key, dead.repetition) = (key.clone(), None);
        }
        count(&self.counters.dead, 1);
        sight::died(&dead, reason);
        if let Some(on_dead) = &self.settings.on_dead {
            quietly(|| on_dead(&dead, reason));
        }
    }

    /// What follows a successful attempt.
    pub(super) fn after_success(&self, timer: &Timer) -> Result<Then, Failure> {
        let now = self.clock().time(self.scheduler.now());
        match &timer.repetition {
            None => Ok(Then::Done),
            Some(Repetition::Every(period)) => Ok(Then::Next(next_of(timer.due, *period, now))),
            Some(Repetition::Rule(rule)) => {
                if let Some(next) = rules::next(rule, timer.due, now) {
                    return next.map(|next| next.map_or(Then::Done, Then::Next));
                }
                let Some(rules) = &self.settings.rules else {
                    // A handler in a transaction is not called: a further attempt would know the rule no better.
                    return Err(Failure::for_good(rules::nobody_knows(rule)));
                };
                let after = now.max(timer.due);
                match caught(|| rules(rule, after))? {
                    Some(next) if next <= after => Err(Failure::for_good(format!(
                        "the rule {rule:?} gives a time that has passed"
                    ))),
                    next => Ok(next.map_or(Then::Done, Then::Next)),
                }
            }
        }
    }
}

/// The key of the timer that a run of a series becomes: that of the series and the time, in milliseconds since 1970, at
/// which the run was due. Of a key that is too long for that, other series may have the beginning, so theirs has their number.
fn key_of_run(timer: &Timer) -> String {
    let mut end = format!("@{}", micros(timer.due) / 1000);
    let mut kept = timer.key.len();
    if kept + end.len() > LONGEST_KEY {
        end = format!("#{}{end}", timer.id);
        kept = LONGEST_KEY - end.len();
        while !timer.key.is_char_boundary(kept) {
            kept -= 1;
        }
    }
    timer.key[..kept].to_owned() + &end
}

/// The first time after `now` that is a whole number of periods after `due`, and one period at least.
fn next_of(due: SystemTime, period: Duration, now: SystemTime) -> SystemTime {
    let period = micros(SystemTime::UNIX_EPOCH + period.min(Duration::from_secs(1 << 37))).max(1);
    let missed = (micros(now) - micros(due)).max(0) / period;
    from_micros(micros(due).saturating_add(period.saturating_mul(missed + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_its_phase_and_skips_what_it_has_missed() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let minute = Duration::from_secs(60);
        assert_eq!(next_of(at(100), minute, at(100)), at(160));
        assert_eq!(next_of(at(100), minute, at(159)), at(160));
        assert_eq!(next_of(at(100), minute, at(160)), at(220));
        assert_eq!(next_of(at(100), minute, at(1000)), at(1060));
        assert_eq!(next_of(at(100), minute, at(5)), at(160));
        assert!(next_of(at(100), Duration::MAX, at(200)) > at(1 << 36));
    }
}
