//! Hands over what is due, in batches. Each goes to one executor: the scheduler's, or the own one of some tasks.
//!
//! The tasks that an executor takes are counted, and remembered nowhere. Those that it refuses or leaves in the batch wait
//! in its [retry queue](super::retries) (S18, S30). Wakers go to no executor: the tick thread wakes them.

use std::iter;
use std::sync::Arc;

use super::Engine;
use super::bounds::{BATCH, HAND_OVER, LONGEST_PAUSE_NANOS, SHARE_NANOS, SKIP, TAKE_IN};
use crate::clock::tick::Times;
use crate::engine::slots::closure::Named;
use crate::engine::slots::{deadline, task};
use crate::executor::due::{Closure, GivenBack};
use crate::executor::numbered::NumberedExecutor;
use crate::observe::trace;
use crate::platform::panics::quietly;
use crate::wheel::entry::{Entry, Runner};

impl Engine {
    // ----- what is due ---------------------------------------------------------------------

    /// Hands over what is due: at least [`HAND_OVER`] tasks, and then as many as have just been taken in, unless that
    /// takes longer than [`SHARE_NANOS`]. So a flood of tasks that are due at once does not pile up here.
    pub(super) fn hand_over(&mut self, taken_in: usize) {
        let Some(mut target) = self.executor(0) else { return };
        let (now, mut left, mut more) = (self.now, HAND_OVER, taken_in);
        loop {
            if left == 0 {
                left = more.min(BATCH);
                more -= left;
                if left == 0 || self.is_out_of_time() {
                    break;
                }
            }
            // Only where deadlines are moved is it worth a look at each holder: the claim of the task looks anyway. A
            // task of this very batch may be the first to move one.
            let looks = self.shared.intake.has_resets();
            // An executor that refuses is offered nothing new until it has taken what it refused, so the order of its tasks
            // stays.
            let is_refusing = self.retries.is_refusing(&target);
            if target.number == 0 && !is_refusing && !looks {
                // Most tasks come in long rows like this, and need no more than to be copied.
                let most = left.min(BATCH - self.batch.len());
                left -= self.ready.pop_row(now, most, &mut self.batch);
                if left == 0 {
                    continue;
                }
            }
            // From here on entries are taken one by one: the row has ended at a waker, a task with an executor of its
            // own, or a late task.
            let Some(entry) = self.ready.pop(now) else { break };
            left -= 1;
            let entry = if looks { self.still_due(entry) } else { Some(entry) };
            let Some(entry) = entry else { continue };
            if entry.is_waker() {
                // The batch goes out before a waker is woken, and before another executor gets anything, so tasks are handed
                // over in order of their deadlines also across executors.
                self.flush(&target);
                left -= self.wake(entry, left.min(BATCH - 1));
                continue;
            }
            // As long as entries go to the same executor, it need not be looked up.
            let mut number = 0;
            if entry.runner() == Runner::Own {
                self.ready.fetch_ahead();
                // The word tells which executor it is. A stale entry has no executor, and is dropped here.
                let Some((_, word)) = task::settled(entry) else { continue };
                number = word.executor();
            }
            if number != target.number || self.batch.len() == BATCH {
                // A live task keeps its executor alive, so a number without an executor belongs to a task that was just
                // cancelled.
                let Some(next) = self.executor(number) else { continue };
                self.flush(&target);
                self.release(std::mem::replace(&mut target, next));
            }
            if self.retries.is_refusing(&target) {
                self.retries.of(&target).push(entry);
            } else {
                self.batch.due.push(entry);
            }
        }
        self.flush(&target);
        self.release(target);
    }

    /// Returns the executor of this number.
    fn executor(&self, number: u32) -> Option<Arc<NumberedExecutor>> {
        match number {
            0 => self.executor.clone(),
            _ => self.shared.own_executors.find(number),
        }
    }

