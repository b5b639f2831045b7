//! What workers do: look, claim, extend, and write what became of runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Params, params};

use super::table::{COLUMNS, NEVER, Within, millis, time};
use super::{File, begin, failed};
use crate::columns::{delay_millis, milliseconds};
use crate::error::{Error, Result};
use crate::handler::Work;
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, HELD_BACK, Limits, Look,
    MOST_BYTES, Passed, Purge, Purged, RunId, SCHEMA_VERSION, Table, Then, Transacted, WINDOW,
    keep_series,
};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};

/// How long a transaction that writes outcomes takes, before it leaves the rest to the next one. Another thread, or another
/// process, waits for so long.
const SHORT: Duration = Duration::from_millis(4);

/// What is due of a kind behind a floor. With `(wake, id) > (?3, ?4)` SQLite would walk from the first that wakes with the floor, and
/// all may wake together.
const BEHIND_FLOOR: &str = "SELECT id, wake, key, state, length(payload) FROM tickwheel_timers
    WHERE kind = ?1 AND wake = ?3 AND wake <= ?2 AND id > ?4
    UNION ALL SELECT id, wake, key, state, length(payload) FROM tickwheel_timers
    WHERE kind = ?1 AND wake > ?3 AND wake <= ?2 ORDER BY wake, id LIMIT ?5";

/// A connection for one thread, which takes the process' own for each call.
pub(super) struct Session {
    file: Arc<File>,
    /// The last change by others, when it was read last.
    changes: Option<(u64, i64)>,
}

impl Session {
    pub(super) fn new(file: &Arc<File>) -> Session {
        Session { file: Arc::clone(file), changes: None }
    }

