//! One task of a layer that runs tasks itself: of a worker, a message loop or a pool.
//!
//! The job's [`Owner`] keeps it in a queue and calls [`Run::run`] when the job's turn has come. Whoever waits for the result
//! is told by the job's [`OwnerRef`].
//!
//! ```text
//!               claim                 end
//!   Waiting ------------> Running ------------> Done
//!    | | ^                 |   |                 ^
//!    | '-|-- withdraw, or take_back -------------'
//!    |   |                 |   |
//!    |   '--- next run ----'   | cancel of a series
//!    |       (a series)        v
//!    |                      LastRun ----- end ------.
//!    |                                              v
//!    '------------------- cancel ---------------> Cancelled
//! ```
//!
//! Nobody can cancel a one-shot that runs, so it stays `Running` after its end. That saves a turn of the lock.
//! `is_over` beside the stage says that it has ended.
//!
//! - JOB-1 The thread that takes a job out of `Waiting` owns its work, and runs or drops it. So a task starts once, and
//!   a task whose cancel wins never starts.
//! - User code runs, and is dropped, while nothing is locked. Its panics are caught and reported.
//! - JOB-3 A job stops being pending (S25) once: a one-shot with the step out of `Waiting`, a series with the step to
//!   `LastRun`, `Done` or `Cancelled`, whichever comes first.
//! - Whatever ends a job tells the result, after its closure was dropped: its last run, a withdrawal, or a cancel. A cancel of
//!   a series that runs tells it at once. So nobody waits for a result in vain.
//! - JOB-5 An owner queues a series again under the job's lock, together with the step to `Waiting`. So a later cancel
//!   or reset finds the job in the queue. The owner's lock is taken inside of the job's, never the other way round.
//! - JOB-6 A reset moves the job in its owner's queue, or notes the time of the next run of a series that runs, under the
//!   job's lock. So resets of one job are in one order, and the claim comes before a reset or after it. A job that its
//!   queue has given out, but that has not been claimed, counts as started. A loop's queue may still give out the job at
//!   its old time. Then [`Place::is_due`] files it again when the job is claimed.

mod layer;
mod position;
mod work;

use std::ops::{ControlFlow, Deref};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::backpressure::PendingLimit;
use crate::clock::timeline::after;
use crate::observe::trace;
use crate::platform::panics::{Payload, caught, discard};
use crate::platform::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::{Cancel, PanicHook};

pub(crate) use layer::{Given, Layer, Scheduled, Taken};
pub(crate) use position::{AtomicPosition, Position};
pub(crate) use work::{NamedOnce, Once, Plan, Series, Work, named};

/// The queue that a job belongs to: a worker's, a loop's, or a pool's.
pub(crate) trait Owner: Send + Sync {
    fn now(&self) -> Instant;

    /// Returns the hook that is told of panics.
    fn hook(&self) -> &PanicHook;

    /// Makes one run of a job with this name. `run` catches its panic, and returns true if there was one.
    fn make_run(&self, _name: &'static str, run: &mut dyn FnMut() -> bool) {
        run();
    }

    /// Returns how many jobs may be pending. A job leaves it once (JOB-3).
    fn limit(&self) -> &PendingLimit;

    /// Removes a job that has ended before its turn, now or later. The job may have left already.
    fn remove(&self, position: &AtomicPosition);

    /// Returns when a queued job is due. Called with the job's lock held, so it calls no user code.
    fn deadline(&self, position: &AtomicPosition) -> Option<Due>;

    /// Moves the deadline of a queued job (JOB-6). Called with the job's lock held, so it calls no user code. Returns true if it
    /// leaves something to [`has_moved`](Owner::has_moved), and `None` if the job is not in the queue any more, or if the
    /// owner has ended and would not run it then.
    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<bool>;

    /// Does what [`move_to`](Owner::move_to) has left to do, with nothing locked.
    fn has_moved(&self, _position: &AtomicPosition) {}

