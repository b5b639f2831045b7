//! Workers that run their tasks on the thread that schedules them.
//!
//! - TRAMPOLINE-1 One thread drains a worker at a time: the thread that brings a task when no other drains. It leaves
//!   when nothing is left, under the lock, so no task is left behind.
//! - TRAMPOLINE-2 The task with the earliest deadline runs first, the oldest of several. A task that is not delayed is
//!   due when it comes.
//! - TRAMPOLINE-3 A task that was taken from the queue stays known as `running` until the next is taken. So `dispose`
//!   finds all that has not started.
//! - TRAMPOLINE-4 The draining thread waits for a deadline with the lock free, and each change wakes it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::delayed::{Delayed, Entry, Position, Slot};
use super::worker::{TaskQueue, When, Worker};
use crate::job::{Owner, Ran};
use crate::{PanicHook, Period, ScheduleError};

/// Gives out workers that run their tasks on the caller's own thread, one after the other.
///
/// [`schedule`](Worker::schedule) runs the task, and all that it schedules on the same worker, before it
/// returns: a task that schedules another does not nest, it queues. A delayed task blocks its caller until
/// its time has come; so a series does until it ends. What comes from another thread meanwhile is run by the
/// one that is at it.
///
/// A panic ends its own task, and only the panic hook of the process is told. A cancel takes time by the
/// logarithm of what waits.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tickwheel::rx::TrampolineScheduler;
///
/// let worker = TrampolineScheduler::new().worker();
/// let said = Arc::new(Mutex::new(Vec::new()));
/// let say = |words| {
///     let said = Arc::clone(&said);
///     move || said.lock().unwrap().push(words)
/// };
/// let (inner, then, ends) = (worker.clone(), say("then this"), say("first this, to its end"));
/// worker.schedule(move || {
///     inner.schedule(then);
///     ends();
/// });
/// assert_eq!(*said.lock().unwrap(), ["first this, to its end", "then this"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TrampolineScheduler(());

impl TrampolineScheduler {
    /// There is nothing to set.
    pub fn new() -> TrampolineScheduler {
        TrampolineScheduler::default()
    }

    /// A new worker.
    pub fn worker(&self) -> Worker {
        Worker::at(Arc::new(Trampoline::default()))
    }
}

#[derive(Default)]
struct Trampoline {
    state: Mutex<State>,
    changed: Condvar,
    hook: PanicHook,
}

#[derive(Default)]
struct State {
    /// TRAMPOLINE-2.
    tasks: Delayed,
    /// TRAMPOLINE-3.
    running: Option<Entry>,
    has_drain: bool,
    is_disposed: bool,
}

impl State {
    fn insert(&mut self, due: Instant, job: Entry) {
        let ticket = self.tasks.insert(job, Some(due));
        self.tasks.put_in_order(ticket);
    }
}

impl Trampoline {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// TRAMPOLINE-1. Runs all that is there, and waits for what is delayed.
    fn drain(&self) {
        while let Some(job) = self.next() {
            if let Ran::Again(due) = job.run(self) {
                self.go_on(due, &job);
            }
        }
    }

    /// The next that is due. `None`: nothing is left, and nobody drains any more.
    fn next(&self) -> Option<Entry> {
        let mut state = self.state();
        loop {
            state.running = None;
            let Some((due, first)) = state.tasks.first() else {
                state.has_drain = false;
                return None;
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.running = state.tasks.remove(first).map(|(job, _)| job);
                return state.running.clone();
            }
            let woken = self.changed.wait_timeout(state, left); // TRAMPOLINE-4
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A series waits for its next run, unless it was cancelled meanwhile.
    fn go_on(&self, due: Instant, job: &Entry) {
        let mut state = self.state();
        if state.is_disposed {
            drop(state);
            job.cancel();
        } else {
            state.insert(due, Arc::clone(job));
            drop(state);
            // It waited already, so a cancel may have looked for it in vain.
            if job.is_done() {
                self.remove(job.position());
            }
        }
    }
}

impl Owner for Trampoline {
    type Position = Slot;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn remove(&self, slot: &Slot) {
        let Position::Delayed(ticket) = slot.get() else { return };
        let job = self.state().tasks.remove(ticket);
        drop(job);
        self.changed.notify_one();
    }
}

impl TaskQueue for Trampoline {
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let now = Instant::now();
        let due = match when {
            // As far as the clock goes, beyond that.
            When::After(delay) => Period::fixed_delay(delay).next_run(now, now),
            When::At(deadline) => deadline.max(now),
        };
        let mut state = self.state();
        if state.is_disposed {
            return Err(ScheduleError::Closed);
        }
        state.insert(due, job);
        let has_drain = std::mem::replace(&mut state.has_drain, true);
        drop(state);
        if has_drain {
            self.changed.notify_one();
        } else {
            self.drain();
        }
        Ok(false)
    }

    fn dispose(&self) {
        let mut state = self.state();
        state.is_disposed = true;
        let (tasks, running) = (std::mem::take(&mut state.tasks), state.running.take());
        drop(state);
        self.changed.notify_one();
        let waited = tasks.into_all().map(|(job, _)| job);
        running.into_iter().chain(waited).for_each(|job| _ = job.cancel());
    }

    fn is_disposed(&self) -> bool {
        self.state().is_disposed
    }

    fn pending(&self) -> usize {
        self.state().tasks.len()
    }
}
