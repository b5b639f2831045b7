//! The threads of a pool, and how they are started and end.
//!
//! ```text
//!   Starting ── the factory returns Ok, or the thread begins ──> Running ── its work is done ──> Gone
//!       '────── the factory fails, or drops the work ─────────────────────────────────────────────^
//! ```
//!
//! - A thread is started when there is work, no idle thread, and fewer threads than the limit. It is started
//!   by the caller that brings a task, or by a thread that takes a task and leaves others behind. So a thread waits for
//!   the next deadline as long as one is free to.
//! - A thread ends when the queue is closed, when the clock panics in its hands, or when it has been idle for
//!   longer than `keep_alive` and more threads run than the core. The only idle thread stays while the queue has items.
//!   If there is work, another thread is started in place of one that has ended.
//! - At least one thread does not wait, directly or through other pools, for a task of its own pool.
//!   [`deadlock`](crate::executor::deadlock) refuses the wait of the last one.
//! - The factory is user code, so it is called with nothing locked. Until one thread runs, each caller that
//!   needs a thread starts one, because the start by another caller may fail. If this exceeds the limit, a thread ends
//!   as soon as it begins.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::queue::DelayedWorkQueue;
use super::task::{self, QueuedTask};
use crate::executor::deadlock::{PoolThreads, runs};

/// Starts a thread that does some work.
pub(super) type ThreadFactory =
    Box<dyn Fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<()> + Send + Sync>;

/// How threads are started, and when they end.
pub(super) struct WorkerSettings {
    pub(super) limit: usize,
    /// How many threads stay, however long they are idle.
    pub(super) core: usize,
    /// How long the others stay idle before they end.
    pub(super) keep_alive: Duration,
    /// `None`: the pool's number stands for it.
    pub(super) name: Option<String>,
    pub(super) factory: ThreadFactory,
}

/// The queue of a pool, and the threads that run what is due.
pub(super) struct Workers {
    pub(super) queue: DelayedWorkQueue<Arc<dyn QueuedTask>>,
    pub(super) threads: PoolThreads,
    settings: WorkerSettings,
    thread_name: String,
    /// How many threads wait for the queue. Not counted while `is_full`. Both are Relaxed: an old value may start a
    /// thread too many, and the thread that changes them looks at the queue afterwards, under its lock (see `Drop for
    /// Worker`).
    idle: AtomicUsize,
    /// As many threads run as the limit says, and all of them are core: no thread is to be started, and none ends.
    is_full: AtomicBool,
    count: Mutex<Count>,
    /// Notified when `is_terminated` may have become true.
    ended: Condvar,
}

#[derive(Default)]
struct Count {
    starting: usize,
    running: usize,
    /// How many threads were ever started, which numbers them.
    started: usize,
}

