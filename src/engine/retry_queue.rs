//! The tasks that one executor has refused, and when it is offered them again.
//!
//! An executor that has refused a task is not offered others: what is due for it goes to its retry queue (S18, S30).
//! After a pause the engine offers it one task. While the executor takes all that it is offered, it is offered twice as
//! much, until the queue is empty or it refuses again. So the tasks that one executor refuses cost the other executors
//! nothing: neither room in the ready queue nor a share of a turn.
//!
//! The tasks are in order of deadline, and then of arrival. The first pause is a tick. When nothing is left to retry, the
//! next pause is a first one again.

use std::collections::BTreeMap;

use crate::clock::tick::Moment;
use crate::engine::slots::deadline;
use crate::engine::slots::task::{self, is_live};
use crate::wheel::entry::Entry;

/// The longest pause of an executor that takes few tasks: it is asked forty times a second.
const BUSY_PAUSE_NANOS: u64 = 25_000_000;
/// The longest pause of an executor that takes nothing: it is asked ten times a second.
pub(super) const LONGEST_PAUSE_NANOS: u64 = 100_000_000;

/// An executor that takes fewer tasks than this at a time is asked less often.
const FEW: usize = 8;
/// An executor that takes as many tasks as this at a time is asked more often.
const MANY: usize = 32;

/// Refused tasks by deadline, and at equal deadlines by their places.
#[derive(Default)]
pub(super) struct RetryQueue {
    /// A tree, so that it can be swept in slices.
    tasks: BTreeMap<(u64, i64), Entry>,
    /// The place of the last task that came.
    last: i64,
    /// The place of the last task that was put back.
    first: i64,
    /// Where a sweep goes on.
    sweep_from: (u64, i64),
    /// The pause after the last refusal, in nanoseconds; 0 while the executor takes all.
    pause: u64,
    retry_at: Option<Moment>,
    has_refused_for_good: bool,
}

impl RetryQueue {
    /// Returns how many entries wait, stale ones included.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns true if what is due for the executor goes to this queue.
    pub(super) fn is_refusing(&self) -> bool {
        self.has_refused_for_good || !self.tasks.is_empty()
    }

    /// Puts a task behind those of the same deadline.
    pub(super) fn push(&mut self, entry: Entry) {
        self.last += 1;
        self.tasks.insert((entry.deadline, self.last), entry);
    }

    /// Puts refused tasks before those of the same deadline. They come in the order of the hand-over. If the executor takes
    /// no pause already, its first one begins.
    pub(super) fn put_back(
        &mut self,
        refused: impl DoubleEndedIterator<Item = Entry>,
        for_good: bool,
        now: Moment,
        first_pause: u64,
    ) {
        self.has_refused_for_good |= for_good;
        // A task that is refused again was the first of its deadline, and becomes the first again. In reverse, so that
        // the tasks keep their order among each other.
        for entry in refused.rev() {
            self.first -= 1;
            self.tasks.insert((entry.deadline, self.first), entry);
        }
        if self.pause == 0 {
            self.pause = first_pause;
            self.retry_at = Some(now.after_nanos(first_pause));
        }
    }

