//! What executors have refused: a [`RetryQueue`] for each that refuses, the scheduler's among them.
//!
//! ```text
//!                  due                  a batch that is taken
//!   ready queue ---------> hand over ---------------------------> the executor: its tasks are remembered nowhere else
//!                           |    ^
//!                   refused |    | offered again: one task; if that is taken two, then four ...
//!                           v    |
//!                        retry queue [ e e e e ]   in order of deadline, and then of arrival
//! ```
//!
//! An executor that has refused a task is not offered others: what is due for it goes to its retry queue (S18, S30).
//! After a pause the engine offers it one task. While the executor takes all that it is offered, it is offered twice as
//! much, until the queue is empty or it refuses again. So the tasks that one executor refuses cost the other executors
//! nothing: neither room in the ready queue nor a share of a turn. The first pause is a tick. When nothing is left to
//! retry, the next pause is a first one again.
//!
//! A task that an executor has taken stays in its holder, which tells whose it is. So a close finds there what no executor
//! has started (S29). How far an executor is behind is counted in its [`Backlog`].

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::bounds::{LONGEST_PAUSE_NANOS, RETRY_QUEUES};
use crate::backpressure::Backlog;
use crate::clock::tick::Moment;
use crate::engine::slots::deadline;
use crate::engine::slots::task::{self, is_live};
use crate::executor::numbered::NumberedExecutor;
use crate::wheel::entry::Entry;

/// The retry queues of all executors.
#[derive(Default)]
pub(super) struct Retries {
    /// By the number of the executor. A number is used again when its executor is gone. By then nothing in the queue is still
    /// to run, because each task keeps its executor alive.
    all: BTreeMap<u32, RetryQueue>,
    /// The executor whose queue a sweep goes on with, and where in the queue.
    sweep_from: (u32, Place),
}

impl Retries {
    /// Returns the retry queue of an executor.
    pub(super) fn of(&mut self, executor: &Arc<NumberedExecutor>) -> &mut RetryQueue {
        // The number may have been given to a new executor since, and the old one's queue is of no use any more.
        let queue = self.all.entry(executor.number).or_insert_with(|| RetryQueue::new(executor));
        if queue.executor.strong_count() == 0 {
            *queue = RetryQueue::new(executor);
        }
        queue
    }

    pub(super) fn is_refusing(&self, executor: &NumberedExecutor) -> bool {
        self.all.get(&executor.number).is_some_and(RetryQueue::is_refusing)
    }

    /// Tells producers how much waits here. Executors that have recovered, or are gone, leave the list.
    pub(super) fn tell(&mut self) {
        self.all.retain(|_, queue| {
            queue.backlog.set_refused(queue.tasks.len());
            queue.is_refusing()
        });
    }

    /// Returns when to retry next with some executor.
    #[inline]
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.all.values().filter_map(RetryQueue::retry_at).min()
    }

    /// Returns the executors whose pause is over, or nearly so, in the order in which their pauses end.
    pub(super) fn to_retry(&self, now: Moment) -> Vec<Arc<NumberedExecutor>> {
        // An executor whose pause is nearly over comes along when another one has woken the thread, so many of them
        // cost few wake-ups.
        let is_ready = |queue: &&RetryQueue| {
            // A quarter of the pause early, so that executors whose pauses end at about the same time share a wake-up.
            queue.retry_at().is_some_and(|at| at <= now.after_nanos(queue.pause / 4))
        };
        let mut ready: Vec<_> = self.all.values().filter(is_ready).collect();
        // A turn may have time for the first one only. Its next pause ends later, so the others come before it then.
        ready.sort_by_key(|queue| queue.retry_at);
        ready.into_iter().filter_map(|queue| queue.executor.upgrade()).collect()
    }

    /// Returns the earliest deadline of a refused task whose entry `is_valid`. Drops the others before it, so that no later
    /// call looks at them again.
    pub(super) fn first_refused(
        &mut self,
        mut is_valid: impl FnMut(Entry) -> bool,
    ) -> Option<Moment> {
        let first = |queue: &mut RetryQueue| {
            while !is_valid(*queue.tasks.first_entry()?.get()) {
                queue.tasks.pop_first();
            }
            let entry = queue.tasks.first_key_value().map(|(_, entry)| *entry)?;
            // A reset may have moved the deadline to before that of the entry.
            let deadline = task::settled(entry).and_then(|(key, _)| deadline::of(key));
            Some(deadline.map_or(entry.moment(), |(deadline, _)| deadline))
        };
        self.all.values_mut().filter_map(first).min()
    }

    /// Returns how many entries wait, stale ones included.
    pub(super) fn waiting(&self) -> usize {
        self.all.values().map(|queue| queue.tasks.len()).sum()
    }

    /// Looks at up to `budget` entries, and drops those of cancelled tasks. Returns true when it has come to the end of all
    /// queues.
    pub(super) fn sweep(&mut self, mut budget: usize) -> bool {
        // The list may change between the slices. A sweep goes on with the next number that is still there.
        let (first, place) = self.sweep_from;
        let left = self.all.range_mut(first..).find_map(|(number, queue)| {
            let from = if *number == first { place } else { Place::default() };
            Some((*number, queue.sweep(from, &mut budget)?))
        });
        self.sweep_from = left.unwrap_or_default();
        left.is_none()
    }

    /// Takes everything out, each executor's tasks in order.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        let queues = std::mem::take(&mut self.all).into_values();
        queues.flat_map(|queue| queue.tasks.into_values()).collect()
    }

    /// Panics with what is broken. Of very many executors it looks at some.
    pub(super) fn check_invariants(&self) {
        self.all.values().take(RETRY_QUEUES).for_each(RetryQueue::check_invariants);
    }
}

