//! The model of the engine: a map of the pending tasks. It never asks the engine, only the clock.
//!
//! All times are nanoseconds since the start. Virtual time is exact, so the model knows to the nanosecond when each task runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use tickwheel::{Clock, DueTask, Executor, ManualClock, Precision, Rejected};

pub const NEVER: u64 = u64::MAX;
/// The latest time of a task, so that no sum leaves the 64 bits.
pub const LATE: u64 = 1 << 61;
/// The most runs of all series in one step.
const RUNS_OF_A_STEP: u64 = 32;
/// An executor that has refused a task is asked again after this time at the latest, in nanoseconds.
const LONGEST_PAUSE: u64 = 100_000_000;
/// A turn looks at no more entries of a bucket for one that is not cancelled. If all that it has seen are, it may come back for
/// nothing.
const LOOK_AHEAD: u64 = 256;

/// The clock, and the tasks that have to run.
pub struct Stage {
    pub clock: ManualClock,
    pub start: Instant,
    model: Mutex<Model>,
}

impl Stage {
    pub fn new(tick: u64, precision: Precision) -> Stage {
        let clock = ManualClock::new();
        let model = Mutex::new(Model { tick, precision, ..Model::default() });
        Stage { start: clock.now(), clock, model }
    }

    pub fn nanos(&self, instant: Instant) -> u64 {
        u64::try_from((instant - self.start).as_nanos()).expect("within 500 years")
    }

    pub fn now(&self) -> u64 {
        self.nanos(self.clock.now())
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().expect("no task has panicked")
    }
}

/// Runs tasks inline, and refuses some.
impl Executor for Stage {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if self.model().refuses(self.now()) {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

/// A task that is pending.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub deadline: u64,
    /// Counted over all tasks and runs, in the order of scheduling.
    number: u64,
    /// When it will run.
    at: u64,
    /// A task has scheduled it for this moment, so it may run a turn later than its order says.
    is_behind: bool,
    pub series: Option<Series>,
}

#[derive(Clone, Copy, Debug)]
pub struct Series {
    pub kind: Kind,
    pub period: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Burst,
    Skip,
    Delay,
    Gap,
}

#[derive(Default)]
pub struct Model {
    tick: u64,
    precision: Precision,
    pub pending: BTreeMap<usize, Expected>,
    /// The number of tasks so far, which is the name of the next one.
    pub tasks: usize,
    pub numbers: u64,
    pub ran: u64,
    pub running: Option<usize>,
    /// The position of the last run of this step in the order.
    last: Option<(u64, u64, u64)>,
    /// A run of this step took time, so others have come too late for their order.
    took_time: bool,
    /// A bit for each of the next tasks that executors are offered. They refuse those whose bit is set.
    pub refusals: u64,
    /// The longest pause that an executor may take at present; 0 if none of them refuses.
    pause: u64,
    /// By then the executors have been asked again. What is due until then may come late, and out of order.
    late_until: Option<u64>,
    pub is_closed: bool,
}

impl Model {
    pub fn schedule(&mut self, now: u64, deadline: u64, series: Option<Series>) {
        let expected = self.expected(now, deadline, series);
        self.pending.insert(self.tasks, expected);
        self.tasks += 1;
    }

    fn expected(&mut self, now: u64, deadline: u64, series: Option<Series>) -> Expected {
        let at = match self.precision {
            _ if deadline <= now => now,
            _ if deadline == NEVER => NEVER,
            Precision::Exact => deadline,
            Precision::Tick => deadline.div_ceil(self.tick) * self.tick,
            unknown => unreachable!("{unknown:?} has no rule here"),
        };
        self.numbers += 1;
        let is_behind = at == now && self.running.is_some();
        Expected { deadline, number: self.numbers, at, is_behind, series }
    }

    // ----- time ----------------------------------------------------------------------------

    /// Begins a step. The order is checked within a step.
    pub fn begin_step(&mut self) {
        (self.last, self.took_time) = (None, false);
    }

    /// Returns how far a step may go, so that series do not run too often.
    pub fn bound(&self, now: u64) -> u64 {
        let periods = self.pending.values().filter_map(|task| Some(task.series?.period));
        let series = periods.clone().count().max(1) as u64;
        let bound = periods.min().map_or(LATE, |shortest| shortest.saturating_mul(RUNS_OF_A_STEP));
        if now < LATE { LATE.min(bound / series) } else { 0 }
    }

    /// Notes that time has passed up to now without a turn.
    pub fn pass(&mut self, now: u64) {
        self.pending.values_mut().for_each(|task| task.at = task.at.max(now));
        if self.pause > 0 {
            self.late_until = self.late_until.max(Some(now));
        }
        self.took_time = self.running.is_some();
    }

