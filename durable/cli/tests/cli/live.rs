//! What a terminal sees: `top`, questions, colours; and Ctrl-C.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use super::hostile::{self, dangers};
use super::program::{Ran, Shop};
use super::server::Server;

/// A terminal, of which the test is the screen and the keyboard.
struct Terminal {
    master: File,
    inside: File,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn new(columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let inside = OpenOptions::new().read(true).write(true).open(name.to_str().expect("a path"));
        let (master, inside) = (File::from(master), inside.expect("it opens"));
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&inside, size).expect("a size");
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut screen, all) = (master.try_clone().expect("a copy"), Arc::clone(&seen));
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut part) {
                bytes.extend(&part[..count]);
                *all.lock().expect("no panic") = String::from_utf8_lossy(&bytes).into_owned();
            }
        });
        Terminal { master, inside, seen }
    }

    fn run(&self, shop: &Shop, arguments: &[&str]) -> Child {
        let end = || Stdio::from(self.inside.try_clone().expect("a copy"));
        let mut command = shop.command(arguments);
        command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it runs")
    }

    fn press(&self, keys: &[u8]) {
        (&self.master).write_all(keys).expect("it is pressed");
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.inside).expect("settings")
    }

    fn seen(&self) -> String {
        self.seen.lock().expect("no panic").clone()
    }

    /// Waits until the terminal has shown a text.
    #[track_caller]
    fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |seen| seen.contains(text))
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_seen: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let seen = self.seen();
            if is_seen(&seen) {
                return seen;
            }
            assert!(begin.elapsed().as_secs() < 30, "no {what:?} in {seen:?}");
            thread::sleep(Duration::from_millis(10)); // another process prints it
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(process, signal).expect("a signal");
}

