//! Chains of entries, in blocks of thirty-one, out of one pool.
//!
//! A bucket gets anything from one entry to a million, and is emptied whole. So it is a chain of
//! blocks: nothing is copied when it grows, no room is left over when it is empty, and nothing is allocated once the
//! pool has as many blocks as are in use at a time.
//!
//! ```text
//!   chain: head ──> [ 31 entries ] ──> [ 31 entries ] ──> [ 5 entries        ] <── tail
//! ```
//!
//! Entries of a chain are in the order in which they were pushed, whatever is removed. No block of a chain is empty. A
//! block is in one chain, or free, or only a number without memory.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::black_box;

use crate::platform::cpu::prefetch;

/// An entry of the wheel: a small value that knows its deadline. `Default` fills the unused part of a block.
pub(crate) trait Timed: Copy + Default {
    /// Returns when it is due, in the caller's unit.
    fn deadline(&self) -> u64;

    /// Fetches into the cache what tells whether the entry is live.
    fn prefetch(&self) {}
}

/// The number of entries of a block. With 16 bytes each a block takes 504 bytes.
pub(super) const BLOCK: usize = 31;

/// The room for so many blocks is asked for at a time: 32 KiB.
const GROWTH: usize = 64;

/// The number of no block.
const NIL: u32 = u32::MAX;

const HAS_MEMORY: &str = "a block of a chain has memory";

struct Block<E> {
    next: u32,
    len: u32,
    entries: [E; BLOCK],
}

impl<E: Timed> Block<E> {
    fn entries(&self) -> &[E] {
        &self.entries[..self.len as usize]
    }

    fn push(&mut self, entry: E) {
        self.entries[self.len as usize] = entry;
        self.len += 1;
    }

    /// Drops stale entries in place, and returns how many.
    fn retain(&mut self, mut is_live: impl FnMut(&E) -> bool) -> usize {
        let before = self.len as usize;
        // Whether an entry is live is a cache miss, so the misses of a block are started together.
        self.entries().iter().for_each(Timed::prefetch);
        let mut kept = 0;
        for place in 0..before {
            let entry = self.entries[place];
            if is_live(&entry) {
                self.entries[kept] = entry;
                kept += 1;
            }
        }
        self.len = kept as u32;
        before - kept
    }
}

/// A list of entries. Its blocks are in a [`Pool`].
#[derive(Clone, Copy)]
pub(super) struct Chain<E> {
    /// The block that will be taken first.
    pub(super) head: u32,
    /// The block into which the next entry will be pushed.
    pub(super) tail: u32,
    min: E,
}

