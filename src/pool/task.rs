//! One task of a pool: a [`Job`] whose result goes into a [`ResultCell`], where its future finds it. The first result stands.
//!
//! - The key of a task is noted under the queue's lock, before another thread can take the task. The first
//!   offer comes before there is a handle. The later offers of a series, and resets, come under the job's lock as well
//!   (JOB-5 and JOB-6 of [`job`](crate::job)). A handle reads the key under the job's lock, or after it has ended the
//!   task, when the key does not change any more.

use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::builder::RunHook;
use super::future::{JoinError, Joinable, PanicPayload, ResultCell};
use super::shared::{QueuedTask, Shared};
use crate::executor::deadlock::{Waiting, wait_for};
use crate::job::{AtomicPosition, Due, End, Job, Next, Owner, OwnerRef, Position, Work, owner_has};
use crate::{Cancel, Cancellable};

/// A task as its handles have it. It keeps its pool alive until it has ended.
pub(super) type PoolTask<W> = Job<W, Returns<<W as Work>::Output>>;

/// The pool of a task, and where the result goes.
pub(super) struct Returns<T> {
    pub(super) shared: Arc<Shared>,
    pub(super) result: ResultCell<T>,
}

impl<T: Send + 'static> OwnerRef<T> for Returns<T> {
    type Owner = Shared;
    const HAS_ROOT_SPANS: bool = true;

    fn get(&self) -> Option<impl Deref<Target = Shared>> {
        Some(&*self.shared)
    }

    fn tell(&self, end: End<T>) {
        let result = match end {
            End::Value(value) => Ok(value),
            End::Cancelled => Err(JoinError::Cancelled),
            End::Panicked(payload) => Err(JoinError::Panicked(PanicPayload::new(payload))),
        };
        self.result.resolve(result, self.shared.hook());
    }
}

/// Runs a task that has come out of the queue, if it still waits, and puts a series back.
pub(super) fn run(shared: &Shared, task: QueuedTask) {
    let mut put_back = |Next { due, ended }| {
        // Asked under the queue's lock: the search of a shutdown, or of a new policy, comes before it, or finds the task.
        let may_repeat = |is_shut| shared.may_run(is_shut, true, false);
        let note = |key| task.position().set(Position::Delayed(key));
        let queue = &shared.queue;
        queue.offer_noted(due, Arc::clone(&task), Some(ended), may_repeat, note).is_ok()
    };
    task.run(shared, &mut put_back);
    // If nobody has taken the result, it is dropped here, with the task. The memory of the task is freed after
    // that, so `deadlock`, which knows this run by its address, does not take another task for it.
    shared.hook().catch(None, || drop(task));
}

impl Owner for Shared {
    owner_has!(self, now: self.settings.clock.now(), hook: self.settings.on_panic, limit: self.limit);

    fn make_run(&self, name: &'static str, run: &mut dyn FnMut() -> bool) {
        let call = |hook: &Option<RunHook>, panicked| {
            hook.iter().for_each(|hook| _ = self.hook().catch(None, || hook(name, panicked)));
        };
        call(&self.settings.before, false);
        call(&self.settings.after, run());
    }

    fn remove(&self, position: &AtomicPosition) {
        self.take_out(position.key());
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        self.queue.deadline_of(position.key()).map(Due::At)
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<bool> {
        // A shutdown that runs nothing delayed leaves what is due in the queue. That task must not become delayed again. Asked
        // under the queue's lock, so that the search of a shutdown comes before it, or finds the task where it was moved.
        let may_move =
            |task: &QueuedTask, is_shut| self.may_run(is_shut, task.is_periodic(), false);
        self.queue.reset_at(position.key(), deadline, may_move).then_some(false)
    }

    fn repeats(&self) -> bool {
        !self.queue.is_closed() && self.may_run(self.queue.is_ending(), true, false)
    }
}

impl<W: Work> Joinable<W::Output> for PoolTask<W> {
    fn result(&self) -> &ResultCell<W::Output> {
        &self.owner.result
    }

    fn cancel(&self) -> bool {
        Cancel::cancel(self)
    }

    fn is_periodic(&self) -> bool {
        W::IS_PERIODIC
    }

    fn now(&self) -> Instant {
        self.owner.shared.now()
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        Cancellable::from(self)
    }

    fn begin_wait(&self, waker: &Waker) -> Option<Waiting> {
        let shared = &self.owner.shared;
        let by = || {
            shared.start_if_needed(); // if no thread could be started when the task came, it is tried again
            // The tasks of a closed queue have been handed out, and any thread may run them.
            (!shared.queue.is_closed()).then(|| shared.threads.pool.clone())
        };
        wait_for(std::ptr::from_ref(self).addr(), by, waker)
    }
}
