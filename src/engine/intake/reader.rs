//! The reader's side of the intake: which lanes it looks at, and in what order it takes their records.
//!
//! A turn takes all lanes off the ready list, notes how much each of its open lanes has published, and merges them: it
//! takes from the lane with the lowest stamp until that passes the lowest stamp of the others. A record costs the same,
//! however many wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Intake;
use super::lane::{LaneReader, Record};
use crate::platform::sync::{Ordering, lock};

/// Writers are held back earlier, as soon as a turn leaves something that has waited for so many nanoseconds: the tick
/// thread is slow then, for example because it runs tasks itself.
const LATE: u64 = 50_000_000;

/// How many open lanes the debug checks look at.
const CHECKED: usize = 64;

/// The reader of an intake, owned by the engine.
#[derive(Default)]
pub(crate) struct IntakeReader {
    /// By number.
    pub(crate) lanes: Vec<LaneReader>,
    /// Lanes that may hold something: those that were on the ready list, and those of which an earlier turn has left
    /// some.
    open: Vec<usize>,
    /// The open lanes by the stamps of their first records, the lowest on top. Empty between turns.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
}

impl IntakeReader {
    /// Takes what was stamped before the cut, in order, and at most `most` records. Returns how many. `take` also hears whether
    /// the record is known to be stale.
    pub(crate) fn take(
        &mut self,
        intake: &Intake,
        cut: u64,
        most: usize,
        take: impl FnMut(Record, bool),
    ) -> usize {
        // These numbers order nothing, so their stores are Relaxed: see `Signals`.
        intake.last_cut.store(cut, Ordering::Relaxed);
        intake.signals.looks.add(1);
        self.open_ready(intake);
        if self.open.is_empty() {
            return 0;
        }
        // One look at each lane, before the merge. So a turn takes only what is there now, however fast the writers
        // are (S19).
        for number in &self.open {
            self.lanes[*number].look();
        }
        let taken = self.merge(cut, most, take);
        let oldest = self.oldest_before(cut);
        let is_late = intake.is_by_clock() && oldest.is_some_and(|oldest| cut - oldest > LATE);
        intake.signals.is_late.store(is_late, Ordering::Relaxed);
        let lanes = &mut self.lanes;
        self.open.retain(|number| {
            let lane = &mut lanes[*number];
            lane.is_open = lane.left() > 0;
            lane.is_open
        });
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        taken
    }

    /// Takes all lanes off the ready list. The look at them comes next.
    fn open_ready(&mut self, intake: &Intake) {
        if !intake.signals.has_ready() {
            return;
        }
        // Acquire: pairs with the exchanges in `Lane::enlist`.
        let mut link = intake.signals.ready.swap(0, Ordering::Acquire);
        while let Some(number) = link.checked_sub(1) {
            let number = number as usize;
            // Lanes are numbered in the order in which they were made, and the reader gets its ends in that order.
            if number >= self.lanes.len() {
                self.lanes.append(&mut lock(&intake.lanes).fresh);
            }
            let reader = &mut self.lanes[number];
            link = reader.lane.next.load(Ordering::Relaxed); // acquired with the list
            // After `next` was read, because the writer may write it from now on (INTAKE-2). Before the look at the
            // lane, and both are `SeqCst`, so a writer that still finds the lane listed has published what the look
            // sees (WAKE-4).
            reader.lane.listed.store(false, Ordering::SeqCst);
            if !reader.is_open {
                reader.is_open = true;
                self.open.push(number);
            }
        }
    }

