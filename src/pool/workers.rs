//! The threads of a pool.
//!
//! ```text
//!   in the air ── the factory says Ok, or it begins ──> counted ── its work is done ──> gone
//!       '──────── the factory says no, or drops it ────────────────────────────────────^
//! ```
//!
//! - THREAD-1 A thread is started when there is work, no idle thread, and fewer threads than the limit: by the caller who
//!   brings a task, and by the thread that takes one and leaves others behind. So a thread waits for the next deadline
//!   as long as any is free to.
//! - THREAD-2 A thread ends when the queue is closed; when it is idle for longer than the pool's patience, and more threads
//!   than the core are counted; or when the clock panics in its hands. The only idle one stays while anything is in
//!   the queue. If there is work, another one takes the place of a thread that has ended.
//! - THREAD-3 At least one thread does not wait, directly or through other pools, for a task of its own pool: the last one
//!   that would is told so, and goes on. [`deadlock`](crate::executor::deadlock) finds it.
//! - THREAD-4 The factory is the user's code, so it is called with nothing locked. Until one thread is counted, each caller
//!   who needs one starts one: nobody relies on a start that may fail. A thread that so exceeds the limit ends as it
//!   begins.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::queue::DelayedWorkQueue;
use super::task::Run;
use crate::executor::deadlock::{PoolThreads, runs};

/// Starts a thread that does some work.
pub(super) type ThreadFactory =
    Box<dyn Fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<()> + Send + Sync>;

/// How threads are started, and when they end.
pub(super) struct Staffing {
    pub(super) limit: usize,
    /// So many stay, however long they are idle.
    pub(super) core: usize,
    /// The others end after being idle for so long.
    pub(super) keep_alive: Duration,
    pub(super) name: String,
    pub(super) factory: ThreadFactory,
}

/// What all threads of a pool share.
pub(super) struct Crew {
    pub(super) queue: DelayedWorkQueue<Arc<dyn Run>>,
    pub(super) threads: PoolThreads,
    staffing: Staffing,
    /// Threads that wait for the queue, until all are started. It may be late; then one thread more is
    /// started.
    idle: AtomicUsize,
    /// The limit is met, and the core is the limit: no thread is to be started, and none ends.
    is_complete: AtomicBool,
    count: Mutex<Count>,
    ended: Condvar,
}

#[derive(Default)]
struct Count {
    in_the_air: usize,
    counted: usize,
    started: usize,
}

impl Crew {
    pub(super) fn new(queue: DelayedWorkQueue<Arc<dyn Run>>, staffing: Staffing) -> Arc<Crew> {
        let (idle, is_complete) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (count, ended) = (Mutex::default(), Condvar::new());
        let threads = PoolThreads::new(staffing.limit);
        Arc::new(Crew { queue, threads, staffing, idle, is_complete, count, ended })
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ----- threads begin -------------------------------------------------------------------

    /// THREAD-1. An error only if there is no thread at all.
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
        let Some((number, member)) = self.reserve() else { return Ok(()) };
        let begun = Arc::clone(&member);
        let work: Box<dyn FnOnce() + Send> = Box::new(move || begun.work());
        let builder = thread::Builder::new().name(format!("{}-{number}", self.staffing.name));
        let start = AssertUnwindSafe(|| (self.staffing.factory)(builder, work));
        let started = match catch_unwind(start) {
            Ok(Ok(())) if member.is_forgotten() => Err(io::Error::other("its work was dropped")),
            Ok(started) => started,
            Err(_) => Err(io::Error::other("the thread factory has panicked")),
        };
        match started {
            Ok(()) => _ = member.count_in(),
            Err(error) if self.count().counted == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// A place for one thread more, and its number.
    fn reserve(self: &Arc<Self>) -> Option<(usize, Arc<Member>)> {
        let mut count = self.count();
        if self.queue.is_closed() {
            return None; // there is nothing left to do, and the pool may be said to have ended
        }
        let (limit, core) = (self.staffing.limit, self.staffing.core);
        if count.counted == limit && core == limit {
            self.is_complete.store(true, Ordering::Relaxed);
        }
        if count.counted > 0 && count.counted + count.in_the_air >= limit {
            return None;
        }
        count.in_the_air += 1;
        count.started += 1;
        let (place, crew) = (Mutex::new(Place::InTheAir), Arc::clone(self));
        Some((count.started, Arc::new(Member { crew, place })))
    }

    // ----- threads work --------------------------------------------------------------------

    /// The next job; `None` if the calling thread is to end.
    fn next_job(self: &Arc<Self>, member: &Member) -> Option<Arc<dyn Run>> {
        if self.is_complete() {
            return self.queue.take();
        }
        let idle = Idle::new(&self.idle);
        let job = self.wait_for_job(member);
        drop(idle);
        if job.is_some() && !self.queue.is_empty() {
            let _ = self.call(); // THREAD-1
        }
        job
    }

    fn wait_for_job(&self, member: &Member) -> Option<Arc<dyn Run>> {
        loop {
            let Some(patience) = self.patience() else { return self.queue.take() };
            let job = self.queue.poll_timeout(patience);
            if job.is_some() || self.queue.is_closed() || self.may_end(member) {
                return job;
            }
        }
    }

    /// For how long a thread is to wait for work; THREAD-2.
    fn patience(&self) -> Option<Duration> {
        let Staffing { limit, core, keep_alive, .. } = self.staffing;
        if core == limit {
            return None;
        }
        if self.count().counted <= core {
            return None;
        }
        // It waits for the next deadline, and ends later if that is cancelled meanwhile.
        let needed =
            if self.is_the_only_idle() { self.queue.time_to_next() } else { Duration::ZERO };
        Some(needed.saturating_add(keep_alive))
    }

    /// Relaxed: if two threads end, each in the belief that the other waits, the last of them starts another one.
    fn is_the_only_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) <= 1
    }

