//! A future that is ready when an instant has come: [`Sleep`].
//!
//! ```text
//!              poll, too early             it rings
//!   no alarm ------------------> alarm ---------------> ready
//!      ^                           |  another waker, an earlier deadline: a new alarm
//!      '------ drop, reset --------'  closed: a new alarm, of the global scheduler
//! ```
//!
//! A poll that returns `Pending` leaves a pending alarm, which rings at the deadline or before it and wakes the waker of
//! that poll, or it has woken the waker. So no wake-up is lost.

use std::cell::Cell;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant as StdInstant};

use super::Instant;
use crate::clock::timeline::after;
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::scheduler::in_force::{self, TimeSource};
use crate::{Alarm, Scheduler};

/// A future that is ready when its deadline has come, and never before. Made by [`sleep`](super::sleep()) and
/// [`Scheduler::sleep`].
///
/// It runs under any runtime, or none, because the scheduler's tick thread wakes it. Nothing is scheduled before the
/// first poll, but the time counts from the call that made the sleep. Dropping it frees everything that it held at
/// once. It keeps its scheduler alive, and goes on if that is closed: see
/// [the module](super#a-scheduler-that-is-closed-or-full). It is `Unpin`.
///
/// If the first poll comes after the deadline, it may leave a timer that rings at once, and be ready at the next poll.
///
/// After it was ready, it is ready at each poll until it is [reset](Sleep::reset). With the feature `futures-core` it is a
/// `FusedFuture`: terminated from the time it was ready until it is reset.
///
/// ```
/// use tickwheel::time::{self, Duration};
///
/// # tickwheel::future::block_on(async {
/// time::sleep(Duration::from_millis(5)).await;
/// # });
/// ```
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct Sleep {
    /// The alarm that the last poll has set. Declared before the scheduler, which may end with this share, so that the
    /// alarm is dropped first.
    alarm: Option<Alarm>,
    source: TimeSource,
    deadline: StdInstant,
    /// When the alarm rings. Before the first poll of a sleep that was not reset: when it was made, if that was read.
    rings_at: StdInstant,
    /// It was ready, and has not been reset since.
    is_over: bool,
    /// It was reset at least once.
    was_reset: bool,
}

/// How far ahead a sleep ends whose time is beyond the range of the clock: 30 years.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the instant that lies `ahead` of now, or one 30 years ahead if that is beyond the range of the clock.
pub(super) fn soon_or_far(now: StdInstant, ahead: Duration) -> StdInstant {
    now.checked_add(ahead).unwrap_or_else(|| after(now, FAR))
}

impl Scheduler {
    /// Returns a future that is ready when `duration` has passed since this call: [`time::sleep`](crate::time::sleep())
    /// on this scheduler.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(TimeSource::of(self), duration)
    }

    /// Returns a future that is ready when the instant has come: [`time::sleep_until`](crate::time::sleep_until) on this
    /// scheduler.
    pub fn sleep_until(&self, deadline: impl Into<Instant>) -> Sleep {
        Sleep::at(TimeSource::of(self), deadline.into().into_std())
    }
}

impl Sleep {
    pub(super) fn after(source: TimeSource, duration: Duration) -> Sleep {
        let now = source.now();
        Sleep::between(source, now, soon_or_far(now, duration))
    }

    /// Returns a sleep until `deadline`, for a caller that has just read the clock.
    pub(super) fn between(source: TimeSource, now: StdInstant, deadline: StdInstant) -> Sleep {
        Sleep { rings_at: now, ..Sleep::at(source, deadline) }
    }

    pub(super) fn at(source: TimeSource, deadline: StdInstant) -> Sleep {
        let (is_over, was_reset) = (false, false);
        Sleep { alarm: None, source, deadline, rings_at: deadline, is_over, was_reset }
    }

    /// Returns the deadline.
    pub fn deadline(&self) -> Instant {
        Instant::from_std(self.deadline)
    }

    /// Returns true if the deadline has come and the sleep knows of it: its task was woken, or it was ready.
    ///
    /// A sleep that was never polled has no timer, so it does not know. After a [reset](Sleep::reset) it does, polled or not, as
    /// in tokio.
    pub fn is_elapsed(&self) -> bool {
        let knows = self.alarm.as_ref().map_or(self.was_reset, |alarm| !alarm.is_pending());
        self.is_over || knows && self.has_come()
    }

    /// Moves the deadline, even of a sleep that was ready. The task that waits for the sleep is woken at the new
    /// deadline.
    ///
    /// A later deadline costs next to nothing, however often it moves: in real time, the task is polled once at the old
    /// deadline.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use tickwheel::time::{self, Duration, Instant};
    ///
    /// let mut idle = time::sleep(Duration::from_secs(30));
    /// // Something has come in:
    /// Pin::new(&mut idle).reset(Instant::now() + Duration::from_millis(5));
    /// tickwheel::future::block_on(idle);
    /// ```
    pub fn reset(self: Pin<&mut Self>, deadline: impl Into<Instant>) {
        self.get_mut().move_to(deadline.into().into_std());
    }

