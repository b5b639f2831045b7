//! A thread's queue into the engine: one writer, one reader, unbounded, no lock.
//!
//! ```text
//!   reader                                       writer
//!     v                                            v
//!   [ 128 records ] -> [ 128 records ] -> [ ... free ]      spare: [ ] [ ]
//!      `taken` = 37             `published` = 260
//! ```
//!
//! A lane is a chain of blocks. The [`LaneWriter`] fills the last one, and publishes each record by raising
//! `published`. The [`LaneReader`] empties the first one, and gives emptied blocks back through `spare`, so a steady
//! flow allocates nothing. The [`Lane`] is what both share. It also holds the counters of the writing thread.
//!
//! - LANE-1 Records below `published` are written, and not written again until the reader has taken them. The swap that
//!   raises `published` is the Release that the reader's load acquires.
//! - LANE-3 The high bit of `published` says that the lane is closed. It is set once. A writer whose swap returns it
//!   has published nothing, and puts the old value back.
//!
//! Stamps in a lane never go down, so a merge of lanes by their first stamps is in order.

use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::backpressure::{PendingLimit, Wait};
use crate::error::Refused;
use crate::observe::stats::{Counter, Counts};
use crate::platform::sync::{AtomicBool, AtomicU64, LANE_BLOCK as BLOCK, Ordering};
use crate::wheel::entry::Entry;

/// The bit of `published` that says that the lane is closed (LANE-3).
pub(super) const CLOSED: u64 = 1 << 63;

/// How many emptied blocks a lane keeps: room for 40,960 records.
const SPARE_BLOCKS: usize = 320;

/// A thread that has cancelled so many tasks wakes the tick thread, so that it may sweep.
const CANCELS: u64 = 8192;

/// How many records of a lane the debug checks look at.
const CHECKED: usize = 64;

/// What a schedule tells the engine of its task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) entry: Entry,
    pub(crate) stamp: u64,
}

/// A record as it lies in a lane.
type Words = [AtomicU64; 3];

/// A stretch of a lane.
struct Block {
    records: [Words; BLOCK],
    next: OnceLock<Arc<Block>>,
}

impl Block {
    fn new() -> Arc<Block> {
        let records = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Block { records, next: OnceLock::new() })
    }

    #[inline]
    fn put(&self, index: usize, record: Record) {
        // Atomics that are only loaded and stored, Relaxed, because `published` orders them (LANE-1). That is a plain
        // move on every machine, and needs no `unsafe`.
        let [deadline, stamp, name] = &self.records[index];
        deadline.store(record.entry.deadline, Ordering::Relaxed);
        stamp.store(record.stamp, Ordering::Relaxed);
        name.store(record.entry.name, Ordering::Relaxed);
    }
}

impl Record {
    #[inline]
    fn read([deadline, stamp, name]: &Words) -> Record {
        let [deadline, stamp, name] =
            [deadline, stamp, name].map(|word| word.load(Ordering::Relaxed));
        Record { entry: Entry { deadline, name }, stamp }
    }

    /// Reads an entry, but not its deadline.
    #[inline]
    fn name([_, _, name]: &Words) -> Entry {
        Entry { deadline: 0, name: name.load(Ordering::Relaxed) }
    }
}

/// What a thread has at a scheduler: the shared part of its queue, and its counters.
pub(crate) struct Lane {
    pub(super) number: usize,
    /// How many records the writer has published, and whether the lane is closed. The writer changes it with each task;
    /// the reader looks at it once a turn.
    pub(super) published: CachePadded<AtomicU64>,
    /// The lane is on the ready list, or the reader is about to look at it. Set by the writer, cleared by the reader.
    pub(super) listed: AtomicBool,
    /// The link to the next lane on the ready list. The writer sets it after `listed`, and before its exchange puts the
    /// lane on the list.
    pub(super) next: AtomicU64,
    spare: ArrayQueue<Arc<Block>>,
    pub(crate) counts: CachePadded<Counts>,
    /// Written by the owner of the lane, and shown nowhere.
    uncounted_cancels: Counter,
    limit: Arc<PendingLimit>,
    signals: Arc<Signals>,
}

/// What all lanes share with their reader: the ready list, and numbers that tell how far behind it is.
///
/// The numbers and hints only decide whether a thread sleeps or wakes, so all accesses to them are Relaxed.
#[derive(Default)]
pub(super) struct Signals {
    /// The link to the first lane of the ready list: the lane's number plus one, or 0 if the list is empty.
    pub(super) ready: CachePadded<AtomicU64>,
    /// How many blocks the writers have filled, all together.
    pub(super) filled: CachePadded<AtomicU64>,
    /// How many blocks the reader has emptied, and how often it has looked: while it looks, it does not stand still.
    /// Both are written by the reader alone.
    pub(super) emptied: Counter,
    pub(super) looks: Counter,
    /// What the reader's last look has left has waited for long.
    pub(super) is_late: AtomicBool,
    /// A thread has cancelled many tasks since the engine looked.
    pub(super) many_cancelled: AtomicBool,
    /// The deadline of some task was moved.
    pub(super) has_resets: AtomicBool,
}

