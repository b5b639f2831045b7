//! The holder of one task: 64 bytes, one cache line.
//!
//! ```text
//!    0        8          16                                  56         64
//!    +--------+----------+-----------------------------------+----------+
//!    | word   | deadline | closure: a table and 32 bytes     | executor |
//!    +--------+----------+-----------------------------------+----------+
//!      all threads race    the body: belongs to one thread at a time
//! ```
//!
//! The word says who owns the body (WORD-2 in [`state`](super::state)). This file turns that rule into
//! types: a [`Vacancy`] is a free slot that a caller owns, a [`Running`] is a claimed task. The body can be reached
//! only through them, so the rest of the crate is safe code.
//!
//! - HOLDER-1 The body is initialised in every phase but `Free`, until its owner moves it out: a [`Running`]
//!   has a body, a [`Claimed`] has none.
//! - HOLDER-2 Only a `Vacancy`, a `Running`, the thread that holds a task, and a canceller that has won touch the
//!   body. There is at most one of them per holder.
//! - HOLDER-3 Holders are never unmapped (SLOT-2 in `blocks`), and all zeros are a free one.

use std::mem::{MaybeUninit, replace};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;

use super::closure::{Closure, Content};
use super::state::{AtomicWord, Phase, Word};
use super::{blocks, magazines, moved};
use crate::clock::repeat::Kind;
use crate::clock::tick::Moment;
use crate::engine::admit::Times;
use crate::engine::intake::lane::Refused;
use crate::executor::own_executor::OwnExecutor;
use crate::platform::panics::{Payload, caught};
use crate::platform::sync::{AtomicU64, IS_MODEL, Ordering, Patience, UnsafeCell, in_models};
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};

/// The panics of the drop of a body, and the name of its closure (S31).
pub(crate) struct Thrown {
    pub(crate) name: &'static str,
    pub(crate) panics: Vec<Payload>,
}

/// The part of a holder that only the task's present owner may touch.
pub(crate) struct Body {
    pub(crate) closure: Closure,
    /// The task's own executor, which lives at least as long as the task.
    pub(crate) executor: Option<Arc<OwnExecutor>>,
}

impl Body {
    /// Drops the closure, and then the executor. They are dropped one by one, because two panics in one drop would
    /// abort the process. Returns the panics, if there were any.
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

#[repr(C, align(64))]
pub(crate) struct TaskHolder {
    pub(super) word: AtomicWord,
    /// When the next run is due: see [`deadline`](super::deadline).
    deadline: AtomicU64,
    body: UnsafeCell<MaybeUninit<Body>>,
}

const _: () = assert!(IS_MODEL || size_of::<TaskHolder>() == 64, "one cache line");

// SAFETY: the body is reached by one owner at a time, as the word decides (HOLDER-2), and it is `Send`.
unsafe impl Sync for TaskHolder {}
// SAFETY: a body may be dropped or run on any thread: closures and executors are `Send`.
unsafe impl Send for TaskHolder {}

impl TaskHolder {
    in_models! {
        pub(crate) fn new() -> TaskHolder {
            let body = UnsafeCell::new(MaybeUninit::uninit());
            TaskHolder { word: AtomicWord::new(), deadline: AtomicU64::new(0), body }
        }
    }

    in_models! {
        /// Does what the system does to a holder whose page it takes.
        pub(crate) fn wipe(&self) {
            self.word.wipe();
        }
    }

    /// Acquire: pairs with the Release in `set_deadline`. A thread that reads the deadline of a later task than it meant
    /// then finds in the word that its own task is over.
    #[inline]
    pub(super) fn deadline(&self) -> Moment {
        Moment(self.deadline.load(Ordering::Acquire))
    }

    /// The caller holds the task, or fills the holder (RESET-3).
    #[inline]
    pub(super) fn set_deadline(&self, deadline: Moment) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    /// # Safety
    ///
    /// The caller owns the body, and it is not initialised (HOLDER-1, HOLDER-2).
    #[inline]
    unsafe fn put_body(&self, task: impl Content, executor: Option<Arc<OwnExecutor>>) {
        self.body.with_mut(|place| {
            // SAFETY: the caller is the only one to touch the body.
            let place = unsafe { &mut *place }.as_mut_ptr();
            // SAFETY: these are fields of the body. A field that is not written yet may be a `MaybeUninit`.
            let (closure, own) = unsafe {
                let closure = (&raw mut (*place).closure).cast::<MaybeUninit<Closure>>();
                (&mut *closure, &raw mut (*place).executor)
            };
            task.write(closure);
            // SAFETY: as above. There is no value yet that would have to be dropped.
            unsafe { own.write(executor) };
        });
    }

