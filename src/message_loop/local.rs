//! Tasks that may not leave the loop's thread: [`LocalTaskRunner`].
//!
//! The closure stays here, in a table, and a [`Ticket`] for it goes through the inbox, among the tasks of other
//! threads: so all keep their order. A future stays in the same table; see [`spawn`](super::spawn).
//!
//! - LOCAL-1 What is local leaves the table once, on the loop's thread: to run for the last time, or to be dropped.
//! - LOCAL-2 A ticket that is dropped without having been redeemed drops its closure. A cancel may drop a ticket on another
//!   thread: then it sends the loop a message to do so.
//! - LOCAL-3 The closure of a series is out of the table's entry while it runs, so nothing is borrowed then. It is put
//!   back also after a panic, and dropped with its ticket.

use std::any::{Any, type_name};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::Shared;
use super::looper::NotBound;
use super::queue::has_room_to_spare;
use super::runner::TaskRunner;
use super::turns::{self, IdleKey, Turns};
use crate::{Cancellable, Period, Repeat, ScheduleError, TryScheduleError};

/// Posts tasks to the loop of its own thread: their closures need not be [`Send`].
///
/// They keep their order among the tasks that a [`TaskRunner`] posts. Their handles may go to any thread; a closure
/// that is cancelled from another thread is dropped on its own thread, as soon as the loop comes to it. Tasks that
/// must not nest are for a [`TaskRunner`].
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
    pub(super) turns: Rc<Turns>,
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
        turns::current().map(|turns| LocalTaskRunner::of(&turns)).ok_or(NotBound)
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
        self.give(None, f)
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
        self.give(self.runner.after(delay), f)
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
        self.give(Some(at), f)
    }

    /// Runs a task again and again on the loop, as the [`Period`] says: first when `initial` has passed, in any case
    /// not on the caller's stack.
    ///
    /// The series ends by a `Break` that the task returns, by a cancel, by a panic of the task, or with the loop. A
    /// task may cancel itself in its own run, through its handle.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// use std::time::Duration;
    /// use tickwheel::message_loop::MessageLoop;
    /// use tickwheel::{ManualClock, Period};
    ///
    /// let clock = ManualClock::new();
    /// let looper = MessageLoop::builder().clock(clock.clone()).prepare()?;
    /// let is_lit = Rc::new(Cell::new(false));
    /// let cursor = Rc::clone(&is_lit);
    /// let every = Period::fixed_rate(Duration::from_millis(500));
    /// let blinking = looper.local_runner().schedule_periodic(Duration::ZERO, every, move || {
    ///     cursor.set(!cursor.get());
    /// })?;
    /// looper.run_until_idle();
    /// assert!(is_lit.get());
    /// clock.advance(Duration::from_millis(500));
    /// looper.run_until_idle();
    /// assert!(!is_lit.get());
    /// assert!(blinking.cancel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `ZeroPeriod` for a period of zero; else as [`post`](LocalTaskRunner::post). The closure comes back.
    pub fn schedule_periodic<R: Repeat, F: FnMut() -> R + 'static>(
        &self,
        initial: Duration,
        period: Period,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        let (kept, ticket) = self.keep(f);
        self.runner
            .give_series(initial, period, type_name::<F>(), move || ticket.call())
            .map_err(|refused| TryScheduleError::new(refused.reason(), self.take_back(&kept)))
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
    /// `Closed` if the other loop was told to quit, or if one of the two is gone; `Full` as in
    /// [`TaskRunner::post`]. Both closures come back.
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
        if self.turns.is_closed() {
            return Err(TryScheduleError::new(ScheduleError::Closed, (f, reply))); // it would never leave the table
        }
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
        deadline: Option<Instant>,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        let (kept, ticket) = self.keep(f);
        let task = move || {
            if let Some(f) = ticket.redeem() {
                f();
            }
        };
        let given = self.runner.give_named(deadline, type_name::<F>(), Box::new(task));
        given.map_err(|refused| TryScheduleError::new(refused.reason(), self.take_back(&kept)))
    }

    fn keep<C: 'static>(&self, closure: C) -> (Rc<Kept<C>>, Ticket<C>) {
        let place = LocalPlace::new(&self.turns);
        let kept = Rc::new(Kept { number: place.number, closure: Cell::new(Some(closure)) });
        self.turns.locals.keep(&place, Rc::clone(&kept) as Rc<dyn Any>);
        (kept, Ticket { place: Some(place), closure: PhantomData })
    }

    /// The closure of a ticket that was refused; also by a loop that is gone, which no ticket finds any more.
    fn take_back<C>(&self, kept: &Kept<C>) -> C {
        self.turns.locals.take(kept.number);
        kept.closure.take().expect("its ticket was not redeemed")
    }
}

