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
//! - DRAIN-1 A drain that nobody runs (it was refused, or dropped, or its executor panicked) waits in a line, which
//!   all workers of one [`ExecutorScheduler`](super::ExecutorScheduler) share. After a pause that grows, a timer hands
//!   the first one over again, and the others as long as each is taken. So many workers cost an executor that
//!   refuses no more than one (S30). A drain rests only when there is no clock left to wait on. Then the next task
//!   hands it over.
//! - DRAIN-2 An executor that is gone for good ends the queue ([`SerialQueue::end`]). So does an executor that has
//!   not run the drain [`PATIENCE_WITH_NOBODY`] times in a row, if nothing but the next attempt holds the queue:
//!   nobody could dispose it any more.
//! - DRAIN-3 An inline executor, which runs a drain inside the call that hands it over, nests nothing. The first
//!   such drain on a stack becomes the thread's *trampoline*. Drains that come while it runs wait for their turn, and it
//!   runs them, batch by batch, before that first call returns.
//! - DRAIN-4 A drain that comes to a thread in any other way (from an executor's queue, perhaps in a nested loop of a
//!   task that runs) waits for no trampoline below it on the stack: what it is for may be waited for there.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::delayed::Entry;
use super::serial::{SerialQueue, Timers};
use super::worker::{TaskQueue, When};
use crate::job::Ran;
use crate::platform::sync::{Mutex, Ordering, local, lock};
use crate::{Cancellable, DueTask, Executor, Inline, PanicHook, Scheduler};

/// How many tasks a drain runs before it lets other workers have the thread.
const BATCH: usize = 64;

/// How long a drain waits before it is handed over again, DRAIN-1: after so many attempts twice as long, six times.
const PAUSE: Duration = Duration::from_millis(1);
const PATIENCE: u32 = 16;

/// How many drains that were not run are handed over again in one go.
const AT_ONCE: usize = 1024;

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
    /// The drains that wait for their turn on this thread's trampoline; DRAIN-3.
    TURNS: RefCell<VecDeque<Drain>> = RefCell::new(VecDeque::new())
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

/// Returns true if the calling thread runs a worker's tasks in the very call that has handed them over.
pub(super) fn is_inline_here() -> bool {
    here().has_trampoline
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
            return TURNS.with(|line| line.borrow_mut().push_back(self)); // DRAIN-3
        }
        // A thread that ends may have no such queue any more.
        let has_trampoline = before.hands_over && TURNS.try_with(|_| ()).is_ok();
        let now = Here { drains: before.drains + 1, hands_over: false, has_trampoline };
        with_here(now, || {
            let mut next = Some(self);
            while let Some(drain) = next {
                // A panic of user code is caught further in. This is for what goes with the queue's last owner.
                PanicHook::default().catch(|| drain.run_a_batch());
                let waiting = || TURNS.with(|line| line.borrow_mut().pop_front());
                next = has_trampoline.then(waiting).flatten();
            }
        });
    }

    /// Runs the next tasks, and hands the drain over again if there are more.
    fn run_a_batch(mut self) {
        let Some(queue) = self.0.take() else { return };
        queue.refused.strikes.store(0, Ordering::Relaxed);
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
                Arc::clone(&queue.refused).push(Drain(Some(queue)));
            }
        });
    }
}

/// The drains that an executor has not run, of all workers of one scheduler; DRAIN-1.
pub(super) struct Refused {
    line: Mutex<Line>,
    /// How often in a row a drain was not run. Relaxed: it only sets the pace.
    strikes: AtomicU32,
    timers: Timers,
}

#[derive(Default)]
struct Line {
    drains: VecDeque<Drain>,
    /// The number of the attempt that is under way, or waits for its time. 0: there is none. Only that one may act.
    attempt: u64,
    last_attempt: u64,
    timer: Option<Cancellable>,
}

impl Line {
    fn new_attempt(&mut self) -> u64 {
        self.last_attempt += 1;
        self.attempt = self.last_attempt;
        self.attempt
    }
}

impl Refused {
    pub(super) fn new(timers: Timers) -> Arc<Refused> {
        Arc::new(Refused { line: Mutex::default(), strikes: AtomicU32::new(0), timers })
    }

