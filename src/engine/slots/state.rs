//! The states of a task, in one atomic word of its holder: the [`AtomicWord`].
//!
//! **The rule.** The word has a *filing number*. Each filing of a task gives it a new one: its schedule, a reset to an
//! earlier time, a filing again under a later deadline, the next run of a series, a move to another scheduler. Its end
//! gives it a new one, too. An [`Entry`](crate::wheel::entry::Entry) has the number of its filing, wherever it lies: in
//! a lane, in the wheel, in a queue of ours or of an executor. It is *live* exactly if its number is the word's. All
//! others are stale, and any thread that meets one drops it. (In Akka's scheduler the word is an `AtomicReference` to
//! the present holder, swapped for each repetition and set to null by a cancel.)
//!
//! The word does not identify the task, as a handle needs it. For that, a [`TaskKey`](crate::wheel::entry::TaskKey) has
//! the number of the task's first filing, its *birth*. The holder has it too, beside the word, and with it the scheduler
//! that the task belongs to, which changes if a leftover moves.
//!
//! ```text
//!              fill                       claim                      end
//!   Free(n) ----------> Pending(n) ----------------> Running(n) ----------> Free(n+1)
//!                        |   ^                        |     |                   ^
//!                        |   +------ rearm: n+1 ------+     | cancel, or close  |
//!                        |   |                        |     v a series          |
//!                        |   | move: n+1              |    Doomed(n), Ending(n) - end
//!                        |   |                        |                         |
//!                        +---+--- leave over -> Returned(n) -- claim -> Running(n), or Ending(n) of a series
//!                        |                            |                         |
//!                        +---- cancel ----------------+--- cancel --------------+
//!
//!   Pending, Returned, Running of a series --hold--> Held --put back--> as it was, or another one of the three
//! ```
//!
//! | phase | the task | which threads may end this phase, and by which step |
//! | --- | --- | --- |
//! | `Free` | there is none | the owner of the free slot: `fill` |
//! | `Pending` | waits in the intake, the wheel, or an executor's queue | anybody: `cancel`, `hold` (to claim it, among others); at the end of the scheduler, the engine: `leave over`, and a producer whose record was refused: `withdraw` |
//! | `Running` | runs | the runner: `end` of a one-shot, `hold` (to rearm), `leave over` or `close` of a series; anybody, for a series: `cancel`, `hold` |
//! | `Doomed` | a series in its last run, because of a cancel | the runner: `end` |
//! | `Ending` | a series after its last run, or in the one run that it has as a leftover; a task that is withdrawn | the runner, or that producer: `end` |
//! | `Returned` | is among the leftovers of a close | anybody: `claim`, `cancel`, `hold` |
//! | `Held` | is just being claimed, moved, named, or set to its next run by one thread | that thread: `put back`; all others wait for it |
//!
//! - WORD-1 A transition out of a phase that several threads may leave is a compare-exchange of the whole word, number
//!   included. So exactly one thread wins (S8), and a stale entry never does. The thread that wins `claim`, or `cancel`
//!   from `Pending` or `Returned`, alone owns the body from then on. `Doomed` and `Ending` leave the body with the runner.
//! - WORD-3 A number stands for one filing for ever, with one exception. A holder whose number has reached the upper half
//!   is worn: it is not used again when its task ends, so births never come twice. But the numbers of one task may come
//!   again, within the upper half: those of a series that runs a thousand times a second, after 25 days. Then an entry of
//!   2^31 filings ago, which only a reset to an earlier time can have left, is taken for the live one. It does no harm,
//!   because each claim looks at the deadline.
//! - WORD-4 Every exchange is Acquire and Release, so a thread that cancels a series between two runs sees what the
//!   last run wrote. `end` is Release and every load from outside is Acquire, so a thread that finds a task done sees
//!   what the task did. `fill` is Release for the same reason: a thread that finds the slot filled again knows that the
//!   task before is done. A slot passes from owner to owner under the depot's lock, or within one thread. `birth` is
//!   written before `fill` and read after a load of the word. So a thread that finds its own task's birth has a word of
//!   this task, or one that has been exchanged since.
//! - WORD-5 A task is held only for a moment: for some instructions and, if it gets a new entry, a push into a lane. No user
//!   code runs in the meantime. The number of a
//!   held task may be about to change, so it proves nothing. A thread that wants to change the task waits until it is put
//!   back. A thread that only looks takes any entry of its slot for live.
//!
//! The word also carries what seldom changes in the life of a task: the kind of repetition, the number of the task's own
//! executor, whether it is a waker, and whether its entry is filed under another time than its deadline. The word of a free holder says whether
//! the last task ended by a cancel.

