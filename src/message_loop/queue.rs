//! The loop's own list of what to do: the tasks that wait, the end that it has seen, and until when it rests. Only the
//! loop's thread uses it, without a lock.
//!
//! - LOOP-1 Immediate tasks run in the order of their numbers. A task that must not run nested, and whose turn comes in a
//!   nested run, is deferred. The outermost run takes deferred tasks first, so such tasks keep their order too.
//! - LOOP-2 Delayed tasks are a heap by deadline, and at equal deadlines by the number that they were given when they were
//!   posted.
//! - LOOP-3 Nothing is borrowed while a destructor or the clock is called: each may call the loop again.
//! - LOOP-4 While the loop rests, `next_deadline` is the time that it has told the inbox, even if the task of that time has
//!   been cancelled since. So the pump never waits longer than posters assume.
//! - LOOP-5 The overdue tasks are counted once in so many tasks that the count costs each of them one step. In between,
//!   those that leave are subtracted.
//! - LOOP-6 The run of a series has its turn from the moment when it became possible: when it was planned for, or when
//!   the run before it ended, whichever is later. By its plan alone, a series that lags behind would always be the
//!   first, and nothing else would ever run. The plan itself, and so the phase, does not change.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::end::End;
use super::inbox::Shared;
use crate::job::{Owner, Run};

pub(super) struct Agenda {
    shared: Arc<Shared>,
    queues: RefCell<Queues>,
    /// As the last look has found it.
    end: Cell<End>,
    /// The last reading of the clock. A task that was due then is due, without a further reading.
    recently: Cell<Instant>,
    /// Until when the loop rests, if it does; LOOP-4.
    rests: Cell<Option<Until>>,
    /// How many delayed tasks are overdue, and how many come or go before they are counted again; LOOP-5.
    overdue: Cell<usize>,
    until_count: Cell<usize>,
}

/// Every so many delayed tasks that come or go, those that are overdue are counted; LOOP-5.
const COUNT_EVERY: usize = 1024;

/// `None`: until something comes.
type Until = Option<Instant>;

impl Agenda {
    pub(super) fn new(shared: Arc<Shared>) -> Agenda {
        let recently = Cell::new(shared.now());
        let (queues, end, rests) = (RefCell::default(), Cell::default(), Cell::default());
        let (overdue, until_count) = (Cell::new(0), Cell::new(COUNT_EVERY));
        Agenda { shared, queues, end, recently, rests, overdue, until_count }
    }

    pub(super) fn end(&self) -> End {
        self.end.get()
    }

    // ----- what comes in -------------------------------------------------------------------

    /// Takes in what has come. True if there is something to run at once.
    pub(super) fn look(&self) -> bool {
        loop {
            let mut queues = self.queues.borrow_mut();
            queues.give_back();
            let Queues { immediate, arrived, .. } = &mut *queues;
            let look = self.shared.look(immediate, arrived, self.overdue.get());
            self.rests.set(None);
            let came = queues.admit();
            if look.wants_sweep {
                self.sweep(&mut queues);
            }
            let has_immediate = !queues.immediate.is_empty();
            drop(queues);
            self.end.set(look.end);
            self.see_to_a_count(came);
            if look.to_drop.is_empty() {
                return has_immediate;
            }
            // Their destructors may have posted something, so look again.
            look.to_drop.into_iter().for_each(|item| _ = self.shared.catch(|| drop(item)));
        }
    }

    /// As `look`, but only if something other than immediate tasks has come.
    pub(super) fn look_if_changed(&self) {
        if self.shared.has_changed() {
            self.look();
        }
    }

    fn sweep(&self, queues: &mut Queues) {
        let gone = queues.sweep();
        self.shared.was_swept(gone, queues.len());
    }

    /// So many delayed tasks have come, or gone; LOOP-5.
    fn see_to_a_count(&self, moved: usize) {
        let left = self.until_count.get().saturating_sub(moved);
        self.until_count.set(left);
        if left == 0 {
            self.until_count.set(COUNT_EVERY);
            let Some(now) = self.shared.catch(|| self.shared.now()) else { return }; // LOOP-3
            let overdue = self.queues.borrow().overdue(now);
            self.until_count.set(COUNT_EVERY + overdue);
            self.overdue.set(overdue);
        }
    }

    // ----- what is next --------------------------------------------------------------------

    #[inline]
    pub(super) fn next_immediate(&self, is_nested: bool) -> Option<PendingTask> {
        loop {
            let task = self.queues.borrow_mut().pop_immediate(is_nested);
            if task.is_some() || !self.look() {
                return task;
            }
        }
    }

