//! What a task that was given to a pool comes to, and how to wait for it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::executor::deadlock::Waiting;
use crate::{Cancellable, PanicHook, Sleeper};

/// The result of a task to come: blocks, or is awaited under any runtime.
///
/// Dropping it does not cancel the task. That of a periodic task resolves when the series ends: with
/// `Ok(())` when the task breaks, else with the reason.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::pool::ScheduledThreadPool;
///
/// let pool = ScheduledThreadPool::new(2);
/// let answer = pool.schedule(Duration::from_millis(5), || 6 * 7)?;
/// assert_eq!(answer.join()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the task runs all the same; `execute` gives no future"]
pub struct ScheduledFuture<T> {
    job: Arc<dyn Outcome<T>>,
}

/// A task as its future sees it.
pub(crate) trait Outcome<T>: Send + Sync {
    fn result(&self) -> &ResultCell<T>;
    fn cancel(&self) -> bool;
    fn is_periodic(&self) -> bool;
    /// How long until its next run is due, if it waits for one.
    fn remaining(&self) -> Option<Duration>;
    fn handle(self: Arc<Self>) -> Cancellable;
    /// Counts the calling thread as waiting for it, unless it would wait for ever.
    fn begin_wait(&self) -> Result<Waiting, JoinError>;
}

/// What a task comes to: it is written once, and taken once. Values and wakers are used and dropped with nothing
/// locked.
pub(crate) struct ResultCell<T>(Mutex<Stage<T>>);

enum Stage<T> {
    /// With the waker of the future.
    Open(Option<Waker>),
    Known(Result<T, JoinError>),
    Told,
}

/// What is to be done after a result was written, with nothing locked.
pub(crate) enum Telling<T> {
    Wake(Waker),
    /// There was a result already.
    Drop(Result<T, JoinError>),
}

impl<T> Telling<T> {
    #[cold]
    pub(crate) fn tell(self, hook: &PanicHook) {
        hook.catch(|| match self {
            Telling::Wake(waker) => waker.wake(),
            Telling::Drop(result) => drop(result),
        });
    }
}

impl<T> ResultCell<T> {
    pub(crate) fn new() -> ResultCell<T> {
        ResultCell(Mutex::new(Stage::Open(None)))
    }

    fn stage(&self) -> MutexGuard<'_, Stage<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the result, unless there is one. What is left to do comes back.
    #[must_use]
    pub(crate) fn resolve(&self, result: Result<T, JoinError>) -> Option<Telling<T>> {
        let mut stage = self.stage();
        let Stage::Open(waker) = &mut *stage else {
            drop(stage);
            return Some(Telling::Drop(result));
        };
        let waker = waker.take();
        *stage = Stage::Known(result);
        drop(stage);
        waker.map(Telling::Wake)
    }

    /// The result, once; until there is one the waker is kept.
    fn take(&self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let waker = waker.clone(); // a user's code, so before the lock
        let mut stage = self.stage();
        if let Stage::Open(kept) = &mut *stage {
            let unused = kept.replace(waker);
            drop(stage);
            drop(unused);
            return None;
        }
        let Stage::Known(result) = std::mem::replace(&mut *stage, Stage::Told) else { return None };
        drop(stage);
        Some(result)
    }

    pub(crate) fn is_known(&self) -> bool {
        !matches!(*self.stage(), Stage::Open(_))
    }
}

impl<T> ScheduledFuture<T> {
    pub(crate) fn new(job: Arc<dyn Outcome<T>>) -> ScheduledFuture<T> {
        ScheduledFuture { job }
    }

