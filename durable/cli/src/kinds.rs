//! Kinds: how many timers of each there are, and the pace and the lateness of their attempts. For `counts` and `top`.

use std::collections::BTreeMap;
use std::time::Duration;

use tickwheel_durable::{KindCounts, Pace, Timers};

use crate::output::{Cell, Column, Object, Output, Style, Table, count};
use crate::problem::{Outcome, Problem};
use crate::sight::tell_of_more;
use crate::times::{milliseconds, precise, rough};

/// For how long the pace is told, and in how many steps.
pub(crate) const SPAN: Duration = Duration::from_secs(3600);
pub(crate) const STEPS: u32 = 12;

/// A kind with what there is to say of it.
pub(crate) struct Kind {
    pub(crate) counts: KindCounts,
    /// What was run in each step of the last [`SPAN`], the oldest first. Empty: it has no history.
    pub(crate) pace: Vec<Pace>,
}

impl Kind {
    /// Returns all kinds that have timers or a history.
    pub(crate) fn all(timers: &Timers) -> Result<Vec<Kind>, Problem> {
        let mut kinds = BTreeMap::new();
        for counts in timers.counts()? {
            kinds.insert(counts.kind.clone(), Kind { counts, pace: Vec::new() });
        }
        for pace in timers.pace(SPAN, SPAN / STEPS)? {
            let new = || Kind { counts: KindCounts::new(pace.kind.clone()), pace: Vec::new() };
            kinds.entry(pace.kind.clone()).or_insert_with(new).pace.push(pace);
        }
        Ok(kinds.into_values().collect())
    }

    fn runs(&self) -> u64 {
        self.pace.iter().map(runs).sum()
    }

    fn failures(&self) -> u64 {
        self.pace.iter().map(|pace| pace.failed + pace.dead).sum()
    }

    /// Returns the mean lateness of all runs, and the longest.
    #[expect(clippy::cast_precision_loss, reason = "a mean need not be exact")]
    fn late(&self) -> (Duration, Duration) {
        let sum: f64 =
            self.pace.iter().map(|pace| pace.late.as_secs_f64() * runs(pace) as f64).sum();
        let mean = Duration::try_from_secs_f64(sum / self.runs().max(1) as f64).unwrap_or_default();
        (mean, self.pace.iter().map(|pace| pace.max_late).max().unwrap_or_default())
    }
}

pub(crate) fn runs(pace: &Pace) -> u64 {
    pace.done + pace.failed + pace.dead + pace.snoozed
}

pub(crate) fn counts(timers: &Timers, out: &mut Output) -> Outcome {
    let kinds = Kind::all(timers)?;
    if out.json {
        kinds.iter().try_for_each(|kind| out.object(kind_object(kind)))?;
    } else if !kinds.is_empty() {
        let mut table = kinds_table(&[]);
        kinds.iter().for_each(|kind| table.add(kind_row(kind, [])));
        out.table(&mut table)?;
    }
    tell_of_more(if kinds.is_empty() { Err(Problem::Nothing) } else { Ok(false) }, out)
}

/// Returns the table of kinds, with other columns in the middle: if the terminal is narrow, what is behind them is cut off.
pub(crate) fn kinds_table(others: &[Column]) -> Table {
    let counts = [
        Column::flexible("KIND"),
        Column::number("WAIT"),
        Column::number("RETRY"),
        Column::number("RUN"),
        Column::number("DEAD"),
        Column::number("LAG"),
    ];
    let last_hour = [
        Column::number("RUNS/H"),
        Column::number("FAILED/H"),
        Column::number("MEAN LATE"),
        Column::number("MAX LATE"),
    ];
    Table::new(&[&counts, others, &last_hour].concat())
}

pub(crate) fn kind_row(kind: &Kind, others: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
    let KindCounts { waiting, retrying, running, dead, lag, .. } = kind.counts;
    let (mean, most) = kind.late();
    let of_history = |text: String| {
        if kind.pace.is_empty() { Cell::new("-", Style::Faint) } else { Cell::from(text) }
    };
    let failures = match kind.failures() {
        0 => of_history("0".to_owned()),
        failures => count(failures, Style::Warning),
    };
    let counts = [
        Cell::from(&kind.counts.kind),
        count(waiting, Style::Plain),
        count(retrying, Style::Warning),
        count(running, Style::Good),
        count(dead, Style::Bad),
        match lag {
            Duration::ZERO => Cell::new("0 s", Style::Faint),
            lag if lag < Duration::from_secs(10) => Cell::from(precise(lag)),
            lag => Cell::new(&rough(lag), Style::Bad),
        },
    ];
    let last_hour = [
        of_history(kind.runs().to_string()),
        failures,
        of_history(precise(mean)),
        of_history(precise(most)),
    ];
    counts.into_iter().chain(others).chain(last_hour).collect()
}

pub(crate) fn kind_object(kind: &Kind) -> Object {
    let KindCounts { waiting, retrying, running, dead, lag, .. } = kind.counts;
    let last_hour = (!kind.pace.is_empty()).then(|| {
        let (mean, most) = kind.late();
        Object::new()
            .number("runs", kind.runs())
            .number("failed", kind.failures())
            .number("late_ms", milliseconds(mean))
            .number("max_late_ms", milliseconds(most))
    });
    Object::new()
        .text("kind", &*kind.counts.kind)
        .number("waiting", waiting)
        .number("retrying", retrying)
        .number("running", running)
        .number("dead", dead)
        .number("lag_ms", milliseconds(lag))
        .object("last_hour", last_hour)
}
