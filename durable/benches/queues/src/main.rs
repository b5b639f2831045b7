//! Durable timers beside other ways to have them: `cargo run --release --manifest-path durable/benches/queues/Cargo.toml`.
//!
//! - `-- --quick` only shows that everything works, in half a minute. Its figures mean nothing.
//! - `-- --only fire` (or `calls`, `transactions`, `lateness`, `drain`, `idle`) measures a part; `-- --engine sqlite` (or another) measures one engine.
//! - `-- --write` measures everything, and writes the tables into this package's README.

mod engines;
mod measure;
mod report;
#[path = "../../../tests/common/server.rs"]
mod server;
mod workers;

use std::env;
use std::time::Instant;

use engines::{Engine, connect};
use measure::{BESIDE, Calls, Drain, Idle, Lateness, Size};
use server::Server;
use workers::Handler;

/// What was measured of an engine with so many worker processes.
struct Row {
    engine: Engine,
    processes: usize,
    fire: Option<f64>,
    insert: Option<f64>,
    lateness: Vec<Option<Lateness>>,
    drain: Option<Drain>,
    idle: Option<Idle>,
}

/// What was measured, but for versions.
#[derive(Default)]
struct Figures {
    calls: Vec<(Engine, Calls)>,
    /// What a caller's transaction does, and how many are committed a second.
    transactions: Vec<(&'static str, f64)>,
    rows: Vec<Row>,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return workers::main(&arguments[1..]);
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let value = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1).map(String::as_str)
    };
    let server = match Server::find() {
        Ok(server) => server,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let size = if has("--quick") { Size::QUICK } else { Size::FULL };
    if !has("--quick") {
        make_durable(&server);
    }
    let wants = |part: &str| value("--only").is_none_or(|only| only == part);
    let engines: Vec<Engine> = Engine::ALL
        .into_iter()
        .filter(|engine| value("--engine").is_none_or(|only| only == engine.word()))
        .collect();
    let start = Instant::now();
    let progress = |text: &str| println!("{:4} s  {text}", start.elapsed().as_secs());

    let mut figures = Figures::default();
    // How a worker looks does not matter to calls.
    for engine in engines.iter().filter(|engine| wants("calls") && **engine != Engine::Polling(10))
    {
        progress(&format!("calls: {}", engine.name()));
        figures.calls.push((*engine, measure::calls(*engine, &server, &size)));
    }
    if wants("transactions") && value("--engine").is_none() {
        for beside in &BESIDE {
            progress(&format!("transactions: {}", beside.name));
            let rate = measure::transactions(beside, &server, &size);
            figures.transactions.push((beside.name, rate));
        }
    }
    for engine in engines {
        for processes in engine.processes().iter().filter(|count| **count <= size.processes) {
            let name = format!("{}, processes: {processes}", engine.name());
            let mut row = Row {
                engine,
                processes: *processes,
                fire: None,
                insert: None,
                lateness: Vec::new(),
                drain: None,
                idle: None,
            };
            if wants("fire") {
                progress(&format!("fire: {name}"));
                let fire = |handler| measure::fire(engine, &server, *processes, handler, &size);
                row.fire = Some(fire(Handler::Plain));
                row.insert = engine.is_tickwheel().then(|| fire(Handler::Insert));
            }
            if wants("lateness") {
                for rate in size.rates {
                    progress(&format!("lateness at {rate}/s: {name}"));
                    row.lateness.push(measure::lateness(engine, &server, *processes, rate, &size));
                }
            }
            // A loop that looks once a second takes no more at once.
            if *processes == 1 && engine != Engine::Polling(1000) {
                if wants("drain") {
                    progress(&format!("drain: {name}"));
                    row.drain = Some(measure::drain(engine, &server, &size));
                }
                if wants("idle") {
                    progress(&format!("idle: {name}"));
                    row.idle = Some(measure::idle(engine, &server, &size));
                }
            }
            figures.rows.push(row);
        }
    }
    progress("done");
    let text = report::text(&server, &figures, &size);
    println!("\n{text}");
    if has("--write") {
        assert!(
            !has("--quick") && value("--only").is_none() && value("--engine").is_none(),
            "only all of it is written"
        );
        report::write(&text);
    }
}

/// The private server was made for tests, which spare the disk. Here it is to do what a real one does.
fn make_durable(server: &Server) {
    if env::var("DATABASE_URL").is_ok() {
        return; // it is somebody's
    }
    let mut client = connect(server.url());
    client.batch_execute("ALTER SYSTEM SET fsync = on").expect("a setting");
    client.batch_execute("SELECT pg_reload_conf()").expect("a reload");
    let start = Instant::now();
    let mut fsync = String::new();
    while fsync != "on" {
        assert!(start.elapsed().as_secs() < 10, "the server takes the setting");
        fsync = client.query_one("SHOW fsync", &[]).expect("a setting").get(0);
    }
    client.batch_execute("CHECKPOINT").expect("a checkpoint");
}
