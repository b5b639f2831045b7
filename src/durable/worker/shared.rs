//! What the threads of a worker share, and how they work together.
//!
//! ```text
//!   listener ──┐ news                                           ┌──> handler threads ──┐
//!              v                                                │ jobs                 │ outcomes
//!   wheel ──> dispatcher ── look, claim, extend ──> database ───┘                      v
//!              ^    ^                                   ^                           finisher
//!   schedule ──┘    └─────────── room again ────────────┼──────────────────────────────┤
//!                                                       └──────── finish ──────────────┘
//! ```
//!
//! The **dispatcher** sleeps in a [`DelayQueue`] of causes to do something: a timer wakes, a lease must be extended, a
//! handler has taken too long, it is time to look. When timers of a kind wake, it claims as many of that kind as there is
//! room for. **Handler threads** run what was claimed. The **finisher** writes outcomes, all that have gathered in the
//! meantime at once. The **listener** hears of timers that other processes have scheduled. When the database cannot be
//! used, all of them take turns to try again (`outage.rs`).
//!
//! A run goes through these states, under the lock of [`State`]:
//!
//! ```text
//!            claim            a thread takes it          the handler returns
//!              │                                                               written
//!              └──> Queued ───────────────────> Started ───────────────────> Settled ──────> gone
//!                     │                            └── time limit ──────────────^
//!                     └── stop ──────────────────────────────────────────────────^
//! ```
//!
//! - LEASE-1 A run is in `runs` from its claim until its outcome is written, or there is none to write. For so long the
//!   dispatcher extends its lease, except for a started run in a transaction (PG-3).
//! - LEASE-2 The step to `Settled` is made once, by the thread that then pushes the outcome or forgets the run: the
//!   handler's, the dispatcher's at the time limit, or the one that stops the worker.
//! - LEASE-3 A run starts only while its lease lasts by the clock of this process, counted from before the claim was sent.
//! - LEASE-4 Nothing is locked while a handler or a hook runs, or the database works.
//! - LEASE-5 After `stop`, no claim begins, and nothing queued starts. The dispatcher ends when `runs` is empty, and the
//!   finisher after it, because a claim that was under way at the stop still brings runs to give back.
//! - LEASE-6 A kind for which timers may be due that were not claimed, for want of room or because of an error, stays
//!   `hungry`, or a look is ahead that finds them. So nothing waits longer than until the next look.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::WorkerStats;
use super::dispatcher::HORIZON;
use super::outage::Outage;
use crate::Scheduler;
use crate::delay::DelayQueue;
use crate::durable::clock::{DatabaseClock, from_micros, micros};
use crate::durable::error::{Error, with_causes};
use crate::durable::failure::{Failure, Retry};
use crate::durable::handler::{Handler, Tenure};
use crate::durable::sight;
use crate::durable::store::{Finish, Then};
use crate::durable::timer::Timer;
use crate::durable::timers::Timers;
use crate::platform::panics::quietly;

type Rules =
    dyn Fn(&str, SystemTime) -> Result<Option<SystemTime>, Failure> + Send + Sync + 'static;

type OnError = dyn Fn(&Error) + Send + Sync;

pub(super) struct Settings {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) lease: Duration,
    pub(super) poll: Option<Duration>,
    /// The store tells of new timers itself.
    pub(super) is_told: bool,
    pub(super) retry: Retry,
    pub(super) time_limit: Duration,
    pub(super) rules: Option<Box<Rules>>,
    /// `None`: it is printed.
    pub(super) on_error: Option<Box<OnError>>,
    /// `None`: it is printed if errors are.
    pub(super) on_recovery: Option<Box<dyn Fn(Duration) + Send + Sync>>,
}

impl Default for Settings {
    fn default() -> Settings {
        let random = RandomState::new().hash_one(()) as u32;
        Settings {
            name: format!("{}-{random:08x}", std::process::id()),
            threads: 4,
            lease: Duration::from_secs(30),
            poll: None,
            is_told: false,
            retry: Retry::default(),
            time_limit: Duration::from_secs(60),
            rules: None,
            on_error: None,
            on_recovery: None,
        }
    }
}

/// A kind of timers, and what is done with them.
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) handler: Handler,
    pub(super) retry: Option<Retry>,
    pub(super) time_limit: Option<Duration>,
}

/// Why the dispatcher wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// A timer of this kind wakes, at this time of the database in microseconds.
    Due(usize, i64),
    /// It is time to look. Only the dispatcher sets this, so nobody moves the time of a look that somebody else needs.
    Look,
    /// There is news, so look now.
    News,
    /// It is time to ask whether other processes have changed something.
    Poll,
    /// Leases must be extended.
    Extend,
    /// The handler of the attempt with this fencing number has taken too long.
    Limit(i64),
    /// A run is over, so there is room again.
    Room,
    /// The database has failed, and is tried again. Only the dispatcher sets this.
    Again,
    Stop,
}

