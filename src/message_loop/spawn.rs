//! Futures that run on a loop: [`LocalTaskRunner::spawn_local`].
//!
//! The future stays on the loop's thread, in the table of what is [local](super::local). Its [`LocalTask`] may be on
//! any thread: it is the waker, the handle that cancels it, and the job that a wake puts into the inbox, among the
//! immediate tasks. So a future that wakes itself again and again has its turn after what was posted before, and a
//! wake allocates nothing.
//!
//! ```text
//!               wake: posted             its turn                   wake
//!   Waiting -----------------> Queued -------------> Polling ----------------> PollAgain
//!    ^  ^                                             |   |                      |   |
//!    |  '-------------- it is pending ----------------'   |                      |   |
//!    '----------------- it is pending: and woken at once -|----------------------'   |
//!                                                         '--- ready, or a panic ----+--> Over
//!   from any of these: cancel --> Cancelled;  the loop is dropped --> Over
//! ```
//!
//! - SPAWN-1 A wake is posted only by the step from `Waiting` to `Queued`, so a task is in the inbox once at most. A wake
//!   during a poll is not lost: that is what `PollAgain` is for.
//! - SPAWN-2 The future is polled, and dropped, on the loop's thread, with nothing locked or borrowed; its panics are
//!   caught and reported.
//! - SPAWN-3 Whatever drops the future resolves its handle: that is the last thing that [`Spawned`] does.
//! - SPAWN-4 A future holds its place (S25) from the start until the step to `Over` or `Cancelled`.
//! - SPAWN-5 No lock is taken while the stage is locked: a sweep asks for the stage with the inbox locked.
//! - SPAWN-6 A loop that takes no posts any more takes no wakes either. What was woken before is polled as an immediate
//!   task is run; the rest is dropped with the loop.

use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::inbox::Shared;
use super::local::{LocalPlace, LocalTaskRunner};
use crate::job::{Owner, PendingLimit, Ran, Run};
use crate::platform::sync::{Mutex, lock};
use crate::pool::{JoinError, PanicPayload};
use crate::{Cancel, Cancellable, TryScheduleError};

type Ended<T> = Result<T, JoinError>;

impl LocalTaskRunner {
    /// Runs a future on the loop, which needs not be [`Send`]: it is polled, and dropped, on the loop's thread.
    ///
    /// It is polled for the first time in its turn among the immediate tasks, never on the caller's stack. Its wakers
    /// may be used on any thread, also after the loop has gone. A wake is like a post: the future is polled after the
    /// immediate tasks that were posted before, in a nested run too, so also a future that wakes itself again and
    /// again leaves the other tasks their turns. [`run_until_idle`](super::MessageLoop::run_until_idle) counts each
    /// poll as a task.
    ///
    /// A panic of the future is caught, reported to [`LoopBuilder::on_panic`](super::LoopBuilder::on_panic), and given
    /// by the handle. The handle may be dropped: the future runs all the same. A future that has not ended when the
    /// loop is dropped is dropped with it, and its handle says [`JoinError::Cancelled`].
    ///
    /// The loop is no runtime: timers come from a [`Scheduler`](crate::Scheduler), or from anything else that wakes.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::message_loop::MessageLoop;
    ///
    /// let scheduler = Scheduler::new();
    /// let looper = MessageLoop::prepare()?;
    /// let (local, runner) = (looper.local_runner(), looper.runner());
    /// let title = Rc::new(Cell::new("loading"));
    ///
    /// let shown = Rc::clone(&title);
    /// let loads = local.spawn_local(async move {
    ///     scheduler.sleep(Duration::from_millis(2)).await?; // woken from the thread of the scheduler
    ///     shown.set("loaded"); // on the loop's
    ///     Ok::<_, tickwheel::ScheduleError>(7)
    /// })?;
    /// local.spawn_local(async move {
    ///     assert!(matches!(loads.await, Ok(Ok(7))));
    ///     runner.quit();
    /// })?;
    /// looper.run();
    /// assert_eq!(title.get(), "loaded");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed` once the loop was told to quit, or is gone; `Full` when as many tasks are pending as
    /// [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending) allows: a future counts until it has ended. Both
    /// come with the future.
    pub fn spawn_local<F: Future + 'static>(
        &self,
        future: F,
    ) -> Result<LocalJoinHandle<F::Output>, TryScheduleError<F>> {
        let place = LocalPlace::new(&self.turns);
        let task = Arc::new(LocalTask {
            place: place.clone(),
            stage: Mutex::new(Stage::Queued),
            future: PhantomData,
        });
        let shared = &self.turns.shared;
        let job = Arc::clone(&task) as Arc<dyn Run<Shared>>;
        let admitted = match shared.admit(job, None, true, PendingLimit::enter) {
            Ok(admitted) => admitted,
            Err(reason) => return Err(TryScheduleError::new(reason, future)),
        };
        // Its turn cannot come before this thread goes back to the loop, or calls a waker.
        let outcome = Rc::new(Outcome::default());
        let spawned = Spawned {
            future: Cell::new(Some(Box::pin(future))),
            outcome: Rc::clone(&outcome),
            task: Arc::clone(&task),
        };
        self.turns.locals.keep(&place, Rc::new(spawned));
        shared.ring(admitted.rings);
        Ok(LocalJoinHandle { outcome, task: Cancellable::from(task) })
    }
}

