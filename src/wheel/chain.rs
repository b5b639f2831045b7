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
//! Entries of a chain are in the order in which they were pushed. They come out from the front, block by block. No block of
//! a chain is empty. A block is in one chain, and then it has a number, or it is free.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::black_box;
use core::iter::successors;

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

const HAS_BLOCK: &str = "a number of a chain has a block";

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

    /// Drops stale entries.
    fn retain(&mut self, mut is_live: impl FnMut(&E) -> bool) {
        for place in 0..core::mem::take(&mut self.len) as usize {
            let entry = self.entries[place];
            if is_live(&entry) {
                self.push(entry);
            }
        }
    }
}

/// A list of entries. Its blocks are in a [`Pool`].
#[derive(Clone, Copy)]
pub(super) struct Chain<E> {
    /// The block that will be taken first.
    pub(super) head: u32,
    /// The block into which the next entry will be pushed.
    pub(super) tail: u32,
    /// The number of entries.
    pub(super) len: usize,
    /// The earliest entry, or one that was earlier still and is gone.
    pub(super) min: E,
}

impl<E: Timed> Chain<E> {
    pub(super) fn new() -> Chain<E> {
        Chain { head: NIL, tail: NIL, len: 0, min: E::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

/// All blocks of a wheel.
pub(super) struct Pool<E> {
    /// The blocks of chains, by number.
    blocks: Vec<Option<Box<Block<E>>>>,
    /// The numbers of no blocks.
    unused: Vec<u32>,
    free: Vec<Box<Block<E>>>,
    /// The pool keeps as many free blocks as are in use, and so many more.
    spare: usize,
}

impl<E: Timed> Pool<E> {
    pub(super) fn new(spare: usize) -> Pool<E> {
        Pool { blocks: Vec::new(), unused: Vec::new(), free: Vec::new(), spare }
    }

    fn block(&self, number: u32) -> &Block<E> {
        self.blocks[number as usize].as_deref().expect(HAS_BLOCK)
    }

    fn block_mut(&mut self, number: u32) -> &mut Block<E> {
        self.blocks[number as usize].as_deref_mut().expect(HAS_BLOCK)
    }

    /// Gives a block a number.
    fn number(&mut self, block: Box<Block<E>>) -> u32 {
        if let Some(number) = self.unused.pop() {
            self.blocks[number as usize] = Some(block);
            return number;
        }
        // glibc grows the heap of a thread by a page at a time, with a system call for each, which took 4 ns of the 92 of a
        // task in a fresh process. Room for many blocks, given back at once, makes it grow by so much.
        if self.blocks.len() % GROWTH == 0 {
            drop(black_box(Vec::<Block<E>>::with_capacity(GROWTH)));
        }
        self.blocks.push(Some(block));
        // So entries come out without an allocation: there is room for all blocks to be free, and for one that is being
        // emptied while the others are in use.
        self.unused.reserve(self.blocks.len());
        self.free.reserve(self.blocks.len() + 1);
        u32::try_from(self.blocks.len() - 1).expect("fewer than four thousand million blocks")
    }

    /// Returns how many blocks were in use at a time, at most, since the pool was made.
    pub(super) fn most_used(&self) -> usize {
        self.blocks.len()
    }

    fn used(&self) -> usize {
        self.blocks.len() - self.unused.len()
    }

    /// Returns true if more blocks are free than are worth keeping.
    pub(super) fn is_bloated(&self) -> bool {
        self.free.len() > self.used() + self.spare
    }

    /// Frees the memory of at most `most` free blocks. Returns true if too many are still there.
    pub(super) fn give_back(&mut self, most: usize) -> bool {
        // Not whenever a block becomes free, because the allocator would make a burst of tasks a tenth slower.
        let too_many = self.free.len().saturating_sub(self.used() + self.spare);
        self.free.truncate(self.free.len() - too_many.min(most));
        too_many > most
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
        chain.len += 1;
        last.push(entry);
        true
    }

    /// Appends an entry, in a fresh block if the last one has no room.
    #[inline(never)]
    pub(super) fn append(&mut self, chain: &mut Chain<E>, entry: E) {
        if self.push(chain, entry) {
            return;
        }
        let fresh = || Box::new(Block { next: NIL, len: 0, entries: [E::default(); BLOCK] });
        let mut block = self.free.pop().unwrap_or_else(fresh);
        block.push(entry);
        self.push_block(chain, block);
    }

    fn push_block(&mut self, chain: &mut Chain<E>, block: Box<Block<E>>) {
        for entry in block.entries() {
            if chain.len == 0 || entry.deadline() < chain.min.deadline() {
                chain.min = *entry;
            }
            chain.len += 1;
        }
        let number = self.number(block);
        match chain.tail {
            NIL => chain.head = number,
            tail => self.block_mut(tail).next = number,
        }
        chain.tail = number;
    }

    /// Returns a chain of the entries of two.
    pub(super) fn join(&mut self, first: Chain<E>, last: Chain<E>) -> Chain<E> {
        if first.is_empty() || last.is_empty() {
            return if first.is_empty() { last } else { first };
        }
        self.block_mut(first.tail).next = last.head;
        let is_first = first.min.deadline() <= last.min.deadline();
        let (len, min) = (first.len + last.len, if is_first { first.min } else { last.min });
        Chain { head: first.head, tail: last.tail, len, min }
    }

    /// Takes the first block out, which has no number then.
    #[inline]
    fn pop(&mut self, chain: &mut Chain<E>) -> Option<Box<Block<E>>> {
        let number = chain.head;
        let mut block = self.blocks.get_mut(number as usize)?.take()?;
        self.unused.push(number);
        chain.head = core::mem::replace(&mut block.next, NIL);
        chain.len -= block.entries().len();
        // The tail must not stay behind: the next push would go into a free block.
        if chain.head == NIL {
            *chain = Chain::new();
        }
        Some(block)
    }

    #[inline]
    fn free(&mut self, mut block: Box<Block<E>>) {
        block.len = 0;
        self.free.push(block); // the next push takes its memory, which is still in the cache
    }

    /// Takes entries from the front, block by block, until there are `budget` of them or the chain is empty.
    pub(super) fn take(
        &mut self,
        chain: &mut Chain<E>,
        budget: usize,
        mut give: impl FnMut(&mut Self, &[E]),
    ) {
        let end = chain.len.saturating_sub(budget);
        while chain.len > end {
            let Some(block) = self.pop(chain) else { return };
            give(self, block.entries());
            self.free(block);
        }
    }

    /// Takes about `budget` entries from the front, and appends those that are live to `kept`. Returns how many it took.
    pub(super) fn sift(
        &mut self,
        chain: &mut Chain<E>,
        kept: &mut Chain<E>,
        budget: usize,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> usize {
        let (before, end) = (chain.len, chain.len.saturating_sub(budget));
        self.prefetch_live(chain.head);
        while chain.len > end {
            let Some(mut block) = self.pop(chain) else { break };
            self.prefetch_live(chain.head);
            block.retain(&mut is_live);
            // They go into the block before if they fit. Otherwise a chain that is swept again and again would end as many
            // blocks with an entry each.
            let last = self.blocks.get(kept.tail as usize).and_then(Option::as_ref);
            if block.len as usize <= last.map_or(0, |last| BLOCK - last.entries().len()) {
                block.entries().iter().for_each(|entry| _ = self.push(kept, *entry));
                self.free(block);
            } else {
                self.push_block(kept, block);
            }
        }
        before - chain.len
    }

    /// Fetches a block into the cache: the head of a chain, or its tail.
    pub(super) fn prefetch(&self, number: u32) {
        if let Some(Some(block)) = self.blocks.get(number as usize) {
            prefetch(&raw const block.entries);
            prefetch(&raw const block.len);
        }
    }

    /// Fetches what tells whether the entries of a block are live, and the block behind it. Each is a cache miss, and so they come
    /// while the block before is looked at.
    fn prefetch_live(&self, number: u32) {
        if let Some(Some(block)) = self.blocks.get(number as usize) {
            self.prefetch(block.next);
            block.entries().iter().for_each(Timed::prefetch);
        }
    }

    /// Returns the entries of a chain, in order.
    pub(super) fn iter<'a>(&'a self, chain: &Chain<E>) -> impl Iterator<Item = &'a E> {
        self.numbers(chain).flat_map(|number| self.block(number).entries())
    }

    fn numbers(&self, chain: &Chain<E>) -> impl Iterator<Item = u32> + '_ {
        let number = |number| (number != NIL).then_some(number);
        successors(number(chain.head), move |before| number(self.block(*before).next))
    }

    /// Panics if one of the chains is broken. The chains must be all that there are.
    pub(super) fn check_invariants<'a>(&self, chains: impl Iterator<Item = &'a Chain<E>>)
    where
        E: 'a,
    {
        let mut used = 0;
        for chain in chains {
            let mut last = NIL;
            for number in self.numbers(chain) {
                assert!(self.block(number).len > 0, "block {number} of a chain is empty");
                used += 1;
                assert!(used <= self.used(), "block {number} is in two chains");
                last = number;
            }
            assert_eq!(chain.tail, last, "the tail is the last block");
            assert_eq!(chain.len, self.iter(chain).count(), "the length of a chain");
            let is_late = self.iter(chain).any(|entry| entry.deadline() < chain.min.deadline());
            assert!(!is_late, "an entry is earlier than `min` of its chain");
        }
        assert_eq!(used, self.used(), "a block is in no chain and not free");
    }
}
