//! The intake: the way into the engine, lock-free for the threads that schedule, with one reader.
//!
//! Every thread that schedules on a scheduler has a [`lane`] there: a queue of its own into the engine, and counters of
//! its own. So two threads that schedule share nothing that they write for each task, and the order within a lane is
//! the order of the thread's calls.
//!
//! ```text
//!   thread 1:  lane 0  [ ========> ]--.
//!   thread 2:  lane 1  [ ==> ]--------+--> IntakeReader::take, a merge by stamp --> the wheel
//!   thread 3:  lane 2  [ ]            '
//!
//!   ready list:  head --> lane 1 --> lane 0      the lanes that have something for the reader
//! ```
//!
//! **Order across threads** (S3): each record carries a stamp, which is the clock's reading or, on a clock that
//! cannot tell two calls apart, a shared count. The [`reader`] merges the lanes by their stamps. A turn takes only what
//! was stamped before its **cut**.
//!
//! **The ready list** tells the reader which lanes to look at. A writer whose lane is not on it pushes the lane, by a
//! compare-exchange on the head. The reader takes the whole list by a swap. Why no record stays unseen while the reader
//! sleeps is told in [`waking`](crate::docs::waking) (WAKE-4).
//!
//! **The bound.** Writers count the blocks that they fill, all together, and the reader those that it empties. When the
//! difference is more than `BLOCKS_AHEAD`, writers are held back (see
//! [`backpressure`](crate::backpressure)), each at the border of a block.
//!
//! - INTAKE-1 A record is published by one swap on the lane, and the swap's old value tells whether the lane was
//!   closed. So each record is either seen by the engine's last look, or refused, and never both (S20). The task of a refused
//!   one is taken back, unless the last turn has found it in its holder: then it is accepted.
//! - INTAKE-2 A lane is pushed on the ready list only by its writer, and only after the writer has set `listed`, which
//!   it has found cleared. The reader clears `listed` only after it has taken the lane off the list and has read
//!   `next`. So a lane is on the list at most once, and `next` is not written while the reader may read it.
//! - INTAKE-3 If a record is taken in a turn, so is every record whose schedule had returned before that one's began.
//!   By clock: its stamp is below the cut as well, and its publication came before the reader's look, because its
//!   thread had passed on to a later reading. By count: the cut is a reading of the count, which carries everything
//!   that was published before it.

pub(crate) mod lane;
pub(crate) mod reader;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use self::lane::{Lane, LaneReader, LaneWriter, Signals};
use crate::backpressure::{Backpressure, Flow, PendingLimit};
use crate::observe::stats::Counts;
use crate::platform::sync::{AtomicU64, Mutex, Ordering, lock};

/// How many filled blocks the reader may be behind the writers: 262,144 records, which take 6.3 MB and some ten
/// milliseconds of the tick thread.
const BLOCKS_AHEAD: u64 = 2048;

/// A writer that is more than so many blocks (32,768 records) ahead wakes the tick thread even if nothing is due soon. That
/// bounds what lies in the lanes, most of which may be cancelled by then. With half as many, and a wake-up for each so many, one
/// schedule in 16,384 rang, and with the interrupts of the system more than one in 10,000 took long: p99.99 of a schedule was
/// 8.3 us and not 2.4 (W12, medians of 15).
const BLOCKS_ASLEEP: u64 = 256;

/// A writer that takes so many nanoseconds to fill a block is no flood.
const SLOW_BLOCK: u64 = 50_000_000;

/// How many lanes are visited under the lock, before others may have it.
const LANES_AT_ONCE: usize = 256;

/// How many lanes are described one by one.
const LANES_SHOWN: usize = 32;

/// The intake of one scheduler, as writers see it.
pub(crate) struct Intake {
    signals: Arc<Signals>,
    lanes: Mutex<Lanes>,
    /// A task that is about to come in enters it. A task that is in leaves it through a lane.
    pub(crate) limit: Arc<PendingLimit>,
    pub(crate) pressure: Backpressure,
    /// Stamps are values of this count if the clock cannot tell which of two calls came first.
    count: Option<CachePadded<AtomicU64>>,
    /// The cut of the last turn. Written by the engine alone.
    last_cut: AtomicU64,
}

/// All lanes, and what becomes of their ends.
#[derive(Default)]
struct Lanes {
    all: Vec<Arc<Lane>>,
    /// Readers' ends that the engine has not fetched yet.
    fresh: Vec<LaneReader>,
    /// Writers' ends whose thread has ended. The next thread takes one over.
    idle: Vec<LaneWriter>,
    is_closed: bool,
}

impl Intake {
    pub(crate) fn new(clock_tells_order: bool, max_pending: Option<usize>) -> Intake {
        Intake {
            signals: Arc::default(),
            lanes: Mutex::default(),
            limit: Arc::new(PendingLimit::new(max_pending)),
            pressure: Backpressure::new(BLOCKS_AHEAD),
            count: (!clock_tells_order).then(CachePadded::default),
            last_cut: AtomicU64::default(),
        }
    }

    /// Returns true if stamps are readings of the clock, and false if they are a shared count.
    #[inline]
    pub(crate) fn is_by_clock(&self) -> bool {
        self.count.is_none()
    }

    /// Returns the stamp of a call that read the clock at `now`.
    #[inline]
    pub(crate) fn stamp(&self, now: u64) -> u64 {
        match &self.count {
            None => now.min(u64::MAX - 2), // the cut of the last reading that there is lies behind it (TIME-3)
            // Release: pairs with the Acquire in `count` (INTAKE-3).
            Some(count) => count.fetch_add(1, Ordering::Release),
        }
    }

