//! The public wheel: values with keys. The [`Buckets`] have an entry for each value.
//!
//! ```text
//!   insert, reset to earlier ──> buckets ──── its tick comes ────> ready   (a sorted queue)  ──┐
//!                          └──> behind  (a heap), if its tick has passed                      ─┴─> out, in order
//! ```
//!
//! Each value has one live entry: the one that has the `filing` of the value's slot. Its deadline is never later than that
//! of the value. A reset to a later deadline only changes the value. Its entry stays where it is, and is filed again when
//! it comes up: in `move_to` if the value belongs to a later tick, in `first_ready` within a tick, in `next_expiry` before
//! that.
//!
//! `ready` and `behind` hold the entries of ticks that the buckets have reached, and the buckets those of later ticks. So
//! the first of `ready` and `behind` is the first of all.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::num::NonZeroU64;

use super::buckets::Buckets;
use super::chain::Timed;
use super::slots::{Slot, Slots};
use crate::clock::tick::Tick;
use crate::platform::cpu::prefetch;
use crate::platform::impls::impl_debug;

/// A timer wheel as a data structure: values by deadline, counted in ticks of any length. It has no thread, no clock
/// and no atomics.
///
/// To insert or to remove takes constant time. To advance costs as much as comes out, however far the wheel
/// moves and however many values are not due. Deadlines are 64-bit numbers.
///
/// ```
/// use tickwheel::wheel::Wheel;
///
/// let mut wheel = Wheel::new(256);
/// let tea = wheel.insert(180, "tea");
/// wheel.insert(240, "eggs");
/// wheel.insert(1_000_000, "dinner");
/// assert_eq!(wheel.next_expiry(), Some(180));
///
/// assert_eq!(wheel.remove(tea), Some("tea"));
/// assert_eq!(wheel.remove(tea), None);
///
/// let due: Vec<_> = wheel.advance(2_000_000).collect();
/// assert_eq!(due, [(240, "eggs"), (1_000_000, "dinner")]);
/// assert!(wheel.is_empty());
/// ```
#[repr(C)] // what each call writes is on the first cache lines, which go together from one processor to the other
pub struct Wheel<T> {
    len: usize,
    slots: Slots<T>,
    buckets: Buckets<KeyedEntry>,
    /// The entries that have come out of the buckets, in order.
    ready: VecDeque<Ready>,
    /// The entries whose tick had passed when they were filed, the first on top.
    behind: BinaryHeap<Reverse<Ready>>,
    /// Room for the entries that come out of the buckets. It is empty between calls, and small.
    given_out: Vec<KeyedEntry>,
    now: u64,
    /// The order of the next value that is inserted or reset.
    next_order: u64,
    size: usize,
}

/// Identifies a value in a [`Wheel`]. The key of a value that is gone never matches another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WheelKey {
    slot: u32,
    generation: u32,
}

impl WheelKey {
    /// Returns the number of the value's slot: less than the most values that the wheel ever held at a time. When the
    /// value is gone another one may get its number. For tables beside a wheel, which are changed together with it.
    #[doc(hidden)] // for the layers of this crate
    pub fn index(self) -> u32 {
        self.slot
    }

    /// The key of no value.
    pub(crate) const NONE: WheelKey = WheelKey { slot: u32::MAX, generation: u32::MAX };

