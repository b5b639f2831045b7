//! Several workers: each timer is claimed by one of them when it is due, and by another soon after if that one is gone.
//!
//! Worker processes are this program, started again as the test `worker_process`, which does nothing by itself.
//! `TICKWHEEL_TURNS=3000` makes the measurement longer.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use postgres::fallible_iterator::FallibleIterator;
use tickwheel::{Precision, Scheduler};
use tickwheel_durable::{Timers, Worker};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, say};

/// How many timers a second come due.
const RATE: u32 = 300;

/// From the moment at which timers are put in until the first is due. By then the workers know each other.
const LEAD: Duration = Duration::from_millis(1500);

/// Puts in timers, all with one statement, of which one is due each few milliseconds. The workers are told of the first.
fn put_in(database: &Database<'_>, count: u32) -> SystemTime {
    let first = SystemTime::now() + LEAD;
    client(&database.url())
        .execute(
            "INSERT INTO tickwheel_timers (kind, key, due)
            SELECT 'mail', 'timer ' || n, $1::timestamptz + n * interval '1 second' / $2::bigint
            FROM generate_series(0, $3::bigint - 1) n",
            &[&first, &i64::from(RATE), &i64::from(count)],
        )
        .expect("put in");
    first
}

/// Returns true if most of them ran soon after they were due, which they do not if they wait for a look. No machine holds them up for as
/// long as a fault did: ten seconds in two rounds of three.
fn are_on_time(late: &[Duration]) -> bool {
    let most = share(late, 90);
    assert!(most < Duration::from_secs(5), "they wait for a look: {most:?}");
    most < Duration::from_millis(500)
}

/// Returns the lateness that so many in a hundred do not exceed.
fn share(late: &[Duration], of: usize) -> Duration {
    let mut late = late.to_vec();
    late.sort();
    late[(late.len() * of / 100).min(late.len() - 1)]
}

// ----- worker processes ----------------------------------------------------------------------

/// A worker process, which tells how late each of its runs was.
struct Process {
    child: Child,
    runs: Receiver<Run>,
}

#[derive(Clone, Debug)]
enum Run {
    Ready,
    /// When a timer was due, and how late it was.
    Late(SystemTime, Duration),
    Claims(usize),
}

impl Process {
    fn start(database: &Database<'_>) -> Process {
        let mut child = Command::new(env::current_exe().expect("a path"))
            .args(["--exact", "worker_process", "--nocapture"])
            .env("TICKWHEEL_TURNS_PROCESS", database.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (tell, runs) = channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| read(&line, &tell));
        });
        let process = Process { child, runs };
        assert!(matches!(process.runs.recv_timeout(PATIENCE), Ok(Run::Ready)));
        process
    }

    /// Returns when timers were due that have run since the last call, and how late they were.
    fn late(&self) -> Vec<Late> {
        self.runs.try_iter().filter_map(|run| late(&run)).collect()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it ends");
    }

    /// Stops the worker. Returns how often it has claimed, and what [`Process::late`] has not returned before.
    fn stop(mut self) -> (usize, Vec<Late>) {
        drop(self.child.stdin.take());
        let told: Vec<_> = self.runs.iter().collect(); // to the end of its output
        self.child.wait().expect("it ends");
        let claims = told.iter().find_map(|run| match run {
            Run::Claims(claims) => Some(*claims),
            _ => None,
        });
        (claims.expect("it says how often"), told.iter().filter_map(late).collect())
    }
}

/// When a timer was due, and how late it ran.
type Late = (SystemTime, Duration);

