//! A future with a time limit: [`Timeout`].

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Sleep;
use crate::{ScheduleError, Scheduler};

/// A future with a time limit. Made by [`Scheduler::timeout`].
///
/// Each poll asks the future first and the clock second, so a future that is done at its deadline is in time. When the
/// time is up, the future is not polled any more. It is dropped with the `Timeout`, or returned by
/// [`into_inner`](Timeout::into_inner).
///
/// # Polls after the end
///
/// After an error, a poll returns the same error again. After an output, a poll is a poll of the future after its end,
/// which most futures answer with a panic. With the feature `futures-core` it is a `FusedFuture`, which is terminated
/// in both cases.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// let never = std::future::pending::<()>();
/// assert!(scheduler.timeout(Duration::from_millis(5), never).await.is_err());
///
/// let answer = scheduler.timeout(Duration::from_secs(5), async { 6 * 7 }).await;
/// assert_eq!(answer, Ok(42));
/// # });
/// ```
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct Timeout<F> {
    /// Pinned whenever the `Timeout` is.
    future: F,
    sleep: Sleep,
    end: Option<End>,
}

/// How a `Timeout` has ended.
#[derive(Clone, Copy)]
enum End {
    Output,
    Error(Elapsed),
}

impl Scheduler {
    /// Limits the time of a future to `duration` from now.
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout { sleep: self.sleep(duration), future: future.into_future(), end: None }
    }

    /// Limits the time of a future to the time until `deadline`.
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout { sleep: self.sleep_until(deadline), future: future.into_future(), end: None }
    }
}

impl<F> Timeout<F> {
    /// Returns when the time is up.
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Returns a reference to the future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// Returns a mutable reference to the future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// Returns true if it was ready.
    #[cfg(feature = "futures-core")]
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing is moved out of the pinned `Timeout`. Once it is pinned, `future` is reached by a pin alone:
        // `get_mut` and `into_inner` need the `Timeout` itself, which is `Unpin` only if `F` is, and there is no
        // `Drop`. `sleep` and `end` are `Unpin`.
        let (future, sleep, end) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.sleep, &mut this.end)
        };
        if let Some(End::Error(elapsed)) = *end {
            return Poll::Ready(Err(elapsed));
        }
        if let Poll::Ready(output) = future.poll(context) {
            *end = Some(End::Output);
            return Poll::Ready(Ok(output));
        }
        sleep.poll_with(context.waker()).map(|woken| {
            let elapsed = Elapsed { reason: woken.err() };
            *end = Some(End::Error(elapsed));
            Err(elapsed)
        })
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

/// The error of a [`Timeout`]: its time was up before the future was done, or its scheduler could not keep the time.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler};
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// let never = || scheduler.timeout(Duration::from_millis(1), std::future::pending::<()>());
/// assert_eq!(never().await.unwrap_err().reason(), None);
/// scheduler.close()?.run_all();
/// assert_eq!(never().await.unwrap_err().reason(), Some(ScheduleError::Closed));
/// # Ok::<(), tickwheel::CloseError>(())
/// # })?;
/// # Ok::<(), tickwheel::CloseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elapsed {
    reason: Option<ScheduleError>,
}

impl Elapsed {
    /// The time was up.
    #[cfg(feature = "futures-core")]
    pub(super) const TIME_IS_UP: Elapsed = Elapsed { reason: None };

    /// Returns why the future was given up before its time was up: the scheduler was closed, or full. Returns `None` if
    /// the time was up.
    pub fn reason(&self) -> Option<ScheduleError> {
        self.reason
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            None => f.write_str("the time was over before the future was done"),
            Some(reason) => write!(f, "the time cannot be kept: {reason}"),
        }
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> io::Error {
        let kind = match elapsed.reason {
            None => io::ErrorKind::TimedOut,
            Some(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, elapsed)
    }
}
