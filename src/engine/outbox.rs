//! What the engine knows of one executor: what it has handed over and nobody has started yet, and what the executor
//! would not take (S18, S30).
//!
//! ```text
//!            due              batch, taken                   started, or cancelled
//!   front ---------> hands over -----------> handed [ e e e ] ----------------------> forgotten
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
//! - OUTBOX-2 The pause doubles with each refusal, up to [`LONGEST_PAUSE`], or to [`BUSY_PAUSE`] if the executor has
//!   taken something since the last one. It begins anew when the line is empty.
//! - OUTBOX-3 An executor that has refused for good is never asked again.
//! - OUTBOX-4 An entry of `handed` may be started or cancelled already. Entries are forgotten in the order in which they
//!   were handed over; if the executor has another order, all of them are looked at when they have doubled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{BATCH, is_live};
use crate::backpressure::Flow;
use crate::executor::batch::AHEAD;
use crate::front::Entry;
use crate::tick::Moment;
use crate::wheel::Timed;

/// In nanoseconds. An executor that takes some tasks and refuses the next is asked forty times a second, one that
/// takes nothing ten times.
const BUSY_PAUSE: u64 = 25_000_000;
pub(super) const LONGEST_PAUSE: u64 = 100_000_000;

/// So many entries are not worth a look at all of them.
const FEW: usize = 4096;

/// Of one executor.
pub(super) struct Outbox {
    line: Line,
    /// After the last refusal, in nanoseconds; 0 while the executor takes all.
    pause: u64,
    again_at: Option<Moment>,
    is_refused_for_good: bool,
    handed: VecDeque<Entry>,
    /// At how many entries all of `handed` are looked at; OUTBOX-4.
    sweep_at: usize,
    /// How many entries have been forgotten.
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
            sweep_at: FEW,
            passed: 0,
        }
    }

    // ----- handed over ---------------------------------------------------------------------

    /// How many tasks are noted as handed over.
    pub(super) fn handed(&self) -> usize {
        self.handed.len()
    }

    /// Notes a task that is about to be handed over.
    pub(super) fn note(&mut self, entry: Entry) {
        self.handed.push_back(entry);
    }

    /// Forgets what was noted behind this length: it has been run at once.
    pub(super) fn forget_from(&mut self, len: usize) {
        self.passed += (self.handed.len() - len) as u64;
        self.handed.truncate(len);
    }

    /// Forgets what was noted behind this length and refused.
    pub(super) fn forget_refused(&mut self, len: usize, refused: &[Entry]) {
        let mut others = self.handed.split_off(len);
        others.retain(|entry| !refused.iter().any(|other| other.key() == entry.key()));
        self.handed.append(&mut others);
    }

    /// Forgets what has been started or cancelled, about so many entries at most; OUTBOX-4.
    pub(super) fn forget_started(&mut self, most: usize) {
        let before = self.handed.len();
        for _ in 0..most {
            self.handed.get(AHEAD).inspect(|soon| soon.prefetch());
            let Some(first) = self.handed.front() else { break };
            if is_live(*first) {
                break;
            }
            self.handed.pop_front();
        }
        if self.handed.len() >= self.sweep_at {
            self.handed.retain(|entry| is_live(*entry));
            self.sweep_at = 2 * self.handed.len() + FEW;
        }
        self.passed += (before - self.handed.len()) as u64;
    }

    /// How far the executor is behind, with so many tasks that are still on their way to it.
    pub(super) fn flow(&self, on_the_way: usize) -> Flow {
        Flow { ahead: (self.handed.len() + on_the_way) as u64, passed: self.passed }
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

    /// Takes refused tasks back, in the order in which they were handed over, and says when to ask again.
    /// `first_pause`: how long the first pause lasts. OUTBOX-1, OUTBOX-2.
    pub(super) fn refused(
        &mut self,
        refused: &[Entry],
        took_some: bool,
        now: Moment,
        first_pause: u64,
    ) {
        refused.iter().rev().for_each(|entry| self.line.put_back(*entry));
        let longest = if took_some { BUSY_PAUSE } else { LONGEST_PAUSE };
        self.pause = (2 * self.pause).max(first_pause).min(longest);
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
