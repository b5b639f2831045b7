//! The holder of one task: 64 bytes, one cache line.
//!
//! ```text
//!    0        8         16                                   56         64
//!    +--------+---------+------------------------------------+----------+
//!    | word   | period  | closure: a table and 32 bytes      | executor |
//!    +--------+---------+------------------------------------+----------+
//!      everybody races    the body: belongs to one at a time
//! ```
//!
//! The word says who owns the body ([`state`](super::state), WORD-2). This file turns that rule into
//! types: a [`Vacancy`] is a free slot that somebody owns, a [`Running`] is a claimed task. Only
//! through them is the body reached, so the rest of the crate is safe code.
//!
//! - HOLDER-1 The body is initialised in every phase but `Free`, until who owns it moves it out: a [`Running`]
//!   has one, a [`Claimed`] has none.
//! - HOLDER-2 A `Vacancy`, a `Running`, and a canceller that has won are the only ones to touch the
//!   body, and there is at most one of them per holder.
//! - HOLDER-3 Holders are never taken away (SLOT-2 in [`directory`](super::directory)), and all zeros are a free one.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::task::Waker;

use super::closure::{Closure, Content};
use super::state::{AtomicRef, CancelOutcome, Phase, Word};
use super::{directory, memory, moved};
use crate::executor::own_executor::OwnExecutor;
use crate::platform::panics::{Payload, caught};
use crate::platform::sync::{AtomicU64, IS_MODEL, Ordering, UnsafeCell, in_models};
use crate::time::repeat::Kind;
use crate::time::tick::Moment;
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey, Turn};

/// The panics of the drop of a body, and the name of its closure (S31).
pub(crate) struct Thrown {
    pub(crate) name: &'static str,
    pub(crate) panics: Vec<Payload>,
}

/// What only the task's present owner may touch.
pub(crate) struct Body {
    pub(crate) closure: Closure,
    /// An executor of the task's own, kept alive for as long as the task is.
    pub(crate) executor: Option<Arc<OwnExecutor>>,
}

impl Body {
    /// Drops the closure, and then the executor: each by itself, because two panics in one drop would end the
    /// process. What they have thrown comes back.
    #[inline]
    pub(crate) fn discard(self) -> Option<Thrown> {
        let Body { closure, executor } = self;
        let names = closure.names();
        let first = caught(|| drop(closure));
        let second = if executor.is_some() { caught(|| drop(executor)) } else { Ok(()) };
        if first.is_ok() && second.is_ok() {
            return None;
        }
        let panics = first.err().into_iter().chain(second.err()).collect();
        Some(Thrown { name: names.name(), panics })
    }
}

/// One task's place.
#[repr(C, align(64))]
pub(crate) struct TaskHolder {
    word: AtomicRef,
    /// Nanoseconds between runs; 0 for a one-shot. Written before the word is published.
    period: AtomicU64,
    body: UnsafeCell<MaybeUninit<Body>>,
}

// SAFETY: the body is reached by one owner at a time, as the word decides (HOLDER-2), and it is `Send`.
unsafe impl Sync for TaskHolder {}
// SAFETY: a body may be dropped or run on any thread: closures and executors are `Send`.
unsafe impl Send for TaskHolder {}

impl TaskHolder {
    in_models! {
        pub(crate) fn new() -> TaskHolder {
            let body = UnsafeCell::new(MaybeUninit::uninit());
            TaskHolder { word: AtomicRef::new(), period: AtomicU64::new(0), body }
        }
    }

    in_models! {
        /// What the system does to a holder whose page it takes.
        pub(crate) fn wipe(&self) {
            self.word.wipe();
        }
    }

    /// Has the system bring the page of this holder, for writing.
    pub(super) fn touch(&self) {
        self.word.touch();
    }

    /// The generation of the next task in a free holder; 0 when it never had one.
    pub(super) fn next_generation(&self) -> u32 {
        self.word.vacant().map_or(0, Word::generation)
    }

    /// # Safety
    ///
    /// The caller owns the body and it is not initialised (HOLDER-1, HOLDER-2).
    #[inline]
    unsafe fn put_body(&self, task: impl Content, executor: Option<Arc<OwnExecutor>>) {
        self.body.with_mut(|place| {
            // SAFETY: the caller is the only one to touch the body.
            let place = unsafe { &mut *place }.as_mut_ptr();
            // SAFETY: fields of the body; a `MaybeUninit` of a field is what the field is before
            // it is written.
            let (closure, own) = unsafe {
                let closure = (&raw mut (*place).closure).cast::<MaybeUninit<Closure>>();
                (&mut *closure, &raw mut (*place).executor)
            };
            task.write(closure);
            // SAFETY: as above; nothing is there to be dropped.
            unsafe { own.write(executor) };
        });
    }

