//! What a database has to offer: the traits [`Store`], [`Connection`], [`Table`] and [`Listener`].
//!
//! The [workers](crate::Worker) are written against these traits alone. `sqlite` and `postgres` implement them,
//! and a crate of your own may do the same for another database. For that, nothing here names a client: the type of
//! transaction is the store's ([`TransactionType`]), and what is passed in and out may get new fields, so it has constructors.
//! What an implementation must keep:
//!
//! - STORE-1 All times are those of one clock, the database's. A timer is given out by `claim` only if its `wake` has
//!   come by that clock, read when the claim was made or before.
//! - STORE-2 `claim` gives each timer that it gives out a fencing number higher than all before, and makes it `Running`
//!   until its lease ends. Two claims at the same time never give out the same timer, and neither waits for the other. A database
//!   that may lose its last commits, such as one that fails over to a replica, gives no number of a lost claim to another one.
//! - STORE-3 `finish`, `extend` and `transact` change a timer only if it is `Running` and has the fencing number that they
//!   were given. So they may be repeated, and a worker that lost its lease changes nothing.
//! - A timer that is replaced or cancelled is not `Running` any more, in the same step. Only timers that are not
//!   running are reset or requeued.
//! - What returned `Ok` survives a crash of the process and of the database.
//! - STORE-6 A timer's `attempts` counts starts of its handler, but for those that were snoozed. `claim` and `extend` leave it as it is.
//!   `start` and `finish` set it to the number that they are given.
//! - STORE-7 A timer whose lease has ended without an outcome is suspected: its handler may have killed the process. It is
//!   claimed by itself, and never together with others.
//! - STORE-8 A floor is a hint. A claim or a look may leave out what stands at or before it, and a store to which that is worth
//!   nothing need not.
//! - STORE-9 What a claim with [`Limits`] takes, it also writes down as held: the fencing number, the kind and the group, until the
//!   lease ends. A hold lasts until that time, or until `let_go`, whatever becomes of the timer. Claims of a kind with limits come one
//!   after the other, and each counts all holds of the kind that were committed before. So no two claims see the same room. A run of
//!   which the hold is gone is no more the caller's for `transact` or a completion, and until the transaction of these has ended the
//!   hold stays, also beyond its time.
//! - STORE-10 An outcome and its row in the history are committed together. `finish` writes [`Finish::record`] of each run that it
//!   changes, and of no other. `transact` writes [`Work::record`] when the handler has returned. A completion writes that of its
//!   own.

use std::any::{Any, TypeId};
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::handler::Work;
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::timer::{Filter, KindCounts, NewTimer, Scheduled, State, Timer, When};

/// The version of the tables that this crate makes.
pub const SCHEMA_VERSION: i32 = 7;

/// A claim takes no more bytes of payloads than this, or a single timer with more.
pub const MOST_BYTES: usize = 16 << 20;

/// A place in the order in which the timers of a kind are claimed: a `wake`, and the number of a timer. What stands at or
/// before it need not be seen (STORE-8).
pub type Floor = (SystemTime, i64);

/// What to do if the kind has a timer with the same key already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Existing {
    /// The new timer takes its place. If a run of the old one is in progress, its outcome is ignored.
    Replace,
    /// The old timer stays as it is.
    Keep,
}

/// What the users of timers do with them, in a transaction of theirs or without.
///
/// [`Timers`](crate::Timers) has the same methods, each of which is a transaction of its own.
pub trait Table {
    /// Puts timers in. Returns `None` for each that is there already and is kept. All are put in, or none.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if a timer cannot be stored, and the errors of the database.
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>>;

    /// Moves a timer that waits. Returns its new due time, or `None` if it is not there, runs, or is dead.
    ///
    /// A timer that waits for another attempt begins anew: all its attempts are before it again.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>>;

    /// Removes a timer. Returns the state that it had, or `None` if it is not there.
    ///
    /// If it was running, the run in progress goes on, and nothing follows it.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>>;

