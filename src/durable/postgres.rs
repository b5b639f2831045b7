//! Timers in a PostgreSQL database: [`Postgres`], and [`within`] a transaction of yours.
//!
//! Any number of processes on any number of machines may share the tables. A claim locks the rows that it takes, and
//! passes over rows that are locked, so workers never wait for each other.
//!
//! - PG-1 Every statement reads the time through `tickwheel_now()`, and where it is compared with a column, in a scalar
//!   subquery. So the time is read once, and the index on `(kind, wake, id)` is used up to it.
//! - PG-2 Workers never wait for a lock: they pass over a row that is locked. Users' calls that change several timers lock
//!   those that are there in the order of their numbers, before they change any. So there are no deadlocks.
//! - PG-3 A handler in a transaction holds the lock of its timer's row, which stands for its lease. Nobody claims a row
//!   that is locked, so the lease is not extended meanwhile.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, Config, GenericClient, NoTls, Row, Statement};

use super::clock::{LATEST, delay_micros, from_micros, micros};
use super::error::{Error, Result};
use super::handler::Work;
use super::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Listener, Look, News,
    RunId, SCHEMA_VERSION, Store, Table, Then, Transacted, Transactions,
};
use super::timer::{Filter, KindCounts, NewTimer, Repetition, Scheduled, State, Timer, When};

/// The tables, as other programs may use them. The page of the module [`durable`](super#the-tables) explains them.
pub const SCHEMA: &str = include_str!("postgres.sql");

/// Any number, but the same for all processes that create the tables: one at a time does.
const MAKING_TABLES: i64 = 0x7469_636b_7768;

/// For how long an answer is awaited on a connection where nothing moves, and how soon a connection is tested.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that nobody has used for so long is tried before it is used.
const STALE: Duration = Duration::from_secs(1);

/// How our own connections are set. A lock may be held by a handler's transaction, or by one of the user's. At a higher
/// isolation, claims at the same time would fail instead of passing over each other's rows.
const SETTINGS: &str = "SET lock_timeout = '10s';
    SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";

type Connect = dyn Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync;

/// A PostgreSQL database that keeps timers. Needs version 12 or later.
#[derive(Clone)]
pub struct Postgres {
    connect: Arc<Connect>,
}

impl Postgres {
    /// Names a database by its URL, or by key and value pairs such as `host=/run/postgresql user=me`.
    ///
    /// Connections have no TLS. For that, give a connector to [`with_connector`](Postgres::with_connector). The tables are
    /// created in the first schema of the user's search path. The URL may choose another one with
    /// `?options=-c%20search_path%3Dname`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if this is no address.
    pub fn new(address: &str) -> Result<Postgres> {
        let mut config = Config::from_str(address).map_err(|error| {
            Error::Address(format!("{} is no address", super::error::with_causes(&error)))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("tickwheel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(PATIENCE).keepalives_idle(PATIENCE);
        }
        Ok(Postgres::with_connector(move || config.connect(NoTls)))
    }

    /// Connects as this function does, for connections with TLS or with settings of your own.
    pub fn with_connector(
        connect: impl Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync + 'static,
    ) -> Postgres {
        Postgres { connect: Arc::new(connect) }
    }

    fn client(&self) -> Result<Client> {
        (self.connect)().map_err(Error::unreachable)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive() // the address may contain a password
    }
}

/// An error without an answer of the server is one of the connection. So are answers of a server that goes down, or
/// that has become a standby.
fn failed(error: postgres::Error) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::Busy;
    }
    let is_answer = error.code().is_some_and(|code| {
        let class = &code.code()[..2];
        class != "08" && class != "57" && *code != SqlState::READ_ONLY_SQL_TRANSACTION
            || *code == SqlState::QUERY_CANCELED
    });
    if is_answer { Error::refused(error) } else { Error::unreachable(error) }
}

