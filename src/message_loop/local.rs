//! Tasks that may not leave the loop's thread: [`LocalTaskRunner`].
//!
//! The closure stays on the thread, in a table, and a [`Ticket`] for it goes through the inbox, among the tasks of
//! other threads, so that all keep their order. The same table keeps the futures of [`spawn`](super::spawn).
//!
//! A closure or a future leaves the table once, on the loop's thread: to run for the last time, or to be dropped.
//!
//! - LOCAL-1 A ticket that is dropped takes its entry out of the table, and with it a closure that was not redeemed. If a
//!   cancel drops the ticket on another thread, the ticket tells the loop its number, and the loop does so.

use std::any::{Any, type_name};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::{Origin, Shared};
use super::looper::NotBound;
use super::runner::TaskRunner;
use super::turn::{self, IdleKey, LoopCore};
use crate::job::{Given, Layer, NamedOnce, named};
use crate::platform::panics::caught;
use crate::{Period, Repeat, ScheduleError, TryScheduleError};

/// Posts tasks to the loop of its own thread. Their closures need not be [`Send`].
///
/// These tasks keep their order among those that a [`TaskRunner`] posts. Their handles may go to any thread. A closure
/// that is cancelled from another thread is dropped on its own thread, as soon as the loop comes to it. A task that
/// must not nest needs a [`TaskRunner`].
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
#[derive(Clone, Debug)]
pub struct LocalTaskRunner {
    pub(super) core: Rc<LoopCore>,
}

impl LocalTaskRunner {
    /// Returns a local runner of the calling thread's loop.
    ///
    /// # Errors
    ///
    /// [`NotBound`] if the thread has no loop.
    pub fn current() -> Result<LocalTaskRunner, NotBound> {
        turn::current().map(|core| LocalTaskRunner { core }).ok_or(NotBound)
    }

    /// Returns a runner of the same loop, which may go to other threads.
    pub fn runner(&self) -> TaskRunner {
        TaskRunner { shared: Arc::clone(&self.core.shared) }
    }

    /// Runs a task on the loop, after the immediate ones that were posted before.
    ///
    /// # Errors
    ///
    /// As [`TaskRunner::post`]: `Closed` or `Full`, with the closure.
    pub fn post<F: FnOnce() + 'static>(&self, f: F) -> Given<F> {
        self.post_at_or_now(None, f)
    }

    /// Runs a task on the loop once `delay` has passed. A delay of zero makes this a [`post`](LocalTaskRunner::post).
    ///
    /// # Errors
    ///
    /// As [`post`](LocalTaskRunner::post).
    pub fn post_delayed<F: FnOnce() + 'static>(&self, delay: Duration, f: F) -> Given<F> {
        self.post_at_or_now(self.core.shared.after(delay), f)
    }

    /// Runs a task on the loop at an instant of the loop's clock.
    ///
    /// # Errors
    ///
    /// As [`post`](LocalTaskRunner::post).
    pub fn post_at<F: FnOnce() + 'static>(&self, at: Instant, f: F) -> Given<F> {
        self.post_at_or_now(Some(at), f)
    }

    /// Runs a task again and again on the loop, as the [`Period`] says. The first run comes when `initial` has passed,
    /// never on the caller's stack.
    ///
    /// The series ends when the task returns `Break`, is cancelled, or panics, or with the loop. A task may cancel
    /// itself in its own run, through its handle.
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
    /// `ZeroPeriod` for a period of zero, and otherwise as [`post`](LocalTaskRunner::post). The closure comes back.
    pub fn schedule_periodic<R: Repeat, F: FnMut() -> R + 'static>(
        &self,
        initial: Duration,
        period: Period,
        f: F,
    ) -> Given<F> {
        let name = type_name::<F>();
        let post = |ticket: Ticket<F>| {
            self.core.shared.take_series(initial, period, name, move || ticket.call())
        };
        self.keep_and_post(f, post)
    }

    /// Runs a task on another loop, and then `reply` with its result on this one. The reply stays on this thread in the
    /// meantime, so it need not be [`Send`]. Otherwise this is [`TaskRunner::post_and_reply`].
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
    /// `Closed` if the other loop was told to quit, or if one of the two is gone. `Full` if the other loop has as many
    /// pending tasks as it may have. Both closures come back.
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
        if self.core.is_closed.get() {
            return Err(TryScheduleError::new(ScheduleError::Closed, (f, reply)));
        }
        let (entry, ticket) = self.keep(reply);
        // If the task panics or never runs, the ticket is dropped with it.
        let run = |(f, ticket): (F, Ticket<R>)| {
            let (value, replies_to) = (f(), Arc::clone(&ticket.key.shared));
            let reply = move || _ = ticket.redeem().map(|reply| reply(value));
            // Nobody could take the reply back, so if its loop has quit, the ticket is dropped here.
            drop(replies_to.post(None, true, Origin::Reply, named(type_name::<R>(), reply)));
        };
        let task = NamedOnce { name: type_name::<F>(), input: (f, ticket), f: run };
        let posted = to.shared.post(None, true, Origin::Program, task).map(drop);
        posted.map_err(|(reason, NamedOnce { input: (f, ticket), .. })| {
            drop(ticket); // which takes the entry out of the table
            TryScheduleError::new(reason, (f, take_back(&entry)))
        })
    }

    /// Calls a closure each time that the loop is about to wait. Like [`MessageLoop::add_idle_handler`], but it can be
    /// called from inside tasks, so also on a [`LoopThread`](super::LoopThread).
    ///
    /// [`MessageLoop::add_idle_handler`]: super::MessageLoop::add_idle_handler
    pub fn add_idle_handler<R: Repeat>(&self, f: impl FnMut() -> R + 'static) -> IdleKey {
        self.core.add_idle_handler(f)
    }

    /// Removes an idle handler. Returns false if it is not there any more.
    pub fn remove_idle_handler(&self, key: IdleKey) -> bool {
        self.core.remove_idle_handler(key)
    }

    fn post_at_or_now<F: FnOnce() + 'static>(&self, deadline: Option<Instant>, f: F) -> Given<F> {
        let post = |ticket: Ticket<F>| {
            let task = move || ticket.redeem().into_iter().for_each(|f| f());
            self.core.shared.take_named(deadline, type_name::<F>(), task)
        };
        self.keep_and_post(f, post)
    }

    fn keep_and_post<C: 'static, X>(
        &self,
        closure: C,
        post: impl FnOnce(Ticket<C>) -> Given<X>,
    ) -> Given<C> {
        if self.core.is_closed.get() {
            return Err(TryScheduleError::new(ScheduleError::Closed, closure));
        }
        let (entry, ticket) = self.keep(closure);
        post(ticket).map_err(|refused| {
            let reason = refused.into(); // drops the ticket, which takes the entry out of the table
            TryScheduleError::new(reason, take_back(&entry))
        })
    }

    /// Puts a closure into the table of a loop that is not closed. Otherwise it would never leave the table.
    fn keep<C: 'static>(&self, closure: C) -> (Rc<LocalClosure<C>>, Ticket<C>) {
        let key = LocalKey::new(&self.core);
        let entry = Rc::new(Cell::new(Some(closure)));
        self.core.locals.insert(&key, Rc::clone(&entry));
        (entry, Ticket { key })
    }
}

