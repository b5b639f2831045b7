//! The intake: the way into the engine, lock-free for the threads that schedule, with one reader.
//!
//! Every thread that schedules on a scheduler has a **seat** there: a [`lane`], which is a queue of
//! its own into the engine, and counters of its own. So two producers share nothing that they
//! write for each task, and the order within a lane is the order of the thread's calls.
//!
//! ```text
//!   thread 1:  seat 0  [ lane ========> ]--.
//!   thread 2:  seat 1  [ lane ==> ]--------+--> IntakeReader::take, a merge by stamp --> the wheel
//!   thread 3:  seat 2  [ lane ]            '
//!
//!   ready list:  head --> seat 1 --> seat 0      the seats that have something for the reader
//! ```
//!
//! **Order across threads** (S3): each record carries a stamp, which is the clock's reading or, on a clock that
//! cannot tell two calls apart, a shared count. Stamps in a lane never go down, so the reader merges the lanes: it
//! takes from the lane with the lowest stamp until that passes the lowest stamp of the others. A turn takes only
//! what was stamped before its **cut**.
//!
//! **The ready list** tells the reader which lanes to look at. A producer whose seat is not on it pushes the seat, by
//! a compare-exchange on the head; the reader takes the whole list by a swap.
//!
//! **The bound.** Producers count the blocks that they fill, all together, and the reader those that it empties. When
//! the difference is more than [`BLOCKS_AHEAD`](gate), producers are held back (see [`backpressure`](crate::executor::backpressure)),
//! each at the border of a block. It is one addition for 128 records.
//!
//! - INTAKE-1 A record is published by one swap on the lane; the swap's old value tells whether the lane
//!   was closed. So a task is either seen by the engine's last look, or refused; never both, never
//!   neither (S20).
//! - INTAKE-2 No record stays unseen while the reader sleeps. A producer publishes by a `SeqCst` swap, and then looks at
//!   `listed`, and then at the doorbell. The reader clears `listed` before it looks at the lane, and arms the
//!   doorbell before it looks at the ready list. All of these are `SeqCst`: of each pair, one side sees the other.
//! - INTAKE-3 If a record is taken in a turn, so is every record whose schedule had returned before that
//!   one's began. By clock: its stamp is below the cut as well, and its publication came before
//!   the reader's look, since its thread had passed on to a later reading. By count: the cut is a
//!   reading of the count, which carries everything that was published before it.
//! - INTAKE-4 A turn takes at most as many records as it is told, from all lanes together (S19), and those with the
//!   lowest stamps; so INTAKE-3 holds for a part of what is there as well. It costs the same for each record,
//!   however many wait.
//! - INTAKE-5 A seat is pushed on the ready list only by its writer, and only after it has set `listed`, which it has
//!   found cleared. The reader clears `listed` only after it has taken the seat off the list and has read
//!   `next`. So a seat is on the list at most once, and `next` is not written while the reader may read it.

pub(crate) mod gate;
pub(crate) mod lane;
pub(crate) mod seat;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

pub(crate) use self::gate::Gate;
use self::gate::{BLOCKS_ASLEEP, seat_at};
use self::lane::{Consumer, Filled, Producer, Record};
pub(crate) use self::seat::Seat;
use crate::executor::backpressure::{Backpressure, Flow};
use crate::platform::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::time::parking::Doorbell;

/// Producers are held back earlier, as soon as a turn leaves something that has waited for so many nanoseconds: the tick
/// thread is slow then, for example because it runs tasks itself.
const LATE: u64 = 50_000_000;

/// A producer that takes so many nanoseconds to fill a block is no flood.
const SLOW_BLOCK: u64 = 50_000_000;

/// How many seats are visited under the lock, before others may have it.
const SEATS_AT_ONCE: usize = 256;

/// The intake of one scheduler, as producers see it.
pub(crate) struct Intake {
    gate: Arc<Gate>,
    seats: Mutex<Seats>,
    order: Order,
    /// The cut of the last turn. Written by the engine alone.
    last_cut: AtomicU64,
}

/// What tells which of two calls came first.
enum Order {
    Clock,
    Count(CachePadded<AtomicU64>),
}

