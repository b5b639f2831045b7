//! The deadline of a task, and how it moves (S28).
//!
//! The holder has the *deadline* of the task's next run. An [`Entry`] stands for that run in a lane, in the wheel, or in
//! a queue. It has a deadline of its own, under which it is *filed*: then it comes out. If the task was never reset,
//! both are the same, and only the holder's is kept. A reset marks the word, and from then on the annex has the filed
//! one:
//!
//! ```text
//!   filed = deadline --reset to later--> filed < deadline --the entry comes out--> filed = deadline, filed again
//!          '---------reset to earlier--> filed = deadline, of a new entry; the old one is void
//!
//!   in a run of a series --reset--> the deadline of the next run is known; its entry comes after the run
//! ```
//!
//! So a deadline that moves further away, which is what most of them do, costs an exchange of the word and two stores. However often
//! it moves, the task has one entry, which is filed again once per period of its shortest delay.
//!
//! - RESET-1 Of the entries of a pending task exactly one is valid: the one that is filed under `filed`, with the turn of
//!   the word. All others are void. Whoever meets one drops it. A void entry may become valid when the same task is filed
//!   under the same deadline again. Then it is the twin of the valid one, and whichever comes out first is taken.
//! - RESET-2 The valid entry comes out no later than the deadline, or it is out already. Nobody runs it before the
//!   deadline: who gets it out too early files it again, the tick thread into the wheel, and any other thread through
//!   its lane. The tick thread also does so if the deadline has passed in the meantime, so that the task finds its place
//!   among those that are due.
//! - RESET-3 `deadline` and `filed` change only while the task is held, or while it belongs to one thread: to the caller
//!   who fills the holder. So resets are in one order, and the last one that returns true counts. A claim of a task that
//!   was reset holds it too. The claim of any other task is one exchange, and a reset that comes before it makes it fail.
//! - RESET-4 The record of a new entry is pushed while the task is held: by a reset, by a filing again, for the next run
//!   of a series, and for a leftover that moves. So the old entry becomes void only if the engine takes the new one. If
//!   the engine is closed, the task stays what it was: its old entry stays valid, and the engine finds it at its end; a
//!   series is still at the end of its run, and a leftover is still one.
//! - RESET-5 A look at an entry that does not hold the task may take a void entry for valid, and never a valid one for
//!   void: the entry was pushed while the task was held, so a look that finds the task not held sees what was filed then,
//!   or later.
//! - RESET-6 A task has a few records in the lanes at most, however often it is reset while the engine does not turn.
//!
//! **Equal deadlines** (S3). A task whose deadline moves counts as scheduled at that moment, but its entry is filed at
//! the new deadline later, perhaps after an entry of the same deadline that was scheduled in the meantime. Where tasks
//! are stamped by a count, which is where the clock may stand still, the annex keeps the stamp of the call that has set
//! the deadline, from the first reset on. The [`ReadyQueue`](crate::engine::ready::ReadyQueue) puts equal deadlines in
//! the order of these stamps; a task that has none was scheduled before. On the system's clock equal deadlines come only
//! from equal instants, and a task that was moved to one may come after others that were scheduled later.

use super::holder::{self, Annex, Running, TaskHolder};
use super::state::{Phase, Word};
use super::{blocks, moved};
use crate::clock::tick::Moment;
use crate::engine::admit::Times;
use crate::platform::sync::Patience;
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};

/// Stands in the holder of a running series that was reset before, as long as nobody has moved its next run. No reset
/// stores it: it is 18 years before the scheduler was built.
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

/// A series that has no next run. It is still the runner's.
pub(crate) enum NotRearmed {
    /// A cancel has doomed it in its run. The runner ends it.
    Doomed(Running),
    /// The engine is closed. The series has the deadline of its next run, and becomes a leftover.
    Closed(Running),
}

/// What an entry that has come out stands for.
pub(crate) enum Due {
    /// Its task is due, or a claim has to decide.
    Yes,
    /// Its task is due later. This entry has to be filed now.
    Later(Entry),
    /// Nothing: the task is over, or the entry is void.
    No,
}