    /// # Safety
    ///
    /// The caller owns the body, it is initialised, and it counts as moved out from now on.
    unsafe fn take_body(&self) -> Body {
        // SAFETY: as the caller promises.
        self.body.with_mut(|place| unsafe { (*place).assume_init_read() })
    }
}

const _: () = assert!(IS_MODEL || size_of::<TaskHolder>() == 64, "one cache line");

/// How a task repeats, and how often: nanoseconds, 0 for a one-shot.
#[derive(Clone, Copy)]
pub(crate) struct Repetition {
    pub(crate) kind: Kind,
    pub(crate) period: u64,
}

impl Repetition {
    pub(crate) const NONE: Repetition = Repetition { kind: Kind::Once, period: 0 };
}

/// A free slot that somebody has taken out of the free slots, ready to be filled.
pub(crate) struct Vacancy {
    slot: u32,
    holder: &'static TaskHolder,
}

impl Vacancy {
    pub(crate) fn new(slot: u32, holder: &'static TaskHolder) -> Vacancy {
        Vacancy { slot, holder }
    }

    /// Puts a task in and makes it pending: from now on it can be cancelled by its key.
    #[inline]
    pub(crate) fn fill(
        self,
        task: impl Content,
        repetition: Repetition,
        executor: Option<&Arc<OwnExecutor>>,
    ) -> TaskKey {
        let Vacancy { slot, holder } = self;
        let Repetition { kind, period } = repetition;
        let number = executor.map_or(0, |own| own.number());
        let (generation, past) = match holder.word.vacant() {
            Some(word) => (word.generation(), word.past()),
            None => (directory::first_generation(slot), 0),
        };
        // SAFETY: HOLDER-2; the holder is free, and the slot is ours alone.
        unsafe { holder.put_body(task, executor.cloned()) };
        // Relaxed: published by the word below, like the body.
        holder.period.store(period, Ordering::Relaxed);
        holder.word.fill(Word::pending(generation, past, kind, number));
        TaskKey { slot, generation }
    }
}

/// How a cancel came out, with what it has to drop.
pub(crate) enum Cancelled {
    /// It prevented the run; the body is the canceller's to drop.
    Won { was: Phase, body: Body, slot: FreedSlot, moved_to: Option<SchedulerId> },
    /// It prevented all further runs of a series; the runner drops the body.
    Doomed { moved_to: Option<SchedulerId> },
    /// It came too late.
    Lost,
}

/// The slot of a task that a cancel has ended. The next task may have it when this is dropped.
pub(crate) struct FreedSlot {
    slot: u32,
    generation: u32,
    /// The task that was there, if it had moved.
    moved: Option<TaskKey>,
}

impl Drop for FreedSlot {
    #[inline]
    fn drop(&mut self) {
        self.moved.into_iter().for_each(moved::forget);
        memory::free(self.slot, self.generation);
    }
}

/// Cancels a task, if it is still to run.
#[inline]
pub(crate) fn cancel(key: TaskKey) -> Cancelled {
    let Some(holder) = directory::holder(key.slot) else { return Cancelled::Lost };
    let mut moved_to = None;
    match holder.word.cancel(key.generation, || moved_to = moved::find(key)) {
        CancelOutcome::Won { was, next_generation } => {
            // SAFETY: HOLDER-2; a won cancel owns the body, and leaves the holder free.
            let body = unsafe { holder.take_body() };
            // Once more: it may have moved on in the meantime, and cannot any more.
            moved_to = moved_to.and_then(|_| moved::find(key));
            let moved = moved_to.map(|_| key);
            let slot = FreedSlot { slot: key.slot, generation: next_generation, moved };
            Cancelled::Won { was, body, slot, moved_to }
        }
        CancelOutcome::Doomed => Cancelled::Doomed { moved_to },
        CancelOutcome::Lost => Cancelled::Lost,
    }
}

/// Takes back a task that nobody else knows of yet: its schedule was refused.
pub(crate) fn withdraw(key: TaskKey) -> Body {
    match cancel(key) {
        Cancelled::Won { body, .. } => body,
        _ => unreachable!("a task without a handle and without an entry was touched"),
    }
}

/// The word of a task's holder, whatever lives there now.
pub(crate) fn word(key: TaskKey) -> Option<Word> {
    directory::holder(key.slot).map(|holder| holder.word.load())
}

