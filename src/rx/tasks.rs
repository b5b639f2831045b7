//! The tasks of a strand that have not ended: three lists in one table.
//!
//! ```text
//!             arrives               is taken up                ends
//!   Delayed ----------> Queued ------------------> Taken ------------------> (gone)
//!      ^                  ^                          |
//!      '------------------'------- a series ---------'
//! ```
//!
//! The lists go both ways, so a task leaves wherever it is in O(1): a cancel searches nothing. It is
//! data: no lock, no clock, and it runs no task.
//!
//! - T1 A task's [`Place`] says where it is in the table, or that it is gone. It is read and written under
//!   the lock that guards the table, so the table may move tasks.
//! - T2 Rooms without a task are in the list of free ones. When most are, the table moves into a smaller
//!   one: each move is paid for by the tasks that have left since the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::job::Run;
use crate::Cancellable;

/// Where a task is in its table; T1. A task has one for life.
#[derive(Debug)]
pub(super) struct Place(AtomicU64);

impl Place {
    const GONE: u64 = u64::MAX;

    pub(super) fn new() -> Place {
        Place(AtomicU64::new(Place::GONE))
    }

    // Relaxed, because the table's lock orders all of them.
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|place| *place != Place::GONE)
    }

    pub(super) fn set(&self, place: Option<u64>) {
        self.0.store(place.unwrap_or(Place::GONE), Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Waits for its time.
    Delayed,
    /// Waits for its turn.
    Queued,
    /// In the hands of the drain.
    Taken,
    /// A room without a task.
    Free,
}

const LISTS: usize = 4;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A table of fewer rooms never moves.
const SMALL: usize = 1024;

pub(super) struct Tasks {
    rooms: Vec<Room>,
    ends: [Ends; LISTS],
}

struct Room {
    job: Option<Arc<dyn Run>>,
    /// What cancels its arrival, while it is delayed.
    timer: Option<Cancellable>,
    /// How often it has been delayed: a timer of an earlier time is not its timer.
    round: u32,
    list: List,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

impl Ends {
    const EMPTY: Ends = Ends { first: NONE, last: NONE, len: 0 };
}

impl Tasks {
    pub(super) const fn new() -> Tasks {
        Tasks { rooms: Vec::new(), ends: [Ends::EMPTY; LISTS] }
    }

    pub(super) fn len(&self, list: List) -> usize {
        self.ends[list as usize].len as usize
    }

    /// Takes in a new task, at the end of a list.
    pub(super) fn insert(&mut self, job: Arc<dyn Run>, list: List) {
        let at = self.free_room();
        job.place().set(Some(u64::from(at)));
        self.unlink(at);
        self.link(at, list);
        let room = &mut self.rooms[at as usize];
        (room.job, room.round) = (Some(job), 0);
    }

    /// Puts a task at the end of another list. What was its timer, and its new round; `None` if it is gone.
    pub(super) fn shift(&mut self, place: &Place, to: List) -> Option<(Option<Cancellable>, u32)> {
        let at = Self::at(place)?;
        self.unlink(at);
        self.link(at, to);
        let room = &mut self.rooms[at as usize];
        room.round += u32::from(to == List::Delayed);
        Some((room.timer.take(), room.round))
    }

    /// Notes what cancels a delayed task's arrival. If it is not delayed any more, or again, that comes
    /// back.
    pub(super) fn set_timer(
        &mut self,
        place: &Place,
        round: u32,
        timer: Cancellable,
    ) -> Option<Cancellable> {
        match Self::at(place).map(|at| &mut self.rooms[at as usize]) {
            Some(room) if room.list == List::Delayed && room.round == round => {
                room.timer.replace(timer)
            }
            _ => Some(timer),
        }
    }

    /// Lets a task go. Its timer, if it had one.
    pub(super) fn remove(&mut self, place: &Place) -> Option<Cancellable> {
        let at = Self::at(place)?;
        let timer = self.vacate(at);
        self.shrink();
        timer
    }

    /// Takes up the first of those that are queued, at most so many.
    pub(super) fn take_up(&mut self, limit: usize, into: &mut Vec<Arc<dyn Run>>) {
        for _ in 0..limit {
            let at = self.ends[List::Queued as usize].first;
            if at == NONE {
                break;
            }
            self.unlink(at);
            self.link(at, List::Taken);
            into.extend(self.rooms[at as usize].job.clone());
        }
    }

    /// Lets go all that were taken up and are still so.
    pub(super) fn put_down(&mut self) {
        while self.ends[List::Taken as usize].first != NONE {
            drop(self.vacate(self.ends[List::Taken as usize].first)); // it was taken up, so it has no timer
        }
        self.shrink();
    }

    /// All that are in, with their timers; the table is of no use any more.
    pub(super) fn into_all(mut self) -> Vec<(Arc<dyn Run>, Option<Cancellable>)> {
        let mut all = Vec::with_capacity(self.in_use());
        for list in [List::Taken, List::Queued, List::Delayed] {
            all.extend(self.empty(list).map(|(job, timer, _)| (job, timer)));
        }
        all
    }

    // ----- rooms ---------------------------------------------------------------------------

    fn at(place: &Place) -> Option<u32> {
        place.get().map(|at| at as u32) // it came from one
    }

    /// The room of a task, without it, is free.
    fn vacate(&mut self, at: u32) -> Option<Cancellable> {
        self.unlink(at);
        self.link(at, List::Free);
        let room = &mut self.rooms[at as usize];
        let job = room.job.take();
        job.iter().for_each(|job| job.place().set(None));
        room.timer.take()
    }

    /// A free room; it is in its list.
    fn free_room(&mut self) -> u32 {
        let free = self.ends[List::Free as usize].last; // the one that was used last
        if free != NONE {
            return free;
        }
        let at = u32::try_from(self.rooms.len()).ok().filter(|at| *at != NONE);
        let at = at.expect("a worker has fewer than four thousand million tasks");
        let (list, before, after) = (List::Free, NONE, NONE);
        self.rooms.push(Room { job: None, timer: None, round: 0, list, before, after });
        self.link(at, List::Free);
        at
    }

    fn unlink(&mut self, at: u32) {
        let Room { list, before, after, .. } = self.rooms[at as usize];
        let ends = &mut self.ends[list as usize];
        ends.len -= 1;
        match before {
            NONE => ends.first = after,
            before => self.rooms[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            after => self.rooms[after as usize].before = before,
        }
    }

    fn link(&mut self, at: u32, list: List) {
        let ends = &mut self.ends[list as usize];
        let before = std::mem::replace(&mut ends.last, at);
        ends.len += 1;
        match before {
            NONE => ends.first = at,
            before => self.rooms[before as usize].after = at,
        }
        let room = &mut self.rooms[at as usize];
        (room.list, room.before, room.after) = (list, before, NONE);
    }

    fn in_use(&self) -> usize {
        self.rooms.len() - self.len(List::Free)
    }

    /// What the rooms of a list hold, in order. Only the rooms remain.
    fn empty(
        &mut self,
        list: List,
    ) -> impl Iterator<Item = (Arc<dyn Run>, Option<Cancellable>, u32)> {
        let mut at = self.ends[list as usize].first;
        std::iter::from_fn(move || {
            let room = self.rooms.get_mut(at as usize)?; // `NONE` is no room
            at = room.after;
            room.job.take().map(|job| (job, room.timer.take(), room.round))
        })
    }

    /// T2.
    fn shrink(&mut self) {
        let in_use = self.in_use();
        if self.rooms.len() <= SMALL || in_use > self.rooms.len() / 8 {
            return;
        }
        let mut smaller = Tasks { rooms: Vec::with_capacity(2 * in_use), ..Tasks::new() };
        for list in [List::Delayed, List::Queued, List::Taken] {
            for (job, timer, round) in self.empty(list) {
                smaller.insert(job, list);
                let last = smaller.ends[list as usize].last;
                let room = &mut smaller.rooms[last as usize];
                (room.timer, room.round) = (timer, round);
            }
        }
        *self = smaller;
    }

    #[cfg(test)]
    fn check_invariants(&self) {
        let mut seen = 0;
        for list in [List::Delayed, List::Queued, List::Taken, List::Free] {
            let ends = self.ends[list as usize];
            let (mut before, mut at, mut len) = (NONE, ends.first, 0);
            while at != NONE {
                let room = &self.rooms[at as usize];
                assert_eq!((room.list, room.before), (list, before));
                assert_eq!(room.job.is_some(), list != List::Free);
                if let Some(job) = &room.job {
                    assert_eq!(job.place().get(), Some(u64::from(at)), "T1");
                }
                assert!(room.timer.is_none() || list == List::Delayed);
                (before, at, len) = (at, room.after, len + 1);
            }
            assert_eq!((ends.last, ends.len), (before, len));
            seen += len as usize;
        }
        assert_eq!(seen, self.rooms.len());
    }
}
