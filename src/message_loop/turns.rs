//! The loop's own side: what its thread does in a turn.
//!
//! A run, nested or not, is a [`Level`]. The pump goes round, and calls the [`Delegate`] here; `turn` and
//! `run_until_idle` call the same methods without a pump.
//!
//! - T1 Nothing here is borrowed while a task, a handler, a destructor, the clock or the pump is called: each
//!   of them may call the loop again.
//! - T2 Only the innermost level is told to quit. Those around it find out when they are the innermost.
//! - T3 A level is left as soon as it is to end at once, and otherwise when it has nothing left to do.
//! - T4 The loop ends when no level has anything left that may start: a nested one leaves what it must
//!   not run to the one around it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::ending::{Delayed, End};
use super::idle::IdleHandlers;
use super::inbox::{Settled, Shared};
use super::local_runner::Closures;
use super::looper::Next;
use super::pump::{Delegate, MessagePump};
use super::queues::{PendingTask, Queues};
use super::run_loop::Leave;
use crate::job::{Owner, Ran};
use crate::sync::local;

/// How many tasks that have ended already one call passes by.
const PATIENCE: usize = 64;

local!(
    /// The loop that this thread is bound to.
    CURRENT: RefCell<Option<Rc<Turns>>> = RefCell::new(None)
);

/// The loop of the calling thread. None as well when the thread is about to end.
pub(super) fn current() -> Option<Rc<Turns>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Whether this is the loop of the calling thread.
pub(super) fn is_current(shared: &Shared) -> bool {
    with_current(shared, |_| ()).is_some()
}

/// Whether the caller is called, however deep, from a turn of this loop.
pub(super) fn is_in_turn(shared: &Shared) -> bool {
    with_current(shared, |turns| turns.calls.get() > 0) == Some(true)
}

fn with_current<R>(shared: &Shared, f: impl FnOnce(&Turns) -> R) -> Option<R> {
    let look = |current: &RefCell<Option<Rc<Turns>>>| {
        let current = current.borrow();
        let turns =
            current.as_ref().filter(|turns| std::ptr::eq(Arc::as_ptr(&turns.shared), shared));
        turns.map(|turns| f(turns))
    };
    CURRENT.try_with(look).ok().flatten()
}

pub(super) struct Turns {
    pub(super) shared: Arc<Shared>,
    pub(super) idle: IdleHandlers,
    pub(super) closures: Closures,
    pump: Box<dyn MessagePump>,
    queues: RefCell<Queues>,
    /// The runs, the innermost last.
    levels: RefCell<Vec<Level>>,
    /// As the last look has found it.
    end: Cell<End>,
    /// A time that has come. What was due by then is due, without a further look at the clock.
    recently: Cell<Instant>,
    /// How many calls of the delegate are on the stack.
    calls: Cell<usize>,
    /// How many tasks have run.
    ran: Cell<usize>,
}

/// One run.
struct Level {
    /// What ends it alone.
    leave: Option<Arc<Leave>>,
    kind: Kind,
}

/// Who goes round in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pump,
    /// `run_until_idle`.
    Here,
    /// Whoever calls `turn`, and waits in between.
    Caller,
}

/// What becomes of a level that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Wait,
    Leave,
    GoOn,
}