impl TaskHolder {
    /// Returns false if the entry is void. The caller holds the task, or has found it not held.
    fn is_valid(&self, annex: &Annex, word: Word, entry: Entry) -> bool {
        let filed = if word.was_reset() { annex.filed() } else { self.deadline() };
        filed == entry.moment() && word.turn() == entry.turn()
    }
}

/// Returns who runs a task that has a closure. Alarms are not reset.
fn runner(word: Word) -> Runner {
    if word.executor() == 0 { Runner::Default } else { Runner::Own }
}

// ----- looks -----------------------------------------------------------------------------------

/// Returns when a task is due that waits: pending or returned. Of a task that runs it is not known.
pub(crate) fn deadline(key: TaskKey) -> Option<Moment> {
    let holder = blocks::holder(key.slot)?;
    let mut patience = Patience::default();
    loop {
        let waits = |word: Word| {
            let is_same = word.generation() == key.generation;
            is_same && (word.is_in(Phase::Pending) || word.is_in(Phase::Returned))
        };
        let before = holder.word.load();
        // Acquire: if it is the deadline of a later task in this holder, the word that is loaded next tells so.
        let deadline = holder.deadline();
        let after = holder.word.load();
        // Whole runs of a series may lie between the two looks. In a run its deadline is not known.
        let is_known = deadline != NOT_MOVED || !before.is_series();
        if waits(before) && before == after && is_known {
            return Some(deadline);
        }
        let is_held = |word: Word| word.generation() == key.generation && word.is_in(Phase::Held);
        if !is_held(after) && !waits(after) {
            return None;
        }
        patience.spin();
    }
}

/// Returns when the next run of a series is due that runs, if somebody has moved it.
pub(crate) fn moved_in_run(key: TaskKey) -> Option<Moment> {
    let holder = blocks::holder(key.slot)?;
    let deadline = holder.deadline();
    let word = holder.word.load();
    let is_meant = word.generation() == key.generation && word.is_running() && word.was_reset();
    (is_meant && deadline != NOT_MOVED).then_some(deadline)
}

/// Returns the stamp of the call that has set the deadline under which this entry is filed. It is 0 for an entry that is
/// stale, or comes out too early, so that it keeps no other one from its place.
pub(crate) fn stamp(entry: Entry) -> u64 {
    let slot = entry.key().slot;
    let (Some(holder), Some(annex)) = (blocks::holder(slot), blocks::annex(slot)) else { return 0 };
    let counts = is_live(entry) && holder.deadline() <= entry.moment();
    if counts { annex.stamp(entry.generation) } else { 0 }
}

/// Returns the stamp of the call that has set the deadline of a leftover.
pub(crate) fn stamp_of(key: TaskKey) -> u64 {
    blocks::annex(key.slot).map_or(0, |annex| annex.stamp(key.generation))
}

/// Notes the stamp of a task that is about to be announced.
#[cold]
pub(crate) fn set_stamp(key: TaskKey, stamp: u64) {
    blocks::annex(key.slot).into_iter().for_each(|annex| annex.set_stamp(key.generation, stamp));
}

/// Returns false if the entry is stale: its task is over or runs, or the entry is void (RESET-5).
#[inline]
pub(crate) fn is_live(entry: Entry) -> bool {
    holder::pending_word(entry.key()).is_some_and(|word| !word.was_reset() || !is_void(entry, word))
}

/// Returns true if the entry of a task in an executor's queue does not count any more.
#[inline]
pub(crate) fn is_out_of_date(entry: Entry) -> bool {
    match holder::word(entry.key()) {
        Some(word) if word.generation() == entry.generation => {
            word.was_reset() && word.is_in(Phase::Pending) && is_void(entry, word)
        }
        _ => true,
    }
}

