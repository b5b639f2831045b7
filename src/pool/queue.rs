//! The queue: one lock around a [`Heap`] of items and a [`Line`] of takers.
//!
//! # How takers wait
//!
//! ```text
//!                nothing is due: joins the line
//!   LOOKING ────────────────────────────────────> AWAKE, in the line <──── called, or its sleep ends ────┐
//!      │                                            │     │                                              │
//!      │ there is something due,                    │     └── nothing is due: lies down ──> ASLEEP(until)┘
//!      │ or its time is up, or the queue is closed  │
//!      └──────────────> gone <──────────────────────┘ leaves the line
//! ```
//!
//! The first in the line is the **leader**. It sleeps until the head is due. The others are
//! **followers**: they sleep until they are called, or their own time is up. When the leader leaves,
//! with or without an item, the one behind it leads.
//!
//! | what happens | who is called |
//! | --- | --- |
//! | an offer becomes the head | the leader, if it would sleep longer than that |
//! | the leader leaves: it took the head, gave up, or its clock panicked | the next one, if it would sleep past the head's deadline |
//! | a follower leaves | nobody |
//! | the head is taken by somebody who did not wait, removed or drained | nobody; QUEUE-3 |
//! | the queue is closed | everybody |
//!
//! - QUEUE-1 If anybody is in the line, exactly one of them leads. Nobody else sleeps towards the head's
//!   deadline. A leader stays one until it leaves, so while one is inside of [`Clock::sleep`] with a
//!   deadline, no other is: an earlier head calls the leader itself, and gives it a new moment.
//! - QUEUE-2 Whenever the lock is free: the leader is awake, or it sleeps until the head's deadline or a
//!   moment before it. Whoever would break that, by an earlier head or by leaving, marks the leader
//!   awake before releasing the lock, and wakes it after. So no item is without a waiter while takers
//!   wait, and a burst of ever earlier heads wakes once.
//! - QUEUE-3 Taking items out only makes the next deadline later, which QUEUE-2 does not mind. So it wakes nobody;
//!   the leader gets up once in vain at the old deadline, and lies down again. To wake it for each head
//!   that is removed would cost more: most timeouts are removed, and many of them as heads.
//! - QUEUE-4 The present is read before the lock is taken. By then it may be past, never to come, so nothing
//!   comes out early. If the head has become due in between, the taker lies down until a moment that has
//!   come, gets up at once, and reads a later time: one more round, and no spinning.
//! - QUEUE-5 No user code runs under the lock: not the clock, and not the `Drop` of an item, because items are
//!   moved out first.
//! - QUEUE-6 A place in the line is given up by its `Drop`: on the normal way and when the clock panics.
//! - QUEUE-7 A call that comes between lying down and sleeping is not lost: the [`Sleeper`] keeps it.
//! - QUEUE-8 In a closed queue nothing is due. Everybody who looks leaves.
//! - QUEUE-9 How many items are overdue is counted when somebody asks, and again when as many have been taken, or
//!   asked for, as were found: so it costs each of them a step. In between, those that were taken are taken
//!   off.

use std::fmt;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::heap::Heap;
use super::key::Key;
use super::waiters::{Line, Ticket};
use crate::{Clock, Sleeper, SystemClock};

/// Items that come out when they are due: an unbounded queue for any number of producers and takers.
///
/// Items come out by deadline, and at equal deadlines in the order of their offers, each to one
/// taker and never before its deadline. There is no tick: a deadline is as exact as the clock.
///
/// Of the threads that wait in [`take`](DelayedWorkQueue::take), one, the leader, sleeps until the
/// earliest deadline, and the others until they are called. So an item that becomes due wakes one
/// thread, and while nothing is due nothing runs.
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
/// [`offer`](DelayedWorkQueue::offer), [`remove`](DelayedWorkQueue::remove) and taking an item are
/// O(log n), with one short lock each. What is offered in the order of its deadlines, as timeouts of one
/// length are, costs O(1), amortised: of two million, each second one removed, one remove took 12 ms. After a peak the
/// memory goes back.
///
/// With deadlines in any order, a queue of a million items takes 0.07 us of processor time for an offer, 0.1 us for a
/// remove, 0.9 us for a poll, and 44 bytes for each item beside the item itself. For millions of timeouts of which
/// most are cancelled, the wheel of a [`Scheduler`](crate::Scheduler) is the better place.
///
/// # Virtual time
///
/// A queue waits on any [`Clock`], a [`ManualClock`](crate::ManualClock) for one:
/// [`with_clock`](DelayedWorkQueue::with_clock).
///
/// # Coming from `java.util.concurrent`
///
/// | `DelayQueue`, and the `DelayedWorkQueue` inside of `ScheduledThreadPoolExecutor` | here |
/// | --- | --- |
/// | `offer(e)`, `put(e)`, `add(e)`, where `e` is a `Delayed` | [`offer(deadline, item)`](DelayedWorkQueue::offer), an item of any type |
/// | `take()`, ended by an interrupt | [`take()`](DelayedWorkQueue::take), ended by [`close()`](DelayedWorkQueue::close) |
/// | `poll()`, `poll(timeout, unit)` | [`poll()`](DelayedWorkQueue::poll), [`poll_timeout(timeout)`](DelayedWorkQueue::poll_timeout) |
/// | `remove(o)`, which may have to search | [`remove(key)`](DelayedWorkQueue::remove), which never does |
/// | `peek()` | [`next_deadline()`](DelayedWorkQueue::next_deadline) |
/// | `size()`, `isEmpty()` | [`len()`](DelayedWorkQueue::len), [`is_empty()`](DelayedWorkQueue::is_empty) |
/// | `drainTo(c)`, which takes what has expired | [`drain_due()`](DelayedWorkQueue::drain_due) |
/// | `iterator()`, `toArray()`, `clear()` | [`drain()`](DelayedWorkQueue::drain): takes all, due or not |
#[doc(alias = "DelayQueue")]
pub struct DelayedWorkQueue<T> {
    clock: Box<dyn Clock>,
    state: Mutex<State<T>>,
}

