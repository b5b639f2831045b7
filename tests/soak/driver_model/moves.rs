//! Deadlines that move (S28): the part of the [`Model`] that knows where a moved task stands.
//!
//! A task that is moved further away comes up at its old time, and then waits again. Nobody sees that but the engine,
//! which makes a turn for it. A task that has come up runs in this turn if it is due, in the order of its new deadline; or
//! where it stands, if it was moved to an earlier time.

use tickwheel::Precision;

use super::model::{Model, Settings};
use super::plan::{NEVER, Repeats, State, Time};

impl Settings {
    /// Returns up to which deadline tasks have come up in a turn at this time.
    pub(crate) fn up_until(&self, now: Time) -> Time {
        match self.precision {
            Precision::Tick => now / self.tick * self.tick,
            _ => now,
        }
    }

    /// Returns when a task that is filed under a deadline comes up.
    fn comes_up_at(&self, filed: Time) -> Time {
        match self.precision {
            Precision::Tick => filed.div_ceil(self.tick) * self.tick,
            _ => filed,
        }
    }
}

impl Model {
    /// Moves the deadline of a task. Returns what the reset tells.
    pub(crate) fn reset(&mut self, id: usize, to: Time) -> bool {
        let is_series = self.tasks[id].plan.repeats != Repeats::Not;
        let to = if is_series { to.max(self.now) } else { to };
        let is_up = |filed: Time| self.up_until.is_some_and(|until| filed <= until);
        let task = &self.tasks[id];
        let (at, number, filed) = (task.at, task.number, task.filed);
        self.tasks[id].was_moved = true;
        match self.tasks[id].state {
            State::Waiting if to <= filed && is_up(filed) => {
                self.waiting.remove(&(at, number, id));
                self.wait_again(id, to); // it runs where it stands
            }
            State::Waiting => {
                self.waiting.remove(&(at, number, id));
                let is_in_turn = self.queue.remove(&(filed, number, id));
                if !is_up(filed) && (to < filed || to <= self.now) {
                    self.wait(id, to);
                } else {
                    self.wait_again(id, to);
                }
                self.has_moved_out |= is_in_turn;
                if is_in_turn && to > filed {
                    self.queue.insert((filed, self.tasks[id].number, id));
                }
            }
            State::Running if is_series && !self.is_last_run(id) => {
                self.tasks[id].moved_to = Some(to);
            }
            State::Returned => {
                (self.tasks[id].deadline, self.tasks[id].number) = (to, self.numbers);
                self.numbers += 1;
            }
            _ => return false,
        }
        true
    }

    /// A task that waits comes up in this turn, as it was filed. Returns true if it runs now. Otherwise it waits again:
    /// perhaps for a later place in this turn.
    pub(crate) fn comes_up(&mut self, id: usize, place: Time) -> bool {
        let task = &mut self.tasks[id];
        if task.filed != place || task.deadline <= task.filed {
            return true;
        }
        (task.filed, task.is_urgent) = (task.deadline, false);
        let (deadline, number, at) = (task.deadline, task.number, task.at);
        if self.up_until.is_some_and(|until| deadline <= until) {
            self.queue.insert((deadline, number, id));
        } else if at <= self.now {
            // It is due, and runs at the end of its tick.
            self.waiting.remove(&(at, number, id));
            let at = self.settings.comes_up_at(deadline);
            self.tasks[id].at = at;
            self.waiting.insert((at, number, id));
        }
        false
    }

    /// When the engine makes its next turn: for a task, or because one comes up that was moved further away.
    pub(crate) fn comes_back(&self) -> Option<Time> {
        let ups = self.waiting.iter().filter_map(|(at, _, id)| {
            let filed = self.tasks[*id].filed;
            let is_first = filed != NEVER && filed < self.tasks[*id].deadline;
            is_first.then(|| self.settings.comes_up_at(filed).min(*at))
        });
        ups.chain(self.next()).min()
    }
}
