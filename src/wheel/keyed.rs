//! The public wheel: values with keys. The [`Buckets`] have an entry for each value.
//!
//! ```text
//!   insert, reset to earlier ──> buckets ──── its tick comes ────> ready   (a sorted queue)  ──┐
//!                          └──> behind  (a heap), if its tick has passed                      ─┴─> out, in order
//! ```
//!
//! A reset to a later deadline only changes the value. Its entry stays where it is, and is filed again when it comes up:
//! in `move_to` if the value belongs to a later tick, in `first_ready` within a tick, in `next_expiry` before that.
//!
//! - KEYED-1 Of the entries of a slot, the one that has the slot's `filing` stands for the value. Each value has one such
//!   entry. The number may wrap, so that a stale entry from long ago stands for the value as well. Then both are filed
//!   again when they come up, and one of them becomes stale.
//! - KEYED-2 That entry's deadline is not later than the value's.
//! - KEYED-3 `ready` and `behind` hold the entries of ticks that the buckets have reached, and the buckets those of later
//!   ticks. `ready` is sorted. So the first of both is the first of all.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::num::NonZeroU64;

use super::buckets::Buckets;
use super::chain::Timed;
use crate::clock::tick::Tick;
use crate::platform::cpu::prefetch;

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
    free: Vec<u32>,
    slots: Vec<Slot<T>>,
    buckets: Buckets<KeyedEntry>,
    /// The entries that have come out of the buckets, in order.
    ready: VecDeque<Ready>,
    /// The entries whose tick had passed when they were filed, the first on top.
    behind: BinaryHeap<Reverse<Ready>>,
    /// Room for the entries that come out of the buckets. It is empty between calls.
    given_out: Vec<KeyedEntry>,
    /// Room for those of them that go to `ready`. It is empty between calls.
    batch: Vec<Ready>,
    now: u64,
    /// The order of the next value that is inserted or reset.
    next_order: u64,
    /// The generation of a slot that is made now.
    first_generation: u32,
    size: usize,
    granularity: NonZeroU64,
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
    pub fn index(self) -> u32 {
        self.slot
    }

    /// Returns the key as a number, which is below 2^62 if the wheel has never held 2^30 values.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    /// Returns the key that has this [number](WheelKey::number).
    pub(crate) fn of_number(number: u64) -> WheelKey {
        WheelKey { slot: (number >> 32) as u32, generation: number as u32 }
    }
}

/// The former name of [`WheelKey`], which is easier to tell from [`pool::Key`](crate::pool::Key).
pub type Key = WheelKey;

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

/// The entry of a value whose tick has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    deadline: u64,
    order: u64,
    slot: u32,
    filing: u32,
}

struct Slot<T> {
    generation: u32,
    /// The number of the entry that stands for the value. Entries with other numbers are stale (KEYED-1).
    filing: u32,
    deadline: u64,
    /// Greater for a value that was inserted or reset later.
    order: u64,
    value: Option<T>,
}

impl<T> Slot<T> {
    fn holds(&self, generation: u32) -> bool {
        self.generation == generation && self.value.is_some()
    }

    fn is_filed_as(&self, filing: u32) -> bool {
        self.filing == filing && self.value.is_some()
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
        buckets.is_power_of_two().then(|| Wheel::at(buckets, NonZeroU64::MIN, 0))
    }

    fn at(size: usize, granularity: NonZeroU64, now: u64) -> Wheel<T> {
        let reached = Tick(now.div_ceil(granularity.get()));
        Wheel {
            buckets: Buckets::new(size, granularity, reached),
            slots: Vec::new(),
            free: Vec::new(),
            len: 0,
            ready: VecDeque::new(),
            behind: BinaryHeap::new(),
            given_out: Vec::new(),
            batch: Vec::new(),
            now,
            next_order: 0,
            first_generation: 0,
            size,
            granularity,
        }
    }

    /// Returns an empty wheel of the same size at another tick. Drops the values of this one.
    ///
    /// ```
    /// use tickwheel::wheel::Wheel;
    ///
    /// let wheel: Wheel<()> = Wheel::new(64).starting_at(1_000);
    /// assert_eq!(wheel.now(), 1_000);
    /// ```
    #[must_use]
    pub fn starting_at(self, tick: u64) -> Wheel<T> {
        Wheel::at(self.size, self.granularity, tick)
    }

