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
//! room for. **Handler threads** run what was claimed; what is async they hand to a runtime of the user's (`futures.rs`). The
//! **finisher** writes outcomes, all that have gathered in the meantime at once. The **listener** hears of timers that other
//! processes have scheduled. When the database cannot be used, all of them take turns to try again (`outage.rs`).
//!
//! # What an attempt is
//!
//! An attempt is a start of the handler. A claim counts nothing, so what was claimed and never started goes back as it was,
//! also if the process was killed. The start has to be known to those who come after the process, and one commit for each
//! start would make workers several times slower. So starts are written down where it matters:
//!
//! - ATTEMPT-1 Before the handler is called, if at most [`FEW`] attempts are left, or the timer is suspected, or handlers of the
//!   kind take [`QUICK`] or longer, or nothing is known of them yet. So no handler is started more often than its timer has
//!   attempts, as long as those are few.
//! - With the outcome otherwise. If the process dies before, the attempt is not counted. Nobody can know then which
//!   of many quick handlers had been called, and a timer must not lose an attempt that it did not have.
//! - A start that is put off (a snooze) does not count. Its outcome sets the number back, also if the start was written down.
//! - ATTEMPT-3 A timer whose lease has ended without an outcome is suspected: its handler may have killed the process. It
//!   is claimed by itself (STORE-7), starts when the worker has nothing else, and nothing is claimed beside it until it has
//!   ended. Both waits end after [`ALONE`], because a suspected handler may only be slow. By ATTEMPT-1 its start is counted.
//!   So a handler that kills its process uses up its attempts, and takes no neighbour along.
//! - ATTEMPT-4 A suspected run whose handler is not called is not given back, whatever the reason. Its lease ends instead, so the next
//!   worker suspects it too. If its start was written, that is undone.
//! - ATTEMPT-5 A timer whose attempts are used up when its lease ends is dead. The worker that has claimed it writes that, as
//!   it writes any other death.
//! - ATTEMPT-6 A run that the rule of its series leaves out, because it is late, has no attempt: what follows a success is written
//!   with the number 0.
//! - ATTEMPT-7 A handler in a transaction is called once the worker has that, and its time limit counts from there. What has waited for it
//!   for a whole time limit, because the database was away or somebody had locked the timer, is given back uncounted, unless
//!   it is suspected (ATTEMPT-4). What the database refuses before that, in time, has failed and counts, although nothing was called: a
//!   transaction that can never begin would be tried without an end.
//!
//! # Kinds
//!
//! Each kind has its own queue and its own handler threads. A kind that is slow, or whose handlers hang, fills these, and no
//! others. A thread that hangs in a handler is replaced, [`MOST_STUCK`] times at most. When all threads of a kind hang, the
//! worker says so, gives back what it has queued, and claims no more of that kind until a handler returns.
//!
//! # A run
//!
//! A run goes through these states, under the lock of [`State`]:
//!
//! ```text
//!            claim     a thread takes it, and has written the start     the handler returns
//!              │                                                               written
//!              └──> Queued ───────────────────> Started ───────────────────> Settled ──────> gone
//!                     │                            └── time limit ──────────────^
//!                     └── stop ──────────────────────────────────────────────────^
//! ```
//!
//! - LEASE-1 A run is in `runs` from its claim until its outcome is written, or there is none to write. For so long the
//!   dispatcher extends its lease, except for a started run in a transaction (PG-3), and for one that is known to be lost.
//! - LEASE-2 The step to `Settled` is made once, by the thread that then pushes the outcome or forgets the run: the
//!   handler's, the dispatcher's at the time limit, or the one that stops the worker.
//! - LEASE-3 A run starts only while its lease lasts by the clock of this process, counted from before the claim was sent.
//! - LEASE-4 Nothing is locked while a handler or a hook runs, or the database works.
//! - LEASE-5 After `stop`, no claim begins, and nothing queued starts. The dispatcher ends when `runs` is empty, and the
//!   finisher after it, because a claim that was under way at the stop still brings runs to give back. If the finisher has panicked,
//!   the dispatcher ends too, so that the leases end and other workers take the timers over.
//! - CANCEL-1 A run whose timer was cancelled or replaced, in whatever process, knows it within a second. Each [`ASK`], the dispatcher
//!   asks which of the runs that have lasted for [`LONG_RUN`] are still this worker's, if there are any, and ends the tenure of the
//!   others. So runs that are shorter cost nothing. It does not ask about a run in a transaction, which holds its timer (PG-3), nor
//!   about one that may have ended its timer itself ([`Tenure::has_completion`]).
//! - LIMIT-1 A run of a kind with limits holds its place in the database from its claim until it is gone from `runs`, also if its timer
//!   was cancelled or replaced in the meantime, and not longer than its lease. The dispatcher extends it, and the finisher lets it go
//!   after the outcome is written. A run that has exceeded its time limit has failed, and so holds nothing any more. One that is given
//!   back holds its group for a while more: its timer waits again, before timers of the group that others have passed over, and the
//!   others need that long to see it. One whose hold has ended, because its worker stood still for longer than a lease, is lost, whoever
//!   has its timer: its lease is extended no more, and its handler gets no transaction and completes nothing.
//! - LEASE-6 A kind for which timers may be due that were not claimed, for want of room or because of an error, stays
//!   `to_claim`, or a look is ahead that finds them. So nothing waits longer than until the next look.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use super::WorkerStats;
use super::dispatcher::HORIZON;
use super::futures::Spawn;
use super::limits::part;
use super::outage::Outage;
use crate::clock::{DatabaseClock, from_micros, micros};
use crate::error::{Error, StopReason, with_causes};
use crate::failure::{Failure, Retry};
use crate::handler::{Handler, Tenure};
use crate::panics::quietly;
use crate::sight;
use crate::store::{Claim, Finish, Limits, MOST_BYTES, Then};
use crate::timer::Timer;
use crate::timers::Opened;
use tickwheel::Scheduler;
use tickwheel::delay::DelayQueue;

