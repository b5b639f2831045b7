//! The ready queue: the tasks that the wheel has given out, in the order in which they will run.
//!
//! ```text
//!   wheel --- a tick's bucket, sorted ---> sorted  [ e e e e e ]--.
//!                                            ^                    +--> pop: the earlier of both
//!   intake -- its tick has been given -------+-- or late, a heap -'
//!             out, or it is due now           in order, as most are
//! ```
//!
//! Both are in order of deadline, and equal deadlines are in the order of scheduling (S3). At equal deadlines `sorted` goes
//! first: while an entry is in the heap, no later one goes to the end of `sorted`.
//!
//! With `Precision::Tick` the wheel gives out only ticks that have passed, so everything here is due. With
//! `Precision::Exact` it gives out the tick that is passing as well, and each entry waits here for its own deadline.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use crate::clock::tick::Moment;
use crate::engine::slots::blocks;
use crate::executor::DueBatch;
use crate::executor::due::AHEAD;
use crate::wheel::Timed;
use crate::wheel::entry::{Entry, Runner};

impl Timed for Entry {
    fn deadline(&self) -> u64 {
        self.deadline
    }

    #[inline]
    fn prefetch(&self) {
        blocks::prefetch(self.slot());
    }
}

/// The tasks that come next, in order.
#[derive(Default)]
pub(crate) struct ReadyQueue {
    sorted: VecDeque<Entry>,
    /// Late entries. Each has its deadline before it, and how many came late before it, which keeps equal deadlines in order.
    late: BinaryHeap<Reverse<(u64, u64, Entry)>>,
    /// How many entries were ever late.
    count: u64,
    /// Room to sort in. Empty between calls.
    scratch: Vec<Entry>,
}

impl ReadyQueue {
    /// Takes in what the wheel has given out, all of which is due after `after`.
    pub(crate) fn append(&mut self, given_out: &mut Vec<Entry>, after: Moment) {
        if given_out.is_empty() {
            return;
        }
        // What is here and due later has not come through the wheel. So it was scheduled later than what comes now, and
        // goes behind that at equal deadlines.
        let at = self.sorted.partition_point(|entry| entry.moment() <= after);
        given_out.extend(self.sorted.drain(at..));
        // A bucket has the entries of one tick in the order of scheduling, and the sort is stable. A later tick has
        // only later deadlines, so the whole queue stays in order.
        sort_by_deadline(given_out, &mut self.scratch);
        if self.sorted.is_empty() {
            // As in most turns: the two change their memory, and nothing is copied.
            let room = mem::replace(&mut self.sorted, mem::take(given_out).into());
            *given_out = room.into();
        } else {
            self.sorted.extend(given_out.drain(..));
        }
    }