/// A claimed timer on its way to a handler thread.
pub(super) struct Job {
    pub(super) kind: usize,
    pub(super) timer: Arc<Timer>,
    pub(super) woke: SystemTime,
    pub(super) tenure: Arc<Tenure>,
}

/// What is known of a run outside of its handler thread.
pub(super) struct Held {
    pub(super) kind: usize,
    pub(super) timer: Arc<Timer>,
    pub(super) tenure: Arc<Tenure>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Started,
    Settled,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) jobs: VecDeque<Job>,
    /// By fencing number (LEASE-1).
    pub(super) runs: HashMap<i64, Held>,
    pub(super) outcomes: Vec<Finish>,
    pub(super) is_stopping: bool,
    /// The dispatcher has not ended. A claim that was under way at the stop may still bring runs.
    pub(super) is_dispatching: bool,
    /// Threads of the worker that have not ended.
    pub(super) threads: usize,
    /// Handler threads, with those that are stuck.
    pub(super) handlers: usize,
    pub(super) stuck: usize,
    /// How long the handler of each kind has taken, on average, with more weight on later runs.
    pub(super) averages: HashMap<usize, Duration>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) claimed: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) done: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) dead: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) looks: AtomicU64,
    pub(super) errors: AtomicU64,
    /// In microseconds.
    pub(super) max_lateness: AtomicU64,
}

/// Counters order nothing, so their accesses are Relaxed.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(in crate::durable) struct Shared {
    pub(super) timers: Timers,
    pub(super) scheduler: Scheduler,
    pub(super) kinds: Vec<Kind>,
    pub(super) settings: Settings,
    pub(super) causes: DelayQueue<Cause, ()>,
    pub(super) clock: Mutex<DatabaseClock>,
    state: Mutex<State>,
    /// A job was queued, or the worker stops.
    pub(super) has_jobs: Condvar,
    /// An outcome was pushed, or a run is gone, or the worker stops.
    pub(super) has_outcomes: Condvar,
    /// A thread has ended.
    has_ended: Condvar,
    pub(super) outage: Outage,
    pub(super) counters: Counters,
}

/// Timers that wake within so many microseconds wake the dispatcher once.
const GRAIN: i64 = 250;

/// No more than so many handler threads are replaced because they are stuck.
pub(super) const MOST_STUCK: usize = 16;

/// How much work is claimed ahead of the threads, so that short handlers do not wait for the database.
const AHEAD: Duration = Duration::from_millis(20);

/// The most runs for each thread that are claimed ahead.
const MOST_AHEAD: u128 = 64;

impl Shared {
    pub(super) fn new(
        timers: Timers,
        kinds: Vec<Kind>,
        settings: Settings,
        scheduler: &Scheduler,
    ) -> Shared {
        Shared {
            timers,
            scheduler: scheduler.clone(),
            kinds,
            settings,
            causes: DelayQueue::new(scheduler),
            clock: Mutex::new(DatabaseClock::new(scheduler.now())),
            state: Mutex::default(),
            has_jobs: Condvar::new(),
            has_outcomes: Condvar::new(),
            has_ended: Condvar::new(),
            outage: Outage::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clock(&self) -> MutexGuard<'_, DatabaseClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    pub(in crate::durable) fn look_now(&self) {
        _ = self.causes.insert(Cause::News, (), Duration::ZERO);
    }

    /// Wakes the dispatcher after a delay, for a cause that only the dispatcher sets. An earlier wake-up stays.
    pub(super) fn wake_after(&self, cause: Cause, delay: Duration) {
        let instant = self.scheduler.now() + delay;
        if self.causes.deadline(&cause).is_none_or(|known| instant < known) {
            _ = self.causes.insert_at(cause, (), instant);
        }
    }

    /// A timer of this kind wakes at this time. Later ones than the next look will see are left to it.
    pub(in crate::durable) fn expect(&self, kind: usize, wake: SystemTime) {
        let wake = micros(wake).saturating_add(GRAIN - 1) / GRAIN * GRAIN;
        let clock = self.clock();
        let instant = clock.is_known().then(|| clock.instant(from_micros(wake)));
        drop(clock);
        // The first look may be under way, and may not have seen it.
        let Some(instant) = instant else { return self.look_now() };
        if instant <= self.scheduler.now() + HORIZON {
            _ = self.causes.insert_at(Cause::Due(kind, wake), (), instant);
        }
    }

    pub(in crate::durable) fn kind_named(&self, name: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.name == name)
    }

    pub(super) fn report(&self, error: &Error) {
        self.count_error();
        self.tell(error);
    }

    pub(super) fn count_error(&self) {
        count(&self.counters.errors, 1);
    }

