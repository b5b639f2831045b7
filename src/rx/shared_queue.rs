//! A queue whose tasks one thread runs, in one order of deadline and arrival: of the workers of a
//! [`SingleThreadScheduler`](super::SingleThreadScheduler), and of a worker of a
//! [`TrampolineScheduler`](super::TrampolineScheduler).
//!
//! ```text
//!   worker --- Member ---.                                .--> a thread of its own, which waits for more
//!   worker --- Member ----> SharedQueue: DelayedWorkQueue -+
//!   worker --- Member ---'                                '--> the thread that has brought a task while no other drained
//! ```
//!
//! - The tasks wait in a [`DelayedWorkQueue`], which keeps their time. One thread at a time takes them out.
//! - A thread that brings a task puts it in, and looks whether a thread drains after that. A thread that drains, and need not
//!   wait for more, clears `has_drain` when the queue is empty, and looks once more after that. So no task is left behind.
//! - A task that waits is also in the set of its worker, and one that was taken out last is in `running` there. It moves
//!   from one to the other under the lock of the worker. So `dispose` finds each task that has not started, and a series
//!   between two runs, and no task of another worker.
//! - A task that waits keeps its worker alive, and a worker its [`SharedQueue`], which the thread does not. So once nobody can
//!   bring a task any more, nothing waits, and the thread ends.
//! - The queue is locked inside of a worker's lock, never the other way round. Tasks, clocks and destructors are called
//!   with neither.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use super::delayed::Entry;
use super::drain;
use super::worker::TaskQueue;
use crate::backpressure::{Backpressure, PendingLimit};
use crate::job::{AtomicPosition, Due, Next, Owner, Position, Ran, owner_has};
use crate::platform::panics::{quietly, rest_blind};
use crate::platform::sync::{lock_std, spawn};
use crate::pool::DelayedWorkQueue;
use crate::wheel::WheelKey;
use crate::{Clock, PanicHook, ScheduleError};

/// With more tasks than this overdue, the threads that bring them are held back, if the queue has a thread of its own.
const MAX_AHEAD: u64 = 1 << 16;

/// What all have that may bring tasks. When it is dropped, the thread of the queue ends.
pub(super) struct SharedQueue {
    tasks: Arc<Tasks>,
    clock: Arc<dyn Clock>,
    /// A thread of the queue's own drains, and waits for more.
    has_thread: bool,
    /// A thread that has brought a task drains. The lock of `tasks` orders the looks at both. The Acquire of a thread that
    /// begins pairs with the Release of the last one, so its tasks see what the tasks before have written.
    has_drain: AtomicBool,
    pressure: Backpressure,
}

/// A task that waits, and its worker.
type Queued = (Entry, Arc<Member>);
type Tasks = DelayedWorkQueue<Queued>;

/// A worker's part of the queue.
pub(super) struct Member {
    queue: Arc<SharedQueue>,
    own: Mutex<Own>,
    limit: PendingLimit,
    hook: PanicHook,
    me: Weak<Member>,
}

#[derive(Default)]
struct Own {
    /// The tasks that wait, by their keys as numbers.
    waiting: BTreeMap<u64, Entry>,
    running: Option<Entry>,
    is_disposed: bool,
}

impl SharedQueue {
    /// Returns a queue that needs a thread of its own, or is drained by the threads that bring tasks.
    pub(super) fn new(clock: Arc<dyn Clock>, has_thread: bool) -> Arc<SharedQueue> {
        let tasks = Arc::new(DelayedWorkQueue::with_clock(Arc::clone(&clock)));
        if !has_thread {
            tasks.end_when_empty();
        }
        let (has_drain, pressure) = (AtomicBool::new(false), Backpressure::new(MAX_AHEAD));
        Arc::new(SharedQueue { tasks, clock, has_thread, has_drain, pressure })
    }

    /// Returns a queue that a thread of its own drains.
    pub(super) fn of_a_thread(name: String, clock: Arc<dyn Clock>) -> io::Result<Arc<SharedQueue>> {
        let queue = SharedQueue::new(clock, true);
        let tasks = Arc::clone(&queue.tasks);
        let drains = move || {
            // The panics of tasks are caught in there, so this one is the clock's.
            while PanicHook::default().catch(None, || drain(&tasks)).is_none() {
                rest_blind();
            }
        };
        spawn(name, || drain::with_a_drain(drains))?;
        Ok(queue)
    }

    pub(super) fn member(self: &Arc<Self>, hook: PanicHook, limit: PendingLimit) -> Arc<Member> {
        let (queue, own) = (Arc::clone(self), Mutex::default());
        Arc::new_cyclic(|me| Member { queue, own, limit, hook, me: Weak::clone(me) })
    }

