//! Futures that run on a loop: [`LocalTaskRunner::spawn_local`].
//!
//! The future stays on the loop's thread, in the table of [`local`](super::local). Its [`LocalTask`] may be on any
//! thread: it is the waker, the handle that cancels the future, and the job that a wake puts into the inbox, among the
//! immediate tasks. So a future that wakes itself again and again has its turn after the tasks that were posted before,
//! and a wake allocates nothing.
//!
//! ```text
//!               wake: posted
//!   Waiting -----------------> Queued        from either: cancel --> Cancelled;  ready, a panic,
//!      ^                          |                       or the loop is dropped --> Over
//!      '---- its turn: a poll ----'
//! ```
//!
//! - SPAWN-1 A wake is posted only by the step from `Waiting` to `Queued`, so a task is in the inbox once at most. The step
//!   back comes before the poll, so a wake during a poll is posted too. If that turn comes while the poll still lasts,
//!   in a nested run, the end of the poll posts it again.
//! - SPAWN-2 A future holds its place (S25) from the start until the step to `Over` or `Cancelled`.
//!
//! The future is polled, and dropped, on the loop's thread, with nothing locked or borrowed. Its panics are caught and
//! reported.

use std::any::type_name;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::inbox::{Origin, Shared};
use super::local::{LocalKey, LocalTaskRunner};
use crate::job::{AtomicPosition, Owner, Place, Ran, Run};
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::platform::sync::{Mutex, lock};
use crate::pool::{JoinError, PanicPayload, ResultCell};
use crate::{Cancel, Cancellable, TryScheduleError};

impl LocalTaskRunner {
    /// Runs a future on the loop. It need not be [`Send`], because it is polled and dropped on the loop's thread.
    ///
    /// The first poll has its turn among the immediate tasks, and is never on the caller's stack. The future's wakers
    /// may be used on any thread, also after the loop has gone. A wake is like a post: the future is polled after the
    /// immediate tasks that were posted before, in a nested run too. So a future that wakes itself again and again
    /// leaves the other tasks their turns. [`run_until_idle`](super::MessageLoop::run_until_idle) counts each poll as a
    /// task.
    ///
    /// A panic of the future is caught, reported to [`LoopBuilder::on_panic`](super::LoopBuilder::on_panic), and
    /// returned by the handle. If the handle is dropped, the future still runs. A future that has not ended when the
    /// loop is dropped is dropped with it, and its handle returns [`JoinError::Cancelled`].
    ///
    /// The loop is not a runtime: timers come from a [`Scheduler`](crate::Scheduler), or from any other source of
    /// wakes.
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
    ///     scheduler.sleep(Duration::from_millis(2)).await; // woken from the thread of the scheduler
    ///     shown.set("loaded"); // on the loop's
    ///     7
    /// })?;
    /// local.spawn_local(async move {
    ///     assert!(matches!(loads.await, Ok(7)));
    ///     runner.quit();
    /// })?;
    /// looper.run();
    /// assert_eq!(title.get(), "loaded");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed` if the loop was told to quit, or is gone. `Full` if as many tasks are pending as
    /// [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending) allows. The future comes back.
    pub fn spawn_local<F: Future + 'static>(
        &self,
        future: F,
    ) -> Result<LocalJoinHandle<F::Output>, TryScheduleError<F>> {
        let task = Arc::new(LocalTask {
            key: LocalKey::new(&self.core),
            position: AtomicPosition::default(),
            stage: Mutex::new(Stage::Queued),
        });
        let shared = &self.core.shared;
        let job = Arc::clone(&task) as Arc<dyn Run<Shared>>;
        let enqueued = match shared.enqueue(job, None, true, Origin::Program) {
            Ok(enqueued) => enqueued,
            Err(reason) => return Err(TryScheduleError::new(reason, future)),
        };
        // The task cannot run before this thread goes back to the loop, or calls a waker.
        let outcome = Rc::new(ResultCell::new());
        let spawned = Spawned {
            future: Cell::new(Some(Box::pin(future))),
            is_missed: Cell::new(false),
            outcome: Rc::clone(&outcome),
            task: Arc::clone(&task),
        };
        self.core.locals.insert(&task.key, Rc::new(spawned));
        shared.wake_if(enqueued.must_wake);
        Ok(LocalJoinHandle { outcome, task: Cancellable::from(task) })
    }
}

/// A handle to a future that [`spawn_local`](LocalTaskRunner::spawn_local) runs. Awaiting it, on the same thread, gives
/// the result of the future. [`handle`](LocalJoinHandle::handle) returns a handle that may go to any thread.
///
/// Dropping it does not cancel the future. The result is taken once. After that, a poll is pending for ever.
///
/// Await it in another future of the loop. A task of the loop that blocks until it is ready, as
/// [`block_on`](crate::future::block_on) does, blocks for ever, because then the loop cannot poll the future.
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
    outcome: Rc<ResultCell<T>>,
    task: Cancellable,
}

impl<T> LocalJoinHandle<T> {
    /// Cancels the future. Returns true for exactly one caller, and only if the future had not ended.
    ///
    /// The future is dropped before this returns. A future that is being polled, for example because it cancels itself,
    /// is dropped after that poll. The result is [`JoinError::Cancelled`] in either case.
    pub fn cancel(&self) -> bool {
        self.task.cancel()
    }

    /// Returns a handle to the future that may go to any thread. A cancel on another thread has the future dropped as
    /// soon as the loop comes to it.
    pub fn handle(&self) -> Cancellable {
        self.task.clone()
    }

