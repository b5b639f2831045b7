//! The end of a scheduler: what is pending is returned, or dropped, and wakers are woken.

use super::Engine;
use crate::front::{Entry, Runner};
use crate::hub::TurningMark;
use crate::observe::quietly;
use crate::oneshot::Returned;
use crate::task::Phase;

impl Engine {
    /// Closes the intake, collects what is pending, and fulfils the end. Once.
    pub(super) fn shut_down(&mut self) {
        let Some(executor) = self.executor.take() else { return };
        let (tasks, wakers) = self.collect_pending();
        let mut wakers = self.hub.take_wakers(wakers.into_iter().map(Entry::key));
        let returned = self.give_back(tasks);
        let leftovers = returned.len();
        if self.hub.end.is_wanted() {
            self.hub.end.fulfil(returned);
        } else {
            // S24
            for task in returned {
                self.hub.drop_task(task.key, Phase::Returned);
            }
            self.hub.end.fulfil(Vec::new());
        }
        self.hub.wake(&mut wakers); // they find it closed
        self.hub.hooks.observe(|observer| observer.stopped(leftovers));
        quietly(|| drop(executor));
        quietly(|| self.hub.bell.wakes(None)); // a waker may be a user's, and seats keep the bell
        drop(self.trims.take());
    }

    /// All that is pending, in order of deadlines: tasks, and wakers.
    fn collect_pending(&mut self) -> (Vec<Entry>, Vec<Entry>) {
        let mut entries = Vec::new();
        self.outboxes.drain_lines(&mut entries);
        self.front.drain(&mut entries);
        self.wheel.drain(&mut entries);
        self.inlet.close(&self.hub.intake, |record| entries.push(Entry::from(record)));
        // Stable: at equal deadlines the refused come first, whose turn it was, then as in N2.
        entries.sort_by_key(|entry| entry.moment());
        entries.into_iter().partition(|entry| entry.runner() != Runner::TickThread)
    }

    /// Marks what is pending as returned.
    fn give_back(&self, pending: Vec<Entry>) -> Vec<Returned> {
        let returned = pending.into_iter().filter_map(|entry| {
            let (key, deadline) = (entry.key(), entry.moment());
            let (kind, period) = self.hub.give_back(key)?;
            Some(Returned { key, deadline, kind, period })
        });
        returned.collect()
    }
}

impl Drop for Engine {
    /// A driver that is dropped ends its scheduler.
    fn drop(&mut self) {
        let _mark = TurningMark::new(&self.hub);
        self.hub.stop();
        self.shut_down();
    }
}