    /// # Safety
    ///
    /// The caller owns the body, it is initialised, and it counts as moved out from now on (HOLDER-1, HOLDER-2).
    unsafe fn take_body(&self) -> Body {
        // SAFETY: as the caller promises.
        self.body.with_mut(|place| unsafe { (*place).assume_init_read() })
    }

    /// Holds a task that is in `from` while `f` looks at its body or changes it; `f` also returns the word to put back.
    /// Returns `None` if the task is not in `from`.
    fn with_held<R>(
        &self,
        generation: u32,
        from: Phase,
        f: impl FnOnce(Word, &mut Body) -> (Word, R),
    ) -> Option<R> {
        let word = self.word.hold(generation, from)?;
        // SAFETY: this thread holds the task, so there is a body (HOLDER-1) and nobody else touches it (HOLDER-2).
        let (word, result) =
            self.body.with_mut(|place| f(word, unsafe { (*place).assume_init_mut() }));
        self.word.put_back(word);
        Some(result)
    }
}

/// What belongs to a holder, and only few tasks need. It lies elsewhere, so that the others do not pay for it. All
/// accesses are Relaxed: each is written before a word is published, and read by threads that have seen that word, or
/// do not care.
#[derive(Default)]
pub(crate) struct Annex {
    /// The deadline under which the valid entry of a task is filed that was reset: see [`deadline`](super::deadline).
    filed: AtomicU64,
    /// Nanoseconds between the runs of a series.
    period: AtomicU64,
    /// The stamp of the call that has set the deadline, where a clock may stand still, and the generation of its task: see
    /// [`deadline`](super::deadline).
    stamp: AtomicU64,
    stamped: AtomicU64,
}

impl Annex {
    /// Returns 0 if this task has no stamp.
    pub(super) fn stamp(&self, generation: u32) -> u64 {
        let is_its_own = self.stamped.load(Ordering::Relaxed) == u64::from(generation);
        if is_its_own { self.stamp.load(Ordering::Relaxed) } else { 0 }
    }

    pub(super) fn set_stamp(&self, generation: u32, stamp: u64) {
        self.stamp.store(stamp, Ordering::Relaxed);
        self.stamped.store(u64::from(generation), Ordering::Relaxed);
    }

    pub(super) fn filed(&self) -> Moment {
        Moment(self.filed.load(Ordering::Relaxed))
    }

    pub(super) fn set_filed(&self, filed: Moment) {
        self.filed.store(filed.0, Ordering::Relaxed);
    }
}

/// How a task repeats, and its period in nanoseconds (0 for a one-shot).
#[derive(Clone, Copy)]
pub(crate) struct Repetition {
    pub(crate) kind: Kind,
    pub(crate) period: u64,
}

impl Repetition {
    pub(crate) const NONE: Repetition = Repetition { kind: Kind::Once, period: 0 };
}

/// A slot that its owner has taken out of the free slots and has not filled yet.
pub(crate) struct Vacancy {
    slot: u32,
    holder: &'static TaskHolder,
}

impl Vacancy {
    /// Takes a free slot. `None` if there is no memory, or if 268 million tasks are pending.
    #[inline]
    pub(crate) fn take() -> Option<Vacancy> {
        let slot = magazines::take()?;
        blocks::holder(slot).map(|holder| Vacancy { slot, holder })
    }

