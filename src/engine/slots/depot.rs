//! The free slots that no thread has at hand: one bit for each.
//!
//! ```text
//!   open     [ 1 0 1 ... ]                 a bit per page: it has a free slot
//!              |   '-------------.
//!   pages    [ 0110...1 ] [ 0 ] [ 1...1 ]  a bit per slot; a word is a page, 4 KiB of holders
//!   absent   [ 0 0 1 ... ]                 a bit per page: the system has it back, or never gave it
//! ```
//!
//! Slots come back in the order in which tasks end, which has nothing to do with their addresses. A list of them would
//! scatter the next tasks over all of the memory, with a cache miss and a TLB miss for each. A bitmap keeps them in the
//! order of their addresses at no cost.
//!
//! Everything here is behind one lock, which is taken once for 128 tasks.
//!
//! The tick thread adds the next block ahead of its use. A caller that finds no free slot before that adds a block itself.
//! The first block is one of these: a process with few timers has few pages.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{LazyLock, Mutex as StdMutex};

use super::blocks::{self, Block};
use super::holder::{BLOCK_BITS, BLOCKS, PAGE};
use crate::platform::sync::{MAGAZINE, Mutex, MutexGuard, Ordering, global, lock};

const PAGES_PER_BLOCK: usize = (1 << BLOCK_BITS) / PAGE;

/// With fewer free slots than this (4 MiB) nothing is worth trimming.
const WORTH_TRIMMING: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Depot {
    pages: Vec<u64>,
    open: Vec<u64>,
    absent: Vec<u64>,
    /// All words of `open` before this one are zero.
    lowest: usize,
    blocks: usize,
    /// Free slots of pages that are not absent.
    free: usize,
    /// Slots that are not free, nor in the hands of a trim.
    in_use: usize,
    /// The lowest value of `free` since the last call of [`Depot::watch`]: nobody has needed these slots since then.
    least_free: usize,
    /// How many of the slots that were free at the beginning of the last trim it could not get rid of, and how many were in use
    /// then.
    free_after_trim: usize,
    in_use_after_trim: usize,
    /// Counts the calls that check the invariants, in a debug build.
    checks: u32,
}

global!(DEPOT: LazyLock<Mutex<Depot>> = LazyLock::new(Mutex::default));

/// The free slots are few. Relaxed: this is a hint, and the depot's lock tells what is true.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Returns true if a tick thread should add a block. A hint.
pub(crate) fn wants_a_block() -> bool {
    IS_SHORT.load(Ordering::Relaxed)
}

pub(crate) fn depot() -> MutexGuard<'static, Depot> {
    lock(&DEPOT)
}

/// Only one thread adds a block ahead at a time.
static AHEAD: StdMutex<()> = StdMutex::new(());

/// Adds a block if one will soon be needed. Tick threads call this. The depot is not locked while the system works.
pub(crate) fn add_block_ahead() {
    if !wants_a_block() {
        return;
    }
    let Ok(_alone) = AHEAD.try_lock() else { return }; // another tick thread is at it
    // A taker sets it again if this is not enough, or if the system has no memory now: once for each magazine, so the
    // system is not asked too often.
    IS_SHORT.store(false, Ordering::Relaxed);
    let mut depot_now = depot();
    let is_needed = depot_now.is_short() && depot_now.has_room();
    drop(depot_now);
    // The system clears a page when it is first touched, which would delay one schedule in 64 by a microsecond. So the
    // whole block is touched here, in half a millisecond, before anybody uses it.
    if let Some(block) = is_needed.then(|| blocks::map(true)).flatten() {
        depot().add_block(|| Some(block));
    }
}

impl Depot {
    // ----- out and in ----------------------------------------------------------------------

    /// Fills an empty list with a magazine of the lowest free slots. The lowest of all is the last.
    pub(super) fn take(&mut self, magazine: &mut Vec<u32>) {
        while magazine.len() < MAGAZINE {
            // The lowest first, so that after a peak the upper pages run empty, and can go back to the system.
            let Some(page) = self.lowest_open_page() else { break };
            self.take_from(page, MAGAZINE, magazine);
        }
        // The last slot of a list is taken first.
        magazine.reverse();
        if self.is_short() {
            IS_SHORT.store(true, Ordering::Relaxed);
        }
        self.check_sometimes();
    }

    /// Takes one slot, for a thread without magazines.
    pub(super) fn take_one(&mut self) -> Option<u32> {
        let mut one = Vec::new();
        let page = self.lowest_open_page()?;
        self.take_from(page, 1, &mut one);
        one.pop()
    }

