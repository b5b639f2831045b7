//! The drain of a worker: it runs the tasks of a [`SerialQueue`] wherever the executor gives it a thread.
//!
//! ```text
//!                 a task comes                        the executor runs it
//!    Resting ---------------------> HandedOver ----------------------------> Draining
//!       ^                            |   ^   ^                                |    |
//!       |      nothing is queued,    |   |   '---- the batch is used up ------'    |
//!       '------ or disposed ---------'   |                                         |
//!       |                                '-- refused, dropped, or a panic: again,  |
//!       |                                    after a pause, by a timer             |
//!       '---------------------- nothing is queued, or disposed --------------------'
//! ```
//!
//! A [`Drain`] is the right to run the tasks. A queue has at most one (WORKER-1).
//!
//! - DRAIN-1 If an executor refuses or drops a drain, or panics, its queue waits in a [`RetryQueue`], which all workers of
//!   one [`ExecutorScheduler`](super::ExecutorScheduler) share. After a pause that grows, a timer hands a drain of the
//!   first one over again, and then of the others as long as each is taken. So many workers cost an executor that refuses
//!   no more than one (S30). Only if no clock is left to wait on, the drains rest, and the next task hands them over.
//! - DRAIN-2 An inline executor runs a drain inside of the call that hands it over. Such drains do not nest. The first
//!   one on a stack is the outermost *inline* drain. The others wait in `WAITING`, and the outermost one runs them,
//!   batch by batch, before that first call returns. If other threads bring tasks without end, or workers each other, that
//!   would be never. So a drain that waits goes to its retry queue, whose timer runs it without a delay, if its own clock says
//!   that the call has lasted for [`LONGEST_INLINE`] since it first ran a drain of that clock, or if the clock panics. A virtual
//!   clock stands still, and so the call runs all of its drains. A call that moves a task, or sets its timer, runs none: its
//!   caller may hold a lock that the task takes. Its drains go to their retry queues too.
//! - A task of an inline drain may nest a loop, and a task there may bring an inline drain. That one is the outermost of that
//!   call, and leaves alone what waits for the drain below it: each takes from `WAITING` only what has come since it began.
//! - A drain that reaches a thread in any other way, for example from an executor's queue in a nested loop of a
//!   task, runs at once. It does not wait for an inline drain below it on the stack, because a task there may wait for
//!   it.
//! - DRAIN-3 An executor that finishes takes no more drains, but what the queue has accepted is to run. So if the thread
//!   that hands a drain over is the executor's own, the drain stays there and runs the queue to its end. After each batch
//!   it is offered again, because the executor may have been stopped at once in the meantime. The queue is closed by
//!   then (WORKER-4), so that end comes. In a call that may run none, it goes to the last resort, where the executor refuses it,
//!   and the queue ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::delayed::Entry;
use super::serial::SerialQueue;
use super::timer::{RunOrDrop, Timers, after, cancel_timer, global_timers};
use super::worker::TaskQueue;
use crate::job::{Next, Ran};
use crate::platform::panics::caught;
use crate::platform::sync::{Mutex, Ordering, lock, thread_local};
use crate::{Cancellable, DueTask, Executor, PanicHook, ScheduleExt};

/// How many tasks a drain runs before it lets other workers have the thread.
const BATCH: usize = 64;

/// How long a drain that was not run waits before the next attempt. After each [`FAILURES_PER_PAUSE`] failed attempts
/// the pause doubles, six times at most (DRAIN-1).
const PAUSE: Duration = Duration::from_millis(1);
const FAILURES_PER_PAUSE: u32 = 16;

/// No drain holds the call that has handed it over for longer than this and a batch (DRAIN-2).
const LONGEST_INLINE: Duration = Duration::from_millis(100);

/// A call that has seen drains of more clocks than this has lasted for too long. Otherwise tasks that each bring a new clock
/// would go on for ever (DRAIN-2).
const MAX_CLOCKS: usize = 1024;

/// After so many failed attempts in a row, a queue that nobody else holds ends, because nobody could dispose it any more.
/// With these pauses they take about a minute.
const MAX_FAILURES: u32 = 1024;