type Rules =
    dyn Fn(&str, SystemTime) -> Result<Option<SystemTime>, Failure> + Send + Sync + 'static;

pub(super) type GiveUpIf = dyn Fn(&Failure) -> bool + Send + Sync;
type OnError = dyn Fn(&Error) + Send + Sync;
type OnDead = dyn Fn(&Timer, &str) + Send + Sync;

pub(super) struct Settings {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) async_runs: usize,
    pub(super) spawn: Option<Arc<Spawn>>,
    pub(super) lease: Duration,
    pub(super) poll: Option<Duration>,
    pub(super) retry: Retry,
    pub(super) give_up_if: Option<Box<GiveUpIf>>,
    pub(super) time_limit: Duration,
    pub(super) history: Option<Duration>,
    pub(super) keep_dead: Option<Duration>,
    pub(super) rules: Option<Box<Rules>>,
    /// `None`: it is printed.
    pub(super) on_error: Option<Box<OnError>>,
    /// `None`: it is printed if errors are.
    pub(super) on_recovery: Option<Box<dyn Fn(Duration) + Send + Sync>>,
    pub(super) on_dead: Option<Box<OnDead>>,
    pub(super) continues: Option<Box<sight::Continue>>,
}

impl Default for Settings {
    fn default() -> Settings {
        let random = RandomState::new().hash_one(()) as u32;
        Settings {
            name: format!("{}-{random:08x}", std::process::id()),
            threads: 4,
            async_runs: 64,
            spawn: None,
            lease: Duration::from_secs(30),
            poll: None,
            retry: Retry::default(),
            give_up_if: None,
            time_limit: Duration::from_secs(60),
            history: None,
            keep_dead: None,
            rules: None,
            on_error: None,
            on_recovery: None,
            on_dead: None,
            continues: None,
        }
    }
}

/// A kind of timers, and what is done with them.
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) handler: Handler,
    pub(super) retry: Option<Retry>,
    pub(super) give_up_if: Option<Box<GiveUpIf>>,
    pub(super) time_limit: Option<Duration>,
    /// For how long its attempts are kept, and its dead timers.
    pub(super) history: Option<Duration>,
    pub(super) keep_dead: Option<Duration>,
    /// How many run at once in this process, if the kind has a bound of its own.
    pub(super) at_most: Option<usize>,
    pub(super) spawn: Option<Arc<Spawn>>,
    pub(super) weight: u32,
    /// Over all processes.
    pub(super) limits: Limits,
}

