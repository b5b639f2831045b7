//! Tasks that may not leave the loop's thread.
//!
//! The closure stays here, in a table, and a [`Ticket`] for it goes through the inbox, among the tasks of other
//! threads: so all keep their order.
//!
//! - L1 A closure leaves the table once, on the loop's thread: to run, or to be dropped.
//! - L2 A ticket that is dropped without having been redeemed drops its closure. On another thread, where a
//!   cancel can have dropped it, it goes home to do so.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bound;
use super::error::NotBound;
use super::idle::IdleKey;
use super::inbox::Shared;
use super::queues::has_room_to_spare;
use super::runner::TaskRunner;
use super::turns::Turns;
use crate::{Cancellable, Repeat, TryScheduleError};

/// Posts tasks to the loop of its own thread: their closures need not be [`Send`].
///
/// They keep their order among the tasks that a [`TaskRunner`] posts; what must not nest, and series, are for that
/// one. Their handles may go to any thread; a
/// closure that is cancelled from another thread is dropped on its own, as soon as the loop comes to it.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use tickwheel::message_loop::MessageLoop;
///
/// let looper = MessageLoop::prepare()?;
/// let clicks = Rc::new(Cell::new(0));
/// let counter = Rc::clone(&clicks);
/// looper.local_runner().post(move || counter.set(counter.get() + 1))?;
/// assert_eq!(looper.run_until_idle(), 1);
/// assert_eq!(clicks.get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LocalTaskRunner {
    turns: Rc<Turns>,
    runner: TaskRunner,
}

impl LocalTaskRunner {
    pub(super) fn of(turns: &Rc<Turns>) -> LocalTaskRunner {
        let runner = TaskRunner::of(Arc::clone(&turns.shared));
        LocalTaskRunner { turns: Rc::clone(turns), runner }
    }

    /// The one of the calling thread's loop.
    ///
    /// # Errors
    ///
    /// When the thread has no loop.
    pub fn current() -> Result<LocalTaskRunner, NotBound> {
        bound::current().map(|turns| LocalTaskRunner::of(&turns)).ok_or(NotBound)
    }

    /// The runner of the same loop, for other threads.
    pub fn runner(&self) -> TaskRunner {
        self.runner.clone()
    }

    /// Runs a task on the loop, after the immediate ones that were posted before.
    ///
    /// # Errors
    ///
    /// `Closed` once the loop was told to quit, or is gone, with the closure.
    pub fn post<F: FnOnce() + 'static>(&self, f: F) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(f, TaskRunner::post)
    }

    /// Runs a task on the loop, once `delay` has passed. A delay of zero is [`post`](LocalTaskRunner::post).
    ///
    /// # Errors
    ///
    /// As [`post`](LocalTaskRunner::post).
    pub fn post_delayed<F: FnOnce() + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(f, |runner, ticket| runner.post_delayed(delay, ticket))
    }

    /// Runs a task on the loop, at an instant of the loop's clock.
    ///
    /// # Errors
    ///
    /// As [`post`](LocalTaskRunner::post).
    pub fn post_at<F: FnOnce() + 'static>(
        &self,
        at: Instant,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(f, |runner, ticket| runner.post_at(at, ticket))
    }

    /// Runs a task on another loop, and then `reply` with its result on this one. The reply stays here
    /// meanwhile, and need not be [`Send`]; else it is as [`TaskRunner::post_and_reply`].
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// use tickwheel::message_loop::{LoopThread, MessageLoop};
    ///
    /// let looper = MessageLoop::prepare()?;
    /// let disk = LoopThread::spawn("disk")?;
    /// let length = Rc::new(Cell::new(0));
    /// let (shown, ui) = (Rc::clone(&length), looper.runner());
    /// looper.local_runner().post_and_reply(&disk.runner(), || "a long file".len(), move |found| {
    ///     shown.set(found);
    ///     ui.quit();
    /// })?;
    /// looper.run();
    /// assert_eq!(length.get(), 11);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed` if the other loop was told to quit, or is gone, with both closures.
    pub fn post_and_reply<T, F, R>(
        &self,
        to: &TaskRunner,
        f: F,
        reply: R,
    ) -> Result<(), TryScheduleError<(F, R)>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
        R: FnOnce(T) + 'static,
    {
        let (kept, ticket) = self.keep(reply);
        let answer = move |value| {
            if let Some(reply) = ticket.redeem() {
                reply(value);
            }
        };
        to.ask(&self.turns.shared, f, answer).map_err(|refused| {
            let reason = refused.reason();
            let (f, _ticket) = refused.into_task();
            TryScheduleError::new(reason, (f, self.take_back(&kept)))
        })
    }

    /// Calls a closure when the loop is about to wait: [`MessageLoop::add_idle_handler`], from inside its tasks,
    /// so also on a [`LoopThread`](super::LoopThread).
    ///
    /// [`MessageLoop::add_idle_handler`]: super::MessageLoop::add_idle_handler
    pub fn add_idle_handler<R: Repeat>(&self, f: impl FnMut() -> R + 'static) -> IdleKey {
        self.turns.add_idle_handler(f)
    }

    /// Removes an idle handler, if it is still there.
    pub fn remove_idle_handler(&self, key: IdleKey) -> bool {
        self.turns.remove_idle_handler(key)
    }

    fn give<F: FnOnce() + 'static>(
        &self,
        f: F,
        post: impl FnOnce(&TaskRunner, Boxed) -> Result<Cancellable, TryScheduleError<Boxed>>,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        let (kept, ticket) = self.keep(f);
        let task = move || {
            if let Some(f) = ticket.redeem() {
                f();
            }
        };
        post(&self.runner, Box::new(task))
            .map_err(|refused| TryScheduleError::new(refused.reason(), self.take_back(&kept)))
    }

    fn keep<C: 'static>(&self, closure: C) -> (Rc<Kept<C>>, Ticket<C>) {
        let kept = self.turns.closures.keep(closure);
        let (number, shared) = (Some(kept.number), Arc::clone(&self.turns.shared));
        (kept, Ticket { number, shared, closure: PhantomData })
    }

    /// The closure of a ticket that was refused.
    fn take_back<C>(&self, kept: &Kept<C>) -> C {
        self.turns.closures.take(kept.number);
        kept.closure.take().expect("its ticket was not redeemed")
    }
}