/// What `top` leaves of the terminal, which was ended in this way.
fn top_is_left(leave: impl Fn(&Terminal, &Child)) {
    let (shop, terminal) = (Shop::new(), Terminal::new(120, 30));
    shop.run(&["schedule", "mail", "4711", "--after", "30m"]).ended(0);
    let before = terminal.settings();
    let mut child = terminal.run(&shop, &["top", "--every", "200ms"]);
    let seen = terminal.wait_for("q leaves");
    assert!(seen.starts_with("\u{1b}[?1049h"), "{seen:?}");
    assert!(!terminal.settings().local_modes.intersects(LocalModes::ICANON | LocalModes::ISIG));
    // It goes on looking.
    shop.run(&["schedule", "note", "later", "--after", "1h"]).ended(0);
    terminal.wait_for("later");
    leave(&terminal, &child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    terminal.wait_for("\u{1b}[?25h\u{1b}[?1049l");
    assert_eq!(format!("{:?}", terminal.settings()), format!("{before:?}"));
}

#[test]
fn q_leaves_the_terminal_as_it_was() {
    top_is_left(|terminal, _| terminal.press(b"xq"));
}

#[test]
fn keys_that_are_signals_elsewhere_leave_it_as_it_was() {
    let (quit, suspend, stop_output, interrupt) = (0x1c, 0x1a, 0x13, 3);
    top_is_left(|terminal, _| terminal.press(&[quit, suspend, stop_output, interrupt]));
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    top_is_left(|_, child| signal(child, Signal::INT));
    top_is_left(|_, child| signal(child, Signal::TERM));
}

#[test]
fn top_outlasts_a_server_that_is_gone() {
    let server = match Server::private() {
        Ok(server) => server,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let (shop, terminal) = (Shop::at(server.url().to_owned()), Terminal::new(120, 30));
    shop.run(&["schedule", "mail", "4711", "--after", "30m"]).ended(0);
    let mut child = terminal.run(&shop, &["top", "--every", "100ms"]);
    terminal.wait_for("4711");
    server.restart();
    let before = terminal.seen().len();
    terminal.wait_until("new picture", |seen| seen[before..].matches("4711").count() > 3);
    server.end();
    let problem = "the database cannot be reached";
    let is_told =
        |seen: &str| seen.split_once(problem).is_some_and(|(_, rest)| rest.contains("4711"));
    terminal.wait_until("problem above what was seen last", is_told);
    terminal.press(b"q");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_small_terminal_sees_no_more_than_fits() {
    let (shop, terminal) = (Shop::new(), Terminal::new(60, 8));
    for kind in 0..20 {
        shop.run(&["schedule", &format!("kind{kind}"), "4711", "--after", "30m"]).ended(0);
    }
    let mut child = terminal.run(&shop, &["top"]);
    let seen = terminal.wait_for("\u{1b}[J");
    let frame = seen.split("\u{1b}[J").next().expect("a frame");
    assert_eq!(frame.matches("\r\n").count(), 7, "{frame:?}");
    assert!(frame.contains("and 16 more"), "{frame:?}");
    terminal.press(b"q");
    child.wait().expect("it ends");
}

#[test]
fn a_terminal_gets_nothing_hostile() {
    let shop = hostile::shop();
    let timers = shop.timers();
    let listed = timers.list(&tickwheel_durable::Filter::new()).expect("a list");
    let (kind, key) = (&*listed[0].kind, &*listed[0].key);
    for arguments in [
        &["list"][..],
        &["history"],
        &["counts"],
        &["show", kind, key],
        &["show", kind, key, "--payload"],
    ] {
        let terminal = Terminal::new(100, 30);
        let mut child = terminal.run(&shop, arguments);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        terminal.press(b"all is seen\n"); // is echoed behind all of it
        let seen = terminal.wait_for("all is seen").replace("\r\n", "\n");
        // Colours are our own.
        let plain = ["0", "1", "2", "31", "32", "33"]
            .iter()
            .fold(seen.clone(), |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
        assert_eq!(dangers(&plain), [], "{arguments:?}: {seen:?}");
    }
    let terminal = Terminal::new(100, 30);
    let mut child = terminal.run(&shop, &["top"]);
    let frame = terminal.wait_for("\u{1b}[J");
    assert!(!frame.contains("\u{1b}[2J") && !frame.contains('\u{9b}') && !frame.contains('\u{7}'));
    terminal.press(b"q");
    child.wait().expect("it ends");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let shop = Shop::new();
    shop.run(&["schedule", "mail", "4711", "--after", "30m"]).ended(0);
    let terminal = Terminal::new(100, 30);
    terminal.run(&shop, &["list"]).wait().expect("it ends");
    terminal.wait_for("\u{1b}[1mKIND");
    let plain = Terminal::new(100, 30);
    let end = || Stdio::from(plain.inside.try_clone().expect("a copy"));
    let mut command = shop.command(&["list"]);
    command.env("NO_COLOR", "1").stdout(end()).spawn().expect("it runs").wait().expect("it ends");
    assert!(!plain.wait_for("4711").contains('\u{1b}'));
}

#[test]
fn many_are_changed_after_a_yes() {
    let shop = Shop::new();
    for key in ["1", "2", "3"] {
        shop.run(&["schedule", "mail", key, "--after", "1h"]).ended(0);
    }
    for (answer, code) in [("n\n", 1), ("\n", 1), ("yes\n", 0)] {
        let terminal = Terminal::new(100, 30);
        let mut child = terminal.run(&shop, &["cancel", "--kind", "mail", "--all"]);
        terminal.wait_for("Cancel 3 timers? [y/N] ");
        terminal.press(answer.as_bytes());
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{answer:?}");
        terminal.wait_for(if code == 0 { "cancelled 3" } else { "Nothing was changed" });
    }
    shop.run(&["list"]).ended(1);
}

#[test]
fn a_bench_that_is_interrupted_clears_up() {
    let shop = Shop::new();
    let mut command = shop.command(&["bench", "--timers", "100", "--over", "1h", "--yes"]);
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it runs");
    let timers = shop.timers();
    while timers.counts().expect("counts").is_empty() {
        thread::sleep(Duration::from_millis(5)); // another process schedules
    }
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(timers.counts().expect("counts"), []);
}

#[test]
fn a_bench_that_cannot_clear_up_says_so() {
    let shop = Shop::new();
    let mut command = shop.command(&["bench", "--timers", "100", "--over", "1h", "--yes"]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
    let timers = shop.timers();
    while timers.counts().expect("counts").is_empty() {
        thread::sleep(Duration::from_millis(5)); // another process schedules
    }
    let file = rusqlite::Connection::open(shop.folder.join("shop.db")).expect("a file");
    let refuse = "CREATE TRIGGER keep BEFORE DELETE ON tickwheel_timers BEGIN SELECT RAISE(ABORT, 'kept'); END";
    file.execute_batch(refuse).expect("a trigger");
    signal(&child, Signal::INT);
    let ran = Ran::of(child.wait_with_output().expect("it ends")).ended(4);
    let kind = &timers.counts().expect("counts")[0].kind;
    let advice = format!(
        "Not all timers were removed. `tickwheel-durable cancel --kind {kind} --all` removes them."
    );
    assert!(ran.err.contains(&advice) && ran.err.contains("kept"), "{}", ran.err);
}
