//! The clock of a worker, and the timers of its delayed tasks: how they are set, moved, and fire.
//!
//! ```text
//!   the task is delayed --set--> timer --fires, the task is due--------> the task is queued
//!        ^                        | |
//!        |                        | '---fires too early-----.
//!        |   the deadline moves:  |                         v
//!        '---- it moves too ------'               another timer, another ticket
//!                                 '-- it cannot move, and fires too late --^
//! ```
//!
//! - TIMER-1 A timer that is dropped without having fired withdraws its task. If the timers refuse the first timer of a
//!   task, the task is withdrawn with it.
//! - TIMER-2 A task that was moved, and needs another timer, is not lost if the timers refuse that. The global scheduler
//!   keeps its time then, by real time, as it does for drains that wait (DRAIN-1). That timer looks at the clock when it
//!   fires, like any other of a moved task. If that scheduler ends, the worker's own timers are tried once more.
//! - TIMER-3 A leftover of timers that are closed queues its task when somebody runs it, whenever the task is due. It is
//!   told from a timer that fires while they close: a leftover runs before the time that it was set for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::delayed::{Entry, Found, Reissued, SetFor, TimerSet};
use super::serial::SerialQueue;
use crate::{Cancellable, Inline, PanicHook, Period, Schedule, ScheduleError, Scheduler};

/// When a task is to be queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

/// The clock of delayed tasks.
#[derive(Clone)]
pub(super) enum Timers {
    /// Runs timers on its tick thread, in order of deadline.
    Wheel(Scheduler),
    /// Runs timers wherever it runs tasks, and perhaps out of order.
    Any(Arc<dyn Schedule>),
}

impl Timers {
    pub(super) fn now(&self) -> Instant {
        match self {
            Timers::Wheel(scheduler) => scheduler.now(),
            Timers::Any(schedule) => schedule.now(),
        }
    }

    /// Returns true if timers run in order of deadline.
    pub(super) fn keep_the_order(&self) -> bool {
        matches!(self, Timers::Wheel(_))
    }

    /// Returns true if nobody keeps the time any more, as far as is known.
    pub(super) fn are_closed(&self) -> bool {
        match self {
            Timers::Wheel(scheduler) => scheduler.is_closed(),
            Timers::Any(_) => false,
        }
    }

    /// Returns when the timer of a task is to run. The deadline beside it is `None` if only the timer will know it.
    pub(super) fn with_deadline(&self, when: When) -> (When, Option<Instant>) {
        let deadline = match (self, when) {
            (Timers::Wheel(_), When::After(_)) => return (when, None),
            (_, When::At(deadline)) => deadline,
            (Timers::Any(schedule), When::After(delay)) => {
                let now = schedule.now();
                // A deadline beyond the range of the clock becomes the latest that it has.
                Period::fixed_delay(delay).next_run(now, now)
            }
        };
        (When::At(deadline), Some(deadline))
    }

    pub(super) fn schedule(
        &self,
        when: When,
        timer: impl FnOnce() + Send + 'static,
    ) -> Result<Cancellable, ScheduleError> {
        match (self, when) {
            (Timers::Wheel(scheduler), When::At(deadline)) => {
                scheduler.schedule_at(deadline, timer)
            }
            (Timers::Wheel(scheduler), When::After(delay)) => scheduler.schedule_once(delay, timer),
            (Timers::Any(schedule), When::At(deadline)) => {
                schedule.schedule_task_at(deadline, Box::new(timer))
            }
            (Timers::Any(schedule), When::After(delay)) => {
                schedule.schedule_task(delay, Box::new(timer))
            }
        }
    }
}

// ----- the timers of a worker --------------------------------------------------------------

/// The global scheduler does not look more often than this whether a task is due.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// When it looks again if the clock has panicked.
const BLIND_PAUSE: Duration = Duration::from_millis(100);

/// Cancels a timer that nobody needs any more. Its handle may come from outside, and panic.
pub(super) fn cancel_timer(hook: &PanicHook, timer: Option<Cancellable>) {
    hook.catch(move || timer.is_some_and(|timer| timer.cancel()));
}

