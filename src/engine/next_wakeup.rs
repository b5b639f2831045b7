//! When to turn again, and what a sleeper does before it sleeps.

use super::{Engine, LOOK_AHEAD, Next, Precision, SKIP, is_live, needed_at};
use crate::time::tick::Moment;
use crate::wheel::entry::Entry;

impl Engine {
    /// TURN-3.
    pub(super) fn next(&mut self, now: Moment, cut: u64, is_tidy: bool) -> Next {
        let ready = &mut self.ready;
        ready.skip(SKIP, |entry| !is_live(entry));
        let is_due = self.ready.next().is_some_and(|next| next <= now);
        let again_at = self.outboxes.again_at();
        let is_to_be_asked = again_at.is_some_and(|at| at <= now);
        if is_due || !is_tidy || is_to_be_asked || self.reader.is_behind(cut) {
            return Next::Again;
        }
        if !self.has_news() && self.trim(now) {
            return Next::Again;
        }
        let has_a_thread = self.shared.has_a_thread;
        let trim_at = self.trim_at.filter(|_| has_a_thread);
        let look_at = self.look_at.filter(|_| has_a_thread);
        // A driven engine does not ask to come back for this, so that virtual time goes from deadline to deadline.
        let settle_at = self.wheel.settle_at().filter(|_| has_a_thread);
        let settle_at = settle_at.map(|tick| self.shared.timeline.end_of(tick));
        let times = [self.ready.next(), self.wheel_needs(), again_at, trim_at, look_at, settle_at];
        match times.into_iter().flatten().min() {
            None | Some(Moment::NEVER) => Next::Idle,
            Some(at) => Next::At(at),
        }
    }

    /// When the wheel has to be advanced for its earliest live entry.
    fn wheel_needs(&mut self) -> Option<Moment> {
        let wheel = &mut self.wheel;
        let first = wheel.first(LOOK_AHEAD, |entry| is_live(*entry))?;
        self.served_at(Moment(first))
    }

    /// When the wheel gives out what has this deadline; `None` for never.
    fn served_at(&self, deadline: Moment) -> Option<Moment> {
        let timeline = &self.shared.timeline;
        match self.precision {
            _ if deadline == Moment::NEVER => None,
            Precision::Tick => Some(timeline.end_of(timeline.covering(deadline))),
            Precision::Exact => Some(deadline),
        }
    }

    /// A thread that was woken for what is cancelled by now sleeps as if it were not. The next one that is
    /// scheduled is likely to be cancelled as soon, and due no earlier; else each of them would wake it
    /// again. This costs at most one wake-up for nothing after such a flow has ended.
    pub(super) fn no_later_than(&self, news: Moment, next: Next, now: Moment) -> Next {
        let news = self.served_at(news).filter(|at| self.shared.has_a_thread && *at > now);
        match (next, news) {
            (Next::Idle, Some(news)) => Next::At(news),
            (Next::At(at), Some(news)) => Next::At(at.min(news)),
            (next, _) => next,
        }
    }

    /// Takes in what is there, and returns true if all of it can wait, because it would have left the bell alone. This is
    /// the sleeper's last look, after it has armed the bell (WAKE-5).
    pub(crate) fn can_wait(&mut self, threshold: Moment) -> bool {
        if self.shared.is_closing() {
            return false;
        }
        if !self.reader.has_more(&self.shared.intake) {
            return true;
        }
        let cut = self.cut();
        let taken = self.take_in(cut);
        // A clock of coarse steps may stamp at the cut what was published before the arming and has not rung. So what is
        // left there has to be able to wait too (WAKE-5).
        let mut earliest = taken.earliest;
        self.reader.each_left(|record| earliest = earliest.min(needed_at(Entry::from(record))));
        !self.reader.is_behind(cut) && earliest >= threshold
    }

    /// Whether something has come in that no turn has taken yet.
    pub(crate) fn has_news(&self) -> bool {
        self.shared.is_closing() || self.reader.has_more(&self.shared.intake)
    }

    /// A task due before this must wake a sleeper that will wake at `at` anyway.
    pub(crate) fn threshold(&self, at: Moment) -> Moment {
        match self.precision {
            // What is due in the tick that ends at `at` is served then.
            Precision::Tick => {
                Moment(at.0.saturating_sub(self.shared.timeline.tick_nanos().get() - 1))
            }
            Precision::Exact => at,
        }
    }
}
