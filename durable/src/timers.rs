//! [`Timers`]: a store that was opened, or several, and the workers of this process; and how they are opened: [`OpenOptions`].

use std::fmt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use crate::asynchronous::AsyncTimers;
use crate::connections::{Connections, Limits, answer, send, threads_for, where_it_may_wait};
use crate::error::{Error, Result};
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::panics::caught;
use crate::sharded::{
    self, Place, Prepare, Prepared, ShardError, added, all, part_of, part_of_history,
};
use crate::sight;
use crate::store::{Connection, Existing, Purge, Purpose, Store};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When, is_trace};
use crate::worker::{Shared, WorkerBuilder};
use tickwheel::pool::{ScheduledFuture, ScheduledThreadPool};

/// How a store is opened: how many connections its calls may have, and how long they wait for one.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use std::time::Duration;
/// use tickwheel_durable::OpenOptions;
///
/// let options = OpenOptions::new().max_connections(20).acquire_timeout(Duration::from_secs(3));
/// let timers = options.open("sqlite::memory:")?;
/// # drop(timers);
/// # }
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a store is opened"]
pub struct OpenOptions {
    limits: Limits,
    searches_all: bool,
    trace_with: Option<Arc<TraceWith>>,
}

type TraceWith = dyn Fn() -> Option<String> + Send + Sync;

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenOptions { limits, searches_all, .. } = self;
        f.debug_struct("OpenOptions")
            .field("limits", limits)
            .field("searches_all", searches_all)
            .finish_non_exhaustive()
    }
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// The options of [`Timers::open`].
    pub fn new() -> OpenOptions {
        let timeout = Duration::from_secs(10);
        let limits = Limits { max_connections: 10, timeout };
        OpenOptions { limits, searches_all: false, trace_with: None }
    }

    /// Sets how many connections the calls of [`Timers`] and [`AsyncTimers`] may have at the same time. By default 10, which is
    /// enough for thousands of calls a second. Further calls wait. With 0, no store is opened ([`Error::Invalid`]).
    ///
    /// Workers have a few of their own: two each, one more while they write outcomes or starts, and one for each handler that is
    /// in a transaction. What is idle for ten seconds is closed.
    pub fn max_connections(mut self, connections: usize) -> OpenOptions {
        self.limits.max_connections = connections;
        self
    }

    /// Sets how long a call waits for a connection, if all are in use, or if the server has no room for another one. By default
    /// ten seconds, and at most a day. Then it fails with [`Error::TooManyClients`]. With zero, it does not wait. One that is a
    /// future, or is made inside of a runtime, waits for 0.1 s at least, which a thread may need to take it up. What opens the
    /// store, and [`WorkerBuilder::start`], wait as long for room on the server. Of several stores, one without room counts as
    /// away as soon as another one works.
    pub fn acquire_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.limits.timeout = timeout.min(LONGEST);
        self
    }

    /// Asks for the context of a trace for each timer that has none, when it is scheduled: on the thread, or in the task, that
    /// schedules it. Its runs are told it by [`Run::trace`](crate::Run::trace). The page has [an example](crate#traces).
    ///
    /// What no store can keep (more than 1000 bytes, or the character 0) is left out, and so is the trace if the function panics.
    /// Timers that are scheduled in SQL, or in a transaction of yours, have the trace that you give them.
    pub fn trace_with(
        mut self,
        trace: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> OpenOptions {
        self.trace_with = Some(Arc::new(trace));
        self
    }

    pub(crate) fn threads(&self) -> Result<ScheduledThreadPool> {
        if self.limits.max_connections == 0 {
            let problem = "`max_connections` is 0, so no call could be made: give 1 or more";
            return Err(Error::Invalid(problem.to_owned()));
        }
        threads_for(self.limits)
    }

    /// Opens a store by its address, as [`Timers::open`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub fn open(self, address: &str) -> Result<Timers> {
        self.opened(vec![store_at(address)?], Store::migrate)
    }

    /// Opens a store by its address, as [`Timers::open_unmigrated`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open_unmigrated`].
    pub fn open_unmigrated(self, address: &str) -> Result<Timers> {
        self.opened(vec![store_at(address)?], Store::check)
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`Timers::open`].
    pub fn with_store(self, store: impl Store) -> Result<Timers> {
        self.opened(vec![Box::new(store)], Store::migrate)
    }

    /// Opens a store that was built by hand, as [`Timers::with_unmigrated_store`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::open_unmigrated`].
    pub fn with_unmigrated_store(self, store: impl Store) -> Result<Timers> {
        self.opened(vec![Box::new(store)], Store::check)
    }

    /// Opens several stores by their addresses, as [`Timers::sharded`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::sharded`].
    #[cfg(feature = "postgres")]
    pub fn sharded<A: AsRef<str>>(self, addresses: impl IntoIterator<Item = A>) -> Result<Timers> {
        self.opened(stores_at(addresses)?, Store::migrate)
    }

    /// Opens several stores by their addresses, and creates and changes no tables, as [`Timers::open_unmigrated`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::sharded`], and [`Error::Unmigrated`] for each that lacks something.
    #[cfg(feature = "postgres")]
    pub fn sharded_unmigrated<A: AsRef<str>>(
        self,
        addresses: impl IntoIterator<Item = A>,
    ) -> Result<Timers> {
        self.opened(stores_at(addresses)?, Store::check)
    }

    /// Opens several stores that were built by hand, as [`Timers::sharded`] does.
    ///
    /// # Errors
    ///
    /// As [`Timers::sharded`].
    #[cfg(feature = "postgres")]
    pub fn with_stores(self, stores: Vec<Box<dyn Store>>) -> Result<Timers> {
        self.opened(stores, Store::migrate)
    }

    /// Makes calls by key on several stores ask the others too if the timer is not on its home, and schedule it where it is.
    ///
    /// For timers that a transaction of yours puts on a store of its choice, and when the list of stores has become longer. It costs
    /// a question to each store for each timer that is not at its home, also before it is scheduled. If one of the stores is
    /// away, such a call fails, because the timer may be there.
    #[cfg(feature = "postgres")]
    pub fn search_all(mut self) -> OpenOptions {
        self.searches_all = true;
        self
    }

    /// Makes no connection but to prepare the stores. One of several may be away, and is prepared later (HOME-5).
    fn opened(self, stores: Vec<Box<dyn Store>>, prepare: Prepare) -> Result<Timers> {
        let is_alone = stores.len() == 1;
        let opened = stores.into_iter().enumerate().map(|(number, store)| {
            let place = (!is_alone).then(|| Place { number, name: store.name() });
            let store = Box::new(Prepared::new(store, place.clone(), prepare));
            let connections = Arc::new(Connections::new(store, self.limits, self.threads()?));
            Ok(Arc::new(Opened { place, connections, workers: Mutex::default() }))
        });
        let all = opened.collect::<Result<_>>()?;
        let timers = Timers::of(all, self.searches_all, self.trace_with)?;
        some(timers.on_each_with_room(Store::migrate))?;
        Ok(timers)
    }
}

