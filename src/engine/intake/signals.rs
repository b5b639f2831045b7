//! What the lanes of an intake share with their reader.

use crossbeam_utils::CachePadded;

use crate::executor::backpressure::Backpressure;
use crate::observe::stats::Counter;
use crate::platform::sync::{AtomicBool, AtomicU64, InOrder};

/// What all lanes share with their reader: the ready list, and numbers that tell how far behind it is.
///
/// The numbers and hints only decide whether a thread sleeps or wakes, so all accesses to them are Relaxed.
pub(super) struct Signals {
    /// The link to the first lane of the ready list: the lane's number plus one, or 0 if the list is empty.
    pub(super) ready: CachePadded<AtomicU64>,
    /// How many blocks the writers have filled, all together.
    pub(super) filled: CachePadded<AtomicU64>,
    /// How many blocks the reader has emptied, and how often it has looked: while it looks, it does not stand still.
    /// Both are written by the reader alone.
    pub(super) emptied: Counter,
    pub(super) looks: Counter,
    /// What the reader's last look has left has waited for long.
    pub(super) is_late: AtomicBool,
    /// A thread has cancelled many tasks since the engine looked.
    pub(super) many_cancelled: AtomicBool,
    pub(super) pressure: Backpressure,
    /// The deadline of some task was moved.
    pub(super) has_resets: AtomicBool,
}

impl Signals {
    /// Returns true if there are lanes on the ready list.
    pub(super) fn has_ready(&self) -> bool {
        // `SeqCst`, because it is also the sleeper's last look (WAKE-1).
        self.ready.load_in_order() != 0
    }
}
