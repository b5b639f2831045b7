//! Compares what has run with what the clients were told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tickwheel_durable::{Filter, State, Timers};

use super::super::databases::{Database, client};
use super::super::handlers::Ledger;
use super::client::{End, Version};
use super::worker::child_of;
use super::{PERIOD, SERIES, TX};

/// An effect in the database, in microseconds since 1970.
struct Effect {
    due: i64,
    at: i64,
}

/// A start in the ledger: the number of the attempt, and the time of the monotonic clock.
struct Start {
    attempt: u32,
    at: Duration,
}

type Name = (String, String, i64);

/// Reads rows of two texts and three numbers.
fn rows(database: &Database<'_>, sql: &str) -> Vec<(Name, i64, i64)> {
    match database {
        Database::File(path) => {
            let client = rusqlite::Connection::open(path).expect("it opens");
            let mut statement = client.prepare(sql).expect("valid SQL");
            let rows = statement.query_map([], |row| {
                Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?, row.get(4)?))
            });
            rows.expect("rows").collect::<rusqlite::Result<_>>().expect("rows")
        }
        Database::Schema { .. } => {
            let rows = client(&database.url()).query(sql, &[]).expect("rows");
            let row = |row: &postgres::Row| {
                ((row.get(0), row.get(1), row.get(2)), row.get(3), row.get(4))
            };
            rows.iter().map(row).collect()
        }
    }
}

fn starts(ledger: &Ledger) -> HashMap<Name, Vec<Start>> {
    let mut starts: HashMap<Name, Vec<Start>> = HashMap::new();
    for line in ledger.lines() {
        let [kind, key, version, attempt, at] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let name = (kind.to_owned(), key.to_owned(), version.parse().expect("a number"));
        let at = Duration::from_micros(at.parse().expect("a number"));
        let attempt = attempt.parse().expect("a number");
        starts.entry(name).or_default().push(Start { attempt, at });
    }
    starts
}

pub(super) fn balance(
    database: &Database<'_>,
    timers: &Timers,
    ledger: &Ledger,
    versions: &[Version],
) {
    let mut effects: HashMap<Name, Vec<Effect>> = HashMap::new();
    for (name, due, at) in rows(database, "SELECT kind, key, version, due, at FROM ledger") {
        assert!(at >= due, "{name:?} ran {} us early", due - at);
        effects.entry(name).or_default().push(Effect { due, at });
    }
    let orders = rows(
        database,
        "SELECT kind, key, version, CAST(0 AS BIGINT), CAST(0 AS BIGINT) FROM orders",
    );
    let orders: BTreeSet<Name> = orders.into_iter().map(|(name, ..)| name).collect();
    let starts = starts(ledger);
    let mut left = HashMap::new();
    for timer in timers.list(&Filter::new().limit(1_000_000)).expect("a list") {
        assert_eq!(timer.state, State::Dead, "{timer:?}");
        let number =
            std::str::from_utf8(&timer.payload).expect("text").split(' ').next().map(str::parse);
        let number = number.expect("a word").expect("a number");
        left.insert((timer.kind.clone(), timer.key.clone(), number), timer.attempts);
    }
    for version in versions {
        let name = (version.kind.to_owned(), version.key.clone(), version.number);
        let none = Vec::new();
        let seen = Seen {
            effects: effects.remove(&name).unwrap_or_default(),
            starts: starts.get(&name).unwrap_or(&none),
            dead: left.remove(&name),
            has_order: orders.contains(&name),
        };
        if let Err(problem) = check(version, &seen) {
            panic!(
                "{problem}: {version:?}\n  {} effects, {} starts, dead after {:?}",
                seen.effects.len(),
                seen.starts.len(),
                seen.dead
            );
        }
        if version.has_child {
            let child =
                (String::from("plain"), child_of(&version.key, version.number), version.number);
            let children = effects.remove(&child).unwrap_or_default().len();
            let dead = left.remove(&child);
            assert_eq!(
                children > 0 || dead.is_some(),
                !seen.effects.is_empty(),
                "the child of {version:?}"
            );
        }
    }
    for kind in ["plain", "tx"] {
        let fresh = effects.remove(&(kind.to_owned(), "fresh".to_owned(), 0));
        assert!(fresh.is_some_and(|fresh| !fresh.is_empty()), "{kind}");
    }
    balance_series(&mut effects);
    assert!(effects.is_empty(), "nobody knows of {:?}", effects.keys());
    assert!(left.is_empty(), "nobody knows of {left:?}");
}

/// What was seen of a version.
struct Seen<'a> {
    effects: Vec<Effect>,
    starts: &'a [Start],
    /// Its attempts, if it is dead.
    dead: Option<u32>,
    has_order: bool,
}

