//! The home of a worker that runs on an executor: its tasks, by whom they come, and how they leave.
//!
//! `RxJava` counts what is queued in an atomic number, and whoever takes it from zero to one hands the drain
//! over. Here a task can leave the queue before its turn, in O(1), so the queue has a lock, and the count is
//! a flag under it: `has_drain`.
//!
//! - N1 There is one [`Drain`] at most, and it alone takes tasks up: they do not overlap. Whoever sets
//!   `has_drain` makes it; it is cleared by the drain that finds nothing queued, under the same lock. So no
//!   task is queued without a drain, and what one task has written is seen by the next.
//! - N2 What has not started is among the queued or the delayed, also what the drain has taken up: so `dispose`
//!   finds it. Its start is a step of the job's own (J1), and needs no lock of the strand.
//! - N3 A delayed task is queued by its [`Arrival`], on the tick thread, in order of deadline.
//! - N4 With a lock held nobody calls the executor, the clock, a task, or a destructor of theirs.
//! - N5 Tasks come in under one lock, `state`, and the drain has what it works on under another, `hands`,
//!   which is taken first when both are. A task goes from the first to the second once, and comes back
//!   only to wait for another run. Whoever looks for one looks in that order.
//! - N6 Those who bring tasks much faster than they run are held back, after their task was taken in, and with no
//!   lock held: [`backpressure`](crate::backpressure). What counts is what has come in since the drain had a
//!   look, so delayed tasks, however many, hold nobody back before their time has come. A thread that drains,
//!   this strand or another, is not held back: the executor may have no other.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::delayed::Delayed;
use super::drain::{self, Drain};
use super::home::{Entry, Home, When};
use super::place::{Place, Spot};
use super::queue::Queue;
use crate::backpressure::{Backpressure, Flow};
use crate::job::{Owner, Places};
use crate::sync::{Mutex, MutexGuard, Ordering, lock};
use crate::{Cancellable, Executor, PanicHook, ScheduleError, Scheduler};

/// So many tasks may be queued beside those that the drain works on, before who brings more is held back; N6.
const AHEAD: u64 = 1 << 16;

// In this order: each task counts a reference to its strand, beside the lock that it takes.
#[repr(C)]
pub(super) struct Strand {
    state: Mutex<State>,
    me: Weak<Strand>,
    /// It queues what was delayed, on its own thread.
    pub(super) timers: Scheduler,
    pub(super) hook: PanicHook,
    /// What the drain works on; N5.
    hands: CachePadded<Mutex<Queue>>,
    /// How many of those that were taken up do not wait any more. Only the drain writes it; Relaxed,
    /// because it orders nothing.
    started: AtomicUsize,
    /// How often the drain has put down what it had taken up. Only the drain writes it; Relaxed, because it
    /// orders nothing.
    batches: AtomicU64,
    places: Places,
    pressure: Backpressure,
    /// How often in a row the drain was not run. Relaxed: it counts, and there is one drain.
    pub(super) strikes: AtomicU32,
}

#[derive(Default)]
pub(super) struct State {
    /// What has come in since the drain had a look.
    incoming: Queue,
    delayed: Delayed,
    /// `None` once it is disposed.
    pub(super) executor: Option<Arc<dyn Executor>>,
    /// N1.
    pub(super) has_drain: bool,
    /// What hands the drain over again, if it waits.
    pub(super) retry: Option<Cancellable>,
}

