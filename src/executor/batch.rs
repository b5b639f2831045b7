//! Many tasks that are due, handed over at once.
//!
//! The engine owns one batch and fills it anew for each hand-over, so that handing over neither
//! allocates nor counts references. It holds [`Entry`]s, by value; a [`DueTask`], which
//! keeps its scheduler alive by itself, is made only for who asks for one.

use std::fmt;
use std::sync::Arc;

use super::due::{DueTask, Host, Rejected};
use crate::wheel::entry::Entry;

/// How many tasks ahead of its run a holder is fetched into the cache.
pub(crate) const AHEAD: usize = 16;

/// Tasks that are due, in order of their deadlines. An iterator over [`DueTask`]s, which leaves out
/// those that have been cancelled meanwhile.
///
/// See [`Executor::execute_batch`](crate::Executor::execute_batch).
pub struct DueBatch {
    host: Arc<dyn Host>,
    due: Vec<Entry>,
    /// How many of `due` have been taken out.
    taken: usize,
    /// How many of those were run at once, by [`DueBatch::run_all`].
    run_here: usize,
    /// What came back, and whether for good.
    refused: Vec<(Entry, bool)>,
    /// Tasks of others that an executor gave back here.
    strangers: Vec<DueTask>,
}

impl DueBatch {
    pub(crate) fn new(host: Arc<dyn Host>) -> DueBatch {
        let (due, refused, strangers) = (Vec::new(), Vec::new(), Vec::new());
        DueBatch { host, due, taken: 0, run_here: 0, refused, strangers }
    }

    /// How many tasks are left in it, cancelled ones included.
    pub fn len(&self) -> usize {
        self.due.len() - self.taken
    }

    /// Whether all have been taken out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all that is left, here and now and in order.
    pub fn run_all(&mut self) {
        while let Some(due) = self.take_one() {
            self.run_here += 1;
            self.host.run(due);
        }
    }

    /// Puts a task back that could not be taken; it is handed over again later.
    pub fn reject(&mut self, rejected: Rejected) {
        let for_good = rejected.is_for_good();
        match rejected.into_task().into_entry(self.host.id()) {
            Ok(due) => self.refused.push((due, for_good)),
            Err(stranger) => self.strangers.push(stranger),
        }
    }

    /// The next one by name, whether it is still pending or not.
    pub(crate) fn take_one(&mut self) -> Option<Entry> {
        let due = self.due.get(self.taken).copied()?;
        if let Some(soon) = self.due.get(self.taken + AHEAD) {
            self.host.prefetch(*soon);
        }
        self.taken += 1;
        Some(due)
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.due.push(entry);
    }

    /// All that is left, into an empty list, and the scheduler that they belong to.
    pub(super) fn take_all(&mut self, into: &mut Vec<Entry>) -> &Arc<dyn Host> {
        into.extend_from_slice(&self.due[self.taken..]);
        self.taken = self.due.len();
        &self.host
    }

    /// All that were put in, taken or not, in order.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.due
    }

    /// Whether it has run all of its tasks at once, by [`DueBatch::run_all`].
    pub(crate) fn was_run_here(&self) -> bool {
        self.run_here == self.due.len()
    }

    /// What came back: what was refused (true: for good) or left, and the tasks of others.
    pub(crate) fn settle(
        &mut self,
        refused: &mut Vec<(Entry, bool)>,
        strangers: &mut Vec<DueTask>,
    ) {
        refused.append(&mut self.refused);
        refused.extend(self.due[self.taken..].iter().map(|due| (*due, false)));
        strangers.append(&mut self.strangers);
    }

    /// Makes it empty.
    pub(crate) fn clear(&mut self) {
        self.due.clear();
        (self.taken, self.run_here) = (0, 0);
    }
}

impl Iterator for DueBatch {
    type Item = DueTask;

    fn next(&mut self) -> Option<DueTask> {
        loop {
            let due = self.take_one()?;
            if self.host.is_pending(due) {
                return Some(DueTask::held(Arc::clone(&self.host), due));
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.len()))
    }
}

impl fmt::Debug for DueBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueBatch").field("len", &self.len()).finish_non_exhaustive()
    }
}
