//! A storm of kills, with a ledger: several worker processes, one of which dies every few milliseconds.

use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::{Filter, State, Timers};

use super::common::{self, Random, until};
use super::databases::{Database, say};
use super::handlers::{KINDS, Place, Role, THREADS, equipped, new, nothing_was_early};
use super::process::{Point, Process};

/// How many worker processes there are at a time.
const PROCESSES: usize = 3;

/// Longer than a process is held up on a busy machine. If a lease ends although its process lives, that is a double run
/// without a kill.
const LEASE: Duration = Duration::from_millis(800);

const PERIOD: Duration = Duration::from_millis(40);

pub(crate) fn a_storm_of_kills_loses_nothing(database: &Database<'_>) {
    let seed = common::env("TICKWHEEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = common::count(150, 1500);
    println!("TICKWHEEL_SEED={seed}");
    let mut random = Random(seed);
    let place = Place::with_book(database);
    let timers = database.open();
    for kind in KINDS {
        timers.schedule(&new(kind, "series", PERIOD).every(PERIOD)).expect("scheduled");
    }
    let mut processes: Vec<_> =
        (0..PROCESSES).map(|_| Process::start(&place, Point::Nowhere, LEASE)).collect();
    let mut scheduled = 0;
    for _ in 0..kills {
        let next_kill = Instant::now() + Duration::from_millis(random.below(40));
        while Instant::now() < next_kill || random.one_in(4) {
            schedule_some(&timers, &mut random, &mut scheduled);
        }
        let index = random.below(PROCESSES as u64) as usize;
        if !random.one_in(5) {
            // Otherwise it dies while it starts.
            processes[index].await_line("ready");
        }
        processes[index].kill();
        processes[index] = Process::start(&place, Point::Nowhere, LEASE);
    }
    drop(processes);
    let worker = equipped(&timers, &place, &Role::Survivor)
        .lease(LEASE)
        .start(Scheduler::global())
        .expect("it starts");
    until("all but the series are done", || {
        timers.list(&Filter::new()).expect("a list").iter().all(|timer| timer.key == "series")
    });
    let runs = worker.stats().done;
    until("the series go on", || worker.stats().done >= runs + 4);
    for kind in KINDS {
        let state = timers.cancel(kind, "series").expect("no error");
        assert!(matches!(state, Some(State::Waiting | State::Running)), "{kind}: {state:?}");
    }
    assert!(worker.stop(common::PATIENCE));
    balance(database, scheduled, kills, seed);
}

/// Schedules a few timers in one call, of each kind and with all sorts of payloads.
fn schedule_some(timers: &Timers, random: &mut Random, scheduled: &mut u64) {
    let mut some = Vec::new();
    for _ in 0..=random.below(2) {
        let kind = KINDS[random.below(2) as usize];
        let delay = Duration::from_millis(random.below(150));
        let timer = new(kind, &scheduled.to_string(), delay);
        let payload = match random.below(6) {
            0 => "fail 2",
            1 | 2 => "slow",
            _ => "",
        };
        some.push(timer.payload(payload));
        *scheduled += 1;
    }
    timers.schedule_all(&some).expect("scheduled");
    thread::sleep(Duration::from_millis(8)); // the load of the storm
}

/// Compares the book with what was scheduled.
fn balance(database: &Database<'_>, scheduled: u64, kills: usize, seed: u64) {
    let ran = "SELECT count(DISTINCT key) FROM effects WHERE key <> 'series'";
    assert_eq!(database.number(ran).unsigned_abs(), scheduled, "some are lost: seed {seed}");
    let doubles = |kind: &str| {
        database.number(&format!(
            "SELECT CAST(coalesce(sum(count - 1), 0) AS BIGINT) FROM
                (SELECT count(*) AS count FROM effects WHERE kind = '{kind}' GROUP BY key, due) runs"
        ))
    };
    assert_eq!(doubles("tx"), 0, "a handler in a transaction ran twice: seed {seed}");
    let most = (kills + PROCESSES) * THREADS;
    let doubles = doubles("plain").unsigned_abs();
    assert!(doubles <= most as u64, "{doubles} doubles, more than {most}: seed {seed}");
    for kind in KINDS {
        let phases = format!(
            "SELECT count(DISTINCT due % {}) FROM effects WHERE key = 'series' AND kind = '{kind}'",
            PERIOD.as_micros()
        );
        assert_eq!(database.number(&phases), 1, "{kind}: the series keeps its phase: seed {seed}");
    }
    nothing_was_early(database);
    let of = if database.is_sqlite() { "SQLite" } else { "PostgreSQL" };
    let runs = database.number("SELECT count(*) FROM effects");
    say(&format!("{of}: {kills} kills, {scheduled} timers, {runs} runs, {doubles} twice"));
}
