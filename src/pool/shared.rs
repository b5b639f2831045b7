//! The state that a pool, its tasks and its threads share, and how a task comes in.
//!
//! ```text
//!   schedule ---> enqueue ---> offer ---> the queue ---> work ---> task::run ---> Job::run ---> the future
//!   scheduled     here                    queue          workers   task           job           future
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::{PoolBuilder, ShutdownPolicy};
use super::future::ResultCell;
use super::queue::{DelayedWorkQueue, SHORT};
use super::task::{PoolTask, Returns};
use super::workers::Threads;
use crate::ScheduleError;
use crate::backpressure::{Backpressure, PendingLimit};
use crate::job::{Job, Owner, Position, Run, Work};
use crate::platform::sync::lock_std;
use crate::wheel::WheelKey;

/// A thread that brings tasks is held back when the head of the queue is overdue by this at least, and more than [`AHEAD`] tasks
/// are overdue.
const LATE: Duration = Duration::from_millis(20);
const AHEAD: u64 = SHORT as u64;

pub(super) struct Shared {
    pub(super) settings: PoolBuilder,
    pub(super) queue: DelayedWorkQueue<QueuedTask>,
    pub(super) threads: Threads,
    pub(super) limit: PendingLimit,
    pressure: Backpressure,
}

/// A task as the queue has it, without its types.
pub(super) type QueuedTask = Arc<dyn Run<Shared>>;

impl Shared {
    pub(super) fn new(settings: PoolBuilder) -> Arc<Shared> {
        Arc::new(Shared {
            queue: DelayedWorkQueue::late_after(LATE, Arc::clone(&settings.clock)),
            threads: Threads::new(&settings),
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
        if !self.limit.enter() {
            let is_shut = self.queue.is_ending();
            return Err((if is_shut { ScheduleError::Closed } else { ScheduleError::Full }, work));
        }
        let returns = Returns { shared: Arc::clone(self), result: ResultCell::new() };
        let task = Job::new(returns, work);
        let queued = Arc::<PoolTask<W>>::clone(&task);
        let mut noted = WheelKey::NONE;
        let note = |key| {
            noted = key;
            task.position().set(Position::Delayed(key));
        };
        let offered = self.queue.offer_noted(deadline, queued, Some(now), |is_shut| !is_shut, note);
        let reason = match offered {
            Ok((has_taker, is_behind)) if has_taker || self.start_if_needed() => {
                if is_behind && may_wait {
                    self.hold_back();
                }
                return Ok(task);
            }
            // A thread of the pool or a `shutdown_now` may have taken the task out in the meantime. Then it was accepted. If this
            // call takes it out, nobody else will run it, and it is refused.
            Ok(_) if !self.take_out(noted) => return Ok(task),
            Ok(_) => ScheduleError::NoThread,
            Err(_) => ScheduleError::Closed,
        };
        // A shutdown that found it in the queue may have withdrawn it. Then its future tells so.
        let Some(work) = task.take_back() else { return Ok(task) };
        self.limit.leave();
        Err((reason, work))
    }

    /// Takes a task out of the queue. Returns false if somebody else has done so.
    pub(super) fn take_out(&self, key: WheelKey) -> bool {
        let Some((_task, is_over)) = self.queue.remove_at(key) else { return false };
        if is_over {
            self.look_again(); // the threads have nothing to wait for any more
        }
        true
    }

    /// Holds a producer back that is far ahead of the threads, and is none of them.
    #[cold]
    fn hold_back(&self) {
        if !self.threads.pool.has_this_thread() {
            let look = || self.queue.flow(self.now());
            // The task is in, so a clock that panics ends the wait, and not the call.
            self.hook().catch(None, || self.pressure.hold_back(look));
        }
    }

    pub(super) fn set_policy(&self, policy: ShutdownPolicy) {
        *lock_std(&self.settings.policy) = policy;
        if self.queue.is_ending() {
            self.withdraw_what_may_not_run();
        }
    }

    /// Refuses further tasks. Tasks that wait still run, or are withdrawn, as the policy says.
    pub(super) fn shutdown(&self) {
        self.queue.end_when_empty();
        self.withdraw_what_may_not_run();
        self.look_again();
    }

    /// Returns true if a task that waits may still run. A one-shot that is due is not delayed any more, so the policy does not
    /// stop it.
    pub(super) fn may_run(&self, is_shut: bool, is_periodic: bool, is_due: bool) -> bool {
        let policy = if is_shut { self.policy() } else { return true };
        if is_periodic { policy.continue_periodic } else { policy.run_delayed || is_due }
    }

    pub(super) fn policy(&self) -> ShutdownPolicy {
        *lock_std(&self.settings.policy)
    }

    fn withdraw_what_may_not_run(&self) {
        // If the clock panics, nothing counts as due.
        let now = self.hook().catch(None, || self.now());
        for (deadline, task) in self.queue.snapshot() {
            let is_due = now.is_some_and(|now| deadline <= now);
            let is_unwanted = !self.may_run(true, task.is_periodic(), is_due);
            // If it has run in the meantime, the last reference to its result may be dropped here.
            self.hook().catch(None, move || {
                is_unwanted.then(|| task.withdraw());
            });
        }
    }

    /// Refuses further tasks, and starts none. Returns the tasks that waited, in order.
    pub(super) fn shutdown_now(&self) -> Vec<(Instant, QueuedTask)> {
        self.queue.close();
        self.look_again();
        self.queue.take_all()
    }
}