    /// Takes in an entry whose tick has been given out, or that waits for no tick.
    pub(crate) fn insert(&mut self, entry: Entry) {
        // Mostly they come in order, for example those without a delay. The queue costs less than the heap.
        let is_last = self.sorted.back().is_none_or(|last| last.deadline <= entry.deadline);
        if is_last && self.late.is_empty() {
            self.sorted.push_back(entry);
        } else {
            self.late.push(Reverse((entry.deadline, self.count, entry)));
            self.count += 1;
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.peek().map(Entry::moment)
    }

    /// Returns the next entry.
    #[inline]
    fn peek(&self) -> Option<Entry> {
        let sorted = self.sorted.front().copied();
        let late = self.late.peek().map(|Reverse((.., entry))| *entry);
        sorted.into_iter().chain(late).min_by_key(|entry| entry.deadline)
    }

    /// Takes out the next task, if it is due.
    #[inline]
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Entry> {
        let next = self.peek().filter(|next| next.moment() <= now)?;
        // An entry is in one of the two only: no two entries have the same slot and number.
        if self.sorted.front() == Some(&next) {
            self.sorted.pop_front();
        } else {
            self.late.pop();
        }
        Some(next)
    }

    /// Moves up to `most` of the next entries to a batch, as long as they are due and the scheduler's executor runs them.
    /// Returns how many. While there are entries in the heap, it moves none.
    pub(crate) fn pop_row(&mut self, now: Moment, most: usize, batch: &mut DueBatch) -> usize {
        if !self.late.is_empty() {
            return 0;
        }
        // The rest, behind the end of the ring buffer, comes with the next call.
        let (first, _) = self.sorted.as_slices();
        let is_of_row =
            |entry: &&Entry| entry.deadline <= now.0 && entry.runner() == Runner::Default;
        let row = first.iter().take(most).take_while(is_of_row).count();
        batch.due.extend_from_slice(&first[..row]);
        self.sorted.drain(..row);
        row
    }

    /// Fetches the holder of a later task into the cache.
    #[inline]
    pub(crate) fn fetch_ahead(&self) {
        // Late entries are few, so only `sorted` is worth it.
        self.sorted.get(AHEAD).inspect(|soon| soon.prefetch());
    }

    /// Takes out the next entry, if it is due and a waker.
    #[inline]
    pub(crate) fn pop_waker(&mut self, now: Moment) -> Option<Entry> {
        self.fetch_ahead();
        self.peek().filter(|next| next.is_waker())?;
        self.pop(now)
    }

    /// Returns how many entries there are, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.sorted.len() + self.late.len()
    }

    /// Drops up to `most` stale entries at the head, so that no thread wakes up for them.
    pub(crate) fn skip(&mut self, most: usize, mut is_stale: impl FnMut(Entry) -> bool) {
        for _ in 0..most {
            if !self.peek().is_some_and(&mut is_stale) {
                break;
            }
            self.pop(Moment::NEVER);
        }
    }

    /// Takes everything out, in order.
    pub(crate) fn drain(&mut self, into: &mut Vec<Entry>) {
        into.extend(std::iter::from_fn(|| self.pop(Moment::NEVER)));
    }

    /// Returns true if a peak has left more room than is worth keeping, here or in the list that it is filled from.
    pub(crate) fn is_bloated(&self, given_out: &Vec<Entry>) -> bool {
        let room = self.sorted.capacity() + self.late.capacity() + self.scratch.capacity();
        self.len() == 0 && room + given_out.capacity() > KEPT
    }

    /// Panics with what is broken. It looks at the first entries and at the last one. `is_given_out` tells whether the
    /// wheel has given out the tick of a deadline.
    pub(crate) fn check_invariants(&self, is_given_out: impl Fn(u64) -> bool) {
        assert!(self.scratch.is_empty(), "room to sort in is not empty");
        let sorted = self.sorted.iter().take(AHEAD).chain(self.sorted.back());
        assert!(sorted.is_sorted_by_key(|entry| entry.deadline), "sorted is out of order");
        let is_ready = |entry: Entry| entry.is_due_now() || is_given_out(entry.deadline);
        let late = self.late.peek().map(|Reverse((.., entry))| *entry);
        let ends = [self.sorted.back().copied(), late];
        assert!(
            ends.into_iter().flatten().all(is_ready),
            "an entry whose tick is still in the wheel"
        );
    }
}

/// This much room is kept, in entries of all lists together.
const KEPT: usize = 64 * 1024;

// ----- sorting what the wheel gives out --------------------------------------------------

/// With fewer entries std's sort is as fast.
const FEW: usize = 256;
/// How many bits a round looks at, at most.
const ROUND: u32 = 11;
/// With more rounds than this std's sort is faster.
const ROUNDS: u32 = 3;

