//! A worker without threads, for tests: [`TestWorker`].
//!
//! It has what a worker has, its kinds, settings, runs, leases and outcomes, and no threads: the caller's does the work of each part
//! in turn. The parts are those of a [`Worker`](super::Worker), called at their seams:
//!
//! ```text
//!   look ──> the clock goes to the first wake ──> claim one ──> queue ──> run, or fly ──> write the outcome ──┐
//!    ^                                                                                                        │
//!    └────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Only what decides when to do which step is new, because that is where the time of a real worker passes.
//!
//! - STEP-1 The time moves when nothing is due that may run: to what comes first, a timer's wake, the end of a limit that holds back, or
//!   a task of the scheduler. So each run sees the time at which its timer woke, unless an async handler before it has slept.
//! - STEP-2 One timer is claimed at a time, of the kind whose first timer woke first; at equal times, of the kind that was registered
//!   first. So the same program gives the same runs in the same order. What is random in a worker, the gaps of [`Retry`](crate::Retry)
//!   and the pauses of a limit, is not random here.
//! - STEP-3 A run has ended, and its outcome is written, before the next claim. So nothing of this worker's own stands in the way of
//!   limits, and a handler sees what those before it have done.
//! - STEP-4 At one moment of the virtual time there are at most `most_at_once` claims.
//! - STEP-5 While the future of an async handler waits for something that is due in virtual time, the time jumps there. If nothing is, another
//!   thread is to wake it, and that takes real time. So it is waited for, and not beyond the patience: then the time jumps to what
//!   comes next for each run, the end of its time limit at last.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;

use super::dispatcher::Dispatcher;
use super::runner::{Finisher, run_all};
use super::shared::{Shared, count};
use super::{WorkerBuilder, WorkerStats};
use crate::clock::{from_micros, micros};
use crate::error::{Error, Result};
use crate::history::Attempt;
use crate::sight;
use crate::store::{HELD_BACK, Then};
use crate::testing::{VirtualClock, clock_of};

/// For how long the future of a handler is waited for that waits for nothing in virtual time.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many runs may there be at one moment of the virtual time, by default. See [`TestWorker::most_at_once`].
pub const MOST_AT_ONCE: usize = 10_000;

impl WorkerBuilder {
    /// Makes a worker for tests of it, which runs what is due when it is told to, on the thread that tells it, in virtual time. Its
    /// timers are from [`testing::open`](crate::testing::open).
    ///
    /// Handlers, retries, rules, limits, hooks and time limits are the same. Runs come one after the other, so numbers of threads and
    /// weights do not matter. The gaps of [`Retry`](crate::Retry) are not shortened at random. Async handlers are polled by the calling
    /// thread, and not given to [`spawn_with`](WorkerBuilder::spawn_with).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the timers have no virtual clock, and as [`start`](WorkerBuilder::start).
    pub fn test(mut self) -> Result<TestWorker> {
        let store = match self.timers.stores() {
            [one] => Arc::clone(one),
            _ => return Err(Error::Invalid("a test worker works for one store".to_owned())),
        };
        let clock = clock_of(&store.store().name()).ok_or_else(|| {
            Error::Invalid(
                "a test worker needs timers on a virtual clock: open them with `testing::open`"
                    .to_owned(),
            )
        })?;
        let flights = Arc::new(Mutex::new(Vec::new()));
        let launched = Arc::clone(&flights);
        let spawn =
            move |flight| launched.lock().unwrap_or_else(PoisonError::into_inner).push(flight);
        self.settings.spawn = Some(Arc::new(spawn));
        self.settings.name = String::from("test"); // the default is random
        self.settings.retry = self.settings.retry.jitter(0.0);
        for kind in &mut self.kinds {
            kind.spawn = None;
            kind.retry = kind.retry.map(|retry| retry.jitter(0.0));
        }
        self.check()?;
        let (kinds, settings, own) =
            (self.kinds.into(), Arc::new(self.settings), Arc::clone(&store));
        let shared = Shared::new(own, kinds, settings, &clock.scheduler, false);
        let mut state = shared.state();
        // As if all its threads were there, so none is started.
        (0..shared.kinds.len())
            .for_each(|kind| state.lines[kind].handlers = shared.threads_of(kind));
        drop(state);
        let shared = Arc::new(shared);
        store.add(&shared);
        let held_back = vec![SystemTime::UNIX_EPOCH; shared.kinds.len()];
        let most_at_once = MOST_AT_ONCE;
        Ok(TestWorker { shared, clock, flights, held_back, patience: None, most_at_once })
    }
}