impl Order {
    fn is_by_clock(&self) -> bool {
        matches!(self, Order::Clock)
    }
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
        let (gate, last_cut) = (Arc::new(Gate::new()), AtomicU64::new(0));
        Intake { gate, seats: Mutex::new(seats), order, last_cut }
    }

    /// The stamp of a call that read the clock at `now`.
    #[inline]
    pub(crate) fn stamp(&self, now: u64) -> u64 {
        match &self.order {
            Order::Clock => now.min(u64::MAX - 1), // the last cut of all lies behind it
            Order::Count(count) => count.fetch_add(1, Ordering::Release), // INTAKE-3
        }
    }

    /// The cut of a turn that read the clock at `now`: what is stamped below it belongs to it.
    pub(crate) fn cut(&self, now: u64) -> u64 {
        match &self.order {
            Order::Clock => now,
            Order::Count(count) => count.load(Ordering::Acquire), // INTAKE-3
        }
    }

    /// A reading of the clock for a caller that does without one: that of the last turn. It is never ahead of
    /// the present, and it goes on with each turn, so a flood of such calls is merged with the others.
    pub(crate) fn reading_of_last_turn(&self) -> u64 {
        self.last_cut.load(Ordering::Relaxed) // any turn's will do
    }

    /// A seat for a thread that has none: one that was left, or a new one.
    pub(crate) fn take_seat(
        &self,
        limit: Option<&Arc<crate::engine::limit::Limit>>,
        bell: &Arc<Doorbell>,
    ) -> Producer {
        let mut seats = lock(&self.seats);
        if let Some(producer) = seats.idle.pop() {
            return producer;
        }
        let number = seats.all.len();
        let seat = Arc::new(Seat::new(number, limit.cloned(), Arc::clone(bell), &self.gate));
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

    /// Visits all seats, for adding up their counters. In slices, so that nobody waits long for the lock: seats are
    /// added at the end, and stay.
    pub(crate) fn each_seat(&self, mut visit: impl FnMut(&Seat)) {
        let mut visited = 0;
        loop {
            let seats = lock(&self.seats);
            let slice = seats.all.get(visited..).unwrap_or_default().iter().take(SEATS_AT_ONCE);
            let before = visited;
            slice.for_each(|seat| {
                visit(seat);
                visited += 1;
            });
            if visited == before {
                break;
            }
        }
    }

    /// Returns true if the producer that has filled this block should wake the reader.
    pub(crate) fn is_much(filled: Filled) -> bool {
        filled.blocks % BLOCKS_ASLEEP == 0
    }

    /// Returns true if a producer that has filled this block, and reads the clock at `now`, makes no more than some
    /// thousand tasks a second. It need not be held back.
    pub(crate) fn is_slow(&self, filled: Filled, now: u64) -> bool {
        self.order.is_by_clock() && now.saturating_sub(filled.since) > SLOW_BLOCK
    }

    /// Returns true if a thread has cancelled many tasks since the last call. Relaxed: a hint.
    pub(crate) fn were_many_cancelled(&self) -> bool {
        let hint = &self.gate.many_cancelled;
        hint.load(Ordering::Relaxed) && hint.swap(false, Ordering::Relaxed)
    }

    /// How far the producers are ahead of the reader.
    pub(crate) fn flow(&self) -> Flow {
        self.gate.flow()
    }

    pub(crate) fn pressure(&self) -> &Backpressure {
        &self.gate.pressure
    }
}

/// The reader's side, owned by the engine.
pub(crate) struct IntakeReader {
    /// By number of their seats.
    lanes: Vec<Consumer>,
    /// Lanes that may hold something: the ready ones, and those of which an earlier turn has left some.
    open: Vec<usize>,
    /// The open lanes by the stamps of their first records, the lowest on top. Empty between turns.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
}

impl IntakeReader {
    pub(crate) fn new() -> IntakeReader {
        IntakeReader { lanes: Vec::new(), open: Vec::new(), heads: BinaryHeap::new() }
    }

    /// Takes what was stamped before the cut, in order, and at most so many records; INTAKE-4. How many.
    pub(crate) fn take(
        &mut self,
        intake: &Intake,
        cut: u64,
        most: usize,
        take: impl FnMut(Record),
    ) -> usize {
        intake.last_cut.store(cut, Ordering::Relaxed);
        let looks = intake.gate.looks.load(Ordering::Relaxed);
        intake.gate.looks.store(looks + 1, Ordering::Relaxed);
        self.open_ready(intake);
        for number in &self.open {
            self.lanes[*number].look();
        }
        let taken = self.merge(cut, most, take);
        let oldest = self.oldest_before(cut);
        let is_late =
            intake.order.is_by_clock() && oldest.is_some_and(|oldest| cut - oldest > LATE);
        intake.gate.is_late.store(is_late, Ordering::Relaxed);
        let lanes = &mut self.lanes;
        self.open.retain(|number| {
            let lane = &mut lanes[*number];
            lane.is_open = lane.left() > 0;
            lane.is_open
        });
        taken
    }

