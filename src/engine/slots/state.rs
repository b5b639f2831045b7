//! The states of a task, in one atomic word of its holder: the [`AtomicWord`].
//!
//! In Akka's scheduler a handle is an `AtomicReference` to the present holder, swapped for each repetition and set to
//! null by a cancel. Here the word says *which* task lives in the holder (the generation) and *in which state* it is (the
//! phase). Each repetition swaps the phase from running back to pending, unless a cancel came in between.
//!
//! ```text
//!              fill                       claim                      end
//!   Free(g) ----------> Pending(g) ----------------> Running(g) ----------> Free(g+1)
//!                        |   ^  |                     |     |                   ^
//!                        |   |  +-- give back --+     |     | cancel, or close  |
//!                        |   +------ rearm -----|-----+     v a series          |
//!                        |                      v    Doomed(g), Ending(g) - end +
//!                        |                  Returned(g) -- claim -> Running(g)  |
//!                        +---- cancel ----------+--- cancel --------------------+
//!
//!   Pending(g), Returned(g) --hold--> Held(g) --put back--> as it was; Pending at another scheduler; Running, for one
//!                                                          that has moved or was reset
//!   Returned(g), a series --claim for its only run--> Ending(g)
//!   Running(g), a series --hold--> HeldInRun(g) --put back--> Running
//!   Running(g), a series --rearm--> Held(g) --put back--> Pending for the next run, or Running if the engine refuses
//!                                                          it, and then --give back--> Returned
//! ```
//!
//! | phase | the task | which threads may end this phase, and by which step |
//! | --- | --- | --- |
//! | `Free` | there is none | the owner of the free slot: `fill` |
//! | `Pending` | waits in the intake, the wheel, or an executor's queue | anybody: `claim` (to run or to drop it), `cancel`, `hold`; at the end of the scheduler, the engine: `give back` |
//! | `Running` | runs | the runner: `end` of a one-shot, `rearm`, `give back` or `close` of a series; anybody, for a series: `cancel`, `hold` |
//! | `Doomed` | a series in its last run, because of a cancel | the runner: `end` |
//! | `Ending` | a series after its last run, or a series in the one run that it has as a leftover | the runner: `end` |
//! | `Returned` | is among the leftovers of a close | anybody: `claim`, `cancel`, `hold` |
//! | `Held` | waits, while one thread reads the name of its closure, moves its deadline, checks its entry, sets it to its next run, moves it to another scheduler, or looks up to which one it has moved | that thread: `put back`; all others wait for it |
//! | `HeldInRun` | a series that runs, while one thread moves the deadline of its next run | that thread: `put back`; all others wait for it |
//!
//! - WORD-1 A transition out of a phase that several threads may leave is a compare-exchange of the whole word,
//!   generation included. So exactly one thread wins (S8), and a stale handle never does (S10).
//! - WORD-2 The thread that wins `claim`, or `cancel` from `Pending` or `Returned`, alone owns the body from then on.
//!   `Doomed` and `Ending` leave the body with the runner.
//! - WORD-3 The generation grows by one each time the holder becomes free, and never wraps: a slot
//!   whose generations are used up is not used again.
//! - WORD-4 Every exchange is Acquire and Release, so a thread that cancels a series between two runs sees what the
//!   last run wrote. `end` is Release and every load from outside is Acquire, so a thread that finds a task done sees
//!   what the task did. `fill` is Release for the same reason: a thread that finds the slot filled again knows that the
//!   task before is done. A slot passes from owner to owner under the depot's lock, or within one thread.
//! - WORD-5 A task is held only for a moment: for some instructions and, if it moves or has moved, a look into the table
//!   of moved tasks, and if it gets a new entry, a push into a lane. No user code runs in the meantime. So a
//!   thread that meets a held task waits until it is put back.
//!
//! The word also carries what seldom changes within a generation: the kind of repetition, the number of the task's own
//! executor, whether the task has [moved](super::moved) to another scheduler (MOVED-1), and whether its deadline was
//! ever [reset](super::deadline), because then its entries have to be checked (RESET-2). Each `rearm` flips the
//! [`Turn`], which tells the entry of one run from the entry of the next. The word also remembers which of the last
//! four generations ended by a cancel: see [`Word::ended_by_cancel`].

