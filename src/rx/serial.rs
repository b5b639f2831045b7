//! The queue of a worker on an executor: how tasks come in, and how they leave.
//!
//! ```text
//!   due now --------------------------> incoming -----> outgoing -----> the drain runs them,
//!   due later ---> delayed ---timer------^       swapped                on the executor
//! ```
//!
//! `RxJava` counts the queued tasks in an atomic number, and the call that takes it from zero to one hands the drain to
//! the executor. Here the flag `has_drain` does that, under a lock. How the drain comes to a thread is in [`drain`].
//!
//! - WORKER-1 There is at most one [`Drain`], and only the drain takes tasks out, so they do not overlap. The thread
//!   that sets `has_drain` makes the drain. The drain that finds nothing queued clears the flag under the same lock. So
//!   no task is queued without a drain, and a task sees what the task before has written.
//! - WORKER-2 A task that has not started is queued or delayed, or the drain has just taken it out: then it is in
//!   `running`. A series between two runs is there too. So `dispose` finds it. A task starts by a step of its job
//!   (JOB-1), without a lock of the queue.
//! - WORKER-3 A delayed task is queued by its [timer](super::timer), in order of deadline. A [`Scheduler`](crate::Scheduler)
//!   runs these timers on its tick thread, in order. Any other [`Schedule`](crate::Schedule) may run them on several
//!   threads and out of order. So a timer first queues all tasks with an earlier deadline, and older ones with the same
//!   deadline. They are due too. How timers are set and moved is in [`timer`](super::timer).
//! - The executor, the clock, tasks, and destructors of any of these are called with no lock held.
//! - WORKER-5 Tasks come in under one lock, `state`, and the drain takes them out under another, `outgoing`. A thread
//!   that needs both takes `outgoing` first. When `outgoing` is empty, the two queues are swapped, so the order is
//!   kept, and the threads that bring tasks seldom meet the one that runs them.
//! - WORKER-6 A thread that brings tasks much faster than they run is held back, after its task was taken in and with
//!   no lock held: [`backpressure`](crate::executor::backpressure). Only the incoming tasks count, so delayed tasks
//!   hold nobody back before they are due. A thread that drains this queue or another is never held back, because the
//!   executor may have no other thread.
//! - WORKER-7 A closed queue takes no task, and queues no series again. A queue closes when its executor finishes: that
//!   one accepts nothing more, but runs what it has accepted. The drain then runs what is queued (DRAIN-5), and a delayed
//!   task still runs if its timer fires on a thread of the executor. A disposed queue is closed, has no executor, and
//!   nothing waits in it. A queue disposes itself when its executor is gone for good, or finishes and has no thread for
//!   it, or when only the retry queue still holds the queue and its executor has failed 1024 times in a row to run a drain
//!   (DRAIN-2).
//! - WORKER-8 A queued task that is cancelled drops its closure at once, and its position says that it has gone. Its
//!   entry stays behind, and `cancelled` counts these entries. The drain skips them. When they are more than half of
//!   all, all of them are removed. So a cancel takes O(1), amortised, and never searches.
//! - WORKER-9 The deadline of a delayed task moves in `delayed`, and its timer follows (DELAY-3). A queued task whose
//!   deadline moves stays where it is, and the new deadline is stored in its position. The drain reads it there: it runs
//!   the task if it is due by then, and delays it otherwise. Only the drain takes a queued task out without the lock `state`, and it does
//!   so by an exchange, so a reset comes before that or finds the task gone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::delayed::{Delayed, Entry, SMALL};
use super::drain::{self, Drain, RetryQueue};
use super::position::{AtomicPosition, Position};
use super::timer::{Timers, When, cancel_timer};
use super::worker::TaskQueue;
use crate::executor::backpressure::PendingLimit;
use crate::executor::backpressure::{Backpressure, Flow};
use crate::platform::sync::{Mutex, MutexGuard, Ordering, lock};
use crate::pool::job::{Due, Epoch, Next, Owner};
use crate::{Executor, PanicHook, ScheduleError};

