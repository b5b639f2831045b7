//! Detects a deadlock before it happens: among pools whose threads join tasks, and in a thread that waits for a timer
//! which only that thread can serve.
//!
//! # Joins
//!
//! A thread of a pool that is about to wait for a task notes which task it waits for, and which tasks it
//! runs: several, if a task turns a driver whose tasks run in it.
//!
//! ```text
//!   a thread of A ── waits for ──> a task in B's queue ── needs one of ──> the threads of B ── wait for ──> ...
//!   a thread of A ── waits for ──> a task that runs ───── needs ─────────> the thread that runs it
//! ```
//!
//! Follow these arrows from the thread that is about to wait. If they reach a thread that does not wait, that thread
//! may go on. If they lead to waiting threads only, none of them will ever go on, and the wait that would close the
//! circle is refused. A pool says how many threads it can have; if one of these cannot be started, the waits that counted on
//! it look again.
//!
//! A wait that is refused is a deadlock, unless one of the tasks is cancelled. But not every deadlock is detected: a
//! deadlock through a channel, a lock or an executor of another crate is not.
//!
//! # Timers
//!
//! [`block_on`](crate::future::block_on) inside a task on the tick thread blocks the thread that serves the timers of
//! that scheduler. It is a deadlock if no other thread can wake the future. That is so if each clone of its waker is in
//! such a timer.
//!
//! - DEADLOCK-1 A timer is counted after its waker was cloned, and discounted before that clone is given away or
//!   dropped. The number of clones is read before the number of timers. So a clone outside of the timers is never taken
//!   for one that is in a timer.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, Thread, ThreadId};

use crate::platform::sync::lock_std;

// ----- joins -------------------------------------------------------------------------------

/// A pool's number, and how many threads it has at most.
#[derive(Clone, Debug)]
pub struct PoolThreads {
    pool: u64,
    pub(crate) limit: usize,
    /// How many threads may run a task: the limit, or fewer if the system starts no more. Relaxed, because it is looked at
    /// anew by each wait.
    available: Arc<AtomicUsize>,
}

