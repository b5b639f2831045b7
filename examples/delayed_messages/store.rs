//! The table of messages, in SQLite or in PostgreSQL.
//!
//! A delivery is a row with the message's id as its key. It is written in the transaction that marks the message as
//! sent. So a kill leaves both or neither, and no message is ever sent twice. To send by other means, such as mail, let
//! another program pass on the rows, and let the receiver recognise a message by its id, because no transaction reaches
//! that far.
//!
//! The two databases understand the same SQL, with one exception: how a process keeps others away from the messages
//! that it is sending. SQLite has one writer at a time. In PostgreSQL a process locks the rows that it takes, and
//! others skip those.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use postgres::NoTls;
use rusqlite::TransactionBehavior;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A message and the time at which it is due. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The caller chooses the id, so that a message can be added twice without harm.
    pub(crate) id: i64,
    pub(crate) text: String,
    pub(crate) send_at: i64,
}

/// A record that a message was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) message: i64,
    pub(crate) sent_at: i64,
    /// The process that sent it.
    pub(crate) sent_by: String,
}

/// A table of messages that any number of processes may share.
pub(crate) trait Store: Send {
    /// Returns the time by the database's clock, so that all processes go by the same clock.
    fn now(&mut self) -> Result<i64>;

    /// Puts a message in, unless there is one with its id, sent or not. Returns true if it was put in.
    fn add(&mut self, message: &Message) -> Result<bool>;

    /// Sends the messages that are due at `now`, no more than `at_most`, the longest due first. It sends all of
    /// them or none.
    fn deliver_due(&mut self, now: i64, at_most: u32, sent_by: &str) -> Result<Vec<Message>>;

    /// Returns the number of messages that are not sent yet, due or not.
    fn waiting(&mut self) -> Result<u64>;

    /// Returns the deliveries, by id.
    fn deliveries(&mut self) -> Result<Vec<Delivery>>;

    /// Removes all messages and deliveries.
    fn clear(&mut self) -> Result<()>;
}

// ----- what both databases understand ------------------------------------------------------

/// The index holds only messages that still wait, so a look stays cheap however many were sent.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS tickwheel_messages (
        id BIGINT PRIMARY KEY,
        text TEXT NOT NULL,
        send_at BIGINT NOT NULL,
        sent BOOLEAN NOT NULL DEFAULT FALSE
    );
    CREATE INDEX IF NOT EXISTS tickwheel_messages_waiting
        ON tickwheel_messages (send_at, id) WHERE NOT sent;
    CREATE TABLE IF NOT EXISTS tickwheel_deliveries (
        message BIGINT PRIMARY KEY REFERENCES tickwheel_messages (id),
        sent_at BIGINT NOT NULL,
        sent_by TEXT NOT NULL
    );";

const ADD: &str = "
    INSERT INTO tickwheel_messages (id, text, send_at) VALUES ($1, $2, $3)
    ON CONFLICT (id) DO NOTHING";

const DUE: &str = "
    SELECT id, text, send_at FROM tickwheel_messages
    WHERE NOT sent AND send_at <= $1
    ORDER BY send_at, id LIMIT $2";

const MARK: &str = "UPDATE tickwheel_messages SET sent = TRUE WHERE id = $1";

const RECORD: &str =
    "INSERT INTO tickwheel_deliveries (message, sent_at, sent_by) VALUES ($1, $2, $3)";

const WAITING: &str = "SELECT count(*) FROM tickwheel_messages WHERE NOT sent";

const DELIVERIES: &str =
    "SELECT message, sent_at, sent_by FROM tickwheel_deliveries ORDER BY message";

const CLEAR: &str = "DELETE FROM tickwheel_deliveries; DELETE FROM tickwheel_messages;";

// ----- SQLite ------------------------------------------------------------------------------

/// A file on this machine.
pub(crate) struct Sqlite {
    connection: rusqlite::Connection,
}

/// How long to wait for the transactions of other processes, which take milliseconds.
const BUSY: Duration = Duration::from_secs(10);

impl Sqlite {
    /// Opens the file, or creates it.
    pub(crate) fn open(path: &Path) -> Result<Sqlite> {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        let mut store = Sqlite { connection };
        store.write(|transaction| transaction.execute_batch(SCHEMA))?;
        Ok(store)
    }

    /// `BEGIN IMMEDIATE` takes the lock for writing at once. A transaction that reads first and writes later may fail
    /// in between, without waiting, because another process has written.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let result = work(&transaction)?; // on an error the transaction is dropped, which rolls it back
        transaction.commit()?;
        Ok(result)
    }
}

