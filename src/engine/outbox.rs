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
//! - OUTBOX-4 Each one-shot that an executor has taken is remembered until it is over, so that a close can claim it back
//!   if it has not started (S29). It is 16 bytes. A turn looks at the oldest ones and forgets those that are over. An
//!   executor may start its tasks in another order: so whenever twice as many are remembered as waited at the end of the
//!   last round, a round looks at all of them, in slices. An executor that runs its tasks at once, as `Inline` does, has
//!   none. Series stand elsewhere: see [`Outboxes`](super::dispatch::Outboxes).

use std::collections::{BTreeMap, VecDeque};

use super::{BATCH, is_live};
use crate::engine::slots::holder;
use crate::executor::backpressure::Flow;
use crate::executor::batch::AHEAD;
use crate::time::tick::Moment;
use crate::wheel::Timed;
use crate::wheel::entry::Entry;

/// In nanoseconds. An executor that takes few tasks is asked forty times a second, one that takes nothing ten times.
const BUSY_PAUSE: u64 = 25_000_000;
pub(super) const LONGEST_PAUSE: u64 = 100_000_000;

/// When an executor takes so many tasks at a time, it need not be asked less often; or it should be asked more often.
const ENOUGH: usize = 8;
const MANY: usize = 32;

/// How many entries of cancelled tasks are dropped at the head of a line before it is asked again.
const MOST_STALE: usize = 1024;

/// A round is not worth it for fewer tasks.
const SMALL: usize = 1024;

/// The one-shots that an executor has taken and that may not be over; OUTBOX-4.
struct Handed {
    /// In the order in which they were handed over. In a round: those that it has not looked at.
    tasks: VecDeque<Entry>,
    /// Those that a round has found waiting or running. They were handed over before all of `tasks`.
    passed_over: VecDeque<Entry>,
    is_in_round: bool,
    /// With so many tasks the next round begins.
    round_at: usize,
}

impl Handed {
    fn new() -> Handed {
        let (tasks, passed_over) = (VecDeque::new(), VecDeque::new());
        Handed { tasks, passed_over, is_in_round: false, round_at: SMALL }
    }

    fn len(&self) -> usize {
        self.tasks.len() + self.passed_over.len()
    }

    /// Forgets tasks that are over, and looks at so many at most. How many it has forgotten.
    fn forget_over(&mut self, most: usize) -> usize {
        let before = self.len();
        if self.is_in_round || before >= self.round_at {
            self.go_round(most);
        } else {
            let (oldest, _) = self.tasks.as_slices();
            let mut over = 0;
            while over < most.min(oldest.len()) {
                if let Some(soon) = oldest.get(over + AHEAD) {
                    soon.prefetch();
                }
                if !holder::is_over(oldest[over].key()) {
                    break; // those behind it were handed over later
                }
                over += 1;
            }
            self.tasks.drain(..over);
        }
        before - self.len()
    }

    /// Looks at the next ones of a round.
    #[cold]
    fn go_round(&mut self, most: usize) {
        self.is_in_round = true;
        for _ in 0..most {
            let Some(first) = self.tasks.pop_front() else { break };
            self.tasks.get(AHEAD).inspect(|soon| soon.prefetch());
            if !holder::is_over(first.key()) {
                self.passed_over.push_back(first);
            }
        }
        if self.tasks.is_empty() {
            std::mem::swap(&mut self.tasks, &mut self.passed_over);
            self.is_in_round = false;
            self.round_at = 2 * self.tasks.len() + SMALL;
            self.tasks.shrink_to(self.round_at);
            self.passed_over.shrink_to(BATCH);
        }
    }

    fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.passed_over.drain(..).chain(self.tasks.drain(..))
    }
}