    pub(super) fn tell(&self, error: &Error) {
        sight::database_error(&self.settings.name, error);
        match &self.settings.on_error {
            Some(hook) => quietly(|| hook(error)),
            None => print(&with_causes(error)),
        }
    }

    pub(super) fn tell_of_recovery(&self, after: Duration) {
        sight::database_works(&self.settings.name, after);
        match &self.settings.on_recovery {
            Some(hook) => quietly(|| hook(after)),
            None if self.settings.on_error.is_none() => {
                print(&format!("the database can be used again, after {after:.1?}"));
            }
            None => {}
        }
    }

    /// How many more timers of a kind may be claimed.
    ///
    /// How far ahead is decided by the slowest of the kinds that would stand in one queue. One whose handler has not ended
    /// yet may be slow. Timers of which each has one attempt are not claimed ahead: a crash would cost them that attempt
    /// before they have started.
    pub(super) fn room(&self, kind: usize) -> u32 {
        let state = self.state();
        let threads = self.settings.threads + MOST_STUCK;
        let threads = threads.saturating_sub(state.stuck).min(self.settings.threads);
        let queued = state.runs.values().map(|held| held.kind).chain([kind]);
        let ahead = |kind| match state.averages.get(&kind) {
            Some(average) if self.retry_of(kind).max_attempts() > 1 => {
                AHEAD.as_nanos() / average.as_nanos().max(1)
            }
            _ => 1,
        };
        let ahead = queued.map(ahead).min().unwrap_or(1).clamp(1, MOST_AHEAD);
        (threads * ahead as usize).saturating_sub(state.runs.len()) as u32
    }

    /// A run is over of which nothing is to be written.
    pub(super) fn forget(&self, state: &mut State, fence: i64) {
        state.runs.remove(&fence);
        self.has_outcomes.notify_one(); // the finisher ends with the last run
        _ = self.causes.insert(Cause::Room, (), Duration::ZERO);
    }

    /// Pushes the outcome of a run, which the caller has settled (LEASE-2).
    pub(super) fn settle(&self, state: &mut State, finish: Finish) {
        state.outcomes.push(finish);
        self.has_outcomes.notify_one();
    }

    pub(super) fn stop(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_stopping, true) {
            return;
        }
        drop(state);
        self.outage.stop();
        self.release_queued();
        _ = self.causes.insert(Cause::Stop, (), Duration::ZERO);
    }

    /// Gives back what was claimed and not started.
    pub(super) fn release_queued(&self) {
        let mut state = self.state();
        while let Some(job) = state.jobs.pop_front() {
            if let Some(held) = state.runs.get_mut(&job.timer.fence) {
                held.stage = Stage::Settled;
                let finish = Finish { run: held.timer.run(), then: Then::Release };
                self.settle(&mut state, finish);
            }
        }
        drop(state);
        self.has_jobs.notify_all();
        self.has_outcomes.notify_all();
    }

    /// From here on, the finisher waits for those runs alone that are there (LEASE-5).
    pub(super) fn end_of_dispatcher(&self) {
        self.state().is_dispatching = false;
        self.has_outcomes.notify_all();
    }

    pub(super) fn await_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state();
        while state.threads > state.stuck {
            let left =
                deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let left = left.min(Duration::from_secs(3600));
            state =
                self.has_ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Starts a thread of the worker, for which `await_end` waits.
    pub(super) fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), Error> {
        self.state().threads += 1;
        let thread = Thread(Arc::clone(self));
        let builder = std::thread::Builder::new().name(format!("tickwheel-{name}"));
        let spawned = builder.spawn(move || work(&thread.0));
        spawned.map(drop).map_err(|error| {
            Error::Invalid(format!("a thread of the worker cannot be started: {error}"))
        })
    }

    pub(super) fn stats(&self) -> WorkerStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let state = self.state();
        WorkerStats {
            claimed: of(&counters.claimed),
            taken_over: of(&counters.taken_over),
            done: of(&counters.done),
            failed: of(&counters.failed),
            timed_out: of(&counters.timed_out),
            dead: of(&counters.dead),
            lost: of(&counters.lost),
            released: of(&counters.released),
            running: state.runs.len() as u64,
            stuck: state.stuck as u64,
            looks: of(&counters.looks),
            errors: of(&counters.errors),
            max_lateness: Duration::from_micros(of(&counters.max_lateness)),
        }
    }
}

fn print(text: &str) {
    eprintln!("tickwheel: a worker of durable timers: {text}");
}

/// A thread of the worker. Its `Drop` is the thread's end, whether it was started or not.
struct Thread(Arc<Shared>);

impl Drop for Thread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A worker with a thread less would stand still. Others take its timers over.
            self.0.report(&Error::Invalid(
                "a thread of the worker has panicked, so it stops".to_owned(),
            ));
            self.0.stop();
        }
        self.0.state().threads -= 1;
        self.0.has_ended.notify_all();
    }
}
