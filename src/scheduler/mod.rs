//! The public face of the engine: [`Scheduler`], a cheap handle to a scheduler, and [`WeakScheduler`].
//!
//! | file | subject |
//! | --- | --- |
//! | here | the handle: how it is made, asked and closed, and which executor its tasks run on |
//! | [`builder`] | [`Builder`]: what a scheduler is made of |
//! | [`schedule_methods`] | `schedule_once` and the other methods that schedule a task |
//! | [`alarm`] | `wake_at`: schedules a waker, for futures |
//! | [`handle`] | [`Cancellable`]: what scheduling returns |
//! | [`schedule_trait`] | [`Schedule`] and [`ScheduleExt`], for code that takes any scheduler |
//! | [`leftovers`] | what a close returns |
//! | [`driver`] | [`Driver`]: a scheduler without a thread |
//! | [`in_force`] | [`Scheduler::enter`], and the virtual clock of a thread: which scheduler `time` uses |

mod alarm;
mod block_on;
mod builder;
mod driver;
mod handle;
pub(crate) mod in_force;
mod leftovers;
mod schedule_methods;
mod schedule_trait;

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use self::driver::EngineCell;
use crate::engine::shared::{MOST_OVERDUE, Shared};
use crate::engine::slots::state::EXECUTORS;
use crate::engine::termination::Leaver;
use crate::engine::this_thread;
use crate::error::{BuildError, CloseError};
use crate::executor::Executor;
use crate::executor::deadlock::PoolThreads;
use crate::executor::numbered::NumberedExecutor;
use crate::observe::stats::Stats;
use crate::platform::impls::impl_debug;

pub use alarm::Alarm;
pub use builder::Builder;
pub use driver::Driver;
pub use handle::{Cancel, CancelOnDrop, Cancellable};
pub use in_force::Entered;
pub use leftovers::{Leftovers, LeftoversIter, PendingTask, Stopping};
pub(crate) use schedule_trait::schedule_boxes_by_name;
pub use schedule_trait::{RepeatingTask, Request, Schedule, ScheduleExt, Task};

/// A handle to a timer service, which takes tasks from any thread, and runs them on an executor when they are due.
///
/// The handle is cheap to clone, and its clones stand for the same service. When the last one is dropped, the service
/// stops, and every task that has not started is dropped (on the tick thread; `drop` does not wait). To keep those
/// tasks, [`close`](Scheduler::close) the scheduler: see [`shutdown`](crate::shutdown). A future that waits for the
/// service, such as a [`Sleep`](crate::time::Sleep), keeps it going too.
///
/// The time of a scheduler goes from 18 years before it was made to 566 years after. What is due later is never due.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (sender, receiver) = mpsc::channel();
/// let scheduler = Scheduler::new();
/// scheduler.schedule_once(Duration::from_millis(10), move || drop(sender.send("done")))?;
/// assert_eq!(receiver.recv()?, "done");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scheduler {
    service: Arc<Service>,
    /// The executor of this handle, if it is not the scheduler's: see [`Scheduler::with_executor`].
    own: Option<Arc<NumberedExecutor>>,
    /// The clone that this handle's futures share: see [`Scheduler::for_futures`].
    for_futures: OnceLock<Arc<Scheduler>>,
}

/// What the handles of one scheduler share, and the engine does not. Its futures share one of their own, which nobody can
/// close.
struct Service {
    shared: Arc<Shared>,
    /// Of futures: the service of the handle that they come from.
    made_from: Option<Weak<Service>>,
    life: Arc<Life>,
}

/// What handles and futures share: when it is dropped, the service stops (S24).
struct Life {
    shared: Arc<Shared>,
    /// The engine of a driven scheduler. If the scheduler has a tick thread, there is none here.
    driven: Weak<EngineCell>,
    /// The pool that the scheduler's executor runs tasks on, if it is one of this crate's.
    threads: Option<PoolThreads>,
    /// To which scheduler futures go over when this one is closed, if its time goes on there.
    successor: OnceLock<Arc<Scheduler>>,
}

