//! The queue: one lock around a [`Heap`] of items and a [`WaitList`] of takers. [`waiters`](super::waiters) tells how
//! takers wait.
//!
//! - QUEUE-3 A taker reads the clock before it takes the lock. When the lock is taken, this reading may be a little
//!   old, but never ahead of the clock. So no item comes out early. If the head has become due in between, the taker
//!   goes to sleep until a time that has come, wakes up at once, and reads a later time: one more round, and no
//!   spinning.
//! - QUEUE-4 No user code runs under the lock: neither the clock, nor the `Drop` of an item, which is moved out first.
//! - QUEUE-5 The number of overdue items is counted when it is asked for. The last count is kept. It is made
//!   again when the items taken since exceed half of it, or when it has been asked for as often as it is large. So a
//!   count costs each take and each question a few steps. In between, the items that were taken since are subtracted.

use std::fmt;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::heap::{Heap, Key};
use super::waiters::{Ticket, WaitList};
use crate::{Clock, Sleeper, SystemClock};

/// A queue whose items come out when they are due. It is unbounded, for any number of producers and takers.
///
/// Items come out by deadline, and at equal deadlines in the order of their offers. Each item goes to one taker, and
/// never before its deadline. There is no tick: a deadline is as exact as the clock.
///
/// Of the threads that wait in [`take`](DelayedWorkQueue::take), one, the leader, sleeps until the earliest deadline,
/// and the others until they are woken. So an item that becomes due wakes one thread, and while nothing is due nothing
/// runs.
///
/// ```
/// use std::thread;
/// use std::time::{Duration, Instant};
/// use tickwheel::pool::DelayedWorkQueue;
///
/// let queue = DelayedWorkQueue::new();
/// thread::scope(|scope| {
///     let taker = scope.spawn(|| [queue.take(), queue.take(), queue.take()]);
///     let now = Instant::now();
///     queue.offer(now + Duration::from_millis(20), "later")?;
///     queue.offer(now + Duration::from_millis(10), "soon")?;
///     let never = queue.offer(now + Duration::from_millis(15), "never")?;
///     assert_eq!(queue.remove(never), Some("never"));
///
///     while !queue.is_empty() {
///         thread::sleep(Duration::from_millis(1));
///     }
///     queue.close();
///     assert_eq!(taker.join().unwrap(), [Some("soon"), Some("later"), None]);
///     Ok::<(), &str>(())
/// })?;
/// # Ok::<(), &str>(())
/// ```
///
/// # What it costs
///
/// [`offer`](DelayedWorkQueue::offer), [`remove`](DelayedWorkQueue::remove) and taking an item are O(log n), with one
/// short lock each. Items that are offered in the order of their deadlines, as timeouts of one length are, cost O(1)
/// amortised. A single call may take longer: with two million items, every second one removed, the slowest `remove`
/// took 12 ms. After a peak the memory is given back.
///
/// With deadlines in any order, a queue of a million items takes 0.07 us of processor time for an offer, 0.1 us for a
/// remove, 0.9 us for a poll, and 44 bytes for each item beside the item itself. For millions of timeouts of which most
/// are cancelled, the wheel of a [`Scheduler`](crate::Scheduler) is the better place, or, for values under keys, a
/// [`DelayQueue`](crate::delay::DelayQueue).
///
/// # Virtual time
///
/// [`with_clock`](DelayedWorkQueue::with_clock) makes a queue that waits on any [`Clock`], such as a
/// [`ManualClock`](crate::ManualClock).
///
/// # Coming from `java.util.concurrent`
///
/// | `DelayQueue`, and the `DelayedWorkQueue` inside of `ScheduledThreadPoolExecutor` | here |
/// | --- | --- |
/// | `offer(e)`, `put(e)`, `add(e)`, where `e` is a `Delayed` | [`offer(deadline, item)`](DelayedWorkQueue::offer), an item of any type |
/// | `take()`, ended by an interrupt | [`take()`](DelayedWorkQueue::take), ended by [`close()`](DelayedWorkQueue::close) |
/// | `poll()`, `poll(timeout, unit)` | [`poll()`](DelayedWorkQueue::poll), [`poll_timeout(timeout)`](DelayedWorkQueue::poll_timeout) |
/// | `remove(o)`, which may have to search | [`remove(key)`](DelayedWorkQueue::remove), which never does |
/// | `remove(o)`, and `offer(o)` with another delay | [`reset(key, deadline)`](DelayedWorkQueue::reset) |
/// | `peek()` | [`next_deadline()`](DelayedWorkQueue::next_deadline) |
/// | `size()`, `isEmpty()` | [`len()`](DelayedWorkQueue::len), [`is_empty()`](DelayedWorkQueue::is_empty) |
/// | `drainTo(c)`, which takes what has expired | [`drain_due()`](DelayedWorkQueue::drain_due) |
/// | `iterator()`, `toArray()`, `clear()` | [`drain()`](DelayedWorkQueue::drain): takes all items, due or not |
#[doc(alias = "DelayQueue")]
pub struct DelayedWorkQueue<T> {
    clock: Box<dyn Clock>,
    state: Mutex<State<T>>,
}

