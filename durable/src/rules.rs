//! The rules of series that workers know by themselves: those of `cron`, if that feature is on. Without it, nothing here does
//! anything, and all rules are the user's ([`WorkerBuilder::rules`](crate::WorkerBuilder::rules)).

use std::borrow::Cow;
use std::time::SystemTime;

#[cfg(feature = "cron")]
use crate::cron::Cron;
use crate::error::Result;
use crate::failure::Failure;
#[cfg(feature = "cron")]
use crate::panics::caught;
#[cfg(feature = "cron")]
use crate::timer::When;
use crate::timer::{NewTimer, Repetition};

/// The texts of cron rules begin so.
const PREFIX: &str = "cron:";

/// Says why a rule cannot be scheduled.
pub(crate) fn problem(rule: &str) -> Option<String> {
    #[cfg(feature = "cron")]
    if rule.starts_with(PREFIX) {
        return match rule.parse::<Cron>() {
            Ok(cron) if cron.next_after(SystemTime::now()).is_some() => None,
            Ok(_) => Some(format!("the time of {rule:?} never comes")),
            Err(error) => Some(error.to_string()),
        };
    }
    _ = rule;
    None
}

/// Returns when a series is due after its run that was due at `due`. `None`: the rule is the user's.
pub(crate) fn next(
    rule: &str,
    due: SystemTime,
    now: SystemTime,
) -> Option<std::result::Result<Option<SystemTime>, Failure>> {
    #[cfg(feature = "cron")]
    if rule.starts_with(PREFIX) {
        return Some(asked(rule, |cron| cron.next_due(due, now)));
    }
    _ = (rule, due, now);
    None
}

/// Returns true if the run that was due at `due` is so late that it is left out.
pub(crate) fn is_skipped(
    repetition: Option<&Repetition>,
    due: SystemTime,
    now: SystemTime,
) -> bool {
    #[cfg(feature = "cron")]
    if let Some(Repetition::Rule(rule)) = repetition.filter(|_| now > due) {
        return rule.starts_with(PREFIX) && asked(rule, |cron| cron.skips(due, now)) == Ok(true);
    }
    _ = (repetition, due, now);
    false
}

/// Says what is missing if no `rules` are set for a rule.
pub(crate) fn nobody_knows(rule: &str) -> String {
    if rule.starts_with(PREFIX) {
        return format!(
            "this worker does not know {rule:?}: build it with the feature `cron` of tickwheel-durable, and requeue the timer"
        );
    }
    format!("no `rules` are set for {rule:?}")
}

/// Checks timers that are scheduled. A series with a cron rule is due first at the first time of its rule, from its `when` on.
pub(crate) fn checked(
    timers: &[NewTimer],
    now: impl FnOnce() -> Result<SystemTime>,
) -> Result<Cow<'_, [NewTimer]>> {
    timers.iter().try_for_each(NewTimer::check)?;
    #[cfg(feature = "cron")]
    if timers.iter().any(|timer| cron_of(timer).is_some()) {
        let now = now()?;
        let first = |timer: &NewTimer| match cron_of(timer) {
            Some(_) => NewTimer { when: When::At(timer.first_due(now)), ..timer.clone() },
            None => timer.clone(),
        };
        return Ok(timers.iter().map(first).collect());
    }
    _ = now;
    Ok(Cow::Borrowed(timers))
}

/// Returns the first time of a timer's rule from `begin` on. `None`: it has none that is known here.
pub(crate) fn first(timer: &NewTimer, begin: SystemTime) -> Option<SystemTime> {
    #[cfg(feature = "cron")]
    return cron_of(timer)?.first_from(begin);
    #[cfg(not(feature = "cron"))]
    {
        _ = (timer, begin);
        None
    }
}

/// Asks a rule, which somebody may have put in by SQL. Whatever it is, the thread of the worker goes on.
#[cfg(feature = "cron")]
fn asked<T>(rule: &str, ask: impl FnOnce(&Cron) -> T) -> std::result::Result<T, Failure> {
    caught(|| {
        rule.parse().map_err(|error: crate::Error| Failure::for_good(error)).map(|cron| ask(&cron))
    })
}

#[cfg(feature = "cron")]
fn cron_of(timer: &NewTimer) -> Option<Cron> {
    let Some(Repetition::Rule(rule)) = &timer.repetition else { return None };
    Some(rule).filter(|rule| rule.starts_with(PREFIX))?.parse().ok()
}