impl Signals {
    /// Returns true if there are lanes on the ready list.
    pub(super) fn has_ready(&self) -> bool {
        // `SeqCst`, because it is also the sleeper's last look (WAKE-1).
        self.ready.load(Ordering::SeqCst) != 0
    }
}

impl Lane {
    pub(super) fn new(number: usize, limit: Arc<PendingLimit>, signals: Arc<Signals>) -> Arc<Lane> {
        Arc::new(Lane {
            number,
            published: CachePadded::new(AtomicU64::new(0)),
            listed: AtomicBool::new(false),
            next: AtomicU64::new(0),
            spare: ArrayQueue::new(SPARE_BLOCKS),
            counts: CachePadded::default(),
            uncounted_cancels: Counter::default(),
            limit,
            signals,
        })
    }

    /// Puts the lane on the ready list. Only its writer may do that, and only after it has found `listed` cleared
    /// (INTAKE-2).
    #[cold]
    fn enlist(&self) {
        self.listed.store(true, Ordering::Relaxed);
        let name = self.number as u64 + 1;
        let mut head = self.signals.ready.load(Ordering::Relaxed); // the exchange tells if it has changed
        loop {
            self.next.store(head, Ordering::Relaxed);
            // A Release, for `listed` and `next`, which are Relaxed. It pairs with the Acquire in
            // `IntakeReader::open_ready`, also if other lanes come on top: each push continues the release sequence of
            // the one before. `SeqCst` for the reader's last look at the list (WAKE-1).
            let (success, failure) = (Ordering::SeqCst, Ordering::Acquire);
            match self.signals.ready.compare_exchange(head, name, success, failure) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Closes the lane, and returns how many records had been published (LANE-3).
    pub(super) fn close(&self) -> u64 {
        // Acquire, to see the records: it pairs with the swap in `LaneWriter::push` (LANE-1). It publishes nothing: a
        // writer that sees it is only refused.
        let before = self.published.fetch_or(CLOSED, Ordering::Acquire);
        debug_assert_eq!(before & CLOSED, 0, "a lane is closed once");
        before & !CLOSED
    }

    /// Counts a cancel by the thread that owns the lane. One that is not `COUNTED`, of a waker, counts for sweeps only.
    /// `was_pending`: the task counted as pending until then (S25). Now and then it returns true, and then the caller must
    /// ring the bell.
    #[inline]
    #[must_use]
    pub(crate) fn count_cancel<const COUNTED: bool>(&self, was_pending: bool) -> bool {
        let cancels = if COUNTED { &self.counts.cancelled } else { &self.uncounted_cancels };
        cancels.add(1);
        if COUNTED && was_pending {
            self.count_left();
        }
        // The bell is not rung here, because the lane is borrowed, and ringing may run a user's waker (S11).
        let asks = cancels.get() % CANCELS == 0;
        if asks {
            self.signals.many_cancelled.store(true, Ordering::Relaxed); // a hint; the ring comes after it
        }
        asks
    }

    /// Notes that the deadline of some task moves, before it does.
    #[inline]
    pub(crate) fn note_reset(&self) {
        // All threads share the flag, so it is written only once.
        if !self.signals.has_resets.load(Ordering::Relaxed) {
            self.signals.has_resets.store(true, Ordering::Relaxed);
        }
    }

    /// Describes how the lane stands. Relaxed: it is only shown.
    pub(super) fn describe(&self) -> String {
        let published = self.published.load(Ordering::Relaxed);
        let listed = if self.listed.load(Ordering::Relaxed) { "listed" } else { "not listed" };
        let closed = if published & CLOSED == 0 { "open" } else { "closed" };
        format!("lane {}: {} published, {listed}, {closed}", self.number, published & !CLOSED)
    }

    /// Counts a task that is not pending any more, also towards the limit.
    #[inline]
    pub(crate) fn count_left(&self) {
        self.counts.left.add(1);
        self.limit.leave();
    }
}

/// The writer's end of a lane. The thread that holds it may write the lane and its counters.
pub(crate) struct LaneWriter {
    pub(crate) lane: Arc<Lane>,
    block: Arc<Block>,
    /// The stamp of the first record of the block that was filled last.
    pub(crate) filled_since: u64,
    /// How many records it has published.
    published: u64,
    /// The highest stamp so far.
    stamp: u64,
    /// The thread's wakers are held back (PRESSURE-3).
    pub(crate) wait: Option<Wait>,
}

impl LaneWriter {
    pub(crate) fn new(lane: Arc<Lane>) -> LaneWriter {
        let block = Block::new();
        LaneWriter { lane, block, filled_since: 0, published: 0, stamp: 0, wait: None }
    }

    /// Publishes the record of a task, and counts a task that `is_new`. Returns true if the record is the first one of a new
    /// block, so that the block before is full.
    #[inline]
    pub(crate) fn publish(&mut self, record: Record, is_new: bool) -> Result<bool, Refused> {
        // Before the push, so that nobody sees a task run that was not counted (COUNT-1 in `stats`).
        self.lane.counts.scheduled.add(u64::from(is_new));
        let pushed = self.push(record);
        if pushed.is_err() {
            self.lane.counts.scheduled.add(u64::from(is_new).wrapping_neg());
        }
        pushed
    }

    /// Publishes a record, and lists the lane unless it is listed.
    #[inline]
    pub(crate) fn push(&mut self, mut record: Record) -> Result<bool, Refused> {
        // A caller with an older reading of the clock counts as scheduled after all that is here: stamps never go down.
        self.stamp = self.stamp.max(record.stamp);
        record.stamp = self.stamp;
        let index = self.published as usize % BLOCK;
        let filled = index == 0 && self.begin_block()?;
        self.block.put(index, record);
        // The one read-modify-write of a schedule. It publishes the record (LANE-1), it is the writer's half of the
        // sleep protocol (WAKE-4), and its old value tells of a close (LANE-3).
        let before = self.lane.published.swap(self.published + 1, Ordering::SeqCst);
        debug_assert_eq!(before & !CLOSED, self.published, "a lane has one writer at a time");
        if before & CLOSED != 0 {
            // Relaxed: nobody reads a closed lane any more.
            self.lane.published.store(before, Ordering::Relaxed);
            return Err(Refused);
        }
        self.published += 1;
        if !self.lane.listed.load(Ordering::SeqCst) {
            self.lane.enlist();
        }
        Ok(filled)
    }

    /// Begins a new block, unless it is the first one. Returns true if there was a block before, which is full and is counted.
    #[cold]
    fn begin_block(&mut self) -> Result<bool, Refused> {
        // A closed lane is refused here already. Otherwise each refused record at the border of a block would add an
        // unused block. Relaxed: a close that is not seen here is seen by the swap that follows.
        if self.lane.published.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Refused);
        }
        if self.published == 0 {
            return Ok(false);
        }
        let fresh = self.lane.spare.pop().unwrap_or_else(Block::new);
        let last = std::mem::replace(&mut self.block, Arc::clone(&fresh));
        self.filled_since = Record::read(&last.records[0]).stamp;
        // The reader looks for it only once a record in it is published.
        drop(last.next.set(fresh));
        self.lane.signals.filled.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

/// The reader's end of a lane.
pub(crate) struct LaneReader {
    pub(super) lane: Arc<Lane>,
    block: Arc<Block>,
    /// The next record in that block, or the block's length if the next block comes first.
    index: usize,
    taken: u64,
    /// How many records were published at the last look.
    seen: u64,
    /// The reader of the intake looks at this lane in each turn.
    pub(super) is_open: bool,
}

impl LaneReader {
    /// Makes the reader's end of a lane whose writer has published nothing.
    pub(crate) fn new(writer: &LaneWriter) -> LaneReader {
        let (lane, block) = (Arc::clone(&writer.lane), Arc::clone(&writer.block));
        LaneReader { lane, block, index: 0, taken: 0, seen: 0, is_open: false }
    }

    /// Notes how much is published. If the lane was on the ready list, `listed` has been cleared before (WAKE-4). The
    /// load pairs with the swap in `LaneWriter::push` (LANE-1).
    pub(crate) fn look(&mut self) {
        self.seen = self.lane.published.load(Ordering::SeqCst) & !CLOSED;
    }

    /// Returns how many records were seen and not taken.
    pub(super) fn left(&self) -> u64 {
        self.seen - self.taken
    }

    /// Returns the first record that was seen and not taken.
    #[inline]
    pub(crate) fn first(&mut self) -> Option<Record> {
        if self.taken == self.seen {
            return None;
        }
        if self.index == BLOCK {
            self.next_block();
        }
        Some(Record::read(&self.block.records[self.index]))
    }

    /// Takes what was seen and is stamped before `end`, in order, and at most `most` records. Returns how many. With each
    /// it tells whether a later filing of the same slot comes right behind it. Then it is stale, and if a thread sets one timer
    /// after the other, that needs no look at the holder, which the thread is writing again.
    #[inline]
    pub(crate) fn take_before(
        &mut self,
        end: u64,
        most: usize,
        mut take: impl FnMut(Record, bool),
    ) -> usize {
        let mut count = 0;
        while count < most && self.left() > 0 {
            if self.index == BLOCK {
                self.next_block();
            }
            let run = (most - count).min(BLOCK - self.index).min(self.left() as usize);
            let records = &self.block.records[self.index..self.index + run];
            let mut take_one = |words: &Words, next: &Words| {
                let record = Record::read(words);
                let is_before = record.stamp < end;
                if is_before {
                    take(record, Record::name(next).follows(record.entry));
                }
                is_before
            };
            let mut took =
                records.windows(2).take_while(|pair| take_one(&pair[0], &pair[1])).count();
            let last = &records[run - 1];
            took += usize::from(took == run - 1 && take_one(last, last));
            self.taken += took as u64;
            self.index += took;
            count += took;
            if took < run {
                break;
            }
        }
        count
    }

    /// Closes the lane. All records that were published before count as seen.
    pub(crate) fn close(&mut self) {
        // The count comes from the close itself. A later load would be wrong: while a writer is being refused,
        // `published` is one too high for a moment (LANE-3).
        let seen = self.lane.close();
        debug_assert!(self.seen <= seen, "a lane never gets shorter");
        self.seen = seen;
    }

    /// Goes on to the next block, and gives the emptied one back. If `spare` is full the block is freed, so a rare peak
    /// leaves no memory behind.
    fn next_block(&mut self) {
        let next = Arc::clone(self.block.next.get().expect("a record in it was seen"));
        let mut emptied = std::mem::replace(&mut self.block, next);
        self.index = 0;
        self.lane.signals.emptied.add(1);
        // The reader goes on only for a record that is published in the next block. By then the writer has let go of
        // this one, so it belongs to the reader alone.
        if let Some(block) = Arc::get_mut(&mut emptied) {
            block.next = OnceLock::new();
            let _ = self.lane.spare.push(emptied);
        }
    }

    /// Panics if a lane that is open between turns is not as it should be. It looks at the first few records of a block.
    pub(super) fn check_invariants(&self) {
        assert!(self.is_open && self.taken < self.seen, "a lane is open if it has something left");
        let left = CHECKED.min(self.left() as usize);
        let records = self.block.records[self.index..].iter().take(left);
        let stamps = records.map(|words| Record::read(words).stamp);
        assert!(stamps.is_sorted(), "the stamps of a lane go down");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Intake;
    use super::*;
    use crate::clock::tick::Moment;
    use crate::wheel::entry::{Runner, SLOT};

    #[test]
    fn what_a_closed_lane_refuses_leaves_nothing_behind() {
        let mut writer = Intake::new(true, None).take_lane();
        LaneReader::new(&writer).close();
        for _ in 0..3 {
            assert!(writer.push(Record { entry: Entry::default(), stamp: 1 }).is_err());
        }
        assert!(writer.block.next.get().is_none() && writer.published == 0);
    }

    #[test]
    fn an_entry_survives_its_way_through_the_lane() {
        let mut writer = Intake::new(true, None).take_lane();
        let mut reader = LaneReader::new(&writer);
        for is_series in [false, true] {
            let entry = Entry::new(SLOT, u32::MAX, Moment(42), true, Runner::Own, is_series);
            assert!(writer.push(Record { entry, stamp: 7 }).is_ok());
            reader.look();
            let is_it = |record: Record, is_stale| {
                assert_eq!((record.entry, record.stamp, is_stale), (entry, 7, false));
            };
            reader.take_before(8, 1, is_it);
            assert_eq!(reader.left(), 0);
        }
    }

    #[test]
    fn a_record_with_a_later_filing_of_its_slot_right_behind_it_is_stale() {
        let mut writer = Intake::new(true, None).take_lane();
        let mut reader = LaneReader::new(&writer);
        let filings = [(3, 1), (3, 2), (4, 1), (3, 3), (3, 4), (3, 5), (5, 9), (5, 8), (4, 2)];
        for (stamp, (slot, number)) in (1..).zip(filings) {
            let entry = Entry::new(slot, number, Moment(42), false, Runner::Default, false);
            assert!(writer.push(Record { entry, stamp }).is_ok());
        }
        reader.look();
        let (mut taken, mut stale) = (Vec::new(), Vec::new());
        let mut take = |end, most| {
            reader.take_before(end, most, |record, is_stale| {
                let list = if is_stale { &mut stale } else { &mut taken };
                list.push((record.entry.slot(), record.entry.number()));
            })
        };
        assert_eq!((take(5, 9), take(9, 1), take(9, 9), take(10, 9)), (4, 1, 3, 1));
        assert_eq!(stale, [(3, 1), (3, 3)]);
        assert_eq!(taken[..3], [(3, 2), (4, 1), (3, 4)], "the last one was alone in its call");
        assert_eq!(taken[3..], [(3, 5), (5, 9), (5, 8), (4, 2)], "an earlier one does not follow");
    }
}
