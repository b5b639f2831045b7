//! A pool of threads, the default executor.
//!
//! ```text
//!   tick thread --- one lock per batch ---> queue: [ lot | lot | task | lot ]
//!                                                     ^ every worker takes from the first lot,
//!                                                       task by task, by a counter
//! ```
//!
//! A batch becomes a *lot*: the names of its tasks, and a counter of how many have been taken. All
//! workers take from the same lot, each by raising the counter, until it is used up. So the tick
//! thread pays for one push per batch, a worker pays one atomic per task, and yet no task ever
//! waits behind a slow one while another worker is free.
//!
//! - POOL-1 Threads start when there is work and nobody idle, up to the limit.
//! - POOL-2 A push wakes one idle worker; a worker that takes work while more is queued wakes, or
//!   starts, the next. So the tick thread wakes at most one thread per batch.
//! - POOL-3 When the pool is dropped, its threads run what was accepted and end. `Drop` waits for
//!   nobody.
//! - POOL-4 No task runs and no task is dropped under the lock (S11).
//! - POOL-5 Lots are used again, so that a steady flow allocates nothing.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::batch::AHEAD;
use super::due::{DueTask, Host, Rejected};
use super::{DueBatch, Executor};
use crate::executor::deadlock::PoolThreads;
use crate::platform::panics::quietly;
use crate::platform::sleep::wake_as_usual;
use crate::wheel::entry::Entry;

/// Runs tasks on threads of its own, which start on first use.
///
/// A task that blocks holds up one thread, and no other task while a thread is free. Dropping the
/// pool never blocks: its threads run what was accepted, and end.
///
/// ```
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
pub struct ThreadPool {
    shared: Arc<Shared>,
}

struct Shared {
    threads: PoolThreads,
    name: String,
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Lots to be used again; POOL-5.
    spare: Vec<Arc<Lot>>,
    threads: usize,
    started: usize,
    idle: usize,
    is_closing: bool,
}

enum Work {
    Lot(Arc<Lot>),
    One(DueTask),
}

/// A batch in the queue.
struct Lot {
    /// `None` while it is spare, so that it keeps no scheduler alive.
    host: Option<Arc<dyn Host>>,
    due: Vec<Entry>,
    taken: AtomicUsize,
}

/// How many spare lots are kept.
const SPARE_LOTS: usize = 256;

impl ThreadPool {
    /// A pool of at most so many threads; of one, if that is zero.
    pub fn new(threads: usize) -> ThreadPool {
        ThreadPool::named(threads, "tickwheel-pool")
    }

    /// The same, with a name of its own: the threads are called `name-1`, `name-2` and so on.
    pub fn named(threads: usize, name: impl Into<String>) -> ThreadPool {
        let shared = Shared {
            threads: PoolThreads::new(threads.max(1)),
            name: name.into().replace('\0', ""), // the system takes none, and std would panic
            queue: Mutex::default(),
            work: Condvar::new(),
        };
        ThreadPool { shared: Arc::new(shared) }
    }

    /// Queues work, if there is, or can be, a thread to run it.
    fn push(&self, work: Work) -> Result<(), Work> {
        let mut queue = self.shared.lock();
        let no_thread = queue.idle == 0
            && queue.threads < self.shared.threads.limit()
            && self.shared.start_thread(&mut queue).is_err();
        if no_thread && queue.threads == 0 {
            return Err(work);
        }
        queue.work.push_back(work);
        let wake = queue.idle > 0;
        drop(queue);
        if wake {
            self.shared.work.notify_one(); // POOL-2
        }
        Ok(())
    }
}

impl Default for ThreadPool {
    /// A pool of as many threads as the machine runs at once.
    fn default() -> ThreadPool {
        ThreadPool::new(thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Executor for ThreadPool {
    /// Refuses only when there is no thread and the system does not start one.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.push(Work::One(task)).map_err(|work| match work {
            Work::One(task) => Rejected::new(task),
            Work::Lot(_) => unreachable!("a single task was pushed"),
        })
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        if batch.len() == 1 {
            let task = batch.next().map(|task| self.execute(task));
            if let Some(Err(rejected)) = task {
                batch.reject(rejected);
            }
            return;
        }
        let mut lot = self.shared.lock().spare_lot();
        let fill = Arc::get_mut(&mut lot).expect("a spare lot is nobody else's");
        fill.host = Some(Arc::clone(batch.take_all(&mut fill.due)));
        if let Err(Work::Lot(lot)) = self.push(Work::Lot(lot)) {
            lot.refuse_all(batch);
        }
    }