thread_local! {
    /// The number of the pool that the calling thread belongs to, or zero.
    static POOL: Cell<u64> = const { Cell::new(0) };
    /// The addresses of the tasks that the calling thread runs: several, if a task turns a driver whose tasks run in it. And
    /// those of the delay queues whose `with` has called a closure.
    static TASKS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl PoolThreads {
    /// Gives a number to a pool of at most `limit` threads.
    pub(crate) fn new(limit: usize) -> PoolThreads {
        // Relaxed: the numbers need only differ.
        static POOLS: AtomicU64 = AtomicU64::new(1);
        let pool = POOLS.fetch_add(1, Ordering::Relaxed);
        PoolThreads { pool, limit, available: Arc::new(AtomicUsize::new(limit)) }
    }

    /// Returns the name of the pool's threads, which have a number behind it: the given one, or `pool-N-thread`, in which
    /// `N` is the pool's number.
    pub(crate) fn name_or_number(&self, name: Option<String>) -> String {
        let name = name.unwrap_or_else(|| format!("pool-{}-thread", self.pool));
        name.replace('\0', "") // std refuses it with a panic
    }

    /// Notes how many threads may run a task. If they are fewer than before, the threads that wait look again whether they would
    /// wait for ever.
    pub(crate) fn set_available(&self, threads: usize) {
        if threads < self.available.swap(threads, Ordering::Relaxed) {
            lock_std(&WAITS).iter().for_each(|wait| wait.waker.wake_by_ref());
        }
    }

    /// Makes the calling thread a member of this pool.
    pub(crate) fn join(&self) {
        POOL.set(self.pool);
    }

    /// Returns true if the calling thread belongs to this pool.
    #[inline]
    pub(crate) fn has_this_thread(&self) -> bool {
        POOL.try_with(Cell::get).is_ok_and(|pool| pool == self.pool)
    }
}

/// A guard: the calling thread runs a task until it is dropped.
pub(crate) struct RunsTask(());

/// Notes that the calling thread runs the task at this address, until the guard is dropped.
pub(crate) fn runs(task: usize) -> RunsTask {
    let _ = TASKS.try_with(|tasks| tasks.borrow_mut().push(task));
    RunsTask(())
}

/// Returns true if the calling thread runs the task at this address.
pub(crate) fn runs_here(task: usize) -> bool {
    // A thread that ends may have dropped the list, and runs no task then.
    TASKS.try_with(|tasks| tasks.borrow().contains(&task)).unwrap_or(false)
}

impl Drop for RunsTask {
    fn drop(&mut self) {
        let _ = TASKS.try_with(|tasks| tasks.borrow_mut().pop());
    }
}

/// All waits of pool threads that have no timeout. A thread that waits with a timeout will go on.
static WAITS: Mutex<Vec<PoolWait>> = Mutex::new(Vec::new());

struct PoolWait {
    thread: ThreadId,
    /// The pool of the waiting thread, and the tasks that it runs, one inside of the other.
    pool: u64,
    runs: Vec<usize>,
    /// The address of the task that it waits for, and the pool that runs that one, if it is known.
    task: usize,
    by: Option<PoolThreads>,
    /// That of its sleeper.
    waker: Waker,
}

/// A guard: the calling thread waits for a task until it is dropped. `None` for a thread that belongs to no pool, because no
/// task depends on it.
pub(crate) struct Waiting(Option<ThreadId>);

/// Notes that the calling thread waits for the task at this address, which is run by a thread of the pool that `by`
/// returns. `waker` wakes it. Returns `None` if it would wait for ever.
pub(crate) fn wait_for(
    task: usize,
    by: impl FnOnce() -> Option<PoolThreads>,
    waker: &Waker,
) -> Option<Waiting> {
    let pool = POOL.get();
    // A thread of no pool runs no task that another one could wait for.
    if pool == 0 {
        return Some(Waiting(None));
    }
    let runs = TASKS.try_with(|tasks| tasks.borrow().clone()).unwrap_or_default();
    let by = by(); // before the lock: it may take another
    // Noted and checked under one lock. So if two waits close a circle together, the second one sees the first.
    let mut waits = lock_std(&WAITS);
    let (thread, waker) = (thread::current().id(), waker.clone());
    waits.push(PoolWait { thread, pool, runs, task, by, waker });
    if waits.last().is_some_and(|mine| is_stuck(&waits, mine)) {
        waits.pop();
        return None;
    }
    Some(Waiting(Some(thread)))
}

impl Waiting {
    /// Returns true if the thread would wait for ever by now, because a thread could not be started.
    pub(crate) fn is_stuck(&self) -> bool {
        let waits = lock_std(&WAITS);
        let mine = waits.iter().find(|wait| Some(wait.thread) == self.0);
        mine.is_some_and(|mine| is_stuck(&waits, mine))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A thread waits for one task at a time.
        if let Some(thread) = self.0 {
            lock_std(&WAITS).retain(|wait| wait.thread != thread);
        }
    }
}

/// Returns true if no thread that goes on can be reached from this wait.
fn is_stuck(waits: &[PoolWait], first: &PoolWait) -> bool {
    let mut reached = vec![first];
    let mut next = 0;
    while let Some(PoolWait { task, by, .. }) = reached.get(next) {
        next += 1;
        // A task that has started needs its own thread, and one in a queue any thread of its pool.
        let mut needed: Vec<_> = waits.iter().filter(|wait| wait.runs.contains(task)).collect();
        if needed.is_empty() {
            let Some(by) = by else { return false }; // the pool is not known, so a thread may go on
            needed.extend(waits.iter().filter(|wait| wait.pool == by.pool));
            if needed.len() < by.available.load(Ordering::Relaxed) {
                return false; // a thread of the pool does not wait
            }
        }
        for wait in needed {
            // A task may be reached by several ways, and a circle comes back to it. It is looked at once.
            if reached.iter().all(|known| known.task != wait.task) {
                reached.push(wait);
            }
        }
    }
    true
}

// ----- timers ------------------------------------------------------------------------------

/// A thread that polls a future and sleeps in between.
pub(crate) struct Blocked {
    thread: Thread,
    /// Pairs a Release in `wake` with the Acquire in `sleep`: the next poll sees what was done before the wake-up.
    is_woken: AtomicBool,
    /// How many clones of the waker are in timers that only this thread can serve (DEADLOCK-1).
    own_timers: AtomicUsize,
    /// One of those may have rung, and has no clone any more, but is counted until its owner drops it. Until none is left,
    /// nobody can tell its clone from one that another thread has. Relaxed: only this thread uses it.
    may_have_rung: AtomicBool,
}

thread_local! {
    /// The calls of `block_on` that the calling thread is in, the innermost last, by the address of each one's waker.
    static BLOCKED: RefCell<Vec<(usize, Weak<Blocked>)>> = const { RefCell::new(Vec::new()) };
}

/// A guard: the calling thread is in a [`block_on`](crate::future::block_on) until it is dropped.
pub(crate) struct Blocking {
    blocked: Arc<Blocked>,
    pub(crate) waker: Waker,
}

impl Blocking {
    pub(crate) fn new() -> Blocking {
        let blocked = Arc::new(Blocked {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
            own_timers: AtomicUsize::new(0),
            may_have_rung: AtomicBool::new(false),
        });
        // The waker is known by its address, because a clone has the same data.
        let waker = Waker::from(Arc::clone(&blocked));
        let entry = (waker.data().addr(), Arc::downgrade(&blocked));
        let _ = BLOCKED.try_with(|all| all.borrow_mut().push(entry));
        Blocking { blocked, waker }
    }

    /// Returns true if the future was woken since the last sleep.
    pub(crate) fn is_woken(&self) -> bool {
        self.blocked.is_woken.load(Ordering::Relaxed) // `sleep` takes it, with an Acquire
    }

    /// Sleeps until the future is woken. Returns false at once if no other thread could wake it.
    pub(crate) fn sleep(&self) -> bool {
        let is_alone = self.is_alone();
        // `park` may return early, and a wake-up that came before this call has set the flag.
        while !self.blocked.is_woken.swap(false, Ordering::Acquire) {
            if is_alone {
                return false;
            }
            thread::park();
        }
        true
    }

    /// Returns true if each clone of the waker is in a timer that only this thread can serve.
    fn is_alone(&self) -> bool {
        // The clones before the timers (DEADLOCK-1). Two are in `self`, and two in each timer: waker and `OwnTimer`.
        let clones = Arc::strong_count(&self.blocked);
        fence(Ordering::Acquire); // pairs with the Release of a clone's drop, which may follow a wake-up
        let timers = self.blocked.own_timers.load(Ordering::Acquire);
        if timers == 0 {
            self.blocked.may_have_rung.store(false, Ordering::Relaxed);
            return false;
        }
        clones == 2 + 2 * timers && !self.blocked.may_have_rung.load(Ordering::Relaxed)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let _ = BLOCKED.try_with(|all| all.borrow_mut().pop());
    }
}

impl Wake for Blocked {
    fn wake(self: Arc<Self>) {
        // As a timer wakes that this thread has served.
        if thread::current().id() == self.thread.id() {
            self.may_have_rung.store(true, Ordering::Relaxed);
        }
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag comes first, because `unpark` may also end a sleep of other code on that thread, or of none.
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Counts a timer that has a clone of a blocked thread's waker, and that only this thread can serve.
pub(crate) struct OwnTimer(Arc<Blocked>);

impl OwnTimer {
    /// Counts a timer that has a clone of `waker`. Returns `None` if the calling thread does not poll with this waker,
    /// or if another thread serves the timer.
    #[inline]
    pub(crate) fn note(waker: &Waker, is_served_here: impl FnOnce() -> bool) -> Option<OwnTimer> {
        let is_mine = |entry: &&(usize, _)| entry.0 == waker.data().addr();
        // Only the innermost call sleeps. The others wait for it, so their wakers need not be known.
        let mine = |all: &RefCell<Vec<(usize, Weak<_>)>>| {
            Some(all.borrow().last().filter(is_mine)?.1.clone())
        };
        let mine = BLOCKED.try_with(mine).ok()?.filter(|_| is_served_here());
        let blocked: Arc<Blocked> = mine?.upgrade()?;
        // After the clone of the waker (DEADLOCK-1). Pairs with the Acquire in `sleep`.
        blocked.own_timers.fetch_add(1, Ordering::AcqRel);
        Some(OwnTimer(blocked))
    }
}

impl Drop for OwnTimer {
    fn drop(&mut self) {
        // Before the clone of the waker is dropped (DEADLOCK-1). Pairs with the Acquire in `sleep`.
        let before = self.0.own_timers.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "each timer was counted");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn wait(pool: &PoolThreads, runs: usize, task: usize, by: &PoolThreads) -> PoolWait {
        let (thread, waker) = (thread::current().id(), Waker::noop().clone());
        let (pool, by) = (pool.pool, Some(by.clone()));
        PoolWait { thread, pool, runs: vec![runs], task, by, waker }
    }

    fn is_stuck(all: &[PoolWait]) -> bool {
        super::is_stuck(all, all.last().expect("a wait"))
    }

    #[test]
    fn a_wait_is_stuck_if_it_reaches_no_thread_that_goes_on() {
        let [one, other] = &[1, 1].map(PoolThreads::new);
        let two = &PoolThreads::new(2);
        assert!(is_stuck(&[wait(one, 1, 9, one)]), "its own thread would have to run it");
        assert!(!is_stuck(&[wait(one, 1, 9, other)]));
        assert!(is_stuck(&[wait(one, 1, 9, other), wait(other, 2, 8, one)]), "crosswise");
        assert!(!is_stuck(&[wait(two, 1, 9, other), wait(other, 2, 8, two)]), "one is free");
        let both = [wait(two, 1, 9, other), wait(two, 3, 9, other), wait(other, 2, 8, two)];
        assert!(is_stuck(&both));
        let free = &PoolThreads::new(1);
        let hope = [wait(two, 1, 9, other), wait(two, 3, 7, free), wait(other, 2, 8, two)];
        assert!(!is_stuck(&hope), "one of the two threads will go on");
        let runs_already = [wait(two, 1, 2, other), wait(other, 2, 1, two)];
        assert!(is_stuck(&runs_already), "a free thread cannot run what runs already");
        assert!(is_stuck(&[wait(two, 1, 1, two)]), "itself");
    }

    #[test]
    fn a_wait_is_stuck_when_the_thread_that_it_counts_on_cannot_be_started() {
        let two = &PoolThreads::new(2);
        let waits = [wait(two, 1, 9, two)];
        assert!(!is_stuck(&waits));
        two.set_available(1);
        assert!(is_stuck(&waits));
        two.set_available(two.limit);
        assert!(!is_stuck(&waits));
    }

    /// It is counted until its owner drops it. Its clone must not be taken for one that another thread has.
    #[test]
    fn a_timer_that_has_rung_makes_nobody_alone() {
        let blocking = Blocking::new();
        let (in_a_timer, elsewhere) = (blocking.waker.clone(), blocking.waker.clone());
        let timer = OwnTimer::note(&in_a_timer, || true);
        assert!(timer.is_some() && !blocking.is_alone());
        drop(elsewhere);
        assert!(blocking.is_alone());
        let elsewhere = blocking.waker.clone();
        in_a_timer.wake();
        assert!(!blocking.is_alone());
        drop((timer, elsewhere));
        assert!(!blocking.is_alone(), "nothing is left");
        let in_a_timer = blocking.waker.clone();
        let _timer = OwnTimer::note(&in_a_timer, || true);
        assert!(blocking.is_alone());
    }

    #[test]
    fn a_task_of_an_unknown_pool_is_taken_to_go_on() {
        let one = &PoolThreads::new(1);
        let mut unknown = wait(one, 1, 9, one);
        unknown.by = None;
        assert!(!is_stuck(&[unknown]));
    }
}
