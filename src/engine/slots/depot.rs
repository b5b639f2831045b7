//! The free slots that no thread has at hand: one bit for each.
//!
//! ```text
//!   open     [ 1 0 1 ... ]                 a bit per page: it has a free slot
//!              |   '-------------.
//!   pages    [ 0110...1 ] [ 0 ] [ 1...1 ]  a bit per slot; a word is a page, 4 KiB of holders
//!   bare     [ 0 0 1 ... ]                 a bit per page: the system has it back, or never gave it
//! ```
//!
//! Slots come back in the order in which tasks end, which is none: a list of them would scatter the
//! next tasks over all of the memory, a cache miss and a miss of the page table for each. A bitmap
//! puts them in the order of their addresses for nothing. The lowest free slots are taken first, so
//! that after a peak the upper pages run empty, and can go back to the system.
//!
//! Everything here is behind one lock, which is taken once for 128 tasks.

use std::ops::Range;

use super::{directory, grow};
use crate::platform::sync::{MAGAZINE, Mutex, MutexGuard, global, lock};

/// How many slots there can be in all: 268 million, so that an index leaves four bits free.
const SLOT_BITS: u32 = 28;
/// How many holders a block has: two megabytes of them.
const BLOCK_BITS: u32 = 15;
pub(super) const BLOCKS: usize = 1 << (SLOT_BITS - BLOCK_BITS);
/// How many holders lie in a page of 4 KiB, which is as many as a word has bits.
pub(super) const PAGE: usize = 64;
const PAGES_PER_BLOCK: usize = (1 << BLOCK_BITS) / PAGE;

/// Free slots in a thread's hand, the next one last.
pub(super) type Magazine = Vec<u32>;

pub(super) fn block_of(index: u32) -> usize {
    (index >> BLOCK_BITS) as usize & (BLOCKS - 1)
}

pub(super) fn place_of(index: u32) -> usize {
    index as usize & ((1 << BLOCK_BITS) - 1)
}

pub(crate) struct Depot {
    pages: Vec<u64>,
    open: Vec<u64>,
    bare: Vec<u64>,
    /// No word of `open` before this one has a bit.
    lowest: usize,
    blocks: usize,
    /// Blocks that have a number, and for which the system had no memory.
    lost: usize,
    /// Free slots of pages that are not bare.
    free: usize,
    /// All slots of pages that are not bare.
    resident: usize,
    /// The least that `free` was since [`Depot::mark`]: what nobody has needed for that long.
    low: usize,
    /// How many free slots the last trim could not get rid of, and how many were in use then.
    stuck: usize,
    in_use_then: usize,
}

global!(DEPOT: Mutex<Depot> = Mutex::new(Depot {
    pages: Vec::new(),
    open: Vec::new(),
    bare: Vec::new(),
    lowest: 0,
    blocks: 0,
    lost: 0,
    free: 0,
    resident: 0,
    low: 0,
    stuck: 0,
    in_use_then: 0,
}));

pub(crate) fn depot() -> MutexGuard<'static, Depot> {
    lock(&DEPOT)
}

/// Below this many free slots (4 MiB) nothing is worth trimming.
const WORTH_TRIMMING: usize = 64 * 1024;

impl Depot {
    // ----- out and in ----------------------------------------------------------------------

    /// Fills a magazine with the lowest free slots, the lowest of all last.
    pub(super) fn take(&mut self, magazine: &mut Magazine) {
        while magazine.len() < MAGAZINE {
            let Some(page) = self.lowest_open() else { break };
            self.take_from(page, MAGAZINE, magazine);
        }
        magazine.reverse();
        if self.is_short() {
            grow::is_short();
        }
    }

    /// One slot, for a thread without a magazine.
    pub(super) fn take_one(&mut self) -> Option<u32> {
        let mut one = Magazine::new();
        let page = self.lowest_open()?;
        self.take_from(page, 1, &mut one);
        one.pop()
    }

    /// Takes in free slots.
    pub(super) fn put(&mut self, slots: &[u32]) {
        for slot in slots {
            let page = *slot as usize / PAGE;
            self.pages[page] |= 1 << (*slot as usize % PAGE);
            self.set_open(page);
        }
        self.free += slots.len();
    }

    /// The first page that has a free slot, of a new block if need be.
    fn lowest_open(&mut self) -> Option<usize> {
        loop {
            while let Some(open) = self.open.get(self.lowest) {
                if *open != 0 {
                    return Some(self.lowest * 64 + open.trailing_zeros() as usize);
                }
                self.lowest += 1;
            }
            if self.blocks == BLOCKS || !directory::add_block(self.blocks) {
                return None;
            }
            self.add_pages(u64::MAX);
        }
    }

