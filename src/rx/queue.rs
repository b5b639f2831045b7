//! The tasks of a strand that wait for their turn: a ring with holes.
//!
//! ```text
//!      first                                             numbers go on for ever
//!        |  taken up |  queued
//!        [ a . c d e | f g . . j k . m ]  <- push
//!            ^             ^ ^     ^
//!            '-------------'-'-----'--- holes: cancelled, or gone on
//! ```
//!
//! A task's [`Place`](super::place::Place) is its number, so it leaves in O(1) wherever it is: a cancel
//! searches nothing. It is data: no lock, and it runs no task.
//!
//! A strand has two: one where tasks come in, and one that the drain works on. When that is empty they change
//! places, so those who bring tasks and the one who runs them seldom meet.
//!
//! - R1 What was taken up stays until it is put down, is cancelled, or goes on: so whoever cancels all finds it.
//! - R2 The first that is queued and the last are no holes. When more than half are, the ring closes up, and
//!   gives its tasks new numbers: that is paid for by those that have left.

use std::collections::VecDeque;

use super::home::Entry;
use super::place::Spot;

/// So many holes, and half of the ring, are not worth closing up.
const HOLES: usize = 256;

/// Twice so much room, 16 KB, is not worth giving back.
const ROOM: usize = 512;

#[derive(Default)]
pub(super) struct Queue {
    ring: VecDeque<Option<Entry>>,
    /// The number of the first in the ring.
    first: u64,
    /// How many of the ring were taken up, holes included.
    taken: usize,
    holes: usize,
}

impl Queue {
    /// How many are in, those that were taken up included.
    pub(super) fn len(&self) -> usize {
        self.ring.len() - self.holes
    }

    /// Whether nothing waits to be taken up.
    pub(super) fn is_drained(&self) -> bool {
        self.ring.len() == self.taken // R2
    }

    pub(super) fn push(&mut self, job: Entry) {
        job.place().set(Spot::Queued(self.first + self.ring.len() as u64));
        self.ring.push_back(Some(job));
    }

    /// Takes a task out.
    pub(super) fn remove(&mut self, number: u64) -> Option<Entry> {
        let at = number.checked_sub(self.first)?;
        let job = self.ring.get_mut(usize::try_from(at).ok()?)?.take()?;
        job.place().set(Spot::Gone);
        self.holes += 1;
        self.tidy();
        Some(job)
    }

    /// Takes up the next, at most so many.
    pub(super) fn take_up(&mut self, limit: usize, into: &mut Vec<Entry>) {
        let (waiting, before) = (self.ring.range(self.taken..), into.len());
        let mut seen = 0;
        for job in waiting {
            if into.len() - before == limit {
                break;
            }
            into.extend(job.clone());
            seen += 1;
        }
        self.taken += seen;
        self.tidy();
    }

    /// Lets those go that were taken up and are still here.
    pub(super) fn put_down(&mut self) {
        for job in self.ring.drain(..self.taken) {
            match job {
                Some(job) => job.place().set(Spot::Gone),
                None => self.holes -= 1,
            }
        }
        self.first += self.taken as u64;
        self.taken = 0;
        self.tidy();
    }

    /// Whether a number is of this queue, or would come next.
    pub(super) fn reaches(&self, number: u64) -> bool {
        number >= self.first
    }

    /// Gives all it has, with its numbers, to a queue that has nothing left. What comes here from now on has
    /// later numbers.
    pub(super) fn pour_into(&mut self, empty: &mut Queue) {
        debug_assert!(empty.ring.is_empty(), "its numbers would come again");
        std::mem::swap(self, empty);
        self.first = empty.first + empty.ring.len() as u64;
    }

    /// All that are in, in order.
    pub(super) fn into_all(self) -> impl Iterator<Item = Entry> {
        self.ring.into_iter().flatten()
    }

    /// R2.
    fn tidy(&mut self) {
        while self.ring.len() > self.taken && self.ring.back().is_some_and(Option::is_none) {
            self.ring.pop_back();
            self.holes -= 1;
        }
        if self.taken == 0 {
            while self.ring.front().is_some_and(Option::is_none) {
                self.ring.pop_front();
                (self.holes, self.first) = (self.holes - 1, self.first + 1);
            }
        } else {
            while self.ring.get(self.taken).is_some_and(Option::is_none) {
                self.taken += 1;
            }
        }
        let len = self.ring.len();
        if self.holes > HOLES + len / 2 {
            self.close_up();
        } else if len < self.ring.capacity() / 8 && self.ring.capacity() > 2 * ROOM {
            self.ring.shrink_to(ROOM.max(2 * len));
        }
    }

    #[cold]
    fn close_up(&mut self) {
        let smaller = VecDeque::with_capacity(self.len() + HOLES);
        let ring = std::mem::replace(&mut self.ring, smaller);
        let taken = std::mem::take(&mut self.taken);
        self.holes = 0;
        for (at, job) in ring.into_iter().enumerate() {
            let Some(job) = job else { continue };
            self.push(job);
            self.taken += usize::from(at < taken);
        }
    }

    #[cfg(all(test, not(loom)))]
    fn check_invariants(&self) {
        assert_eq!(self.holes, self.ring.iter().filter(|job| job.is_none()).count());
        for (at, job) in self.ring.iter().enumerate() {
            let number = self.first + at as u64;
            assert!(job.as_ref().is_none_or(|job| job.place().get() == Spot::Queued(number)));
        }
        assert!(self.taken <= self.ring.len());
        assert!(self.ring.get(self.taken).is_none_or(Option::is_some), "R2");
        assert!(self.is_drained() || self.ring.back().is_some_and(Option::is_some), "R2");
        assert!(self.holes <= HOLES + self.ring.len() / 2);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::place::tests::husk;
    use super::*;

    fn same(one: &Entry, other: &Entry) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
    }

