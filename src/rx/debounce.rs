//! [`debounce`]: a closure that runs once its calls have stopped for a while.

use std::sync::Arc;
use std::time::Duration;

use super::rate::{Pace, Paced, callable};
use crate::Schedule;

/// Returns a callable that runs `f` with the last value, when no value has come for `quiet`.
///
/// It is for the end of a burst: save a document when nobody types any more, search when the query stands still, reload
/// when the last of a hundred files has changed. If `f` should also run while values keep coming, take
/// [`throttle`](crate::rx::throttle), or set a [`max_wait`](Debounced::max_wait).
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{Scheduler, rx};
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let (sender, searches) = mpsc::channel();
/// let quiet = Duration::from_millis(300);
/// let search = rx::debounce(scheduler, quiet, move |query| sender.send(query).unwrap());
///
/// for query in ["t", "ti", "tick"] {
///     search.call(query)?;
///     driver.advance(Duration::from_millis(100));
/// }
/// assert!(searches.try_recv().is_err(), "200 ms more");
/// driver.advance(Duration::from_millis(200));
/// assert!(searches.try_iter().eq(["tick"]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What it promises
///
/// - `f` runs on the schedule, not in [`call`](Debounced::call). There are two exceptions: a worker on an inline
///   executor runs a value that is due at once in the call, as it does with every task, and a call whose timer is refused
///   runs a value that has replaced its own meanwhile.
/// - Runs of `f` never overlap, also on a pool, and it gets the values in the order of the calls, without those that a later
///   one has replaced.
/// - It never runs before the values have stopped for `quiet`, or for
///   [`max_wait`](Debounced::max_wait). There are two exceptions: [`flush`](Debounced::flush), and a schedule that is
///   closed or full at the moment when `f` would have to wait for the rest. Then the value runs at once, so that it is
///   not lost.
/// - A value that was accepted runs, unless a later one replaces it or [`cancel`](Debounced::cancel) drops it. Dropping
///   the callable cancels nothing: the pending value still runs.
/// - When the schedule is closed, the pending value is among its leftovers, as a task with the name of `f`. The leftover
///   runs `f` with the last value. If the leftover, or the task in an executor, is dropped instead, the value stays in
///   the callable: [`flush`](Debounced::flush) runs it, and the next accepted call schedules it again.
/// - A panic in `f` is the panic of a task, and is reported as such. The callable works on afterwards.
/// - It keeps at most one timer in its schedule, however often it is called. While one is set, a call costs a reading
///   of the clock and an uncontended lock, and allocates nothing.
///
/// `f` may call the callable. A callable that `f` owns keeps itself alive, as an [`Arc`] does that contains itself.
#[doc(alias("throttleWithTimeout", "switch", "auditTime", "sample", "throttleLast"))]
pub fn debounce<T: Send + 'static>(
    schedule: impl Schedule + 'static,
    quiet: Duration,
    f: impl FnMut(T) + Send + 'static,
) -> Debounced<T> {
    Debounced { paced: Paced::new(schedule, Pace::Quiet(quiet), f) }
}

/// A callable that runs its closure once its calls have stopped for a while: see [`debounce`].
///
/// Clones are the same callable.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{ScheduleError, Scheduler, rx};
///
/// let scheduler = Scheduler::new();
/// let (sender, saved) = mpsc::channel();
/// let hour = Duration::from_secs(3600);
/// let save = rx::debounce(scheduler.clone(), hour, move |text| sender.send(text).unwrap());
/// save.call("a draft")?;
/// assert!(save.is_pending() && save.flush()); // at once, on this thread
/// assert_eq!(saved.try_recv()?, "a draft");
/// save.call("a mistake")?;
/// assert!(save.cancel() && !save.cancel());
/// assert_eq!(scheduler.pending(), 0, "the timers are cancelled");
/// scheduler.close()?;
/// let refused = save.call("the last words").unwrap_err();
/// assert_eq!(refused.reason(), ScheduleError::Closed);
/// assert_eq!(refused.into_task(), "the last words");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Debounced<T> {
    paced: Arc<Paced<T>>,
}

impl<T: Send + 'static> Debounced<T> {
    /// Runs `f` after at most `longest`, counted from the first call after a run, also if the calls do not stop.
    ///
    /// It counts for all clones, from the next call on at which no value is pending. With a `longest` that is not longer
    /// than the quiet time, `f` runs `longest` after the first call, with the last value by then. Others call that
    /// *audit*, *sample* or *`throttleLast`*.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use tickwheel::{Scheduler, rx};
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let (sender, saves) = mpsc::channel();
    /// let second = Duration::from_secs(1);
    /// let save = rx::debounce(scheduler, second, move |line| sender.send(line).unwrap());
    /// let save = save.max_wait(10 * second);
    /// for line in 1..=40 {
    ///     save.call(line)?;
    ///     driver.advance(second / 2); // it is never quiet
    /// }
    /// assert!(saves.try_iter().eq([20, 40]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "maxWait")]
    #[must_use = "it returns the callable"]
    pub fn max_wait(self, longest: Duration) -> Debounced<T> {
        self.paced.set_max_wait(longest);
        self
    }
}

callable!(Debounced);
