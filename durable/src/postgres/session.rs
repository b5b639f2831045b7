//! What workers do: look, claim, extend, and write what became of runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use postgres::error::SqlState;
use postgres::{Row, Statement};

use super::history::{Rows, put_in};
use super::link::{Link, Sql};
use super::table::{Value, Within, columns, for_interval, timer_in};
use super::{PATIENCE, failed, only_row, placed};
use crate::clock::{from_micros, micros};
use crate::columns::delay_millis;
use crate::error::{Error, Result};
use crate::handler::Work;
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Floor, HELD_BACK, Limits,
    Look, MOST_BYTES, Passed, Purge, Purged, RunId, SCHEMA_VERSION, Table, Then, Transacted,
    WINDOW, keep_series,
};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};

/// A connection that nobody has used for so long is tried before it is used.
const STALE: Duration = Duration::from_secs(1);

/// Joins the timer of each `run`, if it still is that run's, and locks it, unless somebody else has.
///
/// What is locked is then found again by its place in the table, `ctid`, and not by its number alone: when the server has counted the rows of
/// the table last while it was empty, it would compare each of them with each that is locked. A row that was moved between the beginning
/// of the statement and the lock is not seen at its new place, and so it is left out, as one that somebody else has locked. Places
/// are those of a partition, so the number is compared too.
macro_rules! locked {
    () => {
        " JOIN tickwheel_timers t ON t.id = run.id AND t.fence = run.fence AND t.state = 'running'
            FOR UPDATE OF t SKIP LOCKED"
    };
}

/// Selects the fencing numbers of those runs that are still their workers'.
const RUNNING: &str = "SELECT t.fence FROM tickwheel_timers t JOIN unnest($1::bigint[], $2::bigint[]) AS run (id, fence)
    ON t.id = run.id AND t.fence = run.fence WHERE t.state = 'running'";

/// For how long a transaction waits for a lock. The time that the role's statements may take does not end that wait.
const WAIT: &str = "SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0;";

/// The hold of a run, which stays until the transaction has ended (STORE-9). One that somebody has locked against this has ended, and is
/// about to be removed.
const HOLD: &str = "SELECT 1 FROM tickwheel_holds WHERE fence = $1 FOR KEY SHARE SKIP LOCKED";

/// The condition that a run has its hold, if its kind has limits.
pub(super) fn and_held(finish: &Finish) -> String {
    let hold = HOLD.replace("$1", &finish.run.fence.to_string());
    if finish.has_limits { format!("AND EXISTS ({hold})") } else { String::new() }
}

/// A connection, as workers and calls use it.
pub(super) struct Session<L> {
    link: L,
    /// `None`: it may be another connection of the server's in each transaction (PG-4).
    prepared: Option<HashMap<&'static str, Statement>>,
    /// Whether the settings of the connection are those of [`BEGIN`](super::table::BEGIN).
    is_read_committed: bool,
    waits_briefly: bool,
    used: Instant,
    /// It is set for claims.
    has_claimed: bool,
    /// The schema of the tables, quoted, if it was named.
    schema: Option<Arc<str>>,
}

impl<L: Link> Session<L> {
    pub(super) fn new(
        mut link: L,
        is_pooled: bool,
        schema: Option<Arc<str>>,
    ) -> Result<Session<L>> {
        let is_pooled = is_pooled || L::IS_LENT;
        let settings = "SELECT current_setting('default_transaction_isolation') = 'read committed',
            current_setting('lock_timeout') = '10s'";
        let (mut is_read_committed, mut waits_briefly) = (false, false);
        if !is_pooled {
            let row = only_row(link.client().send_once(settings, &[]).map_err(failed)?)?;
            (is_read_committed, waits_briefly) = (row.get(0), row.get(1));
        }
        let prepared = (!is_pooled).then(HashMap::new);
        let (used, has_claimed) = (Instant::now(), false);
        Ok(Session { link, prepared, is_read_committed, waits_briefly, used, has_claimed, schema })
    }

    /// For statements that wait for no lock.
    fn table(&mut self) -> Within<'_, L::Client> {
        let is_alone = !self.is_read_committed;
        let schema = self.schema.clone();
        Within { client: self.link.client(), prepared: self.prepared.as_mut(), is_alone, schema }
    }

    /// For statements that may wait for a lock.
    fn patient(&mut self) -> Within<'_, L::Client> {
        let is_alone = !(self.is_read_committed && self.waits_briefly);
        Within { is_alone, ..self.table() }
    }
}

