//! One task of a pool: what runs, and what it came to.
//!
//! ```text
//!               claim                  finish
//!   Waiting ------------> Running ----------------> Done(result)
//!    |   ^                 |   |                      ^   ^
//!    |   '---- go on ------'   | cancel of a series   |   |
//!    |                         v                      |   |
//!    |                      Doomed ------ finish -----'   |
//!    '------------- cancel, withdraw ---------------------'
//! ```
//!
//! - J1 Whoever takes a job out of `Waiting` has its work, and runs or drops it. So a task has one end,
//!   and its closure is dropped once.
//! - J2 The future resolves with the step to `Done`, or to `Doomed`: a cancel is an end at once.
//! - J3 A job's key is noted under the queue's lock, before anybody else can take the job: at its first
//!   offer, before there is a handle; at the later ones of a series, under the job's own lock as well,
//!   and a handle that ends the job reads it when it has: then there are no more offers. The queue's lock is taken inside of the job's there, and never
//!   the other way round: what the queue does with an item under its own lock is to move it.
//! - J4 The user's code runs and is dropped with nothing locked, and its panics are caught.
//! - J5 A job frees its place (S25) once: a one-shot with the step out of `Waiting`, a series with the step to
//!   `Doomed` or `Done`, whichever comes first.
//! - J6 A series waits in the queue from the moment at which its next run became possible: the later of its
//!   planned time and the end of the run before. Ordered by the planned time alone, a series whose runs take
//!   longer than its period would always come first, and nothing else would ever run. The phase goes by the plan.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::future::{JoinError, Outcome, PanicPayload};
use super::key::KeyNote;
use super::queue::Offered;
use super::shared::Shared;
use crate::deadlock::Waiting;
use crate::{Cancel, Cancellable, DueTask, Period, Repeat};

/// What a job does when it runs.
pub(super) trait Work<T>: Sized + Send + 'static {
    const IS_PERIODIC: bool = false;

    /// Runs it, or what of it is to run now. `Break` is the end, with the result.
    fn run(work: &mut Option<Self>) -> ControlFlow<T>;

    /// When it is due again, after a run that has ended now.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

/// A closure that is called once.
pub(super) struct Once<F>(pub(super) F);

impl<T, F: FnOnce() -> T + Send + 'static> Work<T> for Once<F> {
    fn run(work: &mut Option<Self>) -> ControlFlow<T> {
        let Once(f) = work.take().expect("a job runs once");
        ControlFlow::Break(f())
    }
}

/// A task of a scheduler.
pub(super) struct Due(pub(super) DueTask);

impl Work<()> for Due {
    fn run(work: &mut Option<Self>) -> ControlFlow<()> {
        let Due(task) = work.take().expect("a job runs once");
        task.run();
        ControlFlow::Break(())
    }
}

