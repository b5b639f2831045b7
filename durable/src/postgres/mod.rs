//! Timers in a PostgreSQL database: [`Postgres`], and [`within`] a transaction of yours.
//!
//! Any number of processes on any number of machines may share the tables. This file connects, makes the tables and hears
//! of news. `address.rs` reads addresses, and `attempts.rs` bounds how long it takes to connect. `table.rs` has the statements of the users, `session.rs` those of the workers,
//! `history.rs` those about what has been.
//!
//! - PG-1 Every statement reads the time through `tickwheel_now()`, and where it is compared with a column, in a scalar
//!   subquery. So the time is read once, and the index on `(kind, wake, id)` is used up to it.
//! - PG-2 Workers pass over a row that is locked. They wait for one lock alone, that of a timer whose handler works in a
//!   transaction, and hold no other then. Users' calls that change several timers lock them in the order of their names, whether
//!   they are there or are put in. So there are no deadlocks.
//! - PG-3 A handler in a transaction holds the lock of its timer's row, which stands for its lease. Nobody claims a row
//!   that is locked, so the lease is not extended meanwhile. Under limits it holds the lock of its hold too, in a mode that lets the
//!   hold be extended, and not removed.
//! - PG-4 Behind a pooler, each transaction may get another connection of the server's, which other programs use in between.
//!   So no call leaves settings or named statements behind: settings stand in the address, where a pooler refuses them, or
//!   last for a transaction.

mod address;
mod attempts;
mod history;
mod link;
mod session;
mod table;
#[cfg(feature = "tokio-postgres")]
mod tokio;

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::{Client, GenericClient, Row, Socket};

use self::address::Address;
use self::attempts::Attempts;
use self::link::{Lent, Own};
use self::session::{Session, and_held};
pub use self::table::{Within, within};
use crate::clock::{LATEST, from_micros, micros};
use crate::error::{Error, Result};
use crate::store::{
    Connection, Finish, Listener, News, Notices, Purpose, RunId, SCHEMA_VERSION, Store, Then,
    TransactionType, Transactions,
};

macro_rules! migrations {
    ($($file:literal),*) => {
        /// The files of `migrations/postgres`: the first makes the tables, and each of the others brings those of the version
        /// before it up to date. The [first page](crate#the-tables) tells how to run them with a tool of your own.
        pub const MIGRATIONS: &[&str] =
            &[$(include_str!(concat!("../../migrations/postgres/", $file))),*];

        /// All of [`MIGRATIONS`], one after the other. An empty schema needs nothing else: `psql -1 -f` with this text does
        /// what [`Timers::open`](crate::Timers::open) does.
        pub const SCHEMA: &str =
            concat!($(include_str!(concat!("../../migrations/postgres/", $file)), "\n"),*);
    };
}

migrations! {
    "0001_timers.sql", "0002_moves.sql", "0003_functions.sql", "0004_notices.sql",
    "0005_workers.sql",
    "0006_limits.sql",
    "0007_history.sql"
}

/// Any number, but the same for all processes that create the tables: one at a time does.
const MAKING_TABLES: i64 = 0x7469_636b_7768;

/// For how long an answer is awaited on a connection where nothing moves, and how soon a connection is tested.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a new listener waits for a word of its own.
const HEARING: Duration = Duration::from_secs(3);

type Connect = dyn Fn() -> Result<Client> + Send + Sync;
type Open = dyn Fn(&Postgres) -> Result<Box<dyn Connection>> + Send + Sync;

/// A PostgreSQL database that keeps timers. Needs version 12 or later.
#[derive(Clone)]
pub struct Postgres {
    /// Where it is, as far as an address says.
    name: String,
    connect: Arc<Connect>,
    /// Other ways to get a connection for a purpose, of which the last counts.
    others: Vec<(Purpose, Arc<Open>)>,
    is_pooled: bool,
    /// `None`: the first schema of the search path.
    schema: Option<Arc<str>>,
}

