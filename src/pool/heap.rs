//! The data structure below the queue: items in order of (deadline, sequence number), any of which can be taken out. It
//! has no lock, no clock and no thread.
//!
//! ```text
//!   key ────────────> slot: position ──┐     slot: deadline, sequence, item
//!   (slot, sequence)    ^              v
//!   entries, a heap:  [ moment, slot ][ .. ][ .. ][ .. ]
//!         or the run: [ moment, slot ][ .. ][ .. ][ .. ]
//! ```
//!
//! An item that comes in the order of deadlines, as timeouts of one length do, is appended to a [`SortedRun`], where
//! coming and going cost next to nothing. The others go into the heap. The first item is the first of either.
//!
//! The entries move, and the items stay in their slots. A key names a slot, and the sequence number of the item that
//! was put there. Each item has a sequence number of its own for ever: at one item each nanosecond, 64 bits last for
//! five hundred years. So a slot needs no generation, its memory may be given back, and no key ever names another item
//! (S10).
//!
//! Two entries of equal moments are rare in the heap. Then the deadlines and sequence numbers in the slots decide.
//!
//! - HEAP-1 No entry comes before its parent, by (deadline, sequence).
//! - HEAP-2 The slot of each entry, of the heap and of the run, holds an item and the entry's position. No other slot
//!   holds an item.
//! - HEAP-3 No two items ever have the same sequence number.

use std::time::Instant;

use super::slots::Slots;
use super::sorted_run::{Entry, IN_RUN, Moment, SMALL, SortedRun};

/// How many children an entry has.
///
/// In nanoseconds of processor time for each operation, with deadlines over an hour in any order (the best of many
/// rounds on a shared machine; AMD EPYC, 32 MiB of cache):
///
/// | children | 1 M: offer | remove | poll | 100,000: offer | remove | poll | 500: offer | remove | poll |
/// | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
/// | 2 | 52 | 390 | 805 | 49 | 174 | 273 | 35 | 31 | 42 |
/// | **4** | 55 | 369 | 648 | 44 | 148 | 228 | 30 | 25 | 39 |
/// | 8 | 46 | 326 | 630 | 40 | 140 | 253 | 29 | 25 | 53 |
/// | 16 | 39 | 344 | 633 | 40 | 148 | 260 | 28 | 24 | 68 |
const CHILDREN: usize = 4;

/// Names an item in a [`DelayedWorkQueue`](super::DelayedWorkQueue), for [`remove`](super::DelayedWorkQueue::remove).
///
/// A key whose item is gone matches nothing for ever, however often the item's memory is used again. A key of another
/// queue matches nothing either. (The key of a wheel is a [`WheelKey`](crate::wheel::WheelKey).)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) slot: u32,
    pub(super) queue: u32,
    pub(super) sequence: u64,
}

pub(super) struct Heap<T> {
    entries: Vec<Entry>,
    run: SortedRun,
    slots: Slots<Item<T>>,
    next_sequence: u64,
    /// When the heap was made, which moments count from.
    origin: Instant,
    queue: u32,
}

/// The content of a slot.
struct Item<T> {
    deadline: Instant,
    sequence: u64,
    value: T,
}

impl<T> Heap<T> {
    /// Returns an empty heap, made now, whose keys carry the number of its queue.
    pub(super) fn new(queue: u32, now: Instant) -> Heap<T> {
        let (entries, run, slots) = (Vec::new(), SortedRun::new(), Slots::new());
        Heap { entries, run, slots, next_sequence: 0, origin: now, queue }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.run.len()
    }

