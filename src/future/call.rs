//! A closure that is called later, and the future of its result: [`Scheduler::call_after`].
//!
//! - The task ends in one of two ways: it runs, or its closure is dropped. Both resolve the future, so no future
//!   hangs. A call that is refused gets a cell of its own, with the reason.
//! - The task does not keep the scheduler alive. The future does, and does not count as a handle that may close. So
//!   the leftover that it waits for is given up with the last handle, and the future resolves.
//! - Values, wakers and closures are used and dropped with nothing locked.

use std::any::type_name_of_val;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::clock::timeline::after;
use crate::executor::deadlock::{Waiting, wait_for, while_running};
use crate::platform::panics::{Delivered, caught};
use crate::pool::{JoinError, Joinable, PanicPayload, ResultCell, ScheduledFuture};
use crate::{Cancellable, PanicHook, Scheduler};

impl Scheduler {
    /// Calls a closure on the executor when `delay` has passed since this call. Returns a future of its result.
    ///
    /// Dropping the future does not cancel the call. If the scheduler is closed or full, the future resolves at once as
    /// [`JoinError::Refused`], with the reason. A call that was accepted and will not run, because it was cancelled or
    /// dropped as a leftover, resolves as [`JoinError::Cancelled`]. A panic resolves as [`JoinError::Panicked`], and is
    /// counted and reported by the scheduler too.
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
        let mut cell = Arc::new(ResultCell::new());
        let name = type_name_of_val(&f);
        // If it is dropped without a run, its closure goes first, and then the call is cancelled, even if dropping the closure
        // panics.
        let task = (f, CancelledOnDrop(Arc::clone(&cell)));
        let scheduled = self.schedule_at_named(name, deadline, move || run(task));
        let handle = scheduled.unwrap_or_else(|reason| {
            // The task has been dropped, and has told the other cell that it was cancelled.
            cell = Arc::new(ResultCell::new());
            resolve(&cell, Err(JoinError::Refused(reason)));
            Cancellable::already_cancelled()
        });
        ScheduledFuture::new(Arc::new(Call { scheduler: self.for_futures(), handle, cell }))
    }
}

/// Runs the task of a call.
fn run<T>((f, call): (impl FnOnce() -> T, CancelledOnDrop<T>)) {
    match while_running(Arc::as_ptr(&call.0).addr(), || caught(f)) {
        Ok(value) => resolve(&call.0, Ok(value)),
        Err(panic) => {
            let payload = PanicPayload::new(panic);
            let message = payload.message().unwrap_or("a call has panicked").to_owned();
            resolve(&call.0, Err(JoinError::Panicked(payload)));
            // If there is no future any more, the payload is dropped here, and its `Drop` may panic too.
            PanicHook::default().catch(None, || drop(call));
            resume_unwind(Box::new(Delivered(message))); // the scheduler counts and reports it
        }
    }
}

/// Resolves a call as cancelled when it is dropped, unless the call has a result.
struct CancelledOnDrop<T>(Arc<ResultCell<T>>);

impl<T> Drop for CancelledOnDrop<T> {
    fn drop(&mut self) {
        resolve(&self.0, Err(JoinError::Cancelled));
    }
}

/// A call as its future sees it.
struct Call<T> {
    scheduler: Arc<Scheduler>,
    handle: Cancellable,
    cell: Arc<ResultCell<T>>,
}

fn resolve<T>(cell: &ResultCell<T>, result: Result<T, JoinError>) {
    cell.resolve(result, &PanicHook::default());
}

impl<T: Send> Joinable<T> for Call<T> {
    fn result(&self) -> &ResultCell<T> {
        &self.cell
    }

    fn cancel(&self) -> bool {
        self.handle.cancel()
    }

    fn is_periodic(&self) -> bool {
        false
    }

    fn now(&self) -> Instant {
        self.scheduler.now()
    }

    fn handle(self: Arc<Self>) -> Cancellable {
        self.handle.clone()
    }

    fn begin_wait(&self, waker: &Waker) -> Option<Waiting> {
        if self.scheduler.is_turned_here() {
            return None;
        }
        // The leftovers of a closed scheduler may be run by any thread.
        let by = || self.scheduler.threads().filter(|_| !self.scheduler.is_closed());
        // Joins know the call by the address of its cell.
        wait_for(Arc::as_ptr(&self.cell).addr(), by, waker)
    }
}
