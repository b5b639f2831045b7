//! How many tasks may be pending: the one count that all threads share, and only when
//! [`Builder::max_pending`](crate::Builder::max_pending) asks for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Places for pending tasks (S25).
pub(crate) struct Limit {
    places: u64,
    used: AtomicU64,
}

impl Limit {
    pub(crate) fn new(places: usize) -> Limit {
        Limit { places: places as u64, used: AtomicU64::new(0) }
    }

    /// Takes a place; false when there is none. Relaxed: the count is exact by itself, and
    /// publishes nothing.
    pub(crate) fn enter(&self) -> bool {
        let take = |used: u64| (used < self.places).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Frees a place.
    pub(crate) fn leave(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn s25_a_place_is_taken_once() {
        let limit = Limit::new(2);
        assert_eq!([limit.enter(), limit.enter(), limit.enter()], [true, true, false]);
        limit.leave();
        assert!(limit.enter());
        assert!(!Limit::new(0).enter());
    }
}
