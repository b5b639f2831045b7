//! Runs of a loop, and how a run, or the whole loop, is told to quit.
//!
//! ```text
//!            quit_when_idle      quit_safely          quit, from           quit, on the
//!                                                     elsewhere            loop's thread
//!   No --------> WhenIdle ------> Safely(at) ------> ImmediateOnly ------> Now
//!
//!   posts:  taken        taken             refused             refused              refused
//!   starts: all that is due                what is due `at`    what is immediate    nothing
//! ```
//!
//! The [`Quit`] of a loop becomes stricter, never milder: it moves from any state to any other one further right. Each
//! state turns into `Now` by itself when nothing is left that it lets start.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::inbox::Shared;
use super::looper::NotBound;
use super::turn::{self, LoopCore};
use crate::platform::sync::{Mutex, lock};

/// One run of the calling thread's loop, with a [`QuitHandle`] of its own. A task that runs a `RunLoop` nests it, and
/// can wait for something while the loop goes on.
///
/// The run ends when its [`QuitHandle`] says so, or with the loop. The runs around it go on. If neither is ever told to
/// quit, [`run`](RunLoop::run) does not return, and the task that called it does not go on.
///
/// ```
/// use tickwheel::message_loop::{MessageLoop, RunLoop};
///
/// let looper = MessageLoop::prepare()?;
/// let runner = looper.runner();
/// runner.post(|| {
///     // A dialogue, which its answer ends.
///     let dialogue = RunLoop::new().unwrap();
///     let answer = dialogue.quit_handle();
///     MessageLoop::current().unwrap().post(move || answer.quit()).unwrap();
///     dialogue.run();
///     MessageLoop::current().unwrap().quit();
/// })?;
/// looper.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "base::RunLoop")]
#[must_use = "a run loop does nothing until `run`"]
#[derive(Debug)]
pub struct RunLoop {
    core: Rc<LoopCore>,
    quit: RunQuit,
}

impl RunLoop {
    /// Makes a run of this thread's loop, which [`run`](RunLoop::run) begins.
    ///
    /// # Errors
    ///
    /// [`NotBound`] if the thread has no loop.
    pub fn new() -> Result<RunLoop, NotBound> {
        let core = turn::current().ok_or(NotBound)?;
        Ok(RunLoop { core, quit: RunQuit::default() })
    }

    /// Runs the loop until this run, or the loop, is told to quit.
    ///
    /// A run that was told to quit before returns at once. A run that was told to quit when idle returns as soon as
    /// nothing is due. Both stay so if `run` is called again.
    pub fn run(&self) {
        self.core.run(Some(Arc::clone(&self.quit)));
    }

    /// Returns a handle that ends this run, from any thread.
    pub fn quit_handle(&self) -> QuitHandle {
        QuitHandle { shared: Arc::clone(&self.core.shared), quit: Arc::clone(&self.quit) }
    }
}

/// A handle that ends one [`RunLoop`], and nothing else. It works from any thread.
#[derive(Clone, Debug)]
pub struct QuitHandle {
    shared: Arc<Shared>,
    quit: RunQuit,
}

impl QuitHandle {
    /// Ends the run after the present task. A run that has not begun will return at once.
    pub fn quit(&self) {
        // Before `notify`, so a loop that goes to sleep has seen it, or is woken.
        lock(&self.quit).tighten(Quit::Now);
        self.shared.notify();
    }

    /// Ends the run as soon as nothing is due.
    pub fn quit_when_idle(&self) {
        lock(&self.quit).tighten(Quit::WhenIdle);
        self.shared.notify();
    }
}

/// How one run was told to quit: `WhenIdle`, `Now`, or not yet. A thread that changes it locks the inbox afterwards, in
/// `notify`. The loop looks at it first, and then locks the inbox, in `rest`. If `notify` came before, the loop finds
/// `changed` set there, and takes another turn. If it comes later, the waker makes the loop do so.
pub(super) type RunQuit = Arc<Mutex<Quit>>;

/// How a loop, or one run of it, was told to quit: which tasks may still start, and whether the loop takes posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quit {
    #[default]
    No,
    WhenIdle,
    /// Tasks that were due at this instant may start.
    Safely(Instant),
    ImmediateOnly,
    Now,
}

impl Quit {
    /// Moves to `to` if that is stricter. A second `Safely` does not move the instant of the first.
    pub(super) fn tighten(&mut self, to: Quit) {
        // What was due at the first call is a promise already.
        let is_again = matches!((&self, to), (Quit::Safely(_), Quit::Safely(_)));
        if !is_again {
            *self = (*self).max(to);
        }
    }

    pub(super) fn takes_posts(self) -> bool {
        self <= Quit::WhenIdle
    }

    /// Returns the instant by which a delayed task must be due to start now.
    pub(super) fn starts_by(self, now: Instant) -> Option<Instant> {
        match self {
            Quit::No | Quit::WhenIdle => Some(now),
            Quit::Safely(at) => Some(at),
            Quit::ImmediateOnly | Quit::Now => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_quit_becomes_stricter_and_never_milder() {
        let at = Instant::now();
        let in_order = [Quit::No, Quit::WhenIdle, Quit::Safely(at), Quit::ImmediateOnly, Quit::Now];
        for (rank, from) in in_order.into_iter().enumerate() {
            for (other, to) in in_order.into_iter().enumerate() {
                let mut quit = from;
                quit.tighten(to);
                assert_eq!(quit, in_order[rank.max(other)], "{from:?} and then {to:?}");
            }
        }
    }

    #[test]
    fn a_second_quit_safely_does_not_move_the_first() {
        let at = Instant::now();
        let mut quit = Quit::Safely(at);
        quit.tighten(Quit::Safely(at + Duration::from_secs(1)));
        assert_eq!(quit, Quit::Safely(at));
        assert_eq!(quit.starts_by(at + Duration::from_secs(1)), Some(at));
    }
}
