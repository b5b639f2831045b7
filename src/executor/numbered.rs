//! Executors as the tick thread knows them: that of the scheduler, and those that
//! [`Scheduler::with_executor`](crate::Scheduler::with_executor) was given.
//!
//! An executor from `with_executor` lives as long as a handle uses it, or a task is to run on it. The tick thread must not
//! touch the body of a task that may be cancelled at the same time. So it finds the executor by a number, which the task's
//! word carries. The number of an executor that is gone is used again. The scheduler's executor has the number 0, and
//! belongs to the engine.

use std::sync::{Arc, Mutex, Weak};

use super::Executor;
use crate::backpressure::Backlog;
use crate::platform::sync::lock_std;

/// The executor of a scheduler, or of some of its tasks.
pub(crate) struct NumberedExecutor {
    pub(crate) executor: Box<dyn Executor>,
    /// The number by which the tick thread finds it: 0 for the scheduler's executor.
    pub(crate) number: u32,
    /// Where its number comes from. `None` for the scheduler's executor.
    table: Option<Arc<ExecutorTable>>,
    /// The count of tasks that were handed over to it and are not done.
    pub(crate) backlog: Arc<Backlog>,
}

impl NumberedExecutor {
    /// Makes the executor of a scheduler, with the count of what it has not done.
    pub(crate) fn of_scheduler(executor: Box<dyn Executor>, backlog: Arc<Backlog>) -> Arc<Self> {
        Arc::new(NumberedExecutor { executor, number: 0, table: None, backlog })
    }
}

impl Drop for NumberedExecutor {
    fn drop(&mut self) {
        // No live task has the number any more, because each task keeps its executor alive.
        self.table.iter().for_each(|table| lock_std(&table.0).free.push(self.number));
    }
}

/// The [`NumberedExecutor`]s of one scheduler, by number.
#[derive(Default)]
pub(crate) struct ExecutorTable(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    /// The executor with number 1 is at index 0.
    executors: Vec<Weak<NumberedExecutor>>,
    free: Vec<u32>,
}

impl ExecutorTable {
    /// Gives an executor a number below `numbers`. Returns `None` if all of them are taken. Producers are held back
    /// once more than `most_overdue` of its tasks are due and not done.
    pub(crate) fn add(
        self: &Arc<Self>,
        executor: Box<dyn Executor>,
        numbers: u32,
        most_overdue: u64,
    ) -> Option<Arc<NumberedExecutor>> {
        let mut table = lock_std(&self.0);
        // Numbers have to fit into the word of a task, so those that are free come first.
        let number = match table.free.pop() {
            Some(free) => free,
            None => u32::try_from(table.executors.len() + 1).ok().filter(|next| *next < numbers)?,
        };
        let backlog = Arc::new(Backlog::new(most_overdue));
        let own = NumberedExecutor { executor, number, table: Some(Arc::clone(self)), backlog };
        let own = Arc::new(own);
        let room = table.executors.len().max(number as usize);
        table.executors.resize(room, Weak::new());
        table.executors[number as usize - 1] = Arc::downgrade(&own);
        Some(own)
    }

    /// Returns the executor with this number. Returns `None` if it is gone: then the task whose word carried the number
    /// has been cancelled.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<NumberedExecutor>> {
        // The table holds no executor, so it is dropped with the last handle or task that uses it.
        lock_std(&self.0).executors.get(number as usize - 1)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Inline;

    #[test]
    fn a_number_is_used_again_when_its_executor_is_gone() {
        let all = Arc::new(ExecutorTable::default());
        let add = || all.add(Box::new(Inline), 3, 1);
        let (first, second) = (add().expect("room"), add().expect("room"));
        assert_eq!((first.number, second.number), (1, 2));
        assert!(add().is_none(), "0 is not given out, and 3 is too many");
        drop(first);
        assert!(all.find(1).is_none());
        assert_eq!(add().map(|own| own.number), Some(1));
        assert!(all.find(2).is_some());
    }
}
