//! The parts of one run: a scheduler, its clock, and the model beside it.
//!
//! This file has the parts, and the checks that hold between any two calls. The calls are in `calls.rs` and `time.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use tickwheel::{
    Cancellable, Clock, Driver, DueTask, Executor, ManualClock, Observer, Precision, Rejected,
    Scheduler, Stopping,
};

use super::model::{Model, Settings};
use super::plan::{End, State, Time};
use super::reports::Reports;
use crate::common::Random;

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) start: Instant,
    /// The scheduler, and a handle with another executor. `None` once all handles are gone.
    faces: Mutex<Option<[Scheduler; 2]>>,
    model: Mutex<Model>,
    random: Mutex<Random>,
    pub(crate) handles: Mutex<Vec<(usize, Cancellable)>>,
    stopping: Mutex<Option<Stopping>>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) signs: Arc<Signs>,
    pub(crate) habits: Habits,
}

/// Shared with the executors and the observer.
#[derive(Default)]
pub(crate) struct Signs {
    is_elsewhere: AtomicBool,
    pub(crate) refuses: AtomicBool,
    offered: AtomicU64,
    rejected: AtomicU64,
    /// The numbers of leftovers that the observer was told at the end. More than one is an error.
    pub(crate) stopped: AtomicUsize,
    pub(crate) ends: AtomicUsize,
}

/// What goes on beside the calls. While deadlines are moved, no executor refuses and no run takes time, so that the model
/// knows what has come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    ExecutorsRefuse,
    DeadlinesMove,
    None,
}

/// The events that one run has and another one does not.
pub(crate) struct Habits {
    pub(crate) has_series: bool,
    pub(crate) trouble: Trouble,
    /// Hundreds of tasks are scheduled at once.
    pub(crate) is_crowded: bool,
    /// The number of the run that stops the scheduler.
    last_order: Option<u64>,
    /// The most runs that take time. With more of them the run would never end.
    pub(crate) slow_runs: AtomicU64,
}

/// Refuses one of three tasks while it is told to.
struct Moody(Arc<Signs>);

impl Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let offer = self.0.offered.fetch_add(1, Ordering::Relaxed);
        if Random(offer).one_in(3) && self.0.refuses.load(Ordering::Relaxed) {
            self.0.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

/// Shows that this executor runs a task.
struct Elsewhere(Arc<Signs>);

impl Executor for Elsewhere {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.is_elsewhere.store(true, Ordering::Relaxed);
        task.run();
        self.0.is_elsewhere.store(false, Ordering::Relaxed);
        Ok(())
    }
}

struct Witness(Arc<Signs>);

impl Observer for Witness {
    fn stopped(&self, leftovers: usize) {
        self.0.stopped.store(leftovers, Ordering::Relaxed);
        self.0.ends.fetch_add(1, Ordering::Relaxed);
    }
}

/// There is one thread, so a lock that is held belongs to a caller further up.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => panic!("called back while something is locked"),
    }
}

// ----- how it is made ----------------------------------------------------------------------

impl World {
    pub(crate) fn new(mut random: Random) -> (Arc<World>, Driver) {
        let (clock, signs, reports) = (ManualClock::new(), Arc::default(), Arc::default());
        let settings = Settings {
            tick: [1, 7_000, 1_000_000, 3_600_000_000_000][random.below(4) as usize],
            precision: [Precision::Tick, Precision::Exact][random.below(2) as usize],
            places: random.one_in(4).then(|| 1 + random.below(8) as usize),
        };
        let habits = Habits::new(&mut random);
        let (scheduler, driver) = build(settings, &habits, &clock, &signs, &reports, &mut random);
        let elsewhere = scheduler.with_executor(Elsewhere(Arc::clone(&signs)));
        let world = World {
            start: clock.now(),
            clock,
            faces: Mutex::new(Some([scheduler, elsewhere])),
            model: Mutex::new(Model::new(settings)),
            random: Mutex::new(random),
            handles: Mutex::default(),
            stopping: Mutex::default(),
            reports,
            signs,
            habits,
        };
        (Arc::new(world), driver)
    }
}

impl Habits {
    fn new(random: &mut Random) -> Habits {
        let is_crowded = random.one_in(40);
        // A turn with more than a thousand tasks looks more than once at the clock, and at the request to stop. So neither
        // changes in the middle of a turn.
        let trouble = match random.below(8) {
            0 => Trouble::ExecutorsRefuse,
            1..4 => Trouble::None,
            _ => Trouble::DeadlinesMove,
        };
        let has_slow_runs = !is_crowded && trouble != Trouble::DeadlinesMove;
        let slow_runs = if has_slow_runs { random.below(3) * 8 } else { 0 };
        let last_order = (!is_crowded && random.one_in(6)).then(|| random.of_any_size(8));
        Habits {
            has_series: !random.one_in(3),
            trouble,
            last_order,
            slow_runs: AtomicU64::new(slow_runs),
            is_crowded,
        }
    }
}

