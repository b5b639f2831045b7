//! The scheduler of a scheduler: what its handles, the threads that schedule and run, and its engine
//! share. It has no thread and no loop; it is where a task is **admitted**, and where it is **run**.
//!
//! ```text
//!   Scheduler --.                                .-- Engine (tick thread or Driver)
//!   Scheduler --+--> Service --> Shared (this) <-------+-- DueTask, DueBatch in executors' queues
//!               '   (last one dropped: stop)     '-- Leftovers
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | here | what is shared, and the way in |
//! | [`run`] | the ways out |
//! | [`registry`] | how a handle finds its scheduler, and who is turning on this thread |
//!
//! - TASK-1 `admit` is the one way in: place, deadline, holder, lane, doorbell, in this order, and each
//!   step is undone if a later one refuses (S20).
//! - TASK-2 `run` and `forfeit` are the two ways out by an executor, `wake_all` and `take_wakers` those of
//!   wakers; a cancel and a return are the others. Each claims the task first, so each task has exactly
//!   one end.
//! - TASK-3 User code runs with no lock and no borrow of ours held, and its panics are caught (S11,
//!   S17).

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::engine::intake::Intake;
use crate::engine::intake::lane::{Filled, Producer, Pushed, Refused};
use crate::engine::intake::seat::{self, with_seat};
use crate::engine::limit::Limit;
use crate::engine::ready::{Entry, Runner, Turn};
use crate::engine::slots::closure::Closure;
use crate::engine::slots::holder::{Repetition, Vacancy};
use crate::engine::slots::{Content, Phase, Wake, holder, trim};
use crate::engine::termination::{self, Leftover, Termination};
use crate::error::ScheduleError;
use crate::executor::backpressure::{Backlog, Flow};
use crate::executor::own::{OwnExecutor, OwnExecutors};
use crate::observe::Hooks;
use crate::observe::stats::{Counter, Stats};
use crate::platform::sync::{AtomicBool, InOrder, Ordering};
use crate::time::clock::Clock;
use crate::time::parking::Doorbell;
use crate::time::tick::{Moment, Timeline};
use crate::wheel::entry::{SchedulerId, TaskKey};

use super::registry;
/// How many tasks of one executor may be due and not started before producers of further ones are held back.
pub(crate) const MOST_OVERDUE: u64 = 32 * 1024;

/// A task that is due within so many nanoseconds adds to what is overdue; a later one does not yet.
const SOON: u64 = 100_000_000;

/// What all parts of one scheduler share.
pub(crate) struct Shared {
    pub(super) id: SchedulerId,
    serial: u64,
    pub(crate) timeline: Timeline,
    pub(crate) clock: Box<dyn Clock>,
    pub(super) is_in_real_time: bool,
    pub(crate) hooks: Hooks,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) intake: Intake,
    pub(crate) own_executors: Arc<OwnExecutors>,
    pub(crate) termination: Termination,
    pub(crate) shutdown_timeout: Duration,
    /// Written by the engine alone.
    pub(crate) wakeups: Counter,
    /// Written by the engine alone.
    pub(crate) rejected: Counter,
    /// What is due and not started, on the scheduler's executor or on the way there.
    pub(crate) backlog: Backlog,
    /// The engine has a thread of its own. Nobody else turns it, and everybody schedules: so it may ask to be
    /// woken for what is not a task, and producers may wait for it. A driven engine asks for nothing, or a peak
    /// somewhere in the process would show in its virtual time.
    pub(crate) has_a_thread: bool,
    /// How long a tick is that the user has asked for, in nanoseconds.
    pub(crate) tick: u64,
    limit: Option<Arc<Limit>>,
    /// Set once, by whoever stops the scheduler.
    pub(super) is_closing: AtomicBool,
    pub(super) me: Weak<Shared>,
}

