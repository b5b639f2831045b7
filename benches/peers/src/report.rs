//! What is made of the figures: tables in Markdown, and a chart in SVG.

use std::fmt::Write;

use crate::results::{Results, number};
use crate::timeouts;

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
    ("W11", RESETS),
    ("W11-2", RESETS),
    ("W11-at", RESETS),
    ("D1", DELAYS),
    ("D1-2", DELAYS),
    ("D2", DELAYS),
    ("D2-2", DELAYS),
    ("D3", DELAYS),
    ("D3-2", DELAYS),
    ("D4", DELAYS),
    ("D4-2", DELAYS),
    ("D5", &["process ns", "the last one late, ms", "early"]),
    ("D6", &["bytes each, beside key and value"]),
    ("S4", TIMEOUTS),
    ("S4-pending", TIMEOUTS),
    ("S4-1024", TIMEOUTS),
    ("S4-1024-pending", TIMEOUTS),
    ("S4-1", TIMEOUTS),
    ("S4-1-pending", TIMEOUTS),
    ("S5-timeout", TIMEOUTS),
    ("S5-sleep", TIMEOUTS),
    (
        "P1",
        &["CPU ms/s", "wake-ups/s of the tick thread", "late p50 us", "late p99 us", "sleeps/s"],
    ),
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

const RESETS: &[&str] = &["wall ns", "thread ns", "process ns", "MB grown"];

const DELAYS: &[&str] = &["wall ns", "process ns"];

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

const TIMEOUTS: &[&str] =
    &["M timeouts/s", "process ns", "processors at work", "rounds that count"];

const FLOOD: &[&str] = &["victim p50 ms", "worst ms", "peak MB", "M/s"];

/// A table of workloads, and under it how they were measured.
pub(crate) fn table(results: &Results, peers: &[&str], list: &[(&str, &str)]) -> String {
    let columns = "--:|".repeat(peers.len());
    let mut text = format!("| | {} |\n|---|{columns}\n", peers.join(" | "));
    for (workload, what) in list {
        if results.run(workload).is_none() {
            continue;
        }
        let _ = writeln!(text, "| **{workload}: {what}** |{}", " |".repeat(peers.len()));
        let rows = ROWS.iter().find(|(name, _)| name == workload).map_or(&[][..], |(_, rows)| rows);
        for figure in rows {
            let values = peers.iter().map(|peer| results.median(workload, peer, figure));
            let cells: Vec<_> = values.map(|value| value.map_or("-".into(), number)).collect();
            let _ = writeln!(text, "| {figure} | {} |", cells.join(" | "));
        }
    }
    text + &measured(results, list.iter().map(|(workload, _)| *workload), |run| run)
}

/// How workloads were measured: a line for those that were measured in the same way. `told` is the part of it that is
/// told.
fn measured<'a>(
    results: &'a Results,
    workloads: impl Iterator<Item = &'a str>,
    told: fn(&str) -> &str,
) -> String {
    let mut runs: Vec<(&str, Vec<&str>)> = Vec::new();
    for workload in workloads {
        let Some(run) = results.run(workload).map(told) else { continue };
        match runs.iter_mut().find(|(other, _)| *other == run) {
            Some((_, same)) => same.push(workload),
            None => runs.push((run, vec![workload])),
        }
    }
    let line = |(run, same): (&str, Vec<&str>)| format!("- {}: {run}.\n", same.join(", "));
    format!("\nMeasured:\n\n{}", runs.into_iter().map(line).collect::<String>())
}

/// What is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    Less,
    More,
}
use Better::{Less, More};

/// A row of the summary: what it says, whose figure is ours, the workload and the figure.
type Line = (&'static str, &'static str, &'static str, &'static str, Better);

/// Timers that a row leaves out: `DelayQueue` does nothing in W8 because nobody polls it.
const LEFT_OUT: &[(&str, &str)] = &[("W8", "tokio-util DelayQueue")];

/// The only timer that the pool is compared with: the other one that has threads for its tasks.
const OTHER_POOL: &str = "scheduled-thread-pool";

const OURS: &str = "tickwheel";
const EXACT: &str = "tickwheel Exact";
const POOL: &str = "tickwheel pool";

