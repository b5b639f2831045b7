//! What the calling thread does for schedulers: the tasks that it runs, and the engines that it turns. All of it is
//! thread-local, but for a list of the runs that wait for the end of a scheduler.

use std::cell::{Cell, RefCell};

use crate::platform::sync::{Mutex, global, lock, thread_local};
use crate::wheel::entry::{SchedulerId, TaskKey};

// ----- runs ------------------------------------------------------------------------------------

/// A run of a task.
pub(crate) type Run = (SchedulerId, TaskKey);

/// What this thread runs.
struct Here {
    /// The innermost task.
    run: Cell<Option<Run>>,
    /// How many of the tasks, from the outermost on, count as waiting because one of them has polled the end of a scheduler.
    polled: Cell<usize>,
}

thread_local! {
    static HERE: Here = const { Here { run: Cell::new(None), polled: Cell::new(0) } };
    /// The tasks that it runs around that one, and the engines that it turns. A turn has no task.
    static OUTER: RefCell<Vec<Run>> = const { RefCell::new(Vec::new()) };
}

fn current() -> Option<Run> {
    HERE.with(|here| here.run.get())
}

/// Notes that the calling thread begins to run a task. [`leave_run`] gets what this returns.
#[inline]
pub(crate) fn enter_run(scheduler: SchedulerId, key: TaskKey) -> Option<Run> {
    let outer = HERE.with(|here| here.run.replace(Some((scheduler, key))));
    // Runs inside of runs are rare, for example an executor that runs a task in place. So they cost only those.
    if let Some(outer) = outer {
        let _ = OUTER.try_with(|runs| runs.borrow_mut().push(outer));
    }
    outer
}

/// Notes that the run has ended.
#[inline]
pub(crate) fn leave_run(outer: Option<Run>) {
    HERE.with(|here| {
        if here.polled.get() > 0 {
            waits_no_more();
        }
        here.run.set(outer);
    });
    if outer.is_some() {
        let _ = OUTER.try_with(|runs| runs.borrow_mut().pop());
    }
}

/// Returns true if the calling thread runs a task.
pub(crate) fn is_in_a_run() -> bool {
    current().is_some()
}

/// Returns true if the calling thread runs a task of this scheduler.
pub(crate) fn is_in_a_run_of(scheduler: SchedulerId) -> bool {
    is_any_run(|(here, _)| *here == scheduler)
}

/// Returns true if the calling thread runs a task like this.
fn is_any_run(is_meant: impl Fn(&Run) -> bool) -> bool {
    // A thread that runs a task and has lost the list of the outer ones answers yes: then nobody waits for it, which
    // is never a deadlock.
    let outer = |runs: &RefCell<Vec<Run>>| runs.borrow().iter().any(&is_meant);
    current().is_some_and(|run| is_meant(&run) || OUTER.try_with(outer).unwrap_or(true))
}

/// Returns the tasks that the calling thread runs, the innermost last.
fn all_runs() -> Vec<TaskKey> {
    let outer = OUTER.try_with(|runs| runs.borrow().clone()).unwrap_or_default();
    let runs = outer.into_iter().chain(current()).map(|(_, key)| key);
    runs.filter(|key| *key != TaskKey::NONE).collect()
}

// ----- runs that wait for the end of a scheduler ------------------------------------------------------

// A task may close its scheduler, or wait for the end of another one. Two such runs must not wait for each other's ends. So each
// run notes itself before it waits, and no close inside of a run waits for a run that is noted. Two tasks on tick threads that
// wait for the end of each other's scheduler do so until their time is up: each tick thread has to return first.

// The runs whose threads wait for the end of a scheduler, each as often as it waits.
global!(WAITING: Mutex<Vec<TaskKey>> = Mutex::new(Vec::new()));

