//! Timers that survive their process, in SQLite or PostgreSQL (features `sqlite` and `postgres`).

mod clock;
mod dispatcher;
mod error;
mod handler;
mod listener;
#[cfg(feature = "postgres")]
pub mod postgres;
mod runner;
mod shared;
mod sight;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
mod timer;
mod worker;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

pub use error::{Error, Result};
pub use handler::{Failure, HandlerResult, Retry, Run, Work};
pub use store::{
    AnyTransaction, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Listener, Look,
    News, RunId, SCHEMA_VERSION, Store, Table, Then, Transacted, Transactions,
};
pub use timer::{
    Filter, KindCounts, LONGEST_KEY, LONGEST_KIND, NewTimer, Repetition, Scheduled, State, Timer,
    When,
};
pub use worker::{Worker, WorkerBuilder, WorkerStats};

/// No more connections than so many are kept for calls of [`Timers`].
const MOST_IDLE: usize = 8;

/// A store of timers. A clone is a handle of the same one.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Opened>,
}

struct Opened {
    store: Box<dyn Store>,
    idle: Mutex<Vec<Box<dyn Connection>>>,
    workers: Mutex<Vec<Weak<shared::Shared>>>,
}

impl Timers {
    /// Opens a store, and creates its tables if they are not there: `sqlite:path`, `sqlite::memory:`,
    /// `postgres://user:password@host/database`, or `postgres:host=/run/postgresql user=me dbname=shop`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if it is no address, or of a database whose feature is off. [`Error::Unreachable`] if the
    /// database cannot be opened. [`Error::Schema`] if its tables are from a later version of this crate.
    pub fn open(address: &str) -> Result<Timers> {
        let (scheme, rest) = address.split_once(':').unwrap_or(("", address));
        match scheme {
            #[cfg(feature = "sqlite")]
            "sqlite" if !rest.is_empty() => {
                Timers::with_store(sqlite::Sqlite::new(rest.strip_prefix("//").unwrap_or(rest)))
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let is_url = rest.starts_with("//");
                Timers::with_store(postgres::Postgres::new(if is_url { address } else { rest })?)
            }
            // An address may contain a password, so it is not repeated.
            _ => Err(Error::Address(
                "this is no address of a store, or the feature of its database is off".to_owned(),
            )),
        }
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open).
    pub fn with_store(store: impl Store) -> Result<Timers> {
        store.migrate()?;
        let shared =
            Opened { store: Box::new(store), idle: Mutex::default(), workers: Mutex::default() };
        Ok(Timers { shared: Arc::new(shared) })
    }

    /// Schedules a timer. If its kind has one with this key, the new one takes its place.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the timer cannot be stored, and the errors of the database.
    pub fn schedule(&self, timer: &NewTimer) -> Result<Scheduled> {
        let scheduled = self.schedule_with(std::slice::from_ref(timer), Existing::Replace)?;
        scheduled
            .into_iter()
            .flatten()
            .next()
            .ok_or_else(|| Error::refused("the timer was not put in"))
    }

    /// Schedules a timer unless its kind has one with this key, in whatever state. Returns `None` if there is one.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule).
    pub fn schedule_if_absent(&self, timer: &NewTimer) -> Result<Option<Scheduled>> {
        let scheduled = self.schedule_with(std::slice::from_ref(timer), Existing::Keep)?;
        Ok(scheduled.into_iter().flatten().next())
    }

    /// Schedules many timers in one transaction, which costs a fraction of one call for each.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule). Then none of them is scheduled.
    pub fn schedule_all(&self, timers: &[NewTimer]) -> Result<Vec<Scheduled>> {
        let scheduled = self.schedule_with(timers, Existing::Replace)?;
        Ok(scheduled.into_iter().flatten().collect())
    }

