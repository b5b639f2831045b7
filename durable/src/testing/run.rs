//! A [`Run`] without a worker: [`run`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;

use crate::failure::Failure;
use crate::handler::{Completes, Run, Tenure};
use crate::timer::{NewTimer, State, Timer, When};

/// Its lease: ten years.
const LEASE: Duration = Duration::from_secs(315_360_000);

/// Begins to build a [`Run`] of a timer, to call a handler in a unit test, without a store and without a worker. By default it is the
/// first attempt, due when the timer says, counted from now, and its fencing number is 1.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::{Failure, HandlerResult, NewTimer, Run, testing};
///
/// fn send(run: &Run<'_>) -> HandlerResult {
///     if run.payload().is_empty() && !run.is_last_attempt() {
///         return Err(Failure::new("the text is not there yet"));
///     }
///     Ok(())
/// }
///
/// let mail = NewTimer::new("mail", "4711", Duration::ZERO);
/// assert!(send(&testing::run(mail.clone()).build()).is_err());
/// assert!(send(&testing::run(mail.clone()).attempt(3).max_attempts(3).build()).is_ok());
/// assert!(send(&testing::run(mail.payload("hello")).build()).is_ok());
/// ```
pub fn run(timer: NewTimer) -> RunBuilder {
    let due = match timer.when {
        When::After(delay) => SystemTime::now() + delay,
        When::At(time) => time,
    };
    run_of(Timer {
        payload: timer.payload,
        repetition: timer.repetition,
        max_attempts: timer.max_attempts,
        time_limit: timer.time_limit,
        trace: timer.trace,
        ..Timer::new(1, timer.kind, timer.key, due)
    })
}

/// Like [`run`], of a timer as it stands in a store. Its next attempt is built.
pub fn run_of(timer: Timer) -> RunBuilder {
    let attempts = timer.attempts + 1;
    let fence = timer.fence + 1;
    let timer = Timer {
        state: State::Running,
        attempts,
        fence,
        owner: Some("testing".to_owned()),
        ..timer
    };
    RunBuilder { timer }
}

/// Builds a [`Run`] for a unit test: what [`run`] and [`run_of`] return.
#[derive(Clone, Debug)]
#[must_use = "it is nothing until it is built"]
pub struct RunBuilder {
    timer: Timer,
}

impl RunBuilder {
    /// Sets which attempt it is, from 1.
    pub fn attempt(mut self, attempt: u32) -> RunBuilder {
        self.timer.attempts = attempt;
        self
    }

    /// Sets after how many attempts the timer is dead. By default as the timer says, or as [`Retry`](crate::Retry) does by default.
    pub fn max_attempts(mut self, attempts: u32) -> RunBuilder {
        self.timer.max_attempts = Some(attempts);
        self
    }

    /// Sets when it was due.
    pub fn due(mut self, due: SystemTime) -> RunBuilder {
        self.timer.due = due;
        self
    }

    /// Sets its fencing number.
    pub fn fence(mut self, fence: i64) -> RunBuilder {
        self.timer.fence = fence;
        self
    }

    /// Sets why the attempt before has failed.
    pub fn error(mut self, reason: impl Into<String>) -> RunBuilder {
        self.timer.error = Some(reason.into());
        self
    }

    /// Builds the run. It stays [current](Run::is_current).
    pub fn build(self) -> Run<'static> {
        self.cancellable().0
    }

    /// Builds the run, and what cancels it, as if its timer were cancelled while the handler runs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::{NewTimer, testing};
    ///
    /// let (run, cancel) = testing::run(NewTimer::new("import", "7", Duration::ZERO)).cancellable();
    /// assert!(run.is_current());
    /// cancel.cancel();
    /// assert!(!run.is_current());
    /// ```
    pub fn cancellable(self) -> (Run<'static>, CancelRun) {
        let scheduler = Scheduler::global();
        let tenure = Tenure::new(scheduler, scheduler.now() + LEASE, self.timer.due, false);
        let default = crate::Retry::default().max_attempts();
        let max_attempts = self.timer.max_attempts.unwrap_or(default);
        let run = Run::new(&Arc::new(self.timer), &tenure, max_attempts, Arc::new(NoWorker));
        (run, CancelRun(tenure))
    }
}

/// Cancels a run that [`RunBuilder::cancellable`] has built.
pub struct CancelRun(Arc<Tenure>);

impl CancelRun {
    /// From here on the run is not [current](Run::is_current).
    pub fn cancel(&self) {
        self.0.end();
    }
}

impl std::fmt::Debug for CancelRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelRun").field("is_current", &self.0.is_current()).finish()
    }
}

struct NoWorker;

impl Completes for NoWorker {
    fn begins(&self, _: &Timer, _: &Tenure) -> bool {
        true
    }

    fn completion(&self, _: &Timer, _: &Tenure) -> Result<String, Failure> {
        Err(Failure::for_good(
            "a run of a unit test has no timer in a database that a statement could end",
        ))
    }
}
