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

type Closure = Box<dyn FnOnce() + Send>;
type Layer = Box<dyn FnOnce(DueTask) + Send>;

/// The scheduler that a due task belongs to. The engine implements it, so this module does not depend on the engine.
pub(crate) trait TaskOwner: Send + Sync {
    /// Claims each of these tasks and runs it, unless it was cancelled. Never unwinds.
    fn run_all(&self, entries: &[Entry]);
    /// Claims the task and drops it, unless it was cancelled. Never unwinds.
    fn forfeit(&self, entry: Entry);
    /// Counts a task that the scheduler's executor has done, or dropped.
    fn count_done(&self);
    /// Counts a task that the scheduler's executor has refused.
    fn count_refused(&self);
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
    owner: Arc<dyn TaskOwner>,
    /// `None` for the scheduler's executor.
    own: Option<Arc<Backlog>>,
}

impl Origin {
    /// Runs a task, unless it was cancelled.
    #[inline]
    pub(super) fn run(&self, entry: Entry) {
        self.owner.run_all(&[entry]);
        self.count_done();
    }

    fn forfeit(&self, entry: Entry) {
        self.owner.forfeit(entry);
        self.count_done();
    }

    #[inline]
    fn count_done(&self) {
        match &self.own {
            None => self.owner.count_done(),
            Some(own) => own.count_done(1),
        }
    }

