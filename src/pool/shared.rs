//! What a pool, its jobs and its threads share.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::key::Key;
use super::policy::{Gate, ShutdownPolicy};
use super::queue::{DelayedWorkQueue, FEW, Offered};
use super::task::Run;
use super::workers::{Crew, Staffing};
use crate::executor::backpressure::{Backpressure, Flow};
use crate::executor::deadlock::PoolThreads;
use crate::job::PendingLimit;
use crate::{Clock, PanicHook};

/// So long the head of the queue may be overdue, and so many tasks with it, before who brings more is held
/// back.
const LATE: Duration = Duration::from_millis(20);
const AHEAD: u64 = FEW as u64;

pub(super) struct Shared {
    clock: Arc<dyn Clock>,
    gate: Gate,
    pub(super) limit: PendingLimit,
    pressure: Backpressure,
    crew: Arc<Crew>,
    pub(super) on_panic: PanicHook,
}

impl Shared {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        policy: ShutdownPolicy,
        staffing: Staffing,
        on_panic: PanicHook,
        limit: PendingLimit,
    ) -> Arc<Shared> {
        let queue = DelayedWorkQueue::with_clock(Arc::clone(&clock));
        let crew = Crew::new(queue, staffing);
        let (gate, pressure) = (Gate::new(policy), Backpressure::new(AHEAD));
        Arc::new(Shared { clock, gate, limit, pressure, crew, on_panic })
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// How many wait.
    pub(super) fn pending(&self) -> usize {
        self.crew.queue.len()
    }

    // ----- the way of a job ----------------------------------------------------------------

    /// Whoever gets in has to leave.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        if self.gate.is_shut() {
            return false;
        }
        let is_in = self.gate.enter();
        if !is_in {
            self.leave();
        }
        is_in
    }

    #[inline]
    pub(super) fn leave(&self) {
        if self.gate.leave() {
            self.crew.dismiss();
        }
    }

    #[inline]
    pub(super) fn may_run(&self, is_periodic: bool) -> bool {
        self.gate.may_run(is_periodic)
    }

    /// Notes the key before anybody can have the job. `None` when the queue is closed.
    #[inline]
    pub(super) fn offer(
        &self,
        deadline: Instant,
        job: Arc<dyn Run>,
        note: impl FnOnce(Key),
    ) -> Option<Offered> {
        self.crew.queue.offer_noted(deadline, job, note).ok()
    }

    /// Holds the calling thread back, if the pool is behind with its work, and this is none of its threads. The
    /// head of a long queue was due at `head`, and a moment ago it was `now`.
    #[inline]
    pub(super) fn hold_back(&self, head: Instant, now: Instant) {
        if now.saturating_duration_since(head) > LATE && !self.crew.threads.has_this_thread() {
            self.hold_back_by_count();
        }
    }

    #[cold]
    fn hold_back_by_count(&self) {
        self.pressure.hold_back(|| {
            let now = self.now();
            let head_by = now.checked_sub(LATE).unwrap_or(now);
            let (overdue, passed) = self.crew.queue.overdue(now, head_by);
            Flow { ahead: overdue as u64, passed }
        });
    }

    #[inline]
    pub(super) fn take_out(&self, key: Key) -> Option<Arc<dyn Run>> {
        self.crew.queue.remove(key)
    }

    pub(super) fn deadline_of(&self, key: Key) -> Option<Instant> {
        self.crew.queue.deadline_of(key)
    }

    /// Starts a thread, if one is needed.
    #[inline]
    pub(super) fn call(&self) -> io::Result<()> {
        self.crew.call()
    }

    pub(super) fn threads(&self) -> PoolThreads {
        self.crew.threads
    }

    /// Returns the threads that run the tasks of the queue. The tasks of a closed queue have been handed out, and any
    /// thread may run them: then it returns `None`.
    pub(super) fn who_runs(&self) -> Option<PoolThreads> {
        Some(self.threads()).filter(|_| !self.crew.queue.is_closed())
    }

    /// Runs a piece of the user's code whose panic has no better place to go.
    pub(super) fn quietly(&self, code: impl FnOnce()) {
        self.on_panic.catch(code);
    }

    // ----- the end -------------------------------------------------------------------------

    pub(super) fn policy(&self) -> ShutdownPolicy {
        self.gate.policy()
    }

    pub(super) fn set_policy(&self, policy: ShutdownPolicy) {
        self.gate.set_policy(policy);
        if self.gate.is_shut() {
            self.withdraw_what_may_not_run();
        }
    }

    /// Takes nothing more; what waits runs, or is withdrawn, as the policy says.
    pub(super) fn shutdown(&self) {
        let is_empty = self.gate.shut();
        self.withdraw_what_may_not_run();
        if is_empty {
            self.crew.dismiss();
        }
    }

    /// Takes nothing more, and starts nothing more. What waited, in order.
    pub(super) fn shutdown_now(&self) -> Vec<(Instant, Arc<dyn Run>)> {
        self.gate.shut_now();
        self.crew.dismiss();
        self.crew.queue.take_all()
    }

    fn withdraw_what_may_not_run(&self) {
        let waiting = self.crew.queue.snapshot();
        for job in waiting {
            let is_unwanted = !self.may_run(job.is_periodic());
            // It may have run meanwhile, and go with its result here.
            self.quietly(move || {
                is_unwanted.then(|| job.withdraw());
            });
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    pub(super) fn is_terminated(&self) -> bool {
        self.crew.is_terminated()
    }

    pub(super) fn wait_for_the_end(&self, timeout: Duration) -> bool {
        self.crew.wait_for_the_end(timeout)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduledThreadPool")
            .field("pending", &self.pending())
            .field("is_shutdown", &self.is_shut())
            .finish_non_exhaustive()
    }
}
