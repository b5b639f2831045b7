//! One task of a pool: a [`Job`], which has the states, beside the [`ResultCell`], which has the result.
//!
//! - The cell is resolved by whatever ends the job: its last run, a withdrawal, or a cancel, which resolves
//!   the future of a series at once, even while the series runs. So no future waits in vain. The first result stands.
//! - The key of a task is noted under the queue's lock, before another thread can take the task. The first
//!   offer comes before there is a handle. The later offers of a series, and resets, come under the job's lock as well
//!   (JOB-5 and JOB-6 of [`job`](crate::job)). A handle reads the key under the job's lock, or after it has ended the
//!   task, when the key does not change any more.
//! - A series waits in the queue from the time at which its next run became possible, which is the later of
//!   its planned time and the end of the run before. Ordered by the planned time alone, a series whose runs take longer
//!   than its period would always come first, and nothing else would ever run. The phase goes by the plan.

use std::any::{Any, type_name};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::future::{JoinError, Joinable, PanicPayload, ResultCell};
use super::queue::Offered;
use super::shared::Shared;
use crate::executor::deadlock::{Waiting, wait_for};
use crate::job::{Due, Job, NamedOnce, Next, Owner, Ran, Series, Work, Workload};
use crate::observe::trace::{self, CurrentSpan};
use crate::wheel::WheelKey;
use crate::{Cancel, Cancellable, DueTask, PanicHook, Repeat};

/// Work that has a result.
pub(super) trait Callable: Workload + Sized {
    const IS_PERIODIC: bool = false;
    type Output: Send;

    /// Runs the work once. `Break` has the result, and means that it does not run again.
    fn call(work: &mut Option<Self>) -> ControlFlow<Self::Output>;

    /// Returns when the work is due again, after a run that has ended now.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

/// A closure that is called once, in the span in which it was brought to the pool.
pub(super) struct Call<F> {
    pub(super) f: F,
    span: Option<CurrentSpan>,
}

impl<F> Call<F> {
    pub(super) fn new(f: F) -> Call<F> {
        Call { f, span: trace::current_span() }
    }
}

impl<F: Send + 'static> Workload for Call<F> {
    fn name(&self) -> &'static str {
        type_name::<F>()
    }
}

impl<T: Send, F: FnOnce() -> T + Send + 'static> Callable for Call<F> {
    type Output = T;

    fn call(work: &mut Option<Self>) -> ControlFlow<T> {
        let Call { f, span } = work.take().expect("a task runs once"); // only this thread has the work (JOB-1)
        ControlFlow::Break(match span {
            Some(span) => span.run(f),
            None => f(),
        })
    }
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Callable for Series<F> {
    const IS_PERIODIC: bool = true;
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        let run = |series: &mut Self| trace::in_a_root_span(|| series.run_once());
        work.as_mut().map_or(ControlFlow::Break(()), run)
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        Work::next_run(self, ended)
    }
}

impl Callable for NamedOnce {
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        work.take().into_iter().for_each(|named| (named.task)());
        ControlFlow::Break(())
    }
}

/// A task of a scheduler whose executor is the pool.
impl Callable for DueTask {
    type Output = ();

    fn call(work: &mut Option<Self>) -> ControlFlow<()> {
        work.take().into_iter().for_each(DueTask::run);
        ControlFlow::Break(())
    }
}

/// A task as the queue has it, without its types.
pub(super) trait QueuedTask: Send + Sync {
    /// Runs the task if it still waits, and puts a series back into the queue.
    fn run(self: Arc<Self>);
    /// Runs the task if it still waits, here and for the last time.
    fn run_for_the_last_time(&self);
    /// Ends the task, unless it runs or has ended.
    fn withdraw(&self);
    fn is_periodic(&self) -> bool;
}

/// Where a task notes its key. Relaxed, because of the locks that are named above: each reader comes after
/// the last writer.
pub(super) struct KeyCell(AtomicU64);

impl Default for KeyCell {
    fn default() -> KeyCell {
        KeyCell(AtomicU64::new(WheelKey::NONE.to_bits()))
    }
}

