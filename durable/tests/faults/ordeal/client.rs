//! Clients of an ordeal: what they do with timers, and what they know of each.
//!
//! Each client has keys of its own, so what a key has is a sequence of versions, and nobody else changes it but the workers. A
//! call that has failed may have been done or not, and its key is left alone from then on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tickwheel_durable::postgres::{self as on_server};
use tickwheel_durable::sqlite::{self as in_file};
use tickwheel_durable::{Error, Existing, NewTimer, Result, Scheduled, State, Table, Timers};

use super::super::common::{PATIENCE, Random};
use super::super::databases::Database;
use super::super::handlers::{KINDS, micros, new};
use super::super::wall_clock;
use super::worker::LIMIT;

/// The most keys that a client has its eyes on.
const KEYS: usize = 40;

/// With more timers than this, clients wait for the workers.
const BACKLOG: u64 = 250;

/// One schedule of a key.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) kind: &'static str,
    pub(super) key: String,
    pub(super) number: i64,
    pub(super) max_attempts: Option<u32>,
    pub(super) has_child: bool,
    /// An order was put in together with it.
    pub(super) has_order: bool,
    /// `None`: the answer was lost.
    pub(super) is_accepted: Option<bool>,
    /// The due time, in microseconds. `None`: it may be another by now.
    pub(super) due: Option<i64>,
    /// How often it has all its attempts before it, at most.
    pub(super) times: u32,
    pub(super) end: End,
}

/// What its client knows of the end of a version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is left to the workers.
    Open,
    /// The row was gone, so it is done.
    Done,
    /// It was in this state. After that time of the monotonic clock it was gone.
    Cancelled(State, Duration),
    Replaced(Duration),
    /// The answer was lost.
    Unknown,
}

pub(super) struct Client<'a> {
    number: u64,
    random: Random,
    database: &'a Database<'a>,
    timers: Timers,
    versions: Vec<Version>,
    /// The last versions of keys that it may still change.
    keys: Vec<usize>,
}

