//! The tasks that executors have taken, and that may not be over.
//!
//! A close claims back what no executor has started (S29). So the engine remembers each one-shot that it has handed over,
//! in 16 bytes, until the task is over, or is filed again because its deadline has moved. The tasks of an executor that
//! runs them at once, as `Inline` does, need not be remembered. Each turn looks at the oldest ones and forgets those that
//! are over. Now and then a scan looks at all, in slices. Of a series it remembers the last run alone.

use std::collections::{HashMap, VecDeque};

use super::bounds::BATCH;
use crate::engine::slots::task::is_live;
use crate::executor::due::AHEAD;
use crate::wheel::Timed;
use crate::wheel::entry::Entry;

/// For fewer tasks than this a scan is not worth it.
const SMALL: usize = 1024;

/// The one-shots that one executor has taken and that may not be over.
#[derive(Default)]
pub(super) struct InFlight {
    /// In the order of the hand-over. During a scan: the tasks that it has not looked at.
    tasks: VecDeque<Entry>,
    /// The tasks that the scan has found not to be over. They were handed over before all of `tasks`.
    kept: VecDeque<Entry>,
    pub(super) is_scanning: bool,
    /// How many tasks the last scan has kept. A scan begins when twice as many are remembered.
    kept_last: usize,
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.kept.len()
    }

    /// Remembers one-shots that were taken just now.
    pub(super) fn extend(&mut self, taken: &[Entry]) {
        self.tasks.extend(taken);
    }

    /// Looks at up to `most` tasks, and forgets those that are over. Returns how many it has forgotten.
    pub(super) fn forget_over(&mut self, most: usize) -> usize {
        let before = self.len();
        // An executor may start its tasks in any order, so an old task that waits may hide later ones that are over.
        // Only a scan finds those. It begins when the memory has doubled, so each task is looked at a few times in
        // all.
        if self.is_scanning || before >= 2 * self.kept_last + SMALL {
            self.scan(most);
        } else {
            let (oldest, _) = self.tasks.as_slices();
            let mut over = 0;
            while over < most.min(oldest.len()) {
                // The look at a holder is a cache miss.
                if let Some(soon) = oldest.get(over + AHEAD) {
                    soon.prefetch();
                }
                if is_live(oldest[over]) {
                    break; // the tasks behind it were handed over later
                }
                over += 1;
            }
            self.tasks.drain(..over);
        }
        before - self.len()
    }

    /// Goes on with a scan, or begins one, and looks at the next `most` tasks.
    #[cold]
    fn scan(&mut self, most: usize) {
        self.is_scanning = true;
        for _ in 0..most {
            let Some(first) = self.tasks.pop_front() else { break };
            self.tasks.get(AHEAD).inspect(|soon| soon.prefetch());
            if is_live(first) {
                self.kept.push_back(first);
            }
        }
        if self.tasks.is_empty() {
            // All that is left is in `kept` by now, in the order of the hand-over.
            std::mem::swap(&mut self.tasks, &mut self.kept);
            self.is_scanning = false;
            self.kept_last = self.tasks.len();
            self.tasks.shrink_to(2 * self.kept_last + SMALL);
            self.kept.shrink_to(BATCH);
        }
    }

    /// Begins a scan if much is remembered.
    pub(super) fn begin_scan(&mut self) {
        self.is_scanning |= self.len() > SMALL;
    }

    /// Takes out all that is remembered, in the order of the hand-over.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        // In the middle of a scan, `kept` has the older ones.
        self.kept.drain(..).chain(self.tasks.drain(..))
    }

    /// Gives back room that a peak has left.
    pub(super) fn shrink(&mut self) {
        self.tasks.shrink_to(BATCH);
    }

    /// Panics with what is broken.
    pub(super) fn check_invariants(&self) {
        assert!(self.is_scanning || self.kept.is_empty(), "tasks are kept by no scan");
        assert!(
            !self.tasks.iter().take(AHEAD).any(|entry| entry.is_series()),
            "a series among the one-shots in flight"
        );
    }
}

/// The last run of each series that some executor has taken, by slot.
#[derive(Default)]
pub(super) struct SeriesInFlight {
    /// Each with the number of its run, because leftovers come in the order of the hand-over.
    runs: HashMap<u32, (u64, Entry)>,
    /// How many runs there were.
    count: u64,
    /// With more series than this, those that are over are forgotten.
    scan_at: usize,
}