impl Store for Postgres {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        let mut client = self.client()?;
        client.batch_execute(SETTINGS).map_err(failed)?;
        Ok(Box::new(Session { client, prepared: HashMap::new(), used: Instant::now() }))
    }

    fn migrate(&self) -> Result<()> {
        let mut client = self.client()?;
        let mut transaction = client.transaction().map_err(failed)?;
        transaction
            .execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING_TABLES])
            .map_err(failed)?;
        let versions = "CREATE TABLE IF NOT EXISTS tickwheel_schema (version integer NOT NULL, oldest integer NOT NULL)";
        let exists = "SELECT to_regclass('tickwheel_schema') IS NOT NULL";
        if !transaction.query_one(exists, &[]).map_err(failed)?.get::<_, bool>(0) {
            transaction.batch_execute(versions).map_err(failed)?;
        }
        let version = "SELECT version, oldest FROM tickwheel_schema";
        match transaction.query_opt(version, &[]).map_err(failed)? {
            None => transaction.batch_execute(SCHEMA).map_err(failed)?,
            Some(row) if row.get::<_, i32>(1) > SCHEMA_VERSION => {
                return Err(Error::Schema(row.get(1)));
            }
            Some(_) => {}
        }
        transaction.commit().map_err(failed)
    }

    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        let mut client = self.client()?;
        client.batch_execute("LISTEN tickwheel_timers").map_err(failed)?;
        let schema = "SELECT nspname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        let schema = client.query_one(schema, &[]).map_err(failed)?.get(0);
        Ok(Some(Box::new(Ear { client, schema })))
    }

    fn transactions(&self) -> Transactions {
        Transactions::Postgres
    }
}

/// Schedules, resets and cancels inside a transaction of yours.
///
/// What it returns is a [`Table`]. Workers are told when the transaction commits.
///
/// ```no_run
/// use std::time::Duration;
/// use tickwheel::durable::{Existing, NewTimer, Table, postgres};
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
    Within { client, prepared: None }
}

/// A transaction of yours, as a [`Table`]. See [`within`].
pub struct Within<'a, C> {
    client: &'a mut C,
    /// Statements that the server knows already, on a connection of our own.
    prepared: Option<&'a mut HashMap<&'static str, Statement>>,
}

impl<C> fmt::Debug for Within<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within").finish_non_exhaustive()
    }
}

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
            "error"
        )
    };
}

fn timer_in(row: &Row) -> Result<Timer> {
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
        repetition: rule
            .map(Repetition::Rule)
            .or_else(|| period.map(|period| Repetition::Every(milliseconds(period)))),
        max_attempts: count("max_attempts").map_err(failed)?,
        time_limit: limit.map(milliseconds),
        state: State::of(state).unwrap_or(State::Dead),
        attempts: count("attempts").map_err(failed)?.unwrap_or(0),
        fence: row.try_get("fence").map_err(failed)?,
        owner: row.try_get("owner").map_err(failed)?,
        error: row.try_get("error").map_err(failed)?,
    })
}

fn milliseconds(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000))
        .unwrap_or(LATEST / 1000)
        .min(LATEST / 1000)
}

/// Milliseconds for a multiplication with an interval.
#[expect(clippy::cast_precision_loss, reason = "a few microseconds in thousands of years")]
fn for_interval(duration: Duration) -> f64 {
    delay_micros(duration) as f64 / 1000.0
}

/// What is put into the columns `at` and `after_ms`, of which one is NULL. Times are rounded up to microseconds, and kept
/// between 1970 and 9998.
fn split(when: When) -> (Option<SystemTime>, Option<f64>) {
    match when {
        When::At(time) => (Some(from_micros(micros(time))), None),
        When::After(delay) => (None, Some(for_interval(delay))),
    }
}

