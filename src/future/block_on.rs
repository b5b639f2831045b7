//! A future without a runtime: [`block_on`].

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll};

use crate::executor::deadlock::Blocking;

/// Polls a future on the calling thread until it is ready; the thread sleeps in between.
///
/// For programs without a runtime, and for tests. It drives nothing else: the futures of this crate need
/// nothing else, those of a runtime need that runtime.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::future::block_on;
///
/// let scheduler = Scheduler::new();
/// block_on(scheduler.sleep(Duration::from_millis(5)))?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
///
/// # Panics
///
/// In a task that runs on the tick thread (by [`Inline`](crate::Inline)) or inside a [`Driver`](crate::Driver)'s turn,
/// if the future waits for a timer of that very scheduler, and for nothing else: the timer is served by the thread
/// that waits here, so the wait would never end. A future that others wake as well is waited for, also if it has such
/// a timer as its timeout; that timeout does not ring while the thread is blocked. A
/// [`ScheduledFuture`](crate::pool::ScheduledFuture) tells such a deadlock when it is
/// [joined](crate::pool::ScheduledFuture::join), not here.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let blocking = Blocking::new();
    let mut context = Context::from_waker(blocking.waker());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        assert!(
            blocking.sleep(),
            "`block_on` waits for a timer of the scheduler whose thread it blocks, and would wait for ever: schedule \
             what is to follow in place of waiting for it, or run the task on an executor with threads, such as \
             `ThreadPool`"
        );
    }
}