/// What a builder decides about a scheduler.
pub(crate) struct Settings {
    pub(crate) timeline: Timeline,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) hooks: Hooks,
    pub(crate) max_pending: Option<usize>,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) has_a_thread: bool,
    pub(crate) tick: u64,
}

/// When a task was scheduled, and when it is to run.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    now: Moment,
    deadline: Moment,
}

/// The outcome of a move.
pub(crate) struct Moved {
    /// In the meantime.
    pub(crate) was_cancelled: bool,
    /// To be dropped where nothing is locked.
    pub(crate) old_executor: Option<Arc<OwnExecutor>>,
}

/// A place among the pending tasks of a scheduler, for one that is to move there. It is free again when this is dropped.
pub(crate) struct Reservation {
    shared: Arc<Shared>,
    is_taken: bool,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_taken {
            self.shared.leave_place();
        }
    }
}

impl Shared {
    pub(crate) fn new(settings: Settings, bell: Arc<Doorbell>) -> Arc<Shared> {
        Arc::new_cyclic(|me: &Weak<Shared>| {
            let (id, serial) = registry::register(me);
            Shared {
                id,
                serial,
                intake: Intake::new(settings.clock.tells_calls_apart()),
                is_in_real_time: settings.clock.runs_in_real_time(),
                timeline: settings.timeline,
                clock: settings.clock,
                hooks: settings.hooks,
                bell,
                own_executors: Arc::default(),
                termination: Termination::default(),
                shutdown_timeout: settings.shutdown_timeout,
                wakeups: Counter::default(),
                rejected: Counter::default(),
                backlog: Backlog::new(MOST_OVERDUE),
                has_a_thread: settings.has_a_thread,
                tick: settings.tick,
                limit: settings.max_pending.map(|places| Arc::new(Limit::new(places))),
                is_closing: AtomicBool::new(false),
                me: me.clone(),
            }
        })
    }

    pub(crate) fn id(&self) -> SchedulerId {
        self.id
    }

    /// The present. It is never "never", however far the clock is moved: what never comes is not due then either (S4).
    pub(crate) fn now(&self) -> Moment {
        self.timeline.moment(self.clock.now()).min(Moment(Moment::NEVER.0 - 1))
    }

    // ----- the way in ----------------------------------------------------------------------

    /// The times of a task that is to run after a delay. S1: before anything else that takes time.
    #[inline]
    pub(crate) fn after(&self, delay: Duration) -> Times {
        let now = self.now();
        Times { now, deadline: now.after(delay) }
    }

    /// The times of a task that is to run at an instant.
    pub(crate) fn at(&self, instant: Instant) -> Times {
        Times { now: self.now(), deadline: self.timeline.moment(instant) }
    }

    /// Takes a task in, or gives it back; TASK-1.
    pub(crate) fn admit<T: Content>(
        &self,
        times: Times,
        task: T,
        repetition: Repetition,
        executor: Option<&Arc<OwnExecutor>>,
    ) -> Result<TaskKey, (ScheduleError, T)> {
        let Times { now, deadline } = times;
        let vacancy = match self.find_place() {
            Ok(vacancy) => vacancy,
            Err(reason) => return Err((reason, task)),
        };
        let key = vacancy.fill(task, repetition, executor);
        let runner = match executor {
            _ if T::IS_WAKER => Runner::TickThread,
            None => Runner::Default,
            Some(_) => Runner::Own,
        };
        let turn = T::IS_SERIES.then_some(Turn::Even);
        let entry = Entry::new(key, deadline, deadline <= now, runner, turn);
        match self.announce(entry, now, true) {
            Ok(pushed) => {
                if pushed.filled {
                    self.hold_back(times, executor, T::IS_WAKER);
                }
                Ok(key)
            }
            Err(Refused) => Err((ScheduleError::Closed, T::take_back(self.take_back(key)))),
        }
    }

    /// Takes a place for a leftover of another scheduler.
    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Reservation, ScheduleError> {
        self.enter()?;
        Ok(Reservation { shared: Arc::clone(self), is_taken: false })
    }

