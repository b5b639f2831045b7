//! A future that is ready when an instant has come: [`Sleep`].
//!
//! ```text
//!              poll, too early             it rings
//!   no alarm ------------------> alarm ---------------> ready
//!      ^                           |  another waker, an earlier deadline: a new alarm
//!      '------ drop, reset --------'
//! ```
//!
//! - SLEEP-1 A poll that returns `Pending` leaves a pending alarm, which rings at the deadline or before it and wakes
//!   the waker of that poll. So no wake-up is lost.
//! - SLEEP-2 When the deadline moves to a later time, the alarm stays. It rings at the old time and causes one poll in
//!   vain, which sets the next alarm. So it costs two stores to put off a timeout with every message.
//! - SLEEP-3 A sleep that is made and polled reads the clock once, because a reading is a fifth of the cost of both. If
//!   the first poll comes late, on a clock that runs by itself, it is taken for one in time: it leaves an alarm that
//!   rings at once. So sleeps of equal deadlines on several threads may become ready in any order.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::{Alarm, ScheduleError, Scheduler};

/// A future that is ready when its deadline has come, and never before. Made by [`Scheduler::sleep`].
///
/// It runs under any runtime, or none, because the scheduler's tick thread wakes it. Nothing is scheduled before the
/// first poll, but the time counts from the call that made the sleep. Dropping it frees everything that it held at
/// once. It keeps its scheduler alive. A [`Delay`](super::Delay) has no errors, for code that can do nothing with them.
///
/// # Polls after the end
///
/// A poll after it was ready compares its deadline with the clock again. So it is ready again, without a new timer,
/// until it is [reset](Sleep::reset) to a later time, and it is an error once the scheduler has been closed. With the
/// feature `futures-core` it is a `FusedFuture`: terminated from the time it was ready until it is reset. So a loop
/// with `select!` passes over a sleep that is done, and comes back to it after a reset.
///
/// # Errors
///
/// It resolves to [`ScheduleError::Closed`] if the scheduler is closed before the deadline, and to
/// [`ScheduleError::Full`] if the scheduler may hold no more tasks. When a sleep is moved, or polled by another task,
/// it is not pending for a moment, and another task may take its place.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// scheduler.sleep(Duration::from_millis(5)).await?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// # })?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct Sleep {
    /// The alarm that the last poll has set, and when it rings. Declared before the scheduler, which may end with this
    /// handle, so that the alarm is dropped first.
    alarm: Option<(Alarm, Instant)>,
    scheduler: Arc<Scheduler>,
    deadline: Instant,
    /// The time at which the sleep was made, until the first poll, which mostly comes at once (SLEEP-3).
    made: Option<Instant>,
    /// It was ready, and has not been reset since.
    is_over: bool,
}

impl Scheduler {
    /// Returns a future that is ready when `duration` has passed since this call.
    ///
    /// If that is beyond the range of the clock, as with [`Duration::MAX`], the future is ready only when the scheduler
    /// is closed, with that error. To be woken by a close it needs a timer, so from its first poll it counts as pending
    /// like any other sleep. [`Delay::never`](super::Delay::never) holds no timer.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_since(self.now(), duration)
    }

    /// Like [`sleep`](Scheduler::sleep), for a caller that has just read the clock.
    pub(super) fn sleep_since(&self, now: Instant, duration: Duration) -> Sleep {
        Sleep { made: Some(now), ..self.sleep_until(super::after(now, duration)) }
    }

    /// Returns a future that is ready when the instant has come.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { scheduler: self.for_futures(), deadline, made: None, alarm: None, is_over: false }
    }
}

impl Sleep {
    /// Returns the deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the deadline has come.
    pub fn is_elapsed(&self) -> bool {
        self.scheduler.now() >= self.deadline
    }

    /// Moves the deadline, even of a sleep that was ready. The task that waits for the sleep is woken at the new
    /// deadline.
    ///
    /// A later deadline costs next to nothing, however often it moves: the task is polled once at the old deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// let mut idle = scheduler.sleep(Duration::from_secs(30));
    /// // Something has come in:
    /// idle.reset(scheduler.now() + Duration::from_millis(5));
    /// # tickwheel::future::block_on(async move {
    /// idle.await
    /// # })?;
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.made = None;
        self.is_over = false;
        if self.alarm.as_ref().is_none_or(|(_, rings_at)| *rings_at <= deadline) {
            return; // the alarm stays, if there is one (SLEEP-2)
        }
        // If the alarm has rung, there is no waker left, but the task will poll.
        if let Some(waker) = self.take_waker() {
            if self.set_alarm(&waker).is_ready() {
                waker.wake();
            }
        }
    }

    /// Moves the deadline to `duration` from now, by the scheduler's clock, like [`reset`](Sleep::reset).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let mut idle = scheduler.sleep(Duration::from_secs(30));
    /// driver.advance(Duration::from_secs(20));
    /// idle.reset_after(Duration::from_secs(30)); // something has come in
    /// assert_eq!(idle.deadline(), scheduler.now() + Duration::from_secs(30));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn reset_after(&mut self, duration: Duration) {
        self.reset(super::after(self.scheduler.now(), duration));
    }

    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns true if it was ready, and has not been reset since.
    #[cfg(feature = "futures-core")]
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Cancels the alarm, if there is one, and returns the waker that it would have woken. Returns `None` if it has
    /// rung.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        self.alarm.take().and_then(|(alarm, _)| alarm.into_waker())
    }

    /// Polls, and sets an alarm if none is pending that wakes this waker (SLEEP-1).
    pub(super) fn poll_with(&mut self, waker: &Waker) -> Poll<Result<(), ScheduleError>> {
        if let Some((alarm, _)) = &self.alarm {
            let is_pending = alarm.is_pending();
            if is_pending && alarm.will_wake(waker) {
                return Poll::Pending;
            }
            self.alarm = None;
            // An alarm that is not pending has rung, or the scheduler has ended.
            if !is_pending && self.is_elapsed() {
                return Poll::Ready(Ok(()));
            }
        }
        self.set_alarm(waker)
    }

    fn set_alarm(&mut self, waker: &Waker) -> Poll<Result<(), ScheduleError>> {
        let alarm = match self.made.take() {
            Some(made) => self.scheduler.wake_at_since(made, self.deadline, waker)?,
            None => self.scheduler.wake_at(self.deadline, waker)?,
        };
        match alarm {
            Some(alarm) => {
                self.alarm = Some((alarm, self.deadline));
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Future for Sleep {
    type Output = Result<(), ScheduleError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.poll_with(context.waker());
        this.is_over = polled.is_ready();
        polled
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("is_elapsed", &self.is_elapsed())
            .finish_non_exhaustive()
    }
}
