//! Tasks in their holders, by their owners.
//!
//! A [`Running`] is a claimed task, an [`Ending`] one that will not run again, and [`Over`] what is left of it. [`fill`]
//! writes the body of a task, and after that it can be reached only through these three, so the rest of the crate is safe
//! code, which knows a task by its key, or by an entry.

use std::mem::replace;
use std::ops::ControlFlow;
use std::ptr::{drop_in_place, read};
use std::sync::Arc;
use std::task::Waker;

use super::closure::{Closure, Content, Names, put};
use super::holder::{TaskHolder, entry};
use super::state::{NotEnded, Phase, Word};
use super::{blocks, depot, magazines};
use crate::clock::repeat::{Kind, Period};
use crate::clock::tick::{Moment, Times};
use crate::error::Refused;
use crate::executor::numbered::NumberedExecutor;
use crate::platform::panics::{Payload, caught};
use crate::platform::sync::Ordering;
use crate::wheel::entry::{Entry, SchedulerId, TaskKey};

/// The panics of the drop of a body, and the name of its closure (S31).
pub(crate) struct Thrown {
    pub(crate) name: &'static str,
    pub(crate) panics: Vec<Payload>,
}

/// Puts another executor in the place of the task's own one, or none.
///
/// # Safety
///
/// The caller owns the body of the task in this slot (HOLDER-2).
#[cold]
unsafe fn replace_executor(
    slot: u32,
    executor: Option<Arc<NumberedExecutor>>,
) -> Option<Arc<NumberedExecutor>> {
    // SAFETY: the caller is the only one to touch the body, and the executor belongs to it.
    blocks::annex(slot)?.executor.with_mut(|own| replace(unsafe { &mut *own }, executor))
}

/// Puts a task into a free slot and makes it pending. From now on it can be cancelled by its key. Gives the task back if
/// there is no memory for a slot, or if 268 million tasks are pending.
#[inline(always)]
#[expect(clippy::inline_always, reason = "see `Shared::admit`")]
pub(crate) fn fill<T: Content>(
    task: T,
    period: Option<Period>,
    executor: Option<&Arc<NumberedExecutor>>,
    deadline: Moment,
    scheduler: SchedulerId,
) -> Result<TaskKey, T> {
    let free = || magazines::take().and_then(|slot| Some((slot, blocks::holder(slot)?)));
    let Some((slot, holder)) = free() else { return Err(task) };
    // Written before anything is read there. The system maps a page that is read first to zeros that all processes share. At
    // the first write it has to take that mapping back from all processors, which costs the caller some 20 us.
    // SAFETY: the holder is free, so there is no body (HOLDER-1), and the slot is ours alone (HOLDER-2).
    holder.closure.with_mut(|place| put(task, unsafe { &mut *place }));
    let birth = holder.word.vacant().map_or_else(|| first_number(slot), Word::number);
    let number = executor.map_or(0, |own| {
        // SAFETY: as above.
        unsafe { replace_executor(slot, Some(Arc::clone(own))) };
        own.number
    });
    // Before the word: a thread that sees the new word finds this birth (WORD-4).
    holder.set_identity(birth, scheduler);
    holder.set_deadline(deadline);
    // A one-shot has no period, as its type tells, and does not touch the annex, which is on another cache line.
    let period = period.filter(|_| T::IS_SERIES);
    if let (Some(period), Some(annex)) = (period, blocks::annex(slot)) {
        annex.period.store(period.nanos(), Ordering::Relaxed);
    }
    let kind = period.map_or(Kind::Once, |period| period.kind);
    // The last step: it publishes all of the above.
    holder.word.fill(Word::pending(birth, kind, number, T::IS_WAKER));
    Ok(TaskKey::new(slot, birth))
}

/// Returns the birth of the first task in a holder that was never used, or whose page went back (SLOT-4).
#[cold]
fn first_number(slot: u32) -> u32 {
    // Relaxed: the slot came from the depot, whose lock was held after the last change.
    blocks::given_back(slot).load(Ordering::Relaxed) + 1
}

