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
//!                                       Then(decision) --> carried out behind the run
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
//!   that an executor has, after it has closed the lanes. The runner comes here when the lanes refuse the next run.
//!   Both do so with the lock held, so the one that comes second finds what the first one has left. Between the
//!   refusal and the runner's coming the series is in its run, so no other thread starts or returns it.
//! - END-5 A series that ends of itself during the end is taken off the list by its runner, or found to be over by the
//!   engine: the runner writes the word and then reads `is_closing`, and the engine reads the word after `is_closing` was
//!   written, all in one order. The end of a one-shot is found by a look at its word every few milliseconds.

use std::collections::BTreeMap;
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
use crate::wheel::entry::TaskKey;

/// What is to be done with a leftover that was taken in its run. It is carried out behind that run.
pub(crate) type Decision = Box<dyn FnOnce(Leftover) + Send>;

/// What becomes of a series behind its run, because the scheduler has closed.
pub(crate) enum BehindRun {
    /// A cancel has won. The runner ends the series, and tells so by [`Termination::run_is_over`].
    Cancelled,
    /// It is a leftover now.
    Leftover,
    /// It is a leftover, and the runner carries this decision out.
    Decided(Decision, Leftover),
}

/// A series that was in a run when the end came.
struct InRun {
    task: Leftover,
    stage: Stage,
}

enum Stage {
    /// It will be a leftover.
    InRun,
    /// It is one already: a caller has its `PendingTask`, and has not decided what to do with it.
    Taken,
    /// The owner of the `PendingTask` has decided.
    Then(Decision),
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
    series: Vec<InRun>,
    /// Other runs that were in progress when the end came: of one-shots, and of series that were cancelled in them.
    last_runs: Vec<TaskKey>,
    /// How many leftovers are being run.
    leftover_runs: usize,
    /// Of the tasks that wait for the end, by a number that each of them has.
    wakers: BTreeMap<u64, Waker>,
    next_waiter: u64,
}

/// Returns the instant when this much time has passed; `None` for never.
pub(crate) fn deadline_after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// How often a waiting thread looks at the words of tasks by itself (END-5).
const LOOK: Duration = Duration::from_millis(5);

impl State {
    /// Forgets series that are over and will be no leftovers (END-5). The run of one that was cancelled may go on.
    fn forget_over(&mut self) {
        let last_runs = &mut self.last_runs;
        self.series.retain(|series| {
            let key = series.task.key;
            // A taken series stays although it is over: its owner has yet to learn that.
            let stays = !matches!(series.stage, Stage::InRun) || task::goes_on(key);
            if !stays && !task::is_over(key) {
                last_runs.push(key);
            }
            stays
        });
    }

    /// Returns true if the end has come, and no series is in a run that the calling thread has to wait for.
    fn is_ready(&mut self) -> bool {
        self.forget_over();
        let in_runs = self.series.iter().filter(|series| matches!(series.stage, Stage::InRun));
        self.has_come && !in_runs.map(|series| series.task.key).any(holds_up)
    }

    /// Takes a series off the list of those that were in a run.
    fn take_off(&mut self, key: TaskKey) -> Option<InRun> {
        let at = self.series.iter().position(|series| series.task.key == key)?;
        Some(self.series.swap_remove(at))
    }

    fn want(&mut self) {
        if self.fate == Fate::Unasked {
            self.fate = Fate::Wanted;
        }
    }

    /// Returns true if there are leftovers to take, now or behind their runs.
    fn has_leftovers(&self) -> bool {
        let is_in_run = |series: &InRun| matches!(series.stage, Stage::InRun);
        !self.leftovers.is_empty() || self.series.iter().any(is_in_run)
    }

    /// Takes the leftovers for a caller that wants them, unless they were given up. Then the tick thread drops them.
    fn take_if_kept(&mut self) -> Vec<Leftover> {
        if self.fate == Fate::GivenUp { Vec::new() } else { self.take() }
    }

    /// Takes all leftovers, by deadline. Series in their runs become leftovers by this.
    fn take(&mut self) -> Vec<Leftover> {
        // The caller that comes first gets them all. All others find an end without leftovers.
        let mut leftovers = std::mem::take(&mut self.leftovers);
        for series in &mut self.series {
            // Its run goes on. The thread of that run carries out the decision of the new owner.
            if matches!(series.stage, Stage::InRun) {
                series.stage = Stage::Taken;
                leftovers.push(Leftover { is_in_run: true, ..series.task });
            }
        }
        for task in &mut leftovers {
            task.deadline = deadline::of_leftover(task.key, task.deadline);
        }
        leftovers.sort_by_key(|task| task.deadline);
        leftovers
    }

    /// Returns true if no run is in progress, of whatever kind.
    fn has_no_runs(&mut self) -> bool {
        self.forget_over();
        self.last_runs.retain(|key| !task::is_over(*key));
        self.last_runs.is_empty() && self.leftover_runs == 0 && self.series.is_empty()
    }
}

