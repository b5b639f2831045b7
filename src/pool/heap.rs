//! The data structure below the queue: a heap by (deadline, sequence) from whose middle items can be
//! taken. No lock, no clock, no thread.
//!
//! ```text
//!   key ─────────────> slot: position ──┐     slot: item
//!   (slot, sequence)     ^              v
//!   entries, a heap:   [ deadline, sequence, slot ][ .. ][ .. ][ .. ]
//! ```
//!
//! The entries move, the items stay where they are. To find the entry of a key, its slot says where it
//! is at present; whether it is the right one, the sequence says. Each item has a sequence number of
//! its own, for ever, and 64 bits of them do not end: at one each nanosecond they last for five hundred
//! years. So a slot needs no generations, its memory may go and come again, and no key ever hits
//! another item (S10).
//!
//! - Y1 No entry comes before its parent.
//! - Y2 The slot of the entry at `i` holds an item and the position `i`; no other slot holds an item.
//! - Y3 No two entries have the same sequence, now or later.
//!
//! A free slot has no position, but it may say something all the same. That harms nobody: the entry
//! there, if there is one, has another sequence than the key (Y3).

use std::time::Instant;

use super::slots::Slots;

/// How many children an entry has.
///
/// In nanoseconds of processor time for each, with an entry of 32 bytes (the best of many rounds on
/// a shared machine; AMD EPYC, 32 MiB of cache):
///
/// | children | 1 M: offer | remove | poll | 500: offer | remove | poll |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | 2 | 51 | 249 | 644 | 25 | 27 | 77 |
/// | **4** | 43 | 185 | 459 | 21 | 21 | 72 |
/// | 8 | 39 | 157 | 498 | 18 | 19 | 84 |
const CHILDREN: usize = 4;

/// Room for so many entries is never given back.
const SMALL: usize = 256;

pub(super) struct Heap<T> {
    entries: Vec<Entry>,
    slots: Slots<T>,
    next_sequence: u64,
    queue: u32,
}

/// 32 bytes. Packed into 24, with the same order, polls are a fifth cheaper, and offers to a small
/// heap a quarter dearer: not worth the packing.
#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: Instant,
    sequence: u64,
    slot: u32,
}

impl Entry {
    #[inline]
    fn is_before(&self, other: &Entry) -> bool {
        (self.deadline, self.sequence) < (other.deadline, other.sequence)
    }
}

/// Names an item in a [`DelayedWorkQueue`](super::DelayedWorkQueue), for
/// [`remove`](super::DelayedWorkQueue::remove). A key whose item is gone matches nothing for ever,
/// however often its place is used again; and so does the key of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    slot: u32,
    queue: u32,
    sequence: u64,
}

impl<T> Heap<T> {
    /// An empty heap, with a number that its keys carry.
    pub(super) fn new(queue: u32) -> Heap<T> {
        Heap { entries: Vec::new(), slots: Slots::new(), next_sequence: 0, queue }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The earliest deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        Some(self.entries.first()?.deadline)
    }

    /// Puts an item in, behind those of the same deadline.
    pub(super) fn insert(&mut self, deadline: Instant, item: T) -> Key {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let slot = self.slots.insert(item);
        let entry = Entry { deadline, sequence, slot };
        self.entries.push(entry);
        self.rise(self.entries.len() - 1, entry);
        Key { slot, queue: self.queue, sequence }
    }