/// Of one executor.
pub(super) struct Outbox {
    line: Line,
    /// After the last refusal, in nanoseconds; 0 while the executor takes all.
    pause: u64,
    again_at: Option<Moment>,
    is_refused_for_good: bool,
    handed: Handed,
    /// How many tasks are over, as far as the engine knows.
    passed: u64,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            line: Line::default(),
            pause: 0,
            again_at: None,
            is_refused_for_good: false,
            handed: Handed::new(),
            passed: 0,
        }
    }

    // ----- handed over ---------------------------------------------------------------------

    /// Remembers one-shots that were taken; OUTBOX-4.
    pub(super) fn taken(&mut self, tasks: &[Entry]) {
        self.handed.tasks.extend(tasks);
    }

    /// Notes tasks that were run at once.
    pub(super) fn run_at_once(&mut self, tasks: usize) {
        self.passed += tasks as u64;
    }

    /// Forgets tasks that are over: it looks at so many of them, and at some more.
    pub(super) fn forget_over(&mut self, tasks: usize) {
        self.passed += self.handed.forget_over(2 * tasks + AHEAD) as u64;
    }

    /// Has all that is remembered looked at by and by, if it is much.
    pub(super) fn begin_round(&mut self) -> bool {
        self.handed.is_in_round = self.handed.is_in_round || self.handed.len() > SMALL;
        self.handed.is_in_round
    }

    /// How many tasks it remembers.
    pub(super) fn remembered(&self) -> usize {
        self.handed.len()
    }

    pub(super) fn is_in_round(&self) -> bool {
        self.handed.is_in_round
    }

    /// Takes out what was handed over and may not be over, in order.
    pub(super) fn drain_handed(&mut self, into: &mut Vec<Entry>) {
        into.extend(self.handed.drain());
    }

    /// How far the executor is behind.
    pub(super) fn flow(&self) -> Flow {
        Flow { ahead: (self.handed.len() + self.line.len()) as u64, passed: self.passed }
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
        self.line.len() == 0 && self.handed.len() == 0 && !self.is_refused_for_good
    }

    /// Gives room back that a peak has left.
    pub(super) fn shrink(&mut self) {
        self.handed.tasks.shrink_to(BATCH);
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
    use crate::wheel::entry::Runner;
    use crate::wheel::entry::TaskKey;

    fn entry(deadline: u64, slot: u32) -> Entry {
        Entry::new(TaskKey { slot, generation: 1 }, Moment(deadline), true, Runner::Default, None)
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

    /// A task that is over, and one that nobody ends before the last line of a test.
    fn over_and_waiting() -> (Entry, Entry) {
        let fill = || {
            let vacancy = holder::Vacancy::take().expect("room");
            vacancy.fill(crate::engine::slots::OneShot(|| ()), holder::Repetition::NONE, None)
        };
        let (over, waiting) = (fill(), fill());
        assert!(matches!(holder::cancel(over), crate::engine::slots::Cancelled::Won { .. }));
        [over, waiting].map(|key| Entry::new(key, Moment(1), true, Runner::Default, None)).into()
    }

    #[test]
    fn outbox_4_what_is_over_is_forgotten_in_whatever_order_it_ends() {
        let (over, waiting) = over_and_waiting();
        let mut outbox = Outbox::new();
        outbox.taken(&[waiting]); // it stays in front, for ever
        let mut most = 0;
        for turn in 0..100_000 {
            outbox.taken(&[if turn % 1000 == 0 { waiting } else { over }]);
            outbox.forget_over(1);
            most = most.max(outbox.remembered());
        }
        assert!((101..4 * SMALL).contains(&most), "{most} remembered, of which 101 wait");
        outbox.handed.is_in_round = true;
        while outbox.is_in_round() {
            outbox.forget_over(10);
        }
        let mut left = Vec::new();
        outbox.drain_handed(&mut left);
        assert_eq!((left.len(), outbox.flow().passed), (101, 100_001 - 101));
        assert!(left.iter().all(|entry| *entry == waiting));
    }

    #[test]
    fn s29_what_was_handed_over_comes_back_in_order() {
        let (over, waiting) = over_and_waiting();
        let mut outbox = Outbox::new();
        let nth = |at| Entry { deadline: at, ..waiting };
        (0..3000).for_each(|at| outbox.taken(&[if at % 3 == 0 { over } else { nth(at) }]));
        outbox.forget_over(700); // in the middle of a round
        assert!(outbox.is_in_round());
        (3000..3010).for_each(|at| outbox.taken(&[nth(at)]));
        let mut left = Vec::new();
        outbox.drain_handed(&mut left);
        left.retain(|entry| entry.key() == waiting.key());
        assert!(
            left.iter()
                .map(|entry| entry.deadline)
                .eq((0..3010).filter(|at| at % 3 > 0 || *at >= 3000))
        );
    }
}
