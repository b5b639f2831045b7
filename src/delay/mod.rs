//! Timers that carry data: a [`DelayQueue`] holds values under keys, and gives each of them out when it is due.
//!
//! It is for sessions, leases, cache entries and pending requests: what expires is data, and not a closure. So a program
//! can look at it, push it further, and write it down at its end.
//!
//! ```text
//!   any thread                                  DelayQueue                                     takers
//!   ──────────                   ┌──────────────────────────────────────────┐                  ──────
//!   insert(key, value, delay) ──>│  key ──> value, deadline                 │──> recv()          blocks
//!   reset(&key, delay)        ──>│  "ann"   Session  12:00:30   <── due     │──> next().await    awaits
//!   remove(&key)  <──────────────│  "bob"   Session  12:00:45               │──> stream()        streams
//!                                │  "eve"   Session  12:10:00               │──> try_next()      asks
//!                                └──────────────────────────────────────────┘
//!                                    │ close(): all that is in it, with deadlines
//! ```
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//! use tickwheel::delay::DelayQueue;
//!
//! let (scheduler, driver) = Scheduler::builder().build_driven()?; // virtual time
//! let sessions = DelayQueue::new(&scheduler);
//! let idle = Duration::from_secs(30);
//! sessions.insert("ann", "basket 1", idle)?;
//! sessions.insert("bob", "basket 2", idle)?;
//!
//! driver.advance(Duration::from_secs(20));
//! assert!(sessions.reset(&"ann", idle)); // she was seen
//! driver.advance(Duration::from_secs(10));
//! let expired = sessions.try_next().expect("bob is due");
//! assert_eq!((expired.key, expired.value), ("bob", "basket 2"));
//! assert!(sessions.try_next().is_none());
//!
//! let pending = sessions.close(); // the end: what is still pending, and until when
//! assert_eq!((pending[0].key, pending[0].deadline), ("ann", scheduler.now() + idle * 2 / 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which queue
//!
//! | I have | take |
//! | --- | --- |
//! | values under keys, to push further, to look at, to keep at the end; takers that block, await or stream | [`DelayQueue`] |
//! | items without keys of their own, taken by threads, on any [`Clock`]; no scheduler | [`DelayedWorkQueue`](crate::pool::DelayedWorkQueue) |
//! | one thread that has its own time | [`Wheel`](crate::wheel::Wheel): the data structure alone |
//! | something to *do* at a time | [`Scheduler::schedule_once`](crate::Scheduler::schedule_once) |
//!
//! # Coming from
//!
//! | `tokio_util::time::DelayQueue` | here |
//! | --- | --- |
//! | `insert(value, d)` returns a key, and a map of one's own leads to it | [`insert(key, value, d)`](DelayQueue::insert): the key is one's own |
//! | `&mut self`, so one task owns it | `&self`: any thread, any clone |
//! | `poll_expired`, `StreamExt::next` | [`next`](DelayQueue::next), [`stream`](DelayQueue::stream), [`recv`](DelayQueue::recv), [`try_next`](DelayQueue::try_next) |
//! | `Expired::into_inner`, `deadline` | the fields of [`Expired`], the key among them |
//! | `reset(&key, d)`, which panics if the key is gone | [`reset`](DelayQueue::reset), which returns false |
//! | `remove(&key)`, which panics if the key is gone | [`remove`](DelayQueue::remove), which returns `None` |
//! | `peek()`, `deadline(&key)` | [`next_deadline`](DelayQueue::next_deadline), [`deadline`](DelayQueue::deadline) |
//! | rounded to milliseconds | exact, to the precision of the scheduler |
//!
//! | Java's `DelayQueue` | here |
//! | --- | --- |
//! | `put(e)`, where `e` is a `Delayed` | [`insert`](DelayQueue::insert) |
//! | `take()`, `poll()`, `poll(timeout, unit)` | [`recv`](DelayQueue::recv), [`try_next`](DelayQueue::try_next), [`recv_timeout`](DelayQueue::recv_timeout) |
//! | `remove(o)` in O(n) | [`remove(&key)`](DelayQueue::remove) in O(1) |
//! | `drainTo(c)` | [`try_next`](DelayQueue::try_next) until `None` |
//!
//! | the expiry of Guava, Caffeine or moka | here |
//! | --- | --- |
//! | `expireAfterWrite`, `time_to_live` | [`insert`](DelayQueue::insert) with that delay |
//! | `expireAfterAccess`, `time_to_idle` | [`with`](DelayQueue::with), and then [`reset`](DelayQueue::reset) |
//! | `Expiry`, a time for each entry | the delay of [`insert`](DelayQueue::insert) and [`reset`](DelayQueue::reset) |
//! | an eviction listener, called some time later | a taker, which gets the value itself, in time |
//! | `get` of an entry that has expired returns nothing | an item that is due stays readable until a taker has it |
//! | a limit that evicts others | [`with_capacity_limit`](DelayQueue::with_capacity_limit), which refuses |