struct State<T> {
    heap: Heap<T>,
    waiters: WaitList<Instant>,
    /// In a closed queue nothing is due, and no taker waits.
    is_closed: bool,
    /// How many items takers have taken.
    taken: u64,
    count: Count,
    /// How often the lock will be taken before the next check of the invariants. Used in debug builds alone.
    until_check: usize,
}

/// The last count of overdue items (QUEUE-5).
#[derive(Default)]
struct Count {
    overdue: usize,
    /// The value of `taken` at the time of the count.
    taken: u64,
    /// After so many more questions the count is out of date.
    questions_left: usize,
}

/// What a caller of [`offer_noted`](DelayedWorkQueue::offer_noted) is told.
pub(super) struct Offered {
    pub(super) key: Key,
    /// The head's deadline, if the queue has more than [`SHORT`] items.
    pub(super) head: Option<Instant>,
}

/// How many items [`drain_due`](DelayedWorkQueue::drain_due) takes out under one hold of the lock.
const PORTION: usize = 1024;

/// A queue of at most so many items is never behind.
pub(super) const SHORT: usize = 4096;

/// Numbers the queues, so that the key of one queue never names an item of another. The numbers start again after four
/// thousand million queues. Relaxed, because the numbers only have to differ.
static QUEUES: AtomicU32 = AtomicU32::new(0);

impl<T> DelayedWorkQueue<T> {
    /// Returns a queue on the system's clock.
    pub fn new() -> DelayedWorkQueue<T> {
        DelayedWorkQueue::with_clock(SystemClock)
    }

    /// Returns a queue on a clock of your own, which says what is due and puts takers to sleep.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::DelayedWorkQueue;
    /// use tickwheel::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayedWorkQueue::with_clock(clock.clone());
    /// queue.offer(clock.now() + Duration::from_secs(3600), "an hour later")?;
    /// assert_eq!(queue.poll(), None);
    /// clock.advance(Duration::from_secs(3600));
    /// assert_eq!(queue.poll(), Some("an hour later"));
    /// # Ok::<(), &str>(())
    /// ```
    pub fn with_clock(clock: impl Clock) -> DelayedWorkQueue<T> {
        let heap = Heap::new(QUEUES.fetch_add(1, Ordering::Relaxed), clock.now());
        let (waiters, count) = (WaitList::new(), Count::default());
        let state = State { heap, waiters, is_closed: false, taken: 0, count, until_check: 0 };
        DelayedWorkQueue { clock: Box::new(clock), state: Mutex::new(state) }
    }

    /// Puts an item in, to come out at its deadline.
    ///
    /// An item whose deadline has passed is due at once. It comes out before all items with later deadlines, due or
    /// not.
    ///
    /// # Errors
    ///
    /// Returns the item if the queue is closed.
    ///
    /// # Panics
    ///
    /// If there are two thousand million items in the queue.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::pool::DelayedWorkQueue;
    ///
    /// let queue = DelayedWorkQueue::new();
    /// let now = Instant::now();
    /// queue.offer(now, "first")?;
    /// queue.offer(now, "second")?;
    /// assert_eq!((queue.take(), queue.take()), (Some("first"), Some("second")));
    ///
    /// queue.close();
    /// assert_eq!(queue.offer(now, "third"), Err("third"));
    /// # Ok::<(), &str>(())
    /// ```
    #[doc(alias = "put")]
    pub fn offer(&self, deadline: Instant, item: T) -> Result<Key, T> {
        self.offer_noted(deadline, item, |_| ()).map(|offered| offered.key)
    }