    /// Returns the key as a number, which is below 2^62 if the wheel has never held 2^30 values.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    pub(crate) fn from_bits(bits: u64) -> WheelKey {
        WheelKey { slot: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The entry of a value in the buckets.
#[derive(Clone, Copy, Default)]
struct KeyedEntry {
    deadline: u64,
    slot: u32,
    filing: u32,
}

impl Timed for KeyedEntry {
    fn deadline(&self) -> u64 {
        self.deadline
    }
}

/// The entry of a value whose tick has come, ordered by place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, packed(8))] // 24 bytes
struct Ready {
    /// The deadline and the order, as one number, because a comparison of pairs takes several times as long.
    place: u128,
    slot: u32,
    filing: u32,
}

impl Ready {
    #[inline]
    fn new((deadline, order): (u64, u64), slot: u32, filing: u32) -> Ready {
        Ready { place: u128::from(deadline) << u64::BITS | u128::from(order), slot, filing }
    }

    #[inline]
    fn deadline(&self) -> u64 {
        (self.place >> u64::BITS) as u64
    }

    #[inline]
    fn order(&self) -> u64 {
        self.place as u64
    }
}

impl<T> Wheel<T> {
    /// Creates a wheel with this number of buckets, at tick zero.
    ///
    /// # Panics
    ///
    /// Panics unless the number is a power of two. [`try_new`](Wheel::try_new) does not.
    pub fn new(buckets: usize) -> Wheel<T> {
        Wheel::try_new(buckets).expect("the number of buckets must be a power of two, such as 256")
    }

    /// Creates a wheel with this number of buckets, at tick zero. Returns `None` unless the number is a power of two.
    pub fn try_new(buckets: usize) -> Option<Wheel<T>> {
        buckets.is_power_of_two().then(|| Wheel::with_granularity(buckets, NonZeroU64::MIN, 0))
    }

    /// Creates a wheel of `size` buckets, a power of two, which each cover `granularity` ticks. It stands at the tick `now`.
    ///
    /// Deadlines are still kept and given out to the tick. With ticks of a nanosecond, for example, and buckets of a
    /// millisecond, deadlines are exact, and near ones cost no more than on a wheel with ticks of a millisecond.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use tickwheel::wheel::Wheel;
    ///
    /// let millisecond = NonZeroU64::new(1_000_000).unwrap();
    /// let mut wheel = Wheel::with_granularity(256, millisecond, 1_000);
    /// assert_eq!(wheel.now(), 1_000);
    /// wheel.insert(1_500_001, "second");
    /// wheel.insert(1_500_000, "first");
    /// assert_eq!(wheel.advance(1_500_000).collect::<Vec<_>>(), [(1_500_000, "first")]);
    /// assert_eq!(wheel.next_expiry(), Some(1_500_001));
    /// ```
    #[doc(hidden)] // for the layers of this crate
    pub fn with_granularity(size: usize, granularity: NonZeroU64, now: u64) -> Wheel<T> {
        let reached = Tick(now.div_ceil(granularity.get()));
        Wheel {
            buckets: Buckets::new(size, granularity, reached),
            slots: Slots::new(),
            len: 0,
            ready: VecDeque::new(),
            behind: BinaryHeap::new(),
            given_out: Vec::new(),
            now,
            next_order: 0,
            size,
        }
    }

    /// Returns the tick that the wheel has been advanced to.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.size
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the wheel holds no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    // ----- in ------------------------------------------------------------------------------

    /// Inserts a value that is due at this tick. If the tick has passed, the value comes out at the next
    /// [`advance`](Wheel::advance).
    ///
    /// # Panics
    ///
    /// Panics if the wheel holds four thousand million values.
    pub fn insert(&mut self, deadline: u64, value: T) -> WheelKey {
        let order = self.next_order();
        self.insert_as(deadline, order, value)
    }

    /// Like [`insert`](Wheel::insert), with a position among values of the same deadline: those of a smaller `order` come
    /// out before. For values that are spread over several wheels, of which [`peek`](Wheel::peek) finds the first.
    ///
    /// # Panics
    ///
    /// Panics if the wheel holds four thousand million values.
    #[doc(hidden)] // for the layers of this crate
    #[inline] // with a call, an insert into a delay queue costs 25 instructions more, in some builds
    pub fn insert_as(&mut self, deadline: u64, order: u64, value: T) -> WheelKey {
        let (slot, generation, filing) = self.slots.insert(deadline, order, value);
        self.len += 1;
        self.add_entry(Ready::new((deadline, order), slot, filing));
        WheelKey { slot, generation }
    }

    fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// Makes an entry for a value, which stands for it from now on.
    fn file(&mut self, slot: u32) {
        let Some(filed) = self.slots.get_mut(slot) else { return };
        // If it wraps, a stale entry from long ago may stand for the value as well. Then both are filed again when
        // they come up, and one of them becomes stale by that.
        filed.filing = filed.filing.wrapping_add(1);
        let ready = Ready::new((filed.deadline, filed.order), slot, filed.filing);
        self.add_entry(ready);
    }

    fn add_entry(&mut self, ready: Ready) {
        let (deadline, Ready { slot, filing, .. }) = (ready.deadline(), ready);
        if self.buckets.insert(KeyedEntry { deadline, slot, filing }) {
            return;
        }
        if self.ready.back().is_none_or(|last| *last < ready) {
            self.ready.push_back(ready); // as values that are due at once are inserted
        } else {
            self.behind.push(Reverse(ready));
        }
    }

    /// Moves the deadline of a value. Returns false if the value is gone already.
    ///
    /// Among values of the same deadline it comes out as if it had been inserted now. A value that was due, but has not
    /// come out, can be moved too.
    ///
    /// To a later deadline this costs two stores: the value's entry stays where it is, and is moved when it comes up.
    ///
    /// ```
    /// use tickwheel::wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64);
    /// let session = wheel.insert(30, "session");
    /// assert!(wheel.reset(session, 50));
    /// assert_eq!(wheel.advance(49).count(), 0);
    /// assert_eq!(wheel.advance(50).collect::<Vec<_>>(), [(50, "session")]);
    /// assert!(!wheel.reset(session, 70));
    /// ```
    pub fn reset(&mut self, key: WheelKey, deadline: u64) -> bool {
        let order = self.next_order();
        self.reset_as(key, deadline, order)
    }

    /// Like [`reset`](Wheel::reset), with a position among values of the same deadline: see
    /// [`insert_as`](Wheel::insert_as).
    #[doc(hidden)] // for the layers of this crate
    pub fn reset_as(&mut self, key: WheelKey, deadline: u64, order: u64) -> bool {
        let slot = self.slots.get_mut(key.slot);
        let Some(slot) = slot.filter(|slot| slot.holds(key.generation)) else { return false };
        // By both: at the same deadline, a value of a smaller order has to come out before, too.
        let is_earlier = (deadline, order) < (slot.deadline, slot.order);
        (slot.deadline, slot.order) = (deadline, order);
        if is_earlier {
            self.file(key.slot); // an entry must not be later than its value
            self.drop_stale();
        }
        true
    }

    // ----- out -----------------------------------------------------------------------------

    /// Removes a value, before or after it is due. Returns `None` if it is gone already.
    pub fn remove(&mut self, key: WheelKey) -> Option<T> {
        let value = self.vacate(key)?;
        self.drop_stale();
        Some(value)
    }

    /// Takes the value out of its slot, and frees the slot.
    fn vacate(&mut self, WheelKey { slot, generation }: WheelKey) -> Option<T> {
        let value = self.slots.take(slot, generation)?;
        self.len -= 1;
        let room = self.ready.capacity().max(self.behind.capacity());
        if self.len == 0 && (room > KEPT || self.buckets.pool.most_used() > BLOCKS_KEPT) {
            self.give_back_all();
        }
        Some(value)
    }

    /// Drops stale entries if they are more than the values.
    fn drop_stale(&mut self) {
        let enough = 2 * self.len + SLACK;
        let slots = &self.slots;
        // A share at a time, so that no call takes long. Each removal and each reset to an earlier deadline leaves one
        // stale entry, and pays for about two.
        if self.buckets.len() > enough {
            self.buckets.sweep(SHARE, |entry| filed(slots, entry.slot, entry.filing).is_some());
            self.buckets.give_back(GIVE_BACK);
        }
        // All at once here. It halves the entries at least, so each has been paid for by a call.
        if self.ready.len() + self.behind.len() > enough {
            let is_live = |ready: &Ready| filed(slots, ready.slot, ready.filing).is_some();
            self.ready.retain(is_live);
            self.behind.retain(|Reverse(ready)| is_live(ready));
            self.give_back(enough); // the blocks from which they came
        }
    }

    /// Frees the memory of a peak. The wheel is empty, so all entries are stale.
    #[cold]
    fn give_back_all(&mut self) {
        (self.ready, self.behind) = (VecDeque::new(), BinaryHeap::new());
        self.buckets.clear();
    }

    /// Returns the value that has this [index](WheelKey::index), with its key.
    #[doc(hidden)] // for the layers of this crate
    pub fn at(&self, index: u32) -> Option<(WheelKey, &T)> {
        let Slot { generation, value, .. } = self.slots.get(index)?;
        Some((WheelKey { slot: index, generation: *generation }, value.as_ref()?))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: WheelKey) -> Option<&T> {
        self.slot(key)?.value.as_ref()
    }

    /// Returns the value of a key, mutably.
    pub fn get_mut(&mut self, key: WheelKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot);
        slot.filter(|slot| slot.generation == key.generation)?.value.as_mut()
    }

    /// Returns true if the value of a key is still there.
    pub fn contains(&self, key: WheelKey) -> bool {
        self.slot(key).is_some()
    }

    /// Returns the tick at which the value of a key is due.
    pub fn deadline(&self, key: WheelKey) -> Option<u64> {
        Some(self.slot(key)?.deadline)
    }

    fn slot(&self, key: WheelKey) -> Option<&Slot<T>> {
        self.slots.get(key.slot).filter(|slot| slot.holds(key.generation))
    }

    /// Moves on to a tick, and returns the values that are due by then: by deadline, and at equal deadlines in
    /// the order of insertion or [`reset`](Wheel::reset). The wheel does not move back to a tick that has passed.
    ///
    /// If the iterator is dropped early, the rest comes out at the next call.
    pub fn advance(&mut self, to: u64) -> Advance<'_, T> {
        self.move_to(to);
        Advance { wheel: self }
    }