// ----- by its key: cancel, look, move -----------------------------------------------------------

/// Cancels a task that is still to run. The caller has to drop its closure and its executor. Returns also the scheduler
/// that the task belonged to.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "saves 30 instructions of a handle's cancel: what it returns stays in registers"
)]
pub(crate) fn cancel(key: TaskKey) -> (Result<Ending, NotEnded>, SchedulerId) {
    let mut scheduler = SchedulerId::FIRST;
    // The key of no task has slot 0, which may have no memory yet.
    let Some(holder) = blocks::holder(key.slot) else { return (Err(NotEnded::Lost), scheduler) };
    let is_meant = || {
        let birth;
        (birth, scheduler) = holder.identity();
        birth == key.birth()
    };
    let ended = holder.word.cancel(is_meant).map(|word| Ending(Over { key, word, holder }));
    (ended, scheduler)
}

/// Takes back a task whose schedule was refused, and of which no other thread has a handle or an entry. `None` if the last
/// turn of the engine has found it in its holder, and made a leftover of it.
pub(crate) fn withdraw<T: Content>(key: TaskKey) -> Option<T> {
    let holder = blocks::holder(key.slot)?;
    let is_it = |word: Word| word.number() == key.birth();
    let word = holder.word.transition(is_it, Phase::Pending, |_| Phase::Ending)?;
    let over = Over { key, word: word.in_phase(Phase::Ending), holder };
    // SAFETY: the body is there and ours (HOLDER-1, HOLDER-2). `Over` cannot reach the closure.
    let task = unsafe { holder.with_body(|closure| read(closure)) };
    let executor = over.drop_executor();
    debug_assert!(executor.is_ok(), "it is not the last one: the caller has it too");
    over.end();
    Some(task.take())
}

/// Returns the word of the task's holder, if no later task has it. In one total order with every cancel.
#[inline]
pub(crate) fn word(key: TaskKey) -> Option<Word> {
    let holder = blocks::holder(key.slot)?;
    let word = holder.word.load_in_order();
    holder.is_of(key).then_some(word)
}

/// Returns true if the holder tells that the task was cancelled: as long as it is in its last run, and until another task
/// uses the holder.
pub(crate) fn is_known_as_cancelled(key: TaskKey) -> bool {
    word(key).is_some_and(|word| word.is_in(Phase::Doomed) || word.ended_by_cancel())
}

/// Like [`word`], but waits for a task that is held. In one total order with every cancel.
pub(crate) fn settled_word(key: TaskKey) -> Option<Word> {
    let holder = blocks::holder(key.slot)?;
    holder.settled(|word| holder.is_of(key).then_some(word))
}

/// Returns true if the task will run, or is in a run and may run again. In one total order with every cancel.
pub(crate) fn goes_on(key: TaskKey) -> bool {
    settled_word(key).is_some_and(|word| word.waits() || word.is_in(Phase::Running))
}

/// Returns true if the task will not run again, and its last run has ended.
#[inline]
pub(crate) fn is_over(key: TaskKey) -> bool {
    word(key).is_none_or(|word| word.is_in(Phase::Free))
}

/// Returns the scheduler that the task belongs to. `None` if a later task has its holder.
pub(crate) fn scheduler(key: TaskKey) -> Option<SchedulerId> {
    let (birth, scheduler) = blocks::holder(key.slot)?.identity();
    (birth == key.birth()).then_some(scheduler)
}

/// Returns the nanoseconds between the runs of the series in this slot.
pub(crate) fn period(slot: u32) -> u64 {
    blocks::annex(slot).map_or(0, |annex| annex.period.load(Ordering::Relaxed))
}

/// Returns the name of the closure of a task that waits, pending or returned.
pub(crate) fn name(key: TaskKey) -> Option<&'static str> {
    let holder = blocks::holder(key.slot)?;
    let held = |word: Word| (word.waits() && holder.is_of(key)).then(|| word.in_phase(Phase::Held));
    let word = holder.word.change(held)?;
    // SAFETY: this thread holds the task, so there is a body (HOLDER-1) and nobody else touches it (HOLDER-2).
    let names = unsafe { holder.with_body(|closure| closure.names()) };
    holder.word.put_back(word);
    Some(names.name())
}

