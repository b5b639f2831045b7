//! How do I keep sessions that expire, and carry them over a restart? A session store behind HTTP: each touch pushes the
//! end of a session further, sessions that were idle for too long come out of a `DelayQueue`, and a file holds those
//! that are pending.
//!
//! ```text
//! cargo run -p tickwheel-demos --bin sessions      shows it: a server, some requests, and a restart
//! cargo run -p tickwheel-demos --bin sessions -- --serve 127.0.0.1:8080 --file sessions.jsonl
//!
//! curl -X POST 127.0.0.1:8080/login/ann           gives an id
//! curl -X POST 127.0.0.1:8080/touch/ID            it lives for another 30 s
//! curl -X POST 127.0.0.1:8080/logout/ID
//! curl 127.0.0.1:8080/sessions                    how many are pending
//! curl 127.0.0.1:8080/sessions/ID                 one of them, and how long it has left
//! ```
//!
//! Expiries are printed as they happen. Ctrl-C closes the server, `kill -9` does so less gently, and the next start goes
//! on with the sessions of the file.

mod client;
mod server;
mod store;

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, fs};

use futures_util::future::{Either, pending, select};
use tickwheel::Scheduler;
use tokio::sync::oneshot;

use store::Store;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MILLI: Duration = Duration::from_millis(1);
/// The idle time of the demonstration.
const IDLE: Duration = Duration::from_secs(1);

const USAGE: &str = "\
usage: sessions [--serve ADDRESS --file PATH [--idle MILLISECONDS] [--for MILLISECONDS]]
  --serve   listens there; port 0 is any free port
  --file    keeps the sessions there
  --idle    a session lives for so long after its last touch; otherwise 30000
  --for     closes after so long; otherwise at Ctrl-C
Without arguments it shows what it does, in two seconds.";

fn main() -> ExitCode {
    let done = Options::from(env::args().skip(1)).and_then(|options| match options {
        Some(options) => run_until_ctrl_c(&options),
        None => demonstrate(),
    });
    done.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Prints what happens, with the time since the start.
#[derive(Clone, Copy)]
struct Timeline(Instant);

impl Timeline {
    fn say(self, what: &str) {
        println!("{:>6} ms  {what}", self.0.elapsed().as_millis());
    }
}

fn run_until_ctrl_c(options: &Options) -> Result<()> {
    let (stop, stopped) = oneshot::channel();
    let mut stop = Some(stop);
    ctrlc::set_handler(move || _ = stop.take().map(|stop| stop.send(())))?;
    let listener = TcpListener::bind(&options.serve)
        .map_err(|error| format!("{} cannot be listened on: {error}", options.serve))?;
    let time = options.time;
    let end = async move {
        let time_is_up = match time {
            Some(time) => Either::Left(Scheduler::global().sleep(time)),
            None => Either::Right(pending()),
        };
        select(stopped, time_is_up).await;
    };
    run(listener, &options.file, options.idle, end, Timeline(Instant::now()))
}

/// Runs the server until `end` is ready.
fn run(
    listener: TcpListener,
    file: &Path,
    idle: Duration,
    end: impl Future,
    timeline: Timeline,
) -> Result<()> {
    let place = file.display();
    let in_file = |error| format!("{place}: {error}");
    let (store, writer) = Store::open(file, idle).map_err(in_file)?;
    timeline.say(&format!(
        "listening on {}, with {} from before; a session lives for {idle:?} after its last touch",
        listener.local_addr()?,
        sessions(store.pending()),
    ));
    let writer = thread::spawn(|| writer.run());
    let reporter = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            store.report_expired(|session, late| {
                let (user, id) = (&session.value, session.key);
                timeline.say(&format!("expired: {user}, {id}, {late:.1?} after its deadline"));
            });
        }
    });
    server::serve(listener, &store, end)?;
    let pending = writer.join().map_err(|_| "the writer has panicked")?.map_err(in_file)?;
    reporter.join().map_err(|_| "the reporter has panicked")?;
    timeline.say(&format!("closed: {} pending, now in {place}", sessions(pending)));
    Ok(())
}

fn sessions(count: usize) -> String {
    if count == 1 { "1 session".to_owned() } else { format!("{count} sessions") }
}

// ----- the demonstration -------------------------------------------------------------------

/// A server on a thread of this process.
struct Running {
    address: SocketAddr,
    timeline: Timeline,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Running {
    fn start(file: &Path, timeline: Timeline) -> Result<Running> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, file) = (listener.local_addr()?, file.to_owned());
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || run(listener, &file, IDLE, stopped, timeline));
        Ok(Running { address, timeline, stop, thread })
    }

    fn send(&self, request: &str) -> Result<String> {
        let (status, text) = client::send(self.address, request)?;
        self.timeline.say(&format!("{request}  ->  {status} {text}"));
        Ok(text)
    }

    fn wait_until_gone(&self, id: &str) -> Result<()> {
        let request = format!("GET /sessions/{id}");
        while client::send(self.address, &request)?.0 == 200 {
            thread::sleep(20 * MILLI);
        }
        Ok(())
    }

    fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| "the server has panicked")?
    }
}

fn demonstrate() -> Result<()> {
    let timeline = Timeline(Instant::now());
    let file = env::temp_dir().join(format!("tickwheel_sessions_{}.jsonl", process::id()));
    let first = Running::start(&file, timeline)?;
    let ann = first.send("POST /login/ann")?;
    let bob = first.send("POST /login/bob")?;
    let eve = first.send("POST /login/eve")?;
    first.send("GET /sessions")?;
    thread::sleep(500 * MILLI);
    first.send(&format!("POST /touch/{ann}"))?;
    first.send(&format!("POST /logout/{eve}"))?;
    first.wait_until_gone(&bob)?;
    first.send("GET /sessions")?;
    first.stop()?;
    print!("{}", fs::read_to_string(&file)?);

    // As the next process would: all that it knows is in the file.
    let second = Running::start(&file, timeline)?;
    second.send(&format!("GET /sessions/{ann}"))?;
    second.wait_until_gone(&ann)?;
    second.send(&format!("POST /touch/{ann}"))?;
    second.stop()?;
    fs::remove_file(&file)?;
    Ok(())
}

// ----- the command line --------------------------------------------------------------------

struct Options {
    serve: String,
    file: PathBuf,
    idle: Duration,
    time: Option<Duration>,
}

impl Options {
    /// Returns `None` if there are no arguments.
    fn from(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
        let (mut serve, mut file, mut idle, mut time) = (None, None, None, None);
        let mut has_any = false;
        while let Some(argument) = arguments.next() {
            has_any = true;
            let value = arguments.next().ok_or(USAGE)?;
            match argument.as_str() {
                "--serve" => serve = Some(value),
                "--file" => file = Some(PathBuf::from(value)),
                "--idle" => idle = Some(milliseconds(&value)?),
                "--for" => time = Some(milliseconds(&value)?),
                unknown => return Err(format!("unknown: {unknown}\n{USAGE}").into()),
            }
        }
        let idle = idle.unwrap_or(30_000 * MILLI);
        match (serve, file) {
            (Some(serve), Some(file)) => Ok(Some(Options { serve, file, idle, time })),
            (None, None) if !has_any => Ok(None),
            _ => Err(USAGE.into()),
        }
    }
}

fn milliseconds(text: &str) -> Result<Duration> {
    let number = text.parse().map_err(|_| format!("{text} is no number\n{USAGE}"))?;
    Ok(Duration::from_millis(number))
}