    fn count_refused(&self) {
        match &self.own {
            None => self.owner.count_refused(),
            Some(own) => own.take_back(1),
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
    Scheduled {
        origin: Origin,
        entry: Entry,
    },
    Standalone {
        deadline: Instant,
        name: &'static str,
        /// The mutex is never locked. It makes a task, and so a [`Rejected`], `Sync`.
        task: Mutex<Closure>,
    },
    /// A layer around a task. The mutex is as above.
    Wrapped {
        task: Box<DueTask>,
        run: Mutex<Layer>,
    },
    /// It was run, or given back to its owner.
    Empty,
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

    pub(super) fn scheduled(origin: Origin, entry: Entry) -> DueTask {
        DueTask(Inner::Scheduled { origin, entry })
    }

    /// Runs the task here and now. Does nothing if it was cancelled in the meantime.
    ///
    /// A panic of the task is caught. If the task belongs to a scheduler, the panic is reported there.
    pub fn run(mut self) {
        match std::mem::replace(&mut self.0, Inner::Empty) {
            // Its panic is caught there, and told to the hook.
            Inner::Scheduled { origin, entry } => origin.run(entry),
            Inner::Standalone { task, .. } => {
                quietly(task.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
            Inner::Wrapped { task, run } => {
                let run = run.into_inner().unwrap_or_else(PoisonError::into_inner);
                quietly(|| run(*task));
            }
            Inner::Empty => {}
        }
    }

    /// Returns the instant at which the task was due.
    pub fn deadline(&self) -> Instant {
        match &self.0 {
            Inner::Scheduled { origin, entry } => origin.owner.instant(entry.moment()),
            Inner::Standalone { deadline, .. } => *deadline,
            Inner::Wrapped { task, .. } => task.deadline(),
            Inner::Empty => Instant::now(),
        }
    }

    /// Returns how long ago the task was due, on its scheduler's clock. Returns zero if that clock panics.
    pub fn lateness(&self) -> Duration {
        let now = match &self.0 {
            Inner::Scheduled { origin, .. } => origin.owner.now(),
            Inner::Wrapped { task, .. } => return task.lateness(),
            Inner::Standalone { .. } | Inner::Empty => Some(Instant::now()),
        };
        now.map_or(Duration::ZERO, |now| now.saturating_duration_since(self.deadline()))
    }

    /// Returns true if this is one run of a series.
    pub fn is_repeating(&self) -> bool {
        match &self.0 {
            Inner::Scheduled { entry, .. } => entry.is_series(),
            Inner::Wrapped { task, .. } => task.is_repeating(),
            Inner::Standalone { .. } | Inner::Empty => false,
        }
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
        match &self.0 {
            Inner::Scheduled { origin, entry } => {
                origin.owner.name(*entry).unwrap_or("a task that is over")
            }
            Inner::Standalone { name, .. } => name,
            Inner::Wrapped { task, .. } => task.name(),
            Inner::Empty => "a task that is over",
        }
    }

    /// Gives a task back to its scheduler, which hands it over again. Returns the name and the closure of one that belongs
    /// to none.
    pub(crate) fn go_home(mut self) -> Option<(&'static str, Closure)> {
        match std::mem::replace(&mut self.0, Inner::Empty) {
            Inner::Scheduled { origin, entry } => {
                origin.count_refused();
                origin.owner.hand_over_again(entry);
                None
            }
            Inner::Standalone { name, task, .. } => {
                Some((name, task.into_inner().unwrap_or_else(PoisonError::into_inner)))
            }
            Inner::Wrapped { .. } | Inner::Empty => None, // a batch has taken its layers off
        }
    }

    /// Takes all layers off.
    fn unwrapped(mut self) -> DueTask {
        while let Inner::Wrapped { task, run } = &mut self.0 {
            let layer = std::mem::replace(run, Mutex::new(Box::new(drop)));
            let inner = std::mem::replace(&mut task.0, Inner::Empty);
            self.0 = inner;
            quietly(|| drop(layer)); // user code
        }
        self
    }

    /// Returns the entry of a task of this owner, or the task itself if it belongs to another one.
    fn into_entry(mut self, owner: &Arc<dyn TaskOwner>) -> Result<Entry, DueTask> {
        match self.0 {
            // By reference and then emptied, because a drop would forfeit the task.
            Inner::Scheduled { ref origin, entry } if Arc::ptr_eq(&origin.owner, owner) => {
                origin.count_refused(); // by the executor that has it, which need not be that of the batch
                self.0 = Inner::Empty;
                Ok(entry)
            }
            _ => Err(self),
        }
    }
}

impl Drop for DueTask {
    fn drop(&mut self) {
        // The executor has lost the task, so it is over: nobody else would run it.
        if let Inner::Scheduled { origin, entry } = &self.0 {
            origin.forfeit(*entry);
        }
    }
}

impl_debug!(DueTask, self,
    name: self.name(),
    deadline: self.deadline(),
    is_repeating: self.is_repeating()
);

/// A task that an executor has refused. It goes back to its scheduler, which hands it over again later.
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
    task: DueTask,
    refusal: Refusal,
}

/// For how long an executor refuses, and what becomes of the tasks that it has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
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
    over: usize,
    /// What the executor gave back.
    refused: Vec<Entry>,
    /// Tasks of other schedulers, or of none, that the executor gave back here.
    of_others: Vec<DueTask>,
    /// It has refused for good.
    for_good: bool,
}

/// What an executor has not taken of a batch.
#[derive(Default)]
pub(crate) struct Settled {
    /// What it has refused or left.
    pub(crate) refused: Vec<Entry>,
    pub(crate) of_others: Vec<DueTask>,
    pub(crate) for_good: bool,
}

impl DueBatch {
    pub(crate) fn new(owner: Arc<dyn TaskOwner>) -> DueBatch {
        let (due, refused, of_others) = (Vec::new(), Vec::new(), Vec::new());
        let origin = Origin { owner, own: None };
        DueBatch { origin, due, taken: 0, over: 0, refused, of_others, for_good: false }
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
        self.for_good |= rejected.is_for_good();
        // An executor that serves several schedulers may reject a task here that came in the batch of another one.
        match rejected.into_task().unwrapped().into_entry(&self.origin.owner) {
            Ok(due) => self.refused.push(due),
            Err(other) => self.of_others.push(other),
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

    /// Returns how many of the tasks that were taken out are over already.
    pub(crate) fn over(&self) -> usize {
        self.over
    }

    /// Empties the batch for the next hand-over.
    pub(crate) fn settle(&mut self) -> Settled {
        debug_assert!(self.over <= self.taken && self.taken <= self.due.len());
        // A task that the executor has left in the batch is refused for now: it may have been too busy, or have
        // panicked.
        let mut refused = std::mem::take(&mut self.refused);
        refused.extend(self.due.drain(self.taken..));
        self.due.clear();
        (self.taken, self.over, self.origin.own) = (0, 0, None);
        let (of_others, for_good) =
            (std::mem::take(&mut self.of_others), std::mem::take(&mut self.for_good));
        Settled { refused, of_others, for_good }
    }
}

impl Iterator for DueBatch {
    type Item = DueTask;

    fn next(&mut self) -> Option<DueTask> {
        loop {
            let due = self.due.get(self.taken).copied()?;
            self.due.get(self.taken + AHEAD).inspect(|soon| soon.prefetch());
            self.taken += 1;
            // A hint that spares executors most of what was cancelled. The claim decides.
            if self.origin.owner.is_pending(due) {
                return Some(DueTask::scheduled(self.origin.clone(), due));
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
