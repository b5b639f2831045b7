//! The loop's own queues: the tasks that wait, and what the loop's thread knows of the quit and of its sleep. Only that
//! thread uses them, without a lock. While another part of the program runs, nothing here is borrowed (INBOX-4).
//!
//! - LOOP-1 Immediate tasks run in the order of their numbers. A task that must not run nested, and whose turn comes in
//!   a nested run, is deferred. The outermost run takes deferred tasks first, so such tasks keep their order too.
//! - LOOP-2 Delayed tasks are a heap by deadline, and at equal deadlines by the number that they were given when they
//!   were posted.
//! - LOOP-3 The overdue tasks are counted so rarely that the count costs each task that comes or goes one step. In
//!   between, those that leave are subtracted.
//! - LOOP-4 The run of a series has its turn from the moment when it became possible: when it was planned for, or when
//!   the run before it ended, whichever is later. By its plan alone, a series that lags behind would always be the
//!   first, and nothing else would ever run. The plan itself, and so the phase, does not change.

use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::QueuedTask;
use super::inbox::{LoopState, Shared};
use super::run_loop::Quit;
use crate::pool::job::{Next, Owner, Place};

pub(super) struct LoopQueue {
    shared: Arc<Shared>,
    queues: RefCell<Queues>,
    /// As the inbox said when it was last drained.
    quit: Cell<Quit>,
    /// `Asleep` until the loop is called again, and else `Awake`.
    state: Cell<LoopState>,
    /// The last reading of the clock. A task that was due then is due, without a further reading.
    last_reading: Cell<Instant>,
    /// How many delayed tasks are overdue, and how many come or go before they are counted again (LOOP-3).
    overdue: Cell<usize>,
    until_count: Cell<usize>,
}

/// How many delayed tasks come or go, at least, before the overdue ones are counted again (LOOP-3).
const COUNT_EVERY: usize = 1024;

impl LoopQueue {
    pub(super) fn new(shared: Arc<Shared>) -> LoopQueue {
        let last_reading = Cell::new(shared.now());
        let (queues, quit, state) =
            (RefCell::default(), Cell::default(), Cell::new(LoopState::Awake));
        let (overdue, until_count) = (Cell::new(0), Cell::new(COUNT_EVERY));
        LoopQueue { shared, queues, quit, state, last_reading, overdue, until_count }
    }

    pub(super) fn quit(&self) -> Quit {
        self.quit.get()
    }

    // ----- what comes in -------------------------------------------------------------------

    /// Takes over what has come in. Returns true if there is an immediate task.
    pub(super) fn drain_inbox(&self) -> bool {
        loop {
            let mut queues = self.queues.borrow_mut();
            queues.give_back();
            let Queues { immediate, arrived, .. } = &mut *queues;
            let received = self.shared.drain(immediate, arrived, self.overdue.get());
            self.state.set(LoopState::Awake);
            self.quit.set(received.quit);
            let came = queues.file_arrived();
            if received.wants_sweep {
                self.sweep(&mut queues);
            }
            let has_immediate = !queues.immediate.is_empty();
            drop(queues);
            self.count_overdue(came);
            if received.to_drop.is_empty() {
                return has_immediate;
            }
            // The destructors may post something, so drain again.
            received.to_drop.into_iter().for_each(|value| _ = self.shared.catch(|| drop(value)));
        }
    }

    fn sweep(&self, queues: &mut Queues) {
        let removed = queues.sweep();
        self.shared.was_swept(removed, queues.len());
    }

    /// Counts the overdue tasks if enough delayed tasks have come or gone, `moved` of them now (LOOP-3).
    fn count_overdue(&self, moved: usize) {
        let left = self.until_count.get().saturating_sub(moved);
        self.until_count.set(left);
        if left == 0 {
            self.until_count.set(COUNT_EVERY);
            let Some(now) = self.shared.catch(|| self.shared.now()) else { return };
            let overdue = self.queues.borrow().overdue(now);
            self.until_count.set(COUNT_EVERY + overdue);
            self.overdue.set(overdue);
        }
    }

    // ----- the next task -------------------------------------------------------------------

    /// Returns the next immediate task that may start in a run of that kind.
    #[inline] // a call for each task costs a fifth of a post
    pub(super) fn next_immediate(&self, is_nested: bool) -> Option<QueuedTask> {
        loop {
            let task = self.queues.borrow_mut().pop_immediate(is_nested);
            if task.is_some() || !self.drain_inbox() {
                return task;
            }
        }
    }

