//! The gate where tasks come in: lock-free for those who schedule, one reader.
//!
//! Every thread that schedules on a scheduler has a **seat** there: a [`lane`], which is a queue of
//! its own into the engine, and counters of its own. So two producers share nothing that they
//! write, and the queue's order within a thread is the order of its calls.
//!
//! ```text
//!   thread 1:  seat 0  [ lane ========> ]--.      signals: one bit per seat
//!   thread 2:  seat 1  [ lane ==> ]--------+----> Inlet::gather, sorted by stamp ----> the wheel
//!   thread 3:  seat 2  [ lane ]            '      (only seats whose bit is set are visited)
//! ```
//!
//! Order across threads (S3): each record carries a stamp, the clock's reading or, on a clock that
//! cannot tell two calls apart, a shared count. A turn takes only what was stamped before its
//! **cut**, and files it in the order of the stamps.
//!
//! - G1 A record is published by one swap on the lane; the swap's old value tells whether the lane
//!   was closed. So a task is either seen by the engine's last look, or refused; never both, never
//!   neither (S20).
//! - G2 The swap is `SeqCst` and comes before the producer looks at `listed` and at the doorbell;
//!   the reader clears `listed` before it looks at the lane, and arms the doorbell before it looks
//!   at the signals, `SeqCst` too. So no record stays unseen while the reader sleeps.
//! - G3 If a record is taken in a turn, so is every record whose schedule had returned before that
//!   one's began. By clock: its stamp is below the cut as well, and its publication came before
//!   the reader's look, since its thread had passed on to a later reading. By count: the cut is a
//!   reading of the count, which carries everything that was published before it.
//! - G4 A turn takes at most [`SLICE`] records from each lane (S19). If that leaves some in a lane,
//!   the cut goes down to the last stamp taken there, which keeps G3. Stamps of a lane never go down, so one
//!   whose last stamp is not below the cut has nothing more for this turn, and is left alone: else a
//!   producer that is faster than the turns would be followed for ever.

pub(crate) mod lane;
pub(crate) mod seat;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use self::lane::{Consumer, Producer, Record};
pub(crate) use self::seat::Seat;
use crate::parking::Doorbell;
use crate::sync::{AtomicU64, ExchangeInOrder, InOrder, Mutex, Ordering, lock};

/// How many records a turn takes from one lane.
const SLICE: usize = 1024;

/// The intake of one scheduler, as producers see it.
pub(crate) struct Intake {
    signals: Arc<Signals>,
    seats: Mutex<Seats>,
    order: Order,
}

/// What tells which of two calls came first.
enum Order {
    Clock,
    Count(CachePadded<AtomicU64>),
}

/// All seats, and what becomes of them.
struct Seats {
    all: Vec<Arc<Seat>>,
    /// Readers' ends that the engine has not fetched yet.
    fresh: Vec<Consumer>,
    /// Writers' ends whose thread has ended; the next thread takes one over.
    idle: Vec<Producer>,
    is_closed: bool,
}

impl Intake {
    pub(crate) fn new(clock_tells_order: bool) -> Intake {
        let seats =
            Seats { all: Vec::new(), fresh: Vec::new(), idle: Vec::new(), is_closed: false };
        let order = if clock_tells_order {
            Order::Clock
        } else {
            Order::Count(CachePadded::new(AtomicU64::new(0)))
        };
        Intake { signals: Arc::new(Signals::new()), seats: Mutex::new(seats), order }
    }

    /// The stamp of a call that read the clock at `now`.
    #[inline]
    pub(crate) fn stamp(&self, now: u64) -> u64 {
        match &self.order {
            Order::Clock => now,
            Order::Count(count) => count.fetch_add(1, Ordering::Release), // G3
        }
    }

    /// The cut of a turn that read the clock at `now`: what is stamped below it belongs to it.
    pub(crate) fn cut(&self, now: u64) -> u64 {
        match &self.order {
            Order::Clock => now,
            Order::Count(count) => count.load(Ordering::Acquire), // G3
        }
    }

    /// A seat for a thread that has none: one that was left, or a new one.
    pub(crate) fn take_seat(
        &self,
        limit: Option<&Arc<crate::limit::Limit>>,
        bell: &Arc<Doorbell>,
    ) -> Producer {
        let mut seats = lock(&self.seats);
        if let Some(producer) = seats.idle.pop() {
            return producer;
        }
        let number = seats.all.len();
        let seat = Arc::new(Seat::new(number, limit.cloned(), Arc::clone(bell), &self.signals));
        if seats.is_closed {
            seat.close();
        } else {
            seats.fresh.push(Consumer::new(&seat));
        }
        seats.all.push(Arc::clone(&seat));
        Producer::new(seat)
    }

