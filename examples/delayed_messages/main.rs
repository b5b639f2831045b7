//! Messages that are sent at their time, once each, even if the program is killed in between.
//!
//! The messages are in a database. A task with a fixed delay sends every second those that are due, and ends the series
//! itself when no message waits any more. The first run puts in twelve messages, due over the next eight seconds:
//!
//! ```text
//! cargo run --example delayed_messages               kill it in between, with Ctrl-C or `kill -9`,
//! cargo run --example delayed_messages               and it goes on from there
//! cargo run --example delayed_messages -- --fresh    anew
//! ```
//!
//! That is SQLite, in a file. With a PostgreSQL server the same code uses that instead:
//!
//! ```text
//! DATABASE_URL=postgres://user:password@host/database cargo run --example delayed_messages
//! ```
//!
//! Start it in two terminals, or on two machines: they share the work.

#![allow(clippy::doc_markdown, reason = "SQLite and PostgreSQL are names")]

mod store;

use std::env;
use std::error::Error;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use store::{Message, Postgres, Result, Sqlite, Store};
use tickwheel::pool::ScheduledThreadPool;

const USAGE: &str = "\
usage: delayed_messages [--fresh] [--every MILLISECONDS] [PATH]
  --fresh   forgets all messages, sent or not, and begins anew
  --every   looks so often; otherwise every 1000
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
const APART: i64 = 700;

/// The most messages that one transaction sends, so that other processes get their share.
const BATCH: u32 = 10;

fn main() -> ExitCode {
    let options = match Options::from(env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => return fail(&format!("{problem}\n{USAGE}")),
    };
    let (mut store, place) = match open(&options) {
        Ok(opened) => opened,
        Err(error) => return fail(&error.to_string()),
    };
    println!("{place}");
    match fill(&mut *store, &options).and_then(|()| send_all(store, options.every)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!(
            "it stops here: {}\nNo message is lost, and none will be sent twice: what was not sent \
             waits in the database. Put right what is wrong there, and run this again.",
            with_causes(&*error)
        )),
    }
}

/// Sends messages until none waits.
fn send_all(store: Box<dyn Store>, every: Duration) -> Result<()> {
    let pool = ScheduledThreadPool::new(1);
    let mut sender = Sender::new(store)?;
    // A panic would end the series too, but the error says more.
    let (tell, told) = mpsc::channel();
    let look = move || {
        sender.look().unwrap_or_else(|error| {
            _ = tell.send(error);
            Break(())
        })
    };
    pool.schedule_with_fixed_delay(Duration::ZERO, every, look)?.join()?;
    told.try_recv().map_or(Ok(()), Err)
}

/// The state of the task from one run to the next.
struct Sender {
    store: Box<dyn Store>,
    name: String,
    start: Instant,
    /// The number of messages that waited at first: the full width of the bar.
    at_first: u64,
    sent: u64,
}

impl Sender {
    fn new(mut store: Box<dyn Store>) -> Result<Sender> {
        let at_first = store.waiting()?;
        let name = format!("process {}", process::id());
        let sender = Sender { store, name, start: Instant::now(), at_first, sent: 0 };
        sender.draw(at_first, "");
        Ok(sender)
    }

    /// Sends all messages that are due. Breaks when none waits any more.
    fn look(&mut self) -> Result<ControlFlow<()>> {
        loop {
            let now = self.store.now()?;
            let messages = self.store.deliver_due(now, BATCH, &self.name)?;
            let waiting = self.store.waiting()?;
            self.sent += messages.len() as u64;
            let after = (0..messages.len() as u64).rev();
            for (message, after) in messages.iter().zip(after) {
                self.draw(waiting + after, &told(message, now));
            }
            if waiting == 0 {
                self.sum_up()?;
                return Ok(Break(()));
            }
            if messages.len() < BATCH as usize {
                return Ok(Continue(()));
            }
        }
    }

    /// Prints one line: the time, a bar for the waiting messages, and what happened.
    fn draw(&self, waiting: u64, event: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        let width = 24.min(self.at_first);
        let filled = (waiting * width).div_ceil(self.at_first.max(1)).min(width) as usize;
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(width as usize - filled));
        println!("{}", format!("{seconds:5.1} s  {bar} {waiting:>3} wait  {event}").trim_end());
    }

    fn sum_up(&mut self) -> Result<()> {
        let all = self.store.deliveries()?.len() as u64;
        let others = all.saturating_sub(self.sent);
        let mine = self.sent;
        println!(
            "All {all} are sent, each once: {mine} by this run, {others} before or beside it."
        );
        println!("To begin anew: --fresh");
        Ok(())
    }
}

fn told(message: &Message, now: i64) -> String {
    let late = Duration::from_millis((now - message.send_at).try_into().unwrap_or(0));
    format!("#{:<3} {:<20} {:.1} s late", message.id, message.text, late.as_secs_f64())
}

/// Puts in the messages. Those that are there already stay as they are, so it does no harm if the program is killed
/// here, or is started in two terminals at once.
fn fill(store: &mut dyn Store, options: &Options) -> Result<()> {
    if options.fresh {
        store.clear()?;
    }
    let now = store.now()?;
    let mut new = 0;
    for (id, text) in (1..).zip(TEXTS) {
        let message = Message { id, text: text.to_owned(), send_at: now + id * APART };
        new += u32::from(store.add(&message)?);
    }
    let every = options.every;
    match new {
        0 => println!("Goes on with what is there. Looks every {every:?}.\n"),
        _ => println!("{new} new messages. Looks every {every:?}. Kill it, and run it again.\n"),
    }
    Ok(())
}

/// Returns the database and a name for it. The name is not the URL, because that may contain a password.
fn open(options: &Options) -> Result<(Box<dyn Store>, String)> {
    if let Ok(url) = env::var("DATABASE_URL") {
        let store = Postgres::connect(&url).map_err(|error| {
            let reason = with_causes(&*error);
            format!("the database that DATABASE_URL names cannot be opened: {reason}")
        })?;
        return Ok((Box::new(store), "PostgreSQL, from DATABASE_URL".to_owned()));
    }
    let path = options.path.display();
    let store = Sqlite::open(&options.path).map_err(|error| {
        format!("{path} cannot be opened: {}\nGive the path of another file.", with_causes(&*error))
    })?;
    Ok((Box::new(store), format!("SQLite, {path}")))
}

// ----- the command line --------------------------------------------------------------------

struct Options {
    path: PathBuf,
    fresh: bool,
    every: Duration,
}

impl Options {
    fn from(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Options, String> {
        let path = env::temp_dir().join("tickwheel_delayed_messages.sqlite3");
        let mut options = Options { path, fresh: false, every: Duration::from_secs(1) };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--fresh" => options.fresh = true,
                "--every" => options.every = milliseconds(arguments.next())?,
                flag if flag.starts_with('-') => return Err(format!("unknown: {flag}")),
                path => options.path = PathBuf::from(path),
            }
        }
        Ok(options)
    }
}

fn milliseconds(argument: Option<String>) -> std::result::Result<Duration, String> {
    let number = argument.and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    number.map(Duration::from_millis).ok_or_else(|| "--every takes a number above zero".to_owned())
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("{problem}");
    ExitCode::FAILURE
}

/// Returns the message of an error and of its causes, each once.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}
