//! The [`Driver`], which turns an engine that has no thread: for tests, and for event loops.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::clock::clocks::Clock;
use crate::clock::parking::Sleeper;
use crate::clock::tick::Moment;
use crate::clock::timeline::{after, short_of_never};
use crate::engine::shared::Shared;
use crate::engine::termination::Leaver;
use crate::engine::this_thread::TurningMark;
use crate::engine::{Engine, Next};
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::platform::sync::{Mutex, lock};
use crate::scheduler::WeakScheduler;
use crate::scheduler::leftovers::{Leftovers, Stopping};

/// Turns a scheduler that has no thread: what [`Builder::build_driven`](crate::Builder::build_driven) returns beside
/// the scheduler.
///
/// Tasks run only inside [`turn`](Driver::turn) and [`advance`](Driver::advance), on the thread that calls them (with
/// the default executor, [`Inline`](crate::Inline)). By default, the time is virtual, and stands still between calls.
/// Dropping the driver ends its scheduler and drops the tasks that were pending.
///
/// A test of an hour:
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let minute = Duration::from_secs(60);
/// scheduler.schedule_repeatedly(minute, minute, || ())?;
/// assert_eq!(driver.advance(60 * minute), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An event loop, on the system's clock:
///
/// ```
/// use std::time::{Duration, Instant};
/// use tickwheel::{Scheduler, SystemClock};
///
/// let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven()?;
/// let done = scheduler.schedule_once(Duration::from_millis(3), || ())?;
/// while !done.is_done() {
///     let come_back = driver.turn();
///     // ... wait for sockets, until `come_back` at the latest ...
///     # std::thread::sleep(come_back.map_or(Duration::ZERO, |at| at - Instant::now()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the driver ends its scheduler: keep it, and call `turn` or `advance`"]
pub struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) cell: Arc<EngineCell>,
    pub(super) scheduler: WeakScheduler,
}

/// Holds an engine that has no thread, unless it is being turned.
pub(super) struct EngineCell(pub(super) Mutex<Option<Box<Engine>>>);

impl EngineCell {
    /// Calls `work` with the engine. Returns `None` if the engine is out already, because another call has it.
    fn with_engine<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        // Taken out, so nothing is locked while tasks run (S11). A call from inside a task finds none.
        let mut engine = lock(&self.0).take()?;
        // Observers, clocks and wakers that run here are inside of a turn, too (S21).
        let _mark = TurningMark::new(engine.shared.id);
        let worked = caught(|| work(&mut engine));
        // It is put back also if something unwinds here.
        let before = lock(&self.0).replace(engine);
        debug_assert!(before.is_none(), "an engine is taken out once");
        Some(worked.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Turns a stopped engine to its end, unless another call has it. Then that call is followed by a turn, or by
    /// [`end_if_stopped`](Driver::end_if_stopped).
    pub(super) fn end(&self) {
        self.with_engine(turn_until_done);
    }
}

/// Turns the engine until every task has been handed over that is due and was scheduled before this call. Returns when to turn
/// again, or `None` if the scheduler has ended.
fn turn_until_done(engine: &mut Engine) -> Option<Moment> {
    // One cut for all turns, so a task that schedules another one without a delay does not keep the caller here.
    let cut = engine.read_clock();
    loop {
        match engine.turn(cut) {
            Next::Again => _ = engine.read_clock(),
            Next::At(at) => return Some(at),
            Next::Ended => return None,
        }
    }
}

impl Driver {
    /// Does the last turn if a stop has come while the engine was out. A call that does not tell its caller to turn again
    /// at once ends with this.
    pub(super) fn end_if_stopped(&self) {
        // A stop stores `is_closing` before it looks for the engine. If it has found none, the engine came back after
        // that, under the same lock, so this load sees the store.
        if self.shared.is_closing() {
            self.cell.end();
        }
    }

    /// Returns the present, on the scheduler's clock.
    pub fn now(&self) -> Instant {
        self.shared.watch.clock.now()
    }

