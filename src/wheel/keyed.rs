//! The public wheel: values with keys, over [`Buckets`] of names.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU64;

use super::buckets::Buckets;
use super::chain::Timed;
use crate::platform::cpu::prefetch;
use crate::time::tick::Tick;

/// The bare data structure: values by deadline, counted in ticks of whatever length. No thread, no
/// clock, no atomics.
///
/// Inserting and removing take constant time. Advancing costs what it gives out, however far it
/// goes and however much is not due. Deadlines are 64-bit.
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
    buckets: Buckets<Name>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
    /// What has been given out by the buckets and not yet by [`Expired`].
    due: VecDeque<Name>,
    /// Room for what the buckets give out.
    given_out: Vec<Name>,
    size: usize,
}

/// Names a value in a [`Wheel`]. A key whose value is gone matches nothing for ever, however often
/// its place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WheelKey {
    slot: u32,
    generation: u32,
}

/// [`WheelKey`], by the name that it had before it was told apart from [`pool::Key`](crate::pool::Key).
pub type Key = WheelKey;

/// What lies in the buckets.
#[derive(Clone, Copy, Default)]
struct Name {
    deadline: u64,
    slot: u32,
    generation: u32,
}

impl Timed for Name {
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
    /// A wheel of so many buckets, which stands at tick zero.
    ///
    /// # Panics
    ///
    /// Unless the number is a power of two: see [`try_new`](Wheel::try_new).
    pub fn new(buckets: usize) -> Wheel<T> {
        Wheel::try_new(buckets).expect("the number of buckets must be a power of two, such as 256")
    }

    /// The same; `None` unless the number is a power of two.
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

    /// The same wheel, empty, at another tick. Whatever it held is dropped.
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

    /// The tick that it has been advanced to.
    pub fn now(&self) -> u64 {
        self.buckets.now().0
    }

    /// How many buckets it has.
    pub fn buckets(&self) -> usize {
        self.size
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a value in, due at this tick; one that has passed comes out with the next
    /// [`advance`](Wheel::advance).
    ///
    /// # Panics
    ///
    /// With four thousand million values in it.
    pub fn insert(&mut self, deadline: u64, value: T) -> WheelKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, deadline: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than four thousand million values")
        });
        let place = &mut self.slots[slot as usize];
        place.deadline = deadline;
        place.value = Some(value);
        let generation = place.generation;
        self.buckets.insert(Name { deadline, slot, generation });
        self.len += 1;
        WheelKey { slot, generation }
    }

    /// Takes a value out, before or after it is due; `None` when it is gone already.
    pub fn remove(&mut self, key: WheelKey) -> Option<T> {
        let value = self.vacate(key)?;
        // What it leaves in the buckets is swept when it is as much as what is alive, so that each
        // removal pays for two entries at most.
        if self.buckets.len() > 2 * self.len + SLACK {
            let slots = &self.slots;
            self.buckets.sweep(usize::MAX, |name| is_alive(slots, name));
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
        // A slot whose generations are used up rests for ever, so that no key comes twice.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(key.slot);
        }
        Some(value)
    }

    /// The value of a key.
    pub fn get(&self, key: WheelKey) -> Option<&T> {
        self.slot(key)?.value.as_ref()
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: WheelKey) -> Option<&mut T> {
        self.slot(key)?;
        self.slots[key.slot as usize].value.as_mut()
    }

    /// Whether the value of a key is still there.
    pub fn contains(&self, key: WheelKey) -> bool {
        self.slot(key).is_some()
    }

    /// When the value of a key is due.
    pub fn deadline(&self, key: WheelKey) -> Option<u64> {
        Some(self.slot(key)?.deadline)
    }

    fn slot(&self, key: WheelKey) -> Option<&Slot<T>> {
        self.slots.get(key.slot as usize).filter(|slot| slot.holds(key.generation))
    }

    /// Moves on to a tick, and gives out what is due by then: by deadline, and at equal deadlines in
    /// the order of insertion. A tick that has passed moves nothing.
    ///
    /// If the iterator is dropped early, the rest comes with the next call.
    pub fn advance(&mut self, to: u64) -> Expired<'_, T> {
        self.buckets.advance(Tick(to), &mut self.given_out);
        self.buckets.give_back(GIVE_BACK);
        if !self.given_out.is_empty() {
            for name in &self.given_out {
                prefetch(&raw const self.slots[name.slot as usize]);
            }
            self.due.extend(self.given_out.drain(..));
            self.due.make_contiguous().sort_by_key(|name| name.deadline); // stable
        }
        Expired { wheel: self }
    }

    /// The earliest deadline.
    pub fn next_expiry(&mut self) -> Option<u64> {
        let slots = &self.slots;
        while self.due.front().is_some_and(|name| !is_alive(slots, name)) {
            self.due.pop_front();
        }
        let due = self.due.front().map(|name| name.deadline);
        let later = self.buckets.first(usize::MAX, |name| is_alive(slots, name));
        due.into_iter().chain(later).min()
    }

    /// Looks at everything; for tests.
    ///
    /// # Panics
    ///
    /// If the structure is not what it should be.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.buckets.check_invariants();
        let alive = self.slots.iter().filter(|slot| slot.value.is_some()).count();
        assert_eq!(alive, self.len, "the number of values");
        assert!(self.buckets.len() + self.due.len() >= self.len, "a value has no entry");
        let is_sorted = self.due.iter().is_sorted_by_key(|name| name.deadline);
        assert!(is_sorted, "what is due is out of order");
    }
}

/// How many blocks, which a peak has left, each step gives back.
const GIVE_BACK: usize = 64;
/// So many stale entries are no reason for a sweep.
const SLACK: usize = 64;

fn is_alive<T>(slots: &[Slot<T>], name: &Name) -> bool {
    slots[name.slot as usize].holds(name.generation)
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

/// What is due, with its deadlines: see [`Wheel::advance`].
pub struct Expired<'a, T> {
    wheel: &'a mut Wheel<T>,
}

impl<T> Iterator for Expired<'_, T> {
    type Item = (u64, T);

    fn next(&mut self) -> Option<(u64, T)> {
        loop {
            let Name { deadline, slot, generation } = self.wheel.due.pop_front()?;
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
    fn s10_a_slot_whose_generations_are_used_up_rests() {
        let mut wheel = Wheel::new(4);
        let first = wheel.insert(1, 'a');
        wheel.remove(first);
        wheel.slots[0].generation = u32::MAX;
        let last = wheel.insert(1, 'b');
        assert_eq!((last.slot, last.generation), (0, u32::MAX));
        assert_eq!(wheel.remove(last), Some('b'));
        let next = wheel.insert(1, 'c');
        assert_eq!(next.slot, 1, "slot 0 has no name left");
        assert!(!wheel.contains(last) && wheel.remove(last).is_none());
        assert_eq!(wheel.advance(1).collect::<Vec<_>>(), [(1, 'c')]);
    }
}
