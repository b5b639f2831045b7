//! What all parts of one scheduler share: its handles, the threads that schedule and run, and its engine. It has no
//! thread and no loop.
//!
//! ```text
//!   Scheduler --.                                .-- Engine (tick thread or Driver)
//!   Scheduler --+--> Service --> Shared (this) <-+-- DueTask, DueBatch in executors' queues
//!               '   (last one dropped: stop)     '-- Leftovers
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | here | what is shared, the stop, what a program can see, how a scheduler is found by its id, and the lanes of the calling thread |
//! | [`admit`](super::admit) | the way in |
//! | [`run`](super::run) | the ways out |
//! | [`handles`](super::handles) | what handles do |
//! | [`this_thread`] | runs and turns of the calling thread |
//!
//! User code runs with no lock and no borrow of ours held, and its panics are caught (S11, S17).

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use super::this_thread;
use crate::backpressure::Backlog;
use crate::clock::clocks::{SystemClock, Watch};
use crate::clock::tick::Moment;
use crate::clock::timeline::Timeline;
use crate::engine::intake::Intake;
use crate::engine::intake::lane::LaneWriter;
use crate::engine::slots::trim;
use crate::engine::termination::Termination;
use crate::executor::numbered::ExecutorTable;
use crate::observe::Hooks;
use crate::observe::stats::{Counter, Stats};
use crate::platform::panics::quietly;
use crate::platform::sync::{Ordering, lock_std, thread_local};
use crate::wake::doorbell::Doorbell;
use crate::wheel::entry::SchedulerId;

/// How many tasks of one executor may be due and not done before producers of further ones are held back.
pub(crate) const MOST_OVERDUE: u64 = 32 * 1024;

/// What all parts of one scheduler share, grouped by the part that needs it.
pub(crate) struct Shared {
    // Everybody.
    /// No other scheduler that is alive has this id.
    pub(crate) id: SchedulerId,
    pub(super) me: Weak<Shared>,
    pub(crate) watch: Watch,

    // A producer.
    pub(crate) intake: Intake,
    pub(crate) bell: Arc<Doorbell>,
    /// What is due and not done, on the scheduler's executor or on the way there.
    pub(crate) backlog: Arc<Backlog>,
    /// The engine has a thread of its own, which alone turns it. So it may ask to be woken for what is not a task, and
    /// producers may wait for it. A driven engine asks for nothing, because otherwise a peak somewhere in the process would
    /// show in its virtual time.
    pub(crate) has_a_thread: bool,
    /// What was filed up to this [`Moment`] has come out of the wheel. Relaxed: if it is too old, a reset makes an entry
    /// more than it needs.
    pub(super) out_until: AtomicU64,

    // A runner.
    pub(crate) hooks: Hooks,
    pub(crate) own_executors: Arc<ExecutorTable>,

    // The end of life.
    pub(crate) termination: Termination,

