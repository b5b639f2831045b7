//! One task that is due.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::platform::panics::quietly;
use crate::time::tick::Moment;
use crate::wheel::entry::{Entry, SchedulerId};

/// The scheduler behind a task that is due. The core implements it; this file need not know it.
pub(crate) trait Host: Send + Sync {
    /// Claims the task and runs it, unless it was cancelled. Never unwinds.
    fn run(&self, entry: Entry);
    /// Claims the task and drops it, unless it was cancelled. Never unwinds.
    fn forfeit(&self, entry: Entry);
    /// It will be run soon.
    fn prefetch(&self, entry: Entry);
    /// Whether it is still to run.
    fn is_pending(&self, entry: Entry) -> bool;
    /// Whether it is one run of a series.
    fn is_repeating(&self, entry: Entry) -> bool;
    /// Returns the name of its closure, while it is still to run.
    fn name(&self, entry: Entry) -> Option<&'static str>;
    fn now(&self) -> Instant;
    fn instant(&self, moment: Moment) -> Instant;
    /// Tells hosts apart.
    fn id(&self) -> SchedulerId;
}

/// A task whose time has come, on its way to being run.
///
/// Until it runs it can still be cancelled; then [`run`](DueTask::run) does nothing. A `DueTask`
/// that is dropped without having run counts as dropped, and its closure is dropped.
///
/// ```
/// use std::time::Instant;
/// use tickwheel::{DueTask, Executor, Inline};
///
/// // What a scheduler does can be done by anybody:
/// let task = DueTask::new(Instant::now(), || println!("hello"));
/// assert!(!task.is_repeating());
/// Inline.execute(task).expect("inline takes everything");
/// ```
#[must_use = "a task that is dropped never runs: call `run`"]
pub struct DueTask(Inner);

enum Inner {
    Held {
        host: Arc<dyn Host>,
        entry: Entry,
    },
    Loose {
        deadline: Instant,
        name: &'static str,
        task: Box<dyn FnOnce() + Send>,
    },
    /// Run, or taken apart.
    Empty,
}

impl DueTask {
    /// A task that belongs to no scheduler, to feed an [`Executor`](crate::Executor) with.
    pub fn new(deadline: Instant, f: impl FnOnce() + Send + 'static) -> DueTask {
        let name = std::any::type_name_of_val(&f);
        DueTask(Inner::Loose { deadline, name, task: Box::new(f) })
    }

    pub(crate) fn held(host: Arc<dyn Host>, entry: Entry) -> DueTask {
        DueTask(Inner::Held { host, entry })
    }

    /// Runs the task here and now. Does nothing when it was cancelled meanwhile. A panic of the
    /// task is caught; a task of a scheduler reports it there.
    pub fn run(mut self) {
        match std::mem::replace(&mut self.0, Inner::Empty) {
            Inner::Held { host, entry } => host.run(entry),
            Inner::Loose { task, .. } => quietly(task),
            Inner::Empty => {}
        }
    }

    /// When it was due.
    pub fn deadline(&self) -> Instant {
        match &self.0 {
            Inner::Held { host, entry } => host.instant(entry.moment()),
            Inner::Loose { deadline, .. } => *deadline,
            Inner::Empty => Instant::now(),
        }
    }

    /// How long ago it was due, on its scheduler's clock.
    pub fn lateness(&self) -> Duration {
        let now = match &self.0 {
            Inner::Held { host, .. } => host.now(),
            Inner::Loose { .. } | Inner::Empty => Instant::now(),
        };
        now.saturating_duration_since(self.deadline())
    }

    /// Whether it is one run of a series.
    pub fn is_repeating(&self) -> bool {
        match &self.0 {
            Inner::Held { host, entry } => host.is_repeating(*entry),
            Inner::Loose { .. } | Inner::Empty => false,
        }
    }

    /// The type name of the task's closure, which tells where it was written. Of a task that has started or was
    /// cancelled in the meantime, it says only that.
    ///
    /// ```
    /// use std::time::Instant;
    /// use tickwheel::DueTask;
    ///
    /// let task = DueTask::new(Instant::now(), || println!("hello"));
    /// assert!(task.name().ends_with("main::{{closure}}"), "{}", task.name());
    /// ```
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Inner::Held { host, entry } => host.name(*entry).unwrap_or("a task that is over"),
            Inner::Loose { name, .. } => name,
            Inner::Empty => "a task that is over",
        }
    }

    /// The entry of a task of that host, or the task itself if it is another's.
    pub(crate) fn into_entry(mut self, owner: SchedulerId) -> Result<Entry, DueTask> {
        match &self.0 {
            Inner::Held { host, entry } if host.id() == owner => {
                let entry = *entry;
                self.0 = Inner::Empty;
                Ok(entry)
            }
            _ => Err(self),
        }
    }
}

impl Drop for DueTask {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.0, Inner::Empty) {
            Inner::Held { host, entry } => host.forfeit(entry),
            Inner::Loose { .. } | Inner::Empty => {}
        }
    }
}

impl fmt::Debug for DueTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueTask")
            .field("name", &self.name())
            .field("deadline", &self.deadline())
            .field("is_repeating", &self.is_repeating())
            .finish_non_exhaustive()
    }
}

/// A task that an executor would not take; it goes back to its scheduler, which hands it over
/// again later.
///
/// ```
/// use std::time::Instant;
/// use tickwheel::{DueTask, Executor, Rejected};
///
/// /// An executor that is full.
/// struct Full;
///
/// impl Executor for Full {
///     fn execute(&self, task: DueTask) -> Result<(), Rejected> {
///         Err(Rejected::new(task))
///     }
/// }
///
/// let rejected = Full.execute(DueTask::new(Instant::now(), || ())).unwrap_err();
/// rejected.into_task().run();
/// ```
#[derive(Debug)]
#[must_use = "it holds the task, which is dropped with it: return it, or call `into_task`"]
pub struct Rejected {
    task: DueTask,
    for_good: bool,
}

impl Rejected {
    /// Refuses this task for now: the executor is asked again, after a pause that grows from a tick to 100 ms.
    pub fn new(task: DueTask) -> Rejected {
        Rejected { task, for_good: false }
    }

    /// Refuses this task and all that would follow: the executor will never run anything again. It is not asked
    /// any more, and its tasks stay pending until they are cancelled, or returned by a close.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{DueTask, Executor, Rejected, Scheduler};
    ///
    /// /// An executor whose threads have ended.
    /// struct Gone;
    ///
    /// impl Executor for Gone {
    ///     fn execute(&self, task: DueTask) -> Result<(), Rejected> {
    ///         Err(Rejected::for_good(task))
    ///     }
    /// }
    ///
    /// let (scheduler, driver) = Scheduler::builder().executor(Gone).build_driven()?;
    /// let task = scheduler.schedule_once(Duration::from_millis(1), || ())?;
    /// driver.advance(Duration::from_secs(60));
    /// assert_eq!((scheduler.stats().rejected(), scheduler.pending()), (1, 1));
    /// assert!(task.cancel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_good(task: DueTask) -> Rejected {
        Rejected { task, for_good: true }
    }

    /// Whether the executor will never run anything again.
    pub fn is_for_good(&self) -> bool {
        self.for_good
    }

    /// The task.
    pub fn into_task(self) -> DueTask {
        self.task
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the executor refused the task: run it by `into_task().run()`, or hand it over again",
        )?;
        if self.for_good {
            f.write_str(" to another one: this one will never run anything again")?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejected {}
