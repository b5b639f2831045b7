//! A pool of threads, the default executor.
//!
//! ```text
//!   tick thread --- one lock per batch ---> queue: [ batch | batch | task | batch ]
//!                                                      ^ every worker takes from the first batch,
//!                                                        task by task, by a counter
//! ```
//!
//! A batch in the queue has a counter of how many of its tasks have been taken. All workers take from the same batch,
//! each by raising the counter, until it is used up. So the tick thread pays for one push per batch, a worker pays for
//! one atomic operation per task, and no task waits behind a slow one while another worker is free.
//!
//! No task runs and no task is dropped under the lock (S11).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::due::{AHEAD, DueTask, Origin, Refusal, Rejected};
use super::{DueBatch, Executor};
use crate::executor::deadlock::PoolThreads;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::platform::sleep::wake_as_usual;
use crate::platform::sync::lock_std;
use crate::wheel::Timed;
use crate::wheel::entry::Entry;

/// An executor that runs tasks on threads of its own, which start on first use.
///
/// A task that blocks holds up one thread, and no other task while a thread is free. Dropping the pool never blocks:
/// its threads run the tasks that were accepted, and end.
///
/// ```
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
///
/// To stop the pool and wait for its tasks, keep it in an `Arc`, which is an executor too:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let pool = Arc::new(ThreadPool::new(2));
/// let scheduler = Scheduler::builder().executor(Arc::clone(&pool)).build()?;
/// scheduler.schedule_once(Duration::from_secs(3600), || println!("an hour"))?;
/// drop(scheduler.close()?); // no more tasks come
/// pool.shutdown();
/// assert!(pool.await_termination(Duration::from_secs(5)), "what the pool had accepted has run");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ExecutorService")]
pub struct ThreadPool {
    shared: Arc<Shared>,
}

struct Shared {
    threads: PoolThreads,
    name: String,
    queue: Mutex<Queue>,
    work: Condvar,
    /// Notified when `Queue::is_terminated` may have become true.
    ended: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Batches to be used again, 256 at most, so that a steady flow allocates nothing.
    spare: Vec<Arc<QueuedBatch>>,
    threads: usize,
    idle: usize,
    is_closing: bool,
}

enum Work {
    Batch(Arc<QueuedBatch>),
    Task(DueTask),
}

#[derive(Default)]
struct QueuedBatch {
    /// `None` while the batch is spare, so that it keeps no scheduler alive.
    origin: Option<Origin>,
    due: Vec<Entry>,
    /// How many tasks have been taken. It may exceed their number.
    taken: AtomicUsize,
}

impl ThreadPool {
    /// Makes a pool of at most this many threads, and at least one. They are called `pool-N-thread-1`,
    /// `pool-N-thread-2` and so on, with another `N` for each pool of the process.
    pub fn new(threads: usize) -> ThreadPool {
        ThreadPool::with(threads, None)
    }

    /// Like [`new`](ThreadPool::new), with a name: the threads are called `name-1`, `name-2` and so on.
    pub fn named(threads: usize, name: impl Into<String>) -> ThreadPool {
        ThreadPool::with(threads, Some(name.into()))
    }

    fn with(threads: usize, name: Option<String>) -> ThreadPool {
        let threads = PoolThreads::new(threads.max(1));
        let shared = Shared {
            name: threads.name_or_number(name),
            threads,
            queue: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
        };
        ThreadPool { shared: Arc::new(shared) }
    }

    /// Makes a pool of as many threads as the machine runs at once.
    pub(crate) fn of_the_machine(name: Option<String>) -> ThreadPool {
        ThreadPool::with(thread::available_parallelism().map_or(1, usize::from), name)
    }

    // ----- the end -------------------------------------------------------------------------

    /// Refuses further tasks. Those that were accepted run, and then the threads end. A second call does nothing.
    ///
    /// It does not wait for the tasks: see [`await_termination`](ThreadPool::await_termination). A scheduler keeps the
    /// tasks that are [refused for good](Rejected::for_good) from now on, and returns them when it is closed. A
    /// [worker](crate::rx::Worker) on the pool runs what is queued, and takes no more.
    pub fn shutdown(&self) {
        lock_std(&self.shared.queue).is_closing = true;
        self.shared.work.notify_all();
        self.shared.ended.notify_all(); // for a pool that has no thread to do so at its end
    }

