//! The ways out: a task is claimed, and run or dropped.
//!
//! Each function here claims the task first, or is given it claimed; so each task has one end (TASK-2).
//! The order of steps is the same everywhere: count, let the user's code run or drop, free the
//! holder, report a panic. What others see of a task that is done is so counted before (COUNT-1 in
//! [`stats`](crate::observe::stats)), and a hook finds the task done. A waker's holder is freed before it is woken: it
//! has been moved out, and who is woken must not find it pending (ALARM-1 in [`alarm`](crate::scheduler::alarm)).

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Weak;
use std::task::Waker;
use std::time::Instant;

use super::shared::Shared;
use crate::engine::intake::lane::Refused;
use crate::engine::intake::seat::with_seat;
use crate::engine::slots::{Body, Phase, Running, Thrown, blocks, holder};
use crate::engine::termination::{self, Decision, Leftover};
use crate::executor::due;
use crate::platform::cpu::cycles;
use crate::platform::panics::{Payload, caught};
use crate::platform::sync::InOrder;
use crate::time::repeat::Kind;
use crate::time::repeat::next_run;
use crate::time::tick::Moment;
use crate::wheel::entry::Entry;
use crate::wheel::entry::{SchedulerId, TaskKey};

/// Cycles of the processor; on a slow one it is two.
const A_MICROSECOND: u64 = 3_000;

/// What a thread's last reading of a scheduler's clock was.
#[derive(Clone, Copy)]
struct Reading {
    shared: Option<SchedulerId>,
    cycles: u64,
    moment: Moment,
}

thread_local! {
    static LAST_READING: Cell<Reading> =
        const { Cell::new(Reading { shared: None, cycles: 0, moment: Moment::NEVER }) };
}

impl Shared {
    /// Runs a task that has been claimed. For `close_and_run` too: `repeats` says whether a series
    /// goes on.
    pub(crate) fn run_claimed(&self, task: Running, due: Entry, repeats: bool, frees: bool) {
        let now = self.recently_or(due.moment());
        let is_series = task.is_series();
        with_seat(self, |producer| {
            let seat = &producer.seat;
            seat.counts.fired.add(1);
            seat.counts.record_lateness(now, due.moment());
            if frees && !is_series {
                seat.count_left();
            }
        });
        let outer = termination::enter_run(self.id, due.key());
        match is_series {
            false => self.run_once(task),
            true if repeats => self.run_series(task, due, frees),
            true => self.run_last(task),
        }
        termination::leave_run(outer); // no task unwinds to here
        if self.is_closing() {
            self.run_is_over(due.key());
        }
    }

    #[cold]
    fn run_is_over(&self, key: TaskKey) {
        if holder::is_over(key) {
            self.termination.run_is_over(key);
        }
    }

    /// The present, or what it was a microsecond ago: good enough for the histogram of lateness. Many
    /// short tasks in a row would else spend more on reading the clock than on anything of ours.
    fn recently(&self) -> Moment {
        let Some(cycles) = cycles().filter(|_| self.is_in_real_time) else {
            return self.now();
        };
        let last = LAST_READING.get();
        if last.shared == Some(self.id) && cycles.wrapping_sub(last.cycles) < A_MICROSECOND {
            return last.moment;
        }
        let moment = self.now();
        LAST_READING.set(Reading { shared: Some(self.id), cycles, moment });
        moment
    }

    /// As `recently`. If the clock panics that is reported, and the other moment is taken: the task has been
    /// claimed, and nobody else would run it.
    fn recently_or(&self, other: Moment) -> Moment {
        caught(|| self.recently()).unwrap_or_else(|panic| {
            self.hooks.report(panic);
            other
        })
    }

    /// Wakes the wakers that are due. They are moved out of their holders first, all of them: so what each
    /// costs is little more than its wake. `wakers` is room to do that in.
    pub(crate) fn wake_all(
        &self,
        due: impl Iterator<Item = Entry>,
        said_last: Moment,
        wakers: &mut Vec<Waker>,
    ) {
        let now = self.recently_or(said_last);
        with_seat(self, |producer| {
            let counts = &producer.seat.counts;
            for entry in due {
                let Some(task) = Running::claim(entry.key(), Phase::Pending) else { continue };
                let (waker, claimed) = task.into_waker();
                wakers.push(waker);
                counts.fired.add(1);
                counts.record_lateness(now, entry.moment());
                producer.seat.count_left();
                claimed.end();
            }
        });
        self.wake(wakers);
    }

    /// Takes the wakers that are pending at the end, whose time will not come. They count as dropped.
    pub(crate) fn take_wakers(&self, pending: impl Iterator<Item = TaskKey>) -> Vec<Waker> {
        with_seat(self, |producer| {
            let take = |key| {
                let (waker, claimed) = Running::claim(key, Phase::Pending)?.into_waker();
                producer.seat.counts.dropped.add(1);
                producer.seat.count_left();
                claimed.end();
                Some(waker)
            };
            pending.filter_map(take).collect()
        })
    }

    /// Wakes them, one after the other, whatever any of them does.
    pub(crate) fn wake(&self, wakers: &mut Vec<Waker>) {
        let mut wakers = wakers.drain(..);
        while let Err(panic) = caught(|| wakers.by_ref().for_each(Waker::wake)) {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
            self.hooks.report(panic);
        }
    }

    fn run_once(&self, task: Running) {
        let (Body { closure, executor }, claimed) = task.into_body();
        let names = closure.names();
        let ran = caught(|| closure.run_once());
        let dropped = caught(|| drop(executor));
        if ran.is_err() {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
        }
        claimed.end();
        if ran.is_err() || dropped.is_err() {
            self.report(names.name(), ran.err().into_iter().chain(dropped.err()));
        }
    }

