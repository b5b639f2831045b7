//! The ways out: a task is claimed, and run or dropped.
//!
//! `run_all` and `forfeit` are the ways out by an executor, and `take_wakers` is that of wakers. A task also leaves by a
//! cancel, or as a leftover. Every way out begins with a claim, so a task has exactly one end.
//!
//! The order of steps is the same everywhere: count, let the user's code run or drop, free the holder, report a panic. So
//! the end of a task is counted before others can see it (COUNT-1 in [`stats`](crate::observe::stats)), and a hook finds
//! the task done.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Weak;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::admit::Publication;
use super::bounds::LONGEST_PAUSE_NANOS;
use super::shared::{Shared, with_lane};
use super::this_thread;
use crate::backpressure::Backlog;
use crate::clock::clocks::Clock;
use crate::clock::repeat::{Repeat, next_run};
use crate::clock::tick::Moment;
use crate::engine::slots::deadline;
use crate::engine::slots::task::Leftover;
use crate::engine::slots::{Phase, Running, task};
use crate::executor::due::{self, AHEAD};
use crate::platform::cpu::{cycles, cycles_of_a_microsecond};
use crate::platform::panics::{Payload, caught};
use crate::platform::sync::Ordering;
use crate::wheel::Timed;
use crate::wheel::entry::{Entry, SchedulerId, TaskKey};

thread_local! {
    /// The thread's last reading of a clock: whose clock, the processor's cycle counter then, and what it showed.
    static LAST_READING: Cell<Option<(SchedulerId, u64, Moment)>> = const { Cell::new(None) };
}

impl Shared {
    // ----- runs ----------------------------------------------------------------------------

    /// Runs a task that has been claimed. `was_pending`: the task counts as pending until now. A leftover does not.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a run takes 25 instructions more with a call")]
    pub(crate) fn run_claimed(&self, task: Running, due: Moment, was_pending: bool) {
        // A panic of the clock must not lose the run: the task is claimed, so nobody else would run it.
        let now = self.recently().unwrap_or(due);
        let (key, is_series) = (task.key, task.word.is_series());
        // All that the run changes is counted before the run. A series leaves only at its end.
        with_lane(self, move |writer| {
            let lane = &writer.lane;
            lane.counts.fired.add(1);
            lane.counts.record_lateness(now, due);
            if was_pending && !is_series {
                lane.count_left();
            }
        });
        // So that a close or a schedule inside the task knows that it is inside, and does not wait for this very run.
        let outer = this_thread::enter_run(self.id, key);
        if is_series {
            self.run_series(task, due, was_pending);
        } else {
            self.run_once(task);
        }
        this_thread::leave_run(outer); // no task unwinds to here
        self.run_has_ended(key);
    }

    /// Tells a close that may wait for it, if the run was the last one of its task.
    #[inline]
    fn run_has_ended(&self, key: TaskKey) {
        // The end of a series is written before this look, and the engine does the opposite, so one of the two sees the
        // other (END-5). A close that waits for a one-shot looks by itself now and then, and this spares it the wait.
        if self.is_closing() && task::is_over(key) {
            self.termination.run_is_over(key);
        }
    }

    /// Returns the present, or what it was a microsecond ago, which is good enough for the histogram of lateness. `None`
    /// if the clock panics.
    #[inline]
    pub(super) fn recently(&self) -> Option<Moment> {
        // Many short tasks in a row would spend more on reading the clock than on anything of ours. The processor's
        // cycle counter says how old the last reading is, but only of a clock that runs at the speed of real time.
        let cycles = if self.watch.is_in_real_time { cycles() } else { None };
        let Some(cycles) = cycles else { return self.try_now() };
        let is_recent = |(scheduler, then, _): &(SchedulerId, u64, Moment)| {
            *scheduler == self.id && cycles.wrapping_sub(*then) < cycles_of_a_microsecond()
        };
        if let Some((.., moment)) = LAST_READING.get().filter(is_recent) {
            return Some(moment);
        }
        let moment = self.try_now()?;
        LAST_READING.set(Some((self.id, cycles, moment)));
        Some(moment)
    }

    /// Reads the clock. Returns `None` if the clock panics, which is reported.
    #[inline]
    pub(super) fn try_now(&self) -> Option<Moment> {
        self.ask_clock(Clock::now).map(|reading| self.watch.timeline.present(reading))
    }

    /// Asks the clock, which may be a user's, for something; `None` if it panics, which is reported (S17).
    #[inline]
    pub(crate) fn ask_clock<R>(&self, question: impl FnOnce(&dyn Clock) -> R) -> Option<R> {
        self.hooks.catch(|| question(&*self.watch.clock))
    }

    #[inline]
    fn run_once(&self, task: Running) {
        // The name comes from the closure, which the run consumes. Only a panic needs it, so it is not looked up yet.
        let ending = task.into_ending();
        let names = ending.names();
        let (ran, over) = ending.run_once();
        // After the run, and by itself: two panics in one drop would abort the process.
        let dropped = over.drop_executor();
        if ran.is_err() {
            self.count_panic();
        }
        over.end();
        if ran.is_err() || dropped.is_err() {
            self.report(names.name(), ran.err().into_iter().chain(dropped.err()));
        }
    }