impl Workers {
    pub(super) fn new(
        queue: DelayedWorkQueue<Arc<dyn QueuedTask>>,
        mut settings: WorkerSettings,
    ) -> Arc<Workers> {
        let (idle, is_full) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (count, ended) = (Mutex::default(), Condvar::new());
        let threads = PoolThreads::new(settings.limit);
        let thread_name = threads.name_or_number(settings.name.take());
        Arc::new(Workers { queue, threads, settings, thread_name, idle, is_full, count, ended })
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ----- threads begin -------------------------------------------------------------------

    /// Starts a thread if one is needed. Returns an error only if the start failed and no thread runs.
    #[inline]
    pub(super) fn start_if_needed(self: &Arc<Self>) -> io::Result<()> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        if is_full || self.idle.load(Ordering::Relaxed) > 0 { Ok(()) } else { self.start() }
    }

    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let Some((number, worker)) = self.reserve() else { return Ok(()) };
        let worker_of_thread = Arc::clone(&worker);
        let work: Box<dyn FnOnce() + Send> = Box::new(move || worker_of_thread.work());
        let builder = thread::Builder::new().name(format!("{}-{number}", self.thread_name));
        let start = AssertUnwindSafe(|| (self.settings.factory)(builder, work));
        let mut started = catch_unwind(start)
            .unwrap_or_else(|_| Err(io::Error::other("the thread factory has panicked")));
        // If the thread does not own the worker any more, and never began, its work was dropped.
        let is_alone = Arc::strong_count(&worker) == 1;
        if started.is_ok() && is_alone && *worker.state() == WorkerState::Starting {
            started = Err(io::Error::other("its work was dropped"));
        }
        match started {
            Ok(()) => _ = worker.begin(),
            Err(error) if self.count().running == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Counts one thread more as starting, if there may be one, and returns it with its number.
    fn reserve(self: &Arc<Self>) -> Option<(usize, Arc<Worker>)> {
        let mut count = self.count();
        if self.queue.is_closed() {
            return None; // there is nothing left to do, and the pool may have terminated already
        }
        let (limit, core) = (self.settings.limit, self.settings.core);
        if count.running == limit && core == limit {
            self.is_full.store(true, Ordering::Relaxed);
        }
        if count.running > 0 && count.running + count.starting >= limit {
            return None;
        }
        count.starting += 1;
        count.started += 1;
        let (workers, state) = (Arc::clone(self), Mutex::new(WorkerState::Starting));
        Some((count.started, Arc::new(Worker { workers, state })))
    }

    // ----- threads work --------------------------------------------------------------------

    /// Waits for a task that is due. Returns `None` if the calling thread is to end.
    fn next_task(self: &Arc<Self>, worker: &Worker) -> Option<Arc<dyn QueuedTask>> {
        if self.is_full.load(Ordering::Relaxed) {
            return self.queue.take();
        }
        let idle = Idle::new(&self.idle);
        let task = loop {
            let Some(timeout) = self.idle_timeout() else { break self.queue.take() };
            let task = self.queue.poll_timeout(timeout);
            if task.is_some() || self.queue.is_closed() || self.may_end(worker) {
                break task;
            }
        };
        drop(idle);
        if task.is_some() && !self.queue.is_empty() {
            let _ = self.start_if_needed(); // for the tasks that are left behind
        }
        task
    }

    /// Returns how long a thread waits for work before it may end, or `None` if it stays.
    fn idle_timeout(&self) -> Option<Duration> {
        let WorkerSettings { limit, core, keep_alive, .. } = self.settings;
        if core == limit || self.count().running <= core {
            return None;
        }
        // The only idle thread waits for the next deadline. If that task is cancelled, it ends later than it might.
        let needed =
            if self.is_the_only_idle() { self.queue.time_to_next() } else { Duration::ZERO };
        Some(needed.saturating_add(keep_alive))
    }

    /// If two threads end because each believes that the other waits, the last of them starts another thread.
    fn is_the_only_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) <= 1
    }

    /// Called by a thread that has waited in vain. Returns true if it is to end; then it is no longer
    /// counted.
    fn may_end(&self, worker: &Worker) -> bool {
        let mut count = self.count();
        let is_needed = self.is_the_only_idle() && !self.queue.is_empty();
        if count.running <= self.settings.core || is_needed {
            return false;
        }
        worker.leave(&mut count);
        true
    }

    // ----- the end -------------------------------------------------------------------------

    pub(super) fn is_terminated(&self) -> bool {
        let count = self.count();
        self.has_no_threads(&count)
    }

    fn has_no_threads(&self, count: &Count) -> bool {
        self.queue.is_closed() && count.running + count.starting == 0
    }

    /// Waits until the queue is closed and all threads have ended. Returns false if the time is up before.
    pub(super) fn await_termination(&self, timeout: Duration) -> bool {
        if self.threads.has_this_thread() {
            return false; // the calling thread would have to end first
        }
        let until = Instant::now().checked_add(timeout);
        let mut count = self.count();
        while !self.has_no_threads(&count) {
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let woken = self.ended.wait_timeout(count, left);
            count = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Closes the queue, so that all threads end.
    pub(super) fn close(&self) {
        self.queue.close();
        drop(self.count()); // so that a thread between its look and its wait does not miss the notification
        self.ended.notify_all();
    }
}

/// Counts a thread as idle until it is dropped, also if the clock panics.
struct Idle<'a>(&'a AtomicUsize);

impl Idle<'_> {
    fn new(idle: &AtomicUsize) -> Idle<'_> {
        idle.fetch_add(1, Ordering::Relaxed);
        Idle(idle)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One thread. It is owned by the thread itself, and in the meantime by the call that starts it.
struct Worker {
    workers: Arc<Workers>,
    /// Locked alone, or while the count is locked.
    state: Mutex<WorkerState>,
}

/// How a thread is counted. The drawing is at the top of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Starting,
    Running,
    Gone,
}

impl Worker {
    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until the thread is to end.
    fn work(self: Arc<Self>) {
        if !self.begin() {
            return;
        }
        self.workers.threads.join();
        while let Some(task) = self.workers.next_task(&self) {
            let _runs = runs(Arc::as_ptr(&task).cast::<()>().addr());
            task::run(task);
        }
    }

    /// Counts the thread as running, if it was starting. Returns false if it is to end, because it is one too many
    /// for the limit.
    fn begin(&self) -> bool {
        let limit = self.workers.settings.limit;
        let mut count = self.workers.count();
        let mut state = self.state();
        if *state == WorkerState::Starting {
            count.starting -= 1;
            let has_room = count.running < limit;
            count.running += usize::from(has_room);
            *state = if has_room { WorkerState::Running } else { WorkerState::Gone };
        }
        debug_assert!(count.running <= limit, "more threads than the limit");
        *state == WorkerState::Running
    }

    fn leave(&self, count: &mut Count) {
        let before = std::mem::replace(&mut *self.state(), WorkerState::Gone);
        match before {
            WorkerState::Starting => count.starting -= 1,
            WorkerState::Running => count.running -= 1,
            WorkerState::Gone => {}
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let workers = &self.workers;
        let has_begun = *self.state() != WorkerState::Starting;
        self.leave(&mut workers.count());
        workers.is_full.store(false, Ordering::Relaxed); // another thread may take its place
        workers.ended.notify_all();
        // A thread that has just brought a task may have relied on this one. Both take the queue's lock in between,
        // which orders this look and that thread's look at `idle`.
        if has_begun && !workers.queue.is_empty() {
            let _ = workers.start_if_needed();
        }
    }
}