    /// Moves on to a tick, and takes out the first value that is due by then, with its key and its deadline.
    ///
    /// ```
    /// use tickwheel::wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64);
    /// let tea = wheel.insert(3, "tea");
    /// assert_eq!(wheel.pop(2), None);
    /// assert_eq!(wheel.pop(5), Some((tea, 3, "tea")));
    /// ```
    pub fn pop(&mut self, to: u64) -> Option<(WheelKey, u64, T)> {
        self.pop_if(to, |_, _| true)
    }

    /// Like [`pop`](Wheel::pop), but leaves the value if `may_pop` says no to its deadline and order. What
    /// [`peek`](Wheel::peek) and `pop` would look up twice, it looks up once.
    pub(crate) fn pop_if(
        &mut self,
        to: u64,
        may_pop: impl FnOnce(u64, u64) -> bool,
    ) -> Option<(WheelKey, u64, T)> {
        self.move_to(to);
        self.pop_due(may_pop)
    }

    fn pop_due(&mut self, may_pop: impl FnOnce(u64, u64) -> bool) -> Option<(WheelKey, u64, T)> {
        // The end of nearly every `advance`.
        if self.ready.is_empty() && self.behind.is_empty() {
            return None;
        }
        let (first, is_ready) = self.first_ready()?;
        if first.deadline() > self.now || !may_pop(first.deadline(), first.order()) {
            return None;
        }
        self.take_ready(is_ready);
        let (key, _) = self.at(first.slot)?;
        Some((key, first.deadline(), self.vacate(key)?))
    }

