//! How tasks come to a loop, from any thread: [`TaskRunner`].
//!
//! A task on one loop may have its reply on another; each closure is dropped where it belongs:
//!
//! - REPLY-1 The reply travels in a [`PendingReply`]. If that is dropped, because the task panicked or will never run,
//!   it has the reply dropped on its own loop.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::end::End;
use super::inbox::Shared;
use super::turns;
use crate::job::{Named, NamedOnce, Once, Owner, Series, Work};
use crate::{
    Cancellable, DueTask, Executor, PanicHook, Period, Rejected, Repeat, RepeatingTask, Schedule,
    ScheduleError, Task, TryScheduleError,
};

/// Brings tasks to a [`MessageLoop`](super::MessageLoop), from any thread.
///
/// Tasks run on the loop's thread, one at a time. Immediate ones run in the order of posting, delayed ones by
/// deadline, and at equal deadlines in the order of posting; neither sort keeps the other waiting. The
/// panic of a task is caught and reported, and the loop goes on.
///
/// A task that is posted gives a [`Cancellable`]. A cancel that wins drops the closure where it is called.
///
/// A thread that posts much faster than the loop runs waits a little in some of its calls, at most 100 ms in
/// one, and never on the loop's own thread. For a hard bound see
/// [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending).
///
/// It is an [`Executor`], so a scheduler can run its tasks on a loop, and a [`Schedule`], so what keeps time
/// need not care that it is a loop.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::message_loop::LoopThread;
///
/// let ui = LoopThread::spawn("ui")?;
/// let runner = ui.runner();
/// runner.post(|| println!("drawn"))?;
/// let timeout = runner.post_delayed(Duration::from_secs(5), || println!("no answer"))?;
/// assert!(timeout.cancel());
/// runner.quit(); // what was posted before runs
/// ui.join().unwrap();
/// let refused = runner.post(|| println!("too late")).unwrap_err();
/// refused.into_task()(); // still ours
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "Handler")]
#[doc(alias = "SingleThreadTaskRunner")]
#[derive(Clone)]
pub struct TaskRunner {
    shared: Arc<Shared>,
}

impl TaskRunner {
    pub(super) fn of(shared: Arc<Shared>) -> TaskRunner {
        TaskRunner { shared }
    }

    // ----- tasks ---------------------------------------------------------------------------

