//! The items of one shard: a [`Wheel`] for their deadlines, and a [`Table`] for their keys. Plain data, under the shard's
//! lock.
//!
//! ```text
//!   table:  hash ──> index ──> wheel: slot { hash, key, value, deadline, order } <── buckets
//! ```
//!
//! Each key is stored once, in the wheel. The table has hashes instead, which are computed before the lock is taken.
//!
//! - ITEM-1 Each value of the wheel is in the table once, under its hash, and the table has nothing else.
//! - A call that compares keys changes nothing before the last comparison. So a panic in a user's `Eq` leaves the
//!   items as they were.

use std::num::{NonZeroU32, NonZeroU64};

use super::table::Table;
use crate::clock::tick::Moment;
use crate::wheel::{Wheel, WheelKey};

/// The size of a wheel, and what a bucket of it covers, in nanoseconds. So a half-turn covers half a second, and the
/// half-turns that are found by index cover a minute. Small buckets of many shards would cost memory for few items.
const BUCKETS: usize = 32;
const GRANULARITY: NonZeroU64 = NonZeroU64::new(32_000_000).expect("above zero");

/// About so many entries are looked at to find out until when a taker may sleep.
const LOOK: usize = 64;

/// The items of one shard.
#[repr(C)] // what each call writes is on the first cache lines, beside the lock
pub(super) struct Items<K, V> {
    /// The queue was closed, and its items were taken out.
    pub(super) is_closed: bool,
    /// No item is due before it: see SHARD-1.
    pub(super) head: Moment,
    pub(super) table: Table,
    pub(super) wheel: Wheel<Item<K, V>>,
}

/// Not zero, which makes an `Option` of an [`Item`] as small as the item.
type Hash = NonZeroU32;

pub(super) struct Item<K, V> {
    hash: Hash,
    key: K,
    value: V,
}

/// A deadline, and the place among equal ones.
pub(super) type Due = (Moment, u64);

/// What comes out: a deadline, a key, and its value.
pub(super) type Out<K, V> = (Moment, K, V);

impl<K, V> Items<K, V> {
    /// `start` is the moment from which on deadlines are expected.
    pub(super) fn new(start: Moment) -> Items<K, V> {
        let wheel = Wheel::with_granularity(BUCKETS, GRANULARITY, start.0);
        Items { wheel, table: Table::default(), head: Moment::NEVER, is_closed: false }
    }

    /// Returns a place before which no item comes out, if items have become due.
    pub(super) fn bound(&self) -> Option<Due> {
        self.wheel.bound().map(|(deadline, order)| (Moment(deadline), order))
    }

    /// Takes out the first item, if it is due by `now`, and if `is_first` says so of its place.
    pub(super) fn pop_if(
        &mut self,
        now: Moment,
        is_first: impl FnOnce(Due) -> bool,
    ) -> Option<Out<K, V>> {
        let is_first = |deadline, order| is_first((Moment(deadline), order));
        let (at, deadline, Item { hash, key, value }) = self.wheel.pop_if(now.0, is_first)?;
        let is_it = |index| (index == at.index()).then_some(());
        let (position, ()) =
            self.table.find(hash.get(), is_it).expect("ITEM-1: it is in the table");
        self.table.remove(position);
        Some((Moment(deadline), key, value))
    }

    /// Puts another value under a key that is there, with a new deadline. Returns the value before.
    pub(super) fn replace(&mut self, at: WheelKey, value: V, (deadline, order): Due) -> V {
        self.wheel.reset_as(at, deadline.0, order);
        let item = self.wheel.get_mut(at).expect("ITEM-1: a key of the table has a value");
        std::mem::replace(&mut item.value, value)
    }

    /// Puts a key in that is not there.
    pub(super) fn insert(&mut self, hash: Hash, key: K, value: V, (deadline, order): Due) {
        let at = self.wheel.insert_as(deadline.0, order, Item { hash, key, value });
        self.table.insert(hash.get(), at.index());
    }

    /// Returns the earliest deadline, due or not.
    pub(super) fn first(&mut self) -> Option<Moment> {
        self.wheel.next_expiry().map(Moment)
    }

    /// Returns the earliest deadline, or an earlier moment if it is not found soon.
    pub(super) fn not_before(&mut self) -> Moment {
        // The wheel may find a stale entry, which has even passed if no taker has moved the wheel since. A leader that sleeps
        // until then would not sleep.
        self.wheel.next_expiry_within(LOOK).map_or(Moment::NEVER, Moment).max(self.head)
    }

    /// Closes the shard, and returns all that was in it. The caller drains that with nothing locked, because it takes long.
    pub(super) fn close(&mut self) -> Items<K, V> {
        let nothing = Items { is_closed: true, ..Items::new(Moment(self.wheel.now())) };
        std::mem::replace(self, nothing)
    }

    /// Takes all items out, due or not, each with its place among equal deadlines. They come in no order.
    pub(super) fn drain(mut self) -> impl Iterator<Item = (Out<K, V>, u64)> {
        let out = |(at, order, Item { key, value, .. })| ((Moment(at), key, value), order);
        self.wheel.take_all().into_iter().map(out)
    }

    /// Panics if an invariant is broken, for tests.
    pub(super) fn check_invariants(&self) {
        self.wheel.check_invariants();
        let all: Vec<_> = self.table.checked().collect();
        assert_eq!(all.len(), self.wheel.len(), "ITEM-1: as many keys as values");
        let is_right =
            |(hash, index)| self.wheel.at(index).is_some_and(|(_, item)| item.hash.get() == hash);
        assert!(all.into_iter().all(is_right), "ITEM-1: under its hash");
        assert!(!self.is_closed || self.wheel.is_empty(), "a closed shard is empty");
    }
}

impl<K: Eq, V> Items<K, V> {
    /// Returns the positions of a key in the table and in the wheel. This is the only function that compares keys, and it
    /// changes nothing, so a panic in a user's `Eq` leaves the items as they were.
    pub(super) fn find(&self, hash: Hash, key: &K) -> Option<(usize, WheelKey)> {
        self.table.find(hash.get(), |index| {
            let (at, item) = self.wheel.at(index)?;
            (item.key == *key).then_some(at)
        })
    }

    /// Moves the deadline of a key. Returns false if it is not there.
    pub(super) fn reset(&mut self, hash: Hash, key: &K, (deadline, order): Due) -> bool {
        let found = self.find(hash, key);
        found.is_some_and(|(_, at)| self.wheel.reset_as(at, deadline.0, order))
    }

    #[inline] // with a call, a removal costs 30 instructions more, in some builds
    pub(super) fn remove(&mut self, hash: Hash, key: &K) -> Option<(K, V)> {
        let (position, at) = self.find(hash, key)?;
        self.table.remove(position);
        let Item { key, value, .. } = self.wheel.remove(at)?;
        Some((key, value))
    }

    pub(super) fn deadline(&self, hash: Hash, key: &K) -> Option<Moment> {
        self.wheel.deadline(self.find(hash, key)?.1).map(Moment)
    }

    pub(super) fn get_mut(&mut self, hash: Hash, key: &K) -> Option<&mut V> {
        let (_, at) = self.find(hash, key)?;
        Some(&mut self.wheel.get_mut(at)?.value)
    }
}
