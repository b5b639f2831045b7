//! The bitmap of the chains that are not empty, in two levels.
//!
//! The upper level has a bit per word of the lower one, so the next chain that is not empty is found in a few steps,
//! however far away it is. With 4096 chains the upper level is one word.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

const WORD: usize = 64;

/// A bit per chain.
pub(super) struct Occupancy {
    words: Vec<u64>,
    /// Bit `w` is set if word `w` of `words` is not zero.
    upper: Vec<u64>,
}

impl Occupancy {
    pub(super) fn new(chains: usize) -> Occupancy {
        let words = chains.div_ceil(WORD);
        Occupancy { words: vec![0; words], upper: vec![0; words.div_ceil(WORD)] }
    }

    /// Returns how many chains there are, or a few more.
    pub(super) fn len(&self) -> usize {
        self.words.len() * WORD
    }

    pub(super) fn set(&mut self, index: usize) {
        let word = index / WORD;
        self.words[word] |= 1 << (index % WORD);
        self.upper[word / WORD] |= 1 << (word % WORD);
    }

    pub(super) fn clear(&mut self, index: usize) {
        let word = index / WORD;
        self.words[word] &= !(1 << (index % WORD));
        // The upper bit is for the whole word, so it goes only with the last chain of it.
        if self.words[word] == 0 {
            self.upper[word / WORD] &= !(1 << (word % WORD));
        }
    }

    pub(super) fn is_set(&self, index: usize) -> bool {
        self.words[index / WORD] >> (index % WORD) & 1 == 1
    }

    /// Returns the first of the range that is set.
    pub(super) fn next(&self, range: Range<usize>) -> Option<usize> {
        // With 4096 chains or fewer, this looks at three words at most.
        let found = next_in(&self.words, range.start, |from| {
            next_in(&self.upper, from, |from| {
                (from..self.upper.len()).find(|word| self.upper[*word] != 0)
            })
        });
        found.filter(|index| *index < range.end)
    }

    /// Returns the first of the range that is set, from `start` on to the end of the range, and then from its beginning.
    pub(super) fn next_around(&self, range: Range<usize>, start: usize) -> Option<usize> {
        self.next(start..range.end).or_else(|| self.next(range.start..start))
    }
}

/// Returns the first bit from `from` on that is set: in the word of `from`, or in the next word that is not zero, which
/// `next_word` finds from a given word on.
fn next_in(
    words: &[u64],
    from: usize,
    next_word: impl FnOnce(usize) -> Option<usize>,
) -> Option<usize> {
    let word = from / WORD;
    let here = words.get(word)? & (u64::MAX << (from % WORD));
    if here != 0 {
        return Some(word * WORD + here.trailing_zeros() as usize);
    }
    let word = next_word(word + 1)?;
    Some(word * WORD + words[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_bucket_is_the_one_that_a_walk_would_find() {
        for buckets in [2_usize, 64, 128, 4096, 1 << 15] {
            let mut occupancy = Occupancy::new(buckets);
            let set: Vec<_> = (0..buckets).filter(|bucket| bucket * 7919 % 97 == 3).collect();
            set.iter().for_each(|bucket| occupancy.set(*bucket));
            let step = buckets / 128 + 1;
            for from in (0..buckets).step_by(step) {
                let walked = set.iter().copied().find(|bucket| *bucket >= from);
                assert_eq!(occupancy.next(from..buckets), walked, "{buckets} from {from}");
            }
            for bucket in &set {
                assert!(occupancy.is_set(*bucket));
                occupancy.clear(*bucket);
            }
            assert_eq!(occupancy.next(0..buckets), None, "all are clear again");
        }
    }

    /// It is farther away than one word of the upper level reaches.
    #[test]
    fn a_bucket_is_found_across_thousands_of_empty_ones() {
        let mut occupancy = Occupancy::new(1 << 15);
        occupancy.set(30_000);
        assert_eq!(occupancy.next(0..1 << 15), Some(30_000));
        occupancy.set(9_000);
        assert_eq!(occupancy.next(70..1 << 15), Some(9_000));
        occupancy.clear(9_000);
        assert_eq!(occupancy.next(70..1 << 15), Some(30_000));
    }

    #[test]
    fn the_last_bucket_of_the_range_counts_and_the_one_after_does_not() {
        let mut occupancy = Occupancy::new(256);
        occupancy.set(200);
        assert_eq!(occupancy.next(3..201), Some(200));
        assert_eq!(occupancy.next(3..200), None);
        assert_eq!(occupancy.next(201..256), None);
        assert_eq!(occupancy.next_around(3..256, 201), Some(200));
        assert_eq!(occupancy.next_around(201..256, 230), None);
    }
}
