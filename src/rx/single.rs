//! Workers on one thread: [`single`] and [`new_thread`].
//!
//! The workers of [`single`] share one [`SerialQueue`], and with it one order. Each of them has a [`SubQueue`], which
//! knows the worker's own tasks in that queue:
//!
//! ```text
//!   worker a:  waiting {1, 2}              a1   b1   a2   b2
//!                       |  |                |    |    |    |
//!                       '--|---SubTask ---> [ a1 | b1 | a2 | b2 ]  the one queue
//! ```
//!
//! - SINGLE-1 Until a task starts or is cancelled, it is in `waiting` of its sub-queue, and a [`SubTask`] for it is in
//!   the queue. The task that has started is `running`, so a disposal finds a series there.
//! - SINGLE-2 The lock of a sub-queue is never held together with a lock of the queue. So a task may leave one of them
//!   while it is added to the other. A thread that adds a new task looks again afterwards whether the task is over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::delayed::Entry;
use super::position::{AtomicPosition, Position};
use super::scheduler::ExecutorScheduler;
use super::serial::SerialQueue;
use super::timer::When;
use super::worker::{TaskQueue, Worker};
use crate::platform::sync::{Mutex, MutexGuard, lock};
use crate::pool::job::{Due, Next, Owner, Place, Ran, Run};
use crate::{Cancel, PanicHook, ScheduleError, Scheduler, ThreadPool};

/// Returns a new worker on the one thread that all such workers of the process share.
///
/// They also share one order: tasks without a delay run in the order in which they were scheduled, whatever worker they
/// belong to. Disposing one worker does not affect the others.
///
/// The thread is named `tickwheel-single-1`. [`Scheduler::global`] keeps the delays.
///
/// # Panics
///
/// Panics if the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
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
    Worker::at(Arc::new_cyclic(|me| SubQueue { queue, state, me: Weak::clone(me) }))
}

/// Returns a new worker on a thread of its own.
///
/// The thread starts with the first task, and ends when the worker is disposed, or when all its handles are dropped and
/// its tasks have run. It is named `tickwheel-worker1-1`, and so on. [`Scheduler::global`] keeps the delays.
///
/// # Panics
///
/// Panics if the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
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
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1; // Relaxed, because only the number matters
    on_one_thread(&format!("tickwheel-worker{number}")).worker()
}

fn on_one_thread(name: &str) -> ExecutorScheduler {
    ExecutorScheduler::new(ThreadPool::named(1, name), Scheduler::global())
}

/// The part of a shared queue that belongs to one worker.
struct SubQueue {
    queue: Arc<SerialQueue>,
    state: Mutex<SubTasks>,
    me: Weak<SubQueue>,
}

/// The tasks of one worker (SINGLE-1).
#[derive(Default)]
struct SubTasks {
    /// By number. The position of each job is its number.
    waiting: HashMap<u64, Arc<SubTask>>,
    last_number: u64,
    running: Option<Arc<SubTask>>,
    is_disposed: bool,
}

impl SubTasks {
    fn add(&mut self, task: Arc<SubTask>) {
        self.last_number += 1;
        task.job.position().set(Position::Delayed(self.last_number));
        self.waiting.insert(self.last_number, task);
    }

    fn get(&self, position: &AtomicPosition) -> Option<Arc<SubTask>> {
        let Position::Delayed(number) = position.get() else { return None };
        self.waiting.get(&number).map(Arc::clone)
    }

    fn remove(&mut self, position: &AtomicPosition) -> Option<Arc<SubTask>> {
        let Position::Delayed(number) = position.get() else { return None };
        self.waiting.remove(&number)
    }
}

impl SubQueue {
    fn tasks(&self) -> MutexGuard<'_, SubTasks> {
        lock(&self.state)
    }
}

impl Owner for SubQueue {
    type Position = AtomicPosition;
    type AfterMove = Option<u64>;

    fn now(&self) -> Instant {
        self.queue.now()
    }

    fn hook(&self) -> &PanicHook {
        self.queue.hook()
    }

    fn remove(&self, position: &AtomicPosition) {
        let task = self.tasks().remove(position);
        task.into_iter().for_each(|task| self.queue.remove(&task.position));
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let task = self.tasks().get(position)?;
        self.queue.deadline(&task.position)
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<u64>> {
        let tasks = self.tasks();
        let task = tasks.get(position).filter(|_| !tasks.is_disposed)?;
        drop(tasks);
        self.queue.move_to(&task.position, deadline)
    }

    fn has_moved(&self, ticket: Option<u64>) {
        self.queue.has_moved(ticket);
    }

    fn repeats(&self) -> bool {
        !self.tasks().is_disposed
    }
}

impl TaskQueue for SubQueue {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let owner = self.me.upgrade().expect("the caller holds it");
        let task = Arc::new(SubTask { owner, job, position: AtomicPosition::default() });
        let mut tasks = self.tasks();
        if tasks.is_disposed {
            return Err(ScheduleError::Closed);
        }
        tasks.add(Arc::clone(&task));
        drop(tasks);
        let taken = self.queue.submit(Arc::clone(&task) as Entry, when);
        if taken.is_err() {
            drop(self.tasks().remove(task.job.position()));
        } else if task.is_done() {
            self.queue.remove(&task.position); // disposed in the meantime (SINGLE-2)
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
        running.into_iter().for_each(|task| _ = task.cancel());
        for task in waiting.into_values() {
            task.cancel();
            self.queue.remove(&task.position);
        }
    }

    fn is_disposed(&self) -> bool {
        self.tasks().is_disposed
    }

    fn pending(&self) -> usize {
        self.tasks().waiting.len()
    }
}

/// A task of one worker, as the shared queue holds it.
struct SubTask {
    owner: Arc<SubQueue>,
    /// Its position is in the sub-queue.
    job: Entry,
    /// The position in the shared queue.
    position: AtomicPosition,
}

impl Run<dyn TaskQueue> for SubTask {
    fn run(&self, _queue: &dyn TaskQueue, place: &mut dyn Place) -> Ran {
        let mut tasks = self.owner.tasks();
        let Some(this) = tasks.remove(self.job.position()) else { return Ran::Not };
        tasks.running = Some(Arc::clone(&this));
        drop(tasks);
        let mut is_disposed = false;
        let mut put_back = |next: Next| {
            let mut tasks = self.owner.tasks();
            is_disposed = tasks.is_disposed;
            if !is_disposed {
                tasks.running = None;
                tasks.add(Arc::clone(&this));
                drop(tasks);
                place.put_back(next);
            }
        };
        let ran = self.job.run(&*self.owner, &mut put_back);
        if ran == Ran::Again && !is_disposed {
            return ran;
        }
        let running = self.owner.tasks().running.take();
        drop(running); // its destructor may be a user's
        if is_disposed {
            self.cancel(); // the disposal may have looked for it before
        }
        Ran::ForTheLastTime
    }

    fn withdraw(&self) {
        self.job.withdraw();
    }

    fn position(&self) -> &AtomicPosition {
        &self.position
    }
}

impl Cancel for SubTask {
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
