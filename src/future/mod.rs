//! Futures that wait, under any runtime or none: sleeps, timeouts, intervals, and calls with a result.
//!
//! They are made by methods of a [`Scheduler`]. The wheel decides *when* a future is ready, and the caller that polls
//! the future decides *where* it runs. Nothing here starts a thread or needs a reactor: the scheduler's tick thread
//! wakes the waker.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//!
//! let scheduler = Scheduler::new();
//! # tickwheel::future::block_on(async {
//! scheduler.sleep(Duration::from_millis(2)).await?;
//! let late = scheduler.timeout(Duration::from_millis(2), std::future::pending::<()>()).await;
//! assert!(late.is_err());
//! # Ok::<(), tickwheel::ScheduleError>(())
//! # })?;
//! # Ok::<(), tickwheel::ScheduleError>(())
//! ```
//!
//! # Which one
//!
//! | I want to | use |
//! | --- | --- |
//! | wait, and learn of a scheduler that is closed or full | [`Sleep`] |
//! | wait, and nothing else: for a trait of another crate, or a type with a field that waits | [`Delay`] |
//! | limit the time of a future | [`Scheduler::timeout`], or [`FutureTimeExt::timeout`] behind the future |
//! | wait again and again | [`Interval`] |
//! | limit the silence, the rate or the gathering of a stream | `StreamTimeExt`, with the feature `futures-core` |
//!
//! # Coming from `tokio::time`
//!
//! | there | here |
//! | --- | --- |
//! | `sleep(d).await` | `scheduler.sleep(d).await?`, or `Scheduler::global().sleep(d)` |
//! | `sleep_until(instant)` | [`sleep_until`](Scheduler::sleep_until); with `std::time::Instant` |
//! | `Sleep::deadline`, `is_elapsed`, `reset` | the same; a [`Sleep`] is `Unpin`, so it needs no `Box::pin` to be reset |
//! | `timeout(d, future)`, `timeout_at` | [`scheduler.timeout`](Scheduler::timeout), [`timeout_at`](Scheduler::timeout_at) |
//! | `error::Elapsed` | [`Elapsed`]; [`reason`](Elapsed::reason) tells if the scheduler was closed or full instead |
//! | `interval(period)`, `interval_at` | [`scheduler.interval`](Scheduler::interval), [`interval_at`](Scheduler::interval_at); the first tick comes at once, as there |
//! | `MissedTickBehavior` | [`MissedTicks`](crate::MissedTicks), with the same names. There, a tick is missed when it is five milliseconds late. Here, it is missed when it was due before the tick ahead of it was taken, to the nanosecond |
//! | `tokio_stream::wrappers::IntervalStream` | [`Interval`] itself, with the feature `futures-core` |
//! | `tokio_stream::StreamExt::timeout`, `throttle`, `chunks_timeout` | the methods of `StreamTimeExt`, with the same names |
//! | a field of the type `Pin<Box<Sleep>>` | [`Delay`], or [`Sleep`]: both are `Unpin`; [`Delay::never`] instead of an `Option` |
//! | `spawn(async { sleep(d).await; f() })` | [`call_after(d, f)`](Scheduler::call_after), or [`schedule_once`](Scheduler::schedule_once) if nobody waits for the result |
//! | `tokio_util::time::DelayQueue` | [`delay::DelayQueue`](crate::delay::DelayQueue) |
//! | `time::pause`, `advance` | [`build_driven`](crate::Builder::build_driven), [`Driver::advance`](crate::Driver::advance) |
//! | a panic if the runtime is gone | an error if the scheduler is closed; no future hangs |
//!
//! # In virtual time
//!
//! On a driven scheduler only the driver wakes futures, so a test polls, advances, and polls again:
//!
//! ```
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//!
//! let (scheduler, driver) = Scheduler::builder().build_driven()?;
//! let mut hour = pin!(scheduler.sleep(Duration::from_secs(3600)));
//! let mut context = Context::from_waker(Waker::noop());
//! assert!(hour.as_mut().poll(&mut context).is_pending());
//! driver.advance(Duration::from_secs(3600));
//! assert_eq!(hour.as_mut().poll(&mut context), Poll::Ready(Ok(())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod call;
mod delay;
mod ext;
#[cfg(feature = "futures-core")]
mod fused;
#[cfg(feature = "hyper")]
mod hyper;
mod interval;
mod sleep;
#[cfg(feature = "futures-core")]
mod stream;
#[expect(unsafe_code, reason = "a pinned field of a pinned struct, without a dependency")]
mod timeout;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use delay::Delay;
pub use ext::FutureTimeExt;
pub use interval::Interval;
pub use sleep::Sleep;
#[cfg(feature = "futures-core")]
pub use stream::{ChunksTimeout, StreamTimeExt, StreamTimeout, Throttle};
pub use timeout::{Elapsed, Timeout};

use crate::Period;
#[cfg(doc)]
use crate::Scheduler;
use crate::executor::deadlock::Blocking;

/// Polls a future on the calling thread until it is ready. The thread sleeps in between.
///
/// It is for programs without a runtime, and for tests. It drives nothing else: the futures of this crate need nothing
/// else, but those of a runtime need that runtime.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::future::block_on;
///
/// let scheduler = Scheduler::new();
/// block_on(scheduler.sleep(Duration::from_millis(5)))?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
///
/// # Panics
///
/// If the future waits for nothing but a timer of a scheduler that the calling thread serves, because it is in a task
/// on the scheduler's tick thread (by [`Inline`](crate::Inline)) or in a turn of its [`Driver`](crate::Driver). Such a
/// wait would never end.
///
/// If another thread may wake the future as well, `block_on` waits. A timer that serves as the timeout of this future
/// does not ring while the thread is blocked. A [`ScheduledFuture`](crate::pool::ScheduledFuture) reports a deadlock
/// when it is [joined](crate::pool::ScheduledFuture::join), not here.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let blocking = Blocking::new();
    let mut context = Context::from_waker(blocking.waker());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        assert!(
            blocking.sleep(),
            "`block_on` waits for a timer of the scheduler whose thread it blocks, and would wait for ever: schedule \
             what is to follow in place of waiting for it, or run the task on an executor with threads, such as \
             `ThreadPool`"
        );
    }
}

/// Returns the instant that lies `ahead` of now, or one centuries ahead if that is beyond the range of the clock.
fn after(now: Instant, ahead: Duration) -> Instant {
    now.checked_add(ahead).unwrap_or_else(|| Period::fixed_delay(ahead).next_run(now, now))
}