    /// Returns true if the future has ended: with a result, by a panic, or by a cancel. After a cancel it has ended when it is
    /// dropped: on another thread, or in its own poll, that comes a little later.
    pub fn is_done(&self) -> bool {
        self.outcome.is_known()
    }
}

impl<T> Future for LocalJoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        self.outcome.take(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for LocalJoinHandle<T> {
    /// Lets go of the task that has awaited it, which is not to be woken any more.
    fn drop(&mut self) {
        self.outcome.forget_waker();
    }
}

impl_debug!(LocalJoinHandle<T>, self, is_done: self.is_done());

/// The entry of a future in the table of its loop.
struct Spawned<F: Future + 'static> {
    /// `None` while it is polled, so that nothing is borrowed, and once it has ended.
    future: Cell<Option<Pin<Box<F>>>>,
    /// Its turn has come while it was polled (SPAWN-1).
    is_missed: Cell<bool>,
    outcome: Rc<ResultCell<F::Output>>,
    task: Arc<LocalTask<F>>,
}

impl<F: Future + 'static> Spawned<F> {
    /// Polls the future, unless it is being polled already.
    fn poll(&self) -> Ran {
        // Out of the entry, so that the future may cancel itself, or drop its loop.
        let Some(mut future) = self.future.take() else {
            self.is_missed.set(true);
            return Ran::Not;
        };
        let waker = Waker::from(Arc::clone(&self.task));
        let mut context = Context::from_waker(&waker);
        let polled = caught(|| future.as_mut().poll(&mut context));
        self.future.set(Some(future));
        let result = match polled {
            Ok(Poll::Pending) => {
                if self.is_missed.take() {
                    self.task.wake_by_ref();
                }
                return Ran::ForTheLastTime;
            }
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => {
                self.task.shared().hook().tell(type_name::<F>(), &*panic);
                Err(JoinError::Panicked(PanicPayload::new(panic)))
            }
        };
        self.task.key.discard(); // the caller has the entry too
        self.end(result);
        Ran::ForTheLastTime
    }

    /// Drops the future, and then resolves the handle, which nothing else does. Only the first call counts.
    fn end(&self, mut result: Result<F::Output, JoinError>) {
        let shared = self.task.shared();
        shared.catch(|| drop(self.future.take()));
        if self.task.step(LIVE, Stage::Over).is_none() {
            // It was cancelled, maybe in its last poll.
            shared.catch(|| drop(std::mem::replace(&mut result, Err(JoinError::Cancelled))));
        } else {
            shared.limit().leave(); // (SPAWN-2)
        }
        self.outcome.resolve(result, shared.hook()); // last of all, because it wakes a user's waker
    }
}

impl<F: Future + 'static> Drop for Spawned<F> {
    /// So no handle waits in vain.
    fn drop(&mut self) {
        self.end(Err(JoinError::Cancelled));
    }
}

/// The part of a future that may be on any thread: its waker, its handle, and its job.
struct LocalTask<F: Future + 'static> {
    key: LocalKey<Spawned<F>>,
    position: AtomicPosition,
    stage: Mutex<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for a wake, or is polled.
    Waiting,
    /// It is in the inbox, or on its way there.
    Queued,
    Over,
    Cancelled,
}

/// The stages of a future that has not ended.
const LIVE: &[Stage] = &[Stage::Waiting, Stage::Queued];

impl<F: Future + 'static> LocalTask<F> {
    fn shared(&self) -> &Shared {
        &self.key.shared
    }

    /// Moves to the next stage from one of these, and returns that one. From another one it does not move.
    fn step(&self, from: &[Stage], next: Stage) -> Option<Stage> {
        let mut stage = lock(&self.stage);
        from.contains(&stage).then(|| std::mem::replace(&mut *stage, next))
    }
}

impl<F: Future + 'static> Wake for LocalTask<F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.step(&[Stage::Waiting], Stage::Queued).is_some() {
            let job = Arc::clone(self) as Arc<dyn Run<Shared>>;
            // It has its place already (SPAWN-2). A loop that takes no posts takes no wakes either. Then the future waits for
            // the end of the loop, which drops it.
            if let Ok(enqueued) = self.shared().enqueue(job, None, true, Origin::Wake) {
                self.shared().wake_if(enqueued.must_wake);
            }
        }
    }
}

impl<F: Future + 'static> Run<Shared> for LocalTask<F> {
    /// Polls the future once. The next wake posts it anew.
    fn run(&self, _shared: &Shared, _place: &mut dyn Place) -> Ran {
        // The step comes before the poll, whose wakes are posted anew (SPAWN-1).
        let mine = self.step(&[Stage::Queued], Stage::Waiting).and_then(|_| self.key.get());
        let Some(spawned) = mine else { return Ran::Not };
        let ran = spawned.poll();
        self.shared().catch(|| drop(spawned)); // with a result that nobody wants
        ran
    }

    fn withdraw(&self) {
        self.key.discard();
    }

    fn position(&self) -> &AtomicPosition {
        &self.position
    }
}

impl<F: Future + 'static> Cancel for LocalTask<F> {
    fn cancel(&self) -> bool {
        let Some(before) = self.step(LIVE, Stage::Cancelled) else { return false };
        if before == Stage::Queued {
            self.shared().remove(&self.position); // its job is among the immediate tasks
        }
        self.shared().limit().leave(); // the step to `Cancelled` does so, like that to `Over` (SPAWN-2)
        // During a poll the future is out of its entry, and the loop keeps the entry until the poll ends.
        self.key.discard();
        true
    }

    fn is_cancelled(&self) -> bool {
        *lock(&self.stage) == Stage::Cancelled
    }

    fn is_done(&self) -> bool {
        !LIVE.contains(&lock(&self.stage))
    }
}