/// Returns what those have answered that can be reached. It is an error if none can be, or one has something else to say.
pub(crate) fn some<T>(answers: Vec<Result<T>>) -> Result<Vec<Option<T>>> {
    let is_away = |answer: &Result<T>| match answer {
        Err(Error::Shards(of)) => of.iter().all(|one| one.error.is_of_the_connection()),
        _ => false,
    };
    if answers.iter().all(is_away) {
        return all(answers).map(|answers| answers.into_iter().map(Some).collect());
    }
    let answers = answers.into_iter();
    all(answers.map(|answer| if is_away(&answer) { Ok(None) } else { answer.map(Some) }))
}

/// How long the others have when the first of several stores has been opened, or its worker can start.
const OTHERS: Duration = Duration::from_secs(1);

/// The most steps of a pace.
const MOST_STEPS: u128 = 10_000;

/// The longest wait for a connection: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A store of timers, or several, each with a part of them ([`sharded`](Timers::sharded)). A clone is a handle of the same one.
///
/// A timer with a kind or a key that no timer can have is not there, for the calls that name one and for filters: with the character 0, for
/// example. To schedule it is [`Error::Invalid`].
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Stores>,
}

struct Stores {
    /// At least one, in the order of their numbers.
    all: Vec<Arc<Opened>>,
    searches_all: bool,
    trace_with: Option<Arc<TraceWith>>,
    /// The threads for calls that are made on all.
    threads: ScheduledThreadPool,
}

/// A store that was opened.
pub(crate) struct Opened {
    /// `None`: it is alone.
    place: Option<Place>,
    connections: Arc<Connections>,
    workers: Mutex<Vec<Weak<Shared>>>,
}

