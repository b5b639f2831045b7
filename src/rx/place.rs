//! Where a task is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where a task is in its home; a task has one for life. It is written under the lock of what the task is
/// in, so the home may move tasks.
#[derive(Debug)]
pub(super) struct Place(AtomicU64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// The room of one that waits for its time.
    Delayed(u64),
    /// The number of one that waits for its turn.
    Queued(u64),
    /// It has left.
    Gone,
}

impl Place {
    /// Set for those that are delayed. Numbers do not get that far.
    const DELAYED: u64 = 1 << 63;
    const GONE: u64 = u64::MAX;

    // Relaxed, because locks order all that matters. A strand has two: who holds `state` and reads a place in
    // `hands`, perhaps an old one, sees by its number that it is not in `incoming`; who holds `hands` then
    // and finds nothing there looks again.
    pub(super) fn get(&self) -> Spot {
        match self.0.load(Ordering::Relaxed) {
            Place::GONE => Spot::Gone,
            at if at & Place::DELAYED != 0 => Spot::Delayed(at & !Place::DELAYED),
            at => Spot::Queued(at),
        }
    }

    pub(super) fn set(&self, spot: Spot) {
        let at = match spot {
            Spot::Delayed(at) => at | Place::DELAYED,
            Spot::Queued(at) => at,
            Spot::Gone => Place::GONE,
        };
        self.0.store(at, Ordering::Relaxed);
    }
}

impl Default for Place {
    fn default() -> Place {
        Place(AtomicU64::new(Place::GONE))
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::sync::Weak;

    use super::super::home::{Entry, Home};
    use super::super::strand::Strand;
    use super::*;
    use crate::job::{Job, Once};

    /// A task of which only the place matters.
    pub(in crate::rx) fn husk() -> Entry {
        let nobody: Weak<dyn Home> = Weak::<Strand>::new();
        Job::new(nobody, Once(|| ()))
    }

    #[test]
    fn a_place_says_what_it_was_told() {
        let place = Place::default();
        assert_eq!(place.get(), Spot::Gone);
        for at in [0, 1, u64::from(u32::MAX), (1 << 62) + 5] {
            for spot in [Spot::Delayed(at), Spot::Queued(at), Spot::Gone] {
                place.set(spot);
                assert_eq!(place.get(), spot);
            }
        }
    }
}