    /// Moves on to a tick, and returns the deadline and the order of the value that [`pop`](Wheel::pop) would take out.
    pub fn peek(&mut self, to: u64) -> Option<(u64, u64)> {
        let first = self.first_due(to)?;
        Some((first.deadline(), first.order()))
    }

    /// Returns a deadline and an order before which no value comes out, without a look at the values. Returns `None` if no
    /// tick of theirs has come.
    pub(crate) fn bound(&self) -> Option<(u64, u64)> {
        let (first, _) = self.first_filed()?;
        // Its slot is a cache miss, which the caller need not wait for now.
        self.slots.get(first.slot).into_iter().for_each(|slot| prefetch(slot));
        Some((first.deadline(), first.order()))
    }

    /// Moves on to a tick, and returns how many values are due by then, or somewhat more if some were removed.
    pub(crate) fn count_due(&mut self, to: u64) -> usize {
        self.move_to(to);
        self.ready.partition_point(|ready| ready.deadline() <= self.now) + self.behind.len()
    }

    /// Returns all values with their deadlines, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().filter_map(|(_, slot)| Some((slot.deadline, slot.value.as_ref()?)))
    }

    /// Takes all values out, each with its deadline and its order. They come in no order, because sorting takes long.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, u64, T)> {
        let name = |(slot, it): (u32, &Slot<T>)| {
            (WheelKey { slot, generation: it.generation }, it.deadline, it.order)
        };
        let all: Vec<_> = self.slots.iter().map(name).collect();
        let take = |(key, deadline, order)| Some((deadline, order, self.vacate(key)?));
        all.into_iter().filter_map(take).collect()
    }

    /// Like [`peek`](Wheel::peek), but returns the key of that value.
    pub(crate) fn peek_key(&mut self, to: u64) -> Option<WheelKey> {
        let first = self.first_due(to)?;
        self.at(first.slot).map(|(key, _)| key)
    }

    fn first_due(&mut self, to: u64) -> Option<Ready> {
        self.move_to(to);
        let (first, _) = self.first_ready()?;
        (first.deadline() <= self.now).then_some(first)
    }

    /// Moves the buckets on, and what comes out of them to `ready`.
    fn move_to(&mut self, to: u64) {
        if to <= self.now {
            return;
        }
        self.now = to;
        // Within a tick nothing comes out of the buckets.
        let tick = self.buckets.tick_of(self.now);
        if tick <= self.buckets.now() {
            return;
        }
        self.buckets.advance(tick, &mut self.given_out);
        self.buckets.give_back(GIVE_BACK);
        if !self.given_out.is_empty() {
            self.make_ready(tick);
        }
    }

    /// Moves what has come out of the buckets, up to this tick, to `ready`. An entry whose value is due later is filed
    /// again.
    fn make_ready(&mut self, tick: Tick) {
        // Taken out, because filing again borrows the whole wheel.
        let mut given_out = core::mem::take(&mut self.given_out);
        let before = self.ready.len();
        for (at, entry) in given_out.iter().enumerate() {
            if let Some(soon) = given_out.get(at + AHEAD) {
                self.slots.get(soon.slot).into_iter().for_each(|slot| prefetch(slot));
            }
            let KeyedEntry { slot, filing, .. } = *entry;
            let Some(Slot { deadline, order, .. }) = filed(&self.slots, slot, filing) else {
                continue;
            };
            let (deadline, order) = (*deadline, *order);
            // It was reset to a later tick. Within this tick, `first_ready` sees to it.
            if deadline > self.now && self.buckets.tick_of(deadline) > tick {
                self.file(slot);
            } else {
                self.ready.push_back(Ready::new((deadline, order), slot, filing));
            }
        }
        given_out.clear();
        given_out.shrink_to(KEPT);
        self.given_out = given_out;
        // All of them are later than what was in it, which is not moved for them, except if they lie across the end of its
        // room: that is once in as many values as it has room for.
        let whole = self.ready.as_slices().0.len();
        if before < whole && whole < self.ready.len() {
            self.ready.make_contiguous();
        }
        let (front, back) = self.ready.as_mut_slices();
        let batch = match before.checked_sub(front.len()) {
            Some(before) => &mut back[before..],
            None => &mut front[before..],
        };
        // Values that were inserted in a loop come out in order.
        if !batch.is_sorted() {
            batch.sort_unstable();
        }
    }

    /// Returns the first entry whose tick has come, and true if it is in `ready`. Drops stale entries on the way, and
    /// files those again whose values were reset.
    fn first_ready(&mut self) -> Option<(Ready, bool)> {
        loop {
            let (first, is_ready) = self.first_filed()?;
            let filed = filed(&self.slots, first.slot, first.filing);
            let due = filed.map(|slot| (slot.deadline, slot.order));
            if due == Some((first.deadline(), first.order())) {
                return Some((first, is_ready));
            }
            // It is stale, or its value was reset to a later time within this tick.
            self.take_ready(is_ready);
            if due.is_some() {
                self.file(first.slot);
            }
        }
    }

    /// Returns the first entry whose tick has come, stale or not.
    #[inline]
    fn first_filed(&self) -> Option<(Ready, bool)> {
        let ready = self.ready.front();
        let behind = self.behind.peek().map(|Reverse(behind)| behind);
        Some(match (ready, behind) {
            (Some(ready), Some(behind)) if behind < ready => (*behind, false),
            (Some(ready), _) => (*ready, true),
            (None, behind) => (*behind?, false),
        })
    }

    /// Takes an entry out that [`first_ready`](Wheel::first_ready) has found.
    fn take_ready(&mut self, is_ready: bool) {
        if is_ready {
            self.ready.pop_front();
        } else {
            self.behind.pop();
        }
        self.give_back(1); // the blocks from which they came
    }

    /// Gives back what a peak has left: room for entries whose tick has come, and about so many blocks.
    #[inline]
    fn give_back(&mut self, blocks: usize) {
        let room = self.ready.capacity().max(self.behind.capacity());
        if room > KEPT || self.buckets.is_bloated() {
            self.shrink(blocks);
        }
    }

    fn shrink(&mut self, blocks: usize) {
        let is_bloated = |room: usize, len: usize| room > KEPT && len < room / 8;
        if is_bloated(self.ready.capacity(), self.ready.len()) {
            self.ready.shrink_to(2 * self.ready.len());
        }
        if is_bloated(self.behind.capacity(), self.behind.len()) {
            self.behind.shrink_to(2 * self.behind.len());
        }
        self.buckets.give_back(blocks);
    }

    // ----- what comes next -----------------------------------------------------------------

    /// Returns the earliest deadline, or `None` if the wheel is empty. It may have to look at all entries of a bucket, or
    /// at as many as half of the buckets cover.
    pub fn next_expiry(&mut self) -> Option<u64> {
        self.next_expiry_within(usize::MAX)
    }

    /// Returns the earliest deadline, or an earlier tick if it has looked at about `budget` entries and does not know.
    /// Returns `None` if the wheel is empty.
    ///
    /// For a thread that sleeps until then, advances the wheel, and asks again.
    #[doc(hidden)] // for the layers of this crate
    pub fn next_expiry_within(&mut self, budget: usize) -> Option<u64> {
        let mut budget = budget;
        while self.len > 0 {
            if let Some((first, _)) = self.first_ready() {
                return Some(first.deadline()); // what is in the buckets is later
            }
            // Entries whose values were reset stand for an earlier time than is true. They are collected, and filed
            // where they belong, and then the look begins anew.
            let (slots, moved) = (&self.slots, &mut self.given_out);
            let first = self.buckets.first(budget, |entry| {
                let filed = filed(slots, entry.slot, entry.filing);
                let has_moved = filed.is_some_and(|slot| slot.deadline != entry.deadline);
                if has_moved {
                    moved.push(*entry);
                }
                filed.is_some() && !has_moved
            });
            if moved.is_empty() {
                return first;
            }
            budget = budget.saturating_sub(moved.len());
            while let Some(entry) = self.given_out.pop() {
                // An entry that was met twice is stale by the second time.
                if filed(&self.slots, entry.slot, entry.filing).is_some() {
                    self.file(entry.slot);
                }
            }
        }
        None
    }

    /// Checks all invariants, for tests.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.buckets.check_invariants();
        self.slots.check_invariants(self.len);
        let ready = || self.ready.iter().chain(self.behind.iter().map(|Reverse(ready)| ready));
        let entries = self.buckets.iter().map(|entry| (entry.slot, entry.filing, entry.deadline));
        let entries = entries.chain(ready().map(|it| (it.slot, it.filing, it.deadline())));
        let mut live = Vec::new();
        for (slot, filing, deadline) in entries {
            if let Some(filed) = filed(&self.slots, slot, filing) {
                assert!(deadline <= filed.deadline, "slot {slot} is filed too late");
                live.push(slot);
            }
        }
        live.sort_unstable();
        let values = self.slots.iter().map(|(slot, _)| slot);
        assert!(values.eq(live), "a value has one entry that stands for it");
        assert!(self.ready.iter().is_sorted(), "`ready` is out of order");
        let reached = self.buckets.now();
        let is_late = ready().any(|ready| self.buckets.tick_of(ready.deadline()) > reached);
        assert!(!is_late, "an entry is ready whose tick has not come");
    }
}

