//! Workers: [`WorkerBuilder`], [`Worker`] and its [`WorkerStats`]. What its threads do is told in `shared.rs`.

mod dispatcher;
mod futures;
mod keeper;
mod limits;
mod listener;
mod outage;
mod outcome;
mod runner;
mod shared;
#[cfg(feature = "testing")]
mod test_worker;
mod turns;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use self::shared::{Kind, Settings};
use crate::error::{Error, Result, StopReason};
use crate::failure::{Failure, HandlerResult, Retry};
use crate::handler::{Handler, Run};
use crate::store::{AnyTransaction, Limits, Notices, Store, TransactionType};
use crate::timer::{LONGEST_KIND, MILLISECOND, Timer};
use crate::timers::{Timers, some};
use tickwheel::Scheduler;

pub(super) use self::shared::Shared;
#[cfg(feature = "testing")]
pub use self::test_worker::{MOST_AT_ONCE, TestWorker};

/// The longest lease, and the longest interval of polls: ten years.
const LONGEST: Duration = Duration::from_secs(315_360_000);

/// More runs at the same time than this count as so many.
const MOST_RUNS: usize = 1_000_000;

/// Collects handlers and settings, and starts a [`Worker`]. From [`Timers::worker`].
#[must_use = "it does nothing until it is started"]
pub struct WorkerBuilder {
    timers: Timers,
    kinds: Vec<Kind>,
    settings: Settings,
    /// A setting of a kind that was given before any.
    misplaced: Option<&'static str>,
}

