//! The wheel proper: entries by value, filed by tick.
//!
//! - WHEEL-1 An entry of tick `t > now` is in the ring, in the bucket `t & mask`, if the half-turn of `t` is the present
//!   one, or the next one. Entries of the next half-turn may also be in the far store, and all later ones are there, by
//!   half-turn. So a bucket never holds entries of two ticks, and no entry is looked at before it is due. An entry of a
//!   tick that has passed is not taken in.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU64;

use super::chain::{BLOCK, Chain, Pool, Position, Timed};
use super::far::{Far, HalfTurn};
use super::occupancy::Occupancy;
use crate::clock::tick::{Granularity, Tick};
#[cfg(feature = "std")]
use crate::observe::WheelCounts;
use crate::platform::cpu::prefetch;

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
    pub(super) now: Tick,
    pub(super) granularity: Granularity,
    /// The binary logarithm of half the ring's size.
    pub(super) half_bits: u32,
    pub(super) ring: Vec<Chain<E>>,
    pub(super) far: Far<E>,
    pub(super) pool: Pool<E>,
    pub(super) occupancy: Occupancy,
    pub(super) sweep: Sweep,
}

/// Where the next step of a sweep goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sweep {
    pub(super) chain: ChainId,
    pub(super) position: Position,
}

/// A chain of the wheel: that of a bucket, or that of a far half-turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainId {
    Bucket(usize),
    Far(u64),
}

impl Sweep {
    pub(super) const START: Sweep = Sweep { chain: ChainId::Bucket(0), position: Position::START };
}

#[cfg(feature = "std")]
impl<E: Timed> WheelCounts for Buckets<E> {
    fn buckets(&self) -> usize {
        self.ring.len()
    }

    fn hand(&self) -> usize {
        self.offset(self.now.0)
    }

    fn waiting_in(&self, bucket: usize) -> usize {
        self.pool.len(&self.ring[bucket])
    }

    fn waiting_far(&self) -> usize {
        self.far.iter().map(|(_, half_turn)| half_turn.len).sum()
    }
}

impl<E: Timed> Buckets<E> {
    /// Creates a wheel of `size` buckets (a power of two, of which it makes two at least) that stands at `now`. A tick
    /// is `granularity` units of the entries' deadlines.
    pub(crate) fn new(size: usize, granularity: NonZeroU64, now: Tick) -> Buckets<E> {
        debug_assert!(size.is_power_of_two());
        // Two half-turns of one bucket each are the least that works.
        let size = size.max(2);
        let half_bits = size.ilog2() - 1;
        Buckets {
            now,
            granularity: Granularity::new(granularity),
            ring: vec![Chain::new(); size],
            occupancy: Occupancy::new(size),
            far: Far::new(now.0.saturating_add(1) >> half_bits, size),
            pool: Pool::new(size), // a block per bucket, so that a steady flow of few tasks a tick allocates nothing
            len: 0,
            sweep: Sweep::START,
            half_bits,
        }
    }

    /// Returns the number of entries, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns how many blocks there have been at a time since the last [`clear`](Buckets::clear).
    pub(super) fn blocks(&self) -> usize {
        self.pool.blocks()
    }

    /// Returns the tick that the wheel has reached.
    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// Returns the tick of a deadline, which is the first that does not end before it.
    pub(crate) fn tick_of(&self, deadline: u64) -> Tick {
        Tick(self.granularity.div_ceil(deadline))
    }

    // ----- where a tick lies ---------------------------------------------------------------

    pub(super) fn half_of(&self, tick: Tick) -> u64 {
        tick.0 >> self.half_bits
    }

    /// Returns the half-turn of the next tick.
    #[inline]
    pub(super) fn present_half(&self) -> u64 {
        self.far.base()
    }

    fn first_tick(&self, half: u64) -> u64 {
        half << self.half_bits
    }

    fn last_tick(&self, half: u64) -> u64 {
        self.first_tick(half) | ((1 << self.half_bits) - 1)
    }

    pub(super) fn offset(&self, tick: u64) -> usize {
        tick as usize & (self.ring.len() - 1)
    }

    // ----- in ------------------------------------------------------------------------------