    /// Returns when to retry: never, if the executor has refused for good.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.retry_at.filter(|_| !self.has_refused_for_good)
    }

    /// Returns true if the pause is over, or nearly so.
    pub(super) fn may_retry(&self, now: Moment) -> bool {
        // A quarter of the pause early, so that executors whose pauses end at about the same time share a wake-up.
        self.retry_at().is_some_and(|at| at <= now.after_nanos(self.pause / 4))
    }

    /// Returns the earliest deadline of an entry that `is_valid`, after it has dropped the others before it.
    pub(super) fn first(&mut self, mut is_valid: impl FnMut(Entry) -> bool) -> Option<Moment> {
        while let Some(first) = self.tasks.first_entry() {
            let entry = *first.get();
            if is_valid(entry) {
                // The deadline of a task that was put off while it waited here is later than that of its entry.
                let deadline = task::settled(entry).and_then(|(key, _)| deadline::deadline(key));
                return Some(deadline.map_or(entry.moment(), |(deadline, _)| deadline));
            }
            first.remove();
        }
        None
    }

    /// Takes out the first entry, which may be stale, or of a task that was put off.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.tasks.pop_first().map(|(_, entry)| entry)
    }

    /// If nothing is left, the executor takes no pause any more.
    pub(super) fn recover(&mut self) {
        if self.tasks.is_empty() {
            (self.pause, self.retry_at) = (0, None);
        }
    }

    /// Begins a pause after a retry in which the executor `took` so many tasks before it refused one.
    pub(super) fn rest(&mut self, took: usize, now: Moment, first_pause: u64) {
        // An executor whose queue is full again and again is filled in time, and each wake-up for it moves some tasks.
        self.pause = match took {
            0 => (2 * self.pause).min(LONGEST_PAUSE_NANOS),
            1..FEW => (2 * self.pause).min(BUSY_PAUSE_NANOS),
            FEW..MANY => self.pause.min(BUSY_PAUSE_NANOS),
            _ => (self.pause / 2).min(BUSY_PAUSE_NANOS),
        };
        self.pause = self.pause.max(first_pause);
        self.retry_at = Some(now.after_nanos(self.pause));
    }

    /// Retries in the next turn, because this one has no time for all that the executor would take.
    pub(super) fn retry_soon(&mut self, now: Moment) {
        self.retry_at = Some(now);
    }

    /// Looks at up to `budget` entries, and drops the stale ones. Returns true at the end of the queue.
    pub(super) fn sweep(&mut self, budget: &mut usize) -> bool {
        let (mut looked_at, mut stale, mut next) = (0, Vec::new(), None);
        // The stale ones are removed after the walk, because the tree is borrowed meanwhile.
        for (place, entry) in self.tasks.range(self.sweep_from..).take(*budget) {
            looked_at += 1;
            next = Some((place.0, place.1 + 1));
            if !is_live(*entry) {
                stale.push(*place);
            }
        }
        stale.iter().for_each(|place| _ = self.tasks.remove(place));
        let is_done = looked_at < *budget;
        *budget -= looked_at;
        self.sweep_from = next.filter(|_| !is_done).unwrap_or_default();
        is_done
    }

    /// Takes everything out, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        std::mem::take(&mut self.tasks).into_values()
    }

    /// Panics with what is broken.
    pub(super) fn check_invariants(&self) {
        let ends = self.tasks.first_key_value().into_iter().chain(self.tasks.last_key_value());
        for ((deadline, place), entry) in ends {
            assert_eq!(*deadline, entry.deadline, "a task stands elsewhere");
            assert!((self.first..=self.last).contains(place), "no task was given place {place}");
        }
        let is_retried = self.pause > 0 && self.retry_at.is_some();
        let is_retried = is_retried || self.has_refused_for_good || self.tasks.is_empty();
        assert!(is_retried, "tasks wait, and no retry is planned");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wheel::entry::Runner;

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(slot, 1, Moment(deadline), true, Runner::Default, false)
    }

    #[test]
    fn tasks_are_in_order_and_one_that_is_refused_again_keeps_its_place() {
        let mut queue = RetryQueue::default();
        let refused = [entry(3, 1), entry(5, 2)];
        queue.put_back(refused.into_iter(), false, Moment(0), 1);
        [(5, 3), (5, 4)].iter().for_each(|(at, slot)| queue.push(entry(*at, *slot)));
        let taken = [(); 3].map(|()| queue.tasks.pop_first().expect("four").1);
        assert_eq!(taken.map(Entry::slot), [1, 2, 3]);
        queue.put_back(taken[1..].iter().copied(), false, Moment(0), 1);
        [(5, 5), (4, 6)].iter().for_each(|(at, slot)| queue.push(entry(*at, *slot)));
        queue.check_invariants();
        let slots: Vec<_> = queue.drain().map(Entry::slot).collect();
        assert_eq!(slots, [6, 2, 3, 4, 5]);
    }

    #[test]
    fn the_pause_grows_while_nothing_is_taken_and_shrinks_when_much_is() {
        let milli = 1_000_000;
        let mut queue = RetryQueue::default();
        queue.put_back([entry(1, 0)].into_iter(), false, Moment(0), milli);
        let mut pauses = Vec::new();
        for took in [0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 31, 32, 100, 1000, 7, 1] {
            queue.rest(took, Moment(0), milli);
            pauses.push(queue.retry_at().expect("it rests").0 / milli);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100, 25, 25, 25, 12, 6, 3, 6, 12]);
        queue.put_back([].into_iter(), true, Moment(0), milli);
        assert_eq!((queue.retry_at(), queue.is_refusing()), (None, true), "never again");
    }

    #[test]
    fn s19_the_queue_is_swept_in_slices() {
        let mut queue = RetryQueue::default();
        (0..1000).for_each(|at| queue.push(entry(at, u32::MAX >> 4))); // a slot that nobody has
        let (mut slices, mut budget) = (1, 100);
        while !queue.sweep(&mut budget) {
            assert_eq!(budget, 0);
            (slices, budget) = (slices + 1, 100);
        }
        assert_eq!((queue.len(), slices), (0, 11));
    }
}