    /// Returns a timer, or `None` if it is not there.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>>;

    /// Lists timers by kind, then by [`wake`](Timer::wake) with dead ones last, then by number.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>>;

    /// Makes dead timers wait again, with all their attempts before them: the one of this key, or all of this kind.
    /// Returns how many there were.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64>;

    /// Gives a timer that waits or is dead another payload. Returns false if it is not there, or runs.
    ///
    /// # Errors
    ///
    /// The errors of the database, and [`Error::Invalid`](crate::Error::Invalid) of a store that does not do this.
    fn set_payload(&mut self, kind: &str, key: &str, payload: &[u8]) -> Result<bool> {
        let (_, _, _) = (kind, key, payload);
        Err(crate::Error::Invalid("this store changes no payloads".to_owned()))
    }

    /// Removes the timers that [`list`](Table::list) would return. Returns how many there were.
    ///
    /// # Errors
    ///
    /// As [`set_payload`](Table::set_payload).
    fn cancel_all(&mut self, filter: &Filter) -> Result<u64> {
        _ = filter;
        Err(crate::Error::Invalid("this store cancels one timer at a time".to_owned()))
    }
}

/// A database that keeps timers.
pub trait Store: Send + Sync + 'static {
    /// Returns where it is, without a password, for the errors of one of several stores.
    fn name(&self) -> String {
        "a store without a name".to_owned()
    }

    /// Opens a connection, for one thread at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if the database cannot be reached.
    fn connect(&self) -> Result<Box<dyn Connection>>;

    /// Opens a connection for a purpose, or borrows it from somewhere else. By default one is as good as another.
    ///
    /// # Errors
    ///
    /// As [`connect`](Store::connect).
    fn connect_for(&self, purpose: Purpose) -> Result<Box<dyn Connection>> {
        _ = purpose;
        self.connect()
    }

    /// Creates the tables, or brings those of an older version up to date. Other processes may do the same at the same
    /// time.
    ///
    /// # Errors
    ///
    /// [`Error::Schema`](crate::Error::Schema) if the tables are of a version that is too new.
    fn migrate(&self) -> Result<()>;

    /// Returns an error if [`migrate`](Store::migrate) would have something to do. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unmigrated`](crate::Error::Unmigrated) if something is missing, and otherwise as `migrate`.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Opens a connection that is told of new timers. `None`: this database has no such thing.
    ///
    /// # Errors
    ///
    /// As [`connect`](Store::connect).
    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        Ok(None)
    }

    /// Returns a statement that does what [`finish`](Connection::finish) does with a success, for a transaction of the user's, and
    /// fails if it has nothing to change. `None`: this database has no such thing.
    fn completion(&self, finish: &Finish) -> Option<String> {
        _ = finish;
        None
    }

    /// Returns true if claims heed [`Claim::limits`]. Otherwise a worker that has any does not start.
    fn has_limits(&self) -> bool {
        false
    }

    /// Returns which transactions [`Connection::transact`] gives to a handler.
    fn transactions(&self) -> Transactions {
        Transactions::none()
    }
}

/// A type of transaction that handlers may do their work in. A store gives such a transaction to [`Work::within`], and
/// [`WorkerBuilder::handle_in`](crate::WorkerBuilder::handle_in) takes handlers for it.
///
/// The types of this crate's stores are `rusqlite::Transaction<'static>` and `postgres::Transaction<'static>`. A store of your own
/// names its own type, and neither it nor its users need anything of this crate for that:
///
/// ```
/// use tickwheel_durable::{TransactionType, WorkerBuilder};
///
/// /// A transaction of the database `Ledger`, as its client has it.
/// pub struct LedgerTransaction<'a> {
///     lines: &'a mut Vec<String>,
/// }
///
/// impl TransactionType for LedgerTransaction<'static> {
///     type Transaction<'a> = LedgerTransaction<'a>;
/// }
///
/// fn with_handler(worker: WorkerBuilder) -> WorkerBuilder {
///     worker.handle_in::<LedgerTransaction<'static>>("pay", |run, transaction| {
///         transaction.lines.push(run.key().to_owned());
///         Ok(())
///     })
/// }
/// ```
pub trait TransactionType: 'static {
    /// What a handler gets for as long as the transaction lasts.
    type Transaction<'a>: ?Sized;
}