    // A program that looks at the scheduler. The engine writes these.
    pub(crate) wakeups: Counter,
    pub(crate) rejected: Counter,
    /// When the engine wants to be turned again, as a [`Moment`], by its last turn before a sleep. 0 before the first
    /// sleep. Relaxed.
    pub(super) next_wakeup: AtomicU64,
    /// When another task may come home without a pause, as a [`Moment`]. Relaxed: only the number counts.
    pub(super) next_comes_home: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        watch: Watch,
        hooks: Hooks,
        bell: Arc<Doorbell>,
        max_pending: Option<usize>,
        shutdown_timeout: Duration,
        has_a_thread: bool,
    ) -> Arc<Shared> {
        let intake = Intake::new(watch.clock.tells_calls_apart(), max_pending); // the clock is a user's
        Arc::new_cyclic(|me: &Weak<Shared>| Shared {
            id: register(me),
            intake,
            watch,
            hooks,
            bell,
            own_executors: Arc::default(),
            termination: Termination::new(has_a_thread, shutdown_timeout),
            wakeups: Counter::default(),
            rejected: Counter::default(),
            backlog: Arc::new(Backlog::new(MOST_OVERDUE)),
            has_a_thread,
            out_until: AtomicU64::new(0),
            next_wakeup: AtomicU64::new(0),
            next_comes_home: AtomicU64::new(0),
            me: me.clone(),
        })
    }

    /// Returns true if the calling thread is inside a turn of this scheduler's engine.
    pub(crate) fn is_turned_here(&self) -> bool {
        this_thread::is_any_turn(|here| here == self.id)
    }

    // ----- the end -------------------------------------------------------------------------

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.termination.is_closing()
    }

    /// Stops the scheduler: nothing is accepted any more, and the engine comes to its end.
    pub(crate) fn stop(&self) {
        // The flag comes before the ring, which leaves a token whatever the threshold says, for a sleeper whose last look has
        // missed the flag. A stop happens once, and need not spare a wake-up.
        self.termination.begin();
        self.bell.ring();
    }

    // ----- sight ---------------------------------------------------------------------------

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // The tasks that left are read before those that came, so that a task which passes in the meantime counts as
        // pending. In the other order the difference could be negative.
        self.intake.each_lane(|lane| stats.add_what_left(&lane.counts));
        self.intake.each_lane(|lane| stats.scheduled += lane.counts.scheduled.get());
        let pending = self.pending_or(|| stats.scheduled.saturating_sub(stats.left));
        stats.left = stats.scheduled.saturating_sub(pending);
        stats.rejected = self.rejected.get();
        stats.wakeups = self.wakeups.get();
        stats
    }

    /// Returns how many tasks are pending. Without a limit this is what came less what left.
    pub(crate) fn pending(&self) -> usize {
        let pending = self.pending_or(|| {
            // In this order, a task that passes in the meantime is counted rather than missed.
            let left = self.intake.sum(|counts| counts.left.get());
            self.intake.sum(|counts| counts.scheduled.get()).saturating_sub(left)
        });
        usize::try_from(pending).unwrap_or(usize::MAX)
    }

    /// Returns how many tasks are pending, by the lanes if nothing else tells.
    fn pending_or(&self, by_lanes: impl FnOnce() -> u64) -> u64 {
        // Nothing is pending after the end, whatever is still counted: a series in its run is a leftover already (S29), and
        // what is refused now is counted for a moment.
        if self.is_closing() && self.termination.has_come() {
            return 0;
        }
        // By the limit, if there is one: the sum over lanes that change in the meantime may be above it (S25).
        self.intake.limit.pending().map_or_else(by_lanes, |pending| pending as u64)
    }

    /// Describes how the scheduler stands, in lines, for a person who looks at a hang. The numbers are read one after
    /// the other, and need not fit together while things move.
    pub(crate) fn dump(&self) -> String {
        // The clock is user code, so it is read before any lock is taken.
        let now = self.try_now();
        let when = |moment: Moment| match now.unwrap_or(moment) {
            _ if moment == Moment::NEVER => "for ever".to_owned(),
            now if now > moment => format!("until {} ns, {:?} ago", moment.0, now.since(moment)),
            now => format!("until {} ns, in {:?}", moment.0, moment.since(now)),
        };
        let has_ended = self.termination.has_come();
        let mut lines = vec![
            format!("scheduler {}", self.id.number()),
            now.map_or("now: the clock panics".into(), |now| format!("now: {} ns", now.0)),
            format!("is closing: {}, has ended: {has_ended}", self.is_closing()),
            format!("pending: {}, wake-ups: {}", self.pending(), self.wakeups.get()),
            match self.bell.threshold() {
                None => "doorbell: awake".to_owned(),
                Some(threshold) => format!("doorbell: asleep {}", when(threshold)),
            },
            match self.next_wakeup.load(Ordering::Relaxed) {
                0 => "engine: has not slept".to_owned(),
                at => format!("engine: has last said that it can wait {}", when(Moment(at))),
            },
        ];
        lines.extend(self.intake.describe());
        lines.join("\n")
    }
}

impl Drop for Shared {
    /// Leftovers that nobody has taken go with the scheduler. Its id may be used again.
    fn drop(&mut self) {
        self.drop_leftovers(self.termination.take().unwrap_or_default());
        lock_std(&ALIVE).remove(&self.id);
        trim::at_the_end();
        // The rest of the user's values. Quietly, because the last `Arc` may be that of a `DueTask`, whose run never
        // unwinds (S17).
        let clock = std::mem::replace(&mut self.watch.clock, Box::new(SystemClock));
        quietly(|| drop(clock));
        self.hooks.drop_all();
    }
}

// ----- how a scheduler is found -------------------------------------------------------------------

/// All schedulers that are alive.
static ALIVE: LazyLock<Mutex<HashMap<SchedulerId, Weak<Shared>>>> = LazyLock::new(Mutex::default);

/// The number of the last id that was given out. Relaxed: the lock of the schedulers that are alive orders it.
static LAST: AtomicU32 = AtomicU32::new(1);

