//! What all seats of an intake share with its reader: the **ready list**, and the count of blocks.
//!
//! ```text
//!   head --> seat 1 --> seat 0       pushed by producers, taken as a whole by the reader
//! ```
//!
//! The invariants are in [`intake`](super): INTAKE-2 and INTAKE-5 for the list. Of the counts nothing depends but who
//! sleeps and who wakes, so they are Relaxed.

use crossbeam_utils::CachePadded;

use super::seat::Seat;
use crate::executor::backpressure::{Backpressure, Flow};
use crate::platform::sync::{AtomicBool, AtomicU64, ExchangeInOrder, InOrder, Ordering};

/// How many filled blocks the reader may be behind its producers: half a million records, which take 13 MB and
/// some twenty milliseconds of the tick thread.
const BLOCKS_AHEAD: u64 = 2048;

/// After so many blocks (16,384 records) a producer wakes the tick thread even if nothing is due soon. What lies in the
/// lanes, of which most may be cancelled by then, stays bounded by that.
pub(super) const BLOCKS_ASLEEP: u64 = 128;

/// See the top of the file.
pub(crate) struct Gate {
    /// The number of the first seat on the ready list, plus one; 0 when it is empty.
    head: CachePadded<AtomicU64>,
    /// Blocks that producers have filled, all together.
    filled: CachePadded<AtomicU64>,
    /// Blocks that the reader has emptied. Written by the reader alone, as the next one.
    emptied: AtomicU64,
    /// How often it has looked. While it looks, it does not stand still.
    pub(super) looks: AtomicU64,
    /// What its last look has left has waited for long.
    pub(super) is_late: AtomicBool,
    pub(super) pressure: Backpressure,
    /// A thread has cancelled many tasks since the engine looked.
    pub(super) many_cancelled: AtomicBool,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            head: CachePadded::new(AtomicU64::new(0)),
            filled: CachePadded::new(AtomicU64::new(0)),
            emptied: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            is_late: AtomicBool::new(false),
            pressure: Backpressure::new(BLOCKS_AHEAD),
            many_cancelled: AtomicBool::new(false),
        }
    }

    /// Puts a seat on the ready list; INTAKE-5.
    ///
    /// The exchange is Release, for the seat's `listed` and `next`, and `SeqCst` for INTAKE-2. A later push continues
    /// the release sequence of an earlier one, so the reader's swap acquires all of them.
    #[cold]
    pub(super) fn push(&self, seat: &Seat) {
        let mut head = self.head.load(Ordering::Relaxed); // the exchange tells if it is another by now
        loop {
            seat.next.store(head, Ordering::Relaxed);
            match self.head.exchange_in_order(head, seat.number as u64 + 1) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.load_in_order() == 0
    }

    /// Takes the whole ready list: its first seat. Acquire: pairs with `push`.
    pub(super) fn take_all(&self) -> Option<usize> {
        seat_at(self.head.swap(0, Ordering::Acquire))
    }

    /// Counts a block that a producer has filled; how many there are now. Relaxed, as the count below: they
    /// only decide who waits or wakes.
    pub(crate) fn block_filled(&self) -> u64 {
        self.filled.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn block_emptied(&self) {
        let emptied = self.emptied.load(Ordering::Relaxed) + 1;
        self.emptied.store(emptied, Ordering::Relaxed);
    }

    pub(super) fn flow(&self) -> Flow {
        let emptied = self.emptied.load(Ordering::Relaxed);
        let mut ahead = self.filled.load(Ordering::Relaxed).saturating_sub(emptied);
        if ahead > BLOCKS_ASLEEP && self.is_late.load(Ordering::Relaxed) {
            ahead = ahead.max(BLOCKS_AHEAD + 1);
        }
        Flow { ahead, passed: self.looks.load(Ordering::Relaxed) }
    }
}

/// The seat that a link of the ready list names.
pub(super) fn seat_at(link: u64) -> Option<usize> {
    Some(link.checked_sub(1)? as usize)
}
