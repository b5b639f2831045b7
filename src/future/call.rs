//! A call that is made later, and its result: [`Scheduler::call_after`].
//!
//! - CALL-1 The task has one end: it runs, or its closure is dropped. Either resolves the future, so none
//!   hangs.
//! - CALL-2 The task does not keep the scheduler alive; the future does.
//! - CALL-3 Values, wakers and closures are used and dropped with nothing locked.

use std::any::type_name_of_val;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::after;
use crate::executor::deadlock::{Waiting, runs, wait_for};
use crate::pool::{JoinError, Outcome, PanicPayload, ResultCell, ScheduledFuture};
use crate::{Cancellable, PanicHook, Scheduler};

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
        let cell = Arc::new(ResultCell::new());
        let name = type_name_of_val(&f);
        let task = Call { f: Some(f), cell: Arc::clone(&cell) };
        let handle = self.schedule_at_named(name, deadline, move || task.run());
        // A refused call has been dropped, and so resolved.
        let handle = handle.unwrap_or_else(|_| Cancellable::already_cancelled());
        ScheduledFuture::new(Arc::new(Called { scheduler: self.clone(), deadline, handle, cell }))
    }
}

/// The task.
struct Call<T, F> {
    /// `None` once it has run.
    f: Option<F>,
    cell: Arc<ResultCell<T>>,
}

impl<T, F: FnOnce() -> T> Call<T, F> {
    fn run(mut self) {
        let Some(f) = self.f.take() else { return };
        let _runs = runs(address(&self.cell));
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => resolve(&self.cell, Ok(value)),
            Err(panic) => {
                let payload = PanicPayload::new(panic);
                let message = payload.message().unwrap_or("a call has panicked").to_owned();
                resolve(&self.cell, Err(JoinError::Panicked(payload)));
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
struct Unrun<'a, T>(&'a ResultCell<T>);

impl<T> Drop for Unrun<'_, T> {
    fn drop(&mut self) {
        resolve(self.0, Err(JoinError::Cancelled));
    }
}

/// The call as its future sees it.
struct Called<T> {
    scheduler: Scheduler,
    deadline: Instant,
    handle: Cancellable,
    cell: Arc<ResultCell<T>>,
}

fn resolve<T>(cell: &ResultCell<T>, result: Result<T, JoinError>) {
    cell.resolve(result).into_iter().for_each(|told| told.tell(&PanicHook::default()));
}

/// What a join knows the call by.
fn address<T>(cell: &ResultCell<T>) -> usize {
    std::ptr::from_ref(cell).addr()
}

impl<T: Send> Outcome<T> for Called<T> {
    fn result(&self) -> &ResultCell<T> {
        &self.cell
    }

    fn cancel(&self) -> bool {
        self.handle.cancel()
    }

    fn is_periodic(&self) -> bool {
        false
    }

    fn remaining(&self) -> Option<Duration> {
        let is_open = !self.cell.is_known();
        is_open.then(|| self.deadline.saturating_duration_since(self.scheduler.now()))
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        self.handle.clone()
    }

    fn begin_wait(&self) -> Result<Waiting, JoinError> {
        if self.scheduler.is_turned_here() {
            return Err(JoinError::WouldDeadlock);
        }
        // Of a closed scheduler, leftovers may be run by anybody.
        let by = || self.scheduler.threads().filter(|_| !self.scheduler.is_closed());
        wait_for(address(&self.cell), by).ok_or(JoinError::WouldDeadlock)
    }
}
