//! The model: a sorted map of the tasks that wait, and a few rules, which are the promises of the crate.
//!
//! The model has a clock of its own. It gets every call before the crate does, and never asks the crate anything. It computes
//! in another way than the crate: it sorts all waiting tasks for each turn, and adds period to period.
//!
//! | part | what it predicts |
//! | --- | --- |
//! | `plan.rs` | what is asked of a task, and where it stands |
//! | the way in | what is refused, when a task will run, how many hold a place |
//! | `turns.rs` | which task is next in line, when a series is due again, when to come back |
//! | `moves.rs` | which task is due when, after its deadline was moved |
//! | the ways out | who wins a cancel, what is left over, whose closure may be dropped |
//!
//! - MODEL-1 A turn runs what was scheduled before it began and is due: by deadline, and at equal
//!   deadlines in the order of scheduling (S3). A stop in the middle of it takes effect after it.
//! - MODEL-2 While an executor refuses tasks, the promises say less: a task is not early, and may be late
//!   or out of order (S18). Then the model is not [exact](Model::is_exact).
//! - MODEL-3 A task takes one way out, and its closure is dropped once, on that way (S20).

use std::collections::BTreeSet;

use tickwheel::{Precision, ScheduleError};

use super::plan::{End, NEVER, Plan, Repeats, State, Task, Time};

/// The thread of control that runs tasks at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driving {
    Nobody,
    Turn,
    Advance,
    /// The caller runs leftovers.
    ByHand,
}

/// The settings of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) tick: Time,
    pub(crate) precision: Precision,
    pub(crate) places: Option<usize>,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ran: u64,
    pub(crate) panicked: u64,
    /// The greatest lateness of a run.
    pub(crate) latest: Time,
}

pub(crate) struct Model {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) tasks: Vec<Task>,
    /// The time of the run, the number, and the name of each task.
    pub(crate) waiting: BTreeSet<(Time, u64, usize)>,
    pub(crate) numbers: u64,
    /// How many tasks have come in, or were moved to an earlier time.
    pub(crate) news: u64,
    pub(crate) counts: Counts,
    /// The order may be another one than that of the promises (MODEL-2).
    pub(crate) is_exact: bool,
    pub(crate) driving: Driving,
    /// The tasks of this turn that have not run yet, in order: the deadline under which each came up, and its number.
    pub(crate) queue: BTreeSet<(Time, u64, usize)>,
    /// When this turn began, and how much had come in by then.
    pub(crate) turn: (Time, u64),
    /// A task that was up in its turn was moved out of it. If it had been handed over by then, the engine comes back once
    /// more than is needed.
    pub(crate) has_moved_out: bool,
    /// What was due up to then has come up. `None` before the first turn.
    pub(crate) up_until: Option<Time>,
    pub(crate) running: Option<usize>,
    pub(crate) ending: Ending,
}

/// The steps of a scheduler towards its end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Nothing is accepted any more.
    pub(crate) is_closed: bool,
    /// Somebody will take the leftovers.
    pub(crate) is_wanted: bool,
    /// The end has come. These tasks were returned, in order.
    pub(crate) leftovers: Option<Vec<usize>>,
    /// Leftovers are being dropped.
    pub(crate) drops: bool,
}

impl Model {
    pub(crate) fn new(settings: Settings) -> Model {
        Model {
            settings,
            now: 0,
            tasks: Vec::new(),
            waiting: BTreeSet::new(),
            numbers: 0,
            news: 0,
            counts: Counts::default(),
            is_exact: true,
            driving: Driving::Nobody,
            queue: BTreeSet::new(),
            turn: (0, 0),
            has_moved_out: false,
            up_until: None,
            running: None,
            ending: Ending::default(),
        }
    }

    // ----- the way in ----------------------------------------------------------------------

