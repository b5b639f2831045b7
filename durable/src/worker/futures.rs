//! Async handlers: a run as a future on a runtime of the user's.
//!
//! A handler thread of the kind takes jobs and writes their starts, as for any other handler, and then hands [`Flight`]s to the
//! spawner instead of calling the handler. It takes many at once, and writes their starts in one commit. So a few threads start
//! as many runs as the kind may have at the same time.
//!
//! - FLIGHT-1 A flight ends its run once, when the handler's future has ended, was dropped, or is dropped because its time is
//!   over. So nothing that a runtime does to it leaves a run without an outcome.
//! - FLIGHT-2 A flight that is dropped before its first poll has not started its handler, and counts no attempt. A runtime
//!   that does so is gone, so the worker stops: the timers are others'.
//! - FLIGHT-3 A flight counts among the worker's threads, so a stop waits for it, unless its time is over.
//! - FLIGHT-4 The time limit counts from the first poll. Before that the run waits for the runtime as a queued one waits for a thread:
//!   its lease is extended, and the handler is not called if the run is not current any more (LEASE-3). A flight that is not
//!   polled within a time limit gives its timer back, uncounted, because nobody may ever poll it. One that was suspected is not given
//!   back (ATTEMPT-4).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::runner::{Ended, end, uncount_beside};
use super::shared::{Job, Shared};
use crate::error::StopReason;
use crate::failure::Failure;
use crate::handler::{Handler, HandlerFuture, Run, TIME_LIMIT};
use crate::panics::{caught, quietly};
use crate::sight::{self, Span};

/// Something that runs futures.
pub(super) type Spawn = dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync;

/// Hands the run of a job to the spawner of its kind. `next_jobs` has counted it.
pub(super) fn launch(shared: &Arc<Shared>, job: Job) {
    shared.state().threads += 1;
    let span = sight::span(&job.timer, shared.settings.continues.as_deref());
    let shared = Arc::clone(shared);
    let spawner = shared.spawn_of(job.kind).map(Arc::clone);
    let flight = Flight { shared, job, span, started: None, future: None };
    // Without a spawner the worker would not have started. If it panics, it has dropped the flight.
    if let Some(spawner) = spawner {
        quietly(|| spawner(Box::pin(flight)));
    }
}

/// Ends a run whose handler was not called.
fn end_uncalled(shared: &Arc<Shared>, job: &Job) {
    if job.tenure.is_suspected {
        uncount_beside(shared, &job.timer); // this may be the runtime's thread
    }
    end(shared, job, Ended::NotCalled, Duration::ZERO);
}

/// A run that a runtime polls.
struct Flight {
    shared: Arc<Shared>,
    job: Job,
    span: Span,
    /// When it was polled first.
    started: Option<Instant>,
    future: Option<HandlerFuture>,
}

impl Flight {
    /// Ends the run (FLIGHT-1).
    fn land(&mut self, ended: Ended) {
        let Some(started) = self.started else { return };
        self.drop_future();
        let took = self.shared.scheduler.now().saturating_duration_since(started);
        sight::ran(&self.job.timer, took);
        end(&self.shared, &self.job, ended, took);
    }

    fn drop_future(&mut self) {
        let future = self.future.take();
        self.span.enter(|| quietly(|| drop(future)));
    }
}

impl Future for Flight {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let flight = &mut *self;
        let (shared, job) = (&flight.shared, &flight.job);
        if flight.started.is_some() && flight.future.is_none() {
            return Poll::Ready(()); // polled again after its end
        }
        let is_first = flight.started.is_none();
        if is_first {
            flight.started = shared.has_started_late(job.kind, &job.timer, &job.tenure);
        }
        if flight.started.is_none() {
            // FLIGHT-4
            flight.started = Some(shared.scheduler.now());
            end_uncalled(shared, job);
            return Poll::Ready(());
        }
        let polled = flight.span.enter(|| {
            caught(|| {
                if is_first {
                    let Handler::Async(handle) = &shared.kinds[job.kind].handler else {
                        return Err(Failure::new("this handler is no future"));
                    };
                    let max_attempts = shared.max_attempts(job.kind, &job.timer);
                    flight.future = Some(handle(Run::new(
                        &job.timer,
                        &job.tenure,
                        max_attempts,
                        Arc::clone(shared) as _,
                    )));
                }
                if job.tenure.is_cut(context.waker()) {
                    return Err(Failure::new(TIME_LIMIT));
                }
                let Some(future) = &mut flight.future else { return Ok(Poll::Pending) };
                Ok(future.as_mut().poll(context))
            })
        });
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result,
            Err(failure) => Err(failure),
        };
        flight.land(Ended::Returned(result));
        Poll::Ready(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.started.is_none() {
            // FLIGHT-2
            end_uncalled(&self.shared, &self.job);
            self.shared.give_up(StopReason::RuntimeGone);
        } else if self.future.is_some() {
            let failure = Failure::new("its runtime has dropped the handler before it had ended");
            self.land(Ended::Returned(Err(failure)));
        }
        self.shared.has_landed(self.job.kind);
        self.shared.thread_has_ended();
    }
}