impl Store for Sqlite {
    fn now(&mut self) -> Result<i64> {
        let now = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
        Ok(self.connection.query_row(now, [], |row| row.get(0))?)
    }

    fn add(&mut self, Message { id, text, send_at }: &Message) -> Result<bool> {
        Ok(self.connection.execute(ADD, (id, text, send_at))? > 0)
    }

    fn deliver_due(&mut self, now: i64, at_most: u32, sent_by: &str) -> Result<Vec<Message>> {
        self.write(|transaction| {
            let mut due = transaction.prepare(DUE)?;
            let due = due.query_map((now, at_most), |row| {
                Ok(Message { id: row.get(0)?, text: row.get(1)?, send_at: row.get(2)? })
            })?;
            let due = due.collect::<rusqlite::Result<Vec<_>>>()?;
            let mut mark = transaction.prepare(MARK)?;
            let mut record = transaction.prepare(RECORD)?;
            for message in &due {
                mark.execute([message.id])?;
                record.execute((message.id, now, sent_by))?;
            }
            Ok(due)
        })
    }

    fn waiting(&mut self) -> Result<u64> {
        Ok(self.connection.query_row(WAITING, [], |row| row.get::<_, i64>(0))?.try_into()?)
    }

    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        let mut deliveries = self.connection.prepare(DELIVERIES)?;
        let rows = deliveries.query_map([], |row| {
            Ok(Delivery { message: row.get(0)?, sent_at: row.get(1)?, sent_by: row.get(2)? })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn clear(&mut self) -> Result<()> {
        self.write(|transaction| transaction.execute_batch(CLEAR))
    }
}

// ----- PostgreSQL --------------------------------------------------------------------------

/// A server that processes on many machines may share.
pub(crate) struct Postgres {
    client: postgres::Client,
}

/// Any number, but the same one for all processes that create the tables.
const MAKING_TABLES: i64 = 0x7469_636b;

impl Postgres {
    /// Connects without TLS, which is enough on one machine or inside one network. Otherwise pass a connector of the
    /// crate `postgres-native-tls` instead of `NoTls`.
    pub(crate) fn connect(url: &str) -> Result<Postgres> {
        let mut store = Postgres { client: postgres::Client::connect(url, NoTls)? };
        store.make_tables()?;
        Ok(store)
    }

    /// Creates the tables, one process at a time: `IF NOT EXISTS` does not keep two from creating the same table at
    /// once.
    fn make_tables(&mut self) -> Result<()> {
        let mut transaction = self.client.transaction()?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING_TABLES])?;
        transaction.batch_execute(SCHEMA)?;
        Ok(transaction.commit()?)
    }
}

impl Store for Postgres {
    fn now(&mut self) -> Result<i64> {
        let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        Ok(self.client.query_one(now, &[])?.try_get(0)?)
    }

    fn add(&mut self, Message { id, text, send_at }: &Message) -> Result<bool> {
        Ok(self.client.execute(ADD, &[id, text, send_at])? > 0)
    }

    /// `SKIP LOCKED` passes over messages that another process is sending just now, instead of waiting for them. If
    /// that process dies, the server undoes its transaction, and the other processes send its messages.
    fn deliver_due(&mut self, now: i64, at_most: u32, sent_by: &str) -> Result<Vec<Message>> {
        let mut transaction = self.client.transaction()?;
        let due = format!("{DUE} FOR UPDATE SKIP LOCKED");
        let rows = transaction.query(&due, &[&now, &i64::from(at_most)])?;
        let due = rows.iter().map(|row| {
            Ok(Message { id: row.try_get(0)?, text: row.try_get(1)?, send_at: row.try_get(2)? })
        });
        let due = due.collect::<Result<Vec<_>>>()?;
        let (mark, record) = (transaction.prepare(MARK)?, transaction.prepare(RECORD)?);
        for message in &due {
            transaction.execute(&mark, &[&message.id])?;
            transaction.execute(&record, &[&message.id, &now, &sent_by])?;
        }
        transaction.commit()?;
        Ok(due)
    }

    fn waiting(&mut self) -> Result<u64> {
        Ok(self.client.query_one(WAITING, &[])?.try_get::<_, i64>(0)?.try_into()?)
    }

    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        let rows = self.client.query(DELIVERIES, &[])?;
        let deliveries = rows.iter().map(|row| {
            Ok(Delivery {
                message: row.try_get(0)?,
                sent_at: row.try_get(1)?,
                sent_by: row.try_get(2)?,
            })
        });
        deliveries.collect()
    }

    fn clear(&mut self) -> Result<()> {
        Ok(self.client.batch_execute(CLEAR)?)
    }
}