impl SerialQueue {
    /// Starts the timer of a delayed task (WORKER-3). If it is refused, the task is withdrawn (TIMER-1). No other timer
    /// can have queued the task by then.
    pub(super) fn set_first_timer(
        &self,
        job: &Entry,
        ticket: u64,
        when: When,
    ) -> Result<(), ScheduleError> {
        let timer = DelayTimer::new(self, job, ticket);
        let handle = self.timers.schedule(when, move || timer.fire())?;
        self.keep_timer(job, ticket, handle);
        Ok(())
    }

    /// Starts another timer for a task that was moved (TIMER-2).
    pub(super) fn set_timer_again(&self, job: &Entry, ticket: u64, deadline: Instant) {
        if self.try_set_timer(job, ticket, deadline).is_err() {
            self.set_last_resort(ticket);
        }
    }

    fn try_set_timer(
        &self,
        job: &Entry,
        ticket: u64,
        deadline: Instant,
    ) -> Result<(), ScheduleError> {
        let timer = DelayTimer::new(self, job, ticket);
        let schedule = || self.timers.schedule(When::At(deadline), move || timer.fire());
        // A schedule from outside may panic. That counts as a refusal.
        let handle = self.hook.catch(schedule).unwrap_or(Err(ScheduleError::NoThread))?;
        self.keep_timer(job, ticket, handle);
        Ok(())
    }

    /// Has the global scheduler keep the time of a task whose timer was refused (TIMER-2).
    #[cold]
    fn set_last_resort(&self, ticket: u64) {
        // Under another ticket, the end of a timer that was refused does nothing.
        let reissued = self.state().delayed.reissue(ticket, SetFor::Elsewhere);
        let Some(Reissued { job, ticket, deadline, .. }) = reissued else { return };
        let now = self.hook.catch(|| self.timers.now());
        let left = now.map_or(BLIND_PAUSE, |now| deadline.saturating_duration_since(now));
        let mut timer = DelayTimer::new(self, &job, ticket);
        timer.is_last_resort = true;
        let handle = Scheduler::try_global().ok().and_then(|global| {
            let global = global.with_executor(Inline);
            global.schedule_once(left.max(MIN_PAUSE), move || timer.fire()).ok()
        });
        // A timer that was refused has been dropped by now, and its `Drop` does the rest.
        if let Some(handle) = handle {
            self.keep_timer(&job, ticket, handle);
        }
    }

    /// Stores a timer, or cancels it if its task has left.
    fn keep_timer(&self, job: &Entry, ticket: u64, timer: Cancellable) {
        if self.store_timer(job, ticket, timer, None) {
            self.move_timer(ticket);
        }
    }

    /// Like `keep_timer`, but returns true if the timer has to be moved. The timer may have been moved just now.
    fn store_timer(
        &self,
        job: &Entry,
        ticket: u64,
        timer: Cancellable,
        moved_to: Option<Instant>,
    ) -> bool {
        let mut state = self.state();
        let set = state.delayed.set_timer(ticket, timer, moved_to);
        if !self.timers.keep_the_order() {
            state.delayed.put_in_order(ticket);
        }
        drop(state);
        match set {
            TimerSet::Done => {}
            TimerSet::Unwanted(timer) => cancel_timer(&self.hook, Some(timer)),
            TimerSet::WasDropped(_timer) => job.withdraw(), // TIMER-1
            TimerSet::IsMoved => return true,
        }
        false
    }

    /// Moves the timer of a task to where the deadline of the task was moved. If another thread has the timer, that
    /// thread does so (DELAY-3).
    pub(super) fn move_timer(&self, ticket: u64) {
        loop {
            let taken = self.state().delayed.take_timer(ticket);
            let Some((job, timer, set_for, deadline)) = taken else { return };
            let moves = || !matches!(set_for, SetFor::Elsewhere(_)) && timer.reset_at(deadline);
            // A handle from outside may panic. Then its timer counts as one that cannot be moved.
            if self.hook.catch(moves) != Some(true) {
                return self.replace_timer(ticket, timer);
            }
            if !self.store_timer(&job, ticket, timer, Some(deadline)) {
                return;
            }
        }
    }

