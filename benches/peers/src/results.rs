//! The figures: those of this run, and those of earlier runs, which are kept in `results/figures.tsv`.
//!
//! A line of that file is `workload, timer, figure, value`, or `workload` and how it was measured. A run replaces all
//! lines of the workloads that it has measured, and leaves the others as they are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

pub(crate) struct Results {
    /// How each workload was measured: when, on what, how often.
    runs: BTreeMap<String, String>,
    /// By workload, timer and figure: a value of each round.
    values: BTreeMap<[String; 3], Vec<f64>>,
}

impl Results {
    pub(crate) fn new() -> Results {
        Results { runs: BTreeMap::new(), values: BTreeMap::new() }
    }

    /// Adds the figures of a timer in one round.
    pub(crate) fn add(&mut self, workload: &str, peer: &str, figures: Vec<(String, f64)>) {
        for (figure, value) in figures {
            let key = [workload.to_owned(), peer.to_owned(), figure];
            self.values.entry(key).or_default().push(value);
        }
    }

    /// Says how a workload was measured.
    pub(crate) fn describe(&mut self, workload: &str, run: String) {
        self.runs.insert(workload.to_owned(), run);
    }

    /// Returns the median of the rounds.
    pub(crate) fn median(&self, workload: &str, peer: &str, figure: &str) -> Option<f64> {
        let mut values = self.values.get(&[workload, peer, figure].map(str::to_owned))?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// Returns how a workload was measured.
    pub(crate) fn run(&self, workload: &str) -> Option<&str> {
        self.runs.get(workload).map(String::as_str)
    }

    /// Takes over a newer run: its workloads replace those of the same name.
    pub(crate) fn update(&mut self, newer: Results) {
        self.values.retain(|[workload, ..], _| !newer.runs.contains_key(workload));
        self.values.extend(newer.values);
        self.runs.extend(newer.runs);
    }

    pub(crate) fn from_text(text: &str) -> Results {
        let mut results = Results::new();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                [workload, run] => results.describe(workload, run.to_owned()),
                [workload, peer, figure, value] => {
                    let value = value.parse().expect("a number");
                    results.add(workload, peer, vec![(figure.to_owned(), value)]);
                }
                _ => panic!("neither a run nor a figure: {line}"),
            }
        }
        results
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (workload, run) in &self.runs {
            let _ = writeln!(text, "{workload}\t{run}");
        }
        for [workload, peer, figure] in self.values.keys() {
            let value = self.median(workload, peer, figure).expect("its own key");
            let _ = writeln!(text, "{workload}\t{peer}\t{figure}\t{}", number(value));
        }
        text
    }
}

/// A value with three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size < 0.005 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// Describes a run on this machine, today.
pub(crate) fn this_run(rounds: usize, [malloc, swap, clock, sleep]: [f64; 4]) -> String {
    let told = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = told("date", "+%F").unwrap_or_default();
    let rust = told("rustc", "--version").unwrap_or_default();
    let rust = rust.split(' ').nth(1).unwrap_or("?").to_owned();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find(|line| line.starts_with("model name"));
    let name = name.and_then(|line| line.split(": ").nth(1)).unwrap_or("an unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let times = if rounds == 1 { "one round".into() } else { format!("{rounds} rounds") };
    format!(
        "{date}, Rust {rust}, {cores} cores of {name}, {times}; `F` {:.0} ns, `S` {swap:.1} ns, the clock {clock:.0} ns, a sleep {:.0} us",
        malloc + swap,
        sleep / 1e3,
    )
}
