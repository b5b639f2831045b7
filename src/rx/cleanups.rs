//! What is to be done at the end of a task, attached when the task is scheduled already: [`Cleanups`].
//!
//! A task ends when its closure is dropped: after its run or the last run of a series, after a panic, by a cancel, or with
//! whatever held it. So the closure owns the list, and every scheduler and layer does its part by dropping the closure.
//! None of them has a field or an instruction for this.

use std::sync::{Arc, Mutex};

use super::timer::RunOrDrop;
use crate::platform::impls::impl_debug;
use crate::platform::panics::FirstPanic;
use crate::platform::sync::lock_std;

/// What is to be done at the end of one task: to release, delete or cancel something. It may be added at any time, also
/// when the task is scheduled, runs or has ended.
///
/// [`of`](Cleanups::of) wraps the closure of a task, and [`of_series`](Cleanups::of_series) that of a series. The closure
/// that comes back goes to any scheduler, worker, pool or loop. Its end is the end of the task, in whatever way that comes:
/// it has run, has panicked, was cancelled, or was dropped with a scheduler that ended. A closure that is refused and comes
/// back has not ended.
///
/// Clean-ups run once, in the order in which they were added, on the thread that drops the closure: the one that has run
/// it, or the one that has cancelled it, before [`cancel`](crate::Cancellable::cancel) returns. Whatever the closure
/// captured is dropped before. A panic of one does not keep the others from running, and then counts as a panic of a
/// captured value's `Drop`. It is ignored if the task itself has panicked.
///
/// Clones are handles to the same list. Dropping them takes no clean-up back.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::rx::Cleanups;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let minute = Duration::from_secs(60);
/// let (request, cleanups) = Cleanups::of(|| println!("sent"));
/// let request = scheduler.schedule_once(minute, request)?;
/// // Later on there is more that belongs to the request. It goes when the request has been sent, or is cancelled.
/// let watchdog = scheduler.schedule_once(2 * minute, || println!("not sent"))?;
/// let watched = watchdog.clone();
/// cleanups.add(move || _ = watched.cancel());
/// assert!(request.cancel());
/// assert!(watchdog.is_cancelled() && cleanups.has_ended());
/// # driver.advance(2 * minute);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ScheduledAction")]
#[derive(Clone)]
pub struct Cleanups {
    /// `None` once the task has ended.
    list: Arc<Mutex<Option<Vec<Cleanup>>>>,
}

type Cleanup = Box<dyn FnOnce() + Send>;

impl Cleanups {
    /// Wraps the closure of a task. Returns the closure to schedule, and the list of its clean-ups.
    pub fn of<T>(task: impl FnOnce() -> T) -> (impl FnOnce() -> T, Cleanups) {
        let (with_end, cleanups) = Cleanups::with_end(task);
        let run = move || {
            let with_end = with_end; // the closure owns both in one piece
            let (task, end) = with_end;
            let result = task();
            drop(end);
            result
        };
        (run, cleanups)
    }

    /// Wraps the closure of a series, which ends after its last run. Returns the closure to schedule, and the list of its
    /// clean-ups.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// use tickwheel::pool::ScheduledThreadPool;
    /// use tickwheel::rx::Cleanups;
    ///
    /// let mut left = 3;
    /// let (countdown, cleanups) = Cleanups::of_series(move || {
    ///     left -= 1;
    ///     if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// });
    /// let (sender, ended) = std::sync::mpsc::channel();
    /// cleanups.add(move || sender.send("ended").unwrap());
    /// let pool = ScheduledThreadPool::new(1);
    /// pool.schedule_at_fixed_rate(Duration::ZERO, Duration::from_millis(1), countdown)?.join()?;
    /// assert_eq!(ended.recv()?, "ended");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_series<R>(series: impl FnMut() -> R) -> (impl FnMut() -> R, Cleanups) {
        let (mut with_end, cleanups) = Cleanups::with_end(series);
        let run = move || {
            let with_end = &mut with_end; // the closure owns both in one piece
            (with_end.0)()
        };
        (run, cleanups)
    }

    /// Adds a clean-up. If the task has ended, it runs here and now, and its panic is the caller's.
    ///
    /// It may run at the same time as others that the end of the task runs on another thread.
    pub fn add(&self, cleanup: impl FnOnce() + Send + 'static) {
        if let Some(list) = &mut *lock_std(&self.list) {
            return list.push(Box::new(cleanup));
        }
        cleanup();
    }

    /// Returns true if the task has ended: its clean-ups have run, or are about to.
    pub fn has_ended(&self) -> bool {
        lock_std(&self.list).is_none()
    }

    /// Returns a closure with what its drop runs, which is dropped after it.
    fn with_end<F>(task: F) -> ((F, impl Sized), Cleanups) {
        let cleanups = Cleanups { list: Arc::new(Mutex::new(Some(Vec::new()))) };
        let ended = cleanups.clone();
        let end = RunOrDrop::new(move |_| {
            let list = lock_std(&ended.list).take();
            let mut panics = FirstPanic::default();
            list.into_iter().flatten().for_each(|cleanup| _ = panics.catch(cleanup));
            panics.resume(); // now that all have run
        });
        ((task, end), cleanups)
    }
}

impl_debug!(Cleanups, self, has_ended: self.has_ended());