// ----- the queue of one executor -----------------------------------------------------------------

/// The longest pause of an executor that takes few tasks: it is asked forty times a second.
const BUSY_PAUSE_NANOS: u64 = 25_000_000;

/// An executor that takes fewer tasks than this at a time is asked less often.
const FEW: usize = 8;
/// An executor that takes as many tasks as this at a time is asked more often.
const MANY: usize = 32;

/// Where a task stands in a queue: its deadline, and a number that orders equal deadlines.
type Place = (u64, i64);

/// The tasks that an executor has refused, by deadline, and at equal deadlines by their places. It does not keep the
/// executor alive.
pub(super) struct RetryQueue {
    executor: Weak<NumberedExecutor>,
    backlog: Arc<Backlog>,
    /// A tree, so that it can be swept in slices.
    tasks: BTreeMap<Place, Entry>,
    /// How many places were given: above zero to tasks that came, below to those that were put back.
    places: i64,
    /// The pause after the last refusal, in nanoseconds; 0 while the executor takes all.
    pause: u64,
    pub(super) retry_at: Option<Moment>,
    /// The executor is not asked any more.
    pub(super) has_refused_for_good: bool,
}

impl RetryQueue {
    fn new(executor: &Arc<NumberedExecutor>) -> RetryQueue {
        RetryQueue {
            executor: Arc::downgrade(executor),
            backlog: Arc::clone(&executor.backlog),
            tasks: BTreeMap::new(),
            places: 0,
            pause: 0,
            retry_at: None,
            has_refused_for_good: false,
        }
    }

    /// Returns true if what is due for the executor goes to this queue.
    fn is_refusing(&self) -> bool {
        let has_refused = self.has_refused_for_good || !self.tasks.is_empty();
        has_refused && self.executor.strong_count() > 0
    }

    /// Puts a task behind those of the same deadline.
    pub(super) fn push(&mut self, entry: Entry) {
        self.places += 1;
        self.tasks.insert((entry.deadline, self.places), entry);
    }

    /// Puts a task that was refused before those of the same deadline. If the executor takes no pause already, its first one
    /// begins.
    pub(super) fn put_back(&mut self, refused: Entry, now: Moment, first_pause: u64) {
        // A task that is refused again was the first of its deadline, and becomes the first again.
        self.places += 1;
        self.tasks.insert((refused.deadline, -self.places), refused);
        if self.pause == 0 {
            self.rest(0, now, first_pause);
        }
    }

    /// Returns when to retry: never, if the executor has refused for good.
    fn retry_at(&self) -> Option<Moment> {
        self.retry_at.filter(|_| !self.has_refused_for_good)
    }

    /// Takes out the first entry, which may be stale, or of a task that was put off.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.tasks.pop_first().map(|(_, entry)| entry)
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

