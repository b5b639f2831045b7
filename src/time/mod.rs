//! Sleeps, timeouts and intervals with the names of `tokio::time`, under any runtime or none.
//!
//! A program that has tokio's timers adopts these by one line: `use tickwheel::time;` in place of `use tokio::time;`.
//! The rest of the source stays. The [wheel](crate) decides *when* a future is ready, and whatever polls the future
//! decides *where* it runs. Nothing here needs a runtime, and nothing ends with one.
//!
//! ```
//! use tickwheel::time::{self, Duration};
//!
//! async fn fetch() -> Result<String, time::error::Elapsed> {
//!     let answer = async {
//!         time::sleep(Duration::from_millis(2)).await; // stands for a request
//!         "42".to_owned()
//!     };
//!     time::timeout(Duration::from_secs(30), answer).await
//! }
//! # tickwheel::future::block_on(async {
//! assert_eq!(fetch().await.as_deref(), Ok("42"));
//! # });
//! ```
//!
//! The page [`adopting`](crate::adopting) says how services, libraries and tests do that.
//!
//! # The scheduler in force
//!
//! These functions take no scheduler. They use the one that is in force on the calling thread:
//!
//! 1. the virtual clock that [`pause`] has put there,
//! 2. or the innermost guard of [`Scheduler::enter`],
//! 3. or the driver inside its own [`Driver::block_on`],
//! 4. or, on a thread that has called [`resume`], the time that runs on from there,
//! 5. or [`Scheduler::global`], which is made at the first poll that needs it.
//!
//! A future keeps the scheduler that was in force where it was made, also when it moves to another thread. To look the
//! global one up costs no lock and no count: a sleep for a known deadline was made in 4 ns, and in 7 with one that is
//! entered (`cargo bench -p peers --bench core -- "in force"`).
//!
//! A thread that runs tasks for others, such as a worker of a runtime or of an executor, has its own scheduler in force,
//! which is the global one unless it has entered another. So a task does not see what was in force where it was spawned.
//!
//! The methods [`Scheduler::sleep`], [`timeout`](Scheduler::timeout) and
//! [`interval`](Scheduler::interval) name the scheduler, and return the same types. [`Scheduler::in_force`] returns the one
//! in force, for what takes a scheduler.
//!
//! # A scheduler that is closed or full
//!
//! It is passed over for the global one, which nobody can close. A sleep that a close finds waiting goes on there for the
//! rest of its time. It stays there, also when it is reset. So a loop of ticks never spins, and
//! [`Elapsed`](error::Elapsed) means elapsed.
//!
//! If the clock was a virtual one, what is left passes in real time, and [`Sleep::deadline`] is an instant of the global
//! scheduler's clock from then on. For a [`Driver::block_on`] that is a wait for another thread: see
//! [`block_on_patiently`](crate::Driver::block_on_patiently).
//!
//! # Under load
//!
//! A poll never puts its thread to sleep to hold it back. If the tick thread is far behind, a sleep that needs a timer
//! wakes its task and is pending, until there is room. So the other tasks of that thread go on, and the memory stays
//! bounded. A poll takes a short lock once in some hundred timers, to get memory for them.
//!
//! A loop of sleeps that are due, or of ticks that are late, gives its thread to other tasks after 128 of them.
//!
//! # Idle timeouts
//!
//! To limit a silence, keep one sleep, and reset it with each message. That costs two stores, and a `timeout` around each
//! message a new timer:
//!
//! ```
//! use futures_util::future::{Either, select};
//! use futures_util::stream::{self, Stream, StreamExt};
//! use std::pin::Pin;
//! use tickwheel::time::{self, Duration, Instant};
//!
//! /// Reads messages until the peer closes, or says nothing for 30 seconds. Returns their number.
//! async fn read(mut messages: impl Stream<Item = u32> + Unpin) -> usize {
//!     let idle = Duration::from_secs(30);
//!     let (mut count, mut silence) = (0, time::sleep(idle));
//!     loop {
//!         // As `tokio::select!` would write it: message = messages.next() => .., () = &mut silence => return count
//!         match select(messages.next(), &mut silence).await {
//!             Either::Left((Some(_message), _)) => count += 1,
//!             Either::Left((None, _)) | Either::Right(_) => return count,
//!         }
//!         Pin::new(&mut silence).reset(Instant::now() + idle);
//!     }
//! }
//!
//! # async fn message(number: u32) -> u32 {
//! #     time::sleep(Duration::from_secs(20)).await;
//! #     number
//! # }
//! let (scheduler, driver) = tickwheel::Scheduler::builder().build_driven()?;
//! let start = scheduler.now();
//! let messages = stream::iter(0..3).then(message).chain(stream::pending()); // one every 20 seconds
//! assert_eq!(driver.block_on(read(Box::pin(messages)))?, 3);
//! assert_eq!(scheduler.now() - start, Duration::from_secs(90));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A retry with growing gaps is on the page [`adopting`](crate::adopting#a-library).
//!
//! # In tests
//!
//! Inside [`Driver::block_on`] time is virtual, and moves by itself whenever the future waits and nothing else can go on:
//!
//! ```
//! use tickwheel::Scheduler;
//! use tickwheel::time::{self, Duration, Instant};
//!
//! let (_scheduler, driver) = Scheduler::builder().build_driven()?;
//! driver.block_on(async {
//!     let start = Instant::now();
//!     time::sleep(Duration::from_secs(3600)).await; // takes no time
//!     assert_eq!(start.elapsed(), Duration::from_secs(3600));
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On a runtime of one thread, [`pause`] makes it virtual, and [`advance`] moves it. With tokio, let the runtime move it
//! when it is idle:
//!
//! ```ignore
//! let runtime = tokio::runtime::Builder::new_current_thread()
//!     .enable_all()
//!     .on_thread_park(tickwheel::time::advance_when_idle)
//!     .build()?;
//! runtime.block_on(async {
//!     tickwheel::time::pause();
//!     ...
//! });
//! ```
//!
//! # Where it differs from tokio
//!
//! | there | here |
//! | --- | --- |
//! | a panic without a runtime, or if it has ended | works everywhere; a sleep goes on when the runtime that polled it has ended |
//! | a sleep is rounded up to whole milliseconds, and one is added | at most a tick late; with [`Precision::Exact`](crate::Precision) a tick adds nothing |
//! | `Sleep` is not `Unpin` | it is; `Pin::new(&mut sleep)` is enough |
//! | deadlines are of the type `tokio::time::Instant` | instants of std are welcome too; where the code says `at.into()`, write `at` |
//! | `time::error::Error` | not there: no timer fails |
//! | tasks that [`advance`] wakes may run some yields later | the same: before it returns, those run that the runtime polls before it comes back to the caller. For a future in `block_on` these are some sixty |
//! | `pause` is for the whole runtime | for the calling thread; what was made before stays real |
//! | `start_paused`, and time moves by itself | [`pause`] first, and [`advance_when_idle`] as the runtime's hook; `start_paused` moves tokio's own time, not this one. Input and output that is ready, and blocking tasks, are not looked at before the time moves |
//! | a pending timeout takes a lock of the runtime | one lock-free schedule and one exchange |
//!
//! [`Driver::block_on`]: crate::Driver::block_on