    /// Puts a task in and makes it pending. From now on it can be cancelled by its key.
    #[inline]
    pub(crate) fn fill<T: Content>(
        self,
        task: T,
        repetition: Repetition,
        executor: Option<&Arc<OwnExecutor>>,
        deadline: Moment,
    ) -> TaskKey {
        let Vacancy { slot, holder } = self;
        let Repetition { kind, period } = repetition;
        let number = executor.map_or(0, |own| own.number());
        let (generation, past) = match holder.word.vacant() {
            Some(word) => (word.generation(), word.past()),
            None => (first_generation(slot), 0),
        };
        debug_assert!((1..u32::MAX).contains(&generation), "a slot that was used up (WORD-3)");
        // SAFETY: the holder is free, so there is no body (HOLDER-1), and the slot is ours alone (HOLDER-2).
        unsafe { holder.put_body(task, executor.cloned()) };
        holder.set_deadline(deadline);
        if T::IS_SERIES {
            blocks::annex(slot).inspect(|annex| annex.period.store(period, Ordering::Relaxed));
        }
        holder.word.fill(Word::pending(generation, past, kind, number));
        TaskKey { slot, generation }
    }
}

/// Returns the generation of the first task in a holder that was never used, or whose page went back (SLOT-4).
#[cold]
fn first_generation(slot: u32) -> u32 {
    // Relaxed: the slot came from the depot, whose lock was held after the last change.
    blocks::given_back(slot).load(Ordering::Relaxed) + 1
}

// ----- by the key alone: cancel, look, move -----------------------------------------------------

/// The result of a cancel, with what the caller has to drop.
pub(crate) enum Cancelled {
    /// The task will not run. The body is the caller's to drop.
    Won { was: Phase, body: Body, slot: FreedSlot, moved_to: Option<SchedulerId> },
    /// A series is in a run, and will not run again after it. The runner drops the body.
    Doomed { moved_to: Option<SchedulerId> },
    /// The cancel came too late.
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
        magazines::give(self.slot, self.generation);
    }
}

/// Cancels a task that is still to run.
#[inline(always)]
#[expect(clippy::inline_always, reason = "saves 39 of the 280 instructions of a handle's cancel")]
pub(crate) fn cancel(key: TaskKey) -> Cancelled {
    let Some(holder) = blocks::holder(key.slot) else { return Cancelled::Lost };
    let mut moved_to = None;
    let cancelled = holder.word.cancel(key.generation, || moved_to = moved::scheduler(key));
    let Some(before) = cancelled else { return Cancelled::Lost };
    if before.is_running() {
        return Cancelled::Doomed { moved_to };
    }
    // It may have moved on between the look-up and the cancel. It cannot any more.
    moved_to = moved_to.and_then(|_| moved::scheduler(key));
    let moved = moved_to.map(|_| key);
    let slot = FreedSlot { slot: key.slot, generation: key.generation + 1, moved };
    // Last, so that the body is copied once, straight from the holder.
    // SAFETY: a cancel that has won owns the body (HOLDER-2), and leaves the holder free.
    let body = unsafe { holder.take_body() };
    Cancelled::Won { was: before.phase(), body, slot, moved_to }
}

/// Cancels a waker, which never moves, never repeats, and has no executor. Returns the phase in which it was, and the waker.
///
/// `cancel` returns much by way of memory, which took a fifth of the time of a timeout that is set and dropped (row S4-pending
/// of `benches/peers`).
#[inline]
pub(crate) fn cancel_waker(key: TaskKey) -> Option<(Phase, Waker)> {
    let holder = blocks::holder(key.slot)?;
    let before = holder.word.cancel(key.generation, || debug_assert!(false, "wakers stay"))?;
    debug_assert!(!before.is_running(), "a waker that runs is over");
    // SAFETY: a cancel that has won owns the body (HOLDER-2), and leaves the holder free. There is no executor in it.
    let waker =
        holder.body.with_mut(|place| unsafe { (*place).assume_init_mut().closure.take_waker() });
    magazines::give(key.slot, key.generation + 1);
    Some((before.phase(), waker))
}

/// Takes back a task that nobody else knows of yet, because its schedule was refused.
pub(crate) fn withdraw(key: TaskKey) -> Body {
    match cancel(key) {
        Cancelled::Won { body, .. } => body,
        _ => unreachable!("a task without a handle and without an entry was touched"),
    }
}

/// Returns the word of a task's holder, whichever task lives there now.
pub(crate) fn word(key: TaskKey) -> Option<Word> {
    blocks::holder(key.slot).map(|holder| holder.word.load())
}

/// Like [`word`], in one total order with every cancel.
pub(crate) fn word_in_order(key: TaskKey) -> Option<Word> {
    blocks::holder(key.slot).map(|holder| holder.word.load_in_order())
}

