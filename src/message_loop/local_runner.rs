//! Tasks that may not leave the loop's thread.
//!
//! The closure stays here, in a table, and a [`Ticket`] for it goes through the inbox, among the tasks of other
//! threads: so all keep their order.
//!
//! - L1 A closure leaves the table once, on the loop's thread: to run, or to be dropped.
//! - L2 A ticket that is dropped without having been redeemed drops its closure. On another thread, where a
//!   cancel can have dropped it, it goes home to do so.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::NotBound;
use super::inbox::Shared;
use super::runner::TaskRunner;
use super::turns::{self, Turns};
use crate::{Cancellable, TryScheduleError};

/// Posts tasks to the loop of its own thread: their closures need not be [`Send`].
///
/// They keep their order among the tasks that a [`TaskRunner`] posts. Their handles may go to any thread; a
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
        self.give(f, |runner, ticket| runner.post(ticket))
    }

    /// Runs a task on the loop, once `delay` has passed.
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

    fn give<F: FnOnce() + 'static>(
        &self,
        f: F,
        post: impl FnOnce(&TaskRunner, Redeem) -> Result<Cancellable, TryScheduleError<Redeem>>,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        let held = Rc::new(Held(Cell::new(Some(f))));
        let number = self.turns.closures.keep(Rc::clone(&held) as Rc<dyn Call>);
        let ticket = Ticket { number: Some(number), shared: Arc::clone(&self.turns.shared) };
        post(&self.runner, Box::new(move || ticket.redeem())).map_err(|refused| {
            self.turns.closures.take(number);
            let f = held.0.take().expect("it has not run");
            TryScheduleError::new(refused.reason(), f)
        })
    }
}

impl fmt::Debug for LocalTaskRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTaskRunner").field("runner", &self.runner).finish()
    }
}

/// What a ticket is posted as.
type Redeem = Box<dyn FnOnce() + Send>;

/// A closure that stays at home.
struct Held<F>(Cell<Option<F>>);

trait Call {
    fn call(&self);
}

impl<F: FnOnce()> Call for Held<F> {
    fn call(&self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

/// The closures of a loop that wait; L1.
#[derive(Default)]
pub(super) struct Closures {
    held: RefCell<HashMap<u64, Rc<dyn Call>>>,
    count: Cell<u64>,
}

impl Closures {
    fn keep(&self, closure: Rc<dyn Call>) -> u64 {
        let number = self.count.get();
        self.count.set(number + 1);
        self.held.borrow_mut().insert(number, closure);
        number
    }

    fn take(&self, number: u64) -> Option<Rc<dyn Call>> {
        self.held.borrow_mut().remove(&number)
    }

    pub(super) fn clear(&self, shared: &Shared) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for closure in held.into_values() {
            shared.catch(|| drop(closure));
        }
    }
}

/// Stands for a closure on its way through the inbox; L2.
struct Ticket {
    /// `None` once it is redeemed.
    number: Option<u64>,
    shared: Arc<Shared>,
}

impl Ticket {
    fn redeem(mut self) {
        let number = self.number.take();
        if let Some(closure) = number.and_then(|number| take_at_home(&self.shared, number)) {
            closure.call();
        }
    }
}

impl Drop for Ticket {
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
fn take_at_home(shared: &Arc<Shared>, number: u64) -> Option<Rc<dyn Call>> {
    let turns = turns::current().filter(|turns| Arc::ptr_eq(&turns.shared, shared))?;
    turns.closures.take(number)
}