    /// Moves slots of a page into a magazine, until it has so many.
    fn take_from(&mut self, page: usize, full: usize, magazine: &mut Magazine) {
        if is_set(&self.bare, page) {
            self.bare[page / 64] &= !(1 << (page % 64));
            self.free += PAGE;
            self.resident += PAGE;
        }
        let before = magazine.len();
        let slots = &mut self.pages[page];
        while *slots != 0 && magazine.len() < full {
            magazine.push((page * PAGE) as u32 + slots.trailing_zeros());
            *slots &= *slots - 1;
        }
        if *slots == 0 {
            self.open[page / 64] &= !(1 << (page % 64));
        }
        self.free -= magazine.len() - before;
        self.low = self.low.min(self.free);
    }

    fn set_open(&mut self, page: usize) {
        self.open[page / 64] |= 1 << (page % 64);
        self.lowest = self.lowest.min(page / 64);
    }

    // ----- what will be needed -------------------------------------------------------------

    /// Whether fewer slots are left than half a block has.
    fn is_short(&self) -> bool {
        let left = ((self.blocks - self.lost) << BLOCK_BITS) - self.resident + self.free;
        left < (1 << BLOCK_BITS) / 2
    }

    /// A number for a further block, if few slots are left. None of its slots is free before
    /// [`Depot::open_block`].
    pub(super) fn reserve_block(&mut self) -> Option<usize> {
        (self.is_short() && self.blocks < BLOCKS).then(|| self.add_pages(0))
    }

    /// Makes the slots of a reserved block free.
    pub(super) fn open_block(&mut self, block: usize) {
        for page in block * PAGES_PER_BLOCK..(block + 1) * PAGES_PER_BLOCK {
            self.pages[page] = u64::MAX;
            self.set_open(page);
        }
    }

    /// There is no memory for a reserved block.
    pub(super) fn lose_block(&mut self) {
        self.lost += 1;
    }

    /// The number of a new block, with these bits for each of its words.
    fn add_pages(&mut self, free: u64) -> usize {
        self.blocks += 1;
        self.pages.resize(self.blocks * PAGES_PER_BLOCK, free);
        self.open.resize(self.pages.len() / 64, free);
        self.bare.resize(self.pages.len() / 64, u64::MAX);
        self.blocks - 1
    }

    // ----- what could go back --------------------------------------------------------------

    /// Begins to watch how much stays free.
    pub(super) fn mark(&mut self) {
        self.low = self.free;
    }

    /// Whether so much is free that it may be worth giving back.
    pub(super) fn is_bloated(&self) -> bool {
        self.is_too_much(self.free)
    }

    /// Whether so much has stayed free since [`Depot::mark`].
    pub(super) fn stayed_bloated(&self) -> bool {
        self.is_too_much(self.low)
    }

    /// More than is in use; and twice what the last trim could not get rid of, unless the tasks that
    /// stood in its way have become half as many.
    fn is_too_much(&self, free: usize) -> bool {
        let has_changed = free > 2 * self.stuck || self.in_use() < self.in_use_then / 2;
        free > self.in_use().max(WORTH_TRIMMING) && has_changed
    }

    fn in_use(&self) -> usize {
        self.resident - self.free
    }

    /// A trim has come to its end.
    pub(super) fn trimmed(&mut self) {
        (self.stuck, self.in_use_then) = (self.free, self.in_use());
    }

    /// How many pages there are.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Hands over the slots of a whole group of pages, if all are free and some are not bare yet.
    pub(crate) fn take_group(&mut self, group: Range<usize>) -> Option<Range<u32>> {
        let is_free = self.pages[group.clone()].iter().all(|slots| *slots == u64::MAX);
        if !is_free || group.clone().all(|page| is_set(&self.bare, page)) {
            return None;
        }
        for page in group.clone() {
            self.pages[page] = 0;
            self.open[page / 64] &= !(1 << (page % 64));
            if !is_set(&self.bare, page) {
                self.free -= PAGE;
                self.resident -= PAGE;
            }
        }
        Some((group.start * PAGE) as u32..(group.end * PAGE) as u32)
    }

    /// Takes the slots of whole pages back in, which are bare now, or are not.
    pub(crate) fn put_group(&mut self, slots: Range<u32>, is_bare: bool) {
        for page in slots.start as usize / PAGE..slots.end as usize / PAGE {
            self.pages[page] = u64::MAX;
            self.set_open(page);
            if is_bare {
                self.bare[page / 64] |= 1 << (page % 64);
            } else {
                self.bare[page / 64] &= !(1 << (page % 64));
                self.free += PAGE;
                self.resident += PAGE;
            }
        }
    }
}

