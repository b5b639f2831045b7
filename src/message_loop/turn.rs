//! What the loop's thread does in a turn, and [which loop](current) a thread has.
//!
//! A loop is bound to its thread from its `prepare` until it is dropped. A loop that is leaked instead ends with its
//! thread.
//!
//! Runs may nest: a task may run its loop again, on top of the stack. In a run, the pump calls the methods of the
//! [`Delegate`] here. `turn` and `run_until_idle` call the same methods without a pump. Nothing here is borrowed in the
//! meantime (INBOX-4).
//!
//! A run ends as soon as it is to quit at once, and otherwise when it has nothing left to do. An idle phase begins when a
//! task has run, or the loop was woken for it, and each idle handler runs once in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::inbox::{OutOfQueue, Seen, Shared};
use super::local::LocalTable;
use super::looper::Next;
use super::pump::{Delegate, MessagePump};
use super::queue::{QueuedTask, Tasks};
use super::run_loop::{Quit, RunQuit};
use crate::Repeat;
use crate::job::{Owner, Ran};
use crate::platform::impls::impl_debug;
use crate::platform::panics::caught;
use crate::platform::sync::{lock, thread_local};

/// How many cancelled tasks one call skips at most.
const MAX_SKIPPED: usize = 64;

/// It is borrowed while it runs.
type IdleHandler = Rc<RefCell<dyn FnMut() -> ControlFlow<()>>>;

/// Names an idle handler of a [`MessageLoop`](super::MessageLoop). No two handlers have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdleKey(u64);

impl_debug!(LoopCore, self, shared: self.shared);

/// The part of a loop that only its own thread uses.
pub(super) struct LoopCore {
    pub(super) shared: Arc<Shared>,
    pub(super) locals: LocalTable,
    pump: Box<dyn MessagePump>,
    /// The tasks that have come out of the inbox, and wait for their turns.
    tasks: RefCell<Tasks>,
    seen: Seen,
    /// The runs, the innermost last.
    runs: RefCell<Vec<ActiveRun>>,
    /// How many tasks have run.
    ran: Cell<usize>,
    idle_handlers: RefCell<BTreeMap<u64, IdleHandler>>,
    /// All that was pending has been dropped.
    pub(super) is_closed: Cell<bool>,
}

/// What calls the delegate's methods in a run.
enum ActiveRun {
    /// The pump. The run may be told to quit alone.
    Pump(Option<RunQuit>),
    UntilIdle,
    /// One `turn`, whose caller waits after it.
    Turn,
}

impl LoopCore {
    pub(super) fn new(shared: Arc<Shared>, pump: Box<dyn MessagePump>) -> Rc<LoopCore> {
        Rc::new(LoopCore {
            shared,
            locals: LocalTable::default(),
            pump,
            tasks: RefCell::default(),
            seen: Seen::default(),
            runs: RefCell::default(),
            ran: Cell::new(0),
            idle_handlers: RefCell::default(),
            is_closed: Cell::new(false),
        })
    }

    // ----- runs ----------------------------------------------------------------------------

    /// Has the pump run the loop until this run ends.
    pub(super) fn run(&self, quit: Option<RunQuit>) {
        self.in_run(ActiveRun::Pump(quit), || self.pump.run(self));
    }

    /// Runs what is due. Returns how many tasks ran.
    pub(super) fn run_until_idle(&self) -> usize {
        self.in_run(ActiveRun::UntilIdle, || {
            let before = self.ran.get();
            while self.work() || self.do_idle_work() {}
            self.ran.get() - before
        })
    }

    /// Takes one turn. Returns when its caller has to call it again.
    pub(super) fn turn(&self) -> Next {
        self.in_run(ActiveRun::Turn, || {
            let mut did = self.work();
            while did || self.do_idle_work() {
                // Immediate tasks do not set `changed`, so the inbox is looked into.
                if self.drain_inbox() || self.has_work() {
                    return Next::Now;
                }
                did = false;
            }
            // It sleeps, or a run has to end.
            let next = self.seen.first.get().map_or(Next::Idle, Next::At);
            if self.seen.is_asleep.get() { next } else { Next::Quit }
        })
    }