impl Clone for Scheduler {
    fn clone(&self) -> Scheduler {
        Scheduler::of(Arc::clone(&self.service), self.own.clone())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Drop for Service {
    /// Gives up the leftovers that a close has left behind, because no handle is left that could take them.
    fn drop(&mut self) {
        // The handle of the futures cannot close, so it does not count.
        if self.made_from.is_none() {
            self.shared.drop_leftovers(self.shared.termination.leave(Leaver::Closer));
        }
    }
}

static GLOBAL: OnceCell<Scheduler> = OnceCell::new();

#[track_caller]
fn or_panic<T>(built: Result<T, BuildError>) -> T {
    built.unwrap_or_else(|error| panic!("{error} ({error:?})"))
}

impl Scheduler {
    /// Makes a scheduler with the defaults: a tick of 1 ms, and a [`ThreadPool`](crate::ThreadPool) of as many threads
    /// as the machine runs at once, which start on first use.
    ///
    /// # Panics
    ///
    /// Panics if the system does not start the tick thread. [`Builder::build`] returns an error instead.
    pub fn new() -> Scheduler {
        or_panic(Scheduler::builder().build())
    }

    /// Returns a builder, which sets tick, executor, clock and other options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a scheduler for the whole process, with the defaults. It is made on first use, and never ends, because
    /// other parts of the program may use it: [`close`](Scheduler::close) is an error, and [`stop`](Scheduler::stop) does
    /// nothing.
    ///
    /// It has ticks of 1 ms. In a service with a million pending timeouts and 10,000 sleeps a second these sleeps were
    /// 0.56 ms late in the median, and 0.03 ms with [`Precision::Exact`](crate::Precision), which took 0.23 of a
    /// processor more (row P1 of `benches/peers`). [`set_global`](Scheduler::set_global) chooses.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{CloseError, Scheduler};
    ///
    /// Scheduler::global().schedule_once(Duration::from_secs(1), || println!("one second"))?;
    /// assert_eq!(Scheduler::global().close().unwrap_err(), CloseError::Global);
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the system does not start the tick thread. [`try_global`](Scheduler::try_global) returns an error
    /// instead, and can be called again.
    pub fn global() -> &'static Scheduler {
        or_panic(Scheduler::try_global())
    }

    /// Like [`global`](Scheduler::global), but returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// [`BuildError::Thread`] if the tick thread could not be started.
    pub fn try_global() -> Result<&'static Scheduler, BuildError> {
        GLOBAL.get_or_try_init(|| Scheduler::builder().thread_name("tickwheel-global").build())
    }