impl<L: Link> Table for Session<L> {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        self.patient().schedule(timers, existing)
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        self.patient().reset(kind, key, when)
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        self.patient().cancel(kind, key)
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.table().get(kind, key)
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        self.table().list(filter)
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        self.patient().requeue(kind, key, when)
    }

    fn set_payload(&mut self, kind: &str, key: &str, payload: &[u8]) -> Result<bool> {
        self.patient().set_payload(kind, key, payload)
    }

    fn cancel_all(&mut self, filter: &Filter) -> Result<u64> {
        self.patient().cancel_all(filter)
    }
}

impl<L: Link> Connection for Session<L> {
    /// A client notices only when it is used that the server has closed the connection.
    fn is_open(&mut self) -> bool {
        let is_stale = self.used.elapsed() > STALE;
        self.used = Instant::now();
        self.link.is_open(is_stale.then_some(PATIENCE))
    }

    fn is_lent(&self) -> bool {
        L::IS_LENT
    }

    fn announce(&mut self) -> Result<()> {
        // The channel's name is not one of a table, so only the end is placed.
        let of = placed("'tickwheel_timers'::regclass", self.schema.as_deref());
        let sql = format!(
            "SELECT pg_notify('tickwheel_timers', '0 ' || nspname || '/')
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = {of}"
        );
        self.link.client().batch(&sql).map_err(failed)
    }

