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
//! - OUTBOX-1 The tasks of a line are in order of deadline, and of arrival; one that is refused again keeps its place.
//! - OUTBOX-2 The pause begins with a tick. It doubles up to [`LONGEST_PAUSE`] while the executor takes nothing, and up to
//!   [`BUSY_PAUSE`] while it takes less than [`ENOUGH`] tasks at a time; it is halved when it takes [`MANY`]. So a queue
//!   that is full again and again is filled in time, and each wake-up for it moves some tasks. It begins anew when the
//!   line is empty.
//! - OUTBOX-3 An executor that has refused for good is never asked again.
//! - OUTBOX-4 Of each batch that was taken, the engine remembers how many tasks it had, and the last one. When that has
//!   been started or cancelled the batch counts as started. So the number of those that wait is a guess, good enough to
//!   hold producers back, at the price of one look for each batch. A series is no witness, because it is pending again
//!   as soon as it has run.

use std::collections::{BTreeMap, VecDeque};

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

/// More batches than that are not remembered.
const MOST_HANDED: usize = 4096;

/// How many entries of cancelled tasks are dropped at the head of a line before it is asked again.
const MOST_STALE: usize = 1024;

/// A batch that an executor has taken.
struct Handed {
    last: TaskKey,
    tasks: u64,
}

impl Handed {
    /// Whether its last task waits, as far as the engine can tell; OUTBOX-4.
    fn waits(&self) -> bool {
        holder::pending_word(self.last).is_some_and(|word| word.kind() == Kind::Once)
    }
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
    /// How often the first batch was found waiting since all of them were looked at.
    looks: usize,
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
            looks: 0,
            passed: 0,
        }
    }

    // ----- handed over ---------------------------------------------------------------------

    /// Notes a batch that was taken, by its last task. OUTBOX-4.
    pub(super) fn taken(&mut self, last: TaskKey, tasks: usize) {
        if self.handed.len() == MOST_HANDED {
            self.forget_first();
        }
        self.handed.push_back(Handed { last, tasks: tasks as u64 });
        self.waiting_there += tasks as u64;
    }

    /// Notes tasks that were run at once.
    pub(super) fn run_at_once(&mut self, tasks: usize) {
        self.passed += tasks as u64;
    }

    /// Forgets what has been started. An executor may start its batches in another order than it got them: so from time
    /// to time all of them are looked at, however long the first one waits.
    pub(super) fn forget_started(&mut self) {
        while self.handed.front().is_some_and(|first| !first.waits()) {
            self.forget_first();
        }
        self.looks += 1;
        if self.looks > self.handed.len() {
            self.looks = 0;
            let (waiting_there, passed) = (&mut self.waiting_there, &mut self.passed);
            self.handed.retain(|batch| {
                let waits = batch.waits();
                if !waits {
                    *waiting_there -= batch.tasks;
                    *passed += batch.tasks;
                }
                waits
            });
        }
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.handed.pop_front() {
            self.waiting_there -= first.tasks;
            self.passed += first.tasks;
        }
    }

    /// How far the executor is behind.
    pub(super) fn flow(&self) -> Flow {
        Flow { ahead: self.waiting_there + self.line.len() as u64, passed: self.passed }
    }

    // ----- refused -------------------------------------------------------------------------

    /// Returns true if what is due has to stand in line.
    pub(super) fn is_refusing(&self) -> bool {
        self.is_refused_for_good || self.line.len() > 0
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

    /// The next tasks of the line that are still to run, so many at most. When the line is empty the executor counts as
    /// well again.
    pub(super) fn next_of_line(&mut self, most: usize, into: &mut Vec<Entry>) {
        let mut stale = 0;
        while into.len() < most.min(BATCH) && stale < MOST_STALE {
            match self.line.pop() {
                Some(entry) if is_live(entry) => into.push(entry),
                Some(_) => stale += 1,
                None => break,
            }
        }
        if into.is_empty() && self.line.len() == 0 {
            (self.pause, self.again_at) = (0, None);
        }
    }

    // ----- all of it -----------------------------------------------------------------------

    /// How many entries wait in line, stale ones included.
    pub(super) fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Drops entries of cancelled tasks, of so many that it looks at. Returns true when it has come to the end.
    pub(super) fn sweep(&mut self, budget: &mut usize) -> bool {
        self.line.sweep(budget)
    }

    /// Takes out what waits in line, in order.
    pub(super) fn drain_line(&mut self, into: &mut Vec<Entry>) {
        into.extend(std::iter::from_fn(|| self.line.pop()));
    }

    /// Returns true if nothing is to be remembered.
    pub(super) fn is_idle(&self) -> bool {
        self.line.len() == 0 && self.handed.is_empty() && !self.is_refused_for_good
    }

    /// Gives room back that a peak has left.
    pub(super) fn shrink(&mut self) {
        self.handed.shrink_to(BATCH);
    }
}