/// The due time of parameters `at` and `after_ms`.
macro_rules! due {
    ($at:literal, $after:literal) => {
        concat!(
            "coalesce(",
            $at,
            "::timestamptz, least(tickwheel_now() + ",
            $after,
            "::float8 * interval '1 millisecond', '9998-12-31 00:00Z'))"
        )
    };
}

impl<C: GenericClient> Within<'_, C> {
    fn query(&mut self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let Some(prepared) = &mut self.prepared else {
            return self.client.query(sql, values).map_err(failed);
        };
        let statement = if let Some(known) = prepared.get(sql) {
            known.clone()
        } else {
            let statement = self.client.prepare(sql).map_err(failed)?;
            prepared.entry(sql).or_insert(statement).clone()
        };
        self.client.query(&statement, values).map_err(failed)
    }
}

/// The columns of new timers, in the order of kind and key.
#[derive(Default)]
struct NewRows<'a> {
    kinds: Vec<&'a str>,
    keys: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    at: Vec<Option<SystemTime>>,
    after: Vec<Option<f64>>,
    periods: Vec<Option<i64>>,
    rules: Vec<Option<&'a str>>,
    max_attempts: Vec<Option<i32>>,
    time_limits: Vec<Option<i64>>,
}

impl<'a> NewRows<'a> {
    fn push(&mut self, timer: &'a NewTimer) {
        let (at, after) = split(timer.when);
        let (period, rule) = match &timer.repetition {
            Some(Repetition::Every(period)) => (Some(whole_millis(*period)), None),
            Some(Repetition::Rule(rule)) => (None, Some(rule.as_str())),
            None => (None, None),
        };
        self.kinds.push(&timer.kind);
        self.keys.push(&timer.key);
        self.payloads.push(&timer.payload);
        self.at.push(at);
        self.after.push(after);
        self.periods.push(period);
        self.rules.push(rule);
        self.max_attempts
            .push(timer.max_attempts.map(|most| i32::try_from(most).unwrap_or(i32::MAX)));
        self.time_limits.push(timer.time_limit.map(whole_millis));
    }
}

macro_rules! insert {
    ($with:literal, $from:literal, $on_conflict:literal) => {
        concat!(
            $with,
            " INSERT INTO tickwheel_timers AS t (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
             SELECT kind, key, payload, ", due!("at", "after_ms"), ", period_ms, rule, max_attempts, time_limit_ms
             FROM ", $from, " unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[], $5::float8[], $6::bigint[],
                 $7::text[], $8::integer[], $9::bigint[])
                 AS new (kind, key, payload, at, after_ms, period_ms, rule, max_attempts, time_limit_ms)
             ON CONFLICT (kind, key) ",
            $on_conflict,
            " RETURNING kind, key, due, t.xmax::text <> '0'"
        )
    };
}

macro_rules! replace {
    ($with:literal, $from:literal) => {
        insert!(
            $with,
            $from,
            "DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
                rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms,
                state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL"
        )
    };
}

const REPLACE_ONE: &str = replace!("", "");

/// The count makes the server lock what is there before it puts in the first (PG-2).
const REPLACE: &str = replace!(
    "WITH known AS (
        SELECT id FROM tickwheel_timers JOIN unnest($1::text[], $2::text[]) AS new (kind, key) USING (kind, key)
        ORDER BY id FOR UPDATE OF tickwheel_timers)",
    "(SELECT count(*) FROM known) locked,"
);

const KEEP: &str = insert!("", "", "DO NOTHING");

