//! Where the items lie: slots that keep still while the heap above them moves its entries about.
//!
//! ```text
//!   pages:  [ 64 slots ][ given back ][ 64 slots ][ 64 slots ] ...
//!                                      '- position of the entry | item
//! ```
//!
//! Slots come in pages. A page that has emptied is given back to the allocator, wherever it lies, so
//! that what stays after a peak holds on to little. Of what nobody uses, one page is kept, so that a
//! queue that goes to and fro between a page and the next does not allocate each time.
//!
//! The positions lie apart from the items, and one step from the list of pages: the heap writes one with
//! each of its steps, and so what it goes through stays small, however large the items are.
//!
//! - PAGE-1 A page with a free slot is in `open` or in `closed`, once; a full one in neither.
//! - PAGE-2 What is in `closed` has been given back. So may be what is in `open`: it is sorted out when it
//!   comes up.
//! - PAGE-3 In a free slot the position is the next free one of the page.
//!
//! It does not know whether a slot still belongs to whoever asks. The heap does.

use super::run::RUN;

/// How many slots a page has. With 256 instead of 64 an offer costs 2 ns less, and a straggler keeps
/// four times as much.
const PAGE: usize = 64;

pub(super) struct Slots<T> {
    /// `None` for one that has been given back.
    pages: Vec<Option<Box<Page<T>>>>,
    open: Vec<u32>,
    closed: Vec<u32>,
    /// How many pages have not been given back.
    in_use: usize,
    /// One of them is empty.
    has_spare: bool,
}

struct Page<T> {
    free: u32,
    len: u32,
    positions: [u32; PAGE],
    items: Box<[Option<T>]>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Slots<T> {
        let (pages, open, closed) = (Vec::new(), Vec::new(), Vec::new());
        Slots { pages, open, closed, in_use: 0, has_spare: false }
    }

    /// Puts an item into a slot.
    pub(super) fn insert(&mut self, item: T) -> u32 {
        let number = self.page_with_room();
        let page = self.pages[number as usize].as_mut().expect("it has room");
        let offset = page.insert(item);
        if page.len == 1 {
            self.has_spare = false; // it was the spare one, or it is new, and then there was none
        }
        if page.is_full() {
            self.open.pop();
        }
        number * PAGE as u32 + offset
    }

    /// The last one of `open`; PAGE-1, PAGE-2.
    fn page_with_room(&mut self) -> u32 {
        while let Some(&number) = self.open.last() {
            if self.pages[number as usize].is_some() {
                return number;
            }
            self.open.pop();
            self.closed.push(number);
        }
        let number = self.closed.pop().unwrap_or_else(|| self.add_page());
        self.pages[number as usize] = Some(Box::new(Page::new()));
        self.in_use += 1;
        self.open.push(number);
        number
    }

    fn add_page(&mut self) -> u32 {
        let number = self.pages.len();
        let last_slot = (number + 1) * PAGE - 1;
        // A position has one bit less than a slot's number: see `run`.
        assert!(last_slot < RUN as usize, "fewer than two thousand million items");
        self.pages.push(None);
        number as u32
    }

    /// Takes the item out of its slot.
    pub(super) fn take(&mut self, slot: u32) -> Option<T> {
        let (number, offset) = parts(slot);
        let page = self.pages.get_mut(number)?.as_mut()?;
        let was_full = page.is_full();
        let item = page.take(offset)?;
        if was_full {
            self.open.push(number as u32);
        }
        if page.len == 0 {
            self.retire(number);
        }
        Some(item)
    }

    /// Keeps an empty page as the spare one, or gives it back; and all there is, if nothing is left.
    fn retire(&mut self, number: usize) {
        if !self.has_spare {
            self.has_spare = true;
            return;
        }
        self.pages[number] = None;
        self.in_use -= 1;
        if self.in_use == 1 {
            *self = Slots::new(); // the spare one was the last
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let (number, offset) = parts(slot);
        self.pages.get(number)?.as_ref()?.items[offset].as_ref()
    }

    /// All items, in no order.
    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.pages.into_iter().flatten().flat_map(|page| page.items.into_iter().flatten())
    }

