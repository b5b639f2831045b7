//! What a handler is called with: [`Run`], and [`Work`] for one in a transaction.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use crate::clock::{from_micros, micros};
use crate::failure::{Failure, HandlerResult};
use crate::history::Attempt;
use crate::panics::{caught, quietly};
use crate::store::{AnyTransaction, Purpose, TransactionType};
use crate::timer::Timer;
use tickwheel::Scheduler;
use tickwheel::time::Sleep;

/// Why a run has failed that has exceeded its time limit.
pub(crate) const TIME_LIMIT: &str = "it took longer than its time limit";

/// Tells whether a run is still this worker's. The worker and the handler share it.
pub(crate) struct Tenure {
    scheduler: Scheduler,
    base: Instant,
    /// When the timer woke, by the database's clock.
    woke: SystemTime,
    /// The handler may have killed a process (ATTEMPT-3).
    pub(crate) is_suspected: bool,
    /// Until when the lease lasts, in microseconds since `base`, counted from before the call that got or extended it.
    /// It orders nothing, so all accesses are Relaxed.
    until: AtomicI64,
    /// Until when the handler may take, counted in the same way. Relaxed for the same reason.
    limit: AtomicI64,
    /// When the handler was called, counted in the same way, and by the database's clock in microseconds. Zero: it was not. Relaxed,
    /// because only a run that exceeds its time limit in this very moment is told of by another thread.
    began: AtomicI64,
    started: AtomicI64,
    /// The worker has learnt that the timer is another's. Relaxed for the same reason: for those that wait, the lock of `waiting`
    /// orders it.
    is_over: AtomicBool,
    /// The handler was told that the run is not current any more, so it may have stopped in the middle. Relaxed: it reads this before
    /// it returns.
    has_heard: AtomicBool,
    /// The handler has asked for its completion, so it may end the timer itself. Relaxed for the same reason.
    has_completion: AtomicBool,
    /// When the series is due next, as that completion says, by the database's clock in microseconds. Zero: it says nothing. Relaxed for
    /// the same reason.
    next: AtomicI64,
    waiting: Mutex<Waiting>,
}

/// Whom to wake.
#[derive(Default)]
struct Waiting {
    /// The time of the handler is over. If it is a future, it is dropped.
    is_cut: bool,
    /// Until then, how to wake a handler that is a future.
    flight: Option<Waker>,
    /// Those that wait until the run is not current any more, by numbers.
    others: HashMap<u64, Waker>,
    last: u64,
}

