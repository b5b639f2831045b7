//! What a timer is: [`NewTimer`] on its way into a store, and [`Timer`] as it stands there.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::clock::{LATEST, from_micros};
#[cfg(feature = "cron")]
use crate::cron::Cron;
use crate::error::{Error, Result};
use crate::rules;
use crate::store::RunId;

/// The longest name of a kind, in bytes.
pub const LONGEST_KIND: usize = 200;

/// The longest key, in bytes.
pub const LONGEST_KEY: usize = 1000;

/// The longest trace, in bytes.
pub const LONGEST_TRACE: usize = 1000;

/// When a timer is due, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// So long after the database receives the call.
    After(Duration),
    /// At a wall-clock time. One that has passed is due now, and its [`due`](Timer::due) is that time.
    At(SystemTime),
}

impl From<Duration> for When {
    fn from(delay: Duration) -> When {
        When::After(delay)
    }
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> When {
        When::At(time)
    }
}

/// What follows a run of a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repetition {
    /// The next run is due so long after this one was due. Runs that were missed are skipped, and the phase is kept.
    Every(Duration),
    /// The next run is due when the hook of [`WorkerBuilder::rules`](crate::WorkerBuilder::rules) says, to which this text is
    /// given. With the feature `cron`, texts that begin with `cron:` are rules that the workers know.
    Rule(String),
}

/// A timer that is going to be scheduled.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::NewTimer;
///
/// let unpaid = NewTimer::new("cancel order", "4711", Duration::from_secs(1800)).payload("two pears");
/// let report = NewTimer::new("report", "daily", std::time::SystemTime::now()).every(Duration::from_secs(86_400));
/// # drop((unpaid, report));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it does nothing until it is scheduled"]
#[non_exhaustive]
pub struct NewTimer {
    /// Says which handler runs it.
    pub kind: String,
    /// Names it among those of its kind.
    pub key: String,
    /// Is given to the handler.
    pub payload: Vec<u8>,
    /// When it is due first. A series with a cron rule is due at the first time of its rule from then on.
    pub when: When,
    /// What follows a run. `None`: the timer is removed after a successful one.
    pub repetition: Option<Repetition>,
    /// After so many failed attempts it is dead. `None`: as its handler's [`Retry`](crate::Retry) says.
    pub max_attempts: Option<u32>,
    /// A run that takes longer has failed. `None`: as the worker says.
    pub time_limit: Option<Duration>,
    /// The context of a trace, for its runs.
    pub trace: Option<String>,
}

impl NewTimer {
    /// Makes a timer of a kind, with a key that is unique in its kind, due after a [`Duration`] or at a [`SystemTime`].
    pub fn new(kind: impl Into<String>, key: impl Into<String>, when: impl Into<When>) -> NewTimer {
        NewTimer {
            kind: kind.into(),
            key: key.into(),
            payload: Vec::new(),
            when: when.into(),
            repetition: None,
            max_attempts: None,
            time_limit: None,
            trace: None,
        }
    }

    /// Makes a series whose times a [cron rule](crate::cron) tells, from now on.
    ///
    /// ```
    /// use tickwheel_durable::NewTimer;
    /// use tickwheel_durable::cron::Cron;
    ///
    /// let cron = Cron::parse("0 9 * * MON-FRI")?.in_zone("Europe/Berlin")?;
    /// let report = NewTimer::cron("report", "daily", &cron).payload("to all");
    /// # drop(report);
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// ```
    #[cfg(feature = "cron")]
    pub fn cron(kind: impl Into<String>, key: impl Into<String>, cron: &Cron) -> NewTimer {
        NewTimer::new(kind, key, Duration::ZERO).rule(cron.to_string())
    }

    /// Sets the bytes that the handler gets. By default there are none.
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> NewTimer {
        self.payload = payload.into();
        self
    }

    /// Sets the payload to the JSON of a value.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if the value has no JSON.
    #[cfg(feature = "serde")]
    pub fn json(self, value: &(impl serde::Serialize + ?Sized)) -> Result<NewTimer> {
        Ok(self.payload(serde_json::to_vec(value).map_err(Error::json)?))
    }