impl<E: Timed> Chain<E> {
    pub(super) fn new() -> Chain<E> {
        Chain { head: NIL, tail: NIL, min: E::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Returns the earliest entry, or one that was earlier still and is gone.
    pub(super) fn min(&self) -> Option<E> {
        // It is not computed anew when an entry goes, so it may be too early, and never too late.
        (!self.is_empty()).then_some(self.min)
    }
}

/// The block of a chain behind which a sweep goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(u32);

impl Position {
    /// Before the first block.
    pub(super) const START: Position = Position(NIL);
}

/// All blocks of a wheel.
pub(super) struct Pool<E> {
    blocks: Vec<Option<Box<Block<E>>>>,
    free: Vec<u32>,
    /// The numbers of the blocks that have no memory.
    unallocated: Vec<u32>,
    /// The pool keeps as many free blocks as are in use, and so many more.
    spare: usize,
}

impl<E: Timed> Pool<E> {
    pub(super) fn new(spare: usize) -> Pool<E> {
        Pool { blocks: Vec::new(), free: Vec::new(), unallocated: Vec::new(), spare }
    }

    fn block(&self, number: u32) -> &Block<E> {
        self.blocks[number as usize].as_deref().expect(HAS_MEMORY)
    }

    fn block_mut(&mut self, number: u32) -> &mut Block<E> {
        self.blocks[number as usize].as_deref_mut().expect(HAS_MEMORY)
    }

    /// Returns an empty block.
    fn allocate(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            let block = self.block_mut(number);
            (block.next, block.len) = (NIL, 0);
            return number;
        }
        let fresh = Some(Box::new(Block { next: NIL, len: 0, entries: [E::default(); BLOCK] }));
        // A number stays when its memory goes, because the others are indices and cannot move.
        if let Some(number) = self.unallocated.pop() {
            self.blocks[number as usize] = fresh;
            return number;
        }
        // glibc grows the heap of a thread by a page at a time, with a system call for each, which took 4 ns of the 92 of a
        // task in a fresh process. Room for many blocks, given back at once, makes it grow by so much.
        if self.blocks.len() % GROWTH == 0 {
            drop(black_box(Vec::<Block<E>>::with_capacity(GROWTH)));
        }
        self.blocks.push(fresh);
        u32::try_from(self.blocks.len() - 1).expect("fewer than four thousand million blocks")
    }

    /// Returns how many blocks have a number.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns true if more blocks are free than are worth keeping.
    pub(super) fn is_bloated(&self) -> bool {
        let used = self.blocks.len() - self.free.len() - self.unallocated.len();
        self.free.len() > used + self.spare
    }

    /// Frees the memory of at most `most` free blocks. Returns true if too many are still there.
    pub(super) fn give_back(&mut self, most: usize) -> bool {
        // Not whenever a block becomes free, because the allocator would make a burst of tasks a tenth slower.
        for _ in 0..most {
            if !self.is_bloated() {
                return false;
            }
            let number = self.free.pop().expect("more than none");
            self.blocks[number as usize] = None;
            self.unallocated.push(number);
        }
        self.is_bloated()
    }

    /// Appends an entry, if the last block has room for it.
    #[inline]
    pub(super) fn push(&mut self, chain: &mut Chain<E>, entry: E) -> bool {
        // An empty chain has no tail, and `NIL` is the index of no block. So one look tells both.
        let last = self.blocks.get_mut(chain.tail as usize).and_then(Option::as_deref_mut);
        let Some(last) = last.filter(|last| (last.len as usize) < BLOCK) else { return false };
        if entry.deadline() < chain.min.deadline() {
            chain.min = entry;
        }
        last.push(entry);
        true
    }

    /// Appends an entry to a chain whose last block has no room.
    #[inline(never)]
    pub(super) fn push_in_a_fresh_block(&mut self, chain: &mut Chain<E>, entry: E) {
        if chain.is_empty() || entry.deadline() < chain.min.deadline() {
            chain.min = entry;
        }
        let fresh = self.allocate();
        match chain.tail {
            NIL => chain.head = fresh,
            tail => self.block_mut(tail).next = fresh,
        }
        chain.tail = fresh;
        self.block_mut(fresh).push(entry);
    }

    /// Takes entries from the front, block by block, until there are `budget` of them or the chain is empty. Returns how
    /// many it took.
    pub(super) fn take(
        &mut self,
        chain: &mut Chain<E>,
        budget: usize,
        mut give: impl FnMut(&mut Self, &[E]),
    ) -> usize {
        let mut taken = 0;
        while chain.head != NIL && taken < budget {
            // It is taken out for the moment, so that its entries need not be copied.
            let number = chain.head;
            let block = self.blocks[number as usize].take().expect(HAS_MEMORY);
            chain.head = block.next;
            taken += block.entries().len();
            give(self, block.entries());
            // The memory stays in the block, which the next push takes: it is still in the cache.
            self.blocks[number as usize] = Some(block);
            self.free.push(number);
        }
        // The tail must not stay behind: the next push would go into a free block.
        if chain.head == NIL {
            *chain = Chain::new();
        }
        taken
    }

    /// Fetches a block into the cache: the head of a chain, or its tail.
    pub(super) fn prefetch(&self, number: u32) {
        if let Some(Some(block)) = self.blocks.get(number as usize) {
            prefetch(&raw const block.entries);
            prefetch(&raw const block.len);
        }
    }

    /// Returns how many entries a chain has, or `None` if there are more than `most`.
    pub(super) fn len_up_to(&self, chain: &Chain<E>, most: usize) -> Option<usize> {
        // Block by block, so a long chain costs no more than the budget.
        let mut lens = self.numbers(chain).map(|number| self.block(number).entries().len());
        lens.try_fold(0, |sum, len| Some(sum + len).filter(|sum| *sum <= most))
    }

    /// Returns how many entries a chain has.
    pub(super) fn len(&self, chain: &Chain<E>) -> usize {
        self.numbers(chain).map(|number| self.block(number).entries().len()).sum()
    }

    /// Returns the entries of a chain, in order.
    pub(super) fn iter<'a>(&'a self, chain: &Chain<E>) -> impl Iterator<Item = &'a E> {
        self.numbers(chain).flat_map(|number| self.block(number).entries())
    }

    fn numbers(&self, chain: &Chain<E>) -> impl Iterator<Item = u32> + '_ {
        let mut next = chain.head;
        core::iter::from_fn(move || {
            let number = (next != NIL).then_some(next)?;
            next = self.block(number).next;
            Some(number)
        })
    }

    /// Drops all stale entries of the chain, and sets `min` to the earliest of the others. Returns how many it dropped.
    pub(super) fn prune(
        &mut self,
        chain: &mut Chain<E>,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> usize {
        let mut dropped = 0;
        let mut position = Position::START;
        while let Some(step) = self.sweep_block(chain, &mut position, &mut is_live) {
            dropped += step.dropped;
        }
        // All entries are looked at anyway, so this is the time to make `min` exact.
        let earliest = self
            .iter(chain)
            .copied()
            .reduce(|min, entry| if entry.deadline() < min.deadline() { entry } else { min });
        chain.min = earliest.unwrap_or_default();
        dropped
    }

    /// Drops the stale entries of the block behind `position`, and moves on. Returns `None` at the end.
    pub(super) fn sweep_block(
        &mut self,
        chain: &mut Chain<E>,
        position: &mut Position,
        is_live: impl FnMut(&E) -> bool,
    ) -> Option<Step> {
        let before = position.0;
        let number = if before == NIL { chain.head } else { self.block(before).next };
        if number == NIL {
            return None;
        }
        let looked_at = self.block(number).entries().len();
        let dropped = self.block_mut(number).retain(is_live);
        let kept = looked_at - dropped;
        let room = if before == NIL { 0 } else { BLOCK - self.block(before).entries().len() };
        // The live entries go into the block before if they fit, and an empty block becomes free. Otherwise a chain that
        // is swept again and again would end as many blocks with an entry each.
        if kept <= room {
            for place in 0..kept {
                let entry = self.block(number).entries[place];
                self.block_mut(before).push(entry);
            }
            let next = self.block(number).next;
            match before {
                NIL => chain.head = next,
                before => self.block_mut(before).next = next,
            }
            // The position stays, because the block behind it is another one now.
            if chain.tail == number {
                chain.tail = before;
            }
            self.free.push(number);
        } else {
            position.0 = number;
        }
        Some(Step { looked_at, dropped })
    }

    /// Panics if one of the chains is broken. The chains must be all that there are. `seen` is room for a flag per block.
    pub(super) fn check_invariants<'a>(
        &self,
        chains: impl Iterator<Item = &'a Chain<E>>,
        seen: &mut Vec<bool>,
    ) where
        E: 'a,
    {
        seen.clear();
        seen.resize(self.blocks.len(), false);
        for chain in chains {
            let mut last = NIL;
            for number in self.numbers(chain) {
                let again = core::mem::replace(&mut seen[number as usize], true);
                assert!(!again, "block {number} is in two chains");
                assert!(self.block(number).len > 0, "block {number} of a chain is empty");
                last = number;
            }
            assert_eq!(chain.tail, last, "the tail is the last block");
            let min = chain.min().map(|min| min.deadline());
            let early = self.iter(chain).find(|entry| Some(entry.deadline()) < min);
            assert!(early.is_none(), "an entry is earlier than `min` of its chain");
        }
        for number in self.free.iter().chain(&self.unallocated) {
            let again = core::mem::replace(&mut seen[*number as usize], true);
            assert!(!again, "block {number} is free and in a chain");
        }
        assert!(seen.iter().all(|seen| *seen), "a block is in no chain and not free");
    }
}

/// The result of one step of a sweep: numbers of entries.
pub(super) struct Step {
    pub(super) looked_at: usize,
    pub(super) dropped: usize,
}
