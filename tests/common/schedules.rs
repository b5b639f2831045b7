//! Schedules for layers that need nothing but tasks: one that is made of closures, and one whose tasks a test runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickwheel::{
    Cancel, Cancellable, Clock, DueTask, Executor, Inline, ManualClock, Period, Rejected,
    RepeatingTask, Schedule, ScheduleError, Task,
};

/// When a task is to run.
#[derive(Clone, Copy)]
pub(crate) enum Due {
    After(Duration),
    At(Instant),
}

impl Due {
    /// Schedules the task on another schedule, for the same time.
    pub(crate) fn on(
        self,
        schedule: &dyn Schedule,
        task: Task,
    ) -> Result<Cancellable, ScheduleError> {
        match self {
            Due::After(delay) => schedule.schedule_task(delay, task),
            Due::At(deadline) => schedule.schedule_task_at(deadline, task),
        }
    }
}

/// A schedule made of two closures: one reads the clock, and one takes the tasks. As an executor it is [`Inline`].
pub(crate) struct TasksOnly<N, T> {
    now: N,
    take: T,
}

impl<N, T> TasksOnly<N, T>
where
    N: Fn() -> Instant + Send + Sync + 'static,
    T: Fn(Due, Task) -> Result<Cancellable, ScheduleError> + Send + Sync + 'static,
{
    pub(crate) fn new(now: N, take: T) -> TasksOnly<N, T> {
        TasksOnly { now, take }
    }
}

impl<N, T> Schedule for TasksOnly<N, T>
where
    N: Fn() -> Instant + Send + Sync,
    T: Fn(Due, Task) -> Result<Cancellable, ScheduleError> + Send + Sync,
{
    fn now(&self) -> Instant {
        (self.now)()
    }
    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        (self.take)(Due::After(delay), task)
    }
    fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
        (self.take)(Due::At(at), task)
    }
    fn schedule_series(
        &self,
        _: Duration,
        _: Period,
        _: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        unreachable!("a layer keeps its series itself")
    }
}

impl<N, T> Executor for TasksOnly<N, T>
where
    N: Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        Inline.execute(task)
    }
}

/// Returns a schedule over `timers` that puts each handle into a wrapper.
pub(crate) fn wrapping<C: Cancel>(
    timers: &(impl Schedule + Clone + 'static),
    wrap: impl Fn(Cancellable) -> C + Send + Sync + 'static,
) -> impl Schedule + 'static {
    let (clock, timers) = (timers.clone(), timers.clone());
    let take = move |due: Due, task| -> Result<Cancellable, ScheduleError> {
        Ok(Cancellable::from(Arc::new(wrap(due.on(&timers, task)?))))
    };
    TasksOnly::new(move || clock.now(), take)
}

/// A handle that knows no reset.
pub(crate) struct Fixed(pub(crate) Cancellable);

impl Cancel for Fixed {
    fn cancel(&self) -> bool {
        self.0.cancel()
    }
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
    fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

/// A handle that cancels nothing, and calls this when it is dropped.
pub(crate) struct OnDrop(pub(crate) Box<dyn Fn() + Send + Sync>);

impl Cancel for OnDrop {
    fn cancel(&self) -> bool {
        false
    }
    fn is_cancelled(&self) -> bool {
        false
    }
    fn is_done(&self) -> bool {
        false
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0();
    }
}

/// A schedule whose tasks run when the test says so. A pool would run them on several threads, in any order. Here they
/// run inside of each other, which is the same to a layer. Clones are the same schedule.
#[derive(Clone, Default)]
pub(crate) struct ByHand(Arc<Hand>);

#[derive(Default)]
struct Hand {
    clock: ManualClock,
    tasks: Mutex<Vec<Task>>,
    /// Called, once each, when a task is scheduled: before it is taken in, or instead.
    next: Mutex<Vec<Answer>>,
    /// Called once, after a reading of the clock and before it is returned.
    after_reading: Mutex<Option<Task>>,
    /// How many of its tasks somebody tried to cancel.
    cancels: Arc<AtomicUsize>,
}

type Answer = Box<dyn FnOnce(Task) -> Result<Option<Task>, ScheduleError> + Send>;

impl ByHand {
    /// Returns the schedule for a layer.
    pub(crate) fn timers(&self) -> impl Schedule + Executor + 'static {
        let (clock, hand) = (self.clone(), self.clone());
        TasksOnly::new(move || clock.now(), move |_, task| hand.take_in(task))
    }

    pub(crate) fn now(&self) -> Instant {
        let now = self.0.clock.now();
        let then = self.0.after_reading.lock().expect("whole").take();
        then.into_iter().for_each(|then| then());
        now
    }

    fn take_in(&self, task: Task) -> Result<Cancellable, ScheduleError> {
        let answer = self.0.next.lock().expect("whole").pop();
        let kept = match answer {
            Some(answer) => answer(task)?,
            None => Some(task),
        };
        self.0.tasks.lock().expect("whole").extend(kept);
        Ok(Cancellable::from(Arc::new(Nothing(Arc::clone(&self.0.cancels)))))
    }

    /// Moves the clock, and runs nothing.
    pub(crate) fn advance(&self, time: Duration) {
        self.0.clock.advance(time);
    }

    pub(crate) fn run_oldest(&self) {
        let task = self.0.tasks.lock().expect("whole").remove(0);
        task();
    }

    pub(crate) fn run_oldest_after(&self, time: Duration) {
        self.advance(time);
        self.run_oldest();
    }

    /// Returns the tasks that wait, the oldest first. The schedule forgets them.
    pub(crate) fn take(&self) -> Vec<Task> {
        std::mem::take(&mut *self.0.tasks.lock().expect("whole"))
    }

    /// Returns the number of tasks that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.tasks.lock().expect("whole").len()
    }

    pub(crate) fn cancels(&self) -> usize {
        self.0.cancels.load(Ordering::Relaxed)
    }

    pub(crate) fn answer_next(
        &self,
        answer: impl FnOnce(Task) -> Result<Option<Task>, ScheduleError> + Send + 'static,
    ) {
        self.0.next.lock().expect("whole").push(Box::new(answer));
    }

    pub(crate) fn refuse_next(&self, reason: ScheduleError) {
        self.answer_next(move |_| Err(reason));
    }

    pub(crate) fn after_next_reading(&self, then: impl FnOnce() + Send + 'static) {
        *self.0.after_reading.lock().expect("whole") = Some(Box::new(then));
    }
}

/// A handle that cancels nothing, as that of a simple schedule may be.
struct Nothing(Arc<AtomicUsize>);

impl Cancel for Nothing {
    fn cancel(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
    fn is_cancelled(&self) -> bool {
        false
    }
    fn is_done(&self) -> bool {
        false
    }
}