use crate::clock::repeat::Kind;
use crate::platform::sync::{AtomicU64, Ordering, Patience};

/// The state of a task: see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Free = 0,
    Pending = 1,
    Running = 2,
    /// With `Pending` it has two bits in common, so that one comparison finds both: see [`Word::waits`].
    Returned = 3,
    Doomed = 4,
    Held = 5,
    Ending = 6,
}

/// One value of the word. From the low end: phase 3 bits, kind 3, cancelled 1, one unused, waker 1, executor 19, put off 1,
/// three unused, number 32.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Word(u64);

const KIND_AT: u32 = 3;
const CANCELLED: u64 = 1 << 6;
const WAKER: u64 = 1 << 8;
const EXECUTOR_AT: u32 = 9;
const PUT_OFF: u64 = 1 << 28;
const NUMBER_AT: u32 = 32;
const LOW_3: u64 = 0b111;
/// Set in all numbers of the upper half (WORD-3).
const UPPER: u64 = 1 << 63;

/// One more than the highest number of an executor that a word can carry.
pub(crate) const EXECUTORS: u32 = 1 << 19;

impl Word {
    /// Returns the word of a pending task.
    pub(crate) fn pending(number: u32, kind: Kind, executor: u32, is_waker: bool) -> Word {
        debug_assert!(executor < EXECUTORS);
        Word(
            u64::from(number) << NUMBER_AT
                | u64::from(executor) << EXECUTOR_AT
                | if is_waker { WAKER } else { 0 }
                | (kind as u64) << KIND_AT
                | Phase::Pending as u64,
        )
    }

    /// Returns true for a waker, which is never a leftover.
    pub(super) fn is_waker(self) -> bool {
        self.0 & WAKER != 0
    }

