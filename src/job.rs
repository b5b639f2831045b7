//! One task of a layer that runs tasks itself: of a worker, of a message loop, of a pool.
//!
//! What it belongs to, its [`Owner`], keeps it where it waits, and calls [`Run::run`] when its turn has come. A pool,
//! whose tasks have results, calls [`Job::run_by`].
//!
//! ```text
//!               claim                 end
//!   Waiting ------------> Running ------------> Done
//!    | | ^                 |   |                 ^
//!    | '-|-- withdraw, or take_back -------------'
//!    |   |                 |   |
//!    |   '---- go on ------'   | cancel of a series
//!    |       (a series)        v
//!    |                      Doomed ------ end ------.
//!    |                                              v
//!    '------------------- cancel ---------------> Cancelled
//! ```
//!
//! A one-shot, which nobody can doom, stays `Running` when it is done, and saves a turn of the lock: what
//! tells of an end is `is_over`, beside the stage.
//!
//! - JOB-1 Whoever takes a job out of `Waiting` has its work, and runs or drops it. So a task starts once,
//!   and a cancel that wins means that it does not start.
//! - JOB-2 User code runs, and is dropped, with nothing locked; its panics are caught and reported.
//! - JOB-3 A job frees its place (S25) once: a one-shot with the step out of `Waiting`, a series with the step
//!   to `Doomed`, `Done` or `Cancelled`, whichever comes first.
//! - JOB-4 A job tells its owner once that it has ended, when its closure is gone.
//! - JOB-5 An owner may put a series back under the job's lock, together with the step to `Waiting`. Then a cancel that
//!   comes after finds the job in its place. The owner's lock is taken inside of the job's, never the other way round.

use std::any::type_name;
use std::ops::{ControlFlow, Deref};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::platform::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::{Cancel, PanicHook, Period, Repeat, Task};

/// The places for the tasks of a layer: how many may be pending (S25).
///
/// Without a limit nothing is counted. Relaxed: the count is exact by itself, and publishes nothing.
#[derive(Debug)]
pub(crate) struct PendingLimit {
    limit: Option<usize>,
    pending: AtomicUsize,
}

impl PendingLimit {
    pub(crate) fn new(limit: Option<usize>) -> PendingLimit {
        PendingLimit { limit, pending: AtomicUsize::new(0) }
    }

    /// Takes a place; false if there is none.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let Some(limit) = self.limit else { return true };
        let next = |pending: usize| (pending < limit).then(|| pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Takes a place beyond the limit, for a task that nobody could take back.
    pub(crate) fn enter_anyway(&self) {
        if self.limit.is_some() {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn leave(&self) {
        if self.limit.is_some() {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What a job belongs to.
pub(crate) trait Owner: Send + Sync {
    /// Where a job is in it. A job keeps one for life.
    type Position: Default + Send + Sync + 'static;

    fn now(&self) -> Instant;

    /// Who is told of panics.
    fn hook(&self) -> &PanicHook;

    /// A job does not need its place any more; JOB-3.
    fn no_longer_pending(&self) {}

    /// A job has ended before its time: it lets it go, if it has it.
    fn remove(&self, position: &Self::Position);

    /// A job has ended, one way or the other; JOB-4.
    fn has_ended(&self) {}
}

/// The name of a job in reports of panics (S31).
pub(crate) trait Named: Send + 'static {
    fn name(&self) -> &'static str;
}

/// What a job does when it runs.
pub(crate) trait Work: Named + Sized {
    const IS_PERIODIC: bool = false;

    /// Runs it, or what of it is to run now. `Break` is the end.
    fn run(work: &mut Option<Self>, hook: &PanicHook) -> ControlFlow<()>;

    /// When it is due again, after a run that has ended now.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

/// A closure that is called once.
pub(crate) struct Once<F>(pub(crate) F);

impl<F: Send + 'static> Named for Once<F> {
    fn name(&self) -> &'static str {
        type_name::<F>()
    }
}

impl<F: FnOnce() + Send + 'static> Work for Once<F> {
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Once(f)) = work.take() {
            f();
        }
        ControlFlow::Break(())
    }
}

/// A box that is called once, and has lost the type of its closure, but not the name.
pub(crate) struct NamedOnce {
    pub(crate) name: &'static str,
    pub(crate) task: Task,
}

impl Named for NamedOnce {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl Work for NamedOnce {
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        work.take().into_iter().for_each(|named| (named.task)());
        ControlFlow::Break(())
    }
}

/// A closure that is called until it breaks.
pub(crate) struct Series<F> {
    pub(crate) name: &'static str,
    pub(crate) due: Instant,
    pub(crate) period: Period,
    pub(crate) f: F,
}

impl<F: Send + 'static> Named for Series<F> {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work for Series<F> {
    const IS_PERIODIC: bool = true;

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        work.as_mut().map_or(ControlFlow::Break(()), |series| (series.f)().flow())
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        self.due = self.period.next_run(self.due, ended);
        self.due
    }
}

