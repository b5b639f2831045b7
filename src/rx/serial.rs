//! The queue of a worker on an executor: how tasks come in, and how they leave.
//!
//! `RxJava` counts what is queued in an atomic number, and the call that takes it from zero to one hands the drain
//! over. Here the count is a flag, `has_drain`, under the lock under which tasks come. How the drain comes to a thread
//! is told in [`drain`].
//!
//! - WORKER-1 There is at most one [`Drain`], and it alone takes tasks up, so they do not overlap. The thread that
//!   sets `has_drain` makes it. The drain that finds nothing queued clears the flag under the same lock. So no task
//!   is queued without a drain, and what one task has written is seen by the next.
//! - WORKER-2 A task that has not started is among the queued or the delayed, or is `running` (a series between two
//!   runs). So `dispose` finds it. Its start is a step of the job's own (JOB-1), and needs no lock of the queue.
//! - WORKER-3 A delayed task is queued by its [`Arrival`], in order of deadline. A [`Scheduler`] runs arrivals on its
//!   tick thread, in order. Any other [`Schedule`] may run them on several threads, and out of order, so there an
//!   arrival first queues the tasks whose deadline is earlier, or equal and older. They are due too.
//! - WORKER-4 With a lock held nobody calls the executor, the clock, a task, or a destructor of theirs.
//! - WORKER-5 Tasks come in under one lock, `state`, and the drain takes them out under another, `outgoing`, which is
//!   taken first when both are. When nothing is left in `outgoing`, the two queues change places. So the threads that
//!   bring tasks and the thread that runs them seldom meet.
//! - WORKER-8 A queued task that is cancelled loses its closure at once, and its slot says that it has gone. The empty
//!   entry stays behind: `cancelled` counts these entries. The drain skips them, and when they are more than half,
//!   all of them are removed. So a cancel takes O(1), amortised, and searches nothing.
//! - WORKER-6 Threads that bring tasks much faster than they run are held back, after their task was taken in, and
//!   with no lock held: [`backpressure`](crate::executor::backpressure). What counts is what has come in since the drain last
//!   looked, so delayed tasks, however many, hold nobody back before their time has come. A thread that drains,
//!   this queue or another, is not held back: the executor may have no other.
//! - WORKER-7 Without an executor the queue is disposed: it takes no task, and has none that waits. It disposes
//!   itself when the executor says that it is gone for good, and when it cannot be reached any more and the
//!   executor does not run its drain ([`drain`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::delayed::{Delayed, Entry, Position, SMALL, Slot};
use super::drain::{self, Drain, Refused};
use super::worker::{TaskQueue, When};
use crate::executor::backpressure::{Backpressure, Flow};
use crate::job::{Owner, PendingLimit};
use crate::platform::sync::{Mutex, MutexGuard, Ordering, lock};
use crate::{Cancellable, Executor, PanicHook, Period, Schedule, ScheduleError, Scheduler};

/// So many tasks may come in while the drain works on others before their producers are held back; WORKER-6.
const AHEAD: u64 = 1 << 16;

/// So many entries of cancelled tasks, and half of all, are not worth removing; WORKER-8.
const HOLES: usize = 256;

/// The tasks of one worker.
// In this order: each task counts a reference to its queue, beside the lock that it takes.
#[repr(C)]
pub(super) struct SerialQueue {
    state: Mutex<State>,
    me: Weak<SerialQueue>,
    pub(super) timers: Timers,
    pub(super) hook: PanicHook,
    /// What the drain works on; WORKER-5.
    outgoing: CachePadded<Mutex<Outgoing>>,
    /// How many entries the drain has taken out. Only the drain writes it; Relaxed, because it orders nothing.
    passed: AtomicU64,
    /// How many entries in both queues are of cancelled tasks; WORKER-8. An entry is counted before its slot says that
    /// the task has gone, so the count is never too low. Relaxed, because the slot publishes it.
    cancelled: AtomicUsize,
    limit: PendingLimit,
    pressure: Backpressure,
    /// Where the drain waits if its executor does not run it.
    pub(super) refused: Arc<Refused>,
}

