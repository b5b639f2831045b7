//! A random run with all faults at once. Clients schedule, replace, reset, cancel and requeue; worker processes run what is
//! due; and a nemesis kills and halts processes, restarts the server, cuts and holds connections, locks and sets clocks. A
//! ledger in the database, and one in a file, say what has run. In the end all faults are healed, and the two are compared
//! with what the clients were told (`check.rs`).
//!
//! ```text
//!   clients ── schedule, cancel, .. ──> database <── proxy ── worker processes ── starts ──> a file
//!      │                                ^  │                        ^
//!      │ what they were told            │  │ effects                │ kill, halt, set the clock
//!      v                                │  v                        │
//!    check <────────────────────────────│──┘                        │
//!                                       └── restart, cut, lock ── nemesis
//! ```
//!
//! What the nemesis and the clients do depends on the seed alone, as far as they are concerned: when it happens depends on
//! the machine. `TICKWHEEL_ORDEAL=600` makes it last 600 seconds, `TICKWHEEL_SEED=n` repeats the choices of a run.

mod check;
mod client;
mod nemesis;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel_durable::{Filter, State, Timer, Timers};

use super::common::{self, Random, until};
use super::databases::{Database, say};
use super::handlers::{KINDS, Ledger, Place, new};
use super::proxy::Proxy;
use super::server::Server;
use client::Client;
use nemesis::Nemesis;

pub(crate) use worker::be_one;

const CLIENTS: u64 = 3;

/// How long the faults last by default.
const SHORT: Duration = Duration::from_secs(2);

/// When all faults are healed, something happens within this, until all is done. It is less than the time between two looks.
const STALL: Duration = Duration::from_secs(20);

/// What is left may be much, and the machine busy.
const AGES: Duration = Duration::from_secs(600);

/// After that only locks and open transactions are faults, for so long: no error makes a worker look anew.
const CALM: Duration = Duration::from_millis(1500);

const PERIOD: Duration = Duration::from_millis(100);

/// The series, and their payloads: one fails once in each run, and one fails so that the failed run leaves the series. They have
/// kinds of their own, so that no other timer is found because a series is claimed.
const SERIES: [(&str, &str, &str); 4] = [
    ("pulse", "series", "0 quick"),
    ("beat", "series", "0 quick"),
    ("beat", "failing series", "0 fail 1"),
    ("beat", "late series", "0 late 1"),
];

/// The kinds with plain handlers, and with handlers in transactions.
const PLAIN: [&str; 2] = ["plain", "pulse"];
const TX: [&str; 2] = ["tx", "beat"];

/// Says how to repeat the run, if it fails.
struct Repeat(String);

impl Drop for Repeat {
    fn drop(&mut self) {
        if thread::panicking() {
            say(&format!("repeat with {}", self.0));
        }
    }
}

pub(crate) fn with_a_server(server: &Server) {
    run(&Database::schema(server), Some(server));
}

pub(crate) fn with_a_file() {
    run(&Database::file(), None);
}