    /// Runs a series. A leftover, which was not pending any more, runs for the last time.
    fn run_series(&self, mut task: Running, due: Moment, was_pending: bool) {
        // In place: its captures must stay where they are for the next run. Meanwhile a cancel only marks the word.
        let ran = caught(|| ControlFlow::choose(|| task.run_in_place()));
        let over = match ran {
            // A leftover runs once, so a delay that its closure chooses is ignored.
            Ok(ControlFlow::Continue(chosen)) if was_pending => self.rearm(task, due, chosen),
            _ => Some(task),
        };
        if ran.is_err() {
            self.count_panic();
        }
        // Otherwise the series is pending again. Another thread may already run or cancel it, so it must not be touched.
        if let Some(over) = over {
            self.finish(over, was_pending, false, ran.err());
        }
    }

    #[cold]
    fn count_panic(&self) {
        with_lane(self, |writer| writer.lane.counts.panicked.add(1));
    }

    /// Reports panics of a task's code (S31).
    #[cold]
    pub(crate) fn report(&self, name: &'static str, panics: impl IntoIterator<Item = Payload>) {
        panics.into_iter().for_each(|panic| self.hooks.report_named(name, panic));
    }

    /// Sets a series to its next run, or makes it a leftover if the scheduler has closed in the meantime. Gives it back
    /// if a cancel has ended it. `chosen` is the delay that its closure has returned.
    fn rearm(&self, task: Running, due: Moment, chosen: Option<Duration>) -> Option<Running> {
        // The end of the run, by which a fixed delay counts and a fixed rate sees which runs it has missed.
        let now = self.try_now().unwrap_or(due);
        let period = || task::period(task.key.slot);
        let next = match chosen {
            Some(delay) => now.after(delay),
            None => next_run(task.word.kind(), period(), due, now, self.watch.tick),
        };
        let mut filing = Publication::new(self, false);
        let is_pending = task.rearm(next, now, |entry| filing.publish::<Running>(entry, now));
        filing.ring();
        if is_pending { None } else { self.return_from_run(task) }
    }

    /// Makes a series a leftover behind its run (S29), or carries out what has been decided about it. Gives it back if a
    /// cancel has ended it, also in a scheduler that goes on.
    #[cold]
    fn return_from_run(&self, task: Running) -> Option<Running> {
        // It runs under the lock of the termination, which decides between this thread and the engine (END-3).
        let make = || self.make_leftover(task.key.slot, task.word.number(), Phase::Running);
        let Some((leftover, decision)) = self.termination.return_from_run(task.key, make) else {
            return Some(task);
        };
        if let Some(decision) = decision {
            // It may run a user's code: for example the clock of the scheduler that the series moves to.
            self.hooks.catch(|| decision(leftover));
            self.termination.run_is_over(task.key);
        }
        None
    }

    /// Ends a task that does not run any more: drops its closure, and reports what its last run and a panicking `Drop` have
    /// thrown. `was_pending`: it counts as pending until now. `is_lost`: it counts as dropped.
    fn finish(&self, task: Running, was_pending: bool, is_lost: bool, thrown: Option<Payload>) {
        let task = task.into_ending();
        let names = task.names();
        // A cancel in the last run of a series has counted the task out itself.
        if !task.was_cancelled() {
            with_lane(self, |writer| {
                writer.lane.counts.dropped.add(u64::from(is_lost));
                if was_pending {
                    writer.lane.count_left();
                }
            });
        }
        let (dropped, over) = task.discard();
        over.end();
        if thrown.is_some() || dropped.is_some() {
            let dropped = dropped.into_iter().flat_map(|thrown| thrown.panics);
            self.report(names.name(), thrown.into_iter().chain(dropped));
        }
    }

    // ----- wakers --------------------------------------------------------------------------

    /// Takes wakers that fire now. If they are pending at the end, their time will not come, so `fired_at` is `None`, and
    /// they count as dropped.
    #[inline]
    pub(super) fn take_wakers(
        &self,
        mut entries: impl Iterator<Item = Entry>,
        fired_at: Option<Moment>,
        wakers: &mut Vec<Waker>,
    ) {
        with_lane(self, |writer| {
            for entry in entries.by_ref() {
                let claimed = Running::claim(entry, |_| None); // none is ever put off
                let Some((task, due)) = claimed else { continue };
                let lane = &writer.lane;
                // The holder is freed before the waker is called: the woken task must not find the alarm pending
                // (ALARM-1 in `scheduler/alarm.rs`).
                let (waker, over) = task.into_ending().take_waker();
                wakers.push(waker);
                if entry.is_counted() {
                    if let Some(now) = fired_at {
                        lane.counts.fired.add(1);
                        lane.counts.record_lateness(now, due);
                    } else {
                        lane.counts.dropped.add(1);
                    }
                    lane.count_left();
                }
                over.end();
            }
        });
    }