struct State<T> {
    heap: Heap<T>,
    line: Line,
    is_closed: bool,
    /// How many items takers have taken.
    taken: u64,
    count: Count,
}

/// The last count of what was overdue; QUEUE-9.
#[derive(Default)]
struct Count {
    overdue: usize,
    /// `taken`, then.
    taken: u64,
    /// After so many more looks it is out of date.
    looks: usize,
}

/// What an offer leaves behind it.
pub(super) struct Offered {
    pub(super) key: Key,
    /// The head's deadline, if so many items are in the queue that it may be behind; QUEUE-9.
    pub(super) head: Option<Instant>,
}

/// So many items are taken out under one hold of the lock, of many that are due.
const PORTION: usize = 1024;

/// A queue with fewer items is not behind.
pub(super) const FEW: usize = 4096;

/// Numbers the queues, so that the key of one never hits an item of another. Relaxed: only that they
/// differ counts. The numbers come round after four thousand million queues.
static QUEUES: AtomicU32 = AtomicU32::new(0);

impl<T> DelayedWorkQueue<T> {
    /// A queue on the system's clock.
    pub fn new() -> DelayedWorkQueue<T> {
        DelayedWorkQueue::with_clock(SystemClock)
    }

    /// A queue on a clock of your own. It says what is due, and puts takers to sleep.
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
        let (line, count) = (Line::new(), Count::default());
        let state = State { heap, line, is_closed: false, taken: 0, count };
        DelayedWorkQueue { clock: Box::new(clock), state: Mutex::new(state) }
    }

    /// Puts an item in, to come out at its deadline. One that has passed is due at once; it goes
    /// ahead of what has a later deadline, due or not.
    ///
    /// # Errors
    ///
    /// On a closed queue the item comes back.
    ///
    /// # Panics
    ///
    /// With two thousand million items in it.
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

    /// The same, and notes the key before anybody can take the item. Only for notes of ours: they are
    /// made under the lock (QUEUE-5).
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
        let call = state.line.call_leader(deadline);
        let head = if state.heap.len() > FEW { state.heap.first() } else { None };
        drop(state);
        call.into_iter().for_each(Waker::wake);
        Ok(Offered { key, head })
    }

    /// How many items are overdue, about, if the head was due by then, and how many were ever taken; QUEUE-9.
    pub(super) fn overdue(&self, now: Instant, head_by: Instant) -> (usize, u64) {
        let mut state = self.lock();
        let is_behind = state.heap.first().is_some_and(|head| head <= head_by);
        let overdue = if is_behind { state.overdue(now) } else { 0 };
        (overdue, state.taken)
    }

    /// The first item, once it is due; until then the caller waits. `None` says that the queue is closed.
    pub fn take(&self) -> Option<T> {
        self.wait(None)
    }

    /// The first item if it is due. It does not wait.
    pub fn poll(&self) -> Option<T> {
        let now = self.clock.now(); // QUEUE-4
        self.lock().take_due(now)
    }

    /// The first item, once it is due; the caller waits for so long at most, by the queue's clock.
    /// `None` says that the time is up, or that the queue is closed. A timeout beyond the range of the
    /// clock is none.
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

    /// Looks, and if there is nothing, sleeps and looks again until there is.
    fn wait(&self, timeout: Option<Duration>) -> Option<T> {
        let now = self.clock.now(); // QUEUE-4
        let end = timeout.and_then(|timeout| now.checked_add(timeout));
        let first = self.lock().look(now, end);
        if let Break(item) = first {
            return item;
        }
        let place = Place::in_line_of(self);
        loop {
            match place.look_or_lie_down(end) {
                Break(item) => return item,
                Continue(until) => self.clock.sleep(&place.sleeper, until),
            }
        }
    }

    /// Takes an item out, due or not, in O(log n). `None` says that it is gone already. It works on a
    /// closed queue too.
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
        self.lock().heap.remove(key) // wakes nobody: QUEUE-3
    }

    /// The earliest deadline, come or not, on a closed queue too.
    #[doc(alias = "peek")]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.lock().heap.first()
    }

    /// How long until the earliest deadline; zero if it has come, or there is none.
    pub(super) fn time_to_next(&self) -> Duration {
        let next = self.next_deadline();
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(self.clock.now()))
    }

    /// How many items it holds, due or not, on a closed queue too.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.lock().heap.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out what is due, as [`poll`](DelayedWorkQueue::poll) would one by one: by deadline, and at equal deadlines
    /// in the order of the offers. It does not wait. A closed queue gives nothing.
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
        let now = self.clock.now(); // QUEUE-4
        let mut due = Vec::new();
        loop {
            // In portions, so that others get at the lock in between. Taking wakes nobody: QUEUE-3.
            let mut state = self.lock();
            let before = due.len();
            due.extend(std::iter::from_fn(|| state.take_due(now)).take(PORTION));
            if due.len() - before < PORTION {
                return due;
            }
        }
    }

    /// Wakes all takers, and has them return `None`, for ever. Nothing can be offered any more. What is
    /// in the queue stays, for [`drain`](DelayedWorkQueue::drain) and
    /// [`remove`](DelayedWorkQueue::remove). Closing it again does nothing.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true; // QUEUE-8
        let calls = state.line.call_all();
        drop(state);
        calls.into_iter().for_each(Waker::wake);
    }

    /// Whether it has been closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Takes everything out, due or not: by deadline, and at equal deadlines in the order of the offers.
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

    /// The same, with the deadlines.
    pub(super) fn take_all(&self) -> Vec<(Instant, T)> {
        let all = self.lock().heap.take_all(); // wakes nobody: QUEUE-3
        all.into_sorted()
    }

    pub(super) fn deadline_of(&self, key: Key) -> Option<Instant> {
        self.lock().heap.deadline_of(key)
    }

    /// All items, in no order. Only for items whose `clone` is ours: it runs under the lock (QUEUE-5).
    pub(super) fn snapshot(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.lock().heap.iter().cloned().collect()
    }

    /// Looks at everything; for tests.
    ///
    /// # Panics
    ///
    /// If the structure is not what it should be.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let state = self.lock();
        state.heap.check_invariants();
        state.line.check_invariants(state.heap.first().filter(|_| !state.is_closed));
    }

    /// Poisoning says nothing here: no user code runs under the lock (QUEUE-5).
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// Whether a taker is through, and with what.
    fn look(&mut self, now: Instant, end: Option<Instant>) -> ControlFlow<Option<T>> {
        if let Some(item) = self.take_due(now) {
            return Break(Some(item));
        }
        let is_over = self.is_closed || end.is_some_and(|end| end <= now);
        if is_over { Break(None) } else { Continue(()) }
    }

    fn take_due(&mut self, now: Instant) -> Option<T> {
        let has_due = self.heap.first().is_some_and(|deadline| deadline <= now);
        if !has_due || self.is_closed {
            return None; // QUEUE-8
        }
        self.taken += 1;
        self.heap.pop()
    }

    /// QUEUE-9.
    fn overdue(&mut self, now: Instant) -> usize {
        let taken = usize::try_from(self.taken - self.count.taken).unwrap_or(usize::MAX);
        if self.count.looks == 0 || taken > self.count.overdue / 2 {
            let overdue = self.heap.overdue(now);
            self.count = Count { overdue, taken: self.taken, looks: overdue };
            return overdue;
        }
        self.count.looks -= 1;
        self.count.overdue - taken
    }

    /// QUEUE-2, after another leader has come.
    fn call_leader(&mut self) -> Option<Waker> {
        self.line.call_leader(self.heap.first()?)
    }
}