    fn schedule_with(
        &self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        let scheduled = self.with(|table| table.schedule(timers, existing))?;
        let mut first: Vec<(&str, SystemTime)> = Vec::new();
        for (timer, scheduled) in timers.iter().zip(&scheduled) {
            let Some(Scheduled { due, .. }) = scheduled else { continue };
            match first.iter_mut().find(|(kind, _)| *kind == timer.kind) {
                Some((_, earliest)) => *earliest = (*earliest).min(*due),
                None => first.push((&timer.kind, *due)),
            }
        }
        first.into_iter().for_each(|(kind, due)| self.expect(kind, due));
        Ok(scheduled)
    }

    /// Moves a timer that waits to another time. Returns false if it is not there, runs, or is dead.
    ///
    /// A timer that waits for another attempt begins anew: all its attempts are before it again.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn reset(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let due = self.with(|table| table.reset(kind, key, when.into()))?;
        due.into_iter().for_each(|due| self.expect(kind, due));
        Ok(due.is_some())
    }

    /// Removes a timer. Returns the state that it had, or `None` if it is not there.
    ///
    /// One that was [`Waiting`](State::Waiting) never starts. If it was [`Running`](State::Running), the run in progress
    /// goes on, and nothing follows it.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn cancel(&self, kind: &str, key: &str) -> Result<Option<State>> {
        self.with(|table| table.cancel(kind, key))
    }

    /// Returns a timer, or `None` if it is not there, because it is done, was cancelled, or never was.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.with(|table| table.get(kind, key))
    }

    /// Lists timers by kind, then by the time at which they wake, with dead ones last.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        self.with(|table| table.list(filter))
    }

    /// Makes a dead timer wait again, with all its attempts before it. Returns false if it is not there, or not dead.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn requeue(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let count = self.with(|table| table.requeue(kind, Some(key), when.into()))?;
        self.tell(kind);
        Ok(count > 0)
    }

    /// Makes all dead timers of a kind wait again. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn requeue_all(&self, kind: &str, when: impl Into<When>) -> Result<u64> {
        let count = self.with(|table| table.requeue(kind, None, when.into()))?;
        self.tell(kind);
        Ok(count)
    }

    /// Counts the timers of each kind, by state, and tells how far behind their workers are. With the feature `metrics`
    /// it also sets the gauges `tickwheel_durable_timers` and `tickwheel_durable_lag_seconds`.
    ///
    /// It reads the whole table, so ask once a minute rather than once a second.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn counts(&self) -> Result<Vec<KindCounts>> {
        let counts = self.with(|connection| connection.counts())?;
        sight::counted(&counts);
        Ok(counts)
    }

    /// Returns the database's time, by which all timers go.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn now(&self) -> Result<SystemTime> {
        self.with(|connection| connection.now())
    }

    /// Returns a builder of a worker, which runs timers when they are due.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    /// Makes the workers of this process that have this kind look for its timers now. Call it after a transaction of your
    /// own in SQLite. PostgreSQL tells workers itself.
    pub fn tell(&self, kind: &str) {
        self.each_worker(|worker| {
            if worker.kind_named(kind).is_some() {
                worker.wake_after(shared::Cause::Look, std::time::Duration::ZERO);
            }
        });
    }

    fn expect(&self, kind: &str, due: SystemTime) {
        self.each_worker(|worker| {
            worker.kind_named(kind).into_iter().for_each(|kind| worker.expect(kind, due));
        });
    }

    fn each_worker(&self, f: impl Fn(&shared::Shared)) {
        let workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).for_each(|worker| f(&worker));
    }

    fn add(&self, worker: &Arc<shared::Shared>) {
        let mut workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
    }

    /// Lends a connection, which is kept for the next call unless it has failed.
    fn with<T>(&self, work: impl FnOnce(&mut dyn Connection) -> Result<T>) -> Result<T> {
        let idle = || self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let open = std::iter::from_fn(|| idle().pop()).find(|connection| connection.is_open());
        let mut connection = open.map_or_else(|| self.shared.store.connect(), Ok)?;
        let result = work(&mut *connection);
        let mut idle = idle();
        if !matches!(result, Err(Error::Unreachable(_))) && idle.len() < MOST_IDLE {
            idle.push(connection);
        }
        result
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}