    /// The thread has ended; the next one takes over its seat, counters and all.
    pub(crate) fn leave_seat(&self, producer: Producer) {
        lock(&self.seats).idle.push(producer);
    }

    /// Visits all seats, for adding up their counters.
    pub(crate) fn each_seat(&self, mut visit: impl FnMut(&Seat)) {
        lock(&self.seats).all.iter().for_each(|seat| visit(seat));
    }
}

/// One bit per seat: it has published something since the reader last looked. From the 4097th on
/// seats share bits.
pub(crate) struct Signals {
    /// Bit `w` is set when a bit of word `w` may be.
    summary: CachePadded<AtomicU64>,
    words: [AtomicU64; 64],
}

const SIGNALS: usize = 64 * 64;

impl Signals {
    pub(crate) fn new() -> Signals {
        Signals {
            summary: CachePadded::new(AtomicU64::new(0)),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// G2.
    fn raise(&self, seat: usize) {
        let (word, bit) = (seat % SIGNALS / 64, seat % 64);
        self.words[word].fetch_or(1 << bit, Ordering::Relaxed); // published by the summary
        self.summary.fetch_or_in_order(1 << word);
    }

    fn any(&self) -> bool {
        self.summary.load_in_order() != 0
    }

    /// Takes all signals down; tells which seats they may have come from.
    pub(crate) fn lower(&self, seats: usize, mut visit: impl FnMut(usize)) {
        // Acquire: pairs with `raise`, for the words and for what the seats have published.
        for word in bits(self.summary.swap(0, Ordering::Acquire)) {
            for bit in bits(self.words[word].swap(0, Ordering::Relaxed)) {
                (word * 64 + bit..seats).step_by(SIGNALS).for_each(&mut visit);
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

/// The reader's side, owned by the engine.
pub(crate) struct Inlet {
    consumers: Vec<Consumer>,
    /// Seats whose lanes hold more than the last turn took; G4.
    unfinished: Vec<usize>,
    visits: Vec<usize>,
    /// Records that were taken out of their lanes, in order of their stamps, and not yet filed.
    held: Vec<Record>,
}

impl Inlet {
    pub(crate) fn new() -> Inlet {
        let (unfinished, visits) = (Vec::new(), Vec::new());
        Inlet { consumers: Vec::new(), unfinished, visits, held: Vec::new() }
    }

    /// The records that belong to a turn with this cut, in order; at most [`SLICE`] per lane.
    pub(crate) fn gather(
        &mut self,
        intake: &Intake,
        cut: u64,
    ) -> impl Iterator<Item = Record> + '_ {
        self.find_visits(intake);
        let mut limit = cut;
        for number in self.visits.drain(..) {
            let consumer = &mut self.consumers[number];
            if consumer.is_behind(cut) {
                consumer.unlist(); // G2: before the look at the lane
                consumer.take(SLICE, &mut self.held);
            }
            if let Some(last) = consumer.unfinished_at {
                self.unfinished.push(number);
                limit = limit.min(last.saturating_add(1)); // G4
            }
        }
        self.held.sort_by_key(|record| record.stamp); // stable: equal stamps are of one thread
        let ready = self.held.partition_point(|record| record.stamp < limit);
        self.held.drain(..ready)
    }

    fn find_visits(&mut self, intake: &Intake) {
        self.visits.append(&mut self.unfinished);
        if !intake.signals.any() {
            return;
        }
        let seats = &mut *lock(&intake.seats);
        self.consumers.append(&mut seats.fresh);
        intake.signals.lower(self.consumers.len(), |seat| {
            if self.consumers[seat].unfinished_at.is_none() {
                self.visits.push(seat); // else it is among the visits already
            }
        });
    }

    /// Whether a turn with this cut has left some of what belongs to it; G4.
    pub(crate) fn is_behind(&self, cut: u64) -> bool {
        let mut lanes = self.unfinished.iter();
        lanes.any(|lane| self.consumers[*lane].is_behind(cut))
            || self.held.first().is_some_and(|first| first.stamp < cut)
    }

    /// What was published before the last look, and stamped after its cut.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Record> {
        self.held.iter()
    }

    /// Whether there is anything that the next turn could take; the sleeper's last look (G2).
    pub(crate) fn has_more(&self, intake: &Intake) -> bool {
        !self.held.is_empty() || !self.unfinished.is_empty() || intake.signals.any()
    }

    /// Closes all lanes, and takes all that was published before: the last look (G1).
    pub(crate) fn close(&mut self, intake: &Intake) -> Vec<Record> {
        let seats = &mut *lock(&intake.seats);
        seats.is_closed = true;
        self.consumers.append(&mut seats.fresh);
        let mut records = std::mem::take(&mut self.held);
        for consumer in &mut self.consumers {
            consumer.close(&mut records);
        }
        records.sort_by_key(|record| record.stamp);
        records
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_signal_comes_down_for_its_seat_and_for_those_that_share_its_bit() {
        let signals = Signals::new();
        let lowered = |seats| {
            let mut lowered = Vec::new();
            signals.lower(seats, |seat| lowered.push(seat));
            lowered
        };
        for seat in [0, 1, 63, 64, 65, 4000, 4095] {
            assert!(!signals.any());
            signals.raise(seat);
            assert!(signals.any());
            assert_eq!(lowered(4096), [seat]);
        }
        [5, 4095, 64].iter().for_each(|seat| signals.raise(*seat));
        assert_eq!(lowered(4096), [5, 64, 4095]);
        signals.raise(2 * SIGNALS + 70);
        assert_eq!(lowered(3 * SIGNALS), [70, SIGNALS + 70, 2 * SIGNALS + 70]);
        signals.raise(70);
        assert_eq!(lowered(SIGNALS + 70), [70], "no seat beyond those that there are");
        assert!(lowered(4096).is_empty() && !signals.any());
    }

    fn record(stamp: u64) -> Record {
        Record { deadline: 1, stamp, name: stamp }
    }

    #[test]
    fn stamps_of_a_lane_never_go_down() {
        let (intake, bell) = (Intake::new(true), Doorbell::new(None));
        let mut producer = intake.take_seat(None, &bell);
        [5, 3, 7].iter().for_each(|stamp| assert!(producer.push(record(*stamp)).is_ok()));
        let mut inlet = Inlet::new();
        let stamps: Vec<_> = inlet.gather(&intake, 100).map(|record| record.stamp).collect();
        assert_eq!(stamps, [5, 5, 7]);
    }

    #[test]
    fn s19_a_turn_does_not_follow_a_producer_beyond_its_cut() {
        let (intake, bell) = (Intake::new(true), Doorbell::new(None));
        let mut producer = intake.take_seat(None, &bell);
        let (mut inlet, cut, mut taken) = (Inlet::new(), 1_500, 0);
        for stamp in 0..20 * SLICE as u64 {
            assert!(producer.push(record(stamp)).is_ok());
        }
        for _ in 0..10 {
            taken += inlet.gather(&intake, cut).count();
        }
        assert_eq!(taken, 1_500);
        assert!(!inlet.is_behind(cut) && inlet.has_more(&intake));
        assert!(inlet.held().count() < SLICE, "{} records are held", inlet.held().count());
        while inlet.is_behind(u64::MAX) {
            taken += inlet.gather(&intake, u64::MAX).count();
        }
        assert_eq!(taken, 20 * SLICE);
    }

    /// Some of it has come out of its lane, and waits for a turn with a later cut.
    #[test]
    fn s20_a_close_takes_what_no_turn_has_taken_in_order() {
        let (intake, bell) = (Intake::new(true), Doorbell::new(None));
        let mut producers = [(); 2].map(|()| intake.take_seat(None, &bell));
        for stamp in 0..3 * SLICE as u64 {
            assert!(producers[stamp as usize % 2].push(record(stamp)).is_ok());
        }
        let (mut inlet, cut) = (Inlet::new(), SLICE as u64 / 2);
        let taken = inlet.gather(&intake, cut).map(|record| record.stamp).collect::<Vec<_>>();
        assert!(taken.into_iter().eq(0..cut) && inlet.held().count() > 0);
        let left = inlet.close(&intake).into_iter().map(|record| record.stamp);
        assert!(left.eq(cut..3 * SLICE as u64));
    }

    #[test]
    fn a_seat_that_was_left_is_taken_again() {
        let (intake, bell) = (Intake::new(true), Doorbell::new(None));
        let taken = [(); 3].map(|()| intake.take_seat(None, &bell));
        taken.into_iter().for_each(|producer| intake.leave_seat(producer));
        let again = [(); 3].map(|()| intake.take_seat(None, &bell));
        let mut seats = 0;
        intake.each_seat(|_| seats += 1);
        assert_eq!(seats, 3);
        drop(again);
    }
}
