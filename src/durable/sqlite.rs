//! Timers in a SQLite file: [`Sqlite`], and [`within`] a transaction of yours.
//!
//! A process has one connection to the file, which all its threads share in turn, because SQLite has one writer at a time
//! anyway. Several processes may share the file, on one machine. The file is in WAL mode, and each commit is synchronised
//! to the disk before it returns.
//!
//! The database's clock is the machine's. Times in the table are milliseconds since 1970; a due time is rounded up, and
//! the time at which it is compared is rounded down, so nothing is early.
//!
//! - SQLITE-1 A transaction that writes begins with `BEGIN IMMEDIATE`. One that read first and wrote later could fail in
//!   between, because another process has written.
//! - SQLITE-2 The connection is not in its place while a thread uses it. So a handler that calls the store from inside
//!   its own transaction gets an error after some seconds, and not a deadlock.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::types::Value;
use rusqlite::{
    Connection as Client, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior,
    params, params_from_iter,
};

use super::clock::{LATEST, delay_micros, from_micros, micros};
use super::error::{Error, Result};
use super::handler::Work;
use super::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Look, RunId,
    SCHEMA_VERSION, Store, Table, Then, Transacted, Transactions,
};
use super::timer::{Filter, KindCounts, NewTimer, Repetition, Scheduled, State, Timer, When};

/// The tables, as other programs may use them. The page of the module [`durable`](super#the-tables) explains them.
pub const SCHEMA: &str = include_str!("sqlite.sql");

/// How long to wait for the transactions of other threads and processes, which take milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a time is that never comes.
const NEVER: i64 = i64::MAX;

type WallClock = dyn Fn() -> SystemTime + Send + Sync;

/// A SQLite file that keeps timers.
#[derive(Clone)]
pub struct Sqlite {
    file: Arc<File>,
}

struct File {
    path: PathBuf,
    clock: Box<WallClock>,
    /// `None` while a thread uses the connection (SQLITE-2).
    client: Mutex<Place>,
    is_free: Condvar,
}

enum Place {
    Free(Client),
    InUse,
    /// It was never opened, or has failed.
    Closed,
}

impl Sqlite {
    /// Names a file, which is created if it is not there. `:memory:` is a database without a file, for tests.
    pub fn new(path: impl AsRef<Path>) -> Sqlite {
        Sqlite::with_wall_clock(path, SystemTime::now)
    }

    /// Like [`new`](Sqlite::new), on a clock of your own. For tests, in which the time is to stand still or to jump.
    pub fn with_wall_clock(
        path: impl AsRef<Path>,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Sqlite {
        let file = File {
            path: path.as_ref().to_path_buf(),
            clock: Box::new(clock),
            client: Mutex::new(Place::Closed),
            is_free: Condvar::new(),
        };
        Sqlite { file: Arc::new(file) }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.file.path).finish_non_exhaustive()
    }
}

impl File {
    fn now(&self) -> i64 {
        micros((self.clock)()) / 1000
    }

    fn open(&self) -> Result<Client> {
        let client = Client::open(&self.path).map_err(failed)?;
        client.busy_timeout(PATIENCE).map_err(failed)?;
        // The answer is the mode, which stays `memory` for a database without a file.
        let mode = "PRAGMA journal_mode = WAL";
        client.query_row(mode, [], |row| row.get::<_, String>(0)).map_err(failed)?;
        client.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
        client.set_prepared_statement_cache_capacity(32);
        Ok(client)
    }

    /// Uses the connection. After an error of the file itself it is opened anew the next time.
    fn with<T>(&self, work: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let mut lent = self.take()?;
        let client = match &mut lent.client {
            Some(client) => client,
            closed => closed.insert(self.open()?),
        };
        let result = work(client);
        if matches!(result, Err(Error::Unreachable(_))) && self.path.as_os_str() != ":memory:" {
            lent.client = None;
        }
        result
    }