    fn merge(&mut self, cut: u64, most: usize, mut take: impl FnMut(Record, bool)) -> usize {
        let lanes = &mut self.lanes;
        let heads = self.open.iter().filter_map(|number| {
            let first = lanes[*number].first()?;
            (first.stamp < cut).then_some(Reverse((first.stamp, *number)))
        });
        self.heads.extend(heads);
        let (mut taken, mut reached) = (0, 0);
        // The lowest stamps first, so a turn that stops at `most` has taken the first of what was there (INTAKE-3).
        while taken < most {
            let Some(Reverse((lowest, number))) = self.heads.pop() else { break };
            debug_assert!(reached <= lowest, "a turn takes the lowest stamps first");
            reached = lowest;
            let lane = &mut self.lanes[number];
            // Records with the same stamp as the first one of another lane may come before or after that one.
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

    /// Returns the lowest stamp of what the last turn has left, if it is below the cut.
    fn oldest_before(&mut self, cut: u64) -> Option<u64> {
        let lanes = &mut self.lanes;
        let firsts = self.open.iter().filter_map(|number| lanes[*number].first());
        firsts.map(|first| first.stamp).min().filter(|oldest| *oldest < cut)
    }

    /// Returns true if the last turn has left something that it saw, for example because it was stamped after the cut.
    pub(crate) fn has_left(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns true if there is anything that the next turn could take: the sleeper's last look (WAKE-1).
    pub(crate) fn has_more(&self, intake: &Intake) -> bool {
        self.has_left() || intake.signals.has_ready()
    }

    /// Closes all lanes, and takes all that was published before: the engine's last look.
    pub(crate) fn close(&mut self, intake: &Intake, take: impl FnMut(Record, bool)) {
        let lanes = &mut *lock(&intake.lanes);
        lanes.is_closed = true;
        self.lanes.append(&mut lanes.fresh);
        // From here on each writer is refused by its own lane. All that it published before is seen by this
        // (INTAKE-1).
        self.lanes.iter_mut().for_each(LaneReader::close);
        self.open = (0..self.lanes.len()).collect();
        self.merge(u64::MAX, usize::MAX, take);
        self.open.clear();
    }

    /// Panics if the reader is not as it should be between turns. It looks at the first few open lanes.
    fn check_invariants(&self) {
        assert!(self.heads.is_empty(), "heads are used within a turn only");
        for (place, number) in self.open.iter().take(CHECKED).enumerate() {
            assert!(!self.open[..place].contains(number), "lane {number} is open twice");
            self.lanes[*number].check_invariants();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::lane::LaneWriter;
    use super::*;
    use crate::backpressure::{Backpressure, Flow};
    use crate::wheel::entry::Entry;

    fn record(stamp: u64) -> Record {
        Record { entry: Entry { deadline: 1, name: stamp }, stamp }
    }

    /// Returns an intake with so many writers.
    fn intake(writers: usize) -> (Intake, Vec<LaneWriter>) {
        let intake = Intake::new(true, None);
        let writers = (0..writers).map(|_| intake.take_lane()).collect();
        (intake, writers)
    }

    fn push(writer: &mut LaneWriter, stamp: u64) {
        assert!(writer.push(record(stamp)).is_ok());
    }

    fn take(reader: &mut IntakeReader, intake: &Intake, cut: u64, most: usize) -> Vec<u64> {
        let mut stamps = Vec::new();
        let taken = reader.take(intake, cut, most, |record, _| stamps.push(record.stamp));
        assert_eq!(taken, stamps.len());
        stamps
    }

    #[test]
    fn stamps_of_a_lane_never_go_down() {
        let (intake, mut writers) = intake(1);
        [5, 3, 7].iter().for_each(|stamp| push(&mut writers[0], *stamp));
        assert_eq!(take(&mut IntakeReader::default(), &intake, 100, 100), [5, 5, 7]);
    }

    #[test]
    fn lanes_are_merged_by_stamp_and_a_turn_takes_no_more_than_it_is_told() {
        let (intake, mut writers) = intake(3);
        let mut seed = 9_u64;
        let mut all = Vec::new();
        for stamp in 0..5_000 {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            push(&mut writers[(seed >> 40) as usize % 3], stamp);
        }
        let mut reader = IntakeReader::default();
        while reader.has_more(&intake) {
            let most = 1 + all.len() / 3;
            let some = take(&mut reader, &intake, 4_000, most);
            assert!(some.len() == most || !reader.is_behind(4_000));
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        assert!(all.iter().copied().eq(0..4_000), "in order, and all before the cut");
        assert!(reader.has_left());
        assert!(take(&mut reader, &intake, 5_000, 5_000).into_iter().eq(4_000..5_000));
        assert!(!reader.has_left());
    }

    #[test]
    fn a_lane_that_publishes_again_while_it_is_open_is_visited_once() {
        let (intake, mut writers) = intake(2);
        let mut reader = IntakeReader::default();
        for round in 0..300 {
            push(&mut writers[0], 10 * round);
            push(&mut writers[1], 10 * round + 1);
            assert_eq!(take(&mut reader, &intake, 10 * round + 1, 10).last(), Some(&(10 * round)));
            assert_eq!(reader.open, [1]);
        }
    }

    #[test]
    fn s19_a_turn_does_not_follow_a_writer_beyond_its_cut() {
        let (intake, mut writers) = intake(1);
        let (mut reader, cut) = (IntakeReader::default(), 1_500);
        (0..20_000).for_each(|stamp| push(&mut writers[0], stamp));
        assert_eq!(take(&mut reader, &intake, cut, usize::MAX).len(), 1_500);
        assert!(!reader.is_behind(cut) && reader.has_more(&intake));
        assert_eq!(take(&mut reader, &intake, u64::MAX, usize::MAX).len(), 18_500);
        assert!(!reader.has_more(&intake));
    }

    /// Some of it has been seen, and waits for a turn with a later cut.
    #[test]
    fn s20_a_close_takes_what_no_turn_has_taken_in_order() {
        let (intake, mut writers) = intake(2);
        (0..3_000).for_each(|stamp| push(&mut writers[stamp as usize % 2], stamp));
        let mut reader = IntakeReader::default();
        assert!(take(&mut reader, &intake, 500, 300).into_iter().eq(0..300));
        let mut left = Vec::new();
        reader.close(&intake, |record, _| left.push(record.stamp));
        assert!(left.into_iter().eq(300..3_000));
        assert!(writers[0].push(record(9_000)).is_err());
    }

    #[test]
    fn a_reading_that_is_not_one_goes_on_with_each_turn() {
        let (intake, _) = intake(0);
        assert_eq!(intake.reading_of_last_turn(), 0);
        take(&mut IntakeReader::default(), &intake, 70, 1);
        assert_eq!(intake.reading_of_last_turn(), 70);
    }

    #[test]
    fn blocks_are_counted_when_they_are_full_and_when_they_are_empty_again() {
        let (intake, mut writers) = intake(2);
        let mut filled = Vec::new();
        for stamp in 0..1_000 {
            let writer = &mut writers[stamp as usize % 2];
            if writer.push(record(stamp)).is_ok_and(|has_filled| has_filled) {
                filled.push(intake.flow().ahead);
            }
        }
        assert_eq!(filled, [1, 2, 3, 4, 5, 6], "three of each lane");
        assert_eq!(intake.flow().ahead, 6);
        take(&mut IntakeReader::default(), &intake, u64::MAX, 600);
        assert_eq!((intake.flow().ahead, intake.flow().passed), (2, 1));
    }

    #[test]
    fn a_lane_that_was_left_is_taken_again() {
        let (intake, writers) = intake(3);
        for mut writer in writers {
            writer.wait = Backpressure::new(0).wait(Flow { ahead: 1, passed: 0 });
            intake.leave_lane(writer);
        }
        let again = [(); 3].map(|()| intake.take_lane());
        assert!(again.iter().all(|writer| writer.wait.is_none()), "no thread inherits a wait");
        let mut lanes = 0;
        intake.each_lane(|_| lanes += 1);
        assert_eq!(lanes, 3);
        drop(again);
    }
}
