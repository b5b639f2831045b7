//! What the loop's thread alone has of the loop's tasks, without a lock: the immediate tasks that have come out of the
//! inbox, and what the inbox said when they did. While another part of the program runs, nothing here is borrowed
//! (INBOX-4).
//!
//! Immediate tasks run in the order in which they came into the inbox. A task that must not run nested, and whose turn
//! comes in a nested run, is deferred. The outermost run takes deferred tasks first, so such tasks keep their order too.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::entry::QueuedTask;
use super::inbox::{Drained, Shared};
use super::run_loop::Quit;
use crate::job::Owner;

pub(super) struct LoopQueue {
    shared: Arc<Shared>,
    tasks: RefCell<Tasks>,
    /// As the inbox said when it was last drained.
    pub(super) quit: Cell<Quit>,
    /// When the first delayed task is due, or earlier if that one has been cancelled or moved. For a loop that sleeps it is
    /// the time that the inbox was told, because the pump must not wait longer than posters assume (INBOX-1).
    pub(super) first: Cell<Option<Instant>>,
    /// The loop has gone to sleep, and has not been called since.
    pub(super) is_asleep: Cell<bool>,
    /// The idle handlers have run in this idle phase.
    pub(super) has_idled: Cell<bool>,
}

impl LoopQueue {
    pub(super) fn new(shared: Arc<Shared>) -> LoopQueue {
        let (tasks, quit, first) = (RefCell::default(), Cell::default(), Cell::default());
        let (is_asleep, has_idled) = (Cell::default(), Cell::default());
        LoopQueue { shared, tasks, quit, first, is_asleep, has_idled }
    }

    // ----- what comes in -------------------------------------------------------------------

    /// Takes over what has come in. Returns true if there is an immediate task.
    pub(super) fn drain_inbox(&self) -> bool {
        loop {
            let mut tasks = self.tasks.borrow_mut();
            // Before the two tables are exchanged, or the memory of a peak would go back and forth between them.
            give_back(&mut tasks.immediate);
            let Drained { quit, first, is_woken, to_drop } =
                self.shared.drain(&mut tasks.immediate);
            let has_immediate = !tasks.immediate.is_empty();
            drop(tasks);
            self.is_asleep.set(false);
            self.quit.set(quit);
            self.first.set(first);
            if is_woken {
                self.has_idled.set(false);
            }
            if to_drop.is_empty() {
                return has_immediate;
            }
            // The destructors may post something, so drain again.
            to_drop.into_iter().for_each(|value| _ = self.shared.catch(|| drop(value)));
        }
    }

    // ----- the next task -------------------------------------------------------------------

    /// Returns the next immediate task that may start in a run of that kind.
    #[inline] // a call for each task costs a fifth of a post
    pub(super) fn next_immediate(&self, is_nested: bool) -> Option<QueuedTask> {
        loop {
            let task = self.tasks.borrow_mut().pop(is_nested);
            if task.is_some() || !self.drain_inbox() {
                return task;
            }
        }
    }

    /// Returns the next delayed task that may start now in a run of that kind.
    #[inline] // see `next_immediate`
    pub(super) fn next_delayed(&self, is_nested: bool) -> Option<QueuedTask> {
        while let Some(now) = self.delayed_is_due() {
            let (task, first) = self.shared.pop_delayed(now);
            self.first.set(first);
            // If there is none, the one that was the first has been cancelled or moved.
            let task = task?;
            if task.nests || !is_nested {
                return Some(task);
            }
            self.tasks.borrow_mut().defer(task);
        }
        None
    }

    /// Returns a reading of the clock if the first of the delayed tasks may start by then.
    fn delayed_is_due(&self) -> Option<Instant> {
        // Without delayed tasks the clock is not read.
        self.first.get()?;
        let now = self.shared.now();
        // Another task may be the first one by now, because the clock is a user's, and may run the loop.
        let (first, by) = (self.first.get()?, self.quit.get().starts_by(now)?);
        (first <= by).then_some(now)
    }

    /// Returns true if a task may start now in a run of that kind.
    pub(super) fn has_work(&self, is_nested: bool) -> bool {
        let tasks = self.tasks.borrow();
        let has_immediate = !tasks.immediate.is_empty() || !is_nested && !tasks.deferred.is_empty();
        drop(tasks); // before the clock is read
        has_immediate || self.delayed_is_due().is_some()
    }

    /// Returns true if a task waits for the outermost run.
    pub(super) fn has_deferred(&self) -> bool {
        !self.tasks.borrow().deferred.is_empty()
    }

    // ----- sleep and quit ------------------------------------------------------------------

    /// Puts the loop to sleep until its next deadline, or returns false if something has come (INBOX-1).
    pub(super) fn go_to_sleep(&self) -> bool {
        let (sleeps, first) = self.shared.go_to_sleep();
        self.first.set(first);
        self.is_asleep.set(sleeps);
        self.check_invariants();
        sleeps
    }

    /// Notes that the loop is called again.
    pub(super) fn wake_up(&self) {
        // Most calls find the loop awake, and take no lock.
        if self.is_asleep.replace(false) {
            self.shared.wake_up();
        }
    }

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        self.shared.quit(Quit::Now);
        loop {
            // In the order in which they would run. Their destructors may send values to be dropped here, hence the loop.
            self.drain_inbox();
            let Tasks { immediate, deferred } = std::mem::take(&mut *self.tasks.borrow_mut());
            deferred.into_iter().chain(immediate).for_each(|task| task.job.withdraw());
            let Some(pending) = self.shared.take_all() else { return };
            pending.into_iter().for_each(|task| task.job.withdraw());
        }
    }

    /// Checks the inbox in a debug build.
    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.shared.check_invariants(self.is_asleep.get(), self.quit.get());
        }
    }
}

// ----- the tasks that wait ----------------------------------------------------------------

/// Memory for this many tasks is never given back.
pub(super) const SMALL: usize = 1024;

/// Gives back the memory that a peak has left.
fn give_back(tasks: &mut VecDeque<QueuedTask>) {
    if tasks.is_empty() && tasks.capacity() > SMALL {
        *tasks = VecDeque::new();
    }
}

#[derive(Default)]
struct Tasks {
    /// The tasks that have their turns next.
    immediate: VecDeque<QueuedTask>,
    /// Tasks that wait for the outermost run.
    deferred: VecDeque<QueuedTask>,
}

impl Tasks {
    /// Pops the first task. A nested run defers the tasks that must not run in it.
    fn pop(&mut self, is_nested: bool) -> Option<QueuedTask> {
        if !is_nested && !self.deferred.is_empty() {
            let first = self.deferred.pop_front();
            give_back(&mut self.deferred);
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

    fn defer(&mut self, task: QueuedTask) {
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
    use crate::job::{Job, Once, Position};

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