/// The same, in one order with every cancel.
pub(crate) fn word_in_order(key: TaskKey) -> Option<Word> {
    directory::holder(key.slot).map(|holder| holder.word.load_in_order())
}

/// The word of a task that is still pending.
pub(crate) fn pending_word(key: TaskKey) -> Option<Word> {
    word(key).filter(|word| word.generation() == key.generation && word.is_pending())
}

/// Returns true if the task will not run again, or its only run has ended.
#[inline]
pub(crate) fn is_over(key: TaskKey) -> bool {
    word(key).is_none_or(|word| word.generation() != key.generation)
}

/// Returns true if the task is in a run.
pub(crate) fn is_running(key: TaskKey) -> bool {
    word(key).is_some_and(|word| word.generation() == key.generation && word.is_running())
}

/// Which task lives in the holder, and where it stands; `None` if the task is over.
pub(crate) fn live_word(key: TaskKey) -> Option<Word> {
    word_in_order(key).filter(|word| {
        let is_over = matches!(word.phase(), Phase::Doomed | Phase::Ending);
        word.generation() == key.generation && !is_over
    })
}

/// Nanoseconds between the runs of a series.
pub(crate) fn period(key: TaskKey) -> u64 {
    // Relaxed: written before the word was published, which the caller has seen.
    directory::holder(key.slot).map_or(0, |holder| holder.period.load(Ordering::Relaxed))
}

/// Returns the name of the closure of a task in this phase, or `None` if the task is not in this phase.
pub(crate) fn name(key: TaskKey, from: Phase) -> Option<&'static str> {
    let holder = directory::holder(key.slot)?;
    let word = holder.word.hold(key.generation, from)?;
    // SAFETY: HOLDER-1, HOLDER-2; the task is held by us.
    let name = holder.body.with_mut(|place| unsafe { (*place).assume_init_ref() }.closure.name());
    holder.word.put_back(word);
    Some(name)
}

/// Makes a returned task pending at another scheduler, on an executor there: its entry, and what has to be dropped.
/// `None` if it was cancelled.
pub(crate) fn move_to(
    key: TaskKey,
    scheduler: SchedulerId,
    executor: Option<&Arc<OwnExecutor>>,
) -> Option<(Runner, Option<Turn>, Option<Arc<OwnExecutor>>)> {
    let holder = directory::holder(key.slot)?;
    let word = holder.word.hold(key.generation, Phase::Returned)?;
    // SAFETY: HOLDER-1, HOLDER-2; the task is held by us.
    let old = holder.body.with_mut(|place| unsafe {
        std::mem::replace(&mut (*place).assume_init_mut().executor, executor.cloned())
    });
    moved::note(key, scheduler);
    holder.word.put_back(word.moved_to(executor.map_or(0, |own| own.number())));
    let runner = if executor.is_some() { Runner::Own } else { Runner::Default };
    Some((runner, word.turn(), old))
}

/// Marks a pending task as returned by a close, and tells its kind and period. A series only if it still waits for this
/// run.
pub(crate) fn give_back(entry: Entry) -> Option<(Kind, u64)> {
    let key = entry.key();
    let holder = directory::holder(key.slot)?;
    // Relaxed: written before the word was published. Read before the step, because after it a
    // canceller may free the holder for another task.
    let period = holder.period.load(Ordering::Relaxed);
    holder.word.give_back(key.generation, entry.turn()).map(|word| (word.kind(), period))
}

/// Makes a task that was to move a leftover of its old scheduler again. False if it was cancelled in the meantime.
pub(crate) fn come_back(
    key: TaskKey,
    from: SchedulerId,
    executor: &mut Option<Arc<OwnExecutor>>,
) -> bool {
    let Some(holder) = directory::holder(key.slot) else { return false };
    let Some(word) = holder.word.hold(key.generation, Phase::Pending) else { return false };
    let number = executor.as_ref().map_or(0, |own| own.number());
    // SAFETY: HOLDER-1, HOLDER-2; the task is held by us. The new executor is the caller's too: this does not drop it.
    let _new = holder.body.with_mut(|place| unsafe {
        std::mem::replace(&mut (*place).assume_init_mut().executor, executor.take())
    });
    moved::note(key, from);
    holder.word.put_back(word.returned(number));
    true
}

/// A task that has been claimed, by whom it will be run or dropped.
pub(crate) struct Running {
    key: TaskKey,
    word: Word,
    holder: &'static TaskHolder,
}

