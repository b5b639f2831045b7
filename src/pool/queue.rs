//! The queue: one lock around a [`Wheel`] of items and a [`WaitList`] of takers, whose file tells how they wait.
//!
//! - A taker reads the clock before it takes the lock. When the lock is taken, this reading may be a little
//!   old, but never ahead of the clock. So no item comes out early. If the head has become due in between, the taker
//!   goes to sleep until a time that has come, wakes up at once, and reads a later time: one more round, and no
//!   spinning.
//! - QUEUE-4 No user code runs under the lock: neither the clock, nor the `Drop` of an item, which is moved out first.

use std::num::NonZeroU64;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::backpressure::Flow;
use crate::clock::epoch::Epoch;
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::platform::sync::{Mutex, MutexGuard, lock};
use crate::wake::wait_list::WaitList;
use crate::wheel::{Wheel, WheelKey};
use crate::{Clock, Sleeper, SystemClock};

/// A queue whose items come out when they are due. It is unbounded, for any number of producers and takers.
///
/// Items come out by deadline, and at equal deadlines in the order of their offers. Each item goes to one taker, and
/// never before its deadline. There is no tick: a deadline is as exact as the clock. Deadlines more than 146 years after the
/// queue was made are kept to the second, rounded up.
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
/// [`offer`](DelayedWorkQueue::offer), [`remove`](DelayedWorkQueue::remove) and taking an item are O(1) amortised, with one
/// short lock each. Among items that are due within 64 ms of each other, a [`Wheel`] sorts the ones that become due.
///
/// With deadlines over an hour in any order, a queue of a million items takes 0.03 us of processor time for an offer, 0.09 us
/// for a remove, 0.1 us for a poll, and 45 bytes for each item beside the item itself. A single call may take longer: with
/// two million items the slowest offer took 2.6 ms, and the slowest poll 0.7 ms. If a million items are due within the same
/// 64 ms, the first poll after that takes 78 ms, and a remove up to 20 ms; if they are due within the same hour, and nothing was
/// due in the hour before, the first poll takes 11 ms. After a peak the memory is given back. For millions
/// of timeouts of which most are cancelled, the wheel of a [`Scheduler`](crate::Scheduler) is the better place, or, for values
/// under keys, a [`DelayQueue`](crate::delay::DelayQueue).
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
    number: u32,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Its ticks are the numbers of `epoch`.
    wheel: Wheel<T>,
    epoch: Epoch,
    waiters: WaitList<Instant>,
    /// In a closed queue nothing is due, and no taker waits.
    is_closed: bool,
    /// No taker waits for the next offer: see [`end_when_empty`](DelayedWorkQueue::end_when_empty).
    ends_when_empty: bool,
    /// How many items takers have taken.
    taken: u64,
    /// An item is late when it is overdue by this.
    late: Duration,
}

/// Names an item in a [`DelayedWorkQueue`], for [`remove`](DelayedWorkQueue::remove).
///
/// A key whose item is gone matches nothing for ever, however often the item's memory is used again. A key of another
/// queue matches nothing either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    queue: u32,
    at: WheelKey,
}

/// The size of the wheel, and what a bucket of it covers, in nanoseconds: sixteen seconds for all buckets
/// together. An empty queue takes 6 KB.
const BUCKETS: usize = 256;
const GRANULARITY: NonZeroU64 = NonZeroU64::new(64_000_000).expect("above zero");

/// About so many entries are looked at to find out until when the leader may sleep. If they do not suffice, it may wake up
/// once too early.
const LOOK: usize = 64;