const SUMMARY: &[Line] = &[
    ("schedule: ns of the process", OURS, "W1", "process ns", Less),
    ("schedule: ns of the calling thread", OURS, "W1", "thread ns", Less),
    ("schedule in a fresh process: wall ns", OURS, "W1-fresh", "wall ns", Less),
    ("schedule from 2 threads: wall ns", OURS, "W2", "wall ns", Less),
    ("cancel: ns of the process", OURS, "W3", "process ns", Less),
    ("cancel: ns of the calling thread", OURS, "W3", "thread ns", Less),
    ("cancelled closures that are kept, %", OURS, "W3", "closures kept %", Less),
    ("cancel the oldest, schedule a new one: ns of the process", OURS, "W4", "process ns", Less),
    ("the same: wall ns", OURS, "W4", "wall ns", Less),
    ("the same: MB grown", OURS, "W4", "MB grown", Less),
    ("push a timeout further: ns of the process", OURS, "W11", "process ns", Less),
    ("the same from 2 threads: wall ns", OURS, "W11-2", "wall ns", Less),
    ("the same to a known instant: ns of the process", OURS, "W11-at", "process ns", Less),
    ("insert into a delay queue: ns of the process", OURS, "D1", "process ns", Less),
    ("the same from 2 threads: wall ns", OURS, "D1-2", "wall ns", Less),
    ("push a value of it further: ns of the process", OURS, "D2", "process ns", Less),
    ("the same from 2 threads: wall ns", OURS, "D2-2", "wall ns", Less),
    ("remove a value: ns of the process", OURS, "D3", "process ns", Less),
    ("the same from 2 threads: wall ns", OURS, "D3-2", "wall ns", Less),
    (
        "remove the oldest value, insert a new one: ns of the process",
        OURS,
        "D4",
        "process ns",
        Less,
    ),
    ("the same from 2 threads: wall ns", OURS, "D4-2", "wall ns", Less),
    ("take a million values as they become due: ns of the process", OURS, "D5", "process ns", Less),
    (
        "bytes for each value, beside key and value",
        OURS,
        "D6",
        "bytes each, beside key and value",
        Less,
    ),
    ("a million due within 100 ms: million tasks/s", OURS, "W5", "M tasks/s", More),
    ("late in the median, with ticks of 1 ms: ms", OURS, "W6", "p50 ms", Less),
    ("late in the median, exact: ms", EXACT, "W6", "p50 ms", Less),
    ("late at p99, with ticks of 1 ms: ms", OURS, "W6", "p99 ms", Less),
    ("late at p99, exact: ms", EXACT, "W6", "p99 ms", Less),
    ("latest of all, exact: ms", EXACT, "W6", "max ms", Less),
    ("idle with 100k pending: wake-ups/s", OURS, "W7", "100k an hour ahead", Less),
    ("1M pending over an hour: CPU ms/s", OURS, "W8", "1M", Less),
    ("5M pending over an hour: CPU ms/s", OURS, "W8", "5M", Less),
    ("bytes for each pending task", OURS, "W9", "bytes each", Less),
    (
        "MB kept 3 s after a cancel of a million",
        OURS,
        "W9",
        "kept 3 s after a cancel of all, MB",
        Less,
    ),
    ("schedule on a pool with results: ns of the thread", POOL, "W1", "thread ns", Less),
    ("million tasks/s on that pool", POOL, "W5", "M tasks/s", More),
    ("a sleep made, polled and dropped: ns of the process", OURS, "S1", "process ns", Less),
    ("a sleep made, polled and fired: ns of the process", OURS, "S2", "process ns", Less),
    ("100k sleeps at once: ms until all are woken", OURS, "S3", "all woken after, ms", Less),
    ("timeouts around ready futures, million/s", OURS, "S4", "M timeouts/s", More),
    (
        "timeouts around futures that are pending once, million/s",
        OURS,
        "S4-pending",
        "M timeouts/s",
        More,
    ),
    ("longest schedule of a million, steady: us", OURS, "W12", "longest", Less),
    ("schedule at p99.99, steady: us", OURS, "W12", "p99.99", Less),
    ("schedule at p99.99, fresh process: us", OURS, "W12-fresh", "p99.99", Less),
    ("schedule at p99.99, 2 threads, steady: us", OURS, "W12-2", "p99.99", Less),
    (
        "flood of 8 threads that keep timeouts: another task's worst lateness, ms",
        OURS,
        "F1-churn-8",
        "worst ms",
        Less,
    ),
    ("the same: its median lateness, ms", OURS, "F1-churn-8", "victim p50 ms", Less),
    ("the same: peak MB", OURS, "F1-churn-8", "peak MB", Less),
    ("the same: million pairs/s", OURS, "F1-churn-8", "M/s", More),
    (
        "flood of 8 threads without delay: another task's worst lateness, ms",
        OURS,
        "F1-zero-8",
        "worst ms",
        Less,
    ),
    ("the same: peak MB", OURS, "F1-zero-8", "peak MB", Less),
];

/// Differences of so much are not told from those between two runs.
const LEVEL: f64 = 1.1;

