//! Futures and streams that tell when they should not be polled any more, with the feature `futures-core`.
//!
//! `select!` of `futures-util` asks for that. A future that can be reset is terminated only until then.

use std::future::Future;

use futures_core::future::FusedFuture;
use futures_core::stream::FusedStream;

use super::{Delay, Interval, Sleep, Timeout};
use crate::pool::ScheduledFuture;

/// Terminated from the time it was ready until it is reset.
impl FusedFuture for Sleep {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}

/// Terminated from the time it was ready until it is reset.
impl FusedFuture for Delay {
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

/// Terminated after an error, which is its last item.
impl FusedStream for Interval {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}

/// Terminated when the result has been taken.
impl<T> FusedFuture for ScheduledFuture<T> {
    fn is_terminated(&self) -> bool {
        self.is_over()
    }
}