    /// Takes the connection out of its place, or the right to open one.
    fn take(&self) -> Result<Lent<'_>> {
        let deadline = Instant::now() + PATIENCE;
        let mut place = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *place, Place::InUse) {
                Place::Free(client) => return Ok(Lent { file: self, client: Some(client) }),
                Place::Closed => return Ok(Lent { file: self, client: None }),
                Place::InUse => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Busy);
            }
            let waited = self.is_free.wait_timeout(place, left);
            place = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes all changes or none (SQLITE-1).
    fn write<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.with(|client| {
            let transaction = begin(client)?;
            let result = work(&transaction)?; // on an error the transaction is dropped, which undoes it
            transaction.commit().map_err(failed)?;
            Ok(result)
        })
    }
}

/// The connection, on loan. Its `Drop` puts it back, also after a panic.
struct Lent<'a> {
    file: &'a File,
    client: Option<Client>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let place = self.client.take().map_or(Place::Closed, Place::Free);
        *self.file.client.lock().unwrap_or_else(PoisonError::into_inner) = place;
        self.file.is_free.notify_one();
    }
}

fn begin(client: &mut Client) -> Result<Transaction<'_>> {
    client.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)
}

fn failed(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    if matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) {
        return Error::Busy;
    }
    let of_the_file = [
        ErrorCode::SystemIoFailure,
        ErrorCode::CannotOpen,
        ErrorCode::DatabaseCorrupt,
        ErrorCode::NotADatabase,
    ];
    if code.is_some_and(|code| of_the_file.contains(&code)) {
        Error::unreachable(error)
    } else {
        Error::refused(error)
    }
}

impl Store for Sqlite {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        self.file.with(|_| Ok(()))?;
        Ok(Box::new(Shared { file: Arc::clone(&self.file), changes: None }))
    }

    fn migrate(&self) -> Result<()> {
        self.file.write(|transaction| {
            transaction.execute_batch("CREATE TABLE IF NOT EXISTS tickwheel_schema (version INTEGER NOT NULL, oldest INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)").map_err(failed)?;
            let version = "SELECT version, oldest FROM tickwheel_schema";
            let version: Option<(i32, i32)> = transaction
                .query_row(version, [], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
                .map_err(failed)?;
            match version {
                None => transaction.execute_batch(SCHEMA).map_err(failed),
                Some((_, oldest)) if oldest > SCHEMA_VERSION => Err(Error::Schema(oldest)),
                Some(_) => Ok(()),
            }
        })
    }

    fn transactions(&self) -> Transactions {
        Transactions::Sqlite
    }
}

/// A connection for one thread, which takes the process' own for each call.
struct Shared {
    file: Arc<File>,
    /// SQLite's number of the last change by others, when it was read last.
    changes: Option<i64>,
}

/// Schedules, resets and cancels inside a transaction of yours, on a connection of yours to the same file.
///
/// What it returns is a [`Table`]. Workers of this process do not see your commit. Call
/// [`Timers::tell`](super::Timers::tell) after it if a timer is due within the next minute.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::durable::{Existing, NewTimer, Table, Timers, sqlite};
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
    client: &'a Client,
    /// `None`: the system's clock is read in each call.
    time: Option<i64>,
}

const COLUMNS: &str = "id, kind, key, payload, due, held_until, period_ms, rule, max_attempts, time_limit_ms, state, attempts, fence, owner, error";

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
        repetition: repetition(period, rule),
        max_attempts: row.get::<_, Option<i64>>("max_attempts")?.map(small),
        time_limit: time_limit.map(milliseconds),
        state,
        attempts: small(row.get("attempts")?),
        fence: row.get("fence")?,
        owner: text(row, "owner")?,
        error: text(row, "error")?,
    })
}