/// A queue is behind if it has more than so many items, no taker waits, and the first item is [late](State::is_late).
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
        DelayedWorkQueue::late_after(Duration::ZERO, clock)
    }

    /// Returns a queue whose first item is late when it is overdue by `late`.
    pub(crate) fn late_after(late: Duration, clock: impl Clock) -> DelayedWorkQueue<T> {
        let epoch = Epoch::new(clock.now());
        let wheel = Wheel::with_granularity(BUCKETS, GRANULARITY, Epoch::START);
        let (waiters, is_closed, ends_when_empty) = (WaitList::new(), false, false);
        let state = State { wheel, epoch, waiters, is_closed, ends_when_empty, taken: 0, late };
        let number = QUEUES.fetch_add(1, Ordering::Relaxed);
        DelayedWorkQueue { clock: Box::new(clock), number, state: Mutex::new(state) }
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
    /// If there are four thousand million items in the queue.
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
    #[inline] // without it the compiler decides by what else is in the program, and a call takes 23 instructions
    pub fn offer(&self, deadline: Instant, item: T) -> Result<Key, T> {
        let mut at = WheelKey::NONE;
        self.offer_noted(deadline, item, None, |_| true, |key| at = key)?;
        Ok(Key { queue: self.number, at })
    }

    /// Puts an item in, as [`offer`](DelayedWorkQueue::offer) does, and calls `note` before anybody can take the item. Returns
    /// the item also if `may_enter` says no. It is told whether the queue ends when it is empty. Both run under the lock, so
    /// they must not be user code (QUEUE-4). Returns whether a taker waits, and whether the queue is behind by the reading `now`.
    /// What is due by then, is due at once.
    #[inline] // without it a task of a pool costs 40 instructions more
    pub(crate) fn offer_noted(
        &self,
        deadline: Instant,
        item: T,
        now: Option<Instant>,
        may_enter: impl FnOnce(bool) -> bool,
        note: impl FnOnce(WheelKey),
    ) -> Result<(bool, bool), T> {
        let mut state = self.lock();
        if state.is_closed || !may_enter(state.ends_when_empty) {
            return Err(item);
        }
        let tick = if now.is_some_and(|now| deadline <= now) {
            state.epoch.passed_by(deadline)
        } else {
            state.epoch.number(deadline)
        };
        let key = state.wheel.insert(tick, item);
        note(key);
        let leader = state.waiters.leader_to_wake(deadline); // if the item is the head (WAKE-2)
        // A queue for which a taker waits is not behind.
        let has_taker = !state.waiters.is_empty();
        let now = now.filter(|_| state.wheel.len() > SHORT && !has_taker);
        let is_behind = now.is_some_and(|now| state.is_late(now));
        drop(state);
        leader.into_iter().for_each(Waker::wake);
        Ok((has_taker, is_behind))
    }

    /// Returns roughly how many items are overdue, or 0 if the first is not late, and how many were ever taken.
    pub(crate) fn flow(&self, now: Instant) -> Flow {
        let mut state = self.lock();
        let by = state.epoch.passed_by(now);
        let overdue = if state.is_late(now) { state.wheel.count_due(by) } else { 0 };
        Flow { ahead: overdue as u64, passed: state.taken }
    }

    /// Waits until the first item is due, and takes it out. Returns `None` if the queue is closed.
    pub fn take(&self) -> Option<T> {
        self.wait(None)
    }

    /// Takes the first item out if it is due, without waiting.
    pub fn poll(&self) -> Option<T> {
        let now = self.clock.now(); // before the lock, so it may be old, but is never ahead of the clock
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
        let mut now = self.clock.now(); // before the lock, so it may be old, but is never ahead of the clock
        let end = timeout.and_then(|timeout| now.checked_add(timeout));
        let mut waiting = None;
        let taken = caught(|| {
            loop {
                let mut state = self.lock();
                let item = state.take_due(now);
                if item.is_some() || state.is_over() || end.is_some_and(|end| end <= now) {
                    return item;
                }
                let join = || (Sleeper::new(), state.waiters.join());
                let (sleeper, ticket) = waiting.get_or_insert_with(join);
                // The leader sleeps towards the head's deadline, and everybody towards their own end.
                let leads = state.waiters.leads(*ticket);
                let head = if leads { state.not_before() } else { None };
                let until = head.into_iter().chain(end).min();
                let before = state.waiters.set_asleep(*ticket, until, sleeper.waker());
                drop(state);
                drop(before);
                self.clock.sleep(sleeper, until); // returns at once if the waker was called in between
                now = self.clock.now();
            }
        });
        // Also if the clock has panicked, the waiter leaves the list.
        if let Some((_sleeper, ticket)) = waiting {
            let mut state = self.lock();
            let head = state.not_before();
            let (mine, leader) = state.waiters.leave(ticket, head);
            drop(state);
            drop(mine);
            leader.into_iter().for_each(Waker::wake);
        }
        taken.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Takes an item out, due or not, in O(1). Returns `None` if it is gone already. It works on a closed queue
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
        let is_mine = key.queue == self.number;
        if is_mine { self.remove_at(key.at).map(|(item, _)| item) } else { None }
    }

    /// Takes an item out, and returns true with it if the queue [is over](DelayedWorkQueue::is_over) then. In that case the
    /// caller has to [wake](DelayedWorkQueue::wake_takers) the takers.
    pub(crate) fn remove_at(&self, key: WheelKey) -> Option<(T, bool)> {
        let mut state = self.lock();
        let item = state.wheel.remove(key)?; // which wakes nobody (WAKE-2)
        Some((item, state.is_over()))
    }

    /// Moves an item to another deadline, due or not, in O(1). Returns its key, which stays the same, or `None` if it is gone
    /// already.
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
    /// assert_eq!(queue.reset(timeout, clock.now() + 2 * minute), Some(timeout));
    /// clock.advance(minute);
    /// assert_eq!(queue.poll(), None);
    /// clock.advance(minute);
    /// assert_eq!(queue.poll(), Some("no answer"));
    /// assert_eq!(queue.reset(timeout, clock.now()), None);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn reset(&self, key: Key, deadline: Instant) -> Option<Key> {
        let is_mine = key.queue == self.number;
        (is_mine && self.reset_at(key.at, deadline, |_, _| true)).then_some(key)
    }

    /// Moves an item, as [`reset`](DelayedWorkQueue::reset) does, if `may_move` allows it. It is told whether the queue ends
    /// when it is empty, and runs under the lock, so it must not be user code (QUEUE-4).
    pub(crate) fn reset_at(
        &self,
        key: WheelKey,
        deadline: Instant,
        may_move: impl FnOnce(&T, bool) -> bool,
    ) -> bool {
        let mut state = self.lock();
        let is_ending = state.ends_when_empty;
        if !state.wheel.get(key).is_some_and(|item| may_move(item, is_ending)) {
            return false;
        }
        let tick = state.epoch.number(deadline);
        state.wheel.reset(key, tick);
        // If the item was the head and is due later, the leader wakes up once in vain.
        let leader = state.waiters.leader_to_wake(deadline); // if the item is the head (WAKE-2)
        drop(state);
        leader.into_iter().for_each(Waker::wake);
        true
    }

    /// Returns the earliest deadline, due or not. It works on a closed queue too.
    ///
    /// If the first item was removed, it may have to look at all items that are due within some seconds of it.
    #[doc(alias = "peek")]
    pub fn next_deadline(&self) -> Option<Instant> {
        let mut state = self.lock();
        state.wheel.next_expiry().map(|tick| state.epoch.instant(tick))
    }

    /// Returns the number of items, due or not. It works on a closed queue too.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.lock().wheel.len()
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
        let now = self.clock.now(); // before the lock, so it may be old, but is never ahead of the clock
        // One by one, so that others get the lock in between. Taking items out wakes nobody (WAKE-2).
        std::iter::from_fn(|| self.lock().take_due(now)).collect()
    }

    /// Closes the queue: wakes all takers, and from now on each taker gets `None`, and nothing can be offered.
    ///
    /// The items stay in the queue, for [`drain`](DelayedWorkQueue::drain) and [`remove`](DelayedWorkQueue::remove).
    /// Closing a closed queue does nothing.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.wake_takers();
    }

    /// Returns true if the queue has items, and no taker waits for them.
    pub(super) fn needs_taker(&self) -> bool {
        let state = self.lock();
        state.waiters.is_empty() && !state.wheel.is_empty()
    }

    /// Has all takers that wait look again.
    pub(crate) fn wake_takers(&self) {
        let all = self.lock().waiters.all_to_wake();
        all.into_iter().for_each(Waker::wake);
    }

    /// Returns true if the queue has been closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Lets a taker go, with `None`, if it finds the queue empty. A thread that takes the last item has to
    /// [wake](DelayedWorkQueue::wake_takers) those that wait.
    pub(crate) fn end_when_empty(&self) {
        self.lock().ends_when_empty = true;
    }

    /// Returns true if the queue is closed, or ends when it is empty.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.lock();
        state.is_closed || state.ends_when_empty
    }

    /// Returns true if no taker waits for items any more.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over()
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
        let mut state = self.lock();
        let (epoch, mut all) = (state.epoch, state.wheel.take_all()); // which wakes nobody (WAKE-2)
        drop(state);
        all.sort_unstable_by_key(|(deadline, order, _)| (*deadline, *order));
        all.into_iter().map(|(deadline, _, item)| (epoch.instant(deadline), item)).collect()
    }

    pub(crate) fn deadline_of(&self, key: WheelKey) -> Option<Instant> {
        let state = self.lock();
        state.wheel.deadline(key).map(|tick| state.epoch.instant(tick))
    }

    /// Returns clones of all items with their deadlines, in no order. `clone` runs under the lock, so it must not be user
    /// code (QUEUE-4).
    pub(super) fn snapshot(&self) -> Vec<(Instant, T)>
    where
        T: Clone,
    {
        let state = self.lock();
        let items = state.wheel.iter();
        items.map(|(tick, item)| (state.epoch.instant(tick), item.clone())).collect()
    }

    /// Checks the whole data structure, for tests.
    ///
    /// # Panics
    ///
    /// If it is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let mut state = self.lock();
        state.wheel.check_invariants();
        let first = state.wheel.next_expiry().filter(|_| !state.is_closed);
        state.waiters.check_invariants(first.map(|tick| state.epoch.instant(tick)));
    }

    /// A poisoned lock is taken too, because no user code can panic under it (QUEUE-4).
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

