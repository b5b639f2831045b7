//! A task that waits for the loop.

use std::sync::Arc;

use super::inbox::Shared;
use crate::job::{Position, Run};

/// A task that waits for its turn, or for its time. Its position changes under the lock of the inbox.
#[derive(Clone)]
pub(super) struct QueuedTask {
    pub(super) job: Arc<dyn Run<Shared>>,
    /// A nested run may run it.
    pub(super) nests: bool,
}

impl QueuedTask {
    /// The task is among the immediate ones, or has come out of its queue for its run.
    pub(super) const AT_ONCE: Position = Position::Queued(0);

    /// Returns true if the job has ended. An immediate task may still be in its queue.
    pub(super) fn has_ended(&self) -> bool {
        self.job.position().get() == Position::Gone
    }
}
