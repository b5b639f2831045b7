//! A future that is ready when an instant has come: [`Sleep`].
//!
//! ```text
//!              poll, too early             it rings
//!   no alarm ------------------> alarm ---------------> ready
//!      ^                           |  another waker, an earlier deadline: a new alarm
//!      '------ drop, reset --------'
//! ```
//!
//! - SLEEP-1 A poll that answers `Pending` leaves an alarm that is pending, is not later than the deadline, and
//!   wakes the waker of that poll. So no wake-up is lost.
//! - SLEEP-2 A deadline that moves away leaves the alarm where it is: it rings at the old time, which is one
//!   poll for nothing, and that poll sets the next. So a timeout that is put off with every message costs
//!   two stores for each.
//! - SLEEP-3 The clock is read once for a sleep that is made and polled, because a reading is a fifth of what that
//!   costs. A first poll that comes late, on a clock that runs by itself, is so taken for one in time: it
//!   leaves an alarm that rings at once. And of equal deadlines on several threads any may come first.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::{Alarm, ScheduleError, Scheduler};

/// Ready when its deadline has come, and never before: what [`Scheduler::sleep`] gives.
///
/// It runs under any runtime, or none, because it is woken by the scheduler's tick thread. Nothing is
/// scheduled before the first poll, though the time counts from the call that made it. Dropping it frees all
/// that it held at once. It keeps its scheduler alive. A poll after it was ready answers anew, by its
/// deadline.
///
/// # Errors
///
/// It resolves to [`ScheduleError::Closed`] when the scheduler is closed before the deadline, and to
/// [`ScheduleError::Full`] when it may hold no more tasks. A sleep that moves, or is polled by another task, gives
/// its place up for a moment, and somebody else may take it.
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
    /// Before the scheduler, which may end with this handle: the alarm is called off first.
    set: Option<Set>,
    scheduler: Scheduler,
    deadline: Instant,
    /// What the clock said when it was made; for the first poll, which mostly comes at once.
    made: Option<Instant>,
}

/// An alarm, and when it rings.
struct Set {
    alarm: Alarm,
    at: Instant,
}

impl Scheduler {
    /// A future that is ready when `duration` has passed since this call.
    ///
    /// One that is beyond the range of the clock never is.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let now = self.now();
        Sleep { made: Some(now), ..self.sleep_until(super::after(now, duration)) }
    }

    /// A future that is ready when the instant has come.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { scheduler: self.clone(), deadline, made: None, set: None }
    }
}

impl Sleep {
    /// Returns when it is ready.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if its deadline has come.
    pub fn is_elapsed(&self) -> bool {
        self.scheduler.now() >= self.deadline
    }

    /// Moves the deadline, also of a sleep that was ready. The task that waits for it is woken at the new one.
    ///
    /// To put it off costs next to nothing, however often: the task is polled once at the old deadline.
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
        if self.set.as_ref().is_none_or(|set| set.at <= deadline) {
            return; // SLEEP-2
        }
        // If it has rung, the task that was woken will poll.
        let waker = self.set.take().and_then(|set| set.alarm.into_waker());
        if let Some(waker) = waker {
            if self.set_alarm(&waker).is_ready() {
                waker.wake();
            }
        }
    }

    /// The scheduler on which it waits.
    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// SLEEP-1.
    pub(super) fn poll_with(&mut self, waker: &Waker) -> Poll<Result<(), ScheduleError>> {
        match &self.set {
            Some(set) if set.alarm.is_pending() => {
                if set.alarm.will_wake(waker) {
                    return Poll::Pending;
                }
                self.set = None;
            }
            // It has rung, or the scheduler has ended.
            Some(_) => {
                self.set = None;
                if self.is_elapsed() {
                    return Poll::Ready(Ok(()));
                }
            }
            None => {}
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
                self.set = Some(Set { alarm, at: self.deadline });
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Future for Sleep {
    type Output = Result<(), ScheduleError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_with(context.waker())
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