/// Makes a leftover of `from` pending at the scheduler `to`, on an executor there. `times` translates its deadline.
/// `announce` pushes the record of its entry, and returns false if the engine there is closed. Then the task stays a
/// leftover. Returns the old executor, which the caller drops. `None` if the task was cancelled.
pub(crate) fn move_to(
    key: TaskKey,
    (from, to): (SchedulerId, SchedulerId),
    executor: Option<&Arc<NumberedExecutor>>,
    times: impl FnOnce(Moment) -> Times,
    announce: impl FnOnce(Entry) -> bool,
) -> Option<Result<Option<Arc<NumberedExecutor>>, Refused>> {
    let holder = blocks::holder(key.slot)?;
    let word = holder.word.hold(|_| holder.is_of(key), Phase::Returned)?;
    // All that follows happens while the task is held, so no reset comes in between (RESET-4).
    let before = holder.deadline();
    let Times { now, deadline } = times(before);
    let moved = word.moved(executor.map_or(0, |own| own.number)).in_phase(Phase::Pending);
    // Before the word has another number, so a cancel that finds that number finds this scheduler.
    holder.set_identity(key.birth(), to);
    holder.set_deadline(deadline);
    // The engine there may look at the entry at once, and read the number of the executor.
    holder.word.put_back(moved.in_phase(Phase::Held));
    if announce(entry(key.slot, moved, deadline, now)) {
        // SAFETY: this thread holds the task, and the executor belongs to its body (HOLDER-2).
        let old = unsafe { replace_executor(key.slot, executor.cloned()) };
        holder.word.put_back(moved);
        return Some(Ok(old));
    }
    holder.set_identity(key.birth(), from);
    holder.set_deadline(before);
    holder.word.put_back(word.moved(word.executor()).in_phase(Phase::Returned));
    Some(Err(Refused))
}

/// Calls `visit` for each task of this scheduler that is pending or in a run, and no waker, with its word. In one total
/// order with every cancel.
///
/// It looks at the holders of all tasks in the process, at some three to four nanoseconds each, so it is for the end of a
/// scheduler. A task that comes in meanwhile, or ends, may be visited or not.
pub(crate) fn each_of(scheduler: SchedulerId, mut visit: impl FnMut(TaskKey, Word)) {
    // Block by block, so that nobody waits long for the depot's lock.
    let in_block = |block| depot::depot().slots_in_use(block);
    for slot in (0..).map_while(in_block).flatten() {
        let Some(holder) = blocks::holder(slot) else { continue };
        // Most are of others. If a task of this scheduler was there before, it is over.
        let look = |word| {
            let (birth, whose) = holder.identity();
            (whose == scheduler).then_some((birth, word))
        };
        let Some((birth, word)) = holder.settled(look) else { continue };
        let is_over = matches!(word.phase(), Phase::Free | Phase::Returned);
        if !is_over && !word.is_waker() {
            visit(TaskKey::new(slot, birth), word);
        }
    }
}

// ----- by an entry, or by slot and number: look, leave over -------------------------------------

/// Returns false if the entry is stale. It does not wait for a task that is held (WORD-5).
#[inline]
pub(crate) fn is_live(entry: Entry) -> bool {
    let holder = blocks::holder(entry.slot());
    holder.is_some_and(|holder| holder.word.load().is_filed_as(entry.number()))
}

/// Returns the key of the task of a live entry, and its word. A task that is held is waited for. In one total order with
/// every cancel.
pub(crate) fn settled(entry: Entry) -> Option<(TaskKey, Word)> {
    let holder = blocks::holder(entry.slot())?;
    let key = || holder.key(entry.slot());
    holder.settled(|word| word.is_filed_as(entry.number()).then(|| (key(), word)))
}