    /// Makes it a series with a fixed period, which is at least a millisecond.
    ///
    /// Each run has its own attempts. One that has used them up, or would be tried again when the next run is due already,
    /// becomes a timer of its own. Its key is that of the series, `@`, and the time at which it was due, in milliseconds since
    /// 1970. The series goes on.
    pub fn every(mut self, period: Duration) -> NewTimer {
        self.repetition = Some(Repetition::Every(period));
        self
    }

    /// Makes it a series whose times the worker's [`rules`](crate::WorkerBuilder::rules) tell from this text.
    pub fn rule(mut self, rule: impl Into<String>) -> NewTimer {
        self.repetition = Some(Repetition::Rule(rule.into()));
        self
    }

    /// Sets after how many failed attempts it is dead. A timer with 0 is refused when it is scheduled.
    pub fn max_attempts(mut self, attempts: u32) -> NewTimer {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long one run may take. A timer with less than a millisecond is refused when it is scheduled.
    pub fn time_limit(mut self, limit: Duration) -> NewTimer {
        self.time_limit = Some(limit);
        self
    }

    /// Sets the context of the trace to which its runs belong, such as a `traceparent` of W3C, of at most 1000 bytes. Runs tell it by
    /// [`Run::trace`](crate::Run::trace), those of a series each. By default it is what
    /// [`OpenOptions::trace_with`](crate::OpenOptions::trace_with) says.
    pub fn trace(mut self, trace: impl Into<String>) -> NewTimer {
        self.trace = Some(trace.into());
        self
    }

    /// Returns true if this timer of a store is the same series, and alive.
    pub(crate) fn is_as(&self, timer: &Timer) -> bool {
        // As the tables have them: spans are whole milliseconds, and numbers have a bound.
        let stored =
            |span: Duration| span.as_nanos().div_ceil(1_000_000).min(LATEST as u128 / 1000 + 1);
        let attempts = |most: Option<u32>| most.map(|most| most.min(i32::MAX.unsigned_abs()));
        let has_rule = match (&self.repetition, &timer.repetition) {
            (Some(Repetition::Every(one)), Some(Repetition::Every(other))) => {
                stored(*one) == stored(*other)
            }
            (one, other) => one == other,
        };
        has_rule
            && timer.state != State::Dead
            && self.payload == timer.payload
            && attempts(self.max_attempts) == attempts(timer.max_attempts)
            && self.time_limit.map(stored) == timer.time_limit.map(stored)
    }

    /// Returns when it is due first, if this is the time of the database. Stores and their writers ask it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is a series with a cron rule that has no time from [`when`](NewTimer::when) on.
    pub fn first_due(&self, now: SystemTime) -> Result<SystemTime> {
        let begin = match self.when {
            When::After(delay) => now.checked_add(delay).unwrap_or_else(|| from_micros(LATEST)),
            When::At(time) => time,
        };
        let first = rules::first(self.repetition.as_ref(), begin).unwrap_or(Ok(begin));
        first.map_err(|problem| self.invalid(&problem))
    }

    /// Returns an error if no store could keep it, or if its cron rule has no time at all. Writers of stores call it first. Whether
    /// the rule has a time to come depends on the clock of the database: [`first_due`](NewTimer::first_due) tells.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], which says what to change.
    pub fn check(&self) -> Result<()> {
        let rule = match &self.repetition {
            Some(Repetition::Rule(rule)) => Some(rule.as_str()),
            _ => None,
        };
        let has_zero = rule.is_some_and(|rule| rule.contains('\0'));
        let problem = if self.kind.is_empty() || self.kind.len() > LONGEST_KIND {
            format!("a kind has 1 to {LONGEST_KIND} bytes, and this one has {}", self.kind.len())
        } else if self.key.len() > LONGEST_KEY {
            format!("a key has at most {LONGEST_KEY} bytes, and this one has {}", self.key.len())
        } else if self.kind.contains('\0') || self.key.contains('\0') || has_zero {
            "a text contains the character 0, which PostgreSQL cannot store".to_owned()
        } else if matches!(self.repetition, Some(Repetition::Every(period)) if period < MILLISECOND)
        {
            "the period is shorter than a millisecond".to_owned()
        } else if let Some(problem) = rule.and_then(rules::problem) {
            problem
        } else if self.max_attempts == Some(0) {
            "`max_attempts` is 0, so the timer would never run: give 1 or more".to_owned()
        } else if self.time_limit.is_some_and(|limit| limit < MILLISECOND) {
            "the time limit is shorter than a millisecond".to_owned()
        } else if self.trace.as_deref().is_some_and(|trace| !is_trace(trace)) {
            format!("a trace has at most {LONGEST_TRACE} bytes, and not the character 0")
        } else {
            return Ok(());
        };
        Err(self.invalid(&problem))
    }

    fn invalid(&self, problem: &str) -> Error {
        Error::Invalid(format!("the timer {:?} {:?}: {problem}", self.kind, self.key))
    }
}

/// Returns true if stores can keep this trace.
pub(crate) fn is_trace(trace: &str) -> bool {
    trace.len() <= LONGEST_TRACE && !trace.contains('\0')
}

/// The shortest period and time limit.
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

/// Where a timer is between its schedule and its end. One that has ended is not in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum State {
    /// It waits for its time, or for the next attempt.
    Waiting,
    /// A worker has claimed it, until its lease ends. Its handler runs, or is about to.
    Running,
    /// All its attempts have failed. It stays until somebody requeues or cancels it.
    Dead,
}

