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
//! - LANE-1 Records below `published` are written and not written again until the reader has taken
//!   them; the swap that raises `published` is the Release that the reader's load acquires.
//! - LANE-2 The reader goes on to the next block only for a record that is published, and by then the
//!   writer has let go of the block before; so an emptied block is the reader's alone.
//! - LANE-3 The high bit of `published` says that the lane is closed. It is set once, by the reader. A
//!   writer whose swap returns it has published nothing: it puts the old value back.
//! - LANE-4 Stamps in a lane never go down.
//!
//! The words of a record are atomics that are only ever loaded and stored, Relaxed: that is a plain
//! move on every machine, and needs no `unsafe`.

use std::sync::{Arc, OnceLock};

use super::seat::Seat;
use crate::platform::sync::{AtomicU64, ExchangeInOrder, InOrder, LANE_BLOCK as BLOCK, Ordering};

/// LANE-3.
pub(super) const CLOSED: u64 = 1 << 63;

/// What a producer tells the engine of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) deadline: u64,
    pub(crate) stamp: u64,
    /// Slot, flags and generation: see [`Entry`](crate::wheel::entry::Entry).
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

    /// Relaxed: published by the lane; LANE-1.
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
    /// The stamp of the first record of that block.
    block_since: u64,
    filled: Filled,
    /// How many records it has published.
    published: u64,
    /// The highest stamp so far.
    stamp: u64,
}

/// A record is published.
pub(crate) struct Pushed {
    /// The block before it is full: see [`Producer::filled`].
    pub(crate) filled: bool,
}

/// A block that is full.
#[derive(Clone, Copy)]
pub(crate) struct Filled {
    /// How many blocks all writers have filled so far.
    pub(crate) blocks: u64,
    /// The stamp of its first record.
    pub(crate) since: u64,
}

/// The lane was closed; nothing was published.
pub(crate) struct Refused;

impl Producer {
    pub(crate) fn new(seat: Arc<Seat>) -> Producer {
        let filled = Filled { blocks: 0, since: 0 };
        Producer { seat, block: None, block_since: 0, filled, published: 0, stamp: 0 }
    }

    /// Publishes a record. The one read-modify-write of a schedule: it publishes, it is the
    /// producer's half of the sleep protocol, and it tells of a close (LANE-3, INTAKE-2).
    #[inline]
    pub(crate) fn push(&mut self, mut record: Record) -> Result<Pushed, Refused> {
        // A caller with an older reading of the clock counts as scheduled after all that is here; LANE-4.
        self.stamp = self.stamp.max(record.stamp);
        record.stamp = self.stamp;
        let place = self.published as usize % BLOCK;
        let filled = place == 0 && self.begin_block(record.stamp)?;
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
        Ok(Pushed { filled })
    }

    /// Goes on to a fresh block, and counts the one before as filled. It refuses by itself when the lane is
    /// closed; otherwise each refusal at the border of a block would leave a block behind.
    #[cold]
    fn begin_block(&mut self, stamp: u64) -> Result<bool, Refused> {
        // Relaxed: if the close is not seen yet, the swap that follows sees it.
        if self.seat.published.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Refused);
        }
        let since = std::mem::replace(&mut self.block_since, stamp);
        let fresh = self.seat.spare.pop().unwrap_or_else(Block::new);
        let Some(last) = self.block.replace(Arc::clone(&fresh)) else {
            *self.seat.first() = Some(fresh);
            return Ok(false);
        };
        // The reader looks for it only once a record in it is published.
        drop(last.next.set(fresh));
        self.filled = Filled { blocks: self.seat.gate.block_filled(), since };
        Ok(true)
    }

    /// The block that was filled last.
    pub(crate) fn filled(&self) -> Filled {
        self.filled
    }
}

/// The reader's end.
pub(crate) struct Consumer {
    pub(super) seat: Arc<Seat>,
    block: Option<Arc<Block>>,
    /// Where the next record is in the block; behind its end, when the next block comes first.
    place: usize,
    taken: u64,
    /// How many records were published at the last look.
    seen: u64,
    /// It is among the lanes that the reader looks at in each turn.
    pub(super) is_open: bool,
}

impl Consumer {
    pub(crate) fn new(seat: &Arc<Seat>) -> Consumer {
        let (seat, block, place) = (Arc::clone(seat), None, BLOCK);
        Consumer { seat, block, place, taken: 0, seen: 0, is_open: false }
    }

    /// Notes how much is published. INTAKE-2: if the seat was on the ready list, it has been unlisted before.
    pub(crate) fn look(&mut self) {
        self.seen = self.seat.published.load_in_order() & !CLOSED; // LANE-1
    }

    /// How many records were seen and not taken.
    pub(super) fn left(&self) -> u64 {
        self.seen - self.taken
    }

    /// The first record that was seen and not taken.
    #[inline]
    pub(crate) fn first(&mut self) -> Option<Record> {
        if self.taken == self.seen {
            return None;
        }
        if self.place == BLOCK {
            self.next_block();
        }
        Some(self.block.as_ref()?.get(self.place))
    }

    /// Visits what was seen and not taken.
    pub(super) fn each_left(&self, mut visit: impl FnMut(Record)) {
        let fresh = if self.block.is_none() { self.seat.first().clone() } else { None };
        let (mut block, mut place) = match fresh {
            Some(first) => (Some(first), 0),
            None => (self.block.clone(), self.place),
        };
        for _ in 0..self.left() {
            if place == BLOCK {
                block = block.and_then(|block| block.next.get().cloned());
                place = 0;
            }
            if let Some(block) = &block {
                visit(block.get(place));
            }
            place += 1;
        }
    }

    /// Takes what was seen and is stamped before `end`, in order, at most so many records. How many it took.
    #[inline]
    pub(crate) fn take_before(
        &mut self,
        end: u64,
        most: usize,
        mut take: impl FnMut(Record),
    ) -> usize {
        let mut count = 0;
        while count < most && self.left() > 0 {
            if self.place == BLOCK {
                self.next_block();
            }
            let Some(block) = &self.block else { break };
            let run = (most - count).min(BLOCK - self.place).min(self.left() as usize);
            let records = (self.place..self.place + run).map(|place| block.get(place));
            let mut took = 0;
            for record in records.take_while(|record| record.stamp < end) {
                take(record);
                took += 1;
            }
            self.taken += took as u64;
            self.place += took;
            count += took;
            if took < run {
                break;
            }
        }
        count
    }

    /// Closes the lane. What was published before counts as seen: the closing itself tells how much that is.
    /// A later look would not, because a writer that is about to be refused has its record in the count for
    /// a moment; LANE-3.
    pub(crate) fn close(&mut self) {
        self.seen = self.seat.close();
    }

    /// LANE-2.
    fn next_block(&mut self) {
        let next = match &self.block {
            Some(block) => block.next.get().cloned(),
            None => self.seat.first().take(),
        };
        self.place = 0;
        if let Some(emptied) = std::mem::replace(&mut self.block, next) {
            self.seat.gate.block_emptied();
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
    use super::super::Gate;
    use super::*;
    use crate::time::parking::Doorbell;

    #[test]
    fn what_a_closed_lane_refuses_leaves_nothing_behind() {
        let seat = Arc::new(Seat::new(0, None, Doorbell::new(None), &Arc::new(Gate::new())));
        let mut producer = Producer::new(Arc::clone(&seat));
        Consumer::new(&seat).close();
        for _ in 0..3 {
            assert!(producer.push(Record { deadline: 1, stamp: 1, name: 1 }).is_err());
        }
        assert!(seat.first().is_none() && producer.block.is_none());
    }
}