#[derive(Default)]
pub(super) struct State {
    /// What has come in since the drain last looked.
    incoming: VecDeque<Entry>,
    delayed: Delayed,
    /// `None` once it is disposed; WORKER-7.
    pub(super) executor: Option<Arc<dyn Executor>>,
    /// WORKER-1.
    pub(super) has_drain: bool,
}

impl State {
    fn push(&mut self, job: Entry) {
        job.position().set(Position::Queued);
        self.incoming.push_back(job);
    }
}

/// What the drain works on.
#[derive(Default)]
struct Outgoing {
    tasks: VecDeque<Entry>,
    /// The task that the drain has taken out last.
    running: Option<Entry>,
}

impl SerialQueue {
    pub(super) fn new(
        executor: Arc<dyn Executor>,
        timers: Timers,
        hook: PanicHook,
        limit: PendingLimit,
        refused: Arc<Refused>,
    ) -> Arc<SerialQueue> {
        Arc::new_cyclic(|me| SerialQueue {
            state: Mutex::new(State { executor: Some(executor), ..State::default() }),
            me: Weak::clone(me),
            timers,
            hook,
            outgoing: CachePadded::default(),
            passed: AtomicU64::new(0),
            cancelled: AtomicUsize::new(0),
            limit,
            pressure: Backpressure::new(AHEAD),
            refused,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn me(&self) -> Arc<SerialQueue> {
        self.me.upgrade().expect("the caller holds it")
    }

    // ----- into the queue ------------------------------------------------------------------

    /// Opens the queue for one more task, which then has its place.
    fn open(&self) -> Result<MutexGuard<'_, State>, ScheduleError> {
        let state = self.state();
        match state.executor {
            None => Err(ScheduleError::Closed),
            Some(_) if !self.limit.enter() => Err(ScheduleError::Full),
            Some(_) => Ok(state),
        }
    }

    fn queue(&self, job: Entry) -> Result<bool, ScheduleError> {
        let mut state = self.open()?;
        let newest = (!state.has_drain).then(|| Arc::clone(&job));
        state.push(job);
        let is_over = self.is_over(&state);
        match self.see_to_a_drain(state, newest) {
            Some(_) => Err(ScheduleError::Closed),
            None => Ok(is_over),
        }
    }

    /// WORKER-6.
    fn is_over(&self, state: &State) -> bool {
        self.pressure.is_over(state.incoming.len() as u64)
    }

    /// Something was queued; WORKER-1. If the executor turns out to be gone, `newest` comes back: see
    /// [`end`](SerialQueue::end).
    fn see_to_a_drain(
        &self,
        mut state: MutexGuard<'_, State>,
        newest: Option<Entry>,
    ) -> Option<Entry> {
        let had_one = std::mem::replace(&mut state.has_drain, true);
        if had_one {
            return None;
        }
        let executor = state.executor.clone();
        drop(state);
        Drain::of(self.me()).hand_over(executor, newest)
    }

    fn delay(&self, job: &Entry, when: When) -> Result<bool, ScheduleError> {
        let (when, deadline) = self.timers.place_in_order(when);
        let mut state = self.open()?;
        let ticket = state.delayed.insert(Arc::clone(job), deadline);
        let is_over = self.is_over(&state);
        drop(state);
        self.arm(job, ticket, when).map(|()| is_over)
    }

    /// Has a task that is among the delayed queued in time; WORKER-3. If the timers refuse, its arrival drops it: no
    /// other arrival can have brought it along yet.
    fn arm(&self, job: &Entry, ticket: u64, when: When) -> Result<(), ScheduleError> {
        let arrival = Arrival(Some((self.me(), Arc::clone(job), ticket)));
        let timer = self.timers.schedule(when, move || arrival.arrive())?;
        let unwanted = self.state().delayed.set_timer(ticket, timer);
        unwanted.into_iter().for_each(|timer| _ = timer.cancel());
        Ok(())
    }

    /// Sees to the next run of a series, which is the one that runs.
    pub(super) fn go_on(&self, job: &Entry, due: Instant) {
        // A clock that panics does so again below, and then the series ends.
        let late_at = self.hook.catch(|| self.timers.now()).filter(|now| due <= *now);
        // A series that lags would keep this thread from what else has become due, or from the caller whose thread it
        // is: so it goes round by the timers, and is behind that. On a thread of the executor's own it need not.
        let needs_this_thread = self.timers.need_this_thread() || drain::is_inline_here();
        let goes_round = late_at.is_some() && needs_this_thread;
        let is_due = late_at.is_some() && !goes_round;
        let due = late_at.filter(|_| goes_round).unwrap_or(due);
        let (when, deadline) = self.timers.place_in_order(When::At(due));
        let mut state = self.state();
        if state.executor.is_none() {
            drop(state);
            job.cancel();
        } else if is_due {
            state.push(Arc::clone(job)); // this is the drain that will get there
            drop(state);
        } else {
            let ticket = state.delayed.insert(Arc::clone(job), deadline);
            drop(state);
            self.hook.catch(|| _ = self.arm(job, ticket, when));
        }
        // It may have been cancelled when it was in no queue.
        if job.is_done() {
            self.remove(job.position());
        }
    }

    // ----- out of the queue ----------------------------------------------------------------

    /// Takes out the next task. `None`: there is none, and no drain any more.
    pub(super) fn next(&self) -> Option<Entry> {
        let _before; // dropped when the lock is free
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        while self.has_tasks(&mut outgoing) {
            let job = outgoing.tasks.pop_front()?;
            self.passed.store(self.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            if job.position().leave() == Position::Queued {
                outgoing.running = Some(Arc::clone(&job));
                return Some(job);
            }
            self.cancelled.fetch_sub(1, Ordering::Relaxed); // in this very moment
        }
        None
    }

    /// Returns true if the drain has something to do. If not, there is no drain any more.
    pub(super) fn goes_on(&self) -> bool {
        let _before;
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        self.has_tasks(&mut outgoing)
    }

    /// Brings a task to the front of `outgoing`; WORKER-5. If there is none, clears `has_drain`; WORKER-1.
    fn has_tasks(&self, outgoing: &mut Outgoing) -> bool {
        loop {
            while let Some(job) = outgoing.tasks.front() {
                if job.position().get() != Position::Gone {
                    return true;
                }
                outgoing.tasks.pop_front();
                self.cancelled.fetch_sub(1, Ordering::Relaxed);
            }
            let mut state = self.state();
            if outgoing.tasks.capacity() > SMALL.max(8 * state.incoming.len()) {
                outgoing.tasks = VecDeque::new(); // after a peak
            }
            std::mem::swap(&mut state.incoming, &mut outgoing.tasks);
            if outgoing.tasks.is_empty() {
                state.has_drain = false;
                return false;
            }
        }
    }

    /// Removes the entries of cancelled tasks, if they are more than half; WORKER-8.
    #[cold]
    fn tidy(&self) {
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        let entries = outgoing.tasks.len() + state.incoming.len();
        if self.cancelled.load(Ordering::Relaxed) > HOLES + entries / 2 {
            for tasks in [&mut outgoing.tasks, &mut state.incoming] {
                let before = tasks.len();
                tasks.retain(|job| job.position().get() != Position::Gone);
                let removed = before - tasks.len();
                self.cancelled.fetch_sub(removed, Ordering::Relaxed);
                tasks.shrink_to(SMALL.max(2 * tasks.len()));
            }
        }
    }

    /// The executor is gone for good: disposes the queue. The caller holds the drain.
    ///
    /// The task that has just come is taken out first, for its caller to have it back. `None` if it has gone: a
    /// disposal has cancelled it, or an executor that does not keep its word runs it.
    pub(super) fn end(&self, newest: Option<Entry>) -> Option<Entry> {
        let newest = newest.and_then(|job| {
            let mut state = self.state();
            // There it has not started; and nobody has a handle to cancel it by.
            let at = state.incoming.iter().rposition(|other| Arc::ptr_eq(other, &job))?;
            job.position().leave();
            state.incoming.remove(at)
        });
        if newest.is_some() {
            self.limit.leave();
        }
        self.dispose();
        newest
    }
}

impl Owner for SerialQueue {
    type Position = Slot;

    fn now(&self) -> Instant {
        self.timers.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    fn remove(&self, slot: &Slot) {
        let mut state = self.state();
        let counted = self.cancelled.fetch_add(1, Ordering::Relaxed) + 1;
        match slot.leave() {
            Position::Delayed(ticket) => {
                self.cancelled.fetch_sub(1, Ordering::Relaxed);
                let waited = state.delayed.remove(ticket);
                drop(state);
                let timer = waited.and_then(|(_, timer)| timer);
                timer.into_iter().for_each(|timer| _ = timer.cancel());
            }
            Position::Queued => {
                drop(state);
                if counted > HOLES {
                    self.tidy();
                }
            }
            Position::Gone => _ = self.cancelled.fetch_sub(1, Ordering::Relaxed),
        }
    }
}

impl TaskQueue for SerialQueue {
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let is_due = match when {
            When::After(delay) => delay.is_zero(),
            When::At(deadline) => deadline <= self.timers.now(),
        };
        if is_due { self.queue(job) } else { self.delay(&job, when) }
    }

    #[cold]
    fn hold_back(&self) {
        if drain::is_on_this_thread() {
            return; // WORKER-6
        }
        self.pressure.hold_back(|| {
            let ahead = self.state().incoming.len() as u64;
            Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
        });
    }

    fn dispose(&self) {
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        let executor = state.executor.take();
        let queued = [std::mem::take(&mut outgoing.tasks), std::mem::take(&mut state.incoming)];
        let (delayed, running) = (std::mem::take(&mut state.delayed), outgoing.running.clone());
        drop((state, outgoing));
        running.into_iter().chain(queued.into_iter().flatten()).for_each(|job| _ = job.cancel());
        for (job, timer) in delayed.into_all() {
            job.cancel(); // before its arrival is, which would only drop it
            timer.into_iter().for_each(|timer| _ = timer.cancel());
        }
        self.refused.leave(self);
        self.hook.catch(|| drop(executor));
    }

    fn is_disposed(&self) -> bool {
        self.state().executor.is_none()
    }

    fn pending(&self) -> usize {
        let outgoing = lock(&self.outgoing);
        let state = self.state();
        let waiting = outgoing.tasks.len() + state.incoming.len() + state.delayed.len();
        // Of a disposed queue nothing waits, and the count is void.
        waiting.saturating_sub(self.cancelled.load(Ordering::Relaxed))
    }
}

impl Drop for SerialQueue {
    /// Nobody can bring a task any more, and there is no drain. What is left was refused to the last.
    fn drop(&mut self) {
        self.dispose();
    }
}

/// Queues a task, by its ticket, when its time has come. Dropped without that, its time will not come.
struct Arrival(Option<(Arc<SerialQueue>, Entry, u64)>);

impl Arrival {
    fn arrive(mut self) {
        let Some((queue, _job, ticket)) = self.0.take() else { return };
        loop {
            let mut state = queue.state();
            let first = state.delayed.first_before(ticket); // WORKER-3
            // None: it was cancelled, or came with another one.
            let Some((job, timer)) = first.and_then(|first| state.delayed.remove(first)) else {
                return;
            };
            state.push(job);
            queue.see_to_a_drain(state, None);
            drop(timer);
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Some((queue, job, ticket)) = self.0.take() else { return };
        let waited = queue.state().delayed.remove(ticket);
        // If it does not wait, it has come with another one, or a disposal is on its way to it.
        if waited.is_some() {
            job.withdraw();
        }
    }
}

/// What keeps the time of delayed tasks.
#[derive(Clone)]
pub(super) enum Timers {
    /// Runs arrivals on its tick thread, in order of deadline.
    Wheel(Scheduler),
    /// Runs arrivals wherever it runs tasks, and perhaps out of order; WORKER-3.
    Any(Arc<dyn Schedule>),
}

impl Timers {
    pub(super) fn now(&self) -> Instant {
        match self {
            Timers::Wheel(scheduler) => scheduler.now(),
            Timers::Any(schedule) => schedule.now(),
        }
    }

    /// Whether they may get nothing done before the calling thread, which runs a task, is free.
    fn need_this_thread(&self) -> bool {
        match self {
            Timers::Wheel(scheduler) => scheduler.is_turned_here(),
            Timers::Any(_) => true, // for all that is known here
        }
    }

    /// When to arrive, and by which deadline to order the arrivals, if that is to be done here.
    fn place_in_order(&self, when: When) -> (When, Option<Instant>) {
        let deadline = match (self, when) {
            (Timers::Wheel(_), _) => return (when, None),
            (Timers::Any(_), When::At(deadline)) => deadline,
            (Timers::Any(schedule), When::After(delay)) => {
                let now = schedule.now();
                // As far as the clock goes, beyond that.
                Period::fixed_delay(delay).next_run(now, now)
            }
        };
        (When::At(deadline), Some(deadline))
    }

    pub(super) fn schedule(
        &self,
        when: When,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Cancellable, ScheduleError> {
        match (self, when) {
            (Timers::Wheel(scheduler), When::At(deadline)) => scheduler.schedule_at(deadline, task),
            (Timers::Wheel(scheduler), When::After(delay)) => scheduler.schedule_once(delay, task),
            (Timers::Any(schedule), When::At(deadline)) => {
                schedule.schedule_task_at(deadline, Box::new(task))
            }
            (Timers::Any(schedule), When::After(delay)) => {
                schedule.schedule_task(delay, Box::new(task))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::job::{Job, Once};
    use crate::{Cancel, DueTask, Inline};

    /// Behind a task that runs for long others come and are cancelled, for ever; and once all of many.
    #[test]
    fn what_is_cancelled_leaves_no_memory_behind() {
        let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let never_runs = move |task: DueTask| lock(&keep).push(task);
        let timers = Timers::Wheel(timers.with_executor(Inline));
        let hook = PanicHook::default();
        let (limit, refused) = (PendingLimit::new(None), Refused::new(timers.clone()));
        let queue = SerialQueue::new(Arc::new(never_runs), timers, hook, limit, refused);
        let owner: Weak<dyn TaskQueue> = Weak::clone(&queue.me) as Weak<dyn TaskQueue>;
        let push = || {
            let job = Job::new(Weak::clone(&owner), Once(|| ()));
            assert!(queue.queue(Arc::clone(&job) as Entry).is_ok());
            job
        };
        let mut window: VecDeque<_> = (0..100).map(|_| push()).collect();
        assert!(queue.goes_on(), "some are in front of the drain");
        for _ in 0..200_000 {
            window.push_back(push());
            assert!(window.pop_front().is_some_and(|oldest| oldest.cancel()));
            assert_eq!(queue.pending(), 100);
        }
        let entries = || lock(&queue.outgoing).tasks.len() + queue.state().incoming.len();
        assert!(entries() <= 100 + 2 * HOLES, "{}", entries());
        window.extend((0..100_000).map(|_| push()));
        window.drain(1..).rev().for_each(|job| assert!(job.cancel()));
        assert!(entries() <= 2 * HOLES && queue.pending() == 1);
        let memory = lock(&queue.outgoing).tasks.capacity() + queue.state().incoming.capacity();
        assert!(memory <= 4 * SMALL, "{memory}");
        let stays = queue.next().expect("one is left");
        assert!(Arc::ptr_eq(&stays, &(Arc::clone(&window[0]) as Entry)));
        assert!(queue.next().is_none() && !queue.state().has_drain);
        queue.dispose();
        lock(&kept).clear(); // the drain that the executor keeps has the queue
    }
}
