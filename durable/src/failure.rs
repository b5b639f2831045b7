//! What a handler returns: [`Failure`], and how a failed timer is tried again: [`Retry`].

use std::any::TypeId;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::with_causes;

/// What a handler returns.
pub type HandlerResult = Result<(), Failure>;

/// Why a run has not succeeded, and what is to follow. Every type of error converts into one, so `?` works on it in a handler.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::{Failure, HandlerResult, Run};
///
/// fn send(run: &Run<'_>) -> HandlerResult {
///     let text = std::str::from_utf8(run.payload()).map_err(Failure::for_good)?; // it will not get better
///     let port: u16 = text.parse()?; // tried again, as the `Retry` of the handler says
///     if port == 0 {
///         return Err(Failure::new("no port yet").retry_after(Duration::from_secs(5)));
///     }
///     Ok(())
/// }
/// ```
///
/// These are no types of errors (they do not implement [`Error`](std::error::Error)), so `?` does not convert them: a text, an error in a
/// box, such as `Box<dyn Error + Send + Sync>`, and the errors of `anyhow` and `eyre`. Convert them with `map_err`. Such a failure has only
/// the text: [`is`](Failure::is) knows no type of it, and the function of [`give_up_if`](crate::WorkerBuilder::give_up_if) can look
/// at the [`reason`](Failure::reason) alone. To tell the errors in a box apart, ask the box for the type, and convert that:
///
/// ```
/// use std::error::Error;
/// use std::num::ParseIntError;
/// use tickwheel_durable::{Failure, HandlerResult, Run};
///
/// fn count(text: &[u8]) -> Result<u32, Box<dyn Error + Send + Sync>> {
///     Ok(std::str::from_utf8(text)?.parse()?)
/// }
/// fn handle(run: &Run<'_>) -> HandlerResult {
///     // For an error of `anyhow`, `format!("{error:#}")` has the causes too.
///     count(run.payload()).map_err(|error| Failure::new(error.to_string()))?;
///     Ok(())
/// }
/// fn convert(error: Box<dyn Error + Send + Sync>) -> Failure {
///     match error.downcast::<ParseIntError>() {
///         Ok(error) => Failure::from(*error),
///         Err(error) => Failure::new(error.to_string()),
///     }
/// }
/// assert!(convert(count(b"x").unwrap_err()).is::<ParseIntError>());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: String,
    pub(crate) follow: Follow,
    /// The type of the error that it was made of.
    of: Option<TypeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    Policy,
    After(Duration),
    Never,
    Snooze(Duration),
}

impl Failure {
    /// A failure with a reason, which is kept with the timer.
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), follow: Follow::Policy, of: None }
    }

    /// A failure that no further attempt would mend. The timer is dead at once.
    pub fn for_good(reason: impl fmt::Display) -> Failure {
        Failure { follow: Follow::Never, ..Failure::new(reason.to_string()) }
    }

    /// Puts the run off: the timer waits for `delay`, and is called again. That is no failure. The attempt does not count, whichever
    /// it was, and is in no number of failures; [`WorkerStats::snoozed`](crate::WorkerStats::snoozed) counts it. An error of an
    /// earlier attempt stays with the timer.
    ///
    /// What a handler has done in its transaction is undone, as for every `Err`. The timer's due time stays as it was, so
    /// [`lag`](crate::KindCounts::lag) counts from there. A run of a series is put off within the series, as long as the next run is
    /// not due. If it would be by then, the run becomes a [timer of its own](crate#attempts-and-deaths). Nothing ends a handler that
    /// snoozes for ever.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::{Failure, HandlerResult, Run};
    ///
    /// # fn is_open() -> bool { false }
    /// fn pay(run: &Run<'_>) -> HandlerResult {
    ///     if !is_open() {
    ///         return Err(Failure::snooze(Duration::from_secs(3600))); // the bank is closed
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn snooze(delay: Duration) -> Failure {
        Failure { follow: Follow::Snooze(delay), ..Failure::new("snoozed") }
    }

    /// Sets when to try again, if an attempt is left. With zero that is at once. A [`snooze`](Failure::snooze) stays one, with this
    /// delay in place of its own.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Failure {
        self.follow = match self.follow {
            Follow::Snooze(_) => Follow::Snooze(delay),
            _ => Follow::After(delay),
        };
        self
    }

    /// Returns the reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns true if it was made of an error of this type, by `?` or `Failure::from`. The causes of that error do not count.
    ///
    /// ```
    /// use std::num::ParseIntError;
    /// use tickwheel_durable::Failure;
    ///
    /// let failure = Failure::from("x".parse::<u8>().unwrap_err());
    /// assert!(failure.is::<ParseIntError>() && !failure.is::<std::io::Error>());
    /// ```
    pub fn is<E: std::error::Error + 'static>(&self) -> bool {
        self.of == Some(TypeId::of::<E>())
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { of: Some(TypeId::of::<E>()), ..Failure::new(with_causes(&error)) }
    }
}

