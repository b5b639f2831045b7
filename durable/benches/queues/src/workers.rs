//! Workers: in processes of their own, or, for SQLite, in this one.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use graphile_worker::{IntoTaskHandlerResult, LocalQueueConfig, TaskHandler, WorkerContext};
use graphile_worker::{WorkerOptions, WorkerUtils};
use serde::{Deserialize, Serialize};
use tickwheel::{Precision, Scheduler};
use tickwheel_durable::{Timers, Worker};

use crate::engines::{Engine, GRAPHILE_SCHEMA, KIND, Place, connect, micros, pool};

/// Handlers at the same time, in each process. What `tickwheel` has by default.
const THREADS: usize = 4;

/// A worker that stops writes what it has not started. A busy disk may hold that up for long.
const STOP: Duration = Duration::from_secs(60);

/// If this is set, the workers of `tickwheel` use the global scheduler, which is exact to the millisecond.
const TICKS: &str = "TICKWHEEL_BENCH_TICKS";

/// How many rows the polling loop takes at once.
const BATCH: i64 = 100;

/// What handlers have seen: when each timer was to be due, and how late it was, in microseconds.
#[derive(Clone, Debug, Default)]
struct Log {
    seen: Arc<Mutex<Vec<(i64, i64)>>>,
    count: Arc<AtomicUsize>,
    has_changed: Arc<Condvar>,
}

impl Log {
    fn add(&self, due: i64) {
        let late = micros(SystemTime::now()) - due;
        let mut seen = self.seen.lock().expect("no panic");
        seen.push((due, late));
        // It is a count for the progress, and orders nothing.
        self.count.fetch_add(1, Ordering::Relaxed);
        drop(seen);
        self.has_changed.notify_one();
    }

    fn add_text(&self, payload: &[u8]) {
        let due = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        self.add(due.expect("the payload is the due time"));
    }
}

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Nothing.
    Plain,
    /// It inserts a row, in the transaction that ends the timer.
    Insert,
}

impl Handler {
    fn word(self) -> &'static str {
        match self {
            Handler::Plain => "plain",
            Handler::Insert => "insert",
        }
    }
}

/// The workers of one measurement.
pub(crate) struct Crew {
    processes: Vec<Process>,
    /// The worker of a SQLite file, in this process.
    inside: Option<(Worker, Log)>,
}

struct Process {
    child: Child,
    /// Its end tells the process to stop.
    input: Option<ChildStdin>,
    log: Log,
    reader: Option<JoinHandle<()>>,
}

impl Crew {
    /// Starts workers, and waits until all of them are ready.
    pub(crate) fn start(place: &Place<'_>, processes: usize, handler: Handler) -> Crew {
        if place.engine == Engine::Sqlite {
            let log = Log::default();
            let timers = place.timers.clone().expect("the store is open");
            let worker = tickwheel(&timers, handler, &log, true);
            return Crew { processes: Vec::new(), inside: Some((worker, log)) };
        }
        let start = |_| Process::start(place, handler);
        Crew { processes: (0..processes).map(start).collect(), inside: None }
    }

    /// How many handlers have been called.
    pub(crate) fn count(&self) -> usize {
        let processes = self.processes.iter().map(|process| &process.log);
        let logs = processes.chain(self.inside.iter().map(|(_, log)| log));
        logs.map(|log| log.count.load(Ordering::Relaxed)).sum()
    }

    /// The number of the first worker process. `None`: it is this one.
    pub(crate) fn process(&self) -> Option<u32> {
        self.processes.first().map(|process| process.child.id())
    }

    /// Stops the workers. Returns what their handlers have seen.
    pub(crate) fn stop(mut self) -> Vec<(i64, i64)> {
        let mut seen = Vec::new();
        for process in &mut self.processes {
            process.input = None;
        }
        for process in &mut self.processes {
            process.reader.take().into_iter().for_each(|reader| reader.join().expect("no panic"));
            seen.append(&mut process.log.seen.lock().expect("no panic"));
        }
        if let Some((worker, log)) = self.inside.take() {
            assert!(worker.stop(STOP), "the worker stops");
            seen.append(&mut log.seen.lock().expect("no panic"));
        }
        seen
    }
}

