//! Series by cron expressions, in time zones: [`Cron`].
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use tickwheel::Scheduler;
//! use tickwheel_durable::cron::{Cron, Missed};
//! use tickwheel_durable::{NewTimer, Timers};
//!
//! // The series of this service. Each has a kind, which names its handler, and a key.
//! let crontab = [
//!     ("report", "daily", Cron::parse("0 9 * * MON-FRI")?.in_zone("Europe/Berlin")?.missed(Missed::All)),
//!     ("report", "monthly", Cron::parse("30 6 L * *")?.in_zone("America/New_York")?),
//!     ("clean up", "sessions", Cron::parse("*/15 * * * *")?.missed(Missed::Skip)),
//! ];
//! let timers = Timers::open("sqlite::memory:")?;
//! let worker = timers
//!     .worker()
//!     .handle("report", |run| Ok(println!("{} of {:?}", run.key(), run.due())))
//!     .handle("clean up", |_| Ok(()))
//!     .start(Scheduler::global())?;
//! for (kind, key, cron) in &crontab {
//!     timers.keep_series(&NewTimer::cron(*kind, *key, cron))?; // at each start of the service
//! }
//! # assert_eq!(timers.list(&tickwheel_durable::Filter::new())?.len(), 3);
//! # drop(worker);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Timers::keep_series`] puts a series in that is not there, and replaces one that is other than the code says. One that is the same
//! stays as it is, with a run that waits, was missed, or is tried again. One that is replaced begins anew, with the next time of its new
//! rule: what it had missed is dropped, and a run that is in progress ends without an effect on the series. A pair of kind and key is
//! there once, so all processes of a service may do this, at the same time.
//!
//! # Expressions
//!
//! Five fields: minute, hour, day of the month, month, day of the week. A sixth one in front is the second, and a seventh one behind is
//! the year. A field is `*`, a number, a name (`JAN`, `MON`), a range (`9-17`), steps (`*/15`, `9-17/2`), or a list of these. Sunday is
//! 0 and 7. If both a day of the month and a day of the week are given, either makes a day fit; with `+` before the day of the
//! week (`0 9 13 * +FRI`) both must. `L` is the last day of the month, `15W` the weekday next to the 15th, `FRI#2` the second
//! Friday, `FRI#L` the last one. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` are known. [`croner`] reads them.
//!
//! An expression that cannot be read is refused by [`Cron::parse`]. One whose time never comes, such as `0 0 31 2 *`, or never
//! from [`NewTimer::when`] on, such as one of a year that is over, is refused when it is scheduled.
//!
//! # When clocks are set
//!
//! A rule is about what the clocks show in its zone. Where they are set forward, a part of an hour is left out, and where
//! they are set back, it is there twice. Expressions whose hour, minute and second have no `*` are **fixed times**, and others are
//! **intervals**, as in Vixie cron:
//!
//! - A fixed time runs once. If it is left out, it runs when the clocks are set. If it is there twice, it runs the first time.
//! - An interval runs whenever the clocks show what it says: not if that is left out, and twice if it is there twice. So the
//!   gaps between its runs stay as they are.
//!
//! | zone | rule | the clocks | it runs at |
//! | --- | --- | --- | --- |
//! | `Europe/Berlin` | `30 2 * * *` | 29 March 2026: 02:00 becomes 03:00 | 03:00, once; on the next day at 02:30 |
//! | `Europe/Berlin` | `0,30 2,3 * * *` | the same | 03:00, 03:30 |
//! | `Europe/Berlin` | `*/15 * * * *` | the same | .. 01:45, 03:00, 03:15 .. |
//! | `Europe/Berlin` | `*/30 2 * * *` | the same | not on this day |
//! | `Europe/Berlin` | `30 2 * * *` | 25 October 2026: 03:00 becomes 02:00 | 02:30 summer time, once |
//! | `Europe/Berlin` | `*/30 2 * * *` | the same | 02:00, 02:30, and an hour later 02:00, 02:30 |
//! | `America/New_York` | `30 1 * * *` | 1 November 2026: 02:00 becomes 01:00 | 01:30 summer time, once |
//! | `America/New_York` | `0 2 8 3 *` | 8 March 2026: 02:00 becomes 03:00 | 03:00 |
//! | `Australia/Lord_Howe` | `15 2 * * *` | 4 October 2026: 02:00 becomes 02:30 | 02:30 |
//! | `Australia/Lord_Howe` | `45 1 * * *` | 5 April 2026: 02:00 becomes 01:30 | 01:45 summer time, once |
//! | `Australia/Lord_Howe` | `*/15 * * * *` | the same | .. 01:30, 01:45, 01:30, 01:45, 02:00 .. |
//! | `Pacific/Apia` | `0 9 30 12 *` | 2011 has no 30 December there | 31 December 00:00 |
//! | `Asia/Kolkata` | any | are never set | when they show it |
//!
//! # Time zones
//!
//! Names are those of the IANA database. Its data are the system's (`/usr/share/zoneinfo`), if it has any, and otherwise those that were
//! built into this program. Governments change their clocks at short notice. A program that runs for years reads the system's data
//! again within some minutes, so an update of the package `tzdata` is enough; without that package, the program has to be built
//! anew. A time that was computed stays as it is until its run, so only later ones follow an update: [`Timers::reset`] moves one.
//! Update all machines with workers, because whichever runs a timer computes its next time.
//!
//! # Runs that were missed
//!
//! A series has one run at a time, and its next time is computed when a run ends. So a time is missed if it comes before the run
//! ahead of it has ended: because no worker lives, the database is away, there is no room, or that run takes long.
//!
//! | policy | after a run | a run that begins late |
//! | --- | --- | --- |
//! | [`Missed::Once`], the default | comes the next time in the future. So a late run makes up for all times until its end, and its [`Run::due`] is the first of them | runs |
//! | [`Missed::All`] | comes the time after its own, passed or not. So each has its run, one after the other, in order, and `Run::due` says which | runs |
//! | [`Missed::Skip`] | comes the next time in the future | does not run if it is late by more than a minute ([`GRACE`]): the handler is not called, and [`WorkerStats::skipped`] counts it |
//!
//! An attempt is never skipped that follows another one, or a worker that has died. With `All`, a run that fails leaves its series
//! when the next one is due, as in every series, and is then tried again by itself. So it holds up no other, and its later attempts
//! may come after the next run, or beside it; a kind that is [`serial_by('@')`](crate::WorkerBuilder::serial_by) has one at a time.
//! After a month without workers `All` makes up for a month: [`Timers::reset`] to now leaves that out.
//!
//! # By which clock
//!
//! The database's, as everywhere. Also the first time of a series is computed from that, by a question before the timer is written.
//! A series with a later [`NewTimer::when`] begins with the first time of its rule from then on. [`Timers::reset`] runs it at any
//! time, and the next run is at a time of the rule again. A series that is reset to a time that has passed is due now, and is not late.
//!
//! # In SQL
//!
//! The rule is a text in the column `rule`, which [`Cron`]'s `Display` writes and its `FromStr` reads:
//!
//! ```text
//! cron: 0 9 * * MON-FRI; zone=Europe/Berlin; missed=all
//! ```
//!
//! Without `zone` it is UTC, and without `missed` it is `once`. The database knows no cron, so a series that is scheduled in SQL is due
//! first at its `at`, whatever the rule says, and nobody checks the rule before its first run. If it cannot be read then, the
//! timer is dead after that run, with an error that says what to change, and [`WorkerBuilder::on_dead`](crate::WorkerBuilder::on_dead)
//! is told.
//!
//! ```sql
//! SELECT due FROM tickwheel_schedule('report', 'weekly', at => '2030-01-07 09:00 Europe/Berlin',
//!     rule => 'cron: 0 9 * * MON; zone=Europe/Berlin');
//! ```
//!
//! Workers with this feature run these rules by themselves. All other texts, and in workers without it these too, are for
//! [`WorkerBuilder::rules`](crate::WorkerBuilder::rules). A worker that has neither lets the timer die after its run, and says what
//! is missing. If the handler works in a transaction, or asks for its [`completion`](crate::Run::completion), what follows has to be known
//! before the end of the run, so the timer dies without the run, at once as well. So give the feature to all workers of a kind.
//!
//! [`croner`]: https://docs.rs/croner
//! [`Run::due`]: crate::Run::due
//! [`WorkerStats::skipped`]: crate::WorkerStats::skipped
//! [`Timers::keep_series`]: crate::Timers::keep_series
//! [`Timers::reset`]: crate::Timers::reset
//! [`NewTimer::when`]: crate::NewTimer::when

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::error::{Error, Result};

