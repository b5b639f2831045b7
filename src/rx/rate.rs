//! The [`Paced`] behind [`Debounced`](super::Debounced) and [`Throttled`](super::Throttled): a closure that runs with
//! the last value of many, not before the value is due.
//!
//! The two differ only in when a value is due, which [`Pace`] says. A call on a busy closure reads the clock, replaces a
//! value, and pushes its due time. It schedules nothing: the timer that is set comes at the old time, looks at the new
//! one, and schedules itself again for the rest. So no schedule has to be able to move a task.
//!
//! ```text
//!              call: a timer is scheduled               call: the new value replaces the old one
//!   no value ----------------------------> a value, <--.  the timer comes, and the value is not due:
//!      ^  ^                                 a timer ---'  it schedules itself again
//!      |  |            cancel                |   |
//!      |  '----------------------------------'   |  the timer comes and the value is due, or flush
//!      |                                         v
//!      '---- the value is moved out ---- is `f` running on another thread, or below this call?
//!                 and `f` runs       no          |yes
//!                     ^                          v
//!                     '---- `f` returns ---- a value that waits for the end of that run
//! ```
//!
//! - PACE-1 The thread that takes `f` out of the state runs it and puts it back. So runs never overlap, and each run
//!   sees what the run before has written.
//! - PACE-2 If a timer is set or has come, there is a value. If there is a value, then its timer is set, or the timer has
//!   come and the thread that runs `f` will look after the value. There is one exception: the timer was dropped
//!   without a run. The next call schedules another one then.
//! - PACE-3 Values are in the order in which calls store them, under the lock. The first one is stored before its timer is
//!   scheduled, which may take long. Meanwhile other calls replace it, and rely on that timer. If it is refused, the call
//!   that schedules it takes its own value back and puts the one before in its place. If its value was replaced, it
//!   schedules a timer for the new one. If that is refused too, it runs `f` at once, because nobody else sees to the value.
//! - A value leaves `pending` in one of three ways: `f` gets it, a later value replaces it, or `cancel` drops it.
//! - A timer that is refused when it schedules itself again leaves its value to the thread that it runs on, which runs
//!   `f` at once too. That is too early, but otherwise the value could wait for ever.
//! - With the state locked, nothing of a user's is called or dropped: no value, clock or schedule. A handle counts as the
//!   user's too, because its drop may drop a timer, which locks the state (S11).

use std::any::type_name;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::timer::{RunOrDrop, after, cancel_timer};
use crate::platform::panics::FirstPanic;
use crate::platform::sync::{Mutex, MutexGuard, lock};
use crate::{Cancellable, PanicHook, Request, Schedule, ScheduleError, TryScheduleError};

/// Writes the methods of a callable, which is a `Paced` in a field of that name.
macro_rules! callable {
    ($type:ident) => {
        impl<T: Send + 'static> $type<T> {
            /// Takes a value. It replaces the pending one, and `f` runs with it when it is due.
            ///
            /// # Errors
            ///
            /// A call that finds no timer set schedules one. If the schedule is closed or full,
            /// [`into_task`](crate::TryScheduleError::into_task) gives the value back, and
            /// [`reason`](crate::TryScheduleError::reason) says why. A value that was accepted before stays. While a timer
            /// is set, a call always succeeds.
            pub fn call(&self, value: T) -> Result<(), crate::TryScheduleError<T>> {
                self.paced.call(value)
            }

            /// Runs `f` with the pending value now, on the calling thread. Returns false if no value is pending.
            ///
            /// If `f` is running at this moment, on another thread or around this call, the value does not wait for its
            /// time any more, but for the end of that run. Then it is scheduled without a delay. A panic in `f` is the
            /// caller's.
            ///
            /// To have it run on the schedule, schedule a task that calls `flush`.
            pub fn flush(&self) -> bool {
                self.paced.flush()
            }

            /// Drops the pending value, and cancels its timer. Returns false if no value is pending. A run of `f` that has
            /// started goes on.
            pub fn cancel(&self) -> bool {
                self.paced.cancel()
            }

            /// Returns true if a value waits for its run. The value of a run that has started does not count.
            pub fn is_pending(&self) -> bool {
                self.paced.is_pending()
            }
        }

        impl<T> Clone for $type<T> {
            fn clone(&self) -> $type<T> {
                $type { paced: Arc::clone(&self.paced) }
            }
        }

        crate::platform::impls::impl_debug!($type<T>, self, is_pending: self.paced.is_pending());
    };
}
pub(super) use callable;

/// When a value is due.
#[derive(Clone, Copy)]
pub(super) enum Pace {
    /// When no value has come for so long.
    Quiet(Duration),
    /// A period after the start of the last run, or at once if there was none.
    Period(Duration),
}

/// A closure, the value that it will run with next, and the schedule that it runs on.
pub(super) struct Paced<T> {
    schedule: Box<dyn Schedule>,
    /// The type name of the user's closure, for reports of panics and leftovers (S31).
    name: &'static str,
    state: Mutex<State<T>>,
}