fn late(run: &Run) -> Option<Late> {
    match run {
        Run::Late(due, late) => Some((*due, *late)),
        _ => None,
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn read(line: &str, tell: &Sender<Run>) {
    let Some((_, line)) = line.split_once('@') else { return };
    let parts: Vec<_> = line.split('|').collect();
    let micros = |text: &str| Duration::from_micros(text.parse().expect("a number"));
    let run = match parts[..] {
        ["ready"] => Run::Ready,
        ["claims", claims] => Run::Claims(claims.parse().expect("a number")),
        [due, late] => Run::Late(SystemTime::UNIX_EPOCH + micros(due), micros(late)),
        _ => panic!("{line}"),
    };
    _ = tell.send(run); // the test may be over
}

/// The whole life of a worker process. Returns at once if this process is none.
pub(crate) fn be_a_worker() {
    let Ok(url) = env::var("TICKWHEEL_TURNS_PROCESS") else { return };
    let timers = Timers::open(&url).expect("it opens");
    let scheduler = Scheduler::builder().precision(Precision::Exact).build().expect("a thread");
    let worker = timers.worker().handle("mail", |run| {
        let late = SystemTime::now().duration_since(run.due()).unwrap_or_default();
        let due = run.due().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        println!("@{}|{}", due.as_micros(), late.as_micros());
        Ok(())
    });
    let worker = worker.start(&scheduler).expect("it starts");
    println!("@ready");
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("@claims|{}", worker.stats().claims);
    _ = std::io::stdout().flush();
    assert!(worker.stop(PATIENCE));
    exit(0);
}

/// What the processes of a private server have used of the processor, in ticks of 10 ms. `None`: that cannot be seen.
fn server_ticks(database: &Database<'_>) -> Option<u64> {
    let Database::Schema { server, .. } = database else { return None };
    if !cfg!(target_os = "linux") || env::var("DATABASE_URL").is_ok() {
        return None;
    }
    let first = server.process();
    let mut ticks = 0;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((id, rest)) = text.split_once(" (") else { continue };
        let Some((_, rest)) = rest.rsplit_once(") ") else { continue };
        let fields: Vec<u64> =
            rest.split(' ').skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        if id.parse() == Ok(first) {
            ticks += fields[12] + fields[13]; // of those that have ended
        } else if fields[0] == u64::from(first) {
            ticks += fields[10] + fields[11];
        }
    }
    Some(ticks)
}

struct Figures {
    claims: usize,
    ticks: Option<u64>,
    late: Vec<Duration>,
}

/// Runs timers with so many processes, each of them once.
fn measure(database: &Database<'_>, processes: usize, count: u32) -> Figures {
    let processes: Vec<_> = (0..processes).map(|_| Process::start(database)).collect();
    let before = server_ticks(database);
    put_in(database, count);
    let count = count as usize;
    // The server is not asked, because that would cost it time.
    let mut late = Vec::new();
    until("all have run", || {
        late.extend(processes.iter().flat_map(Process::late).map(|(_, late)| late));
        late.len() >= count
    });
    let ticks = server_ticks(database).zip(before).map(|(after, before)| after - before);
    let claims = processes.into_iter().map(|process| process.stop().0).sum();
    assert_eq!(late.len(), count, "each has run once");
    let left = "SELECT count(*) FROM tickwheel_timers WHERE kind = 'mail'";
    assert_eq!(database.number(left), 0);
    Figures { claims, ticks, late }
}

pub(crate) fn eight_processes_claim_as_often_as_one(database: &Database<'_>) {
    let count = env::var("TICKWHEEL_TURNS").map_or(600, |count| count.parse().expect("a number"));
    drop(database.open());
    for processes in [1, 2, 4, 8] {
        if processes != 1 && processes != 8 && count < 3000 {
            continue;
        }
        // On a machine that is too busy for turns, timers are claimed by more than one, so this has three tries.
        let are_few = (0..3).any(|_| claims_are_few(database, processes, count));
        assert!(are_few, "{processes} processes claim too often");
    }
}

fn claims_are_few(database: &Database<'_>, processes: usize, count: u32) -> bool {
    let Figures { claims, ticks, late } = measure(database, processes, count);
    say(&format!(
        "sql, {processes} processes, {count} timers at {RATE} a second: {claims} claims, {ticks:?} ticks of the server, \
         late by {:?} (p50), {:?} (p99), {:?} (most)",
        share(&late, 50),
        share(&late, 99),
        share(&late, 100)
    ));
    // What is late is claimed by more than one (TURN-3).
    let missed = late.iter().filter(|late| **late > Duration::from_millis(30)).count();
    claims <= count as usize * 3 / 2 + missed * processes
}

/// The turns of a process that was killed are the second one's.
pub(crate) fn what_a_killed_process_leaves_runs_at_once(database: &Database<'_>) {
    let count: u32 =
        env::var("TICKWHEEL_TURNS").map_or(600, |count| count.parse().expect("a number"));
    let processes: u32 = if count < 3000 { 3 } else { 8 };
    drop(database.open());
    // A machine that stands still for a while makes all of them late, so this has three tries.
    let are_on_time = (0..3).any(|_| {
        let are_on_time = are_on_time_after_a_kill(database, processes, count);
        database.execute("DELETE FROM tickwheel_timers"); // what the dead one has claimed
        are_on_time
    });
    assert!(are_on_time, "they wait for a look");
}

/// Kills one of so many processes in the middle of a stream of timers. Returns true if most of what was due after that ran soon.
fn are_on_time_after_a_kill(database: &Database<'_>, processes: u32, count: u32) -> bool {
    let mut all: Vec<_> = (0..processes).map(|_| Process::start(database)).collect();
    let first = put_in(database, count);
    let middle = first + Duration::from_secs(1) * count / RATE / 2;
    let left = middle.duration_since(SystemTime::now()).unwrap_or_default();
    thread::sleep(left); // real processes in real time
    all[0].kill();
    let killed = SystemTime::now();
    // What it had claimed waits for the end of its lease.
    until("all others have run", || {
        database.number("SELECT count(*) FROM tickwheel_timers WHERE state = 'waiting'") == 0
    });
    until("the dead one is off the list", || {
        database.number("SELECT count(*) FROM tickwheel_workers") == i64::from(processes) - 1
    });
    let late = all.into_iter().skip(1).flat_map(|process| process.stop().1);
    let late: Vec<_> = late.filter(|(due, _)| *due > killed).map(|(_, late)| late).collect();
    let due = |n: u32| first + Duration::from_secs(1) * n / RATE;
    let all = (0..count).filter(|n| due(*n) > killed).count();
    if all < count as usize / 4 {
        return false; // the kill was late
    }
    assert!(late.len() >= all * 2 / 3, "{} of {all}", late.len());
    say(&format!(
        "sql, one of {processes} processes is killed: {} timers that were due after that are late by {:?} (p50), {:?} (p90), {:?} (most)",
        late.len(),
        share(&late, 50),
        share(&late, 90),
        share(&late, 100)
    ));
    are_on_time(&late)
}

// ----- workers of this process ---------------------------------------------------------------

fn worker(timers: &Timers, late: &Sender<Duration>) -> Worker {
    let late = Mutex::new(late.clone());
    let worker = timers.worker().handle("mail", move |run| {
        let by = SystemTime::now().duration_since(run.due()).unwrap_or_default();
        _ = late.lock().expect("no panic").send(by); // the test may be over
        Ok(())
    });
    worker.start(&Scheduler::new()).expect("it starts")
}

/// One of two is on the list and never claims, as one that hangs. Each timer is the other's, in time or at the check, until the
/// session of the one that hangs has ended.
pub(crate) fn one_that_hangs_costs_some_milliseconds(database: &Database<'_>) {
    let timers = database.open();
    let hangs = client(&database.url()).query_one("SELECT 1", &[]).map(drop);
    hangs.expect("it connects");
    let mut session = client(&database.url());
    session
        .batch_execute(
            "INSERT INTO tickwheel_workers VALUES (1, 'it hangs', '{mail}', now() + interval '1 hour', pg_backend_pid())",
        )
        .expect("it is on the list");
    let (tell, told) = channel();
    let worker = worker(&timers, &tell);
    // The first run tells it how long the handler takes. Before, it has room for four, and a slow machine calls for help.
    database.execute("SELECT tickwheel_schedule('mail', 'first')");
    told.recv_timeout(PATIENCE).expect("it runs");
    // On a machine that stands still for a while all of them are late, and are claimed by whoever sees them, so this has three tries.
    let costs_little = (0..3).any(|_| one_that_hangs_costs_little(database, &worker, &told));
    assert!(costs_little, "one that hangs costs too much");
    drop(session);
    until("it is off the list", || {
        database.execute("SELECT tickwheel_schedule('mail', 'again ' || clock_timestamp())");
        database.number("SELECT count(*) FROM tickwheel_workers") == 1
    });
    assert!(worker.stop(PATIENCE));
    assert_eq!(database.number("SELECT count(*) FROM tickwheel_workers"), 0, "it has left");
}

/// Puts in timers beside one that hangs. Returns false if they wait for a look, if the list of workers was of no use, or if nobody was
/// told of what is left.
fn one_that_hangs_costs_little(
    database: &Database<'_>,
    worker: &Worker,
    told: &Receiver<Duration>,
) -> bool {
    let before = worker.stats().claims;
    put_in(database, 300);
    // The worker knows of all of them soon after the first, and has no more to tell for that reason.
    let mut late: Vec<_> = (0..60).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    let mut ear = client(&database.url());
    ear.batch_execute("LISTEN tickwheel_timers").expect("it listens");
    late.extend((60..300).map(|_| told.recv_timeout(PATIENCE).expect("it runs")));
    let mut heard = ear.notifications();
    let tells_to_look = heard.timeout_iter(Duration::from_millis(300)); // they come in real time
    let tells_to_look = tells_to_look.filter(|heard| Ok(heard.payload().starts_with('+')));
    let tells_to_look = tells_to_look.count().expect("notices");
    let waited = late.iter().filter(|late| **late >= Duration::from_millis(10)).count();
    let claims = worker.stats().claims - before;
    say(&format!(
        "sql, one of two hangs: late by {:?} (p90), {waited} of 300 waited, {claims} claims, {tells_to_look} notices of what is left",
        share(&late, 90)
    ));
    // The one that hangs might be one that does not know of what it leaves. And some wait in half of the slots.
    are_on_time(&late) && tells_to_look >= 1 && waited >= 30 && claims < 450
}

/// More is due at once than the first one has threads for, so the others help it at once.
pub(crate) fn all_work_off_what_is_too_much_for_one(database: &Database<'_>) {
    const WORKERS: usize = 4;
    const THREADS: usize = 2;
    let all = Barrier::new(WORKERS * THREADS);
    let all: &'static Barrier = Box::leak(Box::new(all));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let timers = database.open();
            let handler = move |_: &tickwheel_durable::Run<'_>| {
                all.wait(); // until all of them run
                thread::sleep(Duration::from_millis(40)); // a slow handler, of which none is claimed ahead of the threads
                Ok(())
            };
            let worker = timers.worker().threads(THREADS).handle("mail", handler);
            worker.start(&Scheduler::new()).expect("it starts")
        })
        .collect();
    until("they are on the list", || {
        database.number("SELECT count(*) FROM tickwheel_workers")
            == i64::try_from(WORKERS).expect("few")
    });
    let mut best = Duration::MAX;
    for round in 0..6 {
        thread::sleep(Duration::from_millis(1100)); // turns, which a crowd ends for a second, are back
        let begin = Instant::now();
        database.execute(&format!(
            "SELECT tickwheel_schedule_many(array_agg('mail'::text), array_agg('{round} ' || n)) FROM generate_series(1, {}) n",
            WORKERS * THREADS
        ));
        until("all have run at the same time", || {
            database.number("SELECT count(*) FROM tickwheel_timers") == 0
        });
        best = best.min(begin.elapsed());
    }
    say(&format!(
        "sql, eight timers for four workers with two threads each: {best:?} until all were done"
    ));
    // Whoever is not called looks after a second. On a machine with ten times the work, the best was 610 ms.
    assert!(best < Duration::from_millis(900), "the others waited for a look: {best:?}");
    workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
}
