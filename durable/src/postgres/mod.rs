//! Timers in a PostgreSQL database: [`Postgres`], and [`within`] a transaction of yours.
//!
//! Any number of processes on any number of machines may share the tables. This file connects, makes the tables and hears
//! of news. `address.rs` reads addresses. `table.rs` has the statements of the users, `session.rs` those of the workers.
//!
//! - PG-1 Every statement reads the time through `tickwheel_now()`, and where it is compared with a column, in a scalar
//!   subquery. So the time is read once, and the index on `(kind, wake, id)` is used up to it.
//! - PG-2 Workers pass over a row that is locked. They wait for one lock alone, that of a timer whose handler works in a
//!   transaction, and hold no other then. Users' calls that change several timers lock those that are there in the order
//!   of their numbers, before they change any. So there are no deadlocks.
//! - PG-3 A handler in a transaction holds the lock of its timer's row, which stands for its lease. Nobody claims a row
//!   that is locked, so the lease is not extended meanwhile.
//! - PG-4 Behind a pooler, each transaction may get another connection of the server's, which other programs use in between.
//!   So no call leaves settings or named statements behind: settings stand in the address, where a pooler refuses them, or
//!   last for a transaction.

mod address;
mod link;
mod session;
mod table;
#[cfg(feature = "tokio-postgres")]
mod tokio;

use std::error::Error as StdError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::{Client, Row, Socket};

use self::address::Address;
use self::link::Lent;
use self::session::Session;
pub use self::table::{Within, within};
use crate::clock::{LATEST, from_micros, micros};
use crate::error::{Error, Result};
use crate::store::{
    Connection, Finish, Listener, News, Purpose, RunId, SCHEMA_VERSION, Store, Then,
    TransactionType, Transactions,
};

/// The tables, as other programs may use them. The [first page](crate#the-tables) explains them. An empty
/// schema needs nothing else: `psql -1 -f` with this text does what [`Timers::open`](crate::Timers::open) does.
pub const SCHEMA: &str = concat!(include_str!("schema.sql"), "\n", include_str!("triggers.sql"));

/// The part of [`SCHEMA`] that brings the tables of an earlier version up to date.
const UPDATE: &str = include_str!("triggers.sql");

/// Any number, but the same for all processes that create the tables: one at a time does.
const MAKING_TABLES: i64 = 0x7469_636b_7768;

/// For how long an answer is awaited on a connection where nothing moves, and how soon a connection is tested.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a new listener waits for a word of its own.
const HEARING: Duration = Duration::from_secs(3);

type Connect = dyn Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync;
type Open = dyn Fn(&Postgres) -> Result<Box<dyn Connection>> + Send + Sync;

/// A PostgreSQL database that keeps timers. Needs version 12 or later.
#[derive(Clone)]
pub struct Postgres {
    connect: Arc<Connect>,
    /// Other ways to get a connection for a purpose, of which the last counts.
    others: Vec<(Purpose, Arc<Open>)>,
    is_pooled: bool,
}

impl Postgres {
    /// Names a database by its URL, or by key and value pairs such as `host=/run/postgresql user=me`.
    ///
    /// The tables are created in the first schema of the user's search path. The URL may choose another one with
    /// `?options=-c%20search_path%3Dname`.
    ///
    /// With the feature `native-tls`, connections have TLS as `sslmode` says, with libpq's meanings: `disable`; `prefer`, the
    /// default; `require`, which encrypts, and believes any certificate; `verify-ca`, and `verify-full`, which also compares the
    /// name of the host. `sslrootcert` is the path of the only root that is believed, as PEM. Otherwise it is the system's.
    /// For another implementation of TLS, there is [`with_tls`](Postgres::with_tls).
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
        Ok(Postgres::by(address, connector))
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
        Ok(Postgres::by(Address::parse(address)?, connector))
    }

    fn by<T>(address: Address, connector: T) -> Postgres
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send,
        T::Stream: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        #[cfg(feature = "tokio-postgres")]
        let of_tokio = {
            let (driver, connector) = (tokio::Driver::default(), connector.clone());
            let open = move |of: &Postgres| -> Result<Box<dyn Connection>> {
                let runtime = driver.runtime().map_err(Error::unreachable)?;
                let connected = runtime.block_on(address.tokio.connect(connector.clone()));
                let (guard, connection) = connected.map_err(unreachable)?;
                runtime.spawn(connection);
                let link = tokio::Tokio::<_, _, false> { guard, client: tokio::itself };
                Ok(Box::new(Session::new(link, of.is_pooled)?))
            };
            (Purpose::of::<tokio_postgres::Transaction<'static>>(), Arc::new(open) as Arc<Open>)
        };
        let config = address.config;
        Postgres {
            is_pooled: address.is_pooled,
            #[cfg(feature = "tokio-postgres")]
            others: vec![of_tokio],
            ..Postgres::with_connector(move || config.connect(connector.clone()))
        }
    }

    /// Connects as this function does, for connections with settings of your own. What [`new`](Postgres::new) sets is up to the
    /// function then: timeouts of the connection, keepalives, the name of the application.
    ///
    /// If the connections are opened with the options `-c lock_timeout=10s`, as those of [`new`](Postgres::new) are, a call
    /// that schedules, resets or cancels takes one round trip. Otherwise it is a transaction with that setting, of three.
    pub fn with_connector(
        connect: impl Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync + 'static,
    ) -> Postgres {
        Postgres { connect: Arc::new(connect), others: Vec::new(), is_pooled: false }
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
    /// # impl Pool { fn get(&self) -> Result<Pooled, std::io::Error> { unimplemented!() } }
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
            Ok(Box::new(Session::new(Lent(client), of.is_pooled)?))
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
            Ok(Box::new(Session::new(link, of.is_pooled)?))
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

    fn client(&self) -> Result<Client> {
        (self.connect)().map_err(unreachable)
    }
}