type F<T> = Box<dyn FnMut(T) + Send>;

struct State<T> {
    /// `None` while it runs (PACE-1).
    f: Option<F<T>>,
    pace: Pace,
    /// A value is due so long after the first one of those that were replaced, whatever the pace says.
    max_wait: Duration,
    pending: Option<Pending<T>>,
    last_run: Option<Instant>,
    /// The number of the pending value's timer, and its handle, which is missing as long as the timer is being scheduled.
    timer: Option<(u64, Option<Cancellable>)>,
    last_id: u64,
}

/// The value that `f` will run with next.
struct Pending<T> {
    /// That of the call.
    id: u64,
    value: T,
    due: Instant,
    /// The latest time at which it is due, however many values replace it.
    latest: Instant,
}

/// The timer that the thread will set that runs `f`, because a timer came, or `flush` was called, in the meantime.
const AFTER_RUN: u64 = 0;

/// A run that only the thread that has this can make (PACE-1): the closure, and its value.
type Run<T> = (F<T>, T);

/// Drops what may be a user's. A panic in a drop is no reason for not going on (S9).
fn discard<D>(garbage: D) {
    PanicHook::default().catch(None, || drop(garbage));
}

impl<T> State<T> {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Stores the value of a call at `now`, and returns the one that it replaces.
    fn store(&mut self, id: u64, value: T, now: Instant) -> Option<Pending<T>> {
        let pending = self.pending.as_ref();
        let due = match self.pace {
            Pace::Quiet(quiet) => {
                let quiet_at = after(now, quiet);
                // Calls of several threads may come in another order than their readings of the clock.
                pending.map_or(quiet_at, |pending| pending.due.max(quiet_at))
            }
            Pace::Period(period) => {
                // If a period has passed since the last run, at once.
                let next = || self.last_run.map_or(now, |last| after(last, period));
                pending.map_or_else(next, |pending| pending.due)
            }
        };
        let latest = pending.map_or_else(|| after(now, self.max_wait), |pending| pending.latest);
        self.pending.replace(Pending { id, value, due: due.min(latest), latest })
    }

    fn is_set(&self, id: u64) -> bool {
        self.timer.as_ref().is_some_and(|(its, _)| *its == id)
    }

    fn take_timer(&mut self) -> Option<Cancellable> {
        self.timer.take()?.1
    }

    /// Stores the handle of a timer that was accepted. Returns it if the timer has come, is not needed, or was dropped (PACE-2).
    fn keep(&mut self, id: u64, handle: Cancellable) -> Option<Cancellable> {
        let timer = self.timer.as_mut().filter(|(its, _)| *its == id);
        let Some((_, kept)) = timer else { return Some(handle) };
        kept.replace(handle)
    }

    /// A run of `f` has started then. The next value is due a period later, or at the latest when `flush` was called for it.
    fn has_started(&mut self, at: Instant) {
        self.last_run = Some(at);
        if let (Pace::Period(period), Some(pending)) = (self.pace, &mut self.pending) {
            pending.due = pending.due.max(after(at, period)).min(pending.latest);
        }
    }

    /// Moves `f` and the value out for a run (PACE-1). If `f` runs, the thread that runs it will see to the value.
    fn start(&mut self) -> Option<Run<T>> {
        self.pending.as_ref()?;
        if self.f.is_none() {
            self.timer = Some((AFTER_RUN, None));
        }
        Some((self.f.take()?, self.pending.take()?.value))
    }
}