mod instant;
mod interval;
mod sleep;
#[expect(unsafe_code, reason = "a pinned field of a pinned struct, without a dependency")]
mod timeout;

use std::future::{IntoFuture, poll_fn};
use std::task::Poll;
pub use std::time::Duration;

pub use instant::Instant;
pub use interval::{Interval, MissedTickBehavior};
pub use sleep::Sleep;
pub use timeout::Timeout;

#[cfg(doc)]
use crate::Scheduler;
use crate::scheduler::in_force::{self, TimeSource};

/// Returns a future that is ready when `duration` has passed since this call.
///
/// If that is beyond the range of the clock, as with [`Duration::MAX`], the future is ready in 30 years. If it is within that
/// range, but beyond the time of the [`Scheduler`], which goes on for 566 years, the future is never ready.
///
/// ```
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// time::sleep(Duration::from_millis(5)).await;
/// # });
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::after(TimeSource::in_force(), duration)
}

/// Returns a future that is ready when the instant has come.
///
/// ```
/// use tickwheel::time::{self, Duration, Instant};
///
/// # tickwheel::future::block_on(async {
/// time::sleep_until(Instant::now() + Duration::from_millis(5)).await;
/// time::sleep_until(std::time::Instant::now()).await;
/// # });
/// ```
pub fn sleep_until(deadline: impl Into<Instant>) -> Sleep {
    Sleep::at(TimeSource::in_force(), deadline.into().into_std())
}

/// Limits the time of a future to `duration` from now.
///
/// A time beyond the range of the clock, such as [`Duration::MAX`], is no limit. A timeout whose future is ready at the
/// first poll has read the clock once, and has touched nothing else.
///
/// ```
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// let answer = time::timeout(Duration::from_secs(5), async { 6 * 7 });
/// assert_eq!(answer.await, Ok(42));
/// # });
/// ```
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout::after(TimeSource::in_force(), duration, future.into_future())
}

/// Limits the time of a future to the time until `deadline`.
///
/// ```
/// use tickwheel::time::{self, Duration, Instant};
///
/// # tickwheel::future::block_on(async {
/// let deadline = Instant::now() + Duration::from_millis(5);
/// assert!(time::timeout_at(deadline, std::future::pending::<()>()).await.is_err());
/// # });
/// ```
pub fn timeout_at<F: IntoFuture>(
    deadline: impl Into<Instant>,
    future: F,
) -> Timeout<F::IntoFuture> {
    Timeout::at(TimeSource::in_force(), deadline.into(), future.into_future())
}

/// Returns an interval that ticks at once, and then every period.
///
/// # Panics
///
/// Panics if the period is zero.
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    Interval::new(TimeSource::in_force(), None, period)
}

