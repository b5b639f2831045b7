//! A call that is made later, and its result: [`Scheduler::call_after`].
//!
//! - V1 The task has one end: it runs, or its closure is dropped. Either resolves the future, so none
//!   hangs.
//! - V2 The task does not keep the scheduler alive; the future does.
//! - V3 Values, wakers and closures are used and dropped with nothing locked.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::after;
use crate::deadlock::{Waiting, runs, wait_for};
use crate::pool::{JoinError, Outcome, PanicPayload, ScheduledFuture};
use crate::{Cancellable, PanicHook, Scheduler};

type Ended<T> = Result<T, JoinError>;

impl Scheduler {
    /// Calls a closure on the executor when `delay` has passed since this call, and gives its result.
    ///
    /// Dropping the future does not cancel the call. What will not run resolves as
    /// [`JoinError::Cancelled`]: a call that was cancelled, refused by a closed scheduler, or dropped as a
    /// leftover. A panic is [`JoinError::Panicked`], and is counted and reported by the scheduler too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let scheduler = Scheduler::new();
    /// let answer = scheduler.call_after(Duration::from_millis(5), || 6 * 7);
    /// # tickwheel::future::block_on(async {
    /// assert_eq!(answer.await?, 42);
    /// # Ok::<(), tickwheel::pool::JoinError>(())
    /// # })?;
    /// # Ok::<(), tickwheel::pool::JoinError>(())
    /// ```
    pub fn call_after<T, F>(&self, delay: Duration, f: F) -> ScheduledFuture<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let deadline = after(self.now(), delay);
        let cell = Arc::new(Cell::default());
        let task = Call { f: Some(f), cell: Arc::clone(&cell) };
        let handle = self.schedule_at(deadline, move || task.run());
        // A refused call has been dropped, and so resolved.
        let handle = handle.unwrap_or_else(|_| Cancellable::already_cancelled());
        ScheduledFuture::new(Arc::new(Called { scheduler: self.clone(), deadline, handle, cell }))
    }
}

/// What the call has come to.
struct Cell<T>(Mutex<State<T>>);

struct State<T> {
    stage: Stage<T>,
    waker: Option<Waker>,
}

enum Stage<T> {
    Waiting,
    Done(Ended<T>),
    /// The result has been taken.
    Told,
}

impl<T> Default for Cell<T> {
    fn default() -> Cell<T> {
        Cell(Mutex::new(State { stage: Stage::Waiting, waker: None }))
    }
}

impl<T> Cell<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// V1, V3.
    fn resolve(&self, ended: Ended<T>) {
        let mut state = self.state();
        state.stage = Stage::Done(ended);
        let waker = state.waker.take();
        drop(state);
        PanicHook::default().catch(|| waker.into_iter().for_each(Waker::wake));
    }

    /// V3.
    fn take(&self, waker: &Waker) -> Option<Ended<T>> {
        let waker = waker.clone();
        let mut state = self.state();
        let (result, unused) = match std::mem::replace(&mut state.stage, Stage::Told) {
            Stage::Done(ended) => (Some(ended), Some(waker)),
            other => {
                state.stage = other;
                (None, state.waker.replace(waker))
            }
        };
        drop(state);
        drop(unused);
        result
    }

    fn is_done(&self) -> bool {
        !matches!(self.state().stage, Stage::Waiting)
    }

    /// What a join knows the call by.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// The task.
struct Call<T, F> {
    /// `None` once it has run.
    f: Option<F>,
    cell: Arc<Cell<T>>,
}

impl<T, F: FnOnce() -> T> Call<T, F> {
    fn run(mut self) {
        let Some(f) = self.f.take() else { return };
        let _runs = runs(self.cell.address());
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => self.cell.resolve(Ok(value)),
            Err(panic) => {
                let payload = PanicPayload::new(panic);
                let message = payload.message().unwrap_or("a call has panicked").to_owned();
                self.cell.resolve(Err(JoinError::Panicked(payload)));
                // If nobody waits for it the payload goes here, and its `Drop` may panic too.
                PanicHook::default().catch(|| drop(self));
                resume_unwind(Box::new(message)); // to the scheduler, which counts and reports it
            }
        }
    }
}

impl<T, F> Drop for Call<T, F> {
    fn drop(&mut self) {
        if let Some(f) = self.f.take() {
            let _resolved = Unrun(&self.cell); // after what was captured is gone, also if that panics
            drop(f);
        }
    }
}

/// Resolves a call that will not run, when it is dropped.
struct Unrun<'a, T>(&'a Cell<T>);

impl<T> Drop for Unrun<'_, T> {
    fn drop(&mut self) {
        self.0.resolve(Err(JoinError::Cancelled));
    }
}

/// The call as its future sees it.
struct Called<T> {
    scheduler: Scheduler,
    deadline: Instant,
    handle: Cancellable,
    cell: Arc<Cell<T>>,
}

impl<T: Send> Outcome<T> for Called<T> {
    fn take(&self, waker: &Waker) -> Option<Ended<T>> {
        self.cell.take(waker)
    }

    fn cancel(&self) -> bool {
        self.handle.cancel()
    }

    fn is_done(&self) -> bool {
        self.cell.is_done()
    }

    fn is_periodic(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.is_done()).then_some(self.deadline)
    }

    fn now(&self) -> Instant {
        self.scheduler.now()
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        self.handle.clone()
    }

    fn begin_wait(&self) -> Result<Waiting, JoinError> {
        if self.scheduler.is_turned_here() {
            return Err(JoinError::WouldDeadlock);
        }
        // Of a closed scheduler, leftovers may be run by anybody.
        let by = self.scheduler.threads().filter(|_| !self.scheduler.is_closed());
        wait_for(self.cell.address(), by).ok_or(JoinError::WouldDeadlock)
    }
}
