//! Workers that run their tasks on the thread that schedules them.
//!
//! One thread at a time drains a worker: the thread that brings a task while no other drains. It stops under the lock,
//! when it finds no task, so no task is left behind. While it waits for a deadline it does not hold the lock, and each
//! change wakes it. A task that was taken out stays in `running` until the next one is taken out. So `dispose` finds each
//! task that has not started, and a series between two runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::delayed::{Entry, Ticket, wheel};
use super::timer::When;
use super::worker::{TaskQueue, Worker};
use crate::clock::epoch::Epoch;
use crate::job::{AtomicPosition, Due, Next, Owner, Position, Ran};
use crate::wheel::Wheel;
use crate::{Clock, PanicHook, ScheduleError, Sleeper, SystemClock};

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
        let (tasks, running) = (wheel(), None);
        let state = Mutex::new(State { tasks, running, has_drain: false, is_disposed: false });
        let (epoch, sleeper, hook) =
            (Epoch::new(Instant::now()), Sleeper::new(), PanicHook::default());
        Worker::at(Arc::new(Trampoline { state, epoch, sleeper, hook }))
    }
}

struct Trampoline {
    state: Mutex<State>,
    /// The wheel counts from there, in nanoseconds.
    epoch: Epoch,
    /// What the draining thread waits on. Each change wakes it.
    sleeper: Sleeper,
    hook: PanicHook,
}

struct State {
    /// The task with the earliest deadline runs first, and of equal deadlines the oldest. A task without a delay is due
    /// when it comes.
    tasks: Wheel<Entry>,
    /// The task that was taken out last.
    running: Option<Entry>,
    /// Tells whether a thread drains.
    has_drain: bool,
    is_disposed: bool,
}

impl State {
    fn insert(&mut self, due: u64, job: &Entry) {
        let key = self.tasks.insert(due, Arc::clone(job));
        job.position().set(Position::Delayed(key));
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
            debug_assert!(state.has_drain, "one thread drains");
            let now = self.epoch.number(SystemClock.now());
            if let Some((_, _, job)) = state.tasks.pop(now) {
                job.position().set(Position::Gone);
                state.running = Some(job);
                return state.running.clone();
            }
            let Some(due) = state.tasks.next_expiry() else {
                state.has_drain = false;
                return None;
            };
            drop(state);
            SystemClock.sleep(&self.sleeper, Some(self.epoch.instant(due)));
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
                state.insert(self.epoch.number(next.due), job);
            }
        };
        if job.run(self, &mut put_back) == Ran::Again && is_disposed {
            job.cancel();
        }
    }
}

impl Owner for Trampoline {
    type AfterMove = Option<Ticket>;

    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn remove(&self, position: &AtomicPosition) {
        let Position::Delayed(key) = position.get() else { return };
        let job = self.state().tasks.remove(key);
        drop(job);
        self.wake();
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let Position::Delayed(key) = position.get() else { return None };
        let due = self.state().tasks.deadline(key)?;
        Some(Due::At(self.epoch.instant(due)))
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<Ticket>> {
        let mut state = self.state();
        let Position::Delayed(key) = position.get() else { return None };
        // The tasks of a disposed worker are about to be cancelled.
        let moves = !state.is_disposed && state.tasks.reset(key, self.epoch.number(deadline));
        moves.then_some(None) // no task has a timer
    }

    fn has_moved(&self, _ticket: Option<Ticket>) {
        self.wake();
    }

    fn repeats(&self) -> bool {
        !self.state().is_disposed
    }
}

impl TaskQueue for Trampoline {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let due = when.deadline(|| self.now()).unwrap_or_else(|| self.now());
        let mut state = self.state();
        if state.is_disposed {
            return Err(ScheduleError::Closed);
        }
        state.insert(self.epoch.number(due), &job);
        let has_drain = std::mem::replace(&mut state.has_drain, true);
        drop(state);
        if has_drain {
            self.wake();
            return Ok(false);
        }
        // This thread drains: it runs all tasks, and waits for those that are delayed.
        while let Some(job) = self.next() {
            self.run(&job);
        }
        Ok(false)
    }

    fn dispose(&self) {
        let mut state = self.state();
        state.is_disposed = true;
        let mut jobs: Vec<Entry> = state.running.take().into_iter().collect();
        jobs.extend(state.tasks.advance(u64::MAX).map(|(_, job)| job));
        drop(state);
        self.wake();
        jobs.into_iter().for_each(|job| _ = job.cancel());
    }

    fn is_disposed(&self) -> bool {
        self.state().is_disposed
    }

    fn pending(&self) -> usize {
        self.state().tasks.len()
    }
}
