//! A scheduler's watch: its clock, and the [`Timeline`] on which it reads it.

use std::time::{Duration, Instant};

use super::clocks::Clock;
use super::tick::{Moment, Times, nanos};
use super::timeline::Timeline;

pub(crate) struct Watch {
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) timeline: Timeline,
    pub(crate) is_in_real_time: bool,
    /// The clock is a [`SystemClock`](crate::SystemClock).
    pub(crate) has_system_clock: bool,
    /// The tick that the user has asked for, in nanoseconds. That of the timeline may be finer.
    pub(crate) tick: u64,
}

impl Watch {
    /// Takes a clock that `is_system`, or is not.
    pub(crate) fn new(
        clock: Box<dyn Clock>,
        is_system: bool,
        timeline: Timeline,
        tick: Duration,
    ) -> Watch {
        let is_in_real_time = clock.runs_in_real_time();
        Watch { clock, timeline, is_in_real_time, has_system_clock: is_system, tick: nanos(tick) }
    }

    /// Returns the present.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.timeline.present(self.clock.now())
    }

    /// Returns the times of a task that is to run after a delay. Callers call it before anything else that takes time
    /// (S1).
    #[inline]
    pub(crate) fn after(&self, delay: Duration) -> Times {
        let now = self.now();
        Times { now, deadline: now.after(delay) }
    }

    /// Returns the times of a task that is to run at an instant.
    pub(crate) fn at(&self, instant: Instant) -> Times {
        self.read_at(self.clock.now(), instant)
    }

    /// Like [`at`](Watch::at), for a caller that has read the clock.
    pub(crate) fn read_at(&self, reading: Instant, instant: Instant) -> Times {
        let deadline = self.timeline.deadline(instant, reading);
        Times { now: self.timeline.present(reading), deadline }
    }
}
