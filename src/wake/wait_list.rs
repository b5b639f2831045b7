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

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::task::Waker;

use super::SleepState;

/// Names a waiter in a list. Later waiters have greater tickets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The waiters in the order in which they came. It is plain data, under the queue's lock. `T` is a point in time.
///
/// Wakers are moved in and out, and never cloned or dropped here, because a user's waker must not run code under the
/// lock.
#[derive(Default)]
pub(crate) struct WaitList<T> {
    waiters: BTreeMap<Ticket, SleepState<T, Waker>>,
    next: Ticket,
}

impl<T: Copy + Ord + Debug> WaitList<T> {
    pub(crate) fn new() -> WaitList<T> {
        WaitList { waiters: BTreeMap::new(), next: Ticket(0) }
    }

    /// Appends a waiter, which is awake.
    pub(crate) fn join(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.waiters.insert(ticket, SleepState::Awake);
        ticket
    }

    /// Returns true if this waiter is the leader.
    pub(crate) fn leads(&self, ticket: Ticket) -> bool {
        self.waiters.first_key_value().is_some_and(|(leader, _)| *leader == ticket)
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
        let state = self.waiters.get_mut(&ticket)?;
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
        let mine = self.waiters.remove(&ticket).and_then(|mut left| left.wake());
        (mine, head.and_then(|head| self.leader_to_wake(head)))
    }

    /// Returns the waker of a leader that would sleep past the head's deadline, and marks the leader as awake (WAKE-2).
    #[must_use]
    #[inline]
    pub(crate) fn leader_to_wake(&mut self, head: T) -> Option<Waker> {
        self.waiters.first_entry()?.get_mut().wake_for(head)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the wakers of all that sleep, and marks all as awake.
    #[must_use]
    pub(crate) fn all_to_wake(&mut self) -> Vec<Waker> {
        self.waiters.values_mut().filter_map(SleepState::wake).collect()
    }

    /// Asserts WAKE-2.
    pub(crate) fn check_invariants(&self, head: Option<T>) {
        if let (Some((_, leader)), Some(head)) = (self.waiters.first_key_value(), head) {
            assert!(!leader.sleeps_past(head), "WAKE-2: {leader:?} past {head:?}");
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