    /// THREAD-2, after a wait in vain. If so, the thread is counted no more.
    fn may_end(&self, member: &Member) -> bool {
        let mut count = self.count();
        let is_needed = self.is_the_only_idle() && !self.queue.is_empty();
        if count.counted <= self.staffing.core || is_needed {
            return false;
        }
        member.leave(&mut count);
        true
    }

    // ----- the end -------------------------------------------------------------------------

    pub(super) fn is_terminated(&self) -> bool {
        let count = self.count();
        self.queue.is_closed() && count.counted + count.in_the_air == 0
    }

    pub(super) fn wait_for_the_end(&self, timeout: Duration) -> bool {
        if self.threads.has_this_thread() {
            return false; // the calling thread would have to end first
        }
        let until = Instant::now().checked_add(timeout);
        let mut count = self.count();
        while !(self.queue.is_closed() && count.counted + count.in_the_air == 0) {
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

/// A thread of the crew: the thread has one owner of it, and the call that starts it another.
struct Member {
    crew: Arc<Crew>,
    /// Locked inside of the crew's count, and by itself.
    place: Mutex<Place>,
}

/// How a thread is counted. The drawing is at the top of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    InTheAir,
    Counted,
    Gone,
}

impl Member {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does all its life.
    fn work(self: Arc<Self>) {
        let crew = &self.crew;
        if !self.count_in() {
            return;
        }
        crew.threads.join();
        while let Some(job) = crew.next_job(&self) {
            let _runs = runs(Arc::as_ptr(&job).cast::<()>().addr());
            job.run();
        }
    }

    /// Counts it, if it is in the air. False if it has left, because it was one too many; THREAD-4.
    fn count_in(&self) -> bool {
        let mut count = self.crew.count();
        let mut place = self.place();
        if *place == Place::InTheAir {
            count.in_the_air -= 1;
            let has_room = count.counted < self.crew.staffing.limit;
            count.counted += usize::from(has_room);
            *place = if has_room { Place::Counted } else { Place::Gone };
        }
        *place == Place::Counted
    }

    fn leave(&self, count: &mut Count) {
        match std::mem::replace(&mut *self.place(), Place::Gone) {
            Place::InTheAir => count.in_the_air -= 1,
            Place::Counted => count.counted -= 1,
            Place::Gone => {}
        }
    }

    /// Whether its work was dropped before it began.
    fn is_forgotten(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && *self.place() == Place::InTheAir
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let crew = &self.crew;
        let has_begun = *self.place() != Place::InTheAir;
        self.leave(&mut crew.count());
        crew.is_complete.store(false, Ordering::Relaxed); // THREAD-2
        crew.ended.notify_all();
        // A thread that has just brought a task may have counted on this one. The queue's lock, which both take in
        // between, orders this look and that thread's look at `idle`.
        if has_begun && !crew.queue.is_empty() {
            let _ = crew.call();
        }
    }
}
