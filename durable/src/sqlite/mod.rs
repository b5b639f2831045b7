//! Timers in a SQLite file: [`Sqlite`], and [`within`] a transaction of yours.
//!
//! A process has one connection to the file, which all its threads share in turn, because SQLite has one writer at a time
//! anyway. Several processes may share the file, on one machine. The file is in WAL mode, and each commit is synchronised
//! to the disk before it returns.
//!
//! The database's clock is the machine's. Times in the table are milliseconds since 1970; a due time is rounded up, and
//! the time at which it is compared is rounded down, so nothing is early.
//!
//! This file shares the connection and makes the tables. `table.rs` has the statements of the users, `session.rs` those
//! of the workers, and `history.rs` those about what has been.
//!
//! - SQLITE-1 A transaction that writes begins with `BEGIN IMMEDIATE`. One that read first and wrote later could fail in
//!   between, because another process has written.
//! - SQLITE-2 The connection is not in its place while a thread uses it, and nothing is locked. So a handler that calls
//!   the store from inside its own transaction gets an error after some seconds, and not a deadlock. Threads get it in the order in
//!   which they have asked.
//! - SQLITE-3 SQLite does not queue the processes that want to write. One that waits looks after pauses of its own, which grow to 100 ms
//!   in other programs, so a worker that wrote without a pause would keep them out for seconds. While others write in the file, a
//!   worker leaves it free for as long as it has had it. Its transactions take milliseconds.

mod history;
mod session;
mod table;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{
    Connection as Client, ErrorCode, OptionalExtension, Transaction, TransactionBehavior,
};

use self::session::Session;
pub use self::table::{Within, within};
use crate::clock::micros;
use crate::error::{Error, Result};
use crate::store::{Connection, SCHEMA_VERSION, Store, TransactionType, Transactions};
#[cfg(feature = "testing")]
use crate::testing::time_of;

macro_rules! migrations {
    ($($file:literal),*) => {
        /// The files of `migrations/sqlite`: the first makes the tables, and each of the others brings those of the version
        /// before it up to date. The [first page](crate#the-tables) tells how to run them with a tool of your own.
        pub const MIGRATIONS: &[&str] =
            &[$(include_str!(concat!("../../migrations/sqlite/", $file))),*];

        /// All of [`MIGRATIONS`], one after the other. An empty file needs nothing else.
        pub const SCHEMA: &str =
            concat!($(include_str!(concat!("../../migrations/sqlite/", $file)), "\n"),*);
    };
}

migrations! {
    "0001_timers.sql", "0002_moves.sql", "0003_checks.sql", "0004_notices.sql", "0005_workers.sql", "0006_limits.sql",
    "0007_history.sql"
}

/// How long to wait for the transactions of other threads and processes, which take milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// For how long others count as present that have written in the file.
const OTHERS: Duration = Duration::from_secs(10);

/// The longest rest of a worker. The transaction of a handler may take longer.
const LONGEST_REST: Duration = Duration::from_millis(50);

type WallClock = dyn Fn() -> SystemTime + Send + Sync;

/// A SQLite file that keeps timers.
#[derive(Clone)]
pub struct Sqlite {
    file: Arc<File>,
}

struct File {
    path: PathBuf,
    clock: Box<WallClock>,
    desk: Mutex<Desk>,
    /// How often a connection was opened.
    opened: AtomicU64,
    is_free: Condvar,
    share: Mutex<Share>,
}

/// The connection, and the threads that wait for it (SQLITE-2).
struct Desk {
    place: Place,
    queue: VecDeque<u64>,
    tickets: u64,
}

/// How workers share the file with other processes (SQLITE-3).
#[derive(Default)]
struct Share {
    /// SQLite's number of the last change by others, and which connection has given it.
    changes: Option<(u64, i64)>,
    /// Others have written not long ago.
    others_until: Option<Instant>,
    /// Until then the file is left to others.
    rest_until: Option<Instant>,
}

/// Where the connection is.
enum Place {
    Free(Client),
    /// A thread uses it (SQLITE-2).
    InUse,
    /// It was never opened, or has failed.
    Closed,
}

