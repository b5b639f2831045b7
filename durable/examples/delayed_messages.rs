//! Messages that are sent at their time, once each, even if the program is killed in between.
//!
//! Each message is a durable timer. Its handler writes a delivery in the transaction that ends the timer. So a kill
//! leaves both or neither, and no message is delivered twice. The first run schedules twelve messages, due over the
//! next eight seconds:
//!
//! ```text
//! cargo run --example delayed_messages --features sqlite,postgres               kill it, with Ctrl-C or `kill -9`,
//! cargo run --example delayed_messages --features sqlite,postgres               and it goes on from there
//! cargo run --example delayed_messages --features sqlite,postgres -- --fresh    anew
//! ```
//!
//! That is SQLite, in a file. With `DATABASE_URL=postgres://user:password@host/database` in the environment the same
//! program takes a PostgreSQL server. Start it in two terminals, or on two machines: they share the work.

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime};
use std::{env, process};

use tickwheel::Scheduler;
use tickwheel_durable::{Filter, HandlerResult, NewTimer, Run, Timer, Timers, WorkerBuilder};

const USAGE: &str = "\
usage: delayed_messages [--fresh] [PATH]
  --fresh   forgets all messages, and begins anew
  PATH      the SQLite file; otherwise one in the system's temp folder
With DATABASE_URL in the environment it takes that PostgreSQL database, and no file.";

const TEXTS: [&str; 12] = [
    "the kettle boils",
    "take the washing in",
    "call Ada",
    "feed the cat",
    "the bread is done",
    "water the plants",
    "stretch your legs",
    "the parcel comes",
    "read a chapter",
    "lights out",
    "back up the disk",
    "good night",
];

/// The twelfth message is due after 8.4 s.
const APART: Duration = Duration::from_millis(700);

const DELIVERIES: &str =
    "CREATE TABLE IF NOT EXISTS deliveries (message TEXT PRIMARY KEY, sent_by TEXT NOT NULL)";

/// A message was delivered: its key, its text, and when it was due.
type Told = (String, String, SystemTime);

fn main() -> ExitCode {
    let mut path = env::temp_dir().join("tickwheel_delayed_messages.sqlite3");
    let mut fresh = false;
    for argument in env::args().skip(1) {
        match argument.as_str() {
            "--fresh" => fresh = true,
            flag if flag.starts_with('-') => return fail(&format!("unknown: {flag}\n{USAGE}")),
            file => path = file.into(),
        }
    }
    let address = env::var("DATABASE_URL").unwrap_or_else(|_| format!("sqlite:{}", path.display()));
    match deliver_all(&address, fresh) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            fail(&format!(
                "{error}{cause}\nNo message is lost. Put that right, and run this again."
            ))
        }
    }
}

fn deliver_all(address: &str, fresh: bool) -> Result<(), Box<dyn Error>> {
    let timers = Timers::open(address)?;
    let all = Filter::new().kind("message");
    let waiting = timers.list(&all)?;
    if fresh {
        for timer in &waiting {
            timers.cancel("message", &timer.key)?;
        }
    }
    let is_new = fresh || waiting.is_empty();
    make_table(address, is_new)?;
    if is_new {
        let due = |n: usize| APART * u32::try_from(n + 1).unwrap_or(u32::MAX);
        let message = |(n, text): (usize, &&str)| {
            NewTimer::new("message", format!("#{}", n + 1), due(n)).payload(*text)
        };
        timers.schedule_all(&TEXTS.iter().enumerate().map(message).collect::<Vec<_>>())?;
        println!("12 new messages. Kill it, and run it again.");
    } else {
        println!("Goes on with the {} messages that wait.", waiting.len());
    }

    let (tell, told) = channel();
    let worker = handler(timers.worker(), address, tell).lease(Duration::from_secs(2));
    let worker = worker.poll_every(Duration::from_millis(100)).start(Scheduler::global())?;
    loop {
        let pending = timers.list(&all)?;
        println!("{}", drawn(&pending, timers.now()?));
        if pending.is_empty() {
            break;
        }
        // Another process may have delivered some.
        let Ok((key, text, due)) = told.recv_timeout(Duration::from_secs(1)) else { continue };
        let late = timers.now()?.duration_since(due).unwrap_or_default();
        while timers.get("message", &key)?.is_some_and(|timer| timer.due == due) {
            std::thread::sleep(Duration::from_millis(1)); // until it is committed
        }
        println!("{key:<4}{text:<22}{:>5.1} ms late", late.as_secs_f64() * 1000.0);
    }
    worker.stop(Duration::from_secs(5));
    println!("All are delivered, {} of them by this run.", worker.stats().done);
    Ok(())
}

/// Draws what is pending: a mark for each message, in cells of a quarter of a second from now.
fn drawn(pending: &[Timer], now: SystemTime) -> String {
    let cell = |timer: &Timer| {
        let left = timer.wake.and_then(|wake| wake.duration_since(now).ok()).unwrap_or_default();
        usize::try_from(left.as_millis() / 250).unwrap_or(usize::MAX)
    };
    let mut cells = ['·'; 40];
    for timer in pending {
        let last = cells.len() - 1;
        cells[cell(timer).min(last)] = '#';
    }
    format!("     now {} in 10 s, {:>2} pending", cells.iter().collect::<String>(), pending.len())
}

/// Registers the handler for the transactions of this database.
fn handler(worker: WorkerBuilder, address: &str, tell: Sender<Told>) -> WorkerBuilder {
    let sent_by = format!("process {}", process::id());
    let deliver = move |run: &Run<'_>| {
        let text = String::from_utf8_lossy(run.payload()).into_owned();
        _ = tell.send((run.key().to_owned(), text, run.due()));
    };
    if address.starts_with("sqlite:") {
        worker.handle_in_sqlite("message", move |run, transaction| -> HandlerResult {
            let row = [run.key(), &sent_by];
            transaction.execute("INSERT INTO deliveries VALUES (?1, ?2)", row)?;
            deliver(run);
            Ok(())
        })
    } else {
        worker.handle_in_postgres("message", move |run, transaction| -> HandlerResult {
            transaction
                .execute("INSERT INTO deliveries VALUES ($1, $2)", &[&run.key(), &sent_by])?;
            deliver(run);
            Ok(())
        })
    }
}

/// Creates the table of deliveries, which is this program's own.
fn make_table(address: &str, is_new: bool) -> Result<(), Box<dyn Error>> {
    let clear = if is_new { "; DELETE FROM deliveries" } else { "" };
    let sql = format!("{DELIVERIES}{clear}");
    if let Some(path) = address.strip_prefix("sqlite:") {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch(&sql)?;
    } else {
        postgres::Client::connect(address, postgres::NoTls)?.batch_execute(&sql)?;
    }
    Ok(())
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("{problem}");
    ExitCode::FAILURE
}
