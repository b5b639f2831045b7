//! Runs tasks in the `tracing` spans in which they were scheduled.

use tracing::Span;

use super::context::ContextCapture;

/// Runs tasks in the [`tracing`] span in which they were scheduled. It needs the feature `tracing`.
///
/// ```
/// use tickwheel::rx::{ContextAwareScheduler, ExecutorScheduler, TracingSpans};
/// use tickwheel::{Scheduler, ThreadPool};
///
/// let timers = Scheduler::new();
/// let plain = ExecutorScheduler::new(ThreadPool::new(2), &timers);
/// let worker = ContextAwareScheduler::new(plain, TracingSpans).worker();
/// let request = tracing::info_span!("request", id = 7);
/// let _in_it = request.enter();
/// worker.schedule(|| tracing::info!("in the span of the request"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingSpans;

/// No thread is in more spans.
const DEEPEST: usize = 1000;

/// The spans that a thread is in, for [`TracingSpans`]. The outermost is first.
#[derive(Clone, Debug, Default)]
pub struct Spans(Vec<Span>);

impl ContextCapture for TracingSpans {
    type Context = Spans;

    fn capture(&self) -> Spans {
        let span = Span::current();
        Spans(if span.is_none() { Vec::new() } else { vec![span] })
    }

    /// Leaves the spans of the thread and enters the new ones. A task that was scheduled outside of any span runs in
    /// none.
    fn replace(&self, Spans(new): Spans) -> Spans {
        let mut old = Vec::new();
        // A subscriber that does not track the current span would keep this loop going for ever.
        while old.len() < DEEPEST {
            let span = Span::current();
            if span.with_subscriber(|(id, subscriber)| subscriber.exit(id)).is_none() {
                break;
            }
            old.push(span);
        }
        old.reverse();
        for span in &new {
            span.with_subscriber(|(id, subscriber)| {
                subscriber.enter(id);
                // If this thread has another subscriber, the way back would not find the span.
                if Span::current() != *span {
                    subscriber.exit(id);
                }
            });
        }
        Spans(old)
    }
}