    /// Makes the [global](Scheduler::global) scheduler as the builder says, for a program that wants another precision,
    /// clock or executor for it. Call it at the beginning of `main`: before the first use, and before the first sleep
    /// is made.
    ///
    /// With [`max_pending`](Builder::max_pending), a sleep that finds it full has its task poll again and again.
    ///
    /// ```standalone_crate
    /// use tickwheel::{Inline, Scheduler};
    ///
    /// Scheduler::set_global(Scheduler::builder().executor(Inline))?;
    /// assert!(Scheduler::set_global(Scheduler::builder()).is_err());
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::GlobalInUse`] if there is a global scheduler already, which then stays, and the errors of
    /// [`Builder::build`].
    pub fn set_global(builder: Builder) -> Result<(), BuildError> {
        if GLOBAL.get().is_some() {
            return Err(BuildError::GlobalInUse);
        }
        // Two threads may call this at once, and one of them has to get the error.
        GLOBAL.set(builder.build()?).map_err(|_second| BuildError::GlobalInUse)
    }

    fn of_life(life: Life) -> Scheduler {
        // Apart from the service, because the services of futures share it: the scheduler ends with the last of them.
        let (shared, life) = (Arc::clone(&life.shared), Arc::new(life));
        Scheduler::of(Arc::new(Service { shared, made_from: None, life }), None)
    }

    fn of(service: Arc<Service>, own: Option<Arc<NumberedExecutor>>) -> Scheduler {
        Scheduler { service, own, for_futures: OnceLock::new() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.service.shared
    }

    /// Returns the present, on the scheduler's clock.
    pub fn now(&self) -> Instant {
        self.shared().watch.clock.now()
    }

    /// Returns true if two readings of the scheduler's clock, one after the other on any threads, always differ. Then a
    /// reading tells which of two calls came first: see [`Clock::tells_calls_apart`](crate::Clock::tells_calls_apart).
    pub(crate) fn tells_calls_apart(&self) -> bool {
        self.shared().intake.is_by_clock()
    }

    // ----- other handles -------------------------------------------------------------------

    /// Returns another handle to the same scheduler. The tasks that are scheduled through it run on this executor.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Inline, Scheduler};
    ///
    /// let scheduler = Scheduler::new();
    /// let inline = scheduler.with_executor(Inline);
    /// inline.schedule_once(Duration::from_millis(1), || println!("on the tick thread"))?;
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if half a million such executors of this scheduler are alive.
    #[must_use]
    pub fn with_executor(&self, executor: impl Executor) -> Scheduler {
        let own = self.shared().own_executors.add(Box::new(executor), EXECUTORS, MOST_OVERDUE);
        // The number of an executor has to fit into the word of a task.
        let own = own.expect("fewer than half a million executors: clone a handle to share one");
        Scheduler::of(Arc::clone(&self.service), Some(own))
    }

    /// Returns a handle which all futures of this handle share. It cannot close the scheduler, so leftovers are not
    /// kept for it.
    pub(crate) fn for_futures(&self) -> Arc<Scheduler> {
        // A service of its own for each handle, so that threads with handles of their own share no reference count.
        // With one count for all, two threads together made 7 million timeouts a second, and 51 million with a count
        // each (row S4 of `benches/peers`).
        debug_assert!(self.service.made_from.is_none(), "a handle of futures makes no other ones");
        let make = || Arc::new(self.with_own_service(Some(Arc::downgrade(&self.service))));
        Arc::clone(self.for_futures.get_or_init(make))
    }

    /// Returns a handle for users, if this one is for futures: the one that it comes from, or a new one if that is gone.
    fn for_users(&self) -> Scheduler {
        if let Some(service) = self.service.made_from.as_ref().and_then(Weak::upgrade) {
            return Scheduler::of(service, self.own.clone());
        }
        self.shared().termination.join_closers();
        self.with_own_service(None)
    }

    fn with_own_service(&self, made_from: Option<Weak<Service>>) -> Scheduler {
        let (shared, life) = (Arc::clone(self.shared()), Arc::clone(&self.service.life));
        Scheduler::of(Arc::new(Service { shared, made_from, life }), self.own.clone())
    }

    /// Returns a handle that does not keep the service alive.
    pub fn downgrade(&self) -> WeakScheduler {
        WeakScheduler { service: Arc::downgrade(&self.service), own: self.own.clone() }
    }

    /// Returns the pool that runs the tasks of this handle, if it is one of this crate's.
    pub(crate) fn threads(&self) -> Option<PoolThreads> {
        match &self.own {
            Some(own) => own.executor.threads(),
            None => self.service.life.threads.clone(),
        }
    }

    // ----- shutdown ------------------------------------------------------------------------

    /// Stops the service, waits for the tick thread, and returns every task that has not started, including those that
    /// wait in an executor's queue. The page [`shutdown`](crate::shutdown) has a table of all cases.
    ///
    /// `close` wakes the tick thread at once. It also waits for the runs of series that are in progress, and returns
    /// the series when the run has ended. It does not wait for one-shots that run: see
    /// [`await_termination`](Scheduler::await_termination). It waits for [`Builder::shutdown_timeout`] at most. A
    /// second close returns no leftovers.
    ///
    /// If the scheduler is driven and no thread is turning it, `close` also does the last turn.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// scheduler.schedule_once(Duration::from_secs(60), || println!("a minute later"))?;
    /// let leftovers = scheduler.close()?;
    /// assert_eq!((leftovers.len(), scheduler.pending()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CloseError::Timeout`] if the tick thread or the run of a series is still busy. The scheduler is closed all the
    /// same, and a later close returns the leftovers. [`CloseError::OnTickThread`] if it was called on the tick thread.
    /// [`CloseError::Global`] if this is the [global](Scheduler::global) scheduler. In both cases nothing is closed.
    pub fn close(&self) -> Result<Leftovers, CloseError> {
        let shared = self.shared();
        if self.is_global() {
            return Err(CloseError::Global);
        }
        if shared.is_turned_here() {
            return Err(CloseError::OnTickThread);
        }
        self.stop().wait_timeout(shared.termination.timeout).map_err(|mut stopping| {
            stopping.leave(Leaver::Taker); // it gives nothing up, so a later close can collect
            CloseError::Timeout
        })
    }

    /// Closes the scheduler, and then runs the tasks that have not started, on the calling thread. A repeating task runs
    /// once. Returns how many runs were started, as [`Leftovers::run_all`] counts them.
    ///
    /// # Errors
    ///
    /// The errors of [`close`](Scheduler::close).
    pub fn close_and_run(&self) -> Result<usize, CloseError> {
        Ok(self.close()?.run_all())
    }

    /// Stops the service without waiting. From now on no task is accepted. The [`Stopping`] that it returns can be
    /// waited for, and gives the tasks that were pending. `stop` may be called everywhere, also inside a task.
    ///
    /// A [driven](crate::Builder::build_driven) scheduler has no thread that would end it. If nobody turns it at the time, `stop`
    /// does: its observer and the wakers of its futures are called, and its executor may be dropped. So hold no lock that they take.
    ///
    /// The [global](Scheduler::global) scheduler does not stop. Its `Stopping` is ready at once, without leftovers.
    pub fn stop(&self) -> Stopping {
        let stopping = Stopping::new(self.shared(), !self.is_global());
        // A driven engine, which the global scheduler never has, has no thread that would see the stop. A turn that is under
        // way has the engine, and sees it by itself.
        self.service.life.driven.upgrade().iter().for_each(|engine| engine.end());
        stopping
    }

    fn is_global(&self) -> bool {
        GLOBAL.get().is_some_and(|global| Arc::ptr_eq(global.shared(), self.shared()))
    }

    /// Waits until the scheduler is closed and no run of its tasks is in progress. Returns false if that is not so
    /// after `timeout`.
    ///
    /// Unlike `close`, it waits for one-shots that run. It does not close the scheduler: call it after
    /// [`close`](Scheduler::close) or [`stop`](Scheduler::stop). Inside a task of this scheduler it returns false at
    /// once, because that task's own run would have to end first.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::thread;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// let is_saved = Arc::new(AtomicBool::new(false));
    /// let save = Arc::clone(&is_saved);
    /// scheduler.schedule_once(Duration::ZERO, move || {
    ///     thread::sleep(Duration::from_millis(50)); // it takes a while
    ///     save.store(true, Ordering::Release);
    /// })?;
    /// # thread::sleep(Duration::from_millis(10));
    /// let leftovers = scheduler.close()?; // empty: the task is running by now
    /// assert!(scheduler.await_termination(Duration::from_secs(5)));
    /// assert!(is_saved.load(Ordering::Acquire) || leftovers.len() == 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn await_termination(&self, timeout: Duration) -> bool {
        let shared = self.shared();
        // The run of the calling task would have to end first.
        let is_inside = shared.is_turned_here() || this_thread::is_in_a_run_of(shared.id);
        !is_inside && shared.termination.wait_for_runs(timeout)
    }

    /// Returns true if the scheduler has been stopped, or is being stopped.
    pub fn is_closed(&self) -> bool {
        self.shared().is_closing()
    }

    // ----- inspection ----------------------------------------------------------------------

    /// Returns how many tasks wait for their run, including series that have not ended.
    pub fn pending(&self) -> usize {
        self.shared().pending()
    }

    /// Returns a snapshot of the scheduler's counters.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Describes the doorbell, the lanes and the engine's sleep, for a person who looks at a hang. The text may change
    /// with any version.
    #[doc(hidden)]
    pub fn dump(&self) -> String {
        self.shared().dump()
    }
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler::new()
    }
}

