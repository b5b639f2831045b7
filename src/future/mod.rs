//! Futures that wait, under any runtime or none: sleeps, timeouts, intervals, and calls with a result.
//!
//! They are methods of a [`Scheduler`]: what decides *when* is the wheel, and *where* is
//! whatever polls the future. Nothing here starts a thread or needs a reactor; the scheduler's tick thread
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
//! | file | what it is |
//! | --- | --- |
//! | `sleep` | [`Sleep`]: one alarm, set by a poll |
//! | `timeout` | [`Timeout`], [`Elapsed`]: a future and a sleep |
//! | `interval`, `stream` | [`Interval`]: a sleep that is set on by each tick; as a `Stream` |
//! | `call` | [`Scheduler::call_after`] |
//! | `hyper` | a [`Scheduler`] as hyper's timer |
//! | `block_on` | [`block_on`], for a thread without a runtime |
//!
//! # Coming from `tokio::time`
//!
//! | there | here |
//! | --- | --- |
//! | `sleep(d).await` | `scheduler.sleep(d).await?`, or `Scheduler::global().sleep(d)` |
//! | `sleep_until(instant)` | [`sleep_until`](Scheduler::sleep_until); with `std::time::Instant` |
//! | `Sleep::deadline`, `is_elapsed`, `reset` | the same; a [`Sleep`] is `Unpin`, so it needs no `Box::pin` to be reset |
//! | `timeout(d, future)`, `timeout_at` | [`scheduler.timeout`](Scheduler::timeout), [`timeout_at`](Scheduler::timeout_at) |
//! | `error::Elapsed` | [`Elapsed`]; [`reason`](Elapsed::reason) tells whether the scheduler was closed instead |
//! | `interval(period)`, `interval_at` | [`scheduler.interval`](Scheduler::interval), [`interval_at`](Scheduler::interval_at); the first tick is at once there and here |
//! | `MissedTickBehavior` | [`MissedTicks`](crate::MissedTicks), of the same names. Missed is here what was due before the tick ahead of it was taken, to the nanosecond; there, what is five milliseconds late |
//! | `tokio_stream::wrappers::IntervalStream` | [`Interval`] itself, with the feature `futures-core` |
//! | `spawn(async { sleep(d).await; f() })` | [`call_after(d, f)`](Scheduler::call_after), or [`schedule_once`](Scheduler::schedule_once) when nobody waits for the result |
//! | `tokio_util::time::DelayQueue` | [`pool::DelayedWorkQueue`](crate::pool::DelayedWorkQueue), or [`wheel::Wheel`](crate::wheel::Wheel) |
//! | `time::pause`, `advance` | [`build_driven`](crate::Builder::build_driven), [`Driver::advance`](crate::Driver::advance) |
//! | a runtime that is gone: a panic | a scheduler that is closed: an error, and none hangs |
//!
//! # In virtual time
//!
//! On a driven scheduler nothing is woken but by the driver, so a test polls, advances, and polls again:
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

mod block_on;
mod call;
#[cfg(feature = "hyper")]
mod hyper;
mod interval;
mod sleep;
#[cfg(feature = "futures-core")]
mod stream;
#[expect(unsafe_code, reason = "a pinned field of a pinned struct, without a dependency")]
mod timeout;

use std::time::{Duration, Instant};

pub use block_on::block_on;
pub use interval::Interval;
pub use sleep::Sleep;
pub use timeout::{Elapsed, Timeout};

use crate::Period;
#[cfg(doc)]
use crate::Scheduler;

/// The instant that lies so far ahead; centuries ahead for what the clock cannot say.
fn after(now: Instant, ahead: Duration) -> Instant {
    now.checked_add(ahead).unwrap_or_else(|| Period::fixed_delay(ahead).next_run(now, now))
}
