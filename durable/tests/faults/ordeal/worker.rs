//! A worker process of an ordeal, its settings, and its handlers.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::postgres as on_server;
use tickwheel_durable::sqlite as in_file;
use tickwheel_durable::{
    Existing, Failure, HandlerResult, NewTimer, Retry, Run, Table, Timers, WorkerBuilder,
};

use super::super::common::{PATIENCE, Random};
use super::super::handlers::{micros, new};
use super::super::process::Process;
use super::super::wall_clock;
use super::{PLAIN, TX};

const VARIABLE: &str = "TICKWHEEL_ORDEAL_WORKER";

/// The gap behind a failed attempt, and the one behind a failed attempt of what is `late`, which is longer than a period.
const GAP: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(400);

/// The time limit of what is `over`.
pub(super) const LIMIT: Duration = Duration::from_millis(60);

/// What is drawn for each worker process.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// What its worker connects to, and what its plain handlers do.
    pub(super) address: String,
    pub(super) direct: String,
    pub(super) ledger: String,
    pub(super) lease: Duration,
    pub(super) threads: usize,
    pub(super) poll: Option<Duration>,
    pub(super) is_pooled: bool,
    /// `None`: both.
    pub(super) kind: Option<&'static str>,
}

impl Settings {
    pub(super) fn draw(random: &mut Random, is_first: bool) -> Settings {
        Settings {
            address: String::new(),
            direct: String::new(),
            ledger: String::new(),
            lease: Duration::from_millis(400 + random.below(1600)),
            threads: 1 + random.below(4) as usize,
            poll: random.one_in(3).then(|| Duration::from_millis(5 + random.below(500))),
            is_pooled: random.one_in(5),
            kind: (random.one_in(4) && !is_first)
                .then(|| ["plain", "tx"][random.below(2) as usize]),
        }
    }

    pub(super) fn start(&self) -> Process {
        let Settings { address, direct, ledger, lease, threads, poll, is_pooled, kind } = self;
        let lines = format!(
            "{address}\n{direct}\n{ledger}\n{}\n{threads}\n{}\n{is_pooled}\n{}",
            lease.as_millis(),
            poll.unwrap_or_default().as_millis(),
            kind.unwrap_or("both"),
        );
        Process::of("ordeal_process", VARIABLE, &lines)
    }
}

/// The whole life of a worker process. Returns at once if this process is none.
pub(crate) fn be_one() {
    let Ok(settings) = env::var(VARIABLE) else { return };
    let [address, direct, ledger, lease, threads, poll, is_pooled, kind] =
        settings.split('\n').collect::<Vec<_>>()[..]
    else {
        panic!("eight settings")
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let is_file = address.starts_with("sqlite:");
    let address = if is_pooled == "true" && !is_file {
        format!("{address}&pgbouncer=true")
    } else {
        address.to_owned()
    };
    // The server may be down. What is written here is in the output of the test.
    let begin = Instant::now();
    let timers = loop {
        match Timers::open_unmigrated(&address) {
            Ok(timers) => break timers,
            Err(error) => eprintln!("a worker process: {error}"),
        }
        if begin.elapsed() > PATIENCE {
            exit(0) // the test is gone with its server, or the nemesis starts another one
        }
        thread::sleep(Duration::from_millis(50));
    };
    let file = OpenOptions::new().append(true).create(true).open(ledger).expect("it opens");
    let handlers = Handlers { file: Arc::new(file), direct: direct.to_owned(), is_file };
    let mut worker = timers
        .worker()
        .retry(Retry::attempts(10_000).gaps(GAP, 1.0, GAP))
        .lease(Duration::from_millis(number(lease)))
        .threads(number(threads) as usize)
        .on_error(|_| {});
    if kind != "tx" {
        worker = handlers.plain(worker);
    }
    if kind != "plain" {
        worker = handlers.in_transaction(worker);
    }
    if number(poll) > 0 {
        worker = worker.poll_every(Duration::from_millis(number(poll)));
    }
    let worker = worker.start(Scheduler::global()).unwrap_or_else(|error| {
        eprintln!("a worker process: {error}"); // the nemesis starts another one
        exit(0)
    });
    println!("@ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        if let Some(seconds) = line.strip_prefix("clock ") {
            wall_clock::set_off(seconds.parse().expect("a number"));
        } else if line == "stop" {
            println!("@stopped {}", worker.stop(PATIENCE));
        } else if line == "alive" {
            println!(
                "@alive {}",
                worker.stop_reason().map_or_else(|| "yes".to_owned(), |reason| reason.to_string())
            );
        }
    }
    exit(0);
}

#[derive(Clone)]
struct Handlers {
    file: Arc<File>,
    direct: String,
    is_file: bool,
}