    /// Takes a leftover of another scheduler in, which stays in its holder: so its handles go on working.
    pub(crate) fn admit_leftover(
        &self,
        task: Leftover,
        times: Times,
        executor: Option<&Arc<OwnExecutor>>,
        from: SchedulerId,
        mut place: Reservation,
    ) -> Result<Moved, ScheduleError> {
        let Some((runner, turn, mut old)) = holder::move_to(task.key, self.id, executor) else {
            return Ok(Moved { was_cancelled: true, old_executor: None });
        };
        let is_due = times.deadline <= times.now;
        let entry = Entry::new(task.key, times.deadline, is_due, runner, turn);
        place.is_taken = true; // whoever ends the task frees it
        if self.announce(entry, times.now, true).is_ok() {
            return Ok(Moved { was_cancelled: false, old_executor: old });
        }
        if holder::come_back(task.key, from, &mut old) {
            place.is_taken = false;
            return Err(ScheduleError::Closed);
        }
        // A cancel has found it here, and has counted itself and freed the place here.
        with_seat(self, |producer| producer.seat.counts.scheduled.add(1));
        Ok(Moved { was_cancelled: true, old_executor: old })
    }

    /// Takes a waker in, unless the instant has come.
    pub(crate) fn wake_at(
        &self,
        times: Times,
        waker: &Waker,
    ) -> Result<Option<TaskKey>, ScheduleError> {
        if times.deadline <= times.now {
            return if self.is_closing() { Err(ScheduleError::Closed) } else { Ok(None) };
        }
        let admitted = self.admit(times, Wake(waker.clone()), Repetition::NONE, None);
        admitted.map(Some).map_err(|(reason, _)| reason)
    }

    /// The same, where the clock was read a moment ago. A clock that does not run by itself is read again:
    /// it costs little, and who moves it by hand counts on it.
    pub(crate) fn wake_at_since(
        &self,
        read: Instant,
        instant: Instant,
        waker: &Waker,
    ) -> Result<Option<TaskKey>, ScheduleError> {
        let deadline = self.timeline.moment(instant);
        if !self.is_in_real_time || deadline <= self.timeline.moment(read) {
            return self.wake_at(self.at(instant), waker);
        }
        // Whatever the reading says, it is no stamp: one that lies ahead would hold up this thread's lane.
        let now = Moment(self.intake.reading_of_last_turn());
        self.wake_at(Times { now, deadline }, waker)
    }

    /// A place among the pending tasks, and a holder.
    fn find_place(&self) -> Result<Vacancy, ScheduleError> {
        self.enter()?;
        Vacancy::take().ok_or_else(|| {
            self.leave_place();
            ScheduleError::Full
        })
    }

    fn enter(&self) -> Result<(), ScheduleError> {
        if self.is_closing() {
            return Err(ScheduleError::Closed);
        }
        if self.limit.as_ref().is_some_and(|limit| !limit.enter()) {
            return Err(ScheduleError::Full);
        }
        Ok(())
    }

    fn leave_place(&self) {
        self.limit.iter().for_each(|limit| limit.leave());
    }

    /// Undoes what was done for a task that the engine has refused.
    #[cold]
    fn take_back(&self, key: TaskKey) -> Closure {
        self.leave_place();
        // The executor is not dropped by this: the caller has it too.
        holder::withdraw(key).closure
    }

    /// Tells the engine of a pending task, and wakes it if need be. `is_new`: it counts as
    /// scheduled, before anybody can see it run (COUNT-1).
    pub(super) fn announce(
        &self,
        entry: Entry,
        now: Moment,
        is_new: bool,
    ) -> Result<Pushed, Refused> {
        let record = entry.record(self.intake.stamp(now.0));
        let pushed = with_seat(self, |producer| {
            let counts = &producer.seat.counts;
            counts.scheduled.add(u64::from(is_new));
            let pushed = producer.push(record);
            if pushed.is_err() {
                producer.seat.counts.scheduled.add(u64::from(is_new).wrapping_neg());
            }
            pushed
        })?;
        let is_much = pushed.filled && Intake::is_much(self.filled());
        self.bell.ring_if_earlier(entry.moment(), entry.is_due_now() || is_much);
        Ok(pushed)
    }