    /// Looks at up to `budget` entries from a place on, and drops the stale ones. Returns the place where the budget was used up.
    fn sweep(&mut self, from: Place, budget: &mut usize) -> Option<Place> {
        let looked_at = self.tasks.range(from..).take(*budget);
        let looked_at: Vec<_> = looked_at.map(|(place, entry)| (*place, *entry)).collect();
        *budget -= looked_at.len();
        let stale = looked_at.iter().filter(|(_, entry)| !is_live(*entry));
        stale.for_each(|(place, _)| _ = self.tasks.remove(place));
        let ((deadline, number), _) = looked_at.last().filter(|_| *budget == 0)?;
        Some((*deadline, number + 1))
    }

    /// Panics with what is broken.
    fn check_invariants(&self) {
        let ends = self.tasks.first_key_value().into_iter().chain(self.tasks.last_key_value());
        for ((deadline, place), entry) in ends {
            assert_eq!(*deadline, entry.deadline, "a task stands elsewhere");
            assert!(place.abs() <= self.places, "no task was given place {place}");
        }
        let is_retried = self.pause > 0 && self.retry_at.is_some();
        let is_retried = is_retried || self.has_refused_for_good || self.tasks.is_empty();
        assert!(is_retried, "tasks wait, and no retry is planned");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::executor::Inline;
    use crate::wheel::entry::Runner;

    fn executor() -> Arc<NumberedExecutor> {
        NumberedExecutor::of_scheduler(Box::new(Inline), Arc::new(Backlog::new(1)))
    }

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(slot, 1, Moment(deadline), true, Runner::Default, false)
    }

    #[test]
    fn tasks_are_in_order_and_one_that_is_refused_again_keeps_its_place() {
        let mut queue = RetryQueue::new(&executor());
        [entry(5, 2), entry(3, 1)].into_iter().for_each(|one| queue.put_back(one, Moment(0), 1));
        [(5, 3), (5, 4)].iter().for_each(|(at, slot)| queue.push(entry(*at, *slot)));
        let taken = [(); 3].map(|()| queue.tasks.pop_first().expect("four").1);
        assert_eq!(taken.map(Entry::slot), [1, 2, 3]);
        taken[1..].iter().rev().for_each(|one| queue.put_back(*one, Moment(0), 1));
        [(5, 5), (4, 6)].iter().for_each(|(at, slot)| queue.push(entry(*at, *slot)));
        queue.check_invariants();
        let slots: Vec<_> = queue.tasks.into_values().map(Entry::slot).collect();
        assert_eq!(slots, [6, 2, 3, 4, 5]);
    }

    #[test]
    fn the_pause_grows_while_nothing_is_taken_and_shrinks_when_much_is() {
        let (milli, executor) = (1_000_000, executor());
        let mut queue = RetryQueue::new(&executor);
        queue.put_back(entry(1, 0), Moment(0), milli);
        let mut pauses = Vec::new();
        for took in [0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 31, 32, 100, 1000, 7, 1] {
            queue.rest(took, Moment(0), milli);
            pauses.push(queue.retry_at().expect("it rests").0 / milli);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100, 25, 25, 25, 12, 6, 3, 6, 12]);
        queue.has_refused_for_good = true;
        assert_eq!((queue.retry_at(), queue.is_refusing()), (None, true), "never again");
    }

    #[test]
    fn a_look_for_the_first_deadline_drops_what_is_stale_before_it() {
        let (mut retries, executor) = (Retries::default(), executor());
        (0..1000).for_each(|at| retries.of(&executor).push(entry(at, u32::MAX >> 4))); // a slot that nobody has
        let is_valid = |entry: Entry| entry.deadline >= 900;
        assert_eq!(retries.first_refused(is_valid), Some(Moment(900)));
        assert_eq!(retries.waiting(), 100);
        assert_eq!((retries.first_refused(|_| false), retries.waiting()), (None, 0));
    }

    #[test]
    fn s19_the_queue_is_swept_in_slices() {
        let mut queue = RetryQueue::new(&executor());
        (0..1000).for_each(|at| queue.push(entry(at, u32::MAX >> 4))); // a slot that nobody has
        let (mut slices, mut budget, mut from) = (1, 100, Place::default());
        while let Some(next) = queue.sweep(from, &mut budget) {
            assert_eq!(budget, 0);
            (slices, budget, from) = (slices + 1, 100, next);
        }
        assert_eq!((queue.tasks.len(), slices), (0, 11));
    }
}
