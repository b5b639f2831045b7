//! Workers: [`WorkerBuilder`], [`Worker`] and its [`WorkerStats`]. What its threads do is told in `shared.rs`.

mod dispatcher;
mod listener;
mod outage;
mod outcome;
mod runner;
mod shared;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use self::shared::{Kind, Settings};
use crate::error::{Error, Result, StopReason};
use crate::failure::{Failure, HandlerResult, Retry};
use crate::handler::{Handler, Run};
use crate::store::{Notices, Transactions};
use crate::timer::Timer;
use crate::timers::{Timers, outside_of_runtimes};
use tickwheel::Scheduler;

pub(super) use self::shared::Shared;

/// The longest lease, and the longest interval of polls: ten years.
const LONGEST: Duration = Duration::from_secs(315_360_000);

/// Collects handlers and settings, and starts a [`Worker`]. From [`Timers::worker`].
#[must_use = "it does nothing until it is started"]
pub struct WorkerBuilder {
    timers: Timers,
    kinds: Vec<Kind>,
    settings: Settings,
}

impl WorkerBuilder {
    pub(super) fn new(timers: Timers) -> WorkerBuilder {
        WorkerBuilder { timers, kinds: Vec::new(), settings: Settings::default() }
    }

    /// Registers the handler of a kind. It is called for each timer of the kind that is due, on one of the worker's
    /// threads. The timer is done once the handler has returned `Ok`; an error or a panic is a failed attempt.
    ///
    /// Each run is **at-least-once**: if the process dies after the handler's work and before the worker has written that
    /// down, another worker calls its handler again.
    pub fn handle(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>) -> HandlerResult + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::Plain(Box::new(handler)))
    }

    /// Registers a handler that does its work in a transaction of the timers' own database. Its writes, and the end of the
    /// timer, are committed together or not at all. So each run is **exactly-once**.
    ///
    /// The handler must schedule other timers with [`sqlite::within`](crate::sqlite::within). The file is locked while it
    /// runs, so it should take milliseconds.
    #[cfg(feature = "sqlite")]
    pub fn handle_in_sqlite(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>, &rusqlite::Transaction<'_>) -> HandlerResult + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::Sqlite(Box::new(handler)))
    }

    /// Registers a handler that does its work in a transaction of the timers' own database. Its writes, and the end of the
    /// timer, are committed together or not at all. So each run is **exactly-once**.
    ///
    /// The handler must schedule other timers with [`postgres::within`](crate::postgres::within): another connection would
    /// wait for this transaction. A run that has taken longer than the time limit is not committed. The server ends a
    /// transaction in which one statement, or the pause between two, takes longer than that.
    ///
    /// A statement that has failed undoes the transaction, as always in PostgreSQL, and fails the run. The isolation is
    /// READ COMMITTED.
    #[cfg(feature = "postgres")]
    pub fn handle_in_postgres(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>, &mut postgres::Transaction<'_>) -> HandlerResult
        + Send
        + Sync
        + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::Postgres(Box::new(handler)))
    }

    /// Registers a handler that gets the transaction of a store of your own. See [`Work::with`](crate::Work::with).
    pub fn handle_in_transaction(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>, &mut dyn Any) -> HandlerResult + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::Other(Box::new(handler)))
    }

    fn add(mut self, name: String, handler: Handler) -> WorkerBuilder {
        self.kinds.push(Kind { name, handler, retry: None, time_limit: None });
        self
    }

    /// Sets how failed timers are tried again: those of the kind that was registered last, or before any, of all kinds.
    pub fn retry(mut self, retry: Retry) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.retry = Some(retry),
            None => self.settings.retry = retry,
        }
        self
    }

    /// Sets how long a run may take, for timers that do not say so themselves: of the kind that was registered last, or
    /// before any, of all kinds. By default a minute.
    ///
    /// A run that exceeds the limit has failed, and its timer is tried again. The handler cannot be stopped. It is told so
    /// if it asks [`Run::is_current`]. Its thread is replaced, as long as no more than sixteen such threads of the kind are
    /// stuck. After that, when all threads of the kind are stuck, the hook of [`on_error`](WorkerBuilder::on_error) gets
    /// [`Error::Stuck`], and this worker claims no more of the kind until a handler returns. Other kinds are not affected.
    pub fn time_limit(mut self, limit: Duration) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.time_limit = Some(limit),
            None => self.settings.time_limit = limit,
        }
        self
    }

    /// Sets how many handlers of each kind may run at the same time. By default 4. Each kind has its own threads, so a kind
    /// that is slow makes no other one late. They are started when they are needed.
    pub fn threads(mut self, threads: usize) -> WorkerBuilder {
        self.settings.threads = threads.max(1);
        self
    }

    /// Sets the name under which the worker claims timers. By default it is made of the process' number and a random one.
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.settings.name = name.into();
        self
    }

    /// Sets for how long a timer is out of reach of other workers if this one dies or hangs. By default 30 seconds. The
    /// worker extends a lease after each third of it, as long as the handler runs.
    ///
    /// A worker claims some twenty milliseconds of work ahead of its threads. If the process dies, or ends without
    /// [`Worker::stop`], the leases of these timers have to end too. Those whose handlers were not called have lost nothing but
    /// this time.
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.settings.lease = lease.min(LONGEST);
        self
    }

    /// Sets how often the worker asks the database whether it has new timers. By default it asks SQLite once a second, and
    /// PostgreSQL never: it looks once a minute two minutes ahead, and in between it is told of new timers, by PostgreSQL's
    /// server or, through the same [`Timers`] and its clones, by this process.
    ///
    /// Set it to less if other processes schedule in the same SQLite file for the next second: SQLite answers in microseconds
    /// if nothing has changed. PostgreSQL is asked once a second while it does not tell of each timer: through a pooler in
    /// transaction mode, when the connection for that is lost, or if its tables are set to [tell less](crate#the-price-of-a-notice).
    pub fn poll_every(mut self, interval: Duration) -> WorkerBuilder {
        self.settings.poll = Some(interval.clamp(Duration::from_millis(1), LONGEST));
        self
    }

    /// Sets what computes the next time of a timer with a [`rule`](crate::NewTimer::rule): from the rule, and a time after
    /// which it is to be. `None` ends the series.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{Failure, NewTimer, Timers};
    ///
    /// // A crate for cron expressions would stand here. This rule is "every so many seconds".
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let worker = timers
    ///     .worker()
    ///     .handle("beat", |_| Ok(()))
    ///     .rules(|rule, after| {
    ///         let seconds = rule.strip_prefix("every ").and_then(|count| count.parse().ok());
    ///         let seconds = seconds.ok_or_else(|| Failure::for_good(format!("no rule: {rule}")))?;
    ///         Ok(Some(after + Duration::from_secs(seconds)))
    ///     })
    ///     .start(Scheduler::global())?;
    /// timers.schedule(&NewTimer::new("beat", "slow", Duration::from_secs(30)).rule("every 30"))?;
    /// # drop(worker);
    /// # }
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// ```
    pub fn rules(
        mut self,
        rules: impl Fn(&str, SystemTime) -> std::result::Result<Option<SystemTime>, Failure>
        + Send
        + Sync
        + 'static,
    ) -> WorkerBuilder {
        self.settings.rules = Some(Box::new(rules));
        self
    }

    /// Sets what is told of errors of the database, of kinds that hang ([`Error::Stuck`]), and of a worker that stops by itself
    /// ([`Error::Schema`], [`Error::Stopped`]). By default they are printed to stderr.
    ///
    /// If the database cannot be reached or used, the hook is told once. The worker goes on trying, after gaps that grow
    /// to five seconds, and [`on_recovery`](WorkerBuilder::on_recovery) is told when it has succeeded.
    /// [`WorkerStats::errors`] counts each try.
    pub fn on_error(mut self, hook: impl Fn(&Error) + Send + Sync + 'static) -> WorkerBuilder {
        self.settings.on_error = Some(Box::new(hook));
        self
    }

    /// Sets what is told that the database can be used again after an error, and after how long. By default it is printed to
    /// stderr, unless errors go to a hook.
    pub fn on_recovery(mut self, hook: impl Fn(Duration) + Send + Sync + 'static) -> WorkerBuilder {
        self.settings.on_recovery = Some(Box::new(hook));
        self
    }

    /// Sets what is told of each timer that has died, with the reason: its attempts are used up, or its handler has returned
    /// [`Failure::for_good`](crate::Failure::for_good), or its workers died in its last attempt. The timer is given as
    /// it stands in the store, so the hook may requeue or cancel it. A dead run of a series is a timer of its own
    /// ([`NewTimer::every`](crate::NewTimer::every)).
    ///
    /// It is called on a thread of the worker that writes outcomes, so it should be quick. If the process dies between a death
    /// and the call, nobody is told: [`Timers::counts`] and [`Timers::list`] tell of all deaths.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::sync::mpsc::channel;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{Failure, NewTimer, Timers};
    ///
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let (tell, told) = channel();
    /// let worker = timers
    ///     .worker()
    ///     .handle("mail", |_| Err(Failure::for_good("no such address")))
    ///     .on_dead(move |timer, reason| _ = tell.send(format!("{}: {reason}", timer.key)))
    ///     .start(Scheduler::global())?;
    /// timers.schedule(&NewTimer::new("mail", "4711", Duration::ZERO))?;
    /// assert_eq!(told.recv()?, "4711: no such address");
    /// # drop(worker);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_dead(mut self, hook: impl Fn(&Timer, &str) + Send + Sync + 'static) -> WorkerBuilder {
        self.settings.on_dead = Some(Box::new(hook));
        self
    }

    /// Starts the worker. It waits for due times on the clock of this scheduler, and is as exact as it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no handler, or one for a transaction that the store does not have, or if the
    /// scheduler is closed or a thread cannot be started. [`Error::Unreachable`] if the database cannot be reached now.
    pub fn start(self, scheduler: &Scheduler) -> Result<Worker> {
        self.check()?;
        outside_of_runtimes(|| {
            let connection = self.timers.store().connect()?;
            let listener = self.timers.store().listen()?;
            let mut settings = self.settings;
            let is_told = listener.as_ref().is_some_and(|ear| ear.notices() == Notices::AtOnce);
            settings.is_told = AtomicBool::new(is_told);
            let shared = Arc::new(Shared::new(self.timers, self.kinds, settings, scheduler));
            // From here on, the drop of the worker ends whatever was started. And from here on it is told of what is
            // scheduled, while its first look sees what was there before.
            let worker = Worker { shared };
            worker.shared.timers.add(&worker.shared);
            if let Some(listener) = listener {
                listener::start(&worker.shared, listener)?;
            }
            runner::start(&worker.shared)?;
            dispatcher::start(&worker.shared, connection)?;
            Ok(worker)
        })
    }

    fn check(&self) -> Result<()> {
        let has = self.timers.store().transactions();
        let needs = |handler: &Handler| match handler {
            Handler::Plain(_) => None,
            #[cfg(feature = "sqlite")]
            Handler::Sqlite(_) => Some(Transactions::Sqlite),
            #[cfg(feature = "postgres")]
            Handler::Postgres(_) => Some(Transactions::Postgres),
            Handler::Other(_) => Some(Transactions::Other),
        };
        let misfit =
            self.kinds.iter().find(|kind| needs(&kind.handler).is_some_and(|needs| needs != has));
        if let Some(kind) = misfit {
            return Err(Error::Invalid(format!(
                "the handler of {:?} works in another type of transaction than the store has: register it with `handle`",
                kind.name
            )));
        }
        let names = || self.kinds.iter().map(|kind| &kind.name);
        let twice = names()
            .enumerate()
            .find(|(index, name)| names().take(*index).any(|other| other == *name));
        if let Some((_, name)) = twice {
            return Err(Error::Invalid(format!(
                "the kind {name:?} has two handlers: register one"
            )));
        }
        if self.settings.name.contains('\0') {
            return Err(Error::Invalid("the worker's name contains the character 0".to_owned()));
        }
        if self.kinds.is_empty() {
            return Err(Error::Invalid(
                "a worker needs a handler: register one with `handle`".to_owned(),
            ));
        }
        if self.settings.lease < Duration::from_millis(100) {
            return Err(Error::Invalid(
                "a lease of less than 100 ms would end before it can be extended".to_owned(),
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| &kind.name).collect();
        f.debug_struct("WorkerBuilder").field("kinds", &kinds).finish_non_exhaustive()
    }
}

/// Runs the timers of its kinds when they are due, until it is stopped.
///
/// Dropping it stops it without waiting. At the end of a process call [`stop`](Worker::stop) instead, so that what was
/// claimed is finished or given back, and other workers need not wait for the end of its lease.
#[must_use = "a worker stops when it is dropped"]
pub struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    /// Stops claiming timers, gives those back that were claimed and not started, and waits until the handlers that run
    /// have ended and their outcomes are written. Returns false if that takes longer than `timeout`. The rest ends by
    /// itself in the background.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.shared.stop(StopReason::Stopped);
        self.shared.await_end(timeout)
    }

    /// Returns true if it claims timers. Otherwise [`stop_reason`](Worker::stop_reason) tells why not.
    ///
    /// A worker whose database cannot be reached goes on trying, so it runs.
    pub fn is_running(&self) -> bool {
        self.stop_reason().is_none()
    }

    /// Returns why it has stopped, or `None` if it runs. Handlers that had started may not have ended yet.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.state().stop
    }

    /// Waits until it has stopped, by [`stop`](Worker::stop) or by itself, and its handlers have ended. Returns why, or `None`
    /// after `timeout`.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{StopReason, Timers};
    ///
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let scheduler = Scheduler::new();
    /// let worker = timers.worker().handle("mail", |_| Ok(())).start(&scheduler)?;
    /// assert!(worker.is_running());
    /// assert_eq!(worker.wait(Duration::from_millis(10)), None);
    /// drop(scheduler.close());
    /// assert_eq!(worker.wait(Duration::from_secs(10)), Some(StopReason::SchedulerClosed));
    /// # }
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> Option<StopReason> {
        self.shared.await_end(timeout).then(|| self.stop_reason()).flatten()
    }

    /// Returns the name under which it claims timers.
    pub fn name(&self) -> &str {
        &self.shared.settings.name
    }

    /// Returns what it has done since its start.
    pub fn stats(&self) -> WorkerStats {
        self.shared.stats()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop(StopReason::Stopped);
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("name", &self.name()).field("stats", &self.stats()).finish()
    }
}

/// What a worker has done since its start. Each number counts attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Claimed.
    pub claimed: u64,
    /// Of those claimed: taken over from a worker whose lease had ended. Each may be a second run of the same work.
    pub taken_over: u64,
    /// Successful, and written down.
    pub done: u64,
    /// Failed, in whatever way.
    pub failed: u64,
    /// Of those failed: exceeded their time limit.
    pub timed_out: u64,
    /// Timers that died, and were written down as dead.
    pub dead: u64,
    /// Whose outcome did not matter any more, because the lease had ended, or the timer was replaced or cancelled.
    pub lost: u64,
    /// Claimed and given back, at the stop, or because the database could not be reached before the handler was called.
    pub released: u64,
    /// Claimed now, and not yet written down.
    pub running: u64,
    /// Threads of all kinds now that are in a handler that has exceeded its time limit.
    pub stuck: u64,
    /// Looks at what is due soon.
    pub looks: u64,
    /// Errors of the database, each try counted.
    pub errors: u64,
    /// The longest time from the moment at which a timer woke to the start of its handler.
    pub max_lateness: Duration,
}
