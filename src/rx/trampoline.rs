//! Workers that run their tasks on the thread that schedules them. Each has a [shared queue](super::shared_queue) for
//! itself, without a thread.

use std::sync::Arc;

use super::shared_queue::SharedQueue;
use super::worker::Worker;
use crate::backpressure::PendingLimit;
use crate::{PanicHook, SystemClock};

/// Gives out workers that run their tasks on the caller's own thread, one after the other.
///
/// [`schedule`](Worker::schedule) runs the task, and all tasks that it schedules on the same worker, before it returns.
/// A task that schedules another does not nest: the new one is queued. A delayed task blocks its caller until it has
/// run, and a series until it ends. Tasks that come from another thread in the meantime run on the thread that is
/// already running tasks.
///
/// A panic ends its own task. The panic hook of the process is told, and a line on standard error names the task. A cancel takes O(log n) for n tasks that
/// wait.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tickwheel::rx::TrampolineScheduler;
///
/// let worker = TrampolineScheduler::new().worker();
/// let said = Arc::new(Mutex::new(Vec::new()));
/// let say = |words| {
///     let said = Arc::clone(&said);
///     move || said.lock().unwrap().push(words)
/// };
/// let (inner, then, ends) = (worker.clone(), say("then this"), say("first this, to its end"));
/// worker.schedule(move || {
///     inner.schedule(then);
///     ends();
/// });
/// assert_eq!(*said.lock().unwrap(), ["first this, to its end", "then this"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TrampolineScheduler(());

impl TrampolineScheduler {
    /// Returns a scheduler. It has no settings.
    pub fn new() -> TrampolineScheduler {
        TrampolineScheduler::default()
    }

    /// Returns a new worker.
    pub fn worker(&self) -> Worker {
        let queue = SharedQueue::new(Arc::new(SystemClock), false);
        Worker::at(queue.member(PanicHook::default(), PendingLimit::new(None)))
    }
}
