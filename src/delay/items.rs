//! The items of a queue: a [`Wheel`] for their deadlines, and a table for their keys. Plain data, under the queue's lock.
//!
//! ```text
//!   table:  hash of the key ──> WheelKey ──> wheel: slot { hash, key, value, deadline } <── buckets
//! ```
//!
//! Each key is stored once, in the wheel. The table has hashes instead, which are computed before the lock is taken, so no
//! table of std ever runs a user's `Hash` or `Eq`. Two keys may have one hash: the first of them is in `first`, and the
//! others are in `more`, which is empty unless somebody's `Hash` is bad.
//!
//! - ITEM-1 Each value of the wheel is in the table once, under its hash, and the table has nothing else.
//! - ITEM-2 A call that compares keys changes nothing before the last comparison. So a panic in a user's `Eq` leaves the
//!   items as they were.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::time::tick::{Moment, Timeline};
use crate::wheel::{Wheel, WheelKey};

/// The number of buckets of the wheel. With buckets of a millisecond, the near half of it covers 128 ms.
const BUCKETS: usize = 256;

/// About so many entries are looked at to find out until when a taker may sleep.
const LOOK: usize = 256;

/// Room for so many keys is kept when the queue is empty.
const KEPT: usize = 1024;

/// The items of a queue.
pub(super) struct Items<K, V> {
    wheel: Wheel<Item<K, V>>,
    table: Table,
}

struct Item<K, V> {
    hash: u64,
    key: K,
    value: V,
}

/// The keys of the wheel by the hashes of the user's keys.
#[derive(Default)]
struct Table {
    first: HashMap<u64, WheelKey, BuildHasherDefault<AsItIs>>,
    more: HashMap<u64, Vec<WheelKey>, BuildHasherDefault<AsItIs>>,
}

/// The hasher of what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is a u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Table {
    fn insert(&mut self, hash: u64, key: WheelKey) {
        match self.first.entry(hash) {
            std::collections::hash_map::Entry::Vacant(place) => _ = place.insert(key),
            std::collections::hash_map::Entry::Occupied(_) => {
                self.more.entry(hash).or_default().push(key);
            }
        }
    }

    fn remove(&mut self, hash: u64, key: WheelKey) {
        let is_first = self.first.get(&hash) == Some(&key);
        let more = if self.more.is_empty() { None } else { self.more.get_mut(&hash) };
        match more {
            None => _ = self.first.remove(&hash),
            Some(more) => {
                if is_first {
                    self.first.extend(more.pop().map(|next| (hash, next)));
                } else {
                    more.retain(|other| *other != key);
                }
                if more.is_empty() {
                    self.more.remove(&hash);
                }
            }
        }
        if self.first.is_empty() && self.first.capacity() > KEPT {
            *self = Table::default(); // the memory of a peak
        }
    }

    fn get(&self, hash: u64) -> impl Iterator<Item = WheelKey> {
        let more = if self.more.is_empty() { None } else { self.more.get(&hash) };
        self.first.get(&hash).into_iter().chain(more.into_iter().flatten()).copied()
    }
}

/// What comes out: a key, its value, and its deadline.
pub(super) type Out<K, V> = (Moment, K, V);

impl<K, V> Items<K, V> {
    pub(super) fn new(timeline: &Timeline) -> Items<K, V> {
        let wheel = Wheel::new(BUCKETS).with_granularity(timeline.tick_nanos());
        Items { wheel: wheel.starting_at(timeline.start().0), table: Table::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Takes out the first item that is due by `now`. If `now` is `None`, it only knows what was due when it was asked
    /// last, which is enough while many are due.
    pub(super) fn pop(&mut self, now: Option<Moment>) -> Option<Out<K, V>> {
        let now = now.map_or(self.wheel.now(), |now| now.0);
        let (at, deadline, Item { hash, key, value }) = self.wheel.pop(now)?;
        self.table.remove(hash, at);
        Some((Moment(deadline), key, value))
    }

    /// Returns the earliest deadline, due or not.
    pub(super) fn first(&mut self) -> Option<Moment> {
        self.wheel.next_expiry().map(Moment)
    }

    /// Returns until when a taker may sleep: until the earliest deadline, or until a time before it at which it has to
    /// look again.
    pub(super) fn sleep_until(&mut self) -> Moment {
        self.wheel.next_expiry_within(LOOK).map_or(Moment::NEVER, Moment)
    }

    /// Takes all items out, due or not, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Out<K, V>> + use<K, V> {
        self.table = Table::default();
        let all = self.wheel.drain().into_iter();
        all.map(|(deadline, Item { key, value, .. })| (Moment(deadline), key, value))
    }

    /// Panics if an invariant is broken, for tests.
    pub(super) fn check_invariants(&self) {
        self.wheel.check_invariants();
        let mut all: Vec<_> = self.table.first.iter().map(|(hash, key)| (*hash, *key)).collect();
        for (hash, more) in &self.table.more {
            assert!(!more.is_empty() && self.table.first.contains_key(hash), "ITEM-1: more");
            all.extend(more.iter().map(|key| (*hash, *key)));
        }
        assert_eq!(all.len(), self.wheel.len(), "ITEM-1: as many keys as values");
        let is_right = |(hash, key)| self.wheel.get(key).is_some_and(|item| item.hash == hash);
        assert!(all.into_iter().all(is_right), "ITEM-1: under its hash");
    }
}

impl<K: Eq, V> Items<K, V> {
    fn find(&self, hash: u64, key: &K) -> Option<WheelKey> {
        let is_it = |at: &WheelKey| self.wheel.get(*at).is_some_and(|item| item.key == *key);
        self.table.get(hash).find(is_it)
    }

    /// Puts an item in. Returns the value that the key had before, and the key that is not needed then. Gives key and
    /// value back if the key is new and there are `limit` items.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        key: K,
        value: V,
        deadline: Moment,
        limit: usize,
    ) -> Result<Option<(K, V)>, (K, V)> {
        if let Some(at) = self.find(hash, &key) {
            self.wheel.reset(at, deadline.0);
            let item = self.wheel.get_mut(at).expect("ITEM-1: a key of the table has a value");
            return Ok(Some((key, std::mem::replace(&mut item.value, value))));
        }
        if self.len() >= limit {
            return Err((key, value));
        }
        let at = self.wheel.insert(deadline.0, Item { hash, key, value });
        self.table.insert(hash, at);
        Ok(None)
    }

    /// Moves the deadline of a key. Returns false if it is not there.
    pub(super) fn reset(&mut self, hash: u64, key: &K, deadline: Moment) -> bool {
        self.find(hash, key).is_some_and(|at| self.wheel.reset(at, deadline.0))
    }

    pub(super) fn remove(&mut self, hash: u64, key: &K) -> Option<(K, V)> {
        let at = self.find(hash, key)?;
        let Item { key, value, .. } = self.wheel.remove(at)?;
        self.table.remove(hash, at);
        Some((key, value))
    }

    pub(super) fn deadline(&self, hash: u64, key: &K) -> Option<Moment> {
        self.wheel.deadline(self.find(hash, key)?).map(Moment)
    }

    pub(super) fn get_mut(&mut self, hash: u64, key: &K) -> Option<&mut V> {
        let at = self.find(hash, key)?;
        Some(&mut self.wheel.get_mut(at)?.value)
    }
}
