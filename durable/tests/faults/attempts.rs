//! Attempts of timers whose processes die. A ledger outside of their database says which handlers were started.
//!
//! Nothing is lost, nothing is started more often than it has attempts, and nothing is dead that was not tried. A start is
//! written down just before its handler is called. A process that is killed in between has used up an attempt that the
//! ledger does not know: some microseconds of one handler thread, which a few kills of many hit.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::{Filter, NewTimer, State, Timer, Timers};

use super::common::{self, Random, until};
use super::databases::{Database, say};
use super::handlers::{Effects, KINDS, Ledger, Place, Role, equipped, new};
use super::process::{Point, Process};

const NOW: Duration = Duration::ZERO;
/// Longer than a process is held up on a busy machine: the end of a lease means that its process has died.
const LEASE: Duration = Duration::from_millis(800);

fn all(timers: &Timers) -> Vec<Timer> {
    timers.list(&Filter::new().limit(10_000)).expect("a list")
}

/// Runs worker processes, one at a time, until nothing is left but dead timers. Returns how many have died.
fn run_to_the_end(timers: &Timers, place: &Place) -> u32 {
    let mut deaths = 0;
    let mut process = Process::start(place, Point::Nowhere, LEASE);
    until("all are done or dead", || {
        if process.has_ended() {
            deaths += 1;
            process = Process::start(place, Point::Nowhere, LEASE);
        }
        all(timers).iter().all(|timer| timer.state == State::Dead)
    });
    deaths
}

/// How often each key of a kind was started.
fn starts_of(ledger: &Ledger, kind: &str) -> BTreeMap<String, u32> {
    let mut starts = BTreeMap::new();
    for (_, key, _) in ledger.starts().into_iter().filter(|start| start.0 == kind) {
        *starts.entry(key).or_default() += 1;
    }
    starts
}

pub(crate) fn a_poison_timer_takes_no_neighbour_along(database: &Database<'_>) {
    const TIMERS: usize = 40;
    let place = Place::with_book(database);
    for kind in KINDS {
        for attempts in [1, 5] {
            let mut place = place.clone();
            let ledger = Ledger::of(&mut place);
            let timers = database.open();
            // In the middle of others, which are done quickly, or in the middle of something.
            let new = (0..TIMERS).map(|n| {
                let payload = if n == TIMERS / 2 { "abort" } else { ["slow", ""][n % 2] };
                let key = format!("{attempts} {n}");
                new(kind, &key, NOW).payload(payload).max_attempts(attempts)
            });
            timers.schedule_all(&new.collect::<Vec<_>>()).expect("scheduled");
            let deaths = run_to_the_end(&timers, &place);
            let starts = starts_of(&ledger, kind);
            let poison = format!("{attempts} {}", TIMERS / 2);
            assert_eq!((starts[&poison], deaths), (attempts, attempts), "{kind}");
            let dead = all(&timers);
            for timer in &dead {
                assert_eq!((&timer.kind[..], timer.attempts), (kind, attempts));
                timers.cancel(kind, &timer.key).expect("no error");
            }
            let dead: BTreeSet<_> = dead.into_iter().map(|timer| timer.key).collect();
            assert!(dead.contains(&poison));
            // With one attempt those are dead that ran beside it, or whose outcomes were not written yet.
            let untried = dead.iter().filter(|key| !starts.contains_key(*key)).count();
            assert!(untried <= 1 && (attempts == 1 || dead.len() == 1), "{kind}: {dead:?}");
            let effects = Effects::in_book(database);
            // The others lose an attempt when it is not suspected yet, and none later.
            for n in 0..TIMERS {
                let key = format!("{attempts} {n}");
                assert!(
                    starts.get(&key).is_none_or(|starts| *starts <= attempts.min(2))
                        || key == poison
                );
                let runs = effects.of(kind, &key);
                assert!(
                    runs == 1 || runs == 0 && dead.contains(&key) || runs == 2 && kind == "plain"
                );
            }
        }
    }
}