impl Postgres {
    /// Names a database by its URL, or by key and value pairs such as `host=/run/postgresql user=me`.
    ///
    /// The tables are in the first schema of the user's search path. The URL may choose another one with `?schema=name`, which
    /// does what [`in_schema`](Postgres::in_schema) does.
    ///
    /// With the feature `native-tls`, connections have TLS as `sslmode` says, with libpq's meanings: `disable`; `prefer`, the
    /// default; `require`, which encrypts, and believes any certificate; `verify-ca`, and `verify-full`, which also compares the
    /// name of the host. `sslrootcert` is the path of the only root that is believed, as PEM. Otherwise it is the system's.
    /// For another implementation of TLS, there is [`with_tls`](Postgres::with_tls).
    ///
    /// `connect_timeout=5` says for how many seconds a new connection is awaited for each host of the address, until the server is
    /// ready for statements. By default 10. A connection whose other end confirms nothing is given up after `tcp_user_timeout`, and one on
    /// which nothing moves is tried after `keepalives_idle`: 30 seconds each, unless the address has a `tcp_user_timeout`.
    /// The system of a server whose processes are halted confirms what is sent to it. So neither ends the wait for a statement that was
    /// sent before: it lasts until the server goes on, or the connection ends.
    ///
    /// Through a pooler in transaction mode, such as `PgBouncer`, add `?pgbouncer=true`. It does what
    /// [`pooled`](Postgres::pooled) does.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if this is no address, or asks for a TLS that there is not.
    pub fn new(address: &str) -> Result<Postgres> {
        let address = Address::parse(address)?;
        #[cfg(feature = "native-tls")]
        let connector = address.verify.connector()?;
        #[cfg(not(feature = "native-tls"))]
        let connector = address.verify.none()?;
        Postgres::by(address, connector)
    }