impl Timers {
    fn of(
        all: Vec<Arc<Opened>>,
        searches_all: bool,
        trace_with: Option<Arc<TraceWith>>,
    ) -> Result<Timers> {
        let threads = match &all[..] {
            [] => return Err(Error::Address("there is no address".to_owned())),
            [one] => one.connections.threads().clone(),
            [one, ..] => threads_for(one.connections.limits())?,
        };
        Ok(Timers { shared: Arc::new(Stores { all, searches_all, trace_with, threads }) })
    }

    /// Opens a store, and creates its tables if they are not there: `sqlite:path`, `sqlite::memory:`,
    /// `postgres://user:password@host/database`, or through a socket `postgres://user@%2Frun%2Fpostgresql/database`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if it is no address, or of a database whose feature is off. [`Error::Unreachable`] if the
    /// database cannot be opened. [`Error::Schema`] if its tables are from a later version of this crate.
    pub fn open(address: &str) -> Result<Timers> {
        OpenOptions::new().open(address)
    }

    /// Opens a store that was built by hand, or one of your own.
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open).
    pub fn with_store(store: impl Store) -> Result<Timers> {
        OpenOptions::new().with_store(store)
    }

    /// Like [`open`](Timers::open), but creates and changes no tables. For a role that may not, or where a tool of yours runs
    /// the files of [`migrations`](crate#migrations).
    ///
    /// # Errors
    ///
    /// As [`open`](Timers::open), and [`Error::Unmigrated`], which tells what is missing.
    pub fn open_unmigrated(address: &str) -> Result<Timers> {
        OpenOptions::new().open_unmigrated(address)
    }

    /// Like [`open_unmigrated`](Timers::open_unmigrated), with a store that was built by hand.
    ///
    /// # Errors
    ///
    /// As [`open_unmigrated`](Timers::open_unmigrated).
    pub fn with_unmigrated_store(store: impl Store) -> Result<Timers> {
        OpenOptions::new().with_unmigrated_store(store)
    }

    /// Opens several databases, over which the timers are spread: each has the timers whose home it is, by a hash of kind and
    /// key. See [When one PostgreSQL is not enough](crate#when-one-postgresql-is-not-enough).
    ///
    /// All processes must give the same databases in the same order. The addresses may differ and change, because only the order
    /// and the number count.
    ///
    /// It succeeds if one of them can be reached, and returns a second after the first has answered at the latest. The others are used
    /// as soon as they can be reached, and until then calls for them fail, and the worker's [`on_error`](WorkerBuilder::on_error) is
    /// told. The same goes for [`start`](WorkerBuilder::start).
    ///
    /// That each database is there once is not checked. One that is there twice has its timers twice in lists.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tickwheel_durable::{NewTimer, Timers};
    ///
    /// let timers = Timers::sharded(["postgres://me@a.internal/timers", "postgres://me@b.internal/timers"])?;
    /// timers.schedule(&NewTimer::new("mail", "4711", Duration::from_secs(1800)))?; // on one of them
    /// timers.cancel("mail", "4711")?; // on the same
    /// # Ok::<(), tickwheel_durable::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Address`] as for [`open`](Timers::open), and [`Error::Shards`] if none can be reached, or if the tables of one do not
    /// fit. It names the databases. One that answers later says so in each of its calls.
    #[cfg(feature = "postgres")]
    pub fn sharded<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Result<Timers> {
        OpenOptions::new().sharded(addresses)
    }

    /// Returns each store by itself, in the order of their numbers, for calls that are to use this one alone.
    pub fn shards(&self) -> Vec<Timers> {
        let of = |one: &Arc<Opened>| {
            let threads = one.connections.threads().clone();
            let all = vec![Arc::clone(one)];
            let trace_with = self.shared.trace_with.clone();
            Timers { shared: Arc::new(Stores { all, searches_all: false, trace_with, threads }) }
        };
        self.shared.all.iter().map(of).collect()
    }

    /// Returns the number of the store that is the home of a timer, in the order of [`shards`](Timers::shards).
    pub fn home(&self, kind: &str, key: &str) -> usize {
        sharded::home(self.shared.all.len(), kind, key)
    }

    /// Returns the same calls as futures, for any runtime.
    pub fn asynchronous(&self) -> AsyncTimers {
        AsyncTimers::new(self.clone())
    }

    /// Schedules a timer. If its kind has one with this key, the new one takes its place. If that one runs, its run goes on,
    /// and its outcome is ignored. So the new one may start before that run has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the timer cannot be stored, and the errors of the database.
    pub fn schedule(&self, timer: &NewTimer) -> Result<Scheduled> {
        self.schedule_one(timer, Existing::Replace)?
            .ok_or_else(|| Error::refused("the timer was not put in"))
    }

    /// Schedules a timer unless its kind has one with this key, in whatever state. Returns `None` if there is one.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule).
    pub fn schedule_if_absent(&self, timer: &NewTimer) -> Result<Option<Scheduled>> {
        self.schedule_one(timer, Existing::Keep)
    }

    /// Keeps a series: puts it in if it is not there, replaces it if it is dead or has another rule, period, payload,
    /// number of attempts or time limit, and otherwise leaves it as it is, with a run that is in progress, waits, was missed, or is tried
    /// again. Returns `None` if it is left.
    ///
    /// A service calls it at each start for each series that its code has: see the table of the page `cron`. All its
    /// processes may do so at the same time. While some have an older table, the last to start says what the series is. A series
    /// that the code has no more goes on until somebody [cancels](Timers::cancel) it.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule).
    pub fn keep_series(&self, series: &NewTimer) -> Result<Option<Scheduled>> {
        let store = self.store_of(&series.kind, &series.key)?;
        if store.get(&series.kind, &series.key)?.is_some_and(|timer| series.is_as(&timer)) {
            return Ok(None); // a run in progress may hold it
        }
        let new = series.clone();
        let kept = store.with(move |table| table.keep_series(&new))?;
        kept.iter().for_each(|kept| store.expect(&series.kind, kept.due));
        Ok(kept)
    }

    fn schedule_one(&self, timer: &NewTimer, existing: Existing) -> Result<Option<Scheduled>> {
        let store = self.store_of(&timer.kind, &timer.key)?;
        let scheduled = store.schedule(vec![self.traced(timer)], existing)?;
        Ok(scheduled.into_iter().flatten().next())
    }

    /// Schedules many timers in one transaction, which costs a fraction of one call for each. With several stores it is one
    /// transaction on each.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Timers::schedule). Then none of them is scheduled. With several stores, those of the stores are not scheduled
    /// that [`Error::Shards`] names, and the others are. Which these are, [`home`](Timers::home) tells. With
    /// [`search_all`](OpenOptions::search_all), those are not scheduled either that such a store had to be asked for. To schedule all
    /// again replaces them.
    pub fn schedule_all(&self, timers: &[NewTimer]) -> Result<Vec<Scheduled>> {
        let traced: Vec<_> = timers.iter().map(|timer| self.traced(timer)).collect();
        if let [one] = &self.shared.all[..] {
            return Ok(one.schedule(traced, Existing::Replace)?.into_iter().flatten().collect());
        }
        timers.iter().try_for_each(NewTimer::check)?;
        let mut parts: Vec<(Vec<usize>, Vec<NewTimer>)> =
            vec![Default::default(); self.shared.all.len()];
        let mut failed = Vec::new();
        for (index, timer) in traced.into_iter().enumerate() {
            let Some(store) = self.search(&timer.kind, &timer.key, &mut failed)? else { continue };
            let part = &mut parts[store.number()];
            part.0.push(index);
            part.1.push(timer);
        }
        let (places, parts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let parts = Arc::new(parts);
        // A store that has no part is not asked, because it may be away.
        let stores = self.shared.all.iter().filter(|store| !parts[store.number()].is_empty());
        let scheduled = on_each_of(&stores.collect::<Vec<_>>(), {
            let parts = Arc::clone(&parts);
            move |store| store.schedule(parts[store.number()].clone(), Existing::Replace)
        });
        let scheduled = all(scheduled.into_iter().chain([Err(Error::Shards(failed))]))?;
        let scheduled = scheduled.into_iter().flatten();
        let mut in_order: Vec<_> = places.into_iter().flatten().zip(scheduled).collect();
        in_order.sort_unstable_by_key(|(place, _)| *place);
        Ok(in_order.into_iter().filter_map(|(_, scheduled)| scheduled).collect())
    }

    /// Moves a timer that waits to another time. Returns false if it is not there, runs, or is dead.
    ///
    /// A timer that waits for another attempt begins anew: all its attempts are before it again. A time that has passed becomes the
    /// [`due`](Timer::due) of the timer, which is due now. A series with a rule has the time of the call instead, because its rule may
    /// leave out a run that is late.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn reset(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        let (store, when) = (self.store_of(kind, key)?, when.into());
        let due =
            store.with_name(kind, key, move |table, kind, key| table.reset(kind, key, when))?;
        due.into_iter().for_each(|due| store.expect(kind, due));
        Ok(due.is_some())
    }

    /// Removes a timer. Returns the state that it had, or `None` if it is not there.
    ///
    /// One that was [`Waiting`](State::Waiting) never starts. If it was [`Running`](State::Running), a worker has it: the
    /// handler runs, or is about to, and nothing follows it. The handler may learn of it within a second:
    /// [`Run::cancelled`](crate::Run::cancelled).
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn cancel(&self, kind: &str, key: &str) -> Result<Option<State>> {
        let store = self.store_of(kind, key)?;
        let state = store.with_name(kind, key, |table, kind, key| table.cancel(kind, key))?;
        if state == Some(State::Running) {
            store.each_worker(Shared::has_cancelled);
        }
        Ok(state)
    }

    /// Returns a timer, or `None` if it is not there, because it is done, was cancelled, or never was.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.store_of(kind, key)?.get(kind, key)
    }

    /// Lists timers by kind, then by the time at which they wake, with dead ones last.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        let part = filter.clone();
        let mut lists = all(self.on_each(move |store| store.list(&part)))?;
        Ok(if lists.len() == 1 { lists.swap_remove(0) } else { filter.merged(lists) })
    }

    /// Makes a dead timer wait again, with all its attempts before it. Returns false if it is not there, or not dead.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn requeue(&self, kind: &str, key: &str, when: impl Into<When>) -> Result<bool> {
        Ok(self.store_of(kind, key)?.requeue(kind, Some(key), when.into())? > 0)
    }

    /// Makes all dead timers of a kind wait again. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The errors of the database. With several stores, those that [`Error::Shards`] does not name have done it.
    pub fn requeue_all(&self, kind: &str, when: impl Into<When>) -> Result<u64> {
        let (kind, when) = (kind.to_owned(), when.into());
        let counts = self.on_each(move |store| store.requeue(&kind, None, when));
        Ok(all(counts)?.into_iter().sum())
    }

    /// Removes the timers that [`list`](Timers::list) would return for this filter, no more than its [`limit`](Filter::limit), as
    /// [`cancel`](Timers::cancel) removes one. Returns how many there were. By default the limit is a thousand: call it until it
    /// returns less than that.
    ///
    /// # Errors
    ///
    /// The errors of the database. With several stores, those that [`Error::Shards`] does not name have done it.
    pub fn cancel_all(&self, filter: &Filter) -> Result<u64> {
        // Of each of several stores, as many as it has in the list of all.
        let listed = if self.shared.all.len() > 1 { Some(self.list(filter)?) } else { None };
        let of_store = |number| move |timer: &&Timer| timer.shard == number;
        let limits: Option<Vec<_>> = listed.map(|listed| {
            let numbers = 0..self.shared.all.len();
            numbers.map(|number| listed.iter().filter(of_store(number)).count() as u32).collect()
        });
        let filter = filter.clone();
        let counts = self.on_each(move |store| {
            let mut part = part_of(&filter, store.number());
            part.limit = limits.as_ref().map_or(part.limit, |limits| limits[store.number()]);
            store.with(move |table| table.cancel_all(&part))
        });
        Ok(all(counts)?.into_iter().sum())
    }

    /// Gives a timer that waits or is dead another payload. Returns false if it is not there, or runs: a run goes on with the payload
    /// with which it began.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn set_payload(&self, kind: &str, key: &str, payload: impl Into<Vec<u8>>) -> Result<bool> {
        let (store, payload) = (self.store_of(kind, key)?, payload.into());
        store.with_name(kind, key, move |table, kind, key| table.set_payload(kind, key, &payload))
    }

    /// Lists attempts of kinds with a [history](WorkerBuilder::history), those first that began last. With a kind and a key these are all
    /// that became of one timer: of a dead one, all its errors.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use std::sync::mpsc::channel;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel_durable::{Failure, HistoryFilter, NewTimer, Outcome, Retry, Timers};
    ///
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let (tell, told) = channel();
    /// let worker = timers
    ///     .worker()
    ///     .handle("mail", |run| Err(Failure::new(format!("no answer to attempt {}", run.attempt()))))
    ///     .retry(Retry::attempts(2).gaps(Duration::from_millis(5), 1.0, Duration::from_millis(5)))
    ///     .history(Duration::from_secs(7 * 86_400)) // a week
    ///     .on_dead(move |_, _| _ = tell.send(()))
    ///     .start(Scheduler::global())?;
    /// timers.schedule(&NewTimer::new("mail", "4711", Duration::ZERO))?;
    /// told.recv()?;
    /// let attempts = timers.history(&HistoryFilter::new().kind("mail").key("4711"))?;
    /// let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    /// assert_eq!(outcomes, [Outcome::Dead, Outcome::Failed]);
    /// assert_eq!(attempts[1].error.as_deref(), Some("no answer to attempt 1"));
    /// # drop(worker);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn history(&self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        let whole = filter.clone();
        let lists = self.on_each(move |store| {
            let (part, number) = (part_of_history(&whole, store.number()), store.number());
            let mut attempts = store.with(move |connection| connection.history(&part))?;
            attempts.iter_mut().for_each(|attempt| attempt.shard = number);
            Ok(attempts)
        });
        Ok(filter.merged(all(lists)?))
    }

    /// Counts the attempts of kinds with a [history](WorkerBuilder::history) that began within `span` before now, by kind and step of
    /// time, in this order. A step in which none of a kind began is left out. Steps begin at whole multiples of `step`
    /// since 1970, in milliseconds.
    ///
    /// The database counts, and reads the attempts of the span for that: a million in 1.4 s, in PostgreSQL on two cores that were busy.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `step` is less than a millisecond, or if there are more than 10,000 of them. And the errors of the
    /// database.
    pub fn pace(&self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        let step = Duration::from_millis(u64::try_from(step.as_millis()).unwrap_or(u64::MAX));
        if step.is_zero() || span.as_millis() / step.as_millis() > MOST_STEPS {
            let problem = "a pace has steps of a millisecond or more, and at most 10,000 of them";
            return Err(Error::Invalid(problem.to_owned()));
        }
        let paces =
            self.on_each(move |store| store.with(move |connection| connection.pace(span, step)));
        Ok(added(all(paces)?))
    }

    /// Removes the attempts that began before a time, of all kinds, from the history. Returns how many there were. It removes a thousand in
    /// a transaction, so that it is in nobody's way, however many there are.
    ///
    /// # Errors
    ///
    /// The errors of the database. Then a part of them may be removed.
    pub fn purge_history(&self, before: SystemTime) -> Result<u64> {
        let counts = self.on_each(move |store| {
            let (mut count, mut purge) = (0, Purge::new(None, before));
            loop {
                let part = purge.clone();
                let purged = store.with(move |connection| connection.purge_history(&part))?;
                count += purged.count;
                if purged.last.is_none() {
                    return Ok(count);
                }
                purge.from = purged.last;
            }
        });
        Ok(all(counts)?.into_iter().sum())
    }

    /// Returns a timer with the trace of whoever schedules it, if it has none.
    pub(crate) fn traced(&self, timer: &NewTimer) -> NewTimer {
        let mut traced = timer.clone();
        if let (None, Some(trace_with)) = (&traced.trace, &self.shared.trace_with) {
            let trace = caught(|| Ok(trace_with())).ok().flatten();
            traced.trace = trace.filter(|trace| is_trace(trace));
        }
        traced
    }

    /// Counts the timers of each kind, by state, and tells how far behind their workers are. With the feature `metrics`
    /// it also sets the gauges `tickwheel_durable_timers` and `tickwheel_durable_lag_seconds`.
    ///
    /// It reads the whole table, a third of a second for a million timers, so ask once a minute rather than once a second. Whether
    /// any are dead is told by [`list`](Timers::list) with [`Filter::state`], which reads an index.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn counts(&self) -> Result<Vec<KindCounts>> {
        let counts = all(self.on_each(|store| store.with(|connection| connection.counts())))?;
        let counts = KindCounts::summed(counts.into_iter().flatten());
        sight::counted(&counts);
        Ok(counts)
    }

    /// Returns the database's time, by which all timers go. Of several stores it is the earliest, so a timer that is due by this time
    /// is due wherever it is.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    pub fn now(&self) -> Result<SystemTime> {
        let times = all(self.on_each(|store| store.with(|connection| connection.now())))?;
        times.into_iter().min().ok_or_else(|| Error::Invalid("there is no store".to_owned()))
    }

    /// Returns a builder of a worker, which runs timers when they are due.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    /// Makes the workers of this process that have this kind look for its timers now. Call it after a transaction of your
    /// own in SQLite. PostgreSQL tells workers itself.
    pub fn tell(&self, kind: &str) {
        self.shared.all.iter().for_each(|store| store.tell(kind));
    }

    fn store_of(&self, kind: &str, key: &str) -> Result<&Opened> {
        let mut failed = Vec::new();
        self.search(kind, key, &mut failed)?.ok_or(Error::Shards(failed))
    }

    /// Returns the store that has a timer, or its home (HOME-2). `None`: a store that has failed would have to be asked. It is asked
    /// once for many timers, because each time may take as long as an attempt to connect.
    fn search(
        &self,
        kind: &str,
        key: &str,
        failed: &mut Vec<ShardError>,
    ) -> Result<Option<&Opened>> {
        let home = &self.shared.all[self.home(kind, key)];
        if self.shared.searches_all {
            let others = self.shared.all.iter().filter(|other| !Arc::ptr_eq(other, home));
            for store in [home].into_iter().chain(others) {
                if failed.iter().any(|one| one.shard == store.number()) {
                    return Ok(None);
                }
                match store.get(kind, key) {
                    Ok(Some(_)) => return Ok(Some(store)),
                    Ok(None) => {}
                    Err(Error::Shards(of)) => {
                        failed.extend(of);
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Some(home))
    }

    pub(crate) fn stores(&self) -> &[Arc<Opened>] {
        &self.shared.all
    }

    /// Returns the threads for a call by this kind and key, or for one over all stores. A search begins at the home too, so one
    /// that is answered there waits for no other store.
    pub(crate) fn threads_of(&self, name: Option<(&str, &str)>) -> (&ScheduledThreadPool, Limits) {
        let stores = &*self.shared;
        let home = &stores.all[name.map_or(0, |(kind, key)| self.home(kind, key))].connections;
        (if name.is_some() { home.threads() } else { &stores.threads }, home.limits())
    }

    /// Does what opens connections beside those of calls on each store, and waits for room on its server. Of several stores, those
    /// that have not answered soon after the first one are away (HOME-6).
    pub(crate) fn on_each_with_room<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Store) -> Result<T> + Clone + Send + 'static,
    ) -> Vec<Result<T>> {
        let stores = &self.shared.all;
        if let [one] = &stores[..] {
            let (own, threads) = (Arc::clone(one), one.connections.threads());
            return vec![where_it_may_wait(threads, move || own.connections.with_room(work))];
        }
        let (tell, told) = channel();
        let send_to = |store: &Arc<Opened>| {
            let (work, own, tell) = (work.clone(), Arc::clone(store), tell.clone());
            send(store.connections.threads(), move || {
                let done = own.connections.with_room(work).map_err(|error| own.named(error));
                _ = tell.send((own.number(), done)); // nobody waits for one that is late
                Ok(())
            })
        };
        let sent: Vec<_> = stores.iter().map(send_to).collect();
        drop(tell);
        let mut answers: Vec<Option<Result<T>>> = stores.iter().map(|_| None).collect();
        let mut until = None;
        while answers.iter().any(Option::is_none) {
            let left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
            let next = match left {
                None => told.recv().ok(),
                Some(left) => told.recv_timeout(left).ok(),
            };
            let Some((number, answer)) = next else { break };
            if answer.is_ok() && until.is_none() {
                until = Some(Instant::now() + OTHERS);
            }
            answers[number] = Some(answer);
        }
        let missing = |store: &Arc<Opened>, sent: Result<ScheduledFuture<Result<()>>>| {
            // It has ended without a word if it has panicked.
            if let Ok(joined) = sent?.join_timeout(Duration::ZERO) {
                answer(joined)?;
            }
            Err(store.named(Error::unreachable("it has not answered yet")))
        };
        let answers = answers.into_iter().zip(sent).zip(stores);
        answers
            .map(|((answer, sent), store)| answer.unwrap_or_else(|| missing(store, sent)))
            .collect()
    }

    /// Makes a call on each store (HOME-3).
    fn on_each<T: Send + 'static>(
        &self,
        call: impl Fn(Arc<Opened>) -> Result<T> + Clone + Send + 'static,
    ) -> Vec<Result<T>> {
        on_each_of(&self.shared.all.iter().collect::<Vec<_>>(), call)
    }
}