// `shared` is what the handles of a queue share: the shards, and the takers with their line. Below it, `items` is one shard
// of the data: a wheel and a `table` of keys. Above it, `taker` tells how takers wait. The way in is here.
mod error;
mod firsts;
mod items;
mod shared;
mod table;
mod taker;

use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::clock::timeline::When;
use crate::executor::deadlock::while_running;
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::scheduler::in_force::is_served_here;
use crate::{Clock, ScheduleError, Scheduler, Sleeper, SystemClock};
use items::Items;
use shared::Shared;
use taker::Taker;

pub use error::InsertError;
pub use taker::{Expirations, NextExpired};

/// Values under keys, each of which comes out when it is due.
///
/// Any thread inserts, resets and removes; any number of takers block, await or stream. A clone is a handle of the same
/// queue. See the [module](self) for an overview.
///
/// An item is given out never before its deadline, and at most one tick of the scheduler after it, or with
/// [`Precision::Exact`](crate::Precision::Exact) at it, plus the delays of the system. Items come in order of their
/// deadlines, and at equal deadlines in the order of insert, replacement or reset. Each goes to one taker, or comes back
/// from [`remove`](DelayQueue::remove) or [`close`](DelayQueue::close), and never both.
///
/// ```
/// use std::thread;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::delay::DelayQueue;
///
/// let scheduler = Scheduler::new();
/// let leases = DelayQueue::new(&scheduler);
/// let taker = {
///     let leases = leases.clone();
///     let taken = move || std::iter::from_fn(|| leases.recv()).map(|lease| lease.key).collect::<Vec<_>>();
///     thread::spawn(taken)
/// };
/// leases.insert(1, "disk", Duration::from_millis(20))?;
/// leases.insert(2, "port", Duration::from_millis(10))?;
/// while !leases.is_empty() {
///     thread::sleep(Duration::from_millis(1));
/// }
/// leases.close();
/// assert_eq!(taker.join().unwrap(), [2, 1]);
/// # Ok::<(), tickwheel::delay::InsertError<i32, &str>>(())
/// ```
///
/// # What it costs
///
/// Inserts, resets and removes take O(1) at any size, and one short lock each. To push a deadline further costs as much
/// as to find the key. Far deadlines cost nothing until they come near, and while nobody waits, or nothing is due, nothing
/// runs. `benches/peers` (D1 to D6) has figures. One call of a taker may take longer if very many items have become due
/// since the last one: they are sorted together. With a million of them, due
/// over a minute, it took 3 ms.
///
/// A queue has sixteen shards for each processor, and 64 at most. On two processors an empty queue takes 56 KB. A million
/// items take 67 bytes each, beside their keys and values. Few items that are due at many different times take more,
/// because entries lie in blocks of 504 bytes: 2,000 items over two minutes took 1 MB.
///
/// # The scheduler
///
/// The queue keeps its scheduler alive. It takes the scheduler's clock, virtual or not, and while a taker waits, one
/// alarm on the tick thread, which is no task: it is not counted in [`pending`](Scheduler::pending) or
/// [`stats`](Scheduler::stats), and never a leftover. When the scheduler is closed, all takers wake up and get what is
/// due, and then `None`. Inserts are refused from then on. Items that are inside stay readable, and `close` returns them.
///
/// # Your code
///
/// The queue calls `Eq` of keys, and the closure of [`with`](DelayQueue::with), under its lock. They must not call the
/// queue: such a call may wait for ever, and in the closure of `with` it panics instead. If one of them panics, the panic is
/// the caller's, and the queue stays as it was. Keys, values and wakers are dropped with nothing locked.
#[doc(alias("HashedWheelTimer", "Cache"))]
pub struct DelayQueue<K, V> {
    shared: Arc<Shared<K, V>>,
}