/// The result of a future that [`spawn_local`](LocalTaskRunner::spawn_local) runs, to come: it is awaited, on the same
/// thread. For a handle that may go to any thread see [`handle`](LocalJoinHandle::handle).
///
/// Dropping it does not cancel the future.
///
/// Await it in another future of the loop. A task of the loop that blocks until it is ready, as
/// [`block_on`](crate::future::block_on) does, blocks for ever: the loop cannot poll the future meanwhile.
///
/// ```
/// use tickwheel::message_loop::MessageLoop;
/// use tickwheel::pool::JoinError;
///
/// let looper = MessageLoop::prepare()?;
/// let local = looper.local_runner();
/// let endless = local.spawn_local(std::future::pending::<()>())?;
/// assert!(endless.cancel() && !endless.cancel());
/// local.spawn_local(async move {
///     assert!(matches!(endless.await, Err(JoinError::Cancelled)));
/// })?;
/// assert_eq!(looper.run_until_idle(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LocalJoinHandle<T> {
    outcome: Rc<Outcome<T>>,
    task: Cancellable,
}

impl<T> LocalJoinHandle<T> {
    /// Cancels the future: true for exactly one caller, and only if the future had not ended.
    ///
    /// The future is dropped before this returns, unless it is being polled: a future may cancel itself, and is
    /// dropped after that poll. Its result is [`JoinError::Cancelled`] in any case.
    pub fn cancel(&self) -> bool {
        self.task.cancel()
    }

    /// A handle to the future, for any thread. If it is cancelled there, the future is dropped as soon as the loop
    /// comes to it.
    pub fn handle(&self) -> Cancellable {
        self.task.clone()
    }

    /// Whether it has a result, of whatever kind.
    pub fn is_done(&self) -> bool {
        self.outcome.is_over.get()
    }
}

impl<T> Future for LocalJoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended<T>> {
        let waker = context.waker().clone(); // the waker may be anybody's code, so it comes first
        if let Some(result) = self.outcome.result.take() {
            return Poll::Ready(result);
        }
        drop(self.outcome.waker.replace(Some(waker)));
        Poll::Pending
    }
}

impl<T> fmt::Debug for LocalJoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalJoinHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// The result of a future, and the waker of the task that awaits it.
struct Outcome<T> {
    result: Cell<Option<Ended<T>>>,
    waker: Cell<Option<Waker>>,
    is_over: Cell<bool>,
}

impl<T> Default for Outcome<T> {
    fn default() -> Outcome<T> {
        let (result, waker, is_over) = (Cell::new(None), Cell::new(None), Cell::new(false));
        Outcome { result, waker, is_over }
    }
}

