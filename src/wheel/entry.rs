//! The names of tasks and schedulers inside the crate, and the [`Entry`] that stands for a pending task.

use std::num::NonZeroU32;

use crate::time::tick::Moment;

/// Names one task for ever: a slot, and which of the tasks that used it. A stale key matches
/// nothing (S10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Names a scheduler among those that are alive. It is not zero, so that a handle has a value to
/// spare, and is a word shorter for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SchedulerId(NonZeroU32);

impl SchedulerId {
    pub(crate) const FIRST: SchedulerId = SchedulerId(NonZeroU32::MIN);

    /// The next one, and after the last the first again.
    pub(crate) fn next(self) -> SchedulerId {
        self.0.checked_add(1).map_or(SchedulerId::FIRST, SchedulerId)
    }
}

/// A pending task as the lanes, the wheel and the executors' queues hold it, by value: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) deadline: u64,
    /// The slot in the low 28 bits, then the flags.
    pub(crate) slot_and_flags: u32,
    pub(crate) generation: u32,
}

/// The task was due when it was scheduled, and waits for no tick (S5).
const DUE_NOW: u32 = 1 << 28;
/// Where the code begins that tells the [`Runner`], and the [`Turn`] of a series.
const CODE_AT: u32 = 29;
const SERIES: u32 = 4;
pub(crate) const SLOT: u32 = DUE_NOW - 1;

/// The executor, or the thread, that runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// The scheduler's executor.
    Default = 0,
    /// An executor of its own.
    Own = 2,
    /// The tick thread itself: it is a waker, and never a series.
    TickThread = 3,
}

/// Which run of its series an entry stands for: each run has another turn than the one before. So an entry whose
/// turn is not that of the task's word is of a run that has started since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Even = 0,
    Odd = 1,
}

impl Entry {
    /// `turn`: `None` for a task that does not repeat.
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

    /// The same task, to be handed over without waiting for a tick.
    pub(crate) fn due_now(self) -> Entry {
        Entry { slot_and_flags: self.slot_and_flags | DUE_NOW, ..self }
    }

    pub(crate) fn runner(self) -> Runner {
        match self.slot_and_flags >> CODE_AT {
            3 => Runner::TickThread,
            code if code & Runner::Own as u32 != 0 => Runner::Own,
            _ => Runner::Default,
        }
    }

    pub(crate) fn is_series(self) -> bool {
        self.slot_and_flags >> CODE_AT & SERIES != 0
    }

    /// Which run of its series this is; `None` for a task that does not repeat.
    pub(crate) fn turn(self) -> Option<Turn> {
        let is_odd = self.slot_and_flags >> CODE_AT & 1 != 0;
        self.is_series().then_some(if is_odd { Turn::Odd } else { Turn::Even })
    }

    /// Whether it has had the same holder later than the other: then that one's task is over. A task
    /// that is cancelled as soon as it was scheduled is found so without a look at its holder, which its
    /// producer may be writing again. Entries of two threads may come in either order, so the generations
    /// tell, which only grow (WORD-3).
    #[inline]
    pub(crate) fn follows(self, other: Entry) -> bool {
        self.key().slot == other.key().slot && self.generation > other.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_it_was_made_of() {
        let key = TaskKey { slot: SLOT, generation: u32::MAX };
        for runner in [Runner::Default, Runner::Own, Runner::TickThread] {
            for turn in [None, Some(Turn::Even), Some(Turn::Odd)] {
                let turn = turn.filter(|_| runner != Runner::TickThread);
                for now in [false, true] {
                    let entry = Entry::new(key, Moment(42), now, runner, turn);
                    assert_eq!((entry.key(), entry.is_due_now()), (key, now));
                    assert_eq!((entry.runner(), entry.turn()), (runner, turn));
                    assert!(entry.due_now().is_due_now() && entry.due_now().turn() == turn);
                }
            }
        }
        assert_eq!(size_of::<Entry>(), 16);
    }
}
