//! What futures are made of: a waker that is woken at an instant.

use std::task::Waker;
use std::time::Instant;

use super::Scheduler;
use crate::error::ScheduleError;
use crate::scheduler::alarm::Alarm;
use crate::wheel::entry::TaskKey;

impl Scheduler {
    /// Wakes a waker at an instant: for those who write futures. [`sleep`](Scheduler::sleep) and its like
    /// are such.
    ///
    /// `None` when the instant has come; nothing is kept of the waker then. Else the tick thread wakes
    /// it, whatever the executor, at the instant or when the scheduler ends; it never is among the
    /// leftovers. It counts as a task, and neither this nor its end allocates anything.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use std::time::Instant;
    /// use tickwheel::{Alarm, ScheduleError, Scheduler};
    ///
    /// struct At {
    ///     scheduler: Scheduler,
    ///     instant: Instant,
    ///     alarm: Option<Alarm>,
    /// }
    ///
    /// impl Future for At {
    ///     type Output = Result<(), ScheduleError>;
    ///
    ///     fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
    ///         self.alarm = self.scheduler.wake_at(self.instant, context.waker())?;
    ///         if self.alarm.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    ///     }
    /// }
    /// # let scheduler = Scheduler::new();
    /// # let instant = scheduler.now() + std::time::Duration::from_millis(5);
    /// # let mut at = At { scheduler: scheduler.clone(), instant, alarm: None };
    /// # let sleeper = tickwheel::Sleeper::new();
    /// # while Pin::new(&mut at).poll(&mut Context::from_waker(&sleeper.waker())).is_pending() {
    /// #     sleeper.sleep();
    /// # }
    /// # assert!(scheduler.now() >= instant);
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`] and [`ScheduleError::Full`].
    pub fn wake_at(&self, instant: Instant, waker: &Waker) -> Result<Option<Alarm>, ScheduleError> {
        let key = self.shared().wake_at(self.shared().at(instant), waker)?;
        Ok(self.alarm(key, waker))
    }

    /// As [`wake_at`](Scheduler::wake_at), for who has read the scheduler's clock a moment ago and would
    /// rather not pay for that again: `read` stands for the present. An instant that has come since then is
    /// not `None`, but woken at once. Among equal deadlines of several threads its place is any.
    ///
    /// # Errors
    ///
    /// As [`wake_at`](Scheduler::wake_at).
    pub fn wake_at_since(
        &self,
        read: Instant,
        instant: Instant,
        waker: &Waker,
    ) -> Result<Option<Alarm>, ScheduleError> {
        let key = self.shared().wake_at_since(read, instant, waker)?;
        Ok(self.alarm(key, waker))
    }

    #[inline]
    fn alarm(&self, key: Option<TaskKey>, waker: &Waker) -> Option<Alarm> {
        key.map(|key| Alarm::new(key, self.shared(), waker))
    }

    /// Whether the calling thread is inside a turn of this scheduler: the tick thread, or who turns the
    /// driver. Nothing that this scheduler has to do can be waited for there.
    pub fn is_turned_here(&self) -> bool {
        self.shared().is_turned_here()
    }
}
