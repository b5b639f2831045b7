//! Calls to the scheduler: from outside, from tasks, and from a `Drop`.
//!
//! Each call goes to the model first, which predicts the result. Then the crate is called, and both are compared. The model is
//! not locked while the crate is called, because the crate calls back.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tickwheel::{Cancellable, CloseError, Precision};

use super::plan::{End, NEVER, Plan, Repeats, State, Time};
use super::tasks::{Booking, Ticket};
use super::world::{Trouble, World, lock};

/// The most tasks that are scheduled between two turns: several times as many as the engine takes in at once.
const ONE_TURN: u64 = 9_000;

// ----- schedule ----------------------------------------------------------------------------

impl World {
    /// Schedules a one-shot.
    pub(crate) fn schedule_once(self: &Arc<World>) {
        let deadline = self.some_deadline();
        self.schedule(self.once(deadline));
    }

    /// Schedules many one-shots that are due within a short time.
    pub(crate) fn schedule_crowd(self: &Arc<World>) {
        let first = self.some_deadline();
        let room = ONE_TURN.saturating_sub(self.model().news_since_the_turn());
        let (tasks, spread) = self.draw(|random| {
            let tasks = random.below(if self.habits.is_crowded { 700 } else { 30 });
            (tasks.min(room), random.of_any_size(40))
        });
        for _ in 0..tasks {
            let after = self.draw(|random| random.below(1 + spread));
            self.schedule(self.once(first.saturating_add(after)));
        }
    }

    /// Schedules a one-shot that is due at once, or soon.
    pub(crate) fn schedule_soon(self: &Arc<World>) {
        let now = self.model().now;
        let deadline = self.draw(|random| match random.below(2) {
            0 => now,
            _ => now + (random.of_any_size(62) >> 10),
        });
        self.schedule(self.once(deadline));
    }

    fn once(&self, deadline: Time) -> Plan {
        self.draw(|random| Plan {
            deadline,
            repeats: Repeats::Not,
            runs: Some(1),
            panics: random.one_in(8),
            is_elsewhere: random.one_in(4),
        })
    }

    pub(crate) fn schedule_series(self: &Arc<World>) {
        let (now, tick) = self.ask(|model| (model.now, model.settings.tick));
        let plan = self.draw(|random| {
            let period = 1 + random.of_any_size(40).max(tick / 8) + random.below(5) * tick / 2;
            let kinds = [Repeats::Burst, Repeats::Skip, Repeats::Delay, Repeats::Gap];
            Plan {
                deadline: now + (random.of_any_size(62) >> 12),
                repeats: kinds[random.below(4) as usize](period),
                runs: random.one_in(2).then(|| 1 + random.below(6)),
                panics: random.one_in(3),
                is_elsewhere: random.one_in(4),
            }
        });
        if self.habits.has_series {
            self.schedule(plan);
        }
    }

    /// Returns a deadline of any size, the past and never included, and now and then that of another task (S3, S4).
    fn some_deadline(&self) -> Time {
        let model = self.model();
        let (now, tick) = (model.now, model.settings.tick);
        self.draw(|random| match random.below(16) {
            0..3 => now,
            3 => now.saturating_sub(random.of_any_size(62)),
            4..6 => now + random.below(4 * tick),
            6 => NEVER,
            7..10 => match model.tasks.len() as u64 {
                0 => now,
                tasks => model.tasks[random.below(tasks) as usize].deadline,
            },
            _ => now + random.of_any_size(62),
        })
    }

    fn schedule(self: &Arc<World>, plan: Plan) {
        let Some(scheduler) = self.scheduler(plan.is_elsewhere) else { return };
        let (id, foreseen) = self.model().schedule(plan);
        let (ticket, way) = (Ticket::new(self, id), self.draw(|random| random.below(8)));
        let booking =
            Booking { scheduler: &scheduler, start: self.start, now: self.now(), plan, way };
        let booked = catch_unwind(AssertUnwindSafe(|| booking.book(ticket)));
        match booked {
            Ok(Ok(handle)) => lock(&self.handles).push((id, handle)),
            Ok(Err(refusal)) => assert_eq!(Err(refusal), foreseen, "task {id}"),
            // A closure that is refused still belongs to the caller, and so does a panic of its drop.
            Err(panic) if foreseen.is_err() => self.reports.hear(&*panic),
            Err(panic) => resume_unwind(panic),
        }
        let has_closure = self.model().tasks[id].has_closure;
        assert_eq!(has_closure, foreseen.is_ok(), "task {id}, {foreseen:?}");
        self.check_pending();
    }
}

// ----- cancel ------------------------------------------------------------------------------

impl World {
    /// Cancels by any handle that there ever was, or by a clone of it.
    pub(crate) fn cancel_one(&self) {
        let Some((id, handle, way)) = self.some_handle() else { return };
        self.check_handle(id, &handle);
        let foreseen = self.model().cancel(id);
        match way {
            0 => drop(handle.clone().cancel_on_drop()),
            _ => assert_eq!(handle.cancel(), foreseen, "the cancel of task {id}"),
        }
        self.check_pending();
        assert!(!handle.cancel(), "only one cancel wins");
        self.check_handle(id, &handle);
        if foreseen {
            self.check_that_it_is_dropped(id);
        }
    }

