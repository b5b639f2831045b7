//! Where a job is in the queue of its owner: one word, which other threads may read and change without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wheel::WheelKey;

/// Where a job is in its owner's queue. The owner sets it, under its own lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// It waits for its time, under this key.
    Delayed(WheelKey),
    /// It waits for its turn, and the entry with this number stands for it. The entries of a loop have no numbers.
    Queued(u64),
    /// It is not in the queue: it has not come yet, has left, or was cancelled.
    Gone,
}

/// A [`Position`] that several threads may read and change.
#[derive(Debug, Default)]
pub(crate) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    const GONE: u64 = 0;
    // No key's number gets that far: there is no room for so many tasks.
    const QUEUED: u64 = 1 << 62;

    /// Returns the position. The Acquire pairs with the Release in `leave`: a thread that sees that a task has gone
    /// also sees what was done before that.
    pub(crate) fn get(&self) -> Position {
        match self.0.load(Ordering::Acquire) {
            AtomicPosition::GONE => Position::Gone,
            code @ AtomicPosition::QUEUED.. => Position::Queued(code - AtomicPosition::QUEUED),
            key => Position::Delayed(WheelKey::from_bits(key - 1)),
        }
    }

    /// Returns the key of a job that waits for its time, and otherwise one that the wheel never gives.
    pub(crate) fn key(&self) -> WheelKey {
        if let Position::Delayed(key) = self.get() { key } else { WheelKey::NONE }
    }

    /// Sets the position. Relaxed suffices: the caller holds the lock under which other threads find the task.
    pub(crate) fn set(&self, position: Position) {
        self.0.store(AtomicPosition::encode(position), Ordering::Relaxed);
    }

    /// Sets the position to [`Gone`](Position::Gone), if it is still `from`. So of several threads, one takes the task
    /// out. The Release pairs with the Acquire here and in `get`.
    pub(crate) fn leave(&self, from: Position) -> bool {
        let (from, to) = (AtomicPosition::encode(from), AtomicPosition::GONE);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn encode(position: Position) -> u64 {
        match position {
            Position::Delayed(key) => key.to_bits() + 1,
            Position::Queued(number) => AtomicPosition::QUEUED + number,
            Position::Gone => AtomicPosition::GONE,
        }
    }
}