impl Process {
    fn start(place: &Place<'_>, handler: Handler) -> Process {
        let program = std::env::current_exe().expect("this program has a path");
        let word = place.engine.word();
        let mut child = Command::new(program)
            .args(["worker", &word, handler.word(), &place.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.next().expect("the process is ready").expect("a line");
        assert_eq!(ready, "ready");
        let log = Log::default();
        let reader = thread::spawn({
            let log = log.clone();
            move || lines.for_each(|line| read(&log, &line.expect("a line")))
        });
        Process { child, input, log, reader: Some(reader) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        _ = self.child.wait();
    }
}

/// Takes in a line of a worker process: a count, or a due time and a lateness.
fn read(log: &Log, line: &str) {
    let mut numbers = line.split(' ').map(|number| number.parse().expect("a number"));
    match (numbers.next(), numbers.next()) {
        (Some(due), Some(late)) => log.seen.lock().expect("no panic").push((due, late)),
        (Some(count), None) => {
            log.count.store(usize::try_from(count).expect("a count"), Ordering::Relaxed);
        }
        (None, _) => {}
    }
}

/// The main function of a worker process. It works until its input ends.
pub(crate) fn main(arguments: &[String]) {
    let [engine, handler, address] = arguments else {
        panic!("usage: worker ENGINE HANDLER ADDRESS")
    };
    let engine = Engine::of_word(engine).expect("an engine");
    let handler = if handler == "insert" { Handler::Insert } else { Handler::Plain };
    let log = Log::default();
    let stop: Box<dyn FnOnce()> = match engine {
        Engine::Sqlite | Engine::Postgres => {
            let timers = Timers::open(address).expect("the store opens");
            let worker = tickwheel(&timers, handler, &log, false);
            Box::new(move || assert!(worker.stop(STOP), "the worker stops"))
        }
        Engine::Polling(interval) => poll(address, Duration::from_millis(interval), &log),
        Engine::Graphile => graphile(address, &log),
    };
    println!("ready");
    let is_over = Arc::new(AtomicBool::new(false));
    let reporter = thread::spawn({
        let (log, is_over) = (log.clone(), Arc::clone(&is_over));
        move || report(&log, &is_over)
    });
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    stop();
    let seen = log.seen.lock().expect("no panic");
    is_over.store(true, Ordering::Relaxed);
    drop(seen);
    log.has_changed.notify_one();
    reporter.join().expect("no panic");
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for (due, late) in log.seen.lock().expect("no panic").iter() {
        writeln!(output, "{due} {late}").expect("the other end reads");
    }
}

/// Tells how many handlers have been called, each few milliseconds while that changes. Meanwhile it waits, because what a worker
/// costs that is idle is measured too.
fn report(log: &Log, is_over: &AtomicBool) {
    let mut told = 0;
    let is_idle =
        |told| log.count.load(Ordering::Relaxed) == told && !is_over.load(Ordering::Relaxed);
    loop {
        let seen = log.seen.lock().expect("no panic");
        drop(log.has_changed.wait_while(seen, |_| is_idle(told)).expect("no panic"));
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        told = log.count.load(Ordering::Relaxed);
        println!("{told}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn tickwheel(timers: &Timers, handler: Handler, log: &Log, is_sqlite: bool) -> Worker {
    let log = log.clone();
    let worker = timers.worker().threads(THREADS);
    let worker = match (handler, is_sqlite) {
        (Handler::Plain, _) => worker.handle(KIND, move |run| {
            log.add_text(run.payload());
            Ok(())
        }),
        (Handler::Insert, true) => worker.handle_in_sqlite(KIND, move |run, transaction| {
            log.add_text(run.payload());
            let sql = "INSERT INTO work VALUES (?1)";
            transaction.prepare_cached(sql)?.execute([run.key()])?;
            Ok(())
        }),
        (Handler::Insert, false) => worker.handle_in_postgres(KIND, move |run, transaction| {
            log.add_text(run.payload());
            transaction.execute("INSERT INTO work VALUES ($1)", &[&run.key()])?;
            Ok(())
        }),
    };
    if std::env::var_os(TICKS).is_some() {
        return worker.start(Scheduler::global()).expect("the worker starts");
    }
    let exact = Scheduler::builder().precision(Precision::Exact).build().expect("a tick thread");
    worker.start(&exact).expect("the worker starts")
}

/// A loop as programs write it that have no timers: it takes what is due, handles it, and sleeps.
fn poll(address: &str, interval: Duration, log: &Log) -> Box<dyn FnOnce()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut client = connect(address);
    let look = client.prepare(
        "SELECT id, payload FROM jobs WHERE due <= now() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED",
    );
    let look = look.expect("valid SQL");
    let delete = client.prepare("DELETE FROM jobs WHERE id = ANY($1)").expect("valid SQL");
    let thread = thread::spawn({
        let (log, is_over) = (log.clone(), Arc::clone(&is_over));
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let mut transaction = client.transaction().expect("a transaction");
                let rows = transaction.query(&look, &[&BATCH]).expect("rows");
                rows.iter().for_each(|row| log.add_text(row.get(1)));
                if !rows.is_empty() {
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    transaction.execute(&delete, &[&ids]).expect("deleted");
                }
                transaction.commit().expect("committed");
                if rows.len() < usize::try_from(BATCH).unwrap_or(0) {
                    thread::sleep(interval); // it is a poll: there is nothing to wait for
                }
            }
        }
    });
    Box::new(move || {
        is_over.store(true, Ordering::Relaxed);
        thread.join().expect("no panic");
    })
}

#[derive(Debug, Deserialize, Serialize)]
struct Bench {
    due: i64,
}

impl TaskHandler for Bench {
    const IDENTIFIER: &'static str = KIND;

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        context.get_ext::<Log>().expect("the log").add(self.due);
        Ok::<(), String>(())
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// With its local queue, and a look each 10 ms, as in its own benches. Without, each of its slots takes one job each
/// second, if jobs become due that were put in before.
fn graphile(address: &str, log: &Log) -> Box<dyn FnOnce()> {
    let runtime = runtime();
    let worker = runtime.block_on(async {
        let options = WorkerOptions::default()
            .pg_pool(pool(address, 8).await)
            .schema(GRAPHILE_SCHEMA)
            .concurrency(THREADS)
            .listen_os_shutdown_signals(false)
            .add_extension(log.clone())
            .poll_interval(Duration::from_millis(10))
            .local_queue(LocalQueueConfig::default().with_size(100))
            .define_job::<Bench>();
        Arc::new(options.init().await.expect("the worker starts"))
    });
    let run = runtime.spawn({
        let worker = Arc::clone(&worker);
        async move { worker.run().await.expect("no error") }
    });
    Box::new(move || {
        worker.request_shutdown();
        runtime.block_on(run).expect("no panic");
    })
}

/// Makes its tables.
pub(crate) fn migrate_graphile(address: &str) {
    runtime().block_on(async {
        let pool = pool(address, 1).await;
        WorkerUtils::new(pool, GRAPHILE_SCHEMA).migrate().await.expect("tables");
    });
}
