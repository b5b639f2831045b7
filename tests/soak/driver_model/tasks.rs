//! The actions of tasks, in their runs and when their closures are dropped.
//!
//! Every closure captures a [`Ticket`], which tells the model of each run and of the drop. It also makes trouble: it schedules,
//! cancels, stops the scheduler, takes time, or panics.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickwheel::{Cancellable, MissedTicks, Period, ScheduleError, Scheduler, TryScheduleError};

use super::plan::{NEVER, Plan, Repeats, RunEnds};
use super::world::World;

/// The action of a captured value's `Drop`.
#[derive(Clone, Copy, Debug)]
enum Cargo {
    Nothing,
    Schedules,
    Cancels,
    Panics,
    Stops,
}

/// The value that every closure captures.
pub(crate) struct Ticket {
    world: Arc<World>,
    id: usize,
    cargo: Cargo,
}

impl Ticket {
    pub(crate) fn new(world: &Arc<World>, id: usize) -> Ticket {
        let cargo = match world.draw(|random| random.below(12)) {
            0 => Cargo::Schedules,
            1 => Cargo::Cancels,
            2 => Cargo::Panics,
            3 if !world.habits.is_crowded && world.draw(|random| random.one_in(60)) => Cargo::Stops,
            _ => Cargo::Nothing,
        };
        Ticket { world: Arc::clone(world), id, cargo }
    }

    /// One run.
    fn run(&self) -> ControlFlow<()> {
        if self.world.reports.complaint().is_some() {
            return ControlFlow::Break(()); // the run has failed, and the model knows no more
        }
        let run = || {
            self.world.run_begins(self.id);
            self.meddle();
            self.world.model().run_ends(self.id)
        };
        match self.world.reports.noting(run) {
            Some(RunEnds::GoesOn) => ControlFlow::Continue(()),
            Some(RunEnds::Panics) => self.world.reports.blast(),
            Some(RunEnds::Breaks) | None => ControlFlow::Break(()),
        }
    }

    fn meddle(&self) {
        let world = &self.world;
        if world.is_last_order() {
            if world.draw(|random| random.one_in(3)) { world.abandon() } else { world.stop() }
        }
        match world.draw(|random| random.below(24)) {
            0..2 => world.schedule_soon(),
            2 => world.schedule_once(),
            3..5 => world.cancel_one(),
            5..7 => world.take_time(),
            7..9 => world.reset_one(),
            _ => {}
        }
    }

    /// Its closure is dropped.
    fn fall(&self) -> bool {
        let in_a_run = self.world.model().closure_falls(self.id);
        self.world.check_pending();
        match self.cargo {
            Cargo::Schedules => self.world.schedule_soon(),
            Cargo::Cancels => self.world.cancel_one(),
            Cargo::Stops => self.world.stop(),
            Cargo::Nothing | Cargo::Panics => {}
        }
        self.world.model().tasks[self.id].has_closure = false;
        in_a_run
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.world.reports.complaint().is_some() {
            return; // the run has failed before
        }
        let fallen = self.world.reports.noting(|| self.fall());
        // A second panic while the first unwinds would abort.
        if let (Cargo::Panics, Some(in_a_run), false) =
            (self.cargo, fallen, std::thread::panicking())
        {
            self.world.model().counts.panicked += u64::from(in_a_run);
            self.world.reports.blast();
        }
    }
}

// ----- how they are scheduled --------------------------------------------------------------

/// Schedules by one of several methods that mean the same.
pub(crate) struct Booking<'a> {
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) start: Instant,
    pub(crate) now: u64,
    pub(crate) plan: Plan,
    pub(crate) way: u64,
}

impl Booking<'_> {
    /// The closure is small and lies in its holder, or large and lies in a box.
    pub(crate) fn book(&self, ticket: Ticket) -> Result<Cancellable, ScheduleError> {
        let is_large = self.way & 4 != 0;
        match (self.plan.repeats, self.plan.runs) {
            (Repeats::Not, _) if is_large => self.book_once(once::<64>(ticket)),
            (Repeats::Not, _) => self.book_once(once::<0>(ticket)),
            (_, Some(_)) if is_large => self.book_series(series::<64>(ticket)),
            (_, Some(_)) => self.book_series(series::<0>(ticket)),
            (_, None) => {
                let mut series = series::<0>(ticket);
                self.book_series(move || _ = series())
            }
        }
    }

    fn delay(&self) -> Duration {
        match self.plan.deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline - self.now),
        }
    }

    fn book_once(
        &self,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Cancellable, ScheduleError> {
        let deadline = self.plan.deadline;
        let by_instant = deadline < self.now || (deadline != NEVER && matches!(self.way, 0 | 4));
        match self.way & 3 {
            _ if by_instant => {
                self.scheduler.schedule_at(self.start + Duration::from_nanos(deadline), task)
            }
            1 => {
                let booked = self.scheduler.try_schedule_once(self.delay(), task);
                booked.map_err(|refused| TryScheduleError::reason(&refused))
            }
            _ => self.scheduler.schedule_once(self.delay(), task),
        }
    }

    fn book_series<R: tickwheel::Repeat>(
        &self,
        task: impl FnMut() -> R + Send + 'static,
    ) -> Result<Cancellable, ScheduleError> {
        let nanos = Duration::from_nanos;
        let (scheduler, initial) = (self.scheduler, self.delay());
        let period = match self.plan.repeats {
            Repeats::Burst(period) if self.way & 1 == 0 => {
                return scheduler.schedule_repeatedly(initial, nanos(period), task);
            }
            Repeats::Gap(gap) if self.way & 1 == 0 => {
                return scheduler.schedule_with_fixed_delay(initial, nanos(gap), task);
            }
            Repeats::Burst(period) => Period::fixed_rate(nanos(period)),
            Repeats::Skip(period) => Period::fixed_rate(nanos(period)).missed(MissedTicks::Skip),
            Repeats::Delay(period) => Period::fixed_rate(nanos(period)).missed(MissedTicks::Delay),
            Repeats::Gap(gap) => Period::fixed_delay(nanos(gap)),
            Repeats::Not => unreachable!("a series repeats"),
        };
        scheduler.schedule_periodic(initial, period, task)
    }
}

fn once<const BALLAST: usize>(ticket: Ticket) -> impl FnOnce() + Send + 'static {
    let mut series = series::<BALLAST>(ticket);
    move || _ = series()
}

fn series<const BALLAST: usize>(
    ticket: Ticket,
) -> impl FnMut() -> ControlFlow<()> + Send + 'static {
    let ballast = [0_u8; BALLAST];
    move || {
        black_box(&ballast);
        ticket.run()
    }
}
