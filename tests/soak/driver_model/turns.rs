//! Turns and runs: the part of the [`Model`] that knows which task is next.
//!
//! A turn is the sorted list of the tasks that are due. A move of the time is one turn after another, each at the time of the
//! first task that waits.

use super::model::{Driving, Model};
use super::plan::{End, NEVER, Repeats, RunEnds, State, Task, Time};

// ----- turns -------------------------------------------------------------------------------

impl Model {
    /// A turn begins, or a move of the time, which is many of them.
    pub(crate) fn begin(&mut self, driving: Driving) {
        self.driving = driving;
        if self.ending.is_closed {
            self.shut_down();
        }
        if driving == Driving::Turn {
            self.open_turn(self.now);
        }
    }

    /// These leftovers are about to be run.
    pub(crate) fn begin_by_hand(&mut self, ids: Vec<usize>) {
        self.driving = Driving::ByHand;
        let places = (0..).zip(ids).map(|(number, id)| (self.place_of_leftover(id), number, id));
        self.queue = places.collect();
    }

    /// Returns true if the caller is inside a turn.
    pub(crate) fn is_turning(&self) -> bool {
        matches!(self.driving, Driving::Turn | Driving::Advance)
    }

    /// Returns true if a task belongs to this turn (MODEL-1).
    fn open_turn(&mut self, now: Time) {
        self.now = now;
        self.turn = (now, self.news);
        let up_until = self.settings.up_until(now);
        self.up_until = Some(up_until);
        let due = self.waiting.iter().filter(|(at, _, id)| {
            *at <= now || self.tasks[*id].filed <= up_until || self.tasks[*id].is_urgent
        });
        self.queue = due.map(|(_, number, id)| (self.tasks[*id].filed, *number, *id)).collect();
    }

    /// The next one in this turn that is still to run.
    pub(crate) fn next_in_turn(&mut self) -> Option<usize> {
        while let Some((place, number, id)) = self.queue.first().copied() {
            let state = self.tasks[id].state;
            match state {
                State::Waiting if self.driving == Driving::ByHand || self.comes_up(id, place) => {
                    return Some(id);
                }
                State::Returned => return Some(id),
                _ => {}
            }
            self.queue.remove(&(place, number, id));
        }
        None
    }

    /// Returns the task that runs next, at the time that the model's clock then shows.
    fn next_in_line(&mut self) -> Option<usize> {
        while self.next_in_turn().is_none() && !self.ending.is_closed {
            let (began, numbers) = self.turn;
            // What a slow run has made due may still come in its turn, if nothing new has come.
            let may_go_on = self.now > began && self.news == numbers;
            match (self.driving, self.next()) {
                (Driving::Advance, Some(at)) => self.open_turn(at.max(self.now)),
                (Driving::Turn, Some(at)) if at <= self.now && may_go_on => {
                    self.open_turn(self.now);
                }
                _ => break,
            }
        }
        self.next_in_turn()
    }

    /// Ends the turn. Returns when to come back.
    pub(crate) fn end(&mut self) -> Option<Time> {
        let left_out = self.next_in_turn();
        assert!(left_out.is_none() || !self.is_exact, "left out of its turn: {left_out:?}");
        self.driving = Driving::Nobody;
        self.queue.clear();
        let has_news = self.ending.is_closed || self.news > self.turn.1;
        match self.ending.leftovers {
            Some(_) => None,
            None if has_news => Some(self.now),
            None => self.comes_back(),
        }
    }
}

/// Returns true if two leftovers have, or had when they were returned, the same deadline.
fn are_equal(one: &Task, other: &Task) -> bool {
    one.deadline == other.deadline || one.returned_at == other.returned_at
}

// ----- runs --------------------------------------------------------------------------------

impl Model {
    /// Returns true if these tasks, which are in order of deadline, can come in no other order: none was moved that has the
    /// deadline of another one.
    pub(crate) fn order_tells(&self, ids: impl IntoIterator<Item = usize>) -> bool {
        let tasks: Vec<_> = ids.into_iter().map(|id| &self.tasks[id]).collect();
        let mut equal = tasks.chunk_by(|one, other| are_equal(one, other));
        equal.all(|equal| equal.len() == 1 || !equal.iter().any(|task| task.was_moved))
    }

