//! The whole engine on virtual time against a sorted map: random runs that print their seed.
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them.
//!
//! Virtual time is exact, so the model says of each task to the nanosecond when it will run.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tickwheel::{
    Cancellable, Driver, DueTask, Executor, Leftovers, Period, Precision, Rejected, Scheduler,
};

use common::{Random, env};

/// What the model knows of a task that is pending. All times are nanoseconds since the start.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Counted over all tasks, in the order of scheduling.
    number: u64,
    deadline: u64,
    /// When it will run.
    at: u64,
    /// Nanoseconds between the runs of a series.
    period: Option<u64>,
    /// It was scheduled by a task; then it may run a turn later than its order says.
    by_a_task: bool,
}

#[derive(Default)]
struct Model {
    pending: BTreeMap<u64, Expected>,
    handles: Vec<(u64, Cancellable)>,
    next_id: u64,
    numbers: u64,
    /// The last run in this call of a task that nobody scheduled on the way.
    last: Option<(u64, u64, u64)>,
    ran: u64,
    cancelled: u64,
    scheduled: u64,
}

/// One run of the model and the thing itself.
struct World {
    scheduler: Scheduler,
    start: Instant,
    tick: u64,
    precision: Precision,
    /// An executor refuses tasks, so they may be late.
    refuses: Arc<AtomicBool>,
    random: Mutex<Random>,
    model: Mutex<Model>,
}

type Shared = Arc<World>;

/// Refuses one task in three while it is told to.
struct Moody {
    refuses: Arc<AtomicBool>,
    offered: AtomicU64,
}