    /// Takes in free slots.
    pub(super) fn put(&mut self, slots: &[u32]) {
        for slot in slots.iter().map(|slot| *slot as usize) {
            debug_assert!(!is_set(&self.pages, slot), "slot {slot} is free twice (SLOT-1)");
            debug_assert!(!is_set(&self.absent, slot / PAGE), "slot {slot} was in use");
            if self.pages[slot / PAGE] == 0 {
                self.set_open(slot / PAGE);
            }
            set(&mut self.pages, slot);
        }
        self.free += slots.len();
        self.in_use -= slots.len();
        self.check_sometimes();
    }

    /// Returns the slots of a block that are not free here: those of tasks, and those that threads have at hand. `None` behind
    /// the last block.
    pub(super) fn slots_in_use(&self, block: usize) -> Option<Vec<u32>> {
        if block == self.blocks {
            return None;
        }
        let pages = block * PAGES_PER_BLOCK..(block + 1) * PAGES_PER_BLOCK;
        let pages = pages.filter(|page| !is_set(&self.absent, *page));
        let slots = pages.flat_map(|page| page * PAGE..(page + 1) * PAGE);
        Some(slots.filter(|slot| !is_set(&self.pages, *slot)).map(|slot| slot as u32).collect())
    }

    /// Returns the first page that has a free slot. If there is none, it adds a block.
    fn lowest_open_page(&mut self) -> Option<usize> {
        loop {
            while let Some(open) = self.open.get(self.lowest) {
                if *open != 0 {
                    return Some(self.lowest * 64 + open.trailing_zeros() as usize);
                }
                self.lowest += 1;
            }
            // Not touched ahead: the caller waits under the lock. Each of its pages comes when it is touched.
            if !self.add_block(|| blocks::map(false)) {
                return None;
            }
        }
    }

    /// Moves slots of a page into a magazine, until that has `full` of them.
    fn take_from(&mut self, page: usize, full: usize, magazine: &mut Vec<u32>) {
        // The system gives the whole page as soon as one holder of it is touched.
        if is_set(&self.absent, page) {
            clear(&mut self.absent, page);
            self.free += PAGE;
        }
        let before = magazine.len();
        let slots = &mut self.pages[page];
        debug_assert_ne!(*slots, 0, "page {page} is open");
        let (mut left, count) = (*slots, (full - before).min(slots.count_ones() as usize));
        magazine.extend((0..count).map(|_| {
            let lowest = left.trailing_zeros();
            left &= left - 1;
            (page * PAGE) as u32 + lowest
        }));
        *slots = left;
        if left == 0 {
            clear(&mut self.open, page);
        }
        self.free -= count;
        self.in_use += count;
        self.least_free = self.least_free.min(self.free);
    }

    fn set_open(&mut self, page: usize) {
        set(&mut self.open, page);
        self.lowest = self.lowest.min(page / 64);
    }

    // ----- the next block ------------------------------------------------------------------

    /// Returns true if fewer slots are left than half a block has, and another block can be added.
    fn is_short(&self) -> bool {
        let left = (self.blocks << BLOCK_BITS) - self.in_use;
        left < (1 << BLOCK_BITS) / 2 && self.blocks < BLOCKS
    }

    /// Makes the slots of a new block free, if there is room for it, and `map` returns one. Returns false otherwise. If it was
    /// mapped before, its addresses stay unused then. So the caller has asked [`has_room`](Depot::has_room), and only another
    /// thread can have taken the room away.
    fn add_block(&mut self, map: impl FnOnce() -> Option<Block>) -> bool {
        // A block gets its number only once its memory is there, so a slot number always has memory behind it.
        let block = if self.has_room() { map() } else { None };
        let Some(block) = block else { return false };
        blocks::publish(self.blocks, block);
        self.add_pages();
        true
    }

    /// Returns true if another block can be added: there are not all blocks yet, and there is memory to list its pages.
    fn has_room(&mut self) -> bool {
        if self.blocks == BLOCKS {
            return false;
        }
        let pages = (self.blocks + 1) * PAGES_PER_BLOCK;
        let bits = [(&mut self.open, pages / 64), (&mut self.absent, pages / 64)];
        [(&mut self.pages, pages)].into_iter().chain(bits).all(|(list, len)| {
            let more = len - list.len();
            // With little memory left, the exact size may fit where the usual doubling does not.
            list.try_reserve(more).or_else(|_| list.try_reserve_exact(more)).is_ok()
        })
    }