/// What has become of a job that was to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// Nothing: it had ended before.
    Not,
    /// It has run for the last time.
    ForTheLastTime,
    /// It has run, and is due again.
    Again(Instant),
}

/// A job as its owner has it, without its work.
pub(crate) trait Run<O: Owner + ?Sized>: Cancel {
    /// Runs it, if it still waits.
    fn run(&self, owner: &O) -> Ran;
    /// Drops it: its time will not come.
    fn withdraw(&self);
    fn position(&self) -> &O::Position;
}

/// How a job finds its owner: by a [`Weak`], or by an `Arc`, for which the owner must see to it that no circle stays.
pub(crate) trait OwnerRef<O: ?Sized>: Send + Sync + 'static {
    fn get(&self) -> Option<impl Deref<Target = O>>;
}

impl<O: Owner + ?Sized + 'static> OwnerRef<O> for Weak<O> {
    fn get(&self) -> Option<impl Deref<Target = O>> {
        self.upgrade()
    }
}

impl<O: Owner + ?Sized + 'static> OwnerRef<O> for Arc<O> {
    fn get(&self) -> Option<impl Deref<Target = O>> {
        Some(&**self)
    }
}

pub(crate) struct Job<W, O: Owner + ?Sized, L = Weak<O>> {
    owner: L,
    position: O::Position,
    is_periodic: bool,
    /// It has ended, and not by a cancel before its time. It is Released after all else, and `is_done`
    /// Acquires it: who finds it set sees what the task has done.
    is_over: AtomicBool,
    stage: Mutex<Stage<W>>,
}

enum Stage<W> {
    /// With its work; JOB-1.
    Waiting(W),
    Running,
    Doomed,
    Done,
    Cancelled,
}

impl<W> Stage<W> {
    /// JOB-1.
    fn leave_waiting(&mut self, next: Stage<W>) -> Option<W> {
        if !matches!(self, Stage::Waiting(_)) {
            return None;
        }
        match std::mem::replace(self, next) {
            Stage::Waiting(work) => Some(work),
            _ => None,
        }
    }
}

impl<W: Work, O: Owner + ?Sized + 'static> Job<W, O> {
    pub(crate) fn new(owner: Weak<O>, work: W) -> Arc<Self> {
        Arc::new(Job::with(owner, work, W::IS_PERIODIC))
    }
}

