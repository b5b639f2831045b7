//! A future without a runtime: [`block_on`].

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll};

use crate::Sleeper;

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
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let sleeper = Sleeper::new();
    let waker = sleeper.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        sleeper.sleep();
    }
}