    /// Puts an item in, as [`offer`](DelayedWorkQueue::offer) does, and calls `note` before anybody can take the item.
    /// `note` runs under the lock, so it must not be user code (QUEUE-4).
    pub(super) fn offer_noted(
        &self,
        deadline: Instant,
        item: T,
        note: impl FnOnce(Key),
    ) -> Result<Offered, T> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(item);
        }
        let key = state.heap.insert(deadline, item);
        note(key);
        let leader = state.waiters.leader_to_wake(deadline); // if the item is the head (QUEUE-2)
        let head = if state.heap.len() > SHORT { state.heap.first() } else { None };
        drop(state);
        leader.into_iter().for_each(Waker::wake);
        Ok(Offered { key, head })
    }

    /// Returns two numbers: roughly how many items are overdue (0 if the first is due after `head_by`), and how many
    /// were ever taken.
    pub(super) fn overdue(&self, now: Instant, head_by: Instant) -> (usize, u64) {
        let mut state = self.lock();
        if state.heap.first().is_none_or(|head| head > head_by) {
            return (0, state.taken);
        }
        let taken = usize::try_from(state.taken - state.count.taken).unwrap_or(usize::MAX);
        if state.count.questions_left == 0 || taken > state.count.overdue / 2 {
            let overdue = state.heap.overdue(now); // a new count is needed (QUEUE-5)
            state.count = Count { overdue, taken: state.taken, questions_left: overdue };
            return (overdue, state.taken);
        }
        state.count.questions_left -= 1;
        (state.count.overdue - taken, state.taken)
    }

    /// Waits until the first item is due, and takes it out. Returns `None` if the queue is closed.
    pub fn take(&self) -> Option<T> {
        self.wait(None)
    }

    /// Takes the first item out if it is due, without waiting.
    pub fn poll(&self) -> Option<T> {
        let now = self.clock.now(); // before the lock (QUEUE-3)
        self.lock().take_due(now)
    }

    /// Waits until the first item is due, at most for the given time by the queue's clock, and takes it out.
    ///
    /// Returns `None` if the time is up or the queue is closed. A timeout beyond the range of the clock never ends.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::pool::DelayedWorkQueue;
    ///
    /// let queue = DelayedWorkQueue::new();
    /// queue.offer(Instant::now() + Duration::from_millis(20), "tea")?;
    /// assert_eq!(queue.poll_timeout(Duration::from_millis(1)), None);
    /// assert_eq!(queue.poll_timeout(Duration::MAX), Some("tea"));
    /// # Ok::<(), &str>(())
    /// ```
    pub fn poll_timeout(&self, timeout: Duration) -> Option<T> {
        self.wait(Some(timeout))
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<T> {
        let now = self.clock.now(); // before the lock (QUEUE-3)
        let end = timeout.and_then(|timeout| now.checked_add(timeout));
        let found = self.lock().look(now, end);
        if let Break(item) = found {
            return item;
        }
        let sleeper = Sleeper::new();
        let ticket = self.lock().waiters.join();
        let _leaves = LeaveOnDrop { queue: self, ticket };
        loop {
            let (now, waker) = (self.clock.now(), sleeper.waker());
            let mut state = self.lock();
            if let Break(item) = state.look(now, end) {
                return item;
            }
            // The leader sleeps towards the head's deadline (QUEUE-1), and everybody towards their own end.
            let head = state.heap.first().filter(|_| state.waiters.leads(ticket));
            let until = head.into_iter().chain(end).min();
            let before = state.waiters.set_asleep(ticket, until, waker);
            drop(state);
            drop(before);
            self.clock.sleep(&sleeper, until); // returns at once if the waker was called in between
        }
    }

    /// Takes an item out, due or not, in O(log n). Returns `None` if it is gone already. It works on a closed queue
    /// too.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::pool::DelayedWorkQueue;
    ///
    /// let queue = DelayedWorkQueue::new();
    /// let timeout = queue.offer(Instant::now() + Duration::from_secs(30), "no answer")?;
    /// assert_eq!(queue.remove(timeout), Some("no answer"));
    /// assert_eq!(queue.remove(timeout), None);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn remove(&self, key: Key) -> Option<T> {
        self.lock().heap.remove(key) // which wakes nobody (QUEUE-2)
    }

    /// Moves an item to another deadline, due or not, in O(log n). Returns its new key, or `None` if it is gone already.
    ///
    /// At equal deadlines it comes out as if it had been offered now. It works on a closed queue too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::DelayedWorkQueue;
    /// use tickwheel::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayedWorkQueue::with_clock(clock.clone());
    /// let minute = Duration::from_secs(60);
    /// let timeout = queue.offer(clock.now() + minute, "no answer")?;
    /// let timeout = queue.reset(timeout, clock.now() + 2 * minute).expect("still in it");
    /// clock.advance(minute);
    /// assert_eq!(queue.poll(), None);
    /// clock.advance(minute);
    /// assert_eq!(queue.poll(), Some("no answer"));
    /// assert_eq!(queue.reset(timeout, clock.now()), None);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn reset(&self, key: Key, deadline: Instant) -> Option<Key> {
        self.reset_noted(key, deadline, |_| true, |_| ())
    }

    /// Moves an item, as [`reset`](DelayedWorkQueue::reset) does, if `may_move` allows it, and calls `note` before anybody
    /// can take the item. Both run under the lock, so they must not be user code (QUEUE-4).
    pub(super) fn reset_noted(
        &self,
        key: Key,
        deadline: Instant,
        may_move: impl FnOnce(&T) -> bool,
        note: impl FnOnce(Key),
    ) -> Option<Key> {
        let mut state = self.lock();
        state.heap.get(key).filter(|(_, item)| may_move(item))?;
        let item = state.heap.remove(key)?;
        let moved = state.heap.insert(deadline, item);
        note(moved);
        // If the item was the head and is due later, the leader wakes up once in vain.
        let leader = state.waiters.leader_to_wake(deadline); // if the item is the head (QUEUE-2)
        drop(state);
        leader.into_iter().for_each(Waker::wake);
        Some(moved)
    }

    /// Returns the earliest deadline, due or not. It works on a closed queue too.
    #[doc(alias = "peek")]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.lock().heap.first()
    }

    /// Returns the time until the earliest deadline, which is zero if an item is due or there is none.
    pub(super) fn time_to_next(&self) -> Duration {
        let next = self.next_deadline();
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(self.clock.now()))
    }

    /// Returns the number of items, due or not. It works on a closed queue too.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.lock().heap.len()
    }

    /// Returns true if the queue holds no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all items out that are due, by deadline, and at equal deadlines in the order of the offers.
    ///
    /// It does not wait. Like [`poll`](DelayedWorkQueue::poll), it gets nothing from a closed queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::pool::DelayedWorkQueue;
    /// use tickwheel::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayedWorkQueue::with_clock(clock.clone());
    /// for minutes in [3, 1, 2] {
    ///     queue.offer(clock.now() + Duration::from_secs(60 * minutes), minutes)?;
    /// }
    /// clock.advance(Duration::from_secs(120));
    /// assert_eq!(queue.drain_due(), [1, 2]);
    /// assert_eq!(queue.len(), 1);
    /// # Ok::<(), u64>(())
    /// ```
    #[doc(alias = "drainTo")]
    pub fn drain_due(&self) -> Vec<T> {
        let now = self.clock.now(); // before the lock (QUEUE-3)
        let mut due = Vec::new();
        loop {
            // In portions, so that others get the lock in between. Taking items out wakes nobody (QUEUE-2).
            let mut state = self.lock();
            let before = due.len();
            due.extend(std::iter::from_fn(|| state.take_due(now)).take(PORTION));
            if due.len() - before < PORTION {
                return due;
            }
        }
    }

    /// Closes the queue: wakes all takers, and from now on each taker gets `None`, and nothing can be offered.
    ///
    /// The items stay in the queue, for [`drain`](DelayedWorkQueue::drain) and [`remove`](DelayedWorkQueue::remove).
    /// Closing a closed queue does nothing.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let all = state.waiters.all_to_wake();
        drop(state);
        all.into_iter().for_each(Waker::wake);
    }

    /// Returns true if the queue has been closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Takes all items out, due or not, by deadline, and at equal deadlines in the order of the offers.
    ///
    /// An open queue stays open.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::pool::DelayedWorkQueue;
    ///
    /// let queue = DelayedWorkQueue::new();
    /// let now = Instant::now();
    /// queue.offer(now + Duration::from_secs(60), "dinner")?;
    /// queue.offer(now, "tea")?;
    /// queue.close();
    /// assert_eq!(queue.take(), None);
    /// assert_eq!(queue.drain(), ["tea", "dinner"]);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn drain(&self) -> Vec<T> {
        self.take_all().into_iter().map(|(_, item)| item).collect()
    }

    /// Takes all items out, like [`drain`](DelayedWorkQueue::drain), each with its deadline.
    pub(super) fn take_all(&self) -> Vec<(Instant, T)> {
        let all = self.lock().heap.take_all(); // which wakes nobody (QUEUE-2)
        all.into_sorted()
    }

    pub(super) fn deadline_of(&self, key: Key) -> Option<Instant> {
        self.lock().heap.deadline_of(key)
    }

    /// Returns clones of all items with their deadlines, in no order. `clone` runs under the lock, so it must not be user
    /// code (QUEUE-4).
    pub(super) fn snapshot(&self) -> Vec<(Instant, T)>
    where
        T: Clone,
    {
        self.lock().heap.iter().map(|(deadline, item)| (deadline, item.clone())).collect()
    }

    /// Checks the whole data structure, for tests.
    ///
    /// # Panics
    ///
    /// If it is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.lock().check_invariants();
    }

    /// A poisoned lock is taken too, because no user code can panic under it (QUEUE-4).
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if cfg!(debug_assertions) {
            state.check_now_and_then();
        }
        state
    }
}

