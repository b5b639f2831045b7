//! What a session speaks through: a client of our own, one that a pool of the user's lends, or the same of tokio-postgres.
//!
//! - LINK-1 A connection that was lent goes back as it came. So it gets no settings and no named statements, as behind a
//!   pooler (PG-4), and nobody keeps it between two calls.

use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Error, GenericClient, IsolationLevel, Row, Statement, Transaction};

use crate::handler::Work;

/// Something that statements are sent through.
pub trait Sql {
    /// Sends statements without values.
    ///
    /// # Errors
    ///
    /// The client's.
    fn batch(&mut self, sql: &str) -> Result<(), Error>;

    /// Names a statement.
    ///
    /// # Errors
    ///
    /// The client's.
    fn name(&mut self, sql: &str) -> Result<Statement, Error>;

    /// Sends a statement that has a name.
    ///
    /// # Errors
    ///
    /// The client's.
    fn send_named(
        &mut self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error>;

    /// Sends a statement that has none.
    ///
    /// # Errors
    ///
    /// The client's.
    fn send_once(
        &mut self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error>;
}

impl<C: GenericClient> Sql for C {
    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.batch_execute(sql)
    }

    fn name(&mut self, sql: &str) -> Result<Statement, Error> {
        self.prepare(sql)
    }

    fn send_named(
        &mut self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.query(statement, values)
    }

    fn send_once(
        &mut self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.query_typed(sql, values)
    }
}

/// A connection.
pub(super) trait Link: Send + 'static {
    type Client: Sql;
    type Transaction<'a>: Sql;

    /// It was lent (LINK-1).
    const IS_LENT: bool;

    fn client(&mut self) -> &mut Self::Client;

    /// Returns false if the connection is closed. With a time, the server is asked.
    fn is_open(&mut self, ask: Option<Duration>) -> bool;

    /// Begins a transaction with the isolation READ COMMITTED. It is undone when it is dropped.
    fn begin(&mut self) -> Result<Self::Transaction<'_>, Error>;

    /// Gives it to the handler.
    fn hand_over(transaction: &mut Self::Transaction<'_>, work: &mut Work<'_>) -> bool;

    fn commit(transaction: Self::Transaction<'_>) -> Result<(), Error>;
}

/// A client of our own.
pub(super) struct Own {
    /// `None` while it is dropped.
    client: Option<Client>,
    is_silent: bool,
}

impl Own {
    pub(super) fn new(client: Client) -> Own {
        Own { client: Some(client), is_silent: false }
    }

    /// Asks whether the server is still there.
    pub(super) fn ask(&mut self, patience: Duration) -> Result<(), Error> {
        let answer = self.is_valid(patience);
        self.is_silent = answer.is_err();
        answer
    }
}

impl Deref for Own {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("it is not dropped")
    }
}

impl DerefMut for Own {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is not dropped")
    }
}

/// The drop of a client waits for the answers that are still to come. From a server that is halted there may never be one, so a thread
/// waits for those, and nobody for the thread.
impl Drop for Own {
    fn drop(&mut self) {
        let client = self.client.take();
        if self.is_silent {
            let thread = thread::Builder::new().name("tickwheel-silent".to_owned());
            _ = thread.spawn(move || drop(client));
        }
    }
}

impl Link for Own {
    type Client = Client;
    type Transaction<'a> = Transaction<'a>;
    const IS_LENT: bool = false;

    fn client(&mut self) -> &mut Client {
        self
    }

    fn is_open(&mut self, ask: Option<Duration>) -> bool {
        !self.is_closed() && ask.is_none_or(|time| self.ask(time).is_ok())
    }

    fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        begin(self)
    }

    fn hand_over(transaction: &mut Transaction<'_>, work: &mut Work<'_>) -> bool {
        work.within::<Transaction<'static>>(transaction)
    }

    fn commit(transaction: Transaction<'_>) -> Result<(), Error> {
        transaction.commit()
    }
}

fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start()
}

/// One that a pool lends.
pub(super) struct Lent<G>(pub(super) G);

impl<G: DerefMut<Target = Client> + Send + 'static> Link for Lent<G> {
    type Client = Client;
    type Transaction<'a> = Transaction<'a>;
    const IS_LENT: bool = true;

    fn client(&mut self) -> &mut Client {
        &mut self.0
    }

    fn is_open(&mut self, ask: Option<Duration>) -> bool {
        !self.0.is_closed() && ask.is_none_or(|time| self.0.is_valid(time).is_ok())
    }

    fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        begin(&mut self.0)
    }

    fn hand_over(transaction: &mut Transaction<'_>, work: &mut Work<'_>) -> bool {
        Own::hand_over(transaction, work)
    }

    fn commit(transaction: Transaction<'_>) -> Result<(), Error> {
        transaction.commit()
    }
}
