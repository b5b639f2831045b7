//! A shop whose timers come, run, fail, are tried again and die, with a page for its operators. One command:
//!
//! ```text
//! cargo run -p tickwheel-durable-web --example service
//! ```
//!
//! It prints the address of the page and a token to log in. The timers are in a SQLite file, and stay there when the service is
//! stopped with Ctrl-C, or killed. `TICKWHEEL_TOKEN` in the environment is a token of your own.

use std::collections::HashSet;
use std::error::Error;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{env, thread};

use axum::Router;
use tickwheel::Scheduler;
use tickwheel_durable::{AsyncTimers, Failure, HandlerResult, NewTimer, Retry, Run, Worker};
use tickwheel_durable_web::{Page, random_token};
use tokio::net::TcpListener;

const USAGE: &str = "\
usage: service [--port PORT] [--read-only] [PATH]
  --port       the port of the page, 7380 by default; with 0 one that is free
  --read-only  a page on which nobody can change anything
  PATH         the SQLite file; otherwise one in the system's temp folder
With TICKWHEEL_TOKEN in the environment that is the token to log in, of 16 bytes or more.";

const DAY: Duration = Duration::from_secs(86_400);

struct Options {
    port: u16,
    is_read_only: bool,
    path: String,
}

fn main() -> ExitCode {
    let done = options().and_then(|options| {
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        runtime.block_on(serve(&options)).map_err(|error| error.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let path = env::temp_dir().join("tickwheel_service.sqlite3").display().to_string();
    let mut options = Options { port: 7380, is_read_only: false, path };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--port" => {
                let port = arguments.next().and_then(|port| port.parse().ok());
                options.port = port.ok_or_else(|| format!("--port takes a number\n{USAGE}"))?;
            }
            "--read-only" => options.is_read_only = true,
            "--help" => return Err(USAGE.to_owned()),
            flag if flag.starts_with('-') => return Err(format!("unknown: {flag}\n{USAGE}")),
            path => path.clone_into(&mut options.path),
        }
    }
    Ok(options)
}

async fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let port = options.port;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => format!(
            "port {port} is taken, perhaps by another run of this example: stop that one, or give another port, such as `--port 0`"
        ),
        _ => format!("port {port}: {error}"),
    })?;
    let address = format!("sqlite:{}", options.path);
    let timers = AsyncTimers::open(&address).await?;
    let worker = start(&timers)?;

    let token = env::var("TICKWHEEL_TOKEN").unwrap_or_else(|_| random_token());
    let page = Page::with_token(timers.blocking(), &token)?.title("Shop");
    let page = if options.is_read_only { page.read_only() } else { page };
    let app = Router::new().route_service("/", page.build());
    println!("the page:  http://{}/", listener.local_addr()?);
    println!("the token: {token}");
    println!("timers:    {address}");
    println!(
        "a terminal tells the same: cargo run -q -p tickwheel-durable-cli -- top --database {address}"
    );
    println!("Ctrl-C stops it. What waits then waits on in the file.");

    let customers = tokio::spawn(sell(timers.clone()));
    tokio::select! {
        // Not a graceful end of the connections: a browser would keep one open.
        served = axum::serve(listener, app) => served?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    customers.abort();
    println!("\nStops. Handlers that run have five seconds.");
    let is_done = tokio::task::spawn_blocking(move || worker.stop(Duration::from_secs(5))).await?;
    println!("{}", if is_done { "Stopped." } else { "Stopped. What still ran is run again." });
    Ok(())
}

/// The handlers of the shop.
fn start(timers: &AsyncTimers) -> tickwheel_durable::Result<Worker> {
    let worker = timers.worker().history(DAY).retry(Retry::attempts(3).gaps(
        Duration::from_secs(2),
        2.0,
        Duration::from_secs(30),
    ));
    // The bank declines some cards, until an operator has talked to the customer and requeues the timer.
    let declined = Arc::new(Mutex::new(HashSet::new()));
    let died = Arc::clone(&declined);
    worker
        .on_dead(move |timer, _| {
            died.lock().unwrap_or_else(PoisonError::into_inner).insert(timer.key.clone());
        })
        .handle("mail", mail)
        .handle("charge", move |run| {
            takes(40, run);
            let is_settled =
                declined.lock().unwrap_or_else(PoisonError::into_inner).contains(run.key());
            if !is_settled && chance(run.key()) % 7 == 0 {
                return Err(Failure::new("the bank says: 402, the card was declined"));
            }
            Ok(())
        })
        .handle("thumbnail", |run| {
            takes(900, run);
            Ok(())
        })
        .at_most(2) // so a burst of them is late
        .handle("report", |run| {
            takes(400, run);
            Ok(())
        })
        .handle("remind", |_| Ok(()))
        .start(Scheduler::global())
}

/// Some mails are taken at the second attempt only.
fn mail(run: &Run<'_>) -> HandlerResult {
    takes(20, run);
    if run.attempt() == 1 && chance(run.key()) % 11 == 0 {
        return Err(Failure::new("the mail server says: 451, try again later"));
    }
    Ok(())
}

/// What the customers do: timers of all kinds.
async fn sell(timers: AsyncTimers) -> tickwheel_durable::Result<()> {
    timers
        .schedule_if_absent(
            &NewTimer::new("report", "sales", Duration::ZERO).every(Duration::from_secs(10)),
        )
        .await?;
    for order in
        timers.now().await?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()..
    {
        let name = |of: &str| format!("order {}/{of}", order % 1_000_000);
        let random = chance(&name(""));
        let soon = Duration::from_millis(2000 + random % 8000);
        let mut new = vec![
            NewTimer::new("mail", name("received"), soon)
                .payload(format!("{{\"order\": {order}, \"mail\": \"received\"}}")),
            NewTimer::new("charge", name("card"), soon)
                .payload(format!("{{\"order\": {order}, \"cents\": {}}}", random % 9000 + 100)),
        ];
        if random % 5 == 0 {
            let pictures = ["front", "back", "left", "right"];
            new.extend(pictures.map(|of| {
                NewTimer::new("thumbnail", name(of), Duration::from_secs(4))
                    .payload([0xff, 0xd8, 0xff, 0xe0])
            }));
        }
        if random % 8 == 0 {
            new.push(
                NewTimer::new("remind", name("rate us"), DAY * 3).payload("How do you like it?"),
            );
        }
        timers.schedule_all(&new).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Works for so many milliseconds, or up to half more.
fn takes(milliseconds: u64, run: &Run<'_>) {
    let more = chance(run.key()) % (milliseconds / 2);
    thread::sleep(Duration::from_millis(milliseconds + more));
}

/// A number that looks random, and is the same for the same text.
fn chance(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}
