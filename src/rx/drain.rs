//! The drain of a worker: it runs the tasks of a [`SerialQueue`], wherever the executor gives it a thread.
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
//! A [`Drain`] is the right to run the tasks; WORKER-1 says that there is one at most.
//!
//! - DRAIN-1 A drain that nobody runs (it was refused, or dropped, or its executor panicked) is handed over again by
//!   a timer, after a pause that grows. It rests only when there is no clock left to wait on. Then the next task
//!   hands it over.
//! - DRAIN-2 An executor that is gone for good ends the queue ([`SerialQueue::end`]). So does an executor that has
//!   not run the drain [`PATIENCE_WITH_NOBODY`] times in a row, if nothing but the next attempt holds the queue:
//!   nobody could dispose it any more.
//! - DRAIN-3 An inline executor, which runs a drain inside the call that hands it over, nests nothing. The first
//!   such drain on a stack becomes the thread's *trampoline*. It keeps those that come while it runs in a line, and
//!   runs them, batch by batch in turn, before that first call returns.
//! - DRAIN-4 A drain that comes to a thread in any other way (from an executor's queue, perhaps in a nested loop of a
//!   task that runs) waits for no trampoline below it on the stack: what it is for may be waited for there.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::delayed::Entry;
use super::serial::{SerialQueue, Timers};
use super::worker::{TaskQueue, When};
use crate::job::Ran;
use crate::sync::{Ordering, local};
use crate::{DueTask, Executor, Inline, PanicHook, Scheduler};

/// How many tasks a drain runs before it lets other workers have the thread.
pub(super) const BATCH: usize = 64;

/// How long a drain waits before it is handed over again, DRAIN-1: after so many attempts twice as long, six times.
const PAUSE: Duration = Duration::from_millis(1);
const PATIENCE: u32 = 16;

/// About a minute, with these pauses; DRAIN-2.
const PATIENCE_WITH_NOBODY: u32 = 1024;

/// What drains do on a thread.
#[derive(Clone, Copy, Default)]
struct Here {
    /// How many drains are on the stack.
    drains: usize,
    /// This thread is in the call of an executor that was handed a drain, and in no drain above that.
    hands_over: bool,
    /// The topmost drain on the stack is a trampoline's; DRAIN-3.
    has_trampoline: bool,
}

local!(
    HERE: Cell<Here> =
        Cell::new(Here { drains: 0, hands_over: false, has_trampoline: false })
);

local!(
    /// The line of this thread's trampoline; DRAIN-3.
    LINE: RefCell<VecDeque<Drain>> = RefCell::new(VecDeque::new())
);

fn here() -> Here {
    HERE.try_with(Cell::get).unwrap_or_default()
}

/// Does something with the thread's state as given, and returns to what was.
fn with_here<R>(now: Here, act: impl FnOnce() -> R) -> R {
    let before = HERE.with(|here| here.replace(now));
    let result = act();
    HERE.with(|here| here.set(before));
    result
}

/// Returns true if the calling thread runs the tasks of a worker.
pub(super) fn is_on_this_thread() -> bool {
    here().drains > 0
}

/// The right to run a queue's tasks. Dropped without having run, it is handed over again; DRAIN-1.
pub(super) struct Drain(Option<Arc<SerialQueue>>);

impl Drain {
    pub(super) fn of(queue: Arc<SerialQueue>) -> Drain {
        Drain(Some(queue))
    }