impl Termination {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

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

    /// Acquire: pairs with the store in `begin`.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Like [`is_closing`](Termination::is_closing), in one order with `begin` (END-5).
    pub(crate) fn is_closing_in_order(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    // ----- those that may take the leftovers -----------------------------------------------

    /// Keeps the leftovers until a caller takes them, unless they were given up.
    pub(crate) fn want(&self) {
        self.lock().want();
    }

    /// Notes that a caller may take the leftovers, until it [leaves](Termination::leave).
    pub(crate) fn join(&self) {
        let mut state = self.lock();
        state.want();
        state.takers += 1;
    }

    /// Notes that there is one more who can close the scheduler, until it [leaves](Termination::leave).
    pub(crate) fn join_closers(&self) {
        let mut state = self.lock();
        // Futures may have kept the scheduler open without anybody who could close it.
        if state.closers == 0 && !self.is_closing() {
            state.fate = Fate::default();
        }
        state.closers += 1;
    }

    /// Notes that a taker or a closer has gone. If no other one is left that may take the leftovers, gives them up.
    /// Returns what the caller has to drop, because no tick thread does so.
    pub(crate) fn leave(&self, leaver: Leaver) -> Vec<Leftover> {
        let mut state = self.lock();
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
        let mut state = self.lock();
        // The thread lives until then, because the drops of leftovers belong on it. It uses no processor time
        // meanwhile.
        while state.fate == Fate::Wanted && state.has_leftovers() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_attended = false; // from now on a caller that gives the leftovers up drops them itself
        if state.fate == Fate::Wanted { Vec::new() } else { state.take() }
    }

    pub(crate) fn has_come(&self) -> bool {
        self.lock().has_come
    }

    // ----- the engine ----------------------------------------------------------------------

    /// Tells that the end has come. Returns how many leftovers there are, with those to come, and the leftovers that nobody
    /// will take, which the caller drops.
    ///
    /// `handed` lists the series that executors have, as they were found, and the one-shots that may be in a run.
    /// `make_leftover` makes a series a leftover if its run has not started.
    pub(crate) fn fulfil(
        &self,
        leftovers: Vec<Leftover>,
        handed: &[(TaskKey, Word)],
        now: Moment,
        mut make_leftover: impl FnMut(TaskKey, Word) -> Option<Leftover>,
    ) -> (usize, Vec<Leftover>) {
        let mut state = self.lock();
        state.leftovers.extend(leftovers); // behind those whose runs have ended just now
        for (key, found) in handed.iter().copied() {
            if !found.is_series() {
                state.last_runs.push(key);
                continue;
            }
            // An executor may have a series in its queue, not started. Its word tells: the claim here and that of the
            // run exclude each other.
            if let Some(task) = make_leftover(key, found) {
                state.leftovers.push(task);
                continue;
            }
            // A series that has been filed again, or is over, has another number.
            let word = task::settled_word(key).filter(|word| word.number() == found.number());
            match word.map(Word::phase) {
                Some(Phase::Running) => {
                    // The runner has not come yet, because this has the lock. So it will find its series on this list
                    // (END-3).
                    let period = task::period(key.slot);
                    let deadline = now.after_nanos(period); // as far as can be said now
                    let task = Leftover { key, deadline, period, is_in_run: false };
                    state.series.push(InRun { task, stage: Stage::InRun });
                }
                Some(Phase::Doomed | Phase::Ending) => state.last_runs.push(key), // its run may go on
                _ => {}
            }
        }
        state.has_come = true;
        let count = state.leftovers.len() + state.series.len();
        // Under the same lock, so a caller that comes to want them finds all of them or none.
        let unwanted = if state.fate == Fate::Wanted { Vec::new() } else { state.take() };
        self.notify(state);
        (count, unwanted)
    }

    /// Releases the lock, and wakes all threads and wakers that wait for a change.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let has_come = state.has_come;
        // Before the end, a waker stays for the change that it waits for.
        let wakers = if has_come { std::mem::take(&mut state.wakers) } else { BTreeMap::new() };
        // Wakers are user code, so the lock is released first (S11).
        drop(state);
        self.changed.notify_all();
        for waker in wakers.into_values() {
            quietly(|| waker.wake()); // its panic must not keep the others from being woken
        }
    }

    /// Takes what is left when the scheduler goes.
    pub(crate) fn take_the_rest(&self) -> Vec<Leftover> {
        self.lock().take()
    }

    // ----- the runner ----------------------------------------------------------------------