    /// Returns a name for a task, and true if it is accepted (S23, S25).
    pub(crate) fn schedule(&mut self, plan: Plan) -> (usize, Result<(), ScheduleError>) {
        let is_full = self.settings.places.is_some_and(|places| self.held() >= places);
        let verdict = match () {
            () if self.ending.is_closed => Err(ScheduleError::Closed),
            () if is_full => Err(ScheduleError::Full),
            () => Ok(()),
        };
        let (deadline, id) = (plan.deadline, self.tasks.len());
        self.tasks.push(Task::new(plan));
        if verdict.is_ok() {
            self.wait(id, deadline);
        }
        (id, verdict)
    }

    pub(crate) fn wait(&mut self, id: usize, deadline: Time) {
        let is_urgent = deadline <= self.now;
        self.news += 1;
        self.wait_again(id, deadline);
        let task = &mut self.tasks[id];
        (task.filed, task.is_urgent, task.state) = (deadline, is_urgent, State::Waiting);
    }

    /// A task waits for this deadline, and counts as scheduled now.
    pub(crate) fn wait_again(&mut self, id: usize, deadline: Time) {
        let (at, number) = (self.runs_at(deadline), self.numbers);
        self.numbers += 1;
        self.waiting.insert((at, number, id));
        let task = &mut self.tasks[id];
        (task.at, task.number, task.deadline) = (at, number, deadline);
    }

    /// Returns when a task of this deadline runs if it begins to wait now (S1, S2, S5).
    pub(crate) fn runs_at(&self, deadline: Time) -> Time {
        let tick = self.settings.tick;
        match self.settings.precision {
            _ if deadline <= self.now => self.now,
            _ if deadline == NEVER => NEVER,
            Precision::Exact => deadline,
            Precision::Tick => (deadline.div_ceil(tick) * tick).max(self.now),
            unknown => unreachable!("{unknown:?} has no rule here"),
        }
    }

    /// Returns how many tasks count as pending: a task until its run starts, a series until it ends (S25).
    pub(crate) fn held(&self) -> usize {
        let is_held = |id: &usize| {
            let task = &self.tasks[*id];
            task.state == State::Running
                && task.plan.repeats != Repeats::Not
                && self.ending.leftovers.is_none()
        };
        self.waiting.len() + self.running.iter().filter(|id| is_held(id)).count()
    }

    /// When the next task will run.
    pub(crate) fn next(&self) -> Option<Time> {
        self.waiting.first().map(|(at, ..)| *at).filter(|at| *at != NEVER)
    }

    /// How much has come in since the last turn began.
    pub(crate) fn news_since_the_turn(&self) -> u64 {
        self.news - self.turn.1
    }

    // ----- the ways out --------------------------------------------------------------------

    /// Cancels by a handle, or by the leftover. Returns true if the cancel wins (S8).
    pub(crate) fn cancel(&mut self, id: usize) -> bool {
        let is_last_run = self.is_last_run(id);
        let task = &mut self.tasks[id];
        let wins = match task.state {
            State::Waiting | State::Returned => true,
            State::Running => task.plan.repeats != Repeats::Not && !is_last_run,
            State::Moved => {
                task.state = State::Over(End::CancelledThere);
                return true;
            }
            State::Over(_) => false,
        };
        if wins {
            self.waiting.remove(&(task.at, task.number, id));
            task.state = State::Over(End::Cancelled);
        }
        wins
    }

    /// Cancels a leftover by its `PendingTask`.
    pub(crate) fn call_off(&mut self, id: usize) -> bool {
        let wins = self.cancel(id);
        if wins {
            self.tasks[id].state = State::Over(End::CalledOff);
        }
        wins
    }

    /// Notes the end of a leftover.
    pub(crate) fn leave(&mut self, id: usize, end: End) {
        let task = &mut self.tasks[id];
        assert_eq!(task.state, State::Returned, "task {id}");
        task.state = State::Over(end);
    }

    /// A leftover waits at another scheduler from now on.
    pub(crate) fn moves(&mut self, id: usize) {
        assert_eq!(self.tasks[id].state, State::Returned, "task {id}");
        self.tasks[id].state = State::Moved;
    }

