//! What an executor is handed: a [`DueTask`], or a [`DueBatch`] of them.
//!
//! The engine owns one batch and fills it anew for each hand-over, so a hand-over neither allocates nor counts
//! references. The batch holds [`Entry`]s by value. A [`DueTask`] keeps its scheduler alive, and is made only for an
//! executor that takes single tasks out of the batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::backpressure::Backlog;
use crate::clock::tick::Moment;
use crate::executor::numbered::NumberedExecutor;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::wheel::Timed;
use crate::wheel::entry::Entry;

pub(crate) type Closure = Box<dyn FnOnce() + Send>;

/// The scheduler that a due task belongs to. The engine implements it, so this module does not depend on the engine.
pub(crate) trait TaskOwner: Send + Sync {
    /// Claims each of these tasks and runs it, unless it was cancelled. Never unwinds.
    fn run_all(&self, entries: &[Entry]);
    /// Claims the task and drops it, unless it was cancelled. Never unwinds.
    fn forfeit(&self, entry: Entry);
    /// Counts a task that the scheduler's executor has done, or dropped.
    fn count_done(&self);
    /// Returns the count of what the scheduler's executor was handed.
    fn backlog(&self) -> &Backlog;
    /// Has a task handed over again, which came back elsewhere.
    fn hand_over_again(&self, entry: Entry);
    /// Returns true if the task is still to run.
    fn is_pending(&self, entry: Entry) -> bool;
    /// Returns the name of the task's closure, or `None` if the task is not pending any more.
    fn name(&self, entry: Entry) -> Option<&'static str>;
    /// Returns the present, on the scheduler's clock; `None` if the clock panics.
    fn now(&self) -> Option<Instant>;
    /// Converts a moment of the scheduler's timeline.
    fn instant(&self, moment: Moment) -> Instant;
}

/// The scheduler of a due task, and the backlog of the executor that it was handed to.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(super) owner: Arc<dyn TaskOwner>,
    /// `None` for the scheduler's executor.
    own: Option<Arc<Backlog>>,
}

impl Origin {
    /// Runs a task, unless it was cancelled.
    pub(super) fn run(&self, entry: Entry) {
        self.owner.run_all(&[entry]);
        self.count_done();
    }

    fn count_done(&self) {
        match &self.own {
            None => self.owner.count_done(),
            Some(own) => own.count_done(1),
        }
    }
}

/// A task whose time has come, on its way to being run.
///
/// Until it runs it can still be cancelled. Then [`run`](DueTask::run) does nothing. A `DueTask` that is dropped
/// without having run counts as dropped, and its closure is dropped.
///
/// ```
/// use std::time::Instant;
/// use tickwheel::{DueTask, Executor, Inline};
///
/// // An executor can be fed without a scheduler:
/// let task = DueTask::new(Instant::now(), || println!("hello"));
/// assert!(!task.is_repeating());
/// Inline.execute(task).expect("inline takes everything");
/// ```
#[must_use = "a task that is dropped never runs: call `run`"]
pub struct DueTask(Inner);

enum Inner {
    Scheduled(Scheduled),
    Standalone {
        deadline: Instant,
        name: &'static str,
        /// The mutex is never locked. It makes a task, and so a [`Rejected`], `Sync`.
        task: Mutex<Closure>,
    },
    /// A layer around a task. The mutex is as above.
    Wrapped {
        task: Box<DueTask>,
        run: Mutex<Box<dyn FnOnce(DueTask) + Send>>,
    },
}

/// A task of a scheduler.
struct Scheduled {
    origin: Origin,
    entry: Entry,
    /// It was run, or given back to its owner.
    is_settled: bool,
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        // The executor has lost the task, so it is over: nobody else would run it.
        if !self.is_settled {
            self.origin.owner.forfeit(self.entry);
            self.origin.count_done();
        }
    }
}

impl DueTask {
    /// Makes a task that belongs to no scheduler, to feed an [`Executor`](crate::Executor) with.
    pub fn new(deadline: Instant, f: impl FnOnce() + Send + 'static) -> DueTask {
        let name = std::any::type_name_of_val(&f);
        DueTask(Inner::Standalone { deadline, name, task: Mutex::new(Box::new(f)) })
    }