    /// Tells of panics of a task's code (S31).
    #[cold]
    pub(crate) fn report(&self, name: &'static str, panics: impl IntoIterator<Item = Payload>) {
        panics.into_iter().for_each(|panic| self.hooks.on_panic.report_named(name, panic));
    }

    /// Runs a series for the last time. A cancel prevents nothing since it was claimed, so it does not win.
    fn run_last(&self, task: Running) {
        let (mut body, claimed) = task.into_body();
        let name = body.closure.name();
        let ran = caught(|| body.closure.run());
        if ran.is_err() {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
        }
        let dropped = body.discard();
        claimed.end();
        self.report(
            name,
            ran.err().into_iter().chain(dropped.into_iter().flat_map(|it| it.panics)),
        );
    }

    fn run_series(&self, mut task: Running, due: Entry, frees: bool) {
        let ran = caught(|| task.run_in_place());
        let over = match ran {
            Ok(ControlFlow::Continue(())) => self.rearm(task, due).err(),
            _ => Some(task),
        };
        if ran.is_err() {
            with_seat(self, |producer| producer.seat.counts.panicked.add(1));
        }
        let Some(over) = over else { return };
        let name = over.name();
        let dropped = self.finish_series(over, frees);
        self.report(
            name,
            ran.err().into_iter().chain(dropped.into_iter().flat_map(|it| it.panics)),
        );
    }

    /// Sets a series to its next run, or makes it a leftover if the scheduler has closed in the meantime. Gives it back
    /// if a cancel has ended it.
    fn rearm(&self, task: Running, due: Entry) -> Result<(), Running> {
        let now = caught(|| self.now()).unwrap_or_else(|panic| {
            self.hooks.report(panic);
            due.moment()
        });
        let next = next_run(task.kind(), task.period(), due.moment(), now, self.tick);
        let entry = task.rearm(next, next <= now)?;
        if let Err(Refused) = self.announce(entry, now, false) {
            self.return_from_run(entry);
        }
        Ok(())
    }

    /// A series becomes a leftover behind its run (S29); END-3 in [`end`].
    #[cold]
    fn return_from_run(&self, entry: Entry) {
        let give_back = || self.give_back(entry);
        let decided =
            self.termination.return_from_run(entry.key(), give_back, || self.drop_leftover());
        if let Some((decision, task)) = decided {
            // A user's code: the clock of the scheduler that it moves to, say.
            caught(|| decision(task)).err().into_iter().for_each(|panic| self.hooks.report(panic));
            self.termination.runs_leftover(false);
        }
    }

    /// Returns the decision to drop a leftover, for when nobody wants it (S24).
    pub(crate) fn drop_leftover(&self) -> Decision {
        let me = Weak::clone(&self.me);
        Box::new(move |task| {
            me.upgrade().iter().for_each(|shared| shared.drop_task(task.key, Phase::Returned));
        })
    }

    /// The end of a series: drops its closure. What a panicking `Drop` has thrown comes back.
    fn finish_series(&self, task: Running, frees: bool) -> Option<Thrown> {
        let (body, claimed) = task.into_body();
        if frees && !claimed.was_cancelled() {
            with_seat(self, |producer| producer.seat.count_left());
        }
        let thrown = body.discard();
        let key = claimed.end_in_order();
        if self.is_closing.load_in_order() {
            self.termination.run_is_over(key); // END-5 in `end`
        }
        thrown
    }

    /// Drops a task that stands in `from`, and counts it as dropped, unless it was cancelled.
    pub(crate) fn drop_task(&self, key: TaskKey, from: Phase) {
        let task = match from {
            Phase::Pending => Running::claim_at(key, self.id), // an executor may drop what has moved since
            _ => Running::claim(key, from),
        };
        let Some(task) = task else { return };
        let (body, claimed) = task.into_body();
        let frees = from == Phase::Pending && !claimed.was_cancelled();
        with_seat(self, |producer| {
            producer.seat.counts.dropped.add(u64::from(!claimed.was_cancelled()));
            if frees {
                producer.seat.count_left();
            }
        });
        let thrown = body.discard();
        claimed.end();
        if let Some(thrown) = thrown {
            self.report(thrown.name, thrown.panics);
        }
    }

    /// Marks a pending task as returned; `None` when it was cancelled. It gives its place free.
    pub(crate) fn give_back(&self, entry: Entry) -> Option<Leftover> {
        let (kind, period) = holder::give_back(entry)?;
        with_seat(self, |producer| producer.seat.count_left());
        let (key, deadline) = (entry.key(), entry.moment());
        Some(Leftover { key, deadline, kind, period, is_in_run: false })
    }
}

impl due::Host for Shared {
    /// TASK-2.
    fn run(&self, due: Entry) {
        if let Some(task) = Running::claim_at(due.key(), self.id) {
            self.run_claimed(task, due, true, true);
        }
    }

    /// TASK-2.
    fn forfeit(&self, due: Entry) {
        self.drop_task(due.key(), Phase::Pending);
    }

    fn prefetch(&self, due: Entry) {
        blocks::prefetch(due.key().slot);
    }

    fn is_pending(&self, due: Entry) -> bool {
        holder::pending_word(due.key()).is_some()
    }

    fn is_repeating(&self, due: Entry) -> bool {
        holder::pending_word(due.key()).is_some_and(|word| word.kind() != Kind::Once)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn name(&self, due: Entry) -> Option<&'static str> {
        holder::name(due.key(), Phase::Pending)
    }

    fn instant(&self, moment: Moment) -> Instant {
        self.timeline.instant(moment)
    }

    fn id(&self) -> SchedulerId {
        self.id
    }
}
