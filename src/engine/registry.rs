//! Who is alive, and who is turning: what handles and tasks ask about a scheduler that they do not hold.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::shared::Shared;
use crate::engine::intake::seat::{self, with_seat};
use crate::engine::slots::Thrown;
use crate::platform::sync::local;
use crate::wheel::entry::SchedulerId;

/// All hubs that are alive.
struct Hubs {
    alive: HashMap<SchedulerId, Weak<Shared>>,
    last: SchedulerId,
    /// How many there ever were.
    count: u64,
}

static HUBS: LazyLock<Mutex<Hubs>> = LazyLock::new(|| {
    Mutex::new(Hubs { alive: HashMap::new(), last: SchedulerId::FIRST, count: 0 })
});

fn hubs() -> MutexGuard<'static, Hubs> {
    HUBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new scheduler a number that no other has, and one that no other will ever have.
pub(super) fn register(shared: &Weak<Shared>) -> (SchedulerId, u64) {
    let mut hubs = hubs();
    hubs.count += 1;
    let serial = hubs.count;
    loop {
        hubs.last = hubs.last.next();
        let id = hubs.last;
        if let Entry::Vacant(place) = hubs.alive.entry(id) {
            place.insert(shared.clone());
            return (id, serial);
        }
    }
}

fn find(id: SchedulerId) -> Option<Arc<Shared>> {
    hubs().alive.get(&id)?.upgrade()
}

/// Counts a cancel, by the calling thread's seat at that scheduler. A scheduler that is gone counts no more.
pub(crate) fn count_cancel(shared: SchedulerId, frees_a_place: bool) {
    let counted = seat::with_seat_of(shared, |seat| seat.count_cancel(frees_a_place));
    let bell = counted.or_else(|| {
        let shared = find(shared)?;
        Some(with_seat(&*shared, |producer| producer.seat.count_cancel(frees_a_place)))
    });
    if let Some(Some(bell)) = bell {
        bell.ring_if_asleep();
    }
}

/// Reports the panics of captured values' `Drop`.
#[cold]
pub(crate) fn report(shared: SchedulerId, thrown: Thrown) {
    match find(shared) {
        Some(shared) => shared.report(thrown.name, thrown.panics),
        None => thrown.panics.into_iter().for_each(crate::platform::panics::discard),
    }
}

/// A scheduler is gone; its number may be used again.
pub(super) fn forget(id: SchedulerId) {
    hubs().alive.remove(&id);
}

local!(
    /// The hubs whose engines are being turned on this thread, the innermost last.
    TURNING: RefCell<Vec<SchedulerId>> = RefCell::new(Vec::new())
);

/// Marks the calling thread as the one that turns this scheduler's engine, until it is dropped.
pub(crate) struct TurningMark(());

impl TurningMark {
    pub(crate) fn new(shared: &Shared) -> TurningMark {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().push(shared.id));
        TurningMark(())
    }
}

impl Drop for TurningMark {
    fn drop(&mut self) {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().pop());
    }
}

/// Returns true if the calling thread is inside a turn of some scheduler's engine.
pub(super) fn is_turning() -> bool {
    TURNING.try_with(|turning| !turning.borrow().is_empty()).unwrap_or(false)
}

impl Shared {
    /// Whether the calling thread is inside a turn of this scheduler's engine.
    pub(crate) fn is_turned_here(&self) -> bool {
        TURNING.try_with(|turning| turning.borrow().contains(&self.id)).unwrap_or(false)
    }
}
