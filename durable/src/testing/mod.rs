//! Helpers for the tests of your handlers, and of the code that schedules: a month of timers in milliseconds, without a sleep.
//!
//! They have the feature `testing`, for your tests alone:
//!
//! ```toml
//! [dev-dependencies]
//! tickwheel-durable = { version = "0.1", features = ["testing"] }
//! ```
//!
//! | the code under test | the test |
//! | --- | --- |
//! | a handler that is a function | [`run`] makes a [`Run`](crate::Run) to call it with |
//! | schedules timers | [`assert_scheduled`] and [`assert_not_scheduled`], on any store |
//! | handlers, retries, limits and series, as they work together | [`open`], [`WorkerBuilder::test`](crate::WorkerBuilder::test), and [`TestWorker::advance`] or [`drain`](TestWorker::drain) |
//!
//! # A month of a service
//!
//! ```
//! use std::time::Duration;
//! use tickwheel_durable::{Existing, Failure, NewTimer, Outcome, Table, WorkerBuilder, sqlite, testing};
//!
//! const DAY: Duration = Duration::from_secs(86_400);
//!
//! // ----- The service, as it is.
//!
//! fn place_order(shop: &mut rusqlite::Connection, id: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let order = shop.transaction()?;
//!     order.execute("INSERT INTO orders VALUES (?1, 'unpaid')", [id])?;
//!     let timers = [NewTimer::new("remind", id, 14 * DAY), NewTimer::new("cancel order", id, 30 * DAY)];
//!     sqlite::within(&order).schedule(&timers, Existing::Replace)?;
//!     Ok(order.commit()?)
//! }
//!
//! fn handlers(worker: WorkerBuilder) -> WorkerBuilder {
//!     worker
//!         .handle_in_sqlite("remind", |run, shop| {
//!             let mail = NewTimer::new("mail", run.key(), Duration::ZERO).payload("please pay");
//!             sqlite::within(shop).schedule(&[mail], Existing::Keep)?;
//!             Ok(())
//!         })
//!         .handle_in_sqlite("cancel order", |run, shop| {
//!             shop.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1 AND state = 'unpaid'", [run.key()])?;
//!             Ok(())
//!         })
//!         .handle("mail", |run| match run.attempt() {
//!             1 => Err(Failure::new("the mail server is away").retry_after(Duration::from_secs(3600))),
//!             _ => Ok(()),
//!         })
//!         .handle("report", |_| Ok(()))
//! }
//!
//! // ----- Its test.
//!
//! let timers = testing::open()?; // in memory, on a clock that stands still
//! let mut shop = testing::connection(&timers)?; // to the same database
//! shop.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)")?;
//! let mut worker = handlers(timers.worker()).test()?;
//!
//! timers.schedule(&NewTimer::new("report", "daily", DAY).every(DAY))?;
//! place_order(&mut shop, "4711")?;
//! testing::assert_scheduled(&timers, "remind", "4711").tolerance(Duration::ZERO).due_in(14 * DAY);
//! testing::assert_not_scheduled(&timers, "mail", "4711");
//!
//! let ran = worker.advance(29 * DAY)?;
//! assert_eq!(ran.iter().filter(|run| run.kind == "report").count(), 29);
//! let mails: Vec<_> = ran.iter().filter(|run| run.kind == "mail").map(|run| (run.outcome, run.attempt)).collect();
//! assert_eq!(mails, [(Outcome::Failed, 1), (Outcome::Done, 2)]);
//!
//! let ran = worker.advance(DAY)?;
//! assert_eq!((ran[0].kind.as_str(), ran[1].kind.as_str()), ("cancel order", "report"));
//! let state: String = shop.query_row("SELECT state FROM orders", [], |row| row.get(0))?;
//! assert_eq!(state, "cancelled");
//! testing::assert_scheduled(&timers, "report", "daily").due_in(DAY).every(DAY);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is real, and what is not
//!
//! - **The store** is the one of SQLite, in memory. So calls, transactions, constraints and limits are the real ones.
//!   [`connection`] opens further connections to it. Beside a file there is one difference: a transaction that reads and one that
//!   writes wait for each other. So end yours before the worker is to run.
//! - **The time** begins in 2030, or when [`open_at`] says, and stands still until the worker moves it.
//!   [`sqlite::within`](crate::sqlite::within) and [`Timers::now`](crate::Timers::now) go by it, and so do the functions of
//!   [`tickwheel::time`] in an async handler, and [`TestWorker::scheduler`]. `SystemTime::now` does not.
//! - **The worker** claims, runs, retries and writes outcomes by the code of every worker. It does so on your thread, one run after the
//!   other in the order of their due times, so a program gives the same runs in the same order each time. A handler takes no time, unless
//!   it is async and sleeps. What is about threads, leases and other processes is not tested by it, and
//!   what a worker removes after a time ([`keep_dead`](crate::WorkerBuilder::keep_dead)) stays.
//! - **In an async test** the worker's calls hold up the thread on which they are made. So the test needs a runtime with other threads,
//!   such as `#[tokio::test(flavor = "multi_thread")]`. While a handler waits for the runtime, for a server say, virtual time stands
//!   still: see [`patience`](TestWorker::patience).
//! - A real [`Worker`](crate::Worker) may work on the same store. It polls in real time, and when
//!   [`advance`](TestWorker::advance) returns, it looks for what is due by the virtual clock. Give it a
//!   [`lease`](crate::WorkerBuilder::lease) that outlasts all the time that passes: a minute of virtual time passes faster than it can
//!   extend one.
//!
//! # PostgreSQL
//!
//! Handlers for PostgreSQL's transactions need a server. [`assert_scheduled`] works with any store, so a test on a real server, with a
//! schema of its own (`?schema=name`) and a real worker, can assert what was scheduled. All that this crate does there reads the time
//! from the function `tickwheel_now()`. So in a schema that is of tests alone, the time can be the test's own:
//!
//! ```sql
//! CREATE SEQUENCE of_tests.virtual_clock; -- microseconds since 1970
//! CREATE OR REPLACE FUNCTION of_tests.tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE
//!     AS 'SELECT to_timestamp(last_value / 1000000.0) FROM of_tests.virtual_clock';
//! -- Three days on. Then call `Timers::tell`, so that the workers look at once.
//! SELECT setval('of_tests.virtual_clock', 1000000 * extract(epoch FROM timestamptz '2030-01-04')::bigint);
//! ```
//!
//! # Coming from
//!
//! | Oban | River | here |
//! | --- | --- | --- |
//! | `perform_job(Worker, args)`, `build_job` | `rivertest.NewWorker(..).Work` | [`run`], and a call of the handler |
//! | `assert_enqueued` | `rivertest.RequireInserted`, `RequireManyInserted` | [`assert_scheduled`], on any connection that has committed |
//! | `refute_enqueued` | `rivertest.RequireNotInserted` | [`assert_not_scheduled`] |
//! | `all_enqueued` | | [`Timers::list`](crate::Timers::list) |
//! | `drain_queue` | | [`TestWorker::drain`] |
//! | `drain_queue(with_recursion: true)` | | [`TestWorker::drain`] always takes in what its runs schedule |
//! | `drain_queue(with_scheduled: time)` | | [`TestWorker::advance_to`], in the order of due times, and each run sees its time |
//! | `with_safety: false` | | each [`Attempt`](crate::Attempt) that is returned has its outcome and error |
//! | `testing: :manual` | | [`open`], until the worker is told to run |
//! | `testing: :inline` | | [`TestWorker::drain`] after the call |
//! | | `rivertest.TimeStub` | the virtual clock of [`open`] |

