//! Spans and events for `tracing`; without the feature, nothing.
//!
//! The switch between the two is here and nowhere else. What the rest of the crate says is the same in both
//! cases: it asks for the span of [`here`], and if there is one, puts the task [`Within`] it. Without the
//! feature there never is one, and the compiler drops that half.
//!
//! - A one-shot runs in the span in which it was scheduled. Outside of any span nothing is kept, so nothing
//!   is larger or slower.
//! - Each run of a series has a root span of its own, `tickwheel.run`: the span in which it was scheduled would
//!   otherwise grow, run by run, for ever.
//! - Panics and rejections are events of the target `tickwheel`. That of a panic has the fields `panic`, the message, and
//!   `task`, the type name of its closure, if it is known.

#[cfg(not(feature = "tracing"))]
mod off;
#[cfg(feature = "tracing")]
mod on;

#[cfg(not(feature = "tracing"))]
use off as switch;
#[cfg(feature = "tracing")]
use on as switch;

pub(crate) use switch::{Place, Within, here, in_a_root_span, panicked, rejected};

/// What can be done once: a closure, or one that runs within something.
pub(crate) trait Shot: Send + 'static {
    /// A value knows a better name than that of its type.
    const IS_NAMED: bool = false;

    /// The name of the user's type.
    fn type_name() -> &'static str {
        std::any::type_name::<Self>()
    }

    fn own_name(&self) -> &'static str {
        Self::type_name()
    }

    fn shoot(self);
}

impl<F: FnOnce() + Send + 'static> Shot for F {
    #[inline]
    fn shoot(self) {
        self();
    }
}

impl Place {
    /// Has a task run here.
    #[inline]
    pub(crate) fn within<F>(self, task: F) -> Within<F> {
        Within { place: self, task }
    }
}

impl<F> Within<F> {
    /// The task as it was.
    pub(crate) fn into_task(self) -> F {
        self.task
    }
}