    /// Lists the pages of a further block, all of whose slots are free.
    fn add_pages(&mut self) {
        let pages = (self.blocks + 1) * PAGES_PER_BLOCK;
        self.pages.resize(pages, u64::MAX);
        self.open.resize(pages / 64, u64::MAX);
        self.absent.resize(pages / 64, u64::MAX);
        self.blocks += 1;
    }

    // ----- what could go back --------------------------------------------------------------

    /// Begins to watch how much stays free. Returns true if that may be worth giving back.
    pub(crate) fn watch(&mut self) -> bool {
        self.least_free = self.free;
        self.stayed_bloated()
    }

    /// Returns true if since [`Depot::watch`] more slots have stayed free than are in use, and more than twice as many as the
    /// last trim has left free. If fewer than half of the tasks are left that kept that trim from doing more, the first
    /// condition is enough.
    pub(super) fn stayed_bloated(&self) -> bool {
        // Otherwise a trim that a few scattered tasks have stopped would begin again and again.
        let has_changed =
            self.least_free > 2 * self.free_after_trim || self.in_use < self.in_use_after_trim / 2;
        self.least_free > self.in_use.max(WORTH_TRIMMING) && has_changed
    }

    /// Notes what a trim may get rid of; each page that goes is then subtracted. What becomes free meanwhile does not
    /// count, because above the page that the trim has come to it is left for the next one. Returns the number of pages.
    pub(super) fn trim_begins(&mut self) -> usize {
        (self.free_after_trim, self.in_use_after_trim) = (self.free, self.in_use);
        self.pages.len()
    }

    /// Hands over the slots of a whole group of pages, if all are free and some page is not absent.
    pub(crate) fn take_group(&mut self, group: Range<usize>) -> Option<Range<u32>> {
        let is_free = self.pages[group.clone()].iter().all(|slots| *slots == u64::MAX);
        if !is_free || group.clone().all(|page| is_set(&self.absent, page)) {
            return None;
        }
        for page in group.clone() {
            self.pages[page] = 0;
            clear(&mut self.open, page);
            if !is_set(&self.absent, page) {
                self.free -= PAGE;
            }
        }
        Some((group.start * PAGE) as u32..(group.end * PAGE) as u32)
    }

    /// Takes the slots of whole pages back in, and notes whether the pages are absent now.
    pub(crate) fn put_group(&mut self, slots: Range<u32>, is_absent: bool) {
        for page in slots.start as usize / PAGE..slots.end as usize / PAGE {
            debug_assert_eq!(self.pages[page], 0, "page {page} was in the trim's hands (SLOT-1)");
            self.pages[page] = u64::MAX;
            self.set_open(page);
            if is_absent {
                if !is_set(&self.absent, page) {
                    self.free_after_trim = self.free_after_trim.saturating_sub(PAGE);
                }
                set(&mut self.absent, page);
            } else {
                clear(&mut self.absent, page);
                self.free += PAGE;
            }
        }
        self.check_sometimes();
    }

    // ----- checks --------------------------------------------------------------------------

    /// Checks the invariants in a debug build: once in 64 calls, and only while the blocks are few.
    fn check_sometimes(&mut self) {
        if cfg!(debug_assertions) {
            self.checks = self.checks.wrapping_add(1);
            if self.checks % 64 == 0 && self.blocks <= 8 {
                self.check_invariants();
            }
        }
    }

    /// Panics if the bitmaps and the counts contradict each other.
    fn check_invariants(&self) {
        assert_eq!(self.pages.len(), self.blocks * PAGES_PER_BLOCK);
        assert!(self.open.iter().take(self.lowest).all(|word| *word == 0), "below the lowest");
        let (mut free, mut others) = (0, 0);
        for (page, slots) in self.pages.iter().enumerate() {
            assert_eq!(is_set(&self.open, page), *slots != 0, "page {page} is open");
            if is_set(&self.absent, page) {
                assert!([0, u64::MAX].contains(slots), "page {page} is absent, and is used");
            } else {
                free += slots.count_ones() as usize;
                others += slots.count_zeros() as usize;
            }
        }
        assert_eq!(free, self.free, "the free slots");
        assert!(self.in_use <= others, "the slots in use, or in the hands of a trim");
    }
}

