//! [`Timers`]: a store that was opened, and the workers of this process; and how it is opened: [`OpenOptions`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::asynchronous::AsyncTimers;
use crate::connections::{Connections, Limits, threads_for, where_it_may_wait, with_room};
use crate::error::{Error, Result};
use crate::sight;
use crate::store::{Connection, Existing, Purpose, Store};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};
use crate::worker::{Shared, WorkerBuilder};
use tickwheel::pool::ScheduledThreadPool;

/// How a store is opened: how many connections its calls may have, and how long they wait for one.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use std::time::Duration;
/// use tickwheel_durable::OpenOptions;
///
/// let options = OpenOptions::new().max_connections(20).acquire_timeout(Duration::from_secs(3));
/// let timers = options.open("sqlite::memory:")?;
/// # drop(timers);
/// # }
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until a store is opened"]
pub struct OpenOptions {
    limits: Limits,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// The options of [`Timers::open`].
    pub fn new() -> OpenOptions {
        let timeout = Duration::from_secs(10);
        OpenOptions { limits: Limits { max_connections: 10, timeout } }
    }

    /// Sets how many connections the calls of [`Timers`] and [`AsyncTimers`] may have at the same time. By default 10, which is
    /// enough for thousands of calls a second. Further calls wait. With 0, no store is opened ([`Error::Invalid`]).
    ///
    /// Workers have a few of their own: two each, one more while they write outcomes or starts, and one for each handler that is
    /// in a transaction. What is idle for ten seconds is closed.
    pub fn max_connections(mut self, connections: usize) -> OpenOptions {
        self.limits.max_connections = connections;
        self
    }

    /// Sets how long a call waits for a connection, if all are in use, or if the server has no room for another one. By default
    /// ten seconds, and at most a day. Then it fails with [`Error::TooManyClients`]. With zero, it does not wait. What opens the
    /// store, and [`WorkerBuilder::start`], wait as long for room on the server.
    pub fn acquire_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.limits.timeout = timeout.min(LONGEST);
        self
    }

    pub(crate) fn threads(self) -> Result<ScheduledThreadPool> {
        if self.limits.max_connections == 0 {
            let problem = "`max_connections` is 0, so no call could be made: give 1 or more";
            return Err(Error::Invalid(problem.to_owned()));
        }
        threads_for(self.limits)
    }

    /// Opens a store by its address, as [`Timers::open`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub fn open(self, address: &str) -> Result<Timers> {
        self.opened(store_at(address)?, Store::migrate)
    }

    /// Opens a store by its address, as [`Timers::open_unmigrated`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open_unmigrated`].
    pub fn open_unmigrated(self, address: &str) -> Result<Timers> {
        self.opened(store_at(address)?, Store::check)
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub fn with_store(self, store: impl Store) -> Result<Timers> {
        self.opened(Box::new(store), Store::migrate)
    }

    /// Opens a store that was built by hand, as [`Timers::with_unmigrated_store`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open_unmigrated`].
    pub fn with_unmigrated_store(self, store: impl Store) -> Result<Timers> {
        self.opened(Box::new(store), Store::check)
    }

    fn opened(
        self,
        store: Box<dyn Store>,
        prepare: impl Fn(&dyn Store) -> Result<()> + Send + 'static,
    ) -> Result<Timers> {
        let threads = self.threads()?;
        let timeout = self.limits.timeout;
        let store = where_it_may_wait(&threads, move || {
            with_room(&*store, timeout, prepare).map(|()| store)
        })?;
        let connections = Connections::new(store, self.limits, threads);
        let shared = Opened { connections: Arc::new(connections), workers: Mutex::default() };
        Ok(Timers { shared: Arc::new(shared) })
    }
}

/// The longest wait for a connection: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A store of timers. A clone is a handle of the same one.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Opened>,
}