    /// Returns the number of the last filing.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        (self.0 >> NUMBER_AT) as u32
    }

    #[inline]
    pub(crate) fn phase(self) -> Phase {
        match self.0 & LOW_3 {
            0 => Phase::Free,
            1 => Phase::Pending,
            2 => Phase::Running,
            3 => Phase::Returned,
            4 => Phase::Doomed,
            5 => Phase::Held,
            _ => Phase::Ending,
        }
    }

    #[inline]
    pub(crate) fn is_in(self, phase: Phase) -> bool {
        self.0 & LOW_3 == phase as u64
    }

    /// Returns true if the task is pending or returned.
    #[inline]
    pub(super) fn waits(self) -> bool {
        const MASK: u64 = 0b101;
        const { assert!(Phase::Pending as u64 & MASK == 1 && Phase::Returned as u64 & MASK == 1) };
        self.0 & MASK == 1
    }

    /// Returns true if an entry of this number is live (WORD-5).
    #[inline]
    pub(super) fn is_filed_as(self, number: u32) -> bool {
        self.number() == number || self.is_in(Phase::Held)
    }

    /// Returns true if the task repeats.
    #[inline]
    pub(crate) fn is_series(self) -> bool {
        self.0 >> KIND_AT & LOW_3 != Kind::Once as u64
    }

    /// Returns true if the deadline of the task's next run may move: it waits, or is a series in its run.
    pub(super) fn may_move(self) -> bool {
        self.waits() || self.is_in(Phase::Running) && self.is_series()
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
    #[inline]
    pub(crate) fn executor(self) -> u32 {
        (self.0 >> EXECUTOR_AT) as u32 & (EXECUTORS - 1)
    }

    /// Returns true if the holder is free, and its last task ended by a cancel.
    pub(crate) fn ended_by_cancel(self) -> bool {
        self.is_in(Phase::Free) && self.0 & CANCELLED != 0
    }

    /// Returns true if the live entry is filed under a time of its own: see [`deadline`](super::deadline).
    #[inline]
    pub(super) fn is_put_off(self) -> bool {
        self.0 & PUT_OFF != 0
    }

    #[inline]
    pub(super) fn put_off(self, is_put_off: bool) -> Word {
        Word(self.0 & !PUT_OFF | if is_put_off { PUT_OFF } else { 0 })
    }

    /// Returns true if the holder is not to be used again (WORD-3).
    #[inline]
    pub(super) fn is_worn(self) -> bool {
        self.0 & UPPER != 0
    }

    #[inline]
    pub(super) fn in_phase(self, phase: Phase) -> Word {
        Word(self.0 & !LOW_3 | phase as u64)
    }

    /// Returns the word of the same task after its next filing, under its deadline.
    #[inline]
    pub(super) fn filed_again(self) -> Word {
        Word(self.put_off(false).0.wrapping_add(1 << NUMBER_AT) | self.0 & UPPER)
    }

    /// Returns the word of the same task, filed at another scheduler, on the executor of this number there.
    pub(super) fn moved(self, executor: u32) -> Word {
        let without = self.filed_again().0 & !(u64::from(EXECUTORS - 1) << EXECUTOR_AT);
        Word(without | u64::from(executor) << EXECUTOR_AT)
    }

    /// Returns the word of the holder when it is free for the next task.
    #[inline]
    fn freed(self, cancelled: bool) -> Word {
        let next = self.filed_again().0 & u64::MAX << NUMBER_AT;
        Word(next | if cancelled { CANCELLED } else { 0 })
    }
}

/// Why a cancel has not ended a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotEnded {
    /// It came too late.
    Lost,
    /// It has won: a series is in a run, and will not run again after it. The runner ends it.
    Doomed,
}

/// The word of a holder. One that never held a task has zero. No task has the number 0 at its birth.
#[derive(Default)]
pub(crate) struct AtomicWord(AtomicU64);

impl AtomicWord {
    /// Returns the word of a free holder to the owner of its slot. `None` if it is all zero.
    #[inline]
    pub(crate) fn vacant(&self) -> Option<Word> {
        // Relaxed: the last owner passed the slot on after its last write (WORD-4).
        let word = Word(self.0.load(Ordering::Relaxed));
        debug_assert!(word.is_in(Phase::Free), "the slot is free, and so is its holder (SLOT-1)");
        (word.0 != 0).then_some(word)
    }

    /// Acquire: pairs with the Release of the transition that is seen (WORD-4).
    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Like [`load`](AtomicWord::load), and in one total order with every `cancel` (HANDLE-1 in `handle.rs`).
    pub(crate) fn load_in_order(&self) -> Word {
        Word(self.0.load(Ordering::SeqCst))
    }

    /// `fill`: puts a task in. A store suffices, because only the owner of the free slot may call this, and stale
    /// handles find another birth and leave the word alone. Release: pairs with the Acquire in `load` and in the
    /// exchanges (WORD-4).
    #[inline]
    pub(crate) fn fill(&self, word: Word) {
        self.0.store(word.0, Ordering::Release);
    }

    /// Moves a task from one phase to another: `claim` of a leftover, `leave over`, `close`, `withdraw`. Returns the word before, or
    /// `None` if the task is not in `from`, or if it is not the one that is meant. It waits for a task that is held.
    #[inline]
    pub(super) fn transition(
        &self,
        is_meant: impl Fn(Word) -> bool,
        from: Phase,
        to: impl Fn(Word) -> Phase,
    ) -> Option<Word> {
        self.change(|word| (word.is_in(from) && is_meant(word)).then(|| word.in_phase(to(word))))
    }