    /// Names a database as [`new`](Postgres::new) does, for connections with TLS by a connector of your own, which is used as
    /// `sslmode` in the address says. What is verified is up to it.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if this is no address.
    pub fn with_tls<T>(address: &str, connector: T) -> Result<Postgres>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send,
        T::Stream: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Postgres::by(Address::parse(address)?, connector)
    }

    fn by<T>(address: Address, connector: T) -> Result<Postgres>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send,
        T::Stream: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let attempts = Attempts::new(address.timeout);
        #[cfg(feature = "tokio-postgres")]
        let of_tokio = {
            let (driver, connector) = (tokio::Driver::default(), connector.clone());
            let attempts = attempts.clone();
            let open = move |of: &Postgres| -> Result<Box<dyn Connection>> {
                let runtime = driver.runtime().map_err(Error::unreachable)?;
                let connect = address.tokio.connect(connector.clone());
                let (guard, connection) = attempts.make_on(runtime, connect)?;
                runtime.spawn(connection);
                let link = tokio::Tokio::<_, _, false> { guard, client: tokio::itself };
                Ok(Box::new(Session::new(link, of.is_pooled, of.schema.clone())?))
            };
            (Purpose::of::<tokio_postgres::Transaction<'static>>(), Arc::new(open) as Arc<Open>)
        };
        let schema = address.schema.as_deref().map(quoted).transpose()?;
        let config = address.config;
        Ok(Postgres {
            name: address.name,
            is_pooled: address.is_pooled,
            schema: schema.map(Arc::from),
            #[cfg(feature = "tokio-postgres")]
            others: vec![of_tokio],
            ..Postgres::with_connect(Arc::new(move || {
                let (config, connector) = (config.clone(), connector.clone());
                attempts.make(move || config.connect(connector))
            }))
        })
    }

    /// Connects as this function does, for connections with settings of your own. What [`new`](Postgres::new) sets is up to the
    /// function then: timeouts of the connection, keepalives, the name of the application.
    ///
    /// If the connections are opened with the options `-c lock_timeout=10s`, as those of [`new`](Postgres::new) are, a call
    /// that schedules, resets or cancels takes one round trip. Otherwise it is a transaction with that setting, of three.
    pub fn with_connector(
        connect: impl Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync + 'static,
    ) -> Postgres {
        Postgres::with_connect(Arc::new(move || connect().map_err(unreachable)))
    }

    fn with_connect(connect: Arc<Connect>) -> Postgres {
        let (name, others) = ("a database without an address".to_owned(), Vec::new());
        Postgres { name, connect, others, is_pooled: false, schema: None }
    }

    /// Takes the connections for calls, and for handlers in transactions, from a pool of yours, such as one of `r2d2` with
    /// `r2d2_postgres`. What the function returns is given back, by its drop, after each call.
    ///
    /// A connection goes back as it came, so each call is a transaction with settings of its own, and no statement has a name, as
    /// with [`pooled`](Postgres::pooled). The connections on which a worker claims, hears of new timers and writes outcomes are
    /// not lent: they are opened by the address, and an idle worker has two.
    ///
    /// ```no_run
    /// # use std::ops::{Deref, DerefMut};
    /// # use ::postgres as client;
    /// # struct Pool;
    /// # struct Pooled(client::Client);
    /// # impl Pool { fn get(&self) -> Result<Pooled, std::io::Error> { Err(std::io::Error::other("no pool")) } }
    /// # impl Deref for Pooled { type Target = client::Client; fn deref(&self) -> &client::Client { &self.0 } }
    /// # impl DerefMut for Pooled { fn deref_mut(&mut self) -> &mut client::Client { &mut self.0 } }
    /// use tickwheel_durable::{Timers, postgres::Postgres};
    ///
    /// # fn with(pool: Pool) -> tickwheel_durable::Result<Timers> {
    /// let store = Postgres::new("postgres://me@localhost/shop")?.with_pool(move || pool.get());
    /// let timers = Timers::with_store(store)?;
    /// # Ok(timers)
    /// # }
    /// ```
    #[must_use]
    pub fn with_pool<G, E>(
        self,
        lend: impl Fn() -> std::result::Result<G, E> + Send + Sync + 'static,
    ) -> Postgres
    where
        G: DerefMut<Target = Client> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let lend = move |of: &Postgres| -> Result<Box<dyn Connection>> {
            let client = lend().map_err(Error::unreachable)?;
            Ok(Box::new(Session::new(Lent(client), of.is_pooled, of.schema.clone())?))
        };
        self.for_calls_and(Purpose::of::<postgres::Transaction<'static>>(), Arc::new(lend))
    }

    fn for_calls_and(mut self, handlers: Purpose, open: Arc<Open>) -> Postgres {
        self.others.extend([(Purpose::Call, Arc::clone(&open)), (handlers, open)]);
        self
    }

    /// Takes the connections for calls, and for handlers in a `tokio_postgres::Transaction`, from a pool of yours, such as one of
    /// `deadpool-postgres` or `bb8`. Otherwise it does what [`with_pool`](Postgres::with_pool) does.
    ///
    /// The first function is called on a thread that may wait, and the second finds the client in what the first has returned:
    ///
    /// ```ignore
    /// let runtime = tokio::runtime::Handle::current();
    /// let store = Postgres::new("postgres://me@localhost/shop")?
    ///     .with_tokio_pool(move || runtime.block_on(pool.get()), |object| object);
    /// ```
    #[cfg(feature = "tokio-postgres")]
    #[must_use]
    pub fn with_tokio_pool<G, E>(
        self,
        lend: impl Fn() -> std::result::Result<G, E> + Send + Sync + 'static,
        client: impl Fn(&mut G) -> &mut tokio_postgres::Client + Clone + Send + Sync + 'static,
    ) -> Postgres
    where
        G: Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let lend = move |of: &Postgres| -> Result<Box<dyn Connection>> {
            let guard = lend().map_err(Error::unreachable)?;
            let link = tokio::Tokio::<_, _, true> { guard, client: client.clone() };
            Ok(Box::new(Session::new(link, of.is_pooled, of.schema.clone())?))
        };
        self.for_calls_and(Purpose::of::<tokio_postgres::Transaction<'static>>(), Arc::new(lend))
    }

    /// Says that the connections go through a pooler that gives each transaction another connection of the server's.
    ///
    /// Then each call is a transaction with settings of its own, no statement has a name, and workers ask for new timers once
    /// a second, or as [`poll_every`](crate::WorkerBuilder::poll_every) says, because the server cannot tell them. What a
    /// handler does in its transaction is up to it: it should set nothing but with `SET LOCAL`.
    #[must_use]
    pub fn pooled(self) -> Postgres {
        Postgres { is_pooled: true, ..self }
    }

    /// Names the schema of the tables, which need not be in the search path. Migration creates it if it is not there.
    ///
    /// In a handler's transaction, and in one of yours, say [`Within::in_schema`].
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the name contains something else than letters, digits and underscores.
    pub fn in_schema(self, name: &str) -> Result<Postgres> {
        Ok(Postgres { schema: Some(quoted(name)?.into()), ..self })
    }

    fn client(&self) -> Result<Client> {
        (self.connect)()
    }
}

