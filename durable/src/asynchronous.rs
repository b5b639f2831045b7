//! The calls of [`Timers`] as futures: [`AsyncTimers`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use crate::connections::{answer, send};
use crate::error::Result;
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};
use crate::timers::{OpenOptions, Timers};
use crate::worker::WorkerBuilder;
use tickwheel::Scheduler;
use tickwheel::pool::ScheduledFuture;

/// The calls of [`Timers`] as futures, which any runtime may poll. A clone is a handle of the same store.
///
/// A call is sent to a thread of the crate when its future is polled first. The thread has the connection, and wakes the
/// future when there is an answer. So no thread of the runtime waits for the database, and none is started for a call.
/// [`OpenOptions::max_connections`] bounds how many are made at the same time. The others wait in the order in which they
/// were sent.
///
/// A future that is dropped before its call has begun takes the call back: it is never made. Once it has begun, it is
/// completed, and its answer is dropped. So what was asked for may be done or not done, but never half.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use std::time::Duration;
/// use tickwheel_durable::{AsyncTimers, NewTimer};
///
/// async fn remind(timers: &AsyncTimers) -> tickwheel_durable::Result<()> {
///     timers.schedule(&NewTimer::new("remind", "4711", Duration::from_secs(1800))).await?;
///     timers.cancel("remind", "4711").await?;
///     Ok(())
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async { remind(&AsyncTimers::open("sqlite::memory:").await?).await })?;
/// # }
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncTimers {
    timers: Timers,
}

impl AsyncTimers {
    pub(crate) fn new(timers: Timers) -> AsyncTimers {
        AsyncTimers { timers }
    }

    /// Opens a store, as [`Timers::open`] does. With other options: [`open_with`](AsyncTimers::open_with).
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub async fn open(address: &str) -> Result<AsyncTimers> {
        AsyncTimers::open_with(OpenOptions::new(), address).await
    }

    /// Opens several databases with options of your own, as [`Timers::sharded`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::sharded`].
    #[cfg(feature = "postgres")]
    pub async fn sharded<A: AsRef<str>>(
        options: OpenOptions,
        addresses: impl IntoIterator<Item = A>,
    ) -> Result<AsyncTimers> {
        let addresses: Vec<_> = addresses.into_iter().map(|one| one.as_ref().to_owned()).collect();
        AsyncTimers::opened(move || options.sharded(addresses)).await
    }

