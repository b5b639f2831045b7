//! The sessions: a delay queue, and a file that follows it.
//!
//! A thread of its own writes the file, after each change and otherwise once a second:
//!
//! - After each change, because a request is answered only when its change is in the file. So a session that was opened
//!   or touched survives a kill, and one that was closed, or reported as expired, does not come back. Changes that come
//!   during a write share the next one.
//! - Once a second, because the file tells how much time each session has left. A kill gives a session at most this
//!   second more, and never less.
//!
//! The file has the time that is left, and not a deadline: an `Instant` means nothing to the next process, and the time
//! of day may be set. So the time between two runs does not count.
//!
//! Each write writes all sessions, which is good enough for some thousands. For millions take a database, as the example
//! `delayed_messages` does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel::delay::{DelayQueue, Expired};
use tokio::sync::oneshot;

/// The longest time between two writes.
const EVERY: Duration = Duration::from_secs(1);
const LONGEST_NAME: usize = 32;

/// What a client knows of its session: 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(u128);

/// A session as it comes out of the queue: the id, the user, and the deadline.
pub(crate) type Session = Expired<Id, String>;

/// Why a request was refused.
pub(crate) enum Refusal {
    BadName,
    Unknown,
    /// The change is made, but it is not in the file.
    NotWritten,
    Closed,
}

/// A request to write the file.
struct Order {
    closes: bool,
    /// It is told whether the file is written.
    done: oneshot::Sender<bool>,
}

pub(crate) struct Store {
    queue: DelayQueue<Id, String>,
    /// At least the keys of the queue, which does not list them.
    ids: Mutex<BTreeSet<Id>>,
    idle: Duration,
    orders: mpsc::Sender<Order>,
}

/// The thread that writes the file, before it runs.
pub(crate) struct Writer {
    store: Arc<Store>,
    orders: Receiver<Order>,
    path: PathBuf,
    /// What is in the file.
    written: Option<String>,
}

impl Store {
    /// Reads the file, if there is one, and goes on with its sessions. A session lives for `idle` after its last touch.
    pub(crate) fn open(path: &Path, idle: Duration) -> io::Result<(Arc<Store>, Writer)> {
        let queue = DelayQueue::new(Scheduler::global());
        let mut ids = BTreeSet::new();
        for (id, user, left) in read(path)? {
            queue.insert(id, user, left).map_err(io::Error::other)?;
            ids.insert(id);
        }
        let (send, orders) = mpsc::channel();
        let store = Arc::new(Store { queue, ids: Mutex::new(ids), idle, orders: send });
        let path = path.to_owned();
        let mut writer = Writer { store: Arc::clone(&store), orders, path, written: None };
        // If the file cannot be written, this is the time to say so.
        writer.write(&store.sessions())?;
        Ok((store, writer))
    }

    pub(crate) fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Opens a session for a user, and returns its id.
    pub(crate) async fn login(&self, user: &str) -> Result<Id, Refusal> {
        if !is_name(user) {
            return Err(Refusal::BadName);
        }
        let id = Id::random();
        // Before it is in the queue, so that no write misses it.
        self.ids().insert(id);
        if self.queue.insert(id, user.to_owned(), self.idle).is_err() {
            self.ids().remove(&id);
            return Err(Refusal::Closed);
        }
        self.written().await.map(|()| id)
    }

    /// Pushes the end of a session further.
    pub(crate) async fn touch(&self, id: &str) -> Result<(), Refusal> {
        let id = Id::parse(id).ok_or(Refusal::Unknown)?;
        if !self.queue.reset(&id, self.idle) {
            return Err(self.missing());
        }
        self.written().await
    }

    pub(crate) async fn logout(&self, id: &str) -> Result<(), Refusal> {
        let id = Id::parse(id).ok_or(Refusal::Unknown)?;
        if self.queue.remove(&id).is_none() {
            return Err(self.missing());
        }
        self.ids().remove(&id);
        self.written().await
    }

    /// Returns the line of the file for a session, as it would be now.
    pub(crate) fn line_of(&self, id: &str) -> Result<String, Refusal> {
        let session = Id::parse(id).and_then(|id| self.session(id));
        session.map(|session| line(&session, now())).ok_or_else(|| self.missing())
    }

    /// Takes sessions as they expire, until the store is closed. Reports each, and how late it was taken, when it is no
    /// longer in the file: a session that was reported does not come back.
    pub(crate) fn report_expired(&self, report: impl Fn(&Session, Duration)) {
        while let Some(first) = self.queue.recv() {
            let due = iter::once(first).chain(iter::from_fn(|| self.queue.try_next()));
            let due: Vec<_> = due.map(|session| (now() - session.deadline, session)).collect();
            for (_, session) in &due {
                self.ids().remove(&session.key);
            }
            // A store that is closed does not write what was taken before. If the disk is full, the writer says so.
            let _ = tickwheel::future::block_on(self.written());
            due.iter().for_each(|(late, session)| report(session, *late));
        }
    }

