//! What has been: the rows of attempts, and what removes those that are too old.
//!
//! The table is sorted by kind, start and fencing number. So an attempt is put in at the end of its kind, what is too old is at the
//! begin, and a list from the last one on is read backwards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postgres::Row;

use super::link::Sql;
use super::table::{Value, Within, for_interval, is_nowhere};
use super::{failed, only_row};
use crate::clock::{LATEST, from_micros, micros};
use crate::columns::delay_micros;
use crate::error::Result;
use crate::history::{Attempt, HistoryFilter, Outcome, Pace};
use crate::store::{Purge, Purged};

/// Puts in rows that are given by the parameters $1 to $12, as `past`, with what else is said of them.
macro_rules! put_in {
    ($also:literal) => {
        concat!(
            "INSERT INTO tickwheel_history
                (kind, key, due, started, late_us, took_us, attempt, fence, outcome, error, worker, trace)
            SELECT past.* FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::bigint[],
                $7::integer[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[])
                AS past (kind, key, due, started, late_us, took_us, attempt, fence, outcome, error, worker, trace)",
            $also,
            " ON CONFLICT DO NOTHING"
        )
    };
}
pub(super) use put_in;

/// The columns of rows, for [`put_in`].
#[derive(Default)]
pub(super) struct Rows<'a> {
    kinds: Vec<&'a str>,
    keys: Vec<&'a str>,
    dues: Vec<SystemTime>,
    starts: Vec<SystemTime>,
    lates: Vec<i64>,
    tooks: Vec<i64>,
    attempts: Vec<i32>,
    fences: Vec<i64>,
    outcomes: Vec<&'a str>,
    errors: Vec<Option<String>>,
    workers: Vec<&'a str>,
    traces: Vec<Option<&'a str>>,
}

impl<'a> Rows<'a> {
    pub(super) fn push(&mut self, attempt: &'a Attempt) {
        self.kinds.push(&attempt.kind);
        self.keys.push(&attempt.key);
        self.dues.push(from_micros(micros(attempt.due)));
        self.starts.push(from_micros(micros(attempt.started)));
        self.lates.push(delay_micros(attempt.late));
        self.tooks.push(delay_micros(attempt.took));
        self.attempts.push(i32::try_from(attempt.attempt).unwrap_or(i32::MAX));
        self.fences.push(attempt.fence);
        self.outcomes.push(attempt.outcome.name());
        self.errors.push(attempt.error.as_ref().map(|error| error.replace('\0', " ")));
        self.workers.push(&attempt.worker);
        self.traces.push(attempt.trace.as_deref());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub(super) fn values(&self) -> [&dyn Value; 12] {
        [
            &self.kinds,
            &self.keys,
            &self.dues,
            &self.starts,
            &self.lates,
            &self.tooks,
            &self.attempts,
            &self.fences,
            &self.outcomes,
            &self.errors,
            &self.workers,
            &self.traces,
        ]
    }
}

/// The part of a completion that writes the row. What the worker knows are numbers, and the texts are those of the timer as the statement
/// finds it, which the other part changes. It took until now.
pub(super) fn of_completion(record: &Attempt, of_run: &str) -> String {
    let Attempt { started, late, due, attempt, .. } = record;
    let (started, due, late) = (micros(*started), micros(*due), delay_micros(*late));
    format!(
        ", past AS (INSERT INTO tickwheel_history
            (kind, key, due, started, late_us, took_us, attempt, fence, outcome, worker, trace)
            SELECT old.kind, old.key, timestamptz 'epoch' + interval '{due} microseconds', began.at, {late},
                greatest(extract(epoch FROM tickwheel_now() - began.at) * 1000000, 0)::bigint, {attempt}, old.fence, 'done',
                coalesce(old.owner, ''), old.trace
            FROM mine JOIN (SELECT * FROM tickwheel_timers WHERE {of_run}) AS old ON old.id = mine.id,
                (SELECT timestamptz 'epoch' + interval '{started} microseconds') AS began (at)
            ON CONFLICT DO NOTHING)"
    )
}

/// The kinds of the history, each found with a probe of the index, beginning at `$from`.
macro_rules! kinds {
    ($from:literal) => {
        concat!(
            "WITH RECURSIVE kinds (kind) AS (
                SELECT coalesce($1::text, ",
            $from,
            "(SELECT min(h.kind) FROM tickwheel_history h))
                UNION ALL
                SELECT (SELECT min(h.kind) FROM tickwheel_history h WHERE h.kind > kinds.kind) FROM kinds
                WHERE kinds.kind IS NOT NULL AND $1 IS NULL)"
        )
    };
}

