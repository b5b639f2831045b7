//! The end of a scheduler: a oneshot that carries the leftovers, and the runs that are still in progress then.
//!
//! ```text
//!              the engine's last turn                the run ends, and would go on
//!   in a run --------------------------> InRun ------------------------------------> leftover
//!   (series)                              |  close does not wait for it
//!                                         v
//!                                       Taken ------> a leftover of the PendingTask that a caller has
//!                                         |  the PendingTask has decided already
//!                                         v
//!                                       the decision is carried out behind the run
//! ```
//!
//! The leftovers wait for a caller that may take them: a close, or a `Stopping`. When no caller is left that could take
//! them, they are dropped (S24). The tick thread waits for that, and drops them. Without a tick thread the last caller does.
//!
//! The end holds keys of tasks and no scheduler. Otherwise scheduler and end would keep each other alive. A scheduler that
//! goes while its end still has leftovers drops them.
//!
//! - END-3 A series that is in a run when the end comes has exactly one fate: it becomes a leftover when the run has
//!   ended, or it is over by then (it broke, panicked or was cancelled). The engine looks at the word of each series
//!   that an executor has, after it has closed the lanes. The runner comes here when there is no next run.
//!   Both do so with the lock held, so the one that comes second finds what the first one has left. Until
//!   the runner comes the series is in its run, so no other thread starts or returns it.
//! - END-5 A series that ends of itself during the end is taken off the list by its runner, or found to be over by the
//!   engine: the runner writes the word and then reads `is_closing`, and the engine reads the word after `is_closing` was
//!   written, all in one order. For a one-shot there is no such order: its end may be found only by the look at its word
//!   that a waiting thread takes every few milliseconds.

use std::collections::BTreeMap;
use std::mem;
use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::this_thread::{holds_up, waits_from_now_on, while_waiting};
use crate::clock::tick::Moment;
use crate::engine::slots::state::Word;
use crate::engine::slots::task::{self, Leftover};
use crate::engine::slots::{Phase, deadline};
use crate::platform::panics::quietly;
use crate::platform::sync::{AtomicBool, Condvar, IS_MODEL, Mutex, MutexGuard, Ordering, lock};
use crate::wake::wait_list::{Ticket, WaitList};
use crate::wheel::entry::TaskKey;

/// What is to be done with a leftover that was taken in its run. It is carried out behind that run.
pub(crate) type Decision = Box<dyn FnOnce(Leftover) + Send>;

/// What comes after a run that was in progress when the end came, or after that of a leftover.
enum Stage {
    /// Nothing comes after it, or what comes is being done already: its task is a one-shot, a leftover, or was cancelled.
    Last,
    /// Its series will be this leftover.
    InRun(Leftover),
    /// Its series is one already: a caller has its `PendingTask`, and may have decided what to do with it.
    Taken(Option<Decision>),
}

impl Stage {
    /// Returns true if the series of this run will be a leftover. It may also be over, or doomed (END-5).
    fn leaves_over(&self) -> bool {
        matches!(self, Stage::InRun(task) if task::goes_on(task.key))
    }
}

/// The end of one scheduler. The engine fulfils it, once.
pub(crate) struct Termination {
    /// Set once, by a stop.
    is_closing: AtomicBool,
    /// How long a close waits for it.
    pub(crate) timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// Says which kind of party leaves: see [`Termination::leave`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaver {
    /// A caller that does not wait any more.
    Taker,
    /// A caller that was dropped without waiting. Unless another caller waits, the leftovers are dropped, even if a close
    /// could still come.
    TakerThatGivesUp,
    /// The last handle, or the driver.
    Closer,
}

/// What is to become of the leftovers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fate {
    /// Nobody has asked for them, so the engine drops them.
    #[default]
    Unasked,
    /// They are kept until a caller takes them.
    Wanted,
    /// Nobody will take them. This stays, unless a handle is made anew before the scheduler closes.
    GivenUp,
}

#[derive(Default)]
struct State {
    fate: Fate,
    /// How many closes and `Stopping`s may take the leftovers.
    takers: usize,
    /// How many may still close the scheduler. All clones of a handle together count as one, and the driver as another one.
    closers: usize,
    /// The tick thread has not finished [`Termination::attend`]. Until then it drops the leftovers that are given up.
    is_attended: bool,
    has_come: bool,
    leftovers: Vec<Leftover>,
    runs: BTreeMap<TaskKey, Stage>,
    /// The tasks that wait for the end. Each sleeps until it comes.
    waiters: WaitList<()>,
}