    /// Returns false if a series that runs now will not run again, because the owner has ended. Called with the job's
    /// lock held.
    fn repeats(&self) -> bool;
}

/// Implements the methods of an [`Owner`] that return what it has.
macro_rules! owner_has {
    ($this:ident, now: $now:expr, hook: $hook:expr, limit: $limit:expr) => {
        fn now(&$this) -> ::std::time::Instant {
            $now
        }
        fn hook(&$this) -> &$crate::PanicHook {
            &$hook
        }
        fn limit(&$this) -> &$crate::backpressure::PendingLimit {
            &$limit
        }
    };
}
pub(crate) use owner_has;

/// When a waiting job is due.
pub(crate) enum Due {
    /// It is due, and waits for its turn.
    Now,
    At(Instant),
}

/// What a call of [`Run::run`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// It did nothing: the job had ended before, or its deadline has moved, and its owner has queued it again.
    Not,
    /// The job has run, and does not run again.
    ForTheLastTime,
    /// The job has run, and its owner has queued it again, or is about to end it.
    Again,
}

/// When a series is due again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// When the run becomes possible, which is the later of its planned time and the end of the run before. By the planned
    /// time alone, a series whose runs take longer than its period would always come first, and nothing else would ever
    /// run. The phase goes by the plan.
    pub(crate) due: Instant,
    /// When the run before ended.
    pub(crate) ended: Instant,
}

/// The place in its owner's queue that a job has left to run. Both methods are called with the job's lock held (JOB-5),
/// so they call no user code.
pub(crate) trait Place {
    /// Returns false if the deadline of the job has moved to a later time. Then the job is in the queue again.
    fn is_due(&mut self) -> bool {
        true
    }

    /// Queues a series again. Returns false if the owner has ended, and then the series ends here. An owner that ends it by itself,
    /// when this has returned, says true.
    fn put_back(&mut self, next: Next) -> bool;
}

impl<F: FnMut(Next) -> bool> Place for F {
    fn put_back(&mut self, next: Next) -> bool {
        self(next)
    }
}

/// A job as its owner has it, without the type of its work.
pub(crate) trait Run<O: Owner + ?Sized>: Cancel {
    /// Runs the job, if it still waits.
    fn run(&self, owner: &O, place: &mut dyn Place) -> Ran;
    /// Ends the job without a run, if it still waits.
    fn withdraw(&self);
    /// Returns the name of its work (S31), if it waits. Takes the job's lock.
    fn name(&self) -> &'static str {
        "a task"
    }
    fn position(&self) -> &AtomicPosition;
    fn is_periodic(&self) -> bool {
        false
    }
}

/// How a job finds its owner, and tells its result: by a [`Weak`], if nobody waits for the result. With an `Arc` the owner must
/// break the reference cycle: it drops each job in the end.
pub(crate) trait OwnerRef<T>: Send + Sync + 'static {
    type Owner: Owner + ?Sized;

    /// Each run of a series has a root span of its own.
    const HAS_ROOT_SPANS: bool = false;

    fn get(&self) -> Option<impl Deref<Target = Self::Owner>>;

    /// The job has ended. A later result of the same job does not count.
    fn tell(&self, end: End<T>) {
        if let End::Panicked(payload) = end {
            discard(payload);
        }
    }
}

impl<O: Owner + ?Sized + 'static, T> OwnerRef<T> for Weak<O> {
    type Owner = O;

    fn get(&self) -> Option<impl Deref<Target = O>> {
        self.upgrade()
    }
}

/// How a job has ended.
pub(crate) enum End<T> {
    /// It has run, or a series has broken off.
    Value(T),
    /// It was cancelled or withdrawn.
    Cancelled,
    /// It has panicked, and the hook was told.
    Panicked(Payload),
}

