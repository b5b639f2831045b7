//! The program `sessions`, as a process that the tests kill at any moment. In real time, because a process that is killed
//! takes its virtual clock with it.

#[path = "../src/bin/sessions/client.rs"]
mod client;
#[path = "../../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, until};

/// So long that no session expires during a test, in milliseconds.
const LONG: u64 = 600_000;

/// The file of the sessions. Its `Drop` removes it.
struct Sessions(PathBuf);

impl Sessions {
    fn new() -> Sessions {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tickwheel_test_sessions_{}_{number}.jsonl", process::id());
        let path = env::temp_dir().join(name);
        _ = fs::remove_file(&path); // of a process that had the same number, and was killed
        Sessions(path)
    }

    /// Returns the users in the file, each with the milliseconds that are left.
    fn read(&self) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(&self.0).expect("it is never half written, and never gone");
        let sessions: Vec<_> = text.lines().map(user_and_left).collect();
        assert!(sessions.is_sorted_by_key(|(_, left)| *left), "by deadline: {text}");
        sessions.into_iter().collect()
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.0.with_extension("jsonl.new"));
    }
}

/// Reads a line such as `{"id":"07..","user":"ann","remaining_ms":1200}`.
fn user_and_left(line: &str) -> (String, u64) {
    let parts: Vec<_> = line.split('"').collect();
    assert_eq!([parts[1], parts[5], parts[9]], ["id", "user", "remaining_ms"], "{line}");
    let left = parts[10].trim_matches([':', '}']).parse().expect("a number");
    (parts[7].to_owned(), left)
}

/// A running server. Its `Drop` kills it.
struct Server {
    child: Child,
    lines: Receiver<String>,
    address: SocketAddr,
    /// The number of sessions that it has taken from the file.
    carried_over: String,
    /// No time of its sessions began to run before.
    start: Instant,
}

impl Server {
    fn start(sessions: &Sessions, idle: u64, more: &[&str]) -> Server {
        let idle = idle.to_string();
        let fixed = ["--serve", "127.0.0.1:0", "--idle", &idle, "--file"].map(OsStr::new);
        let mut arguments = fixed.to_vec();
        arguments.push(sessions.0.as_os_str());
        arguments.extend(more.iter().map(OsStr::new));
        let start = Instant::now();
        let mut child = spawn(&arguments);
        let output = BufReader::new(child.stdout.take().expect("it has an output"));
        let (send, lines) = channel();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, lines, address, carried_over: String::new(), start };
        let line = server.wait_for("listening on ");
        let (_, rest) = line.split_once("listening on ").expect("it is there");
        let (address, rest) = rest.split_once(", with ").expect("an address");
        server.address = address.parse().expect("an address");
        server.carried_over = rest.split(' ').next().map(str::to_owned).unwrap_or_default();
        server
    }

    /// Returns the next line, or `None` at the end of the output.
    fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it neither ends nor says anything"),
        }
    }

    fn wait_for(&mut self, what: &str) -> String {
        while let Some(line) = self.line() {
            if line.contains(what) {
                return line;
            }
        }
        panic!("it ended without {what:?}: {}", complaint(&mut self.child));
    }

    fn send(&self, request: &str) -> (u16, String) {
        client::send(self.address, request).expect("an answer")
    }

    fn ok(&self, request: &str) -> String {
        let (status, text) = self.send(request);
        assert_eq!(status, 200, "{request}: {text}");
        text
    }

    fn status(&self, request: &str) -> u16 {
        self.send(request).0
    }

    /// Returns the milliseconds that a session has left.
    fn left(&self, id: &str) -> u64 {
        user_and_left(&self.ok(&format!("GET /sessions/{id}"))).1
    }

    fn pending(&self) -> String {
        self.ok("GET /sessions")
    }

    /// Kills the process without a warning.
    fn kill(mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }

    /// Waits for a successful end.
    fn wait_for_the_end(mut self) {
        self.wait_for("closed: ");
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{status}: {}", complaint(&mut self.child));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(arguments: &[&OsStr]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sessions"));
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn complaint(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut text).expect("text");
    }
    text
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a test does not take that long")
}

// ----- kills -------------------------------------------------------------------------------