    /// Files an entry in the ring or in the far store (WHEEL-1). Returns false if the tick of its deadline has passed. Then
    /// the caller keeps the entry.
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
        let (half, present) = (self.half_of(tick), self.present_half());
        // While the far store still has entries of the next half-turn, new ones join them there. They are brought in
        // from the front, so entries of one tick stay in the order of insertion.
        let is_near = half == present || (half - present == 1 && self.far.get(half).is_none());
        let offset = self.offset(tick.0);
        if is_near {
            // Most entries join others, in a block that has room. Then the bit of the bucket is set already.
            if !self.pool.push(&mut self.ring[offset], entry) {
                self.pool.push_in_a_fresh_block(&mut self.ring[offset], entry);
                self.occupancy.set(offset);
            }
        } else {
            // By index where that is possible: a search in the map costs more than all the rest.
            let half_turn = self.far.get_soon(half);
            let is_in = half_turn.is_some_and(|half_turn| half_turn.push(&mut self.pool, entry));
            if !is_in {
                self.insert_far(half, entry);
            }
        }
        true
    }

    #[inline(never)]
    fn insert_far(&mut self, half: u64, entry: E) {
        let half_turn = self.far.get_or_insert(half);
        if !half_turn.push(&mut self.pool, entry) {
            self.pool.push_in_a_fresh_block(&mut half_turn.chain, entry);
            half_turn.len += 1;
        }
    }

    // ----- out -----------------------------------------------------------------------------

    /// Moves on to a tick, and appends to `out` the entries of that tick and of those before: tick by tick, and
    /// within a tick in the order of insertion.
    pub(crate) fn advance(&mut self, to: Tick, out: &mut Vec<E>) {
        let before = out.len();
        // One half-turn at a time, because the next one has to be in the ring before its first tick.
        while self.now < to {
            self.jump(to);
            let end = to.min(Tick(self.last_tick(self.present_half())));
            self.bring_in_share(end);
            self.give_out(end, out);
            self.move_to(end);
        }
        self.len -= out.len() - before;
    }

    /// If the ring is empty, moves on to just before the first half-turn that has entries, or to `to`.
    fn jump(&mut self, to: Tick) {
        if self.occupancy.next(0, self.ring.len() - 1).is_some() {
            return;
        }
        let first = self.far.first_from(0);
        let until = first.map_or(to.0, |half| to.0.min(self.first_tick(half).saturating_sub(1)));
        self.move_to(Tick(self.now.0.max(until)));
    }

    /// Sets the present tick.
    fn move_to(&mut self, now: Tick) {
        self.now = now;
        // The present half-turn is that of the next tick, because the present tick has been given out.
        let present = self.half_of(Tick(now.0.saturating_add(1)));
        if self.far.turn_to(present) {
            // The far store must have no entry of the present half-turn, or its ticks would pass without it. Mostly
            // nothing is left to bring in.
            self.bring_in(present, usize::MAX);
        }
    }

    /// Moves the ring's entries up to `end`, which is in the present half-turn, to `out`.
    fn give_out(&mut self, end: Tick, out: &mut Vec<E>) {
        let Some(from) = self.now.0.checked_add(1) else { return };
        if from > end.0 {
            return;
        }
        let (mut from, last) = (self.offset(from), self.offset(end.0));
        while let Some(offset) = self.occupancy.next(from, last) {
            // A bucket is a cache miss for the chain and one for the block, so the block of a later one is fetched
            // meanwhile.
            self.pool.prefetch(self.ring[self.offset(offset as u64 + AHEAD)].head);
            let give = |_: &mut Pool<E>, entries: &[E]| out.extend_from_slice(entries);
            self.pool.take(&mut self.ring[offset], usize::MAX, give);
            self.emptied(ChainId::Bucket(offset));
            from = offset + 1;
        }
    }

    // ----- from far to near ----------------------------------------------------------------

    /// Brings in a share of the next half-turn: as much of it as the ticks up to `end` are of what remains of the
    /// present half-turn.
    fn bring_in_share(&mut self, end: Tick) {
        let (present, moved) = (self.present_half(), end.0 - self.now.0);
        let next = present.saturating_add(1);
        let Some(half_turn) = self.far.get(next) else { return };
        let len = half_turn.len as u128;
        let left = self.last_tick(present) - self.now.0;
        if moved > 0 {
            // In proportion to the ticks, so the work is spread evenly over the half-turn. In `u128`, because the
            // product may not fit.
            let share = (len * u128::from(moved)).div_ceil(u128::from(left));
            self.bring_in(next, usize::try_from(share).unwrap_or(usize::MAX));
        }
    }

    /// Brings in about `budget` entries of the next half-turn ahead of their time. Returns true if no entry of it is
    /// left to bring in.
    pub(crate) fn settle(&mut self, budget: usize) -> bool {
        self.bring_in(self.present_half().saturating_add(1), budget)
    }

    /// Returns the tick at which the wheel should be advanced and settled, so that a great half-turn is in the ring before
    /// its first tick comes. Returns `None` if there is no such half-turn, or if it is being settled.
    pub(crate) fn settle_at(&self) -> Option<Tick> {
        let first = (self.len >= GREAT).then(|| self.far.first_from(0))??;
        let at = |half: u64| {
            let len = self.far.get(half).map_or(0, |half_turn| half_turn.len);
            // A small half-turn is brought in at once when its turn comes, and the next one is being settled already.
            if len < GREAT || half <= self.present_half().saturating_add(1) {
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

    /// Moves about `budget` entries of a half-turn into the ring. Returns true if none is left.
    fn bring_in(&mut self, half: u64, budget: usize) -> bool {
        let Some(half_turn) = self.far.get_mut(half) else { return true };
        let (ring, occupancy) = (&mut self.ring, &mut self.occupancy);
        let (granularity, mask) = (self.granularity, ring.len() - 1);
        let offset_of = |entry: &E| granularity.div_ceil(entry.deadline()) as usize & mask;
        let taken = self.pool.take(&mut half_turn.chain, budget, |pool, entries| {
            // They go to buckets all over the ring. To fetch these together costs a third.
            let mut offsets = [0; BLOCK];
            for (offset, entry) in offsets.iter_mut().zip(entries) {
                *offset = offset_of(entry);
                prefetch(&raw const ring[*offset]);
            }
            for offset in &offsets[..entries.len()] {
                pool.prefetch(ring[*offset].tail);
            }
            for (offset, entry) in offsets.into_iter().zip(entries) {
                if !pool.push(&mut ring[offset], *entry) {
                    pool.push_in_a_fresh_block(&mut ring[offset], *entry);
                    occupancy.set(offset);
                }
            }
        });
        half_turn.len -= taken;
        let is_done = half_turn.chain.is_empty();
        // A sweep that stands in this chain may stand in a block that has gone.
        if taken > 0 {
            self.rewind(ChainId::Far(half));
        }
        if is_done {
            self.far.remove(half);
        }
        is_done
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
        out.extend(self.iter());
        self.clear();
    }

    /// Drops all entries, and frees their memory.
    pub(crate) fn clear(&mut self) {
        // A sweep would not do: it goes from where the last one stopped to the end of its round, and leaves the chains
        // before.
        self.ring.fill(Chain::new());
        self.far = Far::new(self.present_half(), self.ring.len());
        self.occupancy = Occupancy::new(self.ring.len());
        self.pool = Pool::new(self.ring.len());
        self.sweep = Sweep::START;
        self.len = 0;
    }

    /// Returns all entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        let far = self.far.iter().map(|(_, half_turn)| &half_turn.chain);
        let chains = self.ring.iter().chain(far);
        chains.flat_map(|chain| self.pool.iter(chain))
    }

    /// Panics if an invariant is broken. `seen` is room to work in.
    pub(crate) fn check_invariants(&self, seen: &mut Vec<bool>) {
        let present = self.present_half();
        assert_eq!(present, self.half_of(Tick(self.now.0.saturating_add(1))), "the present");
        let mut entries = 0;
        for (offset, chain) in self.ring.iter().enumerate() {
            assert_eq!(self.occupancy.is_set(offset), !chain.is_empty(), "the bit at {offset}");
            entries += self.pool.len(chain);
            for entry in self.pool.iter(chain) {
                let tick = self.tick_of(entry.deadline());
                assert_eq!(self.offset(tick.0), offset, "WHEEL-1: tick {} at {offset}", tick.0);
                assert!(tick > self.now, "WHEEL-1: tick {} has passed", tick.0);
                assert!(self.half_of(tick) - present <= 1, "WHEEL-1: tick {} is far", tick.0);
            }
        }
        for (half, HalfTurn { chain, len }) in self.far.iter() {
            assert!(half > present, "WHEEL-1: half-turn {half} is present, and in the far store");
            assert_eq!(*len, self.pool.len(chain), "the length of half-turn {half}");
            assert!(*len > 0, "half-turn {half} is empty");
            entries += len;
            for entry in self.pool.iter(chain) {
                assert_eq!(self.half_of(self.tick_of(entry.deadline())), half, "WHEEL-1");
            }
        }
        assert_eq!(entries, self.len, "the number of entries");
        let chains = self.ring.iter().chain(self.far.iter().map(|(_, half_turn)| &half_turn.chain));
        self.pool.check_invariants(chains, seen);
    }
}
