//! One thread's queue into the engine: one writer, one reader, unbounded, no lock.
//!
//! ```text
//!   reader                                       writer
//!     v                                            v
//!   [ 128 records ] -> [ 128 records ] -> [ ... free ]      spare: [ ] [ ]
//!      `taken` = 37             `published` = 260
//! ```
//!
//! A chain of blocks. The writer fills the last one and publishes each record by raising
//! `published`; the reader empties the first one, and gives emptied blocks back through `spare`, so
//! that a steady flow allocates nothing.
//!
//! - L1 Records below `published` are written and not written again until the reader has taken
//!   them; the swap that raises `published` is the Release that the reader's load acquires.
//! - L2 The reader goes on to the next block only for a record that is published, and by then the
//!   writer has let go of the block before; so an emptied block is the reader's alone.
//! - L3 The high bit of `published` says that the lane is closed. It is set once, by the reader. A
//!   writer whose swap returns it has published nothing: it puts the old value back.
//!
//! The words of a record are atomics that are only ever loaded and stored, Relaxed: that is a plain
//! move on every machine, and needs no `unsafe`.

use std::sync::{Arc, OnceLock};

use super::seat::Seat;
use crate::sync::{AtomicU64, ExchangeInOrder, InOrder, LANE_BLOCK as BLOCK, Ordering};

/// L3.
pub(super) const CLOSED: u64 = 1 << 63;

/// What a producer tells the engine of a task. Stamps in a lane never go down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) deadline: u64,
    pub(crate) stamp: u64,
    /// Slot, flags and generation: see [`Entry`](crate::front::Entry).
    pub(crate) name: u64,
}

pub(crate) struct Block {
    records: [[AtomicU64; 3]; BLOCK],
    next: OnceLock<Arc<Block>>,
}

impl Block {
    fn new() -> Arc<Block> {
        let records = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Block { records, next: OnceLock::new() })
    }

    /// Relaxed: published by the lane; L1.
    fn put(&self, place: usize, record: Record) {
        let [deadline, stamp, name] = &self.records[place];
        deadline.store(record.deadline, Ordering::Relaxed);
        stamp.store(record.stamp, Ordering::Relaxed);
        name.store(record.name, Ordering::Relaxed);
    }

    fn get(&self, place: usize) -> Record {
        let [deadline, stamp, name] = &self.records[place];
        Record {
            deadline: deadline.load(Ordering::Relaxed),
            stamp: stamp.load(Ordering::Relaxed),
            name: name.load(Ordering::Relaxed),
        }
    }
}

/// The writer's end: whoever has it may write the lane and the seat's counters.
pub(crate) struct Producer {
    pub(crate) seat: Arc<Seat>,
    block: Option<Arc<Block>>,
    /// How many records it has published.
    published: u64,
    /// The highest stamp so far.
    stamp: u64,
}

/// The lane was closed; nothing was published.
pub(crate) struct Refused;

impl Producer {
    pub(crate) fn new(seat: Arc<Seat>) -> Producer {
        Producer { seat, block: None, published: 0, stamp: 0 }
    }

    /// Publishes a record. The one read-modify-write of a schedule: it publishes, it is the
    /// producer's half of the sleep protocol, and it tells of a close (G1, G2).
    #[inline]
    pub(crate) fn push(&mut self, mut record: Record) -> Result<(), Refused> {
        // Who comes with an old reading of the clock counts as scheduled after all that is here.
        self.stamp = self.stamp.max(record.stamp);
        record.stamp = self.stamp;
        let place = self.published as usize % BLOCK;
        if place == 0 {
            self.begin_block()?;
        }
        let Some(block) = &self.block else { return Err(Refused) };
        block.put(place, record);
        let before = self.seat.published.swap_in_order(self.published + 1);
        if before & CLOSED != 0 {
            // Nobody reads a closed lane any more, so there is nothing to order.
            self.seat.published.store(before, Ordering::Relaxed);
            return Err(Refused);
        }
        self.published += 1;
        self.seat.signal();
        Ok(())
    }