    /// The block that the calling thread has filled last.
    #[cold]
    fn filled(&self) -> Filled {
        with_seat(self, |producer| producer.filled())
    }

    /// Holds a producer back that is far ahead: of the engine, or, if its tasks are due soon, of the executor
    /// that is to run them. Nothing of ours is borrowed or locked here, and the task is accepted already.
    ///
    /// A thread that turns an engine, of whatever scheduler, is never held: others wait for it. Nor is one that runs a
    /// task held for an executor: it may be one of those that the others wait for.
    #[cold]
    fn hold_back(&self, times: Times, executor: Option<&Arc<OwnExecutor>>, is_waker: bool) {
        let is_exempt = !self.has_a_thread || registry::is_turning();
        if is_exempt || self.intake.is_slow(self.filled(), times.now.0) {
            return;
        }
        let goes_on = || {
            self.bell.ring_if_asleep();
            !self.is_closing()
        };
        let pressure = self.intake.pressure();
        if pressure.is_over(self.intake.flow().ahead) {
            pressure.hold_back(|| if goes_on() { self.intake.flow() } else { Flow::NONE });
        } else if !is_waker
            && !termination::is_in_a_run()
            && times.deadline <= times.now.after_nanos(SOON)
        {
            executor.map_or(&self.backlog, |own| own.backlog()).hold_back(goes_on);
        }
    }

    // ----- the end -------------------------------------------------------------------------

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire) // pairs with `stop`
    }

    /// Stops the scheduler: nothing is accepted any more, and the engine comes to its end.
    pub(crate) fn stop(&self) {
        // Before the bell: see `Doorbell`, WAKE-1. And before the engine looks at series in their runs: END-5.
        self.is_closing.store_in_order(true);
        self.bell.ring_if_asleep();
        self.bell.ring();
    }

    // ----- sight ---------------------------------------------------------------------------

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.intake.each_seat(|seat| stats.add_what_left(&seat.counts));
        self.intake.each_seat(|seat| stats.add_what_came(&seat.counts));
        if self.is_closing() {
            let pending = self.termination.in_run(|| stats.scheduled.saturating_sub(stats.left));
            stats.left = stats.scheduled.saturating_sub(pending);
        }
        stats.rejected = self.rejected.get();
        stats.wakeups = self.wakeups.get();
        stats
    }

    /// Tasks that are pending: what came less what left, read in the opposite order, so that a
    /// task that passes meanwhile counts rather than being missed.
    pub(crate) fn pending(&self) -> usize {
        // A series in its run is a leftover already (S29), and what is refused now is counted for a moment.
        if self.is_closing() && self.termination.has_come() {
            return 0;
        }
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

impl seat::Host for Shared {
    fn id(&self) -> SchedulerId {
        self.id
    }

    fn serial(&self) -> u64 {
        self.serial
    }

    fn take_seat(&self) -> Producer {
        self.intake.take_seat(self.limit.as_ref(), &self.bell)
    }

    fn leave_seat(&self, producer: Producer) {
        self.intake.leave_seat(producer);
    }

    fn downgrade(&self) -> Weak<dyn seat::Host + Send + Sync> {
        Weak::<Shared>::clone(&self.me)
    }
}

impl Drop for Shared {
    /// Leftovers that nobody has taken go with the scheduler.
    fn drop(&mut self) {
        let leftovers = self.termination.take().unwrap_or_default();
        for task in leftovers {
            self.drop_task(task.key, Phase::Returned);
        }
        registry::forget(self.id);
        trim::at_the_end();
    }
}
