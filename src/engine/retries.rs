//! What executors have refused: a [`RetryQueue`] for each that refuses.
//!
//! ```text
//!                  due                  a batch that is taken
//!   ready queue ---------> hand over ---------------------------> the executor: its tasks are remembered nowhere else
//!                           |    ^
//!                   refused |    | offered again: one task; if that is taken two, then four ...
//!                           v    |
//!                        retry queue [ e e e e ]   in order of deadline
//! ```
//!
//! A task that an executor has taken stays in its holder, which tells whose it is. So a close finds there what no executor
//! has started (S29). How far an executor is behind is counted in its [`Backlog`].

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::bounds::RETRY_QUEUES;
use super::retry_queue::RetryQueue;
use crate::backpressure::Backlog;
use crate::clock::tick::Moment;
use crate::executor::own_executor::OwnExecutor;
use crate::wheel::entry::Entry;

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

/// The retry queue of a task's own executor. It does not keep the executor alive.
struct OwnQueue {
    executor: Weak<OwnExecutor>,
    backlog: Arc<Backlog>,
    queue: RetryQueue,
}

impl OwnQueue {
    fn new(executor: &Arc<OwnExecutor>) -> OwnQueue {
        let (backlog, queue) = (Arc::clone(&executor.backlog), RetryQueue::default());
        OwnQueue { executor: Arc::downgrade(executor), backlog, queue }
    }

    fn is_alive(&self) -> bool {
        self.executor.strong_count() > 0
    }

    fn is_refusing(&self) -> bool {
        self.queue.is_refusing() && self.is_alive()
    }
}

/// The retry queues of all executors.
#[derive(Default)]
pub(super) struct Retries {
    /// The queue of the scheduler's executor, whose number is 0.
    default: RetryQueue,
    /// The queues of tasks' own executors that refuse, by the number of the executor. A number is used again when its
    /// executor is gone. By then nothing in the queue is still to run, because each task keeps its executor alive.
    own: BTreeMap<u32, OwnQueue>,
    /// The executor of the last retry. The next turn begins with the one behind it.
    pub(super) retried: u32,
    /// The executor whose queue a sweep goes on with.
    sweep_from: u32,
}

impl Retries {
    /// Returns the retry queue of an executor.
    pub(super) fn of(&mut self, target: &Target) -> &mut RetryQueue {
        let Target::Own(own) = target else { return &mut self.default };
        // The number may have been given to a new executor since, and the old one's queue is of no use any more.
        let entry = self.own.entry(own.number).or_insert_with(|| OwnQueue::new(own));
        if !entry.is_alive() {
            *entry = OwnQueue::new(own);
        }
        &mut entry.queue
    }

    pub(super) fn is_refusing(&self, target: &Target) -> bool {
        match target {
            Target::Default => self.default.is_refusing(),
            Target::TickThread => false,
            Target::Own(own) => self.own.get(&own.number).is_some_and(OwnQueue::is_refusing),
        }
    }

    /// Returns the queues with the numbers of their executors, in the order of these.
    fn all(&self) -> impl Iterator<Item = (u32, &RetryQueue)> {
        let own = self.own.iter().map(|(number, own)| (*number, &own.queue));
        [(0, &self.default)].into_iter().chain(own)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = (u32, &mut RetryQueue)> {
        let own = self.own.iter_mut().map(|(number, own)| (*number, &mut own.queue));
        [(0, &mut self.default)].into_iter().chain(own)
    }

    /// Tells producers how much waits here. Executors that have recovered, or are gone, leave the list. The `backlog` is that
    /// of the scheduler's executor.
    pub(super) fn tell(&mut self, backlog: &Backlog) {
        backlog.set_refused(self.default.len());
        self.own.retain(|_, own| {
            own.backlog.set_refused(own.queue.len());
            own.is_refusing()
        });
    }

    /// Returns when to retry next with some executor.
    #[inline]
    pub(super) fn retry_at(&self) -> Option<Moment> {
        let own = self.own.values().filter_map(|own| own.queue.retry_at());
        own.chain(self.default.retry_at()).min()
    }

    /// Returns the executors whose pause is over, or nearly so. They take turns at being the first.
    pub(super) fn to_retry(&self, now: Moment) -> Vec<Target> {
        // An executor whose pause is nearly over comes along when another one has woken the thread, so many of them
        // cost few wake-ups.
        let default = self.default.may_retry(now).then_some(Target::Default);
        let own = self.own.values().filter(|own| own.queue.may_retry(now));
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
        self.all_mut().filter_map(|(_, queue)| queue.first(&mut is_valid)).min()
    }

    /// Returns how many entries wait, stale ones included.
    pub(super) fn waiting(&self) -> usize {
        self.all().map(|(_, queue)| queue.len()).sum()
    }

    /// Looks at up to `budget` entries, and drops those of cancelled tasks. Returns true when it has come to the end of all
    /// queues.
    pub(super) fn sweep(&mut self, mut budget: usize) -> bool {
        // The list may change between the slices. A sweep goes on with the next number that is still there.
        let from = self.sweep_from;
        let left = self.all_mut().find_map(|(number, queue)| {
            let is_done = number < from || queue.sweep(&mut budget) && budget > 0;
            (!is_done).then_some(number)
        });
        self.sweep_from = left.unwrap_or(0);
        left.is_none()
    }

    /// Takes everything out, each executor's tasks in order.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        self.all_mut().flat_map(|(_, queue)| queue.drain()).collect()
    }

    /// Panics with what is broken. Of very many executors it looks at some.
    pub(super) fn check_invariants(&self) {
        self.all().take(RETRY_QUEUES).for_each(|(_, queue)| queue.check_invariants());
    }
}
