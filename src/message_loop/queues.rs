//! The loop's own queues, which only its thread touches: data, no lock, no clock.
//!
//! - Q1 Immediate tasks keep the order of their numbers. A task that must not run nested, and whose turn
//!   comes in a nested run, is put by; the outermost run takes those first, so it overtakes nobody that
//!   does not nest.
//! - Q2 Delayed tasks are a heap by deadline, and at equal ones by the number that they were given when
//!   they were posted.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::inbox::Shared;
use crate::job::Run;

/// Room for so many tasks is never given back.
pub(super) const SMALL: usize = 1024;

/// Whether so much should be given back: it is paid for by those who have left.
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
pub(super) struct Queues {
    /// What has its turn next.
    pub(super) immediate: VecDeque<PendingTask>,
    /// What has just come in, on its way to the heap.
    pub(super) arrived: Vec<PendingTask>,
    delayed: BinaryHeap<PendingTask>,
    /// Q1: put by, until the outermost run.
    put_by: VecDeque<PendingTask>,
}

impl Queues {
    pub(super) fn len(&self) -> usize {
        self.immediate.len() + self.arrived.len() + self.delayed.len() + self.put_by.len()
    }

    /// Q1. In a nested run, one that nests.
    pub(super) fn pop_immediate(&mut self, is_nested: bool) -> Option<PendingTask> {
        if !is_nested && !self.put_by.is_empty() {
            return self.put_by.pop_front();
        }
        while let Some(task) = self.immediate.pop_front() {
            if task.nests || !is_nested {
                return Some(task);
            }
            self.put_by.push_back(task);
        }
        None
    }

    /// Whether a run of that kind has an immediate task to run.
    pub(super) fn has_immediate(&self, is_nested: bool) -> bool {
        !self.immediate.is_empty() || (!is_nested && self.has_put_by())
    }

    pub(super) fn has_put_by(&self) -> bool {
        !self.put_by.is_empty()
    }

    pub(super) fn put_by(&mut self, task: PendingTask) {
        self.put_by.push_back(task);
    }

    /// Puts what has come in where it belongs. How many tasks that were.
    pub(super) fn admit(&mut self) -> usize {
        let came = self.arrived.len();
        self.delayed.extend(self.arrived.drain(..));
        self.arrived.shrink_to(SMALL); // it is the inbox's next
        came
    }

    pub(super) fn delay(&mut self, task: PendingTask) {
        self.delayed.push(task);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.delayed.peek()?.deadline
    }

    /// How many delayed tasks are overdue: those of the heap whose fathers are, too.
    pub(super) fn overdue(&self, now: Instant) -> usize {
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

    pub(super) fn pop_delayed(&mut self) -> Option<PendingTask> {
        self.delayed.pop()
    }

    /// Throws out the first delayed tasks that have ended already. How many.
    pub(super) fn trim_delayed(&mut self) -> usize {
        let mut gone = 0;
        while self.delayed.peek().is_some_and(|task| task.job.is_done()) {
            self.delayed.pop();
            gone += 1;
        }
        gone
    }

    /// Throws out all that have ended already, and gives back what room that leaves. How many.
    pub(super) fn sweep(&mut self) -> usize {
        let before = self.len();
        let waits = |task: &PendingTask| !task.job.is_done();
        self.immediate.retain(waits);
        self.put_by.retain(waits);
        self.delayed.retain(waits);
        self.immediate.shrink_to(2 * self.immediate.len() + SMALL);
        self.delayed.shrink_to(2 * self.delayed.len() + SMALL);
        before - self.len()
    }

    /// Gives back room that a peak has left. That of the immediate tasks is the inbox's next.
    pub(super) fn give_back(&mut self) {
        if self.immediate.is_empty() && self.immediate.capacity() > SMALL {
            self.immediate = VecDeque::new();
        }
        if has_room_to_spare(self.delayed.len(), self.delayed.capacity()) {
            self.delayed.shrink_to(2 * self.delayed.len());
        }
        if has_room_to_spare(self.put_by.len(), self.put_by.capacity()) {
            self.put_by.shrink_to(2 * self.put_by.len());
        }
    }

    /// All that wait, in the order in which they would run: the immediate ones, then by deadline.
    pub(super) fn take_all(&mut self) -> Vec<PendingTask> {
        self.admit();
        let delayed = std::mem::take(&mut self.delayed).into_sorted_vec();
        let mut all = Vec::with_capacity(self.len() + delayed.len());
        all.extend(std::mem::take(&mut self.put_by));
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
            std::iter::from_fn(|| queues.pop_delayed()).map(|t| t.sequence).collect();
        assert_eq!(order, [2, 5, 4, 1, 3]);
    }

    #[test]
    fn what_is_overdue_is_counted_and_nothing_else() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for sequence in 0..1_000 {
            queues.delay(task(sequence, Some(at(sequence * 7 % 1_000)), true));
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
            queues.delay(pending);
        }
        assert_eq!(queues.sweep(), 8_000);
        assert!(queues.delayed.capacity() <= 2 * 2_000 + SMALL);
        assert!(queues.take_all().iter().map(|task| task.sequence).eq((0..10_000).step_by(5)));
    }
}