/// The most blocks, left over from a peak, that one call frees.
const GIVE_BACK: usize = 64;
/// How many entries ahead of its turn a slot is fetched into the cache.
const AHEAD: usize = 8;
/// So many stale entries are never a reason for a sweep.
const SLACK: usize = 64;
/// About so many entries are looked at by one call that sweeps.
const SHARE: usize = 64;
/// The memory of so many entries whose tick has come is kept.
const KEPT: usize = 256;
/// The memory of so many blocks is kept when the wheel is empty.
const BLOCKS_KEPT: usize = 256;

/// Returns the slot for whose value the entry of this filing stands. The page of the slot may have been given back.
fn filed<T>(slots: &Slots<T>, slot: u32, filing: u32) -> Option<&Slot<T>> {
    slots.get(slot).filter(|slot| slot.filing == filing && slot.value.is_some())
}

impl_debug!(Wheel<T>, self, now: self.now, len: self.len, buckets: self.size);

/// An iterator over due values and their deadlines: see [`Wheel::advance`].
pub struct Advance<'a, T> {
    wheel: &'a mut Wheel<T>,
}

impl<T> Iterator for Advance<'_, T> {
    type Item = (u64, T);

    fn next(&mut self) -> Option<(u64, T)> {
        let (_, deadline, value) = self.wheel.pop_due(|_, _| true)?;
        Some((deadline, value))
    }
}

