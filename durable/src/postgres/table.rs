//! Timers as users see them: [`within`] a transaction of theirs, and the columns of a row.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres::types::private::BytesMut;
use postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use postgres::{GenericClient, Row, Statement};

use super::link::Sql;
use super::{failed, only_row, placed, quoted};
use crate::clock::{LATEST, from_micros, micros};
use crate::columns::{
    checked, columns_of, delay_micros, delay_millis, milliseconds, repetition_in,
};
use crate::error::Result;
use crate::store::{Existing, Table};
use crate::timer::{Filter, NewTimer, Scheduled, State, Timer, When};

/// Schedules, resets and cancels inside a transaction of yours.
///
/// What it returns is a [`Table`]. Workers are told when the transaction commits.
///
/// ```no_run
/// use std::time::Duration;
/// use tickwheel_durable::{Existing, NewTimer, Table, postgres};
/// # use ::postgres as client;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut mine = client::Client::connect("postgres://me@localhost/shop", client::NoTls)?;
/// let mut order = mine.transaction()?;
/// order.execute("INSERT INTO orders VALUES (4711)", &[])?;
/// let unpaid = NewTimer::new("cancel order", "4711", Duration::from_secs(1800));
/// postgres::within(&mut order).schedule(&[unpaid], Existing::Replace)?;
/// order.commit()?; // the order and its timer, or neither
/// # Ok(())
/// # }
/// ```
pub fn within<C: GenericClient>(client: &mut C) -> Within<'_, C> {
    Within { client, prepared: None, is_alone: false, schema: None }
}

/// A statement that has taken longer than so long, and so long for each row, is prepared anew: the server keeps plans, and this
/// one may be from a time when the table was small.
const SLOW: (Duration, Duration) = (Duration::from_millis(5), Duration::from_micros(100));

/// A transaction of yours, as a [`Table`]. See [`within`].
pub struct Within<'a, C> {
    pub(super) client: &'a mut C,
    /// Statements that the server knows already, on a connection of our own. Others have none that are named (PG-4).
    pub(super) prepared: Option<&'a mut HashMap<&'static str, Statement>>,
    /// Each query is a transaction with settings of its own (PG-4).
    pub(super) is_alone: bool,
    /// The schema of the tables, quoted, if it was named.
    pub(super) schema: Option<Arc<str>>,
}

impl<C> Within<'_, C> {
    /// Names the schema of the tables, which need not be in the search path then.
    ///
    /// # Errors
    ///
    /// [`Error::Address`](crate::Error::Address) if the name contains something else than letters, digits and underscores.
    pub fn in_schema(self, name: &str) -> Result<Self> {
        Ok(Within { schema: Some(quoted(name)?.into()), ..self })
    }
}

/// A parameter of a statement, which tells its type, so that the server need not be asked for it.
pub(super) trait Value: ToSql + Sync {
    fn sql_type(&self) -> Type;
    fn as_sql(&self) -> &(dyn ToSql + Sync);
}

macro_rules! values {
    ($($value:ty: $one:ident, $many:ident;)*) => { $(
        values!(impl $value: $one);
        values!(impl Option<$value>: $one);
        values!(impl Vec<$value>: $many);
        values!(impl Vec<Option<$value>>: $many);
    )* };
    (impl $value:ty: $type:ident) => {
        impl Value for $value {
            fn sql_type(&self) -> Type {
                Type::$type
            }

            fn as_sql(&self) -> &(dyn ToSql + Sync) {
                self
            }
        }
    };
}

values! {
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &String: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    SystemTime: TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
    Interval: INTERVAL, INTERVAL_ARRAY;
}
values!(impl &[&str]: TEXT_ARRAY);
values!(impl bool: BOOL);

/// An interval of so many microseconds, which has no days and months of its own.
#[derive(Debug)]
struct Interval(i64);

impl ToSql for Interval {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        Ok(IsNull::No)
    }

    accepts!(INTERVAL);
    to_sql_checked!();
}

impl<C> fmt::Debug for Within<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within").finish_non_exhaustive()
    }
}

/// The columns of a timer, of a table with this prefix.
macro_rules! columns {
    ($table:literal) => {
        concat!(
            $table,
            "id, ",
            $table,
            "kind, ",
            $table,
            "key, ",
            $table,
            "payload, ",
            $table,
            "due, nullif(",
            $table,
            "wake, 'infinity') AS wakes, ",
            $table,
            "period_ms, ",
            $table,
            "rule, ",
            $table,
            "max_attempts, ",
            $table,
            "time_limit_ms, ",
            $table,
            "state, ",
            $table,
            "attempts, ",
            $table,
            "fence, ",
            $table,
            "owner, ",
            $table,
            "error, ",
            $table,
            "trace"
        )
    };
}

pub(super) use columns;

