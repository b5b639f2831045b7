//! The keys of tasks and schedulers inside the crate, and the [`Entry`] that stands for a pending task.

use core::num::NonZeroU32;

use crate::clock::tick::Moment;

/// Identifies one task for ever: a slot, and a generation, which tells the tasks apart that have used the slot. A stale
/// key matches nothing (S10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Identifies a scheduler among those that are alive. It is not zero, which makes an `Option` of a handle as small as
/// the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SchedulerId(NonZeroU32);

impl SchedulerId {
    pub(crate) const FIRST: SchedulerId = SchedulerId(NonZeroU32::MIN);

    /// Returns the next id, and the first again after the last.
    pub(crate) fn next(self) -> SchedulerId {
        self.0.checked_add(1).map_or(SchedulerId::FIRST, SchedulerId)
    }
}

/// A pending task as the wheel and the queues of executors hold it: 16 bytes, by value. In a lane a stamp comes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) deadline: u64,
    /// The slot in the low 28 bits, then [`DUE_NOW`], then the [`Runner`] and the [`Turn`].
    pub(crate) slot_and_flags: u32,
    pub(crate) generation: u32,
}

/// The task was due when it was scheduled, and does not wait for a tick (S5).
const DUE_NOW: u32 = 1 << 28;
/// The lowest bit of the code of the [`Runner`], and of the [`Turn`] of a series.
const CODE_AT: u32 = 29;
const SERIES: u32 = 4;
/// The code of a waker that is counted nowhere. The tick thread runs it.
const UNCOUNTED: u32 = 1;
pub(crate) const SLOT: u32 = DUE_NOW - 1;

/// The executor or the thread that runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// The scheduler's executor.
    Default = 0,
    /// The task's own executor.
    Own = 2,
    /// The tick thread itself. The task is a waker, and never a series.
    TickThread = 3,
}

/// The parity of the run of a series that an entry stands for. If it is not the turn of the task's word, that run has
/// started since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Even = 0,
    Odd = 1,
}

impl Entry {
    /// Returns an entry. `turn` is `None` if the task does not repeat.
    #[inline]
    pub(crate) fn new(
        key: TaskKey,
        deadline: Moment,
        due_now: bool,
        runner: Runner,
        turn: Option<Turn>,
    ) -> Entry {
        let due_now = if due_now { DUE_NOW } else { 0 };
        let code = runner as u32 | turn.map_or(0, |turn| SERIES | turn as u32);
        Entry {
            deadline: deadline.0,
            slot_and_flags: key.slot | due_now | code << CODE_AT,
            generation: key.generation,
        }
    }

    pub(crate) fn key(self) -> TaskKey {
        TaskKey { slot: self.slot_and_flags & SLOT, generation: self.generation }
    }

    pub(crate) fn moment(self) -> Moment {
        Moment(self.deadline)
    }

    pub(crate) fn is_due_now(self) -> bool {
        self.slot_and_flags & DUE_NOW != 0
    }

    /// Returns the entry of the same waker, which is counted nowhere.
    pub(crate) fn uncounted(self) -> Entry {
        debug_assert_eq!(self.runner(), Runner::TickThread, "a task is counted");
        Entry { slot_and_flags: self.key().slot | UNCOUNTED << CODE_AT, ..self }
    }

    /// Returns false for a waker that is counted nowhere.
    pub(crate) fn is_counted(self) -> bool {
        self.slot_and_flags >> CODE_AT != UNCOUNTED
    }

    /// Returns the entry of the same task that does not wait for a tick.
    pub(crate) fn due_now(self) -> Entry {
        Entry { slot_and_flags: self.slot_and_flags | DUE_NOW, ..self }
    }

    /// Returns the entry of the same task under a later deadline.
    pub(crate) fn filed_under(self, deadline: Moment) -> Entry {
        let slot_and_flags = self.slot_and_flags & !DUE_NOW;
        Entry { deadline: deadline.0, slot_and_flags, ..self }
    }

    pub(crate) fn runner(self) -> Runner {
        match self.slot_and_flags >> CODE_AT {
            3 | UNCOUNTED => Runner::TickThread,
            code if code & Runner::Own as u32 != 0 => Runner::Own,
            _ => Runner::Default,
        }
    }

    pub(crate) fn is_series(self) -> bool {
        self.slot_and_flags >> CODE_AT & SERIES != 0
    }

    /// Returns the turn of the run of a series, or `None` if the task does not repeat.
    pub(crate) fn turn(self) -> Option<Turn> {
        let is_odd = self.slot_and_flags >> CODE_AT & 1 != 0;
        self.is_series().then_some(if is_odd { Turn::Odd } else { Turn::Even })
    }

    /// Returns true if this task had the same slot after the other one, so that the other one is over. This finds a task
    /// that was cancelled soon after it was scheduled, without a load of its holder, which the producer may be writing
    /// again. The entries of two threads may come in either order, so the generations are compared, which only grow
    /// (WORD-3).
    #[inline]
    pub(crate) fn follows(self, other: Entry) -> bool {
        self.key().slot == other.key().slot && self.generation > other.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_parts_apart() {
        let key = TaskKey { slot: SLOT, generation: u32::MAX };
        for runner in [Runner::Default, Runner::Own, Runner::TickThread] {
            for turn in [None, Some(Turn::Even), Some(Turn::Odd)] {
                let turn = turn.filter(|_| runner != Runner::TickThread);
                for now in [false, true] {
                    let entry = Entry::new(key, Moment(42), now, runner, turn);
                    assert_eq!((entry.key(), entry.is_due_now()), (key, now));
                    assert_eq!((entry.runner(), entry.turn()), (runner, turn));
                    assert!(entry.due_now().is_due_now() && entry.due_now().turn() == turn);
                    assert!(entry.is_counted());
                }
            }
        }
        let waker = Entry::new(key, Moment(42), false, Runner::TickThread, None).uncounted();
        assert_eq!((waker.key(), waker.runner(), waker.turn()), (key, Runner::TickThread, None));
        assert!(!waker.is_counted() && !waker.is_series() && !waker.is_due_now());
        assert_eq!(size_of::<Entry>(), 16);
    }
}
