//! The way in: how a task is admitted, and what holds its producer back.
//!
//! A schedule reads the clock, counts the task towards the limit, fills a slot, publishes a record in the calling
//! thread's lane, and rings the doorbell if the engine sleeps for too long. Each step is undone if a later one refuses
//! the task (S20), unless the last turn has found the task in the meantime. Every task comes in here, also a leftover of
//! another scheduler, which keeps its holder.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::shared::{Shared, with_lane};
use super::this_thread;
use crate::backpressure::Flow;
use crate::clock::repeat::Period;
use crate::clock::tick::{Moment, Times};
use crate::engine::intake::lane::Record;
use crate::engine::slots::{Content, depot, task};
use crate::error::{Refused, ScheduleError};
use crate::executor::numbered::NumberedExecutor;
use crate::platform::panics::quietly;
use crate::wheel::entry::{Entry, Runner, TaskKey};

/// A producer waits for a slow executor only with tasks that are due within this time, in nanoseconds.
const SOON: u64 = 100_000_000;

/// The right to one more pending task at a scheduler, for a task that is to move there. Unless the move has used it, it is
/// given back on drop.
pub(crate) struct Reservation {
    pub(crate) shared: Arc<Shared>,
    is_used: bool,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_used {
            self.shared.intake.limit.leave();
        }
    }
}

/// The one way to publish a record, mostly while its task is held. A ring may run a user's waker, so it comes after that
/// (WORD-5).
pub(super) struct Publication<'a> {
    shared: &'a Shared,
    is_new: bool,
    published: Option<(Entry, bool)>,
}

impl Publication<'_> {
    /// `is_new`: the task counts as scheduled now.
    #[inline]
    pub(super) fn new(shared: &Shared, is_new: bool) -> Publication<'_> {
        Publication { shared, is_new, published: None }
    }

    /// Publishes a record, once. Returns false if the engine is closed.
    ///
    /// With a `Caller` of its own, a caller has a closure below of its own, which is inlined. That saves 28 instructions of a
    /// schedule and 22 of a repetition. All others say `()`, and share one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a repetition takes 35 instructions more with a call")]
    #[expect(clippy::extra_unused_type_parameters, reason = "it makes types of closures differ")]
    pub(super) fn publish<Caller>(&mut self, entry: Entry, now: Moment) -> bool {
        let (shared, is_new) = (self.shared, self.is_new);
        let record = Record { entry, stamp: shared.intake.stamp(now.0) };
        let has_filled = with_lane(shared, move |writer| writer.publish(record, is_new));
        self.published = has_filled.ok().map(|has_filled| (entry, has_filled));
        self.published.is_some()
    }

    /// Wakes the engine, if need be, when the task is not held any more. Returns true if the record has filled a block.
    ///
    /// After the publication: in the other order the sleeper could arm the bell in between, look at the lanes too early, and
    /// sleep past this task (WAKE-1).
    #[inline]
    pub(super) fn ring(self) -> bool {
        let Some((entry, has_filled)) = self.published else { return false };
        // Many full blocks wake the engine whatever is due, or a flow of tasks that are due late would fill the memory
        // while the engine sleeps. Also if slots run short, so that it adds some before a producer has to.
        let is_much = has_filled && (self.shared.intake.is_far_ahead() || depot::wants_a_block());
        self.shared.bell.ring_if_earlier(entry.moment(), entry.is_due_now() || is_much);
        has_filled
    }
}