/// The types of transaction that handlers may do their work in. None: each run is at-least-once.
#[derive(Clone, Debug, Default)]
pub struct Transactions {
    types: Vec<TypeId>,
}

impl Transactions {
    /// Without any.
    pub fn none() -> Transactions {
        Transactions::default()
    }

    /// With this type alone.
    pub fn of<T: TransactionType + ?Sized>() -> Transactions {
        Transactions::none().and::<T>()
    }

    /// With this type too.
    #[must_use]
    pub fn and<T: TransactionType + ?Sized>(mut self) -> Transactions {
        self.types.push(TypeId::of::<T>());
        self
    }

    /// With the type of a handler's connection.
    #[cfg(feature = "postgres")]
    pub(crate) fn with(mut self, purpose: Purpose) -> Transactions {
        if let Purpose::Handler(of) = purpose {
            self.types.push(of);
        }
        self
    }

    pub(crate) fn have(&self, of: TypeId) -> bool {
        self.types.contains(&of)
    }
}

/// The use for which a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// A call of [`Timers`](crate::Timers).
    Call,
    /// A part of a worker.
    Worker,
    /// A handler in this type of transaction ([`TransactionType`]). It may change the settings of the connection, so nobody else
    /// gets that one.
    Handler(TypeId),
}

impl Purpose {
    /// A handler in this type of transaction.
    pub fn of<T: TransactionType + ?Sized>() -> Purpose {
        Purpose::Handler(TypeId::of::<T>())
    }
}

/// One connection to a store, as workers use it.
pub trait Connection: Table + Send {
    /// Returns false if the connection cannot be used any more. It is asked before each use.
    fn is_open(&mut self) -> bool {
        true
    }

    /// Returns true if somebody else owns the connection, such as a pool of the user's. Then it is given back after each use.
    fn is_lent(&self) -> bool {
        false
    }

