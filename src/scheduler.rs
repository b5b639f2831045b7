//! The public face: [`Scheduler`], a cheap handle to a hub.

pub(crate) mod builder;
mod weak;

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use crate::alarm::Alarm;
use crate::driver::EngineCell;
use crate::error::{BuildError, CloseError, ScheduleError, TryScheduleError};
use crate::executor::Executor;
use crate::executor::own::OwnExecutor;
use crate::handle::Cancellable;
use crate::hub::{Hub, Times};
use crate::key::TaskKey;
use crate::repeat::{Period, Repeat};
use crate::schedule::{RepeatingTask, Schedule, Task};
use crate::shutdown::{Leftovers, PendingTask, Stopping};
use crate::stats::Stats;
use crate::task::holder::Repetition;
use crate::task::state::EXECUTORS;
use crate::task::{Content, OneShot, Series};
use crate::trace::{self, Shot, Within};

pub use builder::Builder;
pub use weak::WeakScheduler;

/// A timer service: schedules tasks from any thread, and runs them on an executor when they are
/// due.
///
/// It is a handle, cheap to clone; clones stand for the same service. When the last one is dropped
/// the service stops, and what was pending is dropped (on the tick thread; `drop` does not wait).
/// To keep what is pending, [`close`](Scheduler::close) it.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (sender, receiver) = mpsc::channel();
/// let scheduler = Scheduler::new();
/// scheduler.schedule_once(Duration::from_millis(10), move || drop(sender.send("done")))?;
/// assert_eq!(receiver.recv()?, "done");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Scheduler {
    face: Arc<Face>,
    own: Option<Arc<OwnExecutor>>,
}

/// What the handles share among themselves only: when it goes, the service stops (S24).
struct Face {
    hub: Arc<Hub>,
    /// The engine of a driven scheduler; dangling for one with a tick thread.
    driven: Weak<EngineCell>,
}

impl Drop for Face {
    fn drop(&mut self) {
        self.hub.stop();
    }
}

/// Takes a task in; what is refused is dropped.
#[inline(never)]
fn admit_or_drop<T: Content>(
    hub: &Hub,
    times: Times,
    task: T,
    repetition: Repetition,
    own: Option<&Arc<OwnExecutor>>,
) -> Result<TaskKey, ScheduleError> {
    hub.admit(times, task, repetition, own).map_err(|(reason, _)| reason)
}

static GLOBAL: OnceCell<Scheduler> = OnceCell::new();

impl Scheduler {
    /// A scheduler with the defaults: a tick of 1 ms, and a [`ThreadPool`](crate::ThreadPool) of as
    /// many threads as the machine runs at once, which start on first use.
    ///
    /// # Panics
    ///
    /// When the system does not start a thread; [`Builder::build`] returns that as an error.
    pub fn new() -> Scheduler {
        match Scheduler::builder().build() {
            Ok(scheduler) => scheduler,
            Err(error) => panic!("{error}"),
        }
    }

    /// To choose tick, executor, clock and the rest.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A scheduler for the whole process, with the defaults, made on first use. It is never
    /// dropped; do not close it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// Scheduler::global().schedule_once(Duration::from_secs(1), || println!("one second"))?;
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the system does not start a thread; [`try_global`](Scheduler::try_global) returns that
    /// as an error, and can be tried again.
    pub fn global() -> &'static Scheduler {
        match Scheduler::try_global() {
            Ok(scheduler) => scheduler,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same as [`global`](Scheduler::global), without the panic.
    ///
    /// # Errors
    ///
    /// When the tick thread could not be started.
    pub fn try_global() -> Result<&'static Scheduler, BuildError> {
        GLOBAL.get_or_try_init(|| Scheduler::builder().thread_name("tickwheel-global").build())
    }

    fn from_hub(hub: Arc<Hub>, driven: Weak<EngineCell>) -> Scheduler {
        Scheduler { face: Arc::new(Face { hub, driven }), own: None }
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.face.hub
    }

    /// The present, on the scheduler's clock.
    pub fn now(&self) -> Instant {
        self.hub().clock.now()
    }

    // ----- one-shot ------------------------------------------------------------------------

    /// Runs a task once, when `delay` has passed since this call: never before, and at most a tick
    /// after, plus what the system and the executor add.
    ///
    /// A delay of zero does not wait for a tick. A delay beyond the range of the clock is never:
    /// the task waits until it is cancelled or returned.
    ///
    /// A closure of up to 32 bytes is not allocated.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`] and [`ScheduleError::Full`]; the task is dropped then. To get it
    /// back: [`try_schedule_once`](Scheduler::try_schedule_once).
    #[inline]
    pub fn schedule_once<F>(&self, delay: Duration, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.hub().after(delay);
        self.admit_once(times, task)
    }

    /// Runs a task once, at an instant; one that has passed is due now, without waiting for a tick.
    ///
    /// # Errors
    ///
    /// As [`schedule_once`](Scheduler::schedule_once).
    #[inline]
    pub fn schedule_at<F>(&self, instant: Instant, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.hub().at(instant);
        self.admit_once(times, task)
    }