/// The error of an attempt to connect.
fn unreachable(error: postgres::Error) -> Error {
    let text = crate::error::with_causes(&error);
    if text.contains("startup parameter") {
        let advice = "for a pooler, add `pgbouncer=true` to the address";
        return Error::unreachable(format!("{text}: {advice}"));
    }
    // A socket of Unix says "try again" when more clients wait for the server than fit into its queue.
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_full = cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock);
    if is_full || error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) {
        return Error::TooManyClients(error.into());
    }
    Error::unreachable(error)
}

impl Postgres {
    /// Returns the version of the tables. Zero: there are none.
    fn version(&self, client: &mut impl GenericClient) -> Result<i32> {
        let placed = |sql| placed(sql, self.schema.as_deref());
        let exists = placed("SELECT to_regclass('tickwheel_schema') IS NOT NULL");
        let exists: bool = only_row(client.query_typed(&exists, &[]).map_err(failed)?)?.get(0);
        if !exists {
            return Ok(0);
        }
        let versions = placed("SELECT version, oldest FROM tickwheel_schema");
        let versions = client.query_typed(&versions, &[]).map_err(failed)?;
        match versions.first().map(|row| (row.get(0), row.get(1))) {
            Some((_, oldest)) if oldest > SCHEMA_VERSION => Err(Error::Schema(oldest)),
            Some((version, _)) => self.check_place(client).map(|()| version),
            None => Ok(0),
        }
    }

    /// The functions have the name of their schema in their texts, so they still name the old one after it was renamed.
    fn check_place(&self, client: &mut impl GenericClient) -> Result<()> {
        // Without a backslash, which `standard_conforming_strings = off` makes something else.
        let names = "SELECT quote_ident(nspname), substring(prosrc FROM 'least[(]([^()]+)[.]tick')
            FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
            WHERE pg_proc.oid = to_regprocedure('tickwheel_due(timestamptz, interval)')";
        let names = placed(names, self.schema.as_deref());
        let names = client.query_typed(&names, &[]).map_err(failed)?;
        match names.first().map(|row| (row.get(0), row.get(1))) {
            Some((Some(is), Some(was))) if is != was => Err(Error::Invalid(renamed(is, was))),
            _ => Ok(()), // the functions of version 2 name none
        }
    }
}

fn renamed(is: &str, was: &str) -> String {
    format!(
        "the schema {is} was renamed, and its functions name the schema {was}: rename it back, or see `To rename the schema` on \
         the first page of the documentation of tickwheel-durable"
    )
}

/// The error of a migration. A role that may not change the tables is told what to do.
fn no_right(error: postgres::Error, version: i32) -> Error {
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        Error::Unmigrated(version)
    } else {
        failed(error)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive() // the address may contain a password
    }
}

