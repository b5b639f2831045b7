//! tickwheel beside other timers: `cargo run --release --manifest-path benches/peers/Cargo.toml`.
//!
//! Each timer runs each workload in a process of its own, one after the other and then again, so that
//! a slow minute of the machine meets all of them. What is shown is the median of the rounds.
//!
//! All of it takes about 35 minutes. Floods and stalls (F1 to F4) run once, in 5 of them.
//!
//! `-- --rounds 1` is quicker, `-- --only W1,W4` does less, `-- --write` saves the table and the chart
//! beside this package.

mod measure;
mod overload;
mod peers;
mod report;
mod sleeps;
mod tails;
mod workloads;

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::process::Command;

use report::Results;
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
    peers: &'static [&'static str],
    workloads: &'static [(&'static str, &'static str)],
    /// How often each is run at most, however many rounds there are.
    rounds: usize,
    run: fn(&str, &str) -> Figures,
}

/// Tasks that are scheduled, sleeps that are awaited, the longest calls, and timers that are overrun.
const CONTESTS: &[Contest] = &[
    Contest { peers: PEERS, workloads: workloads::ALL, rounds: ALL, run: run_one },
    Contest { peers: sleeps::PEERS, workloads: sleeps::ALL, rounds: ALL, run: sleeps::run_one },
    Contest { peers: tails::PEERS, workloads: tails::ALL, rounds: ALL, run: tails::run_one },
    Contest { peers: overload::PEERS, workloads: overload::ALL, rounds: 1, run: overload::run_one },
    Contest {
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
    let rounds = option("--rounds").map_or(3, |rounds| rounds.parse().expect("a number"));
    let only = option("--only");
    let wanted =
        |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == name));
    let list = |contest: &Contest| -> Vec<_> {
        contest.workloads.iter().filter(|(name, _)| wanted(name)).collect()
    };

    let [malloc, swap, clock] = measure::floor();
    println!(
        "F = malloc(48) + free + swap = {malloc:.0} + {swap:.1} ns; the clock {clock:.0} ns\n"
    );
    let mut results = Results::new(malloc + swap, swap, clock);
    let runs = |contest: &Contest| list(contest).len() * contest.peers.len();
    let total: usize =
        CONTESTS.iter().map(|contest| rounds.min(contest.rounds) * runs(contest)).sum();
    let mut done = 0;
    for round in 0..rounds {
        for contest in CONTESTS.iter().filter(|contest| round < contest.rounds) {
            for (workload, _) in list(contest) {
                for peer in contest.peers {
                    done += 1;
                    eprint!("\r\x1b[K{done} of {total}: {workload}, {peer}");
                    let _ = std::io::stderr().flush();
                    results.add(workload, peer, in_a_process(peer, workload));
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    let mut table = report::heading(&results);
    for contest in CONTESTS.iter().filter(|contest| !list(contest).is_empty()) {
        table += &report::table(&results, contest.peers, &list(contest));
    }
    println!("{table}");
    if env::args().any(|argument| argument == "--write") {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/results");
        std::fs::create_dir_all(folder).expect("a folder for the results");
        std::fs::write(format!("{folder}/table.md"), &table).expect("writable");
        let chart = report::chart(&results, PEERS);
        std::fs::write(format!("{folder}/chart.svg"), chart).expect("writable");
        println!("written to {folder}");
    }
}

/// Runs this program for one timer and one workload.
fn in_a_process(peer: &str, workload: &str) -> BTreeMap<String, f64> {
    let myself = env::current_exe().expect("a program has a path");
    let output = Command::new(myself).args(["--peer", peer, "--workload", workload]).output();
    let output = output.expect("it starts");
    if !output.status.success() {
        eprintln!("\n{peer}, {workload}: {}", String::from_utf8_lossy(&output.stderr));
        return BTreeMap::new();
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().filter_map(|line| line.split_once('\t'));
    figures.filter_map(|(value, name)| Some((name.to_owned(), value.parse().ok()?))).collect()
}