/// Calls `wait`. In the meantime the runs of the calling thread count as waiting.
pub(super) fn while_waiting<R>(wait: impl FnOnce() -> R) -> R {
    // Noted before the first look, so of two closes inside of runs at least one sees the other.
    let runs = all_runs();
    lock(&WAITING).extend(&runs);
    let result = wait();
    runs.into_iter().for_each(forget);
    result
}

/// Takes one note of this run back. The next run of the same series may have one of its own by now.
fn forget(run: TaskKey) {
    let mut waiting = lock(&WAITING);
    let at = waiting.iter().position(|waits| *waits == run);
    at.map(|at| waiting.swap_remove(at));
}

/// Counts the runs of a thread that polls as waiting from now on.
pub(super) fn waits_from_now_on() {
    // Nobody tells when a future is dropped, or for how long it waits. So its runs count as waiting until they are over.
    let runs = all_runs();
    let polled = HERE.with(|here| here.polled.replace(runs.len()));
    lock(&WAITING).extend(runs.iter().skip(polled));
}

/// The innermost run ends, and some run of this thread has polled.
#[cold]
fn waits_no_more() {
    let runs = all_runs();
    if HERE.with(|here| here.polled.get()) == runs.len() {
        HERE.with(|here| here.polled.set(runs.len() - 1));
        runs.last().into_iter().for_each(|run| forget(*run));
    }
}

/// Returns true if the calling thread has to wait for this run.
pub(super) fn holds_up(key: TaskKey) -> bool {
    // A close inside of a run waits neither for that run, nor for runs whose threads wait for an end themselves, of
    // whatever scheduler. So no two of them wait for each other.
    let runs_it = is_any_run(|(_, here)| *here == key);
    !is_in_a_run() || !(runs_it || lock(&WAITING).contains(&key))
}

// ----- turns -----------------------------------------------------------------------------------

/// Marks the calling thread as the one that turns this scheduler's engine, until it is dropped.
pub(crate) struct TurningMark(());

impl TurningMark {
    pub(crate) fn new(scheduler: SchedulerId) -> TurningMark {
        let _ = OUTER.try_with(|runs| runs.borrow_mut().push((scheduler, TaskKey::NONE)));
        TurningMark(())
    }
}

impl Drop for TurningMark {
    fn drop(&mut self) {
        let _ = OUTER.try_with(|runs| runs.borrow_mut().pop());
    }
}

/// Returns true if the calling thread is inside a turn of some scheduler's engine.
pub(crate) fn is_turning() -> bool {
    is_any_turn(|_| true)
}

/// Returns true if the calling thread is inside a turn of an engine like this.
pub(super) fn is_any_turn(is_meant: impl Fn(SchedulerId) -> bool) -> bool {
    let is_one = |(here, key): &Run| *key == TaskKey::NONE && is_meant(*here);
    OUTER.try_with(|runs| runs.borrow().iter().any(is_one)).unwrap_or(false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// A series may run again before the thread of the run before has noted its end.
    #[test]
    fn s29_the_end_of_a_run_takes_no_note_of_the_next_run_back() {
        let key = |slot| TaskKey::new(slot, u32::MAX - 2); // of no task
        let (series, other) = (key(1), key(2));
        let is_waited_for = || {
            let outer = enter_run(SchedulerId::FIRST, other);
            let is_waited_for = holds_up(series);
            leave_run(outer);
            is_waited_for
        };
        let outer = enter_run(SchedulerId::FIRST, series);
        waits_from_now_on();
        waits_from_now_on();
        let inner = enter_run(SchedulerId::FIRST, key(3));
        leave_run(inner);
        let (noted, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let outer = enter_run(SchedulerId::FIRST, series);
                while_waiting(|| {
                    noted.wait();
                    ended.wait();
                });
                leave_run(outer);
            });
            noted.wait();
            leave_run(outer);
            let is_waited_for = is_waited_for();
            ended.wait();
            assert!(!is_waited_for, "the next run waits itself");
        });
        assert!(is_waited_for() && !lock(&WAITING).contains(&series));
    }
}
