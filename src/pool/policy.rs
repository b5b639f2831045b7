//! What a shutdown leaves running, and who may still come in.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What becomes of waiting tasks at a [`shutdown`](super::ScheduledThreadPool::shutdown).
///
/// By default delayed tasks still run, and periodic ones stop. It can be changed at any time, after the
/// shutdown too.
///
/// ```
/// use tickwheel::pool::{ScheduledThreadPool, ShutdownPolicy};
///
/// let pool = ScheduledThreadPool::new(1);
/// pool.set_shutdown_policy(ShutdownPolicy::default().run_delayed(false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShutdownPolicy {
    run_delayed: bool,
    continue_periodic: bool,
}

impl ShutdownPolicy {
    /// Whether one-shot tasks that wait still run. Default: yes.
    #[doc(alias = "setExecuteExistingDelayedTasksAfterShutdownPolicy")]
    #[must_use]
    pub fn run_delayed(self, yes: bool) -> Self {
        ShutdownPolicy { run_delayed: yes, ..self }
    }

    /// Whether periodic tasks go on, until they are cancelled or break. Default: no.
    #[doc(alias = "setContinueExistingPeriodicTasksAfterShutdownPolicy")]
    #[must_use]
    pub fn continue_periodic(self, yes: bool) -> Self {
        ShutdownPolicy { continue_periodic: yes, ..self }
    }

    fn bits(self) -> u8 {
        u8::from(self.run_delayed) | u8::from(self.continue_periodic) << 1
    }

    fn from_bits(bits: u8) -> ShutdownPolicy {
        ShutdownPolicy { run_delayed: bits & 1 != 0, continue_periodic: bits & 2 != 0 }
    }
}

impl Default for ShutdownPolicy {
    fn default() -> ShutdownPolicy {
        ShutdownPolicy { run_delayed: true, continue_periodic: false }
    }
}

/// Who may come in, and how many are inside: tasks that were accepted and have not ended.
///
/// - POLICY-1 A task is counted before it enters the queue, and until it has ended, a periodic one until its
///   series has. So the pool is empty when the count is zero, wherever tasks are just then.
/// - POLICY-2 `shut` and `enter` are on one word: who comes in after it is told so. Until it has turned back
///   it counts as well, and so it may be the last one to leave.
pub(super) struct Gate {
    inside: AtomicU64,
    policy: AtomicU8,
}

const SHUT: u64 = 1;
/// Nothing starts any more.
const NOW: u64 = 2;
const ONE: u64 = 4;

impl Gate {
    pub(super) fn new(policy: ShutdownPolicy) -> Gate {
        Gate { inside: AtomicU64::new(0), policy: AtomicU8::new(policy.bits()) }
    }

    /// POLICY-1, POLICY-2. Whoever calls this has to leave, let in or not.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        self.inside.fetch_add(ONE, Ordering::SeqCst) & SHUT == 0
    }

    /// Whether it was the last one that a shut pool waited for.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let inside = self.inside.fetch_sub(ONE, Ordering::SeqCst) - ONE;
        inside & SHUT != 0 && inside < ONE
    }

    /// Whether nobody is inside.
    pub(super) fn shut(&self) -> bool {
        self.inside.fetch_or(SHUT, Ordering::SeqCst) < ONE
    }

    pub(super) fn shut_now(&self) {
        self.inside.fetch_or(SHUT | NOW, Ordering::SeqCst);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.inside.load(Ordering::SeqCst) & SHUT != 0
    }

    /// Whether a waiting task may still run.
    #[inline]
    pub(super) fn may_run(&self, is_periodic: bool) -> bool {
        let inside = self.inside.load(Ordering::SeqCst);
        let policy = self.policy();
        let is_left = if is_periodic { policy.continue_periodic } else { policy.run_delayed };
        inside & SHUT == 0 || inside & NOW == 0 && is_left
    }

    #[inline]
    pub(super) fn policy(&self) -> ShutdownPolicy {
        ShutdownPolicy::from_bits(self.policy.load(Ordering::SeqCst))
    }

    pub(super) fn set_policy(&self, policy: ShutdownPolicy) {
        self.policy.store(policy.bits(), Ordering::SeqCst);
    }
}
