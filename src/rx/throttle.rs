//! [`throttle`]: a closure that runs at most once in a period.

use std::sync::Arc;
use std::time::Duration;

use super::rate::{Pace, Paced, callable};
use crate::Schedule;

/// Returns a callable that runs `f` at most once in `period`: with the first value at once, and later with the last
/// value by then.
///
/// It is for a steady stream: draw the progress of a download ten times a second, send the position of a player, write
/// a checkpoint. If only the end of a burst matters, take [`debounce`](crate::rx::debounce). If `f` should wait for the
/// end of the period for the first value too, take `debounce` with a
/// [`max_wait`](crate::rx::Debounced::max_wait).
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{Scheduler, rx};
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let (sender, drawn) = mpsc::channel();
/// let period = Duration::from_millis(100);
/// let draw = rx::throttle(scheduler, period, move |percent| sender.send(percent).unwrap());
///
/// for percent in 0..=25 {
///     draw.call(percent)?;
///     driver.advance(Duration::from_millis(10));
/// }
/// driver.advance(period);
/// assert!(drawn.try_iter().eq([0, 9, 19, 25])); // at 0, 100, 200 and 300 ms
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What it promises
///
/// - `f` runs on the schedule, not in [`call`](Throttled::call). There are two exceptions: a worker on an inline
///   executor runs a value that is due at once in the call, as it does with every task, and a call whose timer is refused
///   runs a value that has replaced its own meanwhile.
/// - Runs of `f` never overlap, also on a pool, and it gets the values in the order of the calls, without those that a later
///   one has replaced.
/// - A run starts not before `period` has passed since the start of the run before. There are two exceptions:
///   [`flush`](Throttled::flush), and a schedule that is closed or full at the moment when `f` would have to wait for
///   the rest. Then the value runs at once, so that it is not lost.
/// - A value that was accepted runs, unless a later one replaces it or [`cancel`](Throttled::cancel) drops it. So the
///   last value of a burst always runs. Dropping the callable cancels nothing: the pending value still runs.
/// - When the schedule is closed, the pending value is among its leftovers, as a task with the name of `f`. The leftover
///   runs `f` with the last value. If the leftover, or the task in an executor, is dropped instead, the value stays in
///   the callable: [`flush`](Throttled::flush) runs it, and the next accepted call schedules it again.
/// - A panic in `f` is the panic of a task, and is reported as such. The callable works on afterwards.
/// - It keeps at most one timer in its schedule, however often it is called. While one is set, a call costs a reading
///   of the clock and an uncontended lock, and allocates nothing.
///
/// `f` may call the callable. A callable that `f` owns keeps itself alive, as an [`Arc`] does that contains itself.
#[doc(alias("throttleLatest", "sample", "throttleLast", "auditTime", "rate limit"))]
pub fn throttle<T: Send + 'static>(
    schedule: impl Schedule + 'static,
    period: Duration,
    f: impl FnMut(T) + Send + 'static,
) -> Throttled<T> {
    Throttled { paced: Paced::new(schedule, Pace::Period(period), f) }
}

/// A callable that runs its closure at most once in a period: see [`throttle`]. A [flush](Throttled::flush) begins a period,
/// and a [cancel](Throttled::cancel) leaves it as it is.
///
/// Clones are the same callable.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{Scheduler, rx};
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let (sender, drawn) = mpsc::channel();
/// let draw = rx::throttle(scheduler, Duration::from_secs(1), move |n| sender.send(n).unwrap());
/// draw.call(99)?;
/// driver.turn();
/// draw.call(100)?;
/// assert!(draw.is_pending() && draw.flush());
/// draw.call(101)?;
/// assert!(draw.cancel() && !draw.cancel());
/// assert_eq!(driver.advance(Duration::from_secs(1)), 0);
/// assert!(drawn.try_iter().eq([99, 100]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Throttled<T> {
    paced: Arc<Paced<T>>,
}

callable!(Throttled);
