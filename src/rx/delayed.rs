//! Where a task of a worker is, and the tasks that wait for their time. It is data: there is no lock and no clock
//! here, and no task runs.
//!
//! - DELAY-1 A ticket names one wait of one task and is never used again. So a timer or an arrival that comes too
//!   late, when the task has gone or waits for another run, finds nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::worker::TaskQueue;
use crate::Cancellable;
use crate::job::Run;

/// A task as its queue holds it.
pub(super) type Entry = Arc<dyn Run<dyn TaskQueue>>;

/// Where a task is in its queue.
#[derive(Debug)]
pub(super) struct Slot(AtomicU64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It waits for its time, under this ticket.
    Delayed(u64),
    /// It waits for its turn.
    Queued,
    /// It has not come yet, or has left, or is to leave.
    Gone,
}

impl Slot {
    // Tickets do not get that far.
    const QUEUED: u64 = u64::MAX - 1;
    const GONE: u64 = u64::MAX;

    /// Acquire pairs with the Release in `leave`: what was counted before a task left is seen with that.
    pub(super) fn get(&self) -> Position {
        Slot::position(self.0.load(Ordering::Acquire))
    }

    /// Says that the task has gone, and returns where it was. Of several threads one learns that. Acquire and Release
    /// pair with those here and in `get`.
    pub(super) fn leave(&self) -> Position {
        Slot::position(self.0.swap(Slot::GONE, Ordering::AcqRel))
    }

    /// Relaxed: it is done under the lock of the structure through which others find the task.
    pub(super) fn set(&self, position: Position) {
        let at = match position {
            Position::Delayed(ticket) => ticket,
            Position::Queued => Slot::QUEUED,
            Position::Gone => Slot::GONE,
        };
        self.0.store(at, Ordering::Relaxed);
    }

    fn position(at: u64) -> Position {
        match at {
            Slot::GONE => Position::Gone,
            Slot::QUEUED => Position::Queued,
            ticket => Position::Delayed(ticket),
        }
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot(AtomicU64::new(Slot::GONE))
    }
}

/// Memory for so many tasks is not worth giving back.
pub(super) const SMALL: usize = 512;

/// The tasks that wait for their time. Each leaves in O(1), or in O(log n) if it has a deadline.
#[derive(Default)]
pub(super) struct Delayed {
    /// By ticket.
    waits: HashMap<u64, Wait>,
    /// The tickets with a deadline, in order; equal deadlines in the order in which they came.
    by_deadline: BTreeSet<(Instant, u64)>,
    last_ticket: u64,
}

struct Wait {
    job: Entry,
    deadline: Option<Instant>,
    /// Cancels the task's arrival.
    timer: Option<Cancellable>,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Takes a task in, and returns its ticket.
    pub(super) fn insert(&mut self, job: Entry, deadline: Option<Instant>) -> u64 {
        self.last_ticket += 1;
        job.position().set(Position::Delayed(self.last_ticket));
        self.waits.insert(self.last_ticket, Wait { job, deadline, timer: None });
        self.last_ticket
    }

    /// Gives a task its part in the order of deadlines, if it has one. Until then no other brings it along.
    pub(super) fn put_in_order(&mut self, ticket: u64) {
        let deadline = self.waits.get(&ticket).and_then(|wait| wait.deadline);
        self.by_deadline.extend(deadline.map(|deadline| (deadline, ticket)));
    }

    /// Notes what cancels a task's arrival. If the task has gone in the meantime, the timer comes back; DELAY-1.
    pub(super) fn set_timer(&mut self, ticket: u64, timer: Cancellable) -> Option<Cancellable> {
        let Some(wait) = self.waits.get_mut(&ticket) else { return Some(timer) };
        wait.timer = Some(timer);
        self.put_in_order(ticket);
        None
    }

    /// The task with the earliest deadline.
    pub(super) fn first(&self) -> Option<(Instant, u64)> {
        self.by_deadline.first().copied()
    }