impl Kind {
    pub(super) fn has_limits(&self) -> bool {
        self.limits != Limits::default()
    }
}

/// Why the dispatcher wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// A timer of this kind wakes, at this time of the database in microseconds. All workers know of it.
    Due(usize, i64),
    /// The same for a timer of which this worker knows alone (TURN-2).
    Mine(usize, i64),
    /// It is time to see whether the worker whose turn it was has taken what woke until this time.
    Check(usize, i64),
    /// A worker has told of more of this kind than the others know of, or than it can take, which wakes until this time.
    More(usize, i64),
    /// It is time to see whether there is room for what is due of a kind, or others are to help. Only the dispatcher sets this.
    Full,
    /// It is time to renew the list of those that live. Only the dispatcher sets this.
    Attend,
    /// It is time to look. Only the dispatcher sets this, so nobody moves the time of a look that somebody else needs.
    Look,
    /// There is news, so look now.
    News,
    /// The floor of this kind has stood for long enough (FLOOR-1). Only the dispatcher sets this.
    Floor(usize),
    /// It is time to ask whether other processes have changed something.
    Poll,
    /// It is time to ask for the database's time (DB-CLOCK-4).
    Clock,
    /// The limits of this kind may let something pass again, or the database its claims. Only the dispatcher sets this.
    HeldBack(usize),
    /// Runs of kinds with limits have ended here.
    Freed,
    /// Leases must be extended.
    Extend,
    /// The handler of the attempt with this fencing number has taken too long.
    Limit(i64),
    /// It is time to ask which runs are still this worker's (CANCEL-1). Only the dispatcher sets this.
    Ask,
    /// A timer that ran was cancelled in this process, so ask now.
    Cancelled,
    /// A run is over, so there is room again.
    Room,
    /// A suspected run has taken so long, or has not started for so long, that others may start beside it.
    NotAlone,
    /// The database has failed, and is tried again. Only the dispatcher sets this.
    Again,
    Stop,
}

/// A claimed timer on its way to a handler thread.
pub(super) struct Job {
    pub(super) kind: usize,
    pub(super) timer: Arc<Timer>,
    pub(super) tenure: Arc<Tenure>,
}

/// What is known of a run outside of its handler thread.
pub(super) struct Held {
    pub(super) kind: usize,
    /// As it stands in the store once this attempt is counted.
    pub(super) timer: Arc<Timer>,
    pub(super) tenure: Arc<Tenure>,
    pub(super) stage: Stage,
}

/// What a run of a kind with limits holds.
pub(super) struct Hold {
    pub(super) fence: i64,
    pub(super) kind: usize,
    pub(super) group: Option<String>,
    /// Its timer waits again, so the group is held for a while (LIMIT-1).
    pub(super) is_given_back: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Started,
    Settled,
    /// Settled, and another transaction holds the timer, so its outcome is written later. It takes no room in the meantime.
    Blocked,
}

/// The queue of a kind, and its handler threads.
#[derive(Default)]
pub(super) struct Line {
    pub(super) jobs: VecDeque<Job>,
    /// Threads, with those that are stuck.
    pub(super) handlers: usize,
    /// Threads that wait for a job.
    pub(super) idle: usize,
    /// Threads in a handler that has exceeded its time limit.
    pub(super) stuck: usize,
    /// Runs of an async handler that a thread has taken and that have not ended, with those that are stuck.
    pub(super) in_flight: usize,
    /// How long the handler has taken, on average, with more weight on later runs.
    pub(super) average: Option<Duration>,
}

/// The suspected run that the worker has (ATTEMPT-3).
#[derive(Clone, Copy)]
pub(super) struct Alone {
    pub(super) fence: i64,
    /// Until then it waits for the others, and they for it. Its start sets this anew. Before that it ends too, because all threads of its
    /// kind may be in handlers that take long.
    pub(super) until: Instant,
}