#[cold]
fn is_void(entry: Entry, word: Word) -> bool {
    let (holder, annex) = (blocks::holder(entry.key().slot), blocks::annex(entry.key().slot));
    let (Some(holder), Some(annex)) = (holder, annex) else { return true };
    !word.is_in(Phase::Held) && !holder.is_valid(annex, word, entry)
}

// ----- resets ----------------------------------------------------------------------------------

/// Moves the deadline of a pending task further away, if the task was reset before and has not moved to another
/// scheduler. `None` if only [`reset`] can tell.
#[inline]
pub(crate) fn postpone(key: TaskKey, to: Moment) -> Option<Reset> {
    let holder = blocks::holder(key.slot)?;
    if holder.word.load_relaxed().generation() != key.generation {
        return Some(Reset::TooLate);
    }
    if holder.deadline() > to {
        return None; // perhaps, and if so, `reset` will see it too
    }
    // A series is moved to now at the earliest, and now is not known here.
    let is_plain = |word: Word| word.was_reset() && !word.has_moved() && !word.is_series();
    let word = holder.word.hold_if(key.generation, Phase::Pending, is_plain)?;
    let is_later = holder.deadline() <= to;
    if is_later {
        holder.set_deadline(to);
    }
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
    stamp: Option<u64>,
    scheduler: SchedulerId,
    mut announce: impl FnMut(Entry) -> bool,
) -> Reset {
    let (holder, annex) = (blocks::holder(key.slot), blocks::annex(key.slot));
    let (Some(holder), Some(annex)) = (holder, annex) else { return Reset::TooLate };
    let to = to.max(EARLIEST);
    loop {
        let seen = holder.word.load();
        let from = match seen.phase() {
            _ if seen.generation() != key.generation => return Reset::TooLate,
            Phase::Pending | Phase::Held => Phase::Pending,
            Phase::Returned => Phase::Returned,
            Phase::Running | Phase::HeldInRun if seen.is_series() => Phase::Running,
            _ => return Reset::TooLate,
        };
        let Some(word) = holder.word.hold(key.generation, from) else { continue };
        if word.has_moved() && moved::scheduler(key) != Some(scheduler) {
            holder.word.put_back(word);
            return Reset::Elsewhere;
        }
        // A series that was due long ago would make up for all runs since then, at once.
        let to = if word.is_series() { to.max(now) } else { to };
        if from == Phase::Pending {
            let filed = if word.was_reset() { annex.filed() } else { holder.deadline() };
            // While the engine is far behind, a new entry is due at once, whenever the task is. It is filed again when it
            // comes out, and until then all further resets find it early enough (RESET-6). If they move it back before a
            // deadline that has passed already, an entry before all deadlines does.
            let new = match is_far_behind {
                false => to,
                true if filed <= now => EARLIEST,
                true => now.min(to),
            };
            // An entry that has come out is on its way to a run, and the run looks at the deadline.
            let is_too_late = out_until < filed && (to < filed || (to <= now && !is_far_behind));
            let entry = Entry::new(key, new, new <= now, runner(word), word.turn());
            let is_filed = is_too_late && announce(entry); // RESET-4
            annex.set_filed(if is_filed { new } else { filed });
        }
        stamp.into_iter().for_each(|stamp| annex.set_stamp(key.generation, stamp));
        holder.set_deadline(to);
        holder.word.put_back(if from == Phase::Returned { word } else { word.reset() });
        return Reset::Done;
    }
}

// ----- entries that come out -------------------------------------------------------------------

/// Looks at an entry that has come out of the wheel, before it is handed over. The tick thread calls this, so that no
/// executor gets the task too early. A reset may still come between this and the claim, which looks again.
#[inline]
pub(crate) fn come_out(entry: Entry) -> Due {
    match holder::pending_word(entry.key()) {
        None => Due::No,
        Some(word) if !word.was_reset() && !word.is_in(Phase::Held) => Due::Yes,
        Some(_) => come_out_checked(entry),
    }
}

