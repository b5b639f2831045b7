//! What the handles of a queue share: shards of items, and the takers, with their turns and their line.
//!
//! A key belongs to one shard, by its hash, so threads that insert, reset and remove seldom meet. With one lock for all of
//! them, two threads that push deadlines further took four times as long as one: see [`design`](crate::docs::design).
//!
//! ```text
//!   insert, reset, remove ──> shard 0: Items ─┐
//!                         ──> shard 1: Items ─┼── lowered ──> take: the first of the shards ──> a taker
//!                         ──> ...             ┘                                                   │
//!                               '── earlier than `asleep_until`? ──> wakes the leader of the line
//! ```
//!
//! - SHARD-1 Whenever a shard's lock is free, no item of it is due before its head. And what takers know of it, its bound,
//!   is no later than its head, or its bit in `lowered` is set. An insert or a reset to a time before the head lowers the
//!   head and sets the bit, under the shard's lock. A taker clears the bit, and looks under the shard's lock after that.
//! - Takers take turns, under the lock `takers`. A taker locks the shard with the first bound, finds its first item, and while
//!   it holds the shard, looks at those that were lowered. So items come out in order: what was inserted before the item that
//!   comes out has set its bit before, and what is inserted at the same time may count as later.
//! - A bound has the stamp of the first item, so equal deadlines in many shards cost no look at each. An item of the same
//!   deadline with an earlier stamp may come in after the look, and does not lower the head. Its insert has overlapped with
//!   that of the item with the later stamp, so their order is open.
//! - Locks are taken in this order: `takers`, and then shards. Only the thread that has `takers` holds two shards. So there
//!   is no deadlock.
//! - No user code runs under a lock, except `Eq` of keys and the closure of `with`. Clocks are read before. Keys,
//!   values and wakers are dropped, and wakers cloned and woken, before or after.
//! - Each insert and each reset has a stamp, which is greater for the later one of two calls. Equal deadlines come
//!   out by it. It is a reading of the clock, if two of them always differ, and otherwise a count, which is a cache line
//!   that all threads write.
//!
//! # The wake-up of a leader
//!
//! The line is a [`WaitList`], under the takers' lock (WAKE-2, WAKE-6). An insert seldom has to wake anybody, so a word says
//! whether it has to ask there.
//!
//! - LINE-1 A leader that is about to sleep stores `Moment::NEVER` in `asleep_until`, looks at each shard under its lock,
//!   and then stores the earliest deadline that it has found. A thread that inserts or resets loads `asleep_until` after it
//!   has released the shard's lock. If it had that lock before the leader, the leader has seen its item. Otherwise it sees
//!   what the leader has stored, and asks at the line. So all loads and stores can be Relaxed: the shard's lock orders them.
//! - A thread that asks at the line finds the leader as it is: the leader has its entry there before it releases that
//!   lock. Whoever wakes the leader stores [`AWAKE`] under that lock.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::num::NonZeroU32;
use std::ptr;
use std::sync::{LazyLock, TryLockError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::Expired;
use super::firsts::{Firsts, MOST};
use super::items::{Due, Items, Out};
use super::table::Hint;
use crate::backpressure::PendingLimit;
use crate::clock::tick::Moment;
use crate::clock::timeline::{Timeline, When};
use crate::executor::deadlock::runs_here;
use crate::platform::cpu::prefetch;
use crate::platform::panics::quietly;
use crate::platform::sync::{AtomicU64, IS_MODEL, Mutex, MutexGuard, Ordering, lock};
use crate::wake::wait_list::{Ticket, WaitList};
use crate::wake::{AWAKE, asleep};
use crate::{ScheduleError, Scheduler};

/// What the handles of a queue share.
pub(super) struct Shared<K, V> {
    pub(super) scheduler: Scheduler,
    pub(super) timeline: Timeline,
    hasher: RandomState,
    pub(super) limit: PendingLimit,
    /// A power of two of them.
    shards: Box<[Shard<K, V>]>,
    /// A bit for each shard whose head was lowered since a taker looked at it (SHARD-1). Relaxed: the shard's lock orders a
    /// bit and the item. A taker that has the lock of a shard sees the bits that were set before what is in that shard.
    lowered: AtomicU64,
    /// Where the shards' tables are, to fetch what a call will read ahead of the lock.
    pub(super) hints: Box<[Hint]>,
    /// Counts inserts and resets, if readings of the clock may be equal. Relaxed: only its order counts.
    order: Option<CachePadded<AtomicU64>>,
    takers: CachePadded<Mutex<Takers>>,
    /// Until when the leader of the line sleeps, as a [`Moment`]; [`AWAKE`] if nobody sleeps. Written under the takers'
    /// lock (LINE-1).
    asleep_until: AtomicU64,
}

type Shard<K, V> = CachePadded<Mutex<Items<K, V>>>;

/// What the takers know.
pub(super) struct Takers {
    /// The latest present that a taker knew.
    latest: Moment,
    firsts: Firsts,
    /// Those that wait.
    line: WaitList<Moment>,
}

/// The shard of a key, and what its table knows of the key.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) hash: NonZeroU32,
}