impl_debug!(Advance<'_, T>, self, at_most: self.wheel.ready.len() + self.wheel.behind.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut wheel = Wheel::new(4);
        let first = wheel.insert(1, 'a');
        wheel.remove(first);
        wheel.slots.get_mut(0).expect("a slot").generation = u32::MAX;
        let last = wheel.insert(1, 'b');
        assert_eq!((last.slot, last.generation), (0, u32::MAX));
        assert_eq!(wheel.remove(last), Some('b'));
        let next = wheel.insert(1, 'c');
        assert_eq!(next.slot, 1, "slot 0 has no key left");
        assert!(!wheel.contains(last) && wheel.remove(last).is_none());
        assert_eq!(wheel.advance(1).collect::<Vec<_>>(), [(1, 'c')]);
    }

    #[test]
    fn s09_what_a_burst_has_left_goes_back_while_one_value_stays() {
        let mut wheel = Wheel::new(64);
        (0..100_000).for_each(|value| _ = wheel.insert(7, value));
        assert_eq!(wheel.advance(7).take(99_999).count(), 99_999);
        assert!(wheel.ready.capacity() <= 2 * KEPT && wheel.given_out.capacity() <= KEPT);
        assert!(!wheel.buckets.is_bloated());
    }

    #[test]
    fn s09_values_that_were_reset_take_no_room_where_due_ones_wait() {
        let mut wheel = Wheel::new(64);
        let keys: Vec<_> = (0..100_000).map(|value| wheel.insert(7, value)).collect();
        keys.iter().for_each(|key| assert!(wheel.reset(*key, 10_000)));
        assert_eq!(wheel.advance(7).count(), 0);
        assert!(wheel.ready.capacity() <= KEPT && wheel.given_out.capacity() <= KEPT);
    }

    /// Otherwise each tick would take as long as it takes to move them.
    #[test]
    fn what_waits_in_a_long_queue_is_seldom_moved_for_what_comes_behind_it() {
        for batch in 1..5 {
            let (long, ticks) = (1000, 4000);
            let mut wheel = Wheel::with_granularity(64, NonZeroU64::new(8).expect("8"), 0);
            (0..long).for_each(|value| _ = wheel.insert(8, value));
            // The later ones first, so that they are sorted.
            let each = |tick: u64| (0..batch).map(move |before| 8 * tick - before);
            (2..ticks).flat_map(each).for_each(|deadline| _ = wheel.insert(deadline, 0));
            wheel.peek(8);
            wheel.ready.shrink_to_fit();
            let (mut moves, mut last) = (0, 0);
            for tick in 2..ticks {
                (0..batch).for_each(|_| {
                    let (_, deadline, _) = wheel.pop(8).expect("many are due");
                    assert!(last <= deadline);
                    last = deadline;
                });
                let waits = &raw const wheel.ready[500];
                wheel.peek(8 * tick);
                moves += u64::from(waits != &raw const wheel.ready[500]);
            }
            wheel.check_invariants();
            assert!(moves <= 2 + 2 * batch * ticks / long, "{moves} moves of {batch} at a time");
        }
    }

    #[test]
    fn s09_the_blocks_of_values_that_were_removed_go_back_before_their_time_comes() {
        let mut wheel = Wheel::new(64);
        let keys: Vec<_> =
            (0..100_000).map(|value| wheel.insert(1 + value % 1_000, value)).collect();
        keys.iter().skip(1).for_each(|key| _ = wheel.remove(*key));
        assert!(wheel.buckets.len() <= 2 + SLACK + SHARE && !wheel.buckets.is_bloated());
        wheel.check_invariants();
    }
}