mod assertions;
mod clock;
mod run;

use std::time::{Duration, SystemTime};

use rusqlite::Connection as Client;

use crate::error::{Error, Result};
use crate::timers::Timers;

pub use self::assertions::{ScheduledTimer, assert_not_scheduled, assert_scheduled};
pub(crate) use self::clock::{VirtualClock, clock_of, time_of};
pub use self::run::{CancelRun, RunBuilder, run, run_of};
pub use crate::worker::{MOST_AT_ONCE, TestWorker};

/// The first moment of 2030, in seconds since 1970.
const BEGIN: u64 = 1_893_456_000;

/// Opens a store in memory, on a virtual clock that begins on the first of January 2030 and stands still until a [`TestWorker`] moves
/// it. Each call opens another store, so tests do not meet. It lasts as long as the timers.
///
/// # Errors
///
/// The errors of the database.
pub fn open() -> Result<Timers> {
    open_at(SystemTime::UNIX_EPOCH + Duration::from_secs(BEGIN))
}

/// Like [`open`], with a clock that begins at this time.
///
/// # Errors
///
/// [`Error::Invalid`] if it is before 1970, or not two hundred years before the end of 9998, and the errors of the database.
pub fn open_at(begin: SystemTime) -> Result<Timers> {
    Timers::with_store(store_at(begin)?)
}

/// Makes the store of [`open_at`], to open it with [`OpenOptions`](crate::OpenOptions).
///
/// # Errors
///
/// [`Error::Invalid`] if it has no scheduler, or as [`open_at`].
pub fn store_at(begin: SystemTime) -> Result<crate::sqlite::Sqlite> {
    clock::store(begin)
}

/// Opens a connection to the store of [`open`], for the tables and transactions of the code under test.
///
/// # Errors
///
/// [`Error::Invalid`] if the timers are from somewhere else, and the errors of the database.
pub fn connection(timers: &Timers) -> Result<Client> {
    let address = timers.stores().first().map(|one| one.store().name()).unwrap_or_default();
    if clock_of(&address).is_none() {
        return Err(Error::Invalid("these timers are not from `testing::open`".to_owned()));
    }
    Client::open(&address).map_err(Error::refused)
}
