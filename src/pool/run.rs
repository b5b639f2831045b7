//! Entries that came in the order of their deadlines, as timeouts of one length do: a queue from whose
//! middle entries can be taken, at the cost of a hole.
//!
//! ```text
//!   first ──> [ entry ][ hole ][ entry ][ hole ][ hole ][ entry ] <── push
//!     number 17      18      19      20      21      22
//! ```
//!
//! - RUN-1 Entries are in order, by deadline and by sequence.
//! - RUN-2 There is no hole at either end, and no more than there are entries, but for a few.
//!
//! An entry is found by its number, which stays while the holes do: when they are closed, numbers
//! change, and the caller is told the new ones.

use std::collections::VecDeque;

use super::heap::{Entry, SMALL};
use super::moment::Moment;

/// The bit that says that a position is a number in a run.
pub(super) const RUN: u32 = 1 << 31;

/// The slot of a hole.
const HOLE: u32 = u32::MAX;

pub(super) struct Run {
    entries: VecDeque<Entry>,
    first: u32,
    holes: usize,
}

impl Run {
    pub(super) fn new() -> Run {
        Run { entries: VecDeque::new(), first: 0, holes: 0 }
    }

    /// How many entries it has.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.holes
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// How many entries are overdue.
    pub(super) fn overdue(&self, now: Moment) -> usize {
        let overdue = self.entries.iter().take_while(|entry| entry.moment <= now);
        overdue.filter(|entry| entry.slot != HOLE).count()
    }

    /// Whether an entry of this moment, the newest of all, comes last.
    #[inline]
    pub(super) fn takes(&self, moment: Moment) -> bool {
        let is_after =
            |last: &Entry| last.moment < moment || last.moment == moment && !moment.is_vague();
        self.entries.back().is_none_or(is_after) && self.entries.len() < RUN as usize
    }

    /// Appends an entry; where it is.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) -> u32 {
        self.entries.push_back(entry);
        self.position(self.entries.len() - 1)
    }

    #[inline]
    fn position(&self, at: usize) -> u32 {
        self.first.wrapping_add(at as u32) | RUN
    }

    /// Takes the first entry out, and tells those that move to another position.
    pub(super) fn pop(&mut self, moved: impl FnMut(&Entry, u32)) -> Option<Entry> {
        let entry = self.pop_front()?;
        self.tidy(moved);
        Some(entry)
    }

    fn pop_front(&mut self) -> Option<Entry> {
        self.first = self.first.wrapping_add(1);
        self.entries.pop_front()
    }

    fn index(&self, position: u32) -> usize {
        (position.wrapping_sub(self.first) & !RUN) as usize
    }

    /// Takes the entry at a position out, and tells those that move to another.
    pub(super) fn remove(&mut self, position: u32, moved: impl FnMut(&Entry, u32)) {
        let at = self.index(position);
        self.entries[at].slot = HOLE;
        self.holes += 1;
        self.tidy(moved);
    }

    /// RUN-2.
    fn tidy(&mut self, moved: impl FnMut(&Entry, u32)) {
        self.trim();
        if self.holes > self.len() + SMALL {
            self.close_holes(moved);
        }
    }

    /// No hole at either end; each is passed once. And not much more room than is needed.
    fn trim(&mut self) {
        while self.entries.front().is_some_and(|first| first.slot == HOLE) {
            self.pop_front();
            self.holes -= 1;
        }
        while self.entries.back().is_some_and(|last| last.slot == HOLE) {
            self.entries.pop_back();
            self.holes -= 1;
        }
        let room = self.entries.capacity();
        if room > SMALL && self.entries.len() < room / 4 {
            self.entries.shrink_to((2 * self.entries.len()).max(SMALL));
        }
    }

    /// As many entries have gone since the last time as are moved here, so it costs each of them a
    /// move.
    #[cold]
    fn close_holes(&mut self, mut moved: impl FnMut(&Entry, u32)) {
        self.entries.retain(|entry| entry.slot != HOLE);
        self.holes = 0;
        self.trim();
        for (at, entry) in self.entries.iter().enumerate() {
            moved(entry, self.position(at));
        }
    }

    /// The entries, in order, and where they are.
    pub(super) fn positions(&self) -> impl Iterator<Item = (&Entry, u32)> {
        let all = self.entries.iter().enumerate().filter(|(_, entry)| entry.slot != HOLE);
        all.map(|(at, entry)| (entry, self.position(at)))
    }

    /// Asserts RUN-1 and RUN-2.
    pub(super) fn check_invariants(&self, is_before: impl Fn(&Entry, &Entry) -> bool) {
        let entries: Vec<_> = self.positions().map(|(entry, _)| entry).collect();
        assert!(entries.windows(2).all(|pair| is_before(pair[0], pair[1])), "RUN-1");
        assert_eq!(entries.len(), self.len(), "the number of holes");
        let ends = [self.entries.front(), self.entries.back()];
        assert!(ends.into_iter().flatten().all(|end| end.slot != HOLE), "RUN-2");
        assert!(self.holes <= self.len() + SMALL, "RUN-2: too many holes");
        let room = self.entries.capacity();
        assert!(room <= SMALL || self.entries.len() >= room / 4, "too much room");
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}