impl WorkerBuilder {
    pub(super) fn new(timers: Timers) -> WorkerBuilder {
        WorkerBuilder { timers, kinds: Vec::new(), settings: Settings::default(), misplaced: None }
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

    /// Registers a handler that is a future. The worker gives it to a runtime, which [`spawn_with`](WorkerBuilder::spawn_with)
    /// names, and no thread waits for it. How many run at the same time: [`async_runs`](WorkerBuilder::async_runs). Each run is
    /// **at-least-once**, as that of [`handle`](WorkerBuilder::handle).
    ///
    /// A future that exceeds its time limit is dropped at its next wake-up, and its run has failed. So has that of a future
    /// which panics, or which its runtime drops. A runtime that drops a future before the first poll is gone, so the worker
    /// gives back its timers and stops with [`StopReason::RuntimeGone`].
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{AsyncTimers, NewTimer};
    ///
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    /// # runtime.block_on(async {
    /// let timers = AsyncTimers::open("sqlite::memory:").await?;
    /// let handle = tokio::runtime::Handle::current();
    /// # let (tell, told) = tokio::sync::oneshot::channel();
    /// # let tell = std::sync::Mutex::new(Some(tell));
    /// let worker = timers
    ///     .worker()
    ///     .spawn_with(move |run| drop(handle.spawn(run)))
    ///     .handle_async("mail", move |run| {
    /// #       let tell = tell.lock().unwrap().take();
    ///         async move {
    ///             // The mail server is awaited here.
    /// #           tell.unwrap().send(run.key().to_owned()).unwrap();
    ///             Ok(())
    ///         }
    ///     })
    ///     .async_runs(100)
    ///     .start(Scheduler::global())?;
    /// timers.schedule(&NewTimer::new("mail", "4711", Duration::ZERO)).await?;
    /// # assert_eq!(told.await.unwrap(), "4711");
    /// worker.stop(Duration::ZERO);
    /// worker.stopped().await;
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// # })?;
    /// # }
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// ```
    pub fn handle_async<F: Future<Output = HandlerResult> + Send + 'static>(
        self,
        kind: impl Into<String>,
        handler: impl Fn(Run<'static>) -> F + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::Async(Box::new(move |run| Box::pin(handler(run)))))
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
        self.handle_in::<rusqlite::Transaction<'static>>(kind, move |run, transaction| {
            handler(run, transaction)
        })
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
        self.handle_in::<postgres::Transaction<'static>>(kind, handler)
    }

    /// Registers an async handler that does its work in a transaction of the timers' own database, as that of
    /// [`handle_in_postgres`](WorkerBuilder::handle_in_postgres) does. Its writes, and the end of the timer, are committed
    /// together or not at all. So each run is **exactly-once**.
    ///
    /// It is polled on a thread of the worker, which the connection has to itself, and in the context of the tokio runtime in
    /// which this is called, if there is one. So it need not be `Send`. When its time limit is over, it is dropped, and the
    /// transaction is undone. It schedules other timers with the functions of SQL.
    ///
    /// ```no_run
    /// # fn with(worker: tickwheel_durable::WorkerBuilder) -> tickwheel_durable::WorkerBuilder {
    /// worker.handle_in_tokio_postgres("cancel order", async |run, transaction| {
    ///     let sql = "UPDATE orders SET state = 'cancelled' WHERE id = $1";
    ///     transaction.execute(sql, &[&run.key()]).await?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[cfg(feature = "tokio-postgres")]
    pub fn handle_in_tokio_postgres(
        self,
        kind: impl Into<String>,
        handler: impl AsyncFn(&Run<'_>, &mut tokio_postgres::Transaction<'_>) -> HandlerResult
        + Send
        + Sync
        + 'static,
    ) -> WorkerBuilder {
        let runtime = tokio::runtime::Handle::try_current().ok();
        self.handle_in::<tokio_postgres::Transaction<'static>>(kind, move |run, transaction| {
            let future = run.unless_cut(handler(run, transaction));
            match &runtime {
                Some(runtime) => runtime.block_on(future),
                None => tickwheel::future::block_on(future),
            }
        })
    }

    /// Registers a handler that gets the transaction of a store of your own. See [`Work::with`](crate::Work::with).
    pub fn handle_in_transaction(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>, &mut AnyTransaction) -> HandlerResult + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.handle_in::<AnyTransaction>(kind, handler)
    }

    /// Registers a handler that does its work in a transaction of this type, which the store must have
    /// ([`Store::transactions`](crate::Store::transactions)). Its writes, and the end of the timer, are committed together or not
    /// at all. So each run is **exactly-once**.
    pub fn handle_in<T: TransactionType + ?Sized>(
        self,
        kind: impl Into<String>,
        handler: impl Fn(&Run<'_>, &mut T::Transaction<'_>) -> HandlerResult + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.add(kind.into(), Handler::in_transaction::<T>(handler))
    }

    fn add(mut self, name: String, handler: Handler) -> WorkerBuilder {
        let kind = Kind {
            name,
            handler,
            retry: None,
            give_up_if: None,
            time_limit: None,
            history: None,
            keep_dead: None,
            at_most: None,
            spawn: None,
            weight: 1,
            limits: Limits::default(),
        };
        self.kinds.push(kind);
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

    /// Sets after which failures a timer is dead at once, whatever attempts it has left: of the kind that was registered last, or
    /// before any, of all kinds that have no such rule themselves. It is asked about whatever counts as a failed attempt: an error
    /// that the handler has returned, also one with [`retry_after`](Failure::retry_after), its panic, and the end of its time limit.
    /// A rule that panics has not said so.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::num::ParseIntError;
    /// use std::sync::mpsc::channel;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{Failure, NewTimer, Timers};
    ///
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let (tell, told) = channel();
    /// let worker = timers
    ///     .worker()
    ///     .handle("charge", |run| {
    ///         let _amount: u32 = std::str::from_utf8(run.payload())?.parse()?;
    ///         Ok(())
    ///     })
    ///     .give_up_if(Failure::is::<ParseIntError>) // it will not get better
    ///     .on_dead(move |timer, reason| _ = tell.send(format!("{}: {reason}", timer.attempts)))
    ///     .start(Scheduler::global())?;
    /// timers.schedule(&NewTimer::new("charge", "4711", Duration::ZERO).payload("two pears"))?;
    /// assert_eq!(told.recv()?, "1: invalid digit found in string");
    /// # drop(worker);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_up_if(
        mut self,
        rule: impl Fn(&Failure) -> bool + Send + Sync + 'static,
    ) -> WorkerBuilder {
        let of_whom = match self.kinds.last_mut() {
            Some(kind) => &mut kind.give_up_if,
            None => &mut self.settings.give_up_if,
        };
        *of_whom = Some(Box::new(rule));
        self
    }

    /// Sets how long a run may take, for timers that do not say so themselves: of the kind that was registered last, or
    /// before any, of all kinds. By default a minute. One of less than a millisecond is refused by [`start`](WorkerBuilder::start).
    ///
    /// That of a handler that is a future counts from the moment at which its runtime polls it first. Until then it waits, as a run does
    /// that waits for a thread, and no attempt is spent. One that has waited for a time limit is given back, because its runtime may be stuck,
    /// and [`on_error`](WorkerBuilder::on_error) gets [`Error::NotCalled`]. If its timer is suspected of having killed a worker, its lease is
    /// left to end instead. The same goes for a handler in a transaction: until the worker has that, it waits, because the database is away,
    /// say.
    ///
    /// A run that exceeds the limit has failed, and its timer is tried again. The hook of [`on_error`](WorkerBuilder::on_error) gets
    /// [`Error::TimeLimit`] at once. The handler cannot be stopped, unless it is a future. It is told so by [`Run::is_current`]
    /// and [`Run::cancelled`]. Its thread is replaced, as long as no more than sixteen such threads of the kind are stuck. After that,
    /// when all threads of the kind are stuck, the hook of [`on_error`](WorkerBuilder::on_error) gets [`Error::Stuck`], and this worker
    /// claims no more of the kind until a handler returns. Other kinds are not affected.
    pub fn time_limit(mut self, limit: Duration) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.time_limit = Some(limit),
            None => self.settings.time_limit = limit,
        }
        self
    }

    /// Keeps the attempts for so long, for [`Timers::history`] and [`Timers::pace`]: those of the kind that was registered last, or before
    /// any, of all kinds. By default nothing is kept, and zero keeps nothing of a kind.
    ///
    /// Each attempt is a row of the table `tickwheel_history`, written with its outcome, in one transaction. So a run is
    /// in the history if and only if its outcome is written. What is older is removed in the background by the workers of the kind that have
    /// this set, within a minute, in batches of a thousand with pauses. With several workers, give all of them the same.
    /// The page tells [what it costs](crate#history).
    pub fn history(mut self, keep: Duration) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.history = Some(keep.min(LONGEST)),
            None => self.settings.history = Some(keep.min(LONGEST)),
        }
        self
    }

    /// Removes dead timers that have been dead for so long: those of the kind that was registered last, or before any, of all kinds.
    /// By default they stay until somebody requeues or cancels them.
    ///
    /// The time counts from when a worker with this setting first finds the timer dead, which is within a minute. So timers that died before
    /// the setting was there are kept for so long too, and one that is requeued and dies again begins anew.
    pub fn keep_dead(mut self, keep: Duration) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.keep_dead = Some(keep.min(LONGEST)),
            None => self.settings.keep_dead = Some(keep.min(LONGEST)),
        }
        self
    }

    /// Sets how many handlers of each kind may run at the same time, but for async ones. By default 4, and 0 is refused by
    /// [`start`](WorkerBuilder::start). One kind may have another number: [`at_most`](WorkerBuilder::at_most). Each kind has its own
    /// threads, so a kind that is slow makes no other one late. They are started when they are needed. Of several stores, each has so
    /// many.
    pub fn threads(mut self, threads: usize) -> WorkerBuilder {
        self.settings.threads = threads.min(MOST_RUNS);
        self
    }

    /// Sets how many runs of an async handler may be under way at the same time: of the kind that was registered last, or
    /// before any, of all kinds. By default 64, and 0 is refused by [`start`](WorkerBuilder::start). Further timers wait for one
    /// of them. Of several stores, each has so many.
    pub fn async_runs(mut self, runs: usize) -> WorkerBuilder {
        let runs = runs.min(MOST_RUNS);
        match self.kinds.last_mut() {
            Some(kind) if kind.handler.is_async() || runs == 0 => kind.at_most = Some(runs),
            Some(_) => {}
            None => self.settings.async_runs = runs,
        }
        self
    }

    /// Sets how many runs of the kind that was registered last may be under way at the same time in this worker. By default as many as
    /// [`threads`](WorkerBuilder::threads) or, of an async handler, [`async_runs`](WorkerBuilder::async_runs) say. Of several stores,
    /// each has so many.
    pub fn at_most(self, runs: usize) -> WorkerBuilder {
        self.of_last("at_most", |kind| kind.at_most = Some(runs.min(MOST_RUNS)))
    }

    /// Sets how large a share of this worker's claims the kind that was registered last gets while several kinds have something due. By
    /// default 1. A kind of weight 3 is claimed three times as fast as one of weight 1.
    ///
    /// Each kind has threads of its own, so this matters for kinds that have more due than the database can work off. What a
    /// kind's threads leave undone no weight changes: give it [more](WorkerBuilder::at_most).
    pub fn weight(self, weight: u32) -> WorkerBuilder {
        self.of_last("weight", |kind| kind.weight = weight)
    }

    /// Sets how many runs of the kind that was registered last may be under way at the same time in all processes. By default there is
    /// no limit. The page tells [what is promised](crate#tenants).
    pub fn at_most_in_all(self, runs: u32) -> WorkerBuilder {
        self.of_last("at_most_in_all", |kind| kind.limits.at_most = Some(runs))
    }

    /// Sets how many runs of the kind that was registered last may be claimed to be started within a time, in all processes. By default
    /// there is no limit.
    ///
    /// It is a bucket of `runs` tokens that is full at first, and fills up evenly. So `runs` may be claimed at once after a pause, and in
    /// any time `t` no more than `runs * (1 + t / per)`. What is claimed starts at once. Only if the database goes away in between, up to
    /// [`at_most`](WorkerBuilder::at_most) of each worker start late, beside those that are claimed then. A `per` of less than a
    /// millisecond is refused by [`start`](WorkerBuilder::start).
    pub fn rate(self, runs: u32, per: Duration) -> WorkerBuilder {
        let per = per.min(LONGEST);
        self.of_last("rate", |kind| kind.limits.rate = Some((runs, per)))
    }

    /// Runs the timers of the kind that was registered last one at a time in each group, in all processes and in the order in which they
    /// are due. The group of a timer is the text of its key before the first `separator`, or the whole key if there is none.
    ///
    /// So with `/`, `customer 7/invoice` waits for `customer 7/reminder`, and not for `customer 8/invoice`. A key without a separator is
    /// a group by itself: a timer that is replaced while it runs then waits for that run. A timer that has failed waits for its next
    /// attempt, and those behind it go on. One that somebody has locked in a transaction is passed over, too.
    pub fn serial_by(self, separator: char) -> WorkerBuilder {
        self.of_last("serial_by", |kind| kind.limits.serial_by = Some(separator))
    }

    fn of_last(mut self, setting: &'static str, set: impl FnOnce(&mut Kind)) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => set(kind),
            None => self.misplaced = Some(setting),
        }
        self
    }

    /// Sets what runs the futures of async handlers: those of the kind that was registered last, or before any, of all kinds.
    /// It should return at once, and the future should be polled soon.
    ///
    /// It is called on a thread of the worker, where no runtime is in sight. So give it the runtime's handle. For tokio that is
    /// `move |run| drop(handle.spawn(run))`, with `handle = tokio::runtime::Handle::current()`.
    pub fn spawn_with(
        mut self,
        spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static,
    ) -> WorkerBuilder {
        match self.kinds.last_mut() {
            Some(kind) => kind.spawn = Some(Arc::new(spawn)),
            None => self.settings.spawn = Some(Arc::new(spawn)),
        }
        self
    }

    /// Sets the name under which the worker claims timers. By default it is made of the process' number and a random one.
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.settings.name = name.into();
        self
    }

    /// Sets for how long a timer is out of reach of other workers if this one dies or hangs. By default 30 seconds, and at most
    /// ten years. Less than 100 ms is refused by [`start`](WorkerBuilder::start). The worker extends a lease after each third of it,
    /// as long as the handler runs.
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
    /// server or, through the same [`Timers`] and its clones, by this process. When it is told of a timer that is to come, it asks for the
    /// database's time, at most once a second.
    ///
    /// Set it to less if other processes schedule in the same SQLite file for the next second: SQLite answers in microseconds
    /// if nothing has changed. PostgreSQL is asked once a second while it does not tell of each timer: through a pooler in
    /// transaction mode, when the connection for that is lost, or if its tables are set to [tell less](crate#the-price-of-a-notice).
    /// Less than a millisecond is refused by [`start`](WorkerBuilder::start), and more than ten years are ten years.
    pub fn poll_every(mut self, interval: Duration) -> WorkerBuilder {
        self.settings.poll = Some(interval.min(LONGEST));
        self
    }

    /// Sets what computes the next time of a timer with a [`rule`](crate::NewTimer::rule): from the rule, and a time after
    /// which it is to be. `None` ends the series. With the feature `cron`, it is not asked about rules that begin with `cron:`.
    ///
    /// In a worker without it, a timer with a rule dies at once: after its run, and before the run of a handler in a transaction, which
    /// commits what follows together with its work.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{Failure, NewTimer, Timers};
    ///
    /// // Holidays, tides or a table of the database would stand here. This rule is "every so many seconds".
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

    /// Sets what is told of errors of the database, of handlers that hang ([`Error::TimeLimit`], [`Error::Stuck`]) or cannot be
    /// called ([`Error::NotCalled`]), and of a worker that stops by itself ([`Error::Schema`], [`Error::Stopped`]). By default they are printed to stderr.
    ///
    /// If the database cannot be reached or used, the hook is told once. The worker goes on trying, after gaps that grow
    /// to five seconds, and [`on_recovery`](WorkerBuilder::on_recovery) is told when it has succeeded.
    /// [`WorkerStats::errors`] counts each try. Of a kind whose claims the database refuses the hook is told when that begins, and not when it
    /// ends. The other kinds go on.
    ///
    /// A PostgreSQL server that is halted, or a pooler whose server is, keeps its connections open, and says nothing. A connection that
    /// was not used for a second is asked first, for 30 seconds, and the worker's listener asks after each minute without news. A
    /// statement that was sent just before has no timeout: what waits for its answer goes on when the server does, or when the
    /// connection ends. A host that is gone ends it within a minute or two. Through a pooler in transaction mode there is no listener.
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

    /// Sets what makes the span of a run a part of the trace to which its timer belongs. It is called with the text of
    /// [`Run::trace`] and the new span, before that is entered, for each run that has a trace.
    ///
    /// With OpenTelemetry, the text is a `traceparent`. This is the part of the worker, and [the page](crate#traces) has the part of the
    /// one who schedules:
    ///
    /// ```ignore
    /// use opentelemetry::propagation::TextMapPropagator;
    /// use opentelemetry_sdk::propagation::TraceContextPropagator;
    /// use tracing_opentelemetry::OpenTelemetrySpanExt;
    ///
    /// let worker = timers.worker().continue_trace(|trace, span| {
    ///     let fields = HashMap::from([("traceparent".to_owned(), trace.to_owned())]);
    ///     _ = span.set_parent(TraceContextPropagator::new().extract(&fields));
    /// });
    /// ```
    #[cfg(feature = "tracing")]
    pub fn continue_trace(
        mut self,
        hook: impl Fn(&str, &tracing::Span) + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.settings.continues = Some(Box::new(hook));
        self
    }

    /// Starts the worker. It waits for due times on the clock of this scheduler, and is as exact as it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no handler, or one of a kind that no timer can have, or one for a transaction that the store
    /// does not have, if a number of the settings is one with which nothing would run, or if the scheduler is closed or a thread cannot
    /// be started. [`Error::Unreachable`] if the database cannot be reached now. [`Error::TooManyClients`] if the server has had no room for
    /// as long as [`OpenOptions::acquire_timeout`](crate::OpenOptions::acquire_timeout) says. Of several databases, it is an error if
    /// this goes for all of them.
    pub fn start(self, scheduler: &Scheduler) -> Result<Worker> {
        self.check()?;
        if scheduler.is_closed() {
            return Err(Error::Invalid(
                "the scheduler is closed, so nothing would be due".to_owned(),
            ));
        }
        // If one of several stores cannot be reached, its threads begin as after an outage.
        // Both at once: a worker that kept one while it waits for the other would take the room that another waits for.
        let has_history = (self.kinds.iter().map(|kind| kind.history))
            .chain([self.settings.history])
            .any(|keep| keep.is_some_and(|keep| !keep.is_zero()));
        let connect = move |store: &dyn Store| {
            let mut connection = store.connect()?;
            if has_history {
                connection.record(&[])?; // it says now if the store has none, or the role no right
            }
            Ok((connection, store.listen()?))
        };
        let connected = some(self.timers.on_each_with_room(connect))?;
        let (kinds, settings) = (Arc::from(self.kinds), Arc::new(self.settings));
        // From here on, the drop of the worker ends whatever was started.
        let mut worker = Worker { parts: Vec::new() };
        for (store, connected) in self.timers.stores().iter().zip(connected) {
            let is_away = connected.is_none();
            let (connection, listener) = connected.unzip();
            let listener = listener.flatten();
            let is_told = listener.as_ref().is_some_and(|ear| ear.notices() == Notices::AtOnce);
            let (kinds, settings) = (Arc::clone(&kinds), Arc::clone(&settings));
            let part = Shared::new(Arc::clone(store), kinds, settings, scheduler, is_told);
            let part = Arc::new(part);
            worker.parts.push(Arc::clone(&part));
            // From here on it is told of what is scheduled, while its first look sees what was there before.
            store.add(&part);
            if listener.is_some() || is_away {
                listener::start(&part, listener)?;
            }
            runner::start(&part)?;
            dispatcher::start(&part, connection)?;
            keeper::start(&part);
        }
        Ok(worker)
    }

    fn check(&self) -> Result<()> {
        let is_impossible =
            |name: &&String| name.is_empty() || name.len() > LONGEST_KIND || name.contains('\0');
        // With one that the server refuses, no claim and no look of the whole worker would succeed.
        if let Some(name) = self.kinds.iter().map(|kind| &kind.name).find(is_impossible) {
            return Err(Error::Invalid(format!(
                "the kind {name:?} has a handler, and no timer can be of it: a kind has 1 to {LONGEST_KIND} bytes, and not the \
                 character 0"
            )));
        }
        let has: Vec<_> =
            self.timers.stores().iter().map(|one| one.store().transactions()).collect();
        let does_not_fit = |kind: &&Kind| {
            let of = kind.handler.transaction_type();
            of.is_some_and(|of| !has.iter().all(|has| has.have(of)))
        };
        let misfit = self.kinds.iter().find(does_not_fit);
        if let Some(kind) = misfit {
            return Err(Error::Invalid(format!(
                "the handler of {:?} works in another type of transaction than the store has: register it with `handle`",
                kind.name
            )));
        }
        self.check_limits()?;
        let is_without = |kind: &&Kind| kind.handler.is_async() && kind.spawn.is_none();
        if let Some(kind) =
            self.kinds.iter().find(is_without).filter(|_| self.settings.spawn.is_none())
        {
            return Err(Error::Invalid(format!(
                "the handler of {:?} is async, and nothing runs its futures: set `spawn_with`",
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
        self.check_numbers()
    }

    fn check_limits(&self) -> Result<()> {
        if let Some(setting) = self.misplaced {
            return Err(Error::Invalid(format!(
                "`{setting}` is of the kind that was registered last, and there is none: call it after `handle`"
            )));
        }
        let Some(kind) = self.kinds.iter().find(|kind| kind.has_limits()) else { return Ok(()) };
        let stores = self.timers.stores();
        let problem = if self.kinds.iter().any(|kind| kind.limits.serial_by == Some('\0')) {
            "name the character 0 as a separator, which no key contains"
        } else if stores.len() > 1 {
            "each of several databases would keep for itself: set them for one database, or use `at_most`"
        } else if !stores.iter().all(|one| one.store().has_limits()) {
            "this store does not keep: leave them out, or implement `Store::has_limits`"
        } else {
            return Ok(());
        };
        let name = &kind.name;
        Err(Error::Invalid(format!("{name:?} has limits over all processes, which {problem}")))
    }

    /// What would run nothing, or without an end, is refused.
    fn check_numbers(&self) -> Result<()> {
        let (kinds, settings) = (&self.kinds, &self.settings);
        let of_kinds = kinds.iter().filter_map(|kind| kind.at_most);
        let has_no_async_runs = of_kinds.chain([settings.async_runs]).any(|runs| runs == 0);
        let of_kinds = kinds.iter().filter_map(|kind| kind.retry);
        let has_no_attempts =
            of_kinds.chain([settings.retry]).any(|retry| retry.max_attempts() == 0);
        let of_kinds = kinds.iter().filter_map(|kind| kind.time_limit);
        let has_no_time = of_kinds.chain([settings.time_limit]).any(|limit| limit < MILLISECOND);
        let is_nothing = |limits: Limits| {
            limits.at_most == Some(0)
                || limits.rate.is_some_and(|(runs, per)| runs == 0 || per < MILLISECOND)
        };
        let has_no_room = kinds.iter().any(|kind| kind.weight == 0 || is_nothing(kind.limits));
        let problem = if settings.threads == 0 {
            "`threads` is 0, so no handler would run: give 1 or more"
        } else if has_no_async_runs {
            "`at_most` or `async_runs` is 0, so no handler would run: give 1 or more"
        } else if has_no_room {
            "a `weight` or limit is 0, so no handler would run: give 1 or more, and a rate for a millisecond or more"
        } else if has_no_attempts {
            "`Retry::attempts` is 0, so no handler would run: give 1 or more"
        } else if has_no_time {
            "a time limit of less than a millisecond would end each run"
        } else if settings.poll.is_some_and(|interval| interval < MILLISECOND) {
            "`poll_every` is less than a millisecond, so the database would be asked without a pause"
        } else if settings.lease < Duration::from_millis(100) {
            "a lease of less than 100 ms would end before it can be extended"
        } else {
            return Ok(());
        };
        Err(Error::Invalid(problem.to_owned()))
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
    /// One for each store.
    parts: Vec<Arc<Shared>>,
}

impl Worker {
    /// Stops claiming timers, gives those back that were claimed and not started, and waits until the handlers that run
    /// have ended and their outcomes are written. Returns false if that takes longer than `timeout`. The rest ends by
    /// itself in the background.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.parts.iter().for_each(|part| part.stop(StopReason::Stopped));
        self.await_end(timeout)
    }

    fn await_end(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        self.parts.iter().all(|part| part.await_end(timeout.saturating_sub(begin.elapsed())))
    }

    /// Returns true if it claims timers. Otherwise [`stop_reason`](Worker::stop_reason) tells why not.
    ///
    /// A worker whose database cannot be reached goes on trying, so it runs. If it works for several stores, it runs if it does for
    /// all of them. One that has stopped for some, by itself, goes on for the others.
    pub fn is_running(&self) -> bool {
        self.stop_reason().is_none()
    }

    /// Returns why it has stopped, or `None` if it runs. Handlers that had started may not have ended yet.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.parts.iter().find_map(|part| part.state().stop)
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
        self.await_end(timeout).then(|| self.stop_reason()).flatten()
    }

    /// Waits until it has stopped, as [`wait`](Worker::wait) does, as a future. Returns why.
    ///
    /// In async code, `worker.stop(Duration::ZERO)` tells it to stop without waiting for its handlers, which may need the
    /// thread that would wait.
    pub async fn stopped(&self) -> StopReason {
        let mut first = None;
        for part in &self.parts {
            let end = std::future::poll_fn(|context| {
                part.poll_end(context.waker()).map_or(Poll::Pending, Poll::Ready)
            });
            let reason = end.await;
            first.get_or_insert(reason);
        }
        first.unwrap_or(StopReason::Stopped)
    }

    /// Returns the name under which it claims timers. With several stores, it is followed by `/` and the number of the store in
    /// the column `owner`.
    pub fn name(&self) -> &str {
        self.parts.first().map_or("", |part| &part.settings.name)
    }

    /// Returns what it has done since its start, in all stores together.
    pub fn stats(&self) -> WorkerStats {
        self.parts.iter().map(|part| part.stats()).fold(WorkerStats::default(), WorkerStats::plus)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.stop(StopReason::Stopped));
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
    /// Of those failed: exceeded their time limit. [`Error::TimeLimit`] tells of each.
    pub timed_out: u64,
    /// Timers that died, and were written down as dead.
    pub dead: u64,
    /// Whose outcome did not matter any more, because the lease had ended, or the timer was replaced or cancelled.
    pub lost: u64,
    /// Put off by their handlers ([`Failure::snooze`]), and written down. They are no failures.
    pub snoozed: u64,
    /// Claimed and given back, at the stop, or because the handler could not be called: the database could not be reached, or the
    /// handler's runtime or transaction was not there within the time limit ([`Error::NotCalled`]).
    pub released: u64,
    /// Runs of series that were left out because they were late, as their cron rules say (feature `cron`, `Missed::Skip`).
    pub skipped: u64,
    /// Claimed now, and not yet written down.
    pub running: u64,
    /// Threads of all kinds now that are in a handler that has exceeded its time limit, or have waited for so long for its transaction.
    pub stuck: u64,
    /// Looks at what is due soon.
    pub looks: u64,
    /// Claims, with those that found nothing. Each is a statement that takes whatever is due of a kind, as far as there is room.
    pub claims: u64,
    /// Errors of the database, each try counted.
    pub errors: u64,
    /// The longest time from the moment at which a timer woke to the start of its handler.
    pub max_lateness: Duration,
}

impl WorkerStats {
    fn plus(self, other: WorkerStats) -> WorkerStats {
        WorkerStats {
            claimed: self.claimed + other.claimed,
            taken_over: self.taken_over + other.taken_over,
            done: self.done + other.done,
            failed: self.failed + other.failed,
            timed_out: self.timed_out + other.timed_out,
            dead: self.dead + other.dead,
            lost: self.lost + other.lost,
            snoozed: self.snoozed + other.snoozed,
            released: self.released + other.released,
            skipped: self.skipped + other.skipped,
            running: self.running + other.running,
            stuck: self.stuck + other.stuck,
            looks: self.looks + other.looks,
            claims: self.claims + other.claims,
            errors: self.errors + other.errors,
            max_lateness: self.max_lateness.max(other.max_lateness),
        }
    }
}