    /// Wakes these wakers, one after the other, also if some of them panic.
    pub(super) fn wake(&self, wakers: &mut Vec<Waker>) {
        let mut wakers = wakers.drain(..);
        // The iterator has passed the waker that panicked, so the loop goes on with the next one.
        while let Err(panic) = caught(|| wakers.by_ref().for_each(Waker::wake)) {
            self.count_panic();
            self.hooks.on_panic.report(None, panic);
        }
    }

    // ----- other ends ----------------------------------------------------------------------

    /// Drops leftovers that nobody wants. A series that is in a run is dropped behind that run.
    pub(crate) fn drop_leftovers(&self, leftovers: impl IntoIterator<Item = Leftover>) {
        for task in leftovers {
            // The decision may wait in the termination of this very scheduler, so a strong count would be a circle.
            let me = Weak::clone(&self.me);
            let drop_it = move |task: Leftover| {
                me.upgrade().iter().for_each(|shared| shared.drop_leftover(task.key));
            };
            // If the run has ended in the meantime, the decision comes back, and the task is dropped here.
            if !task.is_in_run || self.termination.decide(task.key, Box::new(drop_it)).is_err() {
                self.drop_leftover(task.key);
            }
        }
    }

    /// Drops a leftover, and counts it as dropped, unless it was cancelled.
    pub(crate) fn drop_leftover(&self, key: TaskKey) {
        // For good: a cancel that came after this claim would count the task's leaving once more.
        if let Some(task) = Running::claim_leftover(key) {
            // It left the pending tasks when it became a leftover.
            self.finish(task, false, true, None);
        }
    }

    /// Makes a leftover of the task in this slot, which has not started or is behind a run: see [`task::make_leftover`]. It
    /// counts as pending no more.
    pub(super) fn make_leftover(&self, slot: u32, number: u32, from: Phase) -> Option<Leftover> {
        let task = task::make_leftover(slot, number, from)?;
        with_lane(self, |writer| writer.lane.count_left());
        Some(task)
    }

    /// Files a task again, through this thread's lane, whose entry has come out too early (RESET-2). If its deadline has
    /// passed by now, returns the entry as of now.
    #[cold]
    fn put_off(&self, entry: Entry) -> Option<Entry> {
        let now = self.try_now().unwrap_or(entry.moment()).max(entry.moment());
        let mut filing = Publication::new(self, false);
        let is_due = deadline::put_off(entry, now, |next| filing.publish::<()>(next, now));
        filing.ring();
        is_due.then_some(Entry { deadline: now.0, ..entry })
    }
}

impl due::TaskOwner for Shared {
    fn run_all(&self, entries: &[Entry]) {
        for (at, entry) in entries.iter().enumerate() {
            entries.get(at + AHEAD).inspect(|soon| soon.prefetch());
            if let Some((task, due)) = Running::claim(*entry, |entry| self.put_off(entry)) {
                self.run_claimed(task, due, true);
            }
        }
    }

    fn forfeit(&self, due: Entry) {
        if let Some((task, _)) = Running::claim(due, |entry| self.put_off(entry)) {
            let key = task.key;
            self.finish(task, true, true, None);
            self.run_has_ended(key);
        }
    }

    fn count_done(&self) {
        with_lane(self, |writer| writer.lane.counts.done.add(1));
    }

    fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    fn hand_over_again(&self, due: Entry) {
        const AT_ONCE: u64 = 16 * LONGEST_PAUSE_NANOS;
        let now = self.try_now().unwrap_or(due.moment());
        // It does not rest, if few have come back lately. But two schedulers whose executors gave back each other's tasks
        // would go on so for ever. So one may come back in each longest pause, and 16 of them before their time. Two threads
        // at a time may count as one.
        let most = now.0.saturating_add(AT_ONCE + LONGEST_PAUSE_NANOS);
        let next = self.next_comes_home.load(Ordering::Relaxed).clamp(now.0, most);
        self.next_comes_home.store(next.saturating_add(LONGEST_PAUSE_NANOS), Ordering::Relaxed);
        let pause = (next - now.0).saturating_sub(AT_ONCE);
        // Under the same number, because this is its only entry. If the engine is closed, the close has found the task in
        // its holder, or will.
        let mut filing = Publication::new(self, false);
        let again = if pause == 0 {
            due.due_now()
        } else {
            due.filed_again(now.after_nanos(pause), due.number())
        };
        filing.publish::<()>(again, now);
        filing.ring();
    }

    fn is_pending(&self, due: Entry) -> bool {
        task::is_live(due)
    }

    fn now(&self) -> Option<Instant> {
        self.ask_clock(Clock::now)
    }

    fn name(&self, due: Entry) -> Option<&'static str> {
        task::settled(due).and_then(|(key, _)| task::name(key))
    }

    fn instant(&self, moment: Moment) -> Instant {
        self.watch.timeline.instant(moment)
    }
}
