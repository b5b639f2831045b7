//! Where the items of a heap lie: slots that stay where they are while the heap moves its entries about.
//!
//! ```text
//!   pages:  [ 64 slots ][ given back ][ 64 slots ][ 64 slots ] ...
//!                                      '- position of the entry | item
//! ```
//!
//! Slots come in pages. An empty page is given back to the allocator, wherever it lies, so that the few items that
//! remain after a peak hold on to little memory. One empty page is kept, so that a queue whose length goes up and down
//! around a multiple of a page does not allocate each time.
//!
//! The positions lie apart from the items, one step away from the list of pages. The heap writes a position with each
//! of its steps, so the memory that it touches stays small, however large the items are.
//!
//! - PAGE-1 A page with a free slot is either in `open` or in `closed`, once. A full page is in neither.
//! - PAGE-2 Each page in `closed` has been given back. A page in `open` may have been given back too: it moves to
//!   `closed` when it is the last of `open`, and a slot is wanted.
//! - PAGE-3 The position of a free slot is the offset of the next free slot of its page.
//!
//! Slots do not know whose item they hold. The heap checks that.

use super::sorted_run::IN_RUN;

/// How many slots a page has. With 256 instead of 64, an offer would cost 2 ns less, and one remaining item would keep
/// four times as much memory.
const PAGE: usize = 64;

pub(super) struct Slots<T> {
    /// `None` stands for a page that has been given back.
    pages: Vec<Option<Box<Page<T>>>>,
    open: Vec<u32>,
    closed: Vec<u32>,
    /// How many pages have not been given back.
    in_use: usize,
    /// One page is empty, and has not been given back.
    has_spare: bool,
}

struct Page<T> {
    /// The offset of the first free slot.
    free: u32,
    len: u32,
    positions: [u32; PAGE],
    items: Box<[Option<T>]>,
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        let positions = std::array::from_fn(|at| at as u32 + 1); // all are free, in a row (PAGE-3)
        let items = std::iter::repeat_with(|| None).take(PAGE).collect();
        Page { free: 0, len: 0, positions, items }
    }

    fn is_full(&self) -> bool {
        self.len as usize == PAGE
    }
}

impl<T> Slots<T> {
    pub(super) fn new() -> Slots<T> {
        let (pages, open, closed) = (Vec::new(), Vec::new(), Vec::new());
        Slots { pages, open, closed, in_use: 0, has_spare: false }
    }

    /// Puts an item into a free slot, and returns the slot.
    pub(super) fn insert(&mut self, item: T) -> u32 {
        let number = self.page_with_room();
        let page = self.pages[number as usize].as_mut().expect("it has room");
        let offset = page.free;
        page.free = page.positions[offset as usize];
        page.items[offset as usize] = Some(item);
        page.len += 1;
        if page.len == 1 {
            self.has_spare = false; // it was the spare page, or it is new, and then there was none
        }
        if page.is_full() {
            self.open.pop();
        }
        number * PAGE as u32 + offset
    }

    /// Returns a page with a free slot, which is the last one of `open`. If there is none, allocates a page, under the
    /// number of one that has been given back, if possible.
    fn page_with_room(&mut self) -> u32 {
        while let Some(&number) = self.open.last() {
            if self.pages[number as usize].is_some() {
                return number;
            }
            self.open.pop();
            self.closed.push(number); // it has been given back in the meantime (PAGE-2)
        }
        let number = self.closed.pop().unwrap_or_else(|| {
            let number = self.pages.len();
            let last_slot = (number + 1) * PAGE - 1;
            // One bit of a position says that it is in the run.
            assert!(last_slot < IN_RUN as usize, "fewer than two thousand million items");
            self.pages.push(None);
            number as u32
        });
        self.pages[number as usize] = Some(Box::new(Page::new()));
        self.in_use += 1;
        self.open.push(number);
        number
    }

    /// Takes the item out of its slot. Returns `None` if the slot is free.
    pub(super) fn take(&mut self, slot: u32) -> Option<T> {
        let (number, offset) = parts(slot);
        let page = self.pages.get_mut(number)?.as_mut()?;
        let was_full = page.is_full();
        let item = page.items.get_mut(offset)?.take()?;
        page.positions[offset] = page.free;
        page.free = offset as u32;
        page.len -= 1;
        if was_full {
            self.open.push(number as u32);
        }
        if page.len == 0 {
            if self.has_spare {
                self.pages[number] = None;
                self.in_use -= 1;
                if self.in_use == 1 {
                    *self = Slots::new(); // only the spare page was left: all memory goes back
                }
            } else {
                self.has_spare = true;
            }
        }
        Some(item)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let (number, offset) = parts(slot);
        self.pages.get(number)?.as_ref()?.items[offset].as_ref()
    }

    /// Returns all items, in no order.
    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.pages.into_iter().flatten().flat_map(|page| page.items.into_iter().flatten())
    }

    /// Returns all items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flat_map(|page| page.items.iter().flatten())
    }

    /// Returns what [`set_position`](Slots::set_position) has set, if the slot is taken.
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

    /// Returns how many slots have memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pages.iter().flatten().count() * PAGE
    }

    /// Returns how many pages [`check_invariants`](Slots::check_invariants) looks at, with those that were given back.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
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
        let is_given_back = |number: &u32| self.pages[*number as usize].is_none();
        assert!(self.closed.iter().all(is_given_back), "PAGE-2");
        let (mut in_use, mut spare) = (0, 0);
        for page in self.pages.iter().flatten() {
            let taken = page.items.iter().filter(|item| item.is_some()).count();
            assert_eq!(taken, page.len as usize, "the number of items in a page");
            let mut next = page.free;
            for _ in taken..PAGE {
                assert!(page.items[next as usize].is_none(), "PAGE-3");
                next = page.positions[next as usize];
            }
            in_use += 1;
            spare += usize::from(taken == 0);
        }
        assert_eq!((in_use, spare), (self.in_use, usize::from(self.has_spare)), "pages in use");
    }
}

/// Takes the number of a slot apart, into the number of its page and its offset there.
#[inline]
fn parts(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE, slot as usize % PAGE)
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
        assert_eq!(slots.capacity(), 11 * PAGE, "ten with one item each, and a spare one");

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
        let items = slots.pages[1].as_ref().map(|page| page.items.as_ptr());
        slots.take(first);
        for item in 0..10 {
            let slot = slots.insert(item);
            assert_eq!(slots.pages[1].as_ref().map(|page| page.items.as_ptr()), items);
            assert_eq!(slots.take(slot), Some(item));
            slots.check_invariants(PAGE);
        }
    }
}