    /// The next delayed task that may start now, at this level.
    #[inline]
    pub(super) fn next_delayed(&self, is_nested: bool) -> Option<PendingTask> {
        while self.has_delayed() {
            let task = self.queues.borrow_mut().delayed.pop()?;
            self.overdue.set(self.overdue.get().saturating_sub(1));
            self.see_to_a_count(1);
            if task.nests || !is_nested {
                return Some(task);
            }
            self.queues.borrow_mut().deferred.push_back(task);
        }
        None
    }

    /// Whether there is a task that may start now, at this level.
    pub(super) fn has_work(&self, is_nested: bool) -> bool {
        self.queues.borrow().has_immediate(is_nested) || self.has_delayed()
    }

    /// Whether a task waits for the outermost level.
    pub(super) fn has_deferred(&self) -> bool {
        !self.queues.borrow().deferred.is_empty()
    }

    /// Whether the first of the delayed tasks may start now.
    fn has_delayed(&self) -> bool {
        let first = self.queues.borrow().next_deadline();
        first.is_some_and(|deadline| self.end.get().lets_start(deadline, || self.is_due(deadline)))
    }

    fn is_due(&self, deadline: Instant) -> bool {
        if deadline > self.recently.get() {
            self.recently.set(self.shared.now());
        }
        deadline <= self.recently.get()
    }

    /// A series whose run has just ended waits for its next one, which is planned for `planned`; LOOP-6.
    pub(super) fn run_again(&self, task: PendingTask, planned: Instant) {
        let ended = self.shared.catch(|| self.shared.now()); // LOOP-3
        let possible = ended.map_or(planned, |ended| planned.max(ended));
        let sequence = self.shared.next_sequence();
        let again = PendingTask { deadline: Some(possible), sequence, ..task };
        self.queues.borrow_mut().delayed.push(again);
    }

    // ----- rest and end --------------------------------------------------------------------

    /// The loop rests, until its next deadline. False: something has come.
    pub(super) fn falls_asleep(&self) -> bool {
        let mut queues = self.queues.borrow_mut();
        self.shared.removed_cancelled(queues.trim_delayed());
        if self.shared.has_too_many_cancelled(queues.len()) {
            self.sweep(&mut queues);
        }
        let until = queues.next_deadline();
        drop(queues);
        let rests = self.shared.rest(until);
        self.rests.set(rests.then_some(until));
        rests
    }

    /// The loop is called again, so it does not rest any more.
    pub(super) fn end_rest(&self) {
        if self.rests.take().is_some() {
            self.shared.set_awake();
        }
    }

    /// LOOP-4.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.rests.get().unwrap_or_else(|| self.queues.borrow().next_deadline())
    }

    /// The end of a loop that was to end when nothing is left. False: something has come in.
    pub(super) fn ends_if_empty(&self) -> bool {
        let has_ended = self.shared.ends_if_empty();
        if has_ended {
            self.end.set(End::Now);
        }
        has_ended
    }

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        self.shared.end(End::Now);
        loop {
            self.look();
            let pending = self.queues.borrow_mut().take_all();
            pending.into_iter().for_each(|task| task.job.withdraw());
            if self.shared.is_gone() {
                return;
            }
        }
    }
}

// ----- the tasks that wait ----------------------------------------------------------------

/// Memory for this many tasks is never given back.
pub(super) const SMALL: usize = 1024;

/// Returns true if a table of this length and capacity should shrink. The tasks that have left have paid for that.
pub(super) fn has_room_to_spare(len: usize, capacity: usize) -> bool {
    capacity > SMALL && len < capacity / 8
}

/// A task that waits: for its turn, or for its time.
pub(super) struct PendingTask {
    pub(super) job: Arc<dyn Run<Shared>>,
    /// `None`: as soon as its turn comes.
    pub(super) deadline: Option<Instant>,
    /// In the order of posting.
    pub(super) sequence: u64,
    /// Whether a nested run may run it.
    pub(super) nests: bool,
}