impl KeyCell {
    #[inline]
    fn set(&self, key: WheelKey) {
        self.0.store(key.to_bits(), Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> WheelKey {
        WheelKey::from_bits(self.0.load(Ordering::Relaxed))
    }
}

pub(super) struct PoolTask<W: Callable> {
    job: Job<W, Shared, Arc<Shared>>,
    result: ResultCell<W::Output>,
}

impl Owner for Shared {
    type Position = KeyCell;
    type AfterMove = ();

    fn now(&self) -> Instant {
        Shared::now(self)
    }

    fn hook(&self) -> &PanicHook {
        &self.on_panic
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    fn remove(&self, key: &KeyCell) {
        drop(self.workers.queue.remove_at(key.get()));
    }

    fn has_ended(&self) {
        self.leave();
    }

    fn deadline(&self, key: &KeyCell) -> Option<Due> {
        self.workers.queue.deadline_of(key.get()).map(Due::At)
    }

    fn move_to(&self, key: &KeyCell, deadline: Instant) -> Option<()> {
        // A shutdown that runs nothing delayed leaves what is due in the queue. That task must not become delayed again. Asked
        // under the queue's lock, so that the search of a shutdown comes before it, or finds the task where it was moved.
        let may_move =
            |task: &Arc<dyn QueuedTask>| self.lifecycle.may_run(task.is_periodic(), false);
        self.workers.queue.reset_at(key.get(), deadline, may_move).then_some(())
    }

    fn has_moved(&self, (): ()) {}

    fn repeats(&self) -> bool {
        self.lifecycle.may_repeat()
    }
}

impl<W: Callable> PoolTask<W> {
    pub(super) fn new(shared: &Arc<Shared>, work: W) -> Arc<Self> {
        let job = Job::with(Arc::clone(shared), work, W::IS_PERIODIC);
        Arc::new(PoolTask { job, result: ResultCell::new() })
    }

    fn shared(&self) -> &Arc<Shared> {
        self.job.owner_ref()
    }

    /// Puts the task into the queue, and notes its key. Returns `None` if the queue is closed.
    pub(super) fn offer(
        self: &Arc<Self>,
        deadline: Instant,
        now: Option<Instant>,
    ) -> Option<Offered> {
        let this = Arc::<Self>::clone(self);
        let queue = &self.shared().workers.queue;
        queue.offer_noted(deadline, this, now, |key| self.job.position().set(key)).ok()
    }

    /// Takes the work back if the task still waits, as if the task had never been accepted.
    pub(super) fn take_back(&self) -> Option<W> {
        let work = self.job.take_back()?;
        self.shared().remove(self.job.position());
        self.shared().no_longer_pending();
        self.shared().leave();
        Some(work)
    }

    /// Runs the work once. Returns when it is due again, or its result.
    fn run_once(&self, work: &mut Option<W>) -> ControlFlow<Result<W::Output, JoinError>, Next> {
        let shared = self.shared();
        let name = work.as_ref().map_or("a task", Workload::name);
        let panicked = |panic: Box<dyn Any + Send>| {
            shared.on_panic.tell(name, &*panic);
            ControlFlow::Break(Err(JoinError::Panicked(PanicPayload::new(panic))))
        };
        match shared.run_between_hooks(name, || W::call(work)) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(value)) => return ControlFlow::Break(Ok(value)),
            Err(panic) => return panicked(panic),
        }
        let (Some(work), true) = (work, shared.lifecycle.may_repeat()) else {
            return ControlFlow::Break(Err(JoinError::Cancelled));
        };
        let possible = || {
            let ended = shared.now();
            Next { due: work.next_run(ended), ended }
        };
        catch_unwind(AssertUnwindSafe(possible)).map_or_else(panicked, ControlFlow::Continue)
    }

    fn resolve(&self, result: Result<W::Output, JoinError>) {
        self.result.resolve(result, &self.shared().on_panic);
    }
}

impl<W: Callable> QueuedTask for PoolTask<W> {
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
        let mut put_back = |Next { due, ended }| {
            is_in = self.offer(due.max(ended), Some(ended)).is_some(); // not by the plan alone
        };
        match self.job.run_with(&shared, run, &mut put_back) {
            Ran::Not | Ran::Later => {}
            Ran::ForTheLastTime => self.resolve(result),
            // A shutdown may have searched the queue while this task ran.
            Ran::Again if is_in && shared.lifecycle.may_repeat() => {}
            Ran::Again => self.withdraw(),
        }
        // If nobody has taken the result, it is dropped here, with the task. The memory of the task is freed after
        // that, so `deadlock`, which knows this run by its address, does not take another task for it.
        shared.on_panic.catch(None, || drop(self));
    }

    fn run_for_the_last_time(&self) {
        let mut result = Err(JoinError::Cancelled);
        let run = |work: &mut Option<W>| {
            if let ControlFlow::Break(ended) = self.run_once(work) {
                result = ended;
            }
            None
        };
        if self.job.run_with(self.shared(), run, &mut |_: Next| ()) == Ran::ForTheLastTime {
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

impl<W: Callable> Cancel for PoolTask<W> {
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

    fn reset(&self, delay: Duration) -> bool {
        self.job.reset(delay)
    }

    fn reset_at(&self, deadline: Instant) -> bool {
        self.job.reset_at(deadline)
    }

    fn deadline(&self) -> Option<Instant> {
        self.job.deadline()
    }
}

impl<W: Callable> Joinable<W::Output> for PoolTask<W> {
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
        Some(self.job.deadline()?.saturating_duration_since(self.shared().now()))
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        Cancellable::from(self)
    }

    fn begin_wait(&self) -> Result<Waiting, JoinError> {
        let workers = &self.shared().workers;
        // The tasks of a closed queue have been handed out, and any thread may run them.
        let by = || Some(workers.threads).filter(|_| !workers.queue.is_closed());
        wait_for(std::ptr::from_ref(self).addr(), by).ok_or(JoinError::WouldDeadlock)
    }
}
