//! What several tests and benches use.

#![allow(dead_code, reason = "each of them uses a part of it")]

use std::time::Duration;

/// A small generator of random numbers, the same for the same seed: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// Often small, sometimes huge: every order of magnitude below 2^`bits` is as likely as another.
    pub(crate) fn of_any_size(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits);
        self.next() >> (64 - bits).min(63)
    }

    /// A service's timeout: 5 to 60 seconds.
    pub(crate) fn timeout(&mut self) -> Duration {
        Duration::from_micros(5_000_000 + self.below(55_000_000))
    }
}

/// A number from the environment, for those who want more runs or a certain seed.
pub(crate) fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