/// The closures and futures that stay on the thread of a loop, until they have run or are dropped.
#[derive(Default)]
pub(super) struct LocalTable {
    pub(super) entries: RefCell<BTreeMap<u64, Rc<dyn Any>>>,
    last_number: Cell<u64>,
}

impl LocalTable {
    pub(super) fn insert<T: 'static>(&self, key: &LocalKey<T>, local: Rc<T>) {
        self.entries.borrow_mut().insert(key.number, local);
    }

    /// Drops an entry. It may have left already.
    pub(super) fn discard(&self, number: u64, shared: &Shared) {
        let local = self.entries.borrow_mut().remove(&number);
        shared.catch(|| drop(local));
    }
}

/// Names an entry of the table of one loop. A key may be on any thread.
pub(super) struct LocalKey<T: 'static> {
    number: u64,
    pub(super) shared: Arc<Shared>,
    /// The entry itself is in the table.
    entry: PhantomData<fn() -> T>,
}

impl<T: 'static> LocalKey<T> {
    /// Makes a key that no entry has had before.
    pub(super) fn new(core: &LoopCore) -> LocalKey<T> {
        let number = core.locals.last_number.get() + 1;
        core.locals.last_number.set(number);
        LocalKey { number, shared: Arc::clone(&core.shared), entry: PhantomData }
    }

    /// Returns the entry, or `None` on another thread.
    pub(super) fn get(&self) -> Option<Rc<T>> {
        let core = turn::if_current(&self.shared)?;
        let local = core.locals.entries.borrow().get(&self.number).map(Rc::clone)?;
        Some(local.downcast().expect("an entry keeps its type"))
    }

    /// Has the entry dropped on its thread: at once, if the caller is there (LOCAL-1).
    pub(super) fn discard(&self) {
        match turn::if_current(&self.shared) {
            Some(core) => core.locals.discard(self.number, &core.shared),
            None => self.shared.discard(self.number),
        }
    }
}

/// The entry of a closure: `None` while it runs, and once it has left.
type LocalClosure<C> = Cell<Option<C>>;

/// Takes the closure back whose ticket was refused.
fn take_back<C>(entry: &LocalClosure<C>) -> C {
    entry.take().expect("its ticket was not redeemed")
}

/// Stands for a closure on its way through the inbox (LOCAL-1).
struct Ticket<C: 'static> {
    key: LocalKey<LocalClosure<C>>,
}

impl<C: 'static> Ticket<C> {
    /// Takes the closure out of its entry, for its only run.
    fn redeem(self) -> Option<C> {
        self.key.get()?.take()
    }

    /// Calls the closure of a series once.
    fn call<R>(&self) -> R
    where
        C: FnMut() -> R,
    {
        let entry = self.key.get().expect("it runs on its loop's thread");
        // Out of the entry while it runs, so nothing is borrowed in the meantime. Also after a panic it is put back, and
        // dropped with the ticket.
        let mut f = entry.take().expect("the runs of a series do not overlap");
        let result = caught(&mut f);
        entry.set(Some(f));
        self.key.shared.catch(|| drop(entry)); // the last reference, if the closure has dropped its loop
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<C: 'static> Drop for Ticket<C> {
    fn drop(&mut self) {
        self.key.discard();
    }
}