    /// Returns an empty wheel of the same size whose buckets each cover so many ticks. Drops the values of this one.
    ///
    /// Deadlines are still kept and given out to the tick. With ticks of a nanosecond, for example, and buckets of a
    /// millisecond, deadlines are exact, and near ones cost no more than on a wheel with ticks of a millisecond.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use tickwheel::wheel::Wheel;
    ///
    /// let millisecond = NonZeroU64::new(1_000_000).unwrap();
    /// let mut wheel = Wheel::new(256).with_granularity(millisecond);
    /// wheel.insert(1_500_001, "second");
    /// wheel.insert(1_500_000, "first");
    /// assert_eq!(wheel.advance(1_500_000).collect::<Vec<_>>(), [(1_500_000, "first")]);
    /// assert_eq!(wheel.next_expiry(), Some(1_500_001));
    /// ```
    #[must_use]
    pub fn with_granularity(self, ticks: NonZeroU64) -> Wheel<T> {
        Wheel::at(self.size, ticks, self.now)
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

    /// Like [`insert`](Wheel::insert), with a place among values of the same deadline: those of a smaller `order` come
    /// out before. For values that are spread over several wheels, of which [`peek`](Wheel::peek) finds the first.
    ///
    /// # Panics
    ///
    /// Panics if the wheel holds four thousand million values.
    pub fn insert_as(&mut self, deadline: u64, order: u64, value: T) -> WheelKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            let generation = self.first_generation;
            self.slots.push(Slot { generation, filing: 0, deadline: 0, order: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than four thousand million values")
        });
        let free = &mut self.slots[slot as usize];
        (free.deadline, free.order) = (deadline, order);
        free.value = Some(value);
        let generation = free.generation;
        self.len += 1;
        self.file(slot);
        WheelKey { slot, generation }
    }

    fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// Makes an entry for a value, which stands for it from now on (KEYED-1).
    fn file(&mut self, slot: u32) {
        let filed = &mut self.slots[slot as usize];
        filed.filing = filed.filing.wrapping_add(1);
        let Slot { filing, deadline, order, .. } = *filed;
        if !self.buckets.insert(KeyedEntry { deadline, slot, filing }) {
            self.behind.push(Reverse(Ready { deadline, order, slot, filing }));
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

    /// Like [`reset`](Wheel::reset), with a place among values of the same deadline: see
    /// [`insert_as`](Wheel::insert_as).
    pub fn reset_as(&mut self, key: WheelKey, deadline: u64, order: u64) -> bool {
        let slot = self.slots.get_mut(key.slot as usize);
        let Some(slot) = slot.filter(|slot| slot.holds(key.generation)) else { return false };
        let is_earlier = (deadline, order) < (slot.deadline, slot.order);
        (slot.deadline, slot.order) = (deadline, order);
        if is_earlier {
            self.file(key.slot); // an entry must not be later than its value (KEYED-2)
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
    fn vacate(&mut self, key: WheelKey) -> Option<T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.len -= 1;
        // A slot whose generations are used up is not used again, so that no key comes twice.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(key.slot);
        }
        if self.len == 0 && self.slots.len() > KEPT {
            self.give_back_all();
        }
        Some(value)
    }

    /// Drops stale entries if they are more than the values. The buckets are swept a share at a time, so that no call
    /// takes long. Each removal and each reset to an earlier deadline leaves one stale entry, and pays for about two.
    fn drop_stale(&mut self) {
        let enough = 2 * self.len + SLACK;
        let slots = &self.slots;
        if self.buckets.len() > enough {
            self.buckets.sweep(SHARE, |entry| is_live(slots, entry));
            self.buckets.give_back(GIVE_BACK);
        }
        if self.ready.len() + self.behind.len() > enough {
            let is_live = |ready: &Ready| slots[ready.slot as usize].is_filed_as(ready.filing);
            self.ready.retain(is_live);
            self.behind.retain(|Reverse(ready)| is_live(ready));
        }
    }

    /// Frees the memory of a peak. The wheel is empty, so all entries are stale.
    #[cold]
    fn give_back_all(&mut self) {
        let highest = self.slots.iter().map(|slot| slot.generation).max();
        let Some(highest) = highest.filter(|highest| *highest < u32::MAX) else {
            return; // a slot made anew could not be told from the one before
        };
        self.first_generation = highest;
        (self.slots, self.free) = (Vec::new(), Vec::new());
        (self.ready, self.behind) = (VecDeque::new(), BinaryHeap::new());
        (self.given_out, self.batch) = (Vec::new(), Vec::new());
        self.buckets.clear();
    }

    /// Returns the key of the value that has this [index](WheelKey::index).
    pub fn key_at(&self, index: u32) -> Option<WheelKey> {
        let slot = self.slots.get(index as usize).filter(|slot| slot.value.is_some())?;
        Some(WheelKey { slot: index, generation: slot.generation })
    }

    /// Returns the value of a key.
    pub fn get(&self, key: WheelKey) -> Option<&T> {
        self.slot(key)?.value.as_ref()
    }

    /// Returns the value of a key, mutably.
    pub fn get_mut(&mut self, key: WheelKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot as usize);
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
        self.slots.get(key.slot as usize).filter(|slot| slot.holds(key.generation))
    }

    /// Moves on to a tick, and returns the values that are due by then: by deadline, and at equal deadlines in
    /// the order of insertion or [`reset`](Wheel::reset). The wheel does not move back to a tick that has passed.
    ///
    /// If the iterator is dropped early, the rest comes out at the next call.
    pub fn advance(&mut self, to: u64) -> Expired<'_, T> {
        self.move_to(to);
        Expired { wheel: self }
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
        self.move_to(to);
        self.pop_due()
    }

