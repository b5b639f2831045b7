//! The example `delayed_messages`, as a program that is killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::databases::{self, Database};
use super::example::example;
use crate::on_both;

/// A running process of the example. Its `Drop` kills it.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(database: &Database<'_>, arguments: &[&str]) -> Program {
        let mut command = Command::new(example("delayed_messages"));
        command.env_remove("DATABASE_URL").args(arguments);
        match database {
            Database::File(path) => command.arg(path),
            Database::Schema { .. } => command.env("DATABASE_URL", database.address()),
        };
        Program::spawn(command)
    }

    fn with(arguments: &[&OsStr]) -> Program {
        let mut command = Command::new(example("delayed_messages"));
        command.env_remove("DATABASE_URL").args(arguments);
        Program::spawn(command)
    }

    fn spawn(mut command: Command) -> Program {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        Program { child, lines }
    }

    /// Reads on to a line that contains this text, or to the end.
    fn line_with(&mut self, text: &str) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(text))
    }

    fn complaint(mut self) -> String {
        while self.line_with("no such line").is_some() {}
        assert_eq!(self.child.wait().expect("a child").code(), Some(1));
        let mut text = String::new();
        let mut errors = self.child.stderr.take().expect("piped");
        errors.read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

const DELIVERIES: &str = "SELECT count(*) FROM deliveries";

/// Makes everything due that waits, so that nobody waits for it here.
const DUE_NOW: &str = "UPDATE tickwheel_timers SET due = '1970-01-01' WHERE state = 'waiting'";
const DUE_NOW_IN_A_FILE: &str = "UPDATE tickwheel_timers SET due = 0 WHERE state = 'waiting'";

fn killed_in_between_it_delivers_each_message_once(database: &Database<'_>) {
    let mut first = Program::start(database, &[]);
    first.line_with("12 new messages").expect("it begins");
    first.line_with("ms late").expect("it delivers one");
    drop(first); // a kill
    let mut second = Program::start(database, &[]);
    let line = second.line_with("Goes on with").expect("it goes on");
    let waited =
        line.split_whitespace().find_map(|word| word.parse::<i64>().ok()).expect("a number");
    second.line_with("pending").expect("it has begun");
    drop(second);
    database.execute(if database.is_sqlite() { DUE_NOW_IN_A_FILE } else { DUE_NOW });
    // Two at once share the rest, but for what the dead one had, whose lease must end first.
    let mut last = [Program::start(database, &[]), Program::start(database, &[])];
    let ends = last.each_mut().map(|program| program.line_with("All are delivered"));
    assert!(ends.iter().flatten().count() >= 1, "{ends:?}");
    assert!((10..=12).contains(&waited), "{waited}");
    assert_eq!(database.number(DELIVERIES), 12);
}

fn fresh_begins_anew(database: &Database<'_>) {
    let mut first = Program::start(database, &[]);
    first.line_with("ms late").expect("it delivers one");
    drop(first);
    let mut second = Program::start(database, &["--fresh"]);
    second.line_with("12 new messages").expect("it begins anew");
    drop(second);
    let pending = database.number("SELECT count(*) FROM tickwheel_timers");
    assert_eq!(database.number(DELIVERIES) + pending, 12);
}

on_both! {
    "delayed_messages":
    killed_in_between_it_delivers_each_message_once,
    fresh_begins_anew,
}

#[test]
fn what_is_no_database_is_said_to_be_none() {
    let folder = std::env::temp_dir();
    let complaint = Program::with(&[folder.as_os_str()]).complaint();
    assert!(complaint.contains("cannot be reached"), "{complaint}");
    let complaint = Program::with(&["--frsh".as_ref()]).complaint();
    assert!(complaint.contains("unknown: --frsh\nusage:"), "{complaint}");
}
