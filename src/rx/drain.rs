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
//! The drain is the right to run the tasks. A queue has at most one (WORKER-1). A thread that has it has the queue's `Arc`.
//!
//! - If an executor refuses or drops a drain, or panics, its queue waits in a [`RetryQueue`] (DRAIN-1).
//! - DRAIN-2 An inline executor runs a drain inside of the call that hands it over. Such drains do not nest. The first
//!   one on a stack is the outermost *inline* drain. The others wait in `WAITING`, and the outermost one runs them,
//!   batch by batch, before that first call returns. If other threads bring tasks without end, or workers each other, that
//!   would be never. So a drain that waits goes to its retry queue, whose timer runs it after a short pause, if its own clock
//!   says that the call has lasted for [`LONGEST_INLINE`] since it first ran a drain of that clock, or if the clock panics. So does
//!   one of a new clock if another clock of the call says so, or if there are [`MAX_CLOCKS`] of them. A
//!   virtual clock stands still, and so the call runs all of its drains. A call that moves a task, or sets its timer, runs none:
//!   its caller may hold a lock that the task takes. Its drains go to their retry queues too, without a pause.
//! - A task of an inline drain may nest a loop, and a task there may bring an inline drain. That one is the outermost of that
//!   call, and leaves alone what waits for the drain below it: each takes from `WAITING` only what has come since it began.
//! - A drain that reaches a thread in any other way, for example from an executor's queue in a nested loop of a
//!   task, runs at once. It does not wait for an inline drain below it on the stack, because a task there may wait for
//!   it. If that goes on, [`DEEPEST`] bounds the stack: then what it brings waits for the nearest inline drain.
//! - DRAIN-3 An executor that finishes takes no more drains, but what the queue has accepted is to run. So if the thread
//!   that hands a drain over is the executor's own, the drain stays there and runs the queue to its end. After each batch
//!   it is offered again, because the executor may have been stopped at once in the meantime. The queue is closed by
//!   then (WORKER-4), so that end comes. In a call that may run none, it goes to the last resort, where the executor refuses it,
//!   and the queue ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::iter::repeat;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use super::delayed::Entry;
use super::retries::{PAUSE, RetryQueue};
use super::serial::{Locked, SerialQueue};
use super::timer::{RunOrDrop, after};
use super::worker::TaskQueue;
use crate::job::{Next, Ran};
use crate::platform::panics::caught;
use crate::platform::sync::{Ordering, thread_local};
use crate::{DueTask, PanicHook};

/// How many tasks a drain runs before it lets other workers have the thread.
const BATCH: usize = 64;

/// By one clock, no drain holds the call that has handed it over for longer than this and a batch. If clocks come one after the
/// other, that is twice as long at most (DRAIN-2).
const LONGEST_INLINE: Duration = Duration::from_millis(100);

/// A call runs drains of so many clocks. One of yet another clock waits for its timer: tasks that each bring a new clock would
/// go on for ever (DRAIN-2).
const MAX_CLOCKS: usize = 1024;

/// So many outermost inline drains may be on a stack. Each of them may run a drain as a task: that of a worker whose executor
/// is another worker (DRAIN-2).
const DEEPEST: usize = 4;

/// What becomes of a drain that an executor runs in the call that hands it over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InCall {
    /// It runs there.
    Runs,
    /// It waits for the inline drain below it on the stack (DRAIN-2).
    Waits,
    /// It waits for its timer: the caller may hold a lock.
    WaitsForTimer,
}

/// What the calling thread does with drains.
#[derive(Clone, Copy)]
pub(super) struct ThreadState {
    /// A drain runs on the stack.
    pub(super) is_draining: bool,
    /// An executor on this thread is being handed a drain, and no drain runs above that call.
    hands_over: bool,
    in_call: InCall,
    /// How many outermost inline drains are on the stack.
    depth: usize,
}

impl ThreadState {
    const IDLE: ThreadState =
        ThreadState { is_draining: false, hands_over: false, in_call: InCall::Runs, depth: 0 };

    /// The thread is not to be kept for long: it runs an inline drain in a call, or none.
    pub(super) fn is_inline(self) -> bool {
        self.in_call != InCall::Runs
    }
}

