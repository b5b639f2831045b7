//! An [`Interval`] as a `Stream`: feature `futures-core`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;

use super::Interval;
use crate::ScheduleError;

/// Each item is the instant at which a tick was due. An error is the last item.
///
/// ```
/// use futures_util::StreamExt;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// let beats = scheduler.interval(Duration::from_millis(1)).take(3);
/// assert_eq!(beats.count().await, 3);
/// # });
/// ```
impl Stream for Interval {
    type Item = Result<Instant, ScheduleError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        this.poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over { (0, Some(0)) } else { (1, None) }
    }
}
