//! The clock of a worker, and the timers of its delayed tasks: how they are set, moved, and fire.
//!
//! ```text
//!   the task is delayed --set_timer--> timer --fires, the task is due--------> the task is queued
//!                                       | |
//!   the deadline moves: follow          | '---fires too early-----.
//!        the timer moves too <----------|                         v
//!                                       |              set_another: another timer, another key
//!                                       '-- it cannot move, and fires too late --^
//! ```
//!
//! - DELAY-3 A timer that is dropped without having fired withdraws its task. A task whose first timer is refused is refused
//!   too, and comes back; a series is withdrawn. But a task that was moved, and
//!   needs another timer, is not lost if that one is refused. The global scheduler keeps its time then, by real time,
//!   as it does for drains that wait (DRAIN-1). Its timer is like any other that fires early: it looks at the clock of
//!   the worker, and the worker's own timers are tried again.
//! - A leftover of timers that are closed queues its task when somebody runs it, whenever the task is due. If the task
//!   was moved, the leftover is told from a timer that fires while they close: it runs before the time that it was set
//!   for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use super::delayed::{Found, Wait};
use super::drain::without_runs;
use super::serial::SerialQueue;
pub(super) use crate::clock::timeline::after;
use crate::platform::panics::BLIND_PAUSE;
use crate::wheel::WheelKey;
use crate::{Cancellable, Inline, PanicHook, Request, Schedule, ScheduleError, Scheduler};

/// Returns the global scheduler, for when other timers refuse. It runs them on its tick thread.
pub(super) fn global_timers() -> Result<&'static Scheduler, ScheduleError> {
    static TIMERS: OnceCell<Scheduler> = OnceCell::new(); // one executor for all: each has a number in its scheduler
    let timers = || Scheduler::try_global().map(|global| global.with_executor(Inline));
    TIMERS.get_or_try_init(timers).map_err(|_| ScheduleError::NoThread)
}

// ----- the timers of a worker --------------------------------------------------------------

/// The global scheduler does not look more often than this whether a task is due.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// What a timer or a drain does: its closure is called once, with true when it runs, and with false when it is dropped
/// instead.
pub(super) struct RunOrDrop<F: FnOnce(bool)>(Option<F>);

impl<F: FnOnce(bool)> RunOrDrop<F> {
    pub(super) fn new(act: F) -> RunOrDrop<F> {
        RunOrDrop(Some(act))
    }

    pub(super) fn run(mut self) {
        self.0.take().into_iter().for_each(|act| act(true));
    }
}

impl<F: FnOnce(bool)> Drop for RunOrDrop<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|act| act(false));
    }
}

/// Cancels a timer that nobody needs any more. Its handle may come from outside, and panic.
pub(super) fn cancel_timer(hook: &PanicHook, timer: Option<Cancellable>) {
    hook.catch(None, move || timer.is_some_and(|timer| timer.cancel()));
}

impl SerialQueue {
    /// Sets the timer of a delayed task. If the first one is refused, the caller takes the task out (DELAY-3).
    pub(super) fn set_timer(&self, wait: Wait, name: &'static str) -> Result<(), ScheduleError> {
        self.set_timer_on(self.retries.scheduler.as_ref(), wait.deadline, wait, name)
    }

    /// Sets a timer under the name of its task, because it may be a leftover (S31). Without a scheduler, it is a timer of a schedule
    /// from outside.
    fn set_timer_on(
        &self,
        scheduler: Option<&Scheduler>,
        at: Instant,
        wait: Wait,
        name: &'static str,
    ) -> Result<(), ScheduleError> {
        let (queue, key) = (self.me(), wait.key);
        let timer = RunOrDrop::new(move |fires| {
            if fires {
                return queue.come_out(key, None);
            }
            // If the task does not wait, another timer has queued it, or a disposal is about to cancel it.
            if queue.state().delayed.drop_timer(key) {
                queue.withdraw(key);
            }
        });
        let run = move || timer.run();
        let timers = &self.retries.timers;
        let handle = match scheduler {
            Some(scheduler) => scheduler.schedule_at_named(name, at, run)?, // without a box
            None => without_runs(|| timers.schedule_named(name, Request::At(at, Box::new(run))))?,
        };
        if self.keep_timer(wait, handle) {
            self.follow(wait.key);
        }
        Ok(())
    }

    /// Stores a timer, or cancels it if its task has left. Returns true if it has to follow the deadline (DELAY-2).
    fn keep_timer(&self, wait: Wait, timer: Cancellable) -> bool {
        let kept = self.state().delayed.keep(wait, timer);
        kept.unwrap_or_else(|timer| {
            cancel_timer(&self.hook, Some(timer));
            self.withdraw(wait.key); // if the timer was dropped in the meantime
            false
        })
    }

