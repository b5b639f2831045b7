//! Where a task is in the queue of its worker: one word, which other threads may read and change without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::job::Epoch;

/// Where a task is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It waits for its time, under this ticket.
    Delayed(u64),
    /// It waits for its turn.
    Queued,
    /// It waits for its turn, and is not to run before this time, which is a number of the queue's [`Epoch`].
    Postponed(u64),
    /// It is not in the queue: it has not come yet, has left, or was cancelled.
    Gone,
}

/// A [`Position`] that several threads may read and change.
#[derive(Debug)]
pub(super) struct AtomicPosition(AtomicU64);

// A number of an epoch is no other position.
const _: () = assert!(AtomicPosition::POSTPONED + (Epoch::END - 1) < AtomicPosition::QUEUED);

impl AtomicPosition {
    // No ticket gets that far.
    const POSTPONED: u64 = 1 << 62;
    const QUEUED: u64 = u64::MAX - 1;
    const GONE: u64 = u64::MAX;

    /// Returns the position. The Acquire pairs with the Release in `leave`: a thread that sees that a task has gone
    /// also sees what was counted before.
    pub(super) fn get(&self) -> Position {
        AtomicPosition::decode(self.0.load(Ordering::Acquire))
    }

    /// Sets the position to [`Gone`](Position::Gone) and returns the one before. If several threads do so, one of them
    /// gets the position and the others get `Gone`. The Release pairs with the Acquire here and in `get`.
    pub(super) fn leave(&self) -> Position {
        AtomicPosition::decode(self.0.swap(AtomicPosition::GONE, Ordering::AcqRel))
    }

    /// Sets the position. Relaxed suffices: the caller holds the lock under which other threads find the task.
    pub(super) fn set(&self, position: Position) {
        self.0.store(AtomicPosition::encode(position), Ordering::Relaxed);
    }

    /// Sets the position, if it has not changed since it was `from`. The orderings are those of `get` and `leave`.
    pub(super) fn change(&self, from: Position, to: Position) -> bool {
        let [from, to] = [from, to].map(AtomicPosition::encode);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn encode(position: Position) -> u64 {
        match position {
            Position::Delayed(ticket) => ticket,
            Position::Postponed(number) => AtomicPosition::POSTPONED + number,
            Position::Queued => AtomicPosition::QUEUED,
            Position::Gone => AtomicPosition::GONE,
        }
    }

    fn decode(code: u64) -> Position {
        match code {
            AtomicPosition::GONE => Position::Gone,
            AtomicPosition::QUEUED => Position::Queued,
            AtomicPosition::POSTPONED.. => Position::Postponed(code - AtomicPosition::POSTPONED),
            ticket => Position::Delayed(ticket),
        }
    }
}

impl Default for AtomicPosition {
    fn default() -> AtomicPosition {
        AtomicPosition(AtomicU64::new(AtomicPosition::GONE))
    }
}