impl State {
    /// Returns the name that the tables have: `waiting`, `running` or `dead`.
    pub fn name(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Dead => "dead",
        }
    }

    /// Returns the state of a name.
    pub fn of(name: &str) -> Option<State> {
        [State::Waiting, State::Running, State::Dead].into_iter().find(|state| state.name() == name)
    }
}

/// A timer as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timer {
    /// The number that the store gave it. A timer whose key was new later has a higher one.
    pub id: i64,
    /// Says which handler runs it.
    pub kind: String,
    /// Names it among those of its kind.
    pub key: String,
    /// Is given to the handler.
    pub payload: Vec<u8>,
    /// When its next run is due; of a timer that runs or is retried: when that run was due.
    pub due: SystemTime,
    /// When a worker looks at it next: at `due`, at the next attempt, or at the end of the lease. `None`: it is dead.
    pub wake: Option<SystemTime>,
    /// What follows a run of a series.
    pub repetition: Option<Repetition>,
    /// After so many failed attempts it is dead. `None`: as its handler says.
    pub max_attempts: Option<u32>,
    /// A run that takes longer has failed. `None`: as the worker says.
    pub time_limit: Option<Duration>,
    /// Waiting, running or dead.
    pub state: State,
    /// How often its handler was started for this run, as far as that is written down.
    pub attempts: u32,
    /// The fencing number of the last attempt: higher than that of every attempt before, of any timer of the store, but for those
    /// that were lost in a [failover](crate#a-failover).
    pub fence: i64,
    /// The worker that has it.
    pub owner: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// The context of the trace to which its runs belong.
    pub trace: Option<String>,
    /// Which of several stores it is on, by their order in `Timers::sharded`. Zero if there is one alone.
    pub shard: usize,
}

impl Timer {
    /// A timer that waits, with nothing but what each has: for writers of stores, who set the other fields.
    pub fn new(id: i64, kind: impl Into<String>, key: impl Into<String>, due: SystemTime) -> Timer {
        Timer {
            id,
            kind: kind.into(),
            key: key.into(),
            payload: Vec::new(),
            due,
            wake: Some(due),
            repetition: None,
            max_attempts: None,
            time_limit: None,
            state: State::Waiting,
            attempts: 0,
            fence: 0,
            owner: None,
            error: None,
            trace: None,
            shard: 0,
        }
    }

    /// Returns the attempt that this timer was claimed for.
    pub fn run(&self) -> RunId {
        RunId { id: self.id, fence: self.fence }
    }
}