impl<T> State<T> {
    /// Breaks, with an item or without one, if a taker has nothing to wait for.
    fn look(&mut self, now: Instant, end: Option<Instant>) -> ControlFlow<Option<T>> {
        match self.take_due(now) {
            Some(item) => Break(Some(item)),
            None if self.is_closed || end.is_some_and(|end| end <= now) => Break(None),
            None => Continue(()),
        }
    }

    fn take_due(&mut self, now: Instant) -> Option<T> {
        let has_due = self.heap.first().is_some_and(|deadline| deadline <= now);
        if !has_due || self.is_closed {
            return None;
        }
        self.taken += 1;
        self.heap.pop()
    }

    fn check_invariants(&self) {
        self.heap.check_invariants();
        self.waiters.check_invariants(self.heap.first().filter(|_| !self.is_closed));
    }

    /// Checks the queue, and then not again until the lock has been taken as often as there are entries, holes, pages
    /// and waiters, and at least 256 times. A check takes a bounded number of steps for each of them, and each hold of
    /// the lock adds two at most. So the checks cost each operation a constant number of steps, amortised.
    fn check_now_and_then(&mut self) {
        if self.until_check > 0 {
            self.until_check -= 1;
        } else if !std::thread::panicking() {
            self.check_invariants();
            self.until_check = (self.heap.check_size() + self.waiters.len()).max(256);
        }
    }
}

/// Takes a waiter off the list when it is dropped, on the normal way and when the clock panics.
struct LeaveOnDrop<'a, T> {
    queue: &'a DelayedWorkQueue<T>,
    ticket: Ticket,
}

impl<T> Drop for LeaveOnDrop<'_, T> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        let mine = state.waiters.leave(self.ticket);
        // If the leader has left, the next leader may sleep too long (QUEUE-2).
        let leader = state.heap.first().and_then(|head| state.waiters.leader_to_wake(head));
        drop(state);
        drop(mine);
        leader.into_iter().for_each(Waker::wake);
    }
}

impl<T> Default for DelayedWorkQueue<T> {
    fn default() -> DelayedWorkQueue<T> {
        DelayedWorkQueue::new()
    }
}

impl<T> fmt::Debug for DelayedWorkQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let (len, next_deadline, is_closed) =
            (state.heap.len(), state.heap.first(), state.is_closed);
        drop(state); // because the formatter may be user code (QUEUE-4)
        f.debug_struct("DelayedWorkQueue")
            .field("len", &len)
            .field("next_deadline", &next_deadline)
            .field("is_closed", &is_closed)
            .finish_non_exhaustive()
    }
}