impl Tenure {
    pub(crate) fn new(
        scheduler: &Scheduler,
        until: Instant,
        woke: SystemTime,
        is_suspected: bool,
    ) -> Arc<Tenure> {
        let base = scheduler.now();
        let tenure = Tenure {
            scheduler: scheduler.clone(),
            base,
            woke,
            is_suspected,
            until: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            began: AtomicI64::new(0),
            started: AtomicI64::new(0),
            is_over: AtomicBool::new(false),
            has_heard: AtomicBool::new(false),
            has_completion: AtomicBool::new(false),
            next: AtomicI64::new(0),
            waiting: Mutex::default(),
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

    /// Returns for how long the timer has been this worker's.
    pub(crate) fn age(&self) -> Duration {
        self.scheduler.now().saturating_duration_since(self.base)
    }

    /// The timer is not this worker's any more. Nothing is locked.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        let others = std::mem::take(&mut self.lock_waiting().others);
        others.into_values().for_each(|waker| quietly(|| waker.wake()));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns how long the handler may still take.
    pub(crate) fn left(&self) -> Duration {
        let left =
            self.limit.load(Ordering::Relaxed).saturating_sub(self.micros(self.scheduler.now()));
        Duration::from_micros(left.max(0).unsigned_abs())
    }

    /// Returns true if the handler has taken longer than it may.
    pub(crate) fn is_late(&self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn has_heard(&self) -> bool {
        self.has_heard.load(Ordering::Relaxed)
    }

    pub(crate) fn has_completion(&self) -> bool {
        self.has_completion.load(Ordering::Relaxed)
    }

    /// The handler is given a completion, after which the series is due at this time, if it is one.
    pub(crate) fn completes(&self, next: Option<SystemTime>) {
        self.next.store(next.map_or(0, micros), Ordering::Relaxed);
        self.has_completion.store(true, Ordering::Relaxed);
    }

    /// Returns when the series is due next, as the last completion says that the handler was given.
    pub(crate) fn next(&self) -> Option<SystemTime> {
        Some(self.next.load(Ordering::Relaxed)).filter(|next| *next != 0).map(from_micros)
    }

    /// The time of the handler is over. If it is a future, it is polled once more, and then dropped. Nothing is locked.
    pub(crate) fn cut(&self) {
        let mut waiting = self.lock_waiting();
        waiting.is_cut = true;
        let flight = waiting.flight.take();
        drop(waiting);
        flight.into_iter().for_each(|waker| quietly(|| waker.wake()));
        self.end();
    }

    /// Returns true if the time is over, and otherwise keeps the waker until it is.
    pub(crate) fn is_cut(&self, waker: &Waker) -> bool {
        let waker = waker.clone(); // the user's code, so nothing is locked, here and below
        let mut waiting = self.lock_waiting();
        let is_cut = waiting.is_cut;
        let before = if is_cut { Some(waker) } else { waiting.flight.replace(waker) };
        drop(waiting);
        drop(before);
        is_cut
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_current(&self) -> bool {
        self.ends_at().is_some()
    }

    /// Returns until when the run is current, as far as is known, or a time before that. `None`: it is not.
    fn ends_at(&self) -> Option<Instant> {
        let now = self.scheduler.now();
        let until = self.until.load(Ordering::Relaxed).min(self.limit.load(Ordering::Relaxed));
        let left = until.saturating_sub(self.micros(now));
        if self.is_over() || left <= 0 {
            return None;
        }
        let left = Duration::from_micros(left.unsigned_abs()).min(Duration::from_secs(3600));
        Some(now + left)
    }

    fn micros(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.base).as_micros();
        i64::try_from(since).unwrap_or(i64::MAX)
    }
}

/// Is ready once the run is not current any more: told so by `Tenure::end`, or when its lease or its time has come to an end.
struct Cancelled {
    tenure: Arc<Tenure>,
    /// In `Waiting::others`, once it was polled.
    number: Option<u64>,
    sleep: Sleep,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Cancelled { tenure, number, sleep } = self.get_mut();
        let waker = context.waker().clone(); // the user's code, so nothing is locked, here and below
        let mut waiting = tenure.lock_waiting();
        let number = *number.get_or_insert(waiting.last);
        waiting.last = waiting.last.max(number + 1);
        let before = waiting.others.insert(number, waker);
        drop(waiting);
        drop(before);
        // An `end` before the lock is seen here, and one after it wakes.
        while let Some(end) = tenure.ends_at() {
            let mut sleep = Pin::new(&mut *sleep);
            sleep.as_mut().reset(end);
            if sleep.poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        tenure.has_heard.store(true, Ordering::Relaxed);
        Poll::Ready(())
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        let before = self.number.and_then(|n| self.tenure.lock_waiting().others.remove(&n));
        drop(before); // with nothing locked
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

/// What a run asks its worker, and tells it.
pub(crate) trait Completes: Send + Sync {
    /// The handler is called, because it has its transaction now. Returns false if it is not, because its time was over before.
    fn begins(&self, timer: &Timer, tenure: &Tenure) -> bool;

    /// Returns the statement that ends a run with success, and notes in the tenure that there is one.
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
    /// counted. And a transaction that the database refuses to begin, for want of a right, say, is a failed attempt, although its
    /// handler is not called.
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
    /// completed before. It needs the rights of the [role that works](crate#migrations).
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
        self.worker.completion(&self.timer, &self.tenure)
    }

    /// Returns the timer as it stands in the store once this attempt is counted.
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Returns false if this run has taken too long, or its lease has ended, or its timer was replaced or cancelled, as
    /// far as this process knows. Then another worker may have the timer, and what this run returns does not matter. A
    /// long handler asks from time to time, and stops. If nobody else has the timer, because only the lease has ended, say, the attempt
    /// has failed, also if a handler that was told so returns `Ok`.
    ///
    /// A cancel or a replacement, in whatever process, is known within a second, as long as the database answers. Not so to a handler
    /// in a transaction, which holds its timer: a call that would cancel it waits for the transaction, and a
    /// [completion](Run::completion) says itself whether the run was still this worker's.
    pub fn is_current(&self) -> bool {
        let is_current = self.tenure.is_current();
        if !is_current {
            self.tenure.has_heard.store(true, Ordering::Relaxed);
        }
        is_current
    }

    /// Returns a future that is ready once [`is_current`](Run::is_current) is false. It is for a handler that has something to wait
    /// for beside its work, and needs nothing of the run while it waits, so it may go to another task.
    ///
    /// The handler goes on: a worker cannot know where it may be stopped. Only the time limit ends it, by the drop of its
    /// future. So select between the work and this, and return then. What the handler returns does not matter any more.
    ///
    /// ```
    /// use tickwheel_durable::{HandlerResult, Run};
    ///
    /// # async fn copied() -> HandlerResult { Ok(()) }
    /// async fn copy(run: Run<'static>) -> HandlerResult {
    ///     tokio::select! {
    ///         done = copied() => done,
    ///         () = run.cancelled() => Ok(()), // half a copy is thrown away
    ///     }
    /// }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        let tenure = Arc::clone(&self.tenure);
        let sleep = tenure.scheduler.sleep(Duration::ZERO); // the first poll sets its time
        Cancelled { tenure, number: None, sleep }
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
                return Poll::Ready(Err(Failure::new(TIME_LIMIT)));
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
            .field("is_current", &self.tenure.is_current())
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

    /// Returns what the connections of its runs are for.
    pub(crate) fn purpose(&self) -> Purpose {
        self.transaction_type().map_or(Purpose::Worker, Purpose::Handler)
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

    /// Calls the handler with a transaction of this type, unless it took longer than the time limit to get that. Returns true if the
    /// transaction is to be committed.
    pub fn within<T: TransactionType + ?Sized>(
        &mut self,
        transaction: &mut T::Transaction<'_>,
    ) -> bool {
        if !self.run.worker.begins(&self.run.timer, &self.run.tenure) {
            return false;
        }
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
        let Some((started, took)) = self.run.tenure.began() else { return Some(record) };
        let late = started.duration_since(self.run.tenure.woke()).unwrap_or_default();
        Some(Attempt { started, late, took, ..record })
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
            result = Err(Failure::new(TIME_LIMIT));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(cancelled: &mut Cancelled) -> bool {
        Pin::new(cancelled).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn those_that_wait_leave_nothing_behind() {
        let scheduler = Scheduler::global();
        let tenure = Tenure::new(
            scheduler,
            scheduler.now() + Duration::from_secs(60),
            SystemTime::UNIX_EPOCH,
            false,
        );
        let sleep = || scheduler.sleep(Duration::ZERO);
        let cancelled = || Cancelled { tenure: Arc::clone(&tenure), number: None, sleep: sleep() };
        let mut first = cancelled();
        for _ in 0..3 {
            assert!(!poll(&mut first) && !poll(&mut first));
            let mut other = cancelled();
            assert!(!poll(&mut other));
            assert_eq!(tenure.lock_waiting().others.len(), 2, "each once");
            drop(other);
            assert_eq!(tenure.lock_waiting().others.len(), 1);
        }
        assert!(!tenure.has_heard());
        tenure.end();
        assert!(tenure.lock_waiting().others.is_empty() && !tenure.is_current());
        assert!(poll(&mut first) && poll(&mut cancelled()) && tenure.has_heard());
        drop(first);
        assert!(tenure.lock_waiting().others.is_empty());
    }
}