impl<T> State<T> {
    fn is_over(&self) -> bool {
        self.is_closed || self.ends_when_empty && self.wheel.is_empty()
    }

    fn take_due(&mut self, now: Instant) -> Option<T> {
        if self.is_closed {
            return None;
        }
        let (_, _, item) = self.wheel.pop(self.epoch.passed_by(now))?;
        self.taken += 1;
        Some(item)
    }

    /// Returns true if the first item is late.
    fn is_late(&mut self, now: Instant) -> bool {
        let by = self.epoch.passed_by(now.checked_sub(self.late).unwrap_or(now));
        // The wheel may be ahead of this time.
        self.wheel.peek(by).is_some_and(|(tick, _)| tick <= by)
    }

    /// Returns the deadline of the first item, or an earlier instant if it is not found soon.
    fn not_before(&mut self) -> Option<Instant> {
        self.wheel.next_expiry_within(LOOK).map(|tick| self.epoch.instant(tick))
    }
}

impl<T> Default for DelayedWorkQueue<T> {
    fn default() -> DelayedWorkQueue<T> {
        DelayedWorkQueue::new()
    }
}

impl_debug!(DelayedWorkQueue<T>, self,
    len: self.len(),
    next_deadline: self.next_deadline(),
    is_closed: self.is_closed()
);
