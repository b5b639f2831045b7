//! Timers in a PostgreSQL database: [`Postgres`], and [`within`] a transaction of yours.
//!
//! Any number of processes on any number of machines may share the tables. This file connects, makes the tables and hears
//! of news. `table.rs` has the statements of the users, `session.rs` those of the workers.
//!
//! - PG-1 Every statement reads the time through `tickwheel_now()`, and where it is compared with a column, in a scalar
//!   subquery. So the time is read once, and the index on `(kind, wake, id)` is used up to it.
//! - PG-2 Workers pass over a row that is locked. They wait for one lock alone, that of a timer whose handler works in a
//!   transaction, and hold no other then. Users' calls that change several timers lock those that are there in the order
//!   of their numbers, before they change any. So there are no deadlocks.
//! - PG-3 A handler in a transaction holds the lock of its timer's row, which stands for its lease. Nobody claims a row
//!   that is locked, so the lease is not extended meanwhile.

mod session;
mod table;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Config, NoTls};

use self::session::Session;
pub use self::table::{Within, within};
use super::clock::{LATEST, from_micros};
use super::error::{Error, Result};
use super::store::{Connection, Listener, News, SCHEMA_VERSION, Store, Transactions};

/// The tables, as other programs may use them. The page of the module [`durable`](super#the-tables) explains them. An empty
/// schema needs nothing else: `psql -1 -f` with this text does what [`Timers::open`](super::Timers::open) does.
pub const SCHEMA: &str = concat!(include_str!("schema.sql"), "\n", include_str!("triggers.sql"));

/// The part of [`SCHEMA`] that brings the tables of an earlier version up to date.
const UPDATE: &str = include_str!("triggers.sql");

/// Any number, but the same for all processes that create the tables: one at a time does.
const MAKING_TABLES: i64 = 0x7469_636b_7768;

/// For how long an answer is awaited on a connection where nothing moves, and how soon a connection is tested.
const PATIENCE: Duration = Duration::from_secs(30);

/// How our own connections are set. A lock may be held by a handler's transaction, or by one of the user's. At a higher
/// isolation, claims at the same time would fail instead of passing over each other's rows.
const SETTINGS: &str = "SET lock_timeout = '10s';
    SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";

type Connect = dyn Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync;

/// A PostgreSQL database that keeps timers. Needs version 12 or later.
#[derive(Clone)]
pub struct Postgres {
    connect: Arc<Connect>,
}

impl Postgres {
    /// Names a database by its URL, or by key and value pairs such as `host=/run/postgresql user=me`.
    ///
    /// Connections have no TLS. For that, give a connector to [`with_connector`](Postgres::with_connector). The tables are
    /// created in the first schema of the user's search path. The URL may choose another one with
    /// `?options=-c%20search_path%3Dname`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if this is no address.
    pub fn new(address: &str) -> Result<Postgres> {
        let mut config = Config::from_str(address).map_err(|error| {
            Error::Address(format!("{} is no address", super::error::with_causes(&error)))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("tickwheel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(PATIENCE).keepalives_idle(PATIENCE);
        }
        Ok(Postgres::with_connector(move || config.connect(NoTls)))
    }

    /// Connects as this function does, for connections with TLS or with settings of your own.
    pub fn with_connector(
        connect: impl Fn() -> std::result::Result<Client, postgres::Error> + Send + Sync + 'static,
    ) -> Postgres {
        Postgres { connect: Arc::new(connect) }
    }

    fn client(&self) -> Result<Client> {
        (self.connect)().map_err(Error::unreachable)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive() // the address may contain a password
    }
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
        let mut client = self.client()?;
        client.batch_execute(SETTINGS).map_err(failed)?;
        Ok(Box::new(Session::new(client)))
    }

    fn migrate(&self) -> Result<()> {
        let mut client = self.client()?;
        let mut transaction = client.transaction().map_err(failed)?;
        transaction
            .execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING_TABLES])
            .map_err(failed)?;
        let exists = "SELECT to_regclass('tickwheel_schema') IS NOT NULL";
        let exists: bool = transaction.query_one(exists, &[]).map_err(failed)?.get(0);
        let versions = "SELECT version, oldest FROM tickwheel_schema";
        let versions =
            if exists { transaction.query_opt(versions, &[]).map_err(failed)? } else { None };
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

    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        let mut client = self.client()?;
        client.batch_execute("LISTEN tickwheel_timers").map_err(failed)?;
        let schema = "SELECT nspname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'tickwheel_timers'::regclass";
        let schema = client.query_one(schema, &[]).map_err(failed)?.get(0);
        Ok(Some(Box::new(Ear { client, schema })))
    }

    fn transactions(&self) -> Transactions {
        Transactions::Postgres
    }
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
