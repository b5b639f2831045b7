//! What has become of attempts: an [`Attempt`] for each start of a handler whose kind has a history, which ones to list
//! ([`HistoryFilter`]), and how many there were in a time ([`Pace`]).
//!
//! A worker makes the row of an attempt in memory, and gives it to the store with the outcome ([`Finish`](crate::Finish)), or with
//! the work of a handler in a transaction ([`Work::record`](crate::Work::record)). What the store writes is STORE-10. The keeper of
//! a worker (`worker/keeper.rs`) removes what is too old.
//!
//! - HISTORY-1 The fencing number is the attempt's, and so is the row: an attempt has one at most, and a second one with its kind, its
//!   start and its number is left out. So all may be repeated.
//! - HISTORY-2 What was claimed and given back was no attempt, and has no row. Nor has an attempt whose worker died: nobody knows
//!   how it ended. If it was the last one, the worker that writes the death of the timer writes the row.
//! - HISTORY-3 A run that leaves its series takes its attempts along: they are listed by the key under which it goes on.

use std::time::{Duration, SystemTime};

use crate::store::Then;

/// The longest text of an error in the history, in bytes. Of a longer one, the first are kept. The timer has it in full as long as it is there.
pub const LONGEST_ERROR: usize = 4000;

/// An attempt that has ended, as the history has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of the row in its store: the fencing number. A timer that was claimed later has a higher one.
    pub id: i64,
    /// The kind of the timer.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// When this run of it was due.
    pub due: SystemTime,
    /// When the handler was called, by the database's clock as the worker knew it.
    pub started: SystemTime,
    /// How long after the timer woke that was.
    pub late: Duration,
    /// How long the handler took, or until it had exceeded its time limit.
    pub took: Duration,
    /// The number of the attempt at this run, which counts from one.
    pub attempt: u32,
    /// The fencing number of the attempt.
    pub fence: i64,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it has failed: the first [`LONGEST_ERROR`] bytes.
    pub error: Option<String>,
    /// The worker.
    pub worker: String,
    /// The trace of the timer ([`NewTimer::trace`](crate::NewTimer::trace)).
    pub trace: Option<String>,
    /// Which of several stores it is on, as [`Timer::shard`](crate::Timer::shard).
    pub shard: usize,
}

impl Attempt {
    /// The attempt with this fencing number at a timer, which began at this time, with nothing but what each has: for writers of
    /// stores, who set the other fields.
    pub fn new(
        kind: impl Into<String>,
        key: impl Into<String>,
        started: SystemTime,
        fence: i64,
        outcome: Outcome,
    ) -> Attempt {
        Attempt {
            id: fence,
            kind: kind.into(),
            key: key.into(),
            due: started,
            started,
            late: Duration::ZERO,
            took: Duration::ZERO,
            attempt: 1,
            fence,
            outcome,
            error: None,
            worker: String::new(),
            trace: None,
            shard: 0,
        }
    }

    /// Sets the error, of which the history keeps the first [`LONGEST_ERROR`] bytes.
    #[must_use]
    pub fn error(mut self, error: Option<&str>) -> Attempt {
        self.error = error.map(|error| {
            let mut end = error.len().min(LONGEST_ERROR);
            while !error.is_char_boundary(end) {
                end -= 1;
            }
            error[..end].to_owned()
        });
        self
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Outcome {
    /// It has succeeded.
    Done,
    /// It has failed, and is tried again.
    Failed,
    /// It has failed, and its timer is dead.
    Dead,
    /// It was put off, and does not count.
    Snoozed,
}

impl Outcome {
    /// Returns the name that the tables have: `done`, `failed`, `dead` or `snoozed`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Dead => "dead",
            Outcome::Snoozed => "snoozed",
        }
    }

    /// Returns the outcome of a name.
    pub fn of(name: &str) -> Option<Outcome> {
        let all = [Outcome::Done, Outcome::Failed, Outcome::Dead, Outcome::Snoozed];
        all.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Returns what an attempt has come to that this follows, and why it has failed. `None`: it was no attempt (HISTORY-2).
    pub(crate) fn before(then: &Then) -> Option<(Outcome, Option<&str>)> {
        match then {
            Then::Done | Then::Next(_) => Some((Outcome::Done, None)),
            Then::Snooze(_) | Then::Split { retry: Some(_), error: None, .. } => {
                Some((Outcome::Snoozed, None))
            }
            Then::Retry(_, error) | Then::Split { retry: Some(_), error: Some(error), .. } => {
                Some((Outcome::Failed, Some(error)))
            }
            Then::Dead(error) => Some((Outcome::Dead, Some(error))),
            Then::Split { retry: None, error, .. } => Some((Outcome::Dead, error.as_deref())),
            Then::Release => None,
        }
    }
}

/// Which attempts to list. By default all, the last thousand.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use tickwheel_durable::{HistoryFilter, Outcome, Timers};
///
/// let timers = Timers::open("sqlite::memory:")?;
/// let failed = HistoryFilter::new().kind("mail").outcome(Outcome::Failed).limit(100);
/// let mut page = timers.history(&failed)?;
/// while let Some(last) = page.last() {
///     page = timers.history(&failed.clone().before(last))?;
/// }
/// # }
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryFilter {
    /// Only those of this kind.
    pub kind: Option<String>,
    /// Only those of timers with this key.
    pub key: Option<String>,
    /// Only those that have come to this.
    pub outcome: Option<Outcome>,
    /// Only those that began at this time or later.
    pub since: Option<SystemTime>,
    /// Only those behind this one, in the order of the list.
    pub before: Option<Attempt>,
    /// No more than so many.
    pub limit: u32,
}

impl Default for HistoryFilter {
    fn default() -> HistoryFilter {
        HistoryFilter::new()
    }
}

impl HistoryFilter {
    /// Lists all attempts, the last thousand.
    pub fn new() -> HistoryFilter {
        HistoryFilter {
            kind: None,
            key: None,
            outcome: None,
            since: None,
            before: None,
            limit: 1000,
        }
    }