impl<C: GenericClient> Table for Within<'_, C> {
    /// Of several with the same kind and key the last one is put in, or, if existing ones are kept, the first.
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        timers.iter().try_for_each(NewTimer::check)?;
        let mut order: Vec<usize> = (0..timers.len()).collect();
        let name = |index: usize| (timers[index].kind.as_str(), timers[index].key.as_str());
        order.sort_by(|one, other| name(*one).cmp(&name(*other))); // equal ones stay in order
        let mut rows = NewRows::default();
        for same in order.chunk_by(|one, other| name(*one) == name(*other)) {
            let chosen = if existing == Existing::Keep { same.first() } else { same.last() };
            chosen.into_iter().for_each(|index| rows.push(&timers[*index]));
        }
        let sql = match existing {
            Existing::Keep => KEEP,
            Existing::Replace if rows.keys.len() == 1 => REPLACE_ONE,
            Existing::Replace => REPLACE,
        };
        let written = self.query(
            sql,
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
            ],
        )?;
        let mut found: HashMap<(&str, &str), Scheduled> = HashMap::with_capacity(written.len());
        for row in &written {
            let scheduled = Scheduled {
                due: row.try_get(2).map_err(failed)?,
                replaced: row.try_get(3).map_err(failed)?,
            };
            found.insert(
                (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?),
                scheduled,
            );
        }
        Ok((0..timers.len())
            .map(|index| match existing {
                Existing::Replace => found.get(&name(index)).copied(),
                Existing::Keep => found.remove(&name(index)), // of several only the first
            })
            .collect())
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        const SQL: &str = concat!(
            "UPDATE tickwheel_timers SET held_until = NULL, attempts = 0, error = NULL, due = ",
            due!("$3", "$4"),
            " WHERE kind = $1 AND key = $2 AND state = 'waiting' RETURNING due"
        );
        let (at, after) = split(when);
        let rows = self.query(SQL, &[&kind, &key, &at, &after])?;
        rows.first().map(|row| row.try_get(0).map_err(failed)).transpose()
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        let sql = "DELETE FROM tickwheel_timers WHERE kind = $1 AND key = $2 RETURNING state";
        let rows = self.query(sql, &[&kind, &key])?;
        let state =
            rows.first().map(|row| row.try_get::<_, &str>(0).map_err(failed)).transpose()?;
        Ok(state.and_then(State::of))
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        const SQL: &str =
            concat!("SELECT ", columns!(""), " FROM tickwheel_timers WHERE kind = $1 AND key = $2");
        self.query(SQL, &[&kind, &key])?.first().map(timer_in).transpose()
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        // A parameter that is NULL leaves its condition out. The statement is planned with the values, so it uses the index.
        const SQL: &str = concat!(
            "SELECT ",
            columns!(""),
            " FROM tickwheel_timers
             WHERE ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR state = $2)
                AND ($3::timestamptz IS NULL OR wake <= $3)
                AND ($6::bigint IS NULL OR (kind, wake, id) > ($4, coalesce($5::timestamptz, 'infinity'), $6))
             ORDER BY kind, wake, id LIMIT $7"
        );
        let last = filter.after.as_ref();
        let rows = self.client.query(
            SQL,
            &[
                &filter.kind,
                &filter.state.map(State::name),
                &filter.until,
                &last.map(|last| &last.kind),
                &last.and_then(|last| last.wake),
                &last.map(|last| last.id),
                &i64::from(filter.limit),
            ],
        );
        rows.map_err(failed)?.iter().map(timer_in).collect()
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        const SQL: &str = concat!(
            "WITH dead AS (
                SELECT id FROM tickwheel_timers
                WHERE kind = $1 AND ($2::text IS NULL OR key = $2) AND state = 'dead' ORDER BY id FOR UPDATE)
             UPDATE tickwheel_timers t SET state = 'waiting', held_until = NULL, attempts = 0, due = ",
            due!("$3", "$4"),
            " FROM dead WHERE t.id = dead.id RETURNING t.id"
        );
        let (at, after) = split(when);
        Ok(self.query(SQL, &[&kind, &key, &at, &after])?.len() as u64)
    }
}

/// A connection of our own.
struct Session {
    client: Client,
    prepared: HashMap<&'static str, Statement>,
    used: Instant,
}

impl Session {
    fn table(&mut self) -> Within<'_, Client> {
        Within { client: &mut self.client, prepared: Some(&mut self.prepared) }
    }
}

