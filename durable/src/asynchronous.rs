//! The calls of [`Timers`] as futures: [`AsyncTimers`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use crate::connections::{answer, send};
use crate::error::Result;
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

    /// Opens a store with options of your own.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub async fn open_with(options: OpenOptions, address: &str) -> Result<AsyncTimers> {
        let address = address.to_owned();
        let threads = OpenOptions::new().max_connections(1).threads()?;
        let opened = Call(send(&threads, move || options.open(&address))?).await?;
        Ok(AsyncTimers::new(opened))
    }

    /// Returns the calls that wait, of the same store.
    pub fn blocking(&self) -> &Timers {
        &self.timers
    }

    /// Returns a builder of a worker, which runs timers when they are due.
    pub fn worker(&self) -> WorkerBuilder {
        self.timers.worker()
    }

    /// Makes a call on a thread that has nothing else to do than to wait.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Timers) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let connections = self.timers.connections();
        let timers = self.timers.clone();
        let mut call = Call(send(connections.threads(), move || work(&timers))?);
        let timeout = connections.limits().timeout;
        match Scheduler::global().timeout(timeout, &mut call).await {
            Ok(answered) => answered,
            // It waits, if it can be taken back. Otherwise it has begun.
            Err(_) if call.0.cancel() => Err(connections.too_many()),
            Err(_) => call.await,
        }
    }

    /// Schedules a timer, as [`Timers::schedule`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`].
    pub async fn schedule(&self, timer: &NewTimer) -> Result<Scheduled> {
        let timer = timer.clone();
        self.call(move |timers| timers.schedule(&timer)).await
    }

    /// Schedules a timer unless its kind has one with this key, as [`Timers::schedule_if_absent`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`].
    pub async fn schedule_if_absent(&self, timer: &NewTimer) -> Result<Option<Scheduled>> {
        let timer = timer.clone();
        self.call(move |timers| timers.schedule_if_absent(&timer)).await
    }

    /// Schedules many timers in one transaction, as [`Timers::schedule_all`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::schedule`]. Then none of them is scheduled.
    pub async fn schedule_all(&self, new: &[NewTimer]) -> Result<Vec<Scheduled>> {
        let new = new.to_vec();
        self.call(move |timers| timers.schedule_all(&new)).await
    }

    /// Moves a timer that waits, as [`Timers::reset`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn reset(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let (kind, key, when) = (kind.to_owned(), key.to_owned(), when.into());
        self.call(move |timers| timers.reset(&kind, &key, when)).await
    }

    /// Removes a timer, as [`Timers::cancel`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn cancel(&self, kind: &str, key: &str) -> Result<Option<State>> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.call(move |timers| timers.cancel(&kind, &key)).await
    }

    /// Returns a timer, as [`Timers::get`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.call(move |timers| timers.get(&kind, &key)).await
    }

    /// Lists timers, as [`Timers::list`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        let filter = filter.clone();
        self.call(move |timers| timers.list(&filter)).await
    }

    /// Makes a dead timer wait again, as [`Timers::requeue`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn requeue(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let (kind, key, when) = (kind.to_owned(), key.to_owned(), when.into());
        self.call(move |timers| timers.requeue(&kind, &key, when)).await
    }

    /// Makes all dead timers of a kind wait again, as [`Timers::requeue_all`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn requeue_all(&self, kind: &str, when: impl Into<When>) -> Result<u64> {
        let (kind, when) = (kind.to_owned(), when.into());
        self.call(move |timers| timers.requeue_all(&kind, when)).await
    }

    /// Counts the timers of each kind, as [`Timers::counts`] does.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn counts(&self) -> Result<Vec<KindCounts>> {
        self.call(Timers::counts).await
    }

    /// Returns the database's time.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub async fn now(&self) -> Result<SystemTime> {
        self.call(Timers::now).await
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
