//! What a handler is called with: [`Run`], and [`Work`] for one in a transaction.

use std::any::{Any, TypeId};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "tokio-postgres")]
use std::task::Poll;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use crate::clock::{from_micros, micros};
use crate::failure::{Failure, HandlerResult};
use crate::history::Attempt;
use crate::panics::{caught, quietly};
use crate::store::{AnyTransaction, TransactionType};
use crate::timer::Timer;
use tickwheel::Scheduler;

/// Tells whether a run is still this worker's. The worker and the handler share it.
pub(crate) struct Tenure {
    scheduler: Scheduler,
    base: Instant,
    /// When the timer woke, by the database's clock.
    woke: SystemTime,
    /// Until when the lease lasts, in microseconds since `base`, counted from before the call that got or extended it.
    /// It orders nothing, so all accesses are Relaxed.
    until: AtomicI64,
    /// Until when the handler may take, counted in the same way. Relaxed for the same reason.
    limit: AtomicI64,
    /// When the handler was called, counted in the same way, and by the database's clock in microseconds. Zero: it was not. Relaxed,
    /// because only a run that exceeds its time limit in this very moment is told of by another thread.
    began: AtomicI64,
    started: AtomicI64,
    /// The worker has learnt that the timer is another's. Relaxed for the same reason.
    is_over: AtomicBool,
    /// The handler has asked for its completion, so it may end the timer itself. Relaxed for the same reason.
    has_completion: AtomicBool,
    /// For a handler that is a future: its time is over, or how to wake it when it is.
    cut: Mutex<Cut>,
}

enum Cut {
    NotYet(Option<Waker>),
    Done,
}

impl Tenure {
    pub(crate) fn new(scheduler: &Scheduler, until: Instant, woke: SystemTime) -> Arc<Tenure> {
        let base = scheduler.now();
        let tenure = Tenure {
            scheduler: scheduler.clone(),
            base,
            woke,
            until: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            began: AtomicI64::new(0),
            started: AtomicI64::new(0),
            is_over: AtomicBool::new(false),
            has_completion: AtomicBool::new(false),
            cut: Mutex::new(Cut::NotYet(None)),
        };
        tenure.extend(until);
        Arc::new(tenure)
    }

    pub(crate) fn extend(&self, until: Instant) {
        self.until.store(self.micros(until), Ordering::Relaxed);
    }

    /// The handler is called now. If it works in a transaction, that holds the timer, and not the lease.
    pub(crate) fn start(&self, limit: Duration, is_transactional: bool) {
        let now = self.micros(self.scheduler.now());
        let limit = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX);
        self.limit.store(now.saturating_add(limit), Ordering::Relaxed);
        if is_transactional {
            self.until.store(i64::MAX, Ordering::Relaxed);
        }
    }

    /// The handler is called at this instant, which is this time of the database.
    pub(crate) fn begin(&self, now: Instant, time: SystemTime) {
        self.began.store(self.micros(now), Ordering::Relaxed);
        self.started.store(micros(time), Ordering::Relaxed);
    }

    pub(crate) fn woke(&self) -> SystemTime {
        self.woke
    }

    /// Returns when the handler was called, if it was, and how long ago.
    pub(crate) fn began(&self) -> Option<(SystemTime, Duration)> {
        let now = self.micros(self.scheduler.now());
        let took = now.saturating_sub(self.began.load(Ordering::Relaxed)).max(0).unsigned_abs();
        let started = self.started.load(Ordering::Relaxed);
        (started != 0).then(|| (from_micros(started), Duration::from_micros(took)))
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_completion(&self) -> bool {
        self.has_completion.load(Ordering::Relaxed)
    }

    /// The time of the handler is over. If it is a future, it is polled once more, and then dropped. Nothing is locked.
    pub(crate) fn cut(&self) {
        let before = std::mem::replace(&mut *self.lock_cut(), Cut::Done);
        if let Cut::NotYet(Some(waker)) = before {
            quietly(|| waker.wake());
        }
    }

    /// Returns true if the time is over, and otherwise keeps the waker until it is.
    pub(crate) fn is_cut(&self, waker: &Waker) -> bool {
        let waker = waker.clone(); // the user's code, so nothing is locked, here and below
        let mut cut = self.lock_cut();
        let Cut::NotYet(known) = &mut *cut else { return true };
        let before = known.replace(waker);
        drop(cut);
        drop(before);
        false
    }

    fn lock_cut(&self) -> std::sync::MutexGuard<'_, Cut> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_current(&self) -> bool {
        let now = self.micros(self.scheduler.now());
        !self.is_over.load(Ordering::Relaxed)
            && now < self.until.load(Ordering::Relaxed)
            && now < self.limit.load(Ordering::Relaxed)
    }

    fn micros(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.base).as_micros();
        i64::try_from(since).unwrap_or(i64::MAX)
    }
}

/// One attempt at one timer, as its handler sees it. An async handler owns it: a `Run<'static>`.
pub struct Run<'a> {
    timer: Arc<Timer>,
    tenure: Arc<Tenure>,
    max_attempts: u32,
    worker: Arc<dyn Completes>,
    handler: PhantomData<&'a ()>,
}