impl Turns {
    /// Binds a loop to this thread, unless it has one.
    pub(super) fn bind(shared: Arc<Shared>, pump: Box<dyn MessagePump>) -> Option<Rc<Turns>> {
        let recently = Cell::new(shared.now());
        let turns = Rc::new(Turns {
            shared,
            idle: IdleHandlers::default(),
            closures: Closures::default(),
            pump,
            queues: RefCell::default(),
            levels: RefCell::default(),
            end: Cell::new(End::Open),
            recently,
            calls: Cell::new(0),
            ran: Cell::new(0),
        });
        let bound = Rc::clone(&turns);
        let is_bound = CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            let is_free = current.is_none();
            if is_free {
                *current = Some(bound);
            }
            is_free
        });
        is_bound.then_some(turns)
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
            if self.is_to_leave_now() || !did && self.rest() != Rest::GoOn {
                return self.ran.get() - before;
            }
        }
    }

    /// One turn, and what its caller is to do next.
    pub(super) fn turn(&self) -> Next {
        let _level = self.begin(None, Kind::Caller);
        let did = self.do_work();
        let did = self.do_delayed_work() || did;
        if self.is_to_leave_now() || !did && self.rest() == Rest::Leave {
            return Next::Quit;
        }
        match self.next() {
            Next::At(_) | Next::Idle if self.run_idle_handlers() => self.next(),
            next => next,
        }
    }

    /// When there is something to do again. If that is not now, the loop rests.
    fn next(&self) -> Next {
        let is_ending = self.end.get() != End::Open; // and somebody has to see it end
        let is_nested = self.is_nested();
        if is_ending || self.queues.borrow().has_immediate(is_nested) || self.look() {
            return Next::Now;
        }
        match self.next_delayed_work() {
            None => Next::Idle,
            Some(deadline) if self.is_due(deadline) => Next::Now,
            Some(deadline) => Next::At(deadline),
        }
    }

    fn begin(&self, leave: Option<Arc<Leave>>, kind: Kind) -> Guard<'_> {
        self.levels.borrow_mut().push(Level { leave, kind });
        Guard(self)
    }

    fn is_nested(&self) -> bool {
        self.levels.borrow().len() > 1
    }

    // ----- the end of a level --------------------------------------------------------------

    /// T3. Whether the innermost level is to end without anything more.
    fn is_to_leave_now(&self) -> bool {
        if self.shared.has_news() {
            self.look();
        }
        let levels = self.levels.borrow();
        let leave = levels.last().and_then(|level| level.leave.as_ref());
        self.end.get() == End::Now || leave.is_some_and(|leave| leave.is_now())
    }

    /// The same, and tells the pump; T2.
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
    fn rest(&self) -> Rest {
        let is_nested = self.is_nested();
        if self.queues.borrow().has_immediate(is_nested) || self.has_delayed() {
            return Rest::GoOn; // a look, such as for an end, has brought it in
        }
        if self.end.get() == End::Open {
            let levels = self.levels.borrow();
            let leave = levels.last().and_then(|level| level.leave.as_ref());
            return if leave.is_some_and(|leave| leave.is_when_idle()) {
                Rest::Leave
            } else {
                Rest::Wait
            };
        }
        if is_nested && self.queues.borrow().has_put_by() {
            return Rest::Leave; // T4
        }
        match self.shared.settle() {
            Settled::Ended => {
                self.end.set(End::Now);
                Rest::Leave
            }
            Settled::NotYet => Rest::GoOn,
        }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Takes in what has come, and rests if there is nothing to run at once: true if there is.
    fn look(&self) -> bool {
        loop {
            let mut queues = self.queues.borrow_mut();
            let first = queues.next_deadline();
            queues.give_back();
            let Queues { immediate, arrived, .. } = &mut *queues;
            let look = self.shared.look(immediate, arrived, first);
            queues.admit();
            let has_immediate = !queues.immediate.is_empty();
            let is_full =
                look.wants_sweep || (!has_immediate && self.shared.is_full_of_husks(queues.len()));
            if is_full {
                self.shared.found_husks(queues.sweep());
                self.shared.was_swept(queues.len());
            }
            drop(queues);
            self.end.set(look.end);
            if look.strays.is_empty() {
                return has_immediate;
            }
            // What they post may have come in since; so once more.
            look.strays.into_iter().for_each(|stray| _ = self.shared.catch(|| drop(stray)));
        }
    }

    fn next_immediate(&self) -> Option<PendingTask> {
        loop {
            let task = self.queues.borrow_mut().pop_immediate(self.is_nested());
            if task.is_some() || !self.look() {
                return task;
            }
        }
    }

    /// A delayed task that is due and may start, now and at this level.
    fn next_delayed(&self) -> Option<PendingTask> {
        while self.has_delayed() {
            let task = self.queues.borrow_mut().pop_delayed()?;
            if task.nests || !self.is_nested() {
                return Some(task);
            }
            self.queues.borrow_mut().put_by(task);
        }
        None
    }

    /// Whether the first of the delayed tasks may start now.
    fn has_delayed(&self) -> bool {
        let Some(deadline) = self.queues.borrow().next_deadline() else { return false };
        match self.end.get().delayed() {
            Delayed::WhenDue => self.is_due(deadline),
            Delayed::Until(at) => deadline <= at,
            Delayed::None => false,
        }
    }

    fn is_due(&self, deadline: Instant) -> bool {
        if deadline > self.recently.get() {
            self.recently.set(self.shared.now());
        }
        deadline <= self.recently.get()
    }

    /// Runs the next of those that are to run, or passes by so many that have ended.
    fn run_next(&self, next: impl Fn() -> Option<PendingTask>) -> bool {
        for _ in 0..PATIENCE {
            let Some(task) = next() else { return false };
            if self.run_task(task) {
                return true;
            }
        }
        true
    }

    /// False: it was cancelled.
    fn run_task(&self, task: PendingTask) -> bool {
        let ran = task.job.run(&self.shared);
        if ran == Ran::Not {
            self.shared.found_husks(1);
            return false;
        }
        self.ran.set(self.ran.get() + 1);
        self.idle.something_ran();
        if let Ran::Again(due) = ran {
            let sequence = self.shared.next_sequence();
            self.queues.borrow_mut().delay(PendingTask { deadline: Some(due), sequence, ..task });
        }
        true
    }

    fn run_idle_handlers(&self) -> bool {
        let _call = Call::of(self);
        self.idle.run(&self.shared)
    }

    // ----- the end of the loop -------------------------------------------------------------

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        self.shared.end(End::Now);
        let _call = Call::of(self);
        loop {
            self.look();
            let pending = self.queues.borrow_mut().take_all();
            pending.into_iter().for_each(|task| task.job.forfeit());
            if self.shared.is_gone() {
                break;
            }
        }
        self.idle.clear(&self.shared);
        self.closures.clear(&self.shared);
    }

    /// Gives the thread free.
    pub(super) fn unbind(&self) {
        let bound = CURRENT.try_with(|current| {
            let is_mine = is_current(&self.shared);
            if is_mine { current.borrow_mut().take() } else { None }
        });
        drop(bound);
    }
}

