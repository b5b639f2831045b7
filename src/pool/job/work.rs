//! The work of a job: a closure that is called once or again and again, or a task of a scheduler.
//!
//! A job runs and drops its work with nothing locked, and catches its panics. A reset moves a series under the
//! job's lock (JOB-6), so the methods for that run no user code.

use std::any::type_name;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::clock::timeline::after;
use crate::{DueTask, PanicHook, Period, Repeat, Task};

/// The work of a job, as far as the job itself needs to know it.
pub(crate) trait Workload: Send + 'static {
    /// Returns its name for reports of panics (S31).
    fn name(&self) -> &'static str;

    /// The next run of a series is planned for `deadline` from now on.
    fn move_to(&mut self, deadline: Instant) {
        let _ = deadline;
    }

    /// The run after the next one of a series is planned for `deadline`.
    fn move_following(&mut self, deadline: Instant) {
        let _ = deadline;
    }
}

/// What a job does when it runs.
pub(crate) trait Work: Workload + Sized {
    const IS_PERIODIC: bool = false;

    /// Runs it once. A one-shot takes itself out of `work`. `Break` means that it does not run again.
    fn run(work: &mut Option<Self>, hook: &PanicHook) -> ControlFlow<()>;

    /// Returns when it is due again, after a run that ended at `ended`.
    fn next_run(&mut self, ended: Instant) -> Instant {
        ended
    }
}

/// A closure that is called once.
pub(crate) struct Once<F>(pub(crate) F);

impl<F: Send + 'static> Workload for Once<F> {
    fn name(&self) -> &'static str {
        type_name::<F>()
    }
}

impl<F: FnOnce() + Send + 'static> Work for Once<F> {
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Once(f)) = work.take() {
            f();
        }
        ControlFlow::Break(())
    }
}

/// A boxed closure that is called once. It keeps the name that the type of the closure had.
pub(crate) struct NamedOnce {
    pub(crate) name: &'static str,
    pub(crate) task: Task,
}

impl Workload for NamedOnce {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl Work for NamedOnce {
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        work.take().into_iter().for_each(|named| (named.task)());
        ControlFlow::Break(())
    }
}

/// A task of a scheduler whose executor is the layer.
impl Workload for DueTask {
    fn name(&self) -> &'static str {
        DueTask::name(self)
    }
}

impl Work for DueTask {
    fn run(work: &mut Option<DueTask>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(task) = work.take() {
            task.run();
        }
        ControlFlow::Break(())
    }
}

/// A closure that is called again and again until it breaks.
pub(crate) struct Series<F> {
    pub(crate) name: &'static str,
    pub(crate) due: Instant,
    period: Period,
    /// The delay that the last run has chosen.
    chosen: Option<Duration>,
    /// Where a reset has moved the run after the next one.
    following: Option<Instant>,
    pub(crate) f: F,
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Series<F> {
    pub(crate) fn new(name: &'static str, due: Instant, period: Period, f: F) -> Series<F> {
        Series { name, due, period, chosen: None, following: None, f }
    }

    pub(crate) fn run_once(&mut self) -> ControlFlow<()> {
        R::choose(&mut self.f).map_continue(|chosen| self.chosen = chosen)
    }
}

impl<F: Send + 'static> Workload for Series<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn move_to(&mut self, deadline: Instant) {
        self.due = deadline;
    }

    fn move_following(&mut self, deadline: Instant) {
        self.following = Some(deadline);
    }
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work for Series<F> {
    const IS_PERIODIC: bool = true;

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        work.as_mut().map_or(ControlFlow::Break(()), Series::run_once)
    }

    fn next_run(&mut self, ended: Instant) -> Instant {
        self.due = match (self.following.take(), self.chosen) {
            (Some(moved), _) => moved,
            (None, Some(delay)) => after(ended, delay),
            (None, None) => self.period.next_run(self.due, ended),
        };
        self.due
    }
}