    /// Returns an entry that has come out, unless it is stale or its task is due later. Then it is filed again.
    #[cold]
    fn still_due(&mut self, entry: Entry) -> Option<Entry> {
        // The look at the holder is a cache miss, so the holders of later entries are fetched meanwhile.
        self.ready.fetch_ahead();
        deadline::is_due(entry, |later| self.file_again(later)).then_some(entry)
    }

    /// Wakes this waker and up to `most` of the wakers that follow, as long as no task is due between them. Returns how
    /// many followed.
    fn wake(&mut self, first: Entry, most: usize) -> usize {
        let (ready, now, mut followed) = (&mut self.ready, self.now, 0);
        let others = iter::from_fn(|| ready.pop_waker(now)).take(most).inspect(|_| followed += 1);
        // Wakers in a row leave the queue together, because each costs less in a row: one borrow of the lane, one
        // reading of the clock.
        let fired_at = Some(self.shared.recently().unwrap_or(now));
        self.shared.take_wakers(iter::once(first).chain(others), fired_at, &mut self.wakers);
        // A waker is user code, so it is called when the lane is not borrowed any more.
        self.shared.wake(&mut self.wakers);
        self.shared.hooks.observe(|observer| observer.handed_over(1 + followed));
        followed
    }

    /// Drops the engine's hold on an executor.
    fn release(&self, executor: Arc<NumberedExecutor>) {
        // It may be the last one, and the executor's `Drop` is user code.
        self.shared.hooks.catch(|| drop(executor));
    }

    /// Returns true if this turn has had its share of time. If the clock panics, the turn has time.
    fn is_out_of_time(&self) -> bool {
        // Measured from the beginning of the turn, so all steps of a turn share the time.
        self.shared.try_now().is_some_and(|now| now > self.now.after_nanos(SHARE_NANOS))
    }

    // ----- a batch -------------------------------------------------------------------------

    /// Hands the batch over. Returns how many tasks came back.
    fn flush(&mut self, executor: &Arc<NumberedExecutor>) -> usize {
        let tasks = self.batch.len();
        if tasks == 0 {
            return 0;
        }
        executor.backlog.hand(tasks);
        let batch = &mut self.batch;
        batch.goes_to(executor);
        // An executor is user code. If it panics, the tasks that it has not taken out of the batch count as refused,
        // so none is lost, and the turn goes on (S17).
        self.shared.hooks.catch(|| executor.executor.execute_batch(batch));
        // What was refused is taken back already, from the executor that had it.
        executor.backlog.take_back(self.batch.len());
        executor.backlog.count_done(self.batch.over);
        let GivenBack { refused, of_none, for_good } = self.batch.settle();
        // It is the executor of this batch that says so, whosever task it gives back.
        if for_good {
            self.retries.of(executor).has_refused_for_good = true;
        }
        let count = refused.len() + of_none.len();
        self.queue_refused(refused);
        for (name, task) in of_none {
            self.adopt(executor, Named { name, task });
        }
        if count > 0 {
            self.shared.rejected.add(count as u64);
            quietly(|| trace::rejected(count));
            self.shared.hooks.observe(|observer| observer.rejected(count));
        }
        self.shared.hooks.observe(|observer| observer.handed_over(tasks.saturating_sub(count)));
        count
    }

    /// Puts what an executor has refused or left into retry queues.
    fn queue_refused(&mut self, refused: Vec<Entry>) {
        let first_pause = self.first_pause();
        // In reverse, so that the tasks keep their order among each other: each goes before those of the same deadline.
        for entry in refused.into_iter().rev() {
            let Some(entry) = self.still_due(entry) else { continue };
            // The task names its executor, not the batch: an executor may give back what came in an earlier batch, or
            // what another executor was handed. A task that was cancelled in the meantime goes nowhere.
            let Some((_, word)) = task::settled(entry) else { continue };
            let Some(executor) = self.executor(word.executor()) else { continue };
            self.retries.of(&executor).put_back(entry.due_now(), self.now, first_pause);
            self.release(executor);
        }
    }