/// How often a waiting thread looks at the words of tasks by itself (END-5).
const LOOK: Duration = Duration::from_millis(5);

impl State {
    /// Returns true if the end has come, and no series is in a run that the calling thread has to wait for.
    fn is_ready(&self) -> bool {
        self.has_come && !self.runs.iter().any(|(key, run)| run.leaves_over() && holds_up(*key))
    }

    /// Returns true if the end has come, and no run is in progress, of whatever kind.
    fn is_over(&self) -> bool {
        self.has_come && self.runs.keys().all(|run| task::is_over(*run))
    }

    /// Returns true if there are leftovers to take, now or behind their runs.
    fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty() || self.runs.values().any(Stage::leaves_over)
    }

    /// Takes all leftovers, by deadline. Series in their runs become leftovers by this.
    fn take(&mut self) -> Vec<Leftover> {
        // The caller that comes first gets them all. All others find an end without leftovers.
        let mut leftovers = mem::take(&mut self.leftovers);
        for run in self.runs.values_mut().filter(|run| run.leaves_over()) {
            // The run goes on. Its thread carries out the decision of the new owner.
            if let Stage::InRun(task) = mem::replace(run, Stage::Taken(None)) {
                leftovers.push(task);
            }
        }
        for task in &mut leftovers {
            task.deadline = deadline::of_leftover(task.key, task.deadline);
        }
        leftovers.sort_by_key(|task| task.deadline);
        leftovers
    }
}

impl Termination {
    /// Creates the end of a scheduler. `has_a_thread`: a tick thread will call [`attend`](Termination::attend).
    pub(crate) fn new(has_a_thread: bool, timeout: Duration) -> Termination {
        let closers = if has_a_thread { 1 } else { 2 };
        let state = State { is_attended: has_a_thread, closers, ..State::default() };
        let (is_closing, changed) = (AtomicBool::new(false), Condvar::new());
        Termination { is_closing, timeout, state: Mutex::new(state), changed }
    }

    // ----- its beginning ---------------------------------------------------------------------

