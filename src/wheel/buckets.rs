//! The wheel proper: entries by value, filed by tick.
//!
//! The number of a half-turn (`half` in the code) is what Akka calls the rounds of a task, counted from the beginning of
//! time instead of down from the present. So it does not have to be touched while the wheel turns. With the defaults a
//! half-turn takes two seconds, and the half-turns that are found by index cover an hour and ten minutes.
//!
//! - WHEEL-1 An entry of tick `t > now` is in the ring, in the bucket `t & mask`, if the half-turn of `t` is the present
//!   one, or the next one. Entries of the next half-turn may also be far, and all later ones are, by half-turn. So a bucket
//!   never holds entries of two ticks, and no entry is looked at before it is due. An entry of a tick that has passed is
//!   not taken in.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use super::chain::{BLOCK, Pool, Timed};
use super::places::Place::{self, At, Beyond};
use super::places::Places;
use crate::clock::tick::{Granularity, Tick};
use crate::platform::cpu::prefetch;

/// The most half-turns that are found by index. Their chains take 32 bytes each.
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
    /// Up to this tick they are found by index.
    soon: Tick,
    /// The binary logarithm of half the ring's size.
    half_bits: u32,
    ring: usize,
    /// One less than the number of half-turns that come soon.
    soon_mask: u64,
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
            places: Places::new(ring, ring + soon),
            pool: Pool::new(ring), // a block per bucket, so that a steady flow of few tasks a tick allocates nothing
        };
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
    fn index(&self, half: u64) -> usize {
        self.ring + (half & self.soon_mask) as usize
    }

    /// Returns where the far entries of a half-turn are.
    pub(super) fn far(&self, half: u64) -> Place {
        // One comparison for both ends: a half-turn that has passed is far ahead by this.
        let is_soon = half.wrapping_sub(self.present) <= self.soon_mask;
        if is_soon { At(self.index(half)) } else { Beyond(half) }
    }

    /// Sets the bounds, because the present half-turn has changed, or the next one may not be far any more.
    pub(super) fn set_bounds(&mut self) {
        self.soon = self.last_tick(self.present.saturating_add(self.soon_mask));
        // New entries of the next half-turn join those that are still far. They are brought in from the front, so entries
        // of one tick stay in the order of insertion.
        let next = self.next_half();
        let is_far = self.places.occupied.is_set(self.index(next));
        self.near = self.last_tick(if is_far { self.present } else { next });
    }

    /// Returns the first bucket from the next tick on that has entries.
    pub(super) fn first_near(&self) -> Option<Place> {
        let start = self.offset(self.now.0.wrapping_add(1));
        self.places.occupied.next_around(0..self.ring, start).map(At)
    }

    /// Returns the first half-turn that has far entries.
    pub(super) fn first_far(&self) -> Option<u64> {
        let (start, occupied) = (self.index(self.present), &self.places.occupied);
        match occupied.next_around(self.ring..occupied.len(), start) {
            Some(index) => Some(self.present + (index.wrapping_sub(start) as u64 & self.soon_mask)),
            None => self.places.beyond.first_key_value().map(|(half, _)| *half),
        }
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
        let place = if is_beyond { Beyond(self.half_of(tick)) } else { At(index) };
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
        let first = self.first_far();
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
        // More of what was beyond comes soon now.
        while let Some((half, _)) = self.places.beyond.first_key_value() {
            let (from, to) = (Beyond(*half), self.far(*half));
            if from == to {
                break;
            }
            self.places.join(from, &mut self.pool);
            let chain = self.places.get(from);
            self.places.emptied(from);
            self.places.put(to, chain);
        }
        // No entry of the present half-turn may be far, or its ticks would pass without it. Mostly nothing is left to
        // bring in.
        self.bring_in(present, usize::MAX);
        self.set_bounds();
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

    /// Brings in about `budget` entries of the next half-turn ahead of their time. Returns true if no entry of it is
    /// left to bring in.
    pub(crate) fn settle(&mut self, budget: usize) -> bool {
        self.bring_in(self.next_half(), budget)
    }

    /// Returns the tick at which the wheel should be advanced and settled, so that a great half-turn is in the ring before
    /// its first tick comes. Returns `None` if there is no such half-turn, or if it is being settled.
    pub(crate) fn settle_at(&self) -> Option<Tick> {
        let first = (self.len >= GREAT).then(|| self.first_far())??;
        let at = |half: u64| {
            let len = self.places.len(self.far(half));
            // A small half-turn is brought in at once when its turn comes, and the next one is being settled already.
            if len < GREAT || half <= self.next_half() {
                return None;
            }
            let lead = self.granularity.div_ceil(len as u64 * SETTLE_NANOS);
            // It can be settled during the half-turn before, and not earlier.
            let earliest = self.first_tick(half - 1).saturating_sub(1);
            Some(Tick(self.first_tick(half).saturating_sub(lead).max(earliest)))
        };
        // A half-turn before it that has few entries must not hide it.
        at(first).into_iter().chain(first.checked_add(1).and_then(at)).min()
    }

    /// Moves about `budget` entries of the present half-turn, or of the next one, into the ring. Returns true if none is
    /// left.
    fn bring_in(&mut self, half: u64, budget: usize) -> bool {
        let index = self.index(half);
        if !self.places.occupied.is_set(index) {
            return true;
        }
        self.places.join(At(index), &mut self.pool);
        let mut chain = self.places.chains[index];
        let Places { chains, occupied, .. } = &mut self.places;
        let (granularity, mask) = (self.granularity, self.ring - 1);
        let offset_of = |entry: &E| granularity.div_ceil(entry.deadline()) as usize & mask;
        self.pool.take(&mut chain, budget, |pool, entries| {
            // They go to buckets all over the ring. To fetch these together costs a third.
            let mut offsets = [0; BLOCK];
            for (offset, entry) in offsets.iter_mut().zip(entries) {
                *offset = offset_of(entry);
                prefetch(&raw const chains[*offset]);
            }
            for offset in &offsets[..entries.len()] {
                pool.prefetch(chains[*offset].tail);
            }
            for (offset, entry) in offsets.into_iter().zip(entries) {
                if !pool.push(&mut chains[offset], *entry) {
                    pool.append(&mut chains[offset], *entry);
                    occupied.set(offset);
                }
            }
        });
        self.places.chains[index] = chain;
        if chain.is_empty() {
            self.places.emptied(At(index));
            self.near = self.near.max(self.last_tick(half));
        }
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
                let is_near = half - self.present <= 1 && place == At(self.offset(tick.0));
                let is_far = half > self.present && place == self.far(half);
                assert!(is_near || is_far, "WHEEL-1: tick {} is in the wrong place", tick.0);
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