impl Table for Session {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        self.table().schedule(timers, existing)
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        self.table().reset(kind, key, when)
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        self.table().cancel(kind, key)
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.table().get(kind, key)
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        self.table().list(filter)
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        self.table().requeue(kind, key, when)
    }
}

impl Connection for Session {
    /// A client notices only when it is used that the server has closed the connection.
    fn is_open(&mut self) -> bool {
        let is_stale = self.used.elapsed() > STALE;
        self.used = Instant::now();
        !self.client.is_closed() && (!is_stale || self.client.is_valid(PATIENCE).is_ok())
    }

    fn announce(&mut self) -> Result<()> {
        let sql = "SELECT pg_notify('tickwheel_timers', '0 ' || nspname || '/')
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        self.client.batch_execute(sql).map_err(failed)
    }

    fn now(&mut self) -> Result<SystemTime> {
        let rows = self.table().query("SELECT tickwheel_now()", &[])?;
        let row = rows.first().ok_or_else(no_row)?;
        row.try_get(0).map_err(failed)
    }

    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look> {
        // The answer has at least one row, with the time and the version.
        const SQL: &str = "SELECT tickwheel_now(), schema.oldest, found.position, found.wake
            FROM tickwheel_schema schema LEFT JOIN (
                SELECT k.position, w.wake FROM unnest($1::text[]) WITH ORDINALITY AS k (kind, position)
                CROSS JOIN LATERAL (
                    SELECT wake FROM tickwheel_timers t
                    WHERE t.kind = k.kind
                        AND wake <= (SELECT tickwheel_now() + $2::float8 * interval '1 millisecond')
                    ORDER BY wake LIMIT $3) w) found ON true
            ORDER BY found.position, found.wake";
        let rows = self.table().query(SQL, &[&kinds, &for_interval(horizon), &i64::from(limit)])?;
        let first = rows.first().ok_or_else(no_row)?;
        let oldest: i32 = first.try_get(1).map_err(failed)?;
        if oldest > SCHEMA_VERSION {
            return Err(Error::Schema(oldest));
        }
        let mut wakes = Vec::with_capacity(rows.len());
        for row in &rows {
            let position: Option<i64> = row.try_get(2).map_err(failed)?;
            if let Some(position) = position.and_then(|position| usize::try_from(position - 1).ok())
            {
                wakes.push((position, row.try_get(3).map_err(failed)?));
            }
        }
        Ok(Look { now: first.try_get(0).map_err(failed)?, wakes })
    }

    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed> {
        const SQL: &str = concat!(
            "WITH clock AS MATERIALIZED (SELECT tickwheel_now() AS now),
            due AS (
                SELECT id, wake, state, owner, state = 'running' AND attempts >= coalesce(max_attempts, $5) AS is_over
                FROM tickwheel_timers WHERE kind = $1 AND wake <= (SELECT now FROM clock)
                ORDER BY wake, id LIMIT $2 FOR UPDATE SKIP LOCKED),
            taken AS (
                UPDATE tickwheel_timers t SET
                    state = CASE WHEN due.is_over THEN 'dead' ELSE 'running' END,
                    attempts = t.attempts + CASE WHEN due.is_over THEN 0 ELSE 1 END,
                    fence = nextval('tickwheel_fence'),
                    owner = CASE WHEN due.is_over THEN NULL ELSE $3 END,
                    held_until = CASE WHEN due.is_over THEN 'infinity'
                        ELSE tickwheel_now() + $4::float8 * interval '1 millisecond' END,
                    error = CASE WHEN due.state = 'running' THEN 'the lease of worker ' || coalesce(t.owner, 'unknown')
                        || ' ended: it died, hung, or lost the database' ELSE t.error END
                FROM due WHERE t.id = due.id
                RETURNING ",
            columns!("t."),
            ", due.wake AS woke, due.state AS before)
            SELECT clock.now,
                CASE WHEN (SELECT count(*) FROM due) < $2 THEN (SELECT wake FROM tickwheel_timers
                    WHERE kind = $1 AND wake > (SELECT now FROM clock) AND wake < 'infinity' AND state = 'waiting'
                    ORDER BY wake LIMIT 1) END AS next,
                taken.*
            FROM clock LEFT JOIN taken ON true ORDER BY taken.woke, taken.id"
        );
        let most = i32::try_from(claim.max_attempts).unwrap_or(i32::MAX);
        let rows = self.table().query(
            SQL,
            &[
                &claim.kind,
                &i64::from(claim.limit),
                &claim.owner,
                &for_interval(claim.lease),
                &most,
            ],
        )?;
        let first = rows.first().ok_or_else(no_row)?;
        let mut claimed = Claimed {
            now: first.try_get(0).map_err(failed)?,
            timers: Vec::with_capacity(rows.len()),
            dead: 0,
            next: first.try_get(1).map_err(failed)?,
        };
        for row in &rows {
            match row.try_get::<_, Option<&str>>("state").map_err(failed)? {
                None => {} // nothing was due
                Some("running") => claimed.timers.push(ClaimedTimer {
                    timer: timer_in(row)?,
                    woke: row.try_get("woke").map_err(failed)?,
                    was_running: row.try_get::<_, &str>("before").map_err(failed)? == "running",
                }),
                Some(_) => claimed.dead += 1,
            }
        }
        Ok(claimed)
    }

    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed> {
        const SQL: &str = "WITH mine AS (
                SELECT t.id FROM tickwheel_timers t JOIN unnest($1::bigint[], $2::bigint[]) AS run (id, fence)
                    ON t.id = run.id AND t.fence = run.fence
                WHERE t.state = 'running' FOR UPDATE OF t SKIP LOCKED)
            UPDATE tickwheel_timers t SET held_until = tickwheel_now() + $3::float8 * interval '1 millisecond'
            FROM mine WHERE t.id = mine.id RETURNING t.fence";
        self.table().try_again(runs.to_vec(), |table, runs| {
            let (ids, fences) = columns_of(runs);
            fences_in(&table.query(SQL, &[&ids, &fences, &for_interval(lease)])?)
        })
    }