impl Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let offer = self.offered.fetch_add(1, Ordering::Relaxed);
        if Random(offer).one_in(3) && self.refuses.load(Ordering::Relaxed) {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

impl World {
    fn new(random: &mut Random) -> (Shared, Driver) {
        let ticks = [1, 7_000, 1_000_000, 3_600_000_000_000];
        let tick = ticks[random.below(ticks.len() as u64) as usize];
        let precision = [Precision::Tick, Precision::Exact][random.below(2) as usize];
        let refuses = Arc::new(AtomicBool::new(random.one_in(4)));
        let moody = Moody { refuses: Arc::clone(&refuses), offered: AtomicU64::new(0) };
        let (scheduler, driver) = Scheduler::builder()
            .tick(Duration::from_nanos(tick))
            .wheel_size(1 << random.below(13))
            .precision(precision)
            .executor(moody)
            .build_driven()
            .expect("good settings");
        let start = scheduler.now();
        let world = World {
            scheduler,
            start,
            tick,
            precision,
            refuses,
            random: Mutex::new(Random(random.next())),
            model: Mutex::default(),
        };
        (Arc::new(world), driver)
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        // A task that has found something has poisoned it; `run` looks at what has panicked.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from((self.scheduler.now() - self.start).as_nanos()).expect("within 500 years")
    }

    /// When a task of this deadline runs that is scheduled now.
    fn runs_at(&self, deadline: u64, now: u64) -> u64 {
        match self.precision {
            _ if deadline <= now => now,
            Precision::Exact => deadline,
            Precision::Tick => (deadline.div_ceil(self.tick) * self.tick).max(now),
        }
    }

    fn expect(&self, deadline: u64, period: Option<u64>, by_a_task: bool) -> u64 {
        let now = self.now();
        let model = &mut *self.model();
        let (id, number) = (model.next_id, model.numbers);
        model.next_id += 1;
        model.numbers += 1;
        model.scheduled += 1;
        let at = self.runs_at(deadline, now);
        model.pending.insert(id, Expected { number, deadline, at, period, by_a_task });
        id
    }

    /// A task has run: was it to?
    fn has_run(self: &Shared, id: u64) {
        let now = self.now();
        let model = &mut *self.model();
        let expected = model.pending.remove(&id);
        let expected = expected.unwrap_or_else(|| panic!("task {id} ran, and was not to"));
        assert!(now >= expected.deadline, "task {id} is early: {expected:?} at {now}");
        if !self.refuses.load(Ordering::Relaxed) {
            assert_eq!(now, expected.at, "task {id} ran at another time than {expected:?}");
            if !expected.by_a_task {
                let place = Some((expected.at, expected.deadline, expected.number));
                assert!(place > model.last, "task {id} ran after {:?}: {expected:?}", model.last);
                model.last = place;
            }
        }
        model.ran += 1;
        if let Some(period) = expected.period {
            let deadline = expected.deadline + period;
            let at = self.runs_at(deadline, now);
            let number = model.numbers;
            model.numbers += 1;
            let next = Expected { number, deadline, at, by_a_task: true, ..expected };
            model.pending.insert(id, next);
        }
    }

    /// What tasks do beside: schedule others, and cancel others.
    fn meddle(self: &Shared) {
        if self.scheduler.is_closed() {
            return; // it is a leftover
        }
        let choice = self.random.lock().expect("whole").below(12);
        match choice {
            0 => self.schedule_once(Duration::ZERO, true),
            1 => {
                let delay = self.random.lock().expect("whole").of_any_size(62) >> 10;
                self.schedule_once(Duration::from_nanos(delay), true);
            }
            2 => self.cancel_one(),
            _ => {}
        }
    }

    fn schedule_once(self: &Shared, delay: Duration, by_a_task: bool) {
        let delay_nanos = u64::try_from(delay.as_nanos()).expect("a test's delay");
        let id = self.expect(self.now() + delay_nanos, None, by_a_task);
        let handle = self.scheduler.schedule_once(delay, self.task(id)).expect("open");
        self.model().handles.push((id, handle));
    }

    fn task(self: &Shared, id: u64) -> impl FnOnce() + Send + 'static {
        let world = Arc::clone(self);
        move || {
            world.has_run(id);
            world.meddle();
        }
    }

    fn schedule_at(self: &Shared, random: &mut Random) {
        let now = self.now();
        let deadline = if random.one_in(3) {
            now.saturating_sub(random.of_any_size(62))
        } else {
            now + random.of_any_size(62)
        };
        let id = self.expect(deadline, None, false);
        let instant = self.start + Duration::from_nanos(deadline);
        let handle = self.scheduler.schedule_at(instant, self.task(id)).expect("open");
        self.model().handles.push((id, handle));
    }

    fn schedule_series(self: &Shared, random: &mut Random) {
        let period = self.tick.max(1_000) * (1 + random.below(5)) + random.below(3);
        let initial = random.of_any_size(62) >> 8;
        let id = self.expect(self.now() + initial, Some(period), false);
        let world = Arc::clone(self);
        let kind = Period::fixed_rate(Duration::from_nanos(period));
        let handle =
            self.scheduler
                .schedule_periodic(Duration::from_nanos(initial), kind, move || world.has_run(id));
        self.model().handles.push((id, handle.expect("open")));
    }

    /// Any handle there ever was, or a clone of it.
    fn cancel_one(self: &Shared) {
        let handles = self.model().handles.len() as u64;
        if handles == 0 {
            return;
        }
        let (at, keep) = {
            let mut random = self.random.lock().expect("whole");
            (random.below(handles) as usize, random.one_in(3))
        };
        let (id, handle) = if keep {
            let model = self.model();
            let (id, handle) = &model.handles[at];
            (*id, handle.clone())
        } else {
            self.model().handles.swap_remove(at)
        };
        let was_cancelled = handle.is_cancelled();
        let won = handle.cancel();
        let was_pending = self.model().pending.remove(&id).is_some();
        assert_eq!(won, was_pending, "of task {id}");
        assert!(!handle.cancel());
        assert_eq!(handle.is_cancelled(), won || was_cancelled, "of task {id}");
        self.model().cancelled += u64::from(won);
    }

    fn advance(self: &Shared, driver: &Driver, random: &mut Random) {
        let mut distance = if random.one_in(4) { 0 } else { random.of_any_size(62) };
        // A series runs two hundred times at most, or a run of the model would take for ever.
        let shortest = self.model().pending.values().filter_map(|expected| expected.period).min();
        distance = distance.min(shortest.map_or(u64::MAX, |period| period * 200));
        if self.now() > 1 << 61 {
            distance = 0;
        }
        let before = self.model().ran;
        self.model().last = None; // the order is among what one call finds
        let runs = driver.advance(Duration::from_nanos(distance));
        let model = self.model();
        assert_eq!(runs as u64, model.ran - before, "what `advance` returns");
        drop(model);
        self.check_that_nothing_is_overdue();
        let pending = self.model().pending.len();
        assert_eq!(self.scheduler.pending(), pending);
    }

    fn check_that_nothing_is_overdue(&self) {
        if self.refuses.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        let model = self.model();
        let overdue = model.pending.iter().find(|(_, expected)| expected.at <= now);
        assert!(overdue.is_none(), "at {now} it has not run: {overdue:?}");
    }

    /// All is accepted again, so all that is due runs within a tick or two.
    fn calm_down(self: &Shared, driver: &Driver) {
        if self.refuses.swap(false, Ordering::Relaxed) {
            self.refuses.store(true, Ordering::Relaxed); // no exact times: what was refused is late
            let now = self.now();
            for _ in 0..64 {
                driver.advance(Duration::from_nanos(self.tick));
            }
            let model = self.model();
            let overdue = model.pending.iter().find(|(_, expected)| expected.at <= now);
            assert!(overdue.is_none(), "refused, and never offered again: {overdue:?}");
        }
    }

    /// The leftovers are what the model has, in order; each comes to one of its ends.
    fn end(self: &Shared, leftovers: Leftovers, random: &mut Random) {
        let now = self.now();
        let mut expected: Vec<_> = {
            let model = self.model();
            model.pending.iter().map(|(id, expected)| (*expected, *id)).collect()
        };
        expected.sort_by_key(|(expected, _)| (expected.deadline, expected.number));
        assert_eq!(leftovers.len(), expected.len());
        let (second, driver) = Scheduler::builder().build_driven().expect("good settings");
        let mut moved = 0;
        for (task, (expected, id)) in leftovers.into_iter().zip(expected) {
            let remaining = expected.deadline.saturating_sub(now);
            assert_eq!(task.remaining(), Duration::from_nanos(remaining), "of task {id}");
            assert_eq!(task.period(), expected.period.map(Duration::from_nanos));
            match random.below(4) {
                0 => drop(task),
                1 => assert!(task.cancel()),
                2 => {
                    // Run by hand it is early, which is what the caller asked for.
                    self.model()
                        .pending
                        .insert(id, Expected { deadline: 0, period: None, ..expected });
                    self.refuses.store(true, Ordering::Relaxed);
                    let before = self.model().ran;
                    task.run();
                    assert_eq!(self.model().ran, before + 1, "task {id}");
                    continue;
                }
                _ => {
                    let handle = task.reschedule(&second).expect("open");
                    assert!(!handle.is_done());
                    moved += 1;
                }
            }
            self.model().pending.remove(&id);
        }
        assert_eq!(second.pending(), moved);
        assert_eq!(driver.close().len(), moved);
        assert_eq!(self.scheduler.pending(), 0);
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let (world, driver) = World::new(&mut random);
    for _ in 0..10 + random.below(60) {
        match random.below(12) {
            0..4 => world.schedule_once(Duration::from_nanos(random.of_any_size(62)), false),
            4 => world.schedule_once(Duration::ZERO, false),
            5 => world.schedule_at(&mut random),
            6 if random.one_in(3) => world.schedule_series(&mut random),
            6..8 => world.cancel_one(),
            _ => world.advance(&driver, &mut random),
        }
        let panicked = world.scheduler.stats().panicked();
        assert_eq!(panicked, 0, "a task has found something; see above");
    }
    world.calm_down(&driver);
    let pending = world.model().pending.len();
    let stats = world.scheduler.stats();
    {
        let model = world.model();
        assert_eq!(stats.scheduled(), model.scheduled);
        assert_eq!(stats.fired(), model.ran);
        assert_eq!(stats.cancelled(), model.cancelled);
        assert_eq!(stats.pending() as usize, pending);
    }
    world.end(driver.close(), &mut random);
    assert_eq!(world.scheduler.stats().panicked(), 0, "a leftover has found something; see above");
    let handles = std::mem::take(&mut world.model().handles);
    assert!(handles.iter().all(|(_, handle)| handle.is_done() && !handle.cancel()));
}

#[test]
fn the_engine_does_what_a_sorted_map_does() {
    let seeds = match env("TICKWHEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("TICKWHEEL_RUNS").unwrap_or(1_500),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("repeat with TICKWHEEL_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