    /// Makes the listeners of all processes look at what there is. A worker that stops says so, because it no longer waits
    /// for what it was waiting for.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn announce(&mut self) -> Result<()> {
        Ok(())
    }

    /// Puts a series in, or replaces it, unless it is there and the same: then `None`. For
    /// [`Timers::keep_series`](crate::Timers::keep_series).
    ///
    /// This looks first, and then puts it in. A store does better to do it in one transaction, as those of this crate do: otherwise two
    /// processes may replace it one after the other, and so end a run.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Table::get) and [`schedule`](Table::schedule).
    fn keep_series(&mut self, series: &NewTimer) -> Result<Option<Scheduled>> {
        keep_series(self, series)
    }

    /// Writes down that a worker lives, for `span` from now, and returns the others that live, for each of these kinds: the
    /// position of the kind in the call, and the number of a worker that has it. With that, each timer is claimed by one of them
    /// when it is due. If the list has changed since somebody has read it, the listeners of all processes are made to look, as by
    /// [`announce`](Connection::announce). `None`: this database has no such list, and each worker claims whatever is due.
    ///
    /// A list that is out of date costs claims or milliseconds, and never a timer. So an entry may be lost, or outlast its worker.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn attend(
        &mut self,
        worker: i64,
        name: &str,
        kinds: &[&str],
        span: Duration,
    ) -> Result<Option<Vec<(usize, i64)>>> {
        let (_, _, _, _) = (worker, name, kinds, span);
        Ok(None)
    }

    /// Takes a worker off the list of [`attend`](Connection::attend).
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn leave(&mut self, worker: i64) -> Result<()> {
        _ = worker;
        Ok(())
    }

    /// Tells the listeners of all processes of [`News::more`]: until this time more timers of a kind wake than they know of, or
    /// than this worker can take.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn tell_of_more(&mut self, kind: &str, until: SystemTime) -> Result<()> {
        let (_, _) = (kind, until);
        Ok(())
    }

    /// Tells the commits of others that workers of this kind look by themselves for so long, so that nothing need be told
    /// ([`Notices::Debounced`]).
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn stay_awake(&mut self, kind: &str, span: Duration) -> Result<()> {
        let (_, _) = (kind, span);
        Ok(())
    }

    /// Returns true if another connection may have changed something since the last call of this method. It costs less
    /// than a look.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn has_changed(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Returns the database's time.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn now(&mut self) -> Result<SystemTime>;

    /// Returns when timers of these kinds wake, the earliest `limit` of each kind, no later than `horizon` from now.
    ///
    /// # Errors
    ///
    /// [`Error::Schema`](crate::Error::Schema) if another process has changed the tables to a version that is too new, and
    /// the errors of the database.
    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look>;

    /// Does what [`look`](Connection::look) does, and may leave out what stands at or before the floor of its kind (STORE-8).
    /// By default it leaves nothing out.
    ///
    /// # Errors
    ///
    /// As [`look`](Connection::look).
    fn look_above(
        &mut self,
        kinds: &[(&str, Option<Floor>)],
        horizon: Duration,
        limit: u32,
    ) -> Result<Look> {
        let kinds: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        self.look(&kinds, horizon, limit)
    }

    /// Takes timers of one kind whose time has come, the earliest first (STORE-1, STORE-2, STORE-6). The first that is
    /// suspected is taken only if no timer is before it, and then alone (STORE-7).
    ///
    /// # Errors
    ///
    /// [`Error::Schema`](crate::Error::Schema) as for [`look`](Connection::look), and the errors of the database. Then no
    /// timer is taken.
    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed>;

    /// Writes down that the handler of a run is about to be called, for the `attempts`-th time (STORE-3, STORE-6). Returns
    /// false if the run is not the caller's any more. It should not wait for a timer that another transaction holds.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`](crate::Error::Busy) if another transaction holds the timer, and the errors of the database.
    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool>;

    /// Writes down the starts of several runs, as [`start`](Connection::start) does, each with how often its handler was called.
    /// A run that is neither `changed` nor `busy` is not the caller's any more. By default each is written by itself.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn start_all(&mut self, starts: &[(RunId, u32)]) -> Result<Changed> {
        let mut started = Changed::default();
        for (run, attempts) in starts {
            match self.start(*run, *attempts) {
                Ok(true) => started.changed.push(run.fence),
                Ok(false) => {}
                Err(crate::Error::Busy) => started.busy.push(run.fence),
                Err(error) => return Err(error),
            }
        }
        Ok(started)
    }

    /// Makes leases last `lease` from now (STORE-3). It should not wait for timers that other transactions hold, because the
    /// leases of the others would end in the meantime.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed>;

    /// Returns the fencing numbers of those of these runs whose timers are running with them, as far as is committed. It changes
    /// nothing, and waits for nobody. By default it returns all, and a run whose timer is gone learns of it when its lease is extended.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn running(&mut self, runs: &[RunId]) -> Result<Vec<i64>> {
        Ok(runs.iter().map(|run| run.fence).collect())
    }

    /// Makes holds last `lease` from now (STORE-9). Returns the fencing numbers of those that there still are.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn hold(&mut self, fences: &[i64], lease: Duration) -> Result<Vec<i64>> {
        _ = lease;
        Ok(fences.to_vec())
    }

    /// Removes holds (STORE-9). It need not survive a crash of the database, because a hold ends by itself.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn let_go(&mut self, fences: &[i64]) -> Result<()> {
        _ = fences;
        Ok(())
    }

    /// Writes what became of runs (STORE-3). It should not wait for timers that other transactions hold.
    ///
    /// # Errors
    ///
    /// The errors of the database. Nothing is committed then, unless the connection was lost. If some are committed, and the database
    /// refuses the others, it returns those as busy. They come again, and the error with them.
    fn finish(&mut self, runs: &[Finish]) -> Result<Changed>;

    /// Does the work of a handler, and what follows it, in one transaction: both or neither.
    ///
    /// If [`Work::start`] returns a number, it does what [`start`](Connection::start) does, and commits that. It should hold
    /// what it has to wait for by then: if the process dies before the handler is called, an attempt is lost. Then it begins the
    /// transaction, and makes the change of `finish`, so that the run is known to be still the caller's. Then it calls
    /// [`Work::within`], and commits if that returns true. If it returns false, the transaction is undone, and the result
    /// is `Undone`. The database should end a transaction in which nothing happens for `limit`, because this process may
    /// hang.
    ///
    /// # Errors
    ///
    /// The errors of the database. Whether the work was committed is not known then.
    fn transact(
        &mut self,
        finish: &Finish,
        limit: Duration,
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        let (_, _, _) = (finish, limit, work);
        Err(crate::Error::Invalid("this store has no transactions for handlers".to_owned()))
    }

    /// Counts the timers of each kind.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn counts(&mut self) -> Result<Vec<KindCounts>>;

    /// Writes attempts into the history, but for those that are there (HISTORY-1). A worker with a history calls it with none before it
    /// starts, and does not start if that is an error.
    ///
    /// # Errors
    ///
    /// The errors of the database, and [`Error::Invalid`](crate::Error::Invalid) of a store that keeps no history.
    fn record(&mut self, attempts: &[Attempt]) -> Result<()> {
        _ = attempts;
        Err(crate::Error::Invalid("this store keeps no history".to_owned()))
    }

    /// Lists attempts, those first that began last, then by number, the highest first.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn history(&mut self, filter: &HistoryFilter) -> Result<Vec<Attempt>> {
        _ = filter;
        Ok(Vec::new())
    }

    /// Counts the attempts that began within `span` before now, for each kind and step of time, in this order.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn pace(&mut self, span: Duration, step: Duration) -> Result<Vec<Pace>> {
        let (_, _) = (span, step);
        Ok(Vec::new())
    }

    /// Removes attempts that began before a time, of one kind or of all, and no more than so many in a transaction that takes
    /// milliseconds. It waits for nobody.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn purge_history(&mut self, purge: &Purge<'_>) -> Result<Purged> {
        _ = purge;
        Ok(Purged::default())
    }

    /// Looks at dead timers of a kind whose number is higher than `after`, at no more than `limit`. It removes those of which it has known
    /// for `keep`, and notes the others of which it has not known. Returns how many it has removed, and the last number at which it has
    /// looked, if there may be more.
    ///
    /// # Errors
    ///
    /// The errors of the database.
    fn purge_dead(
        &mut self,
        kind: &str,
        keep: Duration,
        after: i64,
        limit: u32,
    ) -> Result<(u64, Option<i64>)> {
        let (_, _, _, _) = (kind, keep, after, limit);
        Ok((0, None))
    }
}