/// Tasks by deadline, and at equal deadlines by their places; OUTBOX-1. It is a tree, so that it can be swept in slices.
#[derive(Default)]
struct Line {
    tasks: BTreeMap<(u64, i64), Entry>,
    /// The place of the last one that came.
    last: i64,
    /// The place of the last one that was put back.
    first: i64,
    /// Where a sweep goes on.
    swept_to: (u64, i64),
}

impl Line {
    fn len(&self) -> usize {
        self.tasks.len()
    }

    fn push(&mut self, entry: Entry) {
        self.last += 1;
        self.tasks.insert((entry.deadline(), self.last), entry);
    }

    fn put_back(&mut self, entry: Entry) {
        self.first -= 1;
        self.tasks.insert((entry.deadline(), self.first), entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        self.tasks.pop_first().map(|(_, entry)| entry)
    }

    fn sweep(&mut self, budget: &mut usize) -> bool {
        let slice = self.tasks.range(self.swept_to..).take(*budget);
        let (mut looked_at, mut stale) = (0, Vec::new());
        let mut next = None;
        for (place, entry) in slice {
            looked_at += 1;
            next = Some((place.0, place.1 + 1));
            if !is_live(*entry) {
                stale.push(*place);
            }
        }
        stale.iter().for_each(|place| _ = self.tasks.remove(place));
        let is_done = looked_at < *budget;
        *budget -= looked_at;
        self.swept_to = next.filter(|_| !is_done).unwrap_or_default();
        is_done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::front::Runner;

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(TaskKey { slot, generation: 1 }, Moment(deadline), true, Runner::Shared)
    }

    #[test]
    fn outbox_1_a_line_is_in_order_and_what_is_refused_again_keeps_its_place() {
        let mut line = Line::default();
        for (at, slot) in [(5, 0), (3, 1), (5, 2), (5, 3)] {
            line.push(entry(at, slot));
        }
        let taken = [(); 3].map(|()| line.pop().expect("four"));
        assert_eq!(taken.map(|entry| entry.key().slot), [1, 0, 2]);
        taken[1..].iter().rev().for_each(|entry| line.put_back(*entry));
        line.push(entry(5, 4));
        line.push(entry(4, 5));
        let rest: Vec<_> =
            std::iter::from_fn(|| line.pop()).map(|entry| entry.key().slot).collect();
        assert_eq!(rest, [5, 0, 2, 3, 4]);
    }

    #[test]
    fn outbox_2_the_pause_grows_while_nothing_is_taken_and_shrinks_when_much_is() {
        let milli = 1_000_000;
        let mut outbox = Outbox::new();
        outbox.refused(&[entry(1, 0)], Moment(0), milli);
        let mut pauses = Vec::new();
        for took in [0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 31, 32, 100, 1000, 7, 1] {
            outbox.rest(took, Moment(0), milli);
            pauses.push(outbox.again_at().expect("it rests").0 / milli);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100, 25, 25, 25, 12, 6, 3, 6, 12]);
        outbox.refused_for_good();
        assert_eq!((outbox.again_at(), outbox.is_refusing()), (None, true));
    }

    #[test]
    fn s19_a_line_is_swept_in_slices() {
        let mut line = Line::default();
        (0..1000).for_each(|at| line.push(entry(at, u32::MAX >> 4))); // a slot that nobody has
        let mut slices = 0;
        loop {
            slices += 1;
            let mut budget = 100;
            if line.sweep(&mut budget) {
                break;
            }
            assert_eq!(budget, 0);
        }
        assert_eq!((line.len(), slices), (0, 11));
    }

    #[test]
    fn outbox_4_no_more_batches_are_remembered_than_are_worth_it() {
        let mut outbox = Outbox::new();
        let nobody = TaskKey { slot: u32::MAX >> 4, generation: 1 };
        (0..2 * MOST_HANDED).for_each(|_| outbox.taken(nobody, 3));
        assert_eq!(outbox.flow().ahead, 3 * MOST_HANDED as u64);
        outbox.forget_started();
        assert_eq!((outbox.flow().ahead, outbox.flow().passed), (0, 6 * MOST_HANDED as u64));
    }
}