impl Shared {
    /// Takes a task in, or gives it back with the reason. All steps are inlined here: with a call for each, and what they
    /// return in memory, a schedule takes 60 instructions more.
    #[inline]
    pub(crate) fn admit<T: Content>(
        &self,
        times: Times,
        task: T,
        period: Option<Period>,
        executor: Option<&Arc<NumberedExecutor>>,
    ) -> Result<TaskKey, (ScheduleError, T)> {
        let Times { now, deadline } = times;
        debug_assert_eq!(T::IS_SERIES, period.is_some(), "a series has a period");
        // The limit comes first. A task that is refused here has touched no slot and no lane, so there is nothing to
        // undo.
        if let Err(reason) = self.count_in(T::IS_COUNTED) {
            return Err((reason, task));
        }
        // The closure is in its holder before its record is in a lane: the engine may run the task as soon as it sees
        // the record.
        let filled = task::fill(task, period, executor, deadline, self.id);
        let key = filled.map_err(|task| {
            // Without memory for a holder the task is refused, and has to leave the count that it has entered.
            if T::IS_COUNTED {
                self.intake.limit.leave();
            }
            (ScheduleError::Full, task)
        })?;
        // The entry names the runner, so that the tick thread need not look into the holder, which is a cache
        // miss.
        let runner = match executor {
            _ if T::IS_WAKER && T::IS_COUNTED => Runner::TickThread,
            _ if T::IS_WAKER => Runner::TickThreadUncounted,
            None => Runner::Default,
            Some(_) => Runner::Own,
        };
        let (slot, number) = (key.slot, key.birth());
        let entry = Entry::new(slot, number, deadline, deadline <= now, runner, T::IS_SERIES);
        let mut filing = Publication::new(self, T::IS_COUNTED);
        if !filing.publish::<T>(entry, now) {
            // The engine has closed since the first look. It has not seen the record.
            return self.take_back(key).map_or(Ok(key), |task| Err((ScheduleError::Closed, task)));
        }
        // Only a push that has filled a block asks whether this thread is too far ahead, so the question costs
        // nothing for 127 of 128 tasks. The task is accepted already, so a wait here delays only its producer.
        let has_filled = filing.ring();
        if has_filled && !T::IS_WAKER {
            self.hold_back(times, executor);
        } else if has_filled && T::IS_COUNTED {
            self.hold_wakers_back(now); // one that is counted nowhere stands for many items, so it is rare
        }
        Ok(key)
    }

    /// Reserves room for a leftover of another scheduler.
    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Reservation, ScheduleError> {
        self.count_in(true)?;
        Ok(Reservation { shared: Arc::clone(self), is_used: false })
    }

    /// Takes in a leftover of the scheduler `from`. It stays in its holder, so its handles go on working. `now` is the
    /// present here, and `deadline` translates its deadline there into the one here. It must not run user code. Returns false if
    /// a cancel has won while the task was being moved.
    pub(crate) fn admit_leftover(
        &self,
        key: TaskKey,
        from: &Shared,
        now: Moment,
        deadline: impl FnOnce(Moment) -> Moment,
        executor: Option<&Arc<NumberedExecutor>>,
        mut reservation: Reservation,
    ) -> Result<bool, ScheduleError> {
        let mut filing = Publication::new(self, true);
        let announce = |entry| filing.publish::<()>(entry, now);
        let times = |before| Times { now, deadline: deadline(before) };
        let moved = task::move_to(key, (from.id, self.id), executor, times, announce);
        let Some(moved) = moved else { return Ok(false) };
        let old_executor = moved.map_err(|Refused| ScheduleError::Closed)?;
        reservation.is_used = true; // the end of the task counts it out
        filing.ring();
        // It may be the last hold on an executor, which is user code.
        from.hooks.catch(|| drop(old_executor));
        Ok(true)
    }

    /// Takes in what is to be kept of a waker. Returns `None` if the instant has come: then nothing is kept. If the engine is far
    /// behind, nothing is kept either. The waker is woken, and the key is that of no task.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `Scheduler::alarm`")]
    pub(crate) fn wake_at<T: Content>(
        &self,
        times: Times,
        waker: &Waker,
        kept: impl FnOnce() -> T,
    ) -> Result<Option<TaskKey>, ScheduleError> {
        // An instant that has passed needs no slot: the caller wakes its task itself.
        if times.deadline <= times.now {
            return if self.is_closing() { Err(ScheduleError::Closed) } else { Ok(None) };
        }
        // What the thread knows itself comes first. It is nearly always false.
        let is_held = || with_lane(self, |writer| writer.wait.is_some());
        if T::IS_COUNTED && is_held() && self.holds_wakers_on() {
            // The task polls again, until it is let in. Its thread never sleeps here (PRESSURE-3).
            waker.wake_by_ref();
            return Ok(Some(TaskKey::NONE));
        }
        let admitted = self.admit(times, kept(), None, None);
        admitted.map(Some).map_err(|(reason, waker)| {
            quietly(|| drop(waker)); // it is a user's, and its panic must not cost the caller the reason
            reason
        })
    }

