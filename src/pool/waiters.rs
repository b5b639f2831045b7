//! The takers that wait, in the order in which they came. Plain data, under the queue's lock; the
//! invariants QUEUE-1 and QUEUE-2 stand in [`queue`](super::queue).
//!
//! ```text
//!   first:  the leader   ── sleeps towards the head's deadline, or its own end if that is earlier
//!   others: the followers ── sleep towards their own end, if they have one
//! ```
//!
//! Whoever is called is marked as awake at once, so that nobody calls it again before it has looked.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

/// Names a taker in a line. They rise along the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

pub(super) struct Line {
    takers: VecDeque<Taker>,
    next: Ticket,
}

struct Taker {
    ticket: Ticket,
    waker: Waker,
    state: State,
}

/// How a taker stands in the line.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// It will look before it sleeps. From joining the line, and from a call.
    Awake,
    /// It sleeps, or has just got up by itself. From its own hand, when it found nothing.
    Asleep(Option<Instant>),
}

impl State {
    fn sleeps_past(&self, deadline: Instant) -> bool {
        matches!(self, State::Asleep(until) if until.is_none_or(|until| deadline < until))
    }
}

impl Line {
    pub(super) fn new() -> Line {
        Line { takers: VecDeque::new(), next: Ticket(0) }
    }

    /// A taker stands at the end, awake.
    pub(super) fn join(&mut self, waker: Waker) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.takers.push_back(Taker { ticket, waker, state: State::Awake });
        ticket
    }

    /// QUEUE-1: the first one is the leader.
    pub(super) fn leads(&self, ticket: Ticket) -> bool {
        self.takers.front().is_some_and(|leader| leader.ticket == ticket)
    }

    /// A taker is about to sleep.
    pub(super) fn lie_down(&mut self, ticket: Ticket, until: Option<Instant>) {
        if let Some(at) = self.place_of(ticket) {
            self.takers[at].state = State::Asleep(until);
        }
    }

    /// A taker goes away. The one behind a leader leads from now on, asleep as it may be.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        if let Some(at) = self.place_of(ticket) {
            self.takers.remove(at);
        }
    }

    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        self.takers.binary_search_by_key(&ticket, |taker| taker.ticket).ok()
    }

    /// QUEUE-2: wakes a leader that would sleep past the head's deadline.
    #[must_use]
    #[inline]
    pub(super) fn call_leader(&mut self, head: Instant) -> Option<Waker> {
        let leader = self.takers.front_mut().filter(|leader| leader.state.sleeps_past(head))?;
        leader.state = State::Awake;
        Some(leader.waker.clone())
    }

    /// Wakes everybody.
    #[must_use]
    pub(super) fn call_all(&mut self) -> Vec<Waker> {
        let call = |taker: &mut Taker| {
            taker.state = State::Awake;
            taker.waker.clone()
        };
        self.takers.iter_mut().map(call).collect()
    }

    /// Asserts QUEUE-2, and that the tickets rise.
    pub(super) fn check_invariants(&self, head: Option<Instant>) {
        assert!(self.takers.iter().is_sorted_by(|one, next| one.ticket < next.ticket));
        if let (Some(leader), Some(head)) = (self.takers.front(), head) {
            assert!(!leader.state.sleeps_past(head), "QUEUE-2: {:?} past {head:?}", leader.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_who_would_sleep_past_the_head_is_called_and_only_once() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut line = Line::new();
        let leader = line.join(Waker::noop().clone());
        let follower = line.join(Waker::noop().clone());
        assert!(line.call_leader(at(1)).is_none(), "it is awake");
        line.lie_down(leader, Some(at(5)));
        line.lie_down(follower, None);
        assert!(line.call_leader(at(5)).is_none(), "it will be up by then");
        assert!(line.call_leader(at(4)).is_some());
        assert!(line.call_leader(at(3)).is_none(), "called already");
        line.leave(leader);
        assert!(line.leads(follower));
        assert!(line.call_leader(at(9)).is_some(), "it would sleep for ever");
        line.leave(follower);
        assert!(line.call_leader(at(9)).is_none() && line.call_all().is_empty());
    }
}