/// Makes a call on some stores. If they are several, each is on a thread of its store, at the same time.
fn on_each_of<T: Send + 'static>(
    stores: &[&Arc<Opened>],
    call: impl Fn(Arc<Opened>) -> Result<T> + Clone + Send + 'static,
) -> Vec<Result<T>> {
    if let [one] = stores {
        return vec![call(Arc::clone(one))];
    }
    let send_to = |store: &&Arc<Opened>| {
        let (call, own) = (call.clone(), Arc::clone(store));
        send(store.connections.threads(), move || call(own))
    };
    let sent: Vec<_> = stores.iter().map(send_to).collect();
    sent.into_iter().map(|sent| answer(sent?.join())).collect()
}

impl Opened {
    fn schedule(
        &self,
        timers: Vec<NewTimer>,
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        let (timers, scheduled) = self.with(move |table| {
            let scheduled = table.schedule(&timers, existing)?;
            Ok((timers, scheduled))
        })?;
        let mut first: Vec<(&str, SystemTime)> = Vec::new();
        for (timer, scheduled) in timers.iter().zip(&scheduled) {
            let Some(Scheduled { due, .. }) = scheduled else { continue };
            match first.iter_mut().find(|(kind, _)| *kind == timer.kind) {
                Some((_, earliest)) => *earliest = (*earliest).min(*due),
                None => first.push((&timer.kind, *due)),
            }
        }
        first.into_iter().for_each(|(kind, due)| self.expect(kind, due));
        Ok(scheduled)
    }