#[test]
fn a_kill_right_after_an_answer_undoes_nothing() {
    let file = Sessions::new();
    let first = Server::start(&file, LONG, &[]);
    let ann = first.ok("POST /login/ann");
    let bob = first.ok("POST /login/bob");
    assert_eq!(first.pending(), r#"{"pending":2}"#);
    first.ok(&format!("POST /logout/{bob}"));
    assert_eq!(first.pending(), r#"{"pending":1}"#);
    first.kill();

    let second = Server::start(&file, LONG * 2, &[]);
    assert_eq!((&*second.carried_over, &*second.pending()), ("1", r#"{"pending":1}"#));
    assert!(second.left(&ann) <= LONG);
    for request in ["GET /sessions", "POST /touch", "POST /logout"] {
        assert_eq!(second.status(&format!("{request}/{bob}")), 404, "{request}");
    }
    second.ok(&format!("POST /touch/{ann}"));
    second.kill();

    let third = Server::start(&file, LONG, &[]);
    assert!(third.left(&ann) > LONG, "the touch is in the file");
    third.ok(&format!("POST /logout/{ann}"));
    third.kill();

    let fourth = Server::start(&file, LONG, &[]);
    assert_eq!((&*fourth.carried_over, &*fourth.pending()), ("0", r#"{"pending":0}"#));
    assert!(file.read().is_empty());
}

#[test]
fn after_a_kill_a_session_has_the_time_that_it_had_left() {
    let file = Sessions::new();
    let first = Server::start(&file, LONG, &[]);
    let login = Instant::now();
    let ann = first.ok("POST /login/ann");
    // Nothing changes any more, so it is the time that has the file written.
    until("the file follows the clock", || file.read()["ann"] < LONG - 100);
    first.kill();
    let left = file.read()["ann"];
    assert!(left >= LONG - millis(login.elapsed()), "{left}");

    // The time that nothing ran does not count, and the idle time of a session begins anew only with a touch.
    let second = Server::start(&file, LONG, &[]);
    let now = second.left(&ann);
    assert!(now <= left, "{now} of {left}");
    assert!(now >= left - millis(second.start.elapsed()), "{now} of {left}");
}

#[test]
fn a_session_expires_not_before_its_time_on_either_side_of_a_kill() {
    const IDLE: u64 = 1_500;
    let file = Sessions::new();
    let first = Server::start(&file, IDLE, &[]);
    let login = Instant::now();
    let ann = first.ok("POST /login/ann");
    first.kill();
    let left = file.read()["ann"];

    // The idle time is another one now, which is nothing to a session that nobody touches.
    let mut second = Server::start(&file, LONG, &[]);
    let bob = second.ok("POST /login/bob");
    let line = second.wait_for("expired: ");
    assert!(line.contains(&format!("expired: ann, {ann}, ")), "{line}");
    let (lived, ran) = (millis(login.elapsed()), millis(second.start.elapsed()));
    assert!(lived >= IDLE && ran >= left, "{lived} ms in all, and {ran} of {left} after the kill");
    assert_eq!(second.status(&format!("POST /touch/{ann}")), 404);
    second.kill();

    // What was reported as expired does not come back.
    let third = Server::start(&file, LONG, &[]);
    assert_eq!(third.carried_over, "1");
    assert_eq!(third.status(&format!("GET /sessions/{ann}")), 404);
    assert!(third.left(&bob) <= LONG);
}

/// Logs in, and closes every second session, until the server is gone. Returns the ids that must be there after it, and
/// those that must not.
fn come_and_go(server: SocketAddr) -> (Vec<String>, Vec<String>) {
    let (mut there, mut gone) = (Vec::new(), Vec::new());
    for round in 0.. {
        let Ok((200, id)) = client::send(server, "POST /login/ann") else { break };
        if round % 2 == 0 {
            there.push(id);
            continue;
        }
        // Without an answer it may be there or not.
        let Ok((200, _)) = client::send(server, &format!("POST /logout/{id}")) else { break };
        gone.push(id);
    }
    (there, gone)
}

#[test]
fn a_kill_under_load_undoes_nothing_that_was_answered() {
    let file = Sessions::new();
    let first = Server::start(&file, LONG, &[]);
    let server = first.address;
    let clients: Vec<_> = (0..4).map(|_| thread::spawn(move || come_and_go(server))).collect();
    // At a moment that nothing is in step with.
    thread::sleep(Duration::from_millis(200));
    first.kill();
    let second = Server::start(&file, LONG, &[]);
    for client in clients {
        let (there, gone) = client.join().expect("no panic");
        for (ids, expected) in [(there, 200), (gone, 404)] {
            for id in ids {
                assert_eq!(second.status(&format!("GET /sessions/{id}")), expected, "{id}");
            }
        }
    }
}

// ----- ends --------------------------------------------------------------------------------

#[cfg(unix)]
#[test]
fn ctrl_c_writes_what_is_pending() {
    let file = Sessions::new();
    let first = Server::start(&file, LONG, &[]);
    let login = Instant::now();
    let ids = ["ann", "bob"].map(|user| first.ok(&format!("POST /login/{user}")));
    first.ok(&format!("POST /touch/{}", ids[0]));
    let before = ids.each_ref().map(|id| first.left(id));
    assert_eq!(file.read().len(), 2);
    let process = first.child.id().to_string();
    let status = Command::new("kill").args(["-INT", &process]).status().expect("it starts");
    assert!(status.success());
    first.wait_for_the_end();
    let written = file.read();
    let [ann, bob] = ["ann", "bob"].map(|user| written[user]);
    assert!(written.len() == 2 && ann >= bob, "{written:?}");
    assert!(bob >= LONG - millis(login.elapsed()), "{bob}");
    // The file from before would say more.
    assert!(ann <= before[0] && bob <= before[1], "{written:?}, {before:?}");

    let second = Server::start(&file, LONG, &[]);
    assert_eq!(second.carried_over, "2");
    assert!(second.left(&ids[0]) <= ann && second.left(&ids[1]) <= bob);
}

#[test]
fn the_end_of_its_time_writes_what_is_pending() {
    const TIME: u64 = 300;
    let file = Sessions::new();
    let first = Server::start(&file, LONG, &[]);
    first.ok("POST /login/ann");
    first.kill();
    let before = file.read()["ann"];

    let second = Server::start(&file, LONG, &["--for", &TIME.to_string()]);
    let start = second.start;
    second.wait_for_the_end();
    let (after, ran) = (file.read()["ann"], millis(start.elapsed()));
    assert!(after <= before - TIME, "{after} of {before}");
    assert!(after >= before - ran, "{after} of {before} after {ran}");
}

#[test]
fn the_demonstration_ends_by_itself() {
    let output = spawn(&[]).wait_with_output().expect("it ends");
    let told = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    for what in ["POST /login/ann  ->  200", "expired: bob", "closed: ", "expired: ann", "404"] {
        assert!(told.contains(what), "no {what:?} in\n{told}");
    }
}

// ----- mistakes ----------------------------------------------------------------------------

#[test]
fn a_bad_request_is_refused() {
    let file = Sessions::new();
    let server = Server::start(&file, LONG, &[]);
    let long = "a".repeat(33);
    for name in ["", "a%22b", "a-b", &long] {
        assert_eq!(server.status(&format!("POST /login/{name}")), 400, "{name:?}");
    }
    for path in ["touch/7", "touch/+0000000000000000000000000000001", "logout/", "nothing", ""] {
        assert_eq!(server.status(&format!("POST /{path}")), 404, "{path:?}");
    }
    assert_eq!(server.status("GET /login/ann"), 404);
    assert_eq!(server.pending(), r#"{"pending":0}"#);
}

#[test]
fn it_says_what_is_wrong_and_leaves_a_file_that_it_does_not_know() {
    let file = Sessions::new();
    let path = file.0.to_str().expect("a temp folder in plain letters");
    let text = "{\"id\":\"00000000000000000000000000000007\",\"user\":\"ann\",\"remaining_ms\":9}\n\
                {\"id\":\"8\",\"user\":\"bob\",\"remaining_ms\":9}\n";
    fs::write(&file.0, text).expect("it is written");
    for (arguments, complains) in [
        (&["--serve", "127.0.0.1:0", "--file", path][..], "line 2 is no session"),
        (&["--serve", "127.0.0.1:0", "--file", "/"], "/: "),
        (&["--serve", "nowhere", "--file", path], "nowhere cannot be listened on"),
        (&["--serve", "127.0.0.1:0"], "usage: sessions"),
        (&["--serve", "127.0.0.1:0", "--file", path, "--idle", "long"], "long is no number"),
        (&["--colour", "red"], "unknown: --colour"),
        (&["--colour"], "usage: sessions"),
    ] {
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        let output = spawn(&arguments).wait_with_output().expect("it ends");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains(complains), "{arguments:?}: {error}");
    }
    assert_eq!(fs::read_to_string(&file.0).expect("it is there"), text);
}