/// With more incoming tasks than this, the threads that bring them are held back (WORKER-6).
const MAX_AHEAD: u64 = 1 << 16;

/// No entries are removed for fewer cancelled tasks than this (WORKER-8).
const MIN_SWEEP: usize = 256;

/// The tasks of one worker.
// `state` is first, so that the lock lies beside the reference counts of the `Arc`: each task changes both.
#[repr(C)]
pub(super) struct SerialQueue {
    state: Mutex<State>,
    me: Weak<SerialQueue>,
    pub(super) timers: Timers,
    /// When the queue was made, by the clock of the timers. Postponed tasks count from it (WORKER-9).
    epoch: Epoch,
    pub(super) hook: PanicHook,
    pub(super) outgoing: CachePadded<Mutex<Outgoing>>,
    /// How many entries the drain has taken out. Relaxed suffices, because only the drain writes it, and it orders
    /// nothing.
    pub(super) passed: AtomicU64,
    /// The thread that drains, or has begun the drain that waits in the executor, as [`drain::thread_number`] numbers it.
    /// Relaxed suffices, because a thread only looks for itself.
    pub(super) drained_by: AtomicUsize,
    /// How many entries in both queues are of cancelled tasks (WORKER-8). An entry is counted before its position says
    /// that the task has gone, so the count is never too low. Relaxed suffices, because the position publishes it.
    cancelled: AtomicUsize,
    limit: PendingLimit,
    pressure: Backpressure,
    /// Where the drain waits if its executor does not run it.
    pub(super) retries: Arc<RetryQueue>,
}

/// What the threads that bring tasks work on (WORKER-5).
#[derive(Default)]
pub(super) struct State {
    incoming: VecDeque<Entry>,
    pub(super) delayed: Delayed,
    /// It takes no more tasks (WORKER-7).
    is_closed: bool,
    /// `None` once the queue is disposed (WORKER-7).
    pub(super) executor: Option<Arc<dyn Executor>>,
    /// Tells whether there is a [`Drain`] (WORKER-1).
    pub(super) has_drain: bool,
}

impl State {
    pub(super) fn push(&mut self, job: Entry) {
        job.position().set(Position::Queued);
        self.incoming.push_back(job);
    }
}

/// What the drain works on (WORKER-5).
#[derive(Default)]
pub(super) struct Outgoing {
    tasks: VecDeque<Entry>,
    /// The task that the drain took out last (WORKER-2).
    running: Option<Entry>,
    /// Since when the drain holds the call that has handed it over to an inline executor (DRAIN-3).
    pub(super) inline_since: Option<Instant>,
}