    /// Runs a task on the loop, after the immediate ones that were posted before.
    ///
    /// # Errors
    ///
    /// `Closed` once the loop was told to quit, or is gone; `Full` when as many tasks are pending as
    /// [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending) allows. Both come with the closure.
    pub fn post<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(None, true, f)
    }

    /// Runs a task on the loop, once `delay` has passed. A delay of zero is [`post`](TaskRunner::post).
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    pub fn post_delayed<F: FnOnce() + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(self.after(delay), true, f)
    }

    /// Runs a task on the loop, at an instant of the loop's clock. One that has passed is due now.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "postAtTime")]
    pub fn post_at<F: FnOnce() + Send + 'static>(
        &self,
        at: Instant,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(Some(at), true, f)
    }

    /// As [`post`](TaskRunner::post), but never inside a nested run: it waits for the outermost one, and
    /// is the first there.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "PostNonNestableTask")]
    pub fn post_non_nestable<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(None, false, f)
    }

    /// As [`post_delayed`](TaskRunner::post_delayed), but never inside a nested run.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    pub fn post_non_nestable_delayed<F: FnOnce() + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        self.give(self.after(delay), false, f)
    }

    /// Runs a task here and now, if this is the loop's thread, and else posts it. Its panic is caught
    /// and reported in either case.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "runOnUiThread")]
    pub fn run_or_post<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<(), TryScheduleError<F>> {
        if !self.belongs_to_current_thread() {
            return self.post(f).map(drop);
        }
        if !self.shared.takes_posts() {
            return Err(TryScheduleError::new(ScheduleError::Closed, f));
        }
        self.shared.hook().catch_named(type_name::<F>(), f);
        Ok(())
    }

    /// Runs a task on this loop, and then `reply` with its result on the loop of the caller.
    ///
    /// Each of the two is dropped where it belongs: the task on this loop, the reply on the caller's, also
    /// when the task panics, or never runs. A reply is never refused for want of a place. If the caller's loop has quit by then, the reply is dropped by its next
    /// turn, or with the loop; only if that is gone, the reply is dropped on this one, and with it the result.
    ///
    /// ```
    /// use tickwheel::message_loop::{LoopThread, MessageLoop};
    ///
    /// let looper = MessageLoop::prepare()?;
    /// let disk = LoopThread::spawn("disk")?;
    /// let load = || "a long file".len();
    /// disk.runner().post_and_reply(load, |length| {
    ///     println!("{length} bytes, and we are at home again");
    ///     MessageLoop::current().unwrap().quit();
    /// })?;
    /// looper.run();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotBound` if the calling thread has no loop, and `Closed` and `Full` as in [`post`](TaskRunner::post);
    /// both closures come back.
    #[doc(alias = "PostTaskAndReplyWithResult")]
    pub fn post_and_reply<T, F, R>(&self, f: F, reply: R) -> Result<(), TryScheduleError<(F, R)>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
        R: FnOnce(T) + Send + 'static,
    {
        let Some(own) = turns::current() else {
            return Err(TryScheduleError::new(ScheduleError::NotBound, (f, reply)));
        };
        self.ask(&own.shared, f, reply)
    }

    /// The same, for a reply to that loop.
    pub(super) fn ask<T, F, R>(
        &self,
        to: &Arc<Shared>,
        f: F,
        reply: R,
    ) -> Result<(), TryScheduleError<(F, R)>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
        R: FnOnce(T) + Send + 'static,
    {
        let reply = PendingReply { reply: Some(reply), replies_to: Arc::clone(to) };
        let ask = TaskWithReply { task: f, reply, result: PhantomData };
        let given = self.shared.post(None, true, ask).map(drop);
        given.map_err(|(reason, ask)| TryScheduleError::new(reason, ask.into_parts()))
    }

    pub(super) fn after(&self, delay: Duration) -> Option<Instant> {
        if delay.is_zero() {
            return None;
        }
        let now = self.shared.now();
        Some(Period::fixed_delay(delay).next_run(now, now)) // as far as the clock goes, at most
    }

    fn give<F: FnOnce() + Send + 'static>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        let given = self.shared.post(deadline, nests, Once(f)).map(Cancellable::from);
        given.map_err(|(reason, Once(f))| TryScheduleError::new(reason, f))
    }

    /// The same for a box that knows its name.
    pub(super) fn give_named(
        &self,
        deadline: Option<Instant>,
        name: &'static str,
        task: Task,
    ) -> Result<Cancellable, TryScheduleError<Task>> {
        let given = self.shared.post(deadline, true, NamedOnce { name, task });
        let refused = |(reason, named): (_, NamedOnce)| TryScheduleError::new(reason, named.task);
        given.map(Cancellable::from).map_err(refused)
    }

    /// The same for a series.
    pub(super) fn give_series<R, F>(
        &self,
        initial: Duration,
        period: Period,
        name: &'static str,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>>
    where
        R: Repeat,
        F: FnMut() -> R + Send + 'static,
    {
        if period.duration().is_zero() {
            return Err(TryScheduleError::new(ScheduleError::ZeroPeriod, f));
        }
        let deadline = self.after(initial);
        let due = deadline.unwrap_or_else(|| self.shared.now());
        let given = self.shared.post(deadline, true, Series { name, due, period, f });
        let refused = |(reason, series): (_, Series<F>)| TryScheduleError::new(reason, series.f);
        given.map(Cancellable::from).map_err(refused)
    }

    /// Drops what was refused.
    fn or_drop<F>(
        &self,
        given: Result<Cancellable, TryScheduleError<F>>,
    ) -> Result<Cancellable, ScheduleError> {
        given.map_err(|refused| {
            let reason = refused.reason();
            self.shared.catch(|| drop(refused));
            reason
        })
    }

    // ----- the loop ------------------------------------------------------------------------

    /// Whether this is the loop's thread, and its loop is still there.
    #[doc(alias = "RunsTasksInCurrentSequence")]
    pub fn belongs_to_current_thread(&self) -> bool {
        turns::is_current(&self.shared)
    }

    /// Ends the loop for good, with all its runs; from now on posts are refused.
    ///
    /// On the loop's thread nothing more starts. From another thread, the immediate tasks that were posted
    /// before still run.
    pub fn quit(&self) {
        if self.belongs_to_current_thread() {
            self.shared.end(End::Now);
        } else {
            self.quit_after_posts();
        }
    }

    /// As `quit` from another thread.
    pub(super) fn quit_after_posts(&self) {
        self.shared.end(End::Drained);
    }

    /// Ends the loop for good, once all that is due at this moment has run, delayed tasks too; from now on posts
    /// are refused.
    ///
    /// Of a series that lags behind, one run is due: the next one becomes possible when that has ended.
    #[doc(alias = "quitSafely")]
    pub fn quit_safely(&self) {
        self.shared.end(End::Safely(self.shared.now()));
    }

    /// Ends the loop for good as soon as nothing is due. Until then posts are taken.
    pub fn quit_when_idle(&self) {
        self.shared.end(End::WhenIdle);
    }
}

