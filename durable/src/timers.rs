//! [`Timers`]: a store that was opened, its idle connections, and the workers of this process.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Result};
use crate::sight;
use crate::store::{Connection, Existing, Store};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};
use crate::worker::{Shared, WorkerBuilder};

/// A connection that was idle for so long is closed when another one comes back. So as many are kept as there are calls at
/// the same time, or handlers in transactions.
const IDLE: Duration = Duration::from_secs(60);

/// Idle connections, the last one that was used at the end, with the times since which they are idle.
type Idle = Mutex<VecDeque<(Instant, Box<dyn Connection>)>>;

/// A store of timers. A clone is a handle of the same one.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Opened>,
}

struct Opened {
    store: Box<dyn Store>,
    idle: Idle,
    idle_for_handlers: Idle,
    workers: Mutex<Vec<Weak<Shared>>>,
}

impl Timers {
    /// Opens a store, and creates its tables if they are not there: `sqlite:path`, `sqlite::memory:`,
    /// `postgres://user:password@host/database`, or through a socket `postgres://user@%2Frun%2Fpostgresql/database`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if it is no address, or of a database whose feature is off. [`Error::Unreachable`] if the
    /// database cannot be opened. [`Error::Schema`] if its tables are from a later version of this crate.
    pub fn open(address: &str) -> Result<Timers> {
        Timers::opened(store_at(address)?, Store::migrate)
    }

    /// Like [`open`](Timers::open), but creates and changes no tables. For a role that may not, or where a tool of yours runs
    /// the files of [`migrations`](crate#migrations).
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open), and [`Error::Unmigrated`], which tells what is missing.
    pub fn open_unmigrated(address: &str) -> Result<Timers> {
        Timers::opened(store_at(address)?, Store::check)
    }
    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open).
    pub fn with_store(store: impl Store) -> Result<Timers> {
        Timers::opened(Box::new(store), Store::migrate)
    }

    /// Like [`open_unmigrated`](Timers::open_unmigrated), with a store that was built by hand.
    ///
    /// # Errors
    ///
    /// As [`open_unmigrated`](Timers::open_unmigrated).
    pub fn with_unmigrated_store(store: impl Store) -> Result<Timers> {
        Timers::opened(Box::new(store), Store::check)
    }

    fn opened(
        store: Box<dyn Store>,
        prepare: impl FnOnce(&dyn Store) -> Result<()> + Send,
    ) -> Result<Timers> {
        outside_of_runtimes(|| prepare(&*store))?;
        let shared = Opened {
            store,
            idle: Mutex::default(),
            idle_for_handlers: Mutex::default(),
            workers: Mutex::default(),
        };
        Ok(Timers { shared: Arc::new(shared) })
    }

    /// Schedules a timer. If its kind has one with this key, the new one takes its place. If that one runs, its run goes on,
    /// and its outcome is ignored. So the new one may start before that run has ended.
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
        let when = when.into();
        let due = self.with(|table| table.reset(kind, key, when))?;
        due.into_iter().for_each(|due| self.expect(kind, due));
        Ok(due.is_some())
    }

    /// Removes a timer. Returns the state that it had, or `None` if it is not there.
    ///
    /// One that was [`Waiting`](State::Waiting) never starts. If it was [`Running`](State::Running), a worker has it: the
    /// handler runs, or is about to, and nothing follows it.
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
        let when = when.into();
        let count = self.with(|table| table.requeue(kind, Some(key), when))?;
        self.tell(kind);
        Ok(count > 0)
    }

    /// Makes all dead timers of a kind wait again. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn requeue_all(&self, kind: &str, when: impl Into<When>) -> Result<u64> {
        let when = when.into();
        let count = self.with(|table| table.requeue(kind, None, when))?;
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
                worker.look_now();
            }
        });
    }

    fn expect(&self, kind: &str, due: SystemTime) {
        self.each_worker(|worker| {
            worker.kind_named(kind).into_iter().for_each(|kind| worker.expect(kind, due));
        });
    }

    pub(crate) fn each_worker(&self, f: impl Fn(&Shared)) {
        let workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).for_each(|worker| f(&worker));
    }

    pub(crate) fn add(&self, worker: &Arc<Shared>) {
        let mut workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// Returns this connection if it is still open, and otherwise a new one.
    pub(crate) fn connected(
        &self,
        last: Option<Box<dyn Connection>>,
    ) -> Result<Box<dyn Connection>> {
        let open = last.and_then(|mut last| last.is_open().then_some(last));
        open.map_or_else(|| self.store().connect(), Ok)
    }

    /// Lends a connection for a call.
    fn with<T: Send>(
        &self,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send,
    ) -> Result<T> {
        outside_of_runtimes(|| self.lend(Purpose::Call, work))
    }

    /// Lends a connection, which is kept for the next one unless the work has failed. What has ended one connection has
    /// probably ended the idle ones too.
    pub(crate) fn lend<T>(
        &self,
        purpose: Purpose,
        work: impl FnOnce(&mut dyn Connection) -> Result<T>,
    ) -> Result<T> {
        let idle = match purpose {
            Purpose::Call => &self.shared.idle,
            Purpose::Handler => &self.shared.idle_for_handlers,
        };
        let idle = || idle.lock().unwrap_or_else(PoisonError::into_inner);
        let open = std::iter::from_fn(|| idle().pop_back())
            .find_map(|(_, mut connection)| connection.is_open().then_some(connection));
        let mut connection = open.map_or_else(|| self.store().connect(), Ok)?;
        let result = work(&mut *connection);
        if matches!(result, Err(Error::Unreachable(_))) {
            let lost = std::mem::take(&mut *idle());
            drop(lost); // with nothing locked
        }
        if result.is_ok() {
            let now = Instant::now();
            let mut idle = idle();
            idle.push_back((now, connection));
            let is_old = idle.front().is_some_and(|(since, _)| now - *since > IDLE);
            let old = if is_old { idle.pop_front() } else { None };
            drop(idle);
            drop(old); // with nothing locked
        }
        result
    }
}

/// Returns the store of an address.
fn store_at(address: &str) -> Result<Box<dyn Store>> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = address.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Box::new(crate::sqlite::Sqlite::new(path)));
    }
    #[cfg(feature = "postgres")]
    if address.starts_with("postgres:") || address.starts_with("postgresql:") {
        return Ok(Box::new(crate::postgres::Postgres::new(address)?));
    }
    // What follows the scheme may contain a password, so it is not repeated.
    let scheme = address.split(':').next().unwrap_or_default();
    Err(Error::Address(format!("{scheme:?} names no store, or the feature of its database is off")))
}

/// The use for which a connection is lent. A handler may change the settings of its connection, so other calls do not get
/// that one.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Call,
    Handler,
}

/// Does work that may wait for a database. PostgreSQL's client waits with a tokio runtime of its own, which panics inside
/// of another one. There the work is done by another thread, for which this one waits.
pub(crate) fn outside_of_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    #[cfg(feature = "postgres")]
    if tokio::runtime::Handle::try_current().is_ok() {
        let joined = std::thread::scope(|scope| scope.spawn(work).join());
        return joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    work()
}

impl Drop for Opened {
    fn drop(&mut self) {
        let take = |idle: &mut Idle| {
            std::mem::take(idle.get_mut().unwrap_or_else(PoisonError::into_inner))
        };
        let idle = (take(&mut self.idle), take(&mut self.idle_for_handlers));
        outside_of_runtimes(|| drop(idle));
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}