    fn threads(&self) -> Option<PoolThreads> {
        Some(self.shared.threads)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.work.notify_all(); // POOL-3
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.lock();
        f.debug_struct("ThreadPool")
            .field("name", &self.shared.name)
            .field("limit", &self.shared.threads.limit())
            .field("threads", &queue.threads)
            .field("idle", &queue.idle)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// POOL-1. Starting one under the lock keeps the count right; it happens `limit` times.
    fn start_thread(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let shared = Arc::clone(self);
        let name = format!("{}-{}", self.name, queue.started + 1);
        thread::Builder::new().name(name).spawn(move || shared.work())?;
        queue.threads += 1;
        queue.started += 1;
        Ok(())
    }

    /// What a worker does all its life.
    fn work(self: Arc<Self>) {
        wake_as_usual();
        self.threads.join();
        while let Some(work) = self.next_work() {
            // A task's panic is caught further in. This is for what goes with the last owner of a
            // scheduler: a user's clock, say.
            quietly(|| match work {
                Work::One(task) => task.run(),
                Work::Lot(lot) => {
                    lot.run_to_the_end();
                    let host = self.lock().retire(lot);
                    drop(host); // not under the lock (POOL-4)
                }
            });
        }
    }

    /// Waits for work; `None` when there will be none.
    fn next_work(self: &Arc<Self>) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if let Some(work) = queue.take() {
                self.call_the_next(queue);
                return Some(work);
            }
            if queue.is_closing {
                queue.threads -= 1;
                return None;
            }
            queue.idle += 1;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// POOL-2: more work is queued, so one more worker should be up. If none can be started, those
    /// that are there get to it.
    fn call_the_next(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        if queue.work.is_empty() {
            return;
        }
        if queue.idle > 0 {
            drop(queue);
            self.work.notify_one();
        } else if queue.threads < self.threads.limit() {
            let _ = self.start_thread(&mut queue);
        }
    }
}

impl Queue {
    /// The first task, or a share in the first lot that is not used up; the lot stays in front for
    /// the other workers.
    fn take(&mut self) -> Option<Work> {
        while let Some(Work::Lot(lot)) = self.work.front() {
            if !lot.is_used_up() {
                return Some(Work::Lot(Arc::clone(lot)));
            }
            self.work.pop_front();
        }
        self.work.pop_front()
    }

    fn spare_lot(&mut self) -> Arc<Lot> {
        self.spare.pop().unwrap_or_else(|| {
            Arc::new(Lot { host: None, due: Vec::new(), taken: AtomicUsize::new(0) })
        })
    }

    /// Lets go of a lot that is used up. The last to do so makes it spare, and gets what must be
    /// dropped outside of the lock.
    fn retire(&mut self, mut lot: Arc<Lot>) -> Option<Arc<dyn Host>> {
        if matches!(self.work.front(), Some(Work::Lot(front)) if Arc::ptr_eq(front, &lot)) {
            self.work.pop_front();
        }
        let last = Arc::get_mut(&mut lot)?;
        let host = last.host.take();
        last.due.clear();
        *last.taken.get_mut() = 0;
        if self.spare.len() < SPARE_LOTS {
            self.spare.push(lot);
        }
        host
    }
}

impl Lot {
    fn is_used_up(&self) -> bool {
        // Relaxed: a stale answer costs a worker one look more.
        self.taken.load(Ordering::Relaxed) >= self.due.len()
    }

    /// Takes and runs tasks until none is left.
    fn run_to_the_end(&self) {
        let Some(host) = &self.host else { return };
        // Relaxed: the lot was published by the queue's lock, and each number is given out once.
        loop {
            let place = self.taken.fetch_add(1, Ordering::Relaxed);
            let Some(due) = self.due.get(place) else { break };
            if let Some(soon) = self.due.get(place + AHEAD) {
                host.prefetch(*soon);
            }
            host.run(*due);
        }
    }

    /// Puts a lot back that nobody will run.
    fn refuse_all(&self, batch: &mut DueBatch) {
        let Some(host) = &self.host else { return };
        for due in &self.due {
            batch.reject(Rejected::new(DueTask::held(Arc::clone(host), *due)));
        }
    }
}