/// How many drains one attempt hands over at most.
const MAX_PER_ATTEMPT: usize = 1024;

/// How often a drain that may not run in a call is given to timers, before the last resort has it.
const MAX_ROUNDS: usize = 8;

/// What becomes of a drain that an executor runs in the call that hands it over.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum InCall {
    /// It runs there.
    #[default]
    Runs,
    /// It waits for the inline drain below it on the stack (DRAIN-2).
    Waits,
    /// It waits for its timer: the caller may hold a lock.
    WaitsForTimer,
}

/// What the calling thread does with drains.
#[derive(Clone, Copy, Default)]
pub(super) struct ThreadState {
    /// A drain runs on the stack.
    pub(super) is_draining: bool,
    /// An executor on this thread is being handed a drain, and no drain runs above that call.
    hands_over: bool,
    in_call: InCall,
}

impl ThreadState {
    /// The thread is not to be kept for long: it runs an inline drain in a call, or none.
    pub(super) fn is_inline(self) -> bool {
        self.in_call != InCall::Runs
    }
}

thread_local! {
    static STATE: Cell<ThreadState> =
        const { Cell::new(ThreadState { is_draining: false, hands_over: false, in_call: InCall::Runs }) };
    /// The drains that wait for the outermost inline drain of this thread (DRAIN-2).
    static WAITING: RefCell<VecDeque<Drain>> = const { RefCell::new(VecDeque::new()) };
}

/// Returns how many drains wait on this thread. Whatever a call brings is behind them, and nobody above the call takes one of
/// them: they wait for a drain below it. `None` if the thread ends and has no list any more.
fn waiting() -> Option<usize> {
    WAITING.try_with(|drains| drains.borrow().len()).ok()
}

pub(super) fn this_thread() -> ThreadState {
    STATE.try_with(Cell::get).unwrap_or_default()
}

/// Returns a number that no other thread has at this time.
pub(super) fn thread_number() -> usize {
    STATE.try_with(|own| std::ptr::from_ref(own).addr()).unwrap_or(0)
}

/// Calls `act` while the calling thread has this state.
fn with_state<R>(state: ThreadState, act: impl FnOnce() -> R) -> R {
    let before = STATE.with(|own| own.replace(state));
    let result = act();
    STATE.with(|own| own.set(before));
    result
}