/// Returns the id of a new scheduler.
fn register(shared: &Weak<Shared>) -> SchedulerId {
    let mut alive = lock_std(&ALIVE);
    loop {
        // Ids go around after four thousand million schedulers. One that is alive keeps its id.
        let id = SchedulerId::of(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        if let Entry::Vacant(place) = alive.entry(id) {
            place.insert(shared.clone());
            return id;
        }
    }
}

pub(super) fn find(id: SchedulerId) -> Option<Arc<Shared>> {
    lock_std(&ALIVE).get(&id)?.upgrade()
}

// ----- the lanes that the calling thread has at schedulers ------------------------------------------

/// A lane that this thread has.
pub(super) struct Held {
    scheduler: SchedulerId,
    /// As long as it is here, no other scheduler has this address.
    shared: Weak<Shared>,
    pub(super) timeline: Timeline,
    pub(super) has_system_clock: bool,
    pub(super) writer: LaneWriter,
}

/// All lanes of this thread. The one that was used last is in front.
struct Lanes(RefCell<Vec<Held>>);

thread_local!(static LANES: Lanes = const { Lanes(RefCell::new(Vec::new())) });

impl Drop for Lanes {
    /// Leaves the lanes to other threads.
    fn drop(&mut self) {
        for Held { shared, writer, .. } in self.0.get_mut().drain(..) {
            if let Some(shared) = shared.upgrade() {
                shared.intake.leave_lane(writer);
            }
        }
    }
}

/// Gives the calling thread's lane at this scheduler to `work`, which must not run user code.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "a part of each schedule and each run: a call takes 15 instructions"
)]
pub(crate) fn with_lane<R>(shared: &Shared, mut work: impl FnMut(&mut LaneWriter) -> R) -> R {
    let done = LANES.try_with(|lanes| {
        let lanes = &mut *lanes.0.borrow_mut();
        // By the address: the id of a scheduler that is gone may have been given to this one.
        if lanes.first().is_none_or(|held| !held.shared.ptr_eq(&shared.me)) {
            bring_to_front(lanes, shared);
        }
        work(&mut lanes[0].writer)
    });
    // A thread that is about to end has lost its thread-locals already, and may still schedule, in the destructor of
    // another one.
    done.unwrap_or_else(|_| with_a_borrowed_lane(shared, work))
}

/// Borrows a lane for the length of one call.
#[cold]
fn with_a_borrowed_lane<R>(shared: &Shared, mut work: impl FnMut(&mut LaneWriter) -> R) -> R {
    // It goes back at once, because nothing of this thread is left that would give it back later.
    let mut writer = shared.intake.take_lane();
    let result = work(&mut writer);
    shared.intake.leave_lane(writer);
    result
}

/// Gives what the calling thread has at the scheduler of this id to `work`, if it has a lane there.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a part of each cancel")]
pub(super) fn look<R>(scheduler: SchedulerId, work: impl FnOnce(&Held) -> Option<R>) -> Option<R> {
    let done = LANES.try_with(|lanes| {
        let lanes = lanes.0.borrow();
        let is_meant = |held: &&Held| held.scheduler == scheduler;
        // Most threads use one scheduler, so the first one is tried before the search.
        work(lanes.first().filter(is_meant).or_else(|| lanes.iter().find(is_meant))?)
    });
    done.ok().flatten()
}

/// Returns the scheduler of this id, if it is alive: from the calling thread's lane there, or from the registry.
pub(super) fn at(scheduler: SchedulerId) -> Option<Arc<Shared>> {
    look(scheduler, |held| held.shared.upgrade()).or_else(|| find(scheduler))
}

/// Puts the lane at this scheduler first, and takes one if the thread has none.
#[cold]
fn bring_to_front(lanes: &mut Vec<Held>, shared: &Shared) {
    let at = lanes.iter().position(|held| held.shared.ptr_eq(&shared.me)).unwrap_or_else(|| {
        // Schedulers that are gone are forgotten here, so a thread that makes and closes many of them remembers few.
        lanes.retain(|held| held.shared.strong_count() > 0);
        let scheduler = shared.id;
        let (timeline, has_system_clock) = (shared.watch.timeline, shared.watch.has_system_clock);
        let (shared, writer) = (shared.me.clone(), shared.intake.take_lane());
        lanes.push(Held { scheduler, shared, timeline, has_system_clock, writer });
        lanes.len() - 1
    });
    lanes.swap(0, at);
}
