//! What has been: the rows of attempts, and what removes those that are too old.
//!
//! The table is sorted by kind, start and fencing number. So an attempt is put in at the end of its kind, what is too old is at the
//! begin, and a list from the last one on is read backwards.

use std::time::{Duration, Instant, SystemTime};

use rusqlite::types::Value;
use rusqlite::{Row, params, params_from_iter};

use super::failed;
use super::table::{NEVER, Within, millis, small, text, time};
use crate::clock::micros;
use crate::columns::{delay_micros, delay_millis};
use crate::error::Result;
use crate::history::{Attempt, HistoryFilter, Outcome, Pace};
use crate::store::{Purge, Purged};

/// How many rows are removed before the clock is read.
const FEW: u32 = 100;

fn attempt_in(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let outcome = text(row, "outcome")?.as_deref().and_then(Outcome::of);
    let span = |column| {
        row.get(column).map(|micros: i64| Duration::from_micros(micros.max(0).unsigned_abs()))
    };
    let fence = row.get("fence")?;
    Ok(Attempt {
        due: time(row.get("due")?),
        late: span("late_us")?,
        took: span("took_us")?,
        attempt: small(row.get("attempt")?),
        error: text(row, "error")?,
        worker: text(row, "worker")?.unwrap_or_default(),
        trace: text(row, "trace")?,
        ..Attempt::new(
            text(row, "kind")?.unwrap_or_default(),
            text(row, "key")?.unwrap_or_default(),
            time(row.get("started")?),
            fence,
            outcome.unwrap_or(Outcome::Failed),
        )
    })
}