    /// Puts what `next` returns in the place of the word that it gets. Returns the word before, or `None` if `next` does. It
    /// waits for a task that is held. `next` is called between each load of the word and the exchange.
    #[inline]
    pub(super) fn change(&self, mut next: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        // Acquire, to see the body, and Release, so that the next owner sees what was done to the body (WORD-4). `SeqCst`
        // for the cancel's part in HANDLE-1: on x86 and Arm it is the same instruction. Acquire too if it fails, because the
        // caller then compares the birth (WORD-4).
        let (success, failure) = (Ordering::SeqCst, Ordering::Acquire);
        let mut patience = Patience::default();
        let mut seen = self.load();
        loop {
            match next(seen) {
                Some(next) => match self.0.compare_exchange(seen.0, next.0, success, failure) {
                    Ok(_) => return Some(seen),
                    Err(now) => seen = Word(now),
                },
                None if seen.is_in(Phase::Held) => {
                    patience.spin(); // for some instructions (WORD-5)
                    seen = self.load();
                }
                None => return None,
            }
        }
    }

    /// `hold`: holds a task that is in `from`, which is `Pending`, `Returned`, or, for a series, `Running`. Returns its
    /// word from before. Until the caller calls [`put_back`](AtomicWord::put_back) it alone changes the task (WORD-5).
    #[inline]
    pub(super) fn hold(&self, is_meant: impl Fn(Word) -> bool, from: Phase) -> Option<Word> {
        self.transition(is_meant, from, |_| Phase::Held)
    }

    /// `put back`: ends a `hold`. A store suffices, because nobody else may end it. Release: pairs with the Acquire of
    /// the exchange by which the next owner gets the body.
    #[inline]
    pub(super) fn put_back(&self, word: Word) {
        debug_assert!(
            self.load().is_in(Phase::Held),
            "only the thread that holds a task puts it back"
        );
        self.0.store(word.0, Ordering::Release);
    }

    /// `end`: the runner frees the holder. `word` is in the last phase. A store suffices, because nobody else may
    /// leave `Running` of a one-shot, `Doomed` or `Ending`. Release: pairs with the Acquire in `load` (WORD-4).
    #[inline]
    pub(super) fn end(&self, word: Word) {
        debug_assert!(
            [word, word.in_phase(Phase::Ending)].contains(&self.load()),
            "nobody but its runner changes the word of a task in its last run"
        );
        self.0.store(word.freed(word.is_in(Phase::Doomed)).0, Ordering::Release);
    }

