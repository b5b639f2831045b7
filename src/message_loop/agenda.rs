//! What there is to do, as the loop's thread knows it: what it has taken in, the end that it has seen, and
//! until when it rests.
//!
//! - G1 Nothing is borrowed while a destructor or the clock is called: each may come back here.
//! - G2 While the loop rests, `next_deadline` says until when that was, whatever becomes of the task: so nobody
//!   waits longer than those who bring something believe.
//! - G3 How many delayed tasks are overdue is counted now and then, so seldom that a task costs no more than a
//!   step of that; in between, those that leave are taken off.
//! - G4 The run of a series has its turn from the moment when it became possible: when it was planned for, or when
//!   the run before it ended, whichever is later. By its plan alone, a series that lags behind would always be the
//!   first, and nothing else would ever run. The plan itself, and so the phase, does not change.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use super::ending::{Delayed, End};
use super::inbox::Shared;
use super::queues::{PendingTask, Queues};
use crate::job::Owner;

pub(super) struct Agenda {
    shared: Arc<Shared>,
    queues: RefCell<Queues>,
    /// As the last look has found it.
    end: Cell<End>,
    /// A time that has come. What was due by then is due, without a further look at the clock.
    recently: Cell<Instant>,
    /// Until when the loop rests, if it does; G2.
    rests: Cell<Option<Until>>,
    /// How many delayed tasks are overdue, and how many come or go before they are counted again; G3.
    overdue: Cell<usize>,
    until_count: Cell<usize>,
}

/// Every so many delayed tasks that come or go, those that are overdue are counted; G3.
const COUNTS: usize = 1024;

/// `None`: until something comes.
type Until = Option<Instant>;

impl Agenda {
    pub(super) fn new(shared: Arc<Shared>) -> Agenda {
        let recently = Cell::new(shared.now());
        let (queues, end, rests) = (RefCell::default(), Cell::default(), Cell::default());
        let (overdue, until_count) = (Cell::new(0), Cell::new(COUNTS));
        Agenda { shared, queues, end, recently, rests, overdue, until_count }
    }

    pub(super) fn end(&self) -> End {
        self.end.get()
    }

    // ----- what comes in -------------------------------------------------------------------

    /// Takes in what has come. True if there is something to run at once.
    pub(super) fn look(&self) -> bool {
        loop {
            let mut queues = self.queues.borrow_mut();
            queues.give_back();
            let Queues { immediate, arrived, .. } = &mut *queues;
            let look = self.shared.look(immediate, arrived, self.overdue.get());
            self.rests.set(None);
            let came = queues.admit();
            if look.wants_sweep {
                self.sweep(&mut queues);
            }
            let has_immediate = !queues.immediate.is_empty();
            drop(queues);
            self.end.set(look.end);
            self.see_to_a_count(came);
            if look.strays.is_empty() {
                return has_immediate;
            }
            // What they post may have come in since; so once more.
            look.strays.into_iter().for_each(|stray| _ = self.shared.catch(|| drop(stray)));
        }
    }

    /// The same, if something but immediate tasks has come.
    pub(super) fn look_for_news(&self) {
        if self.shared.has_news() {
            self.look();
        }
    }

    fn sweep(&self, queues: &mut Queues) {
        let gone = queues.sweep();
        self.shared.was_swept(gone, queues.len());
    }

    /// So many delayed tasks have come, or gone; G3.
    fn see_to_a_count(&self, moved: usize) {
        let left = self.until_count.get().saturating_sub(moved);
        self.until_count.set(left);
        if left == 0 {
            self.until_count.set(COUNTS);
            let Some(now) = self.shared.catch(|| self.shared.now()) else { return }; // G1
            let overdue = self.queues.borrow().overdue(now);
            self.until_count.set(COUNTS + overdue);
            self.overdue.set(overdue);
        }
    }

    // ----- what is next --------------------------------------------------------------------

    pub(super) fn next_immediate(&self, is_nested: bool) -> Option<PendingTask> {
        loop {
            let task = self.queues.borrow_mut().pop_immediate(is_nested);
            if task.is_some() || !self.look() {
                return task;
            }
        }
    }

    /// A delayed task that is due and may start, now and at this level.
    pub(super) fn next_delayed(&self, is_nested: bool) -> Option<PendingTask> {
        while self.has_delayed() {
            let task = self.queues.borrow_mut().pop_delayed()?;
            self.overdue.set(self.overdue.get().saturating_sub(1));
            self.see_to_a_count(1);
            if task.nests || !is_nested {
                return Some(task);
            }
            self.queues.borrow_mut().put_by(task);
        }
        None
    }

    /// Whether there is a task that may start now, at this level.
    pub(super) fn has_work(&self, is_nested: bool) -> bool {
        self.queues.borrow().has_immediate(is_nested) || self.has_delayed()
    }

    /// Whether a task waits for the outermost level.
    pub(super) fn has_put_by(&self) -> bool {
        self.queues.borrow().has_put_by()
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

    /// A series whose run has just ended waits for its next one, which is planned for `planned`; G4.
    pub(super) fn run_again(&self, task: PendingTask, planned: Instant) {
        let ended = self.shared.catch(|| self.shared.now()); // G1
        let possible = ended.map_or(planned, |ended| planned.max(ended));
        let sequence = self.shared.next_sequence();
        self.queues.borrow_mut().delay(PendingTask { deadline: Some(possible), sequence, ..task });
    }

    // ----- rest and end --------------------------------------------------------------------

    /// The loop rests, until its next deadline. False: something has come.
    pub(super) fn falls_asleep(&self) -> bool {
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
    pub(super) fn rouse(&self) {
        if self.rests.take().is_some() {
            self.shared.rouse();
        }
    }

    /// G2.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.rests.get().unwrap_or_else(|| self.queues.borrow().next_deadline())
    }

    /// The end of a loop that was to end when nothing is left. False: something has come in.
    pub(super) fn settles(&self) -> bool {
        let has_ended = self.shared.settles();
        if has_ended {
            self.end.set(End::Now);
        }
        has_ended
    }

    /// Drops all that is pending, here and now, and takes nothing more.
    pub(super) fn close(&self) {
        self.shared.end(End::Now);
        loop {
            self.look();
            let pending = self.queues.borrow_mut().take_all();
            pending.into_iter().for_each(|task| task.job.forfeit());
            if self.shared.is_gone() {
                return;
            }
        }
    }
}
