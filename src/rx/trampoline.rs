//! Workers that run their tasks on the thread that schedules them.
//!
//! - TRAMPOLINE-1 One thread at a time drains a worker: the thread that brings a task while no other drains. It stops
//!   under the lock, when it finds no task, so no task is left behind.
//! - TRAMPOLINE-2 The task with the earliest deadline runs first. Of equal deadlines, the oldest does. A task without a
//!   delay is due when it comes.
//! - TRAMPOLINE-3 A task that was taken out stays in `running` until the next one is taken out. So `dispose` finds each
//!   task that has not started, and a series between two runs.
//! - TRAMPOLINE-4 The draining thread waits for a deadline without the lock, and each change wakes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::delayed::{Delayed, Entry};
use super::position::{AtomicPosition, Position};
use super::timer::When;
use super::worker::{TaskQueue, Worker};
use crate::pool::job::{Due, Next, Owner, Ran};
use crate::{Clock, PanicHook, Period, ScheduleError, Sleeper, SystemClock};

/// Gives out workers that run their tasks on the caller's own thread, one after the other.
///
/// [`schedule`](Worker::schedule) runs the task, and all tasks that it schedules on the same worker, before it returns.
/// A task that schedules another does not nest: the new one is queued. A delayed task blocks its caller until it has
/// run, and a series until it ends. Tasks that come from another thread in the meantime run on the thread that is
/// already running tasks.
///
/// A panic ends its own task, and only the panic hook of the process is told. A cancel takes O(log n) for n tasks that
/// wait.
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
    /// Returns a scheduler. It has no settings.
    pub fn new() -> TrampolineScheduler {
        TrampolineScheduler::default()
    }

    /// Returns a new worker.
    pub fn worker(&self) -> Worker {
        Worker::at(Arc::new(Trampoline::default()))
    }
}

#[derive(Default)]
struct Trampoline {
    state: Mutex<State>,
    /// What the draining thread waits on. Each change wakes it.
    sleeper: Sleeper,
    hook: PanicHook,
}

#[derive(Default)]
struct State {
    /// In the order in which they run (TRAMPOLINE-2).
    tasks: Delayed,
    /// The task that was taken out last (TRAMPOLINE-3).
    running: Option<Entry>,
    /// Tells whether a thread drains (TRAMPOLINE-1).
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

    /// Takes out the next task when it is due. If it returns `None`, no task is left, and the drain has ended.
    fn next(&self) -> Option<Entry> {
        let mut state = self.state();
        loop {
            state.running = None;
            if cfg!(debug_assertions) {
                assert!(state.has_drain, "one thread drains (TRAMPOLINE-1)");
                state.tasks.check_invariants();
            }
            let Some((due, first)) = state.tasks.first() else {
                state.has_drain = false;
                return None;
            };
            if due <= SystemClock.now() {
                state.running = state.tasks.remove(first).map(|(job, _)| job);
                return state.running.clone();
            }
            drop(state);
            SystemClock.sleep(&self.sleeper, Some(due)); // without the lock (TRAMPOLINE-4)
            state = self.state();
        }
    }

    fn wake(&self) {
        self.sleeper.waker().wake();
    }

    /// Runs a task, and queues the next run of a series.
    fn run(&self, job: &Entry) {
        let mut is_disposed = false;
        let mut put_back = |next: Next| {
            let mut state = self.state();
            is_disposed = state.is_disposed;
            if !is_disposed {
                state.insert(next.due, Arc::clone(job));
            }
        };
        if job.run(self, &mut put_back) == Ran::Again && is_disposed {
            job.cancel();
        }
    }
}

impl Owner for Trampoline {
    type Position = AtomicPosition;
    type AfterMove = Option<u64>;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn remove(&self, position: &AtomicPosition) {
        let Position::Delayed(ticket) = position.get() else { return };
        let job = self.state().tasks.remove(ticket);
        drop(job);
        self.wake();
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let state = self.state();
        let Position::Delayed(ticket) = position.get() else { return None };
        Some(state.tasks.due(ticket))
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<u64>> {
        let mut state = self.state();
        let Position::Delayed(ticket) = position.get() else { return None };
        if state.is_disposed {
            return None; // it is about to be cancelled
        }
        let first = state.tasks.first();
        state.tasks.move_to(ticket, deadline);
        let is_earlier = state.tasks.first() < first;
        drop(state);
        if is_earlier {
            self.wake();
        }
        Some(None) // no task has a timer
    }

    fn has_moved(&self, _ticket: Option<u64>) {}

    fn repeats(&self) -> bool {
        !self.state().is_disposed
    }
}

impl TaskQueue for Trampoline {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let now = Instant::now();
        let due = match when {
            // A deadline beyond the range of the clock becomes the latest that it has.
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
            self.wake();
            return Ok(false);
        }
        // This thread drains: it runs all tasks, and waits for those that are delayed (TRAMPOLINE-1).
        while let Some(job) = self.next() {
            self.run(&job);
        }
        Ok(false)
    }

    fn dispose(&self) {
        let mut state = self.state();
        state.is_disposed = true;
        let (tasks, running) = (std::mem::take(&mut state.tasks), state.running.take());
        drop(state);
        self.wake();
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
