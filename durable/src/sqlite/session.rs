//! What workers do: look, claim, extend, and write what became of runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};

use super::table::{COLUMNS, NEVER, Within, millis, time};
use super::{File, begin, failed};
use crate::columns::{delay_millis, milliseconds};
use crate::error::{Error, Result};
use crate::handler::Work;
use crate::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Look, RunId,
    SCHEMA_VERSION, Table, Then, Transacted,
};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};

/// A connection for one thread, which takes the process' own for each call.
pub(super) struct Session {
    file: Arc<File>,
    /// SQLite's number of the last change by others, when it was read last, and which connection has given it: each counts
    /// for itself.
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
}

impl Connection for Session {
    fn has_changed(&mut self) -> Result<bool> {
        let changes = self.file.with(|client| {
            let mut statement = client.prepare_cached("PRAGMA data_version").map_err(failed)?;
            let version = statement.query_row([], |row| row.get(0)).map_err(failed)?;
            Ok((self.file.opened.load(Ordering::Relaxed), version))
        })?;
        let before = self.changes.replace(changes);
        Ok(before != Some(changes))
    }

    fn now(&mut self) -> Result<SystemTime> {
        Ok(time(self.file.now()))
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
        self.write(|table| table.claim(claim))
    }

    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool> {
        self.write(|table| table.start(run, attempts))
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
            if let Some(attempts) = work.start() {
                let transaction = begin(client)?;
                let table = Within { client: &transaction, time: None };
                if !table.start(finish.run, attempts)? {
                    return Ok(Transacted::Lost);
                }
                transaction.commit().map_err(failed)?;
            }
            let mut transaction = begin(client)?;
            let table = Within { client: &transaction, time: Some(self.file.now()) };
            if !table.finish(finish)? {
                return Ok(Transacted::Lost);
            }
            if !work.within::<rusqlite::Transaction<'static>>(&mut transaction) {
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
        let sql = "SELECT wake FROM tickwheel_timers
            WHERE kind = ?1 AND wake > ?2 AND wake < ?3 AND state = 'waiting' ORDER BY wake LIMIT 1";
        let mut next = self.client.prepare_cached(sql).map_err(failed)?;
        let next = if more {
            Ok(None)
        } else {
            next.query_row(params![claim.kind, self.now(), NEVER], |row| row.get(0)).optional()
        };
        let next: Option<i64> = next.map_err(failed)?;
        let mut claimed = Claimed {
            now: time(self.now()),
            timers: Vec::with_capacity(due.len()),
            more,
            next: next.map(time),
        };
        if due.is_empty() {
            return Ok(claimed);
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
            claimed.timers.push(ClaimedTimer { timer, woke, was_running });
        }
        Ok(claimed)
    }

    fn start(&self, run: RunId, attempts: u32) -> Result<bool> {
        let sql = "UPDATE tickwheel_timers SET attempts = ?3 WHERE id = ?1 AND fence = ?2 AND state = 'running'";
        let mut statement = self.client.prepare_cached(sql).map_err(failed)?;
        Ok(statement.execute((run.id, run.fence, attempts)).map_err(failed)? > 0)
    }

    fn finish(&self, finish: &Finish) -> Result<bool> {
        const NEXT: &str = "state = 'waiting', held_until = NULL, due = ?3";
        const WAIT: &str = "state = 'waiting', held_until = ?3";
        let RunId { id, fence } = finish.run;
        let set = |changes: &str, value: Value, error: Option<&str>, attempts: u32| {
            let sql = format!(
                "UPDATE tickwheel_timers SET owner = NULL, error = ?4, attempts = ?5, {changes}
                WHERE id = ?1 AND fence = ?2 AND state = 'running'"
            );
            let mut statement = self.client.prepare_cached(&sql)?;
            statement.execute(params![id, fence, value, error, attempts])
        };
        let changed = match &finish.then {
            Then::Done => {
                let sql = "DELETE FROM tickwheel_timers WHERE id = ?1 AND fence = ?2 AND state = 'running'";
                self.client.prepare_cached(sql).and_then(|mut delete| delete.execute((id, fence)))
            }
            Then::Next(due) => set(NEXT, millis(*due).into(), None, 0),
            Then::Retry(gap, error) => {
                set(WAIT, self.due(When::After(*gap)).into(), Some(error), finish.attempts)
            }
            Then::Dead(error) => {
                set("state = 'dead', held_until = ?3", NEVER.into(), Some(error), finish.attempts)
            }
            Then::Split { next, key, retry, error } => {
                let sql = "INSERT INTO tickwheel_timers
                        (kind, key, payload, due, max_attempts, time_limit_ms, state, attempts, held_until, error)
                    SELECT kind, ?3, payload, due, max_attempts, time_limit_ms, ?4, ?5, ?6, ?7 FROM tickwheel_timers
                    WHERE id = ?1 AND fence = ?2 AND state = 'running' ON CONFLICT (kind, key) DO NOTHING";
                let (state, until) = match retry {
                    Some(gap) => (State::Waiting, self.due(When::After(*gap))),
                    None => (State::Dead, NEVER),
                };
                let values = params![id, fence, key, state.name(), finish.attempts, until, error];
                self.client
                    .prepare_cached(sql)
                    .and_then(|mut insert| insert.execute(values))
                    .and_then(|_| set(NEXT, millis(*next).into(), Some(error), 0))
            }
            Then::Release => set(WAIT, Value::Null, None, finish.attempts),
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
    use std::sync::PoisonError;

    use super::super::{Place, Sqlite};
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
        *store.file.client.lock().unwrap_or_else(PoisonError::into_inner) = Place::Closed;
        assert!(session.has_changed().unwrap(), "another process may have written in the meantime");
        assert!(!session.has_changed().unwrap());
    }
}