/// An item of a [`DelayQueue`] that has come out of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expired<K, V> {
    /// The key that it had.
    pub key: K,
    /// The value.
    pub value: V,
    /// When it was due, or, out of [`close`](DelayQueue::close), when it would have been.
    pub deadline: Instant,
}

/// The value that the key had before, or what was refused.
type Inserted<K, V> = Result<Option<V>, InsertError<K, V>>;

impl<K, V> DelayQueue<K, V> {
    /// Creates an empty queue on the clock of this scheduler, and with its precision.
    pub fn new(scheduler: &Scheduler) -> Self {
        DelayQueue::with_capacity_limit(scheduler, usize::MAX)
    }

    /// Creates an empty queue that holds at most `limit` items. When it is full, an insert of a new key is refused. An
    /// item that is due holds its place until a taker has it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::delay::DelayQueue;
    /// use tickwheel::{ScheduleError, Scheduler};
    ///
    /// let queue = DelayQueue::with_capacity_limit(Scheduler::global(), 1);
    /// let minute = Duration::from_secs(60);
    /// queue.insert("a", 1, minute)?;
    /// let refused = queue.insert("b", 2, minute).unwrap_err();
    /// assert_eq!(refused.reason(), ScheduleError::Full);
    /// assert_eq!(refused.into_inner(), ("b", 2));
    /// assert_eq!(queue.insert("a", 3, minute)?, Some(1)); // a replacement takes no place
    /// # Ok::<(), tickwheel::delay::InsertError<&str, i32>>(())
    /// ```
    pub fn with_capacity_limit(scheduler: &Scheduler, limit: usize) -> Self {
        DelayQueue { shared: Arc::new(Shared::new(scheduler.clone(), limit)) }
    }

    /// Returns the number of items, due or not.
    pub fn len(&self) -> usize {
        self.shared.all_shards().1.iter().map(|items| items.wheel.len()).sum()
    }