/// Which attempts [`Connection::purge_history`] removes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purge<'a> {
    /// Only those of this kind.
    pub kind: Option<&'a str>,
    /// Those that began before this.
    pub before: SystemTime,
    /// Where the last call has ended. What it has removed may still be in the way, and is not walked over again.
    pub from: Option<(String, SystemTime)>,
    /// No more than so many.
    pub limit: u32,
}

impl<'a> Purge<'a> {
    /// Those of this kind, or of all kinds, that began before this, the first thousand.
    pub fn new(kind: Option<&'a str>, before: SystemTime) -> Purge<'a> {
        Purge { kind, before, from: None, limit: 1000 }
    }
}

/// What [`Connection::purge_history`] has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// So many attempts.
    pub count: u64,
    /// The kind and the start of the last one, if there may be more.
    pub last: Option<(String, SystemTime)>,
}

impl Purged {
    /// So many were removed, this one last if there may be more.
    pub fn new(count: u64, last: Option<(String, SystemTime)>) -> Purged {
        Purged { count, last }
    }
}

/// A connection that is told of new timers.
pub trait Listener: Send {
    /// Waits for news, at most this long. Returns the kinds and times that woke it, perhaps none. If there are none, it may ask whether
    /// the database is still there, before it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if the connection was lost.
    fn wait(&mut self, timeout: Duration) -> Result<Vec<News>>;