impl<T> Outcome<T> {
    fn resolve(&self, result: Ended<T>) {
        self.result.set(Some(result));
        self.is_over.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// A future in the table of its loop.
struct Spawned<F: Future> {
    /// `None` while it is polled, and once it has ended; SPAWN-2.
    future: Cell<Option<Pin<Box<F>>>>,
    outcome: Rc<Outcome<F::Output>>,
    task: Arc<LocalTask<F>>,
}

impl<F: Future + 'static> Spawned<F> {
    fn poll(&self) {
        let Some(mut future) = self.future.take() else { return };
        let waker = Waker::from(Arc::clone(&self.task));
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        let result = match polled {
            Ok(Poll::Pending) => {
                self.future.set(Some(future));
                return self.task.is_pending();
            }
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => {
                self.task.shared().hook().tell_named(type_name::<F>(), &*panic);
                Err(JoinError::Panicked(PanicPayload::new(panic)))
            }
        };
        let shared = self.task.shared();
        shared.catch(|| drop(future));
        if self.task.ends(Stage::Over) {
            shared.catch(|| self.outcome.resolve(result));
        } else {
            shared.catch(|| drop(result)); // it was cancelled in this poll
        }
        drop(self.task.place.take());
    }
}

impl<F: Future> Drop for Spawned<F> {
    fn drop(&mut self) {
        let shared = self.task.shared();
        shared.catch(|| drop(self.future.take()));
        self.task.ends(Stage::Over);
        if !self.outcome.is_over.get() {
            shared.catch(|| self.outcome.resolve(Err(JoinError::Cancelled))); // SPAWN-3
        }
    }
}

/// A future as all threads have it: its waker, its handle, and its job.
struct LocalTask<F> {
    place: LocalPlace,
    stage: Mutex<Stage>,
    /// The future itself is in the table.
    future: PhantomData<fn() -> F>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// For a wake.
    Waiting,
    /// In the inbox, or on its way there.
    Queued,
    Polling,
    /// It was woken while it is polled; SPAWN-1.
    PollAgain,
    Over,
    Cancelled,
}

impl Stage {
    fn is_end(self) -> bool {
        matches!(self, Stage::Over | Stage::Cancelled)
    }
}

impl<F> LocalTask<F> {
    fn shared(&self) -> &Shared {
        self.place.shared()
    }

    /// Takes a step, if there is one from here. Returns the stage that it came from.
    fn step(&self, next: impl FnOnce(Stage) -> Option<Stage>) -> Stage {
        let mut stage = lock(&self.stage);
        let before = *stage;
        *stage = next(before).unwrap_or(before);
        before
    }

    /// The end, unless it has ended before; SPAWN-4.
    fn ends(&self, end: Stage) -> bool {
        let ends = !self.step(|stage| (!stage.is_end()).then_some(end)).is_end();
        if ends {
            self.shared().no_longer_pending();
        }
        ends
    }
}

impl<F: Future + 'static> LocalTask<F> {
    /// It was polled, and is not ready.
    fn is_pending(self: &Arc<Self>) {
        let before = self.step(|stage| (!stage.is_end()).then_some(Stage::Waiting));
        match before {
            Stage::PollAgain => self.wake_by_ref(),
            Stage::Cancelled | Stage::Over => drop(self.place.take()),
            Stage::Waiting | Stage::Queued | Stage::Polling => {}
        }
    }
}

impl<F: Future + 'static> Wake for LocalTask<F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = self.step(|stage| match stage {
            Stage::Waiting => Some(Stage::Queued),
            Stage::Polling => Some(Stage::PollAgain),
            _ => None,
        });
        if before == Stage::Waiting {
            let job = Arc::clone(self) as Arc<dyn Run<Shared>>;
            // SPAWN-4: it has its place. SPAWN-6: one that is refused waits for the end of the loop.
            if let Ok(admitted) = self.shared().admit(job, None, true, |_| true) {
                self.shared().ring(admitted.rings);
            }
        }
    }
}

impl<F: Future + 'static> Run<Shared> for LocalTask<F> {
    /// One poll. The next wake posts it anew.
    fn run(&self, _shared: &Shared) -> Ran {
        let before = self.step(|stage| (stage == Stage::Queued).then_some(Stage::Polling));
        if before != Stage::Queued {
            return Ran::Not;
        }
        if let Some(local) = self.place.get() {
            local.downcast_ref::<Spawned<F>>().into_iter().for_each(Spawned::poll);
        }
        Ran::ForTheLastTime
    }

    fn withdraw(&self) {
        self.place.discard();
    }

    fn position(&self) -> &() {
        &()
    }
}

impl<F: Future + 'static> Cancel for LocalTask<F> {
    fn cancel(&self) -> bool {
        let before = self.step(|stage| (!stage.is_end()).then_some(Stage::Cancelled));
        match before {
            Stage::Over | Stage::Cancelled => return false,
            Stage::Queued => self.shared().remove(&()),
            Stage::Waiting | Stage::Polling | Stage::PollAgain => {}
        }
        self.shared().no_longer_pending(); // SPAWN-4
        if !matches!(before, Stage::Polling | Stage::PollAgain) {
            self.place.discard();
        }
        true
    }

    fn is_cancelled(&self) -> bool {
        *lock(&self.stage) == Stage::Cancelled
    }

    fn is_done(&self) -> bool {
        lock(&self.stage).is_end()
    }
}