/// Returns the word of a task that is still pending.
pub(crate) fn pending_word(key: TaskKey) -> Option<Word> {
    word(key).filter(|word| word.generation() == key.generation && word.is_pending())
}

/// Returns the word of a task, or `None` if the task is over, or is `Doomed` or `Ending`. A task that is held is waited
/// for, because it may be one that waits, and may be a leftover.
pub(crate) fn live_word(key: TaskKey) -> Option<Word> {
    let mut patience = Patience::default();
    loop {
        let word = word_in_order(key).filter(|word| word.generation() == key.generation)?;
        match word.phase() {
            Phase::Doomed | Phase::Ending => return None,
            Phase::Held => patience.spin(),
            _ => return Some(word),
        }
    }
}

/// Returns true if the task will not run again, and its last run has ended.
#[inline]
pub(crate) fn is_over(key: TaskKey) -> bool {
    word(key).is_none_or(|word| word.generation() != key.generation)
}

/// Returns true if the task is in a run.
pub(crate) fn is_running(key: TaskKey) -> bool {
    word(key).is_some_and(|word| word.generation() == key.generation && word.is_running())
}

/// Returns the nanoseconds between the runs of a series.
pub(crate) fn period(key: TaskKey) -> u64 {
    blocks::annex(key.slot).map_or(0, |annex| annex.period.load(Ordering::Relaxed))
}

/// Returns the name of the closure of a task in this phase, or `None` if the task is not in this phase.
pub(crate) fn name(key: TaskKey, from: Phase) -> Option<&'static str> {
    let holder = blocks::holder(key.slot)?;
    holder.with_held(key.generation, from, |word, body| (word, body.closure.name()))
}

/// Makes a task that is in `from` a leftover, and returns its deadline and its repetition. `None` if it is not in
/// `from`.
pub(crate) fn give_back(key: TaskKey, from: Phase) -> Option<(Moment, Repetition)> {
    let holder = blocks::holder(key.slot)?;
    // Read before the transition, because after it a canceller may free the holder for another task. The deadline may
    // move in the meantime, and later too, so it is looked up again when it is asked for.
    let period = if holder.word.load_relaxed().is_series() { period(key) } else { 0 };
    let deadline = holder.deadline();
    let word = holder.word.give_back(key.generation, from)?;
    Some((deadline, Repetition { kind: word.kind(), period }))
}

/// Makes a leftover of `from` pending at the scheduler `to`, on an executor there. `times` translates its deadline.
/// `announce` pushes the record of its entry, and returns false if the engine there is closed. Then the task stays a
/// leftover. All this happens while the task is held, so no reset comes in between (RESET-4).
///
/// Returns the old executor, which the caller drops. `None` if the task was cancelled.
pub(crate) fn move_to(
    key: TaskKey,
    (from, to): (SchedulerId, SchedulerId),
    executor: Option<&Arc<OwnExecutor>>,
    times: impl FnOnce(Moment) -> Times,
    announce: impl FnOnce(Entry) -> bool,
) -> Option<Result<Option<Arc<OwnExecutor>>, Refused>> {
    let holder = blocks::holder(key.slot)?;
    let number = executor.map_or(0, |own| own.number());
    holder.with_held(key.generation, Phase::Returned, |word, body| {
        let before = holder.deadline();
        let Times { now, deadline } = times(before);
        moved::insert(key, to);
        holder.set_deadline(deadline);
        blocks::annex(key.slot).into_iter().for_each(|annex| annex.set_stamp(key.generation, 0));
        // The engine there may look at the entry at once, and read the number of the executor.
        holder.word.change_held(word.moved(Phase::Held, number));
        let runner = if executor.is_some() { Runner::Own } else { Runner::Default };
        if announce(Entry::new(key, deadline, deadline <= now, runner, word.turn())) {
            let old = replace(&mut body.executor, executor.cloned());
            return (word.moved(Phase::Pending, number), Ok(old));
        }
        moved::insert(key, from);
        holder.set_deadline(before);
        (word.moved(Phase::Returned, word.executor()), Err(Refused))
    })
}

// ----- to run it, or to drop it -----------------------------------------------------------------

/// A task that its owner has claimed, to run or to drop it.
pub(crate) struct Running {
    pub(super) key: TaskKey,
    word: Word,
    pub(super) holder: &'static TaskHolder,
}