    /// Waits for the result.
    ///
    /// A wait that would never end is refused, with [`JoinError::WouldDeadlock`], in these cases:
    ///
    /// - the task joins itself;
    /// - the threads that could run the task all wait for tasks, directly or through other pools, that in the end only
    ///   the calling thread could run. This is known for [`ScheduledThreadPool`](super::ScheduledThreadPool) and
    ///   [`ThreadPool`](crate::ThreadPool), but not for an executor of your own;
    /// - a [call](crate::Scheduler::call_after) is joined inside a task on the tick thread of its scheduler.
    ///
    /// Not every deadlock can be told. On a driven scheduler the join waits until somebody turns the
    /// [`Driver`](crate::Driver). Any thread that has the driver may do so at any time, so a join on the only thread
    /// that would have turned it hangs: advance the driver first, and join after.
    ///
    /// # Errors
    ///
    /// [`JoinError`], when there is none.
    pub fn join(self) -> Result<T, JoinError> {
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        if let Some(result) = self.job.result().take(&waker) {
            return result;
        }
        let waiting = self.job.begin_wait();
        loop {
            if let Some(result) = self.job.result().take(&waker) {
                return result;
            }
            if waiting.is_err() {
                return Err(JoinError::WouldDeadlock);
            }
            sleeper.sleep();
        }
    }

    /// Waits for the result, but no longer than this, by the system's clock.
    ///
    /// # Errors
    ///
    /// Gives itself back when the result has not come in time.
    pub fn join_timeout(
        self,
        timeout: Duration,
    ) -> Result<Result<T, JoinError>, ScheduledFuture<T>> {
        let Some(until) = Instant::now().checked_add(timeout) else {
            return Ok(self.join());
        };
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        loop {
            if let Some(result) = self.job.result().take(&waker) {
                return Ok(result);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self);
            }
            sleeper.sleep_for(left);
        }
    }

    /// Cancels the task: true for exactly one caller, and only if that prevented its run (for a
    /// periodic task: all further runs). It leaves the queue, and its closure is dropped, before this
    /// returns, unless it is running.
    pub fn cancel(&self) -> bool {
        self.job.cancel()
    }

    /// A handle to the task, which can be kept apart from its result.
    pub fn handle(&self) -> Cancellable {
        Arc::clone(&self.job).handle()
    }

    /// Whether it has a result, of whatever kind.
    pub fn is_done(&self) -> bool {
        self.job.result().is_known()
    }

    /// Whether it repeats.
    pub fn is_periodic(&self) -> bool {
        self.job.is_periodic()
    }

    /// How long until its next run is due, on the pool's clock; zero when it is due, or done, or was handed
    /// out by [`shutdown_now`](super::ScheduledThreadPool::shutdown_now).
    pub fn remaining(&self) -> Duration {
        self.job.remaining().unwrap_or_default()
    }
}

impl<T> Future for ScheduledFuture<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.job.result().take(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> fmt::Debug for ScheduledFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduledFuture")
            .field("is_done", &self.is_done())
            .field("is_periodic", &self.is_periodic())
            .finish_non_exhaustive()
    }
}

/// Why a task has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It was cancelled, or will not run: its pool was shut down or dropped.
    #[error("the task was cancelled, or its pool was shut down before it ran")]
    Cancelled,
    /// It has panicked.
    #[error("the task panicked{}", .0.message().map(|text| format!(": {text}")).unwrap_or_default())]
    Panicked(PanicPayload),
    /// It was joined on a thread that would have had to run it, or to run what the threads that could run it wait for:
    /// see [`join`](ScheduledFuture::join).
    #[error(
        "no thread is left that could run it, because they all wait for each other: await it, give the pool more threads, or join elsewhere"
    )]
    WouldDeadlock,
}

/// What a task panicked with.
pub struct PanicPayload {
    /// Boxed, because room for it is in every task.
    inner: Box<Inner>,
}

struct Inner {
    message: Option<String>,
    /// Locked only so that it is `Sync`: nobody borrows it.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl PanicPayload {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> PanicPayload {
        let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        PanicPayload { inner: Box::new(Inner { message, payload: Mutex::new(payload) }) }
    }

    /// The text that `panic!` was given, if it was given one.
    pub fn message(&self) -> Option<&str> {
        self.inner.message.as_deref()
    }

    /// Whatever the panic carried; [`resume_unwind`](std::panic::resume_unwind) carries it on.
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.inner.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PanicPayload").field("message", &self.message()).finish_non_exhaustive()
    }
}