impl<'a> Client<'a> {
    pub(super) fn new(database: &'a Database<'a>, number: u64, seed: u64) -> Client<'a> {
        let (versions, keys) = (Vec::new(), Vec::new());
        Client { number, random: Random(seed), database, timers: database.open(), versions, keys }
    }

    pub(super) fn live(mut self, is_over: &AtomicBool) -> Vec<Version> {
        while !is_over.load(Ordering::Relaxed) {
            self.step();
            // A backlog would have all faults come to the same few timers.
            while self.versions.len() % 16 == 0
                && self.is_behind()
                && !is_over.load(Ordering::Relaxed)
            {
                thread::sleep(Duration::from_millis(100)); // until the workers have caught up
            }
            thread::sleep(Duration::from_millis(self.random.below(12))); // the load of the ordeal
        }
        self.versions
    }

    fn is_behind(&self) -> bool {
        let counts = self.timers.counts().unwrap_or_default();
        counts.iter().map(|of| of.waiting + of.retrying + of.running).sum::<u64>() > BACKLOG
    }

    fn step(&mut self) {
        let is_old = !self.keys.is_empty() && !self.random.one_in(3);
        if !is_old {
            return match self.random.below(6) {
                0 => self.schedule_some(),
                5 => self.replace_what_runs(),
                1 | 2 => self.schedule_with_an_order(),
                _ => self.schedule_another(),
            };
        }
        let place = self.random.below(self.keys.len() as u64) as usize;
        let version = self.keys[place];
        match self.random.below(9) {
            0..3 => self.replace(place, version),
            3 => self.keep(place, version),
            4 | 5 => self.reset(place, version),
            6 | 7 => self.cancel(place, version),
            _ => self.requeue(place, version),
        }
    }

    /// Draws a version, and the timer that it is.
    fn draw(&mut self, kind: &'static str, key: String, number: i64) -> (Version, NewTimer) {
        let what = self.draw_payload();
        let delay = match self.random.below(8) {
            0 | 1 => 0,
            2 => self.random.below(3000),
            _ => self.random.below(300),
        };
        self.version_of(kind, key, number, &what, delay)
    }

    fn draw_payload(&mut self) -> String {
        match self.random.below(12) {
            0 | 1 => format!("fail {}", 1 + self.random.below(3)),
            2 => "late 1".to_owned(),
            3..6 => format!("slow {}", self.random.below(120)),
            6 if self.random.one_in(3) => "over 1".to_owned(),
            6..8 => "child 1".to_owned(),
            _ => "quick".to_owned(),
        }
    }

    fn version_of(
        &mut self,
        kind: &'static str,
        key: String,
        number: i64,
        what: &str,
        delay: u64,
    ) -> (Version, NewTimer) {
        let max_attempts = [Some(1), Some(2), Some(5), None, None][self.random.below(5) as usize];
        let mut timer =
            new(kind, &key, Duration::from_millis(delay)).payload(format!("{number} {what}"));
        timer.max_attempts = max_attempts;
        timer.time_limit = what.starts_with("over").then_some(LIMIT);
        let version = Version {
            kind,
            key,
            number,
            max_attempts,
            has_child: kind == "tx" && what.starts_with("child"),
            has_order: false,
            is_accepted: None,
            due: None,
            times: 1,
            end: End::Open,
        };
        (version, timer)
    }

    fn draw_first(&mut self, count: usize) -> (Version, NewTimer) {
        let kind = KINDS[self.random.below(2) as usize];
        let key = format!("{}.{}", self.number, self.versions.len() + count);
        self.draw(kind, key, 0)
    }

    /// Takes in a version with the answer to its schedule. Its key may be changed later, if the answer is known.
    fn take_in(&mut self, mut version: Version, answer: &Result<Option<Scheduled>>) {
        match answer {
            Ok(scheduled) => {
                version.is_accepted = Some(scheduled.is_some());
                version.due = scheduled.as_ref().map(|scheduled| micros(scheduled.due));
            }
            Err(error) => is_of_a_fault(error),
        }
        self.versions.push(version);
        if matches!(answer, Ok(Some(_))) {
            self.keys.push(self.versions.len() - 1);
            if self.keys.len() > KEYS {
                let place = self.random.below(KEYS as u64) as usize;
                self.keys.swap_remove(place);
            }
        }
    }

    fn schedule_another(&mut self) {
        let (version, timer) = self.draw_first(0);
        let answer = self.timers.schedule(&timer).map(Some);
        self.take_in(version, &answer);
    }

    fn schedule_some(&mut self) {
        let count = 1 + self.random.below(20) as usize;
        let (versions, timers): (Vec<_>, Vec<_>) = (0..count).map(|n| self.draw_first(n)).unzip();
        match self.timers.schedule_all(&timers) {
            Ok(all) => {
                for (version, scheduled) in versions.into_iter().zip(all) {
                    self.take_in(version, &Ok(Some(scheduled)));
                }
            }
            Err(error) => {
                is_of_a_fault(&error);
                self.versions.extend(versions);
            }
        }
    }

    /// In a transaction of its own, which it may undo.
    fn schedule_with_an_order(&mut self) {
        let (mut version, timer) = self.draw_first(0);
        version.has_order = true;
        let does_commit = !self.random.one_in(4);
        let pause =
            Duration::from_millis(if self.random.one_in(8) { self.random.below(1500) } else { 0 });
        let answer = order(self.database, &version, &timer, does_commit, pause);
        if !does_commit {
            version.is_accepted = Some(false);
            return self.versions.push(version);
        }
        let answer = answer.map(Some).map_err(Error::unreachable);
        self.take_in(version, &answer);
    }

    /// The outcome of the run in progress comes while the new version runs.
    fn replace_what_runs(&mut self) {
        let kind = KINDS[self.random.below(2) as usize];
        let key = format!("{}.{}", self.number, self.versions.len());
        let span = 10 + self.random.below(40);
        let (old, timer) = self.version_of(kind, key.clone(), 0, &format!("slow {span}"), 0);
        let answer = self.timers.schedule(&timer).map(Some);
        self.take_in(old, &answer);
        if answer.is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(self.random.below(span))); // in the middle of it
        let what = format!("stumble {}", 10 + self.random.below(40));
        let (next, timer) = self.version_of(kind, key, 1, &what, 0);
        let version = self.versions.len() - 1;
        if let Some(place) = self.keys.iter().position(|known| *known == version) {
            self.replace_by(place, version, next, &timer);
        }
    }

    fn replace(&mut self, place: usize, version: usize) {
        let old = &self.versions[version];
        let (kind, key, number) = (old.kind, old.key.clone(), old.number + 1);
        let (next, timer) = self.draw(kind, key, number);
        self.replace_by(place, version, next, &timer);
    }

    fn replace_by(&mut self, place: usize, version: usize, next: Version, timer: &NewTimer) {
        let answer = self.timers.schedule(timer);
        self.versions[version].end = match &answer {
            Ok(scheduled) if scheduled.replaced => End::Replaced(wall_clock::monotonic()),
            Ok(_) => End::Done,
            Err(_) => End::Unknown, // `take_in` looks at it
        };
        self.keys.swap_remove(place);
        self.take_in(next, &answer.map(Some));
    }

    fn keep(&mut self, place: usize, version: usize) {
        let old = &self.versions[version];
        let (kind, key, number) = (old.kind, old.key.clone(), old.number + 1);
        let (next, timer) = self.draw(kind, key, number);
        let answer = self.timers.schedule_if_absent(&timer);
        if matches!(answer, Ok(Some(_))) {
            self.versions[version].end = End::Done;
        }
        // The numbers of versions have to differ, also from that of the one that was not put in.
        self.keys.swap_remove(place);
        self.take_in(next, &answer);
    }

    fn reset(&mut self, place: usize, version: usize) {
        let delay = Duration::from_millis(self.random.below(1000));
        let Version { kind, key, .. } = &self.versions[version];
        let answer = self.timers.reset(kind, key, delay);
        let version = &mut self.versions[version];
        match answer {
            Ok(false) => {}
            Ok(true) => {
                version.times += 1;
                version.due = None;
            }
            Err(error) => {
                is_of_a_fault(&error);
                version.times += 1;
                version.due = None;
                self.keys.swap_remove(place);
            }
        }
    }

    fn cancel(&mut self, place: usize, version: usize) {
        let Version { kind, key, .. } = &self.versions[version];
        let answer = self.timers.cancel(kind, key);
        self.versions[version].end = match answer {
            Ok(Some(state)) => End::Cancelled(state, wall_clock::monotonic()),
            Ok(None) => End::Done,
            Err(error) => {
                is_of_a_fault(&error);
                End::Unknown
            }
        };
        self.keys.swap_remove(place);
    }

    fn requeue(&mut self, place: usize, version: usize) {
        let delay = Duration::from_millis(self.random.below(300));
        let Version { kind, key, .. } = &self.versions[version];
        let answer = self.timers.requeue(kind, key, delay);
        let version = &mut self.versions[version];
        if matches!(answer, Ok(false)) {
            return;
        }
        version.times += 1;
        version.due = None;
        if let Err(error) = answer {
            is_of_a_fault(&error);
            self.keys.swap_remove(place);
        }
    }
}

