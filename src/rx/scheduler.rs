//! What gives out workers: an [`ExecutorScheduler`], and the threads of [`single`] and [`new_thread`].
//!
//! The workers of [`single`] share one [`SerialQueue`], and with it one order. Each of them is a [`Member`], which
//! knows its own tasks in that queue:
//!
//! ```text
//!   member a:  waiting {1, 2}              a1   b1   a2   b2
//!                       |  |                |    |    |    |
//!                       '--|--- Shared ---> [ a1 | b1 | a2 | b2 ]  the one queue
//! ```
//!
//! - SHARE-1 A task is among its member's waiting, and a [`Shared`] of it in the queue, until it starts or is
//!   cancelled. `running` is the one that has started, so a disposal ends its series.
//! - SHARE-2 A member's lock is never held together with those of the queue. So either of the two may find that a
//!   task has gone in the other: whoever adds a task to one looks again whether it is over.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::delayed::{Entry, Position, Slot};
use super::drain::Refused;
use super::serial::{SerialQueue, Timers};
use super::worker::{TaskQueue, When, Worker};
use crate::job::{Owner, PendingLimit, Ran, Run};
use crate::platform::sync::{Mutex, MutexGuard, lock};
use crate::{
    Cancel, Executor, Inline, PanicHook, Schedule, ScheduleError, Scheduler, TaskPanic, ThreadPool,
};

/// Gives out workers that run their tasks on an executor, each its own in order.
///
/// Workers of one scheduler share its executor and its clock, and nothing else: what one of them does, or
/// its disposal, touches no other. No worker ever shuts the executor down.
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::rx::ExecutorScheduler;
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let timers = Scheduler::new();
/// let workers = ExecutorScheduler::new(ThreadPool::new(4), &timers);
/// let account = workers.worker();
/// let (sender, ran) = mpsc::channel();
/// for number in 0..100 {
///     let sender = sender.clone();
///     account.schedule(move || sender.send(number).unwrap());
/// }
/// drop(sender);
/// assert!(ran.iter().eq(0..100), "four threads, and in order");
/// ```
#[doc(alias = "Schedulers.from")]
#[derive(Clone)]
pub struct ExecutorScheduler {
    executor: Arc<dyn Executor>,
    timers: Timers,
    refused: Arc<Refused>,
    hook: PanicHook,
    max_pending: Option<usize>,
}

impl ExecutorScheduler {
    /// Returns workers that run on this executor, and whose delays this scheduler keeps.
    ///
    /// The executor is called on the thread that brings a task when its worker is at rest, and on the
    /// tick thread. The scheduler's own executor is not used.
    ///
    /// On [`Inline`] a task runs in the call that schedules it, with one exception: a call from a task that runs
    /// inline itself returns at once, and the new task has its turn on the same stack when that task's batch has
    /// ended. So workers that schedule on each other, however many in a row, keep a flat stack. Therefore such a task must not *wait* for a
    /// task of another inline worker: on its own thread that one cannot start before it has ended.
    pub fn new(executor: impl Executor, scheduler: &Scheduler) -> ExecutorScheduler {
        ExecutorScheduler::with(Arc::new(executor), Timers::of(scheduler))
    }