/// Another program may have put in a text that is not UTF-8. That must not hold up others of its kind.
fn text(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<String>> {
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

fn repetition(period: Option<i64>, rule: Option<String>) -> Option<Repetition> {
    rule.map(Repetition::Rule)
        .or_else(|| period.map(|period| Repetition::Every(milliseconds(period))))
}

fn milliseconds(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

fn small(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

fn time(milliseconds: i64) -> SystemTime {
    from_micros(milliseconds.saturating_mul(1000).min(LATEST))
}

/// Milliseconds, rounded up.
fn millis(time: SystemTime) -> i64 {
    micros(time).saturating_add(999) / 1000
}

fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000))
        .unwrap_or(LATEST / 1000)
        .min(LATEST / 1000)
}

impl Within<'_> {
    fn now(&self) -> i64 {
        self.time.unwrap_or_else(|| micros(SystemTime::now()) / 1000)
    }

    /// The time of the call was rounded down, so a delay takes one millisecond more.
    fn due(&self, when: When) -> i64 {
        match when {
            When::After(delay) if delay.is_zero() => self.now(),
            When::After(delay) => {
                ((self.now() + 1) * 1000 + delay_micros(delay)).min(LATEST).saturating_add(999)
                    / 1000
            }
            When::At(time) => millis(time),
        }
    }

    fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Timer>> {
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let rows = statement.query_map(params_from_iter(values), timer_in).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// Takes `count` new fencing numbers, and returns the first.
    fn fences(&self, count: usize) -> Result<i64> {
        let sql = "UPDATE tickwheel_schema SET fence = fence + ?1 RETURNING fence - ?1 + 1";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        statement.query_row([count as u32], |row| row.get(0)).map_err(failed)
    }
}

impl Table for Within<'_> {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        timers.iter().try_for_each(NewTimer::check)?;
        if self.client.is_autocommit() {
            // A connection of the user's without a transaction. All are put in, or none.
            let own = self.client.unchecked_transaction().map_err(failed)?;
            let results = Within { client: &own, time: self.time }.schedule(timers, existing)?;
            own.commit().map_err(failed)?;
            return Ok(results);
        }
        let sql = "SELECT fence FROM tickwheel_timers WHERE kind = ?1 AND key = ?2";
        let mut find = self.client.prepare_cached(sql).map_err(failed)?;
        let sql = "INSERT INTO tickwheel_timers (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
            ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due,
                period_ms = excluded.period_ms, rule = excluded.rule, max_attempts = excluded.max_attempts,
                time_limit_ms = excluded.time_limit_ms, state = 'waiting', attempts = 0, fence = 0,
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
            let (period, rule) = match &timer.repetition {
                Some(Repetition::Every(period)) => (Some(whole_millis(*period)), None),
                Some(Repetition::Rule(rule)) => (None, Some(rule)),
                None => (None, None),
            };
            let limit = timer.time_limit.map(whole_millis);
            let values = params![
                timer.kind,
                timer.key,
                timer.payload,
                due,
                period,
                rule,
                timer.max_attempts,
                limit
            ];
            insert.execute(values).map_err(failed)?;
            results.push(Some(Scheduled { due: time(due), replaced: found.is_some() }));
        }
        Ok(results)
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        let sql =
            "UPDATE tickwheel_timers SET due = ?3, held_until = NULL, attempts = 0, error = NULL
            WHERE kind = ?1 AND key = ?2 AND state = 'waiting'";
        let due = self.due(when);
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let moved = statement.execute(params![kind, key, due]).map_err(failed)?;
        Ok((moved > 0).then(|| time(due)))
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
        let mut sql = format!("SELECT {COLUMNS} FROM tickwheel_timers WHERE TRUE");
        let mut values: Vec<Value> = Vec::new();
        if let Some(kind) = &filter.kind {
            sql += " AND kind = ?";
            values.push(kind.clone().into());
        }
        if let Some(state) = filter.state {
            sql += " AND state = ?";
            values.push(state.name().to_owned().into());
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
        self.query(&sql, values)
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        let sql = "UPDATE tickwheel_timers
            SET state = 'waiting', due = ?3, held_until = NULL, attempts = 0
            WHERE kind = ?1 AND (?2 IS NULL OR key = ?2) AND state = 'dead'";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        let count = statement.execute(params![kind, key, self.due(when)]).map_err(failed)?;
        Ok(count as u64)
    }
}

