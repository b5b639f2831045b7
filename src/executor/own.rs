//! Executors of [`Scheduler::with_executor`](crate::Scheduler::with_executor).
//!
//! A task with an executor of its own keeps it alive, in its body. The tick thread, which must not
//! touch the body of a task that may be cancelled under its hands, finds the executor by a number
//! that the task's word carries. The number of an executor that is gone is used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Executor;
use crate::executor::backpressure::Backlog;

/// An executor other than the scheduler's: it lives for as long as a handle or a task needs it.
pub(crate) struct OwnExecutor {
    executor: Box<dyn Executor>,
    number: u32,
    directory: Arc<OwnExecutors>,
    backlog: Arc<Backlog>,
}

impl OwnExecutor {
    /// Under which the tick thread finds it; never 0, which stands for the scheduler's.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What is handed over to it and not started.
    pub(crate) fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    pub(crate) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }
}

impl Drop for OwnExecutor {
    fn drop(&mut self) {
        self.directory.lock().free.push(self.number);
    }
}

/// All executors of one scheduler's tasks, by number.
#[derive(Default)]
pub(crate) struct OwnExecutors {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Number 1 is at place 0.
    places: Vec<Weak<OwnExecutor>>,
    free: Vec<u32>,
}

impl Table {
    fn next_number(&mut self, numbers: u32) -> Option<u32> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        let fresh = u32::try_from(self.places.len()).ok()? + 1;
        if fresh >= numbers {
            return None;
        }
        self.places.push(Weak::new());
        Some(fresh)
    }
}

impl OwnExecutors {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an executor a number. `None` when all of the `numbers` are taken.
    pub(crate) fn add(
        self: &Arc<Self>,
        executor: Box<dyn Executor>,
        numbers: u32,
        most_overdue: u64,
    ) -> Option<Arc<OwnExecutor>> {
        let mut table = self.lock();
        let number = table.next_number(numbers)?;
        let directory = Arc::clone(self);
        let backlog = Arc::new(Backlog::new(most_overdue));
        let own = Arc::new(OwnExecutor { executor, number, directory, backlog });
        table.places[number as usize - 1] = Arc::downgrade(&own);
        Some(own)
    }

    /// The executor of a number that a pending task's word carries; `None` when the task has
    /// been cancelled since, and its executor with it.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<OwnExecutor>> {
        self.lock().places.get(number as usize - 1)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Inline;

    #[test]
    fn a_number_is_used_again_when_its_executor_is_gone() {
        let all = Arc::new(OwnExecutors::default());
        let add = || all.add(Box::new(Inline), 3, 1);
        let (first, second) = (add().expect("room"), add().expect("room"));
        assert_eq!((first.number(), second.number()), (1, 2));
        assert!(add().is_none(), "0 is not given out, and 3 is too many");
        drop(first);
        assert!(all.find(1).is_none());
        assert_eq!(add().map(|own| own.number()), Some(1));
        assert!(all.find(2).is_some());
    }
}