impl_debug!(Scheduler, self, pending: self.pending(), is_closed: self.is_closed());

/// A handle that does not keep the service alive: for tasks that need their own scheduler. It is upgraded as long as there is
/// a handle. A service that goes on for its futures alone has none.
///
/// If the [`Scheduler`] that it was made from has an executor of its own (see
/// [`with_executor`](Scheduler::with_executor)), the weak handle keeps that executor alive.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// let weak = scheduler.downgrade();
/// scheduler.schedule_repeatedly(Duration::ZERO, Duration::from_secs(1), move || {
///     let Some(scheduler) = weak.upgrade() else { return ControlFlow::Break(()) };
///     println!("{} tasks are pending", scheduler.pending());
///     ControlFlow::Continue(())
/// })?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct WeakScheduler {
    service: Weak<Service>,
    own: Option<Arc<NumberedExecutor>>,
}

impl WeakScheduler {
    /// Returns the scheduler, or `None` if its last handle has been dropped.
    pub fn upgrade(&self) -> Option<Scheduler> {
        Some(Scheduler::of(self.service.upgrade()?, self.own.clone()))
    }
}

impl_debug!(WeakScheduler, self, is_alive: self.service.strong_count() > 0);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock::clocks::{BootClock, Clock, Sleeper};
    use crate::executor::Inline;
    use crate::platform::sleep::{boot_time, tests::suspend};

    /// The machine is suspended for an hour: the clock jumps, and whatever wakes the tick thread finds all that became due.
    #[test]
    fn what_was_due_during_a_suspension_runs_after_it_and_in_order() {
        if boot_time().is_none() {
            return; // this system has no such clock, or std's is one
        }
        let scheduler = Scheduler::builder().clock(BootClock).executor(Inline).build().unwrap();
        let (send, runs) = mpsc::channel();
        for minutes in [50, 10, 70] {
            let send = send.clone();
            let run = move || _ = send.send(minutes);
            scheduler.schedule_once(Duration::from_secs(60 * minutes), run).unwrap();
        }
        let (boot, system) = (BootClock.now(), Instant::now());
        suspend(Duration::from_secs(3600));
        assert!(BootClock.now() - boot >= Duration::from_secs(3600));
        assert!(system.elapsed() < Duration::from_secs(1800), "std's clock knows nothing of it");
        scheduler.schedule_once(Duration::ZERO, move || _ = send.send(0)).unwrap();
        let ran: Vec<_> = runs.iter().take(3).collect();
        assert_eq!(ran, [10, 50, 0], "what is due in ten minutes more is not due");
        assert_eq!(scheduler.pending(), 1);
    }

    #[test]
    fn a_sleep_on_the_boot_clock_ends_on_time_or_when_it_is_woken() {
        let sleeper = Sleeper::new();
        for millis in [1, 20] {
            let until = BootClock.now() + Duration::from_millis(millis);
            while BootClock.now() < until {
                BootClock.sleep(&sleeper, Some(until));
            }
        }
        let (start, waker) = (Instant::now(), sleeper.waker());
        let other = std::thread::spawn(move || waker.wake());
        BootClock.sleep(&sleeper, Some(BootClock.now() + Duration::from_secs(3000)));
        other.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