fn is_set(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A depot of one block, of which no page has ever been used.
    fn of_one_block() -> Depot {
        let words = PAGES_PER_BLOCK / 64;
        Depot {
            pages: vec![u64::MAX; PAGES_PER_BLOCK],
            open: vec![u64::MAX; words],
            bare: vec![u64::MAX; words],
            lowest: 0,
            blocks: 1,
            lost: 0,
            free: 0,
            resident: 0,
            low: 0,
            stuck: 0,
            in_use_then: 0,
        }
    }

    fn take_ones(depot: &mut Depot, count: usize) -> Vec<u32> {
        (0..count).map(|_| depot.take_one().expect("there are enough")).collect()
    }

    #[test]
    fn pages_that_go_come_back_whole() {
        const FIRST: u32 = 70; // in the second word
        let page = |number: u32| number * PAGE as u32..(number + 1) * PAGE as u32;
        let counts = |depot: &Depot| (depot.free / PAGE, depot.resident / PAGE);
        let mut depot = of_one_block();
        let all = take_ones(&mut depot, 73 * PAGE);
        assert!(all.iter().copied().eq(0..73 * PAGE as u32), "the lowest first");
        assert_eq!(counts(&depot), (0, 73));
        assert_eq!(depot.take_group(72..73), None, "all of it is in use");
        depot.put(&all[FIRST as usize * PAGE..]);
        assert_eq!(counts(&depot), (3, 73));

        // Two pages go. What is taken meanwhile comes from behind them.
        let (first, second) = (page(FIRST), page(FIRST + 1));
        assert_eq!(depot.take_group(70..72), Some(first.start..second.end));
        assert_eq!((counts(&depot), depot.take_group(70..72)), ((1, 71), None));
        assert_eq!(depot.take_one(), Some(second.end));
        assert_eq!(depot.take_group(72..73), None, "one is in use");
        depot.put(&[second.end]);

        // One comes back bare: so nothing of it counts, and it does not go again, until it is used.
        depot.put_group(first.clone(), true);
        depot.put_group(second.clone(), false);
        assert_eq!((counts(&depot), depot.take_group(70..71)), ((2, 72), None));
        assert_eq!(depot.take_group(71..72), Some(second.clone()));
        depot.put_group(second.clone(), false);
        // Both go, the bare one along with the other, and come back as they went: now neither is bare.
        assert_eq!(depot.take_group(70..72), Some(first.start..second.end));
        depot.put_group(first.start..second.end, false);
        assert_eq!(counts(&depot), (3, 73));
        assert_eq!(take_ones(&mut depot, 2 * PAGE), (first.start..second.end).collect::<Vec<_>>());
        assert_eq!(counts(&depot), (1, 73));
        assert_eq!(depot.take_one(), Some(second.end));
        depot.put(&[200]);
        assert_eq!(depot.take_one(), Some(200), "from the first word again");
    }

    #[test]
    fn a_block_that_is_reserved_has_no_slots_before_it_is_opened() {
        let mut depot = of_one_block();
        assert_eq!(depot.reserve_block(), None, "there are enough");
        let half = take_ones(&mut depot, (1 << BLOCK_BITS) / 2 + 1);
        assert_eq!(depot.reserve_block(), Some(1));
        assert_eq!(depot.reserve_block(), None, "half of it and a whole one are enough");
        let rest = take_ones(&mut depot, (1 << BLOCK_BITS) - half.len());
        assert_eq!(rest.last(), Some(&((1 << BLOCK_BITS) - 1)));
        depot.lowest = depot.open.len(); // it has been looked through
        depot.open_block(1);
        assert_eq!(depot.take_one(), Some(1 << BLOCK_BITS));
        assert_eq!((depot.free, depot.resident), (PAGE - 1, (1 << BLOCK_BITS) + PAGE));
    }

    #[test]
    fn s09_what_a_trim_could_not_get_rid_of_is_tried_again_when_it_may_have_changed() {
        let million = 1_000_000;
        let mut depot = Depot { free: 9 * million, resident: 10 * million, ..of_one_block() };
        assert!(depot.is_bloated());
        depot.trimmed(); // it found no page that was wholly free
        assert!(!depot.is_bloated());
        depot.free += million / 4;
        assert!(!depot.is_bloated(), "most of what stood in its way is still there");
        depot.free += million / 2;
        assert!(depot.is_bloated());
    }
}
