//! Where the values of a [`Wheel`](super::Wheel) lie: in slots that stay where they are, while entries name them.
//!
//! ```text
//!   pages:  [ 1024 slots ][ given back ][ 1024 slots ][ 300 slots, so far ]
//! ```
//!
//! Slots come in pages, each of which grows until it is full. An empty page is given back to the allocator, wherever it lies,
//! so that the few values that remain after a peak hold on to little memory. One empty page is kept, so that a wheel whose
//! length goes up and down around a multiple of a page does not allocate each time.
//!
//! - A page that has room is in the list of open pages, once. So is a page that was given back. A full page is not.
//! - No key ever names another value: the generations of a slot go up, also if its page was given back in between. A slot
//!   whose generations are used up is never free again.

use alloc::vec::Vec;
use core::iter;

/// The most slots of a page, and the binary logarithm of that.
const PAGE: u32 = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 10;

/// When a slot of an empty page has had so many generations or filings, the number of the page is not used again.
const WORN: u32 = u32::MAX / 4 * 3;

/// Follows the last free slot of a page.
const NONE: u32 = u32::MAX;

pub(super) struct Slots<T> {
    /// The page with the number zero. It lies here, beside the rest of what each call writes, because most wheels have no
    /// other.
    first: Page<T>,
    more: Vec<Page<T>>,
    /// The numbers of the pages that have room. The last one gets the next value.
    open: Vec<u32>,
    /// The page that was emptied last. No other empty page has slots.
    spare: u32,
}

struct Page<T> {
    /// None, if the page was given back.
    slots: Vec<Slot<T>>,
    /// The offset of the first slot that is free again, or [`NONE`].
    free: u32,
    /// How many slots are not free.
    taken: u32,
    /// New slots begin with this generation and filing, which none of the page's slots had reached when it was given back.
    start: u32,
}

pub(super) struct Slot<T> {
    pub(super) generation: u32,
    /// The number of the entry that stands for the value. Entries with other numbers are stale.
    pub(super) filing: u32,
    /// When the value is due. In a free slot: the offset of the next free one of its page, or [`NONE`].
    pub(super) deadline: u64,
    /// Greater for a value that was inserted or reset later.
    pub(super) order: u64,
    pub(super) value: Option<T>,
}

impl<T> Slot<T> {
    pub(super) fn holds(&self, generation: u32) -> bool {
        self.generation == generation && self.value.is_some()
    }
}

/// Takes the number of a slot apart, into the number of its page and its offset there.
#[inline]
fn parts(slot: u32) -> (usize, usize) {
    ((slot / PAGE) as usize, (slot % PAGE) as usize)
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        Page { slots: Vec::new(), free: NONE, taken: 0, start: 0 }
    }
}

impl<T> Slots<T> {
    /// Returns no slots.
    pub(super) fn new() -> Slots<T> {
        let (first, more, open) = (Page::new(), Vec::new(), alloc::vec![0]);
        Slots { first, more, open, spare: NONE }
    }

    #[inline]
    fn page(&self, number: usize) -> Option<&Page<T>> {
        if number == 0 { Some(&self.first) } else { self.more.get(number - 1) }
    }

    #[inline]
    fn page_mut(&mut self, number: usize) -> Option<&mut Page<T>> {
        if number == 0 { Some(&mut self.first) } else { self.more.get_mut(number - 1) }
    }

    fn pages(&self) -> impl Iterator<Item = &Page<T>> {
        iter::once(&self.first).chain(&self.more)
    }

    /// Puts a value into a free slot. Returns the number of the slot, its generation, and the number of the entry that the
    /// value gets.
    ///
    /// # Panics
    ///
    /// If there are four thousand million values.
    #[inline]
    pub(super) fn insert(&mut self, deadline: u64, order: u64, value: T) -> (u32, u32, u32) {
        let number = self.open.last().copied().unwrap_or_else(|| self.add_page());
        let page = self.page_mut(number as usize).expect("an open page is one of them");
        let offset = if page.free == NONE {
            let (generation, deadline) = (page.start, u64::from(NONE));
            page.slots.push(Slot { generation, filing: generation, deadline, order, value: None });
            page.slots.len() - 1
        } else {
            page.free as usize
        };
        let slot = &mut page.slots[offset];
        page.free = slot.deadline as u32;
        slot.filing = slot.filing.wrapping_add(1);
        (slot.deadline, slot.order, slot.value) = (deadline, order, Some(value));
        let names = (number << PAGE_BITS | offset as u32, slot.generation, slot.filing);
        page.taken += 1;
        if page.taken == PAGE {
            self.open.pop();
        }
        names
    }

