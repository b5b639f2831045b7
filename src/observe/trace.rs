//! Spans and events for `tracing`; without the feature, nothing.
//!
//! The switch between the two is here and nowhere else. What the rest of the crate says is the same in both
//! cases: it asks for the span of [`current_span`], and if there is one, puts the task [`InSpan`] it. Without the
//! feature there never is one, and the compiler drops that half.
//!
//! - A one-shot runs in the span in which it was scheduled. Outside of any span nothing is kept, so nothing
//!   is larger or slower.
//! - Each run of a series has a root span of its own, `tickwheel.run`: the span in which it was scheduled would
//!   otherwise grow, run by run, for ever.
//! - Panics and rejections are events of the target `tickwheel`. That of a panic has the fields `panic`, the message, and
//!   `task`, the type name of its closure, if it is known.

#[cfg(not(feature = "tracing"))]
use off as switch;
#[cfg(feature = "tracing")]
use on as switch;

pub(crate) use switch::{CurrentSpan, InSpan, current_span, in_a_root_span, panicked, rejected};

/// What can be done once: a closure, or one that runs within something.
pub(crate) trait RunOnce: Send + 'static {
    /// A value knows a better name than that of its type.
    const IS_NAMED: bool = false;

    /// The name of the user's type.
    fn type_name() -> &'static str {
        std::any::type_name::<Self>()
    }

    fn own_name(&self) -> &'static str {
        Self::type_name()
    }

    fn run_once(self);
}

impl<F: FnOnce() + Send + 'static> RunOnce for F {
    #[inline]
    fn run_once(self) {
        self();
    }
}

impl CurrentSpan {
    /// Has a task run here.
    #[inline]
    pub(crate) fn within<F>(self, task: F) -> InSpan<F> {
        InSpan { place: self, task }
    }
}

impl<F> InSpan<F> {
    /// The task as it was.
    pub(crate) fn into_task(self) -> F {
        self.task
    }
}

#[cfg(feature = "tracing")]
mod on {
    use tracing::Span;

    use super::RunOnce;

    /// The span in which a task was scheduled.
    pub(crate) struct CurrentSpan(Span);

    /// A task that runs in a span.
    pub(crate) struct InSpan<F> {
        pub(super) place: CurrentSpan,
        pub(super) task: F,
    }

    /// The span of the calling thread, if there is one.
    #[inline]
    pub(crate) fn current_span() -> Option<CurrentSpan> {
        let span = Span::current();
        (!span.is_none()).then_some(CurrentSpan(span))
    }

    impl<F: RunOnce> RunOnce for InSpan<F> {
        const IS_NAMED: bool = F::IS_NAMED;

        fn type_name() -> &'static str {
            F::type_name()
        }

        fn own_name(&self) -> &'static str {
            self.task.own_name()
        }

        fn run_once(self) {
            let InSpan { place: CurrentSpan(span), task } = self;
            span.in_scope(|| task.run_once());
        }
    }

    /// One run of a series.
    #[inline]
    pub(crate) fn in_a_root_span<R>(run: impl FnOnce() -> R) -> R {
        tracing::info_span!(target: "tickwheel", parent: None, "tickwheel.run").in_scope(run)
    }

    /// A name that is not known is no field of the event.
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
    use std::convert::Infallible;

    use super::RunOnce;

    /// There is none.
    pub(crate) struct CurrentSpan(Infallible);

    /// There is none.
    pub(crate) struct InSpan<F> {
        pub(super) place: CurrentSpan,
        pub(super) task: F,
    }

    #[inline]
    pub(crate) fn current_span() -> Option<CurrentSpan> {
        None
    }

    impl<F: RunOnce> RunOnce for InSpan<F> {
        fn run_once(self) {
            match self.place.0 {}
        }
    }

    #[inline]
    pub(crate) fn in_a_root_span<R>(run: impl FnOnce() -> R) -> R {
        run()
    }

    pub(crate) fn panicked(_: Option<&str>, _: Option<&str>) {}

    pub(crate) fn rejected(_: usize) {}
}