#[derive(Default)]
pub(super) struct State {
    /// In the order of `kinds`.
    pub(super) lines: Vec<Line>,
    /// By fencing number (LEASE-1).
    pub(super) runs: HashMap<i64, Held>,
    pub(super) alone: Option<Alone>,
    pub(super) outcomes: Vec<Finish>,
    /// Runs of kinds with limits that are gone, and whose holds are to be let go (LIMIT-1).
    pub(super) to_let_go: Vec<Hold>,
    /// The kinds and groups of those that were let go.
    pub(super) freed: Vec<(usize, Option<String>)>,
    /// Why the worker stops, once it does.
    pub(super) stop: Option<StopReason>,
    /// The dispatcher has not ended. A claim that was under way at the stop may still bring runs.
    pub(super) is_dispatching: bool,
    /// The finisher has not ended. Without it no outcome is written any more.
    pub(super) is_finishing: bool,
    /// Threads of the worker that have not ended, and runs of async handlers (FLIGHT-3).
    pub(super) threads: usize,
    /// Those that wait for the end as futures.
    wakers: Vec<Waker>,
}

impl State {
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// It was stopped, and nothing of it is left but what is stuck.
    fn has_ended(&self) -> bool {
        self.is_stopping() && self.threads <= self.stuck()
    }

    fn stuck(&self) -> usize {
        self.lines.iter().map(|line| line.stuck).sum()
    }
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
    pub(super) snoozed: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) looks: AtomicU64,
    pub(super) claims: AtomicU64,
    pub(super) errors: AtomicU64,
    /// In microseconds.
    pub(super) max_lateness: AtomicU64,
}

/// Counters order nothing, so their accesses are Relaxed.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(crate) struct Shared {
    pub(super) timers: Arc<Opened>,
    pub(super) scheduler: Scheduler,
    /// The workers for several stores have the same kinds and settings.
    pub(super) kinds: Arc<[Kind]>,
    pub(super) settings: Arc<Settings>,
    /// The name under which it claims.
    pub(super) name: String,
    /// The store tells of each new timer itself. It orders nothing, so its accesses are Relaxed.
    is_told: AtomicBool,
    pub(super) causes: DelayQueue<Cause, ()>,
    pub(super) clock: Mutex<DatabaseClock>,
    /// Until when the store is polled often.
    awake: Mutex<Option<Instant>>,
    state: Mutex<State>,
    /// For each kind: a job was queued or may start now, or the worker stops.
    pub(super) has_jobs: Vec<Condvar>,
    /// An outcome was pushed, or a run is gone, or the worker stops.
    pub(super) has_outcomes: Condvar,
    /// A thread has ended.
    has_ended: Condvar,
    pub(super) outage: Outage,
    pub(super) counters: Counters,
}

/// How often a store is polled that tells nobody of news.
const POLL: Duration = Duration::from_secs(1);

/// How often the store is polled while commits tell nothing because the worker said so, and for how long.
const BUSY_POLL: Duration = Duration::from_millis(10);
pub(super) const LOOKING: Duration = Duration::from_secs(4);

/// Timers that wake within so many microseconds wake the dispatcher once.
pub(super) const GRAIN: i64 = 250;

/// No more than so many handler threads of a kind are replaced because they are stuck.
pub(super) const MOST_STUCK: usize = 16;

/// A timer with so many attempts left has each start written down before it (ATTEMPT-1).
pub(super) const FEW: u32 = 10;

/// A handler that takes this long can wait until its start is written down (ATTEMPT-1).
pub(super) const QUICK: Duration = Duration::from_millis(5);

/// How often the worker asks which of its runs are still its own, and of those how long each has lasted at least (CANCEL-1). What is
/// cancelled as it begins is noticed after both, and the rest of the second is for the database.
pub(super) const ASK: Duration = Duration::from_millis(500);
pub(super) const LONG_RUN: Duration = Duration::from_millis(250);

/// How long a suspected run waits for others to end, and they for it (ATTEMPT-3).
pub(super) const ALONE: Duration = Duration::from_secs(5);

/// How much work is claimed ahead of the threads, so that short handlers do not wait for the database.
const AHEAD: Duration = Duration::from_millis(20);

/// The most runs for each thread that are claimed ahead.
const MOST_AHEAD: u128 = 64;

