//! The queue of a worker on an executor: how tasks come in, and how they leave.
//!
//! ```text
//!   due now --------------------------> incoming -----> outgoing -----> the drain runs them,
//!   due later ---> delayed ---timer------^       swapped                on the executor
//! ```
//!
//! ```text
//!   schedule_after ---> submit ---> set_timer ---> come_out ---> start_drain ---> run_batch ---> Job::run
//!   worker              here        timer          timer         here             drain          job
//! ```
//!
//! `RxJava` counts the queued tasks in an atomic number, and the call that takes it from zero to one hands the drain to
//! the executor. Here the flag `has_drain` does that, under a lock. How the drain comes to a thread is in [`drain`].
//!
//! - WORKER-1 There is at most one drain, and only the drain takes tasks out, so they do not overlap. The thread
//!   that sets `has_drain` makes the drain. The drain that finds nothing queued clears the flag under the same lock. So
//!   no task is queued without a drain, and a task sees what the task before has written.
//! - WORKER-2 A task that has not started is queued or delayed, or the drain has just taken it out: then it is in
//!   `running`. A series between two runs is there too. So `dispose` finds it. A task starts by a step of its job
//!   (JOB-1), without a lock of the queue.
//! - WORKER-3 Tasks come in under one lock, `state`, and the drain takes them out under another, `outgoing`. A thread
//!   that needs both takes `outgoing` first. When `outgoing` is empty, the two queues are swapped, so the order is
//!   kept, and the threads that bring tasks seldom meet the one that runs them.
//! - WORKER-4 A closed queue takes no task, and queues no series again. A queue closes when its executor finishes: that
//!   one accepts nothing more, but runs what it has accepted. The drain then runs what is queued (DRAIN-3), and a delayed
//!   task still runs if its timer fires on a thread of the executor. A disposed queue is closed, has no executor, and
//!   nothing waits in it. A queue disposes itself when its executor is gone for good, or finishes and has no thread for
//!   it, or when only the retry queue still holds the queue and its executor has failed 1024 times in a row to run a
//!   drain.
//! - WORKER-5 A queued entry stands for its task if the position of the task has the entry's number. A task that is
//!   cancelled, or moved to a later time, leaves a *stale* entry behind. The drain skips it. When more tasks have left like
//!   that than are queued, all stale entries are removed. So a cancel takes O(1), amortised, and never searches, and a
//!   reset takes O(log n). How many tasks are queued is a difference: those that have come, without those that the drain
//!   has taken out and those that have left.
//! - A delayed task is queued by its [timer](super::timer), in order of deadline. A [`Scheduler`](crate::Scheduler)
//!   runs these timers on its tick thread, in order. Any other [`Schedule`](crate::Schedule) may run them on several
//!   threads and out of order. So a timer first queues all tasks with an earlier deadline, and older ones with the same
//!   deadline. They are due too.
//! - The executor, the clock, tasks, and destructors of any of these are called with no lock held.
//! - A thread that brings tasks much faster than they run is held back, after its task was taken in and with no lock
//!   held: [`backpressure`](crate::backpressure). Only the incoming tasks count, so delayed tasks hold nobody
//!   back before they are due.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::delayed::{Delayed, DelayedTask, Entry, SMALL, Timer, Wait};
use super::drain;
use super::retries::RetryQueue;
use super::timer::cancel_timer;
use super::worker::TaskQueue;
use crate::backpressure::{Backpressure, Flow, PendingLimit};
use crate::clock::epoch::Epoch;
use crate::job::{AtomicPosition, Due, Next, Owner, Position, owner_has};
use crate::platform::panics::caught;
use crate::platform::sync::{Mutex, MutexGuard, Ordering, lock};
use crate::{Executor, PanicHook, ScheduleError, Scheduler};

/// With more incoming tasks than this, the threads that bring them are held back.
const MAX_AHEAD: u64 = 1 << 16;

/// No entries are removed for fewer stale ones than this (WORKER-5).
const MIN_SWEEP: u64 = 256;

