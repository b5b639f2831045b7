//! The takers that wait in a [`DelayedWorkQueue`](super::DelayedWorkQueue): a leader and its followers. A
//! [`DelayQueue`](crate::delay::DelayQueue) has the same list.
//!
//! ```text
//!                nothing is due: joins the list
//!   LOOKING ────────────────────────────────────> AWAKE, in the list <──── woken, or the sleep ends ─────┐
//!      │                                            │     │                                              │
//!      │ an item is due, the time is up,            │     └── nothing is due: goes to sleep ─> ASLEEP(until)
//!      │ or the queue is closed                     │
//!      └──────────────> gone <──────────────────────┘ leaves the list
//! ```
//!
//! The first waiter in the list is the **leader**. It sleeps until the head of the queue is due. The others are
//! **followers**: each sleeps until it is woken, or its own time is up. When the leader leaves, with or without an
//! item, the next waiter becomes the leader.
//!
//! | event | woken |
//! | --- | --- |
//! | an offer becomes the head | the leader, if it would sleep past the new head's deadline |
//! | the leader leaves: it took the head, gave up, or its clock panicked | the next leader, if it would sleep past the head's deadline |
//! | a follower leaves | nobody |
//! | the head is removed, drained, or taken by a thread that did not wait | nobody |
//! | the queue is closed | all |
//!
//! - If anybody waits, exactly one waiter leads, and only the leader sleeps towards the head's deadline. It
//!   stays the leader until it leaves. So at most one thread is in [`Clock::sleep`](crate::Clock::sleep) for the sake
//!   of the head.
//! - QUEUE-2 Whenever the queue's lock is free, the leader is awake, or sleeps until the head's deadline at the latest.
//!   A thread that would break this, by an earlier head or by leaving, marks the leader as awake before it releases the
//!   lock, and wakes it afterwards. So each item has a waiter as long as anybody waits, and several offers of ever
//!   earlier heads wake the leader once. Taking items out makes the head's deadline later, which breaks nothing. The
//!   leader then wakes up once in vain. Waking it for each head that is removed would cost more, because most timeouts
//!   are removed, many of them as heads.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::task::Waker;

/// Names a waiter in a list. Later waiters have greater tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The waiters in the order in which they came. It is plain data, under the queue's lock. `T` is a point in time.
///
/// Wakers are moved in and out, and never cloned or dropped here, because a user's waker must not run code under the
/// lock.
pub(crate) struct WaitList<T> {
    waiters: VecDeque<Waiter<T>>,
    next: Ticket,
}

struct Waiter<T> {
    ticket: Ticket,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    /// The waiter will look at the queue before it sleeps. Set when it joins, and by the thread that wakes it.
    Awake,
    /// The waiter found nothing and sleeps, or has just woken up by itself. `None` is a sleep without end.
    Asleep(Option<T>, Waker),
}

impl<T: Copy + Ord> State<T> {
    fn sleeps_past(&self, deadline: T) -> bool {
        matches!(self, State::Asleep(until, _) if until.is_none_or(|until| deadline < until))
    }

    /// Makes the waiter awake, and returns the waker of its sleep.
    fn wake_up(&mut self) -> Option<Waker> {
        match std::mem::replace(self, State::Awake) {
            State::Asleep(_, waker) => Some(waker),
            State::Awake => None,
        }
    }
}

impl<T: Copy + Ord + Debug> WaitList<T> {
    pub(crate) fn new() -> WaitList<T> {
        WaitList { waiters: VecDeque::new(), next: Ticket(0) }
    }

    /// Appends a waiter, which is awake.
    pub(crate) fn join(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.waiters.push_back(Waiter { ticket, state: State::Awake });
        ticket
    }

    /// Returns true if this waiter is the leader.
    pub(crate) fn leads(&self, ticket: Ticket) -> bool {
        self.waiters.front().is_some_and(|leader| leader.ticket == ticket)
    }

    /// Notes that a waiter is about to sleep, and what wakes it. Returns the waker of its last sleep, if nobody has
    /// called that.
    #[must_use]
    pub(crate) fn set_asleep(
        &mut self,
        ticket: Ticket,
        until: Option<T>,
        waker: Waker,
    ) -> Option<Waker> {
        let at = self.index_of(ticket)?;
        let state = &mut self.waiters[at].state;
        let before = state.wake_up();
        *state = State::Asleep(until, waker);
        before
    }

    /// Removes a waiter, and returns its waker, if it has one. If it was the leader, the next waiter leads from now on,
    /// even if it sleeps.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        let at = self.index_of(ticket)?;
        self.waiters.remove(at)?.state.wake_up()
    }

    fn index_of(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Returns the waker of a leader that would sleep past the head's deadline, and marks the leader as awake
    /// (QUEUE-2).
    #[must_use]
    #[inline]
    pub(crate) fn leader_to_wake(&mut self, head: T) -> Option<Waker> {
        let leader = self.waiters.front_mut().filter(|leader| leader.state.sleeps_past(head))?;
        leader.state.wake_up()
    }

    /// Returns the wakers of all that sleep, and marks all as awake.
    #[must_use]
    pub(crate) fn all_to_wake(&mut self) -> Vec<Waker> {
        self.waiters.iter_mut().filter_map(|waiter| waiter.state.wake_up()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Asserts that one waiter leads, and QUEUE-2.
    pub(crate) fn check_invariants(&self, head: Option<T>) {
        assert!(self.waiters.iter().is_sorted_by(|one, next| one.ticket < next.ticket), "tickets");
        let leaders = self.waiters.iter().filter(|waiter| self.leads(waiter.ticket)).count();
        assert_eq!(leaders, usize::from(!self.waiters.is_empty()), "one waiter leads");
        if let (Some(leader), Some(head)) = (self.waiters.front(), head) {
            assert!(!leader.state.sleeps_past(head), "QUEUE-2: {:?} past {head:?}", leader.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn only_a_leader_that_would_sleep_past_the_head_is_woken_and_only_once() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut list = WaitList::new();
        let (leader, follower) = (list.join(), list.join());
        assert!(list.leader_to_wake(at(1)).is_none(), "it is awake");
        let waker = || Waker::noop().clone();
        assert!(list.set_asleep(leader, Some(at(5)), waker()).is_none());
        assert!(list.set_asleep(follower, None, waker()).is_none());
        assert!(list.leader_to_wake(at(5)).is_none(), "it will be up by then");
        assert!(list.leader_to_wake(at(4)).is_some());
        assert!(list.leader_to_wake(at(3)).is_none(), "woken already");
        assert!(list.leave(leader).is_none(), "its waker was called");
        assert!(list.leads(follower));
        assert!(list.leader_to_wake(at(9)).is_some(), "it would sleep for ever");
        assert!(list.set_asleep(follower, Some(at(1)), waker()).is_none());
        assert!(list.leave(follower).is_some());
        assert!(list.leader_to_wake(at(9)).is_none() && list.all_to_wake().is_empty());
    }
}