/// Returns the row of a query that has one whatever the tables hold.
fn only_row(rows: Vec<Row>) -> Result<Row> {
    rows.into_iter().next().ok_or_else(|| Error::refused("the server has answered without a row"))
}

/// Returns the name of a schema as it stands before the names of our tables, in a statement or a string of one.
fn quoted(schema: &str) -> Result<String> {
    let is_fine = |letter: char| letter.is_alphanumeric() || letter == '_';
    if schema.is_empty() || !schema.chars().all(is_fine) {
        return Err(Error::Address(format!(
            "{schema:?} is no name of a schema, which has letters, digits and underscores"
        )));
    }
    Ok(format!("\"{schema}\""))
}

/// Names our tables and functions by their schema in a statement, if the search path need not lead to them.
fn placed<'a>(sql: &'a str, schema: Option<&str>) -> Cow<'a, str> {
    schema.map_or(Cow::Borrowed(sql), |schema| {
        Cow::Owned(sql.replace("tickwheel_", &format!("{schema}.tickwheel_")))
    })
}

/// An error without an answer of the server is one of the connection. So are answers of a server that goes down, that has
/// become a standby, or that has no room on its disk or in its memory.
fn failed(error: postgres::Error) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::Busy;
    }
    let is_answer = error.code().is_some_and(|code| {
        let is_of_the_server = ["08", "53", "57", "58"].contains(&&code.code()[..2]);
        !is_of_the_server && *code != SqlState::READ_ONLY_SQL_TRANSACTION
            || *code == SqlState::QUERY_CANCELED
    });
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        Error::refused(NoRight(error))
    } else if is_answer {
        Error::refused(error)
    } else {
        Error::unreachable(error)
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the role lacks a right: see `The roles` on the first page of the documentation of tickwheel-durable"
)]
struct NoRight(#[source] postgres::Error);

impl Store for Postgres {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn connect(&self) -> Result<Box<dyn Connection>> {
        let schema = self.schema.clone();
        Ok(Box::new(Session::new(Own::new(self.client()?), self.is_pooled, schema)?))
    }

    fn connect_for(&self, purpose: Purpose) -> Result<Box<dyn Connection>> {
        let other = self.others.iter().rfind(|(of, _)| *of == purpose);
        other.map_or_else(|| self.connect(), |(_, open)| open(self))
    }

    fn migrate(&self) -> Result<()> {
        let mut client = self.client()?;
        let mut transaction = client.transaction().map_err(failed)?;
        let lock = format!("SELECT pg_advisory_xact_lock({MAKING_TABLES})");
        transaction.batch_execute(&lock).map_err(failed)?;
        let version = self.version(&mut transaction)?;
        if version < SCHEMA_VERSION {
            if let Some(schema) = &self.schema {
                // The functions keep this search path.
                let begin = format!(
                    "CREATE SCHEMA IF NOT EXISTS {schema}; SET LOCAL search_path TO {schema}"
                );
                transaction.batch_execute(&begin).map_err(|error| no_right(error, version))?;
            }
            let missing = MIGRATIONS.iter().skip(version.unsigned_abs() as usize);
            for migration in missing {
                let done = transaction.batch_execute(migration);
                done.map_err(|error| no_right(error, version))?;
            }
        }
        transaction.commit().map_err(failed)
    }

    fn check(&self) -> Result<()> {
        match self.version(&mut self.client()?)? {
            version if version < SCHEMA_VERSION => Err(Error::Unmigrated(version)),
            _ => Ok(()),
        }
    }

    /// A listener that does not hear its own word goes through a pooler, which has not said so.
    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        if self.is_pooled {
            return Ok(None);
        }
        let mut client = self.client()?;
        client.batch_execute("LISTEN tickwheel_timers").map_err(failed)?;
        let word = format!("hear {:x}", RandomState::new().hash_one(()));
        let say = format!("SELECT pg_notify('tickwheel_timers', '{word}')");
        self.client()?.batch_execute(&say).map_err(failed)?;
        // Others' words need not be heard yet, because a look follows.
        let is_heard = {
            let mut heard = client.notifications();
            heard.timeout_iter(HEARING).any(|heard| Ok(heard.payload() == word)).map_err(failed)?
        };
        if !is_heard {
            return Ok(None);
        }
        // It is asked only now, because another way may have been set while the word was awaited.
        let of = "SELECT nspname::text, (SELECT notices FROM tickwheel_schema)
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        let of = placed(of, self.schema.as_deref());
        let row = only_row(client.query_typed(&of, &[]).map_err(failed)?)?;
        let notices = match row.get(1) {
            "debounced" => Notices::Debounced,
            "never" => Notices::Never,
            _ => Notices::AtOnce,
        };
        let schema = row.get(0);
        Ok(Some(Box::new(Ear { client: Own::new(client), schema, notices })))
    }

    fn completion(&self, finish: &Finish) -> Option<String> {
        let change = match &finish.then {
            Then::Done => "DELETE FROM tickwheel_timers".to_owned(),
            Then::Next(due) => format!(
                "UPDATE tickwheel_timers SET state = 'waiting', attempts = 0, held_until = NULL, owner = NULL, error = NULL,
                due = timestamptz 'epoch' + interval '{} microseconds'",
                micros(*due)
            ),
            _ => return None,
        };
        let RunId { id, fence } = finish.run;
        let of_run = format!("id = {id} AND fence = {fence} AND state = 'running'");
        let past = finish.record.as_deref().map(|record| history::of_completion(record, &of_run));
        let past = past.unwrap_or_default();
        let statement = format!(
            "WITH mine AS ({change} WHERE {of_run} {} RETURNING id){past}
            SELECT CASE WHEN count(*) = 1 THEN 1 ELSE tickwheel_refuse_completion() END FROM mine",
            and_held(finish)
        );
        Some(placed(&statement, self.schema.as_deref()).into_owned())
    }

    fn has_limits(&self) -> bool {
        true
    }

    fn transactions(&self) -> Transactions {
        let all = self.others.iter().map(|(purpose, _)| *purpose);
        all.fold(Transactions::of::<postgres::Transaction<'static>>(), Transactions::with)
    }
}

impl TransactionType for postgres::Transaction<'static> {
    type Transaction<'a> = postgres::Transaction<'a>;
}

