//! A task that waits for the loop, and what its job knows of where the task waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::inbox::Shared;
use crate::job::Run;
use crate::wheel::WheelKey;

/// A task that waits for its turn, or for its time.
#[derive(Clone)]
pub(super) struct QueuedTask {
    pub(super) job: Arc<dyn Run<Shared>>,
    /// A nested run may run it.
    pub(super) nests: bool,
}

/// Where a job waits: its key in the wheel of the [`Shared`], or one of the two keys below, which the wheel never gives.
///
/// It changes under the lock of the inbox. Relaxed suffices, because it is read under the same lock, or on the loop's
/// thread under the job's lock, which a reset holds as well. A sweep of the immediate tasks reads it under the lock of the
/// inbox.
pub(super) struct LoopPosition(AtomicU64);

impl LoopPosition {
    /// The task is among the immediate ones, or has come out of its queue for its run.
    pub(super) const AT_ONCE: WheelKey = WheelKey::NONE;

    /// A number that is not the key of a value either. The job has ended, and an immediate task may still be in its queue.
    const ENDED: u64 = u64::MAX - 1;

    pub(super) fn set(&self, key: WheelKey) {
        self.0.store(key.to_bits(), Relaxed);
    }

    pub(super) fn end(&self) {
        self.0.store(LoopPosition::ENDED, Relaxed);
    }

    pub(super) fn key(&self) -> WheelKey {
        WheelKey::from_bits(self.0.load(Relaxed))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.load(Relaxed) == LoopPosition::ENDED
    }
}

impl Default for LoopPosition {
    fn default() -> LoopPosition {
        LoopPosition(AtomicU64::new(LoopPosition::AT_ONCE.to_bits()))
    }
}