impl Shared {
    pub(super) fn new(
        timers: Arc<Opened>,
        kinds: Arc<[Kind]>,
        settings: Arc<Settings>,
        scheduler: &Scheduler,
        is_told: bool,
    ) -> Shared {
        let lines = kinds.iter().map(|_| Line::default()).collect();
        // Of several, each tells which one it is in the column `owner` and in events.
        let number = timers.place().map(|place| format!("/{}", place.number));
        Shared {
            name: settings.name.clone() + &number.unwrap_or_default(),
            is_told: AtomicBool::new(is_told),
            timers,
            scheduler: scheduler.clone(),
            has_jobs: kinds.iter().map(|_| Condvar::new()).collect(),
            kinds,
            settings,
            causes: DelayQueue::new(scheduler),
            clock: Mutex::new(DatabaseClock::new(scheduler.now())),
            awake: Mutex::default(),
            state: Mutex::new(State { lines, ..State::default() }),
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
        self.state().is_stopping()
    }

    pub(super) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// The store tells of new timers from now on, or it does not, and is polled.
    pub(super) fn set_told(&self, is_told: bool) {
        self.is_told.store(is_told, Ordering::Relaxed);
        _ = self.causes.insert(Cause::Poll, (), Duration::ZERO);
    }

    /// Polls the store often for a while.
    pub(super) fn stay_awake(&self, span: Duration) {
        let until = self.scheduler.now() + span;
        *self.awake.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        _ = self.causes.insert(Cause::Poll, (), Duration::ZERO);
    }

    /// Returns how often the store is polled.
    pub(super) fn poll(&self) -> Option<Duration> {
        let poll = self.settings.poll.or_else(|| (!self.is_told()).then_some(POLL));
        let awake = *self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        let is_awake = awake.is_some_and(|until| self.scheduler.now() < until);
        if is_awake { Some(poll.map_or(BUSY_POLL, |poll| poll.min(BUSY_POLL))) } else { poll }
    }

    pub(crate) fn look_now(&self) {
        _ = self.causes.insert(Cause::News, (), Duration::ZERO);
    }

    /// A timer that ran was cancelled in this process. Others learn of it when they ask (CANCEL-1).
    pub(crate) fn has_cancelled(&self) {
        _ = self.causes.insert(Cause::Cancelled, (), Duration::ZERO);
    }

    /// Wakes the dispatcher after a delay, for a cause that only the dispatcher sets. An earlier wake-up stays.
    pub(super) fn wake_after(&self, cause: Cause, delay: Duration) {
        let instant = self.scheduler.now() + delay;
        if self.causes.deadline(&cause).is_none_or(|known| instant < known) {
            _ = self.causes.insert_at(cause, (), instant);
        }
    }

    /// A timer of this kind wakes at this time, as all workers come to know. Later ones than the next look will see are left
    /// to it.
    pub(crate) fn expect(&self, kind: usize, wake: SystemTime) {
        // What this worker knows alone stays so, and comes at another instant if a clock was set in the meantime.
        let is_mine = self.causes.contains_key(&Cause::Mine(kind, grain_of(wake)));
        self.expect_as(if is_mine { Cause::Mine } else { Cause::Due }, kind, wake);
    }

    /// Like `expect`, for a timer that somebody else tells of (DB-CLOCK-4).
    pub(crate) fn hear_of(&self, kind: usize, wake: SystemTime) {
        self.expect(kind, wake);
        let clock = self.clock();
        // What is due by the known time is claimed now, and shows nothing of the clock.
        if wake > clock.time(self.scheduler.now()) {
            _ = self.causes.insert_at(Cause::Clock, (), clock.fresh_until());
        }
    }

    /// Like `expect`, for a timer of which the other workers may not know (TURN-2).
    pub(super) fn expect_alone(&self, kind: usize, wake: SystemTime) {
        self.expect_as(Cause::Mine, kind, wake);
        self.causes.remove(&Cause::Due(kind, grain_of(wake))); // one of the two wakes the dispatcher
    }

    /// Returns true if a timer that wakes at this time was expected before.
    pub(super) fn is_expected(&self, kind: usize, wake: SystemTime) -> bool {
        let wake = grain_of(wake);
        let causes = [Cause::Due(kind, wake), Cause::Mine(kind, wake)];
        causes.iter().any(|cause| self.causes.contains_key(cause))
    }

    /// A worker has told of more timers.
    pub(super) fn hear_of_more(&self, kind: usize, until: SystemTime) {
        _ = self.causes.insert(Cause::More(kind, micros(until)), (), Duration::ZERO);
    }

    fn expect_as(&self, cause: fn(usize, i64) -> Cause, kind: usize, wake: SystemTime) {
        let wake = grain_of(wake);
        let clock = self.clock(); // until the cause is in (DB-CLOCK-3)
        let instant = clock.is_known().then(|| clock.instant(from_micros(wake)));
        // The first look may be under way, and may not have seen it.
        let Some(instant) = instant else { return self.look_now() };
        if instant <= self.scheduler.now() + HORIZON {
            _ = self.causes.insert_at(cause(kind, wake), (), instant);
        }
    }

    pub(crate) fn kind_named(&self, name: &str) -> Option<usize> {
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
        let named = self.timers.place().map(|place| place.named(error.copy()));
        let error = named.as_ref().unwrap_or(error);
        sight::database_error(&self.name, error);
        match &self.settings.on_error {
            Some(hook) => quietly(|| hook(error)),
            None => print(&with_causes(error)),
        }
    }

    pub(super) fn tell_of_recovery(&self, after: Duration) {
        sight::database_works(&self.name, after);
        match &self.settings.on_recovery {
            Some(hook) => quietly(|| hook(after)),
            None if self.settings.on_error.is_none() => {
                let name =
                    self.timers.place().map(|place| format!(" {} ({})", place.number, place.name));
                let name = name.unwrap_or_default();
                print(&format!("the database{name} can be used again, after {after:.1?}"));
            }
            None => {}
        }
    }

    /// Returns a claim of a kind, from its beginning.
    pub(super) fn claim_of(&self, kind: usize, limit: u32) -> Claim<'_> {
        let of = &self.kinds[kind];
        Claim::new(&of.name, &self.name)
            .limit(limit)
            .lease(self.settings.lease)
            .limits(of.has_limits().then_some(of.limits))
    }

