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

    #[cfg(all(test, not(loom)))]
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::super::home::Home;
    use super::*;
    use crate::Cancel;

    /// A task of which only the place matters.
    struct Husk {
        place: Place,
    }

    impl Cancel for Husk {
        fn cancel(&self) -> bool {
            false
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            false
        }
    }

    impl Run for Husk {
        fn run(&self, _home: &dyn Home) -> Option<Instant> {
            None
        }
        fn forfeit(&self) {}
        fn place(&self) -> &Place {
            &self.place
        }
    }

    fn husk() -> Arc<dyn Run> {
        Arc::new(Husk { place: Place::new() })
    }

    /// A handle that tells whether it was cancelled, to tell handles apart.
    #[derive(Default)]
    struct Timer(AtomicBool);

    impl Cancel for Timer {
        fn cancel(&self) -> bool {
            !self.0.swap(true, Ordering::Relaxed)
        }
        fn is_cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
        fn is_done(&self) -> bool {
            self.is_cancelled()
        }
    }

    fn timer() -> Cancellable {
        Cancellable::from(Arc::new(Timer::default()))
    }

    fn same(one: &Arc<dyn Run>, other: &Arc<dyn Run>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
    }

    #[test]
    fn the_table_does_what_plain_lists_do() {
        for seed in 1..=30_u64 {
            let mut state = seed;
            let mut below = |end: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) as usize % end
            };
            let mut tasks = Tasks::new();
            let mut model: BTreeMap<u8, VecDeque<Arc<dyn Run>>> =
                [(0, VecDeque::new()), (1, VecDeque::new()), (2, VecDeque::new())].into();
            let lists = [List::Delayed, List::Queued, List::Taken];
            // It grows for a while, and then shrinks.
            for step in 0..3_000 {
                let from = below(3);
                let of_one = model.get_mut(&(from as u8)).expect("three");
                let at = if of_one.is_empty() { None } else { Some(below(of_one.len())) };
                match (below(if step < 1_500 { 6 } else { 24 }), at) {
                    (0..4, _) => {
                        let (job, list) = (husk(), below(2));
                        tasks.insert(Arc::clone(&job), lists[list]);
                        model.get_mut(&(list as u8)).expect("three").push_back(job);
                    }
                    (4, Some(at)) => {
                        let job = of_one.remove(at).expect("there");
                        let to = below(3);
                        assert!(tasks.shift(job.place(), lists[to]).is_some());
                        model.get_mut(&(to as u8)).expect("three").push_back(job);
                    }
                    (5, _) => {
                        let (limit, mut taken) = (below(10), Vec::new());
                        tasks.take_up(limit, &mut taken);
                        let queued = model.get_mut(&1).expect("three");
                        let expected: Vec<_> = queued.drain(..limit.min(queued.len())).collect();
                        assert!(taken.len() == expected.len());
                        assert!(taken.iter().zip(&expected).all(|(one, other)| same(one, other)));
                        model.get_mut(&2).expect("three").extend(expected);
                    }
                    (6, _) if below(20) == 0 => {
                        tasks.put_down();
                        let gone = std::mem::take(model.get_mut(&2).expect("three"));
                        assert!(gone.iter().all(|job| job.place().get().is_none()));
                    }
                    (_, Some(at)) => {
                        let job = of_one.remove(at).expect("there");
                        assert!(tasks.remove(job.place()).is_none());
                        assert!(tasks.remove(job.place()).is_none(), "it is gone");
                        assert!(tasks.shift(job.place(), List::Queued).is_none());
                    }
                    (_, None) => {}
                }
                if step % 50 == 0 {
                    tasks.check_invariants();
                }
                for (list, of_one) in lists.iter().zip(model.values()) {
                    assert_eq!(tasks.len(*list), of_one.len());
                }
            }
            let all = tasks.into_all();
            let expected = [2, 1, 0].map(|list| model.remove(&list).expect("three"));
            assert!(
                all.iter()
                    .map(|(job, _)| job)
                    .zip(expected.iter().flatten())
                    .all(|(a, b)| same(a, b))
            );
            assert_eq!(all.len(), expected.iter().map(VecDeque::len).sum::<usize>());
        }
    }

    #[test]
    fn a_timer_of_an_earlier_round_is_nobody_s() {
        let (mut tasks, job) = (Tasks::new(), husk());
        tasks.insert(Arc::clone(&job), List::Delayed);
        let first = timer();
        assert!(tasks.set_timer(job.place(), 0, first.clone()).is_none());
        let (came, _) = tasks.shift(job.place(), List::Queued).expect("in it");
        assert!(came.is_some_and(|came| came.cancel()) && first.is_cancelled(), "the same one");
        assert!(tasks.set_timer(job.place(), 0, timer()).is_some(), "not delayed any more");
        let (_, round) = tasks.shift(job.place(), List::Delayed).expect("in it");
        assert_eq!(round, 1);
        assert!(tasks.set_timer(job.place(), 0, timer()).is_some(), "delayed again");
        assert!(tasks.set_timer(job.place(), round, timer()).is_none());
        assert!(tasks.remove(job.place()).is_some());
        assert!(tasks.set_timer(job.place(), round, timer()).is_some(), "gone");
    }

    #[test]
    fn after_a_peak_the_table_is_small_again() {
        let mut tasks = Tasks::new();
        let jobs: Vec<_> = (0..100_000).map(|_| husk()).collect();
        jobs.iter().for_each(|job| tasks.insert(Arc::clone(job), List::Delayed));
        tasks.set_timer(jobs[77].place(), 0, timer());
        let (_, round) = tasks.shift(jobs[99].place(), List::Delayed).expect("in it");
        for job in
            jobs.iter().enumerate().filter(|(at, _)| ![77, 99].contains(at)).map(|(_, job)| job)
        {
            tasks.remove(job.place());
        }
        tasks.check_invariants();
        assert!(tasks.rooms.len() <= SMALL && tasks.rooms.capacity() <= SMALL);
        assert!(
            tasks.set_timer(jobs[99].place(), round, timer()).is_none(),
            "its round went with it"
        );
        assert!(tasks.remove(jobs[77].place()).is_some(), "and its timer");
        // The last one down leaves nothing.
        let jobs: Vec<_> = (0..100_000).map(|_| husk()).collect();
        jobs.iter().for_each(|job| tasks.insert(Arc::clone(job), List::Queued));
        tasks.take_up(usize::MAX, &mut Vec::new());
        tasks.put_down();
        assert!(tasks.rooms.len() <= SMALL && tasks.len(List::Delayed) == 1);
    }
}
