//! The last turn: what is pending becomes leftovers, or is dropped, and wakers are woken.
//!
//! A task is pending wherever it is: in a lane, in the wheel, in front, in a line, or in the queue of an executor that
//! has taken it and not started it (S29). Each is claimed by its word, so one that starts at this moment runs, and is no
//! leftover. An executor that runs one later runs nothing.

use super::Engine;
use super::this_thread::TurningMark;
use crate::engine::ready::{Entry, Runner};
use crate::engine::slots::{Phase, holder};
use crate::engine::termination::Leftover;
use crate::platform::panics::quietly;
use crate::wheel::entry::TaskKey;

impl Engine {
    /// Closes the intake, collects what is pending, and fulfils the end. Once.
    pub(super) fn shut_down(&mut self) {
        let Some(executor) = self.executor.take() else { return };
        let (mut handed, mut entries) = (Vec::new(), Vec::new());
        let series = self.outboxes.drain_handed(&mut handed);
        self.outboxes.drain_lines(&mut entries);
        self.ready.drain(&mut entries);
        self.wheel.drain(&mut entries);
        self.reader.close(&self.shared.intake, |record| entries.push(Entry::from(record)));
        let is_waker = |entry: &Entry| entry.runner() == Runner::TickThread;
        let (wakers, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_waker);
        let mut wakers = self.shared.take_wakers(wakers.into_iter().map(Entry::key));

        let (mut returned, in_a_run) = self.claim_back(&handed);
        // The end sorts them by deadline, stably: one-shots that were handed over come first among equals, then the
        // refused ones, then as in TURN-2, and at last the series that were handed over.
        returned.extend(entries.into_iter().filter_map(|entry| self.shared.give_back(entry)));
        let leftovers = self.fulfil(returned, in_a_run, &series);
        self.shared.wake(&mut wakers); // they find it closed
        self.shared.hooks.observe(|observer| observer.stopped(leftovers));
        quietly(|| drop(executor));
        quietly(|| self.shared.bell.wakes(None)); // a waker may be a user's, and lanes keep the bell
        drop(self.trims.take());
    }

    /// Claims back the one-shots that executors have: those that have not started, and the names of those that run.
    fn claim_back(&self, handed: &[Entry]) -> (Vec<Leftover>, Vec<TaskKey>) {
        let (mut returned, mut in_a_run) = (Vec::new(), Vec::new());
        for entry in handed {
            match self.shared.give_back(*entry) {
                Some(task) => returned.push(task),
                // Not one that stands here twice, because its executor gave it back late and got it again.
                None if holder::is_running(entry.key()) => in_a_run.push(entry.key()),
                None => {}
            }
        }
        (returned, in_a_run)
    }

    /// Tells that the end has come. Nobody can want the leftovers after the last handle is gone: then they are dropped
    /// here (S24). `series`: those that executors have. How many leftovers there are.
    fn fulfil(
        &self,
        mut returned: Vec<Leftover>,
        in_a_run: Vec<TaskKey>,
        series: &[Entry],
    ) -> usize {
        let shared = &self.shared;
        if shared.termination.is_wanted() {
            let give_back = |entry| shared.give_back(entry);
            return shared.termination.fulfil(returned, in_a_run, series, give_back, || None);
        }
        let keep = |entry| {
            returned.extend(shared.give_back(entry));
            None // it is dropped below, with nothing locked
        };
        let in_their_runs = shared
            .termination
            .fulfil(Vec::new(), in_a_run, series, keep, || Some(shared.drop_leftover()));
        let leftovers = returned.len() + in_their_runs;
        returned.extend(shared.termination.take_unwanted());
        returned.into_iter().for_each(|task| shared.drop_task(task.key, Phase::Returned));
        leftovers
    }
}

impl Drop for Engine {
    /// A driver that is dropped ends its scheduler.
    fn drop(&mut self) {
        let _mark = TurningMark::new(&self.shared);
        self.shared.stop();
        self.shut_down();
    }
}