    /// Runs all tasks on the calling thread, unless another one does so, and waits for those that are delayed.
    fn run_here(&self) {
        while !self.has_drain.swap(true, Ordering::Acquire) {
            drain::with_a_drain(|| drain(&self.tasks));
            self.has_drain.store(false, Ordering::Release);
            if self.tasks.is_empty() {
                return;
            }
        }
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        self.tasks.close();
    }
}

/// Runs tasks as long as there is a next one.
fn drain(tasks: &Tasks) {
    while let Some((job, member)) = tasks.take() {
        member.run(&job);
        quietly(|| drop((job, member))); // the worker's last owner drops a user's hook
    }
}

impl Member {
    fn own(&self) -> MutexGuard<'_, Own> {
        lock_std(&self.own)
    }

    /// Adds a task of this worker. Returns true if the queue is behind, or `None` if the worker is disposed.
    fn insert(&self, job: &Entry, due: Instant, now: Instant) -> Option<bool> {
        let mut own = self.own();
        let me = self.me.upgrade().filter(|_| !own.is_disposed)?;
        let waits = |key: WheelKey| {
            job.position().set(Position::Delayed(key));
            own.waiting.insert(key.to_bits(), Arc::clone(job));
        };
        let offered =
            self.queue.tasks.offer_noted(due, (Arc::clone(job), me), Some(now), |_| true, waits);
        offered.ok().map(|(_, is_behind)| is_behind)
    }

    /// Runs a task that was taken out, and queues the next run of a series.
    fn run(&self, job: &Entry) {
        let mut own = self.own();
        if own.is_disposed {
            return; // the disposal cancels one task after the other, this one too, and returns when they are dropped
        }
        own.waiting.remove(&job.position().key().to_bits());
        own.running = Some(Arc::clone(job));
        drop(own);
        let mut is_queued = false;
        let mut put_back = |Next { due, ended }: Next| {
            is_queued = self.insert(job, due, ended).is_some();
            true
        };
        if job.run(self, &mut put_back) == Ran::Again && !is_queued {
            job.cancel();
        }
        self.own().running = None; // the caller has the task, so nothing is dropped here
    }
}

impl Owner for Member {
    owner_has!(self, now: self.queue.clock.now(), hook: self.hook, limit: self.limit);

    fn remove(&self, position: &AtomicPosition) {
        let key = position.key(); // only a task that waits gets another one, and this one does not any more
        let removed = self.queue.tasks.remove_at(key);
        let entry = self.own().waiting.remove(&key.to_bits());
        // A caller's thread that drains may wait for it. Another thread wakes up at the old deadline, and finds that out.
        if matches!(removed, Some((_, true))) {
            self.queue.tasks.wake_takers();
        }
        drop((removed, entry));
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        self.queue.tasks.deadline_of(position.key()).map(Due::At)
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<bool> {
        let own = self.own();
        // The tasks of a disposed worker are about to be cancelled.
        let moves = || self.queue.tasks.reset_at(position.key(), deadline, |_, _| true);
        (!own.is_disposed && moves()).then_some(false) // no task has a timer
    }

    fn repeats(&self) -> bool {
        !self.is_disposed()
    }
}

impl TaskQueue for Member {
    fn submit(&self, job: Entry, deadline: Option<Instant>) -> Result<(), ScheduleError> {
        let now = self.now();
        let due = deadline.unwrap_or(now);
        if !self.limit.enter() {
            return Err(self.refusal().unwrap_or(ScheduleError::Full));
        }
        let Some(is_behind) = self.insert(&job, due, now) else {
            self.limit.leave();
            return Err(ScheduleError::Closed);
        };
        let queue = &self.queue;
        if !queue.has_thread {
            queue.run_here(); // a caller that drains is never ahead of itself
        } else if is_behind && !drain::this_thread().is_draining {
            let look = || queue.tasks.flow(self.now());
            // The task is in, so a clock that panics ends the wait, and not the call.
            self.hook.catch(None, || queue.pressure.hold_back(look));
        }
        Ok(())
    }

    fn dispose(&self) {
        let mut own = self.own();
        own.is_disposed = true;
        let (waiting, running) = (std::mem::take(&mut own.waiting), own.running.clone());
        drop(own);
        running.into_iter().chain(waiting.into_values()).for_each(|job| _ = job.cancel());
    }

    fn is_disposed(&self) -> bool {
        self.own().is_disposed
    }

    fn pending(&self) -> usize {
        self.own().waiting.len()
    }
}