    /// Returns true if there is no item, due or not.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the earliest deadline, due or not. `None` if the queue is empty.
    ///
    /// It may have to look at all items that are due within the same half of a second.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (_takers, mut shards) = self.shared.all_shards();
        let first = shards.iter_mut().filter_map(|items| items.first()).min();
        first.map(|first| self.shared.timeline.instant(first))
    }

    // ----- takers --------------------------------------------------------------------------

    /// Takes the first item if it is due, without waiting.
    pub fn try_next(&self) -> Option<Expired<K, V>> {
        // What was due when the clock was read last needs no new reading.
        let known = self.shared.take(None);
        let out = known.or_else(|| self.shared.take(Some(self.shared.now())));
        out.map(|out| self.shared.expired(out))
    }

    /// Waits until an item is due, and takes it. Returns `None` if the queue or its scheduler is closed and nothing is
    /// due.
    ///
    /// # Panics
    ///
    /// Panics if it would have to wait inside a task on the scheduler's own tick thread, in a turn of its
    /// [`Driver`](crate::Driver), or in the future of that driver's [`block_on`](crate::Driver::block_on): while that
    /// thread waits, nothing becomes due.
    pub fn recv(&self) -> Option<Expired<K, V>> {
        self.wait(None)
    }

    /// Waits until an item is due, at most for the given time, and takes it. Returns `None` if the time is up, or if the
    /// queue or its scheduler is closed and nothing is due.
    ///
    /// The time is real time, also if the clock of the scheduler is a virtual one. If it ends beyond the range of that time,
    /// this is a [`recv`](DelayQueue::recv). On the thread that serves the scheduler it waits in vain, because nothing becomes
    /// due meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::delay::DelayQueue;
    ///
    /// let queue = DelayQueue::new(Scheduler::global());
    /// queue.insert("tea", (), Duration::from_millis(20))?;
    /// assert!(queue.recv_timeout(Duration::from_millis(1)).is_none());
    /// assert_eq!(queue.recv_timeout(Duration::from_secs(60)).map(|tea| tea.key), Some("tea"));
    /// # Ok::<(), tickwheel::delay::InsertError<&str, ()>>(())
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Expired<K, V>> {
        self.wait(Instant::now().checked_add(timeout))
    }

    /// Waits for an item on this thread, until `end` at most.
    fn wait(&self, end: Option<Instant>) -> Option<Expired<K, V>> {
        if let known @ Some(_) = self.try_next() {
            return known;
        }
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let mut context = Context::from_waker(&waker);
        let mut next = pin!(self.next());
        loop {
            if let Poll::Ready(item) = next.as_mut().poll(&mut context) {
                return item;
            }
            if end.is_some_and(|end| end <= Instant::now()) {
                return None;
            }
            assert!(
                end.is_some() || !is_served_here(self.shared.scheduler.shared()),
                "`DelayQueue::recv` would block the thread that serves its scheduler, and wait for ever: take what is due \
                 with `try_next`, or receive on a thread of your own"
            );
            SystemClock.sleep(&sleeper, end);
        }
    }

    /// Returns a future that waits until an item is due, and takes it. `None` if the queue or its scheduler is closed and
    /// nothing is due.
    ///
    /// It runs under any runtime, or none. A future that was polled is in the line of takers: if its turn comes, items wait
    /// until it is polled again or dropped, even if others wait for items. It may be dropped at any time. An item is taken
    /// by the poll that returns it, so none is lost, and if the future was woken for an item, another taker is woken in its
    /// place. A loop around a `select!` that makes a new future each time sets a new alarm each time. A
    /// [`stream`](DelayQueue::stream) keeps it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::delay::DelayQueue;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let requests = DelayQueue::new(&scheduler);
    /// requests.insert(7, "GET /", Duration::from_secs(30))?;
    /// let late = driver.block_on(requests.next())?.expect("open");
    /// assert_eq!((late.key, late.deadline), (7, scheduler.now()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next(&self) -> NextExpired<'_, K, V> {
        NextExpired { queue: &self.shared, taker: Taker::default(), is_over: false }
    }

    /// Returns a stream of the items as they become due.
    pub fn stream(&self) -> Expirations<K, V> {
        Expirations { queue: self.clone(), taker: Taker::default(), is_over: false }
    }

    // ----- the end -------------------------------------------------------------------------

    /// Closes the queue, and returns all that is in it, due or not, in order, with deadlines. Wakes all takers, which get
    /// `None`. Later inserts are refused. The second call returns nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::delay::DelayQueue;
    ///
    /// let (scheduler, _driver) = Scheduler::builder().build_driven()?;
    /// let queue = DelayQueue::new(&scheduler);
    /// queue.insert("later", 2, Duration::from_secs(2))?;
    /// queue.insert("sooner", 1, Duration::from_secs(1))?;
    /// for item in queue.close() {
    ///     let left = item.deadline - scheduler.now();
    ///     println!("{} has {left:?} left", item.key); // to write down, for the next start
    /// }
    /// assert!(queue.is_closed() && queue.insert("no", 3, Duration::ZERO).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) -> Vec<Expired<K, V>> {
        let mut all: Vec<_> = self.shared.close().into_iter().flat_map(Items::drain).collect();
        all.sort_by_key(|((deadline, ..), order)| (*deadline, *order));
        all.into_iter().map(|(out, _)| self.shared.expired(out)).collect()
    }

    /// Returns true if inserts are refused, because the queue or its scheduler has been closed.
    pub fn is_closed(&self) -> bool {
        self.shared.shard(0).is_closed || self.shared.scheduler.is_closed()
    }

    /// Checks all invariants, for tests. No other thread may be inside a call.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.shared.check_invariants();
    }
}

impl<K: Hash + Eq, V> DelayQueue<K, V> {
    /// Puts a value under a key, to come out after a delay. Returns the value that the key had before, which then does
    /// not come out.
    ///
    /// # Errors
    ///
    /// Gives key and value back if the queue or its scheduler is closed, or if the queue is full.
    pub fn insert(&self, key: K, value: V, delay: Duration) -> Inserted<K, V> {
        self.put(key, value, When::After(delay))
    }

    /// Puts a value under a key, to come out at an instant. An instant that has passed stays the item's deadline, so the
    /// item comes out before those with later deadlines. (The earliest deadline is 18 years before the queue was made. An
    /// earlier instant counts as that.)
    ///
    /// # Errors
    ///
    /// The errors of [`insert`](DelayQueue::insert).
    pub fn insert_at(&self, key: K, value: V, deadline: Instant) -> Inserted<K, V> {
        self.put(key, value, When::At(deadline))
    }

