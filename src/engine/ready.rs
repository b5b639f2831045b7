//! What comes next: the tasks that the wheel has given out, in the order in which they will run.
//!
//! ```text
//!   wheel --- a tick's bucket, sorted ---> ready  [ e e e e e ]--.
//!                                                                +--> pop: the earlier of both
//!   intake -- for a tick that has been --> late   (a heap)    --'
//!             given out, or due now
//! ```
//!
//! What is late mostly comes in order, for example tasks with no delay: so there is a `row` beside the heap, to which an
//! entry is appended if it is no earlier than the last one.
//!
//! - READY-1 `ready` is sorted by deadline, and equal deadlines are in the order of scheduling: buckets
//!   come tick by tick, each is sorted by a stable sort, and a later tick has only later deadlines.
//! - READY-2 What is `late` was scheduled after all of `ready` with the same deadline, because that had
//!   come through the wheel before. So at equal deadlines `ready` goes first, and `late` among
//!   itself by a count.
//!
//! With `Precision::Tick` the wheel gives out only what has passed, and everything here is due.
//! With `Precision::Exact` it gives out the bucket that is next as well, and each entry waits here
//! for its own deadline.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::engine::intake::lane::Record;
use crate::engine::slots::blocks;
use crate::executor::batch::AHEAD;
use crate::time::tick::Moment;
use crate::wheel::Timed;
pub(crate) use crate::wheel::entry::{Entry, Runner, Turn};

impl Entry {
    pub(crate) fn record(self, stamp: u64) -> Record {
        let name = u64::from(self.slot_and_flags) << 32 | u64::from(self.generation);
        Record { deadline: self.deadline, stamp, name }
    }
}

impl From<Record> for Entry {
    fn from(record: Record) -> Entry {
        Entry {
            deadline: record.deadline,
            slot_and_flags: (record.name >> 32) as u32,
            generation: record.name as u32,
        }
    }
}

impl Timed for Entry {
    fn deadline(&self) -> u64 {
        self.deadline
    }

    #[inline]
    fn prefetch(&self) {
        blocks::prefetch(self.key().slot);
    }
}

/// An entry that came late: its deadline, and which one it was; READY-2.
type Late = (u64, u64, Entry);

/// The tasks that come next, in order.
pub(crate) struct ReadyQueue {
    ready: VecDeque<Entry>,
    late: BinaryHeap<Reverse<Late>>,
    /// In order, both.
    row: VecDeque<Late>,
    /// How many ever came late; READY-2.
    count: u64,
    /// Room to sort in.
    spare: Vec<Entry>,
}

impl ReadyQueue {
    pub(crate) fn new() -> ReadyQueue {
        ReadyQueue {
            ready: VecDeque::new(),
            late: BinaryHeap::new(),
            row: VecDeque::new(),
            count: 0,
            spare: Vec::new(),
        }
    }

    /// Takes in what the wheel has given out; READY-1.
    pub(crate) fn append(&mut self, given_out: &mut Vec<Entry>) {
        sort_by_deadline(given_out, &mut self.spare);
        self.ready.extend(given_out.drain(..));
    }

    /// Takes in what came after its tick had been given out, or need not wait for it; READY-2.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let late = (entry.deadline, self.count, entry);
        self.count += 1;
        if self.row.back().is_none_or(|last| last.0 <= entry.deadline) {
            self.row.push_back(late);
        } else {
            self.late.push(Reverse(late));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.peek().map(Entry::moment)
    }

    /// READY-2.
    #[inline]
    fn peek(&self) -> Option<Entry> {
        let ready = self.ready.front().copied();
        let late = self.first_late().map(|(.., entry)| entry);
        match (ready, late) {
            (Some(ready), Some(late)) if late.deadline < ready.deadline => Some(late),
            _ => ready.or(late),
        }
    }

    fn first_late(&self) -> Option<Late> {
        let in_row = self.row.front().copied();
        let in_heap = self.late.peek().map(|Reverse(late)| *late);
        match (in_row, in_heap) {
            (Some(row), Some(heap)) => Some(row.min(heap)),
            _ => in_row.or(in_heap),
        }
    }

