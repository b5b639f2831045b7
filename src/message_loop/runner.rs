//! How tasks come to a loop, from any thread: [`TaskRunner`].

use std::any::type_name;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::{Origin, Shared};
use super::local::LocalTaskRunner;
use super::looper::NotBound;
use super::run_loop::Quit;
use super::turn;
use crate::job::{Given, Layer, Once, Owner, Scheduled, Taken, Work};
use crate::scheduler::schedule_boxes_by_name;
use crate::{
    Cancellable, DueTask, Executor, Period, Rejected, RepeatingTask, Request, Schedule,
    ScheduleError, Task, TryScheduleError,
};

/// Posts tasks to a [`MessageLoop`](super::MessageLoop), from any thread.
///
/// Tasks run on the loop's thread, one at a time. Immediate tasks run in the order of posting. Delayed tasks run by
/// deadline, and at equal deadlines in the order of posting. Neither sort keeps the other waiting. The panic of a task
/// is caught and reported, and the loop goes on.
///
/// Each post returns a [`Cancellable`]. A cancel that wins drops the closure on the calling thread.
///
/// A thread that posts much faster than the loop runs waits a little in some of its calls: at most 100 ms in one call,
/// and never on the loop's own thread. [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending) sets a hard limit.
///
/// A `TaskRunner` is an [`Executor`], so a scheduler can run its tasks on a loop. It is also a [`Schedule`], so code
/// that needs timers can take a loop in place of a scheduler.
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
#[derive(Clone, Debug)]
pub struct TaskRunner {
    pub(super) shared: Arc<Shared>,
}

impl TaskRunner {
    // ----- tasks ---------------------------------------------------------------------------

    /// Runs a task on the loop, after the immediate ones that were posted before.
    ///
    /// # Errors
    ///
    /// `Closed` if the loop was told to quit, or is gone. `Full` if as many tasks are pending as
    /// [`LoopBuilder::max_pending`](super::LoopBuilder::max_pending) allows. The closure comes back.
    pub fn post<F: FnOnce() + Send + 'static>(&self, f: F) -> Given<F> {
        self.post_once(None, true, f)
    }

    /// Runs a task on the loop once `delay` has passed. A delay of zero makes this a [`post`](TaskRunner::post).
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    pub fn post_delayed<F: FnOnce() + Send + 'static>(&self, delay: Duration, f: F) -> Given<F> {
        self.post_once(self.shared.after(delay), true, f)
    }

    /// Runs a task on the loop at an instant of the loop's clock. If that has passed, the task is due now.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "postAtTime")]
    pub fn post_at<F: FnOnce() + Send + 'static>(&self, at: Instant, f: F) -> Given<F> {
        self.post_once(Some(at), true, f)
    }

    /// Runs a task as [`post`](TaskRunner::post) does, but never inside a nested run. The task waits for the outermost
    /// run, and is the first there.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "PostNonNestableTask")]
    pub fn post_non_nestable<F: FnOnce() + Send + 'static>(&self, f: F) -> Given<F> {
        self.post_once(None, false, f)
    }

    /// Runs a task as [`post_delayed`](TaskRunner::post_delayed) does, but never inside a nested run.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    pub fn post_non_nestable_delayed<F: FnOnce() + Send + 'static>(
        &self,
        delay: Duration,
        f: F,
    ) -> Given<F> {
        self.post_once(self.shared.after(delay), false, f)
    }

    /// Runs a task here and now if this is the loop's thread, and otherwise posts it. A panic is caught and reported in
    /// either case.
    ///
    /// # Errors
    ///
    /// As [`post`](TaskRunner::post).
    #[doc(alias = "runOnUiThread")]
    pub fn run_or_post<F: FnOnce() + Send + 'static>(
        &self,
        f: F,
    ) -> Result<(), TryScheduleError<F>> {
        if !self.belongs_to_current_thread() || !self.shared.quit_state().takes_posts() {
            return self.post(f).map(drop); // after a quit, it is refused
        }
        self.shared.hook().catch(type_name::<F>(), f);
        Ok(())
    }

    /// Runs a task on this loop, and then `reply` with its result on the loop of the caller.
    ///
    /// The task is dropped on this loop, and the reply on the caller's, also if the task panics or never runs. A reply
    /// is never refused because its loop is full. If the caller's loop has quit by then, its next turn drops the reply,
    /// or the reply is dropped with the loop. A result for which there is no reply any more is dropped on this loop.
    ///
    /// ```
    /// use tickwheel::message_loop::{LoopThread, MessageLoop};
    ///
    /// let looper = MessageLoop::prepare()?;
    /// let disk = LoopThread::spawn("disk")?;
    /// let load = || "a long file".len();
    /// disk.runner().post_and_reply(load, |length| {
    ///     println!("{length} bytes, on the caller's thread");
    ///     MessageLoop::current().unwrap().quit();
    /// })?;
    /// looper.run();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotBound` if the calling thread has no loop, and `Closed` if that loop is being dropped. `Closed` and `Full` as in
    /// [`post`](TaskRunner::post). Both closures come back.
    #[doc(alias = "PostTaskAndReplyWithResult")]
    pub fn post_and_reply<T, F, R>(&self, f: F, reply: R) -> Result<(), TryScheduleError<(F, R)>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
        R: FnOnce(T) + Send + 'static,
    {
        match LocalTaskRunner::current() {
            Ok(own) => own.post_and_reply(self, f, reply),
            Err(NotBound) => Err(TryScheduleError::new(ScheduleError::NotBound, (f, reply))),
        }
    }

    fn post_once<F: FnOnce() + Send + 'static>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        f: F,
    ) -> Given<F> {
        self.shared.post(deadline, nests, Origin::Program, Once::new(f)).map_err(Once::refused)
    }

    // ----- the loop ------------------------------------------------------------------------

    /// Returns true if this is the loop's thread, and the loop is still there.
    #[doc(alias = "RunsTasksInCurrentSequence")]
    pub fn belongs_to_current_thread(&self) -> bool {
        turn::if_current(&self.shared).is_some()
    }

    /// Makes the loop take a turn without a task, from any thread: its pump's wait ends, the idle handlers are called once
    /// more, and each run looks whether it was told to quit. Several wakes before that turn count as one.
    ///
    /// | the loop | a wake |
    /// | --- | --- |
    /// | waits | ends the wait; also the waker of [`wake_with`](super::LoopBuilder::wake_with) is woken |
    /// | is in a turn, with a task or an idle handler | is not lost: the loop takes one more turn before it waits; a hand-driven [`turn`](super::MessageLoop::turn) calls the idle handlers again before it returns |
    /// | is in a nested run | the innermost run takes the turn |
    /// | does not run | counts for the next [`run`](super::MessageLoop::run) or [`turn`](super::MessageLoop::turn) |
    /// | was told to quit, or is gone | changes nothing; no idle handler is called any more |
    ///
    /// An idle handler that wakes its own loop is called again and again, and the loop does not rest.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tickwheel::message_loop::MessageLoop;
    ///
    /// let looper = MessageLoop::prepare()?;
    /// let is_ready = Arc::new(AtomicBool::new(false));
    /// let (runner, ready) = (looper.runner(), Arc::clone(&is_ready));
    /// // It polls something that does not know of the loop, once each time that the loop is about to wait.
    /// looper.add_idle_handler(move || {
    ///     if ready.load(Ordering::Acquire) {
    ///         MessageLoop::current().unwrap().quit();
    ///     }
    /// });
    /// std::thread::spawn(move || {
    ///     is_ready.store(true, Ordering::Release);
    ///     runner.wake();
    /// });
    /// looper.run();
    /// # Ok::<(), tickwheel::message_loop::AlreadyBound>(())
    /// ```
    #[doc(alias = "ScheduleWork")]
    #[doc(alias = "nativeWake")]
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Ends the loop for good, with all its runs. From now on posts are refused.
    ///
    /// If the loop's own thread calls this, no further task starts. If another thread calls it, the immediate tasks
    /// that were posted before still run.
    pub fn quit(&self) {
        let is_here = self.belongs_to_current_thread();
        self.shared.quit(if is_here { Quit::Now } else { Quit::ImmediateOnly });
    }

    /// Ends the loop for good once all that is due at this moment has run, including delayed tasks. From now on posts
    /// are refused.
    ///
    /// A series that lags behind runs once more, because each run becomes possible only when the one before has ended.
    #[doc(alias = "quitSafely")]
    pub fn quit_safely(&self) {
        self.shared.quit(Quit::Safely(self.shared.now()));
    }

    /// Ends the loop for good as soon as nothing is due. Until then posts are taken.
    pub fn quit_when_idle(&self) {
        self.shared.quit(Quit::WhenIdle);
    }
}

