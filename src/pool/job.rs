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
//! - J3 A job is offered to the queue under its lock, so its key is noted before anybody can claim or
//!   cancel it. The queue's lock is taken inside of the job's here, and never the other way round: what
//!   the queue does with an item under its own lock is to move it.
//! - J4 The user's code runs and is dropped with nothing locked, and its panics are caught.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::crew::Waiting;
use super::future::{JoinError, Outcome, PanicPayload};
use super::heap::Key;
use super::shared::Shared;
use crate::{Cancel, Cancellable, DueTask, Period, Repeat};

/// What a job does when it runs.
pub(super) trait Work<T>: Sized + Send + 'static {
    /// Runs it, or what of it is to run now. `Break` is the end, with the result.
    fn run(work: &mut Option<Self>) -> ControlFlow<T>;
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
pub(super) struct Series<F>(pub(super) F);

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work<()> for Series<F> {
    fn run(work: &mut Option<Self>) -> ControlFlow<()> {
        let Series(f) = work.as_mut().expect("a job that runs has its work");
        f().flow()
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
    fn deadline(&self) -> Instant;
}

pub(super) struct Job<T, W> {
    shared: Arc<Shared>,
    period: Option<Period>,
    state: Mutex<State<T, W>>,
}

struct State<T, W> {
    phase: Phase,
    /// There in `Waiting`; J1.
    work: Option<W>,
    deadline: Instant,
    /// Where it is in the queue; J3.
    key: Option<Key>,
    was_cancelled: bool,
    result: Option<Result<T, JoinError>>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Doomed,
    Done,
}

impl<T: Send + 'static, W: Work<T>> Job<T, W> {
    pub(super) fn new(
        shared: &Arc<Shared>,
        deadline: Instant,
        period: Option<Period>,
        work: W,
    ) -> Arc<Self> {
        let state = State {
            phase: Phase::Waiting,
            work: Some(work),
            deadline,
            key: None,
            was_cancelled: false,
            result: None,
            waker: None,
        };
        Arc::new(Job { shared: Arc::clone(shared), period, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<T, W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it into the queue; J3. False when that is closed.
    pub(super) fn offer(self: &Arc<Self>) -> bool {
        self.offer_locked(&mut self.state())
    }

    fn offer_locked(self: &Arc<Self>, state: &mut State<T, W>) -> bool {
        state.key = self.shared.offer(state.deadline, Arc::<Self>::clone(self)).ok();
        state.key.is_some()
    }

    /// Takes its work back, if it still waits; then it never was.
    pub(super) fn take_back(&self) -> Option<W> {
        let mut state = self.state();
        if state.phase != Phase::Waiting {
            return None;
        }
        let (work, key) = (state.work.take(), state.key.take());
        state.phase = Phase::Done;
        drop(state);
        drop(key.and_then(|key| self.shared.take_out(key)));
        self.shared.leave();
        work
    }

    /// J1.
    fn claim(&self) -> Option<W> {
        let mut state = self.state();
        if state.phase != Phase::Waiting {
            return None;
        }
        state.phase = Phase::Running;
        state.key = None;
        state.work.take()
    }

    /// Sees to the next run of a series, if there is to be one.
    fn go_on(self: &Arc<Self>, work: W) {
        let Some(period) = self.period.filter(|_| self.shared.may_run(true)) else {
            return self.finish(Some(work), Err(JoinError::Cancelled));
        };
        let ended = self.shared.now();
        let mut state = self.state();
        if state.phase == Phase::Doomed {
            drop(state);
            return self.finish(Some(work), Err(JoinError::Cancelled));
        }
        state.deadline = period.next_run(state.deadline, ended);
        state.phase = Phase::Waiting;
        state.work = Some(work);
        let is_in = self.offer_locked(&mut state);
        drop(state);
        // A shutdown may have looked through the queue meanwhile.
        if !is_in || !self.shared.may_run(true) {
            self.withdraw();
        }
    }

    /// The end of a job that has run.
    fn finish(&self, work: Option<W>, result: Result<T, JoinError>) {
        self.drop_work(work);
        let mut state = self.state();
        let was_doomed = std::mem::replace(&mut state.phase, Phase::Done) == Phase::Doomed;
        let unwanted = if was_doomed { Some(result) } else { state.result.replace(result) };
        let waker = state.waker.take();
        drop(state);
        self.shared.quietly(|| drop(unwanted));
        self.shared.leave();
        self.wake(waker);
    }

    fn run_once(&self, work: &mut Option<W>) -> Option<Result<T, JoinError>> {
        match catch_unwind(AssertUnwindSafe(|| W::run(work))) {
            Ok(ControlFlow::Continue(())) => None,
            Ok(ControlFlow::Break(value)) => Some(Ok(value)),
            Err(panic) => {
                self.shared.report(&*panic);
                Some(Err(JoinError::Panicked(PanicPayload::new(panic))))
            }
        }
    }

    /// Ends it, if it waits; J1. `by_handle`: so that it counts as cancelled.
    fn end_waiting(&self, by_handle: bool) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Waiting {
            return false;
        }
        state.phase = Phase::Done;
        state.was_cancelled = by_handle;
        state.result = Some(Err(JoinError::Cancelled));
        let (work, key, waker) = (state.work.take(), state.key.take(), state.waker.take());
        drop(state);
        drop(key.and_then(|key| self.shared.take_out(key)));
        self.drop_work(work);
        self.shared.leave();
        self.wake(waker);
        true
    }

    /// Ends a series that runs; J2.
    fn doom(&self) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Running || self.period.is_none() {
            return false;
        }
        state.phase = Phase::Doomed;
        state.was_cancelled = true;
        state.result = Some(Err(JoinError::Cancelled));
        let waker = state.waker.take();
        drop(state);
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

impl<T: Send + 'static, W: Work<T>> Run for Job<T, W> {
    fn run(self: Arc<Self>) {
        let Some(work) = self.claim() else { return };
        let mut work = Some(work);
        match (self.run_once(&mut work), work.take()) {
            (None, Some(work)) => self.go_on(work),
            (result, work) => self.finish(work, result.unwrap_or(Err(JoinError::Cancelled))),
        }
        // What it was for may be dropped with it: a result that nobody has taken.
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
        self.end_waiting(false);
    }

    fn is_periodic(&self) -> bool {
        self.period.is_some()
    }

    fn deadline(&self) -> Instant {
        self.state().deadline
    }
}

impl<T: Send + 'static, W: Work<T>> Cancel for Job<T, W> {
    fn cancel(&self) -> bool {
        self.end_waiting(true) || self.doom()
    }

    fn is_cancelled(&self) -> bool {
        self.state().was_cancelled
    }

    fn is_done(&self) -> bool {
        matches!(self.state().phase, Phase::Doomed | Phase::Done)
    }
}

impl<T: Send + 'static, W: Work<T>> Outcome<T> for Job<T, W> {
    fn take(&self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let waker = waker.clone(); // a user's code, so before the lock (J4)
        let mut state = self.state();
        let result = state.result.take();
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
        let state = self.state();
        (state.phase == Phase::Waiting).then_some(state.deadline)
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

/// Something that a panic carried, which may panic when it is dropped.
pub(super) fn discard(panic: Box<dyn Any + Send>) {
    let mut panic = Some(panic);
    while let Some(next) = panic.take() {
        panic = catch_unwind(AssertUnwindSafe(|| drop(next))).err();
    }
}
