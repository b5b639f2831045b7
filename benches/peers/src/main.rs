//! tickwheel beside other timers: `cargo run --release -p peers`.
//!
//! Each timer runs each workload in a process of its own. The timers take turns, round by round, so that a slow minute
//! of the machine meets all of them. Shown is the median of the rounds.
//!
//! All of it takes about 40 minutes. Floods and stalls (F1 to F4) run once, in 5 of them.
//!
//! - `-- --rounds 1` is quicker; `-- --only timeouts` or `-- --only W1,W4` measures some contests or workloads.
//! - `-- --write` also keeps the figures in `results/figures.tsv`, and writes tables and chart anew from that file: the
//!   marked sections of this package's README and of the crate's. What was not measured stays as it was.
//! - `-- --render` writes them without measuring.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    reason = "figures for people, and small ones"
)]
#![allow(
    clippy::struct_field_names,
    clippy::trivially_copy_pass_by_ref,
    clippy::type_complexity,
    reason = "it is a program, with tables"
)]

mod delays;
mod measure;
mod overload;
mod peers;
mod precision;
mod report;
mod resets;
mod results;
mod sleeps;
mod tails;
mod timeouts;
mod workloads;

use std::env;
use std::fs;
use std::io::Write;
use std::process::Command;

use results::Results;
use workloads::Figures;

/// The timers, as the table names them.
const PEERS: &[&str] = &[
    "tickwheel",
    "tickwheel Exact",
    "tickwheel pool",
    "tokio-util DelayQueue",
    "tokio Sleep",
    "hierarchical_hash_wheel_timer",
    "scheduled-thread-pool",
    "pingora-timeout",
];

const ALL: usize = usize::MAX;

/// A field of timers and what they do.
struct Contest {
    /// The name of its section in the README of this package.
    name: &'static str,
    peers: &'static [&'static str],
    workloads: &'static [(&'static str, &'static str)],
    /// How often each is run at most, however many rounds there are.
    rounds: usize,
    run: fn(&str, &str) -> Figures,
}

/// Tasks that are scheduled, sleeps that are awaited, timeouts that move, timeouts around futures, what exact deadlines cost, the longest calls, and timers that are
/// overrun.
const CONTESTS: &[Contest] = &[
    Contest { name: "tasks", peers: PEERS, workloads: workloads::ALL, rounds: ALL, run: run_one },
    Contest {
        name: "sleeps",
        peers: sleeps::PEERS,
        workloads: sleeps::ALL,
        rounds: ALL,
        run: sleeps::run_one,
    },
    Contest {
        name: "resets",
        peers: resets::PEERS,
        workloads: resets::ALL,
        rounds: ALL,
        run: resets::run_one,
    },
    Contest {
        name: "delays",
        peers: delays::PEERS,
        workloads: delays::ALL,
        rounds: ALL,
        run: delays::run_one,
    },
    Contest {
        name: "timeouts",
        peers: timeouts::PEERS,
        workloads: timeouts::ALL,
        rounds: ALL,
        run: timeouts::run_one,
    },
    Contest {
        name: "precision",
        peers: precision::PEERS,
        workloads: precision::ALL,
        rounds: ALL,
        run: precision::run_one,
    },
    Contest {
        name: "tails",
        peers: tails::PEERS,
        workloads: tails::ALL,
        rounds: ALL,
        run: tails::run_one,
    },
    Contest {
        name: "floods",
        peers: overload::PEERS,
        workloads: overload::ALL,
        rounds: 1,
        run: overload::run_one,
    },
    Contest {
        name: "alone",
        peers: overload::OURS,
        workloads: overload::OURS_ALONE,
        rounds: 1,
        run: overload::run_ours,
    },
];

fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        "tickwheel" => workloads::run::<peers::Tickwheel<peers::OnTickThread>>(workload),
        "tickwheel Exact" => workloads::run::<peers::Tickwheel<peers::Exact>>(workload),
        "tickwheel pool" => workloads::run::<peers::OwnPool>(workload),
        "tokio-util DelayQueue" => workloads::run::<peers::Queue>(workload),
        "tokio Sleep" => workloads::run::<peers::Sleep>(workload),
        "hierarchical_hash_wheel_timer" => workloads::run::<peers::HashWheel>(workload),
        "scheduled-thread-pool" => workloads::run::<peers::Pool>(workload),
        "pingora-timeout" => workloads::run::<peers::Pingora>(workload),
        other => panic!("no such timer: {other}"),
    }
}

fn option(name: &str) -> Option<String> {
    let mut arguments = env::args();
    arguments.find(|argument| argument == name).and_then(|_| arguments.next())
}