/// What a payload says: the version, what to do, and how often.
///
/// - `fail n`: the first n attempts fail. `late n`: so they do, and the gap behind is long.
/// - `slow n`: it takes n milliseconds.
/// - `stumble n`: the first attempt fails after n milliseconds.
/// - `over 1`: the first attempt takes longer than its time limit, and books all the same.
/// - `child 1`: in a transaction, it schedules another timer.
fn told(run: &Run<'_>) -> Result<(i64, String, u32), Failure> {
    let text = std::str::from_utf8(run.payload())?;
    let mut words = text.split(' ');
    let version = words.next().unwrap_or_default().parse()?;
    let what = words.next().unwrap_or_default().to_owned();
    Ok((version, what, words.next().map_or(Ok(0), str::parse)?))
}

impl Handlers {
    /// Notes the start, and does what is to be done before the effect.
    fn begin(&self, run: &Run<'_>) -> HandlerResult {
        let (version, what, count) = told(run)?;
        let now = wall_clock::monotonic().as_micros();
        let line = format!("{}\t{}\t{version}\t{}\t{now}\n", run.kind(), run.key(), run.attempt());
        let written = (&*self.file).write(line.as_bytes()).expect("it is written");
        assert_eq!(written, line.len());
        let failure = Failure::new("as it was told");
        match what.as_str() {
            "fail" if run.attempt() <= count => Err(failure),
            "late" if run.attempt() <= count => Err(failure.retry_after(LATE)),
            "stumble" if run.attempt() == 1 => {
                thread::sleep(Duration::from_millis(u64::from(count))); // work
                Err(failure)
            }
            "over" if run.attempt() == 1 => {
                thread::sleep(LIMIT * 2); // longer than the limit is the subject
                Ok(())
            }
            "slow" => {
                thread::sleep(Duration::from_millis(u64::from(count))); // work
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn plain(&self, worker: WorkerBuilder) -> WorkerBuilder {
        PLAIN.into_iter().fold(worker, |worker, kind| {
            let (handlers, client) = (self.clone(), Mutex::new(None));
            worker.handle(kind, move |run| {
                handlers.begin(run)?;
                // Several threads may run this, so each takes the connection or opens another.
                let known = client.lock().expect("no panic").take();
                let mut open = known.map_or_else(|| handlers.open(), Ok)?;
                open.book(run)?;
                *client.lock().expect("no panic") = Some(open);
                Ok(())
            })
        })
    }

    fn in_transaction(&self, worker: WorkerBuilder) -> WorkerBuilder {
        TX.into_iter().fold(worker, |worker, kind| {
            let handlers = self.clone();
            if self.is_file {
                return worker.handle_in_sqlite(kind, move |run, transaction| {
                    handlers.begin(run)?;
                    book_in_file(transaction, run)?;
                    child(run)?.map_or(Ok(()), |child| {
                        in_file::within(transaction).schedule(&[child], Existing::Replace)?;
                        Ok(())
                    })
                });
            }
            worker.handle_in_postgres(kind, move |run, transaction| {
                handlers.begin(run)?;
                book_in_table(transaction, run)?;
                child(run)?.map_or(Ok(()), |child| {
                    on_server::within(transaction).schedule(&[child], Existing::Replace)?;
                    Ok(())
                })
            })
        })
    }

    fn open(&self) -> Result<Client, Failure> {
        if !self.is_file {
            return Ok(Client::Server(postgres::Client::connect(&self.direct, postgres::NoTls)?));
        }
        let client = rusqlite::Connection::open(&self.direct)?;
        client.busy_timeout(PATIENCE)?;
        Ok(Client::File(client))
    }
}

pub(super) fn child_of(key: &str, version: i64) -> String {
    format!("{key} child {version}")
}

/// The timer that a run schedules in its transaction.
fn child(run: &Run<'_>) -> Result<Option<NewTimer>, Failure> {
    let (version, what, _) = told(run)?;
    let child =
        || new("plain", &child_of(run.key(), version), GAP).payload(format!("{version} quick"));
    Ok((what == "child").then(child))
}

/// A connection of the plain handlers' own. After an error it is opened again.
enum Client {
    File(rusqlite::Connection),
    Server(postgres::Client),
}

impl Client {
    fn book(&mut self, run: &Run<'_>) -> HandlerResult {
        match self {
            Client::File(client) => book_in_file(client, run),
            Client::Server(client) => book_in_table(client, run),
        }
    }
}

fn book_in_file(client: &rusqlite::Connection, run: &Run<'_>) -> HandlerResult {
    let sql = "INSERT INTO ledger (kind, key, version, due, at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let now = micros(std::time::SystemTime::now());
    client.execute(sql, (run.kind(), run.key(), told(run)?.0, micros(run.due()), now))?;
    Ok(())
}

fn book_in_table(client: &mut impl postgres::GenericClient, run: &Run<'_>) -> HandlerResult {
    let sql = "INSERT INTO ledger (kind, key, version, due, at)
        VALUES ($1, $2, $3, $4, (extract(epoch FROM tickwheel_now()) * 1000000)::bigint)";
    client.execute(sql, &[&run.kind(), &run.key(), &told(run)?.0, &micros(run.due())])?;
    Ok(())
}
