//! The last turn: it makes leftovers of what is pending, or drops it, and wakes the wakers.
//!
//! A task is pending in a lane, in the wheel, in the ready queue, in a retry queue, or in the queue of an executor that
//! has taken and not started it (S29). To find the tasks that executors have, the engine looks at all holders. A holder
//! names the scheduler of its task. The engine claims each task by its word. So a task that starts at this moment runs and
//! is no leftover, and an executor that comes to a claimed task later runs nothing.

use super::Engine;
use super::this_thread::TurningMark;
use crate::engine::slots::Phase;
use crate::engine::slots::state::Word;
use crate::engine::slots::task::{self, Leftover};
use crate::engine::slots::trim;
use crate::engine::termination::Leaver;
use crate::observe::TaskPanic;
use crate::platform::panics::{Payload, discard, quietly};
use crate::wheel::entry::{Entry, TaskKey};

impl Engine {
    /// Closes the intake, collects what is pending, and fulfils the termination. Does nothing the second time.
    pub(super) fn shut_down(&mut self) {
        // The executor is there exactly until the first shutdown, so it also marks that there was one.
        let Some(executor) = self.executor.take() else { return };
        let mut entries = Vec::new();
        let hooks = &self.shared.hooks;
        // Each part by itself: if a fault of ours has broken one, the lanes are closed, and the wakers in the others are
        // woken (S17). Tasks come back in any case, because their holders are looked at.
        let part = |drain: &mut dyn FnMut()| _ = hooks.catch(drain);
        part(&mut || entries = self.retries.drain());
        part(&mut || self.ready.drain(&mut entries));
        part(&mut || self.wheel.drain(&mut entries));
        // The lanes are closed last. A record that comes in until then is collected, and one that comes later is refused
        // by its lane.
        part(&mut || {
            self.reader.close(&self.shared.intake, |record, _| entries.push(record.entry));
        });
        // Empty, unless a turn was broken off. A task that is met twice is given back once.
        entries.append(&mut self.incoming);
        entries.append(&mut self.given_out);
        let (wakers, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry: &Entry| entry.is_waker());
        self.shared.take_wakers(wakers.into_iter(), None, &mut self.wakers);

        // The termination sorts them by deadline, stably. At equal deadlines those that executors have come first, in no
        // order, then the refused tasks, then the others in the order of scheduling.
        let make =
            |entry: Entry| self.shared.make_leftover(entry.slot(), entry.number(), Phase::Pending);
        let count = self.fulfil(entries.into_iter().filter_map(make).collect());
        self.shared.wake(&mut self.wakers); // they find the scheduler closed
        self.shared.hooks.observe(|observer| observer.stopped(count));
        self.shared.hooks.catch(|| drop(executor));
        self.shared.bell.wakes(None); // it may be a user's, and handles keep the bell alive
        // From now on no engine of this scheduler trims memory. If it was the last one of all, the trim is done here.
        self.trims = None;
        trim::at_the_end();
    }

    /// Ends the scheduler after a panic that is a fault of ours: what was pending waits for a `close`, and the hook is told
    /// (S17).
    pub(super) fn fail(&mut self, fault: Payload) {
        // Nobody has asked for the leftovers, so they would be dropped. A program that loses its scheduler by a fault
        // of ours gets its tasks back by a `close`. So this is a close that leaves them to the next one.
        self.shared.termination.join();
        self.shared.stop();
        quietly(|| self.shut_down()); // the first fault is told
        if !self.shared.termination.has_come() {
            // A fault has broken off the shutdown itself. Otherwise a close would wait for the end without end.
            self.fulfil(Vec::new());
        }
        self.shared.drop_leftovers(self.shared.termination.leave(Leaver::Taker));
        let text = TaskPanic::new(&*fault).message().unwrap_or("no message").to_owned();
        let text = format!("the scheduler is closed, and `close` returns what was pending: {text}");
        discard(fault);
        self.shared.hooks.on_panic.report("the tick thread of tickwheel", Box::new(text));
    }

    /// Fulfils the termination, and returns how many leftovers there are.
    fn fulfil(&self, listed: Vec<Leftover>) -> usize {
        // After the lists were emptied, so that this look finds only what executors have, or what is in a run.
        let mut found = Vec::new();
        let find = |key: TaskKey, word: Word| found.push((key, word));
        self.shared.hooks.catch(|| task::each_of(self.shared.id, find));
        let make = |slot, number| self.shared.make_leftover(slot, number, Phase::Pending);
        let (count, unwanted) = self.shared.termination.fulfil(listed, &found, self.now, make);
        // After the last handle is gone nobody can want the leftovers, so they are dropped here (S24), series in their
        // runs behind those.
        self.shared.drop_leftovers(unwanted);
        count
    }
}

impl Drop for Engine {
    /// Ends the scheduler, for example when its driver is dropped.
    fn drop(&mut self) {
        let _mark = TurningMark::new(self.shared.id);
        self.shared.stop();
        self.shut_down();
    }
}
