//! One run of a loop, which ends by a handle of its own.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::inbox::Shared;
use super::looper::NotBound;
use super::turns::{self, Turns};
use crate::platform::sync::{AtomicBool, Ordering};

/// One run of the calling thread's loop. Made inside a task, it is a nested one: a task may wait for
/// something in it, while the loop goes on.
///
/// It ends when its [`QuitHandle`] says so, or with the loop. The runs around it go on. If neither is ever told to quit,
/// [`run`](RunLoop::run) does not return, and the task that called it does not go on.
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
pub struct RunLoop {
    turns: Rc<Turns>,
    leave: Arc<Leave>,
}

/// How one run is to end. Both are Relaxed: a thread that sets one locks the inbox afterwards, and the loop locks it
/// before it looks for the last time.
#[derive(Default)]
pub(super) struct Leave {
    now: AtomicBool,
    when_idle: AtomicBool,
}

impl Leave {
    pub(super) fn is_now(&self) -> bool {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn is_when_idle(&self) -> bool {
        self.when_idle.load(Ordering::Relaxed)
    }
}

impl RunLoop {
    /// Makes a run of this thread's loop, which [`run`](RunLoop::run) begins.
    ///
    /// # Errors
    ///
    /// When the thread has no loop.
    pub fn new() -> Result<RunLoop, NotBound> {
        let turns = turns::current().ok_or(NotBound)?;
        Ok(RunLoop { turns, leave: Arc::default() })
    }

    /// Runs the loop until this run, or the loop, is to end.
    ///
    /// A run that was told to quit returns at once, and one that was told to quit when idle as soon as nothing
    /// is due; also when it is run again.
    pub fn run(&self) {
        self.turns.run(Some(Arc::clone(&self.leave)));
    }

    /// Returns a handle that ends this run, from any thread.
    pub fn quit_handle(&self) -> QuitHandle {
        QuitHandle { shared: Arc::clone(&self.turns.shared), leave: Arc::clone(&self.leave) }
    }
}

impl fmt::Debug for RunLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLoop").field("quits", &self.leave.is_now()).finish_non_exhaustive()
    }
}

/// Ends one [`RunLoop`], from any thread, and nothing else.
#[derive(Clone)]
pub struct QuitHandle {
    shared: Arc<Shared>,
    leave: Arc<Leave>,
}

impl QuitHandle {
    /// Ends it after the present task. If it has not begun, it will return at once.
    pub fn quit(&self) {
        self.leave.now.store(true, Ordering::Relaxed);
        self.shared.tell();
    }

    /// Ends it when nothing is due any more.
    pub fn quit_when_idle(&self) {
        self.leave.when_idle.store(true, Ordering::Relaxed);
        self.shared.tell();
    }
}

impl fmt::Debug for QuitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuitHandle").field("quits", &self.leave.is_now()).finish_non_exhaustive()
    }
}
