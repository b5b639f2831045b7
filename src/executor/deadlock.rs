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
//! - DEADLOCK-1 A timer that only the blocked thread can serve has a clone of another waker, [`OwnTimers`]. An owner that takes
//!   it out of the timer gets a clone of the future's waker, which is made before that of [`OwnTimers`] is dropped. The
//!   clones of the former are counted before those of the latter. So a clone that is outside of the timers when the former are
//!   counted is not overlooked.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};

use crate::clock::parking::Sleeper;
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

/// Calls `run`, which does not unwind. In the meantime the calling thread is known to run the task at this address.
pub(crate) fn while_running<R>(task: usize, run: impl FnOnce() -> R) -> R {
    let _ = TASKS.try_with(|tasks| tasks.borrow_mut().push(task));
    let result = run();
    let _ = TASKS.try_with(|tasks| tasks.borrow_mut().pop());
    result
}

/// Returns true if the calling thread runs the task at this address.
pub(crate) fn runs_here(task: usize) -> bool {
    // A thread that ends may have dropped the list, and runs no task then.
    TASKS.try_with(|tasks| tasks.borrow().contains(&task)).unwrap_or(false)
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

/// Wakes a blocked thread, for the timers that only this thread can serve. Each of those has one clone of this, in place of
/// the waker of the future. So the clones of that waker which are left are outside of such timers.
pub(crate) struct OwnTimers {
    /// The waker of the future.
    pub(crate) waker: Waker,
}

impl Wake for OwnTimers {
    fn wake(self: Arc<Self>) {
        self.waker.wake_by_ref();
    }
}

impl OwnTimers {
    /// Returns the waker for a timer in place of `waker`. `None` if the calling thread does not block with this one, or if
    /// another thread serves the timer.
    #[inline]
    pub(crate) fn of(
        waker: &Waker,
        is_served_here: impl FnOnce() -> bool,
    ) -> Option<Arc<OwnTimers>> {
        // A clone of a waker has the same data. Only the innermost call sleeps. The others wait for it, so their wakers
        // need not be known.
        let is_mine = |own: &&Arc<OwnTimers>| own.waker.data() == waker.data();
        let mine = |all: &RefCell<Vec<_>>| all.borrow().last().filter(is_mine).cloned();
        BLOCKED.try_with(mine).ok()?.filter(|_| is_served_here())
    }
}

thread_local! {
    /// The calls of `block_on` that the calling thread is in, the innermost last.
    static BLOCKED: RefCell<Vec<Arc<OwnTimers>>> = const { RefCell::new(Vec::new()) };
}

/// A guard: the calling thread is in a [`block_on`](crate::future::block_on) until it is dropped.
pub(crate) struct Blocking {
    pub(crate) sleeper: Sleeper,
    pub(crate) own_timers: Arc<OwnTimers>,
}

impl Blocking {
    pub(crate) fn new() -> Blocking {
        let sleeper = Sleeper::new();
        let own_timers = Arc::new(OwnTimers { waker: sleeper.waker() });
        let _ = BLOCKED.try_with(|all| all.borrow_mut().push(Arc::clone(&own_timers)));
        Blocking { sleeper, own_timers }
    }

    /// Sleeps until the future is woken. Returns false at once if no other thread could wake it.
    pub(crate) fn sleep(&self) -> bool {
        let is_alone = self.is_alone();
        // A sleep may return early, and a wake-up may have come before this call.
        while !self.sleeper.take_woken() {
            if is_alone {
                return false;
            }
            self.sleeper.sleep();
        }
        true
    }

    /// Returns true if each clone of the waker is in a timer that only this thread can serve.
    fn is_alone(&self) -> bool {
        // The clones before the timers (DEADLOCK-1). The first one is here, and two of the others: in `self` and the list.
        let others = self.sleeper.wakers() - 1;
        fence(Ordering::Acquire); // pairs with the Release of a clone's drop, which may follow a wake-up
        others == 0 && Arc::strong_count(&self.own_timers) > 2
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let _ = BLOCKED.try_with(|all| all.borrow_mut().pop());
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

    /// The clone that it had must not be taken for one that is in another timer.
    #[test]
    fn a_timer_that_has_rung_makes_nobody_alone() {
        let blocking = Blocking::new();
        let timer =
            || Waker::from(OwnTimers::of(&blocking.own_timers.waker, || true).expect("it is mine"));
        let (in_a_timer, elsewhere) = (timer(), blocking.own_timers.waker.clone());
        assert!(!blocking.is_alone());
        drop(elsewhere);
        assert!(blocking.is_alone());
        let elsewhere = blocking.own_timers.waker.clone();
        in_a_timer.wake();
        assert!(!blocking.is_alone() && blocking.sleep(), "it was woken");
        drop(elsewhere);
        assert!(!blocking.is_alone(), "nothing is left");
        let _in_a_timer = timer();
        assert!(blocking.is_alone() && !blocking.sleep());
    }

    /// An owner that takes the waker out of its timer may give it to another thread.
    #[test]
    fn a_waker_that_was_taken_out_of_a_timer_is_outside_of_it() {
        let blocking = Blocking::new();
        let own = OwnTimers::of(&blocking.own_timers.waker, || true).expect("it is mine");
        let outside = own.waker.clone();
        assert!(outside.will_wake(&blocking.own_timers.waker));
        drop(own);
        assert!(!blocking.is_alone());
        outside.wake();
        assert!(blocking.sleep());
    }

    #[test]
    fn a_task_of_an_unknown_pool_is_taken_to_go_on() {
        let one = &PoolThreads::new(1);
        let mut unknown = wait(one, 1, 9, one);
        unknown.by = None;
        assert!(!is_stuck(&[unknown]));
    }
}