    /// Each outcome is for itself, so those of one kind may be committed before the others.
    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        self.table().finish(runs)
    }

    fn transact(
        &mut self,
        finish: &Finish,
        limit: Duration,
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        let mut transaction = self.client.transaction().map_err(failed)?;
        let limit = whole_millis(limit).clamp(1, i64::from(i32::MAX));
        // The row is locked first, because a claim of another worker may look at it for a moment, and `finish` does not wait.
        let begin = format!(
            "SET LOCAL statement_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit};
             SELECT 1 FROM tickwheel_timers WHERE id = {} FOR UPDATE; SET LOCAL lock_timeout = 0",
            finish.run.id
        );
        transaction.batch_execute(&begin).map_err(failed)?;
        let mut table = Within { client: &mut transaction, prepared: Some(&mut self.prepared) };
        let finished = table.finish(std::slice::from_ref(finish))?;
        if finished.changed.is_empty() {
            return Ok(Transacted::Lost); // the drop of the transaction undoes it, here and below
        }
        if !work.with_postgres(&mut transaction) {
            return Ok(Transacted::Undone);
        }
        // After a statement that has failed, the server answers COMMIT with a ROLLBACK, and calls that a success.
        if let Err(error) = transaction.batch_execute("SELECT 1") {
            if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
                work.fail(
                    "a statement has failed in its transaction, and the handler has returned `Ok`",
                );
                return Ok(Transacted::Undone);
            }
            return Err(failed(error));
        }
        transaction.commit().map_err(failed)?;
        Ok(Transacted::Committed)
    }

    fn counts(&mut self) -> Result<Vec<KindCounts>> {
        let sql = "SELECT kind,
                count(*) FILTER (WHERE state = 'waiting' AND attempts = 0),
                count(*) FILTER (WHERE state = 'waiting' AND attempts > 0),
                count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'dead'),
                (extract(epoch FROM tickwheel_now() - min(due) FILTER (WHERE state <> 'dead')))::float8
            FROM tickwheel_timers GROUP BY kind ORDER BY kind";
        let rows = self.table().query(sql, &[])?;
        let counts = rows.iter().map(|row| {
            let count = |column: usize| {
                row.try_get(column).map(|count: i64| count.unsigned_abs()).map_err(failed)
            };
            let lag: Option<f64> = row.try_get(5).map_err(failed)?;
            Ok(KindCounts {
                kind: row.try_get(0).map_err(failed)?,
                waiting: count(1)?,
                retrying: count(2)?,
                running: count(3)?,
                dead: count(4)?,
                lag: Duration::try_from_secs_f64(lag.unwrap_or(0.0)).unwrap_or_default(),
            })
        });
        counts.collect()
    }
}

