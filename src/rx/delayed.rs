//! The tasks of a worker that wait for their time, and the clock that keeps it.
//!
//! No lock is taken here and no task runs: the queue that owns a [`Delayed`] has the lock.
//!
//! - DELAY-1 A ticket names one wait of one task for one timer, and is never used again. So a timer that comes too late,
//!   when the task has left, waits for another run or has another timer, finds nothing.
//! - DELAY-2 Each entry of `by_deadline` stands for a task in `by_ticket` that has this deadline and this turn.
//! - DELAY-3 The deadline of a task that was moved is the one in `by_ticket`. Its timer fires no later than that, or a
//!   thread is about to set or to move it, and looks at the deadline again when it stores the timer. A timer that
//!   fires too early finds the later deadline, and the task gets another timer, with another ticket.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::position::Position;
use super::worker::TaskQueue;
use crate::Cancellable;
use crate::pool::job::{Due, Run};

/// A task as its queue holds it.
pub(super) type Entry = Arc<dyn Run<dyn TaskQueue>>;

/// A queue keeps the memory for this many tasks after a peak.
pub(super) const SMALL: usize = 512;

/// The tasks that wait for their time. A task leaves in O(1), or in O(log n) if it has a deadline.
#[derive(Default)]
pub(super) struct Delayed {
    by_ticket: HashMap<u64, DelayedTask>,
    /// The ticket of each task, by deadline and turn. Tasks of equal deadlines are in the order in which they came or were
    /// moved (DELAY-2).
    by_deadline: BTreeMap<(Instant, u64), u64>,
    /// Tickets and turns are given out in order.
    last_ticket: u64,
}

struct DelayedTask {
    job: Entry,
    /// `None` if only the timer knows it.
    deadline: Option<Instant>,
    /// `None` if the timers keep the order of the deadlines, or if the task is not in order yet.
    turn: Option<u64>,
    /// The deadline was moved, so the timer may fire too early (DELAY-3).
    was_moved: bool,
    timer: Option<Cancellable>,
    /// Noted before the timer is set, because the timer may fire before its handle is here.
    set_for: SetFor,
    /// The task was moved, and another timer is being set for it. If that is refused, the task stays.
    is_arming: bool,
    /// The timer that is being set was dropped, or refused.
    was_dropped: bool,
}

/// What a timer was set for, or is being set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetFor {
    /// The timer has the deadline, and this table does not.
    Unknown,
    At(Instant),
    /// This deadline, on the clock of another scheduler, where it cannot be moved.
    Elsewhere(Instant),
}

/// What a firing timer finds.
pub(super) enum Found {
    /// This task is due.
    Due(Entry, Option<Cancellable>),
    /// The timer's task was moved to a later deadline and needs a new timer. This was the time.
    Later(Reissued, Instant),
    /// Its task was moved, so only the clock can tell.
    NoClock,
    /// Its task has left.
    Nothing,
}

/// A task that needs a timer for its new ticket.
pub(super) struct Reissued {
    pub(super) job: Entry,
    pub(super) ticket: u64,
    pub(super) deadline: Instant,
    /// The timer that it had, and what that was set for.
    pub(super) timer: Option<Cancellable>,
    pub(super) set_for: SetFor,
}

/// What [`Delayed::set_timer`] leaves to do.
#[derive(Debug)]
pub(super) enum TimerSet {
    Done,
    /// The deadline was moved in the meantime, so the timer has to be moved too (DELAY-3).
    IsMoved,
    /// The task has left in the meantime (DELAY-1).
    Unwanted(Cancellable),
    /// The timer was dropped in the meantime, and the task was removed.
    WasDropped(Cancellable),
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// Adds a task, and returns its ticket. The caller sets a timer for this deadline. The task has no part in the order
    /// of the deadlines until [`put_in_order`](Delayed::put_in_order).
    pub(super) fn insert(&mut self, job: Entry, deadline: Option<Instant>) -> u64 {
        self.last_ticket += 1;
        job.position().set(Position::Delayed(self.last_ticket));
        let task = DelayedTask {
            job,
            deadline,
            turn: None,
            was_moved: false,
            timer: None,
            set_for: deadline.map_or(SetFor::Unknown, SetFor::At),
            is_arming: false,
            was_dropped: false,
        };
        self.by_ticket.insert(self.last_ticket, task);
        self.last_ticket
    }

