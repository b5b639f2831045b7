//! What is told to `tracing` and `metrics`, as the [first page](crate#sight) lists it. Without these features, this
//! module does nothing.
//!
//! Subscribers and recorders are the user's code. A panic of theirs stays here, so it ends no thread of a worker.

use std::time::Duration;

use crate::error::Error;
use crate::panics::quietly;
use crate::timer::{KindCounts, Timer};

/// The span of a run. A handler that is a future enters it for each poll.
pub(crate) struct Span(#[cfg(feature = "tracing")] tracing::Span);

/// What makes the span of a run a part of the trace to which its timer belongs.
#[cfg(feature = "tracing")]
pub(crate) type Continue = dyn Fn(&str, &tracing::Span) + Send + Sync;
#[cfg(not(feature = "tracing"))]
pub(crate) type Continue = ();

pub(crate) fn span(timer: &Timer, continues: Option<&Continue>) -> Span {
    _ = (timer, continues);
    #[cfg(feature = "tracing")]
    {
        let mut span = tracing::Span::none();
        quietly(|| {
            span = tracing::info_span!(
                target: "tickwheel",
                parent: None,
                "tickwheel.timer",
                kind = timer.kind,
                key = timer.key,
                attempt = timer.attempts,
                fence = timer.fence,
                trace = timer.trace
            );
        });
        if let (Some(trace), Some(continues)) = (&timer.trace, continues) {
            quietly(|| continues(trace, &span));
        }
        Span(span)
    }
    #[cfg(not(feature = "tracing"))]
    Span()
}

impl Span {
    /// Runs a handler, or a part of it, in the span.
    #[cfg_attr(not(feature = "tracing"), expect(clippy::unused_self, reason = "there is no span"))]
    pub(crate) fn enter<R>(&self, run: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tracing")]
        let _entered = Entered::of(&self.0);
        run()
    }
}

#[cfg(feature = "tracing")]
impl Drop for Span {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, tracing::Span::none());
        quietly(|| drop(span));
    }
}

/// A span is entered, as far as its subscriber lets it be.
#[cfg(feature = "tracing")]
struct Entered<'a>(Option<tracing::span::Entered<'a>>);

#[cfg(feature = "tracing")]
impl Entered<'_> {
    fn of(span: &tracing::Span) -> Entered<'_> {
        let mut entered = None;
        quietly(|| entered = Some(span.enter()));
        Entered(entered)
    }
}

#[cfg(feature = "tracing")]
impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let entered = self.0.take();
        quietly(|| drop(entered));
    }
}

/// A claim was made.
pub(crate) fn claimed(kind: &str) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_claims_total", "kind" => kind.to_owned()).increment(1);
    });
    _ = kind;
}

/// A handler is called.
pub(crate) fn started(timer: &Timer, late: Duration) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        {
            let kind = || timer.kind.clone();
            metrics::counter!("tickwheel_durable_runs_total", "kind" => kind()).increment(1);
            metrics::histogram!("tickwheel_durable_lateness_seconds", "kind" => kind())
                .record(late.as_secs_f64());
        }
    });
    _ = (timer, late);
}

/// A handler has returned.
pub(crate) fn ran(timer: &Timer, took: Duration) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        metrics::histogram!("tickwheel_durable_run_seconds", "kind" => timer.kind.clone())
            .record(took.as_secs_f64());
    });
    _ = (timer, took);
}

/// An attempt has failed. If its timer is dead, `died` tells of that.
pub(crate) fn failed(timer: &Timer, reason: &str, is_dead: bool) {
    quietly(|| {
        #[cfg(feature = "tracing")]
        if !is_dead {
            tracing::warn!(target: "tickwheel", kind = timer.kind, key = timer.key, attempt = timer.attempts, reason, "a durable timer has failed, and is tried again");
        }
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_failed_total", "kind" => timer.kind.clone())
            .increment(1);
    });
    _ = (timer, reason, is_dead);
}

/// A handler has exceeded its time limit, and has not returned.
pub(crate) fn timed_out(timer: &Timer) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        {
            let kind = || timer.kind.clone();
            metrics::counter!("tickwheel_durable_timed_out_total", "kind" => kind()).increment(1);
            metrics::gauge!("tickwheel_durable_stuck", "kind" => kind()).increment(1);
        }
    });
    _ = timer;
}

/// That handler has returned, or was dropped.
pub(crate) fn has_come_back(timer: &Timer) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        metrics::gauge!("tickwheel_durable_stuck", "kind" => timer.kind.clone()).decrement(1);
    });
    _ = timer;
}

/// An attempt was put off.
pub(crate) fn snoozed(timer: &Timer) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_snoozed_total", "kind" => timer.kind.clone())
            .increment(1);
    });
    _ = timer;
}

/// A run was left out, because it was late.
pub(crate) fn skipped(timer: &Timer) {
    quietly(|| {
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "tickwheel", kind = timer.kind, key = timer.key, due = ?timer.due, "a run of a series was so late that it is skipped");
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_skipped_total", "kind" => timer.kind.clone())
            .increment(1);
    });
    _ = timer;
}

/// A timer is dead.
pub(crate) fn died(timer: &Timer, reason: &str) {
    quietly(|| {
        #[cfg(feature = "tracing")]
        tracing::error!(target: "tickwheel", kind = timer.kind, key = timer.key, attempt = timer.attempts, reason, "a durable timer is dead");
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_dead_total", "kind" => timer.kind.clone())
            .increment(1);
    });
    _ = (timer, reason);
}

/// An error of the database, the first of many in a row.
pub(crate) fn database_error(worker: &str, error: &Error) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("tickwheel_durable_errors_total").increment(1);
        #[cfg(feature = "tracing")]
        tracing::warn!(
            target: "tickwheel",
            worker,
            error = crate::error::with_causes(error),
            "a worker of durable timers has met an error"
        );
    });
    _ = (worker, error);
}

/// The database can be used again.
pub(crate) fn database_works(worker: &str, after: Duration) {
    quietly(|| {
        #[cfg(feature = "tracing")]
        tracing::info!(target: "tickwheel", worker, ?after, "the database of durable timers can be used again");
    });
    _ = (worker, after);
}

/// Sets the gauges.
pub(crate) fn counted(counts: &[KindCounts]) {
    quietly(|| {
        #[cfg(feature = "metrics")]
        for of in counts {
            #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^53")]
            for (state, count) in [
                ("waiting", of.waiting),
                ("retrying", of.retrying),
                ("running", of.running),
                ("dead", of.dead),
            ] {
                metrics::gauge!("tickwheel_durable_timers", "kind" => of.kind.clone(), "state" => state)
                    .set(count as f64);
            }
            metrics::gauge!("tickwheel_durable_lag_seconds", "kind" => of.kind.clone())
                .set(of.lag.as_secs_f64());
        }
    });
    _ = counts;
}
