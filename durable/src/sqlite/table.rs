//! Timers as users see them: [`within`] a transaction of theirs, and the columns of a row.

use std::time::SystemTime;

use rusqlite::types::Value;
use rusqlite::{Connection as Client, OptionalExtension, Row, params, params_from_iter};

use super::{failed, time_of};
use crate::clock::{LATEST, from_micros, micros};
use crate::columns::{
    checked, columns_of, delay_micros, delay_millis, milliseconds, repetition_in,
};
use crate::error::Result;
use crate::store::{Existing, MOST_BYTES, Table};
use crate::timer::{Filter, NewTimer, Scheduled, State, Timer, When};

/// Schedules, resets and cancels inside a transaction of yours, on a connection of yours to the same file.
///
/// What it returns is a [`Table`]. Workers see your commit when they poll next, by default within a second. If a timer is due
/// sooner, call [`Timers::tell`](crate::Timers::tell) after the commit.
///
/// While another process writes, the call waits for as long as your `busy_timeout` says. SQLite lets nobody wait who has read in the
/// transaction before: begin such a one with `TransactionBehavior::Immediate`.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::{Existing, NewTimer, Table, Timers, sqlite};
///
/// # let folder = std::env::temp_dir().join(format!("tickwheel-within-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("shop.db");
/// let timers = Timers::open(&format!("sqlite:{}", path.display()))?;
/// let mut mine = rusqlite::Connection::open(&path)?;
/// mine.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")?;
///
/// let order = mine.transaction()?;
/// order.execute("INSERT INTO orders VALUES (4711)", [])?;
/// let unpaid = NewTimer::new("cancel order", "4711", Duration::from_secs(1800));
/// sqlite::within(&order).schedule(&[unpaid], Existing::Replace)?;
/// order.commit()?; // the order and its timer, or neither
/// timers.tell("cancel order");
///
/// assert!(timers.get("cancel order", "4711")?.is_some());
/// # drop((timers, mine));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn within(connection: &Client) -> Within<'_> {
    Within { client: connection, time: None }
}

/// A transaction of yours, as a [`Table`]. See [`within`].
#[derive(Debug)]
pub struct Within<'a> {
    pub(super) client: &'a Client,
    /// In microseconds. `None`, in a transaction of yours: the clock is read in each call.
    pub(super) time: Option<i64>,
}

/// This changes nothing, and makes a transaction of yours that has not read yet one that waits for others (SQLITE-1).
pub(super) const WAIT: &str = "DELETE FROM tickwheel_timers WHERE FALSE";

/// A time that never comes.
pub(super) const NEVER: i64 = i64::MAX;

pub(super) const COLUMNS: &str = "id, kind, key, payload, due, held_until, period_ms, rule, max_attempts, time_limit_ms, state, attempts, fence, owner, error, trace";

fn timer_in(row: &Row<'_>) -> rusqlite::Result<Timer> {
    let state: String = row.get("state")?;
    let state = State::of(&state).unwrap_or(State::Dead);
    let due: i64 = row.get("due")?;
    let held_until: Option<i64> = row.get("held_until")?;
    let period: Option<i64> = row.get("period_ms")?;
    let rule = text(row, "rule")?;
    let time_limit: Option<i64> = row.get("time_limit_ms")?;
    Ok(Timer {
        id: row.get("id")?,
        kind: text(row, "kind")?.unwrap_or_default(),
        key: text(row, "key")?.unwrap_or_default(),
        payload: bytes(row.get("payload")?),
        due: time(due),
        wake: (state != State::Dead).then(|| time(held_until.unwrap_or(due))),
        repetition: repetition_in(period, rule),
        max_attempts: row.get::<_, Option<i64>>("max_attempts")?.map(small),
        time_limit: time_limit.map(milliseconds),
        state,
        attempts: small(row.get("attempts")?),
        fence: row.get("fence")?,
        owner: text(row, "owner")?,
        error: text(row, "error")?,
        trace: text(row, "trace")?,
        shard: 0,
    })
}