    fn attend(
        &mut self,
        worker: i64,
        name: &str,
        kinds: &[&str],
        span: Duration,
    ) -> Result<Option<Vec<(usize, i64)>>> {
        // The list is that from before the statement, so this worker is in it if it is not new. There is a row in any case.
        const SQL: &str = "WITH mine AS (
                INSERT INTO tickwheel_workers AS w (worker, name, kinds, until, session)
                VALUES ($1, $2, $3, tickwheel_now() + $4::float8 * interval '1 millisecond', pg_backend_pid())
                ON CONFLICT (worker) DO UPDATE
                    SET kinds = excluded.kinds, until = excluded.until, session = excluded.session
                RETURNING worker),
            listed AS (
                SELECT w.worker, w.kinds, w.until > tickwheel_now()
                    AND (w.worker = $1 OR EXISTS (SELECT FROM pg_stat_get_activity(w.session))) AS lives
                FROM tickwheel_workers w)
            SELECT listed.worker, listed.lives, k.position FROM mine LEFT JOIN listed ON true
            LEFT JOIN unnest($3::text[]) WITH ORDINALITY AS k (kind, position) ON k.kind = ANY (listed.kinds)";
        // No statement that has locked a row of the list waits for another one.
        const SWEEP: &str = "WITH dead AS (
                SELECT worker FROM tickwheel_workers WHERE worker = ANY ($1) FOR UPDATE SKIP LOCKED)
            DELETE FROM tickwheel_workers w USING dead WHERE w.worker = dead.worker RETURNING w.worker";
        let rows = self.patient().query(SQL, &[&worker, &name, &kinds, &for_interval(span)])?;
        let (mut others, mut dead, mut is_new) = (Vec::new(), Vec::new(), true);
        for row in &rows {
            let listed: Option<i64> = row.try_get(0).map_err(failed)?;
            let lives: Option<bool> = row.try_get(1).map_err(failed)?;
            let position: Option<i64> = row.try_get(2).map_err(failed)?;
            match (listed, lives, position) {
                (Some(listed), ..) if listed == worker => is_new = false,
                (Some(listed), Some(false), _) => dead.push(listed),
                (Some(listed), _, Some(position)) => {
                    others.extend(usize::try_from(position - 1).ok().map(|kind| (kind, listed)));
                }
                _ => {}
            }
        }
        let has_swept = !dead.is_empty() && !self.patient().query(SWEEP, &[&dead])?.is_empty();
        if !others.is_empty() && (is_new || has_swept) {
            self.announce()?;
        }
        Ok(Some(others))
    }

    fn leave(&mut self, worker: i64) -> Result<()> {
        let sql = "DELETE FROM tickwheel_workers WHERE worker = $1";
        self.patient().query(sql, &[&worker]).map(drop)
    }

    fn tell_of_more(&mut self, kind: &str, until: SystemTime) -> Result<()> {
        // The channel's name is not one of a table, so it is a parameter.
        let sql = "SELECT pg_notify($1, '+' || $2::bigint || ' ' || nspname || '/' || $3)
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        self.table().query(sql, &[&"tickwheel_timers", &micros(until), &kind]).map(drop)
    }

    fn keep_series(&mut self, series: &NewTimer) -> Result<Option<Scheduled>> {
        let sql = "SELECT 1 FROM tickwheel_timers WHERE kind = $1 AND key = $2 FOR UPDATE";
        self.table().alone(|table| {
            series.check()?; // its name may be none
            table.query(sql, &[&series.kind, &series.key])?;
            keep_series(table, series)
        })
    }

    fn stay_awake(&mut self, kind: &str, span: Duration) -> Result<()> {
        let sql = "INSERT INTO tickwheel_awake AS awake (kind, until)
            VALUES ($1, tickwheel_now() + $2::float8 * interval '1 millisecond')
            ON CONFLICT (kind) DO UPDATE SET until = excluded.until
            WHERE awake.until < excluded.until - interval '500 milliseconds'";
        self.patient().query(sql, &[&kind, &for_interval(span)]).map(drop)
    }

    fn now(&mut self) -> Result<SystemTime> {
        let rows = self.table().query("SELECT tickwheel_now()", &[])?;
        let row = rows.first().ok_or_else(no_row)?;
        row.try_get(0).map_err(failed)
    }

    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look> {
        let kinds: Vec<_> = kinds.iter().map(|kind| (*kind, None)).collect();
        self.look_above(&kinds, horizon, limit)
    }

    fn look_above(
        &mut self,
        kinds: &[(&str, Option<Floor>)],
        horizon: Duration,
        limit: u32,
    ) -> Result<Look> {
        // The answer has at least one row, with the time and the version.
        const SQL: &str = "SELECT tickwheel_now(), schema.oldest, found.position, found.wake
            FROM tickwheel_schema schema LEFT JOIN (
                SELECT k.position, w.wake FROM unnest($1::text[], $4::timestamptz[], $5::bigint[])
                    WITH ORDINALITY AS k (kind, floor_wake, floor_id, position)
                CROSS JOIN LATERAL (
                    SELECT wake FROM tickwheel_timers t
                    WHERE t.kind = k.kind
                        AND (wake, id) > (coalesce(k.floor_wake, '-infinity'), coalesce(k.floor_id, 0))
                        AND wake <= (SELECT tickwheel_now() + $2::float8 * interval '1 millisecond')
                    ORDER BY wake LIMIT $3) w) found ON true
            ORDER BY found.position, found.wake";
        let names: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        let (wakes, ids): (Vec<_>, Vec<_>) = kinds.iter().map(|(_, floor)| floor.unzip()).unzip();
        let values: &[&dyn Value] =
            &[&names, &for_interval(horizon), &i64::from(limit), &wakes, &ids];
        let rows = self.table().query(SQL, values)?;
        let first = rows.first().ok_or_else(no_row)?;
        check_version(first)?;
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
        // A suspected timer is taken by itself (STORE-7). A fencing number has twenty random bits, because a replica that takes
        // the server's place may give the number of a sequence again that a claim of the lost server has had (STORE-2).
        const SQL: &str = concat!(
            "WITH clock AS MATERIALIZED (SELECT tickwheel_now() AS now, oldest FROM tickwheel_schema),
            due AS (
                SELECT ctid AS at, id, wake, state, octet_length(payload) AS bytes FROM tickwheel_timers
                WHERE kind = $1 AND wake <= (SELECT now FROM clock) AND (SELECT oldest FROM clock) <= $5
                    AND (wake, id) > (coalesce($7::timestamptz, '-infinity'), coalesce($8::bigint, 0))
                ORDER BY wake, id LIMIT $2 FOR UPDATE SKIP LOCKED),
            ranked AS (
                SELECT due.*, row_number() OVER in_order AS rank, bool_or(state = 'running') OVER in_order AS is_suspected,
                    sum(due.bytes) OVER in_order AS all_bytes
                FROM due WINDOW in_order AS (ORDER BY wake, id)),
            chosen AS (SELECT * FROM ranked WHERE rank = 1 OR NOT is_suspected AND all_bytes <= $6),
            counted AS (
                SELECT (SELECT count(*) FROM due) AS due, (SELECT count(*) FROM chosen) AS chosen),
            taken AS (
                UPDATE tickwheel_timers t SET
                    state = 'running',
                    fence = nextval('tickwheel_fence') * 1048576 + floor(random() * 1048576)::bigint,
                    owner = $3,
                    held_until = tickwheel_now() + $4::float8 * interval '1 millisecond',
                    error = CASE WHEN chosen.state = 'running' THEN 'the lease of worker ' || coalesce(t.owner, 'unknown')
                        || ' ended: it died, hung, or lost the database' ELSE t.error END
                FROM chosen WHERE t.ctid = chosen.at AND t.id = chosen.id
                RETURNING ",
            columns!("t."),
            ", chosen.wake AS woke, chosen.state AS before)
            SELECT clock.now, clock.oldest, counted.chosen < counted.due OR counted.due = $2
                    OR (SELECT count(*) FROM taken) < counted.chosen AS more,
                CASE WHEN counted.chosen = counted.due AND counted.due < $2 THEN (SELECT wake FROM tickwheel_timers
                    WHERE kind = $1 AND wake > (SELECT now FROM clock) AND wake < 'infinity' AND state = 'waiting'
                    ORDER BY wake LIMIT 1) END AS next,
                taken.*
            FROM clock CROSS JOIN counted LEFT JOIN taken ON true ORDER BY taken.woke, taken.id"
        );
        if let Some(limits) = claim.limits {
            return self.claim_within(claim, limits);
        }
        if self.prepared.is_some() && !self.has_claimed {
            // When the server has not counted the rows yet, it would sort all that is due, for each claim.
            self.link.client().batch("SET enable_bitmapscan = off").map_err(failed)?;
            self.has_claimed = true;
        }
        let (floor_wake, floor_id) = claim.floor.unzip();
        let rows = self.table().query(
            SQL,
            &[
                &claim.kind,
                &i64::from(claim.limit),
                &claim.owner,
                &for_interval(claim.lease),
                &SCHEMA_VERSION,
                &i64::try_from(MOST_BYTES).unwrap_or(i64::MAX),
                &floor_wake,
                &floor_id,
            ],
        )?;
        let first = rows.first().ok_or_else(no_row)?;
        check_version(first)?;
        let timers = claimed_in(&rows)?;
        Ok(Claimed {
            more: first.try_get(2).map_err(failed)?,
            next: first.try_get(3).map_err(failed)?,
            ..Claimed::new(first.try_get(0).map_err(failed)?, timers)
        })
    }

    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool> {
        let started = self.start_all(&[(run, attempts)])?;
        if started.busy.is_empty() { Ok(!started.changed.is_empty()) } else { Err(Error::Busy) }
    }

    fn start_all(&mut self, starts: &[(RunId, u32)]) -> Result<Changed> {
        const SQL: &str = concat!(
            "WITH mine AS (SELECT t.ctid AS at, t.id, run.attempts
                FROM unnest($1::bigint[], $2::bigint[], $3::integer[]) AS run (id, fence, attempts)",
            locked!(),
            ") UPDATE tickwheel_timers t SET attempts = mine.attempts
            FROM mine WHERE t.ctid = mine.at AND t.id = mine.id RETURNING t.fence"
        );
        let attempts: HashMap<i64, u32> =
            starts.iter().map(|(run, attempts)| (run.fence, *attempts)).collect();
        let runs = starts.iter().map(|(run, _)| *run).collect();
        let mut all = Changed::default();
        self.table().try_again(&mut all, runs, |table, runs| {
            let (ids, fences) = ids_and_fences(runs);
            let of = |run: &RunId| i32::try_from(attempts[&run.fence]).unwrap_or(i32::MAX);
            let attempts: Vec<i32> = runs.iter().map(of).collect();
            fences_in(&table.query(SQL, &[&ids, &fences, &attempts])?)
        })?;
        Ok(all)
    }

    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed> {
        const SQL: &str = concat!(
            "WITH mine AS (SELECT t.ctid AS at, t.id FROM unnest($1::bigint[], $2::bigint[]) AS run (id, fence)",
            locked!(),
            ") UPDATE tickwheel_timers t SET held_until = tickwheel_now() + $3::float8 * interval '1 millisecond'
            FROM mine WHERE t.ctid = mine.at AND t.id = mine.id RETURNING t.fence"
        );
        let mut all = Changed::default();
        self.table().try_again(&mut all, runs.to_vec(), |table, runs| {
            let (ids, fences) = ids_and_fences(runs);
            fences_in(&table.query(SQL, &[&ids, &fences, &for_interval(lease)])?)
        })?;
        Ok(all)
    }

    fn running(&mut self, runs: &[RunId]) -> Result<Vec<i64>> {
        let (ids, fences) = ids_and_fences(runs);
        fences_in(&self.table().query(RUNNING, &[&ids, &fences])?)
    }

    fn hold(&mut self, fences: &[i64], lease: Duration) -> Result<Vec<i64>> {
        let sql = "UPDATE tickwheel_holds SET until = tickwheel_now() + $2::float8 * interval '1 millisecond'
            WHERE fence = ANY (ARRAY(SELECT fence FROM tickwheel_holds WHERE fence = ANY ($1::bigint[]) ORDER BY fence FOR NO KEY UPDATE))
            RETURNING fence"; // in one order (PG-2), with the index in any case, and beside transactions that hold theirs (PG-3)
        fences_in(&self.patient().query(sql, &[&fences.to_vec(), &for_interval(lease)])?)
    }

    /// It is not awaited that this is on the disk. After a crash, a hold that is there again ends by itself.
    fn let_go(&mut self, fences: &[i64]) -> Result<()> {
        let sql = "DELETE FROM tickwheel_holds
            WHERE fence = ANY (ARRAY(SELECT fence FROM tickwheel_holds WHERE fence = ANY ($1::bigint[]) ORDER BY fence FOR UPDATE))
            AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";
        self.patient().query(sql, &[&fences.to_vec()]).map(drop)
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
        let mut transaction = self.link.begin().map_err(failed)?;
        let limit = delay_millis(limit).clamp(1, i64::from(i32::MAX));
        let RunId { id, fence } = finish.run;
        let and_held = and_held(finish);
        // The start is committed in the same round trip, so little time passes until the handler is called.
        let start = work.start().map_or(String::new(), |attempts| {
            format!(
                "UPDATE tickwheel_timers SET attempts = {attempts}
                WHERE id = {id} AND fence = {fence} AND state = 'running' {and_held}; COMMIT AND CHAIN;"
            )
        });
        // The row is locked first, because a claim of another worker may look at it for a moment, and `finish` does not wait. That wait is
        // none of the handler's time (ATTEMPT-7), so the limit is set behind it.
        let begin = format!(
            "{WAIT} {start} {WAIT} SELECT 1 FROM tickwheel_timers WHERE id = {id} FOR UPDATE;
             SET LOCAL statement_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit};
             SET LOCAL lock_timeout = 0"
        );
        let schema = self.schema.clone();
        transaction.batch(&placed(&begin, schema.as_deref())).map_err(failed)?;
        let prepared = self.prepared.as_mut();
        let mut table = Within { client: &mut transaction, prepared, is_alone: false, schema };
        let finished = table.finish(std::slice::from_ref(finish))?;
        let is_held = !finish.has_limits || !table.query(HOLD, &[&fence])?.is_empty();
        if finished.changed.is_empty() || !is_held {
            return Ok(Transacted::Lost); // the drop of the transaction undoes it, here and below
        }
        if !L::hand_over(&mut transaction, work) {
            return Ok(Transacted::Undone);
        }
        // After a statement that has failed, the server answers COMMIT with a ROLLBACK, and calls that a success.
        if let Err(error) = transaction.batch("SELECT 1") {
            if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
                work.fail(
                    "a statement has failed in its transaction, and the handler has returned `Ok`",
                );
                return Ok(Transacted::Undone);
            }
            return Err(failed(error));
        }
        if let Some(record) = work.record() {
            let (prepared, schema) = (self.prepared.as_mut(), self.schema.clone());
            let mut table = Within { client: &mut transaction, prepared, is_alone: false, schema };
            table.record(&[record])?;
        }
        L::commit(transaction).map_err(failed)?;
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

    fn record(&mut self, attempts: &[Attempt]) -> Result<()> {
        self.table().record(attempts)
    }

    fn history(&mut self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        self.table().history(filter)
    }

    fn pace(&mut self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        self.table().pace(span, step)
    }

    fn purge_history(&mut self, purge: &Purge<'_>) -> Result<Purged> {
        self.table().purge_history(purge)
    }

    fn purge_dead(
        &mut self,
        kind: &str,
        keep: Duration,
        after: i64,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        self.table().purge_dead(kind, keep, after, limit)
    }
}