    /// `cancel`: ends a task that is still to run (WORD-1). Returns the old word. The holder is free now, and the caller
    /// owns the body. A series that runs is `Doomed` instead. The cancel is lost if the task had run, was running, or was
    /// cancelled before, or is not the one that is meant.
    ///
    /// `is_meant` is called between the last look at the word and the exchange. Each move to another scheduler changes the
    /// word, so what `is_meant` has seen of the task is right if the cancel wins.
    #[inline]
    pub(super) fn cancel(&self, mut is_meant: impl FnMut() -> bool) -> Result<Word, NotEnded> {
        let next = |word: Word| {
            // After each load of the word: a later task in this holder has another birth, and its word is left alone.
            if !is_meant() {
                None
            } else if word.waits() {
                Some(word.freed(true))
            } else {
                let is_doomed = word.is_in(Phase::Running) && word.is_series();
                is_doomed.then(|| word.in_phase(Phase::Doomed))
            }
        };
        // `SeqCst`, because handles that share their outcome rely on one order of cancels and of their own loads.
        let before = self.change(next).ok_or(NotEnded::Lost)?;
        if before.waits() { Ok(before) } else { Err(NotEnded::Doomed) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn filled(kind: Kind) -> AtomicWord {
        let reference = AtomicWord::default();
        reference.fill(Word::pending(7, kind, 0, false));
        reference
    }

    fn is_7(word: Word) -> bool {
        word.number() == 7
    }

    /// Returns the phase before the cancel, if the cancel won.
    fn cancel(task: &AtomicWord) -> Option<Phase> {
        match task.cancel(|| true) {
            Ok(word) => Some(word.phase()),
            Err(NotEnded::Doomed) => Some(Phase::Running),
            Err(_) => None,
        }
    }

    /// Does what a claim does to the word.
    fn claim(task: &AtomicWord, is_meant: impl Fn(Word) -> bool) -> Option<Word> {
        let running = task.hold(is_meant, Phase::Pending)?.in_phase(Phase::Running);
        task.put_back(running);
        Some(running)
    }

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let word = Word::pending(u32::MAX >> 1, Kind::Gap, EXECUTORS - 1, false);
        assert_eq!(word.number(), u32::MAX >> 1);
        assert_eq!((word.kind(), word.executor()), (Kind::Gap, EXECUTORS - 1));
        assert_eq!(word.in_phase(Phase::Returned).phase(), Phase::Returned);
        assert!(!word.is_worn() && !word.ended_by_cancel());
    }

    #[test]
    fn s08_one_cancel_wins_and_a_run_prevents_it() {
        let task = filled(Kind::Once);
        assert_eq!(cancel(&task), Some(Phase::Pending));
        assert_eq!(cancel(&task), None);
        assert!(task.load().ended_by_cancel());

        let task = filled(Kind::Once);
        let word = claim(&task, is_7).expect("pending");
        assert_eq!(cancel(&task), None, "a one-shot that runs");
        task.end(word);
        assert!(task.load().number() == 8 && !task.load().ended_by_cancel());
    }

    #[test]
    fn s10_a_stale_entry_or_handle_changes_nothing() {
        let task = filled(Kind::Once);
        assert!(task.cancel(|| false).is_err());
        assert!(claim(&task, |word| word.number() == 6).is_none());
        assert!(claim(&task, is_7).is_some());
    }

    #[test]
    fn s16_a_series_that_is_cancelled_in_its_run_does_not_come_back() {
        let task = filled(Kind::RateBurst);
        let word = claim(&task, is_7).expect("pending");
        assert_eq!(cancel(&task), Some(Phase::Running));
        assert_eq!(cancel(&task), None, "once");
        assert!(task.hold(is_7, Phase::Running).is_none());
        assert!(task.transition(is_7, Phase::Running, |_| Phase::Ending).is_none());
        task.end(word.in_phase(Phase::Doomed));
        assert!(task.load().ended_by_cancel());
    }

    #[test]
    fn s29_a_task_that_has_moved_keeps_all_but_its_executor() {
        let task = filled(Kind::Gap);
        assert!(task.transition(is_7, Phase::Running, |_| Phase::Returned).is_none());
        assert!(task.transition(is_7, Phase::Pending, |_| Phase::Returned).is_some());
        let held = task.hold(is_7, Phase::Returned).expect("returned");
        task.put_back(held.moved(EXECUTORS - 1).in_phase(Phase::Pending));
        let word = task.load();
        assert_eq!((word.phase(), word.kind()), (Phase::Pending, Kind::Gap));
        assert_eq!((word.number(), word.executor()), (8, EXECUTORS - 1));
        assert!(task.cancel(|| true).is_ok());
    }

    #[test]
    fn s31_any_entry_of_a_task_that_is_held_is_taken_for_live() {
        let task = filled(Kind::Once);
        let word = task.hold(is_7, Phase::Pending).expect("pending");
        assert!(task.load().is_filed_as(7) && task.load().is_filed_as(6));
        task.put_back(word);
        assert!(task.load() == word && word.is_filed_as(7) && !word.is_filed_as(6));
    }

    #[test]
    fn a_holder_whose_number_has_reached_the_upper_half_is_worn_for_good() {
        let mut word = Word::pending((1 << 31) - 2, Kind::Gap, 3, false);
        for is_worn in [false, true, true] {
            word = word.filed_again();
            assert_eq!((word.is_worn(), word.kind(), word.executor()), (is_worn, Kind::Gap, 3));
        }
        let wrapped = Word(word.0 | u64::from(u32::MAX) << NUMBER_AT).filed_again();
        assert_eq!((wrapped.number(), wrapped.kind(), wrapped.executor()), (1 << 31, Kind::Gap, 3));
        assert!(wrapped.is_worn() && wrapped.freed(true).is_worn());
    }
}