    /// Adds a task that was moved, for which a timer is being set.
    pub(super) fn insert_moved(&mut self, job: Entry, deadline: Instant) -> u64 {
        let ticket = self.insert(job, Some(deadline));
        if let Some(task) = self.by_ticket.get_mut(&ticket) {
            (task.was_moved, task.is_arming) = (true, true);
        }
        ticket
    }

    /// Adds the deadline of a task, if it has one, to the order of all deadlines.
    pub(super) fn put_in_order(&mut self, ticket: u64) {
        let Some(task) = self.by_ticket.get_mut(&ticket) else { return };
        let (Some(deadline), None) = (task.deadline, task.turn) else { return };
        task.turn = Some(ticket);
        self.by_deadline.insert((deadline, ticket), ticket);
    }

    /// Stores the timer of a task, which may have been moved since it was set.
    pub(super) fn set_timer(
        &mut self,
        ticket: u64,
        timer: Cancellable,
        moved_to: Option<Instant>,
    ) -> TimerSet {
        let Some(task) = self.by_ticket.get_mut(&ticket) else { return TimerSet::Unwanted(timer) };
        if task.was_dropped {
            self.remove(ticket);
            return TimerSet::WasDropped(timer);
        }
        debug_assert!(task.timer.is_none(), "a task has one timer (DELAY-3)");
        (task.timer, task.is_arming) = (Some(timer), false);
        task.set_for = moved_to.map_or(task.set_for, SetFor::At);
        let is_moved = match task.set_for {
            SetFor::At(at) => Some(at) != task.deadline,
            SetFor::Elsewhere(at) => Some(at) > task.deadline,
            SetFor::Unknown => true,
        };
        if task.was_moved && is_moved { TimerSet::IsMoved } else { TimerSet::Done }
    }

    /// Puts a timer back that cannot be moved, if it fires early enough (DELAY-3). Returns it otherwise.
    pub(super) fn put_timer_back(
        &mut self,
        ticket: u64,
        timer: Cancellable,
    ) -> Option<Cancellable> {
        let Some(task) = self.by_ticket.get_mut(&ticket) else { return Some(timer) };
        match task.set_for {
            SetFor::At(at) | SetFor::Elsewhere(at) if Some(at) <= task.deadline => {
                task.timer = Some(timer);
                None
            }
            _ => Some(timer),
        }
    }

    /// A timer was dropped without having fired. Removes its task, unless the timer was just being set: then
    /// [`set_timer`](Delayed::set_timer) does so, if the timer had been accepted.
    pub(super) fn drop_timer(&mut self, ticket: u64) -> Option<(Entry, Option<Cancellable>)> {
        let task = self.by_ticket.get_mut(&ticket)?;
        if task.is_arming {
            task.was_dropped = true;
            return None;
        }
        self.remove(ticket)
    }

    /// Moves the deadline of a task. Its timer has to follow (DELAY-3). Returns false if the task has left.
    pub(super) fn move_to(&mut self, ticket: u64, deadline: Instant) -> bool {
        let Some(task) = self.by_ticket.get_mut(&ticket) else { return false };
        let before = task.deadline.replace(deadline);
        task.was_moved = true;
        if let (Some(before), Some(turn)) = (before, task.turn) {
            self.by_deadline.remove(&(before, turn));
            self.last_ticket += 1; // it counts as scheduled now
            task.turn = Some(self.last_ticket);
            self.by_deadline.insert((deadline, self.last_ticket), ticket);
        }
        true
    }

    /// Takes the timer of a task out, for the caller to move it to this deadline and put it back.
    pub(super) fn take_timer(
        &mut self,
        ticket: u64,
    ) -> Option<(Entry, Cancellable, SetFor, Instant)> {
        let task = self.by_ticket.get_mut(&ticket)?;
        Some((Arc::clone(&task.job), task.timer.take()?, task.set_for, task.deadline?))
    }

    /// Gives a moved task a new ticket, for its new timer (DELAY-1). `set_for` is [`SetFor::At`], or
    /// [`SetFor::Elsewhere`] if another scheduler is to keep the time.
    pub(super) fn reissue(
        &mut self,
        ticket: u64,
        set_for: fn(Instant) -> SetFor,
    ) -> Option<Reissued> {
        let deadline = self.by_ticket.get(&ticket)?.deadline?;
        let mut task = self.by_ticket.remove(&ticket)?;
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        task.job.position().set(Position::Delayed(ticket));
        if let Some(turn) = task.turn {
            self.by_deadline.insert((deadline, turn), ticket);
        }
        let (job, timer) = (Arc::clone(&task.job), task.timer.take());
        (task.is_arming, task.was_dropped) = (true, false);
        let set_for = std::mem::replace(&mut task.set_for, set_for(deadline));
        self.by_ticket.insert(ticket, task);
        Some(Reissued { job, ticket, deadline, timer, set_for })
    }