    fn push(self: &Arc<Self>, drain: Drain) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
        let mut line = lock(&self.line);
        line.drains.push_back(drain);
        if line.attempt == 0 {
            let number = line.new_attempt();
            drop(line);
            self.wait(number, self.pause(), false);
        }
    }

    fn pause(&self) -> Duration {
        let strikes = self.strikes.load(Ordering::Relaxed).saturating_sub(1);
        PAUSE * (1 << (strikes / PATIENCE).min(6))
    }

    /// Has the drains handed over again after a pause, by this attempt.
    fn wait(self: &Arc<Self>, number: u64, pause: Duration, is_last: bool) {
        let attempt = Attempt { refused: Some(Arc::clone(self)), number, is_last };
        let (when, go) = (When::After(pause), move || attempt.go());
        // Refused means dropped, and then the next clock is tried.
        let timer = if is_last {
            let Ok(global) = Scheduler::try_global() else { return };
            Timers::Wheel(global.with_executor(Inline)).schedule(when, go)
        } else {
            self.timers.schedule(when, go)
        };
        let Ok(timer) = timer else { return };
        let mut line = lock(&self.line);
        if line.attempt == number && !line.drains.is_empty() {
            line.timer = Some(timer);
            return;
        }
        if line.attempt == number {
            line.attempt = 0; // all have left in the meantime
        }
        drop(line);
        timer.cancel();
    }

    /// Lets the drain of a queue go that was disposed.
    pub(super) fn leave(&self, queue: &SerialQueue) {
        let mut line = lock(&self.line);
        let is_its = |drain: &Drain| drain.0.as_deref().is_some_and(|own| std::ptr::eq(own, queue));
        let at = line.drains.iter().position(is_its);
        let drain = at.and_then(|at| line.drains.remove(at));
        let timer = if line.drains.is_empty() { line.timer.take() } else { None };
        if timer.is_some() {
            line.attempt = 0;
        }
        drop(line);
        drop(drain);
        timer.into_iter().for_each(|timer| _ = timer.cancel());
    }

    /// Hands the drains over that are in the line now, until one is not run. Returns true if there were more than may
    /// keep the calling thread busy.
    fn offer(&self) -> bool {
        let count = lock(&self.line).drains.len();
        for _ in 0..count.min(AT_ONCE) {
            let Some(queue) = self.pop().and_then(|mut drain| drain.0.take()) else { break };
            let strikes = self.strikes.load(Ordering::Relaxed);
            if strikes >= PATIENCE_WITH_NOBODY && Arc::strong_count(&queue) == 1 {
                queue.dispose(); // DRAIN-2
                continue;
            }
            let executor = queue.state().executor.clone();
            Drain(Some(queue)).hand_over(executor, None);
            if self.strikes.load(Ordering::Relaxed) > strikes {
                return false;
            }
        }
        count > AT_ONCE
    }

    fn pop(&self) -> Option<Drain> {
        lock(&self.line).drains.pop_front()
    }
}

/// An attempt to hand over what was refused.
struct Attempt {
    refused: Option<Arc<Refused>>,
    number: u64,
    /// It waits on the scheduler that a program always has.
    is_last: bool,
}

impl Attempt {
    fn go(mut self) {
        let Some(refused) = self.refused.take() else { return };
        let mut line = lock(&refused.line);
        if line.attempt != self.number {
            return;
        }
        line.timer = None;
        drop(line);
        let pause = if refused.offer() { PAUSE } else { refused.pause() };
        let mut line = lock(&refused.line);
        line.attempt = 0;
        if !line.drains.is_empty() {
            let number = line.new_attempt();
            drop(line);
            refused.wait(number, pause, false);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(refused) = self.refused.take() else { return };
        let mut line = lock(&refused.line);
        if line.attempt != self.number {
            return; // it was cancelled
        }
        if !self.is_last {
            drop(line);
            return refused.wait(self.number, refused.pause(), true);
        }
        line.attempt = 0;
        let drains = std::mem::take(&mut line.drains);
        drop(line);
        for mut drain in drains {
            drain.0.take().into_iter().for_each(|queue| queue.state().has_drain = false);
        }
    }
}