    /// Runs at most one task of each sort. Returns true if it ran one.
    fn work(&self) -> bool {
        let did = self.do_work();
        self.do_delayed_work() || did
    }

    /// Calls `body` as the innermost run. A panic of a pump, which is a user's, ends the run too.
    fn in_run<R>(&self, run: ActiveRun, body: impl FnOnce() -> R) -> R {
        // A user's clock may begin a run in the wait of the run around it.
        let interrupts = self.seen.is_asleep.get() && !self.runs.borrow().is_empty();
        let before = (self.seen.first.get(), self.ran.get());
        self.runs.borrow_mut().push(run);
        let result = caught(body);
        let run = self.runs.borrow_mut().pop();
        let waits = matches!(run, Some(ActiveRun::Turn));
        // Between two turns the loop stays awake or asleep, so that posts wake its caller no more often than they must.
        if !waits && self.runs.borrow().is_empty() && !self.is_closed.get() {
            self.shared.end_run();
        }
        if interrupts {
            // The wait goes on only if the loop sleeps as it did. Awake, it would miss the next post.
            let sleeps = self.seen.quit.get() == Quit::No && self.shared.rest(&self.seen);
            self.shared.wake_if(!sleeps || before != (self.seen.first.get(), self.ran.get()));
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn is_nested(&self) -> bool {
        self.runs.borrow().len() > 1
    }
}

// ----- a turn, as the pump takes it -------------------------------------------------------

impl Delegate for LoopCore {
    fn do_work(&self) -> bool {
        self.run_next(LoopCore::next_immediate)
    }

    fn do_delayed_work(&self) -> bool {
        self.run_next(LoopCore::next_delayed)
    }

    fn next_delayed_work(&self) -> Option<Instant> {
        self.seen.first.get()
    }

    fn do_idle_work(&self) -> bool {
        if self.quit_if_told() {
            return false;
        }
        if self.has_work() {
            return true; // the inbox was drained since, for example for a quit
        }
        let is_until_idle = matches!(self.runs.borrow().last(), Some(ActiveRun::UntilIdle));
        let ends = is_until_idle || self.was_told(Quit::WhenIdle);
        if self.seen.quit.get() == Quit::No && !ends {
            let goes_on = self.run_idle_handlers() || !self.shared.rest(&self.seen);
            self.shared.check_invariants(&self.seen, self.is_closed.get());
            return goes_on;
        }
        // A nested run that has deferred a task ends alone, and leaves that task to the outermost run. Otherwise the loop
        // ends when no run has anything left that may start.
        let may_end = !self.is_nested() || self.tasks.borrow().deferred.is_empty();
        if may_end && self.seen.quit.get() != Quit::No && !self.shared.rest(&self.seen) {
            return true; // something has come in
        }
        self.end_innermost_run();
        false
    }
}

impl LoopCore {
    /// Runs the next task of one sort, or skips as many cancelled ones as one call may. Returns false if there is none.
    fn run_next(&self, next: impl Fn(&LoopCore) -> Option<QueuedTask>) -> bool {
        // Asked before and after the task, because a quit from elsewhere and the task itself may end the run.
        if self.quit_if_told() {
            return false;
        }
        self.shared.check_invariants(&self.seen, self.is_closed.get());
        for _ in 0..MAX_SKIPPED {
            let Some(task) = next(self) else { return false };
            if self.run_task(&task) {
                break;
            }
        }
        self.quit_if_told();
        true
    }

    /// Runs a task. Returns false if it was cancelled, or is due later.
    fn run_task(&self, task: &QueuedTask) -> bool {
        let mut place = OutOfQueue { shared: &self.shared, task };
        let ran = task.job.run(&self.shared, &mut place);
        self.shared.count_passed(); // a skipped one too, because its poster waits for room in the queue
        match ran {
            Ran::Not => return false,
            Ran::Again if self.is_closed.get() => task.job.withdraw(), // it has dropped its loop
            Ran::Again | Ran::ForTheLastTime => {}
        }
        self.ran.set(self.ran.get() + 1);
        self.seen.has_idled.set(false); // a new idle phase
        true
    }

    /// Returns true if the innermost run itself was told to quit in that way, or a stricter one.
    fn was_told(&self, how: Quit) -> bool {
        let runs = self.runs.borrow();
        let Some(ActiveRun::Pump(Some(quit))) = runs.last() else { return false };
        *lock(quit) >= how
    }

    /// Tells the pump if the innermost run has to end without anything more, and returns true then.
    fn quit_if_told(&self) -> bool {
        // A look without the lock, in each call. A hint that comes late costs one turn (INBOX-5). A loop that has slept is
        // noted as awake, so that posts wake nobody from here on.
        if self.seen.is_asleep.get() || self.shared.has_changed() {
            self.drain_inbox();
        }
        let quits = self.seen.quit.get() == Quit::Now || self.was_told(Quit::Now);
        if quits {
            self.end_innermost_run();
        }
        quits
    }

    /// Tells the pump to return from its innermost run, if the pump has begun it.
    fn end_innermost_run(&self) {
        // Each outer run finds out by itself when it is the innermost one.
        if matches!(self.runs.borrow().last(), Some(ActiveRun::Pump(_))) {
            self.pump.quit();
        }
    }

    // ----- what comes in, and what is next ---------------------------------------------------

    /// Takes over what has come in. Returns true if there is an immediate task.
    fn drain_inbox(&self) -> bool {
        loop {
            let mut tasks = self.tasks.borrow_mut();
            let discarded = self.shared.drain(&mut tasks.immediate, &self.seen);
            let has_immediate = !tasks.immediate.is_empty();
            drop(tasks);
            if discarded.is_empty() {
                return has_immediate;
            }
            // The destructors may post something, so drain again.
            discarded.into_iter().for_each(|number| self.locals.discard(number, &self.shared));
        }
    }

    /// Returns the next immediate task that may start in the innermost run.
    #[inline] // a call for each task costs a fifth of a post
    fn next_immediate(&self) -> Option<QueuedTask> {
        loop {
            let task = self.tasks.borrow_mut().pop(self.is_nested());
            if task.is_some() || !self.drain_inbox() {
                return task;
            }
        }
    }

    /// Returns the next delayed task that may start now in the innermost run.
    #[inline] // see `next_immediate`
    fn next_delayed(&self) -> Option<QueuedTask> {
        while let Some(now) = self.delayed_is_due() {
            let task = self.shared.pop_delayed(now, &self.seen)?;
            if task.nests || !self.is_nested() {
                return Some(task);
            }
            self.tasks.borrow_mut().defer(task);
        }
        None
    }

    /// Returns a reading of the clock if the first of the delayed tasks may start by then.
    fn delayed_is_due(&self) -> Option<Instant> {
        // Without delayed tasks the clock is not read.
        self.seen.first.get()?;
        let now = self.shared.catch(|| self.shared.now())?; // if the clock panics, nothing counts as due
        // Another task may be the first one by now, because the clock is a user's, and may run the loop.
        let (first, by) = (self.seen.first.get()?, self.seen.quit.get().starts_by(now)?);
        (first <= by).then_some(now)
    }

    /// Returns true if a task may start now in the innermost run.
    fn has_work(&self) -> bool {
        // Nothing is borrowed any more when the clock is read.
        let has_immediate = self.tasks.borrow().has_next(self.is_nested());
        has_immediate || self.delayed_is_due().is_some()
    }

    // ----- idle handlers -------------------------------------------------------------------

    /// Adds an idle handler. A loop that is gone drops it.
    pub(super) fn add_idle_handler<R: Repeat>(
        &self,
        mut f: impl FnMut() -> R + 'static,
    ) -> IdleKey {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let key = COUNT.fetch_add(1, Ordering::Relaxed); // Relaxed, because only the number counts
        let handler: IdleHandler = Rc::new(RefCell::new(move || f().choice().map_continue(drop)));
        self.idle_handlers.borrow_mut().insert(key, handler);
        // A destructor at the end of the loop may come here, and the loop would not drop the handler any more.
        if self.is_closed.get() {
            self.remove_idle_handler(IdleKey(key));
        }
        IdleKey(key)
    }

    pub(super) fn remove_idle_handler(&self, key: IdleKey) -> bool {
        let removed = self.idle_handlers.borrow_mut().remove(&key.0);
        let was_there = removed.is_some();
        self.shared.catch(|| drop(removed));
        was_there
    }

    /// Runs all handlers, unless they have run in this idle phase, as long as the loop goes on. Returns true if there
    /// were any.
    fn run_idle_handlers(&self) -> bool {
        if self.seen.has_idled.replace(true) {
            return false;
        }
        // A list of its own, because handlers may add and remove handlers, themselves too.
        let keys: Vec<u64> = self.idle_handlers.borrow().keys().copied().collect();
        for key in &keys {
            let found = self.idle_handlers.borrow().get(key).map(Rc::clone);
            let Some(handler) = found else { continue }; // another handler has removed it
            let Ok(mut f) = handler.try_borrow_mut() else { continue }; // it runs below
            let flow = self.shared.catch(&mut *f);
            drop(f);
            if flow != Some(ControlFlow::Continue(())) {
                self.remove_idle_handler(IdleKey(*key));
            }
            self.shared.catch(|| drop(handler)); // the last reference, if it was removed
            if self.quit_if_told() {
                break;
            }
        }
        !keys.is_empty()
    }

    // ----- the end of the loop -------------------------------------------------------------

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        self.shared.quit(Quit::Now);
        self.drain_inbox(); // what was to be dropped before; and the loop is awake from here on (INBOX-2)
        // The tasks first, because the tickets among them drop their closures in the order in which they would have run. (Those
        // of a loop that was leaked are dropped below, when its thread ends.)
        let incoming = self.shared.take_all();
        let Tasks { immediate, deferred } = std::mem::take(&mut *self.tasks.borrow_mut());
        let pending = deferred.into_iter().chain(immediate).chain(incoming);
        pending.for_each(|task| task.job.withdraw());
        // Taken out of their tables first, because their destructors may come back here.
        let handlers = std::mem::take(&mut *self.idle_handlers.borrow_mut());
        handlers.into_values().for_each(|handler| _ = self.shared.catch(|| drop(handler)));
        let locals = std::mem::take(&mut *self.locals.entries.borrow_mut());
        locals.into_values().for_each(|local| _ = self.shared.catch(|| drop(local)));
    }
}

// ----- the loop of a thread ---------------------------------------------------------------

thread_local!(static CURRENT: RefCell<Option<CurrentLoop>> = const { RefCell::new(None) });

/// Closes the loop of a thread that ends while the loop is bound to it.
struct CurrentLoop(Rc<LoopCore>);

impl Drop for CurrentLoop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Binds a loop to this thread. Returns false if the thread has a loop, or is about to end.
pub(super) fn bind(core: &Rc<LoopCore>) -> bool {
    let loop_ = CurrentLoop(Rc::clone(core));
    current().is_none() && CURRENT.try_with(|it| *it.borrow_mut() = Some(loop_)).is_ok()
}

/// Closes a loop, and then releases the calling thread, which is bound to it or about to end.
pub(super) fn unbind(core: &LoopCore) {
    core.close();
    // Taken out first, because its drop closes the loop, which may ask for the current one.
    drop(CURRENT.try_with(|current| current.borrow_mut().take()));
}

/// Returns the loop of the calling thread, or `None` if it has none or is about to end.
pub(super) fn current() -> Option<Rc<LoopCore>> {
    let get =
        |current: &RefCell<Option<CurrentLoop>>| Some(Rc::clone(&current.borrow().as_ref()?.0));
    CURRENT.try_with(get).ok().flatten()
}

/// Returns this loop, if it is the one of the calling thread.
pub(super) fn if_current(shared: &Shared) -> Option<Rc<LoopCore>> {
    current().filter(|core| std::ptr::eq(Arc::as_ptr(&core.shared), shared))
}
