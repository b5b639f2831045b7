//! The takers that wait for a queue: a leader and its followers.
//!
//! ```text
//!                nothing is due: joins the list
//!   LOOKING ────────────────────────────────────> AWAKE, in the list <──── woken, or the sleep ends ─────┐
//!      │                                            │     │                                              │
//!      │ an item is due, the time is up,            │     └── nothing is due: goes to sleep ─> ASLEEP(until)
//!      │ or the queue is closed                     │
//!      └──────────────> gone <──────────────────────┘ leaves the list, and hands the duty on
//! ```
//!
//! The page [`waking`](crate::docs::waking) tells what the leader has to do, and which event wakes whom (WAKE-6).

use std::collections::VecDeque;
use std::fmt::Debug;
use std::task::Waker;

use super::SleepState;

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
    state: SleepState<T, Waker>,
}

impl<T: Copy + Ord + Debug> WaitList<T> {
    pub(crate) fn new() -> WaitList<T> {
        WaitList { waiters: VecDeque::new(), next: Ticket(0) }
    }

    /// Appends a waiter, which is awake.
    pub(crate) fn join(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.waiters.push_back(Waiter { ticket, state: SleepState::Awake });
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
        let before = state.wake();
        *state = SleepState::Asleep(until, waker);
        before
    }

    /// Removes a waiter. If it was the leader, the next waiter leads from now on. Returns the waker of the one that has
    /// left, which the caller drops, and that of a leader that would sleep past the head, which the caller wakes (WAKE-6).
    #[must_use]
    pub(crate) fn leave(
        &mut self,
        ticket: Ticket,
        head: Option<T>,
    ) -> (Option<Waker>, Option<Waker>) {
        let left = self.index_of(ticket).and_then(|at| self.waiters.remove(at));
        let mine = left.and_then(|mut waiter| waiter.state.wake());
        (mine, head.and_then(|head| self.leader_to_wake(head)))
    }

    fn index_of(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Returns the waker of a leader that would sleep past the head's deadline, and marks the leader as awake (WAKE-2).
    #[must_use]
    #[inline]
    pub(crate) fn leader_to_wake(&mut self, head: T) -> Option<Waker> {
        self.waiters.front_mut()?.state.wake_for(head)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the wakers of all that sleep, and marks all as awake.
    #[must_use]
    pub(crate) fn all_to_wake(&mut self) -> Vec<Waker> {
        self.waiters.iter_mut().filter_map(|waiter| waiter.state.wake()).collect()
    }

    /// Asserts that one waiter leads, and WAKE-2.
    pub(crate) fn check_invariants(&self, head: Option<T>) {
        assert!(self.waiters.iter().is_sorted_by(|one, next| one.ticket < next.ticket), "tickets");
        let leaders = self.waiters.iter().filter(|waiter| self.leads(waiter.ticket)).count();
        assert_eq!(leaders, usize::from(!self.waiters.is_empty()), "one waiter leads");
        if let (Some(leader), Some(head)) = (self.waiters.front(), head) {
            assert!(!leader.state.sleeps_past(head), "WAKE-2: {:?} past {head:?}", leader.state);
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
        let (mine, next) = list.leave(leader, Some(at(9)));
        assert!(mine.is_none(), "its waker was called");
        assert!(list.leads(follower));
        assert!(next.is_some(), "the follower would sleep for ever");
        assert!(list.set_asleep(follower, Some(at(1)), waker()).is_none());
        assert!(list.leave(follower, None).0.is_some());
        assert!(list.leader_to_wake(at(9)).is_none() && list.all_to_wake().is_empty());
    }

    #[test]
    fn a_follower_that_leaves_wakes_nobody() {
        let mut list = WaitList::new();
        let (leader, follower) = (list.join(), list.join());
        let waker = || Waker::noop().clone();
        assert!(list.set_asleep(leader, Some(5), waker()).is_none());
        assert!(list.set_asleep(follower, None, waker()).is_none());
        let (mine, next) = list.leave(follower, Some(5));
        assert!(mine.is_some() && next.is_none() && list.leads(leader));
    }
}