    fn put(&self, key: K, value: V, when: When) -> Inserted<K, V> {
        let shared = &*self.shared;
        let place = shared.place(&key);
        let due = shared.due(when);
        let is_ended = shared.scheduler.is_closed();
        let mut items = shared.shard(place.shard);
        if items.is_closed || is_ended {
            return Err(InsertError::new(ScheduleError::Closed, (key, value)));
        }
        // If `Eq` panics here, key and value are dropped after the guard, as parameters are.
        let before = match items.find(place.hash, &key) {
            Some((_, at)) => Some((items.replace(at, value, due), key)),
            None if shared.limit.enter() => {
                items.insert(place.hash, key, value, due);
                shared.hints[place.shard].note(&items.table);
                None
            }
            None => return Err(InsertError::new(ScheduleError::Full, (key, value))),
        };
        shared.has_come(place, items, due.0);
        Ok(before.map(|(value, _)| value)) // the key that is not needed is dropped here
    }

    /// Moves the deadline of a key to a delay from now, earlier or later. Returns false if the key is not there, because
    /// it never was, was removed, or has come out.
    ///
    /// An item that is due, and that no taker has yet, can be moved away too.
    pub fn reset(&self, key: &K, delay: Duration) -> bool {
        self.move_to(key, When::After(delay))
    }

    /// Moves the deadline of a key to an instant. Returns false if the key is not there.
    pub fn reset_at(&self, key: &K, deadline: Instant) -> bool {
        self.move_to(key, When::At(deadline))
    }

    #[inline]
    fn move_to(&self, key: &K, when: When) -> bool {
        let place = self.shared.place(key);
        let due = self.shared.due(when);
        let mut items = self.shared.shard(place.shard);
        let has_moved = items.reset(place.hash, key, due);
        if has_moved {
            self.shared.has_come(place, items, due.0);
        }
        has_moved
    }

    /// Takes the value of a key out, due or not. Returns `None` if the key is not there.
    pub fn remove(&self, key: &K) -> Option<V> {
        let place = self.shared.place(key);
        let removed = self.shared.shard(place.shard).remove(place.hash, key);
        let (key, value) = removed?;
        self.shared.limit.leave();
        drop(key); // with nothing locked, and when all is counted: it may panic
        Some(value)
    }

    /// Returns true if the key is there, due or not.
    pub fn contains_key(&self, key: &K) -> bool {
        self.deadline(key).is_some()
    }

    /// Returns the deadline of a key.
    pub fn deadline(&self, key: &K) -> Option<Instant> {
        let place = self.shared.place(key);
        let deadline = self.shared.shard(place.shard).deadline(place.hash, key);
        deadline.map(|deadline| self.shared.timeline.instant(deadline))
    }

    /// Calls a closure with the value of a key, in its place. Returns `None`, without calling it, if the key is not
    /// there.
    ///
    /// The closure runs under a lock of the queue. So it should be short, and must not call the queue. Calls on other threads
    /// may wait until it has returned, those for other keys too.
    ///
    /// # Panics
    ///
    /// A call of this queue inside of the closure panics if it would have to wait for a lock: that wait might never end. A
    /// call that takes an item, or waits for one, always panics there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::delay::DelayQueue;
    ///
    /// let visits = DelayQueue::new(Scheduler::global());
    /// visits.insert("ann", 1, Duration::from_secs(60))?;
    /// assert_eq!(visits.with(&"ann", |count| { *count += 1; *count }), Some(2));
    /// assert_eq!(visits.with(&"bob", |count| *count), None);
    /// # Ok::<(), tickwheel::delay::InsertError<&str, i32>>(())
    /// ```
    pub fn with<R>(&self, key: &K, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let place = self.shared.place(key);
        let mut items = self.shared.shard(place.shard);
        let value = items.get_mut(place.hash, key)?; // `f` is dropped after the guard, as parameters are
        let called = while_running(self.shared.address(), || caught(|| f(value)));
        Some(called.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<K, V> Clone for DelayQueue<K, V> {
    /// Returns another handle of the same queue.
    fn clone(&self) -> Self {
        DelayQueue { shared: Arc::clone(&self.shared) }
    }
}

impl_debug!(DelayQueue<K, V>, self,
    len: self.len(),
    next_deadline: self.next_deadline(),
    is_closed: self.is_closed()
);