/// How often a failed timer is tried again, and after which gaps.
///
/// By default there are 20 attempts in all. The gaps grow from one second, each twice the one before, to an hour, and
/// each is shortened at random by up to a fifth, so that timers that have failed together are not tried together. All
/// of them take about nine hours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    attempts: u32,
    first: Duration,
    factor: f64,
    longest: Duration,
    jitter: f64,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            attempts: 20,
            first: Duration::from_secs(1),
            factor: 2.0,
            longest: Duration::from_secs(3600),
            jitter: 0.2,
        }
    }
}

impl Retry {
    /// The default, with another number of attempts in all. One: a failed timer is dead at once. A worker with 0 does not start.
    #[must_use]
    pub fn attempts(attempts: u32) -> Retry {
        Retry { attempts, ..Retry::default() }
    }

    /// Sets the first gap and the longest, between which each gap is `factor` times the one before. A factor of less than 1 is
    /// 1. A gap of zero is tried again at once.
    #[must_use]
    pub fn gaps(self, first: Duration, factor: f64, longest: Duration) -> Retry {
        Retry { first, factor: factor.max(1.0), longest, ..self }
    }

    /// Sets by how much of itself a gap may be shortened: from 0 to 1. Anything below, and what is no number, is 0,
    /// and anything above is 1.
    #[must_use]
    pub fn jitter(self, share: f64) -> Retry {
        let jitter = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        Retry { jitter, ..self }
    }

    pub(crate) fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// The gap behind attempt `attempt`, which counts from one.
    pub(crate) fn gap(&self, attempt: u32) -> Duration {
        if self.first.is_zero() {
            return Duration::ZERO; // the factor's power may be infinite, and no number times zero
        }
        let power = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.powi(power);
        let longest = self.longest.as_secs_f64();
        let gap = if seconds.is_finite() { seconds.min(longest) } else { longest };
        // A new `RandomState` has other keys each time, which is random enough to spread a load.
        let random = RandomState::new().hash_one(attempt) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let random = random as f64 / (1_u64 << 53) as f64;
        Duration::try_from_secs_f64(gap * (1.0 - self.jitter * random)).unwrap_or(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_to_the_longest_and_are_shortened_by_a_fifth_at_most() {
        let retry = Retry::default();
        for (attempt, longest) in
            [(1, 1), (2, 2), (5, 16), (12, 2048), (13, 3600), (u32::MAX, 3600)]
        {
            let longest = Duration::from_secs(longest);
            for _ in 0..50 {
                let gap = retry.gap(attempt);
                assert!(gap <= longest && gap >= longest * 4 / 5, "{attempt}: {gap:?}");
            }
        }
        let even = retry.gaps(Duration::from_millis(5), 1.0, Duration::from_secs(9)).jitter(0.0);
        assert_eq!(
            (even.gap(1), even.gap(99)),
            (Duration::from_millis(5), Duration::from_millis(5))
        );
    }

    #[test]
    fn a_gap_of_zero_stays_one_however_many_attempts_there_were() {
        let hour = Duration::from_secs(3600);
        let at_once = Retry::attempts(u32::MAX).gaps(Duration::ZERO, 2.0, hour);
        assert_eq!([1, 2000, u32::MAX].map(|attempt| at_once.gap(attempt)), [Duration::ZERO; 3]);
        assert_eq!(at_once.gaps(Duration::ZERO, f64::INFINITY, hour).gap(2), Duration::ZERO);
    }

    #[test]
    fn a_snooze_stays_one_whatever_its_delay() {
        let (one, other) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(Failure::snooze(one).retry_after(other), Failure::snooze(other));
    }

    #[test]
    fn a_failure_tells_its_causes() {
        let failure: Failure = "x".parse::<u8>().unwrap_err().into();
        assert_eq!(failure.reason(), "invalid digit found in string");
    }
}