impl<L: Link> Session<L> {
    fn claim_within(&mut self, claim: &Claim<'_>, limits: Limits) -> Result<Claimed> {
        const SQL: &str = concat!(
            "SELECT c.clock, schema.oldest, c.more, c.next, c.held_back, c.reached_wake, c.reached_id, c.passed_groups,
                c.passed_wakes, c.passed_ids, ",
            columns!("t."),
            ", w.woke, w.before
            FROM tickwheel_schema schema CROSS JOIN tickwheel_claim($1, $2, $3, $4::float8 * interval '1 millisecond', $5, $6, $7,
                $8, $9, $10::float8 * interval '1 millisecond', $11, $12, $13, $14::float8 * interval '1 millisecond', $15) c
            LEFT JOIN LATERAL unnest(c.ids, c.wakes, c.befores) AS w (id, woke, before) ON true
            LEFT JOIN LATERAL unnest(c.timers) t ON t.id = w.id ORDER BY w.woke, w.id"
        );
        let (floor_wake, floor_id) = claim.floor.unzip();
        let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let rows = self.table().query(
            SQL,
            &[
                &claim.kind,
                &small(claim.limit),
                &claim.owner,
                &for_interval(claim.lease),
                &i64::try_from(MOST_BYTES).unwrap_or(i64::MAX),
                &floor_wake,
                &floor_id,
                &limits.at_most.map(small),
                &limits.rate.map(|(starts, _)| small(starts)),
                &limits.rate.map(|(_, per)| for_interval(per)),
                &limits.serial_by.map(String::from),
                &claim.except.to_vec(),
                &small(WINDOW),
                &for_interval(HELD_BACK),
                &SCHEMA_VERSION,
            ],
        )?;
        let first = rows.first().ok_or_else(no_row)?;
        check_version(first)?;
        let reached: (Option<SystemTime>, Option<i64>) =
            (first.try_get(5).map_err(failed)?, first.try_get(6).map_err(failed)?);
        let groups: Option<Vec<String>> = first.try_get(7).map_err(failed)?;
        let wakes: Option<Vec<SystemTime>> = first.try_get(8).map_err(failed)?;
        let ids: Option<Vec<i64>> = first.try_get(9).map_err(failed)?;
        let places = wakes.unwrap_or_default().into_iter().zip(ids.unwrap_or_default());
        let passed = groups.unwrap_or_default().into_iter().zip(places);
        Ok(Claimed {
            more: first.try_get(2).map_err(failed)?,
            next: first.try_get(3).map_err(failed)?,
            held_back: first.try_get(4).map_err(failed)?,
            reached: reached.0.zip(reached.1),
            passed: passed.map(|(group, before)| Passed { group, before }).collect(),
            ..Claimed::new(first.try_get(0).map_err(failed)?, claimed_in(&rows)?)
        })
    }
}

