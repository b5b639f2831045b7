//! The example as a process of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use super::common::PATIENCE;
use super::common::example::example;

/// A running process of the example. Its `Drop` kills it.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
    /// The ids of the messages that it has printed as sent.
    told: Vec<i64>,
}

impl Program {
    /// Starts the example with a period of ten milliseconds.
    pub(crate) fn start(arguments: &[&OsStr], url: Option<&str>) -> Program {
        let mut command = Command::new(example("delayed_messages"));
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

    /// Returns the next line, or `None` at the end of the output.
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

    /// Kills the process without a warning. Returns the ids that it has printed until then.
    pub(crate) fn kill(mut self) -> Vec<i64> {
        self.child.kill().expect("it is a child");
        while self.line().is_some() {}
        std::mem::take(&mut self.told)
    }

    /// Waits for a successful end. Returns the ids that it has printed.
    pub(crate) fn wait_for_the_end(&mut self) -> Vec<i64> {
        while self.line().is_some() {}
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{status}: {}", self.complaint());
        std::mem::take(&mut self.told)
    }

    /// Waits for an end with an error. Returns the error message.
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

/// The text in front of the id of a message that was sent.
const DELIVERY: &str = " wait  #";

fn id_in(line: &str) -> Option<i64> {
    line.split_once(DELIVERY)?.1.split_whitespace().next()?.parse().ok()
}