    /// Reads without a transaction of its own.
    fn read<T>(&self, work: impl FnOnce(Within<'_>) -> Result<T>) -> Result<T> {
        self.file.with(|client| work(Within { client, time: Some(self.file.now()) }))
    }

    fn write<T>(&self, work: impl FnOnce(Within<'_>) -> Result<T>) -> Result<T> {
        // The clock is read once the file is ours.
        self.file
            .write(|transaction| work(Within { client: transaction, time: Some(self.file.now()) }))
    }

    /// Writes for a worker, which may go on doing so (SQLITE-3).
    fn work<T>(&self, work: impl FnOnce(Within<'_>) -> Result<T>) -> Result<T> {
        self.file.write_and_rest(|transaction| {
            work(Within { client: transaction, time: Some(self.file.now()) })
        })
    }
}

impl Table for Session {
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

    fn set_payload(&mut self, kind: &str, key: &str, payload: &[u8]) -> Result<bool> {
        self.write(|mut table| table.set_payload(kind, key, payload))
    }

    fn cancel_all(&mut self, filter: &Filter) -> Result<u64> {
        self.write(|mut table| table.cancel_all(filter))
    }
}

impl Connection for Session {
    fn has_changed(&mut self) -> Result<bool> {
        let changes = self.file.with(|client| self.file.changes(client))?;
        let before = self.changes.replace(changes);
        Ok(before != Some(changes))
    }

    fn keep_series(&mut self, series: &NewTimer) -> Result<Option<Scheduled>> {
        self.write(|mut table| keep_series(&mut table, series))
    }

    fn now(&mut self) -> Result<SystemTime> {
        Ok(time(self.file.now() / 1000))
    }

    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look> {
        self.read(|table| {
            table.check_version()?;
            let sql = "SELECT wake FROM tickwheel_timers WHERE kind = ?1 AND wake <= ?2 ORDER BY wake LIMIT ?3";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let until = table.now().saturating_add(delay_millis(horizon));
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
        self.work(|table| match claim.limits {
            Some(limits) => table.claim_within(claim, limits),
            None => table.claim(claim),
        })
    }

    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool> {
        self.work(|table| table.start(run, attempts))
    }

    fn start_all(&mut self, starts: &[(RunId, u32)]) -> Result<Changed> {
        self.write(|table| {
            let mut started = Changed::default();
            for (run, attempts) in starts {
                if table.start(*run, *attempts)? {
                    started.changed.push(run.fence);
                }
            }
            Ok(started)
        })
    }

    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed> {
        self.write(|table| {
            let sql = "UPDATE tickwheel_timers SET held_until = ?3 WHERE id = ?1 AND fence = ?2 AND state = 'running'";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let until = table.now().saturating_add(delay_millis(lease));
            let mut extended = Changed::default();
            for run in runs {
                if statement.execute((run.id, run.fence, until)).map_err(failed)? > 0 {
                    extended.changed.push(run.fence);
                }
            }
            Ok(extended)
        })
    }

    fn running(&mut self, runs: &[RunId]) -> Result<Vec<i64>> {
        self.read(|table| {
            let sql =
                "SELECT 1 FROM tickwheel_timers WHERE id = ?1 AND fence = ?2 AND state = 'running'";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let mut running = Vec::new();
            for run in runs {
                if statement.exists((run.id, run.fence)).map_err(failed)? {
                    running.push(run.fence);
                }
            }
            Ok(running)
        })
    }

    fn hold(&mut self, fences: &[i64], lease: Duration) -> Result<Vec<i64>> {
        self.write(|table| {
            let sql = "UPDATE tickwheel_holds SET until = ?2 WHERE fence = ?1";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            let until = table.now().saturating_add(delay_millis(lease));
            let mut held = Vec::new();
            for fence in fences {
                if statement.execute((fence, until)).map_err(failed)? > 0 {
                    held.push(*fence);
                }
            }
            Ok(held)
        })
    }

    fn let_go(&mut self, fences: &[i64]) -> Result<()> {
        self.work(|table| {
            let sql = "DELETE FROM tickwheel_holds WHERE fence = ?1";
            let mut statement = table.client.prepare_cached(sql).map_err(failed)?;
            fences.iter().try_for_each(|fence| statement.execute([fence]).map(drop)).map_err(failed)
        })
    }

    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        let (mut finished, mut left) = (Changed::default(), runs);
        while !left.is_empty() {
            let written = self.work(|table| {
                let (began, mut changed, mut count) = (Instant::now(), Vec::new(), 0);
                while count < left.len() && (count == 0 || began.elapsed() < SHORT) {
                    if table.finish(&left[count])? {
                        changed.push(left[count].run.fence);
                    }
                    count += 1;
                }
                Ok((changed, count))
            });
            match written {
                Ok((changed, count)) => {
                    finished.changed.extend(changed);
                    left = &left[count..];
                }
                Err(error) if left.len() == runs.len() => return Err(error),
                // What is committed is told, and the error comes again when the rest is tried again.
                Err(_) => {
                    finished.busy.extend(left.iter().map(|finish| finish.run.fence));
                    break;
                }
            }
        }
        Ok(finished)
    }

    fn transact(
        &mut self,
        finish: &Finish,
        _: Duration, // SQLite cannot end the transaction of a process that hangs
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        self.file.with(|client| {
            if let Some(attempts) = work.start() {
                let transaction = begin(client)?;
                let table = Within { client: &transaction, time: None };
                if !table.is_held(finish)? || !table.start(finish.run, attempts)? {
                    return Ok(Transacted::Lost);
                }
                transaction.commit().map_err(failed)?;
            }
            let mut transaction = begin(client)?;
            let table = Within { client: &transaction, time: Some(self.file.now()) };
            if !table.is_held(finish)? || !table.finish(finish)? {
                return Ok(Transacted::Lost);
            }
            if !work.within::<rusqlite::Transaction<'static>>(&mut transaction) {
                return Ok(Transacted::Undone);
            }
            // After some errors SQLite undoes the transaction by itself, with the end of the timer, and each further statement is one of
            // its own.
            if transaction.is_autocommit() {
                work.fail("a statement has undone its transaction, or committed it, and the handler has returned `Ok`");
                return Ok(Transacted::Undone);
            }
            if let Some(record) = work.record() {
                Within { client: &transaction, time: None }.record(&record)?;
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

    fn record(&mut self, attempts: &[Attempt]) -> Result<()> {
        self.work(|table| attempts.iter().try_for_each(|attempt| table.record(attempt)))
    }

    fn history(&mut self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        self.read(|table| table.history(filter))
    }

    fn pace(&mut self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        self.read(|table| table.pace(span, step))
    }

    fn purge_history(&mut self, purge: &Purge<'_>) -> Result<Purged> {
        self.work(|table| table.purge_history(purge, SHORT))
    }

    fn purge_dead(
        &mut self,
        kind: &str,
        keep: Duration,
        after: i64,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        self.work(|table| table.purge_dead(kind, keep, after, limit))
    }
}

impl Within<'_> {
    /// Takes `count` new fencing numbers, and returns the first.
    fn fences(&self, count: usize) -> Result<i64> {
        let sql = "UPDATE tickwheel_schema SET fence = fence + ?1 RETURNING fence - ?1 + 1";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        statement.query_row([count as u32], |row| row.get(0)).map_err(failed)
    }

    /// Returns an error if another process has made the tables too new.
    fn check_version(&self) -> Result<()> {
        let sql = "SELECT oldest FROM tickwheel_schema";
        let mut oldest = self.client.prepare_cached(sql).map_err(failed)?;
        let oldest: i32 = oldest.query_row([], |row| row.get(0)).map_err(failed)?;
        if oldest > SCHEMA_VERSION { Err(Error::Schema(oldest)) } else { Ok(()) }
    }

    fn claim(&self, claim: &Claim<'_>) -> Result<Claimed> {
        self.check_version()?;
        let sql = format!(
            "SELECT {COLUMNS} FROM tickwheel_timers WHERE kind = ?1 AND wake <= ?2 ORDER BY wake, id LIMIT ?3"
        );
        let values =
            vec![claim.kind.to_owned().into(), self.now().into(), i64::from(claim.limit).into()];
        let (mut due, is_cut) = self.query_for_a_claim(&sql, values)?;
        // A suspected one is taken by itself (STORE-7).
        let (found, suspected) =
            (due.len(), due.iter().position(|timer| timer.state == State::Running));
        due.truncate(suspected.map_or(found, |first| first.max(1)));
        let more = is_cut || due.len() < found || found == claim.limit as usize;
        let next = if more { None } else { self.next_after_now(claim.kind)? };
        let timers = self.take(claim, due)?;
        Ok(Claimed { more, next, ..Claimed::new(time(self.now()), timers) })
    }

    /// Returns when the next timer of a kind wakes that waits.
    fn next_after_now(&self, kind: &str) -> Result<Option<SystemTime>> {
        let sql = "SELECT wake FROM tickwheel_timers
            WHERE kind = ?1 AND wake > ?2 AND wake < ?3 AND state = 'waiting' ORDER BY wake LIMIT 1";
        let mut next = self.client.prepare_cached(sql).map_err(failed)?;
        let next = next.query_row(params![kind, self.now(), NEVER], |row| row.get(0));
        Ok(next.optional().map_err(failed)?.map(time))
    }

    /// Gives timers to a worker.
    fn take(&self, claim: &Claim<'_>, due: Vec<Timer>) -> Result<Vec<ClaimedTimer>> {
        let mut taken = Vec::with_capacity(due.len());
        if due.is_empty() {
            return Ok(taken);
        }
        let first = self.fences(due.len())?;
        let sql = "UPDATE tickwheel_timers
            SET state = 'running', fence = ?2, owner = ?3, held_until = ?4, error = ?5 WHERE id = ?1";
        let mut update = self.client.prepare_cached(sql).map_err(failed)?;
        let until = self.now().saturating_add(delay_millis(claim.lease));
        for (mut timer, fence) in due.into_iter().zip(first..) {
            let was_running = timer.state == State::Running;
            let woke = timer.wake.unwrap_or(timer.due);
            if was_running {
                timer.error = Some(lease_ended(timer.owner.as_deref()));
            }
            timer.fence = fence;
            timer.state = State::Running;
            timer.owner = Some(claim.owner.to_owned());
            timer.wake = Some(time(until));
            let values = params![timer.id, fence, timer.owner, until, timer.error];
            update.execute(values).map_err(failed)?;
            taken.push(ClaimedTimer { timer, woke, was_running });
        }
        Ok(taken)
    }

    /// Claims timers of a kind with limits (STORE-9). Transactions that write come one after the other anyway.
    fn claim_within(&self, claim: &Claim<'_>, limits: Limits) -> Result<Claimed> {
        self.check_version()?;
        let (kind, now) = (claim.kind, self.now());
        self.execute("DELETE FROM tickwheel_holds WHERE kind = ?1 AND until <= ?2", (kind, now))?;
        let mut room = claim.limit;
        let tokens = limits.rate.map(|(starts, per)| self.tokens(kind, starts, per)).transpose()?;
        if let Some(tokens) = tokens {
            room = (0..room).take_while(|taken| f64::from(*taken) + 1.0 <= tokens).count() as u32;
        }
        if let Some(most) = limits.at_most {
            let sql = "SELECT count(*) FROM tickwheel_holds WHERE kind = ?1";
            let mut held = self.client.prepare_cached(sql).map_err(failed)?;
            room = room.min(
                most.saturating_sub(held.query_row([kind], |row| row.get(0)).map_err(failed)?),
            );
        }
        let mut claimed = Claimed::new(time(now), Vec::new());
        if room > 0 {
            let due = self.choose(claim, limits, room, &mut claimed)?;
            claimed.timers = self.take(claim, due)?;
        }
        let until = now.saturating_add(delay_millis(claim.lease));
        for ClaimedTimer { timer, .. } in &claimed.timers {
            let sql = "INSERT INTO tickwheel_holds (fence, kind, of_group, until) VALUES (?1, ?2, ?3, ?4)";
            self.execute(sql, (timer.fence, kind, limits.group_of(&timer.key), until))?;
        }
        let count = claimed.timers.len() as u32;
        // What there is room for may be less than what is due.
        if count >= room && room < claim.limit && (count > 0 || self.has_due(claim)?) {
            claimed.held_back = Some(time(now) + HELD_BACK);
        }
        if let (Some(tokens), Some((starts, per))) = (tokens, limits.rate) {
            let left = tokens - f64::from(count);
            if left < 1.0 {
                let next = time(now) + per.mul_f64((1.0 - left) / f64::from(starts));
                claimed.held_back = claimed.held_back.map(|_| next);
            }
            let sql = "INSERT INTO tickwheel_limits (kind, tokens, filled) VALUES (?1, ?2, ?3)
                ON CONFLICT (kind) DO UPDATE SET tokens = excluded.tokens, filled = excluded.filled";
            self.execute(sql, (kind, left, now))?;
        }
        if !claimed.more && claimed.held_back.is_none() {
            claimed.next = self.next_after_now(kind)?;
        }
        Ok(claimed)
    }

    pub(super) fn execute(&self, sql: &str, values: impl Params) -> Result<usize> {
        self.client.prepare_cached(sql).and_then(|mut sql| sql.execute(values)).map_err(failed)
    }

    /// Returns what the bucket of a kind holds now.
    fn tokens(&self, kind: &str, starts: u32, per: Duration) -> Result<f64> {
        let sql = "SELECT tokens, filled FROM tickwheel_limits WHERE kind = ?1";
        let mut bucket = self.client.prepare_cached(sql).map_err(failed)?;
        let bucket = bucket.query_row([kind], |row| Ok((row.get(0)?, row.get(1)?)));
        let full = f64::from(starts);
        Ok(bucket.optional().map_err(failed)?.map_or(full, |(tokens, filled): (f64, i64)| {
            let since = milliseconds(self.now().saturating_sub(filled));
            (tokens + since.as_secs_f64() / per.as_secs_f64() * full).min(full)
        }))
    }

    fn has_due(&self, claim: &Claim<'_>) -> Result<bool> {
        let sql = "SELECT 1 FROM tickwheel_timers WHERE kind = ?1 AND wake <= ?2 LIMIT 1";
        let mut due = self.client.prepare_cached(sql).map_err(failed)?;
        due.exists((claim.kind, self.now())).map_err(failed)
    }

    /// Chooses what is claimed of a kind with limits: without groups what is due first, and with groups the first of each that is
    /// not held.
    fn choose(
        &self,
        claim: &Claim<'_>,
        limits: Limits,
        room: u32,
        claimed: &mut Claimed,
    ) -> Result<Vec<Timer>> {
        let sql = "SELECT DISTINCT of_group FROM tickwheel_holds WHERE kind = ?1 AND of_group IS NOT NULL";
        let mut held = self.client.prepare_cached(sql).map_err(failed)?;
        let held = held.query_map([claim.kind], |row| row.get(0)).map_err(failed)?;
        let mut held: HashSet<String> = held.collect::<rusqlite::Result<_>>().map_err(failed)?;
        let excepted: HashSet<&str> = claim.except.iter().map(String::as_str).collect();
        let width = if limits.serial_by.is_some() { WINDOW } else { room };
        let (wake, id) = claim.floor.map_or((i64::MIN, 0), |(wake, id)| (millis(wake), id));
        let mut due = self.client.prepare_cached(BEHIND_FLOOR).map_err(failed)?;
        let mut due =
            due.query(params![claim.kind, self.now(), wake, id, width]).map_err(failed)?;
        let (mut chosen, mut bytes, mut found, mut last) = (Vec::new(), 0, 0, None);
        let (mut is_full, mut is_left, mut passed) = (false, false, HashMap::new());
        while let Some(row) = due.next().map_err(failed)? {
            let (id, wake): (i64, i64) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
            (found, last) = (found + 1, Some((time(wake), id)));
            let key = String::from_utf8_lossy(
                row.get_ref(2).map_err(failed)?.as_bytes().unwrap_or_default(),
            )
            .into_owned();
            let group = limits.group_of(&key).map(str::to_owned);
            if let Some(group) = group.as_ref().filter(|group| held.contains(*group)) {
                passed.entry(group.clone()).or_insert((time(wake), id - 1));
                continue;
            }
            if group.as_deref().is_some_and(|group| excepted.contains(group)) {
                continue;
            }
            let is_suspected = row.get_ref(3).map_err(failed)?.as_bytes() == Ok(b"running");
            bytes += usize::try_from(row.get::<_, i64>(4).map_err(failed)?).unwrap_or(0);
            is_full |= chosen.len() >= room as usize
                || !chosen.is_empty() && (is_suspected || bytes > MOST_BYTES);
            if is_full {
                is_left = true;
                continue;
            }
            is_full = is_suspected; // it is taken by itself (STORE-7)
            chosen.push(id);
            held.extend(group);
            claimed.reached = Some((time(wake), id));
        }
        if !is_left {
            claimed.reached = last;
        }
        claimed.more = found == width || is_left;
        claimed.passed =
            passed.into_iter().map(|(group, before)| Passed { group, before }).collect();
        let sql = format!("SELECT {COLUMNS} FROM tickwheel_timers WHERE id = ?1");
        let timers = chosen.into_iter().map(|id| self.query(&sql, vec![id.into()]));
        Ok(timers.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns false if a claim has removed the hold of a run (STORE-9).
    fn is_held(&self, finish: &Finish) -> Result<bool> {
        let sql = "SELECT 1 FROM tickwheel_holds WHERE fence = ?1";
        let held = |mut sql: rusqlite::CachedStatement<'_>| sql.exists([finish.run.fence]);
        Ok(!finish.has_limits || self.client.prepare_cached(sql).and_then(held).map_err(failed)?)
    }

    fn start(&self, run: RunId, attempts: u32) -> Result<bool> {
        let sql = "UPDATE tickwheel_timers SET attempts = ?3 WHERE id = ?1 AND fence = ?2 AND state = 'running'";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        Ok(statement.execute((run.id, run.fence, attempts)).map_err(failed)? > 0)
    }

    /// Writes what became of a run, and its row in the history with it (STORE-10).
    fn finish(&self, finish: &Finish) -> Result<bool> {
        let is_changed = self.change(finish)?;
        if let Some(record) = finish.record.as_deref().filter(|_| is_changed) {
            self.record(record)?;
            if let Then::Split { key, .. } = &finish.then {
                self.take_along(finish.run.id, record.due, key)?;
            }
        }
        Ok(is_changed)
    }

    fn change(&self, finish: &Finish) -> Result<bool> {
        const NEXT: &str = "state = 'waiting', held_until = NULL, due = ?3";
        let RunId { id, fence } = finish.run;
        let set = |changes: &str, value: Value, error: Option<&str>, attempts: u32| {
            let sql = format!(
                "UPDATE tickwheel_timers SET owner = NULL, error = ?4, attempts = ?5, {changes}
                WHERE id = ?1 AND fence = ?2 AND state = 'running'"
            );
            let mut statement = self.client.prepare_cached(&sql)?;
            statement.execute(params![id, fence, value, error, attempts])
        };
        // What is put off or given back keeps the error that it had.
        let wait = |until: Option<i64>, error: Option<&str>| {
            let sql = "UPDATE tickwheel_timers
                SET owner = NULL, error = coalesce(?4, error), attempts = ?5, state = 'waiting', held_until = ?3
                WHERE id = ?1 AND fence = ?2 AND state = 'running'";
            let values = params![id, fence, until, error, finish.attempts];
            self.client.prepare_cached(sql).and_then(|mut update| update.execute(values))
        };
        let changed = match &finish.then {
            Then::Done => {
                let sql = "DELETE FROM tickwheel_timers WHERE id = ?1 AND fence = ?2 AND state = 'running'";
                self.client.prepare_cached(sql).and_then(|mut delete| delete.execute((id, fence)))
            }
            Then::Next(due) => set(NEXT, millis(*due).into(), None, 0),
            Then::Retry(gap, error) => wait(Some(self.due(When::After(*gap))), Some(error)),
            Then::Snooze(delay) => wait(Some(self.due(When::After(*delay))), None),
            Then::Release => wait(finish.woke.map(millis), None),
            Then::Dead(error) => {
                set("state = 'dead', held_until = ?3", NEVER.into(), Some(error), finish.attempts)
            }
            Then::Split { next, key, retry, error } => {
                let sql = "INSERT INTO tickwheel_timers
                        (kind, key, payload, due, max_attempts, time_limit_ms, trace, state, attempts, held_until, error)
                    SELECT kind, ?3, payload, due, max_attempts, time_limit_ms, trace, ?4, ?5, ?6, coalesce(?7, error)
                    FROM tickwheel_timers
                    WHERE id = ?1 AND fence = ?2 AND state = 'running' ON CONFLICT (kind, key) DO NOTHING";
                let (state, until) = match retry {
                    Some(gap) => (State::Waiting, self.due(When::After(*gap))),
                    None => (State::Dead, NEVER),
                };
                let values = params![id, fence, key, state.name(), finish.attempts, until, error];
                self.client
                    .prepare_cached(sql)
                    .and_then(|mut insert| insert.execute(values))
                    .and_then(|_| set(NEXT, millis(*next).into(), error.as_deref(), 0))
            }
        };
        Ok(changed.map_err(failed)? > 0)
    }
}

/// Says why a timer is tried again that no worker has reported about.
fn lease_ended(owner: Option<&str>) -> String {
    let owner = owner.unwrap_or("unknown");
    format!("the lease of worker {owner} ended: it died, hung, or lost the database")
}

#[cfg(test)]
mod tests {
    use super::super::table::WAIT;
    use super::super::{Place, Sqlite, within};
    use super::*;
    use crate::store::Store;

    /// Each connection counts the changes of others for itself, so a new one may give the same number as the old one.
    #[test]
    fn a_change_is_not_missed_because_the_file_was_opened_anew() {
        let store = Sqlite::new(":memory:");
        store.migrate().unwrap();
        let mut session = Session::new(&store.file);
        assert!(session.has_changed().unwrap(), "nothing is known yet");
        assert!(!session.has_changed().unwrap());
        store.file.desk().place = Place::Closed;
        assert!(session.has_changed().unwrap(), "another process may have written in the meantime");
        assert!(!session.has_changed().unwrap());
    }

    /// They have begun with a write already.
    #[test]
    fn calls_of_our_own_take_the_lock_of_the_file_once() {
        let store = Sqlite::new(":memory:");
        store.migrate().unwrap();
        let mut session = Session::new(&store.file);
        let runs = || {
            let runs = store.file.with(|client| {
                let wait = client.prepare_cached(WAIT).map_err(failed)?;
                Ok(wait.get_status(rusqlite::StatementStatus::Run))
            });
            runs.unwrap()
        };
        let new = [NewTimer::new("mail", "1", Duration::ZERO)];
        session.schedule(&new, Existing::Replace).unwrap();
        assert_eq!(runs(), 0);
        let yours = |new: &[NewTimer]| {
            store.file.with(|client| within(client).schedule(new, Existing::Replace)).unwrap();
        };
        yours(&new);
        assert_eq!(runs(), 1);
        yours(&[]);
        assert_eq!(runs(), 1, "there is nothing to write");
    }

    /// A claim with limits reads what it looks at, and not the whole backlog: neither what is before its floor, although all wakes
    /// together, nor what is behind its limit, to sort it.
    #[test]
    fn a_claim_with_limits_does_not_read_the_backlog() {
        let store = Sqlite::new(":memory:");
        store.migrate().unwrap();
        let mut session = Session::new(&store.file);
        let put_in = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10 * ?1)
            INSERT INTO tickwheel_timers (kind, key, due) SELECT 'mail', 'group/' || n, 1000 + n / (8 * ?1) FROM n";
        session.write(|table| table.execute(put_in, [WINDOW])).unwrap();
        let limits = Limits { serial_by: Some('/'), ..Limits::default() };
        let mut floor = None;
        let mut steps = vec![0];
        // The first takes one, and those behind it wait for that.
        for round in 0..10 {
            let claim = Claim { floor, ..Claim::new("mail", "me").limit(9).limits(Some(limits)) };
            let claimed = session.claim(&claim).unwrap();
            assert_eq!((claimed.timers.len(), claimed.more), (usize::from(round == 0), true));
            floor = claimed.reached;
            // The steps of all claims so far.
            let so_far = session.file.with(|client| {
                let due = client.prepare_cached(BEHIND_FLOOR).map_err(failed)?;
                Ok(due.get_status(rusqlite::StatementStatus::VmStep))
            });
            steps.push(so_far.unwrap());
        }
        let each: Vec<_> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
        assert!(*least > 0 && *most < least * 5 / 4, "{each:?}");
    }
}