    /// How many records it has published so far.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Refuses by itself when the lane is closed: or each refusal at the border of a block would leave
    /// a block behind.
    #[cold]
    fn begin_block(&mut self) -> Result<(), Refused> {
        // Relaxed: if the close is not seen yet, the swap that follows sees it.
        if self.seat.published.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Refused);
        }
        let fresh = self.seat.spare.pop().unwrap_or_else(Block::new);
        match self.block.replace(Arc::clone(&fresh)) {
            // The reader looks for it only once a record in it is published.
            Some(last) => drop(last.next.set(fresh)),
            None => {
                *self.seat.first() = Some(fresh);
            }
        }
        Ok(())
    }
}

/// The reader's end.
pub(crate) struct Consumer {
    seat: Arc<Seat>,
    block: Option<Arc<Block>>,
    taken: u64,
    /// The last visit has left something, so the next turn comes by without being called; the last stamp
    /// that it took.
    pub(super) unfinished_at: Option<u64>,
}

impl Consumer {
    pub(crate) fn new(seat: &Arc<Seat>) -> Consumer {
        Consumer { seat: Arc::clone(seat), block: None, taken: 0, unfinished_at: None }
    }

    pub(crate) fn unlist(&self) {
        self.seat.unlist();
    }

    /// Whether there may be something in it that was stamped before the cut; G4.
    pub(super) fn is_behind(&self, cut: u64) -> bool {
        self.unfinished_at.is_none_or(|last| last < cut)
    }

    /// Appends what is published, in order, at most so many, and notes whether that leaves some.
    pub(crate) fn take(&mut self, at_most: usize, into: &mut Vec<Record>) {
        let published = self.seat.published.load_in_order() & !CLOSED; // G2, L1
        let end = published.min(self.taken.saturating_add(at_most as u64));
        self.take_until(end, into);
        let last = into.last().map_or(0, |record| record.stamp);
        self.unfinished_at = (end < published).then_some(last);
    }

    /// Closes the lane, and appends all that was published before. The closing tells how much that
    /// is; a later look would not, because a writer that is about to be refused has its record in
    /// the count for a moment. L3.
    pub(crate) fn close(&mut self, into: &mut Vec<Record>) {
        let end = self.seat.close();
        self.take_until(end, into);
    }

    fn take_until(&mut self, end: u64, into: &mut Vec<Record>) {
        while self.taken < end {
            let place = self.taken as usize % BLOCK;
            if place == 0 {
                self.next_block();
            }
            let Some(block) = &self.block else { break };
            let run = (end - self.taken).min((BLOCK - place) as u64) as usize;
            into.extend((place..place + run).map(|place| block.get(place)));
            self.taken += run as u64;
        }
    }

    /// L2.
    fn next_block(&mut self) {
        let next = match &self.block {
            Some(block) => block.next.get().cloned(),
            None => self.seat.first().take(),
        };
        if let Some(emptied) = std::mem::replace(&mut self.block, next) {
            self.give_back(emptied);
        }
    }

    /// When the spare blocks are many, it is dropped: a rare peak pays for itself.
    fn give_back(&self, mut block: Arc<Block>) {
        if let Some(mine) = Arc::get_mut(&mut block) {
            mine.next = OnceLock::new();
            let _ = self.seat.spare.push(block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Signals;
    use super::*;
    use crate::parking::Doorbell;

    #[test]
    fn what_a_closed_lane_refuses_leaves_nothing_behind() {
        let seat = Arc::new(Seat::new(0, None, Doorbell::new(None), &Arc::new(Signals::new())));
        let mut producer = Producer::new(Arc::clone(&seat));
        Consumer::new(&seat).close(&mut Vec::new());
        for _ in 0..3 {
            assert!(producer.push(Record { deadline: 1, stamp: 1, name: 1 }).is_err());
        }
        assert!(seat.first().is_none() && producer.block.is_none());
    }
}