    /// Returns true if a task of this turn may run before all those in front of it: they have the same deadline as it, or are
    /// filed under the same, and it was moved or they were.
    fn may_overtake(&self, id: usize) -> bool {
        let Some((mine, ..)) = self.queue.iter().find(|(.., one)| *one == id) else { return false };
        let me = &self.tasks[id];
        let mut before = self.queue.iter().take_while(|(.., one)| *one != id);
        before.all(|(place, _, one)| {
            let other = &self.tasks[*one];
            let is_in_line = matches!(other.state, State::Waiting | State::Returned);
            !is_in_line || place == mine && (other.was_moved || me.was_moved)
        })
    }

    /// Checks that a task may run now and here.
    pub(crate) fn run_begins(&mut self, id: usize, now: Time, is_elsewhere: bool) {
        if self.is_exact {
            let next = self.next_in_line();
            let tasks = [next, Some(id)].map(|id| id.map(|id| &self.tasks[id]));
            let is_next = next == Some(id) || self.may_overtake(id);
            assert!(is_next, "another one runs than is next in line: {tasks:?}");
        } else if self.is_turning() {
            self.now = self.now.max(now);
        }
        if self.is_exact {
            self.queue.retain(|(.., one)| *one != id);
        } else if self.queue.first().is_some_and(|(.., first)| *first == id) {
            self.queue.pop_first();
        }
        let by_hand = self.driving == Driving::ByHand;
        let task = &mut self.tasks[id];
        let before = if by_hand { State::Returned } else { State::Waiting };
        assert_eq!(task.state, before, "task {id} runs, {:?}: {task:?}", self.driving);
        assert_eq!(now, self.now, "at another time: {task:?}");
        assert!(by_hand || task.at <= now, "early: {task:?}");
        assert_eq!(is_elsewhere, task.plan.is_elsewhere && !by_hand, "on another executor");
        self.waiting.remove(&(task.at, task.number, id));
        task.state = State::Running;
        task.runs += 1;
        self.counts.ran += 1;
        self.counts.latest = self.counts.latest.max(now.saturating_sub(task.deadline));
        self.running = Some(id);
    }

    /// The last step of a run. Returns what the task has to return.
    pub(crate) fn run_ends(&mut self, id: usize) -> RunEnds {
        assert_eq!(self.running.take(), Some(id), "runs do not overlap");
        let task = &self.tasks[id];
        let ends = match task.plan.runs {
            Some(runs) if runs == task.runs && task.plan.panics => RunEnds::Panics,
            Some(runs) if runs == task.runs => RunEnds::Breaks,
            _ => RunEnds::GoesOn,
        };
        self.counts.panicked += u64::from(ends == RunEnds::Panics);
        if task.state != State::Running {
            return ends; // it has cancelled itself (S16)
        }
        if ends == RunEnds::GoesOn && self.driving != Driving::ByHand {
            let due =
                task.moved_to.unwrap_or_else(|| self.due_again(task.plan.repeats, task.deadline));
            self.tasks[id].moved_to = None;
            self.wait(id, due);
        } else {
            self.tasks[id].state = State::Over(End::Ran);
        }
        ends
    }

    /// When a series is due again whose run was planned for `planned`, and ends now (S12, S13).
    fn due_again(&self, repeats: Repeats, planned: Time) -> Time {
        let is_missed = |due: Time| due.saturating_add(self.settings.tick) <= self.now;
        match repeats {
            Repeats::Not => NEVER,
            Repeats::Gap(gap) => self.now.saturating_add(gap),
            Repeats::Burst(period) => planned.saturating_add(period),
            Repeats::Skip(period) => {
                let mut due = planned.saturating_add(period);
                while is_missed(due) {
                    due += period;
                }
                due
            }
            Repeats::Delay(period) => {
                let due = planned.saturating_add(period);
                if is_missed(due) { self.now + period } else { due }
            }
        }
    }
}