    fn pop_late(&mut self) -> Option<Entry> {
        let first = self.first_late()?;
        if self.row.front() == Some(&first) {
            self.row.pop_front();
        } else {
            self.late.pop();
        }
        Some(first.2)
    }

    /// The next task, if it is due.
    #[inline]
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Entry> {
        if self.row.is_empty() && self.late.is_empty() {
            let is_due = self.ready.front().is_some_and(|entry| entry.deadline <= now.0);
            return if is_due { self.ready.pop_front() } else { None };
        }
        self.pop_of_all(now)
    }

    fn pop_of_all(&mut self, now: Moment) -> Option<Entry> {
        let next = self.peek().filter(|next| next.moment() <= now)?;
        if self.ready.front().is_some_and(|entry| entry.deadline == next.deadline) {
            return self.ready.pop_front(); // READY-2
        }
        self.pop_late()
    }

    /// Fetches the holder of one that comes later.
    #[inline]
    pub(crate) fn fetch_ahead(&self) {
        self.ready.get(AHEAD).inspect(|soon| soon.prefetch());
    }

    /// The next one, if it is due and a waker. The holder of one that comes later is fetched meanwhile.
    #[inline]
    pub(crate) fn pop_waker(&mut self, now: Moment) -> Option<Entry> {
        self.fetch_ahead();
        self.peek().filter(|next| next.runner() == Runner::TickThread)?;
        self.pop(now)
    }

    /// How many entries there are, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.row.len() + self.late.len()
    }

    /// Drops what is at the head for nothing, so that nobody wakes up for it, and looks at so many entries at most.
    pub(crate) fn skip(&mut self, most: usize, mut is_stale: impl FnMut(Entry) -> bool) {
        for _ in 0..most {
            if !self.ready.front().is_some_and(|entry| is_stale(*entry)) {
                break;
            }
            self.ready.pop_front();
        }
        for _ in 0..most {
            if !self.first_late().is_some_and(|(.., entry)| is_stale(entry)) {
                break;
            }
            self.pop_late();
        }
    }

    /// Everything, in order.
    pub(crate) fn drain(&mut self, into: &mut Vec<Entry>) {
        into.extend(std::iter::from_fn(|| self.pop(Moment::NEVER)));
    }

    /// Whether a peak has left more room than is worth keeping.
    pub(crate) fn is_bloated(&self) -> bool {
        let late = self.late.capacity().max(self.row.capacity());
        let room = self.ready.capacity().max(self.spare.capacity()).max(late);
        self.len() == 0 && room > KEPT
    }

    /// Gives that room back.
    pub(crate) fn shrink(&mut self) {
        self.ready.shrink_to(KEPT);
        self.late.shrink_to(KEPT);
        self.row.shrink_to(KEPT);
        self.spare.shrink_to(KEPT);
    }
}

/// So much room, in tasks, is kept.
const KEPT: usize = 16 * 1024;

// ----- sorting what the wheel gives out --------------------------------------------------

// Sorts what the wheel gives out.
//
// The entries of a tick differ in the low bits of their deadlines only: twenty for a millisecond. So
// two rounds of a radix sort do, each of which puts every entry into one of a thousand places. With ten
// thousand entries a tick that takes 7 ns an entry, where std's stable sort takes 24.

/// Below that std's sort is as fast.
const FEW: usize = 256;
/// How many bits a round looks at, at most.
const ROUND: u32 = 11;
/// More rounds than that are slower than std's sort.
const ROUNDS: u32 = 3;

/// Sorts by deadline; equal deadlines stay in their order. `spare` is room, and is empty before and
/// after.
fn sort_by_deadline(entries: &mut Vec<Entry>, spare: &mut Vec<Entry>) {
    if entries.is_sorted_by_key(|entry| entry.deadline) {
        return;
    }
    let first = entries.iter().map(|entry| entry.deadline).min().unwrap_or(0);
    let last = entries.iter().map(|entry| entry.deadline).max().unwrap_or(0);
    let bits = u64::BITS - (last - first).leading_zeros();
    let rounds = bits.div_ceil(ROUND);
    if entries.len() < FEW || rounds > ROUNDS {
        entries.sort_by_key(|entry| entry.deadline);
        return;
    }
    let width = bits.div_ceil(rounds);
    for round in 0..rounds {
        let digit =
            |entry: &Entry| (entry.deadline - first) >> (round * width) & ((1 << width) - 1);
        spread(entries, spare, |entry| digit(entry) as usize);
        std::mem::swap(entries, spare);
        spare.clear();
    }
}