    /// Returns the next delayed task that may start now in a run of that kind.
    #[inline] // see `next_immediate`
    pub(super) fn next_delayed(&self, is_nested: bool) -> Option<QueuedTask> {
        while self.has_delayed() {
            let task = self.queues.borrow_mut().delayed.pop()?;
            self.overdue.set(self.overdue.get().saturating_sub(1));
            self.count_overdue(1);
            if task.nests || !is_nested {
                return Some(task);
            }
            self.queues.borrow_mut().deferred.push_back(task);
        }
        None
    }

    /// Returns true if a task may start now in a run of that kind.
    pub(super) fn has_work(&self, is_nested: bool) -> bool {
        self.queues.borrow().has_immediate(is_nested) || self.has_delayed()
    }

    /// Returns true if a task waits for the outermost run.
    pub(super) fn has_deferred(&self) -> bool {
        !self.queues.borrow().deferred.is_empty()
    }

    /// Returns true if the first of the delayed tasks may start now.
    fn has_delayed(&self) -> bool {
        let first = || self.queues.borrow().next_deadline();
        let is_due = |deadline| deadline <= self.last_reading.get();
        if first().is_some_and(|deadline| !is_due(deadline)) && self.quit.get().takes_posts() {
            self.last_reading.set(self.shared.now());
        }
        // Another task may be the first one by now, because the clock is a user's, and may run the loop.
        first().is_some_and(|deadline| self.quit.get().lets_start(deadline, || is_due(deadline)))
    }

    /// Files a task that has come out, under a deadline. Called with the job's lock held.
    fn file(&self, task: &QueuedTask, deadline: Instant, sequence: u64) {
        let (job, nests) = (Arc::clone(&task.job), task.nests);
        let again = QueuedTask { job, deadline: Some(deadline), sequence, nests };
        again.note(self.shared.epoch());
        self.queues.borrow_mut().delayed.push(again);
    }

    // ----- sleep and quit ------------------------------------------------------------------

    /// Puts the loop to sleep until its next deadline, or returns false if something has come (INBOX-1).
    pub(super) fn go_to_sleep(&self) -> bool {
        let mut queues = self.queues.borrow_mut();
        self.shared.removed_cancelled(queues.trim_delayed());
        if self.shared.has_too_many_cancelled(queues.len()) {
            self.sweep(&mut queues);
        }
        let until = queues.next_deadline();
        drop(queues);
        let sleeps = self.shared.go_to_sleep(until);
        if sleeps {
            self.state.set(LoopState::Asleep(until));
        }
        self.check_invariants();
        sleeps
    }

    /// Notes that the loop is called again.
    pub(super) fn wake_up(&self) {
        if self.state.replace(LoopState::Awake) != LoopState::Awake {
            self.shared.set_state(LoopState::Awake);
        }
    }

    /// Returns the first deadline. For a loop that sleeps it is the time that the inbox was told, even if the task of
    /// that time has been cancelled since, because the pump must not wait longer than posters assume (INBOX-1).
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.state.get() {
            LoopState::Asleep(until) => until,
            _ => self.queues.borrow().next_deadline(),
        }
    }

    /// Ends a loop that was told to quit and has nothing left to do. Returns false if something has come in.
    pub(super) fn quit_if_empty(&self) -> bool {
        let has_ended = self.shared.quit_if_empty();
        if has_ended {
            self.quit.set(Quit::Now);
        }
        has_ended
    }

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        self.shared.quit(Quit::Now);
        loop {
            self.drain_inbox();
            let pending = self.queues.borrow_mut().take_all();
            pending.into_iter().for_each(|task| task.job.withdraw());
            if self.shared.leave_if_empty() {
                return;
            }
        }
    }

    /// Checks the queues and the inbox in a debug build, at a cost that does not grow with the number of tasks.
    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.queues.borrow().check_invariants();
            self.shared.check_invariants(self.state.get(), self.quit.get());
        }
    }
}

/// What the queues do with a task that has come out, when it starts and when it is due again.
pub(super) struct OutOfQueue<'a> {
    pub(super) queue: &'a LoopQueue,
    pub(super) task: &'a QueuedTask,
    /// The loop is gone, so a series does not run again.
    pub(super) is_closed: &'a Cell<bool>,
}

