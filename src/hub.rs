//! The hub of a scheduler: what its handles, the threads that schedule and run, and its engine
//! share. It has no thread and no loop; it is where a task is **admitted**, and where it is **run**.
//!
//! ```text
//!   Scheduler --.                                .-- Engine (tick thread or Driver)
//!   Scheduler --+--> Face --> Hub (this) <-------+-- DueTask, DueBatch in executors' queues
//!               '   (last one dropped: stop)     '-- Leftovers
//! ```
//!
//! - B1 `admit` is the one way in: place, deadline, holder, lane, doorbell, in this order, and each
//!   step is undone if a later one refuses (S20).
//! - B2 `run` and `forfeit` are the two ways out by an executor; a cancel and a return are the
//!   others. Each claims the task first, so each task has exactly one end.
//! - B3 User code runs with no lock and no borrow of ours held, and its panics are caught (S11,
//!   S17).

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::ScheduleError;
use crate::executor::due::{self, Due};
use crate::executor::own::{OwnExecutor, OwnExecutors};
use crate::front;
use crate::intake::Intake;
use crate::intake::lane::{Producer, Refused};
use crate::intake::seat::{self, with_seat};
use crate::key::TaskKey;
use crate::limit::Limit;
use crate::observe::{Hooks, Payload, caught};
use crate::oneshot::End;
use crate::parking::Doorbell;
use crate::repeat::next_run;
use crate::stats::{Counter, Stats};
use crate::task::{Body, Closure, Kind, Phase, Running, holder, memory};
use crate::tick::{Moment, Timeline};

/// What all parts of one scheduler share.
pub(crate) struct Hub {
    id: u32,
    pub(crate) timeline: Timeline,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) hooks: Hooks,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) intake: Intake,
    pub(crate) own_executors: Arc<OwnExecutors>,
    pub(crate) end: End,
    pub(crate) shutdown_timeout: Duration,
    /// Written by the engine alone.
    pub(crate) wakeups: Counter,
    /// Written by the engine alone.
    pub(crate) rejected: Counter,
    limit: Option<Arc<Limit>>,
    /// Set once, by whoever stops the scheduler.
    is_closing: AtomicBool,
    me: Weak<Hub>,
}

/// What a builder decides about a hub.
pub(crate) struct Settings {
    pub(crate) timeline: Timeline,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) hooks: Hooks,
    pub(crate) max_pending: Option<usize>,
    pub(crate) shutdown_timeout: Duration,
}

/// When a task is to run.
#[derive(Clone, Copy)]
pub(crate) enum When {
    After(Duration),
    At(Instant),
}

/// A task on its way in.
pub(crate) struct Admission {
    pub(crate) body: Body,
    pub(crate) kind: Kind,
    pub(crate) period: u64,
}

impl Admission {
    pub(crate) fn once(closure: Closure, executor: Option<Arc<OwnExecutor>>) -> Admission {
        Admission { body: Body { closure, executor }, kind: Kind::Once, period: 0 }
    }
}