/// A run of a series with [`Missed::Skip`] that begins later than this is left out.
pub const GRACE: Duration = Duration::from_secs(60);

/// What becomes of runs that were [missed](crate::cron#runs-that-were-missed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Missed {
    /// They have no run, and neither has one that is late by more than [`GRACE`].
    Skip,
    /// One run makes up for all of them.
    #[default]
    Once,
    /// Each has its run, in order.
    All,
}

impl Missed {
    /// Returns the name that the text of a rule has: `skip`, `once` or `all`.
    pub fn name(self) -> &'static str {
        match self {
            Missed::Skip => "skip",
            Missed::Once => "once",
            Missed::All => "all",
        }
    }

    /// Returns the policy of a name.
    pub fn of(name: &str) -> Option<Missed> {
        [Missed::Skip, Missed::Once, Missed::All].into_iter().find(|missed| missed.name() == name)
    }
}

/// A rule of a series: a cron expression in a time zone, and what becomes of runs that were missed.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tickwheel_durable::cron::{Cron, Missed};
///
/// let cron = Cron::parse("30 2 * * *")?.in_zone("Europe/Berlin")?.missed(Missed::Skip);
/// assert_eq!(cron.to_string(), "cron: 30 2 * * *; zone=Europe/Berlin; missed=skip");
/// assert_eq!(cron.to_string().parse::<Cron>()?, cron);
///
/// let january = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600); // 2026-01-01 00:00 UTC
/// assert_eq!(cron.next_after(january), Some(january + Duration::from_secs(3600 + 1800)));
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    expression: String,
    pattern: croner::Cron,
    /// Whether the second, minute or hour has a `*`.
    is_interval: bool,
    zone: TimeZone,
    missed: Missed,
}