impl Sqlite {
    /// Names a file, which is created if it is not there. `:memory:` is a database without a file, for tests.
    pub fn new(path: impl AsRef<Path>) -> Sqlite {
        Sqlite::with_wall_clock(path, SystemTime::now)
    }

    /// Like [`new`](Sqlite::new), on a clock of your own. For tests, in which the time is to stand still or to jump.
    pub fn with_wall_clock(
        path: impl AsRef<Path>,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Sqlite {
        let file = File {
            path: path.as_ref().to_path_buf(),
            clock: Box::new(clock),
            desk: Mutex::new(Desk { place: Place::Closed, queue: VecDeque::new(), tickets: 0 }),
            opened: AtomicU64::new(0),
            is_free: Condvar::new(),
            share: Mutex::default(),
        };
        Sqlite { file: Arc::new(file) }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.file.path).finish_non_exhaustive()
    }
}

impl File {
    /// Microseconds.
    fn now(&self) -> i64 {
        micros((self.clock)())
    }

    fn open(&self) -> Result<Client> {
        #[allow(unused_mut, reason = "a later rusqlite borrows it mutably for its handler")]
        let mut client = Client::open(&self.path).map_err(failed)?;
        client.busy_handler(Some(is_worth_another_try)).map_err(failed)?;
        set_wal(&client)?;
        client.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
        client.set_prepared_statement_cache_capacity(32);
        // SQLite empties the log after a commit. On a full disk there is none before the log is empty, which it can be once
        // those have gone who read in it. If it fails, so will a write.
        _ = client.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        self.opened.fetch_add(1, Ordering::Relaxed); // the place of the connection orders it
        Ok(client)
    }

    /// Uses the connection. After an error of the file itself it is opened anew the next time.
    fn with<T>(&self, work: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let mut lent = self.take()?;
        let client = match &mut lent.client {
            Some(client) => client,
            closed => closed.insert(self.open()?),
        };
        let result = work(client);
        if matches!(result, Err(Error::Unreachable(_))) && self.path.as_os_str() != ":memory:" {
            lent.client = None;
        }
        result
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection out of its place, or the right to open one.
    fn take(&self) -> Result<Lent<'_>> {
        let deadline = Instant::now() + PATIENCE;
        let mut desk = self.desk();
        desk.tickets += 1;
        let mine = desk.tickets;
        desk.queue.push_back(mine);
        loop {
            if desk.queue.front() == Some(&mine) {
                let client = match std::mem::replace(&mut desk.place, Place::InUse) {
                    Place::Free(client) => Some(Some(client)),
                    Place::Closed => Some(None),
                    Place::InUse => None,
                };
                if let Some(client) = client {
                    desk.queue.pop_front();
                    return Ok(Lent { file: self, client });
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                desk.queue.retain(|ticket| *ticket != mine);
                drop(desk);
                self.is_free.notify_all(); // the next one may be at the front now
                return Err(Error::Busy);
            }
            desk = self.is_free.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns SQLite's number of the last change by other connections, and which connection has given it: each counts for
    /// itself.
    fn changes(&self, client: &Client) -> Result<(u64, i64)> {
        let mut statement = client.prepare_cached("PRAGMA data_version").map_err(failed)?;
        let version = statement.query_row([], |row| row.get(0)).map_err(failed)?;
        Ok((self.opened.load(Ordering::Relaxed), version)) // the place of the connection orders it
    }

    /// Does what `write` does for a worker, which leaves room for others (SQLITE-3).
    fn write_and_rest<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.with(|client| {
            // The other threads of this process wait too, or they would go on one after the other.
            let rest = self.share().rest_until;
            thread::sleep(
                rest.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now())),
            );
            let changes = self.changes(client)?;
            let transaction = begin(client)?;
            let began = Instant::now();
            let result = work(&transaction)?;
            transaction.commit().map_err(failed)?;
            let ended = Instant::now();
            let mut share = self.share();
            if share.changes.replace(changes).is_some_and(|before| before != changes) {
                share.others_until = Some(ended + OTHERS);
            }
            let has_others = share.others_until.is_some_and(|until| ended < until);
            share.rest_until = has_others.then(|| ended + (ended - began).min(LONGEST_REST));
            Ok(result)
        })
    }

