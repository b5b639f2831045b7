//! Workers that run their tasks on the thread that schedules them.
//!
//! - Q1 One thread drains a worker at a time: whoever brings a task when nobody does. It leaves when
//!   nothing is left, under the lock: so no task is left behind.
//! - Q2 What is first by deadline, and then by age, runs first; what is not delayed is due when it comes.
//! - Q3 What was taken from the queue stays known as `running` until the next is: so `dispose` finds all that
//!   has not started.
//! - Q4 Whoever drains waits for a deadline with the lock free, and is woken by whatever changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::home::{Entry, Home, When};
use super::place::{Place, Spot};
use super::worker::Worker;
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
    /// Q2.
    queue: BTreeMap<(Instant, u64), Entry>,
    /// When each is due: a task's place is its number.
    due: BTreeMap<u64, Instant>,
    count: u64,
    /// Q3.
    running: Option<Entry>,
    has_drain: bool,
    is_disposed: bool,
}

impl State {
    fn insert(&mut self, due: Instant, job: Entry) {
        self.count += 1;
        job.place().set(Spot::Queued(self.count));
        self.due.insert(self.count, due);
        self.queue.insert((due, self.count), job);
    }

    fn remove(&mut self, place: &Place) -> Option<Entry> {
        let Spot::Queued(number) = place.get() else { return None };
        place.set(Spot::Gone);
        let due = self.due.remove(&number)?;
        self.queue.remove(&(due, number))
    }
}

impl Trampoline {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Q1. Runs all that is there, and waits for what is delayed.
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
            let Some((&(due, _), job)) = state.queue.first_key_value() else {
                state.has_drain = false;
                return None;
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let job = Arc::clone(job);
                state.running = state.remove(job.place());
                return Some(job);
            }
            let woken = self.changed.wait_timeout(state, left); // Q4
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
                self.forget(job.place());
            }
        }
    }
}

impl Owner for Trampoline {
    type Place = Place;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn forget(&self, place: &Place) {
        let job = self.state().remove(place);
        drop(job);
        self.changed.notify_one();
    }
}

impl Home for Trampoline {
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
        state.due.clear();
        let (queue, running) = (std::mem::take(&mut state.queue), state.running.take());
        drop(state);
        self.changed.notify_one();
        running.into_iter().chain(queue.into_values()).for_each(|job| _ = job.cancel());
    }

    fn is_disposed(&self) -> bool {
        self.state().is_disposed
    }

    fn pending(&self) -> usize {
        self.state().queue.len()
    }
}