impl Cron {
    /// Reads an [expression](crate::cron#expressions), such as `0 9 * * MON-FRI`. Its zone is UTC, and of runs that were missed one
    /// makes up for all, until it is told otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], which says what is wrong with it.
    pub fn parse(expression: &str) -> Result<Cron> {
        let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let pattern = expression
            .parse::<croner::Cron>()
            .map_err(|error| invalid(format!("{expression:?} is no cron expression: {error}")))?;
        // With the names such as `@hourly` replaced.
        let fields: Vec<&str> = pattern.pattern.as_str().split_whitespace().collect();
        let time = if fields.len() > 5 { 3 } else { 2 };
        let is_interval = fields.iter().take(time).any(|field| field.contains('*'));
        Ok(Cron { expression, pattern, is_interval, zone: TimeZone::UTC, missed: Missed::Once })
    }

    /// Sets the [time zone](crate::cron#time-zones) by its name in the IANA database, such as `Europe/Berlin`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if this machine knows no such zone.
    pub fn in_zone(self, name: &str) -> Result<Cron> {
        let zone = TimeZone::get(name).map_err(|error| {
            invalid(format!(
                "there is no time zone {name:?}: give a name of the IANA database, such as `Europe/Berlin` ({error})"
            ))
        })?;
        Ok(Cron { zone, ..self })
    }

    /// Sets what becomes of runs that were [missed](crate::cron#runs-that-were-missed).
    #[must_use]
    pub fn missed(self, missed: Missed) -> Cron {
        Cron { missed, ..self }
    }

    /// Returns the first time after this one. `None`: there is none before the year 5000.
    pub fn next_after(&self, time: SystemTime) -> Option<SystemTime> {
        self.next(Timestamp::try_from(time).ok()?).map(SystemTime::from)
    }