fn is_set(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

fn set(bits: &mut [u64], at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

fn clear(bits: &mut [u64], at: usize) {
    bits[at / 64] &= !(1 << (at % 64));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns a depot of one block, of which no page has ever been used.
    fn of_one_block() -> Depot {
        let mut depot = Depot::default();
        depot.add_pages();
        depot
    }

    fn take_ones(depot: &mut Depot, count: usize) -> Vec<u32> {
        (0..count).map(|_| depot.take_one().expect("there are enough")).collect()
    }

    #[test]
    fn pages_that_go_come_back_whole() {
        const FIRST: u32 = 70; // in the second word
        let page = |number: u32| number * PAGE as u32..(number + 1) * PAGE as u32;
        let counts = |depot: &Depot| (depot.free / PAGE, depot.in_use / PAGE);
        let mut depot = of_one_block();
        let all = take_ones(&mut depot, 73 * PAGE);
        assert!(all.iter().copied().eq(0..73 * PAGE as u32), "the lowest first");
        assert_eq!(counts(&depot), (0, 73));
        assert_eq!(depot.take_group(72..73), None, "all of it is in use");
        depot.put(&all[FIRST as usize * PAGE..]);
        assert_eq!(counts(&depot), (3, 70));

        // Two pages go. In the meantime slots are taken from behind them.
        let (first, second) = (page(FIRST), page(FIRST + 1));
        assert_eq!(depot.take_group(70..72), Some(first.start..second.end));
        assert_eq!((counts(&depot), depot.take_group(70..72)), ((1, 70), None));
        assert_eq!(depot.take_one(), Some(second.end));
        assert_eq!(depot.take_group(72..73), None, "one is in use");
        depot.put(&[second.end]);
        depot.check_invariants();

        // One comes back absent. So nothing of it counts, and it does not go again until it is used.
        depot.put_group(first.clone(), true);
        depot.put_group(second.clone(), false);
        assert_eq!((counts(&depot), depot.take_group(70..71)), ((2, 70), None));
        assert_eq!(depot.take_group(71..72), Some(second.clone()));
        depot.put_group(second.clone(), false);
        // Both go, the absent one along with the other, and both come back present.
        assert_eq!(depot.take_group(70..72), Some(first.start..second.end));
        depot.put_group(first.start..second.end, false);
        assert_eq!(counts(&depot), (3, 70));
        assert_eq!(take_ones(&mut depot, 2 * PAGE), (first.start..second.end).collect::<Vec<_>>());
        assert_eq!(counts(&depot), (1, 72));
        assert_eq!(depot.take_one(), Some(second.end));
        depot.put(&[200]);
        depot.check_invariants();
        assert_eq!(depot.take_one(), Some(200), "from the first word again");
    }

    #[test]
    fn a_block_is_added_when_less_than_half_of_one_is_left() {
        let mut depot = of_one_block();
        assert!(!depot.is_short(), "there are enough");
        let half = take_ones(&mut depot, (1 << BLOCK_BITS) / 2 + 1);
        assert!(depot.is_short());
        let rest = take_ones(&mut depot, (1 << BLOCK_BITS) - half.len());
        assert_eq!(rest.last(), Some(&((1 << BLOCK_BITS) - 1)));
        depot.lowest = depot.open.len(); // it has been looked through
        depot.add_pages();
        assert!(!depot.is_short());
        assert_eq!(depot.take_one(), Some(1 << BLOCK_BITS));
        assert_eq!((depot.free, depot.in_use), (PAGE - 1, (1 << BLOCK_BITS) + 1));
    }

    #[test]
    fn s09_what_a_trim_could_not_get_rid_of_is_tried_again_when_it_may_have_changed() {
        let million = 1_000_000;
        let mut depot = Depot { free: 9 * million, in_use: million, ..of_one_block() };
        assert!(depot.watch());
        depot.trim_begins(); // it finds no page that was wholly free
        assert!(!depot.watch());
        let end = |depot: &mut Depot, tasks: usize| {
            depot.free += tasks;
            depot.in_use -= tasks;
        };
        end(&mut depot, million / 4);
        assert!(!depot.watch(), "most of what stood in its way is still there");
        end(&mut depot, million / 2);
        assert!(depot.watch());
    }

    #[test]
    fn s09_a_second_smaller_peak_is_given_back_too() {
        let mut depot = of_one_block();
        while (depot.blocks << BLOCK_BITS) < 4 * WORTH_TRIMMING {
            depot.add_pages();
        }
        let peak = take_ones(&mut depot, 4 * WORTH_TRIMMING);
        depot.put(&peak);
        for page in 0..depot.trim_begins() {
            let slots = depot.take_group(page..page + 1).expect("it is free");
            depot.put_group(slots, true);
        }
        assert_eq!((depot.free, depot.free_after_trim), (0, 0), "nothing is left of the first");
        let peak = take_ones(&mut depot, 2 * WORTH_TRIMMING);
        depot.put(&peak);
        assert!(depot.watch());
    }
}