/// Calls something as if a drain ran it, so its thread is not held back.
pub(super) fn with_a_drain<R>(act: impl FnOnce() -> R) -> R {
    let state = ThreadState { is_draining: true, ..this_thread() };
    with_state(state, || caught(act)).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Calls something for a caller that may hold a lock which tasks take, or that has held its own caller up for long. Inline drains
/// that it brings wait for their timers (DRAIN-2).
pub(super) fn without_runs<R>(act: impl FnOnce() -> R) -> R {
    let below = waiting().unwrap_or(0); // the thread may end
    let take = || WAITING.try_with(|drains| drains.borrow_mut().split_off(below));
    let in_call = InCall::WaitsForTimer;
    let result = with_state(ThreadState { in_call, hands_over: false, ..this_thread() }, || {
        let result = caught(act);
        // Workers may keep each other's time. The drain of one that keeps another's comes back here, and so does each drain whose
        // timers run at once what is due. If two keep each other's, each waits behind the other now. From the second round
        // on they wait for a time that has not come.
        for round in 1.. {
            let drains = take().unwrap_or_default();
            if drains.is_empty() {
                break;
            }
            let pause = if round == 1 { Duration::ZERO } else { PAUSE };
            drains.into_iter().for_each(|drain| drain.wait(pause, round >= MAX_ROUNDS));
        }
        result
    });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The right to run the tasks of a queue. If an executor drops it, it is handed over again (DRAIN-1).
pub(super) struct Drain {
    queue: Arc<SerialQueue>,
}

impl Drain {
    pub(super) fn new(queue: Arc<SerialQueue>) -> Drain {
        Drain { queue }
    }

    /// Gives the drain to the executor. It is `None` if the queue was disposed; then nothing is left to do.
    ///
    /// If the executor is gone for good, the queue ends, and `newest`, the task that has just come, is returned. If it
    /// finishes, the drain may run here, before this returns (DRAIN-3).
    pub(super) fn hand_over(
        self,
        executor: Option<Arc<dyn Executor>>,
        newest: Option<Entry>,
    ) -> Option<Entry> {
        let queue = Arc::clone(&self.queue);
        let (stays_here, back) = self.offer(executor, newest);
        if stays_here && this_thread().in_call == InCall::WaitsForTimer {
            Drain::new(queue).wait(Duration::ZERO, true);
        } else if stays_here {
            Drain::new(queue).run();
        }
        back
    }

    /// Offers the drain to the executor. Returns true if the caller is to run it (DRAIN-3). Otherwise it is with the executor
    /// or in the retry queue, or its queue has ended; then the newest task is returned.
    fn offer(
        self,
        executor: Option<Arc<dyn Executor>>,
        newest: Option<Entry>,
    ) -> (bool, Option<Entry>) {
        let Some(executor) = executor else { return (false, None) };
        let queue = Arc::clone(&self.queue);
        let drain = move |runs| if runs { self.run() } else { self.was_dropped() };
        let drain = RunOrDrop::new(drain);
        let task = DueTask::new(Instant::now(), move || drain.run());
        let execute = || queue.hook.catch(None, || executor.execute(task));
        let answer = with_state(ThreadState { hands_over: true, ..this_thread() }, execute);
        let (mut stays_here, mut back) = (false, None);
        if let Some(Err(rejected)) = answer {
            let keeps = rejected.goes_on_here() && newest.is_none();
            if keeps {
                queue.state().is_closed = true;
                queue.keeps_drain.store(true, Ordering::Relaxed); // or the drain would wait for another attempt
            } else if rejected.is_for_good() {
                back = queue.executor_is_gone(newest, rejected.is_finishing());
            }
            queue.hook.catch(None, || drop(rejected));
            // An executor may have run the drain, and refuse another task in its place.
            stays_here = keeps && !queue.keeps_drain.swap(false, Ordering::Relaxed);
        }
        queue.hook.catch(None, || drop(executor)); // this may be its last owner
        (stays_here, back)
    }

    fn run(self) {
        let before = this_thread();
        let below = if before.hands_over { waiting() } else { None };
        if below.is_some() && before.is_inline() {
            return WAITING.with(|drains| drains.borrow_mut().push_back(self)); // does not nest (DRAIN-2)
        } else if before.hands_over && before.in_call == InCall::WaitsForTimer {
            return self.wait(Duration::ZERO, true);
        }
        let in_call = if below.is_some() { InCall::Waits } else { InCall::Runs };
        with_state(ThreadState { is_draining: true, hands_over: false, in_call }, || {
            self.run_batch();
            let Some(below) = below else { return };
            let next = || WAITING.with(|drains| drains.borrow_mut().remove(below));
            let mut clocks = BTreeMap::new();
            while let Some(drain) = next() {
                if drain.is_too_late(&mut clocks) {
                    without_runs(|| drain.wait(Duration::ZERO, false));
                } else {
                    drain.run_batch();
                }
            }
            PanicHook::default().catch(None, || drop(clocks));
            // A crowd of workers leaves no memory behind.
            WAITING.with(|drains| drains.borrow_mut().shrink_to(BATCH));
        });
    }

    /// Returns true if the call has lasted for too long by the clock of this drain, or if that panics (DRAIN-2). `clocks` are those
    /// of the drains of the call, by their addresses, and when the first drain of each has asked.
    fn is_too_late(&self, clocks: &mut BTreeMap<usize, (Arc<RetryQueue>, Instant)>) -> bool {
        let retries = &self.queue.retries;
        let is_in_time = || {
            let now = retries.timers.now();
            let first = || (Arc::clone(retries), now);
            let (_, since) = clocks.entry(Arc::as_ptr(retries).addr()).or_insert_with(first);
            now < after(*since, LONGEST_INLINE) && clocks.len() <= MAX_CLOCKS
        };
        self.queue.hook.catch(None, is_in_time) != Some(true)
    }

    /// Has its timers run it after this pause. The last resort never does so in the call.
    fn wait(self, pause: Duration, is_last_resort: bool) {
        // This is for destructors that run with the queue's last owner.
        PanicHook::default().catch(None, || {
            let (hook, retries) = (self.queue.hook.clone(), Arc::clone(&self.queue.retries));
            hook.catch(None, || retries.wait(self.queue, pause, is_last_resort));
        });
    }

    /// Runs the next tasks, and hands the drain over again if there are more.
    fn run_batch(self) {
        // The panics of tasks are caught in there. This is for destructors that run with the queue's last owner.
        PanicHook::default().catch(None, || self.run_tasks());
    }

    fn run_tasks(self) {
        let queue = self.queue;
        queue.drained_by.store(thread_number(), Ordering::Relaxed);
        queue.retries.failures.store(0, Ordering::Relaxed);
        let mut is_finishing = false;
        while queue.run_batch() {
            let executor = queue.state().executor.clone();
            is_finishing = Drain::new(Arc::clone(&queue)).offer(executor, None).0;
            if !is_finishing {
                return;
            }
        }
        if is_finishing && queue.retries.timers.as_scheduler().is_some() {
            queue.dispose(); // what is delayed would not find a thread: the tick thread is not the executor's
        }
    }

    /// The executor has dropped the drain (DRAIN-1).
    fn was_dropped(self) {
        let queue = self.queue;
        if queue.keeps_drain.swap(false, Ordering::Relaxed) {
            return; // DRAIN-3
        }
        let hook = queue.hook.clone();
        let waits = || {
            if queue.has_more() {
                let retries = Arc::clone(&queue.retries);
                retries.failures.fetch_add(1, Ordering::Relaxed);
                retries.wait(queue, retries.pause(), false);
            }
        };
        // The executor may be unwinding, and the clock may panic too. A loop that the timers nest is not in the executor's call.
        hook.catch(None, || without_runs(waits));
    }
}

impl SerialQueue {
    /// Runs the next tasks. Returns false if there are no more, and so no drain.
    fn run_batch(&self) -> bool {
        for _ in 0..BATCH {
            let Some(job) = self.next() else { return false };
            let passed = || self.passed.load(Ordering::Relaxed);
            let before = cfg!(debug_assertions).then(passed);
            let mut wait = None;
            let mut place = |next: Next| wait = self.put_back(&job, next);
            if job.run(self, &mut place) == Ran::Again {
                if let Some(wait) = wait {
                    if self.hook.catch(None, || self.set_timer(wait, job.name())) != Some(Ok(())) {
                        self.withdraw(wait.key);
                    }
                } else if self.is_disposed() {
                    job.cancel(); // otherwise it is queued
                }
            }
            debug_assert_eq!(before, Some(passed()), "no other drain runs (WORKER-1)");
        }
        self.has_more()
    }
}

/// The queues whose drains an executor has not run, of all workers of one scheduler (DRAIN-1).
pub(super) struct RetryQueue {
    state: Mutex<Retries>,
    /// How many attempts in a row have failed. Relaxed suffices, because it only sets the pace.
    failures: AtomicU32,
    pub(super) timers: Timers,
}

#[derive(Default)]
struct Retries {
    /// By age.
    queues: BTreeMap<u64, Arc<SerialQueue>>,
    last_ticket: u64,
    /// The number of the attempt that waits for its time or runs, 0 if there is none. It is the ticket of the queue for which
    /// it was first made, and stays when the attempt has to be made again. Only this attempt may act.
    attempt: u64,
    /// The timer that was stored last, as long as drains wait. One that fires before it is stored may be stored after the next
    /// one. Then that one is not cancelled when all queues have left, and finds nothing to do.
    timer: Option<Cancellable>,
}

impl RetryQueue {
    pub(super) fn new(timers: Timers) -> Arc<RetryQueue> {
        Arc::new(RetryQueue { state: Mutex::default(), failures: AtomicU32::new(0), timers })
    }

    /// Adds a queue, with its drain. If no attempt is on its way, one is made after this pause.
    fn wait(self: &Arc<Self>, queue: Arc<SerialQueue>, pause: Duration, is_last_resort: bool) {
        let mut state = lock(&self.state);
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        queue.retry_ticket.store(ticket, Ordering::Relaxed);
        state.queues.insert(ticket, queue);
        if state.attempt == 0 {
            state.attempt = ticket;
            drop(state);
            self.schedule(ticket, pause, is_last_resort);
        }
    }

    fn pause(&self) -> Duration {
        let failures = self.failures.load(Ordering::Relaxed).saturating_sub(1);
        PAUSE * (1 << (failures / FAILURES_PER_PAUSE).min(6))
    }

    /// Sets the timer of an attempt: one of the scheduler's own or, as the last resort, one of
    /// [`Scheduler::global`](crate::Scheduler::global).
    fn schedule(self: &Arc<Self>, number: u64, pause: Duration, is_last_resort: bool) {
        let retries = Arc::clone(self);
        let attempt = RunOrDrop::new(move |fires| retries.attempt(number, is_last_resort, fires));
        let timers = if is_last_resort { global_timers() } else { Ok(Arc::clone(&self.timers)) };
        // Timers that refuse drop the attempt, which then turns to the last resort.
        let timer = timers.and_then(|timers| {
            timers.schedule_at(after(timers.now(), pause), move || attempt.run())
        });
        let Ok(timer) = timer else { return };
        let mut state = lock(&self.state);
        let is_needed = state.attempt == number; // otherwise all queues have left in the meantime
        let other = if is_needed { state.timer.replace(timer) } else { Some(timer) };
        drop(state);
        let cancel = |other: Cancellable| !is_needed && other.cancel();
        PanicHook::default().catch(None, || other.is_some_and(cancel)); // its handle may be from outside
    }

    /// Removes a queue that was disposed.
    pub(super) fn remove(&self, queue: &SerialQueue) {
        let mut state = lock(&self.state);
        let removed = state.queues.remove(&queue.retry_ticket.load(Ordering::Relaxed));
        let mut timer = None;
        if state.queues.is_empty() {
            state.attempt = 0; // a thread that still sets its timer finds that out
            timer = state.timer.take();
        }
        drop(state);
        drop(removed);
        cancel_timer(&queue.hook, timer);
    }

    /// Hands over the drains of the queues that wait now, until one is not run. Returns true if there were more than may keep the
    /// calling thread busy.
    fn hand_over(&self) -> bool {
        let count = lock(&self.state).queues.len();
        for _ in 0..count.min(MAX_PER_ATTEMPT) {
            let Some((_, queue)) = lock(&self.state).queues.pop_first() else { break };
            let failures = self.failures.load(Ordering::Relaxed);
            // The panics of executors are caught in there.
            PanicHook::default().catch(None, || {
                if failures >= MAX_FAILURES && Arc::strong_count(&queue) == 1 {
                    return queue.dispose(); // nobody else can
                }
                let executor = queue.state().executor.clone();
                Drain::new(queue).hand_over(executor, None);
            });
            if self.failures.load(Ordering::Relaxed) > failures {
                return false;
            }
        }
        count > MAX_PER_ATTEMPT
    }

    /// The timer of an attempt fires, or was dropped: the timers have refused it, or have ended.
    fn attempt(self: &Arc<Self>, number: u64, is_last_resort: bool, fires: bool) {
        if lock(&self.state).attempt != number {
            return; // all queues have left
        }
        let pause = if fires && self.hand_over() { PAUSE } else { self.pause() };
        let mut state = lock(&self.state);
        if state.attempt != number {
            return; // the same
        }
        if !state.queues.is_empty() && (fires || !is_last_resort) {
            drop(state);
            return self.schedule(number, pause, !fires);
        }
        state.attempt = 0;
        let queues = std::mem::take(&mut state.queues); // if there are any, nobody keeps their time
        let timer = state.timer.take();
        drop(state);
        queues.into_values().for_each(|queue| queue.state().has_drain = false);
        PanicHook::default().catch(None, || drop(timer)); // its handle may be from outside
    }
}