impl<W: Named, O: Owner + ?Sized + 'static, L: OwnerRef<O>> Job<W, O, L> {
    /// One that may be a part of something greater, which knows how to run its work.
    pub(crate) fn with(owner: L, work: W, is_periodic: bool) -> Self {
        let (position, is_over) = (O::Position::default(), AtomicBool::new(false));
        Job { owner, position, is_periodic, is_over, stage: Mutex::new(Stage::Waiting(work)) }
    }

    pub(crate) fn owner_ref(&self) -> &L {
        &self.owner
    }

    pub(crate) fn position(&self) -> &O::Position {
        &self.position
    }

    /// Looks at its place, if it waits; JOB-5.
    pub(crate) fn while_waiting<R>(&self, look: impl FnOnce(&O::Position) -> R) -> Option<R> {
        let stage = lock(&self.stage);
        matches!(*stage, Stage::Waiting(_)).then(|| look(&self.position))
    }

    /// Takes the work back of a job that nobody has taken in, and that has no place.
    pub(crate) fn take_back(&self) -> Option<W> {
        lock(&self.stage).leave_waiting(Stage::Done)
    }

    /// Runs it, if it still waits: `run` does so, catches panics, and says when the work is due again. If it is,
    /// `put_back` is called with the job's lock held; JOB-5.
    pub(crate) fn run_with(
        &self,
        owner: &O,
        run: impl FnOnce(&mut Option<W>) -> Option<Instant>,
        put_back: impl FnOnce(Instant),
    ) -> Ran {
        let Some(work) = lock(&self.stage).leave_waiting(Stage::Running) else { return Ran::Not };
        if !self.is_periodic {
            owner.no_longer_pending(); // JOB-3
        }
        let mut work = Some(work);
        let due = run(&mut work);
        let rest = match (work, due) {
            (Some(work), Some(due)) => match self.go_on(work, || put_back(due)) {
                Ok(()) => return Ran::Again(due),
                Err(doomed) => Some(doomed),
            },
            (rest, _) => rest,
        };
        self.has_run(owner);
        if let Some(rest) = rest {
            owner.hook().catch_named(rest.name(), || drop(rest));
        }
        self.is_over.store(true, Ordering::Release);
        owner.has_ended(); // JOB-4
        Ran::ForTheLastTime
    }

    /// Waits for its next run, unless it was cancelled in this one; then its work comes back.
    fn go_on(&self, work: W, put_back: impl FnOnce()) -> Result<(), W> {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Doomed) {
            return Err(work);
        }
        *stage = Stage::Waiting(work);
        put_back();
        Ok(())
    }

    /// Ends it, if it waits: its time will not come. False if it does not.
    pub(crate) fn withdraw(&self) -> bool {
        let Some(work) = lock(&self.stage).leave_waiting(Stage::Done) else { return false };
        self.drop_unstarted(work);
        self.is_over.store(true, Ordering::Release);
        true
    }

    /// It has run for the last time: from now on no cancel wins.
    fn has_run(&self, owner: &O) {
        if self.is_periodic {
            let mut stage = lock(&self.stage);
            let was_doomed = matches!(*stage, Stage::Doomed);
            *stage = if was_doomed { Stage::Cancelled } else { Stage::Done };
            drop(stage);
            if !was_doomed {
                owner.no_longer_pending(); // JOB-3
            }
        }
    }

    /// The work of a job that has left `Waiting` before its time.
    fn drop_unstarted(&self, work: W) {
        match self.owner.get() {
            Some(owner) => {
                owner.no_longer_pending(); // JOB-3
                owner.remove(&self.position);
                owner.hook().catch_named(work.name(), || drop(work));
                owner.has_ended(); // JOB-4
            }
            // Its owner ends, and all jobs in it.
            None => _ = PanicHook::default().catch_named(work.name(), || drop(work)),
        }
    }
}

impl<W: Work, O: Owner + ?Sized + 'static> Run<O> for Job<W, O> {
    fn run(&self, owner: &O) -> Ran {
        let hook = owner.hook();
        let run = |work: &mut Option<W>| {
            let name = work.as_ref()?.name();
            match hook.catch_named(name, || W::run(work, hook))? {
                ControlFlow::Continue(()) => {
                    let work = work.as_mut()?;
                    hook.catch(|| work.next_run(owner.now()))
                }
                ControlFlow::Break(()) => None,
            }
        };
        self.run_with(owner, run, |_| ())
    }

    fn withdraw(&self) {
        Job::withdraw(self);
    }

    fn position(&self) -> &O::Position {
        &self.position
    }
}

impl<W: Named, O: Owner + ?Sized + 'static, L: OwnerRef<O>> Cancel for Job<W, O, L> {
    fn cancel(&self) -> bool {
        // In one step: a series that goes on in between must not escape.
        let mut stage = lock(&self.stage);
        if self.is_periodic && matches!(*stage, Stage::Running) {
            *stage = Stage::Doomed;
            drop(stage);
            self.owner.get().into_iter().for_each(|owner| owner.no_longer_pending()); // JOB-3
            return true;
        }
        let Some(work) = stage.leave_waiting(Stage::Cancelled) else { return false };
        drop(stage);
        self.drop_unstarted(work);
        true
    }

    fn is_cancelled(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Doomed | Stage::Cancelled)
    }

    fn is_done(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.is_cancelled()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn s25_a_place_is_taken_once_and_a_task_that_must_may_go_beyond() {
        let limit = PendingLimit::new(Some(2));
        assert_eq!([limit.enter(), limit.enter(), limit.enter()], [true, true, false]);
        limit.leave();
        assert!(limit.enter());
        limit.enter_anyway();
        limit.leave();
        assert!(!limit.enter(), "there are still two");
        limit.leave();
        assert!(limit.enter() && !limit.enter());
        assert!(!PendingLimit::new(Some(0)).enter());
        let unbounded = PendingLimit::new(None);
        assert!((0..100).all(|_| unbounded.enter()));
        assert_eq!(unbounded.pending.load(Ordering::Relaxed), 0, "nobody counts");
    }
}