    /// Returns the times of a waker, by a clock that was read a moment ago. A clock that does not run by itself is read again:
    /// it costs little, and a test that moves the clock by hand relies on it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `Scheduler::alarm`")]
    pub(crate) fn times_since(&self, read: Instant, instant: Instant) -> Times {
        let deadline = self.watch.timeline.moment(instant);
        // A deadline at or before the reading may have passed by now, and needs a reading that is exact.
        if !self.watch.is_in_real_time || deadline <= self.watch.timeline.moment(read) {
            return self.watch.at(instant);
        }
        // The caller's reading may lie ahead of the clock, so it cannot be the stamp: stamps in a lane never go down, and
        // later records would have to wait for it. The reading of the last turn is never ahead.
        Times { now: Moment(self.intake.reading_of_last_turn()), deadline }
    }

    /// Counts a task that `is_counted` towards the limit. Refuses it if the scheduler is closed or full.
    #[inline]
    fn count_in(&self, is_counted: bool) -> Result<(), ScheduleError> {
        if self.is_closing() {
            return Err(ScheduleError::Closed);
        }
        let has_room = !is_counted || self.intake.limit.enter();
        if has_room { Ok(()) } else { Err(ScheduleError::Full) }
    }

    /// Undoes what was done for a task that the engine has refused. `None` if its last turn has found the task in its holder
    /// in the meantime. Then the task is accepted, and is a leftover.
    #[cold]
    fn take_back<T: Content>(&self, key: TaskKey) -> Option<T> {
        let task = task::withdraw(key);
        if task.is_none() {
            with_lane(self, |writer| writer.lane.counts.scheduled.add(1));
        } else if T::IS_COUNTED {
            self.intake.limit.leave();
        }
        task
    }

    /// Holds a producer back that is far ahead: of the engine, or, if its tasks are due soon, of the executor that is
    /// to run them. Nothing of ours is borrowed or locked here.
    #[cold]
    fn hold_back(&self, times: Times, executor: Option<&Arc<NumberedExecutor>>) {
        let is_held = self.hold_back_for_engine(times.now);
        // A task that is due later gives the executor time to catch up. A thread that runs a task does not wait for an
        // executor, because the executor may need this very thread.
        let is_soon = times.deadline <= times.now.after_nanos(SOON);
        if !is_held && is_soon && !this_thread::is_in_a_run() && !self.is_exempt(times.now) {
            let done = || self.intake.sum(|counts| counts.done.get());
            match executor {
                None => self.backlog.hold_back(done, || self.goes_on()),
                Some(own) => own.backlog.hold_back(|| 0, || self.goes_on()),
            }
        }
    }

    /// Holds a producer back that is far ahead of the engine. Returns false if it is not.
    #[cold]
    pub(super) fn hold_back_for_engine(&self, now: Moment) -> bool {
        // A closing scheduler holds nobody back: its engine takes nothing in any more, so the wait would last for
        // nothing.
        let pressure = &self.intake.pressure;
        let is_held = pressure.is_over(self.intake.ahead()) && !self.is_exempt(now);
        if is_held {
            pressure.hold_back(|| if self.goes_on() { self.intake.flow() } else { Flow::NONE });
        }
        is_held
    }

    /// Wakes the engine, which producers wait for. Returns false if the scheduler ends.
    fn goes_on(&self) -> bool {
        // The engine may sleep towards a later deadline while the lanes are full, and would take nothing in until
        // then.
        self.bell.ring_if_asleep();
        !self.is_closing()
    }

    /// Returns true if the calling thread is not to be held back.
    fn is_exempt(&self, now: Moment) -> bool {
        // The thread that would take the tasks in may be this one: a driven engine has no other. A thread that turns
        // an engine, of whatever scheduler, is never held, because others wait for it.
        let is_free = !self.has_a_thread || this_thread::is_turning();
        // And a producer that is slow by itself has not caused the flood.
        is_free || self.intake.is_slow(with_lane(self, |writer| writer.filled_since), now.0)
    }

    /// Holds back the next wakers of a thread that is far ahead of the engine. The thread belongs to a runtime, so it
    /// goes on (PRESSURE-3).
    #[cold]
    fn hold_wakers_back(&self, now: Moment) {
        if !self.is_exempt(now) {
            let mut wait = self.intake.pressure.wait(self.intake.flow());
            with_lane(self, |writer| writer.wait = wait.take());
        }
    }

    /// Returns true if a waker of the calling thread has to wait on.
    #[cold]
    fn holds_wakers_on(&self) -> bool {
        let is_held = self.goes_on() && !this_thread::is_turning();
        let flow = if is_held { self.intake.flow() } else { Flow::NONE };
        with_lane(self, |writer| {
            writer.wait.take_if(|wait| !wait.goes_on(&self.intake.pressure, flow));
            writer.wait.is_some()
        })
    }
}
