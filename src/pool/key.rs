//! The names of items in a queue.
//!
//! A key says where an item was put, and which one it is: by a sequence number that no other item of its
//! queue ever has, and by the number of the queue.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names an item in a [`DelayedWorkQueue`](super::DelayedWorkQueue), for
/// [`remove`](super::DelayedWorkQueue::remove). A key whose item is gone matches nothing for ever,
/// however often its place is used again; and so does the key of another queue. (A wheel's key is a
/// [`WheelKey`](crate::wheel::WheelKey).)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) slot: u32,
    pub(super) queue: u32,
    pub(super) sequence: u64,
}

/// Where a task notes its key, again and again; RESULT-2 of [`task`](super::task) says who may when. Relaxed: the
/// locks that are named there put each reader behind the last writer.
pub(super) struct KeyNote {
    place: AtomicU64,
    sequence: AtomicU64,
}

impl Default for KeyNote {
    /// As yet of no item: none will ever have that sequence.
    fn default() -> KeyNote {
        KeyNote { place: AtomicU64::new(0), sequence: AtomicU64::new(u64::MAX) }
    }
}

impl KeyNote {
    #[inline]
    pub(super) fn set(&self, key: Key) {
        self.place.store(u64::from(key.queue) << 32 | u64::from(key.slot), Ordering::Relaxed);
        self.sequence.store(key.sequence, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> Key {
        let place = self.place.load(Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        Key { slot: place as u32, queue: (place >> 32) as u32, sequence }
    }
}