    /// Closes the queue, and waits until what was pending is in the file.
    pub(crate) async fn close(&self) {
        // The writer returns its error itself, at the end of its thread.
        let _ = self.order(true).await;
    }

    /// Waits until all changes up to now are in the file.
    async fn written(&self) -> Result<(), Refusal> {
        self.order(false).await
    }

    async fn order(&self, closes: bool) -> Result<(), Refusal> {
        let (done, is_written) = oneshot::channel();
        self.orders.send(Order { closes, done }).map_err(|_| Refusal::Closed)?;
        match is_written.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::NotWritten),
            Err(_) => Err(Refusal::Closed),
        }
    }

    fn missing(&self) -> Refusal {
        if self.queue.is_closed() { Refusal::Closed } else { Refusal::Unknown }
    }

    /// Returns all sessions in the order of their deadlines.
    fn sessions(&self) -> Vec<Session> {
        let mut sessions: Vec<_> = self.ids().iter().filter_map(|id| self.session(*id)).collect();
        sessions.sort_by_key(|session| session.deadline);
        sessions
    }

    /// Returns a copy of a session, which stays in the queue.
    fn session(&self, key: Id) -> Option<Session> {
        let deadline = self.queue.deadline(&key)?;
        let value = self.queue.with(&key, |user| user.clone())?;
        Some(Session { key, value, deadline })
    }

    fn ids(&self) -> MutexGuard<'_, BTreeSet<Id>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Writes the file until the store is closed. Returns how many sessions were pending then.
    pub(crate) fn run(mut self) -> io::Result<usize> {
        loop {
            let first = match self.orders.recv_timeout(EVERY) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            };
            let orders: Vec<_> = first.into_iter().chain(self.orders.try_iter()).collect();
            let closes = orders.iter().any(|order| order.closes);
            // This thread also closes the queue, so no later write finds it empty.
            let store = &self.store;
            let sessions = if closes { store.queue.close() } else { store.sessions() };
            let written = self.write(&sessions);
            for order in orders {
                let _ = order.done.send(written.is_ok());
            }
            match written {
                written if closes => return written.map(|()| sessions.len()),
                Err(error) => eprintln!("the sessions are not written: {error}"),
                Ok(()) => {}
            }
        }
    }

    /// Replaces the file as a whole. A kill, or a loss of power, leaves the old file or the new one.
    fn write(&mut self, sessions: &[Session]) -> io::Result<()> {
        let now = now();
        let text: String = sessions.iter().map(|session| line(session, now) + "\n").collect();
        // As long as there are no sessions, nothing wakes the disk.
        if self.written.as_ref() == Some(&text) {
            return Ok(());
        }
        let mut aside = OsString::from(&self.path);
        aside.push(".new");
        let mut file = File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&aside, &self.path)?;
        self.written = Some(text);
        Ok(())
    }
}

fn now() -> Instant {
    Scheduler::global().now()
}

// ----- lines and ids -----------------------------------------------------------------------

/// Returns a session as JSON. Nothing in it needs an escape: an id has hexadecimal digits, and [`is_name`] is true for the
/// user. The time is rounded up, so that no session expires early.
fn line(session: &Session, now: Instant) -> String {
    let left = session.deadline.saturating_duration_since(now).as_nanos().div_ceil(1_000_000);
    let (id, user) = (session.key, &session.value);
    format!(r#"{{"id":"{id}","user":"{user}","remaining_ms":{left}}}"#)
}

/// Reads what [`line`] has written.
fn parse(line: &str) -> Option<(Id, String, Duration)> {
    let (id, rest) = line.strip_prefix(r#"{"id":""#)?.split_once(r#"","user":""#)?;
    let (user, left) = rest.strip_suffix('}')?.split_once(r#"","remaining_ms":"#)?;
    let left = Duration::from_millis(left.parse().ok()?);
    is_name(user).then_some((Id::parse(id)?, user.to_owned(), left))
}

fn read(path: &Path) -> io::Result<Vec<(Id, String, Duration)>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let lines = (1..).zip(text.lines()).map(|(number, line)| {
        // To go on without the line would lose a session at the next write.
        parse(line).ok_or_else(|| io::Error::other(format!("line {number} is no session: {line}")))
    });
    lines.collect()
}

fn is_name(user: &str) -> bool {
    (1..=LONGEST_NAME).contains(&user.len()) && user.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl Id {
    /// Returns an id from the random keys of std's hash maps. A server that strangers reach takes it from the system's
    /// source of random numbers.
    fn random() -> Id {
        let [high, low] = [0, 1].map(|half| u128::from(RandomState::new().hash_one(half)));
        Id(high << 64 | low)
    }

    fn parse(text: &str) -> Option<Id> {
        let is_id = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(Id)).flatten()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
