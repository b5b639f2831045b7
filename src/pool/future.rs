//! The future of a task: its result, and how to wait for it.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::executor::deadlock::Waiting;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::platform::sync::lock_std;
use crate::{Cancellable, Clock, PanicHook, ScheduleError, Sleeper, SystemClock, TaskPanic};

/// The result of a task, to be joined by a thread or awaited under any runtime.
///
/// Dropping the future does not cancel the task, and frees the waker of the task that has polled it at once. The future
/// of a series resolves when the series ends: with `Ok(())` if the task breaks, otherwise with the reason.
///
/// The result is taken once. After that, a poll is pending for ever, and a join returns [`JoinError::Taken`]. With the
/// feature `futures-core` it is a `FusedFuture`, which is terminated then.
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
#[must_use = "the task runs anyway; `execute` returns no future"]
pub struct ScheduledFuture<T> {
    task: Arc<dyn Joinable<T>>,
    /// A look at the task has left a waker there.
    has_left_waker: bool,
}

/// The result, or the future if it has been waited for in vain.
type Joined<T> = Result<Result<T, JoinError>, ScheduledFuture<T>>;

/// A task as its future sees it.
pub(crate) trait Joinable<T>: Send + Sync {
    fn result(&self) -> &ResultCell<T>;
    fn cancel(&self) -> bool;
    fn is_periodic(&self) -> bool;
    /// Reads the clock of its deadlines.
    fn now(&self) -> Instant;
    fn handle(self: Arc<Self>) -> Cancellable;
    /// Notes that the calling thread waits for the task, and is woken by this waker. Returns `None` if it would wait for ever.
    fn begin_wait(&self, waker: &Waker) -> Option<Waiting>;
}

/// The result of a task, which is written once and taken once. Values and wakers are used and dropped with nothing
/// locked.
pub(crate) struct ResultCell<T>(Mutex<ResultState<T>>);

enum ResultState<T> {
    /// There is no result yet. The future may have left its waker.
    Pending(Option<Waker>),
    Ready(Result<T, JoinError>),
    Taken,
}

impl<T> ResultCell<T> {
    pub(crate) fn new() -> ResultCell<T> {
        ResultCell(Mutex::new(ResultState::Pending(None)))
    }

    /// Writes the result and wakes the future, or drops the result if there is one already. A panic of the waker or of
    /// the `Drop` is reported to the hook.
    pub(crate) fn resolve(&self, result: Result<T, JoinError>, hook: &PanicHook) {
        let mut state = lock_std(&self.0);
        if let ResultState::Pending(waker) = &mut *state {
            let waker = waker.take();
            *state = ResultState::Ready(result);
            drop(state);
            waker.into_iter().for_each(|waker| _ = hook.catch(None, || waker.wake()));
        } else {
            drop(state);
            hook.catch(None, || drop(result));
        }
    }

    /// Takes the result, once. If there is none yet, keeps the waker instead.
    pub(crate) fn take(&self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let waker = waker.clone(); // which may be user code, so before the lock
        let mut state = lock_std(&self.0);
        let (result, unused) = match std::mem::replace(&mut *state, ResultState::Taken) {
            ResultState::Pending(before) => {
                *state = ResultState::Pending(Some(waker));
                (None, before)
            }
            ResultState::Ready(result) => (Some(result), Some(waker)),
            ResultState::Taken => (None, Some(waker)),
        };
        drop(state);
        quietly(|| drop(unused)); // its panic must not cost the caller the result
        result
    }

    /// Drops the waker that was kept. Its `Drop` is user code, and the calling thread may be unwinding.
    pub(crate) fn forget_waker(&self) {
        let mut state = lock_std(&self.0);
        let waker = if let ResultState::Pending(waker) = &mut *state { waker.take() } else { None };
        drop(state);
        PanicHook::default().catch(None, || drop(waker));
    }

    /// Returns true if the result has been written, taken or not.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(*lock_std(&self.0), ResultState::Pending(_))
    }
}

