//! Where a worker's tasks live: what a [`Worker`](super::Worker) and its jobs ask of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::place::Place;
use crate::ScheduleError;
use crate::job::{Owner, Run};

/// When a task is to be queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

/// A job as its home has it.
pub(super) type Entry = Arc<dyn Run<dyn Home>>;

pub(super) trait Home: Owner<Place = Place> {
    /// Takes a job in, which waits. When it is refused nothing has become of it, unless it is the clock of a
    /// delay that refuses: then it is dropped.
    ///
    /// `Ok(true)` says that too much is queued: the caller should [`hold_back`](Home::hold_back) those who
    /// bring it.
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError>;

    /// Holds the calling thread back for a while, so that what is queued has time to run.
    fn hold_back(&self) {}

    /// Cancels what has not started, and takes nothing more.
    fn dispose(&self);

    fn is_disposed(&self) -> bool;

    /// How many jobs wait, for their time or for their turn.
    fn pending(&self) -> usize;
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use super::*;
    use crate::job::{Job, Once};

    /// A test and not an assertion of the build: std's locks are larger on other systems.
    #[test]
    fn a_job_of_two_words_fits_into_a_cache_line() {
        assert!(
            size_of::<Job<Once<[usize; 2]>, dyn Home>>() <= 64,
            "with its counts it takes 80 bytes"
        );
    }
}
