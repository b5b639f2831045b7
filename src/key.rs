//! The name of a task inside the crate.

/// Names one task for ever: a slot, and which of the tasks that used it. A stale key matches
/// nothing (S10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
