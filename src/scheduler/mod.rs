//! The public service: [`Scheduler`], a cheap handle to a scheduler.
//!
//! | file | what it is |
//! | --- | --- |
//! | here | the handle: made, closed, asked; where tasks run |
//! | [`builder`] | what it is made of |
//! | [`scheduling`] | the ways in |
//! | [`waking`], [`weak`] | what futures are made of; a handle that keeps nothing alive |

mod alarm;
pub(crate) mod builder;
mod driver;
mod handle;
mod leftovers;
mod schedule;
mod scheduling;
mod waking;
mod weak;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use self::driver::EngineCell;
use crate::engine::shared::{MOST_OVERDUE, Shared};
use crate::engine::slots::state::EXECUTORS;
use crate::engine::termination;
use crate::error::{BuildError, CloseError};
use crate::executor::Executor;
use crate::executor::deadlock::PoolThreads;
use crate::executor::own_executor::OwnExecutor;
use crate::observe::stats::Stats;

pub use alarm::Alarm;
pub use builder::Builder;
pub use driver::Driver;
pub use handle::{Cancel, CancelOnDrop, Cancellable};
pub use leftovers::{IntoIter, Leftovers, PendingTask, Stopping};
pub use schedule::{RepeatingTask, Schedule, ScheduleExt, Task};
pub use weak::WeakScheduler;

/// A timer service: schedules tasks from any thread, and runs them on an executor when they are
/// due.
///
/// It is a handle, cheap to clone; clones stand for the same service. When the last one is dropped
/// the service stops, and every task that has not started is dropped (on the tick thread; `drop` does not wait).
/// To keep those tasks, [`close`](Scheduler::close) it: see [`shutdown`](crate::shutdown).
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
#[derive(Clone)]
pub struct Scheduler {
    service: Arc<Service>,
    own: Option<Arc<OwnExecutor>>,
}

/// What the handles share among themselves only: when it goes, the service stops (S24).
struct Service {
    shared: Arc<Shared>,
    /// The engine of a driven scheduler; dangling for one with a tick thread.
    driven: Weak<EngineCell>,
    /// The pool that runs the tasks, if it is one of ours.
    threads: Option<PoolThreads>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

static GLOBAL: OnceCell<Scheduler> = OnceCell::new();

impl Scheduler {
    /// A scheduler with the defaults: a tick of 1 ms, and a [`ThreadPool`](crate::ThreadPool) of as
    /// many threads as the machine runs at once, which start on first use.
    ///
    /// # Panics
    ///
    /// When the system does not start a thread; [`Builder::build`] returns that as an error.
    pub fn new() -> Scheduler {
        match Scheduler::builder().build() {
            Ok(scheduler) => scheduler,
            Err(error) => panic!("{error}"),
        }
    }

    /// To choose tick, executor, clock and the rest.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A scheduler for the whole process, with the defaults, made on first use. It is never
    /// dropped; do not close it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// Scheduler::global().schedule_once(Duration::from_secs(1), || println!("one second"))?;
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the system does not start a thread; [`try_global`](Scheduler::try_global) returns that
    /// as an error, and can be tried again.
    pub fn global() -> &'static Scheduler {
        match Scheduler::try_global() {
            Ok(scheduler) => scheduler,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same as [`global`](Scheduler::global), without the panic.
    ///
    /// # Errors
    ///
    /// When the tick thread could not be started.
    pub fn try_global() -> Result<&'static Scheduler, BuildError> {
        GLOBAL.get_or_try_init(|| Scheduler::builder().thread_name("tickwheel-global").build())
    }

    fn from_hub(
        shared: Arc<Shared>,
        driven: Weak<EngineCell>,
        threads: Option<PoolThreads>,
    ) -> Scheduler {
        Scheduler { service: Arc::new(Service { shared, driven, threads }), own: None }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.service.shared
    }

    /// The present, on the scheduler's clock.
    pub fn now(&self) -> Instant {
        self.shared().clock.now()
    }

    // ----- where ---------------------------------------------------------------------------

    /// The same wheel with another executor: what is scheduled by the returned handle runs there.
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
    /// When a million such executors of one scheduler are alive.
    #[must_use]
    pub fn with_executor(&self, executor: impl Executor) -> Scheduler {
        let own = self.shared().own_executors.add(Box::new(executor), EXECUTORS, MOST_OVERDUE);
        let own = own.expect("fewer than a million executors: clone a handle to share one");
        Scheduler { service: Arc::clone(&self.service), own: Some(own) }
    }

    /// The pool that runs what this handle schedules, if it is one of ours.
    pub(crate) fn threads(&self) -> Option<PoolThreads> {
        self.own.as_ref().map_or(self.service.threads, |own| own.executor().threads())
    }

    // ----- the end -------------------------------------------------------------------------

    /// Stops the service, waits for the tick thread, and returns every task that has not started, wherever it is: also
    /// those that wait in an executor's queue. The page [`shutdown`](crate::shutdown) has a table of all cases.
    ///
    /// It wakes the tick thread at once. It also waits for the runs of series that are in progress, which are returned
    /// when their run has ended, but not for one-shots that run: see
    /// [`await_termination`](Scheduler::await_termination). It waits for [`Builder::shutdown_timeout`] at most. The
    /// second close returns no leftovers.
    ///
    /// A driven scheduler is closed here as well, unless another thread is just turning it.
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
    /// [`CloseError::Timeout`] when the tick thread, or the run of a series, is still busy; the stop stands, and a later
    /// close can collect. [`CloseError::OnTickThread`] when called there; nothing is closed then.
    pub fn close(&self) -> Result<Leftovers, CloseError> {
        let shared = self.shared();
        if shared.is_turned_here() {
            return Err(CloseError::OnTickThread);
        }
        self.begin_stop();
        let until = termination::after(shared.shutdown_timeout);
        let leftovers = shared.termination.wait(until).ok_or(CloseError::Timeout)?;
        Ok(Leftovers::new(Arc::clone(shared), leftovers))
    }

    /// Closes, and runs every task that has not started on the calling thread, a repeating task once. Returns how many
    /// runs were started.
    ///
    /// # Errors
    ///
    /// As [`close`](Scheduler::close).
    pub fn close_and_run(&self) -> Result<usize, CloseError> {
        Ok(self.close()?.run_all())
    }

    /// Stops the service without waiting; works everywhere, also inside a task. From now on nothing
    /// is accepted. The [`Stopping`] that it returns tells when the end has come, and gives what was pending.
    pub fn stop(&self) -> Stopping {
        self.begin_stop();
        Stopping::new(self.shared())
    }

    /// Waits until the scheduler has been closed and none of its tasks is in a run any more, but no longer than `timeout`.
    /// Returns true if that is so.
    ///
    /// A close does not wait for one-shots that run; this does. It closes nothing by itself: call it after
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
        let is_inside = shared.is_turned_here() || termination::is_in_a_run_of(shared.id());
        !is_inside && shared.termination.wait_for_runs(termination::after(timeout))
    }

    fn begin_stop(&self) {
        let shared = self.shared();
        shared.termination.want();
        shared.stop();
        if !shared.is_turned_here() {
            self.service.driven.upgrade().iter().for_each(|engine| engine.end());
        }
    }

    /// Whether it has been stopped, or is being stopped.
    pub fn is_closed(&self) -> bool {
        self.shared().is_closing()
    }

    // ----- sight ---------------------------------------------------------------------------

    /// How many tasks wait for their run, and series have not ended.
    pub fn pending(&self) -> usize {
        self.shared().pending()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler::new()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("pending", &self.pending())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