    /// Takes the first item out.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.entries.is_empty() { None } else { self.remove_at(0) }
    }

    /// Takes an item out, wherever it is; `None` when it is gone already.
    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let at = self.slots.position(key.slot)? as usize;
        let is_it = self.entries.get(at)?.sequence == key.sequence && self.queue == key.queue; // Y3
        if is_it { self.remove_at(at) } else { None }
    }

    fn remove_at(&mut self, at: usize) -> Option<T> {
        let gone = self.entries.swap_remove(at);
        if let Some(&last) = self.entries.get(at) {
            self.settle(at, last);
        }
        self.give_back();
        self.slots.take(gone.slot)
    }

    /// Finds the place of an entry that has come to `at`.
    fn settle(&mut self, at: usize, entry: Entry) {
        if at > 0 && entry.is_before(&self.entries[parent(at)]) {
            self.rise(at, entry);
        } else {
            self.sink(at, entry);
        }
    }

    /// Moves a gap upwards to where the entry belongs, and puts it there.
    fn rise(&mut self, mut at: usize, entry: Entry) {
        while at > 0 {
            let above = self.entries[parent(at)];
            if !entry.is_before(&above) {
                break;
            }
            self.put(at, above);
            at = parent(at);
        }
        self.put(at, entry);
    }

    /// The same, downwards.
    fn sink(&mut self, mut at: usize, entry: Entry) {
        while let Some(child) = self.first_child(at) {
            let below = self.entries[child];
            if !below.is_before(&entry) {
                break;
            }
            self.put(at, below);
            at = child;
        }
        self.put(at, entry);
    }

    /// Which of the children comes before the others.
    fn first_child(&self, at: usize) -> Option<usize> {
        let start = at * CHILDREN + 1;
        let end = self.entries.len().min(start + CHILDREN);
        let children = self.entries.get(start..end)?;
        let mut first = 0;
        for at in 1..children.len() {
            if children[at].is_before(&children[first]) {
                first = at;
            }
        }
        (!children.is_empty()).then_some(start + first)
    }

    /// Y2.
    fn put(&mut self, at: usize, entry: Entry) {
        self.entries[at] = entry;
        self.slots.set_position(entry.slot, at as u32);
    }

    /// After a peak: halves the room when three quarters of it are empty, so that each step pays for
    /// the move of a few entries at most.
    fn give_back(&mut self) {
        let room = self.entries.capacity();
        if room > SMALL && self.entries.len() < room / 4 {
            self.entries.shrink_to(room / 2);
        }
    }

    /// Moves everything out. The keys of what was in here match nothing here any more (Y3).
    pub(super) fn take_all(&mut self) -> Heap<T> {
        let empty = Heap { next_sequence: self.next_sequence, ..Heap::new(self.queue) };
        std::mem::replace(self, empty)
    }

    /// All items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter()
    }

    /// All items, by deadline and sequence.
    pub(super) fn into_sorted(mut self) -> Vec<T> {
        self.entries.sort_unstable_by_key(|entry| (entry.deadline, entry.sequence));
        self.entries.iter().filter_map(|entry| self.slots.take(entry.slot)).collect()
    }

    /// Looks at everything; for tests.
    pub(super) fn check_invariants(&self) {
        for (at, entry) in self.entries.iter().enumerate() {
            assert!(at == 0 || !entry.is_before(&self.entries[parent(at)]), "Y1");
            assert_eq!(self.slots.position(entry.slot), u32::try_from(at).ok(), "Y2");
            assert!(entry.sequence < self.next_sequence, "Y3");
        }
        self.slots.check_invariants(self.entries.len());
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
        let mut heap = Heap::new(0);
        let start = Instant::now();
        for (id, deadline) in scattered(start, 1_000_000).enumerate() {
            let key = heap.insert(deadline, id);
            assert_eq!(heap.remove(key), Some(id));
            assert_eq!(heap.remove(key), None);
        }
        assert!(heap.entries.capacity() <= SMALL && heap.slots.capacity() <= SMALL);
        heap.check_invariants();
    }

    #[test]
    fn after_a_peak_the_memory_goes_back() {
        let mut heap = Heap::new(0);
        let start = Instant::now();
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
        let (mut one, mut other) = (Heap::new(1), Heap::new(2));
        let now = Instant::now();
        let key = one.insert(now, 'a');
        other.insert(now, 'b');
        assert_eq!(other.remove(key), None);
        let moved = one.take_all();
        one.insert(now, 'c');
        assert_eq!(one.remove(key), None);
        assert_eq!(moved.into_sorted(), ['a']);
        assert_eq!((one.pop(), one.pop()), (Some('c'), None));
    }
}