    /// Notes that the scheduler stops: nothing is accepted from now on.
    pub(crate) fn begin(&self) {
        // In one order with the looks at series in their runs (END-5).
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// In one order with `begin`, for the runner of a series (END-5). For all others an Acquire would do, which is the same
    /// instruction on x86 and Arm.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    // ----- those that may take the leftovers -----------------------------------------------

    /// Notes that a caller may take the leftovers, until it [leaves](Termination::leave). They are kept from now on, unless
    /// they were given up.
    pub(crate) fn join(&self) {
        let mut state = lock(&self.state);
        if state.fate == Fate::Unasked {
            state.fate = Fate::Wanted;
        }
        state.takers += 1;
    }

    /// Notes that there is one more who can close the scheduler, until it [leaves](Termination::leave).
    pub(crate) fn join_closers(&self) {
        let mut state = lock(&self.state);
        // Futures may have kept the scheduler open without anybody who could close it.
        if state.closers == 0 && !self.is_closing() {
            state.fate = Fate::default();
        }
        state.closers += 1;
    }

    /// Notes that a taker or a closer has gone. If no other one is left that may take the leftovers, gives them up.
    /// Returns what the caller has to drop, because no tick thread does so.
    pub(crate) fn leave(&self, leaver: Leaver) -> Vec<Leftover> {
        let mut state = lock(&self.state);
        match leaver {
            Leaver::Taker | Leaver::TakerThatGivesUp => state.takers -= 1,
            Leaver::Closer => state.closers -= 1,
        }
        // As long as a close can come, it finds what has not been taken.
        let may_come = state.closers > 0 && leaver != Leaver::TakerThatGivesUp;
        if may_come || state.takers > 0 || state.fate == Fate::GivenUp {
            return Vec::new();
        }
        state.fate = Fate::GivenUp;
        // The closures of the leftovers are user code, whose drops may take long. The tick thread does that if there
        // is one.
        if state.has_come && !state.is_attended {
            return state.take();
        }
        self.notify(state);
        Vec::new()
    }

    /// Waits until the leftovers were taken or given up, on the tick thread, after its last turn. Returns those that were
    /// given up.
    pub(crate) fn attend(&self) -> Vec<Leftover> {
        let mut state = lock(&self.state);
        // The thread lives until then, because the drops of leftovers belong on it. It uses no processor time
        // meanwhile.
        while state.fate == Fate::Wanted && state.has_leftovers() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_attended = false; // from now on a caller that gives the leftovers up drops them itself
        if state.fate == Fate::Wanted { Vec::new() } else { state.take() }
    }

    pub(crate) fn has_come(&self) -> bool {
        lock(&self.state).has_come
    }

    // ----- the engine ----------------------------------------------------------------------

    /// Tells that the end has come. Returns how many leftovers there are, with those to come, and the leftovers that nobody
    /// will take, which the caller drops.
    ///
    /// `listed` are those that the engine had in its lists. `found` are all other tasks that were pending or in a run when
    /// the engine looked, after it had closed the lanes. `make_leftover` makes the task of a slot and a number a leftover,
    /// unless its run has started.
    pub(crate) fn fulfil(
        &self,
        listed: Vec<Leftover>,
        found: &[(TaskKey, Word)],
        now: Moment,
        make_leftover: impl Fn(u32, u32) -> Option<Leftover>,
    ) -> (usize, Vec<Leftover>) {
        let mut state = lock(&self.state);
        for (key, found) in found.iter().copied() {
            // An executor may have the task in its queue, not started. Its word tells: the claim here and that of the
            // run exclude each other.
            if let Some(task) = make_leftover(key.slot, found.number()) {
                state.leftovers.push(task);
                continue;
            }
            // A series that has become a leftover behind its run, or is over, has another phase or another number. If
            // it is in its run, the runner has not come yet, because this has the lock. So it will find its series on
            // this list (END-3).
            let word = task::settled_word(key).filter(|word| word.number() == found.number());
            let run = match word.map(Word::phase) {
                Some(Phase::Running) if found.is_series() => {
                    let period = task::period(key.slot);
                    let deadline = now.after_nanos(period); // as far as can be said now
                    Stage::InRun(Leftover { key, deadline, period, is_in_run: true })
                }
                Some(Phase::Running | Phase::Doomed | Phase::Ending) => Stage::Last,
                _ => continue,
            };
            state.runs.insert(key, run);
        }
        state.leftovers.extend(listed);
        state.has_come = true;
        let count =
            state.leftovers.len() + state.runs.values().filter(|run| run.leaves_over()).count();
        // Under the same lock, so a caller that comes to want them finds all of them or none.
        let unwanted = if state.fate == Fate::Wanted { Vec::new() } else { state.take() };
        self.notify(state);
        (count, unwanted)
    }

    /// Releases the lock, and wakes all threads and wakers that wait for a change.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let has_come = state.has_come;
        // Before the end, a waker stays for the change that it waits for.
        let wakers = if has_come { state.waiters.all_to_wake() } else { Vec::new() };
        // Wakers are user code, so the lock is released first (S11).
        drop(state);
        self.changed.notify_all();
        for waker in wakers {
            quietly(|| waker.wake()); // its panic must not keep the others from being woken
        }
    }

    // ----- the runner ----------------------------------------------------------------------

    /// Takes a series back behind its run, because the scheduler has closed in the meantime, or it was cancelled.
    /// `make_leftover` makes it a leftover, unless it was cancelled: then this returns `None`. If there is a decision about it, the runner carries it out, and then
    /// calls [`run_is_over`](Termination::run_is_over).
    pub(crate) fn return_from_run(
        &self,
        key: TaskKey,
        make_leftover: impl FnOnce() -> Option<Leftover>,
    ) -> Option<(Leftover, Option<Decision>)> {
        let mut state = lock(&self.state);
        // Under the lock, so the engine finds the series either in its run or among the leftovers (END-3).
        let task = make_leftover()?;
        // Under the same lock: another thread may run the leftover at once, and that run must stay on the list.
        match state.runs.remove(&key) {
            Some(Stage::Taken(Some(decision))) => {
                state.runs.insert(key, Stage::Last);
                return Some((task, Some(decision)));
            }
            Some(Stage::Taken(None)) => {} // it is a leftover like any other from now on
            _ => state.leftovers.push(task),
        }
        self.notify(state);
        Some((task, None))
    }