    /// Asks the clock for something.
    fn ask_clock<R>(&self, question: impl Fn(&dyn Clock) -> R) -> R {
        // A panic is reported (S17), and the clock is asked again. The third panic in a row is the caller's, because
        // without the clock nothing here goes on.
        let answer = self.shared.ask_clock(&question).or_else(|| self.shared.ask_clock(&question));
        answer.unwrap_or_else(|| question(&*self.shared.watch.clock))
    }

    /// Returns the present, as [`now`](Driver::now) does, also if the clock panics once or twice.
    pub(super) fn reading(&self) -> Instant {
        self.ask_clock(Clock::now)
    }

    /// Unwinds with the first panic of a task since the last call, if the user has set no hook (HOOK-3).
    pub(super) fn resume_panic(&self) {
        if self.shared.is_turned_here() {
            return; // the outer call does that, after its turn
        }
        if let Some(panic) = self.shared.hooks.first_panic() {
            // Only now, when the engine is back and has done all that was due.
            self.end_if_stopped();
            resume_unwind(panic);
        }
    }

    /// Hands over the tasks that are due by the clock. Returns when to call it again, or `None` if nothing is pending
    /// except tasks that are never due, and tasks of executors that have refused them for good.
    ///
    /// Tasks that are scheduled during the turn are left to the next turn, even if they are due at once. Then `turn`
    /// returns the present. Called from inside a task of the same driver, it does nothing and returns the present.
    ///
    /// If all other handles are gone, or the scheduler was stopped, the turn ends the scheduler: it drops what is pending, unless
    /// a close or a [`Stopping`] takes it.
    ///
    /// # Panics
    ///
    /// If the builder was given no [`on_panic`](crate::Builder::on_panic), `turn` resumes the first panic of a task,
    /// after it has handed over all that was due. So a failed `assert!` in a task fails the test. A panic in
    /// [`call_after`](crate::Scheduler::call_after) is told by the future, and not resumed.
    pub fn turn(&self) -> Option<Instant> {
        let shared = &self.shared;
        let turn = |engine: &mut Engine| {
            // A thread that schedules during the turn need not ring: the turn, or the look at its end, finds its task.
            shared.bell.disarm();
            let Some(at) = turn_until_done(engine) else { return Some(None) };
            // Arm, and then look. A task that came in between the turn and the arming has not rung. If something is
            // there, of whatever deadline, the waker is rung, and the answer is the present. So a loop that trusts the
            // waker and a loop that trusts the answer are both right.
            engine.arm(at);
            if engine.has_news() {
                shared.bell.ring_if_asleep();
                return None;
            }
            Some(shared.watch.timeline.instant_if_any(at))
        };
        let come_back = self.cell.with_engine(turn).flatten();
        if come_back.is_some() {
            self.end_if_stopped();
        }
        self.resume_panic();
        come_back.unwrap_or_else(|| Some(self.reading())) // there is more to do at once
    }

    /// Moves the virtual time from deadline to deadline until `by` has passed, and runs all tasks in order, including
    /// tasks that are scheduled on the way. Returns how many runs were started. By default a task runs at the end of the tick in
    /// which it is due, and not before, so one whose tick ends later than that stays: see [Deadlines between
    /// ticks](crate::testing#three-mistakes).
    ///
    /// If the clock cannot be moved, as with [`SystemClock`](crate::SystemClock), it waits until the time has passed.
    /// It never returns if a task schedules itself again and again without a delay. Called from inside a task of the
    /// same driver, it does nothing and returns 0.
    ///
    /// # Panics
    ///
    /// As [`turn`](Driver::turn) does. All tasks of that deadline have been handed over then, and the time stands there.
    /// Another call goes on from there:
    ///
    /// ```should_panic
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// scheduler.schedule_once(Duration::from_secs(1), || assert_eq!(1 + 1, 3))?;
    /// driver.advance(Duration::from_secs(60)); // so the test fails
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) -> usize {
        if self.shared.is_turned_here() {
            return 0; // time does not pass inside a task
        }
        let fired = || self.shared.intake.sum(|counts| counts.fired.get());
        let before = fired();
        // Counted from before the first turn, so the time that runs take is part of it.
        let target = short_of_never(after(self.reading(), by));
        // From deadline to deadline, so each task sees the time at which it was due.
        loop {
            let next = match self.turn() {
                Some(next) if next <= target => next,
                _ if self.reading() < target => target,
                _ => break,
            };
            if next > self.reading() && !self.moves_clock_to(next) {
                self.sleep_towards(next, &Sleeper::new());
            }
        }
        self.end_if_stopped(); // a clock that runs by itself may pass the target before the turn that would do it
        self.resume_panic();
        usize::try_from(fired() - before).unwrap_or(usize::MAX)
    }

