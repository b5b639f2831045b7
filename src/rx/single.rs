//! Workers on one thread: [`single`] and [`new_thread`].
//!
//! The workers of [`single`] share one [`SerialQueue`], and with it one order. Each of them is a [`Part`] of that queue:
//!
//! ```text
//!   the one queue:  [ a1 | b1 | a2 | b2 ] ---> the drain of the one thread
//!                      |    |    |    |
//!   worker a:         a1    |   a2    |        a list of its own tasks, for its `dispose` and `pending`
//!   worker b:              b1        b2
//! ```
//!
//! A task is in the queue like the task of any other worker, and its job tells the part when it has ended. From then on
//! the list may forget it. A part locks its list and the queue one after the other, never both. So a task may end while it
//! is being added to the queue, and the thread that adds it looks afterwards whether the part was disposed in the
//! meantime.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::delayed::Entry;
use super::position::{AtomicPosition, Position};
use super::scheduler::ExecutorScheduler;
use super::serial::SerialQueue;
use super::timer::When;
use super::worker::{TaskQueue, Worker};
use crate::platform::sync::{Mutex, MutexGuard, lock};
use crate::pool::job::{Due, Owner};
use crate::wheel::WheelKey;
use crate::{PanicHook, ScheduleError, Scheduler, ThreadPool};

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
    let (queue, own, is_disposed) = (Arc::clone(queue), Mutex::default(), AtomicBool::new(false));
    Worker::at(Arc::new_cyclic(|me| Part { queue, me: Weak::clone(me), own, is_disposed }))
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
struct Part {
    queue: Arc<SerialQueue>,
    me: Weak<Part>,
    own: Mutex<Own>,
    /// Written under the lock. A job asks with its own lock held, so it must not take this one. Relaxed suffices, because
    /// the flag publishes nothing.
    is_disposed: AtomicBool,
}

#[derive(Default)]
struct Own {
    /// All tasks that have not ended, and some that have.
    tasks: Vec<Entry>,
    /// How many have not ended.
    alive: usize,
    /// Keeps the part alive as long as it has tasks, because their jobs need it.
    keeps: Option<Arc<Part>>,
}

/// The list holds no more ended tasks than others, and so many more.
const MAX_ENDED: usize = 64;

impl Part {
    fn own(&self) -> MutexGuard<'_, Own> {
        lock(&self.own)
    }

    /// Cancels tasks. All of them leave the queue first, so no reset moves them any more.
    fn cancel(&self, tasks: &[Entry]) {
        tasks.iter().for_each(|task| self.queue.remove(task.position()));
        tasks.iter().for_each(|task| _ = task.cancel());
    }
}

impl Owner for Part {
    type Position = AtomicPosition;
    type AfterMove = Option<WheelKey>;

    fn now(&self) -> Instant {
        self.queue.now()
    }

    fn hook(&self) -> &PanicHook {
        self.queue.hook()
    }

    fn remove(&self, position: &AtomicPosition) {
        self.queue.remove(position);
    }

    /// Removes the tasks that have ended from the list, if they are more than half of all. So an end takes O(1),
    /// amortised.
    fn has_ended(&self) {
        let _keeps; // dropped after the lock
        let mut own = self.own();
        own.alive -= 1;
        let enough = 2 * own.alive + MAX_ENDED;
        if own.tasks.len() > enough {
            own.tasks.retain(|task| !task.is_done());
            own.tasks.shrink_to(enough);
        }
        _keeps = if own.alive == 0 { own.keeps.take() } else { None };
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        self.queue.deadline(position)
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<WheelKey>> {
        self.queue.move_to(position, deadline)
    }

    fn has_moved(&self, key: Option<WheelKey>) {
        self.queue.has_moved(key);
    }

    fn repeats(&self) -> bool {
        !self.is_disposed()
    }
}

impl TaskQueue for Part {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let mut own = self.own();
        if self.is_disposed() {
            return Err(ScheduleError::Closed);
        }
        own.tasks.push(Arc::clone(&job));
        own.alive += 1;
        own.keeps = self.me.upgrade();
        drop(own);
        let taken = self.queue.submit(Arc::clone(&job), when);
        if taken.is_err() {
            job.withdraw(); // if its timer has not done so. The queue has no limit and no end, and refuses nothing else
        } else if self.is_disposed() {
            self.cancel(&[job]);
        }
        taken
    }

    fn hold_back(&self) {
        self.queue.hold_back();
    }

    fn dispose(&self) {
        let mut own = self.own();
        self.is_disposed.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut own.tasks);
        drop(own);
        self.cancel(&tasks);
    }

    fn is_disposed(&self) -> bool {
        self.is_disposed.load(Ordering::Relaxed)
    }

    fn pending(&self) -> usize {
        let waits = |task: &&Entry| task.position().get() != Position::Gone;
        self.own().tasks.iter().filter(waits).count()
    }
}
