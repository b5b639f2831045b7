//! The [`Alarm`]: a waker that is woken at an instant. Futures are built on it.
//!
//! An alarm is a task without a closure, an executor and a handle that can be cloned. The tick thread calls the waker
//! itself, because most wakers only put a task into a queue, and to send them to another thread would cost more than
//! that. An alarm is never a leftover. It stands for a future that waits, so at the end of the scheduler it is woken.
//!
//! - ALARM-1 Before the waker is called, the end of the alarm is counted, and then its holder is freed. So a thread
//!   that finds the alarm pending will be woken after that look. A thread that finds it over, or that was woken, finds
//!   its end counted.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use super::{Scheduler, in_force};
use crate::clock::tick::Times;
use crate::engine::handles;
use crate::engine::slots::{Thrown, Wake, task};
use crate::error::ScheduleError;
use crate::executor::deadlock::OwnTimers;
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::wheel::entry::{SchedulerId, TaskKey};

/// What setting an alarm returns: `None` if its instant has come.
type SetAlarm = Result<Option<Alarm>, ScheduleError>;

impl Scheduler {
    /// Wakes a waker at an instant, for writers of futures. [`sleep`](Scheduler::sleep) and the other futures of this
    /// crate are built on it.
    ///
    /// Returns `None` if the instant has come. Then the waker is not kept. Otherwise the tick thread wakes it, whatever
    /// the executor is: at the instant, or when the scheduler ends. An alarm counts as a task, but is never among the
    /// leftovers. Neither this call nor the end of the alarm allocates memory.
    ///
    /// If the tick thread is far behind, the waker is woken before this call returns. So a future that is polled then
    /// has to compare its deadline with the clock, and calls `wake_at` again. The calling thread is never put to sleep.
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
    pub fn wake_at(&self, instant: Instant, waker: &Waker) -> SetAlarm {
        self.alarm::<true>(self.shared().watch.at(instant), waker)
    }

    /// Like [`wake_at`](Scheduler::wake_at), for an alarm that is counted nowhere: not in
    /// [`pending`](Scheduler::pending), not in [`stats`](Scheduler::stats), and not towards
    /// [`max_pending`](crate::Builder::max_pending).
    ///
    /// For data structures that keep time for values of their own, such as a [`DelayQueue`](crate::delay::DelayQueue):
    /// how many alarms they need is not their user's business, and a scheduler that is full must not stop them.
    ///
    /// ```
    /// use std::task::Waker;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().max_pending(0).build_driven()?;
    /// let soon = scheduler.now() + Duration::from_secs(1);
    /// let alarm = scheduler.wake_uncounted_at(soon, Waker::noop())?.expect("not yet");
    /// assert_eq!((scheduler.pending(), driver.next_deadline()), (0, Some(soon)));
    /// driver.advance(Duration::from_secs(1));
    /// assert!(!alarm.is_pending());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`]; [`ScheduleError::Full`] only if there are 268 million tasks in the process.
    pub fn wake_uncounted_at(&self, instant: Instant, waker: &Waker) -> SetAlarm {
        self.alarm::<false>(self.shared().watch.at(instant), waker)
    }

    /// Like [`wake_at`](Scheduler::wake_at), for a caller that has just read the scheduler's clock and saves a second
    /// reading: `read` stands for the present.
    ///
    /// If the instant has come since then, returns an alarm that is woken at once, not `None`. Among equal deadlines of
    /// several threads, the order is not defined.
    ///
    /// # Errors
    ///
    /// The errors of [`wake_at`](Scheduler::wake_at).
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `alarm`")]
    pub(crate) fn wake_at_since(&self, read: Instant, instant: Instant, waker: &Waker) -> SetAlarm {
        self.alarm::<true>(self.shared().times_since(read, instant), waker)
    }

    /// Sets an alarm. Inlined, with its callers, so that the parts of an alarm are not written to memory and read back in
    /// other sizes, for which the processor waits. It saves a sixth of the time of a timeout that is set and dropped.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "measured: row S4-pending of `benches/peers`")]
    fn alarm<const COUNTED: bool>(&self, times: Times, waker: &Waker) -> SetAlarm {
        let (shared, mut own, mut of) = (self.shared(), None, target(waker));
        let kept = || {
            // A thread that blocks on this alarm would wait for ever if nobody but the thread itself can serve it.
            let own_timers = OwnTimers::of(waker, || in_force::is_served_here(shared));
            own = own_timers.as_ref().map(Arc::downgrade);
            let clone = || {
                let clone = waker.clone();
                // With the same data it wakes the same task, although its vtable may lie elsewhere: compilers copy those.
                if clone.data() != waker.data() {
                    of = target(&clone);
                }
                clone
            };
            Wake::<COUNTED>(own_timers.map_or_else(clone, Waker::from))
        };
        let Some(key) = shared.wake_at(times, waker, kept)? else { return Ok(None) };
        Ok(Some(Alarm { key, target: of, is_counted: COUNTED, own }))
    }

