//! The runs that wait for the end of a scheduler, of all schedulers of the process.
//!
//! A task may close its scheduler, or wait for the end of another one. Two such runs must not wait for each other. So each
//! run notes itself here before it waits, and no close inside of a run waits for a run that is noted.

use super::this_thread;
use crate::engine::slots::task;
use crate::platform::sync::{Mutex, global, lock};
use crate::wheel::entry::TaskKey;

// The runs whose threads wait for the end of a scheduler, each as often as it waits.
global!(WAITING: Mutex<Vec<TaskKey>> = Mutex::new(Vec::new()));

/// The runs of the calling thread, which count as waiting until this is dropped.
pub(super) struct WaitingRuns(Vec<TaskKey>);

impl WaitingRuns {
    pub(super) fn begin() -> WaitingRuns {
        // Noted before the first look, so of two closes inside of runs at least one sees the other.
        let runs = this_thread::all_runs();
        if !runs.is_empty() {
            lock(&WAITING).extend(&runs);
        }
        WaitingRuns(runs)
    }
}

impl Drop for WaitingRuns {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut waiting = lock(&WAITING);
        for run in &self.0 {
            let at = waiting.iter().position(|waits| waits == run);
            at.map(|at| waiting.swap_remove(at));
        }
    }
}

/// Counts the runs of a thread that polls as waiting from now on.
pub(super) fn waits_from_now_on() {
    let runs = this_thread::all_runs();
    if !runs.is_empty() {
        let mut waiting = lock(&WAITING);
        // Nobody tells when a future is dropped, or for how long it waits. So its runs count as waiting until they are
        // over.
        waiting.retain(|run| !task::is_over(*run) && !runs.contains(run));
        waiting.extend(&runs);
    }
}

/// Returns true if the calling thread has to wait for this run.
pub(super) fn holds_up(key: TaskKey) -> bool {
    // A close inside of a run waits neither for that run, nor for runs whose threads wait for an end themselves, of
    // whatever scheduler. So no two of them wait for each other.
    !this_thread::is_in_a_run() || !(this_thread::runs(key) || lock(&WAITING).contains(&key))
}