fn check(version: &Version, seen: &Seen<'_>) -> Result<(), String> {
    let count = seen.effects.len();
    let ensure = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    let is_exact = version.kind == "tx";
    ensure(!is_exact || count <= 1, "a handler in a transaction has run twice")?;
    ensure(count <= seen.starts.len(), "an effect without a start")?;
    if let Some(most) = version.max_attempts {
        ensure(seen.starts.len() as u32 <= most * version.times, "too many starts")?;
        ensure(
            seen.starts.iter().all(|start| start.attempt <= most),
            "an attempt beyond the last",
        )?;
    }
    if let Some(attempts) = seen.dead {
        ensure(Some(attempts) == version.max_attempts, "dead before its attempts are used up")?;
    }
    // The order says whether the transaction was committed, if its answer was lost.
    let is_accepted = version.is_accepted.or(version.has_order.then_some(seen.has_order));
    if version.has_order {
        ensure(
            Some(seen.has_order) == is_accepted,
            "the timer without the order, or the order without it",
        )?;
    }
    match is_accepted {
        None => return Ok(()),
        Some(false) => {
            return ensure(
                seen.starts.is_empty() && seen.dead.is_none(),
                "what was undone or kept away has run",
            );
        }
        Some(true) => {}
    }
    let after = |time: Duration| seen.starts.iter().filter(|start| start.at > time).count();
    match version.end {
        End::Open => {
            ensure(count > 0 || seen.dead.is_some(), "lost")?;
            ensure(!is_exact || (count == 1) != seen.dead.is_some(), "done, and dead as well")?;
        }
        End::Done => {
            ensure(count > 0, "lost")?;
            ensure(seen.dead.is_none(), "dead although it was gone")?;
        }
        End::Cancelled(State::Running, time) | End::Replaced(time) => {
            ensure(!is_exact || count == 0, "committed although it was cancelled or replaced")?;
            ensure(
                after(time) <= 1,
                "what was cancelled or replaced goes on after the run in progress",
            )?;
            ensure(seen.dead.is_none(), "dead although it was gone")?;
        }
        End::Cancelled(_, time) => {
            ensure(!is_exact || count == 0, "committed although it was cancelled")?;
            ensure(after(time) == 0, "started although it was cancelled while it waited")?;
            ensure(seen.dead.is_none(), "dead although it was gone")?;
        }
        End::Unknown => return Ok(()),
    }
    if let (true, Some(due), [effect]) = (is_exact, version.due, &seen.effects[..]) {
        ensure(effect.due == due, "run for another time than it was due")?;
    }
    Ok(())
}

/// Each run of a series is there, in a transaction once. A run whose time had passed when the one before it began is left out.
fn balance_series(effects: &mut HashMap<Name, Vec<Effect>>) {
    let period = i64::try_from(PERIOD.as_micros()).expect("small");
    for (kind, key, _) in SERIES {
        let mut runs: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        effects.retain(|name, effects| {
            let is_its = name.0 == kind
                && (name.1 == key
                    || name.1.strip_prefix(key).is_some_and(|rest| rest.starts_with('@')));
            if is_its {
                effects
                    .iter()
                    .for_each(|effect| runs.entry(effect.due).or_default().push(effect.at));
            }
            !is_its
        });
        let phases: BTreeSet<_> = runs.keys().map(|due| due % period).collect();
        assert_eq!(phases.len(), 1, "{kind} {key}: the phase changes");
        assert!(!runs.is_empty(), "{kind} {key}: {} runs", runs.len());
        if !TX.contains(&kind) {
            continue; // between its effect and its outcome, its process may have been halted
        }
        let all: Vec<_> = runs.into_iter().collect();
        for (due, at) in &all {
            assert_eq!(at.len(), 1, "{kind} {key}: {due} ran twice");
        }
        for pair in all.windows(2) {
            let ((due, at), (next, _)) = (&pair[0], &pair[1]);
            assert!(
                *next <= at[0] + period,
                "{kind} {key}: runs are missing between {due} and {next}"
            );
        }
    }
}

pub(super) fn figures(database: &Database<'_>, versions: &[Version]) -> String {
    let count = |sql: &str| database.number(sql);
    let unknown = versions
        .iter()
        .filter(|version| version.is_accepted.is_none() || version.end == End::Unknown)
        .count();
    format!(
        "{} timers, {unknown} without an answer, {} runs, {} twice, {} dead",
        versions.len(),
        count("SELECT count(*) FROM ledger"),
        count(
            "SELECT CAST(coalesce(sum(count - 1), 0) AS BIGINT) FROM
            (SELECT count(*) AS count FROM ledger GROUP BY kind, key, version, due) runs"
        ),
        count("SELECT count(*) FROM tickwheel_timers WHERE state = 'dead'"),
    )
}