    /// Returns how commits tell of their timers, as far as was known at the last wait.
    fn notices(&self) -> Notices {
        Notices::AtOnce
    }
}

/// How commits tell the workers of their timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notices {
    /// Each commit that has something to tell does.
    AtOnce,
    /// When many have told something, the workers look by themselves for some seconds, and say so with
    /// [`Connection::stay_awake`]. In the meantime, commits tell nothing.
    Debounced,
    /// Commits tell nothing, and the workers poll.
    Never,
}

/// A timer of this kind wakes at this time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct News {
    /// The kind. Empty: look at all kinds ([`Connection::announce`]).
    pub kind: String,
    /// When it wakes, by the database's clock.
    pub wake: SystemTime,
    /// A worker has said that there are more which wake until this time ([`Connection::tell_of_more`]). If the time has come,
    /// they are more than that worker can take.
    pub more: bool,
}

impl News {
    /// A timer of this kind wakes at this time.
    pub fn new(kind: impl Into<String>, wake: SystemTime) -> News {
        News { kind: kind.into(), wake, more: false }
    }

    /// Sets whether there are more until this time.
    #[must_use]
    pub fn more(self, more: bool) -> News {
        News { more, ..self }
    }
}

/// What [`Connection::look`] has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Look {
    /// The database's time.
    pub now: SystemTime,
    /// The position of a kind in the call, and a time at which timers of it wake. In order for each kind.
    pub wakes: Vec<(usize, SystemTime)>,
}

impl Look {
    /// What was seen at this time of the database.
    pub fn new(now: SystemTime, wakes: Vec<(usize, SystemTime)>) -> Look {
        Look { now, wakes }
    }
}

/// What to claim, and for whom.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Claim<'a> {
    /// The kind.
    pub kind: &'a str,
    /// No more than so many.
    pub limit: u32,
    /// The name of the worker.
    pub owner: &'a str,
    /// How long the worker has them.
    pub lease: Duration,
    /// What stands at or before this may be left out (STORE-8).
    pub floor: Option<Floor>,
    /// What may be claimed of the kind, in all processes together (STORE-9).
    pub limits: Option<Limits>,
    /// Groups of which it takes nothing, although they are not held.
    pub except: &'a [String],
}

impl<'a> Claim<'a> {
    /// Claims one timer of a kind, for the worker of this name and a lease of 30 seconds.
    pub fn new(kind: &'a str, owner: &'a str) -> Claim<'a> {
        Claim {
            kind,
            limit: 1,
            owner,
            lease: Duration::from_secs(30),
            floor: None,
            limits: None,
            except: &[],
        }
    }

    /// Sets how many it takes at most.
    #[must_use]
    pub fn limit(self, limit: u32) -> Claim<'a> {
        Claim { limit, ..self }
    }

    /// Sets how long the worker has them.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Claim<'a> {
        Claim { lease, ..self }
    }

    /// Sets what it may leave out. Not set, it leaves out nothing.
    #[must_use]
    pub fn floor(self, floor: Option<Floor>) -> Claim<'a> {
        Claim { floor, ..self }
    }

    /// Sets what may be claimed in all processes together. Not set, there are no limits.
    #[must_use]
    pub fn limits(self, limits: Option<Limits>) -> Claim<'a> {
        Claim { limits, ..self }
    }

    /// Sets of which groups it takes nothing.
    #[must_use]
    pub fn except(self, except: &'a [String]) -> Claim<'a> {
        Claim { except, ..self }
    }
}

