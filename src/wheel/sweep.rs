//! Stale entries: those of values that were removed.
//!
//! The wheel does not know which of its entries are stale. Two functions ask the caller, and drop the stale entries that
//! they meet: [`first`](Buckets::first) finds the earliest live entry, and [`sweep`](Buckets::sweep) goes through
//! all chains block by block and goes on where it stopped.
//!
//! ```text
//!   a chain that is swept:   kept [ e e e ] [ e e ]  <── live ones ──  [ e . e ] [ . e . ] [ e ]  the rest
//! ```
//!
//! - SWEEP-1 A chain that is half swept has two parts: `kept`, and behind that the rest, which lies where the chain does
//!   and is not empty. Whoever takes entries out of the chain puts the parts together first, by
//!   [`whole`](Buckets::whole), and the sweep begins the chain anew.

use super::buckets::ChainId::{At, Beyond};
use super::buckets::{Buckets, ChainId};
use super::chain::{Chain, Timed};

/// Where the next step of a sweep goes on.
pub(super) struct Sweep<E> {
    pub(super) chain: ChainId,
    /// The live entries of that chain that have been looked at.
    pub(super) kept: Chain<E>,
}

impl<E: Timed> Sweep<E> {
    pub(super) fn new() -> Sweep<E> {
        Sweep { chain: At(0), kept: Chain::new() }
    }
}

impl<E: Timed> Buckets<E> {
    // ----- what comes next -----------------------------------------------------------------

    /// Returns the earliest deadline of a live entry. If it would have to look at more than about `budget` entries, it
    /// returns a time that is no later.
    pub(crate) fn first(
        &mut self,
        mut budget: usize,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> Option<u64> {
        let first_near = |wheel: &Self| {
            // The ring begins at the next tick.
            let start = wheel.offset(wheel.now.0.wrapping_add(1));
            wheel.occupied.next_around(0..wheel.ring, start).map(At)
        };
        let near = self.first_of(first_near, &mut budget, &mut is_live);
        // A near entry of the present half-turn comes before everything that is far. One of the next half-turn need
        // not, because others of that half-turn may still be far.
        if near.is_some_and(|near| self.half_of(self.tick_of(near)) == self.present) {
            return near;
        }
        // Only the first half-turn that has live entries matters: all others are later.
        let first_far = |wheel: &Self| wheel.first_far().map(|half| wheel.far(half));
        let far = self.first_of(first_far, &mut budget, &mut is_live);
        near.into_iter().chain(far).min()
    }

    /// Returns the earliest deadline of a live entry of the chain that `next` finds. If all of its entries are stale, they
    /// are dropped, and `next` finds another one.
    fn first_of(
        &mut self,
        next: impl Fn(&Self) -> Option<ChainId>,
        budget: &mut usize,
        is_live: &mut impl FnMut(&E) -> bool,
    ) -> Option<u64> {
        loop {
            let id = next(self)?;
            let (min, len) = (self.chain(id).min, self.len_of(id));
            // Mostly the first entry is live, and then one look is enough. If it is gone, its deadline is still no later
            // than the others, and a search may cost too much.
            if is_live(&min) || len > *budget {
                return Some(min.deadline());
            }
            *budget -= len;
            let (mut chain, mut kept) = (self.whole(id), Chain::new());
            self.pool.sift(&mut chain, &mut kept, usize::MAX, &mut *is_live);
            self.put(id, kept);
            self.len -= len - kept.len;
            if !kept.is_empty() {
                return Some(kept.min.deadline());
            }
        }
    }

    // ----- sweeping ------------------------------------------------------------------------

    /// Looks at about `budget` entries, from where the last call stopped, and drops those that are stale. Returns true if
    /// this call has come to the end of a round.
    pub(crate) fn sweep(&mut self, budget: usize, mut is_live: impl FnMut(&E) -> bool) -> bool {
        let mut looked_at = 0;
        while looked_at < budget {
            // The chain at which the last call stopped may be gone by now.
            let Some(id) = self.next_to_sweep() else {
                self.sweep = Sweep::new();
                return true;
            };
            self.sweep.chain = id;
            let (mut rest, kept) = (self.chain(id), &mut self.sweep.kept);
            let before = rest.len + kept.len;
            // Each chain counts one more than its entries, so a walk over short ones comes to its end too.
            looked_at += 1 + self.pool.sift(&mut rest, kept, budget - looked_at, &mut is_live);
            self.len -= before - rest.len - kept.len;
            if rest.is_empty() {
                rest = core::mem::replace(&mut self.sweep.kept, Chain::new());
                self.sweep.chain = match id {
                    At(index) => At(index + 1),
                    // It goes on to the half-turn before.
                    Beyond(half) => Beyond(half - 1),
                };
            }
            self.put(id, rest);
        }
        false
    }

    /// Returns the chain that is swept, or the next one if it is empty: those with an index, and then the others from the
    /// last one on.
    fn next_to_sweep(&self) -> Option<ChainId> {
        let most = match self.sweep.chain {
            At(index) => match self.occupied.next(index..self.occupied.len()) {
                Some(index) => return Some(At(index)),
                None => u64::MAX,
            },
            Beyond(half) => half,
        };
        self.beyond.range(..=most).next_back().map(|(half, _)| Beyond(*half))
    }

    /// Returns a chain with the part that a sweep has set aside (SWEEP-1). The caller puts back what it becomes.
    pub(super) fn whole(&mut self, id: ChainId) -> Chain<E> {
        let rest = self.chain(id);
        if self.sweep.chain != id {
            return rest;
        }
        let kept = core::mem::replace(&mut self.sweep.kept, Chain::new());
        self.pool.join(kept, rest)
    }

    /// Returns the number of entries of a chain.
    pub(super) fn len_of(&self, id: ChainId) -> usize {
        let kept = if self.sweep.chain == id { self.sweep.kept.len } else { 0 };
        self.chain(id).len + kept
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
