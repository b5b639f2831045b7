//! How timers stand in the columns of SQLite and of PostgreSQL: what both have in common.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use crate::clock::LATEST;
use crate::error::Result;
use crate::rules;
use crate::timer::{NewTimer, Repetition, When};

/// Checks timers that are scheduled. A series whose rule is known is due first as that says, by the time of the database.
pub(crate) fn checked(
    timers: &[NewTimer],
    now: impl FnOnce() -> Result<SystemTime>,
) -> Result<Cow<'_, [NewTimer]>> {
    timers.iter().try_for_each(NewTimer::check)?;
    let is_known = |timer: &NewTimer| rules::knows(timer.repetition.as_ref());
    if !timers.iter().any(is_known) {
        return Ok(Cow::Borrowed(timers));
    }
    let now = now()?;
    let mut timers = timers.to_vec();
    for timer in timers.iter_mut().filter(|timer| is_known(timer)) {
        timer.when = When::At(timer.first_due(now)?);
    }
    Ok(Cow::Owned(timers))
}

/// A delay in microseconds, rounded up, and no longer than there are times.
pub(crate) fn delay_micros(delay: Duration) -> i64 {
    i64::try_from(delay.as_nanos().div_ceil(1000)).unwrap_or(LATEST).min(LATEST)
}

/// The same in milliseconds.
pub(crate) fn delay_millis(delay: Duration) -> i64 {
    delay_micros(delay).saturating_add(999) / 1000
}

/// Milliseconds that another program may have put in.
pub(crate) fn milliseconds(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// The columns `period_ms` and `rule`.
pub(crate) fn columns_of(repetition: Option<&Repetition>) -> (Option<i64>, Option<&str>) {
    match repetition {
        Some(Repetition::Every(period)) => (Some(delay_millis(*period)), None),
        Some(Repetition::Rule(rule)) => (None, Some(rule)),
        None => (None, None),
    }
}

/// If another program has put in both, the rule counts.
pub(crate) fn repetition_in(period: Option<i64>, rule: Option<String>) -> Option<Repetition> {
    let every = || period.map(|period| Repetition::Every(milliseconds(period)));
    rule.map(Repetition::Rule).or_else(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_rounded_up_and_kept_in_range() {
        assert_eq!(delay_micros(Duration::from_nanos(1)), 1);
        assert_eq!(delay_millis(Duration::from_nanos(1)), 1);
        assert_eq!(delay_millis(Duration::from_millis(5)), 5);
        assert_eq!(delay_micros(Duration::MAX), LATEST);
        assert_eq!(delay_millis(Duration::MAX), LATEST / 1000 + 1);
        assert_eq!(milliseconds(-1), Duration::ZERO);
    }
}