    fn number(job: &Entry) -> u64 {
        match job.place().get() {
            Spot::Queued(number) => number,
            other => panic!("not queued: {other:?}"),
        }
    }

    #[test]
    fn the_ring_does_what_plain_lists_do() {
        for seed in 1..=40_u64 {
            let mut state = seed;
            let mut below = |end: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) as usize % end
            };
            let (mut queue, mut taken, mut queued) =
                (Queue::default(), Vec::new(), VecDeque::new());
            // It grows for a while, and then shrinks.
            for step in 0..4_000 {
                match below(if step < 2_000 { 8 } else { 30 }) {
                    0..5 => {
                        let job = husk();
                        queue.push(Arc::clone(&job));
                        queued.push_back(job);
                    }
                    5 if !taken.is_empty() => {
                        // One that was taken up is cancelled, or goes on.
                        let job: Entry = taken.swap_remove(below(taken.len()));
                        assert!(queue.remove(number(&job)).is_some_and(|gone| same(&gone, &job)));
                        if below(2) == 0 {
                            queue.push(Arc::clone(&job));
                            queued.push_back(job);
                        }
                    }
                    6 if below(4) == 0 => {
                        let (limit, mut got) = (below(40), Vec::new());
                        queue.take_up(limit, &mut got);
                        let expected: Vec<_> = queued.drain(..limit.min(queued.len())).collect();
                        assert_eq!(got.len(), expected.len());
                        assert!(got.iter().zip(&expected).all(|(one, other)| same(one, other)));
                        taken.extend(expected);
                    }
                    7 if below(8) == 0 => {
                        queue.put_down();
                        assert!(taken.drain(..).all(|job| job.place().get() == Spot::Gone));
                    }
                    _ if !queued.is_empty() => {
                        let job = queued.remove(below(queued.len())).expect("there");
                        let old = number(&job);
                        assert!(queue.remove(old).is_some_and(|gone| same(&gone, &job)));
                        assert_eq!(job.place().get(), Spot::Gone);
                    }
                    _ => {}
                }
                assert_eq!(queue.len(), taken.len() + queued.len());
                assert_eq!(queue.is_drained(), queued.is_empty());
                if step % 20 == 0 {
                    queue.check_invariants();
                }
            }
            queue.put_down();
            let all: Vec<_> = queue.into_all().collect();
            assert!(all.len() == queued.len());
            assert!(all.iter().zip(&queued).all(|(one, other)| same(one, other)));
        }
    }

    #[test]
    fn numbers_go_on_when_two_queues_change_places() {
        let (mut incoming, mut hands) = (Queue::default(), Queue::default());
        let jobs: Vec<_> = (0..10).map(|_| husk()).collect();
        for round in 0..5 {
            jobs[..5].iter().for_each(|job| incoming.push(Arc::clone(job)));
            incoming.pour_into(&mut hands);
            jobs[5..].iter().for_each(|job| incoming.push(Arc::clone(job)));
            assert!(jobs[..5].iter().all(|job| !incoming.reaches(number(job))), "round {round}");
            assert!(jobs[5..].iter().all(|job| incoming.reaches(number(job))), "round {round}");
            assert!(
                incoming.remove(number(&jobs[0])).is_none()
                    && hands.remove(number(&jobs[7])).is_none()
            );
            for queue in [&mut hands, &mut incoming] {
                queue.take_up(5, &mut Vec::new());
                queue.put_down();
                assert!(queue.is_drained() && queue.len() == 0);
            }
        }
    }

    #[test]
    fn a_number_that_is_not_there_removes_nothing() {
        let mut queue = Queue::default();
        (0..3).for_each(|_| queue.push(husk()));
        queue.take_up(2, &mut Vec::new());
        queue.put_down();
        assert!(
            queue.remove(1).is_none()
                && queue.remove(3).is_none()
                && queue.remove(u64::MAX >> 1).is_none()
        );
        assert!(queue.remove(2).is_some() && queue.remove(2).is_none());
        assert_eq!((queue.len(), queue.is_drained()), (0, true));
    }

    /// Behind a task that runs for long others come and are cancelled, for ever.
    #[test]
    fn what_is_cancelled_leaves_no_room_behind() {
        let (mut queue, mut window) = (Queue::default(), VecDeque::new());
        queue.push(husk());
        queue.take_up(1, &mut Vec::new());
        for _ in 0..200_000 {
            let job = husk();
            queue.push(Arc::clone(&job));
            window.push_back(job);
            if window.len() > 100 {
                let oldest = window.pop_front().expect("there");
                queue.remove(number(&oldest));
            }
        }
        queue.check_invariants();
        assert!(queue.len() == 101 && queue.ring.capacity() <= 4 * HOLES);
        // One of them stays, the others go: it stays in its turn.
        let stays = window.remove(50).expect("there");
        window.iter().for_each(|job| _ = queue.remove(number(job)));
        let mut got = Vec::new();
        queue.put_down();
        queue.take_up(9, &mut got);
        assert!(got.len() == 1 && same(&got[0], &stays));
        // After a peak it is small again.
        let jobs: Vec<_> = (0..100_000).map(|_| husk()).collect();
        jobs.iter().for_each(|job| queue.push(Arc::clone(job)));
        jobs.iter().rev().for_each(|job| _ = queue.remove(number(job)));
        queue.put_down();
        assert!(queue.len() == 0 && queue.ring.capacity() <= 2 * ROOM);
    }
}
