//! The end of a turn: the engine tidies up, and says when to turn again. The last look of a sleeper is here too.

use super::bounds::{GIVE_BACK, LOOK_AHEAD, SETTLE, SKIP, STALE, SWEEP};
use super::{Engine, Next, Precision};
use crate::clock::tick::Moment;
use crate::engine::slots::deadline;
use crate::engine::slots::depot::depot;
use crate::engine::slots::task::is_live;
use crate::engine::slots::trim;
use crate::platform::sync::Ordering;
use crate::wheel::entry::Entry;

impl Engine {
    // ----- tidy ----------------------------------------------------------------------------

    /// Sweeps stale entries out if they outnumber the live ones, and moves some far entries near: a bounded share,
    /// which grows with what has come in. Returns true when there is nothing left to tidy.
    pub(super) fn tidy(&mut self, taken_in: usize) -> bool {
        // The wheel does not know which of its entries are stale. It has more entries than there are tasks only if
        // most of them are.
        if !self.tidying.is_sweeping_wheel && self.is_time_to_count() {
            let most = 2 * self.shared.pending() + STALE;
            self.tidying.is_sweeping_wheel = self.wheel.len() > most;
            self.tidying.is_sweeping_retries = self.retries.waiting() > most;
        }
        let tidying = &mut self.tidying;
        tidying.is_sweeping_retries = tidying.is_sweeping_retries && !self.retries.sweep(SWEEP);
        // Twice what has come in, so that the sweep comes to its end even if each task that comes in leaves a stale entry.
        let budget = SWEEP + 2 * taken_in;
        tidying.is_sweeping_wheel =
            tidying.is_sweeping_wheel && !self.wheel.sweep(budget, |entry| is_live(*entry));
        let is_settled = self.wheel.settle(SETTLE + taken_in);
        is_settled && !tidying.is_sweeping_wheel && !tidying.is_sweeping_retries
    }

    /// Returns true if it is worth counting what is pending, because much has changed since the last time.
    fn is_time_to_count(&mut self) -> bool {
        // To count is a walk over the lanes of all threads that ever scheduled, so it must not come with each turn.
        // Four tasks for each lane, so the walk costs a fraction of a step for each task.
        let much = (self.wheel.len() / 4).max(4 * self.reader.lanes.len()).max(STALE);
        if !self.shared.intake.were_many_cancelled() && self.tidying.filed < much {
            return false;
        }
        self.tidying.filed = 0;
        self.wheel.len() + self.retries.waiting() > STALE
    }

    /// Gives back memory that a peak has left. The engine calls this only if it has nothing else to do. Returns true if there
    /// is more to do at once.
    fn trim(&mut self) -> bool {
        // A trim that has begun goes on, a slice per turn.
        let (tidying, now) = (&mut self.tidying, self.now);
        tidying.is_trimming = tidying.is_trimming && self.wheel.give_back(GIVE_BACK);
        if trim::slice() || tidying.is_trimming {
            return true;
        }
        match tidying.trim_at {
            Some(at) if at <= now => {
                tidying.trim_at = None;
                if self.ready.is_bloated(&self.given_out) {
                    (self.ready, self.given_out) = Default::default();
                }
                tidying.is_trimming = self.wheel.is_bloated();
                trim::begin() || tidying.is_trimming
            }
            // Not at once: the next wave of tasks may need the memory again.
            None if depot().watch()
                || self.wheel.is_bloated()
                || self.ready.is_bloated(&self.given_out) =>
            {
                tidying.trim_at = Some(now.after(trim::GRACE));
                false
            }
            _ => false,
        }
    }

    // ----- when to come back ---------------------------------------------------------------

