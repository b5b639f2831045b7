//! Spans and events for `tracing`. Without the feature, this module does nothing.
//!
//! Only this file depends on the feature. The rest of the crate calls [`current_span`], and if there is a span, wraps
//! the task in that span. Without the feature there is never a span, and the compiler removes that branch.
//!
//! - A one-shot runs in the span in which it was scheduled. Outside of any span nothing is kept, so a task is neither
//!   larger nor slower.
//! - Each run of a series has a root span of its own, `tickwheel.run`. If all runs were in the span in which the series
//!   was scheduled, that span would grow for ever.
//! - Panics and rejections are events of the target `tickwheel`. The event of a panic has the field `panic`, which is
//!   the message, and the field `task`, which is the type name of the closure, if it is known.

#[cfg(not(feature = "tracing"))]
use off as switch;
#[cfg(feature = "tracing")]
use on as switch;

pub(crate) use switch::{CurrentSpan, current_span, in_a_root_span, panicked, rejected};

#[cfg(feature = "tracing")]
mod on {
    /// The span in which a task is scheduled.
    pub(crate) use tracing::Span as CurrentSpan;

    /// Returns the span that the calling thread is in, if any.
    #[inline]
    pub(crate) fn current_span() -> Option<CurrentSpan> {
        Some(CurrentSpan::current()).filter(|span| !span.is_none())
    }

    /// Makes one run of a series, in a root span of its own.
    #[inline]
    pub(crate) fn in_a_root_span<R>(run: impl FnOnce() -> R) -> R {
        tracing::info_span!(target: "tickwheel", parent: None, "tickwheel.run").in_scope(run)
    }

    /// Reports a panic. If the name of the task is not known, the event has no field `task`.
    pub(crate) fn panicked(task: Option<&str>, message: Option<&str>) {
        let message = message.unwrap_or("(no text)");
        tracing::error!(target: "tickwheel", task, panic = message, "user code panicked");
    }

    pub(crate) fn rejected(tasks: usize) {
        tracing::warn!(target: "tickwheel", tasks, "an executor rejected tasks; they are handed over again");
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    /// There is no value of this type.
    pub(crate) enum CurrentSpan {}

    impl CurrentSpan {
        pub(crate) fn in_scope<R>(&self, _: impl FnOnce() -> R) -> R {
            match *self {}
        }
    }

    #[inline]
    pub(crate) fn current_span() -> Option<CurrentSpan> {
        None
    }

    #[inline]
    pub(crate) fn in_a_root_span<R>(run: impl FnOnce() -> R) -> R {
        run()
    }

    pub(crate) fn panicked(_: Option<&str>, _: Option<&str>) {}

    pub(crate) fn rejected(_: usize) {}
}