/// Sorts by deadline. Equal deadlines stay in their order. `scratch` is room to sort in, and is empty before and after.
fn sort_by_deadline(entries: &mut Vec<Entry>, scratch: &mut Vec<Entry>) {
    // A thread that schedules with the same delay again and again fills its buckets in order.
    if entries.is_sorted_by_key(|entry| entry.deadline) {
        return;
    }
    // The entries of a tick differ in the low bits of their deadlines only: twenty bits for a millisecond. So a radix
    // sort needs two rounds, each of which spreads the entries over a thousand counters. With ten thousand entries a
    // tick that takes 7 ns an entry, where std's stable sort takes 24.
    let first = entries.iter().map(|entry| entry.deadline).min().unwrap_or(0);
    let last = entries.iter().map(|entry| entry.deadline).max().unwrap_or(0);
    let bits = u64::BITS - (last - first).leading_zeros();
    let rounds = bits.div_ceil(ROUND);
    if entries.len() < FEW || rounds > ROUNDS {
        entries.sort_by_key(|entry| entry.deadline);
        return;
    }
    // Rounds of equal width, so that no counters are set up for a few bits.
    let width = bits.div_ceil(rounds);
    for shift in (0..rounds).map(|round| round * width) {
        let digit =
            |entry: &Entry| ((entry.deadline - first) >> shift) as usize & ((1 << width) - 1);
        let mut places = [0_u32; 1 << ROUND];
        entries.iter().for_each(|entry| places[digit(entry)] += 1);
        // Each count becomes the index at which the entries of its digit begin.
        let mut next = 0;
        for place in &mut places {
            (*place, next) = (next, next + *place);
        }
        scratch.resize(entries.len(), Entry::default());
        for entry in &*entries {
            let place = &mut places[digit(entry)];
            scratch[*place as usize] = *entry;
            *place += 1;
        }
        mem::swap(entries, scratch);
        scratch.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(slot, 1, Moment(deadline), false, Runner::Default, false)
    }

    fn slots(ready: &mut ReadyQueue) -> Vec<u32> {
        let mut all = Vec::new();
        ready.drain(&mut all);
        all.into_iter().map(Entry::slot).collect()
    }

    #[test]
    fn s03_late_tasks_find_their_place_and_equal_ones_keep_their_order() {
        let mut ready = ReadyQueue::default();
        ready.append(&mut vec![entry(5, 0), entry(3, 1), entry(5, 2)], Moment(0));
        ready.insert(entry(5, 3));
        ready.insert(entry(4, 4));
        ready.insert(entry(5, 5));
        ready.append(&mut vec![entry(8, 7), entry(7, 6)], Moment(5));
        assert_eq!(slots(&mut ready), [1, 4, 0, 2, 3, 5, 6, 7]);
        // Due now, while the wheel still has others of their tick, which were scheduled before.
        [entry(7, 2), entry(9, 3)].into_iter().for_each(|late| ready.insert(late));
        ready.append(&mut vec![entry(9, 1), entry(7, 0)], Moment(5));
        ready.insert(entry(9, 4));
        assert_eq!(slots(&mut ready), [0, 2, 1, 3, 4]);
    }

    #[test]
    fn s01_nothing_comes_before_its_time() {
        let mut ready = ReadyQueue::default();
        ready.append(&mut vec![entry(5, 0)], Moment(0));
        ready.insert(entry(4, 1));
        assert_eq!(ready.pop(Moment(3)), None);
        assert_eq!(ready.pop(Moment(4)), Some(entry(4, 1)));
        assert_eq!(ready.pop(Moment(4)), None);
    }

    #[test]
    fn it_sorts_as_the_stable_sort_does() {
        let mut seed = 1_u64;
        let spans = [1, 3, 1000, 1 << 20, 1 << 33, u64::MAX];
        for (len, span) in
            [0, 1, 255, 256, 3000].iter().flat_map(|len| spans.map(|span| (*len, span)))
        {
            let random = |number: usize| {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let deadline = u64::MAX - (seed >> 1) % span;
                Entry { deadline, name: number as u64 }
            };
            let mut entries: Vec<_> = (0..len).map(random).collect();
            let mut expected = entries.clone();
            expected.sort_by_key(|entry| entry.deadline);
            let mut scratch = Vec::new();
            sort_by_deadline(&mut entries, &mut scratch);
            assert!(entries == expected && scratch.is_empty(), "{len} entries within {span}");
        }
    }
}
