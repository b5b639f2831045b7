//! A queue whose tasks one thread runs, in one order of deadline and arrival: of the workers of a
//! [`SingleThreadScheduler`](super::SingleThreadScheduler), and of a worker of a
//! [`TrampolineScheduler`](super::TrampolineScheduler).
//!
//! ```text
//!   worker --- Member ---.                      .--> a thread of its own, which waits for more
//!   worker --- Member ----> SharedQueue: Wheel -+
//!   worker --- Member ---'                      '--> the thread that has brought a task while no other drained
//! ```
//!
//! - One thread at a time drains the queue. It stops under the lock, when it finds no task and need not wait for more, so no
//!   task is left behind. While it waits for a deadline it does not hold the lock. A task that comes wakes it only if it is
//!   due before the time until which the thread sleeps (WAKE-2).
//! - A task that waits is in the wheel, and its key is in the set of its worker. Both change under the lock of the queue. The
//!   task that was taken out last is in `running`. So `dispose` finds each task that has not started, and a series
//!   between two runs, and no task of another worker.
//! - A task that waits keeps its worker alive, and a worker its [`Handles`]. So once these are dropped, nothing waits, and
//!   the thread ends.
//! - The lock of a worker's set is taken inside of the queue's, never the other way round. Tasks, clocks and destructors are
//!   called with neither.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Instant;

use super::delayed::{Entry, Ticket, wheel};
use super::drain;
use super::timer::{BLIND_PAUSE, When};
use super::worker::TaskQueue;
use crate::backpressure::{Backpressure, Flow, PendingLimit};
use crate::clock::epoch::Epoch;
use crate::clock::timeline::after;
use crate::job::{AtomicPosition, Due, Next, Owner, Position, Ran};
use crate::platform::sync::lock_std;
use crate::wake::SleepState;
use crate::wheel::{Wheel, WheelKey};
use crate::{Clock, PanicHook, ScheduleError, Sleeper, SystemClock};

/// With more tasks than this overdue, the threads that bring them are held back, if the queue has a thread of its own.
const MAX_AHEAD: u64 = 1 << 16;

pub(super) struct SharedQueue {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    /// The wheel counts from there, in nanoseconds.
    epoch: Epoch,
    /// What the draining thread waits on.
    sleeper: Sleeper,
    /// A thread of the queue's own drains, and waits for more as long as there are [`Handles`]. The Release in their drop
    /// pairs with the Acquire in `next`.
    waits_for_more: AtomicBool,
    /// How many tasks were taken out. Relaxed suffices, because it orders nothing.
    passed: AtomicU64,
    pressure: Backpressure,
}

struct State {
    /// The task with the earliest deadline runs first, and of equal deadlines the oldest. A task without a delay is due
    /// when it comes.
    tasks: Wheel<Queued>,
    running: Option<Queued>,
    /// Tells whether a thread drains.
    has_drain: bool,
    /// What the draining thread does.
    sleep: SleepState<u64, ()>,
}

/// A task, and its worker.
type Queued = (Entry, Arc<Member>);

/// All who may bring tasks. When it is dropped, the thread of the queue ends.
pub(super) struct Handles(Arc<SharedQueue>);

/// A worker's part of the queue.
pub(super) struct Member {
    handles: Arc<Handles>,
    own: Mutex<Own>,
    limit: PendingLimit,
    hook: PanicHook,
    me: Weak<Member>,
}

#[derive(Default)]
struct Own {
    /// The keys of the tasks that wait, as numbers.
    waiting: BTreeSet<u64>,
    is_disposed: bool,
}

impl Handles {
    /// Returns a queue that is drained by the threads that bring tasks.
    pub(super) fn of_callers() -> Arc<Handles> {
        Arc::new(Handles(SharedQueue::new(Arc::new(SystemClock), false)))
    }

    /// Returns a queue that a thread of its own drains.
    pub(super) fn of_a_thread(name: String, clock: Arc<dyn Clock>) -> io::Result<Arc<Handles>> {
        let queue = SharedQueue::new(clock, true);
        let own = Arc::clone(&queue);
        thread::Builder::new().name(name).spawn(move || own.run_thread())?;
        Ok(Arc::new(Handles(queue)))
    }

