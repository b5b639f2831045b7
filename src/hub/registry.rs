//! Who is alive, and who is turning: what handles and tasks ask about a hub that they do not hold.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::Hub;
use crate::intake::seat::{self, with_seat};
use crate::key::HubId;
use crate::sync::local;
use crate::task::Thrown;

/// All hubs that are alive.
struct Hubs {
    alive: HashMap<HubId, Weak<Hub>>,
    last: HubId,
    /// How many there ever were.
    count: u64,
}

static HUBS: LazyLock<Mutex<Hubs>> =
    LazyLock::new(|| Mutex::new(Hubs { alive: HashMap::new(), last: HubId::FIRST, count: 0 }));

fn hubs() -> MutexGuard<'static, Hubs> {
    HUBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new hub a number that no other has, and one that no other will ever have.
pub(super) fn register(hub: &Weak<Hub>) -> (HubId, u64) {
    let mut hubs = hubs();
    hubs.count += 1;
    let serial = hubs.count;
    loop {
        hubs.last = hubs.last.next();
        let id = hubs.last;
        if let Entry::Vacant(place) = hubs.alive.entry(id) {
            place.insert(hub.clone());
            return (id, serial);
        }
    }
}

fn find(id: HubId) -> Option<Arc<Hub>> {
    hubs().alive.get(&id)?.upgrade()
}

/// Counts a cancel, by the calling thread's seat at that hub. A hub that is gone counts no more.
pub(crate) fn count_cancel(hub: HubId, frees_a_place: bool) {
    let counted = seat::with_seat_of(hub, |seat| seat.count_cancel(frees_a_place));
    let bell = counted.or_else(|| {
        let hub = find(hub)?;
        Some(with_seat(&*hub, |producer| producer.seat.count_cancel(frees_a_place)))
    });
    if let Some(Some(bell)) = bell {
        bell.ring_if_asleep();
    }
}

/// Reports the panics of captured values' `Drop`.
#[cold]
pub(crate) fn report(hub: HubId, thrown: Thrown) {
    match find(hub) {
        Some(hub) => hub.report(thrown.name, thrown.panics),
        None => thrown.panics.into_iter().for_each(crate::observe::discard),
    }
}

/// A hub is gone; its number may be used again.
pub(super) fn forget(id: HubId) {
    hubs().alive.remove(&id);
}

local!(
    /// The hubs whose engines are being turned on this thread, the innermost last.
    TURNING: RefCell<Vec<HubId>> = RefCell::new(Vec::new())
);

/// Marks the calling thread as the one that turns this hub's engine, until it is dropped.
pub(crate) struct TurningMark(());

impl TurningMark {
    pub(crate) fn new(hub: &Hub) -> TurningMark {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().push(hub.id));
        TurningMark(())
    }
}

impl Drop for TurningMark {
    fn drop(&mut self) {
        let _ = TURNING.try_with(|turning| turning.borrow_mut().pop());
    }
}

/// Returns true if the calling thread is inside a turn of some hub's engine.
pub(super) fn is_turning() -> bool {
    TURNING.try_with(|turning| !turning.borrow().is_empty()).unwrap_or(false)
}

impl Hub {
    /// Whether the calling thread is inside a turn of this hub's engine.
    pub(crate) fn is_turned_here(&self) -> bool {
        TURNING.try_with(|turning| turning.borrow().contains(&self.id)).unwrap_or(false)
    }
}