    /// Moves on to a tick, and returns the deadline and the order of the value that [`pop`](Wheel::pop) would take out.
    pub fn peek(&mut self, to: u64) -> Option<(u64, u64)> {
        let first = self.first_due(to)?;
        Some((first.deadline, first.order))
    }

    /// Like [`peek`](Wheel::peek), but returns the key of that value.
    pub(crate) fn peek_key(&mut self, to: u64) -> Option<WheelKey> {
        let first = self.first_due(to)?;
        self.key_at(first.slot)
    }

    fn first_due(&mut self, to: u64) -> Option<Ready> {
        self.move_to(to);
        let (first, _) = self.first_ready()?;
        (first.deadline <= self.now).then_some(first)
    }

    /// Moves the buckets on, and what comes out of them to `ready`.
    fn move_to(&mut self, to: u64) {
        self.now = self.now.max(to);
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
        let mut given_out = core::mem::take(&mut self.given_out);
        for (at, entry) in given_out.iter().enumerate() {
            if let Some(soon) = given_out.get(at + AHEAD) {
                prefetch(&raw const self.slots[soon.slot as usize]);
            }
            let KeyedEntry { slot, filing, .. } = *entry;
            let filed = &self.slots[slot as usize];
            if !filed.is_filed_as(filing) {
                continue;
            }
            let Slot { deadline, order, .. } = *filed;
            if deadline > self.now && self.buckets.tick_of(deadline) > tick {
                self.file(slot);
            } else {
                self.batch.push(Ready { deadline, order, slot, filing });
            }
        }
        given_out.clear();
        self.given_out = given_out;
        if !self.batch.is_sorted() {
            self.batch.sort_unstable();
        }
        self.ready.extend(self.batch.drain(..)); // all of them are later than what is in it
    }

    /// Returns the first entry whose tick has come, and true if it is in `ready`. Drops stale entries on the way, and
    /// files those again whose values were reset.
    fn first_ready(&mut self) -> Option<(Ready, bool)> {
        loop {
            let ready = self.ready.front();
            let behind = self.behind.peek().map(|Reverse(behind)| behind);
            let (first, is_ready) = match (ready, behind) {
                (Some(ready), Some(behind)) if behind < ready => (*behind, false),
                (Some(ready), _) => (*ready, true),
                (None, behind) => (*behind?, false),
            };
            let filed = &self.slots[first.slot as usize];
            let is_live = filed.is_filed_as(first.filing);
            if is_live && (filed.deadline, filed.order) == (first.deadline, first.order) {
                return Some((first, is_ready));
            }
            self.take_ready(is_ready);
            if is_live {
                self.file(first.slot);
            }
        }
    }

    /// Takes an entry out that [`first_ready`](Wheel::first_ready) has found.
    fn take_ready(&mut self, is_ready: bool) {
        if is_ready {
            self.ready.pop_front();
        } else {
            self.behind.pop();
        }
    }