/// A taker's place in the line; QUEUE-6.
struct Place<'a, T> {
    queue: &'a DelayedWorkQueue<T>,
    sleeper: Sleeper,
    ticket: Ticket,
}

impl<T> Place<'_, T> {
    fn in_line_of(queue: &DelayedWorkQueue<T>) -> Place<'_, T> {
        let sleeper = Sleeper::new();
        let ticket = queue.lock().line.join(sleeper.waker());
        Place { queue, sleeper, ticket }
    }

    /// Says until when to sleep if there is nothing: the leader towards the head's deadline (QUEUE-1), and
    /// everybody towards the end.
    fn look_or_lie_down(&self, end: Option<Instant>) -> ControlFlow<Option<T>, Option<Instant>> {
        let now = self.queue.clock.now(); // QUEUE-4
        let mut state = self.queue.lock();
        state.look(now, end)?;
        let head = state.heap.first().filter(|_| state.line.leads(self.ticket));
        let until = head.into_iter().chain(end).min();
        state.line.lie_down(self.ticket, until);
        Continue(until)
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.line.leave(self.ticket);
        let call = state.call_leader();
        drop(state);
        call.into_iter().for_each(Waker::wake);
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
        drop(state); // what is written to may be anybody's
        f.debug_struct("DelayedWorkQueue")
            .field("len", &len)
            .field("next_deadline", &next_deadline)
            .field("is_closed", &is_closed)
            .finish_non_exhaustive()
    }
}