impl<T> ScheduledFuture<T> {
    pub(crate) fn new(task: Arc<dyn Joinable<T>>) -> ScheduledFuture<T> {
        ScheduledFuture { task, has_left_waker: false }
    }

    /// Takes the result. If there is none yet, leaves the waker with the task.
    fn look(&mut self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let result = self.task.result().take(waker);
        self.has_left_waker = result.is_none();
        result
    }

    /// Returns true if the result has been taken.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*lock_std(&self.task.result().0), ResultState::Taken)
    }

    /// Waits for the result.
    ///
    /// A wait that would never end is refused, with [`JoinError::WouldDeadlock`], in these cases:
    ///
    /// - the task joins itself;
    /// - all threads that could run the task wait for tasks, directly or through other pools, that in the end only the
    ///   calling thread could run. This is known for [`ScheduledThreadPool`](super::ScheduledThreadPool) and
    ///   [`ThreadPool`](crate::ThreadPool), but not for an executor of your own;
    /// - a [call](crate::Scheduler::call_after) is joined inside a task on the tick thread of its scheduler.
    ///
    /// The future is gone then. [`try_join`](ScheduledFuture::try_join) gives it back.
    ///
    /// Other deadlocks are not detected. On a driven scheduler, the join waits until a thread turns the
    /// [`Driver`](crate::Driver). Any thread that has the driver may do so at any time, so a join on the only thread
    /// that would have turned it hangs: advance the driver first, and join afterwards.
    ///
    /// # Errors
    ///
    /// [`JoinError`], if there is no result.
    pub fn join(self) -> Result<T, JoinError> {
        self.try_join().unwrap_or(Err(JoinError::WouldDeadlock))
    }

    /// Waits for the result, like [`join`](ScheduledFuture::join), but gives the future back if the wait would never end.
    /// Then it can be awaited, or joined elsewhere.
    ///
    /// # Errors
    ///
    /// Returns the future where `join` returns [`JoinError::WouldDeadlock`].
    ///
    /// ```
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::new(1);
    /// let inner = pool.clone();
    /// let outer = pool.submit(move || {
    ///     let part = inner.submit(|| 6 * 7).expect("open");
    ///     part.try_join().expect_err("this is the only thread")
    /// })?;
    /// let part = outer.join()?;
    /// assert_eq!(part.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_join(self) -> Joined<T> {
        self.wait(None)
    }

    /// Waits for the result, at most for the given time by the system's clock. It is never refused: a wait that would never end
    /// lasts for that time.
    ///
    /// # Errors
    ///
    /// Returns the future if there is no result in time.
    pub fn join_timeout(self, timeout: Duration) -> Joined<T> {
        match Instant::now().checked_add(timeout) {
            Some(until) => self.wait(Some(until)),
            None => Ok(self.join()),
        }
    }

    /// Waits for the result. Returns the future if there is none by then, or if a wait without end would never end.
    fn wait(mut self, until: Option<Instant>) -> Joined<T> {
        let (sleeper, mut waiting) = (Sleeper::new(), None);
        let waker = sleeper.waker();
        loop {
            if let Some(result) = self.look(&waker) {
                return Ok(result);
            }
            if self.is_over() {
                return Ok(Err(JoinError::Taken));
            }
            match (until, &waiting) {
                (Some(until), _) if until <= Instant::now() => return Err(self),
                // Looks again afterwards, because the task may have ended before the wait was noted.
                (None, None) => waiting = Some(self.task.begin_wait(&waker)),
                (None, Some(None)) => return Err(self),
                (None, Some(Some(waiting))) if waiting.is_stuck() => return Err(self),
                _ => SystemClock.sleep(&sleeper, until),
            }
        }
    }

    /// Cancels the task. Returns true for exactly one caller, and only if this prevents a run: the run of a one-shot,
    /// or all further runs of a series.
    ///
    /// Unless the task is running, it leaves the queue, and its closure is dropped, before this returns.
    pub fn cancel(&self) -> bool {
        self.task.cancel()
    }

    /// Returns a handle to the task, which can be kept apart from the future.
    pub fn handle(&self) -> Cancellable {
        Arc::clone(&self.task).handle()
    }

    /// Returns true if there is a result, or an error.
    pub fn is_done(&self) -> bool {
        self.task.result().is_known()
    }

    /// Returns true if the task repeats.
    pub fn is_periodic(&self) -> bool {
        self.task.is_periodic()
    }

    /// Returns the time until the next run is due, by the clock of the pool.
    ///
    /// It is zero if the task is due or done, or was returned by
    /// [`shutdown_now`](super::ScheduledThreadPool::shutdown_now).
    pub fn remaining(&self) -> Duration {
        let left = |due: Instant| due.saturating_duration_since(self.task.now());
        self.handle().deadline().map(left).unwrap_or_default()
    }
}

