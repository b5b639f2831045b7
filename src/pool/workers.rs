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
//! - A thread ends when the queue is over: closed, or empty in a pool that is shut down. It also ends when it has been idle
//!   for longer than `keep_alive` and more threads run than the core. The only idle thread stays while the queue has items.
//!   If there is work, another thread is started in place of one that has ended.
//! - At least one thread does not wait, directly or through other pools, for a task of its own pool.
//!   [`deadlock`](crate::executor::deadlock) refuses the wait of the last one.
//! - The factory is user code, so it is called with nothing locked. Until one thread runs, each caller that
//!   needs a thread starts one, because the start by another caller may fail. If this exceeds the limit, a thread ends
//!   as soon as it begins. Of a factory that brings tasks itself, or to a pool whose factory does, they are refused if they
//!   would need one more thread than the limit. Otherwise each start would call for another one without end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::builder::{PoolBuilder, ThreadWork};
use super::shared::{QueuedTask, Shared};
use super::task;
use crate::executor::deadlock::{PoolThreads, while_running};
use crate::platform::panics::{caught, discard, quietly, rest_blind};
use crate::platform::sync::lock_std;

/// How long threads above the core stay idle by default.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The only idle thread stays while the queue has items. If they are all cancelled the pool does not need it any more, and nobody
/// tells it so. So it looks again: after `keep_alive`, then after twice the time, and so on. Each look but the first comes at
/// least this long after the one before. It looks seldom, because an idle pool is to be free.
const FIRST_LOOK: Duration = Duration::from_millis(10);

thread_local! {
    /// The calling thread is in a factory, of whatever pool.
    static IN_FACTORY: Cell<bool> = const { Cell::new(false) };
}

/// What a pool knows of its threads.
pub(super) struct Threads {
    pub(super) pool: PoolThreads,
    name: String,
    /// How many threads stay, however long they are idle.
    core: usize,
    count: Mutex<Count>,
    /// As many threads run as the limit says, so none is to be started. Relaxed: a thread that ends clears it, and looks at the
    /// queue afterwards, under its lock (see `Drop for Worker`).
    is_full: AtomicBool,
    /// Notified when `is_terminated` may have become true.
    ended: Condvar,
}

#[derive(Default)]
struct Count {
    /// The threads that are starting or running, by their numbers, and whether they run. One that is gone is not in it.
    threads: BTreeMap<usize, bool>,
    running: usize,
    /// How many threads were ever started, which numbers them.
    started: usize,
}

impl Threads {
    pub(super) fn new(settings: &PoolBuilder) -> Threads {
        let pool = PoolThreads::new(settings.threads);
        let all_stay = if settings.keep_alive.is_some() { 0 } else { settings.threads };
        Threads {
            name: pool.name_or_number(settings.name.clone()),
            pool,
            core: settings.core.unwrap_or(all_stay).min(settings.threads),
            count: Mutex::default(),
            is_full: AtomicBool::new(false),
            ended: Condvar::new(),
        }
    }
}

impl Shared {
    // ----- threads begin -------------------------------------------------------------------

    /// Starts a thread if one is needed. Returns false only if the start failed and no thread runs.
    #[inline]
    pub(super) fn start_if_needed(self: &Arc<Self>) -> bool {
        let is_full = self.threads.is_full.load(Ordering::Relaxed);
        is_full || !self.queue.needs_taker() || self.start()
    }

    #[cold]
    fn start(self: &Arc<Self>) -> bool {
        let mut count = lock_std(&self.threads.count);
        if self.queue.is_over() {
            return true; // there is nothing left to do, and the pool may have terminated already
        }
        let limit = self.settings.threads;
        if count.running == limit {
            self.threads.is_full.store(true, Ordering::Relaxed);
        }
        if (count.running > 0 || IN_FACTORY.get()) && count.threads.len() >= limit {
            return count.running > 0;
        }
        count.started += 1;
        let number = count.started;
        count.threads.insert(number, false);
        drop(count); // the factory is user code
        let worker = Arc::new(Worker { shared: Arc::clone(self), number });
        let worker_of_thread = Arc::clone(&worker);
        let work: ThreadWork = Box::new(move || worker_of_thread.work());
        let builder = thread::Builder::new().name(format!("{}-{number}", self.threads.name));
        let before = IN_FACTORY.replace(true);
        let answer = caught(|| (self.settings.factory)(builder, work));
        IN_FACTORY.set(before);
        let has_started = matches!(answer, Ok(Ok(())));
        answer.map_or_else(discard, |answer| quietly(|| drop(answer))); // what a user has made
        // If the thread does not own the worker any more, and never began, its work was dropped.
        let is_lost = Arc::strong_count(&worker) == 1
            && lock_std(&self.threads.count).threads.get(&number) == Some(&false);
        if has_started && !is_lost {
            worker.begin(); // it may have begun, and even ended, by itself
            return true;
        }
        // Under the lock, as in `begin`: otherwise a thread that begins just now would be overlooked.
        let count = lock_std(&self.threads.count);
        self.threads.pool.set_available(count.running);
        count.running > 0
    }

