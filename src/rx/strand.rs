//! The home of a worker that runs on an executor: its tasks, and the one who drains them.
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
//! RxJava counts what is queued in an atomic number, and whoever takes it from zero to one hands the drain
//! over. Here a task can leave the queue before its turn, in O(1), so the queue has a lock, and the count is
//! a flag under it: `has_drain`.
//!
//! - N1 There is one [`Drain`] at most, and it alone takes tasks up: they do not overlap. Whoever sets
//!   `has_drain` makes it; it is cleared by the drain that finds nothing queued, under the same lock. So no
//!   task is queued without a drain, and what one task has written is seen by the next.
//! - N2 A drain that nobody runs (it was refused, or dropped, or its executor panicked) is handed over again,
//!   from the tick thread and after a pause that grows. It rests only when there is no clock left to wait
//!   on; then the next task hands it over.
//! - N3 What has not started is in the table, also what the drain has taken up: so `dispose` finds it. Its
//!   start is a step of the job's own (J1), and needs no lock of the strand.
//! - N4 A delayed task is queued by its [`Arrival`], on the tick thread, in order of deadline.
//! - N5 With the lock held nobody calls the executor, the clock, a task, or a destructor of theirs.
//! - N6 An executor that runs the drain at once, on the same stack, does so once: when a batch is used up
//!   the drain below goes on with the next.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::home::{Home, When};
use super::job::Run;
use super::tasks::{List, Place, Tasks};
use crate::sync::{Mutex, MutexGuard, Ordering, local, lock};
use crate::{DueTask, Executor, PanicHook, ScheduleError, Scheduler};

/// How many tasks a drain runs before it lets other workers have the thread.
const BATCH: usize = 64;

/// The pauses between attempts to hand over, N2: from one to the other, doubling.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

pub(super) struct Strand {
    me: Weak<Strand>,
    state: Mutex<State>,
    /// J2. Relaxed: it orders nothing.
    waiting: AtomicUsize,
    /// It queues what was delayed, on its own thread.
    timers: Scheduler,
    hook: PanicHook,
}

struct State {
    tasks: Tasks,
    /// `None` once it is disposed.
    executor: Option<Arc<dyn Executor>>,
    /// N1.
    has_drain: bool,
    /// How often in a row the drain was not run.
    strikes: u32,
}