    /// Has the timer of a task follow its deadline, which was moved. If another thread has the timer in hand, that thread
    /// does so (DELAY-2).
    pub(super) fn follow(&self, key: WheelKey) {
        loop {
            let Some((mut wait, timer)) = self.state().delayed.take_timer(key) else { return };
            let Some(timer) = timer else { return self.set_another(key, None, None) };
            let Wait { deadline, set_for, .. } = wait;
            // A timer that goes by another clock cannot be moved, nor can one whose handle is from outside and panics.
            let moves = || set_for.is_some() && timer.reset_at(deadline);
            wait.set_for = match self.hook.catch(None, moves) {
                Some(true) => Some(deadline),
                _ => set_for.filter(|set_for| *set_for <= deadline), // it fires early enough
            };
            if wait.set_for.is_none() {
                return self.set_another(key, Some(timer), None);
            }
            if !self.keep_timer(wait, timer) {
                return;
            }
        }
    }

    /// Sets another timer for a task that was moved, or queues the task if it is due.
    /// `fired_for` is the time that the timer was set for that has just fired too early.
    fn set_another(&self, of: WheelKey, old: Option<Cancellable>, fired_for: Option<Instant>) {
        let now = self.hook.catch(None, || self.retries.timers.now());
        // Under another key, the end of the old timer withdraws nothing.
        let another = self.state().delayed.reissue(of, false);
        cancel_timer(&self.hook, old);
        let Some((wait, _fired)) = another else { return };
        if now >= Some(wait.deadline) {
            return without_runs(|| self.come_out(wait.key, now));
        }
        // A schedule from outside may panic. That counts as a refusal.
        match self.hook.catch(None, || self.set_timer(wait, self.name_of(wait.key))) {
            Some(Ok(())) => {}
            // Somebody runs a leftover.
            Some(Err(ScheduleError::Closed)) if now.is_some() && fired_for > now => {
                self.come_out(wait.key, Some(wait.deadline));
            }
            _ => self.set_last_resort(wait.key, now),
        }
    }

    /// Has the global scheduler keep the time of a task whose timer was refused (DELAY-3).
    #[cold]
    fn set_last_resort(&self, of: WheelKey, now: Option<Instant>) {
        let another = self.state().delayed.reissue(of, true);
        let Some((wait, _refused)) = another else { return };
        let left = now.map_or(BLIND_PAUSE, |now| wait.deadline.saturating_duration_since(now));
        let set = global_timers().and_then(|global| {
            let at = after(global.now(), left.max(MIN_PAUSE));
            self.set_timer_on(Some(global), at, wait, self.name_of(wait.key))
        });
        if set.is_err() {
            self.withdraw(wait.key);
        }
    }

    fn name_of(&self, key: WheelKey) -> &'static str {
        // The job's lock is not taken inside of this one (JOB-5).
        let job = self.state().delayed.get(key).map(|task| Arc::clone(&task.job));
        job.map_or("a task", |job| job.name())
    }

    /// Ends the task of a timer without a run.
    pub(super) fn withdraw(&self, of: WheelKey) {
        let task = self.state().delayed.remove(of);
        // The handle of its timer may be from outside, and panic when it is dropped.
        self.hook.catch(None, || task.into_iter().for_each(|task| task.job.withdraw()));
    }

    /// Queues the task of a timer that fires, and before it those that are due earlier. `now` is the time if the clock was
    /// asked.
    fn come_out(&self, key: WheelKey, mut now: Option<Instant>) {
        loop {
            let mut state = self.state();
            match state.delayed.come_out(key, now) {
                Found::Due { task, is_own } => {
                    state.push(Arc::clone(&task.job));
                    self.start_drain(state, None);
                    self.hook.catch(None, || drop(task)); // with the handle of its timer, which may be from outside
                    if is_own {
                        return;
                    }
                }
                Found::Early(set_for) => {
                    drop(state);
                    let is_asked = now.is_some();
                    if !is_asked {
                        // Only the clock can tell whether it is due (DELAY-2).
                        now = self.hook.catch(None, || self.retries.timers.now());
                    }
                    if is_asked || now.is_none() {
                        return self.set_another(key, None, set_for);
                    }
                }
                Found::Nothing => return, // it was cancelled, or another timer has queued it
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_resort_takes_one_executor_however_often_it_is_asked() {
        let timers = || global_timers().expect("a thread");
        assert!(std::ptr::eq(timers(), timers()));
    }
}