    /// All items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flat_map(|page| page.items.iter().flatten())
    }

    /// What [`set_position`](Slots::set_position) has set, if the slot is taken.
    #[inline]
    pub(super) fn position(&self, slot: u32) -> Option<u32> {
        let (number, offset) = parts(slot);
        Some(self.pages.get(number)?.as_ref()?.positions[offset])
    }

    #[inline]
    pub(super) fn set_position(&mut self, slot: u32, position: u32) {
        let (number, offset) = parts(slot);
        let page = self.pages[number].as_mut().expect("only slots that are taken have positions");
        page.positions[offset] = position;
    }

    /// How many slots have memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pages.iter().flatten().count() * PAGE
    }

    /// Asserts PAGE-1, PAGE-2 and PAGE-3, and that so many slots are taken.
    pub(super) fn check_invariants(&self, len: usize) {
        let taken = self.pages.iter().flatten().map(|page| page.len as usize).sum::<usize>();
        assert_eq!(taken, len, "the number of slots that are taken");
        let mut listed = vec![0; self.pages.len()];
        for &number in self.open.iter().chain(&self.closed) {
            listed[number as usize] += 1;
        }
        for (page, listed) in self.pages.iter().zip(listed) {
            let has_room = page.as_ref().is_none_or(|page| !page.is_full());
            assert_eq!(listed, i32::from(has_room), "PAGE-1");
        }
        self.pages.iter().flatten().for_each(|page| page.check_invariants());
        let is_given_back = |number: &u32| self.pages[*number as usize].is_none();
        assert!(self.closed.iter().all(is_given_back), "PAGE-2");
        let spare = self.pages.iter().flatten().filter(|page| page.len == 0);
        assert_eq!(spare.count(), usize::from(self.has_spare), "the spare page");
        let in_use = self.pages.iter().flatten().count();
        assert_eq!(in_use, self.in_use, "the number of pages in use");
    }
}

#[inline]
fn parts(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE, slot as usize % PAGE)
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        let positions = std::array::from_fn(|at| at as u32 + 1); // PAGE-3
        let items = std::iter::repeat_with(|| None).take(PAGE).collect();
        Page { free: 0, len: 0, positions, items }
    }

    fn is_full(&self) -> bool {
        self.len as usize == PAGE
    }

    fn insert(&mut self, item: T) -> u32 {
        let offset = self.free;
        self.free = self.positions[offset as usize];
        self.items[offset as usize] = Some(item);
        self.len += 1;
        offset
    }

    fn take(&mut self, offset: usize) -> Option<T> {
        let item = self.items.get_mut(offset)?.take()?;
        self.positions[offset] = self.free;
        self.free = offset as u32;
        self.len -= 1;
        Some(item)
    }

    fn check_invariants(&self) {
        let taken = self.items.iter().filter(|item| item.is_some()).count();
        assert_eq!(taken, self.len as usize, "the number of items in a page");
        let mut next = self.free;
        for _ in taken..self.items.len() {
            assert!(self.items[next as usize].is_none(), "PAGE-3");
            next = self.positions[next as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_back_wherever_they_lie() {
        let mut slots = Slots::new();
        let all: Vec<_> = (0..100 * PAGE).map(|item| slots.insert(item)).collect();
        assert_eq!(slots.capacity(), 100 * PAGE);
        for (item, &slot) in all.iter().enumerate().filter(|(item, _)| item % (10 * PAGE) != 7) {
            assert_eq!(slots.take(slot), Some(item));
            assert_eq!(slots.take(slot), None);
        }
        slots.check_invariants(10);
        assert_eq!(slots.capacity(), 11 * PAGE, "ten with a straggler, and a spare one");

        let again: Vec<_> = (0..100 * PAGE - 10).map(|item| slots.insert(item)).collect();
        slots.check_invariants(100 * PAGE);
        assert_eq!(slots.pages.len(), 100, "their numbers are used again");
        again.into_iter().for_each(|slot| assert!(slots.take(slot).is_some()));
        slots.check_invariants(10);
        assert_eq!(all.into_iter().filter_map(|slot| slots.take(slot)).count(), 10);
        slots.check_invariants(0);
        assert_eq!((slots.pages.capacity(), slots.open.capacity()), (0, 0), "nothing is left");
    }

    #[test]
    fn to_and_fro_between_two_pages_allocates_nothing() {
        let mut slots = Slots::new();
        (0..PAGE).for_each(|item| assert_eq!(slots.insert(item) as usize, item));
        let first = slots.insert(PAGE);
        let place = slots.pages[1].as_ref().map(|page| page.items.as_ptr());
        slots.take(first);
        for item in 0..10 {
            let slot = slots.insert(item);
            assert_eq!(slots.pages[1].as_ref().map(|page| page.items.as_ptr()), place);
            assert_eq!(slots.take(slot), Some(item));
            slots.check_invariants(PAGE);
        }
    }
}
