//! The terminal: its size, its keys one by one, and a screen of its own for `top`.
//!
//! - SCREEN-1 Whatever ends `top`, the terminal is as it was: the [`Screen`] is put back by its drop, and SIGINT and SIGTERM only
//!   set [`is_interrupted`], so that the loop ends as with `q`. While it takes the keys, none of them is a signal: Ctrl-C is another
//!   `q`, and Ctrl-\ and Ctrl-Z, which would end or stop it with its screen, do nothing. That is not for signals that another process sends
//!   and that nobody catches, such as SIGKILL, SIGQUIT and SIGSTOP.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use terminal_size::terminal_size_of;

/// Orders nothing: whoever waits looks again soon. So its accesses are Relaxed.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C and SIGTERM end nothing by themselves. [`is_interrupted`] tells of them.
pub(crate) fn catch_interrupts() {
    // It fails if it was called before, which changes nothing.
    _ = ctrlc::set_handler(|| IS_INTERRUPTED.store(true, Ordering::Relaxed));
}

pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

/// How large the terminal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: u16,
    pub(crate) rows: u16,
}

/// Returns the size of the terminal at stdout, or that of a small one.
pub(crate) fn size() -> Size {
    let known =
        terminal_size_of(io::stdout()).filter(|(columns, rows)| columns.0 > 0 && rows.0 > 0);
    known.map_or(Size { columns: 80, rows: 24 }, |(columns, rows)| Size {
        columns: columns.0,
        rows: rows.0,
    })
}

/// The terminal while it shows pictures that replace one another.
pub(crate) struct Screen {
    /// What was set before, if there are keys.
    keys: Option<system::Settings>,
}

impl Screen {
    /// Leaves what the terminal shows for a screen of its own, and takes its keys as they are pressed.
    pub(crate) fn enter() -> io::Result<Screen> {
        let keys = if io::stdin().is_terminal() { system::take_keys() } else { None };
        let screen = Screen { keys };
        write("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l")?; // another screen, without the cursor, where long lines are cut
        Ok(screen)
    }

    /// Shows these lines in place of what is there.
    #[expect(clippy::unused_self, reason = "there is none without a screen")]
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut picture = "\u{1b}[H".to_owned(); // to its begin
        for (number, line) in lines.iter().enumerate() {
            picture.push_str(if number == 0 { "" } else { "\r\n" });
            picture.push_str(line);
            picture.push_str("\u{1b}[K"); // clears the rest of the line
        }
        picture.push_str("\u{1b}[J"); // and that of the screen
        write(&picture)
    }

    /// Returns a key, if one is pressed within this time.
    pub(crate) fn key(&self, patience: Duration) -> Option<u8> {
        if self.keys.is_none() {
            thread::sleep(patience);
            return None;
        }
        system::key(patience)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        _ = write("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l");
        if let Some(settings) = self.keys.take() {
            system::put_back(&settings);
        }
    }
}

/// `Output` holds the lock of stdout, and has written nothing: a screen is all that `top` shows then.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(unix)]
mod system {
    use std::io;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
    };

    pub(super) type Settings = Termios;

    /// Keys are not shown, and come without Enter. None of them is a signal (SCREEN-1), and Ctrl-S does not stop the output, because
    /// Ctrl-C would not let it go on.
    pub(super) fn take_keys() -> Option<Settings> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut settings = before.clone();
        settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        settings.input_modes.remove(InputModes::IXON);
        settings.special_codes[SpecialCodeIndex::VMIN] = 1;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &settings).ok()?;
        Some(before)
    }

    pub(super) fn put_back(settings: &Settings) {
        // What was typed and not read is dropped, or the shell would get it.
        _ = tcsetattr(io::stdin(), OptionalActions::Flush, settings);
    }

    pub(super) fn key(patience: Duration) -> Option<u8> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok()?;
        let is_there = poll(&mut fds, Some(&patience)).is_ok_and(|count| count > 0);
        let mut byte = [0];
        let count = is_there.then(|| rustix::io::read(&stdin, &mut byte));
        match count {
            Some(Ok(1)) => Some(byte[0]),
            // The terminal is gone, so nobody looks any more.
            Some(Ok(_) | Err(rustix::io::Errno::IO)) => Some(b'q'),
            _ => None,
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::time::Duration;

    pub(super) enum Settings {}

    pub(super) fn take_keys() -> Option<Settings> {
        None
    }

    pub(super) fn put_back(settings: &Settings) {
        match *settings {}
    }

    pub(super) fn key(_patience: Duration) -> Option<u8> {
        None
    }
}
