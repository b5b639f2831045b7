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

/// The most shards.
pub(super) const MOST: usize = 64;

/// The bounds of shards, of which there is a power of two.
pub(super) struct Firsts {
    /// One number each, because a comparison of pairs takes several times as long.
    bounds: [u128; MOST],
    /// The shard that is the first below each node. Node `n` has the nodes `2 * n` and `2 * n + 1` below it. The leaves begin
    /// with the node `shards`.
    nodes: [u8; 2 * MOST],
    shards: usize,
}

fn to_bound((deadline, order): Due) -> u128 {
    u128::from(deadline.0) << u64::BITS | u128::from(order)
}

impl Firsts {
    /// Of so many shards, which are empty.
    pub(super) fn new(shards: usize) -> Firsts {
        let bounds = [to_bound((Moment::NEVER, 0)); MOST];
        let mut nodes = [0; 2 * MOST];
        (0..shards).for_each(|shard| nodes[shards + shard] = shard as u8);
        (1..shards).rev().for_each(|node| nodes[node] = nodes[2 * node]);
        Firsts { bounds, nodes, shards }
    }

    /// Returns the shard with the smallest bound.
    #[inline]
    pub(super) fn first(&self) -> usize {
        usize::from(self.nodes[1])
    }

    /// Returns the deadline of a shard's bound.
    #[inline]
    pub(super) fn deadline(&self, shard: usize) -> Moment {
        Moment((self.bounds[shard] >> u64::BITS) as u64)
    }

    /// Sets the bound of a shard.
    pub(super) fn set(&mut self, shard: usize, due: Due) {
        let (mut first, mut bound) = (shard % MOST, to_bound(due));
        if self.bounds[first] == bound {
            return; // as it is when a taker finds what it knew
        }
        self.bounds[first] = bound;
        let mut at = self.shards + shard;
        while at > 1 {
            // The remainders are what they are of. They tell the compiler that no check is needed.
            let beside = usize::from(self.nodes[(at ^ 1) % (2 * MOST)]) % MOST;
            if self.bounds[beside] < bound {
                (first, bound) = (beside, self.bounds[beside]);
            }
            at /= 2;
            self.nodes[at % (2 * MOST)] = first as u8;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_the_one_that_a_search_finds() {
        for round in 0..800_u64 {
            let shards = [1, 2, 4, MOST][round as usize % 4];
            let (mut firsts, mut bounds) = (Firsts::new(shards), vec![(Moment::NEVER, 0); shards]);
            for step in 1..round / 4 {
                let random = (round << 20 | step).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                let deadline =
                    if random >> 12 & 1 == 0 { Moment(random >> 8 & 7) } else { Moment::NEVER };
                let (shard, bound) = (random as usize % shards, (deadline, step));
                bounds[shard] = bound;
                firsts.set(shard, bound);
                assert_eq!(bounds.iter().min(), Some(&bounds[firsts.first()]));
                assert_eq!(firsts.bounds[shard], to_bound(bound));
                assert_eq!(firsts.deadline(shard), bound.0);
            }
        }
    }
}
