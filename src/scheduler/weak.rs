//! A handle that keeps nothing alive.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Scheduler, Service};
use crate::executor::own_executor::OwnExecutor;

/// A [`Scheduler`] that may be gone: for tasks that know their scheduler and shall not keep it alive. An executor
/// that the handle had of its own it does keep.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// let weak = scheduler.downgrade();
/// scheduler.schedule_repeatedly(Duration::ZERO, Duration::from_secs(1), move || {
///     let Some(scheduler) = weak.upgrade() else { return ControlFlow::Break(()) };
///     println!("{} tasks are pending", scheduler.pending());
///     ControlFlow::Continue(())
/// })?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct WeakScheduler {
    service: Weak<Service>,
    own: Option<Arc<OwnExecutor>>,
}

impl Scheduler {
    /// A handle that does not keep the service alive.
    pub fn downgrade(&self) -> WeakScheduler {
        WeakScheduler { service: Arc::downgrade(&self.service), own: self.own.clone() }
    }
}

impl WeakScheduler {
    /// The scheduler, unless its last handle has been dropped.
    pub fn upgrade(&self) -> Option<Scheduler> {
        let service = self.service.upgrade()?;
        Some(Scheduler { service, own: self.own.clone() })
    }
}

impl fmt::Debug for WeakScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_alive = self.service.strong_count() > 0;
        f.debug_struct("WeakScheduler").field("is_alive", &is_alive).finish_non_exhaustive()
    }
}