    /// Returns when to turn again: never later than the earliest live deadline needs.
    pub(super) fn next(&mut self, cut: u64, is_tidy: bool) -> Next {
        let now = self.now;
        if self.earliest <= now {
            self.earliest = Moment::NEVER;
        }
        // No thread has to wake up for a cancelled task. Those beyond the bound cost one turn more.
        self.ready.skip(SKIP, |entry| !is_live(entry));
        let first = [self.ready.next(), self.retries.retry_at()].into_iter().flatten().min();
        if first.is_some_and(|first| first <= now) || !is_tidy || self.reader.is_behind(cut) {
            return Next::Again;
        }
        // Memory can wait until there is nothing else to do.
        if !self.has_news() && self.trim() {
            return Next::Again;
        }
        // A budget, because the earliest bucket may be full of stale entries. The answer may then be too early, never
        // too late.
        let in_wheel = self.wheel.first(LOOK_AHEAD, |entry| is_live(*entry));
        let wheel_at = in_wheel.and_then(|first| self.served_at(Moment(first)));
        let mut next = first.into_iter().chain(wheel_at).min();
        // Only an engine with a thread comes back for housekeeping, so that the virtual time of a driven one goes from
        // deadline to deadline.
        if self.shared.has_a_thread {
            let settle_at =
                self.wheel.settle_at().map(|tick| self.shared.watch.timeline.end_of(tick));
            // A thread that was woken for a task that has been cancelled in the meantime sleeps until that task's
            // deadline anyway. The next tasks of such a flow are likely to be cancelled as soon, and due no earlier, and
            // would wake the thread again. This costs at most one wake-up for nothing after the flow has ended.
            let times = [next, self.tidying.trim_at, settle_at, self.served_at(self.earliest)];
            next = times.into_iter().flatten().min();
        }
        Next::At(next.unwrap_or(Moment::NEVER))
    }

    /// Returns the earliest deadline of what is pending and was not handed over, or [`Moment::NEVER`] if there is none. It takes
    /// in what there is. If the clock panics, it does not know what that is, and returns [`Next::Again`].
    pub(crate) fn first_deadline(&mut self) -> Next {
        if self.shared.is_closing() {
            return Next::At(Moment::NEVER);
        }
        let cut = self.read_clock();
        if self.is_blind {
            return Next::Again;
        }
        self.take_in(cut);
        while self.reader.is_behind(cut) {
            self.take_in(cut);
        }
        loop {
            // The entry of a task that was put off stands for an earlier time. It is filed where its task is due, and
            // the look begins anew, until the first entry of all is one whose task is due then.
            let mut moved = Vec::new();
            let mut is_valid = |entry: Entry| deadline::is_due(entry, |later| moved.push(later));
            self.ready.skip(usize::MAX, |entry| !is_valid(entry));
            let first = self.wheel.first(usize::MAX, |entry| is_valid(*entry)).map(Moment);
            let refused = self.retries.first_refused(is_valid);
            if moved.is_empty() {
                let first = [first, self.ready.next(), refused].into_iter().flatten().min();
                return Next::At(first.unwrap_or(Moment::NEVER));
            }
            moved.into_iter().for_each(|entry| self.file_again(entry));
        }
    }

    /// Returns when the wheel has to be advanced for a task of this deadline; `None` for never.
    fn served_at(&self, deadline: Moment) -> Option<Moment> {
        let timeline = &self.shared.watch.timeline;
        match self.precision {
            _ if deadline == Moment::NEVER => None,
            Precision::Tick => Some(timeline.end_of(timeline.covering(deadline))),
            Precision::Exact => Some(deadline),
        }
    }

    // ----- before the sleep ----------------------------------------------------------------

    /// Takes in what is there, and returns true if all of it can wait, because it would have left the bell alone. This is
    /// the sleeper's last look, after it has armed the bell.
    pub(crate) fn can_wait(&mut self, threshold: Moment) -> bool {
        // The threshold is armed, so whatever is published after this look rings by itself (WAKE-5).
        if !self.has_news() {
            return true;
        }
        // It is taken in anyway, by thousands at once. A thread that got up for each task instead took 80 ns a task
        // instead of 35.
        let due = self.ready.len();
        let cut = self.read_clock();
        self.take_in(cut);
        // What is left was seen by this look, so it may have been published before the arming, without a ring, whatever its
        // stamp. That is little: what has come in since the cut was read. The next turn takes it.
        let is_due = self.ready.len() > due || self.earliest < threshold;
        !self.shared.is_closing() && !self.reader.has_left() && !is_due
    }

    /// Returns true if something has come in that no turn has taken yet, or if the scheduler is closing.
    pub(crate) fn has_news(&self) -> bool {
        self.shared.is_closing() || self.reader.has_more(&self.shared.intake)
    }

    /// Arms the bell for a sleep until `at`. Returns the threshold: a task that is due before it ends the sleep.
    pub(crate) fn arm(&self, at: Moment) -> Moment {
        let threshold = match self.precision {
            // All that is due in the tick that ends at `at` is served then.
            Precision::Tick if at != Moment::NEVER => {
                Moment(at.0.saturating_sub(self.shared.watch.timeline.tick.get() - 1))
            }
            _ => at,
        };
        self.shared.next_wakeup.store(at.0, Ordering::Relaxed);
        self.shared.bell.arm(threshold);
        threshold
    }
}