/// The timers that a claim has taken. Without any there is one row all the same.
fn claimed_in(rows: &[Row]) -> Result<Vec<ClaimedTimer>> {
    let mut timers = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(before) = row.try_get::<_, Option<&str>>("before").map_err(failed)? {
            timers.push(ClaimedTimer {
                timer: timer_in(row)?,
                woke: row.try_get("woke").map_err(failed)?,
                was_running: before == "running",
            });
        }
    }
    Ok(timers)
}

impl<C: Sql> Within<'_, C> {
    /// Changes runs whose timers are not locked, and tries the others again for some milliseconds: a claim of another worker
    /// may look at them. After an error, `all` has what was changed before it.
    fn try_again(
        &mut self,
        all: &mut Changed,
        mut runs: Vec<RunId>,
        change: impl Fn(&mut Self, &[RunId]) -> Result<Vec<i64>>,
    ) -> Result<()> {
        for pause in [1, 2, 4, 8] {
            let changed = change(self, &runs)?;
            runs.retain(|run| !changed.contains(&run.fence));
            all.changed.extend(changed);
            if !runs.is_empty() {
                let (ids, fences) = ids_and_fences(&runs);
                let running = fences_in(&self.query(RUNNING, &[&ids, &fences])?)?;
                runs.retain(|run| running.contains(&run.fence));
            }
            if runs.is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        all.busy.extend(runs.iter().map(|run| run.fence));
        Ok(())
    }

    /// Writes what became of runs.
    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        let mut all = Changed::default();
        match self.finish_by_statement(&mut all, runs) {
            Ok(()) => {}
            // What is committed is told, and the error comes again when the rest is tried again. Of a connection that was lost nobody
            // knows what it has committed.
            Err(error) if !all.changed.is_empty() && !error.is_of_the_connection() => {
                let fences = runs.iter().map(|finish| finish.run.fence);
                all.busy = fences.filter(|fence| !all.changed.contains(fence)).collect();
            }
            Err(error) => return Err(error),
        }
        Ok(all)
    }

    fn finish_by_statement(&mut self, all: &mut Changed, runs: &[Finish]) -> Result<()> {
        let (past, plain): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.record.is_some());
        let (done, split, changed) = by_statement(plain);
        let (past_done, past_split, past_changed) = by_statement(past);
        let ids = |runs: &[&Finish]| runs.iter().map(|finish| finish.run).collect::<Vec<_>>();
        if !done.is_empty() {
            self.try_again(all, ids(&done), Self::remove)?;
        }
        let groups = [
            (CHANGE, changed),
            (SPLIT, split),
            (PAST_DONE, past_done),
            (PAST_CHANGE, past_changed),
            (PAST_SPLIT, past_split),
        ];
        for (sql, group) in groups {
            if group.is_empty() {
                continue;
            }
            self.try_again(all, ids(&group), |table, left| {
                let left: HashSet<i64> = left.iter().map(|run| run.fence).collect();
                let of = group.iter().copied().filter(|finish| left.contains(&finish.run.fence));
                table.change(sql, of)
            })?;
        }
        Ok(())
    }

    fn remove(&mut self, runs: &[RunId]) -> Result<Vec<i64>> {
        macro_rules! remove {
            ($runs:literal) => {
                concat!(
                    "WITH mine AS (SELECT t.ctid AS at, t.id FROM ",
                    $runs,
                    " AS run (id, fence)",
                    locked!(),
                    ") DELETE FROM tickwheel_timers t USING mine WHERE t.ctid = mine.at AND t.id = mine.id RETURNING t.fence"
                )
            };
        }
        // The server can keep one plan for all single runs, but not for all lists of them.
        const ONE: &str = remove!("(VALUES ($1::bigint, $2::bigint))");
        const ALL: &str = remove!("unnest($1::bigint[], $2::bigint[])");
        if let [run] = runs {
            return fences_in(&self.query(ONE, &[&run.id, &run.fence])?);
        }
        let (ids, fences) = ids_and_fences(runs);
        fences_in(&self.query(ALL, &[&ids, &fences])?)
    }

    fn change<'f>(
        &mut self,
        sql: &'static str,
        runs: impl Iterator<Item = &'f Finish>,
    ) -> Result<Vec<i64>> {
        let (mut ids, mut fences, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let (mut dues, mut gaps, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        let (mut attempts, mut keys, mut wokes) = (Vec::new(), Vec::new(), Vec::new());
        let mut past = Rows::default();
        for Finish { run, attempts: started, then, record, woke, .. } in runs {
            record.iter().for_each(|record| past.push(record));
            let text = |error: &String| Some(error.replace('\0', " "));
            let at = |due: &SystemTime| Some(from_micros(micros(*due)));
            let (state, due, gap, error, key) = match then {
                Then::Next(due) => (State::Waiting, at(due), None, None, None),
                Then::Retry(gap, error) => {
                    (State::Waiting, None, Some(for_interval(*gap)), text(error), None)
                }
                Then::Snooze(delay) => {
                    (State::Waiting, None, Some(for_interval(*delay)), None, None)
                }
                Then::Dead(error) => (State::Dead, None, None, text(error), None),
                Then::Split { next, key, retry, error } => {
                    let error = error.as_ref().and_then(text);
                    (State::Waiting, at(next), retry.map(for_interval), error, Some(key))
                }
                Then::Release | Then::Done => (State::Waiting, None, None, None, None),
            };
            ids.push(run.id);
            fences.push(run.fence);
            states.push(state.name());
            dues.push(due);
            gaps.push(gap);
            errors.push(error);
            attempts.push(i32::try_from(*started).unwrap_or(i32::MAX));
            keys.push(key);
            wokes.push(woke.as_ref().filter(|_| *then == Then::Release).and_then(at));
        }
        let values: [&dyn Value; 9] =
            [&ids, &fences, &states, &dues, &gaps, &errors, &attempts, &keys, &wokes];
        let past: &[_] = if past.is_empty() { &[] } else { &past.values() };
        fences_in(&self.query(sql, &[past, &values].concat())?)
    }
}

/// The runs that are removed, those that leave their series, and those that are changed.
fn by_statement(runs: Vec<&Finish>) -> (Vec<&Finish>, Vec<&Finish>, Vec<&Finish>) {
    let (done, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.then == Then::Done);
    let (split, changed): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|run| matches!(run.then, Then::Split { .. }));
    (done, split, changed)
}