impl<C: GenericClient> Within<'_, C> {
    /// Changes runs whose timers are not locked, and tries the others again for some milliseconds: a claim of another worker
    /// may look at them.
    fn try_again(
        &mut self,
        mut runs: Vec<RunId>,
        change: impl Fn(&mut Self, &[RunId]) -> Result<Vec<i64>>,
    ) -> Result<Changed> {
        let running = "SELECT t.fence FROM tickwheel_timers t JOIN unnest($1::bigint[], $2::bigint[]) AS run (id, fence)
                ON t.id = run.id AND t.fence = run.fence WHERE t.state = 'running'";
        let mut all = Changed::default();
        for pause in [1, 2, 4, 8] {
            let changed = change(self, &runs)?;
            runs.retain(|run| !changed.contains(&run.fence));
            all.changed.extend(changed);
            if !runs.is_empty() {
                let (ids, fences) = columns_of(&runs);
                all.busy = fences_in(&self.query(running, &[&ids, &fences])?)?;
                runs.retain(|run| all.busy.contains(&run.fence));
            }
            if runs.is_empty() {
                all.busy.clear();
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok(all)
    }

    /// Writes what became of runs.
    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        let (done, others): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.then == Then::Done);
        let ids = |runs: &[&Finish]| runs.iter().map(|finish| finish.run).collect::<Vec<_>>();
        let mut all = Changed::default();
        if !done.is_empty() {
            all = self.try_again(ids(&done), Self::remove)?;
        }
        if !others.is_empty() {
            let changed = self.try_again(ids(&others), |table, left| {
                let left: HashSet<i64> = left.iter().map(|run| run.fence).collect();
                table.change(
                    others.iter().copied().filter(|finish| left.contains(&finish.run.fence)),
                )
            })?;
            all.changed.extend(changed.changed);
            all.busy.extend(changed.busy);
        }
        Ok(all)
    }

    fn remove(&mut self, runs: &[RunId]) -> Result<Vec<i64>> {
        const SQL: &str = "WITH mine AS (
                SELECT t.id FROM tickwheel_timers t JOIN unnest($1::bigint[], $2::bigint[]) AS run (id, fence)
                    ON t.id = run.id AND t.fence = run.fence
                WHERE t.state = 'running' FOR UPDATE OF t SKIP LOCKED)
            DELETE FROM tickwheel_timers t USING mine WHERE t.id = mine.id RETURNING t.fence";
        let (ids, fences) = columns_of(runs);
        fences_in(&self.query(SQL, &[&ids, &fences])?)
    }

    fn change<'f>(&mut self, runs: impl Iterator<Item = &'f Finish>) -> Result<Vec<i64>> {
        // `due` is set in each case, and unchanged in most. `fence` becomes 0 for a timer that was never started, so that
        // the trigger tells the other workers of it.
        const SQL: &str = "WITH mine AS (
                SELECT t.id, run.* FROM tickwheel_timers t
                JOIN unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::float8[], $6::text[],
                        $7::integer[])
                    AS run (run_id, run_fence, new_state, new_due, gap_ms, new_error, attempts_back)
                    ON t.id = run.run_id AND t.fence = run.run_fence
                WHERE t.state = 'running' FOR UPDATE OF t SKIP LOCKED)
            UPDATE tickwheel_timers t SET
                state = mine.new_state,
                due = coalesce(mine.new_due, t.due),
                held_until = CASE WHEN mine.new_state = 'dead' THEN 'infinity'
                    ELSE tickwheel_now() + mine.gap_ms * interval '1 millisecond' END,
                attempts = CASE WHEN mine.new_due IS NOT NULL THEN 0 ELSE t.attempts - mine.attempts_back END,
                fence = CASE WHEN mine.attempts_back > 0 THEN 0 ELSE t.fence END,
                owner = NULL,
                error = mine.new_error
            FROM mine WHERE t.id = mine.id RETURNING mine.run_fence";
        let (mut ids, mut fences, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let (mut dues, mut gaps) = (Vec::new(), Vec::new());
        let (mut errors, mut back) = (Vec::new(), Vec::new());
        for Finish { run, then } in runs {
            let text = |error: &String| Some(error.replace('\0', " "));
            let (state, due, gap, error, attempts_back) = match then {
                Then::Next(due) => (State::Waiting, Some(from_micros(micros(*due))), None, None, 0),
                Then::Retry(gap, error) => {
                    (State::Waiting, None, Some(for_interval(*gap)), text(error), 0)
                }
                Then::Dead(error) => (State::Dead, None, None, text(error), 0),
                Then::Release | Then::Done => (State::Waiting, None, None, None, 1),
            };
            ids.push(run.id);
            fences.push(run.fence);
            states.push(state.name());
            dues.push(due);
            gaps.push(gap);
            errors.push(error);
            back.push(attempts_back);
        }
        fences_in(&self.query(SQL, &[&ids, &fences, &states, &dues, &gaps, &errors, &back])?)
    }
}