/// What [`Timers::schedule`](crate::Timers::schedule) has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// When it is due, by the database's clock.
    pub due: SystemTime,
    /// The kind had a timer with this key, which is replaced.
    pub replaced: bool,
}

impl Scheduled {
    /// A timer is due at this time.
    pub fn new(due: SystemTime, replaced: bool) -> Scheduled {
        Scheduled { due, replaced }
    }
}

/// Which timers to list. By default all, the first thousand.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use tickwheel_durable::{Filter, State, Timers};
///
/// let timers = Timers::open("sqlite::memory:")?;
/// let mut page = timers.list(&Filter::new().kind("mail").state(State::Dead).limit(100))?;
/// while let Some(last) = page.last() {
///     page = timers.list(&Filter::new().kind("mail").state(State::Dead).limit(100).after(last))?;
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// Only those of this kind.
    pub kind: Option<String>,
    /// Only those in this state.
    pub state: Option<State>,
    /// Only those whose key begins with this.
    pub key_prefix: Option<String>,
    /// Only those whose [`wake`](Timer::wake) is not later.
    pub until: Option<SystemTime>,
    /// Only those behind this one, in the order of the list.
    pub after: Option<Timer>,
    /// No more than so many.
    pub limit: u32,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter::new()
    }
}

impl Filter {
    /// Lists all timers, the first thousand.
    pub fn new() -> Filter {
        let (kind, state, key_prefix) = (None, None, None);
        Filter { kind, state, key_prefix, until: None, after: None, limit: 1000 }
    }

    /// Lists only those of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Filter {
        self.kind = Some(kind.into());
        self
    }

    /// Lists only those in this state.
    #[must_use]
    pub fn state(mut self, state: State) -> Filter {
        self.state = Some(state);
        self
    }

    /// Lists only those whose key begins with this text.
    ///
    /// Give a kind too: its keys are searched in an index, and without one all timers are. Where PostgreSQL sorts texts by a language, and
    /// not by their bytes, all keys of the kind are read, a million in a fifth of a second.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Filter {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Lists only those that are due, or tried again, no later than at this time.
    #[must_use]
    pub fn until(mut self, time: SystemTime) -> Filter {
        self.until = Some(time);
        self
    }

    /// Lists those that follow this one: the next page, if it was the last of a page.
    #[must_use]
    pub fn after(mut self, timer: &Timer) -> Filter {
        self.after = Some(Timer { payload: Vec::new(), ..timer.clone() });
        self
    }

    /// Lists no more than so many. With 0 there are none.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Filter {
        self.limit = limit;
        self
    }
}

/// How many timers of one kind are in the store, by state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindCounts {
    /// The kind.
    pub kind: String,
    /// Those that wait for their first attempt.
    pub waiting: u64,
    /// Those that wait for another attempt.
    pub retrying: u64,
    /// Those that a worker has.
    pub running: u64,
    /// Those whose attempts have all failed.
    pub dead: u64,
    /// How long ago the oldest was due that is due and not done. Zero: none is.
    pub lag: Duration,
}

impl KindCounts {
    /// A kind without timers: for writers of stores, who set the other fields.
    pub fn new(kind: impl Into<String>) -> KindCounts {
        let lag = Duration::ZERO;
        KindCounts { kind: kind.into(), waiting: 0, retrying: 0, running: 0, dead: 0, lag }
    }

    /// Returns the counts of several stores together, in order of the kinds: for those who ask each of the
    /// [shards](crate::Timers::shards) by itself.
    pub fn summed(counts: impl IntoIterator<Item = KindCounts>) -> Vec<KindCounts> {
        let mut kinds = BTreeMap::<String, KindCounts>::new();
        for of in counts {
            let sum = kinds.entry(of.kind.clone()).or_insert_with(|| KindCounts::new(&*of.kind));
            sum.waiting += of.waiting;
            sum.retrying += of.retrying;
            sum.running += of.running;
            sum.dead += of.dead;
            sum.lag = sum.lag.max(of.lag);
        }
        kinds.into_values().collect()
    }
}
