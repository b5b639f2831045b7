//! What is compared: where timers are put, and how calls reach it.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use graphile_worker::{JobSpec, RawJobSpec, WorkerUtils};
use postgres::config::Host;
use postgres::{Client, Config, NoTls, Statement};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tickwheel_durable::{NewTimer, Timers};

use crate::server::Server;

/// The kind of all timers.
pub(crate) const KIND: &str = "bench";

/// The schema in which `graphile_worker` makes its tables.
pub(crate) const GRAPHILE_SCHEMA: &str = "graphile_worker";

/// Keeps timers, and runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
    /// A table and a loop that looks once in so many milliseconds.
    Polling(u64),
    /// `graphile_worker` with its local queue, and a look each 10 ms.
    Graphile,
}

impl Engine {
    pub(crate) const ALL: [Engine; 5] = [
        Engine::Sqlite,
        Engine::Postgres,
        Engine::Polling(1000),
        Engine::Polling(10),
        Engine::Graphile,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Engine::Sqlite => "tickwheel, SQLite".to_owned(),
            Engine::Postgres => "tickwheel, PostgreSQL".to_owned(),
            Engine::Polling(1000) => "polling loop, each second".to_owned(),
            Engine::Polling(interval) => format!("polling loop, each {interval} ms"),
            Engine::Graphile => "graphile_worker".to_owned(),
        }
    }

    /// The name on the command line of a worker process.
    pub(crate) fn word(self) -> String {
        match self {
            Engine::Polling(interval) => format!("polling-{interval}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.word() == word)
    }

    /// Numbers of worker processes to measure.
    pub(crate) fn processes(self) -> &'static [usize] {
        match self {
            Engine::Postgres | Engine::Graphile => &[1, 2, 4, 8],
            _ => &[1],
        }
    }

    pub(crate) fn is_tickwheel(self) -> bool {
        matches!(self, Engine::Sqlite | Engine::Postgres)
    }
}

/// An empty store of one engine, which is removed at the end.
pub(crate) struct Place<'a> {
    pub(crate) engine: Engine,
    server: &'a Server,
    /// The name of a SQLite file, or of a database of the server.
    name: String,
    /// How clients reach it.
    pub(crate) address: String,
    /// `tickwheel` on SQLite: the handle that the calls and the worker share.
    pub(crate) timers: Option<Timers>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(engine: Engine, server: &'a Server) -> Place<'a> {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("tickwheel_bench_{}_{number}", std::process::id());
        if engine == Engine::Sqlite {
            let path = std::env::temp_dir().join(format!("{name}.sqlite3")).display().to_string();
            let timers = Timers::open(&format!("sqlite:{path}")).expect("the file opens");
            let sqlite = rusqlite::Connection::open(&path).expect("the file opens");
            sqlite.execute_batch(WORK_TABLE).expect("a table");
            return Place { engine, server, name, address: path, timers: Some(timers) };
        }
        let mut control = connect(server.url());
        control.batch_execute(&format!("CREATE DATABASE {name}")).expect("a database");
        let address = with_database(server.url(), &name);
        connect(&address).batch_execute(WORK_TABLE).expect("a table");
        let mut timers = None;
        match engine {
            Engine::Postgres => {
                timers = Some(Timers::open(&address).expect("tables"));
            }
            Engine::Polling(_) => connect(&address).batch_execute(POLLING_TABLE).expect("a table"),
            _ => crate::workers::migrate_graphile(&address),
        }
        // What was written to get here is not to be written out during a measurement.
        control.batch_execute("CHECKPOINT").expect("a checkpoint");
        Place { engine, server, name, address, timers }
    }

    /// Opens a connection for one thread.
    pub(crate) fn caller(&self) -> Box<dyn Caller> {
        match self.engine {
            Engine::Sqlite | Engine::Postgres => {
                Box::new(self.timers.clone().expect("the store is open"))
            }
            Engine::Polling(_) => Box::new(Plain::new(&self.address)),
            Engine::Graphile => Box::new(Graphile::new(&self.address)),
        }
    }

    /// Returns true if no timer is left.
    pub(crate) fn is_empty(&self) -> bool {
        let table = match self.engine {
            Engine::Polling(_) => "jobs",
            Engine::Graphile => "graphile_worker._private_jobs",
            Engine::Sqlite | Engine::Postgres => "tickwheel_timers",
        };
        let sql = format!("SELECT NOT EXISTS (SELECT 1 FROM {table})");
        if self.engine == Engine::Sqlite {
            let sqlite = rusqlite::Connection::open(&self.address).expect("the file opens");
            return sqlite.query_row(&sql, [], |row| row.get(0)).expect("an answer");
        }
        connect(&self.address).query_one(&sql, &[]).expect("an answer").get(0)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.timers = None;
        if self.engine == Engine::Sqlite {
            for suffix in ["", "-wal", "-shm"] {
                _ = std::fs::remove_file(format!("{}{suffix}", self.address));
            }
            return;
        }
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        _ = connect(self.server.url()).batch_execute(&drop);
    }
}

/// What handlers in a transaction write to.
const WORK_TABLE: &str = "CREATE TABLE work (key text NOT NULL)";

const POLLING_TABLE: &str = "CREATE TABLE jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL UNIQUE,
        due timestamptz NOT NULL,
        payload bytea NOT NULL);
    CREATE INDEX ON jobs (due)";