fn run(database: &Database<'_>, server: Option<&Server>) {
    let seed = common::env("TICKWHEEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let length = common::env("TICKWHEEL_ORDEAL").map_or(SHORT, Duration::from_secs);
    let (of, test) = match server {
        Some(_) => ("PostgreSQL", "an_ordeal_with_postgresql"),
        None => ("SQLite", "an_ordeal_with_sqlite"),
    };
    let _repeat = Repeat(format!(
        "TICKWHEEL_SEED={seed} TICKWHEEL_ORDEAL={} cargo test -p tickwheel-durable --test faults -- {test} --nocapture",
        length.as_secs()
    ));
    println!("TICKWHEEL_SEED={seed}");
    if length > SHORT {
        say(&format!("{of}: an ordeal of {length:?} with TICKWHEEL_SEED={seed}"));
    }
    let mut random = Random(seed);
    let timers = database.open();
    let mut place = Place::with_book(database);
    let ledger = Ledger::of(&mut place);
    database.execute(
        "CREATE TABLE ledger (kind TEXT NOT NULL, key TEXT NOT NULL, version BIGINT NOT NULL, due BIGINT NOT NULL, at BIGINT NOT NULL);
         CREATE TABLE orders (kind TEXT NOT NULL, key TEXT NOT NULL, version BIGINT NOT NULL)",
    );
    for (kind, key, payload) in SERIES {
        timers.schedule(&new(kind, key, PERIOD).payload(payload).every(PERIOD)).expect("scheduled");
    }
    let is_over = AtomicBool::new(false);
    let mut nemesis = Nemesis::new(database, server, &place, random.next());
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| Client::new(database, number, random.next())).collect();
    let versions = thread::scope(|scope| {
        let _end = End(&is_over);
        let clients: Vec<_> = clients
            .into_iter()
            .map(|client| {
                let is_over = &is_over;
                scope.spawn(move || client.live(is_over))
            })
            .collect();
        nemesis.rage(length);
        nemesis.heal_all();
        nemesis.nag(CALM);
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect::<Vec<_>>()
    });
    settle(&timers, &nemesis);
    let faults = nemesis.end();
    check::balance(database, &timers, &ledger, &versions);
    say(&format!("{of}: {faults} faults, {}", check::figures(database, &versions)));
}

/// Ends the clients, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn alive(timers: &Timers) -> Vec<Timer> {
    let all = timers.list(&Filter::new().limit(1_000_000)).expect("a list");
    all.into_iter().filter(|timer| timer.state != State::Dead).collect()
}

fn is_series(timer: &Timer) -> bool {
    SERIES.iter().any(|(kind, key, _)| *kind == timer.kind && *key == timer.key)
}

/// All is healed. The workers that have lived through it do what is left, however much that is.
fn settle(timers: &Timers, nemesis: &Nemesis<'_>) {
    // A late series has a run behind it all the time.
    let is_done = |timer: &Timer| is_series(timer) || timer.key.starts_with("late series@");
    let begin = Instant::now();
    let (mut known, mut since) = (Vec::new(), begin);
    loop {
        let left: Vec<_> = alive(timers).into_iter().filter(|timer| !is_done(timer)).collect();
        let seen: Vec<_> =
            left.iter().map(|timer| (timer.id, timer.fence, timer.attempts)).collect();
        if seen != known {
            (known, since) = (seen, Instant::now());
        }
        if left.is_empty() {
            break;
        }
        assert!(
            since.elapsed() < STALL && begin.elapsed() < AGES,
            "nothing has happened for {:?}, and {} are left: {:?}\n{}",
            since.elapsed(),
            left.len(),
            &left[..left.len().min(9)],
            nemesis.trace()
        );
        thread::sleep(Duration::from_millis(20)); // the list is long
    }
    let fresh = KINDS.map(|kind| new(kind, "fresh", Duration::ZERO).payload("0 quick"));
    timers.schedule_all(&fresh).expect("scheduled");
    until("the workers hear of timers", || alive(timers).iter().all(is_done));
    let due = |timer: &Timer| (timer.kind.clone(), timer.key.clone(), timer.due);
    let before: Vec<_> = alive(timers).iter().filter(|timer| is_series(timer)).map(due).collect();
    assert_eq!(before.len(), SERIES.len(), "a series has ended: {before:?}");
    until("the series go on", || {
        let now: Vec<_> = alive(timers).iter().filter(|timer| is_series(timer)).map(due).collect();
        before.iter().zip(&now).all(|(before, now)| now.2 > before.2)
    });
    for (kind, key, _) in SERIES {
        let state = timers.cancel(kind, key).expect("no error");
        assert!(matches!(state, Some(State::Waiting | State::Running)), "{kind} {key}: {state:?}");
    }
    until("all are done", || alive(timers).is_empty());
}
