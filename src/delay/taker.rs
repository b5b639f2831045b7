//! One taker's place in a [`DelayQueue`], and the futures that have one: [`NextExpired`] and [`Expirations`].
//!
//! ```text
//!               nothing is due               leads: sets the alarm
//!   OUTSIDE ────────────────────> IN LINE ──────────────────────────> WAITS, leads ──────┐
//!      ^                            ^  │                                                 │ alarm, earlier insert,
//!      │ an item, an end, a drop    │  └── follows: no alarm ──────> WAITS, follows      │ close, it leads now
//!      └────────────────────────────┴───────────── woken, and polled ────────────────────┘
//! ```
//!
//! The first taker in the line, the leader, has an alarm of the scheduler for the earliest deadline. If there is no item,
//! the alarm is set for the end of time, because the scheduler wakes it when it is closed. The others have none. The page
//! [`waking`](crate::docs::waking) tells how the leader's duty is handed on (WAKE-6).
//!
//! - A leader sets its alarm after it has noted that time, and before it returns `Pending`. The alarm rings at that
//!   time, or when the scheduler is closed. So what happens in between wakes it, by its waker in the line or by the alarm.
//! - An item is taken out by the call that returns it. So a taker that was woken and is dropped has lost nothing,
//!   and its wake-up goes to the next leader.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::shared::Shared;
use super::{DelayQueue, Expired};
use crate::clock::tick::Moment;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::wake::wait_list::Ticket;
use crate::{Alarm, ScheduleError};

/// A place in the line of takers. It must [leave](Taker::leave) before it is dropped.
#[derive(Default)]
pub(super) struct Taker {
    ticket: Option<Ticket>,
    /// The alarm that it has set as the leader, and when that rings.
    alarm: Option<(Alarm, Moment)>,
}

impl Taker {
    /// Takes the first item that is due, or waits. Ready with `None` if there will be none any more.
    pub(super) fn poll<K, V>(
        &mut self,
        queue: &Shared<K, V>,
        context: &Context<'_>,
    ) -> Poll<Option<Expired<K, V>>> {
        let waker = context.waker();
        // If this is the leader, nothing has come in that it would sleep past, its time has not come, and its alarm is set,
        // there is nothing to do. A task may be polled often for other reasons. A thread that has something for the leader
        // changes `asleep_until` before it wakes it, so the poll after that sees the change.
        let sleeps_well = |until| queue.is_asleep_until(until) && queue.now() < until;
        if self.set_for(waker).is_some_and(sleeps_well) {
            return Poll::Pending;
        }
        let out = loop {
            // Before the look, which takes what is due then.
            let is_ended = queue.scheduler.is_closed();
            let out = queue.take(Some(queue.now()));
            if out.is_some() || is_ended {
                break out;
            }
            let Ok(until) = queue.line_up(&mut self.ticket, waker.clone()) else { break None };
            match self.set_alarm(queue, until, waker) {
                Ok(true) => return Poll::Pending,
                // It has come, or the scheduler was closed, in the meantime: look again.
                Ok(false) | Err(ScheduleError::Closed) => {}
                Err(_) => {
                    // There is no slot left in the process.
                    waker.wake_by_ref();
                    return Poll::Pending;
                }
            }
        };
        self.leave(queue);
        Poll::Ready(out.map(|out| queue.expired(out)))
    }

    /// Returns when the alarm rings, if it is set and wakes this waker.
    fn set_for(&self, waker: &Waker) -> Option<Moment> {
        let (alarm, until) = self.alarm.as_ref()?;
        (alarm.will_wake(waker) && alarm.is_pending()).then_some(*until)
    }

    /// Sets the alarm of a leader, unless it is set already. A follower, without a time, has none. Returns false if the time
    /// has come.
    fn set_alarm<K, V>(
        &mut self,
        queue: &Shared<K, V>,
        until: Option<Moment>,
        waker: &Waker,
    ) -> Result<bool, ScheduleError> {
        if until.is_some() && self.set_for(waker) == until {
            return Ok(true);
        }
        self.alarm = None;
        let Some(until) = until else { return Ok(true) };
        let alarm = queue.scheduler.wake_uncounted_at(queue.timeline.instant(until), waker)?;
        self.alarm = alarm.map(|alarm| (alarm, until));
        Ok(self.alarm.is_some())
    }

    /// Leaves the line, if it is in it.
    pub(super) fn leave<K, V>(&mut self, queue: &Shared<K, V>) {
        self.ticket.take().into_iter().for_each(|ticket| queue.leave_line(ticket));
        let alarm = self.alarm.take();
        quietly(|| drop(alarm)); // it drops a waker, whose panic must not cost the taker its item
    }
}

/// A future that waits for the next item: see [`DelayQueue::next`].
///
/// It may be dropped at any time. A poll after it was ready waits for one more item.
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct NextExpired<'a, K, V> {
    pub(super) queue: &'a Shared<K, V>,
    pub(super) taker: Taker,
    pub(crate) is_over: bool,
}

impl<K, V> Future for NextExpired<'_, K, V> {
    type Output = Option<Expired<K, V>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let NextExpired { queue, taker, is_over } = &mut *self;
        let next = taker.poll(queue, context);
        *is_over = next.is_ready();
        next
    }
}

impl<K, V> Drop for NextExpired<'_, K, V> {
    fn drop(&mut self) {
        self.taker.leave(self.queue);
    }
}

impl_debug!(NextExpired<'_, K, V>, self, is_over: self.is_over);

/// The items of a [`DelayQueue`] as they become due: what [`DelayQueue::stream`] returns. With the feature `futures-core`
/// it is a `Stream`.
///
/// It is a handle of the queue. It ends, with `None`, when the queue or its scheduler is closed. A stream that was polled
/// and found nothing keeps its place in the line of takers. If its turn comes and it is not polled again, items wait for
/// it, even if others wait for items. So drop a stream that you do not poll any more.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Expirations<K, V> {
    pub(super) queue: DelayQueue<K, V>,
    pub(super) taker: Taker,
    pub(crate) is_over: bool,
}

impl<K, V> Expirations<K, V> {
    /// Takes the next item, or registers the task to be woken. Ready with `None` if the queue or its scheduler is closed.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        let next = self.taker.poll(&self.queue.shared, cx);
        self.is_over = matches!(next, Poll::Ready(None));
        next
    }
}

impl<K, V> Drop for Expirations<K, V> {
    fn drop(&mut self) {
        self.taker.leave(&self.queue.shared);
    }
}

impl_debug!(Expirations<K, V>, self, queue: self.queue, is_over: self.is_over);
