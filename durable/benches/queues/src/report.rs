//! The tables, as they are printed and written into the README.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::engines::{Engine, connect};
use crate::measure::{BUYERS, CALLERS, Calls, Lateness, Size};
use crate::server::Server;
use crate::{Figures, Row};

const BEGIN: &str = "<!-- figures -->\n";
const END: &str = "<!-- end of figures -->";

/// Returns what stands between the markers of the README.
pub(crate) fn text(server: &Server, figures: &Figures, size: &Size) -> String {
    let tables = [
        calls(&figures.calls),
        transactions(&figures.transactions),
        workers(&figures.rows, size),
        drains(&figures.rows, size),
        idle(&figures.rows, size),
        versions(server),
    ];
    tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}

fn heads(heads: &[&str]) -> Vec<String> {
    heads.iter().map(|head| (*head).to_owned()).collect()
}

/// A sentence and its table, or nothing if nothing was measured.
fn titled(title: &str, table: &[Vec<String>]) -> String {
    if table.len() > 1 { format!("{title}\n\n{}", drawn(table, 1)) } else { String::new() }
}

fn calls(calls: &[(Engine, Calls)]) -> String {
    let mut table = vec![heads(&[
        "",
        "one each, due in an hour",
        "due in a minute",
        "batches of 100",
        "of 1,000",
        "cancel, one each",
    ])];
    for (engine, calls) in calls {
        let rates =
            [calls.far, calls.near, calls.batches_of_100, calls.batches_of_1000, calls.cancel];
        let name = engine.name();
        // Here it does not matter how often a worker looks.
        let name = name.split_once(", each").map_or(name.as_str(), |(name, _)| name).to_owned();
        table.push([vec![name], rates.map(thousands).to_vec()].concat());
    }
    titled(&format!("Calls from {CALLERS} threads, in timers a second. More is better."), &table)
}

fn transactions(transactions: &[(&str, f64)]) -> String {
    let mut table = vec![heads(&["the transaction", "a second", "of the order alone"])];
    let alone = transactions.first().map_or(1.0, |(_, rate)| *rate);
    for (name, rate) in transactions {
        table.push(vec![(*name).to_owned(), thousands(*rate), format!("{:.2}", rate / alone)]);
    }
    titled(
        &format!(
            "Transactions of callers in PostgreSQL, on {BUYERS} connections, while a worker runs."
        ),
        &table,
    )
}

fn workers(rows: &[Row], size: &Size) -> String {
    let [slow, fast] =
        size.rates.map(|rate| format!("late at {}/s, ms: p50", thousands(rate as f64)));
    let mut table = vec![heads(&[
        "",
        "processes",
        "fire, timers/s",
        "with an insert",
        &slow,
        "p99",
        "max",
        &fast,
        "p99",
        "max",
    ])];
    let is_measured = |row: &&Row| row.fire.is_some() || !row.lateness.is_empty();
    for row in rows.iter().filter(is_measured) {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), thousands);
        let mut cells =
            vec![row.engine.name(), row.processes.to_string(), rate(row.fire), rate(row.insert)];
        for late in &row.lateness {
            cells.extend(match late {
                Some(Lateness { median, p99, max }) => [*median, *p99, *max].map(millis),
                None => ["behind", "-", "-"].map(ToOwned::to_owned),
            });
        }
        cells.resize(table[0].len(), "-".to_owned());
        table.push(cells);
    }
    titled(
        &format!(
            "Workers, with 4 threads in each process. A backlog of {} timers that come due at once; and how late handlers \
             are called.",
            thousands(size.backlog as f64)
        ),
        &table,
    )
}

fn drains(rows: &[Row], size: &Size) -> String {
    let mut table = vec![heads(&["", "first second", "slowest second", "mean", "done, %"])];
    for row in rows {
        let Some(drain) = row.drain else { continue };
        let rates = [drain.first, drain.slowest, drain.mean].map(thousands);
        let share = format!("{:.0}", drain.share * 100.0);
        table.push([vec![row.engine.name()], rates.to_vec(), vec![share]].concat());
    }
    let count = thousands(size.drain as f64);
    titled(
        &format!(
            "{count} overdue timers beside {count} that are due tomorrow, in runs a second. One process, no longer than {} s.",
            size.drain_patience().as_secs()
        ),
        &table,
    )
}

fn idle(rows: &[Row], size: &Size) -> String {
    let mut table = vec![heads(&["", "worker", "server"])];
    for row in rows {
        let Some(idle) = row.idle else { continue };
        let server = idle.server.map_or_else(|| "-".to_owned(), |server| format!("{server:.2}"));
        table.push(vec![row.engine.name(), format!("{:.2}", idle.worker), server]);
    }
    titled(
        &format!(
            "A worker process beside {} timers that are due tomorrow: milliseconds of processor time for each second.",
            thousands((size.drain / 10) as f64)
        ),
        &table,
    )
}

/// Draws a table whose columns after the first `left` ones are numbers. Its first row is the head.
fn drawn(rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            _ = if column < left {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text += "|\n";
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let line = "-".repeat(*width);
                _ = if column < left {
                    write!(text, "|-{line}-")
                } else {
                    write!(text, "|-{line}:")
                };
            }
            text += "|\n";
        }
    }
    text
}

/// A whole number, in groups of three digits.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or(""))
        .collect();
    groups.join(",")
}

fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1000.0;
    let digits = if millis < 10.0 { 2 } else { usize::from(millis < 100.0) };
    format!("{millis:.digits$}")
}

/// What was measured, on what.
fn versions(server: &Server) -> String {
    let mut client = connect(server.url());
    let mut show = |setting: &str| -> String {
        client.query_one(&format!("SHOW {setting}"), &[]).expect("a setting").get(0)
    };
    let settings = ["fsync", "synchronous_commit", "shared_buffers"]
        .map(|setting| format!("{setting}={}", show(setting)))
        .join(", ");
    let postgres = show("server_version");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lock = fs::read_to_string(here().join("Cargo.lock")).unwrap_or_default();
    let crates = ["tickwheel", "postgres", "rusqlite", "graphile_worker", "sqlx", "tokio"]
        .map(|name| format!("{name} {}", version_in(&lock, name)))
        .join(", ");
    let sqlite = rusqlite::version();
    format!(
        "{cores} cores ({}), {}. PostgreSQL {postgres}: {settings}. SQLite {sqlite}: WAL, synchronous=FULL.\n{crates}.\n",
        processor(),
        std::env::consts::OS
    )
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

/// The version of a crate, as `Cargo.lock` has it.
fn version_in(lock: &str, name: &str) -> String {
    let package = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&package).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("?").to_owned()
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes the text between the markers of the README.
pub(crate) fn write(text: &str) {
    let path = here().join("README.md");
    let page = fs::read_to_string(&path).expect("the README is there");
    let (before, rest) = page.split_once(BEGIN).expect("a marker");
    let (_, after) = rest.split_once(END).expect("a marker");
    fs::write(&path, format!("{before}{BEGIN}\n{text}\n{END}{after}")).expect("it is written");
    println!("written into {}", path.display());
}