    /// Gives the drain to the executor. Without one the queue was disposed, and there is nothing left to do.
    ///
    /// If the executor is gone for good, that is the end of the queue, and `newest`, the task that has just come,
    /// comes back.
    pub(super) fn hand_over(
        self,
        executor: Option<Arc<dyn Executor>>,
        newest: Option<Entry>,
    ) -> Option<Entry> {
        let (Some(executor), Some(queue)) = (executor, self.0.clone()) else { return None };
        let task = DueTask::new(Instant::now(), move || self.run());
        let execute = || queue.hook.catch(|| executor.execute(task));
        let answer = with_here(Here { hands_over: true, ..here() }, execute);
        let mut back = None;
        if let Some(Err(rejected)) = answer {
            if rejected.is_for_good() {
                back = queue.end(newest); // before the drain is dropped, which would wait for another attempt
            }
            queue.hook.catch(|| drop(rejected));
        }
        queue.hook.catch(|| drop(executor)); // perhaps its last owner
        back
    }

    fn run(self) {
        let before = here();
        if before.hands_over && before.has_trampoline {
            return LINE.with(|line| line.borrow_mut().push_back(self)); // DRAIN-3
        }
        // A thread that ends may have no line any more.
        let has_trampoline = before.hands_over && LINE.try_with(|_| ()).is_ok();
        let now = Here { drains: before.drains + 1, hands_over: false, has_trampoline };
        with_here(now, || {
            let mut next = Some(self);
            while let Some(drain) = next {
                // A panic of user code is caught further in. This is for what goes with the queue's last owner.
                PanicHook::default().catch(|| drain.run_a_batch());
                let waiting = || LINE.with(|line| line.borrow_mut().pop_front());
                next = has_trampoline.then(waiting).flatten();
            }
        });
    }

    /// Runs the next tasks, and hands the drain over again if there are more.
    fn run_a_batch(mut self) {
        let Some(queue) = self.0.take() else { return };
        queue.strikes.store(0, Ordering::Relaxed);
        for _ in 0..BATCH {
            let Some(job) = queue.next() else { return };
            if let Ran::Again(due) = job.run(&*queue) {
                queue.go_on(&job, due);
            }
        }
        if queue.goes_on() {
            let executor = queue.state().executor.clone();
            Drain(Some(queue)).hand_over(executor, None);
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        let hook = queue.hook.clone();
        // The executor may be panicking, and the clock could as well.
        hook.catch(|| {
            if queue.goes_on() {
                let strikes = queue.strikes.load(Ordering::Relaxed);
                queue.strikes.store(strikes.saturating_add(1), Ordering::Relaxed);
                let pause = PAUSE * (1 << (strikes / PATIENCE).min(6));
                Retry { queue: Some(queue), pause, is_last: false }.wait();
            }
        });
    }
}

/// A drain that waits until it is handed over again; DRAIN-1.
struct Retry {
    queue: Option<Arc<SerialQueue>>,
    pause: Duration,
    /// It waits on the scheduler that a program always has.
    is_last: bool,
}

impl Retry {
    fn wait(self) {
        let Some(queue) = self.queue.clone() else { return };
        let (when, is_last) = (When::After(self.pause), self.is_last);
        let go = move || self.go();
        // Refused means dropped, and then the next clock is tried.
        let retry = if is_last {
            let Ok(global) = Scheduler::try_global() else { return };
            Timers::Wheel(global.with_executor(Inline)).schedule(when, go)
        } else {
            queue.timers.schedule(when, go)
        };
        let Ok(retry) = retry else { return };
        let mut state = queue.state();
        if state.executor.is_some() {
            state.retry = Some(retry);
        } else {
            drop(state);
            retry.cancel();
        }
    }

    fn go(mut self) {
        let Some(queue) = self.queue.take() else { return };
        let strikes = queue.strikes.load(Ordering::Relaxed);
        if strikes >= PATIENCE_WITH_NOBODY && Arc::strong_count(&queue) == 1 {
            return queue.dispose(); // DRAIN-2
        }
        let executor = queue.state().executor.clone();
        Drain::of(queue).hand_over(executor, None);
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        let mut state = queue.state();
        if self.is_last || state.executor.is_none() {
            state.has_drain = false;
        } else {
            drop(state);
            Retry { queue: Some(queue), pause: self.pause, is_last: true }.wait();
        }
    }
}