fn columns_of(runs: &[RunId]) -> (Vec<i64>, Vec<i64>) {
    runs.iter().map(|run| (run.id, run.fence)).unzip()
}

fn fences_in(rows: &[Row]) -> Result<Vec<i64>> {
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

fn no_row() -> Error {
    Error::refused(
        "the table `tickwheel_schema` is empty: open the store again, which makes the tables",
    )
}

/// A connection that is told of new timers by the triggers.
struct Ear {
    client: Client,
    /// The schema of the tables. All schemas of a database share the channel.
    schema: String,
}

impl Listener for Ear {
    fn wait(&mut self, timeout: Duration) -> Result<Vec<News>> {
        let mut heard = Vec::new();
        let first = self.client.notifications().timeout_iter(timeout).next().map_err(failed)?;
        let mut is_heard = first.is_some();
        heard.extend(first.and_then(|first| news_in(first.payload(), &self.schema)));
        while is_heard {
            let next = self.client.notifications().iter().next().map_err(failed)?;
            is_heard = next.is_some();
            heard.extend(next.and_then(|next| news_in(next.payload(), &self.schema)));
        }
        if self.client.is_closed() {
            return Err(Error::unreachable("the server has closed the connection"));
        }
        Ok(heard)
    }
}

/// The time in milliseconds, the schema and the kind, as the triggers write them.
fn news_in(payload: &str, schema: &str) -> Option<News> {
    let (wake, of) = payload.split_once(' ')?;
    let kind = of.strip_prefix(schema)?.strip_prefix('/')?;
    let wake = wake.parse::<i64>().ok()?.saturating_mul(1000).min(LATEST);
    Some(News { kind: kind.to_owned(), wake: from_micros(wake) })
}