impl Strand {
    /// `timers` run what they have on the tick thread.
    pub(super) fn new(
        executor: Arc<dyn Executor>,
        timers: Scheduler,
        hook: PanicHook,
        places: Places,
    ) -> Arc<Strand> {
        Arc::new_cyclic(|me| Strand {
            state: Mutex::new(State { executor: Some(executor), ..State::default() }),
            me: Weak::clone(me),
            timers,
            hook,
            hands: CachePadded::default(),
            started: AtomicUsize::new(0),
            batches: AtomicU64::new(0),
            places,
            pressure: Backpressure::new(AHEAD),
            strikes: AtomicU32::new(0),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn me(&self) -> Arc<Strand> {
        self.me.upgrade().expect("whoever calls it holds it")
    }

    // ----- into the queue ------------------------------------------------------------------

    /// A worker that takes one more task; it has its place.
    fn open(&self) -> Result<MutexGuard<'_, State>, ScheduleError> {
        let state = self.state();
        match state.executor {
            None => Err(ScheduleError::Closed),
            Some(_) if !self.places.take() => Err(ScheduleError::Full),
            Some(_) => Ok(state),
        }
    }

    fn queue(&self, job: Entry) -> Result<bool, ScheduleError> {
        let mut state = self.open()?;
        state.incoming.push(job);
        let is_over = self.is_over(&state);
        self.see_to_a_drain(state);
        Ok(is_over)
    }

    /// N6.
    fn is_over(&self, state: &State) -> bool {
        self.pressure.is_over(state.incoming.len() as u64)
    }

    /// N1: something was queued.
    fn see_to_a_drain(&self, mut state: MutexGuard<'_, State>) {
        let had_one = std::mem::replace(&mut state.has_drain, true);
        if had_one {
            return;
        }
        let executor = state.executor.clone();
        drop(state);
        Drain::of(self.me()).hand_over(executor);
    }

    fn delay(&self, job: &Entry, when: When) -> Result<bool, ScheduleError> {
        let mut state = self.open()?;
        let ticket = state.delayed.insert(Arc::clone(job));
        let is_over = self.is_over(&state);
        drop(state);
        self.arm(job, ticket, when).map(|()| is_over)
    }

    /// Has a task that is among the delayed queued in time; N3.
    fn arm(&self, job: &Entry, ticket: u64, when: When) -> Result<(), ScheduleError> {
        let arrival = Arrival(Some((self.me(), Arc::clone(job))));
        let arrive = move || arrival.arrive();
        let timer = match when {
            When::At(deadline) => self.timers.schedule_at(deadline, arrive),
            When::After(delay) => self.timers.schedule_once(delay, arrive),
        }?;
        let unwanted = self.state().delayed.set_timer(job.place(), ticket, timer);
        unwanted.into_iter().for_each(|timer| _ = timer.cancel());
        Ok(())
    }

    /// Sees to the next run of a series that was taken up.
    pub(super) fn go_on(&self, job: Entry, due: Instant) {
        // A clock that panics does so again below, and then the series ends.
        let is_due = self.hook.catch(|| due <= self.timers.now()) == Some(true);
        let mut hands = lock(&self.hands);
        let mut state = self.state(); // both: nobody finds it in neither
        self.started.store(self.started.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let Spot::Queued(number) = job.place().get() else { return };
        if state.executor.is_none() || hands.remove(number).is_none() {
            return; // it was cancelled
        }
        drop(hands);
        if is_due {
            state.incoming.push(job); // this is the drain that will get there
            return;
        }
        let ticket = state.delayed.insert(Arc::clone(&job));
        drop(state);
        // When the timers refuse it, it is dropped: its arrival sees to that.
        self.hook.catch(|| _ = self.arm(&job, ticket, When::At(due)));
    }

    // ----- out of the queue ----------------------------------------------------------------

    /// Takes up the next tasks. False: there are none, and no drain any more.
    pub(super) fn next_batch(&self, limit: usize, batch: &mut Vec<Entry>) -> bool {
        let Some(mut hands) = self.hands() else { return false };
        // Here, and not under the lock that others wait for: it looks at each.
        hands.take_up(limit, batch);
        true
    }

    /// The hands of the drain, free of what they held, and with something to do. `None`: there is nothing, and
    /// no drain any more; N1.
    pub(super) fn hands(&self) -> Option<MutexGuard<'_, Queue>> {
        let mut hands = lock(&self.hands);
        hands.put_down();
        self.started.store(0, Ordering::Relaxed);
        self.batches.store(self.batches.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if hands.is_drained() {
            let mut state = self.state();
            state.incoming.pour_into(&mut hands);
            state.has_drain = !hands.is_drained();
        }
        (!hands.is_drained()).then_some(hands)
    }
}

impl Owner for Strand {
    type Place = Place;

    fn now(&self) -> Instant {
        self.timers.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn has_started(&self) {
        self.started.store(self.started.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn free_place(&self) {
        self.places.free();
    }

    fn forget(&self, place: &Place) {
        loop {
            let mut state = self.state();
            match place.get() {
                Spot::Delayed(at) => {
                    let timer = state.delayed.remove(at).and_then(|(_, timer)| timer);
                    drop(state);
                    return timer.into_iter().for_each(|timer| _ = timer.cancel());
                }
                Spot::Queued(number) if state.incoming.reaches(number) => {
                    let job = state.incoming.remove(number);
                    drop(state);
                    return drop(job);
                }
                Spot::Queued(_) => drop(state),
                Spot::Gone => return,
            }
            let mut hands = lock(&self.hands);
            match place.get() {
                Spot::Queued(number) if hands.remove(number).is_some() => return,
                Spot::Gone => return,
                // A series, that goes on just now; N5.
                Spot::Queued(_) | Spot::Delayed(_) => {}
            }
        }
    }
}

impl Home for Strand {
    fn take_in(&self, job: Entry, when: When) -> Result<bool, ScheduleError> {
        let is_due = match when {
            When::After(delay) => delay.is_zero(),
            When::At(deadline) => deadline <= self.timers.now(),
        };
        if is_due { self.queue(job) } else { self.delay(&job, when) }
    }

    #[cold]
    fn hold_back(&self) {
        if drain::is_on_this_thread() {
            return; // N6
        }
        self.pressure.hold_back(|| {
            let ahead = self.state().incoming.len() as u64;
            // It changes with each task that starts, and with each batch.
            let started = self.started.load(Ordering::Relaxed) as u64;
            let batches = self.batches.load(Ordering::Relaxed);
            Flow { ahead, passed: batches.wrapping_mul(2 * drain::BATCH as u64) + started }
        });
    }

    fn dispose(&self) {
        let mut hands = lock(&self.hands);
        let mut state = self.state();
        let (executor, retry) = (state.executor.take(), state.retry.take());
        let queued = [std::mem::take(&mut *hands), std::mem::take(&mut state.incoming)];
        let delayed = std::mem::take(&mut state.delayed);
        drop((state, hands));
        queued.into_iter().flat_map(Queue::into_all).for_each(|job| _ = job.cancel());
        for (job, timer) in delayed.into_all() {
            job.cancel(); // before its arrival is, which would only drop it
            timer.into_iter().for_each(|timer| _ = timer.cancel());
        }
        retry.into_iter().for_each(|retry| _ = retry.cancel());
        self.hook.catch(|| drop(executor));
    }

    fn is_disposed(&self) -> bool {
        self.state().executor.is_none()
    }

    fn pending(&self) -> usize {
        let hands = lock(&self.hands);
        let state = self.state();
        let started = self.started.load(Ordering::Relaxed);
        (hands.len() + state.incoming.len() + state.delayed.len()).saturating_sub(started)
    }
}

impl Drop for Strand {
    /// Nobody can bring a task any more, and there is no drain: what is left was refused to the last.
    fn drop(&mut self) {
        self.dispose();
    }
}

/// Queues a task whose time has come. Dropped without that, its time will not come.
struct Arrival(Option<(Arc<Strand>, Entry)>);

impl Arrival {
    fn arrive(mut self) {
        let Some((strand, job)) = self.0.take() else { return };
        let mut state = strand.state();
        let Spot::Delayed(at) = job.place().get() else { return }; // it was cancelled
        if let Some((job, timer)) = state.delayed.remove(at) {
            state.incoming.push(job);
            strand.see_to_a_drain(state);
            drop(timer);
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Some((strand, job)) = self.0.take() else { return };
        if strand.is_disposed() {
            job.cancel(); // on behalf of the disposal, which may be on its way to it
        } else {
            job.forfeit();
        }
    }
}
