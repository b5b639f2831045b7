//! Where a worker's tasks live: what a [`Worker`](super::Worker) and its jobs ask of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::Run;
use super::place::Place;
use crate::{PanicHook, ScheduleError};

/// When a task is to be queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

pub(super) trait Home: Send + Sync {
    fn now(&self) -> Instant;

    /// Takes a job in, which waits. When it is refused nothing has become of it, unless it is the clock of a
    /// delay that refuses: then it is dropped.
    fn take_in(&self, job: Arc<dyn Run>, when: When) -> Result<(), ScheduleError>;

    /// A job has ended before its time: it lets it go, if it has it.
    fn forget(&self, place: &Place);

    /// A job that it runs does not wait any more.
    fn has_started(&self);

    /// Cancels what has not started, and takes nothing more.
    fn dispose(&self);

    fn is_disposed(&self) -> bool;

    /// How many jobs wait, for their time or for their turn.
    fn pending(&self) -> usize;

    /// Who is told of panics.
    fn hook(&self) -> &PanicHook;
}