impl fmt::Debug for TaskRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRunner")
            .field("takes_posts", &self.shared.takes_posts())
            .finish_non_exhaustive()
    }
}

impl Schedule for TaskRunner {
    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.or_drop(self.give(self.after(delay), true, task))
    }

    fn schedule_task_at(
        &self,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.or_drop(self.give(Some(deadline), true, task))
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.schedule_series_named(type_name::<RepeatingTask>(), initial, period, task)
    }

    fn schedule_task_named(
        &self,
        name: &'static str,
        delay: Duration,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.or_drop(self.give_named(self.after(delay), name, task))
    }

    fn schedule_task_at_named(
        &self,
        name: &'static str,
        deadline: Instant,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        self.or_drop(self.give_named(Some(deadline), name, task))
    }

    fn schedule_series_named(
        &self,
        name: &'static str,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.or_drop(self.give_series(initial, period, name, task))
    }
}

/// What a scheduler hands to a loop runs there in the order in which it is handed over.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::message_loop::MessageLoop;
///
/// let looper = MessageLoop::prepare()?;
/// let scheduler = Scheduler::builder().executor(looper.runner()).build()?;
/// scheduler.schedule_once(Duration::from_millis(1), || MessageLoop::current().unwrap().quit())?;
/// looper.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Executor for TaskRunner {
    /// A loop that takes no posts any more refuses the task [for good](Rejected::for_good): its scheduler keeps the
    /// task, returns it at its close, and does not ask this executor again. That is the case from the call of
    /// [`quit`](TaskRunner::quit) or [`quit_safely`](TaskRunner::quit_safely) on, after
    /// [`quit_when_idle`](TaskRunner::quit_when_idle) once the loop has stopped, and when the loop is gone.
    ///
    /// A loop that is [full](super::LoopBuilder::max_pending) refuses the task for now.
    ///
    /// The calling thread is never held back: most often it is a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.shared.hand_over(Due(task)).map_err(|(reason, Due(task))| match reason {
            ScheduleError::Closed => Rejected::for_good(task),
            _ => Rejected::new(task),
        })
    }
}

/// A task of a scheduler.
struct Due(DueTask);

impl Named for Due {
    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl Work for Due {
    fn run(work: &mut Option<Due>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Due(task)) = work.take() {
            task.run();
        }
        ControlFlow::Break(())
    }
}

// ----- replies ----------------------------------------------------------------------------

/// A reply on its way; REPLY-1.
struct PendingReply<R: Send + 'static> {
    reply: Option<R>,
    replies_to: Arc<Shared>,
}

impl<R: Send + 'static> PendingReply<R> {
    /// Posts the reply to its own loop.
    fn send<T: Send + 'static>(mut self, value: T)
    where
        R: FnOnce(T),
    {
        let Some(reply) = self.reply.take() else { return };
        let (name, task) = (type_name::<R>(), Box::new(move || reply(value)));
        let answer = NamedOnce { name, task };
        if let Err(refused) = self.replies_to.post_reply(answer) {
            self.replies_to.drop_on_loop(Box::new(refused));
        }
    }
}

impl<R: Send + 'static> Drop for PendingReply<R> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            self.replies_to.drop_on_loop(Box::new(reply));
        }
    }
}

/// The task, with its reply.
struct TaskWithReply<F, R: Send + 'static, T> {
    task: F,
    reply: PendingReply<R>,
    result: PhantomData<fn() -> T>,
}

impl<F, R: Send + 'static, T> TaskWithReply<F, R, T> {
    /// Both closures, of one that was refused.
    fn into_parts(mut self) -> (F, R) {
        (self.task, self.reply.reply.take().expect("it has not run"))
    }
}

impl<F: Send + 'static, R: Send + 'static, T: 'static> Named for TaskWithReply<F, R, T> {
    fn name(&self) -> &'static str {
        type_name::<F>()
    }
}

impl<T, F, R> Work for TaskWithReply<F, R, T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
    R: FnOnce(T) + Send + 'static,
{
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(TaskWithReply { task, reply, .. }) = work.take() {
            reply.send(task());
        }
        ControlFlow::Break(())
    }
}