/// The runs, with what becomes of them.
macro_rules! runs {
    ($values:literal) => {
        concat!(
            "WITH mine AS (
                SELECT t.ctid AS at, run.*, t.kind, t.key, t.payload, t.due, t.max_attempts, t.time_limit_ms, t.trace,
                    coalesce(run.new_error, t.error) AS own_error
                FROM unnest(",
            $values,
            ") AS run (id, fence, new_state, new_due, gap_ms, new_error, new_attempts, new_key, woke)",
            locked!(),
            ")"
        )
    };
    () => {
        runs!(
            "$1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::float8[], $6::text[], $7::integer[], $8::text[], $9::timestamptz[]"
        )
    };
    // Behind the columns of their rows in the history.
    (with_past) => {
        runs!(
            "$13::bigint[], $14::bigint[], $15::text[], $16::timestamptz[], $17::float8[], $18::text[], $19::integer[], $20::text[], $21::timestamptz[]"
        )
    };
}

/// `due` is set in each case, and unchanged in most. `fence` becomes 0 for a timer that was never started, so that the
/// trigger tells the other workers of it. What is put off or given back has no error, and keeps the one that it had.
macro_rules! change {
    () => {
        ", changed AS (UPDATE tickwheel_timers t SET
            state = mine.new_state,
            due = coalesce(mine.new_due, t.due),
            held_until = CASE WHEN mine.new_state = 'dead' THEN 'infinity'
                WHEN mine.new_due IS NULL THEN coalesce(tickwheel_now() + mine.gap_ms * interval '1 millisecond', mine.woke) END,
            attempts = CASE WHEN mine.new_due IS NULL THEN mine.new_attempts ELSE 0 END,
            fence = CASE WHEN mine.new_state = 'waiting' AND mine.new_due IS NULL AND mine.gap_ms IS NULL
                THEN 0 ELSE t.fence END,
            owner = NULL,
            error = CASE WHEN mine.new_due IS NULL THEN mine.own_error ELSE mine.new_error END
        FROM mine WHERE t.ctid = mine.at AND t.id = mine.id RETURNING mine.*)"
    };
}