impl<T: Send + 'static> Paced<T> {
    pub(super) fn new<G: FnMut(T) + Send + 'static>(
        schedule: impl Schedule + 'static,
        pace: Pace,
        f: G,
    ) -> Arc<Paced<T>> {
        let state = State {
            f: Some(Box::new(f)),
            pace,
            max_wait: Duration::MAX,
            pending: None,
            last_run: None,
            timer: None,
            last_id: 0,
        };
        let schedule = Box::new(schedule);
        Arc::new(Paced { schedule, name: type_name::<G>(), state: Mutex::new(state) })
    }

    pub(super) fn call(self: &Arc<Self>, value: T) -> Result<(), TryScheduleError<T>> {
        let now = self.schedule.now();
        let mut state = lock(&self.state);
        let id = state.next_id();
        let mut before = state.store(id, value, now);
        if state.timer.is_some() {
            drop(state);
            discard(before);
            return Ok(());
        }
        let (mut panics, mut refused, mut run) = (FirstPanic::default(), None, None);
        if let Some((mut state, reason)) = self.arm(state, &mut panics) {
            if let Some(mine) = state.pending.take_if(|pending| pending.id == id) {
                state.pending = before.take();
                refused = Some((reason, mine.value));
            } else {
                run = state.start();
            }
        }
        discard(before);
        PanicHook::default().catch(self.name, || self.run(run, FirstPanic::default()));
        if let Some((Some(reason), value)) = refused {
            return Err(TryScheduleError::new(reason, value));
        }
        discard(refused);
        panics.resume(); // of the schedule
        Ok(())
    }

    /// Schedules a timer for the pending value, and again if it is refused and another value has come meanwhile (PACE-3). If
    /// the last one is refused too, and nobody sees to the value, the state comes back locked, with the reason. There is
    /// none if the schedule has panicked.
    fn arm<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State<T>>,
        panics: &mut FirstPanic,
    ) -> Option<(MutexGuard<'a, State<T>>, Option<ScheduleError>)> {
        loop {
            let (value, due) = state.pending.as_ref().map(|it| (it.id, it.due))?;
            let id = state.next_id();
            // Noted before it is scheduled, so that other calls rely on it.
            state.timer = Some((id, None));
            drop(state);
            let paced = Arc::clone(self);
            let timer = RunOrDrop::new(move |comes| paced.end_timer(id, comes));
            let request = Request::At(due, Box::new(move || timer.run()));
            // A user's schedule or clock may panic, and so may the capture of a context.
            let scheduled = panics.catch(|| self.schedule.schedule_named(self.name, request));
            state = lock(&self.state);
            if let Some(Ok(handle)) = scheduled {
                let unneeded = state.keep(id, handle);
                drop(state);
                cancel_timer(&PanicHook::default(), unneeded);
                return None;
            }
            if state.timer.take_if(|(its, _)| *its == id).is_none() && state.timer.is_some() {
                return None; // another thread sees to the value
            }
            let is_other = state.pending.as_ref().is_some_and(|pending| pending.id != value);
            if !is_other || scheduled.is_none() {
                return Some((state, scheduled.and_then(Result::err)));
            }
        }
    }

    /// Runs `f`, if this thread is to. If the next value became due in the meantime, sets a timer for it, so that other tasks
    /// of this thread have their turn. If the timer is refused, `f` runs again here. Panics at the end, with the first panic.
    fn run(self: &Arc<Self>, mut next: Option<Run<T>>, mut panics: FirstPanic) {
        while let Some((mut f, value)) = next {
            // The thread that found the value due read the clock before it waited for the lock of the state. The run
            // starts only now, so this thread reads the clock again.
            let started = PanicHook::default().catch(None, || self.schedule.now());
            panics.catch(|| f(value));
            let mut state = lock(&self.state);
            state.f = Some(f);
            started.into_iter().for_each(|at| state.has_started(at));
            let has_come = state.is_set(AFTER_RUN);
            let unseen = if has_come { self.arm(state, &mut panics) } else { None };
            next = unseen.and_then(|(mut state, _)| state.start());
        }
        panics.resume(); // to the layer that runs the task, which reports it
    }

    /// The timer with this id comes, or was dropped without a run: it was refused or cancelled, or its schedule has ended.
    fn end_timer(self: &Arc<Self>, id: u64, comes: bool) {
        let mut panics = FirstPanic::default();
        let now = if comes { panics.catch(|| self.schedule.now()) } else { None };
        let mut state = lock(&self.state);
        let Some(now) = now.filter(|_| state.is_set(id)) else {
            // If it is still being scheduled, the thread that does so finds that out (PACE-2).
            let old = state.timer.take_if(|(its, _)| *its == id);
            drop(state);
            discard(old);
            return panics.resume(); // of the clock
        };
        let handle = state.take_timer();
        let due = state.pending.as_ref().map(|pending| pending.due);
        let waits = due > Some(now) && state.f.is_some();
        let unseen = if waits { self.arm(state, &mut panics) } else { Some((state, None)) };
        let run = unseen.and_then(|(mut state, _)| state.start());
        discard(handle);
        self.run(run, panics);
    }

    pub(super) fn flush(self: &Arc<Self>) -> bool {
        let now = self.schedule.now();
        let mut state = lock(&self.state);
        let is_throttled = matches!(state.pace, Pace::Period(_));
        let Some(pending) = &mut state.pending else { return false };
        pending.due = now; // in case `f` runs
        if is_throttled {
            pending.latest = now; // a value that replaces it is not put off by a period either
        }
        let (handle, run) = (state.take_timer(), state.start());
        drop(state);
        cancel_timer(&PanicHook::default(), handle);
        self.run(run, FirstPanic::default());
        true
    }

    pub(super) fn cancel(&self) -> bool {
        let mut state = lock(&self.state);
        let (pending, handle) = (state.pending.take(), state.take_timer());
        drop(state);
        cancel_timer(&PanicHook::default(), handle);
        let was_pending = pending.is_some();
        discard(pending);
        was_pending
    }
}

impl<T> Paced<T> {
    pub(super) fn set_max_wait(&self, longest: Duration) {
        lock(&self.state).max_wait = longest;
    }

    pub(super) fn is_pending(&self) -> bool {
        lock(&self.state).pending.is_some()
    }
}