/// The nemesis makes no call invalid.
fn is_of_a_fault(error: &Error) {
    assert!(
        !matches!(
            error,
            Error::Invalid(_) | Error::Schema(_) | Error::Unmigrated(_) | Error::Refused(_)
        ),
        "{error}"
    );
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Puts in an order and its timer.
fn order(
    database: &Database<'_>,
    version: &Version,
    timer: &NewTimer,
    does_commit: bool,
    pause: Duration,
) -> std::result::Result<Scheduled, AnyError> {
    let Version { kind, key, number, .. } = version;
    let timer = std::slice::from_ref(timer);
    let scheduled;
    match database {
        Database::File(path) => {
            let mut client = rusqlite::Connection::open(path)?;
            client.busy_timeout(PATIENCE)?;
            let begin = rusqlite::TransactionBehavior::Immediate;
            let transaction = client.transaction_with_behavior(begin)?;
            transaction.execute("INSERT INTO orders VALUES (?1, ?2, ?3)", (kind, key, number))?;
            scheduled = in_file::within(&transaction).schedule(timer, Existing::Replace)?;
            if does_commit {
                transaction.commit()?;
            }
        }
        Database::Schema { .. } => {
            let mut client = postgres::Client::connect(&database.url(), postgres::NoTls)?;
            let mut transaction = client.transaction()?;
            transaction.execute("INSERT INTO orders VALUES ($1, $2, $3)", &[kind, key, number])?;
            scheduled = on_server::within(&mut transaction).schedule(timer, Existing::Replace)?;
            thread::sleep(pause); // a transaction that takes long is the subject
            if does_commit {
                transaction.commit()?;
            }
        }
    }
    Ok(scheduled[0].expect("it is new"))
}