    /// Returns the earliest deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        let first = if self.run_is_first() { self.run.first() } else { self.entries.first() };
        Some(self.slots.get(first?.slot)?.deadline)
    }

    /// Puts an item in, behind those of the same deadline.
    pub(super) fn insert(&mut self, deadline: Instant, value: T) -> Key {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let slot = self.slots.insert(Item { deadline, sequence, value });
        let entry = Entry { moment: Moment::new(deadline, self.origin), slot };
        let is_in_order = self.run.accepts(entry.moment);
        if !is_in_order && self.run.len() > 1 {
            self.push(entry);
        } else {
            if !is_in_order {
                // A single entry far ahead must not keep all others out of the run. Several may: then they are the run.
                self.pop_run().into_iter().for_each(|later| self.push(later));
            }
            let position = self.run.push(entry);
            self.slots.set_position(slot, position);
        }
        Key { slot, queue: self.queue, sequence }
    }

    /// Takes the first item out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let entry = if self.run_is_first() { self.pop_run() } else { self.remove_at(0) };
        Some(self.slots.take(entry?.slot)?.value)
    }

    /// Takes an item out, wherever it is. Returns `None` if it is gone already.
    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.deadline_of(key)?;
        let position = self.slots.position(key.slot)?;
        if position & IN_RUN == 0 {
            self.remove_at(position as usize);
        } else {
            self.run.remove(position, |entry, to| self.slots.set_position(entry.slot, to));
        }
        Some(self.slots.take(key.slot)?.value)
    }

    /// Returns when an item is due, if it is still here.
    pub(super) fn deadline_of(&self, key: Key) -> Option<Instant> {
        self.get(key).map(|(deadline, _)| deadline)
    }

    /// Returns an item that is still here, and when it is due.
    pub(super) fn get(&self, key: Key) -> Option<(Instant, &T)> {
        let item = self.slots.get(key.slot)?;
        // The slot may hold another item by now, which has another sequence number (HEAP-3).
        let is_it = item.sequence == key.sequence && self.queue == key.queue;
        is_it.then_some((item.deadline, &item.value))
    }

    /// Returns how many items are overdue.
    pub(super) fn overdue(&self, now: Instant) -> usize {
        let now = Moment::new(now, self.origin);
        self.overdue_below(0, now) + self.run.overdue(now)
    }

    /// Counts overdue entries of a subtree. It ends at entries that are not due, because what is below them is not due
    /// either (HEAP-1).
    fn overdue_below(&self, at: usize, now: Moment) -> usize {
        match self.entries.get(at) {
            Some(entry) if entry.moment <= now => {
                let children = at * CHILDREN + 1..=at * CHILDREN + CHILDREN;
                1 + children.map(|child| self.overdue_below(child, now)).sum::<usize>()
            }
            _ => 0,
        }
    }

    /// Returns true if the first item is in the run.
    fn run_is_first(&self) -> bool {
        match (self.run.first(), self.entries.first()) {
            (Some(one), Some(other)) => self.is_before(one, other),
            (one, _) => one.is_some(),
        }
    }

    fn pop_run(&mut self) -> Option<Entry> {
        self.run.pop(|entry, to| self.slots.set_position(entry.slot, to))
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.rise(self.entries.len() - 1, entry);
    }

    /// Takes an entry out of the heap. The last entry fills the gap, and moves to where it belongs.
    fn remove_at(&mut self, at: usize) -> Option<Entry> {
        let last = self.entries.pop()?;
        let gone = match self.entries.get(at) {
            None => last, // it was the last entry itself
            Some(&gone) => {
                if at > 0 && self.is_before(&last, &self.entries[parent(at)]) {
                    self.rise(at, last);
                } else {
                    self.sink(at, last);
                }
                gone
            }
        };
        // After a peak, the memory is halved when three quarters of it are empty. So each removal pays for moving a few
        // entries at most.
        let room = self.entries.capacity();
        if room > SMALL && self.entries.len() < room / 4 {
            self.entries.shrink_to(room / 2);
        }
        Some(gone)
    }

    /// Compares by deadline, and at equal deadlines by sequence number.
    #[inline]
    fn is_before(&self, one: &Entry, other: &Entry) -> bool {
        if one.moment == other.moment {
            return self.is_before_at_the_same_moment(one, other);
        }
        one.moment < other.moment
    }

    #[cold]
    #[inline(never)]
    fn is_before_at_the_same_moment(&self, one: &Entry, other: &Entry) -> bool {
        let rank = |entry: &Entry| self.slots.get(entry.slot).map(|it| (it.deadline, it.sequence));
        rank(one) < rank(other)
    }

    /// Moves a gap upwards to where the entry belongs, and puts the entry there.
    fn rise(&mut self, mut at: usize, entry: Entry) {
        while at > 0 {
            let above = self.entries[parent(at)];
            if !self.is_before(&entry, &above) {
                break;
            }
            self.put(at, above);
            at = parent(at);
        }
        self.put(at, entry);
    }

    /// Moves a gap downwards to where the entry belongs, and puts the entry there.
    fn sink(&mut self, mut at: usize, entry: Entry) {
        while let Some(child) = self.first_child(at) {
            let below = self.entries[child];
            if !self.is_before(&below, &entry) {
                break;
            }
            self.put(at, below);
            at = child;
        }
        self.put(at, entry);
    }

    /// Returns the index of the child that comes before the others.
    #[inline]
    fn first_child(&self, at: usize) -> Option<usize> {
        let start = at * CHILDREN + 1;
        let first = match self.entries.get(start..start + CHILDREN) {
            Some(children) => self.first_of(children)?, // their number is known: no loop is left
            None => self.first_of(self.entries.get(start..)?)?,
        };
        Some(start + first)
    }

    /// Returns the index of the entry that comes before the others. No processor can foresee which one it is, so there
    /// is no branch on it, except for equal moments, which are rare.
    #[inline]
    fn first_of(&self, entries: &[Entry]) -> Option<usize> {
        let (mut first, mut least) = (0, entries.first()?.moment);
        for (at, entry) in entries.iter().enumerate().skip(1) {
            (first, least) = if entry.moment < least { (at, entry.moment) } else { (first, least) };
        }
        let equal: usize = entries.iter().map(|entry| usize::from(entry.moment == least)).sum();
        if equal == 1 { Some(first) } else { self.first_of_equal(entries) }
    }

    #[cold]
    #[inline(never)]
    fn first_of_equal(&self, entries: &[Entry]) -> Option<usize> {
        (0..entries.len())
            .reduce(|one, at| if self.is_before(&entries[at], &entries[one]) { at } else { one })
    }

    /// Writes an entry, and its position into its slot (HEAP-2).
    fn put(&mut self, at: usize, entry: Entry) {
        self.entries[at] = entry;
        self.slots.set_position(entry.slot, at as u32);
    }

    /// Moves everything out. The sequence numbers go on, so the keys of the old items match nothing here (HEAP-3).
    pub(super) fn take_all(&mut self) -> Heap<T> {
        let empty =
            Heap { next_sequence: self.next_sequence, ..Heap::new(self.queue, self.origin) };
        std::mem::replace(self, empty)
    }

    /// Returns all items with their deadlines, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Instant, &T)> {
        self.slots.iter().map(|item| (item.deadline, &item.value))
    }

    /// Returns all items with their deadlines, by deadline and sequence number.
    pub(super) fn into_sorted(self) -> Vec<(Instant, T)> {
        let mut items: Vec<_> = self.slots.into_items().collect();
        items.sort_unstable_by_key(|item| (item.deadline, item.sequence));
        items.into_iter().map(|item| (item.deadline, item.value)).collect()
    }

    /// Returns how many entries, holes and pages [`check_invariants`](Heap::check_invariants) looks at.
    pub(super) fn check_size(&self) -> usize {
        self.entries.len() + self.run.len_with_holes() + self.slots.pages()
    }

    /// Asserts HEAP-1, HEAP-2 and HEAP-3, and the invariants of the run and of the slots.
    pub(super) fn check_invariants(&self) {
        for (at, entry) in self.entries.iter().enumerate() {
            assert!(at == 0 || !self.is_before(entry, &self.entries[parent(at)]), "HEAP-1");
            assert_eq!(self.slots.position(entry.slot), u32::try_from(at).ok(), "HEAP-2");
        }
        self.run.check_invariants(|one, next| self.is_before(one, next));
        for (entry, position) in self.run.positions() {
            assert_eq!(self.slots.position(entry.slot), Some(position), "HEAP-2");
        }
        for entry in self.entries.iter().chain(self.run.positions().map(|(entry, _)| entry)) {
            let item = self.slots.get(entry.slot).expect("HEAP-2");
            assert_eq!(entry.moment, Moment::new(item.deadline, self.origin));
            assert!(item.sequence < self.next_sequence, "HEAP-3");
        }
        self.slots.check_invariants(self.len());
        let room = self.entries.capacity();
        assert!(room <= SMALL || self.entries.len() >= room / 4, "too much room");
    }
}

