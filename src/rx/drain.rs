//! The one who runs a strand's tasks, and how it comes to a thread.
//!
//! ```text
//!                 a task comes                        the executor runs it
//!    Resting ---------------------> HandedOver ----------------------------> Draining
//!       ^                            |   ^   ^                                |    |
//!       |      nothing is queued,    |   |   '---- the batch is used up ------'    |
//!       '------ or disposed ---------'   |                                         |
//!       |                                '-- refused, dropped, or a panic: again,  |
//!       |                                    after a pause, on the tick thread     |
//!       '---------------------- nothing is queued, or disposed --------------------'
//! ```
//!
//! A [`Drain`] is the right to run them; N1 of [`strand`](super::strand) says that there is one at most.
//!
//! - V1 A drain that nobody runs (it was refused, or dropped, or its executor panicked) is handed over again,
//!   from the tick thread and after a pause that grows. It rests only when there is no clock left to wait
//!   on; then the next task hands it over.
//! - V2 An executor that runs the drain at once, on the same stack, does so once: when a batch is used up
//!   the drain below goes on with the next.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::home::Entry;
use super::strand::Strand;
use crate::job::Ran;
use crate::sync::{Ordering, local};
use crate::{DueTask, Executor, Inline, Scheduler};

/// How many tasks a drain runs before it lets other workers have the thread.
pub(super) const BATCH: usize = 64;

/// How long a drain waits before it is handed over again, V1: after so many attempts twice as long, six
/// times.
const PAUSE: Duration = Duration::from_millis(1);
const PATIENCE: u32 = 16;

local!(
    /// The strand that hands its drain over at the end of a batch, by address, and whether the executor
    /// has run it on this very stack.
    HANDING_OVER: Cell<(usize, bool)> = Cell::new((0, false))
);

local!(
    /// The room for a batch of this thread's drains. At rest nothing is in it.
    BATCHES: Cell<Vec<Entry>> = Cell::new(Vec::new())
);

local!(
    /// How many drains are on the stack of this thread.
    DRAINS: Cell<usize> = Cell::new(0)
);

/// Whether the calling thread runs the tasks of a strand.
pub(super) fn is_on_this_thread() -> bool {
    DRAINS.try_with(|drains| drains.get() > 0).unwrap_or(false)
}

/// The right to run a strand's tasks. Dropped without having run, it is handed over again; V1.
pub(super) struct Drain(Option<Arc<Strand>>);

impl Drain {
    pub(super) fn of(strand: Arc<Strand>) -> Drain {
        Drain(Some(strand))
    }

    /// Without an executor the strand was disposed, and the drain has nothing left to do.
    pub(super) fn hand_over(self, executor: Option<Arc<dyn Executor>>) {
        let (Some(executor), Some(strand)) = (executor, &self.0) else { return };
        let hook = strand.hook.clone();
        let task = DueTask::new(Instant::now(), move || self.run());
        hook.catch(|| drop(executor.execute(task)));
        hook.catch(|| drop(executor)); // perhaps its last owner
    }

    fn run(mut self) {
        let Some(strand) = self.0.take() else { return };
        let (below, _) = HANDING_OVER.with(Cell::get);
        if below == Arc::as_ptr(&strand).addr() {
            HANDING_OVER.with(|handing_over| handing_over.set((below, true)));
        } else {
            drain(&strand);
        }
    }
}

fn drain(strand: &Arc<Strand>) {
    strand.strikes.store(0, Ordering::Relaxed);
    let more = |drains: &Cell<usize>| drains.set(drains.get() + 1);
    let counted = DRAINS.try_with(more).is_ok();
    // A thread that ends may have no room of its own any more.
    let mut batch = BATCHES.try_with(Cell::take).unwrap_or_default();
    loop {
        let mut left = BATCH;
        while left > 0 && strand.next_batch(left, &mut batch) {
            left -= batch.len();
            for job in batch.drain(..) {
                if let Ran::Again(due) = job.run(&**strand) {
                    strand.go_on(job, due);
                }
            }
        }
        if left > 0 {
            break; // it rests
        }
        let has_more = strand.hands().is_some();
        if !has_more || !hand_over_below(strand) {
            break;
        }
    }
    _ = BATCHES.try_with(|kept| kept.set(batch));
    if counted {
        _ = DRAINS.try_with(|drains| drains.set(drains.get() - 1));
    }
}

/// Gives the thread back to the executor, and asks for it again. True if it was given at once, on this
/// stack; V2.
fn hand_over_below(strand: &Arc<Strand>) -> bool {
    let mine = Arc::as_ptr(strand).addr();
    let outer = HANDING_OVER.with(|below| below.replace((mine, false)));
    let executor = strand.state().executor.clone();
    Drain::of(Arc::clone(strand)).hand_over(executor);
    HANDING_OVER.with(|below| below.replace(outer)).1
}

/// V1: the pause before the drain is handed over again; none if there is nothing left to do.
fn next_pause(strand: &Strand) -> Option<Duration> {
    drop(strand.hands()?);
    let strikes = strand.strikes.load(Ordering::Relaxed);
    strand.strikes.store(strikes.saturating_add(1), Ordering::Relaxed);
    Some(PAUSE * (1 << (strikes / PATIENCE).min(6)))
}

impl Drop for Drain {
    fn drop(&mut self) {
        let Some(strand) = self.0.take() else { return };
        let hook = strand.hook.clone();
        // The executor may be panicking, and the clock could as well.
        hook.catch(|| {
            if let Some(pause) = next_pause(&strand) {
                Retry { strand: Some(strand), pause, is_last: false }.wait();
            }
        });
    }
}

/// A drain that waits until it is handed over again; V1.
struct Retry {
    strand: Option<Arc<Strand>>,
    pause: Duration,
    /// It waits on the scheduler that a program always has.
    is_last: bool,
}

impl Retry {
    fn wait(self) {
        let Some(strand) = self.strand.clone() else { return };
        let (pause, is_last) = (self.pause, self.is_last);
        let go = move || self.go();
        // Refused means dropped, and then the next clock is tried.
        let retry = if is_last {
            let Ok(global) = Scheduler::try_global() else { return };
            global.with_executor(Inline).schedule_once(pause, go)
        } else {
            strand.timers.schedule_once(pause, go)
        };
        let Ok(retry) = retry else { return };
        let mut state = strand.state();
        if state.executor.is_some() {
            state.retry = Some(retry);
        } else {
            drop(state);
            retry.cancel();
        }
    }

    fn go(mut self) {
        let Some(strand) = self.strand.take() else { return };
        let executor = strand.state().executor.clone();
        Drain::of(strand).hand_over(executor);
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        let Some(strand) = self.strand.take() else { return };
        let mut state = strand.state();
        if self.is_last || state.executor.is_none() {
            state.has_drain = false;
        } else {
            drop(state);
            Retry { strand: Some(strand), pause: self.pause, is_last: true }.wait();
        }
    }
}