pub(crate) fn connect(address: &str) -> Client {
    Client::connect(address, NoTls).expect("the server answers")
}

/// The address of another database of the same server.
fn with_database(url: &str, name: &str) -> String {
    if !url.starts_with("postgres:") && !url.starts_with("postgresql:") {
        return format!("{url} dbname={name}"); // the last one counts
    }
    let (base, query) = url.split_once('?').map_or((url, ""), |(base, query)| (base, query));
    let host = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    format!("{host}/{name}?{query}")
}

/// A connection that puts timers in, and takes them out.
pub(crate) trait Caller: Send {
    /// Puts timers in, in one transaction.
    fn schedule(&mut self, timers: &[(String, SystemTime)]);

    fn cancel(&mut self, key: &str);
}

/// What a handler is given: when its timer was to be due, in microseconds since 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Caller for Timers {
    fn schedule(&mut self, timers: &[(String, SystemTime)]) {
        let new = |(key, due): &(String, SystemTime)| {
            NewTimer::new(KIND, key.clone(), *due).payload(micros(*due).to_string())
        };
        if let [one] = timers {
            Timers::schedule(self, &new(one)).expect("scheduled");
            return;
        }
        let timers: Vec<_> = timers.iter().map(new).collect();
        self.schedule_all(&timers).expect("scheduled");
    }

    fn cancel(&mut self, key: &str) {
        assert!(Timers::cancel(self, KIND, key).expect("an answer").is_some(), "{key} was there");
    }
}

/// What a program does that has a table of its own.
struct Plain {
    client: Client,
    prepared: HashMap<&'static str, Statement>,
}

impl Plain {
    fn new(address: &str) -> Plain {
        Plain { client: connect(address), prepared: HashMap::new() }
    }

    fn prepare(&mut self, sql: &'static str) -> Statement {
        let client = &mut self.client;
        let prepared = self.prepared.entry(sql);
        prepared.or_insert_with(|| client.prepare(sql).expect("valid SQL")).clone()
    }
}

impl Caller for Plain {
    fn schedule(&mut self, timers: &[(String, SystemTime)]) {
        let insert = self.prepare(
            "INSERT INTO jobs (key, due, payload) SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bytea[])
            ON CONFLICT (key) DO UPDATE SET due = excluded.due, payload = excluded.payload",
        );
        let keys: Vec<&str> = timers.iter().map(|(key, _)| key.as_str()).collect();
        let due: Vec<SystemTime> = timers.iter().map(|(_, due)| *due).collect();
        let payloads: Vec<Vec<u8>> =
            due.iter().map(|due| micros(*due).to_string().into_bytes()).collect();
        self.client.execute(&insert, &[&keys, &due, &payloads]).expect("scheduled");
    }

    fn cancel(&mut self, key: &str) {
        let delete = self.prepare("DELETE FROM jobs WHERE key = $1");
        assert_eq!(self.client.execute(&delete, &[&key]).expect("an answer"), 1);
    }
}

/// A runtime and a connection for one thread.
struct Graphile {
    runtime: tokio::runtime::Runtime,
    utils: WorkerUtils,
}

impl Graphile {
    fn new(address: &str) -> Graphile {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let pool = runtime.block_on(pool(address, 1));
        Graphile { runtime, utils: WorkerUtils::new(pool, GRAPHILE_SCHEMA) }
    }
}

impl Caller for Graphile {
    fn schedule(&mut self, timers: &[(String, SystemTime)]) {
        let mut jobs: Vec<RawJobSpec> = timers
            .iter()
            .map(|(key, due)| RawJobSpec {
                identifier: KIND.to_owned(),
                payload: serde_json::json!({ "due": micros(*due) }),
                spec: JobSpec::builder()
                    .run_at(chrono::DateTime::<chrono::Utc>::from(*due))
                    .job_key(key)
                    .build(),
            })
            .collect();
        let one = (jobs.len() == 1).then(|| jobs.pop()).flatten();
        self.runtime.block_on(async {
            if let Some(RawJobSpec { identifier, payload, spec }) = one {
                self.utils.add_raw_job(&identifier, payload, spec).await.expect("scheduled");
            } else {
                self.utils.add_raw_jobs(&jobs).await.expect("scheduled");
            }
        });
    }

    fn cancel(&mut self, key: &str) {
        self.runtime.block_on(self.utils.remove_job(key)).expect("cancelled");
    }
}

pub(crate) async fn pool(address: &str, connections: u32) -> PgPool {
    let config = Config::from_str(address).expect("an address");
    let mut options = PgConnectOptions::new_without_pgpass();
    options = match config.get_hosts().first() {
        Some(Host::Unix(folder)) => options.socket(folder),
        Some(Host::Tcp(host)) => options.host(host),
        None => options,
    };
    if let Some(port) = config.get_ports().first() {
        options = options.port(*port);
    }
    if let Some(user) = config.get_user() {
        options = options.username(user);
    }
    if let Some(password) = config.get_password() {
        options = options.password(&String::from_utf8_lossy(password));
    }
    if let Some(database) = config.get_dbname() {
        options = options.database(database);
    }
    let pool = PgPoolOptions::new().min_connections(connections).max_connections(connections);
    pool.connect_with(options).await.expect("the server answers")
}
