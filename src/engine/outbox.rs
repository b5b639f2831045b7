//! What the engine remembers of each executor: the tasks that it has taken ([`in_flight`](super::in_flight)), and those
//! that it has refused ([`retry_queue`](super::retry_queue)).
//!
//! ```text
//!                  due                  a batch that is taken               its tasks are over
//!   ready queue ---------> hand over ---------------------> in flight [ e e e ] --------> forgotten
//!                           |    ^
//!                   refused |    | offered again: one task; if that is taken two, then four ...
//!                           v    |
//!                        retry queue [ e e e e ]   in order of deadline
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::{Arc, Weak};

use super::bounds::OUTBOXES;
use super::in_flight::{InFlight, SeriesInFlight};
use super::retry_queue::RetryQueue;
use crate::backpressure::{Backlog, Flow};
use crate::clock::tick::Moment;
use crate::executor::DueBatch;
use crate::executor::due::AHEAD;
use crate::executor::own_executor::OwnExecutor;
use crate::wheel::entry::Entry;

/// With more tasks in flight than this, the engine looks at all of them when it has nothing else to do.
const MUCH: usize = 16 * 1024;

/// What a batch goes to.
pub(super) enum Target {
    /// The scheduler's executor.
    Default,
    /// The own executor of some tasks.
    Own(Arc<OwnExecutor>),
    /// The tick thread wakes wakers itself, so its batch stays empty.
    TickThread,
}

impl Target {
    /// Returns the number of the executor: 0 for the scheduler's.
    pub(super) fn number(&self) -> u32 {
        if let Target::Own(own) = self { own.number } else { 0 }
    }

    pub(super) fn is(&self, other: &Target) -> bool {
        let is_thread = |target: &Target| matches!(target, Target::TickThread);
        self.number() == other.number() && is_thread(self) == is_thread(other)
    }
}

/// What the engine remembers of one executor.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) retries: RetryQueue,
    in_flight: InFlight,
    /// How many tasks are over, as far as the engine knows.
    finished: u64,
}

impl Outbox {
    /// Forgets tasks that are over: `tasks` have just been taken.
    fn forget_over(&mut self, tasks: usize) {
        // It looks at more than have come, so what is remembered shrinks if the executor keeps up.
        self.finished += self.in_flight.forget_over(2 * tasks + AHEAD) as u64;
    }

    /// Returns how far the executor is behind.
    fn flow(&self) -> Flow {
        Flow { ahead: (self.in_flight.len() + self.retries.len()) as u64, passed: self.finished }
    }

    fn check_invariants(&self) {
        self.retries.check_invariants();
        self.in_flight.check_invariants();
    }
}

/// The outbox of a task's own executor. It does not keep the executor alive.
struct OwnOutbox {
    executor: Weak<OwnExecutor>,
    backlog: Arc<Backlog>,
    outbox: Outbox,
}

impl OwnOutbox {
    fn new(executor: &Arc<OwnExecutor>) -> OwnOutbox {
        let (backlog, outbox) = (Arc::clone(&executor.backlog), Outbox::default());
        OwnOutbox { executor: Arc::downgrade(executor), backlog, outbox }
    }

    fn is_alive(&self) -> bool {
        self.executor.strong_count() > 0
    }

    fn is_refusing(&self) -> bool {
        self.outbox.retries.is_refusing() && self.is_alive()
    }
}

/// The outboxes of all executors.
#[derive(Default)]
pub(super) struct Outboxes {
    /// The outbox of the scheduler's executor, whose number is 0.
    default: Outbox,
    /// The outboxes of tasks' own executors that are not empty, by the number of the executor. A number is used again
    /// when its executor is gone. By then nothing in the outbox is still to run, because each task keeps its executor
    /// alive.
    own: BTreeMap<u32, OwnOutbox>,
    series: SeriesInFlight,
    /// The numbers of all executors in `own` that refuse, and perhaps of some that do not.
    refusing: BTreeSet<u32>,
    /// How many turns have passed since the engine looked through `own`.
    turns: usize,
    /// The executor of the last retry. The next turn begins with the one behind it.
    pub(super) retried: u32,
    /// The executor whose retry queue a sweep goes on with.
    sweep_from: u32,
    /// How many tasks were in flight when the last scan began.
    scanned: usize,
    /// How many scans in a row have found about as many tasks as the one before.
    scans_in_vain: u32,
}

impl Outboxes {
    pub(super) fn of(&mut self, target: &Target) -> &mut Outbox {
        let Target::Own(own) = target else { return &mut self.default };
        // The number may have been given to a new executor since, and the old one's outbox is of no use any more.
        let entry = self.own.entry(own.number).or_insert_with(|| OwnOutbox::new(own));
        if !entry.is_alive() {
            *entry = OwnOutbox::new(own);
        }
        &mut entry.outbox
    }