    /// Schedules a task that belongs to no scheduler and that this executor has refused, because nobody else would run it. If
    /// there is no room, drops it.
    fn adopt(&self, by: &Arc<NumberedExecutor>, task: Named<Closure>) {
        let now = self.shared.try_now().unwrap_or(self.now);
        // With the longest pause, because it may be a closure around a task that this executor refuses again and again.
        let times = Times { now, deadline: now.after_nanos(LONGEST_PAUSE_NANOS) };
        let own = (by.number != 0).then_some(by);
        let admitted = self.shared.admit(times, task, None, own);
        quietly(|| drop(admitted));
    }

    // ----- retries -------------------------------------------------------------------------

    /// Retries with the executors whose pause is over: at least with one, and with as many as there is time for.
    pub(super) fn retry_refused(&mut self) {
        if self.retries.retry_at().is_none_or(|at| at > self.now) {
            return;
        }
        for (number, executor) in self.retries.to_retry(self.now).into_iter().enumerate() {
            // One executor is retried in each turn, even if the time is up. Otherwise a slow turn would starve all of
            // them.
            if number == 0 || !self.is_out_of_time() {
                self.retry(&executor);
            }
            self.release(executor);
        }
    }

    /// Offers an executor one task, then two, four and so on up to a batch while it takes them all. If it takes only
    /// some, it is offered one again. If it refuses the first one, or a later one twice, it gets a pause.
    fn retry(&mut self, executor: &Arc<NumberedExecutor>) {
        let (mut offer, mut took, mut is_second_try) = (1, 0, false);
        let mut looked_at = 0; // with those that are passed over, or this might have no end (S19)
        while took < TAKE_IN && (looked_at < HAND_OVER || !self.is_out_of_time()) {
            let (offered, passed_over) = self.offer(executor, offer);
            if offered == 0 {
                return; // nothing is left, or nothing but what was passed over has been looked at
            }
            looked_at += offered + passed_over;
            let refused = self.flush(executor).min(offered);
            took += offered - refused;
            if self.retries.of(executor).has_refused_for_good {
                return;
            }
            // An executor whose queue has room for some takes a part of a large offer. Only an offer of one tells that
            // it is full.
            if offered == 1 && refused == 1 && (took == 0 || is_second_try) {
                let (now, first_pause) = (self.now, self.first_pause());
                return self.retries.of(executor).rest(took, now, first_pause);
            }
            is_second_try = offered == 1 && refused == 1;
            offer = if refused > 0 { 1 } else { BATCH.min(2 * offer) };
        }
        // It would take more, and only the time of this turn is over. So no pause begins.
        self.retries.of(executor).retry_at = Some(self.now);
    }

    /// Fills the batch with up to `most` of the first tasks that an executor has refused, and returns how many they are,
    /// and how many entries were passed over.
    fn offer(&mut self, executor: &Arc<NumberedExecutor>, most: usize) -> (usize, usize) {
        let mut passed_over = 0;
        while self.batch.len() < most && passed_over < SKIP {
            let Some(entry) = self.retries.of(executor).pop() else { break };
            let is_due = deadline::is_due(entry, |later| {
                // It was put off. If it is due again by now, it goes to its new position in this queue. In the ready
                // queue, many of these would stand before the tasks of other executors (S30). Otherwise the executor
                // must not see it (S28).
                if later.moment() <= self.now {
                    self.retries.of(executor).push(later);
                } else {
                    self.file_again(later);
                }
            });
            if is_due {
                self.batch.due.push(entry);
            } else {
                passed_over += 1;
            }
        }
        (self.batch.len(), passed_over)
    }

    fn first_pause(&self) -> u64 {
        self.shared.watch.tick.min(LONGEST_PAUSE_NANOS)
    }
}