    /// Returns true if the pool refuses tasks because it was shut down.
    #[doc(alias = "isShutdown")]
    pub fn is_shutdown(&self) -> bool {
        lock_std(&self.shared.queue).is_closing
    }

    /// Returns true if the pool was shut down, and its tasks and threads have ended.
    #[doc(alias = "isTerminated")]
    pub fn is_terminated(&self) -> bool {
        lock_std(&self.shared.queue).is_terminated()
    }

    /// Waits until the pool has terminated, at most for the given time by the system's clock. Returns true if it has.
    /// Nothing but [`shutdown`](ThreadPool::shutdown) makes it terminate.
    ///
    /// Inside a task of the same pool it returns false at once, because the pool terminates after that task.
    #[doc(alias = "awaitTermination")]
    pub fn await_termination(&self, timeout: Duration) -> bool {
        if self.shared.threads.has_this_thread() {
            return false;
        }
        let queue = lock_std(&self.shared.queue);
        let is_left = |queue: &mut Queue| !queue.is_terminated();
        let waited = self.shared.ended.wait_timeout_while(queue, timeout, is_left);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_terminated()
    }

    // ----- tasks come in -------------------------------------------------------------------

    /// Locks the queue for work that comes in, and calls `add` with it. Refuses if the pool is shut down, or has no thread and
    /// none can be started.
    fn push(&self, add: impl FnOnce(&mut Queue)) -> Result<(), Refusal> {
        let mut queue = lock_std(&self.shared.queue);
        if queue.is_closing {
            let goes_on_here = self.shared.threads.has_this_thread();
            let finishing = Refusal::Finishing { goes_on_here };
            return Err(if queue.is_terminated() { Refusal::ForGood } else { finishing });
        }
        // With at least one thread the work waits in the queue, however few the system starts.
        let is_first = queue.threads == 0;
        if is_first && !self.shared.start_thread(&mut queue) {
            return Err(Refusal::ForNow);
        }
        add(&mut queue);
        // One worker only, which wakes the next one. So the tick thread wakes at most one thread per batch.
        if !is_first {
            self.shared.wake_another(queue);
        }
        Ok(())
    }
}

impl Default for ThreadPool {
    /// Makes a pool of as many threads as the machine runs at once.
    fn default() -> ThreadPool {
        ThreadPool::of_the_machine(None)
    }
}

impl Executor for ThreadPool {
    /// Refuses a task [for good](Rejected::for_good) if the pool is [shut down](ThreadPool::shutdown), and for now if it has
    /// no thread and the system does not start one.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let mut task = Some(task);
        let pushed = self.push(|queue| queue.work.extend(task.take().map(Work::Task)));
        pushed.map_err(|refusal| Rejected { task: task.expect("it was not taken"), refusal })
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        if batch.is_empty() {
            return; // others have taken its tasks
        }
        let pushed = self.push(|queue| {
            // A batch of one needs no counter and no list.
            if batch.len() == 1 {
                return queue.work.extend(batch.next().map(Work::Task));
            }
            // The entries are copied into a batch of our own, because the engine fills its own anew at once.
            let mut queued = queue.spare.pop().unwrap_or_default();
            let fill = Arc::get_mut(&mut queued).expect("nobody else has a spare batch");
            fill.origin = Some(batch.take_all(&mut fill.due));
            queue.work.push_back(Work::Batch(queued));
        });
        if let Err(refusal) = pushed {
            // One task is enough to tell for how long. Those that stay in the batch are refused too.
            let refused = batch.next().map(|task| Rejected { task, refusal });
            refused.into_iter().for_each(|refused| batch.reject(refused));
        }
    }

    fn threads(&self) -> Option<PoolThreads> {
        Some(self.shared.threads.clone())
    }
}

impl Drop for ThreadPool {
    /// Does not wait for the threads, because a task may drop the pool.
    fn drop(&mut self) {
        self.shutdown();
    }
}

// Each count is read in a block of its own, so nothing is locked while the formatter, user code, runs.
impl_debug!(ThreadPool, self,
    name: self.shared.name,
    limit: self.shared.threads.limit,
    threads: { lock_std(&self.shared.queue).threads },
    idle: { lock_std(&self.shared.queue).idle }
);

