//! A waker that waits for an instant: the [`Alarm`].
//!
//! It is what a task is, with less: no closure, no executor, no handle to clone. The tick thread wakes the
//! waker itself, because to wake is to put something in a queue, and a hop over another thread would cost
//! more than it spares. Nobody gets it as a leftover: what it stands for is somebody who waits, so at the
//! end of the scheduler it is woken rather than returned.
//!
//! - ALARM-1 Its end is counted, and then its holder free, before the waker is called. So who finds it pending
//!   will be woken after that look; and who does not, or was woken, finds it counted.
//! - ALARM-2 While it is pending the holder has the waker, so nothing else has the waker's address.

use std::fmt;
use std::task::Waker;

use crate::engine::shared::{self, Shared};
use crate::engine::slots::{Cancelled, Content, Phase, Thrown, Wake, holder};
use crate::executor::deadlock::OwnTimer;
use crate::platform::panics::caught;
use crate::wheel::entry::{SchedulerId, TaskKey};

/// A waker that is to be woken at an instant: what [`Scheduler::wake_at`](crate::Scheduler::wake_at) gives
/// back. Dropping it calls it off, and drops the waker.
///
/// It is meant for those who write futures of their own; [`future`](crate::future) has ready-made ones.
#[must_use = "dropping it calls it off"]
pub struct Alarm {
    key: TaskKey,
    scheduler: SchedulerId,
    target: Target,
    /// Counted until its waker goes another way than by ringing.
    own_timer: Option<OwnTimer>,
}

/// What tells one waker from another without owning it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Target {
    data: usize,
    table: usize,
}

impl Target {
    fn of(waker: &Waker) -> Target {
        Target { data: waker.data().addr(), table: std::ptr::from_ref(waker.vtable()).addr() }
    }
}

impl Alarm {
    pub(crate) fn new(key: TaskKey, scheduler: &Shared, waker: &Waker) -> Alarm {
        let own_timer = OwnTimer::note(waker, || scheduler.is_turned_here());
        Alarm { key, scheduler: scheduler.id(), target: Target::of(waker), own_timer }
    }

    /// Whether the waker is still to be woken. If so, it will be after this look, at the instant or when
    /// the scheduler ends.
    pub fn is_pending(&self) -> bool {
        holder::word(self.key).is_some_and(|word| word.generation() == self.key.generation) // ALARM-1
    }

    /// Whether it is this waker, or one that wakes the same task, that an alarm which
    /// [is pending](Alarm::is_pending) will wake.
    pub fn will_wake(&self, waker: &Waker) -> bool {
        self.target == Target::of(waker) // ALARM-2
    }

    /// Calls it off, and gives the waker back; `None` when it has been woken, or is just being woken.
    pub fn into_waker(mut self) -> Option<Waker> {
        // Its `Drop` will find the task cancelled.
        self.call_off().map(|Wake(waker)| waker)
    }

    fn call_off(&mut self) -> Option<Wake> {
        self.own_timer = None; // before anybody else has the waker
        let Cancelled::Won { was, body, .. } = holder::cancel(self.key) else { return None };
        shared::count_cancel(self.scheduler, was == Phase::Pending);
        Some(Wake::take_back(body.closure))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let waker = self.call_off();
        if let Err(panic) = caught(|| drop(waker)) {
            shared::report(self.scheduler, Thrown { name: "a waker", panics: vec![panic] }); // S9
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("is_pending", &self.is_pending()).finish_non_exhaustive()
    }
}
