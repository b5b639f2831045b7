//! With `tracing`.

use tracing::Span;

use super::Shot;

/// The span in which a task was scheduled.
pub(crate) struct Place(Span);

/// A task that runs in a span.
pub(crate) struct Within<F> {
    pub(super) place: Place,
    pub(super) task: F,
}

/// The span of the calling thread, if there is one.
#[inline]
pub(crate) fn here() -> Option<Place> {
    let span = Span::current();
    (!span.is_none()).then_some(Place(span))
}

impl<F: Shot> Shot for Within<F> {
    const IS_NAMED: bool = F::IS_NAMED;

    fn type_name() -> &'static str {
        F::type_name()
    }

    fn own_name(&self) -> &'static str {
        self.task.own_name()
    }

    fn shoot(self) {
        let Within { place: Place(span), task } = self;
        span.in_scope(|| task.shoot());
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