impl Strand {
    /// `timers` run what they have on the tick thread.
    pub(super) fn new(
        executor: Arc<dyn Executor>,
        timers: Scheduler,
        hook: PanicHook,
    ) -> Arc<Strand> {
        Arc::new_cyclic(|me| Strand {
            me: Weak::clone(me),
            state: Mutex::new(State {
                tasks: Tasks::new(),
                executor: Some(executor),
                has_drain: false,
                strikes: 0,
            }),
            waiting: AtomicUsize::new(0),
            timers,
            hook,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn me(&self) -> Arc<Strand> {
        self.me.upgrade().expect("whoever calls it holds it")
    }

    // ----- into the queue ------------------------------------------------------------------

    fn queue(&self, job: Arc<dyn Run>) -> Result<(), ScheduleError> {
        let mut state = self.state();
        if state.executor.is_none() {
            return Err(ScheduleError::Closed);
        }
        self.count_in();
        state.tasks.insert(job, List::Queued);
        self.see_to_a_drain(state);
        Ok(())
    }

    /// N1: something was queued.
    fn see_to_a_drain(&self, mut state: MutexGuard<'_, State>) {
        let had_one = std::mem::replace(&mut state.has_drain, true);
        drop(state);
        if !had_one {
            Drain::of(self.me()).hand_over();
        }
    }

    fn delay(&self, job: Arc<dyn Run>, when: When) -> Result<(), ScheduleError> {
        let mut state = self.state();
        if state.executor.is_none() {
            return Err(ScheduleError::Closed);
        }
        self.count_in();
        state.tasks.insert(Arc::clone(&job), List::Delayed);
        drop(state);
        self.arm(job, 0, when)
    }

    /// Has a task that is in the list of the delayed queued in time; N4.
    fn arm(&self, job: Arc<dyn Run>, round: u32, when: When) -> Result<(), ScheduleError> {
        let arrival = Arrival(Some((self.me(), Arc::clone(&job))));
        let arrive = move || arrival.arrive();
        let timer = match when {
            When::At(deadline) => self.timers.schedule_at(deadline, arrive),
            When::After(delay) => self.timers.schedule_once(delay, arrive),
            When::Now => self.timers.schedule_once(Duration::ZERO, arrive),
        }?;
        let mut state = self.state();
        let unwanted = match state.executor {
            Some(_) => state.tasks.set_timer(job.place(), round, timer),
            None => Some(timer),
        };
        drop(state);
        unwanted.into_iter().for_each(|timer| _ = timer.cancel());
        Ok(())
    }

    /// Sees to the next run of a series that was taken up.
    fn go_on(&self, job: Arc<dyn Run>, due: Instant) {
        let is_due = self.hook.catch(|| due <= self.timers.now()) != Some(false);
        let mut state = self.state();
        if state.executor.is_none() {
            return; // disposed: it has been cancelled, or will be
        }
        // If it is gone it was cancelled. If it is queued, this is the drain that will get there.
        let to = if is_due { List::Queued } else { List::Delayed };
        let Some((_, round)) = state.tasks.shift(job.place(), to) else { return };
        drop(state);
        if !is_due {
            // When the timers refuse it, it is dropped: its arrival sees to that.
            self.hook.catch(|| _ = self.arm(job, round, When::At(due)));
        }
    }

    // ----- out of the queue ----------------------------------------------------------------

    /// Takes up the next tasks. None: there are none, and no drain any more.
    fn next_batch(&self, limit: usize, batch: &mut Vec<Arc<dyn Run>>) -> bool {
        let mut state = self.state();
        state.strikes = 0;
        state.tasks.put_down();
        state.tasks.take_up(limit, batch);
        state.has_drain = !batch.is_empty();
        state.has_drain
    }

    /// What a drain does; N1.
    fn drain(self: Arc<Self>) {
        let mut batch = Vec::new();
        loop {
            let mut left = BATCH;
            while left > 0 {
                if !self.next_batch(left, &mut batch) {
                    return;
                }
                left -= batch.len();
                for job in batch.drain(..) {
                    if let Some(due) = job.run(&*self) {
                        self.go_on(job, due);
                    }
                }
            }
            if !self.hand_over_below() {
                return;
            }
        }
    }

    /// Gives the thread back to the executor, and asks for it again. True if it was given at once, on this
    /// stack; N6.
    fn hand_over_below(self: &Arc<Self>) -> bool {
        let mine = Arc::as_ptr(self).addr();
        let outer = HANDING_OVER.with(|below| below.replace((mine, false)));
        Drain::of(Arc::clone(self)).hand_over();
        HANDING_OVER.with(|below| below.replace(outer)).1
    }

    /// N2: the pause before the drain is handed over again; none if there is nothing left to do.
    fn next_pause(&self) -> Option<Duration> {
        let mut state = self.state();
        state.tasks.put_down();
        if state.tasks.len(List::Queued) == 0 {
            state.has_drain = false;
            return None;
        }
        let pause = PAUSES.0 * (1 << state.strikes.min(16));
        state.strikes = state.strikes.saturating_add(1);
        Some(pause.min(PAUSES.1))
    }
}

local!(
    /// The strand that hands its drain over at the end of a batch, by address, and whether the executor
    /// has run it on this very stack.
    HANDING_OVER: Cell<(usize, bool)> = Cell::new((0, false))
);

impl Home for Strand {
    fn now(&self) -> Instant {
        self.timers.now()
    }

    fn take_in(&self, job: Arc<dyn Run>, when: When) -> Result<(), ScheduleError> {
        let is_due = match when {
            When::Now => true,
            When::After(delay) => delay.is_zero(),
            When::At(deadline) => deadline <= self.timers.now(),
        };
        if is_due { self.queue(job) } else { self.delay(job, when) }
    }

    fn forget(&self, place: &Place) {
        let mut state = self.state();
        if state.executor.is_none() {
            return; // `dispose` has the table
        }
        let timer = state.tasks.remove(place);
        drop(state);
        timer.into_iter().for_each(|timer| _ = timer.cancel());
    }

    fn count_in(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    fn count_out(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn dispose(&self) {
        let mut state = self.state();
        let executor = state.executor.take();
        let tasks = std::mem::replace(&mut state.tasks, Tasks::new());
        drop(state);
        for (job, timer) in tasks.into_all() {
            job.cancel(); // before its arrival is, which would only drop it
            timer.into_iter().for_each(|timer| _ = timer.cancel());
        }
        self.hook.catch(|| drop(executor));
    }

    fn is_disposed(&self) -> bool {
        self.state().executor.is_none()
    }

    fn pending(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }
}

impl Drop for Strand {
    /// Nobody can bring a task any more, and there is no drain: what is left was refused to the last (N2).
    fn drop(&mut self) {
        self.dispose();
    }
}

/// The right to drain a strand; N1. Dropped without having run, it is handed over again; N2.
struct Drain(Option<Arc<Strand>>);

impl Drain {
    fn of(strand: Arc<Strand>) -> Drain {
        Drain(Some(strand))
    }

    fn hand_over(self) {
        let Some(strand) = self.0.clone() else { return };
        let executor = strand.state().executor.clone();
        let Some(executor) = executor else { return };
        let task = DueTask::new(Instant::now(), move || self.run());
        strand.hook.catch(|| drop(executor.execute(task)));
        strand.hook.catch(|| drop(executor)); // perhaps its last owner
    }

    fn run(mut self) {
        let Some(strand) = self.0.take() else { return };
        let (below, _) = HANDING_OVER.with(Cell::get);
        if below == Arc::as_ptr(&strand).addr() {
            HANDING_OVER.with(|handing_over| handing_over.set((below, true)));
        } else {
            strand.drain();
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let Some(strand) = self.0.take() else { return };
        let hook = strand.hook.clone();
        // The executor may be panicking, and the clock could as well.
        hook.catch(|| {
            if let Some(pause) = strand.next_pause() {
                Retry { strand: Some(strand), is_last: false }.wait(pause);
            }
        });
    }
}

/// A drain that waits until it is handed over again; N2.
struct Retry {
    strand: Option<Arc<Strand>>,
    /// It waits on the scheduler that a program always has.
    is_last: bool,
}

impl Retry {
    fn wait(self, pause: Duration) {
        let Some(strand) = self.strand.clone() else { return };
        let is_last = self.is_last;
        let go = move || self.go();
        // Refused means dropped, and then the next clock is tried.
        let waits = if is_last {
            Scheduler::global().with_executor(crate::Inline).schedule_once(pause, go)
        } else {
            strand.timers.schedule_once(pause, go)
        };
        drop(waits);
    }

    fn go(mut self) {
        self.strand.take().map(Drain::of).into_iter().for_each(Drain::hand_over);
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        match self.strand.take() {
            Some(strand) if !self.is_last => {
                Retry { strand: Some(strand), is_last: true }.wait(PAUSES.0);
            }
            Some(strand) => strand.state().has_drain = false,
            None => {}
        }
    }
}

/// Queues a task whose time has come. Dropped without that, its time will not come.
struct Arrival(Option<(Arc<Strand>, Arc<dyn Run>)>);

impl Arrival {
    fn arrive(mut self) {
        let Some((strand, job)) = self.0.take() else { return };
        let mut state = strand.state();
        if state.executor.is_none() {
            return;
        }
        if let Some((timer, _)) = state.tasks.shift(job.place(), List::Queued) {
            strand.see_to_a_drain(state);
            drop(timer);
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if let Some((_strand, job)) = self.0.take() {
            job.forfeit();
        }
    }
}