    pub(super) fn is_refusing(&self, target: &Target) -> bool {
        match target {
            Target::Default => self.default.retries.is_refusing(),
            Target::TickThread => false,
            Target::Own(own) => self.own.get(&own.number).is_some_and(OwnOutbox::is_refusing),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Outbox> {
        self.own.values().map(|own| &own.outbox).chain([&self.default])
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Outbox> {
        self.own.values_mut().map(|own| &mut own.outbox).chain([&mut self.default])
    }

    fn all_refusing(&self) -> impl Iterator<Item = &OwnOutbox> {
        self.refusing.iter().filter_map(|number| self.own.get(number))
    }

    // ----- retries -------------------------------------------------------------------------

    /// Returns the retry queue of an executor that has refused tasks, which the engine looks at from now on.
    pub(super) fn refusing(&mut self, target: &Target) -> &mut RetryQueue {
        if let Target::Own(own) = target {
            self.refusing.insert(own.number);
        }
        &mut self.of(target).retries
    }

    /// Returns when to retry next with some executor.
    #[inline]
    pub(super) fn retry_at(&mut self) -> Option<Moment> {
        if self.refusing.is_empty() {
            return self.default.retries.retry_at();
        }
        // This comes once a turn, and is where executors that have recovered, or are gone, leave the list.
        let own = &self.own;
        self.refusing.retain(|number| own.get(number).is_some_and(OwnOutbox::is_refusing));
        let outboxes = self.all_refusing().map(|own| &own.outbox).chain([&self.default]);
        outboxes.filter_map(|outbox| outbox.retries.retry_at()).min()
    }

    /// Returns the executors whose pause is over, or nearly so. They take turns at being the first.
    pub(super) fn to_retry(&self, now: Moment) -> Vec<Target> {
        // An executor whose pause is nearly over comes along when another one has woken the thread, so many of them
        // cost few wake-ups.
        let default = self.default.retries.may_retry(now).then_some(Target::Default);
        let own = self.all_refusing().filter(|own| own.outbox.retries.may_retry(now));
        let own = own.filter_map(|own| own.executor.upgrade()).map(Target::Own);
        let mut targets: Vec<_> = default.into_iter().chain(own).collect();
        // A turn may have time for the first one only, so the next turn begins with the one behind it.
        let first = targets.iter().position(|target| target.number() > self.retried);
        targets.rotate_left(first.unwrap_or(0));
        targets
    }

    /// Returns the earliest deadline of a refused task whose entry `is_valid`. Drops the others before it.
    pub(super) fn first_refused(
        &mut self,
        mut is_valid: impl FnMut(Entry) -> bool,
    ) -> Option<Moment> {
        self.all_mut().filter_map(|outbox| outbox.retries.first(&mut is_valid)).min()
    }

    /// Returns how many entries wait in all retry queues, stale ones included.
    pub(super) fn waiting(&self) -> usize {
        let own = self.all_refusing().map(|own| own.outbox.retries.len());
        self.default.retries.len() + own.sum::<usize>()
    }

    /// Looks at up to `budget` entries of the retry queues, and drops those of cancelled tasks. Returns true when it
    /// has come to the end of all queues.
    pub(super) fn sweep(&mut self, mut budget: usize) -> bool {
        let all = [0].into_iter().chain(self.refusing.iter().copied());
        // The list may change between the slices. A sweep goes on with the next number that is still there.
        let left: Vec<_> = all.filter(|number| *number >= self.sweep_from).collect();
        for number in left {
            self.sweep_from = number;
            let outbox = match number {
                0 => Some(&mut self.default),
                _ => self.own.get_mut(&number).map(|own| &mut own.outbox),
            };
            if !outbox.is_none_or(|outbox| outbox.retries.sweep(&mut budget)) || budget == 0 {
                return false;
            }
        }
        self.sweep_from = 0;
        true
    }

    // ----- in flight -----------------------------------------------------------------------

    /// Remembers the tasks of a batch that the executor has taken, so that a close can claim them back (S29). Then
    /// tells producers how far the executor is behind.
    pub(super) fn taken(
        &mut self,
        target: &Target,
        batch: &DueBatch,
        refused: &[(Entry, bool)],
        backlog: &Backlog,
    ) {
        let entries = &batch.due;
        let mut back: Vec<_> = refused.iter().map(|(entry, _)| *entry).collect();
        back.sort_unstable();
        // A task that comes back may be of an earlier batch, so the numbers cannot just be subtracted. Its entry may
        // then be stale, while the executor keeps the live one, so whole entries are compared and not keys.
        let is_taken = |entry: &&Entry| back.binary_search(entry).is_err();
        let count =
            if back.is_empty() { entries.len() } else { entries.iter().filter(is_taken).count() };
        // Such tasks are over already, so there is nothing to remember.
        if batch.was_run_here() {
            if matches!(target, Target::Own(own) if !self.own.contains_key(&own.number)) {
                return; // an executor that runs all at once is never behind, and needs no outbox
            }
            self.of(target).finished += count as u64;
        } else if back.is_empty() && !entries.iter().any(|entry| entry.is_series()) {
            self.of(target).in_flight.extend(entries);
        } else {
            // The general case, one by one. The case above is a copy, and by far the most frequent.
            for entry in entries.iter().filter(is_taken) {
                if entry.is_series() {
                    self.series.push(*entry);
                } else {
                    self.of(target).in_flight.extend(slice::from_ref(entry));
                }
            }
        }
        let outbox = self.of(target);
        outbox.forget_over(count);
        backlog.tell(outbox.flow());
    }

    /// Forgets tasks that are over, and tells producers how far each executor is behind. The `backlog` is that of the
    /// scheduler's executor.
    pub(super) fn forget_over(&mut self, backlog: &Backlog) {
        self.default.forget_over(0);
        backlog.tell(self.default.flow());
        if self.own.is_empty() {
            return;
        }
        self.turns += 1;
        if self.turns < self.own.len() / OUTBOXES {
            return; // with very many executors this is not done in each turn
        }
        self.turns = 0;
        self.own.retain(|_, own| {
            own.outbox.forget_over(0);
            own.backlog.tell(own.outbox.flow());
            // Outboxes are made on demand, so one without tasks need not be kept.
            let is_empty = own.outbox.in_flight.len() == 0 && !own.outbox.retries.is_refusing();
            own.is_alive() && !is_empty
        });
    }

    /// Returns true if some executor has many tasks in flight, most of which may be over.
    pub(super) fn is_bloated(&self) -> bool {
        self.all().any(|outbox| outbox.in_flight.len() > MUCH)
    }

    /// Returns the factor by which the wait for the next scan is longer. It doubles with each scan that has brought
    /// little, so an executor that keeps a million tasks for a day costs few wake-ups (S7).
    pub(super) fn patience(&self) -> u32 {
        1 << self.scans_in_vain.min(16)
    }

    /// Begins to look at all tasks in flight. Returns true if [`scan`](Outboxes::scan) has something to do.
    pub(super) fn begin_scan(&mut self) -> bool {
        let in_flight = self.all().map(|outbox| outbox.in_flight.len()).sum::<usize>();
        // If the number has changed by a factor of two, the tasks are others than at the last scan.
        let is_as_before = in_flight > self.scanned / 2 && in_flight / 2 < self.scanned;
        self.scans_in_vain = if is_as_before { self.scans_in_vain + 1 } else { 0 };
        self.scanned = in_flight;
        self.series.forget_over();
        self.all_mut().for_each(|outbox| outbox.in_flight.begin_scan());
        self.all().any(|outbox| outbox.in_flight.is_scanning)
    }

    /// Goes on with the scans that have begun, each by so many tasks. Returns false when all have ended.
    pub(super) fn scan(&mut self, tasks: usize) -> bool {
        let mut goes_on = false;
        for outbox in self.all_mut().filter(|outbox| outbox.in_flight.is_scanning) {
            outbox.forget_over(tasks);
            goes_on |= outbox.in_flight.is_scanning;
        }
        goes_on
    }

    /// Takes out everything: the one-shots in flight and the refused tasks, each executor's in order, and the series in
    /// flight.
    pub(super) fn drain(&mut self) -> (Vec<Entry>, Vec<Entry>, Vec<Entry>) {
        let (mut in_flight, mut refused) = (Vec::new(), Vec::new());
        for outbox in self.all_mut() {
            in_flight.extend(outbox.in_flight.drain());
            refused.extend(outbox.retries.drain());
        }
        (in_flight, refused, self.series.drain())
    }

    /// Gives back room that a peak has left.
    pub(super) fn shrink(&mut self) {
        self.all_mut().for_each(|outbox| outbox.in_flight.shrink());
    }

    /// Panics with what is broken. Of very many executors it looks at some.
    pub(super) fn check_invariants(&self) {
        self.default.check_invariants();
        for (number, own) in self.own.iter().take(OUTBOXES) {
            own.outbox.check_invariants();
            let is_known = self.refusing.contains(number) || !own.is_refusing();
            assert!(is_known, "executor {number} refuses, and nothing retries");
        }
    }
}