impl fmt::Debug for LocalTaskRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTaskRunner").field("runner", &self.runner).finish_non_exhaustive()
    }
}

/// What stays on the thread of a loop, closures and futures, until it has run or is dropped; LOCAL-1.
#[derive(Default)]
pub(super) struct Locals {
    kept: RefCell<HashMap<u64, Rc<dyn Any>>>,
    count: Cell<u64>,
}

impl Locals {
    pub(super) fn keep(&self, place: &LocalPlace, local: Rc<dyn Any>) {
        self.kept.borrow_mut().insert(place.number, local);
    }

    fn take(&self, number: u64) -> Option<Rc<dyn Any>> {
        let mut kept = self.kept.borrow_mut();
        let local = kept.remove(&number);
        if has_room_to_spare(kept.len(), kept.capacity()) {
            let len = kept.len();
            kept.shrink_to(2 * len);
        }
        local
    }

    pub(super) fn clear(&self, shared: &Shared) {
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        for local in kept.into_values() {
            shared.catch(|| drop(local));
        }
    }
}

/// Where something local lies: in the table of this loop, under this number. It may be on any thread.
#[derive(Clone)]
pub(super) struct LocalPlace {
    number: u64,
    shared: Arc<Shared>,
}

impl LocalPlace {
    /// An empty place, which is never used again.
    pub(super) fn new(turns: &Turns) -> LocalPlace {
        let number = turns.locals.count.get();
        turns.locals.count.set(number + 1);
        LocalPlace { number, shared: Arc::clone(&turns.shared) }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn turns(&self) -> Option<Rc<Turns>> {
        turns::current().filter(|turns| Arc::ptr_eq(&turns.shared, &self.shared))
    }

    /// What lies there; nothing, on another thread.
    pub(super) fn get(&self) -> Option<Rc<dyn Any>> {
        self.turns()?.locals.kept.borrow().get(&self.number).map(Rc::clone)
    }

    /// The same, and takes it out of the table.
    pub(super) fn take(&self) -> Option<Rc<dyn Any>> {
        self.turns()?.locals.take(self.number)
    }

    /// Has what lies there dropped on its thread: at once, if this is that one; LOCAL-2.
    pub(super) fn discard(&self) {
        self.shared.drop_on_loop(Box::new(Discarded(self.clone())));
    }
}

/// Drops what lies at a place, once it is dropped on the loop's thread itself. If the loop is gone, so is that.
struct Discarded(LocalPlace);

impl Drop for Discarded {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// A closure in the table of its loop.
struct Kept<C> {
    number: u64,
    /// `None` while it runs, and once it has left.
    closure: Cell<Option<C>>,
}

/// Stands for a closure on its way through the inbox; LOCAL-2.
struct Ticket<C> {
    /// `None` once it is redeemed.
    place: Option<LocalPlace>,
    /// The closure itself is in the table.
    closure: PhantomData<fn() -> C>,
}

impl<C: 'static> Ticket<C> {
    /// The closure, for its only run.
    fn redeem(mut self) -> Option<C> {
        self.place.take()?.take()?.downcast_ref::<Kept<C>>()?.closure.take()
    }

    /// One run of a series; LOCAL-3.
    fn call<R>(&self) -> R
    where
        C: FnMut() -> R,
    {
        let place = self.place.as_ref().expect("a series is not redeemed");
        let local = place.get().expect("a job runs on its loop's thread, before the loop is gone");
        let kept = local.downcast_ref::<Kept<C>>().expect("a place keeps its kind");
        let mut f = kept.closure.take().expect("the runs of a series do not overlap");
        let result = catch_unwind(AssertUnwindSafe(&mut f));
        kept.closure.set(Some(f));
        place.shared.catch(|| drop(local)); // it has dropped its loop, perhaps
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<C> Drop for Ticket<C> {
    fn drop(&mut self) {
        self.place.take().iter().for_each(LocalPlace::discard);
    }
}