    pub(super) fn move_to(&mut self, deadline: StdInstant) {
        self.deadline = deadline;
        (self.is_over, self.was_reset) = (false, true);
        if self.alarm.is_none() || (self.rings_at <= deadline && !self.source.is_virtual()) {
            // The alarm stays, if there is one. It rings at the old time and causes one poll in vain, which sets the
            // next alarm. So it costs two stores to put off a timeout with every message. On a clock that does not run
            // by itself the alarm moves too, so that a test sees no wake in vain.
            return;
        }
        // If the alarm has rung, there is no waker left, but the task will poll.
        if let Some(waker) = self.alarm.take().and_then(Alarm::into_waker) {
            let set = caught(|| self.set_alarm(&waker)); // the clock is a user's
            if !matches!(set, Ok(Poll::Pending)) {
                waker.wake();
            }
            set.map_or_else(|panic| resume_unwind(panic), drop);
        }
    }

    /// Moves the deadline to `duration` from now.
    pub(crate) fn move_by(&mut self, duration: Duration) {
        self.move_to(soon_or_far(self.now(), duration));
    }

    /// Returns true if this scheduler keeps its time, and not another one to which it has gone over.
    #[cfg(feature = "hyper")]
    pub(crate) fn is_on(&self, scheduler: &Scheduler) -> bool {
        self.source.is(scheduler)
    }

    /// Makes it ready, until it is moved, and gives up the timer.
    #[cfg(feature = "futures-core")]
    pub(crate) fn end(&mut self) {
        (self.alarm, self.is_over) = (None, true);
    }

    pub(super) fn now(&self) -> StdInstant {
        self.source.now()
    }

    /// Returns true if it was ready, and has not been reset since.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    fn has_come(&self) -> bool {
        self.now() >= self.deadline
    }

    /// Polls, and sets an alarm if none is pending that wakes this waker.
    pub(super) fn poll_with(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_over {
            return Poll::Ready(());
        }
        if let Some(alarm) = &self.alarm {
            let is_pending = alarm.is_pending();
            if is_pending && alarm.will_wake(waker) {
                in_force::note_waiting(waker);
                return Poll::Pending;
            }
            // An alarm that is not pending has rung, or its scheduler has ended or takes none at the moment.
            self.is_over = !is_pending && self.has_come();
            self.alarm = None;
        }
        if !self.is_over {
            self.is_over = self.set_alarm(waker).is_ready() && !is_one_too_many(waker);
        }
        if self.is_over {
            return Poll::Ready(());
        }
        READY_IN_A_ROW.set((0, 0));
        in_force::note_waiting(waker);
        Poll::Pending
    }

    fn set_alarm(&mut self, waker: &Waker) -> Poll<()> {
        // A sleep that is made and polled reads the clock once, because a reading is a fifth of the cost of both. If
        // the first poll comes late, on a clock that runs by itself, it is taken for one in time: it leaves an alarm
        // that rings at once. So sleeps of equal deadlines on several threads may become ready in any order.
        let is_fresh = self.rings_at < self.deadline && !self.was_reset;
        let made = is_fresh.then_some(self.rings_at);
        self.rings_at = self.deadline;
        let Some(scheduler) = self.source.scheduler() else { return self.refused(waker) };
        let read = made.unwrap_or_else(|| scheduler.now());
        let Ok(alarm) = scheduler.wake_at_since(read, self.deadline, waker) else {
            return self.refused(waker);
        };
        self.alarm = alarm;
        if self.alarm.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Goes over to the global scheduler, or has the task poll again.
    #[cold]
    fn refused(&mut self, waker: &Waker) -> Poll<()> {
        // The scheduler takes no alarm, because it is closed or full. The sleep goes over to the global one, for good.
        // What is left is read once by the old clock, and passes by the global one's. A sleep on a virtual clock that
        // was resumed goes over to the clock that runs on, and its deadline stays.
        if let Some(deadline) = self.source.fall_back(self.deadline) {
            (self.deadline, self.rings_at) = (deadline, deadline);
            return self.set_alarm(waker);
        }
        // The global one takes none either, so a task that has to wait polls again.
        if self.has_come() {
            return Poll::Ready(());
        }
        waker.wake_by_ref();
        Poll::Pending
    }
}

thread_local! {
    /// How many sleeps were due when they were polled, since the last one that had to wait, and the data of their waker.
    static READY_IN_A_ROW: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
}

/// After so many that were due, a task gives its thread to others, as on a budget of tokio.
const MOST_IN_A_ROW: u32 = 128;

/// Counts a sleep that is due. Returns true if its task has to let others run first, and wakes it.
fn is_one_too_many(waker: &Waker) -> bool {
    // A loop of sleeps that are due would never give its thread to others. So one in a row of many is `Pending`, and
    // has woken its task. A caller that polls by hand, with a waker that does nothing, is left alone. Such wakers have
    // no data, and their tables differ from crate to crate.
    let (before, of) = READY_IN_A_ROW.get();
    let task = waker.data().addr();
    let in_a_row = if of == task { before.saturating_add(1) } else { 1 };
    READY_IN_A_ROW.set((in_a_row, task));
    let is_too_many = in_a_row >= MOST_IN_A_ROW && task != 0;
    if is_too_many {
        waker.wake_by_ref();
    }
    is_too_many
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.get_mut().poll_with(context.waker())
    }
}

impl_debug!(Sleep, self, deadline: self.deadline, is_elapsed: self.is_elapsed());