    /// Sets another timer for a task whose timer has fired or cannot be moved, unless that one fires early enough.
    fn replace_timer(&self, ticket: u64, timer: Cancellable) {
        let Some(timer) = self.state().delayed.put_timer_back(ticket, timer) else { return };
        // Under another ticket, the end of the old timer does not withdraw the task.
        let reissued = self.state().delayed.reissue(ticket, SetFor::At);
        cancel_timer(&self.hook, Some(timer));
        if let Some(Reissued { job, ticket, deadline, .. }) = reissued {
            self.set_timer_again(&job, ticket, deadline);
        }
    }

    /// Sets another timer for a task that was moved to a later deadline than `now`, when its timer fired (DELAY-3).
    fn fired_early(&self, reissued: Reissued, now: Instant) {
        let Reissued { job, ticket, deadline, timer, set_for } = reissued;
        drop(timer); // the one that has fired
        let is_leftover = matches!(set_for, SetFor::At(at) if at > now);
        match self.try_set_timer(&job, ticket, deadline) {
            Ok(()) => {}
            // Somebody runs it (TIMER-3).
            Err(ScheduleError::Closed) if is_leftover => {
                let mut state = self.state();
                if let Some((job, timer)) = state.delayed.remove(ticket) {
                    state.push(job);
                    self.start_drain(state, None);
                    drop(timer);
                }
            }
            Err(_) => self.set_last_resort(ticket),
        }
    }
}

/// The timer of a delayed task, with the task's ticket. When it fires, it queues the task. If the timer is dropped
/// first, the task is withdrawn (TIMER-1).
struct DelayTimer {
    /// `None` once it has fired.
    task: Option<(Arc<SerialQueue>, Entry, u64)>,
    is_last_resort: bool,
}

impl DelayTimer {
    fn new(queue: &SerialQueue, job: &Entry, ticket: u64) -> DelayTimer {
        DelayTimer { task: Some((queue.me(), Arc::clone(job), ticket)), is_last_resort: false }
    }

    fn fire(mut self) {
        let Some((queue, _job, ticket)) = &self.task else { return };
        let mut now = None;
        loop {
            let mut state = queue.state();
            match state.delayed.come_out(*ticket, now) {
                // Earlier ones are due too (WORKER-3).
                Found::Due(job, timer) => {
                    state.push(job);
                    queue.start_drain(state, None);
                    drop(timer);
                }
                Found::NoClock => {
                    drop(state);
                    now = queue.hook.catch(|| queue.timers.now());
                    if now.is_none() {
                        queue.set_last_resort(*ticket); // it looks again a little later
                        break;
                    }
                }
                Found::Later(reissued, now) => {
                    drop(state);
                    queue.fired_early(reissued, now);
                    break;
                }
                // The task was cancelled, or another timer has queued it.
                Found::Nothing => break,
            }
        }
        self.task = None;
    }
}

impl Drop for DelayTimer {
    fn drop(&mut self) {
        let Some((queue, job, ticket)) = self.task.take() else { return };
        let removed = if self.is_last_resort {
            // The scheduler that kept the time has ended, or has refused it. The worker's own timers may take it again.
            let reissued = queue.state().delayed.reissue(ticket, SetFor::At);
            let Some(Reissued { ticket, deadline, timer, .. }) = reissued else { return };
            drop(timer);
            match queue.try_set_timer(&job, ticket, deadline) {
                Ok(()) => None,
                Err(_) => queue.state().delayed.remove(ticket),
            }
        } else {
            // If it does not wait, another timer has queued it, or a disposal is about to cancel it.
            queue.state().delayed.drop_timer(ticket)
        };
        if removed.is_some() {
            job.withdraw();
        }
    }
}
