//! Where a task is in the queue of its worker: one word, which other threads may read and change without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wheel::WheelKey;

/// Where a task is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It waits for its time, under this key.
    Delayed(WheelKey),
    /// It waits for its turn, and the entry with this number stands for it.
    Queued(u64),
    /// It is not in the queue: it has not come yet, has left, or was cancelled.
    Gone,
}

/// A [`Position`] that several threads may read and change.
#[derive(Debug)]
pub(super) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    // No key's number gets that far: there is no room for so many tasks.
    const QUEUED: u64 = 1 << 62;
    const GONE: u64 = u64::MAX;

    /// Returns the position. The Acquire pairs with the Release in `leave`: a thread that sees that a task has gone
    /// also sees what was counted before.
    pub(super) fn get(&self) -> Position {
        match self.0.load(Ordering::Acquire) {
            AtomicPosition::GONE => Position::Gone,
            code @ AtomicPosition::QUEUED.. => Position::Queued(code - AtomicPosition::QUEUED),
            key => Position::Delayed(WheelKey::from_bits(key)),
        }
    }

    /// Sets the position. Relaxed suffices: the caller holds the lock under which other threads find the task.
    pub(super) fn set(&self, position: Position) {
        self.0.store(AtomicPosition::encode(position), Ordering::Relaxed);
    }

    /// Sets the position to [`Gone`](Position::Gone), if it is still `from`. So of several threads, one takes the task
    /// out. The Release pairs with the Acquire here and in `get`.
    pub(super) fn leave(&self, from: Position) -> bool {
        let (from, to) = (AtomicPosition::encode(from), AtomicPosition::GONE);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn encode(position: Position) -> u64 {
        match position {
            Position::Delayed(key) => key.to_bits(),
            Position::Queued(number) => AtomicPosition::QUEUED + number,
            Position::Gone => AtomicPosition::GONE,
        }
    }
}

impl Default for AtomicPosition {
    fn default() -> AtomicPosition {
        AtomicPosition(AtomicU64::new(AtomicPosition::GONE))
    }
}
