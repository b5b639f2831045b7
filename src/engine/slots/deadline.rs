//! The deadline of a task, and how it moves (S28).
//!
//! The holder has the *deadline* of the task's next run. The live [`Entry`] of the task, in a lane, in the wheel, or in a
//! queue, is *filed* under a deadline of its own. The wheel gives the entry out at that time. Both are the same until the
//! deadline moves further away. Then the annex has the filed one:
//!
//! ```text
//!   filed = deadline --reset to later--> filed < deadline --the entry comes out--> a new entry, filed under the deadline
//!          '---------reset to earlier--> a new entry, filed under the deadline; the old one is stale
//!
//!   in a run of a series --reset--> the deadline of the next run is known; its entry comes after the run
//! ```
//!
//! Most deadlines that move go further away. That costs an exchange of the word and two stores. However often the deadline
//! moves, the task has one entry, which is filed again once per period of its shortest delay.
//!
//! - RESET-2 The live entry comes out no later than the deadline, or it is out already. Nobody runs it before the
//!   deadline. A thread that gets the entry out too early files the task again: the tick thread into the wheel, any other
//!   thread through its lane. The tick thread also does so if the deadline has passed in the meantime, so that the task
//!   comes in order among those that are due.
//! - RESET-3 `deadline` and `filed` change only while the task is held, or while its holder is filled. So resets are in one
//!   order, and the last one that returns true counts. A claim holds the task too, and looks at its deadline.
//! - RESET-4 The record of a new entry is pushed while the task is held, and the number of the word changes only if the
//!   engine takes it. If the engine is closed, the task stays what it was: its old entry stays live, and the engine
//!   finds it at its end. A series is still at the end of its run, and a leftover is still one.

use super::blocks;
use super::holder::entry;
use super::state::{Phase, Word};
use super::task::Running;
use crate::clock::tick::{Moment, Times};
use crate::platform::sync::Ordering;
use crate::wheel::entry::{Entry, SchedulerId, TaskKey};

/// Stands in the holder of a series in its run, as long as nobody has moved its next run. No reset stores it: it is 18
/// years before the scheduler was built.
const NOT_MOVED: Moment = Moment(0);

/// The earliest deadline that a reset stores.
const EARLIEST: Moment = Moment(NOT_MOVED.0 + 1);

/// What a reset has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    Done,
    /// The task has started, is over, or was cancelled.
    TooLate,
    /// The task has moved to another scheduler.
    Elsewhere,
}

// ----- looks -----------------------------------------------------------------------------------

/// Returns when a task is due that waits, pending or returned, and the scheduler on whose timeline that is. Of a task that
/// runs it is not known.
pub(crate) fn of(key: TaskKey) -> Option<(Moment, SchedulerId)> {
    look(key, Word::waits)
}

/// Returns when a leftover is due. Of a series in its run that is known only if a reset has moved the next one. If it is not
/// known, returns `estimate`.
pub(crate) fn of_leftover(key: TaskKey, estimate: Moment) -> Moment {
    let deadline = look(key, Word::may_move).map(|(deadline, _)| deadline);
    deadline.filter(|deadline| *deadline != NOT_MOVED).unwrap_or(estimate)
}

/// Returns the deadline and the scheduler of a task, or `None` if `is_such` returns false for its word.
fn look(key: TaskKey, is_such: impl Fn(Word) -> bool) -> Option<(Moment, SchedulerId)> {
    let holder = blocks::holder(key.slot)?;
    holder.settled(|word| {
        let (birth, scheduler) = holder.identity();
        let is_meant = birth == key.birth() && (is_such(word) || word.is_in(Phase::Held));
        is_meant.then(|| (holder.deadline(), scheduler))
    })
}

// ----- resets ----------------------------------------------------------------------------------

/// Moves the deadline of a pending task of this scheduler further away, if the task is no series. `None` if only
/// [`reset`] can tell.
#[inline]
pub(crate) fn postpone(key: TaskKey, scheduler: SchedulerId, to: Moment) -> Option<Reset> {
    let holder = blocks::holder(key.slot)?;
    // A series is moved to now at the earliest, and now is not known here.
    let is_plain = |word: Word| holder.is_at(key, scheduler) && !word.is_series();
    let word = holder.word.hold(is_plain, Phase::Pending)?;
    let deadline = holder.deadline();
    // An entry that is filed too early is found out when it comes out. One that is filed too late would run late.
    let is_later = deadline <= to;
    let word = if !is_later {
        word
    } else if word.is_put_off() {
        holder.set_deadline(to);
        word
    } else {
        blocks::annex(key.slot).map_or(word, |annex| holder.set_filed(annex, word, to, deadline))
    };
    holder.word.put_back(word);
    is_later.then_some(Reset::Done)
}

