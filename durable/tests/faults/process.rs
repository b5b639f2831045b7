//! Worker processes that a test starts, halts and kills: the test program itself, started again.
//!
//! The two talk in lines. The process says `@ready` once its worker has started, and `@held` when it has come to the
//! point where it is to wait. The test says `go`, or `stats`, which is answered with `@lost=... done=...`. The process
//! ends with its input, so none outlives the test.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tickwheel::Scheduler;
use tickwheel_durable::Timers;

use super::common::{self, PATIENCE, until};
use super::handlers::{Place, Role, equipped};
use super::holding::Holding;

/// Where the worker process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Nowhere,
    BeforeClaim,
    AfterClaim,
    /// The start is written down, and the handler is about to be called. In a transaction, that is in the handler.
    AfterStart,
    /// At the end of the handler of a timer whose payload says `hold`. In a transaction, that is before the commit.
    InHandler,
    BeforeFinish,
    AfterFinish,
    AfterCommit,
    /// A claim panics: the store has a fault.
    Panic,
}

const POINTS: [Point; 8] = [
    Point::Nowhere,
    Point::BeforeClaim,
    Point::AfterClaim,
    Point::AfterStart,
    Point::InHandler,
    Point::BeforeFinish,
    Point::AfterFinish,
    Point::AfterCommit,
];

/// Waits at a point until the test says `go`. Then it holds nobody any more.
pub(crate) struct Gate {
    point: Point,
    is_open: Mutex<bool>,
    has_opened: Condvar,
}

impl Gate {
    pub(crate) fn new(point: Point) -> Arc<Gate> {
        Arc::new(Gate { point, is_open: Mutex::new(false), has_opened: Condvar::new() })
    }

    pub(crate) fn is_at(&self, point: Point) -> bool {
        point == self.point
    }

    pub(crate) fn pass(&self, point: Point) {
        let mut is_open = self.is_open.lock().expect("no panic");
        if point != self.point || *is_open {
            return;
        }
        println!("@held");
        while !*is_open {
            is_open = self.has_opened.wait(is_open).expect("no panic");
        }
    }

    pub(crate) fn open(&self) {
        *self.is_open.lock().expect("no panic") = true;
        self.has_opened.notify_all();
    }
}

pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    /// Starts a worker process, which comes to this point and waits.
    pub(crate) fn start(place: &Place, point: Point, lease: Duration) -> Process {
        Process::start_by(Command::new(this_program()), place, point, lease)
    }

    /// Like `start`, but the process ignores the signal for a file that is too large, and gets an error instead.
    pub(crate) fn start_with_small_files(place: &Place, lease: Duration) -> Process {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(this_program());
        Process::start_by(shell, place, Point::Nowhere, lease)
    }

    fn start_by(mut command: Command, place: &Place, point: Point, lease: Duration) -> Process {
        let point = format!("{point:?}");
        let settings = [&place.address, &place.direct, &place.ledger, &point].map(String::as_str);
        command
            .env("TICKWHEEL_WORKER_PROCESS", settings.join("\n"))
            .env("TICKWHEEL_LEASE", lease.as_millis().to_string());
        Process::be(command, "worker_process")
    }

    /// Starts the process of a test of this program, with what the environment of the command says.
    pub(crate) fn of(test: &str, variable: &str, settings: &str) -> Process {
        let mut command = Command::new(this_program());
        command.env(variable, settings);
        Process::be(command, test)
    }

    fn be(mut command: Command, test: &str) -> Process {
        let mut child = command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            // The test harness writes as well, also in front of a line.
            let lines = output.lines().map_while(Result::ok);
            lines
                .filter_map(|line| line.split_once('@').map(|(_, said)| said.to_owned()))
                .for_each(|said| _ = tell.send(said));
        });
        Process { child, lines }
    }

    /// Waits until the process says this.
    pub(crate) fn await_line(&self, wanted: &str) {
        while self.next_line() != wanted {}
    }

    /// Returns false if the process does not say this for so long.
    pub(crate) fn await_line_within(&self, wanted: &str, span: Duration) -> bool {
        let end = std::time::Instant::now() + span;
        let left = || end.saturating_duration_since(std::time::Instant::now());
        std::iter::from_fn(|| self.lines.recv_timeout(left()).ok()).any(|line| line == wanted)
    }

    fn next_line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the process says something")
    }

    pub(crate) fn say(&mut self, line: &str) {
        assert!(self.try_to_say(line), "it listens");
    }

    /// Returns false if the process does not listen any more.
    pub(crate) fn try_to_say(&mut self, line: &str) -> bool {
        let mut input = self.child.stdin.as_ref().expect("piped");
        writeln!(input, "{line}").is_ok()
    }

    /// Returns what the process has said in the meantime.
    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Returns how many outcomes of its worker did not matter.
    pub(crate) fn lost(&mut self) -> u64 {
        self.ask("lost")
    }

    /// Returns how many errors of the database its worker has reported.
    pub(crate) fn errors(&mut self) -> u64 {
        self.ask("errors")
    }

    fn ask(&mut self, number: &str) -> u64 {
        self.say(number);
        loop {
            let line = self.next_line();
            if let Some((name, value)) = line.split_once('=') {
                assert_eq!(name, number);
                return value.parse().expect("a number");
            }
        }
    }

    /// Ends the process as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it ends");
    }

    /// Returns true if the process has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Halts the process, until `go_on`.
    /// Halts the process, and returns when all of its threads have halted: one that is in a call of the system ends that first.
    pub(crate) fn halt(&self) {
        signal("STOP", self.id());
        if let Some(tasks) = common::proc(&format!("{}/task", self.id())) {
            until("its threads have halted", || {
                let threads = fs::read_dir(&tasks).expect("its threads").flatten();
                let mut stats =
                    threads.filter_map(|of| fs::read_to_string(of.path().join("stat")).ok());
                stats.all(|stat| {
                    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
                })
            });
        }
    }

    pub(crate) fn go_on(&self) {
        signal("CONT", self.id());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn this_program() -> std::path::PathBuf {
    env::current_exe().expect("a path")
}

pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("it runs").success(), "{name} for {process}");
}

/// How far off the wall clock of a process is that is told `clock`, in seconds.
const DAY: i64 = 86_400;

/// The whole life of a worker process. Returns at once if this process is none.
pub(crate) fn be_a_worker() {
    let Ok(settings) = env::var("TICKWHEEL_WORKER_PROCESS") else { return };
    let settings: Vec<_> = settings.split('\n').collect();
    let [address, direct, ledger, point] = settings[..] else { panic!("four settings") };
    let [address, direct, ledger] = [address, direct, ledger].map(ToOwned::to_owned);
    let place = Place { address, direct, ledger };
    let named = |known: &&Point| format!("{known:?}") == point;
    let gate = Gate::new(*POINTS.iter().find(named).expect("a point"));
    let lease = common::env("TICKWHEEL_LEASE").expect("a lease");
    // What it was started for may be gone by now.
    let ends = |error: tickwheel_durable::Error| -> ! {
        eprintln!("a worker process: {error:?}");
        exit(1)
    };
    let timers = Timers::with_store(Holding::new(place.store(), Arc::clone(&gate)))
        .unwrap_or_else(|error| ends(error));
    let worker = equipped(&timers, &place, &Role::Process(Arc::clone(&gate)))
        .lease(Duration::from_millis(lease))
        .on_error(|_| {})
        .start(Scheduler::global())
        .unwrap_or_else(|error| ends(error));
    println!("@ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "go" => gate.open(),
            "clock" => assert!(super::wall_clock::set_off(DAY)),
            "errors" => println!("@errors={}", worker.stats().errors),
            "lost" => println!("@lost={}", worker.stats().lost),
            other => panic!("{other}"),
        }
    }
    exit(0);
}