    /// Takes all seats off the ready list; INTAKE-5.
    fn open_ready(&mut self, intake: &Intake) {
        if intake.gate.is_empty() {
            return;
        }
        let mut next = intake.gate.take_all();
        while let Some(number) = next {
            if number >= self.lanes.len() {
                self.lanes.append(&mut lock(&intake.seats).fresh);
            }
            let lane = &mut self.lanes[number];
            // Relaxed: acquired with the list.
            next = seat_at(lane.seat.next.load(Ordering::Relaxed));
            lane.seat.unlist();
            if !lane.is_open {
                lane.is_open = true;
                self.open.push(number);
            }
        }
    }

    fn merge(&mut self, cut: u64, most: usize, mut take: impl FnMut(Record)) -> usize {
        let lanes = &mut self.lanes;
        if let [only] = self.open[..] {
            return lanes[only].take_before(cut, most, take);
        }
        let heads = self.open.iter().filter_map(|number| {
            let first = lanes[*number].first()?;
            (first.stamp < cut).then_some(Reverse((first.stamp, *number)))
        });
        self.heads.extend(heads);
        let mut taken = 0;
        while taken < most {
            let Some(Reverse((_, number))) = self.heads.pop() else { break };
            let lane = &mut self.lanes[number];
            // What is stamped as the first one of another lane may come before or after that one.
            let others =
                self.heads.peek().map_or(cut, |Reverse((stamp, _))| stamp.saturating_add(1));
            taken += lane.take_before(cut.min(others), most - taken, &mut take);
            if let Some(first) = lane.first().filter(|first| first.stamp < cut) {
                self.heads.push(Reverse((first.stamp, number)));
            }
        }
        self.heads.clear();
        taken
    }

    /// Returns true if the last turn has left something that was stamped before the cut.
    pub(crate) fn is_behind(&mut self, cut: u64) -> bool {
        self.oldest_before(cut).is_some()
    }

    /// The lowest stamp of what the last turn has left, if it is below the cut.
    fn oldest_before(&mut self, cut: u64) -> Option<u64> {
        let lanes = &mut self.lanes;
        let firsts = self.open.iter().filter_map(|number| lanes[*number].first());
        firsts.map(|first| first.stamp).min().filter(|oldest| *oldest < cut)
    }

    /// Visits what was published before the last look and left there, for example because it was stamped
    /// after the cut.
    pub(crate) fn each_left(&self, mut visit: impl FnMut(Record)) {
        self.open.iter().for_each(|number| self.lanes[*number].each_left(&mut visit));
    }

    /// Returns true if there is anything that the next turn could take: the sleeper's last look (INTAKE-2).
    pub(crate) fn has_more(&self, intake: &Intake) -> bool {
        !self.open.is_empty() || !intake.gate.is_empty()
    }

    /// How many seats there are.
    pub(crate) fn seats(&self) -> usize {
        self.lanes.len()
    }

