//! Timers that survive their process: they are rows of a database, and whichever worker is alive runs them when they are
//! due.
//!
//! A [`Scheduler`](crate::Scheduler) ends with its process. A reminder in three days, an unpaid order that is cancelled
//! after half an hour on whichever of twenty machines is alive, or a retry that must not be lost in a crash needs a store.
//! Here that is a SQLite file (feature `sqlite`) or a PostgreSQL database (feature `postgres`). The database is the
//! engine: there is no server, no lock service and no consensus of our own.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use std::sync::mpsc::channel;
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//! use tickwheel::durable::{NewTimer, Timers};
//!
//! let timers = Timers::open("sqlite::memory:")?; // or sqlite:shop.db, or postgres://user@host/shop
//! let (tell, told) = channel();
//! let worker = timers
//!     .worker()
//!     .handle("cancel order", move |run| {
//!         tell.send(run.key().to_owned())?; // an error is a failed attempt, which is repeated
//!         Ok(())
//!     })
//!     .start(Scheduler::global())?;
//!
//! // On this machine or on another one, with or without a worker:
//! timers.schedule(&NewTimer::new("cancel order", "4711", Duration::from_millis(20)))?;
//! timers.schedule(&NewTimer::new("cancel order", "4712", Duration::from_secs(1800)))?;
//! timers.cancel("cancel order", "4712")?; // it was paid
//! assert_eq!(told.recv()?, "4711");
//! worker.stop(Duration::from_secs(5));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A timer has a **kind**, which names its handler, and a **key**, which is unique in its kind. It is scheduled, reset,
//! cancelled, read and listed by these two from any machine. Its payload is bytes, or JSON with the feature `serde`. A
//! timer that repeats has a fixed period, or a rule of your own such as a cron expression
//! ([`WorkerBuilder::rules`]).
//!
//! # On time
//!
//! A worker looks two minutes ahead once a minute, puts what it finds into the timer wheel, and claims a timer at the
//! moment at which it is due. PostgreSQL tells it of timers that are scheduled for sooner than that. So timers are
//! late by the time of a claim, and not by an interval of polling, and an idle worker asks the database once a minute.
//! On two cores, with commits that wait for the disk, timers were late by 1.8 ms in the median and 2.6 ms at p99 with
//! SQLite, and by 1.5 and 3.3 ms with PostgreSQL; a loop that polls each second was late by half a second. SQLite ran
//! 74,000 timers a second and PostgreSQL 31,000 (`benches/durable`).
//!
//! All due times are by the database's clock. A worker reads no wall clock of its own, so it sends nothing early on a
//! machine whose clock is wrong. (The clock of a SQLite file is that of its machine.)
//!
//! # How often a timer runs
//!
//! A claim gives the timer to one worker, for as long as a lease lasts. The worker extends the lease while the handler
//! runs. If the worker dies, hangs, or loses the database, the lease ends, and another worker takes over.
//!
//! - **At least once.** A handler of [`WorkerBuilder::handle`] runs again if the worker dies after the handler's work, and
//!   before that was written down. So the work must not mind: recognise what was done by the key, or give
//!   [`Run::fence`] to the system that you write to, and let it refuse lower numbers.
//! - **Exactly once.** A handler of `WorkerBuilder::handle_in_postgres` or `handle_in_sqlite` gets a transaction of the
//!   timers' own database. What it writes there and the end of the timer are committed together, or not at all.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! # use std::time::Duration;
//! use tickwheel::durable::{Existing, NewTimer, Table, Timers, WorkerBuilder, sqlite};
//!
//! fn at_least_once(worker: WorkerBuilder) -> WorkerBuilder {
//!     worker.handle("mail", |run| {
//!         // The mail server knows the key, and drops a second mail with it.
//!         println!("to the mail server: {} {:?}", run.key(), run.payload());
//!         Ok(())
//!     })
//! }
//!
//! fn exactly_once(worker: WorkerBuilder) -> WorkerBuilder {
//!     worker.handle_in_sqlite("cancel order", |run, transaction| {
//!         transaction.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1", [run.key()])?;
//!         let tell = NewTimer::new("mail", run.key(), Duration::ZERO).payload("cancelled");
//!         sqlite::within(transaction).schedule(&[tell], Existing::Keep)?;
//!         Ok(())
//!     })
//! }
//! # drop(exactly_once(at_least_once(Timers::open("sqlite::memory:")?.worker())));
//! # }
//! # Ok::<(), tickwheel::durable::Error>(())
//! ```
//!
//! A timer that was replaced while it ran may run beside the old run, which nothing can stop. The fencing numbers tell them
//! apart.
//!
//! A handler that fails is called again after a gap that grows ([`Retry`]). After the last attempt the timer is
//! [`Dead`](State::Dead): it stays in the table with its error, to be listed, requeued or cancelled. So does a timer whose
//! workers died in each attempt.
//!
//! The other direction works too: [`sqlite::within`] and [`postgres::within`] schedule inside a transaction of yours, so
//! that an order and its timer are written together or not at all.
//!
//! # Sight
//!
//! [`Timers::counts`] counts by kind and state, and tells the lag: how long ago the oldest was due that is not done.
//! [`Worker::stats`] tells what one worker has done. With the feature `tracing`, each run is in a span
//! `tickwheel.timer` with its kind, key, attempt and fencing number, and failures are events. With the feature `metrics`
//! there are these, all with the label `kind`:
//!
//! | metric | what it is |
//! | --- | --- |
//! | `tickwheel_durable_runs_total` | attempts that were started |
//! | `tickwheel_durable_failed_total` | attempts that failed |
//! | `tickwheel_durable_dead_total` | timers all of whose attempts have failed |
//! | `tickwheel_durable_lateness_seconds` | a histogram: from the moment at which a timer woke to the start of its handler |
//! | `tickwheel_durable_run_seconds` | a histogram: how long handlers took |
//! | `tickwheel_durable_timers` | a gauge with the label `state`, set by [`Timers::counts`] |
//! | `tickwheel_durable_lag_seconds` | a gauge, set by [`Timers::counts`] |
//!
//! # The tables
//!
//! Other programs, in any language, may schedule with an `INSERT`. These columns of `tickwheel_timers` are theirs:
//!
//! | column | type | what it is |
//! | --- | --- | --- |
//! | `kind`, `key` | text | the name, at most 200 and 1000 bytes; the pair is unique |
//! | `payload` | bytes | given to the handler; empty by default |
//! | `due` | `timestamptz`; in SQLite milliseconds since 1970, as an integer | when it is due first |
//! | `period_ms` | integer | the period of a series |
//! | `rule` | text | the rule of a series |
//! | `max_attempts`, `time_limit_ms` | integer | as in [`NewTimer`] |
//!
//! ```sql
//! -- PostgreSQL
//! INSERT INTO tickwheel_timers (kind, key, payload, due) VALUES ('mail', '4711', 'hello', now() + interval '3 days');
//! UPDATE tickwheel_timers SET due = now() + interval '1 day' WHERE kind = 'mail' AND key = '4711' AND state = 'waiting';
//! DELETE FROM tickwheel_timers WHERE kind = 'mail' AND key = '4711';
//! -- SQLite
//! INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', '4711', 1000 * (unixepoch() + 3 * 86400));
//! ```
//!
//! The other columns are the workers', and may be read: `state` (`waiting`, `running` or `dead`), `attempts`, `fence`,
//! `held_until` (the end of a lease, or the time of the next attempt), `owner`, `error`, and `wake`, which is when a worker
//! looks at the timer next. A timer that is done is deleted. `sqlite::SCHEMA` and `postgres::SCHEMA` are the whole
//! definition. `tickwheel_schema` has the version of the tables, and the oldest version of this crate's tables that may
//! still work with them: a worker that is older than that stops.
//!
//! # Coming from
//!
//! | there | here |
//! | --- | --- |
//! | Quartz: `JobKey`, `TriggerKey`; db-scheduler: `TaskInstanceId`; graphile-worker: `identifier`, `job_key` | kind and key |
//! | Quartz: a `Job` class; Sidekiq: a worker class; graphile-worker: a task function | [`WorkerBuilder::handle`] |
//! | `scheduleJob`, `perform_in(30.minutes, id)`, `add_job(.., run_at, job_key)` | [`Timers::schedule`] with a [`NewTimer`], a `Duration` or a `SystemTime` |
//! | `rescheduleJob`, db-scheduler's `reschedule` | [`Timers::reset`] |
//! | `deleteJob`, `cancel` | [`Timers::cancel`] |
//! | cron triggers | [`NewTimer::rule`] and [`WorkerBuilder::rules`], with a crate for cron expressions |
//! | misfire instructions | runs that were missed are skipped; one that is late runs at once |
//! | Sidekiq's retries and dead set | [`Retry`], [`State::Dead`], [`Timers::requeue`] |
//! | db-scheduler's heartbeats and dead executions | leases: [`WorkerBuilder::lease`] |
//! | the `poll_interval` of all of them | the wheel, and news from the server; [`WorkerBuilder::poll_every`] as a fallback |
//!
//! A role that schedules needs `INSERT`, `SELECT`, `UPDATE` and `DELETE` on `tickwheel_timers`, `SELECT` on
//! `tickwheel_schema`, and `USAGE` on the sequence `tickwheel_fence` if it has workers. [`Timers::open`] also creates the
//! tables, unless they are there. Connections have TLS if you make them: `postgres::Postgres::with_connector`.
//!
//! # In async code
//!
//! All calls wait for the database. Call them from a thread that may wait, such as tokio's `spawn_blocking`. In a runtime's
//! own thread they work too, but hold that thread up.
//!
//! # What this is not
//!
//! - A **workflow engine**. A timer has one step. A handler may schedule the next one in its transaction, but nothing
//!   here remembers how steps belong together. Take Temporal, Restate or a state machine in a table.
//! - A **broker**. There are no topics, no consumer groups, no replay, and no order between timers but their due times:
//!   two workers may run neighbours at the same time. For messages that are consumed at once, take a broker.
//! - A **job queue with all that belongs to one**. There are no priorities, no limits for each kind, no queues in which one
//!   key waits for another, no history of what is done, and no web page. What it has is time.
//! - A clock for **many short timeouts**. Each timer costs a write to schedule and two to run. Timeouts that most often are
//!   cancelled, and that may die with the process, belong on a [`Scheduler`](crate::Scheduler).
//!
//! # When one PostgreSQL is not enough
//!
//! All workers of a kind claim from the front of one index, and each run costs some row versions that vacuum must
//! clear. Two cores did 15,000 to 31,000 runs a second, and more workers did not make it more
//! (`benches/durable`). Before that is too little: batch what is scheduled ([`Timers::schedule_all`]), give a kind that floods a database of its own, or several databases
//! by a hash of the key, each with its `Timers`. Partitioning the table by kind keeps each index small, but the unique
//! constraint must contain the partition key, as it does. Beyond that take a broker's delayed delivery: RabbitMQ with a
//! dead-letter queue, Pulsar's `deliverAfter`, SQS up to fifteen minutes. They give up the cancel by key, the reset, and
//! the common transaction.
//!
//! # Another store
//!
//! [`Store`], [`Connection`] and [`Table`] are public, and the workers use nothing else. A store needs one clock that all
//! processes share, an atomic way to take a row that nobody else has, a number that only grows, and durable writes.
//! MySQL 8 has all of it (`SKIP LOCKED`), and needs polling, because it tells nobody of news. Redis needs scripts, and its
//! durability is what its settings make it. The contract is STORE-1 to STORE-5 in `src/durable/store.rs`, and
//! `tests/durable_store.rs` checks it.