/// What a run asks its worker.
pub(crate) trait Completes: Send + Sync {
    /// Returns the statement that ends a run with success.
    fn completion(&self, timer: &Timer, tenure: &Tenure) -> Result<String, Failure>;
}

impl Run<'_> {
    pub(crate) fn new(
        timer: &Arc<Timer>,
        tenure: &Arc<Tenure>,
        max_attempts: u32,
        worker: Arc<dyn Completes>,
    ) -> Self {
        let (timer, tenure) = (Arc::clone(timer), Arc::clone(tenure));
        Run { timer, tenure, max_attempts, worker, handler: PhantomData }
    }

    /// Returns the timer's kind.
    pub fn kind(&self) -> &str {
        &self.timer.kind
    }

    /// Returns the timer's key.
    pub fn key(&self) -> &str {
        &self.timer.key
    }

    /// Returns the payload that the timer was scheduled with.
    pub fn payload(&self) -> &[u8] {
        &self.timer.payload
    }

    /// Returns the value whose JSON is the payload.
    ///
    /// # Errors
    ///
    /// [`Error::Json`](crate::Error::Json) if the payload is something else.
    #[cfg(feature = "serde")]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> crate::Result<T> {
        serde_json::from_slice(&self.timer.payload).map_err(crate::Error::json)
    }

    /// Returns the context of the trace to which this run belongs: that of [`NewTimer::trace`](crate::NewTimer::trace), or of whoever has
    /// scheduled the timer ([`OpenOptions::trace_with`](crate::OpenOptions::trace_with)).
    pub fn trace(&self) -> Option<&str> {
        self.timer.trace.as_deref()
    }

    /// Returns when this run was due, by the database's clock. A later attempt was due then too.
    pub fn due(&self) -> SystemTime {
        self.timer.due
    }

    /// Returns the number of this attempt at this run, which counts from one.
    ///
    /// An attempt is a start of the handler. Starts in workers that died count too. The exception is a handler that takes less
    /// than five milliseconds, of a timer with more than ten attempts left: if its process dies, that start is not
    /// counted.
    pub fn attempt(&self) -> u32 {
        self.timer.attempts
    }

    /// Returns true if the timer is dead when this attempt fails.
    pub fn is_last_attempt(&self) -> bool {
        self.timer.attempts >= self.max_attempts
    }

    /// Returns the fencing number of this attempt. Attempts that are claimed later, of whatever timer of this store, have higher ones.
    /// So the numbers of a timer's attempts grow, and those of a group that runs [one at a time](crate::WorkerBuilder::serial_by).
    /// Of two timers that are claimed ahead, the one with the lower number may start later.
    ///
    /// Give it to systems that you write to, and let them refuse a number that is lower than one they have seen for the
    /// same thing. Then an attempt that was thought dead, and comes back, changes nothing. After a
    /// [failover](crate#a-failover) to a replica that lagged, they may go back.
    pub fn fence(&self) -> i64 {
        self.timer.fence
    }

    /// Returns the statement of SQL that ends this run with success, for handlers of
    /// [`handle`](crate::WorkerBuilder::handle) and [`handle_async`](crate::WorkerBuilder::handle_async) that have a client of
    /// their own for the timers' database: sqlx, diesel, or any other. Execute it in the transaction in which the handler does its
    /// work, and commit that. Then the work and the end of the timer are committed together or not at all, so the run is
    /// **exactly-once**. The statement fails, with the SQLSTATE `TW001`, if the run is not this worker's any more, or was
    /// completed before.
    ///
    /// ```ignore
    /// worker.handle_async("cancel order", move |run| {
    ///     let pool = pool.clone(); // of sqlx
    ///     async move {
    ///         let mut order = pool.begin().await?;
    ///         let cancel = sqlx::query("UPDATE orders SET state = 'cancelled' WHERE id = $1");
    ///         cancel.bind(run.key()).execute(&mut *order).await?;
    ///         sqlx::query(AssertSqlSafe(run.completion()?)).execute(&mut *order).await?;
    ///         order.commit().await?;
    ///         Ok(())
    ///     }
    /// })
    /// ```
    ///
    /// # Errors
    ///
    /// The store has no such statement: a SQLite file has none. Or the handler works in a transaction that ends the timer by
    /// itself. Or the rule of a series has failed.
    pub fn completion(&self) -> Result<String, Failure> {
        let statement = self.worker.completion(&self.timer, &self.tenure)?;
        self.tenure.has_completion.store(true, Ordering::Relaxed);
        Ok(statement)
    }

    /// Returns the timer as it stands in the store once this attempt is counted.
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Returns false if this run has taken too long, or its lease has ended, or its timer was replaced or cancelled, as
    /// far as this process knows. Then another worker may have the timer, and nothing that this run returns matters. A
    /// long handler asks from time to time, and stops.
    pub fn is_current(&self) -> bool {
        self.tenure.is_current()
    }
}

