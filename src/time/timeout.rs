//! A future with a time limit: [`Timeout`].

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::error::Elapsed;
use super::{Instant, Sleep};
use crate::Scheduler;
use crate::clock::timeline::after;
use crate::platform::impls::impl_debug;
use crate::scheduler::in_force::TimeSource;

/// A future with a time limit. Made by [`timeout`](super::timeout()) and [`Scheduler::timeout`].
///
/// Each poll asks the future first and the timer second, so a future that is done at its deadline is in time, and so is one that
/// is done within the same tick. When the
/// timer has rung, the future is not polled any more. It is dropped with the `Timeout`, or returned by
/// [`into_inner`](Timeout::into_inner).
///
/// After an error, a poll returns the same error again. After an output, a poll is a poll of the future after its end,
/// which most futures answer with a panic. With the feature `futures-core` it is a `FusedFuture`, which is terminated
/// in both cases.
///
/// ```
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// let never = std::future::pending::<()>();
/// assert!(time::timeout(Duration::from_millis(5), never).await.is_err());
/// assert_eq!(time::timeout(Duration::from_secs(5), async { 6 * 7 }).await, Ok(42));
/// # });
/// ```
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct Timeout<F> {
    /// Pinned whenever the `Timeout` is.
    future: F,
    sleep: Sleep,
    is_done: bool,
}

impl Scheduler {
    /// Limits the time of a future to `duration` from now: [`time::timeout`](crate::time::timeout()) on this scheduler.
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout::after(TimeSource::of(self), duration, future.into_future())
    }

    /// Limits the time of a future to the time until `deadline`: [`time::timeout_at`](crate::time::timeout_at) on this
    /// scheduler.
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: impl Into<Instant>,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout::at(TimeSource::of(self), deadline.into(), future.into_future())
    }
}

impl<F> Timeout<F> {
    /// A time beyond the range of the clock never ends (S4).
    pub(super) fn after(source: TimeSource, duration: Duration, future: F) -> Timeout<F> {
        let now = source.now();
        let sleep = Sleep::between(source, now, after(now, duration));
        Timeout { future, sleep, is_done: false }
    }

    pub(super) fn at(source: TimeSource, deadline: Instant, future: F) -> Timeout<F> {
        Timeout { future, sleep: Sleep::at(source, deadline.into_std()), is_done: false }
    }

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

    /// Returns the future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    /// Returns true if it was ready.
    #[cfg(feature = "futures-core")]
    pub(crate) fn is_over(&self) -> bool {
        self.is_done || self.sleep.is_over()
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing is moved out of the pinned `Timeout`. Once it is pinned, `future` is reached by a pin alone:
        // `get_mut` and `into_inner` need the `Timeout` itself, which is `Unpin` only if `F` is, and there is no
        // `Drop`. `sleep` and `is_done` are `Unpin`.
        let (future, sleep, is_done) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.sleep, &mut this.is_done)
        };
        if sleep.is_over() {
            return Poll::Ready(Err(Elapsed::NEW));
        }
        if let Poll::Ready(output) = future.poll(context) {
            *is_done = true;
            return Poll::Ready(Ok(output));
        }
        sleep.poll_with(context.waker()).map(|()| Err(Elapsed::NEW))
    }
}

impl_debug!(Timeout<F>, self, deadline: self.deadline());
