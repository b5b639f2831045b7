//! An entry of the loop's queues: a task that waits, and what its job knows of the entry that is valid.
//!
//! - LOOP-5 A pending task has one valid entry in the queues, whose number its [`LoopPosition`] knows. The valid entry
//!   comes out no later than the deadline of the task. A later deadline is only noted: the entry comes out at its old
//!   time, and is filed again. For an earlier deadline a new entry goes through the inbox, and the old one becomes void.
//!   A void entry counts as cancelled, and a sweep removes it (INBOX-7).

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::inbox::Shared;
use crate::pool::job::{Due, Epoch, Run};

/// A task that waits for its turn, or for its time.
pub(super) struct QueuedTask {
    pub(super) job: Arc<dyn Run<Shared>>,
    /// `None` for an immediate task.
    pub(super) deadline: Option<Instant>,
    /// Its number in the order of posting.
    pub(super) sequence: u64,
    /// A nested run may run it.
    pub(super) nests: bool,
}

impl QueuedTask {
    /// Makes this the valid entry of its job (LOOP-5), before the loop's thread can find the entry.
    pub(super) fn note(&self, epoch: Epoch) {
        let position = self.job.position();
        let code = self.deadline.map_or(LoopPosition::AT_ONCE, |at| LoopPosition::code(at, epoch));
        position.deadline.store(code, Relaxed);
        position.filed.store(code, Relaxed);
        position.entry.store(self.sequence, Relaxed);
        if self.deadline.is_some() {
            position.job.get_or_init(|| (Arc::downgrade(&self.job), self.nests));
        }
    }

    /// Returns true if the job has ended, or has another entry by now (LOOP-5). It takes no lock.
    pub(super) fn is_void(&self) -> bool {
        self.job.position().entry.load(Relaxed) != self.sequence
    }
}

impl PartialEq for QueuedTask {
    fn eq(&self, other: &QueuedTask) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueuedTask {}

impl PartialOrd for QueuedTask {
    fn partial_cmp(&self, other: &QueuedTask) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedTask {
    /// Makes the first to run the greatest (LOOP-2), because that is the one that std's heap pops.
    fn cmp(&self, other: &QueuedTask) -> Ordering {
        (other.deadline, other.sequence).cmp(&(self.deadline, self.sequence))
    }
}

/// When a job of a loop is due, and which of its entries is valid (LOOP-5).
///
/// It changes before the job has a handle, with the job's lock held, or when the job has ended. Relaxed suffices because
/// of this lock. (A future has no such lock, and no deadline. If it ends while a wake posts it, its entry may count as
/// valid until its turn.) A sweep looks at `entry` without the lock, and may take a void entry for a valid one. Then the
/// next sweep finds the void entry. A sweep never takes a valid entry for a void one, because the number is stored before
/// the entry is added, under the lock of the inbox or on the loop's thread.
#[derive(Default)]
pub(super) struct LoopPosition {
    /// When the job is due, and when its valid entry comes out, which may be earlier: the numbers of the loop's [`Epoch`],
    /// and one more. [`AT_ONCE`](LoopPosition::AT_ONCE) for an immediate task.
    deadline: AtomicU64,
    filed: AtomicU64,
    /// The number of the valid entry, or [`NONE`](LoopPosition::NONE).
    entry: AtomicU64,
    /// The number of the last reset, by which the task has its turn at equal deadlines (S3).
    turn: AtomicU64,
    /// The job itself, for another entry, and whether it may run nested. Set with its first entry that has a deadline.
    job: OnceLock<(Weak<dyn Run<Shared>>, bool)>,
}

impl LoopPosition {
    const AT_ONCE: u64 = 0;
    /// No entry has this number.
    const NONE: u64 = 0;

    fn code(deadline: Instant, epoch: Epoch) -> u64 {
        epoch.number(deadline) + 1
    }

    pub(super) fn due(&self, epoch: Epoch) -> Due {
        match self.deadline.load(Relaxed) {
            LoopPosition::AT_ONCE => Due::Now,
            code => Due::At(epoch.instant(code - 1)),
        }
    }

    /// Returns the deadline of the job, and its turn there, if the deadline is later than that of its entry.
    pub(super) fn moved_past(&self, epoch: Epoch) -> Option<(Instant, u64)> {
        let deadline = self.deadline.load(Relaxed);
        let is_later = deadline > self.filed.load(Relaxed);
        is_later.then(|| (epoch.instant(deadline - 1), self.turn.load(Relaxed)))
    }

    /// Notes a deadline and the number of this reset, if the valid entry comes out before. Otherwise returns a new entry.
    pub(super) fn move_to(&self, deadline: Instant, epoch: Epoch, turn: u64) -> Option<QueuedTask> {
        let code = LoopPosition::code(deadline, epoch);
        if code > self.filed.load(Relaxed) {
            self.deadline.store(code, Relaxed);
            self.turn.store(turn, Relaxed);
            return None;
        }
        let (job, nests) = self.job.get()?;
        let (job, deadline) = (job.upgrade()?, Some(deadline));
        Some(QueuedTask { job, deadline, sequence: turn, nests: *nests })
    }

    /// Makes the valid entry void, because the job has ended.
    pub(super) fn end(&self) {
        self.entry.store(LoopPosition::NONE, Relaxed);
    }
}