    fn get(&self, kind: &str, key: &str) -> Result<Option<Timer>> {
        let found = self.with_name(kind, key, |table, kind, key| table.get(kind, key))?;
        Ok(found.map(|timer| Timer { shard: self.number(), ..timer }))
    }

    fn list(&self, filter: &Filter) -> Result<Vec<Timer>> {
        let part = part_of(filter, self.number());
        let mut timers = self.with(move |table| table.list(&part))?;
        timers.iter_mut().for_each(|timer| timer.shard = self.number());
        Ok(timers)
    }

    fn requeue(&self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        let (of, key) = (kind.to_owned(), key.map(str::to_owned));
        let count = self.with(move |table| table.requeue(&of, key.as_deref(), when))?;
        self.tell(kind);
        Ok(count)
    }

    fn tell(&self, kind: &str) {
        self.each_worker(|worker| {
            if worker.kind_named(kind).is_some() {
                worker.look_now();
            }
        });
    }

    fn expect(&self, kind: &str, due: SystemTime) {
        self.each_worker(|worker| {
            worker.kind_named(kind).into_iter().for_each(|kind| worker.hear_of(kind, due));
        });
    }

    pub(crate) fn each_worker(&self, f: impl Fn(&Shared)) {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).for_each(|worker| f(&worker));
    }

    pub(crate) fn add(&self, worker: &Arc<Shared>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.connections.store()
    }

    pub(crate) fn threads(&self) -> &ScheduledThreadPool {
        self.connections.threads()
    }

    pub(crate) fn number(&self) -> usize {
        self.place.as_ref().map_or(0, |place| place.number)
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Names this store in an error of it, if it is not alone.
    pub(crate) fn named(&self, error: Error) -> Error {
        match &self.place {
            Some(place) => place.named(error),
            None => error,
        }
    }

    /// Returns this connection if it is still open, and otherwise a new one.
    pub(crate) fn connected(
        &self,
        last: Option<Box<dyn Connection>>,
    ) -> Result<Box<dyn Connection>> {
        let open = last.and_then(|mut last| last.is_open().then_some(last));
        open.map_or_else(|| self.store().connect(), Ok)
    }

    /// Lends a connection for a call.
    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.connections.call(work).map_err(|error| self.named(error))
    }

    /// Lends a connection for a call that names a timer.
    fn with_name<T: Send + 'static>(
        &self,
        kind: &str,
        key: &str,
        work: impl FnOnce(&mut dyn Connection, &str, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.with(move |connection| work(connection, &kind, &key))
    }

    /// Lends a connection for a part of a worker, or for one of its handlers.
    pub(crate) fn lend<T>(
        &self,
        purpose: Purpose,
        work: impl FnOnce(&mut dyn Connection) -> Result<T>,
    ) -> Result<T> {
        self.connections.lend(purpose, work)
    }
}

#[cfg(feature = "postgres")]
fn stores_at<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Result<Vec<Box<dyn Store>>> {
    addresses.into_iter().map(|address| store_at(address.as_ref())).collect()
}

/// Returns the store of an address.
fn store_at(address: &str) -> Result<Box<dyn Store>> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = address.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Box::new(crate::sqlite::Sqlite::new(path)));
    }
    #[cfg(feature = "postgres")]
    if address.starts_with("postgres:") || address.starts_with("postgresql:") {
        return Ok(Box::new(crate::postgres::Postgres::new(address)?));
    }
    _ = address; // any part of it may be one of a password, so none is repeated
    let problem = "the address names no store, or the feature of its database is off: `sqlite:path` or `postgres://host/database`";
    Err(Error::Address(problem.to_owned()))
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}