/// A task that was pending at the end of its scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leftover {
    pub(crate) key: TaskKey,
    pub(crate) deadline: Moment,
    /// In nanoseconds. 0 for a one-shot.
    pub(crate) period: u64,
    /// It is a series that was in a run when the end came, and was taken in that run.
    pub(crate) is_in_run: bool,
}

/// `leave over`: makes a leftover of the task in this slot that has this number and is in `from`: pending, or, if the engine has refused
/// the next run of a series, at the end of its run. `None` if there is no such task, for example because it was cancelled.
pub(crate) fn make_leftover(slot: u32, number: u32, from: Phase) -> Option<Leftover> {
    let holder = blocks::holder(slot)?;
    // Read before the transition, because after it a canceller may free the holder for another task. The deadline may
    // move in the meantime, and later too, so it is looked up again when it is asked for.
    let key = holder.key(slot);
    let period = if holder.word.load().is_series() { period(slot) } else { 0 };
    let deadline = holder.deadline();
    let is_it = |word: Word| word.number() == number;
    holder.word.transition(is_it, from, |_| Phase::Returned)?;
    Some(Leftover { key, deadline, period, is_in_run: false })
}

// ----- to run it, or to drop it -----------------------------------------------------------------

/// A task that its owner has claimed, to run or to drop it.
pub(crate) struct Running {
    pub(crate) key: TaskKey,
    /// As it was when the task was claimed.
    pub(crate) word: Word,
    pub(super) holder: &'static TaskHolder,
}

impl Running {
    /// Claims a leftover for its only run. After that no cancel wins, not even for a series.
    pub(crate) fn claim_leftover(key: TaskKey) -> Option<Running> {
        let holder = blocks::holder(key.slot)?;
        // A series in its only run is `Ending`, which a cancel does not touch.
        let last = |word: Word| if word.is_series() { Phase::Ending } else { Phase::Running };
        let word = holder.word.transition(|_| holder.is_of(key), Phase::Returned, last)?;
        Some(Running { key, word: word.in_phase(last(word)), holder })
    }

    /// Begins the end of a task that will not run again after this.
    #[inline]
    pub(crate) fn into_ending(self) -> Ending {
        let Running { key, word, holder } = self;
        let word = if word.is_series() { close(holder, word) } else { word };
        Ending(Over { key, word, holder })
    }

    /// Runs the closure of a series in place.
    pub(crate) fn run_in_place(&mut self) -> ControlFlow<()> {
        // SAFETY: claimed by us, so there is a body (HOLDER-1), and `&mut self` keeps it ours during the call
        // (HOLDER-2). A cancel in the meantime dooms the task and leaves the body alone.
        unsafe { self.holder.with_body(Closure::run) }
    }
}

/// Ends the runs of a series, so that no cancel wins from now on. Returns its word from before, or that of a series that a
/// cancel has doomed before.
#[cold]
fn close(holder: &TaskHolder, word: Word) -> Word {
    // A leftover in its only run is closed already.
    let is_open = word.is_in(Phase::Running);
    let is_it = |other: Word| other.number() == word.number();
    let is_doomed =
        is_open && holder.word.transition(is_it, Phase::Running, |_| Phase::Ending).is_none();
    if !is_doomed {
        return word;
    }
    // The exchange above comes after every cancel that has doomed the series, and so does this load. So whatever the runner
    // loads afterwards, in order, comes after that cancel too (END-5).
    holder.word.load_in_order()
}

/// A task that will not run again, or for the last time now. Its owner runs its closure, drops it, or takes it out.
pub(crate) struct Ending(Over);

impl Ending {
    /// Returns true if it was still to be run by its scheduler.
    #[inline]
    pub(crate) fn was_pending(&self) -> bool {
        self.0.word.is_in(Phase::Pending)
    }

    /// Returns true if a cancel came during the last run of a series.
    #[inline]
    pub(crate) fn was_cancelled(&self) -> bool {
        self.0.word.is_in(Phase::Doomed)
    }

