//! The tasks of a worker that wait for their time, and the clock that keeps it.
//!
//! No lock is taken here and no task runs: the queue that owns a [`Delayed`] has the lock.
//!
//! - DELAY-1 A ticket names one wait of one task and is never used again. So a timer that comes too late, when the task
//!   has left or waits for another run, finds nothing.
//! - DELAY-2 Each entry of `by_deadline` stands for a task in `by_ticket` that has this deadline.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::worker::TaskQueue;
use crate::job::Run;
use crate::{Cancellable, Period, Schedule, ScheduleError, Scheduler};

/// A task as its queue holds it.
pub(super) type Entry = Arc<dyn Run<dyn TaskQueue>>;

/// Where a task is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It waits for its time, under this ticket.
    Delayed(u64),
    /// It waits for its turn.
    Queued,
    /// It is not in the queue: it has not come yet, has left, or was cancelled.
    Gone,
}

/// A [`Position`] that several threads may read and change.
#[derive(Debug)]
pub(super) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    // No ticket gets that far.
    const QUEUED: u64 = u64::MAX - 1;
    const GONE: u64 = u64::MAX;

    /// Returns the position. The Acquire pairs with the Release in `leave`: a thread that sees that a task has gone
    /// also sees what was counted before.
    pub(super) fn get(&self) -> Position {
        AtomicPosition::decode(self.0.load(Ordering::Acquire))
    }

    /// Sets the position to [`Gone`](Position::Gone) and returns the one before. If several threads do so, one of them
    /// gets the position and the others get `Gone`. The Release pairs with the Acquire here and in `get`.
    pub(super) fn leave(&self) -> Position {
        AtomicPosition::decode(self.0.swap(AtomicPosition::GONE, Ordering::AcqRel))
    }

    /// Sets the position. Relaxed suffices: the caller holds the lock under which other threads find the task.
    pub(super) fn set(&self, position: Position) {
        let code = match position {
            Position::Delayed(ticket) => ticket,
            Position::Queued => AtomicPosition::QUEUED,
            Position::Gone => AtomicPosition::GONE,
        };
        self.0.store(code, Ordering::Relaxed);
    }

    fn decode(code: u64) -> Position {
        match code {
            AtomicPosition::GONE => Position::Gone,
            AtomicPosition::QUEUED => Position::Queued,
            ticket => Position::Delayed(ticket),
        }
    }
}

impl Default for AtomicPosition {
    fn default() -> AtomicPosition {
        AtomicPosition(AtomicU64::new(AtomicPosition::GONE))
    }
}

/// A queue keeps the memory for this many tasks after a peak.
pub(super) const SMALL: usize = 512;

/// The tasks that wait for their time. A task leaves in O(1), or in O(log n) if it has a deadline.
#[derive(Default)]
pub(super) struct Delayed {
    by_ticket: HashMap<u64, DelayedTask>,
    /// Deadlines with their tickets. Equal deadlines are in the order in which the tasks came (DELAY-2).
    by_deadline: BTreeSet<(Instant, u64)>,
    last_ticket: u64,
}

struct DelayedTask {
    job: Entry,
    /// `None` if the timers keep the order of the deadlines.
    deadline: Option<Instant>,
    timer: Option<Cancellable>,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// Adds a task, and returns its ticket. Other tasks ignore its deadline until
    /// [`put_in_order`](Delayed::put_in_order).
    pub(super) fn insert(&mut self, job: Entry, deadline: Option<Instant>) -> u64 {
        self.last_ticket += 1;
        job.position().set(Position::Delayed(self.last_ticket));
        self.by_ticket.insert(self.last_ticket, DelayedTask { job, deadline, timer: None });
        self.last_ticket
    }

    /// Adds the deadline of a task, if it has one, to the order of all deadlines.
    pub(super) fn put_in_order(&mut self, ticket: u64) {
        let deadline = self.by_ticket.get(&ticket).and_then(|task| task.deadline);
        self.by_deadline.extend(deadline.map(|deadline| (deadline, ticket)));
    }

    /// Stores the timer of a task and puts the task in order. Returns the timer if the task has left in the meantime
    /// (DELAY-1).
    pub(super) fn set_timer(&mut self, ticket: u64, timer: Cancellable) -> Option<Cancellable> {
        let Some(task) = self.by_ticket.get_mut(&ticket) else { return Some(timer) };
        task.timer = Some(timer);
        self.put_in_order(ticket);
        None
    }

    /// Returns the earliest deadline and its ticket.
    pub(super) fn first(&self) -> Option<(Instant, u64)> {
        self.by_deadline.first().copied()
    }

    /// Returns the ticket of the task that has to be queued first when the task with this ticket is due: an earlier
    /// one, or the task itself. Returns `None` if the task has left.
    pub(super) fn first_before(&self, ticket: u64) -> Option<u64> {
        let Some(deadline) = self.by_ticket.get(&ticket)?.deadline else { return Some(ticket) };
        let itself = (deadline, ticket);
        Some(self.first().map_or(itself, |first| first.min(itself)).1)
    }