    fn share(&self) -> MutexGuard<'_, Share> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all changes or none (SQLITE-1).
    fn write<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.with(|client| {
            let transaction = begin(client)?;
            let result = work(&transaction)?; // on an error the transaction is dropped, which undoes it
            transaction.commit().map_err(failed)?;
            Ok(result)
        })
    }
}

/// SQLite asks this when another process writes in the file: `tries` tries have failed. Its own timeout pauses for up to 100 ms, and
/// the other process may leave the file free for less.
fn is_worth_another_try(tries: i32) -> bool {
    thread_local!(static FIRST: Cell<Option<Instant>> = const { Cell::new(None) });
    let now = Instant::now();
    if tries == 0 {
        FIRST.set(Some(now));
    }
    if FIRST.get().is_some_and(|first| now - first > PATIENCE) {
        return false;
    }
    thread::sleep(Duration::from_micros(if tries < 20 { 300 } else { 1000 }));
    true
}

/// SQLite does not wait here, as it does elsewhere, for somebody who writes: another process, say, that opens a new file.
fn set_wal(client: &Client) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The answer is the mode, which stays `memory` for a database without a file.
        let mode = client.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(failed);
        if !matches!(mode, Err(Error::Busy)) || Instant::now() > deadline {
            return mode;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The connection, on loan. Its `Drop` puts it back, also after a panic.
struct Lent<'a> {
    file: &'a File,
    client: Option<Client>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.file.desk().place = self.client.take().map_or(Place::Closed, Place::Free);
        self.file.is_free.notify_all(); // one of them has the first ticket
    }
}

/// The clock of a file, as a connection of the user's has it. In a test it may be a virtual one.
#[cfg(not(feature = "testing"))]
fn time_of(_: &Client) -> SystemTime {
    SystemTime::now()
}

fn begin(client: &mut Client) -> Result<Transaction<'_>> {
    client.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)
}

/// Returns the version of the tables. Zero: there are none.
fn version(client: &Client) -> Result<i32> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE name = 'tickwheel_schema'";
    let exists: i64 = client.query_row(exists, [], |row| row.get(0)).map_err(failed)?;
    if exists == 0 {
        return Ok(0);
    }
    let versions = "SELECT version, oldest FROM tickwheel_schema";
    let versions = client.query_row(versions, [], |row| Ok((row.get(0)?, row.get(1)?)));
    match versions.optional().map_err(failed)? {
        Some((_, oldest)) if oldest > SCHEMA_VERSION => Err(Error::Schema(oldest)),
        Some((version, _)) => Ok(version),
        None => Ok(0),
    }
}

fn failed(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    if matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) {
        return Error::Busy;
    }
    let of_the_file = [
        ErrorCode::SystemIoFailure,
        ErrorCode::CannotOpen,
        ErrorCode::DatabaseCorrupt,
        ErrorCode::NotADatabase,
        ErrorCode::DiskFull,
        ErrorCode::ReadOnly,
        ErrorCode::OutOfMemory,
    ];
    if code.is_some_and(|code| of_the_file.contains(&code)) {
        Error::unreachable(error)
    } else {
        Error::refused(error)
    }
}

impl Store for Sqlite {
    fn name(&self) -> String {
        self.file.path.display().to_string()
    }

    fn connect(&self) -> Result<Box<dyn Connection>> {
        self.file.with(|_| Ok(()))?;
        Ok(Box::new(Session::new(&self.file)))
    }

    fn migrate(&self) -> Result<()> {
        self.file.write(|transaction| {
            let version = version(transaction)?;
            let mut missing = MIGRATIONS.iter().skip(version.unsigned_abs() as usize);
            missing.try_for_each(|sql| transaction.execute_batch(sql).map_err(failed))
        })
    }

    fn check(&self) -> Result<()> {
        self.file.with(|client| match version(client)? {
            version if version < SCHEMA_VERSION => Err(Error::Unmigrated(version)),
            _ => Ok(()),
        })
    }

    fn has_limits(&self) -> bool {
        true
    }

    fn transactions(&self) -> Transactions {
        Transactions::of::<Transaction<'static>>()
    }
}

impl TransactionType for Transaction<'static> {
    type Transaction<'a> = Transaction<'a>;
}
