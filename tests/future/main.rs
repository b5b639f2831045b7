//! `time` and `future`: sleeps, timeouts, intervals, calls, and async code in virtual time.

#[path = "../common/mod.rs"]
mod common;

mod alarms;
mod block_on;
mod calls;
mod elsewhere;
mod faults;
mod in_force;
mod pressure;
mod storms;
mod time;
mod wakers;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::told::Poller;
use tickwheel::Scheduler;
use tickwheel::time::Sleep;

fn close(scheduler: &Scheduler) {
    assert!(scheduler.close().expect("nobody turns it").is_empty());
}

/// Returns a sleep that the task has polled, and that is not ready.
#[track_caller]
fn waiting(scheduler: &Scheduler, task: &Poller, time: Duration) -> Sleep {
    let mut sleep = scheduler.sleep(time);
    assert!(task.poll(&mut sleep).is_pending());
    sleep
}

/// A waker that calls a closure.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(does: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(does)))
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}
