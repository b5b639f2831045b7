//! The tasks of a strand that wait for their time: a table of rooms.
//!
//! The wheel knows when their time comes; here they can be found, to be cancelled together. It is data: no
//! lock, no clock.
//!
//! - D1 A task's [`Place`](super::place::Place) is its room, so it leaves in O(1). When few rooms are in use
//!   the table moves into a smaller one, and gives its tasks new rooms: that is paid for by those that have
//!   left.
//! - D2 A ticket names one wait of one task. So a timer that is brought too late, when the task has come, or
//!   waits again, is known for what it is.

use super::home::Entry;
use super::place::{Place, Spot};
use crate::Cancellable;

/// A smaller table does not move.
const SMALL: usize = 256;

#[derive(Default)]
pub(super) struct Delayed {
    rooms: Vec<Option<Room>>,
    free: Vec<usize>,
    tickets: u64,
}

struct Room {
    job: Entry,
    /// What cancels its arrival.
    timer: Option<Cancellable>,
    ticket: u64,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.rooms.len() - self.free.len()
    }

    /// Takes a task in. Its ticket; D2.
    pub(super) fn insert(&mut self, job: Entry) -> u64 {
        self.tickets += 1;
        self.put(Room { job, timer: None, ticket: self.tickets });
        self.tickets
    }

    fn put(&mut self, room: Room) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.rooms.push(None);
            self.rooms.len() - 1
        });
        room.job.place().set(Spot::Delayed(at as u64));
        self.rooms[at] = Some(room);
    }

    /// Notes what cancels a task's arrival. When that is of no use any more it comes back; D2.
    pub(super) fn set_timer(
        &mut self,
        place: &Place,
        ticket: u64,
        timer: Cancellable,
    ) -> Option<Cancellable> {
        let Spot::Delayed(at) = place.get() else { return Some(timer) };
        match self.rooms.get_mut(at as usize) {
            Some(Some(room)) if room.ticket == ticket => room.timer.replace(timer),
            _ => Some(timer),
        }
    }

    /// Takes the task of a room out, with its timer.
    pub(super) fn remove(&mut self, at: u64) -> Option<(Entry, Option<Cancellable>)> {
        let at = usize::try_from(at).ok()?;
        let room = self.rooms.get_mut(at)?.take()?;
        room.job.place().set(Spot::Gone);
        self.free.push(at);
        if self.rooms.len() > SMALL && self.len() <= self.rooms.len() / 8 {
            self.move_house();
        }
        Some((room.job, room.timer))
    }

    /// D1.
    #[cold]
    fn move_house(&mut self) {
        let smaller = Vec::with_capacity(2 * self.len());
        let rooms = std::mem::replace(&mut self.rooms, smaller);
        self.free = Vec::new();
        rooms.into_iter().flatten().for_each(|room| self.put(room));
    }

    /// All that are in, with their timers.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Entry, Option<Cancellable>)> {
        self.rooms.into_iter().flatten().map(|room| (room.job, room.timer))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::composite::CompositeCancellable;
    use super::super::place::tests::husk;
    use super::*;

    /// A handle of its own: whoever is cancelled is the same.
    fn timer() -> Cancellable {
        Cancellable::from(Arc::new(CompositeCancellable::new()))
    }

    fn room_of(job: &Entry) -> u64 {
        match job.place().get() {
            Spot::Delayed(at) => at,
            other => panic!("not delayed: {other:?}"),
        }
    }

    #[test]
    fn a_timer_of_an_earlier_wait_is_nobody_s() {
        let (mut delayed, job) = (Delayed::default(), husk());
        let ticket = delayed.insert(Arc::clone(&job));
        let first = timer();
        assert!(delayed.set_timer(job.place(), ticket, first.clone()).is_none());
        let (_, came) = delayed.remove(room_of(&job)).expect("in it");
        assert!(!first.is_cancelled());
        came.expect("its timer").cancel();
        assert!(first.is_cancelled(), "the same one");
        assert!(delayed.set_timer(job.place(), ticket, timer()).is_some(), "it has come");
        let again = delayed.insert(Arc::clone(&job));
        assert!(delayed.set_timer(job.place(), ticket, timer()).is_some(), "it waits again");
        assert!(delayed.set_timer(job.place(), again, timer()).is_none());
        assert!(delayed.remove(room_of(&job)).is_some_and(|(_, timer)| timer.is_some()));
        assert!(delayed.set_timer(job.place(), again, timer()).is_some(), "gone");
    }

    #[test]
    fn after_a_peak_the_table_is_small_again_and_everyone_keeps_what_is_theirs() {
        let mut delayed = Delayed::default();
        let jobs: Vec<_> = (0..100_000).map(|_| husk()).collect();
        let tickets: Vec<_> = jobs.iter().map(|job| delayed.insert(Arc::clone(job))).collect();
        assert!(delayed.set_timer(jobs[77].place(), tickets[77], timer()).is_none());
        for (at, job) in jobs.iter().enumerate().filter(|(at, _)| ![77, 99].contains(at)) {
            let (removed, _) = delayed.remove(room_of(job)).expect("in it");
            assert!(std::ptr::addr_eq(Arc::as_ptr(&removed), Arc::as_ptr(&jobs[at])));
            assert!(job.place().get() == Spot::Gone);
        }
        assert!(delayed.len() == 2 && delayed.rooms.len() <= SMALL && delayed.free.len() <= SMALL);
        assert!(delayed.set_timer(jobs[99].place(), tickets[99], timer()).is_none());
        let (_, timer) = delayed.remove(room_of(&jobs[77])).expect("in it");
        assert!(timer.is_some());
        assert_eq!((delayed.len(), delayed.into_all().count()), (1, 1));
    }

    #[test]
    fn rooms_are_used_again() {
        let mut delayed = Delayed::default();
        for _ in 0..10_000 {
            let job = husk();
            delayed.insert(Arc::clone(&job));
            assert!(delayed.remove(room_of(&job)).is_some());
            assert!(delayed.remove(0).is_none() && delayed.remove(7).is_none());
        }
        assert!(delayed.rooms.len() == 1 && delayed.len() == 0);
    }
}