    /// Returns the earliest deadline of what is still pending, whether the engine has looked at it yet or not. By default the task
    /// runs at the end of the tick in which that is, which [`turn`](Driver::turn) tells. `None` if
    /// nothing is pending, or if nothing that is will ever be due. Tasks that an executor has and has not started do not
    /// count. Called from inside a task of the same driver, it returns the present. On a clock that runs by itself, a
    /// [`Sleep`](crate::time::Sleep) that was reset to a later time counts with its old one. If all other handles are gone, or
    /// the scheduler was stopped, it ends the scheduler, as [`turn`](Driver::turn) does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let minute = Duration::from_secs(60);
    /// let (task, _) = (scheduler.schedule_once(minute, || ())?, scheduler.schedule_once(60 * minute, || ())?);
    /// assert_eq!(driver.next_deadline(), Some(scheduler.now() + minute));
    /// task.reset(2 * minute);
    /// assert_eq!(driver.next_deadline(), Some(scheduler.now() + 2 * minute));
    /// task.cancel();
    /// assert_eq!(driver.next_deadline(), Some(scheduler.now() + 60 * minute));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.cell.with_engine(Engine::first_deadline);
        self.end_if_stopped();
        match first {
            Some(Next::At(first)) => self.shared.watch.timeline.instant_if_any(first),
            // Another call has the engine, this is one of its tasks, or the clock has panicked. The pending tasks are not known,
            // so the caller looks again at once.
            _ => Some(self.reading()),
        }
    }

    /// Moves the clock to this instant. Returns false if the clock cannot be moved.
    pub(super) fn moves_clock_to(&self, instant: Instant) -> bool {
        self.ask_clock(|clock| clock.advance_to(instant))
    }

    /// Sleeps until this instant, or for a tick at most, or a millisecond.
    pub(super) fn sleep_towards(&self, instant: Instant, sleeper: &Sleeper) {
        // Another thread may schedule a task in the meantime that is due earlier, perhaps at once, and nothing wakes this sleep
        // for it.
        let tick = Duration::from_nanos(self.shared.watch.timeline.tick.get());
        let step = after(self.reading(), tick.min(Duration::from_millis(1))).min(instant);
        self.ask_clock(|clock| clock.sleep(sleeper, Some(step)));
    }

    /// Ends the scheduler, and returns the tasks that were pending.
    pub fn close(self) -> Leftovers {
        let stopping = Stopping::new(&self.shared, true);
        self.cell.end();
        // Another thread that closes the scheduler may be turning the engine now.
        stopping.wait_timeout(self.shared.termination.timeout).unwrap_or_else(|mut stopping| {
            // Runs of series may be in progress. What there is by then is taken all the same.
            let leftovers = self.shared.termination.take();
            stopping.leave_with(leftovers.unwrap_or_default())
        })
    }

    /// Sets the waker that is woken if, after a [`turn`](Driver::turn), another thread schedules a task that is due
    /// before the instant that the turn has returned. `None` removes the waker.
    ///
    /// Set it before the turn. Tasks that came between the turn and this call wake nobody. After each 8192 cancels or some
    /// 33,000 schedules it may be woken for no task, so that a turn frees their memory.
    ///
    /// A waker can write to a pipe, post to a loop, or unpark a thread:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::task::{Wake, Waker};
    /// use std::thread::{self, Thread};
    /// use tickwheel::{Scheduler, SystemClock};
    ///
    /// struct Unpark(Thread);
    /// impl Wake for Unpark {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.unpark();
    ///     }
    /// }
    ///
    /// let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven()?;
    /// driver.wake_with(Some(Waker::from(Arc::new(Unpark(thread::current())))));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn wake_with(&self, waker: Option<Waker>) {
        self.shared.bell.wakes(waker);
    }
}