    /// Returns the cut of a turn: what is stamped below it belongs to the turn. `None` if the clock's reading is the cut.
    pub(crate) fn count(&self) -> Option<u64> {
        // Acquire: pairs with the Release in `stamp` (INTAKE-3).
        self.count.as_ref().map(|count| count.load(Ordering::Acquire))
    }

    /// Returns the clock's reading of the last turn, for a caller that does without one of its own. It is never ahead
    /// of the present.
    pub(crate) fn reading_of_last_turn(&self) -> u64 {
        // Any turn's will do. It goes on with each turn, so a flood of such calls is merged with the others.
        self.last_cut.load(Ordering::Relaxed)
    }

    /// Returns a lane for a thread that has none: one whose thread has ended, counters and all, or a new one.
    pub(crate) fn take_lane(&self) -> LaneWriter {
        let mut lanes = lock(&self.lanes);
        if let Some(writer) = lanes.idle.pop() {
            return writer;
        }
        let (number, signals) = (lanes.all.len(), Arc::clone(&self.signals));
        let writer = LaneWriter::new(Lane::new(number, Arc::clone(&self.limit), signals));
        // The reader has closed all lanes that it knew. This one has to refuse as they do.
        if lanes.is_closed {
            writer.lane.close();
        } else {
            lanes.fresh.push(LaneReader::new(&writer));
        }
        lanes.all.push(Arc::clone(&writer.lane));
        writer
    }

    /// Keeps the lane of a thread that has ended, for the next thread.
    pub(crate) fn leave_lane(&self, mut writer: LaneWriter) {
        writer.wait = None; // it was the thread that was held back, and the next one has sent nothing
        lock(&self.lanes).idle.push(writer);
    }

    /// Adds up what `count` returns for each lane.
    pub(crate) fn sum(&self, count: impl Fn(&Counts) -> u64) -> u64 {
        let mut sum = 0;
        self.each_lane(|lane| sum += count(&lane.counts));
        sum
    }

    /// Visits all lanes, to add up their counters.
    pub(crate) fn each_lane(&self, mut visit: impl FnMut(&Lane)) {
        for number in 0.. {
            // In slices, so that nobody waits long for the lock. Lanes are added at the end, and stay.
            let lanes = lock(&self.lanes);
            let Some(slice) = lanes.all.chunks(LANES_AT_ONCE).nth(number) else { break };
            slice.iter().for_each(|lane| visit(lane));
        }
    }

    /// Describes how the intake stands, in lines, for [`Shared::dump`](super::shared::Shared::dump).
    pub(super) fn describe(&self) -> Vec<String> {
        let signals = &self.signals;
        let ready = match signals.ready.load(Ordering::Relaxed) {
            0 => "empty".to_owned(),
            link => format!("lane {} is first", link - 1),
        };
        let filled = signals.filled.load(Ordering::Relaxed);
        let (emptied, looks) = (signals.emptied.get(), signals.looks.get());
        let [is_late, many_cancelled] =
            [&signals.is_late, &signals.many_cancelled].map(|hint| hint.load(Ordering::Relaxed));
        let mut lines = vec![
            format!("ready list: {ready}"),
            format!("blocks: {filled} filled, {emptied} emptied, after {looks} looks"),
            format!("hints: is_late {is_late}, many_cancelled {many_cancelled}"),
        ];
        let mut shown = Vec::new();
        self.each_lane(|lane| shown.push(lane.describe()));
        let more = shown.len().saturating_sub(LANES_SHOWN);
        lines.extend(shown.into_iter().take(LANES_SHOWN));
        lines.extend((more > 0).then(|| format!("and {more} more lanes")));
        lines
    }

    /// Returns true if a writer that has begun to fill its last block at `since`, and reads the clock at `now`, makes no more
    /// than some thousand tasks a second. It need not be held back.
    pub(crate) fn is_slow(&self, since: u64, now: u64) -> bool {
        self.is_by_clock() && now.saturating_sub(since) > SLOW_BLOCK
    }

    /// Returns true if the deadline of some task was ever moved.
    #[inline]
    pub(crate) fn has_resets(&self) -> bool {
        // It saves looks at holders. An engine that does not see it yet hands the task over, and the claim looks again.
        self.signals.has_resets.load(Ordering::Relaxed)
    }

    /// Returns true if a thread has cancelled many tasks since the last call.
    pub(crate) fn were_many_cancelled(&self) -> bool {
        // A load first, because the swap would take the cache line from the others in each turn.
        let hint = &self.signals.many_cancelled;
        hint.load(Ordering::Relaxed) && hint.swap(false, Ordering::Relaxed)
    }

    /// Returns how many blocks the writers are ahead of the reader. A reader that is late counts as too far behind.
    pub(crate) fn ahead(&self) -> u64 {
        let signals = &self.signals;
        let ahead = signals.filled.load(Ordering::Relaxed).saturating_sub(signals.emptied.get());
        // The thread is slow, for example because it runs tasks itself, so the bound by count alone would be too much
        // time.
        let is_late = ahead > BLOCKS_ASLEEP && signals.is_late.load(Ordering::Relaxed);
        if is_late { ahead.max(BLOCKS_AHEAD + 1) } else { ahead }
    }

    /// Returns how far the writers are ahead of the reader.
    pub(crate) fn flow(&self) -> Flow {
        // A turn that runs many slow tasks itself is progress too, although it takes nothing in meanwhile.
        let done = self.sum(|counts| counts.fired.get() + counts.dropped.get());
        Flow { ahead: self.ahead(), passed: self.signals.looks.get() + done }
    }

    /// Returns true if writers have filled so much that the reader is to be woken for it, whatever is due.
    #[cold]
    pub(crate) fn is_far_ahead(&self) -> bool {
        self.ahead() > BLOCKS_ASLEEP
    }
}
