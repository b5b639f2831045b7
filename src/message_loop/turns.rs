//! What the loop's thread does in a turn, and [which loop](current) a thread has.
//!
//! A loop is bound to its thread from its `prepare` until it is dropped. One that is leaked instead ends with its
//! thread.
//!
//! A run, nested or not, is a [`Level`]. The pump goes round, and calls the [`Delegate`] here; `turn` and
//! `run_until_idle` call the same methods without a pump.
//!
//! - NEST-1 Nothing here is borrowed while a task, a handler, a destructor, the clock or the pump is called: each
//!   of them may call the loop again.
//! - NEST-2 Only the innermost level is told to quit. Each outer level finds out when it is the innermost one.
//! - NEST-3 A level is left as soon as it is to end at once, and otherwise when it has nothing left to do.
//! - NEST-4 The loop ends when no level has anything left that may start. A nested level that has deferred a task ends
//!   alone, and leaves that task to the outermost one.
//! - NEST-5 Resting is the last step of `do_idle_work` and of `turn`, after everything that could post.
//! - IDLE-1 An idle phase begins when a task has run, and each idle handler runs once in it.
//! - IDLE-2 A handler is taken out of the table while it runs, so it may add and remove handlers, itself too.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::end::End;
use super::inbox::Shared;
use super::local::Locals;
use super::looper::Next;
use super::pump::{Delegate, MessagePump};
use super::queue::{Agenda, PendingTask};
use super::run_loop::Leave;
use crate::Repeat;
use crate::job::Ran;
use crate::platform::sync::local;

/// How many cancelled tasks one call skips at most.
const MAX_SKIPPED: usize = 64;

pub(super) struct Turns {
    pub(super) shared: Arc<Shared>,
    idle: IdleHandlers,
    pub(super) locals: Locals,
    agenda: Agenda,
    pump: Box<dyn MessagePump>,
    /// The runs, the innermost last.
    levels: RefCell<Vec<Level>>,
    /// How many tasks have run.
    ran: Cell<usize>,
    /// All that was pending has been dropped.
    is_closed: Cell<bool>,
}

/// One run.
struct Level {
    /// What ends it alone.
    leave: Option<Arc<Leave>>,
    kind: Kind,
}

/// What calls the delegate's methods in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pump,
    /// `run_until_idle`.
    Here,
    /// The caller of `turn`, who waits in between.
    Caller,
}

/// What becomes of a level that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    Leave,
    GoOn,
}

impl Turns {
    pub(super) fn new(shared: Arc<Shared>, pump: Box<dyn MessagePump>) -> Rc<Turns> {
        Rc::new(Turns {
            agenda: Agenda::new(Arc::clone(&shared)),
            shared,
            idle: IdleHandlers::default(),
            locals: Locals::default(),
            pump,
            levels: RefCell::default(),
            ran: Cell::new(0),
            is_closed: Cell::new(false),
        })
    }

    // ----- runs ----------------------------------------------------------------------------

    /// Has the pump run the loop until this level is left.
    pub(super) fn run(&self, leave: Option<Arc<Leave>>) {
        let _level = self.begin(leave, Kind::Pump);
        if !self.is_to_leave_now() {
            self.pump.run(self);
        }
    }

    /// Runs what is due. How many tasks ran.
    pub(super) fn run_until_idle(&self) -> usize {
        let _level = self.begin(None, Kind::Here);
        let before = self.ran.get();
        loop {
            let did = self.do_work();
            let did = self.do_delayed_work() || did;
            if self.is_to_leave_now() || !did && self.verdict() != Verdict::GoOn {
                return self.ran.get() - before;
            }
        }
    }

    /// One turn, and what its caller is to do next.
    pub(super) fn turn(&self) -> Next {
        let _level = self.begin(None, Kind::Caller);
        let did = self.do_work();
        let did = self.do_delayed_work() || did;
        if self.is_to_leave_now() || !did && self.verdict() == Verdict::Leave {
            return Next::Quit;
        }
        if self.is_busy() {
            return Next::Now;
        }
        if self.idle.run(self) && self.is_to_leave_now() {
            return Next::Quit;
        }
        // The handlers may have posted something.
        if self.is_busy() || !self.agenda.falls_asleep() {
            return Next::Now;
        }
        self.agenda.next_deadline().map_or(Next::Idle, Next::At)
    }

    /// Whether there is something to do at once; the end of the loop is.
    fn is_busy(&self) -> bool {
        self.agenda.look() || self.agenda.end() != End::Open || self.has_work()
    }