impl Drop for Driver {
    /// Takes the user's waker back, and gives the leftovers up if all handles have gone too. The engine is dropped right
    /// after this, and ends the scheduler.
    fn drop(&mut self) {
        // Threads that have scheduled tasks may keep the bell for longer, and the user's waker must not stay in it.
        self.shared.bell.wakes(None);
        self.shared.drop_leftovers(self.shared.termination.leave(Leaver::Closer));
    }
}

impl_debug!(Driver, self, pending: self.shared.pending());

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use crate::executor::{DueBatch, DueTask, Executor, Inline, Rejected};
    use crate::scheduler::Scheduler;
    use crate::scheduler::handle::Cancellable;

    /// Keeps what it is handed, or first gives back in a batch what it has.
    #[derive(Clone, Default)]
    struct Keeper(Arc<Mutex<(Vec<DueTask>, bool)>>);

    impl Keeper {
        fn take(&self) -> impl Iterator<Item = DueTask> {
            std::mem::take(&mut self.0.lock().expect("no panic").0).into_iter()
        }
    }

    impl Executor for Keeper {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::new(task))
        }

        fn execute_batch(&self, batch: &mut DueBatch) {
            let (kept, gives_back) = &mut *self.0.lock().expect("no panic");
            if *gives_back {
                kept.drain(..).for_each(|task| batch.reject(Rejected::new(task)));
            }
            kept.extend(batch);
        }
    }

    /// Takes nothing out of its batches.
    struct Busy;

    impl Executor for Busy {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::new(task))
        }

        fn execute_batch(&self, _batch: &mut DueBatch) {}
    }

    /// Producers are held back by these counts, so each task leaves them once, where it was handed over: it has run, was
    /// dropped, was found cancelled, or comes back, in whichever batch.
    #[test]
    fn s19_s30_a_task_counts_where_it_was_handed_over() {
        let keeper = Keeper::default();
        let builder = Scheduler::builder().executor(keeper.clone());
        let (scheduler, driver) = builder.build_driven().expect("the defaults are good");
        let (own, inline) =
            (scheduler.with_executor(keeper.clone()), scheduler.with_executor(Inline));
        let busy = scheduler.with_executor(Busy);
        let shared = scheduler.shared();
        let find =
            |number| shared.own_executors.find(number).expect("its handle lives").backlog.clone();
        let (of_own, of_inline, of_busy) = (find(1), find(2), find(3));
        let ahead = || {
            let of_default = shared.backlog.ahead() - shared.intake.sum(|counts| counts.done.get());
            (of_default, of_own.ahead(), of_inline.ahead() + of_busy.ahead())
        };
        let schedule =
            |scheduler: &Scheduler| scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
        let cancelled = [&scheduler, &own].map(|at| {
            let four: Vec<_> = (0..4).map(|_| schedule(at)).collect();
            let _ = [&inline, &busy].map(schedule);
            driver.turn();
            four.into_iter().next().expect("four")
        });
        assert_eq!(ahead(), (4, 4, 0));
        assert!(cancelled.iter().all(Cancellable::cancel));
        let mut tasks = keeper.take();
        for _ in [&scheduler, &own] {
            tasks.by_ref().take(2).for_each(DueTask::run);
            drop(tasks.next());
            let kept = tasks.next().expect("the fourth");
            keeper.0.lock().expect("no panic").0.push(kept);
        }
        assert_eq!(ahead(), (1, 1, 0));
        keeper.0.lock().expect("no panic").1 = true;
        schedule(&scheduler);
        driver.turn();
        assert_eq!(ahead(), (1, 0, 0), "two came back in the batch of the third");
        keeper.0.lock().expect("no panic").1 = false;
        driver.advance(Duration::from_secs(1));
        assert_eq!(ahead(), (2, 1, 0), "they were offered again");
        keeper.take().for_each(DueTask::run);
        assert_eq!((ahead(), scheduler.pending()), ((0, 0, 0), 2));
    }
}