fn build(
    settings: Settings,
    habits: &Habits,
    clock: &ManualClock,
    signs: &Arc<Signs>,
    reports: &Arc<Reports>,
    random: &mut Random,
) -> (Scheduler, Driver) {
    let ears = Arc::clone(reports);
    let mut builder = Scheduler::builder()
        .tick(Duration::from_nanos(settings.tick))
        .wheel_size(1 << random.below(13))
        .precision(settings.precision)
        .clock(clock.clone())
        .observer(Witness(Arc::clone(signs)))
        .on_panic(move |panic| ears.hear(panic.payload()));
    if let Some(places) = settings.places {
        builder = builder.max_pending(places);
    }
    // Otherwise it is `Inline`, which takes batches in another way.
    if habits.trouble == Trouble::ExecutorsRefuse || random.one_in(2) {
        builder = builder.executor(Moody(Arc::clone(signs)));
    }
    builder.build_driven().expect("good settings")
}

// ----- what is in it -----------------------------------------------------------------------

impl World {
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    /// Locks the model for one statement.
    pub(crate) fn ask<R>(&self, ask: impl FnOnce(&mut Model) -> R) -> R {
        ask(&mut self.model())
    }

    pub(crate) fn draw<R>(&self, draw: impl FnOnce(&mut Random) -> R) -> R {
        draw(&mut lock(&self.random))
    }

    /// The scheduler, while there is a handle to it.
    pub(crate) fn scheduler(&self, is_elsewhere: bool) -> Option<Scheduler> {
        lock(&self.faces).as_ref().map(|faces| faces[usize::from(is_elsewhere)].clone())
    }

    pub(crate) fn now(&self) -> Time {
        u64::try_from((self.clock.now() - self.start).as_nanos()).expect("within 500 years")
    }

    /// The number of the run that closes the scheduler, if that is still open.
    pub(crate) fn is_last_order(&self) -> bool {
        let model = self.model();
        self.habits.last_order == Some(model.counts.ran) && !model.ending.is_closed
    }

    pub(crate) fn keep(&self, stopping: Stopping) {
        lock(&self.stopping).get_or_insert(stopping);
    }

    pub(crate) fn stopping(&self) -> Option<Stopping> {
        lock(&self.stopping).take()
    }

    pub(crate) fn take_handles(&self) -> Vec<(usize, Cancellable)> {
        std::mem::take(&mut lock(&self.handles))
    }

    pub(crate) fn take_faces(&self) -> Option<[Scheduler; 2]> {
        lock(&self.faces).take()
    }

    pub(crate) fn run_begins(&self, id: usize) {
        let is_elsewhere = self.signs.is_elsewhere.load(Ordering::Relaxed);
        self.model().run_begins(id, self.now(), is_elsewhere);
        self.check_pending();
    }
}

// ----- what can be counted -----------------------------------------------------------------

impl World {
    /// S25
    pub(crate) fn check_pending(&self) {
        if let Some(scheduler) = self.scheduler(false) {
            assert_eq!(scheduler.pending(), self.model().held(), "pending");
        }
    }

    /// S26
    pub(crate) fn check_counts(&self) {
        let Some(scheduler) = self.scheduler(false) else { return };
        let (stats, model) = (scheduler.stats(), self.model());
        let refused = model.count(State::Over(End::Refused));
        assert_eq!(stats.scheduled() as usize, model.tasks.len() - refused, "scheduled");
        assert_eq!(stats.fired(), model.counts.ran, "fired");
        assert_eq!(stats.lateness().count(), model.counts.ran, "measured");
        assert_eq!(stats.lateness().max(), Duration::from_nanos(model.counts.latest), "the latest");
        assert_eq!(stats.panicked(), model.counts.panicked, "panicked");
        let [cancelled, called_off, dropped] = [End::Cancelled, End::CalledOff, End::Dropped]
            .map(|end| model.count(State::Over(end)) as u64);
        assert_eq!(stats.cancelled(), cancelled + called_off, "cancelled");
        assert_eq!(stats.dropped(), dropped, "dropped");
        assert_eq!(stats.pending() as usize, model.held(), "pending");
        assert_eq!(stats.rejected(), self.signs.rejected.load(Ordering::Relaxed), "rejected");
    }
}