    #[cold]
    fn add_page(&mut self) -> u32 {
        let number = u32::try_from(self.more.len() + 1).ok();
        let number = number.filter(|number| *number < u32::MAX / PAGE);
        let number = number.expect("fewer than four thousand million values");
        self.more.push(Page::new());
        self.open.push(number);
        // Room for all pages, so that a removal, which may open one, allocates nothing.
        self.open.reserve(self.more.len() + 1 - self.open.len());
        number
    }

    /// Takes the value out of its slot, and frees the slot. Returns `None` if a later value is there, or none.
    #[inline]
    pub(super) fn take(&mut self, slot: u32, generation: u32) -> Option<T> {
        let (number, offset) = parts(slot);
        let page = self.page_mut(number)?;
        let slot = page.slots.get_mut(offset)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        let Some(next) = generation.checked_add(1) else { return Some(value) };
        slot.generation = next;
        slot.deadline = u64::from(page.free);
        page.free = offset as u32;
        let was_full = page.taken == PAGE;
        page.taken -= 1;
        let is_empty = page.taken == 0;
        if was_full || is_empty {
            self.note(number as u32, was_full);
        }
        Some(value)
    }

    /// Notes that a page was full, and has room now, or that it has become empty. An empty page is kept as the spare one, and
    /// the one before goes back.
    #[cold]
    fn note(&mut self, number: u32, was_full: bool) {
        if was_full {
            self.open.push(number);
            return;
        }
        let before = core::mem::replace(&mut self.spare, number);
        let Some(page) = self.page_mut(before as usize) else { return };
        if page.taken > 0 || before == number {
            return;
        }
        page.free = NONE;
        for slot in core::mem::take(&mut page.slots) {
            page.start = page.start.max(slot.generation).max(slot.filing);
        }
        // Its numbers will be used up soon.
        if page.start > WORN {
            page.taken = PAGE;
            self.open.retain(|open| *open != before);
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Slot<T>> {
        let (number, offset) = parts(slot);
        self.page(number)?.slots.get(offset)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Slot<T>> {
        let (number, offset) = parts(slot);
        self.page_mut(number)?.slots.get_mut(offset)
    }

    /// Returns all slots that hold a value, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<T>)> {
        let pages = (0..).step_by(PAGE as usize).zip(self.pages());
        let all = pages.flat_map(|(first, page)| (first..).zip(&page.slots));
        all.filter(|(_, slot)| slot.value.is_some())
    }

    /// Panics if an invariant is broken, or unless so many slots hold a value.
    pub(super) fn check_invariants(&self, len: usize) {
        assert_eq!(self.iter().count(), len, "the number of values");
        let mut open = self.open.clone();
        open.sort_unstable();
        let have_room = (0..).zip(self.pages()).filter(|(_, page)| page.taken < PAGE);
        assert!(have_room.map(|(number, _)| number).eq(open), "pages with room are listed once");
        for (number, page) in (0..).zip(self.pages()) {
            let (mut free, mut next) = (0, page.free);
            while next != NONE {
                let slot = &page.slots[next as usize];
                assert!(slot.value.is_none(), "a free slot has a value");
                (free, next) = (free + 1, slot.deadline as u32);
            }
            let is_worn = page.slots.is_empty() && page.start > WORN;
            let is_whole = page.taken as usize + free == page.slots.len();
            assert!(is_worn || is_whole, "each slot is taken or free");
            let is_spare = page.taken == 0 && !page.slots.is_empty();
            assert!(!is_spare || number == self.spare, "a page is empty, and not given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = super::PAGE as usize;

    fn filled(count: usize) -> (Slots<usize>, Vec<(u32, u32)>) {
        let mut slots = Slots::new();
        let keys = (0..count).map(|value| {
            let (slot, generation, _) = slots.insert(0, 0, value);
            (slot, generation)
        });
        let keys = keys.collect();
        (slots, keys)
    }

    fn room<T>(slots: &Slots<T>) -> usize {
        slots.pages().map(|page| page.slots.capacity()).sum()
    }

    #[test]
    fn s09_pages_go_back_wherever_they_lie_and_s10_no_key_comes_twice() {
        let (mut slots, mut keys) = filled(100 * PAGE);
        assert_eq!(room(&slots), 100 * PAGE);
        for (value, (slot, generation)) in keys.iter().copied().enumerate() {
            if value % (10 * PAGE) != 7 {
                assert_eq!(slots.take(slot, generation), Some(value));
                assert_eq!(slots.take(slot, generation), None);
            }
        }
        slots.check_invariants(10);
        assert_eq!(room(&slots), 11 * PAGE, "ten with one value each, and a spare one");

        let again: Vec<_> = (10..100 * PAGE).map(|value| slots.insert(0, 0, value)).collect();
        slots.check_invariants(100 * PAGE);
        assert_eq!(slots.pages().count(), 100, "their numbers are used again");
        keys.extend(again.iter().map(|(slot, generation, _)| (*slot, *generation)));
        let distinct: alloc::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        again.into_iter().for_each(|(slot, generation, _)| {
            assert!(slots.take(slot, generation).is_some());
        });
        slots.check_invariants(10);
        let rest = keys.into_iter().filter_map(|(slot, generation)| slots.take(slot, generation));
        assert_eq!(rest.count(), 10);
        slots.check_invariants(0);
        assert!(room(&slots) <= PAGE, "little is left");
        let (_, generation, filing) = slots.insert(0, 0, 0);
        assert!(generation > 0 && filing > 0, "stale keys and entries name none of these");
    }

    #[test]
    fn to_and_fro_between_two_pages_allocates_nothing() {
        let (mut slots, _) = filled(PAGE);
        let (mut slot, mut generation, _) = slots.insert(0, 0, 0);
        let page = slots.more[0].slots.as_ptr();
        for value in 0..10 {
            assert_eq!(slots.take(slot, generation).map(|_| ()), Some(()));
            (slot, generation, _) = slots.insert(0, 0, value);
            assert_eq!(slots.more[0].slots.as_ptr(), page);
            slots.check_invariants(PAGE + 1);
        }
    }

    /// The page that is worn was opened before another one.
    #[test]
    fn s10_a_worn_page_in_the_middle_of_the_open_ones_is_closed() {
        let (mut slots, keys) = filled(3 * PAGE);
        slots.get_mut(0).expect("a slot").generation = WORN;
        assert_eq!(slots.take(0, WORN), Some(0));
        for page in 1..3 {
            let (slot, generation) = keys[page * PAGE];
            assert!(slots.take(slot, generation).is_some());
            slots.check_invariants(3 * PAGE - 1 - page);
        }
        // The worn page is not the last one that is emptied, or it would be kept.
        for (slot, generation) in keys[1..PAGE].iter().chain(&keys[PAGE + 1..2 * PAGE]) {
            assert!(slots.take(*slot, *generation).is_some());
        }
        slots.check_invariants(PAGE - 1);
        let again: Vec<_> = (0..3 * PAGE).map(|value| slots.insert(0, 0, value)).collect();
        assert!(again.iter().all(|(slot, ..)| *slot as usize >= PAGE));
        slots.check_invariants(4 * PAGE - 1);
    }

    #[test]
    fn s10_a_slot_that_is_used_again_and_again_wears_out_its_page_and_no_other() {
        let (mut slots, keys) = filled(2 * PAGE);
        slots.get_mut(0).expect("a slot").generation = WORN;
        assert_eq!(slots.take(0, WORN), Some(0));
        for (slot, generation) in &keys[1..] {
            assert!(slots.take(*slot, *generation).is_some());
        }
        slots.check_invariants(0);
        for value in 0..10 * PAGE {
            let (slot, generation, _) = slots.insert(0, 0, value);
            assert!(
                slot as usize >= PAGE && generation < 2,
                "slot {slot}, generation {generation}"
            );
        }
        slots.check_invariants(10 * PAGE);
        assert!(room(&slots) < 11 * PAGE);
    }
}