    /// Takes a series back behind its run, because the scheduler has closed in the meantime. `make_leftover` makes it one,
    /// unless it was cancelled.
    pub(crate) fn return_from_run(
        &self,
        key: TaskKey,
        make_leftover: impl FnOnce() -> Option<Leftover>,
        unwanted: impl FnOnce() -> Decision,
    ) -> BehindRun {
        let mut state = self.lock();
        // Under the lock, so the engine finds the series either in its run or among the leftovers (END-3).
        let Some(task) = make_leftover() else { return BehindRun::Cancelled };
        let decided = match state.take_off(key).map(|series| series.stage) {
            None if state.has_come && state.fate != Fate::Wanted => Some(unwanted()),
            None | Some(Stage::InRun) => {
                state.leftovers.push(task);
                None
            }
            // Its owner has not decided yet. From now on it is a leftover like any other, and no run is to be waited for.
            Some(Stage::Taken) => None,
            Some(Stage::Then(decision)) => Some(decision),
        };
        // It counts as the run of a leftover until the caller has carried it out, so that `wait_for_runs` waits for it.
        state.leftover_runs += usize::from(decided.is_some());
        self.notify(state);
        decided.map_or(BehindRun::Leftover, |decision| BehindRun::Decided(decision, task))
    }

    /// Notes that a run has ended, and its task with it.
    #[cold]
    pub(crate) fn run_is_over(&self, key: TaskKey) {
        let mut state = self.lock();
        let decided = state.take_off(key); // a decision about a series that has ended by itself is dropped
        state.last_runs.retain(|one| *one != key);
        self.notify(state);
        quietly(|| drop(decided)); // it may hold the last handle to another scheduler, or to a user's executor
    }

    /// Counts the run of a leftover, or its end.
    pub(crate) fn runs_leftover(&self, starts: bool) {
        let mut state = self.lock();
        if starts {
            state.leftover_runs += 1;
        } else {
            state.leftover_runs -= 1;
            self.notify(state);
        }
    }

    // ----- a leftover that was taken in its run ----------------------------------------------

    /// Has this done with a leftover when its run has ended. If it has ended already, the decision comes back.
    pub(crate) fn decide(&self, key: TaskKey, decision: Decision) -> Result<(), Decision> {
        let mut state = self.lock();
        match state.series.iter_mut().find(|series| series.task.key == key) {
            Some(series) => series.stage = Stage::Then(decision),
            None => return Err(decision),
        }
        Ok(())
    }

    // ----- waiting -------------------------------------------------------------------------

    /// Takes the leftovers, if the end has come.
    pub(crate) fn take(&self) -> Option<Vec<Leftover>> {
        let mut state = self.lock();
        let leftovers = state.has_come.then(|| state.take_if_kept())?;
        self.notify(state);
        Some(leftovers)
    }

    /// Waits for the end, and takes the leftovers; `None` if it has not come by then.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Option<Vec<Leftover>> {
        let mut state = while_waiting(|| self.wait_while(until, |state| !state.is_ready()))?;
        let leftovers = state.take_if_kept();
        self.notify(state); // nobody waits any more for series that were taken in their runs, nor the tick thread
        Some(leftovers)
    }

    /// Waits until the end has come and no run is in progress. Returns false if that is not so by then.
    pub(crate) fn wait_for_runs(&self, until: Option<Instant>) -> bool {
        let is_over = |state: &mut State| state.has_come && state.has_no_runs();
        while_waiting(|| self.wait_while(until, |state| !is_over(state))).is_some()
    }

    fn wait_while(
        &self,
        until: Option<Instant>,
        mut holds_up: impl FnMut(&mut State) -> bool,
    ) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let mut looks = false;
        loop {
            if !holds_up(&mut state) {
                return Some(state);
            }
            // Not every end of a run wakes this thread: a runner that has not seen the stop tells nobody. So once the
            // end has come, this thread also looks by itself.
            looks = looks || state.has_come;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state = if IS_MODEL || (left.is_none() && !looks) {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let most = if looks { LOOK } else { Duration::MAX };
                let left = left.unwrap_or(most).min(most);
                let woken = self.changed.wait_timeout(state, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Takes the leftovers if the end has come. Otherwise the waker is woken when it comes.
    pub(crate) fn poll(&self, waiter: &mut Option<u64>, waker: &Waker) -> Poll<Vec<Leftover>> {
        let mine = waker.clone(); // it may run a user's code, so it comes before the lock (S11)
        // A poll inside of a run makes that run wait, and other closes must not wait for it. Noted before the look, as in `wait`.
        waits_from_now_on();
        let mut state = self.lock();
        if state.is_ready() {
            let leftovers = state.take_if_kept();
            self.notify(state);
            quietly(|| drop(mine)); // its panic must not cost the caller the leftovers
            return Poll::Ready(leftovers);
        }
        // By its number, a later poll of the same waiter replaces its waker.
        let number = *waiter.get_or_insert_with(|| {
            state.next_waiter += 1;
            state.next_waiter
        });
        let replaced = state.wakers.insert(number, mine);
        drop(state);
        quietly(|| drop(replaced));
        Poll::Pending
    }

    /// Gives back the waker that a waiter has left, if it has not been woken.
    pub(crate) fn forget(&self, waiter: u64) -> Option<Waker> {
        self.lock().wakers.remove(&waiter)
    }
}