impl Shared {
    /// Starts a thread. Returns false if the system does not.
    fn start_thread(self: &Arc<Self>, queue: &mut Queue) -> bool {
        let shared = Arc::clone(self);
        // A thread ends only when the pool is closing and has no more work, and none is started after that.
        let name = format!("{}-{}", self.name, queue.threads + 1);
        // Under the lock, so that the count is right. It happens once for each thread.
        let has_started =
            thread::Builder::new().name(name).spawn(move || shared.run_worker()).is_ok();
        queue.threads += usize::from(has_started);
        let available = if has_started { self.threads.limit } else { queue.threads };
        self.threads.set_available(available);
        has_started
    }

    /// The body of a worker thread.
    fn run_worker(self: Arc<Self>) {
        wake_as_usual();
        self.threads.join();
        while let Some(work) = self.next_work() {
            // A task's panic is caught by its scheduler. This catches panics of what is dropped with the last owner of
            // a scheduler, such as a user's clock.
            quietly(|| match work {
                Work::Task(task) => task.run(),
                Work::Batch(batch) => {
                    batch.run();
                    let origin = lock_std(&self.queue).retire(batch);
                    drop(origin); // with the lock released, because it may drop a scheduler, and a user's clock with it
                }
            });
        }
    }

    /// Waits for work. Returns `None` if the pool is closing and has no more.
    fn next_work(self: &Arc<Self>) -> Option<Work> {
        let mut queue = lock_std(&self.queue);
        loop {
            if let Some(work) = queue.take() {
                self.wake_another(queue);
                return Some(work);
            }
            // Only when the queue is empty, so what was accepted runs.
            if queue.is_closing {
                queue.threads -= 1;
                if queue.is_terminated() {
                    self.ended.notify_all();
                }
                return None;
            }
            queue.work.shrink_to(1024); // a crowd leaves no memory behind, and a steady flow allocates nothing
            queue.idle += 1;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Wakes or starts one more worker if more work is queued.
    fn wake_another(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        if queue.work.is_empty() {
            return;
        }
        // If none is idle and none can be started, those that run do it after their tasks.
        if queue.idle > 0 {
            drop(queue);
            self.work.notify_one();
        } else if queue.threads < self.threads.limit {
            self.start_thread(&mut queue);
        }
    }
}

impl Queue {
    /// Without a thread there is no work either.
    fn is_terminated(&self) -> bool {
        self.is_closing && self.threads == 0
    }

    /// Takes the first task, or a share in the first batch that is not used up.
    fn take(&mut self) -> Option<Work> {
        while let Some(Work::Batch(batch)) = self.work.front() {
            // Relaxed: a stale count costs a worker one more look.
            if batch.taken.load(Ordering::Relaxed) < batch.due.len() {
                // It stays in front for the other workers.
                return Some(Work::Batch(Arc::clone(batch)));
            }
            self.work.pop_front();
        }
        self.work.pop_front()
    }

    /// Drops a worker's share in a batch that is used up. The last worker to do so makes the batch spare, and gets its
    /// scheduler, to be dropped outside of the lock.
    fn retire(&mut self, mut batch: Arc<QueuedBatch>) -> Option<Origin> {
        if matches!(self.work.front(), Some(Work::Batch(front)) if Arc::ptr_eq(front, &batch)) {
            self.work.pop_front();
        }
        // Other workers may still run tasks of it. The last of them comes past here.
        let last = Arc::get_mut(&mut batch)?;
        debug_assert!(*last.taken.get_mut() >= last.due.len(), "every task was taken");
        let origin = last.origin.take();
        // The scheduler goes now, so that a spare batch keeps no scheduler alive.
        last.due.clear();
        *last.taken.get_mut() = 0;
        if self.spare.len() < 256 {
            self.spare.push(batch);
        }
        origin
    }
}

impl QueuedBatch {
    /// Takes and runs tasks until none is left.
    fn run(&self) {
        let Some(origin) = &self.origin else { return };
        loop {
            // Relaxed: the queue's lock has published the batch, and each index is given out once.
            let index = self.taken.fetch_add(1, Ordering::Relaxed);
            let Some(due) = self.due.get(index) else { break };
            self.due.get(index + AHEAD).inspect(|soon| soon.prefetch());
            origin.run(*due);
        }
    }
}