    /// Returns workers that run on this executor, and whose delays are kept by anything that keeps time: a loop, a
    /// pool, another worker. They are on its clock, virtual or not. With a [`Scheduler`] it is the same as
    /// [`new`](ExecutorScheduler::new). [`Worker::new`] is for one that is both.
    ///
    /// A delayed task is queued wherever `schedule` runs its tasks, and runs on the executor. Delayed tasks keep
    /// their order (by deadline, and at equal deadlines by age) also if `schedule` has several threads.
    ///
    /// The workers keep `schedule` alive. When it ends before its time has come, a delayed task is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::message_loop::MessageLoop;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{ManualClock, ThreadPool};
    ///
    /// let clock = ManualClock::new();
    /// let looper = MessageLoop::builder().clock(clock.clone()).prepare()?;
    /// // Delays on the loop's virtual clock, tasks on a pool.
    /// let workers = ExecutorScheduler::over(ThreadPool::new(2), looper.runner());
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// workers.worker().schedule_after(Duration::from_secs(3600), move || sender.send(1).unwrap());
    /// clock.advance(Duration::from_secs(3600));
    /// looper.run_until_idle();
    /// assert_eq!(receiver.recv()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(executor: impl Executor, schedule: impl Schedule + 'static) -> ExecutorScheduler {
        let timers = match (&schedule as &dyn std::any::Any).downcast_ref() {
            Some(scheduler) => Timers::of(scheduler),
            None => Timers::Any(Arc::new(schedule)),
        };
        ExecutorScheduler::with(Arc::new(executor), timers)
    }

    pub(super) fn with(executor: Arc<dyn Executor>, timers: Timers) -> ExecutorScheduler {
        let (refused, hook) = (Refused::new(timers.clone()), PanicHook::default());
        ExecutorScheduler { executor, timers, refused, hook, max_pending: None }
    }

    /// Sets what is told of each panic of a task, of a captured value's `Drop`, and of the executor, for the workers
    /// that are made from now on.
    #[must_use]
    pub fn on_panic(
        self,
        hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static,
    ) -> ExecutorScheduler {
        ExecutorScheduler { hook: PanicHook::new(hook), ..self }
    }

    /// Bounds each worker that is made from now on: it refuses a task when `tasks` of its own are pending.
    ///
    /// A task holds its place until its run starts, a series until it ends, and a cancel frees the place at
    /// once. On a full worker [`try_schedule`](Worker::try_schedule) gives the closure back with
    /// [`ScheduleError::Full`]. [`schedule`](Worker::schedule) and the other methods that have no error drop the
    /// closure and return a handle that says cancelled. A scheduler whose executor is the worker keeps the task
    /// that was refused and offers it again.
    ///
    /// By default there is no bound. Then a thread that schedules much faster than its worker runs waits a
    /// little in some of its calls, at most 100 ms in one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::rx::ExecutorScheduler;
    /// use tickwheel::{ScheduleError, Scheduler, ThreadPool};
    ///
    /// let timers = Scheduler::new();
    /// let workers = ExecutorScheduler::new(ThreadPool::new(1), &timers).max_pending(1);
    /// let worker = workers.worker();
    /// let later = worker.schedule_after(Duration::from_secs(60), || println!("a minute"));
    /// let refused = worker.try_schedule(|| println!("now")).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Full);
    /// assert!(worker.schedule(|| ()).is_cancelled());
    /// assert!(later.cancel());
    /// assert!(worker.try_schedule(refused.into_task()).is_ok());
    /// ```
    #[must_use]
    pub fn max_pending(self, tasks: usize) -> ExecutorScheduler {
        ExecutorScheduler { max_pending: Some(tasks), ..self }
    }

    /// Returns a new worker. It costs an allocation, and no thread.
    #[doc(alias = "createWorker")]
    pub fn worker(&self) -> Worker {
        Worker::at(self.queue())
    }

    fn queue(&self) -> Arc<SerialQueue> {
        let (executor, timers) = (Arc::clone(&self.executor), self.timers.clone());
        let (limit, refused) = (PendingLimit::new(self.max_pending), Arc::clone(&self.refused));
        SerialQueue::new(executor, timers, self.hook.clone(), limit, refused)
    }
}

impl Timers {
    fn of(scheduler: &Scheduler) -> Timers {
        Timers::Wheel(scheduler.with_executor(Inline)) // WORKER-3: on the tick thread
    }
}

impl fmt::Debug for ExecutorScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorScheduler")
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
}

// ----- threads of their own --------------------------------------------------------------------

/// Returns a new worker on the one thread that all such workers of the process share.
///
/// They share its order as well: tasks that are not delayed run in the order in which they were scheduled, whatever
/// worker they belong to. A worker's disposal is its own.
///
/// The thread is called `tickwheel-single-1`. Delays are kept by [`Scheduler::global`].
///
/// # Panics
///
/// When the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (one, other) = (tickwheel::rx::single(), tickwheel::rx::single());
/// let (sender, receiver) = mpsc::channel();
/// for (number, worker) in [&one, &other, &one, &other].into_iter().enumerate() {
///     let sender = sender.clone();
///     worker.schedule(move || sender.send(number).unwrap());
/// }
/// assert!(receiver.iter().take(4).eq(0..4), "two workers, one thread, one order");
/// ```
#[doc(alias = "Schedulers.single")]
pub fn single() -> Worker {
    static SINGLE: OnceLock<Arc<SerialQueue>> = OnceLock::new();
    let queue = SINGLE.get_or_init(|| on_one_thread("tickwheel-single").queue());
    let (queue, state) = (Arc::clone(queue), Mutex::default());
    Worker::at(Arc::new_cyclic(|me| Member { queue, state, me: Weak::clone(me) }))
}