    /// Whether there is a task that the innermost level may start now.
    fn has_work(&self) -> bool {
        self.agenda.has_work(self.is_nested())
    }

    fn begin(&self, leave: Option<Arc<Leave>>, kind: Kind) -> Guard<'_> {
        self.levels.borrow_mut().push(Level { leave, kind });
        Guard(self)
    }

    fn is_nested(&self) -> bool {
        self.levels.borrow().len() > 1
    }

    // ----- the end of a level --------------------------------------------------------------

    /// NEST-3. Whether the innermost level is to end without anything more.
    fn is_to_leave_now(&self) -> bool {
        self.agenda.look_if_changed();
        self.agenda.end() == End::Now || self.is_left(Leave::is_now)
    }

    /// Whether the innermost level was told so.
    fn is_left(&self, how: fn(&Leave) -> bool) -> bool {
        let levels = self.levels.borrow();
        levels.last().and_then(|level| level.leave.as_deref()).is_some_and(how)
    }

    /// As `is_to_leave_now`, and tells the pump; NEST-2.
    fn leaves_now(&self) -> bool {
        let leaves = self.is_to_leave_now();
        if leaves {
            self.quit_level();
        }
        leaves
    }

    fn quit_level(&self) {
        let kind = self.levels.borrow().last().map(|level| level.kind);
        if kind == Some(Kind::Pump) {
            self.pump.quit();
        }
    }

    /// The innermost level has done nothing in this turn.
    fn verdict(&self) -> Verdict {
        if self.has_work() {
            return Verdict::GoOn; // a look, such as for an end, has brought it in
        }
        if self.agenda.end() == End::Open {
            let is_left = self.is_left(Leave::is_when_idle);
            return if is_left { Verdict::Leave } else { Verdict::Wait };
        }
        if self.is_nested() && self.agenda.has_deferred() {
            return Verdict::Leave; // NEST-4
        }
        if self.agenda.ends_if_empty() { Verdict::Leave } else { Verdict::GoOn }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Runs the next task, or skips as many cancelled ones as one call may.
    fn run_next(&self, next: impl Fn() -> Option<PendingTask>) -> bool {
        for _ in 0..MAX_SKIPPED {
            let Some(task) = next() else { return false };
            if self.run_task(task) {
                return true;
            }
        }
        true
    }

    /// Returns false if the task was cancelled.
    fn run_task(&self, task: PendingTask) -> bool {
        let ran = task.job.run(&self.shared);
        self.shared.count_passed();
        if ran == Ran::Not {
            self.shared.removed_cancelled(1);
            return false;
        }
        self.ran.set(self.ran.get() + 1);
        self.idle.something_ran();
        match ran {
            Ran::Again(_) if self.is_closed.get() => task.job.withdraw(), // it has dropped its loop
            Ran::Again(due) => self.agenda.run_again(task, due),
            Ran::ForTheLastTime | Ran::Not => {}
        }
        true
    }

    /// One step of a turn: runs the next task of one sort.
    fn step(&self, next: impl Fn() -> Option<PendingTask>) -> bool {
        self.agenda.end_rest();
        if self.leaves_now() {
            return false;
        }
        let did = self.run_next(next);
        if did {
            self.leaves_now();
        }
        did
    }

    // ----- idle handlers -------------------------------------------------------------------

    /// A loop that is gone drops the handler.
    pub(super) fn add_idle_handler<R: Repeat>(&self, f: impl FnMut() -> R + 'static) -> IdleKey {
        let key = self.idle.add(f);
        if self.is_closed.get() {
            self.remove_idle_handler(key);
        }
        key
    }

    pub(super) fn remove_idle_handler(&self, key: IdleKey) -> bool {
        self.idle.remove(key, &self.shared)
    }

    // ----- the end of the loop -------------------------------------------------------------

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        self.agenda.close();
        self.idle.clear(&self.shared);
        self.locals.clear(&self.shared);
    }
}

impl Delegate for Turns {
    fn do_work(&self) -> bool {
        self.step(|| self.agenda.next_immediate(self.is_nested()))
    }

    fn do_delayed_work(&self) -> bool {
        self.step(|| self.agenda.next_delayed(self.is_nested()))
    }

    fn next_delayed_work(&self) -> Option<Instant> {
        self.agenda.next_deadline()
    }

    fn do_idle_work(&self) -> bool {
        self.agenda.end_rest();
        if self.leaves_now() {
            return false;
        }
        match self.verdict() {
            Verdict::GoOn => true,
            Verdict::Leave => {
                self.quit_level();
                false
            }
            Verdict::Wait if self.idle.run(self) => {
                self.leaves_now();
                true
            }
            Verdict::Wait => !self.agenda.falls_asleep(),
        }
    }
}