/// Copies the entries to `into`, ordered by their digit; equal ones stay in their order.
fn spread(from: &[Entry], into: &mut Vec<Entry>, digit: impl Fn(&Entry) -> usize) {
    let mut places = [0_u32; 1 << ROUND];
    for entry in from {
        places[digit(entry)] += 1;
    }
    let mut next = 0;
    for place in &mut places {
        (*place, next) = (next, next + *place);
    }
    into.resize(from.len(), Entry::default());
    for entry in from {
        let place = &mut places[digit(entry)];
        into[*place as usize] = *entry;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::entry::{SLOT, TaskKey};

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(TaskKey { slot, generation: 1 }, Moment(deadline), false, Runner::Default, None)
    }

    fn slots(front: &mut ReadyQueue) -> Vec<u32> {
        let mut all = Vec::new();
        front.drain(&mut all);
        all.into_iter().map(|entry| entry.key().slot).collect()
    }

    #[test]
    fn s3_late_ones_find_their_place_and_equal_ones_keep_their_order() {
        let mut front = ReadyQueue::new();
        front.append(&mut vec![entry(5, 0), entry(3, 1), entry(5, 2)]);
        front.insert(entry(5, 3));
        front.insert(entry(4, 4));
        front.insert(entry(5, 5));
        front.append(&mut vec![entry(8, 7), entry(7, 6)]);
        assert_eq!(slots(&mut front), [1, 4, 0, 2, 3, 5, 6, 7]);
    }

    #[test]
    fn s1_nothing_comes_before_its_time() {
        let mut front = ReadyQueue::new();
        front.append(&mut vec![entry(5, 0)]);
        front.insert(entry(4, 1));
        assert_eq!(front.pop(Moment(3)), None);
        assert_eq!(front.pop(Moment(4)), Some(entry(4, 1)));
        assert_eq!(front.pop(Moment(4)), None);
    }

    #[test]
    fn of_two_tasks_of_a_holder_the_later_one_lives() {
        let entry = |slot, generation| {
            Entry::new(TaskKey { slot, generation }, Moment(5), false, Runner::Default, None)
        };
        assert!(entry(1, 3).follows(entry(1, 2)));
        assert!(!entry(1, 2).follows(entry(1, 3)), "it came by another lane, too late");
        assert!(!entry(1, 2).follows(entry(1, 2)), "a series that was set again");
        assert!(!entry(2, 3).follows(entry(1, 2)));
    }

    #[test]
    fn an_entry_survives_its_way_through_the_lane() {
        let key = TaskKey { slot: SLOT, generation: u32::MAX };
        for turn in [None, Some(Turn::Odd)] {
            let entry = Entry::new(key, Moment(42), true, Runner::Own, turn);
            assert_eq!(Entry::from(entry.record(7)), entry);
        }
    }

    #[test]
    fn it_sorts_as_the_stable_sort_does() {
        let mut seed = 1_u64;
        for (len, span) in [
            (0, 1),
            (1, 1),
            (255, 1000),
            (256, 1),
            (1000, 3),
            (3000, 1 << 20),
            (3000, 1 << 33),
            (3000, u64::MAX),
        ] {
            let random = |generation: usize| {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let deadline = u64::MAX - (seed >> 1) % span;
                Entry { deadline, slot_and_flags: 0, generation: generation as u32 }
            };
            let mut entries: Vec<_> = (0..len).map(random).collect();
            let mut expected = entries.clone();
            expected.sort_by_key(|entry| entry.deadline);
            let mut spare = Vec::new();
            sort_by_deadline(&mut entries, &mut spare);
            assert!(entries == expected && spare.is_empty(), "{len} entries within {span}");
        }
    }
}