impl SerialQueue {
    pub(super) fn new(
        executor: Arc<dyn Executor>,
        timers: Timers,
        hook: PanicHook,
        limit: PendingLimit,
        retries: Arc<RetryQueue>,
    ) -> Arc<SerialQueue> {
        let epoch = Epoch(timers.now());
        Arc::new_cyclic(|me| SerialQueue {
            state: Mutex::new(State { executor: Some(executor), ..State::default() }),
            me: Weak::clone(me),
            timers,
            epoch,
            hook,
            outgoing: CachePadded::default(),
            passed: AtomicU64::new(0),
            drained_by: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            limit,
            pressure: Backpressure::new(MAX_AHEAD),
            retries,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn me(&self) -> Arc<SerialQueue> {
        self.me.upgrade().expect("the caller holds it")
    }

    // ----- into the queue ------------------------------------------------------------------

    /// Locks the queue for one more task, and counts it as pending.
    fn admit(&self) -> Result<MutexGuard<'_, State>, ScheduleError> {
        let state = self.state();
        if state.is_closed {
            return Err(ScheduleError::Closed);
        }
        if self.limit.enter() { Ok(state) } else { Err(ScheduleError::Full) }
    }

    /// Hands a drain to the executor, unless there is one (WORKER-1). Returns `newest`, the task that was just queued,
    /// if the executor turns out to be gone: see [`executor_is_gone`](SerialQueue::executor_is_gone).
    pub(super) fn start_drain(
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
        Drain(Some(self.me())).hand_over(executor, newest)
    }

    fn delay(&self, job: &Entry, when: When) -> Result<bool, ScheduleError> {
        let (when, deadline) = self.timers.with_deadline(when);
        let mut state = self.admit()?;
        let ticket = state.delayed.insert(Arc::clone(job), deadline);
        let is_too_long = self.pressure.is_over(state.incoming.len() as u64);
        drop(state);
        self.set_first_timer(job, ticket, when).map(|()| is_too_long)
    }

    /// Queues the next run of the series that the drain has just run, or delays it. Called with the lock of the job
    /// held, so it calls no user code. [`settle`](SerialQueue::settle) does the rest.
    pub(super) fn put_back(&self, job: &Entry, Next { due, ended }: Next) -> PutBack {
        let is_overdue = due <= ended;
        // On an inline executor or on the tick thread, a lagging series that is queued at once would keep this thread
        // from its timers or its caller. There its next run goes through a timer, after all that is due. On other
        // threads it is queued at once.
        let is_needed_elsewhere = drain::this_thread().is_inline
            || match &self.timers {
                Timers::Wheel(scheduler) => scheduler.is_turned_here(),
                Timers::Any(_) => true, // perhaps
            };
        let mut state = self.state();
        if state.is_closed {
            PutBack::Closed
        } else if is_overdue && !is_needed_elsewhere {
            state.push(Arc::clone(job)); // the caller is the drain, and will come to it
            PutBack::Queued
        } else {
            let due = due.max(ended);
            PutBack::Delayed(state.delayed.insert(Arc::clone(job), Some(due)), due)
        }
    }

    /// Does what [`put_back`](SerialQueue::put_back) has left to do, with nothing locked.
    pub(super) fn settle(&self, job: &Entry, put_back: PutBack) {
        match put_back {
            PutBack::Queued => {}
            PutBack::Closed => _ = job.cancel(),
            PutBack::Delayed(ticket, due) => {
                self.hook.catch(|| _ = self.set_first_timer(job, ticket, When::At(due)));
            }
        }
    }

    // ----- out of the queue ----------------------------------------------------------------

    /// Takes out the next task. If it returns `None`, there is none, and the drain has ended. A task that was postponed
    /// keeps its position, and [`take_postponed`](SerialQueue::take_postponed) tells whether it is due.
    pub(super) fn next(&self) -> Option<Taken> {
        let _before; // dropped after the lock
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        while self.has_next(&mut outgoing) {
            let job = outgoing.tasks.pop_front()?;
            self.passed.store(self.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            let is_due = job.position().change(Position::Queued, Position::Gone);
            if is_due || matches!(job.position().get(), Position::Postponed(_)) {
                outgoing.running = Some(Arc::clone(&job));
                return Some(if is_due { Taken::Due(job) } else { Taken::Postponed(job) });
            }
            self.cancelled.fetch_sub(1, Ordering::Relaxed); // cancelled since the look at it
        }
        None
    }

    /// Returns true if a postponed task is due by now. Otherwise delays it (WORKER-9).
    #[cold]
    pub(super) fn take_postponed(&self, job: &Entry) -> bool {
        let now = self.hook.catch(|| self.timers.now());
        let mut state = self.state();
        let Position::Postponed(number) = job.position().get() else {
            self.cancelled.fetch_sub(1, Ordering::Relaxed); // cancelled in the meantime
            return false;
        };
        let due = self.epoch.instant(number);
        let is_due = number == 0 || now.is_some_and(|now| due <= now);
        if is_due || state.is_closed {
            job.position().leave();
            drop(state);
            if !is_due {
                job.cancel(); // nobody would keep its time (WORKER-7)
            }
            return is_due;
        }
        let ticket = state.delayed.insert_moved(Arc::clone(job), due);
        drop(state);
        self.set_timer_again(job, ticket, due);
        false
    }

    /// Returns true if the drain has something to do. Otherwise the drain has ended.
    pub(super) fn has_more(&self) -> bool {
        let _before; // dropped after the lock
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        self.has_next(&mut outgoing)
    }

    /// Brings a task that waits to the front of `outgoing`. If there is none, it ends the drain and returns false
    /// (WORKER-1).
    fn has_next(&self, outgoing: &mut Outgoing) -> bool {
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
            if cfg!(debug_assertions) {
                self.check_invariants(outgoing, &state);
            }
            if outgoing.tasks.is_empty() {
                state.has_drain = false;
                self.drained_by.store(0, Ordering::Relaxed); // the next drain may run on another thread
                outgoing.inline_since = None;
                return false;
            }
        }
    }

    /// Checks the invariants just after a swap. It looks at each queued task, and each is swapped once, so the cost per
    /// task is constant.
    fn check_invariants(&self, outgoing: &Outgoing, state: &State) {
        assert!(state.has_drain, "only the drain looks for tasks (WORKER-1)");
        assert!(state.incoming.is_empty(), "older tasks come first (WORKER-5)");
        let mut gone = 0;
        for job in &outgoing.tasks {
            match job.position().get() {
                Position::Queued | Position::Postponed(_) => {}
                Position::Gone => gone += 1,
                Position::Delayed(_) => panic!("a task is queued or delayed (WORKER-2)"),
            }
        }
        let counted = self.cancelled.load(Ordering::Relaxed);
        assert!(
            gone <= counted,
            "{gone} entries are of cancelled tasks, {counted} counted (WORKER-8)"
        );
        state.delayed.check_invariants();
        let is_empty = outgoing.tasks.is_empty() && state.delayed.len() == 0;
        assert!(state.executor.is_some() || is_empty, "nothing waits after a disposal (WORKER-7)");
        assert!(state.executor.is_some() || state.is_closed, "WORKER-7");
    }

    /// Removes the entries of cancelled tasks, if they are more than half of all (WORKER-8).
    #[cold]
    fn sweep(&self) {
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        let entries = outgoing.tasks.len() + state.incoming.len();
        if self.cancelled.load(Ordering::Relaxed) > MIN_SWEEP + entries / 2 {
            for tasks in [&mut outgoing.tasks, &mut state.incoming] {
                let before = tasks.len();
                tasks.retain(|job| job.position().get() != Position::Gone);
                let removed = before - tasks.len();
                self.cancelled.fetch_sub(removed, Ordering::Relaxed);
                tasks.shrink_to(SMALL.max(2 * tasks.len()));
            }
        }
    }

    /// Disposes the queue, because its executor is gone for good, or finishes and has no thread for it. The caller holds
    /// the drain.
    ///
    /// Before that, it takes out `newest`, the task that has just come, and returns it for its caller. It returns
    /// `None` if the task has left: a disposal has cancelled it, or the executor has run the drain that it refused.
    ///
    /// If the executor finishes and refuses no more than a new task, the delayed tasks may stay: the executor may be the
    /// one that keeps their time. The tick thread of a scheduler never is.
    pub(super) fn executor_is_gone(
        &self,
        newest: Option<Entry>,
        is_finishing: bool,
    ) -> Option<Entry> {
        let keeps_delayed = is_finishing && newest.is_some() && !self.timers.keep_the_order();
        let newest = newest.and_then(|job| {
            let mut state = self.state();
            // An incoming task has not started, and nobody has a handle yet to cancel it.
            let at = state.incoming.iter().rposition(|other| Arc::ptr_eq(other, &job))?;
            job.position().leave();
            state.incoming.remove(at)
        });
        if newest.is_some() {
            self.limit.leave();
        }
        self.end(keeps_delayed);
        newest
    }

    /// Takes no more tasks, because the executor finishes (WORKER-7).
    pub(super) fn close(&self) {
        self.state().is_closed = true;
    }

    /// Closes the queue and cancels what is queued. Unless it keeps what is delayed, this disposes it.
    fn end(&self, keeps_delayed: bool) {
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        state.is_closed = true;
        let queued = [std::mem::take(&mut outgoing.tasks), std::mem::take(&mut state.incoming)];
        let (mut executor, mut delayed) = (None, Delayed::default());
        if !keeps_delayed {
            (executor, delayed) = (state.executor.take(), std::mem::take(&mut state.delayed));
        }
        let running = outgoing.running.clone();
        drop((state, outgoing));
        running.into_iter().chain(queued.into_iter().flatten()).for_each(|job| _ = job.cancel());
        for (job, timer) in delayed.into_all() {
            job.cancel(); // before its timer, which would only withdraw it
            cancel_timer(&self.hook, timer);
        }
        self.retries.remove(self);
        self.hook.catch(|| drop(executor));
    }
}

/// A task that the drain has taken out.
pub(super) enum Taken {
    Due(Entry),
    /// Its deadline was moved while it was queued.
    Postponed(Entry),
}

/// Where a series waits for its next run.
#[derive(Clone, Copy)]
pub(super) enum PutBack {
    Queued,
    /// Under this ticket, until then. It needs a timer.
    Delayed(u64, Instant),
    /// Nowhere, because the queue is closed.
    Closed,
}

impl Owner for SerialQueue {
    type Position = AtomicPosition;
    /// The ticket whose timer has to be moved.
    type AfterMove = Option<u64>;

    fn now(&self) -> Instant {
        self.timers.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    fn remove(&self, position: &AtomicPosition) {
        let mut state = self.state();
        let counted = self.cancelled.fetch_add(1, Ordering::Relaxed) + 1;
        match position.leave() {
            Position::Delayed(ticket) => {
                self.cancelled.fetch_sub(1, Ordering::Relaxed);
                let removed = state.delayed.remove(ticket);
                drop(state);
                cancel_timer(&self.hook, removed.and_then(|(_, timer)| timer));
            }
            Position::Queued | Position::Postponed(_) => {
                drop(state);
                if counted > MIN_SWEEP {
                    self.sweep();
                }
            }
            Position::Gone => _ = self.cancelled.fetch_sub(1, Ordering::Relaxed),
        }
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let state = self.state();
        match position.get() {
            Position::Gone => None,
            Position::Queued | Position::Postponed(0) => Some(Due::Now),
            Position::Postponed(number) => Some(Due::At(self.epoch.instant(number))),
            Position::Delayed(ticket) => Some(state.delayed.due(ticket)),
        }
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<Option<u64>> {
        let mut state = self.state();
        loop {
            match position.get() {
                Position::Gone => return None,
                // If it has left, it is about to be cancelled.
                Position::Delayed(ticket) => {
                    return state.delayed.move_to(ticket, deadline).then_some(Some(ticket));
                }
                // If nobody keeps the time any more, the task stays where it is.
                _ if state.is_closed || self.timers.are_closed() => return None,
                queued => {
                    let postponed = Position::Postponed(self.epoch.number(deadline));
                    if position.change(queued, postponed) {
                        return Some(None); // otherwise the drain has just taken it out
                    }
                }
            }
        }
    }

    fn has_moved(&self, ticket: Option<u64>) {
        ticket.into_iter().for_each(|ticket| self.move_timer(ticket));
    }

    fn repeats(&self) -> bool {
        !self.state().is_closed
    }
}

impl TaskQueue for SerialQueue {
    fn submit(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let is_due = match when {
            When::After(delay) => delay.is_zero(),
            When::At(deadline) => deadline <= self.timers.now(),
        };
        if !is_due {
            return self.delay(&job, when);
        }
        let mut state = self.admit()?;
        let newest = (!state.has_drain).then(|| Arc::clone(&job));
        state.push(job);
        let is_too_long = self.pressure.is_over(state.incoming.len() as u64);
        match self.start_drain(state, newest) {
            Some(_) => Err(ScheduleError::Closed),
            None => Ok(is_too_long),
        }
    }

    #[cold]
    fn hold_back(&self) {
        if drain::this_thread().drains > 0 {
            return; // the executor may have no other thread (WORKER-6)
        }
        self.pressure.hold_back(|| {
            let ahead = self.state().incoming.len() as u64;
            Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
        });
    }

    fn dispose(&self) {
        self.end(false);
    }

    fn is_disposed(&self) -> bool {
        self.state().is_closed
    }

    fn finishes(&self) -> Option<bool> {
        let state = self.state();
        let is_here =
            || state.has_drain && self.drained_by.load(Ordering::Relaxed) == drain::thread_number();
        state.executor.is_some().then(is_here)
    }

    fn refusal(&self) -> Option<ScheduleError> {
        let is_full = || self.limit.is_reached().then_some(ScheduleError::Full);
        if self.is_disposed() { Some(ScheduleError::Closed) } else { is_full() }
    }

    fn pending(&self) -> usize {
        let outgoing = lock(&self.outgoing);
        let state = self.state();
        let is_postponed = |job: &&Entry| matches!(job.position().get(), Position::Postponed(_));
        let taken_out = outgoing.running.iter().filter(is_postponed).count();
        let queued = outgoing.tasks.len() + state.incoming.len() + taken_out;
        let waiting = queued + state.delayed.len();
        // A disposed queue is empty, but still counts the tasks that its disposal has cancelled.
        waiting.saturating_sub(self.cancelled.load(Ordering::Relaxed))
    }
}

impl Drop for SerialQueue {
    /// Nobody can bring a task any more, and there is no drain. The executor has refused the tasks that are left.
    fn drop(&mut self) {
        self.dispose();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::worker::NOW;
    use super::*;
    use crate::pool::job::{Job, Once};
    use crate::{Cancel, DueTask, Inline, Scheduler};

    /// Tasks are queued and cancelled, first one after the other without end, and then very many at once.
    #[test]
    fn what_is_cancelled_leaves_no_memory_behind() {
        let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let never_runs = move |task: DueTask| lock(&keep).push(task);
        let timers = Timers::Wheel(timers.with_executor(Inline));
        let hook = PanicHook::default();
        let (limit, retries) = (PendingLimit::new(None), RetryQueue::new(timers.clone()));
        let queue = SerialQueue::new(Arc::new(never_runs), timers, hook, limit, retries);
        let owner: Weak<dyn TaskQueue> = Weak::clone(&queue.me) as Weak<dyn TaskQueue>;
        let push = || {
            let job = Job::new(Weak::clone(&owner), Once(|| ()));
            assert!(queue.submit(Arc::clone(&job) as Entry, NOW).is_ok());
            job
        };
        let mut window: VecDeque<_> = (0..100).map(|_| push()).collect();
        assert!(queue.has_more(), "some are in front of the drain");
        for _ in 0..200_000 {
            window.push_back(push());
            assert!(window.pop_front().is_some_and(|oldest| oldest.cancel()));
            assert_eq!(queue.pending(), 100);
        }
        let entries = || lock(&queue.outgoing).tasks.len() + queue.state().incoming.len();
        assert!(entries() <= 100 + 2 * MIN_SWEEP, "{}", entries());
        window.extend((0..100_000).map(|_| push()));
        window.drain(1..).rev().for_each(|job| assert!(job.cancel()));
        assert!(entries() <= 2 * MIN_SWEEP && queue.pending() == 1);
        let memory = lock(&queue.outgoing).tasks.capacity() + queue.state().incoming.capacity();
        assert!(memory <= 4 * SMALL, "{memory}");
        let Some(Taken::Due(stays)) = queue.next() else { panic!("one is left") };
        assert!(Arc::ptr_eq(&stays, &(Arc::clone(&window[0]) as Entry)));
        assert!(queue.next().is_none() && !queue.state().has_drain);
        queue.dispose();
        lock(&kept).clear(); // the drain that the executor keeps has the queue
    }
}