/// The tasks of one worker.
// `state` is first, so that the lock lies beside the reference counts of the `Arc`: each task changes both.
#[repr(C)]
pub(super) struct SerialQueue {
    state: Mutex<State>,
    me: Weak<SerialQueue>,
    pub(super) hook: PanicHook,
    outgoing: CachePadded<Mutex<Outgoing>>,
    /// How many tasks the drain has taken out. Relaxed suffices, because only the drain writes it, and it orders nothing.
    pub(super) passed: AtomicU64,
    /// The drain is about to be dropped, and runs on all the same (DRAIN-3). Relaxed suffices, because the thread that sets it
    /// is the one that drops the drain.
    pub(super) keeps_drain: AtomicBool,
    /// The thread that drains, or has begun the drain that waits in the executor, as [`drain::thread_number`] numbers it.
    /// Relaxed suffices, because a thread only looks for itself.
    pub(super) drained_by: AtomicUsize,
    limit: PendingLimit,
    pressure: Backpressure,
    /// Where the drain waits if its executor does not run it. It has the timers and the clock.
    pub(super) retries: Arc<RetryQueue>,
    /// Names it there, under the lock of `retries`. 0 names none.
    pub(super) retry_ticket: AtomicU64,
}

/// A task in a queue, with its number (WORKER-5).
type Queued = (u64, Entry);

/// What the threads that bring tasks work on (WORKER-3).
#[derive(Default)]
pub(super) struct State {
    incoming: VecDeque<Queued>,
    /// The number of the entry that came last. So each queue is sorted by number.
    last_number: u64,
    /// How many tasks have left the queues otherwise than by the drain (WORKER-5), and how many of these had left at the last
    /// sweep.
    left: u64,
    swept: u64,
    pub(super) delayed: Delayed,
    /// It takes no more tasks (WORKER-4).
    pub(super) is_closed: bool,
    /// `None` once the queue is disposed (WORKER-4).
    pub(super) executor: Option<Arc<dyn Executor>>,
    /// Tells whether there is a drain (WORKER-1).
    pub(super) has_drain: bool,
}

pub(super) type Locked<'a> = MutexGuard<'a, State>;

impl State {
    pub(super) fn push(&mut self, job: Entry) {
        self.last_number += 1;
        job.position().set(Position::Queued(self.last_number));
        self.incoming.push_back((self.last_number, job));
    }

    /// Takes out a task that is queued, and leaves its entry behind (WORKER-5). Returns false if it is not.
    pub(super) fn leave(&mut self, position: &AtomicPosition) -> bool {
        let queued = position.get();
        let has_left = matches!(queued, Position::Queued(_)) && position.leave(queued);
        self.left += u64::from(has_left);
        has_left
    }
}

/// What the drain works on (WORKER-3).
#[derive(Default)]
pub(super) struct Outgoing {
    tasks: VecDeque<Queued>,
    /// The task that the drain took out last (WORKER-2).
    running: Option<Entry>,
}

impl SerialQueue {
    pub(super) fn new(
        executor: Arc<dyn Executor>,
        hook: PanicHook,
        limit: PendingLimit,
        retries: Arc<RetryQueue>,
    ) -> Arc<SerialQueue> {
        // A scheduler's timers fire in order.
        let epoch = retries.scheduler.is_none().then(|| Epoch::new(retries.timers.now()));
        let (delayed, executor) = (Delayed::new(epoch), Some(executor));
        let state = State { delayed, executor, ..State::default() };
        Arc::new_cyclic(|me| SerialQueue {
            state: Mutex::new(state),
            me: Weak::clone(me),
            hook,
            outgoing: CachePadded::default(),
            passed: AtomicU64::new(0),
            keeps_drain: AtomicBool::new(false),
            drained_by: AtomicUsize::new(0),
            limit,
            pressure: Backpressure::new(MAX_AHEAD),
            retries,
            retry_ticket: AtomicU64::new(0),
        })
    }

