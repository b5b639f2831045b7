//! The program, and a folder with a database for it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs};

use serde_json::Value;
use tickwheel::Scheduler;
use tickwheel_durable::{Failure, State, Timers};

use super::server::new_name;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// What a call has printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("a text");
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Checks the exit code. Returns what was printed.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Returns each line as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).expect("JSON");
        self.out.lines().map(parse).collect()
    }
}

/// A folder with a database `shop.db`, which is empty at first.
pub(crate) struct Shop {
    pub(crate) folder: PathBuf,
    pub(crate) url: String,
}

impl Shop {
    /// In a SQLite file, with tables.
    pub(crate) fn new() -> Shop {
        let shop = Shop::empty();
        shop.run(&["migrate"]).ended(0);
        shop
    }

    /// In a SQLite file that is not there yet.
    pub(crate) fn empty() -> Shop {
        let folder = env::temp_dir().join(new_name("cli"));
        fs::create_dir(&folder).expect("a folder");
        Shop { folder, url: "sqlite:shop.db".to_owned() }
    }

    /// In a database of this address, with tables.
    pub(crate) fn at(url: String) -> Shop {
        let mut shop = Shop::empty();
        shop.url = url;
        shop.run(&["migrate"]).ended(0);
        shop
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tickwheel-durable"));
        command.args(arguments).current_dir(&self.folder);
        command.env("DATABASE_URL", &self.url).env_remove("NO_COLOR").env("TERM", "xterm");
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("it runs"))
    }

    /// Runs it with these bytes at its stdin.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
        Ran::of(child.wait_with_output().expect("it ends"))
    }

    /// The same database, for calls of the library.
    pub(crate) fn timers(&self) -> Timers {
        let path = self.folder.join("shop.db");
        let url = self.url.replace("sqlite:shop.db", &format!("sqlite:{}", path.display()));
        Timers::open(&url).expect("it opens")
    }

    /// Lets a worker run what is due, with a history: `mail` fails for this reason and for good, and `note` succeeds.
    pub(crate) fn work(&self, reason: &str) {
        let (timers, reason) = (self.timers(), reason.to_owned());
        let worker = timers
            .worker()
            .history(HOUR)
            .handle("mail", move |_| Err(Failure::for_good(reason.clone())))
            .handle("note", |_| Ok(()))
            .start(Scheduler::global())
            .expect("it starts");
        let is_done = || {
            let counts = timers.counts().expect("counts");
            counts.iter().all(|of| of.running == 0 && of.lag.is_zero())
        };
        while !is_done() {
            std::thread::sleep(Duration::from_millis(5)); // a worker runs in real time
        }
        worker.stop(Duration::from_secs(10));
        assert!(timers.list(&tickwheel_durable::Filter::new().state(State::Running)).is_ok());
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}