pub(super) fn timer_in(row: &Row) -> Result<Timer> {
    let state: &str = row.try_get("state").map_err(failed)?;
    let period: Option<i64> = row.try_get("period_ms").map_err(failed)?;
    let rule: Option<String> = row.try_get("rule").map_err(failed)?;
    let limit: Option<i64> = row.try_get("time_limit_ms").map_err(failed)?;
    let count = |column| row.try_get(column).map(|count: Option<i32>| count.map(i32::unsigned_abs));
    Ok(Timer {
        id: row.try_get("id").map_err(failed)?,
        kind: row.try_get("kind").map_err(failed)?,
        key: row.try_get("key").map_err(failed)?,
        payload: row.try_get("payload").map_err(failed)?,
        due: row.try_get("due").map_err(failed)?,
        wake: row.try_get("wakes").map_err(failed)?,
        repetition: repetition_in(period, rule),
        max_attempts: count("max_attempts").map_err(failed)?,
        time_limit: limit.map(milliseconds),
        state: State::of(state).unwrap_or(State::Dead),
        attempts: count("attempts").map_err(failed)?.unwrap_or(0),
        fence: row.try_get("fence").map_err(failed)?,
        owner: row.try_get("owner").map_err(failed)?,
        error: row.try_get("error").map_err(failed)?,
        trace: row.try_get("trace").map_err(failed)?,
        shard: 0,
    })
}

/// Milliseconds for a multiplication with an interval.
#[expect(clippy::cast_precision_loss, reason = "a few microseconds in thousands of years")]
pub(super) fn for_interval(duration: Duration) -> f64 {
    delay_micros(duration) as f64 / 1000.0
}

/// The arguments `at` and `after` of a function, of which one is NULL. Times are rounded up to microseconds.
fn split(when: When) -> (Option<SystemTime>, Option<Interval>) {
    match when {
        When::At(time) => (Some(from_micros(micros(time))), None),
        When::After(delay) => (None, Some(Interval(delay_micros(delay)))),
    }
}

/// The settings of a call of ours. A lock may be held by a handler's transaction, or by one of the user's. At a higher
/// isolation, claims at the same time would fail instead of passing over each other's rows. If this process is halted before the
/// COMMIT, the server takes the locks back, so that others may claim.
pub(super) const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '10s';
    SET LOCAL idle_in_transaction_session_timeout = '10s'";

impl<C: Sql> Within<'_, C> {
    pub(super) fn query(&mut self, sql: &'static str, values: &[&dyn Value]) -> Result<Vec<Row>> {
        if self.is_alone { self.alone(|own| own.send(sql, values)) } else { self.send(sql, values) }
    }

    /// Does something in a transaction with settings of its own.
    pub(super) fn alone<T>(
        &mut self,
        work: impl FnOnce(&mut Within<'_, C>) -> Result<T>,
    ) -> Result<T> {
        self.client.batch(BEGIN).map_err(failed)?;
        let (prepared, schema) = (self.prepared.as_deref_mut(), self.schema.clone());
        let own = &mut Within { client: &mut *self.client, prepared, is_alone: false, schema };
        let done = work(own);
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.client.batch(end).map_err(failed);
        done.and_then(|done| ended.map(|()| done))
    }

    fn send(&mut self, sql: &'static str, values: &[&dyn Value]) -> Result<Vec<Row>> {
        let Some(prepared) = &mut self.prepared else {
            let typed = values.iter().map(|value| (value.as_sql(), value.sql_type()));
            let placed = placed(sql, self.schema.as_deref());
            return self.client.send_once(&placed, &typed.collect::<Vec<_>>()).map_err(failed);
        };
        let values: Vec<_> = values.iter().map(|value| value.as_sql()).collect();
        let statement = if let Some(known) = prepared.get(sql) {
            known.clone()
        } else {
            let placed = placed(sql, self.schema.as_deref());
            let statement = self.client.name(&placed).map_err(failed)?;
            prepared.entry(sql).or_insert(statement).clone()
        };
        let began = Instant::now();
        let rows = self.client.send_named(&statement, &values).map_err(failed)?;
        if began.elapsed() > SLOW.0 + SLOW.1 * rows.len() as u32 {
            prepared.remove(sql);
        }
        Ok(rows)
    }
}