    /// How many more timers of a kind may be claimed.
    ///
    /// Quick handlers are claimed ahead of the threads, of a kind among others as far as its share of them says. One whose handler has not ended yet may be slow.
    pub(super) fn room(&self, kind: usize, share: Option<(u32, u32)>) -> u32 {
        let state = self.state();
        if state.alone.is_some_and(|alone| self.scheduler.now() < alone.until) {
            return 0;
        }
        let line = &state.lines[kind];
        let ahead = line.average.map_or(1, |average| AHEAD.as_nanos() / average.as_nanos().max(1));
        // What waits for a thread here must not take the place of what may run elsewhere, nor gather starts for later.
        let limits = self.kinds[kind].limits;
        let most = if limits.at_most.is_some() || limits.rate.is_some() { 1 } else { MOST_AHEAD };
        let ahead = ahead.clamp(1, most) as usize;
        let ahead = share.map_or(ahead, |share| part(ahead as u64, share) as usize);
        // Threads that are busy for long must not have more and more payloads queued behind them.
        if line.jobs.iter().map(|job| job.timer.payload.len()).sum::<usize>() >= MOST_BYTES {
            return 0;
        }
        let takes_room = |held: &&Held| held.kind == kind && held.stage != Stage::Blocked;
        let held = state.runs.values().filter(takes_room).count();
        (self.width_of(kind, line) * ahead).saturating_sub(held) as u32
    }

    /// How many handlers of a kind may run at the same time, beside those that are stuck.
    pub(super) fn width_of(&self, kind: usize, line: &Line) -> usize {
        let of = &self.kinds[kind];
        let default =
            if of.handler.is_async() { self.settings.async_runs } else { self.settings.threads };
        let width = of.at_most.unwrap_or(default);
        (width + MOST_STUCK).saturating_sub(line.stuck).min(width)
    }

    /// How many threads a kind has, beside those that are stuck. Those of an async handler start runs and do not wait for them.
    pub(super) fn threads_of(&self, kind: usize) -> usize {
        let of = &self.kinds[kind];
        of.at_most.filter(|_| !of.handler.is_async()).unwrap_or(self.settings.threads)
    }