    /// Returns the first time that is this one or later.
    pub(crate) fn first_from(&self, time: SystemTime) -> Option<SystemTime> {
        self.next_after(time.checked_sub(Duration::from_micros(1))?)
    }

    /// Returns when the series is due next, after its run that was due at `due` and ends now.
    pub(crate) fn next_due(&self, due: SystemTime, now: SystemTime) -> Option<SystemTime> {
        self.next_after(if self.missed == Missed::All { due } else { due.max(now) })
    }

    /// Returns true if the run that was due at `due` is left out if it has not begun by now.
    pub(crate) fn skips(&self, due: SystemTime, now: SystemTime) -> bool {
        self.missed == Missed::Skip && now.duration_since(due).is_ok_and(|late| late > GRACE)
    }

    /// Walks along the changes of the zone's clock. Between two of them, one offset turns what the clock shows into a time. At a
    /// change the clock would show `end`, and is set to `begin`.
    ///
    /// - CRON-1 `next` is the first match that the clock shows from `from` on, if it is not set before.
    /// - CRON-2 What is left out, from `end` to `begin`, is a match at the change for a fixed time, and none for an interval.
    /// - CRON-3 What the clock shows again, from `begin` to `end`, is a match for an interval only.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let second = SignedDuration::from_secs(1);
        let nanosecond = SignedDuration::from_nanos(1);
        let zone = &self.zone;
        let mut offset = zone.to_offset(after);
        let shows = offset.to_datetime(after);
        let mut from = shows.with().subsec_nanosecond(0).build().ok()?.checked_add(second).ok()?;
        // The change before may be so near that the clock shows again what it has shown (CRON-3).
        let changed = zone.preceding(after.checked_add(nanosecond).ok()?).next();
        if let Some(at) = changed.map(|change| change.timestamp()).filter(|_| !self.is_interval) {
            let before = zone.to_offset(at.checked_sub(nanosecond).ok()?);
            from = from.max(before.to_datetime(at));
        }
        let mut next = self.shown(from)?;
        for change in zone.following(after) {
            let at = change.timestamp();
            if next < offset.to_datetime(at) {
                break;
            }
            offset = change.offset();
            let begin = offset.to_datetime(at);
            if self.is_interval {
                // What is shown again counts, and what is left out does not (CRON-3, CRON-2). Otherwise `next` stays the first
                // (CRON-1), and is not searched for again: there may be many changes before it.
                if begin < from || next < begin {
                    from = begin;
                    next = self.shown(from)?;
                }
            } else if next < begin {
                return Some(at); // left out (CRON-2)
            }
        }
        offset.to_timestamp(next).ok()
    }

    /// Returns the first match that a clock shows which is never set, from `from` on.
    fn shown(&self, from: DateTime) -> Option<DateTime> {
        self.pattern.find_next_occurrence(&from, true).ok()
    }
}

fn invalid(problem: String) -> Error {
    Error::Invalid(problem)
}

/// Writes the text that stands in the column `rule`.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        write!(f, "cron: {}; zone={zone}; missed={}", self.expression, self.missed.name())
    }
}

/// Reads the text that stands in the column `rule`.
impl FromStr for Cron {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cron> {
        let wrong = |problem: &str| {
            invalid(format!(
                "{text:?} is no cron rule, as in `cron: 0 9 * * MON-FRI; zone=Europe/Berlin; missed=all`: {problem}"
            ))
        };
        let body = text.strip_prefix("cron:").ok_or_else(|| wrong("it begins with `cron:`"))?;
        let mut parts = body.split(';');
        let mut cron = Cron::parse(parts.next().unwrap_or_default())
            .map_err(|error| wrong(&error.to_string()))?;
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim();
            cron = match name.trim() {
                "zone" => cron.in_zone(value).map_err(|error| wrong(&error.to_string()))?,
                "missed" => cron.missed(
                    Missed::of(value)
                        .ok_or_else(|| wrong("`missed` is `skip`, `once` or `all`"))?,
                ),
                name => {
                    return Err(wrong(&format!("{name:?} is neither `zone` nor `missed`")));
                }
            };
        }
        Ok(cron)
    }
}