impl PartialEq for PendingTask {
    fn eq(&self, other: &PendingTask) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PendingTask {}

impl PartialOrd for PendingTask {
    fn partial_cmp(&self, other: &PendingTask) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingTask {
    /// The greatest is the first to run: that is what std's heap gives out.
    fn cmp(&self, other: &PendingTask) -> Ordering {
        (other.deadline, other.sequence).cmp(&(self.deadline, self.sequence))
    }
}

#[derive(Default)]
struct Queues {
    /// The tasks that have their turns next.
    immediate: VecDeque<PendingTask>,
    /// Delayed tasks that have just come in, on their way to the heap.
    arrived: Vec<PendingTask>,
    delayed: BinaryHeap<PendingTask>,
    /// Deferred until the outermost run; LOOP-1.
    deferred: VecDeque<PendingTask>,
}

impl Queues {
    fn len(&self) -> usize {
        self.immediate.len() + self.arrived.len() + self.delayed.len() + self.deferred.len()
    }

    /// LOOP-1. In a nested run, one that nests.
    fn pop_immediate(&mut self, is_nested: bool) -> Option<PendingTask> {
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

    /// Whether a run of that kind has an immediate task to run.
    fn has_immediate(&self, is_nested: bool) -> bool {
        !self.immediate.is_empty() || (!is_nested && !self.deferred.is_empty())
    }

    /// Puts the delayed tasks that have come in on the heap. Returns how many.
    fn admit(&mut self) -> usize {
        let came = self.arrived.len();
        self.delayed.extend(self.arrived.drain(..));
        self.arrived.shrink_to(SMALL); // it is the inbox's next
        came
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.delayed.peek()?.deadline
    }

    /// How many delayed tasks are overdue. Below an element of the heap that is not overdue, none is.
    fn overdue(&self, now: Instant) -> usize {
        fn below(heap: &[PendingTask], at: usize, now: Instant) -> usize {
            match heap.get(at).and_then(|task| task.deadline) {
                Some(deadline) if deadline <= now => {
                    1 + below(heap, 2 * at + 1, now) + below(heap, 2 * at + 2, now)
                }
                _ => 0,
            }
        }
        below(self.delayed.as_slice(), 0, now)
    }

    /// Removes the cancelled tasks at the top of the heap. Returns how many.
    fn trim_delayed(&mut self) -> usize {
        let mut gone = 0;
        while self.delayed.peek().is_some_and(|task| task.job.is_done()) {
            self.delayed.pop();
            gone += 1;
        }
        gone
    }

    /// Removes all cancelled tasks, and gives back the memory that this leaves. Returns how many.
    fn sweep(&mut self) -> usize {
        let before = self.len();
        let waits = |task: &PendingTask| !task.job.is_done();
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

    /// All that wait, in the order in which they would run: the immediate ones, then by deadline.
    fn take_all(&mut self) -> Vec<PendingTask> {
        self.admit();
        let delayed = std::mem::take(&mut self.delayed).into_sorted_vec();
        let mut all = Vec::with_capacity(self.len() + delayed.len());
        all.extend(std::mem::take(&mut self.deferred));
        all.extend(std::mem::take(&mut self.immediate));
        all.extend(delayed.into_iter().rev());
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::job::{Job, Once};

    fn task(sequence: u64, deadline: Option<Instant>, nests: bool) -> PendingTask {
        PendingTask { job: Job::new(Weak::new(), Once(|| ())), deadline, sequence, nests }
    }

    #[test]
    fn delayed_tasks_come_by_deadline_and_then_in_the_order_of_posting() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        for (sequence, seconds) in [(1, 3), (2, 1), (3, 3), (4, 2), (5, 1)] {
            queues.arrived.push(task(sequence, Some(start + Duration::from_secs(seconds)), true));
        }
        queues.admit();
        assert_eq!(queues.next_deadline(), Some(start + Duration::from_secs(1)));
        let order: Vec<u64> =
            std::iter::from_fn(|| queues.delayed.pop()).map(|t| t.sequence).collect();
        assert_eq!(order, [2, 5, 4, 1, 3]);
    }

    #[test]
    fn what_is_overdue_is_counted_and_nothing_else() {
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
    fn what_does_not_nest_is_put_by_and_comes_first_afterwards() {
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
    fn a_sweep_throws_out_what_has_ended_and_nothing_else() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        for sequence in 0..10_000 {
            let pending = task(sequence, Some(start + Duration::from_nanos(sequence)), true);
            if sequence % 5 != 0 {
                pending.job.cancel();
            }
            queues.delayed.push(pending);
        }
        assert_eq!(queues.sweep(), 8_000);
        assert!(queues.delayed.capacity() <= 2 * 2_000 + SMALL);
        assert!(queues.take_all().iter().map(|task| task.sequence).eq((0..10_000).step_by(5)));
    }
}