impl Shared {
    /// Reads without a transaction of its own.
    fn read<T>(&self, work: impl FnOnce(Within<'_>) -> Result<T>) -> Result<T> {
        self.file.with(|client| work(Within { client, time: Some(self.file.now()) }))
    }

    fn write<T>(&self, work: impl FnOnce(Within<'_>) -> Result<T>) -> Result<T> {
        // The clock is read once the file is ours.
        self.file
            .write(|transaction| work(Within { client: transaction, time: Some(self.file.now()) }))
    }
}

impl Table for Shared {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        self.write(|mut table| table.schedule(timers, existing))
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        self.write(|mut table| table.reset(kind, key, when))
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        self.write(|mut table| table.cancel(kind, key))
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.read(|mut table| table.get(kind, key))
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        self.read(|mut table| table.list(filter))
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        self.write(|mut table| table.requeue(kind, key, when))
    }
}

impl Connection for Shared {
    fn has_changed(&mut self) -> Result<bool> {
        let changes = self.file.with(|client| {
            let mut statement = client.prepare_cached("PRAGMA data_version").map_err(failed)?;
            statement.query_row([], |row| row.get::<_, i64>(0)).map_err(failed)
        })?;
        let before = self.changes.replace(changes);
        Ok(before != Some(changes))
    }

    fn now(&mut self) -> Result<SystemTime> {
        Ok(time(self.file.now()))
    }

    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look> {
        self.read(|table| {
            let oldest = "SELECT oldest FROM tickwheel_schema";
            let mut oldest = table.client.prepare_cached(oldest).map_err(failed)?;
            let oldest: i32 = oldest.query_row([], |row| row.get(0)).map_err(failed)?;
            if oldest > SCHEMA_VERSION {
                return Err(Error::Schema(oldest));
            }
            let sql = "SELECT wake FROM tickwheel_timers WHERE kind = ?1 AND wake <= ?2 ORDER BY wake LIMIT ?3";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let until = table.now().saturating_add(whole_millis(horizon));
            let mut wakes = Vec::new();
            for (position, kind) in kinds.iter().enumerate() {
                let rows = statement.query_map(params![kind, until, limit], |row| row.get(0));
                for wake in rows.map_err(failed)? {
                    wakes.push((position, time(wake.map_err(failed)?)));
                }
            }
            Ok(Look { now: time(table.now()), wakes })
        })
    }

    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed> {
        self.write(|table| table.claim(claim))
    }

    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed> {
        self.write(|table| {
            let sql = "UPDATE tickwheel_timers SET held_until = ?3 WHERE id = ?1 AND fence = ?2 AND state = 'running'";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let until = table.now().saturating_add(whole_millis(lease));
            let mut extended = Changed::default();
            for run in runs {
                if statement.execute((run.id, run.fence, until)).map_err(failed)? > 0 {
                    extended.changed.push(run.fence);
                }
            }
            Ok(extended)
        })
    }

    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        self.write(|table| {
            let mut finished = Changed::default();
            for finish in runs {
                if table.finish(finish)? {
                    finished.changed.push(finish.run.fence);
                }
            }
            Ok(finished)
        })
    }

    fn transact(
        &mut self,
        finish: &Finish,
        _: Duration, // SQLite cannot end the transaction of a process that hangs
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        self.file.with(|client| {
            let transaction = begin(client)?;
            let table = Within { client: &transaction, time: Some(self.file.now()) };
            if !table.finish(finish)? {
                return Ok(Transacted::Lost);
            }
            if !work.with_sqlite(&transaction) {
                return Ok(Transacted::Undone);
            }
            transaction.commit().map_err(failed)?;
            Ok(Transacted::Committed)
        })
    }

    fn counts(&mut self) -> Result<Vec<KindCounts>> {
        self.read(|table| {
            let sql = "SELECT kind,
                    count(*) FILTER (WHERE state = 'waiting' AND attempts = 0),
                    count(*) FILTER (WHERE state = 'waiting' AND attempts > 0),
                    count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'dead'),
                    min(due) FILTER (WHERE state <> 'dead')
                FROM tickwheel_timers GROUP BY kind ORDER BY kind";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let rows = statement.query_map([], |row| {
                let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                let oldest: Option<i64> = row.get(5)?;
                Ok(KindCounts {
                    kind: row.get(0)?,
                    waiting: count(1)?,
                    retrying: count(2)?,
                    running: count(3)?,
                    dead: count(4)?,
                    lag: milliseconds(oldest.map_or(0, |due| table.now().saturating_sub(due))),
                })
            });
            rows.map_err(failed)?.collect::<rusqlite::Result<_>>().map_err(failed)
        })
    }
}