    /// Returns true if the calling thread is inside a turn of this scheduler: on the tick thread, or below a call of
    /// the [`Driver`](crate::Driver). Such a thread must not wait for anything that this scheduler has to do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let inside = scheduler.clone();
    /// scheduler.schedule_once(Duration::ZERO, move || assert!(inside.is_turned_here()))?;
    /// driver.turn();
    /// assert!(!scheduler.is_turned_here());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_turned_here(&self) -> bool {
        self.shared().is_turned_here()
    }
}

/// A waker that is woken at an instant: what [`Scheduler::wake_at`] returns. Dropping the alarm cancels it, and drops
/// the waker.
///
/// It is meant for writers of futures. The module [`future`](crate::future) has ready-made ones.
#[must_use = "dropping it cancels it"]
pub struct Alarm {
    key: TaskKey,
    /// The data of the waker that the holder owns, and its vtable, which tell it from other wakers.
    target: (usize, usize),
    /// It counts as a task of the scheduler.
    is_counted: bool,
    /// If only the thread that waits for it can serve it: where its waker comes from.
    own: Option<Weak<OwnTimers>>,
}

/// Returns the addresses of a waker's data and vtable.
fn target(waker: &Waker) -> (usize, usize) {
    (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}

impl Alarm {
    /// Returns true if the waker is still to be woken. Then it will be woken after this call, at the instant or when
    /// the scheduler ends.
    pub fn is_pending(&self) -> bool {
        // The holder is freed before the waker is called (ALARM-1).
        !task::is_over(self.key)
    }

    /// Returns true if this alarm, while it [is pending](Alarm::is_pending), will wake this waker, or one that wakes
    /// the same task.
    pub fn will_wake(&self, waker: &Waker) -> bool {
        // While the alarm is pending its holder owns the waker, so no other waker has this address.
        self.target == target(waker)
    }

    /// Cancels the alarm, and returns the waker. Returns `None` if it has been woken, or is just being woken.
    pub fn into_waker(mut self) -> Option<Waker> {
        // `Drop` will find that the alarm is cancelled already.
        let (waker, _) = self.cancel()?;
        let own = self.own.as_ref().and_then(Weak::upgrade);
        Some(own.map_or(waker, |own| own.waker.clone())) // before another thread can have it (DEADLOCK-1)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `Scheduler::alarm`")]
    fn cancel(&mut self) -> Option<(Waker, SchedulerId)> {
        // Without a handle, the end of an alarm needs no note: `is_pending` looks at the holder.
        let (cancelled, scheduler) = task::cancel(self.key);
        let task = cancelled.ok()?;
        if self.is_counted {
            handles::count_cancel::<true>(scheduler, task.was_pending());
        } else {
            handles::count_cancel::<false>(scheduler, task.was_pending());
        }
        // Counted before the holder is free, as the tick thread does (ALARM-1).
        let (waker, over) = task.take_waker();
        over.end();
        Some((waker, scheduler))
    }
}

impl Drop for Alarm {
    #[inline]
    fn drop(&mut self) {
        let Some((waker, scheduler)) = self.cancel() else { return };
        // A waker's `Drop` is user code, so its panic is reported (S9).
        if let Err(panic) = caught(|| drop(waker)) {
            handles::report(scheduler, Thrown { name: "a waker", panics: vec![panic] });
        }
    }
}

impl_debug!(Alarm, self, is_pending: self.is_pending());

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::parking::Sleeper;

    /// On a real clock, because any other clock is read again.
    #[test]
    fn a_reading_that_lies_ahead_holds_nobody_up() {
        let (scheduler, sleeper) = (Scheduler::new(), Sleeper::new());
        let ahead = scheduler.now() + Duration::from_secs(3600);
        let later = ahead + Duration::from_secs(1);
        let alarm = scheduler.wake_at_since(ahead, later, Waker::noop()).expect("open");
        let soon = scheduler.now() + Duration::from_millis(1);
        let other = scheduler.wake_at(soon, &sleeper.waker()).expect("open");
        while other.as_ref().is_some_and(Alarm::is_pending) {
            sleeper.sleep();
        }
        assert!(alarm.is_some_and(|alarm| alarm.is_pending()));
    }
}