// A worker's threads are told in `shared.rs`; `store.rs` is what they ask of a database.
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
    AnyTransaction, Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Listener,
    Look, News, RunId, SCHEMA_VERSION, Store, Table, Then, Transacted, Transactions,
};
pub use timer::{
    Filter, KindCounts, LONGEST_KEY, LONGEST_KIND, NewTimer, Repetition, Scheduled, State, Timer,
    When,
};
pub use worker::{Worker, WorkerBuilder, WorkerStats};

/// No more connections than so many are kept, for calls of [`Timers`], and for handlers in transactions.
const MOST_IDLE: usize = 16;

/// A store of timers. A clone is a handle of the same one.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Opened>,
}

struct Opened {
    store: Box<dyn Store>,
    idle: Mutex<Vec<Box<dyn Connection>>>,
    idle_for_handlers: Mutex<Vec<Box<dyn Connection>>>,
    workers: Mutex<Vec<Weak<shared::Shared>>>,
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
        #[cfg(feature = "sqlite")]
        if let Some(path) = address.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Timers::with_store(sqlite::Sqlite::new(
                path.strip_prefix("//").unwrap_or(path),
            ));
        }
        #[cfg(feature = "postgres")]
        if address.starts_with("postgres:") || address.starts_with("postgresql:") {
            return Timers::with_store(postgres::Postgres::new(address)?);
        }
        // What follows the scheme may contain a password, so it is not repeated.
        let scheme = address.split(':').next().unwrap_or_default();
        Err(Error::Address(format!(
            "{scheme:?} names no store, or the feature of its database is off"
        )))
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open).
    pub fn with_store(store: impl Store) -> Result<Timers> {
        outside_of_runtimes(|| store.migrate())?;
        let shared = Opened {
            store: Box::new(store),
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

    fn each_worker(&self, f: impl Fn(&shared::Shared)) {
        let workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).for_each(|worker| f(&worker));
    }

    fn add(&self, worker: &Arc<shared::Shared>) {
        let mut workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
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
    fn lend<T>(
        &self,
        purpose: Purpose,
        work: impl FnOnce(&mut dyn Connection) -> Result<T>,
    ) -> Result<T> {
        let idle = match purpose {
            Purpose::Call => &self.shared.idle,
            Purpose::Handler => &self.shared.idle_for_handlers,
        };
        let idle = || idle.lock().unwrap_or_else(PoisonError::into_inner);
        let open = std::iter::from_fn(|| idle().pop())
            .find_map(|mut connection| connection.is_open().then_some(connection));
        let mut connection = open.map_or_else(|| self.shared.store.connect(), Ok)?;
        let result = work(&mut *connection);
        if matches!(result, Err(Error::Unreachable(_))) {
            let lost = std::mem::take(&mut *idle());
            drop(lost);
        }
        if result.is_ok() {
            let mut idle = idle();
            if idle.len() < MOST_IDLE {
                idle.push(connection);
            }
        }
        result
    }
}

/// What a connection is lent for. A handler may leave settings of its own behind, which should not meet other calls.
#[derive(Clone, Copy)]
enum Purpose {
    Call,
    Handler,
}

/// Does work that may wait for a database. PostgreSQL's client waits with a tokio runtime of its own, which panics inside
/// of another one. There the work is done by another thread, for which this one waits.
fn outside_of_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    #[cfg(feature = "postgres")]
    if tokio::runtime::Handle::try_current().is_ok() {
        let joined = std::thread::scope(|scope| scope.spawn(work).join());
        return joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    work()
}

impl Drop for Opened {
    fn drop(&mut self) {
        let take = |idle: &mut Mutex<Vec<_>>| {
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