/// Returns a worker on a thread of its own, which starts with its first task, and ends when the worker is disposed,
/// or dropped and without tasks.
///
/// The thread is called `tickwheel-worker1-1`, and so on. Delays are kept by [`Scheduler::global`].
///
/// # Panics
///
/// When the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// let worker = tickwheel::rx::new_thread();
/// worker.schedule(move || sender.send(std::thread::current().id()).unwrap());
/// assert_ne!(receiver.recv()?, std::thread::current().id());
/// worker.dispose();
/// # Ok::<(), mpsc::RecvError>(())
/// ```
#[doc(alias = "Schedulers.newThread")]
pub fn new_thread() -> Worker {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1; // it only has to be another one
    on_one_thread(&format!("tickwheel-worker{number}")).worker()
}

fn on_one_thread(name: &str) -> ExecutorScheduler {
    ExecutorScheduler::new(ThreadPool::named(1, name), Scheduler::global())
}

/// One of several workers that share a queue.
struct Member {
    queue: Arc<SerialQueue>,
    state: Mutex<Tasks>,
    me: Weak<Member>,
}

/// The tasks of a member; SHARE-1.
#[derive(Default)]
struct Tasks {
    /// By number, which is the ticket of the job.
    waiting: HashMap<u64, Arc<Shared>>,
    last_number: u64,
    running: Option<Arc<Shared>>,
    is_disposed: bool,
}

impl Tasks {
    fn add(&mut self, shared: Arc<Shared>) {
        self.last_number += 1;
        shared.job.position().set(Position::Delayed(self.last_number));
        self.waiting.insert(self.last_number, shared);
    }

    fn remove(&mut self, slot: &Slot) -> Option<Arc<Shared>> {
        let Position::Delayed(number) = slot.get() else { return None };
        self.waiting.remove(&number)
    }
}

impl Member {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        lock(&self.state)
    }
}

impl Owner for Member {
    type Position = Slot;

    fn now(&self) -> Instant {
        self.queue.now()
    }

    fn hook(&self) -> &PanicHook {
        self.queue.hook()
    }

    fn remove(&self, slot: &Slot) {
        let shared = self.tasks().remove(slot);
        shared.into_iter().for_each(|shared| self.queue.remove(&shared.slot));
    }
}

impl TaskQueue for Member {
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let member = self.me.upgrade().expect("the caller holds it");
        let shared = Arc::new(Shared { member, job, slot: Slot::default() });
        let mut tasks = self.tasks();
        if tasks.is_disposed {
            return Err(ScheduleError::Closed);
        }
        tasks.add(Arc::clone(&shared));
        drop(tasks);
        let taken = self.queue.take_in(Arc::clone(&shared) as Entry, when);
        if taken.is_err() {
            drop(self.tasks().remove(shared.job.position()));
        } else if shared.is_done() {
            self.queue.remove(&shared.slot); // disposed in the meantime; SHARE-2
        }
        taken
    }

    fn hold_back(&self) {
        self.queue.hold_back();
    }

    fn dispose(&self) {
        let mut tasks = self.tasks();
        tasks.is_disposed = true;
        let (waiting, running) = (std::mem::take(&mut tasks.waiting), tasks.running.take());
        drop(tasks);
        running.into_iter().for_each(|shared| _ = shared.cancel());
        for shared in waiting.into_values() {
            shared.cancel();
            self.queue.remove(&shared.slot);
        }
    }

    fn is_disposed(&self) -> bool {
        self.tasks().is_disposed
    }

    fn pending(&self) -> usize {
        self.tasks().waiting.len()
    }
}

/// A task of a member, as the queue holds it.
struct Shared {
    member: Arc<Member>,
    /// Its slot says the number that it has with its member.
    job: Entry,
    slot: Slot,
}

impl Run<dyn TaskQueue> for Shared {
    fn run(&self, _queue: &dyn TaskQueue) -> Ran {
        let mut tasks = self.member.tasks();
        let Some(shared) = tasks.remove(self.job.position()) else { return Ran::Not };
        tasks.running = Some(shared);
        drop(tasks);
        let ran = self.job.run(&*self.member);
        let mut tasks = self.member.tasks();
        let running = tasks.running.take();
        if let (Ran::Again(_), Some(shared)) = (ran, running) {
            tasks.add(shared);
            drop(tasks);
            if !self.is_done() {
                return ran;
            }
            drop(self.member.tasks().remove(self.job.position())); // cancelled in the meantime; SHARE-2
        }
        Ran::ForTheLastTime
    }

    fn withdraw(&self) {
        self.job.withdraw();
    }

    fn position(&self) -> &Slot {
        &self.slot
    }
}

impl Cancel for Shared {
    fn cancel(&self) -> bool {
        self.job.cancel()
    }

    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    fn is_done(&self) -> bool {
        self.job.is_done()
    }
}
