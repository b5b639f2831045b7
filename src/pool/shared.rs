//! The state that a pool, its tasks and its threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::builder::{AroundRuns, ShutdownPolicy};
use super::queue::{DelayedWorkQueue, SHORT};
use super::task::QueuedTask;
use super::workers::{WorkerSettings, Workers};
use crate::backpressure::{Backpressure, Flow, PendingLimit};
use crate::{Clock, PanicHook};

/// A thread that brings tasks is held back when the head of the queue is overdue by more than this, and more than
/// [`AHEAD`] tasks are.
const LATE: Duration = Duration::from_millis(20);
const AHEAD: u64 = SHORT as u64;

pub(super) struct Shared {
    clock: Arc<dyn Clock>,
    pub(super) lifecycle: Lifecycle,
    pub(super) limit: PendingLimit,
    pressure: Backpressure,
    pub(super) workers: Arc<Workers>,
    pub(super) on_panic: PanicHook,
    pub(super) around: AroundRuns,
}

impl Shared {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        policy: ShutdownPolicy,
        settings: WorkerSettings,
        (on_panic, around): (PanicHook, AroundRuns),
        limit: PendingLimit,
    ) -> Arc<Shared> {
        let queue = DelayedWorkQueue::with_clock(Arc::clone(&clock));
        let workers = Workers::new(queue, settings);
        let (lifecycle, pressure) = (Lifecycle::new(policy), Backpressure::new(AHEAD));
        Arc::new(Shared { clock, lifecycle, limit, pressure, workers, on_panic, around })
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Counts a task in. Returns false if the pool is shut down; then the task is not counted.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        if self.lifecycle.is_shut() {
            return false;
        }
        let is_in = self.lifecycle.enter();
        if !is_in {
            self.leave(); // it may be the last one: it was counted
        }
        is_in
    }

    /// Counts a task out. The last task of a pool that is shut down ends the threads.
    #[inline]
    pub(super) fn leave(&self) {
        if self.lifecycle.leave() {
            self.workers.close();
        }
    }

    /// Holds the calling thread back if the pool is behind with its work, except on one of its own threads.
    ///
    /// `head` is the deadline of the head of a long queue, and `now` a recent reading of the clock.
    #[inline]
    pub(super) fn hold_back(&self, head: Instant, now: Instant) {
        let is_late = now.saturating_duration_since(head) > LATE;
        if is_late && !self.workers.threads.has_this_thread() {
            self.hold_back_by_count();
        }
    }

    #[cold]
    fn hold_back_by_count(&self) {
        self.pressure.hold_back(|| {
            let now = self.now();
            let head_by = now.checked_sub(LATE).unwrap_or(now);
            let (overdue, passed) = self.workers.queue.overdue(now, head_by);
            Flow { ahead: overdue as u64, passed }
        });
    }

    pub(super) fn set_policy(&self, policy: ShutdownPolicy) {
        self.lifecycle.set_policy(policy);
        if self.lifecycle.is_shut() {
            self.withdraw_what_may_not_run();
        }
    }

    /// Refuses further tasks. Tasks that wait still run, or are withdrawn, as the policy says.
    pub(super) fn shutdown(&self) {
        let is_empty = self.lifecycle.shut();
        self.withdraw_what_may_not_run();
        if is_empty {
            self.workers.close();
        }
    }

    fn withdraw_what_may_not_run(&self) {
        // If the clock panics, nothing counts as due.
        let now = self.on_panic.catch(None, || self.now());
        for (deadline, task) in self.workers.queue.snapshot() {
            let is_due = now.is_some_and(|now| deadline <= now);
            let is_unwanted = !self.lifecycle.may_run(task.is_periodic(), is_due);
            // If it has run in the meantime, the last reference to its result may be dropped here.
            self.on_panic.catch(None, move || {
                is_unwanted.then(|| task.withdraw());
            });
        }
    }

    /// Refuses further tasks, and starts none. Returns the tasks that waited, in order.
    pub(super) fn shutdown_now(&self) -> Vec<(Instant, Arc<dyn QueuedTask>)> {
        self.lifecycle.shut_now();
        self.workers.close();
        self.workers.queue.take_all()
    }
}

/// Says if a pool is shut down, which tasks may still run, and how many tasks have not ended.
///
/// - A task is counted from before it enters the queue until it has ended, and a series until its last run has
///   ended. So nothing is left to do when the count is zero, wherever tasks are at that time.
/// - `shut`, `set_policy` and `enter` change one word, so of two steps one sees the other: a task that enters after `shut` is
///   told so, and of a shutdown and a new policy the second knows both. A task that is told so is counted until it has left
///   again, and so it may be the last one.
///
/// All accesses are `SeqCst`. What a step has done before is seen under the locks of the queue and of the threads.
pub(super) struct Lifecycle {
    /// The number of tasks times [`ONE`], [`SHUT`], [`NOW`], and the [`POLICY`].
    word: AtomicU64,
}

/// The bits of a [`ShutdownPolicy`].
const POLICY: u64 = 3;
const SHUT: u64 = 4;
/// No task may start any more.
const NOW: u64 = 8;
const ONE: u64 = 16;

impl Lifecycle {
    fn new(policy: ShutdownPolicy) -> Lifecycle {
        Lifecycle { word: AtomicU64::new(policy.bits()) }
    }

    #[inline]
    fn word(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }

    /// Counts a task in. Returns false if the pool is shut down; the task has to leave in both cases.
    #[inline]
    fn enter(&self) -> bool {
        self.word.fetch_add(ONE, Ordering::SeqCst) & SHUT == 0
    }

    /// Counts a task out. Returns true if it was the last one of a pool that is shut down.
    #[inline]
    fn leave(&self) -> bool {
        let before = self.word.fetch_sub(ONE, Ordering::SeqCst);
        debug_assert!(before >= ONE, "a task has left twice");
        before & SHUT != 0 && before < 2 * ONE
    }

    /// Shuts the pool down. Returns true if all tasks have ended.
    fn shut(&self) -> bool {
        self.word.fetch_or(SHUT, Ordering::SeqCst) < ONE
    }

    fn shut_now(&self) {
        self.word.fetch_or(SHUT | NOW, Ordering::SeqCst);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.word() & SHUT != 0
    }

    /// Returns true if no task may start any more.
    pub(super) fn is_shut_now(&self) -> bool {
        self.word() & NOW != 0
    }

    /// Returns true if a task that waits may still run. A one-shot that is due is not delayed any more, so the policy
    /// does not stop it.
    #[inline]
    pub(super) fn may_run(&self, is_periodic: bool, is_due: bool) -> bool {
        let word = self.word();
        let policy = ShutdownPolicy::from_bits(word & POLICY);
        let is_left =
            if is_periodic { policy.continue_periodic } else { policy.run_delayed || is_due };
        word & SHUT == 0 || word & NOW == 0 && is_left
    }

    /// Returns true if a series may run again.
    pub(super) fn may_repeat(&self) -> bool {
        self.may_run(true, false)
    }

    pub(super) fn policy(&self) -> ShutdownPolicy {
        ShutdownPolicy::from_bits(self.word() & POLICY)
    }

    fn set_policy(&self, policy: ShutdownPolicy) {
        let with_policy = |word| Some(word & !POLICY | policy.bits());
        _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with_policy);
    }
}
