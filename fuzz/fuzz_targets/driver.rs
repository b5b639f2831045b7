//! The whole engine on virtual time against a model: one-shots and series, cancels from outside and
//! inside, executors that refuse, runs that take long, stalls, a limit, and a close.
//!
//! An assertion that fails inside a task ends the process at once, because libFuzzer aborts before anybody catches the panic.

#![no_main]

mod bytes;
mod model;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use model::{Kind, LATE, Model, NEVER, Series, Stage};
use tickwheel::{
    Cancellable, Driver, Leftovers, MissedTicks, Period, Precision, ScheduleError, Scheduler,
};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let Some((world, driver)) = World::new(&mut bytes) else { return };
    while world.model().ran < MOST_RUNS && world.step(&driver, &mut bytes).is_some() {}
    world.end(driver);
    assert_eq!(Arc::strong_count(&world), 1, "a closure has not been dropped");
});

/// The most runs. More of them would find nothing more, and take long.
const MOST_RUNS: u64 = 500;

/// The action of a run.
#[derive(Clone, Copy)]
enum Deed {
    Nothing,
    Schedule(u64),
    /// Cancels one of all tasks, itself included.
    Cancel(u64),
    /// Takes this long.
    Take(u64),
    /// Ends the series.
    Break,
}

type Scheduled = Result<Cancellable, ScheduleError>;

struct World {
    scheduler: Scheduler,
    /// A handle with an executor of its own.
    own: Scheduler,
    stage: Arc<Stage>,
    tick: u64,
    limit: usize,
    /// The way in which it ends.
    ending: u8,
    /// The handles of all tasks that there ever were, and true for those that were cancelled.
    handles: Mutex<Vec<(Arc<Cancellable>, bool)>>,
}

impl World {
    fn new(bytes: &mut Bytes<'_>) -> Option<(Arc<World>, Driver)> {
        let (settings, ending) = (bytes.byte()?, bytes.byte()?);
        let (tick, limit) = (bytes.number()? % (1 << 50) + 1, 1 << (ending >> 4));
        let precision = if settings & 1 == 0 { Precision::Tick } else { Precision::Exact };
        let stage = Arc::new(Stage::new(tick, precision));
        let (scheduler, driver) = Scheduler::builder()
            .tick(Duration::from_nanos(tick))
            .precision(precision)
            .wheel_size(1 << ((settings >> 1) % 10))
            .max_pending(limit)
            .clock(stage.clock.clone())
            .executor(Arc::clone(&stage))
            .build_driven()
            .expect("good settings");
        let own = scheduler.with_executor(Arc::clone(&stage));
        let world = World { scheduler, own, stage, tick, limit, ending, handles: Mutex::default() };
        Some((Arc::new(world), driver))
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.stage.model()
    }