/// Each has one attempt. A process that is killed in the middle of them has started no more than it has threads, and all
/// others run.
pub(crate) fn what_was_claimed_and_not_started_goes_back(database: &Database<'_>) {
    const TIMERS: usize = 300;
    /// Of each kind, by default.
    const THREADS: usize = 4;
    let mut place = Place::with_book(database);
    let ledger = Ledger::of(&mut place);
    let timers = database.open();
    for kind in KINDS {
        let one = |n: usize| {
            let payload = if n == TIMERS / 4 { "abort" } else { "" };
            new(kind, &n.to_string(), NOW).payload(payload).max_attempts(1)
        };
        timers.schedule_all(&(0..TIMERS).map(one).collect::<Vec<_>>()).expect("scheduled");
    }
    // One process dies by each, or both are in their runs when the first of them kills it.
    let deaths = run_to_the_end(&timers, &place);
    assert!((1..=KINDS.len() as u32).contains(&deaths), "{deaths} died");
    let dead = all(&timers);
    for kind in KINDS {
        let starts = starts_of(&ledger, kind);
        assert!(starts.values().all(|starts| *starts == 1), "{kind}: {starts:?}");
        let dead = dead.iter().filter(|timer| timer.kind == kind);
        let untried = dead.filter(|timer| !starts.contains_key(&timer.key)).count();
        // One process died, and each of its other threads may have been between the commit of a start and its handler.
        assert!(untried < THREADS, "{kind}: {untried} are dead and were not tried");
    }
}

/// A timer of the storm, and how often its handler may be started.
struct Planned {
    kind: &'static str,
    key: String,
    most: Option<u32>,
    may_die: bool,
}

pub(crate) fn kills_cost_no_attempt_that_was_not_made(database: &Database<'_>) {
    const PROCESSES: usize = 2;
    let seed = common::env("TICKWHEEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = common::count(25, 1000);
    println!("TICKWHEEL_SEED={seed}");
    let mut random = Random(seed);
    let mut place = Place::with_book(database);
    let ledger = Ledger::of(&mut place);
    let timers = database.open();
    let mut processes: Vec<_> =
        (0..PROCESSES).map(|_| Process::start(&place, Point::Nowhere, LEASE)).collect();
    let mut planned: Vec<Planned> = Vec::new();
    let mut aborts = 0;
    for _ in 0..kills {
        let next_kill = Instant::now() + Duration::from_millis(random.below(150));
        while Instant::now() < next_kill {
            let some: Vec<NewTimer> = (0..random.below(30))
                .map(|_| {
                    let (kind, key) = (KINDS[random.below(2) as usize], planned.len().to_string());
                    let most = [Some(1), Some(2), Some(4), None][random.below(4) as usize];
                    let payload = match random.below(60) {
                        0 => "abort",
                        1..30 => "slow",
                        _ => "",
                    };
                    let is_poison = payload == "abort" && most.is_some();
                    let payload = if is_poison || payload != "abort" { payload } else { "" };
                    aborts += u32::from(is_poison);
                    let mut timer = new(kind, &key, NOW).payload(payload);
                    timer.max_attempts = most;
                    planned.push(Planned { kind, key, most, may_die: is_poison });
                    timer
                })
                .collect();
            timers.schedule_all(&some).expect("scheduled");
            thread::sleep(Duration::from_millis(20)); // the load of the storm
        }
        let index = random.below(PROCESSES as u64) as usize;
        processes[index].kill();
        for process in &mut processes {
            if process.has_ended() {
                *process = Process::start(&place, Point::Nowhere, LEASE);
            }
        }
    }
    drop(processes);
    let deaths = run_to_the_end(&timers, &place) as usize;
    let worker = equipped(&timers, &place, &Role::Survivor).lease(LEASE);
    assert!(worker.start(Scheduler::global()).expect("it starts").stop(common::PATIENCE));

    let dead: BTreeMap<_, _> = all(&timers)
        .into_iter()
        .map(|timer| ((timer.kind.clone(), timer.key.clone()), timer))
        .collect();
    let of_kind = KINDS.map(|kind| (kind, starts_of(&ledger, kind)));
    let effects = Effects::in_book(database);
    let mut untried = 0;
    for Planned { kind, key, most, may_die } in &planned {
        let name = format!("{kind} {key}: seed {seed}");
        let starts = of_kind.iter().find(|of| of.0 == *kind).expect("a kind").1.get(key);
        let starts = starts.copied().unwrap_or(0);
        assert!(most.is_none_or(|most| starts <= most), "{name}: {starts} starts of {most:?}");
        let done = effects.of(kind, key);
        match dead.get(&((*kind).to_owned(), key.clone())) {
            None => assert!(done == 1 || done > 1 && *kind == "plain", "{name} is lost"),
            Some(timer) => {
                assert_eq!(Some(timer.attempts), *most, "{name}");
                assert!(*may_die || starts > 0 || done == 0, "{name}");
                untried += timer.attempts - starts;
            }
        }
    }
    let all_deaths = kills + deaths;
    assert!(untried as usize <= all_deaths / 4 + 1, "{untried} of {all_deaths}: seed {seed}");
    let of = if database.is_sqlite() { "SQLite" } else { "PostgreSQL" };
    say(&format!(
        "{of}: {kills} kills, {aborts} poison timers, {} timers, {} dead, {untried} attempts were cut off before the ledger",
        planned.len(),
        dead.len()
    ));
}
