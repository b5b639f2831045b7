//! One task of a pool: a [`Job`], and what it comes to.
//!
//! The job has the states, and the cell beside it the result. The pool, as the job's owner, has the queue.
//!
//! - RESULT-1 Whatever ends the job resolves the cell: its last run, a withdrawal, or a cancel, which is the end of a series
//!   at once, also while it runs. So no future waits in vain. The first result stands.
//! - RESULT-2 A task's key is noted under the queue's lock, before anybody else can take the task: at its first offer, before
//!   there is a handle; at the later ones of a series under the job's lock as well (JOB-5 of [`job`](crate::job)), and a
//!   handle that ends the task reads the key when it has: then there are no more offers. What the queue does with an
//!   item under its own lock is to move it.
//! - RESULT-3 A series waits in the queue from the moment at which its next run became possible: the later of its planned
//!   time and the end of the run before. Ordered by the planned time alone, a series whose runs take longer than its
//!   period would always come first, and nothing else would ever run. The phase goes by the plan.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::future::{JoinError, Outcome, PanicPayload, ResultCell};
use super::key::KeyNote;
use super::queue::Offered;
use super::shared::Shared;
use crate::executor::deadlock::{Waiting, wait_for};
use crate::job::{Job, Named, NamedOnce, Once, Owner, Ran, Series, Work};
use crate::{Cancel, Cancellable, DueTask, PanicHook, Repeat};

/// Work that comes to something.
pub(super) trait Call: Named + Sized {
    const IS_PERIODIC: bool = false;
    type Output: Send;

    /// Runs it, or what of it is to run now. `Break` is the end.
    fn call(work: &mut Option<Self>) -> ControlFlow<Self::Output>;

    /// When it is due again, after a run that has ended now.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

impl<T: Send, F: FnOnce() -> T + Send + 'static> Call for Once<F> {
    type Output = T;

    fn call(work: &mut Option<Self>) -> ControlFlow<T> {
        let Once(f) = work.take().expect("a task runs once"); // JOB-1 of `job`
        ControlFlow::Break(f())
    }
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Call for Series<F> {
    const IS_PERIODIC: bool = true;
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        work.as_mut().map_or(ControlFlow::Break(()), |series| (series.f)().flow())
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        Work::next_run(self, ended)
    }
}

impl Call for NamedOnce {
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        work.take().into_iter().for_each(|named| (named.task)());
        ControlFlow::Break(())
    }
}

/// A task of a scheduler.
pub(super) struct Due(pub(super) DueTask);

impl Named for Due {
    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl Call for Due {
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        work.take().into_iter().for_each(|Due(task)| task.run());
        ControlFlow::Break(())
    }
}

/// A task as the queue has it, without its types.
pub(super) trait Run: Send + Sync {
    /// Runs it, if it still waits, and sees to its next run.
    fn run(self: Arc<Self>);
    /// Runs it here and now, for the last time.
    fn run_for_the_last_time(&self);
    /// Ends it, unless it runs or has ended.
    fn withdraw(&self);
    fn is_periodic(&self) -> bool;
}

pub(super) struct PoolTask<W: Call> {
    job: Job<W, Shared, Arc<Shared>>,
    result: ResultCell<W::Output>,
}

impl Owner for Shared {
    type Position = KeyNote;

    fn now(&self) -> Instant {
        Shared::now(self)
    }

    fn hook(&self) -> &PanicHook {
        &self.on_panic
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    fn remove(&self, key: &KeyNote) {
        drop(self.take_out(key.get()));
    }

    fn has_ended(&self) {
        self.leave();
    }
}

impl<W: Call> PoolTask<W> {
    pub(super) fn new(shared: &Arc<Shared>, work: W) -> Arc<Self> {
        let job = Job::with(Arc::clone(shared), work, W::IS_PERIODIC);
        Arc::new(PoolTask { job, result: ResultCell::new() })
    }

    fn shared(&self) -> &Arc<Shared> {
        self.job.owner_ref()
    }

    /// Puts it into the queue; RESULT-2. `None` when that is closed.
    pub(super) fn offer(self: &Arc<Self>, deadline: Instant) -> Option<Offered> {
        let this = Arc::<Self>::clone(self);
        self.shared().offer(deadline, this, |key| self.job.position().set(key))
    }