    /// Returns what is needed to tell the name of the closure when it has gone.
    #[inline]
    pub(crate) fn names(&self) -> Names {
        // SAFETY: the body is there and ours (HOLDER-1, HOLDER-2), as it is in all that follows.
        unsafe { self.0.holder.with_body(|closure| closure.names()) }
    }

    /// Runs the closure, which is consumed by it. Returns what it has thrown.
    #[inline]
    pub(crate) fn run_once(self) -> (Result<(), Payload>, Over) {
        let holder = self.0.holder;
        // It runs where it lies. A body that is moved to the stack in wide words, and read there in others, waits for
        // its own stores.
        // SAFETY: see `names`. `Over` cannot reach the closure again.
        let ran = caught(|| unsafe { holder.with_body(|closure| closure.run_once_in_place()) });
        (ran, self.0)
    }

    /// Drops the closure, and then the executor. Returns the panics, if there were any.
    #[inline]
    pub(crate) fn discard(self) -> (Option<Box<Thrown>>, Over) {
        // Most closures own nothing that has to be dropped, and then this is a comparison.
        let Over { key, word, holder } = self.0;
        // SAFETY: see `names`.
        let has_drop = || unsafe { holder.with_body(|closure| closure.has_drop()) };
        let thrown = if word.executor() == 0 && !has_drop() {
            None
        } else {
            // SAFETY: see `names`. `Over` cannot reach the closure again.
            unsafe { drop_all(holder, key, word) }
        };
        (thrown, self.0)
    }

    /// Takes out a waker, which has no executor.
    #[inline]
    pub(crate) fn take_waker(self) -> (Waker, Over) {
        debug_assert!(self.0.word.executor() == 0 && !self.0.word.is_series(), "a waker");
        // SAFETY: see `names`. `Over` cannot reach the closure again.
        (unsafe { self.0.holder.with_body(|closure| closure.take_waker()) }, self.0)
    }
}

/// Drops a closure, and then the executor of its task, if it has one. Returns the panics, if there were any. (By these numbers,
/// and not by the task itself, which then stays in registers.)
///
/// # Safety
///
/// The caller owns the body of this task, and the closure counts as moved out from now on (HOLDER-2, CLOSURE-2).
#[inline(never)]
unsafe fn drop_all(holder: &'static TaskHolder, key: TaskKey, word: Word) -> Option<Box<Thrown>> {
    let task = Ending(Over { key, word, holder });
    let names = task.names();
    // One by one, because two panics in one drop would abort the process.
    // SAFETY: as the caller promises.
    let first = caught(|| unsafe { holder.with_body(|closure| drop_in_place(closure)) });
    let second = task.0.drop_executor();
    if first.is_ok() && second.is_ok() {
        return None;
    }
    let panics = first.err().into_iter().chain(second.err()).collect();
    Some(Box::new(Thrown { name: names.name(), panics }))
}

/// A task whose closure has gone. [`end`](Over::end) is the last step.
#[must_use = "its holder is not free yet"]
pub(crate) struct Over {
    key: TaskKey,
    /// As it was before its end.
    word: Word,
    holder: &'static TaskHolder,
}

impl Over {
    /// Drops the task's own executor, if it has one. Returns what that has thrown.
    #[inline]
    pub(crate) fn drop_executor(&self) -> Result<(), Payload> {
        // A look at the annex would be a cache miss, and mostly the first one at a page of memory.
        if self.word.executor() == 0 {
            return Ok(());
        }
        // SAFETY: the body is ours, and the executor belongs to it (HOLDER-2).
        let executor = unsafe { replace_executor(self.key.slot, None) };
        caught(|| drop(executor))
    }

    /// Frees the holder, unless a cancel has done so, and gives its slot back.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "saves 20 instructions of a cancel and of a run: `self` stays in registers"
    )]
    pub(crate) fn end(self) {
        let Over { key, word, holder } = self;
        if !word.waits() {
            holder.word.end(word); // otherwise a cancel has ended it
        }
        // A worn holder is not used again, so that births never come twice (WORD-3).
        if !word.filed_again().is_worn() {
            magazines::give(key.slot);
        }
    }
}