/// A connection that is told of new timers by the triggers.
struct Ear {
    client: Own,
    /// The schema of the tables. All schemas of a database share the channel.
    schema: String,
    notices: Notices,
}

impl Ear {
    fn take_in(&mut self, payload: &str) -> Option<News> {
        let (wake, of) = payload.split_once(' ')?;
        let kind = of.strip_prefix(&*self.schema)?.strip_prefix('/')?.to_owned();
        // A plus is a sign of the number for workers of earlier versions, too.
        let more = wake.starts_with('+');
        let wake = wake.parse::<i64>().ok()?.min(LATEST);
        // Whoever sets another way says so in place of a time, and without a kind.
        match wake {
            -1 => self.notices = Notices::AtOnce,
            -2 => self.notices = Notices::Debounced,
            -3 => self.notices = Notices::Never,
            _ => {}
        }
        Some(News { more, ..News::new(kind, from_micros(wake)) })
    }
}

impl Listener for Ear {
    fn wait(&mut self, timeout: Duration) -> Result<Vec<News>> {
        let mut heard = Vec::new();
        let mut next = self.client.notifications().timeout_iter(timeout).next().map_err(failed)?;
        if next.is_none() {
            // A server that is halted sends nothing either, and its system goes on to confirm what is sent to it.
            self.client.ask(PATIENCE).map_err(failed)?;
        }
        while let Some(notice) = next {
            heard.extend(self.take_in(notice.payload()));
            next = self.client.notifications().iter().next().map_err(failed)?;
        }
        if self.client.is_closed() {
            return Err(Error::unreachable("the server has closed the connection"));
        }
        Ok(heard)
    }

    fn notices(&self) -> Notices {
        self.notices
    }
}