impl SeriesInFlight {
    pub(super) fn push(&mut self, entry: Entry) {
        self.count += 1;
        // A series may be handed over a thousand times before it is over, so it is remembered once, with its last run.
        self.runs.insert(entry.slot(), (self.count, entry));
        if self.runs.len() > self.scan_at {
            self.forget_over();
        }
    }

    pub(super) fn forget_over(&mut self) {
        self.runs.retain(|_, (_, entry)| is_live(*entry));
        // Twice what is left, so the looks cost a constant share of the hand-overs.
        self.scan_at = 2 * self.runs.len() + BATCH;
        self.runs.shrink_to(self.scan_at);
    }

    /// Takes out all that is remembered, in the order of the hand-over.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        let mut runs: Vec<_> = std::mem::take(&mut self.runs).into_values().collect();
        runs.sort_unstable_by_key(|(number, _)| *number);
        runs.into_iter().map(|(_, entry)| entry).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::tick::Moment;
    use crate::clock::tick::Times;
    use crate::engine::slots::OneShot;
    use crate::engine::slots::deadline::{self, Reset};
    use crate::engine::slots::task;
    use crate::wheel::entry::{Runner, SchedulerId, TaskKey};

    /// A task that is over, and one that nothing ends before the last line of a test.
    fn over_and_waiting() -> (Entry, Entry) {
        let fill = || {
            let vacancy = task::Vacancy::take().expect("room");
            vacancy.fill(
                OneShot(|| ()),
                task::Repetition::NONE,
                None,
                Moment(5),
                SchedulerId::FIRST,
            )
        };
        let (over, waiting) = (fill(), fill());
        task::cancel(over).0.expect("pending").discard().1.end();
        let entry = |key: TaskKey| {
            Entry::new(key.slot, key.birth(), Moment(5), true, Runner::Default, false)
        };
        [over, waiting].map(entry).into()
    }

    #[test]
    fn what_is_over_is_forgotten_in_whatever_order_it_ends() {
        let (over, waiting) = over_and_waiting();
        let (mut in_flight, mut forgotten) = (InFlight::default(), 0);
        in_flight.extend(&[waiting]); // it stays in front, for ever
        let mut most = 0;
        for turn in 0..100_000 {
            in_flight.extend(&[if turn % 1000 == 0 { waiting } else { over }]);
            forgotten += in_flight.forget_over(AHEAD);
            in_flight.check_invariants();
            most = most.max(in_flight.len());
        }
        assert!((101..4 * SMALL).contains(&most), "{most} remembered, of which 101 wait");
        in_flight.is_scanning = true;
        while in_flight.is_scanning {
            forgotten += in_flight.forget_over(10);
        }
        let left: Vec<_> = in_flight.drain().collect();
        assert_eq!((left.len(), forgotten), (101, 100_001 - 101));
        assert!(left.iter().all(|entry| *entry == waiting));
    }

    #[test]
    fn what_is_filed_again_is_forgotten() {
        let (_, waiting) = over_and_waiting();
        let mut in_flight = InFlight::default();
        in_flight.extend(&[waiting]);
        let reset = |deadline| {
            let times = Times { now: Moment(1), deadline: Moment(deadline) };
            let key = TaskKey::new(waiting.slot(), waiting.number());
            deadline::reset(key, times, Moment(0), false, SchedulerId::FIRST, |_| true)
        };
        assert_eq!((reset(9), in_flight.forget_over(1)), (Reset::Done, 0), "it is due later");
        assert_eq!((reset(3), in_flight.forget_over(1)), (Reset::Done, 1), "another entry counts");
    }

    #[test]
    fn s29_what_was_handed_over_comes_back_in_order() {
        let (over, waiting) = over_and_waiting();
        let mut in_flight = InFlight::default();
        let nth = |at| Entry { deadline: at, ..waiting };
        (0..3000).for_each(|at| in_flight.extend(&[if at % 3 == 0 { over } else { nth(at) }]));
        in_flight.forget_over(1400);
        assert!(in_flight.is_scanning, "in the middle of a scan");
        (3000..3010).for_each(|at| in_flight.extend(&[nth(at)]));
        let mut left: Vec<_> = in_flight.drain().collect();
        left.retain(|entry| entry.slot() == waiting.slot());
        let expected = (0..3010).filter(|at| at % 3 > 0 || *at >= 3000);
        assert!(left.iter().map(|entry| entry.deadline).eq(expected));
    }
}
