//! What follows an attempt, as the settings of its kind and its timer say.

use std::time::{Duration, SystemTime};

use super::shared::{Shared, count};
use crate::durable::clock::{from_micros, micros};
use crate::durable::failure::{Failure, Follow, Retry};
use crate::durable::sight;
use crate::durable::store::Then;
use crate::durable::timer::{Repetition, Timer};
use crate::platform::panics::caught;

impl Shared {
    pub(super) fn retry_of(&self, kind: usize) -> &Retry {
        self.kinds[kind].retry.as_ref().unwrap_or(&self.settings.retry)
    }

    /// How often a timer of a kind is tried.
    pub(super) fn max_attempts(&self, kind: usize, timer: &Timer) -> u32 {
        timer.max_attempts.unwrap_or(self.retry_of(kind).max_attempts())
    }

    /// What follows a failed attempt.
    pub(super) fn after_failure(&self, kind: usize, timer: &Timer, failure: &Failure) -> Then {
        let is_last = timer.attempts >= self.max_attempts(kind, timer);
        let reason = failure.reason().to_owned();
        match failure.follow {
            Follow::Never => Then::Dead(reason),
            _ if is_last => Then::Dead(reason),
            Follow::After(gap) => Then::Retry(gap, reason),
            Follow::Policy => Then::Retry(self.retry_of(kind).gap(timer.attempts), reason),
        }
    }

    /// Counts a failure and tells of it, with nothing locked (LEASE-4).
    pub(super) fn tell_of_failure(&self, timer: &Timer, then: &Then) {
        let (reason, is_dead) = match then {
            Then::Retry(_, reason) => (reason, false),
            Then::Dead(reason) => (reason, true),
            _ => return,
        };
        count(&self.counters.failed, 1);
        count(&self.counters.dead, is_dead.into());
        sight::failed(timer, reason, is_dead);
    }

    /// What follows a successful attempt.
    pub(super) fn after_success(&self, timer: &Timer) -> Result<Then, Failure> {
        let now = self.clock().time(self.scheduler.now());
        match &timer.repetition {
            None => Ok(Then::Done),
            Some(Repetition::Every(period)) => Ok(Then::Next(next_of(timer.due, *period, now))),
            Some(Repetition::Rule(rule)) => {
                let Some(rules) = &self.settings.rules else {
                    let problem = format!("no `rules` are set for {rule:?}");
                    return Err(Failure::new(problem));
                };
                let after = now.max(timer.due);
                let next = caught(|| rules(rule, after));
                match next.unwrap_or_else(|panic| Err(Failure::of_panic(panic)))? {
                    Some(next) if next <= after => Err(Failure::for_good(format!(
                        "the rule {rule:?} gives a time that has passed"
                    ))),
                    next => Ok(next.map_or(Then::Done, Then::Next)),
                }
            }
        }
    }
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
