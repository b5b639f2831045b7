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
//!   not run to the one around it, and ends alone.
//! - T5 To rest is the last step of `do_idle_work` and of `turn`, after all that could bring something. From
//!   then on `next_delayed_work` says until when that was, whatever becomes of the task: so the pump does not
//!   wait longer than those who bring something believe.

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

/// How many tasks that have ended already one call passes by.
const PASSES: usize = 64;

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
    /// Until when the loop rests, if it does; T5.
    rests: Cell<Option<Until>>,
    /// How many tasks have run.
    ran: Cell<usize>,
    /// All that was pending has been dropped.
    is_closed: Cell<bool>,
}

/// `None`: until something comes.
type Until = Option<Instant>;

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
enum Verdict {
    Wait,
    Leave,
    GoOn,
}

impl Turns {
    pub(super) fn new(shared: Arc<Shared>, pump: Box<dyn MessagePump>) -> Rc<Turns> {
        let recently = Cell::new(shared.now());
        Rc::new(Turns {
            shared,
            idle: IdleHandlers::default(),
            closures: Closures::default(),
            pump,
            queues: RefCell::default(),
            levels: RefCell::default(),
            end: Cell::new(End::Open),
            recently,
            rests: Cell::new(None),
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
        if !self.is_busy() && self.run_idle_handlers() && self.is_to_leave_now() {
            return Next::Quit;
        }
        self.next()
    }

    /// When there is something to do again. If that is not now, the loop rests.
    fn next(&self) -> Next {
        if self.is_busy() || !self.falls_asleep() {
            return Next::Now;
        }
        self.rests.get().flatten().map_or(Next::Idle, Next::At)
    }

    /// Whether there is something to do at once; the end of the loop is.
    fn is_busy(&self) -> bool {
        self.look() || self.end.get() != End::Open || self.has_work()
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
        self.end.get() == End::Now || self.is_left(Leave::is_now)
    }

    /// Whether the innermost level was told so.
    fn is_left(&self, how: fn(&Leave) -> bool) -> bool {
        let levels = self.levels.borrow();
        levels.last().and_then(|level| level.leave.as_deref()).is_some_and(how)
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
    fn verdict(&self) -> Verdict {
        if self.has_work() {
            return Verdict::GoOn; // a look, such as for an end, has brought it in
        }
        if self.end.get() == End::Open {
            let is_left = self.is_left(Leave::is_when_idle);
            return if is_left { Verdict::Leave } else { Verdict::Wait };
        }
        if self.is_nested() && self.queues.borrow().has_put_by() {
            return Verdict::Leave; // T4
        }
        match self.shared.settle() {
            Settled::Ended => {
                self.end.set(End::Now);
                Verdict::Leave
            }
            Settled::NotYet => Verdict::GoOn,
        }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Takes in what has come. True if there is something to run at once.
    fn look(&self) -> bool {
        loop {
            let mut queues = self.queues.borrow_mut();
            queues.give_back();
            let Queues { immediate, arrived, .. } = &mut *queues;
            let look = self.shared.look(immediate, arrived);
            self.rests.set(None);
            queues.admit();
            if look.wants_sweep {
                self.sweep(&mut queues);
            }
            let has_immediate = !queues.immediate.is_empty();
            drop(queues);
            self.end.set(look.end);
            if look.strays.is_empty() {
                return has_immediate;
            }
            // What they post may have come in since; so once more.
            look.strays.into_iter().for_each(|stray| _ = self.shared.catch(|| drop(stray)));
        }
    }

    fn sweep(&self, queues: &mut Queues) {
        self.shared.found_husks(queues.sweep());
        self.shared.was_swept(queues.len());
    }

    /// T5. False: something has come.
    fn falls_asleep(&self) -> bool {
        let mut queues = self.queues.borrow_mut();
        self.shared.found_husks(queues.trim_delayed());
        if self.shared.is_full_of_husks(queues.len()) {
            self.sweep(&mut queues);
        }
        let until = queues.next_deadline();
        drop(queues);
        let rests = self.shared.rest(until);
        self.rests.set(rests.then_some(until));
        rests
    }

    /// Whoever calls the loop again ends its rest.
    fn rouse(&self) {
        if self.rests.take().is_some() {
            self.shared.rouse();
        }
    }

    /// Whether there is a task that this level may start now.
    fn has_work(&self) -> bool {
        self.queues.borrow().has_immediate(self.is_nested()) || self.has_delayed()
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
        for _ in 0..PASSES {
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
            self.run_again(task, due);
        }
        true
    }

    fn run_again(&self, task: PendingTask, due: Instant) {
        if self.is_closed.get() {
            return task.job.forfeit(); // it has dropped its loop
        }
        let sequence = self.shared.next_sequence();
        self.queues.borrow_mut().delay(PendingTask { deadline: Some(due), sequence, ..task });
    }

    /// One step of a turn: runs the next task of one sort.
    fn step(&self, next: impl Fn() -> Option<PendingTask>) -> bool {
        self.rouse();
        if self.leaves_now() {
            return false;
        }
        let did = self.run_next(next);
        if did {
            self.leaves_now();
        }
        did
    }

    fn run_idle_handlers(&self) -> bool {
        self.idle.run(&self.shared, || !self.is_to_leave_now())
    }

    // ----- the end of the loop -------------------------------------------------------------

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        self.shared.end(End::Now);
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
}

impl Delegate for Turns {
    fn do_work(&self) -> bool {
        self.step(|| self.next_immediate())
    }

    fn do_delayed_work(&self) -> bool {
        self.step(|| self.next_delayed())
    }

    fn next_delayed_work(&self) -> Option<Instant> {
        let first = || self.queues.borrow().next_deadline();
        self.rests.get().unwrap_or_else(first)
    }

    fn do_idle_work(&self) -> bool {
        self.rouse();
        if self.leaves_now() {
            return false;
        }
        match self.verdict() {
            Verdict::GoOn => true,
            Verdict::Leave => {
                self.quit_level();
                false
            }
            Verdict::Wait if self.run_idle_handlers() => {
                self.leaves_now();
                true
            }
            Verdict::Wait => !self.falls_asleep(),
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