/// A closure that is called until it breaks.
pub(super) struct Series<F> {
    pub(super) due: Instant,
    pub(super) period: Period,
    pub(super) f: F,
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work<()> for Series<F> {
    const IS_PERIODIC: bool = true;

    fn run(work: &mut Option<Self>) -> ControlFlow<()> {
        let series = work.as_mut().expect("a job that runs has its work");
        (series.f)().flow()
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        self.due = self.period.next_run(self.due, ended);
        self.due
    }
}

/// A job as the queue has it, without its types.
pub(super) trait Run: Send + Sync {
    /// Runs it, if it still waits, and sees to its next run.
    fn run(self: Arc<Self>);
    /// Runs it here and now, for the last time.
    fn run_for_the_last_time(&self);
    /// Ends it, unless it runs or has ended.
    fn withdraw(&self);
    fn is_periodic(&self) -> bool;
}

pub(super) struct Job<T, W> {
    shared: Arc<Shared>,
    /// Where it is in the queue, while it waits; J3.
    key: KeyNote,
    state: Mutex<State<T, W>>,
}

struct State<T, W> {
    stage: Stage<T, W>,
    waker: Option<Waker>,
}

enum Stage<T, W> {
    /// With its work; J1.
    Waiting(W),
    Running,
    /// Whether its future has been told.
    Doomed(bool),
    /// With its result, until its future has taken it.
    Done {
        result: Option<Result<T, JoinError>>,
        was_cancelled: bool,
    },
}

impl<T: Send + 'static, W: Work<T>> Job<T, W> {
    pub(super) fn new(shared: &Arc<Shared>, work: W) -> Arc<Self> {
        let state = State { stage: Stage::Waiting(work), waker: None };
        let (shared, key) = (Arc::clone(shared), KeyNote::new());
        Arc::new(Job { shared, key, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<T, W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it into the queue; J3. `None` when that is closed.
    pub(super) fn offer(self: &Arc<Self>, deadline: Instant) -> Option<Offered> {
        let this = Arc::<Self>::clone(self);
        self.shared.offer(deadline, this, |key| self.key.set(key))
    }

    /// Takes its work back, if it still waits; then it never was.
    pub(super) fn take_back(&self) -> Option<W> {
        let work = self.state().end_waiting(false)?;
        drop(self.shared.take_out(self.key.get()));
        self.shared.places.free(); // J5
        self.shared.leave();
        Some(work)
    }

    /// J1.
    fn claim(&self) -> Option<W> {
        let mut state = self.state();
        match std::mem::replace(&mut state.stage, Stage::Running) {
            Stage::Waiting(work) => {
                drop(state);
                if !W::IS_PERIODIC {
                    self.shared.places.free(); // J5
                }
                Some(work)
            }
            other => {
                state.stage = other;
                None
            }
        }
    }

    /// Sees to the next run of a series, if there is to be one.
    fn go_on(self: &Arc<Self>, mut work: W) {
        if !self.shared.may_run(W::IS_PERIODIC) {
            return self.finish(Some(work), Err(JoinError::Cancelled));
        }
        let ended = match catch_unwind(AssertUnwindSafe(|| self.shared.now())) {
            Ok(ended) => ended,
            Err(panic) => return self.finish(Some(work), Err(self.panicked(panic))),
        };
        let mut state = self.state();
        if matches!(state.stage, Stage::Doomed(_)) {
            drop(state);
            return self.finish(Some(work), Err(JoinError::Cancelled));
        }
        let possible = work.next_run(ended).max(ended); // J6
        state.stage = Stage::Waiting(work);
        let is_in = self.offer(possible).is_some();
        drop(state);
        // A shutdown may have looked through the queue meanwhile.
        if !is_in || !self.shared.may_run(W::IS_PERIODIC) {
            self.withdraw();
        }
    }

    /// The end of a job that has run.
    fn finish(&self, work: Option<W>, result: Result<T, JoinError>) {
        self.drop_work(work);
        let mut state = self.state();
        let (kept, unwanted, was_cancelled) = match state.stage {
            Stage::Doomed(is_told) => {
                ((!is_told).then_some(Err(JoinError::Cancelled)), Some(result), true)
            }
            _ => (Some(result), None, false),
        };
        state.stage = Stage::Done { result: kept, was_cancelled };
        let waker = state.waker.take();
        drop(state);
        if W::IS_PERIODIC && !was_cancelled {
            self.shared.places.free(); // J5
        }
        self.shared.quietly(|| drop(unwanted));
        self.shared.leave();
        self.wake(waker);
    }

    fn run_once(&self, work: &mut Option<W>) -> Option<Result<T, JoinError>> {
        match catch_unwind(AssertUnwindSafe(|| W::run(work))) {
            Ok(ControlFlow::Continue(())) => None,
            Ok(ControlFlow::Break(value)) => Some(Ok(value)),
            Err(panic) => Some(Err(self.panicked(panic))),
        }
    }

    fn panicked(&self, panic: Box<dyn Any + Send>) -> JoinError {
        self.shared.on_panic.tell(&*panic);
        JoinError::Panicked(PanicPayload::new(panic))
    }

    /// Ends it, if it waits (J1), or, by its handle, if it is a series that runs (J2). In one step: a
    /// series that begins to wait in between must not escape.
    fn end(&self, by_handle: bool) -> bool {
        let mut state = self.state();
        let work = match state.stage {
            Stage::Waiting(_) => state.end_waiting(by_handle),
            Stage::Running if by_handle && W::IS_PERIODIC => {
                state.stage = Stage::Doomed(false);
                None
            }
            _ => return false,
        };
        let waker = state.waker.take();
        drop(state);
        self.shared.places.free(); // J5
        if work.is_some() {
            drop(self.shared.take_out(self.key.get()));
            self.drop_work(work);
            self.shared.leave();
        }
        self.wake(waker);
        true
    }

    fn drop_work(&self, work: Option<W>) {
        self.shared.quietly(|| drop(work));
    }

    fn wake(&self, waker: Option<Waker>) {
        self.shared.quietly(|| waker.into_iter().for_each(Waker::wake));
    }
}

impl<T, W> State<T, W> {
    /// The step from `Waiting` to `Done`; J1.
    fn end_waiting(&mut self, was_cancelled: bool) -> Option<W> {
        if !matches!(self.stage, Stage::Waiting(_)) {
            return None;
        }
        let done = Stage::Done { result: Some(Err(JoinError::Cancelled)), was_cancelled };
        let Stage::Waiting(work) = std::mem::replace(&mut self.stage, done) else { return None };
        Some(work)
    }

    /// What the future is told, once.
    fn take_result(&mut self) -> Option<Result<T, JoinError>> {
        match &mut self.stage {
            Stage::Waiting(_) | Stage::Running => None,
            Stage::Doomed(is_told) => {
                (!std::mem::replace(is_told, true)).then_some(Err(JoinError::Cancelled))
            }
            Stage::Done { result, .. } => result.take(),
        }
    }
}

impl<T: Send + 'static, W: Work<T>> Run for Job<T, W> {
    fn run(self: Arc<Self>) {
        let Some(work) = self.claim() else { return };
        let mut work = Some(work);
        match (self.run_once(&mut work), work.take()) {
            (None, Some(work)) => self.go_on(work),
            (result, work) => self.finish(work, result.unwrap_or(Err(JoinError::Cancelled))),
        }
        // What it was for may be dropped with it: a result that nobody has taken.
        // And until that is gone its place stays taken: this thread is at work on that address.
        let shared = Arc::clone(&self.shared);
        shared.quietly(|| drop(self));
    }

    fn run_for_the_last_time(&self) {
        let Some(work) = self.claim() else { return };
        let mut work = Some(work);
        let result = self.run_once(&mut work);
        self.finish(work, result.unwrap_or(Err(JoinError::Cancelled)));
    }

    fn withdraw(&self) {
        self.end(false);
    }

    fn is_periodic(&self) -> bool {
        W::IS_PERIODIC
    }
}

impl<T: Send + 'static, W: Work<T>> Cancel for Job<T, W> {
    fn cancel(&self) -> bool {
        self.end(true)
    }

    fn is_cancelled(&self) -> bool {
        let stage = &self.state().stage;
        matches!(stage, Stage::Doomed(_) | Stage::Done { was_cancelled: true, .. })
    }

    fn is_done(&self) -> bool {
        matches!(self.state().stage, Stage::Doomed(_) | Stage::Done { .. })
    }
}

impl<T: Send + 'static, W: Work<T>> Outcome<T> for Job<T, W> {
    fn take(&self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let waker = waker.clone(); // a user's code, so before the lock (J4)
        let mut state = self.state();
        let result = state.take_result();
        let unused = if result.is_none() { state.waker.replace(waker) } else { Some(waker) };
        drop(state);
        drop(unused);
        result
    }

    fn cancel(&self) -> bool {
        Cancel::cancel(self)
    }

    fn is_done(&self) -> bool {
        Cancel::is_done(self)
    }

    fn is_periodic(&self) -> bool {
        Run::is_periodic(self)
    }

    fn deadline(&self) -> Option<Instant> {
        let state = self.state(); // so that the key is of its last offer
        let is_waiting = matches!(state.stage, Stage::Waiting(_));
        is_waiting.then(|| self.shared.deadline_of(self.key.get())).flatten()
    }

    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        Cancellable::from(self)
    }

    fn begin_wait(&self) -> Result<Waiting, JoinError> {
        self.shared.begin_wait(std::ptr::from_ref(self).addr())
    }
}
