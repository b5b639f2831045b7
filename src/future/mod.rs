//! Async code without a runtime: [`block_on`], calls with a result, and time as methods of streams.
//!
//! Sleeps, timeouts and intervals are in [`time`](crate::time).
//!
//! | I want to | use |
//! | --- | --- |
//! | run a future on this thread, without a runtime | [`block_on`] |
//! | call a closure later, and await its result | [`Scheduler::call_after`] |
//! | limit the silence, the rate or the gathering of a stream | `StreamTimeExt`, with the feature `futures-core` |
//! | wait, limit a future, or tick | [`time`](crate::time) |
//!
//! # In async code
//!
//! A task must not put its runtime's thread to sleep, because the other tasks of that thread would wait too:
//!
//! | call that may sleep | await instead |
//! | --- | --- |
//! | [`close`](Scheduler::close), [`close_and_run`](Scheduler::close_and_run): up to [`shutdown_timeout`](crate::Builder::shutdown_timeout), by default 5 s | [`stop`](Scheduler::stop)`().await`, and [`run_all`](crate::Leftovers::run_all) |
//! | [`schedule_once`](Scheduler::schedule_once) and whatever else schedules a closure: up to 100 ms, [under overload](crate#under-overload) | [`sleep`](crate::time::sleep()) in a task, unless the closure must run even if nobody waits |
//! | [`ScheduledFuture::join`](crate::pool::ScheduledFuture::join), [`Stopping::wait`](crate::Stopping::wait) | the future itself |
//! | [`DelayQueue::recv`](crate::delay::DelayQueue::recv) | [`next`](crate::delay::DelayQueue::next), [`stream`](crate::delay::DelayQueue::stream) |
//! | [`DelayedWorkQueue::take`](crate::pool::DelayedWorkQueue::take) | a `DelayQueue` |
//! | [`await_termination`](Scheduler::await_termination), [`LoopThread::join`](crate::message_loop::LoopThread::join) | a thread for blocking calls, such as that of tokio's `spawn_blocking` |
//! | [`block_on`] | the future itself |
//!
//! The futures of this crate never sleep in a poll.

mod call;
#[cfg(feature = "futures-core")]
mod fused;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "futures-core")]
mod stream;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll};

#[cfg(feature = "futures-core")]
pub use stream::{ChunksTimeout, StreamTimeExt, StreamTimeout, Throttle};

#[cfg(doc)]
use crate::Scheduler;
use crate::executor::deadlock::Blocking;
use crate::scheduler::in_force;

/// Polls a future on the calling thread until it is ready. The thread sleeps in between.
///
/// It is for programs without a runtime, and for tests. It drives nothing else: the futures of this crate need nothing
/// else, but those of a runtime need that runtime. If time is [paused](crate::time::pause) on this thread, it moves to the
/// next deadline whenever the future waits.
///
/// ```
/// use tickwheel::future::block_on;
/// use tickwheel::time::{self, Duration};
///
/// block_on(time::sleep(Duration::from_millis(5)));
/// ```
///
/// # Panics
///
/// If the future waits for nothing but a timer of a scheduler that the calling thread serves, because it is in a task
/// on the scheduler's tick thread (by [`Inline`](crate::Inline)) or in a turn of its [`Driver`](crate::Driver). Such a
/// wait would never end.
///
/// If another thread may wake the future as well, `block_on` waits. So it does if the timers have wakers of a combinator, as in
/// `FuturesUnordered`: nobody sees whom those wake. A timer that serves as the timeout of this future
/// does not ring while the thread is blocked. A [`ScheduledFuture`](crate::pool::ScheduledFuture) reports a deadlock
/// when it is [joined](crate::pool::ScheduledFuture::join), not here. A [`Stopping`](crate::Stopping) and a
/// [`DelayQueue`](crate::delay::DelayQueue) notice such a wait in their methods that block, not here.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let blocking = Blocking::new();
    let mut context = Context::from_waker(&blocking.own_timers.waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        while !blocking.sleeper.is_woken() && in_force::jump_when_idle() {}
        assert!(
            blocking.sleep(),
            "`block_on` waits for a timer of the scheduler whose thread it blocks, and would wait for ever: schedule \
             what is to follow in place of waiting for it, or run the task on an executor with threads, such as \
             `ThreadPool`"
        );
    }
}