    // ----- the end -------------------------------------------------------------------------

    pub(super) fn is_terminated(&self) -> bool {
        self.has_no_threads(&lock_std(&self.threads.count))
    }

    fn has_no_threads(&self, count: &Count) -> bool {
        count.threads.is_empty() && self.queue.is_over()
    }

    /// Waits until the queue is over and all threads have ended. Returns false if the time is up before.
    pub(super) fn await_termination(&self, timeout: Duration) -> bool {
        if self.threads.pool.has_this_thread() {
            return false; // the calling thread would have to end first
        }
        let (count, ended) = (lock_std(&self.threads.count), &self.threads.ended);
        let waited = ended.wait_timeout_while(count, timeout, |count| !self.has_no_threads(count));
        self.has_no_threads(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Has all threads look again that wait: those of the pool, which end if the queue is over, and those that wait for the
    /// end.
    pub(super) fn look_again(&self) {
        self.queue.wake_takers();
        drop(lock_std(&self.threads.count)); // so that a thread between its look and its wait does not miss the notification
        self.threads.ended.notify_all();
    }
}

/// One thread. It is owned by the thread itself, and in the meantime by the call that starts it.
struct Worker {
    shared: Arc<Shared>,
    number: usize,
}

impl Worker {
    /// Runs tasks until the thread is to end.
    fn work(self: Arc<Self>) {
        if !self.begin() {
            return;
        }
        self.shared.threads.pool.join();
        let mut is_blind = false;
        loop {
            match self.shared.settings.on_panic.catch(None, || self.wait_while_idle()) {
                Some(Some(task)) => {
                    is_blind = false;
                    self.shared.start_if_needed(); // for the tasks that it leaves behind
                    let address = Arc::as_ptr(&task).cast::<()>().addr();
                    while_running(address, || task::run(&self.shared, task));
                }
                Some(None) => return,
                None if is_blind => rest_blind(),
                None => is_blind = true, // a clock that has panicked once is asked again at once
            }
        }
    }

    /// Waits for a task that is due. Returns `None` if the thread is to end.
    fn wait_while_idle(&self) -> Option<QueuedTask> {
        let Shared { queue, threads, settings, .. } = &*self.shared;
        let mut wait = settings.keep_alive.unwrap_or(KEEP_ALIVE);
        loop {
            let all_stay = threads.core == settings.threads;
            let stays = all_stay || lock_std(&threads.count).running <= threads.core;
            let task = if stays { queue.take() } else { queue.poll_timeout(wait) };
            if task.is_some() || queue.is_over() || self.may_end() {
                return task;
            }
            wait = wait.saturating_mul(2).max(FIRST_LOOK);
        }
    }

    /// Called when the thread has waited in vain. Returns true if it is to end; then it is no longer counted.
    fn may_end(&self) -> bool {
        let mut count = lock_std(&self.shared.threads.count);
        if count.running <= self.shared.threads.core || self.shared.queue.needs_taker() {
            return false;
        }
        self.leave(&mut count);
        true
    }

    /// Counts the thread as running, if it was starting. Returns false if it is to end, because it is one too many
    /// for the limit.
    fn begin(&self) -> bool {
        let mut count = lock_std(&self.shared.threads.count);
        if count.threads.get(&self.number) == Some(&false) {
            let has_room = count.running < self.shared.settings.threads;
            count.running += usize::from(has_room);
            count.threads.remove(&self.number);
            count.threads.extend(has_room.then_some((self.number, true)));
            self.shared.threads.pool.set_available(self.shared.settings.threads);
        }
        count.threads.contains_key(&self.number)
    }

    /// Counts the thread no longer. Returns true if it was starting.
    fn leave(&self, count: &mut Count) -> bool {
        let before = count.threads.remove(&self.number);
        count.running -= usize::from(before == Some(true));
        before == Some(false)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let threads = &self.shared.threads;
        let was_starting = self.leave(&mut lock_std(&threads.count));
        threads.is_full.store(false, Ordering::Relaxed); // another thread may take its place
        if self.shared.queue.is_over() {
            self.shared.look_again(); // this thread has taken the last task
        }
        // A thread that has just brought a task may have relied on this one: it found this one in the list of takers, or
        // `is_full`. It has put its task in before.
        if !was_starting {
            self.shared.start_if_needed();
        }
    }
}