struct Opened {
    connections: Arc<Connections>,
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
        OpenOptions::new().open(address)
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open).
    pub fn with_store(store: impl Store) -> Result<Timers> {
        OpenOptions::new().with_store(store)
    }

    /// Like [`open`](Timers::open), but creates and changes no tables. For a role that may not, or where a tool of yours runs
    /// the files of [`migrations`](crate#migrations).
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open), and [`Error::Unmigrated`], which tells what is missing.
    pub fn open_unmigrated(address: &str) -> Result<Timers> {
        OpenOptions::new().open_unmigrated(address)
    }

    /// Like [`open_unmigrated`](Timers::open_unmigrated), with a store that was built by hand.
    ///
    /// # Errors
    ///
    /// As [`open_unmigrated`](Timers::open_unmigrated).
    pub fn with_unmigrated_store(store: impl Store) -> Result<Timers> {
        OpenOptions::new().with_unmigrated_store(store)
    }

    /// Returns the same calls as futures, for any runtime.
    pub fn asynchronous(&self) -> AsyncTimers {
        AsyncTimers::new(self.clone())
    }

    /// Schedules a timer. If its kind has one with this key, the new one takes its place. If that one runs, its run goes on,
    /// and its outcome is ignored. So the new one may start before that run has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the timer cannot be stored, and the errors of the database.
    pub fn schedule(&self, timer: &NewTimer) -> Result<Scheduled> {
        let scheduled = self.schedule_with(vec![timer.clone()], Existing::Replace)?;
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
        let scheduled = self.schedule_with(vec![timer.clone()], Existing::Keep)?;
        Ok(scheduled.into_iter().flatten().next())
    }

    /// Schedules many timers in one transaction, which costs a fraction of one call for each.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule). Then none of them is scheduled.
    pub fn schedule_all(&self, timers: &[NewTimer]) -> Result<Vec<Scheduled>> {
        let scheduled = self.schedule_with(timers.to_vec(), Existing::Replace)?;
        Ok(scheduled.into_iter().flatten().collect())
    }

    fn schedule_with(
        &self,
        timers: Vec<NewTimer>,
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        let (timers, scheduled) = self.with(move |table| {
            let scheduled = table.schedule(&timers, existing)?;
            Ok((timers, scheduled))
        })?;
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
        let due =
            self.with_name(kind, key, move |table, kind, key| table.reset(kind, key, when))?;
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
        self.with_name(kind, key, |table, kind, key| table.cancel(kind, key))
    }

    /// Returns a timer, or `None` if it is not there, because it is done, was cancelled, or never was.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.with_name(kind, key, |table, kind, key| table.get(kind, key))
    }

    /// Lists timers by kind, then by the time at which they wake, with dead ones last.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        let filter = filter.clone();
        self.with(move |table| table.list(&filter))
    }

    /// Makes a dead timer wait again, with all its attempts before it. Returns false if it is not there, or not dead.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn requeue(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let when = when.into();
        let count = self
            .with_name(kind, key, move |table, kind, key| table.requeue(kind, Some(key), when))?;
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
        let count =
            self.with_name(kind, "", move |table, kind, _| table.requeue(kind, None, when))?;
        self.tell(kind);
        Ok(count)
    }

    /// Counts the timers of each kind, by state, and tells how far behind their workers are. With the feature `metrics`
    /// it also sets the gauges `tickwheel_durable_timers` and `tickwheel_durable_lag_seconds`.
    ///
    /// It reads the whole table, a third of a second for a million timers, so ask once a minute rather than once a second. Whether
    /// any are dead is told by [`list`](Timers::list) with [`Filter::state`], which reads an index.
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
        self.shared.connections.store()
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
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
    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.connections.call(work)
    }

    /// Lends a connection for a call that names a timer.
    fn with_name<T: Send + 'static>(
        &self,
        kind: &str,
        key: &str,
        work: impl FnOnce(&mut dyn Connection, &str, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.with(move |connection| work(connection, &kind, &key))
    }

    /// Lends a connection for a part of a worker, or for one of its handlers.
    pub(crate) fn lend<T>(
        &self,
        purpose: Purpose,
        work: impl FnOnce(&mut dyn Connection) -> Result<T>,
    ) -> Result<T> {
        self.shared.connections.lend(purpose, work)
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

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}