impl Running {
    /// Claims a task that stands in `from`; `None` when it was cancelled, or claimed before.
    #[inline]
    pub(crate) fn claim(key: TaskKey, from: Phase) -> Option<Running> {
        let holder = directory::holder(key.slot)?;
        let word = holder.word.claim(key.generation, from)?;
        Some(Running { key, word, holder })
    }

    /// Claims a pending task that an executor of this scheduler was handed. `None` also when it has moved to another.
    #[inline]
    pub(crate) fn claim_at(key: TaskKey, scheduler: SchedulerId) -> Option<Running> {
        let holder = directory::holder(key.slot)?;
        let word =
            holder.word.claim_there(key.generation, || moved::find(key) == Some(scheduler))?;
        Some(Running { key, word, holder })
    }

    /// Claims a leftover for its only run.
    pub(crate) fn claim_last(key: TaskKey) -> Option<Running> {
        let holder = directory::holder(key.slot)?;
        let word = holder.word.claim_last(key.generation)?;
        Some(Running { key, word, holder })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.word.kind()
    }

    #[inline]
    pub(crate) fn is_series(&self) -> bool {
        self.word.is_series()
    }

    /// Nanoseconds between runs; 0 for a one-shot.
    pub(crate) fn period(&self) -> u64 {
        // Relaxed: the claim acquired it with the body.
        self.holder.period.load(Ordering::Relaxed)
    }

    /// The task will not run again: moves the body out. What is left to do is [`Claimed::end`].
    pub(crate) fn into_body(self) -> (Body, Claimed) {
        // A leftover in its last run is closed already.
        let is_open = self.is_series() && self.word.is_running();
        let cancelled = is_open && !self.holder.word.close(self.key.generation);
        // SAFETY: HOLDER-2; claimed by us, and `Claimed` cannot reach the body again.
        let body = unsafe { self.holder.take_body() };
        (body, Claimed { task: self, cancelled })
    }

    /// The same for a waker, straight from its place: a whole body that is moved to the stack in wide words,
    /// and read there in others, waits for itself.
    #[inline]
    pub(crate) fn into_waker(self) -> (Waker, Claimed) {
        let waker = self.holder.body.with_mut(|place| {
            // SAFETY: HOLDER-1, HOLDER-2; claimed by us.
            let body = unsafe { (*place).assume_init_mut() };
            debug_assert!(body.executor.is_none() && !self.is_series(), "a waker");
            // SAFETY: HOLDER-2; `Claimed` cannot reach the body again. Nothing else in it has to be dropped.
            unsafe { body.closure.take_waker() }
        });
        (waker, Claimed { task: self, cancelled: false })
    }

    /// Runs a series' closure in place.
    pub(crate) fn run_in_place(&mut self) -> std::ops::ControlFlow<()> {
        // SAFETY: HOLDER-1, HOLDER-2; claimed by us, and `&mut self` keeps it so during the call. A cancel
        // meanwhile dooms the task and leaves the body alone.
        self.holder.body.with_mut(|place| unsafe { (*place).assume_init_mut().closure.run() })
    }

    /// Returns the name of the closure.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: HOLDER-1, HOLDER-2; claimed by us.
        self.holder.body.with_mut(|place| unsafe { (*place).assume_init_ref() }.closure.name())
    }

    /// Makes a series pending again, under the same key; its entry. `Err` when it was doomed meanwhile.
    pub(crate) fn rearm(self, next: Moment, is_due: bool) -> Result<Entry, Running> {
        let Some(word) = self.holder.word.rearm(self.key.generation) else { return Err(self) };
        let runner = if word.executor() == 0 { Runner::Default } else { Runner::Own };
        Ok(Entry::new(self.key, next, is_due, runner, word.turn()))
    }
}

/// A claimed task that is over but for [`end`](Claimed::end): its body has been moved out.
pub(crate) struct Claimed {
    task: Running,
    cancelled: bool,
}

impl Claimed {
    /// Whether a cancel came during the run, the last one of a series.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The same, for a series, after a look at the word that comes after every cancel which has doomed it: so a look of
    /// the caller at something else comes after that cancel too (END-5).
    pub(crate) fn end_in_order(self) -> TaskKey {
        let _ = self.task.holder.word.load_in_order();
        self.end()
    }

    /// Frees the holder. Which task it was.
    pub(crate) fn end(self) -> TaskKey {
        if self.task.word.has_moved() {
            moved::forget(self.task.key); // MOVED-1
        }
        let freed = self.task.holder.word.end(self.task.word, self.cancelled);
        memory::free(self.task.key.slot, freed);
        self.task.key
    }
}