    /// Notes that a leftover is about to run, until [`run_is_over`](Termination::run_is_over).
    pub(crate) fn will_run(&self, key: TaskKey) {
        lock(&self.state).runs.insert(key, Stage::Last);
    }

    /// Notes that a run has ended, and what was to be done behind it.
    #[cold]
    pub(crate) fn run_is_over(&self, key: TaskKey) {
        let mut state = lock(&self.state);
        // Nobody waits for most runs that end while their scheduler closes, nor for each leftover once.
        let Some(over) = state.runs.remove(&key) else { return };
        self.notify(state);
        // A decision about a series that has ended by itself may hold the last handle to another scheduler, or to a
        // user's executor.
        quietly(|| drop(over));
    }

    /// Has this done with a leftover that was taken in its run, when that run has ended. If it has ended already, the
    /// decision comes back.
    pub(crate) fn decide(&self, key: TaskKey, decision: Decision) -> Result<(), Decision> {
        match lock(&self.state).runs.get_mut(&key) {
            Some(Stage::Taken(decided)) => *decided = Some(decision),
            _ => return Err(decision),
        }
        Ok(())
    }

    // ----- waiting -------------------------------------------------------------------------

    /// Takes the leftovers for a caller that wants them, unless they were given up. Then the tick thread drops them.
    fn take_from(&self, mut state: MutexGuard<'_, State>) -> Vec<Leftover> {
        let leftovers = if state.fate == Fate::GivenUp { Vec::new() } else { state.take() };
        self.notify(state); // nobody waits any more for series that were taken in their runs, nor the tick thread
        leftovers
    }

    /// Takes the leftovers, if the end has come.
    pub(crate) fn take(&self) -> Option<Vec<Leftover>> {
        Some(lock(&self.state)).filter(|state| state.has_come).map(|state| self.take_from(state))
    }

    /// Waits for the end, and takes the leftovers; `None` if it has not come in time.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Vec<Leftover>> {
        while_waiting(|| self.wait_for(timeout, State::is_ready)).map(|state| self.take_from(state))
    }

    /// Waits until the end has come and no run is in progress. Returns false if that is not so in time.
    pub(crate) fn wait_for_runs(&self, timeout: Duration) -> bool {
        while_waiting(|| self.wait_for(timeout, State::is_over)).is_some()
    }

    fn wait_for(
        &self,
        timeout: Duration,
        has_come: impl Fn(&State) -> bool,
    ) -> Option<MutexGuard<'_, State>> {
        let until = Instant::now().checked_add(timeout);
        let mut state = lock(&self.state);
        while !has_come(&state) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            // Not every end of a run wakes this thread: a runner that has not seen the stop tells nobody. So once the
            // end has come, this thread also looks by itself.
            let look = state.has_come.then_some(LOOK);
            state = match left.into_iter().chain(look).min() {
                Some(most) if !IS_MODEL => {
                    let woken = self.changed.wait_timeout(state, most);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Some(state)
    }

    /// Takes the leftovers if the end has come. Otherwise the waker is woken when it comes.
    pub(crate) fn poll(&self, waiter: &mut Option<Ticket>, waker: &Waker) -> Poll<Vec<Leftover>> {
        let mine = waker.clone(); // it may run a user's code, so it comes before the lock (S11)
        // A poll inside of a run makes that run wait, and other closes must not wait for it. Noted before the look, as in `wait`.
        waits_from_now_on();
        let mut state = lock(&self.state);
        if state.is_ready() {
            let leftovers = self.take_from(state);
            quietly(|| drop(mine)); // its panic must not cost the caller the leftovers
            return Poll::Ready(leftovers);
        }
        let ticket = *waiter.get_or_insert_with(|| state.waiters.join());
        let replaced = state.waiters.set_asleep(ticket, None, mine);
        drop(state);
        quietly(|| drop(replaced));
        Poll::Pending
    }

    /// Gives back the waker that a waiter has left, if it has not been woken.
    pub(crate) fn forget(&self, waiter: Ticket) -> Option<Waker> {
        lock(&self.state).waiters.leave(waiter, None).0
    }
}
