//! The rules of series that workers know by themselves: those of `cron`, if that feature is on. Without it, nothing here does
//! anything, and all rules are the user's ([`WorkerBuilder::rules`](crate::WorkerBuilder::rules)).

use std::time::SystemTime;

#[cfg(feature = "cron")]
use crate::cron::Cron;
use crate::failure::Failure;
#[cfg(feature = "cron")]
use crate::panics::caught;
use crate::timer::Repetition;

/// The texts of cron rules begin so.
const PREFIX: &str = "cron:";

/// Says why a rule cannot be scheduled.
pub(crate) fn problem(rule: &str) -> Option<String> {
    #[cfg(feature = "cron")]
    if rule.starts_with(PREFIX) {
        // Rules with years have an end. Whether it has passed is for the clock of the database to say, in `first`.
        return match asked(rule, |cron| cron.first_from(SystemTime::UNIX_EPOCH)) {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!("the time of {rule:?} never comes, up to the year 5000")),
            Err(failure) => Some(failure.reason().to_owned()),
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
) -> Option<Result<Option<SystemTime>, Failure>> {
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
    now: impl FnOnce() -> SystemTime,
) -> bool {
    #[cfg(feature = "cron")]
    if let Some(Repetition::Rule(rule)) = repetition.filter(|_| knows(repetition)) {
        return asked(rule, |cron| cron.skips(due, now())) == Ok(true);
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

/// Returns true if the times of a series are known here.
#[cfg(any(feature = "cron", feature = "sqlite", feature = "postgres"))]
pub(crate) fn knows(repetition: Option<&Repetition>) -> bool {
    cfg!(feature = "cron")
        && matches!(repetition, Some(Repetition::Rule(rule)) if rule.starts_with(PREFIX))
}

/// Returns the first time of a rule from `begin` on, or says why there is none. `None`: no times of a rule are known here.
pub(crate) fn first(
    repetition: Option<&Repetition>,
    begin: SystemTime,
) -> Option<Result<SystemTime, String>> {
    #[cfg(feature = "cron")]
    if let Some(Repetition::Rule(rule)) = repetition.filter(|_| knows(repetition)) {
        return Some(match asked(rule, |cron| cron.first_from(begin)) {
            Ok(Some(first)) => Ok(first),
            Ok(None) => Err(format!("from its `when` on, the time of {rule:?} never comes")),
            Err(failure) => Err(failure.reason().to_owned()),
        });
    }
    _ = (repetition, begin);
    None
}

/// Asks a rule, which somebody may have put in by SQL. Whatever it is, the thread of the worker goes on.
#[cfg(feature = "cron")]
fn asked<T>(rule: &str, ask: impl FnOnce(&Cron) -> T) -> Result<T, Failure> {
    caught(|| {
        rule.parse().map_err(|error: crate::Error| Failure::for_good(error)).map(|cron| ask(&cron))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_know_cron_says_what_is_missing() {
        let says = nobody_knows("cron: 0 9 * * *; zone=Europe/Berlin");
        assert!(says.contains("`cron`") && says.contains("0 9 * * *; zone"), "{says}");
        assert_eq!(nobody_knows("tides"), "no `rules` are set for \"tides\"");
    }
}