impl Hub {
    pub(crate) fn new(settings: Settings, bell: Arc<Doorbell>) -> Arc<Hub> {
        Arc::new_cyclic(|me: &Weak<Hub>| Hub {
            id: register(me),
            intake: Intake::new(settings.clock.tells_calls_apart()),
            timeline: settings.timeline,
            clock: settings.clock,
            hooks: settings.hooks,
            bell,
            own_executors: Arc::default(),
            end: End::default(),
            shutdown_timeout: settings.shutdown_timeout,
            wakeups: Counter::default(),
            rejected: Counter::default(),
            limit: settings.max_pending.map(|places| Arc::new(Limit::new(places))),
            is_closing: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn now(&self) -> Moment {
        self.timeline.moment(self.clock.now())
    }

    // ----- the way in ----------------------------------------------------------------------

    /// Takes a task in, or gives it back; B1.
    pub(crate) fn admit(
        &self,
        when: When,
        task: Admission,
    ) -> Result<TaskKey, (ScheduleError, Admission)> {
        if self.is_closing() {
            return Err((ScheduleError::Closed, task));
        }
        if self.limit.as_ref().is_some_and(|limit| !limit.enter()) {
            return Err((ScheduleError::Full, task));
        }
        let admitted = self.place(when, task);
        if admitted.is_err() {
            self.limit.iter().for_each(|limit| limit.leave());
        }
        admitted
    }

    /// Puts a task into a holder and its name into the caller's lane.
    fn place(&self, when: When, task: Admission) -> Result<TaskKey, (ScheduleError, Admission)> {
        let now = self.now(); // S1: before anything that takes time, after the call
        let deadline = match when {
            When::After(delay) => now.after(delay),
            When::At(instant) => self.timeline.moment(instant),
        };
        let Some(vacancy) = memory::vacancy() else {
            return Err((ScheduleError::Full, task));
        };
        let Admission { body, kind, period } = task;
        let has_own_executor = body.executor.is_some();
        let key = vacancy.fill(body, kind, period);
        let entry = front::Entry::new(key, deadline, deadline <= now, has_own_executor);
        if let Err(Refused) = self.announce(entry, now, true) {
            let body = holder::withdraw(key);
            return Err((ScheduleError::Closed, Admission { body, kind, period }));
        }
        Ok(key)
    }

    /// Tells the engine of a pending task, and wakes it if need be. `is_new`: it counts as
    /// scheduled, before anybody can see it run (N1).
    fn announce(&self, entry: front::Entry, now: Moment, is_new: bool) -> Result<(), Refused> {
        let record = entry.record(self.intake.stamp(now.0));
        let has_a_backlog = with_seat(self, |producer| {
            let counts = &producer.seat.counts;
            counts.scheduled.add(u64::from(is_new));
            match producer.push(record) {
                Ok(()) => Ok(producer.has_a_backlog()),
                Err(refused) => {
                    producer.seat.counts.scheduled.add(u64::from(is_new).wrapping_neg());
                    Err(refused)
                }
            }
        })?;
        self.bell.ring_if_earlier(entry.moment(), entry.is_due_now() || has_a_backlog);
        Ok(())
    }

    // ----- the ways out --------------------------------------------------------------------

    /// Runs a task that has been claimed. For `close_and_run` too: `repeats` says whether a series
    /// goes on.
    pub(crate) fn run_claimed(&self, task: Running, due: Due, repeats: bool, frees: bool) {
        let late = self.now().since(due.deadline);
        let is_series = task.kind() != Kind::Once;
        with_seat(self, |producer| {
            let seat = &producer.seat;
            seat.counts.fired.add(1);
            seat.counts.record_lateness(late);
            if frees && !is_series {
                seat.count_left();
            }
        });
        if is_series { self.run_series(task, due, repeats, frees) } else { self.run_once(task) }
    }

    fn run_once(&self, task: Running) {
        let (Body { closure, executor }, claimed) = task.into_body();
        let ran = caught(|| closure.run_once());
        let dropped = caught(|| drop(executor));
        if ran.is_err() {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
        }
        claimed.end();
        ran.err().into_iter().chain(dropped.err()).for_each(|panic| self.hooks.report(panic));
    }

    fn run_series(&self, mut task: Running, due: Due, repeats: bool, frees: bool) {
        let ran = caught(|| task.run_in_place());
        let left_over = match ran {
            Ok(ControlFlow::Continue(())) if repeats => self.rearm(task, due).err(),
            _ => Some(task),
        };
        if ran.is_err() {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
        }
        let dropped = left_over.map(|task| self.finish_series(task, frees));
        ran.err().into_iter().chain(dropped.flatten()).for_each(|panic| self.hooks.report(panic));
    }

    /// Sets a series to its next run; gives it back when a cancel or a close has ended it.
    fn rearm(&self, task: Running, due: Due) -> Result<(), Running> {
        let now = self.now();
        let tick = self.timeline.tick_nanos().get();
        let next = next_run(task.kind(), task.period(), due.deadline, now, tick);
        let has_own_executor = task.has_own_executor();
        let key = task.rearm()?;
        let entry = front::Entry::new(key, next, next <= now, has_own_executor);
        match self.announce(entry, now, false) {
            Ok(()) => Ok(()),
            // The scheduler closed during the run, which so was the last one. If the claim fails,
            // a cancel has just ended the series.
            Err(Refused) => Running::claim(key, Phase::Pending).map_or(Ok(()), Err),
        }
    }

    /// The end of a series: drops its closure. What a panicking `Drop` has thrown comes back.
    fn finish_series(&self, task: Running, frees: bool) -> Option<Payload> {
        let (body, claimed) = task.into_body();
        if frees && !claimed.was_cancelled() {
            with_seat(self, |producer| producer.seat.count_left());
        }
        let dropped = caught(|| drop(body));
        claimed.end();
        dropped.err()
    }

    /// Drops a task that stands in `from`, and counts it as dropped, unless it was cancelled.
    pub(crate) fn drop_task(&self, key: TaskKey, from: Phase) {
        let Some(task) = Running::claim(key, from) else { return };
        let (body, claimed) = task.into_body();
        let frees = from == Phase::Pending && !claimed.was_cancelled();
        with_seat(self, |producer| {
            producer.seat.counts.dropped.add(u64::from(!claimed.was_cancelled()));
            if frees {
                producer.seat.count_left();
            }
        });
        let dropped = caught(|| drop(body));
        claimed.end();
        dropped.err().into_iter().for_each(|panic| self.hooks.report(panic));
    }

    /// Drops the body of a task that had been accepted once, and was refused elsewhere.
    pub(crate) fn drop_body(&self, body: Body) {
        with_seat(self, |producer| producer.seat.counts.dropped.add(1));
        let dropped = caught(|| drop(body));
        dropped.err().into_iter().for_each(|panic| self.hooks.report(panic));
    }

    /// Marks a pending task as returned; `None` when it was cancelled. It gives its place free.
    pub(crate) fn give_back(&self, key: TaskKey) -> Option<(Kind, u64)> {
        let returned = holder::give_back(key)?;
        with_seat(self, |producer| producer.seat.count_left());
        Some(returned)
    }

    // ----- the end -------------------------------------------------------------------------

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire) // pairs with `stop`
    }

    /// Stops the scheduler: nothing is accepted any more, and the engine comes to its end.
    pub(crate) fn stop(&self) {
        self.is_closing.store(true, Ordering::SeqCst); // before the bell: see `Doorbell`, P1
        self.bell.ring_if_asleep();
        self.bell.ring();
    }

    // ----- sight ---------------------------------------------------------------------------

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.intake.each_seat(|seat| stats.add_what_left(&seat.counts));
        self.intake.each_seat(|seat| stats.add_what_came(&seat.counts));
        stats.rejected = self.rejected.get();
        stats.wakeups = self.wakeups.get();
        stats
    }