    /// Takes its work back, if it still waits; then it never was.
    pub(super) fn take_back(&self) -> Option<W> {
        let work = self.job.take_back()?;
        self.shared().remove(self.job.position());
        self.shared().no_longer_pending();
        self.shared().leave();
        Some(work)
    }

    /// One run: when it is due again, or what it has come to.
    fn run_once(&self, work: &mut Option<W>) -> ControlFlow<Result<W::Output, JoinError>, Instant> {
        let shared = self.shared();
        let name = work.as_ref().map_or("a task", Named::name);
        let told = |panic: Box<dyn Any + Send>| {
            shared.on_panic.tell_named(name, &*panic);
            ControlFlow::Break(Err(JoinError::Panicked(PanicPayload::new(panic))))
        };
        match catch_unwind(AssertUnwindSafe(|| W::call(work))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(value)) => return ControlFlow::Break(Ok(value)),
            Err(panic) => return told(panic),
        }
        let (Some(work), true) = (work, shared.may_run(W::IS_PERIODIC)) else {
            return ControlFlow::Break(Err(JoinError::Cancelled));
        };
        let possible = || {
            let ended = shared.now();
            work.next_run(ended).max(ended) // RESULT-3
        };
        catch_unwind(AssertUnwindSafe(possible)).map_or_else(told, ControlFlow::Continue)
    }

    /// RESULT-1.
    fn resolve(&self, result: Result<W::Output, JoinError>) {
        self.result.resolve(result).into_iter().for_each(|told| told.tell(&self.shared().on_panic));
    }
}

impl<W: Call> Run for PoolTask<W> {
    fn run(self: Arc<Self>) {
        let shared = Arc::clone(self.shared());
        let (mut result, mut is_in) = (Err(JoinError::Cancelled), true);
        let run = |work: &mut Option<W>| match self.run_once(work) {
            ControlFlow::Continue(possible) => Some(possible),
            ControlFlow::Break(ended) => {
                result = ended;
                None
            }
        };
        let put_back = |possible| is_in = self.offer(possible).is_some();
        match self.job.run_with(&shared, run, put_back) {
            Ran::Not => {}
            Ran::ForTheLastTime => self.resolve(result),
            // A shutdown may have looked through the queue meanwhile.
            Ran::Again(_) if is_in && shared.may_run(W::IS_PERIODIC) => {}
            Ran::Again(_) => self.withdraw(),
        }
        // What it was for may be dropped with it: a result that nobody has taken.
        // And until that is gone its place stays taken: this thread is at work on that address.
        shared.quietly(|| drop(self));
    }

    fn run_for_the_last_time(&self) {
        let mut result = Err(JoinError::Cancelled);
        let run = |work: &mut Option<W>| {
            if let ControlFlow::Break(ended) = self.run_once(work) {
                result = ended;
            }
            None
        };
        if self.job.run_with(self.shared(), run, |_| ()) == Ran::ForTheLastTime {
            self.resolve(result);
        }
    }

    fn withdraw(&self) {
        if self.job.withdraw() {
            self.resolve(Err(JoinError::Cancelled));
        }
    }

    fn is_periodic(&self) -> bool {
        W::IS_PERIODIC
    }
}

impl<W: Call> Cancel for PoolTask<W> {
    fn cancel(&self) -> bool {
        let is_won = self.job.cancel();
        if is_won {
            self.resolve(Err(JoinError::Cancelled));
        }
        is_won
    }

    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    fn is_done(&self) -> bool {
        self.job.is_done()
    }
}

impl<W: Call> Outcome<W::Output> for PoolTask<W> {
    fn result(&self) -> &ResultCell<W::Output> {
        &self.result
    }

    fn cancel(&self) -> bool {
        Cancel::cancel(self)
    }

    fn is_periodic(&self) -> bool {
        W::IS_PERIODIC
    }

    fn remaining(&self) -> Option<Duration> {
        let deadline = self.job.while_waiting(|key| self.shared().deadline_of(key.get()))??;
        Some(deadline.saturating_duration_since(self.shared().now()))
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        Cancellable::from(self)
    }

    fn begin_wait(&self) -> Result<Waiting, JoinError> {
        wait_for(std::ptr::from_ref(self).addr(), || self.shared().who_runs())
            .ok_or(JoinError::WouldDeadlock)
    }
}
