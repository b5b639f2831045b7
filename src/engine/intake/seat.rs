//! A thread's seat at a scheduler, and how a thread finds it.
//!
//! A seat has one owner at a time: the thread that holds its [`Producer`]. When the thread ends,
//! the seat is left to the next one. A thread whose thread-locals are already gone borrows a seat
//! for the length of one call.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use super::Gate;
use super::lane::{Block, CLOSED, Producer};
use crate::engine::limit::Limit;
use crate::observe::stats::Counts;
use crate::platform::sync::{AtomicBool, AtomicU64, InOrder, Ordering, local};
use crate::time::parking::Doorbell;
use crate::wheel::entry::SchedulerId;

/// How many emptied blocks a lane keeps: room for 24,576 records.
const SPARE_BLOCKS: usize = 192;

/// After so many cancels a canceller wakes the tick thread, so that it may sweep.
const CANCELS: u64 = 8192;

/// What a thread has at a scheduler: the shared part of its lane, and its counters.
pub(crate) struct Seat {
    pub(super) number: usize,
    /// How many records the lane's writer has published, and whether the lane is closed. Written
    /// for each task; the reader looks at it once a turn.
    pub(super) published: CachePadded<AtomicU64>,
    /// It is on the ready list, or the reader is about to look. Set by the writer, cleared by the reader.
    listed: AtomicBool,
    /// The seat behind it on the ready list. Written while `listed` is set and it is on no list yet.
    pub(super) next: AtomicU64,
    first: Mutex<Option<Arc<Block>>>,
    pub(super) spare: ArrayQueue<Arc<Block>>,
    pub(crate) counts: CachePadded<Counts>,
    pub(crate) limit: Option<Arc<Limit>>,
    bell: Arc<Doorbell>,
    pub(super) gate: Arc<Gate>,
}

impl Seat {
    pub(crate) fn new(
        number: usize,
        limit: Option<Arc<Limit>>,
        bell: Arc<Doorbell>,
        gate: &Arc<Gate>,
    ) -> Seat {
        Seat {
            number,
            published: CachePadded::new(AtomicU64::new(0)),
            listed: AtomicBool::new(false),
            next: AtomicU64::new(0),
            first: Mutex::new(None),
            spare: ArrayQueue::new(SPARE_BLOCKS),
            counts: CachePadded::default(),
            limit,
            bell,
            gate: Arc::clone(gate),
        }
    }

    /// The lane's first block, on its way from the writer to the reader.
    pub(super) fn first(&self) -> MutexGuard<'_, Option<Arc<Block>>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's step after a publication; INTAKE-2.
    #[inline]
    pub(super) fn signal(&self) {
        if !self.listed.load_in_order() {
            // Relaxed: this seat alone is meant. The push below releases it, and the reader clears it only
            // after it has acquired that push.
            self.listed.store(true, Ordering::Relaxed);
            self.gate.push(self);
        }
    }

    /// The reader's step when it has taken the seat off the ready list, and only then (INTAKE-5); before it looks at
    /// the lane (INTAKE-2).
    pub(super) fn unlist(&self) {
        self.listed.store_in_order(false);
    }

    /// Closes the lane; how many records had been published. LANE-3.
    pub(super) fn close(&self) -> u64 {
        // Acquire, to see the records; LANE-1. Relaxed for the writer, who is only refused.
        self.published.fetch_or(CLOSED, Ordering::Acquire) & !CLOSED
    }

    /// Counts a cancel by the seat's owner. `frees_a_place`: see S25. The bell to ring, now and then;
    /// not here, because a user's waker may hang on it (S11).
    #[must_use]
    pub(crate) fn count_cancel(&self, frees_a_place: bool) -> Option<Arc<Doorbell>> {
        self.counts.cancelled.add(1);
        if frees_a_place {
            self.count_left();
        }
        (self.counts.cancelled.get() % CANCELS == 0).then(|| {
            self.gate.many_cancelled.store(true, Ordering::Relaxed); // a hint; the ring comes after it
            Arc::clone(&self.bell)
        })
    }

    /// Counts a task that no longer waits, and frees its place.
    pub(crate) fn count_left(&self) {
        self.counts.left.add(1);
        if let Some(limit) = &self.limit {
            limit.leave();
        }
    }
}

/// Who a seat is taken at.
pub(crate) trait Host {
    /// Its number, which no other scheduler that is alive has.
    fn id(&self) -> SchedulerId;
    /// A number that no other scheduler ever has: a thread may still have the seat of one that is gone.
    fn serial(&self) -> u64;
    fn take_seat(&self) -> Producer;
    fn leave_seat(&self, producer: Producer);
    fn downgrade(&self) -> Weak<dyn Host + Send + Sync>;
}

/// A seat that this thread has taken.
struct Taken {
    host_id: SchedulerId,
    host_serial: u64,
    host: Weak<dyn Host + Send + Sync>,
    producer: Producer,
}

/// All seats of this thread. The one that was used last is in front.
struct TakenSeats(RefCell<Vec<Taken>>);

local!(SEATS: TakenSeats = TakenSeats(RefCell::new(Vec::new())));

impl Drop for TakenSeats {
    fn drop(&mut self) {
        for Taken { host, producer, .. } in self.0.get_mut().drain(..) {
            if let Some(host) = host.upgrade() {
                host.leave_seat(producer);
            }
        }
    }
}

/// Gives the calling thread's seat at `host` to `work`, which must not run user code.
#[inline]
pub(crate) fn with_seat<R>(host: &dyn Host, work: impl FnOnce(&mut Producer) -> R) -> R {
    let mut work = Some(work);
    let mut do_work = |producer: &mut Producer| work.take().map(|work| work(producer));
    let done = SEATS.try_with(|seats| {
        let seats = &mut *seats.0.borrow_mut();
        if seats.first().is_none_or(|seat| seat.host_serial != host.serial()) {
            to_the_front(seats, host);
        }
        do_work(&mut seats[0].producer)
    });
    let done = done.unwrap_or_else(|_| {
        let mut producer = host.take_seat();
        let result = do_work(&mut producer);
        host.leave_seat(producer);
        result
    });
    done.expect("the work is done once, on either way")
}

/// Gives the calling thread's seat at the scheduler of this number to `work`, if it has one.
#[inline]
pub(crate) fn with_seat_of<R>(host_id: SchedulerId, work: impl FnOnce(&Seat) -> R) -> Option<R> {
    let done = SEATS.try_with(|seats| {
        let seats = seats.0.borrow();
        let seat = seats.iter().find(|seat| seat.host_id == host_id)?;
        Some(work(&seat.producer.seat))
    });
    done.ok().flatten()
}

#[cold]
fn to_the_front(seats: &mut Vec<Taken>, host: &dyn Host) {
    if let Some(at) = seats.iter().position(|seat| seat.host_serial == host.serial()) {
        seats.swap(0, at);
        return;
    }
    // Schedulers that are gone are forgotten here, so a thread that makes and closes many of them
    // remembers few.
    seats.retain(|seat| seat.host.strong_count() > 0);
    seats.push(Taken {
        host_id: host.id(),
        host_serial: host.serial(),
        host: host.downgrade(),
        producer: host.take_seat(),
    });
    let last = seats.len() - 1;
    seats.swap(0, last);
}
