//! A task that waits for its turn, and the list of those that have come out of the inbox: plain data of the loop's thread.
//!
//! Immediate tasks run in the order in which they came into the inbox. A task that must not run nested, and whose turn
//! comes in a nested run, is deferred. The outermost run takes deferred tasks first, so such tasks keep their order too.

use std::collections::VecDeque;
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

/// Memory for this many tasks is never given back.
pub(super) const SMALL: usize = 1024;

#[derive(Default)]
pub(super) struct Tasks {
    /// The tasks that have their turns next.
    pub(super) immediate: VecDeque<QueuedTask>,
    /// Tasks that wait for the outermost run.
    pub(super) deferred: VecDeque<QueuedTask>,
}

impl Tasks {
    /// Pops the first task. A nested run defers the tasks that must not run in it.
    pub(super) fn pop(&mut self, is_nested: bool) -> Option<QueuedTask> {
        if !is_nested && !self.deferred.is_empty() {
            let first = self.deferred.pop_front();
            if self.deferred.is_empty() {
                self.deferred.shrink_to(SMALL); // after a peak
            }
            return first;
        }
        while let Some(task) = self.immediate.pop_front() {
            if task.nests || !is_nested {
                return Some(task);
            }
            self.defer(task);
        }
        None
    }

    /// Returns true if a task is here that may start in a run of that kind.
    pub(super) fn has_next(&self, is_nested: bool) -> bool {
        !self.immediate.is_empty() || !is_nested && !self.deferred.is_empty()
    }

    pub(super) fn defer(&mut self, task: QueuedTask) {
        // Cancelled tasks go before the table grows, so its size is in proportion to those that wait.
        if self.deferred.len() == self.deferred.capacity() {
            self.deferred.retain(|task| !task.has_ended());
            self.deferred.reserve(self.deferred.len() + 1);
        }
        self.deferred.push_back(task);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::job::{Job, Once};

    fn task(nests: bool) -> QueuedTask {
        let task = QueuedTask { job: Job::new(Weak::new(), Once::new(|| ())), nests };
        task.job.position().set(QueuedTask::AT_ONCE);
        task
    }

    #[test]
    fn a_task_that_does_not_nest_is_deferred_and_comes_first_afterwards() {
        let mut tasks = Tasks::default();
        let posted = [false, true, false, true].map(task);
        let jobs = posted.each_ref().map(|task| Arc::clone(&task.job));
        tasks.immediate.extend(posted);
        let number = |task: QueuedTask| jobs.iter().position(|job| Arc::ptr_eq(job, &task.job));
        let mut pop = |is_nested| tasks.pop(is_nested).and_then(number);
        assert_eq!(
            [pop(true), pop(false), pop(true), pop(true), pop(false)],
            [Some(1), Some(0), Some(3), None, Some(2)]
        );
    }

    #[test]
    fn cancelled_tasks_do_not_let_the_deferred_ones_grow() {
        let mut tasks = Tasks::default();
        for number in 0..10_000 {
            let pending = task(false);
            if number % 100 > 0 {
                pending.job.position().set(Position::Gone); // as a cancel does, on a loop
            }
            tasks.defer(pending);
        }
        let waiting = tasks.deferred.iter().filter(|task| !task.has_ended());
        assert_eq!(waiting.count(), 100);
        assert!(tasks.deferred.capacity() <= 512);
    }
}
