//! Which shard has the first item: a tournament among them. Plain data, for the taker whose turn it is.
//!
//! ```text
//!              first of all
//!           /                \
//!      first of 0, 1     first of 2, 3        a node: the smaller one of its two
//!       /       \          /       \
//!   shard 0  shard 1   shard 2  shard 3       a leaf: a place before which no item of the shard comes out
//! ```
//!
//! A change of one shard is as many steps as the tree has levels: five for 32 shards, where a search would look at all.

use super::items::Due;
use crate::clock::tick::Moment;

/// The bounds of shards, of which there is a power of two.
pub(super) struct Firsts {
    /// Node `n` has the nodes `2 * n` and `2 * n + 1` below it. The second half are the leaves.
    nodes: Box<[Node]>,
}

/// A shard and its bound, which is one number, because a comparison of pairs takes several times as long.
#[derive(Clone, Copy)]
struct Node {
    bound: u128,
    shard: usize,
}

fn to_bound((deadline, order): Due) -> u128 {
    u128::from(deadline.0) << u64::BITS | u128::from(order)
}

fn to_due(bound: u128) -> Due {
    (Moment((bound >> u64::BITS) as u64), bound as u64)
}

impl Firsts {
    /// Of so many shards, which are empty.
    pub(super) fn new(shards: usize) -> Firsts {
        let bound = to_bound((Moment::NEVER, 0));
        Firsts { nodes: (0..2 * shards).map(|at| Node { bound, shard: at % shards }).collect() }
    }

    /// Returns the shard with the smallest bound, and that.
    #[inline]
    pub(super) fn first(&self) -> (Due, usize) {
        let Node { bound, shard } = self.nodes[1];
        (to_due(bound), shard)
    }

    /// Returns the bound of a shard.
    pub(super) fn bound(&self, shard: usize) -> Due {
        to_due(self.nodes[self.nodes.len() / 2 + shard].bound)
    }

    /// Sets the bound of a shard.
    pub(super) fn set(&mut self, shard: usize, due: Due) {
        let (mut at, mut first) =
            (self.nodes.len() / 2 + shard, Node { bound: to_bound(due), shard });
        if self.nodes[at].bound == first.bound {
            return; // as it is when a taker finds what it knew
        }
        self.nodes[at] = first;
        while at > 1 {
            let beside = &self.nodes[at ^ 1];
            if beside.bound < first.bound {
                first = *beside;
            }
            at /= 2;
            self.nodes[at] = first;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_the_one_that_a_search_finds() {
        for shards in [1, 2, 4, 64] {
            let mut firsts = Firsts::new(shards);
            assert_eq!(firsts.first().0, (Moment::NEVER, 0));
            let mut bounds = vec![(Moment::NEVER, 0); shards];
            for step in 1..2_000_u64 {
                let random = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                let (shard, bound) = (random as usize % shards, (Moment(random >> 8 & 7), step));
                bounds[shard] = bound;
                firsts.set(shard, bound);
                let (first, of) = firsts.first();
                assert_eq!(Some(&first), bounds.iter().min());
                assert_eq!((firsts.bound(shard), bounds[of]), (bound, first));
            }
        }
    }
}