    pub(super) fn state(&self) -> Locked<'_> {
        lock(&self.state)
    }

    /// Returns false if nobody keeps the time of its tasks any more.
    fn keeps_time(&self, state: &State) -> bool {
        !state.is_closed && !self.retries.scheduler.as_ref().is_some_and(Scheduler::is_closed)
    }

    pub(super) fn me(&self) -> Arc<SerialQueue> {
        self.me.upgrade().expect("the caller holds it")
    }

    // ----- into the queue ------------------------------------------------------------------

    /// Hands a drain to the executor, unless there is one (WORKER-1). Returns true if the executor turns out to be gone and
    /// `newest`, the task that was just queued, is refused.
    pub(super) fn start_drain(&self, mut state: Locked<'_>, newest: Option<Entry>) -> bool {
        if std::mem::replace(&mut state.has_drain, true) {
            return false;
        }
        self.me().hand_over(state, newest)
    }

    /// Sets the first timer of a task that waits for its time. If it is refused, the task leaves.
    fn set_first_timer(&self, wait: Wait, name: &'static str) -> Result<(), ScheduleError> {
        let set = caught(|| self.set_timer(wait, name)).unwrap_or_else(|panic| {
            self.withdraw(wait.key);
            resume_unwind(panic) // of a schedule from outside
        });
        let Err(reason) = set else { return Ok(()) };
        // It may have left: a disposal has cancelled it, or its timer has fired and was refused afterwards.
        if self.state().delayed.remove(wait.key).is_some() { Err(reason) } else { Ok(()) }
    }

    /// Queues the next run of the series that the drain has just run, or delays it. Called with the lock of the job
    /// held, so it calls no user code: if it returns a wait, the caller sets the timer. A closed queue does nothing.
    pub(super) fn put_back(&self, job: &Entry, Next { due, ended }: Next) -> Option<Wait> {
        let is_overdue = due == ended;
        // On an inline executor or on the tick thread, a lagging series that is queued at once would keep this thread
        // from its timers or its caller. There its next run goes through a timer, after all that is due. On other
        // threads it is queued at once.
        let is_needed_elsewhere = drain::this_thread().is_inline()
            || self.retries.scheduler.as_ref().is_none_or(Scheduler::is_turned_here); // elsewhere perhaps
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        if is_overdue && !is_needed_elsewhere {
            state.push(Arc::clone(job)); // the caller is the drain, and will come to it
            return None;
        }
        Some(state.delayed.insert(Arc::clone(job), due, Timer::InHand))
    }

    // ----- out of the queue ----------------------------------------------------------------

    /// Takes out the next task. If it returns `None`, there is none, and the drain has ended.
    pub(super) fn next(&self) -> Option<Entry> {
        let _before; // dropped after the lock
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        while self.refill(&mut outgoing) {
            let (number, job) = outgoing.tasks.pop_front()?;
            if job.position().leave(Position::Queued(number)) {
                self.passed.store(self.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                outgoing.running = Some(job);
                break;
            }
        }
        outgoing.running.clone()
    }

    /// Returns true if the drain has something to do. Otherwise the drain has ended.
    pub(super) fn has_more(&self) -> bool {
        let _before; // dropped after the lock
        let mut outgoing = lock(&self.outgoing);
        _before = outgoing.running.take();
        while self.refill(&mut outgoing) {
            if !outgoing.tasks.front().is_some_and(is_stale) {
                return true;
            }
            outgoing.tasks.pop_front();
        }
        false
    }

    /// Returns true if there are entries in `outgoing`, after a swap if need be. Otherwise the drain has ended (WORKER-1).
    fn refill(&self, outgoing: &mut Outgoing) -> bool {
        if outgoing.tasks.is_empty() {
            let mut state = self.state();
            outgoing.tasks.shrink_to(SMALL.max(8 * state.incoming.len())); // after a peak
            std::mem::swap(&mut state.incoming, &mut outgoing.tasks);
            if cfg!(debug_assertions) {
                self.check_invariants(outgoing, &state);
            }
            if outgoing.tasks.is_empty() {
                state.has_drain = false;
                self.drained_by.store(0, Ordering::Relaxed); // the next drain may run on another thread
            }
        }
        !outgoing.tasks.is_empty()
    }

    /// Checks the invariants just after a swap. It looks at each queued task, and each is swapped once, so the cost per
    /// task is constant.
    fn check_invariants(&self, outgoing: &Outgoing, state: &State) {
        assert!(outgoing.tasks.iter().is_sorted_by_key(|(number, _)| number), "WORKER-5");
        let queued = outgoing.tasks.iter().filter(|entry| !is_stale(entry)).count();
        assert_eq!(queued as u64, self.queued(state), "queued tasks (WORKER-5)");
        let is_empty = outgoing.tasks.is_empty() && state.delayed.len() == 0;
        assert!(
            state.executor.is_some() || (state.is_closed && is_empty),
            "nothing waits in a disposed queue (WORKER-4)"
        );
    }

    /// Returns how many tasks are queued (WORKER-5). Each task that the drain has taken out has come under the lock that the
    /// caller holds, so it is among those that have come. One that the drain is just taking out may still count, unless the
    /// caller has locked `outgoing` too.
    fn queued(&self, state: &State) -> u64 {
        state.last_number - self.passed.load(Ordering::Relaxed) - state.left
    }

    /// Removes the stale entries, if they may be more than half of all (WORKER-5).
    fn sweep(&self) {
        let state = self.state();
        if state.left - state.swept <= MIN_SWEEP + self.queued(&state) {
            return;
        }
        drop(state);
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        state.swept = state.left;
        for tasks in [&mut outgoing.tasks, &mut state.incoming] {
            tasks.retain(|entry| !is_stale(entry));
            tasks.shrink_to(SMALL.max(2 * tasks.len()));
        }
    }

    /// Closes the queue and cancels what is queued. Unless it keeps what is delayed, this disposes it.
    pub(super) fn end(&self, keeps_delayed: bool) {
        let mut outgoing = lock(&self.outgoing);
        let mut state = self.state();
        state.is_closed = true;
        let queued = [std::mem::take(&mut outgoing.tasks), std::mem::take(&mut state.incoming)];
        let take_out = |(_, job): Queued| state.leave(job.position()).then_some(job);
        let mut ended: Vec<Entry> = queued.into_iter().flatten().filter_map(take_out).collect();
        ended.extend(outgoing.running.clone());
        let executor = state.executor.take_if(|_| !keeps_delayed);
        let delayed = (!keeps_delayed).then(|| state.delayed.take_all());
        drop((state, outgoing));
        ended.into_iter().for_each(|job| _ = job.cancel());
        for task in delayed.into_iter().flatten() {
            task.job.cancel(); // before its timer, which would only withdraw it
            cancel_timer(&self.hook, task.into_timer());
        }
        self.retries.remove(self);
        self.hook.catch(None, || drop(executor));
    }
}