/// The run of an async handler.
type Flight = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs timers when a test says so. From [`WorkerBuilder::test`].
///
/// It has no threads. Each method runs the handlers on the thread that calls it, one after the other, in the order of their due times,
/// and returns what ran: the attempts as the [history](WorkerBuilder::history) would have them, which need not be kept for that. So a run
/// whose timer was cancelled or replaced in the meantime, perhaps by its own handler, is not among them, and
/// [`stats`](TestWorker::stats) has it in `lost`. Of a failed run of a series the key is that of the series. See the
/// [module](crate::testing) for a test with it.
pub struct TestWorker {
    shared: Arc<Shared>,
    clock: Arc<VirtualClock>,
    /// What the spawner was given.
    flights: Arc<Mutex<Vec<Flight>>>,
    /// Of each kind, until when its limits, or other workers, hold back what is due.
    held_back: Vec<SystemTime>,
    /// `None`: it is for what is not due in virtual time (STEP-5).
    patience: Option<Duration>,
    most_at_once: usize,
}

impl TestWorker {
    /// Sets how long virtual time waits in each run of an async handler, in real time, for other threads to wake the future.
    ///
    /// By default the time jumps at once to the end of a sleep or timeout in virtual time ([`tickwheel::time`]). A future that has none
    /// waits for something else, a runtime, a server or another thread, and for that virtual time waits five seconds. Then it jumps
    /// towards the time limit of the run. With a patience, virtual time waits so long before it jumps to the end of a sleep, too: for a
    /// future that waits for an answer with a virtual timeout. With zero it never waits, for handlers that are to exceed their limits.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> TestWorker {
        self.patience = Some(patience);
        self
    }

    /// Sets how many runs there may be at one moment of the virtual time: by default [`MOST_AT_ONCE`]. Beyond that it is an error,
    /// because a handler that schedules what is due at once would never end.
    #[must_use]
    pub fn most_at_once(mut self, runs: usize) -> TestWorker {
        self.most_at_once = runs;
        self
    }

    /// Moves the virtual time on, from one timer to the next, and runs what is due on the way, with what handlers schedule in the
    /// meantime. Returns what ran. All handlers have returned then, and the time is that of the begin and `by`, or later if an async
    /// handler has slept beyond that.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there are more than [`most_at_once`](TestWorker::most_at_once) runs at one moment, or if the clock would be
    /// two hundred years from its begin. The errors of the database. What ran before is not returned then.
    pub fn advance(&mut self, by: Duration) -> Result<Vec<Attempt>> {
        let target = self.clock.after(by)?;
        let ran = self.run_until(target);
        // Another worker would see at its next look that the clock was moved, up to a minute later.
        let tell = |other: &Shared| {
            if !std::ptr::eq(other, Arc::as_ptr(&self.shared)) {
                other.look_now();
            }
        };
        self.shared.timers.each_worker(tell);
        ran
    }

    /// Like [`advance`](TestWorker::advance), to a time.
    ///
    /// # Errors
    ///
    /// As [`advance`](TestWorker::advance), and [`Error::Invalid`] if the time has passed: time does not go back.
    pub fn advance_to(&mut self, time: SystemTime) -> Result<Vec<Attempt>> {
        let left = time.duration_since(self.now()).map_err(|passed| {
            Error::Invalid(format!("virtual time does not go back by {:?}", passed.duration()))
        })?;
        self.advance(left)
    }

    /// Runs all that is due now, and what becomes due now by that. Returns what ran. The virtual time stands still, unless an async
    /// handler sleeps. What the limits of a kind hold back now is left for later.
    ///
    /// # Errors
    ///
    /// As [`advance`](TestWorker::advance): a handler that schedules again and again what is due at once makes an error, and no
    /// endless loop.
    pub fn drain(&mut self) -> Result<Vec<Attempt>> {
        self.advance(Duration::ZERO)
    }

    /// Returns the virtual time. [`Timers::now`](crate::Timers::now) returns the same, in whole milliseconds.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Returns a scheduler that goes by the virtual time, for code under test that waits by one. Its tasks run while the time moves.
    pub fn scheduler(&self) -> &Scheduler {
        &self.clock.scheduler
    }

    /// Returns what it has done since it was made.
    pub fn stats(&self) -> WorkerStats {
        self.shared.stats()
    }

    fn run_until(&mut self, target: SystemTime) -> Result<Vec<Attempt>> {
        let shared = Arc::clone(&self.shared);
        let mut dispatcher = Dispatcher::new(&shared, None);
        let mut finisher = Finisher::new(&shared);
        let (mut ran, mut moment, mut at_once) = (Vec::new(), self.now(), 0);
        loop {
            let now = self.now();
            let first = self.first(&mut dispatcher, target)?;
            let wake = first.map(|(wake, _)| wake.max(now));
            let task = self.clock.next_task().filter(|task| *task <= target);
            // STEP-1
            let Some(next) = wake.into_iter().chain(task).min() else { break };
            self.clock.advance_to(next);
            let Some((_, kind)) = first.filter(|_| wake == Some(next)) else { continue };
            at_once = if next > moment { 1 } else { at_once + 1 }; // STEP-4
            moment = next;
            if at_once > self.most_at_once {
                return Err(self.endless(kind));
            }
            if self.claim(&mut dispatcher, kind)? {
                self.work_off(&mut dispatcher, &mut finisher, kind, &mut ran)?;
            }
        }
        self.clock.advance_to(target);
        Ok(ran)
    }

    fn endless(&self, kind: usize) -> Error {
        let (most, name) = (self.most_at_once, &self.shared.kinds[kind].name);
        Error::Invalid(format!(
            "{most} runs at one moment, and another of the kind {name:?} is due: does a handler schedule, or try again, what is due at \
             once? If not, set `most_at_once`"
        ))
    }

    /// Returns which kind has the first timer that may run until then, and when it may (STEP-2).
    fn first(
        &self,
        dispatcher: &mut Dispatcher<'_>,
        until: SystemTime,
    ) -> Result<Option<(SystemTime, usize)>> {
        let shared = &self.shared;
        let kinds: Vec<&str> = shared.kinds.iter().map(|kind| kind.name.as_str()).collect();
        let sent = shared.scheduler.now();
        let horizon = until.duration_since(self.now()).unwrap_or_default();
        let look = dispatcher.connection()?.look(&kinds, horizon, 1)?;
        count(&shared.counters.looks, 1);
        dispatcher.learn(sent, look.now);
        let wakes =
            look.wakes.into_iter().map(|(kind, wake)| (wake.max(self.held_back[kind]), kind));
        Ok(wakes.filter(|(wake, _)| *wake <= until).min())
    }

    /// Claims the first timer of a kind, and queues it. Returns false if there is none that it may have.
    fn claim(&mut self, dispatcher: &mut Dispatcher<'_>, kind: usize) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        let sent = shared.scheduler.now();
        let claim = shared.claim_of(kind, 1);
        let claimed = dispatcher.connection()?.claim(&claim)?;
        count(&shared.counters.claims, 1);
        sight::claimed(claim.kind);
        dispatcher.learn(sent, claimed.now);
        if claimed.timers.is_empty() {
            // If nothing holds it back, another worker has been faster, and the next look tells what there is now.
            let passed_over = (!claimed.passed.is_empty()).then(|| claimed.now + HELD_BACK);
            let Some(again) = claimed.held_back.or(passed_over) else { return Ok(false) };
            // The store counts milliseconds, and rounds the time down.
            let again = from_micros(micros(again).saturating_add(999) / 1000 * 1000);
            self.held_back[kind] = again.max(self.now() + Duration::from_millis(1));
            return Ok(false);
        }
        dispatcher.queue(kind, claimed.timers, sent + shared.settings.lease);
        Ok(true)
    }

    /// Runs what was queued, and writes what became of it (STEP-3).
    fn work_off(
        &self,
        dispatcher: &mut Dispatcher<'_>,
        finisher: &mut Finisher<'_>,
        kind: usize,
        ran: &mut Vec<Attempt>,
    ) -> Result<()> {
        let shared = &self.shared;
        let mut state = shared.state();
        let job = state.lines[kind].jobs.pop_front();
        if job.is_some() && shared.kinds[kind].handler.is_async() {
            state.lines[kind].in_flight += 1;
        }
        drop(state);
        // Without one, its attempts were used up, and its end is among the outcomes (ATTEMPT-5).
        let run = job.as_ref().map(|job| (Arc::clone(&job.timer), Arc::clone(&job.tenure)));
        let before = shared.stats();
        job.into_iter().for_each(|job| run_all(shared, kind, vec![job]));
        let flights =
            std::mem::take(&mut *self.flights.lock().unwrap_or_else(PoisonError::into_inner));
        flights.into_iter().try_for_each(|flight| self.fly(dispatcher, flight))?;
        let mut state = shared.state();
        let (outcomes, mut attempts) = (std::mem::take(&mut state.outcomes), Vec::new());
        for outcome in &outcomes {
            let Some(held) = state.runs.get(&outcome.run.fence) else { continue };
            let attempt = shared.attempt(&held.timer, &held.tenure, &outcome.then);
            // A run that leaves its series has failed by its name there.
            attempts.extend(attempt.map(|of| Attempt { key: held.timer.key.clone(), ..of }));
        }
        drop(state);
        // What is committed has no outcome to be written.
        let committed = run.filter(|_| shared.stats().done > before.done);
        ran.extend(
            committed.and_then(|(timer, tenure)| shared.attempt(&timer, &tenure, &Then::Done)),
        );
        finisher.turn(outcomes);
        // The outcome of a run whose timer was cancelled or replaced is not written, so it is in no history.
        if shared.stats().lost == before.lost {
            ran.append(&mut attempts);
        }
        // Nothing waits for these: each step looks.
        shared.state().freed.clear();
        while shared.causes.try_next().is_some() {}
        Ok(())
    }

    /// Polls the run of an async handler to its end (STEP-5). Its lease is extended, and its time limit ends it, as by a real dispatcher.
    fn fly(&self, dispatcher: &mut Dispatcher<'_>, mut flight: Flight) -> Result<()> {
        let (shared, clock) = (&self.shared, &self.clock);
        let woken = Arc::new(Woken { flag: AtomicBool::new(false), thread: thread::current() });
        let waker = Waker::from(Arc::clone(&woken));
        let mut patience = self.patience.unwrap_or(PATIENCE);
        loop {
            let in_force = shared.scheduler.enter();
            let polled = flight.as_mut().poll(&mut Context::from_waker(&waker));
            drop(in_force);
            if polled.is_ready() {
                return Ok(());
            }
            loop {
                clock.driver.turn();
                while let Some(cause) = shared.causes.try_next() {
                    dispatcher.take_in(cause.key);
                }
                dispatcher.see_to_runs()?;
                if woken.flag.swap(false, Ordering::Acquire) {
                    break;
                }
                let task = clock.next_task();
                let may_wait = task.is_none() || self.patience.is_some();
                if may_wait && woken.comes_within(&mut patience) {
                    continue;
                }
                let cause = shared.causes.next_deadline().map(|instant| clock.time(instant));
                // Its time limit is ahead. If there were none, its drop would be a failure.
                let Some(next) = task.into_iter().chain(cause).min() else { return Ok(()) };
                clock.advance_to(next);
            }
        }
    }
}

/// Wakes the thread that polls a flight.
struct Woken {
    /// It was woken since its last poll. The swap that clears it acquires what the waker has released.
    flag: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Woken {
    /// Waits in real time until the flight is woken, and takes that from the patience. Returns false if it was not.
    fn comes_within(&self, patience: &mut Duration) -> bool {
        let start = Instant::now();
        // Relaxed: the swap that takes the flag acquires.
        while !self.flag.load(Ordering::Relaxed) {
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
        *patience = patience.saturating_sub(start.elapsed());
        self.flag.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for TestWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.shared.kinds.iter().map(|kind| &kind.name).collect();
        f.debug_struct("TestWorker")
            .field("kinds", &kinds)
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