    /// Returns the groups of a kind of which this worker has runs.
    pub(super) fn groups_of(&self, kind: usize) -> HashSet<String> {
        let state = self.state();
        let of_kind = state.runs.values().filter(|held| held.kind == kind);
        let groups = of_kind.filter_map(|held| self.kinds[kind].limits.group_of(&held.timer.key));
        groups.map(str::to_owned).collect()
    }

    /// How many jobs of a kind a thread may take. One that runs the handler itself always may take one.
    pub(super) fn room_to_start(&self, kind: usize, line: &Line) -> usize {
        if !self.kinds[kind].handler.is_async() {
            return 1;
        }
        let in_flight = line.in_flight.saturating_sub(line.stuck);
        self.width_of(kind, line).saturating_sub(in_flight)
    }

    /// The handler of a run is called. Returns when.
    pub(super) fn has_started(&self, timer: &Timer, tenure: &Tenure) -> Instant {
        let started = self.scheduler.now();
        let time = self.clock().time(started);
        tenure.begin(started, time);
        self.tell_of_start(timer, tenure, time);
        started
    }

    fn tell_of_start(&self, timer: &Timer, tenure: &Tenure, time: SystemTime) {
        let late = time.duration_since(tenure.woke()).unwrap_or_default();
        let late_micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.counters.max_lateness.fetch_max(late_micros, Ordering::Relaxed);
        sight::started(timer, late);
    }

    /// The same for a handler that had to wait for its runtime or its transaction. Its time limit counts from here (FLIGHT-4, ATTEMPT-7).
    /// `None`: it is not called, because its time was over before.
    pub(super) fn has_started_late(
        &self,
        kind: usize,
        timer: &Timer,
        tenure: &Tenure,
    ) -> Option<Instant> {
        let limit = self.time_limit_of(kind, timer);
        // Locked, because the dispatcher asks at the time limit whether it was called, and settles it by the answer.
        let state = self.state();
        if !tenure.is_current() {
            return None;
        }
        let started = self.scheduler.now();
        let time = self.clock().time(started);
        tenure.begin(started, time);
        tenure.start(limit, self.kinds[kind].handler.is_transactional());
        drop(state);
        _ = self.causes.insert(Cause::Limit(timer.fence), (), limit);
        self.tell_of_start(timer, tenure, time);
        Some(started)
    }

    /// A run of an async handler is over, or was not started.
    pub(super) fn has_landed(&self, kind: usize) {
        self.state().lines[kind].in_flight -= 1;
        self.has_jobs[kind].notify_one();
    }

    /// Returns what runs the futures of a kind.
    pub(super) fn spawn_of(&self, kind: usize) -> Option<&Arc<Spawn>> {
        self.kinds[kind].spawn.as_ref().or(self.settings.spawn.as_ref())
    }

    /// Removes a run of which nothing is to be written any more.
    pub(super) fn remove(&self, state: &mut State, fence: i64) -> Option<Held> {
        let held = state.runs.remove(&fence);
        if let Some(held) = held.as_ref().filter(|held| self.kinds[held.kind].has_limits()) {
            let group = self.kinds[held.kind].limits.group_of(&held.timer.key).map(str::to_owned);
            state.to_let_go.push(Hold { fence, kind: held.kind, group, is_given_back: false });
        }
        match state.alone {
            Some(alone) if alone.fence == fence => state.alone = None,
            // It may be the only one now.
            Some(alone) => {
                let suspected = state.runs.get(&alone.fence);
                suspected.into_iter().for_each(|held| self.has_jobs[held.kind].notify_all());
            }
            None => {}
        }
        held
    }

    /// A run is over of which nothing is to be written.
    pub(super) fn forget(&self, state: &mut State, fence: i64) {
        self.remove(state, fence);
        self.has_outcomes.notify_one(); // the finisher ends with the last run
        _ = self.causes.insert(Cause::Room, (), Duration::ZERO);
    }

    /// A suspected run is not called. Whoever claims it when its lease has ended suspects it too (ATTEMPT-4).
    pub(super) fn leave_suspected(&self, state: &mut State, kind: usize, fence: i64) {
        self.forget(state, fence);
        let end = self.clock().latest_time(self.scheduler.now() + self.settings.lease);
        self.expect_alone(kind, end);
    }