    /// Puts a layer around the task: when it is to run, `run` is called with it. For an executor that passes tasks on to
    /// another one. If that one refuses the layer, the scheduler takes the layer off and gets its own task back, which a
    /// new task around this one would hide.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::{Duration, Instant};
    /// use tickwheel::{DueTask, Executor, Rejected, Scheduler};
    ///
    /// /// Tells how long each task ran.
    /// struct Timed<E>(E);
    ///
    /// impl<E: Executor> Executor for Timed<E> {
    ///     fn execute(&self, task: DueTask) -> Result<(), Rejected> {
    ///         self.0.execute(task.wrap(|task| {
    ///             let (name, start) = (task.name(), Instant::now());
    ///             task.run();
    ///             println!("{name}: {:?}", start.elapsed());
    ///         }))
    ///     }
    /// }
    ///
    /// let (queue, tasks) = mpsc::sync_channel(1);
    /// let (scheduler, driver) = Scheduler::builder().executor(Timed(queue)).build_driven()?;
    /// for _ in 0..2 {
    ///     scheduler.schedule_once(Duration::ZERO, || println!("hello"))?;
    /// }
    /// driver.turn();
    /// assert_eq!(scheduler.stats().rejected(), 1, "the queue has one place");
    /// tasks.recv()?.run();
    /// driver.advance(Duration::from_millis(1));
    /// tasks.recv()?.run();
    /// assert_eq!(scheduler.stats().fired(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wrap(self, run: impl FnOnce(DueTask) + Send + 'static) -> DueTask {
        DueTask(Inner::Wrapped { task: Box::new(self), run: Mutex::new(Box::new(run)) })
    }

    /// Runs the task here and now. Does nothing if it was cancelled in the meantime.
    ///
    /// A panic of the task is caught. If the task belongs to a scheduler, the panic is reported there.
    pub fn run(self) {
        match self.0 {
            Inner::Scheduled(mut task) => {
                task.is_settled = true;
                task.origin.run(task.entry); // its panic is caught there, and told to the hook
            }
            Inner::Standalone { task, .. } => {
                quietly(task.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
            Inner::Wrapped { task, run } => {
                let run = run.into_inner().unwrap_or_else(PoisonError::into_inner);
                quietly(|| run(*task));
            }
        }
    }

    /// Returns the task of a scheduler below all layers, or else the deadline and the name of one that belongs to none.
    fn innermost(&self) -> Result<&Scheduled, (Instant, &'static str)> {
        match &self.0 {
            Inner::Scheduled(task) => Ok(task),
            Inner::Standalone { deadline, name, .. } => Err((*deadline, name)),
            Inner::Wrapped { task, .. } => task.innermost(),
        }
    }

    /// Returns the instant at which the task was due.
    pub fn deadline(&self) -> Instant {
        let of_scheduled = |it: &Scheduled| it.origin.owner.instant(it.entry.moment());
        self.innermost().map_or_else(|(deadline, _)| deadline, of_scheduled)
    }

    /// Returns how long ago the task was due, on its scheduler's clock. Returns zero if that clock panics.
    pub fn lateness(&self) -> Duration {
        let now =
            self.innermost().map_or_else(|_| Some(Instant::now()), |it| it.origin.owner.now());
        now.map_or(Duration::ZERO, |now| now.saturating_duration_since(self.deadline()))
    }

    /// Returns true if this is one run of a series.
    pub fn is_repeating(&self) -> bool {
        self.innermost().is_ok_and(|task| task.entry.is_series())
    }

    /// Returns the type name of the task's closure, which tells where it was written. If the task has started or was
    /// cancelled in the meantime, returns `"a task that is over"`.
    ///
    /// ```
    /// use std::time::Instant;
    /// use tickwheel::DueTask;
    ///
    /// let task = DueTask::new(Instant::now(), || println!("hello"));
    /// assert!(task.name().ends_with("main::{{closure}}"), "{}", task.name());
    /// ```
    pub fn name(&self) -> &'static str {
        let of_scheduled = |it: &Scheduled| it.origin.owner.name(it.entry);
        let name = self.innermost().map_or_else(|(_, name)| Some(name), of_scheduled);
        name.unwrap_or("a task that is over")
    }
}

impl_debug!(DueTask, self,
    name: self.name(),
    deadline: self.deadline(),
    is_repeating: self.is_repeating()
);