/// The error of an attempt to connect.
fn unreachable(error: postgres::Error) -> Error {
    let text = crate::error::with_causes(&error);
    if text.contains("startup parameter") {
        let advice = "for a pooler, add `pgbouncer=true` to the address";
        return Error::unreachable(format!("{text}: {advice}"));
    }
    if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) {
        return Error::TooManyClients(error.into());
    }
    Error::unreachable(error)
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive() // the address may contain a password
    }
}

/// Returns the row of a query that has one whatever the tables hold.
fn only_row(rows: std::result::Result<Vec<Row>, postgres::Error>) -> Result<Row> {
    let row = rows.map_err(failed)?.into_iter().next();
    row.ok_or_else(|| Error::refused("the server has answered without a row"))
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
    if is_answer { Error::refused(error) } else { Error::unreachable(error) }
}

impl Store for Postgres {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        Ok(Box::new(Session::new(self.client()?, self.is_pooled)?))
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
        let exists = "SELECT to_regclass('tickwheel_schema') IS NOT NULL";
        let exists: bool = only_row(transaction.query_typed(exists, &[]))?.get(0);
        let versions = "SELECT version, oldest FROM tickwheel_schema";
        let versions = if exists {
            transaction.query_typed(versions, &[]).map_err(failed)?
        } else {
            Vec::new()
        };
        let versions = versions.first();
        match versions.map(|row| (row.get::<_, i32>(0), row.get::<_, i32>(1))) {
            None => transaction.batch_execute(SCHEMA).map_err(failed)?,
            Some((_, oldest)) if oldest > SCHEMA_VERSION => return Err(Error::Schema(oldest)),
            Some((version, _)) if version < SCHEMA_VERSION => {
                match transaction.batch_execute(UPDATE) {
                    // Somebody else's tables do without, until their owner comes.
                    Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                        return Ok(());
                    }
                    updated => updated.map_err(failed)?,
                }
            }
            Some(_) => {}
        }
        transaction.commit().map_err(failed)
    }

    /// A listener that does not hear its own word goes through a pooler, which has not said so.
    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        if self.is_pooled {
            return Ok(None);
        }
        let mut client = self.client()?;
        client.batch_execute("LISTEN tickwheel_timers").map_err(failed)?;
        let schema = "SELECT nspname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        let schema = only_row(client.query_typed(schema, &[]))?.get(0);
        let word = format!("hear {:x}", RandomState::new().hash_one(()));
        let say = format!("SELECT pg_notify('tickwheel_timers', '{word}')");
        self.client()?.batch_execute(&say).map_err(failed)?;
        // Others' words need not be heard yet, because a look follows.
        let is_heard = {
            let mut heard = client.notifications();
            heard.timeout_iter(HEARING).any(|heard| Ok(heard.payload() == word)).map_err(failed)?
        };
        Ok(is_heard.then(|| Box::new(Ear { client, schema }) as Box<dyn Listener>))
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
        // A text that is no number is an error, whose message has the text.
        Some(format!(
            "WITH mine AS ({change} WHERE id = {id} AND fence = {fence} AND state = 'running' RETURNING id)
            SELECT CASE WHEN count(*) = 1 THEN 1
                ELSE (count(*) || ' timers: the run is not this worker''s any more')::integer END FROM mine"
        ))
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
    client: Client,
    /// The schema of the tables. All schemas of a database share the channel.
    schema: String,
}

impl Listener for Ear {
    fn wait(&mut self, timeout: Duration) -> Result<Vec<News>> {
        let mut heard = Vec::new();
        let first = self.client.notifications().timeout_iter(timeout).next().map_err(failed)?;
        let mut is_heard = first.is_some();
        heard.extend(first.and_then(|first| news_in(first.payload(), &self.schema)));
        while is_heard {
            let next = self.client.notifications().iter().next().map_err(failed)?;
            is_heard = next.is_some();
            heard.extend(next.and_then(|next| news_in(next.payload(), &self.schema)));
        }
        if self.client.is_closed() {
            return Err(Error::unreachable("the server has closed the connection"));
        }
        Ok(heard)
    }
}

/// The time in microseconds, the schema and the kind, as the triggers write them.
fn news_in(payload: &str, schema: &str) -> Option<News> {
    let (wake, of) = payload.split_once(' ')?;
    let kind = of.strip_prefix(schema)?.strip_prefix('/')?;
    let wake = wake.parse::<i64>().ok()?.min(LATEST);
    Some(News { kind: kind.to_owned(), wake: from_micros(wake) })
}