impl Place for OutOfQueue<'_> {
    fn is_due(&mut self) -> bool {
        if self.task.is_void() {
            self.queue.shared.removed_cancelled(1); // LOOP-5
            return false;
        }
        let moved = self.task.job.position().moved_past(self.queue.shared.epoch());
        let Some((deadline, turn)) = moved else { return true };
        // Even if it is due by now, because others may be due before it.
        self.queue.file(self.task, deadline, turn);
        false
    }

    /// Queues the next run of a series, whose run has just ended (LOOP-4).
    fn put_back(&mut self, Next { due, ended }: Next) {
        if self.is_closed.get() {
            return;
        }
        let mut due = due.max(ended);
        // On a clock that stands still, or has long steps, a series that is behind would be due at the call of
        // `quit_safely` again and again.
        if due == ended && !self.queue.shared.takes_posts() {
            due = due.checked_add(Duration::from_nanos(1)).unwrap_or(due);
        }
        self.queue.file(self.task, due, self.queue.shared.next_sequence());
    }
}

// ----- the tasks that wait ----------------------------------------------------------------

/// Memory for this many tasks is never given back.
pub(super) const SMALL: usize = 1024;

/// Returns true if a table of this length and capacity should shrink. The tasks that have left have paid for that.
pub(super) fn has_room_to_spare(len: usize, capacity: usize) -> bool {
    capacity > SMALL && len < capacity / 8
}

#[derive(Default)]
struct Queues {
    /// The tasks that have their turns next.
    immediate: VecDeque<QueuedTask>,
    /// Delayed tasks that have just come in, on their way to the heap.
    arrived: Vec<QueuedTask>,
    delayed: BinaryHeap<QueuedTask>,
    /// Tasks that wait for the outermost run (LOOP-1).
    deferred: VecDeque<QueuedTask>,
}

impl Queues {
    fn len(&self) -> usize {
        self.immediate.len() + self.arrived.len() + self.delayed.len() + self.deferred.len()
    }

    /// Pops the first immediate task. A nested run defers the tasks that must not run in it (LOOP-1).
    fn pop_immediate(&mut self, is_nested: bool) -> Option<QueuedTask> {
        if !is_nested && !self.deferred.is_empty() {
            return self.deferred.pop_front();
        }
        while let Some(task) = self.immediate.pop_front() {
            if task.nests || !is_nested {
                return Some(task);
            }
            self.deferred.push_back(task);
        }
        None
    }

    /// Returns true if a run of that kind has an immediate task to run.
    fn has_immediate(&self, is_nested: bool) -> bool {
        !self.immediate.is_empty() || (!is_nested && !self.deferred.is_empty())
    }

    /// Moves the delayed tasks that have come in to the heap. Returns how many.
    fn file_arrived(&mut self) -> usize {
        let came = self.arrived.len();
        self.delayed.extend(self.arrived.drain(..));
        self.arrived.shrink_to(SMALL); // the inbox gets this table next
        came
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.delayed.peek()?.deadline
    }

    /// Counts the overdue tasks. No task below one that is not overdue is overdue.
    fn overdue(&self, now: Instant) -> usize {
        fn below(heap: &[QueuedTask], at: usize, now: Instant) -> usize {
            match heap.get(at).and_then(|task| task.deadline) {
                Some(deadline) if deadline <= now => {
                    1 + below(heap, 2 * at + 1, now) + below(heap, 2 * at + 2, now)
                }
                _ => 0,
            }
        }
        below(self.delayed.as_slice(), 0, now)
    }

    /// Removes the void entries at the top of the heap. Returns how many.
    fn trim_delayed(&mut self) -> usize {
        let before = self.delayed.len();
        while self.delayed.peek().is_some_and(QueuedTask::is_void) {
            self.delayed.pop();
        }
        before - self.delayed.len()
    }

    /// Removes all void entries, and gives back the memory that this leaves. Returns how many.
    fn sweep(&mut self) -> usize {
        let before = self.len();
        let waits = |task: &QueuedTask| !task.is_void();
        self.immediate.retain(waits);
        self.deferred.retain(waits);
        self.delayed.retain(waits);
        self.immediate.shrink_to(2 * self.immediate.len() + SMALL);
        self.delayed.shrink_to(2 * self.delayed.len() + SMALL);
        before - self.len()
    }

