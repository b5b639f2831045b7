//! What is due goes to whoever runs it: in batches, each to one taker.
//!
//! A taker is an executor, the scheduler's or a task's own. What it refuses or leaves comes back a tick later
//! (S18); a panic of it is caught and reported (S17). Wakers go to nobody: the tick thread wakes them.

use std::sync::Arc;

use super::{BATCH, Engine, HAND_OVER};
use crate::executor::DueTask;
use crate::executor::own::OwnExecutor;
use crate::front::{Entry, Runner};
use crate::observe::{caught, quietly};
use crate::task::holder::Repetition;
use crate::task::{OneShot, holder};
use crate::tick::Moment;
use crate::trace;

/// Who takes a batch.
enum Taker {
    Shared,
    Own(Arc<OwnExecutor>),
    /// It keeps no batch.
    TickThread,
}

impl Taker {
    fn runner(&self) -> Runner {
        match self {
            Taker::Shared => Runner::Shared,
            Taker::Own(_) => Runner::Own,
            Taker::TickThread => Runner::TickThread,
        }
    }

    fn is(&self, other: &Taker) -> bool {
        match (self, other) {
            (Taker::Own(one), Taker::Own(other)) => one.number() == other.number(),
            _ => self.runner() == other.runner(),
        }
    }
}

/// Tasks that an executor would not take.
#[derive(Default)]
pub(super) struct Refused {
    pub(super) tasks: Vec<Entry>,
    pub(super) again_at: Option<Moment>,
}

impl Engine {
    /// Brings the refused back, a tick after they were refused (S18).
    pub(super) fn retry_refused(&mut self, now: Moment) {
        if self.refused.again_at.is_some_and(|at| at <= now) {
            self.refused.again_at = None;
            self.refused.tasks.drain(..).for_each(|entry| self.front.insert(entry));
        }
    }

    /// Hands over what is due, in batches of one executor each; at most [`HAND_OVER`] tasks.
    pub(super) fn hand_over(&mut self, now: Moment) {
        let (mut taker, mut left) = (Taker::Shared, HAND_OVER);
        while left > 0 {
            let Some(entry) = self.front.pop(now) else { break };
            left -= 1;
            let Some(next) = self.taker_of(entry) else { continue };
            if !next.is(&taker) || self.batch.len() == BATCH {
                self.flush(taker);
                taker = next;
            }
            match taker {
                Taker::TickThread => left -= self.wake(entry, now, left.min(BATCH - 1)),
                _ => self.batch.push(entry.due()),
            }
        }
        self.flush(taker);
    }

    /// Who takes an entry; `None` when it is stale.
    fn taker_of(&self, entry: Entry) -> Option<Taker> {
        match entry.runner() {
            Runner::Shared => Some(Taker::Shared),
            Runner::TickThread => Some(Taker::TickThread),
            Runner::Own => {
                let word = holder::pending_word(entry.key())?;
                self.hub.own_executors.find(word.executor()).map(Taker::Own)
            }
        }
    }

    /// Wakes this waker and so many of those that follow, while there are no tasks between them. How many
    /// followed.
    fn wake(&mut self, first: Entry, now: Moment, most: usize) -> usize {
        let (front, mut followed) = (&mut self.front, 0);
        let others =
            std::iter::from_fn(|| front.pop_waker(now)).take(most).inspect(|_| followed += 1);
        self.hub.wake_all(std::iter::once(first).chain(others), now, &mut self.wakers);
        self.hub.hooks.observe(|observer| observer.handed_over(1 + followed));
        followed
    }

    /// Hands the batch over.
    fn flush(&mut self, taker: Taker) {
        let tasks = self.batch.len();
        if tasks == 0 {
            return;
        }
        let batch = &mut self.batch;
        let handed = caught(|| match (&taker, &self.executor) {
            (Taker::Own(own), _) => own.executor().execute_batch(batch),
            (Taker::Shared, Some(executor)) => executor.execute_batch(batch),
            (Taker::Shared, None) | (Taker::TickThread, _) => {}
        });
        handed.err().into_iter().for_each(|panic| self.hub.hooks.report(panic)); // S17
        let refused = self.collect_refused(taker.runner());
        self.hub.hooks.observe(|observer| observer.handed_over(tasks.saturating_sub(refused)));
        quietly(|| drop(taker)); // perhaps the last owner of an executor
    }

    /// Keeps what an executor has refused or left.
    fn collect_refused(&mut self, runner: Runner) -> usize {
        let (mut refused, mut strangers) = (Vec::new(), Vec::new());
        self.batch.settle(&mut refused, &mut strangers);
        for stranger in strangers {
            self.adopt(stranger);
        }
        if !refused.is_empty() {
            let tick = self.hub.timeline.tick_nanos().get();
            self.refused.again_at.get_or_insert(self.hub.now().after_nanos(tick));
            let entries = refused.iter().map(|due| Entry::again(*due, runner));
            self.refused.tasks.extend(entries);
            self.hub.rejected.add(refused.len() as u64);
            quietly(|| trace::rejected(refused.len()));
            self.hub.hooks.observe(|observer| observer.rejected(refused.len()));
        }
        refused.len()
    }

    /// An executor gave back a task that is not ours: it becomes one, or nobody would run it.
    fn adopt(&self, task: DueTask) {
        let times = self.hub.at(task.deadline());
        let run = OneShot(move || task.run());
        let admitted = self.hub.admit(times, run, Repetition::NONE, None);
        admitted.err().into_iter().for_each(|(_, refused)| self.hub.drop_refused(refused));
    }
}
