//! The program `dashboard`: its picture, and the state of the terminal after it.

use std::process::{Command, Stdio};

const DASHBOARD: &str = env!("CARGO_BIN_EXE_dashboard");

#[test]
fn it_draws_frames_without_a_terminal() {
    // The load is 10,000 timeouts a second, and five frames take a quarter of a second. On a machine that stands still in the middle of
    // them it is less, but not each time.
    assert!((0..3).any(|_| scheduled_a_second() > 1_000), "three times");
}

/// Draws five frames, and returns the rate in the last one.
fn scheduled_a_second() -> u32 {
    let output = Command::new(DASHBOARD).args(["--frames", "5"]).output();
    let output = output.expect("it starts");
    let picture = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(picture.lines().count(), 24, "{picture}");
    assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    for what in ["1024 buckets", "▲", "pending", "wake-ups", "median", "q quit"] {
        assert!(picture.contains(what), "no {what:?} in\n{picture}");
    }
    let scheduled = picture.lines().find(|line| line.contains("scheduled")).expect("a line");
    let rates = scheduled.split("││").next().expect("the left panel");
    let digits: String = rates.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no rate in\n{picture}"))
}

#[test]
fn it_says_what_to_do_without_a_terminal_and_about_arguments() {
    for arguments in [&[][..], &["--frames", "many"], &["--colour"]] {
        let mut command = Command::new(DASHBOARD);
        command.args(arguments).stdin(Stdio::null());
        #[cfg(unix)]
        without_a_terminal(&mut command);
        let output = command.output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("usage: dashboard"), "{arguments:?}: {error}");
    }
}

/// Starts a new session, because a program may find the terminal of its session although none of its files is a terminal.
#[cfg(unix)]
fn without_a_terminal(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: `setsid` may be called between fork and exec, and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::process::ExitStatus;
    use std::ptr;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// A pseudo-terminal of 80 columns and 24 lines: its two ends.
    fn terminal() -> (File, OwnedFd) {
        let (mut person, mut line) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: it writes two descriptors, which are ours then, and reads the size.
        unsafe {
            let opened = libc::openpty(
                &raw mut person,
                &raw mut line,
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw const size).cast_mut(),
            );
            assert_eq!(opened, 0, "a terminal");
            (File::from_raw_fd(person), OwnedFd::from_raw_fd(line))
        }
    }

    /// Returns the settings of the terminal.
    fn manners(line: &OwnedFd) -> (u32, u32, u32, u32) {
        // SAFETY: all zeros are settings, and it writes over them.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(line.as_raw_fd(), &raw mut settings), 0);
            settings
        };
        (settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag)
    }

    /// Runs the dashboard, and presses these keys one after the other. Returns how it ended, and its output.
    fn play(keys: &str) -> (ExitStatus, String) {
        let (mut person, line) = terminal();
        let before = manners(&line);
        let file = || Stdio::from(line.try_clone().expect("a descriptor"));
        let mut command = Command::new(DASHBOARD);
        command.stdin(file()).stdout(file()).stderr(file()).env("TERM", "xterm");
        let mut child = command.spawn().expect("it starts");
        drop(command);
        let mut screen = person.try_clone().expect("a descriptor");
        let (tell, drawn) = mpsc::channel();
        let reader = thread::spawn(move || {
            let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
            // Reading fails, rather than ends, when nobody has the other end any more.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                all.extend_from_slice(&bytes[..count]);
                let _ = tell.send(());
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        for key in keys.bytes() {
            for _ in 0..3 {
                drawn.recv_timeout(Duration::from_secs(120)).expect("it draws");
            }
            person.write_all(&[key]).expect("it reads");
        }
        let status = child.wait().expect("it ends");
        assert_eq!(manners(&line), before, "the terminal is as it was");
        drop(line);
        (status, reader.join().expect("no panic"))
    }

    const ENTER: &str = "\x1b[?1049h";
    const LEAVE: &str = "\x1b[?1049l";
    const SHOW_CURSOR: &str = "\x1b[?25h";

    #[test]
    fn a_quit_leaves_it_as_it_was() {
        for end in ["+-bscq", "\x1b", "\x03"] {
            let (status, written) = play(end);
            assert!(status.success(), "{status}");
            assert!(written.contains(ENTER) && written.contains("buckets"));
            assert!(written.contains(LEAVE) && written.contains(SHOW_CURSOR));
        }
    }

    #[test]
    fn a_panic_leaves_it_as_it_was_and_can_be_read() {
        let (status, written) = play("p");
        assert_eq!(status.code(), Some(101));
        let after = written.rsplit_once(LEAVE).map(|(_, after)| after.to_owned());
        // The panic hook restores the screen and then prints the panic. The end of the program restores it again.
        let told = written.split_once(LEAVE).map(|(_, after)| after.to_owned());
        assert!(told.is_some_and(|told| told.contains("the key p was pressed")), "{written:?}");
        assert!(after.is_some());
    }
}
