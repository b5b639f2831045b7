//! The example as a process of its own.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::SystemTime;

use super::common::PATIENCE;

/// One that runs; killed by its `Drop`.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
    /// The ids of the messages that it told of.
    told: Vec<i64>,
}

impl Program {
    /// Looks every ten milliseconds.
    pub(crate) fn start(arguments: &[&OsStr], url: Option<&str>) -> Program {
        let mut command = Command::new(binary());
        command.args(["--every", "10"]).args(arguments).env_remove("DATABASE_URL");
        command.envs(url.map(|url| ("DATABASE_URL", url)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it has an output"));
        let (send, lines) = channel();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Program { child, lines, told: Vec::new() }
    }

    /// The next line, until there are no more.
    fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.told.extend(id_in(&line));
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it neither ends nor says anything"),
        }
    }

    fn wait_for(&mut self, what: &str) {
        while let Some(line) = self.line() {
            if line.contains(what) {
                return;
            }
        }
        panic!("it ended without {what:?}: {}", self.complaint());
    }

    pub(crate) fn wait_until_it_looks(&mut self) {
        self.wait_for(" wait");
    }

    pub(crate) fn wait_for_a_delivery(&mut self) {
        self.wait_for(DELIVERY);
    }

    /// Without any warning. Gives what it told of until then.
    pub(crate) fn kill(mut self) -> Vec<i64> {
        self.child.kill().expect("it is a child");
        while self.line().is_some() {}
        std::mem::take(&mut self.told)
    }

    /// It has to end well. Gives what it told of.
    pub(crate) fn wait_for_the_end(&mut self) -> Vec<i64> {
        while self.line().is_some() {}
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{status}: {}", self.complaint());
        std::mem::take(&mut self.told)
    }

    /// It has to end with an error. Gives what it says of it.
    pub(crate) fn wait_for_failure(&mut self) -> String {
        while self.line().is_some() {}
        let status = self.child.wait().expect("it is a child");
        assert_eq!(status.code(), Some(1));
        self.complaint()
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut text).expect("text");
        }
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What stands before the id of a message that was sent.
const DELIVERY: &str = " wait  #";

fn id_in(line: &str) -> Option<i64> {
    line.split_once(DELIVERY)?.1.split_whitespace().next()?.parse().ok()
}

/// The example's binary. It lies beside the folder of this test's own.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let this = env::current_exe().expect("it has a path");
        let profile = this.ancestors().nth(2).expect("target/debug/deps/test");
        let name = format!("delayed_messages{}", env::consts::EXE_SUFFIX);
        let binary = profile.join("examples").join(name);
        if !is_fresh(&binary) {
            build(profile);
        }
        assert!(is_fresh(&binary), "{} is old: `cargo build --examples`", binary.display());
        binary
    })
}

/// Whether it is newer than all of its sources, which cargo lists in a file beside it.
fn is_fresh(binary: &Path) -> bool {
    let changed = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
    let is_older = |file: &Path, built: SystemTime| changed(file).is_some_and(|time| time <= built);
    let (Some(built), Ok(sources)) =
        (changed(binary), fs::read_to_string(binary.with_extension("d")))
    else {
        return false;
    };
    let sources = sources.split_once(": ").map_or("", |(_, sources)| sources).replace("\\ ", "\0");
    sources.split_whitespace().all(|file| is_older(Path::new(&file.replace('\0', " ")), built))
}

/// `cargo test` has built it. `cargo test --test delayed_messages` has not.
fn build(profile: &Path) {
    let profile = match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--example", "delayed_messages", "--profile", profile]);
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(built.success(), "the example does not build");
}
