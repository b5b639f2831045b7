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
use crate::observe::TaskPanic;
use crate::platform::panics::{Payload, caught, discard};
use crate::wheel::entry::{Entry, TaskKey};

impl Engine {
    /// Closes the intake, collects what is pending, and fulfils the termination. Does nothing the second time.
    pub(super) fn shut_down(&mut self) {
        // The executor is there exactly until the first shutdown, so it also marks that there was one.
        let Some(executor) = self.executor.take() else { return };
        let mut entries = Vec::new();
        let hooks = &self.shared.hooks;
        // Each part by itself: if a fault of ours has broken one, what is in the others still comes back (S17).
        let part = |drain: &mut dyn FnMut()| _ = hooks.catch(drain);
        part(&mut || entries = self.retries.drain());
        part(&mut || self.ready.drain(&mut entries));
        part(&mut || self.wheel.drain(&mut entries));
        // The lanes are closed last. A record that comes in until then is collected, and one that comes later is refused
        // by its lane.
        part(&mut || {
            self.reader.close(&self.shared.intake, |record| entries.push(record.entry));
        });
        // These three are empty unless a turn was broken off. A task that is met twice is given back once.
        entries.append(&mut self.incoming);
        entries.append(&mut self.given_out);
        entries.extend_from_slice(&self.batch.due);
        let (wakers, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry: &Entry| entry.is_waker());
        self.shared.take_wakers(wakers.into_iter(), None, &mut self.wakers);

        let make = |entry: Entry| self.make_leftover(entry.slot(), entry.number());
        // All of these first, so that the look into the holders finds only what executors have.
        let listed: Vec<_> = entries.into_iter().filter_map(make).collect();
        // One-shots that executors have not started are leftovers. All others, in a run or not, come with their words: the end
        // of a series is decided later, under the lock of the termination (END-3).
        let (mut leftovers, mut handed) = (Vec::new(), Vec::new());
        let look = |key: TaskKey, word: Word| {
            let is_series = word.is_series();
            let task = if is_series { None } else { self.make_leftover(key.slot, word.number()) };
            match task {
                Some(task) => leftovers.push(task),
                None => handed.push((key, word)),
            }
        };
        self.shared.hooks.catch(|| task::each_of(self.shared.id, look));
        // The termination sorts them by deadline, stably. At equal deadlines those that executors have come first, in no
        // order, then the refused tasks, then the others in the order of scheduling, and at last the series that executors
        // have.
        leftovers.extend(listed);
        let count = self.fulfil(leftovers, &handed);
        self.shared.wake(&mut self.wakers); // they find the scheduler closed
        self.shared.hooks.observe(|observer| observer.stopped(count));
        self.shared.hooks.catch(|| drop(executor));
        self.shared.bell.wakes(None); // it may be a user's, and handles keep the bell alive
        // From now on no engine of this scheduler trims memory. If it was the last one of all, the trim is done here.
        drop(self.trims.take());
    }

    /// Ends the scheduler after a panic that is a fault of ours: what was pending waits for a `close`, and the hook is told
    /// (S17).
    pub(super) fn fail(&mut self, fault: Payload) {
        // Nobody has asked for the leftovers, so they would be dropped. A program that loses its scheduler by a fault
        // of ours gets its tasks back by a `close`.
        self.shared.termination.want();
        self.shared.stop();
        let ended = caught(|| self.shut_down());
        ended.err().into_iter().for_each(discard); // the first fault is told
        if !self.shared.termination.has_come() {
            // A fault has broken off the shutdown itself. The end comes without leftovers. Otherwise a close would
            // wait for it without end.
            self.fulfil(Vec::new(), &[]);
        }
        let text = TaskPanic::new(&*fault).message().unwrap_or("no message").to_owned();
        let text = format!("the scheduler is closed, and `close` returns what was pending: {text}");
        discard(fault);
        self.shared.hooks.on_panic.report("the tick thread of tickwheel", Box::new(text));
    }

    /// Makes a pending task a leftover; `None` if it was cancelled, runs, or is one already.
    fn make_leftover(&self, slot: u32, number: u32) -> Option<Leftover> {
        self.shared.make_leftover(slot, number, Phase::Pending)
    }

    /// Fulfils the termination, and returns how many leftovers there are.
    fn fulfil(&self, leftovers: Vec<Leftover>, handed: &[(TaskKey, Word)]) -> usize {
        let make = |key: TaskKey, word: Word| self.make_leftover(key.slot, word.number());
        let (count, unwanted) = self.shared.termination.fulfil(leftovers, handed, self.now, make);
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
