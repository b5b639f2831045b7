//! One task of a worker.
//!
//! ```text
//!               claim                 end
//!   Waiting ------------> Running ------------> Done
//!    | | ^                 |   |                 ^
//!    | '-|-- forfeit, or taken back -------------'
//!    |   |                 |   |
//!    |   '---- go on ------'   | cancel of a series
//!    |       (a series)        v
//!    |                      Doomed ------ end ------.
//!    |                                              v
//!    '------------------- cancel ---------------> Cancelled
//! ```
//!
//! A one-shot, which nobody can doom, stays `Running` when it is done, and saves a turn of the lock: what
//! tells of an end is `is_over`, beside the stage.
//!
//! - J1 Whoever takes a job out of `Waiting` has its work, and runs or drops it. So a task starts once,
//!   and a cancel that wins means that it does not start.
//! - J2 User code runs, and is dropped, with nothing locked; its panics are caught and reported.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::home::Home;
use super::place::Place;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::{Cancel, PanicHook, Period, Repeat};

/// What a job does when it runs.
pub(super) trait Work: Sized + Send + 'static {
    const IS_PERIODIC: bool = false;

    /// Runs it, or what of it is to run now. `Break` is the end.
    fn run(work: &mut Option<Self>, hook: &PanicHook) -> ControlFlow<()>;

    /// When it is due again, after a run that has ended now.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

/// A closure that is called once.
pub(super) struct Once<F>(pub(super) F);

impl<F: FnOnce() + Send + 'static> Work for Once<F> {
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Once(f)) = work.take() {
            f();
        }
        ControlFlow::Break(())
    }
}

/// A closure that is called until it breaks.
pub(super) struct Series<F> {
    pub(super) due: Instant,
    pub(super) period: Period,
    pub(super) f: F,
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work for Series<F> {
    const IS_PERIODIC: bool = true;

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        work.as_mut().map_or(ControlFlow::Break(()), |series| (series.f)().flow())
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        self.due = self.period.next_run(self.due, ended);
        self.due
    }
}

/// A job as its home has it, without its types.
pub(super) trait Run: Cancel {
    /// Runs it, if it still waits. When it is to run again.
    fn run(&self, home: &dyn Home) -> Option<Instant>;
    /// Drops it: its time will not come.
    fn forfeit(&self);
    fn place(&self) -> &Place;
}

pub(super) struct Job<W> {
    home: Weak<dyn Home>,
    place: Place,
    /// It has ended, and not by a cancel before its time. It is Released after all else, and `is_done`
    /// Acquires it: who finds it set sees what the task has done.
    is_over: AtomicBool,
    stage: Mutex<Stage<W>>,
}

enum Stage<W> {
    /// With its work; J1.
    Waiting(W),
    Running,
    Doomed,
    Done,
    Cancelled,
}

const _: () = assert!(
    cfg!(loom) || size_of::<Job<Once<[usize; 2]>>>() <= 64,
    "with its counts a task of two words takes 80 bytes"
);

impl<W> Stage<W> {
    /// J1.
    fn leave_waiting(&mut self, next: Stage<W>) -> Option<W> {
        if !matches!(self, Stage::Waiting(_)) {
            return None;
        }
        match std::mem::replace(self, next) {
            Stage::Waiting(work) => Some(work),
            _ => None,
        }
    }
}

impl<W: Work> Job<W> {
    pub(super) fn new(home: Weak<dyn Home>, work: W) -> Arc<Self> {
        let (place, is_over) = (Place::new(), AtomicBool::new(false));
        Arc::new(Job { home, place, is_over, stage: Mutex::new(Stage::Waiting(work)) })
    }

    /// Takes the work back of a job that nobody has taken in.
    pub(super) fn take_back(&self) -> Option<W> {
        lock(&self.stage).leave_waiting(Stage::Done)
    }

    /// One run; J2. What remains of the work, and when it is due again.
    fn run_once(work: W, home: &dyn Home) -> (Option<W>, Option<Instant>) {
        let (mut work, hook) = (Some(work), home.hook());
        let due = match hook.catch(|| W::run(&mut work, hook)) {
            Some(ControlFlow::Continue(())) => {
                let next_run = |work: &mut W| hook.catch(|| work.next_run(home.now()));
                work.as_mut().and_then(next_run)
            }
            Some(ControlFlow::Break(())) | None => None,
        };
        (work, due)
    }

    /// Waits for its next run, unless it was cancelled in this one; then its work comes back.
    fn go_on(&self, work: W) -> Result<(), W> {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Doomed) {
            return Err(work);
        }
        *stage = Stage::Waiting(work);
        Ok(())
    }

    /// It has run for the last time: from now on no cancel wins.
    fn has_run(&self) {
        if W::IS_PERIODIC {
            let mut stage = lock(&self.stage);
            let was_doomed = matches!(*stage, Stage::Doomed);
            *stage = if was_doomed { Stage::Cancelled } else { Stage::Done };
        }
    }

    /// The work of a job that has left `Waiting` before its time.
    fn drop_unstarted(&self, work: W) {
        match self.home.upgrade() {
            Some(home) => {
                home.forget(&self.place);
                home.hook().catch(|| drop(work));
            }
            // Its home ends, and all jobs in it.
            None => _ = PanicHook::default().catch(|| drop(work)),
        }
    }
}

impl<W: Work> Run for Job<W> {
    fn run(&self, home: &dyn Home) -> Option<Instant> {
        let work = lock(&self.stage).leave_waiting(Stage::Running)?;
        home.has_started();
        let rest = match Self::run_once(work, home) {
            (Some(work), Some(due)) => match self.go_on(work) {
                Ok(()) => return Some(due),
                Err(doomed) => Some(doomed),
            },
            (rest, _) => rest,
        };
        self.has_run();
        home.hook().catch(|| drop(rest));
        self.is_over.store(true, Ordering::Release);
        None
    }

    fn forfeit(&self) {
        let Some(work) = lock(&self.stage).leave_waiting(Stage::Done) else { return };
        self.drop_unstarted(work);
        self.is_over.store(true, Ordering::Release);
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

impl<W: Work> Cancel for Job<W> {
    fn cancel(&self) -> bool {
        // In one step: a series that goes on in between must not escape.
        let mut stage = lock(&self.stage);
        if W::IS_PERIODIC && matches!(*stage, Stage::Running) {
            *stage = Stage::Doomed;
            return true;
        }
        let Some(work) = stage.leave_waiting(Stage::Cancelled) else { return false };
        drop(stage);
        self.drop_unstarted(work);
        true
    }

    fn is_cancelled(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Doomed | Stage::Cancelled)
    }

    fn is_done(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.is_cancelled()
    }
}