/// Rows of the history, of those runs that are changed (STORE-10).
macro_rules! past {
    () => {
        concat!(", past AS (", put_in!(" JOIN changed ON changed.fence = past.fence"), ")")
    };
}

/// Runs that have failed, or are put off, become timers of their own.
macro_rules! own {
    () => {
        ", own AS (
            INSERT INTO tickwheel_timers
                (kind, key, payload, due, max_attempts, time_limit_ms, trace, state, attempts, held_until, error)
            SELECT kind, new_key, payload, due, max_attempts, time_limit_ms, trace,
                CASE WHEN gap_ms IS NULL THEN 'dead' ELSE 'waiting' END, new_attempts,
                CASE WHEN gap_ms IS NULL THEN 'infinity' ELSE tickwheel_now() + gap_ms * interval '1 millisecond' END,
                own_error FROM changed
            ON CONFLICT (kind, key) DO NOTHING)"
    };
}

/// Each selects the fencing numbers of the runs that are changed.
const CHANGE: &str = concat!(runs!(), change!(), " SELECT fence FROM changed");
const SPLIT: &str = concat!(runs!(), change!(), own!(), " SELECT fence FROM changed");

/// The same with a history. A run that leaves its series takes its attempts along (HISTORY-3). They began when it was due, by clocks
/// that may be apart, or later.
const PAST_CHANGE: &str =
    concat!(runs!(with_past), change!(), past!(), " SELECT fence FROM changed");
const PAST_DONE: &str = concat!(
    runs!(with_past),
    ", changed AS (DELETE FROM tickwheel_timers t USING mine WHERE t.ctid = mine.at AND t.id = mine.id RETURNING mine.*)",
    past!(),
    " SELECT fence FROM changed"
);
const PAST_SPLIT: &str = concat!(
    runs!(with_past),
    change!(),
    past!(),
    own!(),
    ", taken_along AS (UPDATE tickwheel_history h SET key = changed.new_key FROM changed
        WHERE h.kind = changed.kind AND h.key = changed.key AND h.started >= changed.due - interval '1 hour' AND h.due = changed.due)",
    " SELECT fence FROM changed"
);

/// Returns an error if another process has made the tables too new: the second column is the oldest version that works.
fn check_version(row: &Row) -> Result<()> {
    let oldest: i32 = row.try_get(1).map_err(failed)?;
    if oldest > SCHEMA_VERSION { Err(Error::Schema(oldest)) } else { Ok(()) }
}

fn ids_and_fences(runs: &[RunId]) -> (Vec<i64>, Vec<i64>) {
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