    /// Closes all lanes, and takes all that was published before: the last look (INTAKE-1).
    pub(crate) fn close(&mut self, intake: &Intake, take: impl FnMut(Record)) {
        let seats = &mut *lock(&intake.seats);
        seats.is_closed = true;
        self.lanes.append(&mut seats.fresh);
        self.lanes.iter_mut().for_each(Consumer::close);
        self.open = (0..self.lanes.len()).collect();
        self.merge(u64::MAX, usize::MAX, take);
        self.open.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn record(stamp: u64) -> Record {
        Record { deadline: 1, stamp, name: stamp }
    }

    /// An intake with so many producers.
    fn intake(producers: usize) -> (Intake, Vec<Producer>) {
        let (intake, bell) = (Intake::new(true), Doorbell::new(None));
        let producers = (0..producers).map(|_| intake.take_seat(None, &bell)).collect();
        (intake, producers)
    }

    fn push(producer: &mut Producer, stamp: u64) {
        assert!(producer.push(record(stamp)).is_ok());
    }

    fn take(inlet: &mut IntakeReader, intake: &Intake, cut: u64, most: usize) -> Vec<u64> {
        let mut stamps = Vec::new();
        let taken = inlet.take(intake, cut, most, |record| stamps.push(record.stamp));
        assert_eq!(taken, stamps.len());
        stamps
    }

    #[test]
    fn lane_4_stamps_of_a_lane_never_go_down() {
        let (intake, mut producers) = intake(1);
        [5, 3, 7].iter().for_each(|stamp| push(&mut producers[0], *stamp));
        assert_eq!(take(&mut IntakeReader::new(), &intake, 100, 100), [5, 5, 7]);
    }

    #[test]
    fn intake_4_lanes_are_merged_by_stamp_and_a_turn_takes_no_more_than_it_is_told() {
        let (intake, mut producers) = intake(3);
        let mut seed = 9_u64;
        let mut all = Vec::new();
        for stamp in 0..5_000 {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            push(&mut producers[(seed >> 40) as usize % 3], stamp);
        }
        let mut inlet = IntakeReader::new();
        while inlet.has_more(&intake) {
            let most = 1 + all.len() / 3;
            let some = take(&mut inlet, &intake, 4_000, most);
            assert!(some.len() == most || !inlet.is_behind(4_000));
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        assert!(all.iter().copied().eq(0..4_000), "in order, and all before the cut");
        let mut left = 0;
        inlet.each_left(|_| left += 1);
        assert_eq!(left, 1_000);
    }

    #[test]
    fn a_seat_that_publishes_again_while_it_is_open_is_visited_once() {
        let (intake, mut producers) = intake(2);
        let mut inlet = IntakeReader::new();
        for round in 0..300 {
            push(&mut producers[0], 10 * round);
            push(&mut producers[1], 10 * round + 1);
            assert_eq!(take(&mut inlet, &intake, 10 * round + 1, 10).last(), Some(&(10 * round)));
            assert_eq!(inlet.open, [1]);
        }
    }

    #[test]
    fn s19_a_turn_does_not_follow_a_producer_beyond_its_cut() {
        let (intake, mut producers) = intake(1);
        let (mut inlet, cut) = (IntakeReader::new(), 1_500);
        (0..20_000).for_each(|stamp| push(&mut producers[0], stamp));
        assert_eq!(take(&mut inlet, &intake, cut, usize::MAX).len(), 1_500);
        assert!(!inlet.is_behind(cut) && inlet.has_more(&intake));
        assert_eq!(take(&mut inlet, &intake, u64::MAX, usize::MAX).len(), 18_500);
        assert!(!inlet.has_more(&intake));
    }

    /// Some of it has been seen, and waits for a turn with a later cut.
    #[test]
    fn s20_a_close_takes_what_no_turn_has_taken_in_order() {
        let (intake, mut producers) = intake(2);
        (0..3_000).for_each(|stamp| push(&mut producers[stamp as usize % 2], stamp));
        let mut inlet = IntakeReader::new();
        assert!(take(&mut inlet, &intake, 500, 300).into_iter().eq(0..300));
        let mut left = Vec::new();
        inlet.close(&intake, |record| left.push(record.stamp));
        assert!(left.into_iter().eq(300..3_000));
        assert!(producers[0].push(record(9_000)).is_err());
    }

    #[test]
    fn intake_3_a_reading_that_is_not_one_goes_on_with_each_turn() {
        let (intake, _) = intake(0);
        assert_eq!(intake.reading_of_last_turn(), 0);
        take(&mut IntakeReader::new(), &intake, 70, 1);
        assert_eq!(intake.reading_of_last_turn(), 70);
    }

    #[test]
    fn blocks_are_counted_when_they_are_full_and_when_they_are_empty_again() {
        let (intake, mut producers) = intake(2);
        let mut filled = Vec::new();
        for stamp in 0..1_000 {
            let producer = &mut producers[stamp as usize % 2];
            if producer.push(record(stamp)).is_ok_and(|pushed| pushed.filled) {
                filled.push(producer.filled().blocks);
            }
        }
        assert_eq!(filled, [1, 2, 3, 4, 5, 6], "three of each lane");
        assert_eq!(intake.flow().ahead, 6);
        take(&mut IntakeReader::new(), &intake, u64::MAX, 600);
        assert_eq!((intake.flow().ahead, intake.flow().passed), (2, 1));
    }

    #[test]
    fn a_seat_that_was_left_is_taken_again() {
        let (intake, producers) = intake(3);
        producers.into_iter().for_each(|producer| intake.leave_seat(producer));
        let again = [(); 3].map(|()| intake.take_seat(None, &Doorbell::new(None)));
        let mut seats = 0;
        intake.each_seat(|_| seats += 1);
        assert_eq!(seats, 3);
        drop(again);
    }
}