fn is_asked(name: &str) -> bool {
    env::args().any(|argument| argument == name)
}

fn main() {
    if let (Some(peer), Some(workload)) = (option("--peer"), option("--workload")) {
        let is_in =
            |contest: &&Contest| contest.workloads.iter().any(|(name, _)| *name == workload);
        let contest = CONTESTS.iter().find(is_in).expect("a workload");
        for (name, value) in (contest.run)(&peer, &workload) {
            println!("{value}\t{name}");
        }
        return;
    }
    let mut others = env::args().skip(1);
    while let Some(argument) = others.next() {
        match &argument[..] {
            "--render" | "--write" => {}
            "--rounds" | "--only" => drop(others.next()),
            other => {
                eprintln!(
                    "{other} means nothing here: --only W1,W4, --rounds 1, --write and --render do"
                );
                std::process::exit(2);
            }
        }
    }
    if is_asked("--render") {
        return keep(Results::new());
    }
    let results = measure_all();
    for contest in CONTESTS {
        let measured = |(name, _): &&(&str, &str)| results.run(name).is_some();
        let list: Vec<_> = contest.workloads.iter().filter(measured).copied().collect();
        if !list.is_empty() {
            println!("{}", report::table(&results, contest.peers, &list));
        }
    }
    if is_asked("--write") {
        keep(results);
    }
}

/// Runs what the command line asks for: round by round, one timer after the other.
fn measure_all() -> Results {
    let rounds = option("--rounds").map_or(3, |rounds| rounds.parse().expect("a number"));
    let only = option("--only");
    let is_named =
        |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == name));
    let list = |contest: &Contest| -> Vec<_> {
        let all = contest.workloads.iter().map(|(name, _)| *name);
        all.filter(|name| is_named(name) || is_named(contest.name)).collect()
    };

    let floor = measure::floor();
    let mut results = Results::new();
    let runs = |contest: &Contest| list(contest).len() * contest.peers.len();
    let total: usize =
        CONTESTS.iter().map(|contest| rounds.min(contest.rounds) * runs(contest)).sum();
    if total == 0 {
        eprintln!("no contest and no workload has such a name");
        std::process::exit(2);
    }
    let mut done = 0;
    for round in 0..rounds {
        for contest in CONTESTS.iter().filter(|contest| round < contest.rounds) {
            for workload in list(contest) {
                for peer in contest.peers {
                    done += 1;
                    eprint!("\r\x1b[K{done} of {total}: {workload}, {peer}");
                    let _ = std::io::stderr().flush();
                    let figures = in_a_process(peer, workload);
                    if !figures.is_empty() {
                        let rounds = rounds.min(contest.rounds);
                        results.describe(workload, results::this_run(rounds, floor));
                    }
                    results.add(workload, peer, figures);
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    results
}

/// Runs this program for one timer and one workload.
fn in_a_process(peer: &str, workload: &str) -> Vec<(String, f64)> {
    let myself = env::current_exe().expect("a program has a path");
    let output = Command::new(myself).args(["--peer", peer, "--workload", workload]).output();
    let output = output.expect("it starts");
    if !output.status.success() {
        eprintln!("\n{peer}, {workload}: {}", String::from_utf8_lossy(&output.stderr));
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().filter_map(|line| line.split_once('\t'));
    figures.filter_map(|(value, name)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/figures.tsv");
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../chart.svg");
const OWN_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// Keeps the figures of a run beside the earlier ones, and writes the pages and the chart.
fn keep(newer: Results) {
    let mut results = Results::from_text(&fs::read_to_string(FIGURES).unwrap_or_default());
    results.update(newer);
    fs::write(FIGURES, results.to_text()).expect("writable");
    fs::write(CHART, report::chart(&results, PEERS)).expect("writable");

    let mut page = fs::read_to_string(OWN_PAGE).expect("the README of this package");
    for contest in CONTESTS {
        let table = report::table(&results, contest.peers, contest.workloads);
        page = with_section(&page, contest.name, &table);
    }
    let contests: Vec<_> =
        CONTESTS.iter().map(|contest| (contest.peers, contest.workloads)).collect();
    page = with_section(&page, "summary", &report::summary(&results, &contests));
    fs::write(OWN_PAGE, page).expect("writable");

    let readme = fs::read_to_string(README).expect("the README of the crate");
    fs::write(README, with_section(&readme, "figures", &report::few(&results))).expect("writable");
    println!("written: results/figures.tsv, ../chart.svg, and the tables of both READMEs");
}

/// Replaces what stands between `<!-- name -->` and `<!-- end of name -->`.
fn with_section(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
    format!("{before}{begin}\n\n{text}\n{end}{after}")
}