/// The limits of a kind, over all processes. By default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// No more than so many are held at the same time.
    pub at_most: Option<u32>,
    /// So many may be claimed within a time: a bucket that is full at first, and fills up again evenly.
    pub rate: Option<(u32, Duration)>,
    /// Of each group one is held at a time, the earliest first. See [`group_of`](Limits::group_of).
    pub serial_by: Option<char>,
}

impl Limits {
    /// Returns the group of a timer with this key: the text before the first separator, or the whole key if there is none.
    /// `None`: the kind has no groups.
    #[must_use]
    pub fn group_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        self.serial_by.map(|separator| key.split(separator).next().unwrap_or(key))
    }
}

/// When limits hold back what is due and nobody tells when they no longer do, a claim follows after this time.
pub const HELD_BACK: Duration = Duration::from_millis(100);

/// A claim of a kind with groups looks at so many timers that are due, and passes over those of groups that are held.
pub const WINDOW: u32 = 1000;

/// A group that is held, and where the first timer stands that was passed over for that. What is before that place is not of the
/// group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// The group.
    pub group: String,
    /// The place before the timer.
    pub before: Floor,
}

impl Passed {
    /// Timers of this group, behind this place, were passed over.
    pub fn new(group: impl Into<String>, before: Floor) -> Passed {
        Passed { group: group.into(), before }
    }
}

/// What [`Connection::claim`] has taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claimed {
    /// The database's time.
    pub now: SystemTime,
    /// In order of `wake`.
    pub timers: Vec<ClaimedTimer>,
    /// More may be due: the claim has reached its limit or [`MOST_BYTES`], or ended before or behind a timer that is
    /// suspected.
    pub more: bool,
    /// When the next timer of the kind that waits wakes after `now`, if there is one. So a worker that was told of the
    /// first of many comes to know of each of them. `None` also if there may be more, because another claim follows then.
    pub next: Option<SystemTime>,
    /// The limits hold back what is due. A claim at this time may get some of it.
    pub held_back: Option<SystemTime>,
    /// Of a kind with groups: how far the claim has looked. If there is `more`, the next one goes on from there.
    pub reached: Option<Floor>,
    /// Of a kind with groups: those of which timers were passed over.
    pub passed: Vec<Passed>,
}

impl Claimed {
    /// These timers were taken, at this time of the database, and nothing is known of others.
    pub fn new(now: SystemTime, timers: Vec<ClaimedTimer>) -> Claimed {
        Claimed {
            now,
            timers,
            more: false,
            next: None,
            held_back: None,
            reached: None,
            passed: Vec::new(),
        }
    }
}

/// A timer that a claim has taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimedTimer {
    /// As it stands in the store after the claim.
    pub timer: Timer,
    /// When it woke.
    pub woke: SystemTime,
    /// A worker had it, and its lease has ended without an outcome. So it is suspected (STORE-7).
    pub was_running: bool,
}

impl ClaimedTimer {
    /// A timer as it stands in the store after the claim, which woke at this time.
    pub fn new(timer: Timer, woke: SystemTime, was_running: bool) -> ClaimedTimer {
        ClaimedTimer { timer, woke, was_running }
    }
}

/// One attempt at one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunId {
    /// The number of the timer.
    pub id: i64,
    /// The fencing number of the attempt.
    pub fence: i64,
}