/// Each row beside the best of the others: where they are ahead, and where we are.
pub(crate) fn summary(results: &Results, contests: &[(&[&str], &[(&str, &str)])]) -> String {
    let mut lines = String::new();
    let (mut ahead, mut level, mut behind) = (0, 0, 0);
    for (what, ours, workload, figure, better) in SUMMARY {
        let is_in = |list: &[(&str, &str)]| list.iter().any(|(name, _)| name == workload);
        let Some((peers, _)) = contests.iter().find(|(_, list)| is_in(list)) else { continue };
        let Some(value) = results.median(workload, ours, figure) else { continue };
        let is_compared = |peer: &&&str| {
            is_another(peer)
                && !LEFT_OUT.contains(&(workload, peer))
                && (*ours != POOL || **peer == OTHER_POOL)
        };
        let others = peers.iter().filter(is_compared);
        let others =
            others.filter_map(|peer| Some((results.median(workload, peer, figure)?, peer)));
        let best = match better {
            Less => others.min_by(|(one, _), (two, _)| one.total_cmp(two)),
            More => others.max_by(|(one, _), (two, _)| one.total_cmp(two)),
        };
        let Some((other, peer)) = best else { continue };
        let factor = if *better == Less { other / value } else { value / other };
        let verdict = if value == other || (1.0 / LEVEL..LEVEL).contains(&factor) {
            level += 1;
            "level".to_owned()
        } else if factor > 1.0 {
            ahead += 1;
            if factor.is_finite() { format!("ahead, {factor:.1} x") } else { "ahead".into() }
        } else {
            behind += 1;
            if factor > 0.0 {
                format!("**behind, {:.1} x**", 1.0 / factor)
            } else {
                "**behind**".into()
            }
        };
        let (value, other) = (number(value), number(other));
        let _ = writeln!(lines, "| {workload} | {what} | {value} | {other}, {peer} | {verdict} |");
    }
    format!(
        "Of these rows tickwheel is ahead in {ahead}, level (within a tenth) in {level}, and behind in {behind}.\n\n\
         | | | tickwheel | the best of the others | |\n|---|---|--:|---|---|\n{lines}"
    )
}

fn is_another(peer: &str) -> bool {
    !peer.starts_with(OURS) && peer != timeouts::WITHOUT
}

/// The few figures of the crate's README.
const FEW: &[Line] = &[
    ("schedule, ns of the process", OURS, "W1", "process ns", Less),
    ("schedule from 2 threads, wall ns", OURS, "W2", "wall ns", Less),
    ("cancel, ns of the process", OURS, "W3", "process ns", Less),
    ("cancel the oldest and schedule a new one, ns of the process", OURS, "W4", "process ns", Less),
    ("push a timeout further, ns of the process", OURS, "W11", "process ns", Less),
    ("a million due within 100 ms, million tasks/s", OURS, "W5", "M tasks/s", More),
    (
        "`timeout(30 s, ready future)` on a tokio runtime, million/s",
        OURS,
        "S4",
        "M timeouts/s",
        More,
    ),
];

/// A column of theirs, and the name of the same timer among those that are awaited.
const FEW_PEERS: &[(&str, &str)] = &[
    (OURS, OURS),
    ("tokio-util DelayQueue", "-"),
    ("tokio Sleep", "tokio"),
    ("hierarchical_hash_wheel_timer", "-"),
];

/// The table of the crate's README; the best of each row is bold.
pub(crate) fn few(results: &Results) -> String {
    let names: Vec<_> = FEW_PEERS.iter().map(|(peer, _)| *peer).collect();
    let columns = "--:|".repeat(names.len());
    let mut text = format!("| | | {} |\n|---|---|{columns}\n", names.join(" | "));
    for (what, _, workload, figure, better) in FEW {
        let value = |(peer, alias): &(&str, &str)| {
            let first = results.median(workload, peer, figure);
            first.or_else(|| results.median(workload, alias, figure))
        };
        let values: Vec<_> = FEW_PEERS.iter().map(value).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let known = values.iter().flatten().copied();
        let best = if *better == Less { known.reduce(f64::min) } else { known.reduce(f64::max) };
        let cell = |value: &Option<f64>| match value {
            None => "-".to_owned(),
            Some(_) if *value == best => format!("**{}**", number(best.unwrap_or_default())),
            Some(value) => number(*value),
        };
        let cells: Vec<_> = values.iter().map(cell).collect();
        let _ = writeln!(text, "| {workload} | {what} | {} |", cells.join(" | "));
    }
    // What follows the semicolon compares machines, and is explained on the page of the comparison alone.
    let workloads = FEW.iter().map(|(_, _, workload, ..)| *workload);
    text + &measured(results, workloads, |run| run.split_once(';').map_or(run, |(told, _)| told))
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
pub(crate) fn chart(results: &Results, peers: &[&str]) -> String {
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
            let color = if is_another(peer) { "#b9c2cc" } else { "#2f6db3" };
            let middle = y + BAR - 3.0;
            let _ = writeln!(
                body,
                r#"<text x="{}" y="{middle}" text-anchor="end">{peer}</text><rect x="{LABEL}" y="{y}" width="{width:.0}" height="{}" fill="{color}"/><text x="{:.0}" y="{middle}">{}</text>"#,
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