    /// Pushes the outcome of a run, which the caller has settled (LEASE-2).
    pub(super) fn settle(&self, state: &mut State, finish: Finish) {
        state.outcomes.push(finish);
        self.has_outcomes.notify_one();
    }

    pub(super) fn stop(&self, reason: StopReason) {
        let mut state = self.state();
        if state.is_stopping() {
            return;
        }
        state.stop = Some(reason);
        drop(state);
        self.outage.wake();
        (0..self.kinds.len()).for_each(|kind| self.release_queued(kind));
        _ = self.causes.insert(Cause::Stop, (), Duration::ZERO);
    }

    /// Stops the worker for a reason that its user did not give, and says so.
    pub(super) fn give_up(&self, reason: StopReason) {
        if !self.is_stopping() {
            self.report(&Error::Stopped(reason));
        }
        self.stop(reason);
    }

    /// Gives back what was claimed of a kind and not started (ATTEMPT-4).
    pub(super) fn release_queued(&self, kind: usize) {
        let mut state = self.state();
        while let Some(job) = state.lines[kind].jobs.pop_front() {
            let fence = job.timer.fence;
            if job.tenure.is_suspected {
                self.leave_suspected(&mut state, kind, fence);
            } else if let Some(held) = state.runs.get_mut(&fence) {
                held.stage = Stage::Settled;
                let finish = self.finish(held, Then::Release);
                self.settle(&mut state, finish);
            }
        }
        drop(state);
        self.has_jobs[kind].notify_all();
        self.has_outcomes.notify_all();
    }

    /// From here on, the finisher waits for those runs alone that are there (LEASE-5).
    pub(super) fn end_of_dispatcher(&self) {
        self.state().is_dispatching = false;
        self.has_outcomes.notify_all();
    }

    /// From here on, the dispatcher waits for no run.
    pub(super) fn end_of_finisher(&self) {
        self.state().is_finishing = false;
        _ = self.causes.insert(Cause::Stop, (), Duration::ZERO);
    }

    /// A thread of the worker, or what counts as one, has ended.
    pub(super) fn thread_has_ended(&self) {
        let mut state = self.state();
        state.threads -= 1;
        let wakers = if state.has_ended() { std::mem::take(&mut state.wakers) } else { Vec::new() };
        drop(state);
        self.has_ended.notify_all();
        wakers.into_iter().for_each(|waker| quietly(|| waker.wake()));
    }

    /// Returns why the worker has stopped, once it has ended as for `await_end`. Until then it keeps the waker, once for each task: one that
    /// waits for something else too is polled again and again.
    pub(super) fn poll_end(&self, waker: &Waker) -> Option<StopReason> {
        let waker = waker.clone(); // the user's code, so nothing is locked
        let mut state = self.state();
        if state.has_ended() {
            return state.stop;
        }
        if !state.wakers.iter().any(|known| known.will_wake(&waker)) {
            state.wakers.push(waker);
        }
        None // `state` is dropped before a waker that is known already
    }

    /// Waits until the worker has been stopped and its threads have ended, but for those that are stuck.
    pub(super) fn await_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state();
        while !state.has_ended() {
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
            snoozed: of(&counters.snoozed),
            released: of(&counters.released),
            skipped: of(&counters.skipped),
            running: state.runs.len() as u64,
            stuck: state.stuck() as u64,
            looks: of(&counters.looks),
            claims: of(&counters.claims),
            errors: of(&counters.errors),
            max_lateness: Duration::from_micros(of(&counters.max_lateness)),
        }
    }
}

/// A time of the database in microseconds, up to [`GRAIN`] later.
fn grain_of(wake: SystemTime) -> i64 {
    micros(wake).saturating_add(GRAIN - 1) / GRAIN * GRAIN
}

/// Prints to stderr, if anybody reads it: `eprintln!` would panic if not.
fn print(text: &str) {
    let line = format!("tickwheel: a worker of durable timers: {text}\n");
    _ = std::io::stderr().write_all(line.as_bytes());
}

/// A thread of the worker. Its `Drop` is the thread's end, whether it was started or not.
struct Thread(Arc<Shared>);

impl Drop for Thread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A worker with a thread less would stand still. Others take its timers over.
            self.0.give_up(StopReason::Panicked);
        }
        self.0.thread_has_ended();
    }
}
