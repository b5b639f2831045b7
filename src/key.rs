//! The names of tasks and schedulers inside the crate.

use std::num::NonZeroU32;

/// Names one task for ever: a slot, and which of the tasks that used it. A stale key matches
/// nothing (S10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Names a scheduler among those that are alive. It is not zero, so that a handle has a value to
/// spare, and is a word shorter for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HubId(NonZeroU32);

impl HubId {
    pub(crate) const FIRST: HubId = HubId(NonZeroU32::MIN);

    /// The next one, and after the last the first again.
    pub(crate) fn next(self) -> HubId {
        self.0.checked_add(1).map_or(HubId::FIRST, HubId)
    }
}