    fn handles(&self) -> MutexGuard<'_, Vec<(Arc<Cancellable>, bool)>> {
        self.handles.lock().expect("no task has panicked")
    }

    fn step(self: &Arc<Self>, driver: &Driver, bytes: &mut Bytes<'_>) -> Option<()> {
        let choice = bytes.byte()?;
        let on = if choice < 0xC0 { &self.scheduler } else { &self.own };
        self.model().begin_step();
        match choice % 10 {
            0 | 1 => self.schedule_once(on, self.delay(bytes)?, self.deed(bytes)?),
            2 => self.schedule_at(on, self.delay(bytes)?, self.deed(bytes)?),
            3 => self.schedule_series(on, bytes)?,
            4 => self.cancel(bytes.number()?),
            5 => self.model().refusals = bytes.number()?,
            6 => self.pass(self.delay(bytes)?),
            7 => self.turn(driver),
            _ => self.advance(driver, self.delay(bytes)?),
        }
        let pending = self.model().pending.len();
        assert_eq!(self.scheduler.pending(), pending);
        Some(())
    }

    /// Returns some ticks, or nearly some ticks, or a time of any size.
    fn delay(&self, bytes: &mut Bytes<'_>) -> Option<u64> {
        let choice = bytes.byte()?;
        let ticks = u64::from(choice >> 3) * self.tick;
        Some(match choice % 8 {
            0..=2 => ticks,
            3 => ticks + 1,
            4 => ticks.saturating_sub(1),
            5 if choice == 0xFD => NEVER,
            _ => bytes.number()? % LATE,
        })
    }

    fn deed(&self, bytes: &mut Bytes<'_>) -> Option<Deed> {
        Some(match bytes.byte()? % 8 {
            0 => Deed::Schedule(self.delay(bytes)?),
            1 | 2 => Deed::Cancel(bytes.number()?),
            3 => Deed::Take(self.delay(bytes)?),
            4 => Deed::Break,
            _ => Deed::Nothing,
        })
    }

    // ----- tasks ---------------------------------------------------------------------------

    fn schedule_once(self: &Arc<Self>, on: &Scheduler, delay: u64, deed: Deed) {
        let run = self.task(deed);
        let handle = on.schedule_once(Duration::from_nanos(delay), move || _ = run());
        self.expect(handle, self.stage.now().saturating_add(delay), None);
    }

    /// Returns an instant. Every second one is in the past.
    fn schedule_at(self: &Arc<Self>, on: &Scheduler, delay: u64, deed: Deed) {
        let (now, distance) = (self.stage.now(), delay % LATE);
        let is_past = self.model().tasks & 1 == 0;
        let deadline = if is_past { now.saturating_sub(distance) } else { now + distance };
        let (run, instant) = (self.task(deed), self.stage.start + Duration::from_nanos(deadline));
        // Too large for a holder, so it lies in a box.
        let ballast = [deadline; 3];
        let handle = on.schedule_at(instant, move || {
            assert_eq!(ballast, [deadline; 3]);
            let _ = run();
        });
        self.expect(handle, deadline, None);
    }

    fn schedule_series(self: &Arc<Self>, on: &Scheduler, bytes: &mut Bytes<'_>) -> Option<()> {
        let (choice, initial) = (bytes.byte()?, self.delay(bytes)?);
        let (period, run) = (self.delay(bytes)?.clamp(1, LATE), self.task(self.deed(bytes)?));
        let (delay, every) = (Duration::from_nanos(initial), Duration::from_nanos(period));
        let rate = Period::fixed_rate(every);
        let kind = [Kind::Burst, Kind::Skip, Kind::Delay, Kind::Gap][usize::from(choice % 4)];
        let handle = match kind {
            Kind::Burst => on.schedule_repeatedly(delay, every, run),
            Kind::Skip => on.schedule_periodic(delay, rate.missed(MissedTicks::Skip), run),
            Kind::Delay => on.schedule_periodic(delay, rate.missed(MissedTicks::Delay), run),
            Kind::Gap => on.schedule_with_fixed_delay(delay, every, run),
        };
        let deadline = self.stage.now().saturating_add(initial);
        self.expect(handle, deadline, Some(Series { kind, period }));
        Some(())
    }

    /// Tells the model, unless the limit was reached.
    fn expect(&self, handle: Scheduled, deadline: u64, series: Option<Series>) {
        let is_full = self.model().pending.len() >= self.limit;
        assert_eq!(handle.as_ref().err(), is_full.then_some(&ScheduleError::Full));
        if let Ok(handle) = handle {
            self.model().schedule(self.stage.now(), deadline, series);
            self.handles().push((Arc::new(handle), false));
        }
    }

    fn task(self: &Arc<Self>, deed: Deed) -> impl Fn() -> ControlFlow<()> + Send + 'static {
        let (world, id) = (Arc::clone(self), self.model().tasks);
        move || {
            world.model().begin_run(id, world.stage.now());
            let is_closed = world.model().is_closed;
            match deed {
                Deed::Schedule(delay) if !is_closed => {
                    world.schedule_once(&world.scheduler, delay, Deed::Nothing);
                }
                Deed::Cancel(choice) => world.cancel(choice),
                Deed::Take(time) => world.pass(time),
                _ => {}
            }
            let breaks = matches!(deed, Deed::Break);
            world.model().end_run(id, world.stage.now(), !breaks);
            if breaks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    /// Cancels by the handle, or by a clone of it.
    fn cancel(self: &Arc<Self>, choice: u64) {
        let tasks = self.handles().len();
        let Some(id) = (choice as usize >> 1).checked_rem(tasks) else { return };
        let (handle, was_cancelled) = self.handles()[id].clone();
        let closures = Arc::strong_count(self);
        let won = if choice & 1 == 0 { handle.cancel() } else { (*handle).clone().cancel() };
        assert_eq!(won, self.model().pending.remove(&id).is_some(), "task {id}");
        assert!(!handle.cancel(), "task {id}");
        assert_eq!(handle.is_cancelled(), won || was_cancelled, "task {id}");
        self.handles()[id].1 |= won;
        // A series that cancels itself still needs its closure.
        let is_dropped = won && self.model().running != Some(id);
        assert_eq!(Arc::strong_count(self), closures - usize::from(is_dropped), "task {id}");
    }

    // ----- time ----------------------------------------------------------------------------

    /// Lets time pass without a turn: a stall, or a run that takes long.
    fn pass(&self, time: u64) {
        let time = time.min(self.model().bound(self.stage.now()));
        self.stage.clock.advance(Duration::from_nanos(time));
        self.model().pass(self.stage.now());
    }

    fn turn(&self, driver: &Driver) {
        let (now, numbers) = (self.stage.now(), self.model().numbers);
        let come_back = driver.turn().map_or(NEVER, |instant| self.stage.nanos(instant));
        self.model().check_overdue(now, numbers);
        self.model().check_return(come_back, numbers);
    }

    fn advance(&self, driver: &Driver, distance: u64) {
        let (now, before) = (self.stage.now(), self.model().ran);
        let distance = distance.min(self.model().bound(now));
        let runs = driver.advance(Duration::from_nanos(distance));
        assert_eq!(runs as u64, self.model().ran - before, "what `advance` returns");
        assert!(self.stage.now() >= now + distance);
        self.model().check_overdue(now + distance, NEVER);
    }

    // ----- the end -------------------------------------------------------------------------

    fn end(self: &Arc<Self>, driver: Driver) {
        self.model().is_closed = true;
        match self.ending % 4 {
            0 => drop(driver),
            1 => self.leave(self.scheduler.close().expect("nobody turns it")),
            _ => self.leave(driver.close()),
        }
        let refused = self.scheduler.schedule_once(Duration::ZERO, || ());
        assert_eq!(refused.err(), Some(ScheduleError::Closed));
        assert_eq!(self.scheduler.pending(), 0);
        assert_eq!(self.scheduler.stats().fired(), self.model().ran);
        for (id, (handle, is_cancelled)) in self.handles().iter().enumerate() {
            assert!(handle.is_done() && !handle.cancel(), "task {id}");
            assert_eq!(handle.is_cancelled(), *is_cancelled, "task {id}");
        }
    }

    /// Checks the leftovers against the model, in order, and brings each to one of its ends.
    fn leave(self: &Arc<Self>, leftovers: Leftovers) {
        let (expected, mut kept) = (self.model().leftovers(), Vec::new());
        assert_eq!(leftovers.len(), expected.len());
        for (task, (id, expected)) in leftovers.into_iter().zip(expected) {
            let deadline = expected.deadline;
            let left = Duration::from_nanos(deadline.saturating_sub(self.stage.now()));
            let remaining = if deadline == NEVER { Duration::MAX } else { left };
            assert_eq!(task.remaining(), remaining, "task {id}");
            // Refused tasks may come before others of the same deadline.
            let is_sure = self.model().is_sure(deadline);
            let period = expected.series.map(|series| Duration::from_nanos(series.period));
            assert!(task.period() == period || !is_sure, "task {id}");
            match (u64::from(self.ending >> 2) ^ deadline) % 3 {
                0 => {
                    drop(task);
                    self.model().pending.remove(&id);
                }
                1 => {
                    task.run();
                    assert!(!self.model().pending.contains_key(&id) || !is_sure, "task {id}");
                }
                _ => {
                    self.cancel(2 * id as u64);
                    kept.push(task);
                }
            }
        }
    }
}
