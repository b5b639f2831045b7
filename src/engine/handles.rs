//! What a handle does at the scheduler of its task, which it knows by its id: it counts a cancel, reports a panic of a
//! drop, and moves a deadline (S28). What a reset does to the task is in [`deadline`](mod@deadline).

use std::time::{Duration, Instant};

use super::admit::Publication;
use super::shared::{self, with_lane};
use crate::clock::tick::Moment;
use crate::clock::timeline::{Timeline, When};
use crate::engine::intake::lane::Lane;
use crate::engine::slots::deadline::{self, Reset};
use crate::engine::slots::{Thrown, blocks, task};
use crate::platform::panics::discard;
use crate::platform::sync::Ordering;
use crate::wheel::entry::{SchedulerId, TaskKey};

// ----- cancels ---------------------------------------------------------------------------------

/// Counts a cancel, by the calling thread's lane at that scheduler, and rings the bell if the lane asks for it. A scheduler
/// that is gone counts no more. `was_pending`: the task counted as pending until then.
///
/// A waker that is not `COUNTED` appears in no statistics. Its stale entry stays in the wheel like any other, so its cancel
/// counts towards the next sweep.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a cancel takes 15 instructions more with a call")]
pub(crate) fn count_cancel<const COUNTED: bool>(scheduler: SchedulerId, was_pending: bool) {
    // A closure for each of the two, and not one that looks: that would have two callers, and would not be inlined.
    let count = |lane: &Lane| lane.count_cancel::<COUNTED>(was_pending);
    // Most tasks are cancelled by a thread that also schedules there. Its lane is found without a look into the
    // registry, which has a lock.
    let counted = shared::look(scheduler, |held| Some(count(&held.writer.lane)));
    if counted != Some(false) {
        count_or_ring(scheduler, counted.is_some(), count);
    }
}

#[cold]
fn count_or_ring(scheduler: SchedulerId, is_counted: bool, count: impl Fn(&Lane) -> bool) {
    // The scheduler of a task may be gone: handles keep nothing alive. Then nobody reads its counters.
    let Some(shared) = shared::find(scheduler) else { return };
    // It is counted once: by the lane above, or by one that this thread takes now.
    if is_counted || with_lane(&shared, |writer| count(&writer.lane)) {
        shared.bell.ring_if_asleep();
    }
}

/// Reports the panics of captured values' `Drop` to that scheduler. If it is gone they are discarded.
#[cold]
pub(crate) fn report(scheduler: SchedulerId, thrown: Thrown) {
    let found = shared::find(scheduler);
    for panic in thrown.panics {
        match &found {
            Some(shared) => shared.hooks.on_panic.report(thrown.name, panic),
            None => discard(panic),
        }
    }
}

// ----- resets ----------------------------------------------------------------------------------

/// Moves the deadline of a task to `delay` from now. `scheduler` is the one that gave out the handle. Returns false if it
/// is too late.
#[inline]
pub(crate) fn reset(key: TaskKey, scheduler: SchedulerId, delay: Duration) -> bool {
    reset_to(key, scheduler, When::After(delay), |line| line.moment(Instant::now()).after(delay))
}

/// Moves the deadline of a task to an instant, as [`reset`] does.
#[inline]
pub(crate) fn reset_at(key: TaskKey, scheduler: SchedulerId, deadline: Instant) -> bool {
    reset_to(key, scheduler, When::At(deadline), |line| line.moment(deadline))
}

/// Moves the deadline of a task, with as little as that takes. `to` is its own function for each caller, so it is inlined
/// with all that it is called by: a look at `when` in its place takes 22 instructions more.
#[inline(always)]
#[expect(clippy::inline_always, reason = "takes 9.7 ns with it, 10.3 without")]
fn reset_to(
    key: TaskKey,
    scheduler: SchedulerId,
    when: When,
    to: impl FnOnce(&Timeline) -> Moment,
) -> bool {
    blocks::prefetch(key.slot); // the clock takes as long as a cache miss
    // A deadline that moves further away changes only the holder. The lane of the calling thread knows the timeline,
    // so not even the scheduler is looked up. Everything else needs the scheduler.
    let to = shared::look(scheduler, |held| {
        // Noted before the deadline moves, so that the engine looks at holders by then.
        held.has_system_clock.then(|| {
            held.writer.lane.note_reset();
            to(&held.timeline)
        })
    });
    let done = to.and_then(|to| deadline::postpone(key, scheduler, to));
    done.unwrap_or_else(|| reset_there(key, when)) == Reset::Done
}

/// Moves the deadline of a task at the scheduler that it belongs to now.
#[cold]
fn reset_there(key: TaskKey, when: When) -> Reset {
    loop {
        // A leftover may be moved to another scheduler between this look and the reset. The reset finds that out while
        // it holds the task, and the loop looks again.
        let Some(shared) = task::scheduler(key).and_then(shared::at) else { return Reset::TooLate };
        let times = match when {
            When::After(delay) => shared.watch.after(delay),
            When::At(instant) => shared.watch.at(instant),
        };
        // Noted before the deadline moves, so that the engine looks at holders by the time an entry comes out too
        // early.
        with_lane(&shared, |writer| writer.lane.note_reset());
        let mut filing = Publication::new(&shared, false);
        let announce = |entry| filing.publish::<()>(entry, times.now);
        let out_until = Moment(shared.out_until.load(Ordering::Relaxed)); // an older one will do
        let is_far_behind = shared.intake.is_far_ahead();
        let done = deadline::reset(key, times, out_until, is_far_behind, shared.id, announce);
        if filing.ring() {
            // The task is not new, so there is no executor to wait for. The engine may be far behind.
            shared.hold_back_for_engine(times.now);
        }
        if done != Reset::Elsewhere {
            return done;
        }
    }
}

/// Returns when a task is due that waits.
pub(crate) fn deadline(key: TaskKey) -> Option<Instant> {
    let (deadline, there) = deadline::of(key)?;
    Some(shared::at(there)?.watch.timeline.instant(deadline))
}
