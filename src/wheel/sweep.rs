//! Stale entries: those of values that were removed.
//!
//! The wheel does not know which of its entries are stale. Two functions ask the caller, and drop the stale entries that
//! they meet: [`first`](Buckets::first) finds the earliest live entry, and [`sweep`](Buckets::sweep) goes through
//! all chains block by block and goes on where it stopped.

use super::buckets::Buckets;
use super::chain::{Chain, Timed};
use super::places::Place::{self, At, Beyond};

impl<E: Timed> Buckets<E> {
    /// Returns the earliest deadline of a live entry. If it would have to look at more than about `budget` entries, it
    /// returns a time that is no later.
    pub(crate) fn first(
        &mut self,
        mut budget: usize,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> Option<u64> {
        let near = self.first_of(Buckets::first_near, &mut budget, &mut is_live);
        // A near entry of the present half-turn comes before everything that is far. One of the next half-turn need
        // not, because others of that half-turn may still be far.
        if near.is_some_and(|near| self.half_of(self.tick_of(near)) == self.present) {
            return near;
        }
        // Only the first half-turn, and the first group, that have live entries matter: all others are later.
        let first_soon = |wheel: &Self| wheel.first_soon().map(|half| At(wheel.index(half)));
        let soon = self.first_of(first_soon, &mut budget, &mut is_live);
        let first = near.into_iter().chain(soon).min();
        let is_later = |half| first.is_some_and(|first| self.half_of(self.tick_of(first)) < half);
        if self.first_beyond().is_none_or(is_later) {
            return first;
        }
        let first_group = |wheel: &Self| wheel.places.beyond.keys().next().copied().map(Beyond);
        let beyond = self.first_of(first_group, &mut budget, &mut is_live);
        first.into_iter().chain(beyond).min()
    }

    /// Returns the earliest deadline of a live entry of the chain that `next` finds. If all of its entries are stale, they
    /// are dropped, and `next` finds another one.
    fn first_of(
        &mut self,
        next: impl Fn(&Self) -> Option<Place>,
        budget: &mut usize,
        is_live: &mut impl FnMut(&E) -> bool,
    ) -> Option<u64> {
        loop {
            let place = next(self)?;
            let (min, len) = (self.places.get(place).min, self.places.len(place));
            // Mostly the first entry is live, and then one look is enough. If it is gone, its deadline is still no later
            // than the others, and a search may cost too much.
            if is_live(&min) || len > *budget {
                return Some(min.deadline());
            }
            *budget -= len;
            self.places.join(place, &mut self.pool);
            let (mut chain, mut live) = (self.places.get(place), Chain::new());
            self.pool.sift(&mut chain, &mut live, usize::MAX, &mut *is_live);
            self.places.put(place, live);
            self.len -= len - live.len;
            if !live.is_empty() {
                return Some(live.min.deadline());
            }
            self.set_bounds();
        }
    }

    /// Looks at about `budget` entries, from where the last call stopped, and drops those that are stale. Returns true if
    /// this call has come to the end of a round.
    pub(crate) fn sweep(&mut self, budget: usize, is_live: impl FnMut(&E) -> bool) -> bool {
        let (dropped, is_done) = self.places.sweep(&mut self.pool, budget, is_live);
        self.len -= dropped;
        self.set_bounds();
        is_done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::clock::tick::Tick;

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Item {
        deadline: u64,
        number: usize,
    }

    impl Timed for Item {
        fn deadline(&self) -> u64 {
            self.deadline
        }
    }

    /// Inserts entries of one deadline.
    fn fill(wheel: &mut Buckets<Item>, deadline: u64, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| assert!(wheel.insert(Item { deadline, number })));
    }

    /// Entries of a half-turn that are in the ring may be due later than others of it that are still far.
    #[test]
    fn the_first_of_a_half_turn_that_is_partly_far_may_be_the_far_one() {
        let mut wheel = Buckets::new(16, NonZeroU64::MIN, Tick(0));
        fill(&mut wheel, 31, 0..500);
        fill(&mut wheel, 30, 500..501);
        let mut out = Vec::new();
        wheel.advance(Tick(16), &mut out);
        assert!(!wheel.settle(100), "most of them stay far");
        assert_eq!(wheel.first(usize::MAX, |_| true), Some(30));
        assert_eq!(wheel.first(usize::MAX, |item| item.number != 500), Some(31));
    }

    #[test]
    fn s03_entries_of_a_tick_stay_in_order_while_their_half_turn_is_brought_in() {
        let mut wheel = Buckets::new(16, NonZeroU64::MIN, Tick(0)); // a half-turn is 8 ticks
        fill(&mut wheel, 20, 0..500);
        let mut out = Vec::new();
        wheel.advance(Tick(8), &mut out);
        assert!(!wheel.settle(100), "most of them stay far");
        fill(&mut wheel, 20, 500..501);
        wheel.advance(Tick(20), &mut out);
        assert!(out.iter().map(|item| item.number).eq(0..501));
    }

    #[test]
    fn s03_entries_of_a_tick_stay_in_order_while_their_group_is_brought_in() {
        let mut wheel = Buckets::new(16, NonZeroU64::MIN, Tick(0)); // a group is 32 half-turns, or 256 ticks
        fill(&mut wheel, 532, 0..500);
        fill(&mut wheel, 531, 500..501);
        let mut out = Vec::new();
        wheel.advance(Tick(256), &mut out);
        assert!(!wheel.settle(100), "most of them stay beyond");
        fill(&mut wheel, 532, 501..502);
        assert_eq!(wheel.first(usize::MAX, |_| true), Some(531), "which is not brought in yet");
        assert_eq!(wheel.first(usize::MAX, |item| item.number != 500), Some(532));
        wheel.check_invariants();
        wheel.advance(Tick(532), &mut out);
        assert!(out.iter().map(|item| item.number).eq((0..500).chain(501..502)));
    }

    #[test]
    fn s02_a_great_group_asks_to_be_settled_ahead_of_its_time() {
        const TICK: u64 = 1_000_000;
        let granularity = NonZeroU64::new(TICK).expect("a millisecond");
        let mut wheel = Buckets::new(16, granularity, Tick(0)); // a group is 256 ticks
        fill(&mut wheel, 800 * TICK, 0..20_000);
        assert_eq!(wheel.settle_at(), Some(Tick(511)), "when the group before it begins");
        fill(&mut wheel, 767 * TICK, 20_000..20_001);
        assert_eq!(wheel.settle_at(), Some(Tick(511)), "one entry before them does not hide them");
        let mut out = Vec::new();
        wheel.advance(Tick(511), &mut out);
        assert!(wheel.places.len(Beyond(3)) > 19_000, "no more than a share comes at once");
        assert!(!wheel.settle(1) && wheel.settle(usize::MAX) && out.is_empty());
        wheel.check_invariants();
        wheel.advance(Tick(767), &mut out);
        assert_eq!((out.len(), wheel.settle_at()), (1, Some(Tick(795))), "now it is a half-turn");
    }

    /// A wheel that is advanced from deadline to deadline brings in a share of the next group with each half-turn.
    #[test]
    fn s02_no_advance_brings_in_a_great_group_at_once() {
        let mut wheel = Buckets::new(16, NonZeroU64::MIN, Tick(0)); // a group is 256 ticks
        fill(&mut wheel, 600, 0..100_000);
        (1..512).for_each(|tick| fill(&mut wheel, tick, 0..1));
        let beyond = |wheel: &Buckets<Item>| wheel.places.len(Beyond(2));
        let mut out = Vec::new();
        for tick in 1..512 {
            let before = beyond(&wheel);
            wheel.advance(Tick(tick), &mut out);
            assert!(before - beyond(&wheel) < 5_000, "at {tick}");
        }
        assert_eq!((beyond(&wheel), out.len()), (0, 511));
    }

    #[test]
    fn s09_entries_that_are_far_apart_do_not_take_a_block_each() {
        let mut wheel = Buckets::new(4096, NonZeroU64::MIN, Tick(0));
        let year = 365 * 24 * 3_600_000;
        let deadline = |number: usize| number as u64 * (year / 100_000);
        (1..100_000).for_each(|number| fill(&mut wheel, deadline(number), number..number + 1));
        assert!(wheel.pool.most_used() < 20_000, "{} blocks", wheel.pool.most_used());
        let mut out = Vec::new();
        wheel.advance(Tick(year), &mut out);
        assert!(out.iter().map(|item| item.number).eq(1..100_000));
        assert!(wheel.pool.most_used() < 25_000, "{} blocks", wheel.pool.most_used());
    }

    #[test]
    fn s03_a_drain_in_the_middle_of_a_sweep_keeps_the_order_of_equal_deadlines() {
        let mut wheel = Buckets::new(16, NonZeroU64::MIN, Tick(0));
        fill(&mut wheel, 20, 0..500);
        let mut out = Vec::new();
        wheel.advance(Tick(8), &mut out);
        assert!(!wheel.settle(100), "most of them stay far");
        assert!(!wheel.sweep(165, |_| true), "it stops among those");
        wheel.check_invariants();
        wheel.drain(&mut out);
        assert!(out.iter().map(|item| item.number).eq(0..500));
    }

    /// To bring in a full half-turn takes time, so it has to begin before the first tick of the half-turn.
    #[test]
    fn s02_a_great_half_turn_asks_to_be_settled_ahead_of_its_time() {
        const TICK: u64 = 1_000_000;
        let granularity = NonZeroU64::new(TICK).expect("a millisecond");
        let mut wheel = Buckets::new(16, granularity, Tick(0)); // a half-turn is 8 ticks
        fill(&mut wheel, 40 * TICK, 0..100);
        assert_eq!(wheel.settle_at(), None, "few entries take no time");
        fill(&mut wheel, 41 * TICK, 100..20_000);
        assert_eq!(wheel.settle_at(), Some(Tick(35)), "5 ms for 20,000 entries, before tick 40");
        fill(&mut wheel, 33 * TICK, 20_000..20_001);
        assert_eq!(wheel.settle_at(), Some(Tick(35)), "one entry before them does not hide them");
        fill(&mut wheel, 42 * TICK, 20_001..100_000);
        assert_eq!(wheel.settle_at(), Some(Tick(31)), "not before the half-turn before it");
        let mut out = Vec::new();
        wheel.advance(Tick(31), &mut out);
        assert_eq!(wheel.settle_at(), None);
        assert!(!wheel.settle(1) && wheel.settle(usize::MAX) && out.is_empty());
        wheel.advance(Tick(41), &mut out);
        assert_eq!(out.len(), 20_001);
    }

    #[test]
    fn a_sweep_between_everything_else_drops_what_is_stale_and_nothing_more() {
        for seed in 1..60_u64 {
            let mut state = seed;
            let mut below = |end: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) % end
            };
            let mut wheel = Buckets::new(1 << below(5), NonZeroU64::MIN, Tick(0));
            let mut is_live = Vec::new();
            let mut out = Vec::new();
            for _ in 0..200 {
                let budget = below(120) as usize;
                match below(6) {
                    0 | 1 => {
                        let (deadline, count) = (wheel.now().0 + 1 + below(40), below(80) as usize);
                        fill(&mut wheel, deadline, is_live.len()..is_live.len() + count);
                        is_live.resize(is_live.len() + count, Some(deadline));
                    }
                    2 => {
                        let odds = 1 + below(9);
                        is_live
                            .iter_mut()
                            .for_each(|live| *live = live.filter(|_| below(odds) > 0));
                    }
                    3 => _ = wheel.sweep(budget, |item| is_live[item.number].is_some()),
                    4 => {
                        let first = wheel.first(budget, |item| is_live[item.number].is_some());
                        let due = is_live.iter().flatten().min();
                        assert!(first <= due.copied() || due.is_none(), "{first:?} after {due:?}");
                        assert!(first.is_some() || due.is_none(), "{due:?} was not seen");
                    }
                    _ => {
                        wheel.settle(budget);
                        wheel.advance(Tick(wheel.now().0 + below(4)), &mut out);
                        for item in out.drain(..) {
                            assert!(item.deadline <= wheel.now().0, "early");
                            is_live[item.number] = None;
                        }
                    }
                }
                wheel.check_invariants();
            }
            let mut rounds = 0;
            while rounds < 2 {
                rounds += usize::from(wheel.sweep(50, |item| is_live[item.number].is_some()));
            }
            wheel.drain(&mut out);
            out.sort_by_key(|item| item.number);
            let live = (0..is_live.len()).filter(|number| is_live[*number].is_some());
            assert!(out.iter().map(|item| item.number).eq(live), "seed {seed}");
        }
    }
}