impl RunId {
    /// The attempt with this fencing number at the timer with this number.
    pub fn new(id: i64, fence: i64) -> RunId {
        RunId { id, fence }
    }
}

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finish {
    /// The attempt.
    pub run: RunId,
    /// How often the handler was started for this run of the timer, with this attempt if it was started and counts (STORE-6).
    /// The next run of a series counts from zero.
    pub attempts: u32,
    /// What follows.
    pub then: Then,
    /// Its row in the history, if its kind has one (STORE-10).
    pub record: Option<Box<Attempt>>,
    /// When the timer woke, if that was later than it was due: it was put off, or is tried again. With [`Then::Release`] it wakes
    /// then again, so it stands where it stood, and nobody takes it for one that has only just become due.
    pub woke: Option<SystemTime>,
    /// Its kind has limits over all processes. So for `transact` and a completion it is the caller's only as long as there is its hold
    /// (STORE-9).
    pub(crate) has_limits: bool,
}

impl Finish {
    /// What became of an attempt, the `attempts`-th of its run of the timer.
    pub fn new(run: RunId, attempts: u32, then: Then) -> Finish {
        Finish { run, attempts, then, record: None, woke: None, has_limits: false }
    }

    /// Sets its row in the history.
    #[must_use]
    pub fn record(self, record: Option<Attempt>) -> Finish {
        Finish { record: record.map(Box::new), ..self }
    }
}

/// What follows an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Then {
    /// It is done, and the timer is removed.
    Done,
    /// It is done, and the timer waits for the next run of its series.
    Next(SystemTime),
    /// It has failed, and is tried again so long after now.
    Retry(Duration, String),
    /// It has failed for good.
    Dead(String),
    /// It is put off, and waits so long from now. The timer's error stays as it was.
    Snooze(Duration),
    /// It has failed or is put off, and the timer waits for the next run of its series. The run leaves the series: it
    /// becomes a timer of its own, without a repetition and with everything else of the series, unless one with its key is
    /// there already.
    Split {
        /// When the next run of the series is due.
        next: SystemTime,
        /// The key of the timer that the run becomes.
        key: String,
        /// So long after now it is tried again. `None`: it is dead.
        retry: Option<Duration>,
        /// Why it has failed. `None`: it is put off, and keeps the error that the timer had.
        error: Option<String>,
    },
    /// It was never started, so it waits again, as it did before: from [`Finish::woke`] on, and with the error that it had.
    Release,
}

impl Then {
    /// Returns true if the attempt counts (STORE-6).
    pub(crate) fn counts(&self) -> bool {
        !matches!(self, Then::Release) && !self.is_snooze()
    }

    /// Returns true if the run is put off.
    pub(crate) fn is_snooze(&self) -> bool {
        matches!(self, Then::Snooze(_) | Then::Split { error: None, .. })
    }
}

/// What [`Connection::finish`] or [`Connection::extend`] has changed, by fencing numbers. What is in neither list was not
/// the caller's any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Those that are changed.
    pub changed: Vec<i64>,
    /// Those that are not changed because another transaction holds them. To be tried again.
    pub busy: Vec<i64>,
}

impl Changed {
    /// With these fencing numbers.
    pub fn new(changed: Vec<i64>, busy: Vec<i64>) -> Changed {
        Changed { changed, busy }
    }
}

/// See [`Connection::keep_series`].
pub(crate) fn keep_series(
    table: &mut (impl Table + ?Sized),
    series: &NewTimer,
) -> Result<Option<Scheduled>> {
    let existing = match table.get(&series.kind, &series.key)? {
        Some(timer) if series.is_as(&timer) => return Ok(None),
        Some(_) => Existing::Replace,
        None => Existing::Keep, // another process may put it in now, and its first run may begin
    };
    let scheduled = table.schedule(std::slice::from_ref(series), existing)?;
    Ok(scheduled.into_iter().flatten().next())
}

/// What became of [`Connection::transact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transacted {
    /// The work and what follows it are committed.
    Committed,
    /// The handler has failed, and nothing of its work remains.
    Undone,
    /// The run was no longer the caller's, and the handler was not called.
    Lost,
}

/// A transaction of which only the store and the handler know the type, as [`Work::with`] gives it to a handler.
pub type AnyTransaction = dyn Any;

impl TransactionType for AnyTransaction {
    type Transaction<'a> = AnyTransaction;
}