    fn pop_due(&mut self) -> Option<(WheelKey, u64, T)> {
        if self.ready.is_empty() && self.behind.is_empty() {
            return None;
        }
        let (first, is_ready) =
            self.first_ready().filter(|(first, _)| first.deadline <= self.now)?;
        self.take_ready(is_ready);
        let generation = self.slots[first.slot as usize].generation;
        let key = WheelKey { slot: first.slot, generation };
        Some((key, first.deadline, self.vacate(key)?))
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
    pub fn next_expiry_within(&mut self, budget: usize) -> Option<u64> {
        let mut budget = budget;
        while self.len > 0 {
            if let Some((first, _)) = self.first_ready() {
                return Some(first.deadline); // what is in the buckets is later
            }
            let mut moved = core::mem::take(&mut self.given_out);
            let slots = &self.slots;
            let first = self.buckets.first(budget, |entry| {
                let is_live = is_live(slots, entry);
                let has_moved = is_live && slots[entry.slot as usize].deadline != entry.deadline;
                if has_moved {
                    moved.push(*entry);
                }
                is_live && !has_moved
            });
            let is_known = moved.is_empty();
            budget = budget.saturating_sub(moved.len());
            for entry in moved.drain(..) {
                // An entry that was met twice is stale by the second time.
                if is_live(&self.slots, &entry) {
                    self.file(entry.slot);
                }
            }
            self.given_out = moved;
            if is_known {
                return first;
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
        self.buckets.check_invariants(&mut Vec::new());
        let alive = self.slots.iter().filter(|slot| slot.value.is_some()).count();
        assert_eq!(alive, self.len, "the number of values");
        let ready = || self.ready.iter().chain(self.behind.iter().map(|Reverse(ready)| ready));
        let mut filed = vec![0; self.slots.len()];
        let mut count = |slot: u32, filing, deadline| {
            let value = &self.slots[slot as usize];
            if value.is_filed_as(filing) {
                filed[slot as usize] += 1;
                assert!(deadline <= value.deadline, "KEYED-2: slot {slot} is filed too late");
            }
        };
        self.buckets.iter().for_each(|entry| count(entry.slot, entry.filing, entry.deadline));
        ready().for_each(|ready| count(ready.slot, ready.filing, ready.deadline));
        for (slot, filed) in self.slots.iter().zip(filed) {
            assert_eq!(filed, u32::from(slot.value.is_some()), "KEYED-1: entries of a value");
        }
        assert!(self.ready.iter().is_sorted(), "KEYED-3: out of order");
        let reached = self.buckets.now();
        let is_late = ready().any(|ready| self.buckets.tick_of(ready.deadline) > reached);
        assert!(!is_late, "KEYED-3: an entry is ready whose tick has not come");
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
/// The memory of so many slots is kept when the wheel is empty.
const KEPT: usize = 1024;

fn is_live<T>(slots: &[Slot<T>], entry: &KeyedEntry) -> bool {
    slots[entry.slot as usize].is_filed_as(entry.filing)
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("now", &self.now())
            .field("len", &self.len)
            .field("buckets", &self.size)
            .finish_non_exhaustive()
    }
}

/// An iterator over due values and their deadlines: see [`Wheel::advance`].
pub struct Expired<'a, T> {
    wheel: &'a mut Wheel<T>,
}

impl<T> Iterator for Expired<'_, T> {
    type Item = (u64, T);

    fn next(&mut self) -> Option<(u64, T)> {
        let (_, deadline, value) = self.wheel.pop_due()?;
        Some((deadline, value))
    }
}

impl<T> fmt::Debug for Expired<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_most = self.wheel.ready.len() + self.wheel.behind.len();
        f.debug_struct("Expired").field("at_most", &at_most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut wheel = Wheel::new(4);
        let first = wheel.insert(1, 'a');
        wheel.remove(first);
        wheel.slots[0].generation = u32::MAX;
        let last = wheel.insert(1, 'b');
        assert_eq!((last.slot, last.generation), (0, u32::MAX));
        assert_eq!(wheel.remove(last), Some('b'));
        let next = wheel.insert(1, 'c');
        assert_eq!(next.slot, 1, "slot 0 has no key left");
        assert!(!wheel.contains(last) && wheel.remove(last).is_none());
        assert_eq!(wheel.advance(1).collect::<Vec<_>>(), [(1, 'c')]);
    }
}
