//! The keys of tasks and schedulers inside the crate, and the [`Entry`] that stands for a pending task.

use core::num::NonZeroU32;

use crate::clock::tick::Moment;

/// Identifies one task for ever: a slot, and the number of the task's first filing there. A stale key matches nothing
/// (S10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskKey {
    pub(crate) slot: u32,
    /// It is not zero, so a `Result` of a key is returned in a register.
    birth: NonZeroU32,
}

impl TaskKey {
    /// The key of no task: no holder that is as worn as this one is used again.
    pub(crate) const NONE: TaskKey = TaskKey { slot: 0, birth: NonZeroU32::MAX };

    /// The birth of a holder whose page has gone back is 0. Then this is the key of no task.
    #[inline]
    pub(crate) fn new(slot: u32, birth: u32) -> TaskKey {
        TaskKey { slot, birth: NonZeroU32::new(birth).unwrap_or(NonZeroU32::MAX) }
    }

    pub(crate) fn birth(self) -> u32 {
        self.birth.get()
    }
}

/// Identifies a scheduler among those that are alive. It is not zero, which makes an `Option` of a handle as small as
/// the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SchedulerId(NonZeroU32);

impl SchedulerId {
    pub(crate) const FIRST: SchedulerId = SchedulerId(NonZeroU32::MIN);

    /// Returns the id with this number.
    pub(crate) fn of(number: u32) -> SchedulerId {
        NonZeroU32::new(number).map_or(SchedulerId::FIRST, SchedulerId)
    }

    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }
}

/// A pending task as the wheel and the queues of executors hold it: 16 bytes, by value. In a lane a stamp comes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) deadline: u64,
    /// The slot in the low 28 bits, then [`DUE_NOW`], the [`Runner`] and [`SERIES`], and in the upper half the number of
    /// the filing: see [`state`](crate::engine::slots::state). They are one field, so that an entry is passed in two
    /// registers.
    pub(crate) name: u64,
}

/// The task was due when it was scheduled, and does not wait for a tick (S5).
const DUE_NOW: u64 = 1 << 28;
/// The lowest bit of the code of the [`Runner`].
const CODE_AT: u32 = 29;
/// The task repeats.
const SERIES: u64 = 1 << 31;
pub(crate) const SLOT: u32 = DUE_NOW as u32 - 1;
const NUMBER_AT: u32 = 32;

/// The thread or the executor that runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// The scheduler's executor.
    Default = 0,
    /// The task's own executor.
    Own = 1,
    /// The tick thread itself. The task is a waker, and never a series.
    TickThread = 2,
    /// The same, and the waker is counted nowhere.
    TickThreadUncounted = 3,
}

impl Entry {
    #[inline]
    pub(crate) fn new(
        slot: u32,
        number: u32,
        deadline: Moment,
        is_due_now: bool,
        runner: Runner,
        is_series: bool,
    ) -> Entry {
        let due_now = if is_due_now { DUE_NOW } else { 0 };
        let series = if is_series { SERIES } else { 0 };
        let name = u64::from(slot) | due_now | (runner as u64) << CODE_AT | series;
        Entry { deadline: deadline.0, name: name | u64::from(number) << NUMBER_AT }
    }

    pub(crate) fn slot(self) -> u32 {
        self.name as u32 & SLOT
    }

    pub(crate) fn number(self) -> u32 {
        (self.name >> NUMBER_AT) as u32
    }

    pub(crate) fn moment(self) -> Moment {
        Moment(self.deadline)
    }

    pub(crate) fn is_due_now(self) -> bool {
        self.name & DUE_NOW != 0
    }

    /// Returns the entry of the same task that does not wait for a tick.
    pub(crate) fn due_now(self) -> Entry {
        Entry { name: self.name | DUE_NOW, ..self }
    }

    /// Returns the entry of the same task, filed again under a later deadline.
    pub(crate) fn filed_again(self, deadline: Moment, number: u32) -> Entry {
        let kept = u64::from(self.name as u32) & !DUE_NOW;
        Entry { deadline: deadline.0, name: kept | u64::from(number) << NUMBER_AT }
    }

    pub(crate) fn runner(self) -> Runner {
        match self.name >> CODE_AT & 0b11 {
            0 => Runner::Default,
            1 => Runner::Own,
            2 => Runner::TickThread,
            _ => Runner::TickThreadUncounted,
        }
    }

    /// Returns true for a waker, which the tick thread wakes.
    pub(crate) fn is_waker(self) -> bool {
        matches!(self.runner(), Runner::TickThread | Runner::TickThreadUncounted)
    }

    /// Returns false for a waker that is counted nowhere.
    pub(crate) fn is_counted(self) -> bool {
        self.runner() != Runner::TickThreadUncounted
    }

    pub(crate) fn is_series(self) -> bool {
        self.name & SERIES != 0
    }

    /// Returns true if this is a later filing of the same slot than the other one, so that the other one is stale.
    #[inline]
    pub(crate) fn follows(self, other: Entry) -> bool {
        // Numbers may wrap (WORD-3 in `state`), and two that are in the lanes at a time are never far apart.
        let is_same_slot = self.slot() == other.slot();
        is_same_slot && (1..=u32::MAX / 2).contains(&self.number().wrapping_sub(other.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_parts_apart() {
        use Runner::{Default, Own, TickThread, TickThreadUncounted};
        for runner in [Default, Own, TickThread, TickThreadUncounted] {
            for (now, is_series) in [(false, false), (false, true), (true, false), (true, true)] {
                let entry = Entry::new(SLOT, u32::MAX, Moment(42), now, runner, is_series);
                let parts = (entry.slot(), entry.number(), entry.is_due_now(), entry.is_series());
                assert_eq!(parts, (SLOT, u32::MAX, now, is_series));
                assert_eq!((entry.runner(), entry.moment()), (runner, Moment(42)));
                assert_eq!(entry.is_waker(), matches!(runner, TickThread | TickThreadUncounted));
                assert_eq!(entry.is_counted(), runner != TickThreadUncounted);
                assert!(entry.due_now().is_due_now() && entry.due_now().runner() == runner);
            }
        }
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn a_later_filing_follows_also_where_numbers_wrap() {
        let entry = |slot, number| Entry::new(slot, number, Moment(5), false, Runner::Own, false);
        assert!(entry(3, 8).follows(entry(3, 7)) && entry(3, 0).follows(entry(3, u32::MAX)));
        let stay = [entry(4, 8), entry(3, 7), entry(3, 6), entry(3, u32::MAX)];
        assert!(!stay.iter().any(|other| other.follows(entry(3, 7))));
    }
}