fn parent(at: usize) -> usize {
    (at - 1) / CHILDREN
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Deadlines that are all over an hour.
    fn scattered(start: Instant, count: u64) -> impl Iterator<Item = Instant> {
        let nanos = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 3_600_000_000_000;
        (0..count).map(move |at| start + Duration::from_nanos(nanos(at)))
    }

    #[test]
    fn a_million_offers_and_removals_use_the_same_room() {
        let start = Instant::now();
        let mut heap = Heap::new(0, start);
        for (id, deadline) in scattered(start, 1_000_000).enumerate() {
            let key = heap.insert(deadline, id);
            assert_eq!(heap.remove(key), Some(id));
            assert_eq!(heap.remove(key), None);
        }
        assert!(
            heap.entries.capacity() <= SMALL
                && heap.run.capacity() <= SMALL
                && heap.slots.capacity() <= SMALL
        );
        heap.check_invariants();
    }

    #[test]
    fn timeouts_of_some_lengths_come_out_as_out_of_a_sorted_map() {
        for seed in 1..=20_u64 {
            let mut state = seed;
            let mut below = |end: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) % end
            };
            let start = Instant::now();
            let (mut heap, mut now) = (Heap::new(0, start), 0);
            let mut model = std::collections::BTreeMap::new();
            let lengths = [30_000, 30_000, 30_000, 5_000, u64::from(u32::MAX)];
            let (kinds, odds) = (1 + below(5), 2 + below(4));
            for id in 0..4_000_u64 {
                now += below(3);
                let deadline = start + Duration::from_millis(now + lengths[below(kinds) as usize]);
                model.insert((deadline, id), heap.insert(deadline, id));
                while below(odds) == 0 && !model.is_empty() {
                    // One of the last thousand, most often, or the first.
                    let nth = model.len() - 1 - below(model.len().min(1_000) as u64) as usize;
                    let (&name, &key) = model.iter().nth(nth).expect("there");
                    model.remove(&name);
                    assert_eq!(heap.remove(key), Some(name.1));
                    assert_eq!(heap.remove(key), None);
                    if below(8) == 0 {
                        assert_eq!(heap.pop(), model.pop_first().map(|((_, id), _)| id));
                    }
                }
                assert_eq!(
                    heap.first(),
                    model.first_key_value().map(|((deadline, _), _)| *deadline)
                );
                if id % 64 == 0 {
                    heap.check_invariants();
                }
            }
            while let Some(((_, id), _)) = model.pop_first() {
                assert_eq!(heap.pop(), Some(id));
            }
            heap.check_invariants();
            assert!(heap.pop().is_none() && heap.run.capacity() <= SMALL);
        }
    }

    #[test]
    fn what_is_overdue_is_counted_and_nothing_else() {
        let start = Instant::now();
        let mut heap = Heap::new(0, start);
        let mut model: Vec<_> =
            (0..5_000).map(|second| start + Duration::from_secs(second)).collect();
        model.extend(scattered(start, 5_000));
        let keys: Vec<_> = model.iter().map(|&deadline| heap.insert(deadline, ())).collect();
        let mut kept = Vec::new();
        for (at, (deadline, key)) in model.into_iter().zip(keys).enumerate() {
            if at % 3 == 0 { _ = heap.remove(key) } else { kept.push(deadline) }
        }
        assert!(heap.run.len() > 1_000 && heap.entries.len() > 1_000, "both sorts");
        for second in [0, 1, 60, 1_800, 3_599, 3_600, 4_999, 10_000] {
            let now = start + Duration::from_secs(second);
            let expected = kept.iter().filter(|&&deadline| deadline <= now).count();
            assert_eq!(heap.overdue(now), expected, "{second}");
        }
        assert_eq!(Heap::<()>::new(0, start).overdue(start), 0);
    }

    #[test]
    fn one_that_lies_far_ahead_keeps_nothing_out_of_the_run() {
        let start = Instant::now();
        let mut heap = Heap::new(0, start);
        heap.insert(start + Duration::from_secs(1 << 30), 0);
        (1..=1_000_u32).for_each(|id| _ = heap.insert(start + Duration::from_secs(id.into()), id));
        assert_eq!((heap.run.len(), heap.entries.len()), (1_000, 1));
        let sorted = heap.into_sorted().into_iter().map(|(_, id)| id);
        assert!(sorted.eq((1..=1_000).chain([0])));
    }

    #[test]
    fn a_run_gives_its_room_back_however_it_empties() {
        let start = Instant::now();
        let soon = |at: usize| start + Duration::from_nanos(at as u64);
        for (count, removed) in [(1 << 16, 1 << 15..(1 << 16) - 1), (2_100, 900..2_099)] {
            let mut heap = Heap::new(0, start);
            let keys: Vec<_> = (0..count).map(|at| heap.insert(soon(at), at)).collect();
            for at in removed.filter(|at| at % 12 != 11) {
                assert_eq!(heap.remove(keys[at]), Some(at));
            }
            heap.check_invariants();
            while heap.pop().is_some() {
                if heap.len() % 100 == 0 {
                    heap.check_invariants();
                }
            }
            assert!(heap.run.capacity() <= SMALL, "{}", heap.run.capacity());
        }
    }

    #[test]
    fn after_a_peak_the_memory_goes_back() {
        let start = Instant::now();
        let mut heap = Heap::new(0, start);
        let keys: Vec<_> =
            scattered(start, 100_000).map(|deadline| heap.insert(deadline, deadline)).collect();
        for key in keys.iter().enumerate().filter(|(at, _)| at % 10_000 != 0).map(|(_, key)| key) {
            assert!(heap.remove(*key).is_some());
        }
        heap.check_invariants();
        assert_eq!(heap.len(), 10);
        assert!(heap.entries.capacity() <= 2 * SMALL, "{}", heap.entries.capacity());
        assert!(heap.slots.capacity() <= 11 * 64, "{}", heap.slots.capacity());
        assert!(heap.into_sorted().is_sorted());
    }

    #[test]
    fn s10_a_key_of_another_queue_or_of_an_item_that_moved_out_matches_nothing() {
        let now = Instant::now();
        let (mut one, mut other) = (Heap::new(1, now), Heap::new(2, now));
        let key = one.insert(now, 'a');
        other.insert(now, 'b');
        assert_eq!(other.remove(key), None);
        let moved = one.take_all();
        one.insert(now, 'c');
        assert_eq!(one.remove(key), None);
        assert_eq!(moved.into_sorted(), [(now, 'a')]);
        assert_eq!((one.pop(), one.pop()), (Some('c'), None));
    }
}