#[cfg(feature = "tokio-postgres")]
impl Run<'_> {
    /// Polls the future of this run's handler until its time is over.
    pub(crate) async fn unless_cut(
        &self,
        future: impl Future<Output = HandlerResult>,
    ) -> HandlerResult {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            if self.tenure.is_cut(context.waker()) {
                return Poll::Ready(Err(Failure::new("it took longer than its time limit")));
            }
            future.as_mut().poll(context)
        })
        .await
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("timer", &self.timer)
            .field("is_current", &self.is_current())
            .finish_non_exhaustive()
    }
}

/// The future of an async handler.
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;
type Async = dyn Fn(Run<'static>) -> HandlerFuture + Send + Sync;

/// A handler for one type of transaction.
type InTransaction<T> =
    dyn Fn(&Run<'_>, &mut <T as TransactionType>::Transaction<'_>) -> HandlerResult + Send + Sync;
struct For<T: TransactionType + ?Sized>(Box<InTransaction<T>>);

/// The handler of a kind.
pub(crate) enum Handler {
    Plain(Box<dyn Fn(&Run<'_>) -> HandlerResult + Send + Sync>),
    Async(Box<Async>),
    /// The type of transaction, and the handler [`For`] it.
    InTransaction(TypeId, Box<dyn Any + Send + Sync>),
}

impl Handler {
    pub(crate) fn in_transaction<T: TransactionType + ?Sized>(
        handle: impl Fn(&Run<'_>, &mut T::Transaction<'_>) -> HandlerResult + Send + Sync + 'static,
    ) -> Handler {
        Handler::InTransaction(TypeId::of::<T>(), Box::new(For::<T>(Box::new(handle))))
    }

    /// Returns the type of transaction that it works in.
    pub(crate) fn transaction_type(&self) -> Option<TypeId> {
        if let Handler::InTransaction(of, _) = self { Some(*of) } else { None }
    }

    pub(crate) fn is_async(&self) -> bool {
        matches!(self, Handler::Async(_))
    }

    pub(crate) fn is_transactional(&self) -> bool {
        self.transaction_type().is_some()
    }

    /// Calls a plain handler. Its panic is a failure.
    pub(crate) fn call(&self, run: &Run<'_>) -> HandlerResult {
        if let Handler::Plain(handle) = self {
            caught(|| handle(run))
        } else {
            Err(Failure::new("this handler needs a transaction"))
        }
    }
}

/// The work of a handler inside a transaction, as a [`Connection`](crate::Connection) does it.
pub struct Work<'a> {
    pub(crate) run: Run<'a>,
    pub(crate) start: Option<u32>,
    pub(crate) handler: &'a Handler,
    /// What the handler has returned.
    pub(crate) result: Option<HandlerResult>,
    /// The row of its success.
    pub(crate) record: Option<Box<Attempt>>,
}

impl Work<'_> {
    /// Returns the number that [`Connection::start`](crate::Connection::start) is to write, and commit, before the transaction
    /// begins. `None`: this start need not be written down.
    pub fn start(&self) -> Option<u32> {
        self.start
    }

    /// Calls the handler with a transaction of this type. Returns true if the transaction is to be committed.
    pub fn within<T: TransactionType + ?Sized>(
        &mut self,
        transaction: &mut T::Transaction<'_>,
    ) -> bool {
        let result = match self.handler {
            Handler::InTransaction(_, handle) => match handle.downcast_ref::<For<T>>() {
                Some(For(handle)) => caught(|| handle(&self.run, transaction)),
                None => Err(Failure::new("the handler is for another type of transaction")),
            },
            Handler::Plain(_) | Handler::Async(_) => {
                Err(Failure::new("the handler is for no transaction"))
            }
        };
        self.ends_with(result)
    }

    /// Returns the attempt that [`Connection::record`](crate::Connection::record) is to write in the transaction, once the handler has
    /// returned (STORE-10). `None`: its kind has no history.
    pub fn record(&self) -> Option<Attempt> {
        let record = self.record.as_deref()?.clone();
        let took = self.run.tenure.began().map_or(Duration::ZERO, |(_, took)| took);
        Some(Attempt { took, ..record })
    }

    /// Calls the handler with a transaction of which only the store and the handler know the type:
    /// [`within`](Work::within) an [`AnyTransaction`].
    pub fn with(&mut self, transaction: &mut AnyTransaction) -> bool {
        self.within::<AnyTransaction>(transaction)
    }

    /// Turns a success into a failure, before the commit.
    pub fn fail(&mut self, reason: impl Into<String>) {
        self.result = Some(Err(Failure::new(reason)));
    }

    /// What took too long is tried again already, or will be, so it is not committed.
    fn ends_with(&mut self, mut result: HandlerResult) -> bool {
        if result.is_ok() && !self.run.is_current() {
            result = Err(Failure::new("it took longer than its time limit"));
        }
        let is_done = result.is_ok();
        self.result = Some(result);
        is_done
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("run", &self.run).finish_non_exhaustive()
    }
}