    /// Returns when a task is due.
    pub(super) fn due(&self, ticket: u64) -> Due {
        let task = self.by_ticket.get(&ticket);
        match task.map(|task| (task.deadline, &task.timer)) {
            Some((Some(deadline), _)) => Due::At(deadline),
            Some((None, Some(timer))) => Due::AsksTimer(timer.clone()),
            _ => Due::Now,
        }
    }

    /// Returns the earliest deadline and its ticket.
    pub(super) fn first(&self) -> Option<(Instant, u64)> {
        self.by_deadline.first_key_value().map(|((deadline, _), ticket)| (*deadline, *ticket))
    }

    /// Returns the ticket of the task that has to be queued first when the task with this ticket is due: an earlier
    /// one, or the task itself. Returns `None` if the task has left.
    pub(super) fn first_before(&self, ticket: u64) -> Option<u64> {
        let task = self.by_ticket.get(&ticket)?;
        let (Some(deadline), Some(turn)) = (task.deadline, task.turn) else { return Some(ticket) };
        let first = self.by_deadline.first_key_value().filter(|(key, _)| **key < (deadline, turn));
        Some(first.map_or(ticket, |(_, first)| *first))
    }

    /// Removes what is due when the timer with this ticket fires. It needs the clock for a task that was moved.
    pub(super) fn come_out(&mut self, ticket: u64, now: Option<Instant>) -> Found {
        let Some(task) = self.by_ticket.get(&ticket) else { return Found::Nothing };
        match (task.deadline.filter(|_| task.was_moved), now) {
            (Some(_), None) => return Found::NoClock,
            (Some(deadline), Some(now)) if deadline > now => {
                let reissued = self.reissue(ticket, SetFor::At);
                return reissued.map_or(Found::Nothing, |reissued| Found::Later(reissued, now));
            }
            _ => {}
        }
        let first = self.first_before(ticket).and_then(|first| self.remove(first));
        first.map_or(Found::Nothing, |(job, timer)| Found::Due(job, timer))
    }

    /// Removes a task, and returns it with its timer.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<(Entry, Option<Cancellable>)> {
        let task = self.by_ticket.remove(&ticket)?;
        task.job.position().set(Position::Gone);
        if let (Some(deadline), Some(turn)) = (task.deadline, task.turn) {
            self.by_deadline.remove(&(deadline, turn));
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
        let ends = [self.by_deadline.first_key_value(), self.by_deadline.last_key_value()];
        for (&(deadline, turn), ticket) in ends.into_iter().flatten() {
            assert!(turn.max(*ticket) <= self.last_ticket, "tickets are in order (DELAY-1)");
            let task = self.by_ticket.get(ticket).expect("each deadline has a task (DELAY-2)");
            let key = (task.deadline, task.turn);
            assert_eq!(key, (Some(deadline), Some(turn)), "a task has one deadline (DELAY-2)");
            assert_eq!(
                task.job.position().get(),
                Position::Delayed(*ticket),
                "a task knows its ticket"
            );
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::super::composite::CompositeCancellable;
    use super::super::serial::SerialQueue;
    use super::*;
    use crate::pool::job::{Job, Once};

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
        assert!(matches!(delayed.set_timer(ticket, first.clone(), None), TimerSet::Done));
        let (_, came) = delayed.remove(ticket).expect("in it");
        assert!(!first.is_cancelled());
        came.expect("its timer").cancel();
        assert!(first.is_cancelled(), "the same one");
        let is_unwanted = |set| matches!(set, TimerSet::Unwanted(_));
        assert!(is_unwanted(delayed.set_timer(ticket, timer(), None)), "it has come");
        let again = delayed.insert(Arc::clone(&job), None);
        assert!(is_unwanted(delayed.set_timer(ticket, timer(), None)), "it waits again");
        assert!(delayed.first_before(ticket).is_none() && delayed.remove(ticket).is_none());
        assert!(matches!(delayed.set_timer(again, timer(), None), TimerSet::Done));
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
