//! The public wheel: values with keys. The [`Buckets`] have an entry for each value.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU64;

use super::buckets::Buckets;
use super::chain::Timed;
use crate::platform::cpu::prefetch;
use crate::time::tick::Tick;

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
pub struct Wheel<T> {
    buckets: Buckets<KeyedEntry>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
    /// The entries that have come out of the buckets and not yet out of [`Expired`].
    due: VecDeque<KeyedEntry>,
    /// Room for the entries that come out of the buckets. It is empty between calls.
    given_out: Vec<KeyedEntry>,
    size: usize,
}

/// Identifies a value in a [`Wheel`]. The key of a value that is gone never matches another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WheelKey {
    slot: u32,
    generation: u32,
}

/// The former name of [`WheelKey`], which is easier to tell from [`pool::Key`](crate::pool::Key).
pub type Key = WheelKey;

/// The entry of a value in the buckets.
#[derive(Clone, Copy, Default)]
struct KeyedEntry {
    deadline: u64,
    slot: u32,
    generation: u32,
}

impl Timed for KeyedEntry {
    fn deadline(&self) -> u64 {
        self.deadline
    }
}

struct Slot<T> {
    generation: u32,
    deadline: u64,
    value: Option<T>,
}

impl<T> Slot<T> {
    fn holds(&self, generation: u32) -> bool {
        self.generation == generation && self.value.is_some()
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
        buckets.is_power_of_two().then(|| Wheel::at(buckets, 0))
    }

    fn at(size: usize, now: u64) -> Wheel<T> {
        Wheel {
            buckets: Buckets::new(size, NonZeroU64::MIN, Tick(now)),
            slots: Vec::new(),
            free: Vec::new(),
            len: 0,
            due: VecDeque::new(),
            given_out: Vec::new(),
            size,
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
        Wheel::at(self.size, tick)
    }

    /// Returns the tick that the wheel has been advanced to.
    pub fn now(&self) -> u64 {
        self.buckets.now().0
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

    /// Inserts a value that is due at this tick. If the tick has passed, the value comes out at the next
    /// [`advance`](Wheel::advance).
    ///
    /// # Panics
    ///
    /// Panics if the wheel holds four thousand million values.
    pub fn insert(&mut self, deadline: u64, value: T) -> WheelKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, deadline: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than four thousand million values")
        });
        let free = &mut self.slots[slot as usize];
        free.deadline = deadline;
        free.value = Some(value);
        let generation = free.generation;
        self.buckets.insert(KeyedEntry { deadline, slot, generation });
        self.len += 1;
        WheelKey { slot, generation }
    }

    /// Removes a value, before or after it is due. Returns `None` if it is gone already.
    pub fn remove(&mut self, key: WheelKey) -> Option<T> {
        let value = self.vacate(key)?;
        // Stale entries are swept when they are as many as the live ones, so each removal pays for at most two.
        if self.buckets.len() > 2 * self.len + SLACK {
            let slots = &self.slots;
            self.buckets.sweep(usize::MAX, |entry| is_live(slots, entry));
            self.buckets.give_back(usize::MAX);
        }
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
        Some(value)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: WheelKey) -> Option<&T> {
        self.slot(key)?.value.as_ref()
    }

    /// Returns the value of a key, mutably.
    pub fn get_mut(&mut self, key: WheelKey) -> Option<&mut T> {
        self.slot(key)?;
        self.slots[key.slot as usize].value.as_mut()
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
    /// the order of insertion. The wheel does not move back to a tick that has passed.
    ///
    /// If the iterator is dropped early, the rest comes out at the next call.
    pub fn advance(&mut self, to: u64) -> Expired<'_, T> {
        self.buckets.advance(Tick(to), &mut self.given_out);
        self.buckets.give_back(GIVE_BACK);
        if !self.given_out.is_empty() {
            for entry in &self.given_out {
                prefetch(&raw const self.slots[entry.slot as usize]);
            }
            self.due.extend(self.given_out.drain(..));
            self.due.make_contiguous().sort_by_key(|entry| entry.deadline); // stable
        }
        Expired { wheel: self }
    }

    /// Returns the earliest deadline, or `None` if the wheel is empty.
    pub fn next_expiry(&mut self) -> Option<u64> {
        let slots = &self.slots;
        while self.due.front().is_some_and(|entry| !is_live(slots, entry)) {
            self.due.pop_front();
        }
        let due = self.due.front().map(|entry| entry.deadline);
        let later = self.buckets.first(usize::MAX, |entry| is_live(slots, entry));
        due.into_iter().chain(later).min()
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
        assert!(self.buckets.len() + self.due.len() >= self.len, "a value has no entry");
        let is_sorted = self.due.iter().is_sorted_by_key(|entry| entry.deadline);
        assert!(is_sorted, "due entries are out of order");
    }
}

/// The most blocks, left over from a peak, that one call of `advance` frees.
const GIVE_BACK: usize = 64;
/// So many stale entries are never a reason for a sweep.
const SLACK: usize = 64;

fn is_live<T>(slots: &[Slot<T>], entry: &KeyedEntry) -> bool {
    slots[entry.slot as usize].holds(entry.generation)
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
        loop {
            let KeyedEntry { deadline, slot, generation } = self.wheel.due.pop_front()?;
            if let Some(value) = self.wheel.vacate(WheelKey { slot, generation }) {
                return Some((deadline, value));
            }
        }
    }
}

impl<T> fmt::Debug for Expired<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expired").field("at_most", &self.wheel.due.len()).finish_non_exhaustive()
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