    /// Returns true if an executor refuses a task. From then on all its tasks wait until it is asked again: after a tick,
    /// and if it refuses again after at most twice as long.
    pub fn refuses(&mut self, now: u64) -> bool {
        let refuses = self.refusals & 1 == 1;
        self.refusals >>= 1;
        if refuses {
            let first = self.tick.min(LONGEST_PAUSE);
            self.pause = (2 * self.pause).clamp(first, LONGEST_PAUSE);
            self.late_until = Some(now + self.pause);
        }
        refuses
    }

    /// Returns true if what is due at this time does not wait for an executor that refuses.
    pub fn is_sure(&self, time: u64) -> bool {
        Some(time) > self.late_until
    }

    /// Returns the latest time by which a task has run.
    fn latest(&self, task: &Expected) -> u64 {
        task.at.max(self.late_until.unwrap_or(0))
    }

    /// Checks that all tasks that were due at the end of a step have run, except those scheduled after this many `numbers`.
    pub fn check_overdue(&mut self, now: u64, numbers: u64) {
        if self.late_until <= Some(now) && !self.took_time {
            self.pause = 0;
        }
        let is_overdue = |task: &&Expected| self.latest(task) <= now && task.number <= numbers;
        let overdue = self.pending.values().find(is_overdue);
        assert!(self.took_time || overdue.is_none(), "at {now} it has not run: {overdue:?}");
    }

    /// Checks the time at which a turn wants to come back.
    pub fn check_return(&self, come_back: u64, numbers: u64) {
        let needed = self.pending.values().map(|task| self.latest(task)).min().unwrap_or(NEVER);
        assert!(self.took_time || come_back <= needed, "{come_back} is too late for {needed}");
        let sees_all = self.numbers <= LOOK_AHEAD;
        if sees_all && !self.took_time && self.pause == 0 && numbers == self.numbers {
            assert_eq!(come_back, needed, "a turn for nothing");
        }
    }

    // ----- runs ----------------------------------------------------------------------------

    /// Checks that a task may run now.
    pub fn begin_run(&mut self, id: usize, now: u64) {
        let task = self.pending.get(&id).copied();
        let task = task.unwrap_or_else(|| panic!("task {id} ran, and was not to"));
        assert_eq!(self.running.replace(id), None, "task {id} runs inside another");
        self.ran += 1;
        // A series that a close has returned runs once, and can no longer be cancelled then.
        if task.series.is_none() || self.is_closed {
            self.pending.remove(&id);
        }
        if !self.is_closed {
            self.check_time(id, &task, now);
        }
    }

    fn check_time(&mut self, id: usize, task: &Expected, now: u64) {
        assert!(now >= task.deadline, "task {id} is early: {task:?} at {now}");
        let times = task.at..=self.latest(task);
        assert!(times.contains(&now), "task {id} ran at {now}: {task:?}");
        if self.is_sure(task.at) && !task.is_behind && !self.took_time {
            let place = Some((task.at, task.deadline, task.number));
            assert!(place > self.last, "task {id} ran after {:?}: {task:?}", self.last);
            self.last = place;
        }
    }

    /// A series goes on, unless it ends itself or was cancelled.
    pub fn end_run(&mut self, id: usize, now: u64, goes_on: bool) {
        let task = self.pending.remove(&id).filter(|_| goes_on && !self.is_closed);
        if let Some(Expected { deadline, series: Some(series), .. }) = task {
            let next = self.next_run(series, deadline, now);
            let next = self.expected(now, next, Some(series));
            self.pending.insert(id, next);
        }
        self.running = None;
    }

    fn next_run(&self, Series { kind, period }: Series, planned: u64, now: u64) -> u64 {
        let next = planned + period;
        // A run that was due a tick ago or more is missed.
        match (kind, now.checked_sub(next + self.tick)) {
            (Kind::Gap, _) | (Kind::Delay, Some(_)) => now + period,
            (Kind::Skip, Some(missed)) => next + (missed / period + 1) * period,
            (Kind::Burst | Kind::Skip | Kind::Delay, _) => next,
        }
    }

    /// Returns the leftovers of a close, in their order.
    pub fn leftovers(&self) -> Vec<(usize, Expected)> {
        let mut leftovers: Vec<_> = self.pending.iter().map(|(id, task)| (*id, *task)).collect();
        leftovers.sort_by_key(|(_, task)| (task.deadline, task.number));
        leftovers
    }
}