    /// Opens a store with options of your own.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub async fn open_with(options: OpenOptions, address: &str) -> Result<AsyncTimers> {
        let address = address.to_owned();
        AsyncTimers::opened(move || options.open(&address)).await
    }

    async fn opened(open: impl FnOnce() -> Result<Timers> + Send + 'static) -> Result<AsyncTimers> {
        let threads = OpenOptions::new().max_connections(1).threads()?;
        Ok(AsyncTimers::new(Call(send(&threads, open)?).await?))
    }

    /// Returns the calls that wait, of the same store.
    pub fn blocking(&self) -> &Timers {
        &self.timers
    }

    /// Returns a builder of a worker, which runs timers when they are due.
    pub fn worker(&self) -> WorkerBuilder {
        self.timers.worker()
    }

    /// Makes a call on a thread that has nothing else to do than to wait. Of several stores, each has threads of its own for
    /// the timers whose home it is.
    async fn call<T: Send + 'static>(
        &self,
        name: Option<(&str, &str)>,
        work: impl FnOnce(&Timers) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (threads, limits) = self.timers.threads_of(name);
        let timers = self.timers.clone();
        let mut call = Call(send(threads, move || work(&timers))?);
        match Scheduler::global().timeout(limits.timeout, &mut call).await {
            Ok(answered) => answered,
            // It waits, if it can be taken back. Otherwise it has begun.
            Err(_) if call.0.cancel() => Err(limits.too_many()),
            Err(_) => call.await,
        }
    }

    /// Makes a call that names a timer.
    async fn call_for<T: Send + 'static>(
        &self,
        kind: &str,
        key: &str,
        work: impl FnOnce(&Timers, &str, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (of, with) = (kind.to_owned(), key.to_owned());
        self.call(Some((kind, key)), move |timers| work(timers, &of, &with)).await
    }

    /// Schedules a timer, as [`Timers::schedule`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`].
    pub async fn schedule(&self, timer: &NewTimer) -> Result<Scheduled> {
        let new = self.timers.traced(timer); // here, and not on the thread of the call
        self.call(Some((&timer.kind, &timer.key)), move |timers| timers.schedule(&new)).await
    }

    /// Schedules a timer unless its kind has one with this key, as [`Timers::schedule_if_absent`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`].
    pub async fn schedule_if_absent(&self, timer: &NewTimer) -> Result<Option<Scheduled>> {
        let new = self.timers.traced(timer);
        self.call(Some((&timer.kind, &timer.key)), move |timers| timers.schedule_if_absent(&new))
            .await
    }

    /// Keeps a series, as [`Timers::keep_series`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`].
    pub async fn keep_series(&self, series: &NewTimer) -> Result<Option<Scheduled>> {
        let new = series.clone();
        self.call(Some((&series.kind, &series.key)), move |timers| timers.keep_series(&new)).await
    }

    /// Schedules many timers in one transaction, as [`Timers::schedule_all`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule_all`], which tells what is scheduled all the same. With one store, nothing is.
    pub async fn schedule_all(&self, new: &[NewTimer]) -> Result<Vec<Scheduled>> {
        let new: Vec<_> = new.iter().map(|timer| self.timers.traced(timer)).collect();
        self.call(None, move |timers| timers.schedule_all(&new)).await
    }

    /// Moves a timer that waits, as [`Timers::reset`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn reset(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let when = when.into();
        self.call_for(kind, key, move |timers, kind, key| timers.reset(kind, key, when)).await
    }

    /// Removes a timer, as [`Timers::cancel`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn cancel(&self, kind: &str, key: &str) -> Result<Option<State>> {
        self.call_for(kind, key, Timers::cancel).await
    }

    /// Returns a timer, as [`Timers::get`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.call_for(kind, key, Timers::get).await
    }

    /// Lists timers, as [`Timers::list`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        let filter = filter.clone();
        self.call(None, move |timers| timers.list(&filter)).await
    }

    /// Makes a dead timer wait again, as [`Timers::requeue`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn requeue(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let when = when.into();
        self.call_for(kind, key, move |timers, kind, key| timers.requeue(kind, key, when)).await
    }

    /// Makes all dead timers of a kind wait again, as [`Timers::requeue_all`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn requeue_all(&self, kind: &str, when: impl Into<When>) -> Result<u64> {
        let (kind, when) = (kind.to_owned(), when.into());
        self.call(None, move |timers| timers.requeue_all(&kind, when)).await
    }

    /// Removes the timers that a filter names, as [`Timers::cancel_all`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn cancel_all(&self, filter: &Filter) -> Result<u64> {
        let filter = filter.clone();
        self.call(None, move |timers| timers.cancel_all(&filter)).await
    }

    /// Gives a timer another payload, as [`Timers::set_payload`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn set_payload(
        &self,
        kind: &str,
        key: &str,
        payload: impl Into<Vec<u8>>,
    ) -> Result<bool> {
        let payload = payload.into();
        self.call_for(kind, key, move |timers, kind, key| timers.set_payload(kind, key, payload))
            .await
    }

    /// Lists attempts, as [`Timers::history`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        let filter = filter.clone();
        self.call(None, move |timers| timers.history(&filter)).await
    }

    /// Counts attempts by kind and step of time, as [`Timers::pace`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::pace`].
    pub async fn pace(&self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        self.call(None, move |timers| timers.pace(span, step)).await
    }

    /// Removes attempts that began before a time, as [`Timers::purge_history`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn purge_history(&self, before: SystemTime) -> Result<u64> {
        self.call(None, move |timers| timers.purge_history(before)).await
    }

    /// Counts the timers of each kind, as [`Timers::counts`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn counts(&self) -> Result<Vec<KindCounts>> {
        self.call(None, Timers::counts).await
    }

    /// Returns the database's time.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn now(&self) -> Result<SystemTime> {
        self.call(None, Timers::now).await
    }

    /// Makes the workers of this process look for timers of a kind now, as [`Timers::tell`] does.
    pub fn tell(&self, kind: &str) {
        self.timers.tell(kind);
    }
}

/// A call that was sent. Its `Drop` takes it back, unless it has begun.
struct Call<T>(ScheduledFuture<Result<T>>);

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0).poll(context).map(answer)
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