/// Moves the deadline of a task of this scheduler. The engine has given out all entries that were filed up to
/// `out_until`, or will do so before it files a new one. `is_far_behind`: much is in the lanes that the engine has not
/// taken. `announce` pushes the record of a new entry, and returns false if the engine is closed.
pub(crate) fn reset(
    key: TaskKey,
    Times { now, deadline: to }: Times,
    out_until: Moment,
    is_far_behind: bool,
    scheduler: SchedulerId,
    mut announce: impl FnMut(Entry) -> bool,
) -> Reset {
    let (holder, annex) = (blocks::holder(key.slot), blocks::annex(key.slot));
    let (Some(holder), Some(annex)) = (holder, annex) else { return Reset::TooLate };
    let to = to.max(EARLIEST);
    let held =
        |word: Word| (holder.is_of(key) && word.may_move()).then(|| word.in_phase(Phase::Held));
    let Some(word) = holder.word.change(held) else { return Reset::TooLate };
    if !holder.is_at(key, scheduler) {
        // The other scheduler may have another timeline, in which `to` means something else.
        holder.word.put_back(word);
        return Reset::Elsewhere;
    }
    // A series that was due long ago would make up for all runs since then, at once.
    let to = if word.is_series() { to.max(now) } else { to };
    // A leftover has no entry, and neither has a series in its run: its next entry comes after the run.
    if !word.is_in(Phase::Pending) {
        holder.set_deadline(to);
        holder.word.put_back(word);
        return Reset::Done;
    }
    // Relaxed: as in `set_filed`.
    let put_off = word.is_put_off().then(|| Moment(annex.filed.load(Ordering::Relaxed)));
    let filed = put_off.unwrap_or_else(|| holder.deadline());
    // A task must have only a few records in the lanes, however often it is reset while the engine does not turn.
    // So while the engine is far behind, a new entry is due at once, whenever the task is. It is filed again when
    // it comes out, and until then all further resets find it early enough. If they move it back before a deadline
    // that has passed already, an entry before all deadlines does.
    let new = match is_far_behind {
        false => to,
        true if filed <= now => EARLIEST,
        true => now.min(to),
    };
    // An entry that has come out is on its way to a run, and the run looks at the deadline.
    let is_too_late = out_until < filed && (to < filed || (to <= now && !is_far_behind));
    let again = word.filed_again();
    if is_too_late && announce(entry(key.slot, again, new, now)) {
        holder.word.put_back(holder.set_filed(annex, again, to, new)); // RESET-4
    } else {
        holder.word.put_back(holder.set_filed(annex, word, to, filed));
    }
    Reset::Done
}

// ----- entries that come out -------------------------------------------------------------------

/// Looks at an entry that has come out of the wheel, before it is handed over. The tick thread calls this, so that no
/// executor gets the task too early. Returns true if the task is due, or if a claim has to decide. If the task is due later,
/// `file` gets the entry that has to be filed now. Of a stale entry nothing comes.
#[inline]
pub(crate) fn is_due(entry: Entry, file: impl FnMut(Entry)) -> bool {
    let Some(holder) = blocks::holder(entry.slot()) else { return false };
    let word = holder.word.load();
    // Without holding the task, because nearly all entries come out at their deadline. A reset may still come before
    // the claim, which looks again.
    let is_live = word.is_filed_as(entry.number());
    let is_later = word.is_in(Phase::Held) || entry.moment() < holder.deadline();
    if !is_live || !is_later {
        return is_live;
    }
    let mut next = None;
    let is_due = put_off(entry, entry.moment(), |again| next.replace(again).is_none());
    next.into_iter().for_each(file); // when the task is not held any more (WORD-5)
    is_due
}

/// Files the task of an entry again that has come out too early. `announce` gets its next entry, and returns false if the
/// engine is closed. If its deadline has passed by `now`, does nothing and returns true.
#[cold]
pub(crate) fn put_off(entry: Entry, now: Moment, announce: impl FnOnce(Entry) -> bool) -> bool {
    let Some(holder) = blocks::holder(entry.slot()) else { return false };
    let Some(word) = holder.hold(entry) else { return false };
    let (deadline, again) = (holder.deadline(), word.filed_again());
    let is_due = deadline <= now;
    let is_filed = !is_due && announce(entry.filed_again(deadline, again.number()));
    holder.word.put_back(if is_filed { again } else { word }); // RESET-4
    is_due
}

impl Running {
    /// Claims the task of an entry that has come out, and returns when it was due. `None` if the entry is stale. If the task is
    /// due later than the entry, this calls `put_off`, which files it again, or returns the entry as of a later time.
    #[inline]
    pub(crate) fn claim(
        mut entry: Entry,
        mut put_off: impl FnMut(Entry) -> Option<Entry>,
    ) -> Option<(Running, Moment)> {
        let holder = blocks::holder(entry.slot())?;
        loop {
            let word = holder.hold(entry)?;
            let deadline = holder.deadline();
            if deadline <= entry.moment() {
                // So that a reset during the run can be told from the deadline of this run.
                if word.is_series() {
                    holder.set_deadline(NOT_MOVED);
                }
                let (key, word) = (holder.key(entry.slot()), word.in_phase(Phase::Running));
                holder.word.put_back(word);
                return Some((Running { key, word, holder }, deadline));
            }
            // It asks the clock, which may be a user's, so the task is not held meanwhile.
            holder.word.put_back(word);
            entry = put_off(entry)?;
        }
    }

    /// Makes a series pending again, under the same key: at `next`, or where a reset during the run has moved it.
    /// `announce` pushes the record of its entry, and returns false if the engine is closed (RESET-4). Returns true if the series
    /// is pending, so it may be another thread's already. Otherwise a cancel has doomed it in its run, or the engine is closed.
    /// Then it has the deadline of its next run.
    #[inline]
    pub(crate) fn rearm(
        &self,
        next: Moment,
        now: Moment,
        announce: impl FnOnce(Entry) -> bool,
    ) -> bool {
        let holder = self.holder;
        let is_it = |word: Word| word.number() == self.word.number();
        // A cancel may doom the series at any time until it is held.
        let Some(word) = holder.word.hold(is_it, Phase::Running) else { return false };
        // A reset during the run counts more than the period, and than the delay that the closure has chosen.
        let chosen = Some(holder.deadline()).filter(|chosen| *chosen != NOT_MOVED);
        let next = chosen.unwrap_or(next);
        holder.set_deadline(next);
        let again = word.filed_again().in_phase(Phase::Pending);
        let is_filed = announce(entry(self.key.slot, again, next, now));
        holder.word.put_back(if is_filed { again } else { word });
        is_filed
    }
}