/// Returns an interval that ticks at `start`, and then every period.
///
/// # Panics
///
/// Panics if the period is zero.
#[track_caller]
pub fn interval_at(start: impl Into<Instant>, period: Duration) -> Interval {
    Interval::new(TimeSource::in_force(), Some(start.into()), period)
}

/// The error of a [`Timeout`].
pub mod error {
    use std::io;

    use thiserror::Error;

    /// The time was up before the future was done.
    ///
    /// It means that, and nothing else: see [the module](super#a-scheduler-that-is-closed-or-full).
    #[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
    #[error("deadline has elapsed")]
    pub struct Elapsed(());

    impl Elapsed {
        pub(crate) const NEW: Elapsed = Elapsed(());
    }

    /// The kind is [`TimedOut`](io::ErrorKind::TimedOut).
    impl From<Elapsed> for io::Error {
        fn from(_: Elapsed) -> io::Error {
            io::ErrorKind::TimedOut.into()
        }
    }
}

// ----- virtual time --------------------------------------------------------------------------

/// Puts a virtual clock on the calling thread: it stands still until [`advance`] or [`advance_when_idle`] moves it.
///
/// Sleeps, timeouts and intervals that this thread makes from now on keep virtual time, on whichever thread they are
/// polled. Those that it made before stay in real time, and other threads are not affected. The clock runs again after
/// [`resume`], and ends with the thread. In the [`block_on`](crate::Driver::block_on) of a
/// [`Driver`](crate::Driver) on a virtual clock this does nothing, and there [`resume`] and [`advance`] never panic.
///
/// Nothing moves the clock but [`advance`], the hook [`advance_when_idle`], and this crate's
/// [`block_on`](crate::future::block_on). So a sleep under a runtime without the hook waits for an `advance`. The clock
/// belongs to the thread, not to a runtime: end a test with [`resume`], or run it on a thread of its own. Until the clock
/// moves, the thread keeps the waker of the sleep that it has polled last. A thread that sleeps because nothing is pending on
/// its clock does not notice what another thread polls there.
///
/// ```
/// use tickwheel::time::{self, Duration, Instant};
///
/// # tickwheel::future::block_on(async {
/// time::pause();
/// let start = Instant::now();
/// time::advance(Duration::from_secs(60)).await;
/// assert_eq!(start.elapsed(), Duration::from_secs(60));
/// time::sleep(Duration::from_secs(60)).await; // `block_on` moves the time when it has nothing else to do
/// assert_eq!(start.elapsed(), Duration::from_secs(120));
/// time::resume();
/// # });
/// ```
///
/// # Panics
///
/// Panics if the time of this thread is paused already.
#[track_caller]
pub fn pause() {
    // Inside a `Driver::block_on` time is virtual already, and a second clock would stand still beside it.
    assert!(
        in_force::driven().is_some() || in_force::pause(),
        "time is paused on this thread already: call `tickwheel::time::resume` at the end of what has paused it"
    );
}

/// Lets the time of this thread run again, from where the virtual clock of [`pause`] stands.
///
/// A future that was made on the virtual clock waits for the rest of its time in real time. The time of this thread
/// stays ahead of that of others by as much as it was advanced, so an instant of it means another time there. Inside a
/// guard of [`Scheduler::enter`], that scheduler's time counts again.
///
/// # Panics
///
/// Panics if the time of this thread is not paused.
#[track_caller]
pub fn resume() {
    assert!(in_force::resume() || in_force::driven().is_some(), "{NOT_PAUSED}");
}

/// Moves the virtual clock of this thread by `duration`, and lets other tasks run.
///
/// The sleeps that are due on the way, and were polled before, are woken in the order of their deadlines. Their tasks
/// run when this future has returned to the runtime, so they find the clock at its new time. To have them run one by one,
/// at their own times, [`sleep`](sleep()) on a runtime that moves the time when it is idle.
///
/// # Panics
///
/// Panics if the time of this thread is not paused.
pub async fn advance(duration: Duration) {
    assert!(in_force::advance(duration), "{NOT_PAUSED}");
    let mut has_yielded = false;
    let yields = poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    yields.await;
}

const NOT_PAUSED: &str = "time is not paused on this thread: call `tickwheel::time::pause` first";

/// Moves the virtual clock of the calling thread to the next deadline, if its time is [paused](pause). For a runtime that
/// calls it whenever its only thread has nothing to do.
///
/// If nothing is pending, it does nothing, and the runtime waits for whatever else wakes it.
///
/// Old versions of tokio (1.40 does, 1.54 does not) also call the hook when the future of `block_on` has woken itself, as
/// [`advance`] does. Then the time moves on to the next deadline.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use tickwheel::time::{self, Duration, Instant};
///
/// let runtime = tokio::runtime::Builder::new_current_thread()
///     .on_thread_park(time::advance_when_idle)
///     .build()?;
/// runtime.block_on(async {
///     time::pause();
///     let start = Instant::now();
///     time::sleep(Duration::from_secs(3600)).await; // takes no time
///     assert_eq!(start.elapsed(), Duration::from_secs(3600));
/// });
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn advance_when_idle() {
    in_force::jump_when_idle();
}