/// How both kinds of runners post.
impl Layer for Arc<Shared> {
    fn present(&self) -> Instant {
        self.now()
    }

    fn take_in<W: Work<Output = ()>>(&self, deadline: Option<Instant>, work: W) -> Taken<W> {
        self.post(deadline, true, Origin::Program, work)
    }

    fn drop_refused<F>(&self, refused: TryScheduleError<F>) -> ScheduleError {
        let reason = refused.reason();
        self.catch(|| drop(refused)); // a destructor is a user's code
        reason
    }
}

impl Schedule for TaskRunner {
    schedule_boxes_by_name!();

    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn schedule_named(&self, name: &'static str, request: Request) -> Scheduled {
        self.shared.take_request(name, request)
    }
}

/// Runs the tasks of a scheduler on the loop, in the order in which they are handed over.
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
    /// Posts the task. A loop that takes no posts any more refuses it [for good](Rejected::for_good): the scheduler
    /// keeps the task, returns it when it is closed, and does not ask this executor again. A loop takes no posts once
    /// [`quit`](TaskRunner::quit) or [`quit_safely`](TaskRunner::quit_safely) was called, after
    /// [`quit_when_idle`](TaskRunner::quit_when_idle) once it has stopped, and when it is gone.
    ///
    /// A loop that is [full](super::LoopBuilder::max_pending) refuses the task for now.
    ///
    /// The calling thread is never held back, because most often it is a tick thread.
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let posted = self.shared.post(None, true, Origin::Scheduler, task).map(drop);
        posted.map_err(|(reason, task)| match (reason, self.shared.quit_state()) {
            (ScheduleError::Closed, Quit::Now) => Rejected::for_good(task),
            (ScheduleError::Closed, _) => {
                Rejected::finishing(task, self.belongs_to_current_thread())
            }
            _ => Rejected::new(task),
        })
    }
}
