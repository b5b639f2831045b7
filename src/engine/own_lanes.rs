//! The lanes that the calling thread has at schedulers, in a thread-local.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::shared::Shared;
use crate::clock::tick::Moment;
use crate::clock::timeline::Timeline;
use crate::engine::intake::lane::{Lane, LaneWriter};
use crate::platform::sync::local;
use crate::wheel::entry::SchedulerId;

/// A lane that this thread has.
struct Held {
    scheduler: SchedulerId,
    serial: u64,
    shared: Weak<Shared>,
    timeline: Timeline,
    has_system_clock: bool,
    writer: LaneWriter,
}

/// All lanes of this thread. The one that was used last is in front.
struct Lanes(RefCell<Vec<Held>>);

local!(LANES: Lanes = Lanes(RefCell::new(Vec::new())));

impl Drop for Lanes {
    /// Leaves the lanes to other threads.
    fn drop(&mut self) {
        for Held { shared, writer, .. } in self.0.get_mut().drain(..) {
            if let Some(shared) = shared.upgrade() {
                shared.intake.leave_lane(writer);
            }
        }
    }
}

/// Gives the calling thread's lane at this scheduler to `work`, which must not run user code.
#[inline]
pub(crate) fn with_lane<R>(shared: &Shared, mut work: impl FnMut(&mut LaneWriter) -> R) -> R {
    let done = LANES.try_with(|lanes| {
        let lanes = &mut *lanes.0.borrow_mut();
        // By the serial number: the id of a scheduler that is gone may have been given to this one.
        if lanes.first().is_none_or(|held| held.serial != shared.serial) {
            bring_to_front(lanes, shared);
        }
        work(&mut lanes[0].writer)
    });
    match done {
        Ok(done) => done,
        // A thread that is about to end has lost its thread-locals already, and may still schedule, in the destructor
        // of another one.
        Err(_) => with_a_borrowed_lane(shared, work),
    }
}

/// Borrows a lane for the length of one call.
#[cold]
fn with_a_borrowed_lane<R>(shared: &Shared, mut work: impl FnMut(&mut LaneWriter) -> R) -> R {
    // It goes back at once, because nothing of this thread is left that would give it back later.
    let mut writer = shared.intake.take_lane();
    let result = work(&mut writer);
    shared.intake.leave_lane(writer);
    result
}

/// Gives the calling thread's lane at the scheduler of this id to `work`, if it has one.
#[inline]
pub(super) fn with_lane_at<R>(scheduler: SchedulerId, work: impl FnOnce(&Lane) -> R) -> Option<R> {
    let done = LANES.try_with(|lanes| {
        let lanes = lanes.0.borrow();
        // Most threads use one scheduler, so the first one is tried before the search.
        let first = lanes.first().filter(|held| held.scheduler == scheduler);
        let held = first.or_else(|| lanes.iter().find(|held| held.scheduler == scheduler))?;
        Some(work(&held.writer.lane))
    });
    done.ok().flatten()
}

/// Returns what `moment` makes of the timeline of the scheduler of this id, if the calling thread has a lane there and its
/// clock is the system's. Notes there that a deadline moves.
#[inline]
pub(super) fn moment_at(
    scheduler: SchedulerId,
    moment: impl FnOnce(&Timeline) -> Moment,
) -> Option<Moment> {
    let moment = LANES.try_with(|lanes| {
        let lanes = lanes.0.borrow();
        let is_meant = |held: &&Held| held.scheduler == scheduler && held.has_system_clock;
        let held = lanes.first().filter(is_meant).or_else(|| lanes.iter().find(is_meant))?;
        // Before the caller moves the deadline, so that the engine looks at holders by then.
        held.writer.lane.note_reset();
        Some(moment(&held.timeline))
    });
    moment.ok().flatten()
}

/// Returns the scheduler of this id, if the calling thread has a lane there.
pub(super) fn shared_at(scheduler: SchedulerId) -> Option<Arc<Shared>> {
    let shared = LANES.try_with(|lanes| {
        let lanes = lanes.0.borrow();
        lanes.iter().find(|held| held.scheduler == scheduler)?.shared.upgrade()
    });
    shared.ok().flatten()
}

/// Puts the lane at this scheduler first, and takes one if the thread has none.
#[cold]
fn bring_to_front(lanes: &mut Vec<Held>, shared: &Shared) {
    let at = lanes.iter().position(|held| held.serial == shared.serial).unwrap_or_else(|| {
        // Schedulers that are gone are forgotten here, so a thread that makes and closes many of them remembers few.
        lanes.retain(|held| held.shared.strong_count() > 0);
        let (scheduler, serial) = (shared.id, shared.serial);
        let (timeline, has_system_clock) = (shared.watch.timeline, shared.watch.has_system_clock);
        let (shared, writer) = (shared.me.clone(), shared.intake.take_lane());
        lanes.push(Held { scheduler, serial, shared, timeline, has_system_clock, writer });
        lanes.len() - 1
    });
    lanes.swap(0, at);
}