fn attempt_in(row: &Row) -> Result<Attempt> {
    let number = |column| row.try_get::<_, i64>(column).map(i64::unsigned_abs).map_err(failed);
    let outcome: &str = row.try_get("outcome").map_err(failed)?;
    let attempt: i32 = row.try_get("attempt").map_err(failed)?;
    let fence = row.try_get("fence").map_err(failed)?;
    Ok(Attempt {
        id: fence,
        kind: row.try_get("kind").map_err(failed)?,
        key: row.try_get("key").map_err(failed)?,
        due: row.try_get("due").map_err(failed)?,
        started: row.try_get("started").map_err(failed)?,
        late: Duration::from_micros(number("late_us")?),
        took: Duration::from_micros(number("took_us")?),
        attempt: attempt.unsigned_abs(),
        fence,
        outcome: Outcome::of(outcome).unwrap_or(Outcome::Failed),
        error: row.try_get("error").map_err(failed)?,
        worker: row.try_get("worker").map_err(failed)?,
        trace: row.try_get("trace").map_err(failed)?,
        shard: 0,
    })
}

/// A time that the client can send.
fn in_range(time: SystemTime) -> SystemTime {
    time.clamp(UNIX_EPOCH, from_micros(LATEST))
}

impl<C: Sql> Within<'_, C> {
    pub(super) fn record(&mut self, attempts: &[Attempt]) -> Result<()> {
        let mut rows = Rows::default();
        attempts.iter().for_each(|attempt| rows.push(attempt));
        self.query(put_in!(""), &rows.values()).map(drop)
    }

    pub(super) fn history(&mut self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        const SQL: &str = concat!(
            kinds!(""),
            " SELECT h.* FROM kinds CROSS JOIN LATERAL (SELECT * FROM tickwheel_history h
                WHERE h.kind = kinds.kind AND ($2::text IS NULL OR h.key = $2) AND ($3::text IS NULL OR h.outcome = $3)
                    AND ($4::timestamptz IS NULL OR h.started >= $4)
                    AND ($5::timestamptz IS NULL OR (h.started, h.fence) < ($5, $6::bigint))
                ORDER BY h.started DESC, h.fence DESC LIMIT $7) h
            ORDER BY h.started DESC, h.fence DESC LIMIT $7"
        );
        if is_nowhere([filter.kind.as_deref(), filter.key.as_deref()].into_iter().flatten()) {
            return Ok(Vec::new());
        }
        let values: &[&dyn Value] = &[
            &filter.kind,
            &filter.key,
            &filter.outcome.map(Outcome::name),
            &filter.since.map(in_range),
            &filter.before.as_ref().map(|last| in_range(last.started)),
            &filter.before.as_ref().map(|last| last.id),
            &i64::from(filter.limit),
        ];
        self.unnamed().query(SQL, values)?.iter().map(attempt_in).collect()
    }

    pub(super) fn pace(&mut self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        const SQL: &str = concat!(
            kinds!(""),
            " SELECT kinds.kind, timestamptz 'epoch' + p.step * $3::bigint * interval '1 microsecond', p.done, p.failed, p.dead, p.snoozed,
                p.late, p.max_late
            FROM kinds CROSS JOIN LATERAL (
                SELECT (date_part('epoch', h.started) * 1000000)::bigint / $3 AS step,
                    count(*) FILTER (WHERE h.outcome = 'done') AS done, count(*) FILTER (WHERE h.outcome = 'failed') AS failed,
                    count(*) FILTER (WHERE h.outcome = 'dead') AS dead, count(*) FILTER (WHERE h.outcome = 'snoozed') AS snoozed,
                    avg(h.late_us)::bigint AS late, max(h.late_us) AS max_late
                FROM tickwheel_history h
                WHERE h.kind = kinds.kind AND h.started > $2::timestamptz
                GROUP BY 1) p
            ORDER BY kinds.kind COLLATE \"C\", p.step"
        );
        // The begin is a value, so that the plan is for as many rows as there are behind it.
        let now = only_row(self.query("SELECT tickwheel_now()", &[])?)?;
        let now: SystemTime = now.try_get(0).map_err(failed)?;
        let begin = in_range(now.checked_sub(span).unwrap_or(UNIX_EPOCH));
        let values: &[&dyn Value] = &[&None::<String>, &begin, &delay_micros(step)];
        let paces = self.unnamed().query(SQL, values)?;
        let paces = paces.iter().map(|row| {
            let number = |column: usize| {
                row.try_get(column).map(|count: i64| count.unsigned_abs()).map_err(failed)
            };
            Ok(Pace {
                done: number(2)?,
                failed: number(3)?,
                dead: number(4)?,
                snoozed: number(5)?,
                late: Duration::from_micros(number(6)?),
                max_late: Duration::from_micros(number(7)?),
                ..Pace::new(
                    row.try_get::<_, String>(0).map_err(failed)?,
                    row.try_get(1).map_err(failed)?,
                )
            })
        });
        paces.collect()
    }

    pub(super) fn purge_history(&mut self, purge: &Purge<'_>) -> Result<Purged> {
        // The rows are found again by their places, which cannot change while they are locked.
        const SQL: &str = concat!(
            kinds!("$3::text, "),
            ", old AS MATERIALIZED (
                SELECT h.place, h.kind, h.started FROM kinds CROSS JOIN LATERAL (
                    SELECT h.ctid AS place, h.kind, h.started FROM tickwheel_history h
                    WHERE h.kind = kinds.kind AND h.started < $2
                        AND h.started >= CASE WHEN kinds.kind = $3 THEN $4::timestamptz ELSE '-infinity' END
                    ORDER BY h.started LIMIT $5 FOR UPDATE SKIP LOCKED) h LIMIT $5),
            gone AS (DELETE FROM tickwheel_history WHERE ctid = ANY (ARRAY(SELECT place FROM old)) RETURNING 1)
            SELECT (SELECT count(*) FROM gone), last.kind, last.started FROM (VALUES (1)) one LEFT JOIN LATERAL (
                SELECT old.kind, old.started FROM old ORDER BY old.kind DESC, old.started DESC LIMIT 1) last ON true"
        );
        let (kind, started) = purge.from.clone().unzip();
        let values: &[&dyn Value] = &[
            &purge.kind.map(str::to_owned),
            &in_range(purge.before),
            &kind,
            &started,
            &i64::from(purge.limit),
        ];
        let row = only_row(self.unnamed().query(SQL, values)?)?;
        let count = row.try_get::<_, i64>(0).map_err(failed)?.unsigned_abs();
        let kind: Option<String> = row.try_get(1).map_err(failed)?;
        let last = kind.zip(row.try_get(2).map_err(failed)?);
        Ok(Purged { count, last: last.filter(|_| count >= u64::from(purge.limit)) })
    }

    pub(super) fn purge_dead(
        &mut self,
        kind: &str,
        keep: Duration,
        after: i64,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        // What is dead wakes never, so it is the end of its kind in the index. Those alone are locked that are changed.
        const SQL: &str = "WITH page AS (
                SELECT t.id FROM tickwheel_timers t
                WHERE t.kind = $1 AND t.wake = 'infinity' AND t.id > $3 ORDER BY t.id LIMIT $4),
            ripe AS (
                SELECT t.id, t.dead_fence IS NOT DISTINCT FROM t.fence AS is_known FROM page JOIN tickwheel_timers t ON t.id = page.id
                WHERE t.state = 'dead' AND (t.dead_fence IS DISTINCT FROM t.fence
                    OR t.dead_since <= (SELECT tickwheel_now()) - $2::float8 * interval '1 millisecond')
                FOR UPDATE OF t SKIP LOCKED),
            gone AS (DELETE FROM tickwheel_timers t USING ripe WHERE t.id = ripe.id AND ripe.is_known RETURNING 1),
            noted AS (UPDATE tickwheel_timers t SET dead_since = tickwheel_now(), dead_fence = t.fence
                FROM ripe WHERE t.id = ripe.id AND NOT ripe.is_known)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM page), (SELECT max(id) FROM page)";
        let values: &[&dyn Value] = &[&kind, &for_interval(keep), &after, &i64::from(limit)];
        let row = only_row(self.unnamed().query(SQL, values)?)?;
        let count = |column: usize| {
            row.try_get(column).map(|count: i64| count.unsigned_abs()).map_err(failed)
        };
        let last: Option<i64> = row.try_get(2).map_err(failed)?;
        Ok((count(0)?, last.filter(|_| count(1).is_ok_and(|found| found >= u64::from(limit)))))
    }
}