impl Within<'_> {
    fn claim(&self, claim: &Claim<'_>) -> Result<Claimed> {
        let sql = format!(
            "SELECT {COLUMNS} FROM tickwheel_timers WHERE kind = ?1 AND wake <= ?2 ORDER BY wake, id LIMIT ?3"
        );
        let values =
            vec![claim.kind.to_owned().into(), self.now().into(), i64::from(claim.limit).into()];
        let due = self.query(&sql, values)?;
        let sql = "SELECT wake FROM tickwheel_timers
            WHERE kind = ?1 AND wake > ?2 AND wake < ?3 AND state = 'waiting' ORDER BY wake LIMIT 1";
        let mut next = self.client.prepare_cached(sql).map_err(failed)?;
        let next = if due.len() < claim.limit as usize {
            next.query_row(params![claim.kind, self.now(), NEVER], |row| row.get(0)).optional()
        } else {
            Ok(None)
        };
        let mut claimed = Claimed {
            now: time(self.now()),
            timers: Vec::with_capacity(due.len()),
            dead: 0,
            next: next.map_err(failed)?.map(time),
        };
        if due.is_empty() {
            return Ok(claimed);
        }
        let first = self.fences(due.len())?;
        let sql = "UPDATE tickwheel_timers
            SET state = ?2, attempts = ?3, fence = ?4, owner = ?5, held_until = ?6, error = ?7 WHERE id = ?1";
        let mut update = self.client.prepare_cached(sql).map_err(failed)?;
        let until = self.now().saturating_add(whole_millis(claim.lease));
        for (mut timer, fence) in due.into_iter().zip(first..) {
            let was_running = timer.state == State::Running;
            let is_dead =
                was_running && timer.attempts >= timer.max_attempts.unwrap_or(claim.max_attempts);
            let woke = timer.wake.unwrap_or(timer.due);
            if was_running {
                timer.error = Some(lease_ended(timer.owner.as_deref()));
            }
            timer.fence = fence;
            timer.state = if is_dead { State::Dead } else { State::Running };
            timer.owner = (!is_dead).then(|| claim.owner.to_owned());
            timer.wake = (!is_dead).then(|| time(until));
            timer.attempts = timer.attempts.saturating_add(u32::from(!is_dead));
            let held_until = if is_dead { NEVER } else { until };
            let values = params![
                timer.id,
                timer.state.name(),
                timer.attempts,
                fence,
                timer.owner,
                held_until,
                timer.error
            ];
            update.execute(values).map_err(failed)?;
            if is_dead {
                claimed.dead += 1;
            } else {
                claimed.timers.push(ClaimedTimer { timer, woke, was_running });
            }
        }
        Ok(claimed)
    }

    fn finish(&self, finish: &Finish) -> Result<bool> {
        let RunId { id, fence } = finish.run;
        let set = |changes: &str, value: Value, error: Option<&str>| {
            let sql = format!(
                "UPDATE tickwheel_timers SET owner = NULL, error = ?4, {changes} WHERE id = ?1 AND fence = ?2 AND state = 'running'"
            );
            let mut statement = self.client.prepare_cached(&sql)?;
            statement.execute(params![id, fence, value, error])
        };
        let changed = match &finish.then {
            Then::Done => {
                let sql = "DELETE FROM tickwheel_timers WHERE id = ?1 AND fence = ?2 AND state = 'running'";
                self.client.prepare_cached(sql).and_then(|mut delete| delete.execute((id, fence)))
            }
            Then::Next(due) => set(
                "state = 'waiting', attempts = 0, held_until = NULL, due = ?3",
                millis(*due).into(),
                None,
            ),
            Then::Retry(gap, error) => set(
                "state = 'waiting', held_until = ?3",
                self.due(When::After(*gap)).into(),
                Some(error),
            ),
            Then::Dead(error) => set("state = 'dead', held_until = ?3", NEVER.into(), Some(error)),
            Then::Release => set(
                "state = 'waiting', attempts = attempts - 1, held_until = ?3",
                Value::Null,
                None,
            ),
        };
        Ok(changed.map_err(failed)? > 0)
    }
}

/// Says why a timer is tried again that no worker has reported about.
pub(super) fn lease_ended(owner: Option<&str>) -> String {
    let owner = owner.unwrap_or("unknown");
    format!("the lease of worker {owner} ended: it died, hung, or lost the database")
}
