//! The threads of a pool.
//!
//! - W1 A thread is started when there is work, nobody idle, and fewer than the limit: by who brings a
//!   task, and by who takes one and leaves others behind. So somebody waits for the next deadline as
//!   long as any thread is free to.
//! - W2 A thread ends when the queue is closed, and then only; or when the clock panics in its hands, and
//!   then another takes its place if there is work.
//! - W3 At least one thread does not wait, directly or through other pools, for a task of its own pool: the last one
//!   that would is told so, and goes on. [`deadlock`](crate::deadlock) finds it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::future::JoinError;
use super::job::Run;
use super::queue::DelayedWorkQueue;
use crate::deadlock::{PoolThreads, Waiting, runs, wait_for};

/// What all threads of a pool share.
pub(super) struct Crew {
    pub(super) queue: DelayedWorkQueue<Arc<dyn Run>>,
    pub(super) threads: PoolThreads,
    name: String,
    /// Threads that wait for the queue, until all are started. It may be late; then one thread more is
    /// started.
    idle: AtomicUsize,
    /// No thread is to be started any more: the limit is met.
    is_complete: AtomicBool,
    count: Mutex<Count>,
    ended: Condvar,
}

#[derive(Default)]
struct Count {
    alive: usize,
    started: usize,
}

impl Crew {
    pub(super) fn new(
        queue: DelayedWorkQueue<Arc<dyn Run>>,
        limit: usize,
        name: String,
    ) -> Arc<Crew> {
        let (idle, is_complete) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (count, ended) = (Mutex::default(), Condvar::new());
        let threads = PoolThreads::new(limit);
        Arc::new(Crew { queue, threads, name, idle, is_complete, count, ended })
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// W1. An error only if there is no thread at all.
    #[inline]
    pub(super) fn call(self: &Arc<Self>) -> io::Result<()> {
        let is_needed = !self.is_complete() && self.idle.load(Ordering::Relaxed) == 0;
        if is_needed { self.add_thread() } else { Ok(()) }
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    #[cold]
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let mut count = self.count();
        if self.queue.is_closed() {
            return Ok(()); // there is nothing left to do, and the pool may be said to have ended
        }
        if count.alive == self.threads.limit() {
            self.is_complete.store(true, Ordering::Relaxed);
            return Ok(());
        }
        match self.start_thread(count.started + 1) {
            Ok(()) => {
                count.alive += 1;
                count.started += 1;
                Ok(())
            }
            Err(_) if count.alive > 0 => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn start_thread(self: &Arc<Self>, number: usize) -> io::Result<()> {
        let crew = Arc::clone(self);
        let name = format!("{}-{number}", self.name);
        thread::Builder::new().name(name).spawn(move || crew.work()).map(drop)
    }

    /// What a thread does all its life.
    fn work(self: Arc<Self>) {
        self.threads.join();
        let _alive = Alive(&self);
        while let Some(job) = self.next_job() {
            let _runs = runs(Arc::as_ptr(&job).cast::<()>().addr());
            job.run();
        }
    }

    fn next_job(self: &Arc<Self>) -> Option<Arc<dyn Run>> {
        if self.is_complete() {
            return self.queue.take();
        }
        let idle = Idle::new(&self.idle);
        let job = self.queue.take();
        drop(idle);
        if job.is_some() && !self.queue.is_empty() {
            let _ = self.call(); // W1
        }
        job
    }

    // ----- waiting -------------------------------------------------------------------------

    /// Notes that the calling thread waits for this job; W3.
    pub(super) fn begin_wait(&self, job: usize) -> Result<Waiting, JoinError> {
        // What was in a closed queue has been handed out, and may be run by anybody.
        let by = Some(self.threads).filter(|_| !self.queue.is_closed());
        wait_for(job, by).ok_or(JoinError::WouldDeadlock)
    }

    // ----- the end -------------------------------------------------------------------------

    pub(super) fn has_ended(&self) -> bool {
        self.queue.is_closed() && self.count().alive == 0
    }

    pub(super) fn wait_for_the_end(&self, timeout: Duration) -> bool {
        if self.threads.has_this_thread() {
            return false; // the calling thread would have to end first
        }
        let until = Instant::now().checked_add(timeout);
        let mut count = self.count();
        while !(self.queue.is_closed() && count.alive == 0) {
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

    /// The queue is empty, and stays so.
    pub(super) fn dismiss(&self) {
        self.queue.close();
        drop(self.count()); // or who is about to wait for the end could miss it
        self.ended.notify_all();
    }
}

/// A thread that is idle, for as long as this lives.
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

/// A thread of the crew, for as long as this lives.
struct Alive<'a>(&'a Arc<Crew>);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        let Alive(crew) = self;
        crew.count().alive -= 1; // W2
        crew.is_complete.store(false, Ordering::Relaxed);
        crew.ended.notify_all();
        // Who brought a task just now may have counted on this thread.
        if !crew.queue.is_empty() {
            let _ = crew.call();
        }
    }
}