use crate::clock::repeat::Kind;
use crate::platform::sync::{AtomicU64, ExchangeInOrder, InOrder, Ordering, Patience, in_models};
use crate::wheel::entry::Turn;

/// The state of a task; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Free,
    Pending,
    Running,
    Doomed,
    Ending,
    /// Has the low bits of `Pending`, so that [`Word::is_pending`] covers both with one comparison.
    Held,
    /// Has the low bits of `Running`, for [`Word::is_running`].
    HeldInRun,
    Returned,
}

/// One value of the word. From the low end: phase 3 bits, kind 3, past outcomes 4, executor 19, reset 1, moved 1, turn
/// 1, generation 32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

const KIND_AT: u32 = 3;
const PAST_AT: u32 = 6;
const EXECUTOR_AT: u32 = 10;
const RESET: u64 = 1 << 29;
const MOVED: u64 = 1 << 30;
const ODD: u64 = 1 << 31;
const GENERATION_AT: u32 = 32;
const LOW_3: u64 = 0b111;

/// The number of past outcomes that a word remembers.
pub(crate) const PAST_BITS: u32 = 4;
const PAST_MASK: u64 = (1 << PAST_BITS) - 1;

/// One more than the highest number of an executor that a word can carry.
pub(crate) const EXECUTORS: u32 = 1 << 19;