/// Sixteen shards for each processor, so that two threads seldom want the same one at a time.
static SHARDS: LazyLock<usize> = LazyLock::new(|| {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if IS_MODEL { 2 } else { (16 * processors).next_power_of_two().clamp(4, MOST) }
});

impl<K, V> Shared<K, V> {
    pub(super) fn new(scheduler: Scheduler, limit: usize) -> Shared<K, V> {
        // The length of a tick does not matter: no deadline is rounded here.
        let tick = Duration::from_millis(1);
        let timeline = Timeline::new(scheduler.now(), tick).expect("above zero");
        let start = timeline.start;
        let shard = |_| CachePadded::new(Mutex::new(Items::new(start)));
        let by_clock = scheduler.tells_calls_apart();
        let (firsts, line) = (Firsts::new(*SHARDS), WaitList::new());
        let order = (!by_clock).then(|| CachePadded::new(AtomicU64::new(0)));
        Shared {
            scheduler,
            timeline,
            hasher: RandomState::new(),
            limit: PendingLimit::new((limit < usize::MAX).then_some(limit)),
            shards: (0..*SHARDS).map(shard).collect(),
            lowered: AtomicU64::new(0),
            hints: (0..*SHARDS).map(|_| Hint::default()).collect(),
            order,
            takers: CachePadded::new(Mutex::new(Takers { latest: start, firsts, line })),
            asleep_until: AtomicU64::new(AWAKE),
        }
    }

    /// Reads the clock, which may be user code, so nothing may be locked.
    pub(super) fn now(&self) -> Moment {
        self.timeline.present(self.scheduler.now())
    }

    pub(super) fn expired(&self, (deadline, key, value): Out<K, V>) -> Expired<K, V> {
        Expired { key, value, deadline: self.timeline.instant(deadline) }
    }