impl Drop for Turns {
    /// What runs while its loop is dropped may leave something behind.
    fn drop(&mut self) {
        self.close();
    }
}

impl Delegate for Turns {
    fn do_work(&self) -> bool {
        let _call = Call::of(self);
        if self.leaves_now() {
            return false;
        }
        let did = self.run_next(|| self.next_immediate());
        if did {
            self.leaves_now();
        }
        did
    }

    fn do_delayed_work(&self) -> bool {
        let _call = Call::of(self);
        if self.leaves_now() {
            return false;
        }
        let did = self.run_next(|| self.next_delayed());
        if did {
            self.leaves_now();
        }
        did
    }

    fn next_delayed_work(&self) -> Option<Instant> {
        let mut queues = self.queues.borrow_mut();
        self.shared.found_husks(queues.trim_delayed());
        queues.next_deadline()
    }

    fn do_idle_work(&self) -> bool {
        let _call = Call::of(self);
        if self.leaves_now() {
            return false;
        }
        match self.rest() {
            Rest::Wait => self.idle.run(&self.shared),
            Rest::GoOn => true,
            Rest::Leave => {
                self.quit_level();
                false
            }
        }
    }
}

/// A call of the delegate is on the stack.
struct Call<'a>(&'a Turns);

impl<'a> Call<'a> {
    fn of(turns: &'a Turns) -> Call<'a> {
        turns.calls.set(turns.calls.get() + 1);
        Call(turns)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
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