impl Within<'_> {
    pub(super) fn record(&self, attempt: &Attempt) -> Result<()> {
        let sql = "INSERT INTO tickwheel_history
                (kind, key, due, started, late_us, took_us, attempt, fence, outcome, error, worker, trace)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING";
        let values = params![
            attempt.kind,
            attempt.key,
            millis(attempt.due),
            micros(attempt.started) / 1000,
            delay_micros(attempt.late),
            delay_micros(attempt.took),
            attempt.attempt,
            attempt.fence,
            attempt.outcome.name(),
            attempt.error,
            attempt.worker,
            attempt.trace
        ];
        self.execute(sql, values).map(drop)
    }

    /// A run that leaves its series takes its attempts along (HISTORY-3). They began when it was due, or later, by the same clock.
    pub(super) fn take_along(&self, series: i64, due: SystemTime, key: &str) -> Result<()> {
        let sql = "UPDATE tickwheel_history SET key = ?3 WHERE due = ?2 AND started >= ?2 - 3600000
            AND (kind, key) = (SELECT kind, key FROM tickwheel_timers WHERE id = ?1)";
        self.execute(sql, params![series, millis(due), key]).map(drop)
    }

    /// Of all kinds, those of each are read from the end, because the index begins with the kind.
    pub(super) fn history(&self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        if let Some(kind) = &filter.kind {
            return self.history_of(kind, filter);
        }
        let sql = format!("{KINDS} SELECT kind FROM kinds WHERE kind IS NOT NULL");
        let mut kinds = self.client.prepare_cached(&sql).map_err(failed)?;
        let kinds = kinds.query_map([None::<&str>], |row| text(row, "kind")).map_err(failed)?;
        let mut lists = Vec::new();
        for kind in kinds {
            lists.push(self.history_of(&kind.map_err(failed)?.unwrap_or_default(), filter)?);
        }
        Ok(filter.merged(lists))
    }

    fn history_of(&self, kind: &str, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        let mut sql = "SELECT * FROM tickwheel_history".to_owned();
        if filter.key.is_some() {
            // SQLite would read all attempts of the kind, because they are in the order that is asked for.
            sql += " INDEXED BY tickwheel_history_key";
        }
        sql += " WHERE kind = ?";
        let mut values: Vec<Value> = vec![kind.to_owned().into()];
        if let Some(key) = &filter.key {
            sql += " AND key = ?";
            values.push(key.clone().into());
        }
        if let Some(outcome) = filter.outcome {
            sql += " AND outcome = ?";
            values.push(outcome.name().to_owned().into());
            if outcome != Outcome::Done {
                sql += " AND outcome <> 'done'"; // as the index says
            }
        }
        if let Some(since) = filter.since {
            sql += " AND started >= ?";
            values.push(millis(since).into());
        }
        if let Some(last) = &filter.before {
            sql += " AND (started, fence) < (?, ?)";
            values.extend([(micros(last.started) / 1000).into(), last.id.into()]);
        }
        sql += " ORDER BY started DESC, fence DESC LIMIT ?";
        values.push(i64::from(filter.limit).into());
        let mut statement = self.client.prepare_cached(&sql).map_err(failed)?;
        let rows = statement.query_map(params_from_iter(values), attempt_in).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    pub(super) fn pace(&self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        let sql = format!(
            "{KINDS} SELECT kinds.kind, h.started / ?3 * ?3, sum(h.outcome = 'done'), sum(h.outcome = 'failed'),
                sum(h.outcome = 'dead'), sum(h.outcome = 'snoozed'), CAST(avg(h.late_us) AS INTEGER), max(h.late_us)
            FROM kinds JOIN tickwheel_history h ON h.kind = kinds.kind AND h.started > ?2
            GROUP BY 1, 2 ORDER BY 1, 2"
        );
        let since = self.now().saturating_sub(delay_millis(span));
        let mut statement = self.client.prepare_cached(&sql).map_err(failed)?;
        let rows = statement.query_map(params![None::<&str>, since, delay_millis(step)], |row| {
            let number = |column| row.get::<_, i64>(column).map(|of| of.max(0).unsigned_abs());
            Ok(Pace {
                done: number(2)?,
                failed: number(3)?,
                dead: number(4)?,
                snoozed: number(5)?,
                late: Duration::from_micros(number(6)?),
                max_late: Duration::from_micros(number(7)?),
                ..Pace::new(text(row, "kind")?.unwrap_or_default(), time(row.get(1)?))
            })
        });
        rows.map_err(failed)?.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// Removes attempts for as long as others may wait.
    pub(super) fn purge_history(&self, purge: &Purge<'_>, most: Duration) -> Result<Purged> {
        let sql = format!(
            "DELETE FROM tickwheel_history WHERE (kind, started, fence) IN (
                {KINDS} SELECT h.kind, h.started, h.fence FROM kinds JOIN tickwheel_history h ON h.kind = kinds.kind AND h.started < ?2
                LIMIT ?3)"
        );
        let (began, mut count) = (Instant::now(), 0);
        while count < purge.limit && (count == 0 || began.elapsed() < most) {
            let few = FEW.min(purge.limit - count);
            let removed =
                self.execute(&sql, params![purge.kind, micros(purge.before) / 1000, few])? as u32;
            count += removed;
            if removed < few {
                return Ok(Purged::new(count.into(), None));
            }
        }
        // What is removed is not in the way here.
        let last = (purge.kind.unwrap_or_default().to_owned(), purge.before);
        Ok(Purged::new(count.into(), Some(last)))
    }

    pub(super) fn purge_dead(
        &self,
        kind: &str,
        keep: Duration,
        after: i64,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        let sql = "SELECT id, dead_fence IS fence, dead_since FROM tickwheel_timers
            WHERE kind = ?1 AND wake = ?2 AND id > ?3 AND state = 'dead' ORDER BY id LIMIT ?4";
        let mut page = self.client.prepare_cached(sql).map_err(failed)?;
        let page = page.query_map(params![kind, NEVER, after, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        });
        let page: Vec<(i64, bool, Option<i64>)> =
            page.map_err(failed)?.collect::<rusqlite::Result<_>>().map_err(failed)?;
        let ripe = self.now().saturating_sub(delay_millis(keep));
        let mut count = 0;
        for (id, is_known, since) in &page {
            if !is_known {
                let sql =
                    "UPDATE tickwheel_timers SET dead_since = ?2, dead_fence = fence WHERE id = ?1";
                self.execute(sql, (id, self.now()))?;
            } else if since.is_none_or(|since| since <= ripe) {
                self.execute("DELETE FROM tickwheel_timers WHERE id = ?1", [id])?;
                count += 1;
            }
        }
        let is_full = page.len() >= limit as usize;
        Ok((count, page.last().map(|(id, _, _)| *id).filter(|_| is_full)))
    }
}

/// The kinds of the history, each found with a probe of the index.
const KINDS: &str = "WITH RECURSIVE kinds (kind) AS (
        SELECT coalesce(?1, (SELECT min(kind) FROM tickwheel_history))
        UNION ALL
        SELECT (SELECT min(h.kind) FROM tickwheel_history h WHERE h.kind > kinds.kind) FROM kinds
        WHERE kinds.kind IS NOT NULL AND ?1 IS NULL)";