thread_local! {
    static STATE: Cell<ThreadState> = const { Cell::new(ThreadState::IDLE) };
    /// The drains that wait for the outermost inline drain of this thread (DRAIN-2).
    static WAITING: RefCell<Waiting> = const { RefCell::new(VecDeque::new()) };
    /// See [`thread_number`]. 0 until it is asked for.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

type Waiting = VecDeque<Arc<SerialQueue>>;

/// Returns how many drains wait on this thread. Whatever a call brings is behind them, and nobody above the call takes one of
/// them: they wait for a drain below it. `None` if the thread ends and has no list any more.
fn waiting() -> Option<usize> {
    WAITING.try_with(|drains| drains.borrow().len()).ok()
}

pub(super) fn this_thread() -> ThreadState {
    STATE.try_with(Cell::get).unwrap_or(ThreadState::IDLE)
}

/// Returns a number that no other thread has, now or later. A drain may wait in its executor longer than the thread lives that
/// has begun it.
pub(super) fn thread_number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = |own: &Cell<usize>| {
        if own.get() == 0 {
            own.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        own.get()
    };
    NUMBER.try_with(number).unwrap_or(0)
}

/// Calls `act` while the calling thread has this state.
#[inline] // without it each drain costs two calls more
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
    let in_call = InCall::WaitsForTimer;
    let result = with_state(ThreadState { in_call, hands_over: false, ..this_thread() }, || {
        let result = caught(act);
        // Workers may keep each other's time. The drain of one that keeps another's comes back here, and so does each drain whose
        // timers run at once what is due. If two keep each other's, each waits behind the other now. So the second time they
        // wait for a time that has not come. Timers that run all at once have the last resort, which never does so. Whatever a
        // destructor brings in that round goes there, too.
        let rounds = [(Duration::ZERO, false), (PAUSE, false)].into_iter();
        let rounds = rounds.chain(repeat((Duration::ZERO, true)));
        for (pause, is_last_resort) in rounds.take_while(|_| waiting() > Some(below)) {
            let queues = WAITING.with(|drains| take_from(below, &mut drains.borrow_mut()));
            queues.into_iter().for_each(|queue| queue.wait(pause, is_last_resort));
        }
        result
    });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Takes out what waits from there on. A crowd of workers leaves no memory behind.
fn take_from(below: usize, drains: &mut Waiting) -> Waiting {
    let taken = drains.split_off(below);
    drains.shrink_to(BATCH.max(below));
    taken
}

/// The clocks of the drains of a call, and when the first drain of each has asked.
type Clocks = Vec<(Arc<RetryQueue>, Instant)>;

/// Takes out the next drain that waits for the one whose call this is. Those that are too late wait for their timers instead.
fn next_in_time(below: usize, clocks: &mut Clocks) -> Option<Arc<SerialQueue>> {
    loop {
        let queue = WAITING.with(|drains| drains.borrow_mut().remove(below))?;
        if !queue.is_too_late(clocks) {
            return Some(queue);
        }
        // Not at once: if another worker that is too late keeps its time, each would wait behind the other.
        without_runs(|| queue.wait(PAUSE, false));
    }
}

impl SerialQueue {
    /// Gives the drain to the executor. If there is none, the queue was disposed, and nothing is left to do.
    ///
    /// If the executor is gone for good, the queue ends. Returns true if `newest`, the task that has just come, has left the queue
    /// and is refused. If the executor finishes, the drain may run here, before this returns (DRAIN-3).
    pub(super) fn hand_over(self: &Arc<Self>, state: Locked<'_>, newest: Option<Entry>) -> bool {
        let brings_a_task = newest.is_some();
        let comes_back = self.offer(state, newest);
        if comes_back && !brings_a_task {
            let queue = Arc::clone(self);
            let has_to_wait = this_thread().in_call == InCall::WaitsForTimer;
            if has_to_wait { queue.wait(Duration::ZERO, true) } else { queue.drain() }
        }
        comes_back
    }

    /// Offers the drain to the executor. Returns true if `newest` has come back or, without one, if the caller is to run the drain
    /// (DRAIN-3). Otherwise the drain is with the executor or in the retry queue, or its queue has ended.
    fn offer(self: &Arc<Self>, state: Locked<'_>, newest: Option<Entry>) -> bool {
        let Some(executor) = state.executor.clone() else { return false };
        drop(state);
        let queue = Arc::clone(self);
        let drain = move |runs| if runs { queue.drain() } else { queue.was_dropped() };
        let drain = RunOrDrop::new(drain);
        let task = DueTask::new(Instant::now(), move || drain.run());
        let execute = || self.hook.catch(None, || executor.execute(task));
        let answer = with_state(ThreadState { hands_over: true, ..this_thread() }, execute);
        let mut comes_back = false;
        if let Some(Err(rejected)) = answer {
            let keeps = rejected.goes_on_here() && newest.is_none();
            if keeps {
                self.state().is_closed = true;
                self.keeps_drain.store(true, Ordering::Relaxed); // or the drain would wait for another attempt
            } else if rejected.is_for_good() {
                // If it refuses no more than a new task, the delayed tasks may stay: the executor may be the one that keeps their
                // time. The tick thread of a scheduler never is.
                let keeps_delayed =
                    rejected.is_finishing() && newest.is_some() && self.retries.scheduler.is_none();
                // It may have left: a disposal has cancelled it, or the executor has run the drain that it refuses.
                comes_back = newest.is_some_and(|job| self.state().leave(job.position()));
                self.end(keeps_delayed);
            }
            self.hook.catch(None, || drop(rejected));
            // An executor may have run the drain, and refuse another task in its place.
            comes_back |= keeps && !self.keeps_drain.swap(false, Ordering::Relaxed);
        }
        self.hook.catch(None, || drop(executor)); // this may be its last owner
        comes_back
    }

    /// Runs the drain on this thread, now or later (DRAIN-2).
    fn drain(self: Arc<Self>) {
        let before = this_thread();
        let below = if before.hands_over { waiting() } else { None };
        if below.is_some() && (before.is_inline() || before.depth == DEEPEST) {
            return WAITING.with(|drains| drains.borrow_mut().push_back(self)); // does not nest
        } else if before.hands_over && before.in_call == InCall::WaitsForTimer {
            return self.wait(Duration::ZERO, true);
        }
        let in_call = if below.is_some() { InCall::Waits } else { InCall::Runs };
        let depth = before.depth + usize::from(below.is_some());
        with_state(ThreadState { is_draining: true, hands_over: false, in_call, depth }, || {
            let (mut next, mut clocks) = (Some(self), Vec::new());
            while let Some(queue) = next {
                // The panics of tasks are caught in there. This is for destructors that run with the queue's last owner.
                PanicHook::default().catch(None, || queue.run_batches());
                next = below.and_then(|below| next_in_time(below, &mut clocks));
            }
            // The last owner of a worker's timers may drop a user's schedule here. Nobody would run what that brings.
            if !clocks.is_empty() {
                PanicHook::default().catch(None, || without_runs(|| drop(clocks)));
            }
            if let Some(below) = below {
                WAITING.with(|drains| drains.borrow_mut().shrink_to(BATCH.max(below)));
            }
        });
    }

    /// Returns true if the call has lasted for too long by the clock of this drain, or if that panics (DRAIN-2).
    fn is_too_late(&self, clocks: &mut Clocks) -> bool {
        let retries = &self.retries;
        let is_in_time = || {
            let now = retries.timers.now();
            if let Some((_, since)) = clocks.iter().find(|(known, _)| Arc::ptr_eq(known, retries)) {
                return now < after(*since, LONGEST_INLINE);
            }
            // A clock that comes when another one says that it is too late would hold the call for as long again.
            let is_over = |(known, since): &(Arc<RetryQueue>, Instant)| {
                known.timers.now() >= after(*since, LONGEST_INLINE)
            };
            if clocks.len() == MAX_CLOCKS || clocks.iter().any(is_over) {
                return false;
            }
            clocks.push((Arc::clone(retries), now));
            true
        };
        self.hook.catch(None, is_in_time) != Some(true)
    }

    /// The executor has dropped the drain (DRAIN-1).
    fn was_dropped(self: Arc<Self>) {
        let waits = || {
            if !self.keeps_drain.swap(false, Ordering::Relaxed) && self.has_more() {
                self.retries.failures.fetch_add(1, Ordering::Relaxed);
                let pause = self.retries.pause();
                self.wait(pause, false);
            }
        };
        // The executor may be unwinding. A loop that the timers nest is not in its call.
        PanicHook::default().catch(None, || without_runs(waits));
    }

    /// Runs the next tasks, and hands the drain over again if there are more.
    fn run_batches(self: Arc<Self>) {
        self.drained_by.store(thread_number(), Ordering::Relaxed);
        self.retries.failures.store(0, Ordering::Relaxed);
        let mut is_finishing = false;
        while self.run_batch() {
            is_finishing = self.offer(self.state(), None);
            if !is_finishing {
                return;
            }
        }
        if is_finishing && self.retries.scheduler.is_some() {
            self.dispose(); // what is delayed would not find a thread: the tick thread is not the executor's
        }
    }

    /// Runs the next tasks. Returns false if there are no more, and so no drain.
    fn run_batch(&self) -> bool {
        for _ in 0..BATCH {
            let Some(job) = self.next() else { return false };
            let passed = || self.passed.load(Ordering::Relaxed);
            let before = cfg!(debug_assertions).then(passed);
            let mut wait = None;
            let mut place = |next: Next| {
                wait = self.put_back(&job, next);
                true
            };
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// What such a thread leaves in its executor is not at home on a later thread, where tasks of that executor could overlap.
    #[test]
    fn a_thread_has_no_number_of_one_that_has_ended() {
        let numbers = || (thread_number(), thread_number());
        let mut before = thread_number();
        for _ in 0..100 {
            let (number, again) = thread::spawn(numbers).join().expect("no panic");
            assert!(before < number && number == again, "{number} after {before}");
            before = number;
        }
    }
}
