//! Futures and streams that tell when they should not be polled any more, with the feature `futures-core`.
//!
//! `select!` of `futures-util` asks for that. A future that can be reset is terminated only until then.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::future::FusedFuture;
use futures_core::stream::{FusedStream, Stream};

use crate::delay::{Expirations, Expired, NextExpired};
use crate::pool::ScheduledFuture;
use crate::time::{Instant, Interval, Sleep, Timeout};

/// Terminated from the time it was ready until it is reset.
impl FusedFuture for Sleep {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}

/// Terminated when it was ready.
impl<F: Future> FusedFuture for Timeout<F> {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}

/// The instants at which ticks were due, without an end.
///
/// ```
/// use futures_util::StreamExt;
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// let beats = time::interval(Duration::from_millis(1)).take(3);
/// assert_eq!(beats.count().await, 3);
/// # });
/// ```
impl Stream for Interval {
    type Item = Instant;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.get_mut().poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// Never terminated.
impl FusedStream for Interval {
    fn is_terminated(&self) -> bool {
        false
    }
}

impl<K, V> Stream for Expirations<K, V> {
    type Item = Expired<K, V>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Expirations::poll_next(&mut self, cx)
    }
}

/// Terminated after `None`.
impl<K, V> FusedStream for Expirations<K, V> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

/// Terminated when it was ready.
impl<K, V> FusedFuture for NextExpired<'_, K, V> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

/// Terminated when the result has been taken.
impl<T> FusedFuture for ScheduledFuture<T> {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}