impl Running {
    /// The caller has claimed the task, and this is its word since.
    pub(super) fn new(key: TaskKey, word: Word, holder: &'static TaskHolder) -> Running {
        debug_assert!(word.is_running() && word.generation() == key.generation);
        Running { key, word, holder }
    }

    /// Claims a task that is in `from`. `None` if it was cancelled, or claimed before.
    #[inline]
    pub(crate) fn claim(key: TaskKey, from: Phase) -> Option<Running> {
        let holder = blocks::holder(key.slot)?;
        let word = holder.word.claim(key.generation, from)?;
        Some(Running { key, word, holder })
    }

    /// Claims a leftover for its only run.
    pub(crate) fn claim_last(key: TaskKey) -> Option<Running> {
        let holder = blocks::holder(key.slot)?;
        let word = holder.word.claim_last(key.generation)?;
        Some(Running { key, word, holder })
    }

    pub(crate) fn key(&self) -> TaskKey {
        self.key
    }

    pub(crate) fn kind(&self) -> Kind {
        self.word.kind()
    }

    #[inline]
    pub(crate) fn is_series(&self) -> bool {
        self.word.is_series()
    }

    /// Returns the nanoseconds between runs, or 0 for a one-shot.
    pub(crate) fn period(&self) -> u64 {
        if self.is_series() { period(self.key) } else { 0 }
    }

    /// Moves the body out of a task that will not run again after this. [`Claimed::end`] is the last step.
    pub(crate) fn into_body(self) -> (Body, Claimed) {
        // A leftover in its only run is closed already.
        let is_open = self.is_series() && self.word.is_running();
        let cancelled = is_open && !self.holder.word.close(self.key.generation);
        // SAFETY: claimed by us (HOLDER-2), and `Claimed` cannot reach the body again.
        let body = unsafe { self.holder.take_body() };
        (body, Claimed { task: self, cancelled })
    }

    /// Like [`into_body`](Running::into_body), for a waker, which is read where it lies. A whole body that is moved to
    /// the stack in wide words, and read there in others, waits for its own stores.
    #[inline]
    pub(crate) fn into_waker(self) -> (Waker, Claimed) {
        let waker = self.holder.body.with_mut(|place| {
            // SAFETY: claimed by us, so there is a body (HOLDER-1), and it is ours (HOLDER-2).
            let body = unsafe { (*place).assume_init_mut() };
            debug_assert!(body.executor.is_none() && !self.is_series(), "a waker");
            // SAFETY: `Claimed` cannot reach the body again (HOLDER-2). Nothing else in it has to be dropped.
            unsafe { body.closure.take_waker() }
        });
        (waker, Claimed { task: self, cancelled: false })
    }

    /// Runs the closure of a series in place.
    pub(crate) fn run_in_place(&mut self) -> ControlFlow<()> {
        // SAFETY: claimed by us, so there is a body (HOLDER-1), and `&mut self` keeps it ours during the call
        // (HOLDER-2). A cancel in the meantime dooms the task and leaves the body alone.
        self.holder.body.with_mut(|place| unsafe { (*place).assume_init_mut().closure.run() })
    }

    /// Returns the name of the closure.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: claimed by us, so there is a body (HOLDER-1), and it is ours (HOLDER-2).
        self.holder.body.with_mut(|place| unsafe { (*place).assume_init_ref() }.closure.name())
    }
}

/// A claimed task whose body has been moved out. It ends with [`end`](Claimed::end).
pub(crate) struct Claimed {
    task: Running,
    cancelled: bool,
}

impl Claimed {
    /// Returns true if a cancel came during the last run of a series.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Like [`end`](Claimed::end), for a series, after a load of the word that comes after every cancel which has
    /// doomed the series. So whatever the caller loads afterwards comes after that cancel too (END-5).
    pub(crate) fn end_in_order(self) -> TaskKey {
        let _ = self.task.holder.word.load_in_order();
        self.end()
    }

    /// Frees the holder, and returns the key of the task that was there.
    pub(crate) fn end(self) -> TaskKey {
        let Running { key, word, holder } = self.task;
        if word.has_moved() {
            moved::forget(key); // before the holder is free (MOVED-1)
        }
        magazines::give(key.slot, holder.word.end(word, self.cancelled));
        key
    }
}