    /// Tasks that are pending: what came less what left, read in the opposite order, so that a
    /// task that passes meanwhile counts rather than being missed.
    pub(crate) fn pending(&self) -> usize {
        let (mut left, mut came) = (0, 0);
        self.intake.each_seat(|seat| left += seat.counts.left.get());
        self.intake.each_seat(|seat| came += seat.counts.scheduled.get());
        usize::try_from(came.saturating_sub(left)).unwrap_or(usize::MAX)
    }

    /// Runs started so far.
    pub(crate) fn fired(&self) -> u64 {
        let mut fired = 0;
        self.intake.each_seat(|seat| fired += seat.counts.fired.get());
        fired
    }
}

impl seat::Host for Hub {
    fn id(&self) -> u32 {
        self.id
    }

    fn take_seat(&self) -> Producer {
        self.intake.take_seat(self.limit.as_ref(), &self.bell)
    }

    fn leave_seat(&self, producer: Producer) {
        self.intake.leave_seat(producer);
    }

    fn downgrade(&self) -> Weak<dyn seat::Host + Send + Sync> {
        Weak::<Hub>::clone(&self.me)
    }
}

impl due::Host for Hub {
    /// B2.
    fn run(&self, due: Due) {
        if let Some(task) = Running::claim(due.key, Phase::Pending) {
            self.run_claimed(task, due, true, true);
        }
    }