/// A task that an executor has refused. It goes back to its scheduler, which hands it over again later. A task of
/// [`DueTask::new`] belongs to none: the scheduler that gets it schedules it like one of its own, for this executor.
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
#[derive(Debug, Error)]
#[error(
    "the executor refused the task: run it by `into_task().run()`, or hand it over again{}",
    if self.is_for_good() { " to another one: this one will never run anything again" } else { "" }
)]
#[must_use = "it holds the task, which is dropped with it: return it, or call `into_task`"]
pub struct Rejected {
    pub(super) task: DueTask,
    pub(super) refusal: Refusal,
}

/// For how long an executor refuses, and what becomes of the tasks that it has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    ForNow,
    ForGood,
    /// For good, but what was accepted before still runs.
    Finishing {
        goes_on_here: bool,
    },
}

impl Rejected {
    /// Refuses this task for now: the executor is asked again, after a pause that grows from a tick to 100 ms.
    pub fn new(task: DueTask) -> Rejected {
        Rejected { task, refusal: Refusal::ForNow }
    }

    /// Refuses this task and all that would follow: the executor will never run anything again. It is not asked any
    /// more, and its tasks stay pending until they are cancelled, or returned by a close. A
    /// [worker](crate::rx::Worker) over it disposes itself.
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
        Rejected { task, refusal: Refusal::ForGood }
    }

    /// Refuses this task and all that would follow, as [`for_good`](Rejected::for_good) does, but says that the executor
    /// still runs what it has accepted: it was stopped gracefully.
    ///
    /// `goes_on_here` says that the calling thread is one of the executor's own. Then work that it has begun may go on
    /// there, if it comes in parts. A [worker](crate::rx::Worker) hands itself over again after some of its tasks. With
    /// this answer it runs the rest of them in the same call, instead of cancelling them.
    ///
    /// ```
    /// use std::thread::{self, ThreadId};
    /// use tickwheel::{DueTask, Executor, Rejected};
    ///
    /// /// An event loop that was told to quit, and still runs what is in its queue.
    /// struct Quitting {
    ///     thread: ThreadId,
    /// }
    ///
    /// impl Executor for Quitting {
    ///     fn execute(&self, task: DueTask) -> Result<(), Rejected> {
    ///         Err(Rejected::finishing(task, thread::current().id() == self.thread))
    ///     }
    /// }
    ///
    /// let events = Quitting { thread: thread::current().id() };
    /// let refused = events.execute(DueTask::new(std::time::Instant::now(), || ())).unwrap_err();
    /// assert!(refused.is_for_good() && refused.is_finishing() && refused.goes_on_here());
    /// ```
    pub fn finishing(task: DueTask, goes_on_here: bool) -> Rejected {
        Rejected { task, refusal: Refusal::Finishing { goes_on_here } }
    }

    /// Returns true if the executor will never run anything again.
    pub fn is_for_good(&self) -> bool {
        self.refusal != Refusal::ForNow
    }

    /// Returns true if the executor takes nothing more, but runs what it has accepted: see
    /// [`finishing`](Rejected::finishing).
    pub fn is_finishing(&self) -> bool {
        matches!(self.refusal, Refusal::Finishing { .. })
    }

    /// Returns true if work that the executor has begun may go on, on the calling thread: see
    /// [`finishing`](Rejected::finishing).
    pub fn goes_on_here(&self) -> bool {
        self.refusal == Refusal::Finishing { goes_on_here: true }
    }

    /// Returns the task.
    pub fn into_task(self) -> DueTask {
        self.task
    }
}

/// How many tasks before its run a task's holder is loaded into the cache.
pub(crate) const AHEAD: usize = 16;

/// Tasks that are due, in order of their deadlines: an iterator over [`DueTask`]s, which leaves out those that have
/// been cancelled in the meantime.
///
/// See [`Executor::execute_batch`](crate::Executor::execute_batch).
pub struct DueBatch {
    origin: Origin,
    /// All entries that were put in, taken or not, in order.
    pub(crate) due: Vec<Entry>,
    /// How many of `due` have been taken out.
    taken: usize,
    /// How many of those are over already: they were run at once, by [`DueBatch::run_all`], or had been cancelled.
    pub(crate) over: usize,
    given_back: GivenBack,
}