    /// The task that is to come first when the time of this one has come: an earlier one, or itself. `None` if this
    /// one has gone.
    pub(super) fn first_before(&self, ticket: u64) -> Option<u64> {
        let Some(deadline) = self.waits.get(&ticket)?.deadline else { return Some(ticket) };
        let itself = (deadline, ticket);
        Some(self.first().map_or(itself, |first| first.min(itself)).1)
    }

    /// Takes a task out, with its timer.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<(Entry, Option<Cancellable>)> {
        let wait = self.waits.remove(&ticket)?;
        wait.job.position().set(Position::Gone);
        if let Some(deadline) = wait.deadline {
            self.by_deadline.remove(&(deadline, ticket));
        }
        if self.waits.capacity() > SMALL && self.len() < self.waits.capacity() / 8 {
            self.waits.shrink_to(2 * self.len());
        }
        Some((wait.job, wait.timer))
    }

    /// All tasks, with their timers.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Entry, Option<Cancellable>)> {
        self.waits.into_values().map(|wait| (wait.job, wait.timer))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::super::composite::CompositeCancellable;
    use super::super::serial::SerialQueue;
    use super::*;
    use crate::job::{Job, Once};

    /// A task of which only the slot matters.
    fn task() -> Entry {
        let nobody: Weak<dyn TaskQueue> = Weak::<SerialQueue>::new();
        Job::new(nobody, Once(|| ()))
    }

    /// A test and not an assertion of the build: std's locks are larger on other systems.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_job_of_two_words_fits_into_a_cache_line() {
        let size = size_of::<Job<Once<[usize; 2]>, dyn TaskQueue>>();
        assert!(size <= 64, "{size}; with its counts it takes 16 bytes more");
    }

    /// A handle of its own: whoever is cancelled is the same.
    fn timer() -> Cancellable {
        Cancellable::from(Arc::new(CompositeCancellable::new()))
    }

    #[test]
    fn a_timer_of_an_earlier_wait_is_nobody_s() {
        let (mut delayed, job) = (Delayed::default(), task());
        let ticket = delayed.insert(Arc::clone(&job), None);
        let first = timer();
        assert!(delayed.set_timer(ticket, first.clone()).is_none());
        let (_, came) = delayed.remove(ticket).expect("in it");
        assert!(!first.is_cancelled());
        came.expect("its timer").cancel();
        assert!(first.is_cancelled(), "the same one");
        assert!(delayed.set_timer(ticket, timer()).is_some(), "it has come");
        let again = delayed.insert(Arc::clone(&job), None);
        assert!(delayed.set_timer(ticket, timer()).is_some(), "it waits again");
        assert!(delayed.first_before(ticket).is_none() && delayed.remove(ticket).is_none());
        assert!(delayed.set_timer(again, timer()).is_none());
        assert_eq!((job.position().get(), delayed.len()), (Position::Delayed(again), 1));
        assert!(delayed.remove(again).is_some_and(|(_, timer)| timer.is_some()));
        assert!(job.position().get() == Position::Gone && delayed.into_all().next().is_none());
    }

    #[test]
    fn tasks_with_deadlines_come_in_order_and_after_a_peak_little_is_kept() {
        let (mut delayed, start) = (Delayed::default(), Instant::now());
        let at = |ms| Some(start + Duration::from_millis(ms));
        let tickets: Vec<_> = (0..100_000_u64).map(|n| delayed.insert(task(), at(n % 7))).collect();
        tickets.iter().for_each(|ticket| delayed.put_in_order(*ticket));
        let plain = delayed.insert(task(), None);
        assert_eq!(delayed.first_before(plain), Some(plain), "it has no part in the order");
        // All that are due no later than the second of those of 1 ms.
        let mut came = Vec::new();
        while let Some(first) = delayed.first_before(tickets[8]) {
            came.push(first);
            delayed.remove(first);
        }
        let expected = tickets.iter().step_by(7).chain([&tickets[1], &tickets[8]]);
        assert!(came.iter().eq(expected));
        tickets[15..].iter().for_each(|ticket| _ = delayed.remove(*ticket));
        assert!(
            delayed.waits.capacity() <= SMALL && delayed.by_deadline.len() + 1 == delayed.len()
        );
        assert_eq!(delayed.first(), Some((start + Duration::from_millis(2), tickets[2])));
    }
}