/// The timers that a filter names, as `t`, in the order of a list. A parameter that is NULL leaves its condition out. The statement is
/// planned with the values, so it uses the index. Kinds are in the order of their bytes, whatever the language of the database, so that
/// lists of several can be merged. The index may have another order, so the kinds are looked up first, each with a probe of the index.
/// What is `dead` wakes never, so it is at the end of each kind.
macro_rules! list {
    () => {
        list!("")
    };
    (dead) => {
        list!("AND t.wake = 'infinity'")
    };
    ($also:literal) => {
        concat!(
            " FROM (WITH RECURSIVE kinds (kind) AS (
                    SELECT coalesce($1::text, (SELECT min(t.kind) FROM tickwheel_timers t))
                    UNION ALL
                    SELECT (SELECT min(t.kind) FROM tickwheel_timers t WHERE t.kind > kinds.kind) FROM kinds
                    WHERE kinds.kind IS NOT NULL AND $1 IS NULL)
                SELECT kind COLLATE \"C\" AS name, kind, kind = $4::text AS is_last FROM kinds
                WHERE $4 IS NULL OR kind COLLATE \"C\" >= $4 ORDER BY 1) kinds
            CROSS JOIN LATERAL (SELECT * FROM tickwheel_timers t
                WHERE t.kind = kinds.kind AND ($2::text IS NULL OR t.state = $2)
                    AND ($3::timestamptz IS NULL OR t.wake <= $3)
                    AND ($8::text IS NULL OR t.key LIKE $8)
                    AND ($6::bigint IS NULL OR (t.wake, t.id) > (
                        CASE WHEN is_last THEN coalesce($5::timestamptz, 'infinity') ELSE '-infinity' END,
                        CASE WHEN is_last THEN $6 ELSE 0 END)) ",
            $also,
            " ORDER BY t.wake, t.id LIMIT $7) t
            ORDER BY kinds.name, t.wake, t.id LIMIT $7"
        )
    };
}

/// The columns of new timers.
#[derive(Default)]
struct NewRows<'a> {
    kinds: Vec<&'a str>,
    keys: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    at: Vec<Option<SystemTime>>,
    after: Vec<Option<Interval>>,
    periods: Vec<Option<i64>>,
    rules: Vec<Option<&'a str>>,
    max_attempts: Vec<Option<i32>>,
    time_limits: Vec<Option<i64>>,
    traces: Vec<Option<&'a str>>,
}

impl<'a> NewRows<'a> {
    fn push(&mut self, timer: &'a NewTimer) {
        let (at, after) = split(timer.when);
        let (period, rule) = columns_of(timer.repetition.as_ref());
        self.kinds.push(&timer.kind);
        self.keys.push(&timer.key);
        self.payloads.push(&timer.payload);
        self.at.push(at);
        self.after.push(after);
        self.periods.push(period);
        self.rules.push(rule);
        self.max_attempts
            .push(timer.max_attempts.map(|most| i32::try_from(most).unwrap_or(i32::MAX)));
        self.time_limits.push(timer.time_limit.map(delay_millis));
        self.traces.push(timer.trace.as_deref());
    }
}

impl<C: Sql> Within<'_, C> {
    /// Sends a statement that has the parameters of a list, planned with these values.
    fn listed(&mut self, sql: &'static str, filter: &Filter) -> Result<Vec<Row>> {
        let last = filter.after.as_ref();
        let values: &[&dyn Value] = &[
            &filter.kind,
            &filter.state.map(State::name),
            // A time far away is more than the client can send.
            &filter.until.map(|until| until.clamp(UNIX_EPOCH, from_micros(LATEST))),
            &last.map(|last| &last.kind),
            &last.and_then(|last| last.wake),
            &last.map(|last| last.id),
            &i64::from(filter.limit),
            &filter.key_prefix.as_deref().map(pattern),
        ];
        self.unnamed().query(sql, values)
    }

    /// For statements that are planned with their values.
    pub(super) fn unnamed(&mut self) -> Within<'_, C> {
        let (is_alone, schema) = (self.is_alone, self.schema.clone());
        Within { client: &mut *self.client, prepared: None, is_alone, schema }
    }
}

/// Returns true if one of these texts is in no table: one with the character 0, which the server would refuse as an error of encoding. Of
/// such a name nothing is found, as in SQLite.
pub(super) fn is_nowhere<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    texts.into_iter().any(|text| text.contains('\0'))
}

fn names_nothing(filter: &Filter) -> bool {
    let texts = [filter.kind.as_deref(), filter.key_prefix.as_deref()];
    is_nowhere(texts.into_iter().flatten())
}

/// A pattern of all texts that begin with this one. An index serves it if the database sorts texts by their bytes.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::new();
    for letter in prefix.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "%"
}