    /// B2.
    fn forfeit(&self, due: Due) {
        self.drop_task(due.key, Phase::Pending);
    }

    fn prefetch(&self, due: Due) {
        memory::prefetch(due.key.slot);
    }

    fn is_pending(&self, due: Due) -> bool {
        holder::pending_word(due.key).is_some()
    }

    fn is_repeating(&self, due: Due) -> bool {
        holder::pending_word(due.key).is_some_and(|word| word.kind() != Kind::Once)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn instant(&self, moment: Moment) -> Instant {
        self.timeline.instant(moment)
    }

    fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Hub {
    /// Leftovers that nobody has taken go with the hub.
    fn drop(&mut self) {
        let leftovers = self.end.take().unwrap_or_default();
        for task in leftovers {
            self.drop_task(task.key, Phase::Returned);
        }
        hubs().alive.remove(&self.id);
    }
}

// ----- finding a hub by its number, for handles ------------------------------------------------

/// All hubs that are alive.
struct Hubs {
    alive: HashMap<u32, Weak<Hub>>,
    last: u32,
}

static HUBS: LazyLock<Mutex<Hubs>> =
    LazyLock::new(|| Mutex::new(Hubs { alive: HashMap::new(), last: 0 }));

fn hubs() -> MutexGuard<'static, Hubs> {
    HUBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new hub a number that no other has.
fn register(hub: &Weak<Hub>) -> u32 {
    let mut hubs = hubs();
    loop {
        hubs.last = hubs.last.wrapping_add(1);
        let id = hubs.last;
        if let Entry::Vacant(place) = hubs.alive.entry(id) {
            place.insert(hub.clone());
            return id;
        }
    }
}

fn find(id: u32) -> Option<Arc<Hub>> {
    hubs().alive.get(&id)?.upgrade()
}

/// Counts a cancel, by the calling thread's seat at that hub. A hub that is gone counts no more.
pub(crate) fn count_cancel(hub: u32, frees_a_place: bool) {
    let counted = seat::with_seat_of(hub, |seat| seat.count_cancel(frees_a_place));
    if counted.is_none() {
        if let Some(hub) = find(hub) {
            with_seat(&*hub, |producer| producer.seat.count_cancel(frees_a_place));
        }
    }
}

/// Reports the panic of a captured value's `Drop`.
pub(crate) fn report(hub: u32, panic: Payload) {
    match find(hub) {
        Some(hub) => hub.hooks.report(panic),
        None => crate::observe::discard(panic),
    }
}

// ----- who is turning ---------------------------------------------------------------------------

thread_local! {
    /// The hubs whose engines are being turned on this thread, the innermost last.
    static TURNING: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Marks the calling thread as the one that turns this hub's engine, until it is dropped.
pub(crate) struct TurningMark(());

impl TurningMark {
    pub(crate) fn new(hub: &Hub) -> TurningMark {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().push(hub.id));
        TurningMark(())
    }
}

impl Drop for TurningMark {
    fn drop(&mut self) {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().pop());
    }
}

impl Hub {
    /// Whether the calling thread is inside a turn of this hub's engine.
    pub(crate) fn is_turned_here(&self) -> bool {
        TURNING.try_with(|turning| turning.borrow().contains(&self.id)).unwrap_or(false)
    }
}
