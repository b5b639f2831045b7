//! What the engine knows of one executor: how much it has handed over that nobody has started yet, and what the
//! executor would not take (S18, S30).
//!
//! ```text
//!            due              a batch that is taken          its last task has started
//!   front ---------> hands over -----------> handed [ b b b ] ----------------------> forgotten
//!                      |    ^
//!              refused |    | asked again: with one task; if it is taken with 2, with 4 ...
//!                      v    |
//!                    line [ e e e e ]  in order of deadline
//! ```
//!
//! An executor that has refused a task is not offered others: what is due for it stands in its **line**. It is asked
//! again after a pause, with one task. While it takes what it is offered it is offered twice as much, until the line is
//! empty or it refuses again. So what one executor refuses costs the others nothing: neither a place in the front nor a
//! share of a turn.
//!
//! - OUTBOX-1 A task of a line is in order of deadline, and of its arrival; one that is refused again keeps its place.
//! - OUTBOX-2 The pause begins with a tick. It doubles up to [`LONGEST_PAUSE`] while the executor takes nothing, and up to
//!   [`BUSY_PAUSE`] while it takes less than [`ENOUGH`] tasks at a time; it is halved when it takes [`MANY`]. So a queue
//!   that is full again and again is filled in time, and each wake-up for it moves some tasks. It begins anew when the
//!   line is empty.
//! - OUTBOX-3 An executor that has refused for good is never asked again.
//! - OUTBOX-4 Of each batch that was taken, the engine remembers how many tasks it had, and the last one. When that has
//!   been started or cancelled the batch counts as started. So the number of those that wait is a guess, good enough to
//!   hold producers back, at the price of one look for each batch. A series is no witness, because it is pending again
//!   as soon as it has run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{BATCH, is_live};
use crate::backpressure::Flow;
use crate::front::Entry;
use crate::key::TaskKey;
use crate::task::{Kind, holder};
use crate::tick::Moment;
use crate::wheel::Timed;

/// In nanoseconds. An executor that takes few tasks is asked forty times a second, one that takes nothing ten times.
const BUSY_PAUSE: u64 = 25_000_000;
pub(super) const LONGEST_PAUSE: u64 = 100_000_000;

/// When an executor takes so many tasks at a time, it need not be asked less often; or it should be asked more often.
const ENOUGH: usize = 8;
const MANY: usize = 32;

/// So many entries are not worth a look at all of them.
const FEW: usize = 4096;

/// A batch that an executor has taken.
struct Handed {
    last: TaskKey,
    tasks: u64,
}

