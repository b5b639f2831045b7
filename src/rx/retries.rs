//! Where the drains wait that an executor has not run: the [`RetryQueue`].
//!
//! - DRAIN-1 If an executor refuses or drops a drain, or panics, its queue waits in a [`RetryQueue`], which all workers of
//!   one [`ExecutorScheduler`](super::ExecutorScheduler) share. After a pause that grows, a timer hands a drain of the
//!   first one over again, and then of the others as long as each is taken. So many workers cost an executor that refuses
//!   no more than one (S30). Only if no clock is left to wait on, the drains rest, and the next task hands them over.

use std::any::type_name;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::serial::SerialQueue;
use super::timer::{RunOrDrop, after, cancel_timer, global_timers};
use super::worker::TaskQueue;
use crate::platform::sync::{Mutex, Ordering, lock};
use crate::{Cancellable, Inline, PanicHook, Request, Schedule, Scheduler};

/// How long a drain that was not run waits before the next attempt. After each [`FAILURES_PER_PAUSE`] failed attempts
/// the pause doubles, six times at most (DRAIN-1).
pub(super) const PAUSE: Duration = Duration::from_millis(1);
const FAILURES_PER_PAUSE: u32 = 16;

/// After so many failed attempts in a row, a queue that nobody else holds ends, because nobody could dispose it any more.
/// With these pauses they take about a minute.
const MAX_FAILURES: u32 = 1024;

/// How many drains one attempt hands over at most.
const MAX_PER_ATTEMPT: usize = 1024;

/// The queues whose drains an executor has not run, of all workers of one scheduler (DRAIN-1).
pub(super) struct RetryQueue {
    state: Mutex<Retries>,
    /// How many attempts in a row have failed. Relaxed suffices, because it only sets the pace.
    pub(super) failures: AtomicU32,
    /// The clock of delayed tasks, and what runs their timers. A scheduler runs them on its tick thread, whatever its executor is,
    /// in order of deadline, and any other schedule wherever it runs tasks, and perhaps out of order.
    pub(super) timers: Arc<dyn Schedule>,
    /// The scheduler that `timers` is. A schedule is asked for it once: it is user code, and this is looked at with locks held.
    pub(super) scheduler: Option<Scheduler>,
}

#[derive(Default)]
struct Retries {
    /// By age.
    queues: BTreeMap<u64, Arc<SerialQueue>>,
    last_ticket: u64,
    /// The number of the attempt that waits for its time or runs, 0 if there is none. It is the ticket of the queue for which
    /// it was first made, and stays when the attempt has to be made again. Only this attempt may act.
    attempt: u64,
    /// The timer that was stored last, as long as drains wait. One that fires before it is stored may be stored after the next
    /// one. Then that one is not cancelled when all queues have left, and finds nothing to do.
    timer: Option<Cancellable>,
}

impl SerialQueue {
    /// Adds the queue to those that wait, with its drain. If no attempt is on its way, one is made after this pause. The last resort
    /// never makes it in the call.
    pub(super) fn wait(self: Arc<Self>, pause: Duration, is_last_resort: bool) {
        // This is for destructors that run with the queue's last owner.
        PanicHook::default().catch(None, || {
            let (hook, retries) = (self.hook.clone(), Arc::clone(&self.retries));
            let mut state = lock(&retries.state);
            state.last_ticket += 1;
            let ticket = state.last_ticket;
            self.retry_ticket.store(ticket, Ordering::Relaxed);
            state.queues.insert(ticket, self);
            if state.attempt == 0 {
                state.attempt = ticket;
                drop(state);
                hook.catch(None, || retries.schedule(ticket, pause, is_last_resort));
            }
        });
    }
}

impl RetryQueue {
    pub(super) fn new(schedule: impl Schedule + 'static) -> Arc<RetryQueue> {
        let scheduler = schedule.as_scheduler().map(|scheduler| scheduler.with_executor(Inline));
        let timers: Arc<dyn Schedule> = match &scheduler {
            Some(scheduler) => Arc::new(scheduler.clone()),
            None => Arc::new(schedule),
        };
        let (state, failures) = (Mutex::default(), AtomicU32::new(0));
        Arc::new(RetryQueue { state, failures, timers, scheduler })
    }

    pub(super) fn pause(&self) -> Duration {
        let failures = self.failures.load(Ordering::Relaxed).saturating_sub(1);
        PAUSE * (1 << (failures / FAILURES_PER_PAUSE).min(6))
    }

