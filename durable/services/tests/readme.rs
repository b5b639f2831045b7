//! The README's first screen shows these programs as they are, and each of them does what it says: it puts in an order and its
//! timer, which runs when its time has come, or when another program moves it to now.
//!
//! The moment at which an order is cancelled takes real time, because the programs run in processes of their own.

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/server.rs"]
mod server;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::until;
use tickwheel_durable::{Filter, NewTimer, State, Timers};

const README: &str = include_str!("../../README.md");

/// The longest that a program may be, without its blank lines.
const MOST_LINES: usize = 25;

#[test]
fn the_readme_shows_these_programs() {
    for program in [include_str!("../src/bin/postgres.rs"), include_str!("../src/bin/sqlite.rs")] {
        assert!(
            README.contains(&format!("\n{program}```\n")),
            "the README has another text than\n{program}"
        );
        let lines = program.lines().filter(|line| !line.is_empty()).count();
        assert!(lines <= MOST_LINES, "{lines} lines");
    }
}

/// Ends the program also if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// It stops its worker, and so ends well. A signal that nobody takes would kill it.
fn ends_at(program: &mut Running, signal: &str) {
    let sent = Command::new("kill").args([signal, &program.0.id().to_string()]).status();
    assert!(sent.expect("there is such a program").success());
    assert!(program.0.wait().expect("it ends").success());
}

/// The order is cancelled once its timer has come, and the timer is gone.
fn cancels_its_order(timers: &Timers, state: impl Fn() -> Option<String>) {
    until("the order is there", || state().as_deref() == Some("unpaid"));
    let waits = timers.get("cancel order", "4711").expect("no error").expect("with its timer");
    let in_an_hour = timers.now().expect("a time") + Duration::from_secs(3600);
    assert!(waits.due < in_an_hour && waits.due > in_an_hour - Duration::from_secs(2400));
    assert!(timers.reset("cancel order", "4711", Duration::ZERO).expect("no error"));
    until("it is cancelled", || state().as_deref() == Some("cancelled"));
    assert!(timers.list(&Filter::new()).expect("a list").is_empty(), "in the same transaction");
}

/// It is told to end in the middle of a backlog. Nothing of that waits for the end of a lease.
fn leaves_its_backlog_to_others(program: &mut Running, timers: &Timers) {
    const COUNT: u64 = 2000;
    let new = |n: u64| NewTimer::new("cancel order", n.to_string(), Duration::ZERO);
    timers.schedule_all(&(0..COUNT).map(new).collect::<Vec<_>>()).expect("scheduled");
    let left = || {
        let of_kinds = timers.counts().expect("counts");
        of_kinds.iter().map(|kind| kind.waiting + kind.retrying + kind.running).sum::<u64>()
    };
    until("some are done", || left() < COUNT - 50);
    let told = Instant::now();
    ends_at(program, "-TERM");
    let took = told.elapsed();
    let running = timers.list(&Filter::new().state(State::Running)).expect("a list");
    assert!(running.is_empty(), "{} are held by a lease", running.len());
    let count = left();
    let (begin, worker) = (Instant::now(), timers.worker().handle("cancel order", |_| Ok(())));
    let worker = worker.start(tickwheel::Scheduler::global()).expect("it starts");
    until("the others are done", || left() == 0);
    assert_eq!(worker.stats().taken_over, 0);
    eprintln!("ended after {took:.1?}; its {count} timers were done {:.1?} later", begin.elapsed());
    assert!(worker.stop(common::PATIENCE)); // so that the caller finds no trace of this one
}

#[test]
fn in_a_sqlite_file() {
    let folder = std::env::temp_dir().join(server::new_name("service"));
    std::fs::create_dir(&folder).expect("a folder");
    let mut program = Command::new(env!("CARGO_BIN_EXE_sqlite"));
    let program = program.current_dir(&folder).spawn().expect("it runs");
    let mut program = Running(program);
    let file = folder.join("shop.db");
    let timers = Timers::open(&format!("sqlite:{}", file.display())).expect("it opens");
    cancels_its_order(&timers, || {
        let shop = rusqlite::Connection::open(&file).expect("it opens");
        shop.busy_timeout(common::PATIENCE).expect("a timeout");
        shop.query_row("SELECT state FROM orders", [], |row| row.get(0)).ok()
    });
    leaves_its_backlog_to_others(&mut program, &timers);
    drop(timers);
    std::fs::remove_dir_all(&folder).expect("it is gone");
}

#[cfg(unix)]
#[test]
fn with_sqlx_on_postgresql() {
    let server = match server::Server::private() {
        Ok(server) => server,
        Err(reason) => return eprintln!("the README's service with sqlx: skipped: {reason}"),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connect = sqlx::PgPool::connect(server.url());
    let shop = runtime.block_on(connect).expect("it connects");
    let run =
        |sql: &'static str| runtime.block_on(sqlx::query(sql).execute(&shop)).expect("valid SQL");
    run("CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL)");
    let timers = Timers::open(server.url()).expect("it opens");
    for signal in ["-INT", "-TERM"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_postgres"));
        let program = program.env("DATABASE_URL", server.url()).spawn().expect("it runs");
        let mut program = Running(program);
        cancels_its_order(&timers, || {
            let state = sqlx::query_scalar("SELECT state FROM orders").fetch_optional(&shop);
            runtime.block_on(state).expect("valid SQL")
        });
        match signal {
            "-TERM" => leaves_its_backlog_to_others(&mut program, &timers),
            _ => ends_at(&mut program, signal),
        }
        let workers = sqlx::query_scalar("SELECT count(*) FROM tickwheel_workers").fetch_one(&shop);
        let workers: i64 = runtime.block_on(workers).expect("valid SQL");
        assert_eq!(workers, 0, "its worker has ended in order");
        run("DELETE FROM orders");
    }
}