/// Of one executor.
pub(super) struct Outbox {
    line: Line,
    /// After the last refusal, in nanoseconds; 0 while the executor takes all.
    pause: u64,
    again_at: Option<Moment>,
    is_refused_for_good: bool,
    handed: VecDeque<Handed>,
    /// How many tasks `handed` stands for.
    waiting_there: u64,
    /// How many tasks have been started, as far as the engine knows.
    passed: u64,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            line: Line::default(),
            pause: 0,
            again_at: None,
            is_refused_for_good: false,
            handed: VecDeque::new(),
            waiting_there: 0,
            passed: 0,
        }
    }

    // ----- handed over ---------------------------------------------------------------------

    /// Notes a batch that was taken, by its last task. OUTBOX-4.
    pub(super) fn taken(&mut self, last: TaskKey, tasks: usize) {
        self.handed.push_back(Handed { last, tasks: tasks as u64 });
        self.waiting_there += tasks as u64;
    }

    /// Notes tasks that were run at once.
    pub(super) fn run_at_once(&mut self, tasks: usize) {
        self.passed += tasks as u64;
    }

    /// Forgets what has been started, so many batches at most.
    pub(super) fn forget_started(&mut self, most: usize) {
        for _ in 0..most {
            let Some(first) = self.handed.front() else { break };
            if holder::pending_word(first.last).is_some_and(|word| word.kind() == Kind::Once) {
                break;
            }
            self.waiting_there -= first.tasks;
            self.passed += first.tasks;
            self.handed.pop_front();
        }
    }

    /// How far the executor is behind, with so many tasks that are still on their way to it.
    pub(super) fn flow(&self, on_the_way: usize) -> Flow {
        Flow { ahead: self.waiting_there + on_the_way as u64, passed: self.passed }
    }

    // ----- refused -------------------------------------------------------------------------

    /// Returns true if what is due has to stand in line.
    pub(super) fn is_refusing(&self) -> bool {
        self.is_refused_for_good || !self.line.is_empty()
    }

    /// Puts a task behind those that wait.
    pub(super) fn line_up(&mut self, entry: Entry) {
        self.line.push(entry);
    }

    /// Takes refused tasks back, in the order in which they were handed over; OUTBOX-1. `first_pause`: how long the
    /// executor rests if that is the first time.
    pub(super) fn refused(&mut self, refused: &[Entry], now: Moment, first_pause: u64) {
        refused.iter().rev().for_each(|entry| self.line.put_back(*entry));
        if self.pause == 0 {
            self.pause = first_pause;
            self.again_at = Some(now.after_nanos(first_pause));
        }
    }

    /// The executor has refused what it was asked last, and has taken so many tasks before: it rests. OUTBOX-2.
    pub(super) fn rest(&mut self, took: usize, now: Moment, first_pause: u64) {
        self.pause = match took {
            0 => (2 * self.pause).min(LONGEST_PAUSE),
            1..ENOUGH => (2 * self.pause).min(BUSY_PAUSE),
            ENOUGH..MANY => self.pause.min(BUSY_PAUSE),
            _ => (self.pause / 2).min(BUSY_PAUSE),
        };
        self.pause = self.pause.max(first_pause);
        self.again_at = Some(now.after_nanos(self.pause));
    }

    /// The executor will never take anything again; OUTBOX-3.
    pub(super) fn refused_for_good(&mut self) {
        self.is_refused_for_good = true;
    }

    /// When the executor is to be asked again.
    pub(super) fn again_at(&self) -> Option<Moment> {
        self.again_at.filter(|_| !self.is_refused_for_good)
    }

    /// Returns true if it may be asked again now: its pause is over, or nearly so.
    pub(super) fn is_to_be_asked(&self, now: Moment) -> bool {
        self.again_at().is_some_and(|at| at <= now.after_nanos(self.pause / 4))
    }

    /// Asks again at once: a turn has had no time for all that the executor would take.
    pub(super) fn ask_soon(&mut self, now: Moment) {
        self.again_at = Some(now);
    }

    /// The next tasks of the line that are still to run, so many at most. When there is none the executor counts as
    /// well again.
    pub(super) fn next_of_line(&mut self, most: usize, into: &mut Vec<Entry>) {
        while into.len() < most.min(BATCH) {
            let Some(entry) = self.line.pop() else { break };
            if is_live(entry) {
                into.push(entry);
            }
        }
        if into.is_empty() {
            (self.pause, self.again_at) = (0, None);
        }
    }

    // ----- all of it -----------------------------------------------------------------------

    /// How many entries wait in line, stale ones included.
    pub(super) fn waiting(&self) -> usize {
        self.line.heap.len()
    }

    /// Drops entries of cancelled tasks, all of them.
    pub(super) fn sweep(&mut self) {
        self.line.heap.retain(|Reverse((.., entry))| is_live(*entry));
        self.line.sweep_at = 2 * self.line.heap.len() + FEW;
    }

    /// Takes out what waits in line, in order.
    pub(super) fn drain_line(&mut self, into: &mut Vec<Entry>) {
        into.extend(std::iter::from_fn(|| self.line.pop()));
    }

    /// Returns true if nothing is to be remembered.
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.handed.is_empty() && !self.is_refused_for_good
    }

    /// Gives room back that a peak has left.
    pub(super) fn shrink(&mut self) {
        self.handed.shrink_to(FEW);
        self.line.heap.shrink_to(FEW);
    }
}

/// Tasks by deadline, and at equal deadlines by their places; OUTBOX-1.
#[derive(Default)]
struct Line {
    heap: BinaryHeap<Reverse<(u64, i64, Entry)>>,
    /// The place of the next one to come.
    last: i64,
    /// The place of the last one that was put back.
    first: i64,
    /// At how many entries all are looked at.
    sweep_at: usize,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn push(&mut self, entry: Entry) {
        if self.heap.len() >= self.sweep_at.max(FEW) {
            self.heap.retain(|Reverse((.., entry))| is_live(*entry));
            self.sweep_at = 2 * self.heap.len() + FEW;
        }
        self.last += 1;
        self.heap.push(Reverse((entry.deadline(), self.last, entry)));
    }

    fn put_back(&mut self, entry: Entry) {
        self.first -= 1;
        self.heap.push(Reverse((entry.deadline(), self.first, entry)));
    }

    fn pop(&mut self) -> Option<Entry> {
        let Reverse((.., entry)) = self.heap.pop()?;
        Some(entry)
    }
}