    /// Sets the timer of an attempt: one of the scheduler's own or, as the last resort, one of
    /// [`Scheduler::global`](crate::Scheduler::global).
    fn schedule(self: &Arc<Self>, number: u64, pause: Duration, is_last_resort: bool) {
        let retries = Arc::clone(self);
        let attempt = RunOrDrop::new(move |fires| retries.attempt(number, is_last_resort, fires));
        // Timers that refuse drop the attempt, which then turns to the last resort.
        let global = || global_timers().map(|global| -> &dyn Schedule { global });
        let timers = if is_last_resort { global() } else { Ok(&*self.timers) };
        let Ok(timers) = timers else { return };
        let request = Request::At(after(timers.now(), pause), Box::new(move || attempt.run()));
        let timer = timers.schedule_named(type_name::<RetryQueue>(), request);
        let Ok(timer) = timer else { return };
        let mut state = lock(&self.state);
        let is_needed = state.attempt == number; // otherwise all queues have left in the meantime
        let other = if is_needed { state.timer.replace(timer) } else { Some(timer) };
        drop(state);
        let cancel = |other: Cancellable| !is_needed && other.cancel();
        PanicHook::default().catch(None, || other.is_some_and(cancel)); // its handle may be from outside
    }

    /// Removes a queue that was disposed.
    pub(super) fn remove(&self, queue: &SerialQueue) {
        let mut state = lock(&self.state);
        let removed = state.queues.remove(&queue.retry_ticket.load(Ordering::Relaxed));
        let mut timer = None;
        if state.queues.is_empty() {
            state.attempt = 0; // a thread that still sets its timer finds that out
            timer = state.timer.take();
        }
        drop(state);
        drop(removed);
        cancel_timer(&queue.hook, timer);
    }

    /// Hands over the drains of the queues that wait now, until one is not run, or there were enough to keep the calling thread
    /// busy.
    fn hand_over(&self) {
        let count = lock(&self.state).queues.len();
        for _ in 0..count.min(MAX_PER_ATTEMPT) {
            let Some((_, queue)) = lock(&self.state).queues.pop_first() else { break };
            let failures = self.failures.load(Ordering::Relaxed);
            // The panics of executors are caught in there.
            PanicHook::default().catch(None, move || {
                if failures >= MAX_FAILURES && Arc::strong_count(&queue) == 1 {
                    return queue.dispose(); // nobody else can
                }
                queue.hand_over(queue.state(), None);
            });
            if self.failures.load(Ordering::Relaxed) > failures {
                break;
            }
        }
    }

    /// The timer of an attempt fires, or was dropped: the timers have refused it, or have ended.
    fn attempt(self: &Arc<Self>, number: u64, is_last_resort: bool, fires: bool) {
        if fires && lock(&self.state).attempt == number {
            self.hand_over();
        }
        let mut state = lock(&self.state);
        if state.attempt != number {
            return; // all queues have left
        }
        if !state.queues.is_empty() && (fires || !is_last_resort) {
            drop(state);
            return self.schedule(number, self.pause(), !fires);
        }
        state.attempt = 0;
        let queues = std::mem::take(&mut state.queues); // if there are any, nobody keeps their time
        let timer = state.timer.take();
        drop(state);
        for queue in queues.into_values() {
            queue.state().has_drain = false;
            // This may be its last owner, and then it drops what is a user's. The others need their next drain all the same.
            PanicHook::default().catch(None, || drop(queue));
        }
        PanicHook::default().catch(None, || drop(timer)); // its handle may be from outside
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backpressure::PendingLimit;

    struct Grenade;

    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    /// Nobody keeps the time of these queues any more, and the first one has no other owner.
    #[test]
    fn a_destructor_that_panics_at_the_end_of_an_attempt_leaves_no_other_queue_with_a_drain() {
        let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
        let retries = RetryQueue::new(timers);
        let wait = |hook| {
            let (retries, limit) = (Arc::clone(&retries), PendingLimit::new(None));
            let queue = SerialQueue::new(Arc::new(Inline), hook, limit, retries);
            queue.state().has_drain = true;
            Arc::clone(&queue).wait(PAUSE, false);
            queue
        };
        let grenade = Grenade;
        drop(wait(PanicHook::new(move |_| _ = &grenade)));
        let other = wait(PanicHook::default());
        let attempt = lock(&retries.state).attempt;
        retries.attempt(attempt, true, false);
        assert!(!other.state().has_drain, "its next task would wait for ever");
    }
}
