//! Time passes: by turns, by moves of the driver, and by a clock that jumps.
//!
//! After each of them all due tasks have run, and the answer of the last turn is the time of the next task.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tickwheel::Driver;

use super::model::{Driving, Model};
use super::plan::{State, Time};
use super::world::{Trouble, World};

/// An executor that refuses is asked again after 100 ms at the latest (S30).
const LONGEST_PAUSE: Time = 100_000_000;

impl World {
    /// A run takes time, so the clock moves on in the middle of a turn.
    pub(crate) fn take_time(&self) {
        let left = self.habits.slow_runs.load(Ordering::Relaxed);
        if left > 0 && self.model().is_turning() {
            self.habits.slow_runs.store(left - 1, Ordering::Relaxed);
            self.stall(self.some_distance(6));
        }
    }

    fn stall(&self, distance: Time) {
        self.clock.advance(Duration::from_nanos(distance));
        self.model().now += distance;
    }

    /// The clock jumps, and then all tasks that have become due run at once (S6).
    pub(crate) fn stall_and_turn(&self, driver: &Driver) {
        self.stall(self.some_distance(100));
        self.turn_until_quiet(driver);
    }

    /// Returns a step of any size, or one to a point where something changes. A series may run only so often in a step, otherwise
    /// the step would take for ever.
    fn some_distance(&self, runs: u64) -> Time {
        let (most, edge) = {
            let model = self.model();
            let goes_on = |state| matches!(state, State::Waiting | State::Running);
            let live = model.tasks.iter().filter(|task| goes_on(task.state));
            let shortest = live.filter_map(|task| task.plan.repeats.period()).min();
            let most = shortest.map_or(1 << 61, |period| period.saturating_mul(runs));
            (if model.now > 1 << 61 { 0 } else { most }, self.edge(&model))
        };
        self.draw(|random| match edge {
            Some(edge) if edge <= most && random.one_in(2) => edge,
            _ => match random.of_any_size(62) {
                far if far > most => random.below(most + 1),
                near => near,
            },
        })
    }

    /// Returns the distance to the nanosecond at which some task is due or is missed, or to one before or after that.
    fn edge(&self, model: &Model) -> Option<Time> {
        let tasks = model.tasks.len() as u64;
        let [at, periods, ticks, off] =
            self.draw(|random| [tasks.max(1), 3, 2, 3].map(|end| random.below(end)));
        let task = model.tasks.get(at as usize)?;
        let late = task.plan.repeats.period().unwrap_or(0).saturating_mul(periods)
            + ticks * model.settings.tick
            + off;
        task.deadline.saturating_add(late).saturating_sub(1).checked_sub(model.now)
    }

    /// The driver moves the time.
    pub(crate) fn advance(&self, driver: &Driver) {
        let distance = self.some_distance(100);
        self.advance_by(driver, if self.draw(|random| random.one_in(4)) { 0 } else { distance });
    }

    fn advance_by(&self, driver: &Driver, distance: Time) {
        let (before, target) = self.ask(|model| {
            model.begin(Driving::Advance);
            (model.counts.ran, model.now + distance)
        });
        let runs = driver.advance(Duration::from_nanos(distance));
        let mut model = self.model();
        assert_eq!(runs as u64, model.counts.ran - before, "what `advance` returns");
        model.end();
        model.now = model.now.max(target);
        drop(model);
        // A slow run may have moved the clock beyond where it was to be moved.
        self.turn_until_quiet(driver);
    }

    pub(crate) fn turn_until_quiet(&self, driver: &Driver) {
        while self.turn(driver).is_some_and(|again| again <= self.now()) {}
        assert_eq!(self.now(), self.model().now, "the time");
        let (next, is_exact) = self.ask(|model| (model.next(), model.is_exact));
        assert!(!is_exact || next.is_none_or(|next| next > self.now()), "overdue, at {next:?}");
    }

    /// Makes one turn, and checks when it says to come back.
    fn turn(&self, driver: &Driver) -> Option<Time> {
        self.model().begin(Driving::Turn);
        let answer = driver.turn().map(|at| {
            let since = at.saturating_duration_since(self.start);
            u64::try_from(since.as_nanos()).expect("within 500 years")
        });
        let mut model = self.model();
        let foreseen = model.end();
        let has_ended = model.ending.leftovers.is_some();
        let may_be_early = self.habits.is_crowded || model.has_moved_out;
        if may_be_early && model.is_exact && !has_ended {
            // The engine may come back for a cancelled task rather than look at more than 256 tasks.
            let is_early = foreseen.is_none_or(|at| answer.is_some_and(|answer| answer <= at));
            assert!(is_early, "when to come back: {answer:?}, not {foreseen:?}");
        } else if model.is_exact || has_ended {
            assert_eq!(answer, foreseen, "when to come back");
        }
        answer
    }

    /// Has the executor begin or stop to refuse tasks, if it is one that does.
    pub(crate) fn change_mood(&self, driver: &Driver) {
        if self.signs.refuses.load(Ordering::Relaxed) {
            self.calm_down(driver);
        } else if self.habits.trouble == Trouble::ExecutorsRefuse {
            self.signs.refuses.store(true, Ordering::Relaxed);
            self.model().is_exact = false;
        }
    }

    /// The executor accepts everything again, so refused tasks run within a tick or the longest pause (S18, S30).
    pub(crate) fn calm_down(&self, driver: &Driver) {
        if !self.signs.refuses.swap(false, Ordering::Relaxed) || self.model().ending.is_closed {
            return;
        }
        let tick = self.model().settings.tick;
        self.advance_by(driver, tick.max(LONGEST_PAUSE));
        let mut model = self.model();
        let next = model.next();
        assert!(
            next.is_none_or(|next| next > model.now),
            "refused, and never offered again: {next:?}"
        );
        model.is_exact = !model.ending.is_closed;
    }
}