#[cold]
fn come_out_checked(entry: Entry) -> Due {
    let key = entry.key();
    let (holder, annex) = (blocks::holder(key.slot), blocks::annex(key.slot));
    let (Some(holder), Some(annex)) = (holder, annex) else { return Due::No };
    let Some(word) = holder.word.hold(key.generation, Phase::Pending) else { return Due::No };
    let deadline = holder.deadline();
    let due = if !holder.is_valid(annex, word, entry) {
        Due::No
    } else if deadline <= entry.moment() {
        Due::Yes
    } else {
        annex.set_filed(deadline);
        Due::Later(entry.filed_under(deadline))
    };
    holder.word.put_back(word);
    due
}

impl Running {
    /// Claims a pending task that has neither moved to another scheduler nor ever been reset.
    #[inline]
    pub(crate) fn claim_plain(key: TaskKey) -> Option<Running> {
        let holder = blocks::holder(key.slot)?;
        let word = holder.word.claim_plain(key.generation)?;
        Some(Running::new(key, word, holder))
    }

    /// Claims any pending task for an entry that has come out at this scheduler. Returns the entry of the run too, whose
    /// deadline is the task's. It holds the task for the look at its entry, and for the look-up of its scheduler if it
    /// has moved (RESET-3).
    ///
    /// `None` if the task was cancelled, claimed before, or has moved to another scheduler; if the entry is void; or if
    /// the task is due later. In this last case it calls `announce` with the entry under which the task is filed from now
    /// on, and the present. `announce` returns false if the engine is closed.
    #[cold]
    pub(crate) fn claim_checked(
        entry: Entry,
        scheduler: SchedulerId,
        now: impl FnOnce() -> Option<Moment>,
        announce: impl FnOnce(Entry, Moment) -> bool,
    ) -> Option<(Running, Entry)> {
        let key = entry.key();
        let (holder, annex) = (blocks::holder(key.slot)?, blocks::annex(key.slot)?);
        let seen = holder.word.load();
        if seen.generation() != key.generation || !seen.is_pending() {
            return None;
        }
        let now = now().unwrap_or(entry.moment()); // before the hold, because the clock may be a user's
        let word = holder.word.hold(key.generation, Phase::Pending)?;
        let is_elsewhere = word.has_moved() && moved::scheduler(key) != Some(scheduler);
        let deadline = holder.deadline();
        if is_elsewhere || !holder.is_valid(annex, word, entry) {
            holder.word.put_back(word);
            return None;
        }
        if deadline > now.max(entry.moment()) {
            if announce(entry.filed_under(deadline), now) {
                annex.set_filed(deadline);
            }
            holder.word.put_back(word);
            return None;
        }
        if word.was_reset() && word.is_series() {
            holder.set_deadline(NOT_MOVED);
        }
        let running = word.in_phase(Phase::Running);
        holder.word.put_back(running);
        Some((Running::new(key, running, holder), Entry { deadline: deadline.0, ..entry }))
    }

    /// Makes a series pending again, under the same key: at `next`, or where a reset during the run has moved it.
    /// `announce` pushes the record of its entry, and returns false if the engine is closed (RESET-4).
    #[inline]
    pub(crate) fn rearm(
        self,
        mut next: Moment,
        now: Moment,
        announce: impl FnOnce(Entry) -> bool,
    ) -> Result<(), NotRearmed> {
        let (key, holder) = (self.key, self.holder);
        let Some(word) = holder.word.hold_rearmed(key.generation) else {
            return Err(NotRearmed::Doomed(self));
        };
        if word.was_reset() {
            let chosen = Some(holder.deadline()).filter(|chosen| *chosen != NOT_MOVED);
            next = chosen.unwrap_or(next);
            blocks::annex(key.slot).into_iter().for_each(|annex| annex.set_filed(next));
        }
        holder.set_deadline(next);
        if announce(Entry::new(key, next, next <= now, runner(word), word.turn())) {
            holder.word.put_back(word);
            Ok(())
        } else {
            holder.word.put_back(word.not_rearmed());
            Err(NotRearmed::Closed(self))
        }
    }
}