impl<C: Sql> Table for Within<'_, C> {
    /// Of several with the same kind and key the last one is put in, or, if existing ones are kept, the first.
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        const ONE: &str = "SELECT due, replaced, ($1::text[])[1], ($2::text[])[1] FROM tickwheel_schedule(($1::text[])[1], ($2::text[])[1],
            ($3::bytea[])[1], ($4::timestamptz[])[1], ($5::interval[])[1], ($6::bigint[])[1], ($7::text[])[1],
            ($8::integer[])[1], ($9::bigint[])[1], $10, ($11::text[])[1])";
        const MANY: &str = "SELECT due, replaced, kind, key
            FROM tickwheel_schedule_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let timers = &*checked(timers, || {
            only_row(self.query("SELECT tickwheel_now()", &[])?)?.try_get(0).map_err(failed)
        })?;
        let mut rows = NewRows::default();
        timers.iter().for_each(|timer| rows.push(timer));
        let written = self.query(
            if timers.len() == 1 { ONE } else { MANY },
            &[
                &rows.kinds,
                &rows.keys,
                &rows.payloads,
                &rows.at,
                &rows.after,
                &rows.periods,
                &rows.rules,
                &rows.max_attempts,
                &rows.time_limits,
                &(existing == Existing::Keep),
                &rows.traces,
            ],
        )?;
        let mut found: HashMap<(&str, &str), Scheduled> = HashMap::with_capacity(written.len());
        for row in &written {
            let scheduled = Scheduled {
                due: row.try_get(0).map_err(failed)?,
                replaced: row.try_get(1).map_err(failed)?,
            };
            let name = (row.try_get(2).map_err(failed)?, row.try_get(3).map_err(failed)?);
            found.insert(name, scheduled);
        }
        Ok(timers
            .iter()
            .map(|timer| (timer.kind.as_str(), timer.key.as_str()))
            .map(|name| match existing {
                Existing::Replace => found.get(&name).copied(),
                Existing::Keep => found.remove(&name), // of several only the first
            })
            .collect())
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        if is_nowhere([kind, key]) {
            return Ok(None);
        }
        let (at, after) = split(when);
        let sql = "SELECT tickwheel_reset($1, $2, $3, $4)";
        only_row(self.query(sql, &[&kind, &key, &at, &after])?)?.try_get(0).map_err(failed)
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        if is_nowhere([kind, key]) {
            return Ok(None);
        }
        let row = only_row(self.query("SELECT tickwheel_cancel($1, $2)", &[&kind, &key])?)?;
        let state: Option<&str> = row.try_get(0).map_err(failed)?;
        Ok(state.and_then(State::of))
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        const SQL: &str = concat!("SELECT ", columns!(""), " FROM tickwheel_get($1, $2)");
        if is_nowhere([kind, key]) {
            return Ok(None);
        }
        self.query(SQL, &[&kind, &key])?.first().map(timer_in).transpose()
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        const ALL: &str = concat!("SELECT ", columns!("t."), list!());
        const DEAD: &str = concat!("SELECT ", columns!("t."), list!(dead));
        let sql = if filter.state == Some(State::Dead) { DEAD } else { ALL };
        if names_nothing(filter) {
            return Ok(Vec::new());
        }
        self.listed(sql, filter)?.iter().map(timer_in).collect()
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        if is_nowhere([Some(kind), key].into_iter().flatten()) {
            return Ok(0);
        }
        let (at, after) = split(when);
        let sql = "SELECT tickwheel_requeue($1, $2, $3, $4)";
        let row = only_row(self.query(sql, &[&kind, &key, &at, &after])?)?;
        row.try_get(0).map(i64::unsigned_abs).map_err(failed)
    }

    fn set_payload(&mut self, kind: &str, key: &str, payload: &[u8]) -> Result<bool> {
        let sql = "UPDATE tickwheel_timers SET payload = $3
            WHERE kind = $1 AND key = $2 AND state <> 'running' RETURNING id";
        if is_nowhere([kind, key]) {
            return Ok(false);
        }
        Ok(!self.query(sql, &[&kind, &key, &payload])?.is_empty())
    }

    fn cancel_all(&mut self, filter: &Filter) -> Result<u64> {
        // They are locked in the order of their names (PG-2). One that somebody has changed in the meantime is looked at again.
        macro_rules! cancel {
            ($($which:ident)?) => {
                concat!(
                    "WITH listed AS (SELECT t.id, t.kind, t.key",
                    list!($($which)?),
                    "), locked AS (
                        SELECT t.id FROM listed JOIN tickwheel_timers t ON t.id = listed.id
                        WHERE ($2 IS NULL OR t.state = $2) AND ($3 IS NULL OR t.wake <= $3)
                        ORDER BY t.kind COLLATE \"C\", t.key COLLATE \"C\" FOR UPDATE OF t),
                    gone AS (DELETE FROM tickwheel_timers t USING locked WHERE t.id = locked.id RETURNING t.id)
                    SELECT count(*) FROM gone"
                )
            };
        }
        const ALL: &str = cancel!();
        const DEAD: &str = cancel!(dead);
        let sql = if filter.state == Some(State::Dead) { DEAD } else { ALL };
        if names_nothing(filter) {
            return Ok(0);
        }
        let row = only_row(self.listed(sql, filter)?)?;
        row.try_get(0).map(i64::unsigned_abs).map_err(failed)
    }
}
