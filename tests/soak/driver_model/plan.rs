//! The plan of a task, and its state.

/// Nanoseconds since the world began.
pub(crate) type Time = u64;

pub(crate) const NEVER: Time = Time::MAX;

/// The repetition of a task, and its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    Not,
    Burst(Time),
    Skip(Time),
    Delay(Time),
    Gap(Time),
}

impl Repeats {
    pub(crate) fn period(self) -> Option<Time> {
        match self {
            Repeats::Not => None,
            Repeats::Burst(period)
            | Repeats::Skip(period)
            | Repeats::Delay(period)
            | Repeats::Gap(period) => Some(period),
        }
    }
}

/// The plan of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) deadline: Time,
    pub(crate) repeats: Repeats,
    /// The task ends by itself after this many runs.
    pub(crate) runs: Option<u64>,
    /// The last of them panics.
    pub(crate) panics: bool,
    /// It was given to the other executor.
    pub(crate) is_elsewhere: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnds {
    GoesOn,
    Breaks,
    Panics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Running,
    /// It is among the leftovers.
    Returned,
    /// It waits at another scheduler, or is among the leftovers of that one.
    Moved,
    Over(End),
}

/// The ways to end (MODEL-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has run, and will not run again.
    Ran,
    Cancelled,
    /// Cancelled as a leftover.
    CalledOff,
    Dropped,
    /// At another scheduler.
    CancelledThere,
    DroppedThere,
    Refused,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) plan: Plan,
    pub(crate) state: State,
    /// Of the next run.
    pub(crate) deadline: Time,
    /// When the next run is to start.
    pub(crate) at: Time,
    /// The deadline under which it came in, if it was moved further away since then. It comes up then, and waits again.
    pub(crate) filed: Time,
    /// Its deadline was moved. Then it has no promised place among others of the same deadline (S3).
    pub(crate) was_moved: bool,
    /// The deadline that its next run was given in this one.
    pub(crate) moved_to: Option<Time>,
    /// It came in to run at once.
    pub(crate) is_urgent: bool,
    /// The deadline that it had when it was returned.
    pub(crate) returned_at: Time,
    /// Counted over all tasks, in the order in which they began to wait.
    pub(crate) number: u64,
    pub(crate) runs: u64,
    /// Its closure has not been dropped yet.
    pub(crate) has_closure: bool,
}

impl Task {
    /// A task that is not accepted, until somebody says that it is.
    pub(crate) fn new(plan: Plan) -> Task {
        Task {
            plan,
            state: State::Over(End::Refused),
            deadline: plan.deadline,
            at: NEVER,
            filed: plan.deadline,
            was_moved: false,
            moved_to: None,
            returned_at: plan.deadline,
            is_urgent: false,
            number: 0,
            runs: 0,
            has_closure: true,
        }
    }
}
