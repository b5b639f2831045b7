//! Workers on one thread: [`SingleThreadScheduler`], [`single`] and [`new_thread`].

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::scheduler::ExecutorScheduler;
use super::shared_queue::SharedQueue;
use super::worker::Worker;
use crate::backpressure::PendingLimit;
use crate::platform::impls::impl_debug;
use crate::{Clock, PanicHook, Scheduler, SystemClock, TaskPanic, ThreadPool};

/// Gives out workers that run their tasks on one thread of its own, in one order for all of them.
///
/// Of all tasks of its workers, the one with the earliest deadline runs first, and of equal deadlines the one that was
/// scheduled first. A task without a delay, or for a time that has passed, is due when it is scheduled. Deadlines are exact,
/// because the thread itself keeps the time. Disposing one worker cancels the tasks of that worker alone.
///
/// Clones are handles to the same thread, and so are the workers. The thread ends when all of them are dropped and what was
/// scheduled has run or was cancelled. Nothing waits for that.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::rx::SingleThreadScheduler;
///
/// let disk = SingleThreadScheduler::new("disk")?;
/// let (index, journal) = (disk.worker(), disk.worker());
/// let (sender, ran) = std::sync::mpsc::channel();
/// let write = |number: u32| {
///     let sender = sender.clone();
///     move || sender.send((number, std::thread::current().name().map(String::from))).unwrap()
/// };
/// index.schedule(write(1));
/// journal.schedule(write(2));
/// index.schedule_after(Duration::from_millis(150), write(4));
/// journal.schedule_after(Duration::from_millis(50), write(3));
/// for number in 1..=4 {
///     assert_eq!(ran.recv()?, (number, Some("disk".into())), "two workers, one order");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "SingleScheduler")]
#[derive(Clone)]
pub struct SingleThreadScheduler {
    queue: Arc<SharedQueue>,
    hook: PanicHook,
    max_pending: Option<usize>,
}

impl SingleThreadScheduler {
    /// Starts a thread of this name.
    ///
    /// # Errors
    ///
    /// The error of the system if it does not start the thread.
    pub fn new(name: impl Into<String>) -> io::Result<SingleThreadScheduler> {
        SingleThreadScheduler::with_clock(name, SystemClock)
    }

    /// Starts a thread of this name, which keeps its time by this clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::ManualClock;
    /// use tickwheel::rx::SingleThreadScheduler;
    ///
    /// let clock = ManualClock::new();
    /// let worker = SingleThreadScheduler::with_clock("virtual", clock.clone())?.worker();
    /// let (sender, ran) = std::sync::mpsc::channel();
    /// worker.schedule_after(Duration::from_secs(3600), move || sender.send("an hour").unwrap());
    /// clock.advance(Duration::from_secs(3600));
    /// assert_eq!(ran.recv()?, "an hour");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the system if it does not start the thread.
    pub fn with_clock(
        name: impl Into<String>,
        clock: impl Clock,
    ) -> io::Result<SingleThreadScheduler> {
        let name = name.into().replace('\0', ""); // std panics if a name contains a NUL
        let queue = SharedQueue::of_a_thread(name, Arc::new(clock))?;
        Ok(SingleThreadScheduler { queue, hook: PanicHook::default(), max_pending: None })
    }

    /// Sets a hook for the workers that are made from now on. It is called with each panic of a task, and of the `Drop` of
    /// a captured value.
    #[must_use]
    pub fn on_panic(
        self,
        hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static,
    ) -> SingleThreadScheduler {
        SingleThreadScheduler { hook: PanicHook::new(hook), ..self }
    }

    /// Limits each worker that is made from now on, as [`ExecutorScheduler::max_pending`] does.
    #[must_use]
    pub fn max_pending(self, tasks: usize) -> SingleThreadScheduler {
        SingleThreadScheduler { max_pending: Some(tasks), ..self }
    }

    /// Returns a new worker. It costs an allocation, and no thread.
    #[doc(alias = "createWorker")]
    pub fn worker(&self) -> Worker {
        let limit = PendingLimit::new(self.max_pending);
        Worker::at(self.queue.member(self.hook.clone(), limit))
    }
}

impl_debug!(SingleThreadScheduler, self, max_pending: self.max_pending);

/// Returns a new worker on the one thread that all such workers of the process share: that of a
/// [`SingleThreadScheduler`], so they also share one order. Disposing one worker does not affect the others.
///
/// The thread is named `tickwheel-single-1`. It starts with the first call, and never ends.
///
/// # Panics
///
/// Panics if the thread cannot be started. A later call tries again.
///
/// ```
/// use std::sync::mpsc;
///
/// let (one, other) = (tickwheel::rx::single(), tickwheel::rx::single());
/// let (sender, receiver) = mpsc::channel();
/// for (number, worker) in [&one, &other, &one, &other].into_iter().enumerate() {
///     let sender = sender.clone();
///     worker.schedule(move || sender.send(number).unwrap());
/// }
/// assert!(receiver.iter().take(4).eq(0..4), "two workers, one thread, one order");
/// ```
#[doc(alias = "Schedulers.single")]
pub fn single() -> Worker {
    static SINGLE: OnceLock<SingleThreadScheduler> = OnceLock::new();
    let start =
        || SingleThreadScheduler::new("tickwheel-single-1").expect("a thread can be started");
    SINGLE.get_or_init(start).worker()
}

/// Returns a new worker on a thread of its own.
///
/// The thread starts with the first task, and ends when the worker is disposed, or when all its handles are dropped and
/// its tasks have run. It is named `tickwheel-worker1-1`, and so on. [`Scheduler::global`] keeps the delays.
///
/// # Panics
///
/// Panics if the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// let worker = tickwheel::rx::new_thread();
/// worker.schedule(move || sender.send(std::thread::current().id()).unwrap());
/// assert_ne!(receiver.recv()?, std::thread::current().id());
/// worker.dispose();
/// # Ok::<(), mpsc::RecvError>(())
/// ```
#[doc(alias = "Schedulers.newThread")]
pub fn new_thread() -> Worker {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1; // Relaxed, because only the number matters
    let pool = ThreadPool::named(1, format!("tickwheel-worker{number}"));
    ExecutorScheduler::new(pool, Scheduler::global()).worker()
}
