//! The ledger of a storm: every task has one id, and every id is booked exactly once.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::digits;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Ran,
    Cancelled,
    Returned,
    Refused,
    Dropped,
}

const ENDS: [(End, &str); 5] = [
    (End::Ran, "ran"),
    (End::Cancelled, "cancelled"),
    (End::Returned, "returned"),
    (End::Refused, "refused"),
    (End::Dropped, "dropped"),
];

/// The end of each id.
pub(crate) struct Ledger {
    ends: Vec<AtomicU8>,
    /// How many ids are booked.
    booked: AtomicUsize,
    doubled: AtomicUsize,
}

impl Ledger {
    pub(crate) fn new(ids: usize) -> Arc<Ledger> {
        let ends = (0..ids).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Ledger { ends, booked: AtomicUsize::new(0), doubled: AtomicUsize::new(0) })
    }

    /// Each id may be booked once. A second booking does not panic, because in a task nobody would see
    /// that, because a scheduler catches it.
    pub(crate) fn book(&self, id: usize, end: End) {
        let before = self.ends[id].fetch_or(1 << end as u8, Ordering::AcqRel);
        let sum = if before == 0 { &self.booked } else { &self.doubled };
        sum.fetch_add(1, Ordering::Release);
    }

    /// A page of the ledger that a task captures. It books the run of the task, or its drop without a run.
    pub(crate) fn page(self: &Arc<Self>, id: usize) -> Page {
        Page { ledger: Arc::clone(self), id, has_run: false }
    }

    fn count(&self, booked: u8) -> usize {
        self.ends.iter().filter(|end| end.load(Ordering::Acquire) == booked).count()
    }

    pub(crate) fn is_booked(&self, id: usize) -> bool {
        self.ends[id].load(Ordering::Acquire) != 0
    }

    pub(crate) fn has_run(&self, id: usize) -> bool {
        self.ends[id].load(Ordering::Acquire) == 1 << End::Ran as u8
    }

    /// Returns true if all ids are booked.
    pub(crate) fn is_closed(&self) -> bool {
        self.booked.load(Ordering::Acquire) == self.ends.len()
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            ids: self.ends.len(),
            lost: self.count(0),
            doubled: self.doubled.load(Ordering::Relaxed),
            ends: ENDS.map(|(end, _)| self.count(1 << end as u8)),
        }
    }
}

/// Books the end of the task that captures it.
pub(crate) struct Page {
    ledger: Arc<Ledger>,
    id: usize,
    has_run: bool,
}

impl Page {
    pub(crate) fn run(mut self) {
        self.has_run = true;
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.ledger.book(self.id, if self.has_run { End::Ran } else { End::Dropped });
    }
}

/// The sums of a ledger, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) ids: usize,
    lost: usize,
    doubled: usize,
    ends: [usize; ENDS.len()],
}

impl Tally {
    pub(crate) fn of(&self, end: End) -> usize {
        self.ends[end as usize]
    }

    /// Checks that no id was lost, and none was booked twice.
    pub(crate) fn assert_balanced(&self) {
        assert_eq!((self.lost, self.doubled), (0, 0), "lost and doubled; {self}");
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.ids += other.ids;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.ends.iter_mut().zip(other.ends).for_each(|(sum, end)| *sum += end);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lost, {} doubled", digits(self.lost), digits(self.doubled))?;
        for (end, name) in ENDS.iter().filter(|(end, _)| self.of(*end) > 0) {
            write!(f, ", {} {name}", digits(self.of(*end)))?;
        }
        Ok(())
    }
}
