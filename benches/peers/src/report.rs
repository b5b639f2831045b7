//! A table in Markdown, and a chart in SVG.

use std::collections::BTreeMap;
use std::fmt::Write;

/// All figures of all rounds.
pub struct Results {
    floor: f64,
    swap: f64,
    clock: f64,
    /// By workload, timer and figure.
    values: BTreeMap<(String, String), BTreeMap<String, Vec<f64>>>,
}

impl Results {
    pub fn new(floor: f64, swap: f64, clock: f64) -> Results {
        Results { floor, swap, clock, values: BTreeMap::new() }
    }

    pub fn add(&mut self, workload: &str, peer: &str, figures: BTreeMap<String, f64>) {
        let all = self.values.entry((workload.to_owned(), peer.to_owned())).or_default();
        for (name, value) in figures {
            all.entry(name).or_default().push(value);
        }
    }

    fn median(&self, workload: &str, peer: &str, figure: &str) -> Option<f64> {
        let all = self.values.get(&(workload.to_owned(), peer.to_owned()))?;
        let mut values = all.get(figure)?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

/// Which figures of a workload are shown, and in which order.
const ROWS: &[(&str, &[&str])] = &[
    ("W1", &["wall ns", "thread ns", "process ns"]),
    ("W1-fresh", &["wall ns", "thread ns", "process ns"]),
    ("W2", &["wall ns", "thread ns"]),
    ("W3", &["thread ns", "process ns", "closures kept %", "kept 0.3 s later %"]),
    ("W4", &["wall ns", "process ns", "MB grown"]),
    ("W5", &["M tasks/s", "early"]),
    ("W6", &["p50 ms", "p99 ms", "max ms", "early"]),
    ("W7", &["empty, wake-ups/s", "100k an hour ahead"]),
    ("W8", &["1k, ms/s", "1M", "5M"]),
    ("W9", &["bytes each", "kept 3 s after a cancel of all, MB"]),
    ("W10", &["done %", "drift ms"]),
    ("S1", &["wall ns", "process ns"]),
    ("S2", &["process ns"]),
    ("S3", &["all woken after, ms", "process ns each"]),
    ("W12-fresh", TAILS),
    ("W12", TAILS),
    ("W12-2-fresh", TAILS),
    ("W12-2", TAILS),
    ("F1-churn-2", FLOOD),
    ("F1-churn-8", FLOOD),
    ("F1-cancel-2", FLOOD),
    ("F1-cancel-8", FLOOD),
    ("F1-sleeps-2", FLOOD),
    ("F1-sleeps-8", FLOOD),
    ("F1-zero-2", FLOOD),
    ("F1-zero-8", FLOOD),
    ("F2", &["1 lane, ns a task", "2 lanes", "16 lanes", "first run after 1 lane, ms", "2", "16"]),
    (
        "F3",
        &[
            "alone, p50 ms",
            "alone, p99 ms",
            "beside it, p50 ms",
            "beside it, p99 ms",
            "CPU ms/s",
            "wake-ups/s",
        ],
    ),
    ("F4", &["64 threads, us a wake-up", "8000 threads", "stats() beside 64, us", "beside 8000"]),
];

const TAILS: &[&str] = &[
    "schedule, p50 us",
    "p99.9",
    "p99.99",
    "longest",
    "cancel, p50 us",
    "cancel p99.9",
    "cancel p99.99",
    "cancel longest",
    "only the clock, longest",
];

const FLOOD: &[&str] = &["victim p50 ms", "worst ms", "peak MB", "M/s"];

pub fn heading(results: &Results) -> String {
    let Results { floor, swap, clock, .. } = results;
    format!("`F` = {floor:.0} ns, `S` = {swap:.1} ns, the clock {clock:.0} ns.\n")
}

pub fn table(results: &Results, peers: &[&str], list: &[&(&str, &str)]) -> String {
    let columns = "--:|".repeat(peers.len());
    let mut text = format!("\n| | {} |\n|---|{columns}\n", peers.join(" | "));
    for (workload, what) in list {
        let _ = writeln!(text, "| **{workload}: {what}** |{}", " |".repeat(peers.len()));
        let rows = ROWS.iter().find(|(name, _)| name == workload).map_or(&[][..], |(_, rows)| rows);
        for figure in rows {
            let values = peers.iter().map(|peer| results.median(workload, peer, figure));
            let cells: Vec<_> = values.map(|value| value.map_or("-".into(), number)).collect();
            let _ = writeln!(text, "| {figure} | {} |", cells.join(" | "));
        }
    }
    text
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size < 0.005 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// What the chart shows: less is better in all of them.
const CHARTS: &[(&str, &str, &str)] = &[
    ("W1", "process ns", "schedule after fires: CPU ns of the process"),
    ("W2", "wall ns", "schedule from 2 producers: ns"),
    ("W3", "thread ns", "cancel: CPU ns"),
    ("W4", "process ns", "cancel and schedule: CPU ns of the process"),
    ("W6", "p50 ms", "lateness at the median, ms"),
    ("W8", "1M", "1M pending over an hour: CPU ms per s"),
    ("W9", "bytes each", "bytes per pending timer"),
];

const BAR: f64 = 14.0;
const LABEL: f64 = 210.0;
const WIDTH: f64 = 420.0;

/// Horizontal bars, in groups; each group has a scale of its own.
pub fn chart(results: &Results, peers: &[&str]) -> String {
    let mut body = String::new();
    let mut y = 10.0;
    for (workload, figure, title) in CHARTS {
        let values: Vec<_> = peers
            .iter()
            .filter_map(|peer| Some((*peer, results.median(workload, peer, figure)?)))
            .collect();
        let most = values.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
        y += 22.0;
        let _ =
            writeln!(body, r#"<text x="10" y="{y}" font-weight="bold">{workload}: {title}</text>"#);
        y += 6.0;
        for (peer, value) in values {
            let width = (value / most * WIDTH).max(1.0);
            let color = if peer.starts_with("tickwheel") { "#2f6db3" } else { "#b9c2cc" };
            let middle = y + BAR - 3.0;
            let _ = writeln!(
                body,
                r##"<text x="{}" y="{middle}" text-anchor="end">{peer}</text><rect x="{LABEL}" y="{y}" width="{width:.0}" height="{}" fill="{color}"/><text x="{:.0}" y="{middle}">{}</text>"##,
                LABEL - 6.0,
                BAR - 2.0,
                LABEL + width + 6.0,
                number(value),
            );
            y += BAR;
        }
    }
    let (width, height) = (LABEL + WIDTH + 70.0, y + 14.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}