    /// Moves the deadline of a task, by any handle that there ever was (S28).
    pub(crate) fn reset_one(&self) {
        if self.habits.trouble != Trouble::DeadlinesMove {
            return self.cancel_one();
        }
        let Some((id, handle, way)) = self.some_handle() else { return };
        let to = self.some_new_deadline(id);
        let Some(to) = to.filter(|_| self.model().tasks[id].state != State::Moved) else { return };
        let (now, foreseen) = self.ask(|model| (model.now, model.reset(id, to)));
        let nanos = Duration::from_nanos;
        let told = match to {
            NEVER => handle.reset(Duration::MAX),
            to if to >= now && way == 0 => handle.reset(nanos(to - now)),
            to => handle.reset_at(self.start + nanos(to)),
        };
        assert_eq!(told, foreseen, "the reset of task {id}");
        let model = self.model();
        let task = &model.tasks[id];
        let waits = matches!(task.state, State::Waiting | State::Returned);
        let expected = (waits && task.deadline != NEVER).then(|| self.start + nanos(task.deadline));
        let known = handle.deadline().filter(|_| !waits || task.deadline != NEVER);
        assert_eq!(known, expected, "the deadline of task {id}: {task:?}");
        drop(model);
        self.check_pending();
        self.check_handle(id, &handle);
    }

    /// Returns a deadline for a task. It is not that of another one if the order of equal ones is not defined, and a task
    /// that is up in this turn is not moved within what is due, because it may have been handed over.
    fn some_new_deadline(&self, id: usize) -> Option<Time> {
        let to = self.some_deadline();
        let model = self.model();
        let is_taken =
            |to: Time| model.tasks.iter().any(|task| to == task.deadline || to == task.filed);
        let may_be_equal = model.settings.precision == Precision::Tick && !model.is_turning();
        let is_its_own = to == model.tasks[id].filed;
        let is_handed = to <= model.now && model.queue.iter().any(|(.., up)| *up == id);
        (!is_its_own && !is_handed && (may_be_equal || to == NEVER || !is_taken(to))).then_some(to)
    }

    /// S9
    fn check_that_it_is_dropped(&self, id: usize) {
        let model = self.model();
        let is_running = model.running == Some(id);
        assert_eq!(model.tasks[id].has_closure, is_running, "the closure of task {id}, cancelled");
    }

    fn some_handle(&self) -> Option<(usize, Cancellable, u64)> {
        let handles = &mut *lock(&self.handles);
        let count = handles.len() as u64;
        let (at, way) = self.draw(|random| (random.below(count.max(1)) as usize, random.below(6)));
        let (id, handle) = handles.get(at)?;
        let (id, clone) = (*id, handle.clone());
        let handle = if way < 3 { clone } else { handles.swap_remove(at).1 };
        Some((id, handle, way))
    }

    /// Checks what a handle says about its task.
    pub(crate) fn check_handle(&self, id: usize, handle: &Cancellable) {
        let model = self.model();
        let task = &model.tasks[id];
        let (is_done, is_cancelled) = (handle.is_done(), handle.is_cancelled());
        match task.state {
            // This is its last run, because a series that a close has returned runs once.
            State::Running if model.is_last_run(id) => {
                assert!(is_done && !is_cancelled, "task {id}: {task:?}");
            }
            State::Waiting | State::Running | State::Returned | State::Moved => {
                assert!(!is_done && !is_cancelled, "task {id}: {task:?}");
            }
            State::Over(End::Cancelled | End::CancelledThere) => {
                assert!(is_done && is_cancelled, "task {id}: {task:?}");
            }
            State::Over(End::CalledOff) => assert!(is_done, "task {id}: {task:?}"), // forgotten
            State::Over(_) => {
                assert!(!is_cancelled, "nobody has cancelled task {id}: {task:?}");
                assert!(is_done || task.has_closure, "task {id}: {task:?}");
            }
        }
    }
}

// ----- stop --------------------------------------------------------------------------------

impl World {
    /// Stops the scheduler. From outside it ends at once. Inside a task nothing can be waited for (S21), and the tasks that
    /// are due in this turn still run.
    pub(crate) fn stop(&self) {
        let Some(scheduler) = self.scheduler(false) else { return };
        let is_turning = self.model().is_turning();
        if is_turning {
            assert_eq!(scheduler.close().map(drop), Err(CloseError::OnTickThread));
        }
        self.model().close(true);
        let mut stopping = scheduler.stop();
        if is_turning {
            stopping = stopping.wait_timeout(Duration::MAX).expect_err("it would wait for itself");
        }
        self.keep(stopping);
    }

    /// Drops the last handles to the scheduler (S24).
    pub(crate) fn abandon(&self) {
        let faces = self.take_faces();
        if faces.is_some() {
            self.model().close(false);
        }
    }
}