/// Returns true if an entry does not stand for its task any more (WORKER-5).
fn is_stale((number, job): &Queued) -> bool {
    job.position().get() != Position::Queued(*number)
}

impl Owner for SerialQueue {
    owner_has!(self, now: self.retries.timers.now(), hook: self.hook, limit: self.limit);

    fn remove(&self, position: &AtomicPosition) {
        let mut state = self.state();
        let removed = state.delayed.remove(position.key());
        let has_left = removed.is_none() && state.leave(position);
        drop(state);
        cancel_timer(&self.hook, removed.and_then(DelayedTask::into_timer));
        if has_left {
            self.sweep();
        }
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let state = self.state();
        match position.get() {
            Position::Gone => None,
            Position::Queued(_) => Some(Due::Now),
            Position::Delayed(key) => state.delayed.get(key).map(|task| Due::At(task.deadline)),
        }
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<bool> {
        // The task's timer, and a move on another thread, change its position under the lock of the state alone. So the
        // position counts only as it is read under that lock.
        let outgoing = lock(&self.outgoing);
        let mut state = self.state();
        match position.get() {
            // If it has left, it is about to be cancelled.
            Position::Delayed(key) => state.delayed.move_to(key, deadline).then_some(true),
            // Otherwise the task stays where it is.
            Position::Queued(number) if self.keeps_time(&state) => {
                let find = |tasks: &VecDeque<Queued>| {
                    let at = tasks.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                    Some(Arc::clone(&tasks.get(at)?.1))
                };
                let job = find(&outgoing.tasks).or_else(|| find(&state.incoming))?;
                state.leave(position);
                state.delayed.insert(job, deadline, Timer::Stored(None));
                Some(true)
            }
            _ => None,
        }
    }

    fn has_moved(&self, position: &AtomicPosition) {
        self.follow(position.key()); // that of a later wait, if it waits again by now
        self.sweep();
    }

    fn repeats(&self) -> bool {
        self.keeps_time(&self.state())
    }
}

impl TaskQueue for SerialQueue {
    fn submit(&self, job: Entry, deadline: Option<Instant>) -> Result<(), ScheduleError> {
        let delayed = deadline.map(|deadline| (deadline, job.name())); // it takes the job's lock (JOB-5)
        let mut state = self.state();
        if state.is_closed {
            return Err(ScheduleError::Closed);
        }
        if !self.limit.enter() {
            return Err(ScheduleError::Full);
        }
        let is_too_long = self.pressure.is_over(state.incoming.len() as u64 + 1);
        let taken = if let Some((deadline, name)) = delayed {
            let wait = state.delayed.insert(job, deadline, Timer::InHand);
            drop(state);
            self.set_first_timer(wait, name)
        } else {
            let newest = (!state.has_drain).then(|| Arc::clone(&job));
            state.push(job);
            if self.start_drain(state, newest) { Err(ScheduleError::Closed) } else { Ok(()) }
        };
        taken.inspect_err(|_| self.limit.leave())?;
        if is_too_long && !drain::this_thread().is_draining {
            self.pressure.hold_back(|| {
                let ahead = self.state().incoming.len() as u64;
                Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
            });
        }
        Ok(())
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

    fn pending(&self) -> usize {
        // The drain takes a task out and counts it under this lock, so a task that is cancelled in between does not count.
        let _outgoing = lock(&self.outgoing);
        let state = self.state();
        self.queued(&state) as usize + state.delayed.len()
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
    use super::*;
    use crate::job::{Job, Once, Run};
    use crate::{Cancel, DueTask};

    /// Returns a queue, and the drains that its executor keeps and never runs. They have the queue.
    fn never_drained() -> (Arc<SerialQueue>, Arc<Mutex<Vec<DueTask>>>) {
        let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let never_runs = move |task: DueTask| lock(&keep).push(task);
        let (hook, limit) = (PanicHook::default(), PendingLimit::new(None));
        let retries = RetryQueue::new(timers);
        (SerialQueue::new(Arc::new(never_runs), hook, limit, retries), kept)
    }

    /// Queues a task.
    fn push(queue: &SerialQueue) -> Arc<impl Run<dyn TaskQueue>> {
        let owner: Weak<dyn TaskQueue> = Weak::clone(&queue.me) as Weak<dyn TaskQueue>;
        let job = Job::new(owner, Once::new(|| ()));
        assert!(queue.submit(Arc::clone(&job) as Entry, None).is_ok());
        job
    }

    /// Tasks are queued and cancelled, first one after the other without end, and then very many at once.
    #[test]
    fn what_is_cancelled_leaves_no_memory_behind() {
        let (queue, kept) = never_drained();
        let push = || push(&queue);
        let mut window: VecDeque<_> = (0..100).map(|_| push()).collect();
        assert!(queue.has_more(), "some are in front of the drain");
        for _ in 0..200_000 {
            window.push_back(push());
            assert!(window.pop_front().is_some_and(|oldest| oldest.cancel()));
            assert_eq!(queue.pending(), 100);
        }
        let entries = || lock(&queue.outgoing).tasks.len() + queue.state().incoming.len();
        assert!(entries() <= 100 + 2 * MIN_SWEEP as usize, "{}", entries());
        window.extend((0..100_000).map(|_| push()));
        window.drain(1..).rev().for_each(|job| assert!(job.cancel()));
        assert!(entries() <= 2 * MIN_SWEEP as usize && queue.pending() == 1);
        let memory = lock(&queue.outgoing).tasks.capacity() + queue.state().incoming.capacity();
        assert!(memory <= 4 * SMALL, "{memory}");
        let Some(stays) = queue.next() else { panic!("one is left") };
        assert!(Arc::ptr_eq(&stays, &(Arc::clone(&window[0]) as Entry)));
        assert!(queue.next().is_none() && !queue.state().has_drain);
        queue.dispose();
        lock(&kept).clear(); // the drain that the executor keeps has the queue
    }

    /// A cancel that comes after the drain has taken the task out, and before it has counted it.
    #[test]
    fn s25_what_was_cancelled_is_not_pending_while_the_drain_takes_it_out() {
        let (queue, kept) = never_drained();
        let job = push(&queue);
        assert!(queue.has_more(), "it is in front of the drain");
        let mut outgoing = lock(&queue.outgoing);
        let (number, _) = outgoing.tasks.pop_front().expect("the task");
        assert!(job.position().leave(Position::Queued(number)));
        assert!(job.cancel(), "it has not run");
        std::thread::scope(|scope| {
            let pending = scope.spawn(|| queue.pending());
            // Nobody tells that it waits for the drain. Without that wait it is over long before.
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!pending.is_finished(), "it waits for the drain");
            queue.passed.store(1, Ordering::Relaxed);
            drop(outgoing);
            assert_eq!(pending.join().expect("no panic"), 0);
        });
        queue.dispose();
        lock(&kept).clear();
    }
}