impl<T> Future for ScheduledFuture<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().look(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for ScheduledFuture<T> {
    /// The task may be pending for hours. It must not keep the waker, and with it another task's memory, for as long.
    fn drop(&mut self) {
        if self.has_left_waker {
            self.task.result().forget_waker();
        }
    }
}

impl_debug!(ScheduledFuture<T>, self, is_done: self.is_done(), is_periodic: self.is_periodic());

/// Why a task has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The task was cancelled, or will not run because its pool, loop or scheduler has ended.
    #[error("the task was cancelled, or its pool, loop or scheduler ended before it ran")]
    Cancelled,
    /// The task was not accepted, so it will not run: see
    /// [`call_after`](crate::Scheduler::call_after).
    #[error("the task was not accepted")]
    Refused(#[source] ScheduleError),
    /// The result was taken before, by a poll of the same future.
    #[error("the result was taken before: await or join a task once, and keep its value")]
    Taken,
    /// The task has panicked.
    #[error("the task panicked{}", .0.message().map(|text| format!(": {text}")).unwrap_or_default())]
    Panicked(PanicPayload),
    /// The join would never have returned, because no other thread could have run the task: see
    /// [`join`](ScheduledFuture::join).
    #[error(
        "no thread is left that could run it, because they all wait for each other: await it, give the pool more threads, or join elsewhere"
    )]
    WouldDeadlock,
}

/// The questions that [tokio's error](https://docs.rs/tokio/1/tokio/task/struct.JoinError.html) answers.
impl JoinError {
    /// Returns true if the task was cancelled, or will not run because its pool, loop or scheduler has ended.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Returns true if the task has panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panicked(_))
    }

    /// Returns the payload of the panic, for [`resume_unwind`](std::panic::resume_unwind).
    ///
    /// # Panics
    ///
    /// Panics if the task has not panicked: see [`is_panic`](JoinError::is_panic).
    ///
    /// ```
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let pool = ScheduledThreadPool::new(1);
    /// let error = pool.submit(|| -> u8 { panic!("out of cheese") })?.join().unwrap_err();
    /// assert!(error.is_panic() && !error.is_cancelled());
    /// assert_eq!(error.into_panic().downcast_ref(), Some(&"out of cheese"));
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self {
            JoinError::Panicked(payload) => payload.into_inner(),
            other => panic!("the task has not panicked: {other}"),
        }
    }
}

/// The payload of a panic in a task.
pub struct PanicPayload {
    /// Boxed, because each task has room for its result.
    inner: Box<Inner>,
}

struct Inner {
    message: Option<String>,
    /// The mutex only makes it `Sync`. Nobody locks it.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl PanicPayload {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> PanicPayload {
        let message = TaskPanic::new(&*payload).message().map(str::to_owned);
        PanicPayload { inner: Box::new(Inner { message, payload: Mutex::new(payload) }) }
    }

    /// Returns the message of `panic!`, if the payload is a string.
    pub fn message(&self) -> Option<&str> {
        self.inner.message.as_deref()
    }

    /// Returns the payload, for example for [`resume_unwind`](std::panic::resume_unwind).
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.inner.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl_debug!(PanicPayload, self, message: self.message());