    /// Gives back the memory that a peak has left.
    fn give_back(&mut self) {
        if self.immediate.is_empty() && self.immediate.capacity() > SMALL {
            self.immediate = VecDeque::new();
        }
        if has_room_to_spare(self.delayed.len(), self.delayed.capacity()) {
            self.delayed.shrink_to(2 * self.delayed.len());
        }
        if has_room_to_spare(self.deferred.len(), self.deferred.capacity()) {
            self.deferred.shrink_to(2 * self.deferred.len());
        }
    }

    /// Takes all tasks, in the order in which they would run: the immediate ones, then by deadline.
    fn take_all(&mut self) -> Vec<QueuedTask> {
        self.file_arrived();
        let delayed = std::mem::take(&mut self.delayed).into_sorted_vec();
        let mut all = Vec::with_capacity(self.len() + delayed.len());
        all.extend(std::mem::take(&mut self.deferred));
        all.extend(std::mem::take(&mut self.immediate));
        all.extend(delayed.into_iter().rev());
        all
    }

    /// Checks the first tasks of each queue.
    fn check_invariants(&self) {
        assert!(self.arrived.is_empty(), "a task was not filed");
        let (immediate, heap) = (self.immediate.iter().take(16), self.delayed.as_slice());
        assert!(immediate.clone().all(|task| task.deadline.is_none()));
        assert!(immediate.is_sorted_by_key(|task| task.sequence), "out of order (LOOP-1)");
        assert!(
            self.deferred.iter().take(16).all(|task| !task.nests),
            "deferred for nothing (LOOP-1)"
        );
        for (at, task) in heap.iter().enumerate().take(16) {
            assert!(
                task.deadline.is_some() && *task <= heap[at.saturating_sub(1) / 2],
                "no heap (LOOP-2)"
            );
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::pool::job::{Epoch, Job, Once};

    fn task(sequence: u64, deadline: Option<Instant>, nests: bool) -> QueuedTask {
        let job = Job::new(Weak::new(), Once(|| ()));
        let task = QueuedTask { job, deadline, sequence, nests };
        task.note(Epoch(Instant::now()));
        task
    }

    #[test]
    fn delayed_tasks_come_by_deadline_and_then_in_the_order_of_posting() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        for (sequence, seconds) in [(1, 3), (2, 1), (3, 3), (4, 2), (5, 1)] {
            queues.arrived.push(task(sequence, Some(start + Duration::from_secs(seconds)), true));
        }
        queues.file_arrived();
        assert_eq!(queues.next_deadline(), Some(start + Duration::from_secs(1)));
        let order: Vec<u64> =
            std::iter::from_fn(|| queues.delayed.pop()).map(|t| t.sequence).collect();
        assert_eq!(order, [2, 5, 4, 1, 3]);
    }

    #[test]
    fn overdue_tasks_are_counted_and_no_others() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for sequence in 0..1_000 {
            queues.delayed.push(task(sequence, Some(at(sequence * 7 % 1_000)), true));
        }
        for seconds in [0, 1, 10, 499, 998, 999, 5_000] {
            let expected = usize::try_from(seconds + 1).expect("small").min(1_000);
            assert_eq!(queues.overdue(at(seconds)), expected);
        }
        assert_eq!(Queues::default().overdue(start), 0);
    }

    #[test]
    fn a_task_that_does_not_nest_is_deferred_and_comes_first_afterwards() {
        let mut queues = Queues::default();
        for (sequence, nests) in [(1, false), (2, true), (3, false), (4, true)] {
            queues.immediate.push_back(task(sequence, None, nests));
        }
        let mut pop = |is_nested| queues.pop_immediate(is_nested).map(|task| task.sequence);
        assert_eq!(
            [pop(true), pop(false), pop(true), pop(true)],
            [Some(2), Some(1), Some(4), None]
        );
        assert!(queues.has_immediate(false) && !queues.has_immediate(true));
        assert_eq!(queues.take_all().len(), 1);
    }

    #[test]
    fn a_sweep_removes_cancelled_tasks_and_nothing_else() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        for sequence in 1..10_001 {
            let pending = task(sequence, Some(start + Duration::from_nanos(sequence)), true);
            if sequence % 5 != 1 {
                pending.job.cancel();
                pending.job.position().end(); // as the loop does, which these jobs do not have
            }
            queues.delayed.push(pending);
        }
        assert_eq!(queues.sweep(), 8_000);
        assert!(queues.delayed.capacity() <= 2 * 2_000 + SMALL);
        assert!(queues.take_all().iter().map(|task| task.sequence).eq((1..10_001).step_by(5)));
    }
}
