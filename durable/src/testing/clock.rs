//! The virtual clock of a store in memory, and how it is found from a connection to that store.
//!
//! A database in memory that several connections of a process share has a name (`vfs=memdb`). The name leads to the clock: a worker
//! has it from the store, and [`sqlite::within`](crate::sqlite::within) from a table in the database, because SQLite does not tell the
//! name of such a database by itself. So code under test needs to be given no clock.
//!
//! - VIRTUAL-1 A clock and the scheduler of its workers are one: its time is the scheduler's, counted from a begin. So a store, a
//!   worker, and a future that sleeps agree about the time.
//! - VIRTUAL-2 A clock, and its database, live as long as the store. Their name is never given to another one in the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::Connection as Client;
use tickwheel::{Driver, Precision, Scheduler};

use crate::clock::{LATEST, from_micros};
use crate::error::{Error, Result};
use crate::sqlite::Sqlite;

/// For how long a clock goes. A scheduler counts nanoseconds in 64 bits, and so nearly three hundred years.
const LONGEST: Duration = Duration::from_secs(200 * 365 * 86_400);

pub(crate) struct VirtualClock {
    /// The time of the store at `start`.
    begin: SystemTime,
    start: Instant,
    pub(crate) scheduler: Scheduler,
    pub(crate) driver: Driver,
    #[expect(dead_code, reason = "the database ends with its last connection (VIRTUAL-2)")]
    database: Mutex<Client>,
}

impl VirtualClock {
    /// Returns the time that the store shows: the scheduler's (VIRTUAL-1).
    pub(crate) fn now(&self) -> SystemTime {
        self.time(self.scheduler.now())
    }

    pub(crate) fn time(&self, instant: Instant) -> SystemTime {
        self.begin + instant.saturating_duration_since(self.start)
    }

    /// Returns when a task of the scheduler is due next.
    pub(crate) fn next_task(&self) -> Option<SystemTime> {
        Some(self.time(self.driver.next_deadline()?))
    }

    /// Moves the time, and runs the tasks of the scheduler that are due by then.
    pub(crate) fn advance_to(&self, time: SystemTime) {
        self.driver.advance(time.duration_since(self.now()).unwrap_or_default());
    }

    /// Returns the time so long after now, or an error if the clock does not reach it.
    pub(crate) fn after(&self, delay: Duration) -> Result<SystemTime> {
        let since = self.scheduler.now() - self.start;
        let then = since.checked_add(delay).filter(|then| *then <= LONGEST);
        then.and_then(|then| self.begin.checked_add(then)).ok_or_else(|| {
            Error::Invalid(format!(
                "a virtual clock goes for two hundred years, and {delay:?} is too long"
            ))
        })
    }
}

type Clocks = BTreeMap<String, Weak<VirtualClock>>;

/// The clocks of this process, by the names of their databases (VIRTUAL-2).
fn clocks() -> MutexGuard<'static, Clocks> {
    static CLOCKS: Mutex<Clocks> = Mutex::new(BTreeMap::new());
    CLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

const BEFORE: &str = "file:";
const BEHIND: &str = "?vfs=memdb";

/// Makes a store in memory on a clock of its own.
pub(super) fn store(begin: SystemTime) -> Result<Sqlite> {
    /// Relaxed: it orders nothing.
    static MADE: AtomicU64 = AtomicU64::new(0);
    if begin < SystemTime::UNIX_EPOCH || begin > from_micros(LATEST) - LONGEST {
        let problem = "a virtual clock begins in a year from 1970 to 9798, because stores have no times before and long after that";
        return Err(Error::Invalid(problem.to_owned()));
    }
    let builder = Scheduler::builder().precision(Precision::Exact);
    let (scheduler, driver) =
        builder.build_driven().map_err(|error| Error::Invalid(error.to_string()))?;
    let start = scheduler.now();
    let name = format!("/tickwheel-testing-{}", MADE.fetch_add(1, Ordering::Relaxed));
    let address = format!("{BEFORE}{name}{BEHIND}");
    let database = Client::open(&address).map_err(Error::refused)?;
    let sql = format!("CREATE TABLE tickwheel_virtual_clock AS SELECT '{name}' AS name");
    database.execute_batch(&sql).map_err(Error::refused)?;
    let database = Mutex::new(database);
    let clock = Arc::new(VirtualClock { begin, start, scheduler, driver, database });
    let mut clocks = clocks();
    clocks.retain(|_, clock| clock.strong_count() > 0);
    clocks.insert(name, Arc::downgrade(&clock));
    drop(clocks);
    Ok(Sqlite::with_wall_clock(address, move || clock.now()))
}

/// Returns the clock of a store, by the name that the store tells.
pub(crate) fn clock_of(store: &str) -> Option<Arc<VirtualClock>> {
    named(store.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?)
}

fn named(database: &str) -> Option<Arc<VirtualClock>> {
    clocks().get(database)?.upgrade()
}

/// Returns the time that a connection of the user's goes by.
pub(crate) fn time_of(client: &Client) -> SystemTime {
    if client.path().is_some_and(|path| !path.is_empty()) {
        return SystemTime::now(); // a file
    }
    let name = client.prepare_cached("SELECT name FROM tickwheel_virtual_clock");
    let name = name.and_then(|mut name| name.query_row([], |row| row.get::<_, String>(0)));
    let clock = name.ok().and_then(|name| named(&name));
    clock.map_or_else(SystemTime::now, |clock| clock.now())
}