/// What an executor has given back in a batch, or left there.
#[derive(Default)]
pub(crate) struct GivenBack {
    pub(crate) refused: Vec<Entry>,
    /// Names and closures of tasks that belong to no scheduler.
    pub(crate) of_none: Vec<(&'static str, Closure)>,
    /// It has refused for good.
    pub(crate) for_good: bool,
}

impl DueBatch {
    pub(crate) fn new(owner: Arc<dyn TaskOwner>) -> DueBatch {
        let (origin, given_back) = (Origin { owner, own: None }, GivenBack::default());
        DueBatch { origin, due: Vec::new(), taken: 0, over: 0, given_back }
    }

    /// Returns how many tasks are left in the batch, including cancelled ones.
    pub fn len(&self) -> usize {
        self.due.len() - self.taken
    }

    /// Returns true if all tasks have been taken out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all tasks that are left, in order, on the calling thread.
    pub fn run_all(&mut self) {
        // Without a `DueTask` for each, which would count a reference. And counted first: a run never unwinds to here.
        let first = std::mem::replace(&mut self.taken, self.due.len());
        let due = &self.due[first..];
        self.over += due.len();
        self.origin.owner.run_all(due);
    }

    /// Puts a task back that the executor has refused. It is handed over again later, without its
    /// [layers](DueTask::wrap). A task that belongs to no scheduler is scheduled here, for this executor, 100 ms from now.
    pub fn reject(&mut self, rejected: Rejected) {
        self.given_back.for_good |= rejected.is_for_good();
        let Rejected { task, refusal } = rejected;
        match task.0 {
            Inner::Scheduled(mut task) => {
                task.is_settled = true;
                // From the executor that has it, which need not be that of the batch.
                let Origin { owner, own } = &task.origin;
                own.as_deref().unwrap_or(owner.backlog()).take_back(1);
                // An executor that serves several schedulers may reject a task here that came in the batch of another one.
                if Arc::ptr_eq(owner, &self.origin.owner) {
                    self.given_back.refused.push(task.entry);
                } else {
                    owner.hand_over_again(task.entry);
                }
            }
            Inner::Standalone { name, task, .. } => {
                let task = task.into_inner().unwrap_or_else(PoisonError::into_inner);
                self.given_back.of_none.push((name, task));
            }
            Inner::Wrapped { task, run } => {
                quietly(|| drop(run)); // user code
                self.reject(Rejected { task: *task, refusal });
            }
        }
    }

    /// Moves all entries that are left into an empty list, and returns where they come from.
    pub(super) fn take_all(&mut self, into: &mut Vec<Entry>) -> Origin {
        into.extend_from_slice(&self.due[self.taken..]);
        self.taken = self.due.len();
        self.origin.clone()
    }

    /// Notes the executor that will get the batch.
    pub(crate) fn goes_to(&mut self, executor: &NumberedExecutor) {
        self.origin.own = (executor.number != 0).then(|| Arc::clone(&executor.backlog));
    }

    /// Empties the batch for the next hand-over.
    pub(crate) fn settle(&mut self) -> GivenBack {
        debug_assert!(self.over <= self.taken && self.taken <= self.due.len());
        // A task that the executor has left in the batch is refused for now: it may have been too busy, or have
        // panicked.
        let mut given_back = std::mem::take(&mut self.given_back);
        given_back.refused.extend(self.due.drain(self.taken..));
        self.due.clear();
        (self.taken, self.over, self.origin.own) = (0, 0, None);
        given_back
    }
}

impl Iterator for DueBatch {
    type Item = DueTask;

    fn next(&mut self) -> Option<DueTask> {
        loop {
            let entry = self.due.get(self.taken).copied()?;
            self.due.get(self.taken + AHEAD).inspect(|soon| soon.prefetch());
            self.taken += 1;
            // A hint that spares executors most of what was cancelled. The claim decides.
            if self.origin.owner.is_pending(entry) {
                let task = Scheduled { origin: self.origin.clone(), entry, is_settled: false };
                return Some(DueTask(Inner::Scheduled(task)));
            }
            self.over += 1;
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // All that are left may be cancelled by the time they are taken.
        (0, Some(self.len()))
    }
}

impl_debug!(DueBatch, self, len: self.len());