    pub(super) fn member(self: &Arc<Self>, hook: PanicHook, limit: PendingLimit) -> Arc<Member> {
        let (handles, own) = (Arc::clone(self), Mutex::default());
        Arc::new_cyclic(|me| Member { handles, own, limit, hook, me: Weak::clone(me) })
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.0.waits_for_more.store(false, Ordering::Release);
        self.0.sleeper.waker().wake();
    }
}

impl SharedQueue {
    fn new(clock: Arc<dyn Clock>, has_thread: bool) -> Arc<SharedQueue> {
        let (tasks, running) = (wheel(), None);
        let state = State { tasks, running, has_drain: has_thread, sleep: SleepState::Awake };
        Arc::new(SharedQueue {
            state: Mutex::new(state),
            epoch: Epoch(clock.now()),
            clock,
            sleeper: Sleeper::new(),
            waits_for_more: AtomicBool::new(has_thread),
            passed: AtomicU64::new(0),
            pressure: Backpressure::new(MAX_AHEAD),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock_std(&self.state)
    }

    /// The queue has a thread of its own. Only callers that have [`Handles`] ask.
    fn has_thread(&self) -> bool {
        self.waits_for_more.load(Ordering::Relaxed) // it was set when the queue was made
    }

    /// The body of the queue's own thread.
    fn run_thread(&self) {
        drain::with_a_drain(|| {
            // The panics of tasks are caught in there, so this one is the clock's.
            while PanicHook::default().catch(None, || self.drain()).is_none() {
                let until = after(SystemClock.now(), BLIND_PAUSE);
                SystemClock.sleep(&self.sleeper, Some(until));
            }
        });
    }

    /// Runs tasks until none is left, and waits for those that are delayed.
    fn drain(&self) {
        while let Some((job, member)) = self.next() {
            member.run(&job);
        }
    }

    /// Takes out the next task when it is due. If it returns `None`, no task is left, and the drain has ended.
    fn next(&self) -> Option<Queued> {
        let mut before = None; // dropped without the lock, because it may be the last of its worker
        loop {
            let now = self.epoch.number(self.clock.now());
            let mut state = self.state();
            debug_assert!(state.has_drain, "one thread drains");
            before = before.or(state.running.take());
            state.sleep = SleepState::Awake;
            if let Some((key, _, (job, member))) = state.tasks.pop(now) {
                member.own().waiting.remove(&key.to_bits());
                job.position().set(Position::Gone);
                self.passed.fetch_add(1, Ordering::Relaxed);
                return state.running.insert((job, member)).clone().into();
            }
            let due = state.tasks.next_expiry();
            // Pairs with the Release of the last handle's drop.
            if due.is_none() && !self.waits_for_more.load(Ordering::Acquire) {
                state.has_drain = false;
                return None;
            }
            state.sleep = SleepState::Asleep(due, ());
            drop(state);
            drop(before.take()); // now, or it would keep the handles for the length of the sleep
            self.clock.sleep(&self.sleeper, due.map(|due| self.epoch.instant(due)));
        }
    }

    /// Wakes the draining thread for something that is due then, if it would sleep past that.
    fn wake_for(&self, mut state: MutexGuard<'_, State>, due: u64) {
        let has_to_wake = state.sleep.wake_for(due).is_some();
        drop(state);
        if has_to_wake {
            self.sleeper.waker().wake();
        }
    }

    /// Wakes a caller's thread that drains, because a task that it waits for has left. A thread of the queue's own wakes up
    /// at the old deadline, and finds that out.
    fn wake_for_less(&self, state: MutexGuard<'_, State>) {
        if !self.has_thread() {
            self.wake_for(state, 0);
        }
    }
}

impl Member {
    fn queue(&self) -> &SharedQueue {
        &self.handles.0
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        lock_std(&self.own)
    }

    /// Adds a task of this worker. Returns false if the worker is disposed.
    fn insert(&self, state: &mut State, job: &Entry, due: Instant) -> bool {
        let (mut own, due) = (self.own(), self.queue().epoch.number(due));
        if own.is_disposed {
            return false;
        }
        let me = self.me.upgrade().expect("the caller holds it");
        let key = state.tasks.insert(due, (Arc::clone(job), me));
        own.waiting.insert(key.to_bits());
        job.position().set(Position::Delayed(key));
        true
    }

    /// Runs a task, and queues the next run of a series.
    fn run(&self, job: &Entry) {
        let mut is_queued = false;
        let mut put_back = |Next { due, ended }: Next| {
            // A series that lags behind has its turn after all that was due when its last run ended.
            is_queued = self.insert(&mut self.queue().state(), job, due.max(ended));
        };
        if job.run(self, &mut put_back) == Ran::Again && !is_queued {
            job.cancel();
        }
    }
}

impl Owner for Member {
    type AfterMove = Option<Ticket>;

    fn now(&self) -> Instant {
        self.queue().clock.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    fn remove(&self, position: &AtomicPosition) {
        // Only a task that waits gets another key, and this one does not any more.
        let Position::Delayed(key) = position.get() else { return };
        let mut state = self.queue().state();
        self.own().waiting.remove(&key.to_bits());
        let removed = state.tasks.remove(key);
        position.set(Position::Gone);
        self.queue().wake_for_less(state);
        drop(removed);
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let state = self.queue().state();
        let Position::Delayed(key) = position.get() else { return None };
        Some(Due::At(self.queue().epoch.instant(state.tasks.deadline(key)?)))
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<Ticket>> {
        let (mut state, due) = (self.queue().state(), self.queue().epoch.number(deadline));
        let Position::Delayed(key) = position.get() else { return None };
        // The tasks of a disposed worker are about to be cancelled.
        if self.own().is_disposed || !state.tasks.reset(key, due) {
            return None;
        }
        self.queue().wake_for(state, due);
        Some(None) // no task has a timer
    }

    fn has_moved(&self, _ticket: Option<Ticket>) {}

    fn repeats(&self) -> bool {
        !self.is_disposed()
    }
}

impl TaskQueue for Member {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let (queue, now) = (self.queue(), self.now());
        let due = when.deadline(|| now).unwrap_or(now);
        let mut state = queue.state();
        if !self.limit.enter() {
            return Err(self.refusal().unwrap_or(ScheduleError::Full));
        }
        if !self.insert(&mut state, &job, due) {
            self.limit.leave();
            return Err(ScheduleError::Closed);
        }
        if std::mem::replace(&mut state.has_drain, true) {
            let overdue = state.tasks.count_due(queue.epoch.number(now)) as u64;
            let is_over = queue.pressure.is_over(overdue);
            queue.wake_for(state, queue.epoch.number(due));
            return Ok(is_over);
        }
        drop(state);
        queue.drain(); // this thread runs all tasks, and waits for those that are delayed
        Ok(false)
    }

    #[cold]
    fn hold_back(&self) {
        // A caller that drains is never ahead of itself, and the tasks of a worker are not to wait for another one.
        let queue = self.queue();
        if queue.has_thread() && drain::this_thread().drains == 0 {
            queue.pressure.hold_back(|| {
                let mut state = queue.state();
                let now = state.tasks.now();
                let ahead = state.tasks.count_due(now) as u64;
                Flow { ahead, passed: queue.passed.load(Ordering::Relaxed) }
            });
        }
    }

    fn dispose(&self) {
        let mut state = self.queue().state();
        let mut own = self.own();
        own.is_disposed = true;
        let waiting = std::mem::take(&mut own.waiting);
        drop(own);
        let is_own = |(_, member): &mut Queued| std::ptr::eq(Arc::as_ptr(member), self);
        let mut ended: Vec<Queued> = state.running.take_if(is_own).into_iter().collect();
        let keys = waiting.into_iter().map(WheelKey::from_bits);
        ended.extend(keys.filter_map(|key| state.tasks.remove(key)));
        self.queue().wake_for_less(state);
        for (job, _) in &ended {
            job.cancel();
        }
    }

    fn is_disposed(&self) -> bool {
        self.own().is_disposed
    }

    fn refusal(&self) -> Option<ScheduleError> {
        let is_full = || self.limit.is_reached().then_some(ScheduleError::Full);
        if self.is_disposed() { Some(ScheduleError::Closed) } else { is_full() }
    }

    fn pending(&self) -> usize {
        self.own().waiting.len()
    }
}