impl fmt::Debug for LocalTaskRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTaskRunner").field("runner", &self.runner).finish_non_exhaustive()
    }
}

/// What stands for a closure in the inbox.
type Boxed = Box<dyn FnOnce() + Send>;

/// A closure that stays at home.
struct Kept<C> {
    number: u64,
    closure: Cell<Option<C>>,
}

/// The closures of a loop that wait; L1.
#[derive(Default)]
pub(super) struct Closures {
    kept: RefCell<HashMap<u64, Rc<dyn Any>>>,
    count: Cell<u64>,
}

impl Closures {
    fn keep<C: 'static>(&self, closure: C) -> Rc<Kept<C>> {
        let number = self.count.get();
        self.count.set(number + 1);
        let kept = Rc::new(Kept { number, closure: Cell::new(Some(closure)) });
        self.kept.borrow_mut().insert(number, Rc::clone(&kept) as Rc<dyn Any>);
        kept
    }

    fn take(&self, number: u64) -> Option<Rc<dyn Any>> {
        let mut kept = self.kept.borrow_mut();
        let closure = kept.remove(&number);
        if has_room_to_spare(kept.len(), kept.capacity()) {
            let len = kept.len();
            kept.shrink_to(2 * len);
        }
        closure
    }

    pub(super) fn clear(&self, shared: &Shared) {
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        for closure in kept.into_values() {
            shared.catch(|| drop(closure));
        }
    }
}

/// Stands for a closure on its way through the inbox; L2.
struct Ticket<C> {
    /// `None` once it is redeemed.
    number: Option<u64>,
    shared: Arc<Shared>,
    /// It stays at home.
    closure: PhantomData<fn() -> C>,
}

impl<C: 'static> Ticket<C> {
    fn redeem(mut self) -> Option<C> {
        let kept = take_at_home(&self.shared, self.number.take()?)?;
        kept.downcast_ref::<Kept<C>>()?.closure.take()
    }
}

impl<C> Drop for Ticket<C> {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        self.shared.send_home(Box::new(Unredeemed { number, shared: Arc::clone(&self.shared) }));
    }
}

/// What remains of a ticket: it has only to come home. If home is gone, so is the closure.
struct Unredeemed {
    number: u64,
    shared: Arc<Shared>,
}

impl Drop for Unredeemed {
    fn drop(&mut self) {
        drop(take_at_home(&self.shared, self.number));
    }
}

/// L1: nothing, on another thread.
fn take_at_home(shared: &Arc<Shared>, number: u64) -> Option<Rc<dyn Any>> {
    let turns = bound::current().filter(|turns| Arc::ptr_eq(&turns.shared, shared))?;
    turns.closures.take(number)
}