/// Another program may have put in a text that is not UTF-8. That must not hold up others of its kind.
pub(super) fn text(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<String>> {
    let bytes = row.get_ref(column)?.as_bytes_or_null()?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// Another program may have put in a text.
fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::Blob(bytes) => bytes,
        Value::Text(text) => text.into_bytes(),
        Value::Null => Vec::new(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Real(number) => number.to_string().into_bytes(),
    }
}

pub(super) fn small(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

pub(super) fn time(milliseconds: i64) -> SystemTime {
    from_micros(milliseconds.saturating_mul(1000).min(LATEST))
}

/// Milliseconds, rounded up.
pub(super) fn millis(time: SystemTime) -> i64 {
    micros(time).saturating_add(999) / 1000
}

impl Within<'_> {
    fn micros(&self) -> i64 {
        self.time.unwrap_or_else(|| micros(time_of(self.client)))
    }

    /// Milliseconds, rounded down.
    pub(super) fn now(&self) -> i64 {
        self.micros() / 1000
    }

    pub(super) fn due(&self, when: When) -> i64 {
        match when {
            When::After(delay) if delay.is_zero() => self.now(),
            When::After(delay) => {
                (self.micros() + delay_micros(delay)).min(LATEST).saturating_add(999) / 1000
            }
            When::At(time) => millis(time),
        }
    }

    pub(super) fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Timer>> {
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let rows = statement.query_map(params_from_iter(values), timer_in).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// Returns the first timers that the query finds, as many as one claim takes, and whether there are more.
    pub(super) fn query_for_a_claim(
        &self,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<(Vec<Timer>, bool)> {
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let rows = statement.query_map(params_from_iter(values), timer_in).map_err(failed)?;
        let (mut timers, mut bytes) = (Vec::new(), 0);
        for timer in rows {
            let timer: Timer = timer.map_err(failed)?;
            bytes += timer.payload.len();
            if bytes > MOST_BYTES && !timers.is_empty() {
                return Ok((timers, true));
            }
            timers.push(timer);
        }
        Ok((timers, false))
    }
}

/// The timers that a filter names, in the order of a list, and the values of that.
fn named_by(filter: &Filter) -> (String, Vec<Value>) {
    let mut sql = "WHERE TRUE".to_owned();
    let mut values: Vec<Value> = Vec::new();
    if let Some(kind) = &filter.kind {
        sql += " AND kind = ?";
        values.push(kind.clone().into());
    }
    if let Some(state) = filter.state {
        sql += " AND state = ?";
        values.push(state.name().to_owned().into());
        if state == State::Dead {
            // They wake never, so the index finds them at the end of their kind, and no row of the others is read.
            sql += " AND wake = ?";
            values.push(NEVER.into());
        }
    }
    if let Some(prefix) = &filter.key_prefix {
        sql += " AND key >= ?";
        values.push(prefix.clone().into());
        if let Some(end) = behind(prefix) {
            sql += " AND key < ?";
            values.push(end.into());
        }
    }
    if let Some(until) = filter.until {
        sql += " AND wake <= ?";
        values.push((micros(until) / 1000).into());
    }
    if let Some(last) = &filter.after {
        sql += " AND (kind, wake, id) > (?, ?, ?)";
        let wake = last.wake.map_or(NEVER, millis);
        values.extend([last.kind.clone().into(), wake.into(), last.id.into()]);
    }
    sql += " ORDER BY kind, wake, id LIMIT ?";
    values.push(i64::from(filter.limit).into());
    (sql, values)
}

/// Returns the first text behind all that begin with this one, in the order of their bytes. `None`: there is none.
fn behind(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

impl Table for Within<'_> {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        let timers = &*checked(timers, || Ok(time(self.now())))?;
        if self.client.is_autocommit() {
            // A connection of the user's without a transaction. All are put in, or none.
            let own = self.client.unchecked_transaction().map_err(failed)?;
            let results = Within { client: &own, time: self.time }.schedule(timers, existing)?;
            own.commit().map_err(failed)?;
            return Ok(results);
        }
        // Ours have begun with a write.
        if self.time.is_none() && !timers.is_empty() {
            self.execute(WAIT, [])?;
        }
        let sql = "SELECT fence FROM tickwheel_timers WHERE kind = ?1 AND key = ?2";
        let mut find = self.client.prepare_cached(sql).map_err(failed)?;
        let sql = "INSERT INTO tickwheel_timers (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms, trace)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
            ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due,
                period_ms = excluded.period_ms, rule = excluded.rule, max_attempts = excluded.max_attempts,
                time_limit_ms = excluded.time_limit_ms, trace = excluded.trace, state = 'waiting', attempts = 0, fence = 0,
                held_until = NULL, owner = NULL, error = NULL";
        let mut insert = self.client.prepare_cached(sql).map_err(failed)?;
        let mut results = Vec::with_capacity(timers.len());
        for timer in timers {
            let key = (&timer.kind, &timer.key);
            let found: Option<i64> =
                find.query_row(key, |row| row.get(0)).optional().map_err(failed)?;
            if found.is_some() && existing == Existing::Keep {
                results.push(None);
                continue;
            }
            let due = self.due(timer.when);
            let (period, rule) = columns_of(timer.repetition.as_ref());
            let limit = timer.time_limit.map(delay_millis);
            let values = params![
                timer.kind,
                timer.key,
                timer.payload,
                due,
                period,
                rule,
                timer.max_attempts,
                limit,
                timer.trace
            ];
            insert.execute(values).map_err(failed)?;
            results.push(Some(Scheduled { due: time(due), replaced: found.is_some() }));
        }
        Ok(results)
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        // A rule may leave out a run that is late, so what is moved to a time that has passed is due now.
        let sql =
            "UPDATE tickwheel_timers SET due = CASE WHEN rule IS NULL THEN ?3 ELSE max(?3, ?4) END,
                held_until = NULL, attempts = 0, error = NULL
            WHERE kind = ?1 AND key = ?2 AND state = 'waiting' RETURNING due";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let values = params![kind, key, self.due(when), self.now()];
        let due = statement.query_row(values, |row| row.get(0)).optional().map_err(failed)?;
        Ok(due.map(time))
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        let sql = "DELETE FROM tickwheel_timers WHERE kind = ?1 AND key = ?2 RETURNING state";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let state: Option<String> =
            statement.query_row([kind, key], |row| row.get(0)).optional().map_err(failed)?;
        Ok(state.and_then(|state| State::of(&state)))
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        let sql = format!("SELECT {COLUMNS} FROM tickwheel_timers WHERE kind = ?1 AND key = ?2");
        Ok(self.query(&sql, vec![kind.to_owned().into(), key.to_owned().into()])?.pop())
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        let (named, values) = named_by(filter);
        self.query(&format!("SELECT {COLUMNS} FROM tickwheel_timers {named}"), values)
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        let sql = "UPDATE tickwheel_timers
            SET state = 'waiting', due = ?3, held_until = NULL, attempts = 0
            WHERE kind = ?1 AND (?2 IS NULL OR key = ?2) AND state = 'dead'";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let count = statement.execute(params![kind, key, self.due(when)]).map_err(failed)?;
        Ok(count as u64)
    }

    fn set_payload(&mut self, kind: &str, key: &str, payload: &[u8]) -> Result<bool> {
        let sql = "UPDATE tickwheel_timers SET payload = ?3 WHERE kind = ?1 AND key = ?2 AND state <> 'running'";
        Ok(self.execute(sql, params![kind, key, payload])? > 0)
    }

    fn cancel_all(&mut self, filter: &Filter) -> Result<u64> {
        let (named, values) = named_by(filter);
        let sql = format!(
            "DELETE FROM tickwheel_timers WHERE id IN (SELECT id FROM tickwheel_timers {named})"
        );
        Ok(self.execute(&sql, params_from_iter(values))? as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_a_text_is_before_another() {
        assert_eq!(behind("a/").as_deref(), Some("a0"));
        assert_eq!(behind("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(behind("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!((behind("\u{10ffff}"), behind("")), (None, None));
    }
}