    /// Removes a task, and returns it with its timer.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<(Entry, Option<Cancellable>)> {
        let task = self.by_ticket.remove(&ticket)?;
        task.job.position().set(Position::Gone);
        if let Some(deadline) = task.deadline {
            self.by_deadline.remove(&(deadline, ticket));
        }
        if self.by_ticket.capacity() > SMALL && self.len() < self.by_ticket.capacity() / 8 {
            self.by_ticket.shrink_to(2 * self.len());
        }
        Some((task.job, task.timer))
    }

    /// Returns all tasks with their timers, in any order.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Entry, Option<Cancellable>)> {
        self.by_ticket.into_values().map(|task| (task.job, task.timer))
    }

    /// Checks DELAY-1 and DELAY-2 at both ends of the order, in O(log n).
    pub(super) fn check_invariants(&self) {
        assert!(self.by_deadline.len() <= self.len(), "each deadline has a task (DELAY-2)");
        for &(deadline, ticket) in
            self.by_deadline.first().into_iter().chain(self.by_deadline.last())
        {
            assert!(ticket <= self.last_ticket, "tickets are given out in order (DELAY-1)");
            let task = self.by_ticket.get(&ticket).expect("each deadline has a task (DELAY-2)");
            assert_eq!(task.deadline, Some(deadline), "a task has one deadline (DELAY-2)");
            assert_eq!(
                task.job.position().get(),
                Position::Delayed(ticket),
                "a task knows its ticket"
            );
        }
    }
}

/// When a task is to be queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

/// The clock of delayed tasks.
#[derive(Clone)]
pub(super) enum Timers {
    /// Runs timers on its tick thread, in order of deadline.
    Wheel(Scheduler),
    /// Runs timers wherever it runs tasks, and perhaps out of order.
    Any(Arc<dyn Schedule>),
}

impl Timers {
    pub(super) fn now(&self) -> Instant {
        match self {
            Timers::Wheel(scheduler) => scheduler.now(),
            Timers::Any(schedule) => schedule.now(),
        }
    }

    /// Returns when the timer of a task is to run. The deadline beside it is `None` if the timers keep the order.
    pub(super) fn with_deadline(&self, when: When) -> (When, Option<Instant>) {
        let deadline = match (self, when) {
            (Timers::Wheel(_), _) => return (when, None),
            (Timers::Any(_), When::At(deadline)) => deadline,
            (Timers::Any(schedule), When::After(delay)) => {
                let now = schedule.now();
                // A deadline beyond the range of the clock becomes the latest that it has.
                Period::fixed_delay(delay).next_run(now, now)
            }
        };
        (When::At(deadline), Some(deadline))
    }

    pub(super) fn schedule(
        &self,
        when: When,
        timer: impl FnOnce() + Send + 'static,
    ) -> Result<Cancellable, ScheduleError> {
        match (self, when) {
            (Timers::Wheel(scheduler), When::At(deadline)) => {
                scheduler.schedule_at(deadline, timer)
            }
            (Timers::Wheel(scheduler), When::After(delay)) => scheduler.schedule_once(delay, timer),
            (Timers::Any(schedule), When::At(deadline)) => {
                schedule.schedule_task_at(deadline, Box::new(timer))
            }
            (Timers::Any(schedule), When::After(delay)) => {
                schedule.schedule_task(delay, Box::new(timer))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;

    use super::super::composite::CompositeCancellable;
    use super::super::serial::SerialQueue;
    use super::*;
    use crate::job::{Job, Once};

    /// Returns a task that is only moved about.
    fn task() -> Entry {
        let nobody: Weak<dyn TaskQueue> = Weak::<SerialQueue>::new();
        Job::new(nobody, Once(|| ()))
    }

    /// This is not an assertion of the build, because std's locks are larger on other systems.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_job_of_two_words_fits_into_a_cache_line() {
        let size = size_of::<Job<Once<[usize; 2]>, dyn TaskQueue>>();
        assert!(size <= 64, "{size}; with its counts it takes 16 bytes more");
    }

    /// Returns a handle unlike any other. A cancel of a clone shows which one it is.
    fn timer() -> Cancellable {
        Cancellable::from(Arc::new(CompositeCancellable::new()))
    }

    #[test]
    fn a_timer_of_an_earlier_wait_finds_nothing() {
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
        delayed.check_invariants();
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
        delayed.check_invariants();
        // Due no later than the second task that waits for 1 ms.
        let mut came = Vec::new();
        while let Some(first) = delayed.first_before(tickets[8]) {
            came.push(first);
            delayed.remove(first);
        }
        let expected = tickets.iter().step_by(7).chain([&tickets[1], &tickets[8]]);
        assert!(came.iter().eq(expected));
        tickets[15..].iter().for_each(|ticket| _ = delayed.remove(*ticket));
        assert!(delayed.by_ticket.capacity() <= SMALL);
        assert_eq!(delayed.by_deadline.len() + 1, delayed.len());
        delayed.check_invariants();
        assert_eq!(delayed.first(), Some((start + Duration::from_millis(2), tickets[2])));
    }
}