    /// Locks a mutex, poisoned or not. A thread that is in the closure of `with` never waits here: another thread may wait
    /// for the shard that it has, and hold this lock.
    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        if IS_MODEL {
            return lock(mutex); // one step, not two, in each of the interleavings
        }
        match mutex.try_lock() {
            Err(TryLockError::WouldBlock) => self.wait_for(mutex),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(guard) => guard,
        }
    }

    #[cold]
    fn wait_for<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.must_be_outside();
        lock(mutex)
    }

    /// Returns the address by which a thread knows that it is in the closure of `with`: it runs something of this queue.
    pub(super) fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Panics in the closure of `with`.
    fn must_be_outside(&self) {
        assert!(
            !runs_here(self.address()),
            "the closure of `DelayQueue::with` has called the queue, and would wait for itself for ever: call the queue \
             after `with` has returned"
        );
    }

    /// A lock may be poisoned by a panic in the closure of `with` or in an `Eq`, which leaves the items whole.
    pub(super) fn shard(&self, shard: usize) -> MutexGuard<'_, Items<K, V>> {
        self.lock(&self.shards[shard])
    }

    // ----- in ------------------------------------------------------------------------------

    /// Notes an item that was inserted or moved in a shard that is locked (SHARD-1). Unlocks the shard, and wakes the leader
    /// if it would sleep past the item.
    pub(super) fn has_come(
        &self,
        place: Place,
        mut items: MutexGuard<'_, Items<K, V>>,
        deadline: Moment,
    ) {
        if deadline < items.head {
            items.head = deadline;
            self.lowered.fetch_or(1 << place.shard, Ordering::Relaxed);
        }
        drop(items); // before the look at the leader (LINE-1)
        if deadline.0 < self.asleep_until.load(Ordering::Relaxed) {
            self.wake_leader_for(deadline);
        }
    }

    /// Returns the place of an item that is due then: its deadline, and its stamp.
    #[inline]
    pub(super) fn due(&self, when: When) -> Due {
        let reading = self.scheduler.now();
        let present = self.timeline.present(reading);
        let deadline = match when {
            When::After(delay) => present.after(delay),
            When::At(instant) => self.timeline.deadline(instant, reading),
        };
        let count = |order: &CachePadded<AtomicU64>| order.fetch_add(1, Ordering::Relaxed);
        (deadline, self.order.as_ref().map_or(present.0, count))
    }

    /// Asks at the line, and wakes the leader if it would sleep past an item that has come in.
    #[cold]
    fn wake_leader_for(&self, deadline: Moment) {
        let mut takers = self.lock(&self.takers);
        let leader = takers.line.leader_to_wake(deadline);
        if leader.is_some() {
            self.asleep_until.store(AWAKE, Ordering::Relaxed);
        }
        drop(takers);
        leader.into_iter().for_each(wake);
    }

    // ----- out -----------------------------------------------------------------------------

    /// Takes the first item that is due by `now`. Without a `now` it takes what was due by the latest present that a taker
    /// has known: while many are due, no clock has to be read.
    pub(super) fn take(&self, now: Option<Moment>) -> Option<Out<K, V>> {
        self.must_be_outside(); // first of all: a panic in the middle would lose the bits of `lowered`
        let mut takers = self.lock(&self.takers);
        let Takers { latest, firsts, .. } = &mut *takers;
        let now = now.map_or(*latest, |now| now.max(*latest));
        *latest = now;
        self.look_at_lowered(firsts, None);
        loop {
            let shard = firsts.first();
            if firsts.deadline(shard) > now {
                return None;
            }
            let mut items = self.shard(shard);
            let out = items.pop_if(now, |first| {
                firsts.set(shard, first);
                self.look_at_lowered(firsts, Some(shard));
                firsts.first() == shard
            });
            // If it was not the first of all, this is its place. Otherwise the place of the one after it is not before this.
            let later = |items: &mut Items<K, V>| (items.not_before().max(now.after_nanos(1)), 0);
            let bound = items.bound().unwrap_or_else(|| later(&mut items));
            items.head = bound.0;
            firsts.set(shard, bound);
            if out.is_some() {
                self.limit.leave();
                return out;
            }
        }
    }

    /// Takes over the heads of the shards that were lowered, except the one that the caller has locked and looks at.
    #[inline]
    fn look_at_lowered(&self, firsts: &mut Firsts, except: Option<usize>) {
        if self.lowered.load(Ordering::Relaxed) != 0 {
            self.look_at_each(firsts, except);
        }
    }

    #[cold]
    fn look_at_each(&self, firsts: &mut Firsts, except: Option<usize>) {
        let lowered = self.lowered.swap(0, Ordering::Relaxed);
        for shard in (0..MOST).filter(|shard| lowered >> shard & 1 == 1) {
            if except != Some(shard) {
                firsts.set(shard, (self.shard(shard).head, 0));
            }
        }
    }

    // ----- the line of takers --------------------------------------------------------------

    /// Lines a taker up that has found nothing due. Returns until when it may sleep if it leads, and `None` if it follows and
    /// sleeps until it is woken, or an error if the queue is closed.
    pub(super) fn line_up(
        &self,
        ticket: &mut Option<Ticket>,
        waker: Waker,
    ) -> Result<Option<Moment>, ScheduleError> {
        let mut takers = self.lock(&self.takers);
        if self.shard(0).is_closed {
            return Err(ScheduleError::Closed);
        }
        let line = &mut takers.line;
        let ticket = *ticket.get_or_insert_with(|| line.join());
        let until = line.leads(ticket).then(|| self.look_before_sleep());
        let before = line.set_asleep(ticket, until, waker);
        drop(takers);
        drop(before); // a waker's `Drop` is user code
        Ok(until)
    }

    /// Returns true if the leader sleeps until then, and nobody has woken it.
    pub(super) fn is_asleep_until(&self, until: Moment) -> bool {
        self.asleep_until.load(Ordering::Relaxed) == asleep(until)
    }

    /// Finds out until when the leader may sleep (LINE-1). The takers are locked.
    fn look_before_sleep(&self) -> Moment {
        self.asleep_until.store(Moment::NEVER.0, Ordering::Relaxed);
        let heads = (0..self.shards.len()).map(|shard| self.shard(shard).not_before());
        let until = heads.min().unwrap_or(Moment::NEVER);
        self.asleep_until.store(asleep(until), Ordering::Relaxed);
        until
    }

    /// Takes a taker out of the line. If it was the leader, wakes the next one, which has no alarm yet.
    pub(super) fn leave_line(&self, ticket: Ticket) {
        let mut takers = self.lock(&self.takers);
        if takers.line.leads(ticket) {
            self.asleep_until.store(AWAKE, Ordering::Relaxed);
        }
        // A follower sleeps without end, so a new leader sleeps past everything, and sets an alarm even if there is no
        // item. One that leads already does not.
        let (mine, next) = takers.line.leave(ticket, Some(Moment::NEVER));
        drop(takers);
        next.into_iter().for_each(wake);
        quietly(|| drop(mine)); // its panic must not cost the taker its item
    }

    // ----- all of it -----------------------------------------------------------------------

    /// Locks all shards, for a look at all items at one time.
    pub(super) fn all_shards(&self) -> (MutexGuard<'_, Takers>, Vec<MutexGuard<'_, Items<K, V>>>) {
        let takers = self.lock(&self.takers); // because it holds several shards: no two threads do
        (takers, (0..self.shards.len()).map(|shard| self.shard(shard)).collect())
    }

    /// Closes all shards at once, and wakes all takers. Returns what was in the shards.
    pub(super) fn close(&self) -> Vec<Items<K, V>> {
        let (mut takers, mut shards) = self.all_shards();
        let items = shards.iter_mut().map(|items| items.close()).collect();
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
        let all = takers.line.all_to_wake();
        drop((shards, takers)); // in this order: only the thread that has `takers` holds two shards
        all.into_iter().for_each(wake);
        items
    }

    /// Panics if an invariant is broken, for tests.
    pub(super) fn check_invariants(&self) {
        let takers = self.lock(&self.takers);
        let mut first = None;
        for shard in 0..self.shards.len() {
            let mut items = self.shard(shard);
            items.check_invariants();
            let earliest = items.first();
            let (head, bound) = (items.head, takers.firsts.deadline(shard));
            let is_lowered = self.lowered.load(Ordering::Relaxed) >> shard & 1 == 1;
            assert!(earliest.is_none_or(|earliest| head <= earliest), "SHARD-1: {head:?}");
            assert!(is_lowered || bound <= head, "SHARD-1: {bound:?} after {head:?}");
            first = first.into_iter().chain(earliest).min();
        }
        takers.line.check_invariants(first);
    }
}

impl<K: Hash, V> Shared<K, V> {
    /// Hashes a key, with nothing locked. To be called before the clock is read, for what it fetches takes a while.
    pub(super) fn place(&self, key: &K) -> Place {
        // A model wants the same hashes in each run.
        let same = BuildHasherDefault::<DefaultHasher>::default();
        let hash = if IS_MODEL { same.hash_one(key) } else { self.hasher.hash_one(key) };
        let shard = (hash >> u32::BITS) as usize & (self.shards.len() - 1);
        let hash = NonZeroU32::new(hash as u32).unwrap_or(NonZeroU32::MIN);
        // What a call reads first is fetched while it reads the clock and takes the lock: the place in the table, and the
        // two lines of the shard that each call writes, which another thread may have. An insert takes a fifth less time
        // by it.
        self.hints[shard].prefetch(hash.get());
        let lines = (&raw const self.shards[shard]).cast::<[u8; 64]>();
        prefetch(lines);
        prefetch(lines.wrapping_add(1));
        Place { shard, hash }
    }
}

/// Wakes a taker. If its waker panics, that is not the business of the caller, whose item would be lost.
pub(super) fn wake(waker: Waker) {
    quietly(|| waker.wake());
}
