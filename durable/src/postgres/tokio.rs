//! Connections of tokio-postgres, for handlers that work in one of its transactions, and from pools that lend its clients.
//!
//! A session waits for each answer on the thread that uses it, as the other client does. The connection itself is driven by
//! a runtime: that of the pool, or one of our own with a single thread for all connections of a store. So it does not matter in
//! which runtime the futures are polled.

use std::sync::OnceLock;
use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Error, IsolationLevel, Row, Statement};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Transaction};

use super::link::{Link, Sql};
use crate::handler::Work;
use crate::store::TransactionType;
use tickwheel::Scheduler;
use tickwheel::future::block_on;

impl TransactionType for Transaction<'static> {
    type Transaction<'a> = Transaction<'a>;
}

/// The runtime of our own connections. It starts when it is needed.
#[derive(Default)]
pub(super) struct Driver(OnceLock<Runtime>);

impl Driver {
    /// # Errors
    ///
    /// That no thread can be started.
    pub(super) fn runtime(&self) -> std::io::Result<&Runtime> {
        if let Some(runtime) = self.0.get() {
            return Ok(runtime);
        }
        let name = "tickwheel-postgres";
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
        let mut runtime = Some(runtime);
        let first = self.0.get_or_init(|| runtime.take().expect("it was just made"));
        runtime.into_iter().for_each(Runtime::shutdown_background); // somebody else was faster
        Ok(first)
    }
}

impl Drop for Driver {
    /// The drop of a runtime would wait, which panics inside of another one.
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A client in whatever holds it, of our own or lent.
pub(super) struct Tokio<G, F, const LENT: bool> {
    pub(super) guard: G,
    /// Finds the client in it.
    pub(super) client: F,
}

/// For a client that nothing else holds.
pub(super) fn itself(client: &mut Client) -> &mut Client {
    client
}

impl<G, F: Fn(&mut G) -> &mut Client, const LENT: bool> Tokio<G, F, LENT> {
    fn get(&mut self) -> &mut Client {
        (self.client)(&mut self.guard)
    }
}

macro_rules! sql {
    ($self:ident => $client:expr) => {
        fn batch(&mut $self, sql: &str) -> Result<(), Error> {
            block_on($client.batch_execute(sql))
        }

        fn name(&mut $self, sql: &str) -> Result<Statement, Error> {
            block_on($client.prepare(sql))
        }

        fn send_named(
            &mut $self,
            statement: &Statement,
            values: &[&(dyn ToSql + Sync)],
        ) -> Result<Vec<Row>, Error> {
            block_on($client.query(statement, values))
        }

        fn send_once(
            &mut $self,
            sql: &str,
            values: &[(&(dyn ToSql + Sync), Type)],
        ) -> Result<Vec<Row>, Error> {
            block_on($client.query_typed(sql, values))
        }
    };
}

impl<G, F: Fn(&mut G) -> &mut Client, const LENT: bool> Sql for Tokio<G, F, LENT> {
    sql!(self => self.get());
}

/// A transaction, whose statements this thread waits for.
pub(super) struct Waiting<'a>(Transaction<'a>);

impl Sql for Waiting<'_> {
    sql!(self => self.0);
}

impl<G, F, const LENT: bool> Link for Tokio<G, F, LENT>
where
    G: Send + 'static,
    F: Fn(&mut G) -> &mut Client + Send + 'static,
{
    type Client = Self;
    type Transaction<'a> = Waiting<'a>;
    const IS_LENT: bool = LENT;

    fn client(&mut self) -> &mut Self {
        self
    }

    fn is_open(&mut self, ask: Option<Duration>) -> bool {
        let client = self.get();
        let answers = |time| {
            let asked = Scheduler::global().timeout(time, client.simple_query(""));
            block_on(asked).is_ok_and(|answer| answer.is_ok())
        };
        !client.is_closed() && ask.is_none_or(answers)
    }

    fn begin(&mut self) -> Result<Waiting<'_>, Error> {
        let begin = self.get().build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        block_on(begin.start()).map(Waiting)
    }

    fn hand_over(transaction: &mut Waiting<'_>, work: &mut Work<'_>) -> bool {
        work.within::<Transaction<'static>>(&mut transaction.0)
    }

    fn commit(transaction: Waiting<'_>) -> Result<(), Error> {
        block_on(transaction.0.commit())
    }
}