    /// As [`schedule_once`](Scheduler::schedule_once), but gives the task back when it is not
    /// accepted.
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`] holds the task and the reason.
    pub fn try_schedule_once<F>(
        &self,
        delay: Duration,
        task: F,
    ) -> Result<Cancellable, TryScheduleError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let times = self.hub().after(delay);
        match trace::here() {
            None => self.try_admit(times, task),
            Some(place) => {
                let refused = self.try_admit(times, place.within(task));
                refused.map_err(|error| error.map(Within::into_task))
            }
        }
    }

    fn try_admit<S: Shot>(
        &self,
        times: Times,
        task: S,
    ) -> Result<Cancellable, TryScheduleError<S>> {
        let hub = self.hub();
        match hub.admit(times, OneShot(task), Repetition::NONE, self.own.as_ref()) {
            Ok(key) => Ok(Cancellable::new(key, hub.id())),
            Err((reason, OneShot(task))) => Err(TryScheduleError::new(reason, task)),
        }
    }

    /// Takes a one-shot in, within the span of the calling thread.
    #[inline]
    fn admit_once<F>(&self, times: Times, task: F) -> Result<Cancellable, ScheduleError>
    where
        F: FnOnce() + Send + 'static,
    {
        match trace::here() {
            None => self.admit_or_drop(times, OneShot(task), Repetition::NONE),
            Some(place) => self.admit_or_drop(times, OneShot(place.within(task)), Repetition::NONE),
        }
    }

    /// Takes a task in. The handle is made here and not further in, so that it is built where it
    /// will lie.
    #[inline]
    fn admit_or_drop<T: Content>(
        &self,
        times: Times,
        task: T,
        repetition: Repetition,
    ) -> Result<Cancellable, ScheduleError> {
        let key = admit_or_drop(self.hub(), times, task, repetition, self.own.as_ref())?;
        Ok(Cancellable::new(key, self.hub().id()))
    }

    // ----- repeating -----------------------------------------------------------------------

    /// Runs a task at a fixed rate: run `k` is due at `initial + k * period` after this call,
    /// however late the runs before it were. Missed runs are caught up with, one by one.
    ///
    /// The task is an `FnMut`, so it keeps its state from run to run; runs never overlap. It
    /// returns `()`, or a [`ControlFlow`](std::ops::ControlFlow) of which `Break` ends the series. A
    /// panic ends it too.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::ZeroPeriod`], and as [`schedule_once`](Scheduler::schedule_once).
    pub fn schedule_repeatedly<R, F>(
        &self,
        initial: Duration,
        period: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_rate(period), task)
    }

    /// Runs a task again and again, each time `delay` after the end of the run before.
    ///
    /// # Errors
    ///
    /// As [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_with_fixed_delay<R, F>(
        &self,
        initial: Duration,
        delay: Duration,
        task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        self.schedule_periodic(initial, Period::fixed_delay(delay), task)
    }

    /// Runs a task again and again, as the [`Period`] says.
    ///
    /// A period of more than 584 years is taken for that.
    ///
    /// # Errors
    ///
    /// As [`schedule_repeatedly`](Scheduler::schedule_repeatedly).
    pub fn schedule_periodic<R, F>(
        &self,
        initial: Duration,
        period: Period,
        mut task: F,
    ) -> Result<Cancellable, ScheduleError>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        if period.duration().is_zero() {
            return Err(ScheduleError::ZeroPeriod);
        }
        let repetition = Repetition { kind: period.kind(), period: period.nanos() };
        let series = Series(move || trace::in_a_root_span(|| task().flow()));
        self.admit_or_drop(self.hub().after(initial), series, repetition)
    }

    // ----- waking --------------------------------------------------------------------------

    /// Wakes a waker at an instant: for those who write futures. [`sleep`](Scheduler::sleep) and its like
    /// are such.
    ///
    /// `None` when the instant has come; nothing is kept of the waker then. Else the tick thread wakes
    /// it, whatever the executor, at the instant or when the scheduler ends; it never is among the
    /// leftovers. It counts as a task, and neither this nor its end allocates anything.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use std::time::Instant;
    /// use tickwheel::{Alarm, ScheduleError, Scheduler};
    ///
    /// struct At {
    ///     scheduler: Scheduler,
    ///     instant: Instant,
    ///     alarm: Option<Alarm>,
    /// }
    ///
    /// impl Future for At {
    ///     type Output = Result<(), ScheduleError>;
    ///
    ///     fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
    ///         self.alarm = self.scheduler.wake_at(self.instant, context.waker())?;
    ///         if self.alarm.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    ///     }
    /// }
    /// # let scheduler = Scheduler::new();
    /// # let instant = scheduler.now() + std::time::Duration::from_millis(5);
    /// # let mut at = At { scheduler: scheduler.clone(), instant, alarm: None };
    /// # let sleeper = tickwheel::Sleeper::new();
    /// # while Pin::new(&mut at).poll(&mut Context::from_waker(&sleeper.waker())).is_pending() {
    /// #     sleeper.sleep();
    /// # }
    /// # assert!(scheduler.now() >= instant);
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Closed`] and [`ScheduleError::Full`].
    pub fn wake_at(&self, instant: Instant, waker: &Waker) -> Result<Option<Alarm>, ScheduleError> {
        let key = self.hub().wake_at(self.hub().at(instant), waker)?;
        Ok(self.alarm(key, waker))
    }

    /// As [`wake_at`](Scheduler::wake_at), for who has read the scheduler's clock a moment ago and would
    /// rather not pay for that again: `read` stands for the present. An instant that has come since then is
    /// not `None`, but woken at once. Among equal deadlines of several threads its place is any.
    ///
    /// # Errors
    ///
    /// As [`wake_at`](Scheduler::wake_at).
    pub fn wake_at_since(
        &self,
        read: Instant,
        instant: Instant,
        waker: &Waker,
    ) -> Result<Option<Alarm>, ScheduleError> {
        let key = self.hub().wake_at_since(read, instant, waker)?;
        Ok(self.alarm(key, waker))
    }

    #[inline]
    fn alarm(&self, key: Option<TaskKey>, waker: &Waker) -> Option<Alarm> {
        key.map(|key| Alarm::new(key, self.hub().id(), waker))
    }

    /// Whether the calling thread is inside a turn of this scheduler: the tick thread, or who turns the
    /// driver. Nothing that this scheduler has to do can be waited for there.
    pub fn is_turned_here(&self) -> bool {
        self.hub().is_turned_here()
    }

    // ----- where ---------------------------------------------------------------------------

    /// The same wheel with another executor: what is scheduled by the returned handle runs there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Inline, Scheduler};
    ///
    /// let scheduler = Scheduler::new();
    /// let inline = scheduler.with_executor(Inline);
    /// inline.schedule_once(Duration::from_millis(1), || println!("on the tick thread"))?;
    /// # Ok::<(), tickwheel::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When four million such executors of one scheduler are alive.
    #[must_use]
    pub fn with_executor(&self, executor: impl Executor) -> Scheduler {
        let own = self.hub().own_executors.add(Box::new(executor), EXECUTORS);
        let own = own.expect("fewer than four million executors: clone a handle to share one");
        Scheduler { face: Arc::clone(&self.face), own: Some(own) }
    }

    // ----- the end -------------------------------------------------------------------------

    /// Stops the service, waits for the tick thread, and returns what was pending.
    ///
    /// It wakes the tick thread at once, and waits for
    /// [`Builder::shutdown_timeout`] at most. The second close returns no leftovers.
    ///
    /// A driven scheduler is closed here as well, unless somebody is just turning it.
    ///
    /// # Errors
    ///
    /// [`CloseError::Timeout`] when the tick thread is still busy; the stop stands, and a later
    /// close can collect. [`CloseError::OnTickThread`] when called there; nothing is closed then.
    pub fn close(&self) -> Result<Leftovers, CloseError> {
        let hub = self.hub();
        if hub.is_turned_here() {
            return Err(CloseError::OnTickThread);
        }
        self.begin_stop();
        let leftovers = hub.end.wait_timeout(hub.shutdown_timeout).ok_or(CloseError::Timeout)?;
        Ok(Leftovers::new(Arc::clone(hub), leftovers))
    }

    /// Closes, and runs what was pending on the calling thread, a repeating task once. How many
    /// runs were started.
    ///
    /// # Errors
    ///
    /// As [`close`](Scheduler::close).
    pub fn close_and_run(&self) -> Result<usize, CloseError> {
        Ok(self.close()?.run_all())
    }

    /// Stops the service without waiting; works everywhere, also inside a task. From now on nothing
    /// is accepted. What is returned tells when the end has come, and gives what was pending.
    pub fn stop(&self) -> Stopping {
        self.begin_stop();
        Stopping::new(self.hub())
    }

    fn begin_stop(&self) {
        let hub = self.hub();
        hub.end.want();
        hub.stop();
        if !hub.is_turned_here() {
            self.face.driven.upgrade().iter().for_each(|engine| engine.end());
        }
    }

    /// Whether it has been stopped, or is being stopped.
    pub fn is_closed(&self) -> bool {
        self.hub().is_closing()
    }

    // ----- sight ---------------------------------------------------------------------------

    /// How many tasks wait for their run, and series have not ended.
    pub fn pending(&self) -> usize {
        self.hub().pending()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.hub().stats()
    }
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler::new()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("pending", &self.pending())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl Schedule for Scheduler {
    fn now(&self) -> Instant {
        Scheduler::now(self)
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.schedule_once(delay, task)
    }

    fn schedule_task_at(
        &self,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_at(deadline, task)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_periodic(initial, period, task)
    }
}

impl PendingTask {
    /// Moves it to another scheduler: the remaining delay and the repetition carry on there, on the
    /// executor of that handle. Handles from before no longer reach the task; the new one does.
    ///
    /// # Errors
    ///
    /// As [`Scheduler::schedule_once`]. The task is dropped then, as it is consumed.
    pub fn reschedule(self, scheduler: &Scheduler) -> Result<Cancellable, ScheduleError> {
        self.move_to(scheduler.hub(), scheduler.own.as_ref())
    }
}