impl Word {
    /// Returns the word of a pending task in a slot with these past outcomes.
    pub(crate) fn pending(generation: u32, past: u8, kind: Kind, executor: u32) -> Word {
        debug_assert!(executor < EXECUTORS);
        Word(
            u64::from(generation) << GENERATION_AT
                | u64::from(executor) << EXECUTOR_AT
                | u64::from(past) << PAST_AT
                | (kind as u64) << KIND_AT
                | Phase::Pending as u64,
        )
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> GENERATION_AT) as u32
    }

    pub(crate) fn phase(self) -> Phase {
        match self.0 & LOW_3 {
            0 => Phase::Free,
            1 => Phase::Pending,
            2 => Phase::Running,
            3 => Phase::Doomed,
            4 => Phase::Ending,
            5 => Phase::Held,
            6 => Phase::HeldInRun,
            _ => Phase::Returned,
        }
    }

    #[inline]
    pub(super) fn is_in(self, phase: Phase) -> bool {
        self.0 & LOW_3 == phase as u64
    }

    fn is_held(self) -> bool {
        self.is_in(Phase::Held) || self.is_in(Phase::HeldInRun)
    }

    /// Returns true if the task repeats.
    #[inline]
    pub(crate) fn is_series(self) -> bool {
        self.0 >> KIND_AT & LOW_3 != Kind::Once as u64
    }

    pub(crate) fn kind(self) -> Kind {
        match (self.0 >> KIND_AT) & LOW_3 {
            0 => Kind::Once,
            1 => Kind::RateBurst,
            2 => Kind::RateSkip,
            3 => Kind::RateDelay,
            _ => Kind::Gap,
        }
    }

    /// Returns the number of the task's own executor, or 0 if the scheduler's executor runs it.
    pub(crate) fn executor(self) -> u32 {
        (self.0 >> EXECUTOR_AT) as u32 & (EXECUTORS - 1)
    }

    /// Returns true if the task belongs to another scheduler than the one that gave out its handle.
    pub(crate) fn has_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    /// Returns the turn of the run that is next or in progress, or `None` if the task does not repeat.
    pub(crate) fn turn(self) -> Option<Turn> {
        let turn = if self.0 & ODD == 0 { Turn::Even } else { Turn::Odd };
        self.is_series().then_some(turn)
    }

    /// Returns true if the scheduler of the task still has to run it, or if the task is `Held`, which may also be a leftover.
    /// It does not hold for `Returned`, whose tasks are in no wheel.
    pub(crate) fn is_pending(self) -> bool {
        const LOW_2: u64 = 0b11;
        const { assert!(Phase::Held as u64 & LOW_2 == Phase::Pending as u64) };
        self.0 & LOW_2 == Phase::Pending as u64
    }

    /// Returns true if the task runs, and may be cancelled if it is a series.
    pub(crate) fn is_running(self) -> bool {
        const LOW_2: u64 = 0b11;
        const { assert!(Phase::HeldInRun as u64 & LOW_2 == Phase::Running as u64) };
        self.0 & LOW_2 == Phase::Running as u64
    }

    /// Returns true if the deadline of the task was ever moved. Then its entries have to be checked (RESET-2).
    #[inline]
    pub(super) fn was_reset(self) -> bool {
        self.0 & RESET != 0
    }

    /// Returns the word of the same task, with its deadline moved.
    pub(super) fn reset(self) -> Word {
        Word(self.0 | RESET)
    }

    /// Returns the word of the same task at another scheduler, on the executor of this number there. It has one entry
    /// there, so no entry has to be checked.
    pub(crate) fn moved(self, phase: Phase, executor: u32) -> Word {
        let without = self.in_phase(phase).0 & !(u64::from(EXECUTORS - 1) << EXECUTOR_AT | RESET);
        Word(without | u64::from(executor) << EXECUTOR_AT | MOVED)
    }

    /// Returns the word of a series that is set to its next run.
    fn rearmed(self) -> Word {
        Word(self.in_phase(Phase::Pending).0 ^ ODD)
    }

    /// Returns the word of a series that goes back to the end of its run, because the engine has refused the next one.
    pub(super) fn not_rearmed(self) -> Word {
        Word(self.in_phase(Phase::Running).0 ^ ODD)
    }

    /// Returns the outcomes of past generations, the latest in the lowest bit. A 1 stands for a cancel.
    pub(crate) fn past(self) -> u8 {
        ((self.0 >> PAST_AT) & PAST_MASK) as u8
    }

    pub(super) fn in_phase(self, phase: Phase) -> Word {
        Word(self.0 & !LOW_3 | phase as u64)
    }

    /// Returns the word of the holder when it is free for the next task, with this outcome remembered.
    fn freed(self, cancelled: bool) -> Word {
        let past = (u64::from(self.past()) << 1 | u64::from(cancelled)) & PAST_MASK;
        let generation = u64::from(self.generation().wrapping_add(1));
        Word(generation << GENERATION_AT | past << PAST_AT)
    }

    /// Returns true if a past generation ended by a cancel. Returns `None` if the generation is not over, or so long
    /// ago that the word does not remember it.
    pub(crate) fn ended_by_cancel(self, generation: u32) -> Option<bool> {
        let age = self.generation().wrapping_sub(generation);
        let remembered = (1..=PAST_BITS).contains(&age);
        remembered.then(|| self.past() >> (age - 1) & 1 == 1)
    }
}

/// The word of a holder.
pub(crate) struct AtomicWord(AtomicU64);

impl AtomicWord {
    /// The word of a holder that never held a task. No task has the generation 0.
    #[cfg(test)]
    pub(crate) fn new() -> AtomicWord {
        AtomicWord(AtomicU64::new(0))
    }

