//! The work of a job: a closure that is called once or again and again, or a task of a scheduler.
//!
//! A job runs and drops its work with nothing locked, and catches its panics. A reset moves the [`Plan`] of a series under
//! the job's lock (JOB-6).

use std::any::type_name;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::Next;
use crate::clock::timeline::after;
use crate::observe::trace::{self, CurrentSpan};
use crate::{DueTask, PanicHook, Period, Repeat, ScheduleError, TryScheduleError};

/// What a job does when it runs.
pub(crate) trait Work: Sized + Send + 'static {
    const IS_PERIODIC: bool = false;

    /// The result of its last run.
    type Output: Send + 'static;

    /// Returns its name for reports of panics (S31).
    fn name(&self) -> &'static str;

    /// Runs it once. A one-shot takes itself out of `work`. `Break` means that it does not run again.
    fn run(work: &mut Option<Self>, hook: &PanicHook) -> ControlFlow<Self::Output>;

    /// Drops it. A panic is reported to this hook.
    fn discard(self, hook: &PanicHook) {
        hook.catch(self.name(), || drop(self));
    }

    /// Returns the plan of a series.
    fn plan(&mut self) -> Option<&mut Plan> {
        None
    }
}

/// Takes out the work of a one-shot. Only the calling thread has it (JOB-1).
fn take<W>(work: &mut Option<W>) -> W {
    work.take().expect("a one-shot runs once")
}

/// A closure that is called once, perhaps in a span.
pub(crate) struct Once<F> {
    f: F,
    span: Option<CurrentSpan>,
}

impl<F> Once<F> {
    pub(crate) fn new(f: F) -> Once<F> {
        Once { f, span: None }
    }

    /// Returns the closure, to be called in the span that the calling thread is in.
    pub(crate) fn in_span(f: F) -> Once<F> {
        Once { f, span: trace::current_span() }
    }

    /// Returns the error of work that was refused.
    pub(crate) fn refused((reason, once): (ScheduleError, Once<F>)) -> TryScheduleError<F> {
        TryScheduleError::new(reason, once.f)
    }
}

impl<T: Send + 'static, F: FnOnce() -> T + Send + 'static> Work for Once<F> {
    type Output = T;

    fn name(&self) -> &'static str {
        type_name::<F>()
    }

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<T> {
        let Once { f, span } = take(work);
        ControlFlow::Break(if let Some(span) = span { span.in_scope(f) } else { f() })
    }
}

/// A closure that is called once with its `input`, under the name of another one that it stands for. If the work is refused,
/// the input can be given back.
pub(crate) struct NamedOnce<I, F> {
    pub(crate) name: &'static str,
    pub(crate) input: I,
    pub(crate) f: F,
}

/// Returns the work of a closure under the name of the one that it stands for: of that in its box, for example.
pub(crate) fn named<F: FnOnce() + Send + 'static>(
    name: &'static str,
    f: F,
) -> NamedOnce<F, impl FnOnce(F) + Send + 'static> {
    NamedOnce { name, input: f, f: |f: F| f() }
}

impl<I: Send + 'static, F: FnOnce(I) + Send + 'static> Work for NamedOnce<I, F> {
    type Output = ();

    fn name(&self) -> &'static str {
        self.name
    }

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        let NamedOnce { input, f, .. } = take(work);
        f(input);
        ControlFlow::Break(())
    }
}

/// A task of a scheduler whose executor is the layer.
impl Work for DueTask {
    type Output = ();

    fn name(&self) -> &'static str {
        DueTask::name(self)
    }

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        take(work).run();
        ControlFlow::Break(())
    }
}

/// A closure that is called again and again until it breaks.
pub(crate) struct Series<F> {
    name: &'static str,
    plan: Plan,
    f: F,
}

/// When a series is due.
pub(crate) struct Plan {
    /// When the next run is planned. A reset may move it.
    pub(super) due: Instant,
    period: Period,
    /// The delay that the last run has chosen.
    chosen: Option<Duration>,
    /// Where a reset has moved the run after the next one.
    pub(super) following: Option<Instant>,
}

impl Plan {
    /// Plans the next run, after one that ended at `ended`. A reset during that run has `moved` the next one.
    pub(super) fn next(&mut self, ended: Instant, moved: Option<Box<Instant>>) -> Next {
        let following = self.following.take();
        self.due = match (moved.map(|moved| *moved).or(following), self.chosen) {
            (Some(moved), _) => moved,
            (None, Some(delay)) => after(ended, delay),
            (None, None) => self.period.next_run(self.due, ended),
        };
        Next { due: self.due.max(ended), ended }
    }
}

impl<F> Series<F> {
    /// Returns a series that is first due at `due`, or `ZeroPeriod` with its closure.
    pub(crate) fn new(
        name: &'static str,
        due: Instant,
        period: Period,
        f: F,
    ) -> Result<Series<F>, TryScheduleError<F>> {
        if period.duration().is_zero() {
            return Err(TryScheduleError::new(ScheduleError::ZeroPeriod, f));
        }
        Ok(Series { name, plan: Plan { due, period, chosen: None, following: None }, f })
    }

    /// Returns the error of a series that was refused.
    pub(crate) fn refused((reason, series): (ScheduleError, Series<F>)) -> TryScheduleError<F> {
        TryScheduleError::new(reason, series.f)
    }
}

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Work for Series<F> {
    const IS_PERIODIC: bool = true;
    type Output = ();

    fn name(&self) -> &'static str {
        self.name
    }

    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        let Some(series) = work else { return ControlFlow::Break(()) };
        (series.f)().choice().map_continue(|chosen| series.plan.chosen = chosen)
    }

    fn plan(&mut self) -> Option<&mut Plan> {
        Some(&mut self.plan)
    }
}