/// A level is on the stack.
struct Guard<'a>(&'a Turns);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let level = self.0.levels.borrow_mut().pop();
        let waits = level.is_some_and(|level| level.kind == Kind::Caller);
        if !waits && self.0.levels.borrow().is_empty() {
            self.0.shared.leave();
        }
    }
}

// ----- idle handlers ----------------------------------------------------------------------

type Handler = Box<dyn FnMut() -> ControlFlow<()>>;

/// Names an idle handler of a [`MessageLoop`](super::MessageLoop), and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdleKey(u64);

#[derive(Default)]
struct IdleHandlers {
    /// `None`: it runs just now; IDLE-2.
    handlers: RefCell<BTreeMap<u64, Option<Handler>>>,
    /// They have run in this phase; IDLE-1.
    has_run: Cell<bool>,
}

impl IdleHandlers {
    fn add<R: Repeat>(&self, mut f: impl FnMut() -> R + 'static) -> IdleKey {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let key = COUNT.fetch_add(1, Ordering::Relaxed); // it only has to be another one
        let handler: Handler = Box::new(move || f().flow());
        self.handlers.borrow_mut().insert(key, Some(handler));
        IdleKey(key)
    }

    /// True if it was there.
    fn remove(&self, key: IdleKey, shared: &Shared) -> bool {
        let removed = self.handlers.borrow_mut().remove(&key.0);
        let was_there = removed.is_some();
        shared.catch(|| drop(removed));
        was_there
    }

    /// IDLE-1.
    fn something_ran(&self) {
        self.has_run.set(false);
    }

    /// Runs all, unless they have run in this phase, as long as the loop goes on. True if there were any.
    fn run(&self, turns: &Turns) -> bool {
        if self.has_run.replace(true) {
            return false;
        }
        let keys: Vec<u64> = self.handlers.borrow().keys().copied().collect();
        let goes_on = |_: &&u64| !turns.is_to_leave_now();
        keys.iter().take_while(goes_on).for_each(|key| self.run_one(*key, &turns.shared));
        !keys.is_empty()
    }

    fn run_one(&self, key: u64, shared: &Shared) {
        let taken = self.handlers.borrow_mut().get_mut(&key).and_then(Option::take);
        let Some(mut handler) = taken else { return }; // it was removed, or runs below
        let flow = shared.catch(&mut handler);
        let goes_on = flow == Some(ControlFlow::Continue(()));
        let mut handlers = self.handlers.borrow_mut();
        let unwanted = match handlers.get_mut(&key) {
            Some(room) if goes_on => room.replace(handler),
            _ => {
                handlers.remove(&key);
                Some(handler)
            }
        };
        drop(handlers);
        shared.catch(|| drop(unwanted));
    }

    fn clear(&self, shared: &Shared) {
        let handlers = std::mem::take(&mut *self.handlers.borrow_mut());
        for handler in handlers.into_values() {
            shared.catch(|| drop(handler));
        }
    }
}

// ----- the loop of a thread ---------------------------------------------------------------

local!(
    CURRENT: RefCell<Option<Bound>> = RefCell::new(None)
);

struct Bound(Rc<Turns>);

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Binds a loop to this thread. False: the thread has one, or is about to end.
pub(super) fn bind(turns: &Rc<Turns>) -> bool {
    let bind = |current: &RefCell<Option<Bound>>| {
        let mut current = current.borrow_mut();
        let is_free = current.is_none();
        if is_free {
            *current = Some(Bound(Rc::clone(turns)));
        }
        is_free
    };
    CURRENT.try_with(bind).unwrap_or(false)
}

/// Gives the thread free, if it is bound to this loop.
pub(super) fn unbind(shared: &Shared) {
    if is_current(shared) {
        let bound = CURRENT.try_with(|current| current.borrow_mut().take());
        drop(bound);
    }
}

/// The loop of the calling thread. None as well when the thread is about to end.
pub(super) fn current() -> Option<Rc<Turns>> {
    let look = |current: &RefCell<Option<Bound>>| Some(Rc::clone(&current.borrow().as_ref()?.0));
    CURRENT.try_with(look).ok().flatten()
}

/// Whether this is the loop of the calling thread.
pub(super) fn is_current(shared: &Shared) -> bool {
    current().is_some_and(|turns| std::ptr::eq(Arc::as_ptr(&turns.shared), shared))
}
