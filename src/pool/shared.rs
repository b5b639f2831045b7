//! The state that a pool, its tasks and its threads share, and how a task comes in.
//!
//! ```text
//!   schedule ---> enqueue ---> offer ---> the queue ---> next_task ---> task::run ---> Job::run ---> the future
//!   scheduled     here                    queue          workers        task           job           future
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::builder::{PoolBuilder, ShutdownPolicy};
use super::future::ResultCell;
use super::queue::{DelayedWorkQueue, SHORT};
use super::task::{PoolTask, Returns};
use super::workers::Threads;
use crate::ScheduleError;
use crate::backpressure::{Backpressure, PendingLimit};
use crate::job::{AtomicPosition, Job, Owner, Position, Run, Work};

/// A thread that brings tasks is held back when the head of the queue is overdue by more than this, and more than
/// [`AHEAD`] tasks are.
const LATE: Duration = Duration::from_millis(20);
const AHEAD: u64 = SHORT as u64;

pub(super) struct Shared {
    pub(super) settings: PoolBuilder,
    pub(super) queue: DelayedWorkQueue<QueuedTask>,
    pub(super) threads: Threads,
    pub(super) lifecycle: Lifecycle,
    pub(super) limit: PendingLimit,
    pressure: Backpressure,
}

/// A task as the queue has it, without its types.
pub(super) type QueuedTask = Arc<dyn Run<Shared>>;

impl Shared {
    pub(super) fn new(settings: PoolBuilder) -> Arc<Shared> {
        Arc::new(Shared {
            queue: DelayedWorkQueue::with_clock(Arc::clone(&settings.clock)),
            threads: Threads::new(&settings),
            lifecycle: Lifecycle::new(settings.policy),
            limit: PendingLimit::new(settings.max_pending),
            pressure: Backpressure::new(AHEAD),
            settings,
        })
    }

    /// Takes a task in, or returns the reason and the work. If the pool is behind with its work and `may_wait`, holds the
    /// calling thread back, unless that is one of the pool's own.
    pub(super) fn enqueue<W: Work>(
        self: &Arc<Self>,
        now: Instant,
        deadline: Instant,
        may_wait: bool,
        work: W,
    ) -> Result<Arc<PoolTask<W>>, (ScheduleError, W)> {
        if self.lifecycle.is_shut() {
            return Err((ScheduleError::Closed, work)); // so that calls after the end contend for nothing
        }
        if !self.lifecycle.enter() {
            self.leave(); // it may be the last one: it was counted
            return Err((ScheduleError::Closed, work));
        }
        if !self.limit.enter() {
            self.leave();
            return Err((ScheduleError::Full, work));
        }
        let returns = Returns { shared: Arc::clone(self), result: ResultCell::new() };
        let task = Job::new(returns, work);
        let queued = Arc::<PoolTask<W>>::clone(&task);
        let offered = self.offer(queued, task.position(), deadline, now);
        // If a shutdown came in between, it may have searched the queue before the task was there.
        let may_run = self.lifecycle.may_run(W::IS_PERIODIC, deadline <= now);
        let reason = match offered {
            Ok(_) if !may_run && W::IS_PERIODIC => {
                task.withdraw(); // it may have run, so it was accepted
                return Ok(task);
            }
            Ok(head) if may_run => {
                if self.start_if_needed() {
                    let head = head.filter(|_| may_wait);
                    // The task is in, so a clock that panics ends the wait, and not the call.
                    let wait = |head| _ = self.hook().catch(None, || self.hold_back(head, now));
                    head.into_iter().for_each(wait);
                    return Ok(task);
                }
                ScheduleError::NoThread
            }
            _ => ScheduleError::Closed,
        };
        // If the work does not come back, the task has run, or its future tells what became of it.
        let Some(work) = task.take_back() else { return Ok(task) };
        self.remove(task.position());
        self.limit.leave();
        self.leave();
        Err((reason, work))
    }

    /// Puts a task into the queue, and notes its key in its position. Returns the head's deadline if the queue is long and behind, or the task
    /// if the queue is closed.
    pub(super) fn offer(
        &self,
        task: QueuedTask,
        position: &AtomicPosition,
        deadline: Instant,
        now: Instant,
    ) -> Result<Option<Instant>, QueuedTask> {
        let note = |key| position.set(Position::Delayed(key));
        self.queue.offer_noted(deadline, task, Some(now), note)
    }

    /// Counts a task out. The last task of a pool that is shut down ends the threads.
    #[inline]
    pub(super) fn leave(&self) {
        if self.lifecycle.leave() {
            self.close();
        }
    }

    /// Holds a producer back that is far ahead of the threads. `head` is the deadline of the head of a long queue, and `now` a
    /// recent reading of the clock.
    #[cold]
    fn hold_back(&self, head: Instant, now: Instant) {
        let is_late = now.saturating_duration_since(head) > LATE;
        if is_late && !self.threads.pool.has_this_thread() {
            self.pressure.hold_back(|| {
                let now = self.now();
                self.queue.flow(now, now.checked_sub(LATE).unwrap_or(now))
            });
        }
    }

    pub(super) fn set_policy(&self, policy: ShutdownPolicy) {
        self.lifecycle.set_policy(policy);
        if self.lifecycle.is_shut() {
            self.withdraw_what_may_not_run();
        }
    }

    /// Refuses further tasks. Tasks that wait still run, or are withdrawn, as the policy says.
    pub(super) fn shutdown(&self) {
        let is_empty = self.lifecycle.shut(SHUT);
        self.withdraw_what_may_not_run();
        if is_empty {
            self.close();
        }
    }

    fn withdraw_what_may_not_run(&self) {
        // If the clock panics, nothing counts as due.
        let now = self.hook().catch(None, || self.now());
        for (deadline, task) in self.queue.snapshot() {
            let is_due = now.is_some_and(|now| deadline <= now);
            let is_unwanted = !self.lifecycle.may_run(task.is_periodic(), is_due);
            // If it has run in the meantime, the last reference to its result may be dropped here.
            self.hook().catch(None, move || {
                is_unwanted.then(|| task.withdraw());
            });
        }
    }

    /// Refuses further tasks, and starts none. Returns the tasks that waited, in order.
    pub(super) fn shutdown_now(&self) -> Vec<(Instant, QueuedTask)> {
        self.lifecycle.shut(SHUT | NOW);
        self.close();
        self.queue.take_all()
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

    /// Sets [`SHUT`], or [`NOW`] too. Returns true if all tasks have ended.
    fn shut(&self, bits: u64) -> bool {
        self.word.fetch_or(bits, Ordering::SeqCst) < ONE
    }

    pub(super) fn is_shut(&self) -> bool {
        self.word.load(Ordering::SeqCst) & SHUT != 0
    }

    /// Returns true if no task may start any more.
    pub(super) fn is_shut_now(&self) -> bool {
        self.word.load(Ordering::SeqCst) & NOW != 0
    }

    /// Returns true if a task that waits may still run. A one-shot that is due is not delayed any more, so the policy
    /// does not stop it.
    #[inline]
    pub(super) fn may_run(&self, is_periodic: bool, is_due: bool) -> bool {
        let word = self.word.load(Ordering::SeqCst);
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
        ShutdownPolicy::from_bits(self.word.load(Ordering::SeqCst) & POLICY)
    }

    fn set_policy(&self, policy: ShutdownPolicy) {
        let with_policy = |word| Some(word & !POLICY | policy.bits());
        _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with_policy);
    }
}