    /// A task that has moved is dropped there, if it was not cancelled.
    pub(crate) fn leave_there(&mut self, id: usize) {
        if self.tasks[id].state == State::Moved {
            self.tasks[id].state = State::Over(End::DroppedThere);
        }
    }

    /// From now on nothing is accepted (S23). Outside of a turn, an end that somebody waits for comes at once.
    pub(crate) fn close(&mut self, is_wanted: bool) {
        self.ending.is_closed = true;
        self.ending.is_wanted |= is_wanted;
        if is_wanted && !self.is_turning() {
            self.shut_down();
        }
    }

    /// Ends the scheduler. The tasks that wait are returned, in order of their deadlines (S20).
    pub(crate) fn shut_down(&mut self) {
        if self.ending.leftovers.is_some() {
            return;
        }
        self.ending.is_closed = true;
        let waiting = std::mem::take(&mut self.waiting);
        let mut ids: Vec<_> = waiting.into_iter().map(|(.., id)| id).collect();
        ids.sort_by_key(|id| (self.tasks[*id].deadline, self.tasks[*id].number));
        for id in &ids {
            let task = &mut self.tasks[*id];
            (task.state, task.returned_at) = (State::Returned, task.deadline);
        }
        self.ending.leftovers = Some(ids);
        self.ending.drops = !self.ending.is_wanted; // S24
    }

    /// Returns the leftovers that a close gets, in order of the deadlines that they have now. One that was cancelled in
    /// the meantime stands where it was.
    pub(crate) fn expected_leftovers(&self) -> Vec<usize> {
        let wanted = self.ending.leftovers.iter().filter(|_| !self.ending.drops);
        let mut ids: Vec<_> = wanted.flatten().copied().collect();
        ids.sort_by_key(|id| (self.place_of_leftover(*id), self.tasks[*id].number));
        ids
    }

    /// Where a leftover stands among the others.
    pub(crate) fn place_of_leftover(&self, id: usize) -> Time {
        let task = &self.tasks[id];
        if task.state == State::Returned { task.deadline } else { task.returned_at }
    }

    /// Returns true for a series in the one run that it has as a leftover.
    pub(crate) fn is_last_run(&self, id: usize) -> bool {
        self.driving == Driving::ByHand && self.tasks[id].plan.repeats != Repeats::Not
    }

    /// Checks that a closure may be dropped now (MODEL-3). Returns true if the drop belongs to the run of a one-shot.
    pub(crate) fn closure_falls(&mut self, id: usize) -> bool {
        let is_unwanted = self.ending.is_closed && !self.ending.is_wanted;
        if is_unwanted && self.next_in_turn().is_none() && self.tasks[id].state == State::Waiting {
            self.shut_down(); // the turn after the one that closed
        }
        let drops = self.ending.drops;
        let task = &mut self.tasks[id];
        assert!(task.has_closure, "the closure of task {id} is dropped twice");
        assert_ne!(self.running, Some(id), "a closure is dropped in its run");
        match task.state {
            State::Returned if drops => task.state = State::Over(End::Dropped),
            State::Over(_) => {}
            _ => panic!("the closure of task {id} is dropped: {task:?}"),
        }
        task.state == State::Over(End::Ran) && task.plan.repeats == Repeats::Not
    }

    // ----- sight ---------------------------------------------------------------------------

    /// How many tasks stand there.
    pub(crate) fn count(&self, state: State) -> usize {
        self.tasks.iter().filter(|task| task.state == state).count()
    }

    /// Checks between two calls that each closure that is alive has a reason (S9), and that nothing runs.
    pub(crate) fn check_that_all_is_quiet(&self) {
        assert!(self.running.is_none() && self.driving == Driving::Nobody);
        for (id, task) in self.tasks.iter().enumerate() {
            let is_kept = matches!(task.state, State::Waiting | State::Returned | State::Moved);
            assert!(task.has_closure == is_kept, "the closure of task {id}: {task:?}");
        }
    }
}