    in_models! {
        pub(crate) fn wipe(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Writes to the memory of the word without changing its value. (For `fetch_or(0)` the compiler emits a load.)
    /// Relaxed, because it publishes nothing.
    pub(crate) fn touch(&self) {
        let _ = self.0.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the word of a free holder to the owner of its slot. `None` if it is all zero.
    pub(crate) fn vacant(&self) -> Option<Word> {
        // Relaxed: the last owner passed the slot on after its last write (WORD-4).
        let word = Word(self.0.load(Ordering::Relaxed));
        debug_assert!(word.is_in(Phase::Free), "the slot is free, and so is its holder (SLOT-1)");
        (word.0 != 0).then_some(word)
    }

    /// Acquire: pairs with the Release of the transition that is seen (WORD-4).
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Like [`load`](AtomicWord::load), and in one total order with every `cancel` (HANDLE-1 in `handle.rs`).
    pub(crate) fn load_in_order(&self) -> Word {
        Word(self.0.load_in_order())
    }

    /// `fill`: puts a task in. A store suffices, because only the owner of the free slot may call this, and stale
    /// handles compare the generation and leave the word alone. Release: pairs with the Acquire in `load` and in the
    /// exchanges (WORD-4).
    pub(crate) fn fill(&self, word: Word) {
        self.0.store(word.0, Ordering::Release);
    }

    /// `claim`: makes a task that is in `from` running. The caller then owns the body (WORD-1, WORD-2).
    pub(crate) fn claim(&self, generation: u32, from: Phase) -> Option<Word> {
        self.transition(generation, from, Phase::Running)
    }

    /// `claim` of a pending task that has neither moved nor ever been reset. For others see
    /// [`deadline`](super::deadline).
    #[inline]
    pub(crate) fn claim_plain(&self, generation: u32) -> Option<Word> {
        self.transition_with(generation, Phase::Pending, |word| {
            (word.0 & (MOVED | RESET) == 0).then(|| word.in_phase(Phase::Running))
        })
    }

    /// `claim` of a leftover for its only run. After that no cancel wins, not even for a series.
    pub(crate) fn claim_last(&self, generation: u32) -> Option<Word> {
        self.transition_with(generation, Phase::Returned, |word| {
            Some(word.in_phase(if word.is_series() { Phase::Ending } else { Phase::Running }))
        })
    }

    /// `give back`: makes a task that is in `from` a leftover. That is `Pending`, or, for a series whose next run the
    /// engine has refused, `Running`.
    pub(crate) fn give_back(&self, generation: u32, from: Phase) -> Option<Word> {
        self.transition(generation, from, Phase::Returned)
    }

    /// `hold`: holds a task that is in `from`, which is `Pending`, `Returned`, or, for a series, `Running`. Returns its
    /// word from before. Until the caller calls [`put_back`](AtomicWord::put_back) it alone changes the task (WORD-5).
    #[inline]
    pub(crate) fn hold(&self, generation: u32, from: Phase) -> Option<Word> {
        self.hold_if(generation, from, |_| true)
    }

    /// Like [`hold`](AtomicWord::hold), if the word is such.
    #[inline]
    pub(super) fn hold_if(
        &self,
        generation: u32,
        from: Phase,
        is_such: impl Fn(Word) -> bool,
    ) -> Option<Word> {
        let held = self.transition_with(generation, from, |word| {
            let to = if from == Phase::Running { Phase::HeldInRun } else { Phase::Held };
            is_such(word).then(|| word.in_phase(to))
        });
        held.map(|word| word.in_phase(from))
    }

    /// `hold` of a series whose run has ended. It is held as a task that waits, because its entry may be looked at before
    /// it is put back. Returns the word of its next run.
    #[inline]
    pub(super) fn hold_rearmed(&self, generation: u32) -> Option<Word> {
        let held = self.transition_with(generation, Phase::Running, |word| {
            Some(word.rearmed().in_phase(Phase::Held))
        });
        held.map(|word| word.in_phase(Phase::Pending))
    }

    /// Changes the word of a task that this thread goes on holding. Release: pairs with the Acquire of a look.
    pub(super) fn change_held(&self, word: Word) {
        debug_assert!(word.is_held(), "the task is not put back");
        self.put_back(word);
    }

    /// `put back`: ends a `hold`. A store suffices, because nobody else may end it. Release: pairs with the Acquire of
    /// the exchange by which the next owner gets the body.
    #[inline]
    pub(crate) fn put_back(&self, word: Word) {
        let is_same = |held: Word| held.is_held() && held.generation() == word.generation();
        debug_assert!(
            is_same(self.load_relaxed()),
            "only the thread that holds a task puts it back"
        );
        self.0.store(word.0, Ordering::Release);
    }

    /// `close`: the runner ends a series, and no cancel wins from now on. Returns false if a cancel has doomed it
    /// before.
    pub(crate) fn close(&self, generation: u32) -> bool {
        self.transition(generation, Phase::Running, Phase::Ending).is_some()
    }

    /// `end`: the runner frees the holder. Returns the generation of the next task there. A store suffices, because
    /// nobody else may leave `Running` of a one-shot, `Doomed` or `Ending`. Release: pairs with the Acquire in `load`
    /// (WORD-4).
    pub(crate) fn end(&self, word: Word, cancelled: bool) -> u32 {
        let last =
            if word.is_series() { [Phase::Doomed, Phase::Ending] } else { [Phase::Running; 2] };
        let is_it = |phase: &Phase| self.load_relaxed().reset() == word.in_phase(*phase).reset();
        debug_assert!(last.iter().any(is_it), "nobody but a reset changes the word of a series");
        let freed = word.freed(cancelled);
        self.0.store(freed.0, Ordering::Release);
        freed.generation()
    }

    /// `cancel`: ends a task that is still to run (WORD-1, WORD-2). Returns the old word. If its phase is
    /// `Running`, the task is a series: it is `Doomed` now, and its runner ends it. Otherwise the holder is free now, and the
    /// caller owns the body. Returns `None` if the task had run, was running, or was
    /// cancelled before.
    ///
    /// It is `SeqCst`, because handles that share their outcome rely on one order of cancels and of their own loads.
    /// `has_moved` is called before the exchange of a task that has moved.
    #[inline]
    pub(crate) fn cancel(&self, generation: u32, mut has_moved: impl FnMut()) -> Option<Word> {
        let mut seen = self.load_relaxed();
        let mut patience = Patience::default();
        loop {
            if seen.generation() != generation {
                return None;
            }
            if seen.has_moved() {
                has_moved();
            }
            let next = match seen.phase() {
                Phase::Pending | Phase::Returned => seen.freed(true),
                Phase::Running if seen.is_series() => seen.in_phase(Phase::Doomed),
                Phase::Held | Phase::HeldInRun => {
                    patience.spin(); // for some instructions (WORD-5)
                    seen = self.load_relaxed();
                    continue;
                }
                _ => return None,
            };
            match self.compare_exchange(seen, next) {
                Ok(()) => return Some(seen),
                Err(now) => seen = now,
            }
        }
    }

    /// Moves a task from one phase to another. Returns the word after it, or `None` if the task is not in `from`.
    fn transition(&self, generation: u32, from: Phase, to: Phase) -> Option<Word> {
        self.transition_with(generation, from, |word| Some(word.in_phase(to)))
    }

    /// Like [`transition`](AtomicWord::transition), to the word that `next` returns, or nowhere if it returns `None`.
    #[inline]
    fn transition_with(
        &self,
        generation: u32,
        from: Phase,
        next: impl Fn(Word) -> Option<Word>,
    ) -> Option<Word> {
        let mut seen = self.load_relaxed();
        let mut patience = Patience::default();
        loop {
            while seen.generation() == generation && seen.is_in(from) {
                let next = next(seen)?;
                match self.compare_exchange(seen, next) {
                    Ok(()) => return Some(next),
                    Err(now) => seen = now,
                }
            }
            if seen.generation() != generation || !seen.is_held() {
                return None;
            }
            patience.spin(); // for some instructions (WORD-5)
            seen = self.load_relaxed();
        }
    }

    /// Relaxed: an exchange starts from this word, and fails if it has changed.
    #[inline]
    pub(super) fn load_relaxed(&self) -> Word {
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Acquire, to see the body, and Release, so that the next owner sees what was done to the body (WORD-4). `SeqCst`
    /// for the cancel's part in HANDLE-1: on x86 and Arm it is the same instruction. Relaxed if it fails, because the
    /// caller then only tries again.
    fn compare_exchange(&self, seen: Word, next: Word) -> Result<(), Word> {
        self.0.exchange_in_order(seen.0, next.0).map(drop).map_err(Word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn filled(kind: Kind) -> AtomicWord {
        let reference = AtomicWord::new();
        reference.fill(Word::pending(7, 0, kind, 0));
        reference
    }

    /// Returns the phase before the cancel, if the cancel won.
    fn cancel(task: &AtomicWord, generation: u32) -> Option<Phase> {
        task.cancel(generation, || unreachable!("it has not moved")).map(Word::phase)
    }

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let word = Word::pending(u32::MAX - 1, 0b1010, Kind::Gap, EXECUTORS - 1);
        assert_eq!(word.generation(), u32::MAX - 1);
        assert_eq!(word.past(), 0b1010);
        assert_eq!((word.kind(), word.executor()), (Kind::Gap, EXECUTORS - 1));
        assert_eq!(word.in_phase(Phase::Returned).phase(), Phase::Returned);
    }

    #[test]
    fn s08_one_cancel_wins_and_a_run_prevents_it() {
        let task = filled(Kind::Once);
        assert_eq!(cancel(&task, 7), Some(Phase::Pending));
        assert_eq!(cancel(&task, 7), None);

        let task = filled(Kind::Once);
        let word = task.claim(7, Phase::Pending).expect("pending");
        assert_eq!(cancel(&task, 7), None, "a one-shot that runs");
        assert_eq!(task.end(word, false), 8);
    }

    #[test]
    fn s10_a_stale_generation_changes_nothing() {
        let task = filled(Kind::Once);
        assert_eq!(cancel(&task, 6), None);
        assert!(task.claim(8, Phase::Pending).is_none());
        assert!(task.claim(7, Phase::Pending).is_some());
    }

    #[test]
    fn s16_a_series_that_is_cancelled_in_its_run_does_not_come_back() {
        let task = filled(Kind::RateBurst);
        let word = task.claim(7, Phase::Pending).expect("pending");
        assert_eq!(cancel(&task, 7), Some(Phase::Running));
        assert_eq!(cancel(&task, 7), None, "once");
        assert!(task.hold(7, Phase::Running).is_none() && !task.close(7));
        assert_eq!(task.end(word, true), 8);
        assert_eq!(task.vacant().map(Word::past), Some(1));
    }

    #[test]
    fn s29_a_task_that_has_moved_says_so_and_keeps_the_rest() {
        let task = filled(Kind::Gap);
        assert!(task.give_back(7, Phase::Running).is_none(), "it does not run");
        assert!(task.give_back(7, Phase::Pending).is_some());
        let held = task.hold(7, Phase::Returned).expect("returned");
        task.put_back(held.moved(Phase::Pending, EXECUTORS - 1));
        let word = task.load();
        assert_eq!((word.phase(), word.kind()), (Phase::Pending, Kind::Gap));
        assert_eq!((word.generation(), word.executor(), word.past()), (7, EXECUTORS - 1, 0));
        assert!(word.has_moved());
        let mut told = false;
        assert!(task.cancel(7, || told = true).is_some() && told);
        assert!(!task.vacant().expect("used").has_moved(), "the next task has not");
    }

    #[test]
    fn s31_a_task_that_is_held_is_still_to_run() {
        let task = filled(Kind::Once);
        let word = task.hold(7, Phase::Pending).expect("pending");
        assert!(task.load().is_pending() && task.hold(6, Phase::Pending).is_none());
        task.put_back(word);
        assert!(task.load() == word && task.claim(7, Phase::Pending).is_some());
    }

    #[test]
    fn s29_each_run_of_a_series_has_another_turn() {
        let task = filled(Kind::Gap);
        let mut turns = Vec::new();
        for _ in 0..3 {
            turns.push(task.claim(7, Phase::Pending).expect("pending").turn());
            let held = task.hold_rearmed(7).expect("it runs");
            assert!(task.load().is_in(Phase::Held), "nobody takes its entry for stale");
            task.put_back(held);
            assert!(task.load().is_in(Phase::Pending));
        }
        assert_eq!(turns, [Some(Turn::Even), Some(Turn::Odd), Some(Turn::Even)]);
        assert_eq!(filled(Kind::Once).load().turn(), None);
    }

    #[test]
    fn a_word_remembers_its_last_outcomes() {
        let mut word = Word::pending(1, 0, Kind::Once, 0);
        for cancelled in [true, false, true, false] {
            word = word.freed(cancelled);
        }
        let told: Vec<_> = (0..=5).map(|generation| word.ended_by_cancel(generation)).collect();
        assert_eq!(told, [None, Some(true), Some(false), Some(true), Some(false), None]);
    }
}
