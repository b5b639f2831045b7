//! The wheel proper: entries by value, filed by tick.
//!
//! The number of a half-turn (`half` in the code) is what Akka calls the rounds of a task, counted from the beginning of
//! time instead of down from the present. So it does not have to be touched while the wheel turns. Half-turns come in groups. With
//! the defaults a half-turn takes two seconds, and a group of them half an hour.
//!
//! - WHEEL-1 An entry of tick `t > now` is in the ring, in the bucket `t & mask`, if the half-turn of `t` is the present
//!   one, or the next one. Entries of the next half-turn may also be far, and all later ones are. So a bucket
//!   never holds entries of two ticks, and no entry is looked at before it is due. An entry of a tick that has passed is
//!   not taken in.
//! - WHEEL-2 A far entry is with its half-turn, if that is of the present group or the next one. Entries of the next group may also be
//!   beyond, and all later ones are, by group. So a million entries that are spread over a year are in a few thousand chains, and
//!   not in a block each. Of entries of one tick, those that are farther away are never older.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use super::chain::{BLOCK, Pool, Timed};
use super::places::Place::{self, At, Beyond};
use super::places::Places;
use crate::clock::tick::{Granularity, Tick};
use crate::platform::cpu::prefetch;

/// The most half-turns that are found by index, those of two groups. Their chains take 32 bytes each.
const MOST_SOON: usize = 2048;
/// A wheel of few buckets has so many of them for each bucket.
const SOON_EACH: usize = 4;

/// A half-turn with fewer entries than this is brought in at once.
const GREAT: usize = 8192;
/// The time that is left to bring in one entry, if deadlines are in nanoseconds. It takes some 60 ns.
const SETTLE_NANOS: u64 = 250;

/// How many buckets ahead of its time a bucket is fetched into the cache.
const AHEAD: u64 = 6;

/// Entries by tick. Fields that each insert writes or reads come first.
#[repr(C)]
pub(crate) struct Buckets<E> {
    pub(super) len: usize,
    now: Tick,
    granularity: Granularity,
    /// The half-turn of the next tick, because the present tick has been given out.
    pub(super) present: u64,
    /// Up to this tick entries go to the ring: to the end of the present half-turn, or of the next one if nothing of it is
    /// far.
    near: Tick,
    /// Up to this tick far entries go to their half-turn: to the end of the present group, or of the next one if nothing of it is
    /// beyond.
    soon: Tick,
    /// The binary logarithm of half the ring's size.
    half_bits: u32,
    ring: usize,
    /// One less than the number of half-turns that come soon.
    soon_mask: u64,
    /// The last half-turn of the present group.
    last_of_group: u64,
    pub(super) places: Places<E>,
    pub(super) pool: Pool<E>,
}

impl<E: Timed> Buckets<E> {
    /// Creates a wheel of `size` buckets (a power of two, of which it makes two at least) that stands at `now`. A tick
    /// is `granularity` units of the entries' deadlines.
    pub(crate) fn new(size: usize, granularity: NonZeroU64, now: Tick) -> Buckets<E> {
        debug_assert!(size.is_power_of_two());
        // Two half-turns of one bucket each are the least that works.
        let ring = size.max(2);
        let (half_bits, soon) = (ring.ilog2() - 1, ring.saturating_mul(SOON_EACH).min(MOST_SOON));
        let mut buckets = Buckets {
            len: 0,
            now,
            granularity: Granularity::new(granularity),
            present: now.0.saturating_add(1) >> half_bits,
            near: now,
            soon: now,
            half_bits,
            ring,
            soon_mask: soon as u64 - 1,
            last_of_group: 0,
            places: Places::new(ring, ring + soon),
            pool: Pool::new(ring), // a block per bucket, so that a steady flow of few tasks a tick allocates nothing
        };
        buckets.last_of_group = buckets.present | (buckets.group_size() - 1);
        buckets.set_bounds();
        buckets
    }