pub(crate) struct Job<W, L> {
    pub(crate) owner: L,
    position: AtomicPosition,
    /// The job has ended, and not by a cancel before its time. So it is also set for a series that was cancelled during
    /// its run. The Release stores in `run` and `withdraw` come after all else and pair with the Acquire in `is_done`: a
    /// thread that finds it set sees what the task did.
    is_over: AtomicBool,
    stage: Mutex<Stage<W>>,
}

enum Stage<W> {
    /// The job waits for its turn, and owns its work (JOB-1).
    Waiting(W),
    /// The job runs. If a reset has moved the next run of a series in the meantime, this is the new time. It is in a box
    /// because a job is small, and few are reset while they run.
    Running(Option<Box<Instant>>),
    /// A series runs, and was cancelled in this run.
    LastRun,
    Done,
    Cancelled,
}

impl<W> Stage<W> {
    /// Leaves `Waiting` for `next`, and returns the work (JOB-1). In another stage nothing happens.
    fn leave_waiting(&mut self, next: Stage<W>) -> Option<W> {
        match std::mem::replace(self, next) {
            Stage::Waiting(work) => Some(work),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<W: Work, L: OwnerRef<W::Output>> Job<W, L> {
    pub(crate) fn new(owner: L, work: W) -> Arc<Self> {
        let (position, is_over) = (AtomicPosition::default(), AtomicBool::new(false));
        let stage = Mutex::new(Stage::Waiting(work));
        Arc::new(Job { owner, position, is_over, stage })
    }

    /// Takes the work back out of a job that its owner could not take in. Returns `None` if the job has left `Waiting`.
    pub(crate) fn take_back(&self) -> Option<W> {
        lock(&self.stage).leave_waiting(Stage::Done)
    }

    /// Runs the work once. Returns when that has ended if it runs again, and otherwise how the work has ended.
    fn run_once(owner: &L::Owner, work: &mut Option<W>) -> Result<Instant, End<W::Output>> {
        let (name, hook) = (work.as_ref().map_or("a task", W::name), owner.hook());
        let panicked = |payload: Payload| {
            hook.tell(name, &*payload);
            End::Panicked(payload)
        };
        let mut ran = Ok(ControlFlow::Continue(()));
        owner.make_run(name, &mut || {
            let mut run = || caught(|| W::run(work, hook));
            ran = if W::IS_PERIODIC && L::HAS_ROOT_SPANS {
                caught(|| trace::in_a_root_span(run)).unwrap_or_else(Err) // the subscriber is user code too
            } else {
                run()
            };
            ran.is_err()
        });
        if let ControlFlow::Break(value) = ran.map_err(panicked)? {
            return Err(End::Value(value));
        }
        caught(|| owner.now()).map_err(panicked)
    }

    /// Drops the work of a job that has left `Waiting` without a run.
    fn drop_unstarted(&self, work: W) {
        // An owner that is gone ends with all its jobs, so nobody needs to be told.
        let Some(owner) = self.owner.get() else { return work.discard(&PanicHook::default()) };
        owner.remove(&self.position); // first, or more would wait than the limit allows
        owner.limit().leave(); // JOB-3: it has left `Waiting`
        work.discard(owner.hook());
    }
}

impl<W: Work, L: OwnerRef<W::Output>> Run<L::Owner> for Job<W, L> {
    fn run(&self, owner: &L::Owner, place: &mut dyn Place) -> Ran {
        let mut stage = lock(&self.stage);
        if !matches!(*stage, Stage::Waiting(_)) || !place.is_due() {
            return Ran::Not; // JOB-6
        }
        let mut work = stage.leave_waiting(Stage::Running(None));
        drop(stage);
        if !W::IS_PERIODIC {
            owner.limit().leave(); // JOB-3: before the run
        }
        let ran = Self::run_once(owner, &mut work);
        if W::IS_PERIODIC {
            let mut stage = lock(&self.stage);
            let plan = work.as_mut().and_then(W::plan);
            if let (Stage::Running(moved), Ok(ended), Some(plan)) = (&mut *stage, &ran, plan) {
                let next = plan.next(*ended, moved.take());
                if place.put_back(next) {
                    *stage = work.take().map_or(Stage::Done, Stage::Waiting);
                    return Ran::Again;
                }
            }
            let is_cancelled = matches!(*stage, Stage::LastRun);
            *stage = if is_cancelled { Stage::Cancelled } else { Stage::Done };
            drop(stage);
            if !is_cancelled {
                owner.limit().leave(); // JOB-3: otherwise the cancel has said so
            }
        }
        work.into_iter().for_each(|rest| rest.discard(owner.hook()));
        self.is_over.store(true, Ordering::Release);
        self.owner.tell(ran.err().unwrap_or(End::Cancelled));
        Ran::ForTheLastTime
    }

    fn withdraw(&self) {
        let Some(work) = lock(&self.stage).leave_waiting(Stage::Done) else { return };
        self.drop_unstarted(work);
        self.is_over.store(true, Ordering::Release);
        self.owner.tell(End::Cancelled);
    }

    fn name(&self) -> &'static str {
        let stage = lock(&self.stage);
        if let Stage::Waiting(work) = &*stage { work.name() } else { "a task" }
    }

    fn position(&self) -> &AtomicPosition {
        &self.position
    }

    fn is_periodic(&self) -> bool {
        W::IS_PERIODIC
    }
}

impl<W: Work, L: OwnerRef<W::Output>> Cancel for Job<W, L> {
    fn cancel(&self) -> bool {
        // Both cases under one lock, or a series whose run ends in between would escape.
        let mut stage = lock(&self.stage);
        if W::IS_PERIODIC && matches!(*stage, Stage::Running(_)) {
            *stage = Stage::LastRun;
            drop(stage);
            self.owner.get().into_iter().for_each(|owner| owner.limit().leave()); // at once, JOB-3
        } else {
            let Some(work) = stage.leave_waiting(Stage::Cancelled) else { return false };
            drop(stage);
            self.drop_unstarted(work);
        }
        self.owner.tell(End::Cancelled);
        true
    }

    fn is_cancelled(&self) -> bool {
        matches!(*lock(&self.stage), Stage::LastRun | Stage::Cancelled)
    }

    fn is_done(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.is_cancelled()
    }

    fn reset(&self, delay: Duration) -> bool {
        self.owner.get().is_some_and(|owner| self.reset_at(after(owner.now(), delay)))
    }

    fn reset_at(&self, mut deadline: Instant) -> bool {
        let Some(owner) = self.owner.get() else { return false };
        if W::IS_PERIODIC {
            // A series that was due long ago would make up for all runs since then, at once.
            deadline = deadline.max(owner.now());
        }
        let mut stage = lock(&self.stage);
        let after = match &mut *stage {
            Stage::Waiting(work) => {
                let after = owner.move_to(&self.position, deadline);
                match (&after, work.plan()) {
                    (Some(_), Some(plan)) => plan.due = deadline,
                    // It is about to start, and the run after that one moves.
                    (None, Some(plan)) if owner.repeats() => {
                        plan.following = Some(deadline);
                        return true;
                    }
                    _ => {}
                }
                after
            }
            Stage::Running(moved) if W::IS_PERIODIC && owner.repeats() => {
                *moved = Some(Box::new(deadline));
                return true;
            }
            _ => None,
        };
        drop(stage);
        if after == Some(true) {
            owner.has_moved(&self.position);
        }
        after.is_some()
    }

    fn deadline(&self) -> Option<Instant> {
        let owner = self.owner.get()?;
        let stage = lock(&self.stage);
        let is_waiting = matches!(*stage, Stage::Waiting(_));
        let due = if is_waiting { owner.deadline(&self.position) } else { None };
        drop(stage); // the clock is a user's
        match due? {
            Due::Now => Some(owner.now()),
            Due::At(deadline) => Some(deadline),
        }
    }
}