    /// Lists only those of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> HistoryFilter {
        self.kind = Some(kind.into());
        self
    }

    /// Lists only those of timers with this key. With a kind they are those of one timer, and found by an index.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> HistoryFilter {
        self.key = Some(key.into());
        self
    }

    /// Lists only those that have come to this.
    #[must_use]
    pub fn outcome(mut self, outcome: Outcome) -> HistoryFilter {
        self.outcome = Some(outcome);
        self
    }

    /// Lists only those that began at this time or later.
    #[must_use]
    pub fn since(mut self, time: SystemTime) -> HistoryFilter {
        self.since = Some(time);
        self
    }

    /// Lists those that follow this one, which began before it: the next page, if it was the last of a page.
    #[must_use]
    pub fn before(mut self, attempt: &Attempt) -> HistoryFilter {
        let (error, trace) = (None, None);
        self.before = Some(Attempt { error, trace, ..attempt.clone() });
        self
    }

    /// Lists no more than so many. With 0 there are none.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> HistoryFilter {
        self.limit = limit;
        self
    }
}

/// What has become of the attempts of one kind that began within one step of time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// The kind.
    pub kind: String,
    /// The begin of the step: a whole number of steps after 1970.
    pub at: SystemTime,
    /// Those that have succeeded.
    pub done: u64,
    /// Those that have failed and were tried again.
    pub failed: u64,
    /// Those that were the last of their timers.
    pub dead: u64,
    /// Those that were put off.
    pub snoozed: u64,
    /// How late they began on average.
    pub late: Duration,
    /// How late the latest began.
    pub max_late: Duration,
}

impl Pace {
    /// A step without attempts: for writers of stores, who set the other fields.
    pub fn new(kind: impl Into<String>, at: SystemTime) -> Pace {
        let late = Duration::ZERO;
        Pace {
            kind: kind.into(),
            at,
            done: 0,
            failed: 0,
            dead: 0,
            snoozed: 0,
            late,
            max_late: late,
        }
    }

    /// Returns how many attempts began.
    pub(crate) fn count(&self) -> u64 {
        self.done + self.failed + self.dead + self.snoozed
    }

    /// Adds the attempts of another store.
    pub(crate) fn add(&mut self, other: &Pace) {
        let sum = |of: &Pace| of.late.as_micros() * u128::from(of.count());
        let mean = (sum(self) + sum(other)) / u128::from((self.count() + other.count()).max(1));
        self.late = Duration::from_micros(u64::try_from(mean).unwrap_or(u64::MAX));
        self.max_late = self.max_late.max(other.max_late);
        self.done += other.done;
        self.failed += other.failed;
        self.dead += other.dead;
        self.snoozed += other.snoozed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_two_characters() {
        let attempt = Attempt::new("mail", "1", SystemTime::UNIX_EPOCH, 7, Outcome::Failed);
        let long = "x".to_owned() + &"ä".repeat(LONGEST_ERROR);
        let error = attempt.clone().error(Some(&long)).error.expect("it has one");
        assert_eq!(error.len(), LONGEST_ERROR - 1);
        assert_eq!(attempt.error(Some("short")).error.as_deref(), Some("short"));
    }

    #[test]
    fn paces_of_two_stores_are_added() {
        let mut one = Pace::new("mail", SystemTime::UNIX_EPOCH);
        one.done = 1;
        (one.late, one.max_late) = (Duration::from_secs(4), Duration::from_secs(4));
        let mut other = Pace { done: 0, failed: 2, snoozed: 1, ..one.clone() };
        (other.late, other.max_late) = (Duration::ZERO, Duration::from_secs(9));
        one.add(&other);
        assert_eq!((one.count(), one.failed), (4, 2));
        assert_eq!((one.late, one.max_late), (Duration::from_secs(1), Duration::from_secs(9)));
    }
}