    /// Returns the number of entries, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the tick that the wheel has reached.
    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// Returns the tick of a deadline, which is the first that does not end before it.
    pub(crate) fn tick_of(&self, deadline: u64) -> Tick {
        Tick(self.granularity.div_ceil(deadline))
    }

    // ----- for inspection ------------------------------------------------------------------

    /// Returns the number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.ring
    }

    /// Returns the bucket of the tick that the wheel has reached.
    pub(crate) fn hand(&self) -> usize {
        self.offset(self.now.0)
    }

    /// Returns the number of entries in a bucket.
    pub(crate) fn waiting_in(&self, bucket: usize) -> usize {
        self.places.len(At(bucket))
    }

    /// Returns the number of entries in no bucket.
    pub(crate) fn waiting_far(&self) -> usize {
        let is_far = |place: &Place| !matches!(place, At(index) if *index < self.ring);
        self.places.parts().filter(|(place, _)| is_far(place)).map(|(_, chain)| chain.len).sum()
    }

    // ----- where a tick lies ---------------------------------------------------------------

    pub(super) fn half_of(&self, tick: Tick) -> u64 {
        tick.0 >> self.half_bits
    }

    fn next_half(&self) -> u64 {
        self.present.saturating_add(1)
    }

    fn first_tick(&self, half: u64) -> u64 {
        half << self.half_bits
    }

    /// Returns the last tick of a half-turn, or of the timeline.
    fn last_tick(&self, half: u64) -> Tick {
        let half = half.min(u64::MAX >> self.half_bits);
        Tick(self.first_tick(half) | ((1 << self.half_bits) - 1))
    }

    fn offset(&self, tick: u64) -> usize {
        tick as usize & (self.ring - 1)
    }

    /// Returns the index of a half-turn that comes soon.
    pub(super) fn index(&self, half: u64) -> usize {
        self.ring + (half & self.soon_mask) as usize
    }

    /// Returns the number of half-turns of a group.
    fn group_size(&self) -> u64 {
        self.soon_mask.div_ceil(2)
    }

    fn group_of(&self, half: u64) -> u64 {
        half / self.group_size()
    }

    /// Sets the bounds, because what comes next may not be far, or beyond, any more. New entries join those that have not been
    /// brought in. These are brought in from the front, so entries of one tick stay in the order of insertion.
    pub(super) fn set_bounds(&mut self) {
        let last = self.last_of_group;
        let is_beyond = self.places.beyond.contains_key(&self.group_of(last.saturating_add(1)));
        let next_group = last.saturating_add(self.group_size());
        self.soon = self.last_tick(if is_beyond { last } else { next_group });
        self.set_near();
    }

    fn set_near(&mut self) {
        let next = self.next_half();
        let is_far = self.places.occupied.is_set(self.index(next));
        self.near = self.last_tick(if is_far { self.present } else { next });
    }

    /// Returns the first bucket from the next tick on that has entries.
    pub(super) fn first_near(&self) -> Option<Place> {
        let start = self.offset(self.now.0.wrapping_add(1));
        self.places.occupied.next_around(0..self.ring, start).map(At)
    }

    /// Returns the first half-turn that has far entries, of those that are found by index.
    pub(super) fn first_soon(&self) -> Option<u64> {
        let (start, occupied) = (self.index(self.present), &self.places.occupied);
        let index = occupied.next_around(self.ring..occupied.len(), start)?;
        Some(self.present + (index.wrapping_sub(start) as u64 & self.soon_mask))
    }

    /// Returns the half-turn of the first entry that is beyond, or an earlier one.
    pub(super) fn first_beyond(&self) -> Option<u64> {
        let (_, chain) = self.places.beyond.first_key_value()?;
        Some(self.half_of(self.tick_of(chain.min.deadline())))
    }

    // ----- in ------------------------------------------------------------------------------

    /// Files an entry (WHEEL-1). Returns false if the tick of its deadline has passed. Then the caller keeps the entry.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a take-in takes 25 of 130 instructions more with a call"
    )]
    pub(crate) fn insert(&mut self, entry: E) -> bool {
        let tick = self.tick_of(entry.deadline());
        if tick <= self.now {
            return false;
        }
        self.len += 1;
        let index = if tick <= self.near {
            self.offset(tick.0)
        } else if tick <= self.soon {
            self.index(self.half_of(tick))
        } else {
            usize::MAX
        };
        // Most entries join others, in a block that has room. Then nothing else has to be noted. By index where that is
        // possible: a search in the map alone cost the tick thread 25 ns a task, most of it for mispredicted branches.
        let chain = self.places.chains.get_mut(index);
        if !chain.is_some_and(|chain| self.pool.push(chain, entry)) {
            self.insert_in_a_fresh_block(index, tick, entry);
        }
        true
    }

    #[inline(never)]
    fn insert_in_a_fresh_block(&mut self, index: usize, tick: Tick, entry: E) {
        let is_beyond = tick > self.soon;
        let group = || self.group_of(self.half_of(tick));
        let place = if is_beyond { Beyond(group()) } else { At(index) };
        self.pool.append(self.places.fill(place), entry);
    }

    // ----- out -----------------------------------------------------------------------------

    /// Moves on to a tick, and appends to `out` the entries of that tick and of those before: tick by tick, and
    /// within a tick in the order of insertion.
    pub(crate) fn advance(&mut self, to: Tick, out: &mut Vec<E>) {
        let before = out.len();
        // One half-turn at a time, because the next one has to be in the ring before its first tick.
        while self.now < to {
            self.jump(to);
            let end = to.min(self.last_tick(self.present));
            self.bring_in_share(end);
            self.give_out(end, out);
            self.move_to(end);
        }
        self.len -= out.len() - before;
    }

    /// If the ring is empty, moves on to just before the first half-turn that has entries, or to `to`.
    fn jump(&mut self, to: Tick) {
        if self.places.occupied.next(0..self.ring).is_some() {
            return;
        }
        let first = self.first_soon().into_iter().chain(self.first_beyond()).min();
        let until = first.map_or(to.0, |half| to.0.min(self.first_tick(half).saturating_sub(1)));
        self.move_to(Tick(self.now.0.max(until)));
    }

    /// Sets the present tick.
    fn move_to(&mut self, now: Tick) {
        self.now = now;
        let present = self.half_of(Tick(now.0.saturating_add(1)));
        if present == self.present {
            return;
        }
        self.present = present;
        if present > self.last_of_group || !self.places.beyond.is_empty() {
            // Nothing of the present group may be beyond. Of the next one a share comes with each half-turn, and the rest with the
            // last one of the present group, so the work is spread evenly.
            self.last_of_group = present | (self.group_size() - 1);
            let (group, left) = (self.group_of(present), self.last_of_group - present + 1);
            self.bring_soon(group, usize::MAX);
            let len = self.places.len(Beyond(group + 1));
            self.bring_soon(group + 1, len.div_ceil(left as usize));
            self.set_bounds();
        }
        // No entry of the present half-turn may be far, or its ticks would pass without it. Mostly nothing is left to
        // bring in.
        self.bring_in(present, usize::MAX);
        self.set_near();
    }

    /// Moves the ring's entries up to `end`, which is in the present half-turn, to `out`.
    fn give_out(&mut self, end: Tick, out: &mut Vec<E>) {
        let Some(from) = self.now.0.checked_add(1).filter(|from| *from <= end.0) else { return };
        let (mut from, end) = (self.offset(from), self.offset(end.0) + 1);
        while let Some(offset) = self.places.occupied.next(from..end) {
            // A bucket is a cache miss for the chain and one for the block, so the block of a later one is fetched
            // meanwhile.
            self.pool.prefetch(self.places.chains[self.offset(offset as u64 + AHEAD)].head);
            self.places.join(At(offset), &mut self.pool);
            let chain = &mut self.places.chains[offset];
            self.pool.take(chain, usize::MAX, |_, entries| out.extend_from_slice(entries));
            self.places.emptied(At(offset));
            from = offset + 1;
        }
    }

    // ----- from far to near ----------------------------------------------------------------

    /// Brings in a share of the next half-turn: as much of it as the ticks up to `end` are of what remains of the
    /// present half-turn.
    fn bring_in_share(&mut self, end: Tick) {
        let (next, moved) = (self.next_half(), end.0 - self.now.0);
        let index = self.index(next);
        if moved > 0 && self.places.occupied.is_set(index) {
            let len = self.places.len(At(index)) as u128;
            let left = self.last_tick(self.present).0 - self.now.0;
            // In proportion to the ticks, so the work is spread evenly over the half-turn. In `u128`, because the
            // product may not fit.
            let share = (len * u128::from(moved)).div_ceil(u128::from(left));
            self.bring_in(next, usize::try_from(share).unwrap_or(usize::MAX));
        }
    }

    /// Brings in about `budget` entries of the next half-turn, and of the next group, ahead of their time. Returns true if none
    /// is left to bring in.
    pub(crate) fn settle(&mut self, budget: usize) -> bool {
        let is_near = self.bring_in(self.next_half(), budget);
        is_near && self.bring_soon(self.group_of(self.present) + 1, budget)
    }

    /// Returns the tick at which the wheel should be advanced and settled, so that a great half-turn is in the ring before
    /// its first tick comes, and a great group with its half-turns. Returns `None` if there are none, or if they are being settled.
    pub(crate) fn settle_at(&self) -> Option<Tick> {
        if self.len < GREAT {
            return None;
        }
        // The next half-turn or group is being settled already. One that comes later can be settled during the one before, and not
        // earlier. What is small is brought in at once when its turn comes.
        let earliest = |half| Tick(self.first_tick(half).saturating_sub(1));
        let of_half = |half: u64| {
            let len = self.places.len(At(self.index(half)));
            let lead = self.granularity.div_ceil(len as u64 * SETTLE_NANOS);
            let at = Tick(self.first_tick(half).saturating_sub(lead));
            let is_great = len >= GREAT && half > self.next_half();
            is_great.then(|| at.max(earliest(half - 1)))
        };
        // With each half-turn a share of the next group comes, so the share is small only if the group before has just begun.
        let of_group = |group: u64| {
            let (len, before) = (self.places.len(Beyond(group)), (group - 1) * self.group_size());
            (len >= GREAT && before > self.last_of_group).then(|| earliest(before))
        };
        // One before it that has few entries must not hide a great one.
        let first = self.first_soon();
        let halves = first.into_iter().chain(first.and_then(|half| half.checked_add(1)));
        let groups = self.places.beyond.keys().take(2).copied();
        halves.filter_map(of_half).chain(groups.filter_map(of_group)).min()
    }

    /// Moves about `budget` entries of the present half-turn, or of the next one, into the ring. Returns true if none is
    /// left.
    fn bring_in(&mut self, half: u64, budget: usize) -> bool {
        let index = self.index(half);
        if !self.places.occupied.is_set(index) {
            return true;
        }
        let mask = self.ring - 1;
        let is_done = self.bring(At(index), budget, |tick| tick as usize & mask);
        if is_done {
            self.near = self.near.max(self.last_tick(half));
        }
        is_done
    }

    /// Moves about `budget` entries of the present group, or of the next one, to their half-turns. Returns true if none is left.
    fn bring_soon(&mut self, group: u64, budget: usize) -> bool {
        if !self.places.beyond.contains_key(&group) {
            return true;
        }
        let (ring, half_bits, mask) = (self.ring, self.half_bits, self.soon_mask);
        self.places.make_room(ring);
        let index_of = |tick: u64| ring + (tick >> half_bits & mask) as usize;
        let is_done = self.bring(Beyond(group), budget, index_of);
        if is_done {
            self.set_bounds();
        }
        is_done
    }

    /// Moves about `budget` entries of a place to others, by their ticks. Returns true if none is left.
    fn bring(&mut self, from: Place, budget: usize, index_of: impl Fn(u64) -> usize) -> bool {
        self.places.join(from, &mut self.pool);
        let mut chain = self.places.get(from);
        let (Places { chains, occupied, .. }, granularity) = (&mut self.places, self.granularity);
        self.pool.take(&mut chain, budget, |pool, entries| {
            // They go to places all over the wheel. To fetch these together costs a third.
            let mut indices = [0; BLOCK];
            for (index, entry) in indices.iter_mut().zip(entries) {
                *index = index_of(granularity.div_ceil(entry.deadline()));
                prefetch(&raw const chains[*index]);
            }
            for index in &indices[..entries.len()] {
                pool.prefetch(chains[*index].tail);
            }
            for (index, entry) in indices.into_iter().zip(entries) {
                if !pool.push(&mut chains[index], *entry) {
                    pool.append(&mut chains[index], *entry);
                    occupied.set(index);
                }
            }
        });
        self.places.put(from, chain);
        chain.is_empty()
    }

    // ----- memory --------------------------------------------------------------------------

    /// Returns true if the wheel has more memory than is worth keeping.
    pub(crate) fn is_bloated(&self) -> bool {
        self.pool.is_bloated()
    }

    /// Frees the memory of about so many blocks. Returns true if there is more to free.
    pub(crate) fn give_back(&mut self, blocks: usize) -> bool {
        self.pool.give_back(blocks)
    }

    // ----- all of it -----------------------------------------------------------------------

    /// Takes all entries out, in no order of deadlines. Entries of equal deadlines stay in the order of insertion.
    pub(crate) fn drain(&mut self, out: &mut Vec<E>) {
        self.places.join(self.places.swept, &mut self.pool); // or that chain would be out of order
        out.extend(self.iter());
        self.clear();
    }

    /// Drops all entries, and frees their memory.
    pub(crate) fn clear(&mut self) {
        // A sweep would not do: it goes from where the last one stopped to the end of its round, and leaves the chains
        // before.
        self.places = Places::new(self.ring, self.places.occupied.len());
        self.pool = Pool::new(self.ring);
        self.len = 0;
        self.set_bounds();
    }

    /// Returns all entries, in no order of deadlines.
    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        self.places.parts().flat_map(|(_, chain)| self.pool.iter(chain))
    }

    /// Panics if an invariant is broken.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.present, self.half_of(Tick(self.now.0.saturating_add(1))), "the present");
        let mut entries = 0;
        for (place, chain) in self.places.parts() {
            entries += chain.len;
            for entry in self.pool.iter(chain) {
                let tick = self.tick_of(entry.deadline());
                let half = self.half_of(tick);
                let (group, present) = (self.group_of(half), self.group_of(self.present));
                let is_near = half - self.present <= 1 && place == At(self.offset(tick.0));
                let is_soon = half > self.present && group - present <= 1;
                let is_far = is_soon && place == At(self.index(half));
                let is_beyond = group > present && place == Beyond(group);
                let is_right = is_near || is_far || is_beyond;
                assert!(is_right, "WHEEL-1, WHEEL-2: tick {} is in the wrong place", tick.0);
                assert!(tick > self.now, "WHEEL-1: tick {} has passed", tick.0);
            }
        }
        assert_eq!(entries, self.len, "the number of entries");
        assert!(
            self.half_of(self.near) - self.present <= 1,
            "entries go to a bucket before its time"
        );
        self.places.check_invariants();
        self.pool.check_invariants(self.places.parts().map(|(_, chain)| chain));
    }
}
